/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EXAMPLES_PIPELINE_H
#define EXAMPLES_PIPELINE_H
/*
 * The example `pipeline`, in parts: pipeline.c is the program (options, daemon, what is measured in which
 * order), pipeline_run.c is the pipeline itself, pipeline_report.c prints and writes what was measured.
 * pipeline_cpu.c and pipeline_cuda.cu do the steps, on a simulated GPU and on a real one.
 *
 * Functions return 0 on success and -1 on failure, and have then said on standard error what was wrong.
 */
#ifndef __cplusplus
#include <stdbool.h>
#endif
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gpupool_client;

#define PIPELINE_STREAMS_MAX 32u
#define PIPELINE_ROUNDS_MAX  32u
#define PIPELINE_NS_PER_MS   UINT64_C(1000000)

/* --- the steps --- */

enum step {
    STEP_IN,
    STEP_COMPUTE,
    STEP_OUT,
    STEPS
};
#define STEP_BIT(step) (1u << (step))
#define STEP_ALL       (STEP_BIT(STEP_IN) | STEP_BIT(STEP_COMPUTE) | STEP_BIT(STEP_OUT))
#define MARKS_OF_BATCH (STEPS + 1u) /* before the first step, and behind each */

/* Returns the word that the compute step makes of a word. The compiler cannot leave out any of the loops. */
#ifdef __CUDACC__
__host__ __device__
#endif
    static inline uint32_t
    pipeline_work(uint32_t word, uint32_t loops) {
    for (uint32_t i = 0; i < loops; i++) {
        word = word * 1664525u + 1013904223u;
        word ^= word >> 15;
    }
    return word;
}

/* How a kind of GPU does the steps. Everything is enqueued on a stream and done in its order; a mark is a
 * point in that order, whose time is known once the stream has come there. Called by any thread, each for a
 * stream of its own. device 0. */
struct gpu_steps {
    const char *name;
    bool engines_are_shared; /* all copies of a direction go through one engine, one behind the other */
    /* Room for so many marks; close gives it back and accepts that there is none. */
    int (*open)(struct gpupool_client *client, size_t marks);
    void (*close)(void);
    int (*copy)(void *to, const void *from, uint64_t size_bytes, void *stream);
    int (*compute)(uint32_t *words, uint64_t count, uint32_t loops, void *stream);
    int (*mark)(size_t number, void *stream);
    int (*synchronize)(void *stream);
    /* Nanoseconds from mark 0 to another one. Both streams have been synchronised. */
    int (*elapsed)(size_t number, uint64_t *ret_ns);
};

extern const struct gpu_steps steps_on_cpu;  /* pipeline_cpu.c: device memory is ordinary memory */
extern const struct gpu_steps steps_on_cuda; /* pipeline_cuda.cu */

/* --- what is run --- */

enum host_memory {
    MEMORY_PAGEABLE,
    MEMORY_POOL,
    MEMORIES
};

/* When a step of a batch could begin (the one before was done), began and ended, since the run began. */
struct span {
    uint64_t ready_ns, begin_ns, end_ns;
};

/* One way through all batches: which steps, on how many streams, from and to which host memory. */
struct way {
    const char *name;
    enum host_memory memory;
    unsigned streams, steps;
    uint64_t ns[PIPELINE_ROUNDS_MAX]; /* of each round */
    uint64_t median_ns;
    uint64_t traced_ns; /* of the run that made the spans: it also makes marks */
    struct span *spans; /* STEPS of each batch; NULL: none */
};

struct plan {
    unsigned batches, streams, rounds;
    uint64_t batch_bytes;
    unsigned compute_percent; /* how long the compute step is to take, of the longer copy's time */
};

struct pipeline;

/* Takes streams and host memory, and fills the input. *ret_pipeline is the caller's, until pipeline_free().
 */
int pipeline_new(struct gpupool_client *client, const struct gpu_steps *steps, const struct plan *plan,
                 struct pipeline **ret_pipeline);
void pipeline_free(struct pipeline *pipeline);

/* Finds out how many loops the compute step needs to be as long as the plan says. */
int pipeline_calibrate(struct pipeline *pipeline, uint32_t *ret_loops);

/* Sends all batches through, and says how long that took. When the way has all steps, it looks whether the
 * results are right. */
int pipeline_run(struct pipeline *pipeline, const struct way *way, uint64_t *ret_ns);

/* As pipeline_run(), with the times of all steps: traced_ns and spans, which are the caller's to free. */
int pipeline_trace(struct pipeline *pipeline, struct way *way);

/* --- what is said --- */

struct report {
    const char *gpu, *device; /* the kind, and the device's name */
    struct plan plan;
    uint32_t loops;
    const struct way *alone; /* a step by itself, each */
    unsigned n_alone;
    const struct way *ways; /* all steps; the first is what the others are compared with */
    unsigned n_ways;
    uint64_t limit_ns; /* what the slowest of the steps takes by itself */
};

void report_print(const struct report *report);
int report_write(const struct report *report, const char *path);

/* Says what failed, by the client library's own words in the first case. Returns -1. */
int fail_gpupool(const char *what);
int fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
uint64_t now_ns(void);

#ifdef __cplusplus
}
#endif
#endif
