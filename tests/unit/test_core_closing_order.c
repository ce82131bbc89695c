/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which sessions are told to close segments (daemon/core/closing.h): sessions without GPU work first, each
 * mapper of a segment once, and a session for its own request.
 */
#include "closing_fixture.h"

/* --- the sessions that are told --- */

static void a_session_without_gpu_work_is_told_at_once(void **state) {
    struct full full;

    make_full(&full, *state);
    struct proto_segments segments = idle(full.one, full.pool, 0); /* the second has not answered */
    expect_one(&segments, full.segment_one);
    assert_int_equal(idle(full.two, full.pool, 0).count, 0); /* that is enough */
    expect_served(&full, full.one, full.segment_one);
}

static void a_busy_session_is_not_told_when_an_idle_one_can_close_enough(void **state) {
    struct full full;

    make_full(&full, *state);
    assert_int_equal(idle_busy(full.one, full.pool, 0).count, 0);
    struct proto_segments segments = idle(full.two, full.pool, 0);
    expect_one(&segments, full.segment_two);
    assert_int_equal(idle_busy(full.one, full.pool, 0).count, 0);
    expect_no_reclaim(full.core);
    expect_served(&full, full.two, full.segment_two);
}

static void a_busy_session_is_told_when_the_others_have_answered(void **state) {
    struct full full;

    make_full(&full, *state);
    take(full.two, full.pool, 512, 0); /* it has nothing to close */
    assert_int_equal(idle(full.two, full.pool, 0).count, 0);
    struct proto_segments segments = idle_busy(full.one, full.pool, 0);
    expect_one(&segments, full.segment_one);
    expect_served(&full, full.one, full.segment_one);
}

static void a_busy_session_that_answered_first_is_asked_again_at_once(void **state) {
    struct full full;

    make_full(&full, *state);
    take(full.two, full.pool, 512, 0);
    assert_int_equal(idle_busy(full.one, full.pool, 0).count, 0);
    assert_int_equal(idle(full.two, full.pool, 0).count, 0);
    expect_reclaim(full.core, full.one);
    expect_reclaim(full.core, full.two);
    expect_no_reclaim(full.core);
    struct proto_segments segments = idle_busy(full.one, full.pool, 0);
    expect_one(&segments, full.segment_one);
    expect_served(&full, full.one, full.segment_one);
}

static void of_busy_sessions_alone_the_last_to_answer_is_told(void **state) {
    struct full full;

    make_full(&full, *state);
    assert_int_equal(idle_busy(full.one, full.pool, 0).count, 0);
    struct proto_segments segments = idle_busy(full.two, full.pool, 0);
    expect_one(&segments, full.segment_two);
    expect_no_reclaim(full.core); /* it is enough */
    expect_served(&full, full.two, full.segment_two);
}

static void a_session_that_does_not_answer_holds_a_busy_one_up_until_the_second_question(void **state) {
    struct full full;

    make_full(&full, *state);
    for (unsigned i = 0; i < 3; i++) /* however often it says so */
        assert_int_equal(idle_busy(full.one, full.pool, 0).count, 0);
    tick(full.core, RECLAIM_INTERVAL_NS - 1);
    assert_int_equal(idle_as(full.one, full.pool, 0, PROTO_IDLE_BUSY, RECLAIM_INTERVAL_NS - 1).count, 0);
    tick(full.core, RECLAIM_INTERVAL_NS);
    expect_reclaim(full.core, full.one);
    expect_reclaim(full.core, full.two);
    struct proto_segments segments = idle_as(full.one, full.pool, 0, PROTO_IDLE_BUSY, RECLAIM_INTERVAL_NS);
    expect_one(&segments, full.segment_one);
}

static void sessions_that_cannot_be_asked_hold_no_busy_one_up(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 32 * MIB, 2 * MIB, 0);
    struct session *busy = open_wanting(core, 1, UID_A), *deaf = open_session(core, 2, UID_C);
    struct session *lost = open_wanting(core, 3, UID_C), *other = open_session(core, 4, UID_B);

    uint64_t segment = keep(busy, pool, 8 * MIB);
    map(deaf, pool, 8 * MIB);
    map(lost, pool, 16 * MIB);
    open_wanting(core, 5, UID_C); /* and one that has nothing of the pool */
    lose_session(lost, 0);
    ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
    struct proto_segments segments = idle_busy(busy, pool, 0);
    expect_one(&segments, segment);
}

