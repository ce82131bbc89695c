/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GPU_KILLS_H
#define TESTS_GPU_KILLS_H
/* The common part of the program kills: kills.c starts and kills, kills_parts.c has the code of the
 * processes, and the kernel that writes is one for CUDA, and none for the simulation, whose dead processes
 * write by themselves (GPUPOOL_SIM_LINGER_MS). */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KILLS_MIB         (UINT64_C(1) << 20)
#define KILLS_NS_PER_MS   UINT64_C(1000000)
#define KILLS_NS_PER_S    UINT64_C(1000000000)
#define KILLS_PATIENCE_NS (60 * KILLS_NS_PER_S)

uint64_t kills_now_ns(void);
void kills_rest_ns(uint64_t ns);
uint64_t kills_next_random(uint64_t *state);
/* Ends the process where a call of the library did not return 0. */
void kills_need(int result, const char *what);

/* Takes buffers, has a kernel write them, says so by a byte on its standard output, and waits to be killed.
 * how, as letters: c leaves a child behind, r takes and gives back at random instead. */
int kills_victim(const char *how, uint64_t seed);
/* Takes, writes and looks until SIGTERM; prints how many buffers it looked at and how many others wrote to.
 */
int kills_checker(uint64_t seed);

/* Starts a kernel that writes to all words of the memory, again and again, for so many milliseconds; it is
 * under way when this returns. Returns 0, or the driver's error. */
int kills_start_kernel(void *const *memory, unsigned n_memory, size_t size_bytes, unsigned milliseconds);

#ifdef __cplusplus
}
#endif

#endif
