/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CORE_ARENA_H
#define CLIENT_CORE_ARENA_H
/*
 * An arena: addresses of a stream heap that are reserved once, far more than the pool has memory, in slots of
 * one size. A segment of the daemon's that is as large as a slot is mapped there, so that memory out of many
 * segments is one range, and the heap cuts pieces across their borders. To the stream heap an arena is one
 * extent. Memory that is not there is absent, as parts that an extent gave back; but each slot is a lease of
 * its own, and can be filled and emptied beside running kernels.
 *
 * A large segment fills several slots side by side, which are joined then: they are one slot, under the
 * number of the lowest. Joined slots stay joined when their segment leaves them, until other ones are to be
 * mapped there (arena_shape_locked). "A slot" below is one of either kind.
 *
 *   VACANT ──a miss──▶ BUSY ──filled──▶ HELD ──all of it lost──▶ LEAVING ──fences left──▶ VACANT
 *                       │                │ ▲
 *                       └──▶ VACANT      │ └──the place around it is filled, or nothing was taken
 *                                        └──a miss elsewhere──▶ BUSY ──its segment moved──▶ VACANT
 *
 * An idle segment may be moved to another slot at once, also while the GPU still works on it. The old mapping
 * stays, and the new one is made beside it. The stream orders old and new uses, as it does for all free
 * memory of the heap. (CUDA keeps two mappings of one memory coherent from one operation of a stream to the
 * next: CUDA Programming Guide, "Virtual Aliasing Support".)
 *
 * A part of a slot that leaves goes behind a fence; the slot is LEAVING until all of them have been left. Where
 * one cannot be, the part comes back, and the slot is HELD.
 *
 * A slot that is VACANT may still map a segment that was moved or released. Another one is mapped there only
 * when the fences that were left then are ready, for only then may the old mapping go. Where the daemon has
 * the segment closed, all its mappings go, and the arena is told (arena_unmapped_locked): that is behind the
 * fences of its release, which come after all others of the stream.
 *
 * A slot knows which segment its addresses map, and in which slot that begins. The mapping of a large segment
 * may reach across slots that are not joined any more. So it is taken away as a whole before one of them is
 * filled: arena_list_stale_locked() says which mappings those are.
 *
 * Invariants: absent ranges of the arena lie in one slot each, but for those that a thread has claimed
 * (arena_claim_locked); a slot that is not HELD has no piece; absent_bytes of a HELD slot is what left it;
 * slots that are joined map the same.
 *
 * All functions want the stream heap's lock held, unless they say something else.
 */
#include <stdbool.h>
#include <stdint.h>

#include "client/core/stream_heap.h"

struct mapped_range;
struct segment;

/* Addresses of an arena are so many times the pool's memory: a place for a long piece is to be found beside
 * pieces that stay. */
#define ARENA_ADDRESS_FACTOR 4u

/* So much of the memory that is needed an arena grows to, where moves do not pay. Traces of 40 to 100 live
 * buffers of up to 500 MiB still move 30 to 50 segments in 1,000 operations at 145 %, and 3 to 8 at 160 %.
 * Other traces do not come so far. */
#define ARENA_CEILING_PERCENT UINT64_C(160)

enum arena_slot_state {
    ARENA_SLOT_VACANT,
    ARENA_SLOT_BUSY, /* a thread fills or empties it */
    ARENA_SLOT_HELD, /* leased and mapped; the heap has it */
    ARENA_SLOT_LEAVING,
};

/* A segment of which the core knows the name alone. Ids are not used again. */
struct segment_ref {
    struct segment *segment; /* borrowed, and not looked at here */
    uint64_t id;             /* 0: none */
};

struct arena_slot {
    struct lending lending;     /* while HELD, LEAVING */
    struct segment_ref segment; /* of the lease */
    uint64_t maps;              /* the id of the segment that its addresses map; 0: they map nothing */
    uint32_t maps_from;         /* the slot that this mapping begins in */
    enum arena_slot_state state;
    bool is_new;           /* BUSY: it was VACANT, and has nothing yet */
    bool is_target;        /* kept for a request that waits (target.h) */
    uint64_t absent_bytes; /* while HELD: of what left it; LEAVING: all */
    struct fence fence;    /* of what left it last */
    bool has_fences; /* several that nothing orders: its addresses are not used again before it is unmapped */
    unsigned n_out;  /* parts that left, of which it is not known yet behind which fence */
    uint32_t n_above; /* slots above it that are joined to it. These have no state */
    uint32_t below;   /* of a slot that is joined to a lower one: how far below that is */
};

/* How many slots a segment fills: one, or those of a large segment. The pool's limit decides: struct arena.
 */
