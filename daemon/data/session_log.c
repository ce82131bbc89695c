/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/data/session_log.h"

#include <inttypes.h>
#include <stdbool.h>

#include "base/clock.h"
#include "base/units.h"
#include "daemon/core/core.h"
#include "daemon/core/scope.h"
#include "daemon/loop/log.h"

/* Whether a line of the kind may be written; counts it. */
static bool session_log_has_room(struct session_log *log, enum session_log_kind kind) {
    if (log->is_silent)
        return false;
    if (log->n_lines[kind] < SESSION_LOG_LINES_MAX) {
        log->n_lines[kind]++;
        return true;
    }
    log->n_suppressed[kind]++;
    return false;
}

void session_log_session_begins(struct session_log *log, const struct session *session) {
    if (session_log_has_room(log, SESSION_LOG_SESSION))
        log_info("session %" PRIu64 " begins: pid %d (%s) of %s", session->id, (int)session->peer.pid,
                 session->peer.command, TENANT_TEXT(session->core, session->tenant->id));
}

void session_log_session_leaves(struct session_log *log, const struct session *session) {
    if (session_log_has_room(log, SESSION_LOG_SESSION))
        log_info("session %" PRIu64 " ends with a farewell: pid %d (%s), connected for %s", session->id,
                 (int)session->peer.pid, session->peer.command,
                 NS_TEXT(clock_now_ns() - session->connected_ns));
}

void session_log_session_is_lost(struct session_log *log, const struct session *session, const char *why) {
    if (session_log_has_room(log, SESSION_LOG_LOSS))
        log_info("session %" PRIu64
                 " ends without a farewell: pid %d (%s) %s, connected for %s; it had %s in %s",
                 session->id, (int)session->peer.pid, session->peer.command, why,
                 NS_TEXT(clock_now_ns() - session->connected_ns),
                 BYTES_TEXT(session->leased_bytes + session->fenced_bytes),
                 COUNT_TEXT(session->n_leases, "lease"));
}

void session_log_session_refused(struct session_log *log, const struct core *core, const struct peer *peer,
                                 const char *text) {
    if (session_log_has_room(log, SESSION_LOG_REFUSAL))
        log_info("pid %d (%s) of %s gets no session: %s", (int)peer->pid, peer->command,
                 TENANT_TEXT(core, peer_tenant(peer)), text);
}

void session_log_answer(struct session_log *log, const struct answer *answer) {
    if (answer->lease == NULL && !answer->probe && session_log_has_room(log, SESSION_LOG_REFUSAL))
        log_info("session %" PRIu64 " was refused memory: pid %d (%s), %s", answer->session->id,
                 (int)answer->session->peer.pid, answer->session->peer.command, answer->failure.text);
}

void session_log_long_wait(struct session_log *log, const struct long_wait *wait) {
    if (session_log_has_room(log, SESSION_LOG_LONG_WAIT))
        log_info("session %" PRIu64 " has waited for memory for %s: pid %d (%s), %s", wait->session->id,
                 NS_TEXT(wait->waited_ns), (int)wait->session->peer.pid, wait->session->peer.command,
                 wait->text);
}

void session_log_turn(struct session_log *log) {
    static const char *const kinds[] = {
        [SESSION_LOG_SESSION] = "begins and farewells of sessions",
        [SESSION_LOG_LOSS] = "sessions that ended without a farewell",
        [SESSION_LOG_REFUSAL] = "refusals",
        [SESSION_LOG_LONG_WAIT] = "requests that wait for long",
    };
    for (unsigned kind = 0; kind < SESSION_LOG_KINDS; kind++)
        if (log->n_suppressed[kind] > 0)
            log_info("this log lacks %s about %s: too many at a time",
                     COUNT_TEXT(log->n_suppressed[kind], "line"), kinds[kind]);
    *log = (struct session_log){.is_silent = log->is_silent};
}

void session_log_loans(const struct session_log *log, const struct core *core) {
    for (unsigned i = 0; i < core->n_pools && !log->is_silent; i++) {
        const struct pool *pool = core->pools[i];
        if (pool->n_leases > 0)
            log_info("%s: %s on loan, %s behind fences and %s in quarantine end with the daemon (%s)",
                     pool->name, BYTES_TEXT(pool->leased_bytes), BYTES_TEXT(pool->fenced_bytes),
                     BYTES_TEXT(pool->quarantined_bytes), COUNT_TEXT(pool->n_leases, "lease"));
    }
}
