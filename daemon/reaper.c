/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/reaper.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/daemon.h"
#include "daemon/log.h"
#include "daemon/pool/core.h"

#define REAPER_PERIOD_MS                                                                                     \
    20 /* a dead process is listed for some 50 ms; a question takes up to a few hundred µs */
#define REAPER_PIDS_MAX 4096 /* processes on one GPU; more are asked for with a larger array */

struct reaper_job {
    struct worker_job job;
    struct reaper *reaper;
    uint64_t number;
    int result;
    uint64_t lost; /* a bit for each device that does not work any more */
    pid_t *pids;
    size_t n_pids, capacity;
};

static void reaper_ask(struct reaper *reaper);

/* Collects the pids of all devices. A lost device that the driver cannot list has no work left that could
 * write anywhere; memory of the other pools must not wait for it. */
static void ask_run(struct worker_job *job) {
    struct reaper_job *ask = container_of(job, struct reaper_job, job);
    const struct gpu *gpu = ask->reaper->daemon->gpu;
    unsigned devices = 0;

    ask->n_pids = 0;
    ask->result = gpu->device_count(&devices);
    for (unsigned device = 0; ask->result == 0 && device < devices; device++) {
        size_t count = 0;
        bool lost = device < 64 && (ask->lost >> device & 1) != 0;
        ask->result = gpu->processes(device, ask->pids + ask->n_pids, ask->capacity - ask->n_pids, &count);
        while (ask->result == 0 && count > ask->capacity - ask->n_pids) {
            size_t capacity = ask->n_pids + 2 * count;
            pid_t *pids = realloc(ask->pids, capacity * sizeof *pids);
            if (pids == NULL) {
                ask->result = GPU_ERROR_UNKNOWN; /* asked again later */
                return;
            }
            ask->pids = pids;
            ask->capacity = capacity;
            ask->result =
                gpu->processes(device, ask->pids + ask->n_pids, ask->capacity - ask->n_pids, &count);
        }
        if (ask->result == 0)
            ask->n_pids += count;
        else if (lost)
            ask->result = 0;
    }
}

static bool is_listed(const struct reaper_job *ask, pid_t pid) {
    for (size_t i = 0; i < ask->n_pids; i++)
        if (ask->pids[i] == pid)
            return true;
    return false;
}

static void ask_done(struct worker_job *job) {
    struct reaper_job *ask = container_of(job, struct reaper_job, job);
    struct reaper *reaper = ask->reaper;

    reaper->job = NULL;
    if (ask->result != 0 && ask->result != GPU_ERROR_NOT_SUPPORTED && !reaper->complained) {
        log_warning(
            "asking the driver for its processes failed with %s: memory of processes that ended stays in "
            "quarantine until it answers",
            reaper->daemon->gpu->error_name(ask->result));
        reaper->complained = true;
    }
    list_for_each_safe(position, &reaper->waiting) {
        struct reaping *reaping = container_of(position, struct reaping, link);
        if (reaping->since >= ask->number)
            continue;
        if (ask->result == GPU_ERROR_NOT_SUPPORTED || (ask->result == 0 && !is_listed(ask, reaping->pid))) {
            list_remove(&reaping->link);
            reaping->on_gone(reaping);
        }
    }
    free(ask->pids);
    free(ask);
}

static uint64_t lost_devices(const struct core *core) {
    uint64_t lost = 0;
    for (unsigned i = 0; i < core->n_pools; i++)
        if (core->pools[i]->state == POOL_LOST && core->pools[i]->device < 64)
            lost |= UINT64_C(1) << core->pools[i]->device;
    return lost;
}

static void reaper_ask(struct reaper *reaper) {
    if (reaper->job != NULL)
        return;
    struct reaper_job *ask = calloc(1, sizeof *ask);
    pid_t *pids = calloc(REAPER_PIDS_MAX, sizeof *pids);
    if (ask == NULL || pids == NULL) { /* the timer tries again */
        free(ask);
        free(pids);
        return;
    }
    ask->job.run = ask_run;
    ask->job.done = ask_done;
    ask->reaper = reaper;
    ask->lost = lost_devices(reaper->daemon->core);
    ask->number = ++reaper->asked;
    ask->pids = pids;
    ask->capacity = REAPER_PIDS_MAX;
    reaper->job = ask;
    worker_submit(&reaper->worker, &ask->job);
}

static void reaper_on_timer(uv_timer_t *timer) {
    struct reaper *reaper = timer->data;
    if (list_is_empty(&reaper->waiting))
        uv_timer_stop(timer);
    else
        reaper_ask(reaper);
}

int reaper_start(struct reaper *reaper, struct daemon *daemon) {
    *reaper = (struct reaper){.daemon = daemon};
    list_init(&reaper->waiting);
    int r = worker_start(&reaper->worker, &daemon->loop, "reaper");
    if (r < 0)
        return r;
    uv_timer_init(&daemon->loop, &reaper->timer);
    reaper->timer.data = reaper;
    reaper->started = true;
    return 0;
}

void reaper_stop(struct reaper *reaper) {
    if (!reaper->started)
        return;
    reaper->started = false;
    uv_close((uv_handle_t *)&reaper->timer, NULL);
    worker_stop(&reaper->worker);
}

void reaper_wait(struct reaper *reaper, struct reaping *reaping) {
    reaping->since = reaper->asked;
    list_append(&reaper->waiting, &reaping->link);
    if (!uv_is_active((uv_handle_t *)&reaper->timer))
        uv_timer_start(&reaper->timer, reaper_on_timer, REAPER_PERIOD_MS, REAPER_PERIOD_MS);
    reaper_ask(reaper);
}

void reaper_forget(struct reaping *reaping) {
    list_remove(&reaping->link);
}
