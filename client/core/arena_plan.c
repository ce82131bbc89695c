/* SPDX-License-Identifier: Apache-2.0 */
#include "client/core/arena_plan.h"

#include <errno.h>
#include <stdlib.h>

/* Makes the lists for so many slots. */
static int make_lists(struct arena_plan *plan, uint32_t count) {
    plan->idle = malloc(count * sizeof *plan->idle);
    plan->stale = malloc(count * sizeof *plan->stale);
    plan->holes = malloc(count * sizeof *plan->holes);
    plan->fillings = malloc(count * sizeof *plan->fillings);
    return plan->idle == NULL || plan->stale == NULL || plan->holes == NULL || plan->fillings == NULL
               ? -ENOMEM
               : 0;
}

void arena_plan_free(struct arena_plan *plan) {
    free(plan->idle);
    free(plan->stale);
    free(plan->holes);
    free(plan->fillings);
    *plan = (struct arena_plan){.place = plan->place};
}

/* --- slots that are to be filled --- */

/* Finds the holes of the place. */
static void list_holes(struct arena_plan *plan) {
    const struct arena *arena = plan->arena;
    struct arena_hole *hole = NULL;

    plan->n_holes = 0;
    for (uint32_t i = plan->place.first, after; i <= plan->place.last; i = after) {
        after = arena_slot_after(arena, i);
        if (arena->slots[i].state != ARENA_SLOT_BUSY || !arena->slots[i].is_new) {
            hole = NULL;
            continue;
        }
        if (hole == NULL) {
            hole = &plan->holes[plan->n_holes++];
            *hole = (struct arena_hole){.start = i, .next = i};
        }
        hole->end = after;
    }
}

/* How many segments of so many slots the holes have room for. */
static uint32_t count_room(const struct arena_plan *plan, uint32_t n_slots) {
    uint32_t count = 0;

    for (uint32_t i = 0; i < plan->n_holes; i++)
        count += (plan->holes[i].end - plan->holes[i].next) / n_slots;
    return count;
}

/* Cuts up to count slots of a width from the holes, for segments of the daemon. */
static void cut(struct arena_plan *plan, uint32_t n_slots, uint32_t count) {
    for (uint32_t i = 0; i < plan->n_holes; i++) {
        struct arena_hole *hole = &plan->holes[i];
        for (; count > 0 && hole->end - hole->next >= n_slots; count--, hole->next += n_slots)
            plan->fillings[plan->n_fillings++] =
                (struct arena_filling){.slot = hole->next, .n_slots = n_slots, .from = ARENA_FROM_DAEMON};
    }
}

/* Cuts slots for the idle segments of a width that find room, and takes these. */
static void cut_for_idle(struct arena_plan *plan, enum arena_width width) {
    uint32_t n_slots = plan->arena->widths[width], first = plan->n_fillings;
    uint32_t room = plan->place.is_grown ? 0 : count_room(plan, n_slots);
    uint32_t count = arena_take_idle_locked(plan->arena, &plan->place, width, plan->idle, room);

    cut(plan, n_slots, count);
    for (uint32_t i = 0; i < count; i++)
        plan->fillings[first + i].from = plan->idle[i];
}

/* Cuts slots for large segments of the daemon, from so many that idle ones do not fill. */
static void cut_large(struct arena_plan *plan, uint32_t lacking) {
    for (unsigned i = ARENA_WIDTHS; i-- > ARENA_WIDTH_ONE + 1;) {
        uint32_t n_slots = plan->arena->widths[i];
        if (n_slots == 0)
            continue;
        uint32_t first = plan->n_fillings;
        cut(plan, n_slots, lacking / n_slots);
        lacking -= (plan->n_fillings - first) * n_slots;
    }
}

/* Whether the request is for large segments. */
static bool wants_large(const struct arena_plan *plan) {
    const struct stream_heap *stream_heap = plan->arena->extent.stream_heap;

    return plan->size_bytes >= ARENA_LARGE_BYTES &&
           (plan->size_bytes / ARENA_CHURN_SHARE >= stream_heap->churn_bytes ||
            plan->size_bytes / ARENA_HELD_SHARE >= stream_heap_held_bytes_locked(stream_heap));
}

/* Cuts the holes, and takes segments of slots that are idle elsewhere in the arena, which become BUSY. */
static void cut_holes(struct arena_plan *plan, bool does_without_large) {
    struct arena *arena = plan->arena;

    list_holes(plan);
    for (unsigned i = ARENA_WIDTHS; i-- > ARENA_WIDTH_ONE + 1;)
        if (arena->widths[i] > 0)
            cut_for_idle(plan, (enum arena_width)i);
    uint32_t lacking = count_room(plan, 1);
    uint32_t idle = arena_take_idle_locked(arena, &plan->place, ARENA_WIDTH_ONE, plan->idle,
                                           plan->place.is_grown ? 0 : lacking);
    if (!does_without_large && wants_large(plan))
        cut_large(plan, idle > lacking / ARENA_IDLE_SHARE ? lacking - idle : lacking);
    uint32_t first = plan->n_fillings, used = 0;
    cut(plan, 1, UINT32_MAX);
    for (; used < idle && first + used < plan->n_fillings; used++)
        plan->fillings[first + used].from = plan->idle[used];
    for (; used < idle; used++)
        arena_return_locked(arena, plan->idle[used]);
}

