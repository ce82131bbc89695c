/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_PRELOAD_FAKE_CUDART_H
#define TESTS_PRELOAD_FAKE_CUDART_H
/*
 * A CUDA runtime over the fake driver (fake_libcuda.h), built as libcudart.so.12 and as libcudart.so.13: what
 * a test program links in place of the real one. As the real one it finds the driver's functions by dlsym()
 * and cuGetProcAddress(), makes a primary context with the first call, and keeps the error of a failure until
 * cudaGetLastError().
 */
#include "tests/preload/fake_libcuda.h"

/* struct cudaPitchedPtr */
struct cuda_pitched {
    void *memory;
    size_t pitch, width, height;
};

/* struct cudaExtent: passed by value */
struct cuda_extent {
    size_t width, height, depth;
};

int cudaMalloc(void **memory, size_t size_bytes);
int cudaMallocPitch(void **memory, size_t *pitch, size_t width_bytes, size_t height);
int cudaMalloc3D(struct cuda_pitched *memory, struct cuda_extent extent);
int cudaFree(void *memory);
int cudaMallocAsync(void **memory, size_t size_bytes, void *stream);
int cudaMallocAsync_ptsz(void **memory, size_t size_bytes, void *stream);
int cudaMallocFromPoolAsync(void **memory, size_t size_bytes, void *pool, void *stream);
int cudaDeviceGetDefaultMemPool(void **pool, int of);
int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
int cudaFreeAsync(void *memory, void *stream);
int cudaFreeAsync_ptsz(void *memory, void *stream);
int cudaMallocHost(void **memory, size_t size_bytes);
int cudaHostAlloc(void **memory, size_t size_bytes, unsigned flags);
int cudaFreeHost(void *memory);
int cudaHostGetFlags(unsigned *flags, void *memory);
int cudaIpcGetMemHandle(struct cuda_ipc_handle *handle, void *memory);
int cudaIpcOpenMemHandle(void **memory, struct cuda_ipc_handle handle, unsigned flags);
int cudaIpcCloseMemHandle(void *memory);
int cudaDeviceReset(void);
int cudaGetDevice(int *device);
int cudaSetDevice(int device);
int cudaThreadExchangeStreamCaptureMode(int *mode);
int cudaStreamBeginCapture(void *stream, int mode);
int cudaStreamBeginCapture_ptsz(void *stream, int mode);
int cudaStreamBeginCaptureToGraph(void *stream, void *graph, const void *nodes, const void *edges,
                                  size_t count, int mode);
int cudaStreamEndCapture(void *stream, void **graph);
int cudaStreamEndCapture_ptsz(void *stream, void **graph);
int cudaStreamDestroy(void *stream);
int cudaGetLastError(void);
int cudaPeekAtLastError(void);

/* 12 or 13. */
int fake_runtime(void);

#endif
