/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the counters for the operator: a failure is counted when a caller hears of it, peaks are peaks,
 * and the reason of a waiting request names the event that would serve it. */
#include "core_fixture.h"
#include "daemon/core/explain.h"

/* --- failures and probes --- */

static void a_probe_that_is_refused_is_no_failure(void **state) {
    static const struct {
        uint32_t flags;
        bool is_probe;
    } cases[] = {
        {0, false},
        {PROTO_ACQUIRE_NO_RECLAIM, false}, /* its caller may hear of it */
        {PROTO_ACQUIRE_PROBE_LIMIT, false},
        {PROTO_ACQUIRE_PROBE_ROOM, true},
        {PROTO_ACQUIRE_NO_RECLAIM | PROTO_ACQUIRE_PROBE_ROOM, true},
    };
    (void)state;

    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct core *core = core_make();
        struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
        struct session *session = open_session(core, 1, UID_A);
        describe(take_growing(session, pool, 8 * MIB, 0), NULL);
        ask_least(session, pool, 1, MIB, 0, cases[i].flags, 0, 0);
        expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
        assert_int_equal(pool->stats.n_probes, cases[i].is_probe);
        assert_int_equal(pool->stats.n_failures, !cases[i].is_probe);
        assert_int_equal(pool->stats.n_timeouts, 0); /* it did not wait */
        core_destroy(core);
    }
}

static void a_probe_covers_the_refusals_that_it_names(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    ask_least(session, pool, 1, 16 * MIB, 0, PROTO_ACQUIRE_PROBES, 0, 0);
    expect_refused(core, session, 1, PROTO_E_TOO_LARGE);
    assert_int_equal(pool->stats.n_failures, 1);
    core->session_leases_limit = 0;
    ask_least(session, pool, 2, MIB, 0, PROTO_ACQUIRE_PROBE_ROOM, 0, 0);
    expect_refused(core, session, 2, PROTO_E_LIMIT);
    assert_int_equal(pool->stats.n_failures, 2);
    ask_least(session, pool, 3, MIB, 0, PROTO_ACQUIRE_PROBE_LIMIT, 0, 0);
    expect_refused(core, session, 3, PROTO_E_LIMIT);
    assert_int_equal(pool->stats.n_failures, 2);
    assert_int_equal(pool->stats.n_probes, 1);
}

static void timeouts_are_those_that_waited_until_their_deadline(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    describe(take_growing(session, pool, 8 * MIB, 0), NULL);
    ask(session, pool, 1, MIB, 50, 0);
    ask_least(session, pool, 2, MIB, 0, PROTO_ACQUIRE_PROBES, 60, 0);
    tick(core, 50);
    expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    assert_int_equal(pool->stats.n_timeouts, 1);
    assert_int_equal(pool->stats.n_failures, 1);
    tick(core, 60);
    expect_refused(core, session, 2, PROTO_E_EXHAUSTED);
    assert_int_equal(pool->stats.n_timeouts, 1);
    assert_int_equal(pool->stats.n_probes, 1);
}

static void refusals_by_quota_are_told_apart(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 8 * MIB, 0);

    limit_all(core, QUOTA_POOLS, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    ask(session, pool, 1, 9 * MIB, 0, 0);
    expect_refused(core, session, 1, PROTO_E_LIMIT);
    assert_int_equal(pool->stats.n_quota_refusals, 1);
    take_growing(session, pool, 8 * MIB, 0);
    ask(session, pool, 2, MIB, 50, 0);
    tick(core, 50);
    expect_refused(core, session, 2, PROTO_E_EXHAUSTED);
    assert_int_equal(pool->stats.n_quota_refusals, 2);
    assert_int_equal(pool->stats.n_timeouts, 1);
    ask_least(session, pool, 3, 9 * MIB, 0, PROTO_ACQUIRE_PROBES, 0, 50);
    expect_refused(core, session, 3, PROTO_E_LIMIT);
    assert_int_equal(pool->stats.n_quota_refusals, 2);
    assert_int_equal(pool->stats.n_failures, 2);
}

static void sessions_that_are_refused_are_counted(void **state) {
    struct core *core = *state;
    const struct peer peer = {.pid = 3, .uid = UID_A};
    struct session *session = NULL;

    core->sessions_limit = 1;
    open_session(core, 1, UID_A);
    assert_int_equal(core->n_sessions_refused, 0);
    assert_int_equal(core_session_open(core, &peer, 0, &session), PROTO_E_LIMIT);
    core->sessions_limit = 8;
    limit_all(core, QUOTA_SESSIONS, 1, 0);
    assert_int_equal(core_session_open(core, &peer, 0, &session), PROTO_E_LIMIT);
    assert_int_equal(core->n_sessions_refused, 2);
}

