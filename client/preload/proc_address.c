/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuGetProcAddress(), which finds the driver's functions by name, version and flags. Static runtimes find all
 * of them so. A function that the driver finds is replaced by the one that takes its place.
 */
#include <stdbool.h>
#include <string.h>

#include "client/preload/driver.h"
#include "client/preload/unserved.h"

/* The versions of CUDA since which a name is the function of today. */
#define PROC_ADDRESS_V2  12000
#define MEMORY_V2        3020 /* sizes of 64 bits */
#define IPC_OPEN_V2      11000
#define PRIMARY_RESET_V2 11000
#define CAPTURE_V2       10010
#define DESTROY_V2       4000

static const struct driver_answer answers[] = {
    {"cuMemAlloc", MEMORY_V2, false, (void *)gpupool_driver_cuMemAlloc_v2},
    {"cuMemAllocPitch", MEMORY_V2, false, (void *)gpupool_driver_cuMemAllocPitch_v2},
    {"cuMemFree", MEMORY_V2, false, (void *)gpupool_driver_cuMemFree_v2},
    {"cuMemAllocAsync", 0, false, (void *)gpupool_driver_cuMemAllocAsync},
    {"cuMemAllocAsync", 0, true, (void *)gpupool_driver_cuMemAllocAsync_ptsz},
    {"cuMemAllocFromPoolAsync", 0, false, (void *)gpupool_driver_cuMemAllocFromPoolAsync},
    {"cuMemAllocFromPoolAsync", 0, true, (void *)gpupool_driver_cuMemAllocFromPoolAsync_ptsz},
    {"cuMemFreeAsync", 0, false, (void *)gpupool_driver_cuMemFreeAsync},
    {"cuMemFreeAsync", 0, true, (void *)gpupool_driver_cuMemFreeAsync_ptsz},
    {"cuMemAllocHost", MEMORY_V2, false, (void *)gpupool_driver_cuMemAllocHost_v2},
    {"cuMemHostAlloc", 0, false, (void *)gpupool_driver_cuMemHostAlloc},
    {"cuMemFreeHost", 0, false, (void *)gpupool_driver_cuMemFreeHost},
    {"cuMemHostGetFlags", 0, false, (void *)gpupool_driver_cuMemHostGetFlags},
    {"cuIpcGetMemHandle", 0, false, (void *)gpupool_driver_cuIpcGetMemHandle},
    {"cuIpcOpenMemHandle", IPC_OPEN_V2, false, (void *)gpupool_driver_cuIpcOpenMemHandle_v2},
    {"cuIpcCloseMemHandle", 0, false, (void *)gpupool_driver_cuIpcCloseMemHandle},
    {"cuMemGetInfo", MEMORY_V2, false, (void *)gpupool_driver_cuMemGetInfo_v2},
    {"cuMemGetAddressRange", MEMORY_V2, false, (void *)gpupool_driver_cuMemGetAddressRange_v2},
    {"cuPointerGetAttribute", 0, false, (void *)gpupool_driver_cuPointerGetAttribute},
    {"cuPointerGetAttributes", 0, false, (void *)gpupool_driver_cuPointerGetAttributes},
    {"cuStreamBeginCapture", CAPTURE_V2, false, (void *)gpupool_driver_cuStreamBeginCapture_v2},
    {"cuStreamBeginCapture", CAPTURE_V2, true, (void *)gpupool_driver_cuStreamBeginCapture_v2_ptsz},
    {"cuStreamBeginCaptureToGraph", 0, false, (void *)gpupool_driver_cuStreamBeginCaptureToGraph},
    {"cuStreamBeginCaptureToGraph", 0, true, (void *)gpupool_driver_cuStreamBeginCaptureToGraph_ptsz},
    {"cuStreamEndCapture", 0, false, (void *)gpupool_driver_cuStreamEndCapture},
    {"cuStreamEndCapture", 0, true, (void *)gpupool_driver_cuStreamEndCapture_ptsz},
    {"cuStreamDestroy", DESTROY_V2, false, (void *)gpupool_driver_cuStreamDestroy_v2},
    {"cuDevicePrimaryCtxReset", PRIMARY_RESET_V2, false, (void *)gpupool_driver_cuDevicePrimaryCtxReset_v2},
    {"cuGetProcAddress", 0, false, (void *)gpupool_driver_cuGetProcAddress},
    {"cuGetProcAddress", PROC_ADDRESS_V2, false, (void *)gpupool_driver_cuGetProcAddress_v2},
};

void driver_answer(const struct driver_answer *all, size_t count, const char *name, void **function,
                   int version, uint64_t flags) {
    if (name == NULL || function == NULL || *function == NULL)
        return;
    for (size_t i = 0; i < count; i++)
        if (version >= all[i].version && strcmp(name, all[i].name) == 0 &&
            (!all[i].is_per_thread || (flags & CUDA_PROC_PER_THREAD) != 0))
            *function = all[i].function;
}

static void answer(const char *name, void **function, int version, uint64_t flags) {
    unserved_answer(name, function, version, flags);
    driver_answer(answers, sizeof answers / sizeof *answers, name, function, version, flags);
}

int gpupool_driver_cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    DRIVER_OR_FAIL(cuGetProcAddress);
    int r = driver_real.cuGetProcAddress(name, function, version, flags);
    if (r == 0)
        answer(name, function, version, flags);
    return r;
}

int gpupool_driver_cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                                       int *status) {
    DRIVER_OR_FAIL(cuGetProcAddress_v2);
    int r = driver_real.cuGetProcAddress_v2(name, function, version, flags, status);
    if (r == 0)
        answer(name, function, version, flags);
    return r;
}
