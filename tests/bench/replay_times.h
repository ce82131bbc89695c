/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_BENCH_REPLAY_TIMES_H
#define TESTS_BENCH_REPLAY_TIMES_H
/*
 * The time of each operation of a replay, in what C and C++ have in common, so that every allocator is timed
 * in the same way: the clock is read once an operation, and a time is from one reading to the next.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct replay_times {
    uint32_t *ns; /* no operation takes 4 s */
    size_t count, capacity;
    uint64_t now_ns; /* the last reading */
};

static inline uint64_t replay_times_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* Makes room, and touches it: the times are not to have page faults in them. */
static inline void replay_times_init(struct replay_times *times, size_t capacity) {
    memset(times, 0, sizeof *times);
    times->capacity = capacity;
    times->ns = (uint32_t *)malloc((capacity + 1) * sizeof *times->ns);
    if (times->ns == NULL) {
        fprintf(stderr, "no memory\n");
        exit(1);
    }
    memset(times->ns, 1, (capacity + 1) * sizeof *times->ns);
}

static inline void replay_times_free(struct replay_times *times) {
    free(times->ns);
    times->ns = NULL;
}

/* From here on, the next operation counts. */
static inline void replay_times_begin(struct replay_times *times) {
    times->now_ns = replay_times_clock();
}

/* After an operation. Returns its time. */
static inline uint64_t replay_times_add(struct replay_times *times) {
    uint64_t now_ns = replay_times_clock(), ns = now_ns - times->now_ns;
    if (times->count < times->capacity)
        times->ns[times->count++] = ns > UINT32_MAX ? UINT32_MAX : (uint32_t)ns;
    times->now_ns = now_ns;
    return ns;
}

static inline int replay_times_compare(const void *a, const void *b) {
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return left < right ? -1 : left > right;
}

/* The mean of the times from first on. */
static inline double replay_times_mean(const struct replay_times *times, size_t first) {
    double sum = 0;
    for (size_t i = first; i < times->count; i++)
        sum += times->ns[i];
    return times->count > first ? sum / (double)(times->count - first) : 0;
}

/* The time that a fraction of those from first on does not exceed. Sorts them. */
static inline uint32_t replay_times_quantile(struct replay_times *times, size_t first, double fraction) {
    size_t count = times->count - first;
    if (count == 0)
        return 0;
    qsort(times->ns + first, count, sizeof *times->ns, replay_times_compare);
    return times->ns[first + (size_t)(fraction * (double)(count - 1))];
}

#endif
