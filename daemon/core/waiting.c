/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/waiting.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>

#include "daemon/core/collect.h"
#include "daemon/core/idle_wait.h"
#include "daemon/core/kept.h"
#include "daemon/core/lease.h"
#include "daemon/core/long_wait.h"
#include "daemon/core/plan.h"
#include "daemon/core/pool.h"
#include "daemon/core/recorder.h"
#include "daemon/core/request.h"
#include "daemon/core/segment.h"
#include "daemon/core/session.h"
#include "daemon/core/tenant.h"
#include "daemon/core/wait_queue.h"

/* Takes a range of the tenant's own segments for a request that is behind an overdue one, from what is not
 * kept for that. */
static int take_own_beside(const struct request *request, struct tenant_heap *heap, uint64_t size_bytes,
                           struct heap_range **ret_range) {
    struct heap_range *kept[KEPT_RANGES_MAX], *range;
    unsigned n_kept = 0;
    int r;

    while ((r = heap_take(&heap->heap, size_bytes, HEAP_GRANULE, &range)) == 0 &&
           wait_queue_is_kept(request, range->span->user)) {
        kept[n_kept++] = range;
        if (n_kept == KEPT_RANGES_MAX) {
            r = -ENOSPC;
            break;
        }
    }
    while (n_kept > 0)
        heap_give(kept[--n_kept]);
    if (r < 0)
        return r;
    segment_settle(range->span->user);
    *ret_range = range;
    return 0;
}

/* Takes a range for a request that is behind an overdue one. */
static int take_beside(const struct request *request, uint64_t size_bytes, struct heap_range **ret_range) {
    struct tenant *tenant = request->session->tenant;
    struct tenant_heap *heap = tenant_heap_find(tenant, request->pool);

    int r = heap == NULL ? -ENOSPC : take_own_beside(request, heap, size_bytes, ret_range);
    return r == -ENOSPC && !wait_queue_keeps_room(request)
               ? pool_take_unassigned(request->pool, tenant, size_bytes, ret_range)
               : r;
}

/* Takes the free range above a taken range too, if the request wants that much, so that no small rest stays
 * free. Returns the size of what is taken. */
static uint64_t take_rest(const struct request *request, struct heap_range *range, uint64_t size_bytes) {
    struct heap_range *rest = range->upper;

    if (size_bytes == request->size_bytes || rest == NULL || !rest->free ||
        range->size + rest->size > request->size_bytes ||
        wait_queue_awaits_quota(request, range->size + rest->size))
        return size_bytes;
    heap_claim(rest);
    heap_join(range);
    return range->size;
}

static void record_grant(struct pool *pool, const struct request *request, const struct lease *lease) {
    struct core *core = pool->core;
    struct recorded recorded = {.pool = pool, .session = request->session};

    recorded.kind = PROTO_RECORD_LEASE;
    for (unsigned n = request_n_leases(request); n > 0; n--, lease = session_next_lease(lease)) {
        recorded.bytes = lease->block->held_bytes;
        recorded.value = lease->id;
        record(core, &recorded);
    }
    if (!request->waited)
        return;
    recorded.kind = PROTO_RECORD_SERVE;
    recorded.bytes = request->size_bytes;
    recorded.value = core->recorder.now_ns - request->asked_ns;
    record(core, &recorded);
    recorder_note_wait(pool, recorded.value);
}

/* The request was granted the lease, and those that follow it. */
static void note_grant(struct pool *pool, struct request *request, struct lease *lease) {
    pool->reclaim.refused_bytes = 0;
    request_grant(request, lease);
    record_grant(pool, request, lease);
    pool_note_peaks(pool);
    wait_queue_count_passes(request);
    pool->growth.demand = lease->block->segment->owner;
}

/* Grants the request that many free bytes. Returns 0, PROTO_E_LIMIT, -EDQUOT (it has to wait for its tenant's
 * quota), -ENOSPC (it has to wait for room) or -ENOMEM. */
