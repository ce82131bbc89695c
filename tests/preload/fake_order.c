/* SPDX-License-Identifier: Apache-2.0 */
/* The fake driver's streams: memory in their order, captures, and its answers about memory. */
#include <pthread.h>
#include <stdbool.h>

#include "tests/preload/fake_libcuda.h"
#include "tests/preload/fake_order.h"

#define STREAMS 16u

static char by_default, own; /* their addresses are pools */
static void *current_pool = &by_default;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    bool captures, is_invalid;
    pthread_t thread;
} streams[STREAMS]; /* under the lock */
static struct order_counts counts;

int cuDeviceGetDefaultMemPool(void **pool, int device) {
    *pool = &by_default;
    return device < FAKE_DEVICES ? 0 : CUDA_INVALID_VALUE;
}

int cuDeviceGetMemPool(void **pool, int device) {
    *pool = current_pool;
    return device < FAKE_DEVICES ? 0 : CUDA_INVALID_VALUE;
}

int cuDeviceSetMemPool(int device, void *pool) {
    current_pool = pool;
    return device == 0 ? 0 : CUDA_INVALID_VALUE;
}

int cuMemPoolCreate(void **pool, const void *properties) {
    (void)properties;
    *pool = &own;
    return 0;
}

int cuMemAllocAsync(uint64_t *memory, size_t size_bytes, void *stream) {
    (void)stream;
    return cuMemAlloc_v2(memory, size_bytes);
}

int cuMemAllocAsync_ptsz(uint64_t *memory, size_t size_bytes, void *stream) {
    return cuMemAllocAsync(memory, size_bytes, stream);
}

int cuMemAllocFromPoolAsync(uint64_t *memory, size_t size_bytes, void *pool, void *stream) {
    return pool == NULL ? CUDA_INVALID_VALUE : cuMemAllocAsync(memory, size_bytes, stream);
}

int cuMemAllocFromPoolAsync_ptsz(uint64_t *memory, size_t size_bytes, void *pool, void *stream) {
    return cuMemAllocFromPoolAsync(memory, size_bytes, pool, stream);
}

/* --- captures: a stream is a number --- */

static unsigned number_of(const void *stream) {
    return (unsigned)((uintptr_t)stream % STREAMS);
}

bool fake_captures_any(void) {
    bool any = false;

    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < STREAMS; i++)
        any = any || streams[i].captures;
    pthread_mutex_unlock(&lock);
    return any;
}

unsigned fake_captures_invalidate(void) {
    unsigned count = 0;

    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < STREAMS; i++)
        if (streams[i].captures && !streams[i].is_invalid) {
            streams[i].is_invalid = true;
            count++;
        }
    pthread_mutex_unlock(&lock);
    return count;
}

static int begin_capture(unsigned number) {
    if (number == 0 || streams[number].captures)
        return CUDA_INVALID_VALUE;
    streams[number].captures = true;
    streams[number].is_invalid = false;
    streams[number].thread = pthread_self();
    return 0;
}

int cuStreamBeginCapture_v2(void *stream, int mode) {
    (void)mode;
    pthread_mutex_lock(&lock);
    int r = begin_capture(number_of(stream));
    pthread_mutex_unlock(&lock);
    return r;
}

int cuStreamBeginCapture_v2_ptsz(void *stream, int mode) {
    return cuStreamBeginCapture_v2(stream == NULL ? CUDA_STREAM_PER_THREAD : stream, mode);
}

int cuStreamBeginCaptureToGraph(void *stream, void *graph, const void *nodes, const void *data, size_t count,
                                int mode) {
    (void)graph;
    (void)nodes;
    (void)data;
    (void)count;
    return cuStreamBeginCapture_v2(stream, mode);
}

int cuStreamBeginCaptureToGraph_ptsz(void *stream, void *graph, const void *nodes, const void *data,
                                     size_t count, int mode) {
    return cuStreamBeginCaptureToGraph(stream == NULL ? CUDA_STREAM_PER_THREAD : stream, graph, nodes, data,
                                       count, mode);
}

static int end_capture(unsigned number) {
    if (!streams[number].captures)
        return CUDA_INVALID_VALUE;
    if (!pthread_equal(streams[number].thread, pthread_self()))
        return FAKE_CAPTURE_WRONG_THREAD;
    streams[number].captures = false;
    return streams[number].is_invalid ? FAKE_CAPTURE_INVALIDATED : 0;
}

