/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the costs of the pools on this machine, beside the costs without them, all in one run: figures of
 * another machine, or of another day, would prove nothing.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "relay.h"

#define SIZE_BYTES   (1 * MIB)
#define PACKET_BYTES 64u /* about what a request has */

/* The numbers of repetitions, in all. Measurements that take turns repeat a multiple of TURNS times. Pairs
 * are timed in batches: to look at the clock takes longer than one of them. */
#define TURNS       20u
#define ROUND_TRIPS 2000u
#define BATCHES     200u
#define BATCH_PAIRS 100u
#define PLAIN       200u /* plain allocation takes long */
#define MAP_ROUNDS  20u
#define SAMPLES_MAX 2000u

struct samples {
    uint64_t ns[SAMPLES_MAX];
    unsigned count;
};

static struct samples device_maps, host_maps;

static void add(struct samples *samples, uint64_t ns) {
    if (samples->count < SAMPLES_MAX)
        samples->ns[samples->count++] = ns;
}

static int compare_ns(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

/* The sample in the middle of all; sorts them. */
static uint64_t median(struct samples *samples) {
    qsort(samples->ns, samples->count, sizeof *samples->ns, compare_ns);
    return samples->ns[(samples->count - 1) / 2];
}

static const char *format_ns(uint64_t ns, char text[24]) {
    double value = (double)ns;
    snprintf(text, 24,
             ns < 1000      ? "%.0f ns"
             : ns < 1000000 ? "%.1f µs"
                            : "%.1f ms",
             ns < 1000      ? value
             : ns < 1000000 ? value / 1e3
                            : value / 1e6);
    return text;
}

static void print_row(const char *what, uint64_t ns, const char *note) {
    char text[24];
    printf("   %-40s %10s%s\n", what, format_ns(ns, text), note);
}

/* --- a segment's first map --- */

static int map_once(const char *socket, const struct holdings *held, bool counts) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;
    struct gpupool_buffer device, host;
    uint32_t pool;

    options.socket = socket;
    if (gpupool_open(&options, &client) < 0)
        return fail_gpupool("connecting");
    if (gpupool_device_pool(client, 0, &pool) < 0) /* what a client learns once is not part of the map */
        return fail_gpupool("finding the device pool");
    uint64_t begin = now_ns();
    if (gpupool_attach(client, &held->device, GPUPOOL_NO_STREAM, 0, &device) < 0)
        return fail_gpupool("attaching a device buffer");
    uint64_t middle = now_ns();
    if (gpupool_attach(client, &held->host, GPUPOOL_NO_STREAM, 0, &host) < 0)
        return fail_gpupool("attaching a host buffer");
    uint64_t end = now_ns();
    if (device.size_bytes != held->device_bytes || host.size_bytes != held->host_bytes)
        return fail("an attached buffer is not of the size that was shared");
    if (counts) {
        add(&device_maps, middle - begin);
        add(&host_maps, end - middle);
    }
    gpupool_close(client); /* releases both */
    return 0;
}

int measure_first_maps(struct gpupool_client *client, const struct holdings *held) {
    /* The first round is not counted: it makes the process's CUDA context. */
    for (unsigned i = 0; i <= MAP_ROUNDS; i++)
        if (map_once(gpupool_socket_path(client), held, i > 0) < 0)
            return -1;
    return 0;
}

/* --- a bare round trip --- */

struct echo {
    int pid, fd;
};

