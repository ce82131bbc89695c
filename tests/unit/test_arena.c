/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of arenas, case by case. A text says what the slots of an arena are, one character each:
 *
 *     f  held, and free               p  held, a piece has all of it
 *     <  held, a piece has the first half, the other one is free      >  the other way round
 *     v  vacant, nothing is mapped there
 *     w  vacant, a segment is mapped there, behind a fence that is not ready
 */
#include <errno.h>

#include "arena_fixture.h"
#include "tests/failing_memory.h"

#define CAPACITY 8u
#define WORD     1u /* of the fences that slots 'w' stand behind; their value is 1 */

static struct segment segments[CAPACITY + 1]; /* by the number of a slot's lease */
static uint64_t last_lease;

static int set_up(void **state) {
    (void)state;
    fences_reset();
    last_lease = 0;
    for (unsigned i = 0; i <= CAPACITY; i++)
        segments[i] = (struct segment){.id = 100 + i};
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    memory_fail_nth(0);
    return 0;
}

/* --- slots by text --- */

static struct piece *take_at(struct arena *arena, uint64_t offset_bytes, uint64_t size_bytes) {
    struct piece *piece;
    assert_int_equal(stream_heap_take_at_locked(&arena->extent, offset_bytes, size_bytes, &piece), 0);
    assert_ptr_equal(piece->memory, arena->extent.memory + offset_bytes);
    assert_int_equal(piece->capacity_bytes, size_bytes);
    return piece;
}

/* Fills a slot that was taken with the next lease. */
static void fill_slot(struct arena *arena, uint32_t number) {
    uint64_t lease = ++last_lease;
    struct lending lending = {.lease = lease, .generation = generation_of(lease)};

    assert_true(lease <= CAPACITY);
    arena_fill_locked(arena, number, &lending, SEGMENT(lease));
}

/* The whole of a free slot leaves the arena, behind a fence. */
static void vacate(struct arena *arena, uint32_t number, struct fence fence) {
    assert_true(arena_lose(arena, slot_start(number), SLOT_BYTES));
    assert_int_equal(arena->slots[number].state, ARENA_SLOT_LEAVING);
    arena_note_fence_locked(arena, number, fence);
    assert_int_equal(arena->slots[number].state, ARENA_SLOT_VACANT);
}

static void turn_slot(struct arena *arena, uint32_t number, char kind) {
    if (kind == 'p')
        take_at(arena, slot_start(number), SLOT_BYTES);
    else if (kind == '<')
        take_at(arena, slot_start(number), SLOT_BYTES / 2);
    else if (kind == '>')
        take_at(arena, slot_start(number) + SLOT_BYTES / 2, SLOT_BYTES / 2);
    else if (kind == 'w')
        vacate(arena, number, (struct fence){WORD, 1});
    else if (kind == 'v') {
        vacate(arena, number, FENCE_NONE);
        unmap_slot(arena, number);
    }
}

static struct arena *arena_of_slots(uint32_t capacity, const char *slots) {
    struct arena *arena = arena_make(capacity);
    struct arena_place place;

    assert_int_equal(arena_claim_locked(arena, strlen(slots) * SLOT_BYTES, ANY_MOVES, &place), 0);
    assert_int_equal(place.offset_bytes, 0);
    for (uint32_t i = place.first; i <= place.last; i++)
        fill_slot(arena, i);
    assert_int_equal(arena_settle_locked(arena, &place, NULL), 0);
    for (uint32_t i = place.first; i <= place.last; i++)
        turn_slot(arena, i, slots[i]);
    assert_true(all_is_valid(arena));
    return arena;
}

/* 'f' free, 'p' of a piece, '-' neither. */
static char kind_at(const struct arena *arena, uint64_t offset_bytes) {
    const struct heap_range *range = heap_range_at(arena->extent.span, offset_bytes);
    return range->free ? 'f' : range->user != NULL ? 'p' : '-';
}

/* The character of a slot as it is: also 'b' BUSY, 'l' LEAVING, '-' HELD and a part of it is not there. 'w'
 * is a 'v' here. */
static char slot_kind(const struct arena *arena, uint32_t number) {
    char first = kind_at(arena, slot_start(number)), last = kind_at(arena, slot_start(number + 1) - 1);
    enum arena_slot_state state = arena->slots[number].state;

    if (state != ARENA_SLOT_HELD)
        return state == ARENA_SLOT_VACANT ? 'v' : state == ARENA_SLOT_BUSY ? 'b' : 'l';
    if (first == last || first == '-' || last == '-')
        return last == '-' ? last : first;
    return first == 'p' ? '<' : '>';
}

static void expect_slots(const struct arena *arena, const char *slots) {
    char are[CAPACITY + 1] = "";

    for (uint32_t i = 0; i < arena->n_slots; i++)
        are[i] = slot_kind(arena, i);
    assert_string_equal(are, slots);
    assert_true(all_is_valid(arena));
}

/* Claims, and ends the claim with nothing filled. Returns what arena_claim_locked() did. */
static int claim_and_end(struct arena *arena, uint64_t size_bytes, struct arena_place *ret_place) {
    int r = arena_claim_locked(arena, size_bytes, ANY_MOVES, ret_place);

    assert_true(all_is_valid(arena));
    if (r == 0)
        assert_int_equal(arena_settle_locked(arena, ret_place, NULL), 0);
    assert_true(all_is_valid(arena));
    return r;
}

/* --- sizes and the beginning --- */

static void slots_are_a_share_of_the_limit(void **state) {
    static const struct {
        uint64_t limit_bytes, slot_bytes;
    } sizes[] = {
        {0, 2 * MIB},         {4096, 2 * MIB},       {255 * MIB, 2 * MIB},
        {256 * MIB, 4 * MIB}, {512 * MIB, 8 * MIB},  {GIB - 1, 8 * MIB},
        {GIB, 16 * MIB},      {141 * GIB, 16 * MIB}, {UINT64_MAX, 16 * MIB},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        assert_int_equal(proto_slot_bytes(sizes[i].limit_bytes), sizes[i].slot_bytes);
}

static void a_new_arena_has_a_slot_and_no_memory(void **state) {
    struct arena *arena = arena_make(CAPACITY);
    struct stream_heap *stream_heap = arena->extent.stream_heap;

    (void)state;
    assert_int_equal(arena->capacity, CAPACITY);
    assert_ptr_equal(arena_of(&arena->extent), arena);
    assert_int_equal(stream_heap_held_bytes_locked(stream_heap), 0);
    assert_int_equal(stream_heap_free_bytes_locked(stream_heap), 0);
    assert_false(stream_heap_extent_is_idle_locked(&arena->extent));
    expect_slots(arena, "v");
    arena_end(arena);
}

static void each_slot_is_a_lease_of_its_own(void **state) {
    struct arena *arena = arena_of_slots(CAPACITY, "fff");

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        const struct lending *lending = extent_lending_at(&arena->extent, slot_start(i) + QUARTER);
        assert_ptr_equal(lending, &arena->slots[i].lending);
        assert_int_equal(lending->lease, i + 1);
        assert_int_equal(lending->generation, generation_of(i + 1));
    }
    arena_end(arena);
}

