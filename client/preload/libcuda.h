/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PRELOAD_LIBCUDA_H
#define CLIENT_PRELOAD_LIBCUDA_H
/*
 * The part of the CUDA driver's binary interface (libcuda.so.1) that the preload library touches: types,
 * numbers and functions. A device pointer is an integer of 64 bits, a context and a stream are pointers. The
 * toolkit's header is not used: the library defines functions of the same kinds, and it is built on machines
 * without a toolkit, too.
 */
#include <stddef.h>
#include <stdint.h>

#define LIBCUDA "libcuda.so.1"

/* The prefix of the preload library's functions that take the place of the driver's. The audit library finds
 * them by their names. */
#define DRIVER_PREFIX "gpupool_driver_"

/* CUresult */
enum cuda_error {
    CUDA_SUCCESS_ = 0,
    CUDA_INVALID_VALUE = 1,
    CUDA_MEMORY_ALLOCATION = 2,
    CUDA_INITIALIZATION_ERROR = 3,
    CUDA_INVALID_DEVICE = 101,
    CUDA_CAPTURE_UNSUPPORTED = 900,
};

/* cuMemHostAlloc() flags */
#define CUDA_HOST_PORTABLE       1u
#define CUDA_HOST_MAPPED         2u
#define CUDA_HOST_WRITE_COMBINED 4u

/* CUdevice_attribute: the device uses registered host memory under the host's address. */
#define CUDA_ATTRIBUTE_HOST_POINTERS 91

/* CUstreamCaptureMode */
#define CUDA_CAPTURE_RELAXED 2

/* CUstreamCaptureStatus: the stream is not being captured. */
#define CUDA_CAPTURE_NONE 0

/* CUstream handles that are no pointers */
#define CUDA_STREAM_LEGACY     ((void *)1)
#define CUDA_STREAM_PER_THREAD ((void *)2)

/* CUipcMemHandle: passed by value */
#define CUDA_IPC_HANDLE_BYTES 64u
struct cuda_ipc_handle {
    char bytes[CUDA_IPC_HANDLE_BYTES];
};

/* CUpointer_attribute */
#define CUDA_POINTER_IS_LEGACY_IPC 10
#define CUDA_POINTER_RANGE_START   11
#define CUDA_POINTER_RANGE_SIZE    12

/* cuGetProcAddress() flags: the variant for a default stream of each thread. */
#define CUDA_PROC_PER_THREAD 2u

/* CUmemAllocationProp: the type and the types of handles come first. */
#define CUDA_LOCATION_DEVICE 1
struct cuda_allocation {
    int type, handle_types, location_type, location_id;
};

/* The driver's descriptors of arrays. */
struct cuda_array {
    size_t width, height;
    int format;
    unsigned channels;
};
struct cuda_array_3d {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};

