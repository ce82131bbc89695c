/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of tenants' quotas: no tenant exceeds its quota, all charges are given back, and a tenant at its
 * quota delays no other. */
#include "core_fixture.h"

/* --- charges --- */

static void charges_add_up_in_64_bits(void **state) {
    static struct quota quota;
    struct charge one = {0}, two = {0}, three = {0};
    (void)state;

    quota_init(&quota);
    assert_int_equal(charge_make(&one, &quota, QUOTA_REPLIES, UINT64_MAX - 5), 0);
    assert_int_equal(quota_left(&quota, QUOTA_REPLIES), 5);
    assert_int_equal(charge_make(&two, &quota, QUOTA_REPLIES, 6),
                     PROTO_E_LIMIT); /* it would be beyond 64 bits */
    assert_int_equal(charge_make(&two, &quota, QUOTA_REPLIES, UINT64_MAX), PROTO_E_LIMIT);
    assert_null(two.quota);
    assert_int_equal(charge_make(&two, &quota, QUOTA_REPLIES, 5), 0);
    charge_move(&one, &three, 1000);
    assert_int_equal(quota.used[QUOTA_REPLIES], UINT64_MAX);
    charge_free(&one);
    assert_int_equal(quota.used[QUOTA_REPLIES], 1005);
    quota.limits[QUOTA_REPLIES] = 1000; /* lowered below what is used */
    assert_int_equal(quota_left(&quota, QUOTA_REPLIES), 0);
    assert_int_equal(charge_make(&one, &quota, QUOTA_REPLIES, 1), PROTO_E_LIMIT);
    charge_force(&one, &quota, QUOTA_REPLIES, 1);
    charge_reduce(&three, 10);
    charge_free(&one);
    charge_free(&one); /* an empty one */
    charge_free(&two);
    charge_free(&three);
    assert_int_equal(quota.used[QUOTA_REPLIES], 0);
    quota_deinit(&quota);
}

/* --- bytes in a pool --- */

static void what_can_never_be_is_refused_at_once_and_says_whose_quota_it_is(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 4 * MIB, 0);

    limit_all(core, QUOTA_POOLS, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    take_growing(session, pool, 3 * MIB, 0);
    ask(session, pool, 1, 9 * MIB, NS_FOREVER, 0);
    const char *text = expect_refused(core, session, 1, PROTO_E_LIMIT);
    expect_text(text, "QUOTA");
    expect_text(text, "user 1001 may have 8 MiB there in all");
    expect_text(text, "administrator");
    expect_text(text, "'device'");
    expect_no_growth(core);
    ask(session, pool, 2, 5 * MIB, 0, 0); /* exactly all of it */
    expect_growth(core, pool);
    segment_made(pool, 6 * MIB, 0);
    expect_refused(core, session, 2, PROTO_E_EXHAUSTED);
    take(session, pool, 5 * MIB, 0);
    assert_int_equal(used(session, QUOTA_POOLS), 8 * MIB);
}

static void what_its_own_releases_can_bring_waits_for_them(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 16 * MIB, 0);

    limit_all(core, QUOTA_POOLS, 8 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A);
    struct lease *large = take_growing(one, pool, 6 * MIB, 0);
    struct lease *small = take(one, pool, MIB, 0);
    ask(two, pool, 1, 4 * MIB, NS_FOREVER, 0); /* of another process of the same user */
    expect_no_answer(core);
    assert_int_equal(pool->waiters.count, 1);
    assert_int_equal(used(two, QUOTA_WAITING), 1);
    assert_int_equal(release(one, name_of(small), 0), 0);
    expect_no_answer(core);      /* not enough yet */
    take(two, pool, 2 * MIB, 0); /* what fits need not wait behind it */
    assert_int_equal(release_part(one, name_of(large), 4 * MIB, 2 * MIB, 0), 0);
    assert_int_equal(used(one, QUOTA_POOLS), 6 * MIB);
    expect_no_answer(core);
    assert_int_equal(release(one, name_of(large), 0), 0);
    expect_granted(core, two, 1);
    assert_int_equal(used(two, QUOTA_WAITING), 0);
    assert_int_equal(pool->waiters.count, 0);
}

