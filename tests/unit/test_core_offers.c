/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of segments that a session offers to close (OFFER, daemon/core/closing.h): which of them it may
 * close, and that they are its user's again afterwards, without a mapping.
 */
#include "closing_fixture.h"
#include "tests/failing_memory.h"

static struct proto_segments offer(struct session *session, const struct pool *pool, const uint64_t *ids,
                                   uint32_t count) {
    struct proto_offer message = {.pool = pool->id, .count = count};
    struct proto_segments segments;

    memcpy(message.ids, ids, count * sizeof *ids);
    assert_int_equal(core_offer(session, &message, 0, &segments), 0);
    assert_true(core_is_valid(session->core));
    return segments;
}

static struct proto_segments offer_one(struct session *session, const struct pool *pool, uint64_t segment) {
    return offer(session, pool, &segment, 1);
}

static void expect_none(struct session *session, const struct pool *pool, uint64_t segment) {
    assert_int_equal(offer_one(session, pool, segment).count, 0);
}

static void expect_named(struct session *session, const struct pool *pool, uint64_t segment) {
    struct proto_segments segments = offer_one(session, pool, segment);
    expect_one(&segments, segment);
}

static struct session *open_offering(struct core *core, pid_t pid, uid_t uid) {
    struct session *session = open_session(core, pid, uid);
    core_session_want_reclaim(session);
    return session;
}

static const struct segment *find(const struct core *core, uint64_t id) {
    for (size_t slot = 0; slot < core->segment_slots; slot++)
        if (core->segments[slot] != NULL && core->segments[slot]->id == id)
            return core->segments[slot];
    return NULL;
}

/* Nothing is asked of any session, and the pool does not grow. */
static void expect_quiet(struct core *core) {
    expect_no_reclaim(core);
    expect_no_growth(core);
}

/* --- what is named --- */

static void an_idle_segment_is_the_users_again_when_it_is_closed(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 64 * MIB);
    struct session *session = open_offering(core, 1, UID_A);
    struct proto_lease wire;

    uint64_t id = keep(session, pool, 8 * MIB);
    assert_int_equal(used(session, quota_item_of_pool(pool->id)), 0);
    expect_named(session, pool, id);
    assert_int_equal(pool->closing_bytes, 8 * MIB);
    assert_int_equal(pool_free_bytes(pool), 0);
    assert_int_equal(used(session, quota_item_of_pool(pool->id)), 8 * MIB);
    expect_none(session, pool, id); /* once */
    assert_int_equal(closed(session, id), 0);
    assert_int_equal(closed(session, id), PROTO_E_INVALID);
    assert_int_equal(pool->stats.n_closes, 1);
    assert_int_equal(pool->closing_bytes, 0);
    assert_int_equal(pool_free_bytes(pool), 8 * MIB);
    assert_int_equal(used(session, quota_item_of_pool(pool->id)), 0);
    expect_none(session, pool, id); /* it is not mapped */
    expect_no_retirement(core);
    assert_true(describe(take(session, pool, 8 * MIB, 0), &wire));
    assert_int_equal(wire.segment, id);
    let_go(session);
    expect_named(session, pool, id); /* it is mapped again */
    assert_int_equal(closed(session, id), 0);
}

static void a_session_that_cannot_be_asked_may_offer(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 64 * MIB);
    struct session *session = open_session(core, 1, UID_A);

    uint64_t id = keep(session, pool, 8 * MIB);
    expect_named(session, pool, id);
    assert_int_equal(closed(session, id), 0);
    assert_int_equal(take(session, pool, 8 * MIB, 0)->block->segment->id, id);
}

static void a_segment_in_use_is_not_closed_for_an_offer(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 64 * MIB);
    struct session *session = open_offering(core, 1, UID_A);

    core_session_set_page(session, &page);
    uint64_t id = keep(session, pool, 8 * MIB);
    struct lease *lease = take(session, pool, 512, 0);
    assert_int_equal(lease->block->segment->id, id);
    expect_none(session, pool, id);
    assert_int_equal(release_behind(session, name_of(lease), 0, 1), 0);
    expect_none(session, pool, id); /* the fence is not ready */
    arrive(0, 1);
    expect_named(session, pool, id);
}

