/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/admin/admin_names.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/units.h"
#include "daemon/admin/admin_report.h"
#include "daemon/core/core.h"
#include "daemon/core/name.h"
#include "daemon/core/tenant.h"
#include "daemon/loop/log.h"

/* Names that one reply tells of: some 150 KiB. With PROTO_NAME_BUFFERS_MAX buffers each some 200 us. */
#define NAMES_TOLD 256u

/* A layout is 64 bits, of which JSON's numbers hold 53: 16 digits, as printf()'s %016x has them. */
#define LAYOUT_SIZE 17u

/* A set is open in as many sessions as have its buffers. All leases of a buffer count: a session has one for
 * each time that it opened the name, and the publisher its own. */
static unsigned count_holders(const struct edition *edition) {
    unsigned most = 0;

    for (unsigned i = 0; i < edition->n_parcels; i++) {
        const struct block *block = edition->parcels[i]->block;
        unsigned n = block->live + block->quarantined;
        most = n > most ? n : most;
    }
    return most;
}

/* Adds what the name stands for: null, 0 and false where that is nothing. */
static void put_edition(cJSON *object, const struct edition *edition, uint64_t now_ns) {
    bool is_there = edition != NULL;
    char layout[LAYOUT_SIZE];

    snprintf(layout, sizeof layout, "%016" PRIx64, is_there ? edition->layout : 0);
    report_optional(object, "generation", is_there, is_there ? edition->generation : 0);
    cJSON_AddBoolToObject(object, "kept", is_there && (edition->flags & PROTO_PUBLISH_KEEP) != 0);
    cJSON_AddBoolToObject(object, "live", is_there && (edition->flags & PROTO_PUBLISH_LIVE) != 0);
    report_integer(object, "bytes", is_there ? edition->bytes : 0);
    report_integer(object, "buffers", is_there ? edition->n_parcels : 0);
    report_integer(object, "directory_bytes", is_there ? edition->directory_bytes : 0);
    report_string(object, "layout", is_there ? layout : NULL);
    report_optional(object, "session", is_there, is_there ? edition->publisher : 0);
    report_optional(object, "pid", is_there, is_there ? report_pid(edition->pid) : 0);
    report_string(object, "publisher", is_there ? report_state_word(edition->session) : NULL);
    report_optional(object, "age_ns", is_there,
                    is_there && now_ns > edition->published_ns ? now_ns - edition->published_ns : 0);
    report_integer(object, "opens", is_there ? edition->n_opens : 0);
    report_integer(object, "holders", is_there ? count_holders(edition) : 0);
}

/* Adds the channel that the name stands for, which admin_channels.h tells more of. */
static void put_channel(cJSON *object, const struct channel *channel) {
    const struct session *maker = channel->session;
    const struct block *block = channel->parcel->block;

    report_integer(object, "generation", channel->id);
    cJSON_AddBoolToObject(object, "kept", (channel->flags & PROTO_MAKE_CHANNEL_KEEP) != 0);
    cJSON_AddBoolToObject(object, "live", true);
    report_integer(object, "bytes", block->held_bytes);
    report_integer(object, "buffers", 1);
    report_integer(object, "directory_bytes", 0);
    report_string(object, "layout", NULL);
    report_integer(object, "session", channel->maker);
    report_optional(object, "pid", maker != NULL, maker != NULL ? report_pid(maker->peer.pid) : 0);
    report_string(object, "publisher", report_state_word(maker));
    report_optional(object, "age_ns", false, 0);
    report_integer(object, "opens", 0);
    report_integer(object, "holders", block->live + block->quarantined);
}

