/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preparing: memory of a pool is mapped before there is work that the mapping would stop. A call leases what
 * is missing, which maps the segments of the leases, and holds the leases until all of it is there. Then host
 * memory of a client with a cache goes into the process's heap, where it is idle. All other leases go back to
 * the daemon, and so do all leases of a call that fails. Their segments stay mapped.
 *
 * Device memory goes back because a stream heap has one stream: memory in the stream heap of one stream would
 * serve no other stream without a fence, but any stream heap can lease it from the daemon.
 */
#include <limits.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "client/api/buffer.h"
#include "client/api/client.h"
#include "client/cache/add_lease.h"
#include "client/core/deferred.h"
#include "client/core/extent_size.h"
#include "client/session/call_time.h"
#include "client/session/error.h"
#include "client/session/lease.h"
#include "client/session/question.h"

struct preparation {
    struct gpupool_client *client;
    uint32_t pool;
    struct stream_heap *stream_heap; /* that the memory is for; NULL: it goes back */
    struct grant *grants;
    size_t count, capacity;
    uint64_t bytes; /* of all leases */
};

/* Gives all leases back. */
static void preparation_deinit(struct preparation *preparation) {
    for (size_t i = 0; i < preparation->count; i++)
        lease_give_back(&preparation->client->session, &preparation->grants[i].lease);
    free(preparation->grants);
}

static int reserve(struct preparation *preparation) {
    struct grant *grants =
        array_room(preparation->grants, preparation->count, &preparation->capacity, sizeof *grants);

    if (grants == NULL)
        return error_set(GPUPOOL_E_NO_MEMORY, "no memory for a list of leases");
    preparation->grants = grants;
    return 0;
}

/* Leases one range, and maps its segment. Waits for growth of the pool only: memory that other processes keep
 * idle is not worth taking from them before this process needs it. */
static int lease_range(struct preparation *preparation, uint64_t size_bytes, uint64_t deadline_ns,
                       uint32_t probe) {
    int r = reserve(preparation);
    if (r < 0)
        return r;
    const struct proto_acquire acquire = {
        .pool = preparation->pool,
        .flags = PROTO_ACQUIRE_NO_RECLAIM | probe,
        .size_bytes = size_bytes,
        .timeout_ns = clock_left_ns(deadline_ns),
    };
    struct grant *grant = &preparation->grants[preparation->count];
    r = lease_acquire(&preparation->client->session, &acquire, grant);
    if (r < 0)
        return r;
    preparation->count++;
    preparation->bytes += grant->lease.capacity_bytes;
    return 0;
}

/* The bytes that are idle in the stream heap. Gathers first what lies in the caches of threads. It counts as
 * used now. */
static uint64_t idle_bytes(struct gpupool_client *client, struct stream_heap *stream_heap) {
    thread_caches_collect(&client->cache.threads, NULL, stream_heap, false);
    pthread_mutex_lock(&stream_heap->lock);
    depot_flush_locked(stream_heap, false);
    deferred_settle_locked(stream_heap, UINT_MAX);
    stream_heap->touched = true;
    uint64_t bytes = stream_heap_free_bytes_locked(stream_heap);
    pthread_mutex_unlock(&stream_heap->lock);
    return bytes;
}

/* Leases what is missing: as one range, which serves any buffer of up to its size. Where the pool has no such
 * range and cannot grow by one, as several, the largest first. After the deadline only the smallest is asked
 * for. */
static int lease_missing(struct preparation *preparation, uint64_t missing_bytes, uint64_t deadline_ns) {
    uint64_t range_bytes = missing_bytes;
    int r = 0;

    while (r == 0 && preparation->bytes < missing_bytes) {
        uint64_t rest_bytes = missing_bytes - preparation->bytes;
        range_bytes = range_bytes < rest_bytes ? range_bytes : rest_bytes;
        bool may_halve = range_bytes > EXTENT_BYTES_MIN;
        r = lease_range(preparation, range_bytes, deadline_ns, may_halve ? PROTO_ACQUIRE_PROBE_ROOM : 0);
        if (r == GPUPOOL_E_EXHAUSTED && may_halve) {
            uint64_t half_bytes = clock_now_ns() < deadline_ns ? heap_round_up(range_bytes / 2) : 0;
            range_bytes = half_bytes > EXTENT_BYTES_MIN ? half_bytes : EXTENT_BYTES_MIN;
            r = 0;
        }
    }
    return r;
}

/* A stream heap keeps nothing in a shortage. */
static int check_shortage(struct gpupool_client *client, uint32_t pool) {
    if (shortage_is_on(&client->cache.shortage, pool))
        shortage_end_if_over(&client->cache, pool);
    return shortage_is_on(&client->cache.shortage, pool)
               ? error_set(GPUPOOL_E_EXHAUSTED,
                           "requests wait for memory of the pool: meanwhile clients keep none of it idle")
               : 0;
}

