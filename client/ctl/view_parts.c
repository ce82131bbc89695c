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
        raw = NULL; /* what vasprintf leaves there is undefined */
        return -ENOMEM;
    }
    printable = text_printable(raw, NULL);
    if (printable == NULL)
        return -ENOMEM;
    fprintf(file, "%s%s%s\n", style_start(style, color), printable, style_end(style, color));
    return 0;
}

void add_bytes(struct table *table, uint64_t bytes, enum style style) {
    table_add(table, bytes == 0 ? STYLE_QUIET : style, "%s", BYTES_TEXT(bytes));
}

void add_count(struct table *table, uint64_t count, enum style style) {
    table_add(table, count == 0 ? STYLE_QUIET : style, "%" PRIu64, count);
}

void add_time(struct table *table, uint64_t time_ns, enum style style) {
    if (time_ns == REPLY_NULL)
        table_add(table, STYLE_QUIET, "-");
    else
        table_add(table, style, "%s", NS_TEXT(time_ns));
}

void add_share(struct table *table, double share) {
    if (share == REPLY_NULL_RATIO)
        table_add(table, STYLE_QUIET, "-");
    else
        table_add(table, STYLE_PLAIN, "%.1f%%", 100.0 * share);
}

bool state_is_closed(const char *state) {
    return is(state, "failed") || is(state, "lost");
}

void add_state(struct table *table, const char *state) {
    enum style style = is(state, "ready") || is(state, "active") ? STYLE_PLAIN
                       : state_is_closed(state)                  ? STYLE_ALARM
                                                                 : STYLE_WARNING;
    table_add(table, style, "%s", state);
}
