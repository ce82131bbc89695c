/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of sessions that are about channels: make, join, wait, leave, end, and ask for pages. */
#include <stdio.h>
#include <string.h>

#include "tests/sim/world.h"

/* Draws the capacities. Mostly the block has room for the slots. */
static void draw_capacities(struct world *world, uint64_t capacity_bytes,
                            struct proto_make_channel *ret_make) {
    ret_make->n_slots = PROTO_CHANNEL_SLOTS_MIN + random_below(world, 6);
    ret_make->slot_bytes = 1 + random_below(world, capacity_bytes / ret_make->n_slots);
    if (one_in(world, 8))
        ret_make->slot_bytes = capacity_bytes / ret_make->n_slots + random_below(world, 2);
    ret_make->metadata_bytes = random_below(world, 100);
    ret_make->n_consumers = one_in(world, 8) ? PROTO_CHANNEL_CONSUMERS_MAX : 1 + random_below(world, 3);
    ret_make->policy = PROTO_CHANNEL_WAIT + random_below(world, PROTO_CHANNEL_FAIL - PROTO_CHANNEL_WAIT + 1);
    ret_make->flags = one_in(world, 2) ? PROTO_MAKE_CHANNEL_KEEP : 0;
}

/* The answer to a MAKE_CHANNEL of a lease, which is the session's. */
static int judge_make(const struct world *world, unsigned l, unsigned text,
                      const struct proto_make_channel *make) {
    const struct model_lease *lease = &world->leases[l];
    const struct model_block *block = &world->blocks[lease->block];
    unsigned tenant = world->sessions[lease->session].tenant;
    uint64_t kept = names_kept(world, tenant), limit = model_limit(world, tenant, QUOTA_KEPT, SIM_GROUPS);

    if (block->held != block->capacity || lease->withheld > 0 ||
        block->capacity / make->n_slots < make->slot_bytes)
        return PROTO_E_INVALID;
    if (tenant_lacks_leases(world, tenant, 1) || !channels_have_pages(world, tenant, make->n_consumers) ||
        ((make->flags & PROTO_MAKE_CHANNEL_KEEP) != 0 && (kept > limit || block->held > limit - kept)))
        return PROTO_E_LIMIT;
    return world->names.names[tenant][text].edition.generation != 0 ||
                   channels_find(world, tenant, text) < SIM_CHANNELS
               ? PROTO_E_INVALID
               : 0;
}

/* The core has made it. */
static void note_made(struct world *world, unsigned c, unsigned l, unsigned text,
                      const struct proto_make_channel *make, struct channel *made) {
    unsigned s = world->leases[l].session;
    struct model_block *block = &world->blocks[world->leases[l].block];

    must(made->id > world->last_generation, "a channel has the number of another one");
    world->last_generation = made->id;
    if (!block->shared)
        block->token = world->next_token - 1;
    block->shared = true;
    block->size = make->slot_bytes * make->n_slots;
    block->parcels++;
    world->channels.all[c] = (struct model_channel){
        .used = true,
        .tenant = world->sessions[s].tenant,
        .text = text + 1,
        .id = made->id,
        .flags = make->flags,
        .capacities = {make->slot_bytes, make->n_slots, make->metadata_bytes, make->n_consumers,
                       make->policy},
        .block = world->leases[l].block,
        .token = world->next_token,
        .session = s + 1,
        .maker = world->sessions[s].id,
    };
    world->names.tokens[names_draw(world, SIM_TOKENS)] = world->next_token;
    world->tally->channels_made++;
}

/* Without memory the block may have got a token, and nothing else has changed. */
static void note_token(struct world *world, unsigned l) {
    const struct proto_lease_name name = {world->leases[l].id, world->leases[l].generation};
    struct model_block *block = &world->blocks[world->leases[l].block];
    struct proto_info info;

    must(core_query(world->sessions[world->leases[l].session].session, &name, &info) == 0,
         "a lease is not known");
    must(info.size_bytes == block->size, "a block without a channel has another size");
    if (info.shared && !block->shared)
        block->token = world->next_token - 1;
    block->shared = info.shared;
}

/* The shell makes the pages, or cannot. */
static void make_pages(struct world *world, unsigned c, struct channel *made) {
    unsigned tenant = world->channels.all[c].tenant, text = world->channels.all[c].text - 1;

    if (one_in(world, 8)) {
        names_withdraw(world, tenant, text);
        core_unmake_channel(made, world->now_ns);
        return;
    }
    core_channel_made(made, channels_link(world, c));
    names_serve(world, tenant, text);
}

static void step_make(struct world *world) {
    unsigned l = pick_row_or_lease(world), text = (unsigned)random_below(world, SIM_NAMES), c = 0;
    struct channel *made = NULL;

    while (c < SIM_CHANNELS && (world->channels.all[c].used || world->channels.all[c].is_linked))
        c++;
    if (l == SIM_LEASES || c == SIM_CHANNELS)
        return;
    unsigned s = one_in(world, 16) ? pick_session(world, false) : world->leases[l].session;
    if (s == SIM_SESSIONS)
        return;
    struct proto_make_channel make = {.lease = world->leases[l].id,
                                      .generation = world->leases[l].generation};
    draw_capacities(world, world->blocks[world->leases[l].block].capacity, &make);
    snprintf(make.name, sizeof make.name, "%s", names_text(text));
    const struct proto_token tokens[2] = {token_make(world->next_token + 1),
                                          token_make(world->next_token + 2)};
    world->next_token += 2;
    int expected = s == world->leases[l].session ? judge_make(world, l, text, &make) : PROTO_E_STALE;
    int r = core_make_channel(world->sessions[s].session, &make, tokens, world->now_ns, &made);
    if (out_of_memory(r)) {
        if (expected == 0)
            note_token(world, l);
        return;
    }
    must(r == expected, "the maker of a channel gets another answer than is right");
    if (r != 0)
        return;
    note_made(world, c, l, text, &make, made);
    make_pages(world, c, made);
}

