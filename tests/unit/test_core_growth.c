/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of how a pool gets its memory and serves its wait queues: growth, its failures, deadlines, reserves,
 * and a device that is not ready, has failed or is lost.
 */
#include "core_fixture.h"

static void growth_is_of_at_least_the_step(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    ask(session, pool, 1, 1, NS_FOREVER, 0);
    expect_no_answer(core);
    grow(pool, 8 * MIB, 0);
    assert_int_equal(expect_granted(core, session, 1)->block->capacity_bytes, 512);

    ask(session, pool, 2, 11 * MIB, NS_FOREVER, 0); /* more than a step: what is needed, in whole segments */
    grow(pool, 12 * MIB, 0);
    expect_granted(core, session, 2);
    assert_int_equal(pool->stats.n_grows, 2);
}

static void a_pool_without_a_step_grows_by_what_is_asked_for(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * GIB, POOL_STEP_BY_SIZE, 0);
    struct session *session = open_session(core, 1, UID_A);

    assert_int_equal(pool_step_bytes(pool), POOL_STEP_MIN);
    ask(session, pool, 1, MIB, NS_FOREVER, 0);
    grow(pool, 2 * MIB, 0);
    expect_granted(core, session, 1);
    take(session, pool, MIB, 0); /* beside it */
    ask(session, pool, 2, 5 * MIB + 512, NS_FOREVER, 0);
    grow(pool, 6 * MIB, 0);
    expect_granted(core, session, 2);
    ask(session, pool, 3, 16 * GIB, NS_FOREVER, 0);
    grow(pool, 16 * GIB, 0);
    expect_granted(core, session, 3);
    assert_int_equal(pool_step_bytes(pool), 4 * MIB);    /* 1/4096 of its reserved bytes */
    ask(session, pool, 4, 2 * MIB + 512, NS_FOREVER, 0); /* more than what is left beside the others */
    grow(pool, 4 * MIB, 0);
    expect_granted(core, session, 4);
    expect_no_growth(core); /* and nothing ahead of demand */
}

/* A client registers each segment with CUDA by one call, and a copy may not cross two registrations. */
static void host_memory_is_made_and_lent_in_pieces_of_64_gib_at_most(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 200 * GIB, GIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    pool->kind = PROTO_POOL_HOST;
    ask(session, pool, 1, 64 * GIB + 512, NS_FOREVER, 0);
    assert_non_null(
        strstr(expect_refused(core, session, 1, PROTO_E_TOO_LARGE), "one buffer has 64 GiB at most"));
    ask(session, pool, 2, 64 * GIB, NS_FOREVER, 0);
    grow(pool, 64 * GIB, 0);
    expect_granted(core, session, 2);
    configure(pool, 200 * GIB, 100 * GIB, 200 * GIB, 0, 0);
    grow(pool, 64 * GIB, 0);
    grow(pool, 64 * GIB, 0);
    grow(pool, 8 * GIB, 0);
    expect_no_growth(core);
    ask(session, pool, 3, 200 * GIB + 512, NS_FOREVER, 0);
    assert_non_null(strstr(expect_refused(core, session, 3, PROTO_E_TOO_LARGE), "which may grow to 200 GiB"));
}

static void a_pool_does_not_grow_beside_what_is_free(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * GIB, POOL_STEP_BY_SIZE, 0);
    struct session *session = open_session(core, 1, UID_A);

    struct lease *lease = take_growing(session, pool, 64 * MIB, 0);
    struct segment *segment = lease->block->segment;
    describe(lease, NULL);
    assert_int_equal(release(session, name_of(lease), 0), 0);
    for (unsigned i = 0; i < 8; i++) { /* whatever the size */
        lease = take(session, pool, (i % 2 == 0 ? 64 : 6) * MIB, 0);
        assert_ptr_equal(lease->block->segment, segment);
        assert_int_equal(release(session, name_of(lease), 0), 0);
    }
    expect_no_growth(core);
}

