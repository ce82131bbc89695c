/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/grow.h"

#include <errno.h>
#include <limits.h>

#include "base/clock.h"
#include "client/cache/deferred.h"
#include "client/cache/give_back.h"
#include "client/client.h"
#include "client/error.h"
#include "client/lease.h"

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

/* Adds what was leased for a request to the lane: to an extent that it continues, else as one of its own. In
 * a shortage it is one of its own, because it goes back as it is. */
static int add_extent(struct gpupool_client *client, struct lane *lane, uint64_t needed, bool is_short,
                      const struct segment *segment, const struct proto_lease *lease) {
    enum lane_heap heap = lane_heap_of(needed);
    char *memory = (char *)segment->memory + lease->offset_bytes;
    int r = 0;

    pthread_mutex_lock(&lane->lock);
    struct extent *extent =
        is_short ? NULL : lane_neighbour_locked(lane, heap, segment, memory, lease->capacity_bytes);
    if (extent != NULL && lease_merge_one_way(client, extent->lease, extent->generation, lease) == 0)
        lane_fill_locked(extent, memory, lease->capacity_bytes);
    else
        r = lane_add_extent_locked(lane, heap, segment, lease->lease, lease->generation, memory,
                                   lease->capacity_bytes);
    pthread_mutex_unlock(&lane->lock);
    if (r == 0)
        return 0;
    lease_give_back(client, lease);
    return cache_no_memory();
}

/* Asks the daemon for an extent, and adds it to the lane. */
static int ask(struct gpupool_client *client, struct lane *lane, const struct proto_acquire *acquire,
               bool is_short) {
    struct proto_lease lease;
    struct segment *segment;
    struct pool pool;

    int r = lease_acquire_as(client, acquire, &lease, &pool, &segment);
    return r < 0 ? r : add_extent(client, lane, acquire->least_bytes, is_short, segment, &lease);
}

/* Asks for as much as the lane should have more of. Growth of the pool is waited for, and nothing else. */
static int ask_for_growth(struct gpupool_client *client, struct lane *lane, uint64_t needed,
                          uint64_t deadline_ns) {
    pthread_mutex_lock(&lane->lock);
    uint64_t wanted = lane_extent_bytes_locked(lane, needed);
    pthread_mutex_unlock(&lane->lock);
    const struct proto_acquire acquire = {
        .pool = lane->pool,
        .flags = PROTO_ACQUIRE_NO_RECLAIM,
        .size_bytes = wanted,
        .least_bytes = needed,
        .timeout_ns = clock_left_ns(deadline_ns),
    };
    return ask(client, lane, &acquire, false);
}

/* Makes the lane's stream wait, on the GPU, for the streams that its deferred pieces were released on, and
 * uses those at once. False: there was nothing to be had that way. */
static bool order_deferred(struct gpupool_client *client, struct lane *lane) {
    struct fence fences[ORDER_MAX];
    unsigned ordered = 0;

    if (!cache_has_order(lane))
        return false;
    pthread_mutex_lock(&lane->lock);
    lane->ordering++; /* they stay meanwhile */
    unsigned count = deferred_fences_locked(lane, fences, ORDER_MAX);
    pthread_mutex_unlock(&lane->lock);
    while (ordered < count && fence_order(client, fences[ordered], (unsigned)lane->device, lane->stream) == 0)
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

/* The pool has no room. True: this process had some for the lane. Else all that is idle in it has gone to the
 * daemon, *ret_bytes of it, and a shortage has begun. */
static bool collect(struct gpupool_client *client, struct lane *lane, uint64_t needed, uint64_t *ret_bytes) {
    *ret_bytes = 0;
    if (shortage_is_on(&client->cache.shortage, lane->pool))
        return has_now(lane, needed);
    cache_collect(&client->cache, NULL, lane, false);
    if (has_now(lane, needed) || (order_deferred(client, lane) && has_now(lane, needed)))
        return true;
    shortage_begin(client, lane->pool);
    *ret_bytes = give_back_pool(client, lane->pool);
    return false;
}

/* Waits in the daemon's queue for just what is needed. A client whose keeper runs answers the daemon's
 * questions meanwhile; one without closes at once what the daemon names, if nothing else helps its own
 * request. */
static int ask_and_wait(struct gpupool_client *client, struct lane *lane, uint64_t needed,
                        uint64_t timeout_ns) {
    struct proto_acquire acquire = {
        .pool = lane->pool, .size_bytes = needed, .least_bytes = needed, .timeout_ns = timeout_ns};
    const bool has_keeper = client->cache.keeper.runs;
    bool any_closed = false;
    int r = 0;

    if (!has_keeper || timeout_ns < GRACE_NS)
        r = lease_close_idle(client, lane->pool, needed, has_keeper && cache_is_busy(client), &any_closed);
    if (any_closed && timeout_ns < GROWTH_NS)
        acquire.timeout_ns = GROWTH_NS;
    return r == 0 ? ask(client, lane, &acquire, true) : r;
}

/* Whether memory that comes back may still serve. LIMIT: of leases, or of the user's quota. */
static bool is_refused(int error) {
    return error == GPUPOOL_E_EXHAUSTED || error == GPUPOOL_E_LIMIT;
}

int lane_grow(struct gpupool_client *client, struct lane *lane, uint64_t size_bytes, uint64_t deadline_ns) {
    uint64_t needed = size_class_round(size_bytes), bytes = 0;
    int r = 0;

    if (look(lane))
        return 0;
    if (shortage_is_on(&client->cache.shortage, lane->pool))
        shortage_end_if_over(client, lane->pool);
    if (!shortage_is_on(&client->cache.shortage, lane->pool)) {
        r = ask_for_growth(client, lane, needed, deadline_ns);
        if (!is_refused(r))
            return r;
    }
    atomic_fetch_add(&client->cache.shortage.waiting[lane->pool - 1], 1);
    if (!collect(client, lane, needed, &bytes)) {
        uint64_t left_ns = clock_left_ns(deadline_ns);
        needed = cache_needs(lane, size_bytes);
        r = ask_and_wait(client, lane, needed, bytes > 0 && left_ns < GRACE_NS ? GRACE_NS : left_ns);
    } else {
        r = 0;
    }
    atomic_fetch_sub(&client->cache.shortage.waiting[lane->pool - 1], 1);
    return r;
}

int lane_add_lease(struct gpupool_client *client, struct lane *lane, const struct segment *segment,
                   const struct proto_lease *lease) {
    return add_extent(client, lane, lease->capacity_bytes, false, segment, lease);
}
