/* SPDX-License-Identifier: Apache-2.0 */
/* A library that is linked to the driver, as a program that calls the driver may have one. */
#include "tests/preload/fake_libcuda.h"

int linked_alloc(uint64_t *memory, size_t size_bytes);
int linked_free(uint64_t memory);

__attribute__((visibility("default"))) int linked_alloc(uint64_t *memory, size_t size_bytes) {
    return cuMemAlloc_v2(memory, size_bytes);
}

__attribute__((visibility("default"))) int linked_free(uint64_t memory) {
    return cuMemFree_v2(memory);
}
