/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/preload/fake_cudart.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The driver's functions that the runtime calls. */
#define CALLS(X)                                                                                             \
    X(cuMemAlloc_v2)                                                                                         \
    X(cuMemAllocPitch_v2)                                                                                    \
    X(cuMemFree_v2)                                                                                          \
    X(cuMemAllocAsync)                                                                                       \
    X(cuMemAllocAsync_ptsz)                                                                                  \
    X(cuMemAllocFromPoolAsync)                                                                               \
    X(cuMemFreeAsync)                                                                                        \
    X(cuMemFreeAsync_ptsz)                                                                                   \
    X(cuMemHostAlloc)                                                                                        \
    X(cuMemAllocHost_v2)                                                                                     \
    X(cuMemFreeHost)                                                                                         \
    X(cuMemHostGetFlags)                                                                                     \
    X(cuMemGetInfo_v2)                                                                                       \
    X(cuIpcGetMemHandle)                                                                                     \
    X(cuIpcOpenMemHandle_v2)                                                                                 \
    X(cuIpcCloseMemHandle)                                                                                   \
    X(cuDeviceGetDefaultMemPool)                                                                             \
    X(cuDevicePrimaryCtxRetain)                                                                              \
    X(cuDevicePrimaryCtxReset_v2)                                                                            \
    X(cuCtxGetCurrent)                                                                                       \
    X(cuCtxSetCurrent)                                                                                       \
    X(cuCtxGetDevice)                                                                                        \
    X(cuThreadExchangeStreamCaptureMode)                                                                     \
    X(cuStreamBeginCapture_v2)                                                                               \
    X(cuStreamBeginCapture_v2_ptsz)                                                                          \
    X(cuStreamBeginCaptureToGraph)                                                                           \
    X(cuStreamEndCapture)                                                                                    \
    X(cuStreamEndCapture_ptsz)                                                                               \
    X(cuStreamDestroy_v2)

#define MEMBER(name) __typeof__(name) *name;
static struct { CALLS(MEMBER) } driver;
static __typeof__(cuGetProcAddress_v2) *find;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static _Thread_local int pending;

/* By the name without its endings. */
static void fill(const char *name, void **function) {
    char base[64] = "";
    int status = 0;
    uint64_t flags = strstr(name, "_ptsz") != NULL ? CUDA_PROC_PER_THREAD : 0;

    strncat(base, name, strcspn(name, "_"));
    if (find(base, function, FAKE_RUNTIME * 1000 + 80, flags, &status) != 0 || *function == NULL)
        abort();
}

static void load(void) {
    void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    if (handle == NULL)
        abort();
    *(void **)&find = dlsym(handle, "cuGetProcAddress_v2");
#define FILL(name) fill(#name, (void **)&driver.name);
    CALLS(FILL)
}

static int result(int error) {
    if (error != 0)
        pending = error;
    return error;
}

/* Begins every call. */
static int begin(void) {
    void *context = NULL;

    pthread_once(&once, load);
    int r = driver.cuCtxGetCurrent(&context);
    if (r == 0 && context == NULL)
        r = driver.cuDevicePrimaryCtxRetain(&context, 0);
    return r == 0 ? driver.cuCtxSetCurrent(context) : r;
}

/* Begins an allocation. False: there is nothing to ask the driver for, and *ret_error says why. */
static bool begins(void **memory, size_t size_bytes, int *ret_error) {
    *ret_error = begin();
    if (memory != NULL)
        *memory = NULL;
    if (*ret_error == 0 && memory == NULL)
        *ret_error = CUDA_INVALID_VALUE;
    return *ret_error == 0 && size_bytes > 0;
}

static int made(void **memory, uint64_t address, int error) {
    if (error == 0)
        *memory = (void *)(uintptr_t)address;
    return result(error);
}

int cudaMalloc(void **memory, size_t size_bytes) {
    uint64_t address = 0;
    int r;

    if (!begins(memory, size_bytes, &r))
        return result(r);
    r = driver.cuMemAlloc_v2(&address, size_bytes);
    return made(memory, address, r);
}

int cudaMallocPitch(void **memory, size_t *pitch, size_t width_bytes, size_t height) {
    uint64_t address = 0;
    int r;

    if (!begins(memory, width_bytes * height, &r))
        return result(r);
    r = driver.cuMemAllocPitch_v2(&address, pitch, width_bytes, height, 4);
    return made(memory, address, r);
}

int cudaMalloc3D(struct cuda_pitched *memory, struct cuda_extent extent) {
    memory->width = extent.width;
    memory->height = extent.height;
    return cudaMallocPitch(&memory->memory, &memory->pitch, extent.width, extent.height * extent.depth);
}

int cudaFree(void *memory) {
    int r = begin();
    return result(r != 0 || memory == NULL ? r : driver.cuMemFree_v2((uintptr_t)memory));
}

static int in_order(void **memory, size_t size_bytes, void *stream,
                    int (*allocate)(uint64_t *, size_t, void *)) {
    uint64_t address = 0;
    int r = allocate(&address, size_bytes, stream);
    return made(memory, address, r);
}

int cudaMallocAsync(void **memory, size_t size_bytes, void *stream) {
    int r;
    return begins(memory, size_bytes, &r) ? in_order(memory, size_bytes, stream, driver.cuMemAllocAsync)
                                          : result(r);
}

