/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/account.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/core/policy.h"

static int account_get(struct core *core, uid_t owner, struct account **ret_account) {
    list_for_each_entry(struct account, account, &core->accounts, link) {
        if (account->owner == owner) {
            *ret_account = account;
            return 0;
        }
    }
    struct account *account = calloc(1, sizeof *account);
    if (account == NULL)
        return -ENOMEM;
    account->core = core;
    account->owner = owner;
    quota_init(&account->quota);
    list_append(&core->accounts, &account->link);
    *ret_account = account;
    return 0;
}

void account_leave(struct tenant *tenant) {
    struct account *account = tenant->account;

    if (account == NULL)
        return;
    quota_set_above(&tenant->quota, NULL);
    tenant->account = NULL;
    account->n_undelivered -= tenant->n_undelivered;
    account->members--;
    if (account->members > 0)
        return;
    quota_deinit(&account->quota);
    list_remove(&account->link);
    free(account);
}

int account_join(struct tenant *tenant) {
    struct account *account = NULL;
    uint32_t owner;

    if (policy_find_owner(tenant->core->policy, tenant->uid, &owner) &&
        account_get(tenant->core, owner, &account) < 0)
        return -ENOMEM;
    if (account == tenant->account)
        return 0;
    account_leave(tenant);
    if (account == NULL)
        return 0;
    tenant->account = account;
    account->members++;
    account->n_undelivered += tenant->n_undelivered;
    quota_set_above(&tenant->quota, &account->quota);
    return 0;
}

void account_apply_policy(struct tenant *tenant, const struct peer *joining) {
    const struct policy *policy = tenant->core->policy;
    struct account *account = tenant->account;

    if (account == NULL)
        return;
    policy_limits_begin(account->quota.limits);
    list_for_each_entry(const struct session, session, &tenant->core->sessions, link) {
        if (session->tenant->uid == account->owner)
            policy_limits_add_peer(policy, &session->peer, account->quota.limits);
    }
    if (joining != NULL && joining->uid == account->owner)
        policy_limits_add_peer(policy, joining, account->quota.limits);
    policy_limits_end(policy, account->owner, account->quota.limits);
}

bool account_is_shared(const struct tenant *tenant, const struct tenant *other) {
    return tenant == other || (tenant->account != NULL && tenant->account == other->account);
}

unsigned account_undelivered(const struct tenant *tenant) {
    return tenant->account != NULL ? tenant->account->n_undelivered : tenant->n_undelivered;
}
