/* SPDX-License-Identifier: Apache-2.0 */
#include "client/core/arena.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "client/core/deferred.h"

int arena_add_locked(struct stream_heap *stream_heap, enum stream_heap_half half, char *memory,
                     uint64_t reserved_bytes, uint64_t slot_bytes, uint64_t large_bytes) {
    struct arena *arena = calloc(1, sizeof *arena);
    if (arena == NULL)
        return -ENOMEM;
    arena->slot_bytes = slot_bytes;
    arena->widths[ARENA_WIDTH_ONE] = 1;
    if (large_bytes > 0)
        arena->widths[ARENA_WIDTH_LARGE] = (uint32_t)(large_bytes / slot_bytes);
    if (large_bytes / 2 > slot_bytes)
        arena->widths[ARENA_WIDTH_HALF] = (uint32_t)(large_bytes / 2 / slot_bytes);
    arena->reserved_bytes = reserved_bytes;
    arena->capacity = (uint32_t)(reserved_bytes / slot_bytes);
    arena->slots = calloc(arena->capacity, sizeof *arena->slots); /* touched as far as they are used */
    arena->below = calloc(arena->capacity + 1, sizeof *arena->below);
    struct extent *extent = &arena->extent;
    int r = arena->slots == NULL || arena->below == NULL
                ? -ENOMEM
                : heap_add_span(&stream_heap->heaps[half], slot_bytes, extent, &extent->span);
    if (r < 0) {
        arena_free(arena);
        return r;
    }
    heap_claim(extent->span->lowest);
    extent->stream_heap = stream_heap;
    extent->is_arena = true;
    extent->memory = memory;
    extent->size_bytes = extent->absent_bytes = slot_bytes;
    stream_heap->absent_bytes += slot_bytes;
    arena->n_slots = 1;
    list_append(&stream_heap->extents, &extent->link);
    stream_heap->arena = arena;
    return 0;
}

void arena_free(struct arena *arena) {
    free(arena->below);
    free(arena->slots);
    free(arena);
}

struct lending *extent_lending_at(struct extent *extent, uint64_t offset_bytes) {
    struct arena *arena = arena_of(extent);
    return arena == NULL ? &extent->lending : &arena->slots[arena_slot_at(arena, offset_bytes)].lending;
}

/* Bytes of the arena that the heap does not have; "negative": that it gets. */
static void count_absent(struct arena *arena, uint64_t bytes) {
    arena->extent.absent_bytes += bytes;
    arena->extent.stream_heap->absent_bytes += bytes;
}

static bool is_ready(const struct arena *arena, struct fence fence) {
    return fence_array_has(arena->extent.stream_heap->fences, fence);
}

/* --- claims --- */

/* Gives the arena slots for addresses up to an offset. 0 or -ENOMEM. */
static int extend(struct arena *arena, uint64_t end) {
    while (arena->extent.size_bytes < end) {
        struct heap_range *range;
        int r = heap_extend_span(arena->extent.span, arena->slot_bytes, &range);
        if (r < 0)
            return r;
        arena->extent.size_bytes += arena->slot_bytes;
        count_absent(arena, arena->slot_bytes);
        arena->n_slots++;
    }
    return 0;
}

/* Takes what is free between two offsets. 0 or -ENOMEM. */
static int claim_free(struct arena *arena, uint64_t start, uint64_t end) {
    struct heap_range *range = heap_range_at(arena->extent.span, start);

    for (; range != NULL && range->offset < end; range = range->upper) {
        if (!range->free)
            continue;
        uint64_t from = range->offset > start ? range->offset : start;
        uint64_t to = range->offset + range->size < end ? range->offset + range->size : end;
        int r = heap_claim_part(range, from, to - from, &range);
        if (r < 0)
            return r;
        count_absent(arena, to - from);
    }
    return 0;
}

