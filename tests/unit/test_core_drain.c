/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of pools that an operator drains: they grant nothing, and all of their memory comes back. */
#include "core_fixture.h"
#include "daemon/core/recorder.h"

static void drain(struct pool *pool, bool is_draining, uint64_t now_ns) {
    core_pool_drain(pool, is_draining, now_ns);
    assert_true(core_is_valid(pool->core));
}

static void a_pool_that_drains_grants_nothing_and_says_why(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 8 * MIB, 0), *other = add_pool(core, 16 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    struct lease *lease = take_growing(session, pool, MIB, 0);
    drain(pool, true, 0);
    ask(session, pool, 1, MIB, NS_FOREVER, 0); /* although there is room */
    assert_non_null(strstr(expect_refused(core, session, 1, PROTO_E_SHUTDOWN), "gpupoolctl drain --off"));
    expect_no_growth(core);
    assert_int_equal(pool->leased_bytes, MIB);
    take_growing(session, other, MIB, 0);
    drain(pool, false, 0);
    take(session, pool, MIB, 0);
    assert_int_equal(release(session, name_of(lease), 0), 0);
}

static void a_drain_and_its_end_are_recorded(void **state) {
    static union {
        struct proto_records header;
        char bytes[1 << 20];
    } file;
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 8 * MIB, 0), *other = add_pool(core, 16 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    struct proto_record found;

    take_growing(session, pool, MIB, 0);
    proto_records_lay_out(&file.header, 64 * sizeof(struct proto_record), 2, core->n_pools);
    recorder_open(core, &file.header);
    drain(pool, true, 5);
    drain(other, true, 5);
    drain(pool, false, 7);
    assert_true(proto_records_read(&file.header, 1, &found));
    assert_int_equal(found.kind, PROTO_RECORD_DRAIN);
    assert_int_equal(found.pool, pool->id);
    assert_int_equal(found.bytes, MIB);
    assert_true(proto_records_read(&file.header, 2, &found));
    assert_int_equal(found.pool, other->id);
    assert_true(proto_records_read(&file.header, 3, &found));
    assert_int_equal(found.kind, PROTO_RECORD_DRAIN_END);
    assert_int_equal(found.bytes, MIB);
    assert_false(proto_records_read(&file.header, 4, &found));
}

static void requests_that_wait_are_refused(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *holder = open_session(core, 1, UID_A), *session = open_session(core, 2, UID_B);

    struct lease *lease = take_growing(holder, pool, 8 * MIB, 0);
    ask(session, pool, 1, MIB, NS_FOREVER, 0);
    ask(holder, pool, 2, MIB, NS_FOREVER, 0);
    expect_no_answer(core);
    drain(pool, true, 0);
    expect_refused(core, holder, 2, PROTO_E_SHUTDOWN);
    expect_refused(core, session, 1, PROTO_E_SHUTDOWN);
    assert_int_equal(release(holder, name_of(lease), 0), 0);
    expect_no_answer(core);
}

static void idle_segments_go_back_and_those_of_the_reserve(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 32 * MIB, 8 * MIB, 8 * MIB);
    struct session *session = open_session(core, 1, UID_A);

    grow(pool, 8 * MIB, 0);
    struct lease *first = take(session, pool, 8 * MIB, 0), *second = take_growing(session, pool, 8 * MIB, 0);
    assert_int_equal(release(session, name_of(first), 0), 0);
    expect_no_retirement(core);
    drain(pool, true, 0);
    assert_int_equal(retire_all(core, 0), 8 * MIB);
    assert_int_equal(release(session, name_of(second), 0), 0);
    assert_int_equal(retire_all(core, 0), 8 * MIB); /* as soon as it is idle */
    assert_int_equal(pool->reserved_bytes, 0);
    tick(core, NS_PER_S);
    expect_no_growth(core);
    drain(pool, false, NS_PER_S);
    grow(pool, 8 * MIB, NS_PER_S); /* the reserve again */
}

static void a_growth_that_is_decided_is_given_up_and_one_under_way_goes_back(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 32 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    ask(session, pool, 1, MIB, NS_FOREVER, 0);
    drain(pool, true, 0);
    expect_refused(core, session, 1, PROTO_E_SHUTDOWN);
    expect_no_growth(core);
    drain(pool, false, 0);
    ask(session, pool, 2, MIB, NS_FOREVER, 0);
    uint64_t size = expect_growth(core, pool);
    drain(pool, true, 0);
    expect_refused(core, session, 2, PROTO_E_SHUTDOWN);
    segment_made(pool, size, 0);
    assert_int_equal(retire_all(core, 0), size);
}

static void a_growth_that_fails_meanwhile_is_not_tried_again(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 32 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    ask(session, pool, 1, MIB, NS_FOREVER, 0);
    (void)expect_growth(core, pool);
    drain(pool, true, 0);
    growth_failed(pool, "no memory", 0);
    tick(core, 10 * NS_PER_S);
    expect_no_growth(core);
    expect_refused(core, session, 1, PROTO_E_SHUTDOWN);
}

