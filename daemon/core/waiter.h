/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_WAITER_H
#define DAEMON_CORE_WAITER_H
/*
 * A waiter: a request in a wait queue, as people see it. A waiter waits for exactly one thing:
 *
 *   QUOTA        memory of its own user that comes back, or a larger quota
 *   GROWTH       a segment that is being made, or will be made: the pool may grow by what it needs
 *   OTHER_USERS  free memory that is long enough lies in segments of other users: one of them has to go back
 * to the driver first ROOM         memory that sessions hold
 */
#include <stdint.h>

struct request;

enum waiter_reason {
    WAITER_QUOTA,
    WAITER_GROWTH,
    WAITER_OTHER_USERS,
    WAITER_ROOM,
};

/* What a WAITING request waits for, as of now. Linear in the heaps of the pool. */
enum waiter_reason waiter_reason(const struct request *request);

/* "quota", "growth", "other-users", "room". */
const char *waiter_reason_name(enum waiter_reason reason);

#endif
