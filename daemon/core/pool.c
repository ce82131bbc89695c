/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/pool.h"

#include <assert.h>
#include <errno.h>

#include "daemon/core/closing.h"
#include "daemon/core/core.h"
#include "daemon/core/fence.h"
#include "daemon/core/lease.h"
#include "daemon/core/request.h"
#include "daemon/core/segment.h"
#include "daemon/core/session.h"
#include "daemon/core/tenant.h"
#include "daemon/core/waiting.h"

bool segment_is_idle(const struct segment *segment) {
    if (segment->mappers > 0)
        return false;
    return segment->state == SEGMENT_UNASSIGNED ||
           (segment->state == SEGMENT_ASSIGNED && segment->span->taken_bytes == 0);
}

static void note_peak(uint64_t *peak_bytes, uint64_t bytes) {
    if (bytes > *peak_bytes)
        *peak_bytes = bytes;
}

void pool_note_peaks(struct pool *pool) {
    note_peak(&pool->leased_peak_bytes, pool->leased_bytes);
    note_peak(&pool->reserved_peak_bytes, pool->reserved_bytes);
    note_peak(&pool->quarantined_peak_bytes, pool->quarantined_bytes);
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

static uint64_t pool_room(const struct pool *pool) {
    return pool->limit_bytes > pool->reserved_bytes ? pool->limit_bytes - pool->reserved_bytes : 0;
}

uint64_t pool_available_bytes(const struct pool *pool) {
    return pool_free_bytes(pool) + pool_room(pool);
}

uint64_t pool_step_bytes(const struct pool *pool) {
    if (pool->step_bytes != POOL_STEP_BY_SIZE)
        return pool->step_bytes;
    uint64_t bytes = pool->reserved_bytes / POOL_STEP_SHARE / SEGMENT_GRANULE * SEGMENT_GRANULE;
    return bytes < POOL_STEP_MIN ? POOL_STEP_MIN : bytes > POOL_STEP_MAX ? POOL_STEP_MAX : bytes;
}

/* The smallest segment without a tenant that may serve a request. */
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

/* Takes the lower part of a segment of which nothing is taken. Returns 0 or -ENOMEM. */
static int segment_take(struct segment *segment, uint64_t size_bytes, struct heap_range **ret_range) {
    uint64_t taken_bytes = heap_round_up(size_bytes);
    struct heap_range *range = segment->span->lowest, *rest;

    heap_claim(range);
    if (range->size > taken_bytes) {
        int r = heap_split(range, taken_bytes, &rest);
        if (r < 0) {
            heap_give(range);
            return r;
        }
        heap_give(rest);
    }
    *ret_range = range;
    return 0;
}

int pool_take_own(struct pool *pool, struct tenant *tenant, uint64_t size_bytes,
                  struct heap_range **ret_range) {
    struct tenant_heap *heap = tenant_heap_find(tenant, pool);
    return heap == NULL ? -ENOSPC : heap_take(&heap->heap, size_bytes, HEAP_GRANULE, ret_range);
}

int pool_take(struct pool *pool, struct tenant *tenant, uint64_t size_bytes, struct heap_range **ret_range) {
    int r = pool_take_own(pool, tenant, size_bytes, ret_range);
    if (r != -ENOSPC)
        return r;
    struct segment *segment = pool_find_unassigned(pool, size_bytes);
    if (segment == NULL)
        return -ENOSPC;
    r = tenant_adopt(tenant, segment);
    return r < 0 ? r : segment_take(segment, size_bytes, ret_range);
}

/* What the pool grows by for a request: what it wants, or a step, or, after the driver refused that, what it
 * needs. Near its limit it wants less: what is left beside a request there is missing for others. */
static uint64_t pool_growth_bytes(const struct pool *pool, const struct request *request) {
    uint64_t left = quota_left(&request->session->tenant->quota, quota_item_of_pool(pool));
    uint64_t needed = segment_bytes_for(request->least_bytes),
             wanted = segment_bytes_for(request->size_bytes);
    uint64_t step = pool_step_bytes(pool);

    if (pool->grow_exact || wanted > pool_room(pool) / GROW_ROOM_SHARE || request->size_bytes > left)
        wanted = needed;
    return wanted > step || pool->grow_exact ? wanted : step;
}

uint64_t pool_segment_max(const struct pool *pool) {
    return pool->kind == PROTO_POOL_HOST && pool->limit_bytes > HOST_SEGMENT_MAX ? HOST_SEGMENT_MAX
                                                                                 : pool->limit_bytes;
}

static void pool_decide_growth(struct pool *pool, uint64_t size_bytes, uint64_t now_ns) {
    uint64_t room = pool_room(pool), max = pool_segment_max(pool);
    assert(pool->growing_bytes == 0 && room > 0);
    if (room > max)
        room = max;
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

/* Whether the first in the queue can be served by nothing but what sessions hold: the driver refused lately,
 * or neither the limit nor idle segments (those on their way back to the driver included) leave enough room.
 */
static bool pool_is_stuck(const struct pool *pool, uint64_t now_ns) {
    const struct request *first = wait_queue_oldest(pool);
    if (first == NULL || first->no_reclaim || pool->state != POOL_READY)
        return false;
    if (now_ns < pool->grow_retry_ns)
        return true;
    uint64_t need = segment_bytes_for(first->least_bytes), room = pool_room(pool);
    return need > room && need > room + pool->retiring_bytes + pool_idle_bytes(pool);
}

uint64_t pool_missing_for(const struct pool *pool, uint64_t size_bytes) {
    uint64_t need = segment_bytes_for(size_bytes);
    uint64_t room = pool->grow_retry_ns != 0 ? 0 : pool_room(pool); /* the driver refuses what it says */
    uint64_t comes = room + pool->retiring_bytes + pool->closing_bytes + pool_idle_bytes(pool);
    return need > comes ? need - comes : 0;
}

uint64_t pool_missing_bytes(const struct pool *pool) {
    const struct request *first = wait_queue_oldest(pool);
    return first != NULL && first->no_reclaim
               ? 0
               : pool_missing_for(pool, first != NULL ? first->least_bytes : pool->refused_bytes);
}

bool pool_is_settled(const struct pool *pool) {
    return pool->growing_bytes == 0 && pool->retiring_bytes == 0;
}

bool pool_waits_for_fences(const struct pool *pool) {
    return pool->fenced_bytes > 0 && pool->n_waiters > 0;
}

void pool_collect(struct pool *pool, uint64_t now_ns) {
    if (!pool_waits_for_fences(pool))
        return;
    pool->fence_ns = clock_deadline_ns(now_ns, FENCE_INTERVAL_NS);
    list_for_each(position, &pool->heaps)
        fences_collect_heap(container_of(position, struct tenant_heap, pool_link));
}

void pool_begin_shortage(struct pool *pool, uint64_t now_ns) {
    pool->short_until_ns = clock_deadline_ns(now_ns, SHORTAGE_NS);
}

/* The session whose requests are all that wait for room, if it looks for memory of its own itself and has no
 * segment that it could close. NULL: none. */
static struct session *pool_find_spared(const struct pool *pool) {
    struct session *session = NULL;

    list_for_each(position, &pool->wait_queues) {
        const struct tenant_heap *heap = container_of(position, struct tenant_heap, waiting_link);
        list_for_each(link, &heap->waiting.requests) {
            const struct request *request = container_of(link, struct request, link);
            if (request->no_reclaim) /* nobody is asked for its sake anyway */
                continue;
            if (!request->gave_back || (session != NULL && request->session != session))
                return NULL;
            session = request->session;
        }
    }
    list_for_each(position, &pool->segments) {
        const struct segment *segment = container_of(position, struct segment, link);
        if (session != NULL && segment->state == SEGMENT_ASSIGNED && segment->span->taken_bytes == 0 &&
            session_has_seen(session, segment))
            return NULL;
    }
    return session;
}

void pool_ask_sessions(struct pool *pool, const struct tenant *tenant, uint64_t now_ns) {
    pool->spared = tenant == NULL && pool->n_asks == 0 ? pool_find_spared(pool) : NULL;
    pool_begin_shortage(pool, now_ns);
    pool->n_asks += tenant == NULL;
    list_for_each(position, &pool->core->sessions) {
        struct session *session = container_of(position, struct session, link);
        if (session == pool->spared)
            session_note_answer(session, pool);
        else if ((tenant == NULL || session->tenant == tenant) && session_can_be_asked(session, pool))
            session_ask(session, pool);
    }
}

void pool_end_shortage(struct pool *pool, uint64_t now_ns) {
    if ((pool->stuck && !list_is_empty(&pool->wait_queues)) || !list_is_empty(&pool->pressed)) {
        pool_begin_shortage(pool, now_ns);
        return;
    }
    pool->short_until_ns = 0;
    pool->n_asks = 0;
    pool->spared = NULL;
    list_for_each(position, &pool->core->sessions)
        session_end_shortage(container_of(position, struct session, link), pool);
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
        pool_ask_sessions(pool, heap->tenant, now_ns);
        if (wait_queue_first(&heap->held) == NULL)
            list_remove(&heap->pressed_link);
    }
}

/* Has every session asked that wants to be and holds something of the pool, at most once in a while. The
 * first in the queue's own session too: what one of its threads waits for may lie in the cache of another. */
static void pool_reclaim(struct pool *pool, uint64_t now_ns) {
    const struct request *first = wait_queue_oldest(pool);

    if (!(pool->stuck || pool->reclaim_owed) || pool->n_reclaimers == 0 || now_ns < pool->reclaim_ns)
        return;
    /* Caches are worth keeping when enough is on its way back: one who waits has that much patience. */
    if (first != NULL && first->deadline_ns > now_ns && pool->fenced_bytes >= first->least_bytes &&
        now_ns < clock_deadline_ns(first->asked_ns, FENCE_PATIENCE_NS)) {
        pool->reclaim_ns = clock_deadline_ns(first->asked_ns, FENCE_PATIENCE_NS);
        return;
    }
    pool->reclaim_ns = clock_deadline_ns(now_ns, RECLAIM_INTERVAL_NS);
    pool->reclaim_owed = false;
    pool_ask_sessions(pool, NULL, now_ns);
}

void pool_lose_reclaimer(struct pool *pool) {
    assert(pool->n_reclaimers > 0);
    pool->n_reclaimers--;
    if (pool->n_reclaimers == 0)
        pool->reclaim_owed = false;
}

uint64_t pool_next_reclaim_ns(const struct pool *pool) {
    bool wanted = pool->reclaim_owed || (pool->stuck && !list_is_empty(&pool->wait_queues));
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
    uint64_t low_water = pool->low_water_bytes;
    uint64_t left = quota_left(&pool->demand->tenant->quota, quota_item_of_pool(pool));
    uint64_t wanted = left < low_water ? left : low_water;
    return pool->unassigned_bytes + pool->demand->heap.free_bytes < wanted;
}

void pool_plan_ahead(struct pool *pool, uint64_t now_ns) {
    if (pool->demand == NULL || pool->leased_bytes == 0 || pool->state != POOL_READY ||
        pool->growing_bytes > 0 || pool->retiring_bytes > 0 || now_ns < pool->grow_retry_ns ||
        now_ns < pool->ahead_retry_ns || pool_room(pool) < SEGMENT_GRANULE)
        return;
    if (!pool_is_low(pool) || (fences_collect_heap(pool->demand) && !pool_is_low(pool)))
        return;
    pool_decide_growth(pool, pool_step_bytes(pool), now_ns);
    pool->grow_ahead = true;
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

/* Grows for the first of those who wait for whom there is room, in the order of wait_queue.h; else retires
 * idle segments for the first for whom that is enough; without waiters, grows towards the reserve and ahead
 * of demand. */
static void pool_plan_growth(struct pool *pool, uint64_t now_ns) {
    if (pool->state != POOL_READY || pool->growing_bytes > 0 || pool->retiring_bytes > 0 ||
        now_ns < pool->grow_retry_ns)
        return;
    uint64_t room = pool_room(pool);
    if (!list_is_empty(&pool->wait_queues)) {
        const struct request *request = room >= SEGMENT_GRANULE ? wait_queue_find(pool, room) : NULL;
        if (request != NULL) {
            pool_decide_growth(pool, pool_growth_bytes(pool, request), now_ns);
        } else if ((request = wait_queue_find(pool, room + pool_idle_bytes(pool))) != NULL) {
            pool_retire_idle(pool, segment_bytes_for(request->least_bytes) - room, 0);
        }
    } else if (pool->reserved_bytes < pool->reserve_bytes && room >= SEGMENT_GRANULE) {
        uint64_t missing = pool->reserve_bytes - pool->reserved_bytes, step = pool_step_bytes(pool);
        pool_decide_growth(pool, missing < step ? missing : step, now_ns);
    } else {
        pool_plan_ahead(pool, now_ns);
    }
}

void pool_plan(struct pool *pool, uint64_t now_ns) {
    waiting_hold_first(pool);
    pool_plan_growth(pool, now_ns);
    waiting_refuse_for_growth(pool, now_ns);
    pool->stuck = pool_is_stuck(pool, now_ns);
    if (!pool->stuck) /* the next time idle sessions come first again */
        pool->n_asks = 0;
    pool_reclaim(pool, now_ns);
    pool_reclaim_pressed(pool, now_ns);
}

bool pool_is_closed(const struct pool *pool) {
    return pool->state == POOL_FAILED || pool->state == POOL_LOST;
}

/* Segments that became idle since the driver refused go back to it when the next growth fails too. */
bool pool_is_hopeless(const struct pool *pool, uint64_t now_ns) {
    return pool_is_closed(pool) ||
           (pool->grow_retry_ns > now_ns && pool->leased_bytes == 0 && pool->fenced_bytes == 0 &&
            pool->quarantined_bytes == 0 && pool->closing_bytes == 0 && pool->retiring_bytes == 0 &&
            pool->n_reclaimers == 0 && pool_idle_bytes(pool) == 0);
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
            if (segment->mappers == 0 || segment->deaf_mappers > segment->mappers)
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
        if (!wait_queue_is_valid(heap, &waiters))
            return false;
        free_bytes += heap->heap.free_bytes;
        demand_known = demand_known || heap == pool->demand;
    }
    return reserved == pool->reserved_bytes && segments == pool->n_segments &&
           unassigned == pool->unassigned_bytes && closing == pool->closing_bytes &&
           free_bytes + unassigned == pool_free_bytes(pool) && demand_known &&
           (!pool->grow_ahead || pool->growing_bytes > 0) && pool->leased_bytes <= pool->leased_peak_bytes &&
           pool->reserved_bytes <= pool->reserved_peak_bytes &&
           pool->quarantined_bytes <= pool->quarantined_peak_bytes &&
           held == pool->leased_bytes + pool->fenced_bytes + pool->quarantined_bytes &&
           waiters == pool->n_waiters && leases == pool->n_leases && wait_queue_overdue_is_valid(pool);
}
