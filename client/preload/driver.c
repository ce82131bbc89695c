/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver's functions for memory, over gpupool: for programs whose CUDA runtime is a part of
 * themselves, and for programs that call the driver. The audit library (audit.c) binds the program's
 * references to libcuda.so.1 to these functions, whatever way the program finds them: at link time, by
 * dlsym(), or by cuGetProcAddress(), which answers with them. Nothing reaches them without it.
 *
 * They are the same functions over the same objects as the runtime's (preload.c): the driver is seen as one
 * more runtime (`driver`), with the numbers of errors that both have in common. The differences: nothing is
 * left pending, and an out-parameter is written on success alone.
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
#include <string.h>

#include "client/preload/capture.h"
#include "client/preload/lending.h"
#include "client/preload/libcuda.h"
#include "client/preload/report.h"
#include "client/preload/serve.h"
#include "client/preload/shared.h"
#include "client/preload/unserved.h"

#define DEVICES_MAX       64
#define INVALID_DEVICE    101 /* the driver's number */
/* The versions of CUDA since which a name asked of cuGetProcAddress() is the function of today. */
#define PROC_ADDRESS_V2   12000
#define MEMORY_V2         3020 /* sizes of 64 bits */
#define IPC_OPEN_V2       11000
#define PRIMARY_RESET_V2  11000
#define ELEMENT_BYTES_MIN 4u
#define ELEMENT_BYTES_MAX 16u

#define MEMBER(name, parameters) int(*name) parameters;
struct libcuda {
    LIBCUDA_CALLS(MEMBER)
};

#define DECLARE(name, parameters) __attribute__((visibility("default"))) int gpupool_driver_##name parameters;
LIBCUDA_SERVED(DECLARE)

static pthread_mutex_t filling = PTHREAD_MUTEX_INITIALIZER; /* of real. No other lock is taken under it */
static struct libcuda real;
static atomic_bool is_filled;
static _Atomic(void *) primaries[DEVICES_MAX]; /* contexts that are retained; NULL: none of the device */

void driver_after_fork(void) {
    pthread_mutex_init(&filling, NULL);
}

/* False: the process has no driver, so that nothing calls this. Calls of this library are not redirected. */
static bool find_real(void) {
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
        real = found;
    atomic_store_explicit(&is_filled, true, memory_order_release);
    pthread_mutex_unlock(&filling);
    return true;
}

/* A function that this driver does not have was not found by the program either. */
#define REAL_OR_FAIL(call)                                                                                   \
    if (!find_real() || real.call == NULL)                                                                   \
    return CUDA_INITIALIZATION_ERROR

static void *pointer(uint64_t address) {
    return (void *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr): CUdeviceptr */
}

/* --- contexts --- */

static int primary_of(int device, void **ret_context) {
    if (device < 0 || device >= DEVICES_MAX)
        return INVALID_DEVICE;
    *ret_context = atomic_load(&primaries[device]);
    if (*ret_context != NULL)
        return 0;
    int r = real.cuDevicePrimaryCtxRetain(ret_context, device);
    void *none = NULL;
    if (r == 0 && !atomic_compare_exchange_strong(&primaries[device], &none, *ret_context))
        (void)real.cuDevicePrimaryCtxRelease_v2(device); /* another thread did */
    return r;
}

/* Whether the thread's current context is the primary one of its device. Makes no context. */
static bool is_in_primary(void) {
    void *current = NULL, *primary = NULL;
    unsigned flags;
    int device, is_active = 0;

    if (real.cuCtxGetCurrent(&current) != 0 || current == NULL || real.cuCtxGetDevice(&device) != 0 ||
        real.cuDevicePrimaryCtxGetState(device, &flags, &is_active) != 0 || is_active == 0)
        return false;
    return primary_of(device, &primary) == 0 && primary == current;
}

static bool has_context(void) {
    void *current = NULL;
    return real.cuCtxGetCurrent(&current) == 0 && current != NULL;
}

/* The report counts a call that the driver serves instead. */
static bool may_lend(enum lend_kind kind, uint64_t size_bytes) {
    if (lend_is_inside())
        return false;
    if (captures_any()) {
        report_add(kind == LEND_HOST ? REPORT_HOST_CAPTURE : REPORT_CAPTURE, size_bytes);
        return false;
    }
    bool may = is_in_primary();
    if (!may && report_is_asked() && has_context())
        report_add(kind == LEND_HOST ? REPORT_HOST_CONTEXT : REPORT_CONTEXT, size_bytes);
    return may;
}

