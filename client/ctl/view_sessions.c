/* SPDX-License-Identifier: Apache-2.0 */
/* The sessions, for people. */
#include <inttypes.h>
#include <string.h>

#include "base/array.h"
#include "base/units.h"
#include "client/ctl/place.h"
#include "client/ctl/view.h"
#include "client/ctl/view_parts.h"

/* The process's name, and the container, job or unit that it runs in. */
static void add_command(struct table *table, const struct cJSON *session, const struct column *column) {
    char place[PLACE_SIZE];
    bool has_place = place_of_process(reply_count(session, "pid"), reply_count(session, "uid"),
                                      reply_count(session, "connected_ns"), place);

    table_add(table, column->style, "%s%s%s", reply_text(session, column->key), has_place ? " in " : "",
              has_place ? place : "");
}

static const struct column sessions[] = {
    {"SESSION", true, add_number, "id"},
    {"PID", true, add_count, "pid"},
    {"USER", false, add_user, "uid"},
    {"STATE", false, add_state, "state"},
    {"LEASES", true, add_count, "leases"},
    {"IN USE", true, add_bytes, "in_use_bytes"},
    {"CACHED", true, add_bytes, "cached_bytes"},
    {"FENCED", true, add_bytes, "fenced_bytes"},
    {"BESIDES", true, add_bytes, "own_bytes"},
    {"HITS", true, add_share, "hit_ratio"},
    {"WAITING", true, add_count, "waiting", STYLE_WARNING},
    {"CONNECTED", true, add_time, "connected_ns"},
    {"COMMAND", false, add_command, "command", .fit = FIT_CUT},
};

/* A line for each session in quarantine or that does not answer, below their table. */
static void print_reasons(struct output *output, const struct cJSON *reply) {
    reply_each(session, reply, "sessions") {
        const char *reason = reply_text(session, "quarantine_reason");
        uint64_t for_ns = reply_count(session, "quarantined_ns"), asked_ns = reply_count(session, "unanswered_ns");
        if (reason != NULL)
            print_line(output, STYLE_WARNING, "  session %" PRIu64 ", in quarantine for %s: %s",
                       reply_count(session, "id"), NS_TEXT(for_ns == REPLY_NULL ? 0 : for_ns), reason);
        if (asked_ns != REPLY_NULL)
            print_line(output, STYLE_WARNING,
                       "  session %" PRIu64 " was asked for idle memory %s ago and does not answer: is its process "
                       "stopped?",
                       reply_count(session, "id"), NS_TEXT(asked_ns));
    }
}

/* The memory of each session by pool. */
static const struct column holdings[] = {
    {"SESSION", true, add_number, "id", STYLE_PLAIN, true},
    {"PID", true, add_count, "pid", STYLE_PLAIN, true},
    {"POOL", true, add_number, "id"},
    {"LEASED", true, add_bytes, "leased_bytes"},
    {"IN USE", true, add_bytes, "in_use_bytes"},
    {"KEPT IDLE", true, add_bytes, "kept_bytes"},
    {"CACHED", true, add_bytes, "cached_bytes"},
    {"FENCED", true, add_bytes, "fenced_bytes"},
    {"TO CLOSE", true, add_bytes, "closing_bytes", STYLE_WARNING},
    {"SEGMENTS", true, add_count, "segments"},
};

static const char *outcome_words(const char *outcome) {
    static const struct wording known[] = {
        {"none", "it has not answered yet"},
        {"done", "the rest is not idle"},
        {"nothing", "nothing is idle"},
        {"capturing", "a stream is being captured"},
        {"busy", "a lock is held that is needed to let it go"},
        {"waits", "the program waits for memory itself"},
        {"pending", "its program has not answered"},
    };
    return find_words(known, ARRAY_LENGTH(known), outcome);
}

/* A line for each session and pool that was asked for idle memory. */
static void print_answers(struct output *output, const struct cJSON *reply) {
    reply_each(session, reply, "sessions") reply_each(holding, session, "pools") {
        if (reply_count(holding, "asked") == 0)
            continue;
        uint64_t owed_ns = reply_count(holding, "owed_ns");
        print_line(output, owed_ns != REPLY_NULL ? STYLE_WARNING : STYLE_PLAIN,
                   "  session %" PRIu64 ", pool %" PRIu64 ": asked for idle memory %s, answered "
                   "%" PRIu64 ", %s came, %s kept idle by the program: %s",
                   reply_count(session, "id"), reply_count(holding, "id"),
                   COUNT_TEXT(reply_count(holding, "asked"), "time"), reply_count(holding, "answered"),
                   BYTES_TEXT(reply_count(holding, "came_bytes")),
                   BYTES_TEXT(reply_count(holding, "kept_bytes")),
                   outcome_words(reply_text(holding, "outcome")));
    }
}

static void add_reason(struct table *table, const struct cJSON *request, const struct column *column) {
    table_add(table, column->style, "%s", waiting_words(reply_text(request, column->key)));
}

/* The requests that wait. */
static const struct column requests[] = {
    {"SESSION", true, add_number, "id", STYLE_PLAIN, true},
    {"PID", true, add_count, "pid", STYLE_PLAIN, true},
    {"POOL", true, add_number, "pool"},
    {"NEEDS", true, add_bytes, "bytes"},
    {"SINCE", true, add_time, "waiting_ns", STYLE_WARNING},
    {"LEFT", true, add_time, "left_ns"},
    {"WAITS FOR", false, add_reason, "reason", .fit = FIT_WRAP},
};

/* Sessions that go on after a restart, or that do not. */
struct outlook {
    uint64_t n_sessions, n_holders, leased_bytes, n_waiting;
};

