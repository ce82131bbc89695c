/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_BENCH_STATISTICS_H
#define TESTS_BENCH_STATISTICS_H
/* Samples of a duration, and what is reported of them. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct samples {
    const char *name;
    uint64_t *ns;
    size_t count, capacity;
};

static inline void samples_init(struct samples *samples, const char *name, size_t capacity) {
    *samples =
        (struct samples){.name = name, .ns = malloc(capacity * sizeof(uint64_t)), .capacity = capacity};
    if (samples->ns == NULL)
        abort();
}

static inline void samples_add(struct samples *samples, uint64_t ns) {
    if (samples->count < samples->capacity)
        samples->ns[samples->count++] = ns;
}

static inline int samples_compare(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

static inline void samples_sort(struct samples *samples) {
    qsort(samples->ns, samples->count, sizeof *samples->ns, samples_compare);
}

/* Of sorted samples: the value that a fraction of them does not exceed. */
static inline uint64_t samples_quantile(const struct samples *samples, double fraction) {
    return samples->count == 0 ? 0 : samples->ns[(size_t)(fraction * (double)(samples->count - 1))];
}

/* One JSON member: "name": {"count": …, "p50_ns": …, "p99_ns": …}. */
static inline void samples_print_json(struct samples *samples, FILE *file, int last) {
    samples_sort(samples);
    fprintf(file, "    \"%s\": {\"count\": %zu, \"p50_ns\": %llu, \"p99_ns\": %llu}%s\n", samples->name,
            samples->count, (unsigned long long)samples_quantile(samples, 0.5),
            (unsigned long long)samples_quantile(samples, 0.99), last ? "" : ",");
}

#endif
