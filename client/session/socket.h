/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_SOCKET_H
#define CLIENT_SESSION_SOCKET_H
/*
 * System calls on the daemon's sockets: connecting and waiting, and for SOCK_SEQPACKET sending a packet and
 * receiving one, each until a deadline, none of them ever raising SIGPIPE. Knows nothing of the packets'
 * meaning. Functions return 0 or a negative errno; the descriptor is the caller's.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "proto/limits.h"

/* Descriptors that one packet can bring before the kernel cuts the rest (MSG_CTRUNC). The room for more than
 * the protocol allows lets the library see a daemon that sends too many, and close every one. */
#define SOCKET_FDS_MAX (PROTO_LEASES_PER_MESSAGE + 16u)

/* Stands for a descriptor that was sent and did not arrive. */
#define FD_LOST (-2)

/* Connects to a Unix socket of a type, SOCK_SEQPACKET or SOCK_STREAM. Returns 0 and the socket, -ETIMEDOUT,
 * -ENOENT (an empty path), -ENAMETOOLONG, or the error of socket() or connect(). */
int socket_connect(const char *path, int type, uint64_t deadline_ns, int *ret_fd);

/* Sends one packet, in pieces that follow each other, if the socket takes it at once. Returns 0, -EAGAIN (the
 * socket is full), -EPIPE (the other end is gone) or another negative errno. */
int socket_try_send(int fd, const struct iovec *pieces, size_t count);

/* Sends one packet whole. Returns 0, -ETIMEDOUT, -EPIPE (the other end is gone) or another negative errno. */
int socket_send(int fd, const void *packet, size_t size, uint64_t deadline_ns);

/* Receives one packet. *ret_size is 0 at the end of file. *ret_fds gets its descriptors, close-on-exec,
 * *ret_count how many: the caller's. *ret_has_lost: the kernel has dropped the rest of them, because this
 * process had no descriptor free. A packet or a control message that did not fit is -EMSGSIZE (its
 * descriptors are closed, its rest is lost). Returns 0, -ETIMEDOUT, -EINTR (with
 * until_signal: a signal came), or another negative errno. */
int socket_receive(int fd, void *packet, size_t capacity, uint64_t deadline_ns, size_t *ret_size,
                   int ret_fds[static SOCKET_FDS_MAX], unsigned *ret_count, bool *ret_has_lost,
                   bool until_signal);

/* Whether the path names a file that is not a socket: connecting says ECONNREFUSED to that, too. */
bool socket_is_other_file(const char *path);

/* Waits for poll events on any descriptor. Returns 0, -ETIMEDOUT or a negative errno. */
int socket_wait(int fd, short events, uint64_t deadline_ns);

#endif
