/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of long waits: a request without a deadline is given up when no release of another process can serve
 * it, each long wait is told of once, and texts say which memory is missing and which process has it.
 */
#include "core_fixture.h"
#include "daemon/core/explain.h"

#define LATE_NS (100 * LONG_WAIT_NS)

static struct core *core;

static int set_up(void **state) {
    core_set_up(state);
    core = *state;
    return 0;
}

#define WAIT_TEST(test) cmocka_unit_test_setup_teardown(test, set_up, core_tear_down)

/* The next line for the log has to be of this session's request. Returns the text, which lives until the next
 * one. */
static const char *expect_told(const struct session *session, uint64_t now_ns) {
    static struct long_wait wait;
    assert_true(core_next_long_wait(core, now_ns, &wait));
    assert_ptr_equal(wait.session, session);
    return wait.text;
}

static void expect_not_told(void) {
    struct long_wait wait;
    assert_false(core_next_long_wait(core, 0, &wait));
}

/* The request has no deadline, and waits from 0 on. It has to be given up LONG_WAIT_NS later, and not sooner.
 * Returns the text. */
static const char *expect_given_up(struct session *session, uint64_t request) {
    tick(core, LONG_WAIT_NS - 1);
    expect_no_answer(core);
    tick(core, LONG_WAIT_NS);
    const char *text = expect_refused(core, session, request, PROTO_E_EXHAUSTED);
    expect_not_told();
    return text;
}

/* The request has no deadline. It has to wait on, and is told of once. Returns the text. */
static const char *expect_waiting(const struct session *session) {
    tick(core, LONG_WAIT_NS - 1);
    expect_not_told();
    for (uint64_t now_ns = LONG_WAIT_NS; now_ns < LATE_NS; now_ns += LONG_WAIT_NS)
        tick(core, now_ns);
    expect_no_answer(core);
    const char *text = expect_told(session, LATE_NS);
    expect_not_told();
    return text;
}

static void what_its_own_process_holds_is_not_waited_for_without_end(void **state) {
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A), *second = open_session(core, 1, UID_A);
    (void)state;

    take_growing(second, pool, 6 * MIB, 0); /* the session of another client in the process */
    ask(session, pool, 1, 4 * MIB, NS_FOREVER, 0);
    const char *text = expect_given_up(session, 1);
    expect_text(text,
                "4 MiB asked of test pool, not free after a long wait: no other process has enough to give "
                "back: this process holds the rest; 2 MiB free");
    expect_text(text, "held by pid 1 (worker-1, this process) 6 MiB");
}

static void a_deadline_is_kept_and_its_text_says_the_same(void **state) {
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    (void)state;

    take_growing(session, pool, 6 * MIB, 0);
    ask(session, pool, 1, 4 * MIB, 3 * LONG_WAIT_NS, 0);
    tick(core, LONG_WAIT_NS);
    expect_text(expect_told(session, LONG_WAIT_NS), "4 MiB of test pool (own-process): no other process has");
    tick(core, 3 * LONG_WAIT_NS - 1);
    expect_no_answer(core);
    expect_not_told();
    tick(core, 3 * LONG_WAIT_NS);
    expect_text(
        expect_refused(core, session, 1, PROTO_E_EXHAUSTED),
        "not free within the time given: no other process has enough to give back: this process holds");
    ask(session, pool, 2, 4 * MIB, 0, 3 * LONG_WAIT_NS); /* and at once */
    expect_text(expect_refused(core, session, 2, PROTO_E_EXHAUSTED), "this process holds the rest");
}

static void pieces_between_its_own_memory_are_told_of(void **state) {
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_A);
    struct proto_lease_name names[8];
    (void)state;

    names[0] = name_of(take_growing(session, pool, MIB, 0));
    for (unsigned i = 1; i < 8; i++)
        names[i] = name_of(take(i % 2 == 0 ? session : other, pool, MIB, 0));
    ask(session, pool, 1, 2 * MIB, 500, 0);
    tick(core, 500);
    const char *text = expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    assert_null(strstr(text, "pieces"));
    for (unsigned i = 1; i < 8; i += 2)
        assert_int_equal(release(other, names[i], 500), 0);
    ask(other, pool, 2, 2 * MIB, 0, 500); /* the other process can wait for that memory */
    text = expect_refused(core, other, 2, PROTO_E_EXHAUSTED);
    expect_text(text, "within the time given: enough is free, but in pieces; 4 MiB free for user 1001 "
                      "(largest block 1 MiB)");
    ask(session, pool, 3, 2 * MIB, NS_FOREVER, 500);
    tick(core, 500 + LONG_WAIT_NS);
    expect_text(expect_refused(core, session, 3, PROTO_E_EXHAUSTED),
                "enough is free, but in pieces that no release of another process can join");
}

