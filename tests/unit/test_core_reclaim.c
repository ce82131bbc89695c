/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of reclaim: the pool asks when nothing else helps and not before, not too often, and only sessions
 * that can be asked and hold memory of the pool. Tests of the marks in the sessions' pages, too, and of
 * spared sessions.
 */
#include <stdatomic.h>

#include "core_fixture.h"

static void at_the_limit_those_are_asked_who_want_it_and_hold_something(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0), *elsewhere = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *second = open_wanting(core, 2, UID_A);
    struct session *silent = open_session(core, 3, UID_A), *empty = open_wanting(core, 4, UID_A);
    struct session *distant = open_wanting(core, 5, UID_A), *lost = open_wanting(core, 6, UID_A);

    take_growing(holder, pool, 2 * MIB, 0);
    take(second, pool, 2 * MIB, 0);
    take(silent, pool, 2 * MIB, 0);
    take(lost, pool, 2 * MIB, 0);
    take_growing(distant, elsewhere, 2 * MIB, 0);
    lose_session(lost, 0);
    expect_no_reclaim(core);
    ask(empty, pool, 1, MIB, NS_FOREVER, 0);
    expect_reclaim(core, holder);
    expect_reclaim(core, second);
    expect_no_reclaim(core);
}

static void a_foreign_tenants_session_is_asked_and_the_own_too(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 8 * MIB, 0);
    struct session *own = open_wanting(core, 1, UID_A), *foreign = open_wanting(core, 2, UID_B);

    take_growing(own, pool, 8 * MIB, 0);
    take_growing(foreign, pool, 8 * MIB, 0);
    ask(own, pool, 1, MIB, NS_FOREVER, 0); /* what one thread waits for may lie in another's cache */
    expect_reclaim(core, own);
    expect_reclaim(core, foreign);
    expect_no_reclaim(core);
}

static void nobody_is_asked_while_the_pool_can_grow(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 8 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_A);

    take_growing(holder, pool, 8 * MIB, 0);
    ask(other, pool, 1, 2 * MIB, 0, 0); /* does not wait, but has set growth going */
    expect_refused(core, other, 1, PROTO_E_EXHAUSTED);
    ask(other, pool, 2, 2 * MIB, NS_FOREVER, 0);
    tick(core, NS_PER_S); /* however long that takes */
    expect_no_reclaim(core);
    assert_int_equal(core_next_tick_ns(core), LONG_WAIT_NS);
    grow(pool, 8 * MIB, NS_PER_S);
    expect_granted(core, other, 2);
    expect_no_reclaim(core);
}

static void nobody_is_asked_before_the_device_is_ready(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0),
                *late = add_starting_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A);

    take_growing(holder, pool, 8 * MIB, 0);
    ask(holder, late, 1, MIB, NS_FOREVER, 0);
    tick(core, NS_PER_S);
    expect_no_reclaim(core);
}

static void nobody_is_asked_while_idle_segments_are_enough(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 8 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *idle = open_session(core, 2, UID_B);
    struct session *other = open_session(core, 3, UID_A);

    describe(take_growing(holder, pool, 8 * MIB, 0), NULL);
    take_growing(idle, pool, 8 * MIB, 0);
    close_session(idle, 0);
    ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
    expect_no_reclaim(core);
    ask(other, pool, 2, 8 * MIB, NS_PER_MS,
        0); /* the queue is looked at again, and the first still has hope */
    expect_no_reclaim(core);
    tick(core, NS_PER_S); /* on its way back to the driver, for as long as that takes */
    expect_refused(core, other, 2, PROTO_E_EXHAUSTED);
    expect_no_reclaim(core);
    assert_int_equal(retire_all(core, NS_PER_S), 8 * MIB);
    expect_no_reclaim(core);
    grow(pool, 8 * MIB, NS_PER_S);
    expect_granted(core, other, 1);
}

static void growth_for_the_second_in_line_does_not_help_the_first(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 4 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_A);

    take_growing(holder, pool, 12 * MIB, 0);
    ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
    expect_reclaim(core, holder);
    ask(other, pool, 2, 4 * MIB, NS_FOREVER, 0);
    uint64_t size = expect_growth(core, pool);
    tick(core, RECLAIM_INTERVAL_NS);
    expect_reclaim(core, holder);
    segment_made(pool, size, RECLAIM_INTERVAL_NS);
    expect_granted(core, other, 2);
    expect_no_reclaim(core);
}

