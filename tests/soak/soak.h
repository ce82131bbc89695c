/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SOAK_SOAK_H
#define TESTS_SOAK_SOAK_H
/*
 * The soak: a daemon under mixed load for as long as one likes, watched for what only time brings to light:
 * memory and descriptors that are not given back. Three parts:
 *
 *   soak.c    starts workers, hands tokens on between them, ends them in every way, asks the daemon things
 * meanwhile worker.c  a worker: takes, marks, checks, shares and gives back, until it is told how to end, or
 * killed samples.c what the daemon is seen to use, over time, and whether that grew
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/include/gpupool/gpupool.h"
#include "tests/integration/harness.h"

/* --- between a worker and who started it: one message a packet --- */

enum soak_verb {
    SOAK_TOKEN = 't',     /* both ways: a buffer to be attached by another worker of the same user */
    SOAK_FAREWELL = 'f',  /* give everything back, close, exit status 0 */
    SOAK_IN_FLIGHT = 'w', /* close while the streams still work and buffers are held, exit status 0 */
    SOAK_EXIT = 'x',      /* exit without a farewell */
    SOAK_CHILD = 'c',     /* fork a child that keeps everything open for a while, and be killed */
    SOAK_EXEC = 'e',      /* become another program, which ends after a while */
    SOAK_FAULT = 's',     /* a segmentation fault */
};

struct soak_message {
    uint32_t verb;
    uint32_t milliseconds;     /* CHILD, EXEC: the while */
    uint64_t size_bytes, mark; /* TOKEN */
    struct gpupool_token token;
};

/* How long a child or an executed program stays, at most. */
#define SOAK_STAY_MAX_MS 400u

/* How a worker is, as letters of its argument "UID:SEED:LETTERS". */
enum soak_style {
    SOAK_NO_CACHE = 'n',
    SOAK_HOST_ONLY = 'h',
    SOAK_TWO_THREADS = 't',
    SOAK_OWN_LOOP = 'l', /* it calls gpupool_dispatch() itself, and not often */
};

/* The role of a worker (see puppet_main()). */
int soak_worker(int fd, const char *argument);

/* --- samples --- */

/* One sample. */
struct sample {
    uint64_t at_ns;        /* since the start */
    uint64_t daemon_bytes; /* anonymous memory: neither pools nor program text */
    uint64_t client_bytes; /* the same of the workers that stay all the time, added up */
    uint64_t descriptors, threads;
    uint64_t sessions, leases, leased_bytes, fenced_bytes, quarantined_bytes, waiters; /* from the stats */
    uint64_t acquires;
};

struct samples {
    struct sample *at;
    size_t count, room;
};

/* Looks once, and keeps it. stay: processes that stay, whose memory is looked at as well. Fails the test
 * where the pools' numbers make no sense. */
void samples_take(struct samples *samples, struct test_daemon *daemon, uint64_t start_ns, const pid_t *stay,
                  size_t n_stay);
void samples_print(const struct sample *sample);
/* Writes all to a file, as comma separated values. Returns 0 or a negative errno. */
int samples_write(const struct samples *samples, const char *path);

/* Prints, of each figure, the most in the second and in the last quarter of the samples, and returns how many
 * figures grew from one to the other by more than is allowed for. The first half is time to reach the level.
 */
unsigned samples_judge(const struct samples *samples);

void samples_deinit(struct samples *samples);

#endif
