/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_TABLE_H
#define CLIENT_CTL_TABLE_H
/*
 * The output of a view, on standard output: lines of text, and tables of a reply's arrays. A column of a
 * table has a title, the key of the member that it shows, and a function that adds the cell of a row. Each
 * column is as wide as its widest cell.
 *
 * Where the output has a width, it is kept. A table that is wider is printed in parts, one below the other.
 * Each part begins with the columns that tell which row it is: those of the outer object and the first of the
 * row's own. Numbers are whole. A name is cut, and a sentence is broken at a blank.
 *
 * When memory runs short, the output remembers that and prints no more: the calls between need no checks.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/array.h"
#include "client/ctl/json.h"

enum style {
    STYLE_PLAIN,
    STYLE_HEADING,
    STYLE_QUIET,   /* there, and of no interest: zeros, what does not apply */
    STYLE_WARNING, /* worth a look */
    STYLE_ALARM,   /* something is wrong */
};

#define WIDTH_ANY SIZE_MAX

struct output {
    bool color;
    bool failed;  /* out of memory */
    size_t width; /* columns of a line; WIDTH_ANY: as many as there are */
};

struct table;

/* The treatment of a cell for which a line has no room. */
enum fit {
    FIT_WHOLE,
    FIT_CUT,  /* a name: its end is left out */
    FIT_WRAP, /* a sentence, in the last column: it goes on below */
};

struct column {
    const char *title;
    bool right; /* numbers line up at their right end */
    void (*add)(struct table *table, const struct cJSON *row, const struct column *column);
    const char *key;
    enum style style;
    bool of_outer; /* row is the element that the row's array belongs to */
    enum fit fit;
    bool joined; /* to the column before it, of which it tells more: both are in one part, where a line has
                    room */
};

/* Prints a line in a style, and more lines, which are indented by two columns more, where it is longer than
 * the output is wide. The formatted text is passed through text_printable(). */
void print_line(struct output *output, enum style style, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Prints the title row and a row for each element of the array at key; with an inner key, for each element of
 * each element's array there. */
#define print_table(output, columns, object, key, inner)                                                     \
    table_print(output, columns, ARRAY_LENGTH(columns), object, key, inner)
void table_print(struct output *output, const struct column *columns, size_t n_columns,
                 const struct cJSON *object, const char *key, const char *inner);

/* For a column's function: adds the cell. The formatted text is passed through text_printable(). */
void table_add(struct table *table, enum style style, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
