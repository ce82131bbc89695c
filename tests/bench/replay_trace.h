/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_BENCH_REPLAY_TRACE_H
#define TESTS_BENCH_REPLAY_TRACE_H
/*
 * Replays a trace through a client: device memory where there is some, else host memory, each stream of the
 * trace on a stream of its own. A failure ends the program with a message.
 */
#include <stdbool.h>

#include "client/include/gpupool/gpupool.h"

#include "tests/bench/trace.h"

struct replay {
    const struct trace *trace;
    struct gpupool_client *client;
    uint32_t pool;
    bool is_device;
    void *streams[TRACE_STREAMS_MAX];
    struct gpupool_buffer *buffers; /* by slot */
    uint32_t *stream_of;            /* by slot */
};

/* Opens a client at a socket (NULL: the usual one), which replay_close() closes. The trace is borrowed. */
void replay_open(struct replay *replay, const struct trace *trace, const char *socket);
void replay_close(struct replay *replay);

void replay_event(struct replay *replay, const struct trace_event *event);

/* Releases all live allocations, so that the trace can be replayed again. */
void replay_release_all(struct replay *replay);

/* The daemon's figures of the pool: a round trip. */
struct gpupool_pool replay_pool(const struct replay *replay);

#endif
