/* SPDX-License-Identifier: Apache-2.0 */
/* Uses the allocator for PyTorch as PyTorch does: loads it late, calls it through std::function, and expects
 * failures to be thrown. The first argument is the library. */
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include <gpupool/gpupool.h>

typedef std::pair<unsigned long long, unsigned long long> pool_id;

static void *library;

template <typename Function> static std::function<Function> find(const char *name) {
    void *found = dlsym(library, name);
    if (found == nullptr)
        throw std::logic_error(dlerror());
    return reinterpret_cast<Function *>(found);
}

static void check(bool holds, const char *what) {
    if (!holds)
        throw std::logic_error(std::string(what) + ": " + gpupool_error_text());
}

static std::string thrown_by(const std::function<void()> &call) {
    try {
        call();
    } catch (const std::runtime_error &error) {
        return error.what();
    }
    throw std::logic_error("nothing was thrown");
}

static uint64_t device_leased(gpupool_client *client) {
    gpupool_pool pools[8];
    size_t count = 0;
    uint64_t leased_bytes = 0;

    check(gpupool_pools(client, pools, 8, &count) == 0, "pools");
    for (size_t i = 0; i < count; i++)
        leased_bytes += pools[i].kind == GPUPOOL_POOL_DEVICE ? pools[i].leased_bytes : 0;
    return leased_bytes;
}

/* As a torch.cuda.MemPool: segments, of which some go back and come again, and NULL where there is no room.
 */
static void try_segments(gpupool_client *client, void *stream) {
    auto allocate = find<void *(ssize_t, int, void *)>("gpupool_torch_pool_malloc");
    auto release = find<void(void *, ssize_t, int, void *)>("gpupool_torch_pool_free");
    const ssize_t mib = 1 << 20, sizes[] = {2 * mib, 20 * mib, 20 * mib, 34 * mib, 2 * mib};
    /* The plug-in waits 200 ms for the pool's growth, which a busy machine may take longer for. */
    auto try_again = [&](ssize_t size, void *on) {
        void *memory = nullptr;
        for (unsigned i = 0; i < 100 && memory == nullptr; i++)
            memory = allocate(size, 0, on);
        return memory;
    };
    std::vector<void *> segments;
    ssize_t sum = 0;

    check(allocate(0, 0, stream) == nullptr, "0 bytes are nothing");
    for (ssize_t size : sizes) {
        segments.push_back(try_again(size, stream));
        check(segments.back() != nullptr, "a segment");
        check(gpupool_set(client, 0, segments.back(), 1, uint64_t(size), stream) == 0, "set");
        sum += size;
    }
    check(device_leased(client) >= uint64_t(sum), "the pool knows of the segments");
    for (unsigned round = 0; round < 20; round++)
        for (size_t i = 0; i < segments.size(); i++) {
            release(segments[i], sizes[i], 0, stream);
            segments[i] = try_again(sizes[i], nullptr);
            check(segments[i] != nullptr, "a segment again");
        }
    check(allocate(ssize_t(1) << 50, 0, stream) == nullptr, "no room is NULL");
    check(allocate(512, 63, stream) == nullptr, "no device is NULL");
    release(nullptr, 0, 0, stream);
    release(&sum, 8, 0, stream); /* none of ours */
    for (size_t i = 0; i < segments.size(); i++)
        release(segments[i], sizes[i], 0, stream);
}

static void try_it() {
    auto allocate = find<void *(ssize_t, int, void *)>("gpupool_torch_malloc");
    auto release = find<void(void *, ssize_t, int, void *)>("gpupool_torch_free");
    auto record_stream = find<void(void *, void *)>("gpupool_torch_record_stream");
    auto begin_pool = find<void(int, pool_id, std::function<bool(void *)>)>("gpupool_torch_begin_pool");
    auto empty_cache = find<void()>("gpupool_torch_empty_cache");
    gpupool_client *client = nullptr;
    gpupool_buffer buffer;
    void *own, *other;

    check(allocate(0, 0, nullptr) == nullptr, "0 bytes are nothing");
    check(gpupool_default(&client) == 0, "default client");
    check(gpupool_stream_create(client, 0, &own) == 0 && gpupool_stream_create(client, 0, &other) == 0,
          "streams");
    for (unsigned round = 0; round < 100; round++) {
        std::vector<void *> tensors;
        for (ssize_t size = 1; size < 10000000; size *= 3)
            tensors.push_back(allocate(size, 0, own));
        for (void *tensor : tensors) {
            check(gpupool_lookup(tensor, nullptr, &buffer) == 0 && buffer.kind == GPUPOOL_POOL_DEVICE,
                  "lookup");
            if (round % 10 == 0) { /* work on another stream, which the memory has to wait for */
                check(gpupool_set(client, 0, tensor, 1, buffer.size_bytes, other) == 0, "set");
                record_stream(tensor, other);
                record_stream(tensor, other);
                record_stream(tensor, own);
            }
        }
        for (void *tensor : tensors)
            release(tensor, 1, 0, own);
        for (void *tensor : tensors)
            check(gpupool_lookup(tensor, nullptr, &buffer) != 0, "freed");
    }
    release(nullptr, 0, 0, own);
    std::string text = thrown_by([&] { allocate(ssize_t(1) << 50, 0, own); });
    check(text.find("1 PiB") != std::string::npos || text.find("1024 TiB") != std::string::npos,
          text.c_str());
    check(text.rfind("CUDA out of memory. ", 0) == 0, text.c_str()); // for loops that try again
    thrown_by([&] { allocate(512, 63, own); });
    thrown_by([&] { allocate(512, 1000, own); });
    text = thrown_by([&] { begin_pool(0, pool_id(1, 2), [](void *) { return true; }); });
    check(text.find("CUDA graphs") != std::string::npos, text.c_str());
    try_segments(client, own);
    empty_cache();
    check(device_leased(client) == 0, "everything went back");
    check(gpupool_stream_destroy(client, 0, own) == 0 && gpupool_stream_destroy(client, 0, other) == 0,
          "streams");
    gpupool_close(client);
}

int main(int argc, char **argv) {
    library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (library == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    try {
        try_it();
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    std::puts("as PyTorch does");
    return 0;
}
