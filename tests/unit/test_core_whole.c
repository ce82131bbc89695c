/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of requests for several whole segments, which are granted at once or not at all. */
#include <errno.h>

#include "closing_fixture.h"
#include "tests/failing_memory.h"

#define SIZE (4 * MIB)

/* Makes so many segments of a size that belong to the session's tenant; nothing of them is taken. */
static void make_own(struct session *session, struct pool *pool, unsigned count, uint64_t size) {
    for (unsigned i = 0; i < count; i++)
        take_growing(session, pool, size, 0);
    let_go(session);
}

static void release_all(struct session *session, const struct proto_lease_name *names, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(release(session, names[i], 0), 0);
}

static void segments_are_granted_at_once(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 64 * MIB);
    struct session *session = open_session(core, 1, UID_A);
    struct proto_lease_name names[3];

    make_own(session, pool, 3, SIZE);
    ask_segments(session, pool, 5, 3, SIZE, 0);
    struct proto_lease_name guess = name_of(container_of(session->leases.next, struct lease, session_link));
    assert_int_equal(release(session, guess, 0), PROTO_E_STALE); /* its answer is still to be taken */
    expect_segments(core, session, 5, 3, SIZE, names);
    assert_int_equal(pool->leased_bytes, 3 * SIZE);
    assert_int_equal(session->n_leases, 3);
    assert_int_equal(used(session, QUOTA_LEASES), 3);
    assert_int_equal(used(session, quota_item_of_pool(pool->id)), 3 * SIZE);
    expect_no_growth(core);
    release_all(session, names, 3);
    assert_int_equal(pool->leased_bytes, 0);
}

static void leases_are_answered_apart_from_others(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 64 * MIB);
    struct session *session = open_session(core, 1, UID_A);

    make_own(session, pool, 5, SIZE);
    ask(session, pool, 1, SIZE, 0, 0);
    ask_segments(session, pool, 2, 2, SIZE, 0);
    ask_segments(session, pool, 3, 1, SIZE, 0);
    ask(session, pool, 4, SIZE, 0, 0);
    expect_granted(core, session, 1);
    expect_segments(core, session, 2, 2, SIZE, NULL);
    expect_segments(core, session, 3, 1, SIZE, NULL);
    expect_granted(core, session, 4);
}

static void a_lost_session_keeps_leases_that_were_not_answered(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 64 * MIB);
    struct session *session = open_session(core, 1, UID_A);

    make_own(session, pool, 2, SIZE);
    ask_segments(session, pool, 1, 2, SIZE, 0);
    lose_session(session, 0);
    expect_no_answer(core);
    assert_int_equal(pool->quarantined_bytes, 2 * SIZE);
}

static void nothing_is_granted_where_one_is_missing(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 3 * SIZE);
    struct session *session = open_session(core, 1, UID_A);
    struct lease *lease;

    make_own(session, pool, 3, SIZE);
    lease = take(session, pool, 2 * MIB, 0);
    ask_segments(session, pool, 1, 3, SIZE, 0);
    expect_text(expect_refused(core, session, 1, PROTO_E_EXHAUSTED),
                "3 segments of 4 MiB asked of test pool, not free within the time given: no other process "
                "has enough to "
                "give back: this process holds the rest; 10 MiB free for user 1001 (in whole segments of 4 "
                "MiB: 8 MiB), 12 MiB reserved of at most 12 MiB");
    assert_int_equal(pool->leased_bytes, 2 * MIB);
    ask_segments(session, pool, 2, 3, SIZE, NS_FOREVER);
    expect_no_answer(core);
    assert_int_equal(release(session, name_of(lease), 0), 0);
    expect_segments(core, session, 2, 3, SIZE, NULL);
}

