/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAILING_MEMORY_H
#define TESTS_FAILING_MEMORY_H
/* Allocations that fail. A program that links the library failing-memory has its malloc() and the like
 * wrapped. Each thread plans its own failures, and counts its own allocations. */
#include <stdbool.h>
#include <stddef.h>

/* From now on the n-th allocation fails, once. 0: none. */
void memory_fail_nth(unsigned n);

/* Whether it has failed since. */
bool memory_failed(void);

/* The number of allocations until now. */
unsigned memory_allocations(void);

/* Returns zeroed memory for the test itself, which does not fail. The caller frees it. */
void *memory_make(size_t count, size_t size);

#endif
