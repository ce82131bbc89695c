/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools that grow by their size: small requests share segments, large ones have segments of their own, which
 * are kept whole when they are idle.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core_fixture.h"
#include "daemon/pool/limits.h"
#include "daemon/pool/pool.h"
#include "daemon/pool/segment.h"
#include "daemon/pool/session.h"

static void close_all(struct session *session, const struct proto_segments *segments) {
    for (uint32_t i = 0; i < segments->count; i++)
        assert_int_equal(closed(session, segments->ids[i]), 0);
}

/* A session, and a pool of this limit that grows by the size of what is asked for. */
static struct session *open_beside(struct pool **ret_pool, uint64_t limit_bytes) {
    struct core *core = core_make();
    *ret_pool = add_pool(core, limit_bytes, POOL_STEP_BY_SIZE, 0);
    return open_session(core, 1, UID_A);
}

/* A lease that a segment is made for, which the session maps. */
static struct lease *take_new(struct session *session, struct pool *pool, uint64_t size,
                              uint64_t segment_bytes) {
    ask(session, pool, 5, size, NS_FOREVER, 0);
    grow(pool, segment_bytes, 0);
    struct lease *lease = expect_granted(session->core, session, 5);
    assert_true(describe(lease, NULL));
    assert_int_equal(lease->block->segment->size_bytes, segment_bytes);
    return lease;
}

static void expect_nothing_within(struct session *session, const struct pool *pool, uint64_t size) {
    ask_within(session, pool, 6, size);
    expect_refused(session->core, session, 6, PROTO_E_EXHAUSTED);
    expect_no_growth(session->core);
}

static void a_small_request_grows_the_pool_by_a_step_and_a_large_one_by_itself(void **state) {
    struct pool *pool;
    struct session *session = open_beside(&pool, 4 * GIB);
    (void)state;

    take_new(session, pool, MIB, 8 * MIB);
    take(session, pool, 2 * MIB, 0); /* beside it */
    take_new(session, pool, 5 * MIB + 512, 6 * MIB);
    take_new(session, pool, 2 * GIB, 2 * GIB);
    assert_int_equal(pool_step_bytes(pool), 16 * MIB); /* a 128th */
    take(session, pool, 4 * MIB, 0);                   /* which is small now: in the first segment */
    take_new(session, pool, 4 * MIB, 16 * MIB);
    core_destroy(pool->core);
}

static void what_is_large_does_not_lie_among_what_is_small(void **state) {
    struct pool *pool;
    struct session *session = open_beside(&pool, GIB);
    (void)state;

    struct lease *small = take_new(session, pool, MIB, 8 * MIB);
    expect_nothing_within(session, pool, 6 * MIB);
    struct lease *large = take_new(session, pool, 6 * MIB, 6 * MIB);
    assert_ptr_not_equal(large->block->segment, small->block->segment);
    /* nor the other way round: the large one's segment goes back when it is idle */
    assert_int_equal(release(session, name_of(large), 0), 0);
    for (unsigned i = 0; i < 7; i++)
        assert_ptr_equal(take(session, pool, MIB, 0)->block->segment, small->block->segment);
    expect_nothing_within(session, pool, MIB);
    core_destroy(pool->core);
}

static void an_idle_segment_serves_what_nearly_fills_it(void **state) {
    struct pool *pool;
    struct session *session = open_beside(&pool, GIB);
    (void)state;

    struct lease *lease = take_new(session, pool, 64 * MIB, 64 * MIB);
    struct segment *segment = lease->block->segment;
    assert_int_equal(release(session, name_of(lease), 0), 0);
    expect_nothing_within(session, pool, 59 * MIB);
    ask_within(session, pool, 7, 60 * MIB);
    lease = expect_granted(pool->core, session, 7);
    assert_ptr_equal(lease->block->segment, segment);
    expect_nothing_within(session, pool, 4 * MIB); /* what is left of it serves nobody */
    assert_int_equal(release(session, name_of(lease), 0), 0);
    ask_within(session, pool, 7, 64 * MIB);
    expect_granted(pool->core, session, 7);
    core_destroy(pool->core);
}

