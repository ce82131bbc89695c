/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times acquires at a pool's limit, by 8 threads that together want nearly all of the pool. Each thread keeps
 * host buffers of random sizes (64 KiB to 2 MiB, each power of two as likely as the others), up to an eighth
 * of the wanted bytes, and replaces one at random. So one thread needs memory that another thread's cache
 * keeps. A client with a cache and one without (each acquire asks the daemon) take turns.
 *
 *     limit [--json FILE] [--want SIZE] [--milliseconds N] [--rounds N]     default: 457MiB, 2000, 3
 *
 * Connects to the daemon that GPUPOOL_SOCKET names, whose host pool should have a limit of 512 MiB. Acquires
 * that end in the first fifth of a turn are not counted, because segments are mapped for the first time then.
 * A request that finds no large enough block within a second is refused, and counts with that second. The
 * thread goes on.
 */
#include <getopt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gpupool/gpupool.h>

#include "base/clock.h"
#include "base/units.h"
#include "tests/random.h"

#define THREADS       8u
#define SLOTS         256u
#define SIZE_MIN      (64 * KIB)
#define SIZE_DOUBLES  5u /* up to 2 MiB */
#define WAIT_NS       NS_PER_S
#define MANTISSA_BITS 5u /* of a time: a bucket is a thirty-second of it wide */
#define BUCKETS       (64u << MANTISSA_BITS)

/* Times, in buckets: a client with a cache does too many to keep each. */
struct times {
    uint64_t buckets[BUCKETS];
    uint64_t count, max_ns, refused;
};

struct worker {
    pthread_t thread;
    struct gpupool_client *client;
    uint32_t pool;
    uint64_t share_bytes, counts_from_ns, end_ns, seed;
    struct times times;
};

static struct {
    FILE *json;
    uint64_t want_bytes, milliseconds;
    unsigned rounds;
} options = {.want_bytes = 457 * MIB, .milliseconds = 2000, .rounds = 3};

static void fail(const char *what) {
    fprintf(stderr, "limit: %s: %s\n", what, gpupool_error_text());
    exit(1);
}

/* --- times --- */

static unsigned bucket_of(uint64_t ns) {
    if (ns < 1u << MANTISSA_BITS)
        return (unsigned)ns;
    unsigned exponent = 63u - (unsigned)__builtin_clzll(ns) - MANTISSA_BITS;
    return ((exponent + 1) << MANTISSA_BITS) + (unsigned)((ns >> exponent) & ((1u << MANTISSA_BITS) - 1));
}

/* The longest time of a bucket. */
static uint64_t bucket_ns(unsigned bucket) {
    unsigned exponent = bucket >> MANTISSA_BITS, mantissa = bucket & ((1u << MANTISSA_BITS) - 1);
    if (exponent == 0)
        return mantissa;
    return ((UINT64_C(1) << MANTISSA_BITS | mantissa) + 1) * (UINT64_C(1) << (exponent - 1)) - 1;
}

static void times_add(struct times *times, uint64_t ns) {
    times->buckets[bucket_of(ns)]++;
    times->count++;
    if (ns > times->max_ns)
        times->max_ns = ns;
}

static void times_join(struct times *times, const struct times *others) {
    for (unsigned i = 0; i < BUCKETS; i++)
        times->buckets[i] += others->buckets[i];
    times->count += others->count;
    times->refused += others->refused;
    if (others->max_ns > times->max_ns)
        times->max_ns = others->max_ns;
}

static uint64_t times_quantile(const struct times *times, double fraction) {
    uint64_t seen = 0, wanted = (uint64_t)(fraction * (double)times->count);
    for (unsigned i = 0; i < BUCKETS; i++) {
        seen += times->buckets[i];
        if (seen > wanted)
            return bucket_ns(i) < times->max_ns ? bucket_ns(i) : times->max_ns;
    }
    return times->max_ns;
}

/* --- threads --- */

static uint64_t random_size(uint64_t *seed) {
    uint64_t size_bytes = SIZE_MIN << random_next(seed) % SIZE_DOUBLES;
    return size_bytes + random_next(seed) % size_bytes;
}

