/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ways to the driver's functions that hooks of dlsym() lose: a plug-in that is loaded with RTLD_DEEPBIND, several handles of
 * libcuda.so.1, RTLD_DEFAULT and RTLD_NEXT, and cuGetProcAddress() of the versions of CUDA 11, 12 and 13. "plugins PLUG-IN lent":
 * all memory is the pool's. "plugins PLUG-IN native": none is.
 */
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "turns.h"

#define OK(call) EXPECT((call) == 0)

using alloc_call = int (*)(CUdeviceptr *, size_t);
using free_call = int (*)(CUdeviceptr);
using find_call = CUresult (*)(const char *, void **, int, cuuint64_t);
using find_v2_call = CUresult (*)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

__global__ void fill(unsigned *words, unsigned count, unsigned seed) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        words[i] = (i + seed) * 2654435761u;
}

static uint64_t total;
static bool wanted;

template <typename Call> static Call find(void *handle, const char *name) {
    void *call = dlsym(handle, name);
    EXPECT(call != nullptr);
    return reinterpret_cast<Call>(call);
}

static void use(const char *way, alloc_call alloc, free_call release) {
    constexpr unsigned COUNT = 1u << 20;
    unsigned host[256];
    CUdeviceptr memory;

    EXPECT(alloc(&memory, COUNT * sizeof(unsigned)) == 0);
    if (is_lent(reinterpret_cast<void *>(memory)) != wanted) {
        std::fprintf(stderr, "%s: %s\n", way, wanted ? "not of the pool" : "of the pool");
        std::exit(1);
    }
    fill<<<COUNT / 256, 256>>>(reinterpret_cast<unsigned *>(memory), COUNT, static_cast<unsigned>(total));
    OK(cudaMemcpy(host, reinterpret_cast<unsigned *>(memory) + 5000, sizeof host, cudaMemcpyDeviceToHost));
    for (unsigned value : host)
        total = (total * 31 + value) & 0xffffffffffffull;
    EXPECT(release(memory) == 0);
}

int main(int argc, char **argv) {
    EXPECT(argc == 3);
    wanted = std::strcmp(argv[2], "lent") == 0;
    OK(cudaFree(nullptr));
    for (int flags : {RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND, RTLD_NOW | RTLD_GLOBAL}) {
        void *plugin = dlopen(argv[1], flags);
        if (plugin == nullptr)
            std::fprintf(stderr, "%s\n", dlerror());
        EXPECT(plugin != nullptr);
        use("a plug-in", find<alloc_call>(plugin, "plugin_alloc"), find<free_call>(plugin, "plugin_free"));
    }
    void *handles[3] = {dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), dlopen("libcuda.so.1", RTLD_LAZY | RTLD_GLOBAL),
                        dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD)};
    for (void *handle : handles) {
        EXPECT(handle != nullptr);
        use("a handle", find<alloc_call>(handle, "cuMemAlloc_v2"), find<free_call>(handle, "cuMemFree_v2"));
    }
    EXPECT(dlclose(handles[0]) == 0);
    for (void *handle : {RTLD_DEFAULT, RTLD_NEXT})
        use("RTLD_DEFAULT, RTLD_NEXT", find<alloc_call>(handle, "cuMemAlloc_v2"), find<free_call>(handle, "cuMemFree_v2"));
    EXPECT(dlsym(handles[1], "cuNoSuchFunction") == nullptr && dlerror() != nullptr);
    auto first = find<find_call>(handles[1], "cuGetProcAddress");
    auto second = find<find_v2_call>(handles[1], "cuGetProcAddress_v2");
    for (int version : {11030, 11080, 12000, 12080, 13000}) {
        for (cuuint64_t flags : {CU_GET_PROC_ADDRESS_DEFAULT, CU_GET_PROC_ADDRESS_LEGACY_STREAM, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM}) {
            void *alloc = nullptr, *release = nullptr;
            OK(first("cuMemAlloc", &alloc, version, flags));
            OK(first("cuMemFree", &release, version, flags));
            use("cuGetProcAddress", reinterpret_cast<alloc_call>(alloc), reinterpret_cast<free_call>(release));
            OK(second("cuMemAlloc", &alloc, version, flags, nullptr));
            OK(second("cuMemFree", &release, version, flags, nullptr));
            use("cuGetProcAddress_v2", reinterpret_cast<alloc_call>(alloc), reinterpret_cast<free_call>(release));
        }
    }
    std::printf("sum %llu\n", static_cast<unsigned long long>(total));
    return 0;
}