/* --- places --- */

/* Offsets and sizes in quarters of a slot. */
static void a_claim_takes_the_place_that_lacks_the_fewest_segments(void **state) {
    static const struct {
        const char *slots;
        uint64_t size, offset;
        uint32_t n_vacant;
    } claims[] = {
        {"v", 1, 0, 1},
        {"f", 4, 0, 0},
        {"p", 4, 4, 1},
        /* free memory at either end of a run, and within it */
        {"ffv", 8, 0, 0},
        {"vff", 8, 4, 0},
        {"vffv", 8, 4, 0},
        {"vvffvp", 8, 8, 0},
        {"pvfp", 4, 8, 0},
        {"pvfp", 5, 4, 1},
        /* the fewest that are missing */
        {"fvf", 12, 0, 1},
        {"vvfvf", 8, 4, 1},
        {"vvvffpfv", 12, 8, 1},
        {"vfvpffvf", 12, 16, 1},
        /* not from the border of a slot */
        {"<f>", 8, 2, 0},
        {"<v>", 6, 2, 1},
        {"<v>", 8, 2, 1},
        {"<vf>", 6, 8, 0},
        {"<v>vf>", 6, 16, 0},
        {"<v>fv>", 7, 2, 1},
        {"<>f", 2, 2, 0},
        {"<>f", 3, 2, 0},
        {"<>f", 5, 8, 1},
        /* beyond the slots that there are */
        {"f", 8, 0, 1},
        {"<", 8, 2, 2},
        {"pv", 8, 4, 2},
        {"vvp<", 8, 0, 2},
        {"vp<", 6, 10, 1},
        {"pp", 24, 8, 6},
        /* one that is filled with what is free elsewhere, before one that is not */
        {"fvpv>", 6, 12, 1},
        {"fvpv>f", 6, 0, 1},
        {"ffvpvv>", 10, 16, 2},
        /* a vacant slot whose fence is not ready */
        {"wf", 8, 4, 1},
        {"wfwf", 4, 4, 0},
        {"fwf", 8, 8, 1},
        {"fwvv", 5, 8, 2},
    };

    for (unsigned i = 0; i < sizeof claims / sizeof *claims; i++) {
        struct arena *arena = arena_of_slots(CAPACITY, claims[i].slots);
        struct arena_place place;
        uint64_t free_bytes = stream_heap_free_bytes_locked(arena->extent.stream_heap);
        int r = claim_and_end(arena, claims[i].size * QUARTER, &place);
        if (r != 0 || place.offset_bytes != claims[i].offset * QUARTER ||
            place.n_vacant != claims[i].n_vacant)
            fail_msg("%u quarters in '%s': %d, at quarter %u with %u vacant slots, not at %u with %u",
                     (unsigned)claims[i].size, claims[i].slots, r, (unsigned)(place.offset_bytes / QUARTER),
                     place.n_vacant, (unsigned)claims[i].offset, claims[i].n_vacant);
        assert_int_equal(place.size_bytes, claims[i].size * QUARTER);
        assert_int_equal(place.first, claims[i].offset / 4);
        assert_int_equal(place.last, (claims[i].offset + claims[i].size - 1) / 4);
        assert_true(arena->n_slots > place.last);
        assert_int_equal(stream_heap_free_bytes_locked(arena->extent.stream_heap), free_bytes);
        arena_end(arena);
        last_lease = 0;
    }
    (void)state;
}

/* --- moves that do not pay --- */

/* An arena that may have any memory. */
static struct arena *arena_without_ceiling(const char *slots) {
    struct arena *arena = arena_of_slots(CAPACITY, slots);

    arena->most_bytes = UINT64_MAX / ARENA_CEILING_PERCENT;
    return arena;
}

/* Claims so many quarters. Returns the place, of which nothing was filled. */
static struct arena_place claim_quarters(struct arena *arena, uint64_t quarters, uint64_t most_moves) {
    struct arena_place place;

    assert_int_equal(arena_claim_locked(arena, quarters * QUARTER, most_moves, &place), 0);
    assert_int_equal(arena_settle_locked(arena, &place, NULL), 0);
    assert_true(all_is_valid(arena));
    assert_true(!place.is_grown || place.n_asked == place.n_vacant);
    return place;
}

/* "ffvp<vvp": two slots and a half are at the beginning, where the idle slots are and one segment is new; or
 * in the middle, where both idle segments move. */
static void an_arena_grows_where_moves_do_not_pay(void **state) {
    struct arena *arena = arena_without_ceiling("ffvp<vvp");
    struct arena_place place = claim_quarters(arena, 10, 2);

    (void)state;
    assert_int_equal(place.offset_bytes, 18 * QUARTER);
    assert_int_equal(place.n_vacant, 2);
    assert_int_equal(place.n_asked, 0);
    assert_false(place.is_grown);
    arena_end(arena);
    last_lease = 0;
    arena = arena_without_ceiling("ffvp<vvp");
    place = claim_quarters(arena, 10, 1);
    assert_int_equal(place.offset_bytes, 0);
    assert_int_equal(place.n_vacant, 1);
    assert_true(place.is_grown);
    arena_end(arena);
}

static void an_arena_moves_where_it_may_not_grow(void **state) {
    struct arena *arena = arena_without_ceiling("ffvp<vvp");
    struct arena_place place = claim_quarters(arena, 10, ANY_MOVES);

    (void)state;
    assert_int_equal(place.offset_bytes, 18 * QUARTER);
    assert_int_equal(place.n_asked, 0);
    assert_false(place.is_grown);
    arena_end(arena);
}

