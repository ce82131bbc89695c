/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_QUOTA_H
#define DAEMON_CORE_QUOTA_H
/*
 * A quota: how much a tenant uses of each thing that is counted, and how much of it it may have. The use is
 * the sum of charges: whatever is made for a tenant (a session, a lease, a block, a request that waits,
 * replies that are kept) has a charge inside, made with it and given back by charge_free() when it goes.
 * Nothing else changes the sums, so that core_is_valid() can add up the charges and compare.
 *
 *   empty --charge_make, charge_force--> charged --charge_free--> empty
 *
 * More can be used than is allowed: limits are lowered while the daemon runs, which takes nothing away, and
 * some charges cannot be refused any more when they are made (charge_force). Then nothing new is charged
 * until enough has come back.
 *
 * A quota may have another one above it (account.h): each charge counts there too, and both limit it.
 *
 * Owned by its tenant, which outlives all that is charged to it. All sums are of 64 bits and checked.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"

enum quota_item {
    QUOTA_SESSIONS, /* processes, those in quarantine included */
    QUOTA_LEASES,   /* those behind fences and in quarantine included, and parcels */
    QUOTA_RANGES,   /* of the blocks of these leases: at least one each, and more after parts came back */
    QUOTA_SEGMENTS, /* that take a descriptor of the daemon and belong to it, or are to be closed */
    QUOTA_WAITING,  /* requests that wait in the queue */
    QUOTA_REPLIES,  /* bytes of replies that clients have not read, and of the directories of names */
    QUOTA_POOLS, /* bytes in the first pool: leased, fenced, in quarantine or to be closed; then those in the
                    others */
};
/* Bytes of what names keep beyond their publishers. Behind the pools: records of earlier daemons have the others'
 * numbers. */
#define QUOTA_KEPT      (QUOTA_POOLS + PROTO_POOLS_MAX)
#define QUOTA_ITEMS     (QUOTA_KEPT + 1)
#define QUOTA_UNLIMITED UINT64_MAX

struct quota {
    uint64_t used[QUOTA_ITEMS], limits[QUOTA_ITEMS];
    uint64_t n_refusals; /* requests that it refused since the tenant came */
    struct quota *above; /* borrowed; NULL: none */
};

/* The charge for one object. All zero: nothing is charged. */
struct charge {
    struct quota *quota; /* borrowed; NULL: empty */
    unsigned item;       /* enum quota_item, or QUOTA_POOLS and more */
    uint64_t amount;
};

/* The item of the bytes of a pool. */
unsigned quota_item_of_pool(uint32_t pool_id);

/* Nothing used, nothing limited. */
void quota_init(struct quota *quota);

/* Asserts that everything came back. */
void quota_deinit(struct quota *quota);

/* Puts a quota, which has none above it, above another one (NULL: none). The charges count there from then
 * on. */
void quota_set_above(struct quota *quota, struct quota *above);

/* The least of the limits of the quota and of what is above it. */
uint64_t quota_limit(const struct quota *quota, unsigned item);

/* How much more can be charged. */
uint64_t quota_left(const struct quota *quota, unsigned item);

/* Charges an amount through a charge that is empty or of the same quota and item. Returns 0, or
 * PROTO_E_LIMIT, and nothing has changed. */
int charge_make(struct charge *charge, struct quota *quota, unsigned item, uint64_t amount);

/* As charge_make(), for an amount that cannot be refused any more, or that has been checked. */
void charge_force(struct charge *charge, struct quota *quota, unsigned item, uint64_t amount);

/* Gives a part back. */
void charge_reduce(struct charge *charge, uint64_t amount);

/* Moves a part to another charge, which is empty or of the same quota and item. The sums stay what they were.
 */
void charge_move(struct charge *from, struct charge *to, uint64_t amount);

/* Gives everything back. Accepts an empty charge. */
void charge_free(struct charge *charge);

/* For the validators: adds a charge to sums that are to become the quota's. False: it is another quota's. */
bool charge_add_up(const struct charge *charge, const struct quota *quota, uint64_t sums[QUOTA_ITEMS]);

#endif
