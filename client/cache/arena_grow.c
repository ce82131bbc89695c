/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/arena_grow.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/cache/cache.h"
#include "client/cache/grow.h"
#include "client/session/error.h"
#include "client/session/lease.h"
#include "client/session/mapped_range.h"
#include "client/session/session.h"

static bool make_arena(struct cache *cache, struct stream_heap *stream_heap, uint64_t limit_bytes) {
    const struct gpu *gpu;
    uint64_t slot_bytes = proto_slot_bytes(limit_bytes);
    uint64_t bytes = (limit_bytes + slot_bytes - 1) / slot_bytes * slot_bytes * ARENA_ADDRESS_FACTOR;
    int error;

    if (devices_need_gpu(&cache->session->devices, &gpu) < 0)
        return false;
    struct mapped_range *range =
        mapped_range_new(gpu, (unsigned)stream_heap->device, bytes, (uint32_t)(bytes / slot_bytes), &error);
    if (range == NULL)
        return false;
    pthread_mutex_lock(&stream_heap->lock);
    bool is_first = stream_heap->arena == NULL;
    bool made = is_first && arena_add_locked(stream_heap, STREAM_HEAP_LARGE, range->memory, bytes, slot_bytes,
                                             proto_large_bytes(limit_bytes)) == 0;
    if (made)
        stream_heap->arena->range = range;
    pthread_mutex_unlock(&stream_heap->lock);
    if (!made)
        mapped_range_free(range);
    return made || !is_first;
}

bool arena_serves(struct cache *cache, struct stream_heap *stream_heap, uint64_t size_bytes) {
    uint64_t limit_bytes = atomic_load_explicit(&stream_heap->limit_bytes, memory_order_relaxed);
    char text[ERROR_TEXT_SIZE];

    if (!cache->has_arenas || stream_heap->kind != GPUPOOL_POOL_DEVICE || !stream_heap->is_movable ||
        stream_heap_half_of(size_bytes) != STREAM_HEAP_LARGE || size_bytes > limit_bytes)
        return false;
    pthread_mutex_lock(&stream_heap->lock);
    bool has_arena = stream_heap->arena != NULL, may_have = !stream_heap->has_no_arena;
    pthread_mutex_unlock(&stream_heap->lock);
    if (!has_arena && may_have) {
        error_save(text);
        has_arena = make_arena(cache, stream_heap, limit_bytes);
        error_restore(text);
        pthread_mutex_lock(&stream_heap->lock);
        stream_heap->has_no_arena = !has_arena;
        pthread_mutex_unlock(&stream_heap->lock);
    }
    return has_arena;
}

void arena_leave_addresses(struct stream_heap *stream_heap) {
    if (stream_heap->arena != NULL)
        mapped_range_free(take_ptr(&stream_heap->arena->range));
}

void arena_forget_addresses(struct stream_heap *stream_heap) {
    if (stream_heap->arena != NULL)
        mapped_range_forget(take_ptr(&stream_heap->arena->range));
}

void arena_segment_closed(void *owner, const struct segment *segment) {
    struct cache *cache = owner;

    pthread_mutex_lock(&cache->stream_heaps_lock);
    list_for_each_entry(struct stream_heap, stream_heap, &cache->stream_heaps, link) {
        if (stream_heap->pool != segment->pool)
            continue;
        pthread_mutex_lock(&stream_heap->lock);
        if (stream_heap->arena != NULL)
            arena_unmapped_locked(stream_heap->arena, segment->id);
        pthread_mutex_unlock(&stream_heap->lock);
    }
    pthread_mutex_unlock(&cache->stream_heaps_lock);
}

/* --- the place --- */

static int fail_claim(int error) {
    return error == -ENOSPC
               ? error_set(GPUPOOL_E_EXHAUSTED, "no addresses are left for memory of the pool on this stream")
               : error_no_memory();
}

/* Leaves the fence behind which idle segments move, which are mapped there until their new slots are filled. */
static void move_idle(struct arena_work *work, uint32_t count) {
    struct stream_heap *stream_heap = work->stream_heap;
    struct fence fence;
    bool can_move = cache_leave_fence(work->cache, stream_heap, &fence) == 0;

    pthread_mutex_lock(&stream_heap->lock);
    if (can_move)
        arena_plan_fenced_locked(&work->plan, fence);
    else
        arena_plan_not_fenced_locked(&work->plan);
    pthread_mutex_unlock(&stream_heap->lock);
    if (!can_move)
        return;
    move_debts_add(&work->cache->move_debts, stream_heap->pool, count);
    cache_count_moved(work->cache, stream_heap, count);
}

