/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/wait_queue.h"

#include <assert.h>
#include <stddef.h>

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

/* Puts a request that waits for room, and was passed too often, into the list of overdue ones. The list is
 * short: only the first of a queue becomes overdue, or was when it waited for quota. */
static void overdue_enter(struct request *request) {
    if (request->passes < request->session->core->passes_limit || request->queue != WAIT_QUEUE_ROOM ||
        !list_is_empty(&request->overdue_link))
        return;
    insert_by_arrival(&request->pool->waiters.overdue, request, offsetof(struct request, overdue_link));
}

static struct wait_queue *queue_of(struct tenant_heap *heap, enum wait_queue_kind kind) {
    return kind == WAIT_QUEUE_ROOM ? &heap->waiting : &heap->held;
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
    if (kind == WAIT_QUEUE_ROOM && list_is_empty(&heap->waiting_link))
        list_append(&pool->waiters.queues, &heap->waiting_link);
    if (kind == WAIT_QUEUE_QUOTA && list_is_empty(&heap->pressed_link))
        list_append(&pool->waiters.pressed, &heap->pressed_link);
    overdue_enter(request);
    if (request->no_reclaim)
        list_append(&pool->waiters.for_growth, &request->growth_link);
    pool->waiters.count++;
    if (pool->reclaim.spared != NULL && !request->no_reclaim &&
        !(request->gave_back && request->session == pool->reclaim.spared)) {
        pool->reclaim.spared = NULL; /* now its memory is wanted at once */
        pool->reclaim.next_ns = 0;
    }
    if (request->deadline_ns < pool->waiters.next_deadline_ns)
        pool->waiters.next_deadline_ns = request->deadline_ns;
}

void wait_queue_leave(struct request *request) {
    struct tenant_heap *heap = request->heap;

    if (request->queue == WAIT_QUEUE_NONE)
        return;
    list_remove(&request->link);
    if (!list_is_empty(&request->overdue_link))
        pool_mark_ready(request->pool); /* it may have held other requests up */
    list_remove(&request->overdue_link);
    list_remove(&request->growth_link);
    request->pool->waiters.count--;
    if (list_is_empty(&heap->waiting.requests))
        list_remove(&heap->waiting_link);
    if (list_is_empty(&heap->held.requests) && !heap->reclaim_owed)
        list_remove(&heap->pressed_link);
    request->queue = WAIT_QUEUE_NONE;
    request->heap = NULL;
}

struct request *wait_queue_oldest(const struct pool *pool) {
    struct request *oldest = NULL;
    list_for_each_entry(const struct tenant_heap, heap, &pool->waiters.queues, waiting_link) {
        struct request *first = wait_queue_first(&heap->waiting);
        assert(first != NULL); /* heaps whose queue is empty are not among those of the pool */
        if (oldest == NULL || first->number < oldest->number)
            oldest = first;
    }
    return oldest;
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

struct request *wait_queue_find(const struct pool *pool, uint64_t room_bytes, uint64_t idle_bytes) {
    struct request *overdue = list_first(&pool->waiters.overdue, struct request, overdue_link), *best = NULL;

    if (overdue != NULL && fits(overdue, room_bytes, idle_bytes))
        return overdue;
    list_for_each_entry(struct tenant_heap, heap, &pool->waiters.queues, waiting_link) {
        unsigned left = WAIT_QUEUE_WINDOW;
        if (best != NULL && !wait_queue_comes_before(wait_queue_first(&heap->waiting),
                                                     wait_queue_first(&best->heap->waiting)))
            continue;
        list_for_each_entry(struct request, request, &heap->waiting.requests, link) {
            if (left-- == 0 || (overdue != NULL && request->number > overdue->number))
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

bool wait_queue_is_behind(const struct request *request) {
    const struct request *overdue = list_first(&request->pool->waiters.overdue, struct request, overdue_link);
    return overdue != NULL && overdue->number < request->number;
}

bool wait_queue_is_reserved(const struct request *request, const struct segment *segment) {
    list_for_each_entry(const struct request, overdue, &request->pool->waiters.overdue, overdue_link) {
        if (overdue->number >= request->number)
            break;
        if (could_use(overdue, request->session, segment))
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

void wait_queue_count_passes(const struct request *request) {
    struct request *first = wait_queue_first(&request->lease->block->segment->owner->held);

    if (first != NULL && first->number < request->number)
        first->passes++;
    list_for_each_entry(const struct tenant_heap, heap, &request->pool->waiters.queues, waiting_link) {
        first = wait_queue_first(&heap->waiting);
        assert(first != NULL); /* see above: wait_queue_oldest() */
        if (first->number > request->number || !could_use_some(first, request))
            continue;
        first->passes++;
        overdue_enter(first);
    }
}
