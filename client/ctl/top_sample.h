/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_TOP_SAMPLE_H
#define CLIENT_CTL_TOP_SAMPLE_H
/*
 * A sample: the daemon's reply to "stats" at one moment, and what can only be told from several: how fast
 * each process's memory grows, and each pool's last minutes.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/ctl/events.h"
#include "client/ctl/records.h"

struct options;
struct reply;

#define TOP_POOLS_MAX  64u
#define TOP_TREND_SIZE 60u /* samples of a pool that are kept */
#define TOP_EVENTS     3u  /* of the last ones */

struct top_process {
    uint64_t session, leased_bytes;
    double rate; /* bytes a second by which leased_bytes has grown since the sample before */
};

struct top_sample {
    struct reply *reply;           /* NULL: there is none yet */
    char error[256];               /* why there is no newer one; "": there is */
    uint64_t taken_ns;             /* on CLOCK_MONOTONIC */
    struct top_process *processes; /* by session */
    size_t n_processes;
    /* Of each pool, by id - 1: leased of the limit, in thousandths, the oldest first. */
    unsigned short trends[TOP_POOLS_MAX][TOP_TREND_SIZE];
    unsigned n_trend;       /* at most TOP_TREND_SIZE */
    struct records records; /* of the flight recorder; file is NULL: they cannot be read */
    char events[TOP_EVENTS][EVENT_LINE_SIZE];
};

/* Asks the daemon. The sample stays as it was, with an error, where it does not answer. */
void top_sample_take(struct top_sample *sample, const struct options *options);

/* The rate of a session. */
double top_sample_rate(const struct top_sample *sample, uint64_t session);

void top_sample_deinit(struct top_sample *sample);

#endif
