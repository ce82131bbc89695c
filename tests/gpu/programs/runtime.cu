/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program of the CUDA runtime: plain and stream-ordered memory, pinned memory, several threads with streams
 * of their own and with the default stream. It is built with the static and the shared runtime, and with
 * default streams of each thread.
 */
#include <cuda_runtime.h>

#include <cstdint>
#include <thread>

#include "turns.h"

#define OK(call) EXPECT((call) == cudaSuccess)

constexpr unsigned THREADS = 4, COUNT = 4u << 20;

__global__ void fill(unsigned *words, unsigned count, unsigned seed) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        words[i] = (i + seed) * 2654435761u;
}

__global__ void add(unsigned *words, const unsigned *other, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        words[i] += other[i];
}

static unsigned *kept[THREADS];
static uint64_t sums[THREADS];
static unsigned rounds;

/* The streams of threads are used in half of the rounds, the default stream in the others. */
static void work(unsigned thread) {
    unsigned *plain, *ordered, *host;
    cudaStream_t own = nullptr;
    bool is_default = (rounds + thread) % 2 == 0;

    if (!is_default)
        OK(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
    OK(cudaMalloc(reinterpret_cast<void **>(&plain), COUNT * sizeof *plain));
    OK(cudaMallocAsync(reinterpret_cast<void **>(&ordered), COUNT * sizeof *ordered, own));
    OK(cudaMallocHost(reinterpret_cast<void **>(&host), 4096 * sizeof *host));
    fill<<<COUNT / 256, 256, 0, own>>>(ordered, COUNT, rounds + thread);
    fill<<<COUNT / 256, 256, 0, own>>>(plain, COUNT, thread);
    add<<<COUNT / 256, 256, 0, own>>>(plain, ordered, COUNT);
    OK(cudaFreeAsync(ordered, own)); /* the kernels above are under way */
    add<<<COUNT / 256, 256, 0, own>>>(kept[thread], plain, COUNT);
    OK(cudaMemcpyAsync(host, kept[thread] + (rounds % 64) * 4096, 4096 * sizeof *host, cudaMemcpyDeviceToHost, own));
    OK(cudaStreamSynchronize(own));
    for (unsigned i = 0; i < 4096; i++)
        sums[thread] = sums[thread] * 31 + host[i];
    OK(cudaFree(plain));
    OK(cudaFreeHost(host));
    if (!is_default)
        OK(cudaStreamDestroy(own));
}

int main(int argc, char **argv) {
    auto step = [] {
        std::vector<std::thread> threads;
        for (unsigned i = 0; i < THREADS; i++)
            threads.emplace_back(work, i);
        for (auto &thread : threads)
            thread.join();
        rounds++;
    };
    auto sum = [] {
        uint64_t total = 0;
        for (uint64_t each : sums)
            total = total * 31 + each;
        return total >> 16; /* fits a double */
    };
    void *none;

    for (unsigned i = 0; i < THREADS; i++) {
        OK(cudaMalloc(reinterpret_cast<void **>(&kept[i]), COUNT * sizeof *kept[i]));
        OK(cudaMemset(kept[i], 0, COUNT * sizeof *kept[i]));
    }
    OK(cudaDeviceSynchronize());
    EXPECT(cudaMalloc(&none, size_t{1} << 46) == cudaErrorMemoryAllocation);
    EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation && cudaGetLastError() == cudaSuccess);
    for (int i = 0; i < 3; i++)
        step();
    int status = converse(argc, argv, step, [] { return THREADS * COUNT * sizeof(unsigned); }, sum);
    for (unsigned *words : kept)
        OK(cudaFree(words));
    return status;
}
