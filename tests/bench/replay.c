/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replays allocation traces of real programs (tests/traces) through a client with a cache and its daemon.
 *
 *     replay [--json FILE] [--watch 0|1] [--passes N] [--vary SEED] [--marks] TRACE…
 *
 * Watched (the default), a client replays the trace once, and the program looks at the pool after each
 * operation. It reports the peak of the bytes that the client leased and that the pool reserved, over the
 * peak of the bytes that were live. Beside it stand the peak that PyTorch's caching allocator reserved when
 * the trace was recorded, and the peak of a model of that allocator.
 *
 * Then another client replays the trace in N passes (5), one after the other. The first pass shows the cost
 * of an operation in a cold client, the later ones in a warm client. The program looks at the pool after each
 * operation that took longer than LOOK_NS, outside of the times: shorter operations sent no message to the
 * daemon, so they did not change the pool. Allocations that are live at the end of a pass are released, and
 * this is not timed.
 *
 * --vary replays variations of the traces, with other sizes: what fits where is partly luck, and a rule that
 * is good for programs is good for those, too. PyTorch's allocator is then known by its model only.
 *
 * Connects to the daemon that GPUPOOL_SOCKET names ("private": to one of its own for each client,
 * GPUPOOL_DAEMON and GPUPOOL_DAEMON_ARGS say which). No other client should be there, because the figures are
 * the pool's. --marks: a line {"mark": …} after the first pass and after the last, each answered by a line.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "tests/bench/replay_times.h"
#include "tests/bench/replay_trace.h"

#define PASSES_MAX 100u
#define LOOK_NS    4000u /* a message and its answer take four times as long */

static struct {
    FILE *json;
    unsigned passes;
    uint64_t variation; /* 0: the trace as it is */
    bool watch, marks;
} options = {.passes = 5, .watch = true};

struct result {
    uint64_t leased_bytes;        /* watched: at most, at any time */
    uint64_t reserved_bytes;      /* watched: at most, beyond those before */
    uint64_t warm_reserved_bytes; /* at most after the first pass, beyond those before */
    double first_ns, warm_ns;     /* an operation of the first pass, of the others */
    uint32_t first_p999_ns, warm_p999_ns;
    double pass_ns[PASSES_MAX];
    bool is_device;
};

static void watch(const struct trace *trace, struct result *result) {
    struct replay replay;

    replay_open(&replay, trace, getenv("GPUPOOL_SOCKET"));
    result->is_device = replay.is_device;
    uint64_t reserved_before_bytes = replay_pool(&replay).reserved_bytes;
    for (size_t i = 0; i < trace->count; i++) {
        replay_event(&replay, &trace->events[i]);
        struct gpupool_pool pool = replay_pool(&replay);
        if (pool.leased_bytes > result->leased_bytes)
            result->leased_bytes = pool.leased_bytes;
        if (pool.reserved_bytes > reserved_before_bytes + result->reserved_bytes)
            result->reserved_bytes = pool.reserved_bytes - reserved_before_bytes;
    }
    replay_close(&replay);
}

static void mark(const char *what) {
    char answer[64];

    if (!options.marks)
        return;
    printf("{\"mark\": \"%s\"}\n", what);
    fflush(stdout);
    if (fgets(answer, sizeof answer, stdin) == NULL)
        exit(1);
}

/* One pass. Returns the most that the pool had reserved. */
static uint64_t replay_pass(struct replay *replay, struct replay_times *times) {
    const struct trace *trace = replay->trace;
    uint64_t most_bytes = replay_pool(replay).reserved_bytes;

    replay_times_begin(times);
    for (size_t i = 0; i < trace->count; i++) {
        replay_event(replay, &trace->events[i]);
        if (replay_times_add(times) <= LOOK_NS)
            continue;
        uint64_t reserved_bytes = replay_pool(replay).reserved_bytes;
        if (reserved_bytes > most_bytes)
            most_bytes = reserved_bytes;
        replay_times_begin(times);
    }
    replay_release_all(replay);
    return most_bytes;
}

static void measure(const struct trace *trace, struct result *result) {
    struct replay_times times;
    struct replay replay;

    if (options.passes == 0)
        return;
    replay_times_init(&times, trace->count * options.passes);
    replay_open(&replay, trace, getenv("GPUPOOL_SOCKET"));
    result->is_device = replay.is_device;
    uint64_t reserved_before_bytes = replay_pool(&replay).reserved_bytes;
    for (unsigned pass = 0; pass < options.passes; pass++) {
        uint64_t reserved_bytes = replay_pass(&replay, &times) - reserved_before_bytes;
        result->pass_ns[pass] = replay_times_mean(&times, pass * trace->count);
        if (pass == 0)
            mark("the first pass ends");
        else if (reserved_bytes > result->warm_reserved_bytes)
            result->warm_reserved_bytes = reserved_bytes;
    }
    mark("the last pass ends");
    replay_close(&replay);
    result->first_ns = result->pass_ns[0];
    result->warm_ns = replay_times_mean(&times, trace->count);
    result->warm_p999_ns = replay_times_quantile(&times, trace->count, 0.999);
    times.count = trace->count;
    result->first_p999_ns = replay_times_quantile(&times, 0, 0.999);
    replay_times_free(&times);
}

