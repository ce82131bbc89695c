/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/report_data.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/units.h"
#include "client/ctl/history.h"
#include "client/ctl/record_names.h"
#include "client/ctl/records.h"

/* No machine has so much memory. A file that was damaged, or comes from elsewhere, may say so: its sums must
 * stay in their range. */
#define BYTES_MAX (64 * TIB)

/* Of one pool, between two records. */
struct level {
    /* The last record took memory away: unless another holder has it too, the level is the lower one since
     * then. The next record tells. */
    bool is_pending;
    uint64_t pending_ns, high, low;
    int64_t reserved, reserved_most; /* by GROW and RETIRE; in this hour */
    bool is_lost; /* its device: the segments went without records */
};

struct gatherer {
    struct report *report;
    const struct records *records;
    struct level levels[PROTO_POOLS_MAX + 1];
    uint64_t hour; /* of the last record before the first START */
    bool is_hour_whole;
    bool is_started; /* a START has come */
    bool is_stopped; /* the last record was not one of a daemon that serves */
    unsigned run;
    struct open_wait {
        uint64_t session, time_ns, bytes;
        uint8_t pool;
        struct report_process process;
    } * open_waits;
    size_t n_open_waits, open_waits_capacity;
};

static bool is_within(const struct report *report, uint64_t moment_ns) {
    return moment_ns >= report->span.begin_ns && moment_ns < report->span.end_ns;
}

static struct report_marks *marks_at(struct report *report, unsigned pool, uint64_t moment_ns) {
    return &report->pools[pool].marks[report_bucket(&report->span, moment_ns)];
}

/* --- what a pool lent --- */

static void set_leased(struct gatherer *gatherer, unsigned pool, uint64_t moment_ns, uint64_t bytes) {
    report_series_set(&gatherer->report->pools[pool].leased, &gatherer->report->span, moment_ns,
                      (int64_t)bytes);
}

/* Says what the level was until this record. */
static void settle(struct gatherer *gatherer, const struct proto_record *record) {
    struct level *level = &gatherer->levels[record->pool];
    bool takes = record->kind == PROTO_RECORD_LEASE || record->kind == PROTO_RECORD_ATTACH;
    uint64_t before = record->leased_bytes;

    if (!level->is_pending)
        return;
    level->is_pending = false;
    if (takes) {
        bool was_high =
            record->leased_bytes == level->high || record->leased_bytes == level->high + record->bytes;
        before = was_high && record->leased_bytes != level->low + record->bytes ? level->high : level->low;
    }
    set_leased(gatherer, record->pool, level->pending_ns, before);
}

/* gone: the leased bytes that a session's end gives back. */
static void take_level(struct gatherer *gatherer, const struct proto_record *record, uint64_t gone) {
    struct level *level = &gatherer->levels[record->pool];
    bool gives = record->kind == PROTO_RECORD_RELEASE || record->kind == PROTO_RECORD_FENCE;

    settle(gatherer, record);
    set_leased(gatherer, record->pool, record->time_ns, record->leased_bytes);
    if (gives)
        gone = record->bytes;
    if (gone == 0)
        return;
    *level = (struct level){.is_pending = true,
                            .pending_ns = record->time_ns,
                            .high = record->leased_bytes,
                            .low = record->leased_bytes > gone ? record->leased_bytes - gone : 0,
                            .reserved = level->reserved,
                            .reserved_most = level->reserved_most,
                            .is_lost = level->is_lost};
}

static void end_levels(struct gatherer *gatherer, uint64_t moment_ns, bool is_zero) {
    struct report *report = gatherer->report;

    for (unsigned pool = 1; pool <= report->n_pools; pool++) {
        struct level *level = &gatherer->levels[pool];
        struct report_pool *of = &report->pools[pool];
        if (level->is_pending)
            set_leased(gatherer, pool, level->pending_ns, level->low);
        level->is_pending = false;
        report_series_end(&of->leased, &report->span, moment_ns);
        report_series_end(gatherer->is_started ? &of->reserved : &of->reserved_before, &report->span,
                          moment_ns);
        if (is_zero) {
            report_series_set(&of->leased, &report->span, moment_ns, 0);
            report_series_set(&of->reserved, &report->span, moment_ns, 0);
            level->reserved = 0;
            level->is_lost = false;
        }
    }
}

