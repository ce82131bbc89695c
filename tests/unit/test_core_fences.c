/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of memory that is released behind a fence: it is lent again when the word has reached the value and
 * not before, and a request that needs it gets it then.
 */
#include <stdatomic.h>

#include "core_fixture.h"

static void clear_fences(void) {
    for (unsigned i = 0; i < PROTO_PAGE_FENCES; i++)
        atomic_store(&page.fences[i], 0);
}

static void memory_behind_a_fence_is_nobodys_until_the_word_arrives(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 4 * MIB, 0);
    struct session *session = open_with_page(core, 1, UID_A), *other = open_session(core, 2, UID_A);
    struct proto_info info;
    struct proto_token token;
    struct lease *split_off = NULL;

    struct lease *lease = take_growing(session, pool, 4 * MIB, 0);
    const struct proto_lease_name name = name_of(lease);
    const struct proto_token fresh = token_of(1);
    assert_int_equal(release_behind(session, name, 3, 7), 0);
    assert_int_equal(pool->fenced_bytes, 4 * MIB);
    assert_int_equal(pool->leased_bytes, 0);
    assert_int_equal(pool_free_bytes(pool), 0);
    assert_int_equal(session->fenced_bytes, 4 * MIB);
    assert_int_equal(session->leased_bytes, 0);
    assert_int_equal(session->pools[0].leased_bytes, 0);

    /* its name means nothing any more */
    assert_int_equal(release(session, name, 0), PROTO_E_STALE);
    assert_int_equal(release_behind(session, name, 3, 7), PROTO_E_STALE);
    assert_int_equal(split(session, name, 0, MIB, &split_off), PROTO_E_STALE);
    assert_int_equal(core_query(session, &name, &info), PROTO_E_STALE);
    assert_int_equal(share_lease(session, &name, 0, &fresh, &token), PROTO_E_STALE);

    ask(other, pool, 1, MIB, 0, 0);
    assert_non_null(
        strstr(expect_refused(core, other, 1, PROTO_E_EXHAUSTED), "4 MiB released and still in use"));
    ask(session, pool, 2, MIB, 0, 0); /* nor is it its own session's */
    expect_refused(core, session, 2, PROTO_E_EXHAUSTED);
    arrive(3, 6);
    arrive(2, 100);
    ask(other, pool, 3, MIB, 0, 0);
    expect_refused(core, other, 3, PROTO_E_EXHAUSTED);

    arrive(3, 7);
    assert_int_equal(take(other, pool, 4 * MIB, 0)->block->offset_bytes, 0);
    assert_int_equal(pool->fenced_bytes, 0);
    assert_int_equal(session->fenced_bytes, 0);
    assert_int_equal(session->n_leases, 0);
}

static void a_fence_that_is_ready_is_none(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 4 * MIB, 0);
    struct session *session = open_with_page(core, 1, UID_A);

    struct lease *lease = take_growing(session, pool, 4 * MIB, 0);
    arrive(0, 5);
    assert_int_equal(release_part_behind(session, name_of(lease), 0, MIB, 0, 4, 0), 0);
    assert_int_equal(pool_free_bytes(pool), MIB);
    assert_int_equal(release_behind(session, name_of(lease), 0, 5), 0);
    assert_int_equal(pool_free_bytes(pool), 4 * MIB);
    assert_int_equal(pool->n_leases, 0);

    /* words go round */
    lease = take(session, pool, MIB, 0);
    arrive(1, UINT64_MAX - 1);
    assert_int_equal(release_behind(session, name_of(lease), 1, 2), 0);
    assert_int_equal(pool->fenced_bytes, MIB);
    arrive(1, 2);
    take(session, pool, 4 * MIB, 0);
}

static void without_a_page_there_are_no_fences(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 4 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    struct lease *lease = take_growing(session, pool, MIB, 0);
    assert_int_equal(release_behind(session, name_of(lease), 0, 1), PROTO_E_INVALID);
    assert_int_equal(release(session, name_of(lease), 0), 0);
}

