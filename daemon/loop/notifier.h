/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_LOOP_NOTIFIER_H
#define DAEMON_LOOP_NOTIFIER_H
/*
 * A notifier: tells the service manager ($NOTIFY_SOCKET) how the daemon is, in order, on a thread of its own.
 * sd_notify() waits while the manager's queue is full, for which it is enough that the manager is stopped or
 * that a local user floods its socket; the loop does not. Without a service manager there is no thread.
 */
#include <uv.h>

#include "daemon/loop/worker.h"

#define NOTIFIER_PATH_SIZE 108u

struct notifier {
    struct worker worker;             /* started where there is a service manager */
    char manager[NOTIFIER_PATH_SIZE]; /* the path of its socket; "": as $NOTIFY_SOCKET says */
};

/* Returns 0 or a negative errno. */
int notifier_start(struct notifier *notifier, uv_loop_t *loop);

/* A socket that is connected to the manager's at this path, and does not wait; or a negative errno. */
int notifier_connect(const char *path);

/* The manager is another one from now on, whose socket has this path. Messages that wait go to the one before. */
void notifier_move(struct notifier *notifier, const char *path);

/* text: as sd_notify() takes it; copied. While NOTIFIER_WAITING_MAX wait, and without memory, it is not said.
 */
#define NOTIFIER_WAITING_MAX 8u
void notifier_tell(struct notifier *notifier, const char *text);

/* As notifier_tell(), with a copy of a descriptor (-1: none), and however many wait: for what must not be lost.
 * The notifier runs. Returns 0 or a negative errno. */
int notifier_pass(struct notifier *notifier, const char *text, int fd);

/* Sends a message at once, before those that wait; where the manager's queue does not take it, as notifier_pass().
 * Never waits. Returns 0: it is there, and outlives the daemon; 1: it waits; or a negative errno. */
int notifier_tell_at_once(struct notifier *notifier, const char *text, int fd);

#endif