static int add(struct preparation *preparation, const struct grant *grant) {
    return stream_heap_add_lease(&preparation->client->cache, preparation->stream_heap, grant,
                                 grant->lease.capacity_bytes, NULL);
}

/* Adds the leases to the stream heap. A lease that does not get there was given back. */
static int keep(struct preparation *preparation) {
    int r = check_shortage(preparation->client, preparation->pool);

    while (r == 0 && preparation->count > 0)
        r = add(preparation, &preparation->grants[--preparation->count]);
    return r;
}

/* Leases whole segments, of which buffers of the pool are made, and gives them back. EXHAUSTED: the pool may
 * still have the memory in other segments. */
static int prepare_segments(struct gpupool_client *client, const struct pool *pool, uint64_t bytes,
                            uint64_t timeout_ns) {
    uint64_t slot_bytes = proto_slot_bytes(pool->limit_bytes);
    const struct proto_acquire_segments acquire = {
        .pool = pool->id,
        .flags = PROTO_ACQUIRE_NO_RECLAIM | PROTO_ACQUIRE_PROBE_ROOM,
        .segment_bytes = slot_bytes,
        .count = (uint32_t)((bytes + slot_bytes - 1) / slot_bytes),
        .timeout_ns = timeout_ns,
    };
    _cleanup_(freep) struct segment_grant *grants = calloc(acquire.count, sizeof *grants);
    if (grants == NULL)
        return error_no_memory();
    int r = lease_acquire_segments(&client->session, &acquire, grants);
    if (r < 0)
        return r;
    lease_give_back_segments(&client->session, grants, acquire.count);
    atomic_fetch_or(&client->cache.prepared_pools, shortage_bit(pool->id));
    return 0;
}

static int prepare(struct gpupool_client *client, uint32_t pool_id, uint64_t bytes) {
    _cleanup_(call_time_end) struct call_time time = call_time_begin(client->alloc_timeout_ns);
    _cleanup_(bringing_endp) struct session *bringing = bringing_begin(&client->session);
    _cleanup_(preparation_deinit) struct preparation preparation = {.client = client, .pool = pool_id};
    uint64_t deadline_ns = clock_deadline_ns(clock_now_ns(), client->alloc_timeout_ns), idle = 0;
    struct pool pool;

    int r = buffer_find_pool(client, pool_id, GPUPOOL_NO_STREAM, 0, &pool);
    if (r == 0 && client->cache.enabled && pool.kind == PROTO_POOL_HOST) {
        r = check_shortage(client, pool_id);
        if (r == 0)
            r = cache_stream_heap(&client->cache, &pool, GPUPOOL_NO_STREAM, &preparation.stream_heap);
        if (r == 0)
            idle = idle_bytes(client, preparation.stream_heap);
    }
    if (r == 0 && client->cache.has_arenas && client->cache.enabled && pool.is_movable &&
        bytes <= pool.limit_bytes) {
        r = prepare_segments(client, &pool, bytes, client->alloc_timeout_ns);
        if (r != GPUPOOL_E_EXHAUSTED)
            return r;
        r = 0;
    }
    if (r == 0 && bytes > idle)
        r = lease_missing(&preparation, heap_round_up(bytes - idle), deadline_ns);
    return r == 0 && preparation.stream_heap != NULL ? keep(&preparation) : r;
}

int gpupool_prepare(struct gpupool_client *client, uint32_t pool, uint64_t bytes) {
    int r = client_enter(client);
    if (r < 0)
        return r;
    if (bytes == 0)
        return error_set(GPUPOOL_E_INVALID, "gpupool_prepare: 0 bytes");
    r = bytes > PROTO_SIZE_MAX ? error_set(GPUPOOL_E_TOO_LARGE, "larger than any pool may ever be")
                               : prepare(client, pool, bytes);
    return error_end(r < 0 ? error_prefix(r, "preparing %s of pool %u", BYTES_TEXT(bytes), pool) : 0);
}

/* The host pool that memory for the current device comes from best. */
static int find_host_pool(struct gpupool_client *client, uint32_t *ret_pool) {
    const struct gpu *gpu;
    unsigned device;

    int r = devices_gpu(&client->session.devices, &gpu);
    if (r < 0)
        return r;
    if (gpu == NULL)
        return gpupool_host_pool(client, -1, ret_pool);
    r = devices_current(&client->session.devices, &device);
    return r < 0 ? r : client_host_pool_near(client, device, ret_pool);
}

int client_prepare_host(struct gpupool_client *client, uint64_t bytes) {
    uint32_t pool;

    int r = find_host_pool(client, &pool);
    return r < 0 ? error_prefix(r, "looking for host memory to prepare")
                 : gpupool_prepare(client, pool, bytes);
}
