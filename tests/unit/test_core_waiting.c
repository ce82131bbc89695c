/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of waiting requests: the order between users and within one, no request is overtaken for ever, and a
 * request that leaves its queue leaves nothing behind.
 */
#include "core_fixture.h"

#define UID_C 1003u

/* Takes a little and gives it back: the session was told of no segment, so others could have used each. */
static void pass(struct session *session, const struct pool *pool, unsigned times) {
    for (unsigned i = 0; i < times; i++)
        assert_int_equal(release(session, name_of(take(session, pool, 4096, 0)), 0), 0);
}

/* A request for the size that does not wait is refused. */
static void expect_nothing(struct session *session, const struct pool *pool, uint64_t size) {
    ask(session, pool, 99, size, 0, 0);
    expect_refused(session->core, session, 99, PROTO_E_EXHAUSTED);
}

static void who_has_less_is_served_before_who_came_earlier(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 12 * MIB, 4 * MIB, 0);
    struct session *a = open_session(core, 1, UID_A), *b = open_session(core, 2, UID_B);

    take_growing(a, pool, 8 * MIB, 0);
    take_growing(b, pool, 4 * MIB, 0);
    ask(a, pool, 1, 4 * MIB, NS_FOREVER, 1);
    ask(b, pool, 2, 4 * MIB, NS_FOREVER, 2);
    ask(b, pool, 3, 4 * MIB, NS_FOREVER, 3);
    configure(pool, 28 * MIB, 16 * MIB, 0, 0, 4);
    grow(pool, 16 * MIB, 4); /* what is not granted from it stays the first one's: it is its user's then */
    struct lease *second = expect_granted(core, b, 2);
    expect_granted(core, b, 3);
    expect_no_answer(core);
    assert_int_equal(second->block->segment->size_bytes, 16 * MIB);
}

static void growth_is_for_who_has_less(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 12 * MIB, 2 * MIB, 0);
    struct session *a = open_session(core, 1, UID_A), *b = open_session(core, 2, UID_B);

    take_growing(a, pool, 8 * MIB, 0);
    take_growing(b, pool, 4 * MIB, 0);
    ask(a, pool, 1, 2 * MIB, NS_FOREVER, 1);
    ask(b, pool, 2, 6 * MIB, NS_FOREVER, 2);
    configure(pool, 18 * MIB, 2 * MIB, 0, 0, 3);
    grow(pool, 6 * MIB, 3);
    expect_granted(core, b, 2);
    configure(pool, 20 * MIB, 2 * MIB, 0, 0, 4);
    grow(pool, 2 * MIB, 4);
    expect_granted(core, a, 1);
}

static void of_two_who_have_as_much_who_came_first_is_first(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 12 * MIB, 4 * MIB, 0);
    struct session *sessions[3];

    for (unsigned i = 0; i < 3; i++) {
        sessions[i] = open_session(core, (pid_t)i + 1, UID_A + i);
        take_growing(sessions[i], pool, 4 * MIB, 0);
    }
    for (unsigned i = 3; i-- > 0;)
        ask(sessions[i], pool, i, 4 * MIB, NS_FOREVER, 1);
    for (unsigned i = 3; i-- > 0;) {
        configure(pool, (12 + 4 * (3 - i)) * MIB, 4 * MIB, 0, 0, 2);
        grow(pool, 4 * MIB, 2);
        expect_granted(core, sessions[i], i);
    }
}

static void bytes_behind_fences_in_quarantine_and_to_be_closed_count(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 12 * MIB, 4 * MIB, 0);
    struct session *a = open_session(core, 1, UID_A), *lost = open_session(core, 2, UID_A);
    struct session *b = open_session(core, 3, UID_B);

    describe(take_growing(lost, pool, 8 * MIB, 0), NULL);
    describe(take_growing(b, pool, 4 * MIB, 0), NULL);
    lose_session(lost, 1);
    ask(a, pool, 1, 4 * MIB, NS_FOREVER, 1);
    ask(b, pool, 2, 4 * MIB, NS_FOREVER, 2);
    configure(pool, 16 * MIB, 4 * MIB, 0, 0, 3);
    grow(pool, 4 * MIB, 3);
    expect_granted(core, b, 2);
    session_gone(lost, 4); /* its user's next */
    retire_all(core, 4);
    expect_granted(core, a, 1);
}

