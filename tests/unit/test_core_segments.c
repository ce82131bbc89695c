/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of segments: their tenants, their way back to the driver, and the record of the sessions that have
 * seen them. */
#include "core_fixture.h"

static void a_segment_belongs_to_one_tenant(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_B);
    struct session *three = open_session(core, 3, UID_A);

    struct lease *lease = take_growing(one, pool, MIB, 0);
    describe(lease, NULL);
    struct segment *segment = lease->block->segment;
    ask(two, pool, 1, MIB, 0, 0); /* 7 MiB are free, and none of it is theirs */
    expect_refused(core, two, 1, PROTO_E_EXHAUSTED);
    assert_ptr_equal(take(three, pool, MIB, 0)->block->segment, segment);
    assert_int_equal(release(one, name_of(lease), 0), 0);
    ask(two, pool, 2, MIB, 0, 0); /* also not when nothing of it is taken, as long as somebody maps it */
    expect_refused(core, two, 2, PROTO_E_EXHAUSTED);
    expect_no_retirement(core);
}

static void at_the_limit_idle_segments_of_others_go_back_to_the_driver(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_B);
    struct segment *segment = NULL;

    describe(take_growing(one, pool, MIB, 0), NULL);
    ask(two, pool, 1, 8 * MIB, NS_FOREVER, 0);
    expect_no_retirement(core);
    close_session(one, 1);
    assert_true(core_next_retirement(core, &segment));
    expect_no_retirement(core);
    uint64_t old = segment->id;
    expect_no_answer(core); /* nothing of it is lent before the driver had it */
    expect_no_growth(core);
    assert_int_equal(pool->retiring_bytes, 8 * MIB);
    core_segment_retired(segment, 2);
    grow(pool, 8 * MIB, 3);
    assert_int_not_equal(expect_granted(core, two, 1)->block->segment->id, old);
    assert_int_equal(pool->stats.n_retires, 1);
}

static void a_mapped_segment_is_never_retired(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_B);

    struct lease *lease = take_growing(one, pool, 8 * MIB, 0);
    describe(lease, NULL);
    assert_int_equal(release(one, name_of(lease), 0), 0);
    ask(two, pool, 1, 8 * MIB, NS_FOREVER, 0);
    assert_int_equal(core_trim(pool), 0);
    lose_session(one, 1); /* nor while a lost process may map it */
    assert_int_equal(core_trim(pool), 0);
    expect_no_retirement(core);
    session_gone(one, 2);
    assert_int_equal(retire_all(core, 3), 8 * MIB);
    grow(pool, 8 * MIB, 4);
    expect_granted(core, two, 1);
}

static void nothing_is_retired_when_it_would_not_be_enough(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 4 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_B);

    describe(take_growing(two, pool, 12 * MIB, 0), NULL);
    take_growing(one, pool, 4 * MIB, 0);
    close_session(one, 0);
    ask(two, pool, 1, 8 * MIB, NS_FOREVER, 0);
    expect_no_retirement(core);
    ask(two, pool, 2, 4 * MIB, 0, 0);
    expect_refused(core, two, 2, PROTO_E_EXHAUSTED);
}

static void who_stands_behind_one_that_leaves_is_looked_at(void **state) {
    /* The first in the queue needs more than retirement can give; when it leaves, in whatever way, the
     * second's turn has to come without any further event. */
    for (unsigned way = 0; way < 3; way++) {
        struct core *core = core_make();
        struct pool *pool = add_pool(core, 16 * MIB, 4 * MIB, 0);
        struct session *holder = open_session(core, 1, UID_B + 1), *idle = open_session(core, 2, UID_B);
        struct session *first = open_session(core, 3, UID_A), *second = open_session(core, 4, UID_A);

        core_session_want_reclaim(holder);
        struct lease *lease = take_growing(holder, pool, 12 * MIB, 0);
        describe(lease, NULL);
        assert_int_equal(release(holder, name_of(lease), 0), 0); /* it can be asked to close the segment */
        assert_int_equal(release(idle, name_of(take_growing(idle, pool, 4 * MIB, 0)), 0), 0);
        ask(first, pool, 1, 16 * MIB, 1000, 0);
        for (unsigned i = 0; i < PASSES_MAX; i++) /* until no request may overtake it any more */
            assert_int_equal(release(idle, name_of(take(idle, pool, 4096, 0)), 0), 0);
        close_session(idle, 0);
        ask(second, pool, 2, 4 * MIB, NS_FOREVER, 0);
        expect_no_retirement(core);
        if (way == 0) {
            lose_session(first, 1);
        } else if (way == 1) {
            close_session(first, 1);
        } else {
            tick(core, 1000);
            expect_refused(core, first, 1, PROTO_E_EXHAUSTED);
        }
        assert_int_equal(retire_all(core, 2000), 4 * MIB);
        grow(pool, 4 * MIB, 2000);
        expect_granted(core, second, 2);
        core_destroy(core);
    }
    (void)state;
}

static void trim_keeps_the_reserve(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 4 * MIB, 8 * MIB);
    struct session *session = open_session(core, 1, UID_A);

    grow(pool, 4 * MIB, 0);
    grow(pool, 4 * MIB, 0);
    assert_int_equal(core_trim(pool), 0);
    for (unsigned i = 0; i < 4; i++)
        take_growing(session, pool, 4 * MIB, 0);
    assert_int_equal(core_trim(pool), 0);
    close_session(session, 0);
    assert_int_equal(pool->reserved_bytes, 16 * MIB);
    assert_int_equal(core_trim(pool), 8 * MIB);
    assert_int_equal(core_trim(pool), 0); /* what is on its way counts */
    assert_int_equal(retire_all(core, 0), 8 * MIB);
    assert_int_equal(pool->reserved_bytes, 8 * MIB);
    expect_no_growth(core);
}

static void a_segments_number_of_old_is_not_mistaken_for_seen(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_B);

    describe(take_growing(one, pool, MIB, 0), NULL);
    close_session(one, 0);
    assert_int_equal(core_trim(pool), 8 * MIB);
    retire_all(core, 0);
    struct lease *lease = take_growing(two, pool, MIB, 0); /* in the old segment's slot */
    assert_int_equal(lease->block->segment->slot, 0);
    assert_true(describe(lease, NULL));
}

static void more_segments_than_a_word_has_bits_are_told_apart(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 400 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    for (unsigned i = 0; i < 150; i++) {
        struct lease *lease = take_growing(session, pool, 2 * MIB, 0);
        assert_true(describe(lease, NULL));
        assert_false(describe(lease, NULL));
    }
    assert_int_equal(session->n_segments, 150);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(a_segment_belongs_to_one_tenant),
        CORE_TEST(at_the_limit_idle_segments_of_others_go_back_to_the_driver),
        CORE_TEST(a_mapped_segment_is_never_retired),
        CORE_TEST(nothing_is_retired_when_it_would_not_be_enough),
        cmocka_unit_test(who_stands_behind_one_that_leaves_is_looked_at),
        CORE_TEST(trim_keeps_the_reserve),
        CORE_TEST(a_segments_number_of_old_is_not_mistaken_for_seen),
        CORE_TEST(more_segments_than_a_word_has_bits_are_told_apart),
    };
    return cmocka_run_group_tests_name("whose segments are, and when they go back", tests, NULL, NULL);
}