static void a_session_that_ends_instead_of_answering_holds_no_busy_one_up(void **state) {
    (void)state;
    for (unsigned way = 0; way < 2; way++) {
        struct full full;
        make_full(&full, core_make());
        take(full.two, full.pool, 512, 0); /* so that its end makes no room by itself at once */
        assert_int_equal(idle_busy(full.one, full.pool, 0).count, 0);
        lose_session(full.two, 0);
        if (way == 1)
            session_gone(full.two, 0);
        assert_int_equal(idle_busy(full.one, full.pool, 0).count, way == 0 ? 1 : 0);
        core_destroy(full.core);
    }
}

/* Memory for a user's quota is asked of that user's sessions alone. */
static void questions_for_a_users_quota_are_not_counted_as_the_pools(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 24 * MIB, 2 * MIB, 0);

    limit_all(core, QUOTA_POOLS, 8 * MIB, 0);
    struct session *pressed = open_wanting(core, 1, UID_A), *busy = open_wanting(core, 2, UID_C);
    struct session *quiet = open_wanting(core, 3, UID_C + 1), *other = open_session(core, 4, UID_B);
    keep(busy, pool, 8 * MIB);
    map(quiet, pool, 8 * MIB);
    map(pressed, pool, 8 * MIB);
    ask(pressed, pool, 1, 2 * MIB, NS_FOREVER, 0);
    expect_reclaim(core, pressed);
    tick(core, RECLAIM_INTERVAL_NS);
    expect_reclaim(core, pressed);
    expect_no_reclaim(core);
    ask(other, pool, 2, 8 * MIB, NS_FOREVER, RECLAIM_INTERVAL_NS);
    assert_int_equal(idle_as(busy, pool, 0, PROTO_IDLE_BUSY, RECLAIM_INTERVAL_NS).count, 0);
}

/* --- for its own request --- */

static void a_session_closes_for_its_own_request_what_is_of_no_use_to_others(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 2 * MIB, 0);
    struct session *session = open_wanting(core, 1, UID_A);

    uint64_t first = map(session, pool, 8 * MIB), second = map(session, pool, 8 * MIB);
    let_go(session);
    ask_least(session, pool, 1, 12 * MIB, 0, PROTO_ACQUIRE_NO_RECLAIM, 0, 0);
    expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    assert_int_equal(idle(session, pool, 0).count, 0); /* no request waits */
    struct proto_segments segments = idle(session, pool, 12 * MIB);
    assert_int_equal(segments.count, 2);
    assert_int_equal(segments.ids[0] + segments.ids[1], first + second);
    close_all(session, &segments);
    assert_int_equal(retire_all(core, 0), 16 * MIB);
    ask(session, pool, 2, 12 * MIB, NS_FOREVER, 0);
    grow(pool, 12 * MIB, 0);
    expect_granted(core, session, 2);
}

static void a_busy_session_closes_nothing_for_its_own_request_before_the_others_have_answered(void **state) {
    struct full full;

    make_full(&full, *state);
    take(full.two, full.pool, 512, 0);
    assert_int_equal(idle_busy(full.one, full.pool, 12 * MIB).count, 0);
    assert_int_equal(idle(full.two, full.pool, 12 * MIB).count, 0); /* which is no answer to the question */
    assert_int_equal(idle_busy(full.one, full.pool, 12 * MIB).count, 0);
    assert_int_equal(idle(full.two, full.pool, 0).count, 0);
    struct proto_segments segments = idle_busy(full.one, full.pool, 12 * MIB);
    expect_one(&segments, full.segment_one);
}

static void who_did_not_wait_finds_room_when_it_comes_again(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 8 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);

    map(holder, pool, 8 * MIB);
    map(holder, pool, 8 * MIB);
    let_go(holder);
    ask(other, pool, 1, 12 * MIB, 0, 0);
    expect_refused(core, other, 1, PROTO_E_EXHAUSTED);
    expect_reclaim(core, holder);
    struct proto_segments segments = idle(holder, pool, 0);
    assert_int_equal(segments.count, 2);
    close_all(holder, &segments);
    assert_int_equal(retire_all(core, 0), 16 * MIB);
    ask(other, pool, 2, 12 * MIB, NS_FOREVER, 0);
    grow(pool, 12 * MIB, 0);
    expect_granted(core, other, 2);
    assert_int_equal(idle(holder, pool, 0).count, 0);
}

