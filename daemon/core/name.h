/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_NAME_H
#define DAEMON_CORE_NAME_H
/*
 * A name of a tenant's: a text that stands for an edition (edition.h), or that a session is to publish an
 * edition under, or that sessions wait for. Or it stands for a channel (channel.h), and for no edition then. It lives while one of these holds.
 *
 * At most one session builds a name: the first one that asked to, while nothing was published. With the
 * builder's end, or when it gives up, the next session that waits to build does. Any session of
 * the tenant may publish, also while another one builds. The edition before is replaced.
 */
#include "daemon/core/types.h"

/* The tenant's name of this text. NULL: there is none. */
struct name *name_find(const struct tenant *tenant, const char *text);

/* Finds the name, or makes it. Returns 0, PROTO_E_LIMIT (NAMES_MAX) or -ENOMEM. */
int name_get(struct tenant *tenant, const char *text, struct name **ret_name);

/* Drops the name if it stands for nothing, and no session builds it or waits for it. */
void name_drop_if_unused(struct name *name);

/* The name stands for this edition from now on, and for the one before no more. NULL: for nothing. The caller
 * serves those that wait. */
void name_set_edition(struct name *name, struct edition *edition);

/* NULL: no session builds it any more. */
void name_set_builder(struct name *name, struct session *session);

/* The first of the tenant's names whose id is larger. NULL: there is none. */
struct name *name_after(const struct tenant *tenant, uint64_t id);

/* For heir.h. Makes a name with the id that a predecessor gave it. Returns 0, -ENOMEM, or -EBADMSG: there is
 * one of this id or text. */
int name_restore(struct tenant *tenant, const char *text, uint64_t id, struct name **ret_name);

/* Whether the tenant's names are in order. Adds what they keep and what sessions wait for to the sums. */
bool names_are_valid(const struct tenant *tenant, uint64_t *sums);

#endif
