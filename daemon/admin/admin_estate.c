/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/admin/admin_estate.h"

#include <stdlib.h>

#include "daemon/admin/admin_report.h"
#include "daemon/core/core.h"
#include "daemon/core/pool.h"
#include "daemon/data/client.h"
#include "daemon/data/clients.h"
#include "daemon/keeper/keeper.h"
#include "daemon/loop/desk.h"
#include "daemon/loop/store.h"

/* Why the estate is not held although there is one; NULL: it is. */
static const char *manager_missing(const struct store *store) {
    if (store->manager == STORE_ADRIFT)
        return "the daemon's keeper has ended: start a keeper with the same options, and it takes the daemon "
               "on";
    if (store->manager == STORE_MOVING)
        return "another keeper takes the daemon on, and does not have all descriptors yet: ask again";
    return NULL;
}

const char *estate_missing(const struct admin_terms *terms) {
    if (terms->desk->estate != NULL)
        return manager_missing(terms->store);
    if (terms->store->is_let_go)
        return "it was let go by 'gpupoolctl estate --drop': a restart ends all sessions";
    if (terms->store->is_private)
        return "this is a private daemon, which ends with its program";
    if (!store_is_there(terms->store))
        return "no service manager stores descriptors for the daemon: run it with --keeper, or as a unit of "
               "systemd "
               "with FileDescriptorStoreMax= and, before systemd 254, Environment=FDSTORE=";
    if (terms->store->complained)
        return "the service manager had no room for it: raise FileDescriptorStoreMax= of the unit, or the "
               "keeper's hard limit of descriptors, and restart the daemon";
    return "it could not be made, as the log of the start says: a restart ends all sessions";
}

static void add_format(cJSON *object, const struct estate *estate) {
    cJSON *format = cJSON_AddObjectToObject(object, "format");

    report_integer(format, "major", ESTATE_MAJOR);
    report_integer(format, "desk", DESK_VERSION);
    cJSON *kinds = cJSON_AddArrayToObject(format, "kinds");
    for (unsigned kind = 1; estate != NULL && kind <= estate->n_kinds; kind++) {
        if (estate_room(estate, kind) == 0)
            continue;
        cJSON *entry = cJSON_CreateObject();
        report_integer(entry, "kind", kind);
        report_integer(entry, "size_bytes", estate->kinds[kind].size_bytes);
        cJSON_AddBoolToObject(entry, "holds", estate->kinds[kind].holds);
        cJSON_AddItemToArray(kinds, entry);
    }
}

/* Without its socket or its page, a session ends with the daemon. */
static bool has_what_it_needs(const struct client *client) {
    return client->stored.socket[0] != '\0' &&
           (client->page.memory == NULL || client->stored.page[0] != '\0');
}

bool estate_keeps(const struct session *session) {
    const struct client *client = session->owner;

    return session->core->estate != NULL && client != NULL && client->record != 0 &&
           client->clients->terms.store->manager == STORE_HELD &&
           (session->state == SESSION_QUARANTINED || has_what_it_needs(client));
}

static void add_sessions(cJSON *object, const struct core *core) {
    cJSON *sessions = cJSON_AddObjectToObject(object, "sessions");
    uint64_t n_kept = 0, n_lost = 0;

    list_for_each_entry(const struct session, session, &core->sessions, link) {
        bool is_kept = estate_keeps(session);
        n_kept += is_kept;
        n_lost += !is_kept;
    }
    report_integer(sessions, "kept", n_kept);
    report_integer(sessions, "lost", n_lost);
}

/* is_held: the next daemon gets what is stored. */
static void add_pools(cJSON *object, const struct core *core, bool is_held) {
    cJSON *pools = cJSON_AddArrayToObject(object, "pools");

    for (unsigned i = 0; i < core->n_pools; i++) {
        const struct pool *pool = core->pools[i];
        uint64_t kept_bytes = 0, n_kept = 0, n_lost = 0;
        list_for_each_entry(const struct segment, segment, &pool->segments, link) {
            bool is_kept = is_held && segment->label.stored[0] != '\0';
            n_kept += is_kept;
            n_lost += !is_kept;
            kept_bytes += is_kept ? segment->size_bytes : 0;
        }
        cJSON *entry = cJSON_CreateObject();
        report_integer(entry, "id", pool->id);
        report_integer(entry, "kept_segments", n_kept);
        report_integer(entry, "kept_bytes", kept_bytes);
        report_integer(entry, "lost_segments", n_lost);
        report_integer(entry, "lost_bytes", pool->reserved_bytes - pool->retiring_bytes - kept_bytes);
        report_integer(entry, "orphans", pool->n_orphans);
        report_integer(entry, "orphan_bytes", pool->orphan_bytes);
        cJSON_AddItemToArray(pools, entry);
    }
}

void report_estate(cJSON *reply, const struct admin_terms *terms) {
    const struct estate *estate = terms->desk->estate;
    const struct estate_head *head = estate != NULL ? (const void *)estate->memory : NULL;
    cJSON *object = cJSON_AddObjectToObject(reply, "estate");

    bool is_held = estate_missing(terms) == NULL;
    cJSON_AddBoolToObject(object, "kept", is_held);
    report_string(object, "why", estate_missing(terms));
    report_string(object, "manager",
                  !store_is_there(terms->store) || terms->store->manager != STORE_HELD ? NULL
                  : getenv(KEEPER_DEATHS) != NULL                                      ? "keeper"
                                                                                       : "systemd");
    report_integer(object, "incarnation", head != NULL ? head->incarnation : 0);
    report_integer(object, "records", estate != NULL ? estate->n_records : 0);
    report_integer(object, "bytes", estate != NULL ? estate->n_chunks * ESTATE_CHUNK_BYTES : 0);
    add_format(object, estate);
    cJSON *descriptors = cJSON_AddObjectToObject(object, "descriptors");
    report_integer(descriptors, "stored", terms->store->count);
    report_integer(descriptors, "limit", terms->store->limit);
    report_integer(descriptors, "segments", terms->store->n_segments);
    report_integer(descriptors, "segments_limit", terms->core->stored_segments_limit);
    cJSON_AddBoolToObject(descriptors, "refused",
                          terms->store->complained || terms->store->complained_of_segments);
    add_sessions(object, terms->core);
    add_pools(object, terms->core, is_held);
}
