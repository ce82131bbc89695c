/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/reach.h"

#include "daemon/core/pool.h"
#include "daemon/core/segment.h"
#include "daemon/core/tenant.h"

bool reach_is_own(const struct session *session, const struct session *other) {
    return session == other || (session->peer.pid > 0 && session->peer.pid == other->peer.pid &&
                                session->tenant == other->tenant);
}

uint64_t reach_gave_ns(const struct session *session, const struct pool *pool) {
    uint64_t gave_ns = 0;

    list_for_each_entry(const struct session, other, &session->tenant->members, tenant_link) {
        if (reach_is_own(session, other) && other->gave_ns[pool->id - 1] > gave_ns)
            gave_ns = other->gave_ns[pool->id - 1];
    }
    return gave_ns;
}

uint64_t reach_least_held(const struct session *session, const struct pool *pool, bool *ret_has_any) {
    uint64_t bytes = 0;

    *ret_has_any = false;
    list_for_each_entry(const struct session, other, &session->tenant->members, tenant_link) {
        const struct session_pool *has = &other->pools[pool->id - 1];
        if (!reach_is_own(session, other))
            continue;
        *ret_has_any = *ret_has_any || has->leased_bytes > 0;
        bytes += has->leased_bytes - has->shared_bytes;
    }
    return bytes;
}

/* Whether the block stays taken while the session's process gives nothing back. */
static bool is_pinned(const struct session *session, const struct block *block, struct reach *reach) {
    list_for_each_entry(const struct lease, lease, &block->leases, block_link) {
        reach->n_steps++;
        if (lease->fence == NULL && reach_is_own(session, lease->session))
            return true;
    }
    return false;
}

static void look_at_span(const struct session *session, const struct heap_span *span, struct reach *reach) {
    uint64_t gap_bytes = 0, longest_bytes = 0, held_bytes = 0;

    for (const struct heap_range *range = span->lowest; range != NULL; range = range->upper) {
        reach->n_steps++;
        if (!range->free && is_pinned(session, range->user, reach)) {
            held_bytes += range->size;
            gap_bytes = 0;
            continue;
        }
        gap_bytes += range->size;
        longest_bytes = gap_bytes > longest_bytes ? gap_bytes : longest_bytes;
    }
    if (held_bytes == 0)
        return;
    reach->pinned_bytes += span->size;
    reach->held_bytes += held_bytes;
    reach->gap_bytes = longest_bytes > reach->gap_bytes ? longest_bytes : reach->gap_bytes;
}

/* Whether a living session has segments of the pool mapped, and cannot be told to close them. */
static bool is_mapped_by_the_deaf(const struct pool *pool) {
    list_for_each_entry(const struct session, session, &pool->core->sessions, link) {
        if (session->state == SESSION_ACTIVE && !session->wants_reclaim &&
            session->pools[pool->id - 1].n_mapped > 0)
            return true;
    }
    return false;
}

static void look_at_mapped(const struct session *session, const struct pool *pool, struct reach *reach) {
    list_for_each_entry(const struct segment, segment, &pool->segments, link) {
        reach->n_steps++;
        if (segment->state != SEGMENT_ASSIGNED || segment->span->taken_bytes > 0 ||
            segment->deaf_mappers == segment->lost_mappers)
            continue;
        reach->mapped_bytes += segment->size_bytes;
        if (segment->owner->tenant == session->tenant && segment->size_bytes > reach->mapped_gap_bytes)
            reach->mapped_gap_bytes = segment->size_bytes;
    }
}

void reach_find(const struct session *session, const struct pool *pool, struct reach *ret_reach) {
    bool has_any;

    *ret_reach = (struct reach){0};
    if (is_mapped_by_the_deaf(pool))
        look_at_mapped(session, pool, ret_reach);
    (void)reach_least_held(session, pool, &has_any);
    if (!has_any)
        return;
    list_for_each_entry(const struct tenant_heap, heap, &session->tenant->heaps, tenant_link) {
        if (heap->pool != pool)
            continue;
        list_for_each_entry(const struct heap_span, span, &heap->heap.spans, link) {
            if (span->taken_bytes > 0)
                look_at_span(session, span, ret_reach);
        }
    }
}

/* The most that the pool could have: its limit, or where the driver refuses more, its reserved bytes. */
static uint64_t most_bytes(const struct pool *pool) {
    bool is_refused = pool->growth.retry_ns != 0 && pool->reserved_bytes < pool->limit_bytes;
    return is_refused ? pool->reserved_bytes : pool->limit_bytes;
}

/* Whether the pool's driver may be about to answer what no count can tell. */
static bool is_open(const struct request *request) {
    const struct pool *pool = request->pool;
    return request->no_reclaim || pool->state != POOL_READY || pool->growth.bytes > 0;
}

static bool is_beyond_quota(const struct request *request, uint64_t held_bytes) {
    uint64_t limit = quota_limit(&request->session->tenant->quota, quota_item_of_pool(request->pool->id));
    return held_bytes > limit || limit - held_bytes < heap_round_up(request->least_bytes);
}

static bool is_beyond_room(const struct request *request, uint64_t pinned_bytes) {
    uint64_t most = most_bytes(request->pool);
    uint64_t room = most > pinned_bytes ? most - pinned_bytes : 0, max = pool_segment_max(request->pool);

    if (request->n_segments > 0)
        return request->least_bytes > room;
    return segment_bytes_for(request->least_bytes) > (room < max ? room : max);
}

bool reach_is_alone(const struct reach *reach, const struct request *request) {
    if (is_open(request))
        return false;
    if (is_beyond_quota(request, reach->held_bytes))
        return true;
    if (request->n_segments > 0) /* those that are mapped serve it, if they suit it */
        return is_beyond_room(request, reach->pinned_bytes);
    uint64_t gap = reach->gap_bytes > reach->mapped_gap_bytes ? reach->gap_bytes : reach->mapped_gap_bytes;
    return gap < heap_round_up(request->least_bytes) &&
           is_beyond_room(request, reach->pinned_bytes + reach->mapped_bytes);
}

bool reach_is_surely_alone(const struct request *request) {
    bool has_any;

    if (is_open(request))
        return false;
    uint64_t held_bytes = reach_least_held(request->session, request->pool, &has_any);
    if (!has_any || is_beyond_quota(request, held_bytes))
        return reach_is_alone(&(struct reach){.held_bytes = held_bytes}, request);
    /* Whatever the segments are, no more is left beside its leases. A limit may have been lowered since. */
    uint64_t limit = most_bytes(request->pool), reserved = request->pool->reserved_bytes;
    uint64_t most = limit > reserved ? limit : reserved;
    return held_bytes > most || most - held_bytes < heap_round_up(request->least_bytes);
}
