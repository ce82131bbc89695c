/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_RECORD_WORDS_H
#define CLIENT_CTL_RECORD_WORDS_H
/* Refusals in words, as records tell them. */
#include <stdio.h>

#include "proto/records.h"

/* Prints why something was refused: a record's reason and detail. The words have no character that HTML would
 * take for markup, but for an apostrophe. */
void record_words_why(FILE *stream, unsigned reason, unsigned detail);

/* Prints a record of a refusal as a sentence without its full stop. */
void record_words_refusal(FILE *stream, const struct proto_record *record);

#endif
