/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/cache.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/lock.h"
#include "client/cache/arena_addresses.h"
#include "client/cache/give_back.h"
#include "client/cache/pointer_map.h"
#include "client/cache/split_off.h"
#include "client/cache/take.h"
#include "client/core/deferred.h"
#include "client/session/error.h"
#include "client/session/lease.h"
#include "client/session/session.h"

/* Of what a stream heap has: with so much of it free its pool is not tight any more. */
#define ROOMY_SHARE 4u

void cache_init(struct cache *cache, struct session *session) {
    cache->session = session;
    pthread_mutex_init(&cache->stream_heaps_lock, NULL);
    pthread_mutex_init(&cache->split_lock, NULL);
    pthread_mutex_init(&cache->give_lock, NULL);
    list_init(&cache->stream_heaps);
    list_init(&cache->splits);
    list_init(&cache->threads);
    counters_init(&cache->counters);
    for (unsigned i = 0; i < PROTO_POOLS_MAX; i++)
        core_pool_init(&cache->pools[i]);
    move_debts_init(&cache->move_debts);
    purger_init(&cache->purger);
    answering_init(&cache->answering);
}

static void free_bookkeeping(struct cache *cache) {
    list_for_each_entry_safe(struct stream_heap, stream_heap, &cache->stream_heaps, link) {
        list_remove(&stream_heap->link);
        depot_deinit(stream_heap->depot);
        free(stream_heap->depot);
        stream_heap_free(stream_heap);
    }
    cache_forget_splits(cache);
    free(cache->pending);
    offers_deinit(&cache->offers);
    purger_deinit(&cache->purger);
    answering_deinit(&cache->answering);
    counters_deinit(&cache->counters);
    for (unsigned i = 0; i < PROTO_POOLS_MAX; i++)
        core_pool_deinit(&cache->pools[i]);
    move_debts_deinit(&cache->move_debts);
    pthread_mutex_destroy(&cache->split_lock);
    pthread_mutex_destroy(&cache->give_lock);
    pthread_mutex_destroy(&cache->stream_heaps_lock);
}

void cache_forget(struct cache *cache) {
    list_for_each_entry_safe(struct thread_cache, thread, &cache->threads, link) {
        list_remove(&thread->link);
        thread->owner = NULL; /* of this thread, or a copy of one that is not here */
        thread->all = thread->last = NULL;
    }
    list_for_each_entry(struct stream_heap, stream_heap, &cache->stream_heaps, link) {
        arena_forget_addresses(stream_heap);
    }
    purger_init(&cache->purger); /* the descriptors may be somebody else's by now */
    free_bookkeeping(cache);
}

void cache_deinit(struct cache *cache) {
    list_for_each_entry(struct stream_heap, stream_heap, &cache->stream_heaps, link) {
        arena_leave_addresses(stream_heap);
    }
    free_bookkeeping(cache);
}

/* --- stream heaps --- */

static struct stream_heap *find_stream_heap(struct cache *cache, uint32_t pool, const void *stream) {
    list_for_each_entry(struct stream_heap, stream_heap, &cache->stream_heaps, link) {
        if (stream_heap->pool == pool && stream_heap->stream == stream)
            return stream_heap;
    }
    return NULL;
}

/* A piece that was handed out as a pointer loses its memory. */
static void leave_pointer_map(struct piece *piece) {
    pointer_map_clear(piece->memory, piece);
}

/* Makes a stream heap with its depot. NULL without memory. */
static struct stream_heap *make_stream_heap(struct cache *cache, const struct pool_facts *facts,
                                            void *stream) {
    struct depot *depot = malloc(sizeof *depot);
    struct stream_heap *stream_heap = depot == NULL ? NULL : stream_heap_new(cache, facts, stream);

    if (stream_heap == NULL) {
        free(depot);
        return NULL;
    }
    depot_init(depot);
    stream_heap->depot = depot;
    stream_heap->counters = &cache->counters;
    return stream_heap;
}

/* The list of stream heaps is locked. */
static void add_stream_heap(struct cache *cache, struct stream_heap *stream_heap) {
    struct core_pool *pool = cache_pool(cache, stream_heap->pool);

    pthread_mutex_lock(&pool->lock);
    core_pool_add_locked(pool, stream_heap);
    pthread_mutex_unlock(&pool->lock);
    list_append(&cache->stream_heaps, &stream_heap->link);
}

