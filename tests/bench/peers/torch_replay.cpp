// SPDX-License-Identifier: Apache-2.0
//
// Replays allocation traces (tests/traces) through PyTorch's caching allocator, called from C++, each in five
// passes as ../replay.c does. Standard input names them, a path a line; each is answered at once by a JSON
// object in a line, with the peaks of the reserved and the live bytes, and the time of an operation.
// peers/build compiles it on a machine that has PyTorch.
#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "tests/bench/replay_times.h"
#include "tests/bench/trace.c"

namespace allocator = c10::cuda::CUDACachingAllocator;

static const unsigned PASSES = 5;

// The first of each row of statistics is the sum of the small blocks' pool and the large ones'.
static long long peak_reserved(void) {
    return (long long)allocator::getDeviceStats(0).reserved_bytes[0].peak;
}

static void replay_pass(const struct trace *trace, std::vector<c10::cuda::CUDAStream> &streams,
                        std::vector<void *> &blocks, struct replay_times *times) {
    replay_times_begin(times);
    for (size_t i = 0; i < trace->count; i++) {
        const struct trace_event *event = &trace->events[i];
        if (event->is_free)
            allocator::raw_delete(blocks[event->slot]);
        else
            blocks[event->slot] =
                allocator::raw_alloc_with_stream(event->size_bytes, streams[event->stream].stream());
        if (event->is_free)
            blocks[event->slot] = nullptr;
        replay_times_add(times);
    }
    for (void *&block : blocks) {
        if (block != nullptr)
            allocator::raw_delete(block);
        block = nullptr;
    }
}

static void replay(const struct trace *trace) {
    std::vector<c10::cuda::CUDAStream> streams;
    std::vector<void *> blocks(trace->slots, nullptr);
    struct replay_times times;

    for (uint32_t i = 0; i < trace->streams; i++)
        streams.push_back(c10::cuda::getStreamFromPool());
    replay_times_init(&times, trace->count * PASSES);
    allocator::emptyCache();
    allocator::resetPeakStats(0);
    replay_pass(trace, streams, blocks, &times);
    long long first_reserved = peak_reserved();
    allocator::resetPeakStats(0);
    for (unsigned pass = 1; pass < PASSES; pass++)
        replay_pass(trace, streams, blocks, &times);
    long long warm_reserved = peak_reserved();
    double warm_ns = replay_times_mean(&times, trace->count);
    uint32_t warm_p999_ns = replay_times_quantile(&times, trace->count, 0.999);
    times.count = trace->count;
    printf("{\"trace\": \"%s\", \"peak_live_bytes\": %llu, \"torch_peak_reserved_bytes\": %lld, "
           "\"warm_reserved_bytes\": %lld, \"first_ns\": %.1f, \"first_p999_ns\": %u, \"warm_ns\": %.1f, "
           "\"warm_p999_ns\": %u}\n",
           trace->name, (unsigned long long)trace->peak_live_bytes, first_reserved, warm_reserved,
           replay_times_mean(&times, 0), replay_times_quantile(&times, 0, 0.999), warm_ns, warm_p999_ns);
    replay_times_free(&times);
}

int main(void) {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    allocator::get();
    for (std::string path; std::getline(std::cin, path);) {
        struct trace trace;
        trace_read(&trace, path.c_str());
        replay(&trace);
        fflush(stdout);
        trace_free(&trace);
    }
    return 0;
}
