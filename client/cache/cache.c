/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/cache.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/lock.h"
#include "client/cache/collect.h"
#include "client/cache/deferred.h"
#include "client/cache/give_back.h"
#include "client/cache/grow.h"
#include "client/session/error.h"
#include "client/session/lease.h"
#include "client/session/session.h"

/* Small pieces that a miss brings along for the next ones. */
#define BATCH       8u
#define BATCH_BYTES (64 * KIB)
/* How often other threads' caches are emptied for a lane until it grows, or the decay looks at it: often
 * enough that what lies idle there is found, seldom enough that a lane whose threads hand memory to each
 * other soon has what it takes. Memory for larger requests is always looked for first. */
#define COLLECTS_MAX       2u
#define COLLECTS_BYTES_MAX (128 * KIB)
/* How many deferred pieces a miss gives to its lane's heap: so many loads and frees, a few microseconds. */
#define SETTLE_MAX 64u
/* Of what a lane has: with so much of it free its pool is not tight any more. */
#define ROOMY_SHARE 4u

void cache_init(struct cache *cache, struct session *session) {
    cache->session = session;
    pthread_mutex_init(&cache->lanes_lock, NULL);
    pthread_mutex_init(&cache->give_lock, NULL);
    list_init(&cache->lanes);
    list_init(&cache->threads);
    counters_init(&cache->counters);
    shortage_init(&cache->shortage);
    keeper_init(&cache->keeper);
}

void cache_forget(struct cache *cache) {
    list_for_each_safe(position, &cache->threads) {
        struct thread_cache *thread = container_of(position, struct thread_cache, link);
        list_remove(position);
        thread->owner = NULL; /* of this thread, or a copy of one that is not here */
        thread->lanes = thread->last = NULL;
    }
    keeper_forget(&cache->keeper);
    cache_deinit(cache);
}

void cache_deinit(struct cache *cache) {
    list_for_each_safe(position, &cache->lanes) {
        list_remove(position);
        lane_free(container_of(position, struct lane, link));
    }
    free(cache->pending);
    keeper_deinit(&cache->keeper);
    counters_deinit(&cache->counters);
    shortage_deinit(&cache->shortage);
    pthread_mutex_destroy(&cache->give_lock);
    pthread_mutex_destroy(&cache->lanes_lock);
}

/* --- lanes --- */

static struct lane *find_lane(struct cache *cache, uint32_t pool, const void *stream) {
    list_for_each(position, &cache->lanes) {
        struct lane *lane = container_of(position, struct lane, link);
        if (lane->pool == pool && lane->stream == stream)
            return lane;
    }
    return NULL;
}

int cache_lane(struct cache *cache, uint32_t pool_id, void *stream, struct lane **ret_lane) {
    struct pool pool;
    int device = -1;

    int r = pools_find(cache->session, pool_id, &pool);
    if (r < 0)
        return r;
    if (pool.kind == PROTO_POOL_HOST)
        stream = GPUPOOL_NO_STREAM;
    else
        device = devices_find(&cache->session->devices, pool.uuid);
    pthread_mutex_lock(&cache->lanes_lock);
    struct lane *lane = find_lane(cache, pool_id, stream);
    if (lane == NULL) {
        lane = lane_new(cache, pool_id, pool.kind, device, stream);
        if (lane != NULL) {
            lane->counters = &cache->counters;
            list_append(&cache->lanes, &lane->link);
        }
    }
    pthread_mutex_unlock(&cache->lanes_lock);
    if (lane == NULL)
        return error_no_memory();
    *ret_lane = lane;
    return 0;
}

/* Whether nothing is kept in this lane. */
static bool lane_is_short(const struct lane *lane) {
    return shortage_is_on(&lane->owner->shortage, lane->pool);
}

/* Whether threads keep nothing of it. */
static bool lane_is_tight(const struct lane *lane) {
    return shortage_is_tight(&lane->owner->shortage, lane->pool);
}

uint64_t cache_needs(const struct lane *lane, uint64_t size_bytes) {
    return lane_is_tight(lane) ? heap_round_up(size_bytes) : size_class_round(size_bytes);
}

/* --- taking --- */

