/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The time that a worker which starts anew waits for its memory: pinned host memory and device memory, ready
 * for copies, out of pools that other workers have made grow already, and, where the build knows CUDA and the
 * daemon serves it, the same sizes by cudaMallocHost and cudaMalloc in a fresh process. Times are taken from
 * before the process is started.
 *
 *     restart [--json FILE] [--host SIZE] [--device SIZE] [--rounds N]      default: 4GiB, 16GiB, 5
 *
 * Connects to the daemon that GPUPOOL_SOCKET names; its pools must have room for the sizes, and keep what
 * they grew by.
 */
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef BENCH_CUDA
#include <cuda_runtime_api.h>
#endif

#include <gpupool/gpupool.h>

#include "base/clock.h"
#include "base/units.h"
#include "tests/bench/statistics.h"

#define COPY_BYTES (64 * MIB)

extern char **environ;

/* The steps of a worker, in order; each time is that of the step alone. */
enum step {
    START,
    CONTEXT, /* the process's, made before it connects, as a program that loads a model has one */
    CONNECT, /* gpupool_open() */
    POOL,    /* the first gpupool_device_pool() */
    STREAM,
    HOST,
    DEVICE,
    SHARE, /* the first gpupool_share(), of the device buffer */
    COPY,
    STEPS
};
static const char *const step_names[STEPS] = {"start", "context", "connect", "pool",      "stream",
                                              "host",  "device",  "share",   "first_copy"};

static uint64_t last_ns;

static void step_done(uint64_t times_ns[STEPS], enum step step) {
    uint64_t now_ns = clock_now_ns();
    times_ns[step] = now_ns - last_ns;
    last_ns = now_ns;
}

static void fail(const char *what) {
    fprintf(stderr, "restart: %s: %s\n", what, gpupool_error_text());
    exit(1);
}

/* --- the workers, in processes of their own --- */

/* On a simulated GPU there is none to make. */
static void make_context(void) {
#ifdef BENCH_CUDA
    (void)cudaFree(NULL);
#endif
}

static void worker_of_the_pools(uint64_t host_bytes, uint64_t device_bytes, uint64_t times_ns[STEPS]) {
    struct gpupool_client *client;
    struct gpupool_buffer host, on_device;
    struct gpupool_token token;
    uint32_t host_pool = 0, device_pool = 0;
    void *stream = NULL;

    if (device_bytes > 0)
        make_context();
    step_done(times_ns, CONTEXT);
    if (gpupool_open(NULL, &client) < 0)
        fail("open");
    step_done(times_ns, CONNECT);
    if (device_bytes > 0) {
        if (gpupool_device_pool(client, 0, &device_pool) < 0)
            fail("device pool");
        step_done(times_ns, POOL);
        if (gpupool_stream_create(client, 0, &stream) < 0)
            fail("stream");
        step_done(times_ns, STREAM);
    }
    if (gpupool_host_pool(client, -1, &host_pool) < 0)
        fail("host pool");
    if (gpupool_acquire(client, host_pool, host_bytes, stream, GPUPOOL_FOREVER, 0, &host) < 0)
        fail("acquire host memory");
    step_done(times_ns, HOST);
    if (device_bytes > 0) {
        if (gpupool_acquire(client, device_pool, device_bytes, stream, GPUPOOL_FOREVER, 0, &on_device) < 0)
            fail("acquire device memory");
        step_done(times_ns, DEVICE);
        if (gpupool_share(client, &on_device, stream, &token) < 0)
            fail("share");
        step_done(times_ns, SHARE);
        uint64_t copied = host_bytes < device_bytes ? host_bytes : device_bytes;
        if (gpupool_copy(client, 0, on_device.data, host.data, copied < COPY_BYTES ? copied : COPY_BYTES,
                         stream) < 0 ||
            gpupool_stream_synchronize(client, 0, stream) < 0)
            fail("copy");
        step_done(times_ns, COPY);
        gpupool_release(client, &on_device, stream);
    }
    gpupool_release(client, &host, stream);
    if (stream != NULL) {
        gpupool_trim(client, NULL); /* before its stream goes */
        gpupool_stream_destroy(client, 0, stream);
    }
    gpupool_close(client);
}

