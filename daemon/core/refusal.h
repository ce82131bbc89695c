/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_REFUSAL_H
#define DAEMON_CORE_REFUSAL_H
/*
 * A refusal: the text that a client is sent when its request for memory was refused. It names what was asked,
 * what this user could have of the pool, and which sessions hold memory of it.
 *
 * Invariants: every number is true for the user of the request. The user's own processes are named; of other
 * users the text has sums only.
 */
#include "proto/proto.h"

struct request;

/* Writes the refusal of a REFUSED request. Reads the pool, the sessions and the quota as they are now: it is
 * to be called before the request's session ends. */
void refusal_write(const struct request *request, struct proto_failure *ret_failure);

#endif
