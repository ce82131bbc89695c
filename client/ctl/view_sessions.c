/* SPDX-License-Identifier: Apache-2.0 */
/* The sessions, for people. */
#include <inttypes.h>
#include <string.h>

#include "base/units.h"
#include "client/ctl/view.h"
#include "client/ctl/view_parts.h"

/* What each row about a session begins with. */
static void add_session(struct table *table, const struct reply_session *session) {
    table_add(table, STYLE_PLAIN, "%" PRIu64, session->id);
    add_count(table, session->pid, STYLE_PLAIN);
}

static int print_sessions(const struct reply *reply, FILE *file, bool color) {
    static const struct column columns[] = {
        {"SESSION", true}, {"PID", true},     {"UID", true},       {"STATE", false},
        {"LEASES", true},  {"IN USE", true},  {"CACHED", true},    {"FENCED", true},
        {"HITS", true},    {"WAITING", true}, {"CONNECTED", true}, {"COMMAND", false},
    };
    struct table table;

    table_init(&table, columns, ARRAY_LENGTH(columns));
    for (size_t i = 0; i < reply->n_sessions; i++) {
        const struct reply_session *session = &reply->sessions[i];
        add_session(&table, session);
        table_add(&table, STYLE_PLAIN, "%" PRIu64, session->uid);
        add_state(&table, session->state);
        add_count(&table, session->leases, STYLE_PLAIN);
        add_bytes(&table, session->in_use_bytes, STYLE_PLAIN);
        add_bytes(&table, session->cached_bytes, STYLE_PLAIN);
        add_bytes(&table, session->fenced_bytes, STYLE_PLAIN);
        add_share(&table, session->hit_ratio);
        add_count(&table, session->waiting, STYLE_WARNING);
        table_add(&table, STYLE_PLAIN, "%s", NS_TEXT(session->connected_ns));
        table_add(&table, session->command[0] == '\0' ? STYLE_QUIET : STYLE_PLAIN, "%s",
                  session->command[0] == '\0' ? "-" : session->command);
    }
    int r = table_print(&table, file, color);
    table_deinit(&table);
    for (size_t i = 0; i < reply->n_sessions && r == 0; i++) {
        const struct reply_session *session = &reply->sessions[i];
        if (session->quarantine_reason != NULL)
            r = print_line(file, color, STYLE_WARNING, "  session %" PRIu64 ", in quarantine for %s: %s",
                           session->id,
                           NS_TEXT(session->quarantined_ns == REPLY_NULL ? 0 : session->quarantined_ns),
                           session->quarantine_reason);
    }
    return r;
}

