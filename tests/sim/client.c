/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of clients, and the answers that the core has to give. */
#include <string.h>

#include "tests/sim/world.h"

bool tenant_lacks_leases(const struct world *world, unsigned tenant, uint64_t count) {
    uint64_t n = parcels_of_tenant(world, tenant);

    for (unsigned s = 0; s < SIM_SESSIONS; s++)
        if (world->sessions[s].session != NULL && world->sessions[s].tenant == tenant)
            n += world->sessions[s].leases - model_arrived(world, s);
    return n + count > model_limit(world, tenant, QUOTA_LEASES, SIM_GROUPS);
}

bool tenant_is_full(const struct world *world, unsigned tenant) {
    return tenant_lacks_leases(world, tenant, 1);
}

/* Whether the session may not have one more lease, by its own limit or by its tenant's quota, when the core
 * has looked at what lies behind fences. */
static bool has_no_room(const struct world *world, unsigned s) {
    return world->sessions[s].leases - model_arrived(world, s) >= world->core->session_leases_limit;
}

static bool is_full(const struct world *world, unsigned s) {
    return has_no_room(world, s) || tenant_is_full(world, world->sessions[s].tenant);
}

/* Puts a release behind a fence. Returns whether it has to wait. */
static bool add_fence(struct world *world, unsigned s, struct proto_release *release) {
    struct model_session *session = &world->sessions[s];
    uint32_t word = (uint32_t)random_below(world, SIM_WORDS);

    release->fence = word + 1;
    release->fence_value = session->written[word] + random_below(world, 3);
    if (one_in(world, 8))
        release->fence_value -= random_below(world, 6); /* it was overtaken */
    else
        session->written[word] = release->fence_value;
    return session->page != NULL && !model_is_ready(world, s, word, release->fence_value);
}

/* A number of grains, of which a few bytes need not be asked for. */
static uint64_t random_size(struct world *world) {
    uint64_t bytes;
    switch (random_below(world, 8)) {
    case 0:
        bytes = 1 + random_below(world, 8 * MIB);
        break;
    case 1:
        bytes = world->limit_max / 4 + random_below(world, world->limit_max);
        break;
    case 2:
        bytes = SEGMENT_GRANULE * (1 + random_below(world, 4));
        break;
    case 3:
    case 4:
        bytes = 1 + random_below(world, MIB);
        break;
    default:
        bytes = 1 + random_below(world, 8 * world->grain);
    }
    return round_up(bytes, world->grain) - (one_in(world, 2) ? 0 : random_below(world, HEAP_GRANULE));
}

/* A request of a random session that asks for nothing yet. NULL: there is no session, or no room for another
 * request. */
static struct model_request *new_request(struct world *world, unsigned p, uint64_t timeout_ns) {
    unsigned s = pick_session(world, false), r = 0;

    while (r < SIM_REQUESTS && world->requests[r].used)
        r++;
    if (s == SIM_SESSIONS || r == SIM_REQUESTS)
        return NULL;
    world->requests[r] = (struct model_request){.id = ++world->next_request,
                                                .session = s,
                                                .pool = p,
                                                .asked_ns = world->now_ns,
                                                .deadline_ns = clock_deadline_ns(world->now_ns, timeout_ns),
                                                .no_reclaim = one_in(world, 3),
                                                .gave_back = one_in(world, 2),
                                                .idle_only = one_in(world, 4),
                                                .alone_ns = NS_FOREVER,
                                                .used = true};
    return &world->requests[r];
}

static uint32_t flags_of(const struct model_request *request) {
    return (request->no_reclaim ? PROTO_ACQUIRE_NO_RECLAIM : 0u) |
           (request->gave_back ? PROTO_ACQUIRE_GAVE_BACK : 0u) |
           (request->idle_only ? PROTO_ACQUIRE_IDLE_ONLY : 0u);
}

static uint64_t random_timeout_ns(struct world *world) {
    static const uint64_t timeouts_ns[] = {0, 0, 50 * NS_PER_MS, 3 * NS_PER_S, NS_FOREVER};
    return timeouts_ns[random_below(world, sizeof timeouts_ns / sizeof *timeouts_ns)];
}

/* The core has taken the request, or not. error: what it returned. */
static void see_asked(struct world *world, struct model_request *request, int error) {
    if (out_of_memory(error)) {
        request->used = false;
        return;
    }
    must(error == 0, "a request is not taken");
    model_see(world);
    must(request->deadline_ns > request->asked_ns || request->answered,
         "a request that does not wait is left waiting");
}

void step_acquire(struct world *world) {
    unsigned p = (unsigned)random_below(world, world->n_pools);
    uint64_t timeout_ns = random_timeout_ns(world);
    struct model_request *request = new_request(world, p, timeout_ns);

    if (request == NULL)
        return;
    uint64_t size = world->has_rows[p] && one_in(world, 2) ? SEGMENT_GRANULE : random_size(world);
    request->size = request->least = size;
    bool has_least = one_in(world, 2);
    while (has_least && request->least % (4 * world->grain) == 0 && one_in(world, 2))
        request->least /= 4;
    const struct proto_acquire acquire = {.pool = p + 1,
                                          .flags = flags_of(request),
                                          .size_bytes = size,
                                          .least_bytes = has_least ? request->least : 0,
                                          .timeout_ns = timeout_ns};
    see_asked(world, request,
              core_acquire(world->sessions[request->session].session, request->id, &acquire, world->now_ns));
}

