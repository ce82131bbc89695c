/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of requests that a smaller size serves, too (least_bytes), and of requests that wait for growth alone
 * (NO_RECLAIM).
 */
#include <stdatomic.h>

#include "core_fixture.h"

static uint64_t size_of(const struct lease *lease) {
    return lease->block->size_bytes;
}

/* --- a smaller size --- */

static void the_largest_of_the_sizes_that_is_free_is_granted(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, GIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    struct lease *lease = take_growing(session, pool, 16 * MIB, 0);
    assert_int_equal(release_part(session, name_of(lease), 5 * MIB, 11 * MIB, 0), 0);
    ask_least(session, pool, 2, 16 * GIB, 5 * MIB + 512, 0, 0, 0); /* more than the pool may have */
    struct lease *large = expect_granted(core, session, 2);
    assert_int_equal(size_of(large), 11 * MIB);
    assert_int_equal(release(session, name_of(large), 0), 0);
    ask_least(session, pool, 3, 8 * MIB, MIB, 0, 0, 0);
    assert_int_equal(size_of(expect_granted(core, session, 3)), 8 * MIB);
    ask_least(session, pool, 4, 2 * MIB, MIB, 0, 0, 0);
    assert_int_equal(size_of(expect_granted(core, session, 4)), 2 * MIB);
    ask_least(session, pool, 5, 512, 512, 0, 0, 0);
    assert_int_equal(size_of(expect_granted(core, session, 5)), 512);
    expect_no_growth(core);
}

static void of_a_nearly_full_pool_no_more_than_what_is_needed_is_granted(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    struct lease *lease = take_growing(session, pool, 64 * MIB, 0);
    assert_int_equal(release_part(session, name_of(lease), 0, 32 * MIB, 0), 0);
    ask_least(session, pool, 1, 16 * MIB, MIB, 0, 0, 0); /* an eighth of what is free */
    assert_int_equal(size_of(expect_granted(core, session, 1)), 4 * MIB);
    ask_least(session, pool, 2, 16 * MIB, 512, 0, 0, 0);
    assert_int_equal(size_of(expect_granted(core, session, 2)), MIB);
}

/* A rest would be too short for most. */
static void a_range_is_granted_whole_where_that_is_not_more_than_is_wanted(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    struct lease *lease = take_growing(session, pool, 64 * MIB, 0);
    assert_int_equal(release_part(session, name_of(lease), 8 * MIB, 3 * MIB, 0), 0);
    assert_int_equal(release_part(session, name_of(lease), 16 * MIB, 6 * MIB, 0), 0);
    ask_least(session, pool, 1, 4 * MIB, 2 * MIB, 0, 0, 0);
    assert_int_equal(size_of(expect_granted(core, session, 1)), 3 * MIB);
    ask_least(session, pool, 2, 4 * MIB, 2 * MIB, 0, 0, 0);
    assert_int_equal(size_of(expect_granted(core, session, 2)), 2 * MIB);
    ask_least(session, pool, 3, 4 * MIB, 2 * MIB, 0, 0, 0);
    assert_int_equal(size_of(expect_granted(core, session, 3)), 4 * MIB);
}

static void only_the_smallest_size_has_to_be_within_the_limit(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    ask_least(session, pool, 1, 16 * GIB, 16 * MIB + 1, 0, NS_FOREVER, 0);
    expect_refused(core, session, 1, PROTO_E_TOO_LARGE);
    expect_no_growth(core);
    ask_least(session, pool, 2, 16 * GIB, 16 * MIB, 0, NS_FOREVER, 0);
    grow(pool, 16 * MIB, 0);
    assert_int_equal(size_of(expect_granted(core, session, 2)), 16 * MIB);
}

static void without_a_smaller_size_only_the_whole_serves(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    struct lease *lease = take_growing(session, pool, 16 * MIB, 0);
    assert_int_equal(release_part(session, name_of(lease), 0, 15 * MIB, 0), 0);
    ask_least(session, pool, 1, 16 * MIB, 0, 0, 0, 0);
    expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
}

