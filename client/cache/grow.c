/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/grow.h"

#include <errno.h>
#include <limits.h>

#include "base/clock.h"
#include "client/cache/arena_grow.h"
#include "client/cache/cache.h"
#include "client/cache/give_back.h"
#include "client/core/arena.h"
#include "client/core/deferred.h"
#include "client/core/extent_size.h"
#include "client/session/error.h"
#include "client/session/lease.h"
#include "client/session/session.h"

/* Memory that was just released on a stream which is through with it is there after 4 us (H200), sooner than
 * an answer from the daemon: so long is looked at it first. */
#define MOMENT_NS (10 * NS_PER_US)
/* Fences that a stream is made to wait for at a time. */
#define ORDER_MAX 32u
/* For a request that does not wait: the fences of idle streams are seen by a daemon that looks every
 * millisecond. */
#define GRACE_NS (3 * NS_PER_MS)
/* For a request that does not wait, and for which segments were closed: freeing these and making another. */
#define GROWTH_NS (20 * NS_PER_MS)

/* Where the daemon grants less than that of what a stream heap should have more of, the pool is nearly full.
 */
#define TIGHT_SHARE 4u
/* Longer pieces fill more slots of an arena than they keep from other uses. */
#define LENT_SLOTS 2u

/* Looks for a moment whether deferred pieces become ready. */
static bool look(struct stream_heap *stream_heap) {
    bool ready = false, any;
    uint64_t end_ns = clock_now_ns() + MOMENT_NS;

    do {
        pthread_mutex_lock(&stream_heap->lock);
        any = stream_heap->deferred_bytes > 0;
        ready = any && deferred_settle_locked(stream_heap, UINT_MAX);
        pthread_mutex_unlock(&stream_heap->lock);
    } while (any && !ready && clock_now_ns() < end_ns);
    return ready;
}

/* Takes what the request needs. In a target only this finds what was leased for it. NULL: there is none. */
static struct piece *take_leased_locked(struct extent *extent, const char *memory, uint64_t needed) {
    struct piece *piece;
    int r = extent->span->is_closed
                ? stream_heap_take_at_locked(extent, (uint64_t)(memory - extent->memory), needed, &piece)
                : stream_heap_take_locked(extent->stream_heap, needed, true, &piece);

    return r < 0 ? NULL : piece;
}

/* Adds what was leased for a request to the stream heap: to an extent that it continues, else as one of its
 * own. *ret_piece gets what the request needs of it, before another thread does; NULL: nothing. ret_piece may
 * be NULL. */
static int add_extent(struct cache *cache, struct stream_heap *stream_heap, uint64_t needed,
                      const struct grant *grant, struct piece **ret_piece) {
    enum stream_heap_half heap = stream_heap_half_of(needed);
    const struct segment_view segment = segment_view_of(grant->segment);
    const struct proto_lease *lease = &grant->lease;
    char *memory = grant->memory;
    uint64_t target_bytes;
    int r = 0;

    pthread_mutex_lock(&stream_heap->core_pool->lock);
    pthread_mutex_lock(&stream_heap->lock);
    bool is_kept = target_find_locked(stream_heap->core_pool, memory, &target_bytes);
    struct extent *extent =
        stream_heap_neighbour_locked(stream_heap, heap, grant->segment, memory, lease->capacity_bytes);
    /* The MERGE is in the outbox before another thread can release a part of what was merged. It is sent when
     * the lock is free: a daemon that reads slowly does not keep other threads from the stream heap. */
    if (extent != NULL &&
        lease_merge_put(cache->session, extent->lending.lease, extent->lending.generation, lease)) {
        stream_heap_fill_locked(extent, memory, lease->capacity_bytes);
    } else {
        r = stream_heap_add_extent_locked(stream_heap, heap, &segment, lease->lease, lease->generation,
                                          memory, lease->capacity_bytes);
        extent = r == 0 ? list_last(&stream_heap->extents, struct extent, link) : NULL;
    }
    if (r == 0 && ret_piece != NULL)
        *ret_piece = take_leased_locked(extent, memory, needed);
    if (r == 0 && is_kept)
        heap_close_span(extent->span);
    pthread_mutex_unlock(&stream_heap->lock);
    pthread_mutex_unlock(&stream_heap->core_pool->lock);
    connection_send_rest(&cache->session->connection);
    if (r == 0)
        return 0;
    lease_give_back(cache->session, lease);
    return error_no_memory();
}