/* Claims the place. may_grow: as in arena_grow_begin(). */
static int claim(struct arena_work *work, uint64_t size_bytes, bool may_grow) {
    struct stream_heap *stream_heap = work->stream_heap;
    struct cache *cache = work->cache;
    bool is_prepared = (atomic_load(&cache->prepared_pools) & shortage_bit(stream_heap->pool)) != 0;
    uint64_t most_moves = UINT64_MAX;
    uint32_t moves;

    if (may_grow)
        most_moves =
            move_debts_allowance(&cache->move_debts, stream_heap->pool,
                                 counters_takes(&cache->counters, stream_heap->pool), work->began_ns);
    pthread_mutex_lock(&stream_heap->lock);
    int r =
        arena_plan_claim_locked(&work->plan, stream_heap->arena, size_bytes, most_moves, is_prepared, &moves);
    pthread_mutex_unlock(&stream_heap->lock);
    if (r < 0)
        return fail_claim(r);
    if (moves > 0)
        move_idle(work, moves);
    return 0;
}

/* --- the daemon --- */

/* Asks the daemon for segments that are missing. 0: none is; ASKING_WAITS; NO_MEMORY. */
static int ask(struct arena_work *work) {
    struct arena_plan *plan = &work->plan;

    if (!arena_plan_next(plan))
        return 0;
    work->acquire.segment_bytes = plan->asked_slots * plan->arena->slot_bytes;
    work->acquire.count = plan->n_asked;
    work->acquire.timeout_ns = clock_left_ns(work->deadline_ns);
    free(work->grants);
    work->grants = malloc(plan->n_asked * sizeof *work->grants);
    return work->grants == NULL
               ? error_no_memory()
               : asking_begin_segments(work->asking, work->cache->session, &work->acquire, work->grants);
}

/* The segments that were asked for have come. */
static void add_granted(struct arena_work *work) {
    for (uint32_t i = 0; i < work->plan.n_asked; i++)
        arena_plan_add_granted(
            &work->plan,
            &(struct lending){.lease = work->grants[i].lease, .generation = work->grants[i].generation},
            (struct segment_ref){work->grants[i].segment, work->grants[i].segment->id});
}

/* Gives the segments of fillings back to the daemon, from one on: those that are here, and with only_new those
 * that are new. The error that led here is the one to report. */
static void give_back(struct arena_work *work, uint32_t from, bool only_new) {
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    for (uint32_t i = from; i < work->plan.n_fillings; i++) {
        const struct arena_filling *filling = &work->plan.fillings[i];
        if (filling->is_here && (!only_new || filling->from == ARENA_FROM_DAEMON))
            (void)lease_release_patiently(work->cache->session, filling->lending.lease,
                                          filling->lending.generation, 0, 0, filling->fence);
    }
    error_restore(text);
}

/* --- mappings --- */