static void the_pool_grows_by_what_is_wanted(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    ask_least(session, pool, 1, 16 * MIB, 512, 0, NS_FOREVER, 0);
    grow(pool, 16 * MIB, 0);
    assert_int_equal(size_of(expect_granted(core, session, 1)), 16 * MIB);
    ask_least(session, pool, 2, MIB, 512, 0, NS_FOREVER, 0);
    grow(pool, 2 * MIB, 0); /* or by a step */
    assert_int_equal(size_of(expect_granted(core, session, 2)), MIB);
}

/* So that requests of one size can use all of a pool. */
static void near_its_limit_the_pool_grows_by_what_is_needed(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    take_growing(session, pool, 6 * MIB, 0);
    ask_least(session, pool, 1, 32 * MIB, 4 * MIB, 0, NS_FOREVER, 0);
    grow(pool, 4 * MIB, 0);
    assert_int_equal(size_of(expect_granted(core, session, 1)), 4 * MIB);
}

static void after_a_refusal_of_the_driver_the_pool_grows_by_what_is_needed(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    ask_least(session, pool, 1, 16 * MIB, 3 * MIB, 0, NS_FOREVER, 0);
    assert_int_equal(expect_growth(core, pool), 16 * MIB);
    growth_failed(pool, "out of memory", 0);
    expect_no_answer(core);
    grow(pool, 4 * MIB, 0); /* at once */
    assert_int_equal(size_of(expect_granted(core, session, 1)), 4 * MIB);
}

static void a_request_keeps_its_place_while_the_pool_grows_for_it(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 2 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A);

    ask_least(one, pool, 1, 8 * MIB, MIB, 0, NS_FOREVER, 0);
    assert_int_equal(expect_growth(core, pool), 8 * MIB);
    ask_least(two, pool, 2, 8 * MIB, MIB, 0, NS_FOREVER, 0);
    segment_made(pool, 8 * MIB, 0);
    assert_int_equal(size_of(expect_granted(core, one, 1)), 8 * MIB);
    grow(pool, 8 * MIB, 0);
    assert_int_equal(size_of(expect_granted(core, two, 2)), 8 * MIB);
}

static void a_request_that_waits_is_served_with_less_when_that_comes_back(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 2 * MIB, 0);
    struct session *holder = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_A);

    struct lease *lease = take_growing(holder, pool, 16 * MIB, 0);
    ask_least(other, pool, 1, 8 * MIB, 2 * MIB, 0, NS_FOREVER, 0);
    assert_int_equal(release_part(holder, name_of(lease), 0, MIB, 0), 0);
    expect_no_answer(core);
    assert_int_equal(release_part(holder, name_of(lease), 2 * MIB, 3 * MIB, 0), 0);
    assert_int_equal(size_of(expect_granted(core, other, 1)), 3 * MIB);
}

static void a_request_that_its_quota_does_not_leave_as_much_is_granted_less(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 16 * MIB, 0);

    limit_all(core, QUOTA_POOLS, 6 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    take_growing(session, pool, 512, 0);
    ask_least(session, pool, 1, 16 * MIB, MIB, 0, NS_FOREVER, 0);
    assert_int_equal(size_of(expect_granted(core, session, 1)), 4 * MIB);
    ask_least(session, pool, 2, 16 * MIB, 2 * MIB, 0, 0, 0);
    expect_refused(core, session, 2, PROTO_E_EXHAUSTED);
    ask_least(session, pool, 3, 16 * MIB, 6 * MIB + 1, 0, NS_FOREVER, 0);
    expect_refused(core, session, 3, PROTO_E_LIMIT);
    assert_int_equal(used(session, QUOTA_POOLS), 4 * MIB + 512);
}

