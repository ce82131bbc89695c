/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/take.h"

#include <errno.h>
#include <limits.h>

#include "base/lock.h"
#include "client/cache/cache.h"
#include "client/core/deferred.h"

/* Of small pieces that are taken together (BIN_BATCH). */
#define BATCH_BYTES (64 * KIB)
/* How often other threads' caches are emptied for a stream heap until it grows, or the decay looks at it:
 * often enough that what lies idle there is found, seldom enough that a stream heap whose threads hand memory
 * to each other soon has what it takes. Memory for larger requests is always looked for first. */
#define COLLECTS_MAX       2u
#define COLLECTS_BYTES_MAX (128 * KIB)
/* How many deferred pieces a miss gives to its stream heap's heap: so many loads and frees, a few
 * microseconds. */
#define SETTLE_MAX 64u

/* Whether threads keep nothing of it. */
static bool pool_is_tight(const struct stream_heap *stream_heap) {
    return shortage_is_tight(&stream_heap->owner->shortage, stream_heap->pool);
}

static uint64_t needed_bytes(uint64_t size_bytes, bool is_tight) {
    return is_tight ? heap_round_up(size_bytes) : size_class_round(size_bytes);
}

uint64_t cache_needs(const struct stream_heap *stream_heap, uint64_t size_bytes) {
    return needed_bytes(size_bytes, pool_is_tight(stream_heap));
}

/* From the process's heap. Small pieces for the next requests come along. */
static int take_from_stream_heap(struct thread_bins *own, unsigned size_class, uint64_t size_bytes,
                                 struct piece **ret_piece) {
    struct piece *more[BIN_BATCH];
    struct stream_heap *stream_heap = own->stream_heap;
    bool is_tight = pool_is_tight(stream_heap);
    uint64_t rounded = needed_bytes(size_bytes, is_tight);
    unsigned count = 0;

    bool is_closed = core_pool_lock_heap(stream_heap);
    /* The piece that lies in this bin may be just what is missing to a longer range. */
    if (size_class >= SIZE_CLASS_SINGLE)
        bin_flush_locked(&own->bins[own->single_class], stream_heap);
    if (stream_heap->deferred_bytes > 0)
        deferred_settle_locked(stream_heap, SETTLE_MAX);
    int r = stream_heap_take_locked(stream_heap, rounded, true, ret_piece);
    while (r == 0 && size_class < SIZE_CLASS_SINGLE && count + 1 < BIN_BATCH &&
           (count + 1) * rounded < BATCH_BYTES && !is_tight &&
           stream_heap_take_locked(stream_heap, rounded, false, &more[count]) == 0)
        count++;
    if (is_closed && r == 0)
        target_note_pass_locked(stream_heap->core_pool);
    core_pool_unlock_heap(stream_heap, is_closed);
    while (count > 0)
        thread_bins_put(own, size_class, more[--count]);
    return r;
}

/* Gives the stream heap what lies in this thread's bins and in the depot. */
static void empty_into_stream_heap(struct thread_bins *own) {
    struct stream_heap *stream_heap = own->stream_heap;

    thread_bins_flush(own);
    pthread_mutex_lock(&stream_heap->lock);
    depot_flush_locked(stream_heap, false);
    deferred_settle_locked(stream_heap, UINT_MAX);
    pthread_mutex_unlock(&stream_heap->lock);
}

/* From what this thread has at hand: its bin, what others put into the depot, and the stream heap. Pieces in
 * other bins and in the depot are gathered before the stream heap grows. */
static int take_at_hand(struct thread_bins *own, uint64_t size_bytes, struct piece **ret_piece) {
    unsigned size_class = size_class_of(size_bytes);

    /* Nothing of a tight pool comes from the depot into a bin: the rest of it would stay there. */
    struct piece *piece =
        pool_is_tight(own->stream_heap) ? NULL : thread_bins_take(own, size_class, size_bytes);
    if (piece != NULL) {
        *ret_piece = piece;
        return 0;
    }
    int r = take_from_stream_heap(own, size_class, size_bytes, ret_piece);
    if (r == -ENOSPC) {
        empty_into_stream_heap(own);
        r = take_from_stream_heap(own, size_class, size_bytes, ret_piece);
    }
    return r;
}

/* The stream heap that the fast paths try next, unless its pool is tight. Inside, so that a shortage that
 * begins comes by after this. */
static void use_bins(struct thread_cache *thread, struct thread_bins *own) {
    own->touched = true;
    thread->last = pool_is_tight(own->stream_heap) ? NULL : own;
}

struct thread_bins *take_bins(struct thread_cache *thread, struct stream_heap *stream_heap) {
    struct thread_bins *own = thread_cache_find(thread, stream_heap);
    if (own == NULL)
        own = thread_cache_add(thread, stream_heap);
    if (own != NULL)
        use_bins(thread, own);
    return own;
}

static void count_taken(struct thread_bins *own, const struct piece *piece, bool has_asked) {
    count_up(has_asked ? &own->counters->misses : &own->counters->hits, 1);
    count_up(&own->counters->taken_bytes, piece->capacity_bytes);
}

int take_piece(struct thread_cache *thread, struct stream_heap *stream_heap, uint64_t size_bytes,
               bool has_asked, struct piece **ret_piece) {
    thread_cache_enter(thread);
    struct thread_bins *own = take_bins(thread, stream_heap);
    int r = own == NULL ? -ENOMEM : take_at_hand(own, size_bytes, ret_piece);
    if (r == 0)
        count_taken(own, *ret_piece, has_asked);
    thread_cache_leave(thread);
    return r;
}

void take_count(struct thread_cache *thread, struct stream_heap *stream_heap, const struct piece *piece) {
    struct core_pool *pool = stream_heap->core_pool;

    if (core_pool_waits(pool)) {
        pthread_mutex_lock(&pool->lock);
        target_note_pass_locked(pool);
        pthread_mutex_unlock(&pool->lock);
    }
    if (thread == NULL)
        return;
    thread_cache_enter(thread);
    struct thread_bins *own = take_bins(thread, stream_heap);
    if (own != NULL)
        count_taken(own, piece, true);
    thread_cache_leave(thread);
}

bool cache_take(struct cache *cache, uint32_t pool, uint64_t size_bytes, const void *stream,
                struct gpupool_buffer *ret_buffer) {
    struct thread_cache *thread = client_thread()->caches;
    struct piece *piece;
    int r = -ENOSPC;

    if (thread == NULL || atomic_load_explicit(&thread->owner, memory_order_relaxed) != cache)
        return false;
    thread_cache_enter(thread);
    struct thread_bins *own = thread->all;
    while (own != NULL && !cache_is_stream_heap(own->stream_heap, pool, stream))
        own = own->next;
    if (own != NULL) {
        use_bins(thread, own);
        r = take_at_hand(own, size_bytes, &piece);
        if (r == 0)
            count_taken(own, piece, false);
    }
    thread_cache_leave(thread);
    if (r == 0)
        cache_fill(ret_buffer, piece, size_bytes);
    return r == 0;
}

bool take_may_collect(struct stream_heap *stream_heap, uint64_t size_bytes) {
    pthread_mutex_lock(&stream_heap->lock);
    bool may = size_bytes > COLLECTS_BYTES_MAX || stream_heap->collects < COLLECTS_MAX;
    stream_heap->collects++;
    pthread_mutex_unlock(&stream_heap->lock);
    return may;
}