static void nothing_grows_where_nothing_has_to_move(void **state) {
    struct arena *arena = arena_without_ceiling("ffvp");
    struct arena_place place = claim_quarters(arena, 8, 0);

    (void)state;
    assert_int_equal(place.n_vacant, 0);
    assert_false(place.is_grown);
    place = claim_quarters(arena, 12, 0); /* none is idle elsewhere */
    assert_int_equal(place.n_asked, 1);
    assert_false(place.is_grown);
    arena_end(arena);
}

/* The arena has six segments, one of them in use, and three are needed beside that one: at 160 percent of
 * four there is no room for a seventh. */
static void an_arena_does_not_grow_beyond_its_ceiling(void **state) {
    struct arena *arena = arena_without_ceiling("ffvpffvf");

    (void)state;
    arena->most_bytes = 0;
    assert_false(claim_quarters(arena, 12, 0).is_grown);
    assert_int_equal(arena->most_bytes, 4 * SLOT_BYTES);
    arena->most_bytes = 7 * SLOT_BYTES * 100 / ARENA_CEILING_PERCENT;
    assert_false(claim_quarters(arena, 12, 0).is_grown);
    arena->most_bytes = 5 * SLOT_BYTES; /* what was needed once counts */
    assert_true(claim_quarters(arena, 12, 0).is_grown);
    assert_int_equal(arena->most_bytes, 5 * SLOT_BYTES);
    arena_end(arena);
}

static void the_arena_grows_to_the_end_of_its_addresses(void **state) {
    struct arena *arena = arena_make(4);
    struct arena_place place;

    (void)state;
    assert_int_equal(claim_and_end(arena, SLOT_BYTES, &place), 0);
    assert_int_equal(arena->n_slots, 1);
    assert_int_equal(claim_and_end(arena, SLOT_BYTES + HEAP_GRANULE, &place), 0);
    assert_int_equal(arena->n_slots, 2);
    assert_int_equal(claim_and_end(arena, 4 * SLOT_BYTES, &place), 0);
    expect_slots(arena, "vvvv");
    assert_int_equal(claim_and_end(arena, 4 * SLOT_BYTES + HEAP_GRANULE, &place), -ENOSPC);
    expect_slots(arena, "vvvv");
    arena_end(arena);
}

static void no_address_is_left(void **state) {
    static const struct {
        const char *slots;
        uint64_t size; /* quarters */
        int result;
    } claims[] = {
        {"pppp", 1, -ENOSPC}, {"fpff", 12, -ENOSPC}, {"fpff", 8, 0},     {"wwww", 1, -ENOSPC},
        {"p<>p", 5, -ENOSPC}, {"p<>p", 2, 0},        {"pp", 9, -ENOSPC}, {"pp", 8, 0},
        {"<", 15, -ENOSPC},   {"<", 14, 0},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof claims / sizeof *claims; i++) {
        struct arena *arena = arena_of_slots(4, claims[i].slots);
        struct arena_place place;
        assert_int_equal(claim_and_end(arena, claims[i].size * QUARTER, &place), claims[i].result);
        arena_end(arena);
        last_lease = 0;
    }
}

static void a_place_that_is_claimed_is_no_other_claims(void **state) {
    struct arena *arena = arena_of_slots(CAPACITY, "<fv");
    struct arena_place first, second, third;

    (void)state;
    assert_int_equal(arena_claim_locked(arena, 8 * QUARTER, ANY_MOVES, &first), 0);
    assert_int_equal(first.offset_bytes, 2 * QUARTER);
    expect_slots(arena, "--b"); /* it has the half of a slot, a slot, and the half of a vacant one */
    assert_int_equal(arena_claim_locked(arena, QUARTER, ANY_MOVES, &second), 0);
    assert_int_equal(second.offset_bytes, 12 * QUARTER);
    assert_int_equal(arena_claim_locked(arena, QUARTER, ANY_MOVES, &third), 0);
    assert_int_equal(third.offset_bytes, 16 * QUARTER);
    assert_int_equal(arena_settle_locked(arena, &second, NULL), 0);
    assert_int_equal(arena_settle_locked(arena, &first, NULL), 0);
    expect_slots(arena, "<fvvb");
    assert_int_equal(arena_settle_locked(arena, &third, NULL), 0);
    expect_slots(arena, "<fvvv");
    arena_end(arena);
}

/* --- the end of a claim --- */

static void a_place_that_is_filled_becomes_a_piece(void **state) {
    struct arena *arena = arena_of_slots(CAPACITY, "<vfv");
    struct arena_place place;
    struct piece *piece = NULL;

    (void)state;
    assert_int_equal(arena_claim_locked(arena, 13 * QUARTER, ANY_MOVES, &place), 0);
    assert_int_equal(place.offset_bytes, 2 * QUARTER);
    assert_int_equal(place.n_vacant, 2);
    expect_slots(arena, "-b-b");
    fill_slot(arena, 1);
    fill_slot(arena, 3);
    assert_int_equal(arena_settle_locked(arena, &place, &piece), 0);
    assert_non_null(piece);
    assert_ptr_equal(piece->memory, arena->extent.memory + 2 * QUARTER);
    assert_int_equal(piece->capacity_bytes, 13 * QUARTER);
    assert_int_equal(piece->lease, 1); /* of the slot in which it begins */
    assert_int_equal(stream_heap_offset_in_lease(piece), 2 * QUARTER);
    assert_false(stream_heap_is_one_part_locked(piece));
    expect_slots(arena, "ppp<");
    assert_int_equal(stream_heap_free_bytes_locked(arena->extent.stream_heap), QUARTER); /* of the last */
    assert_int_equal(stream_heap_held_bytes_locked(arena->extent.stream_heap), 4 * SLOT_BYTES);
    stream_heap_give(piece);
    expect_slots(arena, "<fff");
    arena_end(arena);
}

static void what_was_filled_of_a_place_is_free_when_the_rest_fails(void **state) {
    struct arena *arena = arena_of_slots(CAPACITY, "<vfv");
    struct arena_place place;

    (void)state;
    assert_int_equal(arena_claim_locked(arena, 13 * QUARTER, ANY_MOVES, &place), 0);
    fill_slot(arena, 3);
    assert_int_equal(arena_settle_locked(arena, &place, NULL), 0);
    expect_slots(arena, "<vff");
    assert_int_equal(stream_heap_held_bytes_locked(arena->extent.stream_heap), 3 * SLOT_BYTES);
    arena_end(arena);
}