static void what_came_back_behind_fences_is_granted_before_a_smaller_size(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, GIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    core_session_set_page(session, &page);
    struct lease *lease = take_growing(session, pool, 16 * MIB, 0);
    assert_int_equal(release_part_behind(session, name_of(lease), 4 * MIB, 12 * MIB, 0, 1, 0), 0);
    assert_int_equal(release_part(session, name_of(lease), 0, 2 * MIB, 0), 0);
    arrive(0, 1);
    ask_least(session, pool, 1, 8 * MIB, 2 * MIB, 0, 0, 0);
    assert_int_equal(size_of(expect_granted(core, session, 1)), 8 * MIB);
}

/* --- NO_RECLAIM --- */

static void ask_for_growth(struct session *session, const struct pool *pool, uint64_t request, uint64_t size,
                           uint64_t timeout_ns) {
    ask_least(session, pool, request, size, 0, PROTO_ACQUIRE_NO_RECLAIM | PROTO_ACQUIRE_PROBE_ROOM,
              timeout_ns, 0);
}

static void growth_is_waited_for(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 2 * MIB, 0);
    struct session *session = open_wanting(core, 1, UID_A);

    ask_for_growth(session, pool, 1, 8 * MIB, NS_FOREVER);
    expect_no_answer(core);
    grow(pool, 8 * MIB, 0);
    expect_granted(core, session, 1);
    ask_for_growth(session, pool, 2, 8 * MIB, 0); /* one that does not wait sets growth going */
    expect_refused(core, session, 2, PROTO_E_EXHAUSTED);
    grow(pool, 8 * MIB, 0);
    ask_for_growth(session, pool, 3, 8 * MIB, 0);
    expect_granted(core, session, 3);
    expect_no_reclaim(core);
}

static void without_growth_it_is_refused_at_once_and_nobody_is_asked(void **state) {
    static const uint64_t timeouts[] = {0, 1, NS_FOREVER};
    (void)state;

    for (unsigned i = 0; i < sizeof timeouts / sizeof *timeouts; i++) {
        struct core *core = core_make();
        struct pool *pool = add_pool(core, 8 * MIB, 2 * MIB, 0);
        struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);

        memset(&page, 0, sizeof page);
        core_session_set_page(holder, &page);
        describe(take_growing(holder, pool, 8 * MIB, 0), NULL);
        ask_for_growth(other, pool, 1, 4 * MIB, timeouts[i]);
        expect_refused(core, other, 1, PROTO_E_EXHAUSTED);
        assert_int_equal(pool->waiters.count, 0);
        assert_int_equal(pool->stats.n_failures, 0); /* it is asked for again */
        expect_no_reclaim(core);
        assert_int_equal(atomic_load(&page.shortage.pools), 0);
        assert_int_equal(core_next_tick_ns(core), NS_FOREVER);
        tick(core, RECLAIM_INTERVAL_NS);
        expect_no_reclaim(core);
        ask(other, pool, 2, 4 * MIB, 0, RECLAIM_INTERVAL_NS);
        expect_refused(core, other, 2, PROTO_E_EXHAUSTED);
        assert_int_equal(pool->stats.n_failures, 1);
        expect_reclaim(core, holder);
        core_destroy(core);
    }
}

static void where_many_wait_already_it_is_refused_for_want_of_room_all_the_same(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 2 * MIB, 0);

    limit_all(core, QUOTA_WAITING, 1, 0);
    struct session *session = open_session(core, 1, UID_A);
    take_growing(session, pool, 8 * MIB, 0);
    ask(session, pool, 1, MIB, NS_FOREVER, 0);
    ask_for_growth(session, pool, 2, MIB, NS_FOREVER);
    expect_refused(core, session, 2, PROTO_E_EXHAUSTED);
    assert_int_equal(used(session, QUOTA_WAITING), 1);
}

