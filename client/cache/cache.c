/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/client.h"
#include "client/error.h"
#include "client/lease.h"

/* Parts of extents that go back while the rest is in use: smaller ones would cost the daemon more than they
 * bring. */
#define PART_BYTES_MIN (2 * MIB)
/* How long a request waits, in a client without the keeper's thread, before idle memory is given up for it.
 */
#define PATIENCE_NS (100 * NS_PER_MS)
/* A client has no more than it ever used at once, and a share of that: more costs others memory, less costs
 * it messages. */
#define IDLE_SHARE 16u
/* Small pieces that a miss brings along for the next ones. */
#define BATCH       8u
#define BATCH_BYTES (64 * KIB)
/* How often other threads' caches are emptied for a lane until it grows, or the decay looks at it: often
 * enough that what lies idle there is found, seldom enough that a lane whose threads hand memory to each
 * other soon has what it takes. Memory for larger requests is always looked for first. */
#define COLLECTS_MAX       2u
#define COLLECTS_BYTES_MAX (128 * KIB)

static void give_surplus(struct gpupool_client *client, struct lane *lane, uint64_t surplus_bytes);

void cache_init(struct cache *cache) {
    pthread_mutex_init(&cache->lanes_lock, NULL);
    pthread_mutex_init(&cache->give_lock, NULL);
    list_init(&cache->lanes);
    list_init(&cache->threads);
    counters_init(&cache->counters);
    keeper_init(&cache->keeper);
}

