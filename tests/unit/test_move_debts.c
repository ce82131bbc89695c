/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the debts for moves: what a credit is, and what pays a debt off. */
#include "base/units.h"
#include "client/cache/move_debts.h"
#include "unit.h"

#define POOL   3u
#define CREDIT MOVE_DEBT_CREDIT
#define MISS   MOVE_DEBT_MISS
#define NOW_NS (5 * NS_PER_S)

static struct move_debts debts;

static int set_up(void **state) {
    (void)state;
    move_debts_init(&debts);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    move_debts_deinit(&debts);
    return 0;
}

/* Whether a miss may move so many segments. */
static bool allows(uint32_t pool, uint64_t takes, uint64_t now_ns, uint64_t n_moved) {
    return n_moved <= move_debts_allowance(&debts, pool, takes, now_ns);
}

/* Whether a miss may move that has seen nothing since the last one. */
static bool may_move(uint64_t n_moved) {
    return allows(POOL, 0, 0, n_moved);
}

static void moves_stay_within_the_credit(void **state) {
    (void)state;
    move_debts_add(&debts, POOL, 1);
    assert_true(may_move(CREDIT - 1 - 2 * MISS));
    assert_false(may_move(CREDIT - 2 * MISS));
}

static void without_a_debt_any_number_moves(void **state) {
    (void)state;
    assert_true(may_move(10 * CREDIT));
    move_debts_add(&debts, POOL, 10 * CREDIT);
    assert_false(may_move(1));
}

static void moves_add_up_with_a_part_for_each_miss(void **state) {
    (void)state;
    for (uint64_t debt = 0; debt + 1 + MISS <= CREDIT; debt += 1 + MISS) {
        assert_true(may_move(1));
        move_debts_add(&debts, POOL, 1);
    }
    assert_false(may_move(1 + MISS));
}

static void a_question_is_no_debt(void **state) {
    (void)state;
    for (unsigned i = 0; i < 3; i++)
        assert_true(may_move(CREDIT - MISS));
}

static void pools_have_debts_of_their_own(void **state) {
    (void)state;
    move_debts_add(&debts, POOL, CREDIT);
    assert_false(may_move(1));
    assert_true(allows(POOL - 1, 0, 0, 1));
    assert_true(allows(PROTO_POOLS_MAX, 0, 0, 1));
}

static void buffers_that_are_taken_pay(void **state) {
    (void)state;
    move_debts_add(&debts, POOL, CREDIT - 2 * MISS - 1); /* one is left */
    assert_true(allows(POOL, 0, 0, 1));
    assert_false(allows(POOL, MOVE_DEBT_TAKES - 1, 0, 2));
    assert_true(allows(POOL, MOVE_DEBT_TAKES, 0, 2));
    /* what was short of a segment's price counts the next time */
    assert_false(allows(POOL, 2 * MOVE_DEBT_TAKES - 1, 0, 3));
    assert_true(allows(POOL, 2 * MOVE_DEBT_TAKES, 0, 3));
}

static void time_pays(void **state) {
    (void)state;
    assert_true(allows(POOL, 0, NOW_NS, 1));
    move_debts_add(&debts, POOL, CREDIT - 2 * MISS - 1);
    assert_false(allows(POOL, 0, NOW_NS + MOVE_DEBT_NS - 1, 2));
    assert_true(allows(POOL, 0, NOW_NS + MOVE_DEBT_NS, 2));
    assert_true(allows(POOL, 0, NOW_NS + 3 * NS_PER_S, CREDIT));
}

static void the_time_of_misses_does_not_pay(void **state) {
    (void)state;
    assert_true(allows(POOL, 0, NOW_NS, 1));
    move_debts_add(&debts, POOL, CREDIT - 2 * MISS - 1);
    move_debts_except(&debts, POOL, 3 * MOVE_DEBT_NS);
    assert_false(allows(POOL, 0, NOW_NS + 4 * MOVE_DEBT_NS - 1, 2));
    assert_true(allows(POOL, 0, NOW_NS + 4 * MOVE_DEBT_NS, 2));
}

/* Of two threads the one that has looked first may come last. */
static void earlier_figures_pay_nothing(void **state) {
    (void)state;
    assert_true(allows(POOL, 10 * MOVE_DEBT_TAKES, NOW_NS, 1));
    move_debts_add(&debts, POOL, CREDIT);
    assert_false(allows(POOL, 9 * MOVE_DEBT_TAKES, NOW_NS - MOVE_DEBT_NS, 1));
    assert_false(allows(POOL, 11 * MOVE_DEBT_TAKES, NOW_NS + MOVE_DEBT_NS, 1));
}

static void nothing_is_paid_in_advance(void **state) {
    (void)state;
    assert_true(allows(POOL, 1000 * MOVE_DEBT_TAKES, NOW_NS, 1));
    move_debts_add(&debts, POOL, CREDIT);
    assert_false(allows(POOL, 1000 * MOVE_DEBT_TAKES, NOW_NS, 1));
}

static void a_debt_is_forgiven(void **state) {
    (void)state;
    move_debts_add(&debts, POOL, 3 * CREDIT);
    move_debts_add(&debts, POOL + 1, CREDIT);
    move_debts_forgive(&debts, POOL);
    assert_true(may_move(CREDIT - MISS));
    assert_false(allows(POOL + 1, 0, 0, 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(moves_stay_within_the_credit, set_up, tear_down),
        cmocka_unit_test_setup_teardown(without_a_debt_any_number_moves, set_up, tear_down),
        cmocka_unit_test_setup_teardown(moves_add_up_with_a_part_for_each_miss, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_question_is_no_debt, set_up, tear_down),
        cmocka_unit_test_setup_teardown(pools_have_debts_of_their_own, set_up, tear_down),
        cmocka_unit_test_setup_teardown(buffers_that_are_taken_pay, set_up, tear_down),
        cmocka_unit_test_setup_teardown(time_pays, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_time_of_misses_does_not_pay, set_up, tear_down),
        cmocka_unit_test_setup_teardown(earlier_figures_pay_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_is_paid_in_advance, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_debt_is_forgiven, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
