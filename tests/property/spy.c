/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/property/spy.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

/* cudaErrorUnknown: no caller expects it, none takes it for an answer. */
#define PLANNED_ERROR GPU_ERROR_UNKNOWN

static const struct gpu *driver_;
static struct gpu table;
static void (*delay_)(unsigned device, void *stream);

static _Thread_local struct {
    bool watching;
    enum spy_call call;
    unsigned nth; /* calls to go; 0: none fails any more */
    bool lasts;   /* and then all of that kind fail */
    struct spy_sight sight;
} watch;

/* Counts a call, and tells whether it is the one that fails. */
static bool fails(enum spy_call call) {
    if (!watch.watching)
        return false;
    watch.sight.calls++;
    if (watch.nth == 0 || (watch.call != SPY_ANY && watch.call != call) || --watch.nth > 0)
        return false;
    if (watch.lasts)
        watch.nth = 1;
    watch.sight.failed = true;
    return true;
}

/* --- streams that were destroyed --- */

#define DESTROYED_MAX 64u

static struct {
    pthread_mutex_t lock;
    const void *streams[DESTROYED_MAX]; /* NULL: no entry */
    unsigned next;
} destroyed = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void note_created(const void *stream) {
    pthread_mutex_lock(&destroyed.lock);
    for (unsigned i = 0; i < DESTROYED_MAX; i++)
        if (destroyed.streams[i] == stream)
            destroyed.streams[i] = NULL;
    pthread_mutex_unlock(&destroyed.lock);
}

static void note_destroyed(const void *stream) {
    pthread_mutex_lock(&destroyed.lock);
    destroyed.streams[destroyed.next++ % DESTROYED_MAX] = stream;
    pthread_mutex_unlock(&destroyed.lock);
}

/* CUDA's driver crashes on such a stream; the simulated GPU only refuses it. */
static void *living(void *stream) {
    pthread_mutex_lock(&destroyed.lock);
    for (unsigned i = 0; i < DESTROYED_MAX; i++)
        if (stream != NULL && destroyed.streams[i] == stream) {
            fprintf(stderr, "histories: a call names a stream that was destroyed\n");
            abort();
        }
    pthread_mutex_unlock(&destroyed.lock);
    return stream;
}

static int spy_stream_create(unsigned device, void **ret_stream) {
    int error = driver_->stream_create(device, ret_stream);
    if (error == 0)
        note_created(*ret_stream);
    return error;
}

static int spy_stream_destroy(unsigned device, void *stream) {
    note_destroyed(living(stream)); /* before the driver can give the handle to another one */
    return driver_->stream_destroy(device, stream);
}

static int spy_stream_query(unsigned device, void *stream) {
    return driver_->stream_query(device, living(stream));
}

/* --- the other calls --- */

static int spy_copy(unsigned device, void *to, const void *from, uint64_t size_bytes, void *stream) {
    if (fails(SPY_COPY))
        return PLANNED_ERROR;
    if (watch.watching) {
        watch.watching = false;
        delay_(device, stream);
        watch.watching = true;
    }
    int error = driver_->memory_copy(device, to, from, size_bytes, living(stream));
    if (watch.watching && error == 0) {
        watch.sight.copies++;
        watch.sight.copied_bytes += size_bytes;
    }
    return error;
}

static int spy_set(unsigned device, void *memory, uint8_t byte, uint64_t size_bytes, void *stream) {
    if (fails(SPY_SET))
        return PLANNED_ERROR;
    int error = driver_->memory_set(device, memory, byte, size_bytes, living(stream));
    if (watch.watching && error == 0) {
        watch.sight.sets++;
        watch.sight.set_bytes += size_bytes;
    }
    return error;
}

static int spy_write64(unsigned device, void *stream, uint64_t *word, uint64_t value) {
    return fails(SPY_WRITE64) ? PLANNED_ERROR : driver_->stream_write64(device, living(stream), word, value);
}

static int spy_wait64(unsigned device, void *stream, uint64_t *word, uint64_t value) {
    return fails(SPY_WAIT64) ? PLANNED_ERROR : driver_->stream_wait64(device, living(stream), word, value);
}

static int spy_stream_synchronize(unsigned device, void *stream) {
    return fails(SPY_STREAM_SYNCHRONIZE) ? PLANNED_ERROR
                                         : driver_->stream_synchronize(device, living(stream));
}

static int spy_device_synchronize(unsigned device) {
    return fails(SPY_DEVICE_SYNCHRONIZE) ? PLANNED_ERROR : driver_->device_synchronize(device);
}

static int spy_is_capturing(unsigned device, void *stream, bool *ret_capturing) {
    return fails(SPY_IS_CAPTURING) ? PLANNED_ERROR
                                   : driver_->stream_is_capturing(device, living(stream), ret_capturing);
}

static int spy_ipc_open(unsigned device, const struct gpu_ipc_handle *handle, void **ret_memory) {
    return fails(SPY_OPEN) ? PLANNED_ERROR : driver_->ipc_open(device, handle, ret_memory);
}

static int spy_vmm_import(unsigned device, int fd, uint64_t *ret_handle) {
    return fails(SPY_OPEN) ? PLANNED_ERROR : driver_->vmm_import(device, fd, ret_handle);
}

const struct gpu *spy_before(const struct gpu *driver, void (*delay)(unsigned device, void *stream)) {
    driver_ = driver;
    delay_ = delay;
    table = *driver;
    table.stream_create = spy_stream_create;
    table.stream_destroy = spy_stream_destroy;
    table.stream_query = spy_stream_query;
    table.memory_copy = spy_copy;
    table.memory_set = spy_set;
    table.stream_write64 = spy_write64;
    table.stream_wait64 = spy_wait64;
    table.stream_synchronize = spy_stream_synchronize;
    table.device_synchronize = spy_device_synchronize;
    table.stream_is_capturing = spy_is_capturing;
    table.ipc_open = spy_ipc_open;
    table.vmm_import = spy_vmm_import;
    return &table;
}

void spy_begin(enum spy_call call, unsigned nth, bool lasts) {
    watch.call = call;
    watch.nth = nth;
    watch.lasts = lasts;
    watch.sight = (struct spy_sight){0};
    watch.watching = true;
}

void spy_end(struct spy_sight *ret_sight) {
    watch.watching = false;
    *ret_sight = watch.sight;
}
