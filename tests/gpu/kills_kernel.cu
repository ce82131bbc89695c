/* SPDX-License-Identifier: Apache-2.0 */
/* The victim's kernel: it writes a counter to each word of its buffers until its time is over or the driver ends it. */
#include "tests/gpu/kills.h"

#include <cuda_runtime.h>

#define MEMORY_MAX 8u
#define BLOCKS     4u /* few, so that others' work goes on beside it */
#define THREADS    128u

struct memory {
    volatile uint32_t *words[MEMORY_MAX];
    unsigned count;
    size_t n_words;
};

__global__ void write_on(struct memory memory, unsigned long long duration_ns, volatile unsigned *begun) {
    size_t first = blockIdx.x * (size_t)blockDim.x + threadIdx.x, stride = (size_t)gridDim.x * blockDim.x;
    unsigned long long start, now;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    if (first == 0)
        *begun = 1;
    __threadfence_system();
    uint32_t value = 0xdead0000u;
    do {
        for (unsigned k = 0; k < memory.count; k++)
            for (size_t i = first; i < memory.n_words; i += stride)
                memory.words[k][i] = value;
        value++;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < duration_ns);
}

extern "C" int kills_start_kernel(void *const *memory, unsigned n_memory, size_t size_bytes, unsigned milliseconds) {
    struct memory all = {{0}, n_memory, size_bytes / sizeof(uint32_t)};
    cudaStream_t stream;
    unsigned *begun;

    if (n_memory > MEMORY_MAX)
        return cudaErrorInvalidValue;
    for (unsigned i = 0; i < n_memory; i++)
        all.words[i] = (volatile uint32_t *)memory[i];
    cudaError_t r = cudaHostAlloc((void **)&begun, sizeof *begun, cudaHostAllocMapped);
    if (r != cudaSuccess)
        return r;
    *begun = 0;
    r = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (r != cudaSuccess)
        return r;
    write_on<<<BLOCKS, THREADS, 0, stream>>>(all, milliseconds * 1000000ull, begun);
    r = cudaGetLastError();
    while (r == cudaSuccess && *(volatile unsigned *)begun == 0) {
        cudaError_t state = cudaStreamQuery(stream);
        r = state == cudaErrorNotReady ? cudaSuccess : state;
        if (state == cudaSuccess)
            break;
    }
    return r;
}
