/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_RECORD_NAMES_H
#define CLIENT_CTL_RECORD_NAMES_H
/* The names of the sessions and scopes that records are of: other records tell them. Zeroed: none is known. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/ctl/sorted.h"
#include "proto/records.h"

struct records;

/* Of a number. */
#define RECORD_SCOPE_SIZE 12u

struct record_names {
    struct sorted sorted; /* struct record_name */
};

/* Whether a record holds a name instead of numbers: a session's, a scope's, or the name of what was published. */
bool record_has_name(const struct proto_record *record);

/* Learns from a record, whether or not it is shown. A daemon's start begins all numbers anew. */
void record_names_learn(struct record_names *names, const struct proto_record *record);

/* Learns from all records that are there. */
void record_names_learn_all(struct record_names *names, const struct records *records);

/* The name of a session. NULL: it is not known. */
const char *record_names_session(const struct record_names *names, uint64_t session);

/* The name of a scope, or its number. */
const char *record_names_scope(const struct record_names *names, unsigned scope,
                               char text[RECORD_SCOPE_SIZE]);

/* Prints a name as JSON's strings are. It may be cut within a character, or no UTF-8. */
void record_names_print_json(const char *name);

void record_names_deinit(struct record_names *names);

#endif
