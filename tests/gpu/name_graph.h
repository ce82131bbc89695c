/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GPU_NAME_GRAPH_H
#define TESTS_GPU_NAME_GRAPH_H
/* The graph of the program name_readers, which reads buffers at the addresses of its capture: a CUDA graph of kernels and
 * copies (name_graph.cu), and a list of copies for the simulation (name_graph_sim.c), which replays no captures. */
#include <gpupool/gpupool.h>

/* Of each buffer the graph brings so many bytes at even distances, and as many of its end. */
#define NAME_GRAPH_PLACES 64u
#define NAME_GRAPH_BYTES  (2 * NAME_GRAPH_PLACES)

#ifdef __cplusplus
extern "C" {
#endif

struct name_graph;

/* Captures the graph. output: device memory, NAME_GRAPH_BYTES for each buffer. The structs of the buffers are not looked at
 * later. NULL: it failed. */
struct name_graph *name_graph_new(struct gpupool_client *client, void *stream,
                                  const struct gpupool_buffer *buffers, size_t count, unsigned char *output);

/* Launches it on the stream. 0, or an error. */
int name_graph_launch(struct name_graph *graph, void *stream);

void name_graph_free(struct name_graph *graph);

#ifdef __cplusplus
}
#endif

#endif
