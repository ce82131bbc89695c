/* SPDX-License-Identifier: Apache-2.0 */
/* The parts that the program kills plays in processes of their own: who dies with a kernel in flight, and who
 * looks whether that reaches memory which others have by then. */
#include "tests/gpu/kills.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <gpupool/gpupool.h>

#define BUFFER_BYTES   (2 * KILLS_MIB) /* the least that a segment is */
#define VICTIM_BUFFERS 4u
#define KERNEL_MS      2000u /* longer than any victim and its child live */
#define CHILD_MS       400u
#define WATCH_ROUNDS   8u /* how often a checker looks before it gives a buffer back */

uint64_t kills_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * KILLS_NS_PER_S + (uint64_t)now.tv_nsec;
}

void kills_rest_ns(uint64_t ns) {
    nanosleep(
        &(struct timespec){.tv_sec = (time_t)(ns / KILLS_NS_PER_S), .tv_nsec = (long)(ns % KILLS_NS_PER_S)},
        NULL);
}

uint64_t kills_next_random(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

void kills_need(int result, const char *what) {
    if (result == 0)
        return;
    fprintf(stderr, "kills: %s: %s\n", what, gpupool_error_text());
    _exit(1);
}

/* --- victims --- */

static void victim_leave_child(void) {
    pid_t pid = fork();
    if (pid != 0)
        return;
    /* It keeps all descriptors, and with them the parent's work alive. */
    kills_rest_ns(CHILD_MS * KILLS_NS_PER_MS);
    _exit(0);
}

/* Takes and gives back until it is killed. */
static void victim_at_random(struct gpupool_client *client, const uint32_t pools[2], uint64_t seed) {
    struct gpupool_buffer held[8];
    struct gpupool_token token;
    unsigned n_held = 0;

    for (;;) {
        uint64_t random = kills_next_random(&seed);
        if (n_held < 8 && random % 3 != 0) {
            int r = random % 7 == 0 && n_held > 0 &&
                            gpupool_share(client, &held[0], GPUPOOL_NO_STREAM, &token) == 0
                        ? gpupool_attach(client, &token, GPUPOOL_NO_STREAM, 0, &held[n_held])
                        : gpupool_acquire(client, pools[random / 8 % 2], 1 + random % BUFFER_BYTES, NULL,
                                          KILLS_NS_PER_MS, 0, &held[n_held]);
            n_held += r == 0;
        } else if (n_held > 0) {
            gpupool_release(client, &held[--n_held], NULL);
        }
    }
}

int kills_victim(const char *how, uint64_t seed) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;
    struct gpupool_buffer buffers[VICTIM_BUFFERS + 1];
    void *memory[VICTIM_BUFFERS];
    uint32_t pools[2];

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    options.flags = strchr(how, 'r') != NULL && seed % 2 == 0 ? 0 : GPUPOOL_OPEN_NO_CACHE;
    kills_need(gpupool_open(&options, &client), "a victim connects");
    kills_need(gpupool_device_pool(client, 0, &pools[0]), "the device pool");
    kills_need(gpupool_host_pool(client, -1, &pools[1]), "the host pool");
    if (strchr(how, 'r') != NULL)
        victim_at_random(client, pools, seed);
    for (unsigned i = 0; i < VICTIM_BUFFERS; i++) {
        kills_need(gpupool_acquire(client, pools[0], BUFFER_BYTES, NULL, KILLS_PATIENCE_NS, 0, &buffers[i]),
                   "a victim's buffer");
        memory[i] = buffers[i].data;
    }
    kills_need(
        gpupool_acquire(client, pools[1], BUFFER_BYTES, NULL, KILLS_PATIENCE_NS, 0, &buffers[VICTIM_BUFFERS]),
        "a victim's host buffer");
    int r = kills_start_kernel(memory, VICTIM_BUFFERS, BUFFER_BYTES, KERNEL_MS);
    if (r != 0) {
        fprintf(stderr, "kills: the kernel does not start: CUDA error %d\n", r);
        return 1;
    }
    if (strchr(how, 'c') != NULL)
        victim_leave_child();
    if (write(STDOUT_FILENO, "r", 1) != 1)
        return 1;
    for (;;)
        pause();
}

/* --- checkers --- */

static volatile sig_atomic_t told_to_stop;

static void on_stop(int number) {
    (void)number;
    told_to_stop = 1;
}

/* Whether the whole buffer still is what was written. */
static bool is_mine(struct gpupool_client *client, const struct gpupool_buffer *buffer, const uint8_t *mine,
                    uint8_t *found) {
    kills_need(gpupool_copy(client, buffer->device, found, buffer->data, BUFFER_BYTES, NULL),
               "a checker's copy");
    kills_need(gpupool_stream_synchronize(client, buffer->device, NULL), "a checker's wait");
    return memcmp(mine, found, BUFFER_BYTES) == 0;
}

/* Prints how many buffers it looked at and how many were written by others. */
int kills_checker(uint64_t seed) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;
    unsigned long long rounds = 0, foreign = 0;
    uint8_t *mine = malloc(BUFFER_BYTES), *found = malloc(BUFFER_BYTES);
    uint32_t pool;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGTERM, on_stop);
    if (mine == NULL || found == NULL)
        return 1;
    options.flags = GPUPOOL_OPEN_NO_CACHE; /* so that every buffer comes from the daemon */
    kills_need(gpupool_open(&options, &client), "a checker connects");
    kills_need(gpupool_device_pool(client, 0, &pool), "the device pool");
    for (; !told_to_stop; rounds++) {
        struct gpupool_buffer buffer;
        bool all_mine = true;

        int r = gpupool_acquire(client, pool, BUFFER_BYTES, NULL, 100 * KILLS_NS_PER_MS, 0, &buffer);
        if (r == GPUPOOL_E_EXHAUSTED)
            continue;
        kills_need(r, "a checker's buffer");
        memset(mine, (int)(kills_next_random(&seed) & 255), BUFFER_BYTES);
        kills_need(gpupool_copy(client, buffer.device, buffer.data, mine, BUFFER_BYTES, NULL),
                   "a checker's copy");
        for (unsigned look = 0; look < WATCH_ROUNDS && all_mine; look++) {
            all_mine = is_mine(client, &buffer, mine, found);
            kills_rest_ns(KILLS_NS_PER_MS / 2);
        }
        foreign += !all_mine;
        kills_need(gpupool_release(client, &buffer, NULL), "a checker's release");
    }
    gpupool_close(client);
    free(mine);
    free(found);
    printf("%llu %llu\n", rounds, foreign);
    return fflush(stdout) == 0 ? 0 : 1;
}
