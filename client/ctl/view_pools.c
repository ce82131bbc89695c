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

/* The place of a pool: its device or its NUMA node. */
static void add_place(struct table *table, const struct cJSON *pool, const struct view_column *column) {
    uint64_t device = reply_count(pool, "device"), numa_node = reply_count(pool, "numa_node");
    const char *kind = reply_text(pool, "kind");

    if (device != REPLY_NULL)
        table_add(table, column->style, "%s %" PRIu64, kind, device);
    else if (numa_node != REPLY_NULL)
        table_add(table, column->style, "%s, node %" PRIu64, kind, numa_node);
    else
        table_add(table, column->style, "%s", kind);
}

static void add_used(struct table *table, const struct cJSON *pool, const struct view_column *column) {
    uint64_t limit_bytes = reply_count(pool, "limit_bytes"), leased_bytes = reply_count(pool, "leased_bytes");

    if (limit_bytes == 0) {
        table_add(table, STYLE_QUIET, "-");
        return;
    }
    double percent = 100.0 * (double)leased_bytes / (double)limit_bytes;
    enum style style = leased_bytes == 0                 ? STYLE_QUIET
                       : percent >= USED_WARNING_PERCENT ? STYLE_WARNING
                                                         : column->style;
    table_add(table, style, "%.1f%%", percent);
}

/* A pool's worker is often in some call; people care for those that stay. */
#define LONG_CALL_NS (1 * NS_PER_S)

#define BAR_CELLS  10u
#define BAR_LEGEND "# in use   + cached   ! fenced or quarantined   - free"

/* How a pool's limit is taken: each cell shows what is at its beginning, so that nothing is too little to be
 * seen where it comes first. */
static void add_bar(struct table *table, const struct cJSON *pool, const struct view_column *column) {
    const struct {
        uint64_t bytes;
        char mark;
    } parts[] = {
        {reply_count(pool, "in_use_bytes"), '#'}, {reply_count(pool, "cached_bytes"), '+'},
        {reply_count(pool, "fenced_bytes"), '!'}, {reply_count(pool, "quarantined_bytes"), '!'},
        {reply_count(pool, "free_bytes"), '-'},
    };
    uint64_t limit_bytes = reply_count(pool, "limit_bytes"),
             reserved_bytes = reply_count(pool, "reserved_bytes");
    /* more than the limit is reserved after that was lowered */
    double whole = (double)(limit_bytes > reserved_bytes ? limit_bytes : reserved_bytes);
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
    table_add(table, column->style, "[%s]", bar);
}

/* How much is in use of each pool: the first table of stats and pools. 100 columns where names and numbers
 * are of common size.
 */
static int print_pools_use(const struct cJSON *reply, FILE *file, bool color) {
    static const struct view_column columns[] = {
        {{"POOL", true}, add_number, "id", STYLE_PLAIN, false},
        {{"PLACE", false}, add_place, NULL, STYLE_PLAIN, false},
        {{"STATE", false}, add_state, "state", STYLE_PLAIN, false},
        {{"USED", true}, add_used, NULL, STYLE_PLAIN, false},
        {{"OF LIMIT", false}, add_bar, NULL, STYLE_PLAIN, false},
        {{"IN USE", true}, add_bytes, "in_use_bytes", STYLE_PLAIN, false},
        {{"CACHED", true}, add_bytes, "cached_bytes", STYLE_PLAIN, false},
        {{"FREE", true}, add_bytes, "free_bytes", STYLE_PLAIN, false},
        {{"RESERVED", true}, add_bytes, "reserved_bytes", STYLE_PLAIN, false},
        {{"LIMIT", true}, add_bytes, "limit_bytes", STYLE_PLAIN, false},
    };

    int r = view_table(file, color, columns, ARRAY_LENGTH(columns), reply, "pools", NULL);
    return r < 0 ? r : print_line(file, color, STYLE_QUIET, "  %s", BAR_LEGEND);
}

