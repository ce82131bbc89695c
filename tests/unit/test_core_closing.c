/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must hold of segments that sessions are told to close (daemon/core/closing.h): when nothing else
 * serves a request and not before, no more than it lacks, sessions without GPU work first, and each mapper
 * once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "daemon/core/fence.h"
#include "quota_fixture.h"

#define UID_C 1003u

/* A lease that has a segment of that size for itself, which the session maps. Returns the segment's id. */
static uint64_t map(struct session *session, struct pool *pool, uint64_t size) {
    struct proto_lease wire;
    struct lease *lease = take_growing(session, pool, size, 0);

    assert_true(describe(lease, &wire));
    assert_int_equal(lease->block->segment->size_bytes, size);
    return wire.segment;
}

/* The session gives back all that it holds. Its segments stay mapped. */
static void let_go(struct session *session) {
    while (!list_is_empty(&session->leases)) {
        struct lease *lease = container_of(session->leases.next, struct lease, session_link);
        assert_int_equal(release(session, name_of(lease), 0), 0);
    }
}

/* A segment of that size, which the session has mapped and of which nothing is taken. */
static uint64_t keep(struct session *session, struct pool *pool, uint64_t size) {
    uint64_t segment = map(session, pool, size);
    let_go(session);
    return segment;
}

static void close_all(struct session *session, const struct proto_segments *segments) {
    for (uint32_t i = 0; i < segments->count; i++)
        assert_int_equal(closed(session, segments->ids[i]), 0);
}

static struct proto_segments idle_busy(struct session *session, const struct pool *pool, uint64_t size) {
    return idle_as(session, pool, size, PROTO_IDLE_BUSY, 0);
}

static void expect_one(const struct proto_segments *segments, uint64_t segment) {
    assert_int_equal(segments->count, 1);
    assert_int_equal(segments->ids[0], segment);
}

/* A pool at its limit: two sessions keep a segment of 8 MiB each, and a session of another user waits for as
 * much. Both have been asked. */
struct full {
    struct core *core;
    struct pool *pool;
    struct session *one, *two, *other;
    uint64_t segment_one, segment_two;
};

static void make_full(struct full *full) {
    full->core = core_make();
    full->pool = add_pool(full->core, 16 * MIB, 2 * MIB, 0);
    full->one = open_wanting(full->core, 1, UID_A);
    full->two = open_wanting(full->core, 2, UID_C);
    full->other = open_session(full->core, 3, UID_B);
    full->segment_one = keep(full->one, full->pool, 8 * MIB);
    full->segment_two = keep(full->two, full->pool, 8 * MIB);
    ask(full->other, full->pool, 1, 8 * MIB, NS_FOREVER, 0);
    expect_no_growth(full->core);
    expect_reclaim(full->core, full->one);
    expect_reclaim(full->core, full->two);
    expect_no_reclaim(full->core);
}

/* The one who waits is served when this segment is closed. */
static void expect_served(struct full *full, struct session *session, uint64_t segment) {
    assert_int_equal(closed(session, segment), 0);
    assert_int_equal(retire_all(full->core, 0), 8 * MIB);
    grow(full->pool, 8 * MIB, 0);
    expect_granted(full->core, full->other, 1);
}

/* --- when nothing else serves --- */

static void nothing_is_named_while_the_pool_can_grow(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 24 * MIB, 2 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);
    (void)state;

    uint64_t segment = keep(holder, pool, 8 * MIB);
    assert_int_equal(idle(holder, pool, 16 * MIB).count, 0); /* for its own request */
    ask(other, pool, 1, 16 * MIB, NS_FOREVER, 0);
    assert_int_equal(idle(holder, pool, 0).count, 0); /* nor for others' */
    grow(pool, 16 * MIB, 0);
    expect_granted(core, other, 1);
    ask(other, pool, 2, 2 * MIB, NS_FOREVER, 0);
    expect_no_growth(core);
    struct proto_segments segments = idle(holder, pool, 0);
    expect_one(&segments, segment);
    core_destroy(core);
}