static void who_takes_the_idle_segment_that_would_have_been_enough_is_asked(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 24 * MIB, 8 * MIB, 8 * MIB);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_A);

    grow(pool, 8 * MIB, 0);
    ask(other, pool, 1, 10 * MIB, 0, 0);
    expect_refused(core, other, 1, PROTO_E_EXHAUSTED);
    assert_int_equal(expect_growth(core, pool), 10 * MIB); /* under way: nothing else is done meanwhile */
    ask(other, pool, 2, 24 * MIB, NS_FOREVER, 0);
    take(holder, pool, MIB, 0);
    expect_reclaim(core, holder);
    growth_failed(pool, "cudaErrorMemoryAllocation", 0);
}

static void sessions_are_asked_again_while_somebody_waits(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_A);
    const uint64_t start = 5000;

    struct lease *lease = take_growing(holder, pool, 8 * MIB, start);
    assert_int_equal(core_next_tick_ns(core), NS_FOREVER);
    ask(other, pool, 1, MIB, NS_FOREVER, start);
    for (uint64_t round = 0; round < 3; round++) {
        uint64_t now = start + round * RECLAIM_INTERVAL_NS;
        tick(core, now);
        expect_reclaim(core, holder);
        expect_no_reclaim(core);
        assert_int_equal(core_next_tick_ns(core), now + RECLAIM_INTERVAL_NS);
        tick(core, now + RECLAIM_INTERVAL_NS - 1);
        expect_no_reclaim(core);
    }
    uint64_t now = start + 2 * RECLAIM_INTERVAL_NS;
    assert_int_equal(release_part(holder, name_of(lease), 4 * MIB, 4 * MIB, now), 0);
    expect_granted(core, other, 1);
    assert_int_equal(core_next_tick_ns(core), now + SHORTAGE_NS); /* then the shortage is over */
    tick(core, now + NS_PER_S);
    expect_no_reclaim(core);
    assert_int_equal(core_next_tick_ns(core), NS_FOREVER);
}

static void a_deadline_ends_the_asking(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_A);

    take_growing(holder, pool, 8 * MIB, 0);
    ask(other, pool, 1, MIB, RECLAIM_INTERVAL_NS, 0);
    expect_reclaim(core, holder);
    tick(core, RECLAIM_INTERVAL_NS);
    expect_refused(core, other, 1, PROTO_E_EXHAUSTED);
    expect_no_reclaim(core);
    assert_int_equal(core_next_tick_ns(core), NS_FOREVER);
}

static void a_request_refused_at_once_has_sessions_asked_so_that_the_next_finds_room(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_A);

    struct proto_lease_name name = name_of(take_growing(holder, pool, 8 * MIB, 0));
    ask(other, pool, 1, MIB, 0, 0);
    expect_refused(core, other, 1, PROTO_E_EXHAUSTED);
    expect_reclaim(core, holder);
    assert_int_equal(plan_next_reclaim_ns(pool),
                     NS_FOREVER); /* no request waits: no session is asked again */
    assert_int_equal(release(holder, name, 1), 0);
    take(other, pool, MIB, 1);
    tick(core, SHORTAGE_NS);
    expect_no_reclaim(core);
    assert_int_equal(core_next_tick_ns(core), NS_FOREVER);
}

static void one_who_comes_too_soon_after_another_has_sessions_asked_a_little_later(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 8 * MIB, 0);
    struct session *first = open_wanting(core, 1, UID_A), *second = open_wanting(core, 2, UID_A);
    struct session *other = open_session(core, 3, UID_A);

    take_growing(first, pool, 16 * MIB, 0);
    ask(other, pool, 1, 8 * MIB, 0, 0);
    expect_refused(core, other, 1, PROTO_E_EXHAUSTED);
    expect_reclaim(core, first);
    close_session(first, 1);
    take(second, pool, 16 * MIB, 1);
    expect_reclaim(core, second); /* the pool is short */
    ask(other, pool, 2, 8 * MIB, 0, 2);
    expect_refused(core, other, 2, PROTO_E_EXHAUSTED);
    expect_no_reclaim(core);
    assert_int_equal(core_next_tick_ns(core), RECLAIM_INTERVAL_NS);
    tick(core, RECLAIM_INTERVAL_NS);
    expect_reclaim(core, second);
    assert_int_equal(plan_next_reclaim_ns(pool), NS_FOREVER); /* and that was it */
    tick(core, 3 * RECLAIM_INTERVAL_NS);
    expect_no_reclaim(core);
}

