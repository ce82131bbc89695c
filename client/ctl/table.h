/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_TABLE_H
#define CLIENT_CTL_TABLE_H
/*
 * A table for people: cells are collected row by row and printed with every column as wide as its widest
 * cell. The table owns copies of its cells. When memory runs short it remembers that, takes no more cells,
 * and table_print() says so: the calls between need no checks.
 *
 * Invariant: cells come in the columns' order; table_print() is called when the last row is complete.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum style {
    STYLE_PLAIN,
    STYLE_HEADING,
    STYLE_QUIET,   /* there, and of no interest: zeros, what does not apply */
    STYLE_WARNING, /* worth a look */
    STYLE_ALARM,   /* something is wrong */
};

struct column {
    const char *title;
    bool right; /* numbers line up at their right end */
};

struct cell;

struct table {
    const struct column *columns; /* borrowed */
    size_t n_columns;
    struct cell *cells;
    size_t n_cells, size_cells;
    bool failed; /* out of memory */
};

/* columns is borrowed until table_deinit(). */
void table_init(struct table *table, const struct column *columns, size_t n_columns);
void table_deinit(struct table *table);

/* Adds the next cell. The formatted text is passed through text_printable(). */
void table_add(struct table *table, enum style style, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Prints the title row and all rows, indented by two columns. Returns 0 or -ENOMEM. */
int table_print(const struct table *table, FILE *file, bool color);

/* The sequences that start a style and end any; "" without color. */
const char *style_start(enum style style, bool color);
const char *style_end(enum style style, bool color);

#endif
