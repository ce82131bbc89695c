/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/miss_arena.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/cache/cache.h"
#include "client/cache/miss.h"
#include "client/core/arena.h"
#include "client/session/error.h"
#include "client/session/lease.h"
#include "client/session/mapped_range.h"
#include "client/session/session.h"

/* --- the place --- */

static int fail_claim(int error) {
    return error == -ENOSPC
               ? error_set(GPUPOOL_E_EXHAUSTED, "no addresses are left for memory of the pool on this stream")
               : error_no_memory();
}

/* Leaves the fence behind which idle segments move, which are mapped there until their new slots are filled. */
static void move_idle(struct miss *miss, uint32_t count) {
    struct stream_heap *stream_heap = miss->stream_heap;
    struct fence fence;
    bool can_move = cache_leave_fence(miss->cache, stream_heap, &fence) == 0;

    pthread_mutex_lock(&stream_heap->lock);
    if (can_move)
        arena_plan_fenced_locked(&miss->plan, fence);
    else
        arena_plan_not_fenced_locked(&miss->plan);
    pthread_mutex_unlock(&stream_heap->lock);
    if (!can_move)
        return;
    move_debts_add(&miss->cache->move_debts, stream_heap->pool, count);
    cache_count_moved(miss->cache, stream_heap, count);
}

/* may_grow: the arena may have more memory in place of moves that it has no credit for (move_debts.h); else it
 * moves as many as it needs. */
static enum acquire_event claim(struct miss *miss, bool may_grow) {
    struct stream_heap *stream_heap = miss->stream_heap;
    struct cache *cache = miss->cache;
    bool is_prepared = (atomic_load(&cache->prepared_pools) & shortage_bit(miss->pool)) != 0;
    uint64_t most_moves = UINT64_MAX;
    uint32_t moves;

    arena_plan_free(&miss->plan); /* of a wait that has ended */
    miss->began_ns = clock_now_ns();
    if (may_grow)
        most_moves = move_debts_allowance(&cache->move_debts, miss->pool,
                                          counters_takes(&cache->counters, miss->pool), miss->began_ns);
    pthread_mutex_lock(&stream_heap->lock);
    int r = arena_plan_claim_locked(&miss->plan, stream_heap->arena, heap_round_up(miss->size_bytes),
                                    most_moves, is_prepared, &moves);
    pthread_mutex_unlock(&stream_heap->lock);
    if (r < 0) {
        miss->error = fail_claim(r);
        return r == -ENOSPC ? ACQUIRE_LACKS : ACQUIRE_FAILS;
    }
    if (moves > 0)
        move_idle(miss, moves);
    return ACQUIRE_HAS;
}

enum acquire_event miss_place(struct miss *miss) {
    return claim(miss, true);
}

enum acquire_event miss_move(struct miss *miss) {
    return claim(miss, false);
}

/* --- the daemon --- */

/* Prepares the question for the segments that the plan names. False: there is no memory, which is the miss's
 * error. */
static bool prepare_question(struct miss *miss, uint32_t flags, uint64_t timeout_ns) {
    const struct arena_plan *plan = &miss->plan;
    const struct proto_acquire_segments acquire = {.pool = miss->pool,
                                                   .flags = flags,
                                                   .segment_bytes =
                                                       plan->asked_slots * plan->arena->slot_bytes,
                                                   .count = plan->n_asked,
                                                   .timeout_ns = timeout_ns};

    free(miss->grants);
    miss->grants = malloc(plan->n_asked * sizeof *miss->grants);
    if (miss->grants == NULL) {
        miss->error = error_no_memory();
        return false;
    }
    miss->question = question_of_segments(miss->session, &acquire, miss->grants);
    return true;
}

enum acquire_event miss_lack(struct miss *miss) {
    if (!arena_plan_next(&miss->plan))
        return ACQUIRE_HAS;
    return prepare_question(miss, PROTO_ACQUIRE_NO_RECLAIM | PROTO_ACQUIRE_PROBES,
                            clock_left_ns(miss->deadline_ns))
               ? ACQUIRE_LACKS
               : ACQUIRE_FAILS;
}

enum acquire_event miss_plan_wait(struct miss *miss, uint32_t flags) {
    struct arena_plan *plan = &miss->plan;

    arena_plan_free(plan);
    miss->began_ns = 0;
    if (arena_plan_wait(plan, miss->stream_heap->arena, miss->acquire.size_bytes) < 0)
        return miss_fail(miss, error_no_memory());
    (void)arena_plan_next(plan); /* all of them: they are of one slot */
    return prepare_question(miss, flags, miss->wait_ns) ? ACQUIRE_HAS : ACQUIRE_FAILS;
}

void miss_add_segments(struct miss *miss) {
    for (uint32_t i = 0; i < miss->plan.n_asked; i++)
        arena_plan_add_granted(
            &miss->plan,
            &(struct lending){.lease = miss->grants[i].lease, .generation = miss->grants[i].generation},
            (struct segment_ref){miss->grants[i].segment, miss->grants[i].segment->id});
}

enum acquire_event miss_narrow(struct miss *miss) {
    return arena_plan_refused(&miss->plan) ? ACQUIRE_HAS : ACQUIRE_LACKS;
}

