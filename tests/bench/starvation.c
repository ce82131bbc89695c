/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether large requests wait behind small ones of their own process. Threads hold one buffer each for a
 * short time, and then draw the next size. All that they may want together is nine tenths of the pool or
 * more, so that most of the waits are for memory that lies in pieces. Clients with a cache and without one
 * (each acquire asks the daemon) take turns.
 *
 *     starvation [--json FILE] [--shape NAME] [--milliseconds N] [--runs N] [--marks]   default: eight, 2000,
 * 5
 *
 * | shape     | pool   | processes | threads of each | sizes up to         |
 * |-----------|--------|-----------|-----------------|---------------------|
 * | two       | host   | 1         | 2               | 0.45 of the pool    |
 * | eight     | host   | 1         | 8               | an eighth of 0.9    |
 * | many      | host   | 1         | 32              | a 32nd of 0.9       |
 * | halves    | host   | 1         | 8               | half of the pool    |
 * | processes | host   | 2         | 4               | an eighth of 0.9    |
 * | streams   | device | 1         | 8, a stream each | an eighth of 0.9   |
 *
 * Connects to the daemon that GPUPOOL_SOCKET names. Its pool has a reserve of its limit, which this program
 * waits for. Segments are mapped for the first time at the beginning of a turn. So a turn begins when each
 * thread of the process has had WARM_UPS buffers, and acquires in its first fifth are not counted.
 */
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gpupool/gpupool.h>

#include "base/clock.h"
#include "base/units.h"
#include "tests/bench/statistics.h"
#include "tests/random.h"

#define THREADS_MAX     32u
#define SAMPLES_MAX     400000u
#define RUNS_MAX        64u
#define WARM_UPS        100u
#define HOLD_NS         NS_PER_MS
#define LONG_NS         (50 * NS_PER_MS)
#define WAIT_NS         (20 * NS_PER_S)
#define RESERVE_WAIT_NS (120 * NS_PER_S)
#define PERMILLE        1000u

struct shape {
    const char *name;
    enum gpupool_pool_kind kind;
    unsigned processes, threads;
    unsigned most_permille; /* of the pool: the largest size */
    bool has_streams;
};

static const struct shape shapes[] = {
    {"two", GPUPOOL_POOL_HOST, 1, 2, 450, false},       {"eight", GPUPOOL_POOL_HOST, 1, 8, 112, false},
    {"many", GPUPOOL_POOL_HOST, 1, 32, 28, false},      {"halves", GPUPOOL_POOL_HOST, 1, 8, 500, false},
    {"processes", GPUPOOL_POOL_HOST, 2, 4, 112, false}, {"streams", GPUPOOL_POOL_DEVICE, 1, 8, 112, true},
};

static struct {
    FILE *json;
    const struct shape *shape;
    uint64_t milliseconds;
    unsigned runs;
    bool marks; /* says where it is, and waits each time for a line with the daemon's count of messages */
} options = {.shape = &shapes[1], .milliseconds = 2000, .runs = 5};

/* The figures of one turn. They are written to a pipe where the turn is another process's. */
struct turn {
    uint64_t count, all; /* acquires that were counted; all of them */
    uint64_t *ns;        /* count of them */
};

struct worker {
    pthread_t thread;
    struct gpupool_client *client;
    uint32_t pool;
    void *stream;
    pthread_barrier_t *begin;
    uint64_t most_bytes, seed, all;
    struct samples samples;
};

static _Noreturn void fail(const char *what) {
    fprintf(stderr, "starvation: %s: %s\n", what, gpupool_error_text());
    exit(1);
}

/* --- one turn --- */

static void hold(uint64_t duration_ns) {
    const struct timespec time = {.tv_nsec = (long)duration_ns};
    nanosleep(&time, NULL);
}

/* Acquires a buffer, holds it and releases it. Returns how long the acquire took. */
static uint64_t use_one(struct worker *worker) {
    uint64_t size_bytes = 1 + random_next(&worker->seed) % worker->most_bytes, start_ns = clock_now_ns();
    struct gpupool_buffer buffer;

    if (gpupool_acquire(worker->client, worker->pool, size_bytes, worker->stream, WAIT_NS, 0, &buffer) < 0)
        fail("acquire");
    uint64_t took_ns = clock_now_ns() - start_ns;
    worker->all++;
    hold(HOLD_NS);
    if (gpupool_release(worker->client, &buffer, worker->stream) < 0)
        fail("release");
    return took_ns;
}

static void *work(void *argument) {
    struct worker *worker = argument;
    uint64_t length_ns = options.milliseconds * NS_PER_MS;

    for (unsigned i = 0; i < WARM_UPS; i++)
        (void)use_one(worker);
    pthread_barrier_wait(worker->begin);
    uint64_t begin_ns = clock_now_ns(), now_ns = begin_ns;
    while (now_ns < begin_ns + length_ns) {
        uint64_t took_ns = use_one(worker);
        if (now_ns >= begin_ns + length_ns / 5)
            samples_add(&worker->samples, took_ns);
        now_ns = clock_now_ns();
    }
    return NULL;
}

