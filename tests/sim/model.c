/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference model. A block is what one acquire got, its ranges are the grains that name it as their
 * owner; a lease is one session's share in it. Nothing here follows a pointer of the core but to take notice
 * of what the core did by itself (model_see).
 */
#include <string.h>

#include "daemon/core/tenant.h"
#include "tests/sim/world.h"

/* --- looking things up --- */

unsigned find_segment(struct world *world, uint64_t id) {
    unsigned g = 0;
    while (g < SIM_SEGMENTS && !(world->segments[g].segment != NULL && world->segments[g].id == id))
        g++;
    must(g < SIM_SEGMENTS, "a segment is named that nobody made, or that is gone");
    return g;
}

unsigned pick_session(struct world *world, bool lost) {
    unsigned start = (unsigned)random_below(world, SIM_SESSIONS);
    for (unsigned i = 0; i < SIM_SESSIONS; i++) {
        unsigned s = (start + i) % SIM_SESSIONS;
        if (world->sessions[s].session != NULL && world->sessions[s].lost == lost)
            return s;
    }
    return SIM_SESSIONS;
}

static bool can_be_named(const struct model_lease *lease) {
    return lease->used && !lease->fenced && !lease->unanswered;
}

unsigned pick_lease(struct world *world) {
    for (unsigned tries = 0; tries < 4; tries++) {
        unsigned s = pick_session(world, false);
        if (s == SIM_SESSIONS || world->sessions[s].leases == world->sessions[s].fenced)
            continue;
        unsigned start = (unsigned)random_below(world, world->leases_end);
        for (unsigned i = 0; i < world->leases_end; i++) {
            unsigned l = start + i < world->leases_end ? start + i : start + i - world->leases_end;
            if (world->leases[l].session == s && can_be_named(&world->leases[l]))
                return l;
        }
    }
    return SIM_LEASES;
}

struct proto_token token_make(uint64_t number) {
    struct proto_token token = {{0}};
    uint64_t mixed = number * UINT64_C(0x9e3779b97f4a7c15); /* neighbours are to lie apart in the tree */
    memcpy(token.bytes, &mixed, sizeof mixed);
    memcpy(token.bytes + 8, &number, sizeof number);
    return token;
}

/* --- blocks and leases --- */

/* A process that the core is done with may not write there any more when somebody else gets it. */
static void model_check_cold(struct world *world, const struct model_segment *where, uint64_t grain) {
    unsigned process = where->hot[grain];
    if (process == 0)
        return;
    must(kernel_work_is_over(&world->kernel, process - 1, world->now_ns),
         "memory is used again while the GPU work of its last owner's process goes on");
}

void model_set_owner(struct world *world, unsigned segment, uint64_t offset, uint64_t size, unsigned from,
                     unsigned to) {
    struct model_segment *where = &world->segments[segment];
    must(offset % world->grain == 0 && size % world->grain == 0, "a block is no number of grains");
    must(offset <= where->size && size <= where->size - offset, "a block goes beyond its segment");
    for (uint64_t g = offset / world->grain; g < (offset + size) / world->grain; g++) {
        must(where->owners[g] == from, "a range is lent twice");
        where->owners[g] = (uint16_t)to;
        if (from == 0)
            model_check_cold(world, where, g);
    }
    where->taken += to != 0 ? size : 0;
    where->taken -= from != 0 ? size : 0;
}

unsigned model_parts(const struct model_block *block, struct model_part ret_parts[SIM_PARTS]) {
    if (block->n_parts == 0) {
        ret_parts[0] = (struct model_part){block->segment, block->offset, block->capacity};
        return 1;
    }
    memcpy(ret_parts, block->parts, block->n_parts * sizeof *ret_parts);
    return block->n_parts;
}

bool model_is_used(const struct model_block *block) {
    return block->live + block->fenced + block->lost + block->parcels > 0;
}

unsigned model_new_block(struct world *world, const struct model_block *block) {
    unsigned b = 0;
    while (b < SIM_BLOCKS && model_is_used(&world->blocks[b]))
        b++;
    must(b < SIM_BLOCKS, "the model has no room for a block");
    world->blocks[b] = *block;
    if (b >= world->blocks_end)
        world->blocks_end = b + 1;
    return b;
}

