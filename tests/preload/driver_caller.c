/* SPDX-License-Identifier: Apache-2.0 */
/* A library that is linked to the driver, as a program that calls the driver may have one. */
#include "tests/preload/fake_libcuda.h"
#include "tests/preload/fake_unserved.h"

int linked_alloc(uint64_t *memory, size_t size_bytes);
int linked_free(uint64_t memory);
int linked_managed(uint64_t *memory, size_t size_bytes);

__attribute__((visibility("default"))) int linked_alloc(uint64_t *memory, size_t size_bytes) {
    return cuMemAlloc_v2(memory, size_bytes);
}

__attribute__((visibility("default"))) int linked_free(uint64_t memory) {
    return cuMemFree_v2(memory);
}

__attribute__((visibility("default"))) int linked_managed(uint64_t *memory, size_t size_bytes) {
    return cuMemAllocManaged(memory, size_bytes, 1);
}
