/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of large segments in arenas: slots that are joined. Large ones fill four slots here, or two. */
#include <errno.h>

#include "arena_fixture.h"

#define CAPACITY 16u

static uint64_t last_lease;

static int set_up(void **state) {
    (void)state;
    fences_reset();
    last_lease = 0;
    return 0;
}

/* Makes an arena with free slots: the text has their widths, one character each. */
static struct arena *arena_of_widths(const char *widths) {
    struct arena *arena = arena_make(CAPACITY);
    struct arena_place place;
    uint32_t count = 0, number = 0;

    arena->widths[ARENA_WIDTH_HALF] = 2;
    arena->widths[ARENA_WIDTH_LARGE] = 4;
    for (const char *width = widths; *width != '\0'; width++)
        count += (uint32_t)(*width - '0');
    assert_int_equal(arena_claim_locked(arena, count * SLOT_BYTES, ANY_MOVES, &place), 0);
    for (const char *width = widths; *width != '\0'; width++) {
        uint64_t lease = ++last_lease;
        struct lending lending = {.lease = lease, .generation = generation_of(lease)};
        arena_shape_locked(arena, number, (uint32_t)(*width - '0'), ARENA_SLOT_BUSY);
        arena_fill_locked(arena, number, &lending, SEGMENT(lease));
        number += (uint32_t)(*width - '0');
    }
    assert_int_equal(arena_settle_locked(arena, &place, NULL), 0);
    assert_true(all_is_valid(arena));
    assert_int_equal(stream_heap_free_bytes_locked(arena->extent.stream_heap), count * SLOT_BYTES);
    return arena;
}

static void expect_widths(const struct arena *arena, const char *widths) {
    uint32_t number = 0;

    for (; *widths != '\0'; widths++, number = arena_slot_after(arena, number))
        assert_int_equal(arena_slot_after(arena, number) - number, *widths - '0');
    assert_int_equal(number, arena->n_slots);
    assert_true(all_is_valid(arena));
}

/* The whole of a free slot leaves the arena, behind a fence. Its mapping stays. */
static void vacate(struct arena *arena, uint32_t number, struct fence fence) {
    assert_true(arena_lose(arena, arena_slot_start(arena, number), arena_slot_bytes(arena, number)));
    arena_note_fence_locked(arena, number, fence);
    assert_int_equal(arena->slots[number].state, ARENA_SLOT_VACANT);
}

