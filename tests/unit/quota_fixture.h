/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_QUOTA_FIXTURE_H
#define TESTS_UNIT_QUOTA_FIXTURE_H
/* The fixture of the tests of quotas and policies. */
#include "core_fixture.h"
#include "daemon/core/policy.h"
#include "daemon/core/quota.h"

#define GROUP 500u
#define OTHER 501u

/* A policy in the making: limits of everybody. */
static inline struct policy *policy_make(void) {
    struct policy *policy = NULL;
    assert_int_equal(policy_new(&policy), 0);
    return policy;
}

static inline void add_rule(struct policy *policy, bool is_group, uint32_t id, unsigned item,
                            uint64_t limit) {
    const struct policy_subject subject = {is_group, id};
    uint64_t limits[QUOTA_ITEMS];

    for (unsigned i = 0; i < QUOTA_ITEMS; i++)
        limits[i] = i == item ? limit : POLICY_UNSET;
    assert_int_equal(policy_add_rule(policy, &subject, limits), 0);
}

static inline void set_policy(struct core *core, struct policy *policy, uint64_t now_ns) {
    core_set_policy(core, policy, now_ns);
    assert_true(core_is_valid(core));
}

/* Everybody may have so much of an item. */
static inline void limit_all(struct core *core, unsigned item, uint64_t limit, uint64_t now_ns) {
    struct policy *policy = policy_make();
    policy->everybody[item] = limit;
    set_policy(core, policy, now_ns);
}

static inline struct session *open_in_group(struct core *core, pid_t pid, uid_t uid, const gid_t *groups,
                                            unsigned n_groups) {
    struct session *session = NULL;
    const struct peer peer = {.pid = pid, .uid = uid, .gid = uid, .groups = groups, .n_groups = n_groups};
    assert_int_equal(core_session_open(core, &peer, 0, &session), 0);
    assert_true(core_is_valid(core));
    return session;
}

static inline uint64_t used(const struct session *session, unsigned item) {
    return session->tenant->quota.used[item];
}

static inline void expect_text(const char *text, const char *part) {
    if (strstr(text, part) == NULL)
        fail_msg("the text has no '%s': %s", part, text);
}

#endif