/* --- several mappers --- */

/* A pool at its limit, of which two sessions of one user have a segment of 8 MiB mapped, and a session of
 * another user waits for as much. */
struct common {
    struct core *core;
    struct pool *pool;
    struct session *one, *two, *other;
    uint64_t segment;
};

static void make_common(struct common *common, struct core *core, bool second_is_deaf) {
    common->core = core;
    common->pool = add_pool(common->core, 8 * MIB, 2 * MIB, 0);
    common->one = open_wanting(common->core, 1, UID_A);
    common->two = (second_is_deaf ? open_session : open_wanting)(common->core, 2, UID_A);
    common->other = open_session(common->core, 3, UID_B);
    common->segment = keep(common->one, common->pool, 8 * MIB);
    assert_true(describe(take(common->two, common->pool, MIB, 0), NULL));
    let_go(common->two);
    ask(common->other, common->pool, 1, 8 * MIB, NS_FOREVER, 0);
    expect_reclaim(common->core, common->one);
    if (!second_is_deaf)
        expect_reclaim(common->core, common->two);
    expect_no_reclaim(common->core);
}

static void each_mapper_is_told_once_and_the_last_to_close_sends_the_segment_back(void **state) {
    struct common common;

    make_common(&common, *state, false);
    assert_int_equal(idle(common.one, common.pool, 0).count, 0); /* others may have better ones */
    struct proto_segments segments = idle(common.two, common.pool, 0);
    expect_one(&segments, common.segment);
    assert_int_equal(idle(common.two, common.pool, 0).count, 0);
    expect_reclaim(common.core, common.one); /* it learns it from the answer */
    expect_no_reclaim(common.core);
    segments = idle_busy(common.one, common.pool, 0); /* it has no tenant any more */
    expect_one(&segments, common.segment);
    assert_int_equal(idle(common.one, common.pool, 0).count, 0);
    assert_int_equal(closed(common.two, common.segment), 0);
    assert_int_equal(closed(common.two, common.segment), PROTO_E_INVALID);
    expect_no_retirement(common.core);
    assert_int_equal(closed(common.one, common.segment), 0);
    assert_int_equal(common.pool->stats.n_closes, 2);
    assert_int_equal(retire_all(common.core, 0), 8 * MIB);
    grow(common.pool, 8 * MIB, 0);
    expect_granted(common.core, common.other, 1);
}

static void a_mapper_that_was_not_told_cannot_have_closed(void **state) {
    struct common common;

    make_common(&common, *state, false);
    assert_int_equal(idle(common.one, common.pool, 0).count, 0);
    assert_int_equal(idle(common.two, common.pool, 0).count, 1);
    assert_int_equal(closed(common.one, common.segment), PROTO_E_INVALID);
    assert_int_equal(idle(common.one, common.pool, 0).count, 1);
    assert_int_equal(closed(common.one, common.segment), 0);
}

static void the_segment_with_the_fewest_mappers_is_named_first(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 20 * MIB, 2 * MIB, 0);
    struct session *one = open_wanting(core, 1, UID_A), *two = open_wanting(core, 2, UID_A);
    struct session *other = open_session(core, 3, UID_B);

    map(one, pool, 8 * MIB); /* which would be just enough */
    let_go(one);
    assert_true(describe(take(two, pool, MIB, 0), NULL));
    let_go(two);
    uint64_t own = keep(one, pool, 12 * MIB);
    ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
    assert_int_equal(idle(two, pool, 0).count, 0);
    struct proto_segments segments = idle(one, pool, 0);
    expect_one(&segments, own);
}

