/* SPDX-License-Identifier: Apache-2.0 */
#include "client/preload/serve.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "client/preload/capture.h"
#include "client/preload/driver.h"
#include "client/preload/reclaim.h"
#include "client/preload/report.h"

/* cudaMallocPitch() aligns rows to this on all devices so far. */
#define PITCH_BYTES ((size_t)512)
#define POOLS_MAX   64u /* of a machine: PROTO_POOLS_MAX */

static atomic_bool uses_order; /* memory was taken or freed in the order of a stream */

int serve_rows(const struct runtime *runtime, size_t width_bytes, size_t rows, size_t *ret_pitch,
               void **ret_memory) {
    size_t pitch, size_bytes;

    if (__builtin_add_overflow(width_bytes, PITCH_BYTES - 1, &pitch))
        return runtime_raise(runtime, CUDA_MEMORY_ALLOCATION);
    pitch &= ~(PITCH_BYTES - 1);
    if (__builtin_mul_overflow(pitch, rows, &size_bytes))
        return runtime_raise(runtime, CUDA_MEMORY_ALLOCATION);
    int r = lend(runtime, LEND_DEVICE, size_bytes, false, ret_memory);
    if (r == 0)
        *ret_pitch = pitch;
    return r;
}

int serve_free(const struct runtime *runtime, void *memory) {
    struct gpupool_buffer buffer;

    if (memory == NULL || lend_is_inside())
        return NOT_OURS;
    int r = lend_find(runtime, memory, &buffer);
    if (r == 0 && reclaim_collect(runtime, &buffer))
        return 0;
    if (r == 0)
        r = lend_wait(runtime, &buffer);
    return r == 0 ? lend_free(runtime, memory, GPUPOOL_NO_STREAM) : r;
}

int serve_free_behind(const struct runtime *runtime, void *memory, void *stream) {
    struct gpupool_buffer buffer;

    if (memory == NULL || lend_is_inside())
        return NOT_OURS;
    int r = lend_find(runtime, memory, &buffer);
    if (r != 0)
        return r;
    if (buffer.kind != GPUPOOL_POOL_DEVICE)
        return NOT_OURS;
    atomic_store_explicit(&uses_order, true, memory_order_relaxed);
    return lend_free(runtime, memory, stream);
}

/* Whether cudaMallocAsync() would take memory of the device's default pool. */
static bool is_default_pool(const struct runtime *runtime, void *pool) {
    void *by_default = NULL;
    int device;

    return runtime->cudaDeviceGetDefaultMemPool != NULL && runtime->cudaDeviceGetMemPool != NULL &&
           runtime->cudaGetDevice(&device) == 0 &&
           runtime->cudaDeviceGetDefaultMemPool(&by_default, device) == 0 &&
           (pool != NULL || runtime->cudaDeviceGetMemPool(&pool, device) == 0) && pool == by_default;
}

int serve_in_order(const struct runtime *runtime, size_t size_bytes, void *pool, void *stream,
                   void **ret_memory) {
    if (captures_any()) { /* a graph has memory of its own */
        report_add(REPORT_CAPTURE, size_bytes);
        return NOT_OURS;
    }
    if (!driver_is_current(stream)) { /* the memory would be the stream's device's */
        report_add(REPORT_CONTEXT, size_bytes);
        return NOT_OURS;
    }
    if (!is_default_pool(runtime, pool)) {
        report_add(REPORT_OWN_POOL, size_bytes);
        return NOT_OURS;
    }
    atomic_store_explicit(&uses_order, true, memory_order_relaxed);
    return lend_in_order(runtime, size_bytes, stream, ret_memory);
}

int serve_destroy(const struct runtime *runtime, void *stream) {
    struct gpupool_client *client = lend_client_if_open();
    int device;

    if (!atomic_load_explicit(&uses_order, memory_order_relaxed) || client == NULL || lend_is_inside() ||
        captures_any() || !serve_is_made(stream) ||
        (!driver_device_of(stream, &device) && runtime->cudaGetDevice(&device) != 0))
        return NOT_OURS;
    bool before = lend_enter();
    int r = gpupool_stream_destroy(client, device, stream);
    lend_leave(before);
    return r == 0 ? 0 : NOT_OURS; /* the real function says what is wrong with the stream */
}

static bool wants_pool(void) {
    const char *wanted = getenv("GPUPOOL_MEMORY_INFO");
    return wanted == NULL || strcmp(wanted, "gpu") != 0;
}

void serve_memory_info(const struct runtime *runtime, size_t *free_bytes, size_t *total_bytes) {
    struct gpupool_pool pools[POOLS_MAX];
    size_t count = 0;
    uint32_t id = 0;
    int device;

    if (free_bytes == NULL || total_bytes == NULL || lend_is_inside() || !wants_pool() ||
        runtime->cudaGetDevice(&device) != 0)
        return;
    bool before = lend_enter();
    struct gpupool_client *client = lend_client();
    if (client != NULL &&
        (gpupool_device_pool(client, device, &id) < 0 || gpupool_pools(client, pools, POOLS_MAX, &count) < 0))
        count = 0;
    lend_leave(before);
    for (size_t i = 0; i < count && i < POOLS_MAX; i++) {
        const struct gpupool_pool *pool = &pools[i];
        if (pool->id != id)
            continue;
        uint64_t growth_bytes =
            pool->limit_bytes > pool->reserved_bytes ? pool->limit_bytes - pool->reserved_bytes : 0;
        *free_bytes = pool->free_bytes + (growth_bytes < *free_bytes ? growth_bytes : *free_bytes);
        *total_bytes = pool->limit_bytes;
    }
}