unsigned model_add_lease(struct world *world, unsigned session, unsigned block, const struct lease *lease) {
    unsigned slot = world->leases_end;
    for (unsigned l = 0; l < world->leases_end; l++) {
        must(!world->leases[l].used || world->leases[l].id != lease->id, "two leases have one id");
        if (!world->leases[l].used && slot == world->leases_end)
            slot = l;
    }
    must(slot < SIM_LEASES, "the model has no room for a lease");
    must(lease->generation > world->last_generation, "a generation is used again");
    world->last_generation = lease->generation;
    world->leases[slot] = (struct model_lease){
        .id = lease->id, .generation = lease->generation, .session = session, .block = block, .used = true};
    world->sessions[session].leases++;
    world->blocks[block].live++;
    if (slot == world->leases_end)
        world->leases_end++;
    return slot;
}

void model_end_block(struct world *world, unsigned b) {
    struct model_block *block = &world->blocks[b];
    struct model_part parts[SIM_PARTS];
    unsigned n_parts = model_parts(block, parts);

    if (model_is_used(block))
        return;

    for (unsigned i = 0; i < n_parts; i++) {
        struct model_segment *where = &world->segments[parts[i].segment];
        for (uint64_t g = parts[i].offset / world->grain;
             g < (parts[i].offset + parts[i].size) / world->grain; g++)
            if (where->owners[g] == b + 1) {
                where->owners[g] = 0;
                where->taken -= world->grain;
            }
    }
    block->held = 0;
}

/* The core let go of what a lost session had: from now on the kernel has to be of the same opinion. */
static void model_mark_hot(struct world *world, const struct model_lease *lease) {
    struct model_part parts[SIM_PARTS];
    unsigned n_parts = model_parts(&world->blocks[lease->block], parts);
    unsigned process = world->sessions[lease->session].process;

    if (kernel_work_is_over(&world->kernel, process, world->now_ns))
        return;
    for (unsigned i = 0; i < n_parts; i++) {
        struct model_segment *where = &world->segments[parts[i].segment];
        for (uint64_t g = parts[i].offset / world->grain;
             g < (parts[i].offset + parts[i].size) / world->grain; g++)
            if (where->owners[g] == lease->block + 1)
                where->hot[g] = (uint8_t)(process + 1);
    }
}

void model_remove_lease(struct world *world, unsigned l) {
    struct model_lease *lease = &world->leases[l];
    struct model_block *block = &world->blocks[lease->block];
    struct model_session *session = &world->sessions[lease->session];

    world->old_names[random_below(world, SIM_OLD_NAMES)] =
        (struct proto_lease_name){lease->id, lease->generation};
    if (session->lost)
        block->lost--;
    else if (lease->fenced)
        block->fenced--;
    else
        block->live--;
    if (session->lost && !session->forced)
        model_mark_hot(world, lease);
    session->fenced -= lease->fenced;
    session->leases--;
    lease->used = false;
    model_end_block(world, lease->block);
    while (world->leases_end > 0 && !world->leases[world->leases_end - 1].used)
        world->leases_end--;
}

/* The session has the segment mapped from now on. described: the core had it described. */
static void model_told_of(struct world *world, unsigned session, const struct proto_lease *wire,
                          bool described) {
    struct model_session *to = &world->sessions[session];
    unsigned segment = find_segment(world, wire->segment);
    struct model_segment *where = &world->segments[segment];

    must(where->tenant == to->tenant + 1, "a session is told of another tenant's segment");
    must(!where->retiring, "a session is told of a segment that is on its way back to the driver");
    must(described == !to->seen[segment], "a segment is described twice, or not at all");
    must(wire->description.id == (described ? wire->segment : 0), "another segment is described");
    must(wire->description.size_bytes == (described ? where->size : 0), "a description has another size");
    if (!described)
        return;
    to->seen[segment] = true;
    if (to->segments++ == 0)
        reaper_mapped(world, session);
    where->mappers++;
    world->kernel.processes[to->process].mapped = true;
}

struct proto_lease model_describe(struct world *world, unsigned session, struct lease *lease) {
    struct proto_lease wire;
    bool described;

    core_describe_lease(lease, &wire, &described);
    model_told_of(world, session, &wire, described);
    return wire;
}

