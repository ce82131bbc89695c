/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of segments that sessions are told to close (daemon/core/closing.h): sessions close when nothing else
 * serves a request and not before, and no more than it lacks. Nothing is lent in these segments meanwhile.
 */
#include "closing_fixture.h"

/* --- when nothing else serves --- */

static void nothing_is_named_while_the_pool_can_grow(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 24 * MIB, 2 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);

    uint64_t segment = keep(holder, pool, 8 * MIB);
    assert_int_equal(idle(holder, pool, 16 * MIB).count, 0); /* for its own request */
    ask(other, pool, 1, 16 * MIB, NS_FOREVER, 0);
    assert_int_equal(idle(holder, pool, 0).count, 0); /* nor for others' */
    grow(pool, 16 * MIB, 0);
    expect_granted(core, other, 1);
    ask(other, pool, 2, 2 * MIB, NS_FOREVER, 0);
    expect_no_growth(core);
    struct proto_segments segments = idle(holder, pool, 0);
    expect_one(&segments, segment);
}

static void nothing_is_named_while_segments_that_nobody_has_mapped_are_enough(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 2 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *gone = open_session(core, 2, UID_B);
    struct session *other = open_session(core, 3, UID_C);

    keep(holder, pool, 8 * MIB);
    map(gone, pool, 8 * MIB);
    close_session(gone, 0);
    assert_int_equal(idle(holder, pool, 8 * MIB).count, 0);
    ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
    assert_int_equal(idle(holder, pool, 0).count, 0); /* on its way back to the driver */
    assert_int_equal(retire_all(core, 0), 8 * MIB);
    assert_int_equal(idle(holder, pool, 0).count, 0);
    grow(pool, 8 * MIB, 0);
    expect_granted(core, other, 1);
}

/* A client that does not wait gives back what it has, and asks for segments to close before it asks again. */
static void nothing_is_named_while_a_free_range_serves(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 2 * MIB, 0);
    struct session *session = open_wanting(core, 1, UID_A);

    uint64_t segment = map(session, pool, 8 * MIB);
    ask(session, pool, 1, 4 * MIB, 0, 0);
    expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    let_go(session);
    assert_int_equal(idle(session, pool, 4 * MIB).count, 0);
    assert_int_equal(take(session, pool, 4 * MIB, 0)->block->segment->id, segment);
}

static void nothing_is_named_when_no_request_waits(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 2 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);

    uint64_t segment = keep(holder, pool, 8 * MIB);
    map(other, pool, 8 * MIB);
    assert_int_equal(idle(holder, pool, 0).count, 0);
    ask(other, pool, 1, 8 * MIB, NS_PER_MS, 0);
    tick(core, NS_PER_MS);
    expect_refused(core, other, 1, PROTO_E_EXHAUSTED); /* its time is over */
    assert_int_equal(idle(holder, pool, 0).count, 0);
    ask(other, pool, 2, 8 * MIB, NS_FOREVER, 0);
    struct proto_segments segments = idle(holder, pool, 0);
    expect_one(&segments, segment);
}

static void a_segment_is_named_when_the_driver_refuses(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 2 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);

    uint64_t segment = keep(holder, pool, 8 * MIB);
    map(open_session(core, 3, UID_C), pool, 2 * MIB); /* in use */
    ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
    expect_growth(core, pool);
    assert_int_equal(idle(holder, pool, 0).count, 0);
    growth_failed(pool, "out of memory", 0);
    expect_reclaim(core, holder);
    struct proto_segments segments = idle(holder, pool, 0);
    expect_one(&segments, segment);
    close_all(holder, &segments);
    assert_int_equal(retire_all(core, 0), 8 * MIB);
    grow(pool, 8 * MIB, 0); /* the driver has something to give again */
    expect_granted(core, other, 1);
}

