/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of targets: segments, and slots of an arena, that are kept for the request which has waited longest.
 * The memory that the stream heaps deal in does not exist.
 */
#include "base/units.h"
#include "client/core/arena.h"
#include "client/core/pool.h"
#include "client/core/target.h"
#include "client/include/gpupool/gpupool.h"
#include "heap/heap.h"
#include "tests/unit/unit.h"

#define POOL          1u
#define SEGMENTS      3u
#define SEGMENT_BYTES (64 * MIB)
#define LARGE_BYTES   (32 * MIB)

static struct core_pool pool;
static struct segment_view segments[SEGMENTS];
static struct stream_heap *stream_heap;
static struct piece *pieces[SEGMENTS]; /* one in each segment */

static void add_segment(unsigned i) {
    segments[i] = (struct segment_view){
        .segment = &segments[i], .memory = (char *)((i + 1) * GIB), .size_bytes = SEGMENT_BYTES};
    assert_int_equal(stream_heap_add_extent_locked(stream_heap, STREAM_HEAP_LARGE, &segments[i], i + 1, 1,
                                                   (char *)segments[i].memory, SEGMENT_BYTES),
                     0);
}

static struct piece *take_piece(uint64_t size_bytes) {
    struct piece *piece;
    return stream_heap_take_locked(stream_heap, size_bytes, true, &piece) == 0 ? piece : NULL;
}

/* Of the three segments, the second has least in use. */
static int set_up(void **state) {
    (void)state;
    core_pool_init(&pool);
    stream_heap = stream_heap_new(
        NULL, &(struct pool_facts){.id = POOL, .kind = GPUPOOL_POOL_HOST, .device = -1}, NULL);
    assert_non_null(stream_heap);
    core_pool_add_locked(&pool, stream_heap);
    for (unsigned i = 0; i < SEGMENTS; i++) {
        add_segment(i);
        pieces[i] = take_piece(i == 1 ? 40 * MIB : 48 * MIB);
        assert_non_null(pieces[i]);
        assert_ptr_equal(pieces[i]->extent->segment.segment, &segments[i]);
    }
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    stream_heap_free(stream_heap);
    core_pool_deinit(&pool);
    return 0;
}

static void pass(unsigned times) {
    for (unsigned i = 0; i < times; i++)
        target_note_pass_locked(&pool);
    target_choose_locked(&pool);
}

static bool is_kept(const struct segment_view *segment) {
    uint64_t bytes;
    return target_find_locked(&pool, segment->memory, &bytes);
}

static void a_segment_is_kept_for_the_request_that_was_passed(void **state) {
    struct acquire first, second;
    uint64_t bytes = 0;

    (void)state;
    core_pool_enter_locked(&pool, &first, NULL, LARGE_BYTES, false);
    core_pool_enter_locked(&pool, &second, NULL, LARGE_BYTES, false);
    pass(TARGET_PASSES - 1);
    assert_false(is_kept(&segments[1]));
    pass(1);
    assert_true(target_find_locked(&pool, segments[1].memory, &bytes));
    assert_int_equal(bytes, LARGE_BYTES);
    assert_false(is_kept(&segments[0]));
    assert_int_equal(second.passes, 0);

    assert_null(take_piece(24 * MIB)); /* which is free in the target alone */
    stream_heap_give_locked(stream_heap, pieces[1]);
    assert_null(take_piece(LARGE_BYTES));
    assert_non_null(take_piece(16 * MIB)); /* others go on */
    assert_non_null(take_piece(16 * MIB));
    assert_null(take_piece(16 * MIB));
    assert_true(core_pool_is_valid(&pool));

    core_pool_leave_locked(&pool, &first);
    assert_false(is_kept(&segments[1]));
    assert_non_null(take_piece(SEGMENT_BYTES));
    pass(TARGET_PASSES); /* the next one is the oldest now */
    assert_int_equal(second.passes, TARGET_PASSES);
    core_pool_leave_locked(&pool, &second);
    assert_true(core_pool_is_valid(&pool));
}