static void a_part_waits_alone(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 4 * MIB, 0);
    struct session *session = open_with_page(core, 1, UID_A);

    struct lease *lease = take_growing(session, pool, 4 * MIB, 0);
    assert_int_equal(release_part_behind(session, name_of(lease), 2 * MIB, MIB, 0, 1, 0), 0);
    assert_int_equal(query(session, lease).capacity_bytes, 4 * MIB);
    assert_int_equal(pool->leased_bytes, 3 * MIB);
    assert_int_equal(pool->fenced_bytes, MIB);
    assert_int_equal(session->n_leases, 2);
    assert_int_equal(release_part_behind(session, name_of(lease), 2 * MIB, MIB, 0, 2, 0), PROTO_E_INVALID);
    assert_int_equal(release_part_behind(session, name_of(lease), 3 * MIB, 2 * MIB, 0, 2, 0),
                     PROTO_E_INVALID);
    ask(session, pool, 1, MIB, 0, 0);
    expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    arrive(0, 1);
    assert_int_equal(take(session, pool, MIB, 0)->block->offset_bytes, 2 * MIB);

    /* what is left, named as a part: the lease is gone at once */
    assert_int_equal(release_part_behind(session, name_of(lease), 3 * MIB, MIB, 0, 2, 0), 0);
    const struct proto_lease_name name = name_of(lease);
    assert_int_equal(release_part_behind(session, name, 0, 2 * MIB, 0, 3, 0), 0);
    assert_int_equal(release(session, name, 0), PROTO_E_STALE);
    assert_int_equal(pool->leased_bytes, MIB);
    assert_int_equal(pool->fenced_bytes, 3 * MIB);
}

static void a_shared_block_waits_for_all_who_used_it(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 4 * MIB, 0);
    struct session *one = open_with_page(core, 1, UID_A), *two = open_with_page(core, 2, UID_A);
    const struct proto_token fresh = token_of(1);
    struct proto_token token;
    struct lease *attached = NULL;

    struct lease *lease = take_growing(one, pool, 4 * MIB, 0);
    const struct proto_lease_name name = name_of(lease);
    assert_int_equal(share_lease(one, &name, 0, &fresh, &token), 0);
    assert_int_equal(core_attach(two, &token, &attached), 0);
    assert_int_equal(release_part_behind(one, name, 0, MIB, 0, 1, 0), PROTO_E_SHARED);
    assert_int_equal(release_part_behind(one, name, 0, 4 * MIB, 0, 1, 0), PROTO_E_SHARED);
    assert_int_equal(release_behind(one, name, 0, 1), 0);
    assert_int_equal(pool->leased_bytes, 4 * MIB); /* the other has it */
    assert_int_equal(pool->fenced_bytes, 0);
    assert_int_equal(one->fenced_bytes, 4 * MIB);
    assert_int_equal(query(two, attached).holders, 1);
    assert_int_equal(release_behind(two, name_of(attached), 1, 1), 0);
    assert_int_equal(pool->fenced_bytes, 4 * MIB);
    assert_int_equal(core_attach(two, &token, &attached), PROTO_E_NO_TOKEN); /* no session has it any more */

    arrive(1, 1);
    ask(two, pool, 1, MIB, 0, 0);
    expect_refused(core, two, 1, PROTO_E_EXHAUSTED);
    assert_int_equal(two->fenced_bytes, 0);
    arrive(0, 1);
    take(two, pool, 4 * MIB, 0);
}

static void values_out_of_order_delay_and_never_hand_on_early(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 4 * MIB, 0);
    struct session *session = open_with_page(core, 1, UID_A);

    struct lease *lease = take_growing(session, pool, 4 * MIB, 0);
    assert_int_equal(release_part_behind(session, name_of(lease), 0, MIB, 0, 9, 0), 0);
    assert_int_equal(release_part_behind(session, name_of(lease), MIB, MIB, 0, 3, 0), 0);
    assert_int_equal(release_part_behind(session, name_of(lease), 2 * MIB, MIB, 0, 12, 0), 0);
    arrive(0, 3);
    ask(session, pool, 1, MIB, 0, 0);
    expect_refused(core, session, 1, PROTO_E_EXHAUSTED); /* behind 9 */
    arrive(0, 9);
    assert_int_equal(take(session, pool, 2 * MIB, 0)->block->offset_bytes, 0);
    ask(session, pool, 2, MIB, 0, 0);
    expect_refused(core, session, 2, PROTO_E_EXHAUSTED);
    arrive(0, 12);
    assert_int_equal(take(session, pool, MIB, 0)->block->offset_bytes, 2 * MIB);
}