static void a_segment_that_another_session_has_mapped_is_not_closed_for_an_offer(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 64 * MIB);
    struct session *session = open_offering(core, 1, UID_A), *other = open_offering(core, 2, UID_A);
    struct session *lost = open_offering(core, 3, UID_A);

    uint64_t id = keep(session, pool, 8 * MIB);
    expect_none(other, pool, id); /* it has not mapped it */
    assert_true(describe(take(other, pool, 512, 0), NULL));
    let_go(other);
    expect_none(session, pool, id);
    expect_none(other, pool, id);
    close_session(other, 0);
    assert_true(describe(take(lost, pool, 512, 0), NULL));
    let_go(lost);
    lose_session(lost, 0);
    expect_none(session, pool, id);
    session_gone(lost, 0);
    expect_named(session, pool, id);
}

static void nothing_is_closed_for_an_offer_while_requests_wait(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 16 * MIB);
    struct session *session = open_offering(core, 1, UID_A), *other = open_session(core, 2, UID_B);

    uint64_t id = keep(session, pool, 8 * MIB);
    map(other, pool, 8 * MIB);
    ask(other, pool, 1, 512, NS_PER_MS, 0); /* its segment is full */
    expect_none(session, pool, id);
    tick(core, NS_PER_MS);
    expect_refused(core, other, 1, PROTO_E_EXHAUSTED);
    expect_named(session, pool, id);
}

/* A client whose request did not wait gives its memory back, and asks again. */
static void a_segment_that_a_refused_request_needs_is_not_closed_for_an_offer(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 16 * MIB);
    struct session *session = open_offering(core, 1, UID_A), *other = open_offering(core, 2, UID_B);

    uint64_t id = keep(session, pool, 8 * MIB);
    map(other, pool, 8 * MIB);
    ask_segments(session, pool, 1, 2, 8 * MIB, 0);
    expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    expect_none(session, pool, id);
    take(session, pool, 512, 0);
    let_go(session);
    expect_named(session, pool, id); /* a later request was granted */
}

static void only_segments_of_the_pool_and_of_the_session_are_named(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 64 * MIB), *second = add_vmm_pool(core, 64 * MIB);
    struct session *session = open_offering(core, 1, UID_A), *other = open_offering(core, 2, UID_B);

    uint64_t id = keep(session, pool, 8 * MIB), foreign = keep(other, pool, 8 * MIB);
    expect_none(session, second, id);
    expect_none(session, pool, foreign);
    expect_none(other, pool, id);
    expect_none(session, pool, UINT64_MAX);
    const uint64_t ids[] = {foreign, id, 12345, id};
    struct proto_segments segments = offer(session, pool, ids, 4);
    expect_one(&segments, id);
}

static void an_offer_in_a_pool_that_is_not_there_is_refused(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 64 * MIB);
    struct session *session = open_offering(core, 1, UID_A);
    struct proto_offer message = {.pool = pool->id, .count = 1, .ids = {keep(session, pool, 8 * MIB)}};
    struct proto_segments segments = {.count = 7};

    message.pool = 9;
    assert_int_equal(core_offer(session, &message, 0, &segments), PROTO_E_NO_POOL);
    assert_int_equal(segments.count, 0);
    message.pool = pool->id;
    struct policy *policy = policy_make();
    policy_restrict(policy, pool->id);
    set_policy(core, policy, 0);
    assert_int_equal(core_offer(session, &message, 0, &segments), PROTO_E_NO_POOL);
}

