/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of growth ahead of demand: the low-water mark. */
#include "core_fixture.h"

/* A pool with steps of 8 MiB that wants 4 MiB at hand. */
static struct pool *add_low_water_pool(struct core *core, uint64_t limit) {
    struct pool *pool = add_pool(core, limit, 8 * MIB, 0);
    configure(pool, limit, 8 * MIB, 0, 4 * MIB, 0);
    return pool;
}

static void what_sinks_below_the_mark_is_followed_by_a_step(void **state) {
    struct core *core = *state;
    struct pool *pool = add_low_water_pool(core, 64 * MIB);
    struct session *session = open_session(core, 1, UID_A);

    ask(session, pool, 1, MIB, NS_FOREVER, 0);
    grow(pool, 8 * MIB, 0);
    expect_granted(core, session, 1);
    take(session, pool, 3 * MIB, 0);
    expect_no_growth(core); /* 4 MiB are left: what is wanted */
    take(session, pool, 512, 0);
    assert_int_equal(expect_growth(core, pool), 8 * MIB); /* and no request waits */
    take(session, pool, 3 * MIB, 0);                      /* others are served meanwhile */
    segment_made(pool, 8 * MIB, 0);
    expect_no_growth(core);
    take(session, pool, 8 * MIB, 0);
    assert_int_equal(pool->stats.n_failures, 0);
}

static void a_mark_above_the_step_takes_several(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    configure(pool, 64 * MIB, 8 * MIB, 0, 20 * MIB, 0);
    ask(session, pool, 1, MIB, NS_FOREVER, 0);
    for (unsigned i = 0; i < 3; i++)
        grow(pool, 8 * MIB, 0);
    expect_no_growth(core);
}

static void without_a_mark_nothing_grows_ahead(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    take_growing(session, pool, 8 * MIB, 0);
    expect_no_growth(core);
}

static void a_pool_that_nobody_uses_stays_as_it_is(void **state) {
    struct core *core = *state;
    struct pool *pool = add_low_water_pool(core, 64 * MIB);
    struct session *session = open_session(core, 1, UID_A);

    expect_no_growth(core);
    struct lease *lease = take_growing(session, pool, MIB, 0);
    assert_int_equal(release(session, name_of(lease), 0), 0);
    configure(pool, 64 * MIB, 8 * MIB, 0, 40 * MIB, NS_PER_S);
    tick(core, NS_PER_S);
    expect_no_growth(core);
    assert_int_equal(core_next_tick_ns(core), NS_FOREVER);
}

static void what_counts_is_what_the_one_who_takes_can_have(void **state) {
    struct core *core = *state;
    struct pool *pool = add_low_water_pool(core, 64 * MIB);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_B);

    describe(take_growing(one, pool, MIB, 0), NULL); /* 7 MiB are free, and the first tenant's */
    ask(two, pool, 1, 5 * MIB, NS_FOREVER, 0);
    grow(pool, 8 * MIB, 0);
    expect_granted(core, two, 1);
    grow(pool, 8 * MIB, 0); /* the second has 3 MiB, whatever the first has */
    expect_no_growth(core);
    take(one, pool, 7 * MIB, 0); /* memory without a tenant is at hand for both */
    expect_no_growth(core);
}

static void growth_ahead_stays_below_the_limit_and_retires_nothing(void **state) {
    struct core *core = *state;
    struct pool *pool = add_low_water_pool(core, 20 * MIB);
    struct session *idle = open_session(core, 1, UID_B), *session = open_session(core, 2, UID_A);

    take_growing(idle, pool, 8 * MIB, 0); /* which makes a step for what follows, too */
    assert_int_equal(pool->reserved_bytes, 16 * MIB);
    close_session(idle, 0);
    take(session, pool, 8 * MIB, 0);
    assert_int_equal(expect_growth(core, pool), 4 * MIB);
    segment_made(pool, 4 * MIB, 0);
    take(session, pool, 4 * MIB, 0);
    expect_no_growth(core);
    expect_no_retirement(core);
}

static void those_who_wait_go_before(void **state) {
    struct core *core = *state;
    struct pool *pool = add_low_water_pool(core, 64 * MIB);
    struct session *session = open_session(core, 1, UID_A);

    take_growing(session, pool, 2 * MIB, 0);
    take(session, pool, 4 * MIB, 0);
    assert_int_equal(expect_growth(core, pool), 8 * MIB);
    ask(session, pool, 1, 16 * MIB, NS_FOREVER, 0); /* came while that was under way */
    segment_made(pool, 8 * MIB, 0);
    grow(pool, 16 * MIB, 0);
    expect_granted(core, session, 1);
    expect_no_growth(core); /* and the 8 MiB are still there */
}

static void a_refusal_of_the_driver_is_nobodys_but_the_marks(void **state) {
    struct core *core = *state;
    struct pool *pool = add_low_water_pool(core, 64 * MIB);
    struct session *session = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_B);

    struct lease *lease = take_growing(session, pool, 2 * MIB, 0);
    take(session, pool, 4 * MIB, 0);
    expect_growth(core, pool);
    growth_failed(pool, "out of memory", 0);
    expect_no_growth(core);
    assert_int_equal(core_next_tick_ns(core), NS_FOREVER); /* no request waits for it */

    ask(other, pool, 1, MIB, NS_FOREVER, 1); /* for a request the pool tries at once, and a whole step */
    grow(pool, 8 * MIB, 1);
    expect_granted(core, other, 1);
    take(other, pool, 6 * MIB, AHEAD_RETRY_NS - 1);
    expect_no_growth(core); /* but not ahead of demand yet */
    assert_int_equal(release(session, name_of(lease), AHEAD_RETRY_NS - 1), 0);
    take(other, pool, 512, AHEAD_RETRY_NS);
    assert_int_equal(expect_growth(core, pool), 8 * MIB);
    segment_made(pool, 8 * MIB, AHEAD_RETRY_NS);
}

