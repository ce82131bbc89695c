/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replays what real programs allocated (tests/traces) through a client with a cache and its daemon: how much
 * memory the client holds at most, over what the program had live at most, and what an operation costs.
 * Beside it what PyTorch's caching allocator reserved when the trace was recorded, and what a model of it
 * says.
 *
 *     replay [--json FILE] TRACE…
 *
 * Connects to the daemon that GPUPOOL_SOCKET names ("private": to one of its own for each trace,
 * GPUPOOL_DAEMON and GPUPOOL_DAEMON_ARGS say which). No other client should be there: what is counted is what
 * the pool has leased.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gpupool/gpupool.h>

#include "base/clock.h"
#include "base/units.h"
#include "tests/bench/trace.h"

#define STREAMS_MAX 64u
#define POOLS_MAX   32u

struct result {
    uint64_t leased_bytes;   /* at most, at any time */
    uint64_t reserved_bytes; /* what the pool grew by */
    uint64_t operation_ns;   /* all operations, a second time */
    bool is_device;
};

static void fail(const struct trace *trace, const char *what) {
    fprintf(stderr, "replay: %s: %s: %s\n", trace->name, what, gpupool_error_text());
    exit(1);
}

struct replay {
    const struct trace *trace;
    struct gpupool_client *client;
    uint32_t pool;
    bool is_device;
    void *streams[STREAMS_MAX];
    struct gpupool_buffer *buffers;
    uint32_t *stream_of;
};

static void replay_open(struct replay *replay, const struct trace *trace) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;

    memset(replay, 0, sizeof *replay);
    replay->trace = trace;
    options.socket = getenv("GPUPOOL_SOCKET");
    if (gpupool_open(&options, &replay->client) < 0)
        fail(trace, "open");
    replay->is_device = gpupool_gpu_kind(replay->client) != GPUPOOL_GPU_NONE;
    if ((replay->is_device ? gpupool_device_pool(replay->client, 0, &replay->pool)
                           : gpupool_host_pool(replay->client, -1, &replay->pool)) < 0)
        fail(trace, "pool");
    for (uint32_t i = 0; i < STREAMS_MAX; i++)
        replay->streams[i] = GPUPOOL_NO_STREAM;
    for (uint32_t i = 0; replay->is_device && i < trace->streams; i++)
        if (gpupool_stream_create(replay->client, 0, &replay->streams[i]) < 0)
            fail(trace, "stream");
    replay->buffers = calloc(trace->slots + 1, sizeof *replay->buffers);
    replay->stream_of = calloc(trace->slots + 1, sizeof *replay->stream_of);
    if (replay->buffers == NULL || replay->stream_of == NULL)
        fail(trace, "no memory");
}

static void replay_close(struct replay *replay) {
    gpupool_close(replay->client);
    free(replay->buffers);
    free(replay->stream_of);
}

static void replay_event(struct replay *replay, const struct trace_event *event) {
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

static struct gpupool_pool look(const struct replay *replay) {
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

/* Once looking at the pool after each step, once for the time. */
static struct result replay_trace(const struct trace *trace) {
    struct result result = {0};
    struct replay replay;

    replay_open(&replay, trace);
    result.is_device = replay.is_device;
    uint64_t reserved_before_bytes = look(&replay).reserved_bytes;
    for (size_t i = 0; i < trace->count; i++) {
        replay_event(&replay, &trace->events[i]);
        struct gpupool_pool pool = look(&replay);
        if (pool.leased_bytes > result.leased_bytes)
            result.leased_bytes = pool.leased_bytes;
        if (pool.reserved_bytes - reserved_before_bytes > result.reserved_bytes)
            result.reserved_bytes = pool.reserved_bytes - reserved_before_bytes;
    }
    replay_close(&replay);

    replay_open(&replay, trace);
    uint64_t start = clock_now_ns();
    for (size_t i = 0; i < trace->count; i++)
        replay_event(&replay, &trace->events[i]);
    result.operation_ns = clock_now_ns() - start;
    replay_close(&replay);
    return result;
}

static double ratio(uint64_t bytes, const struct trace *trace) {
    return (double)bytes / (double)trace->peak_live_bytes;
}

int main(int argc, char **argv) {
    double sum = 0, torch_sum = 0;
    FILE *json = NULL;
    int first = 1;

    if (argc > 2 && strcmp(argv[1], "--json") == 0) {
        json = fopen(argv[2], "we");
        first = 3;
    }
    if (first >= argc) {
        fprintf(stderr, "usage: replay [--json FILE] TRACE...\n");
        return 2;
    }
    if (json != NULL)
        fprintf(json, "{\"traces\": [");
    printf("peak live and what was held for it at most\n%-20s %9s %10s | %10s %7s %10s %7s | %10s %7s %10s "
           "%7s\n",
           "trace", "events", "live", "leased", "ratio", "pool", "ns each", "PyTorch", "ratio", "its model",
           "ratio");
    for (int i = first; i < argc; i++) {
        struct trace trace;
        trace_read(&trace, argv[i]);
        struct result result = replay_trace(&trace);
        uint64_t model_bytes = trace_torch_model(&trace);
        double ns = (double)result.operation_ns / (double)trace.count;
        double torch = ratio(
            trace.torch_peak_reserved_bytes > 0 ? trace.torch_peak_reserved_bytes : model_bytes, &trace);
        sum += ratio(result.leased_bytes, &trace);
        torch_sum += torch;
        printf("%-20s %9zu %10s | %10s %7.4f %10s %7.0f | %10s %7.4f %10s %7.4f\n", trace.name, trace.count,
               BYTES_TEXT(trace.peak_live_bytes), BYTES_TEXT(result.leased_bytes),
               ratio(result.leased_bytes, &trace), BYTES_TEXT(result.reserved_bytes), ns,
               BYTES_TEXT(trace.torch_peak_reserved_bytes), ratio(trace.torch_peak_reserved_bytes, &trace),
               BYTES_TEXT(model_bytes), ratio(model_bytes, &trace));
        if (json != NULL)
            fprintf(json,
                    "%s{\"trace\": \"%s\", \"device\": %s, \"events\": %zu, \"peak_live_bytes\": %llu, "
                    "\"peak_leased_bytes\": %llu, \"pool_reserved_bytes\": %llu, \"operation_ns\": %.1f, "
                    "\"torch_peak_reserved_bytes\": %llu, \"torch_model_peak_reserved_bytes\": %llu}",
                    i == first ? "" : ", ", trace.name, result.is_device ? "true" : "false", trace.count,
                    (unsigned long long)trace.peak_live_bytes, (unsigned long long)result.leased_bytes,
                    (unsigned long long)result.reserved_bytes, ns,
                    (unsigned long long)trace.torch_peak_reserved_bytes, (unsigned long long)model_bytes);
        trace_free(&trace);
    }
    printf("on average: gpupool %.4f, PyTorch %.4f\n", sum / (argc - first), torch_sum / (argc - first));
    if (json != NULL) {
        fprintf(json, "]}\n");
        fclose(json);
    }
    return 0;
}