/* Asks the daemon for an extent. */
static int ask(struct growth *growth, const struct proto_acquire *acquire, enum growth_step step) {
    growth->step = step;
    return asking_begin(&growth->asking, growth->cache->session, acquire);
}

/* Adds the extent that the daemon has granted to the stream heap. */
static int add_granted(struct growth *growth, struct piece **ret_piece) {
    struct cache *cache = growth->cache;
    struct stream_heap *stream_heap = growth->stream_heap;
    const struct proto_acquire *acquire = &growth->asking.acquire;
    const struct grant *grant = &growth->asking.grant;

    uint64_t granted_bytes = grant->lease.capacity_bytes;
    if (granted_bytes < acquire->size_bytes / TIGHT_SHARE)
        shortage_tighten(cache, stream_heap->pool);
    else if (granted_bytes > acquire->least_bytes && granted_bytes >= acquire->size_bytes &&
             shortage_is_tight(&cache->shortage, stream_heap->pool))
        shortage_loosen(cache, stream_heap->pool);
    return add_extent(cache, stream_heap, acquire->least_bytes, grant, ret_piece);
}

/* As much as the stream heap should have more of. Just what is needed, while a request of the process waits
 * in the pool: the rest would be cut for smaller requests, and that one could have it. */
static uint64_t wanted_bytes(struct stream_heap *stream_heap, uint64_t needed) {
    if (core_pool_waits(stream_heap->core_pool))
        return needed;
    pthread_mutex_lock(&stream_heap->lock);
    uint64_t wanted = extent_size_locked(stream_heap, needed);
    stream_heap->lent /= 2;
    pthread_mutex_unlock(&stream_heap->lock);
    return wanted;
}

/* Asks for as much as the stream heap should have more of. Growth of the pool is waited for, and nothing
 * else. */
static int ask_for_growth(struct growth *growth) {
    struct stream_heap *stream_heap = growth->stream_heap;
    uint64_t needed = cache_needs(stream_heap, growth->size_bytes);
    const struct proto_acquire acquire = {
        .pool = stream_heap->pool,
        .flags = PROTO_ACQUIRE_NO_RECLAIM | PROTO_ACQUIRE_PROBES, /* see is_refused() */
        .size_bytes = wanted_bytes(stream_heap, needed),
        .least_bytes = needed,
        .timeout_ns = clock_left_ns(growth->deadline_ns),
    };
    return ask(growth, &acquire, GROWTH_ASKS);
}

/* Makes the stream heap's stream wait, on the GPU, for the streams that its deferred pieces were released on,
 * and uses those at once. False: there was nothing to be had that way. */
static bool order_deferred(struct cache *cache, struct stream_heap *stream_heap) {
    struct fence fences[ORDER_MAX];
    unsigned ordered = 0;

    if (!cache_has_order(stream_heap))
        return false;
    pthread_mutex_lock(&stream_heap->lock);
    stream_heap->ordering++; /* they stay meanwhile */
    unsigned count = deferred_fences_locked(stream_heap, fences, ORDER_MAX);
    pthread_mutex_unlock(&stream_heap->lock);
    while (ordered < count && fence_order(cache->session, fences[ordered], (unsigned)stream_heap->device,
                                          stream_heap->stream) == 0)
        ordered++;
    pthread_mutex_lock(&stream_heap->lock);
    stream_heap->ordering--;
    for (unsigned i = 0; i < ordered; i++)
        deferred_order_locked(stream_heap, fences[i]);
    pthread_mutex_unlock(&stream_heap->lock);
    return ordered > 0;
}