/* The pools' activity and their errors. */
static int print_pools_condition(const struct cJSON *reply, FILE *file, bool color) {
    static const struct view_column columns[] = {
        {{"POOL", true}, add_number, "id", STYLE_PLAIN, false},
        {{"LARGEST FREE", true}, add_bytes, "largest_free_bytes", STYLE_PLAIN, false},
        {{"FENCED", true}, add_bytes, "fenced_bytes", STYLE_PLAIN, false},
        {{"QUARANTINED", true}, add_bytes, "quarantined_bytes", STYLE_WARNING, false},
        {{"HITS", true}, add_share, "hit_ratio", STYLE_PLAIN, false},
        {{"LEASES", true}, add_count, "leases", STYLE_PLAIN, false},
        {{"WAITERS", true}, add_count, "waiters", STYLE_WARNING, false},
        {{"FAILURES", true}, add_count, "failures", STYLE_WARNING, false},
        {{"NAME", false}, add_text, "name", STYLE_PLAIN, false},
    };

    int r = view_table(file, color, columns, ARRAY_LENGTH(columns), reply, "pools", NULL);
    reply_each(pool, reply, "pools") {
        const char *error = reply_text(pool, "last_error");
        if (error != NULL && r == 0)
            r = print_line(file, color,
                           state_is_closed(reply_text(pool, "state")) ? STYLE_ALARM : STYLE_WARNING,
                           "  pool %" PRIu64 ", last error: %s", reply_count(pool, "id"), error);
    }
    reply_each(pool, reply, "pools") {
        const char *call = reply_text(pool, "worker_call");
        uint64_t call_ns = reply_count(pool, "worker_call_ns");
        if (call != NULL && call_ns != REPLY_NULL && call_ns >= LONG_CALL_NS && r == 0)
            r = print_line(file, color, STYLE_WARNING, "  pool %" PRIu64 ": its worker is in %s for %s",
                           reply_count(pool, "id"), call, NS_TEXT(call_ns));
    }
    return r;
}

/* How long it took to acquire, to wait and to grow. */
static int print_pools_times(const struct cJSON *reply, FILE *file, bool color) {
    static const struct view_column columns[] = {
        {{"POOL", true}, add_number, "id", STYLE_PLAIN, false},
        {{"AT ONCE", true}, add_count, "histograms.acquire_ns.count", STYLE_PLAIN, false},
        {{"P50", true}, add_time, "histograms.acquire_ns.p50", STYLE_PLAIN, false},
        {{"P99", true}, add_time, "histograms.acquire_ns.p99", STYLE_PLAIN, false},
        {{"WAITED", true}, add_count, "histograms.waiting_ns.count", STYLE_PLAIN, false},
        {{"P50", true}, add_time, "histograms.waiting_ns.p50", STYLE_PLAIN, false},
        {{"P99", true}, add_time, "histograms.waiting_ns.p99", STYLE_PLAIN, false},
        {{"GROWTHS", true}, add_count, "histograms.growth_ns.count", STYLE_PLAIN, false},
        {{"P50", true}, add_time, "histograms.growth_ns.p50", STYLE_PLAIN, false},
        {{"P99", true}, add_time, "histograms.growth_ns.p99", STYLE_PLAIN, false},
    };
    return view_table(file, color, columns, ARRAY_LENGTH(columns), reply, "pools", NULL);
}

