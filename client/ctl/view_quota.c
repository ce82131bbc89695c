/* SPDX-License-Identifier: Apache-2.0 */
/* Users and their quotas, for people. */
#include <inttypes.h>
#include <stdio.h>

#include "base/units.h"
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
    if (limit == REPLY_NULL)
        table_add(table, style_of(used, limit), "%" PRIu64, used);
    else
        table_add(table, style_of(used, limit), "%" PRIu64 " of %" PRIu64, used, limit);
}

static void add_bytes_of_limit(struct table *table, const struct cJSON *row, const struct column *column) {
    uint64_t used = reply_count(row, column->key), limit = limit_of(row, column->key);
    if (limit == REPLY_NULL)
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
