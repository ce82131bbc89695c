/* SPDX-License-Identifier: Apache-2.0 */
#include "core_model.h"

uint64_t random_state;

/* --- looking things up */

static unsigned find_segment(struct model *model, uint64_t id) {
    for (unsigned i = 0; i < MODEL_SEGMENTS; i++)
        if (model->segments[i].segment != NULL && model->segments[i].id == id)
            return i;
    fail_msg("seed %llu, step %u: nobody made segment %llu", (unsigned long long)model->seed, model->step,
             (unsigned long long)id);
    return 0;
}

/* A random session that is alive, or MODEL_SESSIONS. */
unsigned pick_session(struct model *model, bool lost) {
    unsigned start = (unsigned)random_below(MODEL_SESSIONS);
    for (unsigned i = 0; i < MODEL_SESSIONS; i++) {
        unsigned s = (start + i) % MODEL_SESSIONS;
        if (model->sessions[s].session != NULL && model->sessions[s].lost == lost)
            return s;
    }
    return MODEL_SESSIONS;
}

/* A random lease of a session that is alive, or MODEL_LEASES. */
unsigned pick_lease(struct model *model) {
    for (unsigned tries = 0; tries < 4; tries++) {
        unsigned s = pick_session(model, false);
        if (s == MODEL_SESSIONS || model->sessions[s].leases == model->sessions[s].fenced)
            continue;
        uint64_t nth = random_below(model->sessions[s].leases - model->sessions[s].fenced);
        for (unsigned l = 0; l < MODEL_LEASES; l++)
            if (model->leases[l].used && !model->leases[l].fenced && model->leases[l].session == s &&
                nth-- == 0)
                return l;
    }
    return MODEL_LEASES;
}

/* --- what happens to blocks and leases */

void model_set_owner(struct model *model, unsigned segment, uint64_t offset, uint64_t size, unsigned from,
                     unsigned to) {
    struct model_segment *where = &model->segments[segment];
    must(offset % GRANULE == 0 && size % GRANULE == 0);
    must(offset <= where->size && size <= where->size - offset);
    for (uint64_t g = offset / GRANULE; g < (offset + size) / GRANULE; g++) {
        must(where->owners[g] == from);
        where->owners[g] = (uint16_t)to;
    }
    where->taken += to != 0 ? size : 0;
    where->taken -= from != 0 ? size : 0;
}

void model_add_lease(struct model *model, unsigned session, unsigned block, const struct lease *lease) {
    unsigned slot = MODEL_LEASES;
    model_see_arrivals(model);
    for (unsigned l = 0; l < MODEL_LEASES; l++) {
        must(!model->leases[l].used || model->leases[l].id != lease->id);
        if (!model->leases[l].used && slot == MODEL_LEASES)
            slot = l;
    }
    must(slot < MODEL_LEASES);
    must(lease->generation > model->last_generation); /* never one that was there before */
    model->last_generation = lease->generation;
    model->leases[slot] = (struct model_lease){
        .id = lease->id, .generation = lease->generation, .session = session, .block = block, .used = true};
    model->sessions[session].leases++;
    model->blocks[block].live++;
}

/* The session is told of a lease: the segment is described exactly the first time. */
struct proto_lease model_describe(struct model *model, unsigned session, struct lease *lease) {
    struct proto_lease wire;
    bool described;

    core_describe_lease(lease, &wire, &described);
    unsigned segment = find_segment(model, wire.segment);
    must(described == !model->sessions[session].seen[segment]);
    must(wire.description.id == (described ? wire.segment : 0));
    must(wire.description.size_bytes == (described ? model->segments[segment].size : 0));
    if (described) {
        model->sessions[session].seen[segment] = true;
        model->segments[segment].mappers++;
    }
    return wire;
}

/* Notes a block in a place of its own, which is returned. Its granules and leases are the caller's to note.
 */
unsigned model_new_block(struct model *model, const struct model_block *block) {
    unsigned b = 0;
    while (b < MODEL_BLOCKS && model->blocks[b].live + model->blocks[b].fenced + model->blocks[b].lost > 0)
        b++;
    must(b < MODEL_BLOCKS);
    model->blocks[b] = *block;
    return b;
}