static double ratio(uint64_t bytes, const struct trace *trace) {
    return (double)bytes / (double)trace->peak_live_bytes;
}

static void print_json(const struct trace *trace, const struct result *result, uint64_t model_bytes,
                       bool is_first) {
    FILE *json = options.json;

    fprintf(json,
            "%s{\"trace\": \"%s\", \"device\": %s, \"events\": %zu, \"peak_live_bytes\": %llu, "
            "\"torch_peak_reserved_bytes\": %llu, \"torch_model_peak_reserved_bytes\": %llu",
            is_first ? "" : ",\n", trace->name, result->is_device ? "true" : "false", trace->count,
            (unsigned long long)trace->peak_live_bytes, (unsigned long long)trace->torch_peak_reserved_bytes,
            (unsigned long long)model_bytes);
    if (options.watch)
        fprintf(json, ", \"peak_leased_bytes\": %llu, \"pool_reserved_bytes\": %llu",
                (unsigned long long)result->leased_bytes, (unsigned long long)result->reserved_bytes);
    if (options.passes > 0) {
        fprintf(json,
                ", \"first_ns\": %.1f, \"first_p999_ns\": %u, \"warm_ns\": %.1f, \"warm_p999_ns\": %u, "
                "\"warm_reserved_bytes\": %llu, \"pass_ns\": [",
                result->first_ns, result->first_p999_ns, result->warm_ns, result->warm_p999_ns,
                (unsigned long long)result->warm_reserved_bytes);
        for (unsigned pass = 0; pass < options.passes; pass++)
            fprintf(json, "%s%.1f", pass == 0 ? "" : ", ", result->pass_ns[pass]);
        fprintf(json, "]");
    }
    fprintf(json, "}");
}

/* Said on standard error where standard output is for marks. */
static void print_table(const struct trace *trace, const struct result *result, uint64_t model_bytes) {
    FILE *file = options.marks ? stderr : stdout;

    fprintf(file, "%-18s %9zu %10s |", trace->name, trace->count, BYTES_TEXT(trace->peak_live_bytes));
    fprintf(file, " %10s %7.4f", BYTES_TEXT(result->leased_bytes), ratio(result->leased_bytes, trace));
    fprintf(file, " %10s %7.4f |", BYTES_TEXT(result->reserved_bytes), ratio(result->reserved_bytes, trace));
    fprintf(file, " %7.0f %7.0f %9u", result->first_ns, result->warm_ns, result->warm_p999_ns);
    fprintf(file, " %10s %7.4f |", BYTES_TEXT(result->warm_reserved_bytes),
            ratio(result->warm_reserved_bytes, trace));
    fprintf(file, " %7.4f %7.4f\n", ratio(trace->torch_peak_reserved_bytes, trace),
            ratio(model_bytes, trace));
}

static _Noreturn void usage(void) {
    fprintf(stderr,
            "usage: replay [--json FILE] [--watch 0|1] [--passes N] [--vary SEED] [--marks] TRACE...\n");
    exit(2);
}

static uint64_t number(const char *text) {
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    if (*text == '\0' || *end != '\0')
        usage();
    return value;
}

static void parse(int argc, char **argv) {
    static const struct option known[] = {
        {"json", required_argument, NULL, 'j'},   {"watch", required_argument, NULL, 'w'},
        {"passes", required_argument, NULL, 'p'}, {"vary", required_argument, NULL, 'v'},
        {"marks", no_argument, NULL, 'm'},        {NULL, 0, NULL, 0},
    };
    int option;

    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (option == 'j')
            options.json = fopen(optarg, "we");
        else if (option == 'w')
            options.watch = strcmp(optarg, "0") != 0;
        else if (option == 'p')
            options.passes = (unsigned)number(optarg);
        else if (option == 'v')
            options.variation = number(optarg);
        else if (option == 'm')
            options.marks = true;
        else
            usage();
    }
    if (optind >= argc || options.passes > PASSES_MAX)
        usage();
}

int main(int argc, char **argv) {
    parse(argc, argv);
    if (options.json != NULL)
        fprintf(options.json, "{\"traces\": [");
    fprintf(
        options.marks ? stderr : stdout,
        "peak live; leased and reserved at most, over it; nanoseconds an operation in the first pass, later, "
        "p99.9 later; reserved later; PyTorch's reserved when recorded, by its model, over live\n");
    for (int i = optind; i < argc; i++) {
        struct result result = {0};
        struct trace trace;

        trace_read(&trace, argv[i]);
        if (options.variation > 0)
            trace_vary(&trace, options.variation);
        if (options.watch)
            watch(&trace, &result);
        measure(&trace, &result);
        uint64_t model_bytes = trace_torch_model(&trace);
        print_table(&trace, &result, model_bytes);
        if (options.json != NULL)
            print_json(&trace, &result, model_bytes, i == optind);
        trace_free(&trace);
    }
    if (options.json != NULL) {
        fprintf(options.json, "]}\n");
        fclose(options.json);
    }
    return 0;
}