void model_describe_part(struct world *world, unsigned session, unsigned l, unsigned part) {
    const struct model_block *block = &world->blocks[world->leases[l].block];
    const struct proto_part_name name = {world->leases[l].id, world->leases[l].generation, part, 0};
    struct segment *segment;
    struct proto_lease wire;
    bool described;

    int r = core_describe_part(world->sessions[session].session, &name, &wire, &segment, &described);
    must(r == (part < block->n_parts ? 0 : PROTO_E_INVALID), "a part is described that is not there");
    if (r != 0)
        return;
    must(wire.segment == world->segments[block->parts[part].segment].id && segment->id == wire.segment &&
             wire.offset_bytes == block->parts[part].offset &&
             wire.capacity_bytes == block->parts[part].size && wire.parts == 0,
         "a part is described as another");
    model_told_of(world, session, &wire, described);
    world->tally->described += described;
}

/* --- sessions --- */

void model_unmap(struct world *world, unsigned s, unsigned g) {
    struct model_segment *where = &world->segments[g];

    world->sessions[s].told[g] = world->sessions[s].seen[g] = false;
    world->sessions[s].segments--;
    where->mappers--;
    where->closing = where->closing && where->mappers > 0;
    where->kept = where->kept && where->closing;
}

void model_lose_session(struct world *world, unsigned s) {
    struct model_session *session = &world->sessions[s];
    for (unsigned l = 0; l < world->leases_end; l++) {
        struct model_lease *lease = &world->leases[l];
        if (!lease->used || lease->session != s)
            continue;
        struct model_block *block = &world->blocks[lease->block];
        if (lease->fenced) /* its fences mean nothing any more */
            block->fenced--;
        else
            block->live--;
        lease->fenced = lease->unanswered = false;
        block->lost++;
    }
    for (unsigned r = 0; r < SIM_REQUESTS; r++)
        if (world->requests[r].used && world->requests[r].session == s)
            world->requests[r].used = false;
    session->fenced = 0;
    session->lost = true;
}

void model_remove_session(struct world *world, unsigned s) {
    struct model_session *session = &world->sessions[s];
    for (unsigned l = world->leases_end; l-- > 0;)
        if (world->leases[l].used && world->leases[l].session == s)
            model_remove_lease(world, l);
    for (unsigned r = 0; r < SIM_REQUESTS; r++)
        if (world->requests[r].used && world->requests[r].session == s)
            world->requests[r].used = false;
    for (unsigned g = 0; g < SIM_SEGMENTS && session->segments > 0; g++)
        if (session->seen[g])
            model_unmap(world, s, g);
    must(session->leases == 0 && session->fenced == 0, "the model has lost count of a session's leases");
    unsigned tenant = session->tenant;
    world->kernel.processes[session->process].sessions--;
    memset(session, 0, sizeof *session);
    model_leave_scope(world, tenant);
}

/* --- fences --- */

bool model_is_ready(const struct world *world, unsigned s, uint32_t word, uint64_t value) {
    return (int64_t)(world->sessions[s].page->fences[word] - value) >= 0;
}

void model_fence_lease(struct world *world, unsigned l, uint32_t word, uint64_t value) {
    struct model_lease *lease = &world->leases[l];
    world->old_names[random_below(world, SIM_OLD_NAMES)] =
        (struct proto_lease_name){lease->id, lease->generation};
    lease->fenced = true;
    lease->word = word;
    lease->value = value;
    lease->order = ++world->next_order;
    world->blocks[lease->block].live--;
    world->blocks[lease->block].fenced++;
    world->sessions[lease->session].fenced++;
    world->tally->fences++;
}

static unsigned pool_of(const struct world *world, const struct model_lease *lease) {
    return world->segments[world->blocks[lease->block].segment].pool;
}

/* Whether the core lets go of the lease when it looks: it is ready, and so is what was released before it
 * behind the same word. */
static bool has_arrived(const struct world *world, const struct model_lease *lease) {
    if (!lease->used || !lease->fenced || !model_is_ready(world, lease->session, lease->word, lease->value))
        return false;
    for (unsigned l = 0; l < world->leases_end; l++) {
        const struct model_lease *other = &world->leases[l];
        if (other->used && other->fenced && other->session == lease->session && other->word == lease->word &&
            other->order < lease->order && pool_of(world, other) == pool_of(world, lease) &&
            !model_is_ready(world, other->session, other->word, other->value))
            return false;
    }
    return !model_waits_on(world, (unsigned)(lease - world->leases));
}

