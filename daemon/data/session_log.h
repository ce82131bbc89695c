/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DATA_SESSION_LOG_H
#define DAEMON_DATA_SESSION_LOG_H
/*
 * The lines that the log has at level info of sessions and refusals. A client can cause any number of these,
 * so each kind has at most SESSION_LOG_LINES_MAX lines between two calls of session_log_turn(). Further ones
 * are counted, and session_log_turn() tells how many there were.
 *
 * A private daemon's log is its program's terminal, and its clients are its program's own: it has none of
 * these lines.
 *
 * Owned by the clients; the loop's alone.
 */
#include <stdbool.h>
#include <stdint.h>

#define SESSION_LOG_LINES_MAX 20u /* of a kind in 5 s: what a person can follow */

struct answer;
struct core;
struct long_wait;
struct peer;
struct session;

enum session_log_kind {
    SESSION_LOG_SESSION, /* beginnings and farewells */
    SESSION_LOG_LOSS,    /* ends without a farewell */
    SESSION_LOG_REFUSAL,
    SESSION_LOG_LONG_WAIT,
    SESSION_LOG_KINDS,
};

struct session_log {
    bool is_silent; /* of a private daemon */
    unsigned n_lines[SESSION_LOG_KINDS];
    uint64_t n_suppressed[SESSION_LOG_KINDS];
};

/* A session begins. */
void session_log_session_begins(struct session_log *log, const struct session *session);

/* A session says farewell. To be called before the core hears of it. */
void session_log_session_leaves(struct session_log *log, const struct session *session);

/* A session ends without a farewell; why is a verb with its object. To be called before the core hears of it.
 */
void session_log_session_is_lost(struct session_log *log, const struct session *session, const char *why);

/* A session was refused. */
void session_log_session_refused(struct session_log *log, const struct core *core, const struct peer *peer,
                                 const char *text);

/* A request was answered; refusals are told of, unless they are probes. To be called before the answer is
 * sent. */
void session_log_answer(struct session_log *log, const struct answer *answer);

/* A request has waited for LONG_WAIT_NS. */
void session_log_long_wait(struct session_log *log, const struct long_wait *wait);

/* Begins a new period, and tells of what was suppressed in the last one. */
void session_log_turn(struct session_log *log);

/* Logs the memory on loan now, a line for each pool that lends some. For the end of the daemon. */
void session_log_loans(const struct session_log *log, const struct core *core);

#endif
