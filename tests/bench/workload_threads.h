/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_BENCH_WORKLOAD_THREADS_H
#define TESTS_BENCH_WORKLOAD_THREADS_H
/* A part of workload.h, which includes it: threads with a stream each, and memory that one thread takes and
 * another gives back. */

#define WORKLOAD_THREAD_BATCH 64u /* pairs between two looks at whether to stop */
#define WORKLOAD_THREAD_BYTES (UINT64_C(1) << 20)
#define WORKLOAD_HAND_BUFFERS 64u
#define WORKLOAD_HAND_BYTES   (UINT64_C(64) << 10)
#define WORKLOAD_HAND_ROUNDS  5u
#define WORKLOAD_HAND_WARM    30u /* rounds at most until it is quiet */
#define WORKLOAD_HAND_QUIET   3u  /* rounds without a message */

struct workload_thread {
    pthread_t thread;
    pthread_barrier_t *barrier;
    const bool *stop;
    uint64_t pairs, start_ns, end_ns;
    char apart[128]; /* neighbours write to lines of their own */
};

static void *workload_thread_main(void *argument) {
    struct workload_thread *self = (struct workload_thread *)argument;
    void *stream = subject_stream_new();

    workload_time_pairs(WORKLOAD_THREAD_BYTES, stream, 1000);
    pthread_barrier_wait(self->barrier);
    self->start_ns = clock_now_ns();
    while (!__atomic_load_n(self->stop, __ATOMIC_RELAXED)) {
        struct subject_block block;
        for (unsigned i = 0; i < WORKLOAD_THREAD_BATCH; i++) {
            subject_take(&block, WORKLOAD_THREAD_BYTES, stream);
            subject_give(&block, stream);
        }
        self->pairs += WORKLOAD_THREAD_BATCH;
    }
    self->end_ns = clock_now_ns();
    subject_settle(stream);
    return NULL;
}

/* Each thread with a stream of its own, until time is up: pairs a second of all together, from the first
 * start to the last end. */
static inline void workload_threads(const struct workload *work) {
    for (unsigned n = 0; n < work->n_threads; n++) {
        static bool stop __attribute__((aligned(128)));
        unsigned count = (unsigned)work->threads[n];
        struct workload_thread *threads =
            (struct workload_thread *)workload_allocate(count * sizeof *threads);
        struct timespec figure;
        pthread_barrier_t barrier;
        uint64_t pairs = 0, start = UINT64_MAX, end = 0;

        figure.tv_sec = (time_t)(work->figure_ns / NS_PER_S);
        figure.tv_nsec = (long)(work->figure_ns % NS_PER_S);
        stop = false;
        pthread_barrier_init(&barrier, NULL, count + 1);
        for (unsigned i = 0; i < count; i++) {
            threads[i].barrier = &barrier;
            threads[i].stop = &stop;
            if (pthread_create(&threads[i].thread, NULL, workload_thread_main, &threads[i]) != 0)
                abort();
        }
        pthread_barrier_wait(&barrier);
        nanosleep(&figure, NULL);
        __atomic_store_n(&stop, true, __ATOMIC_RELAXED);
        for (unsigned i = 0; i < count; i++) {
            pthread_join(threads[i].thread, NULL);
            pairs += threads[i].pairs;
            start = threads[i].start_ns < start ? threads[i].start_ns : start;
            end = threads[i].end_ns > end ? threads[i].end_ns : end;
        }
        pthread_barrier_destroy(&barrier);
        free(threads);
        workload_begin(work, "threads");
        printf("\"threads\": %u}, \"values\": {\"pairs_per_s\": %.0f}}\n", count,
               (double)pairs * 1e9 / (double)(end - start));
        fflush(stdout);
    }
}

/* --- from thread to thread
 * ---------------------------------------------------------------------------------------- */