/* What each session has of each pool. */
static int print_holdings(const struct reply *reply, FILE *file, bool color) {
    static const struct column columns[] = {
        {"SESSION", true}, {"PID", true},    {"POOL", true},     {"LEASED", true},   {"IN USE", true},
        {"CACHED", true},  {"FENCED", true}, {"TO CLOSE", true}, {"SEGMENTS", true},
    };
    struct table table;

    table_init(&table, columns, ARRAY_LENGTH(columns));
    for (size_t i = 0; i < reply->n_sessions; i++)
        for (size_t j = 0; j < reply->sessions[i].n_pools; j++) {
            const struct reply_holding *pool = &reply->sessions[i].pools[j];
            add_session(&table, &reply->sessions[i]);
            table_add(&table, STYLE_PLAIN, "%" PRIu64, pool->id);
            add_bytes(&table, pool->leased_bytes, STYLE_PLAIN);
            add_bytes(&table, pool->in_use_bytes, STYLE_PLAIN);
            add_bytes(&table, pool->cached_bytes, STYLE_PLAIN);
            add_bytes(&table, pool->fenced_bytes, STYLE_PLAIN);
            add_bytes(&table, pool->closing_bytes, STYLE_WARNING);
            add_count(&table, pool->segments, STYLE_PLAIN);
        }
    int r = table_print(&table, file, color);
    table_deinit(&table);
    return r;
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

/* What each session waits for. */
static int print_requests(const struct reply *reply, FILE *file, bool color) {
    static const struct column columns[] = {
        {"SESSION", true}, {"PID", true},  {"POOL", true},       {"NEEDS", true},
        {"SINCE", true},   {"LEFT", true}, {"WAITS FOR", false},
    };
    struct table table;

    table_init(&table, columns, ARRAY_LENGTH(columns));
    for (size_t i = 0; i < reply->n_sessions; i++)
        for (size_t j = 0; j < reply->sessions[i].n_requests; j++) {
            const struct reply_request *request = &reply->sessions[i].requests[j];
            add_session(&table, &reply->sessions[i]);
            table_add(&table, STYLE_PLAIN, "%" PRIu64, request->pool);
            add_bytes(&table, request->bytes, STYLE_PLAIN);
            add_time(&table, request->waiting_ns, STYLE_WARNING);
            add_time(&table, request->left_ns, STYLE_PLAIN);
            table_add(&table, STYLE_PLAIN, "%s", reason_words(request->reason));
        }
    int r = table_print(&table, file, color);
    table_deinit(&table);
    return r;
}

/* A further table, under its heading. */
static int print_further(const struct reply *reply, FILE *file, bool color, const char *heading,
                         int (*print)(const struct reply *reply, FILE *file, bool color)) {
    int r = print_line(file, color, STYLE_PLAIN, "%s", "");
    if (r == 0)
        r = print_line(file, color, STYLE_HEADING, "%s", heading);
    return r < 0 ? r : print(reply, file, color);
}

int view_sessions(const struct reply *reply, FILE *file, bool color) {
    size_t n_pools = 0, n_requests = 0;

    if (reply->n_sessions == 0)
        return print_line(file, color, STYLE_QUIET, "No sessions.");
    for (size_t i = 0; i < reply->n_sessions; i++) {
        n_pools += reply->sessions[i].n_pools;
        n_requests += reply->sessions[i].n_requests;
    }
    int r = print_line(file, color, STYLE_HEADING, "Sessions");
    if (r == 0)
        r = print_sessions(reply, file, color);
    if (r == 0 && n_pools > 0)
        r = print_further(reply, file, color, "Their memory", print_holdings);
    if (r == 0 && n_requests > 0)
        r = print_further(reply, file, color, "Waiting", print_requests);
    return r;
}

int view_quarantine(const struct reply *reply, FILE *file, bool color) {
    static const struct column columns[] = {
        {"SESSION", true}, {"PID", true},   {"UID", true},      {"HELD", true},
        {"FOR", true},     {"RULE", false}, {"COMMAND", false}, {"WHY", false},
    };
    struct table table;

    if (reply->n_sessions == 0)
        return print_line(file, color, STYLE_QUIET, "Nothing is in quarantine.");
    table_init(&table, columns, ARRAY_LENGTH(columns));
    for (size_t i = 0; i < reply->n_sessions; i++) {
        const struct reply_session *session = &reply->sessions[i];
        table_add(&table, STYLE_PLAIN, "%" PRIu64, session->id);
        add_count(&table, session->pid, STYLE_PLAIN);
        table_add(&table, STYLE_PLAIN, "%" PRIu64, session->uid);
        add_bytes(&table, session->leased_bytes + session->fenced_bytes, STYLE_WARNING);
        table_add(&table, STYLE_PLAIN, "%s",
                  NS_TEXT(session->quarantined_ns == REPLY_NULL ? 0 : session->quarantined_ns));
        table_add(&table, session->end_rule == NULL ? STYLE_QUIET : STYLE_PLAIN, "%s%s",
                  session->end_rule == NULL ? "-" : session->end_rule, session->under_mps ? ", MPS" : "");
        table_add(&table, STYLE_PLAIN, "%s", session->command);
        table_add(&table, STYLE_WARNING, "%s",
                  session->quarantine_reason == NULL ? "" : session->quarantine_reason);
    }
    int r = table_print(&table, file, color);
    table_deinit(&table);
    return r;
}
