/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/pool/waiting.h"

#include <assert.h>
#include <errno.h>

#include "daemon/pool/core.h"
#include "daemon/pool/fence.h"
#include "daemon/pool/lease.h"
#include "daemon/pool/pool.h"
#include "daemon/pool/request.h"
#include "daemon/pool/segment.h"
#include "daemon/pool/session.h"
#include "daemon/pool/tenant.h"

/* Grants the request from what is free. Returns 0, PROTO_E_LIMIT, -EDQUOT (more than its tenant's quota
 * leaves), -ENOSPC or -ENOMEM. */
static int pool_grant(struct pool *pool, struct request *request) {
    struct session *session = request->session;
    struct heap_range *range;
    struct lease *lease;

    /* Also those who waited: the session may have reached its limit meanwhile. */
    if (!session_may_lease(session, 0))
        return PROTO_E_LIMIT;
    if (!tenant_may_take(session->tenant, pool, request->size_bytes))
        return -EDQUOT;
    int r = pool_take(pool, session->tenant, request->size_bytes, &range);
    if (r < 0)
        return r;
    r = session_reserve_segment(session, range->span->user);
    if (r == 0)
        r = lease_open(session, range, request->size_bytes, &lease);
    if (r < 0) {
        heap_give(range);
        return r;
    }
    request_grant(request, lease);
    pool->demand = lease->block->segment->owner;
    return 0;
}

/* Has a request wait for its tenant's quota, if that can ever be of use. */
static void pool_hold(struct pool *pool, struct request *request) {
    if (!tenant_may_ever_take(request->session->tenant, pool, request->size_bytes))
        request_refuse_for_quota(request, PROTO_E_LIMIT, quota_item_of_pool(pool));
    else if (request->held_by == NULL)
        request_hold(request);
}

/* Whoever is first in line must not be one whom no memory can serve: others would be asked for theirs in
 * vain. */
void waiting_hold_first(struct pool *pool) {
    struct request *first;
    while ((first = list_first(&pool->waiters, struct request, link)) != NULL &&
           !tenant_may_take(first->session->tenant, pool, first->size_bytes))
        pool_hold(pool, first);
}

void pool_refuse_all(struct pool *pool) {
    while (!list_is_empty(&pool->waiters))
        request_refuse(container_of(pool->waiters.next, struct request, link), PROTO_E_DRIVER);
    list_for_each_safe(position, &pool->pressed) {
        struct tenant_heap *heap = container_of(position, struct tenant_heap, pressed_link);
        while (!list_is_empty(&heap->held))
            request_refuse(container_of(heap->held.next, struct request, link), PROTO_E_DRIVER);
    }
}

/* Whether the line is worth going through: what is free may be enough for the least that anybody in it asked
 * for. Each release comes here, and the line of a pool that is at its end can be long. */
static bool pool_may_serve(const struct pool *pool) {
    if (pool->unassigned_bytes >= pool->least_bytes)
        return true;
    list_for_each(
        position,
        &pool->heaps) if (heap_may_have(&container_of(position, struct tenant_heap, pool_link)->heap,
                                        pool->least_bytes)) return true;
    return false;
}

/* What follows from a request that pool_grant did not grant: the answer, or the line that it waits in. */
static void pool_settle(struct pool *pool, struct request *request, int r) {
    const struct session *session = request->session;

    if (r == PROTO_E_LIMIT && session->n_leases < session->core->session_leases_limit)
        request_refuse_for_quota(request, PROTO_E_LIMIT, QUOTA_LEASES);
    else if (r == -ENOMEM || r > 0)
        request_refuse(request, r > 0 ? (enum proto_error)r : PROTO_E_NO_MEMORY);
    else if (r == -ENOSPC && request->size_bytes > pool->limit_bytes)
        request_refuse(request, PROTO_E_TOO_LARGE); /* the limit was lowered */
    else if (r == -EDQUOT)
        pool_hold(pool, request);
    else if (r == -ENOSPC && (request->held_by != NULL || list_is_empty(&request->link)))
        request_wait(request);
}

/* Answers those whom their tenant's quota does not hold up any more, or lets them wait for memory. */
static void pool_serve_held(struct pool *pool) {
    list_for_each_safe(position, &pool->pressed) {
        struct tenant_heap *heap = container_of(position, struct tenant_heap, pressed_link);
        if (list_is_empty(&heap->held) || !tenant_may_take(heap->tenant, pool, heap->held_bytes_min))
            continue;
        uint64_t least_bytes = UINT64_MAX;
        list_for_each_safe(link, &heap->held) {
            struct request *request = container_of(link, struct request, link);
            pool_settle(pool, request, pool_grant(pool, request));
            if (request->held_by != NULL && request->size_bytes < least_bytes)
                least_bytes = request->size_bytes;
        }
        heap->held_bytes_min = least_bytes;
    }
}

