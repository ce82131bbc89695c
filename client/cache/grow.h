/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_GROW_H
#define CLIENT_CACHE_GROW_H
/*
 * How a stream heap gets more memory when it has none for a request, in four steps.
 *
 * - Look: at deferred pieces whose fences have become ready in the meantime.
 * - Ask: the daemon for an extent. Its pool grows for it, but no process is asked for memory.
 * - Collect, once, what this process has: in other threads' caches, and behind fences that the stream heap's
 * stream can wait for. The pool is tight from now on (shortage.h). Idle memory of other stream heaps goes to
 * the daemon, and that of stretches which are long enough (stretch.h).
 * - Ask again, for just what is needed, and wait until the deadline. Memory that other threads release in the
 * meantime goes to the daemon as soon as it is long enough.
 *
 * Of a pool that is short nothing is kept here, so the second step and most of the third are left out. No
 * mapping is closed on the way, unless the daemon finds that nothing else helps (lease_close_idle).
 */
#include <stdint.h>

#include "client/cache/arena_grow.h"
#include "client/cache/shortage.h"
#include "client/core/pool.h"
#include "client/core/stream_heap.h"
#include "client/session/asking.h"

struct cache;
struct grant;

/* The last question to the daemon. */
enum growth_step {
    GROWTH_ASKS,              /* for an extent, which the pool may grow for */
    GROWTH_WAITS,             /* for what is needed, in its wait queue */
    GROWTH_ASKS_FOR_SEGMENTS, /* of an arena, which the pool may grow for */
    GROWTH_ASKS_FOR_RANGE,    /* that is free, where the pool has no such segments */
    GROWTH_WAITS_FOR_SEGMENTS,
};

/* The growth for one request. Like an asking, it goes on in steps, which are one thread's at a time. While it
 * waits it is in the queue of its pool, and stays where it is in memory. */
struct growth {
    struct cache *cache;
    struct stream_heap *stream_heap;
    uint64_t size_bytes, deadline_ns;
    uint32_t probe;
    enum growth_step step;
    struct asking asking;
    struct waiting_request waiter; /* GROWTH_WAITS, GROWTH_WAITS_FOR_SEGMENTS */
    struct arena_work work;        /* GROWTH_ASKS_FOR_SEGMENTS, GROWTH_WAITS_FOR_SEGMENTS */
};

/* Begins to get memory for a request. probe: as in buffer_acquire(). Returns:
 *   ASKING_WAITS           growth->asking has a request for the daemon; growth_answer() goes on with it
 *   0, and *ret_piece      the piece that was leased for the request; it is taken out of the stream heap
 *   0, and NULL            the stream heap has more memory than before. The caller asks it again:
 *                          other threads may have been quicker
 *   EXHAUSTED, or another  the error; *ret_piece is NULL */
int growth_begin(struct growth *growth, struct cache *cache, struct stream_heap *stream_heap,
                 uint64_t size_bytes, uint64_t deadline_ns, uint32_t probe, struct piece **ret_piece);

/* Goes on. r: as for asking_answer(). Returns as growth_begin(). An error that is neither EXHAUSTED nor LIMIT
 * ends the growth. */
int growth_answer(struct growth *growth, int r, struct piece **ret_piece);

/* Frees the memory of a growth between two steps, in a forked child. */
void growth_forget(struct growth *growth);

/* Adds a lease, whose segment is open, to a stream heap: to an extent that it continues, else as an extent of
 * its own. 0; NO_MEMORY: the lease was given back. */
int stream_heap_add_lease(struct cache *cache, struct stream_heap *stream_heap, const struct grant *grant);

#endif
