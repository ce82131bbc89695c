/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_CACHED_H
#define TESTS_UNIT_CACHED_H
/* How much lies in the parts of a cache. */
#include "client/cache/bin.h"
#include "client/core/stream_heap.h"

/* How many pieces are in a bin. */
static inline uint32_t bin_count(const struct bin *bin) {
    return (bin->loaded != NULL ? bin->loaded->count : 0) + (bin->spare != NULL ? bin->spare->count : 0);
}

/* Bytes that are free in a stream heap. */
static inline uint64_t stream_heap_free_bytes(struct stream_heap *stream_heap) {
    pthread_mutex_lock(&stream_heap->lock);
    uint64_t bytes = stream_heap_free_bytes_locked(stream_heap);
    pthread_mutex_unlock(&stream_heap->lock);
    return bytes;
}

#endif