/* Mostly in a pool that has such segments, and of the size of those that were asked for one by one. */
void step_acquire_segments(struct world *world) {
    unsigned p = (unsigned)random_below(world, world->n_pools);
    uint64_t timeout_ns = random_timeout_ns(world);

    for (unsigned tries = 0; tries < 8 && !world->has_rows[p]; tries++)
        p = (unsigned)random_below(world, world->n_pools);
    if (!world->has_rows[p] && !one_in(world, 16))
        return;
    struct model_request *request = new_request(world, p, timeout_ns);
    if (request == NULL)
        return;
    request->n_segments = 1 + (unsigned)random_below(world, one_in(world, 8) ? 40 : 5);
    request->segment_size = SEGMENT_GRANULE * (one_in(world, 4) ? 1 + random_below(world, 3) : 1);
    request->size = request->least = request->n_segments * request->segment_size;
    const struct proto_acquire_segments acquire = {.pool = p + 1,
                                                   .flags = flags_of(request),
                                                   .segment_bytes = request->segment_size,
                                                   .count = request->n_segments,
                                                   .timeout_ns = timeout_ns};
    see_asked(world, request,
              core_acquire_segments(world->sessions[request->session].session, request->id, &acquire,
                                    world->now_ns));
}

/* Cancels a request that waits, or one that does not: that changes nothing. The answer and the service of the
 * requests behind it come in the same call. */
void step_cancel(struct world *world) {
    unsigned r = (unsigned)random_below(world, SIM_REQUESTS), s = pick_session(world, false);

    for (unsigned tries = 0;
         tries < SIM_REQUESTS && !(world->requests[r].used && !world->requests[r].answered); tries++)
        r = (r + 1) % SIM_REQUESTS;
    struct model_request *request = &world->requests[r];
    bool waits = request->used && !request->answered, is_other = !waits || one_in(world, 8);
    if (is_other && s == SIM_SESSIONS)
        return;
    if (is_other && waits && request->session == s)
        return;
    if (is_other) { /* an id of another session's, or of no session's */
        core_cancel(world->sessions[s].session, waits ? request->id : world->next_request + 1, world->now_ns);
        model_see(world);
        must(!waits || !request->answered, "a session cancels another's request");
        return;
    }
    request->cancelled = true;
    core_cancel(world->sessions[request->session].session, request->id, world->now_ns);
    model_see(world);
    must(request->answered && request->lease == NULL, "a request that was cancelled waits on");
}

/* A session gives back memory of a lease, of which there may be nothing left in the core. */
static void note_given(struct world *world, unsigned l) {
    const struct model_lease *lease = &world->leases[l];
    unsigned p = world->segments[world->blocks[lease->block].segment].pool;
    world->sessions[lease->session].gave_ns[p] = world->now_ns;
}

void step_release(struct world *world) {
    unsigned l = pick_lease(world);
    if (l == SIM_LEASES)
        return;
    struct proto_release release = {world->leases[l].id, world->leases[l].generation, 0, 0};
    unsigned s = world->leases[l].session;
    struct session *session = world->sessions[s].session;
    bool fenced = one_in(world, 2), waits = fenced && add_fence(world, s, &release);

    int r = core_release(session, &release, world->now_ns);
    if (out_of_memory(r))
        return;
    if (fenced && world->sessions[s].page == NULL) {
        must(r == PROTO_E_INVALID, "a session without a page has fences");
        return;
    }
    must(r == 0, "a release is refused");
    note_given(world, l);
    model_give_up(world, l, waits, release.fence - 1, release.fence_value);
    must(core_release(session, &release, world->now_ns) == PROTO_E_STALE, "a lease is released twice");
}

/* A random part of a lease, which may or may not be one that can be disposed of alone. Returns what the core
 * has to say to that: 0, INVALID or SHARED. */
static int random_part(struct world *world, unsigned l, struct proto_release *ret_part) {
    unsigned b = world->leases[l].block;
    const struct model_block *block = &world->blocks[b];
    const struct model_segment *where = &world->segments[block->segment];
    uint64_t grains = block->capacity / world->grain, start = random_below(world, grains + 1);
    uint64_t count = 1 + random_below(world, grains - (start < grains ? start : 0) + one_in(world, 8));

    if (one_in(world, 3))
        start = grains > count ? grains - count : 0; /* a tail, as shrinking does */
    *ret_part = (struct proto_release){world->leases[l].id, world->leases[l].generation, start * world->grain,
                                       count * world->grain};
    bool is_row = block->n_parts > 0;
    if (is_row && one_in(world, 4))
        *ret_part = (struct proto_release){world->leases[l].id, world->leases[l].generation, start = 0,
                                           (count = grains) * world->grain};
    bool held =
        is_row ? start == 0 && count == grains : start + count <= grains; /* of a row: all or nothing */
    for (uint64_t g = 0; held && g < count && !is_row; g++)
        held = where->owners[block->offset / world->grain + start + g] == b + 1;
    return block->shared || block->live + block->fenced + block->lost > 1 ? PROTO_E_SHARED
           : held                                                         ? 0
                                                                          : PROTO_E_INVALID;
}

/* The part has left the lease: it is free (0), or of another block (its number plus one). */
static void model_cut(struct world *world, unsigned l, const struct proto_release *part, unsigned to) {
    unsigned b = world->leases[l].block;
    struct model_block *block = &world->blocks[b];
    const struct model_segment *where = &world->segments[block->segment];

    if (block->n_parts > 0) { /* it is given back whole */
        model_remove_lease(world, l);
        return;
    }
    model_set_owner(world, block->segment, block->offset + part->offset_bytes, part->size_bytes, b + 1, to);
    block->held -= part->size_bytes;
    if (block->held == 0) {
        model_remove_lease(world, l);
        return;
    }
    while (where->owners[(block->offset + block->capacity) / world->grain - 1] != b + 1)
        block->capacity -= world->grain;
    if (block->size > block->capacity)
        block->size = block->capacity;
    model_give_up_if_withheld(world, l);
}

