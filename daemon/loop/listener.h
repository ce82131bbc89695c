/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_LOOP_LISTENER_H
#define DAEMON_LOOP_LISTENER_H
/*
 * A listening Unix socket: made by the daemon itself, under a lock that keeps a second daemon off the same
 * path, or taken over from systemd. Where there is a store (daemon/loop/store.h), a socket that a daemon made
 * is stored: after the daemon's death clients that connect wait in its backlog, and the next daemon takes it
 * over. One is accepted a turn (daemon/loop/scheduler.h), so that many new
 * clients do not hold up those that are there. Accepted sockets are handed on non-blocking and close-on-exec;
 * when descriptors run out, the connection at the head of the line is closed instead of turning the loop
 * forever.
 */
#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

#include "daemon/loop/scheduler.h"
#include "daemon/loop/store.h"

struct closer;

struct listener {
    char path[108];
    int fd;
    int lock_fd;           /* flock on PATH.lock; -1: none */
    int spare_fd;          /* to be given up for an accept when there is no other descriptor */
    struct closer *closer; /* of connections that cannot be accepted */
    bool owned;            /* made here, or by a daemon before: the path is removed at the end */
    struct store *store;   /* borrowed; NULL: none */
    bool taken_over;       /* from a daemon before, by the store */
    char stored[STORE_NAME_SIZE]; /* the name that it is stored under; "": it is not */
    uv_poll_t poll;
    struct turn turn;
    bool polling;    /* the handle is there */
    bool resting;    /* no connection can be accepted or closed for now */
    bool complained; /* that no descriptors are left, since listener_retry() */
    void (*on_accept)(struct listener *listener, int fd); /* takes fd */
    bool (*make_room)(struct listener *listener);         /* see listener_start(); may be NULL */
    void (*on_closed)(struct listener *listener); /* after listener_close(), from the loop; may be NULL */
    void *user;
};

/* type: SOCK_SEQPACKET or SOCK_STREAM. mode: of the socket's file. group: its group, by name or number,
 * without which it is not opened; "": the service's group, where there is one and the file's mode lets its
 * members in. Takes the socket of a daemon before out of the store, if the path still leads to it and its file
 * is as it would be made now. Else makes one and stores it. Removes a stale socket. store: borrowed; NULL:
 * none. Returns 0, -EADDRINUSE when another daemon serves the path, or a negative errno; logs why. */
int listener_open(struct listener *listener, struct store *store, const char *path, int type, mode_t mode,
                  const char *group);

/* As listener_open(), without a lock and without a look whether another daemon serves the path: in a
 * directory that is this daemon's own. */
int listener_make(struct listener *listener, struct store *store, const char *path, int type, mode_t mode,
                  const char *group);

/* Takes a listening socket from systemd; checks its kind. Returns 0 or -EINVAL. */
int listener_adopt(struct listener *listener, int fd, int type);

/* Begins to accept. make_room (NULL: none) is asked before one is let in: where another has to leave for
 * that, it sends that one away and returns true, and the turn is over: the new connection is accepted with
 * the next. Returns 0 or a negative errno. */
int listener_start(struct listener *listener, uv_loop_t *loop, struct scheduler *scheduler,
                   struct closer *closer, void (*on_accept)(struct listener *, int),
                   bool (*make_room)(struct listener *), void *user);

/* Logs that no descriptors are left, once between two calls of listener_retry(). */
void listener_complain(struct listener *listener);

/* Accepts again after a time in which that was not possible. To be called every few seconds. */
void listener_retry(struct listener *listener);

/* Before listener_close(): a socket that is stored stays where it is, for the next daemon. */
void listener_leave(struct listener *listener);

/* Stops, closes and removes what it made. The loop needs the listener a little longer: until on_closed() is
 * called, which may free it. Accepts a listener with fd -1. */
void listener_close(struct listener *listener);

#endif
