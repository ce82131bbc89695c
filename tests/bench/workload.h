/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_BENCH_WORKLOAD_H
#define TESTS_BENCH_WORKLOAD_H
/*
 * The same work for every allocator that is compared: warm pairs by size, a random mix, threads, and memory
 * that one thread takes and another gives back. A program defines its allocator (its "subject") and then
 * includes this file, so that all run the same loops with the allocator's calls inlined into them; it is C
 * and C++ alike, for an allocator written in C++. The program defines, before it includes this file:
 *
 *     struct subject_block                                       what the allocator hands out
 *     void subject_take(struct subject_block *, size, stream)    takes, or ends the program with a message
 *     void subject_give(struct subject_block *, stream)
 *     void *subject_stream_new(void)                             a stream of the calling thread's own
 *     void subject_settle(void *stream)                          waits until what was enqueued is done
 *     void subject_empty(void)                                   gives idle memory back to where it came from
 *     void subject_memory(uint64_t *ret_reserved, uint64_t *ret_leased)
 *                                                                bytes taken from the driver; bytes that this
 * process alone occupies of them, if that is another number, else 0
 *
 * What is measured is printed as one JSON object a line:
 *     {"case": "warm_pair", "subject": "…", "parameters": {"size_bytes": 512}, "values": {"ns": 10.4}}
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

#define WORKLOAD_LIST_MAX    16u
#define WORKLOAD_BATCHES_MAX 201u
#define WORKLOAD_BATCH_NS                                                                                    \
    (100 * NS_PER_US)             /* long against reading the clock, short against a disturbance             \
                                   */
#define WORKLOAD_THREAD_BATCH 64u /* pairs between two looks at whether to stop */
#define WORKLOAD_THREAD_BYTES (UINT64_C(1) << 20)
#define WORKLOAD_HAND_BUFFERS 64u
#define WORKLOAD_HAND_BYTES   (UINT64_C(64) << 10)
#define WORKLOAD_HAND_ROUNDS  5u
#define WORKLOAD_SPINS                                                                                       \
    2000u /* then others may need the processor: there can be fewer of them than threads                     \
           */

struct workload {
    const char *program;
    const char *subject; /* the program's own name for what it measures */
    const char *name;    /* as printed; the subject without it */
    const char *cases;
    bool pinned; /* host memory: printed under names of its own */
    bool marks;  /* says when the warm part of a case begins and ends, and waits for a line each time */
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
            "       [--hand-pairs N] [--marks]\n",
            program);
    exit(2);
}

