/* SPDX-License-Identifier: Apache-2.0 */
/* The graph as a list of copies: the addresses are those of its making. */
#include "tests/gpu/name_graph.h"

#include <stdint.h>
#include <stdlib.h>

struct name_graph {
    struct gpupool_client *client;
    unsigned char *output;
    size_t count;
    struct {
        const unsigned char *memory;
        uint64_t size_bytes;
    } inputs[];
};

struct name_graph *name_graph_new(struct gpupool_client *client, void *stream,
                                  const struct gpupool_buffer *buffers, size_t count, unsigned char *output) {
    struct name_graph *graph = malloc(sizeof *graph + count * sizeof *graph->inputs);

    (void)stream;
    if (graph == NULL)
        return NULL;
    *graph = (struct name_graph){.client = client, .output = output, .count = count};
    for (size_t i = 0; i < count; i++) {
        graph->inputs[i].memory = buffers[i].data;
        graph->inputs[i].size_bytes = buffers[i].size_bytes;
    }
    return graph;
}

int name_graph_launch(struct name_graph *graph, void *stream) {
    unsigned char *output = graph->output;
    int r = 0;

    for (size_t i = 0; i < graph->count; i++, output += NAME_GRAPH_BYTES) {
        const unsigned char *memory = graph->inputs[i].memory;
        uint64_t size_bytes = graph->inputs[i].size_bytes, distance = size_bytes / NAME_GRAPH_PLACES;
        for (unsigned j = 0; r == 0 && j < NAME_GRAPH_PLACES; j++)
            r = gpupool_copy(graph->client, 0, output + j, memory + j * distance, 1, stream);
        if (r == 0)
            r = gpupool_copy(graph->client, 0, output + NAME_GRAPH_PLACES,
                             memory + size_bytes - NAME_GRAPH_PLACES, NAME_GRAPH_PLACES, stream);
    }
    return r;
}

void name_graph_free(struct name_graph *graph) {
    free(graph);
}
