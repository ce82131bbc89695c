/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/data/journal.h"

#include <inttypes.h>
#include <stdbool.h>

#include "base/clock.h"
#include "base/units.h"
#include "daemon/daemon.h"
#include "daemon/loop/log.h"
#include "daemon/core/core.h"

/* Whether a line of the kind may be written; counts it. */
static bool journal_has_room(struct daemon *daemon, enum journal_kind kind) {
    struct journal *journal = &daemon->journal;

    if (daemon->options.private)
        return false;
    if (journal->n_lines[kind] < JOURNAL_LINES_MAX) {
        journal->n_lines[kind]++;
        return true;
    }
    journal->n_suppressed[kind]++;
    return false;
}

void journal_session_begins(struct daemon *daemon, const struct session *session) {
    if (journal_has_room(daemon, JOURNAL_SESSION))
        log_info("session %" PRIu64 " begins: pid %d (%s) of user %u", session->id, (int)session->peer.pid,
                 session->peer.command, (unsigned)session->peer.uid);
}

void journal_session_leaves(struct daemon *daemon, const struct session *session) {
    if (journal_has_room(daemon, JOURNAL_SESSION))
        log_info("session %" PRIu64 " ends with a farewell: pid %d (%s), connected for %s", session->id,
                 (int)session->peer.pid, session->peer.command,
                 NS_TEXT(clock_now_ns() - session->connected_ns));
}

void journal_session_is_lost(struct daemon *daemon, const struct session *session, const char *why) {
    if (journal_has_room(daemon, JOURNAL_LOSS))
        log_info("session %" PRIu64
                 " ends without a farewell: pid %d (%s) %s, connected for %s; it had %s in %s",
                 session->id, (int)session->peer.pid, session->peer.command, why,
                 NS_TEXT(clock_now_ns() - session->connected_ns),
                 BYTES_TEXT(session->leased_bytes + session->fenced_bytes),
                 COUNT_TEXT(session->n_leases, "lease"));
}

void journal_session_refused(struct daemon *daemon, const struct peer *peer, const char *text) {
    if (journal_has_room(daemon, JOURNAL_REFUSAL))
        log_info("pid %d (%s) of user %u gets no session: %s", (int)peer->pid, peer->command,
                 (unsigned)peer->uid, text);
}

void journal_answer(struct daemon *daemon, const struct answer *answer) {
    if (answer->lease == NULL && !answer->probe && journal_has_room(daemon, JOURNAL_REFUSAL))
        log_info("session %" PRIu64 " was refused memory: pid %d (%s), %s", answer->session->id,
                 (int)answer->session->peer.pid, answer->session->peer.command, answer->failure.text);
}

void journal_long_wait(struct daemon *daemon, const struct long_wait *wait) {
    if (journal_has_room(daemon, JOURNAL_LONG_WAIT))
        log_info("session %" PRIu64 " has waited for memory for %s: pid %d (%s), %s", wait->session->id,
                 NS_TEXT(wait->waited_ns), (int)wait->session->peer.pid, wait->session->peer.command,
                 wait->text);
}

void journal_turn(struct daemon *daemon) {
    static const char *const kinds[] = {
        [JOURNAL_SESSION] = "begins and farewells of sessions",
        [JOURNAL_LOSS] = "sessions that ended without a farewell",
        [JOURNAL_REFUSAL] = "refusals",
        [JOURNAL_LONG_WAIT] = "requests that wait for long",
    };
    struct journal *journal = &daemon->journal;

    for (unsigned kind = 0; kind < JOURNAL_KINDS; kind++)
        if (journal->n_suppressed[kind] > 0)
            log_info("this log lacks %s about %s: too many at a time",
                     COUNT_TEXT(journal->n_suppressed[kind], "line"), kinds[kind]);
    *journal = (struct journal){0};
}

void journal_loans(struct daemon *daemon) {
    const struct core *core = daemon->core;

    for (unsigned i = 0; i < core->n_pools && !daemon->options.private; i++) {
        const struct pool *pool = core->pools[i];
        if (pool->n_leases > 0)
            log_info("%s: %s on loan, %s behind fences and %s in quarantine end with the daemon (%s)",
                     pool->name, BYTES_TEXT(pool->leased_bytes), BYTES_TEXT(pool->fenced_bytes),
                     BYTES_TEXT(pool->quarantined_bytes), COUNT_TEXT(pool->n_leases, "lease"));
    }
}
