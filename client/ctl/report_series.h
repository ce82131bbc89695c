/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_REPORT_SERIES_H
#define CLIENT_CTL_REPORT_SERIES_H
/* A level over time, kept as the least and the most of each of a few parts of the time: however many changes
 * there are, a chart of it stays small. Pure. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REPORT_BUCKETS 300u

struct report_span {
    uint64_t begin_ns, end_ns; /* the end is behind the beginning */
};

/* Zeroed: nothing is known of it. */
struct report_series {
    bool is_known; /* now */
    int64_t level;
    uint64_t since_ns;
    struct report_bucket {
        bool is_known;
        int64_t least, most;
    } buckets[REPORT_BUCKETS];
};

/* The part of the time in which a moment lies; one outside of it counts as its first or last. */
size_t report_bucket(const struct report_span *span, uint64_t moment_ns);

/* Where a part begins. */
uint64_t report_bucket_ns(const struct report_span *span, size_t bucket);

/* The level until now was what was said last; from now on it is another one. Times that go back, with the
 * machine's clock, count as the last one. */
void report_series_set(struct report_series *series, const struct report_span *span, uint64_t moment_ns,
                       int64_t level);

/* From now on nothing is known. */
void report_series_end(struct report_series *series, const struct report_span *span, uint64_t moment_ns);

/* The most of all parts; 0 where nothing is known. */
int64_t report_series_most(const struct report_series *series);

#endif