static void what_another_process_holds_is_waited_for(void **state) {
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_A);
    struct lease *lease = take_growing(session, pool, 3 * MIB, 0);
    struct proto_lease_name name = name_of(take(other, pool, 5 * MIB, 0));
    (void)state;

    ask(session, pool, 1, 4 * MIB, NS_FOREVER, 0);
    const char *text = expect_waiting(session);
    expect_text(text, "4 MiB of test pool (room): 0 B free");
    expect_text(text, "held by pid 2 (worker-2) 5 MiB, pid 1 (worker-1, this process) 3 MiB");
    assert_int_equal(release(other, name, LATE_NS), 0);
    expect_granted(core, session, 1);
    assert_int_equal(release(session, name_of(lease), LATE_NS), 0);
}

/* Another user's process has to give a segment back. The log names it, its user's texts do not. */
static void the_log_names_the_processes_of_all_users(void **state) {
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_B);
    (void)state;

    take_growing(other, pool, MIB, 0);
    ask(session, pool, 1, 4 * MIB, NS_FOREVER, 0);
    expect_text(expect_waiting(session), "held by pid 2 (worker-2) 1 MiB");
    ask(session, pool, 2, 4 * MIB, 0, LATE_NS);
    expect_text(expect_refused(core, session, 2, PROTO_E_EXHAUSTED), "held by other users 1 MiB");
}

static void too_little_of_another_process_does_not_count(void **state) {
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_A);
    (void)state;

    take_growing(session, pool, 5 * MIB, 0);
    take(other, pool, 3 * MIB, 0);
    ask(session, pool, 1, 4 * MIB, NS_FOREVER, 0);
    expect_text(expect_given_up(session, 1), "no other process has enough to give back");
}

static void a_process_that_gives_back_waits_on(void **state) {
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    struct proto_lease_name large = name_of(take_growing(session, pool, 6 * MIB, 0)),
                            small = name_of(take(session, pool, MIB, 0));
    uint64_t gave_ns = LONG_WAIT_NS - 1;
    (void)state;

    ask(session, pool, 1, 4 * MIB, NS_FOREVER, 0);
    ask(session, pool, 2, 5 * MIB, NS_FOREVER, 0);
    assert_int_equal(release(session, small, gave_ns), 0);
    tick(core, LONG_WAIT_NS);
    expect_told(session, LONG_WAIT_NS);
    expect_told(session, LONG_WAIT_NS);
    tick(core, gave_ns + LONG_WAIT_NS - 1);
    expect_no_answer(core);
    assert_int_equal(release_part(session, large, 2 * MIB, 4 * MIB, gave_ns + LONG_WAIT_NS - 1), 0);
    expect_granted(core, session, 1); /* another thread of it served it */
    tick(core, gave_ns + 2 * LONG_WAIT_NS);
    expect_refused(core, session, 2, PROTO_E_EXHAUSTED);
}

/* A process without a cache keeps segments mapped until it ends, or asks for memory itself. */
static void segments_that_stay_mapped_are_not_waited_for_without_end(void **state) {
    struct pool *pool = add_pool(core, 8 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_A);
    struct session *of_other_user = open_session(core, 3, UID_B);
    struct lease *leases[4];
    (void)state;

    for (unsigned i = 0; i < 4; i++) {
        leases[i] = take_growing(other, pool, 2 * MIB, 0);
        describe(leases[i], NULL);
    }
    for (unsigned i = 1; i < 4; i++)
        assert_int_equal(release(other, name_of(leases[i]), 0), 0);
    ask(session, pool, 1, 4 * MIB, NS_FOREVER, 0);
    expect_text(expect_given_up(session, 1),
                "in pieces that no release of another process can join; 6 MiB free");
    ask(of_other_user, pool, 2, 2 * MIB, NS_FOREVER, 0);
    tick(core, 2 * LONG_WAIT_NS);
    expect_no_answer(core); /* the segment that is lent may come back, with its process */
    expect_told(of_other_user, 2 * LONG_WAIT_NS);
    ask(of_other_user, pool, 3, 4 * MIB, NS_FOREVER, 2 * LONG_WAIT_NS);
    tick(core, 3 * LONG_WAIT_NS + LONG_WAIT_LOOK_NS);
    expect_text(expect_refused(core, of_other_user, 3, PROTO_E_EXHAUSTED),
                "6 MiB free in segments of other users");
    ask(session, pool, 4, 4 * MIB, NS_FOREVER, 4 * LONG_WAIT_NS);
    lose_session(other, 4 * LONG_WAIT_NS);
    tick(core, 6 * LONG_WAIT_NS);
    expect_told(session, 6 * LONG_WAIT_NS); /* a process in quarantine ends by itself */
    expect_no_answer(core);
}