static void segments_of_another_size_do_not_serve(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 64 * MIB);
    struct session *session = open_session(core, 1, UID_A);

    make_own(session, pool, 2, 2 * SIZE);
    take(session, pool, 2 * SIZE, 0);
    segment_made(pool, (ask(session, pool, 1, 6 * SIZE, 0, 0), expect_growth(core, pool)), 0);
    expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    assert_int_equal(pool->unassigned_bytes, 6 * SIZE); /* larger, and without a tenant */
    ask_segments(session, pool, 2, 1, SIZE, NS_FOREVER);
    expect_no_answer(core);
    assert_int_equal(retire_all(core, 0), 2 * SIZE); /* a new one takes its place */
    grow(pool, SIZE, 0);
    expect_segments(core, session, 2, 1, SIZE, NULL);
    assert_int_equal(pool->unassigned_bytes, 6 * SIZE);
}

/* The pool does not hold idle memory of each size beside the others. */
static void idle_segments_of_another_size_are_replaced_by_as_many_bytes(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 64 * MIB);
    struct session *session = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_B);

    make_own(other, pool, 1, 2 * SIZE);
    make_own(session, pool, 3, 2 * SIZE);
    close_session(session, 0);
    close_session(other, 0);
    session = open_session(core, 3, UID_A);
    ask_segments(session, pool, 1, 3, SIZE, NS_FOREVER);
    assert_int_equal(retire_all(core, 0), 2 * SIZE); /* one for two, and not that of the other user */
    grow(pool, SIZE, 0);
    grow(pool, SIZE, 0);
    assert_int_equal(retire_all(core, 0), 2 * SIZE); /* and one for the third, and a fourth */
    grow(pool, SIZE, 0);
    expect_segments(core, session, 1, 3, SIZE, NULL);
    ask_segments(session, pool, 2, 1, SIZE, NS_FOREVER);
    grow(pool, SIZE, 0);
    expect_segments(core, session, 2, 1, SIZE, NULL);
    assert_int_equal(pool->reserved_bytes, 8 * SIZE);
}

static void segments_of_another_tenant_do_not_serve(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 64 * MIB);
    struct session *session = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_B);

    make_own(other, pool, 2, SIZE);
    ask_segments(session, pool, 1, 1, SIZE, NS_FOREVER);
    grow(pool, SIZE, 0);
    expect_segments(core, session, 1, 1, SIZE, NULL);
}

static void the_pool_grows_by_one_segment_after_the_other(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 64 * MIB);
    struct session *session = open_session(core, 1, UID_A);

    configure(pool, 64 * MIB, 32 * MIB, 0, 0, 0); /* a step that is larger */
    ask_segments(session, pool, 1, 3, SIZE, NS_FOREVER);
    for (unsigned i = 0; i < 3; i++) {
        expect_no_answer(core);
        grow(pool, SIZE, 0);
    }
    expect_segments(core, session, 1, 3, SIZE, NULL);
    expect_no_growth(core);
    assert_int_equal(pool->reserved_bytes, 3 * SIZE);
    let_go(session);

    /* what is there counts */
    ask_segments(session, pool, 2, 4, SIZE, NS_FOREVER);
    grow(pool, SIZE, 0);
    expect_segments(core, session, 2, 4, SIZE, NULL);
    assert_int_equal(pool->stats.n_grows, 4);
}

static void a_request_for_growth_only_is_refused_where_there_is_none(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 3 * SIZE);
    struct session *session = open_session(core, 1, UID_A);

    ask_segments_as(session, pool, 1, 2, SIZE, PROTO_ACQUIRE_NO_RECLAIM, NS_FOREVER, 0);
    grow(pool, SIZE, 0);
    grow(pool, SIZE, 0);
    expect_segments(core, session, 1, 2, SIZE, NULL);
    ask_segments_as(session, pool, 2, 2, SIZE, PROTO_ACQUIRE_NO_RECLAIM, NS_FOREVER, 0);
    expect_refused(core, session, 2, PROTO_E_EXHAUSTED);
    expect_no_growth(core);
}

