/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that no other process can serve, as the model sees them: it gives the memory of all other
 * processes back, and looks whether that is enough. The core has to give up those that have no deadline.
 */
#include "tests/sim/world.h"

/* Whether two sessions are of one process, as far as the daemon can know. */
static bool is_own(const struct world *world, unsigned s, unsigned other) {
    const struct session *session = world->sessions[s].session, *its = world->sessions[other].session;
    return s == other || (its != NULL && session->peer.pid > 0 && session->peer.pid == its->peer.pid &&
                          world->sessions[s].tenant == world->sessions[other].tenant);
}

/* The memory that stays when all others have given back theirs. */
struct rest {
    uint64_t pinned, gap, held;
    uint64_t mapped; /* of free segments that stay mapped: sessions cannot be told to close them */
};

/* Whether nothing of the segment is taken, and a session has it mapped that lives and cannot be told to close
 * it. */
static bool stays_mapped(const struct world *world, unsigned g) {
    const struct model_segment *where = &world->segments[g];

    for (unsigned s = 0; s < SIM_SESSIONS; s++) {
        const struct model_session *session = &world->sessions[s];
        if (session->session != NULL && !session->lost && !session->wants && session->seen[g])
            return where->tenant != 0 && where->taken == 0 && !where->closing && !where->retiring;
    }
    return false;
}

static void add_segment(const struct world *world, const struct model_segment *where,
                        const bool *is_own_block, struct rest *rest) {
    uint64_t gap = 0, longest = 0, held = 0;

    for (uint64_t g = 0; g < where->size / world->grain; g++) {
        bool stays = where->owners[g] != 0 && is_own_block[where->owners[g] - 1];
        held += stays ? world->grain : 0;
        gap = stays ? 0 : gap + world->grain;
        longest = gap > longest ? gap : longest;
    }
    rest->held += held;
    rest->pinned += held > 0 ? where->size : 0;
    rest->gap = held > 0 && longest > rest->gap ? longest : rest->gap;
}

static struct rest find_rest(const struct world *world, unsigned s, unsigned p) {
    bool is_own_block[SIM_BLOCKS] = {false};
    struct rest rest = {0};

    for (unsigned l = 0; l < world->leases_end; l++)
        if (world->leases[l].used && !world->leases[l].fenced && is_own(world, s, world->leases[l].session))
            is_own_block[world->leases[l].block] = true;
    for (unsigned g = 0; g < SIM_SEGMENTS; g++) {
        const struct model_segment *where = &world->segments[g];
        if (where->segment == NULL || where->pool != p)
            continue;
        add_segment(world, where, is_own_block, &rest);
        if (!stays_mapped(world, g))
            continue;
        rest.mapped += where->size;
        if (where->tenant == world->sessions[s].tenant + 1 && where->size > rest.gap)
            rest.gap = where->size;
    }
    return rest;
}

/* most: the bytes that the pool may have. */
static bool is_beyond(const struct world *world, const struct model_request *request, uint64_t most) {
    struct rest rest = find_rest(world, request->session, request->pool);
    uint64_t limit =
        model_limit(world, world->sessions[request->session].tenant, QUOTA_POOLS + request->pool, SIM_GROUPS);
    uint64_t stays = rest.pinned + (request->n_segments > 0 ? 0 : rest.mapped);
    uint64_t least = round_up(request->least, HEAP_GRANULE), room = most > stays ? most - stays : 0;

    if (rest.held > limit || least > limit - rest.held)
        return true;
    return request->n_segments > 0 ? least > room
                                   : round_up(request->least, SEGMENT_GRANULE) > room && least > rest.gap;
}

static uint64_t given_up_ns(const struct world *world, const struct model_request *request,
                            uint64_t since_ns) {
    for (unsigned s = 0; s < SIM_SESSIONS; s++) {
        uint64_t gave_ns = world->sessions[s].gave_ns[request->pool];
        if (world->sessions[s].session != NULL && is_own(world, request->session, s) && gave_ns > since_ns)
            since_ns = gave_ns;
    }
    return since_ns + SIM_LONG_WAIT_NS;
}

bool model_may_be_given_up(const struct world *world, const struct model_request *request) {
    const struct model_pool *asked = &world->pools[request->pool];
    const struct pool *pool = asked->pool;
    /* The driver may have been asked again since it refused, in the same call. */
    uint64_t most = asked->asked_while_no_driver && pool->reserved_bytes < pool->limit_bytes
                        ? pool->reserved_bytes
                        : pool->limit_bytes;

    return request->deadline_ns == NS_FOREVER && !request->no_reclaim && is_beyond(world, request, most) &&
           given_up_ns(world, request, request->asked_ns) <= world->now_ns;
}

void model_see_alone(struct world *world) {
    for (unsigned r = 0; r < SIM_REQUESTS; r++) {
        struct model_request *request = &world->requests[r];
        if (!request->used || request->answered || request->deadline_ns != NS_FOREVER || request->no_reclaim)
            continue;
        const struct pool *pool = world->pools[request->pool].pool;
        if (pool->state != POOL_READY || pool->growth.bytes > 0 ||
            !is_beyond(world, request, pool->limit_bytes))
            request->alone_ns = NS_FOREVER;
        else if (request->alone_ns == NS_FOREVER)
            request->alone_ns = world->now_ns;
    }
}

void model_check_alone(struct world *world) {
    /* The last look may have been just before it was alone, and looks are apart. */
    const uint64_t late_ns = SIM_LONG_WAIT_NS + 2 * LONG_WAIT_LOOK_NS;

    for (unsigned r = 0; r < SIM_REQUESTS; r++) {
        const struct model_request *request = &world->requests[r];
        must(!request->used || request->answered || request->alone_ns == NS_FOREVER ||
                 world->now_ns < given_up_ns(world, request, request->alone_ns) + late_ns,
             "a request waits for ever that no other process can serve");
    }
}
