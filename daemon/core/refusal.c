/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/refusal.h"

#include <assert.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/units.h"
#include "daemon/core/core.h"
#include "daemon/core/limits.h"
#include "daemon/core/pool.h"
#include "daemon/core/request.h"
#include "daemon/core/segment.h"
#include "daemon/core/session.h"
#include "daemon/core/tenant.h"

/* A text that is written piece by piece. What does not fit is cut off. */
struct text {
    char *to;
    size_t size, used;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *text, const char *format, ...) {
    va_list arguments;

    if (text->used >= text->size)
        return;
    va_start(arguments, format);
    int n = vsnprintf(text->to + text->used, text->size - text->used, format, arguments);
    va_end(arguments);
    text->used += n > 0 ? (size_t)n : 0;
}

struct holder {
    const struct session *session;
    uint64_t bytes;
};

/* Writes "; held by …" with the largest holders of the request's own tenant and, if wanted, the sum of the
 * others'. */
static void explain_holders(const struct request *request, bool with_others, char *to, size_t size) {
    const struct core *core = request->session->core;
    unsigned p = request->pool->id - 1;
    struct holder largest[HOLDERS_NAMED] = {0};
    struct text text = {.to = to, .size = size};
    uint64_t others = 0;

    to[0] = '\0';
    list_for_each(position, &core->sessions) {
        const struct session *session = container_of(position, struct session, link);
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
    for (unsigned i = 0; i < HOLDERS_NAMED && largest[i].bytes > 0; i++)
        add(&text, "%s pid %d (%s) %s%s%s", i == 0 ? "; held by" : ",", (int)largest[i].session->peer.pid,
            largest[i].session->peer.command, BYTES_TEXT(largest[i].bytes),
            largest[i].session->closing_bytes[p] > 0 ? ", some of which it was told to close and has not"
                                                     : "",
            largest[i].session->state == SESSION_QUARANTINED ? " in quarantine" : "");
    if (with_others && others > 0)
        add(&text, "%s other users %s", text.used == 0 ? "; held by" : ",", BYTES_TEXT(others));
}

/* The largest block that the tenant could take now. */
static uint64_t largest_free_for(const struct pool *pool, const struct tenant_heap *heap) {
    uint64_t largest = heap != NULL ? heap_largest_free(&heap->heap) : 0;

    list_for_each(position, &pool->segments) {
        const struct segment *segment = container_of(position, struct segment, link);
        if (segment->state == SEGMENT_UNASSIGNED && segment->size_bytes > largest)
            largest = segment->size_bytes;
    }
    return largest;
}

/* Writes what the pool has. Free memory in segments of other tenants is told apart: it serves nobody else. */
static void explain_pool(const struct request *request, char *to, size_t size) {
    const struct pool *pool = request->pool;
    const struct tenant_heap *heap = tenant_heap_find(request->session->tenant, request->pool);
    uint64_t own = pool->unassigned_bytes + (heap != NULL ? heap->heap.free_bytes : 0);
    uint64_t others = pool_free_bytes(pool) - own;
    struct text text = {.to = to, .size = size};

    add(&text, "%s free for user %u (largest block %s)", BYTES_TEXT(own),
        (unsigned)request->session->tenant->uid, BYTES_TEXT(largest_free_for(pool, heap)));
    if (others > 0)
        add(&text, ", %s free in segments of other users", BYTES_TEXT(others));
    add(&text, ", %s reserved of at most %s", BYTES_TEXT(pool->reserved_bytes),
        BYTES_TEXT(pool->limit_bytes));
    if (pool->growing_bytes > 0)
        add(&text, ", %s being made", BYTES_TEXT(pool->growing_bytes));
    if (pool->fenced_bytes > 0)
        add(&text, ", %s released and still in use by a GPU", BYTES_TEXT(pool->fenced_bytes));
    if (pool->quarantined_bytes > 0)
        add(&text, ", %s in quarantine", BYTES_TEXT(pool->quarantined_bytes));
    if (pool->closing_bytes > 0)
        add(&text, ", %s that processes were told to close", BYTES_TEXT(pool->closing_bytes));
    if (pool->stalled_call != NULL)
        add(&text, ", %s has not come back for %s", pool->stalled_call, NS_TEXT(pool->stalled_for_ns));
}

/* Nothing of other users is told: their memory has nothing to do with the quota. */
static void explain_quota(const struct request *request, struct proto_failure *ret_failure) {
    char holders[PROTO_TEXT_MAX / 2] = "", quota[PROTO_TEXT_MAX / 2];
    const struct tenant *tenant = request->session->tenant;
    unsigned item = (unsigned)request->quota_item;

    if (item >= QUOTA_POOLS && request->error == PROTO_E_LIMIT) {
        tenant_explain_beyond_quota(tenant, item, quota, sizeof quota);
    } else {
        tenant_explain_quota(tenant, item, quota, sizeof quota);
        if (item >= QUOTA_POOLS)
            explain_holders(request, false, holders, sizeof holders);
    }
    proto_failure_set(ret_failure, request->error, "%s asked of %s: %s%s", BYTES_TEXT(request->least_bytes),
                      request->pool->name, quota, holders);
}

void refusal_write(const struct request *request, struct proto_failure *ret_failure) {
    const struct pool *pool = request->pool;
    char holders[PROTO_TEXT_MAX / 2], has[PROTO_TEXT_MAX / 2];

    assert(request->state == REQUEST_REFUSED);
    if (request->quota_item >= 0) {
        explain_quota(request, ret_failure);
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
                BYTES_TEXT(request->least_bytes), pool->name, BYTES_TEXT(pool_segment_max(pool)));
            return;
        }
        proto_failure_set(
            ret_failure, request->error,
            "%s asked of %s, which may grow to %s: raise its limit in the daemon's configuration, or ask "
            "for less",
            BYTES_TEXT(request->least_bytes), pool->name, BYTES_TEXT(pool->limit_bytes));
        return;
    case PROTO_E_NO_MEMORY:
        proto_failure_set(ret_failure, request->error,
                          "the daemon has no memory for its bookkeeping: try again later");
        return;
    default:
        break;
    }
    explain_pool(request, has, sizeof has);
    explain_holders(request, true, holders, sizeof holders);
    if (request->error == PROTO_E_DRIVER)
        proto_failure_set(ret_failure, request->error, "%s asked of %s: %s; %s",
                          BYTES_TEXT(request->least_bytes), pool->name, pool->last_error, has);
    else
        proto_failure_set(ret_failure, request->error, "%s asked of %s, %s within the time given: %s%s%s%s",
                          BYTES_TEXT(request->least_bytes), pool->name,
                          request->no_reclaim ? "not free, and no growth" : "not free", has, holders,
                          pool->last_error[0] != '\0' ? "; the last growth failed: " : "", pool->last_error);
}
