/* SPDX-License-Identifier: Apache-2.0 */
#include "client/core/stream_heap.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/lock.h"
#include "base/units.h"
#include "client/core/arena.h"
#include "client/core/deferred.h"
#include "client/core/size_class.h"
#include "client/include/gpupool/gpupool.h"

/* The number of unanswered messages about a lease. Each may leave the lease in one range more. The daemon
 * has room for PROTO_ONE_WAY_MAX. */
#define EXTENT_ONE_WAY_MAX (4 * LEASE_ONE_WAY_MAX)

struct stream_heap *stream_heap_new(struct cache *owner, const struct pool_facts *pool, void *stream) {
    struct stream_heap *stream_heap = aligned_alloc(CACHE_LINE_BYTES, sizeof *stream_heap);
    if (stream_heap == NULL)
        return NULL;
    memset(stream_heap, 0, sizeof *stream_heap);
    stream_heap->owner = owner;
    stream_heap->pool = pool->id;
    stream_heap->kind = pool->kind;
    stream_heap->device = pool->device;
    stream_heap->is_movable = pool->is_movable;
    stream_heap->fences = pool->fences;
    atomic_init(&stream_heap->limit_bytes, pool->limit_bytes);
    stream_heap->stream = stream;
    stream_heap->pieces.stream_heap = stream_heap;
    stream_heap->pieces.leave_map = pool->leave_map;
    list_init(&stream_heap->link);
    list_init(&stream_heap->pool_link);
    list_init(&stream_heap->extents);
    list_init(&stream_heap->deferred);
    list_init(&stream_heap->deferred_spare);
    for (unsigned heap = 0; heap < STREAM_HEAP_HALVES; heap++)
        heap_init(&stream_heap->heaps[heap]);
    lock_init_brief(&stream_heap->lock);
    return stream_heap;
}

/* Frees queues of deferred pieces, whatever stands in them. */
static void free_queues(struct list *queues) {
    list_for_each_entry_safe(struct deferred_queue, queue, queues, link) {
        free(queue);
    }
}

struct stream_heap *stream_heap_free(struct stream_heap *stream_heap) {
    if (stream_heap == NULL)
        return NULL;
    list_for_each_entry_safe(struct extent, extent, &stream_heap->extents, link) {
        if (extent->is_arena)
            arena_free(arena_of(extent));
        else
            free(extent);
    }
    piece_stock_deinit(&stream_heap->pieces);
    free_queues(&stream_heap->deferred);
    free_queues(&stream_heap->deferred_spare);
    for (unsigned heap = 0; heap < STREAM_HEAP_HALVES; heap++)
        heap_deinit(&stream_heap->heaps[heap]);
    pthread_mutex_destroy(&stream_heap->lock);
    free(stream_heap);
    return NULL;
}

/* Gives a piece the memory that it is for. */
static void piece_cover(struct piece *piece, struct heap_range *range) {
    piece->extent = range->span->user;
    piece->range = range;
    piece->memory = piece->extent->memory + range->offset;
    piece->capacity_bytes = range->size;
    piece->size_class = size_class_of(range->size);
    if (range->offset + range->size > piece->extent->used_bytes)
        piece->extent->used_bytes = range->offset + range->size;
    const struct lending *lending = extent_lending_at(piece->extent, range->offset);
    piece->lease = lending->lease;
    piece->lease_generation = lending->generation;
    range->user = piece;
}

enum stream_heap_half stream_heap_half_of(uint64_t size_bytes) {
    return size_bytes <= STREAM_HEAP_SMALL_MAX_BYTES ? STREAM_HEAP_SMALL : STREAM_HEAP_LARGE;
}

static struct heap *other_heap(struct stream_heap *stream_heap, uint64_t size_bytes) {
    return &stream_heap->heaps[stream_heap_half_of(size_bytes) == STREAM_HEAP_SMALL ? STREAM_HEAP_LARGE
                                                                                    : STREAM_HEAP_SMALL];
}

static struct heap *own_heap(struct stream_heap *stream_heap, uint64_t size_bytes) {
    return &stream_heap->heaps[stream_heap_half_of(size_bytes)];
}

