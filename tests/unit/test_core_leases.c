/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of leases: release, shared blocks, the end of their session, limits, and the texts of refusals.
 */
#include "core_fixture.h"

static void a_lease_given_back_whole_is_free_again(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    struct lease *lease = take_growing(session, pool, 1000, 0);
    struct proto_info info = query(session, lease);
    assert_int_equal(info.size_bytes, 1000);
    assert_int_equal(info.capacity_bytes, 1024);
    assert_int_equal(info.holders, 1);
    assert_int_equal(info.shared, 0);
    assert_int_equal(pool->leased_bytes, 1024);
    assert_int_equal(session->leased_bytes, 1024);
    assert_int_equal(release(session, name_of(lease), 0), 0);
    assert_int_equal(pool->leased_bytes, 0);
    assert_int_equal(pool->stats.n_releases, 1);
    assert_int_equal(pool_largest_free_bytes(pool), 8 * MIB);
}

static void a_lease_is_given_back_once(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    struct proto_lease_name name = name_of(take_growing(session, pool, MIB, 0));
    assert_int_equal(release(session, name, 0), 0);
    assert_int_equal(release(session, name, 0), PROTO_E_STALE);
    struct lease *next = take(session, pool, MIB, 0); /* gets the same id, and another generation */
    assert_int_equal(next->id, name.lease);
    assert_int_not_equal(next->generation, name.generation);
    assert_int_equal(release(session, name, 0), PROTO_E_STALE);
    assert_int_equal(release_part(session, name, 0, 512, 0), PROTO_E_STALE);
    assert_int_equal(pool->leased_bytes, MIB);
}

static void names_of_no_lease_are_refused(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    const struct proto_lease_name names[] = {{0, 0},  {0, 1},  {1, 0},         {2, 1},
                                             {64, 1}, {65, 1}, {UINT64_MAX, 1}};
    const struct proto_token fresh = token_of(1);
    struct proto_token token;
    struct proto_info info;

    for (unsigned round = 0; round < 2; round++) { /* with an empty table, and with one lease: 1, 1 */
        for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
            assert_int_equal(release(session, names[i], 0), PROTO_E_STALE);
            assert_int_equal(share_lease(session, &names[i], 0, &fresh, &token), PROTO_E_STALE);
            assert_int_equal(core_query(session, &names[i], &info), PROTO_E_STALE);
        }
        if (round == 0)
            take_growing(session, pool, MIB, 0);
    }
}

/* A client may send a RELEASE of what it guesses right behind its ACQUIRE: the answer still has to find its
 * lease. */
static void a_lease_has_no_name_before_its_answer(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    struct proto_token token = token_of(1);
    struct proto_info info;
    struct lease *part = NULL;

    release(session, name_of(take_growing(session, pool, MIB, 0)), 0);
    ask(session, pool, 1, MIB, 0, 0);
    struct proto_lease_name guess = name_of(container_of(session->leases.next, struct lease, session_link));
    assert_int_equal(release(session, guess, 0), PROTO_E_STALE);
    assert_int_equal(release_part(session, guess, 0, 4096, 0), PROTO_E_STALE);
    assert_int_equal(core_query(session, &guess, &info), PROTO_E_STALE);
    assert_int_equal(split(session, guess, 0, 4096, &part), PROTO_E_STALE);
    assert_int_equal(share_lease(session, &guess, 0, &token, &token), PROTO_E_STALE);
    struct lease *lease = expect_granted(core, session, 1);
    assert_int_equal(lease->id, guess.lease);
    assert_int_equal(release(session, name_of(lease), 0), 0);
}

static void the_lease_of_another_session_cannot_be_used(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    /* the other is the very same process: two connections are two sessions */
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 1, UID_A);
    const struct proto_token fresh = token_of(1);
    struct proto_token token;
    struct proto_info info;

    assert_int_not_equal(one->id, two->id);
    struct lease *lease = take_growing(one, pool, MIB, 0);
    const struct proto_lease_name name = name_of(lease);
    assert_int_equal(release(two, name, 0), PROTO_E_STALE);
    assert_int_equal(share_lease(two, &name, 0, &fresh, &token), PROTO_E_STALE);
    assert_int_equal(core_query(two, &name, &info), PROTO_E_STALE);
    assert_true(describe(lease, NULL));
    assert_true(describe(take(two, pool, MIB, 0), NULL)); /* each session is told of a segment itself */
    close_session(two, 0);
    assert_int_equal(query(one, lease).holders, 1);
}

