/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_UNDELIVERED_H
#define DAEMON_CORE_UNDELIVERED_H
/*
 * Undelivered replies: bytes that a connection left in its client's socket when it ended. They take the
 * kernel's memory, which is counted as the daemon's, and descriptors in them count against the daemon's
 * RLIMIT_NOFILE, until the client reads them or closes its socket.
 *
 *   empty --undelivered_open--> charged --undelivered_close--> empty
 *
 * The tenant pays for the bytes with its quota of replies. It has core->undelivered_limit such sockets at
 * most: with as many, it opens no session. The tenant exists until all of them are closed.
 *
 * Embedded in what the shell has for the socket.
 */
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "daemon/core/quota.h"
#include "daemon/core/tenant_id.h"

struct core;
struct tenant;

struct undelivered {
    struct tenant *tenant; /* NULL: empty */
    struct charge charge;  /* bytes of replies */
    struct list link;      /* in tenant->undelivered */
};

/* Charges the tenant for bytes that one more socket holds, beyond the quota if need be. Returns 0, or a
 * negative errno (tenant_get). */
int undelivered_open(struct undelivered *undelivered, struct core *core, struct tenant_id id, uint64_t bytes);

/* The client has read some: so many bytes are left, no more than before. */
void undelivered_shrink(struct undelivered *undelivered, uint64_t bytes);

/* Nothing is left. Accepts an empty one. */
void undelivered_close(struct undelivered *undelivered);

/* Whether the tenant has so many such sockets, or such bytes, that it may open no session. */
bool undelivered_is_too_much(const struct tenant *tenant);

#endif
