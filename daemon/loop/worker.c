/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/loop/worker.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/thread.h"
#include "base/units.h"
#include "daemon/loop/log.h"

static void *worker_main(void *argument) {
    struct worker *worker = argument;

    pthread_mutex_lock(&worker->lock);
    for (;;) {
        struct worker_job *job = list_first(&worker->queued, struct worker_job, link);
        if (job == NULL) {
            if (worker->stopping)
                break;
            pthread_cond_wait(&worker->wake, &worker->lock);
            continue;
        }
        list_remove(&job->link);
        pthread_mutex_unlock(&worker->lock);
        job->run(job);
        worker_beat(worker);
        pthread_mutex_lock(&worker->lock);
        list_append(&worker->finished, &job->link);
        uv_async_send(&worker->async);
    }
    worker->ended = true;
    pthread_cond_signal(&worker->end);
    pthread_mutex_unlock(&worker->lock);
    return NULL;
}

static void worker_finish(struct worker *worker) {
    for (;;) {
        pthread_mutex_lock(&worker->lock);
        struct worker_job *job = list_first(&worker->finished, struct worker_job, link);
        if (job != NULL)
            list_remove(&job->link);
        pthread_mutex_unlock(&worker->lock);
        if (job == NULL)
            return;
        worker->pending--;
        job->done(job);
    }
}

static void worker_on_async(uv_async_t *async) {
    worker_finish(async->data);
}

/* Ends the thread, once it has run what is queued. */
static void worker_end(struct worker *worker) {
    uint64_t heartbeat, since_ns;

    pthread_mutex_lock(&worker->lock);
    worker->stopping = true;
    pthread_cond_signal(&worker->wake);
    do {
        uint64_t end_ns = clock_now_ns() + WORKER_STOP_NS;
        struct timespec end = {.tv_sec = (time_t)(end_ns / NS_PER_S), .tv_nsec = (long)(end_ns % NS_PER_S)};
        int error = 0;

        heartbeat = atomic_load_explicit(&worker->heartbeat, memory_order_relaxed);
        while (!worker->ended && error == 0)
            error = pthread_cond_timedwait(&worker->end, &worker->lock, &end);
    } while (!worker->ended && heartbeat != atomic_load_explicit(&worker->heartbeat, memory_order_relaxed));
    bool ended = worker->ended;
    pthread_mutex_unlock(&worker->lock);
    if (ended) {
        pthread_join(worker->thread, NULL);
        return;
    }
    const char *call = worker_call(worker, &since_ns);
    log_error("%s: %s has not come back for %s: the daemon ends without it", worker->name,
              call != NULL ? call : "a job",
              NS_TEXT(call != NULL ? clock_now_ns() - since_ns : WORKER_STOP_NS));
    _exit(EXIT_FAILURE);
}

int worker_start(struct worker *worker, uv_loop_t *loop, const char *name) {
    snprintf(worker->name, sizeof worker->name, "%s", name);
    pthread_mutex_init(&worker->lock, NULL);
    pthread_cond_init(&worker->wake, NULL);
    thread_condition_init(&worker->end);
    list_init(&worker->queued);
    list_init(&worker->finished);
    worker->stopping = worker->ended = false;
    worker->call = NULL;
    worker->pending = 0;
    worker->heartbeat = 1;
    worker->watched_heartbeat = 0;
    /* The thread first: it can be taken back at once, while a handle stays on the loop until that turns, and
     * the caller of what has failed may free the worker. It does not touch the handle before there is a job.
     */
    int r = -thread_create(&worker->thread, NULL, worker_main, worker);
    if (r == 0) {
        r = uv_async_init(loop, &worker->async, worker_on_async);
        if (r < 0)
            worker_end(worker);
    }
    if (r < 0) {
        pthread_cond_destroy(&worker->end);
        pthread_cond_destroy(&worker->wake);
        pthread_mutex_destroy(&worker->lock);
        return r;
    }
    worker->async.data = worker;
    worker->started = true;
    pthread_setname_np(worker->thread, worker->name);
    return 0;
}

void worker_stop(struct worker *worker) {
    if (!worker->started)
        return;
    worker->started = false;
    worker_end(worker);
    worker_finish(worker);
    uv_close((uv_handle_t *)&worker->async, NULL);
    pthread_cond_destroy(&worker->end);
    pthread_cond_destroy(&worker->wake);
    pthread_mutex_destroy(&worker->lock);
}

void worker_submit(struct worker *worker, struct worker_job *job) {
    LOCKED(&worker->lock);
    worker->pending++;
    list_append(&worker->queued, &job->link);
    pthread_cond_signal(&worker->wake);
}

void worker_enter_call(struct worker *worker, const char *name) {
    if (worker == NULL)
        return;
    LOCKED(&worker->lock);
    worker->call = name;
    worker->call_ns = clock_now_ns();
}

void worker_leave_call(struct worker *worker) {
    if (worker == NULL)
        return;
    LOCKED(&worker->lock);
    worker->call = NULL;
}

const char *worker_call(struct worker *worker, uint64_t *ret_since_ns) {
    LOCKED(&worker->lock);
    if (worker->call != NULL)
        *ret_since_ns = worker->call_ns;
    return worker->call;
}

bool worker_is_alive(struct worker *worker) {
    uint64_t heartbeat = atomic_load_explicit(&worker->heartbeat, memory_order_relaxed);
    bool alive = worker->pending == 0 || heartbeat != worker->watched_heartbeat;
    /* A worker without a job has until the look after next: what it is given in between may just have begun
     * at the next. */
    worker->watched_heartbeat = worker->pending == 0 ? heartbeat - 1 : heartbeat;
    return alive;
}