/* From the process's heap. Small pieces for the next requests come along. */
static int take_from_lane(struct thread_lane *own, unsigned size_class, uint64_t size_bytes,
                          struct piece **ret_piece) {
    uint64_t rounded = cache_needs(own->lane, size_bytes);
    struct piece *more[BATCH];
    struct lane *lane = own->lane;
    bool is_tight = lane_is_tight(lane);
    unsigned count = 0;

    lock_busy(&lane->lock);
    /* The piece that lies in this bin may be just what is missing to a longer range. */
    if (size_class >= SIZE_CLASS_SINGLE)
        bin_flush_locked(&own->bins[own->single_class], lane);
    if (lane->deferred_bytes > 0)
        deferred_settle_locked(lane, SETTLE_MAX);
    int r = lane_take_locked(lane, rounded, true, ret_piece);
    while (r == 0 && size_class < SIZE_CLASS_SINGLE && count + 1 < BATCH &&
           (count + 1) * rounded < BATCH_BYTES && !is_tight &&
           lane_take_locked(lane, rounded, false, &more[count]) == 0)
        count++;
    pthread_mutex_unlock(&lane->lock);
    while (count > 0)
        thread_lane_put(own, size_class, more[--count]);
    return r;
}

/* Gives the lane what lies in this thread's bins and in the transfer. */
static void empty_into_lane(struct thread_lane *own) {
    struct lane *lane = own->lane;

    thread_lane_flush(own);
    pthread_mutex_lock(&lane->lock);
    lane_flush_transfer_locked(lane, false);
    deferred_settle_locked(lane, UINT_MAX);
    pthread_mutex_unlock(&lane->lock);
}

/* From what this thread has at hand: its bin, what others put into the transfer, and the lane. What lies in
 * other bins and in the transfer is gathered before the lane grows. */
static int take_at_hand(struct thread_lane *own, uint64_t size_bytes, struct piece **ret_piece) {
    unsigned size_class = size_class_of(size_bytes);

    /* Nothing of a tight pool comes from the transfer into a bin: the rest of it would stay there. */
    struct piece *piece = lane_is_tight(own->lane) ? NULL : thread_lane_take(own, size_class, size_bytes);
    if (piece != NULL) {
        *ret_piece = piece;
        return 0;
    }
    int r = take_from_lane(own, size_class, size_bytes, ret_piece);
    if (r == -ENOSPC) {
        empty_into_lane(own);
        r = take_from_lane(own, size_class, size_bytes, ret_piece);
    }
    return r;
}

/* The lane that the fast paths try next, unless its pool is tight. Inside, so that a shortage that begins
 * comes by after this. */
static void use_lane(struct thread_cache *thread, struct thread_lane *own) {
    own->touched = true;
    thread->last = lane_is_tight(own->lane) ? NULL : own;
}

static struct thread_lane *own_lane(struct thread_cache *thread, struct lane *lane) {
    struct thread_lane *own = thread_cache_find(thread, lane);
    if (own == NULL)
        own = thread_cache_add(thread, lane);
    if (own != NULL)
        use_lane(thread, own);
    return own;
}

static void count_taken(struct thread_lane *own, const struct piece *piece, bool asked) {
    count_up(asked ? &own->counters->misses : &own->counters->hits, 1);
    count_up(&own->counters->taken_bytes, piece->capacity_bytes);
}

/* asked: the daemon, on the way. */
static int take(struct thread_cache *thread, struct lane *lane, uint64_t size_bytes, bool asked,
                struct piece **ret_piece) {
    thread_cache_enter(thread);
    struct thread_lane *own = own_lane(thread, lane);
    int r = own == NULL ? -ENOMEM : take_at_hand(own, size_bytes, ret_piece);
    if (r == 0)
        count_taken(own, *ret_piece, asked);
    thread_cache_leave(thread);
    return r;
}

/* Counts a piece that came straight from the daemon. */
static void count_grown(struct thread_cache *thread, struct lane *lane, const struct piece *piece) {
    thread_cache_enter(thread);
    struct thread_lane *own = own_lane(thread, lane);
    if (own != NULL)
        count_taken(own, piece, true);
    thread_cache_leave(thread);
}