static int pool_grant_bytes(struct pool *pool, struct request *request, uint64_t size_bytes) {
    struct session *session = request->session;
    struct heap_range *range;
    struct lease *lease;

    /* For waiting requests too: the session may have reached its limit meanwhile. */
    if (!session_may_lease(session, 1))
        return PROTO_E_LIMIT;
    if (wait_queue_awaits_quota(request, size_bytes))
        return -EDQUOT;
    int r = wait_queue_is_behind(request) ? take_beside(request, size_bytes, &range)
                                          : pool_take(pool, session->tenant, size_bytes, &range);
    if (r < 0)
        return r;
    size_bytes = take_rest(request, range, size_bytes);
    r = session_reserve_segment(session, range->span->user);
    if (r == 0)
        r = lease_open(session, range, size_bytes, &lease);
    if (r < 0) {
        pool_give(range);
        return r;
    }
    note_grant(pool, request, lease);
    return 0;
}

/* The segments that a request for whole ones is to get, in order. */
struct wholes {
    const struct request *request;
    bool is_behind; /* an overdue request */
    uint32_t count;
    struct segment *segments[PROTO_LEASES_MAX];
};

/* Adds a segment that suits the request, unless it is kept for an overdue one. Returns whether there are
 * enough. */
static bool wholes_add(struct wholes *wholes, struct segment *segment) {
    if (!segment->is_orphan && (!wholes->is_behind || !wait_queue_is_kept(wholes->request, segment)))
        wholes->segments[wholes->count++] = segment;
    return wholes->count == wholes->request->n_segments;
}

/* Adds segments that the session has mapped: those that it alone has mapped, and of those that others have
 * mapped as well the ones near the front of their shelf. */
static bool wholes_add_mapped(struct wholes *wholes, const struct shelf *own) {
    const struct session *session = wholes->request->session;
    unsigned left = WHOLE_LOOKED_AT_MAX;

    for (struct tree_node *node =
             tree_find(&session->pools[wholes->request->pool->id - 1].closable, own->size_bytes);
         node != NULL && node->key == own->size_bytes; node = tree_next(node))
        if (wholes_add(wholes, container_of(node, struct segment, closable_node)))
            return true;
    list_for_each_entry(struct segment, segment, &own->empty, shelf_link) {
        if (left-- == 0)
            break;
        if (segment->sole != session && session_has_mapped(session, segment) && wholes_add(wholes, segment))
            return true;
    }
    return false;
}

/* Adds the other segments of the tenant. */
static bool wholes_add_own(struct wholes *wholes, const struct shelf *own) {
    const struct session *session = wholes->request->session;
    unsigned looked_at = 0;

    list_for_each_entry(struct segment, segment, &own->empty, shelf_link) {
        bool was_tried = segment->sole == session ||
                         (looked_at < WHOLE_LOOKED_AT_MAX && session_has_mapped(session, segment));
        if (looked_at++ == WHOLE_LOOKED_AT_MAX + PROTO_LEASES_MAX)
            return false;
        if (!was_tried && wholes_add(wholes, segment))
            return true;
    }
    return false;
}

/* Finds the segments for a request, of which there are enough that suit it. A segment
 * that the session has mapped needs no message, and one that is the tenant's already serves no other one.
 * Returns whether it may have as many. */
static bool wholes_find(struct wholes *wholes, const struct request *request) {
    const struct tenant_heap *heap = tenant_heap_find(request->session->tenant, request->pool);
    const struct shelf *own = heap != NULL ? shelf_find(&heap->shelves, request->segment_bytes) : NULL;
    const struct shelf *unassigned = shelf_find(&request->pool->shelves, request->segment_bytes);

    wholes->request = request;
    wholes->is_behind = wait_queue_is_behind(request);
    wholes->count = 0;
    if (own != NULL && (wholes_add_mapped(wholes, own) || wholes_add_own(wholes, own)))
        return true;
    if (unassigned == NULL || (wholes->is_behind && wait_queue_keeps_room(request)))
        return false;
    list_for_each_entry(struct segment, segment, &unassigned->empty, shelf_link) {
        if (wholes_add(wholes, segment))
            return true;
    }
    return false;
}

