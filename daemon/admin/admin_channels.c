/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/admin/admin_channels.h"

#include <stdbool.h>
#include <stdint.h>

#include "daemon/admin/admin_report.h"
#include "daemon/admin/admin_terms.h"
#include "daemon/core/types.h"
#include "daemon/data/channels.h"

/* Channels that one reply tells of: with all places some 250 KiB. */
#define CHANNELS_TOLD 64u

/* Bytes of marks that are read for one reply: some 1 ms. Pages of later channels are not read. */
#define ACCOUNT_BYTES_MAX (UINT64_C(4) << 20)

static const char *policy_word(uint64_t policy) {
    return policy == PROTO_CHANNEL_WAIT          ? "wait"
           : policy == PROTO_CHANNEL_DROP_OLDEST ? "drop-oldest"
                                                 : "fail";
}

static const char *state_word(enum proto_channel_state state) {
    static const char *const words[] = {[PROTO_CHANNEL_EMPTY] = "empty",
                                        [PROTO_CHANNEL_TAKEN] = "taken",
                                        [PROTO_CHANNEL_DYING] = "dying",
                                        [PROTO_CHANNEL_VACANT] = "vacant",
                                        [PROTO_CHANNEL_LEFT] = "left"};
    return words[state];
}

static void put_pid(cJSON *object, const struct session *session) {
    report_optional(object, "pid", session != NULL, session != NULL ? report_pid(session->peer.pid) : 0);
}

/* account: NULL: it is not known. */
static cJSON *describe_place(const struct channel *channel, unsigned number,
                             const struct channel_account *account) {
    const struct channel_place *place = &channel->places[number];
    bool is_told = account != NULL && number != PROTO_CHANNEL_PRODUCER;
    unsigned i = is_told ? number - 1 : 0;
    cJSON *object = cJSON_CreateObject();

    report_integer(object, "place", number);
    cJSON_AddStringToObject(object, "state", state_word(place->state));
    report_optional(object, "session", place->last_session > 0, place->last_session);
    put_pid(object, place->session);
    report_string(object, "command", place->session != NULL ? place->session->peer.command : NULL);
    report_integer(object, "processes", place->processes);
    report_optional(object, "received", is_told, is_told ? account->consumers[i].received : 0);
    report_optional(object, "behind", is_told, is_told ? account->consumers[i].behind : 0);
    report_optional(object, "held", is_told, is_told ? account->consumers[i].held : 0);
    return object;
}

static cJSON *describe_channel(const struct channel *channel, const struct channel_account *account) {
    const struct proto_channel_capacities *capacities = &channel->capacities;
    const struct block *block = channel->parcel->block;
    cJSON *object = cJSON_CreateObject();

    report_integer(object, "id", channel->id);
    report_string(object, "name", channel->name != NULL ? channel->name->text : NULL);
    report_integer(object, "uid", channel->tenant->id.uid);
    report_scope_name(object, channel->tenant->scope);
    report_integer(object, "pool", block->segment->pool->id);
    report_integer(object, "bytes", block->held_bytes);
    report_integer(object, "slots", capacities->n_slots);
    report_integer(object, "slot_bytes", capacities->slot_bytes);
    report_integer(object, "metadata_bytes", capacities->metadata_bytes);
    report_integer(object, "consumers", capacities->n_consumers);
    cJSON_AddStringToObject(object, "policy", policy_word(capacities->policy));
    cJSON_AddBoolToObject(object, "kept", (channel->flags & PROTO_MAKE_CHANNEL_KEEP) != 0);
    report_integer(object, "session", channel->maker);
    put_pid(object, channel->session);
    cJSON_AddStringToObject(object, "maker", report_state_word(channel->session));
    report_integer(object, "waiting", channel->name != NULL ? list_length(&channel->name->waits) : 0);
    report_optional(object, "sent", account != NULL, account != NULL ? account->sent : 0);
    cJSON *places = cJSON_AddArrayToObject(object, "places");
    for (unsigned i = 0; i <= capacities->n_consumers; i++)
        cJSON_AddItemToArray(places, describe_place(channel, i, account));
    return object;
}

void report_channels(cJSON *reply, const struct admin_terms *terms, uid_t uid) {
    cJSON *channels = cJSON_AddArrayToObject(reply, "channels");
    uint64_t n_told = 0, total = 0, read_bytes = 0;

    list_for_each_entry(const struct channel, channel, &terms->core->channels, link) {
        const struct proto_channel_capacities *capacities = &channel->capacities;
        struct channel_account account;
        if (!report_may_tell(uid, channel->tenant->id))
            continue;
        total++;
        if (n_told >= CHANNELS_TOLD)
            continue;
        n_told++;
        read_bytes += capacities->n_consumers * proto_channel_consumer_bytes(capacities);
        bool is_read =
            read_bytes <= ACCOUNT_BYTES_MAX && channels_read_account(terms->channels, channel, &account);
        cJSON_AddItemToArray(channels, describe_channel(channel, is_read ? &account : NULL));
    }
    report_integer(reply, "total", total);
}

void report_channels_of_pool(cJSON *object, const struct pool *pool) {
    uint64_t n_channels = 0, bytes = 0, n_vacant = 0;

    list_for_each_entry(const struct channel, channel, &pool->core->channels, link) {
        const struct block *block = channel->parcel->block;
        if (block->segment->pool != pool)
            continue;
        n_channels++;
        bytes += block->held_bytes;
        for (unsigned i = 1; i <= channel->capacities.n_consumers; i++)
            n_vacant += channel->places[i].state == PROTO_CHANNEL_VACANT;
    }
    report_integer(object, "channels", n_channels);
    report_integer(object, "channel_bytes", bytes);
    report_integer(object, "vacant_consumers", n_vacant);
}