static void outlook_add(struct outlook *outlook, const struct cJSON *session) {
    uint64_t bytes = reply_count(session, "leased_bytes");

    outlook->n_sessions++;
    outlook->n_holders += bytes > 0;
    outlook->leased_bytes += bytes;
    outlook->n_waiting += reply_count(session, "waiting");
}

/* A process keeps its mappings without the daemon, and the driver keeps a segment that is mapped somewhere.
 * A buffer that several sessions share counts for each: the lines say "up to". */
static void print_stop(struct output *output, const struct cJSON *reply) {
    struct outlook kept = {0}, lost = {0};

    reply_each(session, reply, "sessions")
        outlook_add(reply_flag(session, "outlives_daemon") ? &kept : &lost, session);
    print_line(output, STYLE_PLAIN, "%s", "");
    if (kept.n_sessions > 0)
        print_line(
            output, STYLE_QUIET,
            "If the daemon were restarted now: %s would go on, with up to %s and %s; 'gpupoolctl estate' "
            "tells more.",
            COUNT_TEXT(kept.n_sessions, "session"), BYTES_TEXT(kept.leased_bytes),
            COUNT_TEXT(kept.n_waiting, "waiting request"));
    if (lost.n_holders > 0 || lost.n_waiting > 0)
        print_line(
            output, STYLE_QUIET,
            "%s: up to %s of %s would stay with the processes until they end or give it back, and %s would "
            "fail.",
            kept.n_sessions > 0 ? "The others would not" : "If the daemon stopped now",
            BYTES_TEXT(lost.leased_bytes), COUNT_TEXT(lost.n_holders, "session"),
            COUNT_TEXT(lost.n_waiting, "waiting request"));
    else if (kept.n_sessions == 0)
        print_line(output, STYLE_QUIET,
                   "If the daemon stopped now: no session holds memory, no request waits.");
}

void view_sessions(struct output *output, const struct cJSON *reply) {
    bool has_pools = false, has_requests = false;

    if (reply_first(reply, "sessions") == NULL) {
        print_line(output, STYLE_QUIET, "No sessions.");
        return;
    }
    reply_each(session, reply, "sessions") {
        has_pools |= reply_first(session, "pools") != NULL;
        has_requests |= reply_first(session, "requests") != NULL;
    }
    print_line(output, STYLE_HEADING, "Sessions");
    print_table(output, sessions, reply, "sessions", NULL);
    print_reasons(output, reply);
    if (has_pools) {
        print_line(output, STYLE_PLAIN, "%s", "");
        print_line(output, STYLE_HEADING, "Their memory");
        print_table(output, holdings, reply, "sessions", "pools");
        print_answers(output, reply);
    }
    if (has_requests) {
        print_line(output, STYLE_PLAIN, "%s", "");
        print_line(output, STYLE_HEADING, "Waiting");
        print_table(output, requests, reply, "sessions", "requests");
    }
    print_stop(output, reply);
}

static void add_held(struct table *table, const struct cJSON *session, const struct column *column) {
    uint64_t bytes = reply_count(session, "leased_bytes") + reply_count(session, "fenced_bytes");
    table_add(table, bytes == 0 ? STYLE_QUIET : column->style, "%s", BYTES_TEXT(bytes));
}

static void add_held_for(struct table *table, const struct cJSON *session, const struct column *column) {
    uint64_t for_ns = reply_count(session, column->key);
    table_add(table, column->style, "%s", NS_TEXT(for_ns == REPLY_NULL ? 0 : for_ns));
}

static void add_rule(struct table *table, const struct cJSON *session, const struct column *column) {
    const char *rule = reply_text(session, column->key);
    table_add(table, rule == NULL ? STYLE_QUIET : column->style, "%s%s", rule == NULL ? "-" : rule,
              reply_flag(session, "under_mps") ? ", MPS" : "");
}

/* Below the table, a line for each rule that is in it. */
static void print_rules(struct output *output, const struct cJSON *reply) {
    static const struct {
        const char *rule, *words;
    } known[] = {
        {"process-end", "the memory comes back when the process has ended"},
        {"listing", "the memory comes back when the process has ended and the driver lists it no more"},
        {"descriptors", "the memory comes back when the process has ended, no process has its socket, and no "
                        "process that may be its child holds files of the driver"},
    };

    for (size_t i = 0; i < ARRAY_LENGTH(known); i++) {
        bool is_there = false;
        reply_each(session, reply, "sessions") {
            const char *rule = reply_text(session, "end_rule");
            is_there |= rule != NULL && strcmp(rule, known[i].rule) == 0;
        }
        if (is_there)
            print_line(output, STYLE_PLAIN, "  %s: %s", known[i].rule, known[i].words);
    }
}

static void add_plain_text(struct table *table, const struct cJSON *session, const struct column *column) {
    const char *text = reply_text(session, column->key);
    table_add(table, column->style, "%s", text == NULL ? "" : text);
}

void view_quarantine(struct output *output, const struct cJSON *reply) {
    static const struct column columns[] = {
        {"SESSION", true, add_number, "id"},
        {"PID", true, add_count, "pid"},
        {"USER", false, add_user, "uid"},
        {"HELD", true, add_held, NULL, STYLE_WARNING},
        {"FOR", true, add_held_for, "quarantined_ns"},
        {"RULE", false, add_rule, "end_rule"},
        {"COMMAND", false, add_plain_text, "command", .fit = FIT_CUT},
        {"WHY", false, add_plain_text, "quarantine_reason", STYLE_WARNING, .fit = FIT_WRAP},
    };

    if (reply_first(reply, "sessions") == NULL) {
        print_line(output, STYLE_QUIET, "Nothing is in quarantine.");
        return;
    }
    print_table(output, columns, reply, "sessions", NULL);
    print_rules(output, reply);
}
