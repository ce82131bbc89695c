/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_ADMIN_ADMIN_BUDGET_H
#define DAEMON_ADMIN_ADMIN_BUDGET_H
/*
 * How much of the loop's time a user's admin clients may have: a fiftieth, after a first piece. A user
 * that asks now and then never uses up that piece. Every user may ask for the stats, and those of a thousand
 * sessions take some 7 ms to write: a user who asks for them without end would otherwise have half of the
 * time. With a fiftieth, fewer than one in a hundred of another client's questions meets such an answer,
 * whatever that takes: one that takes t is followed by 50 t in which a client that waits for each answer asks
 * more than 100 times, if t is long enough to be noticed.
 *
 * Pure: knows no clock. The loop's alone.
 */
#include <stdint.h>
#include <sys/types.h>

#include "base/clock.h"

#define ADMIN_BUDGET_SHARE    50u
#define ADMIN_BUDGET_FIRST_NS (20 * NS_PER_MS)
/* Users that are known at once; of more, the users that owe least are forgotten. */
#define ADMIN_BUDGET_USERS 32u

/* Zeroed: no user owes anything. */
struct admin_budget {
    struct admin_debt {
        uid_t uid;
        uint64_t paid_ns; /* when what was used so far is a fiftieth of the time; 0: free entry */
    } users[ADMIN_BUDGET_USERS];
};

/* When the user may be answered again: now_ns, or later. */
uint64_t admin_budget_next_ns(const struct admin_budget *budget, uid_t uid, uint64_t now_ns);

/* The user was answered, which took so long. */
void admin_budget_use(struct admin_budget *budget, uid_t uid, uint64_t took_ns, uint64_t now_ns);

#endif