static void sessions_are_asked_for_what_they_keep_idle_again_and_again(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 8 * MIB, 0);
    struct session *session = open_wanting(core, 1, UID_A);

    core_session_set_page(session, &page);
    describe(take_growing(session, pool, MIB, 0), NULL);
    expect_no_reclaim(core);
    drain(pool, true, 0);
    expect_reclaim(core, session);
    assert_int_equal(atomic_load(&page.shortage.pools), 1);
    tick(core, SHORTAGE_NS);
    expect_no_reclaim(core);
    assert_int_equal(atomic_load(&page.shortage.pools), 1); /* it keeps nothing idle meanwhile */
    tick(core, DRAIN_INTERVAL_NS);
    expect_reclaim(core, session);
    drain(pool, false, DRAIN_INTERVAL_NS);
    tick(core, DRAIN_INTERVAL_NS + SHORTAGE_NS);
    expect_no_reclaim(core);
    assert_int_equal(atomic_load(&page.shortage.pools), 0);
    assert_int_equal(core_next_tick_ns(core), NS_FOREVER);
}

static void a_request_after_the_drain_has_sessions_asked_at_once(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *session = open_session(core, 2, UID_A);

    describe(take_growing(holder, pool, 8 * MIB, 0), NULL);
    drain(pool, true, 0);
    expect_reclaim(core, holder);
    drain(pool, false, NS_PER_MS);
    ask(session, pool, 1, MIB, NS_FOREVER, NS_PER_MS);
    expect_reclaim(core, holder);
}

static void sessions_close_segments_that_they_have_mapped(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 32 * MIB, 8 * MIB, 0);
    struct session *session = open_wanting(core, 1, UID_A);
    struct lease *leases[2];

    for (int i = 0; i < 2; i++) {
        leases[i] = take_growing(session, pool, 8 * MIB, 0);
        describe(leases[i], NULL);
    }
    uint64_t kept = leases[0]->block->segment->id, closes = leases[1]->block->segment->id;
    assert_int_equal(release(session, name_of(leases[1]), 0), 0);
    assert_int_equal(retire_all(core, 0), 0);
    drain(pool, true, 0);
    expect_reclaim(core, session);
    struct proto_segments segments = idle(session, pool, 0);
    assert_int_equal(segments.count, 1);
    assert_int_equal(segments.ids[0], closes);
    assert_int_equal(closed(session, closes), 0);
    assert_int_equal(retire_all(core, 0), 8 * MIB);
    assert_int_equal(release(session, name_of(leases[0]), 0), 0);
    tick(core, DRAIN_INTERVAL_NS);
    expect_reclaim(core, session);
    segments = idle_as(session, pool, 0, 0, DRAIN_INTERVAL_NS);
    assert_int_equal(segments.count, 1);
    assert_int_equal(segments.ids[0], kept);
    assert_int_equal(closed(session, kept), 0);
    assert_int_equal(retire_all(core, 0), 8 * MIB);
    assert_int_equal(pool->reserved_bytes, 0);
}

static void a_buffer_can_still_be_attached(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_A);
    const struct proto_token fresh = {.bytes = {1}};
    struct lease *lease = take_growing(session, pool, MIB, 0), *attached;
    const struct proto_share share = {.lease = lease->id, .generation = lease->generation};
    struct proto_token token;

    drain(pool, true, 0);
    assert_int_equal(core_share(session, &share, &fresh, 0, &lease, &token), 0);
    assert_int_equal(core_attach(other, &token, &attached), 0);
    assert_true(core_is_valid(core));
}

static void no_session_opens_while_all_pools_drain(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 8 * MIB, 0), *second = add_pool(core, 16 * MIB, 8 * MIB, 0);
    const struct peer peer = {.pid = 1, .uid = UID_A};
    struct session *session;
    struct proto_failure failure;

    assert_false(core_is_draining(core));
    drain(pool, true, 0);
    (void)open_session(core, 2, UID_A);
    drain(second, true, 0);
    assert_true(core_is_draining(core));
    assert_int_equal(core_session_open(core, &peer, 0, &session), PROTO_E_SHUTDOWN);
    core_explain_sessions(core, &peer, &failure);
    assert_int_equal(failure.error, PROTO_E_SHUTDOWN);
    assert_non_null(strstr(failure.text, "gpupoolctl drain --off"));
    drain(pool, false, 0);
    (void)open_session(core, 3, UID_A);
}

static void a_pool_that_is_lost_meanwhile_frees_nothing(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    struct lease *lease = take_growing(session, pool, MIB, 0);
    drain(pool, true, 0);
    core_pool_lost(pool, "it fell off the bus", 0);
    assert_true(core_is_valid(core));
    assert_int_equal(release(session, name_of(lease), 0), 0);
    expect_no_retirement(core);
    ask(session, pool, 1, MIB, NS_FOREVER, 0);
    expect_refused(core, session, 1, PROTO_E_DRIVER);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(a_pool_that_drains_grants_nothing_and_says_why),
        CORE_TEST(a_drain_and_its_end_are_recorded),
        CORE_TEST(requests_that_wait_are_refused),
        CORE_TEST(idle_segments_go_back_and_those_of_the_reserve),
        CORE_TEST(a_growth_that_is_decided_is_given_up_and_one_under_way_goes_back),
        CORE_TEST(a_growth_that_fails_meanwhile_is_not_tried_again),
        CORE_TEST(sessions_are_asked_for_what_they_keep_idle_again_and_again),
        CORE_TEST(a_request_after_the_drain_has_sessions_asked_at_once),
        CORE_TEST(sessions_close_segments_that_they_have_mapped),
        CORE_TEST(a_buffer_can_still_be_attached),
        CORE_TEST(no_session_opens_while_all_pools_drain),
        CORE_TEST(a_pool_that_is_lost_meanwhile_frees_nothing),
    };
    return cmocka_run_group_tests_name("pools that drain", tests, NULL, NULL);
}
