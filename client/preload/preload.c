/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libgpupool-preload.so: the CUDA runtime's functions for memory, over gpupool. The dynamic linker finds them
 * before those of the shared runtime (libcudart.so.12, libcudart.so.13) when the library is named in
 * LD_PRELOAD, which gpupoolctl run does; the program is not changed. The real function is called for all that
 * cannot be done with gpupool's memory, and for pointers that are not gpupool's.
 *
 * Served: cudaMalloc, cudaMallocPitch, cudaMalloc3D, cudaMallocAsync from the default pool, cudaMallocHost,
 * cudaHostAlloc without WriteCombined, and the calls that free, share or ask about such memory. Captures of
 * streams are noted. The rest of the runtime is the real one: managed memory, arrays and the program's own
 * pools among it.
 *
 * As with the real ones: cudaFree() waits for the device, size 0 is a success without memory, what fails
 * leaves NULL and a pending error, cudaFree(NULL) initialises the runtime.
 *
 * None of this can be seen by libgpupool-client itself: its runtime is linked statically, under local names.
 */
#include <stdint.h>

#include "client/preload/capture.h"
#include "client/preload/lending.h"
#include "client/preload/serve.h"
#include "client/preload/shared.h"

/* The caller's runtime. No function of these can be called without one, unless by its address. */
#define RUNTIME_OR_FAIL(call)                                                                                \
    const struct runtime *runtime = runtime_of(__builtin_return_address(0));                                 \
    if (runtime == NULL || runtime->call == NULL)                                                            \
    return CUDA_INITIALIZATION_ERROR

#define DECLARE(name, parameters) __attribute__((visibility("default"))) int name parameters;
CUDART_SERVED(DECLARE)

/* --- device memory --- */

int cudaMalloc(void **memory, size_t size_bytes) {
    RUNTIME_OR_FAIL(cudaMalloc);
    if (memory == NULL || size_bytes == 0 || lend_is_inside())
        return runtime->cudaMalloc(memory, size_bytes);
    bool can_retry = runtime_caller_retries(__builtin_return_address(0));
    int r = lend(runtime, LEND_DEVICE, size_bytes, can_retry, memory);
    return r == NOT_OURS ? runtime->cudaMalloc(memory, size_bytes) : r;
}

int cudaMallocPitch(void **memory, size_t *pitch, size_t width_bytes, size_t height) {
    RUNTIME_OR_FAIL(cudaMallocPitch);
    if (memory == NULL || pitch == NULL || width_bytes == 0 || height == 0 || lend_is_inside())
        return runtime->cudaMallocPitch(memory, pitch, width_bytes, height);
    int r = serve_rows(runtime, width_bytes, height, pitch, memory);
    return r == NOT_OURS ? runtime->cudaMallocPitch(memory, pitch, width_bytes, height) : r;
}

int cudaMalloc3D(struct cuda_pitched *memory, struct cuda_extent extent) {
    size_t rows;

    RUNTIME_OR_FAIL(cudaMalloc3D);
    if (memory == NULL || extent.width == 0 || extent.height == 0 || extent.depth == 0 || lend_is_inside() ||
        __builtin_mul_overflow(extent.height, extent.depth, &rows))
        return runtime->cudaMalloc3D(memory, extent);
    struct cuda_pitched made = {.width = extent.width, .height = extent.height};
    int r = serve_rows(runtime, extent.width, rows, &made.pitch, &made.memory);
    if (r == NOT_OURS)
        return runtime->cudaMalloc3D(memory, extent);
    if (r == 0)
        *memory = made;
    return r;
}

int cudaFree(void *memory) {
    RUNTIME_OR_FAIL(cudaFree);
    int r = serve_free(runtime, memory);
    return r == NOT_OURS ? runtime->cudaFree(memory) : r;
}

/* pool: NULL: the device's current one. */
static int take_in_order(const struct runtime *runtime, void **memory, size_t size_bytes, void *pool,
                         void *stream) {
    if (memory == NULL || size_bytes == 0 || lend_is_inside())
        return NOT_OURS;
    return serve_in_order(runtime, size_bytes, pool, stream, memory);
}

int cudaMallocAsync(void **memory, size_t size_bytes, void *stream) {
    RUNTIME_OR_FAIL(cudaMallocAsync);
    int r = take_in_order(runtime, memory, size_bytes, NULL, serve_stream(stream));
    return r == NOT_OURS ? runtime->cudaMallocAsync(memory, size_bytes, stream) : r;
}

