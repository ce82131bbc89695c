/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/grow.h"

#include <errno.h>
#include <limits.h>

#include "base/clock.h"
#include "client/cache/arena_grow.h"
#include "client/cache/cache.h"
#include "client/cache/deferred.h"
#include "client/cache/give_back.h"
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

/* Adds what was leased for a request to the stream heap: to an extent that it continues, else as one of its
 * own. *ret_piece gets what the request needs of it, before another thread does; NULL: nothing. ret_piece may
 * be NULL. */
static int add_extent(struct cache *cache, struct stream_heap *stream_heap, uint64_t needed,
                      const struct grant *grant, struct piece **ret_piece) {
    enum stream_heap_half heap = stream_heap_half_of(needed);
    const struct proto_lease *lease = &grant->lease;
    char *memory = grant->memory;
    int r = 0;

    pthread_mutex_lock(&stream_heap->lock);
    struct extent *extent =
        stream_heap_neighbour_locked(stream_heap, heap, grant->segment, memory, lease->capacity_bytes);
    if (extent != NULL &&
        lease_merge_one_way(cache->session, extent->lending.lease, extent->lending.generation, lease) == 0)
        stream_heap_fill_locked(extent, memory, lease->capacity_bytes);
    else
        r = stream_heap_add_extent_locked(stream_heap, heap, grant->segment, lease->lease, lease->generation,
                                          memory, lease->capacity_bytes);
    if (r == 0 && ret_piece != NULL && stream_heap_take_locked(stream_heap, needed, true, ret_piece) < 0)
        *ret_piece = NULL;
    pthread_mutex_unlock(&stream_heap->lock);
    if (r == 0)
        return 0;
    lease_give_back(cache->session, lease);
    return error_no_memory();
}

/* Asks the daemon for an extent, and adds it to the stream heap. */
static int ask(struct cache *cache, struct stream_heap *stream_heap, const struct proto_acquire *acquire,
               struct piece **ret_piece) {
    struct grant grant;

    int r = lease_acquire(cache->session, acquire, &grant);
    if (r < 0)
        return r;
    uint64_t granted_bytes = grant.lease.capacity_bytes;
    if (granted_bytes < acquire->size_bytes / TIGHT_SHARE)
        shortage_tighten(cache, stream_heap->pool);
    else if (granted_bytes > acquire->least_bytes && granted_bytes >= acquire->size_bytes &&
             shortage_is_tight(&cache->shortage, stream_heap->pool))
        shortage_loosen(cache, stream_heap->pool);
    return add_extent(cache, stream_heap, acquire->least_bytes, &grant, ret_piece);
}

/* As much as the stream heap should have more of. */
static uint64_t wanted_bytes(struct stream_heap *stream_heap, uint64_t needed) {
    pthread_mutex_lock(&stream_heap->lock);
    uint64_t wanted = stream_heap_extent_bytes_locked(stream_heap, needed);
    pthread_mutex_unlock(&stream_heap->lock);
    return wanted;
}

/* Asks for as much as the stream heap should have more of. Growth of the pool is waited for, and nothing
 * else. */
