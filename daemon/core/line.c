/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/line.h"

#include <assert.h>
#include <stddef.h>

#include "daemon/core/core.h"
#include "daemon/core/limits.h"
#include "daemon/core/pool.h"
#include "daemon/core/quota.h"
#include "daemon/core/request.h"
#include "daemon/core/segment.h"
#include "daemon/core/session.h"
#include "daemon/core/tenant.h"

void line_init(struct line *line) {
    list_init(&line->requests);
    line->least_bytes = 0;
}

struct request *line_first(const struct line *line) {
    return list_first(&line->requests, struct request, link);
}

/* Puts a request into a list of requests by arrival; link_offset: where the list's link is in them. Mostly it
 * is the last; one that comes from another line may have been overtaken by some. */
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

/* Puts a request that waits for room, and was passed too often, among its like. They are few: the first of a
 * line becomes one, or was when it waited for its quota. */
static void overdue_enter(struct request *request) {
    if (request->passes < request->session->core->passes_limit || request->line != LINE_ROOM ||
        !list_is_empty(&request->overdue_link))
        return;
    insert_by_arrival(&request->pool->overdue, request, offsetof(struct request, overdue_link));
}

static struct line *line_of(struct tenant_heap *heap, enum line_kind kind) {
    return kind == LINE_ROOM ? &heap->waiting : &heap->held;
}

void line_enter(struct request *request, struct tenant_heap *heap, enum line_kind kind) {
    struct line *line = line_of(heap, kind);
    struct pool *pool = request->pool;

    assert(request->state == REQUEST_WAITING && heap->pool == pool && kind != LINE_NONE);
    assert(heap->tenant == request->session->tenant);
    line_leave(request);
    if (list_is_empty(&line->requests) || request->least_bytes < line->least_bytes)
        line->least_bytes = request->least_bytes;
    insert_by_arrival(&line->requests, request, offsetof(struct request, link));
    request->heap = heap;
    request->line = kind;
    if (kind == LINE_ROOM && list_is_empty(&heap->waiting_link))
        list_append(&pool->lines, &heap->waiting_link);
    if (kind == LINE_QUOTA && list_is_empty(&heap->pressed_link))
        list_append(&pool->pressed, &heap->pressed_link);
    overdue_enter(request);
    if (request->no_reclaim)
        list_append(&pool->for_growth, &request->growth_link);
    pool->n_waiters++;
    if (pool->spared != NULL && !request->no_reclaim &&
        !(request->gave_back && request->session == pool->spared)) {
        pool->spared = NULL; /* now its memory is wanted, and at once */
        pool->reclaim_ns = 0;
    }
    if (request->deadline_ns < pool->next_deadline_ns)
        pool->next_deadline_ns = request->deadline_ns;
}

void line_leave(struct request *request) {
    struct tenant_heap *heap = request->heap;

    if (request->line == LINE_NONE)
        return;
    list_remove(&request->link);
    if (!list_is_empty(&request->overdue_link))
        request->pool->rounds++; /* whom it held up is looked at again */
    list_remove(&request->overdue_link);
    list_remove(&request->growth_link);
    request->pool->n_waiters--;
    if (list_is_empty(&heap->waiting.requests))
        list_remove(&heap->waiting_link);
    if (list_is_empty(&heap->held.requests) && !heap->reclaim_owed)
        list_remove(&heap->pressed_link);
    request->line = LINE_NONE;
    request->heap = NULL;
}

struct request *line_oldest(const struct pool *pool) {
    struct request *oldest = NULL;
    list_for_each(position, &pool->lines) {
        struct request *first =
            line_first(&container_of(position, struct tenant_heap, waiting_link)->waiting);
        assert(first != NULL); /* heaps whose line is empty are not among those of the pool */
        if (oldest == NULL || first->number < oldest->number)
            oldest = first;
    }
    return oldest;
}

static bool fits(const struct request *request, uint64_t room_bytes) {
    return segment_bytes_for(request->least_bytes) <= room_bytes &&
           !line_awaits_quota(request, request->least_bytes);
}

struct request *line_find(const struct pool *pool, uint64_t room_bytes) {
    struct request *overdue = list_first(&pool->overdue, struct request, overdue_link), *best = NULL;

