/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/preload/fake_libcuda.h"
#include "tests/preload/fake_order.h"
#include "tests/preload/fake_unserved.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define POINTERS_MAX 1024u
#define TOO_LARGE    ((size_t)1 << 50)
#define STACK_MAX    8u
#define NO_CONTEXT   201
#define NOT_FOUND    500

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *pointers[POINTERS_MAX];
static struct driver_counts counts;
static int broken;
static pid_t user;                        /* the first process that had a primary context; 0: none */
static bool is_active[FAKE_DEVICES];      /* the primary contexts */
static char primary[FAKE_DEVICES], other; /* their addresses are the contexts */

static _Thread_local void *stack[STACK_MAX];
static _Thread_local unsigned depth;
static _Thread_local int mode;

static void *current(void) {
    return depth > 0 ? stack[depth - 1] : NULL;
}

/* The error of every call from now on; 0: none. */
static int failure(void) {
    return user != 0 && user != getpid() ? CUDA_INITIALIZATION_ERROR : broken;
}

static void note_unsafe(void) {
    if (fake_captures_any() && mode != CUDA_CAPTURE_RELAXED)
        counts.unsafe++;
}

/* NULL: there is no room. */
static void *allocate(size_t size_bytes) {
    void *memory = NULL;

    if (size_bytes == 0 || size_bytes > TOO_LARGE)
        return NULL;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < POINTERS_MAX && memory == NULL; i++)
        if (pointers[i] == NULL)
            memory = pointers[i] = malloc(size_bytes);
    counts.allocations += memory != NULL;
    pthread_mutex_unlock(&lock);
    return memory;
}

static int release(void *memory) {
    int r = CUDA_INVALID_VALUE;

    if (failure() != 0)
        return failure();
    note_unsafe();
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < POINTERS_MAX && r != 0 && memory != NULL; i++)
        if (pointers[i] == memory) {
            free(memory);
            pointers[i] = NULL;
            counts.frees++;
            r = 0;
        }
    pthread_mutex_unlock(&lock);
    return r;
}

int cuMemAlloc_v2(uint64_t *memory, size_t size_bytes) {
    if (failure() != 0)
        return failure();
    if (current() == NULL)
        return NO_CONTEXT;
    if (memory == NULL || size_bytes == 0)
        return CUDA_INVALID_VALUE;
    note_unsafe();
    void *made = allocate(size_bytes);
    if (made == NULL)
        return CUDA_MEMORY_ALLOCATION;
    *memory = (uintptr_t)made;
    return 0;
}

int cuMemAlloc(unsigned *memory, unsigned size_bytes) {
    (void)memory;
    (void)size_bytes;
    return NOT_FOUND; /* no program has 32 bits any more */
}

int cuMemAllocPitch_v2(uint64_t *memory, size_t *pitch, size_t width_bytes, size_t rows, unsigned element) {
    if (element != 4 && element != 8 && element != 16)
        return CUDA_INVALID_VALUE;
    int r = cuMemAlloc_v2(memory, width_bytes * rows);
    if (r == 0)
        *pitch = width_bytes;
    return r;
}

int cuMemFree_v2(uint64_t memory) {
    return memory == 0 ? failure() : release((void *)(uintptr_t)memory);
}

int cuMemFreeAsync(uint64_t memory, void *stream) {
    (void)stream;
    return release((void *)(uintptr_t)memory);
}

int cuMemFreeAsync_ptsz(uint64_t memory, void *stream) {
    return cuMemFreeAsync(memory, stream);
}

int cuMemAllocHost_v2(void **memory, size_t size_bytes) {
    return cuMemAlloc_v2((uint64_t *)(void *)memory, size_bytes);
}

int cuMemHostAlloc(void **memory, size_t size_bytes, unsigned flags) {
    return flags > 7 ? CUDA_INVALID_VALUE : cuMemAllocHost_v2(memory, size_bytes);
}

int cuMemFreeHost(void *memory) {
    return release(memory);
}

int cuMemHostGetFlags(unsigned *flags, void *memory) {
    (void)flags;
    (void)memory;
    return CUDA_INVALID_VALUE;
}

static bool is_known(uint64_t memory) {
    bool is = false;

    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < POINTERS_MAX && memory != 0 && !is; i++)
        is = (uintptr_t)pointers[i] == memory;
    pthread_mutex_unlock(&lock);
    return is;
}

/* A handle holds the pointer, which is good in the same process. */
int cuIpcGetMemHandle(struct cuda_ipc_handle *handle, uint64_t memory) {
    if (!is_known(memory))
        return CUDA_INVALID_VALUE;
    *handle = (struct cuda_ipc_handle){0};
    memcpy(handle, &memory, sizeof memory);
    return 0;
}

int cuIpcOpenMemHandle_v2(uint64_t *memory, struct cuda_ipc_handle handle, unsigned flags) {
    uint64_t wanted;

    (void)flags;
    memcpy(&wanted, &handle, sizeof wanted);
    if (!is_known(wanted))
        return CUDA_INVALID_VALUE;
    *memory = wanted;
    return 0;
}

int cuIpcCloseMemHandle(uint64_t memory) {
    return is_known(memory) ? 0 : CUDA_INVALID_VALUE;
}

int cuDevicePrimaryCtxReset_v2(int device) {
    (void)device;
    counts.resets++;
    return 0;
}

/* --- finding --- */

