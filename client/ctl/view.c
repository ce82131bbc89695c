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

int view_ping(const struct cJSON *reply, FILE *file, bool color) {
    return print_line(file, color, STYLE_PLAIN, "gpupoold %s answers: pid %" PRIu64 ", up %s, %s",
                      reply_text(reply, "daemon.version"), reply_count(reply, "daemon.pid"),
                      NS_TEXT(reply_count(reply, "daemon.uptime_ns")),
                      gpu_words(reply_text(reply, "daemon.gpu")));
}

int view_stats(const struct cJSON *reply, FILE *file, bool color) {
    int r = print_line(file, color, STYLE_HEADING, "gpupoold %s: pid %" PRIu64 ", up %s, %s",
                       reply_text(reply, "daemon.version"), reply_count(reply, "daemon.pid"),
                       NS_TEXT(reply_count(reply, "daemon.uptime_ns")),
                       gpu_words(reply_text(reply, "daemon.gpu")));
    if (r == 0)
        r = print_line(
            file, color, STYLE_PLAIN, "  socket %s, %" PRIu64 " of at most %" PRIu64 " sessions, %s%s",
            reply_text(reply, "daemon.socket"), reply_count(reply, "daemon.sessions"),
            reply_count(reply, "daemon.sessions_limit"),
            reply_text(reply, "daemon.cuda_toolkit") == NULL ? "built without CUDA" : "built with CUDA ",
            reply_text(reply, "daemon.cuda_toolkit") == NULL ? "" : reply_text(reply, "daemon.cuda_toolkit"));
    if (reply_count(reply, "daemon.sessions_refused") > 0 && r == 0)
        r = print_line(file, color, STYLE_WARNING, "  %" PRIu64 " sessions were refused since the start",
                       reply_count(reply, "daemon.sessions_refused"));
    if (reply_count(reply, "daemon.lingering_sockets") > 0 && r == 0)
        r = print_line(file, color, STYLE_WARNING,
                       "  %" PRIu64 " sockets of ended connections have answers that nobody has read",
                       reply_count(reply, "daemon.lingering_sockets"));
    reply_each(notice, reply, "daemon.notices") if (r == 0) r =
        print_line(file, color, STYLE_WARNING, "  note: %s", reply_string(notice));
    if (r == 0)
        r = print_line(file, color, STYLE_PLAIN, "%s", "");
    if (r == 0)
        r = view_pools_short(reply, file, color);
    if (r == 0)
        r = print_line(file, color, STYLE_PLAIN, "%s", "");
    return r < 0 ? r : view_sessions(reply, file, color);
}

int view_released(const struct cJSON *reply, FILE *file, bool color) {
    return print_line(file, color, STYLE_WARNING,
                      "%s of session %" PRIu64 " (pid %" PRIu64 ") released from quarantine",
                      BYTES_TEXT(reply_count(reply, "released_bytes")), reply_count(reply, "session"),
                      reply_count(reply, "pid"));
}

int view_trim(const struct cJSON *reply, FILE *file, bool color) {
    static const struct view_column columns[] = {
        {{"POOL", true}, add_number, "id", STYLE_PLAIN, false},
        {{"GIVEN BACK", true}, add_bytes, "trimmed_bytes", STYLE_PLAIN, false},
    };

    int r = print_line(file, color, STYLE_HEADING, "%s given back",
                       BYTES_TEXT(reply_count(reply, "trimmed_bytes")));
    if (r < 0 || reply_first(reply, "pools") == NULL)
        return r;
    return view_table(file, color, columns, ARRAY_LENGTH(columns), reply, "pools", NULL);
}
