/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_LOOP_LISTENER_H
#define DAEMON_LOOP_LISTENER_H
/*
 * A listening Unix socket: made by the daemon itself, under a lock that keeps a second daemon off the same
 * path, or taken over from systemd. One is accepted a turn (daemon/loop/scheduler.h), so that many new
 * clients do not hold up those that are there. Accepted sockets are handed on non-blocking and close-on-exec;
 * when descriptors run out, the connection at the head of the line is closed instead of turning the loop
 * forever.
 */
#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

#include "daemon/loop/scheduler.h"

struct closer;

struct listener {
    char path[108];
    int fd;
    int lock_fd;           /* flock on PATH.lock; -1: none */
    int spare_fd;          /* to be given up for an accept when there is no other descriptor */
    struct closer *closer; /* of connections that cannot be accepted */
    bool owned;            /* made here: the path is removed at the end */
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
 * members in. Removes a stale socket. Returns 0, -EADDRINUSE when another daemon serves the path, or a
 * negative errno; logs why. */
int listener_open(struct listener *listener, const char *path, int type, mode_t mode, const char *group);

/* As listener_open(), without a lock and without a look whether another daemon serves the path: in a
 * directory that is this daemon's own. */
int listener_make(struct listener *listener, const char *path, int type, mode_t mode, const char *group);

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

/* Stops, closes and removes what it made. The loop needs the listener a little longer: until on_closed() is
 * called, which may free it. Accepts a listener with fd -1. */
void listener_close(struct listener *listener);

#endif
