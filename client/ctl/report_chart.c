/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/report_chart.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/units.h"
#include "client/ctl/moment.h"
#include "client/ctl/report_data.h"
#include "client/ctl/report_series.h"

/* A drawing is so high, and as wide as it has buckets; the page stretches it. */
#define HEIGHT      1000
#define LANE_HEIGHT 30

#define GRID_LINES_MAX    5u
#define TIME_TICKS_MAX    6u
#define BUCKETS_PER_TITLE 5u
#define NS_PER_MINUTE     (60 * NS_PER_S)
#define NS_PER_DAY        (24 * NS_PER_HOUR)

/* The axis of bytes. */
struct scale {
    uint64_t step, top;
};

/* --- scales --- */

static void widen(uint64_t *most, const struct report_series *series, int64_t shift) {
    int64_t of_series = report_series_most(series) + shift;
    if (of_series > 0 && (uint64_t)of_series > *most)
        *most = (uint64_t)of_series;
}

/* The highest of all lines. */
static uint64_t most_of(const struct report_pool *pool) {
    uint64_t most = 0;

    widen(&most, &pool->leased, 0);
    widen(&most, &pool->hour_peaks, 0);
    widen(&most, &pool->reserved, 0);
    if (pool->is_reserved_before_known)
        widen(&most, &pool->reserved_before, pool->before_shift);
    return most;
}

/* The lines of the grid are at multiples of a power of two. */
static struct scale scale_of(const struct report_pool *pool) {
    struct scale scale = {.step = MIB};
    uint64_t most = most_of(pool) > 0 ? most_of(pool) : 1;

    while (scale.step < UINT64_MAX / 4 && most > scale.step * GRID_LINES_MAX)
        scale.step *= 2;
    scale.top = (most + scale.step - 1) / scale.step * scale.step;
    return scale;
}

static int height_of(const struct scale *scale, int64_t bytes) {
    double share = bytes > 0 ? (double)bytes / (double)scale->top : 0;
    return HEIGHT - (int)(share * HEIGHT + 0.5);
}

/* --- lines and areas --- */

static void end_path(FILE *stream, size_t bucket, bool is_area) {
    fprintf(stream, "H%zu", bucket);
    if (is_area)
        fprintf(stream, "V%dZ", HEIGHT);
}

/* Prints a path along the most, or the least, of a series: closed at the bottom, or open. Where nothing is
 * known it has gaps. */
static void print_path(FILE *stream, const struct scale *scale, const struct report_series *series,
                       int64_t shift, bool of_most, bool is_area, const char *class) {
    bool is_drawing = false;
    int last = -1;

    fprintf(stream, "<path class=\"%s\" d=\"", class);
    for (size_t i = 0; i < REPORT_BUCKETS; i++) {
        const struct report_bucket *bucket = &series->buckets[i];
        if (!bucket->is_known) {
            if (is_drawing)
                end_path(stream, i, is_area);
            is_drawing = false;
            continue;
        }
        int height = height_of(scale, (of_most ? bucket->most : bucket->least) + shift);
        if (!is_drawing)
            fprintf(stream, "M%zu %dV%d", i, is_area ? HEIGHT : height, height);
        else if (height != last)
            fprintf(stream, "H%zuV%d", i, height);
        is_drawing = true;
        last = height;
    }
    if (is_drawing)
        end_path(stream, REPORT_BUCKETS, is_area);
    fputs("\"/>\n", stream);
}

static void print_range(FILE *stream, const char *before, const struct report_series *series, size_t first,
                        size_t end, int64_t shift, const char *after) {
    struct report_bucket all = {0};

    for (size_t i = first; i < end; i++) {
        const struct report_bucket *bucket = &series->buckets[i];
        if (!bucket->is_known)
            continue;
        if (!all.is_known || bucket->least < all.least)
            all.least = bucket->least;
        if (!all.is_known || bucket->most > all.most)
            all.most = bucket->most;
        all.is_known = true;
    }
    if (!all.is_known)
        return;
    uint64_t least = all.least + shift > 0 ? (uint64_t)(all.least + shift) : 0,
             most = all.most + shift > 0 ? (uint64_t)(all.most + shift) : 0;
    fprintf(stream, "%s%s", before, BYTES_TEXT(least));
    if (most != least)
        fprintf(stream, " to %s", BYTES_TEXT(most));
    fputs(after, stream);
}

