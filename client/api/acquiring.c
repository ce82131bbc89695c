/* SPDX-License-Identifier: Apache-2.0 */
#include "client/api/acquiring.h"

#include "base/clock.h"
#include "client/api/buffer.h"
#include "client/api/client.h"
#include "client/session/error.h"

/* A client without a cache is never asked to close a segment. Its idle mappings may be just the room that its
 * own request lacks, so it asks by itself when the pool has no room, and then waits. */
static int begin_lease(struct acquiring *acquiring, uint32_t pool, uint64_t size_bytes, uint64_t timeout_ns,
                       uint32_t probe) {
    const struct proto_acquire acquire = {.pool = pool,
                                          .flags =
                                              PROTO_ACQUIRE_NO_RECLAIM | PROTO_ACQUIRE_PROBE_ROOM | probe,
                                          .size_bytes = size_bytes,
                                          .timeout_ns = timeout_ns};

    acquiring->end_ns = clock_deadline_ns(clock_now_ns(), timeout_ns);
    acquiring->probe = probe;
    acquiring->is_last = false;
    return asking_begin(&acquiring->asking, &acquiring->client->session, &acquire);
}

static int answer_lease(struct acquiring *acquiring, int r, struct gpupool_buffer *ret_buffer) {
    struct session *session = &acquiring->client->session;
    struct asking *asking = &acquiring->asking;
    bool any_closed;

    r = asking_answer(asking, r);
    if (r == GPUPOOL_E_EXHAUSTED && !acquiring->is_last) {
        struct proto_acquire acquire = asking->acquire;
        r = lease_close_idle(session, acquire.pool, acquire.size_bytes, false, &any_closed);
        acquire.flags = acquiring->probe;
        acquire.timeout_ns = clock_left_ns(acquiring->end_ns);
        acquiring->is_last = true;
        return r < 0 ? r : asking_begin(asking, session, &acquire);
    }
    if (r == 0)
        *ret_buffer = buffer_of_grant(acquiring->client, &asking->grant);
    return r;
}

int acquiring_begin(struct acquiring *acquiring, struct gpupool_client *client, uint32_t pool_id,
                    uint64_t size_bytes, void *stream, uint64_t timeout_ns, uint32_t flags, uint32_t probe,
                    struct gpupool_buffer *ret_buffer) {
    struct pool pool;

    acquiring->client = client;
    if ((flags & GPUPOOL_IDLE_ONLY) != 0)
        probe |= PROTO_ACQUIRE_IDLE_ONLY;
    if (size_bytes > PROTO_SIZE_MAX)
        return error_set(GPUPOOL_E_TOO_LARGE, "larger than any pool may ever be");
    int r = buffer_find_pool(client, pool_id, stream, flags, &pool);
    if (r < 0)
        return r;
    return client->cache.enabled ? cache_acquire_begin(&acquiring->taking, &client->cache, &pool, size_bytes,
                                                       stream, timeout_ns, probe, ret_buffer)
                                 : begin_lease(acquiring, pool_id, size_bytes, timeout_ns, probe);
}

struct asking *acquiring_asking(struct acquiring *acquiring) {
    return acquiring->client->cache.enabled ? &acquiring->taking.growth.asking : &acquiring->asking;
}

int acquiring_answer(struct acquiring *acquiring, int r, struct gpupool_buffer *ret_buffer) {
    return acquiring->client->cache.enabled ? cache_acquire_answer(&acquiring->taking, r, ret_buffer)
                                            : answer_lease(acquiring, r, ret_buffer);
}

void acquiring_forget(struct acquiring *acquiring) {
    if (acquiring->client->cache.enabled)
        growth_forget(&acquiring->taking.growth);
}
