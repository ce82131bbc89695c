/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/pool/pool.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/units.h"
#include "daemon/pool/closing.h"
#include "daemon/pool/core.h"
#include "daemon/pool/fence.h"
#include "daemon/pool/lease.h"
#include "daemon/pool/request.h"
#include "daemon/pool/segment.h"
#include "daemon/pool/session.h"
#include "daemon/pool/tenant.h"

bool segment_is_idle(const struct segment *segment) {
    if (segment->mappers > 0)
        return false;
    return segment->state == SEGMENT_UNASSIGNED ||
           (segment->state == SEGMENT_ASSIGNED && segment->span->taken_bytes == 0);
}

static uint64_t round_up_to_segment(uint64_t bytes) {
    return (bytes + SEGMENT_GRANULE - 1) / SEGMENT_GRANULE * SEGMENT_GRANULE;
}

uint64_t pool_free_bytes(const struct pool *pool) {
    return pool->reserved_bytes - pool->leased_bytes - pool->fenced_bytes - pool->quarantined_bytes -
           pool->closing_bytes - pool->retiring_bytes;
}

uint64_t pool_largest_free_bytes(const struct pool *pool) {
    uint64_t largest = 0;
    list_for_each(position, &pool->heaps) {
        uint64_t bytes = heap_largest_free(&container_of(position, struct tenant_heap, pool_link)->heap);
        if (bytes > largest)
            largest = bytes;
    }
    list_for_each(position, &pool->segments) {
        const struct segment *segment = container_of(position, struct segment, link);
        if (segment->state == SEGMENT_UNASSIGNED && segment->size_bytes > largest)
            largest = segment->size_bytes;
    }
    return largest;
}

/* The smallest segment without a tenant that has the size. */
static struct segment *pool_find_unassigned(struct pool *pool, uint64_t size_bytes) {
    struct segment *best = NULL;
    if (pool->unassigned_bytes < size_bytes) /* as it mostly is: who waits must not pay for the segments */
        return NULL;
    list_for_each(position, &pool->segments) {
        struct segment *segment = container_of(position, struct segment, link);
        if (segment->state == SEGMENT_UNASSIGNED && segment->size_bytes >= size_bytes &&
            (best == NULL || segment->size_bytes < best->size_bytes))
            best = segment;
    }
    return best;
}

bool pool_has_free(struct pool *pool, struct tenant *tenant, uint64_t size_bytes) {
    const struct tenant_heap *heap = tenant_heap_find(tenant, pool);
    return (heap != NULL && heap_largest_free(&heap->heap) >= size_bytes) ||
           pool_find_unassigned(pool, size_bytes) != NULL;
}

/* Takes a range for the tenant, from its own segments or from one that has no tenant yet.
 * Returns 0, -ENOSPC or -ENOMEM. */
static int pool_take(struct pool *pool, struct tenant *tenant, uint64_t size_bytes,
                     struct heap_range **ret_range) {
    struct tenant_heap *heap = tenant_heap_find(tenant, pool);
    if (heap != NULL) {
        int r = heap_take(&heap->heap, size_bytes, HEAP_GRANULE, ret_range);
        if (r != -ENOSPC)
            return r;
    }
    struct segment *segment = pool_find_unassigned(pool, size_bytes);
    if (segment == NULL)
        return -ENOSPC;
    int r = tenant_adopt(tenant, segment);
    if (r < 0)
        return r;
    return heap_take(&segment->owner->heap, size_bytes, HEAP_GRANULE, ret_range);
}

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

static uint64_t pool_room(const struct pool *pool) {
    return pool->limit_bytes > pool->reserved_bytes ? pool->limit_bytes - pool->reserved_bytes : 0;
}

uint64_t pool_growth_bytes(const struct pool *pool, uint64_t size_bytes) {
    uint64_t need = round_up_to_segment(size_bytes);
    return pool->grow_exact || pool->step_bytes < need ? need : pool->step_bytes;
}

static void pool_decide_growth(struct pool *pool, uint64_t size_bytes, uint64_t now_ns) {
    uint64_t room = pool_room(pool);
    assert(pool->growing_bytes == 0 && room > 0);
    pool->growing_bytes = size_bytes < room ? size_bytes : room;
    pool->grow_decided = true;
    pool->grow_decided_ns = now_ns;
}

static uint64_t pool_idle_bytes(const struct pool *pool) {
    uint64_t bytes = 0;
    list_for_each(position, &pool->segments) {
        const struct segment *segment = container_of(position, struct segment, link);
        if (segment_is_idle(segment))
            bytes += segment->size_bytes;
    }
    return bytes;
}

