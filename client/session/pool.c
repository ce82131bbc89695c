/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/pool.h"

#include <string.h>

#include "client/include/gpupool/gpupool.h"
#include "client/session/error.h"
#include "client/session/session.h"

int pools_fetch(struct session *session, struct request **ret_reply) {
    struct pools *pools = &session->pools;
    struct request *request = connection_request(&session->connection, PROTO_LIST_POOLS);
    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    int r =
        connection_exchange(&session->connection, &request, connection_deadline_ns(&session->connection, 0));
    if (r < 0)
        return r;

    const struct proto_pools *reply = &request->message.pools;
    pthread_mutex_lock(&pools->lock);
    pools->count = reply->count;
    for (uint32_t i = 0; i < reply->count; i++) {
        pools->list[i] = (struct pool){
            .id = reply->pools[i].id,
            .kind = (enum proto_pool_kind)reply->pools[i].kind,
            .numa_node = reply->pools[i].numa_node,
            .limit_bytes = reply->pools[i].limit_bytes,
            .is_movable = (reply->pools[i].flags & PROTO_POOL_VMM) != 0,
        };
        memcpy(pools->list[i].uuid, reply->pools[i].uuid, sizeof pools->list[i].uuid);
    }
    pthread_mutex_unlock(&pools->lock);
    if (ret_reply != NULL)
        *ret_reply = request;
    else
        request_recycle(request);
    return 0;
}

bool pools_look_up(struct pools *pools, bool (*accept)(const struct pool *pool, const void *wanted),
                   const void *wanted, struct pool *ret_pool) {
    bool found = false;

    pthread_mutex_lock(&pools->lock);
    for (unsigned i = 0; i < pools->count && !found; i++)
        if (accept(&pools->list[i], wanted)) {
            *ret_pool = pools->list[i];
            found = true;
        }
    pthread_mutex_unlock(&pools->lock);
    return found;
}

int pools_select(struct session *session, bool (*accept)(const struct pool *pool, const void *wanted),
                 const void *wanted, struct pool *ret_pool) {
    if (pools_look_up(&session->pools, accept, wanted, ret_pool))
        return 0;
    int r = pools_fetch(session, NULL);
    if (r < 0)
        return error_prefix(r, "listing the pools");
    if (pools_look_up(&session->pools, accept, wanted, ret_pool))
        return 0;
    return error_set(GPUPOOL_E_NO_POOL, "the daemon has no such pool");
}

static bool has_id(const struct pool *pool, const void *wanted) {
    return pool->id == *(const uint32_t *)wanted;
}

int pools_find(struct session *session, uint32_t id, struct pool *ret_pool) {
    int r = pools_select(session, has_id, &id, ret_pool);
    return r == GPUPOOL_E_NO_POOL ? error_prefix(r, "pool %u", id) : r;
}
