/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/view.h"

#include <inttypes.h>
#include <string.h>

#include "base/units.h"
#include "client/ctl/view_parts.h"

static const char *gpu_words(const char *gpu) {
    if (strcmp(gpu, "cuda") == 0)
        return "CUDA";
    if (strcmp(gpu, "sim") == 0)
        return "simulated GPU";
    return strcmp(gpu, "none") == 0 ? "no GPU" : gpu;
}

int view_ping(const struct reply *reply, FILE *file, bool color) {
    const struct reply_daemon *daemon = &reply->daemon;

    return print_line(file, color, STYLE_PLAIN, "gpupoold %s answers: pid %" PRIu64 ", up %s, %s",
                      daemon->version, daemon->pid, NS_TEXT(daemon->uptime_ns), gpu_words(daemon->gpu));
}

int view_stats(const struct reply *reply, FILE *file, bool color) {
    const struct reply_daemon *daemon = &reply->daemon;

    int r = print_line(file, color, STYLE_HEADING, "gpupoold %s: pid %" PRIu64 ", up %s, %s", daemon->version,
                       daemon->pid, NS_TEXT(daemon->uptime_ns), gpu_words(daemon->gpu));
    if (r == 0)
        r = print_line(file, color, STYLE_PLAIN,
                       "  socket %s, %" PRIu64 " of at most %" PRIu64 " sessions, %s%s", daemon->socket,
                       daemon->sessions, daemon->sessions_limit,
                       daemon->cuda_toolkit == NULL ? "built without CUDA" : "built with CUDA ",
                       daemon->cuda_toolkit == NULL ? "" : daemon->cuda_toolkit);
    if (daemon->sessions_refused > 0 && r == 0)
        r = print_line(file, color, STYLE_WARNING, "  %" PRIu64 " sessions were refused since the start",
                       daemon->sessions_refused);
    if (daemon->lingering_sockets > 0 && r == 0)
        r = print_line(file, color, STYLE_WARNING,
                       "  %" PRIu64 " sockets of ended connections have answers that nobody has read",
                       daemon->lingering_sockets);
    for (size_t i = 0; i < daemon->n_notices && r == 0; i++)
        r = print_line(file, color, STYLE_WARNING, "  note: %s", daemon->notices[i]);
    if (r == 0)
        r = print_line(file, color, STYLE_PLAIN, "%s", "");
    if (r == 0)
        r = view_pools_short(reply, file, color);
    if (r == 0)
        r = print_line(file, color, STYLE_PLAIN, "%s", "");
    return r < 0 ? r : view_sessions(reply, file, color);
}

int view_released(const struct reply *reply, FILE *file, bool color) {
    return print_line(file, color, STYLE_WARNING,
                      "%s of session %" PRIu64 " (pid %" PRIu64 ") released from quarantine",
                      BYTES_TEXT(reply->released_bytes), reply->released_session, reply->released_pid);
}

int view_trim(const struct reply *reply, FILE *file, bool color) {
    static const struct column columns[] = {{"POOL", true}, {"GIVEN BACK", true}};
    struct table table;

    int r = print_line(file, color, STYLE_HEADING, "%s given back", BYTES_TEXT(reply->trimmed_bytes));
    if (r < 0 || reply->n_trimmed == 0)
        return r;
    table_init(&table, columns, ARRAY_LENGTH(columns));
    for (size_t i = 0; i < reply->n_trimmed; i++) {
        table_add(&table, STYLE_PLAIN, "%" PRIu64, reply->trimmed[i].id);
        add_bytes(&table, reply->trimmed[i].trimmed_bytes, STYLE_PLAIN);
    }
    r = table_print(&table, file, color);
    table_deinit(&table);
    return r;
}
