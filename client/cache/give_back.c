/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/give_back.h"

#include <limits.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "client/cache/cache.h"
#include "client/cache/split_off.h"
#include "client/core/arena.h"
#include "client/core/deferred.h"
#include "client/core/stretch.h"
#include "client/session/call_time.h"
#include "client/session/error.h"
#include "client/session/lease.h"
#include "client/session/session.h"

/* Parts of extents that go back while the rest is in use: smaller ones would cost the daemon more than they
 * bring. */
#define PART_BYTES_MIN (2 * MIB)

/* The memory to give back. */
struct choice {
    bool idle_only; /* of stream heaps that were not used since the last time */
    bool is_trim;   /* the program says that it needs none of it */
    bool of_stream; /* only that of one stream */
    const void *stream;
    uint32_t pool;                 /* only that of one pool; 0: of all */
    const struct stream_heap *own; /* of this stream heap only stretches of at least own_bytes */
    uint64_t own_bytes;
    uint64_t part_bytes; /* parts of extents that are in use: of so many bytes at least */
};

/* Room for one more part, so that nothing taken out of a stream heap is lost. */
static bool pending_reserve(struct cache *cache) {
    struct stream_heap_part *pending =
        array_room(cache->pending, cache->pending_count, &cache->pending_capacity, sizeof *pending);

    if (pending != NULL)
        cache->pending = pending;
    else
        cache->lacked_memory = true;
    return pending != NULL;
}

/* Whether a fence can be left on the stream heap's stream. If not, its memory had better stay in it. */
static int check_stream(struct cache *cache, const struct stream_heap *stream_heap) {
    const struct gpu *gpu;

    if (!cache_has_order(stream_heap))
        return 0;
    int r = devices_need_gpu(&cache->session->devices, &gpu);
    if (r == 0)
        r = devices_check_stream(gpu, (unsigned)stream_heap->device, stream_heap->stream);
    if (r == GPUPOOL_E_CAPTURING)
        return error_prefix(r, "giving idle memory back: it stays until the capture is over");
    return r < 0 ? error_prefix(r,
                                "giving idle memory back: it stays until the client closes if the stream was "
                                "destroyed, before which gpupool_trim() is to be called")
                 : 0;
}

/* Takes the free parts out of a stream heap. */
static void take_free(struct cache *cache, struct stream_heap *stream_heap, uint64_t part_bytes) {
    pthread_mutex_lock(&stream_heap->lock);
    while (pending_reserve(cache) &&
           stream_heap_reclaim_locked(stream_heap, part_bytes, &cache->pending[cache->pending_count]))
        cache->pending_count++;
    pthread_mutex_unlock(&stream_heap->lock);
}

static void take_deferred(struct cache *cache, struct stream_heap *stream_heap, uint64_t part_bytes) {
    pthread_mutex_lock(&stream_heap->lock);
    for (size_t count = stream_heap->ordering == 0; count > 0 && pending_reserve(cache);
         cache->pending_count += count)
        count = deferred_reclaim_locked(stream_heap, part_bytes, &cache->pending[cache->pending_count],
                                        cache->pending_capacity - cache->pending_count);
    pthread_mutex_unlock(&stream_heap->lock);
}

/* Takes what is idle in a stream heap out of it: deferred memory, which has fences of its own, and free memory
 * if with_free. In this order: a slot of an arena goes when all that is left of it is free. */
static void take_idle(struct cache *cache, struct stream_heap *stream_heap, uint64_t part_bytes,
                      bool with_free) {
    take_deferred(cache, stream_heap, part_bytes);
    if (with_free)
        take_free(cache, stream_heap, part_bytes);
}

/* Takes what a stream heap has of a stretch out of it. */
static void take_of_stretch(struct cache *cache, struct stream_heap *stream_heap,
                            const struct stretch *stretch, bool with_free) {
    pthread_mutex_lock(&stream_heap->lock);
    while (with_free && pending_reserve(cache) &&
           stream_heap_reclaim_between_locked(stream_heap, stretch->start, stretch->end,
                                              &cache->pending[cache->pending_count]))
        cache->pending_count++;
    for (size_t count = stream_heap->ordering == 0; count > 0 && pending_reserve(cache);
         cache->pending_count += count)
        count = deferred_reclaim_between_locked(stream_heap, stretch->start, stretch->end,
                                                &cache->pending[cache->pending_count],
                                                cache->pending_capacity - cache->pending_count);
    pthread_mutex_unlock(&stream_heap->lock);
}

