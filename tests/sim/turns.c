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

bool model_is_behind(const struct world *world, const struct model_request *request) {
    struct pool *pool = world->pools[request->pool].pool;
    const struct request *first = list_first(&pool->waiters.overdue, struct request, overdue_link);
    if (first != NULL && first->id < request->id)
        return true;
    const struct tenant_heap *heap =
        tenant_heap_find(world->sessions[request->session].session->tenant, pool);
    first = heap != NULL ? wait_queue_first(&heap->held) : NULL;
    return first != NULL && first->passes >= world->core->passes_limit && first->id < request->id;
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
        for (unsigned i = 0; i < n_segments; i++) {
            const struct model_segment *where = &world->segments[segments[i]];
            is_served = is_served || could_be_served(world, other, where);
            uses = uses || could_use(world, other, request->session, where);
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
        must(other->passes <= world->core->passes_limit,
             "a request is passed by later ones more often than it has to bear");
        world->tally->overdue += other->passes == world->core->passes_limit;
    }
}