/* Answers those in line whom what is free can serve, and plans for the others. */
static void pool_serve_line(struct pool *pool, uint64_t now_ns) {
    do { /* once more when the limit of somebody's leases made us look behind fences */
        pool->returned = false;
        if (!list_is_empty(&pool->pressed))
            pool_serve_held(pool);
        if (list_is_empty(&pool->waiters) || !pool_may_serve(pool))
            break;
        uint64_t least_bytes = UINT64_MAX;
        list_for_each_safe(position, &pool->waiters) {
            struct request *request = container_of(position, struct request, link);
            uint64_t size_bytes = request->size_bytes;
            int r = pool_grant(pool, request);
            pool_settle(pool, request, r);
            if (r == -ENOSPC && request->state == REQUEST_WAITING && size_bytes < least_bytes)
                least_bytes = size_bytes;
        }
        pool->least_bytes = least_bytes;
    } while (pool->returned);
    pool_plan(pool, now_ns);
    if (pool_is_hopeless(pool, now_ns))
        pool_refuse_all(pool);
}

void pool_ask(struct pool *pool, struct request *request, uint64_t now_ns) {
    if (pool_is_closed(pool)) {
        request_refuse(request, PROTO_E_DRIVER);
        return;
    }
    if (request->size_bytes > pool->limit_bytes) {
        request_refuse(request, PROTO_E_TOO_LARGE);
        return;
    }
    int r = pool_grant(pool, request);
    if (r == 0 && list_is_empty(&pool->waiters))
        pool_plan_ahead(pool, now_ns);
    else if (r == 0 && !pool->stuck)
        pool_plan(pool, now_ns); /* it may have taken what was to be retired for the first in line */
    pool_settle(pool, request, r);
    if (request->state != REQUEST_WAITING)
        return;
    struct tenant_heap *heap = tenant_heap_find(request->session->tenant, pool);
    uint64_t reclaim_ns = request->held_by != NULL && heap != NULL ? heap->reclaim_ns : pool->reclaim_ns;
    if (pool->fence_ns <= now_ns)
        pool->fence_ns = clock_deadline_ns(now_ns, FENCE_INTERVAL_NS);
    /* Only what its own tenant gave back can help it; those who came before it come first there, too. */
    bool returned = heap != NULL && fences_collect_heap(heap);
    if (request->within && request->held_by == NULL) {
        bool is_first = pool->waiters.next == &request->link;
        if (!returned || !is_first || pool_grant(pool, request) != 0)
            request_give_up(request);
        return;
    }
    if (returned)
        pool_serve_line(pool, now_ns);
    else
        pool_plan(pool, now_ns);
    if (request->state != REQUEST_WAITING)
        return;
    /* Whoever does not wait has still set growth going, or had sessions asked for what they keep idle (if
     * that was done a moment ago for another: as soon as it may be done again), and finds room when it asks
     * again. */
    if (request->deadline_ns > now_ns) {
        request->waited = true;
        if (charge_make(&request->charge, &request->session->tenant->quota, QUOTA_WAITING, 1) != 0)
            request_refuse_for_quota(request, PROTO_E_LIMIT, QUOTA_WAITING);
        return;
    }
    bool owed = now_ns < reclaim_ns && pool->n_reclaimers > 0;
    if (request->held_by != NULL)
        heap->reclaim_owed = heap->reclaim_owed || owed;
    else
        pool->reclaim_owed = pool->reclaim_owed || (pool->stuck && owed);
    request_give_up(request);
}

void pool_serve(struct pool *pool, uint64_t now_ns) {
    if (pool->fence_ns <= now_ns) /* not at each release, whose sender pays for it: the tick comes soon */
        pool_collect(pool, now_ns);
    pool_serve_line(pool, now_ns);
}

/* Refuses those of a line whose deadline has passed; whether there were any. */
static bool pool_expire(struct pool *pool, struct list *line, uint64_t now_ns) {
    bool any = false;

    list_for_each_safe(position, line) {
        struct request *request = container_of(position, struct request, link);
        if (request->deadline_ns <= now_ns) {
            request_give_up(request);
            any = true;
        } else if (request->deadline_ns < pool->next_deadline_ns) {
            pool->next_deadline_ns = request->deadline_ns;
        }
    }
    return any;
}

void pool_tick(struct pool *pool, uint64_t now_ns) {
    bool plan = false;

    if (pool->fence_ns <= now_ns || pool->next_deadline_ns <= now_ns)
        pool_collect(pool, now_ns);
    if (pool->returned)
        pool_serve_line(pool, now_ns);
    if (pool->next_deadline_ns <= now_ns) {
        pool->next_deadline_ns = NS_FOREVER;
        plan = pool_expire(pool, &pool->waiters, now_ns); /* it may have stood in the way of others in line */
        list_for_each_safe(position, &pool->pressed)
            pool_expire(pool, &container_of(position, struct tenant_heap, pressed_link)->held, now_ns);
    }
    if (pool->grow_retry_ns != 0 && pool->grow_retry_ns <= now_ns) {
        pool->grow_retry_ns = 0;
        plan = true;
    }
    if (plan || pool_next_reclaim_ns(pool) <= now_ns)
        pool_plan(pool, now_ns);
}

uint64_t pool_next_tick_ns(const struct pool *pool) {
    uint64_t next = pool->n_waiters == 0 ? NS_FOREVER : pool->next_deadline_ns;
    if (pool->returned)
        return 0;
    if (pool_waits_for_fences(pool) && pool->fence_ns < next)
        next = pool->fence_ns;
    if (pool->grow_retry_ns != 0 && pool->grow_retry_ns < next)
        next = pool->grow_retry_ns;
    if (pool_next_reclaim_ns(pool) < next)
        next = pool_next_reclaim_ns(pool);
    return next;
}
