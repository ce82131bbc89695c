/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/events.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "client/ctl/command_line.h"
#include "client/ctl/moment.h"
#include "client/ctl/record_names.h"
#include "client/ctl/record_words.h"
#include "client/ctl/records.h"
#include "client/ctl/text.h"
#include "client/ctl/user.h"
#include "proto/proto.h"
#include "proto/text.h"

/* A follower looks so often for new records: often enough for a person. */
#define FOLLOW_NS (100 * NS_PER_MS)

/* --- what happened, in words --- */

/* The name of what was published. */
static void print_name_of(FILE *stream, const struct proto_record *record) {
    char text[PROTO_RECORD_NAME_SIZE + 1];

    snprintf(text, sizeof text, "%.*s", (int)sizeof record->name, record->name);
    text[text_whole_characters(text, strlen(text))] = '\0';
    _cleanup_(freep) char *printable = text_printable(text, NULL);
    fprintf(stream, "its name is '%s%s'", printable != NULL ? printable : "?",
            (record->flags & PROTO_RECORD_CUT) != 0 ? "..." : "");
}

static void print_text(FILE *stream, const struct proto_record *record) {
    uint64_t bytes = record->bytes, value = record->value;

    switch ((enum proto_record_kind)record->kind) {
    case PROTO_RECORD_START:
        fprintf(stream, "the daemon started, pid %" PRIu64, value);
        break;
    case PROTO_RECORD_GO_ON:
        fprintf(stream, "another daemon goes on, pid %" PRIu64, value);
        break;
    case PROTO_RECORD_STOP:
        fprintf(stream, "the daemon stops, pid %" PRIu64, value);
        break;
    case PROTO_RECORD_RELOAD:
        fputs("a fresh configuration is in force", stream);
        break;
    case PROTO_RECORD_POOL_READY:
        fputs("the pool can lend", stream);
        break;
    case PROTO_RECORD_POOL_LOST:
        fputs("the pool's device cannot be used any more", stream);
        break;
    case PROTO_RECORD_OPEN:
        fprintf(stream, "session %" PRIu64 " began", record->session);
        break;
    case PROTO_RECORD_NAME:
        fprintf(stream, "session %" PRIu64 " says its name", record->session);
        break;
    case PROTO_RECORD_FAREWELL:
        fprintf(stream, "session %" PRIu64 " ended; %s came back", record->session, BYTES_TEXT(bytes));
        break;
    case PROTO_RECORD_DEATH:
        fprintf(stream, "session %" PRIu64 " ended without a farewell; %s in quarantine", record->session,
                BYTES_TEXT(bytes));
        break;
    case PROTO_RECORD_RETURN:
        fprintf(stream, "%s came back from quarantine after %s", BYTES_TEXT(bytes), NS_TEXT(value));
        break;
    case PROTO_RECORD_FORCE:
        fprintf(stream, "an operator ended session %" PRIu64 "; %s", record->session, BYTES_TEXT(bytes));
        break;
    case PROTO_RECORD_LEASE:
    case PROTO_RECORD_ATTACH:
        fprintf(stream, "%s %s, lease %" PRIu64 "; the pool lends %s", BYTES_TEXT(bytes),
                record->kind == PROTO_RECORD_LEASE ? "leased" : "shared with it", value,
                BYTES_TEXT(record->leased_bytes));
        break;
    case PROTO_RECORD_RELEASE:
    case PROTO_RECORD_FENCE:
    case PROTO_RECORD_PASS:
        fprintf(stream, "%s %s, %slease %" PRIu64, BYTES_TEXT(bytes),
                record->kind == PROTO_RECORD_RELEASE ? "came back"
                : record->kind == PROTO_RECORD_FENCE ? "given back behind a fence"
                                                     : "came back: the fence was reached",
                (record->flags & PROTO_RECORD_SPLIT) != 0 ? "part of " : "", value);
        break;
    case PROTO_RECORD_WAIT:
        fprintf(stream, "%s asked for: the request waits; the pool lends %s", BYTES_TEXT(bytes),
                BYTES_TEXT(record->leased_bytes));
        break;
    case PROTO_RECORD_SERVE:
        fprintf(stream, "%s granted after a wait of %s", BYTES_TEXT(bytes), NS_TEXT(value));
        break;
    case PROTO_RECORD_REFUSE:
        record_words_refusal(stream, record);
        break;
    case PROTO_RECORD_GROW:
        fprintf(stream, "segment %" PRIu64 " of %s was made", value, BYTES_TEXT(bytes));
        break;
    case PROTO_RECORD_GROW_FAIL:
        fprintf(stream, "no segment of %s: the driver or the kernel refused", BYTES_TEXT(bytes));
        break;
    case PROTO_RECORD_CLOSE:
        fprintf(stream, "segment %" PRIu64 " closed by the process", value);
        break;
    case PROTO_RECORD_RETIRE:
        fprintf(stream, "segment %" PRIu64 " of %s goes back to the driver", value, BYTES_TEXT(bytes));
        break;
    case PROTO_RECORD_TRIM:
        fprintf(stream, "trimmed: %s go back to the driver", BYTES_TEXT(bytes));
        break;
    case PROTO_RECORD_DRAIN:
        fprintf(stream, "an operator drains the pool: it lends no more than these %s", BYTES_TEXT(bytes));
        break;
    case PROTO_RECORD_DRAIN_END:
        fprintf(stream, "the pool lends again, beside %s", BYTES_TEXT(bytes));
        break;
    case PROTO_RECORD_ASK:
        fputs("asked for memory that it keeps idle", stream);
        break;
    case PROTO_RECORD_SEND:
        fprintf(stream, "a buffer of %s was sent", BYTES_TEXT(bytes));
        break;
    case PROTO_RECORD_PUBLISH:
        fprintf(stream, "%s published, generation %" PRIu64, BYTES_TEXT(bytes), value);
        break;
    case PROTO_RECORD_NAMED:
        print_name_of(stream, record);
        break;
    case PROTO_RECORD_UNPUBLISH:
        fprintf(stream, "generation %" PRIu64 " is published no more, of %s", value, BYTES_TEXT(bytes));
        break;
    case PROTO_RECORD_SCOPE:
        fputs("the scope is there", stream);
        break;
    case PROTO_RECORD_SCOPE_END:
        fputs("the scope is gone", stream);
        break;
    case PROTO_RECORD_ARRIVE:
        fprintf(stream, "a buffer of %s, sent by session %" PRIu64 ", was taken, revoked or too late",
                BYTES_TEXT(bytes), value);
        break;
    case PROTO_RECORD_KINDS_END:
        break;
    }
}

