/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's memory in the order of a stream: cuMemAllocAsync() and its like. Memory of a device's default
 * pool comes from gpupool. Memory of pools that the program made, and of one that it has made the device's
 * current pool, stays CUDA's, and so does all that is asked for during a capture: the graph owns it.
 */
#include "client/preload/ordered.h"

#include <stdatomic.h>

#include "client/preload/capture.h"
#include "client/preload/driver.h"
#include "client/preload/lending.h"
#include "client/preload/report.h"

static atomic_bool uses_order; /* memory was taken or freed in the order of a stream */

/* Whether cuMemAllocAsync() would take memory of the device's default pool. pool: NULL: its current one. */
static bool is_default_pool(int device, void *pool) {
    void *by_default = NULL;

    return driver_real.cuDeviceGetDefaultMemPool != NULL && driver_real.cuDeviceGetMemPool != NULL &&
           driver_real.cuDeviceGetDefaultMemPool(&by_default, device) == 0 &&
           (pool != NULL || driver_real.cuDeviceGetMemPool(&pool, device) == 0) && pool == by_default;
}

/* The row of the report for memory that stays CUDA's; REPORT_ROWS: it is lent. */
static enum report_row reason_against(int device, void *pool, void *stream) {
    return captures_any()                   ? REPORT_CAPTURE
           : !driver_is_current(stream)     ? REPORT_CONTEXT /* it would be the stream's device's */
           : !is_default_pool(device, pool) ? REPORT_OWN_POOL
                                            : REPORT_ROWS;
}

/* pool: NULL: the device's current one. */
static int take(uint64_t *memory, size_t size_bytes, void *pool, void *stream) {
    void *lent;
    int device;

    if (memory == NULL || size_bytes == 0 || !driver_may_lend(LEND_DEVICE, size_bytes, &device))
        return NOT_OURS;
    enum report_row reason = reason_against(device, pool, stream);
    if (reason != REPORT_ROWS) {
        report_add(reason, size_bytes);
        return NOT_OURS;
    }
    atomic_store_explicit(&uses_order, true, memory_order_relaxed);
    int r = lend_in_order(device, size_bytes, stream, &lent);
    if (r == 0)
        *memory = (uintptr_t)lent;
    return r;
}

int gpupool_driver_cuMemAllocAsync(uint64_t *memory, size_t size_bytes, void *stream) {
    DRIVER_OR_FAIL(cuMemAllocAsync);
    int r = take(memory, size_bytes, NULL, driver_stream(stream));
    return r == NOT_OURS ? driver_real.cuMemAllocAsync(memory, size_bytes, stream) : r;
}

int gpupool_driver_cuMemAllocAsync_ptsz(uint64_t *memory, size_t size_bytes, void *stream) {
    DRIVER_OR_FAIL(cuMemAllocAsync_ptsz);
    int r = take(memory, size_bytes, NULL, driver_stream_ptsz(stream));
    return r == NOT_OURS ? driver_real.cuMemAllocAsync_ptsz(memory, size_bytes, stream) : r;
}

int gpupool_driver_cuMemAllocFromPoolAsync(uint64_t *memory, size_t size_bytes, void *pool, void *stream) {
    DRIVER_OR_FAIL(cuMemAllocFromPoolAsync);
    int r = pool == NULL ? NOT_OURS : take(memory, size_bytes, pool, driver_stream(stream));
    return r == NOT_OURS ? driver_real.cuMemAllocFromPoolAsync(memory, size_bytes, pool, stream) : r;
}

int gpupool_driver_cuMemAllocFromPoolAsync_ptsz(uint64_t *memory, size_t size_bytes, void *pool,
                                                void *stream) {
    DRIVER_OR_FAIL(cuMemAllocFromPoolAsync_ptsz);
    int r = pool == NULL ? NOT_OURS : take(memory, size_bytes, pool, driver_stream_ptsz(stream));
    return r == NOT_OURS ? driver_real.cuMemAllocFromPoolAsync_ptsz(memory, size_bytes, pool, stream) : r;
}

/* In another context no stream can have used the memory: the wait for its own context is enough. */
static int release_behind(void *memory, void *stream) {
    struct gpupool_buffer buffer;
    int device;

    if (memory == NULL || lend_is_inside())
        return NOT_OURS;
    if (!driver_in_primary(&device))
        return lend_release(memory);
    int r = lend_find(memory, &buffer);
    if (r != 0)
        return r;
    if (buffer.kind != GPUPOOL_POOL_DEVICE)
        return NOT_OURS;
    atomic_store_explicit(&uses_order, true, memory_order_relaxed);
    return lend_free(memory, stream);
}

int gpupool_driver_cuMemFreeAsync(uint64_t memory, void *stream) {
    DRIVER_OR_FAIL(cuMemFreeAsync);
    int r = release_behind(driver_pointer(memory), driver_stream(stream));
    return r == NOT_OURS ? driver_real.cuMemFreeAsync(memory, stream) : r;
}

int gpupool_driver_cuMemFreeAsync_ptsz(uint64_t memory, void *stream) {
    DRIVER_OR_FAIL(cuMemFreeAsync_ptsz);
    int r = release_behind(driver_pointer(memory), driver_stream_ptsz(stream));
    return r == NOT_OURS ? driver_real.cuMemFreeAsync_ptsz(memory, stream) : r;
}

int ordered_destroy(void *stream) {
    struct gpupool_client *client = lend_client_if_open();
    int device;

    if (!atomic_load_explicit(&uses_order, memory_order_relaxed) || client == NULL || lend_is_inside() ||
        captures_any() || !driver_is_made(stream) || !driver_in_primary(&device))
        return NOT_OURS;
    (void)driver_device_of(stream, &device); /* else it is taken for the current one's */
    bool before = lend_enter();
    int r = gpupool_stream_destroy(client, device, stream);
    lend_leave(before);
    return r == 0 ? 0 : NOT_OURS; /* the real function says what is wrong with the stream */
}
