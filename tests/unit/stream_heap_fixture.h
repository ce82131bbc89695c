/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_STREAM_HEAP_FIXTURE_H
#define TESTS_UNIT_STREAM_HEAP_FIXTURE_H
/* The fixture of the stream heaps' tests: stream heaps, and extents of memory that does not exist (stream
 * heaps must not touch it). */
#include "client/core/stream_heap.h"
#include "heap_fixture.h"

#define POOL         7u
#define ADDRESS_STEP (1 * GIB) /* between the addresses of two extents */

static inline uint64_t generation_of(uint64_t lease) {
    return lease * 3 + 1;
}

/* Where a byte of a lease's extent is. */
static inline char *address_in(uint64_t lease, uint64_t bytes) {
    return (char *)(uintptr_t)(lease * ADDRESS_STEP + bytes);
}

/* From either heap. */
static inline int stream_heap_take(struct stream_heap *stream_heap, uint64_t size_bytes,
                                   struct piece **ret_piece) {
    pthread_mutex_lock(&stream_heap->lock);
    int r = stream_heap_take_locked(stream_heap, size_bytes, true, ret_piece);
    pthread_mutex_unlock(&stream_heap->lock);
    return r;
}

static inline void stream_heap_give(struct piece *piece) {
    struct stream_heap *stream_heap = piece->stream_heap;
    pthread_mutex_lock(&stream_heap->lock);
    stream_heap_give_locked(stream_heap, piece);
    pthread_mutex_unlock(&stream_heap->lock);
}

static inline int stream_heap_add_locked(struct stream_heap *stream_heap, enum stream_heap_half heap,
                                         const void *segment, uint64_t lease, uint64_t size_bytes) {
    return stream_heap_add_extent_locked(stream_heap, heap, &(struct segment_view){.segment = segment}, lease,
                                         generation_of(lease), address_in(lease, 0), size_bytes);
}

static inline int stream_heap_add_extent(struct stream_heap *stream_heap, uint64_t lease,
                                         uint64_t size_bytes) {
    pthread_mutex_lock(&stream_heap->lock);
    int r = stream_heap_add_locked(stream_heap, STREAM_HEAP_SMALL, NULL, lease, size_bytes);
    pthread_mutex_unlock(&stream_heap->lock);
    return r;
}

static inline bool stream_heap_reclaim(struct stream_heap *stream_heap, uint64_t minimum_bytes,
                                       struct stream_heap_part *ret_part) {
    pthread_mutex_lock(&stream_heap->lock);
    bool found = stream_heap_reclaim_locked(stream_heap, minimum_bytes, ret_part);
    pthread_mutex_unlock(&stream_heap->lock);
    return found;
}

/* The fence of a part that was taken out is left, if it has none. */
static inline void stream_heap_fence_part(struct stream_heap_part *part) {
    pthread_mutex_lock(&part->stream_heap->lock);
    if (!part->has_fence)
        stream_heap_fence_left_locked(part, (struct fence){1, 1});
    pthread_mutex_unlock(&part->stream_heap->lock);
}

/* Or cannot be left. */
static inline void stream_heap_return_part(const struct stream_heap_part *part) {
    pthread_mutex_lock(&part->stream_heap->lock);
    stream_heap_no_fence_locked(part);
    pthread_mutex_unlock(&part->stream_heap->lock);
}

static inline struct stream_heap *make_stream_heap(void) {
    struct stream_heap *stream_heap =
        stream_heap_new(NULL, &(struct pool_facts){.id = POOL, .kind = 1}, NULL);
    assert_non_null(stream_heap);
    return stream_heap;
}

static inline unsigned stream_heap_extents(const struct stream_heap *stream_heap) {
    return (unsigned)list_length(&stream_heap->extents);
}

#endif
