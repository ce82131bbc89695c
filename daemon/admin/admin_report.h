/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_ADMIN_ADMIN_REPORT_H
#define DAEMON_ADMIN_ADMIN_REPORT_H
/*
 * The parts of administrative replies: the daemon, its pools, its sessions and its users, as members
 * of a JSON object. docs/schema describes each. In the daemon, only the files of this folder use cJSON.
 *
 * Reads the core and changes nothing. cJSON leaves members out where there is no memory, as it does
 * everywhere.
 */
#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/core/tenant_id.h"

struct core;
struct admin_terms;
struct quota;
struct scope;
struct session;

/* Adds an integer; from 2^53 on it is shown as 2^53. */
void report_integer(cJSON *object, const char *key, uint64_t integer);

/* Adds an integer, or null where there is none. */
void report_optional(cJSON *object, const char *key, bool is_there, uint64_t integer);

/* Adds a string, or null where it is NULL. */
void report_string(cJSON *object, const char *key, const char *string);

/* Whether a user is told details of a tenant's processes. Those of a scope are told to operators alone. */
bool report_may_tell(uid_t uid, struct tenant_id owner);

/* A process's number for a reply; 0: it is not seen from the daemon's PID namespace. */
uint64_t report_pid(pid_t pid);

/* The state of a session that published or made something; NULL: it has ended. */
const char *report_state_word(const struct session *session);

/* Adds "session", "pid", "uid" and "command" of a session's process. */
void report_process(cJSON *object, const struct session *session);

/* Adds "daemon"; brief: what ping tells. */
void report_daemon(cJSON *reply, const struct admin_terms *terms, bool brief);

/* Adds "pools". */
void report_pools(cJSON *reply, const struct core *core);

/* Adds "sessions": all, or those in quarantine. uid: the user who asked. Only root, the daemon's own user and
 * the session's user are told what a session has of each pool, and what it waits for. */
void report_sessions(cJSON *reply, const struct core *core, uid_t uid, bool quarantined_only);

/* Adds "parcels", no more than 256, in no order, and "total". Each
 * is told to root, the daemon's own user and its own user; others see no more than that there are some. Parts
 * of editions are names' (admin_names.h). */
void report_parcels(cJSON *reply, const struct core *core, uid_t uid);

/* Adds "leases", the oldest of each session first, no more than 512, and "total". session_id: of this
 * session; 0: of all. Told as parcels are. */
void report_leases(cJSON *reply, const struct core *core, uid_t uid, uint64_t session_id);

/* Adds "blocks": those that several sessions have, or that are shared, no more than 256, and "is_whole":
 * whether these are all. Told as parcels are. */
void report_sharing(cJSON *reply, const struct core *core, uid_t uid);

/* Adds "quotas". */
void report_quotas(cJSON *reply, const struct core *core);

/* Adds the uses of a quota, each with its limit, and "pools". */
void report_use(cJSON *object, const struct core *core, const struct quota *quota);

/* Adds "scope": its name, or null for the ordinary one (NULL). */
void report_scope_name(cJSON *object, const struct scope *scope);

#endif
