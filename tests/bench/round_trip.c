/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of an acquire, beside its lower bound: the round trip of a 64-byte packet over a
 * SEQPACKET Unix socket between two processes, one of which waits in epoll as the daemon does. Both are
 * measured alternately in one run, in batches, so that a noisy machine disturbs both alike. Also: release,
 * the first map of a segment, and copies between device memory and host memory of the pools beside pinned and
 * ordinary memory of the process's own.
 *
 *     round_trip [--json FILE] [--rounds N]
 *
 * Connects to the daemon that GPUPOOL_SOCKET names.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gpupool/gpupool.h>

#include "base/clock.h"
#include "base/units.h"
#include "tests/bench/statistics.h"

#define PACKET_SIZE 64u
#define BATCH       200u
#define FIRST_MAPS  20u /* processes */
#define COPY_BYTES  (256 * MIB)
#define COPY_ROUNDS 20u

/* The daemon is measured: each acquire asks it. */
static const struct gpupool_options uncached = {.struct_size = sizeof(struct gpupool_options),
                                                .flags = GPUPOOL_OPEN_NO_CACHE};

static void fail(const char *what) {
    fprintf(stderr, "round_trip: %s: %s\n", what, gpupool_error_text());
    exit(1);
}

/* The peer: echoes packets, waiting in epoll. */
static void echo(int fd) {
    char packet[PACKET_SIZE];
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0)
        _exit(1);
    for (;;) {
        if (epoll_wait(epoll, &event, 1, -1) < 0 && errno != EINTR)
            _exit(1);
        ssize_t n = recv(fd, packet, sizeof packet, MSG_DONTWAIT);
        if (n == 0)
            _exit(0);
        if (n > 0 && send(fd, packet, (size_t)n, MSG_NOSIGNAL) != n)
            _exit(1);
    }
}

static int start_echo(void) {
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0)
        exit(1);
    if (fork() == 0) {
        close(sockets[0]);
        echo(sockets[1]);
    }
    close(sockets[1]);
    return sockets[0];
}

static void measure_raw(int fd, struct samples *raw) {
    char packet[PACKET_SIZE] = {0};
    for (unsigned i = 0; i < BATCH; i++) {
        uint64_t start = clock_now_ns();
        if (send(fd, packet, sizeof packet, MSG_NOSIGNAL) < 0 || recv(fd, packet, sizeof packet, 0) <= 0)
            exit(1);
        samples_add(raw, clock_now_ns() - start);
    }
}

/* Room is there and the segment is open: no growth, no map. */
static void measure_acquire(struct gpupool_client *client, uint32_t pool, struct samples *acquire,
                            struct samples *release) {
    for (unsigned i = 0; i < BATCH; i++) {
        struct gpupool_buffer buffer;
        uint64_t start = clock_now_ns();
        /* On a machine that is busy with other things, what was released before may all still stand behind the
         * stream: then this waits, once, for the pool to grow. */
        if (gpupool_acquire(client, pool, 1 * MIB, NULL, GPUPOOL_FOREVER, 0, &buffer) < 0)
            fail("acquire");
        uint64_t middle = clock_now_ns();
        if (gpupool_release(client, &buffer, NULL) < 0)
            fail("release");
        samples_add(release, clock_now_ns() - middle);
        samples_add(acquire, middle - start);
    }
}

/* In a fresh process: its first buffer in a segment that is there already, which maps the segment (and
 * registers it, if it is host memory). The context exists: making it is the driver's affair and takes far
 * longer. Prints nanoseconds of connecting and of the acquire. */
static int child_first_map(uint32_t pool, bool is_device) {
    struct gpupool_client *client;
    struct gpupool_buffer buffer;
    void *stream;
    uint64_t start = clock_now_ns();
    if (gpupool_open(&uncached, &client) < 0)
        fail("open");
    uint64_t opened = clock_now_ns();
    if (gpupool_gpu_kind(client) != GPUPOOL_GPU_NONE) {
        struct gpupool_buffer other; /* the first use of a device makes its context */
        uint32_t other_pool;
        if (gpupool_stream_create(client, 0, &stream) < 0)
            fail("stream");
        if (is_device && (gpupool_host_pool(client, -1, &other_pool) < 0 ||
                          gpupool_acquire(client, other_pool, 1, NULL, GPUPOOL_FOREVER, 0, &other) < 0))
            fail("acquire");
    }
    uint64_t ready = clock_now_ns();
    if (gpupool_acquire(client, pool, 1 * MIB, NULL, GPUPOOL_FOREVER, 0, &buffer) < 0)
        fail("acquire");
    printf("%llu %llu\n", (unsigned long long)(opened - start), (unsigned long long)(clock_now_ns() - ready));
    gpupool_close(client);
    return 0;
}

