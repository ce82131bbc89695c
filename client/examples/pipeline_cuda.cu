/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps on a GPU, as a CUDA program writes them: cudaMemcpyAsync, a kernel, events. The streams are those
 * that gpupool_acquire() and gpupool_release() are given.
 */
#include <cuda_runtime.h>

#include <cstdlib>

#include "pipeline.h"

#define THREADS 256

static cudaEvent_t *events;
static size_t n_events;
static int n_blocks; /* as many as the GPU holds at a time, so that kernels of two streams take turns */

static int failed(cudaError_t error, const char *what) {
    if (error == cudaSuccess)
        return 0;
    cudaGetLastError();
    return fail("%s: %s: %s", what, cudaGetErrorName(error), cudaGetErrorString(error));
}

__global__ static void work_on(uint32_t *words, uint64_t count, uint32_t loops) {
    uint64_t stride = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride)
        words[i] = pipeline_work(words[i], loops);
}

static int cuda_open(struct gpupool_client *client, size_t marks) {
    int processors = 0, blocks = 0;

    (void)client;
    cudaError_t error = cudaSetDevice(0);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0);
    if (error == cudaSuccess)
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, work_on, THREADS, 0);
    if (error != cudaSuccess)
        return failed(error, "asking the device");
    n_blocks = processors * (blocks > 0 ? blocks : 1);
    events = (cudaEvent_t *)calloc(marks, sizeof *events);
    if (events == NULL)
        return fail("no memory for %zu marks", marks);
    for (n_events = 0; n_events < marks; n_events++) {
        error = cudaEventCreate(&events[n_events]);
        if (error != cudaSuccess)
            return failed(error, "creating an event");
    }
    return 0;
}

static void cuda_close(void) {
    for (size_t i = 0; i < n_events; i++)
        cudaEventDestroy(events[i]);
    n_events = 0;
    free(events);
    events = NULL;
}

static int cuda_copy(void *to, const void *from, uint64_t size_bytes, void *stream) {
    return failed(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDefault, (cudaStream_t)stream), "copying");
}

static int cuda_compute(uint32_t *words, uint64_t count, uint32_t loops, void *stream) {
    work_on<<<n_blocks, THREADS, 0, (cudaStream_t)stream>>>(words, count, loops);
    return failed(cudaGetLastError(), "starting a kernel");
}

static int cuda_mark(size_t number, void *stream) {
    return failed(cudaEventRecord(events[number], (cudaStream_t)stream), "recording an event");
}

static int cuda_synchronize(void *stream) {
    return failed(cudaStreamSynchronize((cudaStream_t)stream), "waiting for a stream");
}

static int cuda_elapsed(size_t number, uint64_t *ret_ns) {
    float milliseconds = 0;
    int r = failed(cudaEventElapsedTime(&milliseconds, events[0], events[number]), "reading an event's time");
    *ret_ns = milliseconds > 0 ? (uint64_t)((double)milliseconds * 1e6) : 0;
    return r;
}

/* In C++17 members have no names here: the order is pipeline.h's. */
extern const struct gpu_steps steps_on_cuda = {
    "cuda", true, cuda_open, cuda_close, cuda_copy, cuda_compute, cuda_mark, cuda_synchronize, cuda_elapsed,
};
