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

/* A column that may be cut or broken keeps this much at least, where it is not narrower by itself. */
#define FIT_COLUMNS_MIN 20u

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

/* Prints so many bytes of a text between the sequences that start its style and end any. */
static void print_styled(const struct output *output, enum style style, const char *text, size_t length) {
    static const char *const starts[] = {
        [STYLE_PLAIN] = "",           [STYLE_HEADING] = "\033[1m", [STYLE_QUIET] = "\033[2m",
        [STYLE_WARNING] = "\033[33m", [STYLE_ALARM] = "\033[31m",
    };
    bool is_plain = !output->color || style == STYLE_PLAIN;
    printf("%s%.*s%s", is_plain ? "" : starts[style], (int)length, text, is_plain ? "" : "\033[0m");
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
    size_t indent = strspn(text, " ");
    const char *rest = text;
    do {
        size_t left = rest == text ? 0 : indent + INDENT;
        size_t length = text_line(rest, output->width > left ? output->width - left : 1, NULL);
        printf("%*s", (int)left, "");
        print_styled(output, style, rest, length);
        putchar('\n');
        rest = text_next_line(rest, length);
    } while (*rest != '\0');
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

/* A part of a table: the columns that tell the row, and a run of others. */
struct part {
    const struct table *table;
    const struct column *columns;
    size_t n_columns, n_keys;
    size_t begin, end; /* of the run */
    size_t *widths;    /* of all columns; that of the run's last one may be less than its cells' */
};

static size_t part_next(const struct part *part, size_t column) {
    return column + 1 == part->n_keys && part->begin > part->n_keys ? part->begin : column + 1;
}

/* Prints the lines of a sentence, the first of which begins at a column where the cursor is. */
static void print_wrapped(const struct output *output, const struct cell *cell, size_t at, size_t width) {
    const char *rest = cell->text;

    for (;;) {
        size_t length = text_line(rest, width, NULL);
        print_styled(output, cell->style, rest, length);
        putchar('\n');
        rest = text_next_line(rest, length);
        if (*rest == '\0')
            return;
        printf("%*s", (int)at, "");
    }
}

static void print_cell(const struct part *part, const struct cell *cell, size_t column, size_t at) {
    const struct column *is = &part->columns[column];
    struct output *output = part->table->output;
    _cleanup_(freep) char *cut = NULL;
    const char *text = cell->text;
    size_t width = cell->width, room = part->widths[column];

    if (width > room && is->fit == FIT_WRAP) {
        print_wrapped(output, cell, at, room);
        return;
    }
    if (width > room && is->fit == FIT_CUT) {
        text = cut = text_cut(cell->text, room, &width);
        output->failed |= cut == NULL;
        if (cut == NULL)
            return;
    }
    int padding = width < room ? (int)(room - width) : 0;
    if (is->right)
        printf("%*s", padding, "");
    print_styled(output, cell->style, text, strlen(text));
    if (part_next(part, column) == part->end) /* not padded: no blanks at the ends of lines */
        putchar('\n');
    else
        printf("%*s", (is->right ? 0 : padding) + GAP, "");
}

static void print_part(const struct part *part) {
    const struct table *table = part->table;

    for (size_t row = 0; row < table->n_cells && !table->output->failed; row += part->n_columns) {
        size_t at = INDENT;
        printf("%*s", INDENT, "");
        for (size_t i = 0; i < part->end; i = part_next(part, i)) {
            print_cell(part, &table->cells[row + i], i, at);
            at += part->widths[i] + GAP;
        }
    }
}

/* The first column of the group to which the column at part->end is joined; part->end itself where the part
 * would have no column then: a line has no room for the group. */
static size_t group_begin(const struct part *part) {
    size_t begin = part->end;

    while (begin > part->begin && part->columns[begin].joined)
        begin--;
    return begin > part->begin ? begin : part->end;
}

/* Takes the columns from part->begin on for which a line has room, at least one. The last one is made
 * narrower where it may be. */
static void part_fill(struct part *part) {
    size_t width = part->table->output->width, used = INDENT;

    for (size_t i = 0; i < part->n_keys; i++)
        used += part->widths[i] + GAP;
    for (part->end = part->begin; part->end < part->n_columns; part->end++) {
        size_t *own = &part->widths[part->end], room = width > used ? width - used : 0;
        if (*own > room && part->columns[part->end].fit != FIT_WHOLE &&
            (room >= FIT_COLUMNS_MIN || part->end == part->begin)) {
            size_t least = *own < FIT_COLUMNS_MIN ? *own : FIT_COLUMNS_MIN;
            *own = room > least ? room : least;
            part->end++;
            return;
        }
        if (*own > room && part->end > part->begin) {
            part->end = group_begin(part);
            return;
        }
        used += *own + GAP;
    }
}

/* How many columns tell which row it is. */
static size_t key_columns(const struct column *columns, size_t n_columns) {
    size_t n = 0;

    while (n < n_columns && columns[n].of_outer)
        n++;
    return n < n_columns ? n + 1 : n;
}

/* Prints the cells of the titles and of all rows, indented. */
static void print_cells(const struct table *table, const struct column *columns, size_t n_columns) {
    _cleanup_(freep) size_t *widths = calloc(n_columns, sizeof *widths);
    struct part part = {table, columns, n_columns, key_columns(columns, n_columns), 0, 0, widths};

    assert(table->n_cells % n_columns == 0);
    table->output->failed = widths == NULL;
    if (widths == NULL)
        return;
    for (size_t i = 0; i < table->n_cells; i++)
        if (table->cells[i].width > widths[i % n_columns])
            widths[i % n_columns] = table->cells[i].width;
    part.begin = part.n_keys;
    do {
        if (part.begin > part.n_keys)
            putchar('\n');
        part_fill(&part);
        print_part(&part);
        part.begin = part.end;
    } while (part.begin < n_columns && !table->output->failed);
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
