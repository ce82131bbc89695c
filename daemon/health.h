/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_HEALTH_H
#define DAEMON_HEALTH_H
/*
 * Health: looks at the daemon's workers again and again, and answers the service manager's watchdog while all
 * of them get on. At each look every idle device is asked whether it still works, so that a device which is
 * lost or hangs while no client needs it is found too. Owned by the daemon; the loop's alone.
 */
#include <stdbool.h>
#include <uv.h>

struct daemon;

struct health {
    struct daemon *daemon;
    uv_timer_t timer;
    bool watchdog;       /* the service manager waits for an answer */
    bool watcher_stalled; /* the driver's list of processes does not come */
};

/* Begins. The timer is the loop's: it closes with the others. */
void health_start(struct health *health, struct daemon *daemon);

#endif