static void memory_behind_fences_and_in_parcels_may_come_back(void **state) {
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_with_page(core, 1, UID_A);
    struct proto_lease_name sent = name_of(take_growing(session, pool, 4 * MIB, 0)),
                            fenced = name_of(take(session, pool, 4 * MIB, 0));
    const struct proto_send send = {
        .share = {.lease = sent.lease, .generation = sent.generation}, .takers = 1, .lifetime_ns = LATE_NS};
    const struct proto_token fresh[2] = {token_of(1), token_of(2)};
    struct proto_token token;
    (void)state;

    assert_int_equal(send_lease(session, &send, fresh, 0, &token), 0);
    assert_int_equal(release(session, sent, 0), 0);
    assert_int_equal(release_behind(session, fenced, 0, 1), 0);
    ask(session, pool, 1, 8 * MIB, NS_FOREVER, 0);
    expect_waiting(session);
    arrive(0, 1);
    tick(core, LATE_NS + FENCE_INTERVAL_NS);
    expect_granted(core, session, 1);
}

static void what_its_own_process_has_of_the_quota_is_not_waited_for_without_end(void **state) {
    struct pool *pool = add_pool(core, 64 * MIB, 8 * MIB, 0);
    (void)state;

    limit_all(core, QUOTA_POOLS, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_A);
    take_growing(session, pool, 3 * MIB, 0);
    take_growing(other, pool, 3 * MIB, 0);
    ask(session, pool, 1, 6 * MIB, NS_FOREVER, 0);
    ask(other, pool, 2, 5 * MIB, NS_FOREVER, 0);
    tick(core, LONG_WAIT_NS);
    const char *text = expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    expect_text(text, "QUOTA: user 1001 has 6 MiB of the 8 MiB");
    expect_text(text, "no other process of the user has enough to give back");
    tick(core, LATE_NS);
    expect_no_answer(core);
    expect_text(expect_told(other, LATE_NS), "5 MiB of test pool (quota)");
}

static void what_no_process_holds_is_not_waited_for_without_end(void **state) {
    struct pool *pool = add_pool(core, 64 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_A);
    uint64_t now_ns = 0;
    (void)state;

    take_growing(other, pool, 8 * MIB, 0);
    ask(session, pool, 1, 16 * MIB, NS_FOREVER, 0);
    while (pool->waiters.count > 0 && now_ns < LATE_NS) { /* the driver has no more */
        struct pool *growing;
        uint64_t bytes;
        while (core_next_growth(core, &growing, &bytes))
            growth_failed(growing, "out of memory", now_ns);
        now_ns = core_next_tick_ns(core);
        tick(core, now_ns);
    }
    assert_true(now_ns <= LONG_WAIT_NS + 2 * LONG_WAIT_LOOK_NS);
    const char *text = expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    expect_text(text, "no process holds what is lacking, to give it back");
    expect_text(text, "the last growth failed: out of memory");
}

/* --- processes that do not answer --- */

static struct session *open_idle(pid_t pid, uid_t uid, struct pool *pool, uint64_t bytes) {
    struct session *session = open_wanting(core, pid, uid);
    core_session_set_page(session, &page);
    take_growing(session, pool, bytes, 0);
    atomic_store(&page.counters[0].pool, pool->id);
    atomic_store(&page.counters[0].taken_bytes, bytes);
    atomic_store(&page.counters[0].given_bytes, bytes);
    return session;
}

static void wait_until_it_should_have_answered(uint64_t *now_ns) {
    for (uint64_t end_ns = *now_ns + NO_ANSWER_NS; *now_ns < end_ns; *now_ns += RECLAIM_INTERVAL_NS) {
        struct session *asked;
        tick(core, *now_ns);
        while (core_next_reclaim(core, &asked))
            ;
    }
    tick(core, *now_ns);
}