void *fake_find(const struct fake_function *all, size_t count, const char *name, int version,
                uint64_t flags) {
    void *found = NULL;

    for (size_t i = 0; i < count; i++)
        if (strcmp(name, all[i].name) == 0 && version >= all[i].version &&
            (flags & all[i].flags) == all[i].flags)
            found = all[i].function;
    return found;
}

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    static const struct fake_function all[] = {
        {"cuMemAlloc", 2000, 0, (void *)cuMemAlloc},
        {"cuMemAlloc", 3020, 0, (void *)cuMemAlloc_v2},
        {"cuMemAllocPitch", 3020, 0, (void *)cuMemAllocPitch_v2},
        {"cuMemFree", 3020, 0, (void *)cuMemFree_v2},
        {"cuMemFreeAsync", 11020, 0, (void *)cuMemFreeAsync},
        {"cuMemFreeAsync", 11020, CUDA_PROC_PER_THREAD, (void *)cuMemFreeAsync_ptsz},
        {"cuMemAllocHost", 3020, 0, (void *)cuMemAllocHost_v2},
        {"cuMemHostAlloc", 2020, 0, (void *)cuMemHostAlloc},
        {"cuMemFreeHost", 2000, 0, (void *)cuMemFreeHost},
        {"cuMemHostGetFlags", 2030, 0, (void *)cuMemHostGetFlags},
        {"cuIpcGetMemHandle", 4010, 0, (void *)cuIpcGetMemHandle},
        {"cuIpcOpenMemHandle", 11000, 0, (void *)cuIpcOpenMemHandle_v2},
        {"cuIpcCloseMemHandle", 4010, 0, (void *)cuIpcCloseMemHandle},
        {"cuDevicePrimaryCtxReset", 11000, 0, (void *)cuDevicePrimaryCtxReset_v2},
        {"cuDevicePrimaryCtxRetain", 7000, 0, (void *)cuDevicePrimaryCtxRetain},
        {"cuCtxGetCurrent", 4000, 0, (void *)cuCtxGetCurrent},
        {"cuCtxGetDevice", 2000, 0, (void *)cuCtxGetDevice},
        {"cuCtxSetCurrent", 4000, 0, (void *)cuCtxSetCurrent},
        {"cuCtxSynchronize", 2000, 0, (void *)cuCtxSynchronize},
        {"cuThreadExchangeStreamCaptureMode", 10010, 0, (void *)cuThreadExchangeStreamCaptureMode},
        {"cuGetProcAddress", 11030, 0, (void *)cuGetProcAddress},
        {"cuGetProcAddress", 12000, 0, (void *)cuGetProcAddress_v2},
    };
    void *found = fake_find(all, sizeof all / sizeof *all, name, version, flags);

    if (found == NULL)
        found = fake_order_find(name, version, flags);
    if (found == NULL)
        found = fake_unserved_find(name, version);
    *function = found;
    if (status != NULL)
        *status = found == NULL;
    return found != NULL ? 0 : NOT_FOUND;
}

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}

/* --- contexts --- */

int cuCtxGetCurrent(void **context) {
    *context = current();
    return failure();
}

/* The device of a context. */
static int device_of(const char *context) {
    return context == &primary[1] ? 1 : 0;
}

int cuCtxGetDevice(int *device) {
    if (current() == NULL)
        return NO_CONTEXT;
    *device = device_of(current());
    return failure();
}

int cuCtxSetCurrent(void *context) {
    if (depth == 0)
        depth = 1;
    stack[depth - 1] = context;
    return failure();
}

int cuCtxPushCurrent_v2(void *context) {
    if (depth == STACK_MAX)
        return CUDA_INVALID_VALUE;
    stack[depth++] = context;
    return failure();
}

int cuCtxPopCurrent_v2(void **context) {
    if (depth == 0)
        return NO_CONTEXT;
    *context = stack[--depth];
    return failure();
}

int cuStreamGetCtx(void *stream, void **context) {
    *context = stream == FAKE_FOREIGN_STREAM ? &other : &primary[0];
    return failure();
}

/* A wait invalidates captures. */
int cuCtxSynchronize(void) {
    counts.waits++;
    counts.invalidated += fake_captures_invalidate();
    return current() == NULL     ? NO_CONTEXT
           : failure() != 0      ? failure()
           : fake_captures_any() ? CUDA_CAPTURE_UNSUPPORTED
                                 : 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)attribute;
    (void)device;
    *value = 1;
    return failure();
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    if (device < 0 || device >= FAKE_DEVICES)
        return CUDA_INVALID_DEVICE;
    *flags = 0;
    *active = is_active[device];
    return failure();
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    if (device < 0 || device >= FAKE_DEVICES)
        return CUDA_INVALID_DEVICE;
    if (failure() != 0)
        return failure();
    if (!is_active[device])
        counts.primaries_made++;
    is_active[device] = true;
    user = getpid();
    *context = &primary[device];
    return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    return failure();
}

int cuThreadExchangeStreamCaptureMode(int *wanted) {
    int before = mode;
    mode = *wanted;
    *wanted = before;
    return failure();
}

/* --- for the tests --- */

struct driver_counts fake_driver_counts(void) {
    return counts;
}

void fake_use_primary(void) {
    is_active[0] = true;
    cuCtxSetCurrent(&primary[0]);
}

void fake_use_other(void) {
    cuCtxSetCurrent(&other);
}

void fake_use_none(void) {
    depth = 0;
}

void fake_break(int result) {
    broken = result;
}
