/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the stats of use and caches: a page's counters are summed as they were counted, and the sums stay
 * possible when a client lies in its counters.
 */
#include "core_fixture.h"
#include "daemon/core/use.h"

static struct core *core;
static struct pool *pool, *elsewhere;
static struct session *session;

static int set_up(void **state) {
    core_set_up(state);
    core = *state;
    pool = add_pool(core, 64 * MIB, 8 * MIB, 0);
    elsewhere = add_pool(core, 64 * MIB, 8 * MIB, 0);
    session = open_session(core, 1, UID_A);
    return 0;
}

static void count(unsigned line, uint32_t id, uint64_t taken, uint64_t given) {
    atomic_store(&page.counters[line].pool, id);
    atomic_store(&page.counters[line].taken_bytes, taken);
    atomic_store(&page.counters[line].given_bytes, given);
}

static void count_hits(unsigned line, uint64_t hits, uint64_t misses) {
    atomic_store(&page.counters[line].hits, hits);
    atomic_store(&page.counters[line].misses, misses);
}

static void expect_use(const struct session *of, const struct pool *in, uint64_t in_use, uint64_t cached) {
    struct use uses[PROTO_POOLS_MAX];
    use_of_session(of, uses);
    assert_int_equal(uses[in->id - 1].in_use_bytes, in_use);
    assert_int_equal(uses[in->id - 1].cached_bytes, cached);
}

static void expect_pool_use(const struct pool *in, uint64_t in_use, uint64_t cached) {
    struct use uses[PROTO_POOLS_MAX];
    use_of_pools(core, uses);
    assert_int_equal(uses[in->id - 1].in_use_bytes, in_use);
    assert_int_equal(uses[in->id - 1].cached_bytes, cached);
}

static void who_does_not_count_uses_all_that_it_holds(void **state) {
    (void)state;
    take_growing(session, pool, 3 * MIB, 0);
    expect_use(session, pool, 3 * MIB, 0);
    expect_use(session, elsewhere, 0, 0);
    core_session_set_page(session, &page); /* with a page it may still not count */
    expect_use(session, pool, 3 * MIB, 0);
    expect_pool_use(pool, 3 * MIB, 0);
    count(0, elsewhere->id, MIB, 0); /* or only elsewhere */
    expect_use(session, pool, 3 * MIB, 0);
}

static void what_is_not_in_use_is_cached(void **state) {
    (void)state;
    core_session_set_page(session, &page);
    take_growing(session, pool, 8 * MIB, 0);
    count(0, pool->id, 0, 0);
    expect_use(session, pool, 0, 8 * MIB);
    count(0, pool->id, 5 * MIB, 2 * MIB);
    expect_use(session, pool, 3 * MIB, 5 * MIB);
    expect_pool_use(pool, 3 * MIB, 5 * MIB);
    count(0, pool->id, 10 * MIB, 2 * MIB);
    expect_use(session, pool, 8 * MIB, 0);
}

static void the_lines_of_a_pool_are_summed_whoever_gave_what_another_took(void **state) {
    (void)state;
    core_session_set_page(session, &page);
    take_growing(session, pool, 8 * MIB, 0);
    take_growing(session, elsewhere, 8 * MIB, 0);
    count(0, pool->id, 100 * MIB, 1 * MIB);
    count(1, elsewhere->id, 7 * MIB, 3 * MIB);
    count(2, pool->id, 0, 97 * MIB);
    expect_use(session, pool, 2 * MIB, 6 * MIB);
    expect_use(session, elsewhere, 4 * MIB, 4 * MIB);
    count(0, pool->id, MIB - 1, UINT64_MAX); /* it has counted beyond the end */
    count(2, pool->id, MIB, 0);
    expect_use(session, pool, 2 * MIB, 6 * MIB);
    for (unsigned line = 0; line < PROTO_PAGE_COUNTERS; line++)
        count(line, pool->id, 8 * KIB, 4 * KIB); /* to the last line */
    expect_use(session, pool, PROTO_PAGE_COUNTERS * 4 * KIB, 8 * MIB - PROTO_PAGE_COUNTERS * 4 * KIB);
}

static void lines_end_at_the_first_that_is_not_in_use(void **state) {
    (void)state;
    core_session_set_page(session, &page);
    take_growing(session, pool, 8 * MIB, 0);
    count(0, pool->id, MIB, 0);
    count(2, pool->id, MIB, 0);
    expect_use(session, pool, MIB, 7 * MIB);
}

static void what_a_client_makes_up_is_no_more_than_it_holds_and_no_less_than_nothing(void **state) {
    static const uint64_t values[] = {0,         1,          512,        8 * MIB,        8 * MIB + 1,
                                      INT64_MAX, 1ULL << 63, UINT64_MAX, UINT64_MAX - 1, 1ULL << 53};
    enum {
        VALUES = sizeof values / sizeof *values
    };
    struct session *other = open_session(core, 2, UID_A);
    (void)state;

    core_session_set_page(session, &page);
    take_growing(session, pool, 8 * MIB, 0);
    take_growing(other, pool, 8 * MIB, 0);
    for (unsigned a = 0; a < VALUES; a++)
        for (unsigned b = 0; b < VALUES; b++)
            for (unsigned c = 0; c < VALUES; c++) {
                struct use uses[PROTO_POOLS_MAX];
                count(0, pool->id, values[a], values[b]);
                count(1, pool->id, values[c], 0);
                count_hits(0, values[a], values[b]);
                count_hits(1, values[c], values[c]);
                use_of_session(session, uses);
                assert_true(uses[0].in_use_bytes <= 8 * MIB && uses[0].cached_bytes <= 8 * MIB);
                assert_int_equal(uses[0].in_use_bytes + uses[0].cached_bytes, 8 * MIB);
                use_of_pools(core, uses);
                assert_true(uses[0].in_use_bytes >= 8 * MIB); /* the other's is not touched by it */
                assert_int_equal(uses[0].in_use_bytes + uses[0].cached_bytes, 16 * MIB);
            }
    count(0, pool->id, 0, 1); /* less than nothing */
    count(1, pool->id, 0, 0);
    expect_use(session, pool, 0, 8 * MIB);
}

