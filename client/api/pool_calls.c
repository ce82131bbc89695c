/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls about pools: the list, the pool of a device, the host pool of a node; and for the library's own
 * objects, whether the daemon serves a device, and which host pool lies near it.
 */
#include <sched.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/api/client.h"
#include "client/session/error.h"

static void describe_pool(struct gpupool_client *client, const struct proto_pool *from,
                          struct gpupool_pool *to) {
    _Static_assert((int)GPUPOOL_POOL_DEVICE == PROTO_POOL_DEVICE && (int)GPUPOOL_POOL_HOST == PROTO_POOL_HOST,
                   "one numbering");
    _Static_assert(sizeof to->name == sizeof from->name && sizeof to->uuid >= GPU_UUID_TEXT_SIZE,
                   "texts fit");

    *to = (struct gpupool_pool){
        .id = from->id,
        .kind = from->kind,
        .device = -1,
        .numa_node = from->numa_node,
        .limit_bytes = from->limit_bytes,
        .reserved_bytes = from->reserved_bytes,
        .leased_bytes = from->leased_bytes,
        .free_bytes = from->free_bytes,
        .quarantined_bytes = from->quarantined_bytes,
        .largest_free_bytes = from->largest_free_bytes,
    };
    memcpy(to->name, from->name, sizeof to->name);
    if (from->kind == PROTO_POOL_DEVICE) {
        struct gpu_uuid uuid;
        memcpy(uuid.bytes, from->uuid, sizeof uuid.bytes);
        gpu_uuid_format(&uuid, to->uuid);
        to->device = devices_find(&client->session.devices, from->uuid);
    }
}

int gpupool_pools(struct gpupool_client *client, struct gpupool_pool *pools, size_t capacity,
                  size_t *ret_count) {
    int r = client_enter(client);
    if (r < 0)
        return r;
    if (ret_count == NULL || (pools == NULL && capacity > 0))
        return error_set(GPUPOOL_E_INVALID, "gpupool_pools: no room for the answer");
    _cleanup_(request_recyclep) struct request *reply = NULL;
    r = pools_fetch(&client->session, &reply);
    if (r < 0)
        return error_prefix(r, "listing the pools");
    for (size_t i = 0; i < reply->message.pools.count && i < capacity; i++)
        describe_pool(client, &reply->message.pools.pools[i], &pools[i]);
    *ret_count = reply->message.pools.count;
    return error_end(0);
}

static bool is_of_device(const struct pool *pool, const void *wanted) {
    return pool->kind == PROTO_POOL_DEVICE && memcmp(pool->uuid, wanted, sizeof pool->uuid) == 0;
}

static int find_pool(struct gpupool_client *client, unsigned device, struct pool *ret_pool) {
    return pools_select(&client->session, is_of_device, client->session.devices.list[device].uuid.bytes,
                        ret_pool);
}

/* How many of this process's devices the daemon was last known to serve. */
static unsigned count_served(struct gpupool_client *client) {
    struct pool pool;
    unsigned count = 0;

    for (unsigned i = 0; i < client->session.devices.count; i++)
        count += pools_look_up(&client->session.pools, is_of_device,
                               client->session.devices.list[i].uuid.bytes, &pool);
    return count;
}

/* Says of a device that it is none, or none that the daemon serves. Returns the error. */
static int refuse_device(struct gpupool_client *client, int error, int device) {
    char text[GPU_UUID_TEXT_SIZE];

    /* Counted from what the daemon says now. Where it does not answer, from what it said last. */
    (void)pools_fetch(&client->session, NULL);
    unsigned served = count_served(client);
    const char *plural = served == 1 ? "" : "s";
    if (device < 0 || (unsigned)device >= client->session.devices.count)
        return error_set(error, "device %d: the daemon serves %u device%s of this process", device, served,
                         plural);
    gpu_uuid_format(&client->session.devices.list[device].uuid, text);
    return error_set(error, "device %d (%s) is not served: the daemon serves %u device%s of this process",
                     device, text, served, plural);
}

