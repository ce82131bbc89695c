/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/asking.h"

#include <sys/resource.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/error.h"
#include "client/session/session.h"

/* Of the descriptors that the process may have (often 1,024), one request uses a share of 1 / this. */
#define DESCRIPTORS_SHARE 4u

int asking_begin(struct asking *asking, struct session *session, const struct proto_acquire *acquire) {
    *asking = (struct asking){.session = session, .acquire = *acquire};
    asking->request = connection_request(&session->connection, PROTO_ACQUIRE);
    if (asking->request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    asking->request->message.acquire = *acquire;
    asking->deadline_ns = connection_deadline_ns(&session->connection, acquire->timeout_ns);
    return ASKING_WAITS;
}

/* How many segments a request may ask for. All their descriptors may be there before the first one is
 * imported, and the process has others. */
static uint32_t most_segments(void) {
    struct rlimit limit;
    rlim_t most = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur / DESCRIPTORS_SHARE : 0;

    if (most < PROTO_LEASES_PER_MESSAGE)
        return PROTO_LEASES_PER_MESSAGE;
    return most < PROTO_LEASES_MAX ? (uint32_t)most : PROTO_LEASES_MAX;
}

/* Makes the request for the next segments: as many as one may ask for. */
static int ask_for_segments(struct asking *asking) {
    struct connection *connection = &asking->session->connection;
    uint32_t left = asking->segments.count - asking->n_granted, most = most_segments();

    asking->part = asking->segments;
    asking->part.count = left < most ? left : most;
    if (asking->n_granted > 0)
        asking->part.timeout_ns = clock_left_ns(asking->end_ns);
    asking->request =
        connection_request_segments(connection, asking->grants + asking->n_granted, asking->part.count);
    if (asking->request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    asking->request->message.acquire_segments = asking->part;
    asking->deadline_ns = connection_deadline_ns(connection, asking->part.timeout_ns);
    return ASKING_WAITS;
}

int asking_begin_segments(struct asking *asking, struct session *session,
                          const struct proto_acquire_segments *acquire, struct segment_grant *ret_grants) {
    *asking = (struct asking){.session = session,
                              .is_of_segments = true,
                              .segments = *acquire,
                              .grants = ret_grants,
                              .end_ns = clock_deadline_ns(clock_now_ns(), acquire->timeout_ns)};
    return ask_for_segments(asking);
}

static int accept_lease(struct asking *asking) {
    _cleanup_(request_recyclep) struct request *reply = take_ptr(&asking->request);
    const struct proto_acquire *acquire = &asking->acquire;

    int r = lease_accept(asking->session, reply, GPU_ACCESS_READ_WRITE, &asking->grant);
    if (r < 0)
        return r;
    const struct proto_lease *lease = &asking->grant.lease;
    uint64_t least_bytes = acquire->least_bytes != 0 ? acquire->least_bytes : acquire->size_bytes;
    if (lease->pool != acquire->pool || lease->size_bytes > acquire->size_bytes ||
        lease->size_bytes < least_bytes)
        return connection_refuse(&asking->session->connection,
                                 "a lease of another pool or size than asked for");
    return 0;
}

/* Imports the segments that have come for a request. Where that fails, they went back. */
static int accept_segments(struct asking *asking) {
    struct session *session = asking->session;
    struct segment_grant *grants = asking->grants + asking->n_granted;
    struct pool pool;

    request_recycle(take_ptr(&asking->request));
    int r = pools_find(session, asking->segments.pool, &pool);
    if (r == 0 && pool.kind != PROTO_POOL_DEVICE)
        return connection_refuse(&session->connection, "a segment of another kind than its pool");
    for (uint32_t i = 0; r == 0 && i < asking->part.count; i++)
        r = lease_bring(session, &(struct lease_part){grants[i].lease, grants[i].generation, 0},
                        grants[i].segment, pool.uuid, true);
    if (r < 0)
        lease_give_back_segments(session, grants, asking->part.count);
    else
        asking->n_granted += asking->part.count;
    return r;
}

static int answer_segments(struct asking *asking, int r) {
    if (r == 0)
        r = accept_segments(asking);
    if (r == 0 && asking->n_granted < asking->segments.count)
        r = ask_for_segments(asking);
    if (r < 0)
        lease_give_back_segments(asking->session, asking->grants, asking->n_granted);
    else if (r == 0)
        fences_show(&asking->session->fences);
    return r;
}

int asking_answer(struct asking *asking, int r) {
    if (asking->is_of_segments)
        return answer_segments(asking, r);
    return r < 0 ? r : accept_lease(asking);
}

void asking_drop(struct asking *asking, int r) {
    struct request *request = take_ptr(&asking->request);

    if (r == 0 && asking->is_of_segments)
        lease_give_back_segments(asking->session, asking->grants + asking->n_granted, asking->part.count);
    else if (r == 0)
        lease_give_back(asking->session, &request->message.lease);
    request_recycle(request);
}

int asking_exchange(struct asking *asking) {
    return connection_exchange_watching(&asking->session->connection, &asking->request, asking->deadline_ns);
}

/* Waits until the asking is over. r: what its first step returned. */
static int asking_wait(struct asking *asking, int r) {
    while (r == ASKING_WAITS)
        r = asking_answer(
            asking, connection_exchange(&asking->session->connection, &asking->request, asking->deadline_ns));
    return r;
}

int lease_acquire(struct session *session, const struct proto_acquire *acquire, struct grant *ret_grant) {
    struct asking asking = {0};

    int r = asking_wait(&asking, asking_begin(&asking, session, acquire));
    if (r == 0)
        *ret_grant = asking.grant;
    return r;
}

int lease_acquire_segments(struct session *session, const struct proto_acquire_segments *acquire,
                           struct segment_grant *ret_grants) {
    struct asking asking = {0};

    return asking_wait(&asking, asking_begin_segments(&asking, session, acquire, ret_grants));
}