    if (overdue != NULL && fits(overdue, room_bytes))
        return overdue;
    list_for_each(position, &pool->lines) {
        struct tenant_heap *heap = container_of(position, struct tenant_heap, waiting_link);
        unsigned left = LINE_WINDOW;
        if (best != NULL && !tenant_comes_before(heap, best->heap))
            continue;
        list_for_each(link, &heap->waiting.requests) {
            struct request *request = container_of(link, struct request, link);
            if (left-- == 0 || (overdue != NULL && request->number > overdue->number))
                break;
            if (fits(request, room_bytes)) {
                best = request;
                break;
            }
        }
    }
    return best;
}

bool line_awaits_quota(const struct request *request, uint64_t size_bytes) {
    struct tenant *tenant = request->session->tenant;
    if (!tenant_may_take(tenant, request->pool, size_bytes))
        return true;
    const struct tenant_heap *heap = tenant_heap_find(tenant, request->pool);
    const struct request *first = heap != NULL ? line_first(&heap->held) : NULL;
    return first != NULL && first->passes >= request->session->core->passes_limit &&
           first->number < request->number;
}

/* Whether a waiter could use memory of a segment that a session is given instead. The session may have the
 * segment mapped already, which then goes back to the driver for nobody before the session lets it go: in
 * that case only the waiter's own tenant could, if it is large enough. */
static bool could_use(const struct request *waiter, const struct session *session,
                      const struct segment *segment) {
    return !session_has_seen(session, segment) ||
           (segment->owner->tenant == waiter->session->tenant && segment->size_bytes >= waiter->least_bytes);
}

bool line_is_behind(const struct request *request) {
    const struct request *overdue = list_first(&request->pool->overdue, struct request, overdue_link);
    return overdue != NULL && overdue->number < request->number;
}

bool line_is_reserved(const struct request *request, const struct segment *segment) {
    list_for_each(position, &request->pool->overdue) {
        const struct request *overdue = container_of(position, struct request, overdue_link);
        if (overdue->number >= request->number)
            break;
        if (could_use(overdue, request->session, segment))
            return true;
    }
    return false;
}

void line_count_passes(const struct request *request, const struct segment *segment) {
    struct request *first = line_first(&segment->owner->held);

    if (first != NULL && first->number < request->number)
        first->passes++;
    list_for_each(position, &request->pool->lines) {
        first = line_first(&container_of(position, struct tenant_heap, waiting_link)->waiting);
        assert(first != NULL); /* see above: line_oldest() */
        if (first->number > request->number || !could_use(first, request->session, segment))
            continue;
        first->passes++;
        overdue_enter(first);
    }
}

static bool requests_are_valid(const struct tenant_heap *heap, const struct line *line, enum line_kind kind,
                               uint64_t *waiters) {
    const struct pool *pool = heap->pool;
    uint64_t number = 0, position = 0;

    list_for_each(link, &line->requests) {
        const struct request *request = container_of(link, struct request, link);
        if (request->line != kind || request->heap != heap || request->state != REQUEST_WAITING ||
            request->number <= number || request->least_bytes < line->least_bytes ||
            request->deadline_ns < pool->next_deadline_ns)
            return false;
        /* nobody is held up whose quota would do, as far as they are looked at */
        if (kind == LINE_QUOTA && position < LINE_WINDOW && !pool->returned &&
            !line_awaits_quota(request, request->least_bytes))
            return false;
        number = request->number;
        position++;
    }
    *waiters += position;
    return true;
}

bool line_is_valid(const struct tenant_heap *heap, uint64_t *waiters) {
    return list_is_empty(&heap->waiting_link) == list_is_empty(&heap->waiting.requests) &&
           list_is_empty(&heap->pressed_link) ==
               (list_is_empty(&heap->held.requests) && !heap->reclaim_owed) &&
           requests_are_valid(heap, &heap->waiting, LINE_ROOM, waiters) &&
           requests_are_valid(heap, &heap->held, LINE_QUOTA, waiters);
}

bool line_overdue_is_valid(const struct pool *pool) {
    uint64_t number = 0;

    list_for_each(position, &pool->overdue) {
        const struct request *request = container_of(position, struct request, overdue_link);
        if (request->line != LINE_ROOM || request->pool != pool ||
            request->passes < pool->core->passes_limit || request->number <= number)
            return false;
        number = request->number;
    }
    list_for_each(position, &pool->lines) {
        const struct request *first =
            line_first(&container_of(position, struct tenant_heap, waiting_link)->waiting);
        if (first == NULL ||
            (first->passes >= pool->core->passes_limit) == list_is_empty(&first->overdue_link))
            return false;
    }
    return true;
}
