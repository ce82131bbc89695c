/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/arena_grow.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "client/cache/arena.h"
#include "client/cache/cache.h"
#include "client/cache/grow.h"
#include "client/session/error.h"
#include "client/session/lease.h"
#include "client/session/session.h"

/* A segment for a slot, and the lease on it. */
struct filling {
    struct lending lending;
    struct segment *segment;
    struct fence fence; /* behind which nothing uses it any more */
};

/* The work for one request. */
struct row {
    struct cache *cache;
    struct stream_heap *stream_heap;
    struct arena *arena;
    struct arena_place place;
    uint32_t *idle;           /* slots outside the place that were taken, place.n_vacant at most */
    struct filling *fillings; /* for the vacant slots of the place, in any order */
    uint32_t *slots;          /* these slots, in order */
    uint32_t n_fillings;
};

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
static void gather_idle(struct row *row) {
    struct arena *arena = row->arena;
    struct fence fence;

    pthread_mutex_lock(&row->stream_heap->lock);
    uint32_t count = arena_take_idle_locked(arena, &row->place, row->idle, row->place.n_vacant);
    pthread_mutex_unlock(&row->stream_heap->lock);
    bool can_move = count > 0 && cache_leave_fence(row->cache, row->stream_heap, &fence) == 0;
    pthread_mutex_lock(&row->stream_heap->lock);
    for (uint32_t i = 0; i < count; i++) {
        const struct arena_slot *slot = &arena->slots[row->idle[i]];
        if (!can_move) {
            arena_return_locked(arena, row->idle[i]);
            continue;
        }
        row->fillings[row->n_fillings++] =
            (struct filling){.lending = slot->lending, .segment = slot->segment, .fence = fence};
        arena_empty_locked(arena, row->idle[i], fence);
    }
    pthread_mutex_unlock(&row->stream_heap->lock);
}

/* Asks the daemon for what is missing of count fillings. */
static int ask(struct row *row, const struct proto_acquire_segments *how, uint32_t count) {
    struct proto_acquire_segments acquire = *how;

    acquire.segment_bytes = row->arena->slot_bytes;
    acquire.count = count - row->n_fillings;
    if (acquire.count == 0)
        return 0;
    _cleanup_(freep) struct segment_grant *grants = malloc(acquire.count * sizeof *grants);
    if (grants == NULL)
        return error_no_memory();
    int r = lease_acquire_segments(row->cache->session, &acquire, grants);
    for (uint32_t i = 0; r == 0 && i < acquire.count; i++)
        row->fillings[row->n_fillings++] =
            (struct filling){.lending = {.lease = grants[i].lease, .generation = grants[i].generation},
                             .segment = grants[i].segment};
    return r;
}

/* The vacant slots of the place, in order. */
static void list_slots(struct row *row) {
    uint32_t count = 0;

    pthread_mutex_lock(&row->stream_heap->lock);
    for (uint32_t i = row->place.first; i <= row->place.last; i++)
        if (row->arena->slots[i].state == ARENA_SLOT_BUSY && row->arena->slots[i].is_new)
            row->slots[count++] = i;
    pthread_mutex_unlock(&row->stream_heap->lock);
}

/* Puts fillings whose segment is still mapped at one of the slots there. Returns whether the slot has its
 * own. */
static bool use_old_mapping(struct row *row, uint32_t position) {
    struct segments *segments = &row->cache->session->segments;
    const struct segment *mapped =
        segments_mapped(segments, &row->arena->slots[row->slots[position]].mapping);

    for (uint32_t i = position; mapped != NULL && i < row->n_fillings; i++) {
        if (row->fillings[i].segment != mapped)
            continue;
        struct filling filling = row->fillings[i];
        row->fillings[i] = row->fillings[position];
        row->fillings[position] = filling;
        return true;
    }
    return false;
}

/* Maps the fillings from..to into their slots, which lie side by side. */
static int map_run(struct row *row, uint32_t from, uint32_t to) {
    struct segments *segments = &row->cache->session->segments;
    _cleanup_(freep) struct segment **list = malloc((to - from) * sizeof *list);
    _cleanup_(freep) struct segment_mapping **mappings = malloc((to - from) * sizeof *mappings);
    int r = list == NULL || mappings == NULL ? error_no_memory() : 0;

    for (uint32_t i = from; r == 0 && i < to; i++) {
        list[i - from] = row->fillings[i].segment;
        mappings[i - from] = &row->arena->slots[row->slots[i]].mapping;
        r = segments_unmap(segments, mappings[i - from]);
    }
    return r < 0 ? r
                 : segments_map(segments, list, mappings, to - from,
                                row->arena->extent.memory + row->slots[from] * row->arena->slot_bytes,
                                GPU_ACCESS_READ_WRITE);
}

static void fill(struct row *row, uint32_t from, uint32_t to) {
    pthread_mutex_lock(&row->stream_heap->lock);
    for (uint32_t i = from; i < to; i++)
        arena_fill_locked(row->arena, row->slots[i], &row->fillings[i].lending, row->fillings[i].segment);
    pthread_mutex_unlock(&row->stream_heap->lock);
}