bool model_has_arrived(const struct world *world, unsigned l) {
    return has_arrived(world, &world->leases[l]);
}

unsigned model_arrived(const struct world *world, unsigned s) {
    unsigned arrived = 0;
    for (unsigned l = 0; l < world->leases_end && world->sessions[s].fenced > 0; l++)
        arrived += world->leases[l].session == s && has_arrived(world, &world->leases[l]);
    return arrived;
}

bool model_overlooked(const struct world *world, unsigned s, unsigned p) {
    for (unsigned l = 0; l < world->leases_end; l++) {
        const struct model_lease *lease = &world->leases[l];
        if (lease->used && lease->fenced &&
            world->sessions[lease->session].tenant == world->sessions[s].tenant &&
            pool_of(world, lease) == p &&
            world->blocks[lease->block].live + world->blocks[lease->block].lost +
                    world->blocks[lease->block].parcels ==
                0 &&
            has_arrived(world, lease))
            return true;
    }
    return false;
}

/* --- what the core did by itself --- */

/* A lease is what was asked for, and of memory that the session may have. Returns its segment. */
static unsigned check_granted(struct world *world, const struct model_request *request,
                              const struct lease *lease) {
    const struct model_session *session = &world->sessions[request->session];
    const struct block *got = lease->block;
    unsigned g = find_segment(world, got->segment->id);
    struct model_segment *where = &world->segments[g];

    must(where->pool == request->pool, "a block is of another pool than was asked");
    if (request->n_segments > 0)
        must(where->size == request->segment_size && got->offset_bytes == 0 &&
                 got->size_bytes == where->size && got->capacity_bytes == where->size,
             "a block is no whole segment of the size that was asked");
    else
        must(got->size_bytes >= request->least && got->size_bytes <= request->size &&
                 got->capacity_bytes == round_up(got->size_bytes, HEAP_GRANULE),
             "a block has another size than was asked");
    must(got->capacity_bytes % world->grain == 0, "a request was no number of grains");
    must(!pool_is_closed(world->pools[request->pool].pool), "a pool lends whose device is lost");
    must(model_may_use(world, request->session, request->pool),
         "a session gets of a pool that it may not use");
    must(!where->closing, "a block is cut from a segment that its mapper was told to close");
    must(!where->retiring, "a block is cut from a segment that is on its way back to the driver");
    must(where->tenant == 0 || where->tenant == session->tenant + 1,
         "a block is cut from another tenant's segment");
    return g;
}

static void note_granted(struct world *world, const struct model_request *request,
                         const struct lease *lease) {
    const struct block *got = lease->block;
    unsigned g = find_segment(world, got->segment->id), tenant = world->sessions[request->session].tenant;

    if (world->segments[g].tenant == 0 && world->pools[request->pool].takes_descriptors)
        must(model_segments(world, tenant) < model_limit(world, tenant, QUOTA_SEGMENTS, SIM_GROUPS),
             "a tenant gets another segment than its quota allows");
    world->segments[g].tenant = tenant + 1;
    unsigned b = model_new_block(world, &(struct model_block){.segment = g,
                                                              .offset = got->offset_bytes,
                                                              .size = got->size_bytes,
                                                              .capacity = got->capacity_bytes,
                                                              .held = got->capacity_bytes});
    model_set_owner(world, g, got->offset_bytes, got->capacity_bytes, 0, b + 1);
    world->leases[model_add_lease(world, request->session, b, lease)].unanswered = true;
    world->tally->grants++;
}

static void model_granted(struct world *world, struct model_request *request,
                          const struct request *answered) {
    const struct lease *lease = answered->lease;
    unsigned segments[SIM_SEGMENTS], n = request->n_segments > 0 ? request->n_segments : 1;

    must(answered->n_segments == request->n_segments && n <= SIM_SEGMENTS,
         "another number of segments is granted than was asked");
    for (unsigned i = 0; i < n; i++, lease = session_next_lease(lease)) {
        must(lease != NULL && lease->unanswered, "another number of segments is granted than was asked");
        segments[i] = check_granted(world, request, lease);
    }
    model_take_turn(world, request, answered, segments, n);
    lease = answered->lease;
    for (unsigned i = 0; i < n; i++, lease = session_next_lease(lease))
        note_granted(world, request, lease);
    world->tally->segments += request->n_segments > 1;
}

