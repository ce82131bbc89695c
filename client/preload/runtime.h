/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PRELOAD_RUNTIME_H
#define CLIENT_PRELOAD_RUNTIME_H
/*
 * A CUDA runtime (libcudart.so.N) that is loaded in the process, and its functions. A process can have
 * several: the pending error and a part of the state belong to each of them. A call is passed on to the
 * runtime of its caller: the one that the caller's object names in its DT_NEEDED. An object that names none
 * (it found the function by dlsym(), or by another library's dependency) gets the runtime that was loaded
 * first.
 *
 * Runtimes are found by dlopen() with RTLD_NOLOAD under the name that the object or the loader has for them,
 * because RTLD_NEXT does not see a runtime that was loaded with RTLD_LOCAL, as Python's modules load theirs.
 * RTLD_NEXT is tried last. A runtime that was found once is never unloaded: its functions are remembered.
 */
#include <stdbool.h>

#include "client/preload/cudart.h"

#define RUNTIMES_MAX 8u /* of a process: two are rare */

/* Each function is a member of its name. */
#define RUNTIME_MEMBER(name, parameters) int(*name) parameters;
struct runtime {
    void *handle;
    unsigned index; /* below RUNTIMES_MAX, one of each runtime; RUNTIMES_MAX: the driver (driver.c) */
    CUDART_CALLS(RUNTIME_MEMBER)
};

/* The runtime of the code at an address, which is a caller's return address. NULL: the process has none. */
const struct runtime *runtime_of(const void *caller);

/* Whether the code at an address is PyTorch's device allocator, which frees its cache when an allocation
 * fails and then tries again. */
bool runtime_caller_retries(const void *caller);

/* In a forked child: another thread of the parent may have held the lock. */
void runtime_after_fork(void);

/* Leaves `error` pending in the runtime, as its own function would: cudaGetLastError() returns it. Returns
 * what the runtime said, which is another error where the runtime has one that stays (a kernel's failure,
 * say). error: CUDA_MEMORY_ALLOCATION or CUDA_INVALID_VALUE. */
int runtime_raise(const struct runtime *runtime, enum cuda_error error);

#endif