/* Makes a segment of which nothing is taken one lease. Returns 0 or -ENOMEM, and nothing has changed. */
static int open_whole(struct session *session, struct segment *segment, struct lease **ret_lease) {
    bool adopts = segment->state == SEGMENT_UNASSIGNED;

    int r = session_reserve_segment(session, segment);
    if (r == 0 && adopts)
        r = tenant_adopt(session->tenant, segment);
    if (r < 0)
        return r;
    struct heap_range *range = segment->span->lowest;
    heap_claim(range);
    segment_settle(segment);
    r = lease_open(session, range, segment->size_bytes, ret_lease);
    if (r == 0)
        return 0;
    pool_give(range);
    if (adopts)
        tenant_disown(segment);
    return r;
}

/* Undoes open_whole() for the session's last leases. adopted: of that many of them the segments had no tenant
 * before; they were opened last. */
static void undo_whole(struct session *session, unsigned opened, unsigned adopted) {
    for (; opened > 0; opened--) {
        struct lease *lease = container_of(session->leases.previous, struct lease, session_link);
        struct segment *segment = lease->block->segment;
        lease_close(lease);
        if (adopted == 0)
            continue;
        tenant_disown(segment);
        adopted--;
    }
}

/* Grants the request all of its segments, or none. Returns as pool_grant_bytes() does. */
static int pool_grant_segments(struct pool *pool, struct request *request) {
    struct session *session = request->session;
    unsigned adopted = 0, n_unassigned = 0;
    struct lease *first = NULL, *lease;
    struct wholes wholes;

    if (!session_may_lease(session, request->n_segments))
        return PROTO_E_LIMIT;
    if (wait_queue_awaits_quota(request, request->size_bytes))
        return -EDQUOT;
    if (pool_lacking_bytes(request) > 0 || !wholes_find(&wholes, request))
        return -ENOSPC;
    for (uint32_t i = 0; i < wholes.count; i++)
        n_unassigned += wholes.segments[i]->owner == NULL;
    if (pool->takes_descriptors && n_unassigned > quota_left(&session->tenant->quota, QUOTA_SEGMENTS))
        return -ENOSPC; /* those of its own that would do are kept for an overdue request */
    for (uint32_t opened = 0; opened < wholes.count; opened++) {
        bool adopts = wholes.segments[opened]->owner == NULL;
        int r = open_whole(session, wholes.segments[opened], &lease);
        if (r < 0) {
            undo_whole(session, opened, adopted);
            return r;
        }
        first = opened == 0 ? lease : first;
        adopted += adopts;
    }
    assert(first != NULL);
    note_grant(pool, request, first);
    return 0;
}

/* Grants the request the first of these sizes that is free: what it wants, a quarter of that, and so on down
 * to what it needs. Of a pool of which little is available it is granted only what it needs. Returns as
 * pool_grant_bytes() does for the last size that was tried. Whole segments have one size. */
static int pool_grant(struct pool *pool, struct request *request) {
    if (request->n_segments > 0)
        return pool_grant_segments(pool, request);
    uint64_t available_bytes = pool_free_bytes(pool) + pool_room_bytes(pool);
    uint64_t size_bytes = request->size_bytes, most_bytes = available_bytes / GRANT_SHARE;

    for (;;) {
        bool is_least = size_bytes <= request->least_bytes;
        bool is_tried = size_bytes <= pool->limit_bytes && (is_least || size_bytes <= most_bytes);
        int r = is_tried ? pool_grant_bytes(pool, request, size_bytes) : -ENOSPC;
        if ((r != -ENOSPC && r != -EDQUOT) || is_least)
            return r;
        uint64_t less_bytes = size_bytes / LESS_STEP_DOWN / HEAP_GRANULE * HEAP_GRANULE;
        size_bytes = less_bytes < request->least_bytes ? request->least_bytes : less_bytes;
    }
}