static void a_settled_place_counts_as_use(void **state) {
    struct arena *arena = arena_of_slots(CAPACITY, "f");
    struct stream_heap *stream_heap = arena->extent.stream_heap;
    struct arena_place place;

    (void)state;
    stream_heap->touched = false;
    stream_heap->collects = 3;
    assert_int_equal(claim_and_end(arena, SLOT_BYTES, &place), 0);
    assert_true(stream_heap->touched);
    assert_int_equal(stream_heap->collects, 0);
    arena_end(arena);
}

/* --- idle slots --- */

static void idle_slots_are_taken_outside_of_the_place(void **state) {
    struct arena *arena = arena_of_slots(CAPACITY, "ff<fpff");
    struct arena_place place = {.offset_bytes = 5 * SLOT_BYTES, .size_bytes = QUARTER, .first = 5, .last = 5};
    uint32_t slots[CAPACITY];

    (void)state;
    assert_int_equal(arena_take_idle_locked(arena, &place, ARENA_WIDTH_ONE, slots, 2), 2);
    assert_int_equal(slots[0], 6); /* those that lie highest, so that what stays lies together */
    assert_int_equal(slots[1], 3);
    expect_slots(arena, "ff<bpfb");
    arena->slots[0].lending.splitting = 1;
    assert_int_equal(arena_take_idle_locked(arena, &place, ARENA_WIDTH_ONE, slots, CAPACITY), 1);
    assert_int_equal(slots[0], 1); /* the lease of slot 0 may have ended */
    assert_int_equal(arena_take_idle_locked(arena, &place, ARENA_WIDTH_ONE, slots, CAPACITY), 0);
    expect_slots(arena, "fb<bpfb");
    arena->slots[0].lending.splitting = 0;
    assert_int_equal(arena_take_idle_locked(arena, &place, ARENA_WIDTH_ONE, slots, 0), 0);
    assert_int_equal(arena_take_idle_locked(arena, &place, ARENA_WIDTH_ONE, slots, 1), 1);
    for (uint32_t i = 0; i < arena->n_slots; i++)
        if (arena->slots[i].state == ARENA_SLOT_BUSY)
            arena_return_locked(arena, i);
    expect_slots(arena, "ff<fpff");
    assert_int_equal(stream_heap_free_bytes_locked(arena->extent.stream_heap),
                     5 * SLOT_BYTES + SLOT_BYTES / 2);
    arena_end(arena);
}

/* A slot of which a part went to the daemon is no whole segment. */
static void a_slot_that_lacks_a_part_is_not_taken(void **state) {
    struct arena *arena = arena_of_slots(CAPACITY, "fp");
    struct arena_place place = {.offset_bytes = SLOT_BYTES, .size_bytes = SLOT_BYTES, .first = 1, .last = 1};
    uint32_t slot;

    (void)state;
    assert_false(arena_lose(arena, 0, QUARTER));
    arena_note_fence_locked(arena, 0, FENCE_NONE);
    assert_int_equal(arena_take_idle_locked(arena, &place, ARENA_WIDTH_ONE, &slot, 1), 0);
    expect_slots(arena, "-p");
    /* nor is what is left of it a part of a longer place */
    assert_int_equal(claim_and_end(arena, 4 * QUARTER, &place), 0);
    assert_int_equal(place.offset_bytes, 8 * QUARTER);
    assert_int_equal(claim_and_end(arena, 3 * QUARTER, &place), 0);
    assert_int_equal(place.offset_bytes, QUARTER);
    assert_int_equal(place.n_vacant, 0);
    arena_end(arena);
}

/* Takes a slot, the highest that is idle, and empties it behind a fence. */
static void move_away(struct arena *arena, uint32_t number, struct fence fence) {
    struct arena_place nowhere = {.first = CAPACITY, .last = CAPACITY};
    uint32_t slot;

    assert_int_equal(arena_take_idle_locked(arena, &nowhere, ARENA_WIDTH_ONE, &slot, 1), 1);
    assert_int_equal(slot, number);
    arena_empty_locked(arena, slot, fence);
}

/* Whether a claim of a slot and a half takes the last slot that there is. */
static bool takes_last_slot(struct arena *arena) {
    uint32_t last = arena->n_slots - 1;
    struct arena_place place;
    int r = claim_and_end(arena, HEAP_GRANULE, &place);

    assert_true(r == 0 || r == -ENOSPC);
    return r == 0 && place.first == last;
}

static void a_slot_that_was_emptied_is_filled_again_behind_its_fence(void **state) {
    struct arena *arena = arena_of_slots(2, "pf");

    (void)state;
    move_away(arena, 1, (struct fence){WORD, 5});
    expect_slots(arena, "pv");
    assert_int_equal(arena->slots[1].segment.id, 0);
    assert_int_equal(arena->slots[1].lending.lease, 0);
    assert_int_equal(stream_heap_held_bytes_locked(arena->extent.stream_heap), SLOT_BYTES);
    assert_false(takes_last_slot(arena));
    arrive(WORD, 4);
    assert_false(takes_last_slot(arena));
    arrive(WORD, 5);
    assert_true(takes_last_slot(arena));
    arena_end(arena);
}

static void a_slot_without_a_mapping_is_filled_again_at_once(void **state) {
    struct arena *arena = arena_of_slots(2, "pf");

    (void)state;
    move_away(arena, 1, (struct fence){WORD, 5});
    assert_false(takes_last_slot(arena));
    arena_unmapped_locked(arena, arena->slots[1].maps); /* the daemon had the segment closed */
    assert_true(takes_last_slot(arena));
    arena_end(arena);
}

static void a_slot_without_a_fence_is_filled_again_at_once(void **state) {
    struct arena *arena = arena_of_slots(2, "pf");

    (void)state;
    move_away(arena, 1, FENCE_NONE);
    assert_true(takes_last_slot(arena));
    arena_end(arena);
}

/* A segment moves from one slot to another, and later uses of the first have no old fences. */
static void a_segment_moves_with_its_lease(void **state) {
    struct arena *arena = arena_of_slots(4, "vfpf");
    struct lending lending = arena->slots[3].lending;
    struct segment_ref segment = arena->slots[3].segment;
    struct arena_place place;
    struct piece *piece;
    uint32_t slot;

    (void)state;
    assert_int_equal(arena_claim_locked(arena, 2 * SLOT_BYTES, ANY_MOVES, &place), 0);
    assert_int_equal(place.n_vacant, 1);
    assert_int_equal(arena_take_idle_locked(arena, &place, ARENA_WIDTH_ONE, &slot, 1), 1);
    assert_int_equal(slot, 3);
    arena_empty_locked(arena, slot, (struct fence){WORD, 1});
    arena_fill_locked(arena, 0, &lending, segment);
    assert_int_equal(arena_settle_locked(arena, &place, &piece), 0);
    expect_slots(arena, "pppv");
    assert_int_equal(piece->lease, 4);
    assert_int_equal(piece->lease_generation, generation_of(4));
    assert_false(takes_last_slot(arena));
    arrive(WORD, 1);
    assert_true(takes_last_slot(arena));
    arena_end(arena);
}

