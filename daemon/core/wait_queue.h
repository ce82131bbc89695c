/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_WAIT_QUEUE_H
#define DAEMON_CORE_WAIT_QUEUE_H
/*
 * A wait queue: the requests of one tenant that wait in one pool for the same thing, in order of arrival. A
 * tenant's heap (tenant.h) has two: one for room in the pool, one for the tenant's own quota. Who waits is
 * served so:
 *
 * - Among tenants, who has the fewest bytes in the pool comes first; of two with as many, who came first.
 * That is max-min fairness, to which dominant resource fairness comes down with one resource. It counts what
 * a tenant has (leased, fenced, in quarantine, to be closed), not what it was given over time, as a deficit
 *   round robin would: memory is not used up by being had, and who gave everything back owes nothing.
 * - Within a tenant, who came first comes first. What finds no room may be passed by later requests that do
 *   (of the WAIT_QUEUE_WINDOW first of the queue, and those that have just arrived): holding memory up for a
 * request that does not fit yet serves nobody. But not for ever:
 * - A pass is counted against the first of a queue when a later request, whosesoever, gets what the first
 * could have used: all but memory of a segment that the other's session has mapped anyway, and that is
 * another tenant's or too small. After PASSES_MAX of these the first is *overdue*: no later request gets any
 * such memory in that pool before it has been served or has left, and growth and idle segments are for it. So
 *   whoever waits is passed by a bounded number of later requests, whatever its size, and has then only to
 *   wait for memory to come back.
 * - In a tenant's queue for its quota every pass by the same tenant counts, and later requests of the tenant
 *   wait behind the first when it is overdue.
 *
 * Not held back for anybody is who attaches to a shared block: it takes nothing, but has the segment mapped
 * from then on, so that it goes back to the driver later.
 *
 * Where a request stands costs nobody anything: to serve those who wait is linear in the tenants that do, and
 * in WAIT_QUEUE_WINDOW, not in the requests.
 */
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

struct pool;
struct request;
struct segment;
struct session;
struct tenant_heap;

struct wait_queue {
    struct list requests; /* request.link, in order of arrival */
    uint64_t least_bytes; /* none of them asked for less; 0: not known */
};

enum wait_queue_kind {
    WAIT_QUEUE_NONE,
    WAIT_QUEUE_ROOM,  /* waits for memory of the pool */
    WAIT_QUEUE_QUOTA, /* …for its tenant's quota */
};

void wait_queue_init(struct wait_queue *queue);

/* NULL: nobody waits there. */
struct request *wait_queue_first(const struct wait_queue *queue);

/* Puts a request that waits into a queue of its tenant's heap in its pool, in order of arrival; it leaves the
 * one in which it stood. / Takes it out, if it stands in any. */
void wait_queue_enter(struct request *request, struct tenant_heap *heap, enum wait_queue_kind kind);
void wait_queue_leave(struct request *request);

/* Who waits for room in the pool, and came first of all. NULL: nobody. */
struct request *wait_queue_oldest(const struct pool *pool);

/* The first, in the order in which they are served, who waits for room and needs no more than so many bytes
 * of new segments; when somebody is overdue, none that came later. NULL: there is none. */
struct request *wait_queue_find(const struct pool *pool, uint64_t room_bytes);

/* Whether the request has to wait for its tenant's quota before it gets so many bytes: they are beyond it, or
 * the request is behind one that is overdue. */
bool wait_queue_awaits_quota(const struct request *request, uint64_t size_bytes);

/* Whether there is somebody overdue who came before the request. / Whether memory of the segment, for the
 * request's session, is what one of them could use. */
bool wait_queue_is_behind(const struct request *request);
bool wait_queue_is_reserved(const struct request *request, const struct segment *segment);

/* The request was given memory of the segment: counts whom it passed. */
void wait_queue_count_passes(const struct request *request, const struct segment *segment);

/* Whether both queues of a heap are as they have to be. Adds their requests to a number. / Whether those that
 * are overdue are known. */
bool wait_queue_is_valid(const struct tenant_heap *heap, uint64_t *waiters);
bool wait_queue_overdue_is_valid(const struct pool *pool);

#endif
