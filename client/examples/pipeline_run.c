/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pipeline: batches of input lie in host memory; each is copied to the device, computed on and copied
 * back.
 *
 * Each stream has a thread, which enqueues every so-manieth batch and waits at the end only. Device memory is
 * taken for each batch and given back behind it, on the batch's stream: gpupool_acquire() and
 * gpupool_release() take tens of nanoseconds, wait for nothing, and the stream sees to it that the next batch
 * writes its input only when the last one's results are out. So there is no ring of buffers to keep, and no
 * event to wait for.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gpupool/gpupool.h>

#include "pipeline.h"

#define ROOM_NS    UINT64_C(60000000000) /* how long an acquire may wait for the pool to grow */
#define SAMPLES    256u                  /* words of a batch whose results are looked at */
#define LOOPS_MAX  (1u << 20)
#define FIRST_MARK 1u /* mark 0 is the run's begin */

struct pipeline {
    struct gpupool_client *client;
    const struct gpu_steps *steps;
    struct plan plan;
    uint32_t device_pool, host_pool;
    uint32_t loops;
    unsigned n_streams; /* that there are */
    void *streams[PIPELINE_STREAMS_MAX];
    uint32_t **input[MEMORIES], **output[MEMORIES]; /* a block for each batch */
    struct gpupool_buffer *buffers;                 /* those of MEMORY_POOL: input, output, input, … */
    bool is_open;                                   /* steps->close() is due */
};

/* A run, and the thread of one of its streams. */
struct run {
    struct pipeline *pipeline;
    const struct way *way;
    bool marked;
    pthread_barrier_t barrier; /* all begin together */
};

struct worker {
    struct run *run;
    pthread_t thread;
    unsigned number;
    int result;
};

/* --- input and results --- */

static uint64_t words_of(const struct pipeline *pipeline) {
    return pipeline->plan.batch_bytes / sizeof(uint32_t);
}

static uint32_t input_word(uint64_t number) {
    return (uint32_t)number * UINT32_C(2654435761) + UINT32_C(12345);
}

/* Which word of a batch the n-th sample is: the first, the last, and what lies evenly between. */
static uint64_t sample_word(const struct pipeline *pipeline, unsigned n) {
    return (words_of(pipeline) - 1) * n / (SAMPLES - 1);
}

static uint32_t sample_result(const struct pipeline *pipeline, unsigned batch, uint64_t word) {
    return pipeline_work(input_word(batch * words_of(pipeline) + word), pipeline->loops);
}

/* Makes the sampled words of the output wrong, so that results of the run before are not taken for new ones.
 */
static void spoil_output(const struct pipeline *pipeline, enum host_memory memory) {
    for (unsigned batch = 0; batch < pipeline->plan.batches; batch++)
        for (unsigned n = 0; n < SAMPLES; n++) {
            uint64_t word = sample_word(pipeline, n);
            pipeline->output[memory][batch][word] = ~sample_result(pipeline, batch, word);
        }
}

static int check_output(const struct pipeline *pipeline, const struct way *way) {
    for (unsigned batch = 0; batch < pipeline->plan.batches; batch++)
        for (unsigned n = 0; n < SAMPLES; n++) {
            uint64_t word = sample_word(pipeline, n);
            if (pipeline->output[way->memory][batch][word] != sample_result(pipeline, batch, word))
                return fail("%s: word %llu of batch %u has a wrong result", way->name,
                            (unsigned long long)word, batch);
        }
    return 0;
}

/* --- a run --- */

