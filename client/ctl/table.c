/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/table.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
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

/* Cells come in the columns' order. */
struct table {
    struct output *output;
    struct cell *cells;
    size_t n_cells, size_cells;
};

static void table_deinit(struct table *table) {
    for (size_t i = 0; i < table->n_cells; i++)
        free(table->cells[i].text);
    free(table->cells);
}

/* Prints text between the sequences that start its style and end any. */
static void print_styled(const struct output *output, enum style style, const char *text) {
    static const char *const starts[] = {
        [STYLE_PLAIN] = "",           [STYLE_HEADING] = "\033[1m", [STYLE_QUIET] = "\033[2m",
        [STYLE_WARNING] = "\033[33m", [STYLE_ALARM] = "\033[31m",
    };
    bool is_plain = !output->color || style == STYLE_PLAIN;
    printf("%s%s%s", is_plain ? "" : starts[style], text, is_plain ? "" : "\033[0m");
}

void print_line(struct output *output, enum style style, const char *format, ...) {
    va_list arguments;

    if (output->failed)
        return;
    va_start(arguments, format);
    _cleanup_(freep) char *text = text_format(format, arguments, NULL);
    va_end(arguments);
    output->failed = text == NULL;
    if (text == NULL)
        return;
    print_styled(output, style, text);
    putchar('\n');
}

static bool table_grow(struct table *table) {
    size_t larger = table->size_cells == 0 ? 256 : table->size_cells * 2;
    struct cell *grown = reallocarray(table->cells, larger, sizeof *grown);
    if (grown == NULL)
        return false;
    table->cells = grown;
    table->size_cells = larger;
    return true;
}

void table_add(struct table *table, enum style style, const char *format, ...) {
    struct cell cell = {.style = style};
    va_list arguments;

    if (table->output->failed)
        return;
    va_start(arguments, format);
    if (table->n_cells < table->size_cells || table_grow(table))
        cell.text = text_format(format, arguments, &cell.width);
    va_end(arguments);
    table->output->failed = cell.text == NULL;
    if (cell.text != NULL)
        table->cells[table->n_cells++] = cell;
}

/* The last column's cells are not padded: no blanks at the ends of lines. */
static void print_cell(const struct output *output, const struct cell *cell, size_t width, bool right,
                       bool last) {
    int padding = (int)(width - cell->width);
    if (right)
        printf("%*s", padding, "");
    print_styled(output, cell->style, cell->text);
    if (last)
        putchar('\n');
    else
        printf("%*s", (right ? 0 : padding) + GAP, "");
}

/* Prints the cells of the titles and of all rows, indented. */
static void print_cells(const struct table *table, const struct column *columns, size_t n_columns) {
    _cleanup_(freep) size_t *widths = calloc(n_columns, sizeof *widths);

    assert(table->n_cells % n_columns == 0);
    table->output->failed = widths == NULL;
    if (widths == NULL)
        return;
    for (size_t i = 0; i < table->n_cells; i++)
        if (table->cells[i].width > widths[i % n_columns])
            widths[i % n_columns] = table->cells[i].width;
    for (size_t i = 0; i < table->n_cells; i++) {
        size_t column = i % n_columns;
        if (column == 0)
            printf("%*s", INDENT, "");
        print_cell(table->output, &table->cells[i], widths[column], columns[column].right,
                   column + 1 == n_columns);
    }
}

void table_print(struct output *output, const struct column *columns, size_t n_columns,
                 const struct cJSON *object, const char *key, const char *inner) {
    _cleanup_(table_deinit) struct table table = {.output = output};

    for (size_t i = 0; i < n_columns; i++)
        table_add(&table, STYLE_HEADING, "%s", columns[i].title);
    reply_each(element, object, key) {
        const struct cJSON *row = inner == NULL ? element : reply_first(element, inner);
        for (; row != NULL; row = inner == NULL ? NULL : reply_next(row))
            for (size_t i = 0; i < n_columns; i++)
                columns[i].add(&table, columns[i].of_outer ? element : row, &columns[i]);
    }
    if (!output->failed)
        print_cells(&table, columns, n_columns);
}