static void large_segments_have_a_share_of_the_limit(void **state) {
    static const struct {
        uint64_t limit_bytes, large_bytes;
    } sizes[] = {
        {0, 0},
        {4 * GIB - 1, 0},
        {4 * GIB, 256 * MIB},
        {8 * GIB - 1, 256 * MIB},
        {8 * GIB, 512 * MIB},
        {141 * GIB, 512 * MIB},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        assert_int_equal(proto_large_bytes(sizes[i].limit_bytes), sizes[i].large_bytes);
}

static void joined_slots_are_one_lease(void **state) {
    struct arena *arena = arena_of_widths("1421");

    (void)state;
    expect_widths(arena, "1421");
    for (uint32_t i = 1; i < 5; i++) {
        assert_int_equal(arena_slot_at(arena, slot_start(i) + QUARTER), 1);
        assert_int_equal(extent_lending_at(&arena->extent, slot_start(i))->lease, 2);
    }
    struct piece *piece;
    assert_int_equal(stream_heap_take_at_locked(&arena->extent, slot_start(3) + QUARTER, QUARTER, &piece), 0);
    assert_int_equal(stream_heap_offset_in_lease(piece), 2 * SLOT_BYTES + QUARTER);
    assert_true(stream_heap_is_one_part_locked(piece));
    stream_heap_give_locked(piece->stream_heap, piece);
    arena_end(arena);
}

static void a_large_segment_leaves_as_a_whole(void **state) {
    struct arena *arena = arena_of_widths("14");
    struct heap_range *range;

    (void)state;
    assert_false(arena_lose(arena, slot_start(2), SLOT_BYTES));
    arena_note_fence_locked(arena, 1, FENCE_NONE);
    assert_int_equal(arena->slots[1].state, ARENA_SLOT_HELD);
    assert_true(all_is_valid(arena));
    assert_false(arena_lose(arena, slot_start(1), SLOT_BYTES));
    assert_true(arena_lose(arena, slot_start(3), 2 * SLOT_BYTES));
    arena_note_fence_locked(arena, 1, FENCE_NONE);
    assert_int_equal(arena->slots[1].state, ARENA_SLOT_LEAVING);
    arena_note_fence_locked(arena, 1, FENCE_NONE);
    assert_int_equal(arena->slots[1].state, ARENA_SLOT_VACANT);
    expect_widths(arena, "14");
    assert_true(arena_reclaim_locked(arena, false, &range));
    assert_int_equal(range->size, SLOT_BYTES);
    arena_end(arena);
}

static void a_large_segment_in_use_gives_nothing_back_unless_any_size_helps(void **state) {
    struct arena *arena = arena_of_widths("41");
    struct heap_range *range;
    struct piece *piece;

    (void)state;
    assert_int_equal(stream_heap_take_at_locked(&arena->extent, 0, QUARTER, &piece), 0);
    assert_true(arena_reclaim_locked(arena, false, &range));
    assert_int_equal(range->offset, slot_start(4));
    assert_true(arena_lose_locked(arena, range->offset, range->size));
    assert_false(arena_reclaim_locked(arena, false, &range));
    assert_true(arena_reclaim_locked(arena, true, &range));
    assert_int_equal(range->offset, QUARTER);
    assert_int_equal(range->size, 4 * SLOT_BYTES - QUARTER);
    arena_end(arena);
}

static void idle_segments_are_taken_by_their_width(void **state) {
    struct arena *arena = arena_of_widths("14214");
    const struct arena_place nowhere = {.first = CAPACITY, .last = CAPACITY};
    uint32_t slots[CAPACITY];

    (void)state;
    assert_int_equal(arena_take_idle_locked(arena, &nowhere, ARENA_WIDTH_LARGE, slots, 1), 1);
    assert_int_equal(slots[0], 8);
    assert_int_equal(arena_take_idle_locked(arena, &nowhere, ARENA_WIDTH_HALF, slots + 1, CAPACITY), 1);
    assert_int_equal(slots[1], 5);
    assert_int_equal(arena_take_idle_locked(arena, &nowhere, ARENA_WIDTH_ONE, slots + 2, CAPACITY), 2);
    assert_true(all_is_valid(arena));
    assert_int_equal(stream_heap_free_bytes_locked(arena->extent.stream_heap), 4 * SLOT_BYTES);
    for (unsigned i = 0; i < 4; i++)
        arena_return_locked(arena, slots[i]);
    assert_int_equal(stream_heap_free_bytes_locked(arena->extent.stream_heap), 12 * SLOT_BYTES);
    expect_widths(arena, "14214");
    arena_end(arena);
}

/* A place of three slots beside an idle segment of four: that does not fill it. */
static void idle_segments_count_where_they_find_room(void **state) {
    struct arena *arena = arena_of_widths("11141");
    struct arena_place place;
    struct piece *piece;

    (void)state;
    for (uint32_t i = 0; i < 3; i++)
        vacate(arena, i, FENCE_NONE);
    assert_int_equal(stream_heap_take_at_locked(&arena->extent, slot_start(3), QUARTER, &piece), 0);
    assert_int_equal(arena_claim_locked(arena, 3 * SLOT_BYTES, ANY_MOVES, &place), 0);
    assert_int_equal(place.n_vacant, 0); /* the rest of the large one is long enough */
    assert_int_equal(arena_settle_locked(arena, &place, NULL), 0);
    stream_heap_give_locked(piece->stream_heap, piece);
    assert_int_equal(stream_heap_take_at_locked(&arena->extent, slot_start(7), SLOT_BYTES, &piece), 0);
    assert_int_equal(arena_claim_locked(arena, 7 * SLOT_BYTES, ANY_MOVES, &place), 0);
    assert_int_equal(place.offset_bytes, 0);
    assert_int_equal(place.n_vacant, 3);
    assert_int_equal(place.n_asked, 3);
    assert_int_equal(arena_settle_locked(arena, &place, NULL), 0);
    assert_int_equal(arena_claim_locked(arena, 8 * SLOT_BYTES, ANY_MOVES, &place),
                     0); /* it moves behind the others */
    assert_int_equal(place.offset_bytes, slot_start(8));
    assert_int_equal(place.n_vacant, 8);
    assert_int_equal(place.n_asked, 4);
    assert_int_equal(arena_settle_locked(arena, &place, NULL), 0);
    assert_true(all_is_valid(arena));
    arena_end(arena);
}

/* Slots that were joined map one segment as before, until that mapping goes as a whole. */
static void expect_old_mapping(struct arena *arena, uint32_t first, uint32_t count) {
    struct arena_stale stale[CAPACITY];

    for (uint32_t i = first; i < first + count; i++) {
        assert_int_equal(arena_list_stale_locked(arena, i, i + 1, stale), 1);
        assert_int_equal(stale[0].slot, first);
    }
    assert_int_equal(arena_list_stale_locked(arena, first, first + count, stale), 1);
    arena_forget_stale_locked(arena, stale);
    assert_int_equal(arena_list_stale_locked(arena, first, first + count, stale), 0);
}

static void a_place_parts_vacant_slots_that_it_takes_a_part_of(void **state) {
    struct arena *arena = arena_of_widths("414");
    struct arena_place place;
    struct piece *piece;

    (void)state;
    assert_int_equal(stream_heap_take_at_locked(&arena->extent, slot_start(4), SLOT_BYTES, &piece), 0);
    vacate(arena, 0, (struct fence){1, 1});
    vacate(arena, 5, FENCE_NONE);
    /* the fence of the first one is not ready: nothing of it may map other memory */
    assert_int_equal(arena_claim_locked(arena, 2 * SLOT_BYTES, ANY_MOVES, &place), 0);
    assert_int_equal(place.offset_bytes, slot_start(5));
    expect_widths(arena, "411111");
    expect_old_mapping(arena, 5, 4);
    assert_int_equal(arena_settle_locked(arena, &place, NULL), 0);
    arrive(1, 1);
    unmap_slot(arena, 0);
    assert_int_equal(arena_claim_locked(arena, 4 * SLOT_BYTES, ANY_MOVES, &place), 0);
    assert_int_equal(place.offset_bytes, 0);
    expect_widths(arena, "411111"); /* it takes all of it */
    assert_int_equal(arena->slots[0].state, ARENA_SLOT_BUSY);
    assert_int_equal(arena_divide_locked(arena, 0, 4), 0);
    arena_shape_locked(arena, 0, 2, ARENA_SLOT_BUSY);
    arena_shape_locked(arena, 2, 2, ARENA_SLOT_BUSY);
    expect_widths(arena, "2211111");
    assert_int_equal(arena->slots[2].state, ARENA_SLOT_BUSY);
    assert_int_equal(arena_settle_locked(arena, &place, NULL), 0);
    expect_widths(arena, "2211111");
    arena_end(arena);
}

/* Four joined slots and the one below them become four joined slots and the one above them. */
static void a_large_segment_lies_across_the_end_of_an_old_one(void **state) {
    struct arena *arena = arena_of_widths("1414");
    struct arena_place place;
    struct piece *piece;

    (void)state;
    assert_int_equal(stream_heap_take_at_locked(&arena->extent, slot_start(5), 5 * SLOT_BYTES, &piece), 0);
    for (uint32_t i = 0; i < 2; i++) {
        vacate(arena, i, FENCE_NONE);
        unmap_slot(arena, i);
    }
    assert_int_equal(arena_claim_locked(arena, 5 * SLOT_BYTES, ANY_MOVES, &place), 0);
    assert_int_equal(place.offset_bytes, 0);
    assert_int_equal(arena_divide_locked(arena, 0, 5), 0);
    arena_shape_locked(arena, 0, 4, ARENA_SLOT_BUSY);
    arena_shape_locked(arena, 4, 1, ARENA_SLOT_BUSY);
    expect_widths(arena, "4114");
    assert_true(arena->slots[4].state == ARENA_SLOT_BUSY && arena->slots[4].is_new);
    assert_int_equal(arena_settle_locked(arena, &place, NULL), 0);
    arena_end(arena);
}

/* A place that large segments left is filled by small ones. */
static void joined_slots_are_filled_one_by_one(void **state) {
    struct arena *arena = arena_of_widths("414");
    struct arena_place place;
    struct piece *piece;

    (void)state;
    assert_int_equal(stream_heap_take_at_locked(&arena->extent, slot_start(4), 5 * SLOT_BYTES, &piece), 0);
    vacate(arena, 0, FENCE_NONE);
    unmap_slot(arena, 0);
    assert_int_equal(arena_claim_locked(arena, 4 * SLOT_BYTES, ANY_MOVES, &place), 0);
    assert_int_equal(place.offset_bytes, 0);
    assert_int_equal(place.last, 3);
    assert_int_equal(arena_divide_locked(arena, 0, 4), 0);
    for (uint32_t i = 0; i < 4; i++)
        arena_shape_locked(arena, i, 1, ARENA_SLOT_BUSY);
    for (uint32_t i = 0; i < 4; i++) {
        const struct lending lending = {.lease = ++last_lease, .generation = 1};
        arena_fill_locked(arena, i, &lending, SEGMENT(last_lease));
    }
    assert_int_equal(arena_settle_locked(arena, &place, &piece), 0);
    assert_int_equal(piece->capacity_bytes, 4 * SLOT_BYTES);
    expect_widths(arena, "111114");
    arena_end(arena);
}

#define LARGE_TEST(function) cmocka_unit_test_setup_teardown(function, set_up, NULL)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_segments_have_a_share_of_the_limit),
        LARGE_TEST(joined_slots_are_one_lease),
        LARGE_TEST(a_large_segment_leaves_as_a_whole),
        LARGE_TEST(a_large_segment_in_use_gives_nothing_back_unless_any_size_helps),
        LARGE_TEST(idle_segments_are_taken_by_their_width),
        LARGE_TEST(idle_segments_count_where_they_find_room),
        LARGE_TEST(a_large_segment_lies_across_the_end_of_an_old_one),
        LARGE_TEST(joined_slots_are_filled_one_by_one),
        LARGE_TEST(a_place_parts_vacant_slots_that_it_takes_a_part_of),
    };
    return cmocka_run_group_tests_name("large segments in arenas", tests, NULL, NULL);
}
