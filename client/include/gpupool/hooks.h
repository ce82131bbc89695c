/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUPOOL_HOOKS_H
#define GPUPOOL_HOOKS_H
/**
 * Hooks by which ONNX Runtime and CuPy take their memory from the pools. The functions are those that these
 * libraries ask for, with their types. A program passes the addresses; docs/libraries.md has the lines. They
 * are in a library of their own, libgpupool-hooks.so, and use the process's default client
 * (gpupool_default()).
 *
 * Streams. Neither library tells a hook of the stream that will use the memory. So each hook knows one of two
 * kinds of memory:
 * - For any stream: the memory is idle when it is handed out, so any stream may use it at once. Giving it
 * back waits for all work of the process on the device, as cudaFree() does.
 * - For one stream, which the program names beforehand: the memory is handed out and given back in that
 * stream's order, and no call waits for the GPU. The program guarantees that all work on the memory is
 * enqueued on that stream, or ordered before what is enqueued there next. Before the stream is destroyed its
 * work is done, the memory given back, and gpupool_trim() called. The per-thread default stream cannot be
 * named: the libraries give memory back in other threads than they took it in, and there it is another
 * stream.
 *
 * Graphs. Memory that is given back for one stream while that stream is captured would be lent again while
 * the graph uses it. So no graph is captured with memory of that kind. Memory for any stream is kept until
 * the process ends where it is given back during a capture.
 *
 * All functions are thread-safe. Memory is aligned to 512 bytes. A request waits for room as long as
 * gpupool_alloc() does (GPUPOOL_ALLOC_TIMEOUT, 10 s unless told otherwise). A call that gives memory back
 * cannot report a failure: memory that is refused stays allocated, and returns with the process.
 */
#include <gpupool/gpupool.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * @name ONNX Runtime
 * For the options gpu_external_alloc, gpu_external_free and gpu_external_empty_cache of the CUDA execution
 * provider, which take the addresses as decimal numbers (cuda_execution_provider_info.cc). ONNX Runtime then
 * puts no arena above them: each tensor is a call (CUDAExecutionProvider::CreateCudaAllocator() in
 * cuda_execution_provider.cc). Its plug-in form (CudaExternalDeviceAllocator) calls them in the same way.
 * @{
 */
/**
 * Allocates device memory on the calling thread's current device, which ONNX Runtime has set to the
 * session's. It is for the stream that gpupool_onnxruntime_use_stream() named for the device, else for any
 * stream.
 * @param size_bytes 1 or more: ONNX Runtime does not ask for 0 bytes (CUDAExternalAllocator::Alloc() in
 * cuda_allocator.cc)
 * @return memory that gpupool_onnxruntime_free() gives back; NULL, for which ONNX Runtime raises an error
 * that does not tell the reason: gpupool_error_text() does, in the same thread
 */
GPUPOOL_API void *gpupool_onnxruntime_alloc(size_t size_bytes);

/**
 * Gives memory back: on the stream that it was allocated for, or, where it is for any stream, behind all work
 * on the device. ONNX Runtime calls it when the kernels that use the memory are enqueued, and not when they
 * are done. NULL is nothing to give back.
 */
GPUPOOL_API void gpupool_onnxruntime_free(void *memory);

/** Gives what the default client keeps idle back to the daemon: gpupool_trim(). ONNX Runtime calls it when it
 * has freed memory that a session's initialisation had reserved (CUDAExternalAllocator::Free()). */
GPUPOOL_API void gpupool_onnxruntime_empty_cache(void);

/**
 * Names the stream of all sessions on a device, for memory that is allocated from now on. It is the stream
 * that the program passes to them as user_compute_stream. ONNX Runtime writes a new session's weights by
 * cudaMemcpy() on the default stream (gpu_data_transfer.cc): so make sessions before this call, or while no
 * work of theirs is under way on the stream. Outputs on the device that the program reads on another stream
 * are destroyed when that is done, or ordered before the stream's next work. Not with enable_cuda_graph.
 * @param device ordinal in this process; -1: the calling thread's current device
 * @param stream a created stream or NULL, the legacy default stream; GPUPOOL_NO_STREAM: memory is for any
 * stream again, as it is without this call
 * @return 0; the errors of gpupool_default() and gpupool_device_pool(); INVALID, without a text, for
 * GPUPOOL_PER_THREAD and GPUPOOL_OWN_STREAM; LIMIT, without a text, after 64 devices
 */
GPUPOOL_API int gpupool_onnxruntime_use_stream(int device, void *stream);
/** @} */

/**
 * @name CuPy
 * For cupy.cuda.CFunctionAllocator(param, malloc, free, owner), whose param is the stream
 * (cupy/cuda/memory.pyx of CuPy 14 and 15). It is passed to both functions.
 * @{
 */
/**
 * Allocates device memory. CuPy does not look at what it returns, but expects a C++ exception
 * (malloc_func_type in memory.pyx). So a failure is thrown as std::runtime_error, which is a RuntimeError
 * with gpupool's text in Python. A program without libstdc++ gets NULL.
 * @param stream a created stream or NULL, the legacy default stream; GPUPOOL_NO_STREAM, which is -1: memory
 * for any stream, as below cupy.cuda.MemoryPool. GPUPOOL_PER_THREAD fails
 * @param size_bytes 1 or more: CuPy does not ask for 0 bytes
 * @param device ordinal in this process
 * @return memory that gpupool_cupy_free() gives back
 */
GPUPOOL_API void *gpupool_cupy_malloc(void *stream, size_t size_bytes, int device);

/** Gives memory back. CuPy calls it when an array's last reference goes, which may be before its kernels are
 * done.
 * @param stream as given to gpupool_cupy_malloc() */
GPUPOOL_API void gpupool_cupy_free(void *stream, void *memory, int device);

/**
 * Allocates pinned memory, of the host pool near the calling thread. For a function that is given to
 * cupy.cuda.set_pinned_memory_allocator() or cupy.cuda.PinnedMemoryPool, which call it through Python: no
 * exception is thrown.
 * @param size_bytes 1 or more
 * @return memory that gpupool_cupy_free_pinned() gives back; NULL: gpupool_error_text() says why
 */
GPUPOOL_API void *gpupool_cupy_malloc_pinned(size_t size_bytes);

/** Gives pinned memory back. The GPU must be done with it: CuPy holds a block until an event that it recorded
 * behind its own copy is done (_add_to_watch_list() in cupy/cuda/pinned_memory.pyx). NULL is nothing to give
 * back. */
GPUPOOL_API void gpupool_cupy_free_pinned(void *memory);
/** @} */

#ifdef __cplusplus
}
#endif
#endif
