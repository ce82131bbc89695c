/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/pool/request.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

#include "base/units.h"
#include "daemon/pool/core.h"
#include "daemon/pool/lease.h"
#include "daemon/pool/limits.h"
#include "daemon/pool/pool.h"
#include "daemon/pool/session.h"
#include "daemon/pool/tenant.h"

int request_new(struct session *session, struct pool *pool, uint64_t id, const struct proto_acquire *acquire,
                uint64_t now_ns, struct request **ret_request) {
    struct request *request = calloc(1, sizeof *request);
    if (request == NULL)
        return -ENOMEM;
    request->session = session;
    request->pool = pool;
    request->id = id;
    request->size_bytes = acquire->size_bytes;
    request->least_bytes = acquire->least_bytes != 0 ? acquire->least_bytes : acquire->size_bytes;
    request->no_reclaim = (acquire->flags & PROTO_ACQUIRE_NO_RECLAIM) != 0;
    request->gave_back = (acquire->flags & PROTO_ACQUIRE_GAVE_BACK) != 0;
    request->asked_ns = now_ns;
    request->deadline_ns = clock_deadline_ns(now_ns, acquire->timeout_ns);
    request->quota_item = -1;
    request->number = ++session->core->next_request_number;
    list_init(&request->link);
    list_init(&request->overdue_link);
    list_init(&request->growth_link);
    list_append(&session->requests, &request->session_link);
    session->n_requests++;
    *ret_request = request;
    return 0;
}

bool request_is_tried_again(const struct request *request) {
    return request->no_reclaim && request->state == REQUEST_REFUSED && request->error == PROTO_E_EXHAUSTED;
}

/* It waits no more. */
static void request_end_wait(struct request *request) {
    line_leave(request);
    charge_free(&request->charge);
}

void request_free(struct request *request) {
    request_end_wait(request);
    list_remove(&request->link);
    if (request->state == REQUEST_GRANTED)
        request->lease->unanswered = false;
    list_remove(&request->session_link);
    request->session->n_requests--;
    free(request);
}

void request_grant(struct request *request, struct lease *lease) {
    assert(request->state == REQUEST_WAITING);
    request_end_wait(request);
    request->state = REQUEST_GRANTED;
    request->lease = lease;
    lease->unanswered = true;
    list_append(&request->session->core->answered, &request->link);
}

void request_refuse(struct request *request, enum proto_error error) {
    assert(request->state == REQUEST_WAITING);
    request_end_wait(request);
    request->state = REQUEST_REFUSED;
    request->error = error;
    if (request->pool != NULL && !request_is_tried_again(request))
        request->pool->n_failures++;
    list_append(&request->session->core->answered, &request->link);
}

void request_refuse_for_quota(struct request *request, enum proto_error error, unsigned item) {
    request->quota_item = (int)item;
    request_refuse(request, error);
    /* leases were counted when they were asked for */
    request->session->tenant->quota.n_refusals += item != QUOTA_LEASES && !request_is_tried_again(request);
}

void request_give_up(struct request *request) {
    if (request->line == LINE_QUOTA)
        request_refuse_for_quota(request, PROTO_E_EXHAUSTED, quota_item_of_pool(request->pool));
    else
        request_refuse(request, PROTO_E_EXHAUSTED);
}

struct holder {
    const struct session *session;
    uint64_t bytes;
};

/* Writes ", held by …" with the largest holders of the request's own tenant and, if wanted, the sum of the
 * others'. */