/* Makes the primary context of a device current until leave(). */
static int visit(int device) {
    void *primary = NULL;
    int r = primary_of(device, &primary);
    return r != 0 ? r : real.cuCtxPushCurrent_v2(primary);
}

static void leave(void) {
    void *primary;
    (void)real.cuCtxPopCurrent_v2(&primary);
}

/* --- the driver as a runtime --- */

static int as_malloc(void **memory, size_t size_bytes) {
    uint64_t address = 0;
    int r = real.cuMemAlloc_v2(&address, size_bytes);

    if (r == 0)
        *memory = pointer(address);
    return r;
}

static int as_free(void *memory) {
    return memory == NULL ? 0 : real.cuMemFree_v2((uintptr_t)memory); /* NULL: the context exists */
}

static int as_get_device(int *ret_device) {
    return ret_device == NULL ? CUDA_INVALID_VALUE : real.cuCtxGetDevice(ret_device);
}

static int as_set_device(int device) {
    void *primary = NULL;
    int r = primary_of(device, &primary);
    return r != 0 ? r : real.cuCtxSetCurrent(primary);
}

static int as_synchronize(void) {
    return real.cuCtxSynchronize();
}

static int as_get_attribute(int *value, int attribute, int device) {
    return real.cuDeviceGetAttribute(value, attribute, device);
}

static int as_exchange_mode(int *mode) {
    return real.cuThreadExchangeStreamCaptureMode(mode);
}

/* The calls of lending.c, reclaim.c and shared.c. */
static const struct runtime driver = {
    .index = RUNTIMES_MAX,
    .cudaMalloc = as_malloc,
    .cudaFree = as_free,
    .cudaGetDevice = as_get_device,
    .cudaSetDevice = as_set_device,
    .cudaDeviceSynchronize = as_synchronize,
    .cudaDeviceGetAttribute = as_get_attribute,
    .cudaThreadExchangeStreamCaptureMode = as_exchange_mode,
};

/* --- device memory --- */

int gpupool_driver_cuMemAlloc_v2(uint64_t *memory, size_t size_bytes) {
    void *lent;

    REAL_OR_FAIL(cuMemAlloc_v2);
    if (memory == NULL || size_bytes == 0 || !may_lend(LEND_DEVICE, size_bytes))
        return real.cuMemAlloc_v2(memory, size_bytes);
    int r = lend(&driver, LEND_DEVICE, size_bytes, false, &lent);
    if (r == NOT_OURS)
        return real.cuMemAlloc_v2(memory, size_bytes);
    if (r == 0)
        *memory = (uintptr_t)lent;
    return r;
}

int gpupool_driver_cuMemAllocPitch_v2(uint64_t *memory, size_t *pitch, size_t width_bytes, size_t rows,
                                      unsigned element_bytes) {
    void *lent;

    REAL_OR_FAIL(cuMemAllocPitch_v2);
    bool is_element = element_bytes >= ELEMENT_BYTES_MIN && element_bytes <= ELEMENT_BYTES_MAX &&
                      (element_bytes & (element_bytes - 1)) == 0;
    if (memory == NULL || pitch == NULL || width_bytes == 0 || rows == 0 || !is_element ||
        !may_lend(LEND_DEVICE, (uint64_t)width_bytes * rows))
        return real.cuMemAllocPitch_v2(memory, pitch, width_bytes, rows, element_bytes);
    int r = serve_rows(&driver, width_bytes, rows, pitch, &lent);
    if (r == NOT_OURS)
        return real.cuMemAllocPitch_v2(memory, pitch, width_bytes, rows, element_bytes);
    if (r == 0)
        *memory = (uintptr_t)lent;
    return r;
}

/* As serve_free(), from any context. */
static int release(void *memory) {
    struct gpupool_buffer buffer;

    if (memory == NULL || lend_is_inside())
        return NOT_OURS;
    int r = lend_find(&driver, memory, &buffer);
    if (r == 0)
        r = visit(buffer.kind == GPUPOOL_POOL_DEVICE ? buffer.device : lend_a_device());
    if (r != 0)
        return r;
    r = serve_free(&driver, memory);
    leave();
    return r == NOT_OURS ? CUDA_INVALID_VALUE : r; /* another thread freed it meanwhile */
}