static void nothing_is_named_while_segments_that_nobody_has_mapped_are_enough(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 16 * MIB, 2 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *gone = open_session(core, 2, UID_B);
    struct session *other = open_session(core, 3, UID_C);
    (void)state;

    keep(holder, pool, 8 * MIB);
    map(gone, pool, 8 * MIB);
    close_session(gone, 0);
    assert_int_equal(idle(holder, pool, 8 * MIB).count, 0);
    ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
    assert_int_equal(idle(holder, pool, 0).count, 0); /* on its way back to the driver */
    assert_int_equal(retire_all(core, 0), 8 * MIB);
    assert_int_equal(idle(holder, pool, 0).count, 0);
    grow(pool, 8 * MIB, 0);
    expect_granted(core, other, 1);
    core_destroy(core);
}

/* A client that does not wait gives back what it has, and asks for segments to close before it asks again. */
static void nothing_is_named_while_a_free_range_serves(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 8 * MIB, 2 * MIB, 0);
    struct session *session = open_wanting(core, 1, UID_A);
    (void)state;

    uint64_t segment = map(session, pool, 8 * MIB);
    ask(session, pool, 1, 4 * MIB, 0, 0);
    expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    let_go(session);
    assert_int_equal(idle(session, pool, 4 * MIB).count, 0);
    assert_int_equal(take(session, pool, 4 * MIB, 0)->block->segment->id, segment);
    core_destroy(core);
}

static void nothing_is_named_when_no_request_waits(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 16 * MIB, 2 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);
    (void)state;

    uint64_t segment = keep(holder, pool, 8 * MIB);
    map(other, pool, 8 * MIB);
    assert_int_equal(idle(holder, pool, 0).count, 0);
    ask(other, pool, 1, 8 * MIB, NS_PER_MS, 0);
    tick(core, NS_PER_MS);
    expect_refused(core, other, 1, PROTO_E_EXHAUSTED); /* its time is over */
    assert_int_equal(idle(holder, pool, 0).count, 0);
    ask(other, pool, 2, 8 * MIB, NS_FOREVER, 0);
    struct proto_segments segments = idle(holder, pool, 0);
    expect_one(&segments, segment);
    core_destroy(core);
}

static void a_segment_is_named_when_the_driver_refuses(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 64 * MIB, 2 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);
    (void)state;

    uint64_t segment = keep(holder, pool, 8 * MIB);
    map(open_session(core, 3, UID_C), pool, 2 * MIB); /* in use */
    ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
    expect_growth(core, pool);
    assert_int_equal(idle(holder, pool, 0).count, 0);
    growth_failed(pool, "out of memory", 0);
    expect_reclaim(core, holder);
    struct proto_segments segments = idle(holder, pool, 0);
    expect_one(&segments, segment);
    close_all(holder, &segments);
    assert_int_equal(retire_all(core, 0), 8 * MIB);
    grow(pool, 8 * MIB, 0); /* the driver has something to give again */
    expect_granted(core, other, 1);
    core_destroy(core);
}

static void a_request_is_not_given_up_while_a_session_can_close_segments(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 64 * MIB, 2 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);
    (void)state;

    uint64_t segment = map(holder, pool, 8 * MIB);
    ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
    expect_growth(core, pool);
    growth_failed(pool, "out of memory", 0);
    expect_reclaim(core, holder);
    let_go(holder); /* the memory that came back is its user's, and nothing is leased any more */
    expect_no_answer(core);
    struct proto_segments segments = idle(holder, pool, 0);
    expect_one(&segments, segment);
    close_all(holder, &segments);
    assert_int_equal(retire_all(core, 0), 8 * MIB);
    grow(pool, 8 * MIB, 0);
    expect_granted(core, other, 1);
    core_destroy(core);
}

static void a_pool_that_is_lost_or_does_not_exist_has_nothing_to_close(void **state) {
    struct full full;
    const struct proto_idle message = {.pool = 9, .size_bytes = MIB};
    struct proto_segments segments;
    (void)state;

    make_full(&full);
    assert_int_equal(core_idle(full.one, &message, 0, &segments), PROTO_E_NO_POOL);
    core_pool_lost(full.pool, "the device is lost", 0);
    expect_refused(full.core, full.other, 1, PROTO_E_DRIVER);
    assert_int_equal(idle(full.one, full.pool, 0).count, 0);
    assert_int_equal(idle(full.one, full.pool, 16 * MIB).count, 0);
    core_destroy(full.core);
}

