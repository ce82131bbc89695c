/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_LOOP_RIGHTS_H
#define DAEMON_LOOP_RIGHTS_H
/*
 * Descriptors that clients attach to messages (SCM_RIGHTS). The daemon wants none. Since Linux 6.16 the
 * kernel refuses such a message when it is sent (SO_PASSRIGHTS); a connection has that from its listener,
 * also before it is accepted. On older kernels the daemon looks at each message before it reads it: a client
 * that attached something is ended, and the closer closes the socket with the message in it. The loop itself
 * never drops the last reference of a descriptor, because that can take as long as the client likes
 * (closer.h).
 */
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

struct closer;

/* Has the kernel refuse descriptors on a listener, if it can. */
void rights_refuse(int listener_fd);

/* An accepted socket. One that came before its listener refused descriptors (systemd before 258 made the
 * listener) may have some. */
void rights_accepted(int fd);

/* Before a message, or part of a stream, is read from a socket without blocking: how many bytes may be read,
 * most at most. 0: the end of the file; -EAGAIN: there is nothing; -EPERM: a descriptor comes along, so
 * nothing is to be read any more; or another negative errno. Asks the kernel only where some socket may have
 * descriptors. */
ssize_t rights_look(int fd, size_t most);

/* Closes a client's socket (-1: nothing): at once where no socket has descriptors, else on the closer's
 * thread. */
void rights_close(struct closer *closer, int fd);

#endif
