/* SPDX-License-Identifier: Apache-2.0 */
#include "client/preload/runtime.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define NAME_SIZE 4096u /* PATH_MAX */
#define CALLERS   4u    /* that a thread remembers: a framework calls from a few places */

/* More than any address space has, so that no allocation of it can succeed. */
#define IMPOSSIBLE_BYTES ((size_t)1 << 62)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct runtime runtimes[RUNTIMES_MAX]; /* under the lock; an entry that is filled in stays as it is */
static unsigned runtime_count;

static _Thread_local struct {
    const void *caller;
    const struct runtime *runtime;
} known[CALLERS];
static _Thread_local unsigned next_known;
static _Thread_local struct {
    const void *caller;
    bool retries;
} asked_of; /* the last caller that runtime_caller_retries() looked at */

void runtime_after_fork(void) {
    pthread_mutex_init(&lock, NULL);
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* Whether a library's name or path is a CUDA runtime's. Wheels that carry a copy of their own call it
 * libcudart-<hash>.so.12. */
static bool is_runtime(const char *name) {
    const char *base = base_name(name);
    return (strncmp(base, "libcudart.so", 12) == 0 || strncmp(base, "libcudart-", 10) == 0);
}

/* The runtime that a library object names in its DT_NEEDED; NULL: none. glibc has relocated the addresses in
 * the dynamic section, except those of the vDSO, which calls nothing. */
static const char *needed_runtime(const struct link_map *object) {
    const char *strings = NULL;

    if (object->l_ld == NULL)
        return NULL;
    for (const ElfW(Dyn) *entry = object->l_ld; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_STRTAB)
            strings = (const char *)entry->d_un.d_ptr; /* NOLINT(performance-no-int-to-ptr): as ELF has it */
    if (strings == NULL)
        return NULL;
    for (const ElfW(Dyn) *entry = object->l_ld; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_NEEDED && is_runtime(strings + entry->d_un.d_val))
            return strings + entry->d_un.d_val;
    return NULL;
}

/* dl_iterate_phdr() goes through the objects in the order in which they were loaded. */
static int find_first(struct dl_phdr_info *object, size_t size, void *argument) {
    (void)size;
    if (object->dlpi_name == NULL || !is_runtime(object->dlpi_name))
        return 0;
    snprintf(argument, NAME_SIZE, "%s", object->dlpi_name);
    return 1;
}

/* The library under a name, if it is loaded. */
static void *loaded(const char *name) {
    return dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
}

static void *handle_of(const void *caller) {
    char first[NAME_SIZE];
    const char *name = NULL;
    struct link_map *object;
    void *handle = NULL;
    Dl_info info;

    if (dladdr1(caller, &info, (void **)&object, RTLD_DL_LINKMAP) != 0 && object != NULL)
        name = needed_runtime(object);
    if (name != NULL)
        handle = loaded(name);
    if (handle == NULL && dl_iterate_phdr(find_first, first) != 0)
        handle = loaded(first);
    return handle;
}

/* Finds the functions. False: the library has not even the first one. */
static bool fill(struct runtime *runtime, void *handle) {
    runtime->handle = handle;
#define FIND(name, parameters) *(void **)&runtime->name = dlsym(handle, #name);
    CUDART_CALLS(FIND)
#undef FIND
    return runtime->cudaMalloc != NULL;
}

/* The entry of a handle, made if need be. Under the lock. */
static const struct runtime *entry_of(void *handle) {
    for (unsigned i = 0; i < runtime_count; i++)
        if (runtimes[i].handle == handle)
            return &runtimes[i];
    if (runtime_count == RUNTIMES_MAX || !fill(&runtimes[runtime_count], handle))
        return NULL;
    runtimes[runtime_count].index = runtime_count;
    return &runtimes[runtime_count++];
}

const struct runtime *runtime_of(const void *caller) {
    for (unsigned i = 0; i < CALLERS; i++)
        if (known[i].caller == caller)
            return known[i].runtime;

    void *handle = handle_of(caller);
    pthread_mutex_lock(&lock);
    const struct runtime *runtime = entry_of(handle != NULL ? handle : RTLD_NEXT);
    pthread_mutex_unlock(&lock);
    if (runtime != NULL) {
        known[next_known].caller = caller;
        known[next_known].runtime = runtime;
        next_known = (next_known + 1) % CALLERS;
    }
    return runtime;
}

bool runtime_caller_retries(const void *caller) {
    Dl_info info;

    if (asked_of.caller != caller) {
        asked_of.caller = caller;
        asked_of.retries = dladdr(caller, &info) != 0 && info.dli_fname != NULL &&
                           strcmp(base_name(info.dli_fname), "libc10_cuda.so") == 0;
    }
    return asked_of.retries;
}

int runtime_raise(const struct runtime *runtime, enum cuda_error error) {
    int mode = CUDA_CAPTURE_RELAXED, r;

    if (error == CUDA_MEMORY_ALLOCATION) {
        void *memory = NULL;
        /* An allocation must not disturb a capture that goes on. */
        bool exchanged = runtime->cudaThreadExchangeStreamCaptureMode != NULL &&
                         runtime->cudaThreadExchangeStreamCaptureMode(&mode) == 0;
        r = runtime->cudaMalloc(&memory, IMPOSSIBLE_BYTES);
        if (r == 0)
            runtime->cudaFree(memory);
        if (exchanged)
            runtime->cudaThreadExchangeStreamCaptureMode(&mode);
    } else {
        r = runtime->cudaGetDevice(NULL);
    }
    return r != 0 ? r : (int)error;
}
