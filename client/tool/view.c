/* SPDX-License-Identifier: Apache-2.0 */
#include "client/tool/view.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "client/tool/table.h"
#include "client/tool/text.h"

/* From this share of its limit on, a pool's use is shown as worth a look: what is left may not hold a large
 * buffer. */
#define USED_WARNING_PERCENT 90

#define ARRAY_LENGTH(array) (sizeof(array) / sizeof *(array))

static bool is(const char *text, const char *word) {
    return strcmp(text, word) == 0;
}

/* Prints a line in a style; what the format makes is passed through text_printable(). */
__attribute__((format(printf, 4, 5))) static int print_line(FILE *file, bool color, enum style style,
                                                            const char *format, ...) {
    _cleanup_(freep) char *raw = NULL, *printable = NULL;
    va_list arguments;

    va_start(arguments, format);
    int r = vasprintf(&raw, format, arguments);
    va_end(arguments);
    if (r < 0) {
        raw = NULL; /* what vasprintf leaves there is undefined */
        return -ENOMEM;
    }
    printable = text_printable(raw, NULL);
    if (printable == NULL)
        return -ENOMEM;
    fprintf(file, "%s%s%s\n", style_start(style, color), printable, style_end(style, color));
    return 0;
}

static const char *gpu_words(const char *gpu) {
    if (is(gpu, "cuda"))
        return "CUDA";
    if (is(gpu, "sim"))
        return "simulated GPU";
    return is(gpu, "none") ? "no GPU" : gpu;
}

static void add_bytes(struct table *table, uint64_t bytes, enum style style) {
    table_add(table, bytes == 0 ? STYLE_QUIET : style, "%s", BYTES_TEXT(bytes));
}

static void add_count(struct table *table, uint64_t count, enum style style) {
    table_add(table, count == 0 ? STYLE_QUIET : style, "%" PRIu64, count);
}

/* What a device pool is on and a host pool is of. */
static void add_place(struct table *table, const struct reply_pool *pool) {
    if (pool->device != REPLY_NULL)
        table_add(table, STYLE_PLAIN, "%s %" PRIu64, pool->kind, pool->device);
    else if (pool->numa_node != REPLY_NULL)
        table_add(table, STYLE_PLAIN, "%s, node %" PRIu64, pool->kind, pool->numa_node);
    else
        table_add(table, STYLE_PLAIN, "%s", pool->kind);
}

static bool is_closed(const char *state) {
    return is(state, "failed") || is(state, "lost");
}