static cJSON *describe_name(const struct name *name, uint64_t now_ns) {
    const struct session *builder = name->builder;
    cJSON *object = cJSON_CreateObject();

    cJSON_AddStringToObject(object, "name", name->text);
    report_integer(object, "uid", name->tenant->id.uid);
    report_scope_name(object, name->tenant->scope);
    cJSON_AddBoolToObject(object, "channel", name->channel != NULL);
    if (name->channel != NULL)
        put_channel(object, name->channel);
    else
        put_edition(object, name->edition, now_ns);
    report_optional(object, "builder_session", builder != NULL, builder != NULL ? builder->id : 0);
    report_optional(object, "builder_pid", builder != NULL,
                    builder != NULL ? report_pid(builder->peer.pid) : 0);
    report_integer(object, "waiting", list_length(&name->waits));
    return object;
}

void report_names(cJSON *reply, const struct core *core, uid_t uid) {
    cJSON *names = cJSON_AddArrayToObject(reply, "names");
    uint64_t now_ns = clock_now_ns(), total = 0;
    unsigned n_told = 0;

    list_for_each_entry(const struct tenant, tenant, &core->tenants, link) {
        if (!report_may_tell(uid, tenant->id))
            continue;
        total += tenant->n_names;
        for (const struct name *name = name_after(tenant, 0); name != NULL && n_told < NAMES_TOLD;
             name = name_after(tenant, name->id)) {
            cJSON_AddItemToArray(names, describe_name(name, now_ns));
            n_told++;
        }
    }
    report_integer(reply, "total", total);
}

/* The bytes that come back when the edition ends, because nothing else holds them. */
static uint64_t held_alone(const struct edition *edition) {
    uint64_t bytes = 0;

    for (unsigned i = 0; i < edition->n_parcels; i++) {
        const struct block *block = edition->parcels[i]->block;
        bytes += block->live == 0 && block->n_parcels == 1 ? block->held_bytes : 0;
    }
    return bytes;
}

/* The bytes of a channel that come back when it ends: no process is in a place, and no other one has the block. */
static uint64_t held_by_channel(const struct channel *channel) {
    const struct block *block = channel->parcel->block;

    for (unsigned i = 0; i <= channel->capacities.n_consumers; i++)
        if (channel->places[i].session != NULL)
            return 0;
    return block->live + block->quarantined == 0 && block->n_parcels == 1 ? block->held_bytes : 0;
}

int names_unpublish(cJSON *reply, struct core *core, uid_t asker, struct tenant_id owner, const char *text) {
    const struct tenant *tenant = tenant_find(core, owner);
    const struct name *name = tenant != NULL ? name_find(tenant, text) : NULL;
    const struct edition *edition = name != NULL ? name->edition : NULL;
    const struct channel *channel = name != NULL ? name->channel : NULL;
    uint64_t bytes, came_bytes, number;

    if (channel != NULL) {
        bytes = channel->parcel->block->held_bytes;
        came_bytes = held_by_channel(channel);
        number = channel->id;
    } else if (edition != NULL) {
        bytes = edition->bytes;
        came_bytes = held_alone(edition);
        number = edition->generation;
    } else {
        return PROTO_E_NO_NAME;
    }
    log_info("user %u unpublishes '%s' of user %u%s%s: %s in %s%s, of which %s came back", (unsigned)asker,
             name->text, (unsigned)owner.uid, tenant->scope != NULL ? " of scope " : "",
             tenant->scope != NULL ? tenant->scope->terms.name : "", BYTES_TEXT(bytes),
             COUNT_TEXT(edition != NULL ? edition->n_parcels : 1, "buffer"),
             channel != NULL ? " of a channel" : "", BYTES_TEXT(came_bytes));
    cJSON_AddStringToObject(reply, "name", name->text);
    report_integer(reply, "uid", owner.uid);
    report_scope_name(reply, tenant->scope);
    cJSON_AddBoolToObject(reply, "channel", channel != NULL);
    report_integer(reply, "generation", number);
    report_integer(reply, "bytes", bytes);
    report_integer(reply, "came_bytes", came_bytes);
    return core_unpublish_of(core, owner, text, clock_now_ns());
}
