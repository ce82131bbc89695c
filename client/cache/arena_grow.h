/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_ARENA_GROW_H
#define CLIENT_CACHE_ARENA_GROW_H
/*
 * How a stream heap with an arena gets memory for a large request: a place, whose missing segments are taken
 * from where they are idle in the arena, and then from the daemon.
 *
 * The daemon is asked in steps (session/asking.h), so that a request need not have a thread that waits.
 *
 * Nothing here waits for the GPU: memory is mapped beside running kernels, and where it was before it stays
 * mapped until a fence is ready (arena.h).
 */
#include <stdint.h>

#include "client/cache/arena.h"
#include "client/cache/stream_heap.h"
#include "client/session/asking.h"

struct cache;

/* A segment for a slot, and the lease on it. */
struct arena_filling {
    struct lending lending;
    struct segment *segment;
    struct fence fence; /* behind which nothing uses it any more */
};

/* The work for one request. It holds nothing after its last step. */
struct arena_work {
    struct cache *cache;
    struct stream_heap *stream_heap;
    struct arena *arena;
    uint64_t size_bytes;
    struct arena_place place;
    uint32_t *idle;                 /* slots outside the place that were taken, place.n_vacant at most */
    struct arena_filling *fillings; /* for the vacant slots of the place, in any order */
    uint32_t *slots;                /* these slots, in order */
    uint32_t n_fillings;
    struct segment_grant *grants; /* what the daemon was asked for */
    uint32_t n_asked;
};

/* Whether large requests of a stream heap are served from an arena: where the pool's segments can be mapped
 * side by side. It is made when this is asked first. */
bool arena_serves(struct cache *cache, struct stream_heap *stream_heap, uint64_t size_bytes);

/* Begins to serve a request (a multiple of HEAP_GRANULE). may_grow: the arena may have more memory in place
 * of moves that it has no credit for (move_debts.h). acquire: how the daemon is asked for the segments that
 * are missing: pool, flags and timeout are the caller's. ASKING_WAITS: asking has a request for the daemon,
 * and arena_grow_end() is to be called when the asking is over. 0: *ret_piece is the memory. EXHAUSTED and
 * what the daemon or the driver says otherwise: what was taken elsewhere in the arena is free in the stream
 * heap. */
int arena_grow_begin(struct arena_work *work, struct cache *cache, struct stream_heap *stream_heap,
                     uint64_t size_bytes, bool may_grow, const struct proto_acquire_segments *acquire,
                     struct asking *asking, struct piece **ret_piece);

/* Ends it. r: how the asking ended. */
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

/* Gives the addresses of a stream heap's arena back to the driver, when nothing is mapped there. */
void arena_leave_addresses(struct cache *cache, struct stream_heap *stream_heap);

#endif
