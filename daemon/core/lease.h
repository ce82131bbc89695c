/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_LEASE_H
#define DAEMON_CORE_LEASE_H
/*
 * A block is what was cut from a segment for one acquire: a range, or what is left of it after parts came
 * back. A lease is one session's right to use it, named by id and generation. The block lives while it has
 * leases, and its bytes are charged to the pool once: as leased while a lease that a live session can use is
 * on it; else as quarantined while a lease of a lost session is; else, when only fenced leases are left, as
 * fenced.
 *
 *   live --released behind a fence--> fenced --the fence is ready--> gone
 *   live --released--> gone      either --its session is lost--> quarantined --the session is gone--> gone
 *
 * A fenced lease has no name any more (lease_find); its id stays taken until it is gone.
 *
 * A part that its session gave back, and for which a limit leaves no lease, becomes a part of a fenced lease
 * that waits for the same word. If there is none, or if a limit leaves no ranges, the part is withheld: it
 * stays a part of its block, and costs nothing more than that. It comes back with the rest, and not before
 * the fences behind which it was given back are ready.
 *
 * A block that lies in several segments is a row (row.h). It has one range a segment, and is released whole.
 *
 * A shared block has a token, by which other sessions of the same tenant attach: they get leases of their
 * own. Parcels (parcel.h) hold a shared block besides its leases: it lives while it has any of both, and its
 * bytes are charged as leased.
 */
#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/types.h"

void lease_table_deinit(struct lease_table *table);

/* Opens a lease on a new block over a taken range (taken over on success). The tenant is charged for lease
 * and block; whether it may have them (session_may_lease, tenant_may_take) is the caller's to ask before.
 * Returns 0 or -ENOMEM. */
int lease_open(struct session *session, struct heap_range *range, uint64_t size_bytes,
               struct lease **ret_lease);

/* Opens a further lease on a block that another session holds. Returns 0 or -ENOMEM. */
int lease_join(struct session *session, struct block *block, struct lease **ret_lease);

/* For heir.h. A block whose ranges are in its list is charged to its tenant. is_shared: it is found by its token
 * from now on. Returns 0, -ENOMEM, or -EBADMSG: another one has the token. */
int block_restore(struct block *block, struct tenant *tenant, bool is_shared);

/* For heir.h. Frees a block that has no leases, no parcels and no ranges. */
void block_discard(struct core *core, struct block *block);

/* For heir.h. Opens a lease with the id, the generation and what else a predecessor's had: wanted. Of one
 * session they come in the order of their generations. The caller bounds the id, by which the table is as long.
 * Returns 0, -ENOMEM, or -EBADMSG: another one has the id. */
int lease_restore(struct session *session, struct block *block, const struct lease *wanted,
                  struct lease **ret_lease);

/* For heir.h. To be called behind the last lease_restore(): until then the table gives no id. Linear in it. */
void lease_table_restored(struct lease_table *table);

/* For heir.h. The lease waits for its fence_value in the queue. */
void lease_restore_fence(struct lease *lease, struct fence_queue *queue);

/* Ends a lease. With the last lease of its block, the block's memory returns to the heap, and the pool is
 * marked as ready. */
void lease_close(struct lease *lease);

/* Part of a lease's block: its first and its last range, and the offsets in the segment where it begins and
 * ends. It holds until the lease changes. */
struct lease_part {
    struct lease *lease;
    struct heap_range *first, *last;
    uint64_t start, end;
};

/* Finds the part [offset, offset + size) of the block, in bytes. The lease has to hold all of it. Returns 0,
 * PROTO_E_INVALID (not wholly held, or the offset or the size is no multiple of HEAP_GRANULE, or the block is
 * a row) or PROTO_E_SHARED. */
int lease_find_part(struct lease *lease, uint64_t offset_bytes, uint64_t size_bytes,
                    struct lease_part *ret_part);

/* The ranges by which a part that leaves its lease makes them more at most. */
#define LEASE_PART_RANGES_MAX 2u

