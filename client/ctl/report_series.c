/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/report_series.h"

/* Without overflow for any span. */
size_t report_bucket(const struct report_span *span, uint64_t moment_ns) {
    if (moment_ns <= span->begin_ns)
        return 0;
    if (moment_ns >= span->end_ns)
        return REPORT_BUCKETS - 1;
    double share = (double)(moment_ns - span->begin_ns) / (double)(span->end_ns - span->begin_ns);
    size_t bucket = (size_t)(share * REPORT_BUCKETS);
    return bucket < REPORT_BUCKETS ? bucket : REPORT_BUCKETS - 1;
}

uint64_t report_bucket_ns(const struct report_span *span, size_t bucket) {
    double share = (double)bucket / REPORT_BUCKETS;
    return span->begin_ns + (uint64_t)((double)(span->end_ns - span->begin_ns) * share);
}

static void note(struct report_bucket *bucket, int64_t level) {
    if (!bucket->is_known || level < bucket->least)
        bucket->least = level;
    if (!bucket->is_known || level > bucket->most)
        bucket->most = level;
    bucket->is_known = true;
}

/* The level was the same from since_ns until now. */
static void note_until(struct report_series *series, const struct report_span *span, uint64_t moment_ns) {
    if (!series->is_known || moment_ns < span->begin_ns || series->since_ns >= span->end_ns)
        return;
    for (size_t i = report_bucket(span, series->since_ns), last = report_bucket(span, moment_ns); i <= last;
         i++)
        note(&series->buckets[i], series->level);
}

void report_series_set(struct report_series *series, const struct report_span *span, uint64_t moment_ns,
                       int64_t level) {
    if (moment_ns < series->since_ns)
        moment_ns = series->since_ns;
    if (series->is_known && level == series->level)
        return;
    note_until(series, span, moment_ns);
    series->is_known = true;
    series->level = level;
    series->since_ns = moment_ns;
}

void report_series_end(struct report_series *series, const struct report_span *span, uint64_t moment_ns) {
    note_until(series, span, moment_ns < series->since_ns ? series->since_ns : moment_ns);
    series->is_known = false;
}

int64_t report_series_most(const struct report_series *series) {
    int64_t most = 0;

    for (size_t i = 0; i < REPORT_BUCKETS; i++)
        if (series->buckets[i].is_known && series->buckets[i].most > most)
            most = series->buckets[i].most;
    return most;
}