bool stream_heap_has_locked(struct stream_heap *stream_heap, uint64_t size_bytes) {
    return heap_has(own_heap(stream_heap, size_bytes), size_bytes) ||
           heap_has(other_heap(stream_heap, size_bytes), size_bytes);
}

int stream_heap_take_locked(struct stream_heap *stream_heap, uint64_t size_bytes, bool anywhere,
                            struct piece **ret_piece) {
    struct heap_range *range;
    struct piece *piece = piece_take(&stream_heap->pieces);

    if (piece == NULL)
        return -ENOMEM;
    int r = heap_take(own_heap(stream_heap, size_bytes), size_bytes, HEAP_GRANULE, &range);
    if (r == -ENOSPC && anywhere)
        r = heap_take(other_heap(stream_heap, size_bytes), size_bytes, HEAP_GRANULE, &range);
    if (r < 0) {
        piece_give(&stream_heap->pieces, piece);
        return r;
    }
    piece_cover(piece, range);
    stream_heap->touched = true;
    *ret_piece = piece;
    return 0;
}

int stream_heap_take_at_locked(struct extent *extent, uint64_t offset_bytes, uint64_t size_bytes,
                               struct piece **ret_piece) {
    struct heap_range *range;
    struct piece *piece = piece_take(&extent->stream_heap->pieces);

    if (piece == NULL)
        return -ENOMEM;
    int r = heap_claim_part(heap_range_at(extent->span, offset_bytes), offset_bytes, size_bytes, &range);
    if (r < 0) {
        piece_give(&extent->stream_heap->pieces, piece);
        return r;
    }
    piece_cover(piece, range);
    *ret_piece = piece;
    return 0;
}

void stream_heap_give_locked(struct stream_heap *stream_heap, struct piece *piece) {
    assert(piece->stream_heap == stream_heap && piece->range != NULL && !piece->split_off &&
           !piece->splitting);
    if (piece->capacity_bytes > STREAM_HEAP_SMALL_MAX_BYTES)
        stream_heap->churn_bytes += piece->capacity_bytes;
    heap_give(piece->range);
    piece_give(&stream_heap->pieces, piece);
}

int stream_heap_add_extent_locked(struct stream_heap *stream_heap, enum stream_heap_half heap,
                                  const struct segment_view *segment, uint64_t lease, uint64_t generation,
                                  char *memory, uint64_t size_bytes) {
    struct extent *extent = calloc(1, sizeof *extent);
    if (extent == NULL)
        return -ENOMEM;
    int r = heap_add_span(&stream_heap->heaps[heap], size_bytes, extent, &extent->span);
    if (r < 0) {
        free(extent);
        return r;
    }
    extent->stream_heap = stream_heap;
    extent->segment = *segment;
    extent->lending.lease = lease;
    extent->lending.generation = generation;
    extent->memory = memory;
    extent->size_bytes = size_bytes;
    list_append(&stream_heap->extents, &extent->link);
    stream_heap->touched = true;
    stream_heap->collects = 0;
    return 0;
}

int stream_heap_shrink_locked(struct piece *piece, uint64_t capacity_bytes) {
    struct heap_range *upper;

    assert(capacity_bytes < piece->capacity_bytes);
    int r = heap_split(piece->range, capacity_bytes, &upper);
    if (r < 0)
        return r;
    heap_give(upper);
    piece->capacity_bytes = capacity_bytes;
    piece->size_class = size_class_of(capacity_bytes);
    return 0;
}

int stream_heap_cut_locked(struct piece *piece, uint64_t capacity_bytes, struct piece **ret_tail) {
    struct heap_range *upper;

    assert(capacity_bytes < piece->capacity_bytes);
    struct piece *tail = piece_take(&piece->stream_heap->pieces);
    if (tail == NULL)
        return -ENOMEM;
    int r = heap_split(piece->range, capacity_bytes, &upper);
    if (r < 0) {
        piece_give(&piece->stream_heap->pieces, tail);
        return r;
    }
    piece_cover(tail, upper);
    piece->capacity_bytes = capacity_bytes;
    piece->size_class = size_class_of(capacity_bytes);
    *ret_tail = tail;
    return 0;
}