static void a_large_one_is_passed_so_often_and_no_more(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *holder = open_session(core, 1, UID_A), *large = open_session(core, 2, UID_A);
    struct session *small = open_session(core, 3, UID_A);

    struct lease *lease = take_growing(holder, pool, 2 * MIB, 0);
    ask(large, pool, 1, 8 * MIB, NS_FOREVER, 0);
    pass(small, pool, PASSES_MAX);
    expect_nothing(small, pool, 4096); /* a new request */
    ask(small, pool, 2, 4096, NS_FOREVER, 0);
    ask(holder, pool, 3, 4096, NS_FOREVER, 0);
    expect_no_answer(core); /* and waiting ones have to let it by */
    assert_int_equal(release(holder, name_of(lease), 0), 0);
    lease = expect_granted(core, large, 1);
    expect_no_answer(core);
    assert_int_equal(release(large, name_of(lease), 0), 0);
    expect_granted(core, small, 2);
    expect_granted(core, holder, 3);
}

static void small_ones_in_the_same_line_pass_a_large_one_no_oftener(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *holder = open_session(core, 1, UID_A), *large = open_session(core, 2, UID_A);
    struct session *small = open_session(core, 3, UID_A);

    struct lease *held = take_growing(holder, pool, 4 * MIB, 0), *turn = take(holder, pool, 4 * MIB, 0);
    ask(large, pool, 1, 8 * MIB, NS_FOREVER, 0);
    for (unsigned i = 0; i <= PASSES_MAX; i++) /* each of which needs all that came back */
        ask(small, pool, 2 + i, 4 * MIB, NS_FOREVER, 0);
    for (unsigned i = 0; i < PASSES_MAX; i++) {
        assert_int_equal(release(i == 0 ? holder : small, name_of(turn), 0), 0);
        turn = expect_granted(core, small, 2 + i);
        expect_no_answer(core);
    }
    assert_int_equal(release(small, name_of(turn), 0), 0);
    expect_no_answer(core);
    assert_int_equal(release(holder, name_of(held), 0), 0);
    turn = expect_granted(core, large, 1);
    assert_int_equal(release(large, name_of(turn), 0), 0);
    expect_granted(core, small, 2 + PASSES_MAX);
}

/* A user's large request waits while another user's processes come and go. */
struct passed {
    struct core *core;
    struct pool *pool;
    struct session *large, *mapped, *fresh;
};

static void pass_it_over(struct passed *passed, struct core *core, uint64_t timeout_ns) {
    passed->core = core;
    passed->pool = add_pool(passed->core, 16 * MIB, 8 * MIB, 0);
    passed->large = open_session(passed->core, 1, UID_A);
    passed->mapped = open_session(passed->core, 2, UID_B);
    passed->fresh = open_session(passed->core, 3, UID_B);
    core_session_want_reclaim(passed->mapped);
    struct lease *lease = take_growing(passed->mapped, passed->pool, 4 * MIB, 0);
    describe(lease, NULL);
    assert_int_equal(release(passed->mapped, name_of(lease), 0),
                     0); /* it can be asked to close the segment */
    ask(passed->large, passed->pool, 1, 16 * MIB, timeout_ns, 0);
    pass(passed->fresh, passed->pool, PASSES_MAX);
}

static void another_users_newcomers_do_not_keep_a_large_one_waiting_for_ever(void **state) {
    struct passed passed;

    pass_it_over(&passed, *state, NS_FOREVER);
    expect_nothing(passed.fresh, passed.pool, 4096); /* it would have a segment mapped that is needed, */
    expect_no_growth(passed.core);                   /* and room is kept */
    ask(passed.fresh, passed.pool, 2, 8 * MIB, NS_FOREVER, 0);
    expect_no_growth(passed.core);
    close_session(passed.mapped, 0);
    assert_int_equal(retire_all(passed.core, 0), 8 * MIB);
    grow(passed.pool, 16 * MIB, 0);
    expect_granted(passed.core, passed.large, 1);
    expect_no_answer(passed.core);
}

static void who_has_the_memory_mapped_anyway_goes_on(void **state) {
    struct passed passed;

    pass_it_over(&passed, *state, NS_FOREVER);
    pass(passed.mapped, passed.pool, 3 * PASSES_MAX);    /* no other could use it before this one ends */
    expect_nothing(passed.mapped, passed.pool, 10 * MIB); /* but not more than that */
    expect_no_growth(passed.core);
}

