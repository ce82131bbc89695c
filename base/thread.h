/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include "base/clock.h"

/* pthread_create() of a thread in which all signals are blocked: they are for the program's own threads.
 * attributes may be NULL. Returns what pthread_create() does. */
static inline int thread_create(pthread_t *ret_thread, const pthread_attr_t *attributes,
                                void *(*main)(void *), void *argument) {
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(ret_thread, attributes, main, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* Makes a condition whose deadlines are on CLOCK_MONOTONIC. */
static inline void thread_condition_init(pthread_cond_t *condition) {
    pthread_condattr_t monotonic;

    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

/* Waits for such a condition until a deadline. Returns what pthread_cond_timedwait() does. */
static inline int thread_condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock,
                                        uint64_t deadline_ns) {
    struct timespec deadline = {(time_t)(deadline_ns / NS_PER_S), (long)(deadline_ns % NS_PER_S)};
    return deadline_ns == NS_FOREVER ? pthread_cond_wait(condition, lock)
                                     : pthread_cond_timedwait(condition, lock, &deadline);
}

#endif
