/* SPDX-License-Identifier: Apache-2.0 */
/* The validators: each walks an object and adds its sums up anew. core_is_valid() calls all of them. */
#include "daemon/core/core.h"

#include <string.h>

#include "daemon/core/channel.h"
#include "daemon/core/name.h"
#include "daemon/core/name_wait.h"
#include "daemon/core/parcel.h"
#include "daemon/core/pool.h"
#include "daemon/core/question.h"
#include "daemon/core/row.h"
#include "daemon/core/segment.h"
#include "daemon/core/session.h"
#include "daemon/core/undelivered.h"
#include "daemon/core/wait_queue.h"

static bool block_is_valid(const struct block *block) {
    uint64_t held = 0, end = block->offset_bytes;
    unsigned ranges = 0, live = 0, fenced = 0, quarantined = 0;

    if (list_is_empty(&block->ranges) || (list_is_empty(&block->leases) && block->n_parcels == 0) ||
        (block->n_parcels > 0 && !block->shared) || block->n_named > block->n_parcels ||
        block->n_named != list_length(&block->named))
        return false;
    list_for_each_entry(const struct heap_range, range, &block->ranges, user_link) {
        if (range->free || range->user != block ||
            (!block->is_row && (range->span != block->segment->span || range->offset < end)))
            return false;
        held += range->size;
        end = block->is_row ? block->offset_bytes + held : range->offset + range->size;
        ranges++;
    }
    list_for_each_entry(const struct lease, lease, &block->leases, block_link) {
        if (lease->block != block || lease->session->tenant != block->segment->owner->tenant ||
            lease->withheld_bytes > block->held_bytes ||
            (lease->withheld_bytes == block->held_bytes && lease->fence == NULL &&
             lease->session->state == SESSION_ACTIVE))
            return false;
        if (lease->session->state == SESSION_QUARANTINED)
            quarantined++;
        else if (lease->fence != NULL)
            fenced++;
        else
            live++;
    }
    return held == block->held_bytes && held == block->charge.amount &&
           ranges == block->ranges_charge.amount && end - block->offset_bytes == block->capacity_bytes &&
           block->size_bytes <= block->capacity_bytes && ranges == block->n_ranges &&
           ranges <= BLOCK_RANGES_MAX + 1 + PROTO_ONE_WAY_MAX && (!block->is_row || row_is_valid(block)) &&
           live == block->live && fenced == block->fenced && quarantined == block->quarantined;
}

static bool fence_queue_is_valid(const struct fence_queue *queue) {
    const struct session *session = queue->session;
    bool found = false;

    if (queue->word >= session->n_fence_words || queue->heap->tenant != session->tenant ||
        list_is_empty(&queue->leases) != list_is_empty(&queue->heap_link) ||
        list_is_empty(&queue->leases) != list_is_empty(&queue->session_link))
        return false;
    for (const struct fence_queue *other = session->fence_queues[queue->word]; other != NULL;
         other = other->next)
        found = found || other == queue;
    list_for_each_entry(const struct lease, lease, &queue->leases, fence_link) {
        if (lease->fence != queue || lease->session != session ||
            lease->block->segment->owner != queue->heap || session->state != SESSION_ACTIVE)
            return false;
    }
    return found;
}

static bool requests_are_valid(const struct tenant_heap *heap, const struct wait_queue *queue,
                               enum wait_queue_kind kind, uint64_t *waiters) {
    const struct pool *pool = heap->pool;
    uint64_t number = 0, position = 0;

    list_for_each_entry(const struct request, request, &queue->requests, link) {
        if (request->queue != kind || request->heap != heap || request->state != REQUEST_WAITING ||
            request->number <= number || request_piece_bytes(request) < queue->least_bytes ||
            (request->look_ns != NS_FOREVER && pool->waiters.next_look_ns == NS_FOREVER) ||
            !tree_has(&request->deadline_node) || request->deadline_node.key != request->deadline_ns ||
            list_is_empty(&request->special_link) == (request->no_reclaim || request->idle_only))
            return false;
        /* no request in the window waits although its quota would do */
        if (kind == WAIT_QUEUE_QUOTA && position < WAIT_QUEUE_WINDOW && !pool_is_ready(pool) &&
            !pool->waiters.is_shifted && !wait_queue_awaits_quota(request, request->least_bytes))
            return false;
        number = request->number;
        position++;
    }
    *waiters += position;
    return true;
}