static void growth_is_of_at_most_what_the_limit_leaves(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 20 * MIB + 12345, 16 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    take_growing(session, pool, 16 * MIB, 0);
    ask(session, pool, 1, 3 * MIB, NS_FOREVER, 0);
    grow(pool, 4 * MIB, 0);
    expect_granted(core, session, 1);
    assert_int_equal(pool->reserved_bytes, 20 * MIB);

    ask(session, pool, 2, 2 * MIB, NS_FOREVER, 0);
    expect_no_growth(core);
    expect_no_answer(core);
}

static void free_memory_is_leased_without_growth(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    take_growing(session, pool, MIB, 0);
    for (unsigned i = 0; i < 7; i++)
        take(session, pool, MIB, 0);
    expect_no_growth(core);
    assert_int_equal(pool->leased_bytes, 8 * MIB);
    assert_int_equal(pool_free_bytes(pool), 0);
}

static void one_growth_is_under_way_at_a_time(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    ask(session, pool, 1, 8 * MIB, NS_FOREVER, 0);
    ask(session, pool, 2, 8 * MIB, NS_FOREVER, 0);
    uint64_t size = expect_growth(core, pool);
    expect_no_growth(core);
    ask(session, pool, 3, 8 * MIB, NS_FOREVER, 0);
    tick(core, 5);
    expect_no_growth(core);
    segment_made(pool, size, 0);
    expect_granted(core, session, 1);
    expect_no_answer(core);
    grow(pool, 8 * MIB, 0); /* for the second */
    expect_granted(core, session, 2);
    grow(pool, 8 * MIB, 0);
    expect_granted(core, session, 3);
    expect_no_growth(core);
}

static void pools_grow_beside_each_other(void **state) {
    struct core *core = *state;
    struct pool *first = add_pool(core, 64 * MIB, 8 * MIB, 0), *second = add_pool(core, 64 * MIB, 4 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    ask(session, first, 1, MIB, NS_FOREVER, 0);
    ask(session, second, 2, MIB, NS_FOREVER, 0);
    assert_int_equal(expect_growth(core, first), 8 * MIB);
    assert_int_equal(expect_growth(core, second), 4 * MIB);
    segment_made(second, 4 * MIB, 0);
    expect_granted(core, session, 2);
    segment_made(first, 8 * MIB, 0);
    expect_granted(core, session, 1);
}

static void those_who_wait_are_served_in_order_of_arrival(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 8 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A);

    for (uint64_t request = 1; request <= 4; request++)
        ask(request % 2 ? one : two, pool, request, 2 * MIB, NS_FOREVER, request);
    assert_int_equal(pool->waiters.count, 4);
    grow(pool, 8 * MIB, 9);
    for (uint64_t request = 1; request <= 4; request++)
        expect_granted(core, request % 2 ? one : two, request);
    assert_int_equal(pool->waiters.count, 0);
}

static void a_release_serves_the_one_who_waits(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A);

    struct lease *lease = take_growing(one, pool, 8 * MIB, 0);
    ask(two, pool, 1, 4 * MIB, NS_FOREVER, 0);
    expect_no_answer(core);
    assert_int_equal(release(one, name_of(lease), 1), 0);
    expect_granted(core, two, 1);
}

static void more_than_the_limit_is_refused_as_too_large(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    ask(session, pool, 1, 16 * MIB + 1, NS_FOREVER, 0);
    const char *text = expect_refused(core, session, 1, PROTO_E_TOO_LARGE);
    assert_non_null(strstr(text, "test pool"));
    assert_non_null(strstr(text, "16 MiB"));
    expect_no_growth(core);
    ask(session, pool, 2, 16 * MIB, NS_FOREVER, 0);
    grow(pool, 16 * MIB, 0);
    expect_granted(core, session, 2);
    assert_int_equal(pool->stats.n_failures, 1);
}

static void one_who_waits_is_refused_as_too_large_when_the_limit_sinks(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 8 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A);

    take_growing(one, pool, 2 * MIB, 0);
    ask(two, pool, 1, 12 * MIB, NS_FOREVER, 0);
    expect_no_growth(core);
    expect_no_answer(core);
    configure(pool, 8 * MIB, 8 * MIB, 0, 0, 1);
    expect_refused(core, two, 1, PROTO_E_TOO_LARGE);
    assert_int_equal(pool->reserved_bytes, 8 * MIB); /* nothing is taken away */
}

