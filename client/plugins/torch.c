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
 * So a failure is thrown, as std::runtime_error, which Python sees as RuntimeError with our text. This file
 * being C, the C++ library of the process throws for us.
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
 * - Any stream may use a segment at once, and free waits for the device. So segments are acquired and
 * released with GPUPOOL_NO_STREAM.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

#include <gpupool/gpupool.h>

#define EXPORT      __attribute__((visibility("default")))
#define DEVICES_MAX 64
#define BUCKETS     256u
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

/* --- failures --- */

/* Throws std::runtime_error: std::__throw_runtime_error(const char *) is in libstdc++'s ABI since GCC 3.4. A
 * process without that library has no PyTorch; there this returns. */
static void throw(const char *text) {
    void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL)
        return;
    void (*throw_runtime_error)(const char *text);
    *(void **)&throw_runtime_error = dlsym(library, "_ZSt21__throw_runtime_errorPKc");
    dlclose(library); /* it was there before, and stays */
    if (throw_runtime_error != NULL)
        throw_runtime_error(text);
}

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

/* The first call for a device. */
static __attribute__((noinline)) void *malloc_slowly(uint64_t size_bytes, int device, void *stream) {
    uint32_t pool;
    void *memory = find_pool(device, &pool) == 0 ? gpupool_alloc(NULL, pool, size_bytes, stream) : NULL;
    if (memory == NULL)
        throw(gpupool_error_text());
    return memory;
}

static __attribute__((noinline)) void *throw_error(void) {
    throw(gpupool_error_text());
    return NULL;
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
        throw(gpupool_error_text());
}

/* PyTorch passes the pool's id and a function object too, which are not used. */
void gpupool_torch_begin_pool(int device) {
    (void)device;
    throw("gpupool: CUDA graphs and private memory pools are not supported by this allocator");
}

void gpupool_torch_empty_cache(void) {
    struct gpupool_client *client;
    if (gpupool_default(&client) == 0)
        (void)gpupool_trim(client, NULL);
}

/* --- PyTorch's calls, for a MemPool --- */

/* A segment that PyTorch has. */
struct held {
    struct held *next;
    struct gpupool_buffer buffer;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct held *held[BUCKETS]; /* under the lock */

static struct held **held_bucket_of(const void *memory) {
    return &held[((uintptr_t)memory >> 21) % BUCKETS];
}

void *gpupool_torch_pool_malloc(ssize_t size_bytes, int device, void *stream) {
    struct gpupool_client *client;
    uint32_t pool;

    (void)stream;
    if (size_bytes <= 0 || gpupool_default(&client) < 0 || find_pool(device, &pool) < 0)
        return NULL;
    struct held *segment = calloc(1, sizeof *segment);
    if (segment == NULL)
        return NULL;
    if (gpupool_acquire(client, pool, (uint64_t)size_bytes, GPUPOOL_NO_STREAM, POOL_WAIT_NS, 0,
                        &segment->buffer) < 0) {
        free(segment);
        return NULL;
    }
    void *memory = segment->buffer.data;
    pthread_mutex_lock(&lock);
    struct held **bucket = held_bucket_of(memory);
    segment->next = *bucket;
    *bucket = segment;
    pthread_mutex_unlock(&lock);
    return memory;
}

/* Takes a segment out. NULL: it is none of ours. */
static struct held *held_take(const void *memory) {
    pthread_mutex_lock(&lock);
    struct held **link = held_bucket_of(memory);
    while (*link != NULL && (*link)->buffer.data != memory)
        link = &(*link)->next;
    struct held *segment = *link;
    if (segment != NULL)
        *link = segment->next;
    pthread_mutex_unlock(&lock);
    return segment;
}

/* The CUDA driver's functions of this process, whose types are not those of any header here. */
struct driver {
    int (*device_get)(int *ret_device, int ordinal);
    int (*context_retain)(void **ret_context, int device);
    int (*context_release)(int device);
    int (*context_push)(void *context);
    int (*context_pop)(void **ret_context);
    int (*context_synchronize)(void);
};

static struct driver driver;
static bool has_driver;
static pthread_once_t driver_found = PTHREAD_ONCE_INIT;

static bool find_function(void *library, const char *name, void *function) {
    *(void **)function = dlsym(library, name);
    return *(void **)function != NULL;
}

static void find_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL)
        return;
    has_driver = find_function(library, "cuDeviceGet", &driver.device_get) &&
                 find_function(library, "cuDevicePrimaryCtxRetain", &driver.context_retain) &&
                 find_function(library, "cuDevicePrimaryCtxRelease_v2", &driver.context_release) &&
                 find_function(library, "cuCtxPushCurrent_v2", &driver.context_push) &&
                 find_function(library, "cuCtxPopCurrent_v2", &driver.context_pop) &&
                 find_function(library, "cuCtxSynchronize", &driver.context_synchronize);
    dlclose(library); /* it was there before, and stays */
}

/* Waits for all work of this process on a device, as cudaFree() does. Without a driver, on the simulated GPU,
 * for the default stream. Returns 0, or -1: it cannot be waited for. */
static int device_synchronize(struct gpupool_client *client, int ordinal) {
    void *context;
    int device;

    pthread_once(&driver_found, find_driver);
    if (gpupool_gpu_kind(client) != GPUPOOL_GPU_CUDA)
        return gpupool_stream_synchronize(client, ordinal, NULL);
    if (!has_driver || driver.device_get(&device, ordinal) != 0 ||
        driver.context_retain(&context, device) != 0)
        return -1;
    int result = -1;
    if (driver.context_push(context) == 0) {
        result = driver.context_synchronize() == 0 ? 0 : -1;
        (void)driver.context_pop(&context);
    }
    (void)driver.context_release(device);
    return result;
}

/* A segment whose device cannot be waited for is kept, and returns with the process: so it is when the driver
 * has been shut down already, and while a stream is captured. */
void gpupool_torch_pool_free(void *memory, ssize_t size_bytes, int device, void *stream) {
    struct gpupool_client *client;

    (void)size_bytes;
    (void)stream;
    if (memory == NULL || gpupool_default(&client) < 0)
        return;
    struct held *segment = held_take(memory);
    if (segment == NULL)
        return;
    if (device_synchronize(client, device) == 0)
        (void)gpupool_release(client, &segment->buffer, GPUPOOL_NO_STREAM);
    free(segment);
}