/* Grants a request that has just arrived. If less is free than it wants, the tenant's fences are polled
 * before a smaller size serves it, unless another request of its tenant waits for that memory. */
static int pool_grant_new(struct pool *pool, struct request *request) {
    struct tenant_heap *heap = tenant_heap_find(request->session->tenant, pool);

    if (heap != NULL && !list_is_empty(&heap->fenced) && wait_queue_first(&heap->waiting) == NULL &&
        request->size_bytes > request->least_bytes && !heap_has(&heap->heap, request->size_bytes))
        (void)collect_heap(heap);
    return pool_grant(pool, request);
}

static void queue_enter(struct request *request, struct tenant_heap *heap, enum wait_queue_kind kind) {
    wait_queue_enter(request, heap, kind);
    long_wait_begin(request);
}

/* Has a request wait for room. */
static void pool_wait(struct pool *pool, struct request *request) {
    struct tenant_heap *heap;

    if (request->queue == WAIT_QUEUE_ROOM)
        return;
    if (tenant_heap_get(request->session->tenant, pool, &heap) < 0)
        request_refuse(request, PROTO_E_NO_MEMORY);
    else
        queue_enter(request, heap, WAIT_QUEUE_ROOM);
}

/* Whether the quota of segments can never allow what the request asks for. */
static bool lacks_segments_for_ever(const struct request *request, const struct tenant_heap *heap) {
    uint64_t wanted = request_n_leases(request);
    return wait_queue_awaited_item(request) == QUOTA_SEGMENTS && wanted > heap->segments &&
           wanted > quota_limit(&request->session->tenant->quota, QUOTA_SEGMENTS);
}

/* Has a request wait for its tenant's quota. If it is older than one that keeps the quota back, that one does so
 * no more: the next tick serves those behind it. */
static void queue_for_quota(struct request *request, struct tenant_heap *heap) {
    const struct request *first = wait_queue_first(&heap->held);

    queue_enter(request, heap, WAIT_QUEUE_QUOTA);
    if (first == NULL || wait_queue_first(&heap->held) == first ||
        first->passes < request->session->core->passes_limit)
        return;
    heap->held.tried = 0;
    request->pool->waiters.is_shifted = true;
}

/* Has a request wait for its tenant's quota, or refuses it if the quota can never allow it. */
static void pool_hold(struct pool *pool, struct request *request) {
    struct tenant *tenant = request->session->tenant;
    struct tenant_heap *heap;

    if (!tenant_may_ever_take(tenant, pool, request->least_bytes))
        request_refuse_for_quota(request, PROTO_E_LIMIT, quota_item_of_pool(pool->id));
    else if (tenant_heap_get(tenant, pool, &heap) < 0)
        request_refuse(request, PROTO_E_NO_MEMORY);
    else if (lacks_segments_for_ever(request, heap))
        request_refuse_for_quota(request, PROTO_E_LIMIT, QUOTA_SEGMENTS);
    else if (request->queue != WAIT_QUEUE_QUOTA)
        queue_for_quota(request, heap);
}

/* Refuses or queues a request by what pool_grant() returned for it. */
static void pool_settle(struct pool *pool, struct request *request, int r) {
    const struct session *session = request->session;
    uint64_t n_leases = (uint64_t)session->n_leases + request_n_leases(request);
    bool has_leases = quota_left(&session->tenant->quota, QUOTA_LEASES) >= request_n_leases(request);

    if (r == PROTO_E_LIMIT && n_leases <= session->core->session_leases_limit)
        request_refuse_for_quota(request, PROTO_E_LIMIT, has_leases ? QUOTA_RANGES : QUOTA_LEASES);
    else if (r == -ENOMEM || r > 0)
        request_refuse(request, r > 0 ? (enum proto_error)r : PROTO_E_NO_MEMORY);
    else if (r == -EDQUOT)
        pool_hold(pool, request);
    else if (r == -ENOSPC)
        pool_wait(pool, request);
}