static void open_pool(uint32_t flags, struct gpupool_client **ret_client, struct gpupool_pool *ret_pool) {
    struct gpupool_options open_options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_pool pools[64];
    size_t count = 0;
    uint32_t id = 0;

    open_options.flags = flags;
    if (gpupool_open(&open_options, ret_client) < 0)
        fail("open");
    if ((options.shape->kind == GPUPOOL_POOL_HOST ? gpupool_host_pool(*ret_client, -1, &id)
                                                  : gpupool_device_pool(*ret_client, 0, &id)) < 0 ||
        gpupool_pools(*ret_client, pools, 64, &count) < 0)
        fail("the pool");
    for (size_t i = 0; i < count && i < 64; i++)
        if (pools[i].id == id)
            *ret_pool = pools[i];
}

static void start(struct worker *worker, struct gpupool_client *client, const struct gpupool_pool *pool,
                  pthread_barrier_t *begin, uint64_t seed) {
    *worker = (struct worker){.client = client,
                              .pool = pool->id,
                              .stream = GPUPOOL_NO_STREAM,
                              .most_bytes = pool->limit_bytes / PERMILLE * options.shape->most_permille,
                              .begin = begin,
                              .seed = random_seed(seed)};
    samples_init(&worker->samples, "", SAMPLES_MAX / options.shape->threads);
    if (options.shape->has_streams && gpupool_stream_create(client, 0, &worker->stream) < 0)
        fail("a stream");
    if (pthread_create(&worker->thread, NULL, work, worker) != 0)
        fail("a thread");
}

/* The turn of one process. */
static struct turn take_turn(uint32_t flags, unsigned seed) {
    static struct worker workers[THREADS_MAX];
    struct gpupool_client *client;
    struct gpupool_pool pool = {0};
    pthread_barrier_t begin;
    struct turn turn = {.ns = malloc(SAMPLES_MAX * sizeof *turn.ns)};

    if (turn.ns == NULL)
        fail("memory");
    open_pool(flags, &client, &pool);
    pthread_barrier_init(&begin, NULL, options.shape->threads);
    for (unsigned i = 0; i < options.shape->threads; i++)
        start(&workers[i], client, &pool, &begin, seed * THREADS_MAX + i);
    for (unsigned i = 0; i < options.shape->threads; i++) {
        struct samples *samples = &workers[i].samples;
        pthread_join(workers[i].thread, NULL);
        memcpy(&turn.ns[turn.count], samples->ns, samples->count * sizeof *samples->ns);
        turn.count += samples->count;
        turn.all += workers[i].all;
        free(samples->ns);
        if (options.shape->has_streams && gpupool_stream_destroy(client, 0, workers[i].stream) < 0)
            fail("a stream");
    }
    pthread_barrier_destroy(&begin);
    gpupool_close(client);
    return turn;
}

static void put(int fd, const void *data, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t n = write(fd, (const char *)data + done, size - done);
        if (n <= 0)
            exit(1);
        done += (size_t)n;
    }
}

static void get(int fd, void *data, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t n = read(fd, (char *)data + done, size - done);
        if (n <= 0) {
            fprintf(stderr, "starvation: a process ended early\n");
            exit(1);
        }
        done += (size_t)n;
    }
}

/* Waits for the daemon's count of messages, of which the measurement's driver takes note. */
static void mark(const char *what) {
    unsigned long long messages;

    if (!options.marks)
        return;
    printf("{\"mark\": \"%s\"}\n", what);
    if (fflush(stdout) != 0 || scanf("%llu", &messages) != 1)
        exit(1);
}

/* A turn of all processes, each of which is fresh. The caller has no client: a forked child could not use
 * it. */
static struct turn take_turns(uint32_t flags, unsigned run) {
    struct turn all = {.ns = malloc(options.shape->processes * SAMPLES_MAX * sizeof *all.ns)};
    int ends[2][2];

    if (all.ns == NULL)
        fail("memory");
    for (unsigned i = 0; i < options.shape->processes; i++) {
        if (pipe(ends[i]) < 0)
            fail("a pipe");
        pid_t child = fork();
        if (child < 0)
            fail("a process");
        if (child > 0) {
            close(ends[i][1]);
            continue;
        }
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        struct turn turn = take_turn(flags, run * options.shape->processes + i);
        put(ends[i][1], &turn, sizeof turn);
        put(ends[i][1], turn.ns, turn.count * sizeof *turn.ns);
        exit(0);
    }
    for (unsigned i = 0; i < options.shape->processes; i++) {
        struct turn turn;
        get(ends[i][0], &turn, sizeof turn);
        get(ends[i][0], &all.ns[all.count], turn.count * sizeof *turn.ns);
        all.count += turn.count;
        all.all += turn.all;
        close(ends[i][0]);
        wait(NULL);
    }
    return all;
}

/* --- all turns --- */

struct outcome {
    const char *name;
    uint64_t count, all, n_long, max_ns;
    uint64_t p50_ns[RUNS_MAX], p99_ns[RUNS_MAX], p999_ns[RUNS_MAX];
};

