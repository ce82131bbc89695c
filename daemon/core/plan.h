/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_PLAN_H
#define DAEMON_CORE_PLAN_H
/*
 * The plan of a pool: where memory for waiting requests comes from when none is free. The sources, in order:
 *
 * 1. Growth: the shell makes a segment. One growth is under way at a time.
 * 2. Retirement: idle segments go back to the driver, and make room for growth.
 * 3. Reclaim: sessions are asked for memory that they keep idle.
 *
 * Growth ahead of demand: after a lease, the pool grows when the lease's tenant could get less than the
 * low-water mark without growth. It grows ahead only while something is leased, only into room that the limit
 * leaves, and never at the cost of other tenants' segments. After the driver refused a growth, the pool does
 * not grow ahead for AHEAD_RETRY_NS; no request is refused for that.
 *
 * Reclaim: when neither growth nor retirement can serve the oldest request, the pool is stuck. It then begins
 * a shortage: it asks the sessions that want to be asked, and marks itself in their pages, so that they keep
 * nothing idle. It asks again after RECLAIM_INTERVAL_NS while it is stuck and requests wait. Memory that
 * comes back as ranges serves every session of its tenant. Segments are closed only where ranges are not
 * enough (closing.h).
 *
 * A pool that drains (pool.h) does not grow. It retires what is idle, is short all the time, and asks sessions
 * each DRAIN_INTERVAL_NS for all that they keep idle, segments too.
 */
#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/types.h"

/* Decides on growth or retirement. With waiting requests: grows for the first one, in serving order, for
 * which the pool has room; else retires idle segments for the first one for which that is enough. Without:
 * grows towards the reserve, or ahead of demand. */
void plan_growth(struct pool *pool, uint64_t now_ns);

/* Grows ahead of demand. No request waits. */
void plan_growth_ahead(struct pool *pool, uint64_t now_ns);

/* Determines whether the pool is stuck, and asks sessions for idle memory where that is due. */
void plan_reclaim(struct pool *pool, uint64_t now_ns);

/* When plan_reclaim() has sessions to ask again; NS_FOREVER: never. */
uint64_t plan_next_reclaim_ns(const struct pool *pool);

/* Asks the sessions of one tenant, or of all (NULL), and begins a shortage. */
void plan_ask_sessions(struct pool *pool, const struct tenant *tenant, bool is_counted, uint64_t now_ns);

/* Begins a shortage, or prolongs it. */
void plan_begin_shortage(struct pool *pool, uint64_t now_ns);

/* Ends the shortage, unless requests still wait for memory of sessions. */
void plan_end_shortage(struct pool *pool, uint64_t now_ns);

/* The bytes that clients have to close so that the pool can grow for a request of that size. Memory that is
 * idle, or on its way back to the driver, is subtracted. */
uint64_t plan_missing_for(const struct pool *pool, uint64_t size_bytes);

/* As plan_missing_for(), for the oldest request that waits for room. If none waits, for the last request that
 * was refused because the pool was stuck. */
uint64_t plan_missing_bytes(const struct pool *pool);

/* Whether that request asks for whole segments and could take this one, which is ASSIGNED: to close it would
 * not help. */
bool plan_needs_segment(const struct pool *pool, const struct segment *segment);

/* Whether no segment is being made or freed. */
bool plan_is_settled(const struct pool *pool);

/* Whether waiting has no end: the driver gives nothing, and no memory of the pool can come back. */
bool plan_is_hopeless(const struct pool *pool, uint64_t now_ns);

#endif