static void it_is_refused_when_the_growth_was_not_enough(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 2 * MIB, 0);
    struct session *one = open_wanting(core, 1, UID_A), *two = open_session(core, 2, UID_B);

    ask(one, pool, 1, 8 * MIB, NS_FOREVER, 0);
    uint64_t size = expect_growth(core, pool);
    ask_for_growth(two, pool, 2, 8 * MIB, NS_FOREVER);
    expect_no_answer(core);
    segment_made(pool, size, 0);
    expect_granted(core, one, 1);
    expect_refused(core, two, 2, PROTO_E_EXHAUSTED);
    expect_no_reclaim(core);
}

static void it_is_refused_when_the_driver_refuses(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 128 * MIB, 2 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);

    take_growing(holder, pool, 2 * MIB, 0);
    ask_least(other, pool, 1, 16 * MIB, 8 * MIB, PROTO_ACQUIRE_NO_RECLAIM, NS_FOREVER, 0);
    assert_int_equal(expect_growth(core, pool), 16 * MIB);
    growth_failed(pool, "out of memory", 0);
    expect_no_answer(core); /* just what is needed is tried */
    assert_int_equal(expect_growth(core, pool), 8 * MIB);
    growth_failed(pool, "out of memory", 0);
    expect_refused(core, other, 1, PROTO_E_EXHAUSTED);
    expect_no_reclaim(core);
    ask_for_growth(other, pool, 2, 8 * MIB, NS_FOREVER); /* and while it is not tried again */
    expect_refused(core, other, 2, PROTO_E_EXHAUSTED);
    expect_no_growth(core);
    expect_no_reclaim(core);
}

static void segments_on_their_way_back_to_the_driver_are_waited_for(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 2 * MIB, 0);
    struct session *gone = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_B);

    describe(take_growing(gone, pool, 8 * MIB, 0), NULL);
    close_session(gone, 0);
    ask_for_growth(other, pool, 1, 8 * MIB, NS_FOREVER);
    expect_no_answer(core);
    assert_int_equal(retire_all(core, 0), 8 * MIB);
    expect_no_answer(core);
    grow(pool, 8 * MIB, 0);
    expect_granted(core, other, 1);
}

static void before_the_device_is_ready_it_waits(void **state) {
    struct core *core = *state;
    struct pool *pool = add_starting_pool(core, 8 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    ask_for_growth(session, pool, 1, 8 * MIB, NS_FOREVER);
    expect_no_answer(core);
    core_pool_ready(pool, 0);
    grow(pool, 8 * MIB, 0);
    expect_granted(core, session, 1);
}

static void its_deadline_ends_the_wait_for_growth(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    ask_for_growth(session, pool, 1, 8 * MIB, 100);
    expect_growth(core, pool);
    tick(core, 99);
    expect_no_answer(core);
    tick(core, 100);
    expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    segment_made(pool, 8 * MIB, 101);
    expect_no_answer(core);
}

static void beyond_its_users_quota_it_is_refused_at_once(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 16 * MIB, 0);

    limit_all(core, QUOTA_POOLS, 8 * MIB, 0);
    struct session *session = open_wanting(core, 1, UID_A);
    take_growing(session, pool, 6 * MIB, 0);
    ask_for_growth(session, pool, 1, 4 * MIB, NS_FOREVER);
    expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    ask_for_growth(session, pool, 2, 16 * MIB, NS_FOREVER); /* more than it may ever have */
    expect_refused(core, session, 2, PROTO_E_LIMIT);
    expect_no_reclaim(core);
    expect_no_growth(core);
    tick(core, RECLAIM_INTERVAL_NS);
    expect_no_reclaim(core);
}

