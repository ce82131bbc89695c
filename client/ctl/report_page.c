/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/report_page.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/clock.h"
#include "base/units.h"
#include "client/ctl/moment.h"
#include "client/ctl/record_names.h"
#include "client/ctl/record_words.h"
#include "client/ctl/records.h"
#include "client/ctl/report_chart.h"
#include "client/ctl/report_data.h"
#include "client/ctl/report_html.h"
#include "client/ctl/report_style.h"
#include "client/ctl/user.h"

#define HOLDERS_MAX 20u

/* --- parts --- */

/* The cell of a moment. */
static void print_moment(FILE *stream, uint64_t moment_ns) {
    fprintf(stream, "<td class=\"t\">%s</td>", MOMENT_TEXT(moment_ns, MOMENT_DAY_SECOND));
}

/* The cells of a process: its name and pid; its user and scope. */
static void print_process(FILE *stream, const struct report_process *process) {
    fputs("<td>", stream);
    html_format(stream, "%s %" PRIu32, process->name[0] != '\0' ? process->name : "?", process->pid);
    fputs("</td><td>", stream);
    html_text(stream, user_text(process->uid));
    if (process->scope_id != 0)
        html_format(stream, ", scope %s", process->scope);
    fputs("</td>", stream);
}

/* A table of more rows is closed at first: the page stays short. */
#define ROWS_OPEN_MAX 12u

static void begin_table(FILE *stream, const char *title, uint64_t rows, const char *heads) {
    fprintf(stream,
            "<details%s>\n<summary>%s: %" PRIu64 "</summary>\n<div class=\"wide\"><table>\n<thead><tr>%s"
            "</tr></thead>\n<tbody>\n",
            rows <= ROWS_OPEN_MAX ? " open" : "", title, rows, heads);
}

static void end_table(FILE *stream, uint64_t more, const char *which) {
    fputs("</tbody></table></div>\n", stream);
    if (more > 0)
        fprintf(stream, "<p class=\"faint\">%" PRIu64 " more, %s, are not shown.</p>\n", more, which);
    fputs("</details>\n", stream);
}

/* --- figures --- */

static void begin_tile(FILE *stream, const char *name) {
    fprintf(stream, "<div><dt>%s</dt><dd>", name);
}

static void end_tile(FILE *stream) {
    fputs("</dd></div>\n", stream);
}

static void print_peak(FILE *stream, const struct record_names *names, const struct proto_hour *sum) {
    char name[PROTO_RECORD_NAME_SIZE], scope[RECORD_SCOPE_SIZE];

    begin_tile(stream, "Most lent");
    fputs(BYTES_TEXT(sum->leased_peak_bytes), stream);
    if (sum->leased_peak_ns != 0)
        fprintf(stream, "<small>at %s</small>", MOMENT_TEXT(sum->leased_peak_ns, MOMENT_DAY_SECOND));
    end_tile(stream);
    if (sum->user_bytes == 0)
        return;
    snprintf(name, sizeof name, "%.*s", (int)sizeof sum->process_name, sum->process_name);
    begin_tile(stream, "Of that, one user");
    fprintf(stream, "%s<small>user ", BYTES_TEXT(sum->user_bytes));
    html_text(stream, user_text(sum->user));
    if (sum->scope != 0)
        html_format(stream, " of scope %s", record_names_scope(names, sum->scope, scope));
    if (sum->process_bytes > 0) {
        fprintf(stream, "; of these %s in process ", BYTES_TEXT(sum->process_bytes));
        html_format(stream, "%s %" PRIu32, name, sum->process_pid);
    }
    fputs("</small>", stream);
    end_tile(stream);
}

static void print_reasons(FILE *stream, const struct report_pool *pool) {
    fputs("<ul>\n", stream);
    for (unsigned i = 0; i < pool->n_reasons; i++) {
        const struct report_reason *reason = &pool->reasons[i];
        fprintf(stream, "<li>%" PRIu64 ": ", reason->n);
        record_words_why(stream, reason->reason, reason->detail);
        fprintf(stream, "%s</li>\n", reason->is_probe ? " (no error: the client tried something else)" : "");
    }
    fputs("</ul>\n", stream);
}

