/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program's answer to the daemon's questions for idle memory.
 */
#include "client/api/client.h"
#include "client/session/error.h"
#include "client/session/pool.h"

static int check(struct gpupool_client *client, uint32_t pool, enum gpupool_reclaim_outcome outcome,
                 uint64_t kept_bytes) {
    _Static_assert((int)GPUPOOL_RECLAIM_DONE == PROTO_RECLAIM_DONE &&
                       (int)GPUPOOL_RECLAIM_NOTHING == PROTO_RECLAIM_NOTHING &&
                       (int)GPUPOOL_RECLAIM_CAPTURING == PROTO_RECLAIM_CAPTURING &&
                       (int)GPUPOOL_RECLAIM_BUSY == PROTO_RECLAIM_BUSY &&
                       (int)GPUPOOL_RECLAIM_WAITS == PROTO_RECLAIM_WAITS,
                   "one numbering");
    struct pool found;

    if (!client->cache.enabled)
        return error_set(GPUPOOL_E_INVALID,
                         "the client was opened without a cache, and is not asked for idle memory");
    if (outcome < GPUPOOL_RECLAIM_DONE || outcome > GPUPOOL_RECLAIM_WAITS)
        return error_set(GPUPOOL_E_INVALID, "outcome %d: not one of enum gpupool_reclaim_outcome",
                         (int)outcome);
    if (pool == 0 && kept_bytes > 0)
        return error_set(GPUPOOL_E_INVALID,
                         "kept_bytes without a pool: say for each pool what is kept of it");
    if (kept_bytes > PROTO_SIZE_MAX)
        return error_set(GPUPOOL_E_INVALID, "kept_bytes: larger than any pool may ever be");
    return pool == 0 ? 0 : pools_find(&client->session, pool, &found);
}

int gpupool_reclaimed(struct gpupool_client *client, uint32_t pool, enum gpupool_reclaim_outcome outcome,
                      uint64_t kept_bytes) {
    int r = client_enter(client);
    if (r < 0)
        return r;
    r = check(client, pool, outcome, kept_bytes);
    if (r == 0)
        r = answering_tell(&client->cache, pool, (enum proto_reclaim)outcome, kept_bytes);
    return error_end(r < 0 ? error_prefix(r, "gpupool_reclaimed") : 0);
}