/* The driver's functions that the library serves: name, parameters. */
#define LIBCUDA_SERVED(X)                                                                                    \
    X(cuMemAlloc_v2, (uint64_t *, size_t))                                                                   \
    X(cuMemAllocPitch_v2, (uint64_t *, size_t *, size_t, size_t, unsigned))                                  \
    X(cuMemFree_v2, (uint64_t))                                                                              \
    X(cuMemAllocAsync, (uint64_t *, size_t, void *))                                                         \
    X(cuMemAllocAsync_ptsz, (uint64_t *, size_t, void *))                                                    \
    X(cuMemAllocFromPoolAsync, (uint64_t *, size_t, void *, void *))                                         \
    X(cuMemAllocFromPoolAsync_ptsz, (uint64_t *, size_t, void *, void *))                                    \
    X(cuMemFreeAsync, (uint64_t, void *))                                                                    \
    X(cuMemFreeAsync_ptsz, (uint64_t, void *))                                                               \
    X(cuMemAllocHost_v2, (void **, size_t))                                                                  \
    X(cuMemHostAlloc, (void **, size_t, unsigned))                                                           \
    X(cuMemFreeHost, (void *))                                                                               \
    X(cuMemHostGetFlags, (unsigned *, void *))                                                               \
    X(cuIpcGetMemHandle, (struct cuda_ipc_handle *, uint64_t))                                               \
    X(cuIpcOpenMemHandle_v2, (uint64_t *, struct cuda_ipc_handle, unsigned))                                 \
    X(cuIpcCloseMemHandle, (uint64_t))                                                                       \
    X(cuMemGetInfo_v2, (size_t *, size_t *))                                                                 \
    X(cuMemGetAddressRange_v2, (uint64_t *, size_t *, uint64_t))                                             \
    X(cuPointerGetAttribute, (void *, int, uint64_t))                                                        \
    X(cuPointerGetAttributes, (unsigned, int *, void **, uint64_t))                                          \
    X(cuStreamBeginCapture_v2, (void *, int))                                                                \
    X(cuStreamBeginCapture_v2_ptsz, (void *, int))                                                           \
    X(cuStreamBeginCaptureToGraph, (void *, void *, const void *, const void *, size_t, int))                \
    X(cuStreamBeginCaptureToGraph_ptsz, (void *, void *, const void *, const void *, size_t, int))           \
    X(cuStreamEndCapture, (void *, void **))                                                                 \
    X(cuStreamEndCapture_ptsz, (void *, void **))                                                            \
    X(cuStreamDestroy_v2, (void *))                                                                          \
    X(cuDevicePrimaryCtxReset_v2, (int))                                                                     \
    X(cuGetProcAddress, (const char *, void **, int, uint64_t))                                              \
    X(cuGetProcAddress_v2, (const char *, void **, int, uint64_t, int *))

/* The functions that it only counts (unserved.h): name, parameters. */
#define LIBCUDA_UNSERVED(X)                                                                                  \
    X(cuMemAllocManaged, (uint64_t *, size_t, unsigned))                                                     \
    X(cuMemPoolCreate, (void **, const void *))                                                              \
    X(cuMemCreate, (uint64_t *, size_t, const struct cuda_allocation *, uint64_t))                           \
    X(cuArrayCreate_v2, (void **, const struct cuda_array *))                                                \
    X(cuArray3DCreate_v2, (void **, const struct cuda_array_3d *))                                           \
    X(cuMipmappedArrayCreate, (void **, const struct cuda_array_3d *, unsigned))                             \
    X(cuMemHostRegister_v2, (void *, size_t, unsigned))

/* The functions that it calls: those, for what it does not serve itself, and others. */
#define LIBCUDA_CALLS(X)                                                                                     \
    LIBCUDA_SERVED(X)                                                                                        \
    LIBCUDA_UNSERVED(X)                                                                                      \
    X(cuCtxGetCurrent, (void **))                                                                            \
    X(cuCtxGetDevice, (int *))                                                                               \
    X(cuCtxPopCurrent_v2, (void **))                                                                         \
    X(cuCtxPushCurrent_v2, (void *))                                                                         \
    X(cuCtxSetCurrent, (void *))                                                                             \
    X(cuCtxSynchronize, (void))                                                                              \
    X(cuDeviceGetAttribute, (int *, int, int))                                                               \
    X(cuDeviceGetDefaultMemPool, (void **, int))                                                             \
    X(cuDeviceGetMemPool, (void **, int))                                                                    \
    X(cuDevicePrimaryCtxGetState, (int, unsigned *, int *))                                                  \
    X(cuDevicePrimaryCtxRelease_v2, (int))                                                                   \
    X(cuDevicePrimaryCtxRetain, (void **, int))                                                              \
    X(cuStreamGetCtx, (void *, void **))                                                                     \
    X(cuStreamIsCapturing, (void *, int *))                                                                  \
    X(cuThreadExchangeStreamCaptureMode, (int *))

#endif
