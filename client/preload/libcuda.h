/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PRELOAD_LIBCUDA_H
#define CLIENT_PRELOAD_LIBCUDA_H
/*
 * The part of the CUDA driver's binary interface (libcuda.so.1) that the preload library touches. Numbers of
 * errors, flags and attributes are the runtime's (cudart.h). A device pointer is an integer of 64 bits, a
 * context and a stream are pointers.
 */
#include <stddef.h>
#include <stdint.h>

#include "client/preload/cudart.h"

#define LIBCUDA "libcuda.so.1"

/* The prefix of the preload library's functions that take the place of the driver's. The audit library finds
 * them by their names. */
#define DRIVER_PREFIX "gpupool_driver_"

/* cuGetProcAddress() flags: the variant for a default stream of each thread. */
#define CUDA_PROC_PER_THREAD 2u

/* The driver's functions that the library serves: name, parameters. */
#define LIBCUDA_SERVED(X)                                                                                    \
    X(cuMemAlloc_v2, (uint64_t *, size_t))                                                                   \
    X(cuMemAllocPitch_v2, (uint64_t *, size_t *, size_t, size_t, unsigned))                                  \
    X(cuMemFree_v2, (uint64_t))                                                                              \
    X(cuMemFreeAsync, (uint64_t, void *))                                                                    \
    X(cuMemFreeAsync_ptsz, (uint64_t, void *))                                                               \
    X(cuMemAllocHost_v2, (void **, size_t))                                                                  \
    X(cuMemHostAlloc, (void **, size_t, unsigned))                                                           \
    X(cuMemFreeHost, (void *))                                                                               \
    X(cuMemHostGetFlags, (unsigned *, void *))                                                               \
    X(cuIpcGetMemHandle, (struct cuda_ipc_handle *, uint64_t))                                               \
    X(cuIpcOpenMemHandle_v2, (uint64_t *, struct cuda_ipc_handle, unsigned))                                 \
    X(cuIpcCloseMemHandle, (uint64_t))                                                                       \
    X(cuDevicePrimaryCtxReset_v2, (int))                                                                     \
    X(cuGetProcAddress, (const char *, void **, int, uint64_t))                                              \
    X(cuGetProcAddress_v2, (const char *, void **, int, uint64_t, int *))

/* The functions that it calls: those, for what it does not serve itself, and others. */
#define LIBCUDA_CALLS(X)                                                                                     \
    LIBCUDA_SERVED(X)                                                                                        \
    X(cuCtxGetCurrent, (void **))                                                                            \
    X(cuCtxGetDevice, (int *))                                                                               \
    X(cuCtxPopCurrent_v2, (void **))                                                                         \
    X(cuCtxPushCurrent_v2, (void *))                                                                         \
    X(cuCtxSetCurrent, (void *))                                                                             \
    X(cuCtxSynchronize, (void))                                                                              \
    X(cuDeviceGetAttribute, (int *, int, int))                                                               \
    X(cuDevicePrimaryCtxGetState, (int, unsigned *, int *))                                                  \
    X(cuDevicePrimaryCtxRelease_v2, (int))                                                                   \
    X(cuDevicePrimaryCtxRetain, (void **, int))                                                              \
    X(cuThreadExchangeStreamCaptureMode, (int *))

#endif