/* Shown where the pointer rests on the drawing. */
static void print_titles(FILE *stream, const struct report *report, const struct report_pool *pool) {
    for (size_t i = 0; i < REPORT_BUCKETS; i += BUCKETS_PER_TITLE) {
        size_t end = i + BUCKETS_PER_TITLE;
        fprintf(stream, "<rect class=\"hover\" x=\"%zu\" width=\"%u\" height=\"%d\"><title>%s to %s", i,
                BUCKETS_PER_TITLE, HEIGHT, MOMENT_TEXT(report_bucket_ns(&report->span, i), MOMENT_DAY_SECOND),
                MOMENT_TEXT(report_bucket_ns(&report->span, end), MOMENT_DAY_SECOND) + sizeof "2026-11-26");
        print_range(stream, "; ", &pool->leased, i, end, 0, " lent");
        print_range(stream, "; ", &pool->hour_peaks, i, end, 0, " the most of an hour");
        print_range(stream, "; ", &pool->reserved, i, end, 0, " reserved");
        if (pool->is_reserved_before_known)
            print_range(stream, "; ", &pool->reserved_before, i, end, pool->before_shift, " reserved");
        fputs("</title></rect>\n", stream);
    }
}

static void print_starts(FILE *stream, const struct report_pool *pool) {
    for (size_t i = 0; i < REPORT_BUCKETS; i++)
        if (pool->marks[i].is_start)
            fprintf(stream, "<path class=\"start\" d=\"M%zu 0V%d\"/>\n", i, HEIGHT);
}

static void print_plot(FILE *stream, const struct report *report, const struct report_pool *pool,
                       const struct scale *scale) {
    fprintf(stream,
            "<svg class=\"plot\" viewBox=\"0 0 %u %d\" preserveAspectRatio=\"none\" role=\"img\" "
            "aria-label=\"Memory lent and reserved over time; at most %s lent\">\n",
            REPORT_BUCKETS, HEIGHT, BYTES_TEXT((uint64_t)report_series_most(&pool->leased)));
    for (uint64_t bytes = 0; bytes <= scale->top; bytes += scale->step)
        fprintf(stream, "<path class=\"grid\" d=\"M0 %dH%u\"/>\n", height_of(scale, (int64_t)bytes),
                REPORT_BUCKETS);
    print_path(stream, scale, &pool->hour_peaks, 0, true, true, "hour");
    print_path(stream, scale, &pool->leased, 0, true, true, "most");
    print_path(stream, scale, &pool->leased, 0, false, true, "least");
    print_path(stream, scale, &pool->leased, 0, true, false, "lent");
    if (pool->is_reserved_before_known)
        print_path(stream, scale, &pool->reserved_before, pool->before_shift, true, false, "reserved");
    print_path(stream, scale, &pool->reserved, 0, true, false, "reserved");
    print_starts(stream, pool);
    print_titles(stream, report, pool);
    fputs("</svg>\n", stream);
}

/* --- lanes: what happened when --- */

enum lane {
    LANE_WAITS,
    LANE_REFUSALS,
    LANE_DEATHS,
    LANES_COUNT,
};

static const struct lane_words {
    const char *class, *name, *noun;
} lane_words[] = {
    [LANE_WAITS] = {"wait", "waits", "wait"},
    [LANE_REFUSALS] = {"refusal", "refusals", "refusal"},
    [LANE_DEATHS] = {"death", "deaths", "death"},
};

