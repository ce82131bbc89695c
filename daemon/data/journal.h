/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DATA_JOURNAL_H
#define DAEMON_DATA_JOURNAL_H
/*
 * The journal: the lines that the log has at level info of sessions and refusals. A client can cause any
 * number of these, so each kind has at most JOURNAL_LINES_MAX lines between two calls of journal_turn().
 * Further ones are counted, and journal_turn() tells how many there were.
 *
 * A private daemon's log is its program's terminal, and its clients are its program's own: its journal is
 * empty.
 *
 * Owned by the daemon; the loop's alone.
 */
#include <stdint.h>

#define JOURNAL_LINES_MAX 20u /* of a kind in 5 s: what a person can follow */

struct answer;
struct daemon;
struct long_wait;
struct peer;
struct session;

enum journal_kind {
    JOURNAL_SESSION, /* beginnings and farewells */
    JOURNAL_LOSS,    /* ends without a farewell */
    JOURNAL_REFUSAL,
    JOURNAL_LONG_WAIT,
    JOURNAL_KINDS,
};

struct journal {
    unsigned n_lines[JOURNAL_KINDS];
    uint64_t n_suppressed[JOURNAL_KINDS];
};

/* A session begins. */
void journal_session_begins(struct daemon *daemon, const struct session *session);

/* A session says farewell. To be called before the core hears of it. */
void journal_session_leaves(struct daemon *daemon, const struct session *session);

/* A session ends without a farewell; why is a verb with its object. To be called before the core hears of it.
 */
void journal_session_is_lost(struct daemon *daemon, const struct session *session, const char *why);

/* A session was refused. */
void journal_session_refused(struct daemon *daemon, const struct peer *peer, const char *text);

/* A request was answered; refusals are told of, unless they are probes. To be called before the answer is
 * sent. */
void journal_answer(struct daemon *daemon, const struct answer *answer);

/* A request has waited for LONG_WAIT_NS. */
void journal_long_wait(struct daemon *daemon, const struct long_wait *wait);

/* Begins a new period, and tells of what was suppressed in the last one. */
void journal_turn(struct daemon *daemon);

/* Logs the memory on loan now, a line for each pool that lends some. For the end of the daemon. */
void journal_loans(struct daemon *daemon);

#endif
