/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated GPU's memory is reached through its pointers. */
#include "tests/gpu/zero.h"

int zero_count_others(const void *memory, size_t size_bytes, uint64_t value, uint64_t *ret_others) {
    const uint64_t *words = memory;

    *ret_others = 0;
    for (size_t i = 0; i < size_bytes / sizeof *words; i++)
        *ret_others += words[i] != value;
    return 0;
}

int zero_fill(void *memory, size_t size_bytes, uint64_t value) {
    uint64_t *words = memory;

    for (size_t i = 0; i < size_bytes / sizeof *words; i++)
        words[i] = value;
    return 0;
}
