/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host pools of either kind on a real GPU: export = memfd, which a client registers, and export = vmm, which
 * the driver made. Contents go to the device and back, by copies that are asynchronous, as with all pinned
 * memory. A second thread launches work meanwhile. The program prints how fast copies are, how long a client
 * takes to open a segment, and the longest launch beside that.
 *
 *     host_pools     exit status 0: all contents came back; 1: not so; 77: no GPU
 *
 * The daemon is $GPUPOOL_DAEMON. A copy that waits for its stream would wait for ever: then the program is
 * killed after a minute.
 */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <gpupool/gpupool.h>

#include "base/clock.h"
#include "base/units.h"
#include "tests/device_export.h"

#define BUFFER_BYTES (256 * MIB)
#define SEGMENTS     4u
#define COPIES       5u
#define LAUNCH_BYTES 4096u
#define LIMIT_S      60u
#define SKIPPED      77

static bool failed;

static void need(bool holds, const char *what) {
    if (!holds) {
        printf("FAILED: %s: %s; CUDA: %s\n", what, gpupool_error_text(),
               cudaGetErrorString(cudaPeekAtLastError()));
        exit(1);
    }
}

static void need_cuda(cudaError_t error, const char *what) {
    need(error == cudaSuccess, what);
}

static void check(bool holds, const char *export_as, const char *what) {
    printf("%s: %s: %s\n", holds ? "ok" : "FAILED", export_as, what);
    failed |= !holds;
}

/* --- launches of another thread --- */

static struct {
    pthread_t thread;
    _Atomic bool ends;
    _Atomic uint64_t worst_ns; /* since it was set to 0 */
} launches;

static void *launch_on(void *argument) {
    cudaStream_t stream;
    void *memory;

    (void)argument;
    need_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    need_cuda(cudaMalloc(&memory, LAUNCH_BYTES), "device memory");
    for (unsigned n = 1; !launches.ends; n++) {
        uint64_t start_ns = clock_now_ns();
        need_cuda(cudaMemsetAsync(memory, 1, LAUNCH_BYTES, stream), "a launch");
        uint64_t took_ns = clock_now_ns() - start_ns;
        if (took_ns > launches.worst_ns)
            launches.worst_ns = took_ns;
        if (n % 64 == 0)
            need_cuda(cudaStreamSynchronize(stream), "launches");
    }
    need_cuda(cudaStreamSynchronize(stream), "launches");
    need_cuda(cudaFree(memory), "cudaFree");
    need_cuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
    return NULL;
}

/* --- one kind of pool --- */

static struct gpupool_client *open_client(const char *export_as) {
    char config[] = "/tmp/gpupool-host-pools-XXXXXX", text[160];
    const char *const arguments[] = {"--gpu", "cuda", "--config", config, "--log-level", "warning", NULL};
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;

    /* Each buffer gets a segment of its own. */
    snprintf(text, sizeof text, "[host]\nexport = %s\nlimit = 2GiB\nstep = 256MiB\nlow_water = 0\n",
             export_as);
    need(device_export_write_config(config, text), "a configuration file");
    options.socket = "private";
    options.daemon_arguments = arguments;
    options.flags = GPUPOOL_OPEN_NO_CACHE;
    int r = gpupool_open(&options, &client);
    unlink(config);
    need(r == 0, "starting a daemon");
    return client;
}

static void acquire_all(struct gpupool_client *client, const char *export_as,
                        struct gpupool_buffer buffers[SEGMENTS]) {
    uint32_t pool;

    need(gpupool_host_pool(client, -1, &pool) == 0, "the host pool");
    for (unsigned i = 0; i < SEGMENTS; i++) {
        launches.worst_ns = 0;
        uint64_t start_ns = clock_now_ns();
        need(gpupool_acquire(client, pool, BUFFER_BYTES, GPUPOOL_NO_STREAM, GPUPOOL_FOREVER, 0,
                             &buffers[i]) == 0,
             "acquire");
        printf("%s: a new segment of 256 MiB: %.1f ms until it could be used; longest launch beside it %.3f "
               "ms\n",
               export_as, (double)(clock_now_ns() - start_ns) / 1e6, (double)launches.worst_ns / 1e6);
    }
}

static void wait_for_flag(void *flag) {
    while (!atomic_load((_Atomic bool *)flag))
        usleep(100);
}

