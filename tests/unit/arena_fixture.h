/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_ARENA_FIXTURE_H
#define TESTS_UNIT_ARENA_FIXTURE_H
/*
 * The fixture of the arenas' tests: a stream heap with an arena of small slots, over memory that does not
 * exist. The words of the fences are the test's own, so that the test decides when a fence is ready; segments
 * are names only. To be included once, by a test program.
 */
#include "client/core/arena.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/segment.h"
#include "proto/page.h"
#include "stream_heap_fixture.h"

#define QUARTER    (4 * HEAP_GRANULE)
#define SLOT_BYTES (4 * QUARTER)
#define ANY_MOVES  UINT64_MAX

/* A segment by its id. */
#define SEGMENT(number) ((struct segment_ref){.id = (number)})

static struct proto_page page;
static const struct fence_array fences = {.words = page.fences};

static inline void arrive(uint32_t word, uint64_t value) {
    atomic_store(&page.fences[word - 1], value);
}

/* Forgets all fences. */
static inline void fences_reset(void) {
    memset(&page, 0, sizeof page);
}

/* Makes a stream heap with an arena; the arena has one slot, which is vacant. NULL without memory. */
static inline struct arena *arena_try(uint32_t capacity) {
    struct stream_heap *stream_heap = stream_heap_new(
        NULL, &(struct pool_facts){.id = POOL, .kind = GPUPOOL_POOL_DEVICE, .fences = &fences}, NULL);

    if (stream_heap == NULL)
        return NULL;
    if (arena_add_locked(stream_heap, STREAM_HEAP_LARGE, address_in(1, 0), capacity * SLOT_BYTES,
                         SLOT_BYTES, 0) < 0) {
        assert_null(stream_heap->arena);
        assert_true(stream_heap_is_valid(stream_heap));
        stream_heap_free(stream_heap);
        return NULL;
    }
    return stream_heap->arena;
}

static inline struct arena *arena_make(uint32_t capacity) {
    struct arena *arena = arena_try(capacity);
    assert_non_null(arena);
    return arena;
}

static inline bool all_is_valid(const struct arena *arena) {
    return stream_heap_is_valid(arena->extent.stream_heap);
}

static inline void arena_end(struct arena *arena) {
    stream_heap_free(arena->extent.stream_heap);
}

/* The mapping at a slot is gone. */
static inline void unmap_slot(struct arena *arena, uint32_t number) {
    const struct arena_stale stale = {.slot = arena->slots[number].maps_from,
                                      .segment = arena->slots[number].maps};
    arena_forget_stale_locked(arena, &stale);
}

static inline uint64_t slot_start(uint32_t number) {
    return number * SLOT_BYTES;
}

/* Takes free memory of an arena out of the heap, and makes it absent. Returns whether its lease ends. */
static inline bool arena_lose(struct arena *arena, uint64_t offset_bytes, uint64_t size_bytes) {
    struct heap_range *range = heap_range_at(arena->extent.span, offset_bytes);

    assert_int_equal(heap_claim_part(range, offset_bytes, size_bytes, &range), 0);
    return arena_lose_locked(arena, offset_bytes, size_bytes);
}

#endif
