/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two allocators for PyTorch (torch.cuda.memory.CUDAPluggableAllocator) over the process's default client:
 * tensors on a GPU lie in memory of the daemon's pools. The library is libgpupool-torch.so;
 * client/examples/torch_allocator.py installs them.
 *
 * The lean one, gpupool_torch_malloc() and gpupool_torch_free(), takes the place of PyTorch's own allocator
 * (change_current_allocator). PyTorch uses it so (torch/csrc/cuda/CUDAPluggableAllocator.cpp):
 * - It passes the stream that is current when a tensor is made, to malloc and again to free: our stream order
 * is its.
 * - It does not look at what malloc returns: NULL would become a tensor whose first kernel reads address 0.
 * So a failure is thrown, as std::runtime_error, which Python sees as RuntimeError with our text, behind
 * "CUDA out of memory." where there is no memory.
 * - It asks for 0 bytes, and does not free the NULL that it gets for them.
 * - Of tensors that other streams use (Tensor.record_stream) it tells through a function of its own, if it
 * was given one.
 * - A CUDA graph's private pool (and any torch.cuda.MemPool) is announced the same way. We have none: memory
 * that is freed while a graph is captured would be lent again while the graph writes to it. So that is
 * refused.
 *
 * The other one, gpupool_torch_pool_malloc() and gpupool_torch_pool_free(), is for a torch.cuda.MemPool, in
 * the place of cudaMalloc() and cudaFree(): PyTorch's own caching allocator stands above it, asks for whole
 * segments (2 MiB, 20 MiB, or more), and orders streams, graphs and record_stream() itself. It expects:
 * - NULL is out of memory: PyTorch raises OutOfMemoryError, outside of a region after a second try.
 * - Any stream may use a segment at once, and free waits for the device: any_stream.h.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include <gpupool/gpupool.h>

#include "client/plugins/any_stream.h"
#include "client/plugins/throw.h"

#define EXPORT      __attribute__((visibility("default")))
#define DEVICES_MAX 64
#define TEXT_SIZE   2048 /* of an exception: the library's texts are shorter */
/* How long a segment may take: a pool's growth takes 0.1 to 10 ms, and others' idle memory some more to come.
 * Memory that others use is not waited for. */
#define POOL_WAIT_NS UINT64_C(200000000)

EXPORT void *gpupool_torch_malloc(ssize_t size_bytes, int device, void *stream);
EXPORT void gpupool_torch_free(void *memory, ssize_t size_bytes, int device, void *stream);
EXPORT void gpupool_torch_record_stream(void *memory, void *stream);
EXPORT void gpupool_torch_begin_pool(int device);
EXPORT void gpupool_torch_empty_cache(void);
EXPORT void *gpupool_torch_pool_malloc(ssize_t size_bytes, int device, void *stream);
EXPORT void gpupool_torch_pool_free(void *memory, ssize_t size_bytes, int device, void *stream);

/* --- PyTorch's calls, lean --- */

/* The pools of devices, plus 1: they do not change while the process has its client. 0: not asked yet. */
static _Atomic uint64_t known_pools[DEVICES_MAX];

static int find_pool(int device, uint32_t *ret_pool) {
    struct gpupool_client *client;
    int r = gpupool_default(&client);
    if (r == 0)
        r = gpupool_device_pool(client, device, ret_pool);
    if (r == 0 && device >= 0 && device < DEVICES_MAX)
        atomic_store_explicit(&known_pools[device], (uint64_t)*ret_pool + 1, memory_order_relaxed);
    return r;
}

/* Loops of PyTorch's programs that try again with a smaller batch know the want of memory by the first words.
 */
static __attribute__((noinline)) void *throw_error(void) {
    int error = gpupool_error_number();
    bool is_no_memory =
        error == GPUPOOL_E_TOO_LARGE || error == GPUPOOL_E_EXHAUSTED || error == GPUPOOL_E_LIMIT;
    char text[TEXT_SIZE];

    (void)snprintf(text, sizeof text, "%s%s", is_no_memory ? "CUDA out of memory. " : "",
                   gpupool_error_text());
    plugin_throw(text);
    return NULL;
}

/* The first call for a device. */
static __attribute__((noinline)) void *malloc_slowly(uint64_t size_bytes, int device, void *stream) {
    uint32_t pool;
    void *memory = find_pool(device, &pool) == 0 ? gpupool_alloc(NULL, pool, size_bytes, stream) : NULL;
    return memory != NULL ? memory : throw_error();
}

void *gpupool_torch_malloc(ssize_t size_bytes, int device, void *stream) {
    if (size_bytes <= 0)
        return NULL;
    uint64_t pool = device >= 0 && device < DEVICES_MAX
                        ? atomic_load_explicit(&known_pools[device], memory_order_relaxed)
                        : 0;
    if (__builtin_expect(pool == 0, 0))
        return malloc_slowly((uint64_t)size_bytes, device, stream);
    void *memory = gpupool_alloc(NULL, (uint32_t)(pool - 1), (uint64_t)size_bytes, stream);
    return __builtin_expect(memory != NULL, 1) ? memory : throw_error();
}

/* Called by destructors, which cannot report a failure. Memory that is refused, because a stream takes
 * no fence, stays allocated, and returns with the process. */
void gpupool_torch_free(void *memory, ssize_t size_bytes, int device, void *stream) {
    (void)size_bytes;
    (void)device;
    (void)gpupool_free(memory, stream);
}

/* A stream that uses a tensor besides its own. The tensor's memory waits for it, and nothing else does. */
void gpupool_torch_record_stream(void *memory, void *stream) {
    struct gpupool_client *client;
    struct gpupool_buffer buffer;

    if (memory != NULL &&
        (gpupool_lookup(memory, &client, &buffer) < 0 || gpupool_record_stream(client, &buffer, stream) < 0))
        plugin_throw(gpupool_error_text());
}

/* PyTorch passes the pool's id and a function object too, which are not used. */
void gpupool_torch_begin_pool(int device) {
    (void)device;
    plugin_throw("gpupool: CUDA graphs and private memory pools are not supported by this allocator");
}

void gpupool_torch_empty_cache(void) {
    struct gpupool_client *client;
    if (gpupool_default(&client) == 0)
        (void)gpupool_trim(client, NULL);
}

/* --- PyTorch's calls, for a MemPool --- */

void *gpupool_torch_pool_malloc(ssize_t size_bytes, int device, void *stream) {
    uint32_t pool;

    (void)stream;
    if (size_bytes <= 0 || find_pool(device, &pool) < 0)
        return NULL;
    return any_stream_acquire(pool, (uint64_t)size_bytes, POOL_WAIT_NS);
}

void gpupool_torch_pool_free(void *memory, ssize_t size_bytes, int device, void *stream) {
    (void)size_bytes;
    (void)device;
    (void)stream;
    (void)any_stream_release(memory);
}
