/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's memory in the order of a stream: cuMemAllocAsync() and its like. Memory of a device's default
 * pool comes from gpupool. Memory of pools that the program made, and of one that it has made the device's
 * current pool, stays CUDA's, and so does all that is asked for during a capture: the graph owns it.
 */
#include "client/preload/driver.h"
#include "client/preload/lending.h"
#include "client/preload/serve.h"

/* pool: NULL: the device's current one. */
static int take(uint64_t *memory, size_t size_bytes, void *pool, void *stream) {
    void *lent;

    if (memory == NULL || size_bytes == 0 || !driver_may_lend(LEND_DEVICE, size_bytes))
        return NOT_OURS;
    int r = serve_in_order(&driver_runtime, size_bytes, pool, stream, &lent);
    if (r == 0)
        *memory = (uintptr_t)lent;
    return r;
}

int gpupool_driver_cuMemAllocAsync(uint64_t *memory, size_t size_bytes, void *stream) {
    DRIVER_OR_FAIL(cuMemAllocAsync);
    int r = take(memory, size_bytes, NULL, serve_stream(stream));
    return r == NOT_OURS ? driver_real.cuMemAllocAsync(memory, size_bytes, stream) : r;
}

int gpupool_driver_cuMemAllocAsync_ptsz(uint64_t *memory, size_t size_bytes, void *stream) {
    DRIVER_OR_FAIL(cuMemAllocAsync_ptsz);
    int r = take(memory, size_bytes, NULL, serve_stream_ptsz(stream));
    return r == NOT_OURS ? driver_real.cuMemAllocAsync_ptsz(memory, size_bytes, stream) : r;
}

int gpupool_driver_cuMemAllocFromPoolAsync(uint64_t *memory, size_t size_bytes, void *pool, void *stream) {
    DRIVER_OR_FAIL(cuMemAllocFromPoolAsync);
    int r = pool == NULL ? NOT_OURS : take(memory, size_bytes, pool, serve_stream(stream));
    return r == NOT_OURS ? driver_real.cuMemAllocFromPoolAsync(memory, size_bytes, pool, stream) : r;
}

int gpupool_driver_cuMemAllocFromPoolAsync_ptsz(uint64_t *memory, size_t size_bytes, void *pool,
                                                void *stream) {
    DRIVER_OR_FAIL(cuMemAllocFromPoolAsync_ptsz);
    int r = pool == NULL ? NOT_OURS : take(memory, size_bytes, pool, serve_stream_ptsz(stream));
    return r == NOT_OURS ? driver_real.cuMemAllocFromPoolAsync_ptsz(memory, size_bytes, pool, stream) : r;
}

/* In another context no stream can have used the memory: the wait for its own context is enough. */
static int release_behind(void *memory, void *stream) {
    return lend_is_inside()      ? NOT_OURS
           : driver_in_primary() ? serve_free_behind(&driver_runtime, memory, stream)
                                 : driver_release(memory);
}

int gpupool_driver_cuMemFreeAsync(uint64_t memory, void *stream) {
    DRIVER_OR_FAIL(cuMemFreeAsync);
    int r = release_behind(driver_pointer(memory), serve_stream(stream));
    return r == NOT_OURS ? driver_real.cuMemFreeAsync(memory, stream) : r;
}

int gpupool_driver_cuMemFreeAsync_ptsz(uint64_t memory, void *stream) {
    DRIVER_OR_FAIL(cuMemFreeAsync_ptsz);
    int r = release_behind(driver_pointer(memory), serve_stream_ptsz(stream));
    return r == NOT_OURS ? driver_real.cuMemFreeAsync_ptsz(memory, stream) : r;
}
