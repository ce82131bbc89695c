/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/word_wait.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449 /* on all architectures */
#endif

/* The layout and the flag of Linux 5.16, which the headers of an older system have not. */
struct waiter {
    uint64_t value, address;
    uint32_t flags, reserved;
};
#define WAITER_32_BITS 2u

static bool has_changed(const struct channel_sleep *sleep) {
    for (unsigned i = 0; i < sleep->count; i++)
        if ((uint32_t)word_load(sleep->words[i].word, WORD_TOTAL) != sleep->words[i].expected)
            return true;
    return false;
}

static struct timespec to_timespec(uint64_t ns) {
    return (struct timespec){.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
}

static int wait_for_any(const struct channel_sleep *sleep, uint64_t deadline_ns) {
    struct waiter waiters[CHANNEL_SLEEP_WORDS];
    struct timespec deadline = to_timespec(deadline_ns);

    for (unsigned i = 0; i < sleep->count; i++)
        waiters[i] = (struct waiter){.value = sleep->words[i].expected,
                                     .address = (uintptr_t)sleep->words[i].word,
                                     .flags = WAITER_32_BITS};
    long woken = syscall(SYS_futex_waitv, waiters, sleep->count, 0u,
                         deadline_ns == UINT64_MAX ? NULL : &deadline, CLOCK_MONOTONIC);
    return woken >= 0 || errno == EAGAIN ? 0 : -errno;
}

/* For a kernel without futex_waitv(). */
static int wait_in_slices(const struct channel_sleep *sleep, uint64_t deadline_ns) {
    while (!has_changed(sleep)) {
        uint64_t now_ns = clock_now_ns(), left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
        if (left_ns == 0)
            return -ETIMEDOUT;
        struct timespec slice = to_timespec(left_ns < WORD_WAIT_SLICE_NS ? left_ns : WORD_WAIT_SLICE_NS);
        if (syscall(SYS_futex, sleep->words[0].word, FUTEX_WAIT, sleep->words[0].expected, &slice, NULL, 0) ==
            0)
            return 0;
        if (errno != ETIMEDOUT && errno != EAGAIN)
            return -errno;
    }
    return 0;
}

int word_wait(const struct channel_sleep *sleep, uint64_t deadline_ns) {
    int r = wait_for_any(sleep, deadline_ns);

    /* A filter of system calls that does not know the call may refuse it by EPERM. */
    return r == -ENOSYS || r == -EPERM ? wait_in_slices(sleep, deadline_ns) : r;
}

void word_wake(const _Atomic uint64_t *word) {
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
