/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PRELOAD_SERVE_H
#define CLIENT_PRELOAD_SERVE_H
/*
 * The common part of served calls of the runtime (preload.c) and of the driver (driver.c). Results are those
 * of lending.h. Thread-safe.
 */
#include <stddef.h>

#include "client/preload/lending.h"

/* The stream that a handle names in a program with one legacy default stream, as gpupool names it. */
static inline void *serve_stream(void *stream) {
    return stream == CUDA_STREAM_LEGACY ? NULL : stream;
}

/* The stream that a handle names in a program that is compiled with --default-stream per-thread. */
static inline void *serve_stream_ptsz(void *stream) {
    return stream == NULL ? CUDA_STREAM_PER_THREAD : serve_stream(stream);
}

/* Whether the program made the stream: it is no default stream. */
static inline bool serve_is_made(const void *stream) {
    return stream != NULL && stream != CUDA_STREAM_LEGACY && stream != CUDA_STREAM_PER_THREAD;
}

/* Rows of the width, each on a boundary. Where the product does not fit, no memory does. *ret_memory is NULL
 * on failure. */
int serve_rows(const struct runtime *runtime, size_t width_bytes, size_t rows, size_t *ret_pitch,
               void **ret_memory);

/* Frees after a wait, as the real functions do. NOT_OURS as lend_find(). */
int serve_free(const struct runtime *runtime, void *memory);

/* Frees in stream order. NOT_OURS as lend_find(). */
int serve_free_behind(const struct runtime *runtime, void *memory, void *stream);

/* Device memory in the order of a stream. pool: NULL: the device's current one. NOT_OURS too: the pool is not
 * the device's default one, the stream is of another context than the current one, or a stream of the process
 * is being captured. *ret_memory is NULL on failure. */
int serve_in_order(const struct runtime *runtime, size_t size_bytes, void *pool, void *stream,
                   void **ret_memory);

/* Destroys a stream, if memory was used in the order of streams: the client must not name it to the driver
 * afterwards. NOT_OURS: the caller destroys it. */
int serve_destroy(const struct runtime *runtime, void *stream);

/* Before: the memory of the thread's current device, as the driver says. Afterwards what the device's pool
 * can lend, and its limit. They stay where GPUPOOL_MEMORY_INFO is "gpu", without a pool, and where one of them
 * is not asked for. */
void serve_memory_info(const struct runtime *runtime, size_t *free_bytes, size_t *total_bytes);

/* In a forked child: another thread of the parent may have held the lock of driver.c. */
void driver_after_fork(void);

#endif
