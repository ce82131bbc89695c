/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_QUESTION_H
#define DAEMON_CORE_QUESTION_H
/*
 * The questions to a session for idle memory of a pool, and its answers (RECLAIMED). Each question has a
 * number, which the session counts over all pools and its client reads in the page. An answer names the
 * newest question whose number the client had read before it looked for idle memory, so that an answer to an
 * earlier question is told from one to the newest.
 *
 *   not asked --question--> owes --answer--> settled, or later
 *   owes --question--> owes, and the next one is due: it is asked when the answer has come
 *   settled, later --question--> owes
 *
 * PENDING is no answer yet: the library has given back what it had, and the program's word is due. CAPTURING
 * and BUSY are answers of a session that has idle memory and cannot let go of it now (later). A session is
 * *open* while it owes an answer, or has said "later". The pool counts the open sessions among those that can
 * be asked.
 *
 * A client that knows no RECLAIMED, or whose program never answers, owes for ever. It is asked as often as
 * the others: the shell sends each question, also the one that has no number of its own.
 */
#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/types.h"

/* The session is asked for idle memory of the pool. It can be asked. */
void question_ask(struct session *session, struct pool *pool, uint64_t now_ns);

/* Notes an answer of the session, which can be asked. Returns whether the next question is due. */
bool question_answer(struct session *session, struct pool *pool, const struct proto_reclaimed *reclaimed);

/* The session gave back that many bytes of the pool, or closed a segment of it (0). */
void question_note_came(struct session *session, struct pool *pool, uint64_t bytes, uint64_t now_ns);

/* Whether more idle memory may come of the session: it owes an answer, or has said "later". */
bool question_is_open(const struct session *session, const struct pool *pool);

/* The session cannot be asked for memory of the pool any more: it owes nothing. */
void question_drop(struct session *session, struct pool *pool);

/* The bytes of the pool that the session's program keeps idle, by its last word: at most all that it has there. */
uint64_t question_kept_bytes(const struct session *session, const struct pool *pool);

/* The pool is short no more: the session is not asked again when it answers. */
void question_end_shortage(struct session *session, struct pool *pool);

/* "done", "nothing", "capturing", "busy", "waits", "pending"; "none": the session has not answered yet. */
const char *question_outcome_name(enum proto_reclaim outcome);

#endif
