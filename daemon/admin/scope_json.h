/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_ADMIN_SCOPE_JSON_H
#define DAEMON_ADMIN_SCOPE_JSON_H
/* Scopes as JSON: what an operator asks for, and what lies beside a scope's socket for the next daemon. */
#include <stdbool.h>

#include "daemon/data/scopes.h"

struct cJSON;

/* The members of a scope. uids, quota, labels: NULL: none given. */
struct scope_members {
    const char *name;
    const struct cJSON *uids, *quota, *labels;
};

typedef int scope_json_change(struct scopes *scopes, const struct scope_members *members,
                              struct scope **ret_scope, char why[SCOPES_TEXT_SIZE]);

/* Makes a scope. Returns 0, or a negative errno and why: -EINVAL for what the members say, -EEXIST: there is
 * a scope of this name, else the system's. */
scope_json_change scope_json_add;

/* Gives an open scope the members that are given in place of those that it has. As scope_json_add(); -ENOENT:
 * there is none of this name. */
scope_json_change scope_json_set;

/* Makes those scopes again that lie in the directory. A file that does not check out is told in the log, and
 * left alone. */
void scope_json_restore(struct scopes *scopes);

/* Adds the members of a scope. */
void report_scope(struct cJSON *object, const struct scope *scope);

/* Adds "scopes": each with what all of its users use together. */
void report_scopes(struct cJSON *reply, const struct core *core);

#endif
