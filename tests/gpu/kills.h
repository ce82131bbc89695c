/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GPU_KILLS_H
#define TESTS_GPU_KILLS_H
/* What the program kills needs of a GPU: a kernel that writes. There is one for CUDA, and none for the
 * simulation, whose dead processes write by themselves (GPUPOOL_SIM_LINGER_MS). */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Starts a kernel that writes to all words of the memory, again and again, for so many milliseconds; it is under way when
 * this returns. Returns 0, or the driver's error. */
int kills_start_kernel(void *const *memory, unsigned n_memory, size_t size_bytes, unsigned milliseconds);

#ifdef __cplusplus
}
#endif

#endif
