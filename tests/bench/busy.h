/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_BENCH_BUSY_H
#define TESTS_BENCH_BUSY_H
/* The GPU work of busy.c: busy_kernel.cu on CUDA, busy_kernel_sim.c without any. Each call returns 0, or the
 * driver's error. */

#ifdef __cplusplus
extern "C" {
#endif

/* Makes two streams on the first device. Before the other calls, once. */
int busy_begin(void);

/* Enqueues a kernel that takes so many milliseconds on the first stream. */
int busy_spin(unsigned milliseconds);

/* Launches a kernel that does nothing on the second stream: the call whose time is measured. */
int busy_launch(void);

/* Waits until no more than one of the kernels of busy_spin() is left to run. */
int busy_wait(void);

#ifdef __cplusplus
}
#endif

#endif
