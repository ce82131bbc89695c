/* SPDX-License-Identifier: Apache-2.0 */
#include "client/objects/staging/crew.h"

#include <signal.h>
#include <sys/prctl.h>

#include "base/clock.h"
#include "base/thread.h"
#include "client/objects/staging/job.h"

/* How long the thread that watches looks away, ever longer: a chunk takes 40 us (2 MiB at 55 GB/s). */
#define WATCH_NS_MIN (20 * NS_PER_US)
#define WATCH_NS_MAX NS_PER_MS

/* How late the kernel may wake a thread of the crew; 50 us otherwise. */
#define TIMER_SLACK_NS NS_PER_US

void crew_init(struct crew *crew) {
    pthread_mutex_init(&crew->lock, NULL);
    thread_condition_init(&crew->work);
    list_init(&crew->jobs);
}

void crew_stop(struct crew *crew) {
    pthread_mutex_lock(&crew->lock);
    crew->stopping = true;
    pthread_cond_broadcast(&crew->work);
    pthread_mutex_unlock(&crew->lock);
    for (unsigned i = 0; i < crew->started; i++)
        pthread_join(crew->threads[i], NULL);
    crew->started = 0;
}

void crew_deinit(struct crew *crew) {
    pthread_cond_destroy(&crew->work);
    pthread_mutex_destroy(&crew->lock);
}

/* Something to do, of the job whose turn it is. */
static struct slot *take_locked(struct crew *crew, struct job **ret_job) {
    list_for_each(position, &crew->jobs) {
        struct job *job = container_of(position, struct job, link);
        struct slot *slot = job_take_locked(job);
        if (slot == NULL)
            continue;
        list_remove(&job->link);
        list_append(&crew->jobs, &job->link);
        crew_wake_locked(crew, job);
        *ret_job = job;
        return slot;
    }
    return NULL;
}

static void wait_locked(struct crew *crew, uint64_t *pause_ns) {
    crew->idle++;
    if (crew->watched || list_is_empty(&crew->jobs)) {
        pthread_cond_wait(&crew->work, &crew->lock);
    } else {
        uint64_t until_ns = clock_now_ns() + *pause_ns;
        struct timespec until = {(time_t)(until_ns / NS_PER_S), (long)(until_ns % NS_PER_S)};
        crew->watched = true;
        (void)pthread_cond_timedwait(&crew->work, &crew->lock, &until);
        crew->watched = false;
        *pause_ns = 2 * *pause_ns < WATCH_NS_MAX ? 2 * *pause_ns : WATCH_NS_MAX;
    }
    crew->idle--;
}

static void *crew_main(void *argument) {
    struct crew *crew = argument;
    uint64_t pause_ns = WATCH_NS_MIN;
    struct job *job = NULL;

    prctl(PR_SET_NAME, "gpupool-staging");
    prctl(PR_SET_TIMERSLACK, (unsigned long)TIMER_SLACK_NS);
    pthread_mutex_lock(&crew->lock);
    while (!crew->stopping) {
        struct slot *slot = take_locked(crew, &job);
        if (slot == NULL) {
            wait_locked(crew, &pause_ns);
            continue;
        }
        pause_ns = WATCH_NS_MIN;
        pthread_mutex_unlock(&crew->lock);
        job_do(job, slot);
        pthread_mutex_lock(&crew->lock);
        job_done_locked(job, slot);
    }
    pthread_mutex_unlock(&crew->lock);
    return NULL;
}

/* Signals are for the program's threads. But a thread of the crew touches the program's memory, and what that
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

static void start_locked(struct crew *crew, unsigned threads) {
    sigset_t before;

    if (crew->started >= threads)
        return;
    block_signals(&before);
    while (crew->started < threads && crew->started < CREW_THREADS_MAX &&
           pthread_create(&crew->threads[crew->started], NULL, crew_main, crew) == 0)
        crew->started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void crew_give(struct crew *crew, struct job *job, unsigned threads) {
    pthread_mutex_lock(&crew->lock);
    start_locked(crew, threads);
    list_append(&crew->jobs, &job->link);
    pthread_mutex_unlock(&crew->lock);
}

void crew_take_back(struct crew *crew, struct job *job) {
    pthread_mutex_lock(&crew->lock);
    list_remove(&job->link);
    job_rest_locked(job);
    pthread_mutex_unlock(&crew->lock);
}

void crew_wake_locked(struct crew *crew, const struct job *job) {
    if (crew->idle > 0 && (!crew->watched || job_has_work_locked(job)))
        pthread_cond_signal(&crew->work);
}
