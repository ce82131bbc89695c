/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver's functions for memory, over gpupool: for programs whose CUDA runtime is a part of
 * themselves, and for programs that call the driver. The audit library (audit.c) binds the program's
 * references to libcuda.so.1 to these functions, whatever way the program finds them: at link time, by
 * dlsym(), or by cuGetProcAddress(), which answers with them. Nothing reaches them without it.
 *
 * They are the same functions over the same objects as the runtime's (preload.c): the driver is seen as one
 * more runtime (`driver_runtime`), with the numbers of errors that both have in common. The differences:
 * nothing is left pending, and an out-parameter is written on success alone.
 *
 * The real function serves a call that allocates where the thread's current context is not the primary one of
 * its device, in which lent memory is mapped; while a stream is known to be captured; and inside this
 * library. Memory that is not gpupool's goes to the real function. Lent memory is freed from any context.
 *
 * A primary context that was looked at stays alive with the process, as the mappings in it do.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "client/preload/capture.h"
#include "client/preload/driver.h"
#include "client/preload/lending.h"
#include "client/preload/libcuda.h"
#include "client/preload/report.h"
#include "client/preload/serve.h"
#include "client/preload/shared.h"

#define DEVICES_MAX       64
#define INVALID_DEVICE    101 /* the driver's number */
#define ELEMENT_BYTES_MIN 4u
#define ELEMENT_BYTES_MAX 16u

static pthread_mutex_t filling =
    PTHREAD_MUTEX_INITIALIZER; /* of driver_real. No other lock is taken under it */
struct libcuda driver_real;
static atomic_bool is_filled;
static _Atomic(void *) primaries[DEVICES_MAX]; /* contexts that are retained; NULL: none of the device */

void driver_after_fork(void) {
    pthread_mutex_init(&filling, NULL);
}

/* Calls of this library are not redirected. */
bool driver_find(void) {
    struct libcuda found;

    if (atomic_load_explicit(&is_filled, memory_order_acquire))
        return true;
    void *handle = dlopen(LIBCUDA, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == NULL)
        return false;
#define FIND(name, parameters) *(void **)&found.name = dlsym(handle, #name);
    LIBCUDA_CALLS(FIND)
#undef FIND
    pthread_mutex_lock(&filling);
    if (!atomic_load(&is_filled))
        driver_real = found;
    atomic_store_explicit(&is_filled, true, memory_order_release);
    pthread_mutex_unlock(&filling);
    return true;
}

/* --- contexts --- */

static int primary_of(int device, void **ret_context) {
    if (device < 0 || device >= DEVICES_MAX)
        return INVALID_DEVICE;
    *ret_context = atomic_load(&primaries[device]);
    if (*ret_context != NULL)
        return 0;
    int r = driver_real.cuDevicePrimaryCtxRetain(ret_context, device);
    void *none = NULL;
    if (r == 0 && !atomic_compare_exchange_strong(&primaries[device], &none, *ret_context))
        (void)driver_real.cuDevicePrimaryCtxRelease_v2(device); /* another thread did */
    return r;
}

bool driver_in_primary(void) {
    void *current = NULL, *primary = NULL;
    unsigned flags;
    int device, is_active = 0;

    if (driver_real.cuCtxGetCurrent(&current) != 0 || current == NULL ||
        driver_real.cuCtxGetDevice(&device) != 0 ||
        driver_real.cuDevicePrimaryCtxGetState(device, &flags, &is_active) != 0 || is_active == 0)
        return false;
    return primary_of(device, &primary) == 0 && primary == current;
}

/* NULL: it cannot be known. */
static void *context_of(void *stream) {
    void *context = NULL;

    if (!serve_is_made(stream) || !driver_find() || driver_real.cuStreamGetCtx == NULL ||
        driver_real.cuStreamGetCtx(stream, &context) != 0)
        return NULL;
    return context;
}

bool driver_is_current(void *stream) {
    void *context = context_of(stream), *current = NULL;
    return context == NULL || (driver_real.cuCtxGetCurrent(&current) == 0 && current == context);
}

/* Makes the primary context of a device current until leave(). */
static int visit(int device) {
    void *primary = NULL;
    int r = primary_of(device, &primary);
    return r != 0 ? r : driver_real.cuCtxPushCurrent_v2(primary);
}

static void leave(void) {
    void *primary;
    (void)driver_real.cuCtxPopCurrent_v2(&primary);
}

bool driver_device_of(void *stream, int *ret_device) {
    void *context = context_of(stream);

    if (context == NULL || driver_real.cuCtxPushCurrent_v2(context) != 0)
        return false;
    int r = driver_real.cuCtxGetDevice(ret_device);
    leave();
    return r == 0;
}

static bool has_context(void) {
    void *current = NULL;
    return driver_real.cuCtxGetCurrent(&current) == 0 && current != NULL;
}

