/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CuPy's hooks. CFunctionAllocator passes its parameter, the size and the device. The parameter is the
 * stream, so there is nothing to look up, and a program can have one allocator for each of its streams.
 *
 * CuPy declares its malloc "except +": it turns a C++ exception into a Python one, and takes NULL for memory
 * at address 0. Its free is "noexcept".
 */
#include <gpupool/hooks.h>

#include "client/plugins/any_stream.h"
#include "client/plugins/throw.h"

static void *try_malloc(void *stream, size_t size_bytes, int device) {
    struct gpupool_client *client;
    uint32_t pool;

    if (gpupool_default(&client) < 0 || gpupool_device_pool(client, device, &pool) < 0)
        return NULL;
    return stream == GPUPOOL_NO_STREAM ? any_stream_alloc(pool, size_bytes)
                                       : gpupool_alloc(client, pool, size_bytes, stream);
}

void *gpupool_cupy_malloc(void *stream, size_t size_bytes, int device) {
    if (stream == GPUPOOL_PER_THREAD) {
        plugin_throw("gpupool: an allocator for CuPy cannot be for the per-thread default stream, which is "
                     "another one in the thread that frees: pass a created stream, or -1");
        return NULL;
    }
    void *memory = try_malloc(stream, size_bytes, device);
    if (memory == NULL) {
        const char *text = gpupool_error_text();
        plugin_throw(text[0] != '\0' ? text : "gpupool: no memory for bookkeeping");
    }
    return memory;
}

void gpupool_cupy_free(void *stream, void *memory, int device) {
    (void)device;
    if (stream == GPUPOOL_NO_STREAM)
        (void)any_stream_release(memory);
    else
        (void)gpupool_free(memory, stream);
}

void *gpupool_cupy_malloc_pinned(size_t size_bytes) {
    struct gpupool_client *client;
    uint32_t pool;

    if (gpupool_default(&client) < 0 || gpupool_host_pool(client, -1, &pool) < 0)
        return NULL;
    return gpupool_alloc(client, pool, size_bytes, GPUPOOL_NO_STREAM);
}

void gpupool_cupy_free_pinned(void *memory) {
    (void)gpupool_free(memory, GPUPOOL_NO_STREAM);
}
