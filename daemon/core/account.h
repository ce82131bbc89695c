/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_ACCOUNT_H
#define DAEMON_CORE_ACCOUNT_H
/*
 * An account: one quota over several tenants, each of which has segments and tokens of its own. Each charge
 * to a member tenant counts in the account, too. There are two kinds:
 *
 *   - of a user of the ordinary socket who has subordinate uids (/etc/subuid), over all of them. Its limits
 *     are those of the owner. So a user has one quota, however many uids there are;
 *   - of a scope, over all of its users. Its limits are the scope's own, and for what the scope says nothing
 *     of, what holds for every user.
 *
 * An account lives while it has members, which own it together. Other tenants have none.
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

/* Those of a tenant that need not be there (yet), and of its account. */
unsigned account_sockets(const struct core *core, struct tenant_id id);

#endif