/* Frees an extent of which nothing is here any more. */
static void extent_end(struct extent *extent) {
    assert(extent->absent_bytes == extent->size_bytes);
    while (extent->span->taken_bytes > 0) { /* giving joins ranges: only the lowest may be free already */
        struct heap_range *range = extent->span->lowest;
        heap_give(range->free ? range->upper : range);
    }
    extent->stream_heap->absent_bytes -= extent->absent_bytes;
    heap_remove_span(extent->span);
    list_remove(&extent->link);
    free(extent);
}

/* Frees an extent if all of it is gone. */
static void extent_end_if_gone(struct extent *extent) {
    if (!extent->is_arena && extent->n_out == 0 && extent->absent_bytes == extent->size_bytes)
        extent_end(extent);
}

/* Whether the lease that the range is of ends thereby. */
static bool extent_lose(struct extent *extent, struct heap_range *range) {
    range->user = NULL; /* absent: taken by no piece */
    if (extent->is_arena)
        return arena_lose_locked(arena_of(extent), range->offset, range->size);
    extent->absent_bytes += range->size;
    extent->stream_heap->absent_bytes += range->size;
    return extent->absent_bytes == extent->size_bytes;
}

/* Makes an offset inside an absent range the border of two. False without memory. */
static bool absent_split(struct extent *extent, uint64_t offset) {
    struct heap_range *range = heap_range_at(extent->span, offset), *upper;
    return range == NULL || range->offset == offset || heap_split(range, offset - range->offset, &upper) == 0;
}

/* Whether the extent has nothing between two offsets. */
static bool extent_lacks(const struct extent *extent, uint64_t offset, uint64_t end) {
    for (const struct heap_range *range = heap_range_at(extent->span, offset);
         range != NULL && range->offset < end; range = range->upper)
        if (!stream_heap_range_is_absent(range))
            return false;
    return true;
}

struct extent *stream_heap_neighbour_locked(struct stream_heap *stream_heap, enum stream_heap_half heap,
                                            const void *segment, const char *memory, uint64_t size_bytes) {
    list_for_each_entry(struct extent, extent, &stream_heap->extents, link) {
        if (extent->span->heap != &stream_heap->heaps[heap] || extent->segment.segment != segment ||
            extent->is_arena || extent->absent_bytes == extent->size_bytes || extent->lending.splitting > 0 ||
            extent->lending.one_way >= EXTENT_ONE_WAY_MAX || memory < extent->memory ||
            memory > extent->memory + extent->size_bytes)
            continue;
        uint64_t offset = (uint64_t)(memory - extent->memory), end = offset + size_bytes;
        if (!extent_lacks(extent, offset, end))
            continue;
        if (end > extent->size_bytes) {
            struct heap_range *more;
            if (heap_extend_span(extent->span, end - extent->size_bytes, &more) < 0)
                return NULL;
            extent->size_bytes += more->size;
            extent->absent_bytes += more->size;
            stream_heap->absent_bytes += more->size;
        }
        return absent_split(extent, offset) && absent_split(extent, end) ? extent : NULL;
    }
    return NULL;
}

/* Gives the heap what the extent lacks between two offsets. */
static void give_absent(struct extent *extent, uint64_t offset, uint64_t end) {
    struct heap_range *range;

    /* Giving joins ranges, so each is looked for anew: the first that is still absent. */
    for (range = heap_range_at(extent->span, offset); range != NULL && range->offset < end;) {
        if (range->free) {
            range = range->upper;
            continue;
        }
        extent->absent_bytes -= range->size;
        extent->stream_heap->absent_bytes -= range->size;
        heap_give(range);
        range = heap_range_at(extent->span, offset);
    }
}

void stream_heap_fill_locked(struct extent *extent, const char *memory, uint64_t size_bytes) {
    uint64_t offset = (uint64_t)(memory - extent->memory);

    give_absent(extent, offset, offset + size_bytes);
    extent->lending.one_way++;
    extent->stream_heap->touched = true;
    extent->stream_heap->collects = 0;
}