/* Whether the first in line can be served by nothing but what sessions hold: the driver refused lately, or
 * neither the limit nor idle segments (those on their way back to the driver included) leave enough room. */
static bool pool_is_stuck(const struct pool *pool, uint64_t now_ns) {
    const struct request *first = list_first(&pool->waiters, struct request, link);
    if (first == NULL || pool->state != POOL_READY)
        return false;
    if (now_ns < pool->grow_retry_ns)
        return true;
    uint64_t need = round_up_to_segment(first->size_bytes), room = pool_room(pool);
    return need > room && need > room + pool->retiring_bytes + pool_idle_bytes(pool);
}

/* Whether those who wait may find room behind fences soon. */
static bool pool_waits_for_fences(const struct pool *pool) {
    return pool->fenced_bytes > 0 && pool->n_waiters > 0;
}

/* Looks at the fences for those who wait; what comes back is marked in pool->returned. */
static void pool_collect(struct pool *pool, uint64_t now_ns) {
    if (!pool_waits_for_fences(pool))
        return;
    pool->fence_ns = clock_deadline_ns(now_ns, FENCE_INTERVAL_NS);
    list_for_each(position, &pool->heaps)
        fences_collect_heap(container_of(position, struct tenant_heap, pool_link));
}

/* Has every session of the pool's holders (of one tenant, or of all: NULL) asked that wants to be. */
static void pool_ask_sessions(struct pool *pool, const struct tenant *tenant) {
    struct core *core = pool->core;
    list_for_each(position, &core->sessions) {
        struct session *session = container_of(position, struct session, link);
        if ((tenant == NULL || session->tenant == tenant) && session_can_be_asked(session, pool) &&
            list_is_empty(&session->reclaim_link))
            list_append(&core->reclaiming, &session->reclaim_link);
    }
}

/* Has the sessions of those tenants asked whose requests their quota holds up, each at most once in a while.
 */
static void pool_reclaim_pressed(struct pool *pool, uint64_t now_ns) {
    list_for_each_safe(position, &pool->pressed) {
        struct tenant_heap *heap = container_of(position, struct tenant_heap, pressed_link);
        if (now_ns < heap->reclaim_ns)
            continue;
        heap->reclaim_ns = clock_deadline_ns(now_ns, RECLAIM_INTERVAL_NS);
        heap->reclaim_owed = false;
        pool_ask_sessions(pool, heap->tenant);
        if (list_is_empty(&heap->held))
            list_remove(&heap->pressed_link);
    }
}

/* Has every session asked that wants to be and holds something of the pool, at most once in a while. The
 * first in line's own session too: what one of its threads waits for may lie in the cache of another. */
static void pool_reclaim(struct pool *pool, uint64_t now_ns) {
    const struct request *first = list_first(&pool->waiters, struct request, link);

    if (!(pool->stuck || pool->reclaim_owed) || pool->n_reclaimers == 0 || now_ns < pool->reclaim_ns)
        return;
    /* Caches are worth keeping when enough is on its way back: one who waits has that much patience. */
    if (first != NULL && first->deadline_ns > now_ns && pool->fenced_bytes >= first->size_bytes &&
        now_ns < clock_deadline_ns(first->asked_ns, FENCE_PATIENCE_NS)) {
        pool->reclaim_ns = clock_deadline_ns(first->asked_ns, FENCE_PATIENCE_NS);
        return;
    }
    pool->reclaim_ns = clock_deadline_ns(now_ns, RECLAIM_INTERVAL_NS);
    pool->reclaim_owed = false;
    pool_ask_sessions(pool, NULL);
}

void pool_lose_reclaimer(struct pool *pool) {
    assert(pool->n_reclaimers > 0);
    pool->n_reclaimers--;
    if (pool->n_reclaimers == 0)
        pool->reclaim_owed = false;
}

/* When pool_reclaim has something to do again. */
static uint64_t pool_next_reclaim_ns(const struct pool *pool) {
    bool wanted = pool->reclaim_owed || (pool->stuck && !list_is_empty(&pool->waiters));
    uint64_t next_ns = wanted ? pool->reclaim_ns : NS_FOREVER;
    list_for_each(position, &pool->pressed) {
        const struct tenant_heap *heap = container_of(position, struct tenant_heap, pressed_link);
        if (heap->reclaim_ns < next_ns)
            next_ns = heap->reclaim_ns;
    }
    return pool->n_reclaimers > 0 ? next_ns : NS_FOREVER;
}