/* Everything that there is to do for a batch, enqueued on its stream. */
static int enqueue_batch(const struct run *run, unsigned batch, void *stream) {
    struct pipeline *pipeline = run->pipeline;
    const struct gpu_steps *steps = pipeline->steps;
    const struct way *way = run->way;
    const uint64_t size_bytes = pipeline->plan.batch_bytes;
    size_t mark = FIRST_MARK + (size_t)batch * MARKS_OF_BATCH;
    struct gpupool_buffer device;

    if (gpupool_acquire(pipeline->client, pipeline->device_pool, size_bytes, stream, ROOM_NS, 0, &device) < 0)
        return fail_gpupool("acquiring device memory");
    int r = run->marked ? steps->mark(mark++, stream) : 0;
    if (r == 0 && way->steps & STEP_BIT(STEP_IN))
        r = steps->copy(device.data, pipeline->input[way->memory][batch], size_bytes, stream);
    if (r == 0 && run->marked)
        r = steps->mark(mark++, stream);
    if (r == 0 && way->steps & STEP_BIT(STEP_COMPUTE))
        r = steps->compute(device.data, words_of(pipeline), pipeline->loops, stream);
    if (r == 0 && run->marked)
        r = steps->mark(mark++, stream);
    if (r == 0 && way->steps & STEP_BIT(STEP_OUT))
        r = steps->copy(pipeline->output[way->memory][batch], device.data, size_bytes, stream);
    if (r == 0 && run->marked)
        r = steps->mark(mark, stream);
    if (gpupool_release(pipeline->client, &device, stream) < 0)
        r = fail_gpupool("releasing device memory");
    return r;
}

static void *worker_main(void *argument) {
    struct worker *worker = argument;
    struct run *run = worker->run;
    struct pipeline *pipeline = run->pipeline;
    void *stream = pipeline->streams[worker->number];

    worker->result =
        pipeline->steps->synchronize(stream); /* the thread's first call to the driver takes long */
    pthread_barrier_wait(&run->barrier);      /* all are there */
    pthread_barrier_wait(&run->barrier);      /* the clock is running */
    for (unsigned batch = worker->number; batch < pipeline->plan.batches && worker->result == 0;
         batch += run->way->streams)
        worker->result = enqueue_batch(run, batch, stream);
    if (pipeline->steps->synchronize(stream) < 0)
        worker->result = -1;
    return NULL;
}

static int run_once(struct pipeline *pipeline, const struct way *way, bool marked, uint64_t *ret_ns) {
    struct run run = {.pipeline = pipeline, .way = way, .marked = marked};
    struct worker workers[PIPELINE_STREAMS_MAX];
    int r = 0;

    if (way->steps == STEP_ALL)
        spoil_output(pipeline, way->memory);
    if (pthread_barrier_init(&run.barrier, NULL, way->streams + 1) != 0)
        return fail("no barrier");
    for (unsigned i = 0; i < way->streams; i++) {
        workers[i] = (struct worker){.run = &run, .number = i};
        if (pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]) != 0) {
            fail("no thread for stream %u", i); /* the others stand at the barrier */
            exit(EXIT_FAILURE);
        }
    }
    pthread_barrier_wait(&run.barrier);
    uint64_t begin_ns = now_ns();
    if (marked)
        r = pipeline->steps->mark(0, pipeline->streams[0]);
    pthread_barrier_wait(&run.barrier);
    for (unsigned i = 0; i < way->streams; i++) {
        pthread_join(workers[i].thread, NULL);
        if (workers[i].result < 0)
            r = -1;
    }
    *ret_ns = now_ns() - begin_ns;
    pthread_barrier_destroy(&run.barrier);
    if (r == 0 && way->steps == STEP_ALL)
        r = check_output(pipeline, way);
    return r;
}

int pipeline_run(struct pipeline *pipeline, const struct way *way, uint64_t *ret_ns) {
    return run_once(pipeline, way, false, ret_ns);
}

/* --- a run with times --- */

static int compare_ends(const void *left, const void *right) {
    const struct span *a = *(const struct span *const *)left, *b = *(const struct span *const *)right;
    return (a->end_ns > b->end_ns) - (a->end_ns < b->end_ns);
}

/* A step begins when its stream has come to it. But where the steps of all streams go through one engine, it
 * begins behind the step that went through it before. */
static int wait_for_engines(struct span *spans, unsigned batches) {
    const struct span **order = calloc(batches, sizeof *order);

    if (order == NULL)
        return fail("no memory");
    for (unsigned step = 0; step < STEPS; step++) {
        for (unsigned batch = 0; batch < batches; batch++)
            order[batch] = &spans[batch * STEPS + step];
        qsort(order, batches, sizeof *order, compare_ends);
        for (unsigned i = 1; i < batches; i++) {
            struct span *span = spans + (order[i] - spans);
            if (span->begin_ns < order[i - 1]->end_ns)
                span->begin_ns = order[i - 1]->end_ns;
        }
    }
    free(order);
    return 0;
}

