/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/supply/supplier.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/units.h"
#include "daemon/core/core.h"
#include "daemon/core/pool.h"
#include "daemon/loop/log.h"
#include "daemon/loop/store.h"

/* An error that comes once is not one that stays. */
#define CHECK_ATTEMPTS 3u

struct supply_job {
    struct worker_job job;
    struct supplier *supplier;
    struct segment *segment; /* to retire */
    struct backing *backing; /* made, or to be freed by end() */
    struct backing *(*end)(struct backing *backing);
    uint64_t size_bytes;
    enum config_huge_pages huge_pages; /* when it was decided: a reload may change the supplier's */
    bool zeroes;                       /* likewise */
    int result;
    char error[BACKING_ERROR_SIZE];
    bool is_first, is_silent; /* a device pool's first check; NVML does not know the device */
    bool lost;                /* the device does not work any more; why: */
    char lost_error[BACKING_ERROR_SIZE];
};

static struct supply_job *supply_job_new(struct supplier *supplier, void (*run)(struct worker_job *),
                                         void (*done)(struct worker_job *)) {
    struct supply_job *job = calloc(1, sizeof *job);
    if (job != NULL) {
        job->job.run = run;
        job->job.done = done;
        job->supplier = supplier;
    }
    return job;
}

/* The calls of device_check() are named as one. */
static int device_ask(const struct gpu *gpu, unsigned device, struct worker *worker, const char **ret_call) {
    *ret_call = "a check";
    worker_enter_call(worker, *ret_call);
    int r = gpu->device_check(device);
    worker_leave_call(worker);
    return r == GPU_ERROR_MEMORY_ALLOCATION ? 0 : r;
}

/* Whether the device's driver makes and exports segments of the pool's kind. */
static void ask_for_granule(struct supply_job *start) {
    const struct supplier *supplier = start->supplier;
    const struct backing_kind *kind = backing_kind(supplier->segment_kind);
    const struct gpu *gpu = supplier->gpu;
    uint64_t granule_bytes = 0;
    char place[64] = "such memory";

    worker_enter_call(&start->supplier->worker, "cuMemGetAllocationGranularity");
    start->result = kind->granule(gpu, supplier->device, supplier->pool->numa_node, &granule_bytes);
    if (start->result == 0 && SEGMENT_GRANULE % granule_bytes != 0)
        start->result = GPU_ERROR_NOT_SUPPORTED;
    if (start->result == 0)
        return;
    if (kind->pool_kind == PROTO_POOL_HOST)
        snprintf(place, sizeof place, "host memory of NUMA node %d", supplier->pool->numa_node);
    snprintf(start->error, sizeof start->error,
             "export = %s, but device %u's driver cannot make or export %s (%s: %s); use export = %s, or "
             "another driver",
             kind->export_name, supplier->device, place, gpu->error_name(start->result),
             gpu->error_text(start->result), kind->export_else);
}

/* Whether the device works: its context is made with the first segment. */
static void ask_for_device(struct supply_job *start) {
    const struct supplier *supplier = start->supplier;
    const struct gpu *gpu = supplier->gpu;
    const char *call;

    start->result = device_ask(gpu, supplier->device, &start->supplier->worker, &call);
    if (start->result != 0)
        snprintf(start->error, sizeof start->error, "%s of device %u failed with %s (%s)", call,
                 supplier->device, gpu->error_name(start->result), gpu->error_text(start->result));
}

static void start_run(struct worker_job *job) {
    struct supply_job *start = container_of(job, struct supply_job, job);
    struct supplier *supplier = start->supplier;
    const struct backing_kind *kind = backing_kind(supplier->segment_kind);

    if (supplier->is_gone) {
        start->result = GPU_ERROR_NOT_SUPPORTED;
        snprintf(start->error, sizeof start->error, "it is not configured any more, and lends nothing");
        return;
    }
    if (!kind->needs_driver)
        return;
    if (supplier->gpu == NULL) {
        start->result = GPU_ERROR_NO_DEVICE;
        snprintf(
            start->error, sizeof start->error,
            "export = %s, but the daemon has no GPU, whose driver makes such memory; use export = %s for "
            "host pools, or see why there is no GPU (gpupoold --gpu cuda)",
            kind->export_name, kind->export_else);
        return;
    }
    if (kind->granule != NULL)
        ask_for_granule(start);
    else
        ask_for_device(start);
    worker_leave_call(&supplier->worker);
}

/* --- pages that were inherited --- */

static void lock_run(struct worker_job *job) {
    const struct supply_job *lock = container_of(job, struct supply_job, job);
    backing_lock(lock->backing, &lock->supplier->worker);
}

static void lock_next(struct supplier *supplier);