static void a_deadline_ends_the_wait_with_the_quota_and_its_holders(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 16 * MIB, 0);

    limit_all(core, QUOTA_POOLS, 8 * MIB, 0);
    struct session *one = open_session(core, 11, UID_A), *two = open_session(core, 12, UID_A);
    struct session *other = open_session(core, 13, UID_B);
    take_growing(one, pool, 6 * MIB, 0);
    take_growing(other, pool, 7 * MIB, 0);
    ask(two, pool, 1, 4 * MIB, 50, 100);
    assert_int_equal(core_next_tick_ns(core), 150);
    tick(core, 149);
    expect_no_answer(core);
    tick(core, 150);
    const char *text = expect_refused(core, two, 1, PROTO_E_EXHAUSTED);
    expect_text(text, "QUOTA: user 1001 has 6 MiB of the 8 MiB");
    expect_text(text, "pid 11 (worker-11) 6 MiB");
    assert_null(strstr(text, "other users")); /* nor what the pool has: it has nothing to do with it */
    assert_null(strstr(text, "pid 13"));
    assert_int_equal(used(two, QUOTA_WAITING), 0);
}

static void a_request_that_waits_for_its_quota_is_in_no_others_way(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 32 * MIB, 8 * MIB, 0);

    struct policy *policy = policy_make();
    add_rule(policy, false, UID_A, QUOTA_POOLS, 8 * MIB);
    set_policy(core, policy, 0);
    struct session *held = open_session(core, 1, UID_A), *other = open_session(core, 2, UID_B);
    core_session_want_reclaim(other);
    struct lease *lease = take_growing(held, pool, 8 * MIB, 0);
    struct lease *others = take_growing(other, pool, 8 * MIB, 0);
    ask(held, pool, 1, 8 * MIB, NS_FOREVER, 0);
    expect_no_growth(core); /* no memory could serve it, */
    struct session *asked;
    assert_false(core_next_reclaim(core, &asked)); /* and no other tenant's cache is asked for it */
    for (unsigned i = 0; i < 2; i++)
        take_growing(other, pool, 8 * MIB, 0); /* grows, and needs no queue */
    assert_false(core_next_reclaim(core, &asked));
    /* the pool is at its end: the other's requests wait for memory, the held one for its own */
    ask(other, pool, 2, 8 * MIB, NS_FOREVER, 0);
    assert_true(core_next_reclaim(core, &asked));
    assert_ptr_equal(asked, other);
    assert_int_equal(release(other, name_of(others), 0), 0);
    expect_granted(core, other, 2);
    expect_no_answer(core);
    assert_int_equal(release(held, name_of(lease), 0), 0);
    expect_granted(core, held, 1);
}

static void one_in_the_pools_line_whose_quota_was_used_up_meanwhile_lets_others_by(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 16 * MIB, 8 * MIB, 0);

    struct policy *policy = policy_make();
    add_rule(policy, false, UID_A, QUOTA_POOLS, 8 * MIB);
    set_policy(core, policy, 0);
    struct session *a = open_session(core, 1, UID_A), *b = open_session(core, 2, UID_B), *asked;
    core_session_want_reclaim(b);
    struct lease *first = take_growing(b, pool, 8 * MIB, 0);
    struct lease *second = take_growing(b, pool, 8 * MIB, 0);
    (void)second;
    ask(a, pool, 1, 8 * MIB, NS_FOREVER, 0); /* for memory, */
    ask(a, pool, 2, 8 * MIB, NS_FOREVER, 0); /* both within the quota as of now */
    ask(b, pool, 3, 8 * MIB, NS_FOREVER, 0);
    assert_int_equal(release(b, name_of(first), 0), 0);
    expect_granted(core, b, 3); /* its own segment */
    expect_no_answer(core);
    configure(pool, 24 * MIB, 8 * MIB, 0, 0, 0);
    while (core_next_reclaim(core, &asked))
        assert_ptr_equal(asked, b); /* they waited for memory */
    grow(pool, 8 * MIB, RECLAIM_INTERVAL_NS);
    struct lease *lease = expect_granted(core, a, 1);
    expect_no_answer(core); /* the second one is over its quota now: what others have is of no use to it */
    assert_false(core_next_reclaim(core, &asked));
    ask(b, pool, 4, 8 * MIB, NS_FOREVER, 0);
    configure(pool, 32 * MIB, 8 * MIB, 0, 0, 0);
    grow(pool, 8 * MIB, 0);
    expect_granted(core, b, 4);
    assert_int_equal(release(a, name_of(lease), 0), 0);
    expect_granted(core, a, 2);
}

