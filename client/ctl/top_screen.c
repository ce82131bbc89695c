/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/top_screen.h"

#include <inttypes.h>
#include <langinfo.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/units.h"
#include "client/ctl/json.h"
#include "client/ctl/moment.h"
#include "client/ctl/place.h"
#include "client/ctl/text.h"
#include "client/ctl/top_sample.h"
#include "client/ctl/user.h"
#include "client/ctl/view_parts.h"

#define BAR_COLUMNS      24u
#define WAITERS_SHOWN    4u
#define QUARANTINE_SHOWN 3u

static const struct {
    const char *name;
    int width; /* to the right; negative: to the left; 0: the rest of the line */
} columns[TOP_COLUMNS] = {
    [TOP_PID] = {"PID", 7},     [TOP_USER] = {"USER", -10},   [TOP_USE] = {"IN USE", 9},
    [TOP_IDLE] = {"CACHED", 9}, [TOP_RATE] = {"GROWS/s", 10}, [TOP_WAITS] = {"WAITS", 5},
    [TOP_AGE] = {"AGE", 9},     [TOP_STATE] = {"S", -1},      [TOP_NAME] = {"NAME", 0},
};

/* --- lines --- */

/* Adds a text to the line, as far as it has room. */
static void put(struct top_canvas *canvas, enum top_style style, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void put(struct top_canvas *canvas, enum top_style style, const char *format, ...) {
    unsigned left = canvas->columns - canvas->used_columns;
    va_list arguments;
    size_t width = 0;

    va_start(arguments, format);
    char *text = text_format(format, arguments, &width);
    va_end(arguments);
    if (text != NULL && width > left) {
        char *cut = left >= 3 ? text_cut(text, left, &width) : NULL;
        free(text);
        text = cut;
    }
    if (text == NULL)
        return;
    canvas->text(canvas, style, text);
    canvas->used_columns += (unsigned)width;
    free(text);
}

static void end_line(struct top_canvas *canvas) {
    canvas->line(canvas);
    canvas->used_columns = 0;
    canvas->used_rows++;
}

static unsigned rows_left(const struct top_canvas *canvas) {
    return canvas->rows == 0                  ? UINT32_MAX
           : canvas->rows > canvas->used_rows ? canvas->rows - canvas->used_rows
                                              : 0;
}

/* --- pools --- */

static void put_part(struct top_canvas *canvas, enum top_style style, char sign, unsigned *left,
                     uint64_t bytes, uint64_t limit) {
    char signs[BAR_COLUMNS + 1];
    double share = limit > 0 ? (double)bytes / (double)limit * BAR_COLUMNS + 0.5 : 0;
    unsigned count = share < *left ? (unsigned)share : *left;

    if (count == 0 && bytes > 0 && *left > 0)
        count = 1;
    memset(signs, sign, count);
    signs[count] = '\0';
    if (count > 0)
        put(canvas, style, "%s", signs);
    *left -= count;
}

/* The pool's last minutes, as far as the line has room. */
static void put_trend(struct top_canvas *canvas, const struct top_sample *sample, uint64_t id) {
    static const char *const blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char *const signs[] = {"_", ".", "-", "=", "+", "*", "#", "@"};
    bool is_utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    unsigned room = canvas->columns - canvas->used_columns,
             shown = sample->n_trend < room ? sample->n_trend : room;

    for (unsigned i = sample->n_trend - shown; i < sample->n_trend; i++) {
        unsigned level = sample->trends[id - 1][i] * 8u / 1001u;
        put(canvas, TOP_QUIET, "%s", is_utf8 ? blocks[level] : signs[level]);
    }
}

static void draw_pool(struct top_canvas *canvas, const struct top_sample *sample, const struct cJSON *pool) {
    uint64_t id = reply_count(pool, "id"), limit = reply_count(pool, "limit_bytes"),
             node = reply_count(pool, "numa_node");
    const char *kind = reply_text(pool, "kind"), *state = reply_text(pool, "state");
    unsigned left = BAR_COLUMNS;
    char place[24];

    if (strcmp(kind, "host") == 0)
        snprintf(place, sizeof place, node == REPLY_NULL ? "host" : "host %" PRIu64, node);
    else
        snprintf(place, sizeof place, "gpu %" PRIu64, reply_count(pool, "device"));
    put(canvas, TOP_PLAIN, "%3" PRIu64 " %-7s [", id, place);
    put_part(canvas, TOP_USED, '|', &left, reply_count(pool, "in_use_bytes"), limit);
    put_part(canvas, TOP_CACHED, '#', &left, reply_count(pool, "cached_bytes"), limit);
    put_part(canvas, TOP_HELD, ':', &left, reply_count(pool, "fenced_bytes"), limit);
    put_part(canvas, TOP_ALARM, 'Q', &left, reply_count(pool, "quarantined_bytes"), limit);
    put(canvas, TOP_PLAIN, "%*s] %8s of %-8s ", (int)left, "", BYTES_TEXT(reply_count(pool, "leased_bytes")),
        BYTES_TEXT(limit));
    if (strcmp(state, "ready") != 0)
        put(canvas, TOP_ALARM, "%s ", state);
    if (id >= 1 && id <= TOP_POOLS_MAX)
        put_trend(canvas, sample, id);
    end_line(canvas);
}

/* --- requests that wait, and quarantine --- */

static bool is_shown(const struct cJSON *session, const struct top_choice *choice) {
    const char *name = reply_text(session, "command"), *scope = reply_text(session, "scope");
    bool has_pool = choice->pool == 0;

    if (!has_pool)
        reply_each(holding, session, "pools") has_pool =
            has_pool || reply_count(holding, "id") == choice->pool;
    return has_pool && (choice->pid == 0 || reply_count(session, "pid") == choice->pid) &&
           (choice->uid == USER_NONE || reply_count(session, "uid") == choice->uid) &&
           (choice->scope == NULL || (scope != NULL && strcmp(scope, choice->scope) == 0)) &&
           (choice->word[0] == '\0' || (name != NULL && strstr(name, choice->word) != NULL));
}

static void draw_waiters(struct top_canvas *canvas, const struct cJSON *root,
                         const struct top_choice *choice) {
    unsigned n = 0;

    reply_each(session, root, "sessions") reply_each(request, session, "requests") {
        if (!is_shown(session, choice) ||
            (choice->pool != 0 && reply_count(request, "pool") != choice->pool) || n++ >= WAITERS_SHOWN)
            continue;
        put(canvas, TOP_HELD, "waits %8s ", NS_TEXT(reply_count(request, "waiting_ns")));
        put(canvas, TOP_PLAIN, "%" PRIu64 " %.16s: %s of pool %" PRIu64 ": %s", reply_count(session, "pid"),
            reply_text(session, "command"), BYTES_TEXT(reply_count(request, "bytes")),
            reply_count(request, "pool"), waiting_words(reply_text(request, "reason")));
        end_line(canvas);
    }
    if (n > WAITERS_SHOWN) {
        put(canvas, TOP_HELD, "      and %s that wait", COUNT_TEXT(n - WAITERS_SHOWN, "more request"));
        end_line(canvas);
    }
}

static void draw_quarantine(struct top_canvas *canvas, const struct cJSON *root,
                            const struct top_choice *choice) {
    unsigned n = 0;

    reply_each(session, root, "sessions") {
        const char *reason = reply_text(session, "quarantine_reason");
        if (reason == NULL || !is_shown(session, choice) || n++ >= QUARANTINE_SHOWN)
            continue;
        put(canvas, TOP_ALARM, "quarantine %s ", BYTES_TEXT(reply_count(session, "leased_bytes")));
        put(canvas, TOP_PLAIN, "for %s: %s", NS_TEXT(reply_count(session, "quarantined_ns")), reason);
        end_line(canvas);
    }
    if (n > QUARANTINE_SHOWN) {
        put(canvas, TOP_ALARM, "      and %s", COUNT_TEXT(n - QUARANTINE_SHOWN, "more session"));
        end_line(canvas);
    }
}

/* --- processes --- */

struct row {
    const struct cJSON *session;
    uint64_t use_bytes, idle_bytes, waits, age_ns, pid;
    double rate;
    bool has_rate; /* there was a look before */
};

static enum top_column sort_column; /* of compare_rows(), for qsort() */

static int compare(double left, double right) {
    return (left < right) - (left > right);
}

static int compare_rows(const void *a, const void *b) {
    const struct row *left = a, *right = b;

    switch (sort_column) {
    case TOP_PID:
        return -compare((double)left->pid, (double)right->pid);
    case TOP_IDLE:
        return compare((double)left->idle_bytes, (double)right->idle_bytes);
    case TOP_RATE:
        return compare(left->rate, right->rate);
    case TOP_WAITS:
        return compare((double)left->waits, (double)right->waits);
    case TOP_AGE:
        return compare((double)left->age_ns, (double)right->age_ns);
    case TOP_NAME:
        return strcmp(reply_text(left->session, "command"), reply_text(right->session, "command"));
    case TOP_USER:
        return -compare((double)reply_count(left->session, "uid"),
                        (double)reply_count(right->session, "uid"));
    case TOP_STATE:
        return strcmp(reply_text(right->session, "state"), reply_text(left->session, "state"));
    default:
        return compare((double)left->use_bytes, (double)right->use_bytes);
    }
}

static struct row make_row(const struct cJSON *session, const struct top_sample *sample, uint64_t pool) {
    struct row row = {
        .session = session,
        .use_bytes = reply_count(session, "in_use_bytes"),
        .idle_bytes = reply_count(session, "cached_bytes"),
        .waits = reply_count(session, "waiting"),
        .age_ns = reply_count(session, "connected_ns"),
        .pid = reply_count(session, "pid"),
        .rate = top_sample_rate(sample, reply_count(session, "id")),
        .has_rate = sample->n_trend > 1,
    };

    if (pool != 0)
        reply_each(holding, session, "pools") if (reply_count(holding, "id") == pool) {
            row.use_bytes = reply_count(holding, "in_use_bytes");
            row.idle_bytes = reply_count(holding, "cached_bytes");
        }
    return row;
}

/* The rows that are shown, sorted; owned by the caller. NULL: none, or no memory. */
static struct row *make_rows(const struct top_sample *sample, const struct top_choice *choice,
                             size_t *ret_count) {
    const struct cJSON *root = sample->reply->root;
    size_t count = 0;

    *ret_count = 0;
    reply_each(session, root, "sessions") count++;
    struct row *rows = calloc(count + 1, sizeof *rows);
    if (rows == NULL)
        return NULL;
    reply_each(session, root, "sessions") if (is_shown(session, choice)) rows[(*ret_count)++] =
        make_row(session, sample, choice->pool);
    sort_column = choice->sort;
    qsort(rows, *ret_count, sizeof *rows, compare_rows);
    return rows;
}

static void put_cell(struct top_canvas *canvas, enum top_style style, enum top_column column,
                     const char *text) {
    int width = columns[column].width;

    if (width == 0)
        put(canvas, style, "%s", text);
    else
        put(canvas, style, "%*.*s ", width, abs(width), text);
}

static void draw_row(struct top_canvas *canvas, const struct row *row, const struct top_choice *choice) {
    const char *state = reply_text(row->session, "state");
    char text[UNITS_TEXT_SIZE + 2], place[PLACE_SIZE], named[PLACE_SIZE + 72];

    for (unsigned c = 0; c < TOP_COLUMNS; c++) {
        enum top_style style = TOP_PLAIN;
        const char *cell = text;
        if (choice->hidden[c])
            continue;
        switch ((enum top_column)c) {
        case TOP_PID:
            snprintf(text, sizeof text, "%" PRIu64, row->pid);
            break;
        case TOP_USER:
            cell = reply_text(row->session, "scope"); /* where nearly everybody is root */
            if (cell == NULL)
                cell = user_text(reply_count(row->session, "uid"));
            break;
        case TOP_USE:
            snprintf(text, sizeof text, "%s", BYTES_TEXT(row->use_bytes));
            break;
        case TOP_IDLE:
            snprintf(text, sizeof text, "%s", BYTES_TEXT(row->idle_bytes));
            break;
        case TOP_RATE:
            snprintf(text, sizeof text, "%s%s",
                     row->rate > 0   ? "+"
                     : row->rate < 0 ? "-"
                                     : "",
                     BYTES_TEXT((uint64_t)(row->rate < 0 ? -row->rate : row->rate)));
            if (!row->has_rate)
                snprintf(text, sizeof text, "-");
            style = row->rate > 0 ? TOP_HELD : TOP_QUIET;
            break;
        case TOP_WAITS:
            snprintf(text, sizeof text, "%" PRIu64, row->waits);
            style = row->waits > 0 ? TOP_HELD : TOP_QUIET;
            break;
        case TOP_AGE:
            snprintf(text, sizeof text, "%s", NS_TEXT(row->age_ns));
            break;
        case TOP_STATE:
            snprintf(text, sizeof text, "%c", strcmp(state, "active") == 0 ? ' ' : 'Q');
            style = TOP_ALARM;
            break;
        default:
            cell = reply_text(row->session, "command");
            if (place_of_process(row->pid, reply_count(row->session, "uid"), row->age_ns, place)) {
                snprintf(named, sizeof named, "%.64s in %s", cell, place);
                cell = named;
            }
        }
        put_cell(canvas, style, (enum top_column)c, cell);
    }
    end_line(canvas);
}

static unsigned count_events(const struct top_sample *sample) {
    unsigned n = 0;
    while (n < TOP_EVENTS && sample->events[n][0] != '\0')
        n++;
    return n;
}

/* On the last lines but one; on a screen without a last one, below the rest. */
static void draw_events(struct top_canvas *canvas, const struct top_sample *sample) {
    unsigned n = count_events(sample);

    while (canvas->rows != 0 && rows_left(canvas) > n + 1)
        end_line(canvas);
    for (unsigned i = 0; i < n && rows_left(canvas) > 1; i++) {
        put(canvas, TOP_QUIET, "%s", sample->events[i] + strlen("2026-11-26 "));
        end_line(canvas);
    }
}

static void draw_processes(struct top_canvas *canvas, const struct top_sample *sample,
                           struct top_choice *choice) {
    size_t count;
    struct row *rows = make_rows(sample, choice, &count);
    /* The last lines are the events' and the keys'. */
    unsigned below = 2 + count_events(sample), room = rows_left(canvas) == UINT32_MAX ? UINT32_MAX
                                                      : rows_left(canvas) > below ? rows_left(canvas) - below
                                                                                  : 0;

    for (unsigned c = 0; c < TOP_COLUMNS; c++)
        if (!choice->hidden[c])
            put_cell(canvas, (enum top_column)c == choice->sort ? TOP_KEY : TOP_HEADING, (enum top_column)c,
                     columns[c].name);
    end_line(canvas);
    if (choice->first >= count)
        choice->first = count > 0 ? (unsigned)count - 1 : 0;
    for (size_t i = choice->first; i < count && room > 0; i++, room--)
        draw_row(canvas, &rows[i], choice);
    free(rows);
}

/* --- the screen --- */

static void draw_head(struct top_canvas *canvas, const struct top_sample *sample,
                      const struct top_choice *choice) {
    char time[MOMENT_TEXT_SIZE];

    if (sample->error[0] != '\0') {
        put(canvas, TOP_ALARM, "%s", sample->error);
        end_line(canvas);
    }
    if (sample->reply == NULL)
        return;
    const struct cJSON *daemon = reply_object(sample->reply->root, "daemon");
    put(canvas, TOP_PLAIN, "gpupoold %s, pid %" PRIu64 ", up %s, %s  %s%s", reply_text(daemon, "version"),
        reply_count(daemon, "pid"), NS_TEXT(reply_count(daemon, "uptime_ns")),
        COUNT_TEXT(reply_count(daemon, "sessions"), "session"),
        moment_text(moment_now_ns(), MOMENT_DAY_SECOND, time) + strlen("2026-11-26 "),
        choice->paused ? "  paused" : "");
    if (choice->pool != 0)
        put(canvas, TOP_KEY, "  pool %" PRIu64, choice->pool);
    if (choice->pid != 0)
        put(canvas, TOP_KEY, "  pid %" PRIu64, choice->pid);
    if (choice->scope != NULL)
        put(canvas, TOP_KEY, "  scope %s", choice->scope);
    if (choice->uid != USER_NONE)
        put(canvas, TOP_KEY, "  user %s", user_text(choice->uid));
    if (choice->word[0] != '\0')
        put(canvas, TOP_KEY, "  /%s", choice->word);
    end_line(canvas);
}

static void draw_help(struct top_canvas *canvas) {
    static const char *const lines[] = {
        "Of a pool's bar:  | in use   # cached by clients   : fenced   Q in quarantine",
        "Behind it: the pool's last minutes, by the share of its limit that is lent.",
        "",
        "  < > F6     sort by the column to the left or right",
        "  M R W T P  sort by use, growth, waits, age, pid",
        "  1 to 9     hide or show a column",
        "  p          the next pool, or all",
        "  u          the next user, or all",
        "  / F4       only names with a word",
        "  space      pause",
        "  + -        slower, faster",
        "  q F10      quit; arrows, PgUp, PgDn, Home scroll",
    };

    for (size_t i = 0; i < ARRAY_LENGTH(lines); i++) {
        put(canvas, TOP_PLAIN, "%s", lines[i]);
        end_line(canvas);
    }
}

void top_screen_draw(struct top_canvas *canvas, const struct top_sample *sample, struct top_choice *choice) {
    canvas->used_columns = canvas->used_rows = 0;
    draw_head(canvas, sample, choice);
    if (sample->reply != NULL && choice->helps) {
        draw_help(canvas);
    } else if (sample->reply != NULL) {
        const struct cJSON *root = sample->reply->root;
        reply_each(pool, root, "pools") if (choice->pool == 0 || reply_count(pool, "id") == choice->pool)
            draw_pool(canvas, sample, pool);
        draw_waiters(canvas, root, choice);
        draw_quarantine(canvas, root, choice);
        draw_processes(canvas, sample, choice);
        draw_events(canvas, sample);
    }
    if (canvas->rows == 0)
        return;
    while (rows_left(canvas) > 1)
        end_line(canvas);
    put(canvas, TOP_KEY, "F1 help  F4 filter  F6 sort  u user  p pool  space pause  F10 quit");
}
