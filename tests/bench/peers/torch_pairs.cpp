// SPDX-License-Identifier: Apache-2.0
//
// PyTorch's caching allocators as subjects of workload.h, called from C++ with no Python in the loop.
// --subject device: device memory on streams of PyTorch's own. Built with TORCH_PINNED it is --subject pinned
// instead, the pinned memory that Tensor.pin_memory() takes. peers/build compiles it on a machine that has
// PyTorch.
#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#ifdef TORCH_PINNED
#include <ATen/core/CachingHostAllocator.h>
#endif

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#ifdef TORCH_PINNED
static at::HostAllocator *host_allocator;

struct subject_block {
    alignas(c10::DataPtr) unsigned char data[sizeof(c10::DataPtr)]; // made by take, ended by give
};

static inline void subject_take(struct subject_block *block, uint64_t size_bytes, void *) {
    new (block->data) c10::DataPtr(host_allocator->allocate(size_bytes));
}

static inline void subject_give(struct subject_block *block, void *) {
    reinterpret_cast<c10::DataPtr *>(block->data)->~DataPtr();
}
#else
struct subject_block {
    void *memory;
};

static inline void subject_take(struct subject_block *block, uint64_t size_bytes, void *stream) {
    block->memory =
        c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(size_bytes, static_cast<cudaStream_t>(stream));
}

static inline void subject_give(struct subject_block *block, void *) {
    c10::cuda::CUDACachingAllocator::raw_delete(block->memory);
}
#endif

static void *subject_stream_new(void) {
    return c10::cuda::getStreamFromPool().stream();
}

static void subject_settle(void *stream) {
    c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(stream), 0).synchronize();
}

static void subject_empty(void) {
    c10::cuda::CUDACachingAllocator::emptyCache();
}

static void subject_memory(uint64_t *ret_reserved, uint64_t *ret_leased) {
    *ret_leased = 0;
    // The first of each row of statistics is the sum of the small blocks' pool and the large ones'.
    *ret_reserved =
        static_cast<uint64_t>(c10::cuda::CUDACachingAllocator::getDeviceStats(0).reserved_bytes[0].current);
}

#include "tests/bench/workload.h"

int main(int argc, char **argv) {
    struct workload work = workload_parse(argc, argv);

    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
#ifdef TORCH_PINNED
    if (strcmp(work.subject, "pinned") != 0)
        workload_usage(argv[0]);
    host_allocator = at::getHostAllocator(at::kCUDA);
#else
    if (strcmp(work.subject, "device") != 0)
        workload_usage(argv[0]);
#endif
    workload_run(&work);
    return 0;
}
