/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of what others' segments, sessions and requests cost a bystander. Not the time is measured: while the
 * bystander's calls run, the lists of all segments and all sessions end nowhere, so that a call which walks
 * one does not survive it; and what is known of waiting requests stays known.
 */
#include "closing_fixture.h"

#define SEGMENTS 64u
#define USERS    4u
#define WAITING  16u
#define SIZE     (4 * MIB)

/* Users that have filled a pool with small segments, of which none can be closed, and wait for larger ones.
 */
struct crowd {
    struct core *core;
    struct pool *pool;
    struct session *bystander;
    struct list segments, sessions; /* the links of the lists' heads */
};

static void fill(struct crowd *crowd, struct core *core) {
    struct session *users[USERS];

    crowd->core = core;
    crowd->pool = add_vmm_pool(core, (SEGMENTS + 4) * 2 * MIB + USERS * 8 * MIB);
    crowd->bystander = open_session(core, 1, UID_A);
    take_growing(crowd->bystander, crowd->pool, 4096, 0); /* its pairs are in the rest of the segment */
    for (unsigned u = 0; u < USERS; u++) {
        users[u] = open_session(core, (pid_t)(2 + u), UID_B + u);
        /* A free range beside a lease: it may have what a request needs. */
        struct lease *large = take_growing(users[u], crowd->pool, 8 * MIB, 0);
        describe(large, NULL);
        assert_int_equal(release_part(users[u], name_of(large), 2 * MIB, 6 * MIB, 0), 0);
        for (unsigned i = 0; i < SEGMENTS / USERS; i++) {
            ask_segments(users[u], crowd->pool, 5, 1, 2 * MIB, NS_FOREVER);
            grow(crowd->pool, 2 * MIB, 0);
            expect_segments(core, users[u], 5, 1, 2 * MIB, NULL);
        }
    }
    configure(crowd->pool, crowd->pool->reserved_bytes, 2 * MIB, 0, 0, 0);
    for (unsigned u = 0; u < USERS; u++)
        for (unsigned i = 0; i < WAITING; i++)
            ask_segments(users[u], crowd->pool, 10 + i, 1, SIZE, NS_FOREVER);
    expect_no_answer(core);
    expect_no_growth(core);
    core_tick(core, 0);
}

static void cut(struct crowd *crowd) {
    crowd->segments = crowd->pool->segments;
    crowd->sessions = crowd->core->sessions;
    crowd->pool->segments = crowd->core->sessions = (struct list){0};
}

static void mend(struct crowd *crowd) {
    crowd->pool->segments = crowd->segments;
    crowd->core->sessions = crowd->sessions;
    assert_true(core_is_valid(crowd->core));
}

static struct lease *acquire(struct crowd *crowd, uint64_t size) {
    const struct proto_acquire wanted = {.pool = crowd->pool->id, .size_bytes = size};
    struct answer answer = {0};

    assert_int_equal(core_acquire(crowd->bystander, 1, &wanted, 1), 0);
    assert_true(core_next_answer(crowd->core, &answer));
    return answer.lease;
}

static void pair(struct crowd *crowd) {
    struct lease *lease = acquire(crowd, 4096);
    assert_non_null(lease);
    const struct proto_release given = {.lease = lease->id, .generation = lease->generation};
    assert_int_equal(core_release(crowd->bystander, &given, 1), 0);
}