void cache_forget(struct cache *cache) {
    list_for_each_safe(position, &cache->threads) {
        struct thread_cache *thread = container_of(position, struct thread_cache, link);
        list_remove(position);
        thread->client = NULL; /* of this thread, or a copy of one that is not here */
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

/* The lane of a pool and a stream, made when it is first asked for. */
static int cache_lane(struct gpupool_client *client, uint32_t pool_id, void *stream, struct lane **ret_lane) {
    struct cache *cache = &client->cache;
    struct pool pool;
    int device = -1;

    int r = pools_find(&client->pools, &client->connection, client_deadline_ns(client, 0), pool_id, &pool);
    if (r < 0)
        return r;
    if (pool.kind == PROTO_POOL_HOST)
        stream = GPUPOOL_NO_STREAM;
    else
        device = devices_find(&client->devices, pool.uuid);
    pthread_mutex_lock(&cache->lanes_lock);
    struct lane *lane = find_lane(cache, pool_id, stream);
    if (lane == NULL) {
        lane = lane_new(client, pool_id, pool.kind, device, stream);
        if (lane != NULL) {
            lane->counters = &cache->counters;
            list_append(&cache->lanes, &lane->link);
        }
    }
    pthread_mutex_unlock(&cache->lanes_lock);
    if (lane == NULL)
        return error_set(GPUPOOL_E_NO_MEMORY, "no memory for the process's heap");
    *ret_lane = lane;
    return 0;
}

/* --- taking --- */

/* From the process's heap. Small pieces for the next requests come along. */
static int take_from_lane(struct thread_lane *own, unsigned size_class, uint64_t size_bytes,
                          struct piece **ret_piece) {
    uint64_t rounded = size_class_round(size_bytes);
    struct piece *more[BATCH];
    struct lane *lane = own->lane;
    unsigned count = 0;

    pthread_mutex_lock(&lane->lock);
    int r = lane_take_locked(lane, rounded, ret_piece);
    while (r == 0 && count + 1 < BATCH && (count + 1) * rounded < BATCH_BYTES &&
           lane_take_locked(lane, rounded, &more[count]) == 0)
        count++;
    pthread_mutex_unlock(&lane->lock);
    while (count > 0)
        bin_put(&own->bins[size_class], lane, size_class, more[--count]);
    return r;
}

/* From what this thread has at hand: its bin, what others put into the transfer, the lane, and the lane again
 * with everything that lies in other bins and sizes. */
static int take_at_hand(struct thread_lane *own, uint64_t size_bytes, struct piece **ret_piece) {
    unsigned size_class = size_class_of(size_bytes);

    struct piece *piece = bin_take(&own->bins[size_class], own->lane, size_class, size_bytes);
    if (piece != NULL) {
        *ret_piece = piece;
        return 0;
    }
    int r = take_from_lane(own, size_class, size_bytes, ret_piece);
    if (r != -ENOSPC)
        return r;
    for (unsigned other = 0; other < SIZE_CLASSES; other++)
        bin_flush(&own->bins[other], own->lane);
    pthread_mutex_lock(&own->lane->lock);
    lane_flush_transfer_locked(own->lane, false);
    pthread_mutex_unlock(&own->lane->lock);
    return take_from_lane(own, size_class, size_bytes, ret_piece);
}

static struct thread_lane *own_lane(struct thread_cache *thread, struct lane *lane) {
    struct thread_lane *own = thread_cache_find(thread, lane);
    if (own == NULL)
        own = thread_cache_add(thread, lane);
    if (own != NULL) {
        own->touched = true;
        thread->last = own;
    }
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

bool cache_take(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes, const void *stream,
                struct gpupool_buffer *ret_buffer) {
    struct thread_cache *thread = thread_caches;
    struct piece *piece;
    int r = -ENOSPC;

    if (thread == NULL || atomic_load_explicit(&thread->client, memory_order_relaxed) != client)
        return false;
    thread_cache_enter(thread);
    struct thread_lane *own = thread->lanes;
    while (own != NULL && !cache_is_lane(own->lane, pool, stream))
        own = own->next;
    if (own != NULL) {
        own->touched = true;
        thread->last = own;
        r = take_at_hand(own, size_bytes, &piece);
        if (r == 0)
            count_taken(own, piece, false);
    }
    thread_cache_leave(thread);
    if (r == 0)
        cache_fill(ret_buffer, piece, size_bytes);
    return r == 0;
}

/* Empties the other threads' caches of a lane (or of all: NULL) into it. */
static void collect(struct cache *cache, const struct thread_cache *except, const struct lane *lane,
                    bool idle_only) {
    thread_caches_lock();
    list_for_each(position, &cache->threads) {
        struct thread_cache *thread = container_of(position, struct thread_cache, link);
        if (thread == except)
            continue;
        thread_cache_visit(thread);
        thread_cache_flush(thread, lane, idle_only);
        thread_cache_part(thread);
    }
    thread_caches_unlock();
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
        holding.used_bytes += held_bytes - lane->heap.free_bytes;
        if (lane->peak_bytes > holding.peak_bytes)
            holding.peak_bytes = lane->peak_bytes;
        pthread_mutex_unlock(&lane->lock);
    }
    pthread_mutex_unlock(&cache->lanes_lock);
    return holding;
}

/* How large an extent for a request should be. A client may have a little more than it ever used at once.
 * What is over that, although it is idle, does not fit what is asked for now: *ret_surplus_bytes of it should
 * go back first. */
static uint64_t extent_bytes(struct cache *cache, struct lane *lane, uint64_t needed_bytes,
                             uint64_t *ret_surplus_bytes) {
    struct holding holding = pool_holding(cache, lane->pool);
    uint64_t used_bytes = holding.used_bytes + needed_bytes;
    uint64_t peak_bytes = used_bytes > holding.peak_bytes ? used_bytes : holding.peak_bytes;
    uint64_t limit_bytes = peak_bytes + peak_bytes / IDLE_SHARE;

    pthread_mutex_lock(&lane->lock);
    lane->peak_bytes = peak_bytes;
    uint64_t wanted_bytes = lane_extent_bytes_locked(lane, needed_bytes);
    pthread_mutex_unlock(&lane->lock);
    uint64_t least_bytes = needed_bytes < EXTENT_BYTES_MIN ? EXTENT_BYTES_MIN : needed_bytes;
    if (holding.held_bytes + wanted_bytes > limit_bytes && wanted_bytes > least_bytes)
        wanted_bytes = least_bytes;
    uint64_t held_bytes = holding.held_bytes + wanted_bytes;
    *ret_surplus_bytes = held_bytes > limit_bytes ? held_bytes - limit_bytes : 0;
    return wanted_bytes;
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
        bool has_room = r != GPUPOOL_E_EXHAUSTED && r != GPUPOOL_E_TOO_LARGE;
        if (has_room)
            return r;
        pthread_mutex_lock(&lane->lock);
        bytes = lane_learn_locked(lane, bytes, false);
        pthread_mutex_unlock(&lane->lock);
    }
    return GPUPOOL_E_EXHAUSTED;
}

/* Leases an extent for a request. */
static int grow(struct gpupool_client *client, struct lane *lane, uint64_t size_bytes, uint64_t deadline_ns) {
    uint64_t needed = size_class_round(size_bytes), freed = 0, surplus;
    struct proto_lease lease;
    struct segment *segment;
    struct pool pool;

    uint64_t wanted = extent_bytes(&client->cache, lane, needed, &surplus);
    if (surplus > 0)
        give_surplus(client, lane, surplus);
    int r = lease_at_once(client, lane, needed, wanted, &lease, &pool, &segment);
    /* While this waits the daemon asks for idle memory, here too: the keeper answers. Without its thread
     * nobody might, so that the wait for what lies idle here would never end: it goes after a moment, which
     * growing takes too. */
    if (r == GPUPOOL_E_EXHAUSTED) {
        uint64_t left_ns = time_left_ns(deadline_ns);
        bool alone = !client->cache.keeper.runs && left_ns > PATIENCE_NS;
        r = lease_acquire(client, lane->pool, needed, alone ? PATIENCE_NS : left_ns, &lease, &pool, &segment);
        if (r == GPUPOOL_E_EXHAUSTED && alone) {
            cache_give_back(client, false, &freed);
            r = lease_acquire(client, lane->pool, needed, time_left_ns(deadline_ns), &lease, &pool, &segment);
        }
    }
    if (r == GPUPOOL_E_EXHAUSTED) {
        /* There was no time to wait, or the keeper cannot: what lies idle here, for other streams and in
         * other sizes, goes first. */
        cache_give_back(client, false, &freed);
        r = lease_acquire(client, lane->pool, needed, GPUPOOL_NOW, &lease, &pool, &segment);
    }
    if (r < 0)
        return r;
    pthread_mutex_lock(&lane->lock);
    lane_learn_locked(lane, lease.capacity_bytes, true);
    r = lane_add_extent_locked(lane, lease.lease, lease.generation,
                               (char *)segment->memory + lease.offset_bytes, lease.capacity_bytes);
    pthread_mutex_unlock(&lane->lock);
    if (r == 0)
        return 0;
    lease_give_back(client, &lease);
    return error_set(GPUPOOL_E_NO_MEMORY, "no memory for the process's heap");
}

int cache_acquire(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes, void *stream,
                  uint64_t timeout_ns, struct gpupool_buffer *ret_buffer) {
    struct cache *cache = &client->cache;
    struct piece *piece = NULL;
    struct lane *lane = NULL;
    uint64_t deadline_ns;

    int r = cache_lane(client, pool, stream, &lane);
    if (r < 0)
        return r;
    struct thread_cache *thread = thread_cache_get(client, &cache->threads);
    r = thread == NULL ? -ENOMEM : take(thread, lane, size_bytes, false, &piece);
    if (r == -ENOSPC && lane_may_collect(lane, size_bytes)) {
        collect(cache, thread, lane, false);
        r = take(thread, lane, size_bytes, false, &piece);
    }
    deadline_ns = r == -ENOSPC ? clock_deadline_ns(clock_now_ns(), timeout_ns) : 0;
    while (r == -ENOSPC) { /* another thread may be quicker with what this one brings */
        r = grow(client, lane, size_bytes, deadline_ns);
        if (r < 0)
            return r;
        r = take(thread, lane, size_bytes, true, &piece);
    }
    if (r < 0)
        return error_set(GPUPOOL_E_NO_MEMORY, "no memory for the process's heap");
    cache_fill(ret_buffer, piece, size_bytes);
    return 0;
}

void cache_put(struct gpupool_client *client, struct piece *piece) {
    struct thread_cache *thread = thread_cache_get(client, &client->cache.threads);
    struct thread_lane *own = NULL;

    piece->generation++;
    if (thread != NULL) {
        thread_cache_enter(thread);
        own = own_lane(thread, piece->lane);
        if (own != NULL) {
            count_up(&own->counters->given_bytes, piece->capacity_bytes);
            if (piece->size_class >= SIZE_CLASS_LARGE && piece->size_class != own->large_class) {
                bin_flush(&own->bins[own->large_class], own->lane);
                own->large_class = piece->size_class;
            }
            bin_put(&own->bins[piece->size_class], own->lane, piece->size_class, piece);
        }
        thread_cache_leave(thread);
    }
    if (own == NULL) {
        pthread_mutex_lock(&piece->lane->lock);
        lane_give_locked(piece->lane, piece);
        pthread_mutex_unlock(&piece->lane->lock);
    }
}

void cache_count_given(struct gpupool_client *client, struct lane *lane, uint64_t size_bytes) {
    struct thread_cache *thread = thread_cache_get(client, &client->cache.threads);

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

/* --- giving back to the daemon --- */

/* Room for one more part, so that nothing taken out of a lane is lost. */
static bool pending_reserve(struct cache *cache) {
    if (cache->pending_count < cache->pending_capacity)
        return true;
    size_t capacity = cache->pending_capacity == 0 ? 64 : cache->pending_capacity * 2;
    struct lane_part *pending = realloc(cache->pending, capacity * sizeof *pending);
    if (pending == NULL)
        return false;
    cache->pending = pending;
    cache->pending_capacity = capacity;
    return true;
}

/* Takes parts out of a lane until they are so many bytes. Returns how many. */
static uint64_t take_out_of_lane(struct cache *cache, struct lane *lane, uint64_t wanted_bytes) {
    uint64_t bytes = 0;

    pthread_mutex_lock(&lane->lock);
    while (bytes < wanted_bytes && pending_reserve(cache) &&
           lane_reclaim_locked(lane, PART_BYTES_MIN, &cache->pending[cache->pending_count]))
        bytes += cache->pending[cache->pending_count++].size_bytes;
    pthread_mutex_unlock(&lane->lock);
    return bytes;
}

static void take_out(struct cache *cache, bool idle_only) {
    pthread_mutex_lock(&cache->lanes_lock);
    list_for_each(position, &cache->lanes) {
        struct lane *lane = container_of(position, struct lane, link);
        pthread_mutex_lock(&lane->lock);
        bool spare = idle_only && lane->touched;
        lane_flush_transfer_locked(lane, idle_only);
        if (idle_only)
            lane->touched = false;
        lane->collects = 0;
        pthread_mutex_unlock(&lane->lock);
        if (!spare)
            take_out_of_lane(cache, lane, UINT64_MAX);
    }
    pthread_mutex_unlock(&cache->lanes_lock);
}

/* Waits until the GPU has done what was enqueued on the lane's memory. The lane's stream alone is waited for:
 * waiting for the device would spoil any capture that is under way in the process (measured on H200,
 * CUDA 13.0). 0, CAPTURING when the stream itself is being captured, DRIVER. */
static int lane_wait(struct gpupool_client *client, const struct lane *lane) {
    const struct gpu *gpu;

    /* What comes into other lanes has been waited for. */
    if (lane->kind == GPUPOOL_POOL_HOST || lane->stream == GPUPOOL_NO_STREAM ||
        !cache_orders(lane, lane->stream))
        return 0;
    int r = devices_need_gpu(&client->devices, &gpu);
    if (r == 0)
        r = devices_check_stream(gpu, (unsigned)lane->device, lane->stream);
    if (r < 0)
        return r;
    int error = gpu->stream_synchronize((unsigned)lane->device, lane->stream);
    return error == 0 ? 0 : devices_fail(gpu, error, "waiting for a stream, to give idle memory back");
}

/* What the daemon refuses would be refused again: it split a part off, and this process did not hear of it.
 * That memory is out of the lane, and returns with the farewell. */
static bool part_is_refused(int error) {
    return error == GPUPOOL_E_STALE || error == GPUPOOL_E_INVALID || error == GPUPOOL_E_SHARED;
}

/* Releases what is pending. give_lock is held. */
static int release_pending(struct gpupool_client *client, uint64_t *ret_bytes) {
    struct cache *cache = &client->cache;
    const struct lane *waited = NULL;
    uint64_t bytes = 0;
    size_t kept = 0;
    int r = 0, idle = 0;

    for (size_t i = 0; i < cache->pending_count; i++) {
        struct lane_part part = cache->pending[i];
        if (part.lane != waited) {
            waited = part.lane;
            idle = lane_wait(client, part.lane);
        }
        int error =
            idle < 0 ? idle
                     : lease_release(client, part.lease, part.generation, part.offset_bytes, part.size_bytes);
        if (error == 0) {
            bytes += part.size_bytes;
        } else if (!part_is_refused(error)) { /* it stays pending, for the next time */
            r = error;
            cache->pending[kept++] = part;
        }
    }
    cache->pending_count = kept;
    *ret_bytes = bytes;
    return r;
}

int cache_give_back(struct gpupool_client *client, bool idle_only, uint64_t *ret_bytes) {
    struct cache *cache = &client->cache;

    pthread_mutex_lock(&cache->give_lock);
    collect(cache, NULL, NULL, idle_only);
    take_out(cache, idle_only);
    int r = release_pending(client, ret_bytes);
    pthread_mutex_unlock(&cache->give_lock);
    return r;
}

/* Gives so much of what lies idle back, of this lane first: it is not lost, and another extent will take its
 * place. Who gives back already, does it for this one too. Not worth a failure. */
static void give_surplus(struct gpupool_client *client, struct lane *lane, uint64_t surplus_bytes) {
    struct cache *cache = &client->cache;
    uint64_t bytes;

    if (pthread_mutex_trylock(&cache->give_lock) != 0)
        return;
    uint64_t taken_bytes = take_out_of_lane(cache, lane, surplus_bytes);
    pthread_mutex_lock(&cache->lanes_lock);
    list_for_each(position, &cache->lanes) {
        struct lane *other = container_of(position, struct lane, link);
        if (other != lane && other->pool == lane->pool && taken_bytes < surplus_bytes)
            taken_bytes += take_out_of_lane(cache, other, surplus_bytes - taken_bytes);
    }
    pthread_mutex_unlock(&cache->lanes_lock);
    (void)release_pending(client, &bytes);
    pthread_mutex_unlock(&cache->give_lock);
}

/* --- start and stop --- */

int cache_start(struct gpupool_client *client, uint64_t decay_ns, int reclaim_fd, bool with_thread) {
    thread_cache_prepare();
    counters_set_page(&client->cache.counters, client->page.memory);
    int r = keeper_start(client, decay_ns, reclaim_fd, with_thread);
    if (r < 0)
        return r;
    client->cache.enabled = true;
    return 0;
}

void cache_stop(struct gpupool_client *client) {
    struct cache *cache = &client->cache;

    keeper_stop(&cache->keeper);
    thread_caches_detach(&cache->threads);
    cache->enabled = false;
}