enum arena_width {
    ARENA_WIDTH_ONE,
    ARENA_WIDTH_HALF,
    ARENA_WIDTH_LARGE,
    ARENA_WIDTHS,
};

/* Slots that are VACANT, and that are wholly free, by their width: joined ones count as many as they are. */
struct arena_count {
    uint32_t vacant, idle[ARENA_WIDTHS];
};

struct arena {
    struct extent extent; /* what the stream heap sees of it; first */
    uint64_t slot_bytes, reserved_bytes;
    struct mapped_range *range;    /* the owner's; not looked at here */
    uint32_t widths[ARENA_WIDTHS]; /* in slots, ascending; 0: the pool has no such segments */
    uint32_t n_slots, capacity;    /* those that the extent has; those that there are addresses for */
    struct arena_slot *slots;
    uint64_t most_bytes; /* the most that its stream heap needed at a miss, pieces in use and the new one */
    struct arena_count *below; /* of each slot, and of the end: as of the last search for a place */
};

/* A place for a piece that is to be filled: the addresses from offset_bytes on, and the slots that they are
 * in. Joined ones are counted one by one. */
struct arena_place {
    uint64_t offset_bytes, size_bytes;
    uint32_t first, last;
    uint32_t n_vacant;  /* slots that have to be filled */
    uint32_t n_asked;   /* of these, as many as get new segments; the others get idle ones of the arena */
    bool is_grown;      /* all of them get new ones */
    bool is_all_vacant; /* none of it is there */
};

/* Makes an arena over reserved addresses, with one vacant slot, and adds it to the stream heap. large_bytes:
 * the size of the large segments, of which some are half as large; 0: there are none. -ENOMEM: nothing was
 * done. */
int arena_add_locked(struct stream_heap *stream_heap, enum stream_heap_half half, char *memory,
                     uint64_t reserved_bytes, uint64_t slot_bytes, uint64_t large_bytes);

static inline struct arena *arena_of(struct extent *extent) {
    return extent->is_arena ? (struct arena *)(void *)extent : NULL;
}

/* Frees the bookkeeping; the addresses are the caller's again. */
void arena_free(struct arena *arena);

static inline uint32_t arena_slot_at(const struct arena *arena, uint64_t offset_bytes) {
    uint32_t number = (uint32_t)(offset_bytes / arena->slot_bytes);
    return number - arena->slots[number].below;
}

/* The next slot, where a slot begins and ends, and its size. Slots do not change their width while they have
 * a piece, so that these and arena_slot_at() take no lock for the addresses of a piece. */
static inline uint32_t arena_slot_after(const struct arena *arena, uint32_t number) {
    return number + 1 + arena->slots[number].n_above;
}

static inline uint64_t arena_slot_start(const struct arena *arena, uint32_t number) {
    return number * arena->slot_bytes;
}

static inline uint64_t arena_slot_end(const struct arena *arena, uint32_t number) {
    return arena_slot_start(arena, arena_slot_after(arena, number));
}

static inline uint64_t arena_slot_bytes(const struct arena *arena, uint32_t number) {
    return (1 + arena->slots[number].n_above) * arena->slot_bytes;
}

/* How many slots a slot of its own state has, as one of the widths. */
static inline enum arena_width arena_width_of(const struct arena *arena, uint32_t number) {
    uint32_t n_slots = 1 + arena->slots[number].n_above;

    return n_slots == 1                                 ? ARENA_WIDTH_ONE
           : n_slots == arena->widths[ARENA_WIDTH_HALF] ? ARENA_WIDTH_HALF
                                                        : ARENA_WIDTH_LARGE;
}

/* Finds the place for best->size_bytes, as arena_claim_locked() says, and takes nothing. best->is_grown: all
 * slots that have to be filled get new segments. best->is_all_vacant: in vacant slots only. False: there are
 * no addresses for it. */
bool arena_find_place_locked(struct arena *arena, struct arena_place *best);

/* Finds a place for a size (a multiple of HEAP_GRANULE) and takes it: its free memory, and those of its slots
 * that are not HELD, which become BUSY. It is the place that needs the fewest new segments, of those the one
 * with the fewest slots to fill. most_moves: so many idle segments may move there (move_debts.h). Where that
 * place takes more, it is the place with the fewest slots to fill, all of which get new segments; but not if
 * the stream heap would have more than ARENA_CEILING_PERCENT of the most that it needed at a miss. Vacant
 * slots that are joined across an end of the place become single. 0; -ENOSPC: no addresses are left; -ENOMEM.
 */
int arena_claim_locked(struct arena *arena, uint64_t size_bytes, uint64_t most_moves,
                       struct arena_place *ret_place);

/* As arena_claim_locked(), but only slots that are VACANT: so many side by side. */
int arena_claim_vacant_locked(struct arena *arena, uint32_t n_slots, struct arena_place *ret_place);

