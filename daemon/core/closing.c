/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/closing.h"

#include <assert.h>
#include <limits.h>

#include "daemon/core/kept.h"
#include "daemon/core/plan.h"
#include "daemon/core/pool.h"
#include "daemon/core/segment.h"
#include "daemon/core/session.h"
#include "daemon/core/tenant.h"
#include "daemon/core/wait_queue.h"
#include "proto/proto.h"

/* A search for segments that a session can close. */
struct search {
    const struct session *session;
    struct pool *pool;
    unsigned mappers_max;
    unsigned deaf_mappers; /* the session itself, where it cannot be asked and asks for its own request */
    bool spares;           /* segments that plan_needs_segment() */
};

/* Whether the session has the segment mapped, nothing of it is taken, and all its mappers can be told. A
 * segment that the waiting request could take as it is stays. */
static bool is_closable(const struct search *search, const struct segment *segment) {
    return segment->state == SEGMENT_ASSIGNED && segment->is_empty &&
           segment->deaf_mappers == search->deaf_mappers && segment->mappers <= search->mappers_max &&
           session_has_mapped(search->session, segment) &&
           !(search->spares && plan_needs_segment(search->pool, segment));
}

/* The one with the fewest mappers; of these the smallest that is large enough, else the largest. */
static bool is_better(const struct segment *segment, const struct segment *best, uint64_t wanted_bytes) {
    bool is_enough = segment->size_bytes >= wanted_bytes;

    if (best == NULL || segment->mappers != best->mappers)
        return best == NULL || segment->mappers < best->mappers;
    return best->size_bytes >= wanted_bytes ? is_enough && segment->size_bytes < best->size_bytes
                                            : segment->size_bytes > best->size_bytes;
}

static struct segment *segment_of_node(struct tree_node *node) {
    return node == NULL ? NULL : container_of(node, struct segment, closable_node);
}

/* Of the segments that the session alone has mapped, the best one. Those that a request needs as they are
 * have one size: behind them come other sizes. */
static struct segment *choose_own(const struct search *search, uint64_t wanted_bytes) {
    const struct tree *closable = &search->session->pools[search->pool->id - 1].closable;
    struct segment *segment = segment_of_node(tree_at_least(closable, wanted_bytes));

    if (segment != NULL && !is_closable(search, segment))
        segment = segment_of_node(tree_at_least(closable, segment->size_bytes + 1));
    if (segment != NULL)
        return is_closable(search, segment) ? segment : NULL;
    segment = segment_of_node(tree_last(closable));
    if (segment == NULL || is_closable(search, segment))
        return segment;
    struct tree_node *of_its_size = tree_find(closable, segment->size_bytes);
    segment = segment_of_node(tree_previous(of_its_size));
    return segment != NULL && is_closable(search, segment) ? segment : NULL;
}

/* Of the segments that the session and others have mapped, the best one of the first of the list. Those that
 * were looked at move to the end. */
static struct segment *choose_shared(const struct search *search, uint64_t wanted_bytes) {
    struct tenant_heap *heap = tenant_heap_find(search->session->tenant, search->pool);
    struct segment *best = NULL;

    if (heap == NULL || search->mappers_max < 2)
        return NULL;
    struct list *segments = search->deaf_mappers == 0 ? &heap->shared : &heap->deaf;
    const struct list *last = segments->previous;
    bool is_over = list_is_empty(segments);
    for (unsigned left = SHARED_LOOKED_AT_MAX; left > 0 && !is_over; left--) {
        struct segment *segment = list_first(segments, struct segment, shared_link);
        is_over = segments->next == last;
        list_remove(&segment->shared_link);
        list_append(segments, &segment->shared_link);
        if (is_closable(search, segment) && is_better(segment, best, wanted_bytes))
            best = segment;
    }
    return best;
}

static struct segment *choose(const struct search *search, uint64_t wanted_bytes) {
    struct segment *segment = choose_own(search, wanted_bytes);
    return segment != NULL ? segment : choose_shared(search, wanted_bytes);
}