static void nobody_is_asked_for_it_while_the_pool_grows_for_another(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 24 * MIB, 2 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);

    describe(take_growing(holder, pool, 8 * MIB, 0), NULL);
    ask(other, pool, 1, 8 * MIB, 0, 0);
    expect_refused(core, other, 1, PROTO_E_EXHAUSTED);
    uint64_t size = expect_growth(core, pool);
    ask_for_growth(other, pool, 2, 24 * MIB, NS_FOREVER); /* more than there is room for */
    expect_no_answer(core);
    expect_no_reclaim(core);
    assert_int_equal(idle(holder, pool, 0).count, 0);
    segment_made(pool, size, 0);
    expect_refused(core, other, 2, PROTO_E_EXHAUSTED);
    expect_no_reclaim(core);
}

static void when_an_overdue_one_is_refused_those_behind_it_are_served(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 24 * MIB, 2 * MIB, 0);
    struct session *holder = open_session(core, 1, UID_A), *passing = open_session(core, 2, UID_A);
    struct session *large = open_session(core, 3, UID_B), *small = open_session(core, 4, UID_B);

    core->passes_limit = 1;
    core_session_want_reclaim(holder);
    struct lease *lease = take_growing(holder, pool, 8 * MIB, 0);
    describe(lease, NULL);
    assert_int_equal(release(holder, name_of(lease), 0), 0); /* it can be asked to close the segment */
    ask(large, pool, 1, 8 * MIB, 0, 0);
    expect_refused(core, large, 1, PROTO_E_EXHAUSTED);
    uint64_t size = expect_growth(core, pool);
    ask_for_growth(large, pool, 2, 24 * MIB, NS_FOREVER);
    assert_int_equal(release(passing, name_of(take(passing, pool, MIB, 0)), 0), 0);
    ask(small, pool, 3, 4 * MIB, NS_FOREVER, 0);
    expect_no_answer(core);
    segment_made(pool, size, 0); /* it is kept for the overdue one, for which no session is asked to close */
    expect_refused(core, large, 2, PROTO_E_EXHAUSTED);
    assert_true(core_next_tick_ns(core) == 0);
    tick(core, 0);
    expect_granted(core, small, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(the_largest_of_the_sizes_that_is_free_is_granted),
        CORE_TEST(of_a_nearly_full_pool_no_more_than_what_is_needed_is_granted),
        CORE_TEST(a_range_is_granted_whole_where_that_is_not_more_than_is_wanted),
        CORE_TEST(only_the_smallest_size_has_to_be_within_the_limit),
        CORE_TEST(without_a_smaller_size_only_the_whole_serves),
        CORE_TEST(the_pool_grows_by_what_is_wanted),
        CORE_TEST(near_its_limit_the_pool_grows_by_what_is_needed),
        CORE_TEST(after_a_refusal_of_the_driver_the_pool_grows_by_what_is_needed),
        CORE_TEST(a_request_keeps_its_place_while_the_pool_grows_for_it),
        CORE_TEST(a_request_that_waits_is_served_with_less_when_that_comes_back),
        CORE_TEST(a_request_that_its_quota_does_not_leave_as_much_is_granted_less),
        CORE_TEST(what_came_back_behind_fences_is_granted_before_a_smaller_size),
        CORE_TEST(growth_is_waited_for),
        cmocka_unit_test(without_growth_it_is_refused_at_once_and_nobody_is_asked),
        CORE_TEST(where_many_wait_already_it_is_refused_for_want_of_room_all_the_same),
        CORE_TEST(it_is_refused_when_the_growth_was_not_enough),
        CORE_TEST(it_is_refused_when_the_driver_refuses),
        CORE_TEST(segments_on_their_way_back_to_the_driver_are_waited_for),
        CORE_TEST(before_the_device_is_ready_it_waits),
        CORE_TEST(its_deadline_ends_the_wait_for_growth),
        CORE_TEST(beyond_its_users_quota_it_is_refused_at_once),
        CORE_TEST(nobody_is_asked_for_it_while_the_pool_grows_for_another),
        CORE_TEST(when_an_overdue_one_is_refused_those_behind_it_are_served),
    };
    return cmocka_run_group_tests_name("smaller sizes, and growth alone", tests, NULL, NULL);
}
