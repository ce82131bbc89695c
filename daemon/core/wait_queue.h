/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_WAIT_QUEUE_H
#define DAEMON_CORE_WAIT_QUEUE_H
/*
 * A wait queue: the requests of one tenant that wait in one pool for the same thing, in order of arrival. A
 * tenant's heap (tenant.h) has two: one for room in the pool, one for the tenant's own quota. The order of
 * serving:
 *
 * - Among tenants, the one with the fewest bytes in the pool comes first. Of two with equally many bytes, the
 *   one whose first request is older comes first. That is max-min fairness, to which dominant resource
 *   fairness comes down with one resource. It counts what a tenant has (leased, fenced, in quarantine, to be
 *   closed), not what it was given over time, as a deficit round robin would: memory is not used up by being
 *   had, and a tenant that gave everything back owes nothing.
 * - Within a tenant, the oldest request comes first. Later requests that find room may pass one that does
 *   not: those among the WAIT_QUEUE_WINDOW first of the queue, and those that have just arrived. Memory that
 *   is held up for a request that does not fit yet serves no request. But passing has an end:
 * - A pass is counted against the first of a queue when a later request, of any tenant, gets memory that the
 *   first could have used. That is all memory, except memory in a segment that the later request's session
 *   has mapped anyway, if that segment is another tenant's or too small. After PASSES_MAX passes the first is
 *   *overdue*, and one target is kept for it:
 *   the room, if its need could come together while all that hold memory of the pool live and keep it. Then
 *     no later request gets an empty segment that its session has not mapped, and the pool grows and retires
 *     for the overdue one alone;
 *   else the segment of its own tenant, among those that are large enough, of which the least is taken. Of
 *     a request for whole segments: the empty ones of its size, if its tenant has as many of that size.
 *   All other memory is lent, so that a request that cannot be served stops no other one, and a session
 *   that holds memory and needs more to go on gets it elsewhere.
 * - In a tenant's queue for its quota, every pass by the same tenant counts. When the first is overdue, later
 *   requests of the tenant wait behind it.
 *
 * Attaching to a shared block never waits: it takes no memory. But the session has the segment mapped from
 * then on, so that it goes back to the driver later.
 *
 * The cost of serving is linear in the tenants that wait, and in WAIT_QUEUE_WINDOW, but not in the requests.
 */
#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/types.h"

/* The oldest request of the queue. NULL: the queue is empty. */
struct request *wait_queue_first(const struct wait_queue *queue);

/* Puts a waiting request into a queue of its tenant's heap in its pool, in order of arrival. It leaves the
 * queue in which it was. */
void wait_queue_enter(struct request *request, struct tenant_heap *heap, enum wait_queue_kind kind);

/* Takes a request out of its queue, if it is in one. */
void wait_queue_leave(struct request *request);

/* Whether a request, the first of its queue, is served before the first one of another queue of the pool: its
 * tenant has fewer bytes in the pool, or equally many, and it is older. */
bool wait_queue_comes_before(const struct request *first, const struct request *other);

/* The oldest request of all that wait for room in the pool. NULL: there is none. */
struct request *wait_queue_oldest(const struct pool *pool);

/* The request whose deadline comes first, of all that wait in the pool. NULL: none waits. */
struct request *wait_queue_next_due(const struct pool *pool);

/* The first request, in serving order, that waits for room and needs at most that many bytes of new segments:
 * those that the pool may grow by, and those of idle segments, but for such as suit the request. While a
 * request is overdue, later ones are not considered. NULL: there is none. */
struct request *wait_queue_find(const struct pool *pool, uint64_t room_bytes, uint64_t idle_bytes);

/* Whether the request has to wait for its tenant's quota before it gets that many bytes: they are beyond the
 * quota, or the tenant has them in no segment of its own and may have no further one, or the request is
 * behind one that is overdue. */
bool wait_queue_awaits_quota(const struct request *request, uint64_t size_bytes);

/* Whether the request lacks a segment that its tenant's quota does not allow (QUOTA_SEGMENTS). Constant time
 * for a block. */
bool wait_queue_lacks_segments(const struct request *request, uint64_t size_bytes);

/* The item of the quota that the request waits for. */
unsigned wait_queue_awaited_item(const struct request *request);

/* Whether an older request than this is overdue. */
bool wait_queue_is_behind(const struct request *request);

/* Determines anew what the overdue requests of the pool keep back. Returns whether that has changed for
 * others. Linear in the overdue requests, of which each tenant has few. */
bool wait_queue_review(struct pool *pool);

/* Whether an older, overdue request keeps back what the pool may grow by and the segments without a tenant.
 */
bool wait_queue_keeps_room(const struct request *request);

/* Whether an older, overdue request keeps back a segment that this request's session could be given memory
 * of. Memory that was taken since the segment was settled does not count. */
bool wait_queue_is_kept(const struct request *request, const struct segment *segment);

/* The request was granted: counts the passes. Each request that could have used some of its memory is passed
 * once, however many segments were granted. */
void wait_queue_count_passes(const struct request *request);

#endif
