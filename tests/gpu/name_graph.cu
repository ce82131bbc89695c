/* SPDX-License-Identifier: Apache-2.0 */
/* A captured CUDA graph with a kernel and a copy for each buffer. */
#include "tests/gpu/name_graph.h"

#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>

struct name_graph {
    cudaGraphExec_t executable;
};

__global__ void look(const unsigned char *memory, uint64_t distance, unsigned char *output) {
    output[threadIdx.x] = memory[threadIdx.x * distance];
}

static void capture_reads(cudaStream_t stream, const struct gpupool_buffer *buffers, size_t count,
                          unsigned char *output) {
    for (size_t i = 0; i < count; i++, output += NAME_GRAPH_BYTES) {
        const unsigned char *memory = (const unsigned char *)buffers[i].data;
        uint64_t size_bytes = buffers[i].size_bytes;
        look<<<1, NAME_GRAPH_PLACES, 0, stream>>>(memory, size_bytes / NAME_GRAPH_PLACES, output);
        cudaMemcpyAsync(output + NAME_GRAPH_PLACES, memory + size_bytes - NAME_GRAPH_PLACES, NAME_GRAPH_PLACES,
                        cudaMemcpyDeviceToDevice, stream);
    }
}

extern "C" struct name_graph *name_graph_new(struct gpupool_client *client, void *stream,
                                             const struct gpupool_buffer *buffers, size_t count,
                                             unsigned char *output) {
    struct name_graph *graph = new name_graph();
    cudaStream_t capturing = (cudaStream_t)stream;
    cudaGraph_t recorded = NULL;

    (void)client;
    cudaError_t r = cudaSetDevice(0);
    if (r == cudaSuccess)
        r = cudaStreamBeginCapture(capturing, cudaStreamCaptureModeThreadLocal);
    if (r == cudaSuccess) {
        capture_reads(capturing, buffers, count, output);
        r = cudaStreamEndCapture(capturing, &recorded);
    }
    if (r == cudaSuccess)
        r = cudaGraphInstantiate(&graph->executable, recorded, 0);
    if (recorded != NULL)
        cudaGraphDestroy(recorded);
    if (r == cudaSuccess)
        return graph;
    fprintf(stderr, "name_readers: capture: %s\n", cudaGetErrorString(r));
    delete graph;
    return NULL;
}

extern "C" int name_graph_launch(struct name_graph *graph, void *stream) {
    cudaError_t r = cudaGraphLaunch(graph->executable, (cudaStream_t)stream);

    if (r != cudaSuccess)
        fprintf(stderr, "name_readers: launch: %s\n", cudaGetErrorString(r));
    return r;
}

extern "C" void name_graph_free(struct name_graph *graph) {
    if (graph == NULL)
        return;
    cudaGraphExecDestroy(graph->executable);
    delete graph;
}