bool driver_may_lend(enum lend_kind kind, uint64_t size_bytes) {
    if (lend_is_inside())
        return false;
    if (captures_any()) {
        report_add(kind == LEND_HOST ? REPORT_HOST_CAPTURE : REPORT_CAPTURE, size_bytes);
        return false;
    }
    bool may = driver_in_primary();
    if (!may && report_is_asked() && has_context())
        report_add(kind == LEND_HOST ? REPORT_HOST_CONTEXT : REPORT_CONTEXT, size_bytes);
    return may;
}

/* --- the driver as a runtime --- */

static int as_malloc(void **memory, size_t size_bytes) {
    uint64_t address = 0;
    int r = driver_real.cuMemAlloc_v2(&address, size_bytes);

    if (r == 0)
        *memory = driver_pointer(address);
    return r;
}

static int as_free(void *memory) {
    return memory == NULL ? 0 : driver_real.cuMemFree_v2((uintptr_t)memory); /* NULL: the context exists */
}

static int as_get_device(int *ret_device) {
    return ret_device == NULL ? CUDA_INVALID_VALUE : driver_real.cuCtxGetDevice(ret_device);
}

static int as_set_device(int device) {
    void *primary = NULL;
    int r = primary_of(device, &primary);
    return r != 0 ? r : driver_real.cuCtxSetCurrent(primary);
}

static int as_synchronize(void) {
    return driver_real.cuCtxSynchronize();
}

static int as_get_attribute(int *value, int attribute, int device) {
    return driver_real.cuDeviceGetAttribute(value, attribute, device);
}

static int as_get_pool(void **pool, int device) {
    return driver_real.cuDeviceGetMemPool(pool, device);
}

static int as_get_default_pool(void **pool, int device) {
    return driver_real.cuDeviceGetDefaultMemPool(pool, device);
}

static int as_is_capturing(void *stream, int *status) {
    return driver_real.cuStreamIsCapturing(stream, status);
}

static int as_exchange_mode(int *mode) {
    return driver_real.cuThreadExchangeStreamCaptureMode(mode);
}

/* The calls of lending.c, reclaim.c, shared.c, serve.c and capture.c. */
const struct runtime driver_runtime = {
    .index = RUNTIMES_MAX,
    .cudaMalloc = as_malloc,
    .cudaFree = as_free,
    .cudaGetDevice = as_get_device,
    .cudaSetDevice = as_set_device,
    .cudaDeviceSynchronize = as_synchronize,
    .cudaDeviceGetAttribute = as_get_attribute,
    .cudaDeviceGetDefaultMemPool = as_get_default_pool,
    .cudaDeviceGetMemPool = as_get_pool,
    .cudaStreamIsCapturing = as_is_capturing,
    .cudaThreadExchangeStreamCaptureMode = as_exchange_mode,
};

/* --- device memory --- */

int gpupool_driver_cuMemAlloc_v2(uint64_t *memory, size_t size_bytes) {
    void *lent;

    DRIVER_OR_FAIL(cuMemAlloc_v2);
    if (memory == NULL || size_bytes == 0 || !driver_may_lend(LEND_DEVICE, size_bytes))
        return driver_real.cuMemAlloc_v2(memory, size_bytes);
    int r = lend(&driver_runtime, LEND_DEVICE, size_bytes, false, &lent);
    if (r == NOT_OURS)
        return driver_real.cuMemAlloc_v2(memory, size_bytes);
    if (r == 0)
        *memory = (uintptr_t)lent;
    return r;
}

int gpupool_driver_cuMemAllocPitch_v2(uint64_t *memory, size_t *pitch, size_t width_bytes, size_t rows,
                                      unsigned element_bytes) {
    void *lent;

    DRIVER_OR_FAIL(cuMemAllocPitch_v2);
    bool is_element = element_bytes >= ELEMENT_BYTES_MIN && element_bytes <= ELEMENT_BYTES_MAX &&
                      (element_bytes & (element_bytes - 1)) == 0;
    if (memory == NULL || pitch == NULL || width_bytes == 0 || rows == 0 || !is_element ||
        !driver_may_lend(LEND_DEVICE, (uint64_t)width_bytes * rows))
        return driver_real.cuMemAllocPitch_v2(memory, pitch, width_bytes, rows, element_bytes);
    int r = serve_rows(&driver_runtime, width_bytes, rows, pitch, &lent);
    if (r == NOT_OURS)
        return driver_real.cuMemAllocPitch_v2(memory, pitch, width_bytes, rows, element_bytes);
    if (r == 0)
        *memory = (uintptr_t)lent;
    return r;
}

int driver_release(void *memory) {
    struct gpupool_buffer buffer;

    if (memory == NULL || lend_is_inside())
        return NOT_OURS;
    int r = lend_find(&driver_runtime, memory, &buffer);
    if (r == 0)
        r = visit(buffer.kind == GPUPOOL_POOL_DEVICE ? buffer.device : lend_a_device());
    if (r != 0)
        return r;
    r = serve_free(&driver_runtime, memory);
    leave();
    return r == NOT_OURS ? CUDA_INVALID_VALUE : r; /* another thread freed it meanwhile */
}

