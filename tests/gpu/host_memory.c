/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory of the pools beside the CUDA runtime's own, in one run and as a user's program sees them: with
 * a runtime of its own (this program's), default streams and cudaMemcpyAsync. Checks that copies reach
 * cudaMallocHost's speed and that gpupool's calls leave the program's current device, pending error and
 * captures alone; exits 1 when they do not.
 *
 *     host_memory [--json FILE]
 */
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gpupool/gpupool.h>
#include <gpupool/pair.h>
#include <gpupool/synced.h>

#include "base/clock.h"
#include "base/units.h"

#define COPY_BYTES (256 * MIB)
#define ROUNDS     30u
#define PIN_BYTES  (1 * GIB)

static bool failed;

static void check(bool holds, const char *what) {
    printf("%s: %s\n", holds ? "ok" : "FAILED", what);
    failed |= !holds;
}

static void need(bool holds, const char *what) {
    if (!holds) {
        printf("FAILED: %s: %s; CUDA: %s\n", what, gpupool_error_text(),
               cudaGetErrorString(cudaPeekAtLastError()));
        exit(1);
    }
}

/* The best of the rounds, in GB/s: what the link gives when nothing disturbs it. */
static double copy_speed(void *to, const void *from, enum cudaMemcpyKind kind, cudaStream_t stream) {
    uint64_t best = UINT64_MAX;
    for (unsigned i = 0; i < ROUNDS; i++) {
        uint64_t start = clock_now_ns();
        need(cudaMemcpyAsync(to, from, COPY_BYTES, kind, stream) == cudaSuccess, "cudaMemcpyAsync");
        need(cudaStreamSynchronize(stream) == cudaSuccess, "cudaStreamSynchronize");
        uint64_t ns = clock_now_ns() - start;
        best = ns < best ? ns : best;
    }
    return (double)COPY_BYTES / (double)best;
}

static void check_that_nothing_is_disturbed(struct gpupool_client *client, uint32_t pool) {
    struct gpupool_buffer buffer;
    int device = -1;

    need(cudaMalloc((void **)&(void *){NULL}, SIZE_MAX / 2) == cudaErrorMemoryAllocation,
         "cudaMalloc of too much is refused");
    check(cudaPeekAtLastError() == cudaErrorMemoryAllocation, "an error of the program's own is pending");
    check(gpupool_acquire(client, pool, UINT64_C(1) << 50, NULL, GPUPOOL_NOW, 0, &buffer) ==
              GPUPOOL_E_TOO_LARGE,
          "a request that is too large is refused");
    need(gpupool_acquire(client, pool, MIB, NULL, GPUPOOL_FOREVER, GPUPOOL_ZERO, &buffer) == 0, "acquire");
    need(gpupool_release(client, &buffer, NULL) == 0, "release");
    check(cudaGetLastError() == cudaErrorMemoryAllocation, "it is still pending after acquire and release");
    check(cudaGetLastError() == cudaSuccess, "and nothing else is");
    check(cudaGetDevice(&device) == cudaSuccess && device == 0, "the current device is what it was");
}

/* A capture in the global mode, in this thread: what the library does meanwhile, on other streams, is none of
 * its business. */
static void check_that_captures_go_on(uint32_t device_pool, uint32_t host_pool, unsigned flags) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;
    struct gpupool_buffer on_device, on_host, own;
    cudaStream_t captured = NULL, other = NULL;
    cudaGraph_t graph = NULL;
    void *memory = NULL;

    options.flags = flags;
    need(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking) == cudaSuccess &&
             cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) == cudaSuccess &&
             cudaMalloc(&memory, MIB) == cudaSuccess,
         "streams and memory");
    need(gpupool_open(&options, &client) == 0, "open");
    need(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal) == cudaSuccess,
         "cudaStreamBeginCapture");
    need(cudaMemsetAsync(memory, 0, MIB, captured) == cudaSuccess, "cudaMemsetAsync");
    /* segments that this client has not opened yet: handles, mappings, registration */
    need(gpupool_acquire(client, device_pool, MIB, other, GPUPOOL_FOREVER, GPUPOOL_ZERO, &on_device) == 0,
         "acquire");
    need(gpupool_acquire(client, host_pool, MIB, other, GPUPOOL_FOREVER, GPUPOOL_ZERO, &on_host) == 0,
         "acquire");
    need(gpupool_copy(client, 0, on_host.data, on_device.data, MIB, other) == 0, "copy");
    check(gpupool_acquire(client, device_pool, MIB, captured, GPUPOOL_FOREVER, GPUPOOL_ZERO, &own) ==
              GPUPOOL_E_CAPTURING,
          "zeroing on the captured stream itself is refused");
    check(gpupool_acquire(client, device_pool, MIB, captured, GPUPOOL_FOREVER, 0, &own) == 0,
          "memory can be had for it");
    check(gpupool_release(client, &on_device, captured) == GPUPOOL_E_CAPTURING && on_device.data != NULL,
          "what would leave a fence in the graph is refused");
    need(gpupool_release(client, &on_host, other) == 0 && gpupool_release(client, &on_device, other) == 0,
         "release");
    int trimmed = gpupool_trim(client, NULL); /* what the cache keeps for the captured stream stays */
    check(trimmed == 0 || trimmed == GPUPOOL_E_CAPTURING, "trim leaves the captured stream alone");
    check(cudaMemsetAsync(memory, 1, MIB, captured) == cudaSuccess &&
              cudaStreamEndCapture(captured, &graph) == cudaSuccess && graph != NULL,
          flags == 0 ? "a capture in this thread is not disturbed" : "nor by a client with a cache");
    if (graph != NULL) {
        size_t nodes = 0;
        check(cudaGraphGetNodes(graph, NULL, &nodes) == cudaSuccess && nodes == 2,
              "and the graph has what the program captured, and nothing else");
        cudaGraphDestroy(graph);
    }
    check(gpupool_release(client, &own, captured) == 0, "its memory goes back when the graph is gone");
    gpupool_close(client);
    cudaFree(memory);
    cudaStreamDestroy(captured);
    cudaStreamDestroy(other);
}

