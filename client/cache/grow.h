/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_GROW_H
#define CLIENT_CACHE_GROW_H
/*
 * How a lane gets more memory when it has none for a request: an extent from the daemon, of a size that
 * follows what the process uses; where the daemon has no room, memory of the lane that stands behind fences
 * of other streams; then whatever comes back first while the caller waits, or what lies idle elsewhere in the
 * process.
 */
#include <stdint.h>

#include "client/cache/lane.h"

struct gpupool_client;

/* Gets memory for a request. 0: there is more in the lane's heap than before, which is to be asked again
 * (other threads may be quicker); EXHAUSTED and what lease_acquire says. */
int lane_grow(struct gpupool_client *client, struct lane *lane, uint64_t size_bytes, uint64_t deadline_ns);

#endif
