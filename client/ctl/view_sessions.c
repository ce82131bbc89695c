/* SPDX-License-Identifier: Apache-2.0 */
/* The sessions, for people. */
#include <inttypes.h>
#include <string.h>

#include "base/units.h"
#include "client/ctl/view.h"
#include "client/ctl/view_parts.h"

static int print_sessions(const struct cJSON *reply, FILE *file, bool color) {
    static const struct view_column columns[] = {
        {{"SESSION", true}, add_number, "id", STYLE_PLAIN, false},
        {{"PID", true}, add_count, "pid", STYLE_PLAIN, false},
        {{"UID", true}, add_number, "uid", STYLE_PLAIN, false},
        {{"STATE", false}, add_state, "state", STYLE_PLAIN, false},
        {{"LEASES", true}, add_count, "leases", STYLE_PLAIN, false},
        {{"IN USE", true}, add_bytes, "in_use_bytes", STYLE_PLAIN, false},
        {{"CACHED", true}, add_bytes, "cached_bytes", STYLE_PLAIN, false},
        {{"FENCED", true}, add_bytes, "fenced_bytes", STYLE_PLAIN, false},
        {{"HITS", true}, add_share, "hit_ratio", STYLE_PLAIN, false},
        {{"WAITING", true}, add_count, "waiting", STYLE_WARNING, false},
        {{"CONNECTED", true}, add_time, "connected_ns", STYLE_PLAIN, false},
        {{"COMMAND", false}, add_text, "command", STYLE_PLAIN, false},
    };

    int r = view_table(file, color, columns, ARRAY_LENGTH(columns), reply, "sessions", NULL);
    reply_each(session, reply, "sessions") {
        const char *reason = reply_text(session, "quarantine_reason");
        uint64_t for_ns = reply_count(session, "quarantined_ns");
        if (reason != NULL && r == 0)
            r = print_line(file, color, STYLE_WARNING, "  session %" PRIu64 ", in quarantine for %s: %s",
                           reply_count(session, "id"), NS_TEXT(for_ns == REPLY_NULL ? 0 : for_ns), reason);
    }
    return r;
}

/* The memory of each session by pool. */
static int print_holdings(const struct cJSON *reply, FILE *file, bool color) {
    static const struct view_column columns[] = {
        {{"SESSION", true}, add_number, "id", STYLE_PLAIN, true},
        {{"PID", true}, add_count, "pid", STYLE_PLAIN, true},
        {{"POOL", true}, add_number, "id", STYLE_PLAIN, false},
        {{"LEASED", true}, add_bytes, "leased_bytes", STYLE_PLAIN, false},
        {{"IN USE", true}, add_bytes, "in_use_bytes", STYLE_PLAIN, false},
        {{"CACHED", true}, add_bytes, "cached_bytes", STYLE_PLAIN, false},
        {{"FENCED", true}, add_bytes, "fenced_bytes", STYLE_PLAIN, false},
        {{"TO CLOSE", true}, add_bytes, "closing_bytes", STYLE_WARNING, false},
        {{"SEGMENTS", true}, add_count, "segments", STYLE_PLAIN, false},
    };
    return view_table(file, color, columns, ARRAY_LENGTH(columns), reply, "sessions", "pools");
}

static const char *reason_words(const char *reason) {
    static const struct {
        const char *reason, *words;
    } known[] = {
        {"room", "memory that is in use"},
        {"quota", "memory of its own user (quota)"},
        {"growth", "growth of the pool"},
        {"other-users", "memory in segments of other users"},
    };

    for (size_t i = 0; i < ARRAY_LENGTH(known); i++)
        if (strcmp(reason, known[i].reason) == 0)
            return known[i].words;
    return reason;
}

static void add_reason(struct table *table, const struct cJSON *request, const struct view_column *column) {
    table_add(table, column->style, "%s", reason_words(reply_text(request, column->key)));
}

