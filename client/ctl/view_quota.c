/* SPDX-License-Identifier: Apache-2.0 */
/* Users, scopes and their quotas, for people. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/units.h"
#include "client/ctl/user.h"
#include "client/ctl/view.h"
#include "client/ctl/view_parts.h"

/* From this share of a quota on, it is shown as worth a look. */
#define QUOTA_WARNING_PERCENT 90

/* How a use looks beside its limit: nothing is quiet, nearly all a warning, all of it an alarm. */
static enum style style_of(uint64_t used, uint64_t limit) {
    if (limit != REPLY_NULL && used >= limit)
        return limit == 0 ? STYLE_WARNING : STYLE_ALARM;
    if (used == 0)
        return STYLE_QUIET;
    return limit != REPLY_NULL && (double)used * 100 >= (double)limit * QUOTA_WARNING_PERCENT ? STYLE_WARNING
                                                                                              : STYLE_PLAIN;
}

/* The limit beside a use: the member of the same name with _limit behind it. */
static uint64_t limit_of(const struct cJSON *row, const char *key) {
    char limit[32];
    snprintf(limit, sizeof limit, "%s_limit", key);
    return reply_count(row, limit);
}

static void add_count_of_limit(struct table *table, const struct cJSON *row, const struct column *column) {
    uint64_t used = reply_count(row, column->key), limit = limit_of(row, column->key);
    if (used == REPLY_NULL) /* an older daemon's reply */
        table_add(table, STYLE_QUIET, "-");
    else if (limit == REPLY_NULL)
        table_add(table, style_of(used, limit), "%" PRIu64, used);
    else
        table_add(table, style_of(used, limit), "%" PRIu64 " of %" PRIu64, used, limit);
}

static void add_bytes_of_limit(struct table *table, const struct cJSON *row, const struct column *column) {
    uint64_t used = reply_count(row, column->key), limit = limit_of(row, column->key);
    if (used == REPLY_NULL) /* an older daemon's reply */
        table_add(table, STYLE_QUIET, "-");
    else if (limit == REPLY_NULL)
        table_add(table, style_of(used, limit), "%s", BYTES_TEXT(used));
    else
        table_add(table, style_of(used, limit), "%s of %s", BYTES_TEXT(used), BYTES_TEXT(limit));
}

static void add_used(struct table *table, const struct cJSON *row, const struct column *column) {
    uint64_t used = reply_count(row, column->key);
    table_add(table, style_of(used, limit_of(row, column->key)), "%s", BYTES_TEXT(used));
}

static void add_limit(struct table *table, const struct cJSON *row, const struct column *column) {
    uint64_t limit = limit_of(row, column->key);
    if (limit == REPLY_NULL)
        table_add(table, STYLE_QUIET, "unlimited");
    else
        table_add(table, column->style, "%s", BYTES_TEXT(limit));
}

static void add_used_share(struct table *table, const struct cJSON *row, const struct column *column) {
    uint64_t used = reply_count(row, column->key), limit = limit_of(row, column->key);
    if (limit == REPLY_NULL || limit == 0)
        table_add(table, STYLE_QUIET, "-");
    else
        table_add(table, style_of(used, limit), "%.1f%%", 100.0 * (double)used / (double)limit);
}

static const struct column users[] = {
    {"USER", false, add_user, "uid"},
    {"SESSIONS", true, add_count_of_limit, "sessions"},
    {"LEASES", true, add_count_of_limit, "leases"},
    {"RANGES", true, add_count_of_limit, "ranges"},
    {"SEGMENTS", true, add_count_of_limit, "segments"},
    {"WAITING", true, add_count_of_limit, "waiting"},
    {"REPLIES", true, add_bytes_of_limit, "reply_bytes"},
    {"NAMES", true, add_count_of_limit, "names"},
    {"KEPT", true, add_bytes_of_limit, "kept_bytes"},
    {"REFUSED", true, add_count, "refusals", STYLE_WARNING},
};

static const struct column memory[] = {
    {"USER", false, add_user, "uid", STYLE_PLAIN, true},
    {"POOL", true, add_number, "id"},
    {"KIND", false, add_text, "kind"},
    {"HAS", true, add_used, "bytes"},
    {"MAY HAVE", true, add_limit, "bytes"},
    {"SHARE", true, add_used_share, "bytes"},
};

void view_quota(struct output *output, const struct cJSON *reply) {
    if (reply_first(reply, "quotas") == NULL) {
        print_line(output, STYLE_QUIET, "No users.");
        return;
    }
    print_line(output, STYLE_HEADING, "Users");
    print_table(output, users, reply, "quotas", NULL);
    print_line(output, STYLE_PLAIN, "%s", "");
    print_line(output, STYLE_HEADING, "Their memory");
    print_table(output, memory, reply, "quotas", "pools");
}

/* --- scopes --- */