/* A ring of blocks: the producer takes them, the consumer gives them back. */
struct workload_ring {
    struct subject_block blocks[WORKLOAD_HAND_BUFFERS];
    void *stream;
    unsigned pairs;
    bool allocates; /* false: the ring alone, which is what it costs by itself */
    unsigned produced __attribute__((aligned(128)));
    unsigned consumed __attribute__((aligned(128)));
    bool over; /* nothing more is produced */
};

static void *workload_consumer_main(void *argument) {
    struct workload_ring *ring = (struct workload_ring *)argument;
    unsigned spins = 0;
    for (unsigned i = 0;; i++) {
        while (__atomic_load_n(&ring->produced, __ATOMIC_ACQUIRE) == i) {
            if (__atomic_load_n(&ring->over, __ATOMIC_ACQUIRE))
                return NULL;
            workload_relax(&spins);
        }
        if (ring->allocates)
            subject_give(&ring->blocks[i % WORKLOAD_HAND_BUFFERS], ring->stream);
        __atomic_store_n(&ring->consumed, i + 1, __ATOMIC_RELEASE);
    }
}

/* A round of pairs, until the last has been given back: nanoseconds. `at` counts them through all rounds. */
static inline uint64_t workload_hand_round(struct workload_ring *ring, unsigned *at) {
    unsigned spins = 0, i = *at;
    uint64_t start = clock_now_ns();

    for (unsigned end = i + ring->pairs; i < end; i++) {
        while (i - __atomic_load_n(&ring->consumed, __ATOMIC_ACQUIRE) >= WORKLOAD_HAND_BUFFERS)
            workload_relax(&spins);
        if (ring->allocates)
            subject_take(&ring->blocks[i % WORKLOAD_HAND_BUFFERS], WORKLOAD_HAND_BYTES, ring->stream);
        __atomic_store_n(&ring->produced, i + 1, __ATOMIC_RELEASE);
    }
    while (__atomic_load_n(&ring->consumed, __ATOMIC_ACQUIRE) != i)
        workload_relax(&spins);
    *at = i;
    return clock_now_ns() - start;
}

/* Until as many rounds in a row as are to be quiet had no message for the daemon: the number of blocks
 * between the threads differs from round to round, and may reach its most late. A subject without a daemon
 * warms up for so many rounds. */
static inline void workload_hand_warm(const struct workload *work, struct workload_ring *ring, unsigned *at) {
    uint64_t before = 0, now;
    for (unsigned round = 0, quiet = 0; round < WORKLOAD_HAND_WARM && quiet < WORKLOAD_HAND_QUIET; round++) {
        workload_hand_round(ring, at);
        now = ring->allocates ? workload_mark(work, "hand_over warms up") : 0;
        quiet = now == before ? quiet + 1 : 0;
        before = now;
    }
}

/* Nanoseconds of a pair: the median of rounds, once warm. */
static inline double workload_hand_over(const struct workload *work, void *stream, bool allocates) {
    struct workload_ring *ring = (struct workload_ring *)aligned_alloc(128, (sizeof *ring + 127) / 128 * 128);
    double ns[WORKLOAD_HAND_ROUNDS];
    unsigned at = 0;
    pthread_t consumer;

    if (ring == NULL)
        abort();
    memset((void *)ring, 0, sizeof *ring);
    ring->stream = stream;
    ring->pairs = work->hand_pairs;
    ring->allocates = allocates;
    if (pthread_create(&consumer, NULL, workload_consumer_main, ring) != 0)
        abort();
    workload_hand_warm(work, ring, &at);
    if (allocates)
        workload_mark(work, "hand_over begins");
    for (unsigned round = 0; round < WORKLOAD_HAND_ROUNDS; round++)
        ns[round] = (double)workload_hand_round(ring, &at) / ring->pairs;
    if (allocates)
        workload_mark(work, "hand_over ends");
    __atomic_store_n(&ring->over, true, __ATOMIC_RELEASE);
    pthread_join(consumer, NULL);
    subject_settle(stream);
    free(ring);
    return figure_median(ns, WORKLOAD_HAND_ROUNDS);
}

#endif
