/* SPDX-License-Identifier: Apache-2.0 */
/* The invariants that hold between steps. The model's sums are computed anew each time. */
#include "tests/sim/world.h"

/* Every byte is accounted for: reserved = leased + fenced + quarantined + retiring + free, each as the model
 * has it. */
static void check_sums(struct world *world) {
    size_t parcels = 0;
    uint64_t leased[SIM_POOLS] = {0}, fenced[SIM_POOLS] = {0}, quarantined[SIM_POOLS] = {0},
             reserved[SIM_POOLS] = {0}, retiring[SIM_POOLS] = {0}, free_bytes[SIM_POOLS] = {0},
             waiters[SIM_POOLS] = {0};

    for (unsigned p = 0; p < SIM_PARCELS; p++)
        parcels += world->parcels[p].takers > 0;
    for (unsigned tenant = 0; tenant < SIM_TENANTS; tenant++)
        parcels += names_parts(world, tenant);
    must(world->core->parcels.count == parcels, "a parcel has ended too early, or not at all");
    for (unsigned b = 0; b < world->blocks_end; b++) {
        const struct model_block *block = &world->blocks[b];
        unsigned p = world->segments[block->segment].pool;
        if (block->live > 0 || block->parcels > 0)
            leased[p] += block->held;
        else if (block->lost > 0)
            quarantined[p] += block->held;
        else if (block->fenced > 0)
            fenced[p] += block->held;
    }
    for (unsigned g = 0; g < SIM_SEGMENTS; g++) {
        const struct model_segment *segment = &world->segments[g];
        if (segment->segment == NULL)
            continue;
        reserved[segment->pool] += segment->size;
        retiring[segment->pool] += segment->retiring ? segment->size : 0;
        free_bytes[segment->pool] +=
            segment->retiring || segment->closing ? 0 : segment->size - segment->taken;
    }
    for (unsigned r = 0; r < SIM_REQUESTS; r++)
        if (world->requests[r].used && !world->requests[r].answered)
            waiters[world->requests[r].pool]++;
    for (unsigned p = 0; p < world->n_pools; p++) {
        const struct pool *pool = world->pools[p].pool;
        must(pool->leased_bytes == leased[p], "leased bytes are counted wrong");
        must(pool->quarantined_bytes == quarantined[p], "bytes in quarantine are counted wrong");
        must(pool->fenced_bytes == fenced[p], "bytes behind fences are counted wrong");
        must(pool->reserved_bytes == reserved[p], "reserved bytes are counted wrong");
        must(pool->waiters.count == waiters[p], "those who wait are counted wrong");
        must(pool->growth.bytes == world->pools[p].growing || pool->growth.is_decided, "a growth is lost");
        must(fenced[p] == 0 || waiters[p] == 0 ||
                 core_next_tick_ns(world->core) <= world->now_ns + FENCE_INTERVAL_NS,
             "somebody waits, and nobody will look at the fences");
        if (!list_is_empty(&world->core->retiring)) /* not yet seen by the shell */
            continue;
        must(pool->retiring_bytes == retiring[p], "bytes on their way back to the driver are counted wrong");
        must(pool_free_bytes(pool) == free_bytes[p], "free bytes are counted wrong");
    }
}

/* Returns the size of the largest free range of a segment. */
static uint64_t largest_gap(const struct world *world, const struct model_segment *segment) {
    uint64_t largest = 0, gap = 0;
    for (uint64_t g = 0; g < segment->size / world->grain; g++) {
        gap = segment->owners[g] == 0 ? gap + 1 : 0;
        largest = gap > largest ? gap : largest;
    }
    return largest * world->grain;
}

