/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_POINTER_MAP_H
#define CLIENT_CACHE_POINTER_MAP_H
/*
 * From the address of memory to its piece, in three loads: what gpupool_free() starts from. One table for the
 * process, because a pointer says nothing of its client.
 *
 * It is a radix tree over the 48 bits of an address: 13 bits in the root, 14 in a branch (32 GiB of
 * addresses), 12 in a leaf (2 MiB), one entry for each 512 bytes, which is what a piece is aligned to.
 * Branches and leaves are made when the first entry in their reach is, from pages that cost memory only where
 * entries are (a leaf of 2 MiB in pieces of 512 bytes: 32 KiB; one with a single piece: 4 KiB). They are
 * never taken apart, because readers take no locks; their cost is bounded by the addresses that the
 * process ever used.
 *
 * An entry is there from the first time that a piece is handed out as a pointer until its memory leaves the
 * piece. The thread that sets or clears an entry owns the piece at that moment; entries are atomic, so that a
 * look-up of any address at any time is harmless.
 *
 * Thread-safe, without locks, so also in a forked child.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "heap/heap.h"

#define POINTER_MAP_ADDRESS_BITS                                                                             \
    48u /* of user space on x86-64 and arm64; mmap gives no higher address unless asked */
#define POINTER_MAP_GRANULE_BITS 9u
#define POINTER_MAP_LEAF_BITS    12u
#define POINTER_MAP_BRANCH_BITS  14u
#define POINTER_MAP_ROOT_BITS    13u
_Static_assert(HEAP_GRANULE == 1u << POINTER_MAP_GRANULE_BITS,
               "one entry for each place that a piece can begin");
_Static_assert(POINTER_MAP_GRANULE_BITS + POINTER_MAP_LEAF_BITS + POINTER_MAP_BRANCH_BITS +
                       POINTER_MAP_ROOT_BITS ==
                   POINTER_MAP_ADDRESS_BITS,
               "the levels cover an address");

struct piece;

struct pointer_leaf {
    _Atomic(struct piece *) pieces[1u << POINTER_MAP_LEAF_BITS];
};

struct pointer_branch {
    _Atomic(void *) leaves[1u << POINTER_MAP_BRANCH_BITS]; /* struct pointer_leaf */
};

extern _Atomic(void *) pointer_map_root[1u << POINTER_MAP_ROOT_BITS]; /* struct pointer_branch */

/* Whether a piece may begin at the address, as far as the table is concerned. */
static inline bool pointer_map_covers(const void *memory) {
    return ((uintptr_t)memory & (HEAP_GRANULE - 1)) == 0 &&
           (uintptr_t)memory >> POINTER_MAP_ADDRESS_BITS == 0;
}

/* Where an address is in each level. */
static inline unsigned pointer_map_entry_of(const void *memory) {
    return (unsigned)((uintptr_t)memory >> POINTER_MAP_GRANULE_BITS & ((1u << POINTER_MAP_LEAF_BITS) - 1));
}

static inline unsigned pointer_map_leaf_of(const void *memory) {
    return (unsigned)((uintptr_t)memory >> (POINTER_MAP_GRANULE_BITS + POINTER_MAP_LEAF_BITS) &
                      ((1u << POINTER_MAP_BRANCH_BITS) - 1));
}

static inline unsigned pointer_map_branch_of(const void *memory) {
    return (unsigned)((uintptr_t)memory >>
                      (POINTER_MAP_GRANULE_BITS + POINTER_MAP_LEAF_BITS + POINTER_MAP_BRANCH_BITS));
}

/* Enters a piece at the address where its memory begins. Returns 0; -ENOMEM; -ERANGE for an address that the
 * table does not cover. An earlier entry is replaced. */
int pointer_map_set(const void *memory, struct piece *piece);

/* Clears the entry, if it is the piece's: another client of the process may have the memory by now. */
void pointer_map_clear(const void *memory, struct piece *piece);

/* The piece with the highest beginning up to an address, wherever it ends; NULL: there is none. Looks at the
 * entries below the address one after the other: a microsecond for some megabytes. */
struct piece *pointer_map_find_below(const void *memory);

/* The piece that begins at the address; NULL: none does. */
static inline struct piece *pointer_map_find(const void *memory) {
    if (!pointer_map_covers(memory))
        return NULL;
    struct pointer_branch *branch =
        atomic_load_explicit(&pointer_map_root[pointer_map_branch_of(memory)], memory_order_acquire);
    if (branch == NULL)
        return NULL;
    struct pointer_leaf *leaf =
        atomic_load_explicit(&branch->leaves[pointer_map_leaf_of(memory)], memory_order_acquire);
    if (leaf == NULL)
        return NULL;
    return atomic_load_explicit(&leaf->pieces[pointer_map_entry_of(memory)], memory_order_acquire);
}

#endif