static void lock_done(struct worker_job *job) {
    struct supply_job *lock = container_of(job, struct supply_job, job);
    struct supplier *supplier = lock->supplier;

    free(lock);
    supplier->is_locking = false;
    lock_next(supplier);
}

/* Locks the pages of the next segment that a daemon before has made: one at a time, so that growth comes between.
 * The segment stays until then: its end is a job of the same worker. */
static void lock_next(struct supplier *supplier) {
    struct supply_job *lock;

    if (supplier->is_locking || backing_kind(supplier->segment_kind)->inherit == NULL)
        return;
    list_for_each_entry(const struct segment, segment, &supplier->pool->segments, link) {
        struct backing *backing = segment->backing;
        if (backing == NULL || !backing->is_inherited)
            continue;
        backing->is_inherited = false;
        lock = supply_job_new(supplier, lock_run, lock_done);
        if (lock == NULL)
            return;
        lock->backing = backing;
        supplier->is_locking = true;
        worker_submit(&supplier->worker, &lock->job);
        return;
    }
}

int supplier_inherit(struct supplier *supplier, struct segment *segment) {
    const struct backing_order order = {.kind = supplier->segment_kind,
                                        .size_bytes = segment->size_bytes,
                                        .gpu = supplier->gpu,
                                        .device = supplier->device};
    struct backing *backing;

    int fd = supplier->store != NULL && segment->label.stored[0] != '\0'
                 ? store_take(supplier->store, segment->label.stored)
                 : -1;
    if (fd < 0)
        return -ENOENT;
    int r = backing_inherit(&order, fd, (enum backing_pages)segment->label.pages, &backing);
    if (r < 0)
        return r;
    backing->is_inherited = true;
    supplier->pages = backing->pages;
    segment->backing = backing;
    return 0;
}

static void start_done(struct worker_job *job) {
    struct supply_job *start = container_of(job, struct supply_job, job);
    struct supplier *supplier = start->supplier;

    if (start->result == 0) {
        core_pool_ready(supplier->pool, clock_now_ns());
        lock_next(supplier);
    } else if (supplier->is_gone || supplier->pool->n_segments > 0) { /* of a daemon before: leases stay */
        log_error("%s: %s; the pool stays closed until the daemon restarts", supplier->pool->name,
                  start->error);
        core_pool_lost(supplier->pool, start->error, clock_now_ns());
    } else {
        log_error("%s: %s; the pool stays closed until the daemon restarts", supplier->pool->name,
                  start->error);
        core_pool_failed(supplier->pool, start->error, clock_now_ns());
    }
    free(start);
}

/* Asks the device whether it still works. CUDA has errors that stay: after an illegal address or an
 * uncorrectable memory error in a context of the daemon's, and after the loss of the GPU, every further call
 * on the device fails in this process, whatever it is, until the process ends. Which errors are of that kind
 * depends on the driver; that they come again shows it. So a failing call is followed by others that ask for
 * nothing, and only when they fail too is the device lost. On the device's worker: false when it is lost,
 * with a text for people in error. A device that has no memory left answers. */
static bool device_answers(const struct gpu *gpu, unsigned device, struct worker *worker,
                           char error[BACKING_ERROR_SIZE]) {
    const char *call = NULL;
    int r = 0;

    for (unsigned i = 0; i < CHECK_ATTEMPTS; i++) {
        r = device_ask(gpu, device, worker, &call);
        if (r == 0)
            return true;
    }
    snprintf(error, BACKING_ERROR_SIZE, "the device is lost: %s of device %u fails with %s (%s)", call,
             device, gpu->error_name(r), gpu->error_text(r));
    return false;
}

/* On the worker's thread, after a call has failed. */
static void look_for_loss(struct supply_job *job) {
    struct supplier *supplier = job->supplier;
    job->lost = supplier->gpu != NULL &&
                !device_answers(supplier->gpu, supplier->device, &supplier->worker, job->lost_error);
}

/* On the loop, when a job is done. */
static void report_loss(const struct supply_job *job) {
    struct pool *pool = job->supplier->pool;
    if (!job->lost || pool_is_closed(pool))
        return;
    log_error("%s: %s; the pool stays closed until the daemon restarts", pool->name, job->lost_error);
    core_pool_lost(pool, job->lost_error, clock_now_ns());
}

static void grow_run(struct worker_job *job) {
    struct supply_job *grow = container_of(job, struct supply_job, job);
    struct supplier *supplier = grow->supplier;

    const struct backing_order order = {.kind = supplier->segment_kind,
                                        .size_bytes = grow->size_bytes,
                                        .gpu = supplier->gpu,
                                        .device = supplier->device,
                                        .zeroes = grow->zeroes,
                                        .node = supplier->pool->numa_node,
                                        .huge_pages = grow->huge_pages,
                                        .is_simulated = supplier->gpu != NULL && supplier->is_simulated};

    grow->result = backing_new(&order, &supplier->worker, &grow->backing, grow->error);
    if (grow->result < 0)
        look_for_loss(grow);
}

