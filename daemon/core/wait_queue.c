/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/wait_queue.h"

#include <assert.h>
#include <stddef.h>

#include "daemon/core/kept.h"
#include "daemon/core/pool.h"
#include "daemon/core/segment.h"
#include "daemon/core/session.h"
#include "daemon/core/tenant.h"

struct request *wait_queue_first(const struct wait_queue *queue) {
    return list_first(&queue->requests, struct request, link);
}

bool wait_queue_comes_before(const struct request *first, const struct request *other) {
    assert(first != NULL && other != NULL); /* empty queues are not compared */
    uint64_t bytes = tenant_bytes(first->session->tenant, first->pool),
             other_bytes = tenant_bytes(other->session->tenant, other->pool);
    return bytes != other_bytes ? bytes < other_bytes : first->number < other->number;
}

/* Puts a request into a list of requests by arrival. link_offset: of the list's link in a request. Mostly the
 * request goes to the end; one that comes from another queue may be older than some. */
static void insert_by_arrival(struct list *requests, struct request *request, size_t link_offset) {
    struct list *position = requests;

    while (position->previous != requests) {
        const void *before = (const char *)position->previous - link_offset;
        if (((const struct request *)before)->number <= request->number)
            break;
        position = position->previous;
    }
    list_insert_before(position, (void *)((char *)request + link_offset));
}

/* The bytes of segments that the pool could make while all that hold memory of it live and keep it: of what
 * it may have, all but the segments of which something is taken, and those that stay mapped. */
static uint64_t attainable_bytes(const struct pool *pool) {
    bool is_refused = pool->growth.retry_ns != 0 && pool->reserved_bytes < pool->limit_bytes;
    uint64_t most = is_refused ? pool->reserved_bytes : pool->limit_bytes;
    uint64_t stuck = pool->occupied_bytes + pool->deaf_bytes;

    if (pool->reclaim.n_asks > ASKS_TRUSTED_MAX) /* what clients do not close by now stays mapped, too */
        stuck = pool->reserved_bytes - pool->retiring_bytes - pool->idle_bytes - pool->kept_bytes;
    return most > stuck ? most - stuck : 0;
}

/* Whether growth could serve the overdue request while all that hold memory live. Then the room is for it. */
static bool keeps_room(const struct request *overdue) {
    return segment_bytes_for(overdue->least_bytes) <= attainable_bytes(overdue->pool);
}

/* Of the segments of its tenant that are large enough, that of which the least is taken: as their holders
 * release, the request fits there. NULL: there is none. */
static struct segment *choose_target(const struct request *overdue) {
    unsigned left = TARGETS_LOOKED_AT_MAX;
    struct segment *best = NULL;

    if (overdue->n_segments > 0)
        return NULL;
    for (const struct shelf *shelf = shelf_first_at_least(&overdue->heap->shelves, overdue->least_bytes);
         shelf != NULL; shelf = shelf_next(shelf))
        list_for_each_entry(struct segment, segment, &shelf->used, shelf_link) {
            if (left-- == 0)
                return best;
            if (best == NULL || segment->span->taken_bytes < best->span->taken_bytes)
                best = segment;
        }
    return best;
}

/* Puts a request that waits for room, and was passed too often, into the list of overdue ones. The list is
 * short: only the first of a queue becomes overdue, or was when it waited for quota. */
static void overdue_enter(struct request *request) {
    if (request->passes < request->session->core->passes_limit || request->queue != WAIT_QUEUE_ROOM ||
        !list_is_empty(&request->overdue_link))
        return;
    insert_by_arrival(&request->pool->waiters.overdue, request, offsetof(struct request, overdue_link));
    request->target = choose_target(request);
    request->pool->is_plan_due = true;
}

static struct wait_queue *queue_of(struct tenant_heap *heap, enum wait_queue_kind kind) {
    return kind == WAIT_QUEUE_ROOM ? &heap->waiting : &heap->held;
}