static int ask_for_growth(struct cache *cache, struct stream_heap *stream_heap, uint64_t needed,
                          uint64_t deadline_ns, struct piece **ret_piece) {
    const struct proto_acquire acquire = {
        .pool = stream_heap->pool,
        .flags = PROTO_ACQUIRE_NO_RECLAIM | PROTO_ACQUIRE_PROBES, /* see is_refused() */
        .size_bytes = wanted_bytes(stream_heap, needed),
        .least_bytes = needed,
        .timeout_ns = clock_left_ns(deadline_ns),
    };
    return ask(cache, stream_heap, &acquire, ret_piece);
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
    *ret_bytes = give_back_pool(cache, stream_heap->pool, stream_heap);
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
static int ask_and_wait(struct cache *cache, struct stream_heap *stream_heap, uint64_t needed,
                        uint64_t timeout_ns, uint32_t probe, struct piece **ret_piece) {
    struct proto_acquire acquire = {.pool = stream_heap->pool,
                                    .flags = probe,
                                    .size_bytes = needed,
                                    .least_bytes = needed,
                                    .timeout_ns = timeout_ns};
    bool any_closed;

    if (!shortage_is_on(&cache->shortage, stream_heap->pool)) {
        acquire.size_bytes = wanted_bytes(stream_heap, needed);
        acquire.flags |= cache->purger.reclaim == NULL ? PROTO_ACQUIRE_GAVE_BACK : 0;
    }
    int r = close_before_waiting(cache, stream_heap, needed, timeout_ns, &any_closed);
    if (any_closed && timeout_ns < GROWTH_NS)
        acquire.timeout_ns = GROWTH_NS;
    return r == 0 ? ask(cache, stream_heap, &acquire, ret_piece) : r;
}

/* Whether memory that comes back may still serve. LIMIT: of leases, or of the user's quota. */
static bool is_refused(int error) {
    return error == GPUPOOL_E_EXHAUSTED || error == GPUPOOL_E_LIMIT;
}

/* Nothing is free, and the pool has no room for more. Meanwhile each release looks whether it serves this
 * thread. */
static int wait_for_room(struct cache *cache, struct stream_heap *stream_heap, uint64_t size_bytes,
                         uint64_t deadline_ns, uint32_t probe, struct piece **ret_piece) {
    struct shortage *shortage = &cache->shortage;
    struct waiting_thread waiter;
    uint64_t bytes;
    int r = 0;

    shortage_enter(shortage, &waiter, stream_heap->pool, heap_round_up(size_bytes));
    if (!collect(cache, stream_heap, waiter.size_bytes, &bytes)) {
        uint64_t left_ns = clock_left_ns(deadline_ns);
        r = ask_and_wait(cache, stream_heap, waiter.size_bytes,
                         bytes > 0 && left_ns < GRACE_NS ? GRACE_NS : left_ns, probe, ret_piece);
    }
    shortage_leave(shortage, &waiter);
    shortage_offer(cache, stream_heap);
    return r;
}

/* Waits in the daemon's queue for all segments that a request needs. The caller has given back what the
 * process had for it. The daemon marks the pool as short while the request waits, so each release of the
 * process goes to the daemon, too. */
static int wait_for_segments(struct cache *cache, struct stream_heap *stream_heap, uint64_t needed,
                             uint64_t deadline_ns, uint64_t least_ns, uint32_t probe,
                             struct piece **ret_piece) {
    uint64_t left_ns = clock_left_ns(deadline_ns);
    struct proto_acquire_segments acquire = {
        .pool = stream_heap->pool, .flags = probe, .timeout_ns = left_ns < least_ns ? least_ns : left_ns};
    bool any_closed;

    int r = close_before_waiting(cache, stream_heap, needed, acquire.timeout_ns, &any_closed);
    if (any_closed && acquire.timeout_ns < GROWTH_NS)
        acquire.timeout_ns = GROWTH_NS;
    return r == 0 ? arena_wait_and_grow(cache, stream_heap, needed, &acquire, ret_piece) : r;
}

/* Takes one range that is free now. The pool has no room, but a client without a cache may have released more
 * in one segment than the arena can take from there. */
static int ask_for_range(struct cache *cache, struct stream_heap *stream_heap, uint64_t needed,
                         struct piece **ret_piece) {
    const struct proto_acquire acquire = {
        .pool = stream_heap->pool,
        .flags = PROTO_ACQUIRE_NO_RECLAIM | PROTO_ACQUIRE_PROBES,
        .size_bytes = needed,
        .least_bytes = needed,
    };
    return ask(cache, stream_heap, &acquire, ret_piece);
}

/* As stream_heap_grow(), from an arena. */
static int grow_arena(struct cache *cache, struct stream_heap *stream_heap, uint64_t needed,
                      uint64_t deadline_ns, uint32_t probe, struct piece **ret_piece) {
    const struct proto_acquire_segments acquire = {.pool = stream_heap->pool,
                                                   .flags = PROTO_ACQUIRE_NO_RECLAIM | PROTO_ACQUIRE_PROBES,
                                                   .timeout_ns = clock_left_ns(deadline_ns)};
    int r = GPUPOOL_E_EXHAUSTED;
    uint64_t bytes;

    if (!shortage_is_on(&cache->shortage, stream_heap->pool)) {
        r = arena_grow(cache, stream_heap, needed, &acquire, ret_piece);
        if (is_refused(r)) /* the pool would not grow for a range either */
            r = ask_for_range(cache, stream_heap, needed, ret_piece);
    }
    if (!is_refused(r))
        return r;
    if (collect(cache, stream_heap, needed, &bytes))
        return 0;
    bytes += give_back_stream_heap(cache, stream_heap);
    return wait_for_segments(cache, stream_heap, needed, deadline_ns, bytes > 0 ? GRACE_NS : 0, probe,
                             ret_piece);
}

int stream_heap_grow(struct cache *cache, struct stream_heap *stream_heap, uint64_t size_bytes,
                     uint64_t deadline_ns, uint32_t probe, struct piece **ret_piece) {
    *ret_piece = NULL;
    if (look(stream_heap))
        return 0;
    if (shortage_is_on(&cache->shortage, stream_heap->pool))
        shortage_end_if_over(cache, stream_heap->pool);
    if (arena_serves(cache, stream_heap, heap_round_up(size_bytes)))
        return grow_arena(cache, stream_heap, heap_round_up(size_bytes), deadline_ns, probe, ret_piece);
    if (!shortage_is_on(&cache->shortage, stream_heap->pool)) {
        int r =
            ask_for_growth(cache, stream_heap, cache_needs(stream_heap, size_bytes), deadline_ns, ret_piece);
        if (!is_refused(r))
            return r;
    }
    return wait_for_room(cache, stream_heap, size_bytes, deadline_ns, probe, ret_piece);
}

int stream_heap_add_lease(struct cache *cache, struct stream_heap *stream_heap, const struct grant *grant) {
    return add_extent(cache, stream_heap, grant->lease.capacity_bytes, grant, NULL);
}