static int read_spans(const struct pipeline *pipeline, struct span *spans) {
    for (unsigned batch = 0; batch < pipeline->plan.batches; batch++) {
        uint64_t ns[MARKS_OF_BATCH];
        for (unsigned i = 0; i < MARKS_OF_BATCH; i++)
            if (pipeline->steps->elapsed(FIRST_MARK + (size_t)batch * MARKS_OF_BATCH + i, &ns[i]) < 0)
                return -1;
        for (unsigned step = 0; step < STEPS; step++)
            spans[batch * STEPS + step] = (struct span){ns[step], ns[step], ns[step + 1]};
    }
    return pipeline->steps->engines_are_shared ? wait_for_engines(spans, pipeline->plan.batches) : 0;
}

int pipeline_trace(struct pipeline *pipeline, struct way *way) {
    way->spans = calloc((size_t)pipeline->plan.batches * STEPS, sizeof *way->spans);
    if (way->spans == NULL)
        return fail("no memory");
    int r = run_once(pipeline, way, true, &way->traced_ns);
    return r < 0 ? r : read_spans(pipeline, way->spans);
}

/* --- how long to compute --- */

/* The best of a few: what disturbs makes it longer only. */
static int least_of(struct pipeline *pipeline, unsigned steps, uint64_t *ret_ns) {
    struct way way = {.name = "calibration", .memory = MEMORY_POOL, .streams = 1, .steps = steps};
    uint64_t least = UINT64_MAX;

    for (unsigned i = 0; i < 3; i++) {
        uint64_t ns;
        if (pipeline_run(pipeline, &way, &ns) < 0)
            return -1;
        least = ns < least ? ns : least;
    }
    *ret_ns = least > 0 ? least : 1;
    return 0;
}

int pipeline_calibrate(struct pipeline *pipeline, uint32_t *ret_loops) {
    uint64_t in_ns, out_ns, one_ns, ns;

    if (least_of(pipeline, STEP_BIT(STEP_IN), &in_ns) < 0 ||
        least_of(pipeline, STEP_BIT(STEP_OUT), &out_ns) < 0)
        return -1;
    const double wanted =
        (double)(in_ns > out_ns ? in_ns : out_ns) * (double)pipeline->plan.compute_percent / 100.0;
    /* The time is a straight line over the loops: from one loop, and as many as take long enough to be told
     * apart from it. */
    pipeline->loops = 1;
    if (least_of(pipeline, STEP_BIT(STEP_COMPUTE), &one_ns) < 0)
        return -1;
    for (ns = one_ns; (double)ns < wanted / 2 && pipeline->loops < LOOPS_MAX;) {
        pipeline->loops *= 2;
        if (least_of(pipeline, STEP_BIT(STEP_COMPUTE), &ns) < 0)
            return -1;
    }
    double loops = 1;
    if (pipeline->loops > 1 && ns > one_ns)
        loops = 1 + (pipeline->loops - 1) * (wanted - (double)one_ns) / (double)(ns - one_ns);
    pipeline->loops = loops < 1 ? 1 : loops > LOOPS_MAX ? LOOPS_MAX : (uint32_t)(loops + 0.5);
    *ret_loops = pipeline->loops;
    return 0;
}

/* --- from the beginning to the end --- */

static int take_pageable(struct pipeline *pipeline) {
    for (unsigned i = 0; i < pipeline->plan.batches; i++) {
        pipeline->input[MEMORY_PAGEABLE][i] = malloc(pipeline->plan.batch_bytes);
        pipeline->output[MEMORY_PAGEABLE][i] = malloc(pipeline->plan.batch_bytes);
        if (pipeline->input[MEMORY_PAGEABLE][i] == NULL || pipeline->output[MEMORY_PAGEABLE][i] == NULL)
            return fail("no memory for the batches");
        memset(pipeline->output[MEMORY_PAGEABLE][i], 0, pipeline->plan.batch_bytes); /* its pages are there */
    }
    return 0;
}

