/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_SESSION_H
#define DAEMON_CORE_SESSION_H
/*
 * A session: one connected process. It owns its leases and its waiting requests.
 *
 *   ACTIVE --farewell (streams idle, mappings closed)--> gone, leases returned
 *   ACTIVE --anything else--> QUARANTINED --its process and its GPU work are over--> gone, leases returned
 *
 * The memory of a quarantined session is not reused: a killed process's GPU work goes on after its socket
 * closed (measured on H200: writes 9 ms after end-of-file; 3.5 s where a forked child kept the driver's
 * descriptors).
 *
 * Memory that a session released behind a fence stays counted as its leases, and in fenced_bytes, until the
 * fence is ready (fence.h).
 *
 * A session may want to be asked for memory that it keeps idle. It can be asked through core_next_reclaim()
 * while it is ACTIVE and holds a lease in the pool or has a segment of it mapped.
 *
 * A session has a segment mapped from the time it was given the segment's handle until it said that it closed
 * the mapping.
 */
#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/types.h"

/* Whether the policy lets it use the pool, and it knows the kind of the pool's segments. It keeps leases that
 * it has there, whatever the policy becomes. */
bool session_may_use(const struct session *session, const struct pool *pool);

/* The lease that the session got after this one, of those that it still has. NULL: none. */
struct lease *session_next_lease(const struct lease *lease);

/* The session, whose core is set, is one of its tenant's. */
void session_enter(struct session *session, struct tenant *tenant);

/* Makes room for 64 segments, and those before them. Returns 0 or -ENOMEM. */
int session_reserve_word(struct session *session, uint32_t word);

/* Makes room to remember the segment. Returns 0 or -ENOMEM. */
int session_reserve_segment(struct session *session, const struct segment *segment);

/* Notes that the session is given the segment's handle now. Returns true the first time: the handle has to be
 * sent. */
bool session_map_segment(struct session *session, struct segment *segment);

bool session_has_mapped(const struct session *session, const struct segment *segment);

/* Notes that the session does not map the segment any more. For closing_unmap(), which ends a CLOSING segment
 * with its last mapper. */
void session_unmap_segment(struct session *session, struct segment *segment);

/* Whether the session was told to close a segment that it has mapped. */
bool session_was_told(const struct session *session, const struct segment *segment);
void session_note_told(struct session *session, struct segment *segment);

/* Asks the session for memory of the pool that it keeps idle (question.h), and marks the pool as short in its
 * page. Does nothing if the session cannot be asked. */
void session_ask(struct session *session, struct pool *pool, uint64_t now_ns);

/* Whether the session has answered the pool's last question (IDLE for others). */
bool session_has_answered(const struct session *session, const struct pool *pool);
void session_note_answer(struct session *session, struct pool *pool);

/* Notes an answer to a question for idle memory (RECLAIMED), and asks again where that is due. Returns 0, or
 * PROTO_E_INVALID: the session was not asked so often. */
int session_hear_reclaimed(struct session *session, struct pool *pool,
                           const struct proto_reclaimed *reclaimed, uint64_t now_ns);

/* The session was asked for idle memory. Notes that it does not answer if the first question since its last
 * message is NO_ANSWER_NS ago. */
void session_note_question(struct session *session, uint64_t now_ns);

/* The pool's shortage is over: clears its mark in the session's page. */
void session_end_shortage(struct session *session, struct pool *pool);

/* The session is being lost, and is ACTIVE yet: it cannot be asked for memory or told to close segments any
 * more. Pools and segments count that. */
void session_fall_silent(struct session *session);

/* Whether the session can be asked for idle memory of the pool: leases, or segments that it has mapped. */
bool session_can_be_asked(const struct session *session, const struct pool *pool);

/* Whether the session can be asked for idle memory of any pool. */
bool session_can_be_asked_at_all(const struct session *session);

/* Keeps the pool's count of sessions that can be asked. To be called when that may have changed, with what
 * session_can_be_asked() returned before. Withdraws the question to a session that cannot be asked at all any
 * more. */
void session_count_askable(struct session *session, struct pool *pool, bool was_askable);

#endif