static bool has_now(struct stream_heap *stream_heap, uint64_t needed) {
    pthread_mutex_lock(&stream_heap->lock);
    deferred_settle_locked(stream_heap, UINT_MAX);
    bool has = stream_heap_has_locked(stream_heap, needed);
    pthread_mutex_unlock(&stream_heap->lock);
    return has;
}

/* The pool has no room. True: this process had some for the stream heap. Else what is idle in it and could
 * serve the request in the daemon's hands is there, *ret_bytes of it. */
static bool collect(struct cache *cache, struct stream_heap *stream_heap, uint64_t needed,
                    uint64_t *ret_bytes) {
    *ret_bytes = 0;
    if (shortage_is_on(&cache->shortage, stream_heap->pool)) {
        if (has_now(stream_heap, needed))
            return true;
        give_back_stream_heap(cache, stream_heap);
        return false;
    }
    shortage_tighten(cache, stream_heap->pool);
    if (has_now(stream_heap, needed) || (order_deferred(cache, stream_heap) && has_now(stream_heap, needed)))
        return true;
    *ret_bytes = give_back_for_request(cache, stream_heap, needed);
    return has_now(stream_heap, needed);
}

/* A client whose purger runs answers the daemon's questions while a request waits. One without closes at once
 * what the daemon names, if nothing else helps its own request; so does one whose time would be over. */
static int close_before_waiting(struct cache *cache, const struct stream_heap *stream_heap, uint64_t needed,
                                uint64_t timeout_ns, bool *ret_any) {
    const bool has_purger = cache->purger.runs;

    *ret_any = false;
    return !has_purger || timeout_ns < GRACE_NS
               ? lease_close_idle(cache->session, stream_heap->pool, needed,
                                  has_purger && cache_is_busy(cache), ret_any)
               : 0;
}

/* Waits in the daemon's queue for just what is needed. */
static int ask_and_wait(struct growth *growth, uint64_t needed, uint64_t timeout_ns) {
    struct cache *cache = growth->cache;
    struct stream_heap *stream_heap = growth->stream_heap;
    struct proto_acquire acquire = {.pool = stream_heap->pool,
                                    .flags = growth->probe,
                                    .size_bytes = needed,
                                    .least_bytes = needed,
                                    .timeout_ns = timeout_ns};
    bool any_closed;

    if (!shortage_is_on(&cache->shortage, stream_heap->pool)) {
        acquire.flags |= cache->purger.reclaim == NULL ? PROTO_ACQUIRE_GAVE_BACK : 0;
    }
    int r = close_before_waiting(cache, stream_heap, needed, timeout_ns, &any_closed);
    if (any_closed && timeout_ns < GROWTH_NS)
        acquire.timeout_ns = GROWTH_NS;
    return r == 0 ? ask(growth, &acquire, GROWTH_WAITS) : r;
}

/* Whether memory that comes back may still serve. LIMIT: of leases, or of the user's quota. */
static bool is_refused(int error) {
    return error == GPUPOOL_E_EXHAUSTED || error == GPUPOOL_E_LIMIT;
}

/* The wait begins. */
static void begin_wait(struct growth *growth, uint64_t needed, bool is_of_segments) {
    struct core_pool *pool = growth->stream_heap->core_pool;

    pthread_mutex_lock(&pool->lock);
    core_pool_enter_locked(pool, &growth->waiter, needed, is_of_segments);
    pthread_mutex_unlock(&pool->lock);
}

/* The wait is over. */
static void end_wait(struct growth *growth) {
    struct core_pool *pool = growth->stream_heap->core_pool;

    pthread_mutex_lock(&pool->lock);
    core_pool_leave_locked(pool, &growth->waiter);
    pthread_mutex_unlock(&pool->lock);
    shortage_offer(growth->cache, growth->stream_heap, NULL);
}

/* Nothing is free, and the pool has no room for more. Meanwhile each release looks whether it serves this
 * request. */
