/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/undelivered.h"

#include <assert.h>

#include "daemon/core/account.h"
#include "daemon/core/tenant.h"

int undelivered_open(struct undelivered *undelivered, struct core *core, struct tenant_id id,
                     uint64_t bytes) {
    struct tenant *tenant;

    assert(undelivered->tenant == NULL);
    int r = tenant_get(core, id, &tenant);
    if (r < 0)
        return r;
    if (tenant->sessions == 0 && tenant->n_undelivered == 0) /* it may be new */
        tenant_apply_policy(tenant, NULL);
    undelivered->tenant = tenant;
    undelivered->charge = (struct charge){0};
    charge_force(&undelivered->charge, &tenant->quota, QUOTA_REPLIES, bytes);
    list_append(&tenant->undelivered, &undelivered->link);
    tenant->n_undelivered++;
    if (tenant->account != NULL)
        tenant->account->n_undelivered++;
    return 0;
}

void undelivered_shrink(struct undelivered *undelivered, uint64_t bytes) {
    assert(undelivered->tenant != NULL);
    if (bytes < undelivered->charge.amount)
        charge_reduce(&undelivered->charge, undelivered->charge.amount - bytes);
}

void undelivered_close(struct undelivered *undelivered) {
    struct tenant *tenant = undelivered->tenant;
    if (tenant == NULL)
        return;
    charge_free(&undelivered->charge);
    list_remove(&undelivered->link);
    tenant->n_undelivered--;
    if (tenant->account != NULL)
        tenant->account->n_undelivered--;
    undelivered->tenant = NULL;
    tenant_drop_if_unused(tenant);
}

bool undelivered_is_too_much(const struct tenant *tenant) {
    unsigned sockets = account_undelivered(tenant);
    return sockets > 0 &&
           (sockets >= tenant->core->undelivered_limit || quota_left(&tenant->quota, QUOTA_REPLIES) == 0);
}
