/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/target.h"

#include <stdlib.h>

#include "base/array.h"
#include "client/cache/cache.h"
#include "client/cache/shortage.h"
#include "client/core/arena.h"
#include "client/core/stream_heap.h"
#include "client/session/segment.h"

/* The request that has waited longest in a pool. NULL: none waits. Locked. */
static struct waiting_request *oldest(struct shortage *shortage, uint32_t pool) {
    list_for_each_entry(struct waiting_request, waiter, &shortage->waiters, link) {
        if (waiter->pool == pool)
            return waiter;
    }
    return NULL;
}

void target_note_pass(struct shortage *shortage, uint32_t pool) {
    if (atomic_load(&shortage->waiting) == 0)
        return;
    pthread_mutex_lock(&shortage->lock);
    struct waiting_request *waiter = oldest(shortage, pool);
    if (waiter != NULL)
        waiter->passes++;
    pthread_mutex_unlock(&shortage->lock);
}

/* The request that is to have a target. NULL: none is. Locked. */
static struct waiting_request *find_passed(struct shortage *shortage, uint32_t pool) {
    struct waiting_request *waiter = oldest(shortage, pool);
    return waiter != NULL && waiter->passes >= TARGET_PASSES && !target_exists(&waiter->target) ? waiter
                                                                                                : NULL;
}

bool target_find(struct shortage *shortage, uint32_t pool, const char *place, uint64_t *ret_bytes) {
    bool found = false;

    if (atomic_load(&shortage->waiting) == 0)
        return false;
    pthread_mutex_lock(&shortage->lock);
    list_for_each_entry(const struct waiting_request, waiter, &shortage->waiters, link) {
        if (found || waiter->pool != pool || !target_has(&waiter->target, place))
            continue;
        found = true;
        *ret_bytes = waiter->size_bytes;
    }
    pthread_mutex_unlock(&shortage->lock);
    return found;
}

/* --- the choice --- */

/* The bytes that the process has of a segment, and those that are free or deferred of that. */
struct tally {
    const struct segment *segment;
    uint64_t held_bytes, free_bytes;
};

struct tallies {
    struct tally *list;
    size_t count, capacity;
};

/* The tally of a segment, which is added if it is new. NULL without memory. */
static struct tally *tally_of(struct tallies *tallies, const struct segment *segment) {
    for (size_t i = 0; i < tallies->count; i++)
        if (tallies->list[i].segment == segment)
            return &tallies->list[i];
    struct tally *list = array_room(tallies->list, tallies->count, &tallies->capacity, sizeof *list);
    if (list == NULL)
        return NULL;
    tallies->list = list;
    tallies->list[tallies->count] = (struct tally){.segment = segment};
    return &tallies->list[tallies->count++];
}

static void add_tallies(struct stream_heap *stream_heap, struct tallies *tallies) {
    pthread_mutex_lock(&stream_heap->lock);
    list_for_each_entry(const struct extent, extent, &stream_heap->extents, link) {
        struct tally *tally = extent->is_arena ? NULL : tally_of(tallies, extent->segment);
        if (tally == NULL)
            continue;
        tally->held_bytes += extent->size_bytes - extent->absent_bytes;
        tally->free_bytes += extent->size_bytes - extent->span->taken_bytes + extent->deferred_bytes;
    }
    pthread_mutex_unlock(&stream_heap->lock);
}

/* Finds the segment in which most is free, of those that the process has all of. Of another one the daemon
 * could lend a part to other requests meanwhile. None: no such segment is long enough, or the process has
 * nothing beside it. The list of stream heaps is locked. */
static struct target find_target(struct cache *cache, uint32_t pool, uint64_t size_bytes) {
    struct tallies tallies = {0};
    const struct tally *best = NULL;
    struct target target = {0};

    list_for_each_entry(struct stream_heap, stream_heap, &cache->stream_heaps, link) {
        if (stream_heap->pool == pool)
            add_tallies(stream_heap, &tallies);
    }
    for (size_t i = 0; i < tallies.count; i++) {
        const struct tally *tally = &tallies.list[i];
        if (tally->segment->size_bytes >= size_bytes && tally->held_bytes == tally->segment->size_bytes &&
            (best == NULL || tally->free_bytes > best->free_bytes))
            best = tally;
    }
    if (best != NULL && tallies.count > 1) {
        target.start = best->segment->memory;
        target.end = target.start + best->segment->size_bytes;
    }
    free(tallies.list);
    return target;
}

