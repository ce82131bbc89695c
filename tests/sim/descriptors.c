/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptors that segments take: of all pools together, of a pool beside what is kept for others, of a
 * tenant. */
#include "tests/sim/world.h"

static unsigned descriptors_of(const struct world *world, unsigned p) {
    unsigned n = world->pools[p].growing > 0 || world->pools[p].decided;

    for (unsigned g = 0; g < SIM_SEGMENTS; g++)
        n += world->segments[g].segment != NULL && world->segments[g].pool == p;
    return n;
}

bool model_has_descriptor(const struct world *world, unsigned p) {
    unsigned n_pools = 0, taken = 0, limit = world->core->segments_limit;

    if (!world->pools[p].takes_descriptors)
        return true;
    for (unsigned other = 0; other < world->n_pools; other++)
        n_pools += world->pools[other].takes_descriptors;
    unsigned share = limit / 2 / n_pools;
    for (unsigned other = 0; other < world->n_pools; other++) {
        unsigned n = descriptors_of(world, other);
        if (world->pools[other].takes_descriptors)
            taken += other != p && n < share ? share : n;
    }
    return world->pools[p].decided ? taken <= limit : taken < limit;
}

/* Whether the segment is idle, and its pool keeps its reserve without it. */
static bool may_be_retired(const struct world *world, const struct model_segment *where,
                           uint64_t keep_bytes) {
    const struct pool *pool = world->pools[where->pool].pool;
    return where->segment != NULL && !where->retiring && !where->closing && where->taken == 0 &&
           where->mappers == 0 &&
           pool->reserved_bytes - pool->closing_bytes - pool->retiring_bytes >= keep_bytes + where->size;
}

bool model_descriptor_comes(const struct world *world, unsigned p, const struct model_request *request) {
    for (unsigned g = 0; g < SIM_SEGMENTS; g++) {
        const struct model_segment *where = &world->segments[g];
        if (where->segment == NULL || !world->pools[where->pool].takes_descriptors)
            continue;
        const struct pool *pool = world->pools[where->pool].pool;
        if (where->retiring ||
            (where->pool == p && may_be_retired(world, where, 0) && !model_suits(world, where, request)))
            return true;
        if (where->pool != p && !pool_is_closed(pool) && may_be_retired(world, where, pool->reserve_bytes))
            return true;
    }
    return false;
}

uint64_t model_segments(const struct world *world, unsigned tenant) {
    uint64_t n = 0;

    for (unsigned g = 0; g < SIM_SEGMENTS; g++) {
        const struct model_segment *where = &world->segments[g];
        n += where->segment != NULL && where->tenant == tenant + 1 &&
             where->segment->state != SEGMENT_RETIRING && world->pools[where->pool].takes_descriptors;
    }
    return n;
}