static uint32_t count_moves(const struct arena_plan *plan) {
    uint32_t count = 0;

    for (uint32_t i = 0; i < plan->n_fillings; i++)
        count += plan->fillings[i].from != ARENA_FROM_DAEMON;
    return count;
}

int arena_plan_claim_locked(struct arena_plan *plan, struct arena *arena, uint64_t size_bytes,
                            uint64_t most_moves, bool does_without_large, uint32_t *ret_moves) {
    *plan = (struct arena_plan){.arena = arena, .size_bytes = size_bytes};
    int r = arena_claim_locked(arena, size_bytes, most_moves, &plan->place);
    if (r < 0)
        return r;
    r = make_lists(plan, plan->place.n_vacant > 0 ? plan->place.n_vacant : 1);
    if (r < 0) {
        (void)arena_settle_locked(arena, &plan->place, NULL);
        arena_plan_free(plan);
        return r;
    }
    if (plan->place.n_vacant > 0)
        cut_holes(plan, does_without_large);
    *ret_moves = count_moves(plan);
    return 0;
}

void arena_plan_fenced_locked(struct arena_plan *plan, struct fence fence) {
    for (uint32_t i = 0; i < plan->n_fillings; i++) {
        struct arena_filling *filling = &plan->fillings[i];
        if (filling->from == ARENA_FROM_DAEMON)
            continue;
        const struct arena_slot *slot = &plan->arena->slots[filling->from];
        filling->lending = slot->lending;
        filling->segment = slot->segment;
        filling->fence = fence;
        filling->is_here = true;
        arena_empty_locked(plan->arena, filling->from, fence);
    }
}

void arena_plan_not_fenced_locked(struct arena_plan *plan) {
    for (uint32_t i = 0; i < plan->n_fillings; i++) {
        struct arena_filling *filling = &plan->fillings[i];
        if (filling->from == ARENA_FROM_DAEMON)
            continue;
        arena_return_locked(plan->arena, filling->from);
        filling->from = ARENA_FROM_DAEMON;
    }
}

int arena_plan_wait(struct arena_plan *plan, struct arena *arena, uint64_t size_bytes) {
    uint32_t count = (uint32_t)((size_bytes + arena->slot_bytes - 1) / arena->slot_bytes);

    *plan = (struct arena_plan){.arena = arena, .size_bytes = size_bytes};
    int r = make_lists(plan, count);
    if (r < 0) {
        arena_plan_free(plan);
        return r;
    }
    plan->holes[0] = (struct arena_hole){.end = count};
    plan->n_holes = 1;
    cut(plan, 1, count); /* their numbers are those of the place when it is known */
    return 0;
}

/* --- new segments --- */

/* How many segments of a width are missing. */
static uint32_t count_missing(const struct arena_plan *plan, uint32_t n_slots) {
    uint32_t count = 0;

    for (uint32_t i = 0; i < plan->n_fillings; i++)
        count += !plan->fillings[i].is_here && plan->fillings[i].n_slots == n_slots;
    return count;
}

bool arena_plan_next(struct arena_plan *plan) {
    plan->n_asked = 0;
    for (unsigned i = ARENA_WIDTHS; i-- > 0 && plan->n_asked == 0;)
        if (plan->arena->widths[i] > 0) {
            plan->asked_slots = plan->arena->widths[i];
            plan->n_asked = count_missing(plan, plan->asked_slots);
        }
    return plan->n_asked > 0;
}

void arena_plan_add_granted(struct arena_plan *plan, const struct lending *lending,
                            struct segment_ref segment) {
    struct arena_filling *filling = plan->fillings;

    while (filling->is_here || filling->n_slots != plan->asked_slots)
        filling++;
    filling->lending = *lending;
    filling->segment = segment;
    filling->is_here = true;
}

/* The daemon has no large segments: segments of one slot fill the place of those. */
static void do_without_large(struct arena_plan *plan) {
    const uint32_t count = plan->n_fillings;

    for (uint32_t i = 0; i < count; i++) {
        struct arena_filling *filling = &plan->fillings[i];
        if (filling->is_here)
            continue;
        for (uint32_t j = 1; j < filling->n_slots; j++)
            plan->fillings[plan->n_fillings++] =
                (struct arena_filling){.slot = filling->slot + j, .n_slots = 1, .from = ARENA_FROM_DAEMON};
        filling->n_slots = 1;
    }
}

bool arena_plan_refused(struct arena_plan *plan) {
    if (plan->asked_slots == 1)
        return false;
    do_without_large(plan);
    return true;
}

