/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/succession.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hex.h"
#include "base/units.h"
#include "daemon/core/core.h"
#include "daemon/core/inherit.h"
#include "daemon/core/scope.h"
#include "daemon/data/clients.h"
#include "daemon/data/inheritance.h"
#include "daemon/loop/die_here.h"
#include "daemon/loop/log.h"
#include "daemon/supply/supplier.h"

/* Deaths before READY after which an estate is let go. */
#define DEATHS_MAX 3u

#ifdef GPUPOOL_PLANT_DEATHS
static void die_before_store(void *argument, void *to, const void *from, size_t size_bytes) {
    (void)argument, (void)to, (void)from, (void)size_bytes;
    die_here();
}
#else
#define die_before_store NULL
#endif

static struct estate_owner owner_of(struct succession *succession) {
    return (struct estate_owner){
        .grow = estate_file_grow, .before_store = die_before_store, .argument = &succession->file};
}

static void fill_kinds(struct estate_kind *kinds) {
    memcpy(kinds, kept_kinds, sizeof kept_kinds);
    kept_data_kinds(kinds);
}

/* --- opening --- */

/* There is no estate, for want of memory or of room in the store. */
static void do_without(struct succession *succession, int error) {
    log_warning("there is no estate (%s): a restart of the daemon ends all sessions", strerror(-error));
    estate_file_close(&succession->file);
    succession->desk = (struct desk){0};
}

static void make(struct succession *succession, const struct identity *identity) {
    const struct estate_owner owner = owner_of(succession);

    int r = estate_file_make(&succession->file, succession->store);
    if (r == 0)
        r = estate_make(&succession->estate, estate_file_estate(&succession->file), succession->kinds,
                        KEPT_DATA_KINDS - 1, &owner);
    if (r < 0)
        do_without(succession, r);
    else
        desk_make(&succession->desk, succession->file.memory, &succession->estate, identity->bytes);
}

/* Lets an estate go: the next daemon does not find it. */
static void let_go(struct succession *succession) {
    store_remove(succession->store, succession->file.stored);
    estate_deinit(&succession->estate);
    estate_file_close(&succession->file);
    succession->desk = (struct desk){0};
    succession->is_heir = false;
}

/* Reads which pool has which number. */
static int read_places(struct succession *succession, const char **ret_reason) {
    struct kept_pool kept;
    struct estate_found found = {0};
    bool are_there[PROTO_POOLS_MAX] = {0};

    *ret_reason = "its pools are damaged";
    while (estate_next(&succession->estate, KEPT_POOL, found.record, &found)) {
        if (found.is_damaged)
            return -EBADMSG;
        estate_read(&succession->estate, &found, &kept);
        if (kept.id == 0 || kept.id > PROTO_POOLS_MAX || are_there[kept.id - 1] ||
            !backing_kind_is_known(kept.segment_kind) ||
            (kept.kind != PROTO_POOL_HOST && kept.kind != PROTO_POOL_DEVICE))
            return -EBADMSG;
        struct pool_place *place = &succession->places[kept.id - 1];
        *place = (struct pool_place){.kind = (enum proto_pool_kind)kept.kind,
                                     .numa_node = kept.numa_node,
                                     .segment_kind = (enum proto_segment_kind)kept.segment_kind};
        memcpy(place->uuid, kept.uuid, sizeof place->uuid);
        are_there[kept.id - 1] = true;
        succession->place_records[kept.id - 1] = found.record;
        succession->n_places++;
    }
    for (unsigned i = 0; i < succession->n_places; i++)
        if (!are_there[i])
            return -EBADMSG;
    return 0;
}