int gpupool_driver_cuMemFree_v2(uint64_t memory) {
    REAL_OR_FAIL(cuMemFree_v2);
    int r = release(pointer(memory));
    return r == NOT_OURS ? real.cuMemFree_v2(memory) : r;
}

/* In another context no stream can have used the memory: the wait for its own context is enough. */
static int release_behind(void *memory, void *stream) {
    return lend_is_inside()  ? NOT_OURS
           : is_in_primary() ? serve_free_behind(&driver, memory, stream)
                             : release(memory);
}

int gpupool_driver_cuMemFreeAsync(uint64_t memory, void *stream) {
    REAL_OR_FAIL(cuMemFreeAsync);
    int r = release_behind(pointer(memory), stream == CUDA_STREAM_LEGACY ? NULL : stream);
    return r == NOT_OURS ? real.cuMemFreeAsync(memory, stream) : r;
}

int gpupool_driver_cuMemFreeAsync_ptsz(uint64_t memory, void *stream) {
    REAL_OR_FAIL(cuMemFreeAsync_ptsz);
    void *ours = stream == NULL ? CUDA_STREAM_PER_THREAD : stream == CUDA_STREAM_LEGACY ? NULL : stream;
    int r = release_behind(pointer(memory), ours);
    return r == NOT_OURS ? real.cuMemFreeAsync_ptsz(memory, stream) : r;
}

/* --- pinned host memory --- */

static int lend_host(void **memory, size_t size_bytes) {
    void *lent;
    int r = lend(&driver, LEND_HOST, size_bytes, false, &lent);

    if (r == 0)
        *memory = lent;
    return r;
}

int gpupool_driver_cuMemAllocHost_v2(void **memory, size_t size_bytes) {
    REAL_OR_FAIL(cuMemAllocHost_v2);
    bool is_lent = memory != NULL && size_bytes > 0 && may_lend(LEND_HOST, size_bytes);
    int r = is_lent ? lend_host(memory, size_bytes) : NOT_OURS;
    return r == NOT_OURS ? real.cuMemAllocHost_v2(memory, size_bytes) : r;
}

int gpupool_driver_cuMemHostAlloc(void **memory, size_t size_bytes, unsigned flags) {
    REAL_OR_FAIL(cuMemHostAlloc);
    bool is_lent =
        memory != NULL && size_bytes > 0 && (flags & ~(CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED)) == 0;
    int r = is_lent && may_lend(LEND_HOST, size_bytes) ? lend_host(memory, size_bytes) : NOT_OURS;
    if (r != NOT_OURS)
        return r;
    r = real.cuMemHostAlloc(memory, size_bytes, flags);
    if (r == 0 && (flags & CUDA_HOST_WRITE_COMBINED) != 0)
        report_add(REPORT_WRITE_COMBINED, size_bytes);
    return r;
}

int gpupool_driver_cuMemFreeHost(void *memory) {
    REAL_OR_FAIL(cuMemFreeHost);
    int r = release(memory);
    return r == NOT_OURS ? real.cuMemFreeHost(memory) : r;
}

int gpupool_driver_cuMemHostGetFlags(unsigned *flags, void *memory) {
    struct gpupool_buffer buffer;

    REAL_OR_FAIL(cuMemHostGetFlags);
    if (flags == NULL || memory == NULL || lend_is_inside() || lend_find(&driver, memory, &buffer) != 0 ||
        buffer.kind != GPUPOOL_POOL_HOST)
        return real.cuMemHostGetFlags(flags, memory);
    *flags = CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED;
    return 0;
}

/* --- sharing --- */

int gpupool_driver_cuIpcGetMemHandle(struct cuda_ipc_handle *handle, uint64_t memory) {
    REAL_OR_FAIL(cuIpcGetMemHandle);
    int r = handle == NULL || memory == 0 || lend_is_inside()
                ? NOT_OURS
                : shared_export(&driver, pointer(memory), handle);
    return r == NOT_OURS ? real.cuIpcGetMemHandle(handle, memory) : r;
}

int gpupool_driver_cuIpcOpenMemHandle_v2(uint64_t *memory, struct cuda_ipc_handle handle, unsigned flags) {
    void *opened = NULL;

    REAL_OR_FAIL(cuIpcOpenMemHandle_v2);
    int r = memory == NULL || lend_is_inside() || !is_in_primary() ? NOT_OURS
                                                                   : shared_open(&driver, &handle, &opened);
    if (r == NOT_OURS)
        return real.cuIpcOpenMemHandle_v2(memory, handle, flags);
    if (r == 0)
        *memory = (uintptr_t)opened;
    return r;
}