/* The users that the scope admits. */
static void add_uids(struct table *table, const struct cJSON *row, const struct column *column) {
    char text[256] = "";
    unsigned n = 0;

    reply_each(uid, row, column->key) {
        size_t length = strlen(text);
        snprintf(text + length, sizeof text - length, "%s%s", n > 0 ? ", " : "",
                 user_text(reply_item(reply_object(row, column->key), n)));
        n++;
    }
    table_add(table, n == 0 ? STYLE_QUIET : STYLE_PLAIN, "%s", n == 0 ? "every user" : text);
}

static void add_labels(struct table *table, const struct cJSON *row, const struct column *column) {
    char text[1024] = "";

    reply_each(label, row, column->key) {
        size_t length = strlen(text);
        snprintf(text + length, sizeof text - length, "%s%s=%s", length > 0 ? " " : "", reply_key(label),
                 reply_string(label));
    }
    table_add(table, STYLE_PLAIN, "%s", text[0] == '\0' ? "-" : text);
}

/* The socket's directory, which a container mounts. */
static void add_directory(struct table *table, const struct cJSON *row, const struct column *column) {
    const char *path = reply_text(row, column->key), *slash = path == NULL ? NULL : strrchr(path, '/');
    table_add(table, slash == NULL ? STYLE_QUIET : STYLE_PLAIN, "%.*s",
              slash == NULL ? 1 : (int)(slash - path), slash == NULL ? "-" : path);
}

static void add_scope_state(struct table *table, const struct cJSON *row, const struct column *column) {
    const char *state = reply_text(row, column->key);
    table_add(table, strcmp(state, "open") == 0 ? STYLE_PLAIN : STYLE_WARNING, "%s", state);
}

static const struct column scopes[] = {
    {"SCOPE", false, add_text, "scope"},
    {"STATE", false, add_scope_state, "state"},
    {"SESSIONS", true, add_count_of_limit, "sessions"},
    {"WAITING", true, add_count_of_limit, "waiting"},
    {"REFUSED", true, add_count, "refusals", STYLE_WARNING},
    {"RESERVED", true, add_bytes, "reserved_bytes"},
    {"KEPT", true, add_bytes_of_limit, "kept_bytes"},
    {"MAY COME IN", false, add_uids, "uids", .fit = FIT_CUT},
    {"LABELS", false, add_labels, "labels", .fit = FIT_WRAP},
};

static const struct column scopes_memory[] = {
    {"SCOPE", false, add_text, "scope", STYLE_PLAIN, true},
    {"POOL", true, add_number, "id"},
    {"KIND", false, add_text, "kind"},
    {"HAS", true, add_used, "bytes"},
    {"MAY HAVE", true, add_limit, "bytes"},
    {"SHARE", true, add_used_share, "bytes"},
};

static const struct column scopes_sockets[] = {
    {"SCOPE", false, add_text, "scope"},
    {"TO BE MOUNTED AT /run/gpupool", false, add_directory, "socket"},
};

void view_scopes(struct output *output, const struct cJSON *reply) {
    if (reply_first(reply, "scopes") == NULL) {
        print_line(output, STYLE_QUIET, "No scopes.");
        return;
    }
    print_line(output, STYLE_HEADING, "Scopes");
    print_table(output, scopes, reply, "scopes", NULL);
    print_line(output, STYLE_PLAIN, "%s", "");
    print_line(output, STYLE_HEADING, "Their memory");
    print_table(output, scopes_memory, reply, "scopes", "pools");
    print_line(output, STYLE_PLAIN, "%s", "");
    print_line(output, STYLE_HEADING, "Their sockets");
    print_table(output, scopes_sockets, reply, "scopes", NULL);
}

void view_scope_added(struct output *output, const struct cJSON *reply) {
    const char *path = reply_text(reply, "socket"), *slash = strrchr(path, '/');

    print_line(output, STYLE_HEADING, "Scope '%s' is there.", reply_text(reply, "scope"));
    print_line(output, STYLE_PLAIN, "  Mount %.*s into its container as /run/gpupool, read-only.",
               (int)(slash - path), path);
    if (reply_first(reply, "uids") != NULL)
        print_line(output, STYLE_PLAIN, "  A program outside of a container: GPUPOOL_SOCKET=%s", path);
    else
        print_line(output, STYLE_PLAIN,
                   "  Other users reach it in the container alone; with --uid, those who are named reach it "
                   "outside.");
}

void view_scope_set(struct output *output, const struct cJSON *reply) {
    print_line(output, STYLE_PLAIN, "Scope '%s' is changed: 'gpupoolctl scope list' shows it.",
               reply_text(reply, "scope"));
}

void view_scope_dropped(struct output *output, const struct cJSON *reply) {
    const struct cJSON *left = reply_object(reply, "left");

    if (reply_flag(reply, "is_gone")) {
        print_line(output, STYLE_PLAIN, "The scope is gone.");
        return;
    }
    print_line(output, STYLE_WARNING, "Scope '%s' lets no process in any more. It still has %s and %s.",
               reply_text(left, "scope"), COUNT_TEXT(reply_count(left, "sessions"), "session"),
               BYTES_TEXT(reply_count(left, "reserved_bytes")));
}
