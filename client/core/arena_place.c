/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The search for a place in an arena (arena.h): where a piece lies that fits no free range.
 */
#include "client/core/arena.h"

/* Whether other memory may be mapped at a VACANT slot. */
static bool may_fill(const struct arena *arena, const struct arena_slot *slot) {
#ifdef GPUPOOL_PLANT_EARLY_MAPPING
    /* A fault on purpose, for the test that has to find it: a mapping goes while the GPU uses it. */
    return true;
#endif
    return slot->maps == 0 ||
           (!slot->has_fences && fence_array_has(arena->extent.stream_heap->fences, slot->fence));
}

/* Whether a range of the arena can be a part of a place. */
static bool is_usable(const struct arena *arena, const struct heap_range *range,
                      const struct arena_place *place) {
    const struct arena_slot *slot = &arena->slots[arena_slot_at(arena, range->offset)];

    return (range->free && !place->is_all_vacant) ||
           (range->user == NULL && slot->state == ARENA_SLOT_VACANT && may_fill(arena, slot));
}

/* Counts what is below each slot. */
static void count_slots(struct arena *arena) {
    const struct heap_range *range = arena->extent.span->lowest;
    struct arena_count count = {0};

    for (uint32_t i = 0, after; i < arena->n_slots; i = after) {
        uint64_t start = arena_slot_start(arena, i);
        while (range->offset + range->size <= start)
            range = range->upper;
        bool is_vacant = arena->slots[i].state == ARENA_SLOT_VACANT,
             is_idle = range->free && range->offset + range->size >= arena_slot_end(arena, i) &&
                       range->offset <= start && arena->slots[i].lending.splitting == 0;
        enum arena_width width = arena_width_of(arena, i);
        after = arena_slot_after(arena, i);
        for (uint32_t j = i; j < after; j++) {
            arena->below[j] = count;
            count.vacant += is_vacant;
            count.idle[width] += is_idle;
        }
    }
    arena->below[arena->n_slots] = count;
}

/* How many of the vacant slots of a place can be filled by what is idle outside of it. */
static uint32_t count_fillable(const struct arena *arena, const struct arena_count *low,
                               const struct arena_count *high, uint32_t vacant) {
    const struct arena_count *all = &arena->below[arena->n_slots];
    uint32_t left = vacant;

    for (unsigned i = ARENA_WIDTHS; i-- > 0;) {
        uint32_t idle = all->idle[i] - (high->idle[i] - low->idle[i]), most = left < idle ? left : idle;
        if (most > 0)
            left -= most / arena->widths[i] * arena->widths[i];
    }
    return vacant - left;
}

/* Looks whether a place is better than the best one. Slots that the arena does not have yet are vacant. */
static void consider(const struct arena *arena, uint64_t offset_bytes, struct arena_place *best) {
    uint32_t first = (uint32_t)(offset_bytes / arena->slot_bytes),
             end = (uint32_t)((offset_bytes + best->size_bytes - 1) / arena->slot_bytes) + 1, new = 0;

    if (end > arena->n_slots) {
        new = first > arena->n_slots ? end - first : end - arena->n_slots;
        end = arena->n_slots;
        first = first > end ? end : first;
    }
    const struct arena_count *low = &arena->below[first], *high = &arena->below[end];
    uint32_t vacant = high->vacant - low->vacant + new,
             asked = best->is_grown ? vacant : vacant - count_fillable(arena, low, high, vacant);
    if (asked < best->n_asked || (asked == best->n_asked && vacant < best->n_vacant)) {
        best->n_asked = asked;
        best->n_vacant = vacant;
        best->offset_bytes = offset_bytes;
    }
}

/* The places in a run of memory that can be used: at either end of it, and from each slot in it on. A run at
 * the end of the slots goes on. */
static void consider_run(const struct arena *arena, uint64_t start, uint64_t end, struct arena_place *best) {
    uint64_t size_bytes = best->size_bytes, slot_bytes = arena->slot_bytes;

    if (end == arena->extent.size_bytes)
        end = arena_slot_start(arena, arena->capacity);
    if (end - start < size_bytes)
        return;
    consider(arena, start, best);
    if (end <= arena->extent.size_bytes)
        consider(arena, end - size_bytes, best);
    for (uint64_t at = (start / slot_bytes + 1) * slot_bytes;
         best->n_vacant > 0 && at + size_bytes <= end && at <= arena->extent.size_bytes; at += slot_bytes)
        consider(arena, at, best);
}

bool arena_find_place_locked(struct arena *arena, struct arena_place *best) {
    const uint64_t end = arena->extent.size_bytes;
    uint64_t start = end;

    count_slots(arena);
    best->n_vacant = best->n_asked = UINT32_MAX;
    for (const struct heap_range *range = arena->extent.span->lowest; range != NULL; range = range->upper) {
        if (is_usable(arena, range, best)) {
            start = start == end ? range->offset : start;
            continue;
        }
        if (start != end)
            consider_run(arena, start, range->offset, best);
        start = end;
    }
    consider_run(arena, start, end, best);
    return best->n_vacant != UINT32_MAX;
}
