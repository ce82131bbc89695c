/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DECISIONS_H
#define DAEMON_DECISIONS_H
/*
 * The core's decisions: fetched and carried out once per turn of the loop, before it polls. Callbacks of the
 * loop only turn events into calls of the core. The same hook arms the timer for the core's next deadline,
 * says once that clients are served, and ends a private daemon after its last client.
 */
#include <stdint.h>
#include <uv.h>

struct daemon;

/* The hooks. Zeroed until decisions_start(). */
struct decisions {
    uv_timer_t tick_timer;
    uint64_t tick_ns; /* when tick_timer fires; NS_FOREVER: not armed */
    uv_prepare_t before_poll;
    uv_check_t after_poll;
    uv_idle_t in_a_hurry; /* active while a turn waits: the loop polls without sleeping */
};

/* Starts the hooks before and after the loop polls. After it has polled, the scheduler's next turn is served.
 */
void decisions_start(struct daemon *daemon);

/* Carries out the decisions so far. The hook does so; after the loop has ended, its last turn may have left
 * some. */
void decisions_carry_out(struct daemon *daemon);

#endif