/* Whether its tenant has less at hand than the low-water mark, or than its quota leaves, asks for. */
static bool pool_is_low(const struct pool *pool) {
    uint64_t left = quota_left(&pool->demand->tenant->quota, quota_item_of_pool(pool));
    uint64_t wanted = left < pool->low_water_bytes ? left : pool->low_water_bytes;
    return pool->unassigned_bytes + pool->demand->heap.free_bytes < wanted;
}

/* Grows ahead of demand, see the top of pool.h. Nobody waits. */
static void pool_plan_ahead(struct pool *pool, uint64_t now_ns) {
    if (pool->demand == NULL || pool->leased_bytes == 0 || pool->state != POOL_READY ||
        pool->growing_bytes > 0 || pool->retiring_bytes > 0 || now_ns < pool->grow_retry_ns ||
        now_ns < pool->ahead_retry_ns || pool_room(pool) < SEGMENT_GRANULE)
        return;
    if (!pool_is_low(pool) || (fences_collect_heap(pool->demand) && !pool_is_low(pool)))
        return;
    pool_decide_growth(pool, pool->step_bytes, now_ns);
    pool->grow_ahead = true;
}

/* Grows for the first waiter for whom there is room; else makes room for the first of all by retiring idle
 * segments, if that is enough; without waiters, grows towards the reserve and ahead of demand. */