static void end_run(struct worker_job *job) {
    struct supply_job *supply = container_of(job, struct supply_job, job);
    struct worker *worker = &supply->supplier->worker;
    worker_enter_call(worker, backing_kind(supply->supplier->segment_kind)->end_call);
    supply->backing = supply->end(supply->backing);
    worker_leave_call(worker);
}

/* Whether NVML tells nothing of the device, because it is missing or does not know it. */
static bool nvml_is_silent(struct supplier *supplier) {
    uint64_t free_bytes, total_bytes;

    worker_enter_call(&supplier->worker, "NVML");
    int r = supplier->gpu->device_memory(supplier->device, &free_bytes, &total_bytes);
    worker_leave_call(&supplier->worker);
    return r == GPU_ERROR_NOT_SUPPORTED;
}

static void check_run(struct worker_job *job) {
    struct supply_job *check = container_of(job, struct supply_job, job);

    look_for_loss(check);
    check->is_silent = check->is_first && nvml_is_silent(check->supplier);
}

static void check_done(struct worker_job *job) {
    struct supply_job *check = container_of(job, struct supply_job, job);
    struct supplier *supplier = check->supplier;

    supplier->checking = false;
    report_loss(check);
    if (check->is_silent)
        log_warning("%s: NVML (libnvidia-ml.so.1) is missing or does not know device %u: the daemon does not "
                    "learn from "
                    "it that the GPU is lost, how much of its memory is free, and which processes use it; "
                    "install it, or "
                    "mount it into the container",
                    supplier->pool->name, supplier->device);
    free(check);
}

static void discard_done(struct worker_job *job) {
    free(container_of(job, struct supply_job, job));
}

/* Says once that the daemon has a context on the pool's device. The simulation's takes no memory of a GPU. */
static void tell_context(struct supplier *supplier) {
    if (supplier->context_told || !supplier_has_context(supplier) || supplier->is_simulated)
        return;
    supplier->context_told = true;
    log_info("%s: the daemon has a CUDA context on device %u now, which takes memory of the GPU",
             supplier->pool->name, supplier->device);
}

static void grow_done(struct worker_job *job) {
    struct supply_job *grow = container_of(job, struct supply_job, job);
    struct supplier *supplier = grow->supplier;
    struct pool *pool = supplier->pool;

    report_loss(grow);
    if (grow->result < 0) {
        if (pool->last_error[0] == '\0') /* once for a series of failures */
            log_warning("%s: growth by %s failed: %s; lower the pool's limit, or free memory of the %s",
                        pool->name, BYTES_TEXT(grow->size_bytes), grow->error,
                        pool->kind == PROTO_POOL_DEVICE ? "device" : "machine");
        core_growth_failed(pool, grow->error, clock_now_ns());
    } else {
        supplier->pages = grow->backing->pages;
        tell_context(supplier);
        log_debug("%s: grew by %s", pool->name, BYTES_TEXT(grow->size_bytes));
        struct segment_label label = {.pages = grow->backing->pages};
        if (grow->backing->fd >= 0)
            store_put(supplier->store, STORE_SEGMENT, grow->backing->fd, label.stored);
        if (core_segment_made(pool, grow->size_bytes, grow->backing, clock_now_ns()) < 0) {
            store_remove(supplier->store, label.stored);
            grow->job.run = end_run;
            grow->end = backing_free;
            grow->job.done = discard_done;
            worker_submit(&supplier->worker, &grow->job);
            return;
        }
        core_label_segment(pool, grow->backing, &label);
    }
    free(grow);
}

static void retire_done(struct worker_job *job) {
    struct supply_job *retire = container_of(job, struct supply_job, job);
    store_leave(retire->supplier->store, retire->segment->label.stored);
    core_segment_retired(retire->segment, clock_now_ns());
    free(retire);
}

int supplier_start(struct supplier *supplier, uv_loop_t *loop) {
    bool is_host = supplier->pool->kind == PROTO_POOL_HOST;
    char name[16];

    snprintf(name, sizeof name, "%s %d", is_host ? "host" : "device",
             is_host ? supplier->pool->numa_node : supplier->pool->device);
    struct supply_job *start = supply_job_new(supplier, start_run, start_done);
    if (start == NULL)
        return -ENOMEM;
    int r = worker_start(&supplier->worker, loop, name);
    if (r < 0) {
        free(start);
        return r;
    }
    worker_submit(&supplier->worker, &start->job);
    return 0;
}

