/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of policies: the quotas of users and groups, their access to pools, and changes of both. */
#include "core_fixture.h"
#include "tests/random.h"

/* --- policies --- */

static void another_policy_takes_nothing_away_and_serves_whom_it_lets(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 32 * MIB, 0);

    limit_all(core, QUOTA_POOLS, 8 * MIB, 0);
    struct session *session = open_session(core, 1, UID_A);
    take_growing(session, pool, 6 * MIB, 0);
    ask(session, pool, 1, 4 * MIB, NS_FOREVER, 0);
    ask(session, pool, 2, 3 * MIB, NS_FOREVER, 0);
    limit_all(core, QUOTA_POOLS, 10 * MIB, 0);
    expect_granted(core, session, 1);
    expect_no_answer(core);
    limit_all(core, QUOTA_POOLS, 2 * MIB, 0); /* it has more, and keeps it; */
    assert_int_equal(used(session, QUOTA_POOLS), 10 * MIB);
    expect_refused(core, session, 2, PROTO_E_LIMIT); /* what can never be is not waited for */
    ask(session, pool, 3, MIB, NS_FOREVER, 0);
    expect_no_answer(core);
    set_policy(core, NULL, 0);
    expect_granted(core, session, 3);
}

static void a_policy_that_lets_two_tenants_go_on_serves_the_one_with_fewer_bytes(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 28 * MIB, 4 * MIB, 0);
    struct session *rich = open_session(core, 1, UID_A), *poor = open_session(core, 2, UID_B);

    take_growing(rich, pool, 2 * MIB, 0); /* of 4 MiB */
    take_growing(rich, pool, 8 * MIB, 0);
    take_growing(poor, pool, 9 * MIB, 0);
    configure(pool, 28 * MIB, 4 * MIB, 0, 4 * MIB, 0);
    take(rich, pool, MIB, 0);
    grow(pool, 4 * MIB, 0); /* ahead of demand: for either of them */
    limit_all(core, QUOTA_POOLS, 12 * MIB, 0);
    ask(rich, pool, 1, 4 * MIB, NS_FOREVER, 0);
    ask(poor, pool, 2, 4 * MIB, NS_FOREVER, 0);
    expect_no_answer(core);
    limit_all(core, QUOTA_POOLS, 28 * MIB, 0);
    expect_granted(core, poor, 2);
    expect_no_answer(core);
}

static void the_users_rule_goes_before_the_groups_of_which_the_largest_counts(void **state) {
    static const gid_t groups[] = {GROUP, OTHER};
    struct core *core = *state;
    struct policy *policy = policy_make();
    const unsigned item = QUOTA_LEASES;

    policy->everybody[item] = 100;
    policy->everybody[QUOTA_WAITING] = 7;
    add_rule(policy, true, GROUP, item, 10);
    add_rule(policy, true, OTHER, item, 20);
    add_rule(policy, false, UID_B, item, 5);
    add_rule(policy, false, UID_B, QUOTA_SESSIONS, 50);
    set_policy(core, policy, 0);
    struct session *plain = open_session(core, 1, UID_A);
    const uint64_t *limits = plain->tenant->quota.limits;
    assert_int_equal(limits[item], 100);
    /* a group's rule also goes below what everybody has */
    struct session *one = open_in_group(core, 2, UID_A, groups, 1);
    assert_int_equal(limits[item], 10);
    struct session *both = open_in_group(core, 3, UID_A, groups, 2);
    assert_int_equal(limits[item], 20);
    assert_int_equal(limits[QUOTA_WAITING], 7);
    close_session(both, 0);
    assert_int_equal(limits[item], 10);
    close_session(one, 0);
    assert_int_equal(limits[item], 100);
    const struct session *user = open_in_group(core, 4, UID_B, groups, 2);
    assert_int_equal(user->tenant->quota.limits[item], 5);
    assert_int_equal(user->tenant->quota.limits[QUOTA_SESSIONS], 50);
    assert_int_equal(user->tenant->quota.limits[QUOTA_WAITING], 7);
    /* the primary group is one */
    const struct session *primary = open_session(core, 5, OTHER);
    assert_int_equal(primary->tenant->quota.limits[item], 20);
}

