/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's calls work on the device's primary context, which is the CUDA runtime's. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "client/plugins/device_wait.h"

/* The CUDA driver's functions of this process, whose types are not those of any header here. */
struct driver {
    int (*device_get)(int *ret_device, int ordinal);
    int (*context_retain)(void **ret_context, int device);
    int (*context_release)(int device);
    int (*context_push)(void *context);
    int (*context_pop)(void **ret_context);
    int (*context_synchronize)(void);
};

static struct driver driver;
static bool has_driver;
static pthread_once_t driver_found = PTHREAD_ONCE_INIT;

static bool find_function(void *library, const char *name, void *function) {
    *(void **)function = dlsym(library, name);
    return *(void **)function != NULL;
}

static void find_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL)
        return;
    has_driver = find_function(library, "cuDeviceGet", &driver.device_get) &&
                 find_function(library, "cuDevicePrimaryCtxRetain", &driver.context_retain) &&
                 find_function(library, "cuDevicePrimaryCtxRelease_v2", &driver.context_release) &&
                 find_function(library, "cuCtxPushCurrent_v2", &driver.context_push) &&
                 find_function(library, "cuCtxPopCurrent_v2", &driver.context_pop) &&
                 find_function(library, "cuCtxSynchronize", &driver.context_synchronize);
    dlclose(library); /* it was there before, and stays */
}

int device_wait(struct gpupool_client *client, int ordinal) {
    void *context;
    int device;

    pthread_once(&driver_found, find_driver);
    if (gpupool_gpu_kind(client) != GPUPOOL_GPU_CUDA)
        return gpupool_stream_synchronize(client, ordinal, NULL);
    if (!has_driver || driver.device_get(&device, ordinal) != 0 ||
        driver.context_retain(&context, device) != 0)
        return -1;
    int result = -1;
    if (driver.context_push(context) == 0) {
        result = driver.context_synchronize() == 0 ? 0 : -1;
        (void)driver.context_pop(&context);
    }
    (void)driver.context_release(device);
    return result;
}