static void others_are_not_asked_for_one_in_line_whose_quota_was_used_up_beside_it(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 12 * MIB, 4 * MIB, 0);
    struct session *asked;

    struct policy *policy = policy_make();
    add_rule(policy, false, UID_A, QUOTA_POOLS, 8 * MIB);
    set_policy(core, policy, 0);
    struct session *a = open_session(core, 1, UID_A), *b = open_session(core, 2, UID_B);
    core_session_want_reclaim(b);
    take_growing(a, pool, 2 * MIB, 0);
    take_growing(b, pool, 8 * MIB, 0);
    ask(a, pool, 1, 6 * MIB, NS_FOREVER, 0); /* all that its quota leaves: for memory that others have */
    assert_true(core_next_reclaim(core, &asked));
    assert_ptr_equal(asked, b);
    struct lease *small = take(a, pool, MIB, 0); /* from what it has, and now its quota leaves less */
    tick(core, RECLAIM_INTERVAL_NS);
    assert_false(core_next_reclaim(core, &asked));
    configure(pool, 20 * MIB, 4 * MIB, 0, 0, RECLAIM_INTERVAL_NS);
    expect_no_growth(core); /* nor is memory made that it could not have */
    assert_int_equal(release(a, name_of(small), RECLAIM_INTERVAL_NS), 0);
    grow(pool, 6 * MIB, RECLAIM_INTERVAL_NS);
    expect_granted(core, a, 1);
}

static void only_the_tenants_own_caches_are_asked_for_its_quota(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 16 * MIB, 0);
    struct session *asked;

    limit_all(core, QUOTA_POOLS, 8 * MIB, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A);
    struct session *other = open_session(core, 3, UID_B);
    core_session_want_reclaim(one);
    core_session_want_reclaim(other);
    struct lease *idle = take_growing(one, pool, 8 * MIB, 0);
    take_growing(other, pool, 8 * MIB, 0);
    /* one that does not wait: refused, but they are asked */
    ask(two, pool, 1, 4 * MIB, 0, 0);
    expect_refused(core, two, 1, PROTO_E_EXHAUSTED);
    assert_true(core_next_reclaim(core, &asked));
    assert_ptr_equal(asked, one);
    assert_false(core_next_reclaim(core, &asked));
    /* again at once: owed, as soon as they may be asked again */
    ask(two, pool, 2, 4 * MIB, 0, 10);
    expect_refused(core, two, 2, PROTO_E_EXHAUSTED);
    assert_false(core_next_reclaim(core, &asked));
    assert_int_equal(core_next_tick_ns(core), RECLAIM_INTERVAL_NS);
    tick(core, RECLAIM_INTERVAL_NS);
    assert_true(core_next_reclaim(core, &asked));
    assert_ptr_equal(asked, one);
    assert_int_equal(plan_next_reclaim_ns(pool), NS_FOREVER);
    /* one that waits: again and again */
    ask(two, pool, 3, 4 * MIB, NS_FOREVER, RECLAIM_INTERVAL_NS);
    assert_int_equal(core_next_tick_ns(core), 2 * RECLAIM_INTERVAL_NS);
    tick(core, 2 * RECLAIM_INTERVAL_NS);
    assert_true(core_next_reclaim(core, &asked));
    assert_ptr_equal(asked, one);
    assert_int_equal(release_part(one, name_of(idle), 4 * MIB, 4 * MIB, 0), 0);
    expect_granted(core, two, 3);
}

