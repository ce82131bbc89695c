/* SPDX-License-Identifier: Apache-2.0 */
/* Channels and the processes in their places, for people. */
#include <inttypes.h>
#include <string.h>

#include "base/array.h"
#include "base/units.h"
#include "client/ctl/view.h"
#include "client/ctl/view_parts.h"

/* The name of a channel; of an ended one its number. */
static void add_channel_name(struct table *table, const struct cJSON *row, const struct column *column) {
    const char *name = reply_text(row, column->key);

    if (name == NULL)
        table_add(table, STYLE_QUIET, "number %" PRIu64, reply_count(row, "id"));
    else
        table_add(table, column->style, "%s", name);
}

/* How long the channel lasts. */
static void add_channel_state(struct table *table, const struct cJSON *row, const struct column *column) {
    if (reply_text(row, "name") == NULL)
        table_add(table, STYLE_WARNING, "ended, with processes in it");
    else
        table_add(table, STYLE_PLAIN, "%s", reply_flag(row, column->key) ? "kept" : "while processes use it");
}

/* The process that made it, while it is there. */
static void add_maker(struct table *table, const struct cJSON *row, const struct column *column) {
    uint64_t pid = reply_count(row, column->key);

    if (pid == REPLY_NULL)
        table_add(table, STYLE_QUIET, "gone");
    else
        table_add(table, STYLE_PLAIN, "%" PRIu64, pid);
}

/* A number; "-" where it is not known, or says nothing. */
static void add_known(struct table *table, const struct cJSON *row, const struct column *column) {
    uint64_t number = reply_count(row, column->key);

    if (number == REPLY_NULL)
        table_add(table, STYLE_QUIET, "-");
    else
        table_add(table, number == 0 ? STYLE_QUIET : column->style, "%" PRIu64, number);
}

static void add_place(struct table *table, const struct cJSON *row, const struct column *column) {
    uint64_t place = reply_count(row, column->key);

    if (place == 0)
        table_add(table, column->style, "producer");
    else
        table_add(table, column->style, "consumer %" PRIu64, place);
}

static void add_place_state(struct table *table, const struct cJSON *row, const struct column *column) {
    const char *state = reply_text(row, column->key);
    bool is_dead = strcmp(state, "dying") == 0 || strcmp(state, "vacant") == 0;

    table_add(table, is_dead ? STYLE_WARNING : STYLE_PLAIN, "%s", state);
}

/* How far a consumer is behind; "-" where the place holds nothing back. */
static void add_backlog(struct table *table, const struct cJSON *row, const struct column *column) {
    if (strcmp(reply_text(row, "state"), "left") == 0)
        table_add(table, STYLE_QUIET, "-");
    else
        add_known(table, row, column);
}

void view_channels(struct output *output, const struct cJSON *reply) {
    static const struct column columns[] = {
        {"NAME", false, add_channel_name, "name", .fit = FIT_CUT},
        {"USER", false, add_user, "uid"},
        {"POOL", true, add_number, "pool"},
        {"SIZE", true, add_bytes, "bytes"},
        {"SLOTS", true, add_number, "slots"},
        {"FRAME", true, add_bytes, "slot_bytes"},
        {"POLICY", false, add_text, "policy"},
        {"STATE", false, add_channel_state, "kept"},
        {"MAKER", true, add_maker, "pid"},
        {"SENT", true, add_known, "sent"},
        {"WAITING", true, add_count, "waiting", STYLE_WARNING},
    };
    static const struct column place_columns[] = {
        {"CHANNEL", false, add_channel_name, "name", .of_outer = true, .fit = FIT_CUT},
        {"PLACE", false, add_place, "place"},
        {"STATE", false, add_place_state, "state"},
        {"SESSION", true, add_known, "session"},
        {"PID", true, add_known, "pid"},
        {"BEHIND", true, add_backlog, "behind", STYLE_WARNING},
        {"HELD", true, add_backlog, "held"},
        {"COMMAND", false, add_text, "command", .fit = FIT_CUT},
    };
    uint64_t n_told = 0, total = reply_count(reply, "total");

    reply_each(channel, reply, "channels") n_told++;
    if (n_told > 0) {
        print_table(output, columns, reply, "channels", NULL);
        print_line(output, STYLE_PLAIN, "%s", "");
        print_table(output, place_columns, reply, "channels", "places");
    }
    if (total > n_told)
        print_line(output, STYLE_QUIET, "  And %s.", COUNT_TEXT(total - n_told, "more channel"));
    else if (n_told == 0)
        print_line(output, STYLE_QUIET, "No channels.");
    reply_each(channel, reply, "channels") {
        reply_each(place, channel, "places") {
            const char *name = reply_text(channel, "name");
            if (strcmp(reply_text(place, "state"), "vacant") != 0 || name == NULL)
                continue;
            if (reply_count(place, "place") == 0)
                print_line(output, STYLE_WARNING, "  '%s': the producer died. Another one can join.", name);
            else
                print_line(output, STYLE_WARNING,
                           "  '%s': consumer %" PRIu64
                           " died. Its frames wait for the next process in its place, and hold their slots.",
                           name, reply_count(place, "place"));
        }
    }
}
