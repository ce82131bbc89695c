/* SPDX-License-Identifier: Apache-2.0 */
/* Counts and sets words on the GPU's default stream. Each call waits for its work. */
#include "tests/gpu/zero.h"

#include <cuda_runtime.h>

#define BLOCKS  1024u
#define THREADS 256u

/* A word of the host that kernels count in. */
static unsigned long long *counter;

__global__ void count_others(const uint64_t *words, size_t n_words, uint64_t value, unsigned long long *count) {
    size_t first = blockIdx.x * (size_t)blockDim.x + threadIdx.x, stride = (size_t)gridDim.x * blockDim.x;
    __shared__ unsigned long long seen_by_block;
    unsigned long long seen = 0;

    if (threadIdx.x == 0)
        seen_by_block = 0;
    __syncthreads();
    for (size_t i = first; i < n_words; i += stride)
        seen += words[i] != value;
    if (seen > 0)
        atomicAdd(&seen_by_block, seen);
    __syncthreads();
    if (threadIdx.x == 0 && seen_by_block > 0) /* one a block: the counter is the host's */
        atomicAdd_system(count, seen_by_block);
}

__global__ void set_words(uint64_t *words, size_t n_words, uint64_t value) {
    size_t first = blockIdx.x * (size_t)blockDim.x + threadIdx.x, stride = (size_t)gridDim.x * blockDim.x;

    for (size_t i = first; i < n_words; i += stride)
        words[i] = value;
}

static cudaError_t wait_for_kernel(void) {
    cudaError_t r = cudaGetLastError();
    return r == cudaSuccess ? cudaStreamSynchronize(NULL) : r;
}

extern "C" int zero_count_others(const void *memory, size_t size_bytes, uint64_t value, uint64_t *ret_others) {
    cudaError_t r = counter != NULL ? cudaSuccess
                                    : cudaHostAlloc((void **)&counter, sizeof *counter, cudaHostAllocMapped);
    if (r != cudaSuccess)
        return r;
    *counter = 0;
    count_others<<<BLOCKS, THREADS>>>((const uint64_t *)memory, size_bytes / sizeof(uint64_t), value, counter);
    r = wait_for_kernel();
    *ret_others = *(volatile unsigned long long *)counter;
    return r;
}

extern "C" int zero_fill(void *memory, size_t size_bytes, uint64_t value) {
    set_words<<<BLOCKS, THREADS>>>((uint64_t *)memory, size_bytes / sizeof(uint64_t), value);
    return wait_for_kernel();
}
