/* SPDX-License-Identifier: Apache-2.0 */
/* The answers to ASK_HOLDERS: who else has a shared block, and behind which fences on the board. */
#include "core_fixture.h"

static struct proto_holders holders_of(struct session *session, const struct lease *lease) {
    struct proto_holders holders;
    const struct proto_lease_name name = name_of(lease);
    assert_int_equal(core_ask_holders(session, &name, &holders), 0);
    return holders;
}

static void expect_holders(struct session *session, const struct lease *lease, unsigned n_holding,
                           unsigned count, unsigned n_left) {
    struct proto_holders holders = holders_of(session, lease);
    assert_int_equal(holders.n_holding, n_holding);
    assert_int_equal(holders.count, count);
    assert_int_equal(holders.n_left, n_left);
}

static int release_on_board(struct session *session, const struct lease *lease, uint32_t fence,
                            uint64_t value, uint32_t word, uint64_t board_value) {
    const struct proto_release release = {.lease = lease->id,
                                          .generation = lease->generation,
                                          .fence = fence,
                                          .fence_value = value,
                                          .board_word = word + 1,
                                          .board_value = board_value};
    int r = core_release(session, &release, 0);
    assert_true(core_is_valid(session->core));
    return r;
}

/* A block of a session, and the token that it has for others. */
static struct lease *take_shared(struct session *session, struct pool *pool, struct proto_token *ret_token) {
    const struct proto_token fresh = token_of(1);
    struct lease *lease = take_growing(session, pool, 2 * MIB, 0);
    const struct proto_lease_name name = name_of(lease);

    assert_int_equal(share_lease(session, &name, 0, &fresh, ret_token), 0);
    return lease;
}

/* A block of one session that another one attaches. */
static struct lease *share(struct session *one, struct session *two, struct pool *pool,
                           struct lease **ret_lease) {
    struct lease *attached = NULL;
    struct proto_token token;

    *ret_lease = take_shared(one, pool, &token);
    assert_int_equal(core_attach(two, &token, &attached), 0);
    return attached;
}

static void a_fence_on_the_board_is_named_until_the_one_in_the_page_is_ready(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 2 * MIB, 0);
    struct session *one = open_with_page(core, 1, UID_A), *two = open_with_page(core, 2, UID_A);
    struct lease *lease, *attached = share(one, two, pool, &lease);

    expect_holders(one, lease, 1, 0, 0);
    expect_holders(two, attached, 1, 0, 0);
    core_session_set_board(two, 9, NULL);
    assert_int_equal(release_on_board(two, attached, 3, 1, 7, 50), 0);
    struct proto_holders holders = holders_of(one, lease);
    assert_int_equal(holders.n_holding, 0);
    assert_int_equal(holders.count, 1);
    assert_int_equal(holders.n_left, 0);
    assert_int_equal(holders.fences[0].slot, 9);
    assert_int_equal(holders.fences[0].word, 7);
    assert_int_equal(holders.fences[0].value, 50);
    page.fences[2] = 1;
    expect_holders(one, lease, 0, 0, 0);
}

static void a_fence_that_is_not_on_the_board_is_counted(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 2 * MIB, 0);
    struct session *one = open_with_page(core, 1, UID_A), *two = open_with_page(core, 2, UID_A);
    struct lease *lease, *attached = share(one, two, pool, &lease);

    assert_int_equal(release_behind(two, name_of(attached), 2, 1), 0);
    expect_holders(one, lease, 0, 0, 1);
    page.fences[2] = 1;
    expect_holders(one, lease, 0, 0, 0);
}

static void what_is_released_without_a_fence_is_nobodys(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 2 * MIB, 0);
    struct session *one = open_with_page(core, 1, UID_A), *two = open_with_page(core, 2, UID_A);
    struct lease *lease, *attached = share(one, two, pool, &lease);

    core_session_set_board(two, 0, NULL);
    assert_int_equal(release_on_board(two, attached, 0, 0, 7, 50), 0);
    expect_holders(one, lease, 0, 0, 0);
}

static void the_dead_hold_what_is_in_quarantine(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 2 * MIB, 0);
    struct session *one = open_with_page(core, 1, UID_A), *two = open_with_page(core, 2, UID_A);
    struct lease *lease, *attached = share(one, two, pool, &lease);

    core_session_set_board(two, 3, NULL);
    assert_int_equal(release_on_board(two, attached, 3, 1, 7, 50), 0);
    core_session_lose(two, 0, "a test");
    assert_true(core_is_valid(core));
    expect_holders(one, lease, 1, 0, 0);
    page.fences[2] = 1; /* the dead are not believed */
    expect_holders(one, lease, 1, 0, 0);
    core_session_gone(two, 0);
    expect_holders(one, lease, 0, 0, 0);
}