static void who_waits_is_served_soon_after_the_word_arrives(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 4 * MIB, 0);
    struct session *session = open_with_page(core, 1, UID_A), *other = open_session(core, 2, UID_A);

    struct lease *lease = take_growing(session, pool, 4 * MIB, 0);
    assert_int_equal(release_behind(session, name_of(lease), 0, 1), 0);
    assert_int_equal(core_next_tick_ns(core), NS_FOREVER); /* no request needs it */
    ask(other, pool, 1, 3 * MIB, NS_FOREVER, 5 * NS_PER_MS);
    uint64_t now_ns = 5 * NS_PER_MS;
    for (unsigned i = 0; i < 100; i++) {
        uint64_t next_ns = core_next_tick_ns(core);
        assert_true(next_ns > now_ns && next_ns <= now_ns + FENCE_INTERVAL_NS);
        now_ns = next_ns;
        tick(core, now_ns);
        expect_no_answer(core);
    }
    arrive(0, 1);
    now_ns = core_next_tick_ns(core);
    tick(core, now_ns);
    expect_granted(core, other, 1);
    assert_true(core_next_tick_ns(core) >= LONG_WAIT_NS);

    /* also when the release comes later than the request */
    struct lease *second = take(session, pool, MIB, now_ns);
    ask(other, pool, 2, MIB, NS_FOREVER, now_ns);
    assert_true(core_next_tick_ns(core) >= LONG_WAIT_NS);
    assert_int_equal(release_part_behind(session, name_of(second), 0, 0, 0, 2, now_ns), 0);
    assert_true(core_next_tick_ns(core) <= now_ns + FENCE_INTERVAL_NS);
    arrive(0, 2);
    tick(core, now_ns + FENCE_INTERVAL_NS);
    expect_granted(core, other, 2);
}

static void fences_are_looked_at_before_a_deadline_refuses(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 4 * MIB, 0);
    struct session *session = open_with_page(core, 1, UID_A);

    struct lease *lease = take_growing(session, pool, 4 * MIB, 0);
    assert_int_equal(release_behind(session, name_of(lease), 0, 1), 0);
    ask(session, pool, 1, MIB, FENCE_INTERVAL_NS / 2, 0);
    arrive(0, 1);
    tick(core, FENCE_INTERVAL_NS / 2);
    expect_granted(core, session, 1);
}

static void a_pool_does_not_grow_for_what_lies_behind_a_ready_fence(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 4 * MIB, 0);
    struct session *session = open_with_page(core, 1, UID_A);

    struct lease *lease = take_growing(session, pool, 4 * MIB, 0);
    assert_int_equal(release_behind(session, name_of(lease), 0, 1), 0);
    arrive(0, 1);
    take(session, pool, 4 * MIB, 0);
    expect_no_growth(core);
}

static void nor_does_it_grow_ahead_for_that(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 4 * MIB, 0);
    struct session *session = open_with_page(core, 1, UID_A);

    struct lease *lease = take_growing(session, pool, 2 * MIB, 0), *other = take(session, pool, MIB, 0);
    assert_int_equal(release_behind(session, name_of(lease), 0, 1), 0);
    pool->low_water_bytes = 2 * MIB;
    arrive(0, 1);
    take(session, pool, MIB, 0); /* nothing would be left, but for what the fence has let go of */
    expect_no_growth(core);
    assert_int_equal(pool->fenced_bytes, 0);
    assert_int_equal(release_behind(session, name_of(other), 0, 2), 0);
    take(session, pool, MIB, 0);
    expect_growth(core, pool);
}

static void nobody_is_hopeless_while_memory_is_behind_a_fence(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 4 * MIB, 0);
    struct session *session = open_with_page(core, 1, UID_A);

    struct lease *lease = take_growing(session, pool, 4 * MIB, 0);
    describe(lease, NULL);
    assert_int_equal(release_behind(session, name_of(lease), 0, 1), 0);
    ask(session, pool, 1, 4 * MIB, NS_FOREVER, 0);
    expect_growth(core, pool);
    growth_failed(pool, "cudaErrorMemoryAllocation", 0);
    expect_no_answer(core);
    arrive(0, 1);
    tick(core, FENCE_INTERVAL_NS);
    expect_granted(core, session, 1);
}

static void a_lost_session_keeps_its_fenced_memory_in_quarantine(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 4 * MIB, 0);
    struct session *session = open_with_page(core, 1, UID_A), *other = open_session(core, 2, UID_A);

    struct lease *lease = take_growing(session, pool, 4 * MIB, 0);
    assert_int_equal(release_part_behind(session, name_of(lease), 0, MIB, 0, 1, 0), 0);
    lose_session(session, 0);
    assert_int_equal(pool->quarantined_bytes, 4 * MIB);
    assert_int_equal(pool->fenced_bytes, 0);
    assert_int_equal(session->fenced_bytes, 0);
    assert_int_equal(session->leased_bytes, 4 * MIB);
    arrive(0, 1); /* any process may write it: the session's may be dead and its GPU work not */
    ask(other, pool, 1, MIB, 0, 0);
    expect_refused(core, other, 1, PROTO_E_EXHAUSTED);
    ask(other, pool, 2, 4 * MIB, NS_FOREVER, 0);
    session_gone(session, 0);
    expect_granted(core, other, 2);
}

