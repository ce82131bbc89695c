/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/inherit.h"

#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "daemon/core/channel.h"
#include "daemon/core/heir.h"
#include "daemon/core/lease.h"
#include "daemon/core/name.h"
#include "daemon/core/parcel.h"
#include "daemon/core/pool.h"
#include "daemon/core/request.h"
#include "daemon/core/segment.h"
#include "daemon/core/session.h"
#include "daemon/core/tenant.h"
#include "daemon/core/waiting.h"

/* --- in order --- */

static int add_numbers(struct heir *heir, uint32_t record, const void *payload) {
    const struct kept_numbers *kept = payload;
    struct core *core = heir->core;

    if (core->record != 0)
        return heir_refuse(heir, "two records are of one thing");
    if (kept->session > HEIR_NUMBER_MAX || kept->segment > HEIR_NUMBER_MAX ||
        kept->request > HEIR_NUMBER_MAX || kept->generation > HEIR_NUMBER_MAX)
        return heir_refuse(heir, "its numbers are beyond all that were given");
    core->next_session_id = kept->session;
    core->next_segment_id = kept->segment;
    core->next_request_number = kept->request;
    core->leases.next_generation = kept->generation;
    heir_bind(heir, record, core, &core->record);
    return 0;
}

/* Goes through the records of a kind. */
static int for_each(struct heir *heir, enum kept_kind kind, heir_step *each) {
    struct estate_found found = {0};
    int r = 0;

    while (r == 0 && estate_next(heir->estate, kind, found.record, &found))
        r = each(heir, found.record, found.payload);
    return r;
}

/* A function for each record of a kind. */
struct kind_step {
    enum kept_kind kind;
    heir_step *each;
};

static int for_all(struct heir *heir, const struct kind_step *steps) {
    int r = 0;

    for (; r == 0 && steps->each != NULL; steps++)
        r = for_each(heir, steps->kind, steps->each);
    return r;
}

static int build(struct heir *heir) {
    static const struct kind_step numbers[] = {{KEPT_NUMBERS, add_numbers}, {0}},
                                  segments[] = {{KEPT_SEGMENT, heir_add_segment}, {0}},
                                  before[] =
                                      {
                                          {KEPT_SESSION, heir_add_session},
                                          {KEPT_MAPPED, heir_map_segments},
                                          {KEPT_SESSION, heir_check_words},
                                          {KEPT_SEGMENT, heir_close_segment},
                                          {KEPT_MAPPED, heir_tell_session},
                                          {KEPT_BLOCK, heir_add_block},
                                          {KEPT_RANGE, heir_add_range},
                                          {KEPT_RANGE, heir_link_row},
                                          {0},
                                      },
                                  blocks[] = {{KEPT_BLOCK, heir_end_block},
                                              {KEPT_FENCES, heir_add_fences},
                                              {0}},
                                  parcels[] = {{KEPT_PARCEL, heir_add_parcel},
                                               {KEPT_NAME, heir_add_name},
                                               {KEPT_EDITION, heir_add_edition},
                                               {KEPT_DIRECTORY, heir_add_directory},
                                               {0}},
                                  behind[] = {{KEPT_CHANNEL, heir_add_channel},
                                              {KEPT_BLOCK, heir_check_block},
                                              {KEPT_SESSION, heir_lose_session},
                                              {0}};

    int r = for_all(heir, numbers);
    if (r == 0 && heir->core->record == 0)
        r = heir_refuse(heir, "its numbers are missing");
    if (r == 0)
        r = for_all(heir, segments);
    segment_slots_restored(heir->core);
    if (r == 0)
        r = for_all(heir, before);
    if (r == 0)
        heir_link_ranges(heir->core);
    if (r == 0)
        r = for_all(heir, blocks);
    if (r == 0)
        r = heir_add_leases(heir);
    if (r == 0)
        r = for_all(heir, parcels);
    if (r == 0)
        r = heir_add_parts(heir);
    if (r == 0)
        r = for_all(heir, behind);
    if (r == 0)
        r = heir_add_requests(heir);
    return r == 0 ? heir_add_name_waits(heir) : r;
}

