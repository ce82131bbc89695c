/* SPDX-License-Identifier: Apache-2.0 */
/* The boards as the daemon keeps them, and the states of fences as every process reads them there. */
#include "daemon/data/board.h"
#include "daemon/loop/desk.h"
#include "unit.h"

static struct desk desk; /* there is no estate */
static struct boards boards;

static struct board *join(uid_t uid, uint32_t *ret_slot) {
    const struct tenant_id tenant = {.uid = uid};
    struct board *board = NULL;
    assert_int_equal(board_join(&boards, tenant, &board, ret_slot), 0);
    assert_true(tenant_id_is(board->tenant, tenant));
    return board;
}

static int begin(void **state) {
    (void)state;
    boards_init(&boards, &desk, NULL);
    return 0;
}

static int end(void **state) {
    (void)state;
    board_end(&boards, (struct tenant_id){.uid = 1001});
    board_end(&boards, (struct tenant_id){.uid = 1002});
    return list_is_empty(&boards.all) ? 0 : -1;
}

static void each_user_has_a_board_of_its_own(void **state) {
    uint32_t first, second, other;
    struct board *board = join(1001, &first), *others = join(1002, &other);

    (void)state;
    assert_ptr_equal(join(1001, &second), board);
    assert_ptr_not_equal(others, board);
    assert_int_not_equal(first, second);
    assert_int_not_equal(board->fd, others->fd);
    board_leave(&boards, board, first, true);
    board_leave(&boards, board, second, false);
    board_leave(&boards, others, other, true);
    assert_ptr_equal(join(1001, &second), board); /* tokens name fences on it */
    board_leave(&boards, board, second, true);
    board_end(&boards, (struct tenant_id){.uid = 1002});
    board_end(&boards, (struct tenant_id){.uid = 1003});
    assert_ptr_equal(list_first(&boards.all, struct board, link), board);
}

/* A slot in which a session has reached a value, and another one that keeps the board. */
static struct board *reach(uint64_t fences, uint32_t *ret_slot, uint32_t *ret_other, uint64_t *ret_value) {
    struct board *board = join(1001, ret_other);

    (void)join(1001, ret_slot);
    _Atomic uint64_t *word = &board->memory->slots[*ret_slot].words[5];
    *ret_value = *word + fences;
    *word = *ret_value;
    return board;
}

static enum proto_board_state state_of(const struct board *board, uint32_t slot, uint64_t value) {
    return proto_board_state(&board->memory->slots[slot], 5, value);
}

static void fences_of_a_living_session_are_ready_when_they_are_reached(void **state) {
    uint32_t slot, other;
    uint64_t value;
    struct board *board = reach(10, &slot, &other, &value);

    (void)state;
    assert_int_equal(state_of(board, slot, value - 3), PROTO_BOARD_READY);
    assert_int_equal(state_of(board, slot, value), PROTO_BOARD_READY);
    assert_int_equal(state_of(board, slot, value + 1), PROTO_BOARD_PENDING);
    board_leave(&boards, board, slot, true);
    board_leave(&boards, board, other, true);
}

static void a_session_that_died_lost_what_it_had_not_reached(void **state) {
    uint32_t slot, other;
    uint64_t value;
    struct board *board = reach(10, &slot, &other, &value);

    (void)state;
    board_leave(&boards, board, slot, false);
    assert_int_equal(state_of(board, slot, value), PROTO_BOARD_READY);
    assert_int_equal(state_of(board, slot, value + 1), PROTO_BOARD_LOST);
    /* a stream that waits for it goes on: the GPU compares so */
    assert_true((int64_t)(board->memory->slots[slot].words[5] - (value + 1)) >= 0);
    board_leave(&boards, board, other, true);
}

static void a_session_that_left_well_lost_nothing(void **state) {
    uint32_t slot, other;
    uint64_t value;
    struct board *board = reach(10, &slot, &other, &value);

    (void)state;
    board_leave(&boards, board, slot, true);
    assert_int_equal(state_of(board, slot, value), PROTO_BOARD_READY);
    assert_int_equal(state_of(board, slot, value + 1000), PROTO_BOARD_READY);
    board_leave(&boards, board, other, true);
}

/* The next session in a slot goes on above all that was there, and what was lost stays so until it ends. */
static void a_slot_is_used_again_after_all_others(void **state) {
    uint32_t slot, other, next;
    uint64_t value;
    struct board *board = reach(10, &slot, &other, &value);

    (void)state;
    board_leave(&boards, board, slot, false);
    for (unsigned i = 0; i + 2 < PROTO_BOARD_SLOTS; i++) {
        (void)join(1001, &next);
        assert_int_not_equal(next, slot);
    }
    (void)join(1001, &next);
    assert_int_equal(next, slot);
    struct board *none;
    uint32_t no_slot;
    assert_int_equal(board_join(&boards, (struct tenant_id){.uid = 1001}, &none, &no_slot), -ENOSPC);
    uint64_t begins = board->memory->slots[slot].words[5];
    assert_true(begins > value);
    assert_int_equal(state_of(board, slot, value + 1), PROTO_BOARD_LOST);
    assert_int_equal(state_of(board, slot, value), PROTO_BOARD_READY);
    assert_int_equal(state_of(board, slot, begins), PROTO_BOARD_READY);
    assert_int_equal(state_of(board, slot, begins + 1), PROTO_BOARD_PENDING);
    for (uint32_t i = 0; i < PROTO_BOARD_SLOTS; i++)
        board_leave(&boards, board, i, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_user_has_a_board_of_its_own, begin, end),
        cmocka_unit_test_setup_teardown(fences_of_a_living_session_are_ready_when_they_are_reached, begin,
                                        end),
        cmocka_unit_test_setup_teardown(a_session_that_died_lost_what_it_had_not_reached, begin, end),
        cmocka_unit_test_setup_teardown(a_session_that_left_well_lost_nothing, begin, end),
        cmocka_unit_test_setup_teardown(a_slot_is_used_again_after_all_others, begin, end),
    };
    return cmocka_run_group_tests_name("boards", tests, NULL, NULL);
}