static void who_was_passed_too_often_and_leaves_lets_the_others_by(void **state) {
    for (unsigned way = 0; way < 4; way++) {
        struct passed passed;
        pass_it_over(&passed, core_make(), 1000);
        ask(passed.fresh, passed.pool, 2, 4096, NS_FOREVER, 0);
        expect_no_answer(passed.core);
        switch (way) {
        case 0:
            lose_session(passed.large, 1);
            break;
        case 1:
            close_session(passed.large, 1);
            break;
        case 2:
            tick(passed.core, 1000);
            expect_refused(passed.core, passed.large, 1, PROTO_E_EXHAUSTED);
            break;
        default:
            configure(passed.pool, 8 * MIB, 8 * MIB, 0, 0, 1);
            expect_refused(passed.core, passed.large, 1, PROTO_E_TOO_LARGE);
        }
        expect_granted(passed.core, passed.fresh, 2);
        core_destroy(passed.core);
    }
    (void)state;
}

/* A request for half of the pool, which others hold for as long as they live, does not stop the pool. */
static void what_an_overdue_one_cannot_get_is_lent(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 32 * MIB, 4 * MIB, 0);
    struct session *holder = open_session(core, 1, UID_A), *large = open_session(core, 2, UID_B);
    struct session *passing = open_session(core, 3, UID_C), *fresh = open_session(core, 4, UID_C + 1);

    core_session_want_reclaim(holder);
    struct lease *held = take_growing(holder, pool, 16 * MIB, 0);
    describe(held, NULL);
    take_growing(passing, pool, 2 * MIB, 0); /* 12 MiB are left */
    ask(large, pool, 1, 16 * MIB, NS_FOREVER, 0);
    pass(passing, pool, 2 * PASSES_MAX);
    assert_false(list_is_empty(&pool->waiters.overdue));
    take_growing(fresh, pool, 4096, 0);
    struct lease *second = take_growing(fresh, pool, 4 * MIB, 0);
    assert_int_equal(release(fresh, name_of(second), 0), 0); /* idle: for the others, too */
    take(fresh, pool, 4 * MIB, 0);
    /* When it can get its memory, that is kept for it: what the holder gave back, and room beside. */
    assert_int_equal(release(holder, name_of(held), 0), 0);
    ask(passing, pool, 2, 4 * MIB, NS_FOREVER, 0);
    close_session(holder, 0);
    assert_int_equal(retire_all(core, 0), 16 * MIB);
    grow(pool, 16 * MIB, 0);
    expect_granted(core, large, 1);
}

/* Of two segments of its user the overdue request waits in the one of which less is taken. The other one, and
 * what another user has, is lent. */
static void an_overdue_one_keeps_one_segment_of_its_users(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 8 * MIB, 0);
    struct session *a = open_session(core, 1, UID_A), *b = open_session(core, 2, UID_A);
    struct session *large = open_session(core, 3, UID_A);

    core->passes_limit = 4;
    struct lease *more = take_growing(a, pool, 6 * MIB, 0), *less = take_growing(b, pool, 4 * MIB, 0);
    assert_ptr_not_equal(more->block->segment, less->block->segment);
    ask(large, pool, 1, 8 * MIB, NS_FOREVER, 0);
    pass(a, pool, 4);
    for (unsigned i = 0; i < 64; i++) {
        struct lease *lease = take(a, pool, MIB, 0);
        assert_ptr_equal(lease->block->segment, more->block->segment);
        assert_int_equal(release(a, name_of(lease), 0), 0);
    }
    expect_nothing(b, pool, 3 * MIB); /* is free in the other one alone */
    assert_int_equal(release(b, name_of(less), 0), 0);
    struct lease *lease = expect_granted(core, large, 1);
    assert_int_equal(lease->block->offset_bytes, 0);
}

/* No request waits behind an overdue one because a process does not close the segments that it was asked to
 * close. */
static void nobody_waits_for_who_never_closes(void **state) {
    struct passed passed;

    pass_it_over(&passed, *state, NS_FOREVER);
    struct answer answer = {0};
    unsigned refused = 0;
    for (uint64_t now_ns = 0; answer.lease == NULL; now_ns += RECLAIM_INTERVAL_NS) {
        assert_in_range(refused++, 0, ASKS_TRUSTED_MAX + 1);
        tick(passed.core, now_ns);
        ask(passed.fresh, passed.pool, 3, 4096, 0, now_ns);
        assert_true(core_next_answer(passed.core, &answer));
        assert_ptr_equal(answer.session, passed.fresh);
    }
    assert_true(refused > ASKS_TRUSTED_MAX / 2);
}