/* --- what cannot be inherited --- */

/* Frees all that is taken of a segment, in whatever list of a block it is. */
static void empty_segment(struct segment *segment) {
    struct heap_range *range = segment->span->lowest;

    while (range != NULL) {
        if (range->free) {
            range = range->upper;
            continue;
        }
        list_remove(&range->user_link);
        heap_give(range);
        range = segment->span->lowest;
    }
    segment_settle(segment);
}

/* A tenant's names stand for nothing. Those that sessions wait for go with these. */
static void empty_names(const struct tenant *tenant) {
    struct name *name = name_after(tenant, 0);

    while (name != NULL) {
        struct name *next = name_after(tenant, name->id);
        name_set_edition(name, NULL);
        if (name->channel != NULL)
            channel_free(name->channel);
        name_set_builder(name, NULL);
        name_drop_if_unused(name);
        name = next;
    }
}

/* Ends all that was made before the inheriting failed, except segments: core_free() drops these. The records of the
 * core's history, and the estate, do not learn of it. */
static void undo(struct heir *heir) {
    struct core *core = heir->core;
    struct estate_found found = {0};
    uint64_t bytes;

    core->recorder.file = NULL;
    list_for_each_entry(const struct session, session, &core->sessions, link) {
        while (!list_is_empty(&session->requests))
            request_free(container_of(session->requests.next, struct request, session_link));
    }
    for (size_t slot = 0; slot < core->segment_slots; slot++)
        if (core->segments[slot] != NULL && core->segments[slot]->span != NULL)
            empty_segment(core->segments[slot]);
    while (estate_next(heir->estate, KEPT_BLOCK, found.record, &found)) {
        struct block *block = heir_object(heir, found.record, KEPT_BLOCK);
        if (block != NULL && list_is_empty(&block->leases) && block->n_parcels == 0)
            block_discard(core, block);
    }
    parcels_close(core, 0, NULL, &bytes);
    list_for_each_entry(const struct tenant, tenant, &core->tenants, link) {
        empty_names(tenant);
    }
    list_for_each_entry_safe(struct channel, channel, &core->channels, link) {
        channel_free(channel);
    }
    list_for_each_entry_safe(struct session, session, &core->sessions, link) {
        if (session->state == SESSION_ACTIVE)
            core_session_close(session, 0);
        else
            core_session_gone(session, 0);
    }
    list_for_each_entry_safe(struct tenant, tenant, &core->tenants, link) {
        tenant_drop_if_unused(tenant);
    }
    found = (struct estate_found){0};
    while (estate_next(heir->estate, 0, found.record, &found))
        estate_bind(heir->estate, found.record, NULL);
}

/* --- all --- */

int core_keep(struct core *core, struct estate *estate) {
    int r = estate_add(estate, KEPT_NUMBERS, core, &core->record);

    if (r < 0)
        return r;
    estate_end_step(estate);
    core->estate = estate;
    return 0;
}

/* --- what is lost --- */

static bool is_lost(const struct heir *heir, uint32_t group) {
    for (size_t i = 0; i < heir->n_lost; i++)
        if (heir->lost[i] == group)
            return true;
    return false;
}

static int lose_group(struct heir *heir, uint32_t group) {
    if (group == 0 || is_lost(heir, group))
        return 0;
    uint32_t *lost = array_room(heir->lost, heir->n_lost, &heir->lost_room, sizeof *lost);
    if (lost == NULL)
        return -ENOMEM;
    heir->lost = lost;
    lost[heir->n_lost++] = group;
    return 0;
}

