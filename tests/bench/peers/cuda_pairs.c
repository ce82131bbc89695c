/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA runtime's allocators as subjects of workload.h: --subject cudaMalloc, cudaMallocAsync (the default
 * pool, which keeps what is freed) or cudaMallocHost (--memory pinned).
 */
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum {
    CUDA_MALLOC,
    CUDA_MALLOC_ASYNC,
    CUDA_MALLOC_HOST
} allocator;
static cudaMemPool_t pool;
static uint64_t reserved_bytes; /* of those allocators that keep nothing */

struct subject_block {
    void *memory;
};

static void need(cudaError_t error, const char *what) {
    if (__builtin_expect(error != cudaSuccess, 0)) {
        fprintf(stderr, "cuda_pairs: %s: %s\n", what, cudaGetErrorString(error));
        exit(1);
    }
}

static inline void subject_take(struct subject_block *block, uint64_t size_bytes, void *stream) {
    if (allocator == CUDA_MALLOC_ASYNC)
        need(cudaMallocAsync(&block->memory, size_bytes, stream), "cudaMallocAsync");
    else if (allocator == CUDA_MALLOC)
        need(cudaMalloc(&block->memory, size_bytes), "cudaMalloc");
    else
        need(cudaMallocHost(&block->memory, size_bytes), "cudaMallocHost");
}

static inline void subject_give(struct subject_block *block, void *stream) {
    if (allocator == CUDA_MALLOC_ASYNC)
        need(cudaFreeAsync(block->memory, stream), "cudaFreeAsync");
    else if (allocator == CUDA_MALLOC)
        need(cudaFree(block->memory), "cudaFree");
    else
        need(cudaFreeHost(block->memory), "cudaFreeHost");
}

static void *subject_stream_new(void) {
    cudaStream_t stream;
    need(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return stream;
}

static void subject_settle(void *stream) {
    need(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

static void subject_empty(void) {
    need(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    need(cudaMemPoolTrimTo(pool, 0), "cudaMemPoolTrimTo");
}

static void subject_memory(uint64_t *ret_reserved, uint64_t *ret_leased) {
    *ret_leased = 0;
    *ret_reserved = reserved_bytes;
    if (allocator == CUDA_MALLOC_ASYNC)
        need(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, ret_reserved),
             "cudaMemPoolGetAttribute");
}

#include "tests/bench/workload.h"

int main(int argc, char **argv) {
    struct workload work = workload_parse(argc, argv);
    uint64_t keep_all = UINT64_MAX;

    if (strcmp(work.subject, "cudaMalloc") == 0)
        allocator = CUDA_MALLOC;
    else if (strcmp(work.subject, "cudaMallocAsync") == 0)
        allocator = CUDA_MALLOC_ASYNC;
    else if (strcmp(work.subject, "cudaMallocHost") == 0)
        allocator = CUDA_MALLOC_HOST;
    else
        workload_usage(argv[0]);
    need(cudaSetDevice(0), "cudaSetDevice");
    need(cudaFree(NULL), "a context");
    need(cudaDeviceGetDefaultMemPool(&pool, 0), "cudaDeviceGetDefaultMemPool");
    need(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep_all),
         "cudaMemPoolSetAttribute");
    workload_run(&work);
    return 0;
}
