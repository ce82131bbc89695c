/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PRELOAD_RETRIES_H
#define CLIENT_PRELOAD_RETRIES_H
/*
 * Whether the calling thread is inside an allocation of PyTorch's allocator (libc10_cuda.so), which frees its
 * cache when it is refused, and then tries again. The driver's functions cannot see that: the CUDA runtime
 * calls them. So the audit library binds that library's references to cudaMalloc() to
 * gpupool_retried_cudaMalloc(), and writes the address of the runtime's function into
 * gpupool_retried_real before. Thread-safe.
 */
#include <stdbool.h>
#include <stddef.h>

/* The names, for the audit library. */
#define RETRIED_CALL     "cudaMalloc"
#define RETRIED_FUNCTION "gpupool_retried_cudaMalloc"
#define RETRIED_REAL     "gpupool_retried_real"

__attribute__((visibility("default"))) int gpupool_retried_cudaMalloc(void **memory, size_t size_bytes);
__attribute__((visibility("default"))) extern int (*gpupool_retried_real)(void **memory, size_t size_bytes);

bool retries_now(void);

#endif
