/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/account.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/policy.h"
#include "daemon/core/scope.h"

static struct account *account_find(const struct core *core, struct tenant_id owner) {
    list_for_each_entry(struct account, account, &core->accounts, link) {
        if (tenant_id_is(account->owner, owner))
            return account;
    }
    return NULL;
}

static int account_get(struct core *core, struct tenant_id owner, struct account **ret_account) {
    struct account *account = account_find(core, owner);
    if (account != NULL) {
        *ret_account = account;
        return 0;
    }
    account = calloc(1, sizeof *account);
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

/* Whether the tenant is charged to an account. */
static bool find_owner(const struct core *core, struct tenant_id id, struct tenant_id *ret_owner) {
    *ret_owner = (struct tenant_id){.scope = id.scope};
    return id.scope != SCOPE_ORDINARY || policy_find_owner(core->policy, id.uid, &ret_owner->uid);
}

int account_join(struct tenant *tenant) {
    struct account *account = NULL;
    struct tenant_id owner;

    if (find_owner(tenant->core, tenant->id, &owner) && account_get(tenant->core, owner, &account) < 0)
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
    if (tenant->scope != NULL) {
        memcpy(account->quota.limits, tenant->scope->terms.limits, sizeof account->quota.limits);
        policy_limits_fill(policy, account->quota.limits);
        return;
    }
    policy_limits_begin(account->quota.limits);
    list_for_each_entry(const struct session, session, &tenant->core->sessions, link) {
        if (tenant_id_is(session->tenant->id, account->owner))
            policy_limits_add_peer(policy, &session->peer, account->quota.limits);
    }
    if (joining != NULL && tenant_id_is(peer_tenant(joining), account->owner))
        policy_limits_add_peer(policy, joining, account->quota.limits);
    policy_limits_end(policy, account->owner.uid, account->quota.limits);
}

bool account_is_shared(const struct tenant *tenant, const struct tenant *other) {
    return tenant == other || (tenant->account != NULL && tenant->account == other->account);
}

unsigned account_undelivered(const struct tenant *tenant) {
    return tenant->account != NULL ? tenant->account->n_undelivered : tenant->n_undelivered;
}

unsigned account_sockets(const struct core *core, struct tenant_id id) {
    struct tenant_id owner;

    if (find_owner(core, id, &owner)) {
        const struct account *account = account_find(core, owner);
        return account != NULL ? account->n_undelivered : 0;
    }
    list_for_each_entry(const struct tenant, tenant, &core->tenants, link) {
        if (tenant_id_is(tenant->id, id))
            return tenant->n_undelivered;
    }
    return 0;
}