/* Whether a stream heap has idle memory. One without may be of a stream that was destroyed, of which the
 * driver is asked nothing. */
static bool has_idle(struct stream_heap *stream_heap) {
    pthread_mutex_lock(&stream_heap->lock);
    bool has = stream_heap_free_bytes_locked(stream_heap) + stream_heap->deferred_bytes > 0;
    pthread_mutex_unlock(&stream_heap->lock);
    return has;
}

/* Takes what there is of a stretch. The list of stream heaps is locked. */
static void take_stretch(struct cache *cache, uint32_t pool, const struct stretch *stretch) {
    list_for_each_entry(struct stream_heap, stream_heap, &cache->stream_heaps, link) {
        if (stream_heap->pool == pool && has_idle(stream_heap)) /* deferred memory has fences of its own */
            take_of_stretch(cache, stream_heap, stretch, check_stream(cache, stream_heap) == 0);
    }
}

/* Takes the stretches of a stream heap that are long enough. The list of stream heaps is locked. */
static void take_stretches(struct cache *cache, struct stream_heap *stream_heap, uint64_t size_bytes) {
    _cleanup_(freep) const char **places = NULL;
    struct core_pool *pool = stream_heap->core_pool;
    struct stretch stretch;

    size_t count = stretch_places(stream_heap, size_bytes, &places);
    for (size_t i = 0; i < count; i++) {
        pthread_mutex_lock(&pool->lock);
        bool found = stretch_at_locked(pool, places[i], &stretch) && stretch_bytes(&stretch) >= size_bytes;
        pthread_mutex_unlock(&pool->lock);
        if (found)
            take_stretch(cache, stream_heap->pool, &stretch);
    }
}

/* Brings what is idle in a stream heap into its heap. Whether anything may be taken out. forgets: what came
 * and went there is over. */
static bool gather(struct stream_heap *stream_heap, bool idle_only, bool forgets) {
    pthread_mutex_lock(&stream_heap->lock);
    bool spare = idle_only && stream_heap->touched;
    depot_flush_locked(stream_heap, idle_only);
    deferred_settle_locked(stream_heap, UINT_MAX);
    if (idle_only)
        stream_heap->touched = false;
    stream_heap->collects = 0;
    if (forgets && !spare)
        stream_heap->churn_bytes = 0;
    bool has_idle = stream_heap_free_bytes_locked(stream_heap) + stream_heap->deferred_bytes > 0;
    pthread_mutex_unlock(&stream_heap->lock);
    return has_idle && !spare;
}

static bool chooses(const struct choice *choice, const struct stream_heap *stream_heap) {
    return choice->pool != 0 ? stream_heap->pool == choice->pool
                             : !choice->of_stream || (stream_heap->kind == GPUPOOL_POOL_DEVICE &&
                                                      stream_heap->stream == choice->stream);
}

static int take_out(struct cache *cache, const struct choice *choice) {
    int failed = 0;

    pthread_mutex_lock(&cache->stream_heaps_lock);
    list_for_each_entry(struct stream_heap, stream_heap, &cache->stream_heaps, link) {
        if (!chooses(choice, stream_heap))
            continue;
        if (choice->of_stream)
            thread_caches_collect(&cache->threads, NULL, stream_heap, false);
        if (!gather(stream_heap, choice->idle_only, choice->pool == 0 && !choice->of_stream))
            continue;
        if (stream_heap == choice->own) {
            take_stretches(cache, stream_heap, choice->own_bytes);
            continue;
        }
        int r = check_stream(cache, stream_heap);
        take_idle(cache, stream_heap, choice->part_bytes, r == 0);
        failed = r < 0 ? r : failed;
    }
    pthread_mutex_unlock(&cache->stream_heaps_lock);
    return failed;
}

/* A part that the daemon refuses would be refused again: the daemon split a part off, and this process did
 * not hear of it. That memory is out of the stream heap, and returns with the farewell. */
static bool part_is_refused(int error) {
    return error == GPUPOOL_E_STALE || error == GPUPOOL_E_INVALID || error == GPUPOOL_E_SHARED;
}