int gpupool_driver_cuIpcCloseMemHandle(uint64_t memory) {
    REAL_OR_FAIL(cuIpcCloseMemHandle);
    if (memory == 0 || lend_is_inside() || lend_client_if_open() == NULL)
        return real.cuIpcCloseMemHandle(memory);
    int r = visit(lend_a_device());
    if (r != 0)
        return r;
    r = shared_close(&driver, pointer(memory));
    leave();
    return r == NOT_OURS ? real.cuIpcCloseMemHandle(memory) : r;
}

/* --- the rest --- */

/* As cudaDeviceReset(): it would take away the context that the mappings of lent memory live in. */
int gpupool_driver_cuDevicePrimaryCtxReset_v2(int device) {
    REAL_OR_FAIL(cuDevicePrimaryCtxReset_v2);
    if (lend_is_inside() || lend_client_if_open() == NULL)
        return real.cuDevicePrimaryCtxReset_v2(device);
    int r = visit(device);
    if (r != 0)
        return r;
    r = real.cuCtxSynchronize();
    leave();
    return r;
}

/* The answers of cuGetProcAddress(): the name that a program asks for, the first version that gives this
 * function, and whether it is the one for a default stream of each thread, which is asked for by a flag.
 * Later rows win. */
static const struct {
    const char *name;
    int version;
    bool is_per_thread;
    void *function;
} answers[] = {
    {"cuMemAlloc", MEMORY_V2, false, (void *)gpupool_driver_cuMemAlloc_v2},
    {"cuMemAllocPitch", MEMORY_V2, false, (void *)gpupool_driver_cuMemAllocPitch_v2},
    {"cuMemFree", MEMORY_V2, false, (void *)gpupool_driver_cuMemFree_v2},
    {"cuMemFreeAsync", 0, false, (void *)gpupool_driver_cuMemFreeAsync},
    {"cuMemFreeAsync", 0, true, (void *)gpupool_driver_cuMemFreeAsync_ptsz},
    {"cuMemAllocHost", MEMORY_V2, false, (void *)gpupool_driver_cuMemAllocHost_v2},
    {"cuMemHostAlloc", 0, false, (void *)gpupool_driver_cuMemHostAlloc},
    {"cuMemFreeHost", 0, false, (void *)gpupool_driver_cuMemFreeHost},
    {"cuMemHostGetFlags", 0, false, (void *)gpupool_driver_cuMemHostGetFlags},
    {"cuIpcGetMemHandle", 0, false, (void *)gpupool_driver_cuIpcGetMemHandle},
    {"cuIpcOpenMemHandle", IPC_OPEN_V2, false, (void *)gpupool_driver_cuIpcOpenMemHandle_v2},
    {"cuIpcCloseMemHandle", 0, false, (void *)gpupool_driver_cuIpcCloseMemHandle},
    {"cuDevicePrimaryCtxReset", PRIMARY_RESET_V2, false, (void *)gpupool_driver_cuDevicePrimaryCtxReset_v2},
    {"cuGetProcAddress", 0, false, (void *)gpupool_driver_cuGetProcAddress},
    {"cuGetProcAddress", PROC_ADDRESS_V2, false, (void *)gpupool_driver_cuGetProcAddress_v2},
};

/* After the real function found one. */
static void answer(const char *name, void **function, int version, uint64_t flags) {
    unserved_answer(name, function, version, flags);
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        if (version >= answers[i].version && strcmp(name, answers[i].name) == 0 &&
            (!answers[i].is_per_thread || (flags & CUDA_PROC_PER_THREAD) != 0))
            *function = answers[i].function;
}

int gpupool_driver_cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    REAL_OR_FAIL(cuGetProcAddress);
    int r = real.cuGetProcAddress(name, function, version, flags);
    if (r == 0 && name != NULL && function != NULL && *function != NULL)
        answer(name, function, version, flags);
    return r;
}

int gpupool_driver_cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                                       int *status) {
    REAL_OR_FAIL(cuGetProcAddress_v2);
    int r = real.cuGetProcAddress_v2(name, function, version, flags, status);
    if (r == 0 && name != NULL && function != NULL && *function != NULL)
        answer(name, function, version, flags);
    return r;
}