/* Where the slot of an arena ends that an offset is in, or the range, whichever is first. */
static uint64_t part_end(struct extent *extent, const struct heap_range *range, uint64_t offset) {
    uint64_t end = range->offset + range->size;
    const struct arena *arena = arena_of(extent);

    uint64_t slot_end = arena == NULL ? end : arena_slot_end(arena, arena_slot_at(arena, offset));
    return slot_end < end ? slot_end : end;
}

bool stream_heap_is_one_part_locked(const struct piece *piece) {
    const struct heap_range *range = piece->range;
    return part_end(piece->extent, range, range->offset) == range->offset + range->size;
}

uint64_t stream_heap_offset_in_lease(const struct piece *piece) {
    const struct arena *arena = arena_of(piece->extent);
    uint64_t offset = (uint64_t)(piece->memory - piece->extent->memory);

    return arena == NULL ? offset : offset - arena_slot_start(arena, arena_slot_at(arena, offset));
}

/* A lease of its own is asked for each part of a piece, or the answer has come. */
static void count_splitting(struct piece *piece, int change) {
    const struct heap_range *range = piece->range;

    for (uint64_t offset = range->offset; offset < range->offset + range->size;
         offset = part_end(piece->extent, range, offset))
        extent_lending_at(piece->extent, offset)->splitting += (unsigned)change;
}

void stream_heap_begin_split_locked(struct piece *piece) {
    count_splitting(piece, 1);
}

void stream_heap_cancel_split_locked(struct piece *piece) {
    count_splitting(piece, -1);
}

void stream_heap_split_off_locked(struct piece *piece, uint64_t lease, uint64_t generation) {
    struct heap_range *range = piece->range, *upper;
    struct extent *extent = piece->extent;
    uint64_t end = range->offset + range->size;

    count_splitting(piece, -1);
    piece->split_off = true;
    if (piece->stream_heap->lent < STREAM_HEAP_LENT_MAX)
        piece->stream_heap->lent++;
    piece->lease = lease;
    piece->lease_generation = generation;
    piece->range = NULL;
    piece->extent = extent->is_arena ? extent : NULL; /* whose slots it keeps */
    for (uint64_t border; (border = part_end(extent, range, range->offset)) < end; range = upper) {
        if (heap_split(range, border - range->offset, &upper) < 0) {
            arena_abandon_locked(arena_of(extent), range);
            return;
        }
        assert(extent->is_arena); /* else the piece has one part; an arena outlives its parts */
        extent_lose(extent, range);
    }
    extent_lose(extent, range);
    extent_end_if_gone(extent);
}

void stream_heap_forget_piece_locked(struct stream_heap *stream_heap, struct piece *piece,
                                     struct fence fence) {
    struct arena *arena = piece->extent == NULL ? NULL : arena_of(piece->extent);

    assert(piece->stream_heap == stream_heap && piece->range == NULL);
    if (arena != NULL) {
        uint64_t offset = (uint64_t)(piece->memory - arena->extent.memory);
        uint32_t last = arena_slot_at(arena, offset + piece->capacity_bytes - 1);
        for (uint32_t i = arena_slot_at(arena, offset); i <= last; i = arena_slot_after(arena, i))
            arena_note_fence_locked(arena, i, fence);
    }
    piece_give(&stream_heap->pieces, piece);
}

bool stream_heap_extent_is_idle_locked(const struct extent *extent) {
    return !extent->is_arena && extent->span->taken_bytes == extent->absent_bytes + extent->deferred_bytes;
}

void stream_heap_fence_left_locked(struct stream_heap_part *part, struct fence fence) {
    struct extent *extent = part->extent;

    assert(!part->has_fence);
    part->has_fence = true;
    part->fence = fence;
    part->extent = NULL;
    if (extent->is_arena) {
        arena_note_fence_locked(arena_of(extent), part->slot, fence);
        return;
    }
    assert(extent->n_out > 0);
    extent->n_out--;
    extent_end_if_gone(extent);
}

