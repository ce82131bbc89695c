/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/plan.h"

#include <assert.h>

#include "daemon/core/account.h"
#include "daemon/core/collect.h"
#include "daemon/core/idle_wait.h"
#include "daemon/core/pool.h"
#include "daemon/core/segment.h"
#include "daemon/core/session.h"
#include "daemon/core/tenant.h"
#include "daemon/core/wait_queue.h"

/* The least that the pool grows by. A segment beyond those that the store takes is lent no more when the daemon has
 * ended. So segments get larger while the store fills up: of two steps when a half of its room is left, of four when
 * a quarter is, and so on. */
static uint64_t growth_step(const struct pool *pool) {
    uint64_t step = pool_step_bytes(pool), limit = pool->core->stored_segments_limit;
    uint64_t n = pool->takes_descriptors ? pools_descriptors(pool->core) : 0;
    uint64_t left = n < limit ? limit - n : 0;

    if (n == 0 || limit == 0)
        return step;
    for (unsigned halves = 1; halves <= GROW_DOUBLINGS_MAX && left <= limit >> halves; halves++)
        step *= 2;
    return step;
}

/* The size of the growth for a request: what the request wants, or a step if that is more. After the driver
 * refused that, and near the pool's limit, only what the request needs counts: the rest would be missing for
 * others. For whole segments the pool grows by one of them. */
static uint64_t growth_bytes(const struct pool *pool, const struct request *request) {
    uint64_t left = quota_left(&request->session->tenant->quota, quota_item_of_pool(pool->id));
    uint64_t needed = segment_bytes_for(request->least_bytes),
             wanted = segment_bytes_for(request->size_bytes);
    uint64_t step = growth_step(pool);

    if (request->n_segments > 0)
        return request->segment_bytes;
    if (pool->growth.is_exact || wanted > pool_room_bytes(pool) / GROW_ROOM_SHARE ||
        request->size_bytes > left)
        wanted = needed;
    return wanted > step || pool->growth.is_exact ? wanted : step;
}

static void decide_growth(struct pool *pool, uint64_t size_bytes, uint64_t now_ns) {
    uint64_t room = pool_room_bytes(pool), max = pool_segment_max(pool);
    assert(pool->growth.bytes == 0 && room > 0);
    if (room > max)
        room = max;
    pool->growth.bytes = size_bytes < room ? size_bytes : room;
    pool->growth.is_decided = true;
    pool->growth.decided_ns = now_ns;
}

/* Whether a segment that takes a descriptor is on its way back to the driver. */
static bool descriptor_comes(const struct core *core) {
    for (unsigned i = 0; i < core->n_pools; i++)
        if (core->pools[i]->takes_descriptors && core->pools[i]->n_retiring > 0)
            return true;
    return false;
}

/* An idle segment whose descriptor could serve the request: of its own pool, else of the pool that has most
 * of those that have one beyond their reserve. NULL: there is none. */
static struct segment *find_descriptor(const struct pool *pool, const struct request *request) {
    const struct core *core = pool->core;
    struct segment *own = pool_find_idle(pool, 0, request), *best = NULL, *other;

    for (unsigned i = 0; own == NULL && i < core->n_pools; i++) {
        const struct pool *from = core->pools[i];
        if (from != pool && from->takes_descriptors && !pool_is_closed(from) &&
            (best == NULL || pool_descriptors(from) > pool_descriptors(best->pool)) &&
            (other = pool_find_idle(from, from->reserve_bytes, NULL)) != NULL)
            best = other;
    }
    return own != NULL ? own : best;
}

/* Whether a further segment of the pool has a descriptor, or will have one without a question to sessions. */
static bool may_have_descriptor(const struct pool *pool, const struct request *request) {
    return pool_has_descriptor(pool) || descriptor_comes(pool->core) ||
           find_descriptor(pool, request) != NULL;
}

/* Whether only memory that sessions hold can serve the oldest request: the driver refused lately, or limit,
 * idle segments and retiring segments do not leave enough room, or no descriptor. */
