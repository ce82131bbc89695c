/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures an acquire that only scattered memory serves: every second piece of a pool at its limit is free,
 * and a buffer as large as all of these is acquired, beside a kernel that runs on another stream. The
 * launches of another thread are timed meanwhile. Each round is a client of its own, for afterwards the
 * memory is together.
 *
 *     rows [--json FILE] [--want SIZE] [--piece SIZE] [--rounds N] [--milliseconds N]
 *     default: 1GiB, 32MiB, 5, 100 (of a kernel)
 *
 * Connects to the daemon that GPUPOOL_SOCKET names, whose device pool should be limited to a little more than
 * twice the size wanted.
 */
#include <getopt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <gpupool/gpupool.h>

#include "base/clock.h"
#include "base/units.h"
#include "tests/bench/busy.h"
#include "tests/bench/statistics.h"

#define SAMPLES_MAX 100000u
#define PIECES_MAX  1024u
#define WAIT_NS     (30 * NS_PER_S)
#define REFUSED_NS  (2 * NS_PER_S)
#define PAUSE_NS    20000 /* between launches */

static struct {
    FILE *json;
    uint64_t want_bytes, piece_bytes;
    unsigned rounds, milliseconds;
} options = {.want_bytes = GIB, .piece_bytes = 32 * MIB, .rounds = 5, .milliseconds = 100};

static atomic_bool ends;

static _Noreturn void fail(const char *what) {
    fprintf(stderr, "rows: %s: %s\n", what, gpupool_error_text());
    exit(1);
}

static void need(int error, const char *what) {
    if (error == 0)
        return;
    fprintf(stderr, "rows: %s: error %d of the driver\n", what, error);
    exit(1);
}

static void *time_launches(void *argument) {
    struct samples *samples = argument;

    while (!ends) {
        uint64_t start_ns = clock_now_ns();
        need(busy_launch(), "a launch");
        samples_add(samples, clock_now_ns() - start_ns);
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    return NULL;
}

/* Every second piece of the pool is free afterwards. */
static void scatter(struct gpupool_client *client, uint32_t pool, void *stream, struct gpupool_buffer *pieces,
                    unsigned count) {
    for (unsigned i = 0; i < count; i++)
        if (gpupool_acquire(client, pool, options.piece_bytes, stream, WAIT_NS, 0, &pieces[i]) < 0)
            fail("a piece");
    for (unsigned i = 0; i < count; i += 2)
        if (gpupool_release(client, &pieces[i], stream) < 0)
            fail("release");
}

/* Returns how long the acquire took; 0: it was refused. *ret_is_beside: the kernel still ran when it was
 * over.
 */
static uint64_t play(struct samples *launches, bool *ret_is_beside) {
    struct gpupool_buffer pieces[PIECES_MAX], buffer;
    unsigned count = (unsigned)(2 * options.want_bytes / options.piece_bytes);
    struct gpupool_client *client;
    pthread_t thread;
    uint32_t pool;
    void *stream;

    if (gpupool_open(NULL, &client) < 0 || gpupool_device_pool(client, 0, &pool) < 0 ||
        gpupool_stream_create(client, 0, &stream) < 0)
        fail("open");
    scatter(client, pool, stream, pieces, count);
    ends = false;
    need(busy_spin(options.milliseconds), "a kernel");
    uint64_t kernel_ns = clock_now_ns();
    if (pthread_create(&thread, NULL, time_launches, launches) != 0)
        fail("a thread");
    nanosleep(&(struct timespec){.tv_nsec = (long)NS_PER_MS}, NULL); /* launches are under way */
    uint64_t start_ns = clock_now_ns();
    int r = gpupool_acquire(client, pool, options.want_bytes, stream, REFUSED_NS, 0, &buffer);
    uint64_t end_ns = clock_now_ns();
    *ret_is_beside = end_ns - kernel_ns < options.milliseconds * NS_PER_MS;
    ends = true;
    pthread_join(thread, NULL);
    if (r < 0 && r != GPUPOOL_E_EXHAUSTED)
        fail("the buffer");
    if (r == 0 && gpupool_release(client, &buffer, stream) < 0)
        fail("release");
    for (unsigned i = 1; i < count; i += 2)
        if (gpupool_release(client, &pieces[i], stream) < 0)
            fail("release");
    if (gpupool_stream_destroy(client, 0, stream) < 0)
        fail("the stream");
    gpupool_close(client);
    return r == 0 ? end_ns - start_ns : 0;
}

static void parse(int argc, char **argv) {
    static const struct option known[] = {
        {"json", required_argument, NULL, 'j'},         {"want", required_argument, NULL, 'w'},
        {"piece", required_argument, NULL, 'p'},        {"rounds", required_argument, NULL, 'r'},
        {"milliseconds", required_argument, NULL, 'm'}, {NULL, 0, NULL, 0},
    };
    bool is_right = true;
    int option;

    while (is_right && (option = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (option == 'j')
            is_right = (options.json = fopen(optarg, "we")) != NULL;
        else if (option == 'w')
            is_right = units_parse_bytes(optarg, &options.want_bytes) == 0;
        else if (option == 'p')
            is_right = units_parse_bytes(optarg, &options.piece_bytes) == 0;
        else if (option == 'r')
            options.rounds = (unsigned)strtoul(optarg, NULL, 10);
        else
            options.milliseconds = (unsigned)strtoul(optarg, NULL, 10);
        is_right = is_right && option != '?';
    }
    if (is_right && optind == argc && options.rounds > 0 && options.piece_bytes > 0 &&
        2 * options.want_bytes / options.piece_bytes <= PIECES_MAX)
        return;
    fprintf(stderr,
            "usage: rows [--json FILE] [--want SIZE] [--piece SIZE] [--rounds N] [--milliseconds N]\n");
    exit(2);
}

int main(int argc, char **argv) {
    struct samples acquires, launches;
    unsigned beside = 0;

    parse(argc, argv);
    samples_init(&acquires, "acquires", options.rounds);
    samples_init(&launches, "launches", SAMPLES_MAX);
    need(busy_begin(), "the kernels");
    for (unsigned round = 0; round < options.rounds; round++) {
        bool is_beside;
        uint64_t took_ns = play(&launches, &is_beside);
        if (took_ns == 0) {
            printf("refused: the memory that is free lies in segments that are also in use\n");
            if (options.json != NULL)
                fprintf(options.json, "{\"refused\": true}\n");
            return 0;
        }
        samples_add(&acquires, took_ns);
        beside += is_beside;
    }
    samples_sort(&acquires);
    samples_sort(&launches);
    uint64_t p50 = samples_quantile(&acquires, 0.5), longest = samples_quantile(&acquires, 1),
             launch = samples_quantile(&launches, 1);
    printf("%s out of pieces of %s: %s, at most %s; %u of %u while the kernel ran; the longest launch: %s\n",
           BYTES_TEXT(options.want_bytes), BYTES_TEXT(options.piece_bytes), NS_TEXT(p50), NS_TEXT(longest),
           beside, options.rounds, NS_TEXT(launch));
    if (options.json != NULL) {
        fprintf(options.json,
                "{\"want_bytes\": %llu, \"p50_ns\": %llu, \"max_ns\": %llu, \"launch_max_ns\": %llu, "
                "\"rounds\": %u, \"beside\": %u}\n",
                (unsigned long long)options.want_bytes, (unsigned long long)p50, (unsigned long long)longest,
                (unsigned long long)launch, options.rounds, beside);
        fclose(options.json);
    }
    return 0;
}
