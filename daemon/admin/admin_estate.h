/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_ADMIN_ADMIN_ESTATE_H
#define DAEMON_ADMIN_ADMIN_ESTATE_H
/* The replies about what outlives the daemon. */
#include <cjson/cJSON.h>
#include <stdbool.h>

#include "daemon/admin/admin_terms.h"

struct session;

/* Whether the session goes on after a restart. */
bool estate_keeps(const struct session *session);

/* Adds "estate": what a restart would keep now, and what it would not. */
void report_estate(cJSON *reply, const struct admin_terms *terms);

/* Why there is no estate, and what to do; NULL: there is one. A constant text. */
const char *estate_missing(const struct admin_terms *terms);

#endif