static void at_once_finds_nothing_but_sets_growth_going(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    ask(session, pool, 1, MIB, 0, 0);
    expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    grow(pool, 8 * MIB, 0);
    expect_no_answer(core); /* it was answered */
    take(session, pool, MIB, 0);
}

static void nobody_waits_beyond_the_deadline(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    assert_int_equal(core_next_tick_ns(core), NS_FOREVER);
    take_growing(session, pool, 8 * MIB, 0);
    ask(session, pool, 1, MIB, NS_FOREVER, 1000);
    assert_true(core_next_tick_ns(core) >= LONG_WAIT_NS);
    ask(session, pool, 2, MIB, 500, 1000);
    ask(session, pool, 3, MIB, 200, 1000);
    assert_int_equal(core_next_tick_ns(core), 1200);
    tick(core, 1199);
    expect_no_answer(core);
    tick(core, 1200);
    expect_refused(core, session, 3, PROTO_E_EXHAUSTED);
    expect_no_answer(core);
    assert_int_equal(core_next_tick_ns(core), 1500);
    tick(core, 9999);
    expect_refused(core, session, 2, PROTO_E_EXHAUSTED);
    expect_no_answer(core);
    assert_true(core_next_tick_ns(core) >= LONG_WAIT_NS);
    assert_int_equal(pool->waiters.count, 1);
}

static void a_deadline_beyond_the_end_of_time_is_none(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    take_growing(session, pool, 8 * MIB, 0);
    ask(session, pool, 1, MIB, NS_FOREVER - 5, 1000);
    tick(core, 2000);
    expect_no_answer(core);
    assert_true(core_next_tick_ns(core) >= LONG_WAIT_NS);
}

static void a_failed_step_is_followed_by_exactly_what_is_needed(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 32 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    ask(session, pool, 1, 3 * MIB, NS_FOREVER, 0);
    assert_int_equal(expect_growth(core, pool), 32 * MIB);
    growth_failed(pool, "out of memory", 0);
    expect_no_answer(core);
    grow(pool, 4 * MIB, 0); /* at once: no retry time passes */
    expect_granted(core, session, 1);
    ask(session, pool, 2, 8 * MIB, NS_FOREVER, 0);
    assert_int_equal(expect_growth(core, pool), 32 * MIB); /* it worked: whole steps again */
}

static void without_hope_those_who_wait_are_refused_with_the_drivers_error(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    ask(session, pool, 1, 8 * MIB, NS_FOREVER, 0);
    ask(session, pool, 2, 2 * MIB, NS_FOREVER, 0);
    expect_growth(core, pool);
    growth_failed(pool, "cudaMalloc failed with cudaErrorMemoryAllocation", 0);
    assert_non_null(strstr(expect_refused(core, session, 1, PROTO_E_DRIVER), "cudaErrorMemoryAllocation"));
    assert_non_null(strstr(expect_refused(core, session, 2, PROTO_E_DRIVER), "cudaErrorMemoryAllocation"));
    expect_no_growth(core);
}

static void while_others_hold_leases_growth_is_tried_again_after_a_while(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 8 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A);

    struct lease *lease = take_growing(one, pool, 8 * MIB, 0);
    describe(lease, NULL);
    ask(two, pool, 1, 8 * MIB, NS_FOREVER, 100);
    expect_growth(core, pool);
    growth_failed(pool, "out of memory", 100);
    expect_no_answer(core);
    expect_no_growth(core);
    assert_int_equal(core_next_tick_ns(core), 100 + GROW_RETRY_NS);
    tick(core, 100 + GROW_RETRY_NS - 1);
    expect_no_growth(core);
    tick(core, 100 + GROW_RETRY_NS);
    assert_int_equal(expect_growth(core, pool), 8 * MIB);
    growth_failed(pool, "out of memory", 100 + GROW_RETRY_NS);
    expect_no_answer(core);
    assert_int_equal(release(one, name_of(lease), 200 + GROW_RETRY_NS), 0); /* what came back will do */
    expect_granted(core, two, 1);
}