static void a_shared_block_in_quarantine_and_behind_a_fence_waits_for_both(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 4 * MIB, 0);
    const struct proto_token fresh = token_of(1);
    struct proto_token token;

    for (unsigned gone_first = 0; gone_first < 2; gone_first++) {
        struct session *one = open_with_page(core, 1, UID_A), *two = open_with_page(core, 2, UID_A);
        struct lease *lease = take_growing(one, pool, 4 * MIB, 0), *attached = NULL;
        const struct proto_lease_name name = name_of(lease);
        assert_int_equal(share_lease(one, &name, 0, &fresh, &token), 0);
        assert_int_equal(core_attach(two, &token, &attached), 0);
        clear_fences();
        assert_int_equal(release_behind(two, name_of(attached), 0, 1), 0);
        lose_session(one, 0);
        assert_int_equal(pool->quarantined_bytes, 4 * MIB);
        assert_int_equal(pool->fenced_bytes, 0);
        if (gone_first)
            session_gone(one, 0);
        else
            arrive(0, 1);
        assert_int_equal(pool->fenced_bytes, gone_first ? 4 * MIB : 0);
        ask(two, pool, 1, MIB, 0, 0);
        expect_refused(core, two, 1, PROTO_E_EXHAUSTED);
        if (gone_first)
            arrive(0, 1);
        else
            session_gone(one, 0);
        take(two, pool, MIB, 0);
        close_session(two, 0);
    }
}

static void a_farewell_returns_fenced_memory(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 4 * MIB, 0);
    struct session *session = open_with_page(core, 1, UID_A), *other = open_session(core, 2, UID_A);

    struct lease *lease = take_growing(session, pool, 4 * MIB, 0);
    assert_int_equal(release_behind(session, name_of(lease), 511, 1), 0);
    ask(other, pool, 1, 4 * MIB, NS_FOREVER, 0);
    close_session(session, 0);
    expect_granted(core, other, 1);
}

static void fenced_leases_count_until_they_are_gone(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 4 * MIB, 0), *second = add_pool(core, 4 * MIB, 4 * MIB, 0);
    struct session *session = open_with_page(core, 1, UID_A);
    struct lease *split_off = NULL;

    core->session_leases_limit = 2;
    struct lease *lease = take_growing(session, pool, 4 * MIB, 0);
    assert_int_equal(release_part_behind(session, name_of(lease), 0, MIB, 0, 1, 0), 0);
    assert_int_equal(release_part_behind(session, name_of(lease), MIB, MIB, 0, 2, 0), PROTO_E_LIMIT);
    assert_int_equal(split(session, name_of(lease), MIB, MIB, &split_off), PROTO_E_LIMIT);
    ask(session, second, 1, MIB, NS_FOREVER, 0);
    expect_refused(core, session, 1, PROTO_E_LIMIT);
    assert_int_equal(pool->fenced_bytes, MIB);

    arrive(0, 1); /* seen when a lease more is wanted, in whatever pool */
    assert_int_equal(release_part_behind(session, name_of(lease), MIB, MIB, 0, 2, 0), 0);
    assert_int_equal(pool->fenced_bytes, MIB);
    assert_int_equal(pool_free_bytes(pool), MIB);
    arrive(0, 2);
    assert_int_equal(split(session, name_of(lease), 2 * MIB, MIB, &split_off), 0);
    assert_int_equal(release_behind(session, name_of(split_off), 0, 3), 0); /* a whole lease needs no other */
    struct session *waiter = open_session(core, 2, UID_A);
    ask(waiter, pool, 2, 3 * MIB, NS_FOREVER, 0);
    expect_no_answer(core);
    arrive(0, 3);
    /* another lease is wanted, in another pool; the memory that comes back by that serves the waiter at once
     */
    ask(session, second, 3, MIB, NS_FOREVER, 0);
    expect_granted(core, waiter, 2);
    grow(second, 4 * MIB, 0);
    expect_granted(core, session, 3);
}

