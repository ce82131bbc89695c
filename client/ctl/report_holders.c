/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/report_holders.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "client/ctl/record_names.h"
#include "client/ctl/records.h"

#define PLACES_MIN 256u

/* --- finding one --- */

static size_t place_of(const struct report_holders *holders, uint64_t session, unsigned pool) {
    uint64_t hash = (session * PROTO_POOLS_MAX + pool) * UINT64_C(0x9e3779b97f4a7c15);
    size_t place = (size_t)(hash >> 20) & (holders->n_places - 1);

    while (holders->places[place] != 0) {
        const struct report_holder *found = &holders->entries[holders->places[place] - 1];
        if (found->process.session == session && found->pool == pool)
            break;
        place = (place + 1) & (holders->n_places - 1);
    }
    return place;
}

/* Makes room for one more: at least half of the places stay free. */
static bool make_room(struct report_holders *holders) {
    size_t n_places = holders->n_places == 0 ? PLACES_MIN : 2 * holders->n_places;

    void *entries =
        array_room(holders->entries, holders->count, &holders->capacity, sizeof *holders->entries);
    if (entries == NULL)
        return false;
    holders->entries = entries;
    if (2 * (holders->count - holders->n_over + 1) <= holders->n_places)
        return true;
    uint32_t *places = calloc(n_places, sizeof *places);
    if (places == NULL)
        return false;
    free(holders->places);
    holders->places = places;
    holders->n_places = n_places;
    for (size_t i = holders->n_over; i < holders->count; i++) {
        const struct report_holder *entry = &holders->entries[i];
        places[place_of(holders, entry->process.session, entry->pool)] = (uint32_t)i + 1;
    }
    return true;
}

/* NULL: memory is short. */
static struct report_holder *find(struct report_holders *holders, const struct proto_record *record) {
    if (!make_room(holders)) {
        holders->is_short = true;
        return NULL;
    }
    size_t place = place_of(holders, record->session, record->pool);
    if (holders->places[place] == 0) {
        holders->entries[holders->count] = (struct report_holder){.process.session = record->session,
                                                                  .pool = record->pool,
                                                                  .most = INT64_MIN,
                                                                  .last_ns = holders->first_ns};
        holders->places[place] = (uint32_t)++holders->count;
    }
    return &holders->entries[holders->places[place] - 1];
}

/* --- counting --- */

/* Fills in the names that are known of a process and its scope. */
static void name_process(struct report_process *process, const struct record_names *names) {
    const char *name = record_names_session(names, process->session);
    char scope[RECORD_SCOPE_SIZE];

    if (name != NULL)
        snprintf(process->name, sizeof process->name, "%s", name);
    if (process->scope_id != 0)
        snprintf(process->scope, sizeof process->scope, "%s",
                 record_names_scope(names, process->scope_id, scope));
}

void report_process_read(struct report_process *process, const struct proto_record *record,
                         const struct record_names *names) {
    process->session = record->session;
    process->pid = record->pid;
    process->uid = record->uid;
    process->scope_id = record->scope;
    name_process(process, names);
}

