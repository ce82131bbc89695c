/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pipeline [--gpu cuda|sim] [--batches N] [--batch-kib N] [--streams N] [--rounds N] [--compute PERCENT]
 *          [--json FILE]
 *
 * The classic pipeline, copy in, compute, copy out, over many batches, in three ways: on one stream from and
 * to pageable memory, as a program does that knows nothing of pinned memory; on one stream with pinned memory
 * from the pool, which the GPU copies at its full speed; and on several streams, on which the copies of some
 * batches go on while others are computed. How long each takes is compared with the first, and with the
 * slowest of the three steps by itself, which overlapping cannot beat but by what kernels gain that follow
 * each other on several streams. --json writes the times of all steps, as the streams came to them, for
 * tests/bench/pages/timeline.py to draw.
 *
 * The compute step is made as long as --compute says, in percent of the longer copy: where one of the steps
 * is much longer than the others there is little to overlap. 120 unless told otherwise: copies in both
 * directions slow each other a little where they go on at the same time, and so do not hold up the rest.
 *
 * With --gpu, or without GPUPOOL_SOCKET, it starts a daemon of its own, and has it simulate a GPU where there
 * is none. It exits with 0 when all results were right.
 */
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <gpupool/gpupool.h>

#include "pipeline.h"

#define POOLS_MAX   64u
#define SKIPPED     77 /* the exit status that says: not here */
#define BATCHES_MAX 4096u
#define KIB         UINT64_C(1024)

int fail(const char *format, ...) {
    va_list arguments;
    fflush(stdout);
    fprintf(stderr, "pipeline: ");
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return -1;
}

int fail_gpupool(const char *what) {
    return fail("%s: %s", what, gpupool_error_text());
}

uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* --- the daemon and its GPU --- */

static int open_daemon(const char *gpu, struct gpupool_client **ret_client) {
    const char *automatic[] = {"--log-level", "error", NULL};
    const char *wanted[] = {"--log-level", "error", "--gpu", gpu, NULL};
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;

    if (gpu != NULL || getenv("GPUPOOL_SOCKET") == NULL) {
        options.socket = "private";
        options.daemon_arguments = gpu != NULL ? wanted : automatic;
    }
    return gpupool_open(&options, ret_client) < 0 ? fail_gpupool("connecting") : 0;
}

static int find_device(struct gpupool_client *client, char name[64]) {
    struct gpupool_pool pools[POOLS_MAX];
    size_t count;

    if (gpupool_pools(client, pools, POOLS_MAX, &count) < 0)
        return fail_gpupool("listing the pools");
    for (size_t i = 0; i < count && i < POOLS_MAX; i++)
        if (pools[i].kind == GPUPOOL_POOL_DEVICE && pools[i].device == 0) {
            memcpy(name, pools[i].name, 64);
            return 0;
        }
    return fail("the daemon has no device pool, or its GPU is not visible here (CUDA_VISIBLE_DEVICES?)");
}

/* How the steps are done on what the daemon has; NULL: this program was built without that. */
static const struct gpu_steps *choose_steps(struct gpupool_client *client) {
    if (gpupool_gpu_kind(client) == GPUPOOL_GPU_SIM)
        return &steps_on_cpu;
#ifdef PIPELINE_CUDA
    return &steps_on_cuda;
#else
    return NULL;
#endif
}

static int start(const char *gpu, struct gpupool_client **ret_client, char name[64]) {
    if (open_daemon(gpu, ret_client) < 0)
        return -1;
    if (gpupool_gpu_kind(*ret_client) == GPUPOOL_GPU_NONE && gpu == NULL &&
        getenv("GPUPOOL_SOCKET") == NULL) {
        gpupool_close(*ret_client);
        *ret_client = NULL;
        if (open_daemon("sim", ret_client) < 0)
            return -1;
    }
    if (find_device(*ret_client, name) < 0)
        return -1;
    if (gpupool_gpu_kind(*ret_client) == GPUPOOL_GPU_SIM)
        printf(
            "pipeline: on a SIMULATED GPU: the CPU copies and computes; times show that it works, no more\n");
    else
        printf("pipeline: on a real GPU: %s\n", name);
    return 0;
}

/* --- what is measured --- */