int cudaMallocAsync_ptsz(void **memory, size_t size_bytes, void *stream) {
    int r;
    return begins(memory, size_bytes, &r) ? in_order(memory, size_bytes, stream, driver.cuMemAllocAsync_ptsz)
                                          : result(r);
}

int cudaMallocFromPoolAsync(void **memory, size_t size_bytes, void *pool, void *stream) {
    uint64_t address = 0;
    int r;

    if (!begins(memory, size_bytes, &r))
        return result(r);
    r = driver.cuMemAllocFromPoolAsync(&address, size_bytes, pool, stream);
    return made(memory, address, r);
}

int cudaDeviceGetDefaultMemPool(void **pool, int of) {
    int r = begin();
    return result(r != 0 ? r : driver.cuDeviceGetDefaultMemPool(pool, of));
}

int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    int r = begin();
    return result(r != 0 ? r : driver.cuMemGetInfo_v2(free_bytes, total_bytes));
}

int cudaFreeAsync(void *memory, void *stream) {
    int r = begin();
    return result(r != 0 ? r : driver.cuMemFreeAsync((uintptr_t)memory, stream));
}

int cudaFreeAsync_ptsz(void *memory, void *stream) {
    int r = begin();
    return result(r != 0 ? r : driver.cuMemFreeAsync_ptsz((uintptr_t)memory, stream));
}

int cudaMallocHost(void **memory, size_t size_bytes) {
    int r;
    return result(begins(memory, size_bytes, &r) ? driver.cuMemAllocHost_v2(memory, size_bytes) : r);
}

int cudaHostAlloc(void **memory, size_t size_bytes, unsigned flags) {
    int r;
    return result(begins(memory, size_bytes, &r) ? driver.cuMemHostAlloc(memory, size_bytes, flags) : r);
}

int cudaFreeHost(void *memory) {
    int r = begin();
    return result(r != 0 || memory == NULL ? r : driver.cuMemFreeHost(memory));
}

int cudaHostGetFlags(unsigned *flags, void *memory) {
    int r = begin();
    return result(r != 0 ? r : driver.cuMemHostGetFlags(flags, memory));
}

int cudaIpcGetMemHandle(struct cuda_ipc_handle *handle, void *memory) {
    int r = begin();
    return result(r != 0 ? r : driver.cuIpcGetMemHandle(handle, (uintptr_t)memory));
}

int cudaIpcOpenMemHandle(void **memory, struct cuda_ipc_handle handle, unsigned flags) {
    uint64_t address = 0;
    int r = begin();

    if (r == 0)
        r = driver.cuIpcOpenMemHandle_v2(&address, handle, flags);
    return made(memory, address, r);
}

int cudaIpcCloseMemHandle(void *memory) {
    int r = begin();
    return result(r != 0 ? r : driver.cuIpcCloseMemHandle((uintptr_t)memory));
}

int cudaGetDevice(int *ret_device) {
    int r = begin();
    return result(r != 0 ? r : driver.cuCtxGetDevice(ret_device));
}

int cudaSetDevice(int wanted) {
    void *context = NULL;
    int r = begin();

    if (r == 0)
        r = driver.cuDevicePrimaryCtxRetain(&context, wanted);
    return result(r != 0 ? r : driver.cuCtxSetCurrent(context));
}

int cudaDeviceReset(void) {
    int device = 0, r = cudaGetDevice(&device);
    return result(r != 0 ? r : driver.cuDevicePrimaryCtxReset_v2(device));
}

int cudaThreadExchangeStreamCaptureMode(int *mode) {
    int r = begin();
    return result(r != 0 ? r : driver.cuThreadExchangeStreamCaptureMode(mode));
}

int cudaStreamBeginCapture(void *stream, int mode) {
    int r = begin();
    return result(r != 0 ? r : driver.cuStreamBeginCapture_v2(stream, mode));
}

int cudaStreamBeginCapture_ptsz(void *stream, int mode) {
    int r = begin();
    return result(r != 0 ? r : driver.cuStreamBeginCapture_v2_ptsz(stream, mode));
}

int cudaStreamBeginCaptureToGraph(void *stream, void *graph, const void *nodes, const void *edges,
                                  size_t count, int mode) {
    int r = begin();
    return result(r != 0 ? r : driver.cuStreamBeginCaptureToGraph(stream, graph, nodes, edges, count, mode));
}

int cudaStreamEndCapture(void *stream, void **graph) {
    int r = begin();
    return result(r != 0 ? r : driver.cuStreamEndCapture(stream, graph));
}

int cudaStreamEndCapture_ptsz(void *stream, void **graph) {
    int r = begin();
    return result(r != 0 ? r : driver.cuStreamEndCapture_ptsz(stream, graph));
}

int cudaStreamDestroy(void *stream) {
    int r = begin();
    return result(r != 0 ? r : driver.cuStreamDestroy_v2(stream));
}

int cudaGetLastError(void) {
    int error = pending;
    pending = 0;
    return error;
}

int cudaPeekAtLastError(void) {
    return pending;
}

int fake_runtime(void) {
    return FAKE_RUNTIME;
}
