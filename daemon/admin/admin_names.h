/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_ADMIN_ADMIN_NAMES_H
#define DAEMON_ADMIN_ADMIN_NAMES_H
/* Names as parts of administrative replies, and their end by an operator's command or their user's. */
#include <cjson/cJSON.h>
#include <sys/types.h>

#include "daemon/core/tenant_id.h"

struct core;

/* Adds "names", the oldest of each user first, no more than 256, and "total". uid: the user who asked, who is
 * told of names as report_may_tell() says. */
void report_names(cJSON *reply, const struct core *core, uid_t uid);

/* Has a name of the owner's stand for nothing any more, and adds what it stood for. Returns 0, or
 * PROTO_E_NO_NAME: nothing is published under it. */
int names_unpublish(cJSON *reply, struct core *core, uid_t asker, struct tenant_id owner, const char *text);

#endif