/* --- what is named --- */

static void no_more_is_named_than_the_request_lacks(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 42 * MIB, 2 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);
    (void)state;

    uint64_t small = map(holder, pool, 4 * MIB);
    uint64_t large = map(holder, pool, 16 * MIB);
    uint64_t largest = map(holder, pool, 20 * MIB);
    let_go(holder);
    ask(other, pool, 1, 24 * MIB, NS_FOREVER, 0); /* 2 MiB are left to the limit */
    struct proto_segments segments = idle(holder, pool, 0);
    assert_int_equal(segments.count, 2);
    assert_int_equal(segments.ids[0], largest);
    assert_int_equal(segments.ids[1], small); /* the smallest that is enough for the rest */
    assert_int_equal(idle(holder, pool, 0).count, 0);
    close_all(holder, &segments);
    assert_int_equal(retire_all(core, 0), 24 * MIB);
    grow(pool, 24 * MIB, 0);
    expect_granted(core, other, 1);
    assert_int_equal(idle(holder, pool, 0).count, 0);
    ask(other, pool, 2, 4 * MIB, NS_FOREVER, 0);
    segments = idle(holder, pool, 0);
    expect_one(&segments, large); /* more than that, where nothing smaller is enough */
    core_destroy(core);
}

static void a_request_that_a_smaller_size_serves_lacks_no_more_than_that(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 24 * MIB, 2 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);
    (void)state;

    for (unsigned i = 0; i < 3; i++)
        map(holder, pool, 8 * MIB);
    let_go(holder);
    ask_least(other, pool, 1, 24 * MIB, 8 * MIB, 0, NS_FOREVER, 0);
    assert_int_equal(idle(holder, pool, 0).count, 1);
    core_destroy(core);
}

static void a_segment_in_use_is_not_named(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);
    (void)state;

    struct lease *lease = take_growing(holder, pool, 512, 0);
    assert_true(describe(lease, NULL));
    ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
    assert_int_equal(idle(holder, pool, 0).count, 0);
    assert_int_equal(release(holder, name_of(lease), 0), 0);
    assert_int_equal(idle(holder, pool, 0).count, 1);
    core_destroy(core);
}

static void a_segment_is_not_named_before_the_fences_in_it_are_ready(void **state) {
    static struct proto_page page;
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 8 * MIB, 2 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);
    (void)state;

    memset(&page, 0, sizeof page);
    core_session_set_page(holder, &page);
    struct lease *lease = take_growing(holder, pool, 8 * MIB, 0);
    assert_true(describe(lease, NULL));
    const struct proto_release later = {
        .lease = lease->id, .generation = lease->generation, .fence = 1, .fence_value = 1};
    assert_int_equal(core_release(holder, &later, 0), 0);
    ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
    assert_int_equal(idle(holder, pool, 0).count, 0);
    page.fences[0] = 1;
    assert_int_equal(idle(holder, pool, 0).count, 1);
    core_destroy(core);
}

static void what_came_back_behind_a_fence_serves_before_it_is_closed(void **state) {
    static struct proto_page page;
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 8 * MIB, 2 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_A);
    (void)state;

    memset(&page, 0, sizeof page);
    core_session_set_page(holder, &page);
    struct lease *lease = take_growing(holder, pool, 8 * MIB, 0);
    assert_true(describe(lease, NULL));
    const struct proto_release later = {
        .lease = lease->id, .generation = lease->generation, .fence = 1, .fence_value = 1};
    assert_int_equal(core_release(holder, &later, 0), 0);
    ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
    expect_no_answer(core);
    page.fences[0] = 1;
    assert_int_equal(idle(holder, pool, 0).count, 0);
    expect_granted(core, other, 1); /* of the same user: it needs no new segment */
    core_destroy(core);
}

