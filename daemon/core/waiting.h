/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_WAITING_H
#define DAEMON_CORE_WAITING_H
/*
 * Which request is served when: the answer to a new request, the order among waiting ones (wait_queue.h), and
 * their deadlines.
 */
#include <stdint.h>

#include "daemon/core/types.h"

/* Grants a new request now, if memory for it is free. Otherwise the request waits, or is refused if it must
 * not wait. */
void pool_ask(struct pool *pool, struct request *request, uint64_t now_ns);

/* Does what is due in the pool by now: polls fences, serves it if it is ready, refuses requests whose
 * deadline has passed, and plans if any of that changed something. */
void pool_tick(struct pool *pool, uint64_t now_ns);

/* Serves the pools that are ready (pool_mark_ready): grants in order what is free, and then plans: growth,
 * retirement, questions to sessions. Each entry point of the core that takes the time ends with it, but for
 * core_tick(). */
void core_serve(struct core *core, uint64_t now_ns);

/* When the pool is to be served although nothing marks it; NS_FOREVER: never. */
uint64_t pool_next_tick_ns(const struct pool *pool);

/* Refuses the requests that wait, for room or quota, and need at least that many bytes. */
void pool_refuse(struct pool *pool, uint64_t least_bytes, enum proto_error error);

/* Refuses the session's requests that wait in pools which it may not use. */
void session_refuse_forbidden(struct session *session);

#endif