static void a_token_opens_the_block_to_its_own_tenant_only(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A);
    struct session *stranger = open_session(core, 3, UID_B);
    struct lease *lease = take_growing(one, pool, MIB, 0), *other = NULL;
    const struct proto_lease_name name = name_of(lease);
    const struct proto_token first = token_of(1), second = token_of(2);
    struct proto_token token;

    assert_int_equal(share_lease(one, &name, 0, &first, &token), 0);
    assert_memory_equal(&token, &first, sizeof token);
    assert_int_equal(share_lease(one, &name, 0, &second, &token), 0); /* it has one */
    assert_memory_equal(&token, &first, sizeof token);
    assert_int_equal(core_attach(two, &second, &other), PROTO_E_NO_TOKEN);
    assert_int_equal(core_attach(stranger, &first, &other), PROTO_E_NO_TOKEN);
    assert_null(other);
    assert_int_equal(core_attach(two, &first, &other), 0);
    assert_true(core_is_valid(core));
    assert_ptr_equal(other->block, lease->block);
    assert_int_equal(query(two, other).holders, 2);
    assert_int_equal(query(two, other).shared, 1);
    assert_true(describe(other, NULL));
    assert_int_equal(pool->leased_bytes, MIB); /* charged once */
    const struct proto_lease_name other_name = name_of(other);
    assert_int_equal(share_lease(two, &other_name, 0, &second, &token), 0); /* one token for all sessions */
    assert_memory_equal(&token, &first, sizeof token);
}

static void who_attaches_is_told_the_size_that_the_sharer_said(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A);
    struct lease *lease = take_growing(one, pool, MIB, 0), *other = NULL;
    const struct proto_lease_name name = name_of(lease);
    const struct proto_token fresh = token_of(1);
    struct proto_token token;

    assert_int_equal(share_lease(one, &name, MIB + 1, &fresh, &token), PROTO_E_INVALID);
    assert_int_equal(query(one, lease).shared, 0);
    assert_int_equal(share_lease(one, &name, 1000, &fresh, &token), 0);
    assert_int_equal(core_attach(two, &token, &other), 0);
    assert_int_equal(query(two, other).size_bytes, 1000);
    assert_int_equal(query(two, other).capacity_bytes, MIB);
    assert_int_equal(share_lease(one, &name, 0, &fresh, &token), 0);
    assert_int_equal(query(two, other).size_bytes, 1000);
}

static void a_shared_block_is_free_when_its_last_lease_goes(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A);
    struct lease *lease = take_growing(one, pool, 8 * MIB, 0), *other = NULL, *again = NULL;
    const struct proto_lease_name name = name_of(lease);
    const struct proto_token fresh = token_of(1);
    struct proto_token token;

    assert_int_equal(share_lease(one, &name, 0, &fresh, &token), 0);
    assert_int_equal(core_attach(two, &token, &other), 0);
    assert_int_equal(core_attach(two, &token, &again), 0); /* as often as it likes */
    assert_int_equal(query(one, lease).holders, 3);
    assert_int_equal(release(one, name, 0), 0);
    assert_int_equal(pool->leased_bytes, 8 * MIB);
    ask(one, pool, 1, MIB, NS_FOREVER, 0);
    assert_int_equal(release(two, name_of(other), 0), 0);
    expect_no_answer(core);
    assert_int_equal(release(two, name_of(again), 0), 0);
    assert_int_equal(expect_granted(core, one, 1)->block->capacity_bytes, MIB);
    assert_int_equal(core_attach(two, &token, &other), PROTO_E_NO_TOKEN);
}

static void a_shared_block_cannot_be_given_back_in_parts(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    const struct proto_lease_name name = name_of(take_growing(session, pool, MIB, 0));
    const struct proto_token fresh = token_of(1);
    struct proto_token token;

    assert_int_equal(share_lease(session, &name, 0, &fresh, &token), 0);
    assert_int_equal(release_part(session, name, 0, 512, 0), PROTO_E_SHARED);
    assert_int_equal(release(session, name, 0), 0);
}