static bool is_stuck(const struct pool *pool, uint64_t now_ns) {
    const struct request *first = wait_queue_oldest(pool);
    if (first == NULL || first->no_reclaim || pool->state != POOL_READY)
        return false;
    if (now_ns < pool->growth.retry_ns)
        return true;
    uint64_t need = pool_lacking_bytes(first), room = pool_room_bytes(pool);
    if (need > 0 && !may_have_descriptor(pool, first))
        return true;
    return need > room && need > room + pool->retiring_bytes + pool_idle_bytes(pool, first);
}

/* request: the one that needs the bytes; NULL: none that waits. No request counts on segments that a session
 * offered by itself: otherwise a session that does not close them could hold up all others. */
static uint64_t missing_bytes(const struct pool *pool, uint64_t need, const struct request *request) {
    /* the driver refuses that room, or no descriptor is left for it */
    bool has_none = pool->growth.retry_ns != 0 || !may_have_descriptor(pool, request);
    uint64_t room = has_none ? 0 : pool_room_bytes(pool);
    uint64_t comes = room + pool->retiring_bytes + pool->closing_bytes - pool->kept_bytes +
                     pool_idle_bytes(pool, request);
    return need > comes ? need - comes : 0;
}

uint64_t plan_missing_for(const struct pool *pool, uint64_t size_bytes) {
    return missing_bytes(pool, segment_bytes_for(size_bytes), NULL);
}

/* Whether all of the pool's memory is to come back. */
static bool wants_all(const struct pool *pool) {
    return pool->is_draining && pool->state == POOL_READY;
}

uint64_t plan_missing_bytes(const struct pool *pool) {
    const struct request *first = wait_queue_oldest(pool);
    if (wants_all(pool))
        return UINT64_MAX;
    if (first == NULL)
        return plan_missing_for(pool, pool->reclaim.refused_bytes);
    return first->no_reclaim ? 0 : missing_bytes(pool, pool_lacking_bytes(first), first);
}

bool plan_needs_segment(const struct pool *pool, const struct segment *segment) {
    const struct request *first = wait_queue_oldest(pool);

    if (first != NULL)
        return pool_segment_suits(segment, first);
    return pool->reclaim.refused_bytes > 0 && segment->size_bytes == pool->reclaim.refused_segment_bytes &&
           tenant_id_is(segment->owner->tenant->id, pool->reclaim.refused_tenant) && segment->is_empty;
}

bool plan_is_settled(const struct pool *pool) {
    return pool->growth.bytes == 0 && pool->retiring_bytes == 0;
}

void plan_begin_shortage(struct pool *pool, uint64_t now_ns) {
    pool->reclaim.short_until_ns = clock_deadline_ns(now_ns, SHORTAGE_NS);
}

static const struct segment *segment_of_node(const struct tree_node *node) {
    return container_of(node, const struct segment, closable_node);
}

/* Whether a list has an empty segment that the session has mapped, and the oldest request does not need as it
 * is; where the list is long, whether it may have one. */
static bool may_close_of(const struct list *segments, const struct session *session,
                         const struct pool *pool) {
    unsigned left = SHARED_LOOKED_AT_MAX;

    list_for_each_entry(const struct segment, segment, segments, shared_link) {
        if (left-- == 0 || (session_has_mapped(session, segment) && !plan_needs_segment(pool, segment)))
            return true;
    }
    return false;
}

/* Whether the session has a segment that it could close, or may have one. The oldest request needs segments
 * of one size. */
static bool could_close(const struct session *session, struct pool *pool) {
    const struct tree *closable = &session->pools[pool->id - 1].closable;
    const struct tenant_heap *heap = tenant_heap_find(session->tenant, pool);

    if (!tree_is_empty(closable) && (!plan_needs_segment(pool, segment_of_node(tree_first(closable))) ||
                                     !plan_needs_segment(pool, segment_of_node(tree_last(closable)))))
        return true;
    return heap != NULL &&
           (may_close_of(&heap->shared, session, pool) || may_close_of(&heap->deaf, session, pool));
}

/* The session that need not be asked: all requests that wait for room are its own, it has given back what it
 * keeps idle, and it has no segment that it could close. NULL: none. */
static struct session *find_spared(struct pool *pool) {
    struct session *session = NULL;

