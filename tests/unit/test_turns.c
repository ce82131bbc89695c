/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the scheduler alone: it gives turns to sources without sockets.
 */
#include "daemon/loop/scheduler.h"
#include "unit.h"

#define ANNA 1000u
#define BEN  1001u

static struct scheduler scheduler;

static void serve(struct turn *turn) {
    (void)turn;
}

static int set_up(void **state) {
    (void)state;
    scheduler_init(&scheduler);
    return 0;
}

static void join(struct turn *turn, uint64_t user, pid_t pid) {
    assert_int_equal(turn_join(turn, &scheduler, user, pid, serve), 0);
}

/* Returns the next source, which asks again at once. */
static struct turn *serve_next(void) {
    struct turn *turn = scheduler_next(&scheduler);
    assert_non_null(turn);
    turn_wait(turn);
    return turn;
}

static void who_asks_seldom_is_next(void **state) {
    struct turn busy[16], seldom;
    (void)state;

    join(&seldom, ANNA, 1);
    for (unsigned i = 0; i < 16; i++) {
        join(&busy[i], ANNA, 2);
        turn_wait(&busy[i]);
    }
    for (unsigned round = 0; round < 100; round++) {
        for (unsigned i = 0; i < round % 5; i++)
            assert_ptr_not_equal(serve_next(), &seldom);
        turn_wait(&seldom);
        if (round % 5 == 0) /* it was the last to be served, or none was: one of the others is before it */
            assert_ptr_equal(serve_next()->process, busy[0].process);
        assert_ptr_equal(scheduler_next(&scheduler), &seldom);
    }
    for (unsigned i = 0; i < 16; i++)
        turn_leave(&busy[i]);
    assert_true(scheduler_is_idle(&scheduler));
    turn_leave(&seldom);
}

static void connections_of_a_process_and_processes_of_a_user_share_its_turns(void **state) {
    struct turn annas[6], bens[2];
    unsigned n_annas = 0, each[6] = {0}, n_bens[2] = {0};
    (void)state;

    for (unsigned i = 0; i < 6; i++)
        join(&annas[i], ANNA, i < 3 ? 1 : (pid_t)i); /* three of one process, and three processes */
    for (unsigned i = 0; i < 2; i++)
        join(&bens[i], BEN, 10 + (pid_t)i);
    for (unsigned i = 0; i < 6; i++)
        turn_wait(&annas[i]);
    for (unsigned i = 0; i < 2; i++)
        turn_wait(&bens[i]);
    for (unsigned n = 0; n < 240; n++) {
        struct turn *turn = serve_next();
        for (unsigned i = 0; i < 6; i++)
            each[i] += turn == &annas[i];
        for (unsigned i = 0; i < 2; i++)
            n_bens[i] += turn == &bens[i];
        n_annas += turn->process->user->key == ANNA;
    }
    assert_int_equal(n_annas, 120);
    assert_int_equal(n_bens[0], 60);
    assert_int_equal(n_bens[1], 60);
    for (unsigned i = 0; i < 6; i++)
        assert_int_equal(each[i], i < 3 ? 10 : 30);
    for (unsigned i = 0; i < 6; i++)
        turn_leave(&annas[i]);
    assert_false(scheduler_is_idle(&scheduler)); /* Ben's still wait */
    for (unsigned i = 0; i < 2; i++)
        turn_leave(&bens[i]);
    assert_true(scheduler_is_idle(&scheduler));
}

static void processes_made_anew_for_each_question_gain_nothing(void **state) {
    struct turn steady, fresh[8];
    unsigned n_steady = 0;
    (void)state;

    join(&steady, ANNA, 1);
    turn_wait(&steady);
    for (unsigned i = 0; i < 8; i++)
        fresh[i] = (struct turn){0};
    for (unsigned n = 0; n < 80; n++) {
        unsigned slot = n % 8;
        turn_leave(&fresh[slot]);
        join(&fresh[slot], ANNA, 100 + (pid_t)n);
        turn_wait(&fresh[slot]);
        n_steady += serve_next() == &steady;
    }
    assert_true(n_steady >= 8); /* with eight others in the line, one turn in nine */
    for (unsigned i = 0; i < 8; i++)
        turn_leave(&fresh[i]);
    turn_leave(&steady);
}

/* In any order of waiting and being served, no waiting source was served longer ago than the next one, among
 * users and among the processes of that user. */