static void the_last_release_without_hope_ends_the_waiting(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 2 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_B);

    struct lease *lease = take_growing(one, pool, 2 * MIB, 0);
    describe(lease, NULL);
    ask(two, pool, 1, 8 * MIB, NS_FOREVER, 0);
    expect_growth(core, pool);
    growth_failed(pool, "out of memory", 0);
    expect_no_answer(core);
    assert_int_equal(release(one, name_of(lease), 1), 0);
    expect_refused(core, two, 1, PROTO_E_DRIVER);
}

static void a_failed_growth_frees_idle_segments_and_tries_again(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 8 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_B);

    take_growing(one, pool, 8 * MIB, 0);
    close_session(one, 0); /* its segment is idle and unmapped now */
    ask(two, pool, 1, 8 * MIB, NS_FOREVER, 0);
    expect_growth(core, pool);
    growth_failed(pool, "out of memory", 0);
    expect_no_answer(core);
    expect_no_growth(core); /* not before the driver has it back */
    assert_int_equal(retire_all(core, 0), 8 * MIB);
    grow(pool, 8 * MIB, 0);
    expect_granted(core, two, 1);
}

static void what_became_idle_since_the_driver_refused_is_hope(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 8 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_B);

    describe(take_growing(one, pool, 8 * MIB, 0), NULL);
    ask(two, pool, 1, 8 * MIB, NS_FOREVER, 0);
    expect_growth(core, pool);
    growth_failed(pool, "out of memory", 0);
    expect_no_answer(core);
    close_session(one, 1); /* no session holds anything now, and its segment can go back */
    expect_no_answer(core);
    tick(core, GROW_RETRY_NS);
    expect_growth(core, pool);
    growth_failed(pool, "out of memory", GROW_RETRY_NS);
    expect_no_answer(core);
    assert_int_equal(retire_all(core, GROW_RETRY_NS), 8 * MIB);
    grow(pool, 8 * MIB, GROW_RETRY_NS);
    expect_granted(core, two, 1);
}

static void the_reserve_is_made_at_the_start(void **state) {
    struct core *core = *state;
    struct pool *pool = add_starting_pool(core, 64 * MIB, 8 * MIB, 20 * MIB);

    expect_no_growth(core);
    core_pool_ready(pool, 0);
    grow(pool, 8 * MIB, 0);
    grow(pool, 8 * MIB, 0);
    grow(pool, 4 * MIB, 0); /* what is missing, not a step more */
    expect_no_growth(core);
    assert_int_equal(pool->reserved_bytes, 20 * MIB);
}

static void a_reserve_that_is_raised_is_made_and_one_that_sinks_is_kept(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 8 * MIB, 0);

    configure(pool, 16 * MIB, 8 * MIB, 8 * MIB, 0, 0);
    grow(pool, 8 * MIB, 0);
    configure(pool, 64 * MIB, 8 * MIB, 64 * MIB, 0, 0);
    assert_int_equal(expect_growth(core, pool), 8 * MIB);
    configure(pool, 16 * MIB, 8 * MIB, 0, 0, 0);
    segment_made(pool, 8 * MIB, 0);
    expect_no_growth(core);
    expect_no_retirement(core);
    assert_int_equal(pool->reserved_bytes, 16 * MIB);
}

static void a_reserve_that_the_driver_refuses_is_tried_again_after_a_while(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 8 * MIB, 8 * MIB);

    expect_growth(core, pool);
    growth_failed(pool, "out of memory", 7);
    expect_no_growth(core);
    assert_int_equal(core_next_tick_ns(core), 7 + GROW_RETRY_NS);
    tick(core, 7 + GROW_RETRY_NS);
    grow(pool, 8 * MIB, 7 + GROW_RETRY_NS);
    assert_int_equal(core_next_tick_ns(core), NS_FOREVER);
}