    list_for_each_entry(const struct tenant_heap, heap, &pool->waiters.queues, waiting_link) {
        list_for_each_entry(const struct request, request, &heap->waiting.requests, link) {
            if (request->no_reclaim) /* no session is asked because of it */
                continue;
            if (!request->gave_back || (session != NULL && request->session != session))
                return NULL;
            session = request->session;
        }
    }
    return session != NULL && !could_close(session, pool) ? session : NULL;
}

static void ask(struct session *session, struct pool *pool, uint64_t now_ns) {
    if (!session_can_be_asked(session, pool))
        return;
    session_ask(session, pool, now_ns);
    session_note_question(session, now_ns);
}

/* Asks the sessions of a tenant, and those that share its account. */
static void ask_tenant(const struct tenant *tenant, struct pool *pool, uint64_t now_ns) {
    if (tenant->account == NULL) {
        list_for_each_entry(struct session, session, &tenant->members, tenant_link) {
            ask(session, pool, now_ns);
        }
        return;
    }
    list_for_each_entry(struct session, session, &pool->core->sessions, link) {
        if (account_is_shared(session->tenant, tenant))
            ask(session, pool, now_ns);
    }
}

static void begin_round(struct round *round, const struct pool *pool) {
    *round = (struct round){.number = round->number + 1, .n_came = pool->reclaim.n_came};
}

void plan_ask_sessions(struct pool *pool, const struct tenant *tenant, bool is_counted, uint64_t now_ns) {
    pool->reclaim.spared = tenant == NULL && pool->reclaim.n_asks == 0 ? find_spared(pool) : NULL;
    plan_begin_shortage(pool, now_ns);
    pool->reclaim.n_asks += is_counted;
    pool->reclaim.asked_ns = now_ns;
    if (tenant == NULL)
        begin_round(&pool->reclaim.round, pool);
    if (is_counted && pool->reclaim.n_asks == ASKS_TRUSTED_MAX + 1)
        pool_mark_ready(pool); /* less is kept for an overdue request: others may have it */
    if (tenant != NULL) {
        ask_tenant(tenant, pool, now_ns);
        return;
    }
    list_for_each_entry(struct session, session, &pool->core->sessions, link) {
        if (session == pool->reclaim.spared)
            session_note_answer(session, pool);
        else
            ask(session, pool, now_ns);
    }
}

void plan_end_shortage(struct pool *pool, uint64_t now_ns) {
    if ((pool->reclaim.is_stuck && !list_is_empty(&pool->waiters.queues)) ||
        !list_is_empty(&pool->waiters.pressed) || wants_all(pool)) {
        plan_begin_shortage(pool, now_ns);
        return;
    }
    pool->reclaim.short_until_ns = 0;
    pool->reclaim.n_asks = 0;
    pool->reclaim.spared = NULL;
    list_for_each_entry(struct session, session, &pool->core->sessions, link) {
        session_end_shortage(session, pool);
    }
}

/* Asks the sessions of the tenants whose requests wait for quota, each tenant's at most once in
 * RECLAIM_INTERVAL_NS. */
static void reclaim_pressed(struct pool *pool, uint64_t now_ns) {
    list_for_each_entry_safe(struct tenant_heap, heap, &pool->waiters.pressed, pressed_link) {
        if (now_ns < heap->reclaim_ns)
            continue;
        heap->reclaim_ns = clock_deadline_ns(now_ns, RECLAIM_INTERVAL_NS);
        heap->reclaim_owed = false;
        const struct request *first = wait_queue_first(&heap->held);
        if (first != NULL && wait_queue_lacks_segments(first, first->least_bytes))
            (void)pool_retire_idle_of(heap->tenant);
        begin_round(&heap->round, pool);
        plan_ask_sessions(pool, heap->tenant, false, now_ns);
        if (wait_queue_first(&heap->held) == NULL)
            list_remove(&heap->pressed_link);
    }
}

/* When all sessions may be asked. Those that have all answered are asked again soon where a request waits for
 * another round (idle_wait.h). */