/* To close another kind of mapping may stop the process's work. */
static void nothing_is_closed_for_an_offer_in_another_kind_of_pool(void **state) {
    struct core *core = *state;
    struct pool *plain = add_pool(core, 64 * MIB, 2 * MIB, 0), *host = NULL;
    const struct pool_config config = {
        .kind = PROTO_POOL_HOST,
        .device = -1,
        .numa_node = 0,
        .name = "host memory",
        .sizes = {.limit_bytes = 64 * MIB, .step_bytes = 2 * MIB},
        .needs_vmm = true,
    };

    assert_int_equal(core_add_pool(core, &config, &host), 0);
    core_pool_ready(host, 0);
    struct session *session = open_offering(core, 1, UID_A);
    expect_none(session, plain, keep(session, plain, 8 * MIB));
    expect_none(session, host, keep(session, host, 8 * MIB));
}

static void no_more_is_closed_for_an_offer_than_the_quota_leaves(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 64 * MIB);
    struct session *session = open_offering(core, 1, UID_A);

    uint64_t held = map(session, pool, 4 * MIB), first, second;
    struct lease *lease = container_of(session->leases.next, struct lease, session_link);
    first = map(session, pool, 8 * MIB);
    second = map(session, pool, 8 * MIB);
    while (list_length(&session->leases) > 1) {
        struct lease *last = container_of(session->leases.previous, struct lease, session_link);
        assert_int_equal(release(session, name_of(last), 0), 0);
    }
    assert_int_equal(lease->block->segment->id, held);
    limit_all(core, QUOTA_POOLS + pool->id - 1, 16 * MIB, 0);
    const uint64_t ids[] = {first, second};
    struct proto_segments segments = offer(session, pool, ids, 2);
    assert_int_equal(segments.count, 1);
    close_all(session, &segments);
    expect_named(session, pool, segments.ids[0] == first ? second : first);
}

static void a_pool_that_is_lost_names_nothing_and_takes_back_what_was_named(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 64 * MIB);
    struct session *session = open_offering(core, 1, UID_A);

    uint64_t first = map(session, pool, 8 * MIB), second = map(session, pool, 8 * MIB);
    let_go(session);
    expect_named(session, pool, first);
    core_pool_lost(pool, "cudaErrorECCUncorrectable", 0);
    expect_none(session, pool, second);
    assert_int_equal(closed(session, first), 0);
    assert_int_equal(pool_free_bytes(pool), 16 * MIB);
}

/* --- while it is CLOSING --- */

static void nothing_is_lent_in_a_segment_that_was_offered(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 8 * MIB);
    struct session *session = open_offering(core, 1, UID_A), *second = open_offering(core, 2, UID_A);

    uint64_t id = keep(session, pool, 8 * MIB);
    expect_named(session, pool, id);
    ask(session, pool, 1, 512, 0, 0);
    expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    ask(second, pool, 2, 512, NS_FOREVER, 0);
    ask_segments(session, pool, 3, 1, 8 * MIB, NS_FOREVER);
    expect_no_answer(core);
    assert_int_equal(core_trim(pool), 0);
    assert_int_equal(closed(session, id), 0);
    assert_true(describe(expect_granted(core, second, 2), NULL));
    let_go(second);
    expect_segments(core, session, 3, 1, 8 * MIB, NULL);
}

static void a_session_that_does_not_close_its_offer_holds_nobody_up(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 16 * MIB);
    struct session *slow = open_offering(core, 1, UID_A), *holder = open_offering(core, 2, UID_C);
    struct session *other = open_session(core, 3, UID_B);

    uint64_t offered = keep(slow, pool, 8 * MIB), kept = keep(holder, pool, 8 * MIB);
    expect_named(slow, pool, offered);
    ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
    expect_reclaim(core, slow);
    expect_reclaim(core, holder);
    assert_int_equal(idle(slow, pool, 0).count, 0); /* it knows of it */
    struct proto_segments segments = idle(holder, pool, 0);
    expect_one(&segments, kept);
    assert_int_equal(closed(holder, kept), 0);
    assert_int_equal(retire_all(core, 0), 8 * MIB);
    grow(pool, 8 * MIB, 0);
    expect_granted(core, other, 1);
}

