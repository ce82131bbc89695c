/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_REPORT_DATA_H
#define CLIENT_CTL_REPORT_DATA_H
/*
 * The sums of "gpupoolctl report": goes through the records and the hours of a file once. The sums have a
 * bound, but for the holders, of which there are at most as many as records.
 */
#include <stdbool.h>
#include <stdint.h>

#include "client/ctl/record_names.h"
#include "client/ctl/report_holders.h"
#include "client/ctl/report_series.h"
#include "proto/records.h"

struct records;

#define REPORT_ROWS_MAX    50u /* of each table */
#define REPORT_REASONS_MAX 32u

struct report_refusal {
    struct report_process process;
    uint64_t time_ns, bytes, leased_bytes, waited_ns;
    uint8_t reason, detail, flags;
};

struct report_wait {
    struct report_process process;
    uint64_t begin_ns, waited_ns, bytes;
    enum report_wait_end {
        REPORT_WAIT_SERVED,
        REPORT_WAIT_REFUSED,
        REPORT_WAIT_GOES_ON,
    } end;
};

struct report_death {
    struct report_process process;
    uint64_t time_ns, bytes, quarantine_ns;
    bool is_over; /* the quarantine */
    unsigned run; /* of the daemon: the number of starts before */
};

/* How much happened in one part of the time. */
struct report_marks {
    uint32_t n_waits, n_waiting; /* that began; that were there */
    uint32_t n_refusals, n_deaths;
    bool is_start; /* of the daemon */
};

struct report_pool {
    struct proto_hour sum; /* of the hours */
    uint64_t n_hours;
    struct report_series leased, reserved;
    struct report_series reserved_before; /* until the daemon's first start in the records: relative */
    struct report_series hour_peaks;      /* of what it lent, before the oldest record */
    bool is_reserved_before_known;
    int64_t before_shift; /* to be added to it */
    struct report_marks marks[REPORT_BUCKETS];

    /* The newest; in a ring. */
    struct report_refusal refusals[REPORT_ROWS_MAX];
    struct report_death deaths[REPORT_ROWS_MAX];
    uint64_t n_refusals, n_deaths; /* of refusals those that were errors for the caller */
    /* The longest, in order. */
    struct report_wait waits[REPORT_ROWS_MAX];
    uint64_t n_waits;
    struct report_reason {
        uint8_t reason, detail;
        bool is_probe;
        uint64_t n;
    } reasons[REPORT_REASONS_MAX];
    unsigned n_reasons;
};

struct report {
    struct report_span span;
    uint64_t pool;              /* 0: all */
    uint64_t first_ns, last_ns; /* of the oldest and newest record; 0: there is none */
    uint64_t known_ns;          /* until then the last level counts */
    uint64_t n_records;         /* within the span */
    bool is_cut;                /* the ring has forgotten records */
    unsigned n_pools;
    struct report_pool *pools; /* by id; the first one is of requests that named none */
    struct report_holders holders;
    struct record_names names; /* as of the newest record */
    bool is_short;             /* memory was: some rows are missing */
};

/* Sums up a file. since_ns: 0: from the oldest on. now_ns: until then at most. is_alive: the daemon that
 * wrote it lives. Returns 0 or -ENOMEM. */
int report_gather(struct report *report, const struct records *records, uint64_t since_ns, uint64_t until_ns,
                  uint64_t pool, bool is_alive);

void report_deinit(struct report *report);

#endif