/* Each of two sessions needs more than half of the pool. Were the segments granted one by one, both would
 * hold some and wait for the others. */
static void two_that_need_more_than_half_are_served_in_turn(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 4 * SIZE);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A),
                   *three = open_session(core, 3, UID_A);
    struct proto_lease_name names[3];

    make_own(three, pool, 4, SIZE);
    for (unsigned i = 0; i < 4; i++)
        take(three, pool, SIZE, 0);
    ask_segments(one, pool, 1, 3, SIZE, NS_FOREVER);
    ask_segments(two, pool, 2, 3, SIZE, NS_FOREVER);
    let_go(three);
    expect_segments(core, one, 1, 3, SIZE, names);
    expect_no_answer(core);
    release_all(one, names, 3);
    expect_segments(core, two, 2, 3, SIZE, names);
    ask_segments(one, pool, 3, 3, SIZE, NS_FOREVER);
    expect_no_answer(core);
    release_all(two, names, 3);
    expect_segments(core, one, 3, 3, SIZE, NULL);
}

/* A request for one segment can be served each time, one for two never. After some times the later one waits
 * behind it. */
static void a_request_that_was_passed_too_often_is_served_first(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 2 * SIZE);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A);
    struct proto_lease_name held[2], next;
    unsigned passes = 0;

    core->passes_limit = 4;
    make_own(one, pool, 2, SIZE);
    ask_segments(one, pool, 1, 2, SIZE, 0);
    expect_segments(core, one, 1, 2, SIZE, held);
    ask_segments(two, pool, 2, 2, SIZE, NS_FOREVER);
    for (;; passes++) {
        assert_int_equal(release(one, held[passes % 2], 0), 0);
        ask_segments(one, pool, 3 + passes, 1, SIZE, NS_FOREVER);
        if (list_is_empty(&core->answered))
            break;
        expect_segments(core, one, 3 + passes, 1, SIZE, &next);
        held[passes % 2] = next;
    }
    assert_int_equal(passes, 4);
    assert_int_equal(release(one, held[(passes + 1) % 2], 0), 0);
    expect_segments(core, two, 2, 2, SIZE, held);
    expect_no_answer(core);
    assert_int_equal(release(two, held[0], 0), 0);
    expect_segments(core, one, 3 + passes, 1, SIZE, NULL);
}

/* A grant of many segments passes a waiting request once. */
static void many_segments_are_one_pass(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 4 * SIZE);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A);

    make_own(one, pool, 4, SIZE);
    take(one, pool, SIZE, 0);
    ask_segments(two, pool, 2, 4, SIZE, NS_FOREVER);
    const struct request *waiter = container_of(two->requests.next, struct request, session_link);
    ask_segments(one, pool, 3, 3, SIZE, 0);
    expect_segments(core, one, 3, 3, SIZE, NULL);
    assert_int_equal(waiter->passes, 1);
}

/* Later requests are granted what an overdue one cannot use: segments of another size that the later one's
 * process has mapped. */
static void behind_an_overdue_request_other_memory_is_granted(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 8 * SIZE);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A);
    struct session *three = open_session(core, 3, UID_A);
    struct proto_lease_name names[2], held;

    core->passes_limit = 1;
    core_session_want_reclaim(one);
    map(one, pool, 2 * SIZE);
    map(one, pool, 2 * SIZE);
    map(one, pool, SIZE);
    let_go(one);
    held = name_of(take_growing(three, pool, 3 * SIZE, 0));
    ask_segments(two, pool, 2, 3, SIZE, NS_FOREVER);
    ask_segments(one, pool, 3, 1, SIZE, NS_FOREVER); /* passes it: the first is overdue now */
    expect_segments(core, one, 3, 1, SIZE, names);
    assert_int_equal(release(one, names[0], 0), 0);
    ask_segments(one, pool, 4, 1, SIZE, 0);
    expect_refused(core, one, 4, PROTO_E_EXHAUSTED);
    ask_segments(one, pool, 5, 2, 2 * SIZE, 0);
    expect_segments(core, one, 5, 2, 2 * SIZE, names);
    release_all(one, names, 2);
    ask_segments(three, pool, 6, 1, 2 * SIZE, 0); /* it would map them, and keep them from being retired */
    expect_refused(core, three, 6, PROTO_E_EXHAUSTED);
    assert_int_equal(release(three, held, 0), 0);
    assert_int_equal(retire_all(core, 0), 3 * SIZE);
    grow(pool, SIZE, 0);
    grow(pool, SIZE, 0);
    expect_segments(core, two, 2, 3, SIZE, NULL);
}

