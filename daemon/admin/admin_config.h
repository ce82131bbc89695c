/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_ADMIN_ADMIN_CONFIG_H
#define DAEMON_ADMIN_ADMIN_CONFIG_H
/*
 * The configuration as a part of administrative replies (docs/schema/config.json): each key, its value, the
 * origin of the value, and what the daemon made of it. Reads and changes nothing.
 */
#include <cjson/cJSON.h>

struct admin_terms;
struct reload_outcome;

/* Adds "file", "settings" and "pools". */
void report_config(cJSON *reply, const struct admin_terms *terms);

/* Adds what came of a reload (docs/schema/reload.json). */
void report_reload(cJSON *reply, const struct admin_terms *terms, const struct reload_outcome *outcome);

#endif
