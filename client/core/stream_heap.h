/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CORE_STREAM_HEAP_H
#define CLIENT_CORE_STREAM_HEAP_H
/*
 * A stream heap: the process's heap for one pool and one stream. It owns the extents that were leased for it
 * and cuts them into pieces. Memory that was last used on a stream can be used on it again at once, because
 * the stream orders the work; so free memory stays in its stream heap, and leaves it only behind a fence.
 * Memory that was last used on another stream stands behind a fence of that before it is free here
 * (deferred.h).
 *
 * A part of an extent that goes back to the daemon is absent: taken in the heap by no piece. It goes behind a
 * fence of the stream heap's stream. Where none can be left, the part is free in the stream heap again. An
 * extent ends when all of it is absent, and stands behind fences. A new lease that lies at the end of an
 * extent, or where it has absent parts, is merged with the extent's: what lies side by side can so be cut as
 * one, and a stream heap that grows step by step fragments no more than one large extent would.
 *
 * Free memory serves any size before the stream heap grows: an extent is not kept for the size that it was
 * leased for.
 *
 * Locking: each stream heap has a lock, which its callers take; functions named _locked want it held.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/units.h"
#include "client/core/fence.h"
#include "client/core/piece.h"
#include "client/core/pool_facts.h"
#include "heap/heap.h"

struct cache;
struct core_pool;
struct counters;
struct depot;

/* Memory that the daemon lends under one name. */
struct lending {
    uint64_t lease, generation;
    unsigned one_way;   /* parts released and leases merged since the daemon last had to answer one */
    unsigned splitting; /* SPLITs under way, or of which nothing was heard: its lease may have ended */
};

/* A segment as the core sees it. */
struct segment_view {
    const void *segment; /* only compared */
    const char *memory;  /* where it is mapped */
    uint64_t size_bytes;
};

/* A piece of memory that the stream heap cuts: a lease, or an arena of many (arena.h). */
struct extent {
    struct stream_heap *stream_heap;
    struct heap_span *span;
    bool is_arena;
    struct lending lending; /* of an extent that is no arena */
    uint64_t size_bytes, absent_bytes, deferred_bytes;
    unsigned n_out;      /* absent parts that have no fence yet. Of an arena its slots have that number */
    uint64_t used_bytes; /* above, no piece has lain since it was leased */
    char *memory;
    struct segment_view segment;
    struct list link; /* in stream_heap->extents */
};

/* A part of an extent that is on its way to the daemon. */
struct stream_heap_part {
    struct stream_heap *stream_heap;
    uint64_t lease, generation, offset_bytes, size_bytes;
    bool whole;            /* the lease ends */
    bool is_answered;      /* it may not go one-way */
    bool has_fence;        /* else one of the stream heap's stream is to be left, behind which it goes */
    struct fence fence;    /* that it stands behind */
    const void *segment;   /* of its lease */
    struct extent *extent; /* that it leaves; only while it has no fence */
    uint32_t slot;         /* of an arena */
};

/* Pieces of up to STREAM_HEAP_SMALL_MAX_BYTES lie apart from larger ones while there is room, so that a small
 * one that stays does not stand in the way of a large one. Where the line is was measured on twelve
 * variations of the eight traces (stream_heap.c) and on eight random mixes (512 B to 32 MiB, 1,000 live),
 * reserved to PyTorch's:
 *
 * | MiB | traces | largest | above 1.02 | mix   |
 * | 1   | 0.820  | 1.052   | 3 of 96    | 0.996 |
 * | 2   | 0.825  | 1.075   | 5          | 0.987 |
 * | 4   | 0.818  | 1.031   | 1          | 0.973 |
 * | 6   | 0.827  | 1.080   | 10         | 0.964 |
 * | 8   | 0.824  | 1.077   | 5          | 0.963 |
 */
#define STREAM_HEAP_SMALL_MAX_BYTES (4 * MIB)

/* How many pieces that were split off a stream heap remembers. It forgets half of them with each growth, so
 * after seven growths without another one it is as one that never lent. */
#define STREAM_HEAP_LENT_MAX 64u

/* Parts of a lease that go back without an answer, of which a client at its limit does not learn that they
 * stay with the lease; and far fewer merges than the daemon has room for (PROTO_ONE_WAY_MAX). An answer costs
 * some 10 us. */
