/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/decisions.h"

#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "daemon/core/core.h"
#include "daemon/daemon.h"
#include "daemon/data/client.h"
#include "daemon/data/clients.h"
#include "daemon/data/serve.h"
#include "daemon/loop/log.h"
#include "daemon/supply/supplier.h"

static void decisions_on_tick(uv_timer_t *timer) {
    struct daemon *daemon = timer->data;
    daemon->decisions.tick_ns = NS_FOREVER;
    core_tick(daemon->core, clock_now_ns());
}

static void decisions_arm_tick(struct daemon *daemon) {
    uint64_t next_ns = core_next_tick_ns(daemon->core);
    if (next_ns == daemon->decisions.tick_ns || daemon->stopping)
        return;
    daemon->decisions.tick_ns = next_ns;
    if (next_ns == NS_FOREVER) {
        uv_timer_stop(&daemon->decisions.tick_timer);
        return;
    }
    uint64_t now_ns = clock_now_ns();
    uv_update_time(&daemon->loop);
    /* rounded up: a timer that fires early would fire again and again until the deadline */
    uv_timer_start(&daemon->decisions.tick_timer, decisions_on_tick,
                   next_ns <= now_ns ? 0 : (next_ns - now_ns) / NS_PER_MS + 1, 0);
}

/* Says once that clients are served: when every pool knows whether its device works and has its reserve. */
static void announce_ready(struct daemon *daemon) {
    if (daemon->ready_announced ||
        daemon->stopping) /* a worker that is stopped may still make a pool ready */
        return;
    for (unsigned i = 0; i < daemon->core->n_pools; i++) {
        const struct pool *pool = daemon->core->pools[i];
        bool filling = pool->reserved_bytes < pool->reserve_bytes && pool->last_error[0] == '\0' &&
                       pool->reserve_bytes <= pool->limit_bytes;
        if (pool->state == POOL_STARTING || (pool->state == POOL_READY && filling))
            return;
    }
    daemon->ready_announced = true;
    succession_note_ready(&daemon->succession);
    notifier_tell(&daemon->notifier, "READY=1");
    log_info("serving %s on %s", COUNT_TEXT(daemon->core->n_pools, "pool"), daemon->data_listener.path);
    if (daemon->options.ready_fd >= 0) {
        if (write(daemon->options.ready_fd, "1", 1) != 1)
            log_warning("nobody reads --ready-fd");
        daemon->options.ready_fd = close_fd(daemon->options.ready_fd);
    }
}

/* Ends the present step, and does what was to wait for that. */
static void end_step(struct daemon *daemon) {
    desk_note_alive(&daemon->succession.desk, uv_now(&daemon->loop) * NS_PER_MS);
    desk_end_step(&daemon->succession.desk);
    boards_settle(&daemon->clients.boards);
    channels_settle(&daemon->clients.channels);
    store_remove_leaving(&daemon->store);
}

/* Sends the core's answers, starts its growths and retirements, and asks sessions for idle memory. Sending an
 * answer can end a session, and a growth can fail at once: both lead to further decisions. */
void decisions_carry_out(struct daemon *daemon) {
    struct answer answer;
    struct name_answer named;
    struct pool *pool;
    struct segment *segment;
    struct session *session;
    struct long_wait wait;
    uint64_t size_bytes;
    bool more = true;

    while (more) {
        more = false;
        while (core_next_answer(daemon->core, &answer)) {
            session_log_answer(&daemon->clients.log, &answer);
            serve_answer(answer.session->owner, &answer);
            core_answer_sent(&answer, clock_now_ns());
            more = true;
        }
        while (core_next_name_answer(daemon->core, &named)) {
            serve_name_answer(named.session->owner, &named);
            more = true;
        }
        while (!daemon->stopping && core_next_growth(daemon->core, &pool, &size_bytes)) {
            supplier_grow(pool->owner, size_bytes);
            more = true;
        }
        end_step(daemon); /* a successor is not to lend what is freed */
        while (!daemon->stopping && core_next_retirement(daemon->core, &segment)) {
            supplier_retire(segment->pool->owner, segment);
            more = true;
        }
        while (core_next_reclaim(daemon->core, &session))
            client_ask_reclaim(session->owner);
        while (core_next_long_wait(daemon->core, clock_now_ns(), &wait))
            session_log_long_wait(&daemon->clients.log, &wait);
    }
    end_step(daemon);
}

/* A private daemon ends after its last client, and after the last parcel: another client may be on its way to
 * take that, until the parcel's time is up. Memory in quarantine does not keep it: the driver keeps memory
 * that a dying process has mapped. */
static void stop_if_unused(struct daemon *daemon) {
    if (!daemon->options.private || !daemon->clients.served || daemon->stopping ||
        daemon->core->parcels.count > daemon->core->parcels.n_named)
        return;
    if (!clients_are_there(&daemon->clients))
        daemon_stop(daemon);
}

static void on_hurry(uv_idle_t *idle) {
    (void)idle;
}

/* The one place where the core's decisions are fetched: every callback of the loop may have changed the core.
 * While a client waits for its turn, the loop polls without sleeping. */
static void before_poll(uv_prepare_t *prepare) {
    struct daemon *daemon = prepare->data;

    decisions_carry_out(daemon);
    decisions_arm_tick(daemon);
    announce_ready(daemon);
    stop_if_unused(daemon);
    if (scheduler_is_idle(&daemon->scheduler))
        uv_idle_stop(&daemon->decisions.in_a_hurry);
    else
        uv_idle_start(&daemon->decisions.in_a_hurry, on_hurry);
}

static void after_poll(uv_check_t *check) {
    struct daemon *daemon = check->data;
    struct turn *turn = scheduler_next(&daemon->scheduler);
    if (turn != NULL)
        turn->serve(turn);
}

void decisions_start(struct daemon *daemon) {
    struct decisions *decisions = &daemon->decisions;

    uv_timer_init(&daemon->loop, &decisions->tick_timer);
    decisions->tick_ns = NS_FOREVER;
    uv_prepare_init(&daemon->loop, &decisions->before_poll);
    uv_check_init(&daemon->loop, &decisions->after_poll);
    uv_idle_init(&daemon->loop, &decisions->in_a_hurry);
    decisions->tick_timer.data = decisions->before_poll.data = decisions->after_poll.data = daemon;
    uv_prepare_start(&decisions->before_poll, before_poll);
    uv_check_start(&decisions->after_poll, after_poll);
}
