/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold of segments that the only process which has them mapped closes before its pool grows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core_fixture.h"
#include "daemon/pool/fence.h"
#include "daemon/pool/lease.h"

/* Makes a segment of that size, which the session has mapped and of which nothing is taken. Returns its id.
 */
static uint64_t leave_segment(struct session *session, struct pool *pool, uint64_t size) {
    struct proto_lease wire;
    struct lease *filler = pool_has_free(pool, session->tenant, size) ? take(session, pool, size, 0) : NULL;
    struct lease *lease = take_growing(session, pool, size, 0);
    assert_true(describe(lease, &wire));
    assert_int_equal(lease->block->segment->size_bytes, size);
    assert_int_equal(release(session, name_of(lease), 0), 0);
    if (filler != NULL)
        assert_int_equal(release(session, name_of(filler), 0), 0);
    return wire.segment;
}

static void what_is_closed_goes_back_before_the_pool_grows(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 64 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    (void)state;

    uint64_t segment = leave_segment(session, pool, 8 * MIB);
    ask_within(session, pool, 1, 16 * MIB);
    expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    expect_no_growth(core);
    struct proto_segments segments = idle(session, pool, 16 * MIB);
    assert_int_equal(segments.count, 1);
    assert_int_equal(segments.ids[0], segment);
    assert_int_equal(pool->closing_bytes, 8 * MIB);
    assert_int_equal(pool_free_bytes(pool), 0);
    expect_no_retirement(core); /* the session has it mapped */
    assert_int_equal(closed(session, segment), 0);
    ask(session, pool, 2, 16 * MIB, NS_FOREVER, 0);
    expect_no_growth(core); /* not beside what is on its way back */
    assert_int_equal(retire_all(core, 0), 8 * MIB);
    grow(pool, 16 * MIB, 0);
    expect_granted(core, session, 2);
    assert_int_equal(pool->reserved_bytes, 16 * MIB);
    core_destroy(core);
}

static void what_fits_closes_nothing(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 64 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    (void)state;

    leave_segment(session, pool, 8 * MIB);
    assert_int_equal(idle(session, pool, 8 * MIB).count, 0);
    ask_within(session, pool, 1, 8 * MIB);
    expect_granted(core, session, 1);
    core_destroy(core);
}

static void within_what_there_is_nothing_grows_and_nobody_is_asked(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 64 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    struct session *asked;
    (void)state;

    core_session_want_reclaim(session);
    ask_within(session, pool, 1, 4 * MIB);
    expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    expect_no_growth(core);
    struct lease *lease = take_growing(session, pool, 64 * MIB, 0);
    ask_within(session, pool, 2, 4 * MIB);
    expect_refused(core, session, 2, PROTO_E_EXHAUSTED);
    assert_false(core_next_reclaim(core, &asked));
    assert_int_equal(core_next_tick_ns(core), NS_FOREVER);
    assert_int_equal(release(session, name_of(lease), 0), 0);
    core_destroy(core);
}

static void who_makes_do_with_less_is_lent_the_most_that_there_is(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 64 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    (void)state;

    struct lease *lease = take_growing(session, pool, 16 * MIB, 0);
    assert_int_equal(release_part(session, name_of(lease), 5 * MIB, 11 * MIB, 0), 0);
    ask_within_down_to(session, pool, 1, 32 * MIB, MIB); /* neither as much, nor a quarter of a quarter */
    assert_int_equal(expect_granted(core, session, 1)->block->size_bytes, 8 * MIB);
    ask_within_down_to(session, pool, 2, 32 * MIB, 6 * MIB);
    expect_refused(core, session, 2, PROTO_E_EXHAUSTED);           /* 3 MiB are left */
    ask_within_down_to(session, pool, 3, 16 * GIB, 3 * MIB + 512); /* more than the pool may have */
    expect_refused(core, session, 3, PROTO_E_EXHAUSTED);
    ask_within_down_to(session, pool, 4, 5 * MIB, 3 * MIB);
    assert_int_equal(expect_granted(core, session, 4)->block->size_bytes,
                     3 * MIB); /* no less than the least */
    ask_within_down_to(session, pool, 5, 16 * GIB, 65 * MIB);
    expect_refused(core, session, 5, PROTO_E_TOO_LARGE);
    expect_no_growth(core);
    core_destroy(core);
}