/* Whether a refusal for a quota's sake is true. */
static void model_refused_for_quota(struct world *world, const struct model_request *request, unsigned item) {
    unsigned tenant = world->sessions[request->session].tenant;
    uint64_t limit = model_limit(world, tenant, item, SIM_GROUPS);
    struct model_use use;

    world->tally->quota_refusals++;
    model_add_up(world, &use);
    bool of_leases = item == QUOTA_LEASES || item == QUOTA_RANGES;
    uint64_t wanted = of_leases && request->n_segments > 0 ? request->n_segments : 1;
    if (item == QUOTA_SEGMENTS)
        must((request->n_segments > 0 ? request->n_segments : 1) > limit,
             "a request is refused for a quota of segments that it could wait for");
    else if (item < QUOTA_POOLS)
        must((of_leases || item == QUOTA_WAITING) && use.used[tenant][item] + wanted > limit,
             "a request is refused for a quota that is not used up");
    else
        must(item == QUOTA_POOLS + request->pool && round_up(request->least, HEAP_GRANULE) > limit,
             "a request is refused for a quota within which it is");
}

bool model_has_mapped(const struct world *world, unsigned s, unsigned p) {
    for (unsigned g = 0; g < SIM_SEGMENTS; g++)
        if (world->segments[g].segment != NULL && world->segments[g].pool == p && world->sessions[s].seen[g])
            return true;
    return false;
}

/* Whether a process was told to close a segment of the pool, which comes back then. */
static bool is_to_be_closed(const struct world *world, unsigned p) {
    bool any = false;
    for (unsigned g = 0; g < SIM_SEGMENTS; g++)
        any = any || (world->segments[g].segment != NULL && world->segments[g].pool == p &&
                      world->segments[g].closing);
    return any;
}

/* Whether a segment is under way to the waiting requests, or to the driver to make room for one. Where
 * descriptors are short, it may go to the driver for another pool. */
static bool pool_is_growing(const struct pool *pool) {
    bool retires =
        pool->retiring_bytes > 0 && !(pool->takes_descriptors && pool->core->segments_limit != UINT32_MAX);
    return pool->state == POOL_STARTING || pool->growth.bytes > 0 || retires;
}

/* Whether the refusal is true. */
static void model_refused(struct world *world, const struct model_request *request,
                          const struct request *answered) {
    const struct model_pool *asked = &world->pools[request->pool];
    const struct pool *pool = asked->pool;

    world->tally->refusals++;
    switch (answered->error) {
    case PROTO_E_EXHAUSTED:
        if (request->deadline_ns > world->now_ns && !request->no_reclaim) {
            if (answered->is_answered) {
                must(request->idle_only, "a request that waits for memory in use ends with the answers");
                must(answered->quota_item >= 0 || model_was_answered(world, request),
                     "a request for idle memory ends, and a session has not answered");
                must(!is_to_be_closed(world, request->pool),
                     "a request for idle memory ends while segments are being closed");
                world->tally->answered_early++;
                break;
            }
            must(model_may_be_given_up(world, request), "a request is given up before its deadline");
            world->tally->alone++;
            break;
        }
        /* An overdue request that leaves lets the pool grow for others. */
        must(request->deadline_ns <= world->now_ns || answered->quota_item >= 0 || !pool_is_growing(pool) ||
                 world->pools[request->pool].somebody_overdue,
             "a request that waits for growth is given up while the pool grows");
        must(!model_overlooked(world, request->session, request->pool),
             "a request is refused although fences of its tenant are ready");
        world->tally->deadlines++;
        world->tally->held += answered->quota_item >= 0;
        break;
    case PROTO_E_CANCELLED:
        must(request->cancelled, "a request is called cancelled that is not");
        world->tally->cancels++;
        break;
    case PROTO_E_NO_MEMORY:
        must(memory_failed(), "a request is refused for lack of memory that there was");
        break;
    case PROTO_E_TOO_LARGE:
        must(request->least > pool->limit_bytes, "a request is called too large that is not");
        break;
    case PROTO_E_INVALID:
        must(request->n_segments > 0 && !world->has_rows[request->pool],
             "a request is called invalid that is not");
        break;
    case PROTO_E_NO_POOL:
        must(!model_may_use(world, request->session, request->pool),
             "a session is told that there is no such pool");
        break;
    case PROTO_E_SHUTDOWN:
        must(pool->is_draining, "a request is refused by a pool that does not drain");
        break;
    case PROTO_E_DRIVER:
        must(pool_is_closed(pool) ||
                 (asked->asked_while_no_driver && pool->leased_bytes + pool->fenced_bytes == 0 &&
                  !is_to_be_closed(world, request->pool)),
             "a request is called hopeless that is not");
        break;
    case PROTO_E_LIMIT:
        if (answered->quota_item >= 0) {
            model_refused_for_quota(world, request, (unsigned)answered->quota_item);
            break;
        }
        must(world->sessions[request->session].leases + (request->n_segments > 0 ? request->n_segments : 1) >
                 world->core->session_leases_limit,
             "a session is told that it has too many leases, and has not");
        must(model_arrived(world, request->session) == 0,
             "a session is told that it has too many leases, although fences of its own are ready");
        break;
    default:
        must(false, "a request is refused for a reason that there is not");
    }
}

