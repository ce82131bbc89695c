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

/* How long a request waits, in a client without the keeper's thread, before idle memory is given up for it.
 */
#define PATIENCE_NS (100 * NS_PER_MS)
/* What making a segment takes, mostly: before memory that is kept for other sizes is used, so long is waited
 * for the pool to grow. */
#define GROWTH_NS (20 * NS_PER_MS)
/* A client has no more than it ever used at once, and a share of that, but always room for an extent of each
 * heap: more costs others memory, less costs it messages. */
#define IDLE_SHARE     40u
#define IDLE_BYTES_MIN (LANE_HEAPS * EXTENT_BYTES_MIN)
/* What does not fit goes back, and something else comes: for some 50 us where the pool has it, for some 400
 * us where it has to be made. A program whose sizes never settle would do nothing else. So an exchange for a
 * 64th of what the client has, or more, may happen every 4 ms in the long run, and so many of them at once;
 * of those for less, which save less, fewer at once, and on an account of their own. */
#define TIGHT_INTERVAL_NS   (4 * NS_PER_MS)
#define TIGHT_AT_ONCE       1024u
#define TIGHT_AT_ONCE_LARGE 4096u
#define TIGHT_SHARE         64u
/* Memory that was just released on a stream which is through with it is there after 4 us (H200), sooner than
 * an answer from the daemon: so long is looked at it first. */
#define MOMENT_NS (10 * NS_PER_US)
/* Before a pool grows, for what was released a moment ago: as long as growing takes, a few times over. */
#define CATCH_UP_NS (2 * NS_PER_MS)
/* Fences that a stream is made to wait for at a time. */
#define ORDER_MAX 32u
/* Who waits for room in a lane with deferred pieces looks at these so often, ever more rarely. */
#define LOOK_NS_MIN (1 * NS_PER_MS)
#define LOOK_NS_MAX (16 * NS_PER_MS)
/* For the fences of idle streams to be seen, by a daemon that looks every millisecond. */
#define GRACE_NS (3 * NS_PER_MS)

static uint64_t time_left_ns(uint64_t deadline_ns) {
    uint64_t now_ns = clock_now_ns();
    return deadline_ns == NS_FOREVER ? NS_FOREVER : deadline_ns > now_ns ? deadline_ns - now_ns : 0;
}

/* What the lanes of a pool have, use, and used at most when one of them had to grow. Pieces in threads'
 * caches count as used. */
struct holding {
    uint64_t held_bytes, used_bytes, peak_bytes;
};

static struct holding pool_holding(struct cache *cache, uint32_t pool) {
    struct holding holding = {0};

    pthread_mutex_lock(&cache->lanes_lock);
    list_for_each(position, &cache->lanes) {
        struct lane *lane = container_of(position, struct lane, link);
        if (lane->pool != pool)
            continue;
        pthread_mutex_lock(&lane->lock);
        uint64_t held_bytes = lane_held_bytes_locked(lane);
        holding.held_bytes += held_bytes;
        holding.used_bytes += held_bytes - lane_free_bytes_locked(lane);
        if (lane->peak_bytes > holding.peak_bytes)
            holding.peak_bytes = lane->peak_bytes;
        pthread_mutex_unlock(&lane->lock);
    }
    pthread_mutex_unlock(&cache->lanes_lock);
    return holding;
}

/* Whether it is time to hold the lanes to what the client may have, for a request of such a size. */
static bool may_be_tight(struct cache *cache, uint64_t held_bytes, uint64_t needed_bytes) {
    bool is_large = needed_bytes >= held_bytes / TIGHT_SHARE;
    uint64_t now_ns = clock_now_ns(), *tight_ns = &cache->tight_ns[is_large];
    uint64_t at_once = is_large ? TIGHT_AT_ONCE_LARGE : TIGHT_AT_ONCE;

    pthread_mutex_lock(&cache->lanes_lock);
    if (*tight_ns < now_ns)
        *tight_ns = now_ns;
    bool may = *tight_ns - now_ns < at_once * TIGHT_INTERVAL_NS;
    if (may)
        *tight_ns += TIGHT_INTERVAL_NS;
    pthread_mutex_unlock(&cache->lanes_lock);
    return may;
}