static void explain_holders(const struct request *request, bool with_others, char *text, size_t size) {
    struct core *core = request->session->core;
    struct holder largest[HOLDERS_NAMED] = {0};
    uint64_t others = 0;
    size_t used = 0;

    text[0] = '\0';
    list_for_each(position, &core->sessions) {
        const struct session *session = container_of(position, struct session, link);
        unsigned p = request->pool->id - 1;
        struct holder holder = {session, session->pool_bytes[p] + session->closing_bytes[p]};
        if (session->tenant != request->session->tenant) {
            others += holder.bytes;
            continue;
        }
        for (unsigned i = 0; i < HOLDERS_NAMED && holder.bytes > 0; i++)
            if (holder.bytes > largest[i].bytes) {
                struct holder displaced = largest[i];
                largest[i] = holder;
                holder = displaced;
            }
    }
    for (unsigned i = 0; i < HOLDERS_NAMED && largest[i].bytes > 0 && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s pid %d (%s) %s%s%s",
                                 i == 0 ? "; held by" : ",", (int)largest[i].session->peer.pid,
                                 largest[i].session->peer.command, BYTES_TEXT(largest[i].bytes),
                                 largest[i].session->closing_bytes[request->pool->id - 1] > 0
                                     ? ", some of which it was told to close and has not"
                                     : "",
                                 largest[i].session->state == SESSION_QUARANTINED ? " in quarantine" : "");
    if (with_others && others > 0 && used < size)
        snprintf(text + used, size - used, "%s other users %s", used == 0 ? "; held by" : ",",
                 BYTES_TEXT(others));
}

void request_explain(const struct request *request, struct proto_failure *ret_failure) {
    const struct pool *pool = request->pool;
    char holders[PROTO_TEXT_MAX / 2], full[PROTO_TEXT_MAX / 2];

    assert(request->state == REQUEST_REFUSED);
    if (request->quota_item >= 0) {
        /* What others use is not told: their memory has nothing to do with it. */
        explain_holders(request, false, holders, sizeof holders);
        tenant_explain_quota(request->session->tenant, (unsigned)request->quota_item, full, sizeof full);
        proto_failure_set(ret_failure, request->error, "%s asked of %s: %s%s",
                          BYTES_TEXT(request->size_bytes), pool->name, full,
                          request->quota_item >= (int)QUOTA_POOLS ? holders : "");
        return;
    }
    switch (request->error) {
    case PROTO_E_NO_POOL:
        proto_failure_set(ret_failure, request->error,
                          "no pool has this id: list the pools for those there are");
        return;
    case PROTO_E_LIMIT:
        proto_failure_set(
            ret_failure, request->error,
            "this session has %u leases (those behind fences included) and %u requests waiting, and may have "
            "%u and %u: release buffers, or raise session_leases_limit in the daemon's configuration",
            request->session->n_leases, request->session->n_requests,
            request->session->core->session_leases_limit, SESSION_WAITING_MAX);
        return;
    case PROTO_E_TOO_LARGE:
        if (request->least_bytes <= pool->limit_bytes) {
            proto_failure_set(
                ret_failure, request->error,
                "%s asked of %s, where one buffer has %s at most, so that each can be registered "
                "with CUDA at once: ask for several buffers",
                BYTES_TEXT(request->size_bytes), pool->name, BYTES_TEXT(pool_segment_max(pool)));
            return;
        }
        proto_failure_set(
            ret_failure, request->error,
            "%s asked of %s, which may grow to %s: raise its limit in the daemon's configuration, or ask "
            "for less",
            BYTES_TEXT(request->size_bytes), pool->name, BYTES_TEXT(pool->limit_bytes));
        return;
    case PROTO_E_NO_MEMORY:
        proto_failure_set(ret_failure, request->error,
                          "the daemon has no memory for its bookkeeping: try again later");
        return;
    default:
        break;
    }
    pool_explain(pool, full, sizeof full);
    explain_holders(request, true, holders, sizeof holders);
    if (request->error == PROTO_E_DRIVER)
        proto_failure_set(ret_failure, request->error, "%s asked of %s: %s; %s",
                          BYTES_TEXT(request->size_bytes), pool->name, pool->last_error, full);
    else
        proto_failure_set(ret_failure, request->error,
                          "%s asked of %s, not free within the time given: %s%s%s%s",
                          BYTES_TEXT(request->size_bytes), pool->name, full, holders,
                          pool->last_error[0] != '\0' ? "; the last growth failed: " : "", pool->last_error);
}
