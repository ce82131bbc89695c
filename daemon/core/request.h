/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_REQUEST_H
#define DAEMON_CORE_REQUEST_H
/*
 * A request, from its arrival until the shell takes its answer. Its session owns it. It asks for one block,
 * or for several whole segments of one size (n_segments): all of these are granted at once, each as the block
 * of a lease of its own. Until the answer is taken the session gives none of these leases up, and gets new
 * ones behind them only, so that they stay neighbours in the session's list.
 *
 *   WAITING (in a wait queue: wait_queue.h) --memory was found--> GRANTED (in core->answered, has the leases)
 *                                           --cannot be, deadline, cancelled--> REFUSED (in core->answered,
 *                                             has the error)
 */
#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/types.h"

/* Returns 0 or -ENOMEM. The request is WAITING and in no queue yet. pool: NULL where the client named none
 * that exists. */
int request_new(struct session *session, struct pool *pool, uint64_t id, const struct proto_acquire *acquire,
                uint64_t now_ns, struct request **ret_request);

/* Removes the request from its queue or from core->answered. A granted lease stays with the session. */
void request_free(struct request *request);

/* Ends the wait with the lease, and with those that follow it in the session's list if the request asks for
 * several. The answer is ready for the shell. */
void request_grant(struct request *request, struct lease *lease);

/* Ends the wait with an error. The answer is ready for the shell. */
void request_refuse(struct request *request, enum proto_error error);

/* As request_refuse(), because of the tenant's quota of an item. EXHAUSTED: waiting was in vain; LIMIT: the
 * request can never be served. */
void request_refuse_for_quota(struct request *request, enum proto_error error, unsigned item);

/* Whether the request was refused, and its client's user does not learn of that: the client asks again, or
 * does without, or has cancelled the request. It counts as a probe, and not as a failure. */
bool request_is_probe(const struct request *request);

/* Ends a wait that was in vain: EXHAUSTED, because of the quota if the request waited for that. */
void request_give_up(struct request *request);

/* As request_give_up(), for a request that waited until its deadline. */
void request_time_out(struct request *request);

#endif
