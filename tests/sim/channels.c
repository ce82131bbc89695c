/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels, as the model has them: the places, the sessions in them, and the end of each channel. The model knows the
 * rules of daemon/core/channel.h. It follows none of the core's pointers, except where a successor begins: the order in
 * which a session leaves its places is the core's own. Channels are in one of two worlds with names, and draw from the
 * numbers of names.
 */
#include <string.h>

#include "tests/sim/world.h"

#define CHANNELS_SALT                                                                                        \
    UINT64_C(0x6368616e6e656c) /* whether there are channels has nothing to do with other draws */

static struct list
    links[SIM_CHANNELS]; /* each stands for the shell's object of the channel with this number */

void channels_begin(struct world *world) {
    uint64_t state = random_seed(world->seed ^ CHANNELS_SALT);

    world->channels =
        (struct model_channels){.are_there = world->names.are_there && random_next(&state) % 2 == 0};
    if (random_next(&state) % 4 == 0)
        world->core->channel_pages_limit = 8 + (uint32_t)(random_next(&state) % 40);
    for (unsigned c = 0; c < SIM_CHANNELS; c++)
        list_init(&links[c]);
}

struct list *channels_link(struct world *world, unsigned c) {
    world->channels.all[c].is_linked = true;
    return &links[c];
}

/* --- what there is --- */

unsigned channels_find(const struct world *world, unsigned tenant, unsigned text) {
    unsigned c = 0;

    while (c < SIM_CHANNELS && !(world->channels.all[c].used && world->channels.all[c].tenant == tenant &&
                                 world->channels.all[c].text == text + 1))
        c++;
    return c;
}

unsigned channels_of_tenant(const struct world *world, unsigned tenant) {
    unsigned n = 0;

    for (unsigned c = 0; c < SIM_CHANNELS; c++)
        n += world->channels.all[c].used && world->channels.all[c].tenant == tenant;
    return n;
}

bool channels_have_pages(const struct world *world, unsigned tenant, uint64_t n_consumers) {
    uint64_t n_all = 2 + n_consumers, n_own = n_all, limit = world->core->channel_pages_limit;

    for (unsigned c = 0; c < SIM_CHANNELS; c++) {
        const struct model_channel *channel = &world->channels.all[c];
        uint64_t n = channel->used ? 2 + channel->capacities.n_consumers : 0;
        n_all += n;
        n_own += channel->tenant == tenant ? n : 0;
    }
    return n_all <= limit && n_own <= limit / 2;
}

uint64_t channels_kept(const struct world *world, unsigned tenant) {
    uint64_t bytes = 0;

    for (unsigned c = 0; c < SIM_CHANNELS; c++) {
        const struct model_channel *channel = &world->channels.all[c];
        if (channel->used && channel->tenant == tenant && channel->text != 0 &&
            (channel->flags & PROTO_MAKE_CHANNEL_KEEP) != 0)
            bytes += world->blocks[channel->block].held;
    }
    return bytes;
}

unsigned channels_block_of(const struct world *world, uint64_t token) {
    for (unsigned c = 0; c < SIM_CHANNELS; c++)
        if (world->channels.all[c].used && world->channels.all[c].token == token)
            return world->channels.all[c].block;
    return SIM_BLOCKS;
}

/* --- places --- */

static bool is_free(const struct model_place *place) {
    return place->session == 0;
}

int channels_free_place(const struct world *world, unsigned c, uint32_t place) {
    const struct model_channel *channel = &world->channels.all[c];
    int found = -1;

    if (place != PROTO_CHANNEL_ANY_CONSUMER)
        return is_free(&channel->places[place]) ? (int)place : -1;
    for (unsigned i = (unsigned)channel->capacities.n_consumers; i >= 1; i--) {
        /* a dead session's place holds elements; one that was never taken comes before one that was left */
        static const int ranks[] = {
            [PROTO_CHANNEL_VACANT] = 3, [PROTO_CHANNEL_EMPTY] = 2, [PROTO_CHANNEL_LEFT] = 1};
        if (is_free(&channel->places[i]) &&
            (found < 0 || ranks[channel->places[i].state] >= ranks[channel->places[found].state]))
            found = (int)i;
    }
    return found;
}

void channels_take(struct world *world, unsigned c, unsigned number, unsigned s) {
    struct model_channel *channel = &world->channels.all[c];
    struct model_place *place = &channel->places[number];

    place->queue += place->state == PROTO_CHANNEL_LEFT;
    place->processes++;
    place->state = PROTO_CHANNEL_TAKEN;
    place->session = s + 1;
    place->last_session = world->sessions[s].id;
    place->order = ++world->channels.next_order;
    channel->is_changed = true;
    world->tally->channels_joined++;
}

