/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_SHORTAGE_H
#define CLIENT_CACHE_SHORTAGE_H
/*
 * A shortage: a pool whose memory others wait for, threads of this process among them. While it lasts the
 * cache keeps nothing of the pool: each piece that is released goes to the daemon at once, which serves the
 * requests that wait in their order. So a thread that waits is woken by the release that serves it, and not
 * by a clock.
 *
 *   begins: the daemon asked for idle memory, or a thread of this process is about to wait for room
 *   ends:   no thread of this process waits for room, and the daemon does not mark the pool as short any more
 *
 * The fast paths look at nothing of this: at the beginning each thread's cache of the pool is emptied, and
 * the thread is made to take the slow path (thread_cache.last), where it looks at the mark. Who sets the mark
 * visits the threads afterwards, so a thread that did not see the mark is visited, and one that was visited
 * sees it.
 *
 * The marks are the cache's; any thread may call these functions.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/limits.h"

struct gpupool_client;

struct shortage {
    _Atomic uint64_t pools;               /* bit id - 1: nothing is kept */
    atomic_uint waiting[PROTO_POOLS_MAX]; /* threads that wait for room, by pool (id - 1) */
};

/* Begins the shortage of a pool, unless it has begun: empties the threads' caches of it into their lanes.
 * What is in the lanes is the caller's to give back. */
void shortage_begin(struct gpupool_client *client, uint32_t pool);

/* Ends the shortage of a pool if nothing speaks for it any more. For slow paths that found it on. The caller
 * holds no lock: where the shortage begins again meanwhile, what is idle goes to the daemon. */
void shortage_end_if_over(struct gpupool_client *client, uint32_t pool);

static inline bool shortage_is_on(const struct shortage *shortage, uint32_t pool) {
    return (atomic_load_explicit(&shortage->pools, memory_order_acquire) >> (pool - 1) & 1) != 0;
}

#endif
