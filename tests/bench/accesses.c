/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of an access to a pair or a synchronised array once it is warm: accessed again and again, with
 * sizes that vary up to a bound that was reached before. The program measures nanoseconds of an access, and
 * counts allocations (calls of malloc() and its like by the accessing thread). A caller that looks at the
 * daemon between the marks counts the questions to it. Both counts should be 0.
 *
 *     accesses [--figure-ms N] [--bound BYTES] [--marks] [--calibration-ns NS]
 *
 * The daemon is the one that GPUPOOL_SOCKET names; exit status 77: it serves no GPU. One JSON object a line
 * is printed, as workload.h does.
 */
#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gpupool/pair.h>
#include <gpupool/synced.h>

#include "base/clock.h"
#include "tests/bench/calibration.h"

#define CANNOT_RUN  77
#define SIZES       4096u
#define BATCHES     5u  /* at least */
#define GRAIN_BYTES 64u /* by which an array becomes smaller from access to access */

static struct gpupool_client *client;
static void *stream;
static uint64_t bound_bytes = UINT64_C(64) << 20, figure_ns = 200 * NS_PER_MS;
static uint64_t sizes[SIZES];
static struct gpupool_pair pair;
static struct gpupool_synced *array;
static bool marks;
static struct calibration calibration;

/* --- calls of malloc() by this thread --- */

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

/* Found by the library in place of the C library's. */
#pragma GCC visibility push(default)
void *malloc(size_t size);
void *calloc(size_t count, size_t size);
void *realloc(void *memory, size_t size);
void *aligned_alloc(size_t alignment, size_t size);
#pragma GCC visibility pop

static _Thread_local uint64_t allocations;