/* --- what a pool had reserved ---
 *
 * Records tell changes. From a daemon's start on, the sum is known, since nothing was reserved then. Before
 * the first start in the records, the hours help of which all records are there: the most that the changes
 * came to within one was at most the most that was reserved in it. It was less where a segment came while
 * another one was going back, so the hour counts that leaves the least. */

static void set_reserved(struct gatherer *gatherer, unsigned pool, uint64_t moment_ns) {
    struct report_pool *of = &gatherer->report->pools[pool];
    struct level *level = &gatherer->levels[pool];

    report_series_set(gatherer->is_started ? &of->reserved : &of->reserved_before, &gatherer->report->span,
                      moment_ns, level->reserved);
    if (level->reserved > level->reserved_most)
        level->reserved_most = level->reserved;
}

/* The hour is over, or the records are. */
static void end_hour(struct gatherer *gatherer) {
    struct report *report = gatherer->report;

    for (unsigned pool = 1; pool <= report->n_pools && gatherer->is_hour_whole; pool++) {
        const struct proto_hour *hour = proto_records_hour(gatherer->records->file, gatherer->hour, pool);
        const struct level *level = &gatherer->levels[pool];
        struct report_pool *of = &report->pools[pool];
        if (hour->hour != gatherer->hour || hour->reserved_peak_bytes > BYTES_MAX || level->is_lost)
            continue;
        int64_t shift = (int64_t)hour->reserved_peak_bytes - level->reserved_most;
        if (shift < 0 || (of->is_reserved_before_known && of->before_shift <= shift))
            continue;
        of->before_shift = shift;
        of->is_reserved_before_known = true;
    }
}

/* Before each record. */
static void watch_hour(struct gatherer *gatherer, uint64_t moment_ns) {
    uint64_t hour = moment_ns / NS_PER_HOUR;

    if (gatherer->is_started || gatherer->is_stopped || hour <= gatherer->hour)
        return;
    end_hour(gatherer);
    gatherer->hour = hour;
    gatherer->is_hour_whole = true;
    for (unsigned pool = 1; pool <= gatherer->report->n_pools; pool++)
        gatherer->levels[pool].reserved_most = gatherer->levels[pool].reserved;
}

static void take_reserved(struct gatherer *gatherer, const struct proto_record *record) {
    struct level *level = &gatherer->levels[record->pool];

    if (record->kind == PROTO_RECORD_GROW)
        level->reserved += (int64_t)record->bytes;
    else if (record->kind == PROTO_RECORD_RETIRE)
        level->reserved -= (int64_t)record->bytes;
    else if (record->kind == PROTO_RECORD_POOL_LOST)
        level->is_lost = true;
    if (level->is_lost)
        report_series_end(gatherer->is_started ? &gatherer->report->pools[record->pool].reserved
                                               : &gatherer->report->pools[record->pool].reserved_before,
                          &gatherer->report->span, record->time_ns);
    else
        set_reserved(gatherer, record->pool, record->time_ns);
}

/* --- waits --- */

static void add_wait(struct report *report, unsigned pool, const struct report_wait *wait) {
    struct report_pool *of = &report->pools[pool];
    uint64_t end_ns = wait->begin_ns + wait->waited_ns;
    size_t place = of->n_waits < REPORT_ROWS_MAX ? of->n_waits : REPORT_ROWS_MAX;

    if (end_ns < report->span.begin_ns || wait->begin_ns >= report->span.end_ns)
        return;
    size_t first = report_bucket(&report->span, wait->begin_ns), last = report_bucket(&report->span, end_ns);
    of->marks[first].n_waits++;
    for (size_t i = first; i <= last; i++)
        of->marks[i].n_waiting++;
    of->n_waits++;
    for (; place > 0 && of->waits[place - 1].waited_ns < wait->waited_ns; place--)
        if (place < REPORT_ROWS_MAX)
            of->waits[place] = of->waits[place - 1];
    if (place < REPORT_ROWS_MAX)
        of->waits[place] = *wait;
}

static void open_wait(struct gatherer *gatherer, const struct proto_record *record) {
    struct open_wait *waits = array_room(gatherer->open_waits, gatherer->n_open_waits,
                                         &gatherer->open_waits_capacity, sizeof *gatherer->open_waits);
    if (waits == NULL) {
        gatherer->report->is_short = true;
        return;
    }
    gatherer->open_waits = waits;
    struct open_wait *wait = &waits[gatherer->n_open_waits++];
    *wait = (struct open_wait){
        .session = record->session, .time_ns = record->time_ns, .bytes = record->bytes, .pool = record->pool};
    report_process_read(&wait->process, record, &gatherer->report->names);
}

