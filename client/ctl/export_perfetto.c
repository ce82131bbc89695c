/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records as a trace for Perfetto (ui.perfetto.dev), in the JSON format that it shares with Chrome's tracing:
 * counters of what each pool lends and what each process has, spans for waits and quarantine, and marks for
 * what else happened. Times are microseconds since 1970.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "client/ctl/export.h"
#include "client/ctl/sorted.h"

/* The memory of a session, by the records. Sums of one that began before the ring's oldest record begin with 0. */
struct holder {
    uint64_t session;
    uint64_t held[PROTO_POOLS_MAX], fenced[PROTO_POOLS_MAX]; /* by pool, id - 1 */
};

struct perfetto {
    struct export *export;
    struct sorted holders; /* struct holder */
    uint64_t next_span;
    bool is_first;
};

/* Begins an event of a process; 0: of the daemon. */
static void begin_event(struct perfetto *perfetto, const char *phase, uint32_t pid, uint64_t time_ns) {
    printf("%s{\"ph\":\"%s\",\"pid\":%" PRIu32 ",\"tid\":0,\"ts\":%" PRIu64 ".%03u",
           perfetto->is_first ? "" : ",\n", phase, pid, time_ns / 1000, (unsigned)(time_ns % 1000));
    perfetto->is_first = false;
}

static struct holder *find_holder(struct perfetto *perfetto, uint64_t session) {
    struct holder *holder = sorted_find(&perfetto->holders, session, sizeof *holder);

    if (holder == NULL)
        holder = sorted_add(&perfetto->holders, session, sizeof *holder);
    perfetto->export->failed |= holder == NULL;
    return holder;
}

static uint64_t less(uint64_t from, uint64_t bytes) {
    return from > bytes ? from - bytes : 0;
}

static uint64_t moved(uint64_t from, int64_t by) {
    return by < 0 ? less(from, (uint64_t)-by) : from + (uint64_t)by;
}

static bool is_end(const struct proto_record *record) {
    return record->kind == PROTO_RECORD_FAREWELL || record->kind == PROTO_RECORD_RETURN;
}

/* Adds a record to its session's sums. Returns whether they changed. */
static bool add_up(struct holder *holder, const struct proto_record *record) {
    uint64_t *held = &holder->held[record->pool - 1], *fenced = &holder->fenced[record->pool - 1];
    int64_t held_by, fenced_by;

    if (is_end(record)) {
        *held = *fenced = 0;
        return true;
    }
    if (!record_change(record, &held_by, &fenced_by))
        return false;
    *held = moved(*held, held_by - fenced_by);
    *fenced = moved(*fenced, fenced_by);
    return true;
}

static bool has_memory(const struct holder *holder) {
    for (unsigned i = 0; i < PROTO_POOLS_MAX; i++)
        if (holder->held[i] > 0 || holder->fenced[i] > 0)
            return true;
    return false;
}

static void print_counters(struct perfetto *perfetto, const struct proto_record *record,
                           const struct holder *holder) {
    begin_event(perfetto, "C", record->pid, record->time_ns);
    printf(",\"name\":\"has of pool %u\",\"args\":{\"held\":%" PRIu64 ",\"behind fences\":%" PRIu64 "}}",
           record->pool, holder->held[record->pool - 1], holder->fenced[record->pool - 1]);
    begin_event(perfetto, "C", 0, record->time_ns);
    printf(",\"name\":\"pool %u lends\",\"args\":{\"bytes\":%" PRIu64 "}}", record->pool,
           record->leased_bytes);
}

static void print_name(struct perfetto *perfetto, const struct proto_record *record) {
    begin_event(perfetto, "M", record->pid, record->time_ns);
    fputs(",\"name\":\"process_name\",\"args\":{\"name\":", stdout);
    record_names_print_json(record_names_session(&perfetto->export->names, record->session));
    fputs("}}", stdout);
    if (record->scope == 0)
        return;
    begin_event(perfetto, "M", record->pid, record->time_ns);
    fputs(",\"name\":\"process_labels\",\"args\":{\"labels\":", stdout);
    record_names_print_json(
        record_names_scope(&perfetto->export->names, record->scope, (char[RECORD_SCOPE_SIZE]){0}));
    fputs("}}", stdout);
}