#define LEASE_ONE_WAY_MAX 256u

enum stream_heap_half {
    STREAM_HEAP_SMALL,
    STREAM_HEAP_LARGE,
    STREAM_HEAP_HALVES,
};

struct stream_heap {
    /* a hit reads these, and no thread writes them */
    struct cache *owner; /* not looked at here, as the depot and the counters */
    uint32_t pool;
    uint32_t kind; /* enum gpupool_pool_kind */
    int device;
    void *stream;
    struct list link;                 /* in the owner's list; stream heaps stay until the client closes */
    struct core_pool *core_pool;      /* that it is of; NULL: none */
    struct list pool_link;            /* in core_pool->stream_heaps */
    struct depot *depot;              /* magazines between threads */
    struct counters *counters;        /* where its threads count; NULL: nowhere */
    const struct fence_array *fences; /* that deferred pieces and slots stand behind; borrowed */
    bool is_movable;                  /* the pool's segments are */
    _Atomic uint64_t limit_bytes;     /* of the pool */
    /* written under the lock */
    _Alignas(CACHE_LINE_BYTES) pthread_mutex_t lock;
    bool gate_is_closed;                   /* requests wait in the pool (pool.h) */
    struct heap heaps[STREAM_HEAP_HALVES]; /* by enum stream_heap_half */
    struct list extents;
    struct arena *arena;   /* among the extents; NULL: none */
    bool has_no_arena;     /* it cannot have one */
    uint64_t absent_bytes; /* of all extents */
    uint64_t churn_bytes;  /* of large pieces that came back, since idle memory went to the daemon unasked */
    /* Pieces split off of late: STREAM_HEAP_LENT_MAX at most, and half of it after each growth. */
    unsigned lent;
    struct list deferred, deferred_spare; /* queues */
    uint64_t deferred_bytes;
    unsigned ordering; /* calls that are about to use deferred pieces: these stay */
    bool touched;      /* used since the last look of the decay */
    unsigned collects; /* how often other threads' caches were emptied for it, since it grew last */
    struct piece_stock pieces;
};

/* Returns NULL without memory. */
struct stream_heap *stream_heap_new(struct cache *owner, const struct pool_facts *pool, void *stream);
/* Frees the bookkeeping, whatever is still out. Accepts NULL; returns NULL. */
struct stream_heap *stream_heap_free(struct stream_heap *stream_heap);

/* The heap that pieces of a size (as size_class_round gives it) come from. */
enum stream_heap_half stream_heap_half_of(uint64_t size_bytes);

/* Whether stream_heap_take_locked() would find a size somewhere. */
bool stream_heap_has_locked(struct stream_heap *stream_heap, uint64_t size_bytes);

/* Takes a piece of a size (as size_class_round gives it) from its heap or, if it may be from anywhere, from
 * the other one. Returns 0, -ENOSPC or -ENOMEM. Its generation is even. */
int stream_heap_take_locked(struct stream_heap *stream_heap, uint64_t size_bytes, bool anywhere,
                            struct piece **ret_piece);

/* Takes a piece at a place that is free, whatever heap it is in. 0 or -ENOMEM. */
int stream_heap_take_at_locked(struct extent *extent, uint64_t offset_bytes, uint64_t size_bytes,
                               struct piece **ret_piece);

/* Gives a piece back. */
void stream_heap_give_locked(struct stream_heap *stream_heap, struct piece *piece);

/* Adds an extent, a lease of its own, to one of the heaps. Returns 0 or -ENOMEM. */
int stream_heap_add_extent_locked(struct stream_heap *stream_heap, enum stream_heap_half heap,
                                  const struct segment_view *segment, uint64_t lease, uint64_t generation,
                                  char *memory, uint64_t size_bytes);

/* Finds the extent of a heap that new memory of a segment lies beside, or in a gap of, and makes it ready to
 * be filled. NULL when there is none whose lease the daemon would certainly merge with that of the memory (or
 * no memory). The daemon is told, and the extent filled, before the lock is left: else it could end. */
struct extent *stream_heap_neighbour_locked(struct stream_heap *stream_heap, enum stream_heap_half heap,
                                            const void *segment, const char *memory, uint64_t size_bytes);
void stream_heap_fill_locked(struct extent *extent, const char *memory, uint64_t size_bytes);

