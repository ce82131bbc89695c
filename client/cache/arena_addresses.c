/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/arena_addresses.h"

#include "base/cleanup.h"
#include "client/cache/cache.h"
#include "client/core/arena.h"
#include "client/session/error.h"
#include "client/session/mapped_range.h"
#include "client/session/session.h"

static bool make_arena(struct cache *cache, struct stream_heap *stream_heap, uint64_t limit_bytes) {
    const struct gpu *gpu;
    uint64_t slot_bytes = proto_slot_bytes(limit_bytes);
    uint64_t bytes = (limit_bytes + slot_bytes - 1) / slot_bytes * slot_bytes * ARENA_ADDRESS_FACTOR;
    int error;

    if (devices_need_gpu(&cache->session->devices, &gpu) < 0)
        return false;
    struct mapped_range *range =
        mapped_range_new(gpu, (unsigned)stream_heap->device, bytes, (uint32_t)(bytes / slot_bytes), &error);
    if (range == NULL)
        return false;
    pthread_mutex_lock(&stream_heap->lock);
    bool is_first = stream_heap->arena == NULL;
    bool made = is_first && arena_add_locked(stream_heap, STREAM_HEAP_LARGE, range->memory, bytes, slot_bytes,
                                             proto_large_bytes(limit_bytes)) == 0;
    if (made)
        stream_heap->arena->range = range;
    pthread_mutex_unlock(&stream_heap->lock);
    if (!made)
        mapped_range_free(range);
    return made || !is_first;
}

bool arena_serves(struct cache *cache, struct stream_heap *stream_heap, uint64_t size_bytes) {
    uint64_t limit_bytes = atomic_load_explicit(&stream_heap->limit_bytes, memory_order_relaxed);
    char text[ERROR_TEXT_SIZE];

    if (!cache->has_arenas || stream_heap->kind != GPUPOOL_POOL_DEVICE || !stream_heap->is_movable ||
        stream_heap_half_of(size_bytes) != STREAM_HEAP_LARGE || size_bytes > limit_bytes)
        return false;
    pthread_mutex_lock(&stream_heap->lock);
    bool has_arena = stream_heap->arena != NULL, may_have = !stream_heap->has_no_arena;
    pthread_mutex_unlock(&stream_heap->lock);
    if (!has_arena && may_have) {
        error_save(text);
        has_arena = make_arena(cache, stream_heap, limit_bytes);
        error_restore(text);
        pthread_mutex_lock(&stream_heap->lock);
        stream_heap->has_no_arena = !has_arena;
        pthread_mutex_unlock(&stream_heap->lock);
    }
    return has_arena;
}

void arena_leave_addresses(struct stream_heap *stream_heap) {
    if (stream_heap->arena != NULL)
        mapped_range_free(take_ptr(&stream_heap->arena->range));
}

void arena_forget_addresses(struct stream_heap *stream_heap) {
    if (stream_heap->arena != NULL)
        mapped_range_forget(take_ptr(&stream_heap->arena->range));
}

void arena_segment_closed(void *owner, const struct segment *segment) {
    struct cache *cache = owner;

    pthread_mutex_lock(&cache->stream_heaps_lock);
    list_for_each_entry(struct stream_heap, stream_heap, &cache->stream_heaps, link) {
        if (stream_heap->pool != segment->pool)
            continue;
        pthread_mutex_lock(&stream_heap->lock);
        if (stream_heap->arena != NULL)
            arena_unmapped_locked(stream_heap->arena, segment->id);
        pthread_mutex_unlock(&stream_heap->lock);
    }
    pthread_mutex_unlock(&cache->stream_heaps_lock);
}
