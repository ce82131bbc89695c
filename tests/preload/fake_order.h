/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_PRELOAD_FAKE_ORDER_H
#define TESTS_PRELOAD_FAKE_ORDER_H
/* The part of the fake driver (fake_libcuda.h) about streams and their memory. Its device has a default pool;
 * a program makes one pool more. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_FREE_BYTES  ((size_t)3 << 30)
#define FAKE_TOTAL_BYTES ((size_t)4 << 30)
#define FAKE_ATTRIBUTE   2 /* the driver knows it of each pointer; its value is the number */
#define FAKE_NOT_FOUND   1

#define FAKE_FOREIGN_STREAM ((void *)9) /* of the context that is not the primary one */

#define FAKE_CAPTURE_INVALIDATED  901
#define FAKE_CAPTURE_WRONG_THREAD 908

/* Whether any stream is captured. */
bool fake_captures_any(void);

/* Returns how many captures that was. */
unsigned fake_captures_invalidate(void);

int cuDeviceSetMemPool(int device, void *pool);

struct order_counts {
    unsigned destroyed; /* streams */
};
struct order_counts fake_order_counts(void);

/* The function of a name, for cuGetProcAddress(); NULL: it is none of these. */
void *fake_order_find(const char *name, int version, uint64_t flags);

#endif
