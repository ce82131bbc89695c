/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_OBJECTS_STAGING_COPY_WORKERS_H
#define CLIENT_OBJECTS_STAGING_COPY_WORKERS_H
/*
 * The crew of a client: threads that copy chunks for whoever has a job for them. They are started by the
 * first job that wants them, sleep while there is nothing to be done, and end with the client. They make no
 * call of the driver and send no message: they touch memory, read files, and look at fences.
 *
 * A chunk can be done when a fence has arrived, of which nobody is told. So while there are jobs one of the
 * threads that have nothing to do looks again after a while, and wakes the next when it has found something.
 *
 * Jobs of several callers take turns, chunk by chunk. Where no thread can be started a job's caller does all
 * of it.
 *
 * One lock guards the crew and what its jobs share with it; it is a leaf, and never held while a chunk is
 * copied.
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

/* Lets the crew share in a job, until it is taken back: starts threads, up to so many in all. That there are
 * fewer is no error. */
void copy_workers_give(struct copy_workers *workers, struct job *job, unsigned threads);
/* Takes a job back, and waits until no thread is at it. */
void copy_workers_take_back(struct copy_workers *workers, struct job *job);

/* Wakes a thread that sleeps, if there is one, for what a job has to be done, or to watch. Who is woken does
 * the same. */
void copy_workers_wake_locked(struct copy_workers *workers, const struct job *job);

#endif