/* Opens the estate of the daemon before. Returns 0, or a negative errno and why. */
static int open_found(struct succession *succession, struct identity *identity, const char **ret_reason) {
    const struct estate_owner owner = owner_of(succession);

    int r = estate_open(&succession->estate, estate_file_estate(&succession->file),
                        estate_file_estate_bytes(&succession->file), succession->kinds, KEPT_DATA_KINDS - 1,
                        &owner, ret_reason);
    if (r < 0)
        return r;
    *ret_reason = "it is of another version";
    r = desk_open(&succession->desk, succession->file.memory, &succession->estate);
    if (r < 0)
        return r;
    *ret_reason = "the daemon died again and again before it was ready";
    if (desk_starts(&succession->desk) > DEATHS_MAX)
        return -EBADMSG;
    r = read_places(succession, ret_reason);
    if (r < 0)
        return r;
    memcpy(identity->bytes, succession->desk.memory->identity, sizeof identity->bytes);
    hex_write(identity->bytes, sizeof identity->bytes, identity->text);
    succession->is_heir = true;
    return 0;
}

int succession_open(struct succession *succession, struct store *store, struct identity *identity) {
    const char *reason = "";

    *succession = (struct succession){.store = store, .file.fd = -1};
    if (!store_is_there(store))
        return 0;
    fill_kinds(succession->kinds);
    int r = estate_file_take(&succession->file, store);
    if (r == -EBUSY) {
        log_error("another daemon is alive and has the estate: stop it, or wait until it has ended");
        return r;
    }
    if (r == 0) {
        r = open_found(succession, identity, &reason);
        if (r < 0) {
            log_error(
                "the estate of the daemon before is let go, because %s: its sessions are over, and memory "
                "that processes have mapped is theirs alone",
                r == -ENOMEM ? "there is no memory for it" : reason);
            let_go(succession);
        }
    } else if (r != -ENOENT) {
        log_error("the estate of the daemon before cannot be taken: %s", strerror(-r));
    }
    if (!succession->is_heir)
        make(succession, identity);
    return 0;
}

/* --- beginning --- */

static int take_segment(void *argument, struct segment *segment) {
    (void)argument;
    return supplier_inherit(segment->pool->owner, segment);
}

static void tell_loss(void *argument, const struct inherit_loss *loss) {
    (void)argument;
    log_error("%s of the estate are damaged: %s of their users are over, and %s that these have mapped are "
              "lent by no "
              "daemon any more",
              COUNT_TEXT(loss->n_damaged, "record"), COUNT_TEXT(loss->n_sessions, "session"),
              COUNT_TEXT(loss->n_segments, "segment"));
}

/* Pools beyond those of the daemon before are new. */
static int keep_pools(struct succession *succession, struct core *core) {
    int r = 0;

    for (unsigned i = 0; r == 0 && i < core->n_pools; i++)
        if (i < succession->n_places)
            estate_bind(&succession->estate, succession->place_records[i], core->pools[i]);
        else
            r = estate_add(&succession->estate, KEPT_POOL, core->pools[i], &succession->place_records[i]);
    return r;
}

/* A scope that was dropped lives on with its last users, and is in no file. Makes those that records name. */
static int make_dropped(struct core *core, uint32_t id) {
    struct scope_terms terms = {.id = id};
    struct scope *scope;

    if (id == SCOPE_ORDINARY || scope_find(core, id) != NULL)
        return 0;
    snprintf(terms.name, sizeof terms.name, "dropped.%" PRIu32, id);
    for (unsigned item = 0; item < QUOTA_ITEMS; item++)
        terms.limits[item] = POLICY_UNSET;
    return scope_add(core, &terms, &scope);
}

static int make_dropped_scopes(const struct succession *succession, struct core *core) {
    struct estate_found found = {0};
    struct kept_session session;
    struct kept_segment segment;
    int r = 0;

    while (r == 0 && estate_next(&succession->estate, KEPT_SESSION, found.record, &found)) {
        estate_read(&succession->estate, &found, &session);
        r = make_dropped(core, session.scope);
    }
    found = (struct estate_found){0};
    while (r == 0 && estate_next(&succession->estate, KEPT_SEGMENT, found.record, &found)) {
        estate_read(&succession->estate, &found, &segment);
        r = make_dropped(core, segment.owner.scope);
        if (r == 0)
            r = make_dropped(core, segment.keeper.scope);
    }
    return r;
}

