/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_OBJECTS_STAGING_COPY_WORKERS_H
#define CLIENT_OBJECTS_STAGING_COPY_WORKERS_H
/*
 * The copy workers of a client: threads that copy chunks of jobs. The first job that can be shared starts
 * them. They sleep while there is nothing to do, and end with the client. They make no call of the driver and
 * send no message: they touch memory, read files, and poll fences.
 *
 * A chunk can be worked on when a fence is ready, and no message says so. So while there are jobs, one idle
 * worker polls the fences at intervals, and wakes the next worker when it has found something.
 *
 * The workers serve the jobs of several callers in turn, chunk by chunk. Where no thread can be started, a
 * job's caller does all of it.
 *
 * One lock guards the workers and the shared part of their jobs. It is a leaf, and it is never held while a
 * chunk is copied.
 */
#include <pthread.h>
#include <stdbool.h>

#include "base/list.h"
#include "client/api/options.h"

#define COPY_WORKERS_MAX (COPY_THREADS_MAX - 1) /* beside the calling thread */

struct job;

struct copy_workers {
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct list jobs;
    bool stopping;
    bool watched;     /* one of the idle threads looks at the jobs' fences at intervals */
    unsigned idle;    /* threads that wait for work */
    unsigned started; /* threads */
    pthread_t threads[COPY_WORKERS_MAX];
};

void copy_workers_init(struct copy_workers *workers);
/* Ends the threads. There are no jobs, and will be none. */
void copy_workers_stop(struct copy_workers *workers);
void copy_workers_deinit(struct copy_workers *workers);

/* Gives a job to the copy workers, until it is taken back: starts threads, up to so many in all. Fewer
 * threads are no error. */
void copy_workers_give(struct copy_workers *workers, struct job *job, unsigned threads);
/* Takes a job back, and waits until no thread is at it. */
void copy_workers_take_back(struct copy_workers *workers, struct job *job);

/* Wakes a thread that sleeps, if there is one, for what a job has to be done, or to watch. That thread wakes
 * the next one in the same way. */
void copy_workers_wake_locked(struct copy_workers *workers, const struct job *job);

#endif