/* The requests of the heap's queues, or the quota that they wait for, have changed. */
static void note_queues(struct tenant_heap *heap) {
    const struct request *first = wait_queue_first(&heap->waiting);

    heap->waiting.tried = heap->waiting.weighed = heap->held.tried = 0;
    heap->pool->is_plan_due = true;
    if (first == NULL || heap->age_node.key != first->number)
        tree_remove(&heap->pool->waiters.by_age, &heap->age_node);
    if (first != NULL && !tree_has(&heap->age_node))
        tree_insert(&heap->pool->waiters.by_age, &heap->age_node, first->number, 0);
}

void wait_queue_enter(struct request *request, struct tenant_heap *heap, enum wait_queue_kind kind) {
    struct wait_queue *queue = queue_of(heap, kind);
    struct pool *pool = request->pool;

    assert(request->state == REQUEST_WAITING && heap->pool == pool && kind != WAIT_QUEUE_NONE);
    assert(heap->tenant == request->session->tenant);
    wait_queue_leave(request);
    if (list_is_empty(&queue->requests) || request_piece_bytes(request) < queue->least_bytes)
        queue->least_bytes = request_piece_bytes(request);
    insert_by_arrival(&queue->requests, request, offsetof(struct request, link));
    request->heap = heap;
    request->queue = kind;
    kept_change(request->session->core, request->record);
    if (kind == WAIT_QUEUE_ROOM && list_is_empty(&heap->waiting_link))
        list_append(&pool->waiters.queues, &heap->waiting_link);
    if (kind == WAIT_QUEUE_QUOTA && list_is_empty(&heap->pressed_link))
        list_append(&pool->waiters.pressed, &heap->pressed_link);
    overdue_enter(request);
    if (request->no_reclaim)
        list_append(kind == WAIT_QUEUE_ROOM ? &pool->waiters.for_growth : &pool->waiters.held_for_growth,
                    &request->special_link);
    request->round = kind == WAIT_QUEUE_ROOM ? pool->reclaim.round.number : heap->round.number;
    if (request->idle_only)
        insert_by_arrival(&pool->waiters.idle_only, request, offsetof(struct request, special_link));
    tree_insert(&pool->waiters.deadlines, &request->deadline_node, request->deadline_ns, request->number);
    note_queues(heap);
    pool->waiters.count++;
    if (pool->reclaim.spared != NULL && !request->no_reclaim &&
        !(request->gave_back && request->session == pool->reclaim.spared)) {
        pool->reclaim.spared = NULL; /* now its memory is wanted at once */
        pool->reclaim.next_ns = 0;
    }
}

void wait_queue_leave(struct request *request) {
    struct tenant_heap *heap = request->heap;

    if (request->queue == WAIT_QUEUE_NONE)
        return;
    list_remove(&request->link);
    if (!list_is_empty(&request->overdue_link))
        pool_mark_ready(request->pool); /* it may have held other requests up */
    list_remove(&request->overdue_link);
    list_remove(&request->special_link);
    tree_remove(&request->pool->waiters.deadlines, &request->deadline_node);
    request->target = NULL;
    if (request->pool->waiters.keeping == request)
        request->pool->waiters.keeping = NULL;
    request->pool->waiters.count--;
    if (list_is_empty(&heap->waiting.requests))
        list_remove(&heap->waiting_link);
    if (list_is_empty(&heap->held.requests) && !heap->reclaim_owed)
        list_remove(&heap->pressed_link);
    note_queues(heap);
    request->queue = WAIT_QUEUE_NONE;
    request->heap = NULL;
    kept_change(request->session->core, request->record);
}

struct request *wait_queue_oldest(const struct pool *pool) {
    const struct tree_node *node = tree_first(&pool->waiters.by_age);
    return node == NULL ? NULL
                        : wait_queue_first(&container_of(node, const struct tenant_heap, age_node)->waiting);
}

struct request *wait_queue_next_due(const struct pool *pool) {
    struct tree_node *node = tree_first(&pool->waiters.deadlines);
    return node == NULL ? NULL : container_of(node, struct request, deadline_node);
}