/* --- parts that leave --- */

static void a_slot_is_vacant_when_the_last_part_of_it_was_released(void **state) {
    struct arena *arena = arena_of_slots(CAPACITY, "f");

    (void)state;
    assert_false(arena_lose(arena, 0, QUARTER));
    assert_false(arena_lose(arena, 2 * QUARTER, QUARTER));
    arena_note_fence_locked(arena, 0, FENCE_NONE);
    assert_false(arena_lose(arena, 3 * QUARTER, QUARTER));
    expect_slots(arena, "-");
    assert_int_equal(stream_heap_free_bytes_locked(arena->extent.stream_heap), QUARTER);
    assert_true(arena_lose(arena, QUARTER, QUARTER));
    for (unsigned i = 0; i < 3; i++) { /* the parts that are not released yet */
        expect_slots(arena, "l");
        arena_note_fence_locked(arena, 0, FENCE_NONE);
    }
    expect_slots(arena, "v");
    assert_int_equal(stream_heap_held_bytes_locked(arena->extent.stream_heap), 0);
    /* the ranges that the parts left are one slot again */
    struct arena_place place;
    assert_int_equal(arena_claim_locked(arena, SLOT_BYTES, ANY_MOVES, &place), 0);
    fill_slot(arena, 0);
    assert_int_equal(arena_settle_locked(arena, &place, NULL), 0);
    expect_slots(arena, "f");
    assert_true(arena->extent.span->lowest->upper == NULL);
    arena_end(arena);
}

/* Loses the two halves of the only slot behind two fences. */
static struct arena *lose_halves(struct fence first, struct fence second) {
    struct arena *arena = arena_of_slots(1, "f");

    assert_false(arena_lose(arena, 0, SLOT_BYTES / 2));
    arena_note_fence_locked(arena, 0, first);
    assert_true(arena_lose(arena, SLOT_BYTES / 2, SLOT_BYTES / 2));
    arena_note_fence_locked(arena, 0, second);
    expect_slots(arena, "v");
    return arena;
}

static void the_later_fence_of_a_word_counts(void **state) {
    static const uint64_t values[][2] = {{1, 2}, {2, 1}, {2, 2}, {UINT64_MAX, 2}, {2, UINT64_MAX}};

    (void)state;
    for (unsigned i = 0; i < sizeof values / sizeof *values; i++) {
        arrive(WORD, UINT64_MAX - 1);
        if (values[i][0] < 3 && values[i][1] < 3)
            arrive(WORD, 0);
        struct arena *arena =
            lose_halves((struct fence){WORD, values[i][0]}, (struct fence){WORD, values[i][1]});
        assert_false(takes_last_slot(arena));
        arrive(WORD, 1);
        assert_false(takes_last_slot(arena));
        arrive(WORD, 2);
        assert_true(takes_last_slot(arena));
        arena_end(arena);
        last_lease = 0;
    }
}

static void fences_that_nothing_orders_wait_for_the_mapping_to_go(void **state) {
    struct arena *arena = lose_halves((struct fence){1, 1}, (struct fence){2, 1});

    (void)state;
    arrive(1, 1);
    assert_false(takes_last_slot(arena));
    arrive(2, 1);
    assert_false(takes_last_slot(arena)); /* only one of them is known by then */
    unmap_slot(arena, 0);
    assert_true(takes_last_slot(arena));
    /* and it has no memory of them when it was filled */
    struct arena_place place;
    assert_int_equal(arena_claim_locked(arena, SLOT_BYTES, ANY_MOVES, &place), 0);
    fill_slot(arena, 0);
    assert_int_equal(arena_settle_locked(arena, &place, NULL), 0);
    vacate(arena, 0, (struct fence){1, 1});
    assert_true(takes_last_slot(arena));
    arena_end(arena);
}

static void a_fence_that_is_ready_makes_room_for_another(void **state) {
    (void)state;
    arrive(1, 1);
    struct arena *arena = lose_halves((struct fence){1, 1}, (struct fence){2, 1});
    assert_false(takes_last_slot(arena));
    arrive(2, 1);
    assert_true(takes_last_slot(arena));
    arena_end(arena);
    last_lease = 0;
    /* the second is ready, the first is not */
    arena = lose_halves((struct fence){3, 1}, (struct fence){1, 1});
    assert_false(takes_last_slot(arena));
    arrive(3, 1);
    assert_true(takes_last_slot(arena));
    arena_end(arena);
}

static void a_piece_that_was_split_off_keeps_its_slots_until_it_is_released(void **state) {
    struct arena *arena = arena_of_slots(4, "ffff");
    struct stream_heap *stream_heap = arena->extent.stream_heap;
    struct piece *piece = take_at(arena, 2 * QUARTER, 12 * QUARTER);

    (void)state;
    stream_heap_begin_split_locked(piece);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(arena->slots[i].lending.splitting, 1);
    stream_heap_split_off_locked(piece, 77, 78);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(arena->slots[i].lending.splitting, 0);
    expect_slots(arena, "-ll-");
    assert_int_equal(arena->slots[0].absent_bytes, 2 * QUARTER);
    assert_int_equal(arena->slots[3].absent_bytes, 2 * QUARTER);
    stream_heap_forget_piece_locked(stream_heap, piece, (struct fence){WORD, 1});
    expect_slots(arena, "-vv-");
    struct arena_place place;
    assert_int_equal(claim_and_end(arena, SLOT_BYTES, &place), -ENOSPC);
    arrive(WORD, 1);
    assert_int_equal(claim_and_end(arena, 2 * SLOT_BYTES, &place), 0);
    assert_int_equal(place.first, 1);
    arena_end(arena);
}