static void pools_that_there_are_not_are_passed_over(void **state) {
    static const uint32_t ids[] = {3, PROTO_POOLS_MAX, PROTO_POOLS_MAX + 1, UINT32_MAX};
    (void)state;
    core_session_set_page(session, &page);
    take_growing(session, pool, 8 * MIB, 0);
    for (unsigned i = 0; i < sizeof ids / sizeof *ids; i++)
        count(i, ids[i], UINT64_MAX, 0);
    count(4, pool->id, MIB, 0);
    expect_use(session, pool, MIB, 7 * MIB);
}

static void what_is_shared_is_in_use_and_counts_once_in_the_pool(void **state) {
    const struct proto_token fresh = token_of(1);
    struct session *other = open_session(core, 2, UID_A);
    struct lease *part, *attached;
    struct proto_token token;
    (void)state;

    core_session_set_page(session, &page);
    struct lease *lease = take_growing(session, pool, 8 * MIB, 0);
    count(0, pool->id, MIB, 0);
    assert_int_equal(split(session, name_of(lease), MIB, 2 * MIB, &part), 0);
    expect_use(session, pool, MIB, 7 * MIB);
    const struct proto_lease_name name = name_of(part);
    assert_int_equal(share_lease(session, &name, 2 * MIB, &fresh, &token), 0);
    assert_int_equal(share_lease(session, &name, 2 * MIB, &fresh, &token), 0); /* again: the same token */
    assert_true(core_is_valid(core));
    expect_use(session, pool, 3 * MIB, 5 * MIB);
    assert_int_equal(core_attach(other, &token, &attached), 0);
    assert_true(core_is_valid(core));
    expect_use(session, pool, 3 * MIB, 5 * MIB);
    expect_use(other, pool, 2 * MIB, 0);
    expect_pool_use(pool, 3 * MIB, 5 * MIB);
    assert_int_equal(release(session, name, 0), 0);
    expect_use(session, pool, MIB, 5 * MIB);
    expect_pool_use(pool, 3 * MIB, 5 * MIB);
    core_session_set_page(other, &page); /* a session with shared leases alone caches nothing */
    expect_use(other, pool, 2 * MIB, 0);
    close_session(other, 0);
    expect_pool_use(pool, MIB, 5 * MIB);
}

static void a_lost_session_caches_nothing(void **state) {
    (void)state;
    core_session_set_page(session, &page);
    describe(take_growing(session, pool, 8 * MIB, 0), NULL);
    count(0, pool->id, MIB, 0);
    count_hits(0, 9, 1);
    lose_session(session, 0);
    expect_use(session, pool, 8 * MIB, 0);
    expect_pool_use(pool, 0, 0); /* it is in quarantine, not leased */
    session_gone(session, 0);
    expect_pool_use(pool, 0, 0);
}

static void hits_misses_and_moves_add_up_and_never_wrap_between_sessions(void **state) {
    static struct proto_page others;
    struct session *other = open_session(core, 2, UID_B);
    struct use uses[PROTO_POOLS_MAX];
    (void)state;

    core_session_set_page(session, &page);
    count(0, pool->id, 0, 0);
    count_hits(0, 7, 2);
    count(1, pool->id, 0, 0);
    count_hits(1, 20, 1);
    atomic_store(&page.counters[0].moves, 3);
    atomic_store(&page.counters[1].moves, 8);
    use_of_pools(core, uses);
    assert_int_equal(uses[0].hits, 27);
    assert_int_equal(uses[0].misses, 3);
    assert_int_equal(uses[0].moves, 11);
    assert_int_equal(uses[1].hits + uses[1].misses + uses[1].moves, 0);
    core_session_set_page(other, &others);
    atomic_store(&others.counters[0].pool, pool->id);
    atomic_store(&others.counters[0].hits, UINT64_MAX - 5);
    atomic_store(&others.counters[0].moves, UINT64_MAX - 5);
    use_of_pools(core, uses);
    assert_int_equal(uses[0].hits, UINT64_MAX);
    assert_int_equal(uses[0].moves, UINT64_MAX);
    assert_int_equal(uses[0].misses, 3);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, core_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(who_does_not_count_uses_all_that_it_holds),
        TEST(what_is_not_in_use_is_cached),
        TEST(the_lines_of_a_pool_are_summed_whoever_gave_what_another_took),
        TEST(lines_end_at_the_first_that_is_not_in_use),
        TEST(what_a_client_makes_up_is_no_more_than_it_holds_and_no_less_than_nothing),
        TEST(pools_that_there_are_not_are_passed_over),
        TEST(what_is_shared_is_in_use_and_counts_once_in_the_pool),
        TEST(a_lost_session_caches_nothing),
        TEST(hits_misses_and_moves_add_up_and_never_wrap_between_sessions),
    };
    return cmocka_run_group_tests_name("use and caches", tests, NULL, NULL);
}
