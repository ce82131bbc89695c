/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA program that knows nothing of gpupool, for a real GPU: it is built with the static runtime and with
 * the shared one, and run natively and by gpupoolctl run. It uses the runtime and the driver, and writes one
 * line "sum N" of what its kernels made, which is the same in all of them. With the argument "lent" it checks
 * that its memory is the pool's; with "native", that it is not.
 */
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "programs/turns.h"

static bool wanted;

static bool is_lent(CUdeviceptr memory) {
    return is_lent(reinterpret_cast<void *>(memory));
}

__global__ void fill(unsigned *words, unsigned count, unsigned seed) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        words[i] = (i + seed) * 2654435761u;
}

static uint64_t sum_of(unsigned *words, unsigned count, unsigned seed) {
    unsigned *host;
    uint64_t sum = 0;

    EXPECT(cudaMallocHost(reinterpret_cast<void **>(&host), count * sizeof *host) == cudaSuccess);
    EXPECT(is_lent(host) == wanted);
    fill<<<(count + 255) / 256, 256>>>(words, count, seed);
    EXPECT(cudaMemcpy(host, words, count * sizeof *host, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (unsigned i = 0; i < count; i++)
        sum += host[i];
    EXPECT(cudaFreeHost(host) == cudaSuccess);
    return sum;
}

static uint64_t by_runtime() {
    uint64_t sum = 0;
    for (unsigned round = 0; round < 50; round++) {
        unsigned count = 1000 + round * 77777, *words;
        EXPECT(cudaMalloc(reinterpret_cast<void **>(&words), count * sizeof *words) == cudaSuccess);
        EXPECT(is_lent(words) == wanted);
        sum += sum_of(words, count, round);
        EXPECT((round % 2 == 0 ? cudaFree(words) : cudaFreeAsync(words, nullptr)) == cudaSuccess || !wanted);
    }
    return sum;
}

/* The runtime's refusal is pending, and can be cleared. */
static void refused() {
    void *memory = reinterpret_cast<void *>(7);
    EXPECT(cudaMalloc(&memory, size_t{1} << 46) == cudaErrorMemoryAllocation);
    EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation && cudaGetLastError() == cudaSuccess);
    EXPECT(cudaFree(&memory) != cudaSuccess);
    (void)cudaGetLastError();
}

/* Writes slowly, so that memory that came back too early would be overwritten. */
__global__ static void write_slowly(unsigned *words, unsigned count, unsigned value) {
    for (long long end = clock64() + 20000000; clock64() < end;) {
    }
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x)
        words[i] = value;
}

/* Memory of the default pool is in the order of streams; pools of the program's own stay CUDA's. */
static void stream_ordered() {
    const unsigned count = 1 << 18;
    cudaStream_t first, second;
    void *memory, *other;
    unsigned last = 0;
    cudaMemPool_t pool;
    cudaMemPoolProps properties = {};

    EXPECT(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking) == cudaSuccess);
    EXPECT(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking) == cudaSuccess);
    for (unsigned i = 0; i < 20; i++) {
        EXPECT(cudaMallocAsync(&memory, count * 4, first) == cudaSuccess && is_lent(memory) == wanted);
        write_slowly<<<1, 256, 0, first>>>(static_cast<unsigned *>(memory), count, 1);
        EXPECT(cudaFreeAsync(memory, first) == cudaSuccess);
        EXPECT(cudaMallocAsync(&other, count * 4, second) == cudaSuccess && is_lent(other) == wanted);
        EXPECT(cudaMemsetAsync(other, 2, count * 4, second) == cudaSuccess);
        EXPECT(cudaStreamSynchronize(first) == cudaSuccess);
        EXPECT(cudaMemcpyAsync(&last, static_cast<char *>(other) + (count - 1) * 4, 4, cudaMemcpyDeviceToHost,
                               second) == cudaSuccess);
        EXPECT(cudaStreamSynchronize(second) == cudaSuccess && last == 0x02020202);
        EXPECT(cudaFreeAsync(other, second) == cudaSuccess);
    }
    EXPECT(cudaStreamDestroy(first) == cudaSuccess && cudaStreamDestroy(second) == cudaSuccess);
    EXPECT(cudaMallocAsync(&memory, 1 << 20, nullptr) == cudaSuccess && is_lent(memory) == wanted);
    EXPECT(cudaFreeAsync(memory, nullptr) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess);
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    EXPECT(cudaMemPoolCreate(&pool, &properties) == cudaSuccess);
    EXPECT(cudaMallocFromPoolAsync(&memory, 1 << 20, pool, nullptr) == cudaSuccess && !is_lent(memory));
    EXPECT(cudaFreeAsync(memory, nullptr) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess);
    EXPECT(cudaMemPoolDestroy(pool) == cudaSuccess);
}

