/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_ARENA_GROW_H
#define CLIENT_CACHE_ARENA_GROW_H
/*
 * How a stream heap with an arena gets memory for a large request: a place, whose missing segments are taken
 * from where they are idle in the arena, and then from the daemon.
 *
 * A request of ARENA_LARGE_BYTES and more gets large segments of the daemon where it lacks as much side by
 * side, and segments of one slot for the rest. Where the daemon refuses large ones, all are of one slot.
 *
 * The daemon is asked in steps (session/asking.h), one for each size of segments, so that a request need not
 * have a thread that waits.
 *
 * Nothing here waits for the GPU: memory is mapped beside running kernels, and where it was before it stays
 * mapped until a fence is ready (arena.h).
 */
#include <stdint.h>

#include "client/core/arena.h"
#include "client/core/stream_heap.h"
#include "client/session/asking.h"

struct cache;

/* Requests of that size get large segments. Smaller ones lie in 16 segments of one slot at most. */
#define ARENA_LARGE_BYTES (256 * MIB)
/* The free rest of a large segment that is partly in use cannot be moved. So a request gets large segments
 * only where pieces stay: where what came back of late is no more than this share of the request, or where
 * all that the stream heap holds is no more than that share of it. Without this rule the traces convnet_infer
 * and transformer_train (tests/traces) reserved 1.053 and 1.079 of what was live, instead of 1.038 and 1.015.
 */
#define ARENA_CHURN_SHARE 8u
#define ARENA_HELD_SHARE  2u
/* Idle segments of one slot that are no more than this share of what the request lacks stay where they are
 * beside large segments. Otherwise the buffer would lie in as many segments more. */
#define ARENA_IDLE_SHARE 32u

/* A slot of the place that is to be filled; a segment for it, and the lease on it. */
struct arena_filling {
    uint32_t slot, n_slots; /* so many are joined for it */
    uint32_t from;          /* the slot that the segment is taken from; ARENA_FROM_DAEMON */
    bool is_here;           /* the segment is known */
    bool is_kept;           /* the slot maps it already */
    struct lending lending;
    struct segment *segment;
    struct fence fence; /* behind which nothing uses it any more */
};

#define ARENA_FROM_DAEMON UINT32_MAX

/* Slots of a place side by side that are to be filled. From next on they have no filling yet. */
struct arena_hole {
    uint32_t start, end, next;
};

/* The work for one request. It holds nothing after its last step. */
struct arena_work {
    struct cache *cache;
    struct stream_heap *stream_heap;
    struct arena *arena;
    uint64_t size_bytes;
    struct arena_place place;
    struct arena_hole *holes;       /* of the place; place.n_vacant at most, as the others */
    uint32_t *idle;                 /* slots outside the place that were taken */
    struct arena_stale *stale;      /* mappings that have to go before others are made */
    struct arena_filling *fillings; /* for the holes */
    uint32_t n_holes, n_fillings;
    struct segment_grant *grants;  /* what the daemon was asked for */
    uint32_t n_asked, asked_slots; /* so many segments, each of so many slots */
    struct asking *asking;
    struct proto_acquire_segments acquire; /* how it is asked */
    uint64_t began_ns, deadline_ns;        /* by clock_now_ns() */
};

/* Whether large requests of a stream heap are served from an arena: where the pool's segments can be mapped
 * side by side. It is made when this is asked first. */
bool arena_serves(struct cache *cache, struct stream_heap *stream_heap, uint64_t size_bytes);

/* Begins to serve a request (a multiple of HEAP_GRANULE). may_grow: the arena may have more memory in place
 * of moves that it has no credit for (move_debts.h); else it moves as many as it needs. acquire: how the daemon is asked for the segments that
 * are missing: pool, flags and timeout are the caller's. ASKING_WAITS: asking has a request for the daemon,
 * and arena_grow_end() is to be called when the asking is over. 0: *ret_piece is the memory. EXHAUSTED and
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
