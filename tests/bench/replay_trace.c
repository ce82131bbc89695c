/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/replay_trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POOLS_MAX 32u

static void fail(const struct trace *trace, const char *what) {
    fprintf(stderr, "%s: %s: %s\n", trace->name, what, gpupool_error_text());
    exit(1);
}

void replay_open(struct replay *replay, const struct trace *trace, const char *socket) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;

    memset(replay, 0, sizeof *replay);
    replay->trace = trace;
    options.socket = socket;
    if (gpupool_open(&options, &replay->client) < 0)
        fail(trace, "open");
    replay->is_device = gpupool_gpu_kind(replay->client) != GPUPOOL_GPU_NONE;
    if ((replay->is_device ? gpupool_device_pool(replay->client, 0, &replay->pool)
                           : gpupool_host_pool(replay->client, -1, &replay->pool)) < 0)
        fail(trace, "pool");
    for (uint32_t i = 0; i < TRACE_STREAMS_MAX; i++)
        replay->streams[i] = GPUPOOL_NO_STREAM;
    for (uint32_t i = 0; replay->is_device && i < trace->streams; i++)
        if (gpupool_stream_create(replay->client, 0, &replay->streams[i]) < 0)
            fail(trace, "stream");
    replay->buffers = calloc(trace->slots + 1, sizeof *replay->buffers);
    replay->stream_of = calloc(trace->slots + 1, sizeof *replay->stream_of);
    if (replay->buffers == NULL || replay->stream_of == NULL)
        fail(trace, "no memory");
}

void replay_close(struct replay *replay) {
    gpupool_close(replay->client);
    free(replay->buffers);
    free(replay->stream_of);
}

void replay_event(struct replay *replay, const struct trace_event *event) {
    struct gpupool_buffer *buffer = &replay->buffers[event->slot];

    if (event->is_free) {
        if (gpupool_release(replay->client, buffer, replay->streams[replay->stream_of[event->slot]]) < 0)
            fail(replay->trace, "release");
        return;
    }
    replay->stream_of[event->slot] = event->stream;
    if (gpupool_acquire(replay->client, replay->pool, event->size_bytes, replay->streams[event->stream],
                        GPUPOOL_FOREVER, 0, buffer) < 0)
        fail(replay->trace, "acquire");
}

void replay_release_all(struct replay *replay) {
    for (uint32_t slot = 0; slot < replay->trace->slots; slot++) {
        struct gpupool_buffer *buffer = &replay->buffers[slot];
        if (buffer->lease != 0 || buffer->data != NULL)
            replay_event(replay, &(struct trace_event){.is_free = true, .slot = slot});
    }
}

struct gpupool_pool replay_pool(const struct replay *replay) {
    struct gpupool_pool pools[POOLS_MAX];
    size_t count;

    if (gpupool_pools(replay->client, pools, POOLS_MAX, &count) < 0)
        fail(replay->trace, "pools");
    for (size_t i = 0; i < count && i < POOLS_MAX; i++)
        if (pools[i].id == replay->pool)
            return pools[i];
    fail(replay->trace, "the pool has gone");
    exit(1);
}
