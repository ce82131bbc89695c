/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/admin/admin_budget.h"

#include <stddef.h>

static const struct admin_debt *find(const struct admin_budget *budget, uid_t uid) {
    for (unsigned i = 0; i < ADMIN_BUDGET_USERS; i++)
        if (budget->users[i].paid_ns != 0 && budget->users[i].uid == uid)
            return &budget->users[i];
    return NULL;
}

uint64_t admin_budget_next_ns(const struct admin_budget *budget, uid_t uid, uint64_t now_ns) {
    const uint64_t first_ns = ADMIN_BUDGET_SHARE * ADMIN_BUDGET_FIRST_NS;
    const struct admin_debt *debt = find(budget, uid);

    if (debt == NULL || debt->paid_ns <= now_ns + first_ns)
        return now_ns;
    return debt->paid_ns - first_ns;
}

void admin_budget_use(struct admin_budget *budget, uid_t uid, uint64_t took_ns, uint64_t now_ns) {
    struct admin_debt *debt = (struct admin_debt *)find(budget, uid);

    if (debt == NULL) {
        debt = &budget->users[0];
        for (unsigned i = 1; i < ADMIN_BUDGET_USERS; i++)
            if (budget->users[i].paid_ns < debt->paid_ns)
                debt = &budget->users[i];
        *debt = (struct admin_debt){.uid = uid};
    }
    if (debt->paid_ns < now_ns)
        debt->paid_ns = now_ns;
    debt->paid_ns += ADMIN_BUDGET_SHARE * took_ns;
}