static void what_others_have_mapped_stays(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 64 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_A);
    (void)state;

    leave_segment(session, pool, 8 * MIB);
    struct lease *lease = take(other, pool, MIB, 0);
    assert_true(describe(lease, NULL));
    assert_int_equal(release(other, name_of(lease), 0), 0);
    assert_int_equal(idle(session, pool, 16 * MIB).count, 0);
    assert_int_equal(idle(other, pool, 16 * MIB).count, 0);
    close_session(other, 0);
    assert_int_equal(idle(session, pool, 16 * MIB).count, 1);
    core_destroy(core);
}

static void what_is_in_use_is_not_closed(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 64 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    (void)state;

    struct lease *lease = take_growing(session, pool, 512, 0);
    assert_true(describe(lease, NULL));
    assert_int_equal(idle(session, pool, 16 * MIB).count, 0);
    assert_int_equal(release(session, name_of(lease), 0), 0);
    assert_int_equal(idle(session, pool, 16 * MIB).count, 1);
    core_destroy(core);
}

static void no_more_is_closed_than_would_be_grown_by(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 256 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    (void)state;

    uint64_t small = leave_segment(session, pool, 4 * MIB);
    uint64_t large = leave_segment(session, pool, 16 * MIB);
    uint64_t middle = leave_segment(session, pool, 20 * MIB);
    struct proto_segments segments = idle(session, pool, 22 * MIB);
    assert_int_equal(segments.count, 2);
    assert_int_equal(segments.ids[0], middle);
    assert_int_equal(segments.ids[1], small); /* the smallest that is enough for the rest */
    segments = idle(session, pool, 22 * MIB);
    assert_int_equal(segments.count, 1);
    assert_int_equal(segments.ids[0], large);
    assert_int_equal(idle(session, pool, 22 * MIB).count, 0);
    core_destroy(core);
}

static void the_reserve_is_kept(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 64 * MIB, 8 * MIB, 8 * MIB);
    struct session *session = open_session(core, 1, UID_A);
    (void)state;

    grow(pool, 8 * MIB, 0);
    struct lease *lease = take(session, pool, 8 * MIB, 0);
    assert_true(describe(lease, NULL));
    assert_int_equal(release(session, name_of(lease), 0), 0);
    assert_int_equal(idle(session, pool, 16 * MIB).count, 0);
    leave_segment(session, pool, 10 * MIB);
    assert_int_equal(idle(session, pool, 16 * MIB).count, 1);
    core_destroy(core);
}

static void nothing_is_lent_in_what_is_being_closed(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 64 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_A);
    (void)state;

    leave_segment(session, pool, 8 * MIB);
    assert_int_equal(idle(session, pool, 16 * MIB).count, 1);
    ask(other, pool, 1, 4 * MIB, NS_FOREVER, 0);
    expect_no_answer(core);
    grow(pool, 4 * MIB, 0); /* nor does growth wait for it */
    expect_granted(core, other, 1);
    core_destroy(core);
}

static void what_was_never_said_to_be_closed_goes_back_at_the_session_s_end(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 64 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    (void)state;

    leave_segment(session, pool, 8 * MIB);
    assert_int_equal(idle(session, pool, 16 * MIB).count, 1);
    lose_session(session, 0);
    expect_no_retirement(core);
    session_gone(session, 0);
    assert_int_equal(retire_all(core, 0), 8 * MIB);
    assert_int_equal(pool->reserved_bytes, 0);
    core_destroy(core);
}

static void only_what_was_named_can_be_closed_and_only_once_and_by_its_session(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 64 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_A);
    (void)state;

    uint64_t segment = leave_segment(session, pool, 8 * MIB);
    assert_int_equal(closed(session, segment), PROTO_E_INVALID);
    assert_int_equal(closed(session, segment + 1), PROTO_E_INVALID);
    assert_int_equal(idle(session, pool, 16 * MIB).count, 1);
    assert_int_equal(closed(other, segment), PROTO_E_INVALID);
    assert_int_equal(closed(session, segment), 0);
    assert_int_equal(closed(session, segment), PROTO_E_INVALID);
    assert_int_equal(retire_all(core, 0), 8 * MIB);
    assert_int_equal(closed(session, segment), PROTO_E_INVALID);
    core_destroy(core);
}

