/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_OWN_MAPPING_H
#define BASE_OWN_MAPPING_H
/*
 * Shared memory that is lent to this process alone: segments, pages, boards, and the memory of simulated
 * GPUs. Neither a forked child nor a core file gets it.
 *
 * Mappings are MADV_DONTFORK, which alone would leave holes in a child. The child's next mappings would fill
 * them, and the parent's pointers would then name other memory. So the process has a table of these mappings,
 * and three handlers of fork():
 *   1. In the parent, before: the table is locked, and the mappings become such that a child inherits them.
 *   2. In the child: inaccessible mappings take their places (PROT_NONE). They stay, also in children of the
 *      child. No other mapping of the child can come between, whatever handlers of other libraries do.
 *   3. In the parent, after: the mappings are MADV_DONTFORK again, and the table is unlocked.
 * Each fork() costs two calls of madvise() in the parent and one of mmap() in the child for each mapping.
 * vfork() and posix_spawn() run no handlers, and copy no mappings. A child of _Fork() or of a bare clone()
 * runs none either: its holes stay.
 *
 * A driver's own mapping may refuse to be inherited. The child then fills the hole, except where a handler of
 * another library has mapped memory before.
 *
 * Invariant: the table has all mappings of this process that are not unmapped. The mappings of the parent are
 * in a second table, which has no use but own_mapping_is_parents().
 */
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

struct own_mapping {
    struct list link;
    void *memory;
    uint64_t size_bytes;
    bool is_inherited; /* between handler 1 and handlers 2 and 3 */
};

/* Maps size_bytes from the start of fd, as mapping_make(). Returns 0 and the mapping, which
 * own_mapping_unmap() ends, or a negative errno. Thread-safe. */
int own_mapping_make(int fd, uint64_t size_bytes, uint64_t align_bytes, struct own_mapping **ret_mapping);

/* Enters memory that another part of the process mapped: a driver, or a reservation of addresses.
 * own_mapping_forget() comes before the memory is unmapped. Returns 0, or a negative errno: nothing was
 * entered. Thread-safe. */
int own_mapping_adopt(void *memory, uint64_t size_bytes, struct own_mapping **ret_mapping);

/* Takes memory out of forked children and core files that was mapped within adopted addresses. A hint. */
void own_mapping_advise(void *memory, uint64_t size_bytes);

/* Takes a mapping out of the table. Accepts NULL. Not in a forked child, whose table has none of its
 * parent's. */
void own_mapping_forget(struct own_mapping *mapping);

/* Forgets the mapping and unmaps the memory. False: the kernel refused. Accepts NULL. */
bool own_mapping_unmap(struct own_mapping *mapping);

/* Forgets the mapping. In its place comes memory of this process alone, of zeros, so that a thread which
 * still uses the addresses does no harm. No other mapping can come between. False: the kernel refused.
 * Accepts NULL. */
bool own_mapping_replace(struct own_mapping *mapping);

/* Whether an address lies in a mapping of this process's parents, which is inaccessible here. */
bool own_mapping_is_parents(const void *address);

/* Whether core files have the mappings that are made from now on. They have none until this is called. */
void own_mapping_set_dumped(bool is_dumped);

#endif