static bool wait_queue_is_valid(const struct tenant_heap *heap, uint64_t *waiters) {
    const struct request *first = wait_queue_first(&heap->waiting);

    return tree_has(&heap->age_node) == (first != NULL) &&
           (first == NULL || heap->age_node.key == first->number) &&
           list_is_empty(&heap->waiting_link) == list_is_empty(&heap->waiting.requests) &&
           list_is_empty(&heap->pressed_link) ==
               (list_is_empty(&heap->held.requests) && !heap->reclaim_owed) &&
           requests_are_valid(heap, &heap->waiting, WAIT_QUEUE_ROOM, waiters) &&
           requests_are_valid(heap, &heap->held, WAIT_QUEUE_QUOTA, waiters);
}

static bool overdue_is_valid(const struct pool *pool) {
    uint64_t number = 0;

    list_for_each_entry(const struct request, request, &pool->waiters.overdue, overdue_link) {
        if (request->queue != WAIT_QUEUE_ROOM || request->pool != pool ||
            request->passes < pool->core->passes_limit || request->number <= number ||
            (request->target != NULL && request->target->owner != request->heap))
            return false;
        number = request->number;
    }
    list_for_each_entry(const struct tenant_heap, heap, &pool->waiters.queues, waiting_link) {
        const struct request *first = wait_queue_first(&heap->waiting);
        if (first == NULL ||
            (first->passes >= pool->core->passes_limit) == list_is_empty(&first->overdue_link))
            return false;
    }
    return true;
}

/* The sums over the shelves and lists of a pool and its heaps. */
struct stock {
    uint64_t occupied_bytes, idle_bytes, deaf_bytes, kept_bytes;
    size_t n_idle, n_stocked, n_closing;
};

/* Whether a segment is where its state, its mappers and what is taken of it say. */
static bool segment_is_settled(const struct segment *segment, struct stock *stock) {
    bool is_closing = segment->state == SEGMENT_CLOSING;
    bool is_empty = !is_closing && (segment->span == NULL || segment->span->taken_bytes == 0);
    bool is_shared = is_empty && segment->owner != NULL && segment->mappers > 1;
    const struct list *shared = !is_shared                   ? NULL
                                : segment->deaf_mappers == 0 ? &segment->owner->shared
                                                             : &segment->owner->deaf;

    stock->occupied_bytes += is_empty || is_closing ? 0 : segment->size_bytes;
    stock->idle_bytes += is_empty && segment->mappers == 0 ? segment->size_bytes : 0;
    stock->deaf_bytes += is_empty && segment->deaf_mappers > 0 ? segment->size_bytes : 0;
    stock->kept_bytes += segment->keeper != NULL ? segment->size_bytes : 0;
    stock->n_idle += is_empty && segment->mappers == 0;
    stock->n_closing += is_closing;
    return segment_find(segment->pool->core, segment->id) == segment &&
           segment->size_shelf == shelf_find(&segment->pool->shelves, segment->size_bytes) &&
           segment->shelf == (is_closing ? NULL
                              : segment->owner == NULL
                                  ? segment->size_shelf
                                  : shelf_find(&segment->owner->shelves, segment->size_bytes)) &&
           segment->is_empty == is_empty && segment->is_idle == (is_empty && segment->mappers == 0) &&
           segment->is_deaf == (is_empty && segment->deaf_mappers > 0) &&
           list_is_empty(&segment->idle_link) != segment->is_idle &&
           (segment->sole != NULL) == (is_empty && segment->owner != NULL && segment->mappers == 1) &&
           tree_has(&segment->closable_node) == (segment->sole != NULL) &&
           (segment->sole == NULL || session_has_mapped(segment->sole, segment)) &&
           segment->shared == shared && list_is_empty(&segment->shared_link) != is_shared;
}