static void a_request_keeps_to_the_quota(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 64 * MIB);
    struct session *session = open_session(core, 1, UID_A);
    struct proto_lease_name names[2];

    limit_all(core, quota_item_of_pool(pool->id), 3 * SIZE, 0);
    make_own(session, pool, 3, SIZE);
    ask_segments(session, pool, 1, 4, SIZE, NS_FOREVER);
    expect_text(expect_refused(core, session, 1, PROTO_E_LIMIT),
                "4 segments of 4 MiB asked of test pool: QUOTA");
    ask_segments(session, pool, 2, 2, SIZE, 0);
    expect_segments(core, session, 2, 2, SIZE, names);
    ask_segments(session, pool, 3, 2, SIZE, NS_FOREVER);
    expect_no_answer(core);
    expect_no_growth(core);
    assert_int_equal(release(session, names[0], 0), 0);
    expect_segments(core, session, 3, 2, SIZE, NULL);
}

static void a_request_keeps_to_the_limit_of_leases(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 64 * MIB);
    struct session *session = open_session(core, 1, UID_A);

    make_own(session, pool, 4, SIZE);
    core->session_leases_limit = 3;
    ask_segments(session, pool, 1, 4, SIZE, 0);
    expect_text(expect_refused(core, session, 1, PROTO_E_LIMIT),
                "4 segments of 4 MiB asked for: this session");
    take(session, pool, SIZE, 0);
    ask_segments(session, pool, 2, 3, SIZE, 0);
    expect_text(expect_refused(core, session, 2, PROTO_E_LIMIT), "session_leases_limit");
    ask_segments(session, pool, 3, 2, SIZE, 0);
    expect_segments(core, session, 3, 2, SIZE, NULL);
    let_go(session);

    core->session_leases_limit = 100;
    limit_all(core, QUOTA_LEASES, 2, 0);
    ask_segments(session, pool, 4, 3, SIZE, 0);
    expect_text(expect_refused(core, session, 4, PROTO_E_LIMIT), "QUOTA");
    ask_segments(session, pool, 5, 2, SIZE, 0);
    expect_segments(core, session, 5, 2, SIZE, NULL);
}

static void what_is_too_large_is_refused(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 16 * MIB);
    struct session *session = open_session(core, 1, UID_A);

    ask_segments(session, pool, 1, 5, SIZE, NS_FOREVER);
    expect_text(expect_refused(core, session, 1, PROTO_E_TOO_LARGE),
                "5 segments of 4 MiB asked of test pool, which may grow to 16 MiB");
    ask_segments(session, pool, 2, 4, SIZE, NS_FOREVER);
    configure(pool, 12 * MIB, 2 * MIB, 0, 0, 0);
    expect_refused(core, session, 2, PROTO_E_TOO_LARGE);
    segment_made(pool, expect_growth(core, pool), 0);
}

static void only_pools_of_rows_have_them(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    ask_segments(session, pool, 1, 2, SIZE, NS_FOREVER);
    expect_text(expect_refused(core, session, 1, PROTO_E_INVALID), "only single blocks");
    expect_no_growth(core);
}