/* How the pools were set up, and what happened to them since the daemon started. */
static int print_pools_history(const struct cJSON *reply, FILE *file, bool color) {
    static const struct view_column columns[] = {
        {{"POOL", true}, add_number, "id", STYLE_PLAIN, false},
        {{"STEP", true}, add_bytes, "step_bytes", STYLE_PLAIN, false},
        {{"RESERVE", true}, add_bytes, "reserve_bytes", STYLE_PLAIN, false},
        {{"LOW WATER", true}, add_bytes, "low_water_bytes", STYLE_PLAIN, false},
        {{"GROWING", true}, add_bytes, "growing_bytes", STYLE_PLAIN, false},
        {{"SEGMENTS", true}, add_count, "segments", STYLE_PLAIN, false},
        {{"PAGES", false}, add_text, "pages", STYLE_PLAIN, false},
        {{"ACQUIRES", true}, add_count, "acquires", STYLE_PLAIN, false},
        {{"RELEASES", true}, add_count, "releases", STYLE_PLAIN, false},
        {{"GROWS", true}, add_count, "grows", STYLE_PLAIN, false},
        {{"RETIRES", true}, add_count, "retires", STYLE_PLAIN, false},
        {{"UUID", false}, add_text, "uuid", STYLE_PLAIN, false},
    };
    return view_table(file, color, columns, ARRAY_LENGTH(columns), reply, "pools", NULL);
}

/* The time that clients took to close segments; none where they closed none. */
static void add_close_time(struct table *table, const struct cJSON *pool, const struct view_column *column) {
    if (reply_count(pool, "closes") == 0)
        table_add(table, STYLE_QUIET, "-");
    else
        add_time(table, pool, column);
}

/* Refusals, and segments that clients had to close. */
static int print_pools_refusals(const struct cJSON *reply, FILE *file, bool color) {
    static const struct view_column columns[] = {
        {{"POOL", true}, add_number, "id", STYLE_PLAIN, false},
        {{"FAILURES", true}, add_count, "failures", STYLE_WARNING, false},
        {{"TIMEOUTS", true}, add_count, "timeouts", STYLE_WARNING, false},
        {{"BY QUOTA", true}, add_count, "quota_refusals", STYLE_WARNING, false},
        {{"PROBES", true}, add_count, "probes", STYLE_PLAIN, false},
        {{"CLOSES", true}, add_count, "closes", STYLE_WARNING, false},
        {{"TIME TO CLOSE", true}, add_close_time, "close_ns", STYLE_PLAIN, false},
    };
    return view_table(file, color, columns, ARRAY_LENGTH(columns), reply, "pools", NULL);
}

/* The most that there ever was, and for how long something has been in quarantine. */
static int print_pools_peaks(const struct cJSON *reply, FILE *file, bool color) {
    static const struct view_column columns[] = {
        {{"POOL", true}, add_number, "id", STYLE_PLAIN, false},
        {{"MOST LEASED", true}, add_bytes, "leased_peak_bytes", STYLE_PLAIN, false},
        {{"MOST RESERVED", true}, add_bytes, "reserved_peak_bytes", STYLE_PLAIN, false},
        {{"MOST QUARANTINED", true}, add_bytes, "quarantined_peak_bytes", STYLE_PLAIN, false},
        {{"IN QUARANTINE FOR", true}, add_time, "quarantine_oldest_ns", STYLE_WARNING, false},
    };
    return view_table(file, color, columns, ARRAY_LENGTH(columns), reply, "pools", NULL);
}

int view_pools_short(const struct cJSON *reply, FILE *file, bool color) {
    if (reply_first(reply, "pools") == NULL)
        return print_line(file, color, STYLE_QUIET, "No pools.");
    int r = print_line(file, color, STYLE_HEADING, "Pools");
    if (r == 0)
        r = print_pools_use(reply, file, color);
    if (r == 0)
        r = print_line(file, color, STYLE_PLAIN, "%s", "");
    return r < 0 ? r : print_pools_condition(reply, file, color);
}

int view_pools(const struct cJSON *reply, FILE *file, bool color) {
    static int (*const tables[])(const struct cJSON *reply, FILE *file, bool color) = {
        print_pools_refusals, print_pools_peaks, print_pools_times, print_pools_history};

    int r = view_pools_short(reply, file, color);
    for (size_t i = 0; i < ARRAY_LENGTH(tables) && r == 0 && reply_first(reply, "pools") != NULL; i++) {
        r = print_line(file, color, STYLE_PLAIN, "%s", "");
        if (r == 0)
            r = tables[i](reply, file, color);
    }
    return r;
}