int gpupool_device_pool(struct gpupool_client *client, int device, uint32_t *ret_pool) {
    const struct gpu *gpu;
    struct pool pool;

    int r = client_enter(client);
    if (r < 0)
        return r;
    if (ret_pool == NULL || device < -1)
        return error_set(GPUPOOL_E_INVALID, "gpupool_device_pool: device %d", device);
    r = devices_need_gpu(&client->session.devices, &gpu);
    if (r < 0)
        return error_prefix(r, "looking for the pool of device %d", device);
    r = devices_resolve(&client->session.devices, &device);
    if (r < 0)
        return r;
    if ((unsigned)device >= client->session.devices.count)
        return refuse_device(client, GPUPOOL_E_NO_POOL, device);
    r = find_pool(client, (unsigned)device, &pool);
    if (r == GPUPOOL_E_NO_POOL)
        return refuse_device(client, r, device);
    if (r < 0)
        return error_prefix(r, "device %d", device);
    *ret_pool = pool.id;
    return error_end(0);
}

int client_enter_device(struct gpupool_client *client, int device, const struct gpu **ret_gpu) {
    int r = client_enter(client);
    return r < 0 ? r : devices_need_device(&client->session.devices, device, ret_gpu);
}

int client_enter_served(struct gpupool_client *client, int device, const struct gpu **ret_gpu) {
    struct pool pool;

    int r = client_enter(client);
    if (r < 0)
        return r;
    struct devices *devices = &client->session.devices;
    r = devices_need_gpu(devices, ret_gpu);
    if (r < 0)
        return r;
    if (device < 0 || (unsigned)device >= devices->count)
        return refuse_device(client, GPUPOOL_E_INVALID, device);
    uint64_t bit = UINT64_C(1) << device;
    if ((atomic_load_explicit(&devices->served, memory_order_relaxed) & bit) == 0) {
        r = find_pool(client, (unsigned)device, &pool);
        if (r == GPUPOOL_E_NO_POOL)
            return refuse_device(client, GPUPOOL_E_INVALID, device);
        if (r == 0)
            atomic_fetch_or(&devices->served, bit);
    }
    devices_note_use(devices, (unsigned)device);
    return 0;
}

static bool is_on_node(const struct pool *pool, const void *wanted) {
    return pool->kind == PROTO_POOL_HOST && pool->numa_node == *(const int *)wanted;
}

static bool is_host(const struct pool *pool, const void *wanted) {
    (void)wanted;
    return pool->kind == PROTO_POOL_HOST;
}

int gpupool_host_pool(struct gpupool_client *client, int numa_node, uint32_t *ret_pool) {
    struct pool pool;
    bool any = numa_node == -1;

    int r = client_enter(client);
    if (r < 0)
        return r;
    if (ret_pool == NULL || numa_node < -1)
        return error_set(GPUPOOL_E_INVALID, "gpupool_host_pool: node %d", numa_node);
    if (any) {
        unsigned cpu, node;
        numa_node = getcpu(&cpu, &node) == 0 ? (int)node : 0;
    }
    r = pools_select(&client->session, any ? is_host : is_on_node, &numa_node, &pool);
    if (r == 0 && any)
        (void)pools_look_up(&client->session.pools, is_on_node, &numa_node,
                            &pool); /* else it stays the first */
    if (r < 0)
        return any ? error_prefix(r, "host memory")
                   : error_prefix(r, "host memory of NUMA node %d", numa_node);
    *ret_pool = pool.id;
    return error_end(0);
}

int client_host_pool_near(struct gpupool_client *client, unsigned device, uint32_t *ret_pool) {
    int node = device < client->session.devices.count ? client->session.devices.list[device].numa_node : -1;
    struct pool pool;

    /* Not by pools_select() for the node: without such a pool in the daemon, each call would ask again. */
    if (node >= 0 && pools_select(&client->session, is_host, NULL, &pool) == 0 &&
        pools_look_up(&client->session.pools, is_on_node, &node, &pool)) {
        *ret_pool = pool.id;
        return 0;
    }
    return gpupool_host_pool(client, -1, ret_pool);
}