/* Moves requests that wait for room, and that only quota could help, to the queue for quota. Otherwise
 * sessions would be asked for memory in vain. */
static void pool_hold_first(struct pool *pool) {
    struct request *oldest;
    while ((oldest = wait_queue_oldest(pool)) != NULL && wait_queue_awaits_quota(oldest, oldest->least_bytes))
        pool_hold(pool, oldest);
}

static void refuse_for_growth(struct pool *pool, struct list *requests) {
    list_for_each_entry_safe(struct request, request, requests, special_link) {
        (void)collect_heap(request->heap);
        /* Memory that came back may serve the request, and the tick comes at once. */
        if (pool_is_ready(pool)) {
            pool->is_plan_due = true;
            return;
        }
        request_give_up(request);
        pool->waiters.is_shifted = true;
    }
}

/* Refuses the requests that wait for growth only, and for which none is under way: the pool makes none, or
 * they wait for their tenant's quota. */
static void pool_refuse_for_growth(struct pool *pool, uint64_t now_ns) {
    /* Where the driver refused and no session has memory, only another growth can help. */
    bool may_grow = pool->state == POOL_STARTING || !plan_is_settled(pool) || plan_is_hopeless(pool, now_ns);

    refuse_for_growth(pool, &pool->waiters.held_for_growth);
    if (!may_grow)
        refuse_for_growth(pool, &pool->waiters.for_growth);
}

static void refuse_queue(struct wait_queue *queue, uint64_t least_bytes, enum proto_error error) {
    list_for_each_entry_safe(struct request, request, &queue->requests, link) {
        if (request->least_bytes >= least_bytes)
            request_refuse(request, error);
    }
}

void pool_refuse(struct pool *pool, uint64_t least_bytes, enum proto_error error) {
    list_for_each_entry(struct tenant_heap, heap, &pool->heaps, pool_link) {
        refuse_queue(&heap->waiting, least_bytes, error);
        refuse_queue(&heap->held, least_bytes, error);
    }
}

void session_refuse_forbidden(struct session *session) {
    list_for_each_entry_safe(struct request, request, &session->requests, session_link) {
        if (request->state == REQUEST_WAITING && !session_may_use(session, request->pool))
            request_refuse(request, PROTO_E_NO_POOL);
    }
}

static void pool_plan(struct pool *pool, uint64_t now_ns) {
    pool->is_plan_due = false;
    if (wait_queue_review(pool))
        pool_wake(pool); /* what was kept is not, or the other way round */
    pool_hold_first(pool);
    plan_growth(pool, now_ns);
    pool_refuse_for_growth(pool, now_ns);
    plan_reclaim(pool, now_ns);
}

/* Grants the first request of a queue's window that what is free suffices for. A request that waited for its
 * tenant's quota, and that the quota allows now, may have to wait for room instead. Returns whether a request
 * was granted. */
static bool serve_queue(struct pool *pool, struct wait_queue *queue) {
    uint64_t least_bytes = UINT64_MAX, changes = pool->changes;
    unsigned left = WAIT_QUEUE_WINDOW;

    list_for_each_entry_safe(struct request, request, &queue->requests, link) {
        uint64_t needed_bytes = request_piece_bytes(request);
        enum wait_queue_kind kind = request->queue;
        if (left == 0) {
            queue->tried = changes;
            return false;
        }
        int r = pool_grant(pool, request);
        pool_settle(pool, request, r);
        if (r == 0)
            return true;
        if (request->queue != kind)
            continue;
        left--;
        if (needed_bytes < least_bytes)
            least_bytes = needed_bytes;
    }
    queue->least_bytes = least_bytes;
    queue->tried = changes;
    return false;
}

