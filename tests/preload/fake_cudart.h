/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_PRELOAD_FAKE_CUDART_H
#define TESTS_PRELOAD_FAKE_CUDART_H
/*
 * A CUDA runtime over malloc(), built as libcudart.so.12 and as libcudart.so.13: what a test program links in
 * place of the real one. It counts what it is asked for, and fails as the real one does: a pointer that it
 * did not allocate is an invalid value, a forked child of a process that used it has no runtime, and while a
 * stream is captured the device cannot be waited for, and a wait invalidates the capture. A stream is a
 * number below FAKE_STREAMS. A failure stays pending until cudaGetLastError().
 */
#include "client/preload/cudart.h"

#define FAKE_STREAMS 16

#define CUDA_CAPTURE_INVALIDATED  901
#define CUDA_CAPTURE_WRONG_THREAD 908

int cudaMalloc(void **memory, size_t size_bytes);
int cudaMallocPitch(void **memory, size_t *pitch, size_t width_bytes, size_t height);
int cudaMalloc3D(struct cuda_pitched *memory, struct cuda_extent extent);
int cudaFree(void *memory);
int cudaMallocAsync(void **memory, size_t size_bytes, void *stream);
int cudaMallocAsync_ptsz(void **memory, size_t size_bytes, void *stream);
int cudaMallocFromPoolAsync(void **memory, size_t size_bytes, void *pool, void *stream);
int cudaMallocFromPoolAsync_ptsz(void **memory, size_t size_bytes, void *pool, void *stream);
int cudaDeviceGetDefaultMemPool(void **pool, int of);
int cudaDeviceGetMemPool(void **pool, int of);
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
int cudaDeviceSynchronize(void);
int cudaDeviceGetAttribute(int *value, int attribute, int device);
int cudaThreadExchangeStreamCaptureMode(int *mode);
int cudaStreamBeginCapture(void *stream, int mode);
int cudaStreamBeginCapture_ptsz(void *stream, int mode);
int cudaStreamBeginCaptureToGraph(void *stream, void *graph, const void *nodes, const void *edges,
                                  size_t count, int mode);
int cudaStreamEndCapture(void *stream, void **graph);
int cudaStreamEndCapture_ptsz(void *stream, void **graph);
int cudaStreamIsCapturing(void *stream, int *status);
int cudaStreamDestroy(void *stream);
int cudaGetLastError(void);
int cudaPeekAtLastError(void);

/* The requests to it so far. A cudaMalloc() that failed, and cudaFree(NULL), do not count. */
struct fake_counts {
    unsigned allocations, frees, waits, resets;
    unsigned invalidated;     /* captures, by a wait for the device */
    unsigned initialisations; /* cudaFree(NULL) */
    unsigned
        unsafe;  /* allocations and frees while a stream was captured and the thread's mode was not relaxed */
    int runtime; /* 12 or 13 */
};
struct fake_counts fake_counts(void);
/* From now on a stream is captured, or none. */
void fake_capture(int on);
/* From now on the device has this error, which stays; 0: none. */
void fake_break(int error);

#endif