static void print_tiles(FILE *stream, const struct record_names *names, const struct report_pool *pool) {
    const struct proto_hour *sum = &pool->sum;

    fputs("<dl class=\"tiles\">\n", stream);
    print_peak(stream, names, sum);
    begin_tile(stream, "Most reserved");
    fprintf(stream, "%s<small>%s that failed</small>", BYTES_TEXT(sum->reserved_peak_bytes),
            COUNT_TEXT(sum->n_grow_fails, "growth"));
    end_tile(stream);
    begin_tile(stream, "Waits");
    fprintf(stream, "%" PRIu32, sum->n_waits);
    if (sum->n_waits > 0)
        fprintf(stream, "<small>the longest %s, all together %s</small>", NS_TEXT(sum->wait_longest_ns),
                NS_TEXT(sum->wait_sum_ns));
    end_tile(stream);
    begin_tile(stream, "Refusals");
    fprintf(stream, "%" PRIu32, sum->n_refused);
    if (sum->n_refused > 0)
        fprintf(stream, "<small>%" PRIu32 " at their deadline, %" PRIu32 " for a quota</small>",
                sum->n_timeouts, sum->n_quota);
    end_tile(stream);
    begin_tile(stream, "Deaths with memory");
    fprintf(stream, "%" PRIu32 "<small>at most %s in quarantine</small>", sum->n_deaths,
            BYTES_TEXT(sum->quarantined_peak_bytes));
    end_tile(stream);
    fputs("</dl>\n", stream);
}

/* --- tables --- */

/* 0 where none is of the pool: the holders are sorted. */
static size_t holders_of(const struct report_holders *holders, unsigned pool, size_t *ret_first) {
    size_t first = 0, end;

    while (first < holders->count && holders->entries[first].pool < pool)
        first++;
    for (end = first; end < holders->count && holders->entries[end].pool == pool;)
        end++;
    *ret_first = first;
    return end - first;
}

static const char *byte_hours(double byte_ns, char text[UNITS_TEXT_SIZE]) {
    return units_format_bytes((uint64_t)(byte_ns / (double)NS_PER_HOUR), text, UNITS_TEXT_SIZE);
}

static void print_holders(FILE *stream, const struct report *report, unsigned pool) {
    char text[UNITS_TEXT_SIZE];
    double all = 0, rest = 0;
    size_t first, count = holders_of(&report->holders, pool, &first);
    const struct report_holder *holders = report->holders.entries + first;

    if (count == 0)
        return;
    for (size_t i = 0; i < count; i++)
        all += holders[i].byte_ns;
    fputs("<h3>Processes that had it</h3>\n<div class=\"wide\"><table>\n<thead><tr>"
          "<th>process</th><th>user</th><th class=\"n\">most</th><th class=\"n\">bytes x hours</th>"
          "<th class=\"n\">share</th><th></th></tr></thead>\n<tbody>\n",
          stream);
    for (size_t i = 0; i < count && i < HOLDERS_MAX; i++) {
        double share = all > 0 ? 100 * holders[i].byte_ns / all : 0;
        fputs("<tr>", stream);
        print_process(stream, &holders[i].process);
        fprintf(stream,
                "<td class=\"n\">%s</td><td class=\"n\">%s h</td><td class=\"n\">%.1f%%</td>"
                "<td class=\"share\"><i style=\"width:%.1f%%\"></i></td></tr>\n",
                BYTES_TEXT((uint64_t)holders[i].most), byte_hours(holders[i].byte_ns, text), share,
                holders[0].byte_ns > 0 ? 100 * holders[i].byte_ns / holders[0].byte_ns : 0);
    }
    fputs("</tbody></table></div>\n", stream);
    for (size_t i = HOLDERS_MAX; i < count; i++)
        rest += holders[i].byte_ns;
    if (count > HOLDERS_MAX)
        fprintf(stream, "<p class=\"faint\">%s more had %s h together.</p>\n",
                COUNT_TEXT(count - HOLDERS_MAX, "session"), byte_hours(rest, text));
}