static void a_raised_limit_lets_those_who_wait_have_growth(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    take_growing(session, pool, 8 * MIB, 0);
    ask(session, pool, 1, 8 * MIB, NS_FOREVER, 0);
    expect_no_growth(core);
    configure(pool, 16 * MIB, 8 * MIB, 0, 0, 0);
    grow(pool, 8 * MIB, 0);
    expect_granted(core, session, 1);
}

static void a_request_that_does_not_wait_ends_no_other_that_waits_for_the_driver(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 2 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_B);

    ask(one, pool, 1, 8 * MIB, 0, 0);
    expect_refused(core, one, 1, PROTO_E_EXHAUSTED);
    expect_growth(core, pool);
    growth_failed(pool, "out of memory", 0);
    ask(one, pool, 2, 8 * MIB, NS_FOREVER, 1); /* until growth is tried again */
    expect_no_answer(core);
    ask(two, pool, 3, 8 * MIB, 0, 1);
    expect_refused(core, two, 3, PROTO_E_EXHAUSTED);
    tick(core, 1);
    expect_no_answer(core);
    tick(core, core_next_tick_ns(core));
    grow(pool, 8 * MIB, NS_PER_S);
    expect_granted(core, one, 2);
}

/* --- a device that is not ready, has failed or is lost --- */

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
    assert_int_equal(share_lease(session, &name, 0, &fresh, &token), 0);
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
        CORE_TEST(growth_is_of_at_least_the_step),
        CORE_TEST(a_pool_without_a_step_grows_by_what_is_asked_for),
        CORE_TEST(host_memory_is_made_and_lent_in_pieces_of_64_gib_at_most),
        CORE_TEST(a_pool_does_not_grow_beside_what_is_free),
        CORE_TEST(growth_is_of_at_most_what_the_limit_leaves),
        CORE_TEST(free_memory_is_leased_without_growth),
        CORE_TEST(one_growth_is_under_way_at_a_time),
        CORE_TEST(pools_grow_beside_each_other),
        CORE_TEST(those_who_wait_are_served_in_order_of_arrival),
        CORE_TEST(a_release_serves_the_one_who_waits),
        CORE_TEST(more_than_the_limit_is_refused_as_too_large),
        CORE_TEST(one_who_waits_is_refused_as_too_large_when_the_limit_sinks),
        CORE_TEST(at_once_finds_nothing_but_sets_growth_going),
        CORE_TEST(nobody_waits_beyond_the_deadline),
        CORE_TEST(a_deadline_beyond_the_end_of_time_is_none),
        CORE_TEST(a_failed_step_is_followed_by_exactly_what_is_needed),
        CORE_TEST(without_hope_those_who_wait_are_refused_with_the_drivers_error),
        CORE_TEST(while_others_hold_leases_growth_is_tried_again_after_a_while),
        CORE_TEST(the_last_release_without_hope_ends_the_waiting),
        CORE_TEST(a_failed_growth_frees_idle_segments_and_tries_again),
        CORE_TEST(what_became_idle_since_the_driver_refused_is_hope),
        CORE_TEST(the_reserve_is_made_at_the_start),
        CORE_TEST(a_reserve_that_is_raised_is_made_and_one_that_sinks_is_kept),
        CORE_TEST(a_reserve_that_the_driver_refuses_is_tried_again_after_a_while),
        CORE_TEST(a_raised_limit_lets_those_who_wait_have_growth),
        CORE_TEST(a_request_that_does_not_wait_ends_no_other_that_waits_for_the_driver),
        CORE_TEST(before_the_device_is_ready_requests_wait),
        CORE_TEST(a_failed_pool_refuses_with_the_reason),
        CORE_TEST(a_lost_pool_refuses_who_waits_and_lends_no_more),
        CORE_TEST(a_growth_that_nobody_has_begun_ends_with_its_pool),
        CORE_TEST(a_refusal_names_the_call_that_its_pool_waits_for),
        CORE_TEST(an_unknown_pool_is_refused),
    };
    return cmocka_run_group_tests_name("how pools grow and serve", tests, NULL, NULL);
}