/* It answered nothing to this, and would not to the next. */
static bool daemon_is_mute(int error) {
    return error == GPUPOOL_E_TIMED_OUT || error == GPUPOOL_E_CANCELLED || error == GPUPOOL_E_DISCONNECTED ||
           error == GPUPOOL_E_PROTOCOL;
}

/* Releases a part: without an answer, unless one is wanted, or has been due for long. */
static int release_part(struct cache *cache, const struct stream_heap_part *part, bool is_answered) {
    cache->one_way = (cache->one_way + 1) % LEASE_ONE_WAY_MAX;
    cache->unheard = !is_answered && !part->is_answered && !cache->is_at_limit && cache->one_way != 0;
    if (cache->unheard)
        return lease_release_one_way(cache->session, part->lease, part->generation, part->offset_bytes,
                                     part->size_bytes, part->fence);
    int r = lease_release_kept(cache->session, part->lease, part->generation, part->offset_bytes,
                               part->size_bytes, part->fence, &cache->unanswered);
    cache->unanswered_part = *part;
    if (r == 0 || r == GPUPOOL_E_LIMIT)
        cache->is_at_limit = r == GPUPOOL_E_LIMIT;
    return r;
}

/* Takes the answer to the last RELEASE, if that did not come in time: a part that the daemon refused for now
 * is pending again. TIMED_OUT: it has not come. */
static int hear_unanswered(struct cache *cache) {
    struct connection *connection = &cache->session->connection;

    if (cache->unanswered == NULL)
        return 0;
    uint64_t deadline_ns = atomic_load(&connection->is_mute) ? 0 : connection_deadline_ns(connection, 0);
    int r = connection_go_on(connection, &cache->unanswered, deadline_ns);
    if (cache->unanswered != NULL && r < 0)
        return r;
    request_recycle(take_ptr(&cache->unanswered));
    cache->is_at_limit = r == GPUPOOL_E_LIMIT;
    if (r == GPUPOOL_E_LIMIT && pending_reserve(cache)) /* else the part returns with the farewell */
        cache->pending[cache->pending_count++] = cache->unanswered_part;
    return daemon_is_mute(r) ? r : 0;
}

/* A fence was left for a part that had none (left: 0), or none could be. Returns whether the part goes. */
static bool settle_part(struct stream_heap_part *part, int left, struct fence fence) {
    if (part->has_fence)
        return true;
    pthread_mutex_lock(&part->stream_heap->lock);
    if (left == 0)
        stream_heap_fence_left_locked(part, fence);
    else
        stream_heap_no_fence_locked(part);
    pthread_mutex_unlock(&part->stream_heap->lock);
    return left == 0;
}

/* Leaves the fences that pending parts lack: one for all parts of a stream heap. Parts whose fence cannot be
 * left return to their stream heap. may_leave: false: that is so of all. 0, or what fences_enqueue() says. */
static int fence_pending(struct cache *cache, bool may_leave) {
    const struct stream_heap *fenced = NULL;
    struct fence fence = FENCE_NONE;
    int failed = 0, left = may_leave ? 0 : GPUPOOL_E_CANCELLED;
    size_t kept = 0;

    for (size_t i = 0; i < cache->pending_count; i++) {
        struct stream_heap_part part = cache->pending[i];
        if (may_leave && !part.has_fence && part.stream_heap != fenced) {
            fenced = part.stream_heap;
            left = cache_leave_fence(cache, fenced, &fence);
            failed = left < 0 ? left : failed;
        }
        if (settle_part(&part, left, fence))
            cache->pending[kept++] = part;
    }
    cache->pending_count = kept;
    return failed;
}

/* The segment is to be offered: after another time without use, or at the end of a trim. */
static void note_offer(struct cache *cache, const struct stream_heap_part *part) {
    const struct segment *segment = part->segment;

    if (segment_is_movable(segment))
        offers_note(&cache->offers, part->stream_heap->pool, segment->id);
}

/* Releases what is pending, behind its fences. With hears, the daemon has done it when this returns.
 * is_unused: the segments are to be offered. give_lock is held. */