static void print_line_of(FILE *stream, const struct proto_record *record, const struct record_names *names) {
    const char *name = record_names_session(names, record->session);
    char time[MOMENT_TEXT_SIZE], pool[8] = "-", process[64] = "-", *printable = NULL;

    if (record->pool != 0)
        snprintf(pool, sizeof pool, "%u", record->pool);
    if (record->session != 0) {
        printable = name != NULL ? text_printable(name, NULL) : NULL;
        snprintf(process, sizeof process, "%" PRIu32 "%s%.40s", record->pid, printable != NULL ? " " : "",
                 printable != NULL ? printable : "");
        free(printable);
    }
    fprintf(stream, "%s  %4s  %-22s  %-9s  ", moment_text(record->time_ns, MOMENT_MILLISECOND, time), pool,
            process, proto_record_word(record->kind));
    print_text(stream, record);
    if (record->scope != 0)
        fprintf(stream, ", scope %s", record_names_scope(names, record->scope, (char[RECORD_SCOPE_SIZE]){0}));
}

static void print_json_of(const struct proto_record *record, const struct record_names *names) {
    const char *name = record_names_session(names, record->session);
    bool has_name = record_has_name(record);

    printf("{\"number\":%" PRIu64 ",\"time_ns\":%" PRIu64 ",\"kind\":\"%s\",\"pool\":%u,\"session\":%" PRIu64
           ",\"pid\":%" PRIu32 ",\"uid\":%" PRIu32 ",\"name\":",
           atomic_load(&record->number), record->time_ns, proto_record_word(record->kind), record->pool,
           record->session, record->pid, record->uid);
    record_names_print_json(name != NULL ? name : "");
    fputs(",\"scope\":", stdout);
    if (record->scope == 0)
        fputs("null", stdout);
    else
        record_names_print_json(record_names_scope(names, record->scope, (char[RECORD_SCOPE_SIZE]){0}));
    printf(",\"bytes\":%" PRIu64 ",\"leased_bytes\":%" PRIu64 ",\"value\":%" PRIu64
           ",\"reason\":%u,\"quota\":%u,"
           "\"flags\":%u,\"published\":",
           has_name ? 0 : record->bytes, has_name ? 0 : record->leased_bytes, has_name ? 0 : record->value,
           record->reason, record->detail, record->flags);
    if (record->kind == PROTO_RECORD_NAMED)
        record_names_print_json(record->name);
    else
        fputs("null", stdout);
    puts("}");
}

