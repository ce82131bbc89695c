/* SPDX-License-Identifier: Apache-2.0 */
/* What users have and may have, for people. */
#include <inttypes.h>

#include "base/units.h"
#include "client/ctl/table.h"
#include "client/ctl/view.h"

/* From this share of a quota on, it is shown as worth a look. */
#define QUOTA_WARNING_PERCENT 90

#define ARRAY_LENGTH(array) (sizeof(array) / sizeof *(array))

/* How a use looks beside its limit: nothing is quiet, nearly all a warning, all of it an alarm. */
static enum style style_of(uint64_t used, uint64_t limit) {
    if (limit != REPLY_NULL && used >= limit)
        return limit == 0 ? STYLE_WARNING : STYLE_ALARM;
    if (used == 0)
        return STYLE_QUIET;
    return limit != REPLY_NULL && (double)used * 100 >= (double)limit * QUOTA_WARNING_PERCENT ? STYLE_WARNING
                                                                                              : STYLE_PLAIN;
}

static void add_count(struct table *table, uint64_t used, uint64_t limit) {
    if (limit == REPLY_NULL)
        table_add(table, style_of(used, limit), "%" PRIu64, used);
    else
        table_add(table, style_of(used, limit), "%" PRIu64 " of %" PRIu64, used, limit);
}

static void add_bytes(struct table *table, uint64_t used, uint64_t limit) {
    if (limit == REPLY_NULL)
        table_add(table, style_of(used, limit), "%s", BYTES_TEXT(used));
    else
        table_add(table, style_of(used, limit), "%s of %s", BYTES_TEXT(used), BYTES_TEXT(limit));
}

static int print_users(const struct reply *reply, FILE *file, bool color) {
    static const struct column columns[] = {{"USER", true},    {"SESSIONS", true}, {"LEASES", true},
                                            {"WAITING", true}, {"REPLIES", true},  {"REFUSED", true}};
    struct table table;

    table_init(&table, columns, ARRAY_LENGTH(columns));
    for (size_t i = 0; i < reply->n_quotas; i++) {
        const struct reply_quota *quota = &reply->quotas[i];
        table_add(&table, STYLE_PLAIN, "%" PRIu64, quota->uid);
        add_count(&table, quota->sessions, quota->sessions_limit);
        add_count(&table, quota->leases, quota->leases_limit);
        add_count(&table, quota->waiting, quota->waiting_limit);
        add_bytes(&table, quota->reply_bytes, quota->reply_bytes_limit);
        table_add(&table, quota->refusals == 0 ? STYLE_QUIET : STYLE_WARNING, "%" PRIu64, quota->refusals);
    }
    int r = table_print(&table, file, color);
    table_deinit(&table);
    return r;
}

static int print_memory(const struct reply *reply, FILE *file, bool color) {
    static const struct column columns[] = {{"USER", true}, {"POOL", true},     {"KIND", false},
                                            {"HAS", true},  {"MAY HAVE", true}, {"SHARE", true}};
    struct table table;

    table_init(&table, columns, ARRAY_LENGTH(columns));
    for (size_t i = 0; i < reply->n_quotas; i++)
        for (size_t j = 0; j < reply->quotas[i].n_pools; j++) {
            const struct reply_quota_pool *pool = &reply->quotas[i].pools[j];
            enum style style = style_of(pool->bytes, pool->bytes_limit);
            table_add(&table, STYLE_PLAIN, "%" PRIu64, reply->quotas[i].uid);
            table_add(&table, STYLE_PLAIN, "%" PRIu64, pool->id);
            table_add(&table, STYLE_PLAIN, "%s", pool->kind);
            table_add(&table, style, "%s", BYTES_TEXT(pool->bytes));
            if (pool->bytes_limit == REPLY_NULL)
                table_add(&table, STYLE_QUIET, "unlimited");
            else
                table_add(&table, STYLE_PLAIN, "%s", BYTES_TEXT(pool->bytes_limit));
            if (pool->bytes_limit == REPLY_NULL || pool->bytes_limit == 0)
                table_add(&table, STYLE_QUIET, "-");
            else
                table_add(&table, style, "%.1f%%", 100.0 * (double)pool->bytes / (double)pool->bytes_limit);
        }
    int r = table_print(&table, file, color);
    table_deinit(&table);
    return r;
}

int view_quota(const struct reply *reply, FILE *file, bool color) {
    if (reply->n_quotas == 0) {
        fprintf(file, "%sNo users.%s\n", style_start(STYLE_QUIET, color), style_end(STYLE_QUIET, color));
        return 0;
    }
    fprintf(file, "%sUsers%s\n", style_start(STYLE_HEADING, color), style_end(STYLE_HEADING, color));
    int r = print_users(reply, file, color);
    if (r < 0)
        return r;
    fprintf(file, "\n%sTheir memory%s\n", style_start(STYLE_HEADING, color), style_end(STYLE_HEADING, color));
    return print_memory(reply, file, color);
}
