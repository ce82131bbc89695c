/* SPDX-License-Identifier: Apache-2.0 */
/* The pools, for people. */
#include <inttypes.h>

#include "base/clock.h"
#include "base/units.h"
#include "client/ctl/view.h"
#include "client/ctl/view_parts.h"

/* From this share of its limit on, a pool's use is shown as worth a look: what is left may not hold a large
 * buffer. */
#define USED_WARNING_PERCENT 90

/* What a device pool is on and a host pool is of. */
static void add_place(struct table *table, const struct reply_pool *pool) {
    if (pool->device != REPLY_NULL)
        table_add(table, STYLE_PLAIN, "%s %" PRIu64, pool->kind, pool->device);
    else if (pool->numa_node != REPLY_NULL)
        table_add(table, STYLE_PLAIN, "%s, node %" PRIu64, pool->kind, pool->numa_node);
    else
        table_add(table, STYLE_PLAIN, "%s", pool->kind);
}

static void add_used(struct table *table, const struct reply_pool *pool) {
    if (pool->limit_bytes == 0) {
        table_add(table, STYLE_QUIET, "-");
        return;
    }
    double percent = 100.0 * (double)pool->leased_bytes / (double)pool->limit_bytes;
    enum style style = pool->leased_bytes == 0           ? STYLE_QUIET
                       : percent >= USED_WARNING_PERCENT ? STYLE_WARNING
                                                         : STYLE_PLAIN;
    table_add(table, style, "%.1f%%", percent);
}

/* A pool's worker is often in some call; people care for those that stay. */
#define LONG_CALL_NS (1 * NS_PER_S)

#define BAR_CELLS  10u
#define BAR_LEGEND "# in use   + cached   ! fenced or quarantined   - free"

/* How a pool's limit is taken: each cell shows what is at its beginning, so that nothing is too little to be
 * seen where it comes first. */
static void add_bar(struct table *table, const struct reply_pool *pool) {
    const struct {
        uint64_t bytes;
        char mark;
    } parts[] = {
        {pool->in_use_bytes, '#'},      {pool->cached_bytes, '+'}, {pool->fenced_bytes, '!'},
        {pool->quarantined_bytes, '!'}, {pool->free_bytes, '-'},
    };
    /* more than the limit is reserved after that was lowered */
    double whole =
        (double)(pool->limit_bytes > pool->reserved_bytes ? pool->limit_bytes : pool->reserved_bytes);
    char bar[BAR_CELLS + 1];

    for (unsigned cell = 0; cell < BAR_CELLS; cell++) {
        double at = whole * cell / BAR_CELLS, end = 0;
        bar[cell] = ' ';
        for (size_t i = 0; i < ARRAY_LENGTH(parts) && bar[cell] == ' '; i++) {
            end += (double)parts[i].bytes;
            if (at < end)
                bar[cell] = parts[i].mark;
        }
    }
    bar[BAR_CELLS] = '\0';
    table_add(table, STYLE_PLAIN, "[%s]", bar);
}

/* How much is in use of each pool: the first table of stats and pools. 100 columns where names and numbers
 * are of common size.
 */
static int print_pools_use(const struct reply *reply, FILE *file, bool color) {
    static const struct column columns[] = {
        {"POOL", true},   {"PLACE", false}, {"STATE", false}, {"USED", true},     {"OF LIMIT", false},
        {"IN USE", true}, {"CACHED", true}, {"FREE", true},   {"RESERVED", true}, {"LIMIT", true},
    };
    struct table table;

    table_init(&table, columns, ARRAY_LENGTH(columns));
    for (size_t i = 0; i < reply->n_pools; i++) {
        const struct reply_pool *pool = &reply->pools[i];
        table_add(&table, STYLE_PLAIN, "%" PRIu64, pool->id);
        add_place(&table, pool);
        add_state(&table, pool->state);
        add_used(&table, pool);
        add_bar(&table, pool);
        add_bytes(&table, pool->in_use_bytes, STYLE_PLAIN);
        add_bytes(&table, pool->cached_bytes, STYLE_PLAIN);
        add_bytes(&table, pool->free_bytes, STYLE_PLAIN);
        add_bytes(&table, pool->reserved_bytes, STYLE_PLAIN);
        add_bytes(&table, pool->limit_bytes, STYLE_PLAIN);
    }
    int r = table_print(&table, file, color);
    table_deinit(&table);
    return r < 0 ? r : print_line(file, color, STYLE_QUIET, "  %s", BAR_LEGEND);
}

