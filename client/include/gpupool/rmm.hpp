/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUPOOL_RMM_HPP
#define GPUPOOL_RMM_HPP
/**
 * Not run with RMM on a GPU: compiled with its headers, and called through CCCL's interface.
 *
 * Memory resources for RMM, and for whatever else takes a cuda::mr resource of CCCL (libcu++):
 * cuda::mr::resource_ref, cuda::mr::any_resource, CCCL's buffers. device_resource is device memory,
 * host_resource is pinned memory. docs/libraries.md has the lines of a program.
 *
 * They need CCCL's <cuda/memory_resource>, C++17, and the client library. CCCL has renamed the concept:
 * - CCCL 3.1 and newer: cuda::mr::resource has allocate(stream, bytes, alignment), and allocate_sync()
 * without a stream (libcudacxx/include/cuda/__memory_resource/resource.h, read in 3.1.0 and 3.6.0).
 * - CCCL 3.0, which CUDA 13.0 has: cuda::mr::async_resource has allocate_async(bytes, alignment, stream), and
 *   allocate() without a stream. It is experimental there: the program defines
 *   LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE before its first header of CCCL.
 * The functions of a resource have the names that the CCCL at hand asks for.
 *
 * Streams. Memory that is allocated on a stream belongs to that stream's order: it may be used there at once,
 * and elsewhere behind that. Given back on a stream, it is lent again behind the work of that stream, and no
 * call waits for the GPU. Allocated without a stream, it may be used by any stream at once; given back
 * without one, it must not be in use any more (as CCCL says of deallocate_sync() in
 * cuda/__memory_pool/memory_pool_base.h). Host memory that is allocated on a stream may be used at once.
 *
 * A resource is a small value: copies are equal, and use the same pool. All functions are thread-safe. Memory
 * is aligned to 512 bytes, which is more than CCCL's default of 256; a larger alignment is
 * std::invalid_argument, as with CCCL's own. 0 bytes are nullptr. A failure is gpupool::bad_alloc, after the
 * wait that gpupool_alloc() makes for room. Giving memory back cannot fail: memory that is refused returns
 * with the process.
 */
#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>

#include <cuda/std/version>

#if CCCL_VERSION < 3000000
#error "gpupool/rmm.hpp needs CCCL 3.0 (CUDA 13.0) or newer"
#elif CCCL_VERSION < 3001000 && !defined(LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
#error                                                                                                       \
    "define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE for the whole program: CCCL 3.0 hides its memory resources"
#endif

#include <cuda/memory_resource>

#include <gpupool/gpupool.h>

namespace gpupool {

/** A std::bad_alloc that has gpupool's text: the size asked, what the pool holds, and the holders. */
class bad_alloc : public std::bad_alloc {
  public:
    explicit bad_alloc(const char *text) : text_(text) {}
    const char *what() const noexcept override { return text_.c_str(); }

  private:
    std::string text_;
};

/** A pool as a resource, without the properties that say which processors reach the memory. */
class pool_resource {
  public:
    static constexpr std::size_t default_alignment = 256; /**< cuda::mr::default_cuda_malloc_alignment */

#if CCCL_VERSION >= 3001000
    void *allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = default_alignment) {
        return take(bytes, alignment, stream.get());
    }
    void deallocate(cuda::stream_ref stream, void *memory, std::size_t,
                    std::size_t = default_alignment) noexcept {
        static_cast<void>(gpupool_free(memory, stream.get()));
    }
    void *allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
        return take(bytes, alignment, GPUPOOL_NO_STREAM);
    }
    void deallocate_sync(void *memory, std::size_t, std::size_t = default_alignment) noexcept {
        static_cast<void>(gpupool_free(memory, GPUPOOL_NO_STREAM));
    }
#else
    void *allocate_async(std::size_t bytes, std::size_t alignment, cuda::stream_ref stream) {
        return take(bytes, alignment, stream.get());
    }
    void *allocate_async(std::size_t bytes, cuda::stream_ref stream) {
        return take(bytes, default_alignment, stream.get());
    }
    void deallocate_async(void *memory, std::size_t, std::size_t, cuda::stream_ref stream) noexcept {
        static_cast<void>(gpupool_free(memory, stream.get()));
    }
    void deallocate_async(void *memory, std::size_t, cuda::stream_ref stream) noexcept {
        static_cast<void>(gpupool_free(memory, stream.get()));
    }
    void *allocate(std::size_t bytes, std::size_t alignment = default_alignment) {
        return take(bytes, alignment, GPUPOOL_NO_STREAM);
    }
    void deallocate(void *memory, std::size_t, std::size_t = default_alignment) noexcept {
        static_cast<void>(gpupool_free(memory, GPUPOOL_NO_STREAM));
    }
