/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/request.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/types.h>

#include "daemon/core/kept.h"
#include "daemon/core/recorder.h"
#include "daemon/core/session.h"
#include "daemon/core/tenant.h"
#include "daemon/core/wait_queue.h"

int request_new(struct session *session, struct pool *pool, uint64_t id, const struct proto_acquire *acquire,
                uint64_t now_ns, struct request **ret_request) {
    struct request *request = calloc(1, sizeof *request);
    if (request == NULL || kept_add(session->core, KEPT_REQUEST, request, &request->record) < 0) {
        free(request);
        return -ENOMEM;
    }
    request->session = session;
    request->pool = pool;
    request->id = id;
    request->size_bytes = acquire->size_bytes;
    request->least_bytes = acquire->least_bytes != 0 ? acquire->least_bytes : acquire->size_bytes;
    request->no_reclaim = (acquire->flags & PROTO_ACQUIRE_NO_RECLAIM) != 0;
    request->probes = acquire->flags & PROTO_ACQUIRE_PROBES;
    request->idle_only = (acquire->flags & PROTO_ACQUIRE_IDLE_ONLY) != 0 && !request->no_reclaim;
    request->gave_back = (acquire->flags & PROTO_ACQUIRE_GAVE_BACK) != 0;
    request->asked_ns = now_ns;
    request->deadline_ns = clock_deadline_ns(now_ns, acquire->timeout_ns);
    request->look_ns = clock_deadline_ns(now_ns, session->core->long_wait_ns);
    request->quota_item = -1;
    request->number = ++session->core->next_request_number;
    kept_number(session->core);
    list_init(&request->link);
    list_init(&request->overdue_link);
    list_init(&request->special_link);
    list_init(&request->long_link);
    list_append(&session->requests, &request->session_link);
    session->n_requests++;
    *ret_request = request;
    return 0;
}

bool request_is_probe(const struct request *request) {
    if (request->state == REQUEST_REFUSED && request->error == PROTO_E_CANCELLED)
        return true;
    uint32_t flag = request->state != REQUEST_REFUSED     ? 0
                    : request->error == PROTO_E_EXHAUSTED ? PROTO_ACQUIRE_PROBE_ROOM
                    : request->error == PROTO_E_LIMIT     ? PROTO_ACQUIRE_PROBE_LIMIT
                                                          : 0;
    return (request->probes & flag) != 0;
}

/* It waits no more. */
static void request_end_wait(struct request *request) {
    wait_queue_leave(request);
    list_remove(&request->long_link);
    charge_free(&request->charge);
}

/* Notes at the leases that were granted whether their answer is still to be taken. */
static void request_mark_leases(const struct request *request, bool unanswered) {
    struct lease *lease = request->lease;

    for (unsigned n = request_n_leases(request); n > 0; n--, lease = session_next_lease(lease)) {
        lease->unanswered = unanswered;
        kept_change(lease->session->core, lease->record);
    }
}

void request_free(struct request *request) {
    request_end_wait(request);
    list_remove(&request->link);
    if (request->state == REQUEST_GRANTED)
        request_mark_leases(request, false);
    list_remove(&request->session_link);
    request->session->n_requests--;
    kept_end(request->session->core, &request->record);
    free(request);
}

void request_grant(struct request *request, struct lease *lease) {
    assert(request->state == REQUEST_WAITING);
    request_end_wait(request);
    request->state = REQUEST_GRANTED;
    kept_change(request->session->core, request->record);
    request->lease = lease;
    request_mark_leases(request, true);
    list_append(&request->session->core->answered, &request->link);
}

static void record_refusal(const struct request *request) {
    struct core *core = request->session->core;
    struct recorded recorded = {
        .kind = PROTO_RECORD_REFUSE,
        .reason = request->error,
        .quota_item = request->quota_item + 1,
        .pool = request->pool,
        .session = request->session,
        .bytes = request->size_bytes,
        .value = request->waited ? core->recorder.now_ns - request->asked_ns : 0,
    };
    bool is_probe = request_is_probe(request);
    bool is_timeout = request->waited && core->recorder.now_ns >= request->deadline_ns;

    recorded.flags =
        (uint8_t)((request->waited ? PROTO_RECORD_WAITED : 0) | (is_timeout ? PROTO_RECORD_DEADLINE : 0) |
                  (is_probe ? PROTO_RECORD_PROBE : 0));
    record(core, &recorded);
    struct proto_hour *hour = request->pool != NULL ? recorder_hour(request->pool) : NULL;
    if (hour == NULL)
        return;
    if (request->waited)
        recorder_note_wait(request->pool, recorded.value);
    if (is_probe)
        return;
    hour->n_refused++;
    hour->n_timeouts += is_timeout;
    hour->n_quota += request->quota_item >= 0;
}

void request_refuse(struct request *request, enum proto_error error) {
    assert(request->state == REQUEST_WAITING);
    request_end_wait(request);
    request->state = REQUEST_REFUSED;
    request->error = error;
    kept_change(request->session->core, request->record);
    if (request->pool != NULL && request_is_probe(request))
        request->pool->stats.n_probes++;
    else if (request->pool != NULL)
        request->pool->stats.n_failures++;
    record_refusal(request);
    list_append(&request->session->core->answered, &request->link);
}

void request_refuse_for_quota(struct request *request, enum proto_error error, unsigned item) {
    request->quota_item = (int)item;
    kept_change(request->session->core, request->record);
    request_refuse(request, error);
    if (request_is_probe(request))
        return;
    request->pool->stats.n_quota_refusals++;
    /* leases were counted when they were asked for */
    if (item != QUOTA_LEASES)
        tenant_note_refusal(request->session->tenant);
}

void request_give_up(struct request *request) {
    if (request->queue == WAIT_QUEUE_QUOTA)
        request_refuse_for_quota(request, PROTO_E_EXHAUSTED, wait_queue_awaited_item(request));
    else
        request_refuse(request, PROTO_E_EXHAUSTED);
}

void request_time_out(struct request *request) {
    request_give_up(request);
    request->pool->stats.n_timeouts += !request_is_probe(request);
}
