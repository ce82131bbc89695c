/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_CALL_TIME_H
#define CLIENT_SESSION_CALL_TIME_H
/*
 * The time of a public call that has a timeout. A call may have several exchanges with the daemon, which have
 * no timeouts of their own: pools are listed, idle memory is released, segments are closed. While the calling
 * thread is in such a call, connection_deadline_ns() names no time after the call's end.
 *
 *     _cleanup_(call_time_end) struct call_time time = call_time_begin(timeout_ns);
 *
 * A call within a call ends no later than the outer one.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "client/session/thread.h"
#include "client/session/wait.h"

/* The daemon answers a request that waited at the request's own deadline, with a text that says what is
 * missing. So much longer is its answer waited for. A daemon that works answers in some 0.1 ms; beside heavy
 * load, with twenty threads for each processor, in some 100 ms. */
#define CALL_GRACE_NS NS_PER_S

struct call_time {
    uint64_t before_ns; /* the end of the call around this one; 0: none */
};

/* Begins a call that is to end at a time: the deadline of its last exchange. */
static inline struct call_time call_time_begin_until(uint64_t end_ns) {
    struct client_thread *thread = client_thread();
    struct call_time time = {thread->call_end_ns};

    if (thread->call_end_ns == 0 || end_ns < thread->call_end_ns)
        thread->call_end_ns = end_ns;
    return time;
}

/* When a call ends that begins now and whose caller waits for timeout_ns. */
static inline uint64_t call_time_end_ns(uint64_t timeout_ns) {
    return clock_deadline_ns(clock_deadline_ns(clock_now_ns(), timeout_ns), CALL_GRACE_NS);
}

static inline struct call_time call_time_begin(uint64_t timeout_ns) {
    return call_time_begin_until(call_time_end_ns(timeout_ns));
}

static inline void call_time_end(const struct call_time *time) {
    client_thread()->call_end_ns = time->before_ns;
}

/* Takes a lock that another thread may hold while it waits for the daemon. False: the call's time is over. */
static inline bool call_time_lock(pthread_mutex_t *lock) {
    uint64_t end_ns = client_thread()->call_end_ns, begin_ns = clock_now_ns(), now_ns = begin_ns;

    if (end_ns == 0 || end_ns == NS_FOREVER) {
        pthread_mutex_lock(lock);
        return true;
    }
    while (pthread_mutex_trylock(lock) != 0) {
        now_ns = clock_now_ns();
        if (now_ns >= end_ns)
            return false;
        wait_pause(now_ns - begin_ns, end_ns - now_ns);
    }
    return true;
}

#endif
