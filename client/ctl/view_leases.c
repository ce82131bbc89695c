/* SPDX-License-Identifier: Apache-2.0 */
/* The leases, the blocks that several processes share, and the end of a session, for people. */
#include <inttypes.h>

#include "base/array.h"
#include "base/units.h"
#include "client/ctl/view.h"
#include "client/ctl/view_parts.h"

void view_leases(struct output *output, const struct cJSON *reply) {
    static const struct column columns[] = {
        {"LEASE", true, add_number, "id"},
        {"SESSION", true, add_number, "session"},
        {"PID", true, add_count, "pid"},
        {"POOL", true, add_number, "pool"},
        {"SEGMENT", true, add_number, "segment"},
        {"SIZE", true, add_bytes, "bytes"},
        {"STATE", false, add_text, "state"},
        {"HOLDERS", true, add_number, "holders"},
        {"AGE", true, add_time, "age_ns"},
        {"COMMAND", false, add_text, "command", .fit = FIT_CUT},
        {"NAME", false, add_text, "name", .fit = FIT_CUT},
    };
    uint64_t n_told = 0, n_named = 0;

    reply_each(lease, reply, "leases") {
        n_told++;
        n_named += reply_text(lease, "name") != NULL;
    }
    if (n_told > 0)
        table_print(output, columns, ARRAY_LENGTH(columns) - (n_named == 0), reply, "leases", NULL);
    if (reply_count(reply, "total") > n_told)
        print_line(output, STYLE_QUIET, "  And %s; --session shows those of one session.",
                   COUNT_TEXT(reply_count(reply, "total") - n_told, "more lease"));
    else if (n_told == 0)
        print_line(output, STYLE_QUIET, "Nothing is leased.");
}

/* The name that the block is published under, and how many more there are. */
static void add_names(struct table *table, const struct cJSON *row, const struct column *column) {
    const char *name = reply_text(row, column->key);
    uint64_t names = reply_count(row, "names");

    if (name == NULL)
        table_add(table, STYLE_QUIET, "-");
    else if (names == REPLY_NULL || names < 2)
        table_add(table, STYLE_PLAIN, "%s", name);
    else
        table_add(table, STYLE_PLAIN, "%s and %" PRIu64 " more", name, names - 1);
}

void view_sharing(struct output *output, const struct cJSON *reply) {
    static const struct column columns[] = {
        {"POOL", true, add_number, "pool", STYLE_PLAIN, true},
        {"SEGMENT", true, add_number, "segment", STYLE_PLAIN, true},
        {"OFFSET", true, add_bytes, "offset_bytes", STYLE_PLAIN, true},
        {"SIZE", true, add_bytes, "bytes", STYLE_PLAIN, true},
        {"ON THE WAY", true, add_count, "parcels", STYLE_PLAIN, true},
        {"NAME", false, add_names, "name", STYLE_PLAIN, true, .fit = FIT_CUT},
        {"SESSION", true, add_number, "session"},
        {"PID", true, add_count, "pid"},
        {"STATE", false, add_text, "state"},
        {"COMMAND", false, add_text, "command", .fit = FIT_CUT},
    };

    if (reply_first(reply, "blocks") != NULL)
        print_table(output, columns, reply, "blocks", "holders");
    else
        print_line(output, STYLE_QUIET, "Nothing is shared.");
    if (!reply_flag(reply, "is_whole"))
        print_line(output, STYLE_QUIET, "  There may be more.");
}

void view_session_end(struct output *output, const struct cJSON *reply) {
    print_line(output, STYLE_HEADING, "session %" PRIu64 " ended: pid %" PRIu64 " (%s)",
               reply_count(reply, "session"), reply_count(reply, "pid"), reply_text(reply, "command"));
    if (reply_count(reply, "held_bytes") > 0)
        print_line(
            output, STYLE_PLAIN,
            "  Its %s are in quarantine until the process has ended: 'gpupoolctl quarantine' shows them.",
            BYTES_TEXT(reply_count(reply, "held_bytes")));
}
