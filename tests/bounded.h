/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_BOUNDED_H
#define TESTS_BOUNDED_H
/* Waits of tests, each with a bound. The macros are for tests under cmocka: a wait in vain fails the test,
 * and the message names its object. */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "base/clock.h"

/* How long a test waits for an event. An event takes that long only where something is broken, even under a
 * sanitizer on a machine that has ten times as much to do as it can. */
#define TEST_WAIT_NS (50 * NS_PER_S)

/* The distance between two looks at a condition. */
static inline void test_pause(void) {
    nanosleep(&(struct timespec){.tv_nsec = 3 * (long)NS_PER_MS}, NULL);
}

/* Looks every few milliseconds until the condition holds; fails the test when it does not in TEST_WAIT_NS. */
#define WAIT_UNTIL(condition)                                                                                \
    do {                                                                                                     \
        uint64_t wait_until_ns_ = clock_now_ns() + TEST_WAIT_NS;                                             \
        while (!(condition)) {                                                                               \
            if (clock_now_ns() > wait_until_ns_)                                                             \
                fail_msg("this did not come to pass: %s", #condition);                                       \
            test_pause();                                                                                    \
        }                                                                                                    \
    } while (0)

/* When a wait that begins now has to end, on CLOCK_REALTIME, which pthread_timedjoin_np() and sem_timedwait()
 * go by. */
static inline struct timespec test_wait_end(void) {
    struct timespec end;

    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += (time_t)(TEST_WAIT_NS / NS_PER_S);
    return end;
}

/* Waits for a thread. Returns 0, or a positive errno when the thread does not end in time. *ret_result may be
 * NULL. */
static inline int test_join(pthread_t thread, void **ret_result) {
    const struct timespec end = test_wait_end();
    return pthread_timedjoin_np(thread, ret_result, &end);
}

/* A thread that does not end fails the test, which then names the thread and the function that waits. */
#define TEST_JOIN(thread, ret_result)                                                                        \
    do {                                                                                                     \
        int join_error_ = test_join(thread, ret_result);                                                     \
        if (join_error_ != 0)                                                                                \
            fail_msg("%s() waits for the thread %s: %s", __func__, #thread, strerror(join_error_));          \
    } while (0)

/* Waits until another thread posts. Returns 0, or a positive errno when none does in time. */
static inline int test_sem_wait(sem_t *posted) {
    const struct timespec end = test_wait_end();
    while (sem_timedwait(posted, &end) < 0)
        if (errno != EINTR)
            return errno;
    return 0;
}

/* A semaphore that is not posted fails the test, which then names it and the function that waits. Not for
 * threads of a test: cmocka knows its own one alone. */
#define TEST_SEM_WAIT(posted)                                                                                \
    do {                                                                                                     \
        int wait_error_ = test_sem_wait(posted);                                                             \
        if (wait_error_ != 0)                                                                                \
            fail_msg("%s() waits for %s: %s", __func__, #posted, strerror(wait_error_));                     \
    } while (0)

/* Waits for a child. Returns 0, or a positive errno: ETIMEDOUT for a child that did not end and was killed.
 */
static inline int test_reap(pid_t pid, int *ret_status) {
    uint64_t end_ns = clock_now_ns() + TEST_WAIT_NS;

    for (;;) {
        pid_t ended = waitpid(pid, ret_status, WNOHANG);
        if (ended == pid)
            return 0;
        if (ended < 0 && errno != EINTR)
            return errno;
        if (clock_now_ns() > end_ns) {
            kill(pid, SIGKILL);
            waitpid(pid, NULL, 0);
            return ETIMEDOUT;
        }
        test_pause();
    }
}

/* A child that does not end fails the test, which then names the child and the function that waits. */
#define TEST_REAP(pid, ret_status)                                                                           \
    do {                                                                                                     \
        int reap_error_ = test_reap(pid, ret_status);                                                        \
        if (reap_error_ != 0)                                                                                \
            fail_msg("%s() waits for the process %s: %s", __func__, #pid, strerror(reap_error_));            \
    } while (0)

#endif
