/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_THREAD_H
#define CLIENT_SESSION_THREAD_H
/*
 * The part of the calling thread's state that fast paths touch. It is one object, because the
 * address of a thread-local variable of a shared library takes a call: a fast path makes one.
 */
struct thread_cache;

struct client_thread {
    struct thread_cache
        *caches; /* of this thread; the first one is the one used last (cache/thread_cache.h) */
    int error;   /* of the thread's last public call; 0: it did not fail (error.h) */
};

extern _Thread_local struct client_thread client_thread;

#endif
