/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_VIEW_PARTS_H
#define CLIENT_CTL_VIEW_PARTS_H
/*
 * Tables of a reply's arrays, as rows of columns: each column has a title, the key of the member that it
 * shows, and a function that adds the cell. Also lines of text.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "client/ctl/json.h"
#include "client/ctl/table.h"

#define ARRAY_LENGTH(array) (sizeof(array) / sizeof *(array))

/* A column of a view. add() adds the cell of one row. */
struct view_column {
    struct column column;
    void (*add)(struct table *table, const struct cJSON *row, const struct view_column *column);
    const char *key;
    enum style style;
    bool of_outer; /* row is the element that the row's array belongs to */
};

#define VIEW_COLUMNS_MAX 16u

/* Prints a row for each element of the array at key; with an inner key, for each element of each element's
 * array there. Returns 0 or -ENOMEM. */
int view_table(FILE *file, bool color, const struct view_column *columns, size_t n_columns,
               const struct cJSON *object, const char *key, const char *inner);

/* Prints a line in a style. The formatted text is passed through text_printable(). 0 or -ENOMEM. */
int print_line(FILE *file, bool color, enum style style, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Whether a pool of this state lends nothing. */
bool state_is_closed(const char *state);

/* A number as it is. */
void add_number(struct table *table, const struct cJSON *row, const struct view_column *column);

/* Sizes and counts. Zeros are quiet, whatever the style. */
void add_bytes(struct table *table, const struct cJSON *row, const struct view_column *column);
void add_count(struct table *table, const struct cJSON *row, const struct view_column *column);

/* A time, a share or a text; "-" where it is null, or the text is empty. */
void add_time(struct table *table, const struct cJSON *row, const struct view_column *column);
void add_share(struct table *table, const struct cJSON *row, const struct view_column *column);
void add_text(struct table *table, const struct cJSON *row, const struct view_column *column);

/* The state of a pool or session. */
void add_state(struct table *table, const struct cJSON *row, const struct view_column *column);

/* The two tables of pools that stats and pools begin with; a line where there are no pools. 0 or -ENOMEM. */
int view_pools_short(const struct cJSON *reply, FILE *file, bool color);

#endif