void *malloc(size_t size) {
    allocations++;
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
    allocations++;
    return __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size) {
    allocations++;
    return __libc_realloc(memory, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
    allocations++;
    return __libc_memalign(alignment, size);
}

/* --- accesses --- */

static void need(int result, const char *what) {
    if (__builtin_expect(result >= 0, 1))
        return;
    fprintf(stderr, "accesses: %s: %s\n", what, gpupool_error_text());
    exit(1);
}

/* The loops add their results here, so that the compiler does not leave them out. */
static inline void keep(void *memory) {
    __asm__ volatile("" : : "r"(memory) : "memory");
}

/* The whole array, good on both sides, and nothing under way. */
static void array_in_step(void) {
    void *memory;

    need(gpupool_synced_resize(array, bound_bytes), "resize");
    need(gpupool_synced_host(array, GPUPOOL_OVERWRITE, &memory, stream), "overwrite on the host");
    need(gpupool_synced_push(array, stream), "push");
    need(gpupool_synced_device(array, GPUPOOL_READ, &memory, stream), "read on the device");
    need(gpupool_stream_synchronize(client, 0, stream), "synchronize");
}

static void pair_host(uint64_t i) {
    void *memory;
    need(gpupool_pair_host(&pair, sizes[i], &memory, stream), "a pair's host side");
    keep(memory);
}

static void pair_device(uint64_t i) {
    void *memory;
    need(gpupool_pair_device(&pair, sizes[i], &memory, stream), "a pair's device side");
    keep(memory);
}

static void read_host(uint64_t i) {
    void *memory;
    (void)i;
    need(gpupool_synced_host(array, GPUPOOL_READ, &memory, stream), "read on the host");
    keep(memory);
}

static void read_device(uint64_t i) {
    void *memory;
    (void)i;
    need(gpupool_synced_device(array, GPUPOOL_READ, &memory, stream), "read on the device");
    keep(memory);
}

static void overwrite_host(uint64_t i) {
    void *memory;
    need(gpupool_synced_resize(array, sizes[i]), "resize");
    need(gpupool_synced_host(array, GPUPOOL_OVERWRITE, &memory, stream), "overwrite on the host");
    keep(memory);
}

static void overwrite_device(uint64_t i) {
    void *memory;
    need(gpupool_synced_resize(array, sizes[i]), "resize");
    need(gpupool_synced_device(array, GPUPOOL_OVERWRITE, &memory, stream), "overwrite on the device");
    keep(memory);
}

/* A smaller array stays in step. */
static void shrink_read_host(uint64_t i) {
    need(gpupool_synced_resize(array, bound_bytes - i * GRAIN_BYTES), "resize");
    read_host(i);
}

static void shrink_read_device(uint64_t i) {
    need(gpupool_synced_resize(array, bound_bytes - i * GRAIN_BYTES), "resize");
    read_device(i);
}

static const struct kind {
    const char *subject, *access;
    void (*prepare)(void); /* before each batch */
    void (*access_one)(uint64_t i);
} kinds[] = {
    {"pair", "host", NULL, pair_host},
    {"pair", "device", NULL, pair_device},
    {"array", "read on the host, in step", array_in_step, read_host},
    {"array", "read on the device, in step", array_in_step, read_device},
    {"array", "resize and overwrite on the host", NULL, overwrite_host},
    {"array", "resize and overwrite on the device", NULL, overwrite_device},
    {"array", "resize and read on the host, in step", array_in_step, shrink_read_host},
    {"array", "resize and read on the device, in step", array_in_step, shrink_read_device},
};

/* --- measuring --- */

static void mark(const char *what) {
    if (!marks)
        return;
    printf("{\"mark\": \"%s\"}\n", what);
    fflush(stdout);
    for (int byte; (byte = getchar()) != '\n' && byte != EOF;)
        continue;
}

/* Nanoseconds an access of a batch, each of the sizes once. */
static inline __attribute__((always_inline)) double batch(void (*access_one)(uint64_t)) {
    uint64_t start = clock_now_ns();
    for (uint64_t i = 0; i < SIZES; i++)
        access_one(i);
    return (double)(clock_now_ns() - start) / SIZES;
}

/* No call of a function that the compiler does not know is part of a figure: each body stands in a loop of
 * its own. */
static double batch_of(const struct kind *kind) {
#define BATCH_OF(function)                                                                                   \
    if (kind->access_one == (function))                                                                      \
        return batch(function);
    BATCH_OF(pair_host)
    BATCH_OF(pair_device)
    BATCH_OF(read_host)
    BATCH_OF(read_device)
    BATCH_OF(overwrite_host)
    BATCH_OF(overwrite_device)
    BATCH_OF(shrink_read_host)
    BATCH_OF(shrink_read_device)
#undef BATCH_OF
    abort();
}

static uint64_t allocated; /* by the accesses of a figure */

static double sample(void *context) {
    const struct kind *kind = context;

    if (kind->prepare != NULL)
        kind->prepare();
    uint64_t before = allocations;
    double ns = batch_of(kind);
    allocated += allocations - before;
    return ns;
}

static void measure(const struct kind *kind) {
    /* Both sides see all sizes, and what that frees has found its place. */
    for (unsigned warm = 0; warm < 3; warm++)
        sample((void *)(uintptr_t)kind);
    need(gpupool_stream_synchronize(client, 0, stream), "synchronize");
    allocated = 0;
    mark("accesses begin");
    struct figure figure = figure_take(&calibration, figure_ns, BATCHES, sample, (void *)(uintptr_t)kind);
    mark("accesses end");
    printf("{\"case\": \"access\", \"subject\": \"%s\", \"parameters\": {\"access\": \"%s\", "
           "\"bound_bytes\": %llu}, "
           "\"values\": {\"ns\": %.2f, \"raw_ns\": %.2f, \"samples\": %u, \"slow_samples\": %u, "
           "\"allocations\": %llu}}\n",
           kind->subject, kind->access, (unsigned long long)bound_bytes, figure.ns, figure.raw_ns,
           figure.samples, figure.slow, (unsigned long long)allocated);
    fflush(stdout);
}

static void make_sizes(void) {
    uint64_t state = UINT64_C(2463534242);

    for (unsigned i = 0; i < SIZES; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        sizes[i] = 1 + state % bound_bytes;
    }
    sizes[0] = bound_bytes;
}

static void parse(int argc, char **argv) {
    enum {
        FIGURE = 'f',
        BOUND = 'b',
        MARKS = 'm',
        CALIBRATION = 'c'
    };
    static const struct option options[] = {
        {"figure-ms", required_argument, NULL, FIGURE},
        {"bound", required_argument, NULL, BOUND},
        {"marks", no_argument, NULL, MARKS},
        {"calibration-ns", required_argument, NULL, CALIBRATION},
        {NULL, 0, NULL, 0},
    };

    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;)
        switch (option) {
        case FIGURE:
            figure_ns = strtoull(optarg, NULL, 10) * NS_PER_MS;
            break;
        case BOUND:
            bound_bytes = strtoull(optarg, NULL, 10);
            break;
        case MARKS:
            marks = true;
            break;
        case CALIBRATION:
            calibration.best_ns = strtod(optarg, NULL);
            break;
        default:
            exit(2);
        }
    if (bound_bytes < (uint64_t)2 * SIZES * GRAIN_BYTES) {
        fprintf(stderr, "accesses: the bound has to be %u bytes at least\n", 2 * SIZES * GRAIN_BYTES);
        exit(2);
    }
}

int main(int argc, char **argv) {
    parse(argc, argv);
    make_sizes();
    need(gpupool_open(NULL, &client), "open");
    if (allocations == 0) {
        fputs("accesses: the library allocates, and that is not seen\n", stderr);
        return 1;
    }
    if (gpupool_gpu_kind(client) == GPUPOOL_GPU_NONE) {
        fputs("accesses: the daemon serves no GPU\n", stderr);
        return CANNOT_RUN;
    }
    need(gpupool_stream_create(client, 0, &stream), "a stream");
    need(gpupool_pair_init(&pair, client, 0, 0), "a pair");
    need(gpupool_synced_create(client, 0, bound_bytes, &array), "an array");
    calibration_scan(&calibration);
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++)
        measure(&kinds[i]);
    printf("{\"calibration\": \"C\", \"best_ns\": %.0f}\n", calibration.best_ns);
    need(gpupool_synced_destroy(array, stream), "destroying the array");
    need(gpupool_pair_clear(&pair, stream), "clearing the pair");
    need(gpupool_stream_destroy(client, 0, stream), "destroying the stream");
    gpupool_close(client);
    return 0;
}