static void however_many_ask_sessions_are_asked_once_in_a_while(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_A);
    unsigned asked = 0;

    take_growing(holder, pool, 8 * MIB, 0);
    for (uint64_t i = 0; i < 1000; i++) { /* one a millisecond, half of which wait for a little */
        struct session *session;
        struct answer answer;
        uint64_t now = i * NS_PER_MS;
        tick(core, now);
        ask(other, pool, i + 1, MIB, i % 2 * 3 * NS_PER_MS, now);
        while (core_next_answer(core, &answer))
            assert_null(answer.lease);
        while (core_next_reclaim(core, &session))
            asked++;
    }
    assert_int_equal(asked, 1000 * NS_PER_MS / RECLAIM_INTERVAL_NS);
}

static void each_pool_asks_for_itself_and_a_session_once(void **state) {
    struct core *core = *state;
    struct pool *one = add_pool(core, 8 * MIB, 8 * MIB, 0), *two = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_A);

    take_growing(holder, one, 8 * MIB, 0);
    take_growing(holder, two, 8 * MIB, 0);
    ask(other, one, 1, MIB, NS_FOREVER, 0);
    ask(other, two, 2, MIB, NS_FOREVER, 0);
    expect_reclaim(core, holder); /* it looks through all its caches */
    expect_no_reclaim(core);
    ask(other, one, 3, MIB, NS_FOREVER, 1);
    expect_no_reclaim(core);
    tick(core, RECLAIM_INTERVAL_NS);
    expect_reclaim(core, holder);
    expect_no_reclaim(core);
}

static void sessions_are_asked_when_the_driver_refused(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 8 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_A);

    struct lease *lease = take_growing(holder, pool, 8 * MIB, 0);
    describe(lease, NULL);
    ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
    expect_no_reclaim(core);
    expect_growth(core, pool);
    growth_failed(pool, "out of memory", 0);
    expect_reclaim(core, holder);
    assert_int_equal(core_next_tick_ns(core), RECLAIM_INTERVAL_NS);
    tick(core, RECLAIM_INTERVAL_NS);
    expect_reclaim(core, holder);
    tick(core, GROW_RETRY_NS); /* the driver is tried again, and no session asked meanwhile */
    expect_no_reclaim(core);
    expect_growth(core, pool);
    tick(core, GROW_RETRY_NS + RECLAIM_INTERVAL_NS);
    expect_no_reclaim(core);
    growth_failed(pool, "out of memory", GROW_RETRY_NS + RECLAIM_INTERVAL_NS);
    expect_reclaim(core, holder);
    assert_int_equal(release(holder, name_of(lease), GROW_RETRY_NS + RECLAIM_INTERVAL_NS), 0);
    expect_granted(core, other, 1);
}

static void who_gave_everything_back_is_not_asked_again(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *silent = open_session(core, 2, UID_A);
    struct session *other = open_session(core, 3, UID_A);

    struct proto_lease_name name = name_of(take_growing(holder, pool, 2 * MIB, 0));
    take(silent, pool, 6 * MIB, 0);
    ask(other, pool, 1, 4 * MIB, NS_FOREVER, 0);
    expect_reclaim(core, holder);
    assert_int_equal(release_part(holder, name, 0, MIB, 1), 0);
    assert_int_equal(release_part(holder, name, MIB, MIB, 1), 0);
    assert_int_equal(plan_next_reclaim_ns(pool), NS_FOREVER); /* no session is left to be asked */
    tick(core, RECLAIM_INTERVAL_NS);
    expect_no_reclaim(core);
    take(holder, pool, MIB, RECLAIM_INTERVAL_NS); /* it holds something again, while another waits */
    expect_reclaim(core, holder);
}