void model_see_arrivals(struct world *world) {
    model_see_moves(world);
    for (unsigned l = 0; l < world->leases_end; l++) {
        const struct model_lease *lease = &world->leases[l];
        if (!lease->used || !(lease->fenced || world->sessions[lease->session].lost))
            continue;
        const struct lease *there = world->core->leases.slots[lease->id - 1];
        if (there != NULL && there->generation == lease->generation)
            continue;
        /* The next grant of a lost session's memory checks whether the core was right to free it. */
        if (world->sessions[lease->session].lost) {
            model_remove_lease(world, l);
            world->arrivals = true;
            continue;
        }
        must(model_is_ready(world, lease->session, lease->word, lease->value),
             "what was released behind a fence is let go before the fence is ready");
        model_check_withheld(world, l);
        model_remove_lease(world, l);
        world->arrivals = true;
        world->tally->arrivals++;
    }
}

/* A decision is checked when it is made. It may look wrong later: limits change, and memory comes back. */
static void model_see_growths(struct world *world) {
    for (unsigned p = 0; p < world->n_pools; p++) {
        const struct pool *pool = world->pools[p].pool;
        if (!pool->growth.is_decided || world->pools[p].decided)
            continue;
        world->pools[p].decided = true;
        must(pool->growth.bytes > 0 && pool->growth.bytes % SEGMENT_GRANULE == 0 &&
                 pool->reserved_bytes + pool->growth.bytes <= pool->limit_bytes,
             "a pool grows beyond its limit");
        must(!pool->is_draining, "a pool that drains grows");
        must(model_has_descriptor(world, p), "a pool takes a descriptor that is kept, or that there is not");
        must(!pool->growth.is_ahead || (pool->leased_bytes > 0 && pool->low_water_bytes > 0),
             "a pool grows ahead of demand that nobody uses");
    }
}

/* A tenant that got a segment and then no memory for its lease keeps the segment. */
static void model_see_adoptions(struct world *world) {
    for (unsigned g = 0; g < SIM_SEGMENTS && memory_failed(); g++) {
        struct model_segment *where = &world->segments[g];
        if (where->segment != NULL && where->tenant == 0 && where->segment->owner != NULL)
            where->tenant = model_tenant_of(world, where->segment->owner->tenant->id) + 1;
    }
}

void model_see(struct world *world) {
    model_see_adoptions(world);
    model_see_growths(world);
    world->arrivals = false;
    model_see_arrivals(world);
    list_for_each_entry(const struct request, answered, &world->core->answered, link) {
        unsigned r = 0;
        while (r < SIM_REQUESTS && !(world->requests[r].used && world->requests[r].id == answered->id))
            r++;
        must(r < SIM_REQUESTS, "a request is answered that nobody made, or that was answered before");
        struct model_request *request = &world->requests[r];
        must(world->sessions[request->session].session == answered->session,
             "another session gets the answer");
        if (request->answered)
            continue;
        request->answered = true;
        if (answered->state == REQUEST_GRANTED) {
            request->lease = answered->lease;
            model_granted(world, request, answered);
        } else {
            model_refused(world, request, answered);
        }
    }
}
