/* SPDX-License-Identifier: Apache-2.0 */
/* The resources behind CCCL's type-erased references, which RMM and CCCL's containers call them by. */
#include <gpupool/rmm.hpp>

#include "tests/package/cplusplus.h"

#include <stdexcept>

/* The calls by the names of the CCCL at hand. */
#if CCCL_VERSION >= 3001000
using device_ref = cuda::mr::resource_ref<cuda::mr::device_accessible>;
using host_ref = cuda::mr::resource_ref<cuda::mr::host_accessible, cuda::mr::device_accessible>;
template <typename Ref>
static void *allocate(Ref ref, cuda::stream_ref stream, size_t bytes, size_t alignment) {
    return ref.allocate(stream, bytes, alignment);
}
template <typename Ref> static void deallocate(Ref ref, cuda::stream_ref stream, void *memory, size_t bytes) {
    ref.deallocate(stream, memory, bytes, 256);
}
template <typename Ref> static void *allocate_sync(Ref ref, size_t bytes) {
    return ref.allocate_sync(bytes, 256);
}
template <typename Ref> static void deallocate_sync(Ref ref, void *memory, size_t bytes) {
    ref.deallocate_sync(memory, bytes, 256);
}
#else
using device_ref = cuda::mr::async_resource_ref<cuda::mr::device_accessible>;
using host_ref = cuda::mr::async_resource_ref<cuda::mr::host_accessible, cuda::mr::device_accessible>;
template <typename Ref>
static void *allocate(Ref ref, cuda::stream_ref stream, size_t bytes, size_t alignment) {
    return ref.allocate_async(bytes, alignment, stream);
}
template <typename Ref> static void deallocate(Ref ref, cuda::stream_ref stream, void *memory, size_t bytes) {
    ref.deallocate_async(memory, bytes, 256, stream);
}
template <typename Ref> static void *allocate_sync(Ref ref, size_t bytes) {
    return ref.allocate(bytes, 256);
}
template <typename Ref> static void deallocate_sync(Ref ref, void *memory, size_t bytes) {
    ref.deallocate(memory, bytes, 256);
}
#endif

template <typename Ref> static void try_resource(gpupool_client *client, Ref ref, uint32_t kind, void *own) {
    cuda::stream_ref stream(static_cast<cudaStream_t>(own));
    gpupool_buffer buffer;

    for (size_t bytes = 1; bytes < 10000000; bytes *= 5) {
        void *memory = allocate(ref, stream, bytes, 256);
        check(reinterpret_cast<uintptr_t>(memory) % 512 == 0, "alignment");
        check(gpupool_lookup(memory, nullptr, &buffer) == 0 && buffer.kind == kind, "memory of the pool");
        check(gpupool_set(client, 0, memory, 1, bytes, own) == 0, "set");
        deallocate(ref, stream, memory, bytes);
        void *idle = allocate_sync(ref, bytes);
        check(gpupool_lookup(idle, nullptr, &buffer) == 0 && buffer.kind == kind, "memory of the pool");
        deallocate_sync(ref, idle, bytes);
    }
    check(allocate(ref, stream, 0, 256) == nullptr, "0 bytes are nullptr");
    deallocate(ref, stream, nullptr, 0);
    try {
        allocate(ref, stream, size_t(1) << 50, 256);
        check(false, "there is no such memory");
    } catch (const std::bad_alloc &error) {
        check(std::string(error.what()).find("1 PiB") != std::string::npos, error.what());
    }
    try {
        allocate(ref, stream, 4096, 4096);
        check(false, "there is no such alignment");
    } catch (const std::invalid_argument &) {
    }
    check(gpupool_stream_synchronize(client, 0, own) == 0, "synchronize");
}

static void try_it(gpupool_client *client) {
    gpupool::device_resource device(0, client), copy = device, by_default(0);
    gpupool::host_resource host(-1, client);
    void *own = nullptr;

    check(gpupool_stream_create(client, 0, &own) == 0, "stream");
    check(copy == device && device_ref(copy) == device_ref(device), "copies are equal");
    check(by_default != device, "another client's pool is another one");
    try_resource(client, device_ref(device), GPUPOOL_POOL_DEVICE, own);
    try_resource(client, host_ref(host), GPUPOOL_POOL_HOST, own);
#if CCCL_VERSION >= 3002000
    cuda::mr::any_resource<cuda::mr::device_accessible> any(device);
    cuda::stream_ref stream(static_cast<cudaStream_t>(own));
    void *memory = any.allocate(stream, 4096, 256);
    check(memory != nullptr, "an owner of a copy");
    any.deallocate(stream, memory, 4096, 256);
#endif
    check(gpupool_trim(client, nullptr) == 0, "trim");
    check(gpupool_stream_destroy(client, 0, own) == 0, "stream");
    try {
        gpupool::device_resource none(63);
        check(false, "there is no such device");
    } catch (const std::runtime_error &error) {
        check(std::string(error.what()).find("63") != std::string::npos, error.what());
    }
}

int main() {
    return run("cccl", try_it);
}
