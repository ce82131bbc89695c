/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_SCOPE_H
#define DAEMON_CORE_SCOPE_H
/*
 * A scope: a socket of its own, for one pod or job. Its users are tenants of their own, apart from users of
 * the same numbers elsewhere. In a container a process can take any uid, so that a limit for each user is
 * none for the container: an account (account.h) counts what all users of a scope have together. A limit of
 * the scope takes the place of that of each of its users.
 *
 *   OPEN --scope_drop--> DROPPED (no session begins) --its last tenant is gone--> gone
 *
 * The ordinary socket has no object here: its number is SCOPE_ORDINARY.
 *
 * Made and dropped by the shell, owned by the core.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/core/types.h"

/* The number that the next scope gets which wants none. */
uint32_t scope_next_id(const struct core *core);

/* Adds a scope; the terms are copied. No other scope has the name. Returns 0, -ENOMEM, or -ENOSPC: there are
 * SCOPES_MAX. */
int scope_add(struct core *core, const struct scope_terms *terms, struct scope **ret_scope);

/* Whether a user may come in. */
bool scope_admits(const struct scope *scope, uid_t uid);

/* Finds a scope. NULL: there is none, or it is the ordinary one. */
struct scope *scope_find(const struct core *core, uint32_t id);
struct scope *scope_find_name(const struct core *core, const char *name);

/* No session begins in it from now on. Frees it, if no tenant is left, and otherwise with the last one. */
void scope_drop(struct scope *scope);

/* "user 1000", or "user 0 of scope 'trainer'"; TENANT_TEXT() is as BYTES_TEXT(). Returns text. */
const char *scope_tenant_text(const struct core *core, struct tenant_id id, char *text, size_t size);
#define TENANT_TEXT_SIZE      (SCOPE_NAME_SIZE + 32u)
#define TENANT_TEXT(core, id) scope_tenant_text((core), (id), (char[TENANT_TEXT_SIZE]){0}, TENANT_TEXT_SIZE)

/* A tenant of the scope has come, or is gone. NULL: the ordinary one. */
void scope_join(struct scope *scope);
void scope_leave(struct scope *scope);

#endif