/* The record ends a session's wait for so much, or with the session all of its waits. The end of a wait does
 * not tell the request: of those that fit, the one that began nearest to when this one did has ended. */
static void close_waits(struct gatherer *gatherer, const struct proto_record *record, bool all) {
    uint64_t asked_ns = record->time_ns - record->value, nearest_ns = UINT64_MAX;
    size_t nearest = SIZE_MAX;

    for (size_t i = gatherer->n_open_waits; i-- > 0;) {
        const struct open_wait *wait = &gatherer->open_waits[i];
        if (wait->session != record->session)
            continue;
        if (all) {
            gatherer->open_waits[i] = gatherer->open_waits[--gatherer->n_open_waits];
            continue;
        }
        uint64_t apart_ns = wait->time_ns > asked_ns ? wait->time_ns - asked_ns : asked_ns - wait->time_ns;
        if (wait->pool == record->pool && wait->bytes == record->bytes && apart_ns < nearest_ns) {
            nearest = i;
            nearest_ns = apart_ns;
        }
    }
    if (nearest != SIZE_MAX)
        gatherer->open_waits[nearest] = gatherer->open_waits[--gatherer->n_open_waits];
}

static void take_wait_end(struct gatherer *gatherer, const struct proto_record *record) {
    struct report_wait wait = {.begin_ns = record->time_ns - record->value,
                               .waited_ns = record->value,
                               .bytes = record->bytes,
                               .end = record->kind == PROTO_RECORD_SERVE ? REPORT_WAIT_SERVED
                                                                         : REPORT_WAIT_REFUSED};

    close_waits(gatherer, record, false);
    if (record->value > record->time_ns) /* no time of a clock that goes right */
        return;
    report_process_read(&wait.process, record, &gatherer->report->names);
    add_wait(gatherer->report, record->pool, &wait);
}

/* The records end, and these still wait. */
static void end_open_waits(struct gatherer *gatherer) {
    for (size_t i = 0; i < gatherer->n_open_waits; i++) {
        const struct open_wait *open = &gatherer->open_waits[i];
        uint64_t end_ns = gatherer->report->known_ns;
        add_wait(gatherer->report, open->pool,
                 &(struct report_wait){.process = open->process,
                                       .begin_ns = open->time_ns,
                                       .waited_ns = end_ns > open->time_ns ? end_ns - open->time_ns : 0,
                                       .bytes = open->bytes,
                                       .end = REPORT_WAIT_GOES_ON});
    }
}

/* --- refusals and deaths --- */

static void count_reason(struct report_pool *of, const struct proto_record *record) {
    bool is_probe = (record->flags & PROTO_RECORD_PROBE) != 0;
    unsigned i = 0;

    while (i < of->n_reasons &&
           (of->reasons[i].reason != record->reason || of->reasons[i].detail != record->detail ||
            of->reasons[i].is_probe != is_probe))
        i++;
    if (i == REPORT_REASONS_MAX)
        return;
    if (i == of->n_reasons)
        of->reasons[of->n_reasons++] = (struct report_reason){record->reason, record->detail, is_probe, 0};
    of->reasons[i].n++;
}

static void take_refusal(struct gatherer *gatherer, const struct proto_record *record) {
    struct report *report = gatherer->report;
    struct report_pool *of = &report->pools[record->pool];

    if (!is_within(report, record->time_ns))
        return;
    count_reason(of, record);
    if ((record->flags & PROTO_RECORD_PROBE) != 0)
        return;
    marks_at(report, record->pool, record->time_ns)->n_refusals++;
    struct report_refusal *refusal = &of->refusals[of->n_refusals++ % REPORT_ROWS_MAX];
    *refusal = (struct report_refusal){.time_ns = record->time_ns,
                                       .bytes = record->bytes,
                                       .leased_bytes = record->leased_bytes,
                                       .waited_ns = record->value,
                                       .reason = record->reason,
                                       .detail = record->detail,
                                       .flags = record->flags};
    report_process_read(&refusal->process, record, &gatherer->report->names);
}

