/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/arena_grow.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "client/cache/cache.h"
#include "client/cache/grow.h"
#include "client/session/error.h"
#include "client/session/lease.h"
#include "client/session/session.h"

static bool make_arena(struct cache *cache, struct stream_heap *stream_heap, const struct pool *pool) {
    const struct gpu *gpu;
    uint64_t slot_bytes = proto_slot_bytes(pool->limit_bytes);
    uint64_t bytes = (pool->limit_bytes + slot_bytes - 1) / slot_bytes * slot_bytes * ARENA_ADDRESS_FACTOR;
    void *memory;

    if (devices_need_gpu(&cache->session->devices, &gpu) < 0 ||
        gpu->address_reserve((unsigned)stream_heap->device, bytes, &memory) != 0)
        return false;
    pthread_mutex_lock(&stream_heap->lock);
    bool is_first = stream_heap->arena == NULL;
    bool made = is_first && arena_add_locked(stream_heap, STREAM_HEAP_LARGE, memory, bytes, slot_bytes) == 0;
    pthread_mutex_unlock(&stream_heap->lock);
    if (!made)
        gpu->address_free((unsigned)stream_heap->device, memory, bytes);
    return made || !is_first;
}

bool arena_serves(struct cache *cache, struct stream_heap *stream_heap, uint64_t size_bytes) {
    char text[ERROR_TEXT_SIZE];
    struct pool pool;

    if (!cache->has_arenas || stream_heap->kind != GPUPOOL_POOL_DEVICE ||
        stream_heap_half_of(size_bytes) != STREAM_HEAP_LARGE)
        return false;
    error_save(text);
    bool serves = pools_find(cache->session, stream_heap->pool, &pool) == 0 && pool.is_movable &&
                  size_bytes <= pool.limit_bytes;
    pthread_mutex_lock(&stream_heap->lock);
    bool has_arena = stream_heap->arena != NULL, may_have = !stream_heap->has_no_arena;
    pthread_mutex_unlock(&stream_heap->lock);
    if (serves && !has_arena && may_have) {
        has_arena = make_arena(cache, stream_heap, &pool);
        pthread_mutex_lock(&stream_heap->lock);
        stream_heap->has_no_arena = !has_arena;
        pthread_mutex_unlock(&stream_heap->lock);
    }
    error_restore(text);
    return serves && has_arena;
}

void arena_leave_addresses(struct cache *cache, struct stream_heap *stream_heap) {
    const struct arena *arena = stream_heap->arena;
    const struct gpu *gpu = cache->session->devices.gpu;

    if (arena != NULL && gpu != NULL)
        (void)gpu->address_free((unsigned)stream_heap->device, arena->extent.memory, arena->reserved_bytes);
}

/* Takes the segments of slots that are idle elsewhere in the arena. They are mapped there until their slots
 * are filled. */
static void gather_idle(struct arena_work *work) {
    struct arena *arena = work->arena;
    struct fence fence;

    pthread_mutex_lock(&work->stream_heap->lock);
    uint32_t count = arena_take_idle_locked(arena, &work->place, work->idle,
                                            work->place.is_grown ? 0 : work->place.n_vacant);
    pthread_mutex_unlock(&work->stream_heap->lock);
    bool can_move = count > 0 && cache_leave_fence(work->cache, work->stream_heap, &fence) == 0;
    pthread_mutex_lock(&work->stream_heap->lock);
    for (uint32_t i = 0; i < count; i++) {
        const struct arena_slot *slot = &arena->slots[work->idle[i]];
        if (!can_move) {
            arena_return_locked(arena, work->idle[i]);
            continue;
        }
        work->fillings[work->n_fillings++] =
            (struct arena_filling){.lending = slot->lending, .segment = slot->segment, .fence = fence};
        arena_empty_locked(arena, work->idle[i], fence);
    }
    pthread_mutex_unlock(&work->stream_heap->lock);
    if (!can_move)
        return;
    move_debts_add(&work->cache->move_debts, work->stream_heap->pool, count);
    cache_count_moved(work->cache, work->stream_heap, count);
}