/* The pool retires idle segments for a request, but not those that the request can take. */
static void idle_segments_that_serve_are_not_retired(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 5 * SIZE);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_B);

    make_own(one, pool, 2, SIZE); /* not mapped: no answer was described */
    make_own(two, pool, 3, SIZE);
    ask_segments(one, pool, 1, 4, SIZE, NS_FOREVER);
    assert_int_equal(retire_all(core, 0), 2 * SIZE);
    grow(pool, SIZE, 0);
    grow(pool, SIZE, 0);
    expect_segments(core, one, 1, 4, SIZE, NULL);
    assert_int_equal(retire_all(core, 0), 0);
}

/* A session that has segments mapped of which nothing is taken. */
static struct session *open_keeping(struct core *core, struct pool *pool, pid_t pid, uid_t uid,
                                    unsigned count, uint64_t size) {
    struct session *session = open_wanting(core, pid, uid);
    for (unsigned i = 0; i < count; i++)
        map(session, pool, size);
    let_go(session);
    return session;
}

/* Two users' segments fill the pool. One user's request needs all of that user's segments and one more. */
static void own_free_segments_are_not_closed_for_it(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 4 * SIZE);
    struct session *one = open_keeping(core, pool, 1, UID_A, 2, SIZE);
    struct session *other = open_keeping(core, pool, 2, UID_B, 2, SIZE);

    ask_segments(one, pool, 1, 3, SIZE, NS_FOREVER);
    assert_true(pool->reclaim.is_stuck);
    expect_reclaim(core, one);
    expect_reclaim(core, other);
    assert_int_equal(idle(one, pool, 0).count, 0);
    struct proto_segments segments = idle(other, pool, 0);
    assert_int_equal(segments.count, 1);
    close_all(other, &segments);
    assert_int_equal(retire_all(core, 0), SIZE);
    grow(pool, SIZE, 0);
    expect_segments(core, one, 1, 3, SIZE, NULL);
}

/* Likewise after a refusal of a request that did not wait. */
static void own_free_segments_are_not_closed_after_a_refusal(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 4 * SIZE);
    struct session *one = open_keeping(core, pool, 1, UID_A, 2, SIZE);
    struct session *other = open_keeping(core, pool, 2, UID_B, 2, SIZE);

    ask_segments(one, pool, 1, 3, SIZE, 0);
    expect_refused(core, one, 1, PROTO_E_EXHAUSTED);
    assert_int_equal(idle(one, pool, 0).count, 0);
    struct proto_segments segments = idle(other, pool, 0);
    assert_int_equal(segments.count, 1);
    close_all(other, &segments);
    assert_int_equal(retire_all(core, 0), SIZE);
    ask_segments(one, pool, 2, 3, SIZE, NS_FOREVER);
    grow(pool, SIZE, 0);
    expect_segments(core, one, 2, 3, SIZE, NULL);
}

/* Nor for a later request of a session that closes segments for it before it waits. */
static void free_segments_are_not_closed_for_a_later_request(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 4 * SIZE);
    struct session *one = open_keeping(core, pool, 1, UID_A, 2, SIZE);
    struct session *other = open_keeping(core, pool, 2, UID_B, 2, SIZE);
    struct session *two = open_session(core, 3, UID_A);

    ask_segments(two, pool, 1, 3, SIZE, NS_FOREVER);
    assert_int_equal(idle(one, pool, 6 * MIB).count, 0);
    struct proto_segments segments = idle(other, pool, 6 * MIB);
    assert_int_equal(segments.count, 2);
    close_all(other, &segments);
    assert_int_equal(retire_all(core, 0), 2 * SIZE);
    grow(pool, SIZE, 0);
    expect_segments(core, two, 1, 3, SIZE, NULL);
}

