/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_ADMIN_ADMIN_CONFIG_H
#define DAEMON_ADMIN_ADMIN_CONFIG_H
/*
 * The configuration as a part of administrative replies (docs/schema/config.json): each key, its value, the
 * origin of the value, and what the daemon made of it. Reads and changes nothing.
 */
#include <cjson/cJSON.h>

struct daemon;

/* Adds "file", "settings" and "pools". */
void report_config(cJSON *reply, const struct daemon *daemon);

/* Adds the origin of a value: "source" and "line". line: as config_line() returns it. */
void report_origin(cJSON *object, int line);

#endif
