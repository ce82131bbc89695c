/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CORE_ARENA_PLAN_H
#define CLIENT_CORE_ARENA_PLAN_H
/*
 * A plan: how one request gets its place in an arena filled. It decides which slots get idle segments of the
 * arena and which new ones, of what width, what has to be unmapped and what is mapped where. The caller acts:
 * it leaves the fence, asks the daemon, calls the driver, and says what came of it.
 *
 *   claim ──▶ fenced, or not ──▶ ( next ──▶ granted, refused )… ──▶ look ──▶ unmapped ──▶ mapped… ──▶ settle
 *
 * A request of ARENA_LARGE_BYTES and more gets large segments where it lacks as much side by side, and
 * segments of one slot for the rest. Where the daemon refuses large ones, all are of one slot.
 *
 * A request that waits claims no place before all of its segments have come (arena_plan_wait(),
 * arena_plan_place_locked()): so no two requests wait for each other.
 *
 * A plan is its request's, and one thread's at a time. Functions named _locked want the stream heap's lock.
 * Invariant: fillings and holes are no more than the slots that are to be filled, and no two fillings have a
 * slot in common.
 */
#include <stdbool.h>
#include <stdint.h>

#include "client/core/arena.h"

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
    struct segment_ref segment;
    struct fence fence; /* behind which nothing uses it any more */
};

#define ARENA_FROM_DAEMON UINT32_MAX

/* Slots of a place side by side that are to be filled. From next on they have no filling yet. */
struct arena_hole {
    uint32_t start, end, next;
};

struct arena_plan {
    struct arena *arena;
    uint64_t size_bytes;
    struct arena_place place;
    struct arena_hole *holes;
    uint32_t *idle;                 /* slots outside the place that were taken */
    struct arena_stale *stale;      /* mappings that have to go before others are made */
    struct arena_filling *fillings; /* for the holes */
    uint32_t n_holes, n_fillings, n_stale;
    uint32_t n_asked, asked_slots; /* the daemon is asked for so many segments, each of so many slots */
};

/* Claims the place for a size (a multiple of HEAP_GRANULE), as arena_claim_locked(), and takes the idle
 * segments that move there. does_without_large: the request has prepared segments of one slot. *ret_moves:
 * how many move; if any, arena_plan_fenced_locked() comes next. 0; -ENOSPC: no addresses are left; -ENOMEM.
 * On failure nothing is claimed. */
int arena_plan_claim_locked(struct arena_plan *plan, struct arena *arena, uint64_t size_bytes,
                            uint64_t most_moves, bool does_without_large, uint32_t *ret_moves);

/* A fence was left behind all work on the idle segments that were taken: they are the request's. Or none
 * could be: they stay where they were, and new ones come in their place. */
void arena_plan_fenced_locked(struct arena_plan *plan, struct fence fence);
void arena_plan_not_fenced_locked(struct arena_plan *plan);

/* Begins a plan for a request that waits: all of its segments are new, of one slot. 0 or -ENOMEM. */
int arena_plan_wait(struct arena_plan *plan, struct arena *arena, uint64_t size_bytes);

/* Chooses what the daemon is asked for next: plan->n_asked segments of plan->asked_slots slots, the largest
 * first. False: no segment lacks. */
bool arena_plan_next(struct arena_plan *plan);

/* One of the segments that were asked for has come. */
void arena_plan_add_granted(struct arena_plan *plan, const struct lending *lending,
                            struct segment_ref segment);

/* The daemon has none of these: segments of one slot fill the places of large ones. False: they were of one
 * slot, and the request is refused. */
bool arena_plan_refused(struct arena_plan *plan);

/* The request fails: forgets the fillings whose segments are the daemon's, of which the caller has given back
 * those that are here. */
void arena_plan_drop_new(struct arena_plan *plan);

/* All segments of a request that waits have come: claims vacant slots for them. As arena_plan_claim_locked().
 */
int arena_plan_place_locked(struct arena_plan *plan);

/* Finds the fillings whose segments are mapped at one of their slots already, and the other mappings that the
 * place has: plan->stale, plan->n_stale of them, for the caller to take away. There are fillings. */
void arena_plan_look_locked(struct arena_plan *plan);

/* So many of plan->stale are gone. */
void arena_plan_unmapped_locked(struct arena_plan *plan, uint32_t count);

/* Has the slots as wide as their fillings, when plan->stale is gone. 0 or -ENOMEM. */
int arena_plan_shape_locked(struct arena_plan *plan);

/* The end of a run of fillings that begins with one: they lie side by side and are mapped at once, or the one
 * is kept. */
uint32_t arena_plan_run(const struct arena_plan *plan, uint32_t from);

/* The fillings from..to are mapped. */
void arena_plan_mapped_locked(struct arena_plan *plan, uint32_t from, uint32_t to);

/* Ends the claim, as arena_settle_locked(). is_full: all fillings were mapped. */
int arena_plan_settle_locked(struct arena_plan *plan, bool is_full, struct piece **ret_piece);

/* Frees the lists. */
void arena_plan_free(struct arena_plan *plan);

#endif