bool cache_take(struct cache *cache, uint32_t pool, uint64_t size_bytes, const void *stream,
                struct gpupool_buffer *ret_buffer) {
    struct thread_cache *thread = client_thread.caches;
    struct piece *piece;
    int r = -ENOSPC;

    if (thread == NULL || atomic_load_explicit(&thread->owner, memory_order_relaxed) != cache)
        return false;
    thread_cache_enter(thread);
    struct thread_lane *own = thread->lanes;
    while (own != NULL && !cache_is_lane(own->lane, pool, stream))
        own = own->next;
    if (own != NULL) {
        use_lane(thread, own);
        r = take_at_hand(own, size_bytes, &piece);
        if (r == 0)
            count_taken(own, piece, false);
    }
    thread_cache_leave(thread);
    if (r == 0)
        cache_fill(ret_buffer, piece, size_bytes);
    return r == 0;
}

/* Whether other threads' caches are looked into before the lane grows. For small pieces not every time: what
 * lies there is on its way from one thread to another where one takes and another gives back, and with a
 * little more memory it is there when it is needed. */
static bool lane_may_collect(struct lane *lane, uint64_t size_bytes) {
    pthread_mutex_lock(&lane->lock);
    bool may = size_bytes > COLLECTS_BYTES_MAX || lane->collects < COLLECTS_MAX;
    lane->collects++;
    pthread_mutex_unlock(&lane->lock);
    return may;
}

int cache_acquire(struct cache *cache, uint32_t pool, uint64_t size_bytes, void *stream, uint64_t timeout_ns,
                  uint32_t probe, struct gpupool_buffer *ret_buffer) {
    struct piece *piece = NULL;
    struct lane *lane = NULL;
    uint64_t deadline_ns;

    int r = cache_lane(cache, pool, stream, &lane);
    if (r < 0)
        return r;
    struct thread_cache *thread = thread_cache_get(cache, &cache->threads);
    r = thread == NULL ? -ENOMEM : take(thread, lane, size_bytes, false, &piece);
    if (r == -ENOSPC && !lane_is_tight(lane) && lane_may_collect(lane, size_bytes)) {
        cache_collect(cache, thread, lane, false);
        r = take(thread, lane, size_bytes, false, &piece);
    }
    deadline_ns = r == -ENOSPC ? clock_deadline_ns(clock_now_ns(), timeout_ns) : 0;
    while (r == -ENOSPC) { /* another thread may be quicker with what was found here */
        r = lane_grow(cache, lane, size_bytes, deadline_ns, probe, &piece);
        if (r < 0)
            return r;
        if (piece != NULL)
            count_grown(thread, lane, piece);
        else
            r = take(thread, lane, size_bytes, true, &piece);
    }
    if (r < 0)
        return error_no_memory();
    cache_fill(ret_buffer, piece, size_bytes);
    return 0;
}

/* Puts a piece into this thread's bin of its class. From SIZE_CLASS_SINGLE on, the bin that had pieces until
 * now is emptied first. */
static void put_at_hand(struct thread_lane *own, struct piece *piece) {
    if (piece->size_class >= SIZE_CLASS_SINGLE && piece->size_class != own->single_class) {
        bin_flush(&own->bins[own->single_class], own->lane);
        own->single_class = piece->size_class;
    }
    thread_lane_put(own, piece->size_class, piece);
}

/* Whether so much of the lane is free that threads may keep pieces at hand again. */
static bool is_roomy_locked(const struct lane *lane) {
    return lane_free_bytes_locked(lane) >= lane_held_bytes_locked(lane) / ROOMY_SHARE;
}

void cache_put(struct cache *cache, struct piece *piece) {
    struct thread_cache *thread = thread_cache_get(cache, &cache->threads);
    struct thread_lane *own = NULL;
    struct lane *lane = piece->lane;
    bool is_tight, is_short, is_roomy = false;

    piece->generation++;
    if (lane_is_short(lane))
        shortage_end_if_over(cache, lane->pool);
    if (thread != NULL) {
        thread_cache_enter(thread);
        own = own_lane(thread, lane);
    }
    is_tight = lane_is_tight(lane); /* inside: else a shortage that begins would not find the piece */
    is_short = lane_is_short(lane);
    if (own != NULL)
        count_up(&own->counters->given_bytes, piece->capacity_bytes);
    if (own != NULL && !is_tight) {
        put_at_hand(own, piece);
    } else if (!is_short) {
        lock_busy(&lane->lock);
        lane_give_locked(lane, piece);
        is_roomy = is_roomy_locked(lane);
        pthread_mutex_unlock(&lane->lock);
    }
    if (thread != NULL)
        thread_cache_leave(thread);
    if (is_short)
        give_back_piece(cache, piece);
    else if (is_tight)
        shortage_offer(cache, lane);
    if (is_tight && is_roomy)
        shortage_loosen(cache, lane->pool);
}

