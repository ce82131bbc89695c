/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_HEAP_FIXTURE_H
#define TESTS_UNIT_HEAP_FIXTURE_H
/* The fixture of the range allocator's tests. */
#include "base/units.h"
#include "heap/heap.h"
#include "tests/random.h"
#include "tests/unit/unit.h"

static uint64_t random_state;

static inline uint64_t random64(void) {
    return random_next(&random_state);
}

static inline uint64_t random_below(uint64_t bound) {
    return random64() % bound;
}

static inline struct heap *heap_new(void) {
    struct heap *heap = malloc(sizeof *heap);
    assert_non_null(heap);
    heap_init(heap);
    return heap;
}

static inline void heap_destroy(struct heap *heap) {
    heap_deinit(heap);
    free(heap);
}

static inline struct heap_span *add_span(struct heap *heap, uint64_t size) {
    struct heap_span *span = NULL;
    assert_int_equal(heap_add_span(heap, size, heap, &span), 0);
    assert_non_null(span);
    return span;
}

static inline struct heap_range *take(struct heap *heap, uint64_t size) {
    struct heap_range *range = NULL;
    assert_int_equal(heap_take(heap, size, HEAP_GRANULE, &range), 0);
    return range;
}

#endif