/* Notes whose records are not inherited, and changes nothing: a call that fails may be made again. */
static int find_losses(struct heir *heir) {
    struct estate_found found = {0};
    int r = 0;

    while (r == 0 && estate_next(heir->estate, 0, found.record, &found)) {
        if (found.is_unknown && (found.holds || found.is_damaged))
            r = heir_refuse(heir, "a newer daemon kept what this one does not know");
        else if (found.is_damaged && !found.is_confined)
            r = heir_refuse(heir, "a record is damaged, and it is not known whose it was");
        else if (found.is_damaged && (r = lose_group(heir, found.groups[0])) == 0)
            r = lose_group(heir, found.groups[1]);
    }
    return r;
}

/* Leaves whole records of known kinds, of users of whom no record is damaged. */
static void remove_losses(struct heir *heir) {
    struct estate_found found = {0};

    while (estate_next(heir->estate, 0, found.record, &found)) {
        bool is_of_lost = !found.is_damaged && !found.is_unknown && is_lost(heir, found.groups[0]);
        heir->loss.n_damaged += found.is_damaged;
        heir->loss.n_segments += is_of_lost && found.kind == KEPT_SEGMENT;
        heir->loss.n_sessions += is_of_lost && found.kind == KEPT_SESSION;
        if (found.is_unknown || found.is_damaged || is_of_lost)
            estate_remove(heir->estate, found.record);
    }
}

static void mark_all(struct core *core) {
    for (unsigned i = 0; i < core->n_pools; i++) {
        pool_note_peaks(core->pools[i]);
        pool_mark_ready(core->pools[i]);
    }
}

/* A daemon's tables are no longer than twice the most that it had at once, of which each had a record. */
static size_t table_max(const struct estate *estate, enum kept_kind kind) {
    size_t most = 2 * estate_room(estate, kind);
    return most < 64 ? 64 : most;
}

/* The configuration may be another one than the predecessor's. */
static void refuse_impossible(struct core *core) {
    for (unsigned i = 0; i < core->n_pools; i++)
        pool_refuse(core->pools[i], pool_segment_max(core->pools[i]) + 1, PROTO_E_TOO_LARGE);
    list_for_each_entry(struct session, session, &core->sessions, link) {
        session_refuse_forbidden(session);
    }
}

/* Changes what is to be otherwise than with the predecessor. */
static void change_inherited(struct core *core) {
    for (size_t i = 0; i < core->parcels.count; i++) /* their deadlines have moved */
        kept_change(core, core->parcels.entries[i]->record);
    list_for_each_entry(struct session, session, &core->sessions, link) {
        /* Its page may tell of questions of a step that did not end, one for each pool: an answer to one is no lie. */
        session->n_questions += core->n_pools;
        kept_change(core, session->record);
    }
    for (size_t slot = 0; slot < core->segment_slots; slot++) {
        struct segment *segment = core->segments[slot];
        if (segment == NULL || !segment->is_orphan)
            continue;
        segment->label.stored[0] = '\0'; /* and it has no keeper */
        kept_change(core, segment->record);
    }
}

int core_inherit(struct core *core, struct estate *estate, const struct inherit_shell *shell,
                 const char **ret_reason) {
    struct heir heir = {
        .core = core,
        .estate = estate,
        .shell = shell,
        .slots_max = table_max(estate, KEPT_SEGMENT),
        .leases_max = table_max(estate, KEPT_LEASE),
    };

    *ret_reason = NULL;
    if (estate_is_empty(estate))
        return core_keep(core, estate);
    int r = find_losses(&heir);
    if (r == 0)
        remove_losses(&heir);
    free(heir.lost);
    if (heir.loss.n_damaged > 0 && shell->tell_loss != NULL)
        shell->tell_loss(shell->argument, &heir.loss);
    if (r == 0)
        r = build(&heir);
    if (r == 0)
        mark_all(core);
    if (r == 0 && !core_is_valid(core))
        r = heir_refuse(&heir, "its records contradict each other");
    *ret_reason = heir.reason;
    if (r < 0) {
        undo(&heir);
        return r;
    }
    core->estate = estate;
    change_inherited(core);
    heir_take_back_untold(core);
    heir_drop_names(core);
    refuse_impossible(core);
    return 0;
}