static void what_is_behind_fences_or_in_quarantine_counts_until_it_is_free(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 16 * MIB, 0);

    limit_all(core, QUOTA_POOLS, 8 * MIB, 0);
    struct session *one = open_with_page(core, 1, UID_A), *two = open_session(core, 2, UID_A);
    struct lease *fenced = take_growing(one, pool, 4 * MIB, 0), *kept = take(one, pool, 4 * MIB, 0);
    assert_int_equal(release_behind(one, name_of(fenced), 0, 7), 0);
    assert_int_equal(used(one, QUOTA_POOLS), 8 * MIB);
    ask(two, pool, 1, 4 * MIB, 0, 0);
    expect_refused(core, two, 1, PROTO_E_EXHAUSTED);
    arrive(0, 7); /* found when it is needed, by a request that does not wait */
    take(two, pool, 2 * MIB, 0);
    (void)kept;
    lose_session(one, 0);
    assert_int_equal(used(two, QUOTA_POOLS), 6 * MIB);
    assert_int_equal(used(two, QUOTA_SESSIONS), 2);
    ask(two, pool, 2, 4 * MIB, NS_FOREVER, 0);
    expect_no_answer(core);
    session_gone(one, 0);
    expect_granted(core, two, 2);
    assert_int_equal(used(two, QUOTA_SESSIONS), 1);
}

static void a_fence_that_arrives_serves_who_waits_for_the_quota(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 16 * MIB, 0);

    limit_all(core, QUOTA_POOLS, 8 * MIB, 0);
    struct session *one = open_with_page(core, 1, UID_A);
    struct lease *fenced = take_growing(one, pool, 8 * MIB, 0);
    assert_int_equal(release_behind(one, name_of(fenced), 0, 7), 0);
    ask(one, pool, 1, 4 * MIB, NS_FOREVER, 0);
    assert_int_equal(core_next_tick_ns(core), FENCE_INTERVAL_NS); /* looked at while it waits */
    arrive(0, 7);
    tick(core, FENCE_INTERVAL_NS);
    expect_granted(core, one, 1);
}

static void parts_and_shares_are_charged_once(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 16 * MIB, 0);
    struct lease *part, *attached;
    struct proto_token token;

    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A);
    struct lease *lease = take_growing(one, pool, 8 * MIB, 0);
    assert_int_equal(split(one, name_of(lease), 2 * MIB, 2 * MIB, &part), 0);
    assert_int_equal(used(one, QUOTA_POOLS), 8 * MIB);
    assert_int_equal(used(one, QUOTA_LEASES), 2);
    const struct proto_merge merge = {lease->id, lease->generation, part->id, part->generation};
    assert_int_equal(core_merge(one, &merge), 0);
    assert_true(core_is_valid(core));
    assert_int_equal(used(one, QUOTA_POOLS), 8 * MIB);
    assert_int_equal(used(one, QUOTA_LEASES), 1);
    const struct proto_token fresh = token_of(3);
    const struct proto_lease_name name = name_of(lease);
    assert_int_equal(share_lease(one, &name, 0, &fresh, &token), 0);
    assert_int_equal(core_attach(two, &token, &attached), 0);
    assert_int_equal(used(one, QUOTA_POOLS), 8 * MIB);
    assert_int_equal(used(one, QUOTA_LEASES), 2);
    assert_int_equal(release(one, name, 0), 0);
    assert_int_equal(used(one, QUOTA_POOLS), 8 * MIB);
    assert_int_equal(release(two, name_of(attached), 0), 0);
    assert_int_equal(used(one, QUOTA_POOLS), 0);
    assert_int_equal(used(one, QUOTA_LEASES), 0);
}

/* --- the others --- */

