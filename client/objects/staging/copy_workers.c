/* SPDX-License-Identifier: Apache-2.0 */
#include "client/objects/staging/copy_workers.h"

#include <signal.h>
#include <sys/prctl.h>

#include "base/clock.h"
#include "base/thread.h"
#include "client/objects/staging/job.h"

/* How long the thread that watches looks away, ever longer: a chunk takes 40 us (2 MiB at 55 GB/s). */
#define WATCH_NS_MIN (20 * NS_PER_US)
#define WATCH_NS_MAX NS_PER_MS

/* How late the kernel may wake a copy worker; 50 us otherwise. */
#define TIMER_SLACK_NS NS_PER_US

void copy_workers_init(struct copy_workers *workers) {
    pthread_mutex_init(&workers->lock, NULL);
    thread_condition_init(&workers->work);
    list_init(&workers->jobs);
}

void copy_workers_stop(struct copy_workers *workers) {
    pthread_mutex_lock(&workers->lock);
    workers->stopping = true;
    pthread_cond_broadcast(&workers->work);
    pthread_mutex_unlock(&workers->lock);
    for (unsigned i = 0; i < workers->started; i++)
        pthread_join(workers->threads[i], NULL);
    workers->started = 0;
}

void copy_workers_deinit(struct copy_workers *workers) {
    pthread_cond_destroy(&workers->work);
    pthread_mutex_destroy(&workers->lock);
}

/* Something to do, of the job whose turn it is. */
static struct slot *take_locked(struct copy_workers *workers, struct job **ret_job) {
    list_for_each_entry(struct job, job, &workers->jobs, link) {
        struct slot *slot = job_take_locked(job);
        if (slot == NULL)
            continue;
        list_remove(&job->link);
        list_append(&workers->jobs, &job->link);
        copy_workers_wake_locked(workers, job);
        *ret_job = job;
        return slot;
    }
    return NULL;
}

static void wait_locked(struct copy_workers *workers, uint64_t *pause_ns) {
    workers->idle++;
    if (workers->watched || list_is_empty(&workers->jobs)) {
        pthread_cond_wait(&workers->work, &workers->lock);
    } else {
        workers->watched = true;
        (void)thread_condition_wait(&workers->work, &workers->lock, clock_now_ns() + *pause_ns);
        workers->watched = false;
        *pause_ns = 2 * *pause_ns < WATCH_NS_MAX ? 2 * *pause_ns : WATCH_NS_MAX;
    }
    workers->idle--;
}

static void *copy_workers_main(void *argument) {
    struct copy_workers *workers = argument;
    uint64_t pause_ns = WATCH_NS_MIN;
    struct job *job = NULL;

    prctl(PR_SET_NAME, "gpupool-staging");
    prctl(PR_SET_TIMERSLACK, (unsigned long)TIMER_SLACK_NS);
    pthread_mutex_lock(&workers->lock);
    while (!workers->stopping) {
        struct slot *slot = take_locked(workers, &job);
        if (slot == NULL) {
            wait_locked(workers, &pause_ns);
            continue;
        }
        pause_ns = WATCH_NS_MIN;
        pthread_mutex_unlock(&workers->lock);
        job_do(job, slot);
        pthread_mutex_lock(&workers->lock);
        job_done_locked(job, slot);
    }
    pthread_mutex_unlock(&workers->lock);
    return NULL;
}

/* Signals are for the program's threads. But a copy worker touches the program's memory, and what that
 * brings about is its own: the program's handler has it as if memcpy() had been called there (the kernel ends
 * a process whose fault finds the signal blocked). */
static void block_signals(sigset_t *ret_before) {
    static const int faults[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    sigset_t others;

    sigfillset(&others);
    for (unsigned i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&others, faults[i]);
    pthread_sigmask(SIG_SETMASK, &others, ret_before);
}

static void start_locked(struct copy_workers *workers, unsigned threads) {
    sigset_t before;

    if (workers->started >= threads)
        return;
    block_signals(&before);
    while (workers->started < threads && workers->started < COPY_WORKERS_MAX &&
           pthread_create(&workers->threads[workers->started], NULL, copy_workers_main, workers) == 0)
        workers->started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void copy_workers_give(struct copy_workers *workers, struct job *job, unsigned threads) {
    pthread_mutex_lock(&workers->lock);
    start_locked(workers, threads);
    list_append(&workers->jobs, &job->link);
    pthread_mutex_unlock(&workers->lock);
}

void copy_workers_take_back(struct copy_workers *workers, struct job *job) {
    pthread_mutex_lock(&workers->lock);
    list_remove(&job->link);
    job_rest_locked(job);
    pthread_mutex_unlock(&workers->lock);
}

void copy_workers_wake_locked(struct copy_workers *workers, const struct job *job) {
    if (workers->idle > 0 && (!workers->watched || job_has_work_locked(job)))
        pthread_cond_signal(&workers->work);
}
