/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_BENCH_WORKLOAD_H
#define TESTS_BENCH_WORKLOAD_H
/*
 * The work that every compared allocator does: warm pairs by size, a random mix, threads, and memory
 * that one thread takes and another gives back. A program defines its allocator (its "subject") and then
 * includes this file, so that all run the same loops with the allocator's calls inlined into them; it is C
 * and C++ alike, for an allocator written in C++. The program defines, before it includes this file:
 *
 *     struct subject_block                                       a block of the allocator
 *     void subject_take(struct subject_block *, size, stream)    takes, or ends the program with a message
 *     void subject_give(struct subject_block *, stream)
 *     void *subject_stream_new(void)                             a stream of the calling thread's own
 *     void subject_settle(void *stream)                          waits until what was enqueued is done
 *     void subject_empty(void)                                   gives idle memory back to where it came from
 *     void subject_memory(uint64_t *ret_reserved, uint64_t *ret_leased)
 *                                                                bytes taken from the driver; bytes that this
 * process alone occupies of them, if that is another number, else 0
 *
 * The figures are printed as one JSON object a line:
 *     {"case": "warm_pair", "subject": "…", "parameters": {"size_bytes": 512}, "values": {"ns": 10.4, …}}
 * and at the end what the processors were at their best (calibration.h), for the next program of the run:
 *     {"calibration": "C", "best_ns": 9157}
 * Options: see workload_parse().
 */
#include <getopt.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "tests/bench/calibration.h"

#define WORKLOAD_LIST_MAX 16u
#define WORKLOAD_BATCH_NS                                                                                    \
    (100 * NS_PER_US) /* long against reading the clock, short against a disturbance                         \
                       */
#define WORKLOAD_SPINS                                                                                       \
    2000u /* then others may need the processor: there can be fewer of them than threads                     \
           */

struct workload {
    const char *program;
    const char *subject; /* the program's own name for what it measures */
    const char *name;    /* as printed; the subject without it */
    const char *cases;
    bool pinned; /* host memory: printed under names of its own */
    bool marks; /* says where a case is, and waits each time for a line with the daemon's count of messages */
    struct calibration calibration;
    uint64_t sizes[WORKLOAD_LIST_MAX], threads[WORKLOAD_LIST_MAX];
    unsigned n_sizes, n_threads;
    uint64_t figure_ns; /* how long a figure is measured for */
    uint64_t mix_smallest_bytes, mix_largest_bytes;
    unsigned mix_live, mix_steps, hand_pairs;
};

/* --- options
 * ------------------------------------------------------------------------------------------------------ */

static unsigned workload_parse_list(const char *text, uint64_t *ret_values) {
    unsigned count = 0;
    char *end = NULL;
    for (; count < WORKLOAD_LIST_MAX && *text != '\0'; text = *end == ',' ? end + 1 : end) {
        ret_values[count++] = strtoull(text, &end, 10);
        if (end == text || (*end != ',' && *end != '\0'))
            return 0;
    }
    return count;
}

static inline void workload_usage(const char *program) {
    fprintf(stderr,
            "usage: %s --subject NAME [--name TEXT] [--cases ring,warm_pair,mix,threads,hand_over] [--memory "
            "device|pinned]\n"
            "       [--sizes BYTES,…] [--threads N,…] [--figure-ms N] [--mix-largest BYTES] [--mix-steps N]\n"
            "       [--hand-pairs N] [--marks] [--calibration-ns NS]\n",
            program);
    exit(2);
}