int arena_divide_locked(struct arena *arena, uint32_t start, uint32_t end) {
    for (uint32_t i = start; i < end; i++) {
        uint64_t offset = arena_slot_start(arena, i);
        struct heap_range *range = heap_range_at(arena->extent.span, offset), *upper;
        int r = range->offset == offset ? 0 : heap_split(range, offset - range->offset, &upper);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Makes vacant slots single that are joined across an offset. Their mapping stays. 0 or -ENOMEM. */
static int part_at(struct arena *arena, uint64_t offset_bytes) {
    uint32_t number = arena_slot_at(arena, offset_bytes);
    const struct arena_slot *slot = &arena->slots[number];

    if (slot->n_above == 0 || slot->state != ARENA_SLOT_VACANT ||
        arena_slot_start(arena, number) == offset_bytes / arena->slot_bytes * arena->slot_bytes)
        return 0;
    if (arena_divide_locked(arena, number, arena_slot_after(arena, number)) < 0)
        return -ENOMEM;
    for (uint32_t i = number, after = arena_slot_after(arena, number); i < after; i++)
        arena_shape_locked(arena, i, 1, ARENA_SLOT_VACANT);
    return 0;
}

/* Finds the place for a miss: one that idle segments move to, or one that the arena grows by. */
static bool find_place_for_miss(struct arena *arena, uint64_t most_moves, struct arena_place *ret_place) {
    struct arena_place grown = {.size_bytes = ret_place->size_bytes, .is_grown = true};
    uint64_t held_bytes = stream_heap_held_bytes_locked(arena->extent.stream_heap);
    uint64_t needed_bytes =
        held_bytes - stream_heap_free_bytes_locked(arena->extent.stream_heap) + ret_place->size_bytes;

    if (needed_bytes > arena->most_bytes)
        arena->most_bytes = needed_bytes;
    if (!arena_find_place_locked(arena, ret_place))
        return false;
    if (ret_place->n_vacant - ret_place->n_asked > most_moves && arena_find_place_locked(arena, &grown) &&
        held_bytes + grown.n_asked * arena->slot_bytes <= arena->most_bytes / 100 * ARENA_CEILING_PERCENT)
        *ret_place = grown;
    return true;
}

/* Takes a place that was found. */
static int claim(struct arena *arena, struct arena_place place, struct arena_place *ret_place) {
    uint64_t end = place.offset_bytes + place.size_bytes;
    int r = extend(arena, end);
    if (r == 0)
        r = part_at(arena, place.offset_bytes);
    if (r == 0 && (end + arena->slot_bytes - 1) / arena->slot_bytes < arena->n_slots)
        r = part_at(arena, end + arena->slot_bytes - 1);
    if (r < 0)
        return r;
    place.first = arena_slot_at(arena, place.offset_bytes);
    place.last = (uint32_t)((end - 1) / arena->slot_bytes); /* joined ones may become single */
    for (uint32_t i = place.first; i <= place.last; i = arena_slot_after(arena, i)) {
        struct arena_slot *slot = &arena->slots[i];
        if (slot->state == ARENA_SLOT_HELD)
            continue;
        slot->is_new = slot->state == ARENA_SLOT_VACANT;
        slot->state = ARENA_SLOT_BUSY;
    }
    r = claim_free(arena, place.offset_bytes, end);
    if (r < 0) {
        (void)arena_settle_locked(arena, &place, NULL);
        return r;
    }
    *ret_place = place;
    return 0;
}

int arena_claim_locked(struct arena *arena, uint64_t size_bytes, uint64_t most_moves,
                       struct arena_place *ret_place) {
    struct arena_place place = {.size_bytes = size_bytes};
    return find_place_for_miss(arena, most_moves, &place) ? claim(arena, place, ret_place) : -ENOSPC;
}

int arena_claim_vacant_locked(struct arena *arena, uint32_t n_slots, struct arena_place *ret_place) {
    struct arena_place place = {.size_bytes = n_slots * arena->slot_bytes, .is_all_vacant = true};
    return arena_find_place_locked(arena, &place) ? claim(arena, place, ret_place) : -ENOSPC;
}

/* --- idle slots --- */

static bool is_outside(const struct arena_place *place, uint32_t number) {
    return number < place->first || number > place->last;
}

/* Those of a free range. */
static uint32_t take_free_slots(struct arena *arena, const struct arena_place *place, enum arena_width width,
                                struct heap_range *range, uint32_t *ret_slots, uint32_t count) {
    const uint64_t start = range->offset, end = start + range->size;
    uint32_t taken = 0;

    for (uint64_t below = end; below > start && taken < count;) {
        uint32_t number = arena_slot_at(arena, below - 1);
        struct arena_slot *slot = &arena->slots[number];
        uint64_t slot_start = arena_slot_start(arena, number);
        struct heap_range *part;
        below = slot_start;
        if (slot_start < start || arena_slot_end(arena, number) > end ||
            arena_width_of(arena, number) != width || !is_outside(place, number) ||
            slot->lending.splitting > 0)
            continue;
        if (heap_claim_part(heap_range_at(arena->extent.span, slot_start), slot_start,
                            arena_slot_bytes(arena, number), &part) < 0)
            break;
        assert(slot->state == ARENA_SLOT_HELD && slot->absent_bytes == 0);
        count_absent(arena, arena_slot_bytes(arena, number));
        slot->state = ARENA_SLOT_BUSY;
        slot->is_new = false;
        ret_slots[taken++] = number;
    }
    return taken;
}

uint32_t arena_take_idle_locked(struct arena *arena, const struct arena_place *place, enum arena_width width,
                                uint32_t *ret_slots, uint32_t count) {
    struct heap_range *range = heap_range_at(arena->extent.span, arena->extent.size_bytes - 1);
    uint32_t taken = 0;

    while (range != NULL && taken < count) {
        struct heap_range *lower = range->lower;
        if (range->free && range->size >= arena->widths[width] * arena->slot_bytes)
            taken += take_free_slots(arena, place, width, range, &ret_slots[taken], count - taken);
        range = lower;
    }
    return taken;
}

/* --- mappings --- */

uint32_t arena_list_stale_locked(const struct arena *arena, uint32_t from, uint32_t end,
                                 struct arena_stale *ret_stale) {
    uint32_t count = 0;

    for (uint32_t i = from; i < end; i++) {
        const struct arena_slot *slot = &arena->slots[i];
        bool is_listed = count > 0 && ret_stale[count - 1].slot == slot->maps_from;
        if (slot->maps != 0 && !is_listed)
            ret_stale[count++] = (struct arena_stale){.slot = slot->maps_from, .segment = slot->maps};
    }
    return count;
}

void arena_forget_stale_locked(struct arena *arena, const struct arena_stale *stale) {
    for (uint32_t i = stale->slot; i < arena->n_slots; i++) {
        struct arena_slot *slot = &arena->slots[i];
        if (slot->maps != stale->segment || slot->maps_from != stale->slot)
            break;
        slot->maps = 0;
    }
}

void arena_unmapped_locked(struct arena *arena, uint64_t segment) {
    for (uint32_t i = 0; i < arena->n_slots; i++)
        if (arena->slots[i].maps == segment)
            arena->slots[i].maps = 0;
}

/* A slot maps its segment. */
static void note_mapped(struct arena *arena, uint32_t number, uint64_t segment) {
    for (uint32_t i = number; i < arena_slot_after(arena, number); i++) {
        arena->slots[i].maps = segment;
        arena->slots[i].maps_from = number;
    }
}

/* --- slots that are filled and emptied --- */

void arena_shape_locked(struct arena *arena, uint32_t number, uint32_t n_slots, enum arena_slot_state state) {
    for (uint32_t i = number; i < number + n_slots; i++) {
        struct arena_slot *slot = &arena->slots[i];
        assert(slot->below > 0 || slot->state == ARENA_SLOT_VACANT ||
               (slot->state == ARENA_SLOT_BUSY && slot->is_new));
        slot->state = ARENA_SLOT_VACANT;
        slot->lending = (struct lending){0};
        slot->segment = (struct segment_ref){0};
        slot->is_new = false;
        slot->absent_bytes = 0;
        slot->fence = FENCE_NONE;
        slot->has_fences = false;
        slot->n_above = 0;
        slot->below = i - number;
    }
    arena->slots[number].n_above = n_slots - 1;
    arena->slots[number].state = state;
    arena->slots[number].is_new = state == ARENA_SLOT_BUSY;
}

/* Gives the heap what it has not of a slot, or of a part of it. */
static void give_absent(struct arena *arena, uint64_t start, uint64_t end) {
    struct heap_range *range = heap_range_at(arena->extent.span, start), *next;

    for (; range != NULL && range->offset < end; range = next) {
        next = range->upper;
        if (range->free || range->user != NULL)
            continue;
        if (next != NULL && next->free) /* it is joined */
            next = next->upper;
        count_absent(arena, -range->size);
        heap_give(range);
    }
}

void arena_return_locked(struct arena *arena, uint32_t number) {
    struct arena_slot *slot = &arena->slots[number];

    assert(slot->state == ARENA_SLOT_BUSY && !slot->is_new);
    slot->state = ARENA_SLOT_HELD;
    give_absent(arena, arena_slot_start(arena, number), arena_slot_end(arena, number));
}

void arena_empty_locked(struct arena *arena, uint32_t number, struct fence fence) {
    struct arena_slot *slot = &arena->slots[number];

    assert(slot->state == ARENA_SLOT_BUSY && !slot->is_new);
    slot->lending = (struct lending){0};
    slot->segment = (struct segment_ref){0};
    slot->fence = fence;
    slot->state = ARENA_SLOT_VACANT;
}

void arena_fill_locked(struct arena *arena, uint32_t number, const struct lending *lending,
                       struct segment_ref segment) {
    struct arena_slot *slot = &arena->slots[number];

    assert(slot->state == ARENA_SLOT_BUSY && slot->is_new && slot->n_out == 0);
    slot->lending = *lending;
    slot->segment = segment;
    slot->fence = FENCE_NONE;
    slot->has_fences = false;
    slot->absent_bytes = 0;
    slot->is_new = false;
    slot->is_target = false;
    note_mapped(arena, number, segment.id);
}

int arena_settle_locked(struct arena *arena, const struct arena_place *place, struct piece **ret_piece) {
    uint64_t end = place->offset_bytes + place->size_bytes;
    bool is_full = true;

    for (uint32_t i = place->first; i <= place->last; i = arena_slot_after(arena, i)) {
        struct arena_slot *slot = &arena->slots[i];
        uint64_t from = arena_slot_start(arena, i), to = arena_slot_end(arena, i);
        if (slot->state == ARENA_SLOT_BUSY && slot->is_new) {
            slot->state = ARENA_SLOT_VACANT;
            is_full = false;
        } else if (slot->state == ARENA_SLOT_BUSY) {
            slot->state = ARENA_SLOT_HELD;
            give_absent(arena, from, to);
        } else { /* HELD before: only what was claimed of it */
            give_absent(arena, from > place->offset_bytes ? from : place->offset_bytes, to < end ? to : end);
        }
    }
    struct stream_heap *stream_heap = arena->extent.stream_heap;
    stream_heap->touched = true;
    stream_heap->collects = 0;
    if (ret_piece == NULL)
        return 0;
    assert(is_full);
    (void)is_full;
    return stream_heap_take_at_locked(&arena->extent, place->offset_bytes, place->size_bytes, ret_piece);
}

/* --- parts that leave --- */

bool arena_lose_locked(struct arena *arena, uint64_t offset_bytes, uint64_t size_bytes) {
    uint32_t number = arena_slot_at(arena, offset_bytes);
    struct arena_slot *slot = &arena->slots[number];
    uint64_t slot_bytes = arena_slot_bytes(arena, number);

    assert(slot->state == ARENA_SLOT_HELD && slot->absent_bytes + size_bytes <= slot_bytes);
    slot->absent_bytes += size_bytes;
    slot->n_out++;
    count_absent(arena, size_bytes);
    if (slot->absent_bytes < slot_bytes)
        return false;
    slot->state = ARENA_SLOT_LEAVING;
    return true;
}

void arena_regain_locked(struct arena *arena, uint32_t number, uint64_t offset_bytes, uint64_t size_bytes) {
    struct arena_slot *slot = &arena->slots[number];
    uint64_t start = arena_slot_start(arena, number) + offset_bytes;

    assert(slot->n_out > 0 && slot->absent_bytes >= size_bytes);
    slot->n_out--;
    slot->absent_bytes -= size_bytes;
    slot->state = ARENA_SLOT_HELD;
    give_absent(arena, start, start + size_bytes);
}

void arena_abandon_locked(struct arena *arena, struct heap_range *range) {
    uint64_t end = range->offset + range->size;

    range->user = NULL;
    for (uint64_t from = range->offset, to; from < end; from = to) {
        to = arena_slot_end(arena, arena_slot_at(arena, from));
        to = to < end ? to : end;
        (void)arena_lose_locked(arena, from, to - from);
        arena->slots[arena_slot_at(arena, from)].n_out++; /* for good */
    }
}

void arena_note_fence_locked(struct arena *arena, uint32_t number, struct fence fence) {
    struct arena_slot *slot = &arena->slots[number];

    assert(slot->n_out > 0);
    slot->n_out--;
    if (fence.word != 0 && !is_ready(arena, fence)) {
        if (slot->fence.word == fence.word)
            slot->fence.value =
                deferred_is_after(fence.value, slot->fence.value) ? fence.value : slot->fence.value;
        else if (is_ready(arena, slot->fence))
            slot->fence = fence;
        else
            slot->has_fences = true;
    }
    if (slot->state == ARENA_SLOT_LEAVING && slot->n_out == 0)
        slot->state = ARENA_SLOT_VACANT;
}

/* Whether a slot of which parts left has nothing that is in use or claimed. */
static bool rest_is_free(const struct arena *arena, uint64_t offset_bytes) {
    uint32_t number = arena_slot_at(arena, offset_bytes);
    uint64_t start = arena_slot_start(arena, number), end = arena_slot_end(arena, number),
             bytes = arena->slots[number].absent_bytes;

    if (bytes == 0)
        return false;
    for (const struct heap_range *range = heap_range_at(arena->extent.span, start);
         range != NULL && range->offset < end; range = range->upper) {
        uint64_t from = range->offset > start ? range->offset : start;
        uint64_t to = range->offset + range->size < end ? range->offset + range->size : end;
        bytes += range->free ? to - from : 0;
    }
    return bytes == end - start;
}

bool arena_reclaim_locked(struct arena *arena, bool any_size, struct heap_range **ret_range) {
    struct heap_range *range = heap_range_at(arena->extent.span, arena->extent.size_bytes - 1);

    for (; range != NULL; range = range->lower) {
        if (!range->free)
            continue;
        uint64_t start = range->offset, end = start + range->size;
        uint32_t highest = arena_slot_at(arena, end - 1), whole = highest;
        if (arena_slot_end(arena, whole) > end && arena_slot_start(arena, whole) > start)
            whole = arena_slot_at(arena, arena_slot_start(arena, whole) - 1);
        if (arena_slot_start(arena, whole) >= start && arena_slot_end(arena, whole) <= end)
            return heap_claim_part(range, arena_slot_start(arena, whole), arena_slot_bytes(arena, whole),
                                   ret_range) == 0;
        /* In no more than two slots. */
        uint64_t last = arena_slot_start(arena, highest) > start ? arena_slot_start(arena, highest) : start;
        if (any_size || rest_is_free(arena, last))
            return heap_claim_part(range, last, end - last, ret_range) == 0;
        if (last > start && rest_is_free(arena, start))
            return heap_claim_part(range, start, last - start, ret_range) == 0;
    }
    return false;
}

bool arena_reclaim_rest_locked(struct arena *arena, struct heap_range **ret_range) {
    for (struct heap_range *range = arena->extent.span->lowest; range != NULL; range = range->upper) {
        if (!range->free)
            continue;
        uint64_t start = range->offset, end = start + range->size,
                 last = arena_slot_start(arena, arena_slot_at(arena, end - 1));
        uint64_t slot_end = arena_slot_end(arena, arena_slot_at(arena, start));
        if (rest_is_free(arena, start))
            return heap_claim_part(range, start, (slot_end < end ? slot_end : end) - start, ret_range) == 0;
        if (last > start && rest_is_free(arena, last))
            return heap_claim_part(range, last, end - last, ret_range) == 0;
    }
    return false;
}

bool arena_reclaim_target_locked(struct arena *arena, struct heap_range **ret_range) {
    for (struct heap_range *range = arena->extent.span->lowest; range != NULL; range = range->upper) {
        const uint64_t end = range->offset + range->size;
        for (uint64_t from = range->offset, to; range->free && from < end; from = to) {
            uint32_t number = arena_slot_at(arena, from);
            to = arena_slot_end(arena, number) < end ? arena_slot_end(arena, number) : end;
            if (arena->slots[number].is_target)
                return heap_claim_part(range, from, to - from, ret_range) == 0;
        }
    }
    return false;
}

bool arena_may_be_target_locked(const struct arena *arena, uint32_t number) {
    const struct arena_slot *slot = &arena->slots[number];
    return slot->state == ARENA_SLOT_HELD && slot->n_above == 0 && slot->below == 0 &&
           slot->lending.splitting == 0;
}

uint64_t arena_used_bytes_locked(const struct arena *arena, uint32_t number) {
    const uint64_t start = arena_slot_start(arena, number), end = arena_slot_end(arena, number);
    uint64_t bytes = 0;

    for (const struct heap_range *range = heap_range_at(arena->extent.span, start);
         range != NULL && range->offset < end; range = range->upper) {
        uint64_t from = range->offset > start ? range->offset : start;
        uint64_t to = range->offset + range->size < end ? range->offset + range->size : end;
        bytes += range->free || range->user == NULL ? 0 : to - from;
    }
    return bytes;
}

/* Whether a range that the heap cannot cut may lie across slots of these states: a thread has claimed it, or
 * it was abandoned. */
static bool may_span(const struct arena *arena, uint32_t first, uint32_t last) {
    for (uint32_t i = first; i < last; i = arena_slot_after(arena, i))
        if (arena->slots[i].state != ARENA_SLOT_HELD && arena->slots[i].state != ARENA_SLOT_LEAVING)
            return false;
    return true;
}

/* Walks the ranges of a slot from *range on, to the one that goes on in the next slot. *ret_absent: bytes
 * that the heap does not have. */
static bool ranges_are_valid(const struct arena *arena, uint32_t number, const struct heap_range **range,
                             uint64_t *ret_absent) {
    uint64_t start = arena_slot_start(arena, number), end = arena_slot_end(arena, number);

    *ret_absent = 0;
    while (*range != NULL && (*range)->offset < end) {
        uint64_t range_end = (*range)->offset + (*range)->size;
        uint64_t from = (*range)->offset > start ? (*range)->offset : start;
        uint64_t to = range_end < end ? range_end : end;
        if ((*range)->free || (*range)->user != NULL) {
            if (arena->slots[number].state != ARENA_SLOT_HELD)
                return false;
        } else {
            *ret_absent += to - from;
            if (range_end > end &&
                !may_span(arena, number, arena_slot_after(arena, arena_slot_at(arena, range_end - 1))))
                return false;
        }
        if (range_end > end)
            break;
        *range = (*range)->upper;
    }
    return true;
}

/* absent_bytes: what the heap does not have of the slot. Of a slot that is HELD, that is also what a thread
 * has claimed. */
static bool slot_is_valid(const struct arena *arena, uint32_t number, uint64_t absent_bytes) {
    const struct arena_slot *slot = &arena->slots[number];
    uint64_t slot_bytes = arena_slot_bytes(arena, number);

    switch (slot->state) {
    case ARENA_SLOT_HELD:
        return slot->absent_bytes <= absent_bytes && slot->absent_bytes < slot_bytes &&
               slot->segment.id != 0 && arena_maps_locked(arena, number, slot->segment.id) &&
               (slot->n_out == 0 || slot->absent_bytes > 0);
    case ARENA_SLOT_LEAVING:
        return absent_bytes == slot_bytes && slot->absent_bytes == slot_bytes && slot->n_out > 0;
    case ARENA_SLOT_BUSY:
        return absent_bytes == slot_bytes && slot->n_out == 0 &&
               (slot->is_new || (slot->segment.id != 0 && slot->absent_bytes == 0));
    case ARENA_SLOT_VACANT:
        return absent_bytes == slot_bytes && slot->n_out == 0;
    }
    return false;
}

/* Whether the slots that are joined to one have nothing of their own. */
static bool joined_are_valid(const struct arena *arena, uint32_t number) {
    for (uint32_t i = number; i < arena_slot_after(arena, number); i++) {
        const struct arena_slot *slot = &arena->slots[i];
        if (slot->below != i - number || slot->maps != arena->slots[number].maps ||
            (slot->maps != 0 && slot->maps_from != arena->slots[number].maps_from) ||
            (i > number && (slot->state != ARENA_SLOT_VACANT || slot->segment.id != 0 || slot->n_above > 0 ||
                            slot->n_out > 0 || slot->has_fences)))
            return false;
    }
    return arena_slot_after(arena, number) <= arena->n_slots;
}

/* Whether a lease is of one slot only. */
static bool lease_is_single(const struct arena *arena, uint32_t number) {
    const struct arena_slot *slot = &arena->slots[number];

    for (uint32_t i = 0; slot->state == ARENA_SLOT_HELD && i < number; i = arena_slot_after(arena, i)) {
        const struct arena_slot *other = &arena->slots[i];
        if (other->state == ARENA_SLOT_HELD && other->lending.lease == slot->lending.lease &&
            other->lending.generation == slot->lending.generation)
            return false;
    }
    return true;
}

bool arena_is_valid(const struct arena *arena) {
    const struct heap_range *range = arena->extent.span->lowest;
    uint64_t absent = 0, of_slot;

    for (uint32_t i = 0; i < arena->n_slots; i = arena_slot_after(arena, i)) {
        if (!joined_are_valid(arena, i) || !ranges_are_valid(arena, i, &range, &of_slot) ||
            !slot_is_valid(arena, i, of_slot) || !lease_is_single(arena, i))
            return false;
        absent += of_slot;
    }
    return range == NULL && absent == arena->extent.absent_bytes &&
           arena->n_slots * arena->slot_bytes == arena->extent.size_bytes &&
           arena->n_slots <= arena->capacity && arena->capacity * arena->slot_bytes <= arena->reserved_bytes;
}