int cache_stream_heap(struct cache *cache, const struct pool *pool, void *stream,
                      struct stream_heap **ret_stream_heap) {
    struct pool_facts facts = {.id = pool->id,
                               .kind = pool->kind,
                               .device = -1,
                               .is_movable = pool->is_movable,
                               .limit_bytes = pool->limit_bytes,
                               .fences = &cache->session->fences.array,
                               .leave_map = leave_pointer_map};

    if (pool->kind == PROTO_POOL_HOST)
        stream = GPUPOOL_NO_STREAM;
    else
        facts.device = devices_find(&cache->session->devices, pool->uuid);
    pthread_mutex_lock(&cache->stream_heaps_lock);
    struct stream_heap *stream_heap = find_stream_heap(cache, pool->id, stream);
    if (stream_heap == NULL) {
        stream_heap = make_stream_heap(cache, &facts, stream);
        if (stream_heap != NULL)
            add_stream_heap(cache, stream_heap);
    } else {
        atomic_store_explicit(&stream_heap->limit_bytes, pool->limit_bytes, memory_order_relaxed);
    }
    pthread_mutex_unlock(&cache->stream_heaps_lock);
    if (stream_heap == NULL)
        return error_no_memory();
    *ret_stream_heap = stream_heap;
    return 0;
}

/* --- putting --- */

/* Puts a piece into this thread's bin of its class. From SIZE_CLASS_SINGLE on, the bin that had pieces until
 * now is emptied first. */
static void put_at_hand(struct thread_bins *own, struct piece *piece) {
    if (piece->size_class >= SIZE_CLASS_SINGLE && piece->size_class != own->single_class) {
        bin_flush(&own->bins[own->single_class], own->stream_heap);
        own->single_class = piece->size_class;
    }
    thread_bins_put(own, piece->size_class, piece);
}

/* Gives a piece to its stream heap. *ret_any: whether that has served a request that waits. Returns whether so
 * much is free there now that threads may keep pieces at hand again. */
static bool give_to_stream_heap(struct stream_heap *stream_heap, struct piece *piece,
                                struct core_serving *ret_serving, bool *ret_any) {
    bool is_closed = core_pool_lock_heap(stream_heap);
    stream_heap_give_locked(stream_heap, piece);
    bool is_roomy = stream_heap_free_bytes_locked(stream_heap) >=
                    stream_heap_held_bytes_locked(stream_heap) / ROOMY_SHARE;
    *ret_any =
        is_closed && core_pool_serve_locked(stream_heap->core_pool, stream_heap, clock_now_ns(), ret_serving);
    core_pool_unlock_heap(stream_heap, is_closed);
    return is_roomy;
}

void cache_put(struct cache *cache, struct piece *piece) {
    struct thread_cache *thread = thread_cache_get(cache, &cache->threads);
    struct thread_bins *own = NULL;
    struct stream_heap *stream_heap = piece->stream_heap;
    struct core_serving serving;
    const char *place = piece->memory;
    bool is_roomy = false, has_served = false;
    bool may_have_turn = core_pool_waits_for_segments(stream_heap->core_pool);

    piece->generation++;
    if (shortage_is_on(&cache->shortage, stream_heap->pool))
        shortage_end_if_over(cache, stream_heap->pool);
    if (thread != NULL) {
        thread_cache_enter(thread);
        own = take_bins(thread, stream_heap);
    }
    /* Inside: else a shortage that begins would not find the piece. */
    enum shortage_room room = shortage_room_of(&cache->shortage, stream_heap->pool);
    if (own != NULL)
        count_up(&own->counters->given_bytes, piece->capacity_bytes);
    if (room == SHORTAGE_ROOMY && own != NULL)
        put_at_hand(own, piece);
    else if (room != SHORTAGE_SHORT || may_have_turn)
        is_roomy = give_to_stream_heap(stream_heap, piece, &serving, &has_served);
    if (thread != NULL)
        thread_cache_leave(thread);
    if (has_served)
        shortage_end_serving(cache, &serving);
    if (room == SHORTAGE_SHORT && may_have_turn)
        (void)give_back_stream_heap(cache, stream_heap, HEAP_GRANULE);
    else if (room == SHORTAGE_SHORT)
        give_back_piece(cache, piece);
    else if (room == SHORTAGE_TIGHT)
        shortage_offer(cache, stream_heap, place);
    if (room == SHORTAGE_TIGHT && is_roomy)
        shortage_loosen(cache, stream_heap->pool);
}

/* Adds to two of this thread's counters. */
static void count(struct cache *cache, struct stream_heap *stream_heap, uint64_t given_bytes,
                  uint64_t moves) {
    struct thread_cache *thread = thread_cache_get(cache, &cache->threads);

    if (thread == NULL)
        return;
    thread_cache_enter(thread);
    struct thread_bins *own = thread_cache_find(thread, stream_heap);
    if (own == NULL)
        own = thread_cache_add(thread, stream_heap);
    if (own != NULL) {
        count_up(&own->counters->given_bytes, given_bytes);
        count_up(&own->counters->moves, moves);
    }
    thread_cache_leave(thread);
}