/* The queue to serve of two. NULL: none. */
static struct wait_queue *first_of(struct wait_queue *queue, struct wait_queue *other) {
    return other == NULL || wait_queue_comes_before(wait_queue_first(queue), wait_queue_first(other)) ? queue
                                                                                                      : other;
}

/* The next queue to serve in this round: the first, in serving order, for which free memory may be enough, or
 * that the quota may allow something, and in which a request may still be granted. Fast, because each release
 * calls it, and very many requests can wait. */
static struct wait_queue *next_queue(const struct pool *pool) {
    uint64_t round = pool->waiters.rounds;
    struct wait_queue *best = NULL;

    list_for_each_entry(struct tenant_heap, heap, &pool->waiters.queues, waiting_link) {
        uint64_t least_bytes = heap->waiting.least_bytes;
        if (heap->waiting.served != round && heap->waiting.tried != pool->changes &&
            (pool->unassigned_bytes >= least_bytes || heap_may_have(&heap->heap, least_bytes)))
            best = first_of(&heap->waiting, best);
    }
    list_for_each_entry(struct tenant_heap, heap, &pool->waiters.pressed, pressed_link) {
        if (heap->held.served != round && heap->held.tried != pool->changes &&
            wait_queue_first(&heap->held) != NULL &&
            tenant_may_take(heap->tenant, pool, heap->held.least_bytes))
            best = first_of(&heap->held, best);
    }
    return best;
}

/* Grants requests that wait: those that are overdue, then one request of the tenant with the fewest bytes,
 * and so on. A queue of which no request could be granted is done for this round, because the others only
 * take memory. When an overdue request leaves, wait_queue_leave() marks the pool as ready: the next round
 * begins at once, because the request held memory up for the queues that are done. */
static void pool_serve_queues(struct pool *pool) {
    struct wait_queue *queue;

    (void)wait_queue_review(pool);
    list_for_each_entry_safe(struct request, request, &pool->waiters.overdue, overdue_link) {
        if (request->heap->waiting.tried != pool->changes)
            pool_settle(pool, request, pool_grant(pool, request));
    }
    pool->waiters.rounds++;
    while (!pool_is_ready(pool) && (queue = next_queue(pool)) != NULL)
        if (!serve_queue(pool, queue))
            queue->served = pool->waiters.rounds;
}

/* Serves the waiting requests for which there is free memory. */
static void pool_serve_free(struct pool *pool) {
    pool->waiters.is_shifted = false;
    do { /* again if an overdue request left, or fences were polled because of a session's limit of leases */
        list_remove(&pool->ready_link);
        pool_serve_queues(pool);
    } while (pool_is_ready(pool));
}

/* Whether anything has changed since the last plan. While the driver refuses, hope depends on what is leased.
 */
static bool plan_is_due(const struct pool *pool) {
    return pool->is_plan_due || pool->growth.retry_ns != 0;
}

/* Plans for the requests that still wait, unless nothing has changed. Where only the oldest request keeps
 * idle segments from being retired, it alone is refused, and the tick comes at once. */
static void pool_plan_waiting(struct pool *pool, uint64_t now_ns) {
    if (!plan_is_due(pool))
        return;
    pool_plan(pool, now_ns);
    if (!plan_is_hopeless(pool, now_ns))
        return;
    if (pool_is_closed(pool) || pool_idle_bytes(pool, NULL) == 0) {
        pool_refuse(pool, 0, PROTO_E_DRIVER);
        return;
    }
    request_refuse(wait_queue_oldest(pool), PROTO_E_DRIVER);
    if (pool->waiters.count > 0)
        pool_mark_ready(pool);
}

/* Notes for which request the pool was stuck that is refused and did not wait: sessions that were asked
 * because of it close segments for it. */