/* Prints the records from one number on. Returns the number of the next one. */
static uint64_t print_from(const struct records *records, uint64_t number,
                           const struct records_filter *filter, struct record_names *names, bool json) {
    uint64_t first = records_first(records), next = atomic_load(&records->file->next);
    struct proto_record record;

    for (number = number > first ? number : first; number < next; number++) {
        if (!proto_records_read(records->file, number, &record)) /* overwritten meanwhile */
            continue;
        record_names_learn(names, &record);
        if (!records_pass(filter, names, &record))
            continue;
        if (json) {
            print_json_of(&record, names);
        } else {
            print_line_of(stdout, &record, names);
            putchar('\n');
        }
    }
    return number;
}

static void print_heading(const struct records *records) {
    uint64_t first = records_first(records), next = atomic_load(&records->file->next);
    struct proto_record oldest;

    while (first < next && !proto_records_read(records->file, first, &oldest))
        first++;
    if (first == next)
        printf("%s: no records yet, room for %" PRIu64 "\n", records->path, records->file->records_count);
    else
        printf("%s: %" PRIu64 " records since %s, room for %" PRIu64 "\n", records->path, next - first,
               MOMENT_TEXT(oldest.time_ns, MOMENT_DAY_SECOND), records->file->records_count);
    printf("%-23s  %4s  %-22s  %-9s\n", "TIME", "POOL", "PROCESS", "EVENT");
}

static int follow(struct records *records, const struct options *options, uint64_t number,
                  struct record_names *names) {
    while (finish_output(EXIT_SUCCESS) == EXIT_SUCCESS) {
        nanosleep(&(struct timespec){.tv_nsec = FOLLOW_NS}, NULL);
        number = print_from(records, number, &options->filter, names, options->json);
        if (!records_are_replaced(records))
            continue;
        struct records fresh;
        if (!records_try(&fresh, options)) /* the next daemon has not finished it */
            continue;
        records_close(records);
        *records = fresh;
        number = 1;
    }
    return EXIT_REFUSED;
}

void events_last(struct records *records, unsigned count, char lines[][EVENT_LINE_SIZE]) {
    uint64_t first = records_first(records), next = atomic_load(&records->file->next);
    struct proto_record record;
    unsigned n = 0;

    memset(lines, 0, count * sizeof *lines);
    for (uint64_t number = next > first + count ? next - count : first; number < next && n < count;
         number++) {
        FILE *stream = fmemopen(lines[n], EVENT_LINE_SIZE - 1, "w");
        if (stream != NULL && proto_records_read(records->file, number, &record)) {
            print_line_of(stream, &record, &(struct record_names){0});
            n++;
        }
        if (stream != NULL)
            fclose(stream);
    }
}

int events_run(const struct options *options) {
    struct record_names names = {0};
    struct records records;

    int code = records_open(&records, options, EXIT_UNREACHABLE);
    if (code != 0)
        return code;
    if (!options->json)
        print_heading(&records);
    uint64_t next = print_from(&records, 1, &options->filter, &names, options->json);
    code = options->follow ? follow(&records, options, next, &names) : finish_output(EXIT_SUCCESS);
    records_close(&records);
    record_names_deinit(&names);
    return code;
}
