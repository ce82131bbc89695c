/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PRELOAD_SERVE_H
#define CLIENT_PRELOAD_SERVE_H
/*
 * The common part of served calls of the runtime (preload.c) and of the driver (driver.c). Results are those
 * of lending.h. Thread-safe.
 */
#include <stddef.h>

#include "client/preload/lending.h"

/* Rows of the width, each on a boundary. Where the product does not fit, no memory does. *ret_memory is NULL
 * on failure. */
int serve_rows(const struct runtime *runtime, size_t width_bytes, size_t rows, size_t *ret_pitch,
               void **ret_memory);

/* Frees after a wait, as the real functions do. NOT_OURS as lend_find(). */
int serve_free(const struct runtime *runtime, void *memory);

/* Frees in stream order. NOT_OURS as lend_find(). */
int serve_free_behind(const struct runtime *runtime, void *memory, void *stream);

/* In a forked child: another thread of the parent may have held the lock of driver.c. */
void driver_after_fork(void);

#endif
