/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/objects/channel/channel.h"

/* Linux 5.16 has it; headers may be older than the kernel. */
#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

/* struct futex_waitv of <linux/futex.h>, by our name. */
struct waiter {
    uint64_t value, address;
    uint32_t flags, reserved;
};
#define WAITER_32_BITS 2u

/* An older kernel waits for one word, and looks at the others so often. */
#define SLICE_NS (10 * NS_PER_MS)

static struct timespec time_of(uint64_t ns) {
    return (struct timespec){.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
}

static void sleep_on_first(const struct channel_sleep *sleep, uint64_t deadline_ns) {
    uint64_t left_ns = clock_left_ns(deadline_ns);
    struct timespec slice = time_of(left_ns < SLICE_NS ? left_ns : SLICE_NS);

    (void)syscall(SYS_futex, (const uint32_t *)sleep->words[0].word, FUTEX_WAIT, sleep->words[0].expected,
                  &slice, NULL, 0);
}

void channel_sleep_on(const struct channel_sleep *sleep, uint64_t deadline_ns) {
    struct waiter waiters[CHANNEL_SLEEP_WORDS];
    struct timespec end = time_of(deadline_ns);

    for (unsigned i = 0; i < sleep->count; i++)
        waiters[i] = (struct waiter){.value = sleep->words[i].expected,
                                     .address = (uintptr_t)sleep->words[i].word,
                                     .flags = WAITER_32_BITS};
    long r = syscall(SYS_futex_waitv, waiters, sleep->count, 0, deadline_ns == NS_FOREVER ? NULL : &end,
                     CLOCK_MONOTONIC);
    if (r < 0 && errno == ENOSYS)
        sleep_on_first(sleep, deadline_ns);
}

void channel_wake(const _Atomic uint64_t *word) {
    (void)syscall(SYS_futex, (const uint32_t *)word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
