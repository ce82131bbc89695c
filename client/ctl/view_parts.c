/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/view_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/units.h"
#include "client/ctl/text.h"

static bool is(const char *text, const char *word) {
    return strcmp(text, word) == 0;
}

int print_line(FILE *file, bool color, enum style style, const char *format, ...) {
    _cleanup_(freep) char *raw = NULL, *printable = NULL;
    va_list arguments;

    va_start(arguments, format);
    int r = vasprintf(&raw, format, arguments);
    va_end(arguments);
    if (r < 0) {
        raw = NULL; /* vasprintf() leaves it undefined */
        return -ENOMEM;
    }
    printable = text_printable(raw, NULL);
    if (printable == NULL)
        return -ENOMEM;
    fprintf(file, "%s%s%s\n", style_start(style, color), printable, style_end(style, color));
    return 0;
}

int view_table(FILE *file, bool color, const struct view_column *columns, size_t n_columns,
               const struct cJSON *object, const char *key, const char *inner) {
    struct column titles[VIEW_COLUMNS_MAX];
    struct table table;

    for (size_t i = 0; i < n_columns; i++)
        titles[i] = columns[i].column;
    table_init(&table, titles, n_columns);
    reply_each(element, object, key) {
        const struct cJSON *row = inner == NULL ? element : reply_first(element, inner);
        for (; row != NULL; row = inner == NULL ? NULL : reply_next(row))
            for (size_t i = 0; i < n_columns; i++)
                columns[i].add(&table, columns[i].of_outer ? element : row, &columns[i]);
    }
    int r = table_print(&table, file, color);
    table_deinit(&table);
    return r;
}

void add_number(struct table *table, const struct cJSON *row, const struct view_column *column) {
    table_add(table, column->style, "%" PRIu64, reply_count(row, column->key));
}

void add_bytes(struct table *table, const struct cJSON *row, const struct view_column *column) {
    uint64_t bytes = reply_count(row, column->key);
    table_add(table, bytes == 0 ? STYLE_QUIET : column->style, "%s", BYTES_TEXT(bytes));
}

void add_count(struct table *table, const struct cJSON *row, const struct view_column *column) {
    uint64_t count = reply_count(row, column->key);
    table_add(table, count == 0 ? STYLE_QUIET : column->style, "%" PRIu64, count);
}

void add_time(struct table *table, const struct cJSON *row, const struct view_column *column) {
    uint64_t time_ns = reply_count(row, column->key);
    if (time_ns == REPLY_NULL)
        table_add(table, STYLE_QUIET, "-");
    else
        table_add(table, column->style, "%s", NS_TEXT(time_ns));
}

void add_share(struct table *table, const struct cJSON *row, const struct view_column *column) {
    double share = reply_ratio(row, column->key);
    if (share == REPLY_NULL_RATIO)
        table_add(table, STYLE_QUIET, "-");
    else
        table_add(table, column->style, "%.1f%%", 100.0 * share);
}

void add_text(struct table *table, const struct cJSON *row, const struct view_column *column) {
    const char *text = reply_text(row, column->key);
    bool is_empty = text == NULL || text[0] == '\0';
    table_add(table, is_empty ? STYLE_QUIET : column->style, "%s", is_empty ? "-" : text);
}

bool state_is_closed(const char *state) {
    return is(state, "failed") || is(state, "lost");
}

void add_state(struct table *table, const struct cJSON *row, const struct view_column *column) {
    const char *state = reply_text(row, column->key);
    enum style style = is(state, "ready") || is(state, "active") ? STYLE_PLAIN
                       : state_is_closed(state)                  ? STYLE_ALARM
                                                                 : STYLE_WARNING;
    table_add(table, style, "%s", state);
}
