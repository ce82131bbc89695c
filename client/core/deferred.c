/* SPDX-License-Identifier: Apache-2.0 */
#include "client/core/deferred.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

int deferred_reserve_locked(struct stream_heap *stream_heap, struct fence fence) {
    if (deferred_find_queue(stream_heap, fence.word) != NULL || !list_is_empty(&stream_heap->deferred_spare))
        return 0;
    struct deferred_queue *queue = calloc(1, sizeof *queue);
    if (queue == NULL)
        return -ENOMEM;
    list_append(&stream_heap->deferred_spare, &queue->link);
    return 0;
}

static void append(struct deferred_queue *queue, struct piece *piece) {
    piece->next = NULL;
    if (queue->first == NULL)
        queue->first = piece;
    else
        queue->last->next = piece;
    queue->last = piece;
}

void deferred_push_locked(struct stream_heap *stream_heap, struct piece *piece, struct fence fence) {
    struct deferred_queue *queue = deferred_find_queue(stream_heap, fence.word);

    assert(piece->stream_heap == stream_heap && piece->generation % 2 == 0 && fence.word != 0);
    if (queue == NULL) {
        queue = list_first(&stream_heap->deferred_spare, struct deferred_queue, link);
        assert(queue != NULL); /* the caller has seen to that */
        list_remove(&queue->link);
        *queue = (struct deferred_queue){.word = fence.word, .newest = fence.value};
        list_append(&stream_heap->deferred, &queue->link);
    }
    piece->fence_value = fence.value;
    piece->is_deferred = true;
    append(queue, piece);
    if (deferred_is_after(fence.value, queue->newest))
        queue->newest = fence.value;
    stream_heap->deferred_bytes += piece->capacity_bytes;
    piece->extent->deferred_bytes += piece->capacity_bytes;
    stream_heap->touched = true;
}

/* It is out of its queue. */
static void leave(struct stream_heap *stream_heap, struct piece *piece) {
    piece->next = NULL;
    piece->is_deferred = false;
    stream_heap->deferred_bytes -= piece->capacity_bytes;
    piece->extent->deferred_bytes -= piece->capacity_bytes;
}

static struct piece *pop(struct stream_heap *stream_heap, struct deferred_queue *queue) {
    struct piece *piece = queue->first;

    queue->first = piece->next;
    leave(stream_heap, piece);
    return piece;
}

static void retire_if_empty(struct stream_heap *stream_heap, struct deferred_queue *queue) {
    if (queue->first != NULL)
        return;
    list_remove(&queue->link);
    list_append(&stream_heap->deferred_spare, &queue->link);
}

bool deferred_settle_locked(struct stream_heap *stream_heap, unsigned limit) {
    unsigned given = 0;

    list_for_each_entry_safe(struct deferred_queue, queue, &stream_heap->deferred, link) {
        if (given == limit)
            break;
        while (given < limit && queue->first != NULL &&
               fence_array_has(stream_heap->fences, (struct fence){queue->word, queue->first->fence_value})) {
            stream_heap_give_locked(stream_heap, pop(stream_heap, queue));
            given++;
        }
        retire_if_empty(stream_heap, queue);
        if (queue->first != NULL && given == limit) { /* the others come first next time */
            list_remove(&queue->link);
            list_append(&stream_heap->deferred, &queue->link);
            break;
        }
    }
    return given > 0;
}

unsigned deferred_fences_locked(const struct stream_heap *stream_heap, struct fence *fences,
                                unsigned capacity) {
    unsigned count = 0;

    list_for_each_entry(const struct deferred_queue, queue, &stream_heap->deferred, link) {
        if (count < capacity)
            fences[count++] = (struct fence){queue->word, queue->newest};
    }
    return count;
}

/* Takes the pieces out of a queue that the function accepts. */
static void filter(struct stream_heap *stream_heap, struct deferred_queue *queue,
                   bool (*accept)(struct stream_heap *stream_heap, struct piece *piece, void *user),
                   void *user) {
    struct piece *piece = queue->first;

    queue->first = queue->last = NULL;
    while (piece != NULL) {
        struct piece *next = piece->next;
        if (!accept(stream_heap, piece, user))
            append(queue, piece);
        piece = next;
    }
    retire_if_empty(stream_heap, queue);
}

static bool accept_ordered(struct stream_heap *stream_heap, struct piece *piece, void *user) {
    if (deferred_is_after(piece->fence_value, *(const uint64_t *)user))
        return false;
    leave(stream_heap, piece);
    stream_heap_give_locked(stream_heap, piece);
    return true;
}

void deferred_order_locked(struct stream_heap *stream_heap, struct fence fence) {
    struct deferred_queue *queue = deferred_find_queue(stream_heap, fence.word);
    if (queue != NULL)
        filter(stream_heap, queue, accept_ordered, &fence.value);
}

struct reclaim {
    uint64_t minimum_bytes;
    const char *start, *end; /* only pieces that begin between them; NULL: all */
    uint32_t word;
    struct stream_heap_part *parts;
    size_t count, capacity;
};

static void add_part(struct reclaim *reclaim, struct fence fence) {
    struct stream_heap_part *part = &reclaim->parts[reclaim->count++];

    if (!part->has_fence)
        stream_heap_fence_left_locked(part, fence);
}

/* A piece in several parts loses the last of them, while there is room. */
static bool accept_part(struct stream_heap *stream_heap, struct piece *piece, void *user) {
    struct reclaim *reclaim = user;
    struct fence fence = {reclaim->word, piece->fence_value};

    if (reclaim->end != NULL && (piece->memory < reclaim->start || piece->memory >= reclaim->end))
        return false;
    if (piece->capacity_bytes < reclaim->minimum_bytes && !stream_heap_extent_is_idle_locked(piece->extent))
        return false;
    while (reclaim->count < reclaim->capacity && !stream_heap_is_one_part_locked(piece)) {
        uint64_t bytes = piece->capacity_bytes;
        if (!stream_heap_lose_end_locked(piece, &reclaim->parts[reclaim->count]))
            return false;
        stream_heap->deferred_bytes -= bytes - piece->capacity_bytes;
        piece->extent->deferred_bytes -= bytes - piece->capacity_bytes;
        add_part(reclaim, fence);
    }
    if (reclaim->count == reclaim->capacity)
        return false;
    leave(stream_heap, piece);
    stream_heap_lose_locked(piece, &reclaim->parts[reclaim->count]);
    add_part(reclaim, fence);
    return true;
}

static size_t reclaim_parts(struct stream_heap *stream_heap, struct reclaim *reclaim) {
    list_for_each_entry_safe(struct deferred_queue, queue, &stream_heap->deferred, link) {
        reclaim->word = queue->word;
        filter(stream_heap, queue, accept_part, reclaim);
    }
    return reclaim->count;
}

size_t deferred_reclaim_locked(struct stream_heap *stream_heap, uint64_t minimum_bytes,
                               struct stream_heap_part *ret_parts, size_t capacity) {
    return reclaim_parts(
        stream_heap,
        &(struct reclaim){.minimum_bytes = minimum_bytes, .parts = ret_parts, .capacity = capacity});
}

size_t deferred_reclaim_between_locked(struct stream_heap *stream_heap, const char *start, const char *end,
                                       struct stream_heap_part *ret_parts, size_t capacity) {
    return reclaim_parts(
        stream_heap, &(struct reclaim){.start = start, .end = end, .parts = ret_parts, .capacity = capacity});
}
