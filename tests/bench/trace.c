/* SPDX-License-Identifier: Apache-2.0 */
/* In what C and C++ have in common: peers/torch_replay.cpp includes it. */
#include "tests/bench/trace.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/random.h"

#define SLOTS_MAX (1u << 24)

static void die(const char *path, const char *what) {
    fprintf(stderr, "%s: %s\n", path, what);
    exit(1);
}

static void add(struct trace *trace, size_t *capacity, struct trace_event event) {
    if (trace->count == *capacity) {
        *capacity = *capacity == 0 ? 4096 : *capacity * 2;
        trace->events = (struct trace_event *)realloc(trace->events, *capacity * sizeof *trace->events);
        if (trace->events == NULL)
            die(trace->name, "no memory");
    }
    trace->events[trace->count++] = event;
}

/* Reads a comment, if it is a fact that the program knows. */
static void read_fact(struct trace *trace, const char *line) {
    (void)(sscanf(line, "# program: %63s", trace->name) == 1 ||
           sscanf(line, "# torch_peak_reserved_bytes: %" SCNu64, &trace->torch_peak_reserved_bytes) == 1);
}

/* Checks that slots are used as they should be, and adds up what is live. */
static void check(struct trace *trace, const char *path) {
    uint64_t *sizes = (uint64_t *)calloc(trace->slots + 1, sizeof *sizes), live_bytes = 0;

    if (sizes == NULL)
        die(path, "no memory");
    for (size_t i = 0; i < trace->count; i++) {
        const struct trace_event *event = &trace->events[i];
        if ((sizes[event->slot] == 0) == event->is_free)
            die(path, event->is_free ? "frees what is not allocated" : "allocates in a slot that is taken");
        live_bytes += event->size_bytes;
        live_bytes -= event->is_free ? sizes[event->slot] : 0;
        sizes[event->slot] = event->size_bytes;
        if (live_bytes > trace->peak_live_bytes)
            trace->peak_live_bytes = live_bytes;
    }
    free(sizes);
}

void trace_read(struct trace *trace, const char *path) {
    char command[4096], line[1024];
    size_t capacity = 0, length = strlen(path);
    bool is_compressed = length > 3 && strcmp(path + length - 3, ".gz") == 0;

    memset(trace, 0, sizeof *trace);
    if (is_compressed && strchr(path, '\'') != NULL)
        die(path, "a name with quotes");
    snprintf(command, sizeof command, "gzip -dc '%s'", path);
    FILE *file = is_compressed ? popen(command, "re") : fopen(path, "re");
    if (file == NULL)
        die(path, "cannot be read");
    while (fgets(line, sizeof line, file) != NULL) {
        struct trace_event event;
        memset(&event, 0, sizeof event);
        if (line[0] == '#') {
            read_fact(trace, line);
        } else if (sscanf(line, "a %" SCNu32 " %" SCNu64 " %" SCNu32, &event.slot, &event.size_bytes,
                          &event.stream) == 3) {
            if (event.size_bytes == 0 || event.slot >= SLOTS_MAX || event.stream >= TRACE_STREAMS_MAX)
                die(path, "an allocation that cannot be");
            trace->allocations++;
            add(trace, &capacity, event);
        } else if (sscanf(line, "f %" SCNu32, &event.slot) == 1 && event.slot < trace->slots) {
            event.is_free = true;
            add(trace, &capacity, event);
        } else {
            die(path, "not a trace");
        }
        trace->slots = event.slot >= trace->slots && line[0] == 'a' ? event.slot + 1 : trace->slots;
        trace->streams = event.stream >= trace->streams ? event.stream + 1 : trace->streams;
    }
    if ((is_compressed ? pclose(file) : fclose(file)) != 0)
        die(path, "cannot be read to its end");
    check(trace, path);
}

void trace_vary(struct trace *trace, uint64_t seed) {
    for (size_t i = 0; i < trace->count; i++) {
        uint64_t *size_bytes = &trace->events[i].size_bytes;
        if (trace->events[i].is_free || *size_bytes < 4096)
            continue;
        double share =
            (double)(random_seed(random_seed(seed) ^ *size_bytes) >> 11) / (double)(UINT64_C(1) << 53);
        *size_bytes = (uint64_t)((double)*size_bytes * (0.93 + 0.14 * share) / 512 + 0.5) * 512;
    }
    trace->peak_live_bytes = 0;
    check(trace, trace->name);
}

void trace_free(struct trace *trace) {
    free(trace->events);
    trace->events = NULL;
}