static int release_pending(struct cache *cache, bool hears, bool is_unused, uint64_t *ret_bytes) {
    uint64_t bytes = 0;
    size_t kept = 0;
    int unheard = hear_unanswered(cache), failed = fence_pending(cache, unheard == 0);

    *ret_bytes = 0;
    if (unheard < 0)
        return unheard;
    for (size_t i = 0; i < cache->pending_count; i++) {
        const struct stream_heap_part part = cache->pending[i];
        if (is_unused)
            note_offer(cache, &part); /* now: the daemon may have the segment closed when nothing is leased */
        int r = release_part(cache, &part, hears && i + 1 == cache->pending_count);
        if (r == 0 || cache->unanswered != NULL) { /* the daemon took it, and will do it */
            failed = r < 0 ? r : failed;
            bytes += part.size_bytes;
        } else if (!part_is_refused(r)) { /* it stays pending, for the next time */
            failed = r;
            cache->pending[kept++] = part;
        }
        if (daemon_is_mute(r)) { /* so do the others: each would take as long to fail */
            while (++i < cache->pending_count)
                cache->pending[kept++] = cache->pending[i];
        }
    }
    cache->pending_count = kept;
    *ret_bytes = bytes;
    return failed;
}

/* Has an exchange with the daemon, after which it has done all that it was told before. */
static int hear(struct cache *cache) {
    int r = pools_fetch(cache->session, NULL);
    cache->unheard = r < 0;
    return r;
}

/* --- when the daemon is gone --- */

static void mark(struct cache *cache, const struct segment *segment) {
    segments_mark(&cache->session->segments, segment->id);
}

/* Takes what is idle out of a stream heap, in segments of which nothing is in use. */
static void let_idle_go(struct cache *cache, struct stream_heap *stream_heap) {
    if (gather(stream_heap, false, false) && check_stream(cache, stream_heap) == 0)
        take_free(cache, stream_heap, UINT64_MAX);
}

/* Forgets the parts that are pending, but for those that the GPU may still use. */
static void let_pending_go(struct cache *cache) {
    size_t kept = 0;

    for (size_t i = 0; i < cache->pending_count; i++) {
        const struct stream_heap_part *part = &cache->pending[i];
        if (fence_is_ready(cache->session, part->fence))
            continue;
        mark(cache, part->segment);
        cache->pending[kept++] = *part;
    }
    cache->pending_count = kept;
}

static void mark_arena_locked(struct cache *cache, const struct arena *arena) {
    for (uint32_t i = 0; i < arena->n_slots; i = arena_slot_after(arena, i)) {
        const struct arena_slot *slot = &arena->slots[i];
        /* Of one that is LEAVING the parts are pending, or leases of their own. */
        if (slot->state == ARENA_SLOT_HELD || slot->state == ARENA_SLOT_BUSY)
            segments_mark(&cache->session->segments, slot->segment.id);
        if (slot->maps != 0 && (slot->has_fences || !fence_is_ready(cache->session, slot->fence)))
            segments_mark(&cache->session->segments, slot->maps);
    }
}

static void mark_stream_heap(struct cache *cache, struct stream_heap *stream_heap) {
    pthread_mutex_lock(&stream_heap->lock);
    list_for_each_entry(struct extent, extent, &stream_heap->extents, link) {
        if (extent->is_arena)
            mark_arena_locked(cache, arena_of(extent));
        else
            mark(cache, extent->segment.segment);
    }
    pthread_mutex_unlock(&stream_heap->lock);
}

/* For session_let_go(): gives up what is idle in the cache, and marks the segments of the rest. */
static bool let_cache_go(void *owner) {
    struct cache *cache = owner;

    connection_let_go(&cache->unanswered);
    thread_caches_collect(&cache->threads, NULL, NULL, false);
    pthread_mutex_lock(&cache->stream_heaps_lock);
    list_for_each_entry(struct stream_heap, stream_heap, &cache->stream_heaps, link) {
        let_idle_go(cache, stream_heap);
    }
    (void)fence_pending(cache, true); /* they are pending until it is ready: the GPU may still use them */
    list_for_each_entry(struct stream_heap, stream_heap, &cache->stream_heaps, link) {
        mark_stream_heap(cache, stream_heap);
    }
    pthread_mutex_unlock(&cache->stream_heaps_lock);
    let_pending_go(cache);
    return cache_is_busy(cache);
}

