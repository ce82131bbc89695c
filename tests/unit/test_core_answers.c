/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the answers to questions for idle memory, and of requests that wait for idle memory alone
 * (IDLE_ONLY): they end as soon as a whole round of questions has brought nothing, and not before.
 */
#include <stdatomic.h>

#include "core_fixture.h"
#include "daemon/core/question.h"

#define INTERVAL RECLAIM_INTERVAL_NS

static void ask_idle(struct session *session, const struct pool *pool, uint64_t request, uint64_t size,
                     uint64_t now_ns) {
    const struct proto_acquire acquire = {
        .pool = pool->id, .flags = PROTO_ACQUIRE_IDLE_ONLY, .size_bytes = size, .timeout_ns = NS_FOREVER};
    assert_int_equal(core_acquire(session, request, &acquire, now_ns), 0);
    assert_true(core_is_valid(session->core));
}

static int answer_as(struct session *session, const struct pool *pool, enum proto_reclaim outcome,
                     uint64_t asked, uint64_t kept_bytes, uint64_t now_ns) {
    const struct proto_reclaimed reclaimed = {pool->id, outcome, asked, kept_bytes};
    int r = core_reclaimed(session, &reclaimed, now_ns);
    assert_true(core_is_valid(session->core));
    return r;
}

static void answer(struct session *session, const struct pool *pool, enum proto_reclaim outcome,
                   uint64_t now_ns) {
    assert_int_equal(answer_as(session, pool, outcome, session->n_questions, 0, now_ns), 0);
}

/* A pool of 8 MiB, all of which the holders have. */
struct scene {
    struct core *core;
    struct pool *pool;
    struct session *holders[2], *waiter;
    struct lease *leases[2];
};

static struct scene begin(struct core *core) {
    struct scene scene = {.core = core, .pool = add_pool(core, 8 * MIB, 8 * MIB, 0)};

    scene.holders[0] = open_wanting(core, 1, UID_A);
    scene.holders[1] = open_wanting(core, 2, UID_A);
    scene.waiter = open_wanting(core, 3, UID_A);
    scene.leases[0] = take_growing(scene.holders[0], scene.pool, 4 * MIB, 0);
    scene.leases[1] = take(scene.holders[1], scene.pool, 4 * MIB, 0);
    return scene;
}

static void expect_both_asked(const struct scene *scene) {
    expect_reclaim(scene->core, scene->holders[0]);
    expect_reclaim(scene->core, scene->holders[1]);
    expect_no_reclaim(scene->core);
}

static void a_wait_ends_when_all_have_answered_that_there_is_nothing(void **state) {
    struct scene scene = begin(*state);

    ask_idle(scene.waiter, scene.pool, 1, MIB, 0);
    ask(scene.waiter, scene.pool, 2, MIB, NS_FOREVER, 0); /* waits for memory in use, too */
    expect_both_asked(&scene);
    answer(scene.holders[0], scene.pool, PROTO_RECLAIM_WAITS, 1);
    expect_no_answer(scene.core);
    answer(scene.holders[1], scene.pool, PROTO_RECLAIM_PENDING, 2);
    expect_no_answer(scene.core);
    answer(scene.holders[1], scene.pool, PROTO_RECLAIM_NOTHING, 3);
    expect_text(expect_refused(scene.core, scene.waiter, 1, PROTO_E_EXHAUSTED),
                "was asked for what it keeps idle");
    expect_no_answer(scene.core);
}

static void an_answer_to_an_earlier_question_does_not_count(void **state) {
    struct scene scene = begin(*state);

    ask(scene.waiter, scene.pool, 1, MIB, 1, 0);
    expect_both_asked(&scene);
    tick(scene.core, 1);
    expect_refused(scene.core, scene.waiter, 1, PROTO_E_EXHAUSTED);
    ask_idle(scene.waiter, scene.pool, 2, MIB, 2);
    answer(scene.holders[0], scene.pool, PROTO_RECLAIM_NOTHING, 3);
    answer(scene.holders[1], scene.pool, PROTO_RECLAIM_NOTHING, 3);
    expect_no_answer(scene.core);
    uint64_t soon = core_next_tick_ns(scene.core);
    assert_true(soon <= RECLAIM_SOON_NS); /* all have answered, and it waits for another round */
    tick(scene.core, soon);
    expect_both_asked(&scene);
    uint64_t old = scene.holders[1]->n_questions - 1;
    answer(scene.holders[0], scene.pool, PROTO_RECLAIM_NOTHING, soon);
    assert_int_equal(answer_as(scene.holders[1], scene.pool, PROTO_RECLAIM_NOTHING, old, 0, soon), 0);
    expect_no_answer(scene.core);
    answer(scene.holders[1], scene.pool, PROTO_RECLAIM_DONE, soon);
    expect_refused(scene.core, scene.waiter, 2, PROTO_E_EXHAUSTED);
    assert_int_equal(answer_as(scene.holders[1], scene.pool, PROTO_RECLAIM_DONE, old + 2, 0, soon),
                     PROTO_E_INVALID);
}

