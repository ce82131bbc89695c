/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/move_debts.h"

#include <string.h>

void move_debts_init(struct move_debts *debts) {
    memset(debts, 0, sizeof *debts);
    pthread_mutex_init(&debts->lock, NULL);
}

void move_debts_deinit(struct move_debts *debts) {
    pthread_mutex_destroy(&debts->lock);
}

/* Takes as many whole prices as there are from what has not paid yet. */
static uint64_t pay(uint64_t *paid, uint64_t now, uint64_t price) {
    uint64_t count = now > *paid ? (now - *paid) / price : 0;

    *paid += count * price;
    return count;
}

uint64_t move_debts_allowance(struct move_debts *debts, uint32_t pool, uint64_t takes, uint64_t now_ns) {
    struct move_debt *debt = &debts->pools[pool - 1];

    pthread_mutex_lock(&debts->lock);
    uint64_t paid =
        pay(&debt->paid_takes, takes, MOVE_DEBT_TAKES) + pay(&debt->paid_ns, now_ns, MOVE_DEBT_NS);
    debt->segments -= paid < debt->segments ? paid : debt->segments;
    uint64_t used = debt->segments + MOVE_DEBT_MISS, allowance = UINT64_MAX;
    if (debt->segments > 0)
        allowance = used < MOVE_DEBT_CREDIT ? MOVE_DEBT_CREDIT - used : 0;
    pthread_mutex_unlock(&debts->lock);
    return allowance;
}

void move_debts_add(struct move_debts *debts, uint32_t pool, uint64_t n_moved) {
    pthread_mutex_lock(&debts->lock);
    debts->pools[pool - 1].segments += n_moved + MOVE_DEBT_MISS;
    pthread_mutex_unlock(&debts->lock);
}

void move_debts_except(struct move_debts *debts, uint32_t pool, uint64_t miss_ns) {
    pthread_mutex_lock(&debts->lock);
    debts->pools[pool - 1].paid_ns += miss_ns;
    pthread_mutex_unlock(&debts->lock);
}

void move_debts_forgive(struct move_debts *debts, uint32_t pool) {
    pthread_mutex_lock(&debts->lock);
    debts->pools[pool - 1].segments = 0;
    pthread_mutex_unlock(&debts->lock);
}