static void model_granted(struct model *model, const struct model_request *request, struct lease *lease) {
    unsigned s = request->session;
    const struct proto_lease wire = model_describe(model, s, lease);
    unsigned segment = find_segment(model, wire.segment);
    struct model_segment *where = &model->segments[segment];

    must(wire.pool == model->pools[request->pool].pool->id && where->pool == request->pool);
    must(wire.size_bytes == request->size && wire.capacity_bytes == round_up(request->size, GRANULE));
    must(!where->retiring);
    must(where->tenant == 0 || where->tenant == model->sessions[s].tenant + 1); /* one tenant, for good */
    where->tenant = model->sessions[s].tenant + 1;
    unsigned b = model_new_block(model, &(struct model_block){.segment = segment,
                                                              .offset = wire.offset_bytes,
                                                              .size = wire.size_bytes,
                                                              .capacity = wire.capacity_bytes,
                                                              .held = wire.capacity_bytes});
    model_set_owner(model, segment, wire.offset_bytes, wire.capacity_bytes, 0, b + 1); /* nobody had it */
    model_add_lease(model, s, b, lease);
    model->grants++;
}

static void model_block_empty(struct model *model, unsigned b) {
    struct model_block *block = &model->blocks[b];
    struct model_segment *where = &model->segments[block->segment];
    for (uint64_t g = block->offset / GRANULE; g < (block->offset + block->capacity) / GRANULE; g++)
        if (where->owners[g] == b + 1) {
            where->owners[g] = 0;
            where->taken -= GRANULE;
        }
    block->held = 0;
}

void model_remove_lease(struct model *model, unsigned l) {
    struct model_lease *lease = &model->leases[l];
    struct model_block *block = &model->blocks[lease->block];

    model->old_names[random_below(MODEL_OLD_NAMES)] = (struct proto_lease_name){lease->id, lease->generation};
    if (model->sessions[lease->session].lost)
        block->lost--;
    else if (lease->fenced)
        block->fenced--;
    else
        block->live--;
    model->sessions[lease->session].fenced -= lease->fenced;
    model->sessions[lease->session].leases--;
    lease->used = false;
    if (block->live + block->fenced + block->lost == 0)
        model_block_empty(model, lease->block);
}

void model_remove_session(struct model *model, unsigned s) {
    for (unsigned l = 0; l < MODEL_LEASES; l++)
        if (model->leases[l].used && model->leases[l].session == s)
            model_remove_lease(model, l);
    for (unsigned r = 0; r < MODEL_REQUESTS; r++)
        if (model->requests[r].session == s)
            model->requests[r].used = false;
    for (unsigned g = 0; g < MODEL_SEGMENTS; g++)
        if (model->sessions[s].seen[g])
            model->segments[g].mappers--;
    must(model->sessions[s].leases == 0 && model->sessions[s].fenced == 0);
    memset(&model->sessions[s], 0, sizeof model->sessions[s]);
}

/* --- what comes out of the core */

void drain_answers(struct model *model) {
    struct answer answer;

    model_see_arrivals(model);
    while (core_next_answer(model->core, &answer)) {
        unsigned r = 0;
        while (r < MODEL_REQUESTS && !(model->requests[r].used && model->requests[r].id == answer.request))
            r++;
        must(r < MODEL_REQUESTS); /* a request is answered once */
        struct model_request *request = &model->requests[r];
        const struct pool *pool = model->pools[request->pool].pool;
        must(model->sessions[request->session].session == answer.session);
        must(!model->sessions[request->session].lost);
        request->used = false;
        if (answer.lease != NULL) {
            model_granted(model, request, answer.lease);
            continue;
        }
        model->refusals++;
        switch (answer.failure.error) {
        case PROTO_E_EXHAUSTED:
            must(request->deadline_ns <= model->now_ns);
            must(!model_overlooked(model, request->session, request->pool));
            break;
        case PROTO_E_TOO_LARGE:
            must(request->size > pool->limit_bytes);
            break;
        case PROTO_E_DRIVER:
            must(model->pools[request->pool].asked_while_no_driver &&
                 pool->leased_bytes + pool->fenced_bytes == 0);
            break;
        case PROTO_E_LIMIT:
            must(model->sessions[request->session].leases == model->core->session_leases_limit);
            must(model_arrived(model, request->session) == 0);
            break;
        default:
            fail_msg("seed %llu, step %u: refused with %u", (unsigned long long)model->seed, model->step,
                     (unsigned)answer.failure.error);
        }
    }
}

/* Whether the session holds something of the pool. */
static bool model_holds(const struct model *model, unsigned s, unsigned p) {
    for (unsigned l = 0; l < MODEL_LEASES; l++)
        if (model->leases[l].used && !model->leases[l].fenced && model->leases[l].session == s &&
            model->segments[model->blocks[model->leases[l].block].segment].pool == p)
            return true;
    return false;
}