bool channels_has_joined(const struct world *world, const struct model_name_wait *wait) {
    unsigned c = channels_find(world, world->sessions[wait->session].tenant, wait->text);

    return c < SIM_CHANNELS && world->channels.all[c].id == wait->channel &&
           world->channels.all[c].places[wait->got].session == wait->session + 1;
}

/* --- ends --- */

static bool is_used(const struct model_channel *channel) {
    for (unsigned i = 0; i < PROTO_CHANNEL_PLACES; i++)
        if (channel->places[i].session != 0)
            return true;
    return channel->text != 0 && ((channel->flags & PROTO_MAKE_CHANNEL_KEEP) != 0 || channel->session != 0);
}

static void drop(struct world *world, unsigned c) {
    struct model_channel *channel = &world->channels.all[c];

    channel->used = false;
    world->blocks[channel->block].parcels--;
    model_end_block(world, channel->block);
}

/* A place is free, or the maker is gone: requests are answered, and the channel goes if nothing uses it. */
static void serve(struct world *world, unsigned c) {
    struct model_channel *channel = &world->channels.all[c];
    unsigned text = channel->text;

    if (text != 0)
        names_serve(world, channel->tenant, text - 1);
    if (is_used(channel))
        return;
    drop(world, c);
    if (text != 0)
        names_serve(world, channel->tenant, text - 1);
}

static void empty(struct world *world, unsigned c, unsigned number, enum proto_channel_state state) {
    world->channels.all[c].places[number].session = 0;
    world->channels.all[c].places[number].state = state;
    world->channels.all[c].is_changed = true;
}

void channels_leave_place(struct world *world, unsigned c, unsigned number) {
    empty(world, c, number, PROTO_CHANNEL_LEFT);
    world->tally->channels_left++;
    serve(world, c);
}

void channels_end(struct world *world, unsigned tenant, unsigned text) {
    unsigned c = channels_find(world, tenant, text);

    if (c == SIM_CHANNELS)
        return;
    for (unsigned w = 0; w < SIM_NAME_WAITS; w++) { /* sessions that were not told of their places */
        const struct model_name_wait *wait = &world->names.waits[w];
        if (wait->used && wait->state == NAME_WAIT_JOINED && wait->text == text &&
            world->sessions[wait->session].tenant == tenant && channels_has_joined(world, wait))
            empty(world, c, wait->got, PROTO_CHANNEL_LEFT);
    }
    world->channels.all[c].text = 0;
    if (is_used(&world->channels.all[c]))
        world->tally->channels_ended++;
    else
        drop(world, c);
}

void channels_lose_pages(struct world *world, unsigned c) {
    struct model_channel *channel = &world->channels.all[c];
    unsigned text = channel->text;

    drop(world, c);
    world->tally->channels_without_pages++;
    if (text != 0)
        names_serve(world, channel->tenant, text - 1);
}

/* The place that the session took first, of those that it has. Returns the channel's number, or SIM_CHANNELS. */
static unsigned first_of(const struct world *world, unsigned s, unsigned *ret_place) {
    unsigned first = SIM_CHANNELS;
    uint64_t order = UINT64_MAX;

    for (unsigned c = 0; c < SIM_CHANNELS; c++)
        for (unsigned i = 0; i < PROTO_CHANNEL_PLACES && world->channels.all[c].used; i++) {
            const struct model_place *place = &world->channels.all[c].places[i];
            if (place->session != s + 1 || place->order >= order)
                continue;
            order = place->order;
            *ret_place = i;
            first = c;
        }
    return first;
}

/* The session is gone, and made no channel. */
static void lose_maker(struct world *world, unsigned s) {
    for (unsigned c = 0; c < SIM_CHANNELS; c++) {
        if (!world->channels.all[c].used || world->channels.all[c].session != s + 1)
            continue;
        world->channels.all[c].session = 0;
        serve(world, c);
    }
}

void channels_leave(struct world *world, unsigned s) {
    unsigned c, place;

    while ((c = first_of(world, s, &place)) < SIM_CHANNELS)
        channels_leave_place(world, c, place);
    lose_maker(world, s);
}

void channels_lose(struct world *world, unsigned s) {
    for (unsigned c = 0; c < SIM_CHANNELS; c++)
        for (unsigned i = 0; i < PROTO_CHANNEL_PLACES && world->channels.all[c].used; i++) {
            struct model_place *place = &world->channels.all[c].places[i];
            if (place->session != s + 1)
                continue;
            place->state = PROTO_CHANNEL_DYING;
            world->channels.all[c].is_changed = true;
            world->tally->channels_lost++;
        }
}

void channels_vacate(struct world *world, unsigned s) {
    unsigned c, place;

    while ((c = first_of(world, s, &place)) < SIM_CHANNELS) {
        empty(world, c, place, PROTO_CHANNEL_VACANT);
        world->tally->channels_vacated++;
        serve(world, c);
    }
    lose_maker(world, s);
}