static void idle_memory_of_a_stopped_process_is_told_of(void **state) {
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *stopped = open_idle(1, UID_A, pool, 8 * MIB), *session = open_session(core, 2, UID_A);
    uint64_t now_ns = NS_PER_S;
    (void)state;

    ask(session, pool, 1, 4 * MIB, 5 * NS_PER_S, now_ns);
    const struct request *request = list_first(&session->requests, struct request, session_link);
    tick(core, now_ns);
    assert_string_equal(waiter_reason_name(waiter_reason(request)), "room");
    wait_until_it_should_have_answered(&now_ns);
    assert_string_equal(waiter_reason_name(waiter_reason(request)), "no-answer");
    tick(core, 6 * NS_PER_S);
    expect_text(
        expect_refused(core, session, 1, PROTO_E_EXHAUSTED),
        "within the time given: 8 MiB is idle memory of pid 1 (worker-1), which does not answer (is it "
        "stopped?); 0 B free");
    core_session_heard(stopped); /* it goes on */
    ask(session, pool, 2, 4 * MIB, 0, 7 * NS_PER_S);
    assert_null(strstr(expect_refused(core, session, 2, PROTO_E_EXHAUSTED), "does not answer"));
}

static void stopped_processes_of_other_users_are_summed_up(void **state) {
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 2, UID_A);
    uint64_t now_ns = NS_PER_S;
    (void)state;

    open_idle(1, UID_B, pool, 8 * MIB);
    ask(session, pool, 1, 4 * MIB, 5 * NS_PER_S, now_ns);
    wait_until_it_should_have_answered(&now_ns);
    tick(core, 6 * NS_PER_S);
    const char *text = expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    expect_text(text, "8 MiB is idle memory of other processes that do not answer");
    assert_null(strstr(text, "worker-1"));
}

static void segments_that_a_stopped_process_keeps_mapped_are_told_of(void **state) {
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *stopped = open_wanting(core, 1, UID_A), *session = open_session(core, 2, UID_B);
    struct lease *lease = take_growing(stopped, pool, 8 * MIB, 0);
    uint64_t now_ns = NS_PER_S;
    (void)state;

    describe(lease, NULL);
    assert_int_equal(release(stopped, name_of(lease), 0), 0);
    ask(session, pool, 1, 4 * MIB, NS_FOREVER, now_ns);
    wait_until_it_should_have_answered(&now_ns);
    tick(core, now_ns + LONG_WAIT_NS);
    expect_text(expect_told(session, now_ns), "pid 1 (worker-1) has 1 segment mapped, and does not answer");
    expect_no_answer(core);
}

static void a_process_that_sends_messages_answers(void **state) {
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *busy = open_idle(1, UID_A, pool, 8 * MIB), *session = open_session(core, 2, UID_A);
    (void)state;

    ask(session, pool, 1, 4 * MIB, 5 * NS_PER_S, 0);
    for (uint64_t now_ns = 0; now_ns < 5 * NS_PER_S; now_ns += RECLAIM_INTERVAL_NS) {
        tick(core, now_ns);
        if (now_ns % NS_PER_S == 0)
            core_session_heard(busy);
    }
    tick(core, 5 * NS_PER_S);
    assert_null(strstr(expect_refused(core, session, 1, PROTO_E_EXHAUSTED), "does not answer"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        WAIT_TEST(what_its_own_process_holds_is_not_waited_for_without_end),
        WAIT_TEST(a_deadline_is_kept_and_its_text_says_the_same),
        WAIT_TEST(pieces_between_its_own_memory_are_told_of),
        WAIT_TEST(what_another_process_holds_is_waited_for),
        WAIT_TEST(the_log_names_the_processes_of_all_users),
        WAIT_TEST(too_little_of_another_process_does_not_count),
        WAIT_TEST(a_process_that_gives_back_waits_on),
        WAIT_TEST(segments_that_stay_mapped_are_not_waited_for_without_end),
        WAIT_TEST(memory_behind_fences_and_in_parcels_may_come_back),
        WAIT_TEST(what_its_own_process_has_of_the_quota_is_not_waited_for_without_end),
        WAIT_TEST(what_no_process_holds_is_not_waited_for_without_end),
        WAIT_TEST(idle_memory_of_a_stopped_process_is_told_of),
        WAIT_TEST(stopped_processes_of_other_users_are_summed_up),
        WAIT_TEST(segments_that_a_stopped_process_keeps_mapped_are_told_of),
        WAIT_TEST(a_process_that_sends_messages_answers),
    };
    return cmocka_run_group_tests_name("long waits", tests, NULL, NULL);
}
