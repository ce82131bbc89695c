/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_TENANT_H
#define DAEMON_CORE_TENANT_H
/*
 * A tenant: one uid. It exists while it has sessions, segments or undelivered replies. In each pool that it
 * uses it has a heap: the range allocator over the segments that belong to it. What it uses and may use is in
 * its quota.
 *
 * A request for more than its quota leaves is held: it waits in a queue of its own (wait_queue.h), where
 * nobody else waits behind it, until memory of the tenant comes back or the quota is raised.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/list.h"
#include "daemon/core/wait_queue.h"
#include "daemon/core/quota.h"
#include "heap/heap.h"

struct core;
struct peer;
struct pool;
struct request;
struct segment;

struct tenant {
    struct core *core;
    uid_t uid;
    unsigned sessions;
    struct quota quota;
    struct list heaps; /* struct tenant_heap.tenant_link */
    struct list undelivered; /* struct undelivered.link */
    unsigned n_undelivered;
    struct list link; /* in core->tenants */
};

struct tenant_heap {
    struct tenant *tenant;
    struct pool *pool;
    unsigned segments;
    struct heap heap;
    struct list fenced;  /* fence_queue.heap_link: those that have something in them, in turns */
    struct wait_queue waiting; /* those that wait for room in the pool */
    struct wait_queue held;    /* those that wait for the tenant's quota */
    uint64_t served;     /* the round (pool->rounds) in which nobody more of waiting could be served */
    uint64_t reclaim_ns; /* the tenant's sessions are not asked for its quota's sake before */
    bool reclaim_owed;   /* …but then, for one who did not wait */
    struct list tenant_link, pool_link;
    struct list waiting_link; /* in pool->wait_queues while anybody waits for room */
    struct list pressed_link; /* in pool->pressed while something is held or owed */
};

/* Finds the tenant of a uid. NULL: there is none. */
struct tenant *tenant_find(struct core *core, uid_t uid);

/* Finds the tenant of a uid, or makes it. Returns 0 or -ENOMEM; the tenant is owned by the core. */
int tenant_get(struct core *core, uid_t uid, struct tenant **ret_tenant);

/* Drops the tenant if it has neither sessions nor segments nor undelivered replies. */
void tenant_drop_if_unused(struct tenant *tenant);

/* NULL when the tenant has nothing in the pool, and never waited there. / Makes it then. Returns 0 or
 * -ENOMEM; the heap is the tenant's, to its end. */
struct tenant_heap *tenant_heap_find(struct tenant *tenant, struct pool *pool);
int tenant_heap_get(struct tenant *tenant, struct pool *pool, struct tenant_heap **ret_heap);

/* What the tenant has of the pool: leased, fenced, in quarantine, or to be closed by its processes. */
uint64_t tenant_bytes(const struct tenant *tenant, const struct pool *pool);

/* Whether of two whose requests wait for room in one pool the former's come first: it has fewer bytes there,
 * or as many and came first. */
bool tenant_comes_before(const struct tenant_heap *heap, const struct tenant_heap *other);

/* Gives an unassigned segment to the tenant. Returns 0 or -ENOMEM. */
int tenant_adopt(struct tenant *tenant, struct segment *segment);

/* Takes its limits from the core's policy, by its sessions and one that joins them (NULL: none). Those that
 * wait for a quota that was raised are to be served afterwards. */
void tenant_apply_policy(struct tenant *tenant, const struct peer *joining);

/* Whether so many bytes more of the pool, in blocks of the heap's granule, are within its quota. */
bool tenant_may_take(const struct tenant *tenant, const struct pool *pool, uint64_t size_bytes);

/* Whether they are within what it may have at all. */
bool tenant_may_ever_take(const struct tenant *tenant, const struct pool *pool, uint64_t size_bytes);

/* Whether the tenant may have one more lease, if need be after a look at what it has behind fences. */
bool tenant_may_lease(struct tenant *tenant);

/* Writes which quota it is, how much of it is used and what it is, and who can raise it. */
void tenant_explain_quota(const struct tenant *tenant, unsigned item, char *text, size_t size);

/* Writes that a request is larger than the quota of an item of a pool. To release something would not help.
 */
void tenant_explain_beyond_quota(const struct tenant *tenant, unsigned item, char *text, size_t size);

/* Takes a segment of which nothing is taken away from its tenant, which makes it unassigned. */
void tenant_disown(struct segment *segment);

#endif
