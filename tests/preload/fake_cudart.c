/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/preload/fake_cudart.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#define POINTERS_MAX 1024u
#define TOO_LARGE    ((size_t)1 << 50)
#define DEVICES      2

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *pointers[POINTERS_MAX];
static struct fake_counts counts = {.runtime = FAKE_RUNTIME};
static pid_t initialised; /* the process that did; 0: none */
static struct {
    bool captures, is_invalid;
    pthread_t thread;
} streams[FAKE_STREAMS]; /* under the lock. Number 0 is the legacy stream, whose capture is fake_capture() */
static bool capturing;   /* any of them */
static int broken;

static _Thread_local int pending, device, mode; /* mode 0: global */

static int result(int error) {
    if (error != 0)
        pending = error;
    return error;
}

/* Begins every call. */
static int begin(void) {
    if (initialised == 0)
        initialised = getpid();
    return initialised != getpid() ? CUDA_INITIALIZATION_ERROR : broken;
}

static void note_unsafe(void) {
    if (capturing && mode != CUDA_CAPTURE_RELAXED)
        counts.unsafe++;
}

static int allocate(void **memory, size_t size_bytes) {
    int r = begin();

    if (r == 0 && memory == NULL)
        r = CUDA_INVALID_VALUE;
    if (r != 0)
        return result(r);
    note_unsafe();
    *memory = NULL;
    if (size_bytes == 0)
        return 0;
    if (size_bytes > TOO_LARGE)
        return result(CUDA_MEMORY_ALLOCATION);
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < POINTERS_MAX && *memory == NULL; i++)
        if (pointers[i] == NULL)
            *memory = pointers[i] = malloc(size_bytes);
    counts.allocations += *memory != NULL;
    pthread_mutex_unlock(&lock);
    return result(*memory != NULL ? 0 : CUDA_MEMORY_ALLOCATION);
}

static int release(void *memory) {
    int r = begin();

    if (r != 0)
        return result(r);
    note_unsafe();
    if (memory == NULL) {
        counts.initialisations++;
        return 0;
    }
    r = CUDA_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < POINTERS_MAX && r != 0; i++)
        if (pointers[i] == memory) {
            free(memory);
            pointers[i] = NULL;
            counts.frees++;
            r = 0;
        }
    pthread_mutex_unlock(&lock);
    return result(r);
}

int cudaMalloc(void **memory, size_t size_bytes) {
    return allocate(memory, size_bytes);
}

int cudaMallocPitch(void **memory, size_t *pitch, size_t width_bytes, size_t height) {
    *pitch = width_bytes;
    return allocate(memory, width_bytes * height);
}

int cudaMalloc3D(struct cuda_pitched *memory, struct cuda_extent extent) {
    *memory = (struct cuda_pitched){.pitch = extent.width, .width = extent.width, .height = extent.height};
    return allocate(&memory->memory, extent.width * extent.height * extent.depth);
}

int cudaFree(void *memory) {
    return release(memory);
}

int cudaMallocAsync(void **memory, size_t size_bytes, void *stream) {
    (void)stream;
    return allocate(memory, size_bytes);
}

/* Its calls of itself are its own, as the real one's: they are not the preload library's. */
int cudaMallocAsync_ptsz(void **memory, size_t size_bytes, void *stream) {
    (void)stream;
    return allocate(memory, size_bytes);
}

int cudaMallocFromPoolAsync(void **memory, size_t size_bytes, void *pool, void *stream) {
    (void)stream;
    return pool == NULL ? result(CUDA_INVALID_VALUE) : allocate(memory, size_bytes);
}

int cudaMallocFromPoolAsync_ptsz(void **memory, size_t size_bytes, void *pool, void *stream) {
    (void)stream;
    return pool == NULL ? result(CUDA_INVALID_VALUE) : allocate(memory, size_bytes);
}

static char default_pools[DEVICES]; /* their addresses */

int cudaDeviceGetDefaultMemPool(void **pool, int of) {
    *pool = &default_pools[of];
    return 0;
}

int cudaDeviceGetMemPool(void **pool, int of) {
    *pool = &default_pools[of];
    return 0;
}

int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *free_bytes = (size_t)3 << 30;
    *total_bytes = (size_t)4 << 30;
    return 0;
}

int cudaFreeAsync(void *memory, void *stream) {
    (void)stream;
    return release(memory);
}

int cudaFreeAsync_ptsz(void *memory, void *stream) {
    return cudaFreeAsync(memory, stream);
}

int cudaMallocHost(void **memory, size_t size_bytes) {
    return allocate(memory, size_bytes);
}

int cudaHostAlloc(void **memory, size_t size_bytes, unsigned flags) {
    return flags > 7 ? result(CUDA_INVALID_VALUE) : allocate(memory, size_bytes);
}

int cudaFreeHost(void *memory) {
    return release(memory);
}

int cudaHostGetFlags(unsigned *flags, void *memory) {
    (void)flags;
    (void)memory;
    return result(CUDA_INVALID_VALUE);
}

/* A handle holds the pointer, which is good in the same process. */
int cudaIpcGetMemHandle(struct cuda_ipc_handle *handle, void *memory) {
    for (unsigned i = 0; i < POINTERS_MAX; i++)
        if (pointers[i] == memory && memory != NULL) {
            *handle = (struct cuda_ipc_handle){0};
            *(void **)(void *)handle = memory;
            return 0;
        }
    return result(CUDA_INVALID_VALUE);
}