/* Whether each shelf has the segments that it counts. */
static bool shelves_are_valid(const struct tree *shelves, const struct tenant_heap *owner,
                              size_t *ret_segments) {
    size_t n_segments = 0;

    if (tree_count(shelves) == SIZE_MAX)
        return false;
    for (const struct tree_node *node = tree_first(shelves); node != NULL; node = tree_next(node)) {
        const struct shelf *shelf = container_of(node, const struct shelf, node);
        size_t empty = 0, idle = 0, used = list_length(&shelf->used);
        list_for_each_entry(const struct segment, segment, &shelf->empty, shelf_link) {
            if (segment->shelf != shelf || segment->size_bytes != shelf->size_bytes || !segment->is_empty)
                return false;
            empty++;
            idle += segment->is_idle;
        }
        if (shelf->owner != owner || shelf->size_bytes != node->key || shelf->n_segments == 0 ||
            empty != shelf->n_empty || idle != shelf->n_idle || empty + used > shelf->n_segments ||
            (owner != NULL && empty + used != shelf->n_segments) || (owner == NULL && used > 0) ||
            tree_has(&shelf->stocked_node) != (owner == NULL && empty > 0))
            return false;
        n_segments += shelf->n_segments;
    }
    *ret_segments = n_segments;
    return true;
}

/* Whether shelves, lists and sums of the pool's segments are right. */
static bool stock_is_valid(const struct pool *pool) {
    struct stock stock = {0};
    uint64_t kept_bytes = 0;
    size_t n_segments, n_retiring = 0;

    list_for_each_entry(const struct segment, segment, &pool->segments, link) {
        if (!segment_is_settled(segment, &stock))
            return false;
    }
    for (size_t slot = 0; slot < pool->core->segment_slots; slot++) {
        const struct segment *segment = pool->core->segments[slot];
        n_retiring += segment != NULL && segment->pool == pool && segment->state == SEGMENT_RETIRING;
    }
    if (!shelves_are_valid(&pool->shelves, NULL, &n_segments) || n_segments != pool->n_segments + n_retiring)
        return false;
    list_for_each_entry(const struct tenant_heap, heap, &pool->heaps, pool_link) {
        if (!shelves_are_valid(&heap->shelves, heap, &n_segments) || n_segments != heap->segments)
            return false;
        kept_bytes += heap->kept_bytes;
    }
    return stock.occupied_bytes == pool->occupied_bytes && stock.idle_bytes == pool->idle_bytes &&
           stock.deaf_bytes == pool->deaf_bytes && stock.kept_bytes == pool->kept_bytes &&
           kept_bytes == pool->kept_bytes && stock.n_idle == list_length(&pool->idle) &&
           stock.n_closing == list_length(&pool->closing) && tree_count(&pool->stocked) != SIZE_MAX &&
           tree_count(&pool->waiters.deadlines) == pool->waiters.count &&
           tree_count(&pool->waiters.by_age) == list_length(&pool->waiters.queues);
}

static const struct heap_range *block_first_range(const struct block *block) {
    return container_of(block->ranges.next, struct heap_range, user_link);
}

static bool pool_is_valid(const struct pool *pool) {
    uint64_t reserved = pool->retiring_bytes, free_bytes = 0, held = 0, waiters = 0, leases = 0;
    uint64_t unassigned = 0, closing = 0, parcels = 0, parcel_bytes = 0, named = 0, named_bytes = 0;
    unsigned segments = 0;
    bool demand_known = pool->growth.demand == NULL;

    list_for_each_entry(const struct segment, segment, &pool->segments, link) {
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
            if (block == NULL || (block->segment != segment && !block->is_row) || !block_is_valid(block))
                return false;
            if (block_first_range(block) != range)
                continue;
            leases += block->live + block->fenced + block->quarantined;
            parcels += block->n_parcels;
            parcel_bytes += block->live == 0 && block->n_parcels > 0 ? block->held_bytes : 0;
            named += block->n_named;
            named_bytes += block->live == 0 && block->n_named > 0 ? block->held_bytes : 0;
        }
    }
    list_for_each_entry(const struct tenant_heap, heap, &pool->heaps, pool_link) {
        if (!heap_is_valid(&heap->heap))
            return false;
        list_for_each_entry(const struct fence_queue, queue, &heap->fenced, heap_link) {
            if (queue->heap != heap || list_is_empty(&queue->leases) || !fence_queue_is_valid(queue))
                return false;
        }
        if (!wait_queue_is_valid(heap, &waiters))
            return false;
        free_bytes += heap->heap.free_bytes;
        demand_known = demand_known || heap == pool->growth.demand;
    }
    return reserved == pool->reserved_bytes && segments == pool->n_segments &&
           unassigned == pool->unassigned_bytes && closing == pool->closing_bytes &&
           free_bytes + unassigned == pool_free_bytes(pool) && demand_known &&
           (!pool->growth.is_ahead || pool->growth.bytes > 0) &&
           (!pool->growth.is_trimmed || pool->growth.is_ahead) &&
           pool->leased_bytes <= pool->stats.leased_peak_bytes &&
           pool->reserved_bytes <= pool->stats.reserved_peak_bytes &&
           pool->quarantined_bytes <= pool->stats.quarantined_peak_bytes &&
           held == pool->leased_bytes + pool->fenced_bytes + pool->quarantined_bytes &&
           waiters == pool->waiters.count && leases == pool->n_leases && parcels == pool->n_parcels &&
           parcel_bytes == pool->parcel_bytes && named == pool->n_named && named_bytes == pool->named_bytes &&
           (!pool->is_draining ||
            (waiters == 0 && pool->growth.demand == NULL && !pool->growth.is_decided)) &&
           overdue_is_valid(pool) && stock_is_valid(pool);
}