static void who_is_next_was_served_longest_ago(void **state) {
    static struct turn all[6][5][3];
    uint64_t seed = 7, last = 0;
    unsigned served = 0;
    (void)state;

    for (unsigned u = 0; u < 6; u++)
        for (unsigned p = 0; p < 5; p++)
            for (unsigned t = 0; t < 3; t++)
                join(&all[u][p][t], ANNA + u, 1 + (pid_t)p);
    for (unsigned n = 0; n < 20000; n++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
        unsigned random = (unsigned)(seed >> 33);
        turn_wait(&all[random % 6][random / 6 % 5][random / 30 % 3]);
        if (random / 90 % 4 == 0)
            continue;
        struct turn *next =
            list_is_empty(&scheduler.waiting)
                ? NULL
                : list_first(
                      &list_first(&list_first(&scheduler.waiting, struct turn_user, rank.link)->waiting,
                                  struct turn_process, rank.link)
                           ->waiting,
                      struct turn, link);
        unsigned n_waiting = 0;
        for (unsigned u = 0; u < 6; u++)
            for (unsigned p = 0; p < 5; p++)
                for (unsigned t = 0; t < 3; t++) {
                    const struct turn *other = &all[u][p][t];
                    if (!turn_is_waiting(other))
                        continue;
                    n_waiting++;
                    assert_non_null(next);
                    assert_true(next->process->user->rank.served <= other->process->user->rank.served);
                    if (next->process->user == other->process->user)
                        assert_true(next->process->rank.served <= other->process->rank.served);
                }
        assert_int_equal(n_waiting, scheduler.n_waiting);
        assert_ptr_equal(scheduler_next(&scheduler), next);
        if (next != NULL) {
            served++;
            assert_true(next->process->rank.served > last);
            last = next->process->rank.served;
        }
    }
    assert_true(served > 10000);
    for (unsigned u = 0; u < 6; u++)
        for (unsigned p = 0; p < 5; p++)
            for (unsigned t = 0; t < 3; t++)
                turn_leave(&all[u][p][t]);
    assert_int_equal(scheduler.n_waiting, 0);
}

static void who_waits_twice_waits_once_and_who_leaves_is_not_served(void **state) {
    struct turn first, second, stranger = {0};
    (void)state;

    join(&first, ANNA, 1);
    join(&second, ANNA, 1);
    turn_wait(&first);
    turn_wait(&first);
    turn_wait(&second);
    assert_true(turn_is_waiting(&first));
    turn_leave(&first);
    turn_leave(&first);
    turn_leave(&stranger);
    assert_false(turn_is_waiting(&first));
    assert_ptr_equal(scheduler_next(&scheduler), &second);
    assert_null(scheduler_next(&scheduler));
    turn_leave(&second);
    for (unsigned i = 0; i < SCHEDULER_USER_CHAINS; i++)
        assert_true(list_is_empty(&scheduler.users[i]));
    for (unsigned i = 0; i < SCHEDULER_PROCESS_CHAINS; i++)
        assert_true(list_is_empty(&scheduler.processes[i]));
}

static void new_connections_wait_for_a_bounded_number_of_requests(void **state) {
    struct turn listener, request;
    (void)state;

    join(&listener, SCHEDULER_LISTENERS, 3);
    join(&request, ANNA, 1);
    turn_wait(&listener);
    assert_ptr_equal(scheduler_next(&scheduler), &listener); /* no request waits */
    turn_wait(&listener);
    turn_wait(&request);
    for (unsigned i = 0; i < SCHEDULER_PASSES_MAX + 1; i++) /* the first is the request's own turn */
        assert_ptr_equal(serve_next(), &request);
    assert_ptr_equal(serve_next(), &listener);
    for (unsigned i = 0; i < SCHEDULER_PASSES_MAX + 1; i++)
        assert_ptr_equal(serve_next(), &request);
    assert_ptr_equal(serve_next(), &listener);
    turn_leave(&request);
    turn_leave(&listener);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(who_asks_seldom_is_next, set_up),
        cmocka_unit_test_setup(connections_of_a_process_and_processes_of_a_user_share_its_turns, set_up),
        cmocka_unit_test_setup(processes_made_anew_for_each_question_gain_nothing, set_up),
        cmocka_unit_test_setup(who_is_next_was_served_longest_ago, set_up),
        cmocka_unit_test_setup(who_waits_twice_waits_once_and_who_leaves_is_not_served, set_up),
        cmocka_unit_test_setup(new_connections_wait_for_a_bounded_number_of_requests, set_up),
    };
    return cmocka_run_group_tests_name("turns", tests, NULL, NULL);
}