/* Without a client that closes what it has idle, the pool does not grow beside idle memory. */
static void what_is_idle_is_cut_before_the_pool_grows(void **state) {
    struct pool *pool;
    struct session *session = open_beside(&pool, GIB);
    (void)state;

    struct lease *lease = take_new(session, pool, 64 * MIB, 64 * MIB);
    struct segment *segment = lease->block->segment;
    assert_int_equal(release(session, name_of(lease), 0), 0);
    lease = take(session, pool, 6 * MIB, 0);
    assert_ptr_equal(lease->block->segment, segment);
    expect_no_growth(pool->core);
    /* it is one among others now */
    assert_ptr_equal(take(session, pool, MIB, 0)->block->segment, segment);
    core_destroy(pool->core);
}

static void what_was_closed_is_made_anew_although_something_else_could_be_cut(void **state) {
    struct pool *pool;
    struct session *session = open_beside(&pool, GIB);
    (void)state;

    struct lease *first = take_new(session, pool, 32 * MIB, 32 * MIB);
    struct lease *second = take_new(session, pool, 48 * MIB, 48 * MIB);
    struct segment *kept = second->block->segment;
    assert_int_equal(release(session, name_of(first), 0), 0);
    assert_int_equal(release(session, name_of(second), 0), 0);
    expect_nothing_within(session, pool, 24 * MIB);
    struct proto_segments segments = idle(session, pool, 24 * MIB);
    assert_int_equal(segments.count, 1);
    assert_int_equal(segments.may_grow, 1);
    close_all(session, &segments);
    assert_int_equal(retire_all(pool->core, 0), 32 * MIB);
    struct lease *lease = take_new(session, pool, 24 * MIB, 24 * MIB);
    assert_ptr_not_equal(lease->block->segment, kept);
    /* that is used up: the next is cut */
    assert_ptr_equal(take(session, pool, 16 * MIB, 0)->block->segment, kept);
    core_destroy(pool->core);
}

/* What was made for one who did not wait for it. */
static void a_segment_that_nobody_has_mapped_goes_back_without_being_closed(void **state) {
    struct pool *pool;
    struct session *session = open_beside(&pool, GIB);
    (void)state;

    take_new(session, pool, MIB, 8 * MIB);
    ask(session, pool, 9, 32 * MIB, 0, 0);
    expect_refused(pool->core, session, 9, PROTO_E_EXHAUSTED);
    grow(pool, 32 * MIB, 0);
    struct proto_segments segments = idle(session, pool, 24 * MIB);
    assert_int_equal(segments.count, 0);
    assert_int_equal(retire_all(pool->core, 0), 32 * MIB);
    take_new(session, pool, 24 * MIB, 24 * MIB);
    core_destroy(pool->core);
}

static void at_its_limit_the_pool_serves_from_anywhere(void **state) {
    struct pool *pool;
    struct session *session = open_beside(&pool, 72 * MIB);
    (void)state;

    struct lease *small = take_new(session, pool, MIB, 8 * MIB);
    struct lease *large = take_new(session, pool, 64 * MIB, 64 * MIB);
    struct segment *segment = large->block->segment;
    assert_int_equal(release(session, name_of(large), 0), 0);
    ask_within(session, pool, 7, 6 * MIB);
    assert_ptr_equal(expect_granted(pool->core, session, 7)->block->segment, small->block->segment);
    ask_within(session, pool, 8, 6 * MIB);
    assert_ptr_equal(expect_granted(pool->core, session, 8)->block->segment, segment);
    assert_int_equal(idle(session, pool, 64 * MIB).may_grow, 0);
    core_destroy(pool->core);
}