#endif

  protected:
    pool_resource(gpupool_client *client, uint32_t pool) : client_(client), pool_(pool) {}

    static gpupool_client *client_or_default(gpupool_client *client) {
        check(client != nullptr ? 0 : gpupool_default(&client));
        return client;
    }
    static void check(int result) {
        if (result < 0)
            throw std::runtime_error(gpupool_error_text());
    }
    bool is_same(const pool_resource &other) const noexcept {
        return client_ == other.client_ && pool_ == other.pool_;
    }

  private:
    void *take(std::size_t bytes, std::size_t alignment, void *stream) {
        if (alignment == 0 || alignment > 512 || (alignment & (alignment - 1)) != 0)
            throw std::invalid_argument("gpupool: an alignment is a power of two up to 512");
        if (bytes == 0)
            return nullptr;
        void *memory = gpupool_alloc(client_, pool_, bytes, stream);
        if (memory == nullptr)
            throw bad_alloc(gpupool_error_text());
        return memory;
    }

    gpupool_client *client_;
    uint32_t pool_;
};

/** Device memory of one GPU. */
class device_resource : public pool_resource {
  public:
    /**
     * @param device the ordinal in this process; -1: the calling thread's current one
     * @param client borrowed, one with a cache, which is closed after all memory went back; nullptr: the
     * default client
     * @throws std::runtime_error with gpupool_error_text(): no daemon, or no pool of the device
     */
    explicit device_resource(int device = -1, gpupool_client *client = nullptr)
        : device_resource(client_or_default(client), device) {}

    friend bool operator==(const device_resource &a, const device_resource &b) noexcept {
        return a.is_same(b);
    }
    friend bool operator!=(const device_resource &a, const device_resource &b) noexcept {
        return !a.is_same(b);
    }
    friend constexpr void get_property(const device_resource &, cuda::mr::device_accessible) noexcept {}
#if CCCL_VERSION >= 3002000
    using default_queries = cuda::mr::properties_list<cuda::mr::device_accessible>;
#endif

  private:
    device_resource(gpupool_client *client, int device) : pool_resource(client, find(client, device)) {}

    static uint32_t find(gpupool_client *client, int device) {
        uint32_t pool = 0;
        check(gpupool_device_pool(client, device, &pool));
        return pool;
    }
};

/** Pinned host memory of one NUMA node, which GPUs reach as well. */
class host_resource : public pool_resource {
  public:
    /**
     * @param numa_node -1: the one where the calling thread runs
     * @param client as device_resource's
     * @throws std::runtime_error with gpupool_error_text(): no daemon, or no pool of the node
     */
    explicit host_resource(int numa_node = -1, gpupool_client *client = nullptr)
        : host_resource(client_or_default(client), numa_node) {}

    friend bool operator==(const host_resource &a, const host_resource &b) noexcept { return a.is_same(b); }
    friend bool operator!=(const host_resource &a, const host_resource &b) noexcept { return !a.is_same(b); }
    friend constexpr void get_property(const host_resource &, cuda::mr::device_accessible) noexcept {}
    friend constexpr void get_property(const host_resource &, cuda::mr::host_accessible) noexcept {}
#if CCCL_VERSION >= 3002000
    using default_queries = cuda::mr::properties_list<cuda::mr::host_accessible, cuda::mr::device_accessible>;
#endif

  private:
    host_resource(gpupool_client *client, int numa_node) : pool_resource(client, find(client, numa_node)) {}

    static uint32_t find(gpupool_client *client, int numa_node) {
        uint32_t pool = 0;
        check(gpupool_host_pool(client, numa_node, &pool));
        return pool;
    }
};

#if CCCL_VERSION >= 3001000
static_assert(cuda::mr::resource_with<device_resource, cuda::mr::device_accessible>, "the concept of CCCL");
static_assert(cuda::mr::resource_with<host_resource, cuda::mr::host_accessible, cuda::mr::device_accessible>,
              "the concept of CCCL");
#else
static_assert(cuda::mr::async_resource_with<device_resource, cuda::mr::device_accessible>,
              "the concept of CCCL");
static_assert(
    cuda::mr::async_resource_with<host_resource, cuda::mr::host_accessible, cuda::mr::device_accessible>,
    "the concept of CCCL");
#endif

} /* namespace gpupool */
#endif