static void no_call_walks_the_segments_or_the_sessions(void **state) {
    struct crowd crowd;
    struct proto_segments segments;
    struct answer answer = {0};

    fill(&crowd, *state);
    const struct proto_idle idle = {.pool = crowd.pool->id},
                            own = {.pool = crowd.pool->id, .size_bytes = SIZE};
    const struct proto_offer offer = {.pool = crowd.pool->id, .count = 2, .ids = {1, 7}};
    const struct proto_closed unknown = {.segment = 3};
    const struct proto_acquire_segments wanted = {
        .pool = crowd.pool->id, .count = 1, .segment_bytes = SIZE, .timeout_ns = NS_FOREVER};
    const struct proto_acquire_segments at_once = {.pool = crowd.pool->id, .count = 1, .segment_bytes = SIZE};
    cut(&crowd);
    pair(&crowd);
    assert_null(acquire(&crowd, 6 * MIB)); /* and the text of the refusal */
    assert_int_equal(core_acquire_segments(crowd.bystander, 2, &at_once, 1), 0);
    assert_true(core_next_answer(crowd.core, &answer));
    assert_int_equal(answer.failure.error, PROTO_E_EXHAUSTED);
    assert_int_equal(core_acquire_segments(crowd.bystander, 3, &wanted, 1), 0);
    pair(&crowd);
    core_cancel(crowd.bystander, 3, 1);
    assert_true(core_next_answer(crowd.core, &answer));
    assert_int_equal(core_idle(crowd.bystander, &idle, 1, &segments), 0);
    assert_int_equal(core_idle(crowd.bystander, &own, 1, &segments), 0);
    assert_int_equal(core_offer(crowd.bystander, &offer, 1, &segments), 0);
    assert_int_equal(core_closed(crowd.bystander, &unknown, 1), PROTO_E_INVALID);
    assert_true(pool_largest_free_bytes(crowd.pool) >= 6 * MIB);
    core_tick(crowd.core, 1);
    mend(&crowd);
    expect_no_answer(crowd.core);
}

static void what_a_bystander_does_has_no_request_of_others_tried_again(void **state) {
    struct crowd crowd;
    uint64_t tried = 0;

    fill(&crowd, *state);
    uint64_t changes = crowd.pool->changes;
    assert_false(crowd.pool->is_plan_due);
    list_for_each_entry(struct tenant_heap, heap, &crowd.pool->waiters.queues, waiting_link) {
        heap->waiting.tried = changes; /* as after a release of their own that did not help */
        heap->waiting.weighed = changes;
        heap->waiting.lacking_bytes = SIZE;
        tried++;
    }
    assert_int_equal(tried, USERS);
    pair(&crowd);
    /* A segment that becomes empty can serve its tenant alone, as long as it is mapped. */
    pair(&crowd);
    assert_int_equal(crowd.pool->changes, changes);
    assert_false(crowd.pool->is_plan_due);
    list_for_each_entry(struct tenant_heap, heap, &crowd.pool->waiters.queues, waiting_link) {
        assert_int_equal(heap->waiting.tried, changes);
        assert_int_equal(heap->waiting.weighed, changes);
    }
    assert_true(core_is_valid(crowd.core));
}

static void a_deadline_is_found_among_many(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *holder = open_session(core, 1, UID_A), *waiter = open_session(core, 2, UID_B);

    take_growing(holder, pool, 8 * MIB, 0);
    for (uint64_t i = 0; i < 64; i++) /* the later, the earlier it is over */
        ask(waiter, pool, i, MIB, 1000 - i, 0);
    for (uint64_t i = 64; i-- > 0;) {
        core_tick(core, 1000 - i - 1);
        expect_no_answer(core);
        assert_true(core_next_tick_ns(core) <= 1000 - i);
        core_tick(core, 1000 - i);
        expect_refused(core, waiter, i, PROTO_E_EXHAUSTED);
    }
}

static void many_segments_are_made_and_go_and_their_places_are_used_again(void **state) {
    struct core *core = *state;
    struct pool *pool = add_vmm_pool(core, 200 * 2 * MIB);
    struct session *session = open_session(core, 1, UID_A);

    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < 100; i++)
            take_growing(session, pool, (2 + 2 * (i % 3)) * MIB, 0);
        assert_int_equal(core->segment_slots, 128);
        let_go(session);
        assert_true(core_trim(pool) > 0);
        assert_true(retire_all(core, 0) > 0);
        assert_int_equal(core->n_free_slots, 128);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(no_call_walks_the_segments_or_the_sessions),
        CORE_TEST(what_a_bystander_does_has_no_request_of_others_tried_again),
        CORE_TEST(a_deadline_is_found_among_many),
        CORE_TEST(many_segments_are_made_and_go_and_their_places_are_used_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
