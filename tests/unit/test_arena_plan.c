/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of plans: how one request gets its place in an arena filled. The test is the caller: it grants
 * segments, and says what was mapped. Segments are names here. Large ones fill four slots.
 */
#include <errno.h>

#include "arena_fixture.h"
#include "client/core/arena_plan.h"
#include "tests/failing_memory.h"

#define CAPACITY 16u
#define WORD     1u

static uint64_t last_lease;
static struct arena *arena;

static int set_up(void **state) {
    (void)state;
    fences_reset();
    last_lease = 0;
    arena = arena_make(CAPACITY);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    memory_fail_nth(0);
    assert_true(all_is_valid(arena));
    arena_end(arena);
    return 0;
}

/* The daemon grants what a plan asks for next. */
static void grant(struct arena_plan *plan, uint32_t n_asked, uint32_t asked_slots) {
    assert_true(arena_plan_next(plan));
    assert_int_equal(plan->n_asked, n_asked);
    assert_int_equal(plan->asked_slots, asked_slots);
    for (uint32_t i = 0; i < n_asked; i++) {
        uint64_t lease = ++last_lease;
        arena_plan_add_granted(plan, &(struct lending){.lease = lease, .generation = generation_of(lease)},
                               SEGMENT(lease));
    }
}

/* All that a plan has is mapped. Returns how many runs that took, without those that are kept. */
static unsigned map_all(struct arena_plan *plan, uint32_t n_stale) {
    unsigned runs = 0;

    if (plan->n_fillings == 0)
        return 0;
    arena_plan_look_locked(plan);
    assert_int_equal(plan->n_stale, n_stale);
    arena_plan_unmapped_locked(plan, n_stale);
    assert_int_equal(arena_plan_shape_locked(plan), 0);
    for (uint32_t from = 0, to; from < plan->n_fillings; from = to) {
        to = arena_plan_run(plan, from);
        runs += !plan->fillings[from].is_kept;
        arena_plan_mapped_locked(plan, from, to);
    }
    return runs;
}

static struct piece *settle(struct arena_plan *plan) {
    struct piece *piece = NULL;

    assert_int_equal(arena_plan_settle_locked(plan, true, &piece), 0);
    arena_plan_free(plan);
    assert_true(all_is_valid(arena));
    return piece;
}

/* A piece of so many slots, all of whose segments are new. */
static struct piece *take_new(uint32_t n_slots) {
    struct arena_plan plan;
    uint32_t moves;

    assert_int_equal(arena_plan_claim_locked(&plan, arena, n_slots * SLOT_BYTES, ANY_MOVES, false, &moves),
                     0);
    assert_int_equal(moves, 0);
    grant(&plan, n_slots, 1);
    assert_false(arena_plan_next(&plan));
    assert_int_equal(map_all(&plan, 0), 1);
    return settle(&plan);
}

static void new_segments_are_mapped_in_one_run(void **state) {
    (void)state;
    struct piece *piece = take_new(3);
    assert_int_equal(piece->capacity_bytes, 3 * SLOT_BYTES);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(arena_maps_locked(arena, i, i + 1));
}

/* Two free slots lie apart, at either side of a piece. A piece of two slots takes the segment of the first one
 * beside the second one. */
static struct arena_plan claim_with_a_move(void) {
    struct arena_plan plan;
    uint32_t moves;
    struct piece *low = take_new(1), *middle = take_new(1), *high = take_new(1);

    (void)middle;
    stream_heap_give(low);
    stream_heap_give(high);
    assert_int_equal(arena_plan_claim_locked(&plan, arena, 2 * SLOT_BYTES, ANY_MOVES, false, &moves), 0);
    assert_int_equal(moves, 1);
    return plan;
}

static void an_idle_segment_moves_behind_a_fence(void **state) {
    struct arena_plan plan = claim_with_a_move();

    (void)state;
    arena_plan_fenced_locked(&plan, (struct fence){WORD, 1});
    assert_false(arena_plan_next(&plan));
    assert_int_equal(map_all(&plan, 0), 1);
    struct piece *piece = settle(&plan);
    assert_int_equal(piece->capacity_bytes, 2 * SLOT_BYTES);
    assert_ptr_equal(piece->memory, arena->extent.memory + 2 * SLOT_BYTES);
    assert_true(arena_maps_locked(arena, 3, 1));
    assert_true(arena_maps_locked(arena, 0, 1)); /* until its fence is ready */
}