/* The part has become a block with a lease of its own. Returns the latter. */
static unsigned model_split(struct world *world, unsigned l, const struct proto_release *part,
                            const struct lease *lease) {
    const struct model_block old = world->blocks[world->leases[l].block];
    unsigned s = world->leases[l].session;
    unsigned b = model_new_block(world, &(struct model_block){.segment = old.segment,
                                                              .offset = old.offset + part->offset_bytes,
                                                              .size = part->size_bytes,
                                                              .capacity = part->size_bytes,
                                                              .held = part->size_bytes});
    unsigned added = model_add_lease(world, s, b, lease);
    model_cut(world, l, part, b + 1);
    return added;
}

/* The lease that the core has under a generation. */
static const struct lease *find_lease(struct world *world, uint64_t generation) {
    const struct lease_table *table = &world->core->leases;
    uint32_t slot = 0;
    while (slot < table->capacity &&
           (table->slots[slot] == NULL || table->slots[slot]->generation != generation))
        slot++;
    must(slot < table->capacity, "what was released behind a fence is let go before the fence is ready");
    return table->slots[slot];
}

/* Whether the core released a part, as the model expected. */
static bool part_is_released(struct world *world, int r, int expected) {
    if (out_of_memory(r))
        return false;
    must(r == expected, "the release of a part gets another answer than is right");
    world->tally->parts += expected == 0;
    return expected == 0;
}

/* Whether the limits leave room for a part to leave its lease. fenced: it becomes a lease of its own. At
 * least one range goes with it otherwise. */
static bool part_has_room(const struct world *world, unsigned l, const struct proto_release *part,
                          bool fenced) {
    unsigned s = world->leases[l].session, borders = model_borders(world, l, part);
    uint64_t ranges = fenced || borders == 0 ? borders : borders - 1;

    return !(fenced && is_full(world, s)) && !tenant_lacks_ranges(world, world->sessions[s].tenant, ranges);
}

/* A part behind a fence that is not ready becomes a lease and a block of its own, if there is a rest. */
static void release_part_of(struct world *world, unsigned l, const struct proto_release *part, int expected,
                            bool fenced) {
    unsigned s = world->leases[l].session;
    const struct model_block *block = &world->blocks[world->leases[l].block];
    uint64_t own = block->held - world->leases[l].withheld,
             generation = world->core->leases.next_generation + 1;
    bool one_way = one_in(world, 2), all = expected == 0 && (part->size_bytes == own || block->n_parts > 0);
    bool fits = expected != 0 || all || part_has_room(world, l, part, fenced);

    bool has_ranges = !tenant_lacks_ranges(world, world->sessions[s].tenant, model_borders(world, l, part));
    uint64_t offset = block->offset + part->offset_bytes;
    int r = (one_way ? core_release_one_way : core_release)(world->sessions[s].session, part, world->now_ns);
    if (!fits && one_way) { /* the core has looked at what lies behind the session's fences */
        model_see_arrivals(world);
        unsigned joined =
            fenced && has_ranges && !memory_failed() ? model_find_joined(world, l, part) : SIM_LEASES;
        expected = joined == SIM_LEASES && part->size_bytes > own ? PROTO_E_INVALID : 0;
        if (!part_is_released(world, r, expected))
            return;
        note_given(world, l);
        if (joined == SIM_LEASES) {
            model_withhold(world, l, part, fenced);
        } else {
            model_cut(world, l, part, world->leases[joined].block + 1);
            model_join(world, joined, offset, part);
        }
        return;
    }
    if (!part_is_released(world, r, fits ? expected : PROTO_E_LIMIT))
        return;
    if (!all && fenced) {
        model_see_arrivals(world);
        l = model_split(world, l, part, find_lease(world, generation));
    }
    note_given(world, l);
    if (all || fenced)
        model_give_up(world, l, fenced, part->fence - 1, part->fence_value);
    else
        model_cut(world, l, part, 0);
}

/* A lease of which a part was released behind a fence that is not ready yet, for a further part of it behind
 * the same fence: in a full session that joins the one before, or stays. SIM_LEASES: there is none. */
static unsigned pick_followed(const struct world *world) {
    const struct model_followed *followed = &world->followed;
    const struct model_lease *lease = &world->leases[followed->lease];

    if (followed->fence == 0 || !lease->used || lease->fenced || lease->generation != followed->generation)
        return SIM_LEASES;
    const struct model_session *session = &world->sessions[lease->session];
    return !session->lost && session->page != NULL &&
                   !model_is_ready(world, lease->session, followed->fence - 1, followed->fence_value)
               ? followed->lease
               : SIM_LEASES;
}

void step_release_part(struct world *world) {
    struct proto_release part;
    unsigned l = one_in(world, 2) ? pick_followed(world) : SIM_LEASES;
    bool follows = l != SIM_LEASES;
    if (!follows)
        l = pick_lease(world);
    if (l == SIM_LEASES)
        return;
    int expected = random_part(world, l, &part);
    unsigned s = world->leases[l].session;
    bool fenced = follows;
    if (follows) {
        part.fence = world->followed.fence;
        part.fence_value = world->followed.fence_value;
    } else {
        fenced = world->sessions[s].page != NULL && one_in(world, 2) && add_fence(world, s, &part);
    }
    if (fenced)
        world->followed =
            (struct model_followed){l, world->leases[l].generation, part.fence, part.fence_value};
    release_part_of(world, l, &part, expected, fenced);
}