static void what_one_message_does_not_hold_the_next_does(void **state) {
    enum {
        COUNT = PROTO_CLOSE_MAX + 30
    };
    struct core *core = core_make();
    struct pool *pool = add_pool(core, COUNT * 4 * MIB, 2 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);
    (void)state;

    for (unsigned i = 0; i < COUNT; i++)
        map(holder, pool, 4 * MIB);
    let_go(holder);
    ask(other, pool, 1, (COUNT - 10) * 4 * MIB, NS_FOREVER, 0);
    struct proto_segments first = idle(holder, pool, 0);
    assert_int_equal(first.count, PROTO_CLOSE_MAX);
    struct proto_segments second = idle(holder, pool, 0);
    assert_int_equal(second.count, COUNT - 10 - PROTO_CLOSE_MAX);
    assert_int_equal(idle(holder, pool, 0).count, 0);
    close_all(holder, &first);
    expect_no_growth(core);
    close_all(holder, &second);
    assert_int_equal(retire_all(core, 0), (COUNT - 10) * 4 * MIB);
    grow(pool, (COUNT - 10) * 4 * MIB, 0);
    expect_granted(core, other, 1);
    core_destroy(core);
}

static void a_message_that_is_just_full_is_followed_by_none(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, (PROTO_CLOSE_MAX + 1) * 2 * MIB, 2 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);
    (void)state;

    for (unsigned i = 0; i <= PROTO_CLOSE_MAX; i++)
        map(holder, pool, 2 * MIB);
    let_go(holder);
    ask(other, pool, 1, PROTO_CLOSE_MAX * 2 * MIB, NS_FOREVER, 0);
    assert_int_equal(idle(holder, pool, 0).count, PROTO_CLOSE_MAX);
    assert_int_equal(idle(holder, pool, 0).count, 0);
    core_destroy(core);
}

/* --- who is told --- */

static void a_session_without_gpu_work_is_told_at_once(void **state) {
    struct full full;
    (void)state;

    make_full(&full);
    struct proto_segments segments = idle(full.one, full.pool, 0); /* the second has not answered */
    expect_one(&segments, full.segment_one);
    assert_int_equal(idle(full.two, full.pool, 0).count, 0); /* that is enough */
    expect_served(&full, full.one, full.segment_one);
    core_destroy(full.core);
}

static void a_busy_session_is_not_told_when_an_idle_one_can_close_enough(void **state) {
    struct full full;
    (void)state;

    make_full(&full);
    assert_int_equal(idle_busy(full.one, full.pool, 0).count, 0);
    struct proto_segments segments = idle(full.two, full.pool, 0);
    expect_one(&segments, full.segment_two);
    assert_int_equal(idle_busy(full.one, full.pool, 0).count, 0);
    expect_no_reclaim(full.core);
    expect_served(&full, full.two, full.segment_two);
    core_destroy(full.core);
}

static void a_busy_session_is_told_when_the_others_have_answered(void **state) {
    struct full full;
    (void)state;

    make_full(&full);
    take(full.two, full.pool, 512, 0); /* it has nothing to close */
    assert_int_equal(idle(full.two, full.pool, 0).count, 0);
    struct proto_segments segments = idle_busy(full.one, full.pool, 0);
    expect_one(&segments, full.segment_one);
    expect_served(&full, full.one, full.segment_one);
    core_destroy(full.core);
}

static void a_busy_session_that_answered_first_is_asked_again_at_once(void **state) {
    struct full full;
    (void)state;

    make_full(&full);
    take(full.two, full.pool, 512, 0);
    assert_int_equal(idle_busy(full.one, full.pool, 0).count, 0);
    assert_int_equal(idle(full.two, full.pool, 0).count, 0);
    expect_reclaim(full.core, full.one);
    expect_reclaim(full.core, full.two);
    expect_no_reclaim(full.core);
    struct proto_segments segments = idle_busy(full.one, full.pool, 0);
    expect_one(&segments, full.segment_one);
    expect_served(&full, full.one, full.segment_one);
    core_destroy(full.core);
}