/* Takes the mappings away that are in the way of others. 0 or DRIVER. */
static int unmap_stale(struct arena_work *work) {
    struct stream_heap *stream_heap = work->stream_heap;
    struct arena_plan *plan = &work->plan;
    uint32_t gone = 0;
    int r = 0;

    pthread_mutex_lock(&stream_heap->lock);
    arena_plan_look_locked(plan);
    pthread_mutex_unlock(&stream_heap->lock);
    while (gone < plan->n_stale && r == 0) {
        r = mapped_range_unmap(plan->arena->range, &work->cache->session->segments, plan->stale[gone].slot,
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
static int map_run(struct arena_work *work, uint32_t from, uint32_t to) {
    const struct arena_plan *plan = &work->plan;
    _cleanup_(freep) struct mapped_part *parts = malloc((to - from) * sizeof *parts);
    int r = 0;

    if (parts == NULL)
        return error_no_memory();
    for (uint32_t i = from; i < to; i++)
        parts[i - from] = (struct mapped_part){.segment = plan->fillings[i].segment.segment,
                                               .number = plan->fillings[i].slot};
    if (!plan->fillings[from].is_kept)
        r = mapped_range_map(plan->arena->range, &work->cache->session->segments, parts, to - from,
                             arena_slot_start(plan->arena, parts->number), GPU_ACCESS_READ_WRITE);
    if (r < 0)
        return r;
    pthread_mutex_lock(&work->stream_heap->lock);
    arena_plan_mapped_locked(&work->plan, from, to);
    pthread_mutex_unlock(&work->stream_heap->lock);
    return 0;
}

/* Maps the fillings. Those that cannot be mapped go back to the daemon. */
static int map_all(struct arena_work *work) {
    uint32_t from = 0, to;
    int r = work->plan.n_fillings > 0 ? unmap_stale(work) : 0;

    for (; from < work->plan.n_fillings && r == 0; from = r == 0 ? to : from) {
        to = arena_plan_run(&work->plan, from);
        r = map_run(work, from, to);
    }
    if (r < 0)
        give_back(work, from, false);
    return r;
}

void arena_work_free(struct arena_work *work) {
    arena_plan_free(&work->plan);
    free(work->grants);
}

/* Ends the work on a place that was claimed. r: how it went. */
static int settle(struct arena_work *work, int r, struct piece **ret_piece) {
    pthread_mutex_lock(&work->stream_heap->lock);
    if (arena_plan_settle_locked(&work->plan, r == 0, ret_piece) < 0)
        r = error_no_memory();
    pthread_mutex_unlock(&work->stream_heap->lock);
    return r;
}

static void begin_work(struct arena_work *work, struct cache *cache, struct stream_heap *stream_heap,
                       const struct proto_acquire_segments *acquire, struct asking *asking) {
    *work = (struct arena_work){.cache = cache,
                                .stream_heap = stream_heap,
                                .asking = asking,
                                .acquire = *acquire,
                                .began_ns = clock_now_ns()};
    work->deadline_ns = clock_deadline_ns(work->began_ns, acquire->timeout_ns);
}

/* Everything was asked for. r: how that ended. Where the request fails, new segments go back, and what was moved
 * stays. */
static int end_work(struct arena_work *work, int r, struct piece **ret_piece) {
    if (r < 0) {
        give_back(work, 0, true);
        arena_plan_drop_new(&work->plan);
    }
    int mapped = map_all(work);
    r = settle(work, r < 0 ? r : mapped, ret_piece);
    move_debts_except(&work->cache->move_debts, work->stream_heap->pool, clock_now_ns() - work->began_ns);
    arena_work_free(work);
    return r;
}

int arena_grow_begin(struct arena_work *work, struct cache *cache, struct stream_heap *stream_heap,
                     uint64_t size_bytes, bool may_grow, const struct proto_acquire_segments *acquire,
                     struct asking *asking, struct piece **ret_piece) {
    begin_work(work, cache, stream_heap, acquire, asking);
    int r = claim(work, size_bytes, may_grow);
    if (r < 0)
        return r;
    r = ask(work);
    return r == ASKING_WAITS ? r : end_work(work, r, ret_piece);
}

int arena_grow_end(struct arena_work *work, int r, struct piece **ret_piece) {
    if (r == 0)
        add_granted(work);
    else if ((r == GPUPOOL_E_EXHAUSTED || r == GPUPOOL_E_LIMIT) && arena_plan_refused(&work->plan))
        r = 0;
    if (r == 0)
        r = ask(work);
    return r == ASKING_WAITS ? r : end_work(work, r, ret_piece);
}

bool arena_grow_was_refused(struct arena_work *work) {
    if (!work->plan.place.is_grown)
        return false;
    move_debts_forgive(&work->cache->move_debts, work->stream_heap->pool);
    return true;
}

int arena_wait_begin(struct arena_work *work, struct cache *cache, struct stream_heap *stream_heap,
                     uint64_t size_bytes, const struct proto_acquire_segments *acquire,
                     struct asking *asking) {
    begin_work(work, cache, stream_heap, acquire, asking);
    if (arena_plan_wait(&work->plan, stream_heap->arena, size_bytes) < 0)
        return error_no_memory();
    int r = ask(work);
    if (r < 0)
        arena_work_free(work);
    return r;
}

/* Maps the segments that have come into a place that is vacant. */
static int place_granted(struct arena_work *work, struct piece **ret_piece) {
    add_granted(work);
    pthread_mutex_lock(&work->stream_heap->lock);
    int r = arena_plan_place_locked(&work->plan);
    pthread_mutex_unlock(&work->stream_heap->lock);
    if (r < 0) {
        r = fail_claim(r);
        give_back(work, 0, false);
        return r;
    }
    return settle(work, map_all(work), ret_piece);
}

int arena_wait_end(struct arena_work *work, int r, struct piece **ret_piece) {
    if (r == 0)
        r = place_granted(work, ret_piece);
    arena_work_free(work);
    return r;
}
