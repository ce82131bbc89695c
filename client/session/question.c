/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/question.h"

#include <sys/resource.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/error.h"
#include "client/session/session.h"

/* Of the descriptors that the process may have (often 1,024), one request uses a share of 1 / this. */
#define DESCRIPTORS_SHARE 4u

struct question question_of_lease(struct session *session, const struct proto_acquire *acquire) {
    return (struct question){.session = session, .acquire = *acquire};
}

struct question question_of_segments(struct session *session, const struct proto_acquire_segments *acquire,
                                     struct segment_grant *ret_grants) {
    return (struct question){.session = session,
                             .is_of_segments = true,
                             .segments = *acquire,
                             .grants = ret_grants,
                             .end_ns = clock_deadline_ns(clock_now_ns(), acquire->timeout_ns)};
}

/* --- asking --- */

/* How many segments a request may ask for. All their descriptors may be there before the first one is
 * imported, and the process has others. */
static uint32_t most_segments(void) {
    struct rlimit limit;
    rlim_t most = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur / DESCRIPTORS_SHARE : 0;

    if (most < PROTO_LEASES_PER_MESSAGE)
        return PROTO_LEASES_PER_MESSAGE;
    return most < PROTO_LEASES_MAX ? (uint32_t)most : PROTO_LEASES_MAX;
}

/* Makes the request for the next segments: as many as one may ask for. Returns the timeout. */
static uint64_t ask_for_segments(struct question *question) {
    struct connection *connection = &question->session->connection;
    uint32_t left = question->segments.count - question->n_granted, most = most_segments();

    question->part = question->segments;
    question->part.count = left < most ? left : most;
    if (question->n_granted > 0)
        question->part.timeout_ns = clock_left_ns(question->end_ns);
    question->request =
        connection_request_segments(connection, question->grants + question->n_granted, question->part.count);
    if (question->request != NULL)
        question->request->message.acquire_segments = question->part;
    return question->part.timeout_ns;
}

static uint64_t ask_for_lease(struct question *question) {
    question->request = connection_request(&question->session->connection, PROTO_ACQUIRE);
    if (question->request != NULL)
        question->request->message.acquire = question->acquire;
    return question->acquire.timeout_ns;
}

int question_ask(struct question *question) {
    uint64_t timeout_ns = question->is_of_segments ? ask_for_segments(question) : ask_for_lease(question);

    question->deadline_ns = connection_deadline_ns(&question->session->connection, timeout_ns);
    return question->request == NULL ? GPUPOOL_E_NO_MEMORY : 0;
}

int question_exchange(struct question *question) {
    return connection_exchange_watching(&question->session->connection, &question->request,
                                        question->deadline_ns);
}

/* --- the answer --- */

static int take_lease(struct question *question) {
    _cleanup_(request_recyclep) struct request *reply = take_ptr(&question->request);
    const struct proto_acquire *acquire = &question->acquire;

    int r = lease_accept(question->session, reply, LEASE_READ_WRITE, &question->grant);
    if (r < 0)
        return r;
    const struct proto_lease *lease = &question->grant.lease;
    uint64_t least_bytes = acquire->least_bytes != 0 ? acquire->least_bytes : acquire->size_bytes;
    if (lease->pool != acquire->pool || lease->size_bytes > acquire->size_bytes ||
        lease->size_bytes < least_bytes)
        return connection_refuse(&question->session->connection,
                                 "a lease of another pool or size than asked for");
    return 0;
}

/* Imports the segments that have come for a request. Where that fails, they went back. */
static int import_segments(struct question *question) {
    struct session *session = question->session;
    struct segment_grant *grants = question->grants + question->n_granted;
    struct pool pool;

    request_recycle(take_ptr(&question->request));
    int r = pools_find(session, question->segments.pool, &pool);
    if (r == 0 && pool.kind != PROTO_POOL_DEVICE)
        return connection_refuse(&session->connection, "a segment of another kind than its pool");
    for (uint32_t i = 0; r == 0 && i < question->part.count; i++)
        r = lease_bring(session, &(struct lease_part){grants[i].lease, grants[i].generation, 0},
                        grants[i].segment, pool.uuid, true);
    if (r < 0)
        lease_give_back_segments(session, grants, question->part.count);
    else
        question->n_granted += question->part.count;
    return r;
}

static int take_segments(struct question *question, int r) {
    if (r == 0)
        r = import_segments(question);
    if (r == 0 && question->n_granted < question->segments.count)
        return QUESTION_IS_PART;
    if (r < 0) {
        lease_give_back_segments(question->session, question->grants, question->n_granted);
        question->n_granted = 0;
    } else {
        fences_show(&question->session->fences);
    }
    return r;
}

int question_take(struct question *question, int r) {
    if (question->is_of_segments)
        return take_segments(question, r);
    return r < 0 ? r : take_lease(question);
}

void question_drop(struct question *question, int r) {
    struct request *request = take_ptr(&question->request);

    if (r == 0 && question->is_of_segments)
        lease_give_back_segments(question->session, question->grants + question->n_granted,
                                 question->part.count);
    else if (r == 0)
        lease_give_back(question->session, &request->message.lease);
    request_recycle(request);
}

/* --- questions of a thread that waits --- */

static int ask_and_wait(struct question *question) {
    int r;

    do {
        r = question_ask(question);
        if (r == 0)
            r = connection_exchange(&question->session->connection, &question->request,
                                    question->deadline_ns);
        r = question_take(question, r);
    } while (r == QUESTION_IS_PART);
    return r;
}

int lease_acquire(struct session *session, const struct proto_acquire *acquire, struct grant *ret_grant) {
    struct question question = question_of_lease(session, acquire);

    int r = ask_and_wait(&question);
    if (r == 0)
        *ret_grant = question.grant;
    return r;
}

int lease_acquire_segments(struct session *session, const struct proto_acquire_segments *acquire,
                           struct segment_grant *ret_grants) {
    struct question question = question_of_segments(session, acquire, ret_grants);

    return ask_and_wait(&question);
}
