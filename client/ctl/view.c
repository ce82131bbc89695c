/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/view.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/units.h"
#include "client/ctl/view_parts.h"

/* A client that closes its session reads the last answer at once. A socket with unread answers is worth a
 * line when it stays for longer than that takes on a busy machine. */
#define LINGERING_TOLD_NS NS_PER_S

static const char *gpu_words(const char *gpu) {
    if (strcmp(gpu, "cuda") == 0)
        return "CUDA";
    if (strcmp(gpu, "sim") == 0)
        return "simulated GPU";
    return strcmp(gpu, "none") == 0 ? "no GPU" : gpu;
}

/* The line that stats and ping begin with. */
static void print_daemon(struct output *output, enum style style, const struct cJSON *reply, const char *is) {
    print_line(output, style, "gpupoold %s%s: pid %" PRIu64 ", up %s, %s",
               reply_text(reply, "daemon.version"), is, reply_count(reply, "daemon.pid"),
               NS_TEXT(reply_count(reply, "daemon.uptime_ns")), gpu_words(reply_text(reply, "daemon.gpu")));
}

void view_ping(struct output *output, const struct cJSON *reply) {
    print_daemon(output, STYLE_PLAIN, reply, " answers");
}

void view_stats(struct output *output, const struct cJSON *reply) {
    const char *toolkit = reply_text(reply, "daemon.cuda_toolkit");
    uint64_t refused = reply_count(reply, "daemon.sessions_refused"),
             lingering = reply_count(reply, "daemon.lingering_sockets"),
             oldest_ns = reply_count(reply, "daemon.lingering_oldest_ns");

    print_daemon(output, STYLE_HEADING, reply, "");
    print_line(output, STYLE_PLAIN, "  socket %s, sessions: %" PRIu64 " of at most %" PRIu64 ", %s%s",
               reply_text(reply, "daemon.socket"), reply_count(reply, "daemon.sessions"),
               reply_count(reply, "daemon.sessions_limit"),
               toolkit == NULL ? "built without CUDA" : "built with CUDA ", toolkit == NULL ? "" : toolkit);
    print_line(output, STYLE_PLAIN,
               "  segments with a descriptor: %" PRIu64 " of at most %" PRIu64 "; the daemon may have %s",
               reply_count(reply, "daemon.described_segments"),
               reply_count(reply, "daemon.described_segments_limit"),
               COUNT_TEXT(reply_count(reply, "daemon.descriptors_limit"), "descriptor"));
    if (refused > 0)
        print_line(output, STYLE_WARNING, "  %s refused since the start", COUNT_TEXT(refused, "session"));
    if (oldest_ns != REPLY_NULL && oldest_ns >= LINGERING_TOLD_NS)
        print_line(output, STYLE_WARNING,
                   lingering == 1
                       ? "  %" PRIu64 " socket of an ended connection has answers that its process has not "
                         "read, for %s"
                       : "  %" PRIu64 " sockets of ended connections have answers that their processes have "
                         "not read, for up to %s",
                   lingering, NS_TEXT(oldest_ns));
    reply_each(notice, reply, "daemon.notices")
        print_line(output, STYLE_WARNING, "  note: %s", reply_string(notice));
    print_line(output, STYLE_PLAIN, "%s", "");
    view_pools_short(output, reply);
    print_line(output, STYLE_PLAIN, "%s", "");
    view_sessions(output, reply);
}

void view_released(struct output *output, const struct cJSON *reply) {
    print_line(output, STYLE_WARNING, "%s of session %" PRIu64 " (pid %" PRIu64 ") released from quarantine",
               BYTES_TEXT(reply_count(reply, "released_bytes")), reply_count(reply, "session"),
               reply_count(reply, "pid"));
}

void view_parcels(struct output *output, const struct cJSON *reply) {
    static const struct column columns[] = {
        {"SENDER", true, add_number, "session"}, {"PID", true, add_count, "pid"},
        {"USER", false, add_user, "uid"},        {"POOL", true, add_number, "pool"},
        {"SIZE", true, add_bytes, "bytes"},      {"TAKERS", true, add_count, "takers"},
        {"SENT", true, add_time, "sent_ns"},     {"LEFT", true, add_time, "left_ns"},
    };
    uint64_t n_told = 0;

    reply_each(parcel, reply, "parcels") n_told++;
    if (n_told > 0)
        print_table(output, columns, reply, "parcels", NULL);
    if (reply_count(reply, "total") > n_told)
        print_line(output, STYLE_QUIET, n_told > 0 ? "  And %s." : "%s on the way.",
                   COUNT_TEXT(reply_count(reply, "total") - n_told, n_told > 0 ? "more buffer" : "buffer"));
    else if (n_told == 0)
        print_line(output, STYLE_QUIET, "Nothing is on its way.");
}