static void one_who_came_during_a_failing_growth_ahead_has_one_of_its_own(void **state) {
    struct core *core = *state;
    struct pool *pool = add_low_water_pool(core, 64 * MIB);
    struct session *session = open_session(core, 1, UID_A);

    take_growing(session, pool, 2 * MIB, 0);
    take(session, pool, 4 * MIB, 0);
    expect_growth(core, pool);
    ask(session, pool, 1, 3 * MIB, NS_FOREVER, 0);
    growth_failed(pool, "out of memory", 0);
    expect_no_answer(core);
    grow(pool, 8 * MIB, 0);
    expect_granted(core, session, 1);
}

static void what_is_trimmed_is_not_made_again_before_the_next_lease(void **state) {
    struct core *core = *state;
    struct pool *pool = add_low_water_pool(core, 64 * MIB);
    struct session *session = open_session(core, 1, UID_A);

    describe(take_growing(session, pool, 6 * MIB, 0), NULL);
    assert_int_equal(pool->reserved_bytes, 16 * MIB);
    assert_int_equal(core_trim(pool), 8 * MIB);
    retire_all(core, 0);
    expect_no_growth(core);
    struct lease *lease = take(session, pool, MIB, 0);
    grow(pool, 8 * MIB, 0);
    assert_int_equal(release(session, name_of(lease), 0), 0);
    expect_no_growth(core);
}

/* Trims a pool while the driver works on a growth ahead. Nothing is idle then. */
static void trim_beside_growth_ahead(struct core *core, struct pool *pool, struct session *session) {
    ask(session, pool, 1, 6 * MIB, NS_FOREVER, 0);
    segment_made(pool, expect_growth(core, pool), 0);
    expect_granted(core, session, 1);
    assert_int_equal(expect_growth(core, pool), 8 * MIB);
    assert_int_equal(core_trim(pool), 0);
}

static void a_growth_ahead_that_is_under_way_is_trimmed_when_it_is_there(void **state) {
    struct core *core = *state;
    struct pool *pool = add_low_water_pool(core, 64 * MIB);
    struct session *session = open_session(core, 1, UID_A);

    trim_beside_growth_ahead(core, pool, session);
    segment_made(pool, 8 * MIB, 0);
    assert_int_equal(retire_all(core, 0), 8 * MIB);
    assert_int_equal(pool->reserved_bytes, 8 * MIB);
    expect_no_growth(core);
}

static void a_lease_after_the_trim_keeps_the_growth_that_is_under_way(void **state) {
    struct core *core = *state;
    struct pool *pool = add_low_water_pool(core, 64 * MIB);
    struct session *session = open_session(core, 1, UID_A);

    trim_beside_growth_ahead(core, pool, session);
    take(session, pool, MIB, 0);
    segment_made(pool, 8 * MIB, 0);
    assert_int_equal(retire_all(core, 0), 0);
    assert_int_equal(pool->reserved_bytes, 16 * MIB);
}

static void a_mark_that_is_raised_holds_at_once(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    take_growing(session, pool, 6 * MIB, 0);
    expect_no_growth(core);
    configure(pool, 64 * MIB, 8 * MIB, 0, 3 * MIB, 0);
    grow(pool, 8 * MIB, 0);
    configure(pool, 64 * MIB, 8 * MIB, 0, 0, 0);
    take(session, pool, 8 * MIB, 0);
    expect_no_growth(core);
}

static void a_tenant_that_is_gone_demands_nothing(void **state) {
    struct core *core = *state;
    struct pool *pool = add_low_water_pool(core, 16 * MIB);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_B);

    describe(take_growing(two, pool, 2 * MIB, 0), NULL);
    take_growing(one, pool, 8 * MIB, 0);
    close_session(one, 0);
    ask(two, pool, 1, 8 * MIB, NS_FOREVER, 0); /* takes its only segment, and with that the tenant goes */
    assert_int_equal(retire_all(core, 0), 8 * MIB);
    assert_int_equal(list_is_empty(&pool->heaps), false);
    grow(pool, 8 * MIB, 0);
    expect_granted(core, two, 1);
    expect_no_growth(core);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(what_sinks_below_the_mark_is_followed_by_a_step),
        CORE_TEST(a_mark_above_the_step_takes_several),
        CORE_TEST(without_a_mark_nothing_grows_ahead),
        CORE_TEST(a_pool_that_nobody_uses_stays_as_it_is),
        CORE_TEST(what_counts_is_what_the_one_who_takes_can_have),
        CORE_TEST(growth_ahead_stays_below_the_limit_and_retires_nothing),
        CORE_TEST(those_who_wait_go_before),
        CORE_TEST(a_refusal_of_the_driver_is_nobodys_but_the_marks),
        CORE_TEST(one_who_came_during_a_failing_growth_ahead_has_one_of_its_own),
        CORE_TEST(what_is_trimmed_is_not_made_again_before_the_next_lease),
        CORE_TEST(a_growth_ahead_that_is_under_way_is_trimmed_when_it_is_there),
        CORE_TEST(a_lease_after_the_trim_keeps_the_growth_that_is_under_way),
        CORE_TEST(a_mark_that_is_raised_holds_at_once),
        CORE_TEST(a_tenant_that_is_gone_demands_nothing),
    };
    return cmocka_run_group_tests_name("growth ahead of demand", tests, NULL, NULL);
}
