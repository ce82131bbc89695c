/* SPDX-License-Identifier: Apache-2.0 */
#include "client/api/client.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/api/alloc.h"
#include "client/session/error.h"
#include "client/api/prepare.h"
#include "client/api/private_daemon.h"

#define DEFAULT_SOCKET "/run/gpupool/gpupool.sock"
#define DEFAULT_CONNECT_TIMEOUT_NS                                                                           \
    (10 * NS_PER_S) /* a CUDA context takes 0.3 s (H200), several in a row some */
#define DEFAULT_ANSWER_TIMEOUT_NS                                                                            \
    (30 * NS_PER_S) /* pinning host memory takes up to 0.7 s a 4 GiB on H200                                 \
                     */

/* Longer than the pauses of a worker between requests, shorter than people wait for memory. */
#define DEFAULT_DECAY_NS (10 * NS_PER_S)

const char *gpupool_version(void) {
    return GPUPOOL_VERSION;
}

int client_enter(const struct gpupool_client *client) {
    if (client == NULL)
        return error_set(GPUPOOL_E_INVALID, "no client");
    if (fork_guard_is_child(&client->guard))
        return error_set(GPUPOOL_E_FORKED,
                         "this client belongs to the parent of this process (pid %d): "
                         "open a client after the fork",
                         (int)client->guard.owner);
    return 0;
}

uint64_t client_deadline_ns(const struct gpupool_client *client, uint64_t timeout_ns) {
    return clock_deadline_ns(clock_deadline_ns(clock_now_ns(), timeout_ns), client->answer_timeout_ns);
}

/* A program may have been built with an older header (fewer members) or a newer one (whose further members
 * must say nothing, because this library does not know them). */
static int read_options(const struct gpupool_options *options, struct gpupool_options *ret_options) {
    struct gpupool_options own = GPUPOOL_OPTIONS_INIT;

    if (options != NULL) {
        size_t size = options->struct_size;
        if (size < offsetof(struct gpupool_options, socket) + sizeof own.socket || size > 4096)
            return error_set(GPUPOOL_E_INVALID, "options.struct_size is %zu: start from GPUPOOL_OPTIONS_INIT",
                             size);
        for (size_t i = sizeof own; i < size; i++)
            if (((const unsigned char *)options)[i] != 0)
                return error_set(GPUPOOL_E_INVALID,
                                 "options: this library (%s) is too old for one that is set",
                                 GPUPOOL_VERSION);
        memcpy(&own, options, size < sizeof own ? size : sizeof own);
        if ((own.flags & ~(GPUPOOL_OPEN_NO_CUDA | GPUPOOL_OPEN_NO_CACHE | GPUPOOL_OPEN_NO_THREAD)) != 0 ||
            own.reserved != 0)
            return error_set(GPUPOOL_E_INVALID, "options.flags is 0x%x: unknown flags", own.flags);
    }
    if (own.socket == NULL)
        own.socket = getenv("GPUPOOL_SOCKET");
    if (own.socket == NULL || *own.socket == '\0')
        own.socket = DEFAULT_SOCKET;
    if (own.connect_timeout_ns == 0)
        own.connect_timeout_ns = DEFAULT_CONNECT_TIMEOUT_NS;
    if (own.answer_timeout_ns == 0)
        own.answer_timeout_ns = DEFAULT_ANSWER_TIMEOUT_NS;
    if (own.alloc_timeout_ns == 0) {
        int r = alloc_read_timeout(&own.alloc_timeout_ns);
        if (r < 0)
            return r;
    }
    *ret_options = own;
    return 0;
}

static void client_free(struct gpupool_client *client) {
    staging_deinit(&client->staging);
    connection_deinit(&client->connection);
    segments_deinit(&client->segments);
    fences_close(&client->fences);
    fences_deinit(&client->fences);
    joins_deinit(&client->joins);
    recorded_deinit(&client->recorded);
    page_close(&client->page);
    devices_deinit(&client->devices);
    pools_deinit(&client->pools);
    cache_deinit(&client->cache);
    fork_guard_deinit(&client->guard);
    free(client->socket_path);
    free(client);
}

static void client_freep(struct gpupool_client **client) {
    if (*client != NULL)
        client_free(*client);
}

/* *ret_reclaim_fd: readable when the daemon wants idle memory back, which is asked for with a cache; -1: it
 * has no descriptor for that. */
static int client_greet(struct gpupool_client *client, uint64_t deadline_ns, bool has_cache,
                        int *ret_reclaim_fd) {
    _cleanup_(request_recyclep) struct request *request =
        connection_request(&client->connection, PROTO_HELLO);
    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    request->message.hello = (struct proto_hello){
        .magic = PROTO_MAGIC,
        .version_min = PROTO_VERSION_MIN,
        .version_max = PROTO_VERSION_MAX,
        .flags = (has_cache ? PROTO_HELLO_RECLAIM : 0) | (client->devices.forbidden ? PROTO_HELLO_NO_GPU : 0),
    };
    int r = connection_exchange(&client->connection, &request, deadline_ns);
    if (r < 0)
        /* Nothing was connected yet that could be said to be gone. */
        return r == GPUPOOL_E_DISCONNECTED ? GPUPOOL_E_CONNECT : r;
    client->devices.kind = (enum proto_gpu_kind)request->message.hello_reply.gpu;
    *ret_reclaim_fd = take_fd(&request->fd);
    return 0;
}