static int release_one_way(struct session *session, struct proto_lease_name name, uint64_t offset,
                           uint64_t size, uint32_t fence, uint64_t value) {
    const struct proto_release part = {.lease = name.lease,
                                       .generation = name.generation,
                                       .offset_bytes = offset,
                                       .size_bytes = size,
                                       .fence = fence,
                                       .fence_value = value};
    int r = core_release_one_way(session, &part, 0);
    assert_true(core_is_valid(session->core));
    return r;
}

/* A refusal would reach no client. */
static void parts_beyond_the_limit_stay_with_their_lease_one_way(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 4 * MIB, 0);
    struct session *session = open_with_page(core, 1, UID_A);
    struct lease *part = NULL;

    core->session_leases_limit = 2;
    const struct proto_lease_name name = name_of(take_growing(session, pool, MIB, 0));
    assert_int_equal(release_part_behind(session, name, 0, 1024, 0, 1, 0), 0);
    for (unsigned i = 1; i < 1000; i++) {
        assert_int_equal(release_one_way(session, name, i * 1024, 1024, 2, 1), 0);
        assert_int_equal(session->n_leases, 2);
        assert_int_equal(session->n_ranges, 2);
    }
    assert_int_equal(pool->fenced_bytes, 1024);
    assert_int_equal(pool->leased_bytes, MIB - 1024);
    assert_int_equal(split(session, name, MIB - 1024, 512, &part), PROTO_E_LIMIT);
    /* all that the client still has is the lease's end: what stayed goes with it, and waits for its fence */
    assert_int_equal(release_one_way(session, name, 1000 * 1024, MIB - 1000 * 1024, 0, 0), 0);
    assert_int_equal(release(session, name, 0), PROTO_E_STALE);
    assert_int_equal(pool->fenced_bytes, MIB);
    arrive(0, 1);
    core_poll_fences(core);
    assert_int_equal(pool->fenced_bytes, MIB - 1024);
    arrive(1, 1);
    core_poll_fences(core);
    assert_int_equal(pool_free_bytes(pool), 4 * MIB);
    assert_int_equal(session->n_leases, 0);
}

/* So they come back when the stream is done with them, whatever the client keeps of the lease. */
static void parts_beyond_the_limit_join_the_last_that_waits_for_their_word(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 4 * MIB, 0);
    struct session *session = open_with_page(core, 1, UID_A);

    core->session_leases_limit = 3;
    const struct proto_lease_name name = name_of(take_growing(session, pool, MIB, 0));
    assert_int_equal(release_part_behind(session, name, 8192, 512, 0, 5, 0), 0);
    /* it waits for no less: above, below and beside; but a later fence would put the only one off */
    assert_int_equal(release_part_behind(session, name, 4096, 512, 1, 1, 0), 0);
    assert_int_equal(release_one_way(session, name, 16384, 512, 1, 5), 0);
    assert_int_equal(release_one_way(session, name, 0, 512, 1, 4), 0);
    assert_int_equal(release_one_way(session, name, 8704, 512, 1, 5), 0);
    assert_int_equal(release_one_way(session, name, 512, 512, 1, 5), 0);
    assert_int_equal(pool->fenced_bytes, 6 * 512);
    assert_int_equal(release_one_way(session, name, 20480, 512, 1, 6), 0);
    assert_int_equal(pool->fenced_bytes, 6 * 512);
    arrive(0, 5);
    core_poll_fences(core);
    assert_int_equal(pool->fenced_bytes, 512);
    /* of two it puts off the last */
    assert_int_equal(release_part_behind(session, name, 24576, 512, 1, 2, 0), 0);
    assert_int_equal(release_one_way(session, name, 28672, 512, 2, 3), 0);
    assert_int_equal(pool->fenced_bytes, 3 * 512);
    arrive(1, 2);
    core_poll_fences(core);
    assert_int_equal(pool->fenced_bytes, 2 * 512);
    arrive(1, 3);
    core_poll_fences(core);
    assert_int_equal(pool->fenced_bytes, 0);
    assert_int_equal(pool->leased_bytes, MIB - 8 * 512); /* with what stayed */
    assert_int_equal(release_behind(session, name, 2, 1), 0);
    arrive(2, 1);
    core_poll_fences(core);
    assert_int_equal(pool->fenced_bytes, MIB - 8 * 512);
    arrive(0, 6);
    core_poll_fences(core);
    assert_int_equal(pool->fenced_bytes, 0);
}