static int echo_start(struct echo *echo) {
    char number[16];
    int ends[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
        return fail_system("making a socket pair");
    snprintf(number, sizeof number, "%d", ends[1]);
    echo->pid = spawn_worker("echo", (const int[]){ends[1], -1}, (char *[]){number, NULL});
    echo->fd = ends[0];
    close(ends[1]);
    return echo->pid < 0 ? -1 : 0;
}

/* Its end of file ends the echo. */
static int echo_stop(struct echo *echo) {
    close(echo->fd);
    return wait_for_worker(echo->pid, "echo");
}

static int measure_round_trips(struct echo *echo, unsigned count, struct samples *samples) {
    char packet[PACKET_BYTES] = {0};

    for (unsigned i = 0; i <= count; i++) { /* the first waits for the echo to be there */
        uint64_t begin = now_ns();
        if (send(echo->fd, packet, sizeof packet, MSG_NOSIGNAL) != (ssize_t)sizeof packet ||
            recv(echo->fd, packet, sizeof packet, 0) != (ssize_t)sizeof packet)
            return fail("the echo does not answer");
        if (i > 0)
            add(samples, now_ns() - begin);
    }
    return 0;
}

/* --- acquire and release --- */

static int acquire_and_release(struct gpupool_client *client, uint32_t pool, void *stream) {
    struct gpupool_buffer buffer;

    if (gpupool_acquire(client, pool, SIZE_BYTES, stream, ROOM_NS, 0, &buffer) < 0)
        return fail_gpupool("acquiring a buffer");
    if (gpupool_release(client, &buffer, stream) < 0)
        return fail_gpupool("releasing a buffer");
    return 0;
}

static int measure_pairs(struct gpupool_client *client, uint32_t pool, void *stream, unsigned batches,
                         struct samples *samples) {
    for (unsigned batch = 0; batch < batches; batch++) {
        if (acquire_and_release(client, pool, stream) < 0) /* lets the pool grow, and maps the segment */
            return -1;
        uint64_t begin = now_ns();
        for (unsigned i = 0; i < BATCH_PAIRS; i++)
            if (acquire_and_release(client, pool, stream) < 0)
                return -1;
        add(samples, (now_ns() - begin) / BATCH_PAIRS);
    }
    return 0;
}

/* Measures the calls of a program that wants locked memory and has no pool. *locked turns false where the
 * system refuses to lock. */
static int measure_plain(unsigned count, struct samples *samples, bool *locked) {
    for (unsigned i = 0; i < count; i++) {
        uint64_t begin = now_ns();
        void *memory =
            mmap(NULL, SIZE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (memory == MAP_FAILED)
            return fail_system("mapping memory");
        if (*locked && mlock(memory, SIZE_BYTES) < 0) /* RLIMIT_MEMLOCK */
            *locked = false;
        if (munmap(memory, SIZE_BYTES) < 0)
            return fail_system("unmapping memory");
        add(samples, now_ns() - begin);
    }
    return 0;
}

struct results {
    struct samples round_trip, host, device, plain;
    bool locked;
};

/* In turns, so that what else goes on in the machine meets all of them alike. */
static int measure_turns(struct gpupool_client *client, struct echo *echo, uint32_t host_pool,
                         uint32_t device_pool, struct results *results) {
    for (unsigned turn = 0; turn < TURNS; turn++)
        if (measure_round_trips(echo, ROUND_TRIPS / TURNS, &results->round_trip) < 0 ||
            measure_pairs(client, host_pool, GPUPOOL_NO_STREAM, BATCHES / TURNS, &results->host) < 0 ||
            measure_pairs(client, device_pool, NULL, BATCHES / TURNS, &results->device) < 0 ||
            measure_plain(PLAIN / TURNS, &results->plain, &results->locked) < 0)
            return -1;
    return 0;
}

static int measure(struct gpupool_client *client, struct results *results) {
    uint32_t host_pool, device_pool;
    struct echo echo = {.fd = -1};

    if (gpupool_host_pool(client, -1, &host_pool) < 0 || gpupool_device_pool(client, 0, &device_pool) < 0)
        return fail_gpupool("finding the pools");
    results->locked = true;
    if (echo_start(&echo) < 0)
        return -1;
    int r = measure_turns(client, &echo, host_pool, device_pool, results);
    return echo_stop(&echo) < 0 ? -1 : r;
}

static void print_results(struct results *results, bool simulated) {
    uint64_t host_ns = median(&results->host), plain_ns = median(&results->plain);
    char note[64];

    printf("   the medians of this run:\n");
    print_row("host memory of the pool", host_ns, "");
    print_row("device memory of the pool", median(&results->device), "");
    snprintf(note, sizeof note, ", %.0f times host memory of the pool",
             (double)plain_ns / (double)(host_ns > 0 ? host_ns : 1));
    print_row(results->locked ? "mmap, touch, lock, unmap" : "mmap, touch, unmap (ulimit -l is too low)",
              plain_ns, note);
    print_row("one message to a process, and its answer", median(&results->round_trip),
              ", which the pool's memory does without");
    print_row("attach GPU memory of another process", median(&device_maps), ", the first time in a segment");
    print_row("attach host memory of another process", median(&host_maps), ", the first time in a segment");
    if (simulated)
        printf("   No GPU took part. The simulation imitates the times of an H200's driver calls.\n");
}

int measure_and_print(struct gpupool_client *client) {
    struct results *results = calloc(1, sizeof *results);

    if (results == NULL)
        return fail_system("measuring");
    printf("\n3. A program acquires 1 MiB and releases it, again and again.\n");
    fflush(stdout);
    int r = measure(client, results);
    if (r == 0)
        print_results(results, gpupool_gpu_kind(client) == GPUPOOL_GPU_SIM);
    free(results);
    return r;
}
