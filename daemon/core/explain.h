/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_EXPLAIN_H
#define DAEMON_CORE_EXPLAIN_H
/*
 * Texts for people: why a request was refused, what a request waits for, which quota is used up.
 *
 * Invariants: every number is true for the user that the text is for. The user's own processes are named; of
 * other users a text has sums only. A text for the daemon's log names all processes.
 */
#include <stddef.h>

#include "daemon/core/types.h"

/* Writes the refusal of a REFUSED request: the size asked, what its user could have of the pool, and which
 * sessions hold memory of it. Reads the pool, the sessions and the quota as they are now, so it is called
 * before the request's session ends. */
void request_explain(const struct request *request, struct proto_failure *ret_failure);

/* Writes, for the log, what a WAITING request asks for, what it waits for, and which sessions hold that. */
void request_explain_wait(const struct request *request, char *text, size_t size);

/* Writes which quota is used up, how much of it is used, and how to raise it. */
void tenant_explain_quota(const struct tenant *tenant, unsigned item, char *text, size_t size);

/* Writes why undelivered replies keep the tenant from opening a session (undelivered_is_too_much). */
void undelivered_explain(const struct tenant *tenant, char *text, size_t size);

/* A waiting request waits for exactly one of these. */
enum waiter_reason {
    WAITER_QUOTA,       /* memory of its own user that comes back, or a larger quota */
    WAITER_GROWTH,      /* a segment that is being made, or that the pool may still grow by */
    WAITER_OWN, /* memory that no other process can give: its own has the rest, or the driver (reach.h) */
    WAITER_NO_ANSWER,   /* memory of sessions among which one keeps some idle and does not answer */
    WAITER_OTHER_USERS, /* a long enough free range lies in another user's segment, which has to be freed */
    WAITER_PIECES,      /* enough is free for its user, and no range of that is long enough */
    WAITER_ROOM,        /* memory that sessions hold */
};

/* Tells for which of these a WAITING request waits now. Linear in the heaps of the pool, in its segments and
 * in the sessions. */
enum waiter_reason waiter_reason(const struct request *request);

/* "quota", "growth", "own-process", "no-answer", "other-users", "pieces", "room". */
const char *waiter_reason_name(enum waiter_reason reason);

#endif
