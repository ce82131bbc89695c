/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_ACCOUNT_H
#define DAEMON_CORE_ACCOUNT_H
/*
 * An account: the quota of a user who has subordinate uids (/etc/subuid), over all of them. Each uid is a
 * tenant of its own, with segments and tokens of its own. Each charge to a member tenant counts in the
 * account, too, whose limits are those of the owner. So a user has one quota, however many uids there are.
 *
 * An account lives while it has members, which own it together. A tenant without subordinate uids has none.
 */
#include "daemon/core/types.h"

/* Has the tenant leave its account, if it has one, and join the one that the core's policy names. Its charges
 * go along. Returns 0 or -ENOMEM: then it stays where it was. */
int account_join(struct tenant *tenant);

/* The tenant is gone: its quota has no charges. */
void account_leave(struct tenant *tenant);

/* Takes the limits of the tenant's account from the core's policy, by the owner's sessions and a peer that
 * joins them (NULL: none). Does nothing where there is no account. */
void account_apply_policy(struct tenant *tenant, const struct peer *joining);

/* Whether the tenants are one, or are members of one account. */
bool account_is_shared(const struct tenant *tenant, const struct tenant *other);

/* Sockets with undelivered replies, of all members. */
unsigned account_undelivered(const struct tenant *tenant);

#endif