static void of_busy_sessions_alone_the_last_to_answer_is_told(void **state) {
    struct full full;
    (void)state;

    make_full(&full);
    assert_int_equal(idle_busy(full.one, full.pool, 0).count, 0);
    struct proto_segments segments = idle_busy(full.two, full.pool, 0);
    expect_one(&segments, full.segment_two);
    expect_no_reclaim(full.core); /* it is enough */
    expect_served(&full, full.two, full.segment_two);
    core_destroy(full.core);
}

static void a_session_that_does_not_answer_holds_a_busy_one_up_until_the_second_question(void **state) {
    struct full full;
    (void)state;

    make_full(&full);
    for (unsigned i = 0; i < 3; i++) /* however often it says so */
        assert_int_equal(idle_busy(full.one, full.pool, 0).count, 0);
    tick(full.core, RECLAIM_INTERVAL_NS - 1);
    assert_int_equal(idle_as(full.one, full.pool, 0, PROTO_IDLE_BUSY, RECLAIM_INTERVAL_NS - 1).count, 0);
    tick(full.core, RECLAIM_INTERVAL_NS);
    expect_reclaim(full.core, full.one);
    expect_reclaim(full.core, full.two);
    struct proto_segments segments = idle_as(full.one, full.pool, 0, PROTO_IDLE_BUSY, RECLAIM_INTERVAL_NS);
    expect_one(&segments, full.segment_one);
    core_destroy(full.core);
}

static void sessions_that_cannot_be_asked_hold_no_busy_one_up(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 32 * MIB, 2 * MIB, 0);
    struct session *busy = open_wanting(core, 1, UID_A), *deaf = open_session(core, 2, UID_C);
    struct session *lost = open_wanting(core, 3, UID_C), *other = open_session(core, 4, UID_B);
    (void)state;

    uint64_t segment = keep(busy, pool, 8 * MIB);
    map(deaf, pool, 8 * MIB);
    map(lost, pool, 16 * MIB);
    open_wanting(core, 5, UID_C); /* and one that has nothing of the pool */
    lose_session(lost, 0);
    ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
    struct proto_segments segments = idle_busy(busy, pool, 0);
    expect_one(&segments, segment);
    core_destroy(core);
}

static void a_session_that_ends_instead_of_answering_holds_no_busy_one_up(void **state) {
    (void)state;
    for (unsigned way = 0; way < 2; way++) {
        struct full full;
        make_full(&full);
        take(full.two, full.pool, 512, 0); /* so that its end makes no room by itself at once */
        assert_int_equal(idle_busy(full.one, full.pool, 0).count, 0);
        lose_session(full.two, 0);
        if (way == 1)
            session_gone(full.two, 0);
        assert_int_equal(idle_busy(full.one, full.pool, 0).count, way == 0 ? 1 : 0);
        core_destroy(full.core);
    }
}

/* What is asked of one user's sessions for that user's quota is asked of nobody else. */
static void questions_for_a_users_quota_are_not_counted_as_the_pools(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 24 * MIB, 2 * MIB, 0);
    (void)state;

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
    core_destroy(core);
}

/* --- for its own request --- */

static void a_session_closes_for_its_own_request_what_is_of_no_use_to_others(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 16 * MIB, 2 * MIB, 0);
    struct session *session = open_wanting(core, 1, UID_A);
    (void)state;

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
    core_destroy(core);
}

static void a_busy_session_closes_nothing_for_its_own_request_before_the_others_have_answered(void **state) {
    struct full full;
    (void)state;

    make_full(&full);
    take(full.two, full.pool, 512, 0);
    assert_int_equal(idle_busy(full.one, full.pool, 12 * MIB).count, 0);
    assert_int_equal(idle(full.two, full.pool, 12 * MIB).count, 0); /* which is no answer to the question */
    assert_int_equal(idle_busy(full.one, full.pool, 12 * MIB).count, 0);
    assert_int_equal(idle(full.two, full.pool, 0).count, 0);
    struct proto_segments segments = idle_busy(full.one, full.pool, 12 * MIB);
    expect_one(&segments, full.segment_one);
    core_destroy(full.core);
}