/* Draws a part that may become a lease. Returns what the core should answer. */
static int draw_split(struct world *world, unsigned l, struct proto_release *ret_part) {
    int expected = random_part(world, l, ret_part);

    if (expected == 0 && world->blocks[world->leases[l].block].n_parts > 0)
        return PROTO_E_INVALID;
    return expected == 0 && !part_has_room(world, l, ret_part, true) ? PROTO_E_LIMIT : expected;
}

void step_split(struct world *world) {
    struct proto_release part;
    struct lease *lease = NULL;
    unsigned l = pick_lease(world);
    if (l == SIM_LEASES)
        return;
    unsigned s = world->leases[l].session;
    const struct model_block old = world->blocks[world->leases[l].block];
    int expected = draw_split(world, l, &part);
    int r = core_split(world->sessions[s].session, &part, &lease);
    if (out_of_memory(r))
        return;
    must(r == expected, "a split gets another answer than is right");
    must((r == 0) == (lease != NULL), "a split that was refused gives a lease");
    if (r != 0)
        return;
    model_see_arrivals(world);
    model_split(world, l, &part, lease);
    const struct proto_lease wire = model_describe(world, s, lease);
    must(wire.segment == world->segments[old.segment].id && wire.description.id == 0,
         "a split's segment is another");
    must(wire.offset_bytes == old.offset + part.offset_bytes && wire.size_bytes == part.size_bytes &&
             wire.capacity_bytes == part.size_bytes,
         "a split is another part than was asked");
    world->tally->splits++;
}

/* Whether one block's memory can be the next part of a row that another one is then. */
static bool can_continue(const struct world *world, const struct model_block *block,
                         const struct model_block *from) {
    const struct model_segment *first = &world->segments[block->segment];
    struct model_part parts[SIM_PARTS];
    const struct model_part *last = &parts[model_parts(block, parts) - 1];

    return from->n_parts == 0 && from->segment != block->segment && from->offset == 0 &&
           world->segments[from->segment].pool == first->pool && world->has_rows[first->pool] &&
           block->held == block->capacity && from->held == from->capacity &&
           last->offset + last->size == world->segments[last->segment].size;
}

static bool can_be_merged(const struct model_lease *lease) {
    return lease->used && !lease->fenced && !lease->unanswered;
}

/* Another lease of the same session, mostly of the same segment; SIM_LEASES when there is none. */
static unsigned pick_other(struct world *world, unsigned l) {
    const struct model_block *block = &world->blocks[world->leases[l].block];
    unsigned start = (unsigned)random_below(world, world->leases_end);
    for (unsigned i = 0; i < world->leases_end; i++) {
        unsigned c = (start + i) % world->leases_end;
        const struct model_lease *lease = &world->leases[c];
        if (can_be_merged(lease) && lease->session == world->leases[l].session &&
            (world->blocks[lease->block].segment == block->segment || one_in(world, 16)))
            return c;
    }
    return SIM_LEASES;
}

/* A lease, and one of its session's that can be the next part of a row with it. Returns whether there are
 * such. */
static bool pick_row(struct world *world, unsigned *ret_lease, unsigned *ret_other) {
    unsigned start = world->leases_end > 0 ? (unsigned)random_below(world, world->leases_end) : 0;
    for (unsigned i = 0; i < world->leases_end * world->leases_end; i++) {
        unsigned l = (start + i / world->leases_end) % world->leases_end, k = (start + i) % world->leases_end;
        const struct model_lease *lease = &world->leases[l], *other = &world->leases[k];
        if (!can_be_merged(lease) || world->sessions[lease->session].lost) {
            i += world->leases_end - 1 - i % world->leases_end;
            continue;
        }
        if (can_be_merged(other) && other->session == lease->session &&
            can_continue(world, &world->blocks[lease->block], &world->blocks[other->block])) {
            *ret_lease = l;
            *ret_other = k;
            return true;
        }
    }
    return false;
}

static bool has_others(const struct model_block *block) {
    return block->shared || block->live + block->fenced + block->lost > 1;
}

/* The answer that the core owes to a merge. */
static int judge_merge(const struct world *world, const struct model_block *block,
                       const struct model_block *from) {
    if (has_others(block) || has_others(from))
        return PROTO_E_SHARED;
    if (block != from && from->segment != block->segment)
        return can_continue(world, block, from) ? 0 : PROTO_E_INVALID;
    return block == from || block->n_parts + from->n_parts > 0 || from->offset < block->offset
               ? PROTO_E_INVALID
               : 0;
}

/* A block becomes the last part of a row. Returns where the row ends, from its start. */
static uint64_t model_append(struct world *world, struct model_block *block, const struct model_block *from) {
    if (block->n_parts == 0)
        block->parts[block->n_parts++] = (struct model_part){block->segment, block->offset, block->capacity};
    must(block->n_parts < SIM_PARTS, "the model has no room for a part");
    block->parts[block->n_parts++] = (struct model_part){from->segment, from->offset, from->capacity};
    world->tally->rows++;
    return block->capacity + from->capacity;
}

