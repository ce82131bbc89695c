/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The effect of hostile clients on a well-behaved one. It acquires and gives back small host buffers without
 * a cache, each a round trip to the daemon: in quiet, then beside each attack, and in quiet again. An attack
 * is a process of its own that goes on until it is killed.
 *
 *     hostile [--json FILE] [--milliseconds N] [--only ATTACK]        default: 2000 for each
 *
 * Connects to the daemon that GPUPOOL_SOCKET and GPUPOOL_ADMIN_SOCKET name.
 */
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
#include "tests/bench/attacks.h"
#include "tests/bench/statistics.h"

#define BUFFER_BYTES (64 * KIB)
#define SAMPLES_MAX  1000000u
/* Daemon, client and attacker are busy all the time, and the machine has something of its own to do. */
#define PROCESSORS_MIN 4

static const struct gpupool_options uncached = {.struct_size = sizeof(struct gpupool_options),
                                                .flags = GPUPOOL_OPEN_NO_CACHE};

static void fail(const char *what) {
    fprintf(stderr, "hostile: %s: %s\n", what, gpupool_error_text());
    exit(1);
}

/* --- the well-behaved client --- */

static void measure(struct gpupool_client *client, uint32_t pool, uint64_t duration_ns,
                    struct samples *samples) {
    uint64_t began_ns = clock_now_ns();
    for (;;) {
        struct gpupool_buffer buffer;
        uint64_t start_ns = clock_now_ns();
        if (start_ns - began_ns >= duration_ns)
            return;
        if (gpupool_acquire(client, pool, BUFFER_BYTES, NULL, GPUPOOL_FOREVER, 0, &buffer) < 0)
            fail("acquire");
        samples_add(samples, clock_now_ns() - start_ns);
        if (gpupool_release(client, &buffer, NULL) < 0)
            fail("release");
    }
}

static void measure_beside(struct gpupool_client *client, uint32_t pool, uint64_t duration_ns,
                           const struct attack *attack, struct samples *samples) {
    pid_t pid = fork();
    if (pid < 0)
        exit(1);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        attack->run();
        _exit(1);
    }
    measure(client, pool, duration_ns / 4, samples); /* until it is at its height */
    samples->count = 0;
    measure(client, pool, duration_ns, samples);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"json", required_argument, NULL, 'j'},
                                            {"milliseconds", required_argument, NULL, 'm'},
                                            {"only", required_argument, NULL, 'o'},
                                            {0}};
    const char *json_path = NULL, *only = NULL;
    uint64_t duration_ns = 2 * NS_PER_S;
    struct samples all[ATTACKS + 2];
    struct gpupool_client *client;
    struct gpupool_buffer held;
    uint32_t pool = 0;
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'j')
            json_path = optarg;
        else if (option == 'o')
            only = optarg;
        else if (option == 'm' && strtoul(optarg, NULL, 10) > 0)
            duration_ns = strtoul(optarg, NULL, 10) * NS_PER_MS;
        else
            return 2;
    }
    if (getenv("GPUPOOL_SOCKET") == NULL) {
        fprintf(stderr, "hostile: GPUPOOL_SOCKET is not set\n");
        return 2;
    }
    if (gpupool_open(&uncached, &client) < 0 || gpupool_host_pool(client, -1, &pool) < 0 ||
        gpupool_acquire(client, pool, BUFFER_BYTES, NULL, GPUPOOL_FOREVER, 0, &held) < 0)
        fail("the first buffer");
    for (unsigned i = 0; i < ATTACKS + 2; i++)
        samples_init(&all[i],
                     i == 0         ? "quiet"
                     : i <= ATTACKS ? attacks[i - 1].name
                                    : "quiet_again",
                     SAMPLES_MAX);
    measure(client, pool, duration_ns / 4, &all[0]);
    all[0].count = 0;
    measure(client, pool, duration_ns, &all[0]);
    for (unsigned i = 0; i < ATTACKS; i++)
        if (only == NULL || strcmp(only, attacks[i].name) == 0)
            measure_beside(client, pool, duration_ns, &attacks[i], &all[1 + i]);
    measure(client, pool, duration_ns, &all[ATTACKS + 1]);

    FILE *json = json_path != NULL ? fopen(json_path, "we") : NULL;
    if (json != NULL)
        fprintf(json, "{\n  \"times\": {\n");
    if (sysconf(_SC_NPROCESSORS_ONLN) < PROCESSORS_MIN)
        printf(
            "%ld processors for daemon, client and attacker: what they wait for each other is in the times\n",
            sysconf(_SC_NPROCESSORS_ONLN));
    printf("%-26s %8s %10s %10s %12s\n", "acquire beside", "count", "p50", "p99", "p99 / quiet");
    for (unsigned i = 0; i < ATTACKS + 2; i++) {
        if (all[i].count == 0)
            continue;
        samples_sort(&all[i]);
        uint64_t p50 = samples_quantile(&all[i], 0.5), p99 = samples_quantile(&all[i], 0.99);
        printf("%-26s %8zu %10s %10s %12.2f\n", all[i].name, all[i].count, NS_TEXT(p50), NS_TEXT(p99),
               (double)p99 / (double)samples_quantile(&all[0], 0.99));
        if (json != NULL)
            samples_print_json(&all[i], json, i == ATTACKS + 1);
    }
    if (json != NULL) {
        fprintf(json, "  }\n}\n");
        fclose(json);
    }
    gpupool_release(client, &held, NULL);
    gpupool_close(client);
    return 0;
}
