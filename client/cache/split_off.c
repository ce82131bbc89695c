/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/split_off.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "client/cache/arena.h"
#include "client/cache/cache.h"
#include "client/session/error.h"
#include "client/session/lease.h"
#include "client/session/session.h"

/* A part of a piece, in one lease. */
struct part {
    struct lending *lending;           /* of which it is a part */
    uint64_t offset_bytes, size_bytes; /* in the lease */
    bool is_all;                       /* that the lease has */
    bool is_rest;                      /* of what the lease has: it ends when the part is split off */
    struct proto_lease lease;          /* its own */
};

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* How many slots of an arena a piece is in. */
static unsigned count_parts(const struct piece *piece) {
    const struct arena *arena = arena_of(piece->extent);
    uint64_t offset = (uint64_t)(piece->memory - piece->extent->memory);

    return arena == NULL
               ? 1
               : arena_slot_at(arena, offset + piece->capacity_bytes - 1) - arena_slot_at(arena, offset) + 1;
}

static void list_parts_locked(const struct piece *piece, struct part *parts, unsigned count) {
    struct arena *arena = arena_of(piece->extent);
    uint64_t offset = (uint64_t)(piece->memory - piece->extent->memory), end = offset + piece->capacity_bytes;

    if (arena == NULL) {
        parts[0] = (struct part){.lending = &piece->extent->lending,
                                 .offset_bytes = offset,
                                 .size_bytes = piece->capacity_bytes,
                                 .is_all = piece->capacity_bytes == piece->extent->size_bytes};
        return;
    }
    for (unsigned i = 0; i < count; i++) {
        uint32_t number = arena_slot_at(arena, offset);
        uint64_t start = number * arena->slot_bytes, to = smaller(start + arena->slot_bytes, end);
        parts[i] =
            (struct part){.lending = &arena->slots[number].lending,
                          .offset_bytes = offset - start,
                          .size_bytes = to - offset,
                          .is_all = to - offset == arena->slot_bytes,
                          .is_rest = to - offset + arena->slots[number].absent_bytes == arena->slot_bytes};
        offset = to;
    }
}

/* Gives the leases of the parts back to those that they were split from. */
static void undo(struct cache *cache, struct piece *piece, const struct part *parts, unsigned count) {
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    for (unsigned i = 0; i < count; i++) {
        struct lending *lending = parts[i].lending;
        if (!parts[i].is_rest) {
            (void)lease_merge_one_way(cache->session, lending->lease, lending->generation, &parts[i].lease);
            continue;
        }
        pthread_mutex_lock(&piece->stream_heap->lock); /* that lease is no more */
        lending->lease = parts[i].lease.lease;
        lending->generation = parts[i].lease.generation;
        piece->lease = parts[0].lending->lease;
        piece->lease_generation = parts[0].lending->generation;
        pthread_mutex_unlock(&piece->stream_heap->lock);
    }
    error_restore(text);
}

/* Makes a lease of each part, and of all one. */
static int split(struct cache *cache, struct piece *piece, struct part *parts, unsigned count,
                 struct follower *follower) {
    int r = 0;

    for (unsigned i = 0; i < count; i++) {
        const struct lending *lending = parts[i].lending;
        if (parts[i].is_all) { /* that lease itself */
            parts[i].lease = (struct proto_lease){.lease = lending->lease, .generation = lending->generation};
            continue;
        }
        r = lease_split(cache->session, lending->lease, lending->generation, parts[i].offset_bytes,
                        parts[i].size_bytes, count == 1 ? follower : NULL, &parts[i].lease);
        if (r < 0) {
            undo(cache, piece, parts, i);
            return r;
        }
    }
    for (unsigned i = 1; i < count && r == 0; i++)
        r = lease_append(cache->session, &parts[0].lease, &parts[i].lease, i % LEASE_ONE_WAY_MAX == 0);
    return r;
}

static int split_off(struct cache *cache, struct piece *piece, struct follower *follower) {
    struct stream_heap *stream_heap = piece->stream_heap;
    unsigned count = count_parts(piece);
    _cleanup_(freep) struct part *parts = malloc(count * sizeof *parts);

    if (parts == NULL)
        return error_no_memory();
    if (count > PROTO_ROW_PARTS_MAX)
        return error_set(GPUPOOL_E_LIMIT, "the buffer lies in %u segments, and a lease covers %u at most",
                         count, PROTO_ROW_PARTS_MAX);
    pthread_mutex_lock(&stream_heap->lock);
    list_parts_locked(piece, parts, count);
    stream_heap_begin_split_locked(piece);
    pthread_mutex_unlock(&stream_heap->lock);
    int r = split(cache, piece, parts, count, follower);
    pthread_mutex_lock(&stream_heap->lock);
    if (r == 0)
        stream_heap_split_off_locked(piece, parts[0].lease.lease, parts[0].lease.generation);
    else if (r != GPUPOOL_E_TIMED_OUT)
        stream_heap_cancel_split_locked(piece);
    pthread_mutex_unlock(&stream_heap->lock);
    if (r < 0)
        return r;
    cache_count_given(cache, stream_heap, piece->capacity_bytes);
    return 0;
}

int cache_split_off(struct cache *cache, struct piece *piece, struct follower *follower) {
    pthread_mutex_lock(&cache->split_lock);
    int r = piece->split_off ? 0 : split_off(cache, piece, follower);
    pthread_mutex_unlock(&cache->split_lock);
    return r;
}