static void sessions_are_counted_by_user(void **state) {
    struct core *core = *state;
    const struct peer peer = {.pid = 9, .uid = UID_A};
    struct session *third;
    struct proto_failure failure;

    limit_all(core, QUOTA_SESSIONS, 2, 0);
    struct session *one = open_session(core, 1, UID_A);
    open_session(core, 2, UID_A);
    assert_int_equal(core_session_open(core, &peer, 0, &third), PROTO_E_LIMIT);
    assert_true(core_is_valid(core));
    core_explain_sessions(core, &peer, &failure);
    expect_text(failure.text, "QUOTA: user 1001 has 2 sessions");
    expect_text(failure.text, "'sessions' of [quota]");
    open_session(core, 3, UID_B); /* another user's */
    close_session(one, 0);
    open_session(core, 4, UID_A);
    /* a user without a quota of sessions leaves nothing behind */
    limit_all(core, QUOTA_SESSIONS, 0, 0);
    const struct peer nobody = {.pid = 10, .uid = 77};
    assert_int_equal(core_session_open(core, &nobody, 0, &third), PROTO_E_LIMIT);
    core_explain_sessions(core, &nobody, &failure);
    expect_text(failure.text, "user 77 has 0 sessions");
    core->sessions_limit = 3;
    core_explain_sessions(core, &nobody, &failure);
    expect_text(failure.text, "sessions_limit");
}

static void leases_are_counted_by_user_whichever_way_they_are_made(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 16 * MIB, 0);
    struct lease *part;
    struct proto_token token;

    limit_all(core, QUOTA_LEASES, 2, 0);
    struct session *one = open_with_page(core, 1, UID_A), *two = open_session(core, 2, UID_A);
    struct lease *lease = take_growing(one, pool, MIB, 0);
    struct lease *other = take(two, pool, MIB, 0);
    ask(two, pool, 1, MIB, NS_FOREVER, 0);
    const char *text = expect_refused(core, two, 1, PROTO_E_LIMIT);
    expect_text(text, "QUOTA: user 1001 has 2 leases");
    assert_int_equal(split(one, name_of(lease), 0, 4096, &part), PROTO_E_LIMIT);
    assert_int_equal(one->tenant->quota.n_refusals, 2);
    const struct proto_token fresh = token_of(4);
    const struct proto_lease_name name = name_of(other);
    assert_int_equal(share_lease(two, &name, 0, &fresh, &token), 0);
    assert_int_equal(core_attach(one, &token, &part), PROTO_E_LIMIT);
    /* a part behind a fence is a lease more: refused where the client hears of it, and else it stays */
    const struct proto_release behind = {lease->id, lease->generation, 0, 4096, .fence = 1, .fence_value = 1};
    assert_int_equal(core_release(one, &behind, 0), PROTO_E_LIMIT);
    assert_int_equal(core_release_one_way(one, &behind, 0), 0);
    assert_true(core_is_valid(core));
    assert_int_equal(used(one, QUOTA_LEASES), 2);
    assert_int_equal(pool->leased_bytes, 2 * MIB);
    /* fences that have arrived make room, of other processes of the user too */
    assert_int_equal(release(two, name, 0), 0);
    assert_int_equal(release_behind(one, name_of(lease), 1, 1), 0);
    arrive(0, 1);
    arrive(1, 1);
    take(two, pool, MIB, 0);
    take(two, pool, MIB, 0);
    assert_int_equal(used(one, QUOTA_LEASES), 2);
    assert_int_equal(used(one, QUOTA_RANGES), 2);
}

static void ranges_are_counted_by_user(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 16 * MIB, 0);
    struct lease *part;

    limit_all(core, QUOTA_RANGES, 4, 0);
    struct session *one = open_with_page(core, 1, UID_A), *two = open_session(core, 2, UID_A);
    const struct proto_lease_name name = name_of(take_growing(one, pool, MIB, 0));
    assert_int_equal(release_part(one, name, 4096, 512, 0), 0);
    assert_int_equal(used(one, QUOTA_RANGES), 2);
    assert_int_equal(split(one, name, 8192, 512, &part), 0);
    assert_int_equal(used(one, QUOTA_RANGES), 4);
    assert_int_equal(split(one, name, 16384, 512, &part), PROTO_E_LIMIT);
    assert_int_equal(release_part(one, name, 16384, 512, 0), PROTO_E_LIMIT);
    ask(two, pool, 1, MIB, NS_FOREVER, 0);
    expect_text(expect_refused(core, two, 1, PROTO_E_LIMIT), "QUOTA: user 1001 has 4 ranges");
    /* what needs none more goes back: at an end, and beside a gap */
    assert_int_equal(release_part(one, name, 0, 512, 0), 0);
    assert_int_equal(release_part(one, name, 4608, 512, 0), 0);
    /* without an answer a part that needs one stays with its lease, and comes back with it */
    const struct proto_release between = {name.lease, name.generation, 16384, 512};
    assert_int_equal(core_release_one_way(one, &between, 0), 0);
    assert_true(core_is_valid(core));
    assert_int_equal(used(one, QUOTA_RANGES), 4);
    assert_int_equal(pool->leased_bytes, MIB - 1536);
    assert_int_equal(release(one, name, 0), 0);
    assert_int_equal(pool->leased_bytes, 512);
    assert_int_equal(used(one, QUOTA_RANGES), 1);
}