static void what_stayed_waits_for_all_its_fences(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 4 * MIB, 0);
    struct session *session = open_with_page(core, 1, UID_A);

    core->session_leases_limit = 1;
    for (unsigned last = 0; last < 4;
         last++) { /* the fence that comes last, of words 0 to 2 and the whole's */
        clear_fences();
        const struct proto_lease_name name = name_of(take_growing(session, pool, 4 * MIB, 0));
        assert_int_equal(release_one_way(session, name, 0, MIB, 3, 9), 0);
        assert_int_equal(release_one_way(session, name, MIB, 512, 1, 5), 0);
        assert_int_equal(release_one_way(session, name, 2 * MIB, 512, 1, 4), 0); /* overtaken */
        assert_int_equal(release_one_way(session, name, 3 * MIB, 512, 2, 7), 0);
        assert_int_equal(release_behind(session, name, 3, 1), 0);
        for (unsigned i = 1; i < 4; i++)
            arrive((last + i) % 4, 9);
        core_poll_fences(core);
        core_poll_fences(core);
        assert_int_equal(pool->fenced_bytes, 4 * MIB);
        arrive(last, 9);
        core_poll_fences(core);
        core_poll_fences(core);
        assert_int_equal(pool->fenced_bytes, 0);
        assert_int_equal(session->n_leases, 0);
    }
}

/* A merge and a split of the rest take nothing of that back. */
static void what_stayed_goes_where_its_lease_goes(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 4 * MIB, 0);
    struct session *session = open_with_page(core, 1, UID_A);
    struct lease *rest = NULL;

    core->session_leases_limit = 2;
    const struct proto_lease_name low = name_of(take_growing(session, pool, MIB, 0));
    const struct proto_lease_name high = name_of(take(session, pool, MIB, 0));
    assert_int_equal(release_one_way(session, high, 0, 512, 1, 1), 0);
    const struct proto_merge merge = {low.lease, low.generation, high.lease, high.generation};
    assert_int_equal(core_merge(session, &merge), 0);
    assert_int_equal(split(session, low, 0, MIB, &rest), 0);
    assert_int_equal(release(session, name_of(rest), 0), 0);
    assert_int_equal(split(session, low, MIB + 512, MIB - 512, &rest), 0);
    /* all but what stayed was split off: the lease has ended */
    assert_int_equal(release(session, low, 0), PROTO_E_STALE);
    assert_int_equal(pool->fenced_bytes, 512);
    arrive(0, 1);
    core_poll_fences(core);
    assert_int_equal(pool->fenced_bytes, 0);
    assert_int_equal(pool->leased_bytes, MIB - 512);
    assert_int_equal(release(session, name_of(rest), 0), 0);
}

static void no_more_comes_back_than_a_lease_has(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 4 * MIB, 0);
    struct session *session = open_with_page(core, 1, UID_A), *other = open_session(core, 2, UID_A);

    core->session_leases_limit = 1;
    const struct proto_lease_name name = name_of(take_growing(session, pool, MIB, 0));
    assert_int_equal(release_one_way(session, name, 0, MIB / 2, 1, 1), 0);
    assert_int_equal(release_one_way(session, name, 0, MIB / 2 + 512, 1, 1), PROTO_E_INVALID);
    assert_int_equal(release_part(session, name, 0, MIB / 4, 0), 0); /* it wrongs itself */
    /* as much as it still has, if nothing came back twice: the lease is over */
    assert_int_equal(release_part(session, name, MIB / 2, MIB / 4, 0), 0);
    assert_int_equal(release(session, name, 0), PROTO_E_STALE);
    assert_int_equal(pool->fenced_bytes, 3 * MIB / 4);
    lose_session(session, 0);
    assert_int_equal(pool->quarantined_bytes, 3 * MIB / 4);
    session_gone(session, 0);
    take(other, pool, 4 * MIB, 0);
}

/* Others' releases do not poll the fences again and again for a waiting request. */
static void who_waits_has_the_fences_looked_at_now_and_then(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 4 * MIB, 0);
    struct session *session = open_with_page(core, 1, UID_A), *other = open_session(core, 2, UID_A);

    struct lease *lease = take_growing(session, pool, 2 * MIB, 0), *small = take(other, pool, MIB, 0);
    assert_int_equal(release_behind(session, name_of(lease), 0, 1), 0);
    ask(other, pool, 1, 3 * MIB, NS_FOREVER, 0);
    arrive(0, 1);
    assert_int_equal(release(other, name_of(small), 0), 0);
    expect_no_answer(core);
    assert_int_equal(core_next_tick_ns(core), FENCE_INTERVAL_NS);
    tick(core, FENCE_INTERVAL_NS);
    expect_granted(core, other, 1);
}