unsigned pick_row_or_lease(struct world *world) {
    for (unsigned l = 0; l < world->leases_end; l++) {
        const struct model_lease *lease = &world->leases[l];
        if (can_be_merged(lease) && !world->sessions[lease->session].lost &&
            world->blocks[lease->block].n_parts > 0 && one_in(world, 2))
            return l;
    }
    return pick_lease(world);
}

int draw_share(struct world *world, unsigned l, struct proto_share *ret_share) {
    const struct model_block *block = &world->blocks[world->leases[l].block];
    struct proto_release part = {0};
    int expected;

    if (one_in(world, 2)) {
        expected = draw_split(world, l, &part);
    } else {
        expected = block->held == block->capacity ? 0 : PROTO_E_INVALID;
    }
    uint64_t bound = part.size_bytes > 0 ? part.size_bytes : block->capacity;
    *ret_share = (struct proto_share){world->leases[l].id, world->leases[l].generation, part.offset_bytes,
                                      part.size_bytes,
                                      one_in(world, 2) ? 0 : random_below(world, bound + 2 * world->grain)};
    return ret_share->size_bytes > bound ? PROTO_E_INVALID : expected;
}

unsigned model_share(struct world *world, unsigned l, const struct proto_share *share,
                     const struct lease *lease) {
    if (share->part_bytes > 0) {
        const struct proto_release part = {share->lease, share->generation, share->offset_bytes,
                                           share->part_bytes};
        model_see_arrivals(world);
        l = model_split(world, l, &part, lease);
        world->tally->splits++;
    }
    must(lease->id == world->leases[l].id && lease->generation == world->leases[l].generation,
         "a share names another lease");
    struct model_block *block = &world->blocks[world->leases[l].block];
    if (share->size_bytes > 0)
        block->size = share->size_bytes;
    return l;
}

static void share_lease(struct world *world, unsigned l) {
    const struct proto_token fresh = token_make(++world->next_token);
    struct proto_share wanted;
    struct proto_token token;
    struct lease *lease = NULL;

    int expected = draw_share(world, l, &wanted);
    int r = core_share(world->sessions[world->leases[l].session].session, &wanted, &fresh, world->now_ns,
                       &lease, &token);
    if (out_of_memory(r))
        return;
    must(r == expected, "a share gets another answer than is right");
    if (r != 0)
        return;
    l = model_share(world, l, &wanted, lease);
    struct model_block *block = &world->blocks[world->leases[l].block];
    if (!block->shared)
        block->token = world->next_token;
    block->shared = true;
    const struct proto_token right = token_make(block->token);
    must(memcmp(&token, &right, sizeof token) == 0, "a block has another token than it was given");
    world->tokens[random_below(world, SIM_TOKENS)] = block->token;
    world->tally->shares++;
}

void step_share(struct world *world) {
    unsigned l = pick_row_or_lease(world);
    if (l != SIM_LEASES)
        share_lease(world, l);
}

/* Merges two leases: one block gets the ranges of both. */
void step_merge(struct world *world) {
    unsigned l, k;
    if (one_in(world, 2) || !pick_row(world, &l, &k)) {
        l = pick_lease(world);
        k = l == SIM_LEASES ? SIM_LEASES : pick_other(world, l);
    }
    if (k == SIM_LEASES)
        return;
    struct session *session = world->sessions[world->leases[l].session].session;
    struct model_block *block = &world->blocks[world->leases[l].block],
                       *from = &world->blocks[world->leases[k].block];
    int expected = judge_merge(world, block, from);
    if (expected == 0 && from->segment != block->segment &&
        world->leases[l].withheld + world->leases[k].withheld > 0)
        expected = PROTO_E_INVALID;
    const struct proto_merge merge = {world->leases[l].id, world->leases[l].generation, world->leases[k].id,
                                      world->leases[k].generation};
    int r = (one_in(world, 2) ? core_merge_one_way : core_merge)(session, &merge);
    must(r == expected, "a merge gets another answer than is right");
    if (r != 0)
        return;
    struct model_segment *where = &world->segments[from->segment];
    uint64_t end = block->offset + block->capacity, from_end = from->offset + from->capacity;
    for (uint64_t g = from->offset / world->grain; g < from_end / world->grain; g++)
        if (where->owners[g] == world->leases[k].block + 1)
            where->owners[g] = (uint16_t)(world->leases[l].block + 1);
    block->held += from->held;
    block->capacity = block->size = from->segment != block->segment
                                        ? model_append(world, block, from)
                                        : (end > from_end ? end : from_end) - block->offset;
    model_merge_withheld(world, l, k);
    model_remove_lease(world, k);
    must(core_merge(session, &merge) == PROTO_E_STALE, "a lease is merged twice");
    world->tally->merges++;
    if (block->n_parts > 0 && one_in(world, 2))
        share_lease(world, l);
}

/* Names that are gone, not this session's, or guessed before their answer. */
void step_misuse(struct world *world) {
    unsigned s = pick_session(world, false);
    struct proto_info info;
    if (s == SIM_SESSIONS)
        return;
    struct session *session = world->sessions[s].session;
    const struct proto_lease_name *old = &world->old_names[random_below(world, SIM_OLD_NAMES)];
    const struct proto_release stale = {old->lease, old->generation, 0, 0};
    must(core_release(session, &stale, world->now_ns) == PROTO_E_STALE, "a lease that is gone is released");
    must(core_query(session, old, &info) == PROTO_E_STALE, "a lease that is gone is known");
    if (world->leases_end == 0)
        return;
    const struct model_lease *lease = &world->leases[random_below(world, world->leases_end)];
    if (!lease->used || (lease->session == s && !lease->unanswered))
        return;
    const struct proto_release foreign = {lease->id, lease->generation, 0, 0};
    must(core_release(session, &foreign, world->now_ns) == PROTO_E_STALE,
         "a lease is released by a session that does not have it");
}