/* The cache counts in the page that is shared with the daemon. Without one nobody but the statistics misses
 * anything, unless it was the connection that ended. */
static int client_count(struct gpupool_client *client, uint64_t deadline_ns) {
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    int r = page_need(client, deadline_ns);
    if (r == GPUPOOL_E_DISCONNECTED || r == GPUPOOL_E_PROTOCOL || r == GPUPOOL_E_TIMED_OUT)
        return error_prefix(r, "greeting the daemon at %s", client->socket_path);
    error_restore(text);
    return 0;
}

int gpupool_open(const struct gpupool_options *options, struct gpupool_client **ret_client) {
    struct gpupool_options own = GPUPOOL_OPTIONS_INIT;

    if (ret_client == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_open: ret_client is NULL");
    int r = read_options(options, &own);
    if (r < 0)
        return r;
    uint64_t deadline_ns = clock_deadline_ns(clock_now_ns(), own.connect_timeout_ns);

    _cleanup_(client_freep) struct gpupool_client *client = calloc(1, sizeof *client);
    if (client == NULL)
        return error_set(GPUPOOL_E_NO_MEMORY, "no memory for a client");
    fork_guard_init(&client->guard);
    segments_init(&client->segments);
    devices_init(&client->devices);
    pools_init(&client->pools);
    cache_init(&client->cache);
    page_init(&client->page);
    fences_init(&client->fences);
    joins_init(&client->joins);
    recorded_init(&client->recorded);
    staging_init(&client->staging);
    connection_init(&client->connection, &client->segments, own.answer_timeout_ns);
    client->devices.forbidden = (own.flags & GPUPOOL_OPEN_NO_CUDA) != 0;
    client->answer_timeout_ns = own.answer_timeout_ns;
    client->alloc_timeout_ns = own.alloc_timeout_ns;
    r = staging_configure(&client->staging, (own.flags & GPUPOOL_OPEN_NO_THREAD) == 0);
    if (r < 0)
        return r;

    if (strcmp(own.socket, "private") == 0) {
        r = private_daemon_start(own.daemon_path, own.daemon_arguments, deadline_ns, &client->socket_path);
        if (r < 0)
            return r;
    } else {
        client->socket_path = strdup(own.socket);
        if (client->socket_path == NULL)
            return error_set(GPUPOOL_E_NO_MEMORY, "no memory for the socket's path");
    }
    r = connection_open(&client->connection, client->socket_path, deadline_ns);
    if (r < 0)
        return r;
    bool has_cache = (own.flags & GPUPOOL_OPEN_NO_CACHE) == 0;
    _cleanup_(close_fdp) int reclaim_fd = -1;
    r = client_greet(client, deadline_ns, has_cache, &reclaim_fd);
    if (r < 0)
        return error_prefix(r, "greeting the daemon at %s", client->socket_path);
    if (has_cache) {
        client->cache.keeper.reclaim = own.reclaim;
        client->cache.keeper.reclaim_argument = own.reclaim_argument;
        r = client_count(client, deadline_ns);
        if (r < 0)
            return r;
        r = cache_start(client, own.decay_ns == 0 ? DEFAULT_DECAY_NS : own.decay_ns, take_fd(&reclaim_fd),
                        (own.flags & GPUPOOL_OPEN_NO_THREAD) == 0);
        if (r < 0)
            return r;
    }
    if (own.prepare_host_bytes > 0) {
        r = prepare_host(client, own.prepare_host_bytes);
        if (r < 0) {
            gpupool_close(take_ptr(&client)); /* it has leases, mappings and a thread by now */
            return r;
        }
    }
    *ret_client = take_ptr(&client);
    return error_end(0);
}

static void client_farewell(struct gpupool_client *client) {
    _cleanup_(request_recyclep) struct request *request = connection_request(&client->connection, PROTO_BYE);
    if (request != NULL)
        (void)connection_exchange(&client->connection, &request, client_deadline_ns(client, 0));
}

void gpupool_close(struct gpupool_client *client) {
    char text[ERROR_TEXT_SIZE];

    if (client == NULL)
        return;
    alloc_forget_client(client);
    if (fork_guard_is_child(&client->guard)) {
        /* Host mappings are not here (DONTFORK); driver, socket and locks are the parent's. */
        connection_forget(&client->connection);
        segments_forget(&client->segments);
        cache_forget(&client->cache);
        fences_forget(&client->fences);
        recorded_forget(&client->recorded);
        fork_guard_deinit(&client->guard);
        free(client->socket_path);
        free(client);
        return;
    }
    error_save(text); /* closing cannot fail, so it leaves the thread's last error as it is */
    int error = client_thread.error;
    staging_stop(&client->staging);
    cache_stop(client);
    bool idle = devices_synchronize(&client->devices) == 0;
    joins_close(&client->joins, client->devices.gpu);
    bool unmapped = segments_close(&client->segments);
    fences_close(&client->fences);
    /* BYE promises that nothing of this process can touch the memory any more. Without that the daemon sees
     * the end of file and waits for the end of the process. */
    if (idle && unmapped)
        client_farewell(client);
    client_free(client);
    error_restore(text);
    error_end(error);
}

const char *gpupool_socket_path(const struct gpupool_client *client) {
    return client != NULL ? client->socket_path : "";
}

enum gpupool_gpu gpupool_gpu_kind(const struct gpupool_client *client) {
    _Static_assert((int)GPUPOOL_GPU_NONE == PROTO_GPU_NONE && (int)GPUPOOL_GPU_CUDA == PROTO_GPU_CUDA &&
                       (int)GPUPOOL_GPU_SIM == PROTO_GPU_SIM,
                   "one numbering");
    return client != NULL ? (enum gpupool_gpu)client->devices.kind : GPUPOOL_GPU_NONE;
}

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
        to->device = devices_find(&client->devices, from->uuid);
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
    r = pools_fetch(&client->pools, &client->connection, client_deadline_ns(client, 0), &reply);
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
    return pools_select(&client->pools, &client->connection, client_deadline_ns(client, 0), is_of_device,
                        client->devices.list[device].uuid.bytes, ret_pool);
}

