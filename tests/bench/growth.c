/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether clients notice that a pool grows. One client without a cache acquires and gives back small host
 * buffers in a closed loop, each a round trip to the daemon: first while nothing else happens, then while the
 * host pool grows for another process, then again in quiet. The other process does not map its memory:
 * the program measures the daemon's growth, not a client's registration.
 *
 *     growth [--json FILE] [--grow SIZE] [--seconds N]        default: 1GiB, 3 s of quiet each time
 *
 * Connects to the daemon that GPUPOOL_SOCKET names; its host pool must have room to grow by SIZE, and keeps
 * it.
 */
#include <fcntl.h>
#include <getopt.h>
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

#define BUFFER_BYTES (64 * KIB)
#define SAMPLES_MAX  4000000u
#define GROW_WAIT_NS (120 * NS_PER_S)

/* The daemon is measured: each acquire asks it. */
static const struct gpupool_options uncached = {.struct_size = sizeof(struct gpupool_options),
                                                .flags = GPUPOOL_OPEN_NO_CACHE};

static void fail(const char *what) {
    fprintf(stderr, "growth: %s: %s\n", what, gpupool_error_text());
    exit(1);
}

static uint64_t pool_reserved_bytes(struct gpupool_client *client, uint32_t id) {
    struct gpupool_pool pools[64];
    size_t count = 0;
    if (gpupool_pools(client, pools, 64, &count) < 0)
        fail("the pools");
    for (size_t i = 0; i < count && i < 64; i++)
        if (pools[i].id == id)
            return pools[i].reserved_bytes;
    return 0;
}