static void note(struct outcome *outcome, struct turn turn, unsigned run) {
    struct samples samples = {.ns = turn.ns, .count = (size_t)turn.count};

    samples_sort(&samples);
    outcome->p50_ns[run] = samples_quantile(&samples, 0.5);
    outcome->p99_ns[run] = samples_quantile(&samples, 0.99);
    outcome->p999_ns[run] = samples_quantile(&samples, 0.999);
    for (size_t i = 0; i < samples.count; i++)
        outcome->n_long += samples.ns[i] > LONG_NS;
    if (samples_quantile(&samples, 1) > outcome->max_ns)
        outcome->max_ns = samples_quantile(&samples, 1);
    outcome->count += turn.count;
    outcome->all += turn.all;
    free(turn.ns);
}

static uint64_t median(uint64_t *values) {
    qsort(values, options.runs, sizeof *values, samples_compare);
    return values[options.runs / 2];
}

static void print(struct outcome *outcome, bool last) {
    uint64_t p50 = median(outcome->p50_ns), p99 = median(outcome->p99_ns), p999 = median(outcome->p999_ns);

    printf("%-10s %8llu %10s %10s %10s %10s %8llu\n", outcome->name, (unsigned long long)outcome->count,
           NS_TEXT(p50), NS_TEXT(p99), NS_TEXT(p999), NS_TEXT(outcome->max_ns),
           (unsigned long long)outcome->n_long);
    if (options.json != NULL)
        fprintf(options.json,
                "  \"%s\": {\"count\": %llu, \"all\": %llu, \"p50_ns\": %llu, \"p99_ns\": %llu, \"p999_ns\": "
                "%llu, \"max_ns\": %llu, \"over_50_ms\": %llu}%s\n",
                outcome->name, (unsigned long long)outcome->count, (unsigned long long)outcome->all,
                (unsigned long long)p50, (unsigned long long)p99, (unsigned long long)p999,
                (unsigned long long)outcome->max_ns, (unsigned long long)outcome->n_long, last ? "" : ",");
}

/* Waits in a process of its own until the pool has all of its memory. */
static void await_reserve(void) {
    pid_t child = fork();
    int status = 1;

    if (child < 0)
        fail("a process");
    if (child > 0) {
        if (waitpid(child, &status, 0) < 0 || status != 0)
            exit(1);
        return;
    }
    uint64_t end_ns = clock_now_ns() + RESERVE_WAIT_NS;
    for (bool is_there = false; !is_there;) {
        struct gpupool_client *client;
        struct gpupool_pool pool = {0};
        open_pool(0, &client, &pool);
        gpupool_close(client);
        is_there = pool.reserved_bytes >= pool.limit_bytes;
        if (!is_there && clock_now_ns() > end_ns) {
            fprintf(stderr, "starvation: the pool has no reserve of its limit\n");
            exit(1);
        }
        hold(is_there ? 0 : HOLD_NS);
    }
    exit(0);
}

static _Noreturn void usage(void) {
    fprintf(stderr,
            "usage: starvation [--json FILE] [--shape NAME] [--milliseconds N] [--runs N] [--marks]\n");
    exit(2);
}

static const struct shape *find_shape(const char *name) {
    for (unsigned i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (strcmp(shapes[i].name, name) == 0)
            return &shapes[i];
    usage();
}

static void parse(int argc, char **argv) {
    static const struct option known[] = {
        {"json", required_argument, NULL, 'j'},
        {"shape", required_argument, NULL, 's'},
        {"milliseconds", required_argument, NULL, 'm'},
        {"runs", required_argument, NULL, 'r'},
        {"marks", no_argument, NULL, 'k'},
        {NULL, 0, NULL, 0},
    };
    int option;

    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (option == 'j')
            options.json = fopen(optarg, "we");
        else if (option == 's')
            options.shape = find_shape(optarg);
        else if (option == 'm')
            options.milliseconds = strtoull(optarg, NULL, 10);
        else if (option == 'r')
            options.runs = (unsigned)strtoul(optarg, NULL, 10);
        else if (option == 'k')
            options.marks = true;
        else
            usage();
    }
    if (optind < argc || options.runs == 0 || options.runs > RUNS_MAX || options.milliseconds == 0)
        usage();
}

int main(int argc, char **argv) {
    static struct outcome cached = {.name = "cached"}, uncached = {.name = "uncached"};

    parse(argc, argv);
    await_reserve();
    for (unsigned run = 0; run < options.runs; run++) {
        mark("cached");
        note(&cached, take_turns(0, run), run);
        mark("uncached");
        note(&uncached, take_turns(GPUPOOL_OPEN_NO_CACHE, run), run);
    }
    mark("end");
    printf("%-10s %8s %10s %10s %10s %10s %8s\n", options.shape->name, "count", "p50", "p99", "p99.9",
           "longest", "> 50 ms");
    if (options.json != NULL)
        fprintf(options.json, "{\"times\": {\n");
    print(&cached, false);
    print(&uncached, true);
    if (options.json != NULL) {
        fprintf(options.json, "}}\n");
        fclose(options.json);
    }
    return 0;
}