void arena_plan_drop_new(struct arena_plan *plan) {
    uint32_t kept = 0;

    for (uint32_t i = 0; i < plan->n_fillings; i++)
        if (plan->fillings[i].from != ARENA_FROM_DAEMON)
            plan->fillings[kept++] = plan->fillings[i];
    plan->n_fillings = kept;
}

int arena_plan_place_locked(struct arena_plan *plan) {
    int r = arena_claim_vacant_locked(plan->arena, plan->n_fillings, &plan->place);

    if (r < 0)
        return r;
    list_holes(plan);
    for (uint32_t i = 0; i < plan->n_fillings; i++)
        plan->fillings[i].slot = plan->place.first + i;
    return 0;
}

/* --- mappings --- */

static int compare_slots(const void *one, const void *other) {
    const struct arena_filling *a = one, *b = other;

    return (a->slot > b->slot) - (a->slot < b->slot);
}

/* Puts a filling whose segment is still mapped at one of the slots there. */
static void use_old_mapping(struct arena_plan *plan, uint32_t position) {
    struct arena_filling *to = &plan->fillings[position];

    for (uint32_t i = position; plan->arena->slots[to->slot].maps != 0 && i < plan->n_fillings; i++) {
        struct arena_filling *from = &plan->fillings[i], there = *to;
        if (!arena_maps_locked(plan->arena, to->slot, from->segment.id) || from->n_slots != to->n_slots)
            continue;
        to->lending = from->lending;
        to->segment = from->segment;
        to->fence = from->fence;
        to->is_kept = true;
        if (from == to)
            return;
        from->lending = there.lending;
        from->segment = there.segment;
        from->fence = there.fence;
        return;
    }
}

/* Lists what the holes map, but for what stays there. */
static uint32_t list_stale(const struct arena_plan *plan) {
    const struct arena_filling *filling = plan->fillings, *last = filling + plan->n_fillings;
    uint32_t count = 0;

    for (uint32_t i = 0; i < plan->n_holes; i++)
        for (uint32_t slot = plan->holes[i].start, next; slot < plan->holes[i].end; slot = next) {
            while (filling < last && filling->slot < slot)
                filling++;
            bool is_filled = filling < last && filling->slot == slot;
            next = slot + (is_filled ? filling->n_slots : 1);
            if (!is_filled || !filling->is_kept)
                count += arena_list_stale_locked(plan->arena, slot, next, &plan->stale[count]);
        }
    return count;
}

void arena_plan_look_locked(struct arena_plan *plan) {
    qsort(plan->fillings, plan->n_fillings, sizeof *plan->fillings, compare_slots);
    for (uint32_t i = 0; i < plan->n_fillings; i++)
        use_old_mapping(plan, i);
    plan->n_stale = list_stale(plan);
}

void arena_plan_unmapped_locked(struct arena_plan *plan, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        arena_forget_stale_locked(plan->arena, &plan->stale[i]);
}

static void shape_hole(struct arena_plan *plan, const struct arena_hole *hole,
                       const struct arena_filling **filling) {
    const struct arena_filling *end = plan->fillings + plan->n_fillings;

    for (uint32_t slot = hole->start; slot < hole->end;) {
        bool is_filled = *filling < end && (*filling)->slot == slot;
        uint32_t n_slots = is_filled ? (*filling)->n_slots : 1;
        arena_shape_locked(plan->arena, slot, n_slots, ARENA_SLOT_BUSY);
        slot += n_slots;
        *filling += is_filled;
    }
}

int arena_plan_shape_locked(struct arena_plan *plan) {
    const struct arena_filling *filling = plan->fillings;
    int r = 0;

    for (uint32_t i = 0; i < plan->n_holes && r == 0; i++)
        r = arena_divide_locked(plan->arena, plan->holes[i].start, plan->holes[i].end);
    for (uint32_t i = 0; i < plan->n_holes && r == 0; i++)
        shape_hole(plan, &plan->holes[i], &filling);
    return r;
}

uint32_t arena_plan_run(const struct arena_plan *plan, uint32_t from) {
    const struct arena_filling *filling = &plan->fillings[from];
    uint32_t to = from + 1;

    for (; to < plan->n_fillings && !filling->is_kept; to++, filling++)
        if (filling[1].is_kept || filling[1].slot != filling->slot + filling->n_slots)
            break;
    return to;
}

void arena_plan_mapped_locked(struct arena_plan *plan, uint32_t from, uint32_t to) {
    for (uint32_t i = from; i < to; i++)
        arena_fill_locked(plan->arena, plan->fillings[i].slot, &plan->fillings[i].lending,
                          plan->fillings[i].segment);
}

int arena_plan_settle_locked(struct arena_plan *plan, bool is_full, struct piece **ret_piece) {
    plan->place.size_bytes = plan->size_bytes; /* of one that was claimed in whole slots, the rest is free */
    return arena_settle_locked(plan->arena, &plan->place, is_full ? ret_piece : NULL);
}
