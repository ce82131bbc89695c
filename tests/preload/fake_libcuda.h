/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_PRELOAD_FAKE_LIBCUDA_H
#define TESTS_PRELOAD_FAKE_LIBCUDA_H
/*
 * A CUDA driver over malloc(), built as libcuda.so.1: what a test program, or its runtime, finds in place of
 * the real one. It has two devices, of which the first one's primary context is current after
 * fake_use_primary(), and another context. The driver counts its calls, and fails as the real one does: a
 * pointer that it did not allocate is an invalid value, out-parameters are left as they are, a forked child
 * of a process that made a primary context has no driver, and while a stream is captured the device cannot be
 * waited for, and a wait invalidates the capture.
 */
#include "client/preload/libcuda.h"

#define FAKE_DEVICES 2

#define DECLARE_FAKE(name, parameters) int name parameters;
LIBCUDA_CALLS(DECLARE_FAKE)
int cuMemAlloc(unsigned *memory, unsigned size_bytes); /* of before version 3.2 */

/* A function as cuGetProcAddress() finds it: since a version, and by flags. */
struct fake_function {
    const char *name;
    int version;
    uint64_t flags;
    void *function;
};

/* The last one that fits; NULL: none does. */
void *fake_find(const struct fake_function *all, size_t count, const char *name, int version, uint64_t flags);

/* The requests to it so far. One that failed, and cuMemFree(0), do not count. */
struct driver_counts {
    unsigned allocations, frees, waits, resets;
    unsigned invalidated; /* captures, by a wait for the device */
    unsigned unsafe; /* allocations and frees while a stream was captured and the thread's mode not relaxed */
    unsigned primaries_made;
};
struct driver_counts fake_driver_counts(void);
void fake_use_primary(void);
void fake_use_other(void);   /* a context that is not the primary one */
void fake_use_none(void);    /* no context is current in this thread */
void fake_break(int result); /* what all calls fail with from now on */

#endif