static void begin(struct segment *segment) {
    struct pool *pool = segment->pool;
    struct quota *quota = &segment->owner->tenant->quota;

    tenant_disown(segment);
    charge_force(&segment->charge, quota, quota_item_of_pool(pool->id), segment->size_bytes);
    if (pool->takes_descriptors)
        charge_force(&segment->own_charge, quota, QUOTA_SEGMENTS, 1);
    segment->state = SEGMENT_CLOSING;
    kept_change(pool->core, segment->record);
    segment_settle(segment);
    list_append(&pool->closing, &segment->shelf_link);
    pool->unassigned_bytes -= segment->size_bytes;
    pool->closing_bytes += segment->size_bytes;
}

/* The tenant has the CLOSING segment again, or not any more. */
static void set_keeper(struct segment *segment, struct tenant *keeper) {
    struct tenant *tenant = keeper != NULL ? keeper : segment->keeper;
    uint64_t bytes = keeper != NULL ? segment->size_bytes : -segment->size_bytes;

    if (tenant == NULL)
        return;
    segment->keeper = keeper;
    kept_change(segment->pool->core, segment->record);
    segment->pool->kept_bytes += bytes;
    tenant_heap_find(tenant, segment->pool)->kept_bytes += bytes;
}

/* Adds a segment to the message. False: it is full. */
static bool tell(struct session *session, struct segment *segment, struct proto_segments *segments) {
    if (segments->count == PROTO_CLOSE_MAX)
        return false;
    session_note_told(session, segment);
    segments->ids[segments->count++] = segment->id;
    return true;
}

/* Names the segments that are CLOSING already, because another session was told to close them. */
static void tell_of_others(struct session *session, struct pool *pool, struct proto_segments *segments) {
    struct session_pool *own = &session->pools[pool->id - 1];

    list_for_each_entry(struct segment, segment, &pool->closing, shelf_link) {
        if (own->n_untold == 0)
            return;
        if (!session_has_mapped(session, segment) || session_was_told(session, segment))
            continue;
        if (!tell(session, segment, segments))
            return;
        own->n_untold--;
    }
}

/* Whether every session that can be asked for memory of the pool, but for one, has answered the last
 * question. */
static bool others_have_answered(const struct session *session, const struct pool *pool) {
    bool is_silent = session_can_be_asked(session, pool) && !session_has_answered(session, pool);
    return pool->reclaim.n_silent == is_silent;
}

/* Asks the other mappers of a segment, which are of the same tenant. They are told to close it when they
 * answer. */
static void ask_mappers(const struct session *session, const struct segment *segment, uint64_t now_ns) {
    plan_begin_shortage(segment->pool, now_ns);
    list_for_each_entry(struct session, other, &session->tenant->members, tenant_link) {
        if (other == session || !session_has_mapped(other, segment))
            continue;
        other->pools[segment->pool->id - 1].n_untold++;
        session_ask(other, segment->pool, now_ns);
    }
}

void closing_choose(struct session *session, struct pool *pool, const struct proto_idle *idle,
                    uint64_t now_ns, struct proto_segments *ret_segments) {
    uint64_t missing_bytes =
        idle->size_bytes != 0 ? plan_missing_for(pool, idle->size_bytes) : plan_missing_bytes(pool);
    bool is_stopped = (idle->flags & PROTO_IDLE_BUSY) != 0 && !pool_is_of_vmm(pool);
    struct segment *segment;

    if (pool->state != POOL_READY)
        return;
    struct tenant_heap *own = tenant_heap_find(session->tenant, pool);
    if (idle->size_bytes != 0 && own != NULL && heap_has(&own->heap, idle->size_bytes))
        missing_bytes = 0;
    if (idle->size_bytes == 0)
        session_note_answer(session, pool);
    tell_of_others(session, pool, ret_segments);
    bool is_last_resort = pool->reclaim.n_asks >= 2 || others_have_answered(session, pool);
    const struct search search = {
        .session = session,
        .pool = pool,
        .mappers_max = is_last_resort ? UINT_MAX : 1,
        .deaf_mappers = idle->size_bytes != 0 && !session->wants_reclaim,
        .spares = idle->size_bytes == 0 || wait_queue_oldest(pool) != NULL,
    };
    while (missing_bytes > 0 && (is_last_resort || !is_stopped) &&
           (segment = choose(&search, missing_bytes)) != NULL) {
        if (!tell(session, segment, ret_segments))
            return;
        begin(segment);
        if (segment->mappers > 1)
            ask_mappers(session, segment, now_ns);
        missing_bytes -= segment->size_bytes < missing_bytes ? segment->size_bytes : missing_bytes;
    }
    /* All sessions have answered, and it is not enough: the busy ones are asked once more, at once. */
    if (missing_bytes > 0 && pool->reclaim.is_stuck && pool->reclaim.n_asks == 1 && is_last_resort)
        plan_ask_sessions(pool, NULL, true, now_ns);
}