static void never_all_that_the_process_has_is_kept(void **state) {
    struct acquire waiter;

    (void)state;
    for (unsigned i = 0; i < SEGMENTS; i += 2) { /* only the second is left */
        struct stream_heap_part part;
        stream_heap_give_locked(stream_heap, pieces[i]);
        assert_true(stream_heap_reclaim_between_locked(stream_heap, segments[i].memory,
                                                       (char *)segments[i].memory + SEGMENT_BYTES, &part));
        assert_true(part.whole);
        if (!part.has_fence)
            stream_heap_fence_left_locked(&part, FENCE_NONE);
    }
    core_pool_enter_locked(&pool, &waiter, NULL, LARGE_BYTES, false);
    pass(TARGET_PASSES);
    assert_false(is_kept(&segments[1]));
    assert_int_equal(waiter.passes, 0); /* and it is looked for again after as many */
    add_segment(0);
    pass(TARGET_PASSES);
    assert_true(is_kept(&segments[0])); /* where more is free */
    core_pool_leave_locked(&pool, &waiter);
}

static void a_segment_that_is_too_short_is_not_kept(void **state) {
    struct acquire waiter;

    (void)state;
    core_pool_enter_locked(&pool, &waiter, NULL, SEGMENT_BYTES + HEAP_GRANULE, false);
    pass(TARGET_PASSES);
    for (unsigned i = 0; i < SEGMENTS; i++)
        assert_false(is_kept(&segments[i]));
    core_pool_leave_locked(&pool, &waiter);
}

/* The daemon may lend the rest to other requests. */
static void a_segment_that_is_the_daemon_s_in_part_is_not_kept(void **state) {
    struct acquire waiter;
    struct stream_heap_part part;

    (void)state;
    assert_true(stream_heap_reclaim_between_locked(stream_heap, segments[1].memory,
                                                   (char *)segments[1].memory + SEGMENT_BYTES, &part));
    core_pool_enter_locked(&pool, &waiter, NULL, LARGE_BYTES, false);
    pass(TARGET_PASSES);
    assert_false(is_kept(&segments[1]));
    assert_true(is_kept(&segments[0]));
    core_pool_leave_locked(&pool, &waiter);
}

static void a_target_ends_when_its_memory_has_gone_to_the_daemon(void **state) {
    struct acquire waiter;

    (void)state;
    core_pool_enter_locked(&pool, &waiter, NULL, LARGE_BYTES, false);
    pass(TARGET_PASSES);
    assert_null(take_piece(24 * MIB));
    target_end_locked(&pool, (char *)segments[1].memory + MIB);
    assert_false(is_kept(&segments[1]));
    assert_int_equal(waiter.passes, 0);
    assert_non_null(take_piece(24 * MIB));
    target_end_locked(&pool, segments[1].memory); /* there is none */
    core_pool_leave_locked(&pool, &waiter);
}

static void nothing_is_kept_where_no_request_waits(void **state) {
    (void)state;
    pass(2 * TARGET_PASSES);
    for (unsigned i = 0; i < SEGMENTS; i++)
        assert_false(is_kept(&segments[i]));
    assert_non_null(take_piece(24 * MIB));
}

/* An arena begins without slots, and may have given all of them back. */
static void no_slots_are_kept_where_the_arenas_have_none(void **state) {
    struct acquire waiter;

    (void)state;
    assert_int_equal(
        arena_add_locked(stream_heap, STREAM_HEAP_LARGE, (char *)((SEGMENTS + 1) * GIB), GIB, 2 * MIB, 0), 0);
    core_pool_enter_locked(&pool, &waiter, NULL, LARGE_BYTES, true);
    pass(TARGET_PASSES);
    assert_false(target_exists(&waiter.target));
    assert_int_equal(waiter.passes, 0); /* and they are looked for again after as many */
    core_pool_leave_locked(&pool, &waiter);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_segment_is_kept_for_the_request_that_was_passed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(never_all_that_the_process_has_is_kept, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_segment_that_is_too_short_is_not_kept, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_segment_that_is_the_daemon_s_in_part_is_not_kept, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_target_ends_when_its_memory_has_gone_to_the_daemon, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(nothing_is_kept_where_no_request_waits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(no_slots_are_kept_where_the_arenas_have_none, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