static inline struct workload workload_parse(int argc, char **argv) {
    static const struct option options[] = {
        {"subject", required_argument, NULL, 's'},   {"name", required_argument, NULL, 'n'},
        {"cases", required_argument, NULL, 'c'},     {"memory", required_argument, NULL, 'm'},
        {"sizes", required_argument, NULL, 'b'},     {"threads", required_argument, NULL, 't'},
        {"figure-ms", required_argument, NULL, 'f'}, {"mix-largest", required_argument, NULL, 'l'},
        {"mix-steps", required_argument, NULL, 'x'}, {"hand-pairs", required_argument, NULL, 'h'},
        {"marks", no_argument, NULL, 'k'},           {NULL, 0, NULL, 0},
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

/* Whoever started this program can look at the daemon now. */
static inline void workload_mark(const struct workload *work, const char *what) {
    if (!work->marks)
        return;
    printf("{\"mark\": \"%s\"}\n", what);
    fflush(stdout);
    for (int byte; (byte = getchar()) != '\n' && byte != EOF;)
        continue;
}

static inline int workload_compare(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return left < right ? -1 : left > right;
}

static inline double workload_median(double *values, unsigned count) {
    /* There is at least one: who calls this has measured. */
    /* cppcheck-suppress uninitvar */
    qsort(values, count, sizeof *values, workload_compare);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
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

/* Nanoseconds of a pair: the median of batches, after as much warming up as a tenth of the time, and never
 * less than two pairs: the first may grow a pool. */
static inline double workload_warm_pair(const struct workload *work, uint64_t size_bytes, void *stream) {
    double ns[WORKLOAD_BATCHES_MAX];
    uint64_t pairs = 2, spent = workload_time_pairs(size_bytes, stream, pairs), warm = 0, end;
    unsigned count = 0;

    for (end = clock_now_ns() + work->figure_ns / 10, pairs = 1; clock_now_ns() < end || warm == 0;
         pairs *= 2) {
        spent = workload_time_pairs(size_bytes, stream, pairs);
        warm = pairs;
    }
    pairs = spent == 0 ? warm : WORKLOAD_BATCH_NS * warm / spent;
    pairs = pairs == 0 ? 1 : pairs;
    subject_settle(stream);
    for (end = clock_now_ns() + work->figure_ns;
         count < WORKLOAD_BATCHES_MAX && (clock_now_ns() < end || count < 5);)
        ns[count++] = (double)workload_time_pairs(size_bytes, stream, pairs) / (double)pairs;
    subject_settle(stream);
    return workload_median(ns, count);
}

static inline void workload_warm_pairs(const struct workload *work, void *stream) {
    for (unsigned i = 0; i < work->n_sizes; i++) {
        double ns = workload_warm_pair(work, work->sizes[i], stream);
        workload_begin(work, "warm_pair");
        printf("\"size_bytes\": %llu}, \"values\": {\"ns\": %.2f}}\n", (unsigned long long)work->sizes[i],
               ns);
        fflush(stdout);
    }
}

/* --- the random mix
 * ----------------------------------------------------------------------------------------------- */

struct workload_mix {
    struct subject_block *blocks; /* live */
    uint64_t *block_bytes;
    uint64_t *sizes; /* of each step */
    unsigned *slots; /* which block gives way to it */
    uint64_t peak_live, peak_reserved, peak_leased;
};

/* Sizes of every power of two as likely as those of another, and any within it. */
static inline uint64_t workload_mix_size(const struct workload *work, uint64_t *state) {
    unsigned powers = (unsigned)(63 - __builtin_clzll(work->mix_largest_bytes / work->mix_smallest_bytes));
    uint64_t base = work->mix_smallest_bytes << workload_random(state) % powers;
    return base + workload_random(state) % base;
}

static inline void *workload_allocate(size_t size) {
    void *memory = calloc(1, size);
    if (memory == NULL)
        abort();
    return memory;
}

/* From nothing to all live, and then as many replacements as are timed later: after each the memory is looked
 * at. */
static inline void workload_mix_cold(const struct workload *work, struct workload_mix *mix, void *stream) {
    uint64_t state = UINT64_C(88172645463325252), live = 0, reserved, leased;
    for (unsigned i = 0; i < work->mix_live + work->mix_steps; i++) {
        unsigned slot = i < work->mix_live ? i : mix->slots[i - work->mix_live];
        uint64_t size = i < work->mix_live ? workload_mix_size(work, &state) : mix->sizes[i - work->mix_live];
        if (i >= work->mix_live) {
            subject_give(&mix->blocks[slot], stream);
            live -= mix->block_bytes[slot];
        }
        subject_take(&mix->blocks[slot], size, stream);
        mix->block_bytes[slot] = size;
        live += size;
        mix->peak_live = live > mix->peak_live ? live : mix->peak_live;
        subject_memory(&reserved, &leased);
        mix->peak_reserved = reserved > mix->peak_reserved ? reserved : mix->peak_reserved;
        mix->peak_leased = leased > mix->peak_leased ? leased : mix->peak_leased;
    }
}

static inline double workload_mix_timed(const struct workload *work, struct workload_mix *mix, void *stream) {
    uint64_t start = clock_now_ns();
    for (unsigned i = 0; i < work->mix_steps; i++) {
        struct subject_block *block = &mix->blocks[mix->slots[i]];
        subject_give(block, stream);
        subject_take(block, mix->sizes[i], stream);
    }
    return (double)(clock_now_ns() - start) / work->mix_steps;
}

static inline void workload_random_mix(const struct workload *work, void *stream) {
    struct workload_mix mix;
    uint64_t state = UINT64_C(2463534242);
    double ns[3];

    memset(&mix, 0, sizeof mix);
    mix.blocks = (struct subject_block *)workload_allocate(work->mix_live * sizeof *mix.blocks);
    mix.block_bytes = (uint64_t *)workload_allocate(work->mix_live * sizeof *mix.block_bytes);
    mix.sizes = (uint64_t *)workload_allocate(work->mix_steps * sizeof *mix.sizes);
    mix.slots = (unsigned *)workload_allocate(work->mix_steps * sizeof *mix.slots);
    for (unsigned i = 0; i < work->mix_steps; i++) {
        mix.sizes[i] = workload_mix_size(work, &state);
        mix.slots[i] = (unsigned)(workload_random(&state) % work->mix_live);
    }
    subject_empty();
    workload_mix_cold(work, &mix, stream);
    subject_settle(stream);
    for (unsigned i = 0; i < 3; i++) {
        ns[i] = workload_mix_timed(work, &mix, stream);
        subject_settle(stream);
    }
    workload_begin(work, "mix");
    printf("\"live\": %u, \"largest_bytes\": %llu}, \"values\": {\"ns\": %.2f, \"peak_live_bytes\": %llu, "
           "\"peak_reserved_bytes\": %llu",
           work->mix_live, (unsigned long long)work->mix_largest_bytes, workload_median(ns, 3),
           (unsigned long long)mix.peak_live, (unsigned long long)mix.peak_reserved);
    if (mix.peak_leased > 0)
        printf(", \"peak_leased_bytes\": %llu", (unsigned long long)mix.peak_leased);
    printf("}}\n");
    fflush(stdout);
    for (unsigned i = 0; i < work->mix_live; i++)
        subject_give(&mix.blocks[i], stream);
    free(mix.blocks);
    free(mix.block_bytes);
    free(mix.sizes);
    free(mix.slots);
}

/* --- threads
 * ------------------------------------------------------------------------------------------------------ */

struct workload_thread {
    pthread_t thread;
    pthread_barrier_t *barrier;
    const bool *stop;
    uint64_t pairs, start_ns, end_ns;
    char apart[128]; /* neighbours write to lines of their own */
};

static void *workload_thread_main(void *argument) {
    struct workload_thread *self = (struct workload_thread *)argument;
    void *stream = subject_stream_new();

    workload_time_pairs(WORKLOAD_THREAD_BYTES, stream, 1000);
    pthread_barrier_wait(self->barrier);
    self->start_ns = clock_now_ns();
    while (!__atomic_load_n(self->stop, __ATOMIC_RELAXED)) {
        struct subject_block block;
        for (unsigned i = 0; i < WORKLOAD_THREAD_BATCH; i++) {
            subject_take(&block, WORKLOAD_THREAD_BYTES, stream);
            subject_give(&block, stream);
        }
        self->pairs += WORKLOAD_THREAD_BATCH;
    }
    self->end_ns = clock_now_ns();
    subject_settle(stream);
    return NULL;
}

/* Each thread with a stream of its own, until time is up: pairs a second of all together, from the first
 * start to the last end. */
static inline void workload_threads(const struct workload *work) {
    for (unsigned n = 0; n < work->n_threads; n++) {
        static bool stop __attribute__((aligned(128)));
        unsigned count = (unsigned)work->threads[n];
        struct workload_thread *threads =
            (struct workload_thread *)workload_allocate(count * sizeof *threads);
        struct timespec figure;
        pthread_barrier_t barrier;
        uint64_t pairs = 0, start = UINT64_MAX, end = 0;

        figure.tv_sec = (time_t)(work->figure_ns / NS_PER_S);
        figure.tv_nsec = (long)(work->figure_ns % NS_PER_S);
        stop = false;
        pthread_barrier_init(&barrier, NULL, count + 1);
        for (unsigned i = 0; i < count; i++) {
            threads[i].barrier = &barrier;
            threads[i].stop = &stop;
            if (pthread_create(&threads[i].thread, NULL, workload_thread_main, &threads[i]) != 0)
                abort();
        }
        pthread_barrier_wait(&barrier);
        nanosleep(&figure, NULL);
        __atomic_store_n(&stop, true, __ATOMIC_RELAXED);
        for (unsigned i = 0; i < count; i++) {
            pthread_join(threads[i].thread, NULL);
            pairs += threads[i].pairs;
            start = threads[i].start_ns < start ? threads[i].start_ns : start;
            end = threads[i].end_ns > end ? threads[i].end_ns : end;
        }
        pthread_barrier_destroy(&barrier);
        free(threads);
        workload_begin(work, "threads");
        printf("\"threads\": %u}, \"values\": {\"pairs_per_s\": %.0f}}\n", count,
               (double)pairs * 1e9 / (double)(end - start));
        fflush(stdout);
    }
}

/* --- from thread to thread
 * ---------------------------------------------------------------------------------------- */

/* A ring of blocks: the producer takes them, the consumer gives them back. */
struct workload_ring {
    struct subject_block blocks[WORKLOAD_HAND_BUFFERS];
    void *stream;
    unsigned pairs;
    bool allocates; /* false: the ring alone, which is what it costs by itself */
    unsigned produced __attribute__((aligned(128)));
    unsigned consumed __attribute__((aligned(128)));
    unsigned rounds_begun
        __attribute__((aligned(128))); /* by the producer; the consumer lives through all rounds */
};

static void *workload_consumer_main(void *argument) {
    struct workload_ring *ring = (struct workload_ring *)argument;
    unsigned spins = 0, total = ring->pairs * (WORKLOAD_HAND_ROUNDS + 1);
    for (unsigned i = 0; i < total; i++) {
        while (__atomic_load_n(&ring->produced, __ATOMIC_ACQUIRE) == i)
            workload_relax(&spins);
        if (ring->allocates)
            subject_give(&ring->blocks[i % WORKLOAD_HAND_BUFFERS], ring->stream);
        __atomic_store_n(&ring->consumed, i + 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

/* Nanoseconds of a pair, the median of rounds; a first round warms up. */
static inline double workload_hand_over(const struct workload *work, void *stream, bool allocates) {
    struct workload_ring *ring = (struct workload_ring *)aligned_alloc(128, (sizeof *ring + 127) / 128 * 128);
    double ns[WORKLOAD_HAND_ROUNDS];
    unsigned spins = 0, i = 0;
    pthread_t consumer;

    if (ring == NULL)
        abort();
    memset((void *)ring, 0, sizeof *ring);
    ring->stream = stream;
    ring->pairs = work->hand_pairs;
    ring->allocates = allocates;
    if (pthread_create(&consumer, NULL, workload_consumer_main, ring) != 0)
        abort();
    for (unsigned round = 0; round <= WORKLOAD_HAND_ROUNDS; round++) {
        if (round == 1 && allocates)
            workload_mark(work, "hand_over begins");
        uint64_t start = clock_now_ns();
        for (unsigned end = i + ring->pairs; i < end; i++) {
            while (i - __atomic_load_n(&ring->consumed, __ATOMIC_ACQUIRE) >= WORKLOAD_HAND_BUFFERS)
                workload_relax(&spins);
            if (allocates)
                subject_take(&ring->blocks[i % WORKLOAD_HAND_BUFFERS], WORKLOAD_HAND_BYTES, stream);
            __atomic_store_n(&ring->produced, i + 1, __ATOMIC_RELEASE);
        }
        while (__atomic_load_n(&ring->consumed, __ATOMIC_ACQUIRE) != i)
            workload_relax(&spins);
        if (round > 0)
            ns[round - 1] = (double)(clock_now_ns() - start) / ring->pairs;
    }
    if (allocates)
        workload_mark(work, "hand_over ends");
    pthread_join(consumer, NULL);
    subject_settle(stream);
    free(ring);
    return workload_median(ns, WORKLOAD_HAND_ROUNDS);
}

/* --- all of it
 * ---------------------------------------------------------------------------------------------------- */

static inline void workload_run(const struct workload *work) {
    void *stream = subject_stream_new();

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
    fflush(stdout);
}

#endif