/* Asks for the parts of a lease, which is a row or none, from one of them on, and for its description. */
static void query_parts(struct world *world, unsigned l) {
    const struct model_block *block = &world->blocks[world->leases[l].block];
    unsigned s = world->leases[l].session, first = (unsigned)random_below(world, block->n_parts + 2);
    const struct proto_part_name name = {world->leases[l].id, world->leases[l].generation, first, 0};
    struct proto_parts parts;

    int r = core_ask_parts(world->sessions[s].session, &name, &parts);
    must(r == (first < block->n_parts ? 0 : PROTO_E_INVALID), "parts are told that are not there");
    model_describe_part(world, s, l, first);
    if (r != 0)
        return;
    must(parts.total == block->n_parts && parts.count == block->n_parts - first, "a row has other parts");
    for (unsigned i = 0; i < parts.count; i++) {
        const struct model_part *part = &block->parts[first + i];
        must(parts.parts[i].segment == world->segments[part->segment].id &&
                 parts.parts[i].segment_bytes == world->segments[part->segment].size &&
                 parts.parts[i].offset_bytes == part->offset && parts.parts[i].size_bytes == part->size,
             "a row has other parts");
    }
}

/* Asks who else has the block of a lease. None of the sessions here has a slot on a board. */
static void query_holders(struct world *world, unsigned l) {
    const struct proto_lease_name name = {world->leases[l].id, world->leases[l].generation};
    unsigned b = world->leases[l].block, pending = 0;
    struct proto_holders holders;

    must(core_ask_holders(world->sessions[world->leases[l].session].session, &name, &holders) == 0,
         "a lease is not known");
    model_see_arrivals(world);
    const struct model_block *block = &world->blocks[b];
    for (unsigned i = 0; i < world->leases_end; i++) {
        const struct model_lease *lease = &world->leases[i];
        pending += lease->used && lease->block == b && lease->fenced &&
                   !world->sessions[lease->session].lost &&
                   !model_is_ready(world, lease->session, lease->word, lease->value);
    }
    must(holders.n_holding == block->live + block->lost + block->parcels - 1,
         "a block is said to have other holders");
    must(holders.count == 0 && holders.n_left == (holders.n_holding > 0 ? 0 : pending),
         "a block is said to be behind other fences");
}

void step_query(struct world *world) {
    unsigned l = pick_row_or_lease(world);
    struct proto_info info;
    if (l == SIM_LEASES)
        return;
    const struct proto_lease_name name = {world->leases[l].id, world->leases[l].generation};
    const struct model_block *block = &world->blocks[world->leases[l].block];
    int r = core_query(world->sessions[world->leases[l].session].session, &name, &info);
    must(r == 0, "a lease is not known");
    must(info.segment == world->segments[block->segment].id && info.offset_bytes == block->offset &&
             info.size_bytes == block->size && info.capacity_bytes == block->capacity &&
             info.holders == block->live + block->lost + block->parcels && info.shared == block->shared &&
             info.parts == block->n_parts,
         "a lease is described as another");
    query_parts(world, l);
    query_holders(world, l);
}

/* Of a block that lives, or of one that may be gone. */
static uint64_t pick_token(struct world *world) {
    unsigned start = world->blocks_end > 0 ? (unsigned)random_below(world, world->blocks_end) : 0;
    bool for_row = one_in(world, 4);
    if (one_in(world, 3))
        return pick_parcel(world);
    for (unsigned i = 0; i < world->blocks_end && !one_in(world, 32); i++) {
        const struct model_block *block = &world->blocks[(start + i) % world->blocks_end];
        if (block->live > 0 && block->shared && (block->n_parts > 0 || !for_row))
            return block->token;
    }
    return world->tokens[random_below(world, SIM_TOKENS)];
}

void step_attach(struct world *world) {
    unsigned s = pick_session(world, false);
    uint64_t number = pick_token(world);

    if (s != SIM_SESSIONS)
        attach_by(world, s, number);
}

void attach_by(struct world *world, unsigned s, uint64_t number) {
    const struct proto_token token = token_make(number);
    struct lease *lease = NULL;
    unsigned p = parcel_of_token(world, number), named = names_block_of(world, number), b = 0;

    if (p < SIM_PARCELS)
        b = world->parcels[p].block;
    else if (named < SIM_BLOCKS)
        b = named;
    while (p == SIM_PARCELS && named == SIM_BLOCKS && b < world->blocks_end &&
           !(world->blocks[b].live > 0 && world->blocks[b].shared && world->blocks[b].token == number))
        b++;
    int expected = 0;
    if (b == world->blocks_end ||
        world->segments[world->blocks[b].segment].tenant != world->sessions[s].tenant + 1)
        expected = PROTO_E_NO_TOKEN;
    else if (!model_may_use(world, s, world->segments[world->blocks[b].segment].pool))
        expected = PROTO_E_NO_TOKEN;
    else if (pool_is_closed(world->pools[world->segments[world->blocks[b].segment].pool].pool))
        expected = PROTO_E_DRIVER;
    else if (p < SIM_PARCELS && world->parcels[p].takers == 1 ? has_no_room(world, s) : is_full(world, s))
        expected = PROTO_E_LIMIT;
    int r = core_attach(world->sessions[s].session, &token, &lease);
    if (out_of_memory(r))
        return;
    /* Another refusal would tell that there is something. */
    must(r == expected || expected != PROTO_E_NO_TOKEN, "a session attaches to what it may not know");
    must(r == expected, "an attachment gets another answer than is right");
    must((r == 0) == (lease != NULL), "an attachment that was refused gives a lease");
    if (r != 0)
        return;
    model_see_arrivals(world);
    unsigned l = model_add_lease(world, s, b, lease);
    if (p < SIM_PARCELS)
        parcel_was_taken(world, p);
    world->tally->names_attached += named < SIM_BLOCKS;
    const struct proto_lease wire = model_describe(world, s, lease);
    must(wire.segment == world->segments[world->blocks[b].segment].id &&
             wire.offset_bytes == world->blocks[b].offset &&
             wire.capacity_bytes == world->blocks[b].capacity && wire.parts == world->blocks[b].n_parts,
         "an attachment is to another block");
    for (unsigned i = 0; i < world->blocks[b].n_parts && !one_in(world, 8); i++)
        model_describe_part(world, s, l, i);
    world->tally->attaches++;
}