#ifdef BENCH_CUDA
static void need(cudaError_t error, const char *what) {
    if (error != cudaSuccess) {
        fprintf(stderr, "restart: %s: %s\n", what, cudaGetErrorString(error));
        exit(1);
    }
}

static void worker_of_its_own(uint64_t host_bytes, uint64_t device_bytes, uint64_t times_ns[STEPS]) {
    void *host, *on_device;
    cudaStream_t stream;
    uint64_t copied = host_bytes < device_bytes ? host_bytes : device_bytes;

    make_context(); /* and there is nothing to connect to */
    step_done(times_ns, CONTEXT);
    need(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    step_done(times_ns, STREAM);
    need(cudaMallocHost(&host, host_bytes), "cudaMallocHost");
    step_done(times_ns, HOST);
    need(cudaMalloc(&on_device, device_bytes), "cudaMalloc");
    step_done(times_ns, DEVICE);
    need(cudaMemcpyAsync(on_device, host, copied < COPY_BYTES ? copied : COPY_BYTES, cudaMemcpyHostToDevice,
                         stream),
         "cudaMemcpyAsync");
    need(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    step_done(times_ns, COPY);
}
#endif

/* Prints the times, in nanoseconds. */
static int worker_main(char **argv) {
    uint64_t times_ns[STEPS] = {0};
    last_ns = strtoull(argv[2], NULL, 10);
    uint64_t host_bytes = strtoull(argv[3], NULL, 10), device_bytes = strtoull(argv[4], NULL, 10);

    step_done(times_ns, START);
    if (strcmp(argv[1], "--worker-pool") == 0)
        worker_of_the_pools(host_bytes, device_bytes, times_ns);
#ifdef BENCH_CUDA
    else
        worker_of_its_own(host_bytes, device_bytes, times_ns);
#endif
    for (unsigned i = 0; i < STEPS; i++)
        printf("%" PRIu64 "\n", times_ns[i]);
    return 0;
}

/* --- the bench --- */

struct side { /* the pools', or the runtime's */
    const char *name, *argument;
    struct samples steps[STEPS], memory, total; /* memory: host and device; total: all but share and copy */
};

static void side_init(struct side *side, const char *name, const char *argument, unsigned rounds) {
    *side = (struct side){.name = name, .argument = argument};
    for (unsigned i = 0; i < STEPS; i++)
        samples_init(&side->steps[i], step_names[i], rounds);
    samples_init(&side->memory, "host_and_device", rounds);
    samples_init(&side->total, "process_start_to_ready", rounds);
}

static void side_run(struct side *side, uint64_t host_bytes, uint64_t device_bytes) {
    char start[32], host[32], device[32], own[] = "/proc/self/exe";
    char *arguments[] = {own, (char *)(uintptr_t)side->argument, start, host, device, NULL};
    uint64_t times_ns[STEPS];
    posix_spawn_file_actions_t actions;
    int out[2], status;
    pid_t pid;

    if (pipe2(out, O_CLOEXEC) < 0)
        exit(1);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    snprintf(host, sizeof host, "%" PRIu64, host_bytes);
    snprintf(device, sizeof device, "%" PRIu64, device_bytes);
    snprintf(start, sizeof start, "%" PRIu64, clock_now_ns());
    if (posix_spawn(&pid, own, &actions, NULL, arguments, environ) != 0)
        exit(1);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    FILE *answer = fdopen(out[0], "r");
    for (unsigned i = 0; i < STEPS; i++)
        if (answer == NULL || fscanf(answer, "%" SCNu64, &times_ns[i]) != 1)
            exit(1); /* the worker has said why */
    fclose(answer);
    if (waitpid(pid, &status, 0) != pid || status != 0)
        exit(1);
    uint64_t total_ns = 0;
    for (unsigned i = 0; i < STEPS; i++) {
        samples_add(&side->steps[i], times_ns[i]);
        total_ns += i == SHARE || i == COPY ? 0 : times_ns[i];
    }
    samples_add(&side->memory, times_ns[HOST] + times_ns[DEVICE]);
    samples_add(&side->total, total_ns);
}

static void side_print(struct side *side, FILE *json, bool last) {
    if (json != NULL)
        fprintf(json, "  \"%s\": {\n", side->name);
    for (unsigned i = 0; i < STEPS + 2; i++) {
        struct samples *samples = i < STEPS ? &side->steps[i] : i == STEPS ? &side->memory : &side->total;
        samples_sort(samples);
        printf("%-10s %-24s %12s %12s\n", side->name, samples->name, NS_TEXT(samples_quantile(samples, 0.5)),
               NS_TEXT(samples_quantile(samples, 1)));
        if (json != NULL)
            samples_print_json(samples, json, i == STEPS + 1);
    }
    if (json != NULL)
        fprintf(json, "  }%s\n", last ? "" : ",");
}

/* Grows the pools, and leaves what they grew by free. Returns whether real GPUs are served. */
static bool grow_pools(uint64_t host_bytes, uint64_t *device_bytes) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;
    struct gpupool_buffer host, on_device;
    uint32_t host_pool = 0, device_pool = 0;

    options.flags = GPUPOOL_OPEN_NO_CACHE;
    if (gpupool_open(&options, &client) < 0 || gpupool_host_pool(client, -1, &host_pool) < 0)
        fail("open");
    enum gpupool_gpu kind = gpupool_gpu_kind(client);
    if (kind == GPUPOOL_GPU_NONE)
        *device_bytes = 0;
    if (gpupool_acquire(client, host_pool, host_bytes, NULL, GPUPOOL_FOREVER, 0, &host) < 0)
        fail("acquire host memory");
    if (*device_bytes > 0 &&
        (gpupool_device_pool(client, 0, &device_pool) < 0 ||
         gpupool_acquire(client, device_pool, *device_bytes, NULL, GPUPOOL_FOREVER, 0, &on_device) < 0 ||
         gpupool_release(client, &on_device, NULL) < 0))
        fail("acquire device memory");
    if (gpupool_release(client, &host, NULL) < 0)
        fail("release");
    gpupool_close(client);
    return kind == GPUPOOL_GPU_CUDA;
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"json", required_argument, NULL, 'j'},
                                            {"host", required_argument, NULL, 'h'},
                                            {"device", required_argument, NULL, 'd'},
                                            {"rounds", required_argument, NULL, 'r'},
                                            {0}};
    const char *json_path = NULL;
    uint64_t host_bytes = 4 * GIB, device_bytes = 16 * GIB;
    unsigned rounds = 5;
    int option;

    if (argc == 5 && strncmp(argv[1], "--worker-", 9) == 0)
        return worker_main(argv);
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'j')
            json_path = optarg;
        else if (option == 'r' && strtoul(optarg, NULL, 10) > 0)
            rounds = (unsigned)strtoul(optarg, NULL, 10);
        else if ((option != 'h' || units_parse_bytes(optarg, &host_bytes) < 0) &&
                 (option != 'd' || units_parse_bytes(optarg, &device_bytes) < 0))
            return 2;
    }

    struct side pools, own;
    bool with_own = grow_pools(host_bytes, &device_bytes);