static void fill(uint64_t *words, uint64_t seed) {
    for (uint64_t i = 0; i < BUFFER_BYTES / 8; i++)
        words[i] = seed + i;
}

static bool holds(const uint64_t *words, uint64_t seed) {
    for (uint64_t i = 0; i < BUFFER_BYTES / 8; i++)
        if (words[i] != seed + i)
            return false;
    return true;
}

/* Through the device from one buffer into the other, behind work that ends only after all was enqueued. */
static void check_contents(const char *export_as, struct gpupool_buffer *from, struct gpupool_buffer *to,
                           void *device, cudaStream_t stream) {
    static _Atomic bool go;

    go = false;
    fill(from->data, 7);
    memset(to->data, 0, BUFFER_BYTES);
    need_cuda(cudaLaunchHostFunc(stream, wait_for_flag, &go), "cudaLaunchHostFunc");
    need_cuda(cudaMemcpyAsync(device, from->data, BUFFER_BYTES, cudaMemcpyHostToDevice, stream),
              "to the device");
    need_cuda(cudaMemcpyAsync(to->data, device, BUFFER_BYTES, cudaMemcpyDeviceToHost, stream), "to the host");
    check(cudaStreamQuery(stream) == cudaErrorNotReady && *(uint64_t *)to->data == 0, export_as,
          "copies wait on the stream, not in the call");
    atomic_store(&go, true);
    need_cuda(cudaStreamSynchronize(stream), "the copies");
    check(holds(to->data, 7), export_as, "contents come back from the device");
    need_cuda(cudaMemsetAsync(to->data, 0x11, BUFFER_BYTES, stream), "a set by the device");
    need_cuda(cudaStreamSynchronize(stream), "a set by the device");
    check(((unsigned char *)to->data)[BUFFER_BYTES - 1] == 0x11, export_as, "the device writes it itself");
}

static double copy_rate(void *to, const void *from, enum cudaMemcpyKind kind, cudaStream_t stream) {
    uint64_t best_ns = NS_FOREVER;

    for (unsigned i = 0; i < COPIES; i++) {
        uint64_t start_ns = clock_now_ns();
        need_cuda(cudaMemcpyAsync(to, from, BUFFER_BYTES, kind, stream), "a copy");
        need_cuda(cudaStreamSynchronize(stream), "a copy");
        uint64_t took_ns = clock_now_ns() - start_ns;
        best_ns = took_ns < best_ns ? took_ns : best_ns;
    }
    return (double)BUFFER_BYTES / (double)best_ns;
}

static void try_pool(const char *export_as) {
    struct gpupool_buffer buffers[SEGMENTS];
    struct gpupool_client *client = open_client(export_as);
    cudaStream_t stream;
    void *device;

    launches.ends = false;
    need_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    need_cuda(cudaMalloc(&device, BUFFER_BYTES), "device memory");
    need(pthread_create(&launches.thread, NULL, launch_on, NULL) == 0, "a thread");
    acquire_all(client, export_as, buffers);
    launches.ends = true;
    pthread_join(launches.thread, NULL);

    check_contents(export_as, &buffers[0], &buffers[1], device, stream);
    printf("%s: copies of 256 MiB: to the device %.1f GB/s, to the host %.1f GB/s\n", export_as,
           copy_rate(device, buffers[0].data, cudaMemcpyHostToDevice, stream),
           copy_rate(buffers[0].data, device, cudaMemcpyDeviceToHost, stream));
    for (unsigned i = 0; i < SEGMENTS; i++)
        need(gpupool_release(client, &buffers[i], GPUPOOL_NO_STREAM) == 0, "release");
    uint64_t start_ns = clock_now_ns();
    gpupool_close(client);
    printf("%s: closing the client with %u segments: %.1f ms\n", export_as, SEGMENTS,
           (double)(clock_now_ns() - start_ns) / 1e6);
    need_cuda(cudaFree(device), "cudaFree");
    need_cuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

int main(void) {
    int count = 0;

    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        puts("no GPU here");
        return SKIPPED;
    }
    alarm(LIMIT_S);
    need_cuda(cudaSetDevice(0), "cudaSetDevice");
    need_cuda(cudaFree(NULL), "the context of device 0");
    try_pool("memfd");
    try_pool("vmm");
    return failed ? 1 : 0;
}
