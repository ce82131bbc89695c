/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_LOCK_H
#define BASE_LOCK_H
#include <pthread.h>

/* Makes a mutex that is held for well under a microsecond: a thread that finds it locked spins for a while
 * before it sleeps. */
static inline void lock_init_brief(pthread_mutex_t *lock) {
    pthread_mutexattr_t attributes;

    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

#endif
