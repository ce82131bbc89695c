/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a warm acquire and release pair costs in a client with a cache: by size, by buffer and by pointer, on
 * a random mix with many buffers live, from several threads, and where one thread takes and another gives
 * back. In the same run, the same pair without the cache.
 *
 *     pairs [--json FILE]
 *
 * Connects to the daemon that GPUPOOL_SOCKET names; device memory where there is some, else host memory.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <gpupool/gpupool.h>

#include "base/clock.h"
#include "base/units.h"

#define WARM_PAIRS   1000000u
#define COLD_PAIRS   2000u
#define MIX_LIVE     1000u
#define MIX_STEPS    1000000u
#define HAND_BUFFERS 64u
#define HAND_PAIRS   1000000u
#define THREADS_MAX  8u

static void fail(const char *what) {
    fprintf(stderr, "pairs: %s: %s\n", what, gpupool_error_text());
    exit(1);
}

static struct gpupool_client *client;
static uint32_t pool;
static bool is_device;

static double warm_pair(struct gpupool_client *of, uint64_t size_bytes, void *stream, unsigned pairs) {
    struct gpupool_buffer buffer;
    uint64_t best = UINT64_MAX;

    for (unsigned turn = 0; turn < 3; turn++) {
        uint64_t start = clock_now_ns();
        for (unsigned i = 0; i < pairs; i++) {
            if (gpupool_acquire(of, pool, size_bytes, stream, GPUPOOL_FOREVER, 0, &buffer) < 0 ||
                gpupool_release(of, &buffer, stream) < 0)
                fail("a pair");
        }
        uint64_t ns = clock_now_ns() - start;
        best = ns < best ? ns : best;
    }
    return (double)best / pairs;
}

/* The same by pointers. */
static double pointer_pair(uint64_t size_bytes, void *stream, unsigned pairs) {
    uint64_t best = UINT64_MAX;

    for (unsigned turn = 0; turn < 3; turn++) {
        uint64_t start = clock_now_ns();
        for (unsigned i = 0; i < pairs; i++) {
            void *memory = gpupool_alloc(client, pool, size_bytes, stream);
            if (memory == NULL || gpupool_free(memory, stream) < 0)
                fail("a pair by pointer");
        }
        uint64_t ns = clock_now_ns() - start;
        best = ns < best ? ns : best;
    }
    return (double)best / pairs;
}

