/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/property/spy.h"

#include <stddef.h>

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

static int spy_copy(unsigned device, void *to, const void *from, uint64_t size_bytes, void *stream) {
    if (fails(SPY_COPY))
        return PLANNED_ERROR;
    if (watch.watching) {
        watch.watching = false;
        delay_(device, stream);
        watch.watching = true;
    }
    int error = driver_->memory_copy(device, to, from, size_bytes, stream);
    if (watch.watching && error == 0) {
        watch.sight.copies++;
        watch.sight.copied_bytes += size_bytes;
    }
    return error;
}

static int spy_set(unsigned device, void *memory, uint8_t byte, uint64_t size_bytes, void *stream) {
    if (fails(SPY_SET))
        return PLANNED_ERROR;
    int error = driver_->memory_set(device, memory, byte, size_bytes, stream);
    if (watch.watching && error == 0) {
        watch.sight.sets++;
        watch.sight.set_bytes += size_bytes;
    }
    return error;
}

static int spy_write64(unsigned device, void *stream, uint64_t *word, uint64_t value) {
    return fails(SPY_WRITE64) ? PLANNED_ERROR : driver_->stream_write64(device, stream, word, value);
}

static int spy_wait64(unsigned device, void *stream, uint64_t *word, uint64_t value) {
    return fails(SPY_WAIT64) ? PLANNED_ERROR : driver_->stream_wait64(device, stream, word, value);
}

static int spy_stream_synchronize(unsigned device, void *stream) {
    return fails(SPY_STREAM_SYNCHRONIZE) ? PLANNED_ERROR : driver_->stream_synchronize(device, stream);
}

static int spy_device_synchronize(unsigned device) {
    return fails(SPY_DEVICE_SYNCHRONIZE) ? PLANNED_ERROR : driver_->device_synchronize(device);
}

static int spy_is_capturing(unsigned device, void *stream, bool *ret_capturing) {
    return fails(SPY_IS_CAPTURING) ? PLANNED_ERROR
                                   : driver_->stream_is_capturing(device, stream, ret_capturing);
}

static int spy_ipc_open(unsigned device, const struct gpu_ipc_handle *handle, void **ret_memory) {
    return fails(SPY_IPC_OPEN) ? PLANNED_ERROR : driver_->ipc_open(device, handle, ret_memory);
}

const struct gpu *spy_before(const struct gpu *driver, void (*delay)(unsigned device, void *stream)) {
    driver_ = driver;
    delay_ = delay;
    table = *driver;
    table.memory_copy = spy_copy;
    table.memory_set = spy_set;
    table.stream_write64 = spy_write64;
    table.stream_wait64 = spy_wait64;
    table.stream_synchronize = spy_stream_synchronize;
    table.device_synchronize = spy_device_synchronize;
    table.stream_is_capturing = spy_is_capturing;
    table.ipc_open = spy_ipc_open;
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