static void an_abandoned_range_is_never_filled_again(void **state) {
    struct arena *arena = arena_of_slots(4, "ffff");
    struct stream_heap *stream_heap = arena->extent.stream_heap;
    struct heap_range *range = heap_range_at(arena->extent.span, 0);
    struct arena_place place;

    (void)state;
    assert_int_equal(heap_claim_part(range, 2 * QUARTER, 12 * QUARTER, &range), 0);
    arena_abandon_locked(arena, range);
    expect_slots(arena, "-ll-");
    for (uint32_t i = 0; i < 4; i++)
        arena_note_fence_locked(arena, i, FENCE_NONE);
    expect_slots(arena, "-ll-");
    assert_int_equal(stream_heap_held_bytes_locked(stream_heap), 4 * QUARTER);
    /* what was left of the first and of the last is used, until it goes as well */
    assert_int_equal(claim_and_end(arena, 2 * QUARTER, &place), 0);
    assert_int_equal(claim_and_end(arena, 3 * QUARTER, &place), -ENOSPC);
    assert_true(arena_lose(arena, 0, 2 * QUARTER));
    arena_note_fence_locked(arena, 0, FENCE_NONE);
    expect_slots(arena, "lll-");
    assert_int_equal(claim_and_end(arena, 3 * QUARTER, &place), -ENOSPC);
    arena_end(arena);
}

/* --- what goes to the daemon --- */

/* Reclaims a part, and releases it. */
static bool reclaims(struct arena *arena, bool any_size, uint64_t offset, uint64_t size) {
    struct heap_range *range;

    if (!arena_reclaim_locked(arena, any_size, &range))
        return false;
    assert_int_equal(range->offset, offset * QUARTER);
    assert_int_equal(range->size, size * QUARTER);
    assert_false(range->free);
    (void)arena_lose_locked(arena, range->offset, range->size);
    arena_note_fence_locked(arena, arena_slot_at(arena, range->offset), FENCE_NONE);
    assert_true(all_is_valid(arena));
    return true;
}

static void slots_that_are_free_go_back_the_highest_first(void **state) {
    struct arena *arena = arena_of_slots(CAPACITY, "<ff>f<p");

    (void)state;
    assert_true(reclaims(arena, false, 16, 4));
    assert_true(reclaims(arena, false, 8, 4));
    assert_true(reclaims(arena, false, 4, 4));
    assert_false(reclaims(arena, false, 0, 0));
    expect_slots(arena, "<vv>v<p");
    arena_end(arena);
}

static void parts_of_slots_go_back_where_they_are_wanted(void **state) {
    struct arena *arena = arena_of_slots(CAPACITY, "<ff>f<>");

    (void)state;
    assert_true(reclaims(arena, true, 24, 2)); /* each in one slot */
    assert_true(reclaims(arena, true, 22, 2));
    assert_true(reclaims(arena, true, 16, 4));
    assert_true(reclaims(arena, true, 8, 4)); /* of a range, whole slots come first */
    assert_true(reclaims(arena, true, 12, 2));
    assert_true(reclaims(arena, true, 4, 4));
    assert_true(reclaims(arena, true, 2, 2));
    assert_false(reclaims(arena, true, 0, 0));
    expect_slots(arena, "-vv-v--");
    assert_int_equal(stream_heap_free_bytes_locked(arena->extent.stream_heap), 0);
    arena_end(arena);
}

/* A shortage may leave the rest of a slot in use. It goes when it is free, whatever its size: no other call
 * gives it back. */
static void the_rest_of_a_slot_goes_back_when_it_is_free(void **state) {
    struct arena *arena = arena_of_slots(CAPACITY, "p<>p");
    struct stream_heap *stream_heap = arena->extent.stream_heap;
    struct piece *low = heap_range_at(arena->extent.span, slot_start(1))->user;
    struct piece *high = heap_range_at(arena->extent.span, slot_start(3) - 1)->user;

    (void)state;
    assert_false(reclaims(arena, false, 0, 0));
    assert_true(reclaims(arena, true, 8, 2));
    expect_slots(arena, "p<-p");
    assert_false(reclaims(arena, false, 0, 0));
    stream_heap_give(high);
    assert_true(reclaims(arena, false, 10, 2));
    expect_slots(arena, "p<vp");
    stream_heap_give(low);
    assert_true(reclaims(arena, false, 4, 4)); /* it was whole */
    expect_slots(arena, "pvvp");
    assert_int_equal(stream_heap_held_bytes_locked(stream_heap), 2 * SLOT_BYTES);
    arena_end(arena);
}

/* Of free memory on either side of a border, the side whose slot is in use stays. */
static void the_rest_of_a_slot_goes_back_without_its_neighbour(void **state) {
    struct arena *arena = arena_of_slots(CAPACITY, "f>");
    struct arena_place place;
    struct piece *piece;

    (void)state;
    assert_false(arena_lose(arena, 0, QUARTER));
    arena_note_fence_locked(arena, 0, FENCE_NONE);
    piece = take_at(arena, QUARTER, QUARTER);
    assert_false(reclaims(arena, false, 0, 0));
    stream_heap_give(piece);
    assert_true(reclaims(arena, false, 1, 3));
    assert_false(reclaims(arena, false, 0, 0));
    expect_slots(arena, "v>");
    /* nor does memory go that a thread has claimed */
    assert_false(arena_lose(arena, 4 * QUARTER, QUARTER));
    arena_note_fence_locked(arena, 1, FENCE_NONE);
    stream_heap_give(heap_range_at(arena->extent.span, slot_start(2) - 1)->user);
    assert_int_equal(arena_claim_locked(arena, QUARTER, ANY_MOVES, &place), 0);
    assert_int_equal(place.offset_bytes, 5 * QUARTER);
    assert_false(reclaims(arena, false, 0, 0));
    assert_int_equal(arena_settle_locked(arena, &place, NULL), 0);
    assert_true(reclaims(arena, false, 5, 3));
    expect_slots(arena, "vv");
    arena_end(arena);
}

static void a_stream_heap_gives_parts_of_slots_back_only_where_any_size_will_do(void **state) {
    struct arena *arena = arena_of_slots(CAPACITY, "<f");
    struct stream_heap *stream_heap = arena->extent.stream_heap;
    struct stream_heap_part part;

    (void)state;
    assert_true(stream_heap_reclaim(stream_heap, PROTO_SLOT_BYTES_MIN, &part));
    assert_int_equal(part.slot, 1);
    assert_int_equal(part.lease, 2);
    assert_int_equal(part.generation, generation_of(2));
    assert_int_equal(part.offset_bytes, 0);
    assert_int_equal(part.size_bytes, SLOT_BYTES);
    assert_true(part.whole);
    assert_false(stream_heap_reclaim(stream_heap, PROTO_SLOT_BYTES_MIN, &part));
    assert_true(stream_heap_reclaim(stream_heap, 1, &part));
    assert_int_equal(part.slot, 0);
    assert_int_equal(part.offset_bytes, 2 * QUARTER); /* in its lease */
    assert_int_equal(part.size_bytes, 2 * QUARTER);
    assert_false(part.whole);
    assert_false(stream_heap_reclaim_slot_locked(stream_heap, &part));
    assert_false(stream_heap_reclaim_between_locked(stream_heap, NULL, (const char *)UINTPTR_MAX, &part));
    expect_slots(arena, "-l");
    arena_end(arena);
}

