/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of service between waiting requests, as the model sees it: memory without a tenant goes to the
 * tenant with the fewest bytes, and no request is overtaken for ever. The model counts at most as often as
 * the core: of each tenant only the oldest request in a pool.
 */
#include "daemon/core/tenant.h"
#include "tests/sim/world.h"

static unsigned tenant_of(const struct world *world, const struct model_request *request) {
    return world->sessions[request->session].tenant;
}

bool model_is_over_quota(const struct world *world, const struct model_use *use,
                         const struct model_request *request) {
    unsigned tenant = tenant_of(world, request), item = QUOTA_POOLS + request->pool;
    uint64_t limit = model_limit(world, tenant, item, SIM_GROUPS), used = use->used[tenant][item];
    uint64_t segments = model_limit(world, tenant, QUOTA_SEGMENTS, SIM_GROUPS);
    uint64_t wanted = request->n_segments > 0 ? request->n_segments : 1;
    if (world->pools[request->pool].takes_descriptors && segments != QUOTA_UNLIMITED &&
        model_segments(world, tenant) + wanted > segments) /* unless its own are enough */
        return true;
    return used > limit || round_up(request->least, HEAP_GRANULE) > limit - used;
}

unsigned model_rank(const struct world *world, const struct model_request *request) {
    unsigned rank = 0;
    for (unsigned r = 0; r < SIM_REQUESTS; r++) {
        const struct model_request *other = &world->requests[r];
        rank += other->used && !other->answered && other->pool == request->pool && other->id < request->id &&
                tenant_of(world, other) == tenant_of(world, request);
    }
    return rank;
}

/* The first request of its tenant that waits for the quota. NULL: there is none. */
static const struct request *first_held(const struct world *world, const struct model_request *request) {
    const struct tenant_heap *heap =
        tenant_heap_find(world->sessions[request->session].session->tenant, world->pools[request->pool].pool);
    return heap != NULL ? wait_queue_first(&heap->held) : NULL;
}

/* Whether a request of its tenant that waits for the quota keeps that back. */
static bool quota_is_kept(const struct world *world, const struct model_request *request) {
    const struct request *first = first_held(world, request);
    return first != NULL && first->passes >= world->core->passes_limit && first->id < request->id;
}

bool model_is_held(const struct world *world, const struct model_request *request) {
    const struct request *first = first_held(world, request);
    return first != NULL && first->id == request->id;
}

bool model_is_behind(const struct world *world, const struct model_request *request) {
    struct pool *pool = world->pools[request->pool].pool;
    const struct request *first = list_first(&pool->waiters.overdue, struct request, overdue_link);
    return (first != NULL && first->id < request->id) || quota_is_kept(world, request);
}

bool model_suits(const struct world *world, const struct model_segment *where,
                 const struct model_request *request) {
    return where->segment != NULL && where->pool == request->pool && !where->retiring && !where->closing &&
           request->n_segments > 0 && where->size == request->segment_size && where->taken == 0 &&
           (where->tenant == 0 || where->tenant == tenant_of(world, request) + 1);
}

unsigned model_suiting(const struct world *world, const struct model_request *request) {
    unsigned n = 0;
    for (unsigned g = 0; g < SIM_SEGMENTS; g++)
        n += model_suits(world, &world->segments[g], request);
    return n;
}

/* Whether a waiting request could use the memory that another session gets of a segment. */
static bool could_use(const struct world *world, const struct model_request *waiter, unsigned session,
                      const struct model_segment *where) {
    bool has_size =
        waiter->n_segments > 0 ? where->size == waiter->segment_size : where->size >= waiter->least;
    return !world->sessions[session].seen[where - world->segments] ||
           (tenant_of(world, waiter) == world->sessions[session].tenant && has_size);
}

/* Whether the waiting request could be served with one of the segments, if that has no tenant yet. A segment
 * may be on its way back to the driver, and the model has not seen that. */
static bool could_be_served(const struct world *world, const struct model_request *waiter,
                            const struct model_segment *where) {
    if (where->tenant != 0)
        return false;
    return waiter->n_segments == 0
               ? waiter->least <= where->size
               : model_suits(world, where, waiter) && list_is_empty(&world->core->retiring) &&
                     model_suiting(world, waiter) >= waiter->n_segments;
}

/* Whether a segment is bound while all live: something of it is taken, a session that cannot be asked has it
 * mapped, or sessions that were asked often. */
static bool is_bound(const struct world *world, const struct model_segment *where, bool is_late) {
    if (where->closing)
        return is_late && !where->kept;
    if (where->taken > 0 || (where->mappers > 0 && is_late))
        return true;
    for (unsigned s = 0; s < SIM_SESSIONS; s++)
        if (world->sessions[s].session != NULL && world->sessions[s].seen[where - world->segments] &&
            (world->sessions[s].lost || !world->sessions[s].wants))
            return true;
    return false;
}

/* Whether the pool could make the segments that the request needs while all that hold memory live: by what is
 * known now, or was at the end of the last step. */
static bool can_come_together(const struct world *world, const struct model_request *request,
                              bool in_last_step) {
    const struct model_pool *of = &world->pools[request->pool];
    const struct pool *pool = of->pool;
    bool is_refused = in_last_step ? of->was_refused : pool->growth.retry_ns != 0;
    bool is_late = in_last_step ? of->was_late : pool->reclaim.n_asks > ASKS_TRUSTED_MAX;
    uint64_t most = pool->limit_bytes, bound = 0;

    if (is_refused && pool->reserved_bytes < most)
        most = pool->reserved_bytes;
    for (unsigned g = 0; g < SIM_SEGMENTS; g++) {
        const struct model_segment *where = &world->segments[g];
        if (where->segment != NULL && where->pool == request->pool && !where->retiring &&
            is_bound(world, where, is_late))
            bound += where->size;
    }
    return bound <= most && round_up(request->least, SEGMENT_GRANULE) <= most - bound;
}