static void who_did_not_wait_finds_room_when_it_comes_again(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 16 * MIB, 8 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);
    (void)state;

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
    core_destroy(core);
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

static void make_common(struct common *common, bool second_is_deaf) {
    common->core = core_make();
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
    (void)state;

    make_common(&common, false);
    assert_int_equal(idle(common.one, common.pool, 0).count, 0); /* others may have better ones */
    struct proto_segments segments = idle(common.two, common.pool, 0);
    expect_one(&segments, common.segment);
    assert_int_equal(idle(common.two, common.pool, 0).count, 0);
    expect_reclaim(common.core, common.one); /* it learns it from the answer */
    expect_no_reclaim(common.core);
    segments = idle_busy(common.one, common.pool, 0); /* it is nobody's already */
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
    core_destroy(common.core);
}

static void a_mapper_that_was_not_told_cannot_have_closed(void **state) {
    struct common common;
    (void)state;

    make_common(&common, false);
    assert_int_equal(idle(common.one, common.pool, 0).count, 0);
    assert_int_equal(idle(common.two, common.pool, 0).count, 1);
    assert_int_equal(closed(common.one, common.segment), PROTO_E_INVALID);
    assert_int_equal(idle(common.one, common.pool, 0).count, 1);
    assert_int_equal(closed(common.one, common.segment), 0);
    core_destroy(common.core);
}

static void the_segment_with_the_fewest_mappers_is_named_first(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 20 * MIB, 2 * MIB, 0);
    struct session *one = open_wanting(core, 1, UID_A), *two = open_wanting(core, 2, UID_A);
    struct session *other = open_session(core, 3, UID_B);
    (void)state;

    map(one, pool, 8 * MIB); /* which would be just enough */
    let_go(one);
    assert_true(describe(take(two, pool, MIB, 0), NULL));
    let_go(two);
    uint64_t own = keep(one, pool, 12 * MIB);
    ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
    assert_int_equal(idle(two, pool, 0).count, 0);
    struct proto_segments segments = idle(one, pool, 0);
    expect_one(&segments, own);
    core_destroy(core);
}

static void a_segment_is_not_closed_while_a_mapper_cannot_be_asked(void **state) {
    struct common common;
    (void)state;

    make_common(&common, true);
    assert_int_equal(idle(common.one, common.pool, 0).count, 0);
    assert_int_equal(idle(common.two, common.pool, 0).count, 0); /* not even if it asks by itself */
    tick(common.core, RECLAIM_INTERVAL_NS);
    expect_reclaim(common.core, common.one);
    assert_int_equal(idle(common.one, common.pool, 0).count, 0);
    close_session(common.two, RECLAIM_INTERVAL_NS);
    struct proto_segments segments = idle(common.one, common.pool, 0);
    expect_one(&segments, common.segment);
    core_destroy(common.core);
}

/* A client without a cache: it says by itself what its request lacks. */
static void a_session_that_cannot_be_asked_closes_for_its_own_request(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 12 * MIB, 2 * MIB, 0);
    struct session *deaf = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_A);
    (void)state;

    uint64_t segment = keep(deaf, pool, 8 * MIB);
    assert_true(describe(take(other, pool, MIB, 0), NULL));
    let_go(other);
    assert_int_equal(idle(deaf, pool, 10 * MIB).count, 0); /* nobody can tell the other mapper */
    close_session(other, 0);
    assert_int_equal(idle(deaf, pool, 8 * MIB).count, 0); /* there is room */
    struct proto_segments segments = idle(deaf, pool, 10 * MIB);
    expect_one(&segments, segment);
    assert_int_equal(closed(deaf, segment), 0);
    core_destroy(core);
}

static void a_segment_is_not_closed_while_a_lost_session_has_it_mapped(void **state) {
    struct common common;
    (void)state;

    make_common(&common, false);
    lose_session(common.two, 0);
    assert_int_equal(idle(common.one, common.pool, 0).count, 0);
    assert_int_equal(idle(common.one, common.pool, 8 * MIB + 512).count, 0);
    session_gone(common.two, 0);
    struct proto_segments segments = idle(common.one, common.pool, 0);
    expect_one(&segments, common.segment);
    core_destroy(common.core);
}