static void a_request_is_not_given_up_while_a_session_can_close_segments(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 2 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);

    uint64_t segment = map(holder, pool, 8 * MIB);
    ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
    expect_growth(core, pool);
    growth_failed(pool, "out of memory", 0);
    expect_reclaim(core, holder);
    let_go(holder); /* the memory that came back is its user's, and nothing is leased any more */
    expect_no_answer(core);
    struct proto_segments segments = idle(holder, pool, 0);
    expect_one(&segments, segment);
    close_all(holder, &segments);
    assert_int_equal(retire_all(core, 0), 8 * MIB);
    grow(pool, 8 * MIB, 0);
    expect_granted(core, other, 1);
}

static void a_pool_that_is_lost_or_does_not_exist_has_nothing_to_close(void **state) {
    struct full full;
    const struct proto_idle message = {.pool = 9, .size_bytes = MIB};
    struct proto_segments segments;

    make_full(&full, *state);
    assert_int_equal(core_idle(full.one, &message, 0, &segments), PROTO_E_NO_POOL);
    core_pool_lost(full.pool, "the device is lost", 0);
    expect_refused(full.core, full.other, 1, PROTO_E_DRIVER);
    assert_int_equal(idle(full.one, full.pool, 0).count, 0);
    assert_int_equal(idle(full.one, full.pool, 16 * MIB).count, 0);
}

/* --- what is named --- */

static void no_more_is_named_than_the_request_lacks(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 42 * MIB, 2 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);

    uint64_t small = map(holder, pool, 4 * MIB);
    uint64_t large = map(holder, pool, 16 * MIB);
    uint64_t largest = map(holder, pool, 20 * MIB);
    let_go(holder);
    ask(other, pool, 1, 24 * MIB, NS_FOREVER, 0); /* 2 MiB are left to the limit */
    struct proto_segments segments = idle(holder, pool, 0);
    assert_int_equal(segments.count, 2);
    assert_int_equal(segments.ids[0], largest);
    assert_int_equal(segments.ids[1], small); /* the smallest that is enough for the rest */
    assert_int_equal(idle(holder, pool, 0).count, 0);
    close_all(holder, &segments);
    assert_int_equal(retire_all(core, 0), 24 * MIB);
    grow(pool, 24 * MIB, 0);
    expect_granted(core, other, 1);
    assert_int_equal(idle(holder, pool, 0).count, 0);
    ask(other, pool, 2, 4 * MIB, NS_FOREVER, 0);
    segments = idle(holder, pool, 0);
    expect_one(&segments, large); /* more than that, where nothing smaller is enough */
}

static void a_request_that_a_smaller_size_serves_lacks_no_more_than_that(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 24 * MIB, 2 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);

    for (unsigned i = 0; i < 3; i++)
        map(holder, pool, 8 * MIB);
    let_go(holder);
    ask_least(other, pool, 1, 24 * MIB, 8 * MIB, 0, NS_FOREVER, 0);
    assert_int_equal(idle(holder, pool, 0).count, 1);
}

static void a_segment_in_use_is_not_named(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);

    struct lease *lease = take_growing(holder, pool, 512, 0);
    assert_true(describe(lease, NULL));
    ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
    assert_int_equal(idle(holder, pool, 0).count, 0);
    assert_int_equal(release(holder, name_of(lease), 0), 0);
    assert_int_equal(idle(holder, pool, 0).count, 1);
}

/* Takes the pool's only segment, and releases it behind the first fence of the page. */
static void release_all_behind(struct session *holder, struct pool *pool) {
    core_session_set_page(holder, &page);
    struct lease *lease = take_growing(holder, pool, 8 * MIB, 0);
    assert_true(describe(lease, NULL));
    assert_int_equal(release_behind(holder, name_of(lease), 0, 1), 0);
}

static void a_segment_is_not_named_before_the_fences_in_it_are_ready(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 2 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);

    release_all_behind(holder, pool);
    ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
    assert_int_equal(idle(holder, pool, 0).count, 0);
    arrive(0, 1);
    assert_int_equal(idle(holder, pool, 0).count, 1);
}