/* How a lane comes by room for a request. */
struct growth {
    uint64_t wanted_bytes;  /* how large an extent should be */
    uint64_t surplus_bytes; /* how much of what is idle should go back first */
    bool cuts;              /* none: an extent that was kept whole is cut for it */
};

/* A client may have a little more than it ever used at once. What is over that, although it is idle, does not
 * fit what is asked for now: it goes back first, or, when that has happened too often lately, serves after
 * all where it can. */
static struct growth plan_growth(struct cache *cache, struct lane *lane, uint64_t needed_bytes) {
    struct holding holding = pool_holding(cache, lane->pool);
    uint64_t used_bytes = holding.used_bytes + needed_bytes;
    uint64_t peak_bytes = used_bytes > holding.peak_bytes ? used_bytes : holding.peak_bytes;
    uint64_t idle_bytes = peak_bytes / IDLE_SHARE;
    uint64_t limit_bytes = peak_bytes + (idle_bytes > IDLE_BYTES_MIN ? idle_bytes : IDLE_BYTES_MIN);
    struct growth growth = {0};

    pthread_mutex_lock(&lane->lock);
    lane->peak_bytes = peak_bytes;
    growth.wanted_bytes = lane_extent_bytes_locked(lane, needed_bytes);
    pthread_mutex_unlock(&lane->lock);
    uint64_t held_bytes = holding.held_bytes + growth.wanted_bytes;
    if (held_bytes > limit_bytes) {
        if (!may_be_tight(cache, holding.held_bytes, needed_bytes)) {
            pthread_mutex_lock(&lane->lock);
            growth.cuts = lane_cut_whole_locked(lane, needed_bytes);
            pthread_mutex_unlock(&lane->lock);
            return growth;
        }
        growth.surplus_bytes = held_bytes - limit_bytes;
    }
    return growth;
}

/* Whether a smaller one may be had. LIMIT: perhaps of the user's quota, which that is within. */
static bool is_too_much(int error) {
    return error == GPUPOOL_E_EXHAUSTED || error == GPUPOOL_E_TOO_LARGE || error == GPUPOOL_E_LIMIT;
}

/* Leases an extent that the pool has room for at once: of the size that is wanted, else of a smaller one
 * that still serves more than this request. A pool that is short of long ranges, or about to grow, so costs a
 * message for many small requests and not one for each; the lane begins next time where it got something now,
 * and goes up again from there. EXHAUSTED when only the request's own size is left to be asked for. */
static int lease_at_once(struct gpupool_client *client, struct lane *lane, uint64_t needed, uint64_t bytes,
                         struct proto_lease *ret_lease, struct pool *ret_pool, struct segment **ret_segment) {
    int r = GPUPOOL_E_EXHAUSTED;

    while (bytes > needed) {
        r = lease_acquire(client, lane->pool, bytes, GPUPOOL_NOW, ret_lease, ret_pool, ret_segment);
        if (!is_too_much(r))
            return r;
        pthread_mutex_lock(&lane->lock);
        bytes = lane_learn_locked(lane, bytes, false);
        pthread_mutex_unlock(&lane->lock);
    }
    return GPUPOOL_E_EXHAUSTED;
}

static uint64_t deferred_bytes(struct lane *lane) {
    pthread_mutex_lock(&lane->lock);
    uint64_t bytes = lane->deferred_bytes;
    pthread_mutex_unlock(&lane->lock);
    return bytes;
}