int gpupool_driver_cuMemFree_v2(uint64_t memory) {
    DRIVER_OR_FAIL(cuMemFree_v2);
    int r = driver_release(driver_pointer(memory));
    return r == NOT_OURS ? driver_real.cuMemFree_v2(memory) : r;
}

/* --- pinned host memory --- */

static int lend_host(void **memory, size_t size_bytes) {
    void *lent;
    int r = lend(&driver_runtime, LEND_HOST, size_bytes, false, &lent);

    if (r == 0)
        *memory = lent;
    return r;
}

int gpupool_driver_cuMemAllocHost_v2(void **memory, size_t size_bytes) {
    DRIVER_OR_FAIL(cuMemAllocHost_v2);
    bool is_lent = memory != NULL && size_bytes > 0 && driver_may_lend(LEND_HOST, size_bytes);
    int r = is_lent ? lend_host(memory, size_bytes) : NOT_OURS;
    return r == NOT_OURS ? driver_real.cuMemAllocHost_v2(memory, size_bytes) : r;
}

int gpupool_driver_cuMemHostAlloc(void **memory, size_t size_bytes, unsigned flags) {
    DRIVER_OR_FAIL(cuMemHostAlloc);
    bool is_lent =
        memory != NULL && size_bytes > 0 && (flags & ~(CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED)) == 0;
    int r = is_lent && driver_may_lend(LEND_HOST, size_bytes) ? lend_host(memory, size_bytes) : NOT_OURS;
    if (r != NOT_OURS)
        return r;
    r = driver_real.cuMemHostAlloc(memory, size_bytes, flags);
    if (r == 0 && (flags & CUDA_HOST_WRITE_COMBINED) != 0)
        report_add(REPORT_WRITE_COMBINED, size_bytes);
    return r;
}

int gpupool_driver_cuMemFreeHost(void *memory) {
    DRIVER_OR_FAIL(cuMemFreeHost);
    int r = driver_release(memory);
    return r == NOT_OURS ? driver_real.cuMemFreeHost(memory) : r;
}

int gpupool_driver_cuMemHostGetFlags(unsigned *flags, void *memory) {
    struct gpupool_buffer buffer;

    DRIVER_OR_FAIL(cuMemHostGetFlags);
    if (flags == NULL || memory == NULL || lend_is_inside() ||
        lend_find(&driver_runtime, memory, &buffer) != 0 || buffer.kind != GPUPOOL_POOL_HOST)
        return driver_real.cuMemHostGetFlags(flags, memory);
    *flags = CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED;
    return 0;
}

/* --- sharing --- */

int gpupool_driver_cuIpcGetMemHandle(struct cuda_ipc_handle *handle, uint64_t memory) {
    DRIVER_OR_FAIL(cuIpcGetMemHandle);
    int r = handle == NULL || memory == 0 || lend_is_inside()
                ? NOT_OURS
                : shared_export(&driver_runtime, driver_pointer(memory), handle);
    return r == NOT_OURS ? driver_real.cuIpcGetMemHandle(handle, memory) : r;
}

int gpupool_driver_cuIpcOpenMemHandle_v2(uint64_t *memory, struct cuda_ipc_handle handle, unsigned flags) {
    void *opened = NULL;

    DRIVER_OR_FAIL(cuIpcOpenMemHandle_v2);
    int r = memory == NULL || lend_is_inside() || !driver_in_primary()
                ? NOT_OURS
                : shared_open(&driver_runtime, &handle, &opened);
    if (r == NOT_OURS)
        return driver_real.cuIpcOpenMemHandle_v2(memory, handle, flags);
    if (r == 0)
        *memory = (uintptr_t)opened;
    return r;
}

int gpupool_driver_cuIpcCloseMemHandle(uint64_t memory) {
    DRIVER_OR_FAIL(cuIpcCloseMemHandle);
    if (memory == 0 || lend_is_inside() || lend_client_if_open() == NULL)
        return driver_real.cuIpcCloseMemHandle(memory);
    int r = visit(lend_a_device());
    if (r != 0)
        return r;
    r = shared_close(&driver_runtime, driver_pointer(memory));
    leave();
    return r == NOT_OURS ? driver_real.cuIpcCloseMemHandle(memory) : r;
}

/* --- the rest --- */

/* As cudaDeviceReset(): it would take away the context that the mappings of lent memory live in. */
int gpupool_driver_cuDevicePrimaryCtxReset_v2(int device) {
    DRIVER_OR_FAIL(cuDevicePrimaryCtxReset_v2);
    if (lend_is_inside() || lend_client_if_open() == NULL)
        return driver_real.cuDevicePrimaryCtxReset_v2(device);
    int r = visit(device);
    if (r != 0)
        return r;
    r = driver_real.cuCtxSynchronize();
    leave();
    return r;
}