static void an_idle_segment_stays_where_no_fence_can_be_left(void **state) {
    struct arena_plan plan = claim_with_a_move();

    (void)state;
    arena_plan_not_fenced_locked(&plan);
    grant(&plan, 1, 1);
    assert_int_equal(map_all(&plan, 0), 1);
    (void)settle(&plan);
    assert_int_equal(stream_heap_free_bytes_locked(arena->extent.stream_heap), SLOT_BYTES);
    assert_true(arena_maps_locked(arena, 3, 4));
}

/* The daemon refuses a new segment: what was moved stays the arena's. */
static void a_request_that_fails_keeps_what_was_moved(void **state) {
    struct arena_plan plan;
    uint32_t moves;
    struct piece *low = take_new(1), *middle = take_new(1), *high = take_new(1);

    (void)state;
    (void)middle;
    stream_heap_give(low);
    stream_heap_give(high);
    assert_int_equal(arena_plan_claim_locked(&plan, arena, 3 * SLOT_BYTES, ANY_MOVES, false, &moves), 0);
    assert_int_equal(moves, 1);
    arena_plan_fenced_locked(&plan, FENCE_NONE);
    assert_true(arena_plan_next(&plan));
    assert_false(arena_plan_refused(&plan)); /* they were of one slot */
    arena_plan_drop_new(&plan);
    assert_int_equal(plan.n_fillings, 1);
    (void)map_all(&plan, 0);
    assert_int_equal(arena_plan_settle_locked(&plan, false, NULL), 0);
    arena_plan_free(&plan);
    assert_int_equal(stream_heap_free_bytes_locked(arena->extent.stream_heap), 2 * SLOT_BYTES);
}

/* A segment that was moved comes back to where it is still mapped. */
static void a_mapping_that_is_there_is_used_again(void **state) {
    struct arena_plan plan = claim_with_a_move();

    (void)state;
    arena_plan_fenced_locked(&plan, FENCE_NONE);
    (void)map_all(&plan, 0);
    (void)settle(&plan); /* slot 0 is vacant */
    assert_int_equal(arena_plan_wait(&plan, arena, SLOT_BYTES), 0);
    assert_true(arena_plan_next(&plan));
    /* the daemon lends the same segment again, under a new lease */
    arena_plan_add_granted(&plan, &(struct lending){.lease = 40, .generation = 1}, SEGMENT(1));
    assert_int_equal(arena_plan_place_locked(&plan), 0);
    assert_int_equal(plan.place.first, 0);
    assert_int_equal(map_all(&plan, 0), 0); /* none was mapped anew */
    assert_int_equal(settle(&plan)->lease, 40);
}

static void another_segment_comes_after_the_old_mapping_went(void **state) {
    struct arena_plan plan = claim_with_a_move();

    (void)state;
    arena_plan_fenced_locked(&plan, FENCE_NONE);
    (void)map_all(&plan, 0);
    (void)settle(&plan);
    assert_int_equal(arena_plan_wait(&plan, arena, SLOT_BYTES), 0);
    grant(&plan, 1, 1);
    assert_int_equal(arena_plan_place_locked(&plan), 0);
    assert_int_equal(plan.place.first, 0);
    assert_int_equal(map_all(&plan, 1), 1);
    (void)settle(&plan);
    assert_true(arena_maps_locked(arena, 0, last_lease));
}

static void a_request_that_waits_holds_nothing_meanwhile(void **state) {
    struct arena_plan plan;

    (void)state;
    assert_int_equal(arena_plan_wait(&plan, arena, 2 * SLOT_BYTES + HEAP_GRANULE), 0);
    for (uint32_t i = 0; i < arena->n_slots; i++)
        assert_int_equal(arena->slots[i].state, ARENA_SLOT_VACANT);
    grant(&plan, 3, 1);
    assert_int_equal(arena_plan_place_locked(&plan), 0);
    assert_int_equal(map_all(&plan, 0), 1);
    struct piece *piece = settle(&plan);
    assert_int_equal(piece->capacity_bytes, 2 * SLOT_BYTES + HEAP_GRANULE);
    assert_int_equal(stream_heap_free_bytes_locked(arena->extent.stream_heap), SLOT_BYTES - HEAP_GRANULE);
}

#define LARGE_SLOT_BYTES (64 * MIB)

/* An arena with slots of a large pool: large segments fill four of them. */
static struct arena *large_arena(void) {
    struct stream_heap *stream_heap = stream_heap_new(
        NULL, &(struct pool_facts){.id = POOL, .kind = GPUPOOL_POOL_DEVICE, .fences = &fences}, NULL);

