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
#include "daemon/pool/waiting.h"

bool segment_is_idle(const struct segment *segment) {
    if (segment->mappers > 0)
        return false;
    return segment->state == SEGMENT_UNASSIGNED ||
           (segment->state == SEGMENT_ASSIGNED && segment->span->taken_bytes == 0);
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

uint64_t pool_step_bytes(const struct pool *pool) {
    if (pool->step_bytes != POOL_STEP_BY_SIZE)
        return pool->step_bytes;
    uint64_t bytes = pool->reserved_bytes / POOL_STEP_SHARE / SEGMENT_GRANULE * SEGMENT_GRANULE;
    return bytes < POOL_STEP_MIN ? POOL_STEP_MIN : bytes > POOL_STEP_MAX ? POOL_STEP_MAX : bytes;
}

uint64_t pool_low_water_bytes(const struct pool *pool) {
    return pool->low_water_bytes == POOL_LOW_WATER_BY_STEP ? pool_step_bytes(pool) / 2
                                                           : pool->low_water_bytes;
}

bool pool_can_grow_for(const struct pool *pool, uint64_t size_bytes) {
    return pool_room(pool) >= segment_bytes_for(size_bytes) && pool->grow_retry_ns == 0;
}

/* Whether a request of that size has a segment of its own made. */
static bool pool_grows_exactly(const struct pool *pool, uint64_t size_bytes) {
    return pool->step_bytes == POOL_STEP_BY_SIZE &&
           segment_bytes_for(size_bytes) > pool_step_bytes(pool) / POOL_STEP_SMALL_SHARE;
}

/* Which of its tenant's segments are for requests of that size, as HEAP_… */
static unsigned pool_place(const struct pool *pool, uint64_t size_bytes) {
    if (pool->step_bytes != POOL_STEP_BY_SIZE)
        return HEAP_ANY;
    return pool_grows_exactly(pool, size_bytes) ? HEAP_FITTING : HEAP_SHARED;
}

/* And which serve it when these do not. What is small may lie in what it nearly fills, too: that was made
 * when the pool, and so what is small, was smaller. */
static unsigned pool_place_beyond(const struct pool *pool, uint64_t size_bytes, enum pool_reach reach) {
    if (reach == POOL_REACH_ALL || !pool_can_grow_for(pool, size_bytes))
        return HEAP_ANY;
    return pool_place(pool, size_bytes) | (reach == POOL_REACH_IDLE ? HEAP_FITTING | HEAP_CUT : 0);
}

/* The smallest segment without a tenant that may serve a request: what was made for another size only where
 * it may be cut. */
static struct segment *pool_find_unassigned(struct pool *pool, uint64_t size_bytes, enum pool_reach reach) {
    bool may_cut = reach != POOL_REACH_FITTING || pool_place_beyond(pool, size_bytes, reach) == HEAP_ANY;
    struct segment *best = NULL;

    if (pool->unassigned_bytes < size_bytes) /* as it mostly is: who waits must not pay for the segments */
        return NULL;
    list_for_each(position, &pool->segments) {
        struct segment *segment = container_of(position, struct segment, link);
        if (segment->state == SEGMENT_UNASSIGNED && segment->size_bytes >= size_bytes &&
            (may_cut || !segment->kept_whole || !heap_keeps(segment->size_bytes, size_bytes)) &&
            (best == NULL || segment->size_bytes < best->size_bytes))
            best = segment;
    }
    return best;
}

bool pool_has_free(struct pool *pool, struct tenant *tenant, uint64_t size_bytes) {
    struct tenant_heap *heap = tenant_heap_find(tenant, pool);
    unsigned place = pool_place_beyond(pool, size_bytes, POOL_REACH_FITTING);
    return (heap != NULL && heap_has(&heap->heap, place, size_bytes)) ||
           pool_find_unassigned(pool, size_bytes, POOL_REACH_FITTING) != NULL;
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

int pool_take_own(struct pool *pool, struct tenant *tenant, uint64_t size_bytes, enum pool_reach reach,
                  struct heap_range **ret_range) {
    struct tenant_heap *heap = tenant_heap_find(tenant, pool);
    unsigned place = pool_place(pool, size_bytes), beyond = pool_place_beyond(pool, size_bytes, reach);

    if (heap == NULL)
        return -ENOSPC;
    int r = heap_take(&heap->heap, place, size_bytes, HEAP_GRANULE, ret_range);
    if (r == -ENOSPC && beyond != place)
        r = heap_take(&heap->heap, beyond, size_bytes, HEAP_GRANULE, ret_range);
    return r;
}

int pool_take(struct pool *pool, struct tenant *tenant, uint64_t size_bytes, enum pool_reach reach,
              struct heap_range **ret_range) {
    bool from_anywhere = pool_place_beyond(pool, size_bytes, reach) == HEAP_ANY;

    int r = pool_take_own(pool, tenant, size_bytes, from_anywhere ? reach : POOL_REACH_FITTING, ret_range);
    if (r != -ENOSPC)
        return r;
    struct segment *segment = pool_find_unassigned(pool, size_bytes, reach);
    if (segment == NULL) /* nothing is cut that need not be */
        return from_anywhere ? -ENOSPC : pool_take_own(pool, tenant, size_bytes, reach, ret_range);
    r = tenant_adopt(tenant, segment);
    return r < 0 ? r : segment_take(segment, size_bytes, ret_range);
}

void pool_give(struct heap_range *range) {
    struct heap_span *span = range->span;
    const struct segment *segment = span->user;

    heap_give(range);
    if (span->taken_bytes == 0)
        heap_keep_whole(span, segment->kept_whole);
}

uint64_t pool_growth_bytes(const struct pool *pool, uint64_t size_bytes) {
    uint64_t need = segment_bytes_for(size_bytes), step = pool_step_bytes(pool);
    return pool->grow_exact || step < need || pool_grows_exactly(pool, size_bytes) ? need : step;
}

static void pool_decide_growth(struct pool *pool, uint64_t size_bytes, uint64_t now_ns) {
    uint64_t room = pool_room(pool);
    assert(pool->growing_bytes == 0 && room > 0);
    pool->growing_bytes = size_bytes < room ? size_bytes : room;
    pool->grow_decided = true;
    pool->grow_whole = false;
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
    const struct request *first = line_oldest(pool);
    if (first == NULL || pool->state != POOL_READY)
        return false;
    if (now_ns < pool->grow_retry_ns)
        return true;
    uint64_t need = segment_bytes_for(first->size_bytes), room = pool_room(pool);
    return need > room && need > room + pool->retiring_bytes + pool_idle_bytes(pool);
}

uint64_t pool_missing_bytes(const struct pool *pool) {
    const struct request *first = line_oldest(pool);
    uint64_t need = segment_bytes_for(first != NULL ? first->size_bytes : pool->refused_bytes);
    uint64_t room = pool->grow_retry_ns != 0 ? 0 : pool_room(pool); /* the driver refuses what it says */
    uint64_t comes = room + pool->retiring_bytes + pool->closing_bytes + pool_idle_bytes(pool);
    return need > comes ? need - comes : 0;
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
        if (line_first(&heap->held) == NULL)
            list_remove(&heap->pressed_link);
    }
}

/* Has every session asked that wants to be and holds something of the pool, at most once in a while. The
 * first in line's own session too: what one of its threads waits for may lie in the cache of another. */
static void pool_reclaim(struct pool *pool, uint64_t now_ns) {
    const struct request *first = line_oldest(pool);

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

uint64_t pool_next_reclaim_ns(const struct pool *pool) {
    bool wanted = pool->reclaim_owed || (pool->stuck && !list_is_empty(&pool->lines));
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
    uint64_t low_water = pool_low_water_bytes(pool);
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

/* Retires idle segments, or of these only such as are kept whole, until they are so many bytes. */
static uint64_t retire_some(struct pool *pool, bool kept_only, uint64_t bytes, uint64_t keep_bytes) {
    uint64_t retired = 0;
    list_for_each_safe(position, &pool->segments) {
        struct segment *segment = container_of(position, struct segment, link);
        if (retired >= bytes)
            break;
        if (!segment_is_idle(segment) || (kept_only && !segment->kept_whole) ||
            pool->reserved_bytes - pool->closing_bytes - pool->retiring_bytes <
                keep_bytes + segment->size_bytes)
            continue;
        if (segment->state == SEGMENT_ASSIGNED)
            tenant_disown(segment);
        pool_retire(segment);
        retired += segment->size_bytes;
    }
    return retired;
}

uint64_t pool_retire_idle(struct pool *pool, uint64_t bytes, uint64_t keep_bytes) {
    return retire_some(pool, false, bytes, keep_bytes);
}

uint64_t pool_retire_kept(struct pool *pool, uint64_t bytes) {
    return retire_some(pool, true, bytes, pool->reserve_bytes);
}

/* Grows for the first of those who wait for whom there is room, in the order of line.h; else retires idle
 * segments for the first for whom that is enough; without waiters, grows towards the reserve and ahead of
 * demand. */
static void pool_plan_growth(struct pool *pool, uint64_t now_ns) {
    if (pool->state != POOL_READY || pool->growing_bytes > 0 || pool->retiring_bytes > 0 ||
        now_ns < pool->grow_retry_ns)
        return;
    uint64_t room = pool_room(pool);
    if (!list_is_empty(&pool->lines)) {
        const struct request *request = room >= SEGMENT_GRANULE ? line_find(pool, room) : NULL;
        if (request != NULL) {
            pool_decide_growth(pool, pool_growth_bytes(pool, request->size_bytes), now_ns);
            pool->grow_whole = pool_grows_exactly(pool, request->size_bytes);
        } else if ((request = line_find(pool, room + pool_idle_bytes(pool))) != NULL) {
            pool_retire_idle(pool, segment_bytes_for(request->size_bytes) - room, 0);
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
    pool->stuck = pool_is_stuck(pool, now_ns);
    pool_plan_growth(pool, now_ns);
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
            pool_idle_bytes(pool) == 0);
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
    if (n > 0 && (size_t)n < size && pool->closing_bytes > 0)
        n += snprintf(text + n, size - (size_t)n, ", %s that processes were told to close",
                      BYTES_TEXT(pool->closing_bytes));
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
        /* cut or not: what is idle is as it was made */
        if (segment->span->taken_bytes == 0 ? segment->span->kept_whole != segment->kept_whole
                                            : segment->span->kept_whole && !segment->kept_whole)
            return false;
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
        if (!line_is_valid(heap, &waiters))
            return false;
        free_bytes += heap->heap.free_bytes;
        demand_known = demand_known || heap == pool->demand;
    }
    return reserved == pool->reserved_bytes && segments == pool->n_segments &&
           unassigned == pool->unassigned_bytes && closing == pool->closing_bytes &&
           free_bytes + unassigned == pool_free_bytes(pool) && demand_known &&
           (!pool->grow_ahead || pool->growing_bytes > 0) &&
           held == pool->leased_bytes + pool->fenced_bytes + pool->quarantined_bytes &&
           waiters == pool->n_waiters && leases == pool->n_leases && line_overdue_is_valid(pool);
}
