/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_ALIVE_H
#define CLIENT_SESSION_ALIVE_H
/*
 * Whether a daemon is there that serves a connection. In version 2 of the wire format the daemon gives the client the
 * read end of a pipe (ALIVE), which hangs up when that daemon has ended. Then the daemon is *away* until the next one
 * answers: the client asks anew, and the request stays in the socket until then.
 *
 *     ASKED ──ALIVE──▶ THERE ──the pipe hangs up──▶ AWAY ──ALIVE──▶ THERE
 *
 * The connection owns it. No thread waits for an answer: the request is one of those that are abandoned, and the reader
 * hands the answer to alive_answered_locked(). A thread that looks (alive_look()) finds that the pipe has hung up. One
 * descriptor set is told of both: a thread of the client waits there (alive_watch()).
 *
 * Invariants: all is under the connection's lock. fd is in the epoll, if there is one. An epoll keeps a descriptor that
 * is closed while other processes have the same pipe, so it is taken out before.
 */
#include <stdbool.h>
#include <stdint.h>

struct connection;

/* Threads that wait while the daemon is away look so often whether it is back. Its answers wake them besides. */
#define ALIVE_LOOK_NS UINT64_C(1000000000)

struct alive {
    bool is_used;      /* the session's version has it, and the daemon did not refuse */
    bool is_asked;     /* the answer has not come */
    bool is_away;      /* the daemon that was there last has ended, and no other one has answered */
    int fd;            /* -1: none, or it has hung up */
    int epoll_fd;      /* borrowed; -1: no thread waits for changes */
    int wake_fd;       /* an eventfd, borrowed, written when is_away changes; -1 likewise */
    unsigned n_pauses; /* how often it was away */
    uint64_t back_ns;  /* when it came back; 0: it was not away yet */
};

void alive_init(struct alive *alive);
void alive_deinit(struct alive *alive);

/* Begins to use it: asks. Sends what the socket takes at once, and waits for nothing. */
void alive_begin(struct connection *connection);

/* The connection has ended: the pipe says nothing more. Takes the connection's lock. */
void alive_end(struct connection *connection);

/* Looks whether the daemon has ended, and asks where that is due. Waits for nothing. Returns whether it is away. Takes
 * the connection's lock, and leaves the thread's error text as it is. */
bool alive_look(struct connection *connection);

/* From now on a thread waits for changes: fd is in the epoll, and the eventfd is written. */
void alive_watch(struct connection *connection, int epoll_fd, int wake_fd);

/* The answer to the request has come. *fd: the pipe, taken; -1: the daemon refuses, with the error; FD_LOST. Returns
 * NULL or what is wrong with it. The connection is locked. */
const char *alive_answered_locked(struct connection *connection, int *fd, unsigned error);

/* Whether an answer is to come. Takes the connection's lock. */
bool alive_is_asked(struct connection *connection);

/* How often the daemon was away, and whether it is. Takes the connection's lock. */
unsigned alive_pauses(struct connection *connection, bool *ret_is_away);

/* A deadline for the daemon's answer has passed. Returns a later one if the daemon is away, or was not long ago: an
 * answer has its time again from its return on. ends: it is not after the end of the thread's call (call_time.h). 0:
 * there is none. Takes the connection's lock. */
uint64_t alive_later_ns(struct connection *connection, bool ends);

#endif
