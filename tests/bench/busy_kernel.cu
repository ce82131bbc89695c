/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that take a time, and kernels that do nothing, on two streams of the CUDA runtime. */
#include "tests/bench/busy.h"

#include <cuda_runtime.h>

static cudaStream_t long_stream, short_stream;
static cudaEvent_t done[2]; /* behind the last kernel and the one before */
static unsigned spins;

__global__ void spin(unsigned long long duration_ns) {
    unsigned long long start, now;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < duration_ns);
}

__global__ void nothing() {
}

extern "C" int busy_begin(void) {
    cudaError_t r = cudaStreamCreateWithFlags(&long_stream, cudaStreamNonBlocking);
    if (r == cudaSuccess)
        r = cudaStreamCreateWithFlags(&short_stream, cudaStreamNonBlocking);
    for (unsigned i = 0; r == cudaSuccess && i < 2; i++)
        r = cudaEventCreateWithFlags(&done[i], cudaEventDisableTiming);
    /* The first launch of a kernel loads its code, which takes long and waits for others. */
    spin<<<1, 1, 0, long_stream>>>(0);
    nothing<<<1, 1, 0, short_stream>>>();
    if (r == cudaSuccess)
        r = cudaDeviceSynchronize();
    return r;
}

extern "C" int busy_spin(unsigned milliseconds) {
    spin<<<1, 1, 0, long_stream>>>(milliseconds * 1000000ull);
    cudaError_t r = cudaGetLastError();
    if (r == cudaSuccess)
        r = cudaEventRecord(done[spins++ % 2], long_stream);
    return r;
}

extern "C" int busy_launch(void) {
    nothing<<<1, 1, 0, short_stream>>>();
    return cudaGetLastError();
}

extern "C" int busy_wait(void) {
    return spins < 2 ? cudaSuccess : cudaEventSynchronize(done[spins % 2]);
}