static void requests_that_wait_are_counted_by_user(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);

    limit_all(core, QUOTA_WAITING, 2, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A);
    struct session *other = open_session(core, 3, UID_B);
    struct lease *lease = take_growing(one, pool, 8 * MIB, 0);
    ask(one, pool, 1, MIB, NS_FOREVER, 0);
    ask(two, pool, 2, MIB, 1000, 0);
    ask(two, pool, 3, MIB, NS_FOREVER, 0);
    expect_text(expect_refused(core, two, 3, PROTO_E_LIMIT), "QUOTA: user 1001 has 2 waiting requests");
    ask(two, pool, 4, MIB, 0, 0); /* it would not wait */
    expect_refused(core, two, 4, PROTO_E_EXHAUSTED);
    ask(other, pool, 5, MIB, NS_FOREVER, 0);
    expect_no_answer(core);
    tick(core, 1000); /* a deadline gives it back, */
    expect_refused(core, two, 2, PROTO_E_EXHAUSTED);
    ask(two, pool, 6, MIB, NS_FOREVER, 0);
    expect_no_answer(core);
    close_session(two, 0); /* an end too, */
    assert_int_equal(used(one, QUOTA_WAITING), 1);
    assert_int_equal(release(one, name_of(lease), 0), 0); /* and an answer */
    expect_granted(core, one, 1);
    assert_int_equal(used(one, QUOTA_WAITING), 0);
}

static void kept_replies_are_counted_by_user(void **state) {
    struct core *core = *state;

    limit_all(core, QUOTA_REPLIES, 1000, 0);
    struct session *one = open_session(core, 1, UID_A), *two = open_session(core, 2, UID_A);
    assert_int_equal(core_session_keep_reply(one, 600), 0);
    assert_int_equal(core_session_keep_reply(two, 500), PROTO_E_LIMIT);
    assert_int_equal(core_session_keep_reply(two, 400), 0);
    assert_true(core_is_valid(core));
    core_session_drop_reply(one, 600);
    assert_int_equal(core_session_keep_reply(two, 500), 0);
    close_session(two, 0); /* what is left goes with it */
    assert_int_equal(used(one, QUOTA_REPLIES), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(charges_add_up_in_64_bits),
        CORE_TEST(what_can_never_be_is_refused_at_once_and_says_whose_quota_it_is),
        CORE_TEST(what_its_own_releases_can_bring_waits_for_them),
        CORE_TEST(a_deadline_ends_the_wait_with_the_quota_and_its_holders),
        CORE_TEST(a_request_that_waits_for_its_quota_is_in_no_others_way),
        CORE_TEST(one_in_the_pools_line_whose_quota_was_used_up_meanwhile_lets_others_by),
        CORE_TEST(others_are_not_asked_for_one_in_line_whose_quota_was_used_up_beside_it),
        CORE_TEST(only_the_tenants_own_caches_are_asked_for_its_quota),
        CORE_TEST(what_is_behind_fences_or_in_quarantine_counts_until_it_is_free),
        CORE_TEST(a_fence_that_arrives_serves_who_waits_for_the_quota),
        CORE_TEST(parts_and_shares_are_charged_once),
        CORE_TEST(sessions_are_counted_by_user),
        CORE_TEST(leases_are_counted_by_user_whichever_way_they_are_made),
        CORE_TEST(ranges_are_counted_by_user),
        CORE_TEST(requests_that_wait_are_counted_by_user),
        CORE_TEST(kept_replies_are_counted_by_user),
    };
    return cmocka_run_group_tests_name("the core's quotas", tests, NULL, NULL);
}
