/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_BENCH_TRACE_H
#define TESTS_BENCH_TRACE_H
/*
 * Allocation traces, as tests/traces/record.py writes them: what a program asked for, in which order, on
 * which stream. tests/traces/trace_file.py says what the text is.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TRACE_STREAMS_MAX 64u

struct trace_event {
    bool is_free;
    uint32_t slot;   /* names the allocation until it is freed */
    uint32_t stream; /* from 0 */
    uint64_t size_bytes;
};

struct trace {
    char name[64];
    struct trace_event *events;
    size_t count;
    uint32_t slots, streams;
    size_t allocations;
    uint64_t peak_live_bytes;
    uint64_t torch_peak_reserved_bytes; /* what PyTorch reserved when it was recorded; 0: not said */
};

/* Reads a trace, compressed or not (gzip has to be in PATH). Ends the program with a message on failure. */
void trace_read(struct trace *trace, const char *path);
void trace_free(struct trace *trace);

/* Makes a variation of the trace: each size from 4 KiB on is multiplied by a factor of its own, 0.93 to 1.07,
 * and rounded to 512 bytes. The same seed makes the same variation. */
void trace_vary(struct trace *trace, uint64_t seed);

/* The most that PyTorch's caching allocator would reserve, by the rules of its source (see trace_torch.c). */
uint64_t trace_torch_model(const struct trace *trace);

#endif