int cudaIpcOpenMemHandle(void **memory, struct cuda_ipc_handle handle, unsigned flags) {
    void *wanted = *(void **)(void *)&handle;

    (void)flags;
    for (unsigned i = 0; i < POINTERS_MAX; i++)
        if (pointers[i] == wanted && wanted != NULL) {
            *memory = wanted;
            return 0;
        }
    return result(CUDA_INVALID_VALUE);
}

int cudaIpcCloseMemHandle(void *memory) {
    for (unsigned i = 0; i < POINTERS_MAX; i++)
        if (pointers[i] == memory && memory != NULL)
            return 0;
    return result(CUDA_INVALID_VALUE);
}

int cudaDeviceReset(void) {
    counts.resets++;
    return 0;
}

int cudaGetDevice(int *ret_device) {
    int r = begin();
    if (r == 0 && ret_device == NULL)
        r = CUDA_INVALID_VALUE;
    if (r == 0)
        *ret_device = device;
    return result(r);
}

int cudaSetDevice(int wanted) {
    int r = begin();
    if (r == 0 && (wanted < 0 || wanted >= DEVICES))
        r = 101;
    if (r == 0)
        device = wanted;
    return result(r);
}

int cudaDeviceSynchronize(void) {
    int r = begin();
    counts.waits++;
    pthread_mutex_lock(&lock);
    for (unsigned i = 1; i < FAKE_STREAMS; i++)
        if (streams[i].captures && !streams[i].is_invalid) {
            streams[i].is_invalid = true;
            counts.invalidated++;
        }
    pthread_mutex_unlock(&lock);
    return result(r != 0 ? r : capturing ? CUDA_CAPTURE_UNSUPPORTED : 0);
}

int cudaDeviceGetAttribute(int *value, int attribute, int of) {
    (void)attribute;
    (void)of;
    *value = 1;
    return 0;
}

int cudaThreadExchangeStreamCaptureMode(int *other) {
    int before = mode;
    mode = *other;
    *other = before;
    return 0;
}

/* Under the lock. */
static void note_captures(void) {
    capturing = false;
    for (unsigned i = 0; i < FAKE_STREAMS; i++)
        capturing = capturing || streams[i].captures;
}

int cudaStreamBeginCapture(void *stream, int mode_) {
    size_t number = (size_t)stream;
    int r = begin();

    (void)mode_;
    if (r == 0 && (number == 0 || number >= FAKE_STREAMS || streams[number].captures))
        r = CUDA_INVALID_VALUE;
    if (r == 0) {
        pthread_mutex_lock(&lock);
        streams[number].captures = true;
        streams[number].is_invalid = false;
        streams[number].thread = pthread_self();
        note_captures();
        pthread_mutex_unlock(&lock);
    }
    return result(r);
}

int cudaStreamBeginCapture_ptsz(void *stream, int mode_) {
    return cudaStreamBeginCapture(stream == NULL ? CUDA_STREAM_PER_THREAD : stream, mode_);
}

int cudaStreamBeginCaptureToGraph(void *stream, void *graph, const void *nodes, const void *edges,
                                  size_t count, int mode_) {
    (void)graph;
    (void)nodes;
    (void)edges;
    (void)count;
    return cudaStreamBeginCapture(stream, mode_);
}

int cudaStreamEndCapture(void *stream, void **graph) {
    size_t number = (size_t)stream;
    int r = begin();

    *graph = NULL;
    if (r == 0 && (number == 0 || number >= FAKE_STREAMS || !streams[number].captures))
        r = CUDA_INVALID_VALUE;
    else if (r == 0 && !pthread_equal(streams[number].thread, pthread_self()))
        r = CUDA_CAPTURE_WRONG_THREAD;
    else if (r == 0) {
        pthread_mutex_lock(&lock);
        streams[number].captures = false;
        r = streams[number].is_invalid ? CUDA_CAPTURE_INVALIDATED : 0;
        note_captures();
        pthread_mutex_unlock(&lock);
    }
    return result(r);
}

int cudaStreamEndCapture_ptsz(void *stream, void **graph) {
    return cudaStreamEndCapture(stream == NULL ? CUDA_STREAM_PER_THREAD : stream, graph);
}

int cudaStreamIsCapturing(void *stream, int *status) {
    size_t number = (size_t)stream;
    *status = number >= FAKE_STREAMS || !streams[number].captures ? 0 : streams[number].is_invalid ? 2 : 1;
    return 0;
}

int cudaStreamDestroy(void *stream) {
    pthread_mutex_lock(&lock);
    streams[(size_t)stream % FAKE_STREAMS].captures = false;
    note_captures();
    pthread_mutex_unlock(&lock);
    return 0;
}

int cudaGetLastError(void) {
    int error = pending;
    pending = broken;
    return error;
}

int cudaPeekAtLastError(void) {
    return pending;
}

struct fake_counts fake_counts(void) {
    return counts;
}

void fake_capture(int on) {
    pthread_mutex_lock(&lock);
    streams[0].captures = on != 0;
    note_captures();
    pthread_mutex_unlock(&lock);
}

void fake_break(int error) {
    broken = error;
}