void closing_take_offer(struct session *session, struct pool *pool, const struct proto_offer *offer,
                        struct proto_segments *ret_segments) {
    const struct search search = {
        .session = session,
        .pool = pool,
        .mappers_max = 1,
        .deaf_mappers = !session->wants_reclaim,
        .spares = true,
    };

    if (pool->state != POOL_READY || !pool_has_rows(pool) || pool->waiters.count > 0)
        return;
    for (uint32_t i = 0; i < offer->count; i++) {
        struct segment *segment = segment_find(pool->core, offer->ids[i]);
        if (segment == NULL || segment->pool != pool || !is_closable(&search, segment))
            continue;
        /* The charge of a CLOSING segment is not to keep the tenant from its quota. */
        if (quota_left(&session->tenant->quota, quota_item_of_pool(pool->id)) < segment->size_bytes)
            return;
        if (!tell(session, segment, ret_segments))
            return;
        begin(segment);
        set_keeper(segment, session->tenant);
    }
}

void closing_restore(struct segment *segment, struct tenant *keeper) {
    begin(segment);
    set_keeper(segment, keeper);
    list_for_each_entry(struct session, session, &segment->pool->core->sessions, link) {
        session->pools[segment->pool->id - 1].n_untold += session_has_mapped(session, segment);
    }
}

void closing_restore_told(struct session *session, struct segment *segment) {
    session_note_told(session, segment);
    session->pools[segment->pool->id - 1].n_untold--;
}

/* The last mapper of a CLOSING segment has closed it or is gone. */
static void end(struct segment *segment) {
    struct pool *pool = segment->pool;
    assert(segment->state == SEGMENT_CLOSING && segment->mappers == 0);
    list_remove(&segment->shelf_link);
    segment->state = SEGMENT_UNASSIGNED;
    kept_change(pool->core, segment->record);
    segment_settle(segment);
    pool->closing_bytes -= segment->size_bytes;
    charge_free(&segment->charge);
    if (pool->takes_descriptors) {
        pool_mark_held(container_of(segment->own_charge.quota, struct tenant, quota));
        pool_mark_descriptors(pool->core);
        charge_free(&segment->own_charge);
    }
    pool->unassigned_bytes += segment->size_bytes;
    struct tenant *keeper = segment->keeper;
    set_keeper(segment, NULL);
    if (keeper == NULL || segment->is_orphan || tenant_adopt(keeper, segment) < 0)
        pool_retire(segment);
    else
        pool_mark_ready(pool);
}

void closing_unmap(struct session *session, struct segment *segment) {
    session_unmap_segment(session, segment);
    if (segment->state == SEGMENT_CLOSING && segment->mappers == 0)
        end(segment);
}

struct pool *closing_finish(struct session *session, uint64_t segment_id) {
    struct segment *segment = segment_find(session->core, segment_id);
    if (segment == NULL || segment->state != SEGMENT_CLOSING || !session_has_mapped(session, segment) ||
        !session_was_told(session, segment))
        return NULL;
    struct pool *pool = segment->pool;
    closing_unmap(session, segment);
    return pool;
}
