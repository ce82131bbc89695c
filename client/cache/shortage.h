/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_SHORTAGE_H
#define CLIENT_CACHE_SHORTAGE_H
/*
 * The rules for a pool that has no room. There are two marks for each pool.
 *
 * A pool is tight when it refused more, or granted much less than a stream heap asked for. Threads keep
 * nothing at hand then: what is released goes into its stream heap's heap at once, where it joins its
 * neighbours, and pieces are cut to the size that is asked for. While a request waits, in the queue of its
 * pool (client/core/pool.h), each release looks at the heap: as soon as a range is long enough for the
 * request, the range goes to the daemon, which answers the request with it. So does a stretch that is long
 * enough (client/core/stretch.h). A request that was passed often has a target (client/core/target.h). The mark
 * ends when no thread waits and a quarter of a stream heap is free, or the pool has room again.
 *
 * A pool is short when the daemon asks for its memory, for requests of other processes as a rule, perhaps of
 * this one. The process keeps nothing then: each piece that is released goes to the daemon, which serves the
 * requests that wait in their order. A request that begins to wait meanwhile is served by the daemon alone.
 * The mark begins when the daemon asks for idle memory, and ends when the daemon's own mark (proto/page.h) is
 * gone.
 *
 * So a thread that waits is woken by the release that serves it, and not by a clock. Memory that only this
 * process wants stays in one heap: half of it in the daemon's hands and half of it in the stream heap's, free
 * neighbours would not join. (8 threads that wanted 457 of 512 MiB waited for 2 MiB in vain while 70 MiB were
 * free.)
 *
 * The fast paths look at nothing of this. When a mark is set, each thread's cache of the pool is emptied, and
 * the thread is made to take the slow path (thread_cache.last), where it looks at the marks. The thread that
 * sets the mark visits the others afterwards: one that did not see the mark is visited, and one that was
 * visited sees it.
 *
 * The marks are the cache's; any thread may call these functions.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/limits.h"

struct cache;
struct core_serving;
struct stream_heap;

struct shortage {
    _Atomic uint64_t tight_pools, short_pools; /* shortage_bit() of each pool */
};

/* Marks a pool as tight, or short, and empties the threads' caches of it into their stream heaps. The caller
 * gives back the free memory in the stream heaps of a short pool. */
void shortage_tighten(struct cache *cache, uint32_t pool);
void shortage_begin(struct cache *cache, uint32_t pool);

/* Ends the tightness of a pool, unless a thread waits; the shortage, if the daemon's mark is gone. For slow
 * paths that found it on. The caller holds no lock: where the shortage begins again meanwhile, what is idle
 * goes to the daemon. */
void shortage_loosen(struct cache *cache, uint32_t pool);
void shortage_end_if_over(struct cache *cache, uint32_t pool);

/* Gives the daemon what has become free in a stream heap and serves requests that wait. place: where memory
 * was released last; NULL: nowhere. The caller holds no lock. */
void shortage_offer(struct cache *cache, struct stream_heap *stream_heap, const char *place);

/* A request was served: gives the piece to the daemon, or has the daemon forget its question. The caller holds
 * no lock. */
void shortage_end_serving(struct cache *cache, const struct core_serving *serving);

/* A pool's bit in a word of marks. */
static inline uint64_t shortage_bit(uint32_t pool) {
    return UINT64_C(1) << (pool - 1);
}

static inline bool shortage_is_on(const struct shortage *shortage, uint32_t pool) {
    return (atomic_load_explicit(&shortage->short_pools, memory_order_acquire) & shortage_bit(pool)) != 0;
}

/* How much room a pool has. */
enum shortage_room {
    SHORTAGE_ROOMY,
    SHORTAGE_TIGHT,
    SHORTAGE_SHORT,
};

/* By the marks of one moment. A caller that decides by both marks asks once: another thread may set one
 * between two questions. */
static inline enum shortage_room shortage_room_of(const struct shortage *shortage, uint32_t pool) {
    if (shortage_is_on(shortage, pool))
        return SHORTAGE_SHORT;
    return (atomic_load_explicit(&shortage->tight_pools, memory_order_acquire) & shortage_bit(pool)) != 0
               ? SHORTAGE_TIGHT
               : SHORTAGE_ROOMY;
}

/* Whether threads keep nothing of a pool. */
static inline bool shortage_is_tight(const struct shortage *shortage, uint32_t pool) {
    return shortage_room_of(shortage, pool) != SHORTAGE_ROOMY;
}

#endif