static void note_refused(struct pool *pool, const struct request *request) {
    pool->reclaim.refused_bytes = request->least_bytes;
    if (request->n_segments > 0) /* plan_missing_bytes() subtracts idle segments that suit the request, too */
        pool->reclaim.refused_bytes =
            pool_lacking_bytes(request) + pool_idle_bytes(pool, NULL) - pool_idle_bytes(pool, request);
    pool->reclaim.refused_segment_bytes = request->segment_bytes;
    pool->reclaim.refused_tenant = request->session->tenant->id;
}

/* Refuses a request that waits for idle memory alone, of which there is no more. The tick comes at once for
 * those that it held up. */
static void pool_end_idle_wait(struct pool *pool, uint64_t now_ns) {
    if (idle_wait_end_one(pool, now_ns) && pool->waiters.count > 0)
        pool_mark_ready(pool);
}

static void pool_serve_waiting(struct pool *pool, uint64_t now_ns) {
    pool_serve_free(pool);
    pool_plan_waiting(pool, now_ns);
    pool_end_idle_wait(pool, now_ns);
}

void pool_ask(struct pool *pool, struct request *request, uint64_t now_ns) {
    if (pool_is_closed(pool)) {
        request_refuse(request, PROTO_E_DRIVER);
        return;
    }
    if (pool->is_draining) {
        request_refuse(request, PROTO_E_SHUTDOWN);
        return;
    }
    if (request->least_bytes > pool_segment_max(pool)) {
        request_refuse(request, PROTO_E_TOO_LARGE);
        return;
    }
    int r = pool_grant_new(pool, request);
    if (r == 0 && list_is_empty(&pool->waiters.queues))
        plan_growth_ahead(pool, now_ns);
    else if (r == 0 && plan_is_due(pool)) /* the lease may be in a segment that was to be retired */
        pool_plan(pool, now_ns);
    pool_settle(pool, request, r);
    if (request->state != REQUEST_WAITING)
        return;
    struct tenant_heap *heap = request->heap;
    uint64_t reclaim_ns = request->queue == WAIT_QUEUE_QUOTA ? heap->reclaim_ns : pool->reclaim.next_ns;
    if (pool->waiters.poll_fences_ns <= now_ns)
        pool->waiters.poll_fences_ns = clock_deadline_ns(now_ns, FENCE_INTERVAL_NS);
    /* Only memory of its own tenant can help it. Requests that came before it come first there, too. */
    if (collect_heap(heap))
        pool_serve_waiting(pool, now_ns);
    else
        pool_plan(pool, now_ns);
    if (request->state != REQUEST_WAITING)
        return;
    /* A request that must not wait has still begun a growth, or had sessions asked for memory, and its client
     * finds room when it asks again. If sessions were asked a moment ago, they are asked again as soon as
     * they may be. */
    if (request->deadline_ns > now_ns) {
        request->waited = true;
        kept_change(request->session->core, request->record);
        record(pool->core, &(struct recorded){.kind = PROTO_RECORD_WAIT,
                                              .pool = pool,
                                              .session = request->session,
                                              .bytes = request->size_bytes,
                                              .value = request->id});
        if (charge_make(&request->charge, &request->session->tenant->quota, QUOTA_WAITING, 1) != 0)
            request_refuse_for_quota(request, PROTO_E_LIMIT, QUOTA_WAITING);
        else
            pool_end_idle_wait(pool, now_ns);
        return;
    }
    bool owed = now_ns < reclaim_ns && pool->reclaim.n_sessions > 0 && !request->no_reclaim;
    if (request->queue == WAIT_QUEUE_QUOTA)
        heap->reclaim_owed = heap->reclaim_owed || owed;
    else
        pool->reclaim.is_owed = pool->reclaim.is_owed || (pool->reclaim.is_stuck && owed);
    if (request->queue == WAIT_QUEUE_ROOM && pool->reclaim.is_stuck && !request->no_reclaim)
        note_refused(pool, request);
    request_give_up(request);
}