int cudaMallocAsync_ptsz(void **memory, size_t size_bytes, void *stream) {
    RUNTIME_OR_FAIL(cudaMallocAsync_ptsz);
    int r = take_in_order(runtime, memory, size_bytes, NULL, serve_stream_ptsz(stream));
    return r == NOT_OURS ? runtime->cudaMallocAsync_ptsz(memory, size_bytes, stream) : r;
}

int cudaMallocFromPoolAsync(void **memory, size_t size_bytes, void *pool, void *stream) {
    RUNTIME_OR_FAIL(cudaMallocFromPoolAsync);
    int r = pool == NULL ? NOT_OURS : take_in_order(runtime, memory, size_bytes, pool, serve_stream(stream));
    return r == NOT_OURS ? runtime->cudaMallocFromPoolAsync(memory, size_bytes, pool, stream) : r;
}

int cudaMallocFromPoolAsync_ptsz(void **memory, size_t size_bytes, void *pool, void *stream) {
    RUNTIME_OR_FAIL(cudaMallocFromPoolAsync_ptsz);
    int r =
        pool == NULL ? NOT_OURS : take_in_order(runtime, memory, size_bytes, pool, serve_stream_ptsz(stream));
    return r == NOT_OURS ? runtime->cudaMallocFromPoolAsync_ptsz(memory, size_bytes, pool, stream) : r;
}

int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    RUNTIME_OR_FAIL(cudaMemGetInfo);
    int r = runtime->cudaMemGetInfo(free_bytes, total_bytes);
    if (r == 0)
        serve_memory_info(runtime, free_bytes, total_bytes);
    return r;
}

int cudaFreeAsync(void *memory, void *stream) {
    RUNTIME_OR_FAIL(cudaFreeAsync);
    int r = serve_free_behind(runtime, memory, serve_stream(stream));
    return r == NOT_OURS ? runtime->cudaFreeAsync(memory, stream) : r;
}

/* The names that a program calls which is compiled with --default-stream per-thread. */
int cudaFreeAsync_ptsz(void *memory, void *stream) {
    RUNTIME_OR_FAIL(cudaFreeAsync_ptsz);
    int r = serve_free_behind(runtime, memory, serve_stream_ptsz(stream));
    return r == NOT_OURS ? runtime->cudaFreeAsync_ptsz(memory, stream) : r;
}

/* --- pinned host memory --- */

int cudaMallocHost(void **memory, size_t size_bytes) {
    RUNTIME_OR_FAIL(cudaMallocHost);
    if (memory == NULL || size_bytes == 0 || lend_is_inside())
        return runtime->cudaMallocHost(memory, size_bytes);
    int r = lend(runtime, LEND_HOST, size_bytes, false, memory);
    return r == NOT_OURS ? runtime->cudaMallocHost(memory, size_bytes) : r;
}

/* Lent memory is portable and mapped, asked for or not, as the real one is under unified addressing. */
int cudaHostAlloc(void **memory, size_t size_bytes, unsigned flags) {
    RUNTIME_OR_FAIL(cudaHostAlloc);
    if (memory == NULL || size_bytes == 0 || (flags & ~(CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED)) != 0 ||
        lend_is_inside())
        return runtime->cudaHostAlloc(memory, size_bytes, flags);
    int r = lend(runtime, LEND_HOST, size_bytes, false, memory);
    return r == NOT_OURS ? runtime->cudaHostAlloc(memory, size_bytes, flags) : r;
}

int cudaFreeHost(void *memory) {
    RUNTIME_OR_FAIL(cudaFreeHost);
    int r = serve_free(runtime, memory);
    return r == NOT_OURS ? runtime->cudaFreeHost(memory) : r;
}

/* The real one knows memory that it allocated, and not memory that was registered. */
int cudaHostGetFlags(unsigned *flags, void *memory) {
    struct gpupool_buffer buffer;

    RUNTIME_OR_FAIL(cudaHostGetFlags);
    if (flags == NULL || memory == NULL || lend_is_inside() || lend_find(runtime, memory, &buffer) != 0 ||
        buffer.kind != GPUPOOL_POOL_HOST)
        return runtime->cudaHostGetFlags(flags, memory);
    *flags = CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED;
    return 0;
}

/* --- sharing --- */

