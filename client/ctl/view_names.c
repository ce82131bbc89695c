/* SPDX-License-Identifier: Apache-2.0 */
/* Names of published buffers, for people. */
#include <inttypes.h>
#include <string.h>

#include "base/units.h"
#include "client/ctl/view.h"
#include "client/ctl/view_parts.h"

static bool is_published(const struct cJSON *name) {
    return reply_count(name, "generation") != REPLY_NULL;
}

/* A number; "-" where nothing is published. */
static void add_optional(struct table *table, const struct cJSON *row, const struct column *column) {
    uint64_t number = reply_count(row, column->key);
    if (number == REPLY_NULL)
        table_add(table, STYLE_QUIET, "-");
    else
        table_add(table, column->style, "%" PRIu64, number);
}

/* The name's state: whether it stays, or which session builds it. */
static void add_name_state(struct table *table, const struct cJSON *row, const struct column *column) {
    const char *publisher = reply_text(row, column->key);
    bool is_kept = reply_flag(row, "kept");
    uint64_t builder = reply_count(row, "builder_session");

    if (builder != REPLY_NULL)
        table_add(table, STYLE_WARNING, "session %" PRIu64 " builds it", builder);
    else if (!is_published(row) || publisher == NULL)
        table_add(table, STYLE_QUIET, "awaited");
    else if (strcmp(publisher, "quarantined") == 0)
        table_add(table, STYLE_WARNING, "publisher in quarantine");
    else if (reply_flag(row, "channel") && !is_kept)
        table_add(table, STYLE_PLAIN, "while processes use it");
    else
        table_add(table, STYLE_PLAIN, is_kept ? "kept" : "until its publisher ends");
}

/* The publisher's process, while it is there. */
static void add_publisher(struct table *table, const struct cJSON *row, const struct column *column) {
    const char *publisher = reply_text(row, "publisher");
    if (publisher == NULL)
        table_add(table, STYLE_QUIET, "-");
    else if (strcmp(publisher, "gone") == 0)
        table_add(table, STYLE_QUIET, "gone");
    else
        table_add(table, STYLE_PLAIN, "%" PRIu64, reply_count(row, column->key));
}

static void add_contents(struct table *table, const struct cJSON *row, const struct column *column) {
    if (!is_published(row))
        table_add(table, STYLE_QUIET, "-");
    else
        table_add(table, STYLE_PLAIN, "%s",
                  reply_flag(row, "channel")     ? "channel"
                  : reply_flag(row, column->key) ? "live"
                                                 : "fixed");
}

void view_names(struct output *output, const struct cJSON *reply) {
    static const struct column columns[] = {
        {"NAME", false, add_text, "name", .fit = FIT_CUT},
        {"USER", false, add_user, "uid"},
        {"GENERATION", true, add_optional, "generation"},
        {"SIZE", true, add_bytes, "bytes"},
        {"BUFFERS", true, add_count, "buffers"},
        {"CONTENTS", false, add_contents, "live"},
        {"STATE", false, add_name_state, "publisher"},
        {"PUBLISHER", true, add_publisher, "pid"},
        {"AGE", true, add_time, "age_ns"},
        {"HOLDERS", true, add_count, "holders"},
        {"OPENS", true, add_count, "opens"},
        {"WAITING", true, add_count, "waiting", STYLE_WARNING},
    };
    uint64_t n_told = 0;

    reply_each(name, reply, "names") n_told++;
    if (n_told > 0)
        print_table(output, columns, reply, "names", NULL);
    if (reply_count(reply, "total") > n_told)
        print_line(output, STYLE_QUIET, "  And %s.",
                   COUNT_TEXT(reply_count(reply, "total") - n_told, "more name"));
    else if (n_told == 0)
        print_line(output, STYLE_QUIET, "No names.");
}

void view_unpublished(struct output *output, const struct cJSON *reply) {
    uint64_t bytes = reply_count(reply, "bytes"), came_bytes = reply_count(reply, "came_bytes");

    bool is_channel = reply_flag(reply, "channel");

    print_line(output, STYLE_HEADING, "'%s' is %s: %s given back", reply_text(reply, "name"),
               is_channel ? "no channel any more" : "published no more", BYTES_TEXT(came_bytes));
    if (is_channel && came_bytes < bytes)
        print_line(output, STYLE_PLAIN,
                   "  %s stay while processes are in its places: 'gpupoolctl channels' shows them.",
                   BYTES_TEXT(bytes - came_bytes));
    else if (came_bytes < bytes)
        print_line(output, STYLE_PLAIN, "  %s stay until processes, or other names, hold them no more.",
                   BYTES_TEXT(bytes - came_bytes));
}
