/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_POOL_TENANT_H
#define DAEMON_POOL_TENANT_H
/*
 * A tenant: one uid. It exists while it has sessions or segments. In each pool that it uses it has a heap:
 * the range allocator over the segments that belong to it.
 */
#include <stdint.h>
#include <sys/types.h>

#include "base/list.h"
#include "heap/heap.h"

struct core;
struct pool;
struct segment;

struct tenant {
    struct core *core;
    uid_t uid;
    unsigned sessions;
    struct list heaps; /* struct tenant_heap.tenant_link */
    struct list link;  /* in core->tenants */
};

struct tenant_heap {
    struct tenant *tenant;
    struct pool *pool;
    unsigned segments;
    struct heap heap;
    struct list fenced; /* fence_queue.heap_link: those that have something in them, in turns */
    struct list tenant_link, pool_link;
};

/* Finds the tenant of a uid, or makes it. Returns 0 or -ENOMEM; the tenant is owned by the core. */
int tenant_get(struct core *core, uid_t uid, struct tenant **ret_tenant);

/* Drops the tenant if it has neither sessions nor segments. */
void tenant_drop_if_unused(struct tenant *tenant);

/* NULL when the tenant has nothing in the pool. */
struct tenant_heap *tenant_heap_find(struct tenant *tenant, struct pool *pool);

/* Gives an unassigned segment to the tenant. Returns 0 or -ENOMEM. */
int tenant_adopt(struct tenant *tenant, struct segment *segment);

/* Takes an idle segment away from its tenant, which makes it unassigned. */
void tenant_disown(struct segment *segment);

#endif