void stream_heap_no_fence_locked(const struct stream_heap_part *part) {
    struct extent *extent = part->extent;

    assert(!part->has_fence);
    if (extent->is_arena) {
        arena_regain_locked(arena_of(extent), part->slot, part->offset_bytes, part->size_bytes);
        return;
    }
    assert(extent->n_out > 0);
    extent->n_out--;
    give_absent(extent, part->offset_bytes, part->offset_bytes + part->size_bytes);
}

/* Makes a range absent, which is a part of one lease, and says what has to be released: behind which fence is
 * not known yet, unless no piece has lain there. */
static void lose_part(struct extent *extent, struct heap_range *range, struct stream_heap_part *ret_part) {
    struct arena *arena = arena_of(extent);
    uint32_t slot = arena == NULL ? 0 : arena_slot_at(arena, range->offset);
    struct lending *lending = extent_lending_at(extent, range->offset);
    bool is_answered = ++lending->one_way >= LEASE_ONE_WAY_MAX;
    if (is_answered)
        lending->one_way = 0;
    *ret_part = (struct stream_heap_part){
        .stream_heap = extent->stream_heap,
        .lease = lending->lease,
        .generation = lending->generation,
        .offset_bytes = range->offset - (arena == NULL ? 0 : arena_slot_start(arena, slot)),
        .size_bytes = range->size,
        .is_answered = is_answered,
        .segment = arena == NULL ? extent->segment.segment : arena->slots[slot].segment.segment,
        .extent = extent,
        .slot = slot,
    };
    bool is_unused = arena == NULL && range->offset >= extent->used_bytes;
    if (arena == NULL)
        extent->n_out++;
    ret_part->whole = extent_lose(extent, range);
    if (is_unused)
        stream_heap_fence_left_locked(ret_part, FENCE_NONE);
}

bool stream_heap_reclaim_locked(struct stream_heap *stream_heap, uint64_t minimum_bytes,
                                struct stream_heap_part *ret_part) {
    for (struct list *position = stream_heap->extents.previous; position != &stream_heap->extents;
         position = position->previous) {
        struct extent *extent = container_of(position, struct extent, link);
        bool idle = stream_heap_extent_is_idle_locked(extent);
        struct heap_range *range = extent->span->lowest;
        if (extent->is_arena) {
            if (!arena_reclaim_locked(arena_of(extent), minimum_bytes < PROTO_SLOT_BYTES_MIN, &range))
                continue;
            lose_part(extent, range, ret_part);
            return true;
        }
        if (extent->span->taken_bytes == extent->size_bytes)
            continue;
        while (range->upper != NULL)
            range = range->upper;
        for (; range != NULL; range = range->lower) {
            if (!range->free || (range->size < minimum_bytes && !idle))
                continue;
            heap_claim(range);
            lose_part(extent, range, ret_part);
            return true;
        }
    }
    return false;
}

bool stream_heap_reclaim_lent_locked(struct stream_heap *stream_heap, struct stream_heap_part *ret_part) {
    list_for_each_entry(struct extent, extent, &stream_heap->extents, link) {
        struct heap_range *range = extent->span->lowest;
        if (extent->absent_bytes == 0 ||
            !(extent->is_arena ? arena_reclaim_rest_locked(arena_of(extent), &range)
                               : stream_heap_extent_is_idle_locked(extent)))
            continue;
        while (!extent->is_arena && range != NULL && !range->free)
            range = range->upper;
        if (range == NULL) /* what is left is deferred */
            continue;
        if (!extent->is_arena)
            heap_claim(range);
        lose_part(extent, range, ret_part);
        return true;
    }
    return false;
}

bool stream_heap_reclaim_between_locked(struct stream_heap *stream_heap, const char *start, const char *end,
                                        struct stream_heap_part *ret_part) {
    list_for_each_entry(struct extent, extent, &stream_heap->extents, link) {
        if (extent->is_arena || extent->span->taken_bytes == extent->size_bytes || extent->memory >= end ||
            extent->memory + extent->size_bytes <= start)
            continue;
        uint64_t from = start > extent->memory ? (uint64_t)(start - extent->memory) : 0;
        for (struct heap_range *range = heap_range_at(extent->span, from);
             range != NULL && extent->memory + range->offset < end; range = range->upper) {
            if (!range->free || range->offset < from)
                continue;
            heap_claim(range);
            lose_part(extent, range, ret_part);
            return true;
        }
    }
    return false;
}

