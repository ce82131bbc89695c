/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PLUGINS_ANY_STREAM_H
#define CLIENT_PLUGINS_ANY_STREAM_H
/*
 * Device memory with the rules of cudaMalloc() and cudaFree(), for hooks that are told of no stream. Any
 * stream may use it at once. Its release waits for the device, because the caller may have work on streams
 * that the hook does not know.
 *
 * The memory is of the process's default client, which the calls open. Each piece is noted in one table of
 * the process, under one lock. So a hook can tell these pieces from memory that it took for a stream.
 */
#include <stdbool.h>
#include <stdint.h>

/* Acquires memory of a pool. It waits at most wait_ns for room. Returns memory aligned to 512 bytes, which
 * any_stream_release() gives back. NULL: gpupool_error_number() and gpupool_error_text() say why.
 * Thread-safe. */
void *any_stream_acquire(uint32_t pool, uint64_t size_bytes, uint64_t wait_ns);

/* As above, but waits as long as gpupool_alloc() does. */
void *any_stream_alloc(uint32_t pool, uint64_t size_bytes);

/* Waits for the device, and gives memory back. Memory whose device cannot be waited for stays allocated, and
 * returns with the process: after the driver was shut down, and while a stream is captured.
 * Returns false where the memory is not from a call above: nothing was done. Thread-safe. */
bool any_stream_release(const void *memory);

#endif