/* --- what the shell gets --- */

void channels_check_answer(const struct world *world, const struct model_name_wait *wait,
                           const struct name_answer *answer) {
    const struct proto_channel_reply *reply = &answer->channel;
    const struct model_channel *channel =
        &world->channels.all[channels_find(world, world->sessions[wait->session].tenant, wait->text)];
    const struct proto_token token = token_make(channel->token);
    const struct proto_channel_capacities capacities = {
        reply->slot_bytes, reply->n_slots, reply->metadata_bytes, reply->n_consumers, reply->policy};

    must(reply->channel == channel->id && memcmp(&reply->token, &token, sizeof token) == 0 &&
             memcmp(&capacities, &channel->capacities, sizeof capacities) == 0 &&
             reply->pool == world->segments[world->blocks[channel->block].segment].pool + 1,
         "a channel is described as another");
    must(reply->place == wait->got, "a session is told of another place than it has");
}

/* The core's channel has the places that the model has. */
static void compare_places(const struct world *world, const struct model_channel *own,
                           const struct channel *channel) {
    for (unsigned i = 0; i < PROTO_CHANNEL_PLACES; i++) {
        const struct model_place *place = &own->places[i];
        const struct channel_place *there = &channel->places[i];
        must(there->state == place->state && there->queue == place->queue &&
                 there->processes == place->processes && there->last_session == place->last_session &&
                 there->session == (place->session != 0 ? world->sessions[place->session - 1].session : NULL),
             "a place of a channel is in another state");
    }
}

static unsigned find_by_id(const struct world *world, uint64_t id) {
    unsigned c = 0;

    while (c < SIM_CHANNELS && !(world->channels.all[c].used && world->channels.all[c].id == id))
        c++;
    return c;
}

void channels_drain(struct world *world) {
    struct channel *channel;
    struct list *link;

    while (core_next_channel(world->core, &channel)) {
        unsigned c = find_by_id(world, channel->id);
        must(c < SIM_CHANNELS && world->channels.all[c].is_changed,
             "a channel is told of that has not changed");
        world->channels.all[c].is_changed = false;
        world->tally->channels_told++;
    }
    while ((link = core_next_channel_gone(world->core)) != NULL) {
        struct model_channel *own = &world->channels.all[link - links];
        must(!own->used && own->is_linked, "the pages of a channel are to be freed that is there");
        own->is_linked = false;
        world->tally->channels_gone++;
    }
    for (unsigned c = 0; c < SIM_CHANNELS; c++) {
        must(!world->channels.all[c].used || !world->channels.all[c].is_changed,
             "a channel has changed, and the shell is not told");
        must(world->channels.all[c].used || !world->channels.all[c].is_linked,
             "the pages of a channel are left");
    }
}

void channels_check(const struct world *world) {
    unsigned n = 0, n_there = 0;

    for (unsigned c = 0; c < SIM_CHANNELS; c++)
        n += world->channels.all[c].used;
    list_for_each_entry(const struct channel, channel, &world->core->channels, link) {
        unsigned c = find_by_id(world, channel->id);
        must(c < SIM_CHANNELS, "a channel is there too long");
        const struct model_channel *own = &world->channels.all[c];
        compare_places(world, own, channel);
        must((channel->name != NULL ? strcmp(channel->name->text, names_text(own->text - 1)) == 0
                                    : own->text == 0) &&
                 channel->session == (own->session != 0 ? world->sessions[own->session - 1].session : NULL) &&
                 channel->maker == own->maker && channel->flags == own->flags,
             "a channel is of another name, or another session's");
        n_there++;
    }
    must(n == n_there, "a channel has ended too early");
}

/* --- successors --- */

void channels_bind(struct world *world) {
    for (unsigned c = 0; c < SIM_CHANNELS; c++) {
        list_init(&links[c]);
        world->channels.all[c].is_linked = false;
        world->channels.all[c].is_changed = false; /* the shell writes all rolls when it finds the pages */
    }
    channels_check(world);
    list_for_each_entry(const struct session, session, &world->core->sessions, link) {
        list_for_each_entry(const struct channel_place, place, &session->places, session_link) {
            unsigned c = find_by_id(world, place->channel->id);
            world->channels.all[c].places[place - place->channel->places].order =
                ++world->channels.next_order;
        }
    }
}

void channels_restart(struct world *world) {
    list_for_each_entry_safe(struct channel, channel, &world->core->channels, link) {
        unsigned c = find_by_id(world, channel->id);
        if (names_draw(world, 8) > 0) {
            channel->shell_link = channels_link(world, c);
            continue;
        }
        channels_lose_pages(world, c);
        core_lose_channel(channel, world->now_ns);
        model_see(world);
    }
}