/* Whether what is left without the part is in as many ranges as the block and the session may have.
 * *ret_ranges: how many ranges more there are then. becomes_lease: the part's own stay. */
bool lease_part_fits(const struct lease_part *part, bool becomes_lease, unsigned *ret_ranges);

/* Gives a part back. Ends the lease when nothing is left. Returns 0 or -ENOMEM. */
int lease_release_part(struct lease_part *part);

/* Makes a part a block of its own with a new lease of the same session. The part leaves the old lease as if
 * it had been released, but never returns to the heap: the sums of the pool and of the session stay what they
 * were. Returns 0 or -ENOMEM. */
int lease_split(struct lease_part *part, struct lease **ret_lease);

/* lease_split() in two steps. After the first, the part is charged twice, and the new lease has no ranges
 * yet: what can fail beside it is done now. Then lease_end_split(), which cannot fail, or lease_close() of
 * the new lease. */
int lease_begin_split(struct lease_part *part, struct lease **ret_lease);
void lease_end_split(struct lease_part *part, struct lease *lease);

/* Whether [offset, offset + size) is all that the lease has but for withheld parts, and it alone has it: then
 * disposing of that part is disposing of the lease. */
bool lease_is_all(const struct lease *lease, uint64_t offset_bytes, uint64_t size_bytes);

/* The session gave the lease up, but may use it until the queue's word has the value. queue: NULL: it uses it
 * no more. The lease ends, at once or when that fence and those of its withheld parts are ready. Cannot fail.
 */
void lease_give_up(struct lease *lease, struct fence_queue *queue, uint64_t value);

/* The fence that the lease waits for is ready: ends it, or has it wait for the next fence of its withheld
 * parts. Each word is waited for once at most. */
void lease_pass_fence(struct lease *lease);

/* Has the last fenced lease of the queue take over a part: so the part waits for its fence without a lease of
 * its own. The lease waits for that fence then, too. Returns whether it could: it lies in the same segment,
 * alone has its block, which gets into no more ranges than it may have, and either it waits for the fence
 * already, or it is not the queue's only lease: one to which parts come all the time would never be the first
 * whose fence is ready. */
bool lease_join_fenced(struct lease_part *part, struct fence_queue *queue, uint64_t value);

/* Withholds a part: the session gave it up as by lease_give_up(). The lease ends when nothing else is left of
 * it. Returns 0, or PROTO_E_INVALID: more is given back than the lease has, so some of it twice. */
int lease_withhold(const struct lease_part *part, struct fence_queue *queue, uint64_t value);

/* Has the lease's block take over all that another lease of the same session holds; the other lease ends.
 * That lies in the same segment and above the start of the lease's block, or it continues the lease's block
 * in another segment (row_can_continue), and the block is a row then. The sums of the pool and of the session
 * stay what they were. spare: how many more ranges than otherwise it may have then, unless it is a row.
 * Returns 0, PROTO_E_INVALID, PROTO_E_SHARED or PROTO_E_LIMIT. */
int lease_merge(struct lease *lease, struct lease *other, unsigned spare);

/* Moves the lease's charge from leased or fenced to quarantined, when its session is lost. */
void lease_quarantine(struct lease *lease);

/* The session's lease of that name, or NULL: a stale generation, another session's, a fenced one, or none.
 * Nor one whose answer is still to be taken: names can be guessed, and it must not go before its answer. */
struct lease *lease_find(struct core *core, const struct session *session, uint64_t id, uint64_t generation);

/* Makes the block known under a token (or gives the one that it has). Returns 0 or -ENOMEM. */
int block_share(struct core *core, struct block *block, const struct proto_token *fresh,
                struct proto_token *ret_token);

/* A parcel, which has its block and its edition, holds the block, which is shared. */
void block_hold(struct parcel *parcel);

/* The parcel does not hold its block any more. The block ends with its last holder. */
void block_drop(struct parcel *parcel);

/* The block of a token, or NULL. */
struct block *block_find(struct core *core, const struct proto_token *token);

#endif