static void two_who_were_passed_too_often_are_served_in_order_of_arrival(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *holder = open_session(core, 1, UID_C), *a = open_session(core, 2, UID_A);
    struct session *b = open_session(core, 3, UID_B), *fresh = open_session(core, 4, UID_C);

    take_growing(holder, pool, 2 * MIB, 0);
    ask(b, pool, 1, 8 * MIB, NS_FOREVER, 0);
    ask(a, pool, 2, 4 * MIB, NS_FOREVER, 0);
    pass(fresh, pool, PASSES_MAX);
    close_session(holder, 0);
    assert_int_equal(retire_all(core, 0), 8 * MIB);
    grow(pool, 8 * MIB, 0);
    struct lease *lease = expect_granted(core, b, 1);
    expect_no_answer(core);
    assert_int_equal(release(b, name_of(lease), 0), 0);
    close_session(b, 0);
    assert_int_equal(retire_all(core, 0), 8 * MIB);
    grow(pool, 8 * MIB, 0);
    expect_granted(core, a, 2);
}

static void behind_its_quota_a_large_one_is_passed_no_oftener(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 16 * MIB, 0);

    limit_all(core, QUOTA_POOLS, 8 * MIB, 0);
    struct session *holder = open_session(core, 1, UID_A), *large = open_session(core, 2, UID_A);
    struct session *small = open_session(core, 3, UID_A), *other = open_session(core, 4, UID_B);
    struct lease *lease = take_growing(holder, pool, 4 * MIB, 0);
    describe(lease, NULL);
    ask(large, pool, 1, 6 * MIB, NS_FOREVER, 0);
    describe(take(small, pool, 4096, 0), NULL); /* mapped or not: it is the quota that they need */
    pass(small, pool, PASSES_MAX - 1);
    expect_nothing(small, pool, 4096);
    ask(small, pool, 2, 4096, NS_FOREVER, 0);
    expect_no_answer(core);
    take_growing(other, pool, 8 * MIB, 0); /* another user's is another's */
    assert_int_equal(release(holder, name_of(lease), 0), 0);
    expect_granted(core, large, 1);
    expect_granted(core, small, 2);
}

static void who_dies_while_it_waits_gives_its_place_and_its_charge_back(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);

    limit_all(core, QUOTA_WAITING, 2, 0);
    struct session *holder = open_session(core, 1, UID_B), *dying = open_session(core, 2, UID_A);
    struct session *next = open_session(core, 3, UID_A);
    struct lease *lease = take_growing(holder, pool, 8 * MIB, 0);
    ask(dying, pool, 1, 8 * MIB, NS_FOREVER, 0);
    ask(dying, pool, 2, 8 * MIB, NS_FOREVER, 0);
    assert_int_equal(used(next, QUOTA_WAITING), 2);
    ask(next, pool, 3, 8 * MIB, NS_FOREVER, 0);
    expect_text(expect_refused(core, next, 3, PROTO_E_LIMIT), "waiting requests");
    lose_session(dying, 1); /* although it stays in quarantine */
    assert_int_equal(used(next, QUOTA_WAITING), 0);
    assert_int_equal(pool->waiters.count, 0);
    ask(next, pool, 4, 8 * MIB, NS_FOREVER, 2);
    assert_int_equal(used(next, QUOTA_WAITING), 1);
    assert_int_equal(release(holder, name_of(lease), 3), 0);
    close_session(holder, 3);
    retire_all(core, 3);
    grow(pool, 8 * MIB, 3);
    expect_granted(core, next, 4);
    assert_int_equal(used(next, QUOTA_WAITING), 0);
    session_gone(dying, 5);
}

static void who_stands_far_behind_is_served_in_the_end(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    const unsigned count = 4 * WAIT_QUEUE_WINDOW;

    struct lease *lease = take_growing(session, pool, 8 * MIB, 0);
    for (unsigned i = 0; i < count; i++)
        ask(session, pool, i, 8 * MIB, NS_FOREVER, 0);
    ask(session, pool, count, 4096, NS_FOREVER, 0);
    for (unsigned i = 0; i < count; i++) {
        assert_int_equal(release(session, name_of(lease), 0), 0);
        lease = expect_granted(core, session, i);
        expect_no_answer(core);
    }
    assert_int_equal(release(session, name_of(lease), 0), 0);
    expect_granted(core, session, count);
}