/* The requests that wait. */
static int print_requests(const struct cJSON *reply, FILE *file, bool color) {
    static const struct view_column columns[] = {
        {{"SESSION", true}, add_number, "id", STYLE_PLAIN, true},
        {{"PID", true}, add_count, "pid", STYLE_PLAIN, true},
        {{"POOL", true}, add_number, "pool", STYLE_PLAIN, false},
        {{"NEEDS", true}, add_bytes, "bytes", STYLE_PLAIN, false},
        {{"SINCE", true}, add_time, "waiting_ns", STYLE_WARNING, false},
        {{"LEFT", true}, add_time, "left_ns", STYLE_PLAIN, false},
        {{"WAITS FOR", false}, add_reason, "reason", STYLE_PLAIN, false},
    };
    return view_table(file, color, columns, ARRAY_LENGTH(columns), reply, "sessions", "requests");
}

/* A further table, under its heading. */
static int print_further(const struct cJSON *reply, FILE *file, bool color, const char *heading,
                         int (*print)(const struct cJSON *reply, FILE *file, bool color)) {
    int r = print_line(file, color, STYLE_PLAIN, "%s", "");
    if (r == 0)
        r = print_line(file, color, STYLE_HEADING, "%s", heading);
    return r < 0 ? r : print(reply, file, color);
}

int view_sessions(const struct cJSON *reply, FILE *file, bool color) {
    bool has_pools = false, has_requests = false;

    if (reply_first(reply, "sessions") == NULL)
        return print_line(file, color, STYLE_QUIET, "No sessions.");
    reply_each(session, reply, "sessions") {
        has_pools |= reply_first(session, "pools") != NULL;
        has_requests |= reply_first(session, "requests") != NULL;
    }
    int r = print_line(file, color, STYLE_HEADING, "Sessions");
    if (r == 0)
        r = print_sessions(reply, file, color);
    if (r == 0 && has_pools)
        r = print_further(reply, file, color, "Their memory", print_holdings);
    if (r == 0 && has_requests)
        r = print_further(reply, file, color, "Waiting", print_requests);
    return r;
}

static void add_held(struct table *table, const struct cJSON *session, const struct view_column *column) {
    uint64_t bytes = reply_count(session, "leased_bytes") + reply_count(session, "fenced_bytes");
    table_add(table, bytes == 0 ? STYLE_QUIET : column->style, "%s", BYTES_TEXT(bytes));
}

static void add_held_for(struct table *table, const struct cJSON *session, const struct view_column *column) {
    uint64_t for_ns = reply_count(session, column->key);
    table_add(table, column->style, "%s", NS_TEXT(for_ns == REPLY_NULL ? 0 : for_ns));
}

static void add_rule(struct table *table, const struct cJSON *session, const struct view_column *column) {
    const char *rule = reply_text(session, column->key);
    table_add(table, rule == NULL ? STYLE_QUIET : column->style, "%s%s", rule == NULL ? "-" : rule,
              reply_flag(session, "under_mps") ? ", MPS" : "");
}

static void add_plain_text(struct table *table, const struct cJSON *session,
                           const struct view_column *column) {
    const char *text = reply_text(session, column->key);
    table_add(table, column->style, "%s", text == NULL ? "" : text);
}

int view_quarantine(const struct cJSON *reply, FILE *file, bool color) {
    static const struct view_column columns[] = {
        {{"SESSION", true}, add_number, "id", STYLE_PLAIN, false},
        {{"PID", true}, add_count, "pid", STYLE_PLAIN, false},
        {{"UID", true}, add_number, "uid", STYLE_PLAIN, false},
        {{"HELD", true}, add_held, NULL, STYLE_WARNING, false},
        {{"FOR", true}, add_held_for, "quarantined_ns", STYLE_PLAIN, false},
        {{"RULE", false}, add_rule, "end_rule", STYLE_PLAIN, false},
        {{"COMMAND", false}, add_plain_text, "command", STYLE_PLAIN, false},
        {{"WHY", false}, add_plain_text, "quarantine_reason", STYLE_WARNING, false},
    };

    if (reply_first(reply, "sessions") == NULL)
        return print_line(file, color, STYLE_QUIET, "Nothing is in quarantine.");
    return view_table(file, color, columns, ARRAY_LENGTH(columns), reply, "sessions", NULL);
}