/* How many there were in a part of the time: of waits, at any moment of it. */
static uint32_t lane_value(enum lane lane, const struct report_marks *marks) {
    return lane == LANE_WAITS      ? marks->n_waiting
           : lane == LANE_REFUSALS ? marks->n_refusals
                                   : marks->n_deaths;
}

/* Those that began, or happened. */
static uint32_t lane_count(enum lane lane, const struct report_marks *marks) {
    return lane == LANE_WAITS ? marks->n_waits : lane_value(lane, marks);
}

/* Prints the parts from the first on in which there are some, as one shape as high as their numbers, at least
 * a third. Returns the first part behind them. */
static size_t print_run(FILE *stream, const struct report *report, const struct report_pool *pool,
                        enum lane lane, size_t first, uint32_t highest) {
    uint64_t count = 0;
    size_t end = first;

    fprintf(stream, "<path class=\"%s\" d=\"M%zu %d", lane_words[lane].class, first, LANE_HEIGHT);
    for (; end < REPORT_BUCKETS && lane_value(lane, &pool->marks[end]) > 0; end++) {
        uint32_t value = lane_value(lane, &pool->marks[end]);
        fprintf(stream, "V%d", (int)(LANE_HEIGHT * 2 / 3 * (1 - (double)value / highest)));
        fprintf(stream, "H%zu", end + 1);
        count += lane_count(lane, &pool->marks[end]);
    }
    fprintf(stream, "V%dZ\"><title>%s to %s: ", LANE_HEIGHT,
            MOMENT_TEXT(report_bucket_ns(&report->span, first), MOMENT_DAY_SECOND),
            MOMENT_TEXT(report_bucket_ns(&report->span, end), MOMENT_DAY_SECOND) + sizeof "2026-11-26");
    if (count > 0)
        fputs(COUNT_TEXT(count, lane_words[lane].noun), stream);
    else
        fputs("waits that began before", stream);
    fputs("</title></path>\n", stream);
    return end;
}

static void print_lane(FILE *stream, const struct report *report, const struct report_pool *pool,
                       enum lane lane) {
    uint32_t highest = 0;
    uint64_t all = 0;

    for (size_t i = 0; i < REPORT_BUCKETS; i++) {
        uint32_t value = lane_value(lane, &pool->marks[i]);
        highest = value > highest ? value : highest;
        all += lane_count(lane, &pool->marks[i]);
    }
    fprintf(stream,
            "<span class=\"name\">%s</span><svg class=\"lane\" viewBox=\"0 0 %u %d\" "
            "preserveAspectRatio=\"none\" role=\"img\" aria-label=\"%s\">\n",
            lane_words[lane].name, REPORT_BUCKETS, LANE_HEIGHT, COUNT_TEXT(all, lane_words[lane].noun));
    for (size_t i = 0; i < REPORT_BUCKETS;)
        i = lane_value(lane, &pool->marks[i]) > 0 ? print_run(stream, report, pool, lane, i, highest) : i + 1;
    fputs("</svg>\n", stream);
}

/* --- axes and legend --- */

static void print_bytes_axis(FILE *stream, const struct scale *scale) {
    fputs("<div class=\"bytes\">", stream);
    for (uint64_t bytes = 0; bytes <= scale->top; bytes += scale->step)
        fprintf(stream, "<span style=\"top:%d.%d%%\">%s</span>", height_of(scale, (int64_t)bytes) / 10,
                height_of(scale, (int64_t)bytes) % 10, BYTES_TEXT(bytes));
    fputs("</div>\n", stream);
}

static uint64_t tick_ns(const struct report_span *span) {
    static const uint64_t steps[] = {
        NS_PER_S,          5 * NS_PER_S,      10 * NS_PER_S,      30 * NS_PER_S,      NS_PER_MINUTE,
        2 * NS_PER_MINUTE, 5 * NS_PER_MINUTE, 10 * NS_PER_MINUTE, 30 * NS_PER_MINUTE, NS_PER_HOUR,
        2 * NS_PER_HOUR,   3 * NS_PER_HOUR,   6 * NS_PER_HOUR,    12 * NS_PER_HOUR,   NS_PER_DAY,
        2 * NS_PER_DAY,    7 * NS_PER_DAY,    30 * NS_PER_DAY,    365 * NS_PER_DAY};
    size_t i = 0;

    while (i + 1 < ARRAY_LENGTH(steps) && (span->end_ns - span->begin_ns) / steps[i] > TIME_TICKS_MAX)
        i++;
    return steps[i];
}