/* Whether the request lacks bytes, and no more than these. idle_bytes: of all idle segments. */
static bool fits(const struct request *request, uint64_t room_bytes, uint64_t idle_bytes) {
    uint64_t lacking_bytes = pool_lacking_bytes(request);

    if (lacking_bytes == 0 || lacking_bytes > room_bytes + idle_bytes ||
        wait_queue_awaits_quota(request, request->least_bytes))
        return false;
    return lacking_bytes <= room_bytes || request->n_segments == 0 ||
           lacking_bytes <= room_bytes + pool_idle_bytes(request->pool, request);
}

/* Finds out how few bytes a request of the queue's window lacks, unless that is known. */
static void weigh(struct wait_queue *queue, const struct pool *pool) {
    unsigned left = WAIT_QUEUE_WINDOW;

    if (queue->weighed == pool->changes)
        return;
    queue->weighed = pool->changes;
    queue->lacking_bytes = UINT64_MAX;
    list_for_each_entry(const struct request, request, &queue->requests, link) {
        if (left-- == 0)
            break;
        uint64_t bytes = pool_lacking_bytes(request);
        if (bytes > 0 && bytes < queue->lacking_bytes &&
            !wait_queue_awaits_quota(request, request->least_bytes))
            queue->lacking_bytes = bytes;
    }
}

struct request *wait_queue_find(const struct pool *pool, uint64_t room_bytes, uint64_t idle_bytes) {
    const struct request *keeping = pool->waiters.keeping;
    struct request *best = NULL;

    list_for_each_entry(struct request, overdue, &pool->waiters.overdue, overdue_link) {
        if (fits(overdue, room_bytes, idle_bytes))
            return overdue;
    }
    list_for_each_entry(struct tenant_heap, heap, &pool->waiters.queues, waiting_link) {
        unsigned left = WAIT_QUEUE_WINDOW;
        weigh(&heap->waiting, pool);
        if (heap->waiting.lacking_bytes > room_bytes + idle_bytes)
            continue;
        if (best != NULL && !wait_queue_comes_before(wait_queue_first(&heap->waiting),
                                                     wait_queue_first(&best->heap->waiting)))
            continue;
        list_for_each_entry(struct request, request, &heap->waiting.requests, link) {
            if (left-- == 0 || (keeping != NULL && request->number > keeping->number))
                break;
            if (fits(request, room_bytes, idle_bytes)) {
                best = request;
                break;
            }
        }
    }
    return best;
}

bool wait_queue_lacks_segments(const struct request *request, uint64_t size_bytes) {
    struct tenant *tenant = request->session->tenant;
    uint64_t left = quota_left(&tenant->quota, QUOTA_SEGMENTS), wanted = request_n_leases(request);

    if (!request->pool->takes_descriptors || left >= wanted)
        return false;
    struct tenant_heap *heap = tenant_heap_find(tenant, request->pool);
    if (heap == NULL || request->n_segments == 0)
        return heap == NULL || !heap_has(&heap->heap, size_bytes);
    list_for_each_entry(const struct segment, segment, &request->pool->segments, link) {
        if (segment->owner == heap && pool_segment_suits(segment, request))
            left++;
    }
    return left < wanted;
}

unsigned wait_queue_awaited_item(const struct request *request) {
    bool lacks = tenant_may_take(request->session->tenant, request->pool, request->least_bytes) &&
                 wait_queue_lacks_segments(request, request->least_bytes);
    return lacks ? QUOTA_SEGMENTS : quota_item_of_pool(request->pool->id);
}

bool wait_queue_awaits_quota(const struct request *request, uint64_t size_bytes) {
    struct tenant *tenant = request->session->tenant;
    if (!tenant_may_take(tenant, request->pool, size_bytes) || wait_queue_lacks_segments(request, size_bytes))
        return true;
    const struct tenant_heap *heap = tenant_heap_find(tenant, request->pool);
    const struct request *first = heap != NULL ? wait_queue_first(&heap->held) : NULL;
    return first != NULL && first->passes >= request->session->core->passes_limit &&
           first->number < request->number;
}

