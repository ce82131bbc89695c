/* SPDX-License-Identifier: Apache-2.0 */
/* The pools, for people. */
#include <inttypes.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/units.h"
#include "client/ctl/view.h"
#include "client/ctl/view_parts.h"

/* From this share of its limit on, a pool's use is shown as worth a look: what is left may not hold a large
 * buffer. */
#define USED_WARNING_PERCENT 90

/* The place of a pool: its device or its NUMA node. */
static void add_place(struct table *table, const struct cJSON *pool, const struct column *column) {
    uint64_t device = reply_count(pool, "device"), numa_node = reply_count(pool, "numa_node");
    const char *kind = reply_text(pool, "kind");

    if (device != REPLY_NULL)
        table_add(table, column->style, "%s %" PRIu64, kind, device);
    else if (numa_node != REPLY_NULL)
        table_add(table, column->style, "%s, node %" PRIu64, kind, numa_node);
    else
        table_add(table, column->style, "%s", kind);
}

static void add_used(struct table *table, const struct cJSON *pool, const struct column *column) {
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
static void add_bar(struct table *table, const struct cJSON *pool, const struct column *column) {
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
 * are of common size. */
static void print_pools_use(struct output *output, const struct cJSON *reply) {
    static const struct column columns[] = {
        {"POOL", true, add_number, "id"},
        {"PLACE", false, add_place, NULL},
        {"STATE", false, add_state, "state"},
        {"USED", true, add_used, NULL},
        {"OF LIMIT", false, add_bar, NULL},
        {"IN USE", true, add_bytes, "in_use_bytes"},
        {"CACHED", true, add_bytes, "cached_bytes"},
        {"FREE", true, add_bytes, "free_bytes"},
        {"RESERVED", true, add_bytes, "reserved_bytes"},
        {"LIMIT", true, add_bytes, "limit_bytes"},
    };

    print_table(output, columns, reply, "pools", NULL);
    print_line(output, STYLE_QUIET, "  %s", BAR_LEGEND);
}

/* The pools' activity and their errors. */
static void print_pools_condition(struct output *output, const struct cJSON *reply) {
    static const struct column columns[] = {
        {"POOL", true, add_number, "id"},
        {"LARGEST FREE", true, add_bytes, "largest_free_bytes"},
        {"FENCED", true, add_bytes, "fenced_bytes"},
        {"QUARANTINED", true, add_bytes, "quarantined_bytes", STYLE_WARNING},
        {"HITS", true, add_share, "hit_ratio"},
        {"LEASES", true, add_count, "leases"},
        {"WAITERS", true, add_count, "waiters", STYLE_WARNING},
        {"FAILURES", true, add_count, "failures", STYLE_WARNING},
        {"NAME", false, add_text, "name", .fit = FIT_CUT},
    };

    print_table(output, columns, reply, "pools", NULL);
    reply_each(pool, reply, "pools") {
        const char *error = reply_text(pool, "last_error");
        if (error != NULL)
            print_line(output, state_is_closed(reply_text(pool, "state")) ? STYLE_ALARM : STYLE_WARNING,
                       "  pool %" PRIu64 ", last error: %s", reply_count(pool, "id"), error);
    }
    reply_each(pool, reply, "pools") {
        if (reply_flag(pool, "draining"))
            print_line(output, STYLE_WARNING,
                       "  pool %" PRIu64
                       " drains: no more is lent from it; 'gpupoolctl drain --off' ends that",
                       reply_count(pool, "id"));
    }
    reply_each(pool, reply, "pools") {
        uint64_t oldest_ns = reply_count(pool, "waiting_oldest_ns");
        if (oldest_ns != REPLY_NULL && oldest_ns >= NS_PER_S)
            print_line(output, STYLE_WARNING, "  pool %" PRIu64 ": the oldest request has waited for %s",
                       reply_count(pool, "id"), NS_TEXT(oldest_ns));
    }
    reply_each(pool, reply, "pools") {
        if (reply_count(pool, "parcels") > 0)
            print_line(output, STYLE_PLAIN,
                       "  pool %" PRIu64 ": %s sent and not taken yet; no process has %s of that",
                       reply_count(pool, "id"), COUNT_TEXT(reply_count(pool, "parcels"), "buffer"),
                       BYTES_TEXT(reply_count(pool, "parcel_bytes")));
    }
    reply_each(pool, reply, "pools") {
        uint64_t named = reply_count(pool, "named");
        if (named != REPLY_NULL && named > 0)
            print_line(output, STYLE_PLAIN,
                       "  pool %" PRIu64 ": %s published under names; no process has %s of that",
                       reply_count(pool, "id"), COUNT_TEXT(named, "buffer"),
                       BYTES_TEXT(reply_count(pool, "named_bytes")));
    }
    reply_each(pool, reply, "pools") {
        const char *call = reply_text(pool, "worker_call");
        uint64_t call_ns = reply_count(pool, "worker_call_ns");
        if (call != NULL && call_ns != REPLY_NULL && call_ns >= LONG_CALL_NS)
            print_line(output, STYLE_WARNING, "  pool %" PRIu64 ": its worker is in %s for %s",
                       reply_count(pool, "id"), call, NS_TEXT(call_ns));
    }
}

/* How long it took to acquire, to wait and to grow. */
static const struct column times[] = {
    {"POOL", true, add_number, "id"},
    {"AT ONCE", true, add_count, "histograms.acquire_ns.count"},
    {"P50", true, add_time, "histograms.acquire_ns.p50", .joined = true},
    {"P99", true, add_time, "histograms.acquire_ns.p99", .joined = true},
    {"WAITED", true, add_count, "histograms.waiting_ns.count"},
    {"P50", true, add_time, "histograms.waiting_ns.p50", .joined = true},
    {"P99", true, add_time, "histograms.waiting_ns.p99", .joined = true},
    {"GROWTHS", true, add_count, "histograms.growth_ns.count"},
    {"P50", true, add_time, "histograms.growth_ns.p50", .joined = true},
    {"P99", true, add_time, "histograms.growth_ns.p99", .joined = true},
};

static void add_yes_no(struct table *table, const struct cJSON *pool, const struct column *column) {
    table_add(table, column->style, "%s", reply_flag(pool, column->key) ? "yes" : "no");
}

/* How the pools were set up, and what happened to them since the daemon started. */
static const struct column history[] = {
    {"POOL", true, add_number, "id"},
    {"STEP", true, add_bytes, "step_bytes"},
    {"RESERVE", true, add_bytes, "reserve_bytes"},
    {"LOW WATER", true, add_bytes, "low_water_bytes"},
    {"GROWING", true, add_bytes, "growing_bytes"},
    {"SEGMENTS", true, add_count, "segments"},
    {"EXPORT", false, add_text, "export"},
    {"PAGES", false, add_text, "pages"},
    {"ZEROED BY", false, add_text, "zeroed_by"},
    {"CONTEXT", false, add_yes_no, "context"},
    {"ACQUIRES", true, add_count, "acquires"},
    {"RELEASES", true, add_count, "releases"},
    {"GROWS", true, add_count, "grows"},
    {"RETIRES", true, add_count, "retires"},
    {"UUID", false, add_text, "uuid"},
};

/* The time that clients took to close segments; none where they closed none. */
static void add_close_time(struct table *table, const struct cJSON *pool, const struct column *column) {
    if (reply_count(pool, "closes") == 0)
        table_add(table, STYLE_QUIET, "-");
    else
        add_time(table, pool, column);
}

/* Refusals, and segments that clients had to close. */
static const struct column refusals[] = {
    {"POOL", true, add_number, "id"},
    {"FAILURES", true, add_count, "failures", STYLE_WARNING},
    {"TIMEOUTS", true, add_count, "timeouts", STYLE_WARNING},
    {"BY QUOTA", true, add_count, "quota_refusals", STYLE_WARNING},
    {"PROBES", true, add_count, "probes"},
    {"CLOSES", true, add_count, "closes", STYLE_WARNING},
    {"TIME TO CLOSE", true, add_close_time, "close_ns"},
};

/* The most that there ever was, and for how long something has been in quarantine. */
static const struct column peaks[] = {
    {"POOL", true, add_number, "id"},
    {"MOST LEASED", true, add_bytes, "leased_peak_bytes"},
    {"MOST RESERVED", true, add_bytes, "reserved_peak_bytes"},
    {"MOST QUARANTINED", true, add_bytes, "quarantined_peak_bytes"},
    {"IN QUARANTINE FOR", true, add_time, "quarantine_oldest_ns", STYLE_WARNING},
};

void view_pools_short(struct output *output, const struct cJSON *reply) {
    if (reply_first(reply, "pools") == NULL) {
        print_line(output, STYLE_QUIET, "No pools.");
        return;
    }
    print_line(output, STYLE_HEADING, "Pools");
    print_pools_use(output, reply);
    print_line(output, STYLE_PLAIN, "%s", "");
    print_pools_condition(output, reply);
}

void view_pools(struct output *output, const struct cJSON *reply) {
    static const struct {
        const struct column *columns;
        size_t count;
    } tables[] = {
        {refusals, ARRAY_LENGTH(refusals)},
        {peaks, ARRAY_LENGTH(peaks)},
        {times, ARRAY_LENGTH(times)},
        {history, ARRAY_LENGTH(history)},
    };

    view_pools_short(output, reply);
    for (size_t i = 0; i < ARRAY_LENGTH(tables) && reply_first(reply, "pools") != NULL; i++) {
        print_line(output, STYLE_PLAIN, "%s", "");
        table_print(output, tables[i].columns, tables[i].count, reply, "pools", NULL);
    }
}