static int take_pooled(struct pipeline *pipeline) {
    pipeline->buffers = calloc((size_t)2 * pipeline->plan.batches, sizeof *pipeline->buffers);
    if (pipeline->buffers == NULL)
        return fail("no memory");
    for (unsigned i = 0; i < 2 * pipeline->plan.batches; i++) {
        if (gpupool_acquire(pipeline->client, pipeline->host_pool, pipeline->plan.batch_bytes,
                            GPUPOOL_NO_STREAM, ROOM_NS, 0, &pipeline->buffers[i]) < 0)
            return fail_gpupool("acquiring host memory");
        (i % 2 == 0 ? pipeline->input : pipeline->output)[MEMORY_POOL][i / 2] = pipeline->buffers[i].data;
    }
    return 0;
}

static void fill_input(struct pipeline *pipeline) {
    for (unsigned batch = 0; batch < pipeline->plan.batches; batch++) {
        uint32_t *words = pipeline->input[MEMORY_PAGEABLE][batch];
        for (uint64_t i = 0; i < words_of(pipeline); i++)
            words[i] = input_word(batch * words_of(pipeline) + i);
        memcpy(pipeline->input[MEMORY_POOL][batch], words, pipeline->plan.batch_bytes);
    }
}

static int pipeline_init(struct pipeline *pipeline) {
    const unsigned batches = pipeline->plan.batches;

    if (gpupool_device_pool(pipeline->client, 0, &pipeline->device_pool) < 0 ||
        gpupool_host_pool(pipeline->client, -1, &pipeline->host_pool) < 0)
        return fail_gpupool("finding the pools");
    pipeline->is_open = true;
    if (pipeline->steps->open(pipeline->client, FIRST_MARK + (size_t)batches * MARKS_OF_BATCH) < 0)
        return -1;
    for (; pipeline->n_streams < pipeline->plan.streams; pipeline->n_streams++)
        if (gpupool_stream_create(pipeline->client, 0, &pipeline->streams[pipeline->n_streams]) < 0)
            return fail_gpupool("creating a stream");
    for (unsigned i = 0; i < MEMORIES; i++) {
        pipeline->input[i] = calloc(batches, sizeof *pipeline->input[i]);
        pipeline->output[i] = calloc(batches, sizeof *pipeline->output[i]);
        if (pipeline->input[i] == NULL || pipeline->output[i] == NULL)
            return fail("no memory");
    }
    if (take_pageable(pipeline) < 0 || take_pooled(pipeline) < 0)
        return -1;
    fill_input(pipeline);
    return 0;
}

int pipeline_new(struct gpupool_client *client, const struct gpu_steps *steps, const struct plan *plan,
                 struct pipeline **ret_pipeline) {
    struct pipeline *pipeline = calloc(1, sizeof *pipeline);

    if (pipeline == NULL)
        return fail("no memory");
    pipeline->client = client;
    pipeline->steps = steps;
    pipeline->plan = *plan;
    pipeline->loops = 1;
    if (pipeline_init(pipeline) < 0) {
        pipeline_free(pipeline);
        return -1;
    }
    *ret_pipeline = pipeline;
    return 0;
}

void pipeline_free(struct pipeline *pipeline) {
    if (pipeline == NULL)
        return;
    for (unsigned i = 0; pipeline->buffers != NULL && i < 2 * pipeline->plan.batches; i++)
        if (pipeline->buffers[i].data != NULL) /* the streams are through: no work uses it */
            gpupool_release(pipeline->client, &pipeline->buffers[i], GPUPOOL_NO_STREAM);
    free(pipeline->buffers);
    for (unsigned i = 0; i < pipeline->plan.batches; i++) {
        if (pipeline->input[MEMORY_PAGEABLE] != NULL)
            free(pipeline->input[MEMORY_PAGEABLE][i]);
        if (pipeline->output[MEMORY_PAGEABLE] != NULL)
            free(pipeline->output[MEMORY_PAGEABLE][i]);
    }
    for (unsigned i = 0; i < MEMORIES; i++) {
        free(pipeline->input[i]);
        free(pipeline->output[i]);
    }
    while (pipeline->n_streams > 0)
        gpupool_stream_destroy(pipeline->client, 0, pipeline->streams[--pipeline->n_streams]);
    if (pipeline->is_open)
        pipeline->steps->close();
    free(pipeline);
}