static void print_refusals(FILE *stream, const struct report_pool *pool) {
    uint64_t shown = pool->n_refusals < REPORT_ROWS_MAX ? pool->n_refusals : REPORT_ROWS_MAX;

    if (pool->n_reasons > 0) {
        fputs("<h3>Refusals by reason</h3>\n", stream);
        print_reasons(stream, pool);
    }
    if (shown == 0)
        return;
    begin_table(stream, "Refusals, the newest first", pool->n_refusals,
                "<th>time</th><th>process</th><th>user</th><th class=\"n\">asked for</th>"
                "<th class=\"n\">waited</th><th class=\"n\">the pool lent</th><th>why</th>");
    for (uint64_t n = pool->n_refusals; n > pool->n_refusals - shown; n--) {
        const struct report_refusal *refusal = &pool->refusals[(n - 1) % REPORT_ROWS_MAX];
        fputs("<tr>", stream);
        print_moment(stream, refusal->time_ns);
        print_process(stream, &refusal->process);
        fprintf(stream,
                "<td class=\"n\">%s</td><td class=\"n\">%s</td><td class=\"n\">%s</td><td class=\"why\">",
                BYTES_TEXT(refusal->bytes),
                (refusal->flags & PROTO_RECORD_WAITED) != 0 ? NS_TEXT(refusal->waited_ns) : "-",
                BYTES_TEXT(refusal->leased_bytes));
        record_words_why(stream, refusal->reason, refusal->detail);
        if ((refusal->flags & PROTO_RECORD_DEADLINE) != 0)
            fputs(", until its deadline", stream);
        fputs("</td></tr>\n", stream);
    }
    end_table(stream, pool->n_refusals - shown, "which are older");
}

static void print_waits(FILE *stream, const struct report_pool *pool) {
    static const char *const ends[] = {[REPORT_WAIT_SERVED] = "it was granted",
                                       [REPORT_WAIT_REFUSED] = "it was refused",
                                       [REPORT_WAIT_GOES_ON] = "it still waits"};
    uint64_t shown = pool->n_waits < REPORT_ROWS_MAX ? pool->n_waits : REPORT_ROWS_MAX;

    if (shown == 0)
        return;
    begin_table(stream, "Waits, the longest first", pool->n_waits,
                "<th>since</th><th>process</th><th>user</th><th class=\"n\">asked for</th>"
                "<th class=\"n\">waited</th><th>end</th>");
    for (uint64_t i = 0; i < shown; i++) {
        const struct report_wait *wait = &pool->waits[i];
        fputs("<tr>", stream);
        print_moment(stream, wait->begin_ns);
        print_process(stream, &wait->process);
        fprintf(stream, "<td class=\"n\">%s</td><td class=\"n\">%s</td><td>%s</td></tr>\n",
                BYTES_TEXT(wait->bytes), NS_TEXT(wait->waited_ns), ends[wait->end]);
    }
    end_table(stream, pool->n_waits - shown, "which were shorter");
}

static void print_deaths(FILE *stream, const struct report_pool *pool) {
    uint64_t shown = pool->n_deaths < REPORT_ROWS_MAX ? pool->n_deaths : REPORT_ROWS_MAX;

    if (shown == 0)
        return;
    begin_table(stream, "Sessions that ended without a farewell, the newest first", pool->n_deaths,
                "<th>time</th><th>process</th><th>user</th><th class=\"n\">memory</th>"
                "<th>in quarantine</th>");
    for (uint64_t n = pool->n_deaths; n > pool->n_deaths - shown; n--) {
        const struct report_death *death = &pool->deaths[(n - 1) % REPORT_ROWS_MAX];
        fputs("<tr>", stream);
        print_moment(stream, death->time_ns);
        print_process(stream, &death->process);
        fprintf(stream, "<td class=\"n\">%s</td><td>%s</td></tr>\n", BYTES_TEXT(death->bytes),
                death->is_over ? NS_TEXT(death->quarantine_ns) : "no record tells its end");
    }
    end_table(stream, pool->n_deaths - shown, "which are older");
}

/* --- the page --- */