static int compare_ns(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

/* All of them in turns, so that what else goes on in the machine meets them alike. The first turn is not
 * counted: it maps memory and lets the pools grow. */
static int measure(struct pipeline *pipeline, struct way *ways, unsigned count, unsigned rounds) {
    for (unsigned round = 0; round <= rounds; round++)
        for (unsigned i = 0; i < count; i++) {
            uint64_t ns;
            if (pipeline_run(pipeline, &ways[i], &ns) < 0)
                return -1;
            if (round > 0)
                ways[i].ns[round - 1] = ns;
        }
    for (unsigned i = 0; i < count; i++) {
        qsort(ways[i].ns, rounds, sizeof *ways[i].ns, compare_ns);
        ways[i].median_ns = ways[i].ns[rounds / 2];
    }
    return 0;
}

enum {
    IN,
    COMPUTE,
    OUT,
    IN_AND_OUT,
    PAGEABLE,
    POOL,
    OVERLAPPED,
    WAYS
};

static int measure_and_report(struct pipeline *pipeline, struct report *report, const char *path) {
    const unsigned streams = report->plan.streams;
    char overlapped[48], both[48];
    struct way ways[WAYS] = {
        [IN] = {"copy in", MEMORY_POOL, 1, STEP_BIT(STEP_IN)},
        [COMPUTE] = {"compute", MEMORY_POOL, 1, STEP_BIT(STEP_COMPUTE)},
        [OUT] = {"copy out", MEMORY_POOL, 1, STEP_BIT(STEP_OUT)},
        [IN_AND_OUT] = {both, MEMORY_POOL, streams, STEP_BIT(STEP_IN) | STEP_BIT(STEP_OUT)},
        [PAGEABLE] = {"1 stream, pageable memory", MEMORY_PAGEABLE, 1, STEP_ALL},
        [POOL] = {"1 stream, pool memory", MEMORY_POOL, 1, STEP_ALL},
        [OVERLAPPED] = {overlapped, MEMORY_POOL, streams, STEP_ALL},
    };
    int r = 0;

    snprintf(both, sizeof both, "copy in and copy out, %u streams", streams);
    snprintf(overlapped, sizeof overlapped, "%u streams, pool memory", streams);
    if (pipeline_calibrate(pipeline, &report->loops) < 0 ||
        measure(pipeline, ways, WAYS, report->plan.rounds) < 0)
        return -1;
    report->alone = ways;
    report->n_alone = PAGEABLE;
    report->ways = ways + PAGEABLE;
    report->n_ways = WAYS - PAGEABLE;
    for (unsigned i = IN; i <= OUT; i++)
        if (ways[i].median_ns > report->limit_ns)
            report->limit_ns = ways[i].median_ns;
    for (unsigned i = PAGEABLE; i < WAYS && r == 0 && path != NULL; i++)
        r = pipeline_trace(pipeline, &ways[i]);
    if (r == 0)
        report_print(report);
    if (r == 0 && path != NULL)
        r = report_write(report, path);
    for (unsigned i = 0; i < WAYS; i++)
        free(ways[i].spans);
    return r;
}

/* --- the program --- */

static int usage(FILE *file, int status) {
    fprintf(file,
            "usage: pipeline [--gpu cuda|sim] [--batches N] [--batch-kib N] [--streams N] [--rounds N]\n"
            "                [--compute PERCENT] [--json FILE]\n"
            "Copies batches in, computes on them and copies them out: on one stream and on several, with\n"
            "pageable memory and with memory from the pools. $GPUPOOL_DAEMON names the daemon's program.\n");
    return status;
}

/* A whole number from 1 to a limit. */
static bool parse_number(const char *text, unsigned limit, unsigned *ret_number) {
    char *end;
    unsigned long number = strtoul(text, &end, 10);

    if (*text < '0' || *text > '9' || *end != '\0' || number < 1 || number > limit)
        return false;
    *ret_number = (unsigned)number;
    return true;
}

static bool parse(int argc, char **argv, struct plan *plan, const char **ret_gpu, const char **ret_path) {
    static const struct option options[] = {{"gpu", required_argument, NULL, 'g'},
                                            {"batches", required_argument, NULL, 'b'},
                                            {"batch-kib", required_argument, NULL, 'k'},
                                            {"streams", required_argument, NULL, 's'},
                                            {"rounds", required_argument, NULL, 'r'},
                                            {"compute", required_argument, NULL, 'c'},
                                            {"json", required_argument, NULL, 'j'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    unsigned kib;
    int option;

    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        bool good = true;
        if (option == 'h')
            exit(usage(stdout, EXIT_SUCCESS));
        else if (option == 'g')
            *ret_gpu = optarg;
        else if (option == 'j')
            *ret_path = optarg;
        else if (option == 'b')
            good = parse_number(optarg, BATCHES_MAX, &plan->batches);
        else if (option == 'k' && (good = parse_number(optarg, 1u << 20, &kib)))
            plan->batch_bytes = kib * KIB;
        else if (option == 's')
            good = parse_number(optarg, PIPELINE_STREAMS_MAX, &plan->streams);
        else if (option == 'r')
            good = parse_number(optarg, PIPELINE_ROUNDS_MAX, &plan->rounds);
        else if (option == 'c')
            good = parse_number(optarg, 10000, &plan->compute_percent);
        else if (option == '?')
            good = false;
        if (!good)
            return false;
    }
    return optind == argc;
}

int main(int argc, char **argv) {
    struct plan plan = {.streams = 4, .rounds = 5, .compute_percent = 120};
    struct gpupool_client *client = NULL;
    struct pipeline *pipeline = NULL;
    struct report report = {0};
    const char *gpu = NULL, *path = NULL;
    char name[64];

    if (!parse(argc, argv, &plan, &gpu, &path))
        return usage(stderr, EXIT_FAILURE);
    int r = start(gpu, &client, name);
    const struct gpu_steps *steps = r == 0 ? choose_steps(client) : NULL;
    if (r == 0 && steps == NULL) {
        fail("built without nvcc: it knows the simulated GPU only");
        gpupool_close(client);
        return SKIPPED;
    }
    if (r == 0) {
        /* Large enough that starting a step is of no account; on the CPU, that it does not take long. */
        bool simulated = steps == &steps_on_cpu;
        plan.batches = plan.batches > 0 ? plan.batches : simulated ? 16 : 64;
        plan.batch_bytes = plan.batch_bytes > 0 ? plan.batch_bytes : (simulated ? 1 : 32) * KIB * KIB;
        report = (struct report){.gpu = steps->name, .device = name, .plan = plan};
        r = pipeline_new(client, steps, &plan, &pipeline);
    }
    if (r == 0)
        r = measure_and_report(pipeline, &report, path);
    pipeline_free(pipeline);
    gpupool_close(client);
    if (r == 0 && (fflush(stdout) != 0 || ferror(stdout)))
        r = fail("the output could not be written");
    return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
