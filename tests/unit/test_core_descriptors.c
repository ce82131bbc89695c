/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the descriptors that segments take: there are so many of them for all pools, and idle segments
 * leave theirs to requests that have room and no descriptor. No pool takes what is kept for another, and no
 * tenant more than its quota.
 */
#include "core_fixture.h"

static struct pool *add_described(struct core *core, uint64_t limit) {
    struct pool *pool = add_pool(core, limit, 2 * MIB, 0);
    pool->takes_descriptors = true;
    return pool;
}

/* A lease on a segment of its own, whose handle the session was given. */
static struct proto_lease_name take_segment(struct session *session, struct pool *pool) {
    struct lease *lease = take_growing(session, pool, 2 * MIB, 0);
    describe(lease, NULL);
    return name_of(lease);
}

static void a_pool_with_room_and_no_descriptor_says_so(void **state) {
    struct core *core = *state;
    struct pool *pool = add_described(core, 64 * MIB);

    core->segments_limit = 2;
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_B);
    take_segment(one, pool);
    const struct proto_lease_name name = take_segment(one, pool);
    ask(two, pool, 1, 2 * MIB, 0, 0);
    expect_text(expect_refused(core, two, 1, PROTO_E_EXHAUSTED),
                "no descriptor left for another segment (2 segments "
                "of at most 2 in all pools: raise LimitNOFILE");
    ask(two, pool, 2, 2 * MIB, NS_FOREVER, 0);
    expect_no_growth(core);
    assert_int_equal(release(one, name, 0), 0); /* its process has it mapped still */
    expect_no_growth(core);
    close_session(one, 0);
    /* one is enough, and the next comes when it is asked for */
    assert_int_equal(retire_all(core, 0), 2 * MIB);
    grow(pool, 2 * MIB, 0);
    expect_granted(core, two, 2);
    assert_int_equal(pool->n_segments, 2);
    /* what is being freed has its descriptor yet */
    ask(two, pool, 3, 2 * MIB, NS_FOREVER, 0);
    struct segment *segment;
    assert_true(core_next_retirement(core, &segment));
    expect_no_growth(core);
    core_segment_retired(segment, 0);
    grow(pool, 2 * MIB, 0);
    expect_granted(core, two, 3);
}

static void sessions_close_segments_for_their_descriptors(void **state) {
    struct core *core = *state;
    struct pool *pool = add_described(core, 64 * MIB);

    core->segments_limit = 2;
    struct session *one = open_wanting(core, 1, UID_A), *two = open_session(core, 2, UID_B);
    const struct proto_lease_name first = take_segment(one, pool);
    take_segment(one, pool);
    ask(two, pool, 1, 2 * MIB, NS_FOREVER, 0);
    expect_reclaim(core, one);
    assert_int_equal(release(one, first, 0), 0);
    const struct proto_segments segments = idle(one, pool, 0);
    assert_int_equal(segments.count, 1);
    assert_int_equal(closed(one, segments.ids[0]), 0);
    retire_all(core, 0);
    grow(pool, 2 * MIB, 0);
    expect_granted(core, two, 1);
}

static void a_pool_of_small_segments_leaves_another_its_descriptors(void **state) {
    struct core *core = *state;
    struct pool *small = add_described(core, 64 * MIB), *other = add_described(core, 64 * MIB);
    struct pool *without = add_pool(core, 64 * MIB, 2 * MIB, 0);

    core->segments_limit = 8; /* two are kept for each, and four are for both */
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_B);
    for (unsigned i = 0; i < 6; i++)
        take_segment(one, small);
    ask(one, small, 1, 2 * MIB, 0, 0);
    expect_refused(core, one, 1, PROTO_E_EXHAUSTED);
    take_segment(two, other);
    take_segment(two, other);
    ask(two, other, 2, 2 * MIB, 0, 0);
    expect_refused(core, two, 2, PROTO_E_EXHAUSTED);
    take_segment(two, without);
}

/* Segments beyond those that are stored are lent no more after the daemon. */
static void segments_get_larger_where_few_more_can_be_stored(void **state) {
    static const unsigned steps[] = {1, 1, 1, 1, 2, 2, 4, 8, 8, 8}; /* by segments that are there */
    struct core *core = *state;
    struct pool *pool = add_described(core, 256 * MIB), *without = add_pool(core, 64 * MIB, 2 * MIB, 0);

    core->stored_segments_limit = 8;
    struct session *session = open_session(core, 1, UID_A);
    for (unsigned i = 0; i < sizeof steps / sizeof *steps; i++) {
        uint64_t bytes = steps[i] * 2 * MIB;
        ask(session, pool, 1 + i, 2 * MIB, NS_FOREVER, 0);
        grow(pool, bytes, 0);
        expect_granted(core, session, 1 + i);
        if (bytes > 2 * MIB) { /* the rest is taken, so that the next one grows, too */
            ask(session, pool, 100 + i, bytes - 2 * MIB, 0, 0);
            expect_granted(core, session, 100 + i);
        }
    }
    take_segment(session, without);
    assert_int_equal(without->reserved_bytes, 2 * MIB);
}