static void what_is_behind_a_fence_is_waited_for_by_the_client_and_then_closed(void **state) {
    static struct proto_page page;
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 64 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    (void)state;

    memset(&page, 0, sizeof page);
    core_session_set_page(session, &page);
    struct lease *lease = take_growing(session, pool, 8 * MIB, 0);
    assert_true(describe(lease, NULL));
    const struct proto_release later = {
        .lease = lease->id, .generation = lease->generation, .fence = 1, .fence_value = 1};
    assert_int_equal(core_release(session, &later, 0), 0);
    ask_within(session, pool, 1, 16 * MIB);
    expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    expect_no_growth(core);
    assert_int_equal(idle(session, pool, 16 * MIB).count, 0);
    page.fences[0] = 1;
    assert_int_equal(idle(session, pool, 16 * MIB).count, 1);
    core_destroy(core);
}

static void a_pool_that_does_not_exist_has_nothing_to_close(void **state) {
    struct core *core = core_make();
    struct session *session = open_session(core, 1, UID_A);
    const struct proto_idle message = {.pool = 9, .size_bytes = MIB};
    struct proto_segments segments;
    (void)state;

    assert_int_equal(core_idle(session, &message, 0, &segments), PROTO_E_NO_POOL);
    core_destroy(core);
}

/* --- for others --- */

static void what_one_keeps_mapped_and_idle_makes_room_for_another(void **state) {
    (void)state;
    for (unsigned own = 0; own < 2; own++) { /* of another user, or of the same */
        struct core *core = core_make();
        struct pool *pool = add_pool(core, 24 * MIB, 8 * MIB, 0);
        struct session *holder = open_wanting(core, 1, UID_A);
        struct session *other = open_session(core, 2, own != 0 ? UID_A : UID_B);

        for (unsigned i = 0; i < 3; i++)
            describe(take_growing(holder, pool, 8 * MIB, 0), NULL);
        while (!list_is_empty(&holder->leases))
            release(holder, name_of(container_of(holder->leases.next, struct lease, session_link)), 0);
        ask(other, pool, 1, 16 * MIB, NS_FOREVER, 0);
        expect_no_growth(core);
        expect_reclaim(core, holder); /* although it has nothing leased */
        struct proto_segments segments = idle(holder, pool, 0);
        assert_int_equal(segments.count, 2); /* no more than is needed */
        assert_int_equal(idle(holder, pool, 0).count, 0);
        for (unsigned i = 0; i < 2; i++)
            assert_int_equal(closed(holder, segments.ids[i]), 0);
        assert_int_equal(retire_all(core, 0), 16 * MIB);
        grow(pool, 16 * MIB, 0);
        expect_granted(core, other, 1);
        assert_int_equal(idle(holder, pool, 0).count, 0);
        core_destroy(core);
    }
}

static void nothing_is_closed_for_nobody(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 32 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_B);
    (void)state;

    uint64_t segment = leave_segment(session, pool, 8 * MIB);
    assert_int_equal(idle(session, pool, 0).count, 0);
    ask(other, pool, 1, 24 * MIB, NS_FOREVER, 0); /* there is room */
    assert_int_equal(idle(session, pool, 0).count, 0);
    grow(pool, 24 * MIB, 0);
    expect_granted(core, other, 1);
    ask(other, pool, 2, 8 * MIB, NS_PER_MS, 0);
    tick(core, NS_PER_MS);
    expect_refused(core, other, 2, PROTO_E_EXHAUSTED); /* its time is over */
    assert_int_equal(idle(session, pool, 0).count, 0);
    ask(other, pool, 3, 8 * MIB, NS_FOREVER, 0);
    struct proto_segments segments = idle(session, pool, 0);
    assert_int_equal(segments.count, 1);
    assert_int_equal(segments.ids[0], segment);
    core_destroy(core);
}