/* A segment that the session was told to close, and has not: it asked for all that the pool may have. */
static uint64_t have_closing(struct session *session, struct pool *pool, uint64_t size) {
    struct lease *lease = take_growing(session, pool, size, 0);
    assert_true(describe(lease, NULL));
    assert_int_equal(release(session, name_of(lease), 0), 0);
    struct proto_segments segments = idle(session, pool, pool->limit_bytes);
    assert_int_equal(segments.count, 1);
    return segments.ids[0];
}

static void what_is_to_be_closed_is_hope(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 8 * MIB, 0);
    struct session *one = open_wanting(core, 1, UID_A), *two = open_session(core, 2, UID_B);

    const struct proto_closed closed = {.segment = have_closing(one, pool, 8 * MIB)};
    ask(two, pool, 1, 8 * MIB, NS_FOREVER, 0);
    expect_growth(core, pool);
    growth_failed(pool, "out of memory", 0);
    expect_no_answer(core); /* nothing is leased, but this segment comes back */
    assert_int_equal(core_closed(one, &closed, 1), 0);
    assert_int_equal(retire_all(core, 1), 8 * MIB);
    grow(pool, 8 * MIB, 1); /* without further waiting: the driver has it now */
    expect_granted(core, two, 1);
}

static void who_does_not_close_what_it_was_told_to_is_named_and_charged(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 8 * MIB, 0);

    limit_all(core, QUOTA_POOLS, 16 * MIB, 0);
    struct session *one = open_wanting(core, 11, UID_A), *two = open_session(core, 12, UID_A);
    struct session *other = open_wanting(core, 13, UID_B);
    have_closing(one, pool, 8 * MIB);
    assert_int_equal(used(one, QUOTA_POOLS), 8 * MIB); /* else it could bind any number of bytes so */
    describe(take_growing(other, pool, 8 * MIB, 0), NULL);
    ask(two, pool, 1, 8 * MIB, 100, 0);
    expect_reclaim(core, one);
    expect_reclaim(core, other); /* the first is not counted on: others are asked, too */
    tick(core, 100);
    const char *text = expect_refused(core, two, 1, PROTO_E_EXHAUSTED);
    expect_text(text, "8 MiB that processes were told to close");
    expect_text(text, "pid 11 (worker-11) 8 MiB, some of which it was told to close and has not");
    ask(other, pool, 2, 8 * MIB, NS_FOREVER, 200);
    ask(two, pool, 3, 12 * MIB, 0, 200);
    expect_text(expect_refused(core, two, 3, PROTO_E_EXHAUSTED), "QUOTA: user 1001 has 8 MiB of the 16 MiB");
    lose_session(one, 300); /* its end gives it back, and its charge */
    assert_int_equal(used(two, QUOTA_POOLS), 8 * MIB);
    session_gone(one, 400);
    assert_int_equal(used(two, QUOTA_POOLS), 0);
    assert_int_equal(retire_all(core, 400), 8 * MIB);
    grow(pool, 8 * MIB, 400);
    expect_granted(core, other, 2);
}

/* Requests that wait for growth only fill the window. When they are given up, the request behind them is
 * served with memory that came back meanwhile. */
static void a_request_behind_some_that_are_given_up_is_served(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 2 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A);

    struct lease *lease = take_growing(one, pool, MIB, 0);
    take(one, pool, MIB, 0);
    for (unsigned i = 0; i < WAIT_QUEUE_WINDOW; i++)
        ask_least(two, pool, i + 1, 14 * MIB, 0, PROTO_ACQUIRE_NO_RECLAIM, NS_FOREVER, 0);
    assert_int_equal(expect_growth(core, pool), 14 * MIB);
    ask(two, pool, 99, MIB, NS_FOREVER, 0);
    assert_int_equal(release(one, name_of(lease), 0), 0);
    expect_no_answer(core);
    growth_failed(pool, "out of memory", 0);
    for (unsigned i = 0; i < WAIT_QUEUE_WINDOW; i++)
        expect_refused(core, two, i + 1, PROTO_E_EXHAUSTED);
    assert_int_equal(core_next_tick_ns(core), 0);
    tick(core, 0);
    expect_granted(core, two, 99);
}

