/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_ADMIN_ADMIN_JSON_H
#define DAEMON_ADMIN_ADMIN_JSON_H
/*
 * The administrative commands, as a table: from a line of JSON to a line of JSON. docs/schema has a JSON
 * schema for each reply; admin_report.h writes what they consist of.
 *
 * cJSON is lenient (leading zeros, bad UTF-8, duplicate keys, any depth, 40 bytes of heap a byte of input),
 * so a line is scanned before it is parsed, and only known keys of the right type are accepted.
 */
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct admin_terms;

struct reload_outcome;

/* The reply of a reload, which the caller has to begin: admin_json_reloaded() gives the line when it is over.
 */
extern char admin_json_later[];

/* Carries a request out for a user. Returns the reply with its newline, owned by the caller;
 * admin_json_later; NULL without memory. */
char *admin_json_answer(const struct admin_terms *terms, uid_t uid, const char *line, size_t size);

/* The reply of a reload that is over, owned by the caller; NULL without memory. */
char *admin_json_reloaded(const struct admin_terms *terms, const struct reload_outcome *outcome);

/* Whether the user may do what is for operators: root, or the daemon's own user. */
bool admin_is_operator(uid_t uid);

/* {"error":{"code":…,"message":…}} and a newline. */
char *admin_json_error(const char *code, const char *message);

#endif
