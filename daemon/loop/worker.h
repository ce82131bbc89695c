/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_LOOP_WORKER_H
#define DAEMON_LOOP_WORKER_H
/*
 * A worker: one thread that does, in order, what may take long: driver calls of one device, page touching of
 * one node, questions to NVML. The loop gives it jobs and gets them back finished; the loop itself never
 * waits for it.
 *
 * A job belongs to the worker from worker_submit() until its done() runs on the loop's thread, which then
 * owns it.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/clock.h"
#include "base/list.h"

/* How long a worker that is to end may be inside one job before the process ends without it. Freeing the
 * largest segment takes less. */
#define WORKER_STOP_NS (10 * NS_PER_S)

struct worker_job {
    void (*run)(struct worker_job *job);  /* on the worker's thread */
    void (*done)(struct worker_job *job); /* on the loop's thread; may free the job */
    struct list link;
};

struct worker {
    bool started;  /* by worker_start(), and not stopped; the loop's */
    char name[16]; /* the thread's, as ps shows it */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct list queued, finished; /* under lock */
    bool stopping, ended;         /* under lock */
    pthread_cond_t end;           /* ended is set; on CLOCK_MONOTONIC */
    const char *call;             /* under lock: the call that it is in, a constant string; NULL: none */
    uint64_t call_ns;             /* under lock: since when */
    uv_async_t async;
    unsigned pending; /* submitted and not done; the loop's */
    _Atomic uint64_t heartbeat; /* of jobs, and of long jobs' parts: a busy worker that stands still hangs */
    uint64_t watched_heartbeat; /* the watchdog's note; the loop's */
};

/* Starts the thread; all signals are blocked in it. Returns 0 or a negative errno: then nothing of it is on
 * the loop. */
int worker_start(struct worker *worker, uv_loop_t *loop, const char *name);

/* Accepts a zeroed worker that was not started. Lets the jobs at hand finish, ends the thread, and runs what
 * was done. The async handle is closing afterwards: the loop has to run once more before the worker's memory
 * goes. A thread that is inside a call which does not come back cannot be ended, nor can anything go that it
 * may use: after WORKER_STOP_NS without progress this says so and ends the process with EXIT_FAILURE. */
void worker_stop(struct worker *worker);

void worker_submit(struct worker *worker, struct worker_job *job);

/* For long jobs, from the worker's thread: progress was made. */
static inline void worker_beat(struct worker *worker) {
    atomic_fetch_add_explicit(&worker->heartbeat, 1, memory_order_relaxed);
}

/* For jobs, from the worker's thread, around each call that may hang: name is what people know it by, a
 * constant string. worker may be NULL. */
void worker_enter_call(struct worker *worker, const char *name);
void worker_leave_call(struct worker *worker);

/* The call that the worker is in, and since when; NULL: none. From any thread. */
const char *worker_call(struct worker *worker, uint64_t *ret_since_ns);

/* Whether the worker is idle, or was at the last call, or has moved since. For the watchdog. */
bool worker_is_alive(struct worker *worker);

#endif