void cache_count_given(struct cache *cache, struct stream_heap *stream_heap, uint64_t size_bytes) {
    count(cache, stream_heap, size_bytes, 0);
}

void cache_count_moved(struct cache *cache, struct stream_heap *stream_heap, uint64_t moves) {
    count(cache, stream_heap, 0, moves);
}

/* Counts memory that was put behind a fence, and lets requests that wait have it. */
static void deferred_was_given(struct cache *cache, struct stream_heap *stream_heap, const char *place,
                               uint64_t size_bytes) {
    cache_count_given(cache, stream_heap, size_bytes);
    enum shortage_room room = shortage_room_of(&cache->shortage, stream_heap->pool);
    if (room == SHORTAGE_SHORT)
        (void)give_back_stream_heap(cache, stream_heap, HEAP_GRANULE);
    else if (room == SHORTAGE_TIGHT)
        shortage_offer(cache, stream_heap, place);
}

int cache_put_behind(struct cache *cache, struct piece *piece, struct fence fence) {
    struct stream_heap *stream_heap = piece->stream_heap;
    uint64_t given_bytes = piece->capacity_bytes;
    const char *place = piece->memory;

    if (fence_is_ready(cache->session, fence)) {
        cache_put(cache, piece);
        return 0;
    }
    pthread_mutex_lock(&stream_heap->lock);
    int r = deferred_reserve_locked(stream_heap, fence);
    if (r == 0) {
        piece->generation++;
        deferred_push_locked(stream_heap, piece, fence);
    }
    pthread_mutex_unlock(&stream_heap->lock);
    if (r < 0)
        return error_no_memory();
    deferred_was_given(cache, stream_heap, place, given_bytes);
    return 0;
}

int cache_shrink_behind(struct cache *cache, struct piece *piece, uint64_t kept_bytes, struct fence fence) {
    struct stream_heap *stream_heap = piece->stream_heap;
    uint64_t given_bytes = piece->capacity_bytes - kept_bytes;
    struct piece *tail;
    int r = 0;

    pthread_mutex_lock(&stream_heap->lock);
    if (fence_is_ready(cache->session, fence)) {
        r = stream_heap_shrink_locked(piece, kept_bytes);
    } else {
        r = deferred_reserve_locked(stream_heap, fence);
        if (r == 0)
            r = stream_heap_cut_locked(piece, kept_bytes, &tail);
        if (r == 0)
            deferred_push_locked(stream_heap, tail, fence);
    }
    pthread_mutex_unlock(&stream_heap->lock);
    if (r < 0)
        return error_no_memory();
    deferred_was_given(cache, stream_heap, piece->memory + kept_bytes, given_bytes);
    return 0;
}

/* The program may have destroyed the stream of a stream heap that holds nothing: the driver crashes on its
 * handle. */
static bool stream_heap_stream_is_busy(const struct gpu *gpu, struct stream_heap *stream_heap) {
    if (!cache_has_order(stream_heap))
        return false;
    pthread_mutex_lock(&stream_heap->lock);
    bool is_empty = stream_heap_held_bytes_locked(stream_heap) == 0;
    pthread_mutex_unlock(&stream_heap->lock);
    return !is_empty && devices_stream_is_busy(gpu, (unsigned)stream_heap->device, stream_heap->stream);
}

int cache_leave_fence(struct cache *cache, const struct stream_heap *stream_heap, struct fence *ret_fence) {
    *ret_fence = FENCE_NONE;
    return cache_has_order(stream_heap)
               ? fences_enqueue(cache->session, (unsigned)stream_heap->device, stream_heap->stream, ret_fence)
               : 0;
}

bool cache_is_busy(struct cache *cache) {
    const struct gpu *gpu;
    bool busy = false;

    if (devices_gpu(&cache->session->devices, &gpu) < 0 || gpu == NULL)
        return false;
    pthread_mutex_lock(&cache->stream_heaps_lock);
    list_for_each_entry(struct stream_heap, stream_heap, &cache->stream_heaps, link) {
        busy = busy || stream_heap_stream_is_busy(gpu, stream_heap);
    }
    pthread_mutex_unlock(&cache->stream_heaps_lock);
    return busy;
}

/* --- start and stop --- */

int cache_start(struct cache *cache, uint64_t decay_ns, int reclaim_fd, bool with_thread) {
    thread_cache_prepare();
    cache->counters.page = cache->session->page.memory;
    cache->session->segments.listener =
        (struct segments_listener){.closed = arena_segment_closed, .owner = cache};
    int r = purger_start(cache, decay_ns, reclaim_fd, with_thread);
    if (r < 0)
        return r;
    cache->enabled = true;
    return 0;
}

void cache_stop(struct cache *cache) {
    purger_stop(&cache->purger);
    thread_caches_detach(&cache->threads);
    cache->enabled = false;
}