/* Pairs and synchronised arrays beside the capture of a stream that the default stream would wait for: there
 * that stream must not be used, and is what a pair works on that is told of none. */
static void check_that_objects_spoil_no_capture(struct gpupool_client *client) {
    cudaStream_t captured = NULL, other = NULL;
    struct gpupool_synced *array;
    struct gpupool_pair pair;
    cudaGraph_t graph = NULL;
    size_t nodes = 0;
    void *found;

    need(cudaStreamCreate(&captured) == cudaSuccess &&
             cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) == cudaSuccess,
         "streams");
    need(gpupool_pair_init(&pair, client, 0, GPUPOOL_PAIR_ZERO) == 0 &&
             gpupool_pair_host(&pair, MIB, &found, other) == 0 &&
             gpupool_pair_device(&pair, MIB, &found, other) == 0,
         "a pair");
    need(gpupool_synced_create(client, 0, MIB, &array) == 0 &&
             gpupool_synced_host(array, GPUPOOL_WRITE, &found, other) == 0,
         "an array");
    need(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal) == cudaSuccess &&
             cudaMemsetAsync(pair.on_device.data, 1, MIB, captured) == cudaSuccess,
         "a capture");
    check(gpupool_pair_device(&pair, 8 * MIB, &found, GPUPOOL_NO_STREAM) == GPUPOOL_E_CAPTURING &&
              gpupool_pair_copy_to_host(&pair, MIB, GPUPOOL_NO_STREAM) == GPUPOOL_E_CAPTURING,
          "a pair without a stream keeps off the default stream");
    check(gpupool_synced_device(array, GPUPOOL_READ, &found, captured) == GPUPOOL_E_CAPTURING &&
              gpupool_synced_push(array, captured) == GPUPOOL_E_CAPTURING,
          "an array is not copied into the graph");
    check(gpupool_synced_device(array, GPUPOOL_WRITE, &found, other) == 0 &&
              gpupool_synced_host(array, GPUPOOL_READ, &found, other) == 0 &&
              gpupool_pair_device(&pair, 8 * MIB, &found, other) == 0,
          "on another stream both go on");
    check(cudaGetLastError() == cudaSuccess, "and no error is left");
    check(cudaStreamEndCapture(captured, &graph) == cudaSuccess && graph != NULL &&
              cudaGraphGetNodes(graph, NULL, &nodes) == cudaSuccess && nodes == 1,
          "the graph has what the program captured, and nothing else");
    if (graph != NULL)
        cudaGraphDestroy(graph);
    need(gpupool_pair_clear(&pair, other) == 0 && gpupool_synced_destroy(array, other) == 0 &&
             cudaStreamSynchronize(other) == cudaSuccess && gpupool_trim(client, NULL) == 0,
         "the end of both");
    cudaStreamDestroy(captured);
    cudaStreamDestroy(other);
}

