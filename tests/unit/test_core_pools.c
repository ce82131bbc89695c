/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of a pool whose device is not ready, has failed or is lost. */
#include "core_fixture.h"

static void before_the_device_is_ready_requests_wait(void **state) {
    struct core *core = *state;
    struct pool *pool = add_starting_pool(core, 64 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    ask(session, pool, 1, MIB, NS_FOREVER, 0);
    ask(session, pool, 2, MIB, 10, 0);
    expect_no_growth(core);
    expect_no_answer(core);
    tick(core, 10); /* their deadlines hold nevertheless */
    expect_refused(core, session, 2, PROTO_E_EXHAUSTED);
    core_pool_ready(pool, 20);
    grow(pool, 8 * MIB, 20);
    expect_granted(core, session, 1);
}

static void a_failed_pool_refuses_with_the_reason(void **state) {
    struct core *core = *state;
    struct pool *pool = add_starting_pool(core, 64 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    ask(session, pool, 1, MIB, NS_FOREVER, 0);
    core_pool_failed(pool, "no context: cudaErrorDevicesUnavailable", 1);
    assert_non_null(strstr(expect_refused(core, session, 1, PROTO_E_DRIVER), "cudaErrorDevicesUnavailable"));
    ask(session, pool, 2, MIB, NS_FOREVER, 2);
    assert_non_null(strstr(expect_refused(core, session, 2, PROTO_E_DRIVER), "cudaErrorDevicesUnavailable"));
    expect_no_growth(core);
}

static void a_lost_pool_refuses_who_waits_and_lends_no_more(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 8 * MIB, 0), *other = add_pool(core, 64 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A), *late = open_session(core, 2, UID_A);
    struct proto_token fresh = {{1}}, token;
    struct lease *attached;

    ask(session, pool, 1, MIB, 0, 0);
    expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    grow(pool, 8 * MIB, 0);
    struct lease *lease = take(session, pool, MIB, 0);
    const struct proto_lease_name name = {lease->id, lease->generation};
    assert_int_equal(core_share(session, &name, 0, &fresh, &token), 0);
    ask(session, pool, 2, 32 * MIB, NS_FOREVER, 1); /* its growth is under way */
    expect_growth(core, pool);
    core_pool_lost(pool, "lost: cudaErrorECCUncorrectable", 2);
    assert_true(core_is_valid(core));
    assert_non_null(strstr(expect_refused(core, session, 2, PROTO_E_DRIVER), "cudaErrorECCUncorrectable"));
    core_growth_failed(pool, "cudaMalloc failed", 3); /* the growth that was under way fails */
    core_pool_lost(pool, "another error", 3);
    assert_string_equal(pool->last_error, "lost: cudaErrorECCUncorrectable");

    /* free and shared memory is not lent; leases can be released */
    ask(late, pool, 3, 4096, NS_FOREVER, 4);
    assert_non_null(strstr(expect_refused(core, late, 3, PROTO_E_DRIVER), "cudaErrorECCUncorrectable"));
    assert_int_equal(core_attach(late, &token, &attached), PROTO_E_DRIVER);
    const struct proto_release release = {lease->id, lease->generation, 0, 0, 0, 0, 0};
    assert_int_equal(core_release(session, &release, 5), 0);
    assert_int_equal(pool->leased_bytes, 0);
    core_session_lose(session, 6, "it is dead");
    core_session_gone(session, 7);
    assert_int_equal(core_trim(pool), 0); /* the driver would not free it */
    core_tick(core, 60 * NS_PER_S);
    expect_no_growth(core);
    assert_true(core_is_valid(core));
    ask(late, other, 4, MIB, NS_FOREVER, 8);
    grow(other, 8 * MIB, 8);
    expect_granted(core, late, 4);
}

static void a_growth_that_nobody_has_begun_ends_with_its_pool(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    ask(session, pool, 1, MIB, NS_FOREVER, 0);
    core_pool_lost(pool, "lost", 1);
    expect_refused(core, session, 1, PROTO_E_DRIVER);
    expect_no_growth(core);
    assert_int_equal(pool->growth.bytes, 0);
    assert_true(core_is_valid(core));
}

static void a_refusal_names_the_call_that_its_pool_waits_for(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    core_pool_stalled(pool, "cudaMalloc", 12 * NS_PER_S);
    ask(session, pool, 1, MIB, 0, 0);
    assert_non_null(
        strstr(expect_refused(core, session, 1, PROTO_E_EXHAUSTED), "cudaMalloc has not come back for 12"));
    core_pool_stalled(pool, NULL, 0);
    ask(session, pool, 2, MIB, 0, 0);
    assert_null(strstr(expect_refused(core, session, 2, PROTO_E_EXHAUSTED), "come back"));
}

static void an_unknown_pool_is_refused(void **state) {
    struct core *core = *state;
    struct session *session = open_session(core, 1, UID_A);
    const struct proto_acquire none = {.pool = 0, .size_bytes = 1}, beyond = {.pool = 1, .size_bytes = 1};

    assert_int_equal(core_acquire(session, 1, &none, 0), 0);
    expect_refused(core, session, 1, PROTO_E_NO_POOL);
    assert_int_equal(core_acquire(session, 2, &beyond, 0), 0);
    expect_refused(core, session, 2, PROTO_E_NO_POOL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(before_the_device_is_ready_requests_wait),
        CORE_TEST(a_failed_pool_refuses_with_the_reason),
        CORE_TEST(a_lost_pool_refuses_who_waits_and_lends_no_more),
        CORE_TEST(a_growth_that_nobody_has_begun_ends_with_its_pool),
        CORE_TEST(a_refusal_names_the_call_that_its_pool_waits_for),
        CORE_TEST(an_unknown_pool_is_refused),
    };
    return cmocka_run_group_tests_name("pools that are not ready, or not any more", tests, NULL, NULL);
}
