/* SPDX-License-Identifier: Apache-2.0 */
#include "client/core/target.h"

#include <stdlib.h>

#include "base/array.h"
#include "client/core/arena.h"
#include "client/core/pool.h"
#include "client/core/stream_heap.h"

/* The request that has waited longest, and is not served. NULL: none waits. */
static struct acquire *oldest(struct core_pool *pool) {
    list_for_each_entry(struct acquire, waiter, &pool->waiting, link) {
        if (waiter->piece == NULL)
            return waiter;
    }
    return NULL;
}

void target_note_pass_locked(struct core_pool *pool) {
    struct acquire *waiter = oldest(pool);

    if (waiter != NULL)
        waiter->passes++;
}

bool target_find_locked(const struct core_pool *pool, const char *place, uint64_t *ret_bytes) {
    list_for_each_entry(const struct acquire, waiter, &pool->waiting, link) {
        if (!target_has(&waiter->target, place))
            continue;
        *ret_bytes = waiter->size_bytes;
        return true;
    }
    return false;
}

/* --- the choice --- */

/* The bytes that the process has of a segment, and those that are free or deferred of that. */
struct tally {
    struct segment_view segment;
    uint64_t held_bytes, free_bytes;
};

struct tallies {
    struct tally *list;
    size_t count, capacity;
};

/* The tally of a segment, which is added if it is new. NULL without memory. */
static struct tally *tally_of(struct tallies *tallies, const struct segment_view *segment) {
    for (size_t i = 0; i < tallies->count; i++)
        if (tallies->list[i].segment.segment == segment->segment)
            return &tallies->list[i];
    struct tally *list = array_room(tallies->list, tallies->count, &tallies->capacity, sizeof *list);
    if (list == NULL)
        return NULL;
    tallies->list = list;
    tallies->list[tallies->count] = (struct tally){.segment = *segment};
    return &tallies->list[tallies->count++];
}

static void add_tallies(struct stream_heap *stream_heap, struct tallies *tallies) {
    pthread_mutex_lock(&stream_heap->lock);
    list_for_each_entry(const struct extent, extent, &stream_heap->extents, link) {
        bool is_here = !extent->is_arena && extent->absent_bytes < extent->size_bytes;
        struct tally *tally = is_here ? tally_of(tallies, &extent->segment) : NULL;
        if (tally == NULL)
            continue;
        tally->held_bytes += extent->size_bytes - extent->absent_bytes;
        tally->free_bytes += extent->size_bytes - extent->span->taken_bytes + extent->deferred_bytes;
    }
    pthread_mutex_unlock(&stream_heap->lock);
}

/* Finds the segment in which most is free, of those that the process has all of. Of another one the daemon
 * could lend a part to other requests meanwhile. None: no such segment is long enough, or the process has
 * nothing beside it. */
static struct target find_target(struct core_pool *pool, uint64_t size_bytes) {
    struct tallies tallies = {0};
    const struct tally *best = NULL;
    struct target target = {0};

    list_for_each_entry(struct stream_heap, stream_heap, &pool->stream_heaps, pool_link) {
        add_tallies(stream_heap, &tallies);
    }
    for (size_t i = 0; i < tallies.count; i++) {
        const struct tally *tally = &tallies.list[i];
        if (tally->segment.size_bytes >= size_bytes && tally->held_bytes == tally->segment.size_bytes &&
            (best == NULL || tally->free_bytes > best->free_bytes))
            best = tally;
    }
    if (best != NULL && tallies.count > 1) {
        target.start = best->segment.memory;
        target.end = target.start + best->segment.size_bytes;
    }
    free(tallies.list);
    return target;
}

/* Closes or opens the extents of a target. */
static void set_closed(struct core_pool *pool, const struct target *target, bool is_closed) {
    list_for_each_entry(struct stream_heap, stream_heap, &pool->stream_heaps, pool_link) {
        pthread_mutex_lock(&stream_heap->lock);
        list_for_each_entry(struct extent, extent, &stream_heap->extents, link) {
            if (extent->is_arena || !target_has(target, extent->memory))
                continue;
            if (is_closed)
                heap_close_span(extent->span);
            else
                heap_open_span(extent->span);
        }
        pthread_mutex_unlock(&stream_heap->lock);
    }
}

/* --- slots --- */

struct candidate {
    struct stream_heap *stream_heap;
    uint32_t slot;
    uint64_t used_bytes;
};

struct candidates {
    struct candidate *list;
    size_t count, capacity;
};

