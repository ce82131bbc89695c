/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_TENANT_H
#define DAEMON_CORE_TENANT_H
/*
 * A tenant: a user (uid) of a scope, with all of that user's sessions there. It exists while it has
 * sessions, segments or undelivered replies. In each pool that it uses it has a heap: the range allocator
 * over the segments that belong to it. Its quota counts what it uses, and limits it.
 *
 * A heap has two wait queues (wait_queue.h): `waiting` for room in the pool, and `held` for the tenant's
 * own quota. Requests of other tenants do not wait behind held ones.
 */
#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/types.h"

/* Finds a tenant. NULL: there is none. */
struct tenant *tenant_find(struct core *core, struct tenant_id id);

/* Finds a tenant, or makes it. Returns 0; -ENOMEM; or -ESRCH: its scope is gone. The tenant is owned by the
 * core. */
int tenant_get(struct core *core, struct tenant_id id, struct tenant **ret_tenant);

/* Drops the tenant if it has neither sessions nor segments nor undelivered replies. */
void tenant_drop_if_unused(struct tenant *tenant);

/* Finds the tenant's heap in a pool. NULL: it has none. */
struct tenant_heap *tenant_heap_find(struct tenant *tenant, struct pool *pool);

/* Finds the tenant's heap in a pool, or makes it. Returns 0 or -ENOMEM; the tenant owns the heap to its end.
 */
int tenant_heap_get(struct tenant *tenant, struct pool *pool, struct tenant_heap **ret_heap);

/* The bytes of the tenant, or of all members of its account, in the pool: leased, fenced, in quarantine, or
 * to be closed by its processes. */
uint64_t tenant_bytes(const struct tenant *tenant, const struct pool *pool);

/* Gives an unassigned segment to the tenant, which is charged for it; whether it may have one more is the
 * caller's to ask before. Returns 0 or -ENOMEM. */
int tenant_adopt(struct tenant *tenant, struct segment *segment);

/* Takes a segment of which no range is taken from its tenant. The segment is unassigned then. */
void tenant_disown(struct segment *segment);

/* Takes the tenant's limits from the core's policy, by its sessions and a peer that joins them (NULL: none).
 * Pools where its requests wait for a quota are to be served afterwards. */
void tenant_apply_policy(struct tenant *tenant, const struct peer *joining);

/* Counts something that was refused for a quota. */
void tenant_note_refusal(struct tenant *tenant);

/* Whether the quota leaves that many bytes of the pool, rounded up to the heap's granule. */
bool tenant_may_take(const struct tenant *tenant, const struct pool *pool, uint64_t size_bytes);

/* Whether the quota would leave that many bytes of the pool if the tenant had nothing there. */
bool tenant_may_ever_take(const struct tenant *tenant, const struct pool *pool, uint64_t size_bytes);

#endif
