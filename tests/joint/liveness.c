/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Liveness at rest: the programs begin no calls, all packets are read, all streams have run, and nothing goes
 * on without the clock. Then no request may wait for memory that is there.
 */
#include <inttypes.h>
#include <stdio.h>

#include "tests/joint/world.h"

#define CLOCK_NS   (400 * NS_PER_MS) /* some rounds of the daemon's questions */
#define FENCES_NS     (12 * NS_PER_MS) /* looks of the daemon at fences, and of the client at a full socket */
#define NAPS_NS       (4 * NS_PER_MS)  /* a few pauses between looks at a lock */
#define JUMPS_MAX  200u
#define LEASES_ENOUGH 1024u /* of a session */

static bool can_be_served(const struct joint_client *client, const struct wanting *wanting, bool alone) {
    uint64_t grain = wanting->pool - 1 == JOINT_VMM && wanting->size_bytes > 3 * MIB ? JOINT_SLOT : 512;
    uint64_t need = (wanting->size_bytes + grain - 1) / grain * grain;
    return need <= model_room(client, wanting, alone);
}

/* A request of a pool that waits and could be served; without the others' memory any, else the oldest. */
static const struct wanting *find_waiting(unsigned pool, bool alone) {
    const struct wanting *oldest = NULL;
    const struct joint_client *of = NULL;

    for (unsigned c = 0; c < world.n_clients; c++) {
        const struct joint_client *client = &world.clients[c];
        for (unsigned t = 0; t < JOINT_THREADS; t++) {
            const struct wanting *wanting = &client->wanting[t];
            if (!wanting->is_on || client->is_killed || wanting->pool != pool + 1 || client->is_broken)
                continue;
            world.tally->waiters_at_rest++;
            /* Memory that a captured stream kept comes with the clock, as slots that were deferred. */
            if (alone && client->captured < wanting->order && !validate_has_deferred_slots(c, pool) &&
                can_be_served(client, wanting, true))
                return wanting;
            if (oldest == NULL || wanting->order < oldest->order) {
                oldest = wanting;
                of = client;
            }
        }
    }
    return !alone && oldest != NULL && can_be_served(of, oldest, false) ? oldest : NULL;
}

static bool is_served(void *argument) {
    const struct wanting *wanting = argument;
    return !wanting->is_on;
}

static _Noreturn void tell(unsigned pool, const struct wanting *waiting, bool alone) {
    static char text[400];
    int n = snprintf(text, sizeof text,
                     "a request waits, and there is room for it%s: %" PRIu64
                     " KiB of pool %u; driver fails %u, growth %u, the daemon sleeps %d;",
                     alone ? " in its own process" : "", waiting->size_bytes / KIB, pool, world.gpu_fails,
                     world.growth_fails, world.daemon_sleeps);

    model_tell(pool);
    for (unsigned c = 0; c < world.n_clients; c++) {
        const struct joint_client *client = &world.clients[c];
        if (client->is_open && !client->is_killed)
            validate_tell(c, pool);
        bool is_own = waiting >= client->wanting && waiting < client->wanting + JOINT_THREADS;
        n += snprintf(
            text + n, sizeof text - (size_t)n,
            " client %u%s (flags %u%s%s%s): leased %" PRIu64 ", live %" PRIu64 ", room %" PRIu64 ";", c,
            is_own ? "*" : "", client->flags, client->is_open ? "" : " closed",
            client->is_killed ? " killed" : "", client->has_callback ? " callback" : "",
            model_leased(c, pool) / KIB, model_live(c, pool) / KIB, model_room(client, waiting, false) / KIB);
    }
    world_fail(text, "", __FILE__, __LINE__);
}

/* alone: what the client and the daemon have has to do. */
static void check_pool(unsigned pool, bool alone, uint64_t most_ns) {
    const struct wanting *waiting = find_waiting(pool, alone);

    if (waiting == NULL)
        return;
    world.tally->clock_needed++;
    baton_rest_until(world.now_ns + most_ns, JUMPS_MAX, is_served, (void *)waiting);
    if (waiting->is_on && find_waiting(pool, alone) == waiting)
        tell(pool, waiting, alone);
}

void liveness_check(void) {
    if (world.gpu_fails > 0 || world.has_raced || world.leases_limit < LEASES_ENOUGH)
        return; /* a request may wait for that limit; a fence may not be left */
    world.is_frozen = world.is_calm = true;
    baton_rest();
    for (unsigned c = 0; c < world.n_clients; c++)
        if (world.clients[c].is_open && !world.clients[c].is_killed)
            program_end_captures(&world.clients[c]);
    baton_rest();
    /* A thread that found a lock taken looks again. */
    baton_rest_until(world.now_ns + NAPS_NS, JUMPS_MAX, baton_nobody_naps, NULL);
    world.tally->rests++;
    if (daemon_has_lost()) { /* a part of the pools is in quarantine */
        world.is_frozen = world.is_calm = false;
        return;
    }
    validate_all();
    for (unsigned c = 0; c < world.n_clients; c++)
        for (unsigned p = 0; p < world.n_pools; p++)
            if (world.clients[c].is_open && !world.clients[c].is_killed && !world.clients[c].is_broken)
                validate_turns(c, p);
    for (unsigned p = 0; p < world.n_pools; p++) {
        /* While the daemon slept, a release may not have been answered: the memory goes with its next question. */
        check_pool(p, true, world.daemon_sleeps || world.joins_by_clock ? CLOCK_NS : FENCES_NS);
        check_pool(p, false, CLOCK_NS);
    }
    world.is_frozen = world.is_calm = false;
}