/* The session is asked for what it keeps idle: of a pool that did so just now. */
static void model_reclaimed(struct model *model, const struct session *session) {
    unsigned s = 0, pools = 0;
    while (s < MODEL_SESSIONS && model->sessions[s].session != session)
        s++;
    must(s < MODEL_SESSIONS && model->sessions[s].wants && !model->sessions[s].lost);
    for (unsigned p = 0; p < MODEL_POOLS; p++)
        pools += model->pools[p].pool->reclaim_ns == model->now_ns + RECLAIM_INTERVAL_NS &&
                 model_holds(model, s, p);
    must(pools > 0);
    model->reclaims++;
}

void drain_decisions(struct model *model) {
    struct session *session;
    struct pool *pool;
    struct segment *segment;
    uint64_t size;

    while (core_next_growth(model->core, &pool, &size)) {
        unsigned p = pool->id - 1;
        must(model->pools[p].growing == 0 && pool->state == POOL_READY);
        must(size > 0 && size % SEGMENT_GRANULE == 0 && pool->reserved_bytes + size <= pool->limit_bytes);
        must(!pool->grow_ahead || (pool->leased_bytes > 0 && pool->low_water_bytes > 0));
        model->pools[p].growing = size;
        model->aheads += pool->grow_ahead;
    }
    while (core_next_retirement(model->core, &segment)) {
        struct model_segment *where = &model->segments[find_segment(model, segment->id)];
        must(where->segment == segment && !where->retiring);
        must(where->taken == 0 && where->mappers == 0); /* nobody has it in any sense */
        where->retiring = true;
        model->retirements++;
    }
    while (core_next_reclaim(model->core, &session))
        model_reclaimed(model, session);
}

void finish_growth(struct model *model, unsigned p) {
    uint64_t size = model->pools[p].growing;
    unsigned g = 0;

    model->pools[p].growing = 0;
    if (one_in(6)) {
        model->pools[p].asked_while_no_driver = true;
        core_growth_failed(model->pools[p].pool, "cudaErrorMemoryAllocation", model->now_ns);
        return;
    }
    while (g < MODEL_SEGMENTS && model->segments[g].segment != NULL)
        g++;
    must(g < MODEL_SEGMENTS);
    struct model_segment *where = &model->segments[g];
    *where =
        (struct model_segment){.size = size, .pool = p, .owners = calloc(size / GRANULE, sizeof(uint16_t))};
    assert_non_null(where->owners);
    /* The core may lend of the segment before this returns: but the answers are taken later. */
    assert_int_equal(core_segment_made(model->pools[p].pool, size, where, model->now_ns), 0);
    for (size_t slot = 0; slot < model->core->segment_slots; slot++)
        if (model->core->segments[slot] != NULL && model->core->segments[slot]->backing == where &&
            model->core->segments[slot]->id > where->id)
            where->segment = model->core->segments[slot];
    must(where->segment != NULL && where->segment->size_bytes == size);
    where->id = where->segment->id;
}

void finish_retirement(struct model *model, unsigned g) {
    struct segment *segment = model->segments[g].segment;
    free(model->segments[g].owners);
    memset(&model->segments[g], 0, sizeof model->segments[g]);
    core_segment_retired(segment, model->now_ns);
}

/* --- what must hold between steps */

void check_sums(struct model *model) {
    uint64_t leased[MODEL_POOLS] = {0}, fenced[MODEL_POOLS] = {0}, quarantined[MODEL_POOLS] = {0},
             reserved[MODEL_POOLS] = {0};
    uint64_t retiring[MODEL_POOLS] = {0}, waiters[MODEL_POOLS] = {0};

    for (unsigned b = 0; b < MODEL_BLOCKS; b++) {
        const struct model_block *block = &model->blocks[b];
        if (block->live > 0)
            leased[model->segments[block->segment].pool] += block->held;
        else if (block->lost > 0)
            quarantined[model->segments[block->segment].pool] += block->held;
        else if (block->fenced > 0)
            fenced[model->segments[block->segment].pool] += block->held;
    }
    for (unsigned g = 0; g < MODEL_SEGMENTS; g++)
        if (model->segments[g].segment != NULL) {
            reserved[model->segments[g].pool] += model->segments[g].size;
            retiring[model->segments[g].pool] += model->segments[g].retiring ? model->segments[g].size : 0;
        }
    for (unsigned r = 0; r < MODEL_REQUESTS; r++)
        waiters[model->requests[r].pool] += model->requests[r].used;
    for (unsigned p = 0; p < MODEL_POOLS; p++) {
        const struct pool *pool = model->pools[p].pool;
        must(pool->leased_bytes == leased[p] && pool->quarantined_bytes == quarantined[p]);
        must(pool->fenced_bytes == fenced[p]);
        must(fenced[p] == 0 || waiters[p] == 0 ||
             core_next_tick_ns(model->core) <= model->now_ns + FENCE_INTERVAL_NS);
        must(pool->reserved_bytes == reserved[p] && pool->retiring_bytes == retiring[p]);
        must(pool->n_waiters == waiters[p] && pool->growing_bytes == model->pools[p].growing);
    }
}