/* Asks the daemon for what is missing of count fillings. 0: nothing is; ASKING_WAITS; NO_MEMORY. */
static int ask(struct arena_work *work, struct asking *asking, const struct proto_acquire_segments *how,
               uint32_t count) {
    struct proto_acquire_segments acquire = *how;

    acquire.segment_bytes = work->arena->slot_bytes;
    acquire.count = work->n_asked = count - work->n_fillings;
    if (acquire.count == 0)
        return 0;
    work->grants = malloc(acquire.count * sizeof *work->grants);
    return work->grants == NULL ? error_no_memory()
                                : asking_begin_segments(asking, work->cache->session, &acquire, work->grants);
}

/* The segments that were asked for have come. */
static void add_granted(struct arena_work *work) {
    for (uint32_t i = 0; i < work->n_asked; i++)
        work->fillings[work->n_fillings++] = (struct arena_filling){
            .lending = {.lease = work->grants[i].lease, .generation = work->grants[i].generation},
            .segment = work->grants[i].segment};
}

/* The vacant slots of the place, in order. */
static void list_slots(struct arena_work *work) {
    uint32_t count = 0;

    pthread_mutex_lock(&work->stream_heap->lock);
    for (uint32_t i = work->place.first; i <= work->place.last; i++)
        if (work->arena->slots[i].state == ARENA_SLOT_BUSY && work->arena->slots[i].is_new)
            work->slots[count++] = i;
    pthread_mutex_unlock(&work->stream_heap->lock);
}

/* Puts fillings whose segment is still mapped at one of the slots there. Returns whether the slot has its
 * own. */
static bool use_old_mapping(struct arena_work *work, uint32_t position) {
    struct segments *segments = &work->cache->session->segments;
    const struct segment *mapped =
        segments_mapped(segments, &work->arena->slots[work->slots[position]].mapping);

    for (uint32_t i = position; mapped != NULL && i < work->n_fillings; i++) {
        if (work->fillings[i].segment != mapped)
            continue;
        struct arena_filling filling = work->fillings[i];
        work->fillings[i] = work->fillings[position];
        work->fillings[position] = filling;
        return true;
    }
    return false;
}

/* Maps the fillings from..to into their slots, which lie side by side. */
static int map_run(struct arena_work *work, uint32_t from, uint32_t to) {
    struct segments *segments = &work->cache->session->segments;
    _cleanup_(freep) struct segment **list = malloc((to - from) * sizeof *list);
    _cleanup_(freep) struct segment_mapping **mappings = malloc((to - from) * sizeof *mappings);
    int r = list == NULL || mappings == NULL ? error_no_memory() : 0;

    for (uint32_t i = from; r == 0 && i < to; i++) {
        list[i - from] = work->fillings[i].segment;
        mappings[i - from] = &work->arena->slots[work->slots[i]].mapping;
        r = segments_unmap(segments, mappings[i - from]);
    }
    return r < 0 ? r
                 : segments_map(segments, list, mappings, to - from,
                                work->arena->extent.memory + work->slots[from] * work->arena->slot_bytes,
                                GPU_ACCESS_READ_WRITE);
}

static void fill(struct arena_work *work, uint32_t from, uint32_t to) {
    pthread_mutex_lock(&work->stream_heap->lock);
    for (uint32_t i = from; i < to; i++)
        arena_fill_locked(work->arena, work->slots[i], &work->fillings[i].lending, work->fillings[i].segment);
    pthread_mutex_unlock(&work->stream_heap->lock);
}

/* Gives fillings back to the daemon that could not be mapped. The error that led here is the one to report.
 */
static void give_back(struct arena_work *work, uint32_t from) {
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    for (uint32_t i = from; i < work->n_fillings; i++) {
        const struct arena_filling *filling = &work->fillings[i];
        (void)lease_release_patiently(work->cache->session, filling->lending.lease,
                                      filling->lending.generation, 0, 0, filling->fence);
    }
    error_restore(text);
}

/* Maps the fillings. Those that cannot be mapped go back to the daemon. */
static int map_all(struct arena_work *work) {
    uint32_t from = 0, to;
    int r = 0;

    for (; from < work->n_fillings && r == 0; from = to) {
        to = from;
        if (use_old_mapping(work, from)) {
            fill(work, from, ++to);
            continue;
        }
        do
            to++;
        while (to < work->n_fillings && work->slots[to] == work->slots[to - 1] + 1 &&
               !use_old_mapping(work, to));
        r = map_run(work, from, to);
        if (r < 0)
            break;
        fill(work, from, to);
    }
    if (r < 0)
        give_back(work, from);
    return r;
}