static void who_did_not_wait_finds_room_when_it_comes_again(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 16 * MIB, 8 * MIB, 0);
    struct session *holder = open_wanting(core, 1, UID_A), *other = open_session(core, 2, UID_B);
    (void)state;

    leave_segment(holder, pool, 8 * MIB);
    leave_segment(holder, pool, 8 * MIB);
    ask(other, pool, 1, 12 * MIB, 0, 0);
    expect_refused(core, other, 1, PROTO_E_EXHAUSTED);
    expect_reclaim(core, holder);
    struct proto_segments segments = idle(holder, pool, 0);
    assert_int_equal(segments.count, 2);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(closed(holder, segments.ids[i]), 0);
    assert_int_equal(retire_all(core, 0), 16 * MIB);
    ask(other, pool, 2, 12 * MIB, NS_FOREVER, 0);
    grow(pool, 12 * MIB, 0);
    expect_granted(core, other, 2);
    assert_int_equal(idle(holder, pool, 0).count, 0);
    core_destroy(core);
}

/* --- messages --- */

static void what_one_message_does_not_hold_the_next_does(void **state) {
    enum {
        COUNT = PROTO_CLOSE_MAX + 30
    };
    struct core *core = core_make();
    struct pool *pool = add_pool(core, GIB, 4 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    struct proto_segments segments;
    (void)state;

    for (unsigned i = 0; i < COUNT; i++)
        describe(take_growing(session, pool, 4 * MIB, 0), NULL);
    while (!list_is_empty(&session->leases))
        release(session, name_of(container_of(session->leases.next, struct lease, session_link)), 0);
    segments = idle(session, pool, (COUNT - 10) * 4 * MIB);
    assert_int_equal(segments.count, PROTO_CLOSE_MAX);
    for (unsigned i = 0; i < segments.count; i++)
        assert_int_equal(closed(session, segments.ids[i]), 0);
    retire_all(core, 0);
    segments = idle(session, pool, (COUNT - 10) * 4 * MIB);
    assert_int_equal(segments.count, COUNT - 10 - PROTO_CLOSE_MAX); /* no more than at once */
    segments = idle(session, pool, 11 * 4 * MIB);                   /* another request's */
    assert_int_equal(segments.count, 10);
    core_destroy(core);
}

static void a_session_is_told_whether_the_pool_can_grow(void **state) {
    struct core *core = core_make();
    struct pool *pool = add_pool(core, 16 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    (void)state;

    assert_int_equal(idle(session, pool, 8 * MIB).may_grow, 1); /* its user has nothing yet */
    leave_segment(session, pool, 8 * MIB);
    take_growing(session, pool, 8 * MIB, 0);
    leave_segment(session, pool, 8 * MIB);
    assert_int_equal(idle(session, pool, 12 * MIB).may_grow, 0);
    core_destroy(core);

    core = core_make();
    pool = add_pool(core, 16 * MIB, 2 * MIB, 0);
    session = open_session(core, 1, UID_A);
    leave_segment(session, pool, 8 * MIB);
    struct proto_segments segments = idle(session, pool, 16 * MIB);
    assert_int_equal(segments.count, 1);
    assert_int_equal(segments.may_grow, 1); /* when it is closed */
    core_destroy(core);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_closed_goes_back_before_the_pool_grows),
        cmocka_unit_test(what_fits_closes_nothing),
        cmocka_unit_test(within_what_there_is_nothing_grows_and_nobody_is_asked),
        cmocka_unit_test(who_makes_do_with_less_is_lent_the_most_that_there_is),
        cmocka_unit_test(what_others_have_mapped_stays),
        cmocka_unit_test(what_is_in_use_is_not_closed),
        cmocka_unit_test(no_more_is_closed_than_would_be_grown_by),
        cmocka_unit_test(the_reserve_is_kept),
        cmocka_unit_test(nothing_is_lent_in_what_is_being_closed),
        cmocka_unit_test(what_was_never_said_to_be_closed_goes_back_at_the_session_s_end),
        cmocka_unit_test(only_what_was_named_can_be_closed_and_only_once_and_by_its_session),
        cmocka_unit_test(what_is_behind_a_fence_is_waited_for_by_the_client_and_then_closed),
        cmocka_unit_test(a_pool_that_does_not_exist_has_nothing_to_close),
        cmocka_unit_test(what_one_keeps_mapped_and_idle_makes_room_for_another),
        cmocka_unit_test(nothing_is_closed_for_nobody),
        cmocka_unit_test(who_did_not_wait_finds_room_when_it_comes_again),
        cmocka_unit_test(what_one_message_does_not_hold_the_next_does),
        cmocka_unit_test(a_session_is_told_whether_the_pool_can_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