/* Cuts the tail of a piece off and gives it back to the stream heap. Returns 0 or -ENOMEM. */
int stream_heap_shrink_locked(struct piece *piece, uint64_t capacity_bytes);

/* As stream_heap_shrink_locked, and the tail becomes a piece of its own instead. Its generation is even. */
int stream_heap_cut_locked(struct piece *piece, uint64_t capacity_bytes, struct piece **ret_tail);

/* The daemon is about to be asked to make a lease of its own of a piece; it refused. A split that the daemon
 * did not answer stays begun. */
void stream_heap_begin_split_locked(struct piece *piece);
void stream_heap_cancel_split_locked(struct piece *piece);

/* Takes the memory of a piece out of the stream heap, because it has become a lease of its own. */
void stream_heap_split_off_locked(struct piece *piece, uint64_t lease, uint64_t generation);

/* Gives the piece's object back; its memory is not the stream heap's any more, and was released behind a
 * fence. */
void stream_heap_forget_piece_locked(struct stream_heap *stream_heap, struct piece *piece,
                                     struct fence fence);

/* Where a piece, which is not split off, begins in its lease; in the first of them. Takes no lock: the piece
 * stays where it is. */
uint64_t stream_heap_offset_in_lease(const struct piece *piece);

/* Whether a piece is a part of one lease: one of an arena may be of several. */
bool stream_heap_is_one_part_locked(const struct piece *piece);

/* Finds a free part of at least minimum_bytes (or a whole free extent of any size), makes it absent and says
 * what has to be released: the last part of the latest extent first, so that what stays lies together. False
 * when there is none. */
bool stream_heap_reclaim_locked(struct stream_heap *stream_heap, uint64_t minimum_bytes,
                                struct stream_heap_part *ret_part);

/* As stream_heap_reclaim_locked(), for a free part of an extent that is no arena, which begins between two
 * addresses. */
bool stream_heap_reclaim_between_locked(struct stream_heap *stream_heap, const char *start, const char *end,
                                        struct stream_heap_part *ret_part);

/* As stream_heap_reclaim_locked(), for a slot of the arena of which nothing is in use, or what is free in one
 * that is a target (target.h). */
bool stream_heap_reclaim_slot_locked(struct stream_heap *stream_heap, struct stream_heap_part *ret_part);

/* A fence was left behind all work on a part that had none: it is gone. Or none could be left: the part is
 * free in the stream heap again. */
void stream_heap_fence_left_locked(struct stream_heap_part *part, struct fence fence);
void stream_heap_no_fence_locked(const struct stream_heap_part *part);

/* Whether a range is in use by no piece and by no thread, because the extent has lost it. */
static inline bool stream_heap_range_is_absent(const struct heap_range *range) {
    return !range->free && range->user == NULL;
}

/* As stream_heap_reclaim_locked(), for the memory of a piece that is one part, whose object goes back. */
void stream_heap_lose_locked(struct piece *piece, struct stream_heap_part *ret_part);

/* Takes the last part out of a piece in several, which is shorter then. False: there is no memory to divide
 * it; nothing changed. */
bool stream_heap_lose_end_locked(struct piece *piece, struct stream_heap_part *ret_part);

/* As stream_heap_reclaim_locked(), for the free memory of an extent, or of a slot, of which a part was split
 * off and nothing is in use. */
bool stream_heap_reclaim_lent_locked(struct stream_heap *stream_heap, struct stream_heap_part *ret_part);

/* Whether nothing of an extent is in use or cached. */
bool stream_heap_extent_is_idle_locked(const struct extent *extent);

/* Bytes that the daemon lends this stream heap. */
static inline uint64_t stream_heap_held_bytes_locked(const struct stream_heap *stream_heap) {
    return stream_heap->heaps[0].free_bytes + stream_heap->heaps[0].taken_bytes +
           stream_heap->heaps[1].free_bytes + stream_heap->heaps[1].taken_bytes - stream_heap->absent_bytes;
}

/* Bytes that are free here. */
static inline uint64_t stream_heap_free_bytes_locked(const struct stream_heap *stream_heap) {
    return stream_heap->heaps[0].free_bytes + stream_heap->heaps[1].free_bytes;
}

/* Walks the stream heap. For tests. */
bool stream_heap_is_valid(struct stream_heap *stream_heap);

#endif
