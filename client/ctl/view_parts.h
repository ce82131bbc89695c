/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_VIEW_PARTS_H
#define CLIENT_CTL_VIEW_PARTS_H
/*
 * What the views of pools and sessions share: lines, and cells for sizes, counts, shares and states.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "client/ctl/json.h"
#include "client/ctl/table.h"

#define ARRAY_LENGTH(array) (sizeof(array) / sizeof *(array))

/* Prints a line in a style; what the format makes is passed through text_printable(). 0 or -ENOMEM. */
int print_line(FILE *file, bool color, enum style style, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Whether a pool of this state lends nothing. */
bool state_is_closed(const char *state);

/* Zeros are quiet, whatever the style. */
void add_bytes(struct table *table, uint64_t bytes, enum style style);
void add_count(struct table *table, uint64_t count, enum style style);
/* A time; "-" where it is REPLY_NULL. */
void add_time(struct table *table, uint64_t time_ns, enum style style);
/* A share of something that may not be known. */
void add_share(struct table *table, double share);
void add_state(struct table *table, const char *state);

/* The two tables of pools that stats and pools begin with; a line where there are no pools. 0 or -ENOMEM. */
int view_pools_short(const struct reply *reply, FILE *file, bool color);

#endif
