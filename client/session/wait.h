/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_WAIT_H
#define CLIENT_SESSION_WAIT_H
/* The pauses of a thread that waits for a word which the GPU or another process writes. */
#include <time.h>

#include "base/clock.h"

/* So long the CPU looks again and again: the kernel takes about as long to put this thread to sleep and wake
 * it. After that it sleeps, an eighth of the time that it has waited, and so comes at most that much too
 * late. */
#define WAIT_SPIN_NS      (100 * NS_PER_US)
#define WAIT_SLEEP_NS_MAX (1 * NS_PER_MS)

/* Pauses between two looks at the word, for at most left_ns: not at all in the beginning of the wait. */
static inline void wait_pause(uint64_t waited_ns, uint64_t left_ns) {
    uint64_t pause_ns = waited_ns / 8;

    if (waited_ns < WAIT_SPIN_NS)
        return;
    pause_ns = pause_ns < WAIT_SLEEP_NS_MAX ? pause_ns : WAIT_SLEEP_NS_MAX;
    if (pause_ns > left_ns)
        pause_ns = left_ns;
    nanosleep(&(struct timespec){.tv_nsec = (long)pause_ns}, NULL);
}

#endif