static void who_left_before_the_shell_asked_is_not_asked(void **state) {
    for (unsigned way = 0; way < 2; way++) {
        struct core *core = core_make();
        struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
        struct session *holder = open_wanting(core, 1, UID_A), *stays = open_wanting(core, 2, UID_A);
        struct session *other = open_session(core, 3, UID_A);

        take_growing(holder, pool, 4 * MIB, 0);
        take(stays, pool, 4 * MIB, 0);
        ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
        if (way == 0)
            lose_session(holder, 1);
        else
            close_session(holder, 1);
        expect_reclaim(core, stays);
        expect_no_reclaim(core);
        tick(core, RECLAIM_INTERVAL_NS);
        expect_reclaim(core, stays);
        expect_no_reclaim(core);
        core_destroy(core);
    }
    (void)state;
}

static void where_nobody_wants_to_be_asked_nobody_is(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *holder = open_session(core, 1, UID_A), *other = open_wanting(core, 2, UID_A);

    take_growing(holder, pool, 8 * MIB, 0);
    ask(other, pool, 1, MIB, NS_FOREVER, 0);
    expect_no_reclaim(core);
    assert_int_equal(core_next_tick_ns(core), LONG_WAIT_NS); /* and the daemon sleeps */
}

/* --- the shortage that sessions are told of --- */

static struct proto_page pages[3];

/* A session that wants to be asked, with a page. */
static struct session *open_with_own_page(struct core *core, unsigned number, uid_t uid) {
    struct session *session = open_wanting(core, (pid_t)number + 1, uid);
    memset(&pages[number], 0, sizeof pages[number]);
    core_session_set_page(session, &pages[number]);
    return session;
}

/* The pools that are marked in a session's page. */
static uint64_t marks(unsigned number) {
    return atomic_load(&pages[number].shortage.pools);
}

static void a_pool_that_is_short_is_marked_until_it_has_not_been_stuck_for_a_while(void **state) {
    struct core *core = *state;
    add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *holder = open_with_own_page(core, 0, UID_A), *other = open_with_own_page(core, 1, UID_B);

    struct lease *lease = take_growing(holder, pool, 8 * MIB, 0);
    assert_int_equal(marks(0), 0);
    ask(other, pool, 1, 4 * MIB, NS_FOREVER, 0);
    expect_reclaim(core, holder);
    assert_int_equal(marks(0), 2); /* the second pool */
    assert_int_equal(marks(1), 0); /* it has nothing to give back */
    for (unsigned i = 1; i <= 5; i++) {
        tick(core, i * SHORTAGE_NS);
        assert_int_equal(marks(0), 2); /* for as long as the request waits */
    }
    close_session(other, 5 * SHORTAGE_NS + 1);
    assert_int_equal(release(holder, name_of(lease), 5 * SHORTAGE_NS + 1), 0);
    tick(core, 6 * SHORTAGE_NS - 1);
    assert_int_equal(marks(0), 2);
    assert_int_equal(core_next_tick_ns(core), 6 * SHORTAGE_NS);
    tick(core, 6 * SHORTAGE_NS);
    assert_int_equal(marks(0), 0);
    assert_int_equal(core_next_tick_ns(core), NS_FOREVER);
}

static void each_pool_is_marked_for_itself(void **state) {
    struct core *core = *state;
    struct pool *one = add_pool(core, 8 * MIB, 8 * MIB, 0), *two = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *holder = open_with_own_page(core, 0, UID_A), *other = open_session(core, 2, UID_B);

    take_growing(holder, one, 8 * MIB, 0);
    take_growing(holder, two, 8 * MIB, 0);
    ask(other, two, 1, MIB, 10, 0);
    assert_int_equal(marks(0), 2);
    ask(other, one, 2, MIB, NS_FOREVER, 0);
    assert_int_equal(marks(0), 3);
    tick(core, SHORTAGE_NS); /* the one that waited in the second pool has left */
    assert_int_equal(marks(0), 1);
}