static void add_state(struct table *table, const char *state) {
    enum style style = is(state, "ready") || is(state, "active") ? STYLE_PLAIN
                       : is_closed(state)                        ? STYLE_ALARM
                                                                 : STYLE_WARNING;
    table_add(table, style, "%s", state);
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

/* A share of something that may not be known. */
static void add_share(struct table *table, double share) {
    if (share == REPLY_NULL_RATIO)
        table_add(table, STYLE_QUIET, "-");
    else
        table_add(table, STYLE_PLAIN, "%.1f%%", 100.0 * share);
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

/* Who has how much: what stats and pools begin with. 100 columns where names and numbers are of common size.
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
            r = print_line(file, color, is_closed(reply->pools[i].state) ? STYLE_ALARM : STYLE_WARNING,
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
    const uint64_t quantiles[] = {times->p50_ns, times->p99_ns};

    add_count(table, times->count, STYLE_PLAIN);
    for (size_t i = 0; i < ARRAY_LENGTH(quantiles); i++)
        if (quantiles[i] == REPLY_NULL)
            table_add(table, STYLE_QUIET, "-");
        else
            table_add(table, STYLE_PLAIN, "%s", NS_TEXT(quantiles[i]));
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
        table_add(&table, STYLE_PLAIN, "%" PRIu64, session->id);
        add_count(&table, session->pid, STYLE_PLAIN);
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

static int print_pools_short(const struct reply *reply, FILE *file, bool color) {
    if (reply->n_pools == 0)
        return print_line(file, color, STYLE_QUIET, "No pools.");
    int r = print_line(file, color, STYLE_HEADING, "Pools");
    if (r == 0)
        r = print_pools_use(reply, file, color);
    if (r == 0)
        r = print_line(file, color, STYLE_PLAIN, "%s", "");
    return r < 0 ? r : print_pools_condition(reply, file, color);
}

int view_ping(const struct reply *reply, FILE *file, bool color) {
    const struct reply_daemon *daemon = &reply->daemon;

    return print_line(file, color, STYLE_PLAIN, "gpupoold %s answers: pid %" PRIu64 ", up %s, %s",
                      daemon->version, daemon->pid, NS_TEXT(daemon->uptime_ns), gpu_words(daemon->gpu));
}

int view_stats(const struct reply *reply, FILE *file, bool color) {
    const struct reply_daemon *daemon = &reply->daemon;

    int r = print_line(file, color, STYLE_HEADING, "gpupoold %s: pid %" PRIu64 ", up %s, %s", daemon->version,
                       daemon->pid, NS_TEXT(daemon->uptime_ns), gpu_words(daemon->gpu));
    if (r == 0)
        r = print_line(file, color, STYLE_PLAIN,
                       "  socket %s, %" PRIu64 " of at most %" PRIu64 " sessions, %s%s", daemon->socket,
                       daemon->sessions, daemon->sessions_limit,
                       daemon->cuda_toolkit == NULL ? "built without CUDA" : "built with CUDA ",
                       daemon->cuda_toolkit == NULL ? "" : daemon->cuda_toolkit);
    for (size_t i = 0; i < daemon->n_notices && r == 0; i++)
        r = print_line(file, color, STYLE_WARNING, "  note: %s", daemon->notices[i]);
    if (r == 0)
        r = print_line(file, color, STYLE_PLAIN, "%s", "");
    if (r == 0)
        r = print_pools_short(reply, file, color);
    if (r == 0)
        r = print_line(file, color, STYLE_PLAIN, "%s", "");
    return r < 0 ? r : view_sessions(reply, file, color);
}

int view_pools(const struct reply *reply, FILE *file, bool color) {
    int r = print_pools_short(reply, file, color);
    if (r < 0 || reply->n_pools == 0)
        return r;
    r = print_line(file, color, STYLE_PLAIN, "%s", "");
    if (r == 0)
        r = print_pools_times(reply, file, color);
    if (r == 0)
        r = print_line(file, color, STYLE_PLAIN, "%s", "");
    return r < 0 ? r : print_pools_history(reply, file, color);
}

int view_sessions(const struct reply *reply, FILE *file, bool color) {
    if (reply->n_sessions == 0)
        return print_line(file, color, STYLE_QUIET, "No sessions.");
    int r = print_line(file, color, STYLE_HEADING, "Sessions");
    return r < 0 ? r : print_sessions(reply, file, color);
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

int view_released(const struct reply *reply, FILE *file, bool color) {
    return print_line(file, color, STYLE_WARNING,
                      "%s of session %" PRIu64 " (pid %" PRIu64 ") released from quarantine",
                      BYTES_TEXT(reply->released_bytes), reply->released_session, reply->released_pid);
}

int view_trim(const struct reply *reply, FILE *file, bool color) {
    static const struct column columns[] = {{"POOL", true}, {"GIVEN BACK", true}};
    struct table table;

    int r = print_line(file, color, STYLE_HEADING, "%s given back", BYTES_TEXT(reply->trimmed_bytes));
    if (r < 0 || reply->n_trimmed == 0)
        return r;
    table_init(&table, columns, ARRAY_LENGTH(columns));
    for (size_t i = 0; i < reply->n_trimmed; i++) {
        table_add(&table, STYLE_PLAIN, "%" PRIu64, reply->trimmed[i].id);
        add_bytes(&table, reply->trimmed[i].trimmed_bytes, STYLE_PLAIN);
    }
    r = table_print(&table, file, color);
    table_deinit(&table);
    return r;
}
