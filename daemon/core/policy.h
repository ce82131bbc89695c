/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_POLICY_H
#define DAEMON_CORE_POLICY_H
/*
 * The policy: which users may use which pool, and how much of each thing. It is what the operator wrote, with
 * names resolved to numbers by the shell. The core applies it to a tenant (its limits) and to a session (its
 * pools), and keeps the results until the policy is replaced.
 *
 * A rule is for one user or for one group. For each item counts the user's rule; where that says nothing, the
 * largest value of the groups that the tenant's sessions are in; where those say nothing, what holds for
 * all users. The groups are those that the kernel attests for the process that connected, not those that the
 * user database knows: asking that may take seconds, and a process that gave a group up has given it up.
 *
 * Made by the shell, owned by the core from core_set_policy() on, and not changed any more then.
 */
#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/quota.h"
#include "proto/limits.h"

struct peer;

/* In a rule: nothing is said of this item. No quota has this value, which is less than unlimited. */
#define POLICY_UNSET (UINT64_MAX - 1)

struct policy_subject {
    bool is_group;
    uint32_t id; /* uid or gid */
};

struct policy_rule {
    struct policy_subject subject;
    uint64_t limits[QUOTA_ITEMS];
};

/* Which users may use a pool. */
struct policy_access {
    bool restricted; /* false: every user may, and there are no subjects */
    struct policy_subject *subjects;
    unsigned n_subjects;
};

/* Subordinate uids, [first, first + count), and the user whom they are given to. */
struct policy_range {
    uint32_t owner, first, count;
};

struct policy {
    uint64_t everybody[QUOTA_ITEMS];
    struct policy_rule *rules;
    unsigned n_rules;
    bool has_group_rules;
    struct policy_range *ranges;
    unsigned n_ranges;
    struct policy_access access[PROTO_POOLS_MAX]; /* by pool, id - 1 */
};

/* A policy that limits and forbids nothing. Returns 0 or -ENOMEM. */
int policy_new(struct policy **ret_policy);

/* Accepts NULL. Returns NULL. */
struct policy *policy_free(struct policy *policy);

/* Adds a rule, or to a subject's rule: what is set in limits. Returns 0 or -ENOMEM. */
int policy_add_rule(struct policy *policy, const struct policy_subject *subject,
                    const uint64_t limits[QUOTA_ITEMS]);

/* Adds subordinate uids. Of ranges that overlap, the first counts. Returns 0 or -ENOMEM. */
int policy_add_range(struct policy *policy, const struct policy_range *range);

/* Whether a uid is charged to an account: it is subordinate to the owner, or the owner of some. policy NULL:
 * false. Linear in the ranges. */
bool policy_find_owner(const struct policy *policy, uint32_t uid, uint32_t *ret_owner);

/* From now on only those may use the pool that are allowed. */
void policy_restrict(struct policy *policy, uint32_t pool_id);

/* Allows a subject a restricted pool. Returns 0 or -ENOMEM. */
int policy_allow(struct policy *policy, uint32_t pool_id, const struct policy_subject *subject);

/* The pools that a peer may use, bit id - 1. policy NULL: all. */
uint64_t policy_pools(const struct policy *policy, const struct peer *peer);

/* The limits of a tenant, in three steps: begin, once for each of its sessions, end. policy NULL: none. */
void policy_limits_begin(uint64_t limits[QUOTA_ITEMS]);
void policy_limits_add_peer(const struct policy *policy, const struct peer *peer,
                            uint64_t limits[QUOTA_ITEMS]);
void policy_limits_end(const struct policy *policy, uint32_t uid, uint64_t limits[QUOTA_ITEMS]);

/* Sets what is unset to what holds for all users. */
void policy_limits_fill(const struct policy *policy, uint64_t limits[QUOTA_ITEMS]);

#endif