/* Processes without a cache, or that share what lies idle, close nothing. */
static void sizes_that_alternate_do_not_make_a_pool_grow_for_ever(void **state) {
    struct pool *pool;
    struct session *session = open_beside(&pool, 4 * GIB);
    (void)state;

    struct lease *lease = take_new(session, pool, 64 * MIB, 64 * MIB);
    struct segment *segment = lease->block->segment;
    assert_int_equal(release(session, name_of(lease), 0), 0);
    for (unsigned round = 0; round < 8; round++) {
        lease = take(session, pool, (round % 2 == 0 ? 32 : 64) * MIB, 0);
        assert_ptr_equal(lease->block->segment, segment);
        assert_int_equal(release(session, name_of(lease), 0), 0);
    }
    expect_nothing_within(session, pool, 32 * MIB); /* it is whole again */
    core_destroy(pool->core);
}

static void an_idle_step_serves_what_is_large_before_the_pool_grows(void **state) {
    struct pool *pool;
    struct session *session = open_beside(&pool, GIB);
    (void)state;

    struct lease *small = take_new(session, pool, MIB, 8 * MIB);
    struct segment *segment = small->block->segment;
    assert_int_equal(release(session, name_of(small), 0), 0);
    expect_nothing_within(session, pool, 6 * MIB); /* who can close it does */
    assert_ptr_equal(take(session, pool, 6 * MIB, 0)->block->segment, segment);
    take_new(session, pool, 6 * MIB, 6 * MIB);
    core_destroy(pool->core);
}

/* What was large while the pool was small. */
static void what_fills_an_idle_segment_is_served_from_it_although_it_is_small_by_now(void **state) {
    struct pool *pool;
    struct session *session = open_beside(&pool, 4 * GIB);
    (void)state;

    struct lease *lease = take_new(session, pool, 4 * MIB, 4 * MIB);
    struct segment *segment = lease->block->segment;
    take_new(session, pool, 2 * GIB, 2 * GIB);
    assert_true(pool_step_bytes(pool) >= 4 * 4 * MIB);
    assert_int_equal(release(session, name_of(lease), 0), 0);
    expect_nothing_within(session, pool, 4 * MIB); /* who can close it does */
    assert_ptr_equal(take(session, pool, 4 * MIB, 0)->block->segment, segment);
    core_destroy(pool->core);
}

/* A segment of which the upper 60 MiB are free, among small ones: the pool would rather grow for a large one.
 */
static struct segment *leave_room_beside(struct session *session, struct pool *pool) {
    struct lease *lease = take_new(session, pool, 64 * MIB, 64 * MIB);
    assert_int_equal(release_part(session, name_of(lease), 4 * MIB, 60 * MIB, 0), 0);
    expect_nothing_within(session, pool, 6 * MIB);
    return lease->block->segment;
}

/* Nothing is made for one who came after somebody that is overdue. */
static void who_came_after_one_that_is_overdue_is_served_from_anywhere(void **state) {
    struct pool *pool;
    struct session *session = open_beside(&pool, 96 * MIB);
    struct session *large = open_session(pool->core, 2, UID_B);
    struct session *passing = open_session(pool->core, 3, UID_A);
    (void)state;

    struct segment *segment = leave_room_beside(session, pool);
    ask(large, pool, 1, 80 * MIB, NS_FOREVER, 0);
    for (unsigned i = 0; i < PASSES_MAX; i++) { /* each has a segment mapped anew that the other could use */
        struct lease *lease = take(passing, pool, MIB, 0);
        assert_ptr_equal(lease->block->segment, segment);
        assert_int_equal(release(passing, name_of(lease), 0), 0);
    }
    assert_false(list_is_empty(&pool->overdue));
    assert_ptr_equal(take(session, pool, 6 * MIB, 0)->block->segment, segment);
    ask(session, pool, 3, 6 * MIB, NS_FOREVER, 0);
    assert_ptr_equal(expect_granted(pool->core, session, 3)->block->segment, segment);
    expect_no_growth(pool->core);
    core_destroy(pool->core);
}