static void step_join(struct world *world) {
    static const uint32_t places[] = {
        PROTO_CHANNEL_PRODUCER,     1, 2, PROTO_CHANNEL_ANY_CONSUMER, PROTO_CHANNEL_ANY_CONSUMER,
        PROTO_CHANNEL_CONSUMERS_MAX};
    unsigned s = pick_session(world, false), text = (unsigned)random_below(world, SIM_NAMES);

    if (s == SIM_SESSIONS)
        return;
    const struct model_name_wait wait = {
        .flags = NAME_WAIT_JOIN, .place = places[random_below(world, sizeof places / sizeof *places)]};
    ask_for_name(world, s, text, wait);
}

/* Draws a channel that is there, mostly; SIM_CHANNELS: another number is to be tried. */
static unsigned draw_channel(struct world *world) {
    unsigned start = (unsigned)random_below(world, SIM_CHANNELS);

    for (unsigned i = 0; i < SIM_CHANNELS && !one_in(world, 32); i++)
        if (world->channels.all[(start + i) % SIM_CHANNELS].used)
            return (start + i) % SIM_CHANNELS;
    return SIM_CHANNELS;
}

/* Draws a session, mostly one that is in the channel, and a place, mostly its own. */
static unsigned draw_member(struct world *world, unsigned c, unsigned *ret_place) {
    unsigned start = (unsigned)random_below(world, PROTO_CHANNEL_PLACES);

    *ret_place = start;
    for (unsigned i = 0; i < PROTO_CHANNEL_PLACES && c < SIM_CHANNELS && !one_in(world, 32); i++) {
        unsigned place = (start + i) % PROTO_CHANNEL_PLACES;
        unsigned session = world->channels.all[c].places[place].session;
        if (session == 0 || world->sessions[session - 1].lost)
            continue;
        *ret_place = one_in(world, 8) ? start : place;
        return one_in(world, 8) ? pick_session(world, false) : session - 1;
    }
    return pick_session(world, false);
}

static void step_leave(struct world *world) {
    unsigned place, c = draw_channel(world), s = draw_member(world, c, &place);

    if (s == SIM_SESSIONS)
        return;
    bool is_own = c < SIM_CHANNELS && world->channels.all[c].places[place].session == s + 1;
    const struct proto_channel_page_name left = {
        .channel =
            c < SIM_CHANNELS ? world->channels.all[c].id : random_below(world, world->last_generation + 2),
        .page = place};
    if (c == SIM_CHANNELS)
        for (unsigned i = 0; i < SIM_CHANNELS; i++)
            if (world->channels.all[i].used && world->channels.all[i].id == left.channel)
                return; /* drawn by chance */
    if (is_own)
        channels_leave_place(world, c, place);
    int r = core_leave_channel(world->sessions[s].session, &left, world->now_ns);
    must(r == (is_own ? 0 : PROTO_E_STALE), "a session leaves a place that it does not have, or not its own");
}

/* Any session of the user may end a channel, by its name and its number. */
static void step_end(struct world *world) {
    unsigned c = draw_channel(world), s = pick_session(world, false);

    if (s == SIM_SESSIONS || c == SIM_CHANNELS || world->channels.all[c].text == 0)
        return;
    const struct model_channel *channel = &world->channels.all[c];
    unsigned tenant = channel->tenant, text = channel->text - 1;
    struct proto_unpublish wanted = {.generation = one_in(world, 2) ? channel->id : 0};
    snprintf(wanted.name, sizeof wanted.name, "%s", names_text(text));
    if (world->sessions[s].tenant != tenant)
        return;
    names_withdraw(world, tenant, text);
    must(core_unpublish(world->sessions[s].session, &wanted, world->now_ns) == 0,
         "a channel cannot be ended");
}

static void step_page(struct world *world) {
    unsigned place, c = draw_channel(world), s = draw_member(world, c, &place);
    struct channel *channel;
    bool is_own, is_member = false;

    if (s == SIM_SESSIONS || c == SIM_CHANNELS)
        return;
    const struct model_channel *own = &world->channels.all[c];
    const struct proto_channel_page_name wanted = {
        .channel = own->id, .page = (uint32_t)random_below(world, PROTO_CHANNEL_PLACES + 1)};
    for (unsigned i = 0; i < PROTO_CHANNEL_PLACES; i++)
        is_member = is_member || own->places[i].session == s + 1;
    int r = core_find_channel_page(world->sessions[s].session, &wanted, &channel, &is_own);
    must(r == (!is_member                                      ? PROTO_E_STALE
               : wanted.page > own->capacities.n_consumers + 1 ? PROTO_E_INVALID
                                                               : 0),
         "a session gets a page that it may not have, or not its own");
    must(r != 0 || (channel->id == own->id &&
                    is_own == (wanted.page > 0 && own->places[wanted.page - 1].session == s + 1)),
         "a session may write a page that is another's, or may not write its own");
}

void step_channels(struct world *world) {
    static void (*const steps[])(struct world * world) = {
        step_make, step_make, step_join, step_join, step_join, step_join, step_leave, step_end, step_page};

    steps[random_below(world, sizeof steps / sizeof *steps)](world);
    model_see(world);
    must(core_is_valid(world->core), "the core is not valid");
}