static void a_session_whose_group_raises_the_quota_lets_others_of_its_user_go_on(void **state) {
    static const gid_t groups[] = {GROUP};
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 16 * MIB, 0);
    struct policy *policy = policy_make();

    policy->everybody[QUOTA_POOLS] = 4 * MIB;
    add_rule(policy, true, GROUP, QUOTA_POOLS, 16 * MIB);
    set_policy(core, policy, 0);
    struct session *session = open_session(core, 1, UID_A);
    take_growing(session, pool, 4 * MIB, 0);
    ask(session, pool, 1, 2 * MIB, NS_FOREVER, 0);
    expect_no_answer(core);
    open_in_group(core, 2, UID_A, groups, 1);
    expect_granted(core, session, 1);
}

static void a_session_that_takes_its_groups_lower_quota_along_lets_others_of_its_user_go_on(void **state) {
    static const gid_t groups[] = {GROUP};
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 16 * MIB, 0);
    struct policy *policy = policy_make();

    add_rule(policy, true, GROUP, QUOTA_POOLS, 4 * MIB);
    set_policy(core, policy, 0);
    struct session *session = open_session(core, 1, UID_A);
    struct session *member = open_in_group(core, 2, UID_A, groups, 1);
    take_growing(session, pool, 4 * MIB, 0);
    ask(session, pool, 1, 2 * MIB, NS_FOREVER, 0);
    expect_no_answer(core);
    close_session(member, 0);
    expect_granted(core, session, 1);
}

static void a_pool_that_one_may_not_use_is_none(void **state) {
    static const gid_t groups[] = {OTHER, GROUP};
    const struct policy_subject user = {false, UID_A}, group = {true, GROUP};
    struct core *core = *state;
    struct pool *open = add_pool(core, 64 * MIB, 16 * MIB, 0),
                *closed = add_pool(core, 64 * MIB, 16 * MIB, 0);
    struct policy *policy = policy_make();
    struct proto_token token;
    struct lease *attached;

    policy_restrict(policy, closed->id);
    assert_int_equal(policy_allow(policy, closed->id, &user), 0);
    assert_int_equal(policy_allow(policy, closed->id, &group), 0);
    set_policy(core, policy, 0);
    struct session *a = open_session(core, 1, UID_A), *b = open_session(core, 2, UID_B);
    struct session *member = open_in_group(core, 3, UID_B, groups, 2);
    assert_true(session_may_use(a, closed) && session_may_use(member, closed) && !session_may_use(b, closed));
    assert_true(session_may_use(b, open));
    take_growing(a, closed, MIB, 0);
    take_growing(b, open, MIB, 0);
    struct lease *lease = take_growing(member, closed, MIB, 0);
    ask(b, closed, 1, MIB, NS_FOREVER, 0);
    const char *text = expect_refused(core, b, 1, PROTO_E_NO_POOL);
    char none[PROTO_TEXT_MAX + 1];
    snprintf(none, sizeof none, "%s", text);
    const struct proto_acquire acquire = {.pool = 60, .size_bytes = MIB};
    assert_int_equal(core_acquire(b, 2, &acquire, 0), 0);
    assert_string_equal(expect_refused(core, b, 2, PROTO_E_NO_POOL), none); /* no telling the two apart */
    assert_int_equal(closed->stats.n_failures, 0);
    /* nor by way of a process of the same user that may */
    const struct proto_token fresh = token_of(5);
    const struct proto_lease_name name = name_of(lease);
    assert_int_equal(share_lease(member, &name, 0, &fresh, &token), 0);
    assert_int_equal(core_attach(b, &token, &attached), PROTO_E_NO_TOKEN);
    /* and when it is not allowed any more, what one has stays, what one waits for does not come */
    ask(a, closed, 3, 64 * MIB, NS_FOREVER, 0);
    policy = policy_make();
    policy_restrict(policy, closed->id);
    set_policy(core, policy, 0);
    expect_refused(core, a, 3, PROTO_E_NO_POOL);
    assert_int_equal(release(member, name, 0), 0);
    ask(member, closed, 4, MIB, 0, 0);
    expect_refused(core, member, 4, PROTO_E_NO_POOL);
}

