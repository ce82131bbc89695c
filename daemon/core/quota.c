/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/quota.h"

#include <assert.h>
#include <string.h>

#include "proto/proto.h"

unsigned quota_item_of_pool(uint32_t pool_id) {
    return QUOTA_POOLS + (pool_id - 1);
}

void quota_init(struct quota *quota) {
    memset(quota, 0, sizeof *quota);
    for (unsigned item = 0; item < QUOTA_ITEMS; item++)
        quota->limits[item] = QUOTA_UNLIMITED;
}

void quota_deinit(struct quota *quota) {
    for (unsigned item = 0; item < QUOTA_ITEMS; item++)
        assert(quota->used[item] == 0);
    (void)quota;
}

void quota_set_above(struct quota *quota, struct quota *above) {
    assert(above == NULL || above->above == NULL);
    for (unsigned item = 0; item < QUOTA_ITEMS; item++) {
        if (quota->above != NULL)
            quota->above->used[item] -= quota->used[item];
        if (above != NULL)
            above->used[item] += quota->used[item];
    }
    quota->above = above;
}

uint64_t quota_limit(const struct quota *quota, unsigned item) {
    uint64_t limit = quota->limits[item];
    return quota->above != NULL && quota->above->limits[item] < limit ? quota->above->limits[item] : limit;
}

uint64_t quota_left(const struct quota *quota, unsigned item) {
    assert(item < QUOTA_ITEMS);
    uint64_t left = quota->limits[item] > quota->used[item] ? quota->limits[item] - quota->used[item] : 0;
    uint64_t left_above = quota->above != NULL ? quota_left(quota->above, item) : left;
    return left < left_above ? left : left_above;
}

void charge_force(struct charge *charge, struct quota *quota, unsigned item, uint64_t amount) {
    assert(item < QUOTA_ITEMS && (charge->quota == NULL || (charge->quota == quota && charge->item == item)));
    /* Every amount is of something that exists: bytes of memory, or an object of some bytes. */
    assert(amount <= UINT64_MAX - quota->used[item]);
    quota->used[item] += amount;
    if (quota->above != NULL)
        quota->above->used[item] += amount;
    charge->quota = quota;
    charge->item = item;
    charge->amount += amount; /* a part of what is used: it cannot overflow either */
}

int charge_make(struct charge *charge, struct quota *quota, unsigned item, uint64_t amount) {
    if (amount > quota_left(quota, item)) /* used + amount would be beyond the limit, or beyond 64 bits */
        return PROTO_E_LIMIT;
    charge_force(charge, quota, item, amount);
    return 0;
}

void charge_reduce(struct charge *charge, uint64_t amount) {
    assert(charge->quota != NULL && amount <= charge->amount);
    assert(charge->amount <= charge->quota->used[charge->item]);
    charge->amount -= amount;
    charge->quota->used[charge->item] -= amount;
    if (charge->quota->above != NULL)
        charge->quota->above->used[charge->item] -= amount;
}

void charge_move(struct charge *from, struct charge *to, uint64_t amount) {
    struct quota *quota = from->quota;
    charge_reduce(from, amount);
    charge_force(to, quota, from->item, amount);
}

void charge_free(struct charge *charge) {
    if (charge->quota != NULL)
        charge_reduce(charge, charge->amount);
    *charge = (struct charge){0};
}

bool charge_add_up(const struct charge *charge, const struct quota *quota, uint64_t sums[QUOTA_ITEMS]) {
    if (charge->quota == NULL)
        return charge->amount == 0;
    sums[charge->item] += charge->amount;
    return charge->quota == quota;
}
