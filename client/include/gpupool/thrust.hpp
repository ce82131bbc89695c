/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUPOOL_THRUST_HPP
#define GPUPOOL_THRUST_HPP
/**
 * An allocator for Thrust: the memory of a thrust::device_vector, and the temporary memory of algorithms. It
 * needs Thrust's headers and nvcc (or another CUDA compiler), and the client library. docs/libraries.md has
 * the lines of a program. A program with RMM takes RMM's thrust allocator and execution policy over
 * <gpupool/rmm.hpp> instead.
 *
 * Streams. An allocator has one stream. Memory is allocated and given back in that stream's order, and no
 * call waits for the GPU. The program guarantees that all work on the memory is on that stream, or ordered
 * before what is enqueued there next. Thrust itself works on its default stream unless a policy says
 * .on(stream): the vector's stream is then the default one, or the program synchronises.
 */
#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include <cuda_runtime_api.h>
#include <thrust/detail/config.h>
#include <thrust/device_malloc_allocator.h>
#include <thrust/system/detail/bad_alloc.h>

#include <gpupool/gpupool.h>

namespace gpupool {

#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
#define GPUPOOL_THRUST_STREAM cudaStreamPerThread
#else
#define GPUPOOL_THRUST_STREAM nullptr
#endif

/** An allocator over one device's pool, in a stream's order. A small value; allocators of one stream are
 * equal. Safe to use from several threads. */
template <typename T> class thrust_allocator : public thrust::device_malloc_allocator<T> {
  public:
    using pointer = typename thrust::device_malloc_allocator<T>::pointer;
    using size_type = typename thrust::device_malloc_allocator<T>::size_type;
    template <typename U> struct rebind { using other = thrust_allocator<U>; };

    /**
     * @param stream the stream of all work on the memory; left out: Thrust's default stream, which is the
     * legacy one, or with --default-stream per-thread the calling thread's
     * @param device the ordinal in this process; -1: the calling thread's current one
     * @param client borrowed, one with a cache, which is closed after all memory went back; nullptr: the
     * default client
     * @throws std::runtime_error with gpupool_error_text(): no daemon, or no pool of the device
     */
    explicit thrust_allocator(cudaStream_t stream = GPUPOOL_THRUST_STREAM, int device = -1,
                              gpupool_client *client = nullptr)
        : client_(client), stream_(stream) {
        if ((client_ == nullptr && gpupool_default(&client_) < 0) ||
            gpupool_device_pool(client_, device, &pool_) < 0)
            throw std::runtime_error(gpupool_error_text());
    }
    template <typename U>
    thrust_allocator(const thrust_allocator<U> &other)
        : client_(other.client_), stream_(other.stream_), pool_(other.pool_) {}

    /** Allocates room for elements. Throws thrust::system::detail::bad_alloc with gpupool's text. */
    pointer allocate(size_type count) {
        if (count == 0)
            return pointer();
        if (count > SIZE_MAX / sizeof(T))
            throw thrust::system::detail::bad_alloc("gpupool: more bytes than a size can say");
        void *memory = gpupool_alloc(client_, pool_, count * sizeof(T), stream_);
        if (memory == nullptr)
            throw thrust::system::detail::bad_alloc(gpupool_error_text());
        return pointer(static_cast<T *>(memory));
    }
    /** Gives memory back behind the stream's work. Memory that is refused returns with the process. */
    void deallocate(pointer memory, size_type) noexcept {
        static_cast<void>(gpupool_free(memory.get(), stream_));
    }

    bool operator==(const thrust_allocator &other) const noexcept {
        return client_ == other.client_ && stream_ == other.stream_ && pool_ == other.pool_;
    }
    bool operator!=(const thrust_allocator &other) const noexcept { return !(*this == other); }

  private:
    template <typename U> friend class thrust_allocator;

    gpupool_client *client_;
    cudaStream_t stream_;
    uint32_t pool_ = 0;
};

#undef GPUPOOL_THRUST_STREAM

} /* namespace gpupool */
#endif