void cache_let_go(struct cache *cache) {
    cache_end_splits(cache);
    pthread_mutex_lock(&cache->give_lock);
    session_let_go(cache->session, let_cache_go, cache);
    pthread_mutex_unlock(&cache->give_lock);
}

/* --- giving back --- */

static int say_late(void) {
    return error_set(GPUPOOL_E_TIMED_OUT, "another thread gives memory back, and waits for the daemon");
}

static int give_back(struct cache *cache, const struct choice *choice, uint64_t *ret_bytes) {
    *ret_bytes = 0;
    int broken = connection_check(&cache->session->connection);
    if (broken < 0) {
        if (!choice->of_stream && choice->pool == 0)
            cache_let_go(cache);
        return broken;
    }
    connection_hear_late(&cache->session->connection);
    cache_end_splits(cache);
    if (!call_time_lock(&cache->give_lock))
        return say_late();
    int offered = choice->idle_only ? offers_send(&cache->offers, cache->session) : 0;
    if (choice->idle_only && offered == 0)
        offered = lease_close_named(cache->session);
    if (!choice->of_stream && choice->pool == 0)
        thread_caches_collect(&cache->threads, NULL, NULL, choice->idle_only);
    cache->lacked_memory = false;
    int taken = take_out(cache, choice);
    int released = release_pending(cache, true, choice->pool == 0, ret_bytes);
    if (cache->unheard && released == 0)
        released = hear(cache);
    /* A trim offers at once. Segments that a fence keeps are offered again when memory decays. */
    if (choice->is_trim && released == 0)
        offered = offers_send(&cache->offers, cache->session);
    bool lacked_memory = cache->lacked_memory;
    pthread_mutex_unlock(&cache->give_lock);
    if (released < 0 || taken < 0)
        return released < 0 ? released : taken;
    return lacked_memory ? error_no_memory() : offered;
}

int cache_give_back(struct cache *cache, bool idle_only, uint64_t *ret_bytes) {
    const struct choice choice = {
        .idle_only = idle_only, .is_trim = !idle_only, .part_bytes = PART_BYTES_MIN};

    rows_end_own(cache->session);
    return give_back(cache, &choice, ret_bytes);
}

/* Whether memory of a choice is free in the stream heaps, ordered by their stream alone. */
static bool stays(struct cache *cache, const struct choice *choice) {
    uint64_t bytes = 0;

    pthread_mutex_lock(&cache->stream_heaps_lock);
    list_for_each_entry(struct stream_heap, stream_heap, &cache->stream_heaps, link) {
        if (!chooses(choice, stream_heap))
            continue;
        pthread_mutex_lock(&stream_heap->lock);
        bytes += stream_heap_free_bytes_locked(stream_heap);
        pthread_mutex_unlock(&stream_heap->lock);
    }
    pthread_mutex_unlock(&cache->stream_heaps_lock);
    return bytes > 0;
}

int give_back_stream(struct cache *cache, const void *stream, bool *ret_stays) {
    char text[ERROR_TEXT_SIZE];
    uint64_t bytes;

    error_save(text);
    /* Nothing orders what stays: all parts go. */
    const struct choice choice = {.of_stream = true, .stream = stream, .part_bytes = HEAP_GRANULE};
    int r = give_back(cache, &choice, &bytes); /* fails before it collects, where the daemon is gone */
    *ret_stays = r < 0 || stays(cache, &choice);
    if (r == GPUPOOL_E_NO_MEMORY)
        return r;
    error_restore(text);
    return 0;
}

/* Gives back memory of one pool. */
static uint64_t give_back_choice(struct cache *cache, const struct choice *choice) {
    char text[ERROR_TEXT_SIZE];
    uint64_t bytes;

    error_save(text);
    (void)give_back(cache, choice, &bytes);
    error_restore(text);
    return bytes;
}

bool give_back_has(struct cache *cache, uint32_t pool) {
    struct core_pool *core_pool = cache_pool(cache, pool);
    bool has = false;

    pthread_mutex_lock(&core_pool->lock);
    list_for_each_entry(struct stream_heap, stream_heap, &core_pool->stream_heaps, pool_link) {
        has = has || has_idle(stream_heap);
    }
    pthread_mutex_unlock(&core_pool->lock);
    return has;
}