void view_revoked(struct output *output, const struct cJSON *reply) {
    print_line(output, STYLE_HEADING, "%s revoked, %s given back",
               COUNT_TEXT(reply_count(reply, "revoked"), "buffer"),
               BYTES_TEXT(reply_count(reply, "revoked_bytes")));
}

void view_estate_drop(struct output *output, const struct cJSON *reply) {
    print_line(output, STYLE_WARNING, "The estate is let go (%s): a restart of the daemon ends all sessions",
               COUNT_TEXT(reply_count(reply, "removed"), "descriptor"));
}

void view_estate(struct output *output, const struct cJSON *reply) {
    static const struct column columns[] = {
        {"POOL", true, add_number, "id"},
        {"SEGMENTS", true, add_count, "kept_segments"},
        {"KEPT", true, add_bytes, "kept_bytes"},
        {"SEGMENTS", true, add_count, "lost_segments"},
        {"LOST", true, add_bytes, "lost_bytes", STYLE_WARNING},
        {"OF A DAEMON BEFORE", true, add_bytes, "orphan_bytes"},
    };
    const struct cJSON *estate = reply_object(reply, "estate");

    if (!reply_flag(estate, "kept")) {
        print_line(output, STYLE_WARNING, "A restart of the daemon ends all sessions: %s",
                   reply_text(estate, "why"));
        return;
    }
    print_line(output, STYLE_HEADING, "A restart of the daemon keeps %s; %" PRIu64 " would end",
               COUNT_TEXT(reply_count(estate, "sessions.kept"), "session"),
               reply_count(estate, "sessions.lost"));
    print_line(output, STYLE_PLAIN,
               "  %s in %s, by %s, which holds %" PRIu64 " of at most %" PRIu64 " descriptors",
               COUNT_TEXT(reply_count(estate, "records"), "record"), BYTES_TEXT(reply_count(estate, "bytes")),
               reply_text(estate, "manager"), reply_count(estate, "descriptors.stored"),
               reply_count(estate, "descriptors.limit"));
    print_line(output, STYLE_PLAIN,
               "  this is daemon %" PRIu64 " of it, and its format is %" PRIu64 "/%" PRIu64,
               reply_count(estate, "incarnation"), reply_count(estate, "format.major"),
               reply_count(estate, "format.desk"));
    if (reply_flag(estate, "descriptors.refused"))
        print_line(output, STYLE_WARNING,
                   "  some descriptors could not be stored, so what needs them ends: raise "
                   "FileDescriptorStoreMax= of the unit, or the keeper's hard limit of descriptors");
    print_line(output, STYLE_PLAIN, "%s", "");
    print_table(output, columns, estate, "pools", NULL);
    reply_each(pool, estate, "pools") {
        if (reply_count(pool, "lost_bytes") == 0)
            continue;
        print_line(
            output, STYLE_QUIET,
            "  Memory that is lost stays with the processes that have it; nothing more is lent of it. Device "
            "pools with export = vmm lose none.");
        return;
    }
}

void view_drain(struct output *output, const struct cJSON *reply) {
    static const struct column columns[] = {
        {"POOL", true, add_number, "id"},
        {"SESSIONS", true, add_count, "sessions"},
        {"HELD", true, add_bytes, "held_bytes", STYLE_WARNING},
        {"RESERVED", true, add_bytes, "reserved_bytes"},
    };
    bool is_on = true;
    uint64_t held_bytes = 0;

    reply_each(pool, reply, "pools") {
        is_on = is_on && reply_flag(pool, "draining");
        held_bytes += reply_count(pool, "held_bytes");
    }
    if (!is_on)
        print_line(output, STYLE_HEADING, "Memory is lent again.");
    else if (held_bytes == 0)
        print_line(output, STYLE_HEADING, "Drained: nothing is held, and no more is lent.");
    else
        print_line(output, STYLE_HEADING, "No more is lent, and %s are held still.", BYTES_TEXT(held_bytes));
    if (is_on)
        print_table(output, columns, reply, "pools", NULL);
}

void view_trim(struct output *output, const struct cJSON *reply) {
    static const struct column columns[] = {
        {"POOL", true, add_number, "id"},
        {"GIVEN BACK", true, add_bytes, "trimmed_bytes"},
    };

    print_line(output, STYLE_HEADING, "%s given back", BYTES_TEXT(reply_count(reply, "trimmed_bytes")));
    if (reply_first(reply, "pools") != NULL)
        print_table(output, columns, reply, "pools", NULL);
}
