/* SPDX-License-Identifier: Apache-2.0 */
/* TensorRT's allocator, called through TensorRT's base classes, as TensorRT does. */
#include <gpupool/tensorrt.hpp>

#include "tests/package/cplusplus.h"

#include <type_traits>
#include <vector>

static_assert(std::is_base_of<nvinfer1::IGpuAllocator, gpupool::TensorRtAllocator>::value,
              "for setGpuAllocator()");
static_assert(!std::is_abstract<gpupool::TensorRtAllocator>::value, "nothing is left to implement");

static void try_streams(gpupool_client *client, nvinfer1::IGpuAsyncAllocator &allocator) {
    void *own, *other;

    check(gpupool_stream_create(client, 0, &own) == 0 && gpupool_stream_create(client, 0, &other) == 0,
          "streams");
    cudaStream_t stream = static_cast<cudaStream_t>(own);
    for (unsigned round = 0; round < 20; round++) {
        std::vector<void *> tensors;
        for (uint64_t size = 1; size < 10000000; size *= 5) {
            void *memory = allocator.allocateAsync(size, round % 2 ? 256 : 0, 0, stream);
            check(memory != nullptr && reinterpret_cast<uintptr_t>(memory) % 512 == 0, "memory of a stream");
            check(gpupool_set(client, 0, memory, 1, size, own) == 0, "set");
            tensors.push_back(memory);
        }
        for (void *memory : tensors)
            check(allocator.deallocateAsync(memory, stream), "deallocate");
    }
    void *first = allocator.allocateAsync(5 << 20, 256, 0, stream);
    check(allocator.deallocateAsync(first, stream), "deallocate");
    void *again = allocator.allocateAsync(5 << 20, 256, 0, stream);
    check(again == first, "memory of a stream serves the stream again");
    check(allocator.deallocateAsync(again, static_cast<cudaStream_t>(other)), "on another stream");
    check(gpupool_stream_synchronize(client, 0, own) == 0, "synchronize");
    check(gpupool_trim(client, nullptr) == 0, "trim");
    check(gpupool_stream_destroy(client, 0, own) == 0 && gpupool_stream_destroy(client, 0, other) == 0,
          "streams");
}

/* The calls without a stream, which TensorRT has deprecated and still makes. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static void try_no_stream(gpupool_client *client, nvinfer1::IGpuAllocator &allocator) {
    gpupool_buffer buffer;

    void *weights = allocator.allocate(1 << 20, 256, 0);
    check(weights != nullptr && gpupool_lookup(weights, nullptr, &buffer) == 0, "weights");
    check(buffer.kind == GPUPOOL_POOL_DEVICE && buffer.device == 0, "device memory");
    check(gpupool_set(client, 0, weights, 1, 1 << 20, nullptr) == 0, "set");
    check(allocator.reallocate(weights, 256, 1 << 19) == weights, "a smaller size stays in place");
    check(allocator.reallocate(weights, 256, uint64_t(1) << 40) == nullptr, "a larger one does not fit");
    check(gpupool_lookup(weights, nullptr, &buffer) == 0, "and the memory stays");
    check(allocator.reallocate(&buffer, 256, 1) == nullptr, "none of the pools' memory");
    check(allocator.deallocate(weights), "deallocate");
    check(!allocator.deallocate(weights), "which was given back already");
    check(allocator.deallocate(nullptr), "nothing");
}
#pragma GCC diagnostic pop

static void try_it(gpupool_client *client) {
    gpupool::TensorRtAllocator allocator(0, client);
    nvinfer1::IGpuAllocator &base = allocator;

    check(std::string(base.getInterfaceInfo().kind) == "IGpuAllocator",
          "TensorRT's own name of the interface");
    check(base.allocateAsync(0, 0, 0, nullptr) == nullptr, "0 bytes are nullptr");
    check(base.allocateAsync(4096, 4096, 0, nullptr) == nullptr, "an alignment beyond cudaMalloc()'s");
    check(base.allocateAsync(uint64_t(1) << 50, 256, 0, nullptr) == nullptr, "no room is nullptr");
    check(gpupool_error_number() == GPUPOOL_E_TOO_LARGE, "and the reason is told");
    try_streams(client, allocator);
    try_no_stream(client, base);
    try {
        gpupool::TensorRtAllocator none(63);
        check(false, "there is no such device");
    } catch (const std::runtime_error &error) {
        check(std::string(error.what()).find("63") != std::string::npos, error.what());
    }
}

int main() {
    return run("tensorrt", try_it);
}