static void a_pool_does_not_grow_ahead_for_what_is_offered(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 64 * MIB);
    struct session *session = open_offering(core, 1, UID_A);

    uint64_t id = keep(session, pool, 8 * MIB);
    take_growing(session, pool, 10 * MIB, 0);
    configure(pool, 64 * MIB, 2 * MIB, 0, 8 * MIB, 0);
    expect_quiet(core); /* there is as much as that */
    expect_named(session, pool, id);
    close_session(open_session(core, 2, UID_B), 0); /* the pool is looked at */
    expect_quiet(core);
    assert_int_equal(closed(session, id), 0);
    expect_quiet(core);
}

/* --- afterwards --- */

static void a_closed_segment_goes_to_another_user_without_a_question(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 8 * MIB);
    struct session *session = open_offering(core, 1, UID_A), *other = open_session(core, 2, UID_B);

    uint64_t id = keep(session, pool, 8 * MIB);
    expect_named(session, pool, id);
    assert_int_equal(closed(session, id), 0);
    ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
    expect_quiet(core);
    assert_int_equal(retire_all(core, 0), 8 * MIB);
    grow(pool, 8 * MIB, 0);
    struct lease *lease = expect_granted(core, other, 1);
    assert_true(lease->block->segment->id != id);
}

static void a_segment_that_a_request_waits_for_is_retired_when_it_is_closed(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 8 * MIB);
    struct session *session = open_offering(core, 1, UID_A), *other = open_session(core, 2, UID_B);

    uint64_t id = keep(session, pool, 8 * MIB);
    expect_named(session, pool, id);
    ask(other, pool, 1, 8 * MIB, NS_FOREVER, 0);
    expect_no_retirement(core);
    assert_int_equal(closed(session, id), 0);
    assert_int_equal(retire_all(core, 0), 8 * MIB);
    grow(pool, 8 * MIB, 0);
    expect_granted(core, other, 1);
}

static void a_request_that_waits_for_the_quota_is_served_when_the_offer_is_closed(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 64 * MIB);
    struct session *session = open_offering(core, 1, UID_A);

    limit_all(core, QUOTA_POOLS + pool->id - 1, 8 * MIB, 0);
    uint64_t id = keep(session, pool, 8 * MIB);
    expect_named(session, pool, id);
    ask(session, pool, 1, 8 * MIB, NS_FOREVER, 0);
    expect_no_answer(core);
    assert_int_equal(closed(session, id), 0);
    assert_int_equal(expect_granted(core, session, 1)->block->segment->id, id);
}

static void the_end_of_its_session_gives_the_segment_back_to_the_user(void **state) {
    (void)state;
    for (unsigned way = 0; way < 4; way++) {
        struct core *core = core_make();
        struct pool *pool = add_vmm_pool(core, 64 * MIB);
        struct session *session = open_offering(core, 1, UID_A), *next;
        bool is_alone = way % 2 == 0; /* else the user has another session */

        next = is_alone ? NULL : open_offering(core, 2, UID_A);
        uint64_t id = keep(session, pool, 8 * MIB);
        expect_named(session, pool, id);
        if (way < 2) {
            close_session(session, 0);
        } else {
            lose_session(session, 0);
            assert_int_equal(find(core, id)->state, SEGMENT_CLOSING); /* its process may have it mapped */
            assert_int_equal(pool->closing_bytes, 8 * MIB);
            session_gone(session, 0);
        }
        assert_int_equal(find(core, id)->state, SEGMENT_ASSIGNED);
        assert_int_equal(pool->closing_bytes, 0);
        expect_no_retirement(core);
        if (is_alone)
            next = open_offering(core, 2, UID_A);
        struct lease *lease = take(next, pool, 8 * MIB, 0);
        assert_int_equal(lease->block->segment->id, id);
        assert_true(describe(lease, NULL));
        core_destroy(core);
    }
}