static void take_death(struct gatherer *gatherer, const struct proto_record *record) {
    struct report *report = gatherer->report;
    struct report_pool *of = &report->pools[record->pool];

    if (!is_within(report, record->time_ns))
        return;
    marks_at(report, record->pool, record->time_ns)->n_deaths++;
    struct report_death *death = &of->deaths[of->n_deaths++ % REPORT_ROWS_MAX];
    *death = (struct report_death){.time_ns = record->time_ns, .bytes = record->bytes, .run = gatherer->run};
    report_process_read(&death->process, record, &gatherer->report->names);
}

static void take_return(struct gatherer *gatherer, const struct proto_record *record) {
    struct report_pool *of = &gatherer->report->pools[record->pool];

    for (size_t i = 0; i < of->n_deaths && i < REPORT_ROWS_MAX; i++) {
        struct report_death *death = &of->deaths[i];
        if (death->process.session == record->session && death->run == gatherer->run) {
            death->is_over = true;
            death->quarantine_ns = record->value;
        }
    }
}

/* --- the records --- */

static void take_start(struct gatherer *gatherer, const struct proto_record *record) {
    struct report *report = gatherer->report;
    uint64_t end_ns = gatherer->is_stopped ? record->time_ns : report->last_ns;

    report_holders_end(&report->holders, &gatherer->report->names, end_ns);
    end_levels(gatherer, end_ns, false);
    gatherer->is_started = true;
    gatherer->is_stopped = false;
    end_levels(gatherer, record->time_ns, true);
    gatherer->n_open_waits = 0;
    gatherer->run++;
    for (unsigned pool = 1; pool <= report->n_pools && is_within(report, record->time_ns); pool++)
        marks_at(report, pool, record->time_ns)->is_start = true;
}

static void take_of_pool(struct gatherer *gatherer, const struct proto_record *record, uint64_t gone) {
    bool waited = record->kind == PROTO_RECORD_SERVE || (record->flags & PROTO_RECORD_WAITED) != 0;

    take_level(gatherer, record, gone);
    take_reserved(gatherer, record);
    if (record->kind == PROTO_RECORD_WAIT)
        open_wait(gatherer, record);
    else if ((record->kind == PROTO_RECORD_SERVE || record->kind == PROTO_RECORD_REFUSE) && waited)
        take_wait_end(gatherer, record);
    if (record->kind == PROTO_RECORD_DEATH)
        take_death(gatherer, record);
    else if (record->kind == PROTO_RECORD_RETURN)
        take_return(gatherer, record);
}

/* A daemon that stops takes its sessions and segments apart: that is nothing that befell them. */
static void take(struct gatherer *gatherer, const struct proto_record *record) {
    struct report *report = gatherer->report;

    if (record->kind == PROTO_RECORD_START)
        take_start(gatherer, record);
    record_names_learn(&gatherer->report->names, record);
    if (record->pool > report->n_pools || gatherer->is_stopped)
        return;
    if (record->kind == PROTO_RECORD_STOP) {
        report_holders_end(&report->holders, &gatherer->report->names, record->time_ns);
        end_levels(gatherer, record->time_ns, true);
        gatherer->n_open_waits = 0;
        gatherer->is_stopped = true;
        return;
    }
    uint64_t gone = report_holders_take(&report->holders, record, &gatherer->report->names);
    if (record->kind == PROTO_RECORD_REFUSE)
        take_refusal(gatherer, record);
    if (record->kind == PROTO_RECORD_FAREWELL || record->kind == PROTO_RECORD_DEATH)
        close_waits(gatherer, record, true);
    if (record->pool != 0)
        take_of_pool(gatherer, record, gone);
}

static void take_records(struct gatherer *gatherer) {
    const struct records *records = gatherer->records;
    struct report *report = gatherer->report;
    uint64_t next = atomic_load(&records->file->next);
    struct proto_record record;

    report->is_cut = records_first(records) > 1;
    for (uint64_t number = records_first(records); number < next; number++) {
        if (!proto_records_read(records->file, number, &record)) /* overwritten meanwhile */
            continue;
        if (!record_has_name(&record) && (record.bytes > BYTES_MAX || record.leased_bytes > BYTES_MAX))
            continue;
        if (report->first_ns == 0) {
            report->first_ns = report->holders.first_ns = record.time_ns;
            gatherer->hour = record.time_ns / NS_PER_HOUR;
            for (unsigned pool = 1; pool <= report->n_pools; pool++)
                set_reserved(gatherer, pool, record.time_ns);
        }
        watch_hour(gatherer, record.time_ns);
        if (is_within(report, record.time_ns))
            report->n_records++;
        take(gatherer, &record);
        report->last_ns = record.time_ns > report->last_ns ? record.time_ns : report->last_ns;
    }
}