static int wait_for_room(struct growth *growth) {
    struct cache *cache = growth->cache;
    struct stream_heap *stream_heap = growth->stream_heap;
    uint64_t bytes, needed = heap_round_up(growth->size_bytes);
    int r = 0;

    begin_wait(growth, needed, false);
    if (!collect(cache, stream_heap, needed, &bytes)) {
        uint64_t left_ns = clock_left_ns(growth->deadline_ns);
        r = ask_and_wait(growth, needed, bytes > 0 && left_ns < GRACE_NS ? GRACE_NS : left_ns);
    }
    if (r != ASKING_WAITS)
        end_wait(growth);
    return r;
}

/* Waits in the daemon's queue for all segments that a request needs. The caller has given back what the
 * process had for it. */
static int wait_for_segments(struct growth *growth, uint64_t needed, uint64_t least_ns) {
    struct cache *cache = growth->cache;
    struct stream_heap *stream_heap = growth->stream_heap;
    uint64_t left_ns = clock_left_ns(growth->deadline_ns);
    struct proto_acquire_segments acquire = {.pool = stream_heap->pool,
                                             .flags = growth->probe,
                                             .timeout_ns = left_ns < least_ns ? least_ns : left_ns};
    bool any_closed;

    int r = close_before_waiting(cache, stream_heap, needed, acquire.timeout_ns, &any_closed);
    if (any_closed && acquire.timeout_ns < GROWTH_NS)
        acquire.timeout_ns = GROWTH_NS;
    growth->step = GROWTH_WAITS_FOR_SEGMENTS;
    return r == 0 ? arena_wait_begin(&growth->work, cache, stream_heap, needed, &acquire, &growth->asking)
                  : r;
}

/* Takes one range that is free now. The pool has no room, but a client without a cache may have released more
 * in one segment than the arena can take from there. */
static int ask_for_range(struct growth *growth) {
    uint64_t needed = heap_round_up(growth->size_bytes);
    const struct proto_acquire acquire = {
        .pool = growth->stream_heap->pool,
        .flags = PROTO_ACQUIRE_NO_RECLAIM | PROTO_ACQUIRE_PROBES,
        .size_bytes = needed,
        .least_bytes = needed,
    };
    return ask(growth, &acquire, GROWTH_ASKS_FOR_RANGE);
}

/* The pool has no segments for the request's arena. Meanwhile each release gives the daemon the segments that
 * become free. */
static int collect_segments(struct growth *growth) {
    struct cache *cache = growth->cache;
    struct stream_heap *stream_heap = growth->stream_heap;
    uint64_t bytes, needed = heap_round_up(growth->size_bytes);
    int r = 0;

    begin_wait(growth, needed, true);
    if (!collect(cache, stream_heap, needed, &bytes)) {
        bytes += give_back_stream_heap(cache, stream_heap);
        r = wait_for_segments(growth, needed, bytes > 0 ? GRACE_NS : 0);
    }
    if (r != ASKING_WAITS)
        end_wait(growth);
    return r;
}

/* Begins to serve a request from its arena. may_grow: with new segments where moves do not pay. */
static int begin_in_arena(struct growth *growth, bool may_grow, struct piece **ret_piece) {
    struct stream_heap *stream_heap = growth->stream_heap;
    const struct proto_acquire_segments acquire = {.pool = stream_heap->pool,
                                                   .flags = PROTO_ACQUIRE_NO_RECLAIM | PROTO_ACQUIRE_PROBES,
                                                   .timeout_ns = clock_left_ns(growth->deadline_ns)};

    growth->step = GROWTH_ASKS_FOR_SEGMENTS;
    return arena_grow_begin(&growth->work, growth->cache, stream_heap, heap_round_up(growth->size_bytes),
                            may_grow, &acquire, &growth->asking, ret_piece);
}

/* How it went. Where the pool has no new segments, idle ones are moved, if they can be; else the pool would
 * not grow for a range either. */
static int end_in_arena(struct growth *growth, int r, struct piece **ret_piece) {
    if (is_refused(r) && arena_grow_was_refused(&growth->work))
        r = begin_in_arena(growth, false, ret_piece);
    return is_refused(r) ? ask_for_range(growth) : r;
}