/* Whether the segment is large enough for the request, or of the size that it asks for. */
static bool has_size_for(const struct segment *segment, const struct request *request) {
    return request->n_segments > 0 ? segment->size_bytes == request->segment_bytes
                                   : segment->size_bytes >= request->least_bytes;
}

/* Whether a waiting request could use memory of a segment that a session is given instead. If the session has
 * the segment mapped already, the segment cannot go back to the driver before the session closes it: then
 * only a request of the segment's own tenant could use it, if the segment has the size for it. */
static bool could_use(const struct request *waiter, const struct session *session,
                      const struct segment *segment) {
    return !session_has_mapped(session, segment) ||
           (segment->owner->tenant == waiter->session->tenant && has_size_for(segment, waiter));
}

bool wait_queue_review(struct pool *pool) {
    struct request *keeping = NULL;

    list_for_each_entry(struct request, overdue, &pool->waiters.overdue, overdue_link) {
        if (keeping == NULL && keeps_room(overdue))
            keeping = overdue;
        if (overdue->target == NULL)
            overdue->target = choose_target(overdue);
    }
    if (keeping == pool->waiters.keeping)
        return false;
    pool->waiters.keeping = keeping;
    pool->changes++;
    pool->is_plan_due = true;
    return true;
}

bool wait_queue_is_behind(const struct request *request) {
    const struct request *overdue = list_first(&request->pool->waiters.overdue, struct request, overdue_link);
    return overdue != NULL && overdue->number < request->number;
}

/* Whether the overdue request's own tenant has as many segments of the size as it asks for, so that those
 * that become empty may come together. */
static bool collects(const struct request *overdue, const struct segment *segment) {
    return pool_segment_suits(segment, overdue) && segment->owner != NULL &&
           segment->owner_shelf->n_segments >= overdue->n_segments;
}

bool wait_queue_keeps_room(const struct request *request) {
    list_for_each_entry(const struct request, overdue, &request->pool->waiters.overdue, overdue_link) {
        if (overdue->number < request->number && keeps_room(overdue))
            return true;
    }
    return false;
}

bool wait_queue_is_kept(const struct request *request, const struct segment *segment) {
    list_for_each_entry(const struct request, overdue, &request->pool->waiters.overdue, overdue_link) {
        if (overdue->number >= request->number)
            break;
        if (keeps_room(overdue) ? segment->is_empty && could_use(overdue, request->session, segment)
                                : segment == overdue->target || collects(overdue, segment))
            return true;
    }
    return false;
}

/* Whether the waiting request could use memory of one of the segments that the other request was granted. */
static bool could_use_some(const struct request *waiter, const struct request *granted) {
    const struct lease *lease = granted->lease;

    for (unsigned n = request_n_leases(granted); n > 0; n--, lease = session_next_lease(lease))
        if (could_use(waiter, granted->session, lease->block->segment))
            return true;
    return false;
}

/* Counts a pass. Returns how many there were. */
static unsigned pass(struct request *passed) {
    kept_change(passed->session->core, passed->record);
    return ++passed->passes;
}

void wait_queue_count_passes(const struct request *request) {
    const struct core *core = request->session->core;
    struct request *first = wait_queue_first(&request->lease->block->segment->owner->held);

    if (first != NULL && first->number < request->number && pass(first) == core->passes_limit)
        note_queues(first->heap); /* its tenant's later requests wait behind it from now on */
    list_for_each_entry(const struct tenant_heap, heap, &request->pool->waiters.queues, waiting_link) {
        first = wait_queue_first(&heap->waiting);
        assert(first != NULL); /* see above: wait_queue_oldest() */
        if (first->number > request->number || !could_use_some(first, request))
            continue;
        pass(first);
        overdue_enter(first);
    }
}