/* What goes on in them, and what may be wrong. */
static int print_pools_condition(const struct reply *reply, FILE *file, bool color) {
    static const struct column columns[] = {
        {"POOL", true},   {"LARGEST FREE", true}, {"FENCED", true},   {"QUARANTINED", true}, {"HITS", true},
        {"LEASES", true}, {"WAITERS", true},      {"FAILURES", true}, {"NAME", false},
    };
    struct table table;

    table_init(&table, columns, ARRAY_LENGTH(columns));
    for (size_t i = 0; i < reply->n_pools; i++) {
        const struct reply_pool *pool = &reply->pools[i];
        table_add(&table, STYLE_PLAIN, "%" PRIu64, pool->id);
        add_bytes(&table, pool->largest_free_bytes, STYLE_PLAIN);
        add_bytes(&table, pool->fenced_bytes, STYLE_PLAIN);
        add_bytes(&table, pool->quarantined_bytes, STYLE_WARNING);
        add_share(&table, pool->hit_ratio);
        add_count(&table, pool->leases, STYLE_PLAIN);
        add_count(&table, pool->waiters, STYLE_WARNING);
        add_count(&table, pool->failures, STYLE_WARNING);
        table_add(&table, STYLE_PLAIN, "%s", pool->name);
    }
    int r = table_print(&table, file, color);
    table_deinit(&table);
    for (size_t i = 0; i < reply->n_pools && r == 0; i++)
        if (reply->pools[i].last_error != NULL)
            r = print_line(file, color, state_is_closed(reply->pools[i].state) ? STYLE_ALARM : STYLE_WARNING,
                           "  pool %" PRIu64 ", last error: %s", reply->pools[i].id,
                           reply->pools[i].last_error);
    for (size_t i = 0; i < reply->n_pools && r == 0; i++)
        if (reply->pools[i].worker_call != NULL && reply->pools[i].worker_call_ns != REPLY_NULL &&
            reply->pools[i].worker_call_ns >= LONG_CALL_NS)
            r = print_line(file, color, STYLE_WARNING, "  pool %" PRIu64 ": its worker is in %s for %s",
                           reply->pools[i].id, reply->pools[i].worker_call,
                           NS_TEXT(reply->pools[i].worker_call_ns));
    return r;
}

static void add_times(struct table *table, const struct reply_times *times) {
    add_count(table, times->count, STYLE_PLAIN);
    add_time(table, times->p50_ns, STYLE_PLAIN);
    add_time(table, times->p99_ns, STYLE_PLAIN);
}

/* How long it took to acquire, to wait and to grow. */
static int print_pools_times(const struct reply *reply, FILE *file, bool color) {
    static const struct column columns[] = {
        {"POOL", true}, {"AT ONCE", true}, {"P50", true},     {"P99", true}, {"WAITED", true},
        {"P50", true},  {"P99", true},     {"GROWTHS", true}, {"P50", true}, {"P99", true},
    };
    struct table table;

    table_init(&table, columns, ARRAY_LENGTH(columns));
    for (size_t i = 0; i < reply->n_pools; i++) {
        const struct reply_pool *pool = &reply->pools[i];
        table_add(&table, STYLE_PLAIN, "%" PRIu64, pool->id);
        add_times(&table, &pool->acquire);
        add_times(&table, &pool->waiting);
        add_times(&table, &pool->growth);
    }
    int r = table_print(&table, file, color);
    table_deinit(&table);
    return r;
}