/* The process that needs the memory. A request that does not wait is refused, and sets the growth going. */
static void grower(uint64_t grow_bytes, int start_fd, int done_fd) {
    struct gpupool_client *client;
    struct gpupool_buffer buffer;
    uint32_t pool;
    char go;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (gpupool_open(&uncached, &client) < 0 || gpupool_host_pool(client, -1, &pool) < 0)
        fail("open");
    uint64_t took_ns = 0;
    if (write(done_fd, &took_ns, sizeof took_ns) != sizeof took_ns || read(start_fd, &go, 1) != 1)
        exit(1);
    uint64_t before_bytes = pool_reserved_bytes(client, pool), start_ns = clock_now_ns();
    if (gpupool_acquire(client, pool, grow_bytes, NULL, GPUPOOL_NOW, 0, &buffer) == 0) {
        fprintf(stderr, "growth: the host pool has %s free already: nothing grows; ask for more\n",
                BYTES_TEXT(grow_bytes));
        exit(1);
    }
    while (pool_reserved_bytes(client, pool) < before_bytes + grow_bytes) {
        if (clock_now_ns() - start_ns > GROW_WAIT_NS)
            fail("the pool does not grow; the last acquire said");
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    took_ns = clock_now_ns() - start_ns;
    gpupool_close(client);
    exit(write(done_fd, &took_ns, sizeof took_ns) != sizeof took_ns);
}

/* Pairs until a time has passed, or something can be read from done_fd; returns what that was. */
static uint64_t measure(struct gpupool_client *client, uint32_t pool, uint64_t duration_ns, int done_fd,
                        struct samples *acquire, struct samples *release) {
    uint64_t began_ns = clock_now_ns(), done = 0;
    for (unsigned i = 0;; i++) {
        struct gpupool_buffer buffer;
        uint64_t start_ns = clock_now_ns();
        if (start_ns - began_ns >= duration_ns)
            return 0;
        if (gpupool_acquire(client, pool, BUFFER_BYTES, NULL, GPUPOOL_FOREVER, 0, &buffer) < 0)
            fail("acquire");
        uint64_t middle_ns = clock_now_ns();
        if (gpupool_release(client, &buffer, NULL) < 0)
            fail("release");
        samples_add(release, clock_now_ns() - middle_ns);
        samples_add(acquire, middle_ns - start_ns);
        if (done_fd >= 0 && i % 16 == 0) {
            ssize_t n = read(done_fd, &done, sizeof done);
            if (n == (ssize_t)sizeof done)
                return done;
            if (n == 0)
                exit(1); /* the grower has said why */
        }
    }
}

static void print(FILE *json, const struct samples *samples, bool last) {
    uint64_t p50 = samples_quantile(samples, 0.5), p99 = samples_quantile(samples, 0.99),
             p999 = samples_quantile(samples, 0.999), max = samples_quantile(samples, 1);
    printf("%-24s %8zu %10s %10s %10s %10s\n", samples->name, samples->count, NS_TEXT(p50), NS_TEXT(p99),
           NS_TEXT(p999), NS_TEXT(max));
    if (json != NULL)
        fprintf(json,
                "    \"%s\": {\"count\": %zu, \"p50_ns\": %llu, \"p99_ns\": %llu, \"p999_ns\": %llu, "
                "\"max_ns\": %llu}%s\n",
                samples->name, samples->count, (unsigned long long)p50, (unsigned long long)p99,
                (unsigned long long)p999, (unsigned long long)max, last ? "" : ",");
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"json", required_argument, NULL, 'j'},
                                            {"grow", required_argument, NULL, 'g'},
                                            {"seconds", required_argument, NULL, 's'},
                                            {0}};
    const char *json_path = NULL;
    uint64_t grow_bytes = GIB, quiet_ns = 3 * NS_PER_S;
    int option, to_grower[2], from_grower[2];

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'j')
            json_path = optarg;
        else if (option == 's' && strtoul(optarg, NULL, 10) > 0)
            quiet_ns = strtoul(optarg, NULL, 10) * NS_PER_S;
        else if (option != 'g' || units_parse_bytes(optarg, &grow_bytes) < 0)
            return 2;
    }
    if (pipe2(to_grower, O_CLOEXEC) < 0 || pipe2(from_grower, O_CLOEXEC) < 0)
        return 1;
    pid_t child = fork(); /* before this process has a client: a forked child cannot use one */
    if (child < 0)
        return 1;
    if (child == 0) {
        close(to_grower[1]);
        close(from_grower[0]);
        grower(grow_bytes, to_grower[0], from_grower[1]);
    }
    close(to_grower[0]);
    close(from_grower[1]);

    struct gpupool_client *client;
    struct gpupool_buffer held;
    uint32_t pool = 0;
    uint64_t ready;
    if (gpupool_open(&uncached, &client) < 0 || gpupool_host_pool(client, -1, &pool) < 0)
        fail("open");
    /* something held keeps its segment open and grown */
    if (gpupool_acquire(client, pool, BUFFER_BYTES, NULL, GPUPOOL_FOREVER, 0, &held) < 0)
        fail("acquire");
    if (read(from_grower[0], &ready, sizeof ready) != (ssize_t)sizeof ready)
        return 1;
    fcntl(from_grower[0], F_SETFL, O_NONBLOCK);

    static const char *const names[] = {"quiet_acquire",   "quiet_release",       "growing_acquire",
                                        "growing_release", "quiet_again_acquire", "quiet_again_release"};
    struct samples all[6];
    for (unsigned i = 0; i < 6; i++)
        samples_init(&all[i], names[i], SAMPLES_MAX);
    measure(client, pool, quiet_ns / 3, -1, &all[0], &all[1]); /* warms up */
    all[0].count = all[1].count = 0;
    measure(client, pool, quiet_ns, -1, &all[0], &all[1]);
    if (write(to_grower[1], "g", 1) != 1)
        return 1;
    uint64_t growth_ns = measure(client, pool, GROW_WAIT_NS, from_grower[0], &all[2], &all[3]);
    measure(client, pool, quiet_ns, -1, &all[4], &all[5]);
    for (unsigned i = 0; i < 6; i++)
        samples_sort(&all[i]);

    FILE *json = json_path != NULL ? fopen(json_path, "we") : NULL;
    double ratio = (double)samples_quantile(&all[2], 0.99) / (double)samples_quantile(&all[0], 0.99);
    printf("%-24s %8s %10s %10s %10s %10s\n", "", "count", "p50", "p99", "p99.9", "max");
    if (json != NULL)
        fprintf(json,
                "{\n  \"grown_bytes\": %llu,\n  \"growth_ns\": %llu,\n  \"acquire_p99_growing_over_quiet\": "
                "%.3f,\n  \"times\": {\n",
                (unsigned long long)grow_bytes, (unsigned long long)growth_ns, ratio);
    for (unsigned i = 0; i < 6; i++)
        print(json, &all[i], i == 5);
    if (json != NULL) {
        fprintf(json, "  }\n}\n");
        fclose(json);
    }
    printf("the host pool grew by %s in %s; p99 of acquire meanwhile, over quiet: %.2f\n",
           BYTES_TEXT(grow_bytes), NS_TEXT(growth_ns), ratio);
    gpupool_release(client, &held, NULL);
    gpupool_close(client);
    waitpid(child, NULL, 0);
    return 0;
}
