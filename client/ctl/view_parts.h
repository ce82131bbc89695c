/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_VIEW_PARTS_H
#define CLIENT_CTL_VIEW_PARTS_H
/* The cells that several views have, and the part that two views share. */
#include "client/ctl/table.h"

/* Whether a pool of this state lends nothing. */
bool state_is_closed(const char *state);

/* A number as it is. */
void add_number(struct table *table, const struct cJSON *row, const struct column *column);

/* A user, by name and number. */
void add_user(struct table *table, const struct cJSON *row, const struct column *column);

/* Sizes and counts. Zeros are quiet, whatever the style. */
void add_bytes(struct table *table, const struct cJSON *row, const struct column *column);
void add_count(struct table *table, const struct cJSON *row, const struct column *column);

/* A time, a share or a text; "-" where it is null, or the text is empty. */
void add_time(struct table *table, const struct cJSON *row, const struct column *column);
void add_share(struct table *table, const struct cJSON *row, const struct column *column);
void add_text(struct table *table, const struct cJSON *row, const struct column *column);

/* A word of a reply, and the words for people. */
struct wording {
    const char *word, *words;
};

/* The words for a word; the word itself where it is not known: a newer daemon's. */
const char *find_words(const struct wording *known, size_t count, const char *word);

/* The thing that a waiting request waits for, in words, by the reply's "reason". */
const char *waiting_words(const char *reason);

/* The state of a pool or session. */
void add_state(struct table *table, const struct cJSON *row, const struct column *column);

/* The two tables of pools that stats and pools begin with; a line where there are no pools. */
void view_pools_short(struct output *output, const struct cJSON *reply);

#endif
