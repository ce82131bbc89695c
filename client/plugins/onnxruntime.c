/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Not run with ONNX Runtime itself: written by the sources of its CUDA provider, and called as that calls it.
 *
 * ONNX Runtime's hooks for device memory. They are told of no stream and of no device.
 *
 * The device is the thread's current one. The CUDA provider sets it before it runs a session, and its plug-in
 * form around each call.
 *
 * The stream is one for each device, as the program says. At free, memory for any stream is found in the
 * table of any_stream.c; other memory goes back on the stream that it was allocated for (GPUPOOL_OWN_STREAM),
 * also when the program has named another one since.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include <gpupool/hooks.h>

#include "client/plugins/any_stream.h"

#define DEVICES_MAX 64u

/* The stream of a device. An entry is written once: its pool last, after its stream. Entries are found by
 * pool, because the pool of the current device is known, and its number is not. */
struct device_stream {
    _Atomic uint64_t pool; /* plus 1; 0: this entry and those behind it are free */
    _Atomic(void *) stream;
};

static struct device_stream device_streams[DEVICES_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for writing */

/* Returns the pool's entry, or the first free one, or NULL: all are taken. */
static struct device_stream *find_entry(uint32_t pool) {
    for (unsigned i = 0; i < DEVICES_MAX; i++) {
        uint64_t found = atomic_load_explicit(&device_streams[i].pool, memory_order_acquire);
        if (found == 0 || found == (uint64_t)pool + 1)
            return &device_streams[i];
    }
    return NULL;
}

static void *stream_of(uint32_t pool) {
    struct device_stream *entry = find_entry(pool);

    if (entry == NULL || atomic_load_explicit(&entry->pool, memory_order_acquire) != (uint64_t)pool + 1)
        return GPUPOOL_NO_STREAM;
    return atomic_load_explicit(&entry->stream, memory_order_acquire);
}

static int find_pool(int device, uint32_t *ret_pool) {
    struct gpupool_client *client;
    int r = gpupool_default(&client);
    return r < 0 ? r : gpupool_device_pool(client, device, ret_pool);
}

int gpupool_onnxruntime_use_stream(int device, void *stream) {
    uint32_t pool;

    if (stream == GPUPOOL_PER_THREAD || stream == GPUPOOL_OWN_STREAM)
        return GPUPOOL_E_INVALID;
    int r = find_pool(device, &pool);
    if (r < 0)
        return r;
    pthread_mutex_lock(&lock);
    struct device_stream *entry = find_entry(pool);
    if (entry != NULL) {
        atomic_store_explicit(&entry->stream, stream, memory_order_release);
        atomic_store_explicit(&entry->pool, (uint64_t)pool + 1, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return entry == NULL ? GPUPOOL_E_LIMIT : 0;
}

void *gpupool_onnxruntime_alloc(size_t size_bytes) {
    uint32_t pool;

    if (find_pool(-1, &pool) < 0)
        return NULL;
    void *stream = stream_of(pool);
    return stream == GPUPOOL_NO_STREAM ? any_stream_alloc(pool, size_bytes)
                                       : gpupool_alloc(NULL, pool, size_bytes, stream);
}

void gpupool_onnxruntime_free(void *memory) {
    if (memory != NULL && !any_stream_release(memory))
        (void)gpupool_free(memory, GPUPOOL_OWN_STREAM);
}

void gpupool_onnxruntime_empty_cache(void) {
    struct gpupool_client *client;

    if (gpupool_default(&client) == 0)
        (void)gpupool_trim(client, NULL);
}
