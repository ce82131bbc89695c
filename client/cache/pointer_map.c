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

void pointer_map_clear(const void *memory, struct piece *piece) {
    struct piece *expected = piece;

    if (pointer_map_find(memory) != piece)
        return;
    atomic_compare_exchange_strong_explicit(entry_need(memory), &expected, NULL, memory_order_acq_rel,
                                            memory_order_relaxed);
}