static void a_cancelled_request_leaves_its_place_and_its_charge_at_once(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    struct lease *lease = take_growing(session, pool, 8 * MIB, 0);
    ask(session, pool, 1, 8 * MIB, NS_FOREVER, 1);
    assert_int_equal(used(session, QUOTA_WAITING), 1);
    assert_int_equal(pool->waiters.count, 1);
    uint64_t n_failures = pool->stats.n_failures;
    core_cancel(session, 1, 2);
    expect_text(expect_refused(core, session, 1, PROTO_E_CANCELLED), "the client cancelled the request");
    assert_int_equal(used(session, QUOTA_WAITING), 0);
    assert_int_equal(pool->waiters.count, 0);
    assert_int_equal(pool->stats.n_failures, n_failures); /* no user missed the memory */
    core_cancel(session, 1, 3);                           /* it waits no more */
    assert_int_equal(release(session, name_of(lease), 4), 0);
    expect_no_answer(core);
    take(session, pool, 8 * MIB, 5);
}

static void a_cancel_of_what_does_not_wait_changes_nothing(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A);

    struct lease *lease = take_growing(one, pool, 8 * MIB, 0);
    ask(one, pool, 1, 8 * MIB, NS_FOREVER, 1);
    core_cancel(one, 2, 2);
    core_cancel(two, 1, 2); /* ids are a session's own */
    expect_no_answer(core);
    assert_int_equal(pool->waiters.count, 1);
    assert_int_equal(release(one, name_of(lease), 3), 0);
    core_cancel(one, 1, 3); /* granted, and the answer is still to be taken */
    expect_granted(core, one, 1);
    expect_no_answer(core);
}

static void a_cancel_serves_the_requests_behind_at_once(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A), *holder = open_session(core, 2, UID_A);

    take_growing(holder, pool, 4 * MIB, 0);
    for (unsigned i = 1; i <= WAIT_QUEUE_WINDOW; i++)
        ask(session, pool, i, 8 * MIB, NS_FOREVER, 1);
    struct lease *lease = take(holder, pool, 4 * MIB, 1);
    ask(session, pool, 99, 4 * MIB, NS_FOREVER, 1);
    assert_int_equal(release(holder, name_of(lease), 2), 0);
    expect_no_answer(core); /* it is behind the window */
    core_cancel(session, 3, 3);
    expect_refused(core, session, 3, PROTO_E_CANCELLED);
    expect_granted(core, session, 99);
}

static void a_request_that_waits_for_quota_is_cancelled(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 2 * MIB, 0);

    limit_all(core, QUOTA_POOLS, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    take_growing(session, pool, 8 * MIB, 0);
    ask(session, pool, 1, MIB, NS_FOREVER, 1);
    core_cancel(session, 1, 2);
    expect_refused(core, session, 1, PROTO_E_CANCELLED);
    assert_int_equal(used(session, QUOTA_WAITING), 0);
    assert_true(core_is_valid(core));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(who_has_less_is_served_before_who_came_earlier),
        CORE_TEST(growth_is_for_who_has_less),
        CORE_TEST(of_two_who_have_as_much_who_came_first_is_first),
        CORE_TEST(bytes_behind_fences_in_quarantine_and_to_be_closed_count),
        CORE_TEST(a_large_one_is_passed_so_often_and_no_more),
        CORE_TEST(small_ones_in_the_same_line_pass_a_large_one_no_oftener),
        CORE_TEST(another_users_newcomers_do_not_keep_a_large_one_waiting_for_ever),
        CORE_TEST(who_has_the_memory_mapped_anyway_goes_on),
        cmocka_unit_test(who_was_passed_too_often_and_leaves_lets_the_others_by),
        CORE_TEST(what_an_overdue_one_cannot_get_is_lent),
        CORE_TEST(an_overdue_one_keeps_one_segment_of_its_users),
        CORE_TEST(nobody_waits_for_who_never_closes),
        CORE_TEST(two_who_were_passed_too_often_are_served_in_order_of_arrival),
        CORE_TEST(behind_its_quota_a_large_one_is_passed_no_oftener),
        CORE_TEST(who_dies_while_it_waits_gives_its_place_and_its_charge_back),
        CORE_TEST(who_stands_far_behind_is_served_in_the_end),
        CORE_TEST(what_is_to_be_closed_is_hope),
        CORE_TEST(who_does_not_close_what_it_was_told_to_is_named_and_charged),
        CORE_TEST(a_request_behind_some_that_are_given_up_is_served),
        CORE_TEST(a_cancelled_request_leaves_its_place_and_its_charge_at_once),
        CORE_TEST(a_cancel_of_what_does_not_wait_changes_nothing),
        CORE_TEST(a_cancel_serves_the_requests_behind_at_once),
        CORE_TEST(a_request_that_waits_for_quota_is_cancelled),
    };
    return cmocka_run_group_tests_name("those who wait", tests, NULL, NULL);
}