/* Makes the lists for so many slots. */
static int make_lists(struct arena_work *work, uint32_t count) {
    work->idle = malloc(count * sizeof *work->idle);
    work->slots = malloc(count * sizeof *work->slots);
    work->fillings = malloc(count * sizeof *work->fillings);
    return work->idle == NULL || work->slots == NULL || work->fillings == NULL ? error_no_memory() : 0;
}

void arena_work_free(struct arena_work *work) {
    free(work->idle);
    free(work->slots);
    free(work->fillings);
    free(work->grants);
}

static int fail_claim(int error) {
    return error == -ENOSPC
               ? error_set(GPUPOOL_E_EXHAUSTED, "no addresses are left for memory of the pool on this stream")
               : error_no_memory();
}

/* Ends the work on a place that was claimed. r: how it went. */
static int settle(struct arena_work *work, int r, struct piece **ret_piece) {
    pthread_mutex_lock(&work->stream_heap->lock);
    if (arena_settle_locked(work->arena, &work->place, r == 0 ? ret_piece : NULL) < 0)
        r = error_no_memory();
    pthread_mutex_unlock(&work->stream_heap->lock);
    return r;
}

static void begin_work(struct arena_work *work, struct cache *cache, struct stream_heap *stream_heap,
                       uint64_t size_bytes) {
    *work = (struct arena_work){
        .cache = cache, .stream_heap = stream_heap, .arena = stream_heap->arena, .size_bytes = size_bytes};
}

int arena_grow_begin(struct arena_work *work, struct cache *cache, struct stream_heap *stream_heap,
                     uint64_t size_bytes, bool may_grow, const struct proto_acquire_segments *acquire,
                     struct asking *asking, struct piece **ret_piece) {
    begin_work(work, cache, stream_heap, size_bytes);
    pthread_mutex_lock(&stream_heap->lock);
    int r = arena_claim_locked(work->arena, size_bytes, may_grow, &work->place);
    pthread_mutex_unlock(&stream_heap->lock);
    if (r < 0)
        return fail_claim(r);
    r = make_lists(work, work->place.n_vacant > 0 ? work->place.n_vacant : 1);
    if (r == 0 && work->place.n_vacant > 0) {
        list_slots(work);
        gather_idle(work);
        r = ask(work, asking, acquire, work->place.n_vacant);
    }
    return r == ASKING_WAITS ? r : arena_grow_end(work, r, ret_piece);
}

int arena_grow_end(struct arena_work *work, int r, struct piece **ret_piece) {
    if (r == 0)
        add_granted(work);
    int mapped = map_all(work);
    r = settle(work, r < 0 ? r : mapped, ret_piece);
    arena_work_free(work);
    return r;
}

bool arena_grow_was_refused(struct arena_work *work) {
    if (!work->place.is_grown)
        return false;
    move_debts_forgive(&work->cache->move_debts, work->stream_heap->pool);
    return true;
}

int arena_wait_begin(struct arena_work *work, struct cache *cache, struct stream_heap *stream_heap,
                     uint64_t size_bytes, const struct proto_acquire_segments *acquire,
                     struct asking *asking) {
    begin_work(work, cache, stream_heap, size_bytes);
    uint64_t slot_bytes = work->arena->slot_bytes;
    uint32_t count = (uint32_t)((size_bytes + slot_bytes - 1) / slot_bytes);

    int r = make_lists(work, count);
    if (r == 0)
        r = ask(work, asking, acquire, count);
    if (r < 0)
        arena_work_free(work);
    return r;
}

/* Maps the segments that have come into a place that is vacant. */
static int place_granted(struct arena_work *work, struct piece **ret_piece) {
    add_granted(work);
    pthread_mutex_lock(&work->stream_heap->lock);
    int r = arena_claim_vacant_locked(work->arena, work->n_fillings, &work->place);
    pthread_mutex_unlock(&work->stream_heap->lock);
    if (r < 0) {
        r = fail_claim(r);
        give_back(work, 0);
        return r;
    }
    list_slots(work);
    r = map_all(work);
    work->place.size_bytes = work->size_bytes; /* the rest of the last slot is free */
    return settle(work, r, ret_piece);
}

int arena_wait_end(struct arena_work *work, int r, struct piece **ret_piece) {
    if (r == 0)
        r = place_granted(work, ret_piece);
    arena_work_free(work);
    return r;
}