static void a_session_that_comes_to_have_memory_of_a_short_pool_is_asked_at_once(void **state) {
    (void)state;
    for (unsigned way = 0; way < 2; way++) {
        struct core *core = core_make();
        struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
        struct session *holder = open_with_own_page(core, 0, UID_A),
                       *fresh = open_with_own_page(core, 1, UID_A);
        struct session *other = open_session(core, 3, UID_B);

        take_growing(holder, pool, 4 * MIB, 0);
        ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
        expect_reclaim(core, holder);
        if (way == 1) { /* also when no request waits any more */
            close_session(other, 1);
            assert_int_equal(marks(0), 1);
        }
        struct lease *lease = take(fresh, pool, MIB, 1);
        expect_reclaim(core, fresh);
        expect_no_reclaim(core);
        assert_int_equal(marks(1), 1);
        describe(lease, NULL);
        take(fresh, pool, MIB, 1);
        expect_no_reclaim(core); /* once */
        core_destroy(core);
    }
}

static void a_session_without_a_page_is_asked_and_one_that_does_not_want_it_is_not_told(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 8 * MIB, 0);
    struct session *bare = open_wanting(core, 7, UID_A), *deaf = open_session(core, 8, UID_A);
    struct session *other = open_session(core, 3, UID_B);

    memset(&pages[0], 0, sizeof pages[0]);
    core_session_set_page(deaf, &pages[0]);
    take_growing(bare, pool, 8 * MIB, 0);
    take_growing(deaf, pool, 8 * MIB, 0);
    ask(other, pool, 1, MIB, NS_FOREVER, 0);
    expect_reclaim(core, bare);
    expect_no_reclaim(core);
    assert_int_equal(marks(0), 0);
}

static void a_shortage_ends_although_nothing_comes_back_for_a_request_that_did_not_wait(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *holder = open_with_own_page(core, 0, UID_A), *other = open_session(core, 3, UID_B);

    take_growing(holder, pool, 8 * MIB, 0);
    ask(other, pool, 1, MIB, 0, 0);
    expect_refused(core, other, 1, PROTO_E_EXHAUSTED);
    expect_reclaim(core, holder);
    assert_int_equal(marks(0), 1);
    assert_int_equal(core_next_tick_ns(core), SHORTAGE_NS);
    tick(core, SHORTAGE_NS);
    assert_int_equal(marks(0), 0);
    assert_int_equal(core_next_tick_ns(core), NS_FOREVER);
}

/* --- spared sessions ---
 *
 * Only a spared session's own requests wait for room, and it looks after its own memory (GAVE_BACK). It is
 * not asked until others wait, or it has waited for long, or it could close a segment.
 */

struct pressed {
    struct core *core;
    struct pool *pool;
    struct session *session, *holder;
};

/* A pool of 16 MiB that two sessions hold, both of which can be asked. */
static struct pressed press(struct core *core) {
    struct pressed pressed = {.core = core};

    pressed.pool = add_pool(pressed.core, 16 * MIB, 8 * MIB, 0);
    pressed.session = open_wanting(pressed.core, 1, UID_A);
    pressed.holder = open_wanting(pressed.core, 2, UID_A);
    take_growing(pressed.session, pressed.pool, 8 * MIB, 0);
    take_growing(pressed.holder, pressed.pool, 8 * MIB, 0);
    return pressed;
}

static void wait_for(const struct pressed *pressed, struct session *session, uint64_t request, uint32_t flags,
                     uint64_t now_ns) {
    ask_least(session, pressed->pool, request, 4 * MIB, 0, flags, NS_FOREVER, now_ns);
}

static void one_that_waits_alone_is_not_asked_but_the_others_are(void **state) {
    struct pressed pressed = press(*state);

    wait_for(&pressed, pressed.session, 1, PROTO_ACQUIRE_GAVE_BACK, 0);
    wait_for(&pressed, pressed.session, 2, PROTO_ACQUIRE_GAVE_BACK, 0);
    expect_reclaim(pressed.core, pressed.holder);
    expect_no_reclaim(pressed.core);
}

static void one_that_does_not_say_so_is_asked(void **state) {
    struct pressed pressed = press(*state);

    wait_for(&pressed, pressed.session, 1, 0, 0);
    expect_reclaim(pressed.core, pressed.session);
    expect_reclaim(pressed.core, pressed.holder);
}

static void when_another_begins_to_wait_it_is_asked_at_once(void **state) {
    (void)state;
    for (unsigned way = 0; way < 2; way++) {
        struct pressed pressed = press(core_make());
        wait_for(&pressed, pressed.session, 1, PROTO_ACQUIRE_GAVE_BACK, 0);
        expect_reclaim(pressed.core, pressed.holder);
        if (way == 0)
            wait_for(&pressed, pressed.holder, 2, PROTO_ACQUIRE_GAVE_BACK, 1);
        else
            wait_for(&pressed, pressed.session, 2, 0, 1);
        expect_reclaim(pressed.core, pressed.session);
        core_destroy(pressed.core);
    }
}