static void more_fences_than_an_answer_has_room_for_are_counted(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 2 * MIB, 0);
    struct session *one = open_with_page(core, 1, UID_A), *two = open_with_page(core, 2, UID_A);
    struct proto_token token;
    struct lease *lease = take_shared(one, pool, &token), *attached;

    for (unsigned i = 0; i < PROTO_HOLDERS_MAX + 5; i++) {
        core_session_set_board(two, 3 + i / PROTO_BOARD_WORDS, NULL);
        assert_int_equal(core_attach(two, &token, &attached), 0);
        assert_int_equal(release_on_board(two, attached, 3, i + 1, i % PROTO_BOARD_WORDS, i), 0);
    }
    expect_holders(one, lease, 0, PROTO_HOLDERS_MAX, 5);
    page.fences[2] = PROTO_HOLDERS_MAX;
    expect_holders(one, lease, 0, 5, 0);
    page.fences[2] = PROTO_HOLDERS_MAX + 5;
    expect_holders(one, lease, 0, 0, 0);
}

static void of_the_fences_in_a_word_the_last_is_named(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 2 * MIB, 0);
    struct session *one = open_with_page(core, 1, UID_A), *two = open_with_page(core, 2, UID_A);
    struct proto_token token;
    struct lease *lease = take_shared(one, pool, &token), *attached;

    core_session_set_board(two, 3, NULL);
    for (unsigned i = 0; i < 10; i++) {
        assert_int_equal(core_attach(two, &token, &attached), 0);
        assert_int_equal(release_on_board(two, attached, 3, i + 1, i % 2, UINT64_MAX - 4 + i), 0);
    }
    struct proto_holders holders = holders_of(one, lease);
    assert_int_equal(holders.count, 2);
    assert_int_equal(holders.n_left, 0);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(holders.fences[i].value, UINT64_MAX - 4 + 8 + holders.fences[i].word);
}

/* Among many leases only some are looked at; a later question finds others. */
static void a_block_with_very_many_leases_is_looked_at_in_parts(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 2 * MIB, 0);
    struct session *one = open_with_page(core, 1, UID_A), *two = open_with_page(core, 2, UID_A);
    const unsigned count = 3 * HOLDERS_WALK_MAX;
    struct proto_token token;
    struct lease *lease = take_shared(one, pool, &token), *attached;

    for (unsigned i = 0; i < count; i++) {
        assert_int_equal(core_attach(two, &token, &attached), 0);
        assert_int_equal(release_behind(two, name_of(attached), 2, i + 1), 0);
    }
    expect_holders(one, lease, 0, 0, count);
    page.fences[2] = count / 2;
    expect_holders(one, lease, 0, 0, count - count / 2);
    page.fences[2] = count;
    expect_holders(one, lease, 0, 0, 0);
}

static void wrong_names_and_sessions_without_a_slot_are_refused(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 4 * MIB, 2 * MIB, 0);
    struct session *one = open_with_page(core, 1, UID_A), *two = open_with_page(core, 2, UID_A);
    struct lease *lease, *attached = share(one, two, pool, &lease);
    const struct proto_lease_name other = name_of(attached);
    struct proto_holders holders;

    assert_int_equal(core_ask_holders(one, &other, &holders), PROTO_E_STALE);
    assert_int_equal(release_on_board(two, attached, 3, 1, 7, 50), PROTO_E_INVALID);
    core_session_set_board(one, 3, NULL);
    assert_int_equal(release_on_board(one, attached, 3, 1, 7, 50), PROTO_E_STALE);
    expect_holders(one, lease, 1, 0, 0);
    /* without a page there are no fences, and the lease stays as it is */
    struct session *bare = open_session(core, 3, UID_A);
    struct lease *own = take_growing(bare, pool, 2 * MIB, 0);
    core_session_set_board(bare, 4, NULL);
    assert_int_equal(release_on_board(bare, own, 1, 1, 7, 50), PROTO_E_INVALID);
    assert_int_equal(bare->n_leases, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(a_fence_on_the_board_is_named_until_the_one_in_the_page_is_ready),
        CORE_TEST(a_fence_that_is_not_on_the_board_is_counted),
        CORE_TEST(what_is_released_without_a_fence_is_nobodys),
        CORE_TEST(the_dead_hold_what_is_in_quarantine),
        CORE_TEST(of_the_fences_in_a_word_the_last_is_named),
        CORE_TEST(more_fences_than_an_answer_has_room_for_are_counted),
        CORE_TEST(a_block_with_very_many_leases_is_looked_at_in_parts),
        CORE_TEST(wrong_names_and_sessions_without_a_slot_are_refused),
    };
    return cmocka_run_group_tests_name("holders", tests, NULL, NULL);
}
