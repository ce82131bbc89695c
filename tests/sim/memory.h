/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_MEMORY_H
#define TESTS_SIM_MEMORY_H
/* Allocations of the core that fail. The programs are linked so that its malloc and the like come here. */
#include <stdbool.h>
#include <stddef.h>

/* From now on the n-th allocation fails, once. 0: none. */
void memory_fail_nth(unsigned n);

/* Whether it has failed since. */
bool memory_failed(void);

/* Zeroed memory that the simulator needs for itself, which does not fail. The caller frees it. */
void *memory_make(size_t count, size_t size);

#endif