/* --- peaks --- */

static void peaks_stay_when_the_memory_has_gone(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 8 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A);
    struct lease *part;

    struct lease *lease = take_growing(one, pool, 6 * MIB, 0);
    describe(lease, NULL);
    describe(take_growing(two, pool, 2 * MIB, 0), NULL);
    assert_int_equal(split(one, name_of(lease), 0, 4 * MIB, &part), 0); /* counts once, on both sides of it */
    assert_int_equal(pool->stats.leased_peak_bytes, 8 * MIB);
    assert_int_equal(pool->stats.reserved_peak_bytes, 8 * MIB);
    assert_int_equal(pool->stats.quarantined_peak_bytes, 0);
    lose_session(one, 0);
    assert_int_equal(pool->stats.quarantined_peak_bytes, 6 * MIB);
    session_gone(one, 0);
    close_session(two, 0);
    core_trim(pool);
    retire_all(core, 0);
    assert_int_equal(pool->reserved_bytes + pool->leased_bytes + pool->quarantined_bytes, 0);
    assert_int_equal(pool->stats.leased_peak_bytes, 8 * MIB);
    assert_int_equal(pool->stats.reserved_peak_bytes, 8 * MIB);
    assert_int_equal(pool->stats.quarantined_peak_bytes, 6 * MIB);
}

/* --- what a waiter waits for --- */

static const struct request *waiting(const struct session *session) {
    assert_false(list_is_empty(&session->requests));
    return container_of(session->requests.next, struct request, session_link);
}

static void expect_reason(const struct session *session, enum waiter_reason reason) {
    assert_string_equal(waiter_reason_name(waiter_reason(waiting(session))), waiter_reason_name(reason));
}

static void a_waiter_is_told_what_would_serve_it(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 32 * MIB, 2 * MIB, 0);

    struct policy *policy = policy_make();
    add_rule(policy, false, UID_A, QUOTA_POOLS, 12 * MIB);
    set_policy(core, policy, 0);
    struct session *small = open_session(core, 1, UID_A), *large = open_session(core, 2, UID_B);
    struct session *third = open_session(core, 3, 1003);
    describe(take_growing(small, pool, 12 * MIB, 0), NULL);
    ask(small, pool, 1, MIB, NS_FOREVER, 0);
    expect_reason(small, WAITER_QUOTA);
    ask(large, pool, 2, 20 * MIB, NS_FOREVER, 0);
    expect_reason(large, WAITER_GROWTH);
    grow(pool, 20 * MIB, 0);
    struct lease *lease = expect_granted(core, large, 2);
    describe(lease, NULL);
    ask(third, pool, 3, 4 * MIB, NS_FOREVER, 0);
    expect_reason(third, WAITER_ROOM);
    assert_int_equal(release(large, name_of(lease), 0), 0);
    expect_no_answer(core); /* the segment is another user's, and mapped there */
    expect_reason(third, WAITER_OTHER_USERS);
    close_session(large, 0);
    expect_reason(third, WAITER_GROWTH);
}

/* --- by pool --- */

static void what_is_behind_fences_is_counted_by_pool(void **state) {
    struct core *core = *state;
    struct pool *one = add_pool(core, 8 * MIB, 2 * MIB, 0), *two = add_pool(core, 8 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    core_session_set_page(session, &page);
    describe(take_growing(session, one, 2 * MIB, 0), NULL);
    struct lease *lease = take_growing(session, two, MIB, 0);
    describe(lease, NULL);
    assert_int_equal(release_behind(session, name_of(lease), 0, 1), 0);
    assert_int_equal(session->pools[0].fenced_bytes, 0);
    assert_int_equal(session->pools[1].fenced_bytes, MIB);
    assert_true(core_is_valid(core));
    lose_session(session, 0);
    assert_int_equal(session->pools[1].fenced_bytes, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_probe_that_is_refused_is_no_failure),
        CORE_TEST(a_probe_covers_the_refusals_that_it_names),
        CORE_TEST(timeouts_are_those_that_waited_until_their_deadline),
        CORE_TEST(refusals_by_quota_are_told_apart),
        CORE_TEST(sessions_that_are_refused_are_counted),
        CORE_TEST(peaks_stay_when_the_memory_has_gone),
        CORE_TEST(a_waiter_is_told_what_would_serve_it),
        CORE_TEST(what_is_behind_fences_is_counted_by_pool),
    };
    return cmocka_run_group_tests_name("counters", tests, NULL, NULL);
}