static void idle_segments_of_another_pool_leave_their_descriptors(void **state) {
    struct core *core = *state;
    struct pool *small = add_described(core, 64 * MIB), *other = add_described(core, 64 * MIB);

    core->segments_limit = 8;
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_B);
    for (unsigned i = 0; i < 6; i++)
        take_segment(one, small);
    take_segment(two, other);
    take_segment(two, other);
    ask(two, other, 1, 2 * MIB, NS_FOREVER, 0);
    expect_no_growth(core);
    close_session(one, 0); /* its segments stay the pool's, for others and for its user */
    assert_int_equal(retire_all(core, 0), 2 * MIB);
    grow(other, 2 * MIB, 0);
    expect_granted(core, two, 1);
    assert_int_equal(small->n_segments, 5);
    /* but not those of the reserve */
    configure(small, 64 * MIB, 2 * MIB, 10 * MIB, 0, 0);
    ask(two, other, 2, 2 * MIB, NS_FOREVER, 0);
    expect_no_retirement(core);
    configure(small, 64 * MIB, 2 * MIB, 8 * MIB, 0, 0);
    assert_int_equal(retire_all(core, 0), 2 * MIB);
    grow(other, 2 * MIB, 0);
    expect_granted(core, two, 2);
}

static void segments_are_counted_by_user(void **state) {
    struct core *core = *state;
    struct pool *pool = add_described(core, 64 * MIB), *second = add_described(core, 64 * MIB);

    limit_all(core, QUOTA_SEGMENTS, 2, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A);
    struct session *other = open_session(core, 3, UID_B);
    const struct proto_lease_name first = take_segment(one, pool);
    take_segment(two, pool);
    assert_int_equal(used(one, QUOTA_SEGMENTS), 2);
    ask(one, second, 1, MIB, 0, 0);
    expect_text(expect_refused(core, one, 1, PROTO_E_EXHAUSTED), "QUOTA: user 1001 has 2 segments");
    expect_no_growth(core);
    ask(one, pool, 2, MIB, NS_FOREVER, 0);
    expect_no_answer(core);
    take_segment(other, pool);                   /* no other user waits behind it */
    assert_int_equal(release(one, first, 0), 0); /* what is its own already is no segment more */
    const struct proto_lease_name again = name_of(expect_granted(core, one, 2));
    assert_int_equal(used(one, QUOTA_SEGMENTS), 2);
    ask(one, second, 3, MIB, NS_FOREVER, 0);
    assert_int_equal(release(one, again, 0), 0);
    expect_no_answer(core);
    close_session(two, 0); /* an idle one goes for it, at the next look */
    tick(core, RECLAIM_INTERVAL_NS);
    tick(core, RECLAIM_INTERVAL_NS);
    assert_int_equal(retire_all(core, 0), 2 * MIB);
    grow(second, 2 * MIB, RECLAIM_INTERVAL_NS);
    expect_granted(core, one, 3);
    assert_int_equal(used(one, QUOTA_SEGMENTS), 2);
    limit_all(core, QUOTA_SEGMENTS, 0, 0);
    struct session *late = open_session(core, 4, 1003);
    ask(late, pool, 4, MIB, NS_FOREVER, 0);
    expect_text(expect_refused(core, late, 4, PROTO_E_LIMIT), "'segments' of [quota]");
}

static void segments_that_are_asked_for_whole_are_counted_too(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 64 * MIB);
    struct proto_lease_name names[2];

    pool->takes_descriptors = true;
    limit_all(core, QUOTA_SEGMENTS, 3, 0);
    struct session *one = open_session(core, 1, UID_A);
    ask_segments(one, pool, 1, 4, 2 * MIB, NS_FOREVER);
    expect_text(expect_refused(core, one, 1, PROTO_E_LIMIT), "'segments' of [quota]");
    ask_segments(one, pool, 2, 2, 2 * MIB, NS_FOREVER);
    grow(pool, 2 * MIB, 0);
    grow(pool, 2 * MIB, 0);
    expect_segments(core, one, 2, 2, 2 * MIB, names);
    ask_segments(one, pool, 3, 2, 2 * MIB, NS_FOREVER);
    expect_no_growth(core);
    expect_no_answer(core);
    assert_int_equal(release(one, names[0], 0), 0); /* with one of its own there are two */
    grow(pool, 2 * MIB, 0);
    expect_segments(core, one, 3, 2, 2 * MIB, NULL);
    assert_int_equal(used(one, QUOTA_SEGMENTS), 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(a_pool_with_room_and_no_descriptor_says_so),
        CORE_TEST(sessions_close_segments_for_their_descriptors),
        CORE_TEST(a_pool_of_small_segments_leaves_another_its_descriptors),
        CORE_TEST(segments_get_larger_where_few_more_can_be_stored),
        CORE_TEST(idle_segments_of_another_pool_leave_their_descriptors),
        CORE_TEST(segments_are_counted_by_user),
        CORE_TEST(segments_that_are_asked_for_whole_are_counted_too),
    };
    return cmocka_run_group_tests_name("descriptors", tests, NULL, NULL);
}
