/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/pointer_map.h"

#include <errno.h>
#include <sys/mman.h>

_Atomic(void *) pointer_map_root[1u << POINTER_MAP_ROOT_BITS];

/* Pages of their own rather than calloc: untouched ones cost nothing. */
static void *node_make(size_t size_bytes) {
    void *node =
        mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return node == MAP_FAILED ? NULL : node;
}

/* The node in a slot, made if need be. Of two threads that make one, the slower throws its own away. */
static void *node_need(_Atomic(void *) *slot, size_t size_bytes) {
    void *node = atomic_load_explicit(slot, memory_order_acquire);
    if (node != NULL)
        return node;
    void *made = node_make(size_bytes);
    if (made == NULL)
        return NULL;
    if (atomic_compare_exchange_strong_explicit(slot, &node, made, memory_order_acq_rel,
                                                memory_order_acquire))
        return made;
    munmap(made, size_bytes);
    return node;
}

/* The entry of an address, which the table covers. NULL without memory. */
static _Atomic(struct piece *) *entry_need(const void *memory) {
    struct pointer_branch *branch =
        node_need(&pointer_map_root[pointer_map_branch_of(memory)], sizeof *branch);
    if (branch == NULL)
        return NULL;
    struct pointer_leaf *leaf = node_need(&branch->leaves[pointer_map_leaf_of(memory)], sizeof *leaf);
    return leaf == NULL ? NULL : &leaf->pieces[pointer_map_entry_of(memory)];
}

int pointer_map_set(const void *memory, struct piece *piece) {
    if (!pointer_map_covers(memory))
        return -ERANGE;
    _Atomic(struct piece *) *entry = entry_need(memory);
    if (entry == NULL)
        return -ENOMEM;
    atomic_store_explicit(entry, piece, memory_order_release);
    return 0;
}

/* The highest entry of a leaf up to a number. */
static struct piece *find_in_leaf(struct pointer_leaf *leaf, unsigned from) {
    for (unsigned i = from + 1; leaf != NULL && i-- > 0;) {
        struct piece *piece = atomic_load_explicit(&leaf->pieces[i], memory_order_acquire);
        if (piece != NULL)
            return piece;
    }
    return NULL;
}

/* Of the leaves of a branch up to a number, of which the last one counts up to an entry. */
static struct piece *find_in_branch(struct pointer_branch *branch, unsigned from, unsigned entry) {
    const unsigned last = (1u << POINTER_MAP_LEAF_BITS) - 1;
    struct piece *piece = NULL;

    for (unsigned i = from + 1; branch != NULL && piece == NULL && i-- > 0;)
        piece = find_in_leaf(atomic_load_explicit(&branch->leaves[i], memory_order_acquire),
                             i == from ? entry : last);
    return piece;
}

struct piece *pointer_map_find_below(const void *memory) {
    const unsigned last_leaf = (1u << POINTER_MAP_BRANCH_BITS) - 1, last = (1u << POINTER_MAP_LEAF_BITS) - 1;
    struct piece *piece = NULL;

    if ((uintptr_t)memory >> POINTER_MAP_ADDRESS_BITS != 0)
        return NULL;
    const unsigned from = pointer_map_branch_of(memory);
    for (unsigned i = from + 1; piece == NULL && i-- > 0;)
        piece = find_in_branch(atomic_load_explicit(&pointer_map_root[i], memory_order_acquire),
                               i == from ? pointer_map_leaf_of(memory) : last_leaf,
                               i == from ? pointer_map_entry_of(memory) : last);
    return piece;
}

void pointer_map_clear(const void *memory, struct piece *piece) {
    struct piece *expected = piece;

    if (pointer_map_find(memory) != piece)
        return;
    atomic_compare_exchange_strong_explicit(entry_need(memory), &expected, NULL, memory_order_acq_rel,
                                            memory_order_relaxed);
}