static void a_mapper_that_is_lost_before_it_was_told_keeps_the_segment_until_its_end(void **state) {
    struct common common;
    (void)state;

    make_common(&common, false);
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
    core_destroy(common.core);
}

/* --- while it is CLOSING --- */

static void nothing_is_lent_in_a_segment_that_is_being_closed(void **state) {
    struct full full;
    (void)state;

    make_full(&full);
    assert_int_equal(idle(full.one, full.pool, 0).count, 1);
    assert_int_equal(full.pool->closing_bytes, 8 * MIB);
    assert_int_equal(pool_free_bytes(full.pool), 8 * MIB); /* the second's */
    ask(full.one, full.pool, 2, 512, 0, 0);
    expect_refused(full.core, full.one, 2, PROTO_E_EXHAUSTED);
    expect_no_retirement(full.core); /* the session has it mapped */
    core_destroy(full.core);
}

static void growth_does_not_wait_for_a_segment_that_is_being_closed(void **state) {
    struct full full;
    (void)state;

    make_full(&full);
    assert_int_equal(idle(full.one, full.pool, 0).count, 1);
    configure(full.pool, 24 * MIB, 2 * MIB, 0, 0, 0);
    grow(full.pool, 8 * MIB, 0);
    expect_granted(full.core, full.other, 1);
    core_destroy(full.core);
}

static void a_segment_is_charged_to_its_user_until_it_is_closed(void **state) {
    (void)state;
    for (unsigned way = 0; way < 3; way++) {
        struct full full;
        make_full(&full);
        assert_int_equal(used(full.one, QUOTA_POOLS), 0);
        assert_int_equal(idle(full.one, full.pool, 0).count, 1);
        struct session *witness = open_session(full.core, 9, UID_A);
        assert_int_equal(used(witness, QUOTA_POOLS), 8 * MIB);
        if (way == 0) {
            assert_int_equal(closed(full.one, full.segment_one), 0);
        } else if (way == 1) {
            close_session(full.one, 0);
        } else {
            lose_session(full.one, 0);
            assert_int_equal(used(witness, QUOTA_POOLS), 8 * MIB);
            expect_no_retirement(full.core);
            session_gone(full.one, 0);
        }
        assert_int_equal(used(witness, QUOTA_POOLS), 0);
        assert_int_equal(retire_all(full.core, 0), 8 * MIB);
        grow(full.pool, 8 * MIB, 0);
        expect_granted(full.core, full.other, 1);
        core_destroy(full.core);
    }
}

static void only_what_was_named_can_be_closed_and_only_once_and_by_its_session(void **state) {
    struct full full;
    (void)state;

    make_full(&full);
    assert_int_equal(closed(full.one, full.segment_one), PROTO_E_INVALID);
    assert_int_equal(closed(full.one, full.segment_one + 100), PROTO_E_INVALID);
    assert_int_equal(idle(full.one, full.pool, 0).count, 1);
    assert_int_equal(closed(full.two, full.segment_one), PROTO_E_INVALID);
    assert_int_equal(closed(full.one, full.segment_two), PROTO_E_INVALID);
    assert_int_equal(closed(full.one, full.segment_one), 0);
    assert_int_equal(closed(full.one, full.segment_one), PROTO_E_INVALID);
    assert_int_equal(retire_all(full.core, 0), 8 * MIB);
    assert_int_equal(closed(full.one, full.segment_one), PROTO_E_INVALID);
    assert_int_equal(full.pool->stats.n_closes, 1);
    core_destroy(full.core);
}

