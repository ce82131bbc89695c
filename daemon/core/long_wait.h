/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_LONG_WAIT_H
#define DAEMON_CORE_LONG_WAIT_H
/*
 * Long waits: requests that have waited for the core's long_wait_ns (LONG_WAIT_NS). The shell is told of each
 * one once, for the log. A request without a deadline that is alone (reach.h) is refused then, unless its
 * process has given back something of the pool in that time: then it is looked at again. A request with a
 * deadline waits until that, because the threads of its process may give back what it needs.
 *
 * The requests of a pool are looked at LONG_WAIT_LOOK_NS apart at least. Walks for the reach of a session are
 * apart by their length (REACH_PAUSE_NS); requests that were left out are looked at as soon as a walk may be.
 */
#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/types.h"

/* Notes a request that begins to wait in a queue. */
void long_wait_begin(struct request *request);

/* Looks at the requests of the pool for which that is due. Returns whether any was refused. */
bool long_waits_look(struct pool *pool, uint64_t now_ns);

/* Determines whether a request whose deadline has passed was alone, for its text. */
void long_wait_end(struct request *request, uint64_t now_ns);

#endif