/* How far local time is ahead. */
static int64_t local_ahead_ns(uint64_t moment_ns) {
    time_t seconds = (time_t)(moment_ns / NS_PER_S);
    struct tm local = {0};

    localtime_r(&seconds, &local);
    return (int64_t)local.tm_gmtoff * (int64_t)NS_PER_S;
}

static void print_time_axis(FILE *stream, const struct report_span *span) {
    uint64_t step = tick_ns(span), length = span->end_ns - span->begin_ns;
    int64_t ahead = local_ahead_ns(span->begin_ns);
    uint64_t local = span->begin_ns + (uint64_t)ahead,
             first = (local + step - 1) / step * step - (uint64_t)ahead;

    fputs("<div class=\"times\">", stream);
    for (uint64_t tick = first; tick < span->end_ns && length / step <= TIME_TICKS_MAX; tick += step) {
        char text[MOMENT_TEXT_SIZE];
        bool is_day = step >= NS_PER_DAY || (tick + (uint64_t)ahead) % NS_PER_DAY == 0,
             is_second = !is_day && step < NS_PER_MINUTE;
        moment_text(tick, is_day ? MOMENT_DAY : is_second ? MOMENT_DAY_SECOND : MOMENT_MINUTE, text);
        fprintf(stream, "<span style=\"left:%.2f%%\">%s</span>",
                100 * (double)(tick - span->begin_ns) / (double)length,
                text + (is_second ? sizeof "2026-11-26" : 0));
    }
    fputs("</div>\n", stream);
}

static void print_legend(FILE *stream, const struct report_pool *pool) {
    bool has_hours = false, has_start = false;

    for (size_t i = 0; i < REPORT_BUCKETS; i++) {
        has_hours |= pool->hour_peaks.buckets[i].is_known;
        has_start |= pool->marks[i].is_start;
    }
    fputs("<p class=\"legend\"><span><i class=\"k-lent\"></i>lent; the pale part: at times within a step of "
          "the chart</span> <span><i class=\"k-reserved\"></i>reserved</span>",
          stream);
    if (has_hours)
        fputs(" <span><i class=\"k-hour\"></i>the most that an hour lent, before the records begin</span>",
              stream);
    if (has_start)
        fputs(" <span><i class=\"k-start\"></i>the daemon started</span>", stream);
    fputs("</p>\n", stream);
}

/* Whether a drawing would show a line at 0, or nothing. */
static bool is_empty(const struct report_pool *pool) {
    uint64_t most = most_of(pool);

    for (size_t i = 0; i < REPORT_BUCKETS; i++)
        for (unsigned lane = 0; lane < LANES_COUNT; lane++)
            most += lane_value((enum lane)lane, &pool->marks[i]);
    return most == 0;
}

void report_chart_print(FILE *stream, const struct report *report, const struct report_pool *pool) {
    struct scale scale = scale_of(pool);

    if (is_empty(pool)) {
        fputs("<p class=\"faint\">Nothing is recorded of memory of this pool in this time.</p>\n", stream);
        return;
    }
    fputs("<div class=\"chart\">\n", stream);
    print_bytes_axis(stream, &scale);
    print_plot(stream, report, pool, &scale);
    for (unsigned lane = 0; lane < LANES_COUNT; lane++)
        print_lane(stream, report, pool, (enum lane)lane);
    fputs("<span></span>\n", stream);
    print_time_axis(stream, &report->span);
    fputs("</div>\n", stream);
    print_legend(stream, pool);
}