/* As growth_begin(), from an arena. */
static int grow_arena(struct growth *growth, struct piece **ret_piece) {
    enum shortage_room room = shortage_room_of(&growth->cache->shortage, growth->stream_heap->pool);

    if (room == SHORTAGE_SHORT)
        return collect_segments(growth);
    return end_in_arena(growth, begin_in_arena(growth, room == SHORTAGE_ROOMY, ret_piece), ret_piece);
}

/* Whether the stream heap grows for pieces that will be split off, as others were of late. The idle memory
 * beside those goes back first. */
static bool begin_to_lend(struct cache *cache, struct stream_heap *stream_heap) {
    pthread_mutex_lock(&stream_heap->lock);
    bool lends = stream_heap->lent > 0;
    pthread_mutex_unlock(&stream_heap->lock);
    if (lends)
        give_back_lent(cache, stream_heap);
    return lends;
}

/* Whether a piece that will be split off is leased as one range, though there is an arena. There it would be
 * a row, and keep the segments that it begins and ends in from other uses. Not where the arena has as much
 * free memory. */
static bool is_lent_as_range(struct stream_heap *stream_heap, uint64_t size_bytes) {
    pthread_mutex_lock(&stream_heap->lock);
    bool is_range = size_bytes <= LENT_SLOTS * stream_heap->arena->slot_bytes &&
                    size_bytes > stream_heap->heaps[STREAM_HEAP_LARGE].free_bytes;
    pthread_mutex_unlock(&stream_heap->lock);
    return is_range;
}

int growth_begin(struct growth *growth, struct cache *cache, struct stream_heap *stream_heap,
                 uint64_t size_bytes, uint64_t deadline_ns, uint32_t probe, struct piece **ret_piece) {
    growth->cache = cache;
    growth->stream_heap = stream_heap;
    growth->size_bytes = size_bytes;
    growth->deadline_ns = deadline_ns;
    growth->probe = probe;
    *ret_piece = NULL;
    if (look(stream_heap))
        return 0;
    if (shortage_is_on(&cache->shortage, stream_heap->pool))
        shortage_end_if_over(cache, stream_heap->pool);
    bool is_short = shortage_is_on(&cache->shortage, stream_heap->pool);
    bool lends = !is_short && begin_to_lend(cache, stream_heap);
    if (arena_serves(cache, stream_heap, heap_round_up(size_bytes)) &&
        !(lends && is_lent_as_range(stream_heap, size_bytes)))
        return grow_arena(growth, ret_piece);
    return is_short ? wait_for_room(growth) : ask_for_growth(growth);
}

int growth_answer(struct growth *growth, int r, struct piece **ret_piece) {
    *ret_piece = NULL;
    r = asking_answer(&growth->asking, r);
    if (r == ASKING_WAITS)
        return r;
    switch (growth->step) {
    case GROWTH_ASKS:
        if (is_refused(r) &&
            arena_serves(growth->cache, growth->stream_heap, heap_round_up(growth->size_bytes)))
            return grow_arena(growth, ret_piece); /* what the pool has may lie in pieces */
        if (is_refused(r))
            return wait_for_room(growth);
        break;
    case GROWTH_ASKS_FOR_SEGMENTS:
        return end_in_arena(growth, arena_grow_end(&growth->work, r, ret_piece), ret_piece);
    case GROWTH_ASKS_FOR_RANGE:
        if (is_refused(r))
            return collect_segments(growth);
        break;
    case GROWTH_WAITS_FOR_SEGMENTS:
        r = arena_wait_end(&growth->work, r, ret_piece);
        end_wait(growth);
        return r;
    case GROWTH_WAITS:
        break;
    }
    if (r == 0)
        r = add_granted(growth, ret_piece);
    if (growth->step == GROWTH_WAITS)
        end_wait(growth);
    return r;
}

void growth_forget(struct growth *growth) {
    if (growth->step == GROWTH_ASKS_FOR_SEGMENTS || growth->step == GROWTH_WAITS_FOR_SEGMENTS)
        arena_work_free(&growth->work);
}

int stream_heap_add_lease(struct cache *cache, struct stream_heap *stream_heap, const struct grant *grant) {
    return add_extent(cache, stream_heap, grant->lease.capacity_bytes, grant, NULL);
}
