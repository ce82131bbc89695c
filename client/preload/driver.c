/* SPDX-License-Identifier: Apache-2.0 */
#include "client/preload/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

#include "client/preload/lending.h"
#include "client/preload/report.h"

#define DEVICES_MAX 64

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
        return CUDA_INVALID_DEVICE;
    *ret_context = atomic_load(&primaries[device]);
    if (*ret_context != NULL)
        return 0;
    int r = driver_real.cuDevicePrimaryCtxRetain(ret_context, device);
    void *none = NULL;
    if (r == 0 && !atomic_compare_exchange_strong(&primaries[device], &none, *ret_context))
        (void)driver_real.cuDevicePrimaryCtxRelease_v2(device); /* another thread did */
    return r;
}

/* Asks the driver, and makes no context. */
static bool is_primary(void *current, int *ret_device) {
    void *primary = NULL;
    unsigned flags;
    int is_active = 0;

    return driver_real.cuCtxGetDevice(ret_device) == 0 &&
           driver_real.cuDevicePrimaryCtxGetState(*ret_device, &flags, &is_active) == 0 && is_active != 0 &&
           primary_of(*ret_device, &primary) == 0 && primary == current;
}

bool driver_in_primary(int *ret_device) {
    void *current = NULL;

    if (driver_real.cuCtxGetCurrent(&current) != 0 || current == NULL)
        return false;
    for (int device = 0; device < DEVICES_MAX; device++)
        if (atomic_load_explicit(&primaries[device], memory_order_relaxed) == current) {
            *ret_device = device;
            return true;
        }
    return is_primary(current, ret_device);
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

int driver_use(int device) {
    void *primary = NULL;
    int r = primary_of(device, &primary);
    return r != 0 ? r : driver_real.cuCtxSetCurrent(primary);
}

int driver_wait(int device) {
    int current, r;

    if (driver_in_primary(&current) && current == device)
        return driver_real.cuCtxSynchronize();
    r = visit(device);
    if (r != 0)
        return r;
    r = driver_real.cuCtxSynchronize();
    leave();
    return r;
}

/* --- streams --- */

/* NULL: it cannot be known. */
static void *context_of(void *stream) {
    void *context = NULL;

    if (!driver_is_made(stream) || driver_real.cuStreamGetCtx == NULL ||
        driver_real.cuStreamGetCtx(stream, &context) != 0)
        return NULL;
    return context;
}

bool driver_is_current(void *stream) {
    void *context = context_of(stream), *current = NULL;
    return context == NULL || (driver_real.cuCtxGetCurrent(&current) == 0 && current == context);
}

bool driver_device_of(void *stream, int *ret_device) {
    void *context = context_of(stream);

    if (context == NULL || driver_real.cuCtxPushCurrent_v2(context) != 0)
        return false;
    int r = driver_real.cuCtxGetDevice(ret_device);
    leave();
    return r == 0;
}

bool driver_exchange_mode(int *mode) {
    return driver_real.cuThreadExchangeStreamCaptureMode != NULL &&
           driver_real.cuThreadExchangeStreamCaptureMode(mode) == 0;
}

/* --- may memory be lent? --- */

static bool has_context(void) {
    void *current = NULL;
    return driver_real.cuCtxGetCurrent(&current) == 0 && current != NULL;
}

bool driver_may_lend(enum lend_kind kind, uint64_t size_bytes, int *ret_device) {
    if (lend_is_inside())
        return false;
    bool may = driver_in_primary(ret_device);
    if (!may && report_is_asked() && has_context())
        report_add(kind == LEND_HOST ? REPORT_HOST_CONTEXT : REPORT_CONTEXT, size_bytes);
    return may;
}