static bool is_due(const struct request *request, uint64_t now_ns) {
    return request != NULL && request->deadline_ns <= now_ns;
}

/* Refuses the requests whose deadline has passed. Returns whether there were any. */
static bool pool_expire(struct pool *pool, uint64_t now_ns) {
    struct request *request;
    bool any = false;

    for (; is_due(request = wait_queue_next_due(pool), now_ns); any = true) {
        long_wait_end(request, now_ns);
        request_time_out(request);
    }
    return any;
}

static void pool_serve(struct pool *pool, uint64_t now_ns) {
    /* A release does not pay for polling other clients' fences: the tick comes soon. */
    if (pool->waiters.poll_fences_ns <= now_ns)
        collect_pool(pool, now_ns);
    pool_serve_waiting(pool, now_ns);
}

void pool_tick(struct pool *pool, uint64_t now_ns) {
    bool is_expiring = is_due(wait_queue_next_due(pool), now_ns);
    bool is_looking = pool->waiters.next_look_ns <= now_ns;

    if (pool->waiters.is_shifted)
        pool_mark_ready(pool);
    if (pool->waiters.poll_fences_ns <= now_ns || is_expiring || is_looking)
        collect_pool(pool, now_ns);
    bool plans = pool_is_ready(pool);
    if (plans)
        pool_serve_free(pool);
    bool any_ended = is_looking && long_waits_look(pool, now_ns);
    if (is_expiring && pool_expire(pool, now_ns))
        any_ended = true;
    if (any_ended) {
        pool_serve_free(pool); /* those that ended may have held others up */
        plans = true;
    }
    if (pool->growth.retry_ns != 0 && pool->growth.retry_ns <= now_ns) {
        pool->growth.retry_ns = 0;
        pool->is_plan_due = plans = true;
    }
    if (plans)
        pool_plan_waiting(pool, now_ns);
    else if (plan_next_reclaim_ns(pool) <= now_ns)
        pool_plan(pool, now_ns);
    pool_end_idle_wait(pool, now_ns);
    if (pool->reclaim.short_until_ns != 0 && pool->reclaim.short_until_ns <= now_ns)
        plan_end_shortage(pool, now_ns);
}

uint64_t pool_next_tick_ns(const struct pool *pool) {
    uint64_t next = plan_next_reclaim_ns(pool);
    const struct request *due = wait_queue_next_due(pool);

    if (pool->waiters.count > 0 && (pool_is_ready(pool) || pool->waiters.is_shifted))
        return 0;
    if (due != NULL && due->deadline_ns < next)
        next = due->deadline_ns;
    if (pool->waiters.count > 0 && pool->waiters.next_look_ns < next)
        next = pool->waiters.next_look_ns;
    if (pool->waiters.idle_look_ns < next)
        next = pool->waiters.idle_look_ns;
    if (pool_waits_for_fences(pool) && pool->waiters.poll_fences_ns < next)
        next = pool->waiters.poll_fences_ns;
    if (pool->growth.retry_ns != 0 && pool->growth.retry_ns < next)
        next = pool->growth.retry_ns;
    if (pool->reclaim.short_until_ns != 0 && pool->reclaim.short_until_ns < next)
        next = pool->reclaim.short_until_ns;
    return next;
}

/* A pool that its own plan marks again is left to the tick, which comes at once: a plan must not give a
 * request up and another one, in the same call, grow. */
void core_serve(struct core *core, uint64_t now_ns) {
    const struct list *last = core->ready.previous, *served = NULL;

    recorder_set_time(core, now_ns);
    while (served != last && !list_is_empty(&core->ready)) {
        struct pool *pool = container_of(core->ready.next, struct pool, ready_link);
        served = &pool->ready_link;
        list_remove(&pool->ready_link);
        pool_serve(pool, now_ns);
    }
}
