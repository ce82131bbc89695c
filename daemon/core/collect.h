/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_COLLECT_H
#define DAEMON_CORE_COLLECT_H
/*
 * Collection: polls fences (fence.h) and closes the leases behind those that are ready. Each call polls a
 * bounded number of queues and closes a bounded number of leases; the next call goes on where it ended.
 *
 * A pool that got memory back is marked as ready (pool_mark_ready), so the caller need not ask which pools
 * changed.
 */
#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/types.h"

/* Closes at most that many leases of one queue, or has them wait for the next fence of their withheld parts.
 * Returns how many. The queue's session is ACTIVE. */
unsigned collect_queue(struct fence_queue *queue, unsigned most);

/* Closes leases that a tenant gave back in one pool. Returns whether any lease was closed. */
bool collect_heap(struct tenant_heap *heap);

/* Closes leases that tenants gave back in the pool, if requests wait there. Sets the time of the next poll.
 */
void collect_pool(struct pool *pool, uint64_t now_ns);

/* Whether the tenant may have that many more leases and ranges. If need be, its fences are polled first. */
bool tenant_may_have(struct tenant *tenant, uint64_t leases, uint64_t ranges);

/* Whether the session may have that many more leases by its own limit. If need be, its fences are polled
 * first. */
bool session_has_room(struct session *session, uint64_t count);

/* Whether the session may have that many more leases of one range each. If need be, the fences of the session
 * and of its tenant are polled first. */
bool session_may_lease(struct session *session, uint64_t count);

#endif
