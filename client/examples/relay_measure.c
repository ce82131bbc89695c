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

#define SMALL_BYTES  (1 * MIB)
#define LARGE_BYTES  (32 * MIB)
#define PACKET_BYTES 64u /* about what a request has */

/* The numbers of repetitions, in all. Measurements that take turns repeat a multiple of TURNS times. */
#define TURNS       20u
#define ROUND_TRIPS 2000u
#define SMALL_PAIRS 2000u
#define LARGE_PAIRS 500u
#define PLAIN_SMALL 200u /* plain allocation takes long */
#define PLAIN_LARGE 20u
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

/* The sample that so many percent of all do not exceed; sorts them. */
static uint64_t percentile(struct samples *samples, unsigned percent) {
    qsort(samples->ns, samples->count, sizeof *samples->ns, compare_ns);
    return samples->ns[(samples->count - 1) * percent / 100];
}

static const char *format_ns(uint64_t ns, char text[16]) {
    double value = (double)ns;
    snprintf(text, 16, value < 1e6 ? "%.1f us" : "%.2f ms", value < 1e6 ? value / 1e3 : value / 1e6);
    return text;
}

static void print_row(const char *what, struct samples *samples) {
    char p50[16], p99[16];
    if (samples->count == 0)
        return;
    printf("  %-58s %6u %12s %12s\n", what, samples->count, format_ns(percentile(samples, 50), p50),
           format_ns(percentile(samples, 99), p99));
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

struct pairs {
    struct samples acquire, release, both;
};

static int measure_pairs(struct gpupool_client *client, uint32_t pool, void *stream, uint64_t size_bytes,
                         unsigned count, struct pairs *pairs) {
    for (unsigned i = 0; i <= count; i++) { /* the first lets the pool grow and maps the segment */
        struct gpupool_buffer buffer;
        uint64_t begin = now_ns();
        if (gpupool_acquire(client, pool, size_bytes, stream, ROOM_NS, 0, &buffer) < 0)
            return fail_gpupool("acquiring a buffer");
        uint64_t middle = now_ns();
        if (gpupool_release(client, &buffer, stream) < 0)
            return fail_gpupool("releasing a buffer");
        uint64_t end = now_ns();
        if (i > 0) {
            add(&pairs->acquire, middle - begin);
            add(&pairs->release, end - middle);
            add(&pairs->both, end - begin);
        }
    }
    return 0;
}

/* Measures the calls of a program that wants locked memory and has no pool. *locked turns false where the
 * system refuses to lock. */
static int measure_plain(uint64_t size_bytes, unsigned count, struct samples *samples, bool *locked) {
    for (unsigned i = 0; i < count; i++) {
        uint64_t begin = now_ns();
        void *memory =
            mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (memory == MAP_FAILED)
            return fail_system("mapping memory");
        if (*locked && mlock(memory, size_bytes) < 0) /* RLIMIT_MEMLOCK */
            *locked = false;
        if (munmap(memory, size_bytes) < 0)
            return fail_system("unmapping memory");
        add(samples, now_ns() - begin);
    }
    return 0;
}

struct results {
    struct samples round_trip;
    struct pairs host_small, host_large, device_small, device_large;
    struct samples plain_small, plain_large;
    bool locked;
};

/* In turns, so that what else goes on in the machine meets all of them alike. */
static int measure_turns(struct gpupool_client *client, struct echo *echo, uint32_t host_pool,
                         uint32_t device_pool, struct results *results) {
    for (unsigned turn = 0; turn < TURNS; turn++)
        if (measure_round_trips(echo, ROUND_TRIPS / TURNS, &results->round_trip) < 0 ||
            measure_pairs(client, host_pool, GPUPOOL_NO_STREAM, SMALL_BYTES, SMALL_PAIRS / TURNS,
                          &results->host_small) < 0 ||
            measure_pairs(client, device_pool, NULL, SMALL_BYTES, SMALL_PAIRS / TURNS,
                          &results->device_small) < 0 ||
            measure_plain(SMALL_BYTES, PLAIN_SMALL / TURNS, &results->plain_small, &results->locked) < 0 ||
            measure_pairs(client, host_pool, GPUPOOL_NO_STREAM, LARGE_BYTES, LARGE_PAIRS / TURNS,
                          &results->host_large) < 0 ||
            measure_pairs(client, device_pool, NULL, LARGE_BYTES, LARGE_PAIRS / TURNS,
                          &results->device_large) < 0 ||
            measure_plain(LARGE_BYTES, PLAIN_LARGE / TURNS, &results->plain_large, &results->locked) < 0)
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

static void print_ratio(const char *what, struct samples *plain, struct pairs *pairs) {
    printf("  %s: a pair takes 1/%.1f of what plain memory takes\n", what,
           (double)percentile(plain, 50) / (double)percentile(&pairs->both, 50));
}

static void print_results(struct results *results, bool simulated) {
    const char *plain = results->locked ? "mmap, touch, lock, unmap" : "mmap, touch, unmap";
    char text[64];

    printf("\n  %-58s %6s %12s %12s\n", "measured in this run", "times", "p50", "p99");
    print_row("socket round trip, 64 bytes, two processes", &results->round_trip);
    print_row("host 1 MiB: acquire", &results->host_small.acquire);
    print_row("host 1 MiB: release", &results->host_small.release);
    print_row("host 1 MiB: acquire and release", &results->host_small.both);
    snprintf(text, sizeof text, "plain 1 MiB: %s", plain);
    print_row(text, &results->plain_small);
    print_row("host 32 MiB: acquire and release", &results->host_large.both);
    snprintf(text, sizeof text, "plain 32 MiB: %s", plain);
    print_row(text, &results->plain_large);
    print_row("device 1 MiB: acquire", &results->device_small.acquire);
    print_row("device 1 MiB: release", &results->device_small.release);
    print_row("device 1 MiB: acquire and release", &results->device_small.both);
    print_row("device 32 MiB: acquire and release", &results->device_large.both);
    print_row("device: attach, first in a segment (maps it)", &device_maps);
    print_row("host: attach, first in a segment (maps and registers it)", &host_maps);
    print_ratio("host 1 MiB", &results->plain_small, &results->host_small);
    print_ratio("host 32 MiB", &results->plain_large, &results->host_large);
    if (!results->locked)
        printf("  plain memory was not locked: the limit of locked memory (ulimit -l) is too low here\n");
    printf(
        "  device memory is not compared: this program does not link CUDA, so it has no plain allocation\n");
    if (simulated)
        printf("  on a simulated GPU the times of driver calls (mapping, registering) imitate an H200's; no "
               "GPU took "
               "part\n");
}

int measure_and_print(struct gpupool_client *client, const struct work_report *relayed) {
    struct results *results = calloc(1, sizeof *results);
    double seconds = (double)(relayed->end_ns - relayed->begin_ns) / (double)NS_PER_S;

    if (results == NULL)
        return fail_system("measuring");
    int r = measure(client, results);
    if (r == 0) {
        print_results(results, gpupool_gpu_kind(client) == GPUPOOL_GPU_SIM);
        printf("  relay: %.1f MiB in %llu parcels from process to process in %.0f ms, %.0f MiB/s, growth and "
               "first maps included\n",
               (double)relayed->size_bytes / (double)MIB, (unsigned long long)relayed->parcels, seconds * 1e3,
               (double)relayed->size_bytes / (double)MIB / (seconds > 0 ? seconds : 1));
    }
    free(results);
    return r;
}