int cudaIpcGetMemHandle(struct cuda_ipc_handle *handle, void *memory) {
    RUNTIME_OR_FAIL(cudaIpcGetMemHandle);
    int r = handle == NULL || memory == NULL || lend_is_inside() ? NOT_OURS
                                                                 : shared_export(runtime, memory, handle);
    return r == NOT_OURS ? runtime->cudaIpcGetMemHandle(handle, memory) : r;
}

int cudaIpcOpenMemHandle(void **memory, struct cuda_ipc_handle handle, unsigned flags) {
    RUNTIME_OR_FAIL(cudaIpcOpenMemHandle);
    int r = memory == NULL || lend_is_inside() ? NOT_OURS : shared_open(runtime, &handle, memory);
    return r == NOT_OURS ? runtime->cudaIpcOpenMemHandle(memory, handle, flags) : r;
}

int cudaIpcCloseMemHandle(void *memory) {
    RUNTIME_OR_FAIL(cudaIpcCloseMemHandle);
    int r = memory == NULL || lend_is_inside() ? NOT_OURS : shared_close(runtime, memory);
    return r == NOT_OURS ? runtime->cudaIpcCloseMemHandle(memory) : r;
}

/* --- captures --- */

int cudaStreamBeginCapture(void *stream, int mode) {
    RUNTIME_OR_FAIL(cudaStreamBeginCapture);
    if (lend_is_inside())
        return runtime->cudaStreamBeginCapture(stream, mode);
    capture_before_begin();
    return capture_after_begin(stream, runtime->cudaStreamBeginCapture(stream, mode));
}

int cudaStreamBeginCapture_ptsz(void *stream, int mode) {
    RUNTIME_OR_FAIL(cudaStreamBeginCapture_ptsz);
    if (lend_is_inside())
        return runtime->cudaStreamBeginCapture_ptsz(stream, mode);
    capture_before_begin();
    return capture_after_begin(serve_stream_ptsz(stream), runtime->cudaStreamBeginCapture_ptsz(stream, mode));
}

int cudaStreamBeginCaptureToGraph(void *stream, void *graph, const void *nodes, const void *edges,
                                  size_t count, int mode) {
    RUNTIME_OR_FAIL(cudaStreamBeginCaptureToGraph);
    if (lend_is_inside())
        return runtime->cudaStreamBeginCaptureToGraph(stream, graph, nodes, edges, count, mode);
    capture_before_begin();
    return capture_after_begin(
        stream, runtime->cudaStreamBeginCaptureToGraph(stream, graph, nodes, edges, count, mode));
}

int cudaStreamBeginCaptureToGraph_ptsz(void *stream, void *graph, const void *nodes, const void *edges,
                                       size_t count, int mode) {
    RUNTIME_OR_FAIL(cudaStreamBeginCaptureToGraph_ptsz);
    if (lend_is_inside())
        return runtime->cudaStreamBeginCaptureToGraph_ptsz(stream, graph, nodes, edges, count, mode);
    capture_before_begin();
    return capture_after_begin(serve_stream_ptsz(stream), runtime->cudaStreamBeginCaptureToGraph_ptsz(
                                                              stream, graph, nodes, edges, count, mode));
}

int cudaStreamEndCapture(void *stream, void **graph) {
    RUNTIME_OR_FAIL(cudaStreamEndCapture);
    return capture_after_end(runtime, stream, runtime->cudaStreamEndCapture(stream, graph));
}

int cudaStreamEndCapture_ptsz(void *stream, void **graph) {
    RUNTIME_OR_FAIL(cudaStreamEndCapture_ptsz);
    return capture_after_end(runtime, serve_stream_ptsz(stream),
                             runtime->cudaStreamEndCapture_ptsz(stream, graph));
}

int cudaStreamDestroy(void *stream) {
    RUNTIME_OR_FAIL(cudaStreamDestroy);
    int r = serve_destroy(runtime, stream);
    if (r == NOT_OURS)
        r = runtime->cudaStreamDestroy(stream);
    if (r == 0)
        capture_forget(stream);
    return r;
}

/* --- the rest --- */

/* A reset takes away the context that the mappings of lent memory live in, while libgpupool-client goes on
 * using it. So once there are such mappings it only waits. Memory that the program has on loan then stays on
 * loan. */
int cudaDeviceReset(void) {
    RUNTIME_OR_FAIL(cudaDeviceReset);
    if (lend_is_inside() || lend_client_if_open() == NULL)
        return runtime->cudaDeviceReset();
    return runtime->cudaDeviceSynchronize();
}