static void *work(void *argument) {
    struct worker *worker = argument;
    struct gpupool_buffer buffers[SLOTS];
    uint64_t held_bytes = 0;

    memset(buffers, 0, sizeof buffers);
    for (;;) {
        struct gpupool_buffer *buffer = &buffers[random_next(&worker->seed) % SLOTS];
        if (buffer->size_bytes > 0) {
            held_bytes -= buffer->capacity_bytes;
            if (gpupool_release(worker->client, buffer, GPUPOOL_NO_STREAM) < 0)
                fail("release");
        }
        uint64_t size_bytes = random_size(&worker->seed);
        if (held_bytes + size_bytes + KIB > worker->share_bytes)
            continue;
        uint64_t start_ns = clock_now_ns();
        if (start_ns >= worker->end_ns)
            break;
        int r =
            gpupool_acquire(worker->client, worker->pool, size_bytes, GPUPOOL_NO_STREAM, WAIT_NS, 0, buffer);
        if (r < 0 && r != GPUPOOL_E_EXHAUSTED)
            fail("acquire");
        uint64_t took_ns = clock_now_ns() - start_ns;
        if (start_ns + took_ns >= worker->counts_from_ns)
            times_add(&worker->times, took_ns);
        worker->times.refused += r < 0;
        held_bytes += buffer->capacity_bytes;
    }
    for (unsigned i = 0; i < SLOTS; i++)
        if (buffers[i].size_bytes > 0 && gpupool_release(worker->client, &buffers[i], GPUPOOL_NO_STREAM) < 0)
            fail("release");
    return NULL;
}

/* One turn of a client; adds its times. */
static void take_turn(uint32_t flags, unsigned round, struct times *times) {
    struct gpupool_options open_options = GPUPOOL_OPTIONS_INIT;
    static struct worker workers[THREADS];
    struct gpupool_client *client;
    uint32_t pool;

    open_options.flags = flags;
    if (gpupool_open(&open_options, &client) < 0 || gpupool_host_pool(client, -1, &pool) < 0)
        fail("open");
    uint64_t now_ns = clock_now_ns(), length_ns = options.milliseconds * NS_PER_MS;
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.client = client,
                                     .pool = pool,
                                     .share_bytes = options.want_bytes / THREADS,
                                     .counts_from_ns = now_ns + length_ns / 5,
                                     .end_ns = now_ns + length_ns,
                                     .seed = random_seed(round * THREADS + i)};
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
            fail("a thread");
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        times_join(times, &workers[i].times);
    }
    gpupool_close(client);
}

static void print(const char *name, const struct times *times, bool last) {
    uint64_t p50 = times_quantile(times, 0.5), p99 = times_quantile(times, 0.99),
             p999 = times_quantile(times, 0.999);
    printf("%-12s %9llu %10s %10s %10s %10s %9llu\n", name, (unsigned long long)times->count, NS_TEXT(p50),
           NS_TEXT(p99), NS_TEXT(p999), NS_TEXT(times->max_ns), (unsigned long long)times->refused);
    if (options.json != NULL)
        fprintf(options.json,
                "  \"%s\": {\"count\": %llu, \"p50_ns\": %llu, \"p99_ns\": %llu, \"p999_ns\": %llu, "
                "\"max_ns\": %llu, \"refused\": %llu}%s\n",
                name, (unsigned long long)times->count, (unsigned long long)p50, (unsigned long long)p99,
                (unsigned long long)p999, (unsigned long long)times->max_ns,
                (unsigned long long)times->refused, last ? "" : ",");
}

static _Noreturn void usage(void) {
    fprintf(stderr, "usage: limit [--json FILE] [--want SIZE] [--milliseconds N] [--rounds N]\n");
    exit(2);
}

static void parse(int argc, char **argv) {
    static const struct option known[] = {
        {"json", required_argument, NULL, 'j'},
        {"want", required_argument, NULL, 'w'},
        {"milliseconds", required_argument, NULL, 'm'},
        {"rounds", required_argument, NULL, 'r'},
        {NULL, 0, NULL, 0},
    };
    int option;

    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (option == 'j')
            options.json = fopen(optarg, "we");
        else if (option == 'w' && units_parse_bytes(optarg, &options.want_bytes) == 0)
            ;
        else if (option == 'm')
            options.milliseconds = strtoull(optarg, NULL, 10);
        else if (option == 'r')
            options.rounds = (unsigned)strtoul(optarg, NULL, 10);
        else
            usage();
    }
    if (optind < argc)
        usage();
}

int main(int argc, char **argv) {
    static struct times cached, uncached;

    parse(argc, argv);
    for (unsigned round = 0; round < options.rounds; round++) {
        take_turn(0, round, &cached);
        take_turn(GPUPOOL_OPEN_NO_CACHE, round, &uncached);
    }
    printf("%-12s %9s %10s %10s %10s %10s %9s\n", "acquire", "count", "p50", "p99", "p99.9", "longest",
           "refused");
    if (options.json != NULL)
        fprintf(options.json, "{\"times\": {\n");
    print("cached", &cached, false);
    print("uncached", &uncached, true);
    if (options.json != NULL) {
        fprintf(options.json, "}}\n");
        fclose(options.json);
    }
    return 0;
}