static void after_an_interval_it_is_asked_as_well(void **state) {
    struct pressed pressed = press(*state);

    wait_for(&pressed, pressed.session, 1, PROTO_ACQUIRE_GAVE_BACK, 0);
    expect_reclaim(pressed.core, pressed.holder);
    tick(pressed.core, RECLAIM_INTERVAL_NS);
    expect_reclaim(pressed.core, pressed.session);
    expect_reclaim(pressed.core, pressed.holder);
}

static void one_with_a_segment_to_close_is_asked(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 8 * MIB, 0);
    struct session *session = open_wanting(core, 1, UID_A);

    struct lease *lease = take_growing(session, pool, 8 * MIB, 0);
    assert_true(describe(lease, NULL)); /* it has the segment mapped */
    take_growing(session, pool, 8 * MIB, 0);
    assert_int_equal(release(session, name_of(lease), 0), 0);
    ask_least(session, pool, 1, 16 * MIB, 0, PROTO_ACQUIRE_GAVE_BACK, NS_FOREVER, 0);
    expect_reclaim(core, session);
}

static void its_end_is_survived(void **state) {
    struct pressed pressed = press(*state);

    wait_for(&pressed, pressed.session, 1, PROTO_ACQUIRE_GAVE_BACK, 0);
    expect_reclaim(pressed.core, pressed.holder);
    close_session(pressed.session, 1);
    wait_for(&pressed, pressed.holder, 2, 0, 1);
    expect_granted(pressed.core, pressed.holder, 2); /* what the other left */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(at_the_limit_those_are_asked_who_want_it_and_hold_something),
        CORE_TEST(a_foreign_tenants_session_is_asked_and_the_own_too),
        CORE_TEST(nobody_is_asked_while_the_pool_can_grow),
        CORE_TEST(nobody_is_asked_before_the_device_is_ready),
        CORE_TEST(nobody_is_asked_while_idle_segments_are_enough),
        CORE_TEST(growth_for_the_second_in_line_does_not_help_the_first),
        CORE_TEST(who_takes_the_idle_segment_that_would_have_been_enough_is_asked),
        CORE_TEST(sessions_are_asked_again_while_somebody_waits),
        CORE_TEST(a_deadline_ends_the_asking),
        CORE_TEST(a_request_refused_at_once_has_sessions_asked_so_that_the_next_finds_room),
        CORE_TEST(one_who_comes_too_soon_after_another_has_sessions_asked_a_little_later),
        CORE_TEST(however_many_ask_sessions_are_asked_once_in_a_while),
        CORE_TEST(each_pool_asks_for_itself_and_a_session_once),
        CORE_TEST(sessions_are_asked_when_the_driver_refused),
        CORE_TEST(who_gave_everything_back_is_not_asked_again),
        cmocka_unit_test(who_left_before_the_shell_asked_is_not_asked),
        CORE_TEST(where_nobody_wants_to_be_asked_nobody_is),
        CORE_TEST(a_pool_that_is_short_is_marked_until_it_has_not_been_stuck_for_a_while),
        CORE_TEST(each_pool_is_marked_for_itself),
        cmocka_unit_test(a_session_that_comes_to_have_memory_of_a_short_pool_is_asked_at_once),
        CORE_TEST(a_session_without_a_page_is_asked_and_one_that_does_not_want_it_is_not_told),
        CORE_TEST(a_shortage_ends_although_nothing_comes_back_for_a_request_that_did_not_wait),
        CORE_TEST(one_that_waits_alone_is_not_asked_but_the_others_are),
        CORE_TEST(one_that_does_not_say_so_is_asked),
        cmocka_unit_test(when_another_begins_to_wait_it_is_asked_at_once),
        CORE_TEST(after_an_interval_it_is_asked_as_well),
        CORE_TEST(one_with_a_segment_to_close_is_asked),
        CORE_TEST(its_end_is_survived),
    };
    return cmocka_run_group_tests_name("asking for idle memory", tests, NULL, NULL);
}