/* Streams get on: to where they are to write, or not so far. One of the words is never written. A dead
 * process's streams too, while its work goes on. */
void step_streams(struct world *world) {
    for (unsigned s = 0; s < SIM_SESSIONS; s++) {
        const struct model_session *session = &world->sessions[s];
        if (session->session == NULL || session->page == NULL || one_in(world, 2) ||
            kernel_work_is_over(&world->kernel, session->process, world->now_ns))
            continue;
        for (unsigned word = 0; word < SIM_WORDS - 1; word++) {
            uint64_t now = session->page->fences[word], left = session->written[word] - now;
            session->page->fences[word] = now + (one_in(world, 3) ? left : random_below(world, left + 1));
        }
    }
}

/* Whether another session that can be asked for memory of the pool has not answered the last question. */
static bool somebody_has_not_answered(const struct world *world, unsigned s, unsigned p) {
    for (unsigned other = 0; other < SIM_SESSIONS; other++) {
        const struct model_session *session = &world->sessions[other];
        if (other != s && session->session != NULL && session->wants && !session->lost &&
            (model_holds(world, other, p) || model_has_mapped(world, other, p)) &&
            !session_has_answered(session->session, world->pools[p].pool))
            return true;
    }
    return false;
}

/* It is told to close a segment. */
static void model_tell(struct world *world, unsigned s, unsigned p, unsigned g, bool is_early,
                       bool for_others) {
    struct model_segment *where = &world->segments[g];

    must(where->pool == p && where->taken == 0,
         "a session is to close a segment of which something is in use");
    must(world->sessions[s].seen[g] && !world->sessions[s].told[g] && !where->retiring,
         "a session is to close a segment twice, or one that it does not have");
    must(where->closing || where->mappers == 1 || !is_early,
         "a session is to close a segment that others have mapped, who have not been asked");
    for (unsigned other = 0; other < SIM_SESSIONS; other++)
        must(where->closing || world->sessions[other].session == NULL || !world->sessions[other].seen[g] ||
                 (other == s && !for_others) ||
                 (world->sessions[other].wants && !world->sessions[other].lost),
             "a session is to close a segment that another one has mapped which cannot be asked");
    world->sessions[s].told[g] = where->closing = true;
    world->tally->closings++;
}

/* The oldest request that waits for room in the pool; NULL: none. */
static const struct model_request *find_oldest(const struct world *world, unsigned p) {
    const struct request *oldest = wait_queue_oldest(world->pools[p].pool);
    for (unsigned r = 0; oldest != NULL && r < SIM_REQUESTS; r++)
        if (world->requests[r].used && world->requests[r].id == oldest->id)
            return &world->requests[r];
    return NULL;
}

/* A session asks what it has to close, for its own request or for others. */
void step_idle(struct world *world) {
    unsigned s = pick_session(world, false), p = (unsigned)random_below(world, world->n_pools), begun = 0;
    struct proto_segments segments;
    if (s == SIM_SESSIONS)
        return;
    const struct pool *pool = world->pools[p].pool;
    bool for_others = one_in(world, 2), busy = one_in(world, 3);
    const struct proto_idle idle = {.pool = p + 1,
                                    .flags = busy ? PROTO_IDLE_BUSY : 0,
                                    .size_bytes = for_others ? 0 : random_size(world)};
    bool is_early = pool->reclaim.n_asks < 2 && somebody_has_not_answered(world, s, p);
    int r = core_idle(world->sessions[s].session, &idle, world->now_ns, &segments);
    must(r == (for_others || model_may_use(world, s, p) ? 0 : PROTO_E_NO_POOL),
         "a session asks about a pool that it may not use");
    model_see(world);
    /* A growth that was decided in the same call may have taken the last descriptor. */
    bool has_room = pool->growth.retry_ns == 0 && !for_others && !world->pools[p].decided &&
                    model_has_descriptor(world, p) &&
                    round_up(idle.size_bytes, SEGMENT_GRANULE) + pool->reserved_bytes <= pool->limit_bytes;
    const struct model_request *oldest = find_oldest(world, p);
    for (unsigned i = 0; r == 0 && i < segments.count; i++) {
        unsigned g = find_segment(world, segments.ids[i]);
        begun += !world->segments[g].closing;
        must(world->segments[g].closing || oldest == NULL || !model_suits(world, &world->segments[g], oldest),
             "a session is to close a segment for a request that could take it");
        model_tell(world, s, p, g, is_early, for_others);
    }
    must(!for_others || begun == 0 || !list_is_empty(&pool->waiters.queues) ||
             pool->reclaim.refused_bytes > 0 || pool->is_draining,
         "a session is to close what nobody waits for");
    must(!has_room || begun == 0, "a session is to close segments, and the pool could grow");
    must(!busy || !is_early || begun == 0 || world->is_vmm[p],
         "a busy session is to close segments before idle ones are asked");
}