bool model_room_is_kept(const struct world *world, const struct model_request *request) {
    list_for_each_entry(const struct request, overdue, &world->pools[request->pool].pool->waiters.overdue,
                        overdue_link) {
        for (unsigned r = 0; r < SIM_REQUESTS; r++)
            if (world->requests[r].used && world->requests[r].id == overdue->id &&
                overdue->id < request->id && can_come_together(world, &world->requests[r], false))
                return true;
    }
    return quota_is_kept(world, request);
}

/* The core's request, if it is overdue and waits for room. NULL: it is not. */
static const struct request *find_overdue(const struct world *world, const struct model_request *request) {
    list_for_each_entry(const struct request, overdue, &world->pools[request->pool].pool->waiters.overdue,
                        overdue_link) {
        if (overdue->id == request->id)
            return overdue;
    }
    return NULL;
}

/* Whether the waiting request, if it has been passed too often, keeps back the segment of which another
 * session gets memory: all that is empty where its need can come together, else the one in which it waits for
 * its own tenant's releases, or empty ones of its size where its tenant has as many. */
static bool keeps(const struct world *world, const struct model_request *waiter, unsigned session,
                  const struct model_segment *where) {
    const struct request *overdue = find_overdue(world, waiter);
    unsigned of_its_size = 0;

    if (overdue == NULL || !world->pools[waiter->pool].somebody_overdue)
        return false; /* it waited for its tenant's quota until now */
    /* The core may have decided before or after that changed in this step. */
    bool comes_together = can_come_together(world, waiter, false);
    if (comes_together != can_come_together(world, waiter, true))
        return false;
    if (comes_together)
        return where->taken == 0 && could_use(world, waiter, session, where);
    if (waiter->n_segments == 0)
        return where->segment == overdue->target;
    for (unsigned g = 0; g < SIM_SEGMENTS; g++) {
        const struct model_segment *other = &world->segments[g];
        /* The core may have sent one back to the driver in this step, which the model sees later. */
        of_its_size += other->segment != NULL && other->pool == waiter->pool && !other->retiring &&
                       other->segment->state == SEGMENT_ASSIGNED && !other->closing &&
                       other->tenant == tenant_of(world, waiter) + 1 && other->size == waiter->segment_size;
    }
    return where->tenant != 0 && model_suits(world, where, waiter) && of_its_size >= waiter->n_segments;
}

/* Whether the waiting request keeps the quota back from later ones of its tenant. A grant
 * before this one may have sent the request to wait for the quota anew; where one
 * pass is enough that is not so rare that it could be overlooked. */
static bool keeps_quota(const struct world *world, const struct model_use *use,
                        const struct model_request *waiter, unsigned tenant, const struct request *answered) {
    return world->core->passes_limit == SIM_PASSES && waiter->was_held && model_is_held(world, waiter) && model_is_over_quota(world, use, waiter) &&
           tenant_of(world, waiter) == tenant &&
           answered == list_first(&world->core->answered, struct request, link);
}

void model_take_turn(struct world *world, const struct model_request *request, const struct request *answered,
                     const unsigned *segments, unsigned n_segments) {
    unsigned tenant = tenant_of(world, request), item = QUOTA_POOLS + request->pool;
    bool somebody_overdue = answered->passes >= world->core->passes_limit ||
                            world->pools[request->pool].somebody_overdue ||
                            !list_is_empty(&world->pools[request->pool].pool->waiters.overdue);
    struct model_use use;

    model_add_up(world, &use);
    for (unsigned r = 0; r < SIM_REQUESTS; r++) {
        struct model_request *other = &world->requests[r];
        if (!other->used || other->answered || other->pool != request->pool || other == request ||
            model_rank(world, other) > 0)
            continue;
        bool is_served = false, uses = false;
        bool is_kept =
            other->passes >= world->core->passes_limit && keeps_quota(world, &use, other, tenant, answered);
        for (unsigned i = 0; i < n_segments; i++) {
            const struct model_segment *where = &world->segments[segments[i]];
            is_served = is_served || could_be_served(world, other, where);
            uses = uses || could_use(world, other, request->session, where);
            is_kept = is_kept || (other->passes >= world->core->passes_limit &&
                                  keeps(world, other, request->session, where));
        }
        /* Memory that came back meanwhile has changed the tenants' bytes. Overdue requests come before all
         * others. */
        if (is_served && !world->arrivals && !somebody_overdue && !model_is_over_quota(world, &use, other)) {
            must(use.used[tenant_of(world, other)][item] >= use.used[tenant][item],
                 "a tenant is served before one that has fewer bytes");
            world->tally->turns++;
        }
        if (other->id > request->id || !uses ||
            (tenant_of(world, other) != tenant && model_is_over_quota(world, &use, other)))
            continue;
        other->passes++;
        world->tally->passes++;
        /* Memory that came back meanwhile may be more than there was. */
        must(!is_kept || world->arrivals || memory_failed(),
             "a request is passed by later ones more often than it has to bear");
        world->tally->overdue += other->passes == world->core->passes_limit;
    }
}
