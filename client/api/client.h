/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_API_CLIENT_H
#define CLIENT_API_CLIENT_H
/*
 * A client: what gpupool_open() makes. It owns one of each: the connection, the table of segments, the list
 * of devices, the remembered pools, the fork guard. All of it is there from open to close and none is shared
 * with other clients of the process.
 *
 * Locks: the joins', the fences', the page's, the connection's, then the segments'. Those of devices, pools,
 * recorded streams and staging are leaves. The caller's threads may be in any call at once; close is alone.
 */
#include <stdint.h>

#include "client/cache/cache.h"
#include "client/session/connection.h"
#include "client/session/device.h"
#include "client/session/fence.h"
#include "client/session/fork_guard.h"
#include "client/include/gpupool/gpupool.h"
#include "client/api/join.h"
#include "client/session/page.h"
#include "client/session/pool.h"
#include "client/api/recorded.h"
#include "client/session/segment.h"
#include "client/objects/staging/staging.h"

struct gpupool_client {
    struct fork_guard guard;
    struct connection connection;
    struct segments segments;
    struct devices devices;
    struct pools pools;
    struct cache cache;
    struct page page; /* the cache's and the fences' */
    struct fences fences;
    struct joins joins;
    struct recorded recorded;
    struct staging staging;
    uint64_t answer_timeout_ns;
    uint64_t alloc_timeout_ns;
    char *socket_path;
};

/* What every call begins with: INVALID for no client, FORKED in a child. */
int client_enter(const struct gpupool_client *client);

/* Whether client_enter would surely return 0: for fast paths, which leave what is rare to it. */
static inline bool client_may_hit(const struct gpupool_client *client) {
    return __builtin_expect(client != NULL, 1) && fork_guard_is_at_home(&client->guard);
}

/* As devices_need_device(), for calls that make something on a device or move bytes: also refuses one that
 * the daemon does not serve. Asks the daemon for its pools, until the device is known to be served. Where it
 * does not answer, the device passes: a client whose daemon is gone can still copy its buffers away. 0,
 * INVALID, NO_GPU, DRIVER. */
int client_need_device(struct gpupool_client *client, int device, const struct gpu **ret_gpu);

/* The deadline of a request that the daemon may take timeout_ns over. */
uint64_t client_deadline_ns(const struct gpupool_client *client, uint64_t timeout_ns);

/* The host pool for memory that is copied to and from a device of this process: that of its NUMA node, where
 * the system says it and the daemon has one, else of the node where the calling thread runs, else the first. A device that
 * there is not has no node.
 * 0, NO_POOL, or what the connection says. */
int client_host_pool_near(struct gpupool_client *client, unsigned device, uint32_t *ret_pool);

#endif