#ifndef BENCH_CUDA
    with_own = false;
#endif
    side_init(&pools, "pools", "--worker-pool", rounds);
    side_init(&own, "runtime", "--worker-own", rounds);
    for (unsigned i = 0; i < rounds; i++) { /* alternating: what disturbs the one disturbs the other */
        side_run(&pools, host_bytes, device_bytes);
        if (with_own)
            side_run(&own, host_bytes, device_bytes);
    }

    FILE *json = json_path != NULL ? fopen(json_path, "we") : NULL;
    if (json != NULL)
        fprintf(json, "{\n  \"host_bytes\": %" PRIu64 ",\n  \"device_bytes\": %" PRIu64 ",\n", host_bytes,
                device_bytes);
    printf("a worker's start to %s of pinned host memory and %s of device memory\n", BYTES_TEXT(host_bytes),
           BYTES_TEXT(device_bytes));
    printf("%-10s %-24s %12s %12s\n", "", "", "p50", "max");
    side_print(&pools, json, !with_own);
    if (with_own) {
        side_print(&own, json, true);
        printf("pinned host memory: %.4f of cudaMallocHost's time\n",
               (double)samples_quantile(&pools.steps[HOST], 0.5) /
                   (double)samples_quantile(&own.steps[HOST], 0.5));
    }
    if (json != NULL) {
        fprintf(json, "}\n");
        fclose(json);
    }
    return 0;
}
