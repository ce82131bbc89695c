// SPDX-License-Identifier: Apache-2.0
//
// Replays allocation traces (tests/traces) through PyTorch's caching allocator, called from C++, and says
// what it reserved at most, beside what was live at most. One JSON object a line:
//     torch_replay TRACE…
// peers/build compiles it on a machine that has PyTorch.
#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "tests/bench/trace.c"

namespace allocator = c10::cuda::CUDACachingAllocator;

static void replay(const struct trace *trace) {
    std::vector<c10::cuda::CUDAStream> streams;
    std::vector<void *> blocks(trace->slots, nullptr);

    for (uint32_t i = 0; i < trace->streams; i++)
        streams.push_back(c10::cuda::getStreamFromPool());
    allocator::emptyCache();
    allocator::resetPeakStats(0);
    auto start = std::chrono::steady_clock::now();
    for (size_t i = 0; i < trace->count; i++) {
        const struct trace_event *event = &trace->events[i];
        if (event->is_free)
            allocator::raw_delete(blocks[event->slot]);
        else
            blocks[event->slot] =
                allocator::raw_alloc_with_stream(event->size_bytes, streams[event->stream].stream());
        if (event->is_free)
            blocks[event->slot] = nullptr;
    }
    std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
    // The first of each row of statistics is the sum of the small blocks' pool and the large ones'.
    int64_t reserved = allocator::getDeviceStats(0).reserved_bytes[0].peak;
    printf("{\"trace\": \"%s\", \"peak_live_bytes\": %llu, \"torch_peak_reserved_bytes\": %lld, "
           "\"operation_ns\": %.1f}\n",
           trace->name, (unsigned long long)trace->peak_live_bytes, (long long)reserved,
           time.count() / (double)trace->count);
    for (void *block : blocks)
        if (block != nullptr)
            allocator::raw_delete(block);
}

int main(int argc, char **argv) {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    allocator::get();
    for (int i = 1; i < argc; i++) {
        struct trace trace;
        trace_read(&trace, argv[i]);
        replay(&trace);
        trace_free(&trace);
    }
    return 0;
}
