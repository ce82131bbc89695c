/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUPOOL_TENSORRT_HPP
#define GPUPOOL_TENSORRT_HPP
/**
 * Not run with an engine of TensorRT: compiled with its headers, and called through its interface.
 *
 * An allocator for TensorRT 10 and newer: device memory of engines, contexts, builders and output tensors
 * lies in the pools. It needs TensorRT's NvInferRuntime.h, C++11, and the client library. docs/libraries.md
 * has the lines of a program.
 *
 * The contract is that of nvinfer1::IGpuAsyncAllocator in NvInferRuntime.h (read in 10.0.1, 10.16.1
 * and 11.1.0):
 * - TensorRT calls it from several threads at the same time. All calls here are thread-safe.
 * - A failure is nullptr. TensorRT logs it without a reason; gpupool_error_text() has the reason, in the
 * thread that called.
 * - The alignment is at most that of cudaMalloc(). The pools' is 512 bytes.
 * - The object outlives all objects that use it.
 *
 * Streams. Memory that is asked for on a stream belongs to that stream's order: no call waits for the GPU.
 * TensorRT asks without a stream (nullptr, also by the deprecated allocate()) for memory that it uses on
 * streams that it does not name, such as a context's. That memory is idle when it is handed out, so any
 * stream may use it. Memory that is given back without a stream is lent again behind the legacy default
 * stream, and so behind all streams that were not created non-blocking. The program guarantees, as
 * cudaFreeAsync() would ask, that work of a non-blocking stream is done before the context or engine that it
 * uses is destroyed.
 */
#include <cstdint>
#include <stdexcept>

#include <NvInferRuntime.h>

#include <gpupool/gpupool.h>

#if NV_TENSORRT_MAJOR < 10
#error "gpupool/tensorrt.hpp needs TensorRT 10 or newer: IGpuAsyncAllocator is not there before"
#endif

namespace gpupool {

/** An nvinfer1::IGpuAsyncAllocator over one device's pool, and so an nvinfer1::IGpuAllocator for
 * setGpuAllocator(), and for IOutputAllocator implementations that ask for memory themselves. */
class TensorRtAllocator : public nvinfer1::IGpuAsyncAllocator {
  public:
    /**
     * @param device the ordinal of the device that the engines run on; -1: the calling thread's current one
     * @param client borrowed, one with a cache, which is closed after all memory went back; nullptr: the
     * default client
     * @throws std::runtime_error with gpupool_error_text(): no daemon, or no pool of the device
     */
    explicit TensorRtAllocator(int device = -1, gpupool_client *client = nullptr) : client_(client) {
        if ((client_ == nullptr && gpupool_default(&client_) < 0) ||
            gpupool_device_pool(client_, device, &pool_) < 0)
            throw std::runtime_error(gpupool_error_text());
    }

    /** Allocates memory, and waits for room as long as gpupool_alloc() does. flags are not used: each
     * allocation may be passed to reallocate(). */
    void *allocateAsync(uint64_t const size, uint64_t const alignment, nvinfer1::AllocatorFlags const flags,
                        cudaStream_t stream) noexcept override {
        static_cast<void>(flags);
        if (size == 0 || alignment > kAlignment)
            return nullptr;
        return gpupool_alloc(client_, pool_, size, stream == nullptr ? GPUPOOL_NO_STREAM : stream);
    }

    /** Gives memory back behind the work of a stream, and does not wait for it. nullptr is nothing to give
     * back. */
    bool deallocateAsync(void *const memory, cudaStream_t stream) noexcept override {
        return gpupool_free(memory, stream) == 0;
    }

    /** Returns the address again where the memory is large enough already, else nullptr, and the memory stays
     * as it is. It is not moved: TensorRT tells of no stream on which the contents could be copied. */
    void *reallocate(void *const memory, uint64_t alignment, uint64_t new_size) noexcept override {
        gpupool_buffer buffer;
        if (memory == nullptr || new_size == 0 || alignment > kAlignment ||
            gpupool_lookup(memory, nullptr, &buffer) < 0)
            return nullptr;
        return buffer.data == memory && new_size <= buffer.size_bytes ? memory : nullptr;
    }

  private:
    static constexpr uint64_t kAlignment = 512; /* of gpupool_alloc() */

    gpupool_client *client_;
    uint32_t pool_ = 0;
};

} /* namespace gpupool */
#endif