static void a_session_that_is_slow_is_asked_anew_when_it_has_answered(void **state) {
    struct scene scene = begin(*state);

    ask_idle(scene.waiter, scene.pool, 1, MIB, 0);
    expect_both_asked(&scene);
    answer(scene.holders[0], scene.pool, PROTO_RECLAIM_NOTHING, 1);
    tick(scene.core, INTERVAL);
    expect_both_asked(&scene); /* as before: a program that answers nothing is asked as often */
    assert_int_equal(scene.holders[0]->n_questions, 2);
    assert_int_equal(scene.holders[1]->n_questions, 1);
    answer(scene.holders[0], scene.pool, PROTO_RECLAIM_NOTHING, INTERVAL);
    answer(scene.holders[1], scene.pool, PROTO_RECLAIM_NOTHING, INTERVAL);
    expect_no_answer(scene.core); /* the answer was to the first round's question */
    expect_reclaim(scene.core, scene.holders[1]);
    answer(scene.holders[1], scene.pool, PROTO_RECLAIM_NOTHING, INTERVAL);
    expect_refused(scene.core, scene.waiter, 1, PROTO_E_EXHAUSTED);
}

static void a_round_that_brought_something_is_followed_by_another(void **state) {
    struct scene scene = begin(*state);

    ask_idle(scene.waiter, scene.pool, 1, 4 * MIB, 0);
    expect_both_asked(&scene);
    assert_int_equal(release_part(scene.holders[0], name_of(scene.leases[0]), 0, MIB, 1), 0);
    answer(scene.holders[0], scene.pool, PROTO_RECLAIM_DONE, 1);
    answer(scene.holders[1], scene.pool, PROTO_RECLAIM_NOTHING, 1);
    expect_no_answer(scene.core);
    assert_int_equal(scene.holders[0]->answers[scene.pool->id - 1].came_bytes, MIB);
    tick(scene.core, INTERVAL);
    expect_both_asked(&scene);
    answer(scene.holders[0], scene.pool, PROTO_RECLAIM_NOTHING, INTERVAL);
    answer(scene.holders[1], scene.pool, PROTO_RECLAIM_NOTHING, INTERVAL);
    expect_refused(scene.core, scene.waiter, 1, PROTO_E_EXHAUSTED);
}

static void sessions_that_say_later_are_waited_for_a_while(void **state) {
    struct scene scene = begin(*state);

    ask_idle(scene.waiter, scene.pool, 1, MIB, 0);
    answer(scene.holders[0], scene.pool, PROTO_RECLAIM_BUSY, 1); /* the other one says nothing at all */
    for (uint64_t now_ns = INTERVAL; now_ns < NO_ANSWER_NS; now_ns += INTERVAL) {
        tick(scene.core, now_ns);
        answer(scene.holders[0], scene.pool, PROTO_RECLAIM_CAPTURING, now_ns);
        expect_no_answer(scene.core);
    }
    tick(scene.core, NO_ANSWER_NS - 1);
    expect_no_answer(scene.core);
    assert_true(core_next_tick_ns(scene.core) <= NO_ANSWER_NS);
    tick(scene.core, NO_ANSWER_NS);
    expect_refused(scene.core, scene.waiter, 1, PROTO_E_EXHAUSTED);
    while (core_next_reclaim(scene.core, &scene.waiter)) {
    }
}