/* Segments that the session has mapped, and others. */
static void draw_offer(struct world *world, unsigned s, unsigned p, struct proto_offer *ret_offer) {
    *ret_offer = (struct proto_offer){.pool = p + 1};
    for (unsigned g = 0; g < SIM_SEGMENTS; g++)
        if (world->segments[g].segment != NULL &&
            (world->sessions[s].seen[g] ? one_in(world, 2) : one_in(world, 8)))
            ret_offer->ids[ret_offer->count++] = world->segments[g].id;
    if (ret_offer->count < PROTO_CLOSE_MAX)
        ret_offer->ids[ret_offer->count++] = 1 + random_below(world, world->core->next_segment_id + 1);
}

/* Whether the session may close the segment, as far as the quota lets it. */
static bool can_be_offered(const struct world *world, unsigned s, unsigned p, const struct proto_offer *offer,
                           unsigned g) {
    const struct model_segment *where = &world->segments[g];
    bool is_offered = false;

    for (uint32_t i = 0; i < offer->count; i++)
        is_offered = is_offered || (where->segment != NULL && where->id == offer->ids[i]);
    return is_offered && where->pool == p && world->sessions[s].seen[g] && where->mappers == 1 &&
           where->taken == 0 && !where->closing;
}

static bool somebody_waits(const struct world *world, unsigned p) {
    for (unsigned r = 0; r < SIM_REQUESTS; r++)
        if (world->requests[r].used && !world->requests[r].answered && world->requests[r].pool == p)
            return true;
    return false;
}

/* A session offers segments that it does not use. */
void step_offer(struct world *world) {
    unsigned s = pick_session(world, false), p = (unsigned)random_below(world, world->n_pools);
    struct proto_segments segments;
    struct proto_offer offer;
    struct model_use use;
    uint64_t largest = 0;
    if (s == SIM_SESSIONS)
        return;
    const struct pool *pool = world->pools[p].pool;
    unsigned tenant = world->sessions[s].tenant;
    draw_offer(world, s, p, &offer);
    int r = core_offer(world->sessions[s].session, &offer, world->now_ns, &segments);
    must(r == (model_may_use(world, s, p) ? 0 : PROTO_E_NO_POOL),
         "a session offers segments of a pool that it may not use");
    must(r == 0 || segments.count == 0, "an offer is refused, and taken");
    model_see(world);
    bool is_open = r == 0 && world->has_rows[p] && pool->state == POOL_READY && !somebody_waits(world, p);
    must(is_open || segments.count == 0, "an offer is taken that has to wait");
    for (uint32_t i = 0; i < segments.count; i++) {
        unsigned g = find_segment(world, segments.ids[i]);
        must(world->segments[g].tenant == tenant + 1, "a session is to close another tenant's segment");
        must(!world->segments[g].closing, "a session is to close a segment that is being closed");
        model_tell(world, s, p, g, true, false);
        world->segments[g].kept = true;
        world->tally->offered++;
    }
    model_add_up(world, &use);
    uint64_t used = use.used[tenant][QUOTA_POOLS + p],
             limit = model_limit(world, tenant, QUOTA_POOLS + p, SIM_GROUPS);
    must(segments.count == 0 || used <= limit, "an offer is taken beyond the tenant's quota");
    for (unsigned g = 0; g < SIM_SEGMENTS; g++)
        if (can_be_offered(world, s, p, &offer, g) && world->segments[g].size > largest)
            largest = world->segments[g].size;
    must(!is_open || largest == 0 || used > limit || largest > limit - used ||
             pool->reclaim.refused_bytes > 0,
         "an offer is not taken");
}

/* It has closed one of those that it was told to, or says so of another. */
void step_closed(struct world *world) {
    unsigned s = pick_session(world, false), start = (unsigned)random_below(world, SIM_SEGMENTS);
    if (s == SIM_SESSIONS)
        return;
    struct model_session *session = &world->sessions[s];
    for (unsigned i = 0; i < SIM_SEGMENTS; i++) {
        unsigned g = (start + i) % SIM_SEGMENTS;
        struct model_segment *where = &world->segments[g];
        if (where->segment == NULL || !(session->told[g] || one_in(world, 8)))
            continue;
        bool told = session->told[g], kept = where->kept;
        const struct proto_closed closed = {.segment = where->id, .time_ns = random_below(world, NS_PER_MS)};
        if (told) {
            model_unmap(world, s, g);
            world->tally->closed++;
        }
        bool wanted = false; /* other pools want its descriptor */
        for (unsigned p = 0; p < world->n_pools; p++)
            wanted = wanted || world->pools[p].pool->waiters.count > 0;
        int r = core_closed(session->session, &closed, world->now_ns);
        must(r == (told ? 0 : PROTO_E_INVALID), "a session closes what it was not told to");
        must(!told || !kept || wanted || memory_failed() || where->segment->state != SEGMENT_RETIRING ||
                 world->pools[where->pool].pool->is_draining,
             "a segment that was offered goes back to the driver, and no request waits");
        return;
    }
}