static void those_who_released_behind_a_fence_are_not_asked_for_it(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 4 * MIB, 0);
    struct session *session = open_with_page(core, 1, UID_A), *other = open_session(core, 2, UID_A), *asked;

    core_session_want_reclaim(session);
    struct lease *lease = take_growing(session, pool, 4 * MIB, 0);
    assert_int_equal(pool->reclaim.n_sessions, 1);
    assert_int_equal(release_behind(session, name_of(lease), 0, 1), 0);
    assert_int_equal(pool->reclaim.n_sessions, 0);
    ask(other, pool, 1, 4 * MIB, NS_FOREVER, 0);
    tick(core, RECLAIM_INTERVAL_NS);
    assert_false(core_next_reclaim(core, &asked));
    lose_session(session, RECLAIM_INTERVAL_NS);
}

static void sessions_are_not_asked_at_once_when_enough_is_behind_fences(void **state) {
    enum {
        ENOUGH,
        TOO_LITTLE,
        AT_ONCE
    };
    (void)state;

    for (unsigned fenced = ENOUGH; fenced <= AT_ONCE; fenced++) {
        struct core *core = core_make();
        struct pool *pool = add_pool(core, 4 * MIB, 4 * MIB, 0);
        struct session *session = open_with_page(core, 1, UID_A), *other = open_session(core, 2, UID_A);
        struct session *asked;

        clear_fences();
        core_session_want_reclaim(session);
        struct lease *lease = take_growing(session, pool, 4 * MIB, 0);
        assert_int_equal(release_part_behind(session, name_of(lease), 0, 2 * MIB, 0, 1, 0), 0);
        ask(other, pool, 1, fenced == TOO_LITTLE ? 3 * MIB : 2 * MIB, fenced == AT_ONCE ? 0 : NS_FOREVER, 0);
        if (fenced == AT_ONCE) /* the request has no patience */
            expect_refused(core, other, 1, PROTO_E_EXHAUSTED);
        if (fenced == ENOUGH) {
            assert_false(core_next_reclaim(core, &asked));
            for (uint64_t now_ns = FENCE_INTERVAL_NS; now_ns < FENCE_GRACE_NS;
                 now_ns = core_next_tick_ns(core)) {
                tick(core, now_ns);
                assert_false(core_next_reclaim(core, &asked));
            }
            tick(core, FENCE_GRACE_NS); /* the word may never arrive */
        }
        assert_true(core_next_reclaim(core, &asked));
        assert_ptr_equal(asked, session);
        core_destroy(core);
    }
}

/* More than one search may look at or close. */
static void many_fences_are_seen_in_turns(void **state) {
    const unsigned sessions = 300, leases = FENCES_COLLECTED_MAX + 100;
    struct session *all[300];
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 64 * MIB, 0);
    static struct proto_page own;
    struct answer answer;

    /* one word of very many leases */
    struct session *session = open_with_page(core, 1, UID_A);
    struct lease *lease = take_growing(session, pool, 64 * MIB, 0);
    for (unsigned i = 0; i < leases; i++) {
        const struct proto_release part = {.lease = lease->id,
                                           .generation = lease->generation,
                                           .offset_bytes = i * 4 * KIB,
                                           .size_bytes = 4 * KIB,
                                           .fence = 1,
                                           .fence_value = i + 1};
        assert_int_equal(core_release(session, &part, 0), 0);
    }
    assert_int_equal(pool->fenced_bytes, leases * 4 * KIB);
    arrive(0, leases);
    ask(session, pool, 1, leases * 4 * KIB, NS_FOREVER, 0);
    expect_no_answer(core);
    assert_int_equal(pool->fenced_bytes, (leases - FENCES_COLLECTED_MAX) * 4 * KIB);
    tick(core, FENCE_INTERVAL_NS);
    expect_granted(core, session, 1);
    close_session(session, 0);

    /* and very many words of one lease each, of which one arrives */
    for (unsigned i = 0; i < sessions; i++) {
        all[i] = open_session(core, (pid_t)(i + 1), UID_A);
        core_session_set_page(all[i], i == sessions - 1 ? &own : &page);
        lease = take(all[i], pool, 64 * MIB / 512, 0);
        assert_int_equal(release_part_behind(all[i], name_of(lease), 0, 0, 1, 1, 0), 0);
    }
    session = open_session(core, 1, UID_A);
    take(session, pool, pool_largest_free_bytes(pool), 0);
    atomic_store(&own.fences[1], 1);
    ask(session, pool, 1, KIB, 0, 0);
    expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    ask(session, pool, 2, KIB, 0, 0);
    expect_granted(core, session, 2);
    assert_false(core_next_answer(core, &answer));
}