static uint64_t next_round_ns(const struct pool *pool) {
    const struct pool_reclaim *reclaim = &pool->reclaim;
    uint64_t soon_ns = clock_deadline_ns(reclaim->asked_ns, RECLAIM_SOON_NS), next_ns = reclaim->next_ns;

    if (soon_ns < next_ns && reclaim->n_open == 0 && idle_wait_needs_round(pool))
        next_ns = soon_ns;
    return next_ns > reclaim->not_before_ns ? next_ns : reclaim->not_before_ns;
}

/* Asks every session that can be asked: each RECLAIM_INTERVAL_NS, and between these rounds at most once in
 * RECLAIM_SOON_NS. The session of the oldest request is asked too: one of its threads may wait for memory in
 * the cache of another. */
static void reclaim_for_room(struct pool *pool, uint64_t now_ns) {
    const struct request *first = wait_queue_oldest(pool);

    if (!(pool->reclaim.is_stuck || pool->reclaim.is_owed || wants_all(pool)) ||
        pool->reclaim.n_sessions == 0 || now_ns < next_round_ns(pool))
        return;
    /* Caches are worth keeping when enough memory is on its way back. */
    if (first != NULL && first->deadline_ns > now_ns && pool->fenced_bytes >= first->least_bytes &&
        now_ns < clock_deadline_ns(first->asked_ns, FENCE_GRACE_NS)) {
        pool->reclaim.not_before_ns = clock_deadline_ns(first->asked_ns, FENCE_GRACE_NS);
        return;
    }
    /* A round between them leaves them as they are: how often sessions were asked says how long they had. */
    bool is_regular = now_ns >= pool->reclaim.next_ns;
    if (is_regular)
        pool->reclaim.next_ns =
            clock_deadline_ns(now_ns, wants_all(pool) ? DRAIN_INTERVAL_NS : RECLAIM_INTERVAL_NS);
    pool->reclaim.is_owed = false;
    plan_ask_sessions(pool, NULL, is_regular, now_ns);
}

void plan_reclaim(struct pool *pool, uint64_t now_ns) {
    pool->reclaim.is_stuck = is_stuck(pool, now_ns);
    if (!pool->reclaim.is_stuck &&
        !wants_all(pool)) /* the next time, idle sessions close segments first again */
        pool->reclaim.n_asks = 0;
    reclaim_for_room(pool, now_ns);
    reclaim_pressed(pool, now_ns);
}

uint64_t plan_next_reclaim_ns(const struct pool *pool) {
    bool wanted = pool->reclaim.is_owed || wants_all(pool) ||
                  (pool->reclaim.is_stuck && !list_is_empty(&pool->waiters.queues));
    uint64_t next_ns = wanted ? next_round_ns(pool) : NS_FOREVER;
    uint64_t next_retire_ns = NS_FOREVER; /* no session has to be asked for that */
    list_for_each_entry(const struct tenant_heap, heap, &pool->waiters.pressed, pressed_link) {
        if (heap->reclaim_ns < next_ns)
            next_ns = heap->reclaim_ns;
        const struct request *first = wait_queue_first(&heap->held);
        if (first != NULL && heap->reclaim_ns < next_retire_ns &&
            wait_queue_lacks_segments(first, first->least_bytes))
            next_retire_ns = heap->reclaim_ns;
    }
    if (pool->reclaim.n_sessions == 0)
        next_ns = NS_FOREVER;
    return next_ns < next_retire_ns ? next_ns : next_retire_ns;
}

/* Whether the tenant of the last lease has less at hand than the low-water mark, or than its quota leaves.
 * Segments that its sessions close by their own offer stay at hand. */
static bool is_low(const struct pool *pool) {
    uint64_t low_water = pool->low_water_bytes;
    uint64_t left = quota_left(&pool->growth.demand->tenant->quota, quota_item_of_pool(pool->id));
    uint64_t wanted = left < low_water ? left : low_water;
    uint64_t own = pool->growth.demand->heap.free_bytes + pool->growth.demand->kept_bytes;
    return pool->unassigned_bytes + own < wanted;
}

void plan_growth_ahead(struct pool *pool, uint64_t now_ns) {
    if (pool->growth.demand == NULL || pool->leased_bytes == 0 || pool->state != POOL_READY ||
        pool->growth.bytes > 0 || pool->retiring_bytes > 0 || now_ns < pool->growth.retry_ns ||
        now_ns < pool->growth.ahead_retry_ns || pool_room_bytes(pool) < SEGMENT_GRANULE ||
        !pool_has_descriptor(pool))
        return;
    if (!is_low(pool) || (collect_heap(pool->growth.demand) && !is_low(pool)))
        return;
    decide_growth(pool, growth_step(pool), now_ns);
    pool->growth.is_ahead = true;
}