static void measure_first_map(const char *program, const char *socket, uint32_t pool, bool is_device,
                              struct samples *connect_ns, struct samples *map_ns, unsigned rounds) {
    setenv("GPUPOOL_SOCKET", socket, 1);
    for (unsigned i = 0; i < rounds; i++) {
        char command[4200];
        unsigned long long connect, map;
        snprintf(command, sizeof command, "'%s' --first-map %s%u", program, is_device ? "d" : "h", pool);
        FILE *child = popen(command, "re");
        if (child == NULL || fscanf(child, "%llu %llu", &connect, &map) != 2 || pclose(child) != 0) {
            fprintf(stderr, "round_trip: a process for the first map failed\n");
            exit(1);
        }
        samples_add(connect_ns, connect);
        samples_add(map_ns, map);
    }
}

static double measure_copy(struct gpupool_client *client, int device, void *to, const void *from,
                           void *stream) {
    uint64_t best = UINT64_MAX;
    for (unsigned i = 0; i < COPY_ROUNDS; i++) {
        uint64_t start = clock_now_ns();
        if (gpupool_copy(client, device, to, from, COPY_BYTES, stream) < 0 ||
            gpupool_stream_synchronize(client, device, stream) < 0)
            fail("copy");
        uint64_t ns = clock_now_ns() - start;
        best = ns < best ? ns : best;
    }
    return (double)COPY_BYTES / (double)best; /* bytes a ns is GB/s */
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"json", required_argument, NULL, 'j'},
                                            {"rounds", required_argument, NULL, 'r'},
                                            {"first-map", required_argument, NULL, 'f'},
                                            {0}};
    static const char *const gpus[] = {"none", "cuda", "sim"};
    const char *json_path = NULL;
    unsigned rounds = 20000;
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'j')
            json_path = optarg;
        else if (option == 'f')
            return child_first_map((uint32_t)strtoul(optarg + 1, NULL, 10), optarg[0] == 'd');
        else if (option == 'r' && strtoul(optarg, NULL, 10) > 0)
            rounds = (unsigned)strtoul(optarg, NULL, 10);
        else
            return 2;
    }
    int echo_fd = start_echo();
    struct gpupool_client *client;
    if (gpupool_open(&uncached, &client) < 0)
        fail("open");
    enum gpupool_gpu gpu = gpupool_gpu_kind(client);
    uint32_t host_pool, device_pool = 0;
    int device = -1;
    if (gpupool_host_pool(client, -1, &host_pool) < 0)
        fail("host pool");
    if (gpu != GPUPOOL_GPU_NONE) {
        device = 0;
        if (gpupool_device_pool(client, device, &device_pool) < 0)
            fail("device pool");
    }

    /* something held in each pool keeps its segment open and grown */
    struct gpupool_buffer held[2] = {0};
    if (gpupool_acquire(client, host_pool, 1 * MIB, NULL, GPUPOOL_FOREVER, 0, &held[0]) < 0)
        fail("acquire");
    if (device >= 0 && gpupool_acquire(client, device_pool, 1 * MIB, NULL, GPUPOOL_FOREVER, 0, &held[1]) < 0)
        fail("acquire");

    struct samples raw, host_acquire, host_release, device_acquire, device_release, connect_ns, host_map,
        device_map;
    samples_init(&raw, "raw_round_trip", rounds + BATCH);
    samples_init(&host_acquire, "host_acquire", rounds + BATCH);
    samples_init(&host_release, "host_release", rounds + BATCH);
    samples_init(&device_acquire, "device_acquire", rounds + BATCH);
    samples_init(&device_release, "device_release", rounds + BATCH);
    samples_init(&connect_ns, "connect", 2 * FIRST_MAPS);
    samples_init(&host_map, "host_first_map", FIRST_MAPS);
    samples_init(&device_map, "device_first_map", FIRST_MAPS);
    for (unsigned i = 0; i < rounds; i += BATCH) {
        measure_raw(echo_fd, &raw);
        measure_acquire(client, host_pool, &host_acquire, &host_release);
        if (device >= 0)
            measure_acquire(client, device_pool, &device_acquire, &device_release);
    }
    measure_first_map(argv[0], gpupool_socket_path(client), host_pool, false, &connect_ns, &host_map,
                      FIRST_MAPS);
    if (device >= 0)
        measure_first_map(argv[0], gpupool_socket_path(client), device_pool, true, &connect_ns, &device_map,
                          FIRST_MAPS);

    double upload_pool = 0, download_pool = 0, upload_pageable = 0;
    if (device >= 0) {
        struct gpupool_buffer host, on_device;
        void *stream = NULL, *pageable = malloc(COPY_BYTES);
        if (pageable == NULL || gpupool_stream_create(client, device, &stream) < 0 ||
            gpupool_acquire(client, host_pool, COPY_BYTES, stream, GPUPOOL_FOREVER, GPUPOOL_ZERO, &host) <
                0 ||
            gpupool_acquire(client, device_pool, COPY_BYTES, stream, GPUPOOL_FOREVER, GPUPOOL_ZERO,
                            &on_device) < 0)
            fail("buffers for copies");
        memset(pageable, 1, COPY_BYTES);
        upload_pool = measure_copy(client, device, on_device.data, host.data, stream);
        download_pool = measure_copy(client, device, host.data, on_device.data, stream);
        upload_pageable = measure_copy(client, device, on_device.data, pageable, stream);
        gpupool_release(client, &host, stream);
        gpupool_release(client, &on_device, stream);
        gpupool_stream_destroy(client, device, stream);
        free(pageable);
    }

    struct samples *all[] = {&raw,      &host_acquire,   &host_release,   &connect_ns,
                             &host_map, &device_acquire, &device_release, &device_map};
    unsigned count = device >= 0 ? 8 : 5;
    FILE *json = json_path != NULL ? fopen(json_path, "we") : NULL;
    if (json != NULL)
        fprintf(json, "{\n  \"gpu\": \"%s\",\n  \"times\": {\n", gpus[gpu]);
    printf("%-32s %10s %10s %14s\n", gpu == GPUPOOL_GPU_SIM ? "(simulated GPU)" : "", "p50", "p99",
           "p50 / raw p50");
    samples_sort(&raw);
    for (unsigned i = 0; i < count; i++) {
        samples_sort(all[i]);
        printf("%-32s %10s %10s %14.2f\n", all[i]->name, NS_TEXT(samples_quantile(all[i], 0.5)),
               NS_TEXT(samples_quantile(all[i], 0.99)),
               (double)samples_quantile(all[i], 0.5) / (double)samples_quantile(&raw, 0.5));
        if (json != NULL)
            samples_print_json(all[i], json, i + 1 == count);
    }
    if (device >= 0)
        printf("copies of %s, best of %u: pool memory to device %.1f GB/s, back %.1f GB/s; ordinary memory "
               "to device %.1f GB/s\n",
               BYTES_TEXT(COPY_BYTES), COPY_ROUNDS, upload_pool, download_pool, upload_pageable);
    if (json != NULL) {
        fprintf(json,
                "  },\n  \"copies\": {\"bytes\": %llu, \"pool_to_device_gbps\": %.2f, "
                "\"device_to_pool_gbps\": %.2f, "
                "\"pageable_to_device_gbps\": %.2f}\n}\n",
                (unsigned long long)COPY_BYTES, upload_pool, download_pool, upload_pageable);
        fclose(json);
    }
    gpupool_release(client, &held[0], NULL);
    if (device >= 0)
        gpupool_release(client, &held[1], NULL);
    gpupool_close(client);
    close(echo_fd);
    wait(NULL);
    return 0;
}
