/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_NAME_WAIT_H
#define DAEMON_CORE_NAME_WAIT_H
/*
 * A request of a session for a name (OPEN_NAME). Each gets one answer, through core_next_name_answer():
 *
 *   waiting --an edition is there--> THERE
 *   waiting --it is the session's to build--> BUILDS
 *   waiting for a change --nothing is published any more--> GONE
 *   waiting for a place of a channel --the place is free--> JOINED: it is the session's
 *   waiting --the name stands for another thing than is asked for--> REFUSED
 *   waiting --the deadline passed, or it is cancelled--> REFUSED
 *
 * A session that ends has no answer. A request counts as one of its tenant's that wait (QUOTA_WAITING).
 */
#include "daemon/core/types.h"

/* Makes a request of the session for the name; with NAME_WAIT_JOIN, for a place of its channel. Returns 0, PROTO_E_LIMIT or -ENOMEM. */
int name_wait_new(struct session *session, struct name *name, uint64_t id,
                  const struct proto_open_name *open, uint32_t place, uint64_t now_ns,
                  struct name_wait **ret_wait);

/* For heir.h. Makes a request as a predecessor's: wanted. They come in the order of their numbers. Returns 0
 * or -ENOMEM. */
int name_wait_restore(const struct name_wait *wanted, struct name_wait **ret_wait);

/* Ends a request, whose answer is not sent any more. The name stays. */
void name_wait_free(struct name_wait *wait);

void name_wait_refuse(struct name_wait *wait, enum proto_error error);

/* The name has changed: answers the requests that it can. Drops the name if it is unused. */
void name_serve(struct name *name);

/* Refuses the requests whose deadline has passed. */
void name_waits_expire(struct core *core, uint64_t now_ns);

/* When the next one is due; NS_FOREVER: there is none. */
uint64_t name_waits_next_ns(const struct core *core);

#endif