/* The two halves of a slot leave it. Of the second one no fence can be left. */
static void a_part_whose_fence_cannot_be_left_is_free_again(void **state) {
    struct arena *arena = arena_of_slots(CAPACITY, "<");
    struct stream_heap *stream_heap = arena->extent.stream_heap;
    struct stream_heap_part first, second;

    (void)state;
    assert_true(stream_heap_reclaim(stream_heap, 1, &first));
    struct piece *piece = heap_range_at(arena->extent.span, 0)->user;
    stream_heap_give(piece);
    assert_true(stream_heap_reclaim(stream_heap, 1, &second));
    assert_int_equal(second.offset_bytes, 0);
    assert_true(second.whole);
    expect_slots(arena, "l");
    stream_heap_fence_part(&first);
    expect_slots(arena, "l");
    stream_heap_return_part(&second);
    expect_slots(arena, "-");
    assert_int_equal(stream_heap_free_bytes_locked(stream_heap), SLOT_BYTES / 2);
    assert_true(stream_heap_reclaim(stream_heap, 1, &second));
    assert_int_equal(second.size_bytes, SLOT_BYTES / 2);
    stream_heap_fence_part(&second);
    expect_slots(arena, "v");
    arena_end(arena);
}

/* Slots that are kept for a request that waits. */
static void what_is_free_in_a_target_goes_back_in_parts(void **state) {
    struct arena *arena = arena_of_slots(CAPACITY, "<>vp");
    struct stream_heap *stream_heap = arena->extent.stream_heap;
    struct stream_heap_part part;
    struct arena_place place;

    (void)state;
    assert_false(stream_heap_reclaim_slot_locked(stream_heap, &part));
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(arena_may_be_target_locked(arena, i), i != 2);
        assert_int_equal(arena_used_bytes_locked(arena, i), i == 2   ? 0
                                                            : i == 3 ? SLOT_BYTES
                                                                     : SLOT_BYTES / 2);
    }
    arena->slots[1].is_target = true;
    assert_true(stream_heap_reclaim_slot_locked(stream_heap, &part));
    assert_int_equal(part.slot, 1);
    assert_int_equal(part.offset_bytes, 0);
    assert_int_equal(part.size_bytes, SLOT_BYTES / 2);
    assert_false(part.whole);
    assert_false(stream_heap_reclaim_slot_locked(stream_heap, &part)); /* not what is free beside it */
    stream_heap_give(heap_range_at(arena->extent.span, slot_start(2) - 1)->user);
    assert_true(stream_heap_reclaim_slot_locked(stream_heap, &part));
    assert_true(part.whole);
    for (unsigned i = 0; i < 2; i++)
        arena_note_fence_locked(arena, 1, FENCE_NONE);
    arena->slots[2].is_target = true;
    assert_int_equal(arena_claim_vacant_locked(arena, 1, &place), 0);
    fill_slot(arena, place.first);
    assert_false(arena->slots[place.first].is_target); /* what comes there next is not kept */
    assert_int_equal(arena_settle_locked(arena, &place, NULL), 0);
    assert_true(all_is_valid(arena));
    arena_end(arena);
}

/* --- without memory --- */

/* Leaves the heap so many nodes; the next ones have to be allocated. */
static void leave_nodes(struct arena *arena, size_t count) {
    struct heap *heap = arena->extent.span->heap;
    struct heap_span *span;

    assert_int_equal(heap_add_span(heap, 1000 * HEAP_GRANULE, NULL, &span), 0);
    while (list_length(&heap->spare_nodes) != count) {
        struct heap_range *range = span->lowest;
        while (!range->free)
            range = range->upper;
        assert_int_equal(heap_claim_part(range, range->offset, HEAP_GRANULE, &range), 0);
    }
}

/* Does something with the next allocation failing and ever more nodes at hand, until it succeeds: the slots
 * are as they were before. Returns in how many rounds it failed. */
static unsigned fail_each(const char *slots, bool (*succeeds)(struct arena *arena)) {
    unsigned failures = 0;
    bool failed;

    do {
        struct arena *arena = arena_of_slots(CAPACITY, slots);
        leave_nodes(arena, failures);
        uint64_t free_bytes = stream_heap_free_bytes_locked(arena->extent.stream_heap);
        memory_fail_nth(1);
        failed = !succeeds(arena);
        assert_int_equal(failed, memory_failed());
        memory_fail_nth(0);
        assert_true(all_is_valid(arena));
        if (failed) {
            char before[CAPACITY + 1];
            memcpy(before, slots, strlen(slots) + 1);
            for (uint32_t i = (uint32_t)strlen(slots); i < arena->n_slots; i++) {
                before[i] = 'v'; /* some are new */
                before[i + 1] = '\0';
            }
            expect_slots(arena, before);
            assert_int_equal(stream_heap_free_bytes_locked(arena->extent.stream_heap), free_bytes);
            assert_true(succeeds(arena));
            assert_true(all_is_valid(arena));
            failures++;
        }
        arena_end(arena);
        last_lease = 0;
    } while (failed && failures < 100);
    return failures;
}

static bool claims_beyond_the_end(struct arena *arena) {
    struct arena_place place;
    int r = arena_claim_locked(arena, 24 * QUARTER, ANY_MOVES, &place);

    assert_true(r == 0 || r == -ENOMEM);
    if (r == 0)
        assert_int_equal(arena_settle_locked(arena, &place, NULL), 0);
    return r == 0;
}

static bool claims_parts_of_free_memory(struct arena *arena) {
    struct arena_place place;
    int r = arena_claim_locked(arena, 15 * QUARTER, ANY_MOVES, &place);

    assert_true(r == 0 || r == -ENOMEM);
    if (r == 0) {
        assert_int_equal(place.offset_bytes, 4 * QUARTER);
        assert_int_equal(arena_settle_locked(arena, &place, NULL), 0);
    }
    return r == 0;
}