/* Whether a request has what its state and what it asks for say. Adds the leases whose answer is still to be
 * taken. */
static bool request_is_valid(const struct request *request, unsigned *unanswered) {
    const struct lease *lease = request->lease;

    if (request->least_bytes > request->size_bytes || (lease != NULL) != (request->state == REQUEST_GRANTED))
        return false;
    if (request->n_segments == 0
            ? request->segment_bytes != 0
            : request->segment_bytes % SEGMENT_GRANULE != 0 || request->least_bytes != request->size_bytes ||
                  request->size_bytes != request->n_segments * request->segment_bytes ||
                  (request->state != REQUEST_REFUSED && !pool_has_rows(request->pool)))
        return false;
    for (unsigned n = lease != NULL ? request_n_leases(request) : 0; n > 0;
         n--, lease = session_next_lease(lease)) {
        if (lease == NULL || !lease->unanswered || lease->session != request->session ||
            lease->block->segment->pool != request->pool)
            return false;
        if (request->n_segments > 0 && (lease->block->held_bytes != request->segment_bytes ||
                                        lease->block->segment->size_bytes != request->segment_bytes))
            return false;
        (*unanswered)++;
    }
    return true;
}

static bool requests_of_session_are_valid(const struct session *session) {
    unsigned unanswered = 0, expected = 0;

    list_for_each_entry(const struct lease, lease, &session->leases, session_link) {
        expected += lease->unanswered;
    }
    list_for_each_entry(const struct request, request, &session->requests, session_link) {
        if (request->session != session || !request_is_valid(request, &unanswered))
            return false;
    }
    return unanswered == expected;
}

/* Whether the parts of a session are what its leases and segments add up to. */
static bool session_pools_are_valid(const struct session *session, const struct session_pool *pools,
                                    const size_t *closable) {
    for (unsigned i = 0; i < session->core->n_pools; i++) {
        const struct session_pool *part = &session->pools[i];
        if (part->leased_bytes != pools[i].leased_bytes || part->fenced_bytes != pools[i].fenced_bytes ||
            part->shared_bytes != pools[i].shared_bytes || part->closing_bytes != pools[i].closing_bytes ||
            part->n_mapped != pools[i].n_mapped || part->n_untold != pools[i].n_untold ||
            tree_count(&part->closable) != closable[i])
            return false;
    }
    return true;
}