/* Whether a live session that wants to be asked holds something of the pool, or has it mapped. */
static bool somebody_can_be_asked(const struct world *world, unsigned p) {
    for (unsigned l = 0; l < world->leases_end; l++) {
        const struct model_lease *lease = &world->leases[l];
        if (lease->used && !lease->fenced && world->sessions[lease->session].wants &&
            !world->sessions[lease->session].lost &&
            world->segments[world->blocks[lease->block].segment].pool == p)
            return true;
    }
    for (unsigned s = 0; s < SIM_SESSIONS; s++)
        if (world->sessions[s].session != NULL && world->sessions[s].wants && !world->sessions[s].lost &&
            model_has_mapped(world, s, p))
            return true;
    return false;
}

/* Returns the bytes of new segments that the waiting request needs. */
static uint64_t lacks(const struct world *world, const struct model_request *request) {
    unsigned suiting = model_suiting(world, request);

    if (request->n_segments == 0)
        return round_up(request->least, SEGMENT_GRANULE);
    return suiting < request->n_segments ? (request->n_segments - suiting) * request->segment_size : 0;
}

/* Whether a segment with a descriptor is on its way back to the driver. */
static bool pool_is_retiring_some(const struct world *world) {
    for (unsigned g = 0; g < SIM_SEGMENTS; g++)
        if (world->segments[g].segment != NULL && world->segments[g].retiring &&
            world->pools[world->segments[g].pool].takes_descriptors)
            return true;
    return false;
}

/* Unless the pool is marked as ready, none of its waiting requests could be served now: no free range of the
 * tenant surely fits, no segment is without a tenant, growth would not help, and the idle segments are too
 * small for the oldest request. When nothing of that helps the oldest request, the sessions that hold the
 * memory will be asked. */
static void check_line(struct world *world, const struct model_use *use, unsigned p) {
    const struct pool *pool = world->pools[p].pool;
    uint64_t room = pool->limit_bytes > pool->reserved_bytes ? pool->limit_bytes - pool->reserved_bytes : 0;
    uint64_t idle = 0, largest_unassigned = 0, largest[SIM_TENANTS] = {0};
    const struct model_request *first = NULL;

    if (pool_is_ready(pool) || pool->waiters.is_shifted) {
        must(pool->waiters.count == 0 || core_next_tick_ns(world->core) <= world->now_ns,
             "memory came back, and nobody will look at those who wait");
        return;
    }
    for (unsigned g = 0; g < SIM_SEGMENTS; g++) {
        const struct model_segment *segment = &world->segments[g];
        if (segment->segment == NULL || segment->pool != p || segment->retiring || segment->closing)
            continue;
        if (segment->taken == 0 && segment->mappers == 0)
            idle += segment->size;
        if (segment->tenant == 0) {
            largest_unassigned = segment->size > largest_unassigned ? segment->size : largest_unassigned;
            continue;
        }
        uint64_t gap = segment->size - segment->taken, *known = &largest[segment->tenant - 1];
        if (gap > *known && (gap = largest_gap(world, segment)) > *known)
            *known = gap;
    }
    bool may_grow = pool->state == POOL_READY && pool->growth.bytes == 0 && pool->retiring_bytes == 0 &&
                    pool->growth.retry_ns <= world->now_ns;
    const struct request *head = wait_queue_oldest(pool);
    for (unsigned r = 0; r < SIM_REQUESTS; r++) {
        const struct model_request *request = &world->requests[r];
        if (!request->used || request->answered || request->pool != p)
            continue;
        must(!pool_is_closed(pool), "a request waits for a device that is lost");
        must(!request->no_reclaim || pool_is_ready(pool) || pool->growth.retry_ns > world->now_ns ||
                 pool->state == POOL_STARTING || pool->growth.bytes > 0 || pool->retiring_bytes > 0,
             "a request waits for growth, and none is under way");
        must(request->least <= pool->limit_bytes || model_is_over_quota(world, use, request),
             "a request waits that can never be served");
        if (head != NULL && head->id == request->id)
            first = request;
        if (model_is_over_quota(world, use, request) || model_rank(world, request) >= WAIT_QUEUE_WINDOW ||
            model_room_is_kept(world, request))
            continue;
        must(pool->reclaim.spared == NULL || request->no_reclaim ||
                 (request->gave_back && pool->reclaim.spared == world->sessions[request->session].session),
             "a session is spared that others wait for");
        uint64_t lacking = lacks(world, request);
        must(!may_grow || !model_has_descriptor(world, p) || lacking == 0 || lacking > room,
             "a request waits, and the pool could grow");
        if (request->n_segments == 0)
            must(request->least > largest_unassigned,
                 "a request waits, and a segment without a tenant would do");
        if (model_is_behind(world, request)) /* a segment of its tenant may be kept */
            continue;
        if (request->n_segments > 0) {
            must(model_suiting(world, request) < request->n_segments,
                 "a request waits, and the segments that it asks for are free");
            continue;
        }
        /* A search that finds many ranges nearly fit may give up, but never where one is larger by a class.
         */
        must(largest[world->sessions[request->session].tenant] <
                 request->least + request->least / 16 + 2 * (uint64_t)HEAP_GRANULE,
             "a request waits, and its tenant has room");
    }
    must((first != NULL) == (head != NULL), "somebody is first in the queue who does not wait");
    if (first == NULL)
        return;
    uint64_t need = lacks(world, first);
    for (unsigned g = 0; g < SIM_SEGMENTS; g++) /* these are not retired for it */
        idle -= world->segments[g].mappers == 0 && model_suits(world, &world->segments[g], first)
                    ? world->segments[g].size
                    : 0;
    bool has_descriptor = model_has_descriptor(world, p), comes = model_descriptor_comes(world, p, first);
    must(!may_grow || need > room + idle || (!has_descriptor && (need <= room || pool_is_retiring_some(world))),
         "the first in the queue waits, and idle segments could be retired for it");
    must(!may_grow || has_descriptor || need > room || need == 0 || !comes || pool_is_retiring_some(world),
         "the first in the queue waits for a descriptor, and an idle segment has one");
    bool lacks_descriptor = need > 0 && !has_descriptor;
    bool stuck = pool->state == POOL_READY && !first->no_reclaim &&
                 (pool->growth.retry_ns > world->now_ns || need > room + idle + pool->retiring_bytes ||
                  (lacks_descriptor && may_grow && !comes));
    must(!stuck || core_next_tick_ns(world->core) <= world->now_ns + RECLAIM_INTERVAL_NS ||
             !somebody_can_be_asked(world, p),
         "the first in the queue waits, and nobody will be asked for what it keeps idle");
    must(pool->reclaim.next_ns <= world->now_ns + RECLAIM_INTERVAL_NS, "sessions are asked too late");
}