static inline struct workload workload_parse(int argc, char **argv) {
    static const struct option options[] = {
        {"subject", required_argument, NULL, 's'},
        {"name", required_argument, NULL, 'n'},
        {"cases", required_argument, NULL, 'c'},
        {"memory", required_argument, NULL, 'm'},
        {"sizes", required_argument, NULL, 'b'},
        {"threads", required_argument, NULL, 't'},
        {"figure-ms", required_argument, NULL, 'f'},
        {"mix-largest", required_argument, NULL, 'l'},
        {"mix-steps", required_argument, NULL, 'x'},
        {"hand-pairs", required_argument, NULL, 'h'},
        {"marks", no_argument, NULL, 'k'},
        {"calibration-ns", required_argument, NULL, 'a'},
        {NULL, 0, NULL, 0},
    };
    struct workload work;
    int option;

    memset(&work, 0, sizeof work);
    work.program = argv[0];
    work.cases = "warm_pair";
    work.n_sizes = workload_parse_list("1048576", work.sizes);
    work.n_threads = workload_parse_list("1,2,4,8,16", work.threads);
    work.figure_ns = 200 * NS_PER_MS;
    work.mix_smallest_bytes = 512;
    work.mix_largest_bytes = UINT64_C(32) << 20;
    work.mix_live = 1000;
    work.mix_steps = 100000;
    work.hand_pairs = 100000;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 's')
            work.subject = optarg;
        else if (option == 'n')
            work.name = optarg;
        else if (option == 'c')
            work.cases = optarg;
        else if (option == 'm' && (strcmp(optarg, "device") == 0 || strcmp(optarg, "pinned") == 0))
            work.pinned = optarg[0] == 'p';
        else if (option == 'b' && (work.n_sizes = workload_parse_list(optarg, work.sizes)) > 0)
            continue;
        else if (option == 't' && (work.n_threads = workload_parse_list(optarg, work.threads)) > 0)
            continue;
        else if (option == 'f' && strtoull(optarg, NULL, 10) > 0)
            work.figure_ns = strtoull(optarg, NULL, 10) * NS_PER_MS;
        else if (option == 'l' && strtoull(optarg, NULL, 10) >= 2 * work.mix_smallest_bytes)
            work.mix_largest_bytes = strtoull(optarg, NULL, 10);
        else if (option == 'x' && strtoul(optarg, NULL, 10) > 0)
            work.mix_steps = (unsigned)strtoul(optarg, NULL, 10);
        else if (option == 'h' && strtoul(optarg, NULL, 10) > 0)
            work.hand_pairs = (unsigned)strtoul(optarg, NULL, 10);
        else if (option == 'a' && strtod(optarg, NULL) > 0)
            work.calibration.best_ns = strtod(optarg, NULL);
        else if (option == 'k')
            work.marks = true;
        else
            workload_usage(argv[0]);
    }
    if (work.subject == NULL || optind != argc)
        workload_usage(argv[0]);
    if (work.name == NULL)
        work.name = work.subject;
    return work;
}

static inline bool workload_wants(const struct workload *work, const char *name) {
    size_t length = strlen(name);
    for (const char *at = work->cases; (at = strstr(at, name)) != NULL; at += length)
        if ((at == work->cases || at[-1] == ',') && (at[length] == ',' || at[length] == '\0'))
            return true;
    return false;
}

/* --- what is common to the cases
 * ---------------------------------------------------------------------------------- */

/* The beginning of a result's line, up to where the parameters' members come. */
static inline void workload_begin(const struct workload *work, const char *name) {
    printf("{\"case\": \"%s%s\", \"subject\": \"%s\", \"parameters\": {", work->pinned ? "pinned_" : "", name,
           work->name);
}

/* The program that started this one can look at the daemon now, and tells how many messages it has had. */
static inline uint64_t workload_mark(const struct workload *work, const char *what) {
    uint64_t count = 0;
    if (!work->marks)
        return 0;
    printf("{\"mark\": \"%s\"}\n", what);
    fflush(stdout);
    for (int byte; (byte = getchar()) != '\n' && byte != EOF;)
        count = byte >= '0' && byte <= '9' ? 10 * count + (uint64_t)(byte - '0') : count;
    return count;
}

/* The members that say what was measured: accepted, as it came, how many samples of either. */
static inline void workload_print_figure(const struct figure *figure) {
    printf("\"ns\": %.2f, \"raw_ns\": %.2f, \"samples\": %u, \"slow_samples\": %u", figure->ns,
           figure->raw_ns, figure->samples, figure->slow);
}