static bool session_is_valid(const struct session *session) {
    struct session_pool pools[PROTO_POOLS_MAX] = {0};
    size_t closable[PROTO_POOLS_MAX] = {0};
    uint64_t ranges = 0, leased = 0, fenced = 0;
    unsigned leases = 0, segments = 0, behind_fences = 0;
    size_t queued = 0;

    list_for_each_entry(const struct lease, lease, &session->leases, session_link) {
        if (lease->session != session || session->core->leases.slots[lease->id - 1] != lease)
            return false;
        leases++;
        ranges += lease->block->n_ranges;
        if (lease->fence != NULL) {
            fenced += lease->block->held_bytes;
            pools[lease->block->segment->pool->id - 1].fenced_bytes += lease->block->held_bytes;
            behind_fences++;
            continue;
        }
        leased += lease->block->held_bytes;
        pools[lease->block->segment->pool->id - 1].leased_bytes += lease->block->held_bytes;
        if (lease->block->shared)
            pools[lease->block->segment->pool->id - 1].shared_bytes += lease->block->held_bytes;
    }
    list_for_each_entry(const struct fence_queue, queue, &session->fenced, session_link) {
        if (queue->session != session || list_is_empty(&queue->leases) || !fence_queue_is_valid(queue))
            return false;
        queued += list_length(&queue->leases);
    }
    size_t requests = list_length(&session->requests);
    for (size_t word = 0; word < session->n_segment_words; word++)
        for (uint64_t bits = session->segments[word].mapped; bits != 0; bits &= bits - 1) {
            const struct segment *segment =
                session->core->segments[word * 64 + (unsigned)__builtin_ctzll(bits)];
            if (segment == NULL)
                return false;
            pools[segment->pool->id - 1].n_mapped++;
            segments++;
            pools[segment->pool->id - 1].n_untold +=
                segment->state == SEGMENT_CLOSING && !session_was_told(session, segment);
            closable[segment->pool->id - 1] += segment->sole == session;
            if (!session_was_told(session, segment))
                continue;
            pools[segment->pool->id - 1].closing_bytes += segment->size_bytes;
            if (segment->state != SEGMENT_CLOSING)
                return false;
        }
    for (size_t word = 0; word < session->n_segment_words; word++)
        if ((session->segments[word].told & ~session->segments[word].mapped) != 0)
            return false;
    return requests_of_session_are_valid(session) && leased == session->leased_bytes &&
           fenced == session->fenced_bytes && behind_fences == queued &&
           session_pools_are_valid(session, pools, closable) && leases == session->n_leases &&
           ranges == session->n_ranges && requests == session->n_requests &&
           segments == session->n_segments && (session->state == SESSION_ACTIVE || requests == 0) &&
           (list_is_empty(&session->reclaim_link) || session_can_be_asked_at_all(session));
}

/* Whether as many sessions can be asked for the pool's memory as it counts, and the sums of what they hold
 * are right. */
static bool reclaimers_are_valid(const struct core *core, const struct pool *pool) {
    unsigned reclaimers = 0, silent = 0, open = 0;
    uint64_t bytes = 0;

    list_for_each_entry(const struct session, session, &core->sessions, link) {
        reclaimers += session_can_be_asked(session, pool);
        silent += session_can_be_asked(session, pool) && !session_has_answered(session, pool);
        if (question_is_open(session, pool) && !session_can_be_asked(session, pool))
            return false;
        open += question_is_open(session, pool);
    }
    list_for_each_entry(const struct tenant, tenant, &core->tenants, link) {
        uint64_t own = 0;
        list_for_each_entry(const struct session, session, &tenant->members, tenant_link) {
            own += session->pools[pool->id - 1].leased_bytes + session->pools[pool->id - 1].closing_bytes;
        }
        if (own != tenant->sessions_bytes[pool->id - 1])
            return false;
        bytes += own;
    }
    return reclaimers == pool->reclaim.n_sessions && silent == pool->reclaim.n_silent &&
           open == pool->reclaim.n_open && bytes == pool->sessions_bytes;
}

/* Whether as many sessions have each segment mapped as it counts. */
static bool mappers_are_valid(const struct core *core) {
    for (size_t slot = 0; slot < core->segment_slots; slot++) {
        unsigned mappers = 0, deaf_mappers = 0, lost_mappers = 0;
        list_for_each_entry(const struct session, session, &core->sessions, link) {
            if (slot / 64 < session->n_segment_words &&
                (session->segments[slot / 64].mapped >> slot % 64 & 1)) {
                mappers++;
                deaf_mappers += !session->wants_reclaim || session->state != SESSION_ACTIVE;
                lost_mappers += session->state == SESSION_QUARANTINED;
            }
        }
        const struct segment *segment = core->segments[slot];
        if (segment == NULL ? mappers != 0
                            : segment->mappers != mappers || segment->deaf_mappers != deaf_mappers ||
                                  segment->lost_mappers != lost_mappers)
            return false;
    }
    return true;
}