uint64_t give_back_pool(struct cache *cache, uint32_t pool) {
    return give_back_choice(cache, &(struct choice){.pool = pool, .part_bytes = HEAP_GRANULE});
}

uint64_t give_back_for_request(struct cache *cache, const struct stream_heap *stream_heap,
                               uint64_t size_bytes, uint64_t part_bytes) {
    const struct choice choice = {
        .pool = stream_heap->pool, .own = stream_heap, .own_bytes = size_bytes, .part_bytes = part_bytes};
    return give_back_choice(cache, &choice);
}

void give_back_stretch(struct cache *cache, uint32_t pool, const struct stretch *stretch) {
    char text[ERROR_TEXT_SIZE];
    uint64_t bytes;

    error_save(text);
    if (connection_check(&cache->session->connection) == 0) {
        pthread_mutex_lock(&cache->give_lock);
        pthread_mutex_lock(&cache->stream_heaps_lock);
        take_stretch(cache, pool, stretch);
        pthread_mutex_unlock(&cache->stream_heaps_lock);
        (void)release_pending(cache, false, false, &bytes);
        pthread_mutex_unlock(&cache->give_lock);
    }
    error_restore(text);
}

/* Whether a fence can be left for the stream heap's memory, and somebody takes it. */
static bool may_give_back(struct cache *cache, const struct stream_heap *stream_heap) {
    return connection_check(&cache->session->connection) == 0 && check_stream(cache, stream_heap) == 0;
}

void give_back_piece(struct cache *cache, struct piece *piece) {
    struct stream_heap *stream_heap = piece->stream_heap;
    char text[ERROR_TEXT_SIZE];
    uint64_t bytes;

    error_save(text);
    bool may = may_give_back(cache, stream_heap);
    pthread_mutex_lock(&cache->give_lock);
    may = may && pending_reserve(cache);
    pthread_mutex_lock(&stream_heap->lock);
    bool is_one = stream_heap_is_one_part_locked(piece);
    if (may && is_one)
        stream_heap_lose_locked(piece, &cache->pending[cache->pending_count++]);
    else
        stream_heap_give_locked(stream_heap, piece);
    pthread_mutex_unlock(&stream_heap->lock);
    if (may && !is_one) /* with what else is free there */
        take_free(cache, stream_heap, HEAP_GRANULE);
    if (may)
        (void)release_pending(cache, false, false, &bytes);
    pthread_mutex_unlock(&cache->give_lock);
    error_restore(text);
}

/* Gives back the parts that a function finds in a stream heap. */
static void give_back_found(struct cache *cache, struct stream_heap *stream_heap,
                            bool (*find_locked)(struct stream_heap *stream_heap,
                                                struct stream_heap_part *ret_part)) {
    char text[ERROR_TEXT_SIZE];
    uint64_t bytes;

    error_save(text);
    if (may_give_back(cache, stream_heap)) {
        pthread_mutex_lock(&cache->give_lock);
        pthread_mutex_lock(&stream_heap->lock);
        while (pending_reserve(cache) && find_locked(stream_heap, &cache->pending[cache->pending_count]))
            cache->pending_count++;
        pthread_mutex_unlock(&stream_heap->lock);
        (void)release_pending(cache, false, false, &bytes);
        pthread_mutex_unlock(&cache->give_lock);
    }
    error_restore(text);
}

void give_back_lent(struct cache *cache, struct stream_heap *stream_heap) {
    give_back_found(cache, stream_heap, stream_heap_reclaim_lent_locked);
}

void give_back_slots(struct cache *cache, struct stream_heap *stream_heap) {
    give_back_found(cache, stream_heap, stream_heap_reclaim_slot_locked);
}

uint64_t give_back_stream_heap(struct cache *cache, struct stream_heap *stream_heap, uint64_t part_bytes) {
    char text[ERROR_TEXT_SIZE];
    uint64_t bytes = 0;

    error_save(text);
    if (may_give_back(cache, stream_heap) && call_time_lock(&cache->give_lock)) {
        take_idle(cache, stream_heap, part_bytes, true);
        (void)release_pending(cache, false, false, &bytes);
        pthread_mutex_unlock(&cache->give_lock);
    }
    error_restore(text);
    return bytes;
}