    assert_non_null(stream_heap);
    assert_int_equal(arena_add_locked(stream_heap, STREAM_HEAP_LARGE, address_in(1, 0),
                                      CAPACITY * LARGE_SLOT_BYTES, LARGE_SLOT_BYTES, 4 * LARGE_SLOT_BYTES),
                     0);
    return stream_heap->arena;
}

static void large_segments_are_asked_for_first(void **state) {
    struct arena *large = large_arena();
    struct arena_plan plan;
    uint32_t moves;

    (void)state;
    assert_int_equal(arena_plan_claim_locked(&plan, large, 7 * LARGE_SLOT_BYTES, ANY_MOVES, false, &moves),
                     0);
    grant(&plan, 1, 4);
    grant(&plan, 1, 2);
    grant(&plan, 1, 1);
    assert_int_equal(map_all(&plan, 0), 1);
    struct piece *piece = settle(&plan);
    assert_int_equal(piece->capacity_bytes, 7 * LARGE_SLOT_BYTES);
    for (uint32_t i = 0; i < 4; i++) /* all slots of one that are joined map the same */
        assert_int_equal(large->slots[i].maps, 1);
    assert_int_equal(arena_slot_after(large, 0), 4);
    assert_true(all_is_valid(large));
    arena_end(large);
}

static void small_segments_fill_the_place_of_large_ones(void **state) {
    struct arena *large = large_arena();
    struct arena_plan plan;
    uint32_t moves;

    (void)state;
    assert_int_equal(arena_plan_claim_locked(&plan, large, 7 * LARGE_SLOT_BYTES, ANY_MOVES, false, &moves),
                     0);
    assert_true(arena_plan_next(&plan));
    assert_int_equal(plan.asked_slots, 4);
    assert_true(arena_plan_refused(&plan));
    grant(&plan, 7, 1);
    assert_int_equal(map_all(&plan, 0), 1);
    assert_int_equal(settle(&plan)->capacity_bytes, 7 * LARGE_SLOT_BYTES);
    assert_true(all_is_valid(large));
    arena_end(large);
}

static void prepared_pools_are_asked_for_small_segments(void **state) {
    struct arena *large = large_arena();
    struct arena_plan plan;
    uint32_t moves;

    (void)state;
    assert_int_equal(arena_plan_claim_locked(&plan, large, 7 * LARGE_SLOT_BYTES, ANY_MOVES, true, &moves), 0);
    grant(&plan, 7, 1);
    (void)map_all(&plan, 0);
    (void)settle(&plan);
    arena_end(large);
}

static void without_memory_nothing_is_claimed(void **state) {
    struct arena_plan plan;
    uint32_t moves;
    bool failed;
    unsigned n = 0;

    (void)state;
    do {
        memory_fail_nth(++n);
        int r = arena_plan_claim_locked(&plan, arena, 2 * SLOT_BYTES, ANY_MOVES, false, &moves);
        failed = memory_failed();
        memory_fail_nth(0);
        assert_int_equal(r, failed ? -ENOMEM : 0);
        assert_true(all_is_valid(arena));
        for (uint32_t i = 0; failed && i < arena->n_slots; i++)
            assert_int_equal(arena->slots[i].state, ARENA_SLOT_VACANT);
    } while (failed);
    assert_in_range(n, 5, 20);
    assert_int_equal(arena_plan_settle_locked(&plan, false, NULL), 0);
    arena_plan_free(&plan);
}

#define PLAN_TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        PLAN_TEST(new_segments_are_mapped_in_one_run),
        PLAN_TEST(an_idle_segment_moves_behind_a_fence),
        PLAN_TEST(an_idle_segment_stays_where_no_fence_can_be_left),
        PLAN_TEST(a_request_that_fails_keeps_what_was_moved),
        PLAN_TEST(a_mapping_that_is_there_is_used_again),
        PLAN_TEST(another_segment_comes_after_the_old_mapping_went),
        PLAN_TEST(a_request_that_waits_holds_nothing_meanwhile),
        PLAN_TEST(large_segments_are_asked_for_first),
        PLAN_TEST(small_segments_fill_the_place_of_large_ones),
        PLAN_TEST(prepared_pools_are_asked_for_small_segments),
        PLAN_TEST(without_memory_nothing_is_claimed),
    };
    return cmocka_run_group_tests_name("plans for arenas", tests, NULL, NULL);
}
