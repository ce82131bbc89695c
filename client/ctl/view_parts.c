/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/view_parts.h"

#include <inttypes.h>
#include <string.h>

#include "base/array.h"
#include "base/units.h"
#include "client/ctl/user.h"

static bool is(const char *text, const char *word) {
    return strcmp(text, word) == 0;
}

void add_number(struct table *table, const struct cJSON *row, const struct column *column) {
    table_add(table, column->style, "%" PRIu64, reply_count(row, column->key));
}

void add_user(struct table *table, const struct cJSON *row, const struct column *column) {
    uint64_t uid = reply_count(row, column->key);
    const char *scope = reply_text(row, "scope");
    table_add(table, uid == USER_NONE ? STYLE_QUIET : column->style, "%s%s%s", user_text(uid),
              scope != NULL ? " of " : "", scope != NULL ? scope : "");
}

void add_bytes(struct table *table, const struct cJSON *row, const struct column *column) {
    uint64_t bytes = reply_count(row, column->key);
    bool is_quiet = bytes == 0 || bytes == REPLY_NULL;
    table_add(table, is_quiet ? STYLE_QUIET : column->style, "%s",
              bytes == REPLY_NULL ? "-" : BYTES_TEXT(bytes));
}

void add_count(struct table *table, const struct cJSON *row, const struct column *column) {
    uint64_t count = reply_count(row, column->key);
    table_add(table, count == 0 ? STYLE_QUIET : column->style, "%" PRIu64, count);
}

void add_time(struct table *table, const struct cJSON *row, const struct column *column) {
    uint64_t time_ns = reply_count(row, column->key);
    if (time_ns == REPLY_NULL)
        table_add(table, STYLE_QUIET, "-");
    else
        table_add(table, column->style, "%s", NS_TEXT(time_ns));
}

void add_share(struct table *table, const struct cJSON *row, const struct column *column) {
    double share = reply_ratio(row, column->key);
    if (share == REPLY_NULL_RATIO)
        table_add(table, STYLE_QUIET, "-");
    else
        table_add(table, column->style, "%.1f%%", 100.0 * share);
}

void add_text(struct table *table, const struct cJSON *row, const struct column *column) {
    const char *text = reply_text(row, column->key);
    bool is_empty = text == NULL || text[0] == '\0';
    table_add(table, is_empty ? STYLE_QUIET : column->style, "%s", is_empty ? "-" : text);
}

bool state_is_closed(const char *state) {
    return is(state, "failed") || is(state, "lost");
}

void add_state(struct table *table, const struct cJSON *row, const struct column *column) {
    const char *state = reply_text(row, column->key);
    if (is(state, "ready") && reply_flag(row, "draining"))
        state = "draining";
    enum style style = is(state, "ready") || is(state, "active") ? STYLE_PLAIN
                       : state_is_closed(state)                  ? STYLE_ALARM
                                                                 : STYLE_WARNING;
    table_add(table, style, "%s", state);
}

const char *find_words(const struct wording *known, size_t count, const char *word) {
    for (size_t i = 0; i < count; i++)
        if (is(word, known[i].word))
            return known[i].words;
    return word;
}

const char *waiting_words(const char *reason) {
    static const struct wording known[] = {
        {"room", "memory that is in use"},
        {"quota", "memory of its own user (quota)"},
        {"growth", "growth of the pool"},
        {"own-process", "memory that only its own process holds"},
        {"no-answer", "idle memory of a process that does not answer"},
        {"other-users", "memory in segments of other users"},
        {"pieces", "free memory that lies in pieces"},
    };
    return find_words(known, ARRAY_LENGTH(known), reason);
}