static uint64_t later(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* The part of a time that lies within the span. */
static uint64_t within(const struct report_span *span, uint64_t begin_ns, uint64_t end_ns) {
    uint64_t from = later(begin_ns, span->begin_ns), to = end_ns < span->end_ns ? end_ns : span->end_ns;
    return to > from ? to - from : 0;
}

static void change(const struct report_holders *holders, struct report_holder *holder, uint64_t moment_ns,
                   int64_t by) {
    moment_ns = later(moment_ns, holder->last_ns);
    uint64_t ns = within(&holders->span, holder->last_ns, moment_ns);
    holder->byte_ns += (double)holder->held * (double)ns;
    if (ns > 0 && holder->held > holder->most)
        holder->most = holder->held;
    holder->last_ns = moment_ns;
    holder->held += by;
    if (holder->held < holder->least)
        holder->least = holder->held;
    if (holder->held > holder->most && moment_ns >= holders->span.begin_ns &&
        moment_ns < holders->span.end_ns)
        holder->most = holder->held;
}

/* It has lasted until now, and had so much at its end; -1: no record tells. Memory that it had at the oldest
 * record counts from then on. */
static void finish(const struct report_holders *holders, struct report_holder *holder, uint64_t moment_ns,
                   int64_t end_bytes) {
    change(holders, holder, moment_ns, 0);
    int64_t before = end_bytes >= holder->held ? end_bytes - holder->held : 0;
    if (before < -holder->least)
        before = -holder->least;
    if (holder->process.session >= holders->older_below)
        before = 0;
    if (holder->most == INT64_MIN)
        holder->most = 0;
    uint64_t ns = within(&holders->span, holders->first_ns, holder->last_ns);
    holder->byte_ns += (double)before * (double)ns;
    if (ns > 0)
        holder->most += before;
    holder->held += before;
    holder->least = 0;
}

static uint64_t take_end(const struct report_holders *holders, struct report_holder *holder,
                         const struct proto_record *record) {
    uint64_t fenced = holder->fenced > 0 ? (uint64_t)holder->fenced : 0;

    finish(holders, holder, record->time_ns, (int64_t)record->bytes);
    holder->is_dead = record->kind == PROTO_RECORD_DEATH;
    holder->is_over = !holder->is_dead;
    return record->bytes > fenced ? record->bytes - fenced : 0;
}

static bool is_end(const struct proto_record *record) {
    return record->kind == PROTO_RECORD_FAREWELL || record->kind == PROTO_RECORD_DEATH ||
           record->kind == PROTO_RECORD_RETURN;
}

uint64_t report_holders_take(struct report_holders *holders, const struct proto_record *record,
                             const struct record_names *names) {
    int64_t held = 0, fenced = 0;

    if (record->kind == PROTO_RECORD_START)
        holders->older_below = 0;
    if (record->kind == PROTO_RECORD_OPEN && record->session < holders->older_below)
        holders->older_below = record->session;
    if (record->pool == 0 || record->session == 0 ||
        (!is_end(record) && !record_change(record, &held, &fenced)))
        return 0;
    struct report_holder *holder = find(holders, record);
    if (holder == NULL || holder->is_over)
        return 0;
    report_process_read(&holder->process, record, names);
    if (record->kind == PROTO_RECORD_FAREWELL || record->kind == PROTO_RECORD_DEATH)
        return take_end(holders, holder, record);
    if (record->kind == PROTO_RECORD_RETURN) { /* of one whose death is older than the oldest record, too */
        finish(holders, holder, record->time_ns, holder->is_dead ? -1 : (int64_t)record->bytes);
        holder->is_over = true;
    } else if (!holder->is_dead) {
        change(holders, holder, record->time_ns, held);
        holder->fenced += fenced;
    }
    return 0;
}

void report_holders_end(struct report_holders *holders, const struct record_names *names,
                        uint64_t moment_ns) {
    for (; holders->n_over < holders->count; holders->n_over++) {
        struct report_holder *holder = &holders->entries[holders->n_over];
        name_process(&holder->process, names);
        if (!holder->is_over)
            finish(holders, holder, moment_ns, -1);
        holder->is_over = true;
    }
    if (holders->places != NULL)
        memset(holders->places, 0, holders->n_places * sizeof *holders->places);
}

static int compare(const void *a, const void *b) {
    const struct report_holder *one = a, *other = b;

    if (one->pool != other->pool)
        return one->pool < other->pool ? -1 : 1;
    if (one->byte_ns < other->byte_ns)
        return 1;
    return one->byte_ns > other->byte_ns ? -1 : 0;
}

void report_holders_sort(struct report_holders *holders) {
    size_t kept = 0;

    for (size_t i = 0; i < holders->count; i++)
        if (holders->entries[i].byte_ns > 0 || holders->entries[i].most > 0)
            holders->entries[kept++] = holders->entries[i];
    holders->count = kept;
    if (kept > 0)
        qsort(holders->entries, kept, sizeof *holders->entries, compare);
}

void report_holders_deinit(struct report_holders *holders) {
    free(holders->entries);
    free(holders->places);
    *holders = (struct report_holders){0};
}