static void pool_plan_growth(struct pool *pool, uint64_t now_ns) {
    if (pool->state != POOL_READY || pool->growing_bytes > 0 || pool->retiring_bytes > 0 ||
        now_ns < pool->grow_retry_ns)
        return;
    uint64_t room = pool_room(pool);
    for (const struct list *position = pool->waiters.next;
         position != &pool->waiters && room >= SEGMENT_GRANULE; position = position->next) {
        const struct request *request = container_of(position, struct request, link);
        uint64_t need = round_up_to_segment(request->size_bytes);
        if (need <= room && tenant_may_take(request->session->tenant, pool, request->size_bytes)) {
            pool_decide_growth(pool, pool_growth_bytes(pool, need), now_ns);
            return;
        }
    }
    const struct request *first = list_first(&pool->waiters, struct request, link);
    if (first != NULL) {
        if (!pool->stuck)
            pool_retire_idle(pool, round_up_to_segment(first->size_bytes) - room, 0);
    } else if (pool->reserved_bytes < pool->reserve_bytes && room >= SEGMENT_GRANULE) {
        uint64_t missing = pool->reserve_bytes - pool->reserved_bytes;
        pool_decide_growth(pool, missing < pool->step_bytes ? missing : pool->step_bytes, now_ns);
    } else {
        pool_plan_ahead(pool, now_ns);
    }
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
static void pool_hold_first(struct pool *pool) {
    struct request *first;
    while ((first = list_first(&pool->waiters, struct request, link)) != NULL &&
           !tenant_may_take(first->session->tenant, pool, first->size_bytes))
        pool_hold(pool, first);
}

/* What has to be done for those who wait, as far as it can be done at all. */
static void pool_plan(struct pool *pool, uint64_t now_ns) {
    pool_hold_first(pool);
    pool->stuck = pool_is_stuck(pool, now_ns);
    pool_plan_growth(pool, now_ns);
    pool_reclaim(pool, now_ns);
    pool_reclaim_pressed(pool, now_ns);
}

bool pool_is_closed(const struct pool *pool) {
    return pool->state == POOL_FAILED || pool->state == POOL_LOST;
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

/* When the driver gives nothing and nobody holds anything that could come back, waiting has no end. Segments
 * that became idle since the driver refused go back to it when the next growth fails too. */
static bool pool_is_hopeless(const struct pool *pool, uint64_t now_ns) {
    return pool_is_closed(pool) ||
           (pool->grow_retry_ns > now_ns && pool->leased_bytes == 0 && pool->fenced_bytes == 0 &&
            pool->quarantined_bytes == 0 && pool->retiring_bytes == 0 && pool_idle_bytes(pool) == 0);
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

void pool_retire(struct segment *segment) {
    struct pool *pool = segment->pool;

    assert(segment->state == SEGMENT_UNASSIGNED && segment->mappers == 0);
    segment->state = SEGMENT_RETIRING;
    pool->unassigned_bytes -= segment->size_bytes;
    list_remove(&segment->link);
    list_append(&pool->core->retiring, &segment->link);
    pool->n_segments--;
    pool->n_retires++;
    pool->retiring_bytes += segment->size_bytes;
}

uint64_t pool_retire_idle(struct pool *pool, uint64_t bytes, uint64_t keep_bytes) {
    uint64_t retired = 0;
    list_for_each_safe(position, &pool->segments) {
        struct segment *segment = container_of(position, struct segment, link);
        if (retired >= bytes)
            break;
        if (!segment_is_idle(segment) || pool->reserved_bytes - pool->closing_bytes - pool->retiring_bytes <
                                             keep_bytes + segment->size_bytes)
            continue;
        if (segment->state == SEGMENT_ASSIGNED)
            tenant_disown(segment);
        pool_retire(segment);
        retired += segment->size_bytes;
    }
    return retired;
}

void pool_explain(const struct pool *pool, char *text, size_t size) {
    int n = snprintf(text, size, "%s free (largest block %s), %s reserved of at most %s",
                     BYTES_TEXT(pool_free_bytes(pool)), BYTES_TEXT(pool_largest_free_bytes(pool)),
                     BYTES_TEXT(pool->reserved_bytes), BYTES_TEXT(pool->limit_bytes));
    if (n > 0 && (size_t)n < size && pool->fenced_bytes > 0)
        n += snprintf(text + n, size - (size_t)n, ", %s released and still in use by a GPU",
                      BYTES_TEXT(pool->fenced_bytes));
    if (n > 0 && (size_t)n < size && pool->quarantined_bytes > 0)
        n += snprintf(text + n, size - (size_t)n, ", %s in quarantine", BYTES_TEXT(pool->quarantined_bytes));
    if (n > 0 && (size_t)n < size && pool->stalled_call != NULL)
        snprintf(text + n, size - (size_t)n, ", %s has not come back for %s", pool->stalled_call,
                 NS_TEXT(pool->stalled_for_ns));
}

bool pool_is_valid(const struct pool *pool) {
    uint64_t reserved = pool->retiring_bytes, free_bytes = 0, held = 0, waiters = 0, leases = 0;
    uint64_t unassigned = 0, closing = 0;
    unsigned segments = 0;
    bool demand_known = pool->demand == NULL;

    list_for_each(position, &pool->segments) {
        const struct segment *segment = container_of(position, struct segment, link);
        if (segment->pool != pool || segment->state == SEGMENT_RETIRING ||
            (segment->state == SEGMENT_ASSIGNED) != (segment->owner != NULL) ||
            (segment->owner == NULL) != (segment->span == NULL))
            return false;
        segments++;
        reserved += segment->size_bytes;
        if (segment->state == SEGMENT_UNASSIGNED) {
            unassigned += segment->size_bytes;
            continue;
        }
        if (segment->state == SEGMENT_CLOSING) {
            closing += segment->size_bytes;
            if (segment->mappers != 1)
                return false;
            continue;
        }
        for (const struct heap_range *range = segment->span->lowest; range != NULL; range = range->upper) {
            if (range->free)
                continue;
            const struct block *block = range->user;
            held += range->size;
            if (block == NULL || block->segment != segment || !block_is_valid(block))
                return false;
            if (container_of(block->ranges.next, struct heap_range, user_link) == range)
                leases += block->live + block->fenced + block->quarantined;
        }
    }
    list_for_each(position, &pool->heaps) {
        const struct tenant_heap *heap = container_of(position, struct tenant_heap, pool_link);
        if (!heap_is_valid(&heap->heap))
            return false;
        list_for_each(link, &heap->fenced) {
            const struct fence_queue *queue = container_of(link, struct fence_queue, heap_link);
            if (queue->heap != heap || list_is_empty(&queue->leases) || !fence_queue_is_valid(queue))
                return false;
        }
        if (list_is_empty(&heap->pressed_link) != (list_is_empty(&heap->held) && !heap->reclaim_owed))
            return false;
        list_for_each(link, &heap->held) {
            const struct request *request = container_of(link, struct request, link);
            waiters++;
            if (request->held_by != heap || request->state != REQUEST_WAITING ||
                request->size_bytes < heap->held_bytes_min || request->deadline_ns < pool->next_deadline_ns ||
                (!pool->returned && tenant_may_take(heap->tenant, pool, request->size_bytes)))
                return false;
        }
        free_bytes += heap->heap.free_bytes;
        demand_known = demand_known || heap == pool->demand;
    }
    list_for_each(position, &pool->waiters) {
        const struct request *request = container_of(position, struct request, link);
        waiters++;
        if (request->size_bytes < pool->least_bytes || request->held_by != NULL)
            return false;
    }
    return reserved == pool->reserved_bytes && segments == pool->n_segments &&
           unassigned == pool->unassigned_bytes && closing == pool->closing_bytes &&
           free_bytes + unassigned == pool_free_bytes(pool) && demand_known &&
           (!pool->grow_ahead || pool->growing_bytes > 0) &&
           held == pool->leased_bytes + pool->fenced_bytes + pool->quarantined_bytes &&
           waiters == pool->n_waiters && leases == pool->n_leases;
}