static void what_came_back_behind_a_fence_serves_before_it_is_closed(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 2 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_A);

    release_all_behind(holder, pool);
    ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
    expect_no_answer(core);
    arrive(0, 1);
    assert_int_equal(idle(holder, pool, 0).count, 0);
    expect_granted(core, other, 1); /* of the same user: it needs no new segment */
}

static void what_one_message_does_not_hold_the_next_does(void **state) {
    enum {
        COUNT = PROTO_CLOSE_MAX + 30
    };
    struct core *core = *state;
    struct pool *pool = add_pool(core, COUNT * 4 * MIB, 2 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);

    for (unsigned i = 0; i < COUNT; i++)
        map(holder, pool, 4 * MIB);
    let_go(holder);
    ask(other, pool, 1, (COUNT - 10) * 4 * MIB, NS_FOREVER, 0);
    struct proto_segments first = idle(holder, pool, 0);
    assert_int_equal(first.count, PROTO_CLOSE_MAX);
    struct proto_segments second = idle(holder, pool, 0);
    assert_int_equal(second.count, COUNT - 10 - PROTO_CLOSE_MAX);
    assert_int_equal(idle(holder, pool, 0).count, 0);
    close_all(holder, &first);
    expect_no_growth(core);
    close_all(holder, &second);
    assert_int_equal(retire_all(core, 0), (COUNT - 10) * 4 * MIB);
    grow(pool, (COUNT - 10) * 4 * MIB, 0);
    expect_granted(core, other, 1);
}

static void a_message_that_is_just_full_is_followed_by_none(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, (PROTO_CLOSE_MAX + 1) * 2 * MIB, 2 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);

    for (unsigned i = 0; i <= PROTO_CLOSE_MAX; i++)
        map(holder, pool, 2 * MIB);
    let_go(holder);
    ask(other, pool, 1, PROTO_CLOSE_MAX * 2 * MIB, NS_FOREVER, 0);
    assert_int_equal(idle(holder, pool, 0).count, PROTO_CLOSE_MAX);
    assert_int_equal(idle(holder, pool, 0).count, 0);
}

/* --- while it is CLOSING --- */

static void nothing_is_lent_in_a_segment_that_is_being_closed(void **state) {
    struct full full;

    make_full(&full, *state);
    assert_int_equal(idle(full.one, full.pool, 0).count, 1);
    assert_int_equal(full.pool->closing_bytes, 8 * MIB);
    assert_int_equal(pool_free_bytes(full.pool), 8 * MIB); /* the second's */
    ask(full.one, full.pool, 2, 512, 0, 0);
    expect_refused(full.core, full.one, 2, PROTO_E_EXHAUSTED);
    expect_no_retirement(full.core); /* the session has it mapped */
}

static void growth_does_not_wait_for_a_segment_that_is_being_closed(void **state) {
    struct full full;

    make_full(&full, *state);
    assert_int_equal(idle(full.one, full.pool, 0).count, 1);
    configure(full.pool, 24 * MIB, 2 * MIB, 0, 0, 0);
    grow(full.pool, 8 * MIB, 0);
    expect_granted(full.core, full.other, 1);
}

static void a_segment_is_charged_to_its_user_until_it_is_closed(void **state) {
    (void)state;
    for (unsigned way = 0; way < 3; way++) {
        struct full full;
        make_full(&full, core_make());
        assert_int_equal(used(full.one, QUOTA_POOLS), 0);
        assert_int_equal(idle(full.one, full.pool, 0).count, 1);
        struct session *witness = open_session(full.core, 9, UID_A);
        assert_int_equal(used(witness, QUOTA_POOLS), 8 * MIB);
        if (way == 0) {
            assert_int_equal(closed(full.one, full.segment_one), 0);
        } else if (way == 1) {
            close_session(full.one, 0);
        } else {
            lose_session(full.one, 0);
            assert_int_equal(used(witness, QUOTA_POOLS), 8 * MIB);
            expect_no_retirement(full.core);
            session_gone(full.one, 0);
        }
        assert_int_equal(used(witness, QUOTA_POOLS), 0);
        assert_int_equal(retire_all(full.core, 0), 8 * MIB);
        grow(full.pool, 8 * MIB, 0);
        expect_granted(full.core, full.other, 1);
        core_destroy(full.core);
    }
}