/* A page marks a shortage only while there is one. */
static void check_shortages(const struct world *world) {
    for (unsigned p = 0; p < world->n_pools; p++)
        for (unsigned s = 0; s < SIM_SESSIONS; s++)
            must(world->pools[p].pool->reclaim.short_until_ns != 0 || world->sessions[s].page == NULL ||
                     (world->sessions[s].page->shortage.pools >> p & 1) == 0,
                 "a session is told of a shortage that is over");
}

void check_all(struct world *world) {
    struct model_use use;

    check_sums(world);
    check_shortages(world);
    model_see_alone(world);
    model_add_up(world, &use);
    check_quotas(world, &use);
    names_check(world);
    channels_check(world);
    for (unsigned r = 0; r < SIM_REQUESTS; r++)
        world->requests[r].was_held = world->requests[r].used && !world->requests[r].answered &&
                                      model_is_held(world, &world->requests[r]);
    for (unsigned p = 0; p < world->n_pools; p++) {
        world->pools[p].somebody_overdue = !list_is_empty(&world->pools[p].pool->waiters.overdue);
        world->pools[p].was_refused = world->pools[p].pool->growth.retry_ns != 0;
        world->pools[p].was_late = world->pools[p].pool->reclaim.n_asks > ASKS_TRUSTED_MAX;
    }
    for (unsigned p = 0; p < world->n_pools; p++)
        if (world->pools[p].pool->waiters.count > 0 && list_is_empty(&world->core->retiring))
            check_line(world, &use, p);
}