static void a_segment_is_not_closed_while_a_mapper_cannot_be_asked(void **state) {
    struct common common;

    make_common(&common, *state, true);
    assert_int_equal(idle(common.one, common.pool, 0).count, 0);
    assert_int_equal(idle(common.two, common.pool, 0).count, 0); /* not even if it asks by itself */
    tick(common.core, RECLAIM_INTERVAL_NS);
    expect_reclaim(common.core, common.one);
    assert_int_equal(idle(common.one, common.pool, 0).count, 0);
    close_session(common.two, RECLAIM_INTERVAL_NS);
    struct proto_segments segments = idle(common.one, common.pool, 0);
    expect_one(&segments, common.segment);
}

/* A client without a cache: it says by itself what its request lacks. */
static void a_session_that_cannot_be_asked_closes_for_its_own_request(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 12 * MIB, 2 * MIB, 0);
    struct session *deaf = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_A);

    uint64_t segment = keep(deaf, pool, 8 * MIB);
    assert_true(describe(take(other, pool, MIB, 0), NULL));
    let_go(other);
    assert_int_equal(idle(deaf, pool, 10 * MIB).count, 0); /* the other mapper cannot be told */
    close_session(other, 0);
    assert_int_equal(idle(deaf, pool, 8 * MIB).count, 0); /* there is room */
    struct proto_segments segments = idle(deaf, pool, 10 * MIB);
    expect_one(&segments, segment);
    assert_int_equal(closed(deaf, segment), 0);
}

static void a_segment_is_not_closed_while_a_lost_session_has_it_mapped(void **state) {
    struct common common;

    make_common(&common, *state, false);
    lose_session(common.two, 0);
    assert_int_equal(idle(common.one, common.pool, 0).count, 0);
    assert_int_equal(idle(common.one, common.pool, 8 * MIB + 512).count, 0);
    session_gone(common.two, 0);
    struct proto_segments segments = idle(common.one, common.pool, 0);
    expect_one(&segments, common.segment);
}

static void a_mapper_that_is_lost_before_it_was_told_keeps_the_segment_until_its_end(void **state) {
    struct common common;

    make_common(&common, *state, false);
    assert_int_equal(idle(common.one, common.pool, 0).count, 0);
    struct proto_segments segments = idle(common.two, common.pool, 0);
    close_all(common.two, &segments);
    lose_session(common.one, 0);
    expect_no_retirement(common.core);
    session_gone(common.one, 0);
    assert_int_equal(common.pool->stats.n_closes, 1);
    assert_int_equal(retire_all(common.core, 0), 8 * MIB);
    grow(common.pool, 8 * MIB, 0);
    expect_granted(common.core, common.other, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(a_session_without_gpu_work_is_told_at_once),
        CORE_TEST(a_busy_session_is_not_told_when_an_idle_one_can_close_enough),
        CORE_TEST(a_busy_session_is_told_when_the_others_have_answered),
        CORE_TEST(a_busy_session_that_answered_first_is_asked_again_at_once),
        CORE_TEST(of_busy_sessions_alone_the_last_to_answer_is_told),
        CORE_TEST(a_session_that_does_not_answer_holds_a_busy_one_up_until_the_second_question),
        CORE_TEST(sessions_that_cannot_be_asked_hold_no_busy_one_up),
        cmocka_unit_test(a_session_that_ends_instead_of_answering_holds_no_busy_one_up),
        CORE_TEST(questions_for_a_users_quota_are_not_counted_as_the_pools),
        CORE_TEST(a_session_closes_for_its_own_request_what_is_of_no_use_to_others),
        CORE_TEST(a_busy_session_closes_nothing_for_its_own_request_before_the_others_have_answered),
        CORE_TEST(who_did_not_wait_finds_room_when_it_comes_again),
        CORE_TEST(each_mapper_is_told_once_and_the_last_to_close_sends_the_segment_back),
        CORE_TEST(a_mapper_that_was_not_told_cannot_have_closed),
        CORE_TEST(the_segment_with_the_fewest_mappers_is_named_first),
        CORE_TEST(a_segment_is_not_closed_while_a_mapper_cannot_be_asked),
        CORE_TEST(a_session_that_cannot_be_asked_closes_for_its_own_request),
        CORE_TEST(a_segment_is_not_closed_while_a_lost_session_has_it_mapped),
        CORE_TEST(a_mapper_that_is_lost_before_it_was_told_keeps_the_segment_until_its_end),
    };
    return cmocka_run_group_tests_name("sessions that close segments", tests, NULL, NULL);
}