static bool takes_a_slot_of_three(struct arena *arena) {
    struct arena_place place = {.first = 0, .last = 0};
    uint32_t slot, count = arena_take_idle_locked(arena, &place, ARENA_WIDTH_ONE, &slot, 1);

    if (count == 1)
        arena_return_locked(arena, slot);
    return count == 1;
}

static bool reclaims_a_slot(struct arena *arena) {
    struct heap_range *range;
    bool found = arena_reclaim_locked(arena, false, &range);

    if (found)
        heap_give(range);
    return found;
}

static void without_memory_a_call_changes_nothing(void **state) {
    (void)state;
    assert_int_equal(fail_each("<fv", claims_beyond_the_end), 4);         /* four slots are new */
    assert_int_equal(fail_each("pfvff", claims_parts_of_free_memory), 1); /* the last one is divided */
    assert_int_equal(fail_each("pfff>", takes_a_slot_of_three), 2);
    assert_int_equal(fail_each("pfff>", reclaims_a_slot), 2);
}

/* Takes pieces until the next one has to be allocated. */
static void use_up_pieces(struct stream_heap *stream_heap) {
    struct piece *piece;
    int r;

    assert_int_equal(stream_heap_add_extent(stream_heap, CAPACITY + 1, 4 * MIB), 0);
    do {
        memory_fail_nth(1);
        r = stream_heap_take(stream_heap, HEAP_GRANULE, &piece);
        memory_fail_nth(0);
        if (r < 0 && stream_heap->pieces.spare != NULL) /* it was a node of the heap */
            r = stream_heap_take(stream_heap, HEAP_GRANULE, &piece);
    } while (r == 0);
    assert_int_equal(r, -ENOMEM);
}

static void without_memory_for_the_piece_the_place_is_free(void **state) {
    struct arena *arena = arena_of_slots(CAPACITY, "<");
    struct stream_heap *stream_heap = arena->extent.stream_heap;
    struct arena_place place;
    struct piece *piece;

    (void)state;
    use_up_pieces(stream_heap);
    assert_int_equal(arena_claim_locked(arena, 5 * QUARTER, ANY_MOVES, &place), 0);
    fill_slot(arena, 1);
    memory_fail_nth(1);
    assert_int_equal(arena_settle_locked(arena, &place, &piece), -ENOMEM);
    assert_true(memory_failed());
    expect_slots(arena, "<f");
    assert_int_equal(arena_claim_locked(arena, 5 * QUARTER, ANY_MOVES, &place), 0);
    assert_int_equal(place.n_vacant, 0);
    assert_int_equal(arena_settle_locked(arena, &place, &piece), 0);
    expect_slots(arena, "p<");
    arena_end(arena);
}

static void without_memory_there_is_no_arena(void **state) {
    unsigned n = 0;
    struct arena *arena;

    (void)state;
    do {
        memory_fail_nth(++n);
        arena = arena_try(CAPACITY);
        assert_int_equal(arena == NULL, memory_failed());
        memory_fail_nth(0);
    } while (arena == NULL && n < 100);
    assert_in_range(n, 4, 8); /* the stream heap, the arena, its slots, its span and the nodes */
    arena_end(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_are_a_share_of_the_limit),
        cmocka_unit_test(a_new_arena_has_a_slot_and_no_memory),
        cmocka_unit_test(each_slot_is_a_lease_of_its_own),
        cmocka_unit_test(a_claim_takes_the_place_that_lacks_the_fewest_segments),
        cmocka_unit_test(an_arena_grows_where_moves_do_not_pay),
        cmocka_unit_test(an_arena_moves_where_it_may_not_grow),
        cmocka_unit_test(nothing_grows_where_nothing_has_to_move),
        cmocka_unit_test(an_arena_does_not_grow_beyond_its_ceiling),
        cmocka_unit_test(the_arena_grows_to_the_end_of_its_addresses),
        cmocka_unit_test(no_address_is_left),
        cmocka_unit_test(a_place_that_is_claimed_is_no_other_claims),
        cmocka_unit_test(a_place_that_is_filled_becomes_a_piece),
        cmocka_unit_test(what_was_filled_of_a_place_is_free_when_the_rest_fails),
        cmocka_unit_test(a_settled_place_counts_as_use),
        cmocka_unit_test(idle_slots_are_taken_outside_of_the_place),
        cmocka_unit_test(a_slot_that_lacks_a_part_is_not_taken),
        cmocka_unit_test(a_slot_that_was_emptied_is_filled_again_behind_its_fence),
        cmocka_unit_test(a_slot_without_a_mapping_is_filled_again_at_once),
        cmocka_unit_test(a_slot_without_a_fence_is_filled_again_at_once),
        cmocka_unit_test(a_segment_moves_with_its_lease),
        cmocka_unit_test(a_slot_is_vacant_when_the_last_part_of_it_was_released),
        cmocka_unit_test(the_later_fence_of_a_word_counts),
        cmocka_unit_test(fences_that_nothing_orders_wait_for_the_mapping_to_go),
        cmocka_unit_test(a_fence_that_is_ready_makes_room_for_another),
        cmocka_unit_test(a_piece_that_was_split_off_keeps_its_slots_until_it_is_released),
        cmocka_unit_test(an_abandoned_range_is_never_filled_again),
        cmocka_unit_test(slots_that_are_free_go_back_the_highest_first),
        cmocka_unit_test(parts_of_slots_go_back_where_they_are_wanted),
        cmocka_unit_test(the_rest_of_a_slot_goes_back_when_it_is_free),
        cmocka_unit_test(the_rest_of_a_slot_goes_back_without_its_neighbour),
        cmocka_unit_test(a_part_whose_fence_cannot_be_left_is_free_again),
        cmocka_unit_test(a_stream_heap_gives_parts_of_slots_back_only_where_any_size_will_do),
        cmocka_unit_test(what_is_free_in_a_target_goes_back_in_parts),
        cmocka_unit_test(without_memory_a_call_changes_nothing),
        cmocka_unit_test(without_memory_for_the_piece_the_place_is_free),
        cmocka_unit_test(without_memory_there_is_no_arena),
    };
    struct CMUnitTest prepared[sizeof tests / sizeof *tests];

    for (unsigned i = 0; i < sizeof tests / sizeof *tests; i++) {
        prepared[i] = tests[i];
        prepared[i].setup_func = set_up;
        prepared[i].teardown_func = tear_down;
    }
    return cmocka_run_group_tests(prepared, NULL, NULL);
}