/* Closes or opens the extents of a target. The list of stream heaps is locked. */
static void set_closed(struct cache *cache, uint32_t pool, const struct target *target, bool is_closed) {
    list_for_each_entry(struct stream_heap, stream_heap, &cache->stream_heaps, link) {
        if (stream_heap->pool != pool)
            continue;
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

/* The list of stream heaps is locked. Returns the size of the slots, where there are candidates. */
static uint64_t list_candidates(struct cache *cache, uint32_t pool, struct candidates *candidates) {
    uint64_t slot_bytes = 0;

    list_for_each_entry(struct stream_heap, stream_heap, &cache->stream_heaps, link) {
        if (stream_heap->pool != pool)
            continue;
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

/* Takes the marks from the slots of the pool's arenas. The list of stream heaps is locked. */
static void unmark_slots(struct cache *cache, uint32_t pool) {
    list_for_each_entry(struct stream_heap, stream_heap, &cache->stream_heaps, link) {
        if (stream_heap->pool != pool)
            continue;
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

/* Sets the target of a request that was passed: not of one that needs more than was looked for. Returns
 * whether one was set. */
static bool set_target(struct shortage *shortage, uint32_t pool, const struct waiting_request *sought,
                       const struct target *target) {
    pthread_mutex_lock(&shortage->lock);
    struct waiting_request *waiter = find_passed(shortage, pool); /* maybe another one meanwhile */
    bool is_set = waiter != NULL && waiter->is_of_segments == sought->is_of_segments &&
                  waiter->size_bytes <= sought->size_bytes && target_exists(target);
    if (is_set)
        waiter->target = *target;
    else if (waiter != NULL)
        waiter->passes = 0; /* a search costs much: not at each pass */
    pthread_mutex_unlock(&shortage->lock);
    return is_set;
}

static void choose_segment(struct cache *cache, const struct waiting_request *sought) {
    const struct target target = find_target(cache, sought->pool, sought->size_bytes);

    if (set_target(&cache->shortage, sought->pool, sought, &target))
        set_closed(cache, sought->pool, &target, true);
}

static void choose_slots(struct cache *cache, const struct waiting_request *sought) {
    struct candidates candidates = {0};
    struct target target = {0};
    uint64_t slot_bytes = list_candidates(cache, sought->pool, &candidates);

    if (candidates.count > 0)
        qsort(candidates.list, candidates.count, sizeof *candidates.list, compare_candidates);
    if (candidates.count > 0 && sought->size_bytes <= (candidates.count - 1) * slot_bytes)
        target.n_slots = (uint32_t)((sought->size_bytes + slot_bytes - 1) / slot_bytes);
    if (set_target(&cache->shortage, sought->pool, sought, &target))
        mark_slots(&candidates, target.n_slots);
    free(candidates.list);
}

void target_choose(struct cache *cache, uint32_t pool) {
    struct shortage *shortage = &cache->shortage;
    struct waiting_request sought = {0};

    pthread_mutex_lock(&shortage->lock);
    const struct waiting_request *passed = find_passed(shortage, pool);
    if (passed != NULL)
        sought = *passed;
    pthread_mutex_unlock(&shortage->lock);
    if (passed == NULL)
        return;
    pthread_mutex_lock(&cache->stream_heaps_lock);
    if (sought.is_of_segments)
        choose_slots(cache, &sought);
    else
        choose_segment(cache, &sought);
    pthread_mutex_unlock(&cache->stream_heaps_lock);
}

/* Whether a request of the pool has slots as its target. */
static bool has_slots(struct shortage *shortage, uint32_t pool) {
    bool found = false;

    pthread_mutex_lock(&shortage->lock);
    list_for_each_entry(const struct waiting_request, waiter, &shortage->waiters, link) {
        found = found || (waiter->pool == pool && waiter->target.n_slots > 0);
    }
    pthread_mutex_unlock(&shortage->lock);
    return found;
}

void target_end(struct cache *cache, uint32_t pool, const char *place) {
    struct target ended = {0};

    pthread_mutex_lock(&cache->shortage.lock);
    list_for_each_entry(struct waiting_request, waiter, &cache->shortage.waiters, link) {
        if (waiter->pool != pool || !target_has(&waiter->target, place))
            continue;
        ended = waiter->target;
        waiter->target = (struct target){0};
        waiter->passes = 0;
        break;
    }
    pthread_mutex_unlock(&cache->shortage.lock);
    target_open(cache, pool, &ended);
}

void target_open(struct cache *cache, uint32_t pool, const struct target *target) {
    uint64_t bytes;

    if (!target_exists(target))
        return;
    pthread_mutex_lock(&cache->stream_heaps_lock); /* the next request may have it by now */
    if (target->n_slots > 0 && !has_slots(&cache->shortage, pool))
        unmark_slots(cache, pool);
    else if (target->start != NULL && !target_find(&cache->shortage, pool, target->start, &bytes))
        set_closed(cache, pool, target, false);
    pthread_mutex_unlock(&cache->stream_heaps_lock);
}