/* --- the hours --- */

static void take_hours(struct gatherer *gatherer, unsigned pool) {
    struct report *report = gatherer->report;
    struct report_pool *of = &report->pools[pool];
    uint64_t number = 0, end = (report->span.end_ns + NS_PER_HOUR - 1) / NS_PER_HOUR;
    struct proto_hour hour;

    while (history_next_hour(gatherer->records, report->span.begin_ns, pool, &number, end, &hour)) {
        uint64_t begin_ns = number * NS_PER_HOUR, end_ns = begin_ns + NS_PER_HOUR;
        if (hour.leased_peak_bytes > BYTES_MAX || hour.reserved_peak_bytes > BYTES_MAX)
            continue;
        history_add(&of->sum, &hour);
        of->n_hours++;
        if (report->first_ns != 0 && (report->is_cut ? begin_ns : end_ns) >= report->first_ns)
            continue; /* the peak of the file's first hour is one of its records */
        report_series_set(&of->hour_peaks, &report->span, begin_ns, (int64_t)hour.leased_peak_bytes);
        report_series_end(&of->hour_peaks, &report->span,
                          report->first_ns != 0 && report->first_ns < end_ns ? report->first_ns : end_ns);
    }
}

/* The oldest moment that the file tells of. */
static uint64_t oldest_ns(const struct records *records, uint64_t until_ns) {
    uint64_t next = atomic_load(&records->file->next), oldest = until_ns;
    struct proto_record record;

    for (uint64_t number = records_first(records); number < next; number++)
        if (proto_records_read(records->file, number, &record)) {
            oldest = record.time_ns < oldest ? record.time_ns : oldest;
            break;
        }
    for (uint64_t hour = 0; hour < records->file->hours_count && records->file->pools_count > 0; hour++) {
        const struct proto_hour *row = proto_records_hour(records->file, hour, 1);
        if (row->hour != 0 && row->hour < oldest / NS_PER_HOUR)
            oldest = row->hour * NS_PER_HOUR;
    }
    return oldest;
}

/* Until when the last record's levels hold: until the end of the span, if the daemon lives. */
static void end_records(struct gatherer *gatherer, bool is_alive) {
    struct report *report = gatherer->report;

    bool goes_on = is_alive || gatherer->is_stopped;
    report->known_ns =
        goes_on && report->span.end_ns > report->last_ns ? report->span.end_ns : report->last_ns;
    if (!gatherer->is_started && !gatherer->is_stopped)
        end_hour(gatherer);
    report_holders_end(&report->holders, &gatherer->report->names, report->known_ns);
    end_open_waits(gatherer);
    end_levels(gatherer, report->known_ns, false);
    report_holders_sort(&report->holders);
    report->is_short = report->is_short || report->holders.is_short;
}

int report_gather(struct report *report, const struct records *records, uint64_t since_ns, uint64_t until_ns,
                  uint64_t pool, bool is_alive) {
    struct gatherer gatherer = {.report = report, .records = records};

    if (since_ns == 0)
        since_ns = oldest_ns(records, until_ns);
    *report = (struct report){.span = {since_ns, until_ns > since_ns ? until_ns : since_ns + NS_PER_S},
                              .pool = pool,
                              .n_pools = records->file->pools_count};
    report->holders.span = report->span;
    report->holders.older_below = UINT64_MAX;
    report->pools = calloc(report->n_pools + 1, sizeof *report->pools);
    if (report->pools == NULL)
        return -ENOMEM;
    take_records(&gatherer);
    end_records(&gatherer, is_alive);
    for (unsigned i = 1; i <= report->n_pools; i++)
        take_hours(&gatherer, i);
    free(gatherer.open_waits);
    return 0;
}

void report_deinit(struct report *report) {
    free(report->pools);
    record_names_deinit(&report->names);
    report_holders_deinit(&report->holders);
    *report = (struct report){0};
}
