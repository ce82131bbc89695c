/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which calls of the driver table make a context. The same program runs on real and simulated GPUs:
 *     contexts cuda|sim     exit status 0: all checks hold; 1: not so; 77: no GPU
 *
 * First the calls that need none are made, in a process that has none. Then contexts are made by hand only:
 * each call that needs one is refused, until there is one.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/units.h"
#include "gpu/gpu.h"

#define BYTES (2 * MIB)

static const struct gpu *gpu;
static unsigned checks, failures;

static void check_at(bool holds, const char *what, int line) {
    checks++;
    if (holds)
        return;
    failures++;
    printf("contexts.c:%d: FAILED: %s\n", line, what);
}
#define check(condition)       check_at(condition, #condition, __LINE__)
#define check_is(call, wanted) check_at((call) == (wanted), #call " is " #wanted, __LINE__)

/* The driver's own word on the device's primary context. */
static bool driver_has_context(void) {
    void *library = strcmp(gpu->name, "cuda") == 0 ? dlopen("libcuda.so.1", RTLD_NOW) : NULL;
    int (*state)(int, unsigned *, int *) = NULL;
    unsigned flags;
    int active = 0;

    if (library == NULL)
        return gpu->has_context(0);
    *(void **)&state = dlsym(library, "cuDevicePrimaryCtxGetState");
    check(state != NULL && state(0, &flags, &active) == 0);
    return active != 0;
}

static void check_no_context(int line) {
    check_at(!gpu->has_context(0) && !driver_has_context(), "there is no context", line);
}
#define no_context() check_no_context(__LINE__)

/* Makes, exports and releases memory of VMM. */
static void make_memory(bool is_host) {
    uint64_t granule = 0, handle = 0;
    int fd = -1, r = is_host ? gpu->vmm_host_granule(0, 0, &granule) : gpu->vmm_granule(0, &granule);

    if (r != 0) {
        printf("no %s memory of VMM here: %s\n", is_host ? "host" : "device", gpu->error_name(r));
        return;
    }
    no_context();
    check_is(is_host ? gpu->vmm_host_create(0, 0, granule, &handle) : gpu->vmm_create(0, granule, &handle),
             0);
    no_context();
    check_is(gpu->vmm_export(0, handle, &fd), 0);
    no_context();
    check_is(gpu->vmm_release(0, handle), 0);
    no_context();
    close(fd);
}

static void these_calls_make_no_context(void) {
    uint64_t free_bytes = 0, total_bytes = 0;
    struct gpu_device device;
    unsigned count = 0;
    size_t n_processes;
    int r;

    no_context();
    check_is(gpu->device_count(&count), 0);
    check_is(gpu->device_describe(0, &device), 0);
    check(device.total_bytes > 0);
    r = gpu->device_memory(0, &free_bytes, &total_bytes);
    check(r == 0 ? free_bytes > 0 && free_bytes <= total_bytes : r == GPU_ERROR_NOT_SUPPORTED);
    check_is(gpu->device_memory(count, &free_bytes, &total_bytes), GPU_ERROR_INVALID_DEVICE);
    check_is(gpu->device_check(0), 0);
    check_is(gpu->device_check(count), GPU_ERROR_INVALID_DEVICE);
    (void)gpu->processes(0, NULL, 0, &n_processes);
    (void)gpu->unclean_setting(false);
    (void)gpu->unclean_setting(true);
    no_context();
    make_memory(false);
    make_memory(true);
    check(!gpu->has_context(count));
}

/* Each call that needs a context says the same. */
static void calls_answer(int wanted, void *memory) {
    struct gpu_ipc_handle handle;
    void *stream = NULL, *address = NULL, *made = NULL;

    check_is(gpu->memory_allocate(0, BYTES, &made), wanted);
    check_is(gpu->host_register(memory, BYTES), wanted);
    check_is(gpu->stream_create(0, &stream), wanted);
    check_is(gpu->address_reserve(0, BYTES, &address), wanted);
    check_is(gpu->memory_set(0, made != NULL ? made : memory, 0, 8, NULL), wanted);
    check_is(gpu->memory_copy(0, memory, made != NULL ? made : memory, 8, NULL), wanted);
    check_is(gpu->stream_synchronize(0, NULL), wanted);
    check_is(gpu->device_synchronize(0), wanted);
    check_is(gpu->ipc_export(0, made != NULL ? made : memory, &handle), wanted);
    if (wanted != 0)
        return;
    check_is(gpu->address_free(0, address, BYTES), 0);
    check_is(gpu->stream_destroy(0, stream), 0);
    check_is(gpu->host_unregister(memory), 0);
    check_is(gpu->memory_free(0, made), 0);
}

static void contexts_are_made_by_hand(void) {
    void *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    check(memory != MAP_FAILED);
    gpu->contexts_by_hand();
    calls_answer(GPU_ERROR_INVALID_CONTEXT, memory);
    no_context();
    make_memory(false);
    make_memory(true);
    check_is(gpu->context_make(1000), GPU_ERROR_INVALID_DEVICE);
    check_is(gpu->context_make(0), 0);
    check_is(gpu->context_make(0), 0);
    check(gpu->has_context(0) && driver_has_context());
    calls_answer(0, memory);
    check_is(gpu->device_check(0), 0);
    munmap(memory, BYTES);
}

int main(int argc, char **argv) {
    bool is_cuda = argc == 2 && strcmp(argv[1], "cuda") == 0;

    if (argc != 2 || (!is_cuda && strcmp(argv[1], "sim") != 0)) {
        fputs("usage: contexts cuda|sim\n", stderr);
        return 2;
    }
    int r = is_cuda ? gpu_cuda(&gpu) : gpu_sim(NULL, &gpu);
    if (r != 0) {
        fprintf(stderr, "no GPU for this: error %d\n", r);
        return is_cuda && (r == GPU_ERROR_INSUFFICIENT_DRIVER || r == GPU_ERROR_NO_DEVICE) ? 77 : 1;
    }
    these_calls_make_no_context();
    contexts_are_made_by_hand();
    printf("%s: %u checks, %u failed\n", gpu->name, checks, failures);
    return failures == 0 ? 0 : 1;
}
