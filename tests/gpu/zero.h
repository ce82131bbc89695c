/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GPU_ZERO_H
#define TESTS_GPU_ZERO_H
/* How the program zero_between_users looks at device memory and writes to it: kernels for CUDA
 * (zero_kernel.cu), and the CPU for the simulation (zero_kernel_sim.c), whose device memory host code
 * reaches. */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Counts the words of the memory that differ from a value. 0, or the driver's error. */
int zero_count_others(const void *memory, size_t size_bytes, uint64_t value, uint64_t *ret_others);

/* Sets all words of the memory. 0, or the driver's error. */
int zero_fill(void *memory, size_t size_bytes, uint64_t value);

#ifdef __cplusplus
}
#endif

#endif