static int compare_candidates(const void *one, const void *other) {
    const struct candidate *a = one, *b = other;

    return (a->used_bytes > b->used_bytes) - (a->used_bytes < b->used_bytes);
}

static void add_candidate(struct candidates *candidates, struct candidate candidate) {
    struct candidate *list =
        array_room(candidates->list, candidates->count, &candidates->capacity, sizeof *list);

    if (list == NULL)
        return;
    candidates->list = list;
    candidates->list[candidates->count++] = candidate;
}

/* Returns the size of the slots, where there are candidates. */
static uint64_t list_candidates(struct core_pool *pool, struct candidates *candidates) {
    uint64_t slot_bytes = 0;

    list_for_each_entry(struct stream_heap, stream_heap, &pool->stream_heaps, pool_link) {
        pthread_mutex_lock(&stream_heap->lock);
        const struct arena *arena = stream_heap->arena;
        for (uint32_t i = 0; arena != NULL && i < arena->n_slots; i = arena_slot_after(arena, i))
            if (arena_may_be_target_locked(arena, i))
                add_candidate(candidates,
                              (struct candidate){stream_heap, i, arena_used_bytes_locked(arena, i)});
        slot_bytes = arena != NULL ? arena->slot_bytes : slot_bytes;
        pthread_mutex_unlock(&stream_heap->lock);
    }
    return slot_bytes;
}

/* Takes the marks from the slots of the pool's arenas. */
static void unmark_slots(struct core_pool *pool) {
    list_for_each_entry(struct stream_heap, stream_heap, &pool->stream_heaps, pool_link) {
        pthread_mutex_lock(&stream_heap->lock);
        struct arena *arena = stream_heap->arena;
        for (uint32_t i = 0; arena != NULL && i < arena->n_slots; i++)
            arena->slots[i].is_target = false;
        pthread_mutex_unlock(&stream_heap->lock);
    }
}

static void mark_slots(const struct candidates *candidates, uint32_t n_slots) {
    for (uint32_t i = 0; i < n_slots; i++) {
        struct stream_heap *stream_heap = candidates->list[i].stream_heap;
        pthread_mutex_lock(&stream_heap->lock);
        stream_heap->arena->slots[candidates->list[i].slot].is_target =
            arena_may_be_target_locked(stream_heap->arena, candidates->list[i].slot);
        pthread_mutex_unlock(&stream_heap->lock);
    }
}

/* --- both --- */

static struct target find_slots(struct core_pool *pool, const struct acquire *waiter) {
    struct candidates candidates = {0};
    struct target target = {0};
    uint64_t slot_bytes = list_candidates(pool, &candidates);

    if (candidates.count > 0)
        qsort(candidates.list, candidates.count, sizeof *candidates.list, compare_candidates);
    if (candidates.count > 0 && waiter->size_bytes <= (candidates.count - 1) * slot_bytes)
        target.n_slots = (uint32_t)((waiter->size_bytes + slot_bytes - 1) / slot_bytes);
    mark_slots(&candidates, target.n_slots);
    free(candidates.list);
    return target;
}

void target_choose_locked(struct core_pool *pool) {
    struct acquire *waiter = oldest(pool);

    if (waiter == NULL || waiter->passes < TARGET_PASSES || target_exists(&waiter->target))
        return;
    waiter->target =
        waiter->is_of_segments ? find_slots(pool, waiter) : find_target(pool, waiter->size_bytes);
    if (!target_exists(&waiter->target))
        waiter->passes = 0; /* a search costs much: not at each pass */
    else if (waiter->target.start != NULL)
        set_closed(pool, &waiter->target, true);
}

/* Whether a request of the pool has slots as its target. */
static bool has_slots(const struct core_pool *pool) {
    list_for_each_entry(const struct acquire, waiter, &pool->waiting, link) {
        if (waiter->target.n_slots > 0)
            return true;
    }
    return false;
}

void target_end_locked(struct core_pool *pool, const char *place) {
    list_for_each_entry(struct acquire, waiter, &pool->waiting, link) {
        if (!target_has(&waiter->target, place))
            continue;
        const struct target ended = waiter->target;
        waiter->target = (struct target){0};
        waiter->passes = 0;
        target_open_locked(pool, &ended);
        return;
    }
}

void target_open_locked(struct core_pool *pool, const struct target *target) {
    uint64_t bytes;

    if (target->n_slots > 0 && !has_slots(pool))
        unmark_slots(pool);
    else if (target->start != NULL && !target_find_locked(pool, target->start, &bytes))
        set_closed(pool, target, false);
}
