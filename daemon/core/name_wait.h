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
 *   answered --the name is otherwise before the answer is taken--> waiting again
 *
 * A session that ends gets no answer. While a request waits, it counts as one of its tenant's that wait
 * (QUOTA_WAITING).
 *
 * Invariant: between events no request waits that could be answered.
 */
#include "daemon/core/types.h"

/* Asks for a name, which is made if need be, and answers if it can. place: with NAME_WAIT_JOIN. Returns 0, PROTO_E_LIMIT
 * or -ENOMEM. */
int name_ask(struct session *session, uint64_t request, const struct proto_open_name *open, uint32_t place,
             uint64_t now_ns);

/* For heir.h. Makes a request as a predecessor's: wanted. They come in the order of their numbers. Returns 0
 * or -ENOMEM. */
int name_wait_restore(const struct name_wait *wanted, struct name_wait **ret_wait);

/* Frees a request, whether it was answered or not. The name stays, also where nothing uses it any more. */
void name_wait_free(struct name_wait *wait);

/* Refuses a request that waits. */
void name_wait_refuse(struct name_wait *wait, enum proto_error error);

/* The session's oldest request of this id that waits. NULL: there is none. */
struct name_wait *name_wait_find(const struct session *session, uint64_t id);

/* The request whose answer is to be taken next, and whose answer is true: others wait again. NULL: there is none. */
struct name_wait *name_waits_next_answer(struct core *core);

/* The name has changed: answers the requests that it can. Drops the name if it is unused. */
void name_serve(struct name *name);

/* A place of the channel is free, or the channel's maker is gone: answers the requests that it can. The channel goes if
 * nothing keeps it. */
void name_serve_channel(struct channel *channel);

/* The name stands for nothing any more, and its requests are served. Drops the name if it is unused. */
void name_withdraw(struct name *name);

/* Refuses the requests whose deadline has passed. */
void name_waits_expire(struct core *core, uint64_t now_ns);

/* When the next one is due; NS_FOREVER: there is none. */
uint64_t name_waits_next_ns(const struct core *core);

/* Whether all requests of all sessions are in order. */
bool name_waits_are_valid(const struct core *core);

#endif
