/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/grow.h"

#include <errno.h>
#include <limits.h>

#include "base/clock.h"
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

/* Where the daemon grants less than that of what a lane should have more of, the pool is nearly full. */
#define TIGHT_SHARE 4u

/* Looks for a moment whether deferred pieces become ready. */
static bool look(struct lane *lane) {
    bool ready = false, any;
    uint64_t end_ns = clock_now_ns() + MOMENT_NS;

    do {
        pthread_mutex_lock(&lane->lock);
        any = lane->deferred_bytes > 0;
        ready = any && deferred_settle_locked(lane, UINT_MAX);
        pthread_mutex_unlock(&lane->lock);
    } while (any && !ready && clock_now_ns() < end_ns);
    return ready;
}

/* Adds what was leased for a request to the lane: to an extent that it continues, else as one of its own.
 * *ret_piece gets what the request needs of it, before another thread does; NULL: nothing. ret_piece may be
 * NULL. */
static int add_extent(struct cache *cache, struct lane *lane, uint64_t needed, const struct segment *segment,
                      const struct proto_lease *lease, struct piece **ret_piece) {
    enum lane_heap heap = lane_heap_of(needed);
    char *memory = (char *)segment->memory + lease->offset_bytes;
    int r = 0;

    pthread_mutex_lock(&lane->lock);
    struct extent *extent = lane_neighbour_locked(lane, heap, segment, memory, lease->capacity_bytes);
    if (extent != NULL && lease_merge_one_way(cache->session, extent->lease, extent->generation, lease) == 0)
        lane_fill_locked(extent, memory, lease->capacity_bytes);
    else
        r = lane_add_extent_locked(lane, heap, segment, lease->lease, lease->generation, memory,
                                   lease->capacity_bytes);
    if (r == 0 && ret_piece != NULL && lane_take_locked(lane, needed, true, ret_piece) < 0)
        *ret_piece = NULL;
    pthread_mutex_unlock(&lane->lock);
    if (r == 0)
        return 0;
    lease_give_back(cache->session, lease);
    return error_no_memory();
}

/* Asks the daemon for an extent, and adds it to the lane. */
static int ask(struct cache *cache, struct lane *lane, const struct proto_acquire *acquire,
               struct piece **ret_piece) {
    struct proto_lease lease;
    struct segment *segment;
    struct pool pool;

    int r = lease_acquire_as(cache->session, acquire, &lease, &pool, &segment);
    if (r < 0)
        return r;
    if (lease.capacity_bytes < acquire->size_bytes / TIGHT_SHARE)
        shortage_tighten(cache, lane->pool);
    else if (lease.capacity_bytes > acquire->least_bytes && lease.capacity_bytes >= acquire->size_bytes &&
             shortage_is_tight(&cache->shortage, lane->pool))
        shortage_loosen(cache, lane->pool);
    return add_extent(cache, lane, acquire->least_bytes, segment, &lease, ret_piece);
}

/* As much as the lane should have more of. */
static uint64_t wanted_bytes(struct lane *lane, uint64_t needed) {
    pthread_mutex_lock(&lane->lock);
    uint64_t wanted = lane_extent_bytes_locked(lane, needed);
    pthread_mutex_unlock(&lane->lock);
    return wanted;
}

/* Asks for as much as the lane should have more of. Growth of the pool is waited for, and nothing else. */
static int ask_for_growth(struct cache *cache, struct lane *lane, uint64_t needed, uint64_t deadline_ns,
                          struct piece **ret_piece) {
    const struct proto_acquire acquire = {
        .pool = lane->pool,
        .flags = PROTO_ACQUIRE_NO_RECLAIM | PROTO_ACQUIRE_PROBES, /* see is_refused() */
        .size_bytes = wanted_bytes(lane, needed),
        .least_bytes = needed,
        .timeout_ns = clock_left_ns(deadline_ns),
    };
    return ask(cache, lane, &acquire, ret_piece);
}

/* Makes the lane's stream wait, on the GPU, for the streams that its deferred pieces were released on, and
 * uses those at once. False: there was nothing to be had that way. */
static bool order_deferred(struct cache *cache, struct lane *lane) {
    struct fence fences[ORDER_MAX];
    unsigned ordered = 0;

    if (!cache_has_order(lane))
        return false;
    pthread_mutex_lock(&lane->lock);
    lane->ordering++; /* they stay meanwhile */
    unsigned count = deferred_fences_locked(lane, fences, ORDER_MAX);
    pthread_mutex_unlock(&lane->lock);
    while (ordered < count &&
           fence_order(cache->session, fences[ordered], (unsigned)lane->device, lane->stream) == 0)
        ordered++;
    pthread_mutex_lock(&lane->lock);
    lane->ordering--;
    for (unsigned i = 0; i < ordered; i++)
        deferred_order_locked(lane, fences[i]);
    pthread_mutex_unlock(&lane->lock);
    return ordered > 0;
}