/* --- at random --- */

static uint64_t random_state;

static uint64_t random_below(uint64_t bound) {
    return random_next(&random_state) % bound;
}

#define RANDOM_SESSIONS 8u
#define RANDOM_LEASES   64u

static struct policy *random_policy(void) {
    struct policy *policy = policy_make();
    policy->everybody[QUOTA_SESSIONS] = 2 + random_below(4);
    policy->everybody[QUOTA_LEASES] = 2 + random_below(30);
    policy->everybody[QUOTA_WAITING] = random_below(4);
    policy->everybody[QUOTA_POOLS] = random_below(24) * MIB;
    policy->everybody[QUOTA_POOLS + 1] = random_below(24) * MIB;
    if (random_below(2) == 0)
        add_rule(policy, false, UID_A, QUOTA_POOLS, random_below(32) * MIB);
    if (random_below(2) == 0)
        add_rule(policy, true, UID_B, QUOTA_POOLS + 1, random_below(32) * MIB);
    const struct policy_range range = {.owner = UID_A, .first = UID_B, .count = 1};
    if (random_below(2) == 0)
        assert_int_equal(policy_add_range(policy, &range), 0);
    return policy;
}

/* In any history the sums are right, no request waits that could be served, and no grant exceeds what was
 * left.
 */
