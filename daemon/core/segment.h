/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_SEGMENT_H
#define DAEMON_CORE_SEGMENT_H
/*
 * A segment: one allocation from the driver or the kernel, exported once. Its pool owns it.
 *
 *   UNASSIGNED --first lease--> ASSIGNED (to one tenant, for good)
 *   either, while idle --limit or trim--> RETIRING --the shell freed it--> gone
 *   ASSIGNED, nothing taken --its mappers are told to close it--> CLOSING --all have, or are gone--> RETIRING
 *   ASSIGNED, nothing taken --its one mapper offers to close it--> CLOSING --it has, or is gone--> ASSIGNED
 *
 * A segment never goes from one tenant to another: a client that once saw a handle can keep it. The memory
 * has to go back to the driver first, when no process has it mapped.
 *
 * An *orphan* is a segment that a daemon before made, and of which this one has no descriptor: it cannot be
 * described to another session. Leases in it and its mappings stay, but nothing of it is
 * lent: its span is closed. Once no session has it mapped, it is retired.
 *
 * A pool may have very many segments, and no request, plan or answer walks them. A segment that is UNASSIGNED
 * or ASSIGNED is on a shelf: each tenant's heap has one for each size, and so has the pool for segments
 * without a tenant. A shelf counts its *empty* segments, of which nothing is taken, and the *idle* ones among
 * them, which no session has mapped. An empty segment of a tenant is also where a session that has to close
 * it finds it: in the tree of its one mapper, or in a list of the heap where it has several. segment_settle()
 * keeps all of that.
 */
#include <stdint.h>

#include "daemon/core/types.h"

/* The size of the smallest segment that has that many bytes. */
static inline uint64_t segment_bytes_for(uint64_t bytes) {
    return (bytes + SEGMENT_GRANULE - 1) / SEGMENT_GRANULE * SEGMENT_GRANULE;
}

/* Makes sure that there is a slot that no segment has. Returns 0 or -ENOMEM. */
int segment_reserve_slot(struct core *core);

/* Makes more slots. Returns 0 or -ENOMEM. */
int segment_grow_slots(struct core *core);

/* The segment has a free slot from now on, until it leaves it. */
void segment_take_slot(struct segment *segment);
void segment_leave_slot(const struct segment *segment);

/* For heir.h. The segment has this slot, which is there and free. Until segment_slots_restored() no other slot may
 * be taken, which is linear in the slots. */
void segment_restore_slot(struct segment *segment, uint32_t slot);
void segment_slots_restored(struct core *core);

/* Puts a new segment, with its pool, id and size, among those of the pool. Returns 0 or -ENOMEM, and nothing
 * has changed. */
int segment_join(struct segment *segment);

/* Undoes segment_join(). The segment has no owner and no mappers. */
void segment_leave(struct segment *segment);

/* Finds or makes the shelf that the segment is on while the heap owns it. Returns 0 or -ENOMEM. */
int segment_reserve_owner(struct segment *segment, struct tenant_heap *heap);

/* Undoes segment_reserve_owner(). The segment is settled without an owner. */
void segment_drop_owner(struct segment *segment, struct tenant_heap *heap);

/* To be called when the state, the owner, what is taken or the mappers of the segment have changed. Puts it
 * where it belongs now, keeps the sums of its pool, and notes for which waiting requests something changed.
 * Constant time, but for the trees. */
void segment_settle(struct segment *segment);

/* The segment of an id. NULL: there is none. */
struct segment *segment_find(const struct core *core, uint64_t id);

/* The shelf of a size of a pool or a heap. NULL: there is none. */
const struct shelf *shelf_find(const struct tree *shelves, uint64_t size_bytes);

/* The shelf of the least size that is at least that, and the one after another. NULL: there is none. */
struct shelf *shelf_first_at_least(const struct tree *shelves, uint64_t size_bytes);
struct shelf *shelf_next(const struct shelf *shelf);

#endif