bool stream_heap_reclaim_slot_locked(struct stream_heap *stream_heap, struct stream_heap_part *ret_part) {
    struct arena *arena = stream_heap->arena;
    struct heap_range *range;

    if (arena == NULL ||
        (!arena_reclaim_locked(arena, false, &range) && !arena_reclaim_target_locked(arena, &range)))
        return false;
    lose_part(&stream_heap->arena->extent, range, ret_part);
    return true;
}

void stream_heap_lose_locked(struct piece *piece, struct stream_heap_part *ret_part) {
    struct heap_range *range = piece->range;
    struct extent *extent = piece->extent;

    piece_give(&piece->stream_heap->pieces, piece);
    lose_part(extent, range, ret_part);
}

bool stream_heap_lose_end_locked(struct piece *piece, struct stream_heap_part *ret_part) {
    const struct arena *arena = arena_of(piece->extent);
    struct heap_range *range = piece->range, *upper;

    assert(arena != NULL); /* elsewhere a piece has one part */
    uint64_t end = range->offset + range->size;
    uint64_t start = arena_slot_start(arena, arena_slot_at(arena, end - 1));
    if (heap_split(range, start - range->offset, &upper) < 0)
        return false;
    piece->capacity_bytes -= upper->size;
    lose_part(piece->extent, upper, ret_part);
    return true;
}

static bool deferred_is_valid_locked(const struct stream_heap *stream_heap) {
    uint64_t bytes = 0, of_extents = 0;
    bool valid = true;

    list_for_each_entry(const struct deferred_queue, queue, &stream_heap->deferred, link) {
        const struct piece *last = NULL;
        valid = valid && queue->word != 0 && queue->first != NULL &&
                deferred_find_queue(stream_heap, queue->word) == queue;
        for (const struct piece *piece = queue->first; piece != NULL; piece = piece->next) {
            valid = valid && piece->stream_heap == stream_heap && piece->generation % 2 == 0 &&
                    piece->range != NULL && !piece->range->free &&
                    !deferred_is_after(piece->fence_value, queue->newest);
            bytes += piece->capacity_bytes;
            last = piece;
        }
        valid = valid && last == queue->last;
    }
    list_for_each_entry(const struct extent, extent, &stream_heap->extents, link) {
        of_extents += extent->deferred_bytes;
    }
    return valid && bytes == stream_heap->deferred_bytes && bytes == of_extents;
}

bool stream_heap_is_valid(struct stream_heap *stream_heap) {
    bool valid;

    pthread_mutex_lock(&stream_heap->lock);
    valid = heap_is_valid(&stream_heap->heaps[STREAM_HEAP_SMALL]) &&
            heap_is_valid(&stream_heap->heaps[STREAM_HEAP_LARGE]) && deferred_is_valid_locked(stream_heap);
    uint64_t all_absent = 0;
    list_for_each_entry(struct extent, extent, &stream_heap->extents, link) {
        uint64_t absent = 0;
        for (const struct heap_range *range = extent->span->lowest; range != NULL; range = range->upper) {
            const struct piece *piece = range->user;
            if (range->free)
                continue;
            if (piece == NULL)
                absent += range->size;
            else if (piece->range != range || piece->extent != extent || piece->stream_heap != stream_heap ||
                     piece->memory != extent->memory + range->offset || piece->capacity_bytes != range->size)
                valid = false;
        }
        all_absent += absent;
        valid = valid && absent == extent->absent_bytes &&
                (extent->is_arena ? arena_is_valid(arena_of(extent))
                                  : absent < extent->size_bytes || extent->n_out > 0);
    }
    valid = valid && all_absent == stream_heap->absent_bytes;
    pthread_mutex_unlock(&stream_heap->lock);
    return valid;
}