static void quotas_hold_through_any_history(void **state) {
    static struct proto_page pages[RANDOM_SESSIONS];
    unsigned granted = 0, refused = 0, held = 0;
    (void)state;

    for (unsigned seed = 1; seed <= 15; seed++) {
        struct core *core = core_make();
        struct pool *pools[2] = {add_pool(core, 48 * MIB, 4 * MIB, 0), add_pool(core, 24 * MIB, 4 * MIB, 0)};
        struct session *sessions[RANDOM_SESSIONS] = {0};
        struct lease *leases[RANDOM_LEASES] = {0};
        uint64_t now_ns = 0, request = 0, page_values[RANDOM_SESSIONS] = {0};
        random_state = seed * UINT64_C(0x9e3779b97f4a7c15);
        for (unsigned step = 0; step < 1500; step++) {
            unsigned s = (unsigned)random_below(RANDOM_SESSIONS), l = (unsigned)random_below(RANDOM_LEASES);
            struct session *session = sessions[s];
            struct pool *pool = pools[random_below(2)], *growing;
            uint64_t before[QUOTA_ITEMS];
            struct answer answer;
            struct segment *segment;
            uint64_t size;

            now_ns += random_below(3 * NS_PER_MS);
            switch (random_below(10)) {
            case 0:
                if (session == NULL) {
                    const struct peer peer = {
                        .pid = (pid_t)s + 1, .uid = random_below(2) ? UID_A : UID_B, .gid = UID_B};
                    if (core_session_open(core, &peer, now_ns, &session) != 0)
                        break;
                    memset(&pages[s], 0, sizeof pages[s]);
                    page_values[s] = 0;
                    core_session_set_page(session, &pages[s]);
                    if (random_below(2))
                        core_session_want_reclaim(session);
                    sessions[s] = session;
                } else if (random_below(6) == 0) {
                    for (unsigned i = 0; i < RANDOM_LEASES; i++)
                        if (leases[i] != NULL && leases[i]->session == session)
                            leases[i] = NULL;
                    if (session->state == SESSION_QUARANTINED)
                        core_session_gone(session, now_ns);
                    else if (random_below(2))
                        core_session_close(session, now_ns);
                    else
                        core_session_lose(session, now_ns, "test");
                    bool gone = true;
                    list_for_each_entry(struct session, other, &core->sessions, link) {
                        gone = gone && other != session;
                    }
                    if (gone)
                        sessions[s] = NULL;
                }
                break;
            case 1:
                if (random_below(8) == 0)
                    core_set_policy(core, random_below(6) ? random_policy() : NULL, now_ns);
                break;
            case 2:
                core_tick(core, now_ns);
                break;
            case 3:
                atomic_store(&pages[s].fences[0], page_values[s]);
                break;
            case 4:
            case 5:
                if (leases[l] == NULL || leases[l]->session->state != SESSION_ACTIVE)
                    break;
                session = leases[l]->session;
                for (s = 0; sessions[s] != session; s++)
                    ;
                {
                    const struct lease *lease = leases[l];
                    struct proto_release give = {lease->id, lease->generation, 0, 0};
                    bool all = lease->block->held_bytes < 8192 || random_below(2);
                    if (!all)
                        give.size_bytes = 4096;
                    if (random_below(2)) {
                        give.fence = 1;
                        give.fence_value = ++page_values[s];
                    }
                    if (core_release(session, &give, now_ns) == 0 && all)
                        leases[l] = NULL;
                }
                break;
            default:
                if (session == NULL || session->state != SESSION_ACTIVE)
                    break;
                const struct proto_acquire acquire = {.pool = pool->id,
                                                      .size_bytes = 1 + random_below(6 * MIB),
                                                      .timeout_ns = random_below(3) * 5 * NS_PER_MS};
                memcpy(before, session->tenant->quota.used, sizeof before);
                assert_int_equal(core_acquire(session, ++request, &acquire, now_ns), 0);
                const struct quota *quota = &session->tenant->quota;
                const unsigned item = quota_item_of_pool(pool->id);
                assert_true(quota->used[item] <= quota->limits[item] || quota->used[item] <= before[item]);
            }
            assert_true(core_is_valid(core));
            while (core_next_growth(core, &growing, &size)) {
                assert_int_equal(core_segment_made(growing, size, NULL, now_ns), 0);
                assert_true(core_is_valid(core));
            }
            while (core_next_retirement(core, &segment))
                core_segment_retired(segment, now_ns);
            while (core_next_reclaim(core, &session))
                ;
            while (core_next_answer(core, &answer)) {
                bool kept = false;
                granted += answer.lease != NULL;
                refused += answer.lease == NULL;
                for (unsigned i = 0; answer.lease != NULL && i < RANDOM_LEASES && !kept; i++)
                    if (leases[i] == NULL) {
                        leases[i] = answer.lease;
                        kept = true;
                    }
                if (answer.lease != NULL && !kept)
                    assert_int_equal(release(answer.session, name_of(answer.lease), now_ns), 0);
            }
            for (unsigned i = 0; i < 2; i++)
                held += !list_is_empty(&pools[i]->waiters.pressed);
            assert_true(core_is_valid(core));
        }
        core_destroy(core);
    }
    assert_true(granted > 1000 && refused > 500 && held > 500); /* it has seen what it is about */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(another_policy_takes_nothing_away_and_serves_whom_it_lets),
        CORE_TEST(a_policy_that_lets_two_tenants_go_on_serves_the_one_with_fewer_bytes),
        CORE_TEST(the_users_rule_goes_before_the_groups_of_which_the_largest_counts),
        CORE_TEST(a_session_whose_group_raises_the_quota_lets_others_of_its_user_go_on),
        CORE_TEST(a_session_that_takes_its_groups_lower_quota_along_lets_others_of_its_user_go_on),
        CORE_TEST(a_pool_that_one_may_not_use_is_none),
        cmocka_unit_test(quotas_hold_through_any_history),
    };
    return cmocka_run_group_tests_name("the core's policies", tests, NULL, NULL);
}