/* Nobody waits for what could be done now: no free segment that fits, no growth that would help, no idle
 * segments that are enough for the first in line. And where nothing of that helps the first, those who hold
 * the memory and want to be asked will be asked soon. */
void check_progress(struct model *model) {
    for (unsigned p = 0; p < MODEL_POOLS; p++) {
        const struct pool *pool = model->pools[p].pool;
        uint64_t room =
            pool->limit_bytes > pool->reserved_bytes ? pool->limit_bytes - pool->reserved_bytes : 0;
        uint64_t idle = 0, largest_unassigned = 0, first_id = UINT64_MAX, first_size = 0;
        for (unsigned g = 0; g < MODEL_SEGMENTS; g++) {
            const struct model_segment *segment = &model->segments[g];
            if (segment->segment == NULL || segment->pool != p || segment->retiring)
                continue;
            if (segment->taken == 0 && segment->mappers == 0)
                idle += segment->size;
            if (segment->tenant == 0 && segment->size > largest_unassigned)
                largest_unassigned = segment->size;
        }
        bool may_grow = pool->state == POOL_READY && pool->growing_bytes == 0 && pool->retiring_bytes == 0 &&
                        pool->grow_retry_ns <= model->now_ns;
        for (unsigned r = 0; r < MODEL_REQUESTS; r++) {
            const struct model_request *request = &model->requests[r];
            if (!request->used || request->pool != p)
                continue;
            must(request->size > largest_unassigned && request->size <= pool->limit_bytes);
            must(!may_grow || round_up(request->size, SEGMENT_GRANULE) > room);
            if (request->id < first_id) {
                first_id = request->id;
                first_size = request->size;
            }
        }
        must(!may_grow || first_id == UINT64_MAX || round_up(first_size, SEGMENT_GRANULE) > room + idle);

        bool stuck = pool->state == POOL_READY && first_id != UINT64_MAX &&
                     (pool->grow_retry_ns > model->now_ns ||
                      round_up(first_size, SEGMENT_GRANULE) > room + idle + pool->retiring_bytes);
        bool holders = false;
        for (unsigned s = 0; s < MODEL_SESSIONS && stuck && !holders; s++)
            holders = model->sessions[s].session != NULL && model->sessions[s].wants &&
                      !model->sessions[s].lost && model_holds(model, s, p);
        must(!holders || core_next_tick_ns(model->core) <= model->now_ns + RECLAIM_INTERVAL_NS);
        must(pool->reclaim_ns <= model->now_ns + RECLAIM_INTERVAL_NS);
    }
}

/* The largest piece of a segment that nobody has. */
static uint64_t largest_gap(const struct model_segment *segment) {
    uint64_t largest = 0, gap = 0;
    for (uint64_t g = 0; g < segment->size / GRANULE; g++) {
        gap = segment->owners[g] == 0 ? gap + GRANULE : 0;
        largest = gap > largest ? gap : largest;
    }
    return largest;
}

/* Nobody waits for what lies free in segments of the own tenant. A search that finds many ranges nearly fit
 * may give up, but never where one is larger by a class. */
void check_line(struct model *model) {
    uint64_t largest[MODEL_POOLS][MODEL_TENANTS] = {{0}};

    for (unsigned g = 0; g < MODEL_SEGMENTS; g++) {
        const struct model_segment *segment = &model->segments[g];
        if (segment->segment == NULL || segment->retiring || segment->tenant == 0)
            continue;
        uint64_t gap = largest_gap(segment), *known = &largest[segment->pool][segment->tenant - 1];
        *known = gap > *known ? gap : *known;
    }
    for (unsigned r = 0; r < MODEL_REQUESTS; r++) {
        const struct model_request *request = &model->requests[r];
        if (request->used && !model->pools[request->pool].pool->returned)
            must(largest[request->pool][model->sessions[request->session].tenant] <
                 request->size + request->size / 16 + 2 * (uint64_t)GRANULE);
    }
}
