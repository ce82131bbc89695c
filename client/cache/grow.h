/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_GROW_H
#define CLIENT_CACHE_GROW_H
/*
 * How a lane gets more memory when it has none for a request, in four steps:
 *
 *   look     deferred pieces whose fences have become ready in the meantime
 *   ask      the daemon for an extent; its pool grows for it, but nobody is asked for memory
 *   collect  once, what this process has: in other threads' caches, behind fences that the lane's stream can
 * wait for; the rest that is idle goes to the daemon, and a shortage begins (shortage.h) ask      again, for
 * just what is needed, and wait until the deadline
 *
 * In a shortage nothing is kept here, so the second and the third step are left out. The memory stays where
 * it is: no mapping is closed on the way, unless the daemon finds that nothing else helps (lease_close_idle).
 */
#include <stdint.h>

#include "client/cache/lane.h"

struct gpupool_client;
struct proto_lease;
struct segment;

/* Gets memory for a request. 0: there is more in the lane's heap than before, which is to be asked again
 * (other threads may be quicker); EXHAUSTED and what lease_acquire says. */
int lane_grow(struct gpupool_client *client, struct lane *lane, uint64_t size_bytes, uint64_t deadline_ns);

/* Adds a lease, whose segment is open, to a lane: to an extent that it continues, else as an extent of its
 * own. 0; NO_MEMORY: the lease was given back. */
int lane_add_lease(struct gpupool_client *client, struct lane *lane, const struct segment *segment,
                   const struct proto_lease *lease);

#endif