/* Whether the keeper of each segment is a tenant that lives, and has the segment charged while its one mapper
 * closes it. */
static bool keepers_are_valid(const struct core *core) {
    for (size_t slot = 0; slot < core->segment_slots; slot++) {
        const struct segment *segment = core->segments[slot];
        bool is_alive = segment == NULL || segment->keeper == NULL;
        list_for_each_entry(const struct tenant, tenant, &core->tenants, link) {
            is_alive = is_alive || (segment->keeper == tenant && tenant->sessions > 0);
        }
        if (!is_alive)
            return false;
        if (segment != NULL && segment->keeper != NULL &&
            (segment->state != SEGMENT_CLOSING || segment->mappers != 1 || !pool_has_rows(segment->pool) ||
             segment->charge.quota != &segment->keeper->quota))
            return false;
    }
    return true;
}

/* Adds up what the blocks in a segment of the tenant are charged. */
static bool add_up_blocks(const struct segment *segment, const struct tenant *tenant, uint64_t *sums) {
    bool valid = true;

    for (const struct heap_range *range = segment->span->lowest; range != NULL; range = range->upper) {
        const struct block *block = range->free ? NULL : range->user;
        if (block != NULL && block_first_range(block) == range) /* once a block */
            valid = valid && block->charge.amount == block->held_bytes &&
                    block->charge.item == quota_item_of_pool(segment->pool->id) &&
                    block->ranges_charge.item == QUOTA_RANGES &&
                    charge_add_up(&block->charge, &tenant->quota, sums) &&
                    charge_add_up(&block->ranges_charge, &tenant->quota, sums);
    }
    return valid;
}

/* Whether each tenant's quota is the sum of its charges. */
static bool quotas_are_valid(const struct core *core) {
    list_for_each_entry(const struct tenant, tenant, &core->tenants, link) {
        uint64_t sums[QUOTA_ITEMS] = {0};
        bool valid = true;

        list_for_each_entry(const struct session, session, &core->sessions, link) {
            if (session->tenant != tenant)
                continue;
            valid = valid && session->charge.amount == 1 && session->charge.item == QUOTA_SESSIONS &&
                    charge_add_up(&session->charge, &tenant->quota, sums) &&
                    charge_add_up(&session->replies, &tenant->quota, sums) &&
                    session->draft.charge.amount == session->draft.n_bytes &&
                    charge_add_up(&session->draft.charge, &tenant->quota, sums);
            list_for_each_entry(const struct lease, lease, &session->leases, session_link) {
                valid = valid && lease->charge.amount == 1 && lease->charge.item == QUOTA_LEASES &&
                        charge_add_up(&lease->charge, &tenant->quota, sums);
            }
            list_for_each_entry(const struct request, request, &session->requests, session_link) {
                valid = valid && request->charge.amount == (request->state == REQUEST_WAITING) &&
                        charge_add_up(&request->charge, &tenant->quota, sums);
            }
        }
        unsigned n_undelivered = 0;
        list_for_each_entry(const struct undelivered, undelivered, &tenant->undelivered, link) {
            valid = valid && undelivered->tenant == tenant && undelivered->charge.item == QUOTA_REPLIES &&
                    charge_add_up(&undelivered->charge, &tenant->quota, sums);
            n_undelivered++;
        }
        valid = valid && n_undelivered == tenant->n_undelivered;
        for (size_t slot = 0; slot < core->segment_slots; slot++) {
            const struct segment *segment = core->segments[slot];
            if (segment != NULL && segment->state == SEGMENT_ASSIGNED && segment->owner->tenant == tenant)
                valid = valid && add_up_blocks(segment, tenant, sums);
            if (segment != NULL && segment->own_charge.quota == &tenant->quota)
                valid = valid && segment->own_charge.amount == 1 &&
                        segment->own_charge.item == QUOTA_SEGMENTS && segment->pool->takes_descriptors &&
                        (segment->state == SEGMENT_CLOSING ||
                         (segment->state == SEGMENT_ASSIGNED && segment->owner->tenant == tenant)) &&
                        charge_add_up(&segment->own_charge, &tenant->quota, sums);
            if (segment != NULL && segment->charge.quota == &tenant->quota)
                valid = valid && segment->charge.amount == segment->size_bytes &&
                        segment->state == SEGMENT_CLOSING &&
                        charge_add_up(&segment->charge, &tenant->quota, sums);
        }
        for (size_t i = 0; i < core->parcels.count; i++)
            if (core->parcels.entries[i]->block->segment->owner->tenant == tenant)
                valid = valid && charge_add_up(&core->parcels.entries[i]->charge, &tenant->quota, sums);
        if (!valid || !names_are_valid(tenant, sums) || memcmp(sums, tenant->quota.used, sizeof sums) != 0)
            return false;
    }
    return true;
}