static bool has_now(struct lane *lane, uint64_t needed) {
    pthread_mutex_lock(&lane->lock);
    deferred_settle_locked(lane, UINT_MAX);
    bool has = lane_has_locked(lane, needed);
    pthread_mutex_unlock(&lane->lock);
    return has;
}

/* The pool has no room. True: this process had some for the lane. Else what is idle in it and could serve the
 * request in the daemon's hands is there, *ret_bytes of it. */
static bool collect(struct cache *cache, struct lane *lane, uint64_t needed, uint64_t *ret_bytes) {
    *ret_bytes = 0;
    if (shortage_is_on(&cache->shortage, lane->pool)) {
        if (has_now(lane, needed))
            return true;
        give_back_lane(cache, lane);
        return false;
    }
    shortage_tighten(cache, lane->pool);
    if (has_now(lane, needed) || (order_deferred(cache, lane) && has_now(lane, needed)))
        return true;
    *ret_bytes = give_back_pool(cache, lane->pool, lane);
    return has_now(lane, needed);
}

/* Waits in the daemon's queue for just what is needed. A client whose keeper runs answers the daemon's
 * questions meanwhile; one without closes at once what the daemon names, if nothing else helps its own
 * request. */
static int ask_and_wait(struct cache *cache, struct lane *lane, uint64_t needed, uint64_t timeout_ns,
                        uint32_t probe, struct piece **ret_piece) {
    struct proto_acquire acquire = {.pool = lane->pool,
                                    .flags = probe,
                                    .size_bytes = needed,
                                    .least_bytes = needed,
                                    .timeout_ns = timeout_ns};
    const bool has_keeper = cache->keeper.runs;
    bool any_closed = false;
    int r = 0;

    if (!shortage_is_on(&cache->shortage, lane->pool)) {
        acquire.size_bytes = wanted_bytes(lane, needed);
        acquire.flags |= cache->keeper.reclaim == NULL ? PROTO_ACQUIRE_GAVE_BACK : 0;
    }
    if (!has_keeper || timeout_ns < GRACE_NS)
        r = lease_close_idle(cache->session, lane->pool, needed, has_keeper && cache_is_busy(cache),
                             &any_closed);
    if (any_closed && timeout_ns < GROWTH_NS)
        acquire.timeout_ns = GROWTH_NS;
    return r == 0 ? ask(cache, lane, &acquire, ret_piece) : r;
}

/* Whether memory that comes back may still serve. LIMIT: of leases, or of the user's quota. */
static bool is_refused(int error) {
    return error == GPUPOOL_E_EXHAUSTED || error == GPUPOOL_E_LIMIT;
}

/* Nothing is free, and the pool has no room for more. Meanwhile each release looks whether it serves this
 * thread. */
static int wait_for_room(struct cache *cache, struct lane *lane, uint64_t size_bytes, uint64_t deadline_ns,
                         uint32_t probe, struct piece **ret_piece) {
    struct shortage *shortage = &cache->shortage;
    struct waiting_thread waiter;
    uint64_t bytes;
    int r = 0;

    shortage_enter(shortage, &waiter, lane->pool, heap_round_up(size_bytes));
    if (!collect(cache, lane, waiter.size_bytes, &bytes)) {
        uint64_t left_ns = clock_left_ns(deadline_ns);
        r = ask_and_wait(cache, lane, waiter.size_bytes, bytes > 0 && left_ns < GRACE_NS ? GRACE_NS : left_ns,
                         probe, ret_piece);
    }
    shortage_leave(shortage, &waiter);
    shortage_offer(cache, lane);
    return r;
}

int lane_grow(struct cache *cache, struct lane *lane, uint64_t size_bytes, uint64_t deadline_ns,
              uint32_t probe, struct piece **ret_piece) {
    *ret_piece = NULL;
    if (look(lane))
        return 0;
    if (shortage_is_on(&cache->shortage, lane->pool))
        shortage_end_if_over(cache, lane->pool);
    if (!shortage_is_on(&cache->shortage, lane->pool)) {
        int r = ask_for_growth(cache, lane, cache_needs(lane, size_bytes), deadline_ns, ret_piece);
        if (!is_refused(r))
            return r;
    }
    return wait_for_room(cache, lane, size_bytes, deadline_ns, probe, ret_piece);
}

int lane_add_lease(struct cache *cache, struct lane *lane, const struct segment *segment,
                   const struct proto_lease *lease) {
    return add_extent(cache, lane, lease->capacity_bytes, segment, lease, NULL);
}
