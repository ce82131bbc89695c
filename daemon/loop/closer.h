/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_LOOP_CLOSER_H
#define DAEMON_LOOP_CLOSER_H
/*
 * A closer: a thread that closes the sockets of clients. The queue of such a socket can hold descriptors that
 * the client attached to a message, where the kernel does not refuse them (rights.h). To drop the last
 * reference of a descriptor can take as long as the client likes: a TCP socket with SO_LINGER waits until its
 * data are sent. So the loop does not close such a socket itself.
 *
 * Sockets are closed in order. While one of them blocks, the others stay open, and count as descriptors of
 * the daemon.
 */
struct closer;

/* Starts the thread; all signals are blocked in it. Returns 0 or a negative errno. */
int closer_new(struct closer **ret_closer);

/* Ends the thread when all is closed. A thread that is inside one close for longer than a second is left
 * alone, with the object: the process ends, and its end closes everything without waiting. */
void closer_free(struct closer *closer);

/* Takes fd; -1: nothing. Without memory, closes it on the calling thread. Thread-safe. */
void closer_close(struct closer *closer, int fd);

#endif
