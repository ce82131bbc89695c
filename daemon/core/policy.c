/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/policy.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/types.h"

_Static_assert(PROTO_POOLS_MAX <= 64, "a session's pools are bits of 64");

int policy_new(struct policy **ret_policy) {
    struct policy *policy = calloc(1, sizeof *policy);
    if (policy == NULL)
        return -ENOMEM;
    for (unsigned item = 0; item < QUOTA_ITEMS; item++)
        policy->everybody[item] = QUOTA_UNLIMITED;
    *ret_policy = policy;
    return 0;
}

struct policy *policy_free(struct policy *policy) {
    if (policy == NULL)
        return NULL;
    for (unsigned i = 0; i < PROTO_POOLS_MAX; i++)
        free(policy->access[i].subjects);
    free(policy->rules);
    free(policy->ranges);
    free(policy);
    return NULL;
}

void policy_limits_begin(uint64_t limits[QUOTA_ITEMS]) {
    for (unsigned item = 0; item < QUOTA_ITEMS; item++)
        limits[item] = POLICY_UNSET;
}

static bool subjects_are_equal(const struct policy_subject *a, const struct policy_subject *b) {
    return a->is_group == b->is_group && a->id == b->id;
}

int policy_add_rule(struct policy *policy, const struct policy_subject *subject,
                    const uint64_t limits[QUOTA_ITEMS]) {
    struct policy_rule *rule = NULL;

    for (unsigned i = 0; i < policy->n_rules && rule == NULL; i++)
        if (subjects_are_equal(&policy->rules[i].subject, subject))
            rule = &policy->rules[i];
    if (rule == NULL) {
        struct policy_rule *rules = realloc(policy->rules, (policy->n_rules + 1) * sizeof *rules);
        if (rules == NULL)
            return -ENOMEM;
        policy->rules = rules;
        rule = &rules[policy->n_rules++];
        rule->subject = *subject;
        policy_limits_begin(rule->limits);
        policy->has_group_rules = policy->has_group_rules || subject->is_group;
    }
    for (unsigned item = 0; item < QUOTA_ITEMS; item++)
        if (limits[item] != POLICY_UNSET)
            rule->limits[item] = limits[item];
    return 0;
}

int policy_add_range(struct policy *policy, const struct policy_range *range) {
    struct policy_range *ranges = realloc(policy->ranges, (policy->n_ranges + 1) * sizeof *ranges);
    if (ranges == NULL)
        return -ENOMEM;
    policy->ranges = ranges;
    ranges[policy->n_ranges++] = *range;
    return 0;
}

bool policy_find_owner(const struct policy *policy, uint32_t uid, uint32_t *ret_owner) {
    bool owns = false;

    for (unsigned i = 0; policy != NULL && i < policy->n_ranges; i++) {
        const struct policy_range *range = &policy->ranges[i];
        if (uid >= range->first && uid - range->first < range->count) {
            *ret_owner = range->owner;
            return true;
        }
        owns = owns || range->owner == uid;
    }
    if (owns)
        *ret_owner = uid;
    return owns;
}

void policy_restrict(struct policy *policy, uint32_t pool_id) {
    assert(pool_id >= 1 && pool_id <= PROTO_POOLS_MAX);
    policy->access[pool_id - 1].restricted = true;
}

int policy_allow(struct policy *policy, uint32_t pool_id, const struct policy_subject *subject) {
    struct policy_access *access = &policy->access[pool_id - 1];

    assert(pool_id >= 1 && pool_id <= PROTO_POOLS_MAX && access->restricted);
    struct policy_subject *subjects = realloc(access->subjects, (access->n_subjects + 1) * sizeof *subjects);
    if (subjects == NULL)
        return -ENOMEM;
    access->subjects = subjects;
    subjects[access->n_subjects++] = *subject;
    return 0;
}

/* Whether the peer is the user or in the group. */
static bool peer_is(const struct peer *peer, const struct policy_subject *subject) {
    if (!subject->is_group)
        return peer->uid == subject->id;
    if (peer->gid == subject->id)
        return true;
    for (unsigned i = 0; i < peer->n_groups; i++)
        if (peer->groups[i] == subject->id)
            return true;
    return false;
}

uint64_t policy_pools(const struct policy *policy, const struct peer *peer) {
    uint64_t pools = UINT64_MAX;

    for (unsigned pool = 0; policy != NULL && pool < PROTO_POOLS_MAX; pool++) {
        const struct policy_access *access = &policy->access[pool];
        bool allowed = !access->restricted;
        for (unsigned i = 0; i < access->n_subjects && !allowed; i++)
            allowed = peer_is(peer, &access->subjects[i]);
        if (!allowed)
            pools &= ~(UINT64_C(1) << pool);
    }
    return pools;
}

void policy_limits_add_peer(const struct policy *policy, const struct peer *peer,
                            uint64_t limits[QUOTA_ITEMS]) {
    for (unsigned i = 0; policy != NULL && i < policy->n_rules; i++) {
        const struct policy_rule *rule = &policy->rules[i];
        if (!rule->subject.is_group || !peer_is(peer, &rule->subject))
            continue;
        for (unsigned item = 0; item < QUOTA_ITEMS; item++)
            if (rule->limits[item] != POLICY_UNSET &&
                (limits[item] == POLICY_UNSET || rule->limits[item] > limits[item]))
                limits[item] = rule->limits[item];
    }
}

void policy_limits_end(const struct policy *policy, uint32_t uid, uint64_t limits[QUOTA_ITEMS]) {
    const struct policy_subject user = {.id = uid};

    for (unsigned i = 0; policy != NULL && i < policy->n_rules; i++) {
        const struct policy_rule *rule = &policy->rules[i];
        for (unsigned item = 0; subjects_are_equal(&rule->subject, &user) && item < QUOTA_ITEMS; item++)
            if (rule->limits[item] != POLICY_UNSET)
                limits[item] = rule->limits[item];
    }
    policy_limits_fill(policy, limits);
}

void policy_limits_fill(const struct policy *policy, uint64_t limits[QUOTA_ITEMS]) {
    for (unsigned item = 0; item < QUOTA_ITEMS; item++)
        if (limits[item] == POLICY_UNSET)
            limits[item] = policy == NULL ? QUOTA_UNLIMITED : policy->everybody[item];
}