/* xorshift64: the same in every program, whatever library it has. */
static inline uint64_t workload_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static inline void workload_relax(unsigned *spins) {
    if (++*spins >= WORKLOAD_SPINS) {
        *spins = 0;
        sched_yield();
    }
}

/* --- warm pairs
 * --------------------------------------------------------------------------------------------------- */

static inline uint64_t workload_time_pairs(uint64_t size_bytes, void *stream, uint64_t pairs) {
    struct subject_block block;
    uint64_t start = clock_now_ns();
    for (uint64_t i = 0; i < pairs; i++) {
        subject_take(&block, size_bytes, stream);
        subject_give(&block, stream);
    }
    return clock_now_ns() - start;
}

struct workload_pairs {
    uint64_t size_bytes, pairs; /* pairs of a sample */
    void *stream;
};

static inline double workload_pairs_sample(void *context) {
    const struct workload_pairs *pairs = (const struct workload_pairs *)context;
    return (double)workload_time_pairs(pairs->size_bytes, pairs->stream, pairs->pairs) / (double)pairs->pairs;
}

/* Nanoseconds of a pair: batches, after as much warming up as a tenth of the time, and never less than two
 * pairs: the first may grow a pool. */
static inline struct figure workload_warm_pair(struct workload *work, uint64_t size_bytes, void *stream) {
    struct workload_pairs sample = {size_bytes, 1, stream};
    uint64_t spent = workload_time_pairs(size_bytes, stream, 2), warm = 0, end, pairs;

    for (end = clock_now_ns() + work->figure_ns / 10, pairs = 1; clock_now_ns() < end || warm == 0;
         pairs *= 2) {
        spent = workload_time_pairs(size_bytes, stream, pairs);
        warm = pairs;
    }
    pairs = spent == 0 ? warm : WORKLOAD_BATCH_NS * warm / spent;
    sample.pairs = pairs == 0 ? 1 : pairs;
    subject_settle(stream);
    struct figure figure =
        figure_take(&work->calibration, work->figure_ns, CALIBRATION_FEW, workload_pairs_sample, &sample);
    subject_settle(stream);
    return figure;
}

static inline void workload_warm_pairs(struct workload *work, void *stream) {
    for (unsigned i = 0; i < work->n_sizes; i++) {
        struct figure figure = workload_warm_pair(work, work->sizes[i], stream);
        workload_begin(work, "warm_pair");
        printf("\"size_bytes\": %llu}, \"values\": {", (unsigned long long)work->sizes[i]);
        workload_print_figure(&figure);
        printf("}}\n");
        fflush(stdout);
    }
}

#include "tests/bench/workload_mix.h"
#include "tests/bench/workload_threads.h"

/* --- all of it
 * ---------------------------------------------------------------------------------------------------- */

static inline void workload_run(struct workload *work) {
    void *stream = subject_stream_new();

    calibration_scan(&work->calibration);
    if (workload_wants(work, "warm_pair"))
        workload_warm_pairs(work, stream);
    if (workload_wants(work, "mix"))
        workload_random_mix(work, stream);
    if (workload_wants(work, "threads"))
        workload_threads(work);
    if (workload_wants(work, "hand_over")) {
        double ns = workload_hand_over(work, stream, true);
        workload_begin(work, "hand_over");
        printf("\"size_bytes\": %llu}, \"values\": {\"ns\": %.2f}}\n",
               (unsigned long long)WORKLOAD_HAND_BYTES, ns);
    }
    if (workload_wants(work, "ring")) {
        double ns = workload_hand_over(work, stream, false);
        workload_begin(work, "hand_over");
        printf("\"size_bytes\": 0}, \"values\": {\"ns\": %.2f}}\n", ns);
    }
    printf("{\"calibration\": \"C\", \"best_ns\": %.0f}\n", work->calibration.best_ns);
    fflush(stdout);
}

#endif