static void drop_scopes(struct core *core) {
    list_for_each_entry_safe(struct scope, scope, &core->scopes, link) {
        if (scope->owner == NULL)
            core_scope_drop(scope, clock_now_ns());
    }
}

static uint64_t time_away(const struct succession *succession) {
    uint64_t alive_ns = succession->desk.memory->alive_ns, now_ns = clock_now_ns();

    return alive_ns > 0 && alive_ns < now_ns ? now_ns - alive_ns : 0;
}

static int begin_with(struct succession *succession, struct core *core, struct clients *clients) {
    struct inheritance inheritance;
    const struct inherit_shell shell = {.take_segment = take_segment,
                                        .take_session = inheritance_session,
                                        .argument = &inheritance,
                                        .tell_loss = tell_loss,
                                        .away_ns = time_away(succession)};
    const char *reason = NULL;

    int r = inheritance_begin(&inheritance, clients);
    if (r == 0)
        r = make_dropped_scopes(succession, core);
    if (r == 0)
        r = core_inherit(core, &succession->estate, &shell, &reason);
    if (r == 0)
        r = keep_pools(succession, core);
    if (r == 0)
        r = inheritance_end(&inheritance);
    if (r == 0) {
        log_info("the daemon before was seen %s ago", NS_TEXT(shell.away_ns));
        drop_scopes(core);
        inheritance_resume(&inheritance);
    } else {
        log_error("the estate of the daemon before is let go (%s): its sessions are over, and memory that "
                  "processes have mapped is theirs alone; the daemon starts once more",
                  r == -EBADMSG && reason != NULL ? reason : strerror(-r));
        store_remove(succession->store, succession->file.stored);
    }
    inheritance_free(&inheritance);
    return r;
}

int succession_begin(struct succession *succession, struct core *core, struct clients *clients) {
    if (succession->desk.memory == NULL)
        return 0;
    if (succession->is_heir)
        return begin_with(succession, core, clients);
    int r = core_keep(core, &succession->estate);
    if (r == 0)
        r = keep_pools(succession, core);
    if (r == 0)
        desk_end_step(&succession->desk);
    return r;
}

void succession_note_ready(struct succession *succession) {
    desk_note_ready(&succession->desk);
}

bool succession_reads(const char *format, char why[SUCCESSION_TEXT_SIZE]) {
    struct estate_kind kinds[ESTATE_KINDS_MAX] = {0};
    unsigned major, desk, kind, size_bytes;
    int n = 0;

    fill_kinds(kinds);
    if (sscanf(format, "%u/%u%n", &major, &desk, &n) != 2 || major != ESTATE_MAJOR || desk != DESK_VERSION) {
        snprintf(why, SUCCESSION_TEXT_SIZE, "the estate is of version %.16s, and this program reads %u/%u",
                 format, ESTATE_MAJOR, DESK_VERSION);
        return false;
    }
    for (format += n; sscanf(format, " %u:%u%n", &kind, &size_bytes, &n) == 2; format += n)
        if (kind >= ESTATE_KINDS_MAX || kinds[kind].size_bytes != size_bytes) {
            snprintf(why, SUCCESSION_TEXT_SIZE, "this program does not know records of kind %u with %u bytes",
                     kind, size_bytes);
            return false;
        }
    return true;
}

size_t succession_drop(struct succession *succession, struct core *core) {
    core->estate = NULL;
    succession->desk = (struct desk){0};
    log_warning("the estate is let go: a restart of the daemon ends all sessions");
    return store_let_go(succession->store);
}

void succession_leave(struct succession *succession, struct core *core) {
    desk_end_step(&succession->desk);
    core->estate = NULL;
    succession->desk = (struct desk){0};
    succession->store->limit = 0;
}

void succession_close(struct succession *succession) {
    estate_deinit(&succession->estate);
    estate_file_close(&succession->file);
}