/* Takes up to count slots of a width outside of a place that are wholly free: they become BUSY. Returns how
 * many were taken. */
uint32_t arena_take_idle_locked(struct arena *arena, const struct arena_place *place, enum arena_width width,
                                uint32_t *ret_slots, uint32_t count);

/* Makes the ranges of the heap end where slots do that are joined now and are to have other widths; nothing
 * is free there. 0 or -ENOMEM: they have to stay as they are. */
int arena_divide_locked(struct arena *arena, uint32_t start, uint32_t end);

/* A mapping that is in the way of other segments: the number of its first slot. */
struct arena_stale {
    uint32_t slot;
    uint64_t segment; /* the id of the one that it maps */
};

/* Lists the mappings in the slots from..end, which were claimed, each once: ret_stale has room for each slot.
 * Returns how many. Nothing uses them, so the caller takes them away. Another thread may list the same one,
 * of which its slots have a part. */
uint32_t arena_list_stale_locked(const struct arena *arena, uint32_t from, uint32_t end,
                                 struct arena_stale *ret_stale);

/* A mapping is gone: the one that was listed; or, without a list, all mappings of a segment. */
void arena_forget_stale_locked(struct arena *arena, const struct arena_stale *stale);
void arena_unmapped_locked(struct arena *arena, uint64_t segment);

/* Whether a slot maps a segment just as it would be mapped there. */
static inline bool arena_maps_locked(const struct arena *arena, uint32_t number, uint64_t segment) {
    return arena->slots[number].maps == segment && arena->slots[number].maps_from == number;
}

/* Slots that are to be filled, or that become single, and were divided: so many from a number on are joined,
 * or are single again (1). state: of all of them before and afterwards, VACANT or BUSY. Slots that were joined get their new widths, the lowest first, before one of them is filled. */
void arena_shape_locked(struct arena *arena, uint32_t number, uint32_t n_slots, enum arena_slot_state state);

/* A slot that was taken goes back to the heap. */
void arena_return_locked(struct arena *arena, uint32_t number);

/* A slot that was taken is emptied: its segment and its lease are another's. Its old mapping may go when the
 * fence is ready. Or: a slot has been filled with a lease and its segment, which is mapped there. */
void arena_empty_locked(struct arena *arena, uint32_t number, struct fence fence);
void arena_fill_locked(struct arena *arena, uint32_t number, const struct lending *lending,
                       struct segment_ref segment);

/* Ends a claim: what is there of the place goes to the heap, with the rest of the slots that were filled. If
 * ret_piece is not NULL, all slots were filled, and the place becomes a piece. 0 or -ENOMEM: there is none.
 */
int arena_settle_locked(struct arena *arena, const struct arena_place *place, struct piece **ret_piece);

/* The lease that a byte of an extent belongs to. */
struct lending *extent_lending_at(struct extent *extent, uint64_t offset_bytes);

/* Bookkeeping of parts: a range, which lies in one slot, leaves the arena. Whether its lease ends thereby. */
bool arena_lose_locked(struct arena *arena, uint64_t offset_bytes, uint64_t size_bytes);

/* As arena_lose_locked() for a range in several slots, without memory to divide it: these slots are not
 * filled again. */
void arena_abandon_locked(struct arena *arena, struct heap_range *range);

/* A part that left a slot comes back, of which no fence could be left: it is free in the heap again. */
void arena_regain_locked(struct arena *arena, uint32_t number, uint64_t offset_bytes, uint64_t size_bytes);

/* A fence that a part which left a slot stands behind. */
void arena_note_fence_locked(struct arena *arena, uint32_t number, struct fence fence);

/* A part of a slot that is to go to the daemon: slots that are free, or of which all that did not leave
 * before is free, the highest first. any_size: parts of slots in use, too. False: nothing is. *ret_range is
 * taken.
 */
bool arena_reclaim_locked(struct arena *arena, bool any_size, struct heap_range **ret_range);

/* As arena_reclaim_locked(), for slots of which a part left before: what is left of one, if all of it is
 * free. */
bool arena_reclaim_rest_locked(struct arena *arena, struct heap_range **ret_range);

/* As arena_reclaim_locked(), for what is free in slots that are a target. */
bool arena_reclaim_target_locked(struct arena *arena, struct heap_range **ret_range);

/* Whether a slot may be a target: its lease is one that a request which waits gets. How much of it is in use.
 */
bool arena_may_be_target_locked(const struct arena *arena, uint32_t number);
uint64_t arena_used_bytes_locked(const struct arena *arena, uint32_t number);

/* For tests. */
bool arena_is_valid(const struct arena *arena);

#endif