static void only_what_was_named_can_be_closed_and_only_once_and_by_its_session(void **state) {
    struct full full;

    make_full(&full, *state);
    assert_int_equal(closed(full.one, full.segment_one), PROTO_E_INVALID);
    assert_int_equal(closed(full.one, full.segment_one + 100), PROTO_E_INVALID);
    assert_int_equal(idle(full.one, full.pool, 0).count, 1);
    assert_int_equal(closed(full.two, full.segment_one), PROTO_E_INVALID);
    assert_int_equal(closed(full.one, full.segment_two), PROTO_E_INVALID);
    assert_int_equal(closed(full.one, full.segment_one), 0);
    assert_int_equal(closed(full.one, full.segment_one), PROTO_E_INVALID);
    assert_int_equal(retire_all(full.core, 0), 8 * MIB);
    assert_int_equal(closed(full.one, full.segment_one), PROTO_E_INVALID);
    assert_int_equal(full.pool->stats.n_closes, 1);
}

static void closings_and_their_time_are_counted(void **state) {
    static const uint64_t times[] = {1000, 0, CLOSE_NS_MAX + 1, UINT64_MAX};
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 2 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);

    for (unsigned i = 0; i < 4; i++)
        map(holder, pool, 2 * MIB);
    let_go(holder);
    ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
    struct proto_segments segments = idle(holder, pool, 0);
    assert_int_equal(segments.count, 4);
    for (unsigned i = 0; i < 4; i++) {
        const struct proto_closed message = {.segment = segments.ids[i], .time_ns = times[i]};
        assert_int_equal(core_closed(holder, &message, 0), 0);
        assert_int_equal(core_closed(holder, &message, 0), PROTO_E_INVALID); /* which counts nothing */
    }
    assert_int_equal(pool->stats.n_closes, 4);
    assert_int_equal(pool->stats.close_ns, 1000 + 2 * CLOSE_NS_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(nothing_is_named_while_the_pool_can_grow),
        CORE_TEST(nothing_is_named_while_segments_that_nobody_has_mapped_are_enough),
        CORE_TEST(nothing_is_named_while_a_free_range_serves),
        CORE_TEST(nothing_is_named_when_no_request_waits),
        CORE_TEST(a_segment_is_named_when_the_driver_refuses),
        CORE_TEST(a_request_is_not_given_up_while_a_session_can_close_segments),
        CORE_TEST(a_pool_that_is_lost_or_does_not_exist_has_nothing_to_close),
        CORE_TEST(no_more_is_named_than_the_request_lacks),
        CORE_TEST(a_request_that_a_smaller_size_serves_lacks_no_more_than_that),
        CORE_TEST(a_segment_in_use_is_not_named),
        CORE_TEST(a_segment_is_not_named_before_the_fences_in_it_are_ready),
        CORE_TEST(what_came_back_behind_a_fence_serves_before_it_is_closed),
        CORE_TEST(what_one_message_does_not_hold_the_next_does),
        CORE_TEST(a_message_that_is_just_full_is_followed_by_none),
        CORE_TEST(nothing_is_lent_in_a_segment_that_is_being_closed),
        CORE_TEST(growth_does_not_wait_for_a_segment_that_is_being_closed),
        cmocka_unit_test(a_segment_is_charged_to_its_user_until_it_is_closed),
        CORE_TEST(only_what_was_named_can_be_closed_and_only_once_and_by_its_session),
        CORE_TEST(closings_and_their_time_are_counted),
    };
    return cmocka_run_group_tests_name("segments that sessions close", tests, NULL, NULL);
}
