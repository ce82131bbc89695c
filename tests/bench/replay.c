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

#include "base/clock.h"
#include "base/units.h"
#include "tests/bench/replay_trace.h"

struct result {
    uint64_t leased_bytes;   /* at most, at any time */
    uint64_t reserved_bytes; /* what the pool grew by */
    uint64_t operation_ns;   /* all operations, a second time */
    bool is_device;
};

/* Once looking at the pool after each step, once for the time. */
static struct result replay_twice(const struct trace *trace) {
    const char *socket = getenv("GPUPOOL_SOCKET");
    struct result result = {0};
    struct replay replay;

    replay_open(&replay, trace, socket);
    result.is_device = replay.is_device;
    uint64_t reserved_before_bytes = replay_pool(&replay).reserved_bytes;
    for (size_t i = 0; i < trace->count; i++) {
        replay_event(&replay, &trace->events[i]);
        struct gpupool_pool pool = replay_pool(&replay);
        if (pool.leased_bytes > result.leased_bytes)
            result.leased_bytes = pool.leased_bytes;
        if (pool.reserved_bytes > reserved_before_bytes + result.reserved_bytes)
            result.reserved_bytes = pool.reserved_bytes - reserved_before_bytes;
    }
    replay_close(&replay);

    replay_open(&replay, trace, socket);
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
        struct result result = replay_twice(&trace);
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
