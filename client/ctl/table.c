/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/table.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/ctl/text.h"

#define INDENT 2
#define GAP    2

struct cell {
    char *text;
    size_t width;
    enum style style;
};

const char *style_start(enum style style, bool color) {
    static const char *const starts[] = {
        [STYLE_PLAIN] = "",           [STYLE_HEADING] = "\033[1m", [STYLE_QUIET] = "\033[2m",
        [STYLE_WARNING] = "\033[33m", [STYLE_ALARM] = "\033[31m",
    };
    return color ? starts[style] : "";
}

const char *style_end(enum style style, bool color) {
    return color && style != STYLE_PLAIN ? "\033[0m" : "";
}

void table_init(struct table *table, const struct column *columns, size_t n_columns) {
    *table = (struct table){.columns = columns, .n_columns = n_columns};
}

void table_deinit(struct table *table) {
    for (size_t i = 0; i < table->n_cells; i++)
        free(table->cells[i].text);
    free(table->cells);
    *table = (struct table){0};
}

void table_add(struct table *table, enum style style, const char *format, ...) {
    _cleanup_(freep) char *raw = NULL;
    va_list arguments;

    if (table->failed)
        return;
    if (table->n_cells == table->size_cells) {
        size_t larger = table->size_cells == 0 ? 256 : table->size_cells * 2;
        struct cell *grown = reallocarray(table->cells, larger, sizeof *grown);
        if (grown == NULL) {
            table->failed = true;
            return;
        }
        table->cells = grown;
        table->size_cells = larger;
    }
    va_start(arguments, format);
    int r = vasprintf(&raw, format, arguments);
    va_end(arguments);
    if (r < 0) {
        raw = NULL; /* vasprintf() leaves it undefined */
        table->failed = true;
        return;
    }
    struct cell cell = {.style = style};
    cell.text = text_printable(raw, &cell.width);
    if (cell.text == NULL) {
        table->failed = true;
        return;
    }
    table->cells[table->n_cells++] = cell;
}

/* The last column's cells are not padded: no blanks at the ends of lines. */
static void print_cell(FILE *file, const struct cell *cell, size_t width, bool right, bool last, bool color) {
    int padding = (int)(width - cell->width);
    if (right)
        fprintf(file, "%*s", padding, "");
    fprintf(file, "%s%s%s", style_start(cell->style, color), cell->text, style_end(cell->style, color));
    if (last)
        fputc('\n', file);
    else
        fprintf(file, "%*s", (right ? 0 : padding) + GAP, "");
}

int table_print(const struct table *table, FILE *file, bool color) {
    if (table->failed)
        return -ENOMEM;
    assert(table->n_cells % table->n_columns == 0);

    _cleanup_(freep) size_t *widths = calloc(table->n_columns, sizeof *widths);
    if (widths == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < table->n_columns; i++)
        widths[i] = strlen(table->columns[i].title);
    for (size_t i = 0; i < table->n_cells; i++)
        if (table->cells[i].width > widths[i % table->n_columns])
            widths[i % table->n_columns] = table->cells[i].width;

    fprintf(file, "%*s", INDENT, "");
    for (size_t i = 0; i < table->n_columns; i++) {
        struct cell title = {(char *)table->columns[i].title, strlen(table->columns[i].title), STYLE_HEADING};
        print_cell(file, &title, widths[i], table->columns[i].right, i + 1 == table->n_columns, color);
    }
    for (size_t i = 0; i < table->n_cells; i++) {
        size_t column = i % table->n_columns;
        if (column == 0)
            fprintf(file, "%*s", INDENT, "");
        print_cell(file, &table->cells[i], widths[column], table->columns[column].right,
                   column + 1 == table->n_columns, color);
    }
    return 0;
}