/* A client that keeps releasing behind one word does not pile up what its stream has passed. */
static void releases_take_back_what_their_stream_has_passed(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 64 * MIB, 0);
    struct session *session = open_with_page(core, 1, UID_A);

    take_growing(session, pool, MIB, 0);
    for (unsigned i = 1; i <= 100; i++) {
        struct lease *lease = take(session, pool, MIB / 8, 0);
        assert_int_equal(release_behind(session, name_of(lease), 0, i), 0);
        if (i > 10)
            arrive(0, i - 10);
    }
    assert_int_equal(session->n_leases, 1 + 11);
}

static void growth_that_is_not_enough_is_refused_although_a_shared_lease_ended(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 2 * MIB, 0);
    struct session *one = open_with_page(core, 1, UID_A), *two = open_with_page(core, 2, UID_A);
    const struct proto_token fresh = token_of(1);
    struct proto_token token;
    struct lease *attached;

    struct lease *lease = take_growing(one, pool, 4 * MIB, 0);
    const struct proto_lease_name name = name_of(lease);
    assert_int_equal(share_lease(one, &name, 0, &fresh, &token), 0);
    assert_int_equal(core_attach(two, &token, &attached), 0);
    assert_int_equal(release_behind(one, name, 0, 1), 0);
    ask(two, pool, 1, 8 * MIB, 0, 0);
    expect_refused(core, two, 1, PROTO_E_EXHAUSTED);
    uint64_t size = expect_growth(core, pool);
    ask_least(two, pool, 2, 16 * MIB, 0, PROTO_ACQUIRE_NO_RECLAIM, NS_FOREVER, 0);
    expect_no_answer(core);
    arrive(0, 1); /* the first lease ends, and the other keeps the block */
    segment_made(pool, size, 0);
    expect_refused(core, two, 2, PROTO_E_EXHAUSTED);
    assert_int_equal(pool->n_leases, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(memory_behind_a_fence_is_nobodys_until_the_word_arrives),
        CORE_TEST(a_fence_that_is_ready_is_none),
        CORE_TEST(without_a_page_there_are_no_fences),
        CORE_TEST(a_part_waits_alone),
        CORE_TEST(a_shared_block_waits_for_all_who_used_it),
        CORE_TEST(values_out_of_order_delay_and_never_hand_on_early),
        CORE_TEST(who_waits_is_served_soon_after_the_word_arrives),
        CORE_TEST(fences_are_looked_at_before_a_deadline_refuses),
        CORE_TEST(a_pool_does_not_grow_for_what_lies_behind_a_ready_fence),
        CORE_TEST(nor_does_it_grow_ahead_for_that),
        CORE_TEST(nobody_is_hopeless_while_memory_is_behind_a_fence),
        CORE_TEST(a_lost_session_keeps_its_fenced_memory_in_quarantine),
        CORE_TEST(a_shared_block_in_quarantine_and_behind_a_fence_waits_for_both),
        CORE_TEST(a_farewell_returns_fenced_memory),
        CORE_TEST(fenced_leases_count_until_they_are_gone),
        CORE_TEST(parts_beyond_the_limit_stay_with_their_lease_one_way),
        CORE_TEST(parts_beyond_the_limit_join_the_last_that_waits_for_their_word),
        CORE_TEST(what_stayed_waits_for_all_its_fences),
        CORE_TEST(what_stayed_goes_where_its_lease_goes),
        CORE_TEST(no_more_comes_back_than_a_lease_has),
        CORE_TEST(who_waits_has_the_fences_looked_at_now_and_then),
        CORE_TEST(those_who_released_behind_a_fence_are_not_asked_for_it),
        cmocka_unit_test(sessions_are_not_asked_at_once_when_enough_is_behind_fences),
        CORE_TEST(many_fences_are_seen_in_turns),
        CORE_TEST(releases_take_back_what_their_stream_has_passed),
        CORE_TEST(growth_that_is_not_enough_is_refused_although_a_shared_lease_ended),
    };
    return cmocka_run_group_tests_name("fenced leases", tests, NULL, NULL);
}