static void a_segment_is_retired_when_there_is_no_memory_to_take_it_back(void **state) {
    (void)state;
    for (unsigned way = 0; way < 2; way++) {
        bool failed = true;
        for (unsigned n = 1; failed; n++) {
            struct core *core = core_make();
            struct pool *pool = add_vmm_pool(core, 64 * MIB);
            struct session *session = open_offering(core, 1, UID_A);

            uint64_t id = keep(session, pool, 8 * MIB);
            expect_named(session, pool, id);
            memory_fail_nth(n);
            if (way == 0)
                assert_int_equal(closed(session, id), 0);
            else
                close_session(session, 0);
            failed = memory_failed();
            memory_fail_nth(0);
            assert_true(failed || n > 1);
            assert_int_equal(find(core, id)->state, failed ? SEGMENT_RETIRING : SEGMENT_ASSIGNED);
            assert_null(find(core, id)->keeper);
            assert_int_equal(retire_all(core, 0), failed ? 8 * MIB : 0);
            core_destroy(core);
        }
    }
}

/* --- the validator --- */

static void a_keeper_without_a_closing_segment_is_noticed(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 64 * MIB);
    struct session *session = open_offering(core, 1, UID_A), *other = open_offering(core, 2, UID_B);

    uint64_t id = keep(session, pool, 8 * MIB);
    struct segment *segment = container_of(pool->segments.next, struct segment, link);
    segment->keeper = session->tenant;
    assert_false(core_is_valid(core));
    segment->keeper = NULL;
    expect_named(session, pool, id);
    segment->keeper = other->tenant; /* the segment is charged to the other one */
    assert_false(core_is_valid(core));
    segment->keeper = (struct tenant *)(void *)core; /* no tenant, or one that is gone */
    assert_false(core_is_valid(core));
    segment->keeper = session->tenant;
    assert_true(core_is_valid(core));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(an_idle_segment_is_the_users_again_when_it_is_closed),
        CORE_TEST(a_session_that_cannot_be_asked_may_offer),
        CORE_TEST(a_segment_in_use_is_not_closed_for_an_offer),
        CORE_TEST(a_segment_that_another_session_has_mapped_is_not_closed_for_an_offer),
        CORE_TEST(nothing_is_closed_for_an_offer_while_requests_wait),
        CORE_TEST(a_segment_that_a_refused_request_needs_is_not_closed_for_an_offer),
        CORE_TEST(only_segments_of_the_pool_and_of_the_session_are_named),
        CORE_TEST(an_offer_in_a_pool_that_is_not_there_is_refused),
        CORE_TEST(nothing_is_closed_for_an_offer_in_another_kind_of_pool),
        CORE_TEST(no_more_is_closed_for_an_offer_than_the_quota_leaves),
        CORE_TEST(a_pool_that_is_lost_names_nothing_and_takes_back_what_was_named),
        CORE_TEST(nothing_is_lent_in_a_segment_that_was_offered),
        CORE_TEST(a_session_that_does_not_close_its_offer_holds_nobody_up),
        CORE_TEST(a_pool_does_not_grow_ahead_for_what_is_offered),
        CORE_TEST(a_closed_segment_goes_to_another_user_without_a_question),
        CORE_TEST(a_segment_that_a_request_waits_for_is_retired_when_it_is_closed),
        CORE_TEST(a_request_that_waits_for_the_quota_is_served_when_the_offer_is_closed),
        cmocka_unit_test(the_end_of_its_session_gives_the_segment_back_to_the_user),
        cmocka_unit_test(a_segment_is_retired_when_there_is_no_memory_to_take_it_back),
        CORE_TEST(a_keeper_without_a_closing_segment_is_noticed),
    };
    return cmocka_run_group_tests_name("segments that sessions offer", tests, NULL, NULL);
}
