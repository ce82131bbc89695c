/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_ARENA_GROW_H
#define CLIENT_CACHE_ARENA_GROW_H
/*
 * How a stream heap with an arena gets memory for a large request: a place, whose missing segments are taken
 * from where they are idle in the arena, and then from the daemon. client/core/arena_plan.h decides; this
 * leaves the fence, asks the daemon and calls the driver.
 *
 * The daemon is asked in steps (session/asking.h), one for each size of segments, so that a request need not
 * have a thread that waits.
 *
 * Nothing here waits for the GPU: memory is mapped beside running kernels, and where it was before it stays
 * mapped until a fence is ready (arena.h).
 */
#include <stdint.h>

#include "client/core/arena_plan.h"
#include "client/core/stream_heap.h"
#include "client/session/asking.h"

struct cache;

/* The work for one request. It holds nothing after its last step. */
struct arena_work {
    struct cache *cache;
    struct stream_heap *stream_heap;
    struct arena_plan plan;
    struct segment_grant *grants; /* what the daemon was asked for */
    struct asking *asking;
    struct proto_acquire_segments acquire; /* how it is asked */
    uint64_t began_ns, deadline_ns;        /* by clock_now_ns() */
};

/* Whether large requests of a stream heap are served from an arena: where the pool's segments can be mapped
 * side by side. It is made when this is asked first. */
bool arena_serves(struct cache *cache, struct stream_heap *stream_heap, uint64_t size_bytes);

/* Begins to serve a request (a multiple of HEAP_GRANULE). may_grow: the arena may have more memory in place
 * of moves that it has no credit for (move_debts.h); else it moves as many as it needs. acquire: how the
 * daemon is asked for the segments that are missing: pool, flags and timeout are the caller's. ASKING_WAITS:
 * asking has a request for the daemon, and arena_grow_end() is to be called when the asking is over. 0: *ret_piece is the memory. EXHAUSTED and
 * what the daemon or the driver says otherwise: what was taken elsewhere in the arena is free in the stream
 * heap. */
int arena_grow_begin(struct arena_work *work, struct cache *cache, struct stream_heap *stream_heap,
                     uint64_t size_bytes, bool may_grow, const struct proto_acquire_segments *acquire,
                     struct asking *asking, struct piece **ret_piece);

/* Goes on. r: how the asking ended. As arena_grow_begin(): ASKING_WAITS where segments of another size are
 * asked for. */
int arena_grow_end(struct arena_work *work, int r, struct piece **ret_piece);

/* As arena_grow_begin() and arena_grow_end(), for a request that may wait long: all of its segments come from
 * the daemon. While it waits it holds nothing of the arena, so that no two requests wait for each other. */
int arena_wait_begin(struct arena_work *work, struct cache *cache, struct stream_heap *stream_heap,
                     uint64_t size_bytes, const struct proto_acquire_segments *acquire,
                     struct asking *asking);
int arena_wait_end(struct arena_work *work, int r, struct piece **ret_piece);

/* Whether the arena was to grow in place of moves, by work that the daemon refused segments for. The request
 * is to be served by moves then, and the debt for these is forgiven. */
bool arena_grow_was_refused(struct arena_work *work);

/* Frees the lists of work that is not ended, in a forked child. */
void arena_work_free(struct arena_work *work);

/* Gives the addresses of a stream heap's arena back to the driver, when nothing is mapped there. Or only
 * frees the bookkeeping, in a forked child. The arena is freed next. */
void arena_leave_addresses(struct stream_heap *stream_heap);
void arena_forget_addresses(struct stream_heap *stream_heap);

/* A segment was closed, and with it all its mappings (struct segments_listener). owner: the cache. */
void arena_segment_closed(void *owner, const struct segment *segment);

#endif
