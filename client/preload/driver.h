/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PRELOAD_DRIVER_H
#define CLIENT_PRELOAD_DRIVER_H
/*
 * The parts of the functions that take the place of the driver's: device and host memory (driver.c), memory
 * in the order of a stream (ordered.c), questions about memory (query.c), captures (driver_capture.c), and
 * the functions that find all of them (proc_address.c). driver.c says what they have in common.
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

/* The driver as a runtime. */
extern const struct runtime driver_runtime;

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

/* Whether the thread's current context is the primary one of its device. Makes no context. */
bool driver_in_primary(void);

/* Whether memory may be lent to the calling thread. The report counts a call that the driver serves
 * instead. */
bool driver_may_lend(enum lend_kind kind, uint64_t size_bytes);

/* Whether a stream's work is in the thread's current context. True where that cannot be known: the process
 * has no driver (a test's), and for the default streams. */
bool driver_is_current(void *stream);

/* The device of a stream that the program made. False: it cannot be known. */
bool driver_device_of(void *stream, int *ret_device);

/* As serve_free(), from any context. */
int driver_release(void *memory);

static inline void *driver_pointer(uint64_t address) {
    return (void *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr): CUdeviceptr */
}

#endif
