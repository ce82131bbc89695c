/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_HISTOGRAM_H
#define DAEMON_CORE_HISTOGRAM_H
/*
 * A histogram of durations: how many there were by powers of two of nanoseconds, since the daemon started.
 * Its size is fixed, and adding to it is a handful of instructions.
 *
 * Bucket b counts durations of at least 2^(b-1) and less than 2^b nanoseconds, bucket 0 those of 0, the last
 * one all that are longer.
 */
#include <stdint.h>

/* The last bucket begins at 2^38 ns, 4.6 minutes: longer than driver calls and patience last. */
#define HISTOGRAM_BUCKETS 40u

struct histogram {
    uint64_t count, sum_ns;
    uint64_t buckets[HISTOGRAM_BUCKETS];
};

/* Counts what began and ended; an end before the beginning counts as 0. */
void histogram_add(struct histogram *histogram, uint64_t began_ns, uint64_t ended_ns);

/* The upper bound of a bucket, which its durations do not reach; UINT64_MAX for the last bucket. */
uint64_t histogram_upper_ns(unsigned bucket);

/* A duration that so many of a thousand do not exceed, as if those in a bucket were spread evenly over it:
 * less than a factor of two away from the true one (but in the last bucket, of which only the beginning is
 * known). 0 without any. */
uint64_t histogram_quantile_ns(const struct histogram *histogram, unsigned permille);

#endif