int main(int argc, char **argv) {
    const char *json_path = argc == 3 && strcmp(argv[1], "--json") == 0 ? argv[2] : NULL;
    struct gpupool_client *client;
    struct gpupool_buffer host, pinned;
    uint32_t host_pool = 0, device_pool = 0;
    void *runtime_host = NULL, *on_device;
    cudaStream_t stream;

    need(gpupool_open(NULL, &client) == 0, "open");
    need(gpupool_gpu_kind(client) == GPUPOOL_GPU_CUDA, "the daemon serves real GPUs");
    need(gpupool_device_pool(client, 0, &device_pool) == 0 && gpupool_host_pool(client, -1, &host_pool) == 0,
         "pools");
    check_that_nothing_is_disturbed(client, device_pool);
    check_that_nothing_is_disturbed(client, host_pool);
    check_that_captures_go_on(device_pool, host_pool, 0);
    check_that_captures_go_on(device_pool, host_pool, GPUPOOL_OPEN_NO_CACHE);
    check_that_objects_spoil_no_capture(client);

    need(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess,
         "cudaStreamCreateWithFlags");
    need(cudaMalloc(&on_device, COPY_BYTES) == cudaSuccess &&
             cudaMallocHost(&runtime_host, COPY_BYTES) == cudaSuccess,
         "the runtime's memory");
    need(gpupool_acquire(client, host_pool, COPY_BYTES, stream, GPUPOOL_FOREVER, 0, &host) == 0,
         "acquire host memory");
    memset(runtime_host, 1, COPY_BYTES);
    memset(host.data, 2, COPY_BYTES);

    double up[2] = {0}, down[2] = {0}; /* the better of two turns each, alternating */
    for (unsigned turn = 0; turn < 2; turn++) {
        double speeds[4] = {
            copy_speed(on_device, runtime_host, cudaMemcpyHostToDevice, stream),
            copy_speed(on_device, host.data, cudaMemcpyHostToDevice, stream),
            copy_speed(runtime_host, on_device, cudaMemcpyDeviceToHost, stream),
            copy_speed(host.data, on_device, cudaMemcpyDeviceToHost, stream),
        };
        up[0] = speeds[0] > up[0] ? speeds[0] : up[0];
        up[1] = speeds[1] > up[1] ? speeds[1] : up[1];
        down[0] = speeds[2] > down[0] ? speeds[2] : down[0];
        down[1] = speeds[3] > down[1] ? speeds[3] : down[1];
    }
    check(memcmp(host.data, runtime_host, COPY_BYTES) == 0, "what came back through both is the same");
    printf("host to device, %s: cudaMallocHost %.2f GB/s, pool %.2f GB/s (%.4f)\n", BYTES_TEXT(COPY_BYTES),
           up[0], up[1], up[1] / up[0]);
    printf("device to host, %s: cudaMallocHost %.2f GB/s, pool %.2f GB/s (%.4f)\n", BYTES_TEXT(COPY_BYTES),
           down[0], down[1], down[1] / down[0]);
    check(up[1] >= 0.97 * up[0] && down[1] >= 0.97 * down[0], "pool memory copies at cudaMallocHost's speed");

    /* A process that wants 1 GiB pinned: of its own, or of the pool's that is there already. */
    uint64_t start = clock_now_ns();
    void *gigabyte;
    need(cudaMallocHost(&gigabyte, PIN_BYTES) == cudaSuccess, "cudaMallocHost");
    uint64_t own_ns = clock_now_ns() - start;
    need(cudaFreeHost(gigabyte) == cudaSuccess, "cudaFreeHost");
    need(gpupool_acquire(client, host_pool, PIN_BYTES, NULL, GPUPOOL_FOREVER, 0, &pinned) == 0,
         "acquire"); /* grows */
    gpupool_release(client, &pinned, NULL);
    struct gpupool_client *restarted;
    need(gpupool_open(NULL, &restarted) == 0, "open again");
    start = clock_now_ns();
    need(gpupool_acquire(restarted, host_pool, PIN_BYTES, NULL, GPUPOOL_FOREVER, 0, &pinned) == 0,
         "acquire again");
    uint64_t pool_ns = clock_now_ns() - start;
    printf("1 GiB pinned for a new client: cudaMallocHost %s, from the pool (map and register) %s\n",
           NS_TEXT(own_ns), NS_TEXT(pool_ns));

    FILE *json = json_path != NULL ? fopen(json_path, "we") : NULL;
    if (json != NULL) {
        fprintf(json,
                "{\"copy_bytes\": %llu, \"host_to_device_gbps\": {\"cudaMallocHost\": %.2f, \"pool\": %.2f}, "
                "\"device_to_host_gbps\": {\"cudaMallocHost\": %.2f, \"pool\": %.2f}, \"pin_1_GiB_ns\": "
                "{\"cudaMallocHost\": %llu, \"pool\": %llu}}\n",
                (unsigned long long)COPY_BYTES, up[0], up[1], down[0], down[1], (unsigned long long)own_ns,
                (unsigned long long)pool_ns);
        fclose(json);
    }
    gpupool_close(restarted);
    gpupool_release(client, &host, stream);
    cudaFree(on_device);
    cudaFreeHost(runtime_host);
    cudaStreamDestroy(stream);
    gpupool_close(client);
    printf("%s\n", failed ? "FAILED" : "all ok");
    return failed;
}
