/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/channel.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "daemon/core/kept.h"
#include "daemon/core/lease.h"
#include "daemon/core/parcel.h"

static unsigned n_places(const struct channel *channel) {
    return 1 + (unsigned)channel->capacities.n_consumers;
}

/* The roll, and a page for each place: as the shell makes them. */
static uint64_t n_pages(uint64_t n_consumers) {
    return 2 + n_consumers;
}

bool channel_pages_are_left(const struct tenant *tenant, uint64_t n_consumers) {
    const struct core *core = tenant->core;
    uint64_t n = n_pages(n_consumers);

    return core->n_channel_pages + n <= core->channel_pages_limit &&
           tenant->n_channel_pages + n <= core->channel_pages_limit / 2;
}

/* The channel is one of its core's, and its name's. */
static void enter(struct channel *channel) {
    struct tenant *tenant = channel->tenant;

    if (channel->name != NULL) {
        channel->name->channel = channel;
        if ((channel->flags & PROTO_MAKE_CHANNEL_KEEP) != 0)
            charge_force(&channel->kept, &tenant->quota, QUOTA_KEPT, channel->parcel->block->held_bytes);
    }
    for (unsigned i = 0; i < PROTO_CHANNEL_PLACES; i++) {
        channel->places[i].channel = channel;
        list_init(&channel->places[i].session_link);
    }
    list_init(&channel->maker_link);
    list_init(&channel->change_link);
    list_append(&channel->core->channels, &channel->link);
    channel->core->n_channel_pages += n_pages(channel->capacities.n_consumers);
    tenant->n_channel_pages += n_pages(channel->capacities.n_consumers);
    if (channel->session != NULL)
        list_append(&channel->session->made, &channel->maker_link);
}

int channel_make(struct session *session, struct name *name, const struct proto_make_channel *make,
                 struct lease *lease, const struct proto_token *tokens, uint64_t now_ns,
                 struct channel **ret_channel) {
    struct core *core = session->core;
    struct block *block = lease->block;
    struct proto_token old;
    struct channel *channel = calloc(1, sizeof *channel);

    if (channel == NULL)
        return -ENOMEM;
    channel->core = core;
    channel->tenant = session->tenant;
    channel->name = name;
    channel->capacities = (struct proto_channel_capacities){
        make->slot_bytes, make->n_slots, make->metadata_bytes, make->n_consumers, make->policy};
    channel->flags = make->flags;
    channel->maker = session->id;
    channel->session = session;
    int r = block_share(core, block, &tokens[0], &old);
    if (r == 0)
        r = kept_add(core, KEPT_CHANNEL, channel, &channel->record);
    if (r == 0)
        r = parcel_open_ring(channel, session, block, &tokens[1], now_ns);
    if (r < 0) {
        kept_end(core, &channel->record);
        free(channel);
        return -ENOMEM;
    }
    channel->id = ++core->leases.next_generation;
    kept_number(core);
    block->size_bytes = make->slot_bytes * make->n_slots;
    kept_change(core, block->record);
    enter(channel);
    *ret_channel = channel;
    return 0;
}

struct channel *channel_find(const struct core *core, const struct tenant *tenant, uint64_t id) {
    list_for_each_entry(struct channel, channel, &core->channels, link) {
        if (channel->id == id && channel->tenant == tenant)
            return channel;
    }
    return NULL;
}

bool channel_has_place(const struct channel *channel, uint32_t place) {
    return place == PROTO_CHANNEL_ANY_CONSUMER || place < n_places(channel);
}

int channel_free_place(const struct channel *channel, uint32_t place) {
    static const enum proto_channel_state states[] = {PROTO_CHANNEL_VACANT, PROTO_CHANNEL_EMPTY,
                                                      PROTO_CHANNEL_LEFT};
    bool is_any = place == PROTO_CHANNEL_ANY_CONSUMER;
    unsigned first = is_any ? 1 : place, last = is_any ? n_places(channel) - 1 : place;

    assert(channel_has_place(channel, place));
    for (unsigned k = 0; k < sizeof states / sizeof *states; k++)
        for (unsigned i = first; i <= last; i++)
            if (channel->places[i].state == states[k])
                return (int)i;
    return -1;
}

/* The roll is to be written. */
static void changed(struct channel *channel) {
    kept_change(channel->core, channel->record);
    if (list_is_empty(&channel->change_link))
        list_append(&channel->core->channels_changed, &channel->change_link);
}

void channel_take(struct channel *channel, unsigned number, struct session *session) {
    struct channel_place *place = &channel->places[number];

    assert(place->session == NULL);
    if (place->state == PROTO_CHANNEL_LEFT)
        place->queue++;
    place->state = PROTO_CHANNEL_TAKEN;
    place->processes++;
    place->session = session;
    place->last_session = session->id;
    list_append(&session->places, &place->session_link);
    changed(channel);
}

/* No session is in the place any more. */
static void empty(struct channel_place *place, enum proto_channel_state state) {
    list_remove(&place->session_link);
    place->session = NULL;
    place->state = state;
    changed(place->channel);
}

void channel_leave(struct channel_place *place) {
    assert(place->state == PROTO_CHANNEL_TAKEN);
    empty(place, PROTO_CHANNEL_LEFT);
}

void channel_lose(struct channel_place *place) {
    assert(place->state == PROTO_CHANNEL_TAKEN);
    place->state = PROTO_CHANNEL_DYING;
    changed(place->channel);
}

void channel_vacate(struct channel_place *place) {
    assert(place->state == PROTO_CHANNEL_DYING);
    empty(place, PROTO_CHANNEL_VACANT);
}

void channel_lose_maker(struct channel *channel) {
    list_remove(&channel->maker_link);
    channel->session = NULL;
    kept_change(channel->core, channel->record);
}