/* The request's tenant keeps segments of another size, which are closed for it. */
static void own_segments_of_another_size_are_closed(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 4 * SIZE);
    struct session *one = open_keeping(core, pool, 1, UID_A, 2, SIZE), *two;

    two = open_keeping(core, pool, 2, UID_A, 1, 2 * SIZE);
    ask_segments(one, pool, 1, 3, SIZE, NS_FOREVER);
    assert_int_equal(idle(one, pool, 0).count, 0);
    struct proto_segments segments = idle(two, pool, 0);
    assert_int_equal(segments.count, 1);
    close_all(two, &segments);
    assert_int_equal(retire_all(core, 0), 2 * SIZE);
    grow(pool, SIZE, 0);
    expect_segments(core, one, 1, 3, SIZE, NULL);
}

static void a_request_is_refused_when_the_driver_refuses(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 64 * MIB);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_B);
    struct segment *segment;

    /* alone, also where it has found some of its segments */
    make_own(one, pool, 1, SIZE);
    ask_segments(one, pool, 1, 3, SIZE, NS_FOREVER);
    grow(pool, SIZE, 0);
    assert_int_equal(expect_growth(core, pool), SIZE);
    growth_failed(pool, "out of memory", 0);
    expect_text(expect_refused(core, one, 1, PROTO_E_DRIVER),
                "3 segments of 4 MiB asked of test pool: out of memory");
    assert_false(core_next_retirement(core, &segment));

    /* a request that the first one's idle segments can make room for is not refused with it */
    ask_segments(one, pool, 2, 3, SIZE, NS_FOREVER);
    tick(core, 2 * GROW_RETRY_NS);
    assert_int_equal(expect_growth(core, pool), SIZE);
    ask(two, pool, 3, 6 * MIB, NS_FOREVER, 2 * GROW_RETRY_NS);
    growth_failed(pool, "out of memory", 2 * GROW_RETRY_NS);
    expect_refused(core, one, 2, PROTO_E_DRIVER);
    expect_no_answer(core);
    tick(core, 2 * GROW_RETRY_NS);
    expect_no_answer(core);
    tick(core, 3 * GROW_RETRY_NS);
    assert_int_equal(expect_growth(core, pool), 6 * MIB);
    growth_failed(pool, "out of memory", 3 * GROW_RETRY_NS);
    assert_int_equal(retire_all(core, 3 * GROW_RETRY_NS), 2 * SIZE);
    grow(pool, 6 * MIB, 3 * GROW_RETRY_NS);
    expect_granted(core, two, 3);
}

/* Makes a segment of the session's tenant, and others without a tenant: the session for which the pool grew
 * had ended before they were made. */
static void make_some(struct pool *pool, struct session *session, unsigned unassigned) {
    struct core *core = pool->core;

    make_own(session, pool, 1, SIZE);
    for (unsigned i = 0; i < unassigned; i++) {
        struct session *brief = open_session(core, 9, UID_B);
        ask_segments(brief, pool, 9, 1 + i, SIZE, NS_FOREVER);
        uint64_t size = expect_growth(core, pool);
        close_session(brief, 0);
        segment_made(pool, size, 0);
    }
    assert_int_equal(pool->unassigned_bytes, unassigned * SIZE);
}

/* Either all is granted, or nothing has changed but the counts of what happened. */
static void every_allocation_may_fail(void **state) {
    bool failed = true;
    (void)state;

    for (unsigned n = 1; failed; n++) {
        struct core *core = core_make();
        struct pool *pool = add_vmm_pool(core, 512 * MIB);
        struct session *session = open_session(core, 1, UID_A);
        struct answer answer;

        make_some(pool, session, 70); /* more than a table, a word of bits */
        const struct proto_acquire_segments acquire = {
            .pool = pool->id, .segment_bytes = SIZE, .count = 71, .timeout_ns = NS_FOREVER};
        memory_fail_nth(n);
        int r = core_acquire_segments(session, 1, &acquire, 0);
        failed = memory_failed();
        memory_fail_nth(0);
        assert_true(core_is_valid(core));
        assert_int_equal(r, failed && n == 1 ? -ENOMEM : 0);
        if (failed && n > 1) {
            assert_true(core_next_answer(core, &answer));
            assert_null(answer.lease);
            assert_int_equal(answer.n_leases, 0);
            assert_int_equal(answer.failure.error, PROTO_E_NO_MEMORY);
        }
        if (failed) {
            assert_int_equal(pool->leased_bytes, 0);
            assert_int_equal(pool->unassigned_bytes, 70 * SIZE);
            assert_int_equal(session->n_leases, 0);
            ask_segments(session, pool, 1, 71, SIZE, 0);
        }
        expect_segments(core, session, 1, 71, SIZE, NULL);
        expect_no_answer(core);
        core_destroy(core);
    }
}

