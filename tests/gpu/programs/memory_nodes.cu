/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA graph with memory nodes: cudaMallocAsync() and cudaFreeAsync() in a capture. The memory of such nodes
 * is the graph's. Beside the graph the program makes and frees memory in stream order.
 */
#include <cuda_runtime.h>

#include <cstdint>

#include "turns.h"

#define OK(call) EXPECT((call) == cudaSuccess)

constexpr unsigned COUNT = 8u << 20;

__global__ void fill(unsigned *words, unsigned count, const unsigned *seed) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        words[i] = (i + *seed) * 2654435761u;
}

__global__ void add(unsigned *words, const unsigned *other, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        words[i] += other[i];
}

int main(int argc, char **argv) {
    unsigned *kept, *seed, *host, *inner, *outer, rounds = 0;
    cudaGraphExec_t executable;
    cudaStream_t stream;
    cudaGraph_t graph;
    uint64_t sum = 0;

    OK(cudaStreamCreate(&stream));
    OK(cudaMalloc(reinterpret_cast<void **>(&kept), COUNT * sizeof *kept));
    OK(cudaMalloc(reinterpret_cast<void **>(&seed), sizeof *seed));
    OK(cudaMallocHost(reinterpret_cast<void **>(&host), 4096 * sizeof *host));
    OK(cudaMemset(kept, 0, COUNT * sizeof *kept));
    OK(cudaDeviceSynchronize());
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OK(cudaMallocAsync(reinterpret_cast<void **>(&inner), COUNT * sizeof *inner, stream));
    EXPECT(!is_lent(inner)); /* the graph's own */
    fill<<<COUNT / 256, 256, 0, stream>>>(inner, COUNT, seed);
    add<<<COUNT / 256, 256, 0, stream>>>(kept, inner, COUNT);
    OK(cudaFreeAsync(inner, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&executable, graph, 0));
    auto step = [&] {
        OK(cudaMallocAsync(reinterpret_cast<void **>(&outer), COUNT * sizeof *outer, stream));
        OK(cudaMemcpyAsync(seed, &rounds, sizeof rounds, cudaMemcpyHostToDevice, stream));
        OK(cudaGraphLaunch(executable, stream));
        OK(cudaMemcpyAsync(outer, kept, COUNT * sizeof *outer, cudaMemcpyDeviceToDevice, stream));
        OK(cudaMemcpyAsync(host, outer + (rounds % 64) * 4096, 4096 * sizeof *host, cudaMemcpyDeviceToHost, stream));
        OK(cudaFreeAsync(outer, stream));
        OK(cudaStreamSynchronize(stream));
        for (unsigned i = 0; i < 4096; i++)
            sum = sum * 31 + host[i];
        rounds++;
    };
    for (int i = 0; i < 3; i++)
        step();
    int status = converse(
        argc, argv, step, [] { return COUNT * sizeof(unsigned); }, [&] { return sum >> 16; });
    OK(cudaGraphExecDestroy(executable));
    OK(cudaGraphDestroy(graph));
    OK(cudaFree(kept));
    return status;
}