void cache_count_given(struct cache *cache, struct lane *lane, uint64_t size_bytes) {
    struct thread_cache *thread = thread_cache_get(cache, &cache->threads);

    if (thread == NULL)
        return;
    thread_cache_enter(thread);
    struct thread_lane *own = thread_cache_find(thread, lane);
    if (own == NULL)
        own = thread_cache_add(thread, lane);
    if (own != NULL)
        count_up(&own->counters->given_bytes, size_bytes);
    thread_cache_leave(thread);
}

/* Counts memory that was put behind a fence, and lets requests that wait have it. */
static void deferred_was_given(struct cache *cache, struct lane *lane, uint64_t size_bytes) {
    cache_count_given(cache, lane, size_bytes);
    if (lane_is_short(lane))
        give_back_lane(cache, lane);
    else if (lane_is_tight(lane))
        shortage_offer(cache, lane);
}

int cache_put_behind(struct cache *cache, struct piece *piece, struct fence fence) {
    struct lane *lane = piece->lane;
    uint64_t given_bytes = piece->capacity_bytes;

    if (fence_is_ready(cache->session, fence)) {
        cache_put(cache, piece);
        return 0;
    }
    pthread_mutex_lock(&lane->lock);
    int r = deferred_reserve_locked(lane, fence);
    if (r == 0) {
        piece->generation++;
        deferred_push_locked(lane, piece, fence);
    }
    pthread_mutex_unlock(&lane->lock);
    if (r < 0)
        return error_no_memory();
    deferred_was_given(cache, lane, given_bytes);
    return 0;
}

int cache_shrink_behind(struct cache *cache, struct piece *piece, uint64_t kept_bytes, struct fence fence) {
    struct lane *lane = piece->lane;
    uint64_t given_bytes = piece->capacity_bytes - kept_bytes;
    struct piece *tail;
    int r = 0;

    pthread_mutex_lock(&lane->lock);
    if (fence_is_ready(cache->session, fence)) {
        r = lane_shrink_locked(piece, kept_bytes);
    } else {
        r = deferred_reserve_locked(lane, fence);
        if (r == 0)
            r = lane_cut_locked(piece, kept_bytes, &tail);
        if (r == 0)
            deferred_push_locked(lane, tail, fence);
    }
    pthread_mutex_unlock(&lane->lock);
    if (r < 0)
        return error_no_memory();
    deferred_was_given(cache, lane, given_bytes);
    return 0;
}

/* The program may have destroyed the stream of a lane that holds nothing: the driver crashes on its handle. */
static bool lane_stream_is_busy(const struct gpu *gpu, struct lane *lane) {
    if (!cache_has_order(lane))
        return false;
    pthread_mutex_lock(&lane->lock);
    bool is_empty = lane_held_bytes_locked(lane) == 0;
    pthread_mutex_unlock(&lane->lock);
    return !is_empty && devices_stream_is_busy(gpu, (unsigned)lane->device, lane->stream);
}

bool cache_is_busy(struct cache *cache) {
    const struct gpu *gpu;
    bool busy = false;

    if (devices_gpu(&cache->session->devices, &gpu) < 0 || gpu == NULL)
        return false;
    pthread_mutex_lock(&cache->lanes_lock);
    list_for_each(position, &cache->lanes) {
        struct lane *lane = container_of(position, struct lane, link);
        busy = busy || lane_stream_is_busy(gpu, lane);
    }
    pthread_mutex_unlock(&cache->lanes_lock);
    return busy;
}

/* --- start and stop --- */

int cache_start(struct cache *cache, uint64_t decay_ns, int reclaim_fd, bool with_thread) {
    thread_cache_prepare();
    counters_set_page(&cache->counters, cache->session->page.memory);
    int r = keeper_start(cache, decay_ns, reclaim_fd, with_thread);
    if (r < 0)
        return r;
    cache->enabled = true;
    return 0;
}

void cache_stop(struct cache *cache) {

    keeper_stop(&cache->keeper);
    thread_caches_detach(&cache->threads);
    cache->enabled = false;
}