/* Gives the segments of fillings back to the daemon, from one on: those that are here, and with only_new those
 * that are new. The error that led here is the one to report. */
static void give_back(struct miss *miss, uint32_t from, bool only_new) {
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    for (uint32_t i = from; i < miss->plan.n_fillings; i++) {
        const struct arena_filling *filling = &miss->plan.fillings[i];
        if (filling->is_here && (!only_new || filling->from == ARENA_FROM_DAEMON))
            (void)lease_release_patiently(miss->session, filling->lending.lease, filling->lending.generation,
                                          0, 0, filling->fence);
    }
    error_restore(text);
}

/* --- mappings --- */

/* Takes the mappings away that are in the way of others. 0 or DRIVER. */
static int unmap_stale(struct miss *miss) {
    struct stream_heap *stream_heap = miss->stream_heap;
    struct arena_plan *plan = &miss->plan;
    uint32_t gone = 0;
    int r = 0;

    pthread_mutex_lock(&stream_heap->lock);
    arena_plan_look_locked(plan);
    pthread_mutex_unlock(&stream_heap->lock);
    while (gone < plan->n_stale && r == 0) {
        r = mapped_range_unmap(plan->arena->range, &miss->session->segments, plan->stale[gone].slot,
                               plan->stale[gone].segment);
        gone += r == 0;
    }
    pthread_mutex_lock(&stream_heap->lock);
    arena_plan_unmapped_locked(plan, gone);
    if (r == 0 && arena_plan_shape_locked(plan) < 0)
        r = error_no_memory();
    pthread_mutex_unlock(&stream_heap->lock);
    return r;
}

/* Maps the fillings from..to into their slots, which lie side by side, unless they are kept there. */
static int map_run(struct miss *miss, uint32_t from, uint32_t to) {
    const struct arena_plan *plan = &miss->plan;
    _cleanup_(freep) struct mapped_part *parts = malloc((to - from) * sizeof *parts);
    int r = 0;

    if (parts == NULL)
        return error_no_memory();
    for (uint32_t i = from; i < to; i++)
        parts[i - from] = (struct mapped_part){.segment = plan->fillings[i].segment.segment,
                                               .number = plan->fillings[i].slot};
    if (!plan->fillings[from].is_kept)
        r = mapped_range_map(plan->arena->range, &miss->session->segments, parts, to - from,
                             arena_slot_start(plan->arena, parts->number), GPU_ACCESS_READ_WRITE);
    if (r < 0)
        return r;
    pthread_mutex_lock(&miss->stream_heap->lock);
    arena_plan_mapped_locked(&miss->plan, from, to);
    pthread_mutex_unlock(&miss->stream_heap->lock);
    return 0;
}

/* Maps the fillings. Those that cannot be mapped go back to the daemon. */
static int map_all(struct miss *miss) {
    uint32_t from = 0, to;
    int r = miss->plan.n_fillings > 0 ? unmap_stale(miss) : 0;

    for (; from < miss->plan.n_fillings && r == 0; from = r == 0 ? to : from) {
        to = arena_plan_run(&miss->plan, from);
        r = map_run(miss, from, to);
    }
    if (r < 0)
        give_back(miss, from, false);
    return r;
}

/* Ends the claim. r: how it went. Returns that, or NO_MEMORY. */
static int end_claim(struct miss *miss, int r) {
    pthread_mutex_lock(&miss->stream_heap->lock);
    if (arena_plan_settle_locked(&miss->plan, r == 0, &miss->piece) < 0)
        r = error_no_memory();
    pthread_mutex_unlock(&miss->stream_heap->lock);
    arena_plan_free(&miss->plan);
    if (miss->began_ns != 0) /* the time that it waited pays for moves, as other time does */
        move_debts_except(&miss->cache->move_debts, miss->pool, clock_now_ns() - miss->began_ns);
    return r;
}

enum acquire_event miss_map(struct miss *miss) {
    int r = end_claim(miss, map_all(miss));

    return r < 0 ? miss_fail(miss, r) : ACQUIRE_HAS;
}

/* New segments go back, and those that were moved stay in the place. */
enum acquire_event miss_unplace(struct miss *miss) {
    bool is_grown = miss->plan.place.is_grown;
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    give_back(miss, 0, true);
    arena_plan_drop_new(&miss->plan);
    (void)map_all(miss);
    (void)end_claim(miss, miss->error);
    error_restore(text);
    if (!miss_is_refused(miss->error))
        return ACQUIRE_FAILS;
    if (!is_grown)
        return ACQUIRE_LACKS;
    /* It is served by moves, and the debt for these is forgiven. */
    move_debts_forgive(&miss->cache->move_debts, miss->pool);
    return ACQUIRE_HAS;
}

enum acquire_event miss_settle(struct miss *miss) {
    pthread_mutex_lock(&miss->stream_heap->lock);
    int r = arena_plan_place_locked(&miss->plan);
    pthread_mutex_unlock(&miss->stream_heap->lock);
    if (r == 0)
        return ACQUIRE_HAS;
    r = fail_claim(r);
    give_back(miss, 0, false);
    return miss_fail(miss, r);
}