/* How many of this process's devices the daemon was last known to serve. */
static unsigned count_served(struct gpupool_client *client) {
    struct pool pool;
    unsigned count = 0;

    for (unsigned i = 0; i < client->devices.count; i++)
        count += pools_look_up(&client->pools, is_of_device, client->devices.list[i].uuid.bytes, &pool);
    return count;
}

/* Says of a device that it is none, or none that the daemon serves. Returns the error. */
static int refuse_device(struct gpupool_client *client, int error, int device) {
    struct request *reply;
    char text[GPU_UUID_TEXT_SIZE];

    /* Counted from what the daemon says now. Where it does not answer, from what it said last. */
    if (pools_fetch(&client->pools, &client->connection, client_deadline_ns(client, 0), &reply) == 0)
        request_recycle(reply);
    unsigned served = count_served(client);
    const char *plural = served == 1 ? "" : "s";
    if (device < 0 || (unsigned)device >= client->devices.count)
        return error_set(error, "device %d: the daemon serves %u device%s of this process", device, served,
                         plural);
    gpu_uuid_format(&client->devices.list[device].uuid, text);
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
    r = devices_need_gpu(&client->devices, &gpu);
    if (r < 0)
        return error_prefix(r, "looking for the pool of device %d", device);
    if (device == -1) {
        unsigned current;
        r = devices_current(&client->devices, &current);
        if (r < 0)
            return r;
        device = (int)current;
    }
    if ((unsigned)device >= client->devices.count)
        return refuse_device(client, GPUPOOL_E_NO_POOL, device);
    r = find_pool(client, (unsigned)device, &pool);
    if (r == GPUPOOL_E_NO_POOL)
        return refuse_device(client, r, device);
    if (r < 0)
        return error_prefix(r, "device %d", device);
    *ret_pool = pool.id;
    return error_end(0);
}

int client_need_device(struct gpupool_client *client, int device, const struct gpu **ret_gpu) {
    struct devices *devices = &client->devices;
    struct pool pool;

    int r = devices_need_gpu(devices, ret_gpu);
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
    uint64_t deadline_ns = client_deadline_ns(client, 0);
    r = pools_select(&client->pools, &client->connection, deadline_ns, any ? is_host : is_on_node, &numa_node,
                     &pool);
    if (r == 0 && any)
        (void)pools_look_up(&client->pools, is_on_node, &numa_node, &pool); /* else it stays the first */
    if (r < 0)
        return any ? error_prefix(r, "host memory")
                   : error_prefix(r, "host memory of NUMA node %d", numa_node);
    *ret_pool = pool.id;
    return error_end(0);
}

int client_host_pool_near(struct gpupool_client *client, unsigned device, uint32_t *ret_pool) {
    int node = device < client->devices.count ? client->devices.list[device].numa_node : -1;
    uint64_t deadline_ns = client_deadline_ns(client, 0);
    struct pool pool;

    /* Not by pools_select() for the node: where the daemon has no pool of it, that would ask again each time.
     */
    if (node >= 0 &&
        pools_select(&client->pools, &client->connection, deadline_ns, is_host, NULL, &pool) == 0 &&
        pools_look_up(&client->pools, is_on_node, &node, &pool)) {
        *ret_pool = pool.id;
        return 0;
    }
    return gpupool_host_pool(client, -1, ret_pool);
}