/* Whether new memory of a driver that clears it is set to zero once more, or for the first time. */
static bool daemon_zeroes(const struct supplier *supplier) {
    return supplier->zero == CONFIG_ZERO_DAEMON || supplier->unclean != NULL;
}

bool supplier_has_context(const struct supplier *supplier) {
    return supplier->gpu != NULL && supplier->gpu->has_context(supplier->device);
}

const char *supplier_zeroed_by(const struct supplier *supplier) {
    const struct backing_kind *kind = backing_kind(supplier->segment_kind);

    if (kind->zeroed_by != NULL)
        return kind->zeroed_by;
    return daemon_zeroes(supplier) ? "daemon" : "driver";
}

void supplier_grow(struct supplier *supplier, uint64_t size_bytes) {
    struct supply_job *grow = supply_job_new(supplier, grow_run, grow_done);
    if (grow == NULL) {
        core_growth_failed(supplier->pool, "the daemon has no memory for its bookkeeping", clock_now_ns());
        return;
    }
    grow->size_bytes = size_bytes;
    grow->huge_pages = supplier->huge_pages;
    grow->zeroes = daemon_zeroes(supplier);
    worker_submit(&supplier->worker, &grow->job);
}

/* Memory of a lost device cannot be freed any more: that is not logged again. */
static struct backing *mark_lost(const struct supplier *supplier, struct backing *backing) {
    if (backing != NULL)
        backing->lost = supplier->pool->state == POOL_LOST;
    return backing;
}

void supplier_check(struct supplier *supplier) {
    if (supplier->gpu == NULL || supplier->checking || !supplier->worker.started ||
        supplier->worker.pending > 0 || supplier->pool->state != POOL_READY)
        return;
    struct supply_job *check = supply_job_new(supplier, check_run, check_done);
    if (check == NULL)
        return; /* the next one */
    check->is_first = supplier->pool->kind == PROTO_POOL_DEVICE && !supplier->is_checked;
    supplier->checking = supplier->is_checked = true;
    worker_submit(&supplier->worker, &check->job);
}

bool supplier_is_alive(struct supplier *supplier) {
    const char *name = supplier->pool->name;
    bool alive = worker_is_alive(&supplier->worker);
    uint64_t since_ns = 0;
    const char *call = alive ? NULL : worker_call(&supplier->worker, &since_ns);

    if (!alive && call == NULL)
        call = "a job of the daemon's";
    uint64_t for_ns = since_ns > 0 ? clock_now_ns() - since_ns : 0;
    /* Also where one call after another takes long: the call that hangs in the end counts. */
    if (!alive && call != supplier->stalled_call)
        log_warning("%s: %s has not come back for %s: nothing can be allocated or freed there until it does; "
                    "systemd's watchdog is not answered",
                    name, call, NS_TEXT(for_ns));
    else if (alive && supplier->stalled_call != NULL)
        log_warning("%s: its worker gets on again", name);
    supplier->stalled_call = call;
    core_pool_stalled(supplier->pool, call, for_ns);
    return alive;
}

static void end_segment(struct supplier *supplier, struct segment *segment,
                        struct backing *(*end)(struct backing *backing)) {
    struct supply_job *retire = supply_job_new(supplier, end_run, retire_done);
    if (retire == NULL) {
        /* Waiting is the lesser evil: without it the memory could not be accounted for. */
        segment->backing = end(segment->backing);
        store_leave(supplier->store, segment->label.stored);
        core_segment_retired(segment, clock_now_ns());
        return;
    }
    segment->backing = mark_lost(supplier, segment->backing);
    retire->end = end;
    retire->segment = segment;
    retire->backing = segment->backing;
    segment->backing = NULL;
    worker_submit(&supplier->worker, &retire->job);
}

void supplier_retire(struct supplier *supplier, struct segment *segment) {
    end_segment(supplier, segment, backing_retire);
}

void supplier_leave(struct supplier *supplier, struct segment *segment) {
    end_segment(supplier, segment, backing_free);
}

void supplier_stop(struct supplier *supplier) {
    if (!supplier->worker.started)
        return;
    list_for_each_entry(struct segment, segment, &supplier->pool->segments, link) {
        struct supply_job *discard = supply_job_new(supplier, end_run, discard_done);
        if (discard == NULL) {
            segment->backing = backing_free(segment->backing);
            continue;
        }
        discard->end = backing_free;
        discard->backing = mark_lost(supplier, segment->backing);
        segment->backing = NULL;
        worker_submit(&supplier->worker, &discard->job);
    }
    worker_stop(&supplier->worker);
    /* A growth that was under way has come in as a last segment. */
    list_for_each_entry(struct segment, segment, &supplier->pool->segments, link) {
        segment->backing = backing_free(segment->backing);
    }
}
