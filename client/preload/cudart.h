/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PRELOAD_CUDART_H
#define CLIENT_PRELOAD_CUDART_H
/*
 * The part of the CUDA runtime's binary interface that the preload library touches: types, numbers and the
 * functions that it calls. They are the same in the runtimes 12 and 13. The toolkit's header is not used: the
 * library defines the same names, and it is built on machines without a toolkit, too.
 */
#include <stddef.h>

/* cudaError_t */
enum cuda_error {
    CUDA_SUCCESS_ = 0,
    CUDA_INVALID_VALUE = 1,
    CUDA_MEMORY_ALLOCATION = 2,
    CUDA_INITIALIZATION_ERROR = 3,
    CUDA_CAPTURE_UNSUPPORTED = 900,
};

/* cudaHostAlloc() flags */
#define CUDA_HOST_PORTABLE       1u
#define CUDA_HOST_MAPPED         2u
#define CUDA_HOST_WRITE_COMBINED 4u

/* cudaDeviceAttr: the device uses registered host memory under the host's address. */
#define CUDA_ATTRIBUTE_HOST_POINTERS 91

/* cudaStreamCaptureMode */
#define CUDA_CAPTURE_RELAXED 2

/* cudaStreamCaptureStatus: the stream is not being captured. */
#define CUDA_CAPTURE_NONE 0

/* cudaStream_t handles that are no pointers */
#define CUDA_STREAM_LEGACY     ((void *)1)
#define CUDA_STREAM_PER_THREAD ((void *)2)

/* cudaIpcMemHandle_t: passed by value */
#define CUDA_IPC_HANDLE_BYTES 64u
struct cuda_ipc_handle {
    char bytes[CUDA_IPC_HANDLE_BYTES];
};

/* struct cudaPitchedPtr */
struct cuda_pitched {
    void *memory;
    size_t pitch, width, height;
};

/* struct cudaExtent: passed by value */
struct cuda_extent {
    size_t width, height, depth;
};

/* The runtime's functions that the library serves: name, parameters. */
#define CUDART_SERVED(X)                                                                                     \
    X(cudaMalloc, (void **, size_t))                                                                         \
    X(cudaMallocPitch, (void **, size_t *, size_t, size_t))                                                  \
    X(cudaMalloc3D, (struct cuda_pitched *, struct cuda_extent))                                             \
    X(cudaFree, (void *))                                                                                    \
    X(cudaMallocAsync, (void **, size_t, void *))                                                            \
    X(cudaMallocAsync_ptsz, (void **, size_t, void *))                                                       \
    X(cudaMallocFromPoolAsync, (void **, size_t, void *, void *))                                            \
    X(cudaMallocFromPoolAsync_ptsz, (void **, size_t, void *, void *))                                       \
    X(cudaFreeAsync, (void *, void *))                                                                       \
    X(cudaFreeAsync_ptsz, (void *, void *))                                                                  \
    X(cudaMallocHost, (void **, size_t))                                                                     \
    X(cudaHostAlloc, (void **, size_t, unsigned))                                                            \
    X(cudaFreeHost, (void *))                                                                                \
    X(cudaHostGetFlags, (unsigned *, void *))                                                                \
    X(cudaMemGetInfo, (size_t *, size_t *))                                                                  \
    X(cudaIpcGetMemHandle, (struct cuda_ipc_handle *, void *))                                               \
    X(cudaIpcOpenMemHandle, (void **, struct cuda_ipc_handle, unsigned))                                     \
    X(cudaIpcCloseMemHandle, (void *))                                                                       \
    X(cudaStreamBeginCapture, (void *, int))                                                                 \
    X(cudaStreamBeginCapture_ptsz, (void *, int))                                                            \
    X(cudaStreamBeginCaptureToGraph, (void *, void *, const void *, const void *, size_t, int))              \
    X(cudaStreamBeginCaptureToGraph_ptsz, (void *, void *, const void *, const void *, size_t, int))         \
    X(cudaStreamEndCapture, (void *, void **))                                                               \
    X(cudaStreamEndCapture_ptsz, (void *, void **))                                                          \
    X(cudaStreamDestroy, (void *))                                                                           \
    X(cudaDeviceReset, (void))

/* The functions that it calls: those, for what it does not serve itself, and others. */
#define CUDART_CALLS(X)                                                                                      \
    CUDART_SERVED(X)                                                                                         \
    X(cudaGetDevice, (int *))                                                                                \
    X(cudaSetDevice, (int))                                                                                  \
    X(cudaDeviceSynchronize, (void))                                                                         \
    X(cudaDeviceGetAttribute, (int *, int, int))                                                             \
    X(cudaDeviceGetDefaultMemPool, (void **, int))                                                           \
    X(cudaDeviceGetMemPool, (void **, int))                                                                  \
    X(cudaStreamIsCapturing, (void *, int *))                                                                \
    X(cudaThreadExchangeStreamCaptureMode, (int *))

#endif
