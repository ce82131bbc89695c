/* SPDX-License-Identifier: Apache-2.0 */
/* A library that a program loads when it runs, and that brings a CUDA runtime along, as a Python module does.
 */
#include "tests/preload/fake_cudart.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT int caller_malloc(void **memory, size_t size_bytes);
EXPORT int caller_free(void *memory);
EXPORT int caller_last_error(void);
EXPORT void caller_counts(struct fake_counts *ret_counts);

int caller_malloc(void **memory, size_t size_bytes) {
    int r = cudaMalloc(memory, size_bytes);
    __asm__ volatile("" ::: "memory"); /* no tail call: the return address is in here */
    return r;
}

int caller_free(void *memory) {
    int r = cudaFree(memory);
    __asm__ volatile("" ::: "memory");
    return r;
}

int caller_last_error(void) {
    return cudaGetLastError();
}

void caller_counts(struct fake_counts *ret_counts) {
    *ret_counts = fake_counts();
}
