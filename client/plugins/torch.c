/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An allocator for PyTorch (torch.cuda.memory.CUDAPluggableAllocator) over the process's default client: what
 * tensors on a GPU lie in comes from the daemon's pools. libgpupool-torch.so;
 * client/examples/torch_allocator.py installs it.
 *
 * What PyTorch makes of us (torch/csrc/cuda/CUDAPluggableAllocator.cpp):
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
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

#include <gpupool/gpupool.h>

#define EXPORT      __attribute__((visibility("default")))
#define DEVICES_MAX 64
#define BUCKETS     256u

EXPORT void *gpupool_torch_malloc(ssize_t size_bytes, int device, void *stream);
EXPORT void gpupool_torch_free(void *memory, ssize_t size_bytes, int device, void *stream);
EXPORT void gpupool_torch_record_stream(void *memory, void *stream);
EXPORT void gpupool_torch_begin_pool(int device);
EXPORT void gpupool_torch_empty_cache(void);

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

/* --- streams that use a tensor besides its own --- */

struct use {
    struct use *next;
    void *memory, *stream;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct use *uses[BUCKETS]; /* under the lock */
static atomic_uint use_count;     /* so that who has none needs no lock */

static struct use **bucket_of(const void *memory) {
    return &uses[((uintptr_t)memory >> 9) % BUCKETS];
}

void gpupool_torch_record_stream(void *memory, void *stream) {
    if (memory == NULL)
        return;
    struct use *use = malloc(sizeof *use);
    if (use == NULL) {
        throw("gpupool: no memory to note the stream that uses a tensor");
        return;
    }
    *use = (struct use){.memory = memory, .stream = stream};
    pthread_mutex_lock(&lock);
    struct use **link = bucket_of(memory);
    while (*link != NULL && ((*link)->memory != memory || (*link)->stream != stream))
        link = &(*link)->next;
    if (*link == NULL) {
        *link = use;
        use = NULL;
        atomic_fetch_add(&use_count, 1);
    }
    pthread_mutex_unlock(&lock);
    free(use); /* it was noted before */
}

/* Takes one of the uses of a memory out. */
static struct use *use_take(const void *memory) {
    pthread_mutex_lock(&lock);
    struct use **link = bucket_of(memory);
    while (*link != NULL && (*link)->memory != memory)
        link = &(*link)->next;
    struct use *use = *link;
    if (use != NULL) {
        *link = use->next;
        atomic_fetch_sub(&use_count, 1);
    }
    pthread_mutex_unlock(&lock);
    return use;
}

/* Waits for the streams that use a memory besides its own. -1: one could not be waited for. */
static int wait_for_uses(const void *memory, int device, const void *own_stream) {
    struct gpupool_client *client;
    struct gpupool_buffer buffer;
    int result = 0;

    /* First this: in a forked child, whose destructors come here too, there is nothing to be waited for, and the
     * lock may be that of a thread which is not here. */
    if (gpupool_lookup(memory, &client, &buffer) < 0)
        return -1;
    for (struct use *use; (use = use_take(memory)) != NULL; free(use))
        if (use->stream != own_stream && gpupool_stream_synchronize(client, device, use->stream) < 0)
            result = -1;
    return result;
}

/* --- PyTorch's calls --- */

/* The pool of a device. Remembered, plus 1: it does not change while the process has its client. */
static int find_pool(int device, uint32_t *ret_pool) {
    static _Atomic uint64_t known[DEVICES_MAX];
    struct gpupool_client *client;
    uint64_t pool =
        device >= 0 && device < DEVICES_MAX ? atomic_load_explicit(&known[device], memory_order_relaxed) : 0;

    if (pool != 0) {
        *ret_pool = (uint32_t)(pool - 1);
        return 0;
    }
    int r = gpupool_default(&client);
    if (r == 0)
        r = gpupool_device_pool(client, device, ret_pool);
    if (r == 0 && device >= 0 && device < DEVICES_MAX)
        atomic_store_explicit(&known[device], (uint64_t)*ret_pool + 1, memory_order_relaxed);
    return r;
}

void *gpupool_torch_malloc(ssize_t size_bytes, int device, void *stream) {
    uint32_t pool;

    if (size_bytes <= 0)
        return NULL;
    void *memory =
        find_pool(device, &pool) == 0 ? gpupool_alloc(NULL, pool, (uint64_t)size_bytes, stream) : NULL;
    if (memory == NULL)
        throw(gpupool_error_text());
    return memory;
}

/* Called by destructors: there is nobody to hear of a failure. Memory whose streams cannot be waited for is
 * kept, and returns with the process. */
void gpupool_torch_free(void *memory, ssize_t size_bytes, int device, void *stream) {
    (void)size_bytes;
    if (atomic_load_explicit(&use_count, memory_order_acquire) > 0 &&
        wait_for_uses(memory, device, stream) < 0)
        return;
    (void)gpupool_free(memory, stream);
}

/* PyTorch passes the pool's id and a function object too, which nobody looks at. */
void gpupool_torch_begin_pool(int device) {
    (void)device;
    throw("gpupool: CUDA graphs and private memory pools are not supported by this allocator");
}

void gpupool_torch_empty_cache(void) {
    struct gpupool_client *client;
    if (gpupool_default(&client) == 0)
        (void)gpupool_trim(client, NULL);
}