static void a_part_is_split_and_shared_in_one(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_A);
    struct lease *lease = take_growing(session, pool, MIB, 0), *part = NULL, *attached = NULL, *none = NULL;
    struct proto_share wanted = {.lease = lease->id,
                                 .generation = lease->generation,
                                 .offset_bytes = 512,
                                 .part_bytes = 1024,
                                 .size_bytes = 1000};
    const struct proto_token fresh = token_of(1);
    struct proto_token token;

    assert_int_equal(core_share(other, &wanted, &fresh, 0, &none, &token), PROTO_E_STALE);
    assert_int_equal(core_share(session, &wanted, &fresh, 0, &part, &token), 0);
    assert_ptr_not_equal(part, lease);
    assert_int_equal(query(session, part).shared, 1);
    assert_int_equal(query(session, part).size_bytes, 1000);
    assert_int_equal(query(session, part).capacity_bytes, 1024);
    assert_int_equal(query(session, lease).shared, 0);
    assert_int_equal(pool->leased_bytes, MIB);
    assert_int_equal(core_attach(other, &token, &attached), 0);
    assert_ptr_equal(attached->block, part->block);
    /* what is refused has split nothing */
    assert_int_equal(core_share(session, &wanted, &fresh, 0, &none, &token),
                     PROTO_E_INVALID); /* it is gone */
    wanted.offset_bytes = 2048;
    wanted.size_bytes = 1025;
    assert_int_equal(core_share(session, &wanted, &fresh, 0, &none, &token), PROTO_E_INVALID);
    wanted.part_bytes = 1000;
    wanted.size_bytes = 0;
    assert_int_equal(core_share(session, &wanted, &fresh, 0, &none, &token), PROTO_E_INVALID);
    assert_null(none);
    assert_int_equal(session->n_leases, 2);
    assert_int_equal(query(session, lease).capacity_bytes, MIB);
    assert_true(core_is_valid(core));
}

/* The rest of a lease leaves it as any part does: the lease is over. */
static void the_rest_of_a_lease_is_shared_as_a_part(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    struct lease *lease = take_growing(session, pool, MIB, 0), *part = NULL;
    const struct proto_lease_name name = name_of(lease);
    const struct proto_send send = {
        {.lease = name.lease, .generation = name.generation, .part_bytes = 512}, NS_PER_S, 1, 0};
    const struct proto_token fresh[2] = {token_of(1), token_of(2)};
    struct proto_token token;

    assert_int_equal(release_part(session, name, 512, MIB - 512, 0), 0);
    assert_int_equal(core_send(session, &send, fresh, 0, &part, &token), 0);
    assert_int_equal(query(session, part).capacity_bytes, 512);
    assert_int_equal(release(session, name, 0), PROTO_E_STALE);
    assert_int_equal(session->n_leases, 1);
    assert_int_equal(pool->n_parcels, 1);
    assert_int_equal(pool->leased_bytes, 512);
    assert_true(core_is_valid(core));
}

static void what_only_the_dead_hold_cannot_be_attached(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A);
    struct session *three = open_session(core, 3, UID_A);
    struct lease *lease = take_growing(one, pool, MIB, 0), *other = NULL, *third = NULL;
    const struct proto_lease_name name = name_of(lease);
    const struct proto_token fresh = token_of(1);
    struct proto_token token;

    assert_int_equal(share_lease(one, &name, 0, &fresh, &token), 0);
    assert_int_equal(core_attach(two, &token, &other), 0);
    lose_session(one, 1);
    assert_int_equal(pool->leased_bytes, MIB); /* somebody alive is on it */
    assert_int_equal(pool->quarantined_bytes, 0);
    assert_int_equal(core_attach(three, &token, &third), 0);
    assert_int_equal(release(three, name_of(third), 1), 0);
    assert_int_equal(release(two, name_of(other), 1), 0);
    assert_int_equal(pool->leased_bytes, 0);
    assert_int_equal(pool->quarantined_bytes, MIB);
    assert_int_equal(core_attach(three, &token, &third), PROTO_E_NO_TOKEN);
    session_gone(one, 2);
    assert_int_equal(pool->quarantined_bytes, 0);
}

static void nothing_of_a_lost_session_is_used_before_it_is_gone(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A);

    describe(take_growing(one, pool, 6 * MIB, 0), NULL);
    take(one, pool, 2 * MIB, 0);
    ask(two, pool, 1, MIB, NS_FOREVER, 0);
    lose_session(one, 1);
    assert_int_equal(pool->leased_bytes, 0);
    assert_int_equal(pool->quarantined_bytes, 8 * MIB);
    assert_int_equal(pool_free_bytes(pool), 0);
    tick(core, 1000 * NS_PER_S); /* however long it takes */
    expect_no_answer(core);
    expect_no_retirement(core);
    session_gone(one, 1000 * NS_PER_S);
    expect_granted(core, two, 1);
    assert_int_equal(pool->quarantined_bytes, 0);
}

static void a_farewell_returns_everything_at_once(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A);

    describe(take_growing(one, pool, 4 * MIB, 0), NULL);
    take(one, pool, 4 * MIB, 0);
    ask(two, pool, 1, 8 * MIB, NS_FOREVER, 0);
    close_session(one, 1);
    expect_granted(core, two, 1);
    assert_int_equal(core->n_sessions, 1);
}