/* During a shortage the first lease of a grant makes a session one that can be asked. When there is no memory
 * for the second lease, both are undone, and so is the question. */
static void a_session_is_not_asked_for_leases_that_were_undone(void **state) {
    bool failed = true;
    (void)state;

    for (unsigned n = 1; failed; n++) {
        struct core *core = core_make();
        struct pool *pool = add_vmm_pool(core, 4 * SIZE);
        struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_B);
        struct session *three = open_session(core, 3, UID_A);
        struct answer answer;

        core_session_want_reclaim(one);
        core_session_want_reclaim(three);
        make_own(one, pool, 2, SIZE);
        take_growing(one, pool, 2 * SIZE, 0);
        ask(two, pool, 1, 3 * SIZE, NS_FOREVER, 0);
        expect_reclaim(core, one);
        const struct proto_acquire_segments acquire = {.pool = pool->id, .segment_bytes = SIZE, .count = 2};
        memory_fail_nth(n);
        (void)core_acquire_segments(three, 2, &acquire, 0);
        failed = memory_failed();
        memory_fail_nth(0);
        assert_true(core_is_valid(core));
        if (failed) {
            expect_no_reclaim(core);
            if (core_next_answer(core, &answer))
                assert_int_equal(answer.failure.error, PROTO_E_NO_MEMORY);
        } else {
            expect_reclaim(core, three);
            expect_segments(core, three, 2, 2, SIZE, NULL);
        }
        core_destroy(core);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(segments_are_granted_at_once),
        CORE_TEST(leases_are_answered_apart_from_others),
        CORE_TEST(a_lost_session_keeps_leases_that_were_not_answered),
        CORE_TEST(nothing_is_granted_where_one_is_missing),
        CORE_TEST(segments_of_another_size_do_not_serve),
        CORE_TEST(idle_segments_of_another_size_are_replaced_by_as_many_bytes),
        CORE_TEST(segments_of_another_tenant_do_not_serve),
        CORE_TEST(the_pool_grows_by_one_segment_after_the_other),
        CORE_TEST(a_request_for_growth_only_is_refused_where_there_is_none),
        CORE_TEST(two_that_need_more_than_half_are_served_in_turn),
        CORE_TEST(a_request_that_was_passed_too_often_is_served_first),
        CORE_TEST(many_segments_are_one_pass),
        CORE_TEST(behind_an_overdue_request_other_memory_is_granted),
        CORE_TEST(a_request_keeps_to_the_quota),
        CORE_TEST(a_request_keeps_to_the_limit_of_leases),
        CORE_TEST(what_is_too_large_is_refused),
        CORE_TEST(only_pools_of_rows_have_them),
        CORE_TEST(idle_segments_that_serve_are_not_retired),
        CORE_TEST(own_free_segments_are_not_closed_for_it),
        CORE_TEST(own_free_segments_are_not_closed_after_a_refusal),
        CORE_TEST(free_segments_are_not_closed_for_a_later_request),
        CORE_TEST(own_segments_of_another_size_are_closed),
        CORE_TEST(a_request_is_refused_when_the_driver_refuses),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_session_is_not_asked_for_leases_that_were_undone),
    };
    return cmocka_run_group_tests_name("whole segments", tests, NULL, NULL);
}