/* How the pools were set up, and what happened to them since the daemon started. */
static int print_pools_history(const struct reply *reply, FILE *file, bool color) {
    static const struct column columns[] = {
        {"POOL", true},     {"STEP", true},     {"RESERVE", true}, {"LOW WATER", true},
        {"GROWING", true},  {"SEGMENTS", true}, {"PAGES", false},  {"ACQUIRES", true},
        {"RELEASES", true}, {"GROWS", true},    {"RETIRES", true}, {"UUID", false},
    };
    struct table table;

    table_init(&table, columns, ARRAY_LENGTH(columns));
    for (size_t i = 0; i < reply->n_pools; i++) {
        const struct reply_pool *pool = &reply->pools[i];
        table_add(&table, STYLE_PLAIN, "%" PRIu64, pool->id);
        add_bytes(&table, pool->step_bytes, STYLE_PLAIN);
        add_bytes(&table, pool->reserve_bytes, STYLE_PLAIN);
        add_bytes(&table, pool->low_water_bytes, STYLE_PLAIN);
        add_bytes(&table, pool->growing_bytes, STYLE_PLAIN);
        add_count(&table, pool->segments, STYLE_PLAIN);
        table_add(&table, pool->pages == NULL ? STYLE_QUIET : STYLE_PLAIN, "%s",
                  pool->pages == NULL ? "-" : pool->pages);
        add_count(&table, pool->acquires, STYLE_PLAIN);
        add_count(&table, pool->releases, STYLE_PLAIN);
        add_count(&table, pool->grows, STYLE_PLAIN);
        add_count(&table, pool->retires, STYLE_PLAIN);
        table_add(&table, pool->uuid == NULL ? STYLE_QUIET : STYLE_PLAIN, "%s",
                  pool->uuid == NULL ? "-" : pool->uuid);
    }
    int r = table_print(&table, file, color);
    table_deinit(&table);
    return r;
}

/* What was refused, and what clients had to close. */
static int print_pools_refusals(const struct reply *reply, FILE *file, bool color) {
    static const struct column columns[] = {
        {"POOL", true},   {"FAILURES", true}, {"TIMEOUTS", true},      {"BY QUOTA", true},
        {"PROBES", true}, {"CLOSES", true},   {"TIME TO CLOSE", true},
    };
    struct table table;

    table_init(&table, columns, ARRAY_LENGTH(columns));
    for (size_t i = 0; i < reply->n_pools; i++) {
        const struct reply_pool *pool = &reply->pools[i];
        table_add(&table, STYLE_PLAIN, "%" PRIu64, pool->id);
        add_count(&table, pool->failures, STYLE_WARNING);
        add_count(&table, pool->timeouts, STYLE_WARNING);
        add_count(&table, pool->quota_refusals, STYLE_WARNING);
        add_count(&table, pool->probes, STYLE_PLAIN);
        add_count(&table, pool->closes, STYLE_WARNING);
        add_time(&table, pool->closes == 0 ? REPLY_NULL : pool->close_ns, STYLE_PLAIN);
    }
    int r = table_print(&table, file, color);
    table_deinit(&table);
    return r;
}

/* The most that there ever was, and for how long something has been in quarantine. */
static int print_pools_peaks(const struct reply *reply, FILE *file, bool color) {
    static const struct column columns[] = {
        {"POOL", true},
        {"MOST LEASED", true},
        {"MOST RESERVED", true},
        {"MOST QUARANTINED", true},
        {"IN QUARANTINE FOR", true},
    };
    struct table table;

    table_init(&table, columns, ARRAY_LENGTH(columns));
    for (size_t i = 0; i < reply->n_pools; i++) {
        const struct reply_pool *pool = &reply->pools[i];
        table_add(&table, STYLE_PLAIN, "%" PRIu64, pool->id);
        add_bytes(&table, pool->leased_peak_bytes, STYLE_PLAIN);
        add_bytes(&table, pool->reserved_peak_bytes, STYLE_PLAIN);
        add_bytes(&table, pool->quarantined_peak_bytes, STYLE_PLAIN);
        add_time(&table, pool->quarantine_oldest_ns, STYLE_WARNING);
    }
    int r = table_print(&table, file, color);
    table_deinit(&table);
    return r;
}

int view_pools_short(const struct reply *reply, FILE *file, bool color) {
    if (reply->n_pools == 0)
        return print_line(file, color, STYLE_QUIET, "No pools.");
    int r = print_line(file, color, STYLE_HEADING, "Pools");
    if (r == 0)
        r = print_pools_use(reply, file, color);
    if (r == 0)
        r = print_line(file, color, STYLE_PLAIN, "%s", "");
    return r < 0 ? r : print_pools_condition(reply, file, color);
}

int view_pools(const struct reply *reply, FILE *file, bool color) {
    static int (*const tables[])(const struct reply *reply, FILE *file, bool color) = {
        print_pools_refusals, print_pools_peaks, print_pools_times, print_pools_history};

    int r = view_pools_short(reply, file, color);
    for (size_t i = 0; i < ARRAY_LENGTH(tables) && r == 0 && reply->n_pools > 0; i++) {
        r = print_line(file, color, STYLE_PLAIN, "%s", "");
        if (r == 0)
            r = tables[i](reply, file, color);
    }
    return r;
}