void channel_end(struct channel *channel) {
    channel->name->channel = NULL;
    channel->name = NULL;
    charge_free(&channel->kept);
    kept_change(channel->core, channel->record);
}

static bool is_used(const struct channel *channel) {
    for (unsigned i = 0; i < PROTO_CHANNEL_PLACES; i++)
        if (channel->places[i].session != NULL)
            return true;
    return channel->name != NULL &&
           ((channel->flags & PROTO_MAKE_CHANNEL_KEEP) != 0 || channel->session != NULL);
}

struct name *channel_drop_if_unused(struct channel *channel) {
    struct name *name = channel->name;

    if (is_used(channel))
        return NULL;
    channel_free(channel);
    return name;
}

void channel_free(struct channel *channel) {
    struct core *core = channel->core;

    if (channel->name != NULL)
        channel_end(channel);
    for (unsigned i = 0; i < PROTO_CHANNEL_PLACES; i++)
        list_remove(&channel->places[i].session_link);
    list_remove(&channel->maker_link);
    list_remove(&channel->change_link);
    list_remove(&channel->link);
    core->n_channel_pages -= n_pages(channel->capacities.n_consumers);
    channel->tenant->n_channel_pages -= n_pages(channel->capacities.n_consumers);
    parcel_close(core, channel->parcel);
    kept_end(core, &channel->record);
    if (channel->shell_link != NULL)
        list_append(&core->channels_gone, channel->shell_link);
    free(channel);
}

bool channel_has_member(const struct channel *channel, const struct session *session) {
    for (unsigned i = 0; i < PROTO_CHANNEL_PLACES; i++)
        if (channel->places[i].session == session)
            return true;
    return false;
}

void channel_describe(const struct channel *channel, uint32_t place, struct proto_channel_reply *ret_reply) {
    *ret_reply = (struct proto_channel_reply){
        .channel = channel->id,
        .token = channel->parcel->token,
        .slot_bytes = channel->capacities.slot_bytes,
        .n_slots = channel->capacities.n_slots,
        .metadata_bytes = channel->capacities.metadata_bytes,
        .n_consumers = channel->capacities.n_consumers,
        .policy = channel->capacities.policy,
        .place = place,
        .pool = channel->parcel->block->segment->pool->id,
    };
}

void channel_list(const struct channel *channel, struct proto_listed_name *ret_listed) {
    bool is_kept = (channel->flags & PROTO_MAKE_CHANNEL_KEEP) != 0;

    ret_listed->generation = channel->id;
    ret_listed->bytes = channel->parcel->block->held_bytes;
    ret_listed->session = channel->maker;
    ret_listed->flags = PROTO_NAME_CHANNEL | (is_kept ? PROTO_PUBLISH_KEEP : 0);
    ret_listed->count = 1;
}

int channel_restore(const struct channel *wanted, struct block *block, const struct proto_token *token,
                    struct channel **ret_channel) {
    _cleanup_(freep) struct channel *channel = malloc(sizeof *channel);

    if (channel == NULL)
        return -ENOMEM;
    *channel = *wanted;
    int r = parcel_open_ring(channel, NULL, block, token, 0);
    if (r < 0)
        return r;
    enter(channel);
    *ret_channel = take_ptr(&channel);
    return 0;
}

static bool place_is_valid(const struct channel_place *place, bool is_there) {
    bool is_occupied = place->state == PROTO_CHANNEL_TAKEN || place->state == PROTO_CHANNEL_DYING;
    const struct session *session = place->session;

    return (is_there || place->state == PROTO_CHANNEL_EMPTY) && (session != NULL) == is_occupied &&
           list_is_empty(&place->session_link) != is_occupied &&
           (session == NULL ||
            (session->tenant == place->channel->tenant && session->id == place->last_session &&
             (session->state == SESSION_ACTIVE) == (place->state == PROTO_CHANNEL_TAKEN)));
}

static uint64_t pages_of(const struct core *core, const struct tenant *tenant) {
    uint64_t n = 0;

    list_for_each_entry(const struct channel, channel, &core->channels, link) {
        n += channel->tenant == tenant ? n_pages(channel->capacities.n_consumers) : 0;
    }
    return n;
}

/* Whether the pages are counted right. */
static bool pages_are_valid(const struct core *core) {
    uint64_t n_all = 0;

    list_for_each_entry(const struct tenant, tenant, &core->tenants, link) {
        if (tenant->n_channel_pages != pages_of(core, tenant))
            return false;
        n_all += tenant->n_channel_pages;
    }
    return n_all == core->n_channel_pages;
}

bool channels_are_valid(const struct core *core) {
    if (!pages_are_valid(core))
        return false;
    list_for_each_entry(const struct channel, channel, &core->channels, link) {
        const struct block *block = channel->parcel->block;
        for (unsigned i = 0; i < PROTO_CHANNEL_PLACES; i++)
            if (channel->places[i].channel != channel ||
                !place_is_valid(&channel->places[i], i < n_places(channel)))
                return false;
        if (!proto_channel_are_valid(&channel->capacities) || channel->parcel->channel != channel ||
            block->segment->owner->tenant != channel->tenant ||
            block->capacity_bytes / channel->capacities.n_slots < channel->capacities.slot_bytes ||
            (channel->name != NULL &&
             (channel->name->channel != channel || channel->name->tenant != channel->tenant)) ||
            channel->kept.amount != (channel->name != NULL && (channel->flags & PROTO_MAKE_CHANNEL_KEEP) != 0
                                         ? block->held_bytes
                                         : 0) ||
            (channel->session != NULL && channel->session->id != channel->maker) || !is_used(channel))
            return false;
    }
    return true;
}