static void print_completeness(FILE *stream, const struct report *report) {
    const struct report_span *span = &report->span;

    fprintf(stream, "<p>%s of this time. ", COUNT_TEXT(report->n_records, "record"));
    if (report->first_ns == 0)
        fputs("The file has no records yet.", stream);
    else if (report->first_ns <= span->begin_ns)
        fputs("The records are complete.", stream);
    else if (!report->is_cut)
        fprintf(stream, "The records begin at %s, when the file was made, and are complete since then.",
                MOMENT_TEXT(report->first_ns, MOMENT_DAY_SECOND));
    else
        fprintf(stream,
                "The records begin at %s: newer ones have taken the place of older ones. Before that the "
                "charts have the peaks of hours alone, and the tables have nothing.",
                MOMENT_TEXT(report->first_ns, MOMENT_DAY_SECOND));
    if (report->known_ns < span->end_ns && report->last_ns != 0)
        fprintf(stream, " They end at %s, and the daemon that wrote them does not live.",
                MOMENT_TEXT(report->last_ns, MOMENT_DAY_SECOND));
    if (report->is_short)
        fputs(" Memory was short: some rows are missing.", stream);
    fputs("</p>\n", stream);
}

static void print_head(FILE *stream, const struct report *report, const struct records *records) {
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<meta name=\"referrer\" content=\"no-referrer\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
          "'unsafe-inline'\">\n<title>gpupool: ",
          stream);
    fprintf(stream, "%s to %s</title>\n<style>\n%s</style>\n</head>\n<body>\n<header>\n",
            MOMENT_TEXT(report->span.begin_ns, MOMENT_DAY_MINUTE),
            MOMENT_TEXT(report->span.end_ns, MOMENT_DAY_MINUTE), report_style);
    fprintf(stream, "<h1>gpupool: %s to %s</h1>\n<p class=\"faint\">",
            MOMENT_TEXT(report->span.begin_ns, MOMENT_DAY_SECOND),
            MOMENT_TEXT(report->span.end_ns, MOMENT_DAY_SECOND));
    html_format(stream, "%s, written by process %" PRIu32, records->path, records->file->daemon_pid);
    fputs("</p>\n", stream);
    print_completeness(stream, report);
    fputs("</header>\n<main>\n", stream);
}

static void print_pool(FILE *stream, const struct report *report, const struct records *records,
                       unsigned id) {
    const struct report_pool *pool = &report->pools[id];
    char name[PROTO_RECORD_POOL_SIZE + 1];

    snprintf(name, sizeof name, "%.*s", (int)PROTO_RECORD_POOL_SIZE, records->file->pools[id - 1].name);
    fputs("<section>\n<h2>", stream);
    html_format(stream, "Pool %u: %s", id, name);
    fputs("</h2>\n", stream);
    print_tiles(stream, &report->names, pool);
    report_chart_print(stream, report, pool);
    print_holders(stream, report, id);
    print_refusals(stream, pool);
    print_waits(stream, pool);
    print_deaths(stream, pool);
    fputs("</section>\n", stream);
}

static void print_notes(FILE *stream) {
    fputs(
        "<footer class=\"faint\">\n"
        "<p>The figures in the boxes are of whole hours: those that the time touches. The holders of a peak "
        "are as of when it had last grown by a 64th. Charts and tables are of the records.</p>\n"
        "<p>A process has memory until it comes back, also behind a fence and in quarantine. A buffer that "
        "several share counts for each. Of sessions that are older than the oldest record, memory that "
        "they neither gave back nor took since is not counted. Memory in a process's cache is its own.</p>\n"
        "<p>What was reserved is known from a daemon's start on, or from an hour of which all records are "
        "there; elsewhere it is not drawn.</p>\n</footer>\n",
        stream);
}

void report_page_print(FILE *stream, const struct report *report, const struct records *records) {
    print_head(stream, report, records);
    for (unsigned id = 1; id <= report->n_pools; id++)
        if (report->pool == 0 || report->pool == id)
            print_pool(stream, report, records, id);
    if (report->pool == 0 && report->pools[0].n_reasons > 0) {
        fputs("<section>\n<h2>Of no pool</h2>\n", stream);
        print_refusals(stream, &report->pools[0]);
        fputs("</section>\n", stream);
    }
    fputs("</main>\n", stream);
    print_notes(stream);
    fputs("</body>\n</html>\n", stream);
}