/* A handle of a stream of the CUDA that is asked, and what it tells of memory on loan. */
static void answers() {
    size_t free_bytes = 0, total_bytes = 0, after = 0, range = 0;
    void *memory;
    CUdeviceptr base = 0;

    EXPECT(cudaMalloc(&memory, 3 << 20) == cudaSuccess && is_lent(memory) == wanted);
    EXPECT(cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess && free_bytes <= total_bytes &&
           free_bytes > 0);
    EXPECT(cudaMemGetInfo(&after, &total_bytes) == cudaSuccess && after <= total_bytes);
    auto driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    auto find_range = reinterpret_cast<int (*)(CUdeviceptr *, size_t *, CUdeviceptr)>(
        dlsym(driver, "cuMemGetAddressRange_v2"));
    EXPECT(find_range != nullptr &&
           find_range(&base, &range, reinterpret_cast<CUdeviceptr>(memory) + 4096) == 0);
    if (wanted)
        EXPECT(base == reinterpret_cast<CUdeviceptr>(memory) && range == 3 << 20);
    EXPECT(cudaFree(memory) == cudaSuccess);
}

template <typename Call> static Call find(void *driver, const char *name) {
    void *call = dlsym(driver, name);
    EXPECT(call != nullptr);
    return reinterpret_cast<Call>(call);
}

static uint64_t by_driver() {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    EXPECT(driver != nullptr);
    auto alloc = find<CUresult (*)(CUdeviceptr *, size_t)>(driver, "cuMemAlloc_v2");
    auto pitched =
        find<CUresult (*)(CUdeviceptr *, size_t *, size_t, size_t, unsigned)>(driver, "cuMemAllocPitch_v2");
    auto release = find<CUresult (*)(CUdeviceptr)>(driver, "cuMemFree_v2");
    auto create = find<CUresult (*)(CUcontext *, unsigned, CUdevice)>(driver, "cuCtxCreate_v2");
    auto destroy = find<CUresult (*)(CUcontext)>(driver, "cuCtxDestroy_v2");
    CUdeviceptr memory = 7, rows;
    CUcontext context;
    size_t pitch;

    EXPECT(alloc(&memory, size_t{1} << 46) == CUDA_ERROR_OUT_OF_MEMORY && (memory == 7 || !wanted));
    EXPECT(pitched(&rows, &pitch, 1000, 100, 4) == CUDA_SUCCESS && is_lent(rows) == wanted && pitch >= 1000);
    EXPECT(alloc(&memory, 1 << 20) == CUDA_SUCCESS && is_lent(memory) == wanted);
    uint64_t sum = sum_of(reinterpret_cast<unsigned *>(memory), 1 << 18, 99);
    EXPECT(release(memory) == CUDA_SUCCESS && release(rows) == CUDA_SUCCESS);
    EXPECT(release(memory) == CUDA_ERROR_INVALID_VALUE);
    EXPECT(create(&context, 0, 0) == CUDA_SUCCESS); /* current, and not the primary one */
    EXPECT(alloc(&memory, 1 << 20) == CUDA_SUCCESS && !is_lent(memory) && release(memory) == CUDA_SUCCESS);
    EXPECT(destroy(context) == CUDA_SUCCESS);
    return sum;
}

int main(int argc, char **argv) {
    wanted = argc > 1 && std::strcmp(argv[1], "lent") == 0;
    uint64_t sum = by_runtime();
    refused();
    stream_ordered();
    answers();
    EXPECT(cudaSetDevice(0) == cudaSuccess);
    sum += by_driver();
    EXPECT(cudaSetDevice(0) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess);
    sum += by_runtime();
    std::printf("sum %llu\n", static_cast<unsigned long long>(sum));
    EXPECT(cudaDeviceReset() == cudaSuccess);
    return 0;
}