/* Gives fillings back to the daemon that could not be mapped. The error that led here is the one to report.
 */
static void give_back(struct row *row, uint32_t from) {
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    for (uint32_t i = from; i < row->n_fillings; i++) {
        const struct filling *filling = &row->fillings[i];
        (void)lease_release_patiently(row->cache->session, filling->lending.lease,
                                      filling->lending.generation, 0, 0, filling->fence);
    }
    error_restore(text);
}

/* Maps the fillings. Those that cannot be mapped go back to the daemon. */
static int map_all(struct row *row) {
    uint32_t from = 0, to;
    int r = 0;

    for (; from < row->n_fillings && r == 0; from = to) {
        to = from;
        if (use_old_mapping(row, from)) {
            fill(row, from, ++to);
            continue;
        }
        do
            to++;
        while (to < row->n_fillings && row->slots[to] == row->slots[to - 1] + 1 && !use_old_mapping(row, to));
        r = map_run(row, from, to);
        if (r < 0)
            break;
        fill(row, from, to);
    }
    if (r < 0)
        give_back(row, from);
    return r;
}

/* Fills a place that was claimed. */
static int fill_place(struct row *row, const struct proto_acquire_segments *acquire) {
    if (row->place.n_vacant == 0)
        return 0;
    list_slots(row);
    gather_idle(row);
    int asked = ask(row, acquire, row->place.n_vacant);
    int mapped = map_all(row);
    return asked < 0 ? asked : mapped;
}

/* Makes the lists for so many slots. */
static int make_lists(struct row *row, uint32_t count) {
    row->idle = malloc(count * sizeof *row->idle);
    row->slots = malloc(count * sizeof *row->slots);
    row->fillings = malloc(count * sizeof *row->fillings);
    return row->idle == NULL || row->slots == NULL || row->fillings == NULL ? error_no_memory() : 0;
}

static void free_lists(struct row *row) {
    free(row->idle);
    free(row->slots);
    free(row->fillings);
}

static int fail_claim(int error) {
    return error == -ENOSPC
               ? error_set(GPUPOOL_E_EXHAUSTED, "no addresses are left for memory of the pool on this stream")
               : error_no_memory();
}

/* Ends the work on a place that was claimed. r: how it went. */
static int settle(struct row *row, int r, struct piece **ret_piece) {
    pthread_mutex_lock(&row->stream_heap->lock);
    if (arena_settle_locked(row->arena, &row->place, r == 0 ? ret_piece : NULL) < 0)
        r = error_no_memory();
    pthread_mutex_unlock(&row->stream_heap->lock);
    return r;
}

static int grow(struct row *row, uint64_t size_bytes, const struct proto_acquire_segments *acquire,
                struct piece **ret_piece) {
    pthread_mutex_lock(&row->stream_heap->lock);
    int r = arena_claim_locked(row->arena, size_bytes, &row->place);
    pthread_mutex_unlock(&row->stream_heap->lock);
    if (r < 0)
        return fail_claim(r);
    r = make_lists(row, row->place.n_vacant > 0 ? row->place.n_vacant : 1);
    if (r == 0)
        r = fill_place(row, acquire);
    return settle(row, r, ret_piece);
}

int arena_grow(struct cache *cache, struct stream_heap *stream_heap, uint64_t size_bytes,
               const struct proto_acquire_segments *acquire, struct piece **ret_piece) {
    struct row row = {.cache = cache, .stream_heap = stream_heap, .arena = stream_heap->arena};

    *ret_piece = NULL;
    int r = grow(&row, size_bytes, acquire, ret_piece);
    free_lists(&row);
    return r;
}

static int wait_and_grow(struct row *row, uint64_t size_bytes, const struct proto_acquire_segments *acquire,
                         struct piece **ret_piece) {
    uint64_t slot_bytes = row->arena->slot_bytes;
    uint32_t count = (uint32_t)((size_bytes + slot_bytes - 1) / slot_bytes);

    int r = make_lists(row, count);
    if (r == 0)
        r = ask(row, acquire, count);
    if (r < 0)
        return r;
    pthread_mutex_lock(&row->stream_heap->lock);
    r = arena_claim_vacant_locked(row->arena, count, &row->place);
    pthread_mutex_unlock(&row->stream_heap->lock);
    if (r < 0) {
        r = fail_claim(r);
        give_back(row, 0);
        return r;
    }
    list_slots(row);
    r = map_all(row);
    row->place.size_bytes = size_bytes; /* the rest of the last slot is free */
    return settle(row, r, ret_piece);
}

int arena_wait_and_grow(struct cache *cache, struct stream_heap *stream_heap, uint64_t size_bytes,
                        const struct proto_acquire_segments *acquire, struct piece **ret_piece) {
    struct row row = {.cache = cache, .stream_heap = stream_heap, .arena = stream_heap->arena};

    *ret_piece = NULL;
    int r = wait_and_grow(&row, size_bytes, acquire, ret_piece);
    free_lists(&row);
    return r;
}