/* Growth, too, looks at the first of a line only. */
static void who_is_far_behind_in_a_line_is_served_from_anywhere(void **state) {
    struct pool *pool;
    struct session *session = open_beside(&pool, 96 * MIB);
    (void)state;

    struct segment *segment = leave_room_beside(session, pool);
    for (unsigned i = 0; i < LINE_WINDOW; i++)
        ask(session, pool, 10 + i, 80 * MIB, NS_FOREVER, 0);
    expect_no_growth(pool->core);
    ask(session, pool, 3, 6 * MIB, NS_FOREVER, 0);
    assert_ptr_equal(expect_granted(pool->core, session, 3)->block->segment, segment);
    expect_no_growth(pool->core);
    core_destroy(pool->core);
}

/* Who came after one that is overdue gets nothing that this one could use: also not a part of it. */
static void what_one_looked_at_in_vain_stays_whole(void **state) {
    struct pool *pool;
    struct session *session = open_beside(&pool, 128 * MIB);
    struct session *large = open_session(pool->core, 2, UID_A);
    struct session *passing = open_session(pool->core, 3, UID_A);
    (void)state;

    leave_room_beside(session, pool);
    struct lease *lease = take_new(session, pool, 24 * MIB, 24 * MIB);
    struct heap_span *span = lease->block->segment->span;
    ask(large, pool, 1, 120 * MIB, NS_FOREVER, 0);
    for (unsigned i = 0; i < PASSES_MAX; i++)
        assert_int_equal(release(passing, name_of(take(passing, pool, MIB, 0)), 0), 0);
    assert_false(list_is_empty(&pool->overdue));
    assert_int_equal(release(session, name_of(lease), 0), 0);
    ask(passing, pool, 2, 16 * MIB, 0, 0);
    expect_refused(pool->core, passing, 2, PROTO_E_EXHAUSTED);
    assert_true(span->kept_whole);
    core_destroy(pool->core);
}

static void half_a_step_is_kept_at_hand_whatever_the_step_is(void **state) {
    struct pool *pool;
    struct session *session = open_beside(&pool, 4 * GIB);
    (void)state;

    take_new(session, pool, 2 * GIB, 2 * GIB);
    configure(pool, 4 * GIB, POOL_STEP_BY_SIZE, 0, POOL_LOW_WATER_BY_STEP, 0);
    assert_int_equal(pool_low_water_bytes(pool), 8 * MIB);
    grow(pool, 16 * MIB, 0);
    expect_no_growth(pool->core);
    core_destroy(pool->core);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_request_grows_the_pool_by_a_step_and_a_large_one_by_itself),
        cmocka_unit_test(what_is_large_does_not_lie_among_what_is_small),
        cmocka_unit_test(an_idle_segment_serves_what_nearly_fills_it),
        cmocka_unit_test(what_is_idle_is_cut_before_the_pool_grows),
        cmocka_unit_test(what_was_closed_is_made_anew_although_something_else_could_be_cut),
        cmocka_unit_test(a_segment_that_nobody_has_mapped_goes_back_without_being_closed),
        cmocka_unit_test(at_its_limit_the_pool_serves_from_anywhere),
        cmocka_unit_test(sizes_that_alternate_do_not_make_a_pool_grow_for_ever),
        cmocka_unit_test(an_idle_step_serves_what_is_large_before_the_pool_grows),
        cmocka_unit_test(what_fills_an_idle_segment_is_served_from_it_although_it_is_small_by_now),
        cmocka_unit_test(who_came_after_one_that_is_overdue_is_served_from_anywhere),
        cmocka_unit_test(who_is_far_behind_in_a_line_is_served_from_anywhere),
        cmocka_unit_test(what_one_looked_at_in_vain_stays_whole),
        cmocka_unit_test(half_a_step_is_kept_at_hand_whatever_the_step_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
