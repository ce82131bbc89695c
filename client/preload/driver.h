/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PRELOAD_DRIVER_H
#define CLIENT_PRELOAD_DRIVER_H
/*
 * The CUDA driver's functions over gpupool, and the real ones. The audit library (audit.c) binds the
 * process's references to libcuda.so.1 to the functions gpupool_driver_…, whatever way they are found: at
 * link time, by dlsym(), or by cuGetProcAddress(), which answers with them. So the CUDA runtimes of the
 * process, shared ones and those that are a part of the program, are served by them, too: a runtime finds the
 * driver by dlsym(), and asks it for all memory. Nothing reaches them without the audit library.
 *
 * The functions are in memory.c (device and host memory, handles), ordered.c (memory in the order of a
 * stream), query.c (questions about memory), driver_capture.c (captures, streams that end) and proc_address.c
 * (finding). They have in common:
 *
 * - Lent memory is mapped in the primary context of its device. Where another context is current, the real
 *   function serves a call that allocates. Lent memory is freed from any context.
 * - Inside this library, and for memory that is not gpupool's, the real function is called.
 * - An out-parameter is written on success alone. A runtime makes its own pending error of a failure.
 * - A primary context that was looked at stays alive with the process, as the mappings in it do.
 *
 * All functions here are thread-safe.
 */
#include <stdbool.h>
#include <stdint.h>

#include "client/preload/lending.h"
#include "client/preload/libcuda.h"

#define DRIVER_MEMBER(name, parameters) int(*name) parameters;
struct libcuda {
    LIBCUDA_CALLS(DRIVER_MEMBER)
};

#define DRIVER_DECLARE(name, parameters)                                                                     \
    __attribute__((visibility("default"))) int gpupool_driver_##name parameters;
LIBCUDA_SERVED(DRIVER_DECLARE)

/* The driver's own functions, after driver_find(). A member is NULL where the driver does not have it. */
extern struct libcuda driver_real;

/* False: the process has no driver, so that no program calls the functions. */
bool driver_find(void);

/* A function that this driver does not have was not found by the program either. */
#define DRIVER_OR_FAIL(call)                                                                                 \
    if (!driver_find() || driver_real.call == NULL)                                                          \
    return CUDA_INITIALIZATION_ERROR

/* An answer of cuGetProcAddress(): the name that a program asks for, the first version that gives this
 * function, and whether it is the one for a default stream of each thread, which is asked for by a flag. */
struct driver_answer {
    const char *name;
    int version;
    bool is_per_thread;
    void *function;
};

/* Replaces the function that the driver found by the last answer that fits. Without one it stays, and where
 * the driver found none. */
void driver_answer(const struct driver_answer *all, size_t count, const char *name, void **function,
                   int version, uint64_t flags);

/* Whether the thread's current context is the primary one of its device, and which device that is. Makes no
 * context. */
bool driver_in_primary(int *ret_device);

/* Whether memory may be lent to the calling thread, and on which device. The report counts a call that the
 * driver serves instead. */
bool driver_may_lend(enum lend_kind kind, uint64_t size_bytes, int *ret_device);

/* Makes the primary context of a device current, in a thread of this library. */
int driver_use(int device);

/* Waits for all work of a device's primary context. 0 or what the driver says. */
int driver_wait(int device);

/* Exchanges the thread's mode for captures of other threads. False: nothing was exchanged. */
bool driver_exchange_mode(int *mode);

/* --- streams --- */

/* The stream that a handle names in a program with one legacy default stream, as gpupool names it. */
static inline void *driver_stream(void *stream) {
    return stream == CUDA_STREAM_LEGACY ? NULL : stream;
}

/* The stream that a handle names in a program that is compiled with --default-stream per-thread. */
static inline void *driver_stream_ptsz(void *stream) {
    return stream == NULL ? CUDA_STREAM_PER_THREAD : driver_stream(stream);
}

/* Whether the program made the stream: it is no default stream. */
static inline bool driver_is_made(const void *stream) {
    return stream != NULL && stream != CUDA_STREAM_LEGACY && stream != CUDA_STREAM_PER_THREAD;
}

/* Whether a stream's work is in the thread's current context. True for the default streams, and where that
 * cannot be known. */
bool driver_is_current(void *stream);

/* The device of a stream that the program made. False: it cannot be known. */
bool driver_device_of(void *stream, int *ret_device);

static inline void *driver_pointer(uint64_t address) {
    return (void *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr): CUdeviceptr */
}

/* In a forked child: another thread of the parent may have held the lock. */
void driver_after_fork(void);

#endif