static void memory_on_its_way_is_waited_for(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *holder = open_with_page(core, 1, UID_A), *lost = open_wanting(core, 2, UID_A);
    struct session *waiter = open_wanting(core, 3, UID_A);

    core_session_want_reclaim(holder);
    struct lease *lease = take_growing(holder, pool, 4 * MIB, 0);
    take(lost, pool, 2 * MIB, 0);
    take(waiter, pool, 2 * MIB, 0);
    assert_int_equal(release_part_behind(holder, name_of(lease), 0, MIB, 1, 1, 0), 0);
    ask_idle(waiter, pool, 1, 3 * MIB, 0);
    lose_session(lost, 0);
    answer(holder, pool, PROTO_RECLAIM_NOTHING, 0);
    answer(waiter, pool, PROTO_RECLAIM_NOTHING, 0);
    expect_no_answer(core); /* behind a fence */
    arrive(1, 1);
    tick(core, QUARANTINE_NEAR_NS - 1);
    expect_no_answer(core); /* a process that has just ended */
    tick(core, QUARANTINE_NEAR_NS);
    answer(holder, pool, PROTO_RECLAIM_NOTHING, QUARANTINE_NEAR_NS);
    answer(waiter, pool, PROTO_RECLAIM_NOTHING, QUARANTINE_NEAR_NS);
    expect_refused(core, waiter, 1, PROTO_E_EXHAUSTED);
    struct session *asked;
    while (core_next_reclaim(core, &asked)) {
    }
}

static void a_refusal_tells_what_a_program_keeps_idle_and_why(void **state) {
    struct scene scene = begin(*state);

    ask(scene.waiter, scene.pool, 1, MIB, 5, 0);
    assert_int_equal(answer_as(scene.holders[0], scene.pool, PROTO_RECLAIM_CAPTURING, 1, 3 * MIB, 1), 0);
    assert_int_equal(answer_as(scene.holders[1], scene.pool, PROTO_RECLAIM_DONE, 1, 100 * MIB, 1), 0);
    tick(scene.core, 5);
    const char *text = expect_refused(scene.core, scene.waiter, 1, PROTO_E_EXHAUSTED);
    expect_text(text, "(of which 3 MiB idle in its program, which captures a stream)");
    expect_text(text, "(of which 4 MiB idle in its program)"); /* no more than it has */
    struct session *asked;
    while (core_next_reclaim(scene.core, &asked)) {
    }
}

static void one_request_ends_with_each_round(void **state) {
    struct scene scene = begin(*state);

    ask_idle(scene.waiter, scene.pool, 1, MIB, 0);
    ask_idle(scene.waiter, scene.pool, 2, MIB, 0);
    expect_both_asked(&scene);
    answer(scene.holders[0], scene.pool, PROTO_RECLAIM_NOTHING, 1);
    answer(scene.holders[1], scene.pool, PROTO_RECLAIM_NOTHING, 1);
    expect_refused(scene.core, scene.waiter, 1, PROTO_E_EXHAUSTED);
    tick(scene.core, RECLAIM_SOON_NS - 1);
    expect_no_answer(scene.core); /* its program may empty its cache now, which serves the other one */
    expect_no_reclaim(scene.core);
    tick(scene.core, RECLAIM_SOON_NS);
    expect_both_asked(&scene);
    answer(scene.holders[0], scene.pool, PROTO_RECLAIM_NOTHING, RECLAIM_SOON_NS);
    answer(scene.holders[1], scene.pool, PROTO_RECLAIM_NOTHING, RECLAIM_SOON_NS);
    expect_refused(scene.core, scene.waiter, 2, PROTO_E_EXHAUSTED);
}

static void without_sessions_to_ask_a_wait_ends_at_once(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *deaf = open_session(core, 1, UID_A), *waiter = open_session(core, 2, UID_A);

    take_growing(deaf, pool, 8 * MIB, 0);
    ask_idle(waiter, pool, 1, MIB, 0);
    expect_refused(core, waiter, 1, PROTO_E_EXHAUSTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(a_wait_ends_when_all_have_answered_that_there_is_nothing),
        CORE_TEST(an_answer_to_an_earlier_question_does_not_count),
        CORE_TEST(a_session_that_is_slow_is_asked_anew_when_it_has_answered),
        CORE_TEST(a_round_that_brought_something_is_followed_by_another),
        CORE_TEST(sessions_that_say_later_are_waited_for_a_while),
        CORE_TEST(memory_on_its_way_is_waited_for),
        CORE_TEST(a_refusal_tells_what_a_program_keeps_idle_and_why),
        CORE_TEST(one_request_ends_with_each_round),
        CORE_TEST(without_sessions_to_ask_a_wait_ends_at_once),
    };
    return cmocka_run_group_tests_name("core_answers", tests, NULL, NULL);
}
