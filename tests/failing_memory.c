/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/failing_memory.h"

#include <search.h>
#include <stdlib.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *pointer, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__real_tsearch(const void *key, void **root, int (*compare)(const void *, const void *));
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *pointer, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void *__wrap_tsearch(const void *key, void **root, int (*compare)(const void *, const void *));

static _Thread_local unsigned left, allocations;
static _Thread_local bool failed;

void memory_fail_nth(unsigned n) {
    left = n;
    failed = false;
}

bool memory_failed(void) {
    return failed;
}

unsigned memory_allocations(void) {
    return allocations;
}

static bool fails(void) {
    allocations++;
    if (left == 0 || --left > 0)
        return false;
    failed = true;
    return true;
}

void *memory_make(size_t count, size_t size) {
    void *memory = __real_calloc(count, size);
    if (memory == NULL)
        abort();
    return memory;
}

void *__wrap_malloc(size_t size) {
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size) {
    return fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *pointer, size_t size) {
    return fails() ? NULL : __real_realloc(pointer, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size) {
    return fails() ? NULL : __real_aligned_alloc(alignment, size);
}

/* The C library's own allocations are out of the linker's reach. */
void *__wrap_tsearch(const void *key, void **root, int (*compare)(const void *, const void *)) {
    return fails() ? NULL : __real_tsearch(key, root, compare);
}