static void what_a_lost_session_asked_for_is_not_answered(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A);

    take_growing(two, pool, 2 * MIB, 0);
    ask(one, pool, 1, 2 * MIB, NS_FOREVER, 0);  /* granted, and not sent yet */
    ask(one, pool, 2, 64 * MIB, NS_FOREVER, 0); /* refused, and not sent yet */
    ask(one, pool, 3, 8 * MIB, NS_FOREVER, 0);  /* waits */
    lose_session(one, 1);
    expect_no_answer(core);
    assert_int_equal(pool->quarantined_bytes, 2 * MIB); /* its lease was its own already */
    session_gone(one, 2);
    expect_no_answer(core);
    assert_int_equal(pool->leased_bytes, 2 * MIB);
}

static void sessions_have_a_limit(void **state) {
    struct core *core = *state;
    struct session *one = NULL, *two = NULL;
    const struct peer peer = {.pid = 1, .uid = UID_A};

    core->sessions_limit = 1;
    assert_int_equal(core_session_open(core, &peer, 0, &one), 0);
    assert_int_equal(core_session_open(core, &peer, 0, &two), PROTO_E_LIMIT);
    assert_null(two);
    lose_session(one, 0); /* in quarantine it still counts: a crash loop has its bound */
    assert_int_equal(core_session_open(core, &peer, 0, &two), PROTO_E_LIMIT);
    session_gone(one, 0);
    assert_int_equal(core_session_open(core, &peer, 0, &two), 0);
}

static void a_sessions_leases_have_a_limit(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A);
    const struct proto_token fresh = token_of(1);
    struct proto_token token;
    struct lease *attached = NULL;

    core->session_leases_limit = 2;
    struct lease *lease = take_growing(one, pool, 512, 0);
    take(one, pool, 512, 0);
    ask(one, pool, 1, 512, NS_FOREVER, 0);
    assert_non_null(strstr(expect_refused(core, one, 1, PROTO_E_LIMIT), "session_leases_limit"));
    const struct proto_lease_name name = name_of(take(two, pool, 512, 0));
    assert_int_equal(share_lease(two, &name, 0, &fresh, &token), 0);
    assert_int_equal(core_attach(one, &token, &attached), PROTO_E_LIMIT);
    assert_int_equal(release(one, name_of(lease), 0), 0);
    assert_int_equal(core_attach(one, &token, &attached), 0);
}

static void waiting_is_no_way_around_the_limit_of_leases(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    core->session_leases_limit = 2;
    for (uint64_t request = 1; request <= 4; request++)
        ask(session, pool, request, 512, NS_FOREVER, 0);
    grow(pool, 8 * MIB, 0);
    expect_granted(core, session, 1);
    expect_granted(core, session, 2);
    expect_refused(core, session, 3, PROTO_E_LIMIT);
    expect_refused(core, session, 4, PROTO_E_LIMIT);
    assert_int_equal(session->n_leases, 2);
}

static void a_sessions_waiting_requests_have_a_limit(void **state) {
    struct core *core = *state;
    struct pool *pool = add_starting_pool(core, 8 * MIB, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_A);
    const struct proto_acquire acquire = {.pool = pool->id, .size_bytes = 512, .timeout_ns = NS_FOREVER};

    for (uint64_t request = 1; request <= SESSION_WAITING_MAX; request++)
        assert_int_equal(core_acquire(session, request, &acquire, 0), 0);
    expect_no_answer(core);
    ask(session, pool, 9999, 512, NS_FOREVER, 0);
    expect_refused(core, session, 9999, PROTO_E_LIMIT);
    ask(other, pool, 1, 512, NS_FOREVER, 0); /* and others are not kept out */
    expect_no_answer(core);
    assert_int_equal(pool->waiters.count, SESSION_WAITING_MAX + 1);
}