static uint64_t random_state = 88172645463325252u;
static uint64_t random64(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* Sizes from 512 B to 32 MiB, each power of two as likely as another: a random live buffer is replaced in
 * each step. */
static double random_mix(void *stream) {
    struct gpupool_buffer *buffers = calloc(MIX_LIVE, sizeof *buffers);
    uint64_t sizes[1024];
    for (unsigned i = 0; i < 1024; i++)
        sizes[i] = (UINT64_C(512) << random64() % 16) + random64() % 512;
    for (unsigned i = 0; i < MIX_LIVE; i++)
        if (gpupool_acquire(client, pool, sizes[i], stream, GPUPOOL_FOREVER, 0, &buffers[i]) < 0)
            fail("the mix");
    uint64_t ns = 0;
    for (unsigned round = 0; round < 2; round++) { /* the first warms up */
        uint64_t start = clock_now_ns();
        for (unsigned i = 0; i < MIX_STEPS / 2; i++) {
            struct gpupool_buffer *buffer = &buffers[random64() % MIX_LIVE];
            if (gpupool_release(client, buffer, stream) < 0 ||
                gpupool_acquire(client, pool, sizes[random64() % 1024], stream, GPUPOOL_FOREVER, 0, buffer) <
                    0)
                fail("the mix");
        }
        ns = clock_now_ns() - start;
    }
    for (unsigned i = 0; i < MIX_LIVE; i++)
        gpupool_release(client, &buffers[i], stream);
    free(buffers);
    return (double)ns / (MIX_STEPS / 2);
}

static atomic_uint at_start;
static unsigned n_threads;

static void *pair_main(void *argument) {
    double *ret_ns = argument;
    void *stream = GPUPOOL_NO_STREAM;
    if (is_device && gpupool_stream_create(client, 0, &stream) < 0)
        fail("stream");
    warm_pair(client, 1 * MIB, stream, 1000);
    atomic_fetch_add(&at_start, 1);
    while (atomic_load(&at_start) < n_threads) {
    }
    *ret_ns = warm_pair(client, 1 * MIB, stream, WARM_PAIRS);
    return NULL;
}

/* Pairs a second of so many threads together, in millions. */
static double threads_together(unsigned count) {
    pthread_t threads[THREADS_MAX];
    double ns[THREADS_MAX], rate = 0;
    n_threads = count;
    at_start = 0;
    for (unsigned i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, pair_main, &ns[i]);
    for (unsigned i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < count; i++)
        rate += 1e3 / ns[i];
    return rate;
}

/* A ring of buffers between two threads. */
static struct gpupool_buffer ring[HAND_BUFFERS];
static _Alignas(64) atomic_uint produced;
static _Alignas(64) atomic_uint consumed;

static void *consumer_main(void *stream) {
    for (unsigned i = 0; i < HAND_PAIRS; i++) {
        while (atomic_load_explicit(&produced, memory_order_acquire) == i) {
        }
        if (gpupool_release(client, &ring[i % HAND_BUFFERS], stream) < 0)
            fail("a release by another thread");
        atomic_store_explicit(&consumed, i + 1, memory_order_release);
    }
    return NULL;
}

static double hand_over(void *stream) {
    pthread_t consumer;
    produced = consumed = 0;
    pthread_create(&consumer, NULL, consumer_main, stream);
    uint64_t start = clock_now_ns();
    for (unsigned i = 0; i < HAND_PAIRS; i++) {
        while (i - atomic_load_explicit(&consumed, memory_order_acquire) >= HAND_BUFFERS) {
        }
        if (gpupool_acquire(client, pool, 64 * KIB, stream, GPUPOOL_FOREVER, 0, &ring[i % HAND_BUFFERS]) < 0)
            fail("an acquire for another thread");
        atomic_store_explicit(&produced, i + 1, memory_order_release);
    }
    pthread_join(consumer, NULL);
    return (double)(clock_now_ns() - start) / HAND_PAIRS;
}

int main(int argc, char **argv) {
    static const uint64_t sizes[] = {512, 4 * KIB, 64 * KIB, 1 * MIB, 64 * MIB, 1 * GIB};
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT, uncached = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *plain;
    void *stream = GPUPOOL_NO_STREAM;
    FILE *json = argc == 3 && strcmp(argv[1], "--json") == 0 ? fopen(argv[2], "we") : NULL;

    uncached.flags = GPUPOOL_OPEN_NO_CACHE;
    if (gpupool_open(&uncached, &plain) < 0 || gpupool_open(&options, &client) < 0)
        fail("open");
    is_device = gpupool_gpu_kind(client) != GPUPOOL_GPU_NONE;
    if ((is_device ? gpupool_device_pool(client, 0, &pool) : gpupool_host_pool(client, -1, &pool)) < 0)
        fail("pool");
    if (is_device && gpupool_stream_create(client, 0, &stream) < 0)
        fail("stream");
    if (json != NULL)
        fprintf(json, "{\"gpu\": %d, \"warm_pair_ns\": {", (int)gpupool_gpu_kind(client));
    printf("%s memory%s\n", is_device ? "device" : "host",
           gpupool_gpu_kind(client) == GPUPOOL_GPU_SIM ? " of a simulated GPU" : "");
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        double ns = warm_pair(client, sizes[i], stream, WARM_PAIRS);
        printf("warm pair, %-8s %8.1f ns\n", BYTES_TEXT(sizes[i]), ns);
        if (json != NULL)
            fprintf(json, "%s\"%llu\": %.1f", i == 0 ? "" : ", ", (unsigned long long)sizes[i], ns);
    }
    if (json != NULL)
        fprintf(json, "}, \"pointer_pair_ns\": {");
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        double ns = pointer_pair(sizes[i], stream, WARM_PAIRS);
        printf("by pointer, %-7s %8.1f ns\n", BYTES_TEXT(sizes[i]), ns);
        if (json != NULL)
            fprintf(json, "%s\"%llu\": %.1f", i == 0 ? "" : ", ", (unsigned long long)sizes[i], ns);
    }
    double cold = warm_pair(plain, 1 * MIB, stream, COLD_PAIRS), mix = random_mix(stream),
           hand = hand_over(stream);
    printf("without the cache, 1 MiB %.0f ns\n", cold);
    printf("random mix, %u live %8.1f ns a pair\n", MIX_LIVE, mix);
    printf("taken here, given back by another thread %8.1f ns a pair\n", hand);
    if (json != NULL)
        fprintf(json,
                "}, \"uncached_pair_ns\": %.0f, \"mix_pair_ns\": %.1f, \"hand_over_pair_ns\": %.1f, "
                "\"million_pairs_per_s\": {",
                cold, mix, hand);
    for (unsigned count = 1; count <= THREADS_MAX; count *= 2) {
        double rate = threads_together(count);
        printf("%u thread%s %8.1f million pairs/s\n", count, count == 1 ? "" : "s", rate);
        if (json != NULL)
            fprintf(json, "%s\"%u\": %.1f", count == 1 ? "" : ", ", count, rate);
    }
    if (json != NULL) {
        fprintf(json, "}}\n");
        fclose(json);
    }
    gpupool_close(client);
    gpupool_close(plain);
    return 0;
}