/* A span that ends with the record and lasted so long as its value says. Spans of one process overlap. */
static void print_span(struct perfetto *perfetto, const struct proto_record *record, const char *text) {
    uint64_t id = ++perfetto->next_span, begin_ns = less(record->time_ns, record->value);

    for (unsigned end = 0; end < 2; end++) {
        begin_event(perfetto, end ? "e" : "b", record->pid, end ? record->time_ns : begin_ns);
        printf(",\"cat\":\"%s\",\"id\":%" PRIu64 ",\"name\":\"%s %s of pool %u\"}", text, id, text,
               BYTES_TEXT(record->bytes), record->pool);
    }
}

/* A mark on the process, or on the daemon. */
static void print_mark(struct perfetto *perfetto, const struct proto_record *record) {
    begin_event(perfetto, "i", record->pid, record->time_ns);
    printf(",\"s\":\"%s\",\"name\":\"%s\",\"args\":{\"pool\":%u,\"bytes\":%" PRIu64 ",\"session\":%" PRIu64
           ",\"reason\":%u}}",
           record->session != 0 ? "p" : "g", proto_record_word(record->kind), record->pool, record->bytes,
           record->session, record->reason);
}

static void print_record(struct perfetto *perfetto, const struct proto_record *record) {
    switch ((enum proto_record_kind)record->kind) {
    case PROTO_RECORD_OPEN:
    case PROTO_RECORD_NAME:
        print_name(perfetto, record);
        break;
    case PROTO_RECORD_SERVE:
        print_span(perfetto, record, "waits for");
        break;
    case PROTO_RECORD_REFUSE:
        if ((record->flags & PROTO_RECORD_WAITED) != 0)
            print_span(perfetto, record, "waits in vain for");
        print_mark(perfetto, record);
        break;
    case PROTO_RECORD_RETURN:
        print_span(perfetto, record, "quarantine of");
        break;
    case PROTO_RECORD_DEATH:
    case PROTO_RECORD_FORCE:
    case PROTO_RECORD_GROW:
    case PROTO_RECORD_GROW_FAIL:
    case PROTO_RECORD_RETIRE:
    case PROTO_RECORD_TRIM:
    case PROTO_RECORD_DRAIN:
    case PROTO_RECORD_DRAIN_END:
    case PROTO_RECORD_PUBLISH:
    case PROTO_RECORD_UNPUBLISH:
    case PROTO_RECORD_POOL_LOST:
    case PROTO_RECORD_START:
    case PROTO_RECORD_GO_ON:
    case PROTO_RECORD_STOP:
    case PROTO_RECORD_RELOAD:
        print_mark(perfetto, record);
        break;
    default:
        break;
    }
}

void export_perfetto(struct export *export, const struct records_filter *filter) {
    struct perfetto perfetto = {.export = export, .is_first = true};
    uint64_t next = atomic_load(&export->records->file->next);
    struct proto_record record;

    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", stdout);
    begin_event(&perfetto, "M", 0, 0);
    fputs(",\"name\":\"process_name\",\"args\":{\"name\":\"gpupoold\"}}", stdout);
    for (uint64_t number = records_first(export->records); number < next && !export->failed; number++) {
        if (!proto_records_read(export->records->file, number, &record))
            continue;
        record_names_learn(&export->names, &record);
        if (record.kind == PROTO_RECORD_START) /* numbers of sessions begin anew */
            perfetto.holders.count = 0;
        struct holder *holder = NULL;
        if (record.session != 0 && (record.pool != 0 || is_end(&record)))
            holder = find_holder(&perfetto, record.session);
        bool is_changed = holder != NULL && record.pool != 0 && add_up(holder, &record);
        if (records_pass(filter, &export->names, &record)) {
            print_record(&perfetto, &record);
            if (is_changed)
                print_counters(&perfetto, &record, holder);
        }
        if (holder != NULL && is_end(&record) && !has_memory(holder))
            sorted_remove(&perfetto.holders, holder, sizeof *holder);
    }
    fputs("\n]}\n", stdout);
    free(perfetto.holders.elements);
}