static void a_refusal_names_holders_of_the_own_tenant_and_the_sum_of_others(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 32 * MIB, 2 * MIB, 0),
                *elsewhere = add_pool(core, 32 * MIB, 2 * MIB, 0);
    struct session *asker = open_session(core, 100, UID_A), *own = open_session(core, 101, UID_A);
    struct session *lost = open_session(core, 102, UID_A), *foreign = open_session(core, 201, UID_B);
    struct session *foreign2 = open_session(core, 202, 1003), *distant = open_session(core, 103, UID_A);

    take_growing(own, pool, 10 * MIB, 0);
    take_growing(lost, pool, 8 * MIB, 0);
    take_growing(foreign, pool, 4 * MIB, 0);
    take_growing(foreign2, pool, 2 * MIB, 0);
    take_growing(distant, elsewhere, 2 * MIB, 0);
    lose_session(lost, 0);
    ask(asker, pool, 1, 12 * MIB, 0, 0);
    const char *text = expect_refused(core, asker, 1, PROTO_E_EXHAUSTED);
    assert_non_null(strstr(text, "12 MiB asked of test pool"));
    assert_non_null(strstr(text, "at most 32 MiB"));
    assert_non_null(strstr(text, "pid 101 (worker-101) 10 MiB"));
    assert_non_null(strstr(text, "pid 102 (worker-102) 8 MiB in quarantine"));
    assert_true(strstr(text, "pid 101") < strstr(text, "pid 102")); /* the largest first */
    assert_non_null(strstr(text, "other users 6 MiB"));
    assert_null(strstr(text, "pid 201"));
    assert_null(strstr(text, "worker-201"));
    assert_null(strstr(text, "pid 202"));
    assert_null(strstr(text, "pid 103")); /* holds nothing of this pool */
}

static void a_refusal_by_exhaustion_tells_of_the_growth_that_failed(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 32 * MIB, 2 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);

    describe(take_growing(session, pool, 2 * MIB, 0), NULL);
    ask(session, pool, 1, 2 * MIB, 50, 0);
    expect_growth(core, pool);
    growth_failed(pool, "cudaErrorMemoryAllocation (out of memory)", 0);
    tick(core, 50);
    assert_non_null(strstr(expect_refused(core, session, 1, PROTO_E_EXHAUSTED), "cudaErrorMemoryAllocation"));
}

static void texts_fit_the_wire_however_long_the_names_are(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 32 * MIB, 2 * MIB, 0);
    struct peer peer = {.pid = 2147483647, .uid = UID_A};
    char error[2 * POOL_ERROR_SIZE];
    struct session *session = NULL;

    memset(peer.command, 'x', sizeof peer.command - 1);
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(core_session_open(core, &peer, 0, &session), 0);
        describe(take_growing(session, pool, 2 * MIB, 0), NULL);
    }
    describe(take_growing(open_session(core, 5, UID_B), pool, 2 * MIB, 0), NULL);
    memset(error, 'e', sizeof error - 1);
    error[sizeof error - 1] = '\0';
    ask(session, pool, 1, 2 * MIB, 50, 0);
    expect_growth(core, pool);
    growth_failed(pool, error, 0);
    tick(core, 50);
    const char *text = expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    assert_true(strlen(text) <= PROTO_TEXT_MAX);
    assert_non_null(strstr(text, "other users 2 MiB"));
    assert_non_null(strstr(text, "eee"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(a_lease_given_back_whole_is_free_again),
        CORE_TEST(a_lease_is_given_back_once),
        CORE_TEST(names_of_no_lease_are_refused),
        CORE_TEST(a_lease_has_no_name_before_its_answer),
        CORE_TEST(the_lease_of_another_session_cannot_be_used),
        CORE_TEST(a_token_opens_the_block_to_its_own_tenant_only),
        CORE_TEST(who_attaches_is_told_the_size_that_the_sharer_said),
        CORE_TEST(a_shared_block_is_free_when_its_last_lease_goes),
        CORE_TEST(a_shared_block_cannot_be_given_back_in_parts),
        CORE_TEST(a_part_is_split_and_shared_in_one),
        CORE_TEST(the_rest_of_a_lease_is_shared_as_a_part),
        CORE_TEST(what_only_the_dead_hold_cannot_be_attached),
        CORE_TEST(nothing_of_a_lost_session_is_used_before_it_is_gone),
        CORE_TEST(a_farewell_returns_everything_at_once),
        CORE_TEST(what_a_lost_session_asked_for_is_not_answered),
        CORE_TEST(sessions_have_a_limit),
        CORE_TEST(a_sessions_leases_have_a_limit),
        CORE_TEST(waiting_is_no_way_around_the_limit_of_leases),
        CORE_TEST(a_sessions_waiting_requests_have_a_limit),
        CORE_TEST(a_refusal_names_holders_of_the_own_tenant_and_the_sum_of_others),
        CORE_TEST(a_refusal_by_exhaustion_tells_of_the_growth_that_failed),
        CORE_TEST(texts_fit_the_wire_however_long_the_names_are),
    };
    return cmocka_run_group_tests_name("leases", tests, NULL, NULL);
}