int cuStreamEndCapture(void *stream, void **graph) {
    *graph = NULL;
    pthread_mutex_lock(&lock);
    int r = end_capture(number_of(stream));
    pthread_mutex_unlock(&lock);
    return r;
}

int cuStreamEndCapture_ptsz(void *stream, void **graph) {
    return cuStreamEndCapture(stream == NULL ? CUDA_STREAM_PER_THREAD : stream, graph);
}

int cuStreamIsCapturing(void *stream, int *status) {
    unsigned number = number_of(stream);

    pthread_mutex_lock(&lock);
    *status = !streams[number].captures ? CUDA_CAPTURE_NONE : streams[number].is_invalid ? 2 : 1;
    pthread_mutex_unlock(&lock);
    return 0;
}

int cuStreamDestroy_v2(void *stream) {
    pthread_mutex_lock(&lock);
    streams[number_of(stream)].captures = false;
    counts.destroyed++;
    pthread_mutex_unlock(&lock);
    return 0;
}

/* --- answers: no memory has a range --- */

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    *free_bytes = FAKE_FREE_BYTES;
    *total_bytes = FAKE_TOTAL_BYTES;
    return 0;
}

int cuMemGetAddressRange_v2(uint64_t *base, size_t *size_bytes, uint64_t address) {
    (void)base;
    (void)size_bytes;
    (void)address;
    return FAKE_NOT_FOUND;
}

int cuPointerGetAttribute(void *value, int attribute, uint64_t address) {
    (void)value;
    (void)attribute;
    (void)address;
    return FAKE_NOT_FOUND;
}

int cuPointerGetAttributes(unsigned count, int *attributes, void **values, uint64_t address) {
    (void)address;
    for (unsigned i = 0; i < count; i++)
        if (attributes[i] == FAKE_ATTRIBUTE)
            *(int *)values[i] = FAKE_ATTRIBUTE;
    return 0;
}

struct order_counts fake_order_counts(void) {
    return counts;
}

void *fake_order_find(const char *name, int version, uint64_t flags) {
    static const struct fake_function all[] = {
        {"cuMemAllocAsync", 11020, 0, (void *)cuMemAllocAsync},
        {"cuMemAllocAsync", 11020, CUDA_PROC_PER_THREAD, (void *)cuMemAllocAsync_ptsz},
        {"cuMemAllocFromPoolAsync", 11020, 0, (void *)cuMemAllocFromPoolAsync},
        {"cuMemAllocFromPoolAsync", 11020, CUDA_PROC_PER_THREAD, (void *)cuMemAllocFromPoolAsync_ptsz},
        {"cuStreamBeginCapture", 10010, 0, (void *)cuStreamBeginCapture_v2},
        {"cuStreamBeginCapture", 10010, CUDA_PROC_PER_THREAD, (void *)cuStreamBeginCapture_v2_ptsz},
        {"cuStreamBeginCaptureToGraph", 12030, 0, (void *)cuStreamBeginCaptureToGraph},
        {"cuStreamBeginCaptureToGraph", 12030, CUDA_PROC_PER_THREAD,
         (void *)cuStreamBeginCaptureToGraph_ptsz},
        {"cuStreamIsCapturing", 10000, 0, (void *)cuStreamIsCapturing},
        {"cuDeviceGetDefaultMemPool", 11020, 0, (void *)cuDeviceGetDefaultMemPool},
        {"cuStreamEndCapture", 10000, 0, (void *)cuStreamEndCapture},
        {"cuStreamEndCapture", 10000, CUDA_PROC_PER_THREAD, (void *)cuStreamEndCapture_ptsz},
        {"cuStreamDestroy", 4000, 0, (void *)cuStreamDestroy_v2},
        {"cuMemGetInfo", 3020, 0, (void *)cuMemGetInfo_v2},
        {"cuMemGetAddressRange", 3020, 0, (void *)cuMemGetAddressRange_v2},
        {"cuPointerGetAttribute", 4000, 0, (void *)cuPointerGetAttribute},
    };

    return fake_find(all, sizeof all / sizeof *all, name, version, flags);
}
