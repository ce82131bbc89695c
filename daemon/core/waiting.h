/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_WAITING_H
#define DAEMON_CORE_WAITING_H
/*
 * Who is served when: the answer to a new request, those who wait in queues (wait_queue.h has their order),
 * and their deadlines.
 */
#include <stdint.h>

struct pool;
struct request;

/* Tries to answer a new request now; otherwise it waits, or is refused when it must not. */
void pool_ask(struct pool *pool, struct request *request, uint64_t now_ns);

/* After memory came back or was made: answers those who wait, in order, and decides on growth. */
void pool_serve(struct pool *pool, uint64_t now_ns);

/* Refuses those whose deadline has passed, retries a growth that was put off, asks sessions again. */
void pool_tick(struct pool *pool, uint64_t now_ns);

/* When pool_tick wants to be called next; NS_FOREVER: never. */
uint64_t pool_next_tick_ns(const struct pool *pool);

/* Refuses everybody who waits, because the driver gives nothing. / Those who wait for more than the pool may
 * grow to by now. */
void pool_refuse_all(struct pool *pool);
void pool_refuse_too_large(struct pool *pool);

/* Refuses the requests that wait for growth only, and for which none is under way: none in the pool, or they
 * wait for their tenant's quota. For the plan. */
void waiting_refuse_for_growth(struct pool *pool, uint64_t now_ns);

/* Has the first in the queue wait for its tenant's quota instead, where nothing else can serve it. For the
 * plan: others would be asked for memory in vain. */
void waiting_hold_first(struct pool *pool);

#endif