/* Whether a tenant that can have no session any more has nothing that could go back. */
static bool tenant_is_cleared(const struct tenant *tenant) {
    list_for_each_entry(const struct tenant_heap, heap, &tenant->heaps, tenant_link) {
        if (heap->segments > 0)
            return false;
    }
    return tenant->n_parcels == 0 && tenant->n_names == 0;
}

/* Whether each scope counts its tenants, and of dropped ones those are left that have tenants. */
static bool scopes_are_valid(const struct core *core) {
    unsigned n_scopes = 0;

    list_for_each_entry(const struct scope, scope, &core->scopes, link) {
        unsigned n_tenants = 0;
        list_for_each_entry(const struct tenant, tenant, &core->tenants, link) {
            bool is_member = tenant->id.scope == scope->id;
            if ((tenant->scope == scope) != is_member)
                return false;
            n_tenants += is_member;
            if (is_member && scope->is_dropped && tenant->sessions == 0 && !tenant_is_cleared(tenant))
                return false;
        }
        if (n_tenants != scope->n_tenants || (scope->is_dropped && n_tenants == 0))
            return false;
        n_scopes++;
    }
    list_for_each_entry(const struct tenant, tenant, &core->tenants, link) {
        if (tenant->scope == NULL && tenant->id.scope != SCOPE_ORDINARY)
            return false;
        if (tenant->scope != NULL &&
            (tenant->account == NULL || tenant->account->owner.scope != tenant->id.scope))
            return false;
    }
    return n_scopes == core->n_scopes;
}

/* Whether each account has what its members have. */
static bool accounts_are_valid(const struct core *core) {
    list_for_each_entry(const struct account, account, &core->accounts, link) {
        uint64_t sums[QUOTA_ITEMS] = {0};
        unsigned members = 0, n_undelivered = 0;
        list_for_each_entry(const struct tenant, tenant, &core->tenants, link) {
            if (tenant->account != account)
                continue;
            members++;
            n_undelivered += tenant->n_undelivered;
            for (unsigned item = 0; item < QUOTA_ITEMS; item++)
                sums[item] += tenant->quota.used[item];
            if (tenant->quota.above != &account->quota)
                return false;
        }
        if (members == 0 || members != account->members || n_undelivered != account->n_undelivered ||
            memcmp(sums, account->quota.used, sizeof sums) != 0)
            return false;
    }
    return true;
}

bool core_is_valid(const struct core *core) {
    uint64_t session_leases = 0, pool_leases = 0;
    unsigned sessions = 0;

    for (unsigned i = 0; i < core->n_pools; i++) {
        if (core->pools[i]->id != i + 1 || !pool_is_valid(core->pools[i]) ||
            !reclaimers_are_valid(core, core->pools[i]))
            return false;
        pool_leases += core->pools[i]->n_leases;
    }
    list_for_each_entry(const struct session, session, &core->sessions, link) {
        if (!session_is_valid(session))
            return false;
        session_leases += session->n_leases;
        sessions++;
    }
    return sessions == core->n_sessions && session_leases == pool_leases &&
           session_leases == core->leases.used && mappers_are_valid(core) && keepers_are_valid(core) &&
           parcels_are_valid(core) && name_waits_are_valid(core) && channels_are_valid(core) &&
           quotas_are_valid(core) && accounts_are_valid(core) && scopes_are_valid(core);
}