/* The pool has room for what the request needs, and no descriptor. */
static void retire_for_descriptor(struct pool *pool, const struct request *request) {
    struct segment *segment;

    if (descriptor_comes(pool->core))
        return;
    segment = find_descriptor(pool, request);
    if (segment == NULL) /* what suits this one may serve the oldest in no other way */
        segment = find_descriptor(pool, wait_queue_oldest(pool));
    if (segment != NULL)
        pool_retire_one(segment);
}

/* Retires idle segments of other sizes, which the tenant could have, before the pool makes one for the
 * request: as many bytes as it makes. Otherwise the pool would hold idle memory of each size. Whether any are
 * on their way. */
static bool replaces_others(struct pool *pool, const struct request *request) {
    uint64_t *replaced = &pool->growth.replaced_bytes, bytes = request->segment_bytes;

    if (request->n_segments == 0)
        return false;
    list_for_each_entry_safe(struct segment, segment, &pool->idle, idle_link) {
        if (*replaced >= bytes)
            break;
        if (segment->size_bytes == bytes ||
            (segment->owner != NULL && segment->owner->tenant != request->session->tenant))
            continue;
        *replaced += segment->size_bytes;
        pool_retire_one(segment);
    }
    if (pool->retiring_bytes > 0)
        return true;
    *replaced -= *replaced < bytes ? *replaced : bytes;
    return false;
}

/* Orphans that no session has mapped make room. */
static void retire_orphans(struct pool *pool) {
    list_for_each_entry_safe(struct segment, segment, &pool->idle, idle_link) {
        if (segment->is_orphan)
            pool_retire_one(segment);
    }
}

void plan_growth(struct pool *pool, uint64_t now_ns) {
    if (pool->n_orphans > 0)
        retire_orphans(pool);
    if (wants_all(pool))
        pool_retire_idle(pool, UINT64_MAX, 0, NULL);
    if (pool->is_draining)
        return;
    if (pool->state != POOL_READY || pool->growth.bytes > 0 || pool->retiring_bytes > 0 ||
        now_ns < pool->growth.retry_ns)
        return;
    uint64_t room = pool_room_bytes(pool);
    bool has_descriptor = pool_has_descriptor(pool);
    if (!list_is_empty(&pool->waiters.queues)) {
        const struct request *request = room >= SEGMENT_GRANULE ? wait_queue_find(pool, room, 0) : NULL;
        if (request != NULL && has_descriptor) {
            if (!replaces_others(pool, request))
                decide_growth(pool, growth_bytes(pool, request), now_ns);
        } else if (request != NULL) {
            retire_for_descriptor(pool, request);
        } else if ((request = wait_queue_find(pool, room, pool_idle_bytes(pool, NULL))) != NULL) {
            pool_retire_idle(pool, pool_lacking_bytes(request) - room, 0, request);
        }
    } else if (pool->reserved_bytes < pool->reserve_bytes && room >= SEGMENT_GRANULE && has_descriptor) {
        uint64_t missing = pool->reserve_bytes - pool->reserved_bytes, step = growth_step(pool);
        decide_growth(pool, missing < step ? missing : step, now_ns);
    } else {
        plan_growth_ahead(pool, now_ns);
    }
}

/* Idle segments are memory that can come back: they are retired when the next growth fails too. Those that
 * suit the oldest request are not retired for it. */
bool plan_is_hopeless(const struct pool *pool, uint64_t now_ns) {
    return pool_is_closed(pool) ||
           (pool->growth.retry_ns > now_ns && pool->leased_bytes == 0 && pool->fenced_bytes == 0 &&
            pool->quarantined_bytes == 0 && pool->closing_bytes == 0 && pool->retiring_bytes == 0 &&
            pool->reclaim.n_sessions == 0 && pool_idle_bytes(pool, wait_queue_oldest(pool)) == 0);
}