/* Looks for a moment whether deferred pieces become ready. */
static bool settle_soon(struct lane *lane) {
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

/* There is no other room: makes the lane's stream wait, on the GPU, for the streams that its deferred pieces
 * were released on, and uses those at once. False: there was nothing to be had that way. */
static bool order_deferred(struct gpupool_client *client, struct lane *lane) {
    struct fence fences[ORDER_MAX];
    unsigned ordered = 0;

    pthread_mutex_lock(&lane->lock);
    unsigned count = deferred_fences_locked(lane, fences, ORDER_MAX);
    pthread_mutex_unlock(&lane->lock);
    while (ordered < count && fence_order(client, fences[ordered], (unsigned)lane->device, lane->stream) == 0)
        ordered++;
    pthread_mutex_lock(&lane->lock);
    for (unsigned i = 0; i < ordered; i++)
        deferred_order_locked(lane, fences[i]);
    pthread_mutex_unlock(&lane->lock);
    return ordered > 0;
}

/* Leases an extent that can be had without waiting. When there is none, the lane's deferred pieces are used,
 * if its stream can be made to wait for them: -EAGAIN. */
static int acquire_now(struct gpupool_client *client, struct lane *lane, uint64_t needed, uint64_t wanted,
                       struct proto_lease *ret_lease, struct pool *ret_pool, struct segment **ret_segment) {
    pthread_mutex_lock(&lane->lock);
    bool may_order = lane->deferred_bytes > 0 && cache_has_order(lane);
    lane->ordering += may_order; /* a refusal makes the daemon ask for just what is to be used here */
    pthread_mutex_unlock(&lane->lock);
    int r = lease_at_once(client, lane, needed, wanted, ret_lease, ret_pool, ret_segment);
    if (r == GPUPOOL_E_EXHAUSTED && may_order)
        r = lease_acquire(client, lane->pool, needed, GPUPOOL_NOW, ret_lease, ret_pool, ret_segment);
    if (r == GPUPOOL_E_EXHAUSTED && may_order && order_deferred(client, lane))
        r = -EAGAIN;
    pthread_mutex_lock(&lane->lock);
    lane->ordering -= may_order;
    pthread_mutex_unlock(&lane->lock);
    return r;
}

/* Leases an extent of just a request's size, and waits for it. While the lane has deferred pieces, the wait
 * has pauses to look at these. -EAGAIN: some were ready, and are in the lane's heap. */
static int acquire_patiently(struct gpupool_client *client, struct lane *lane, uint64_t size_bytes,
                             uint64_t deadline_ns, struct proto_lease *ret_lease, struct pool *ret_pool,
                             struct segment **ret_segment) {
    for (uint64_t look_ns = LOOK_NS_MIN;; look_ns = 2 * look_ns < LOOK_NS_MAX ? 2 * look_ns : LOOK_NS_MAX) {
        uint64_t left_ns = time_left_ns(deadline_ns);
        bool looks = deferred_bytes(lane) > 0;
        int r = lease_acquire(client, lane->pool, size_bytes, looks && look_ns < left_ns ? look_ns : left_ns,
                              ret_lease, ret_pool, ret_segment);
        if (r != GPUPOOL_E_EXHAUSTED || !looks)
            return r;
        /* The keeper may have been quicker: then what it found ready is in the heap. */
        pthread_mutex_lock(&lane->lock);
        bool ready = deferred_settle_locked(lane, UINT_MAX) || lane_has_locked(lane, size_bytes);
        pthread_mutex_unlock(&lane->lock);
        if (ready)
            return -EAGAIN;
        if (left_ns <= look_ns)
            return r;
    }
}

/* Leases an extent that is to be made for it: in less time than a smaller one, which the lane would outgrow
 * at once, and which leaves a hole beside it when it goes back. */
static int acquire_grown(struct gpupool_client *client, struct lane *lane, uint64_t wanted,
                         uint64_t deadline_ns, struct proto_lease *ret_lease, struct pool *ret_pool,
                         struct segment **ret_segment) {
    uint64_t moment_ns = clock_deadline_ns(clock_now_ns(), GROWTH_NS);
    return acquire_patiently(client, lane, wanted, deadline_ns < moment_ns ? deadline_ns : moment_ns,
                             ret_lease, ret_pool, ret_segment);
}

/* The lane has room that is kept for other sizes, or kept whole. It stays so if the pool only needs a moment
 * to grow; else it serves all sizes: -EAGAIN. */
static int acquire_sharing(struct gpupool_client *client, struct lane *lane, uint64_t needed, uint64_t wanted,
                           uint64_t deadline_ns, struct proto_lease *ret_lease, struct pool *ret_pool,
                           struct segment **ret_segment) {
    pthread_mutex_lock(&lane->lock);
    bool may_share = lane_may_share_locked(lane, needed);
    pthread_mutex_unlock(&lane->lock);
    if (!may_share)
        return GPUPOOL_E_EXHAUSTED;
    int r = acquire_grown(client, lane, wanted, deadline_ns, ret_lease, ret_pool, ret_segment);
    if (!is_too_much(r))
        return r;
    pthread_mutex_lock(&lane->lock);
    lane->is_short = true;
    pthread_mutex_unlock(&lane->lock);
    return -EAGAIN;
}

/* Before the pool grows: closes segments that lie idle in this process, so that growth takes their place.
 * What has just been given back counts too: its fence is waited for, a moment. Not worth a failure. Whether
 * the pool can grow at once. */
static bool close_idle(struct gpupool_client *client, struct lane *lane, uint64_t bytes, bool gave_back) {
    struct fence fence = FENCE_NONE;
    bool may_grow = false;

    if (lane->kind != GPUPOOL_POOL_DEVICE)
        return false;
    if (gave_back && cache_has_order(lane) &&
        fences_enqueue(client, (unsigned)lane->device, lane->stream, &fence) == 0)
        (void)fence_wait(client, fence, clock_deadline_ns(clock_now_ns(), CATCH_UP_NS));
    return lease_close_idle(client, lane->pool, bytes, &may_grow) == 0 && may_grow;
}

/* What a thread does that waits in a client without the keeper's. */
struct lonely {
    struct gpupool_client *client;
    struct lane *lane;
    uint64_t needed_bytes;
};

static void give_way(void *argument) {
    const struct lonely *lonely = argument;
    uint64_t freed;

    cache_give_back(lonely->client, false, &freed);
    (void)close_idle(lonely->client, lonely->lane, lonely->needed_bytes, true);
}

/* While this waits the daemon asks for idle memory, here too: the keeper answers, gives it back, and closes
 * segments that have become idle. Without its thread nobody might, so that the wait for what lies idle here
 * would never end: this thread does it after a moment, which growing takes too. */
static int acquire_waiting(struct gpupool_client *client, struct lane *lane, uint64_t needed,
                           uint64_t deadline_ns, struct proto_lease *ret_lease, struct pool *ret_pool,
                           struct segment **ret_segment) {
    uint64_t moment_ns = clock_deadline_ns(clock_now_ns(), PATIENCE_NS), freed;
    struct lonely lonely = {client, lane, needed};
    const struct connection_pause pause = {moment_ns, give_way, &lonely};
    bool alone = !client->cache.keeper.runs && deadline_ns > moment_ns;
    int r;

    if (alone && deferred_bytes(lane) == 0) {
        r = lease_acquire_with_pause(client, lane->pool, needed, time_left_ns(deadline_ns), &pause, ret_lease,
                                     ret_pool, ret_segment);
    } else {
        r = acquire_patiently(client, lane, needed, alone ? moment_ns : deadline_ns, ret_lease, ret_pool,
                              ret_segment);
        if (r == GPUPOOL_E_EXHAUSTED && alone) {
            give_way(&lonely);
            r = acquire_patiently(client, lane, needed, deadline_ns, ret_lease, ret_pool, ret_segment);
        }
    }
    if (r == GPUPOOL_E_EXHAUSTED) {
        /* There was no time to wait, or the keeper cannot: what lies idle here, for other streams and in
         * other sizes, goes first. Its fences, if the GPU is through with it, are ready at once. */
        cache_give_back(client, false, &freed);
        r = lease_acquire(client, lane->pool, needed, freed > 0 ? GRACE_NS : GPUPOOL_NOW, ret_lease, ret_pool,
                          ret_segment);
    }
    return r;
}

/* Leases an extent without the pool's growing for it: of the size that is wanted, else of a smaller one. A
 * pool that was used for long has much free memory and few long ranges: it must not grow for an extent's
 * length. */
static int acquire_within(struct gpupool_client *client, struct lane *lane, uint64_t needed, uint64_t wanted,
                          struct proto_lease *ret_lease, struct pool *ret_pool,
                          struct segment **ret_segment) {
    if (lane->kind != GPUPOOL_POOL_DEVICE) /* slow to make: better grown while something smaller serves */
        return GPUPOOL_E_EXHAUSTED;
    int r = lease_acquire_within(client, lane->pool, wanted, needed, ret_lease, ret_pool, ret_segment);
    return is_too_much(r) ? GPUPOOL_E_EXHAUSTED : r;
}

/* Adds what was leased for a request to the lane: to an extent that it continues, else as one of its own. */
static int add_extent(struct gpupool_client *client, struct lane *lane, uint64_t needed,
                      const struct segment *segment, const struct proto_lease *lease) {
    enum lane_heap heap = lane_heap_of(needed);
    bool fills_segment = !heap_keeps(segment->size_bytes, lease->capacity_bytes);
    /* Host memory is slow to make: it is better cut than given back. */
    bool keep_whole =
        heap == LANE_LARGE && lane->kind == GPUPOOL_POOL_DEVICE && !heap_keeps(lease->capacity_bytes, needed);
    char *memory = (char *)segment->memory + lease->offset_bytes;

    pthread_mutex_lock(&lane->lock);
    lane_learn_locked(lane, lease->capacity_bytes, true);
    lane->is_short = false;
    struct extent *extent = lane_neighbour_locked(lane, heap, segment, memory, lease->capacity_bytes);
    int r = 0;
    if (extent != NULL && lease_merge_one_way(client, extent->lease, extent->generation, lease) == 0)
        lane_fill_locked(extent, memory, lease->capacity_bytes);
    else
        r = lane_add_extent_locked(lane, heap, segment, lease->lease, lease->generation, memory,
                                   lease->capacity_bytes, fills_segment, keep_whole);
    pthread_mutex_unlock(&lane->lock);
    return r;
}

int lane_grow(struct gpupool_client *client, struct lane *lane, uint64_t size_bytes, uint64_t deadline_ns) {
    uint64_t needed = size_class_round(size_bytes);
    struct proto_lease lease;
    struct segment *segment;
    struct pool pool;

    if (settle_soon(lane))
        return 0;
    struct growth growth = plan_growth(&client->cache, lane, needed);
    if (growth.cuts)
        return 0;
    if (growth.surplus_bytes > 0)
        give_back_surplus(client, lane, growth.surplus_bytes);
    uint64_t wanted = growth.wanted_bytes;
    int r = acquire_within(client, lane, needed, wanted, &lease, &pool, &segment);
    if (r == GPUPOOL_E_EXHAUSTED && close_idle(client, lane, wanted, growth.surplus_bytes > 0))
        r = acquire_grown(client, lane, wanted, deadline_ns, &lease, &pool, &segment);
    if (is_too_much(r))
        r = acquire_now(client, lane, needed, wanted, &lease, &pool, &segment);
    if (r == GPUPOOL_E_EXHAUSTED)
        r = acquire_sharing(client, lane, needed, wanted, deadline_ns, &lease, &pool, &segment);
    if (r == GPUPOOL_E_EXHAUSTED)
        r = acquire_waiting(client, lane, needed, deadline_ns, &lease, &pool, &segment);
    if (r == -EAGAIN)
        return 0;
    if (r < 0)
        return r;
    r = add_extent(client, lane, needed, segment, &lease);
    if (r == 0)
        return 0;
    lease_give_back(client, &lease);
    return cache_no_memory();
}