static void closings_and_their_time_are_counted(void **state) {
    static const uint64_t times[] = {1000, 0, CLOSE_NS_MAX + 1, UINT64_MAX};
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 8 * MIB, 2 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);
    (void)state;

    for (unsigned i = 0; i < 4; i++)
        map(holder, pool, 2 * MIB);
    let_go(holder);
    ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
    struct proto_segments segments = idle(holder, pool, 0);
    assert_int_equal(segments.count, 4);
    for (unsigned i = 0; i < 4; i++) {
        const struct proto_closed message = {.segment = segments.ids[i], .time_ns = times[i]};
        assert_int_equal(core_closed(holder, &message, 0), 0);
        assert_int_equal(core_closed(holder, &message, 0), PROTO_E_INVALID); /* which counts nothing */
    }
    assert_int_equal(pool->stats.n_closes, 4);
    assert_int_equal(pool->stats.close_ns, 1000 + 2 * CLOSE_NS_MAX);
    core_destroy(core);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_named_while_the_pool_can_grow),
        cmocka_unit_test(nothing_is_named_while_segments_that_nobody_has_mapped_are_enough),
        cmocka_unit_test(nothing_is_named_while_a_free_range_serves),
        cmocka_unit_test(nothing_is_named_when_no_request_waits),
        cmocka_unit_test(a_segment_is_named_when_the_driver_refuses),
        cmocka_unit_test(a_request_is_not_given_up_while_a_session_can_close_segments),
        cmocka_unit_test(a_pool_that_is_lost_or_does_not_exist_has_nothing_to_close),
        cmocka_unit_test(no_more_is_named_than_the_request_lacks),
        cmocka_unit_test(a_request_that_a_smaller_size_serves_lacks_no_more_than_that),
        cmocka_unit_test(a_segment_in_use_is_not_named),
        cmocka_unit_test(a_segment_is_not_named_before_the_fences_in_it_are_ready),
        cmocka_unit_test(what_came_back_behind_a_fence_serves_before_it_is_closed),
        cmocka_unit_test(what_one_message_does_not_hold_the_next_does),
        cmocka_unit_test(a_message_that_is_just_full_is_followed_by_none),
        cmocka_unit_test(a_session_without_gpu_work_is_told_at_once),
        cmocka_unit_test(a_busy_session_is_not_told_when_an_idle_one_can_close_enough),
        cmocka_unit_test(a_busy_session_is_told_when_the_others_have_answered),
        cmocka_unit_test(a_busy_session_that_answered_first_is_asked_again_at_once),
        cmocka_unit_test(of_busy_sessions_alone_the_last_to_answer_is_told),
        cmocka_unit_test(a_session_that_does_not_answer_holds_a_busy_one_up_until_the_second_question),
        cmocka_unit_test(sessions_that_cannot_be_asked_hold_no_busy_one_up),
        cmocka_unit_test(a_session_that_ends_instead_of_answering_holds_no_busy_one_up),
        cmocka_unit_test(questions_for_a_users_quota_are_not_counted_as_the_pools),
        cmocka_unit_test(a_session_closes_for_its_own_request_what_is_of_no_use_to_others),
        cmocka_unit_test(a_busy_session_closes_nothing_for_its_own_request_before_the_others_have_answered),
        cmocka_unit_test(who_did_not_wait_finds_room_when_it_comes_again),
        cmocka_unit_test(each_mapper_is_told_once_and_the_last_to_close_sends_the_segment_back),
        cmocka_unit_test(a_mapper_that_was_not_told_cannot_have_closed),
        cmocka_unit_test(the_segment_with_the_fewest_mappers_is_named_first),
        cmocka_unit_test(a_segment_is_not_closed_while_a_mapper_cannot_be_asked),
        cmocka_unit_test(a_session_that_cannot_be_asked_closes_for_its_own_request),
        cmocka_unit_test(a_segment_is_not_closed_while_a_lost_session_has_it_mapped),
        cmocka_unit_test(a_mapper_that_is_lost_before_it_was_told_keeps_the_segment_until_its_end),
        cmocka_unit_test(nothing_is_lent_in_a_segment_that_is_being_closed),
        cmocka_unit_test(growth_does_not_wait_for_a_segment_that_is_being_closed),
        cmocka_unit_test(a_segment_is_charged_to_its_user_until_it_is_closed),
        cmocka_unit_test(only_what_was_named_can_be_closed_and_only_once_and_by_its_session),
        cmocka_unit_test(closings_and_their_time_are_counted),
    };
    return cmocka_run_group_tests_name("segments that sessions close", tests, NULL, NULL);
}
