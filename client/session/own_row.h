/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_OWN_ROW_H
#define CLIENT_SESSION_OWN_ROW_H
/*
 * Own rows: rows (row.h) that one lease uses alone, so that what is mapped at their addresses may change under the
 * pointers of the program. The addresses stay reserved from the making of the row to the release of the buffer.
 *
 *     own_row_make, rows_open ──▶ MAPPED ──own_row_unmap──▶ UNMAPPED ──own_row_empty──▶ EMPTY
 *                                 ▲  │  ▲                      │                          │
 *             own_row_change ─────┘──┘  └─────own_row_map──────┘                          │
 *                                 └────────────own_row_fill, own_row_change───────────────┘
 *
 * In UNMAPPED the lease is still the session's. In EMPTY it is not: the row is known by the name of the lease that
 * it had, until own_row_fill() gives it another one. An address that maps nothing faults, on the GPU as well.
 *
 * Unmapping waits for no kernel and protects none: the caller has seen the end of all GPU work on the memory.
 *
 * Invariants: n_parts is 0 exactly when EMPTY. In UNMAPPED no part is mapped, but for those that the driver would
 * not unmap; in MAPPED all are.
 *
 * Each row is one thread's at a time, as its buffer is. Different rows may be in different threads. The caller
 * holds no lock, and is between bringing_begin() and bringing_endp() (held.h).
 */
#include <stdbool.h>
#include <stdint.h>

#include "client/session/connection.h"
#include "proto/proto.h"

struct session;

/* A block of whole segments, and the lease on it. */
struct own_block {
    struct proto_lease_name lease;
    struct segment_grant *segments; /* imported; in the block's order. Their own leases are not looked at */
    uint32_t count;
};

/* Reserves addresses and maps a block there. *ret_memory: its first byte. 0, DRIVER, NO_MEMORY, DISCONNECTED: nothing
 * is mapped, and the lease is still the caller's to give back. */
int own_row_make(struct session *session, const struct own_block *block, char **ret_memory);

/* Whether a lease has an own row, mapped or not. Thread-safe. */
bool own_row_is(struct session *session, struct proto_lease_name lease);

/* How many bytes of addresses a row has: those of the segments that it maps. */
uint64_t own_row_bytes(struct session *session, struct proto_lease_name lease);

/* Takes the mappings away. 0, also where they were gone; DRIVER: a part could not be unmapped. *ret_is_unmapped tells
 * then whether the others are mapped again, so that the row is as it was. */
int own_row_unmap(struct session *session, struct proto_lease_name lease, bool *ret_is_unmapped);

/* Maps a row again that is UNMAPPED. 0; DRIVER, NO_MEMORY, DISCONNECTED: it is UNMAPPED still. */
int own_row_map(struct session *session, struct proto_lease_name lease);

/* The lease of a row that is UNMAPPED was given back. Returns the ids of its segments, for the caller to offer
 * (lease_close_offered()) and to free; *ret_count: how many. */
uint64_t *own_row_empty(struct session *session, struct proto_lease_name lease, uint32_t *ret_count);

/* Maps another block of the same size into a row that is EMPTY, which has the name of the block's lease then. 0;
 * DRIVER, NO_MEMORY, DISCONNECTED: it is EMPTY still, and the lease the caller's. */
int own_row_fill(struct session *session, struct proto_lease_name lease, const struct own_block *block);

/* --- the block of another lease --- */

/* A block that may take the place of the one in a row, with all that its mapping needs but the driver's calls. Its
 * segments are imported. Both leases are the caller's, and neither is released while there is a change for them. */
struct own_change {
    struct mapped_row *row;        /* borrowed */
    struct proto_lease_name lease; /* of the block that is not in the row */
    struct mapped_range *range;    /* the bookkeeping of its mappings; owned, as what follows */
    uint64_t *segments;
    struct mapped_part *parts;
    uint32_t count;   /* of its segments; 0: the row is EMPTY without the other block */
    bool is_unmapped; /* it is not mapped when it comes into the row */
};

/* Prepares a change to the block of a lease that was taken, and of which nothing is mapped. segment: the lease's first
 * one; uuid names the pool's device. The block will be mapped with the access of the row (rows_open()). *ret_change is
 * the caller's, for own_change_free(). 0; INVALID: the blocks differ in size, or in where they begin in their first
 * segments; else as rows_open(). */
int own_row_prepare(struct session *session, struct proto_lease_name lease, const struct proto_lease *other,
                    const struct segment *segment, const uint8_t uuid[PROTO_UUID_BYTES],
                    struct own_change *ret_change);

/* Has the other block be in the row, which goes by the name of its lease then. Afterwards *change is that back: a
 * second call undoes the first one. 0; DRIVER, NO_MEMORY, DISCONNECTED: the row has the block that it had, mapped as it
 * was, or UNMAPPED where the driver does not map it any more; the error's text says so. */
int own_row_change(struct session *session, struct own_change *change);

void own_change_free(struct own_change *change);

/* Whether a row is MAPPED. */
bool own_row_is_mapped(struct session *session, struct proto_lease_name lease);

/* Whether the block of a row, which has so many bytes, is all of its segments: only such blocks lie alike in their
 * segments for certain. */
bool own_row_is_whole(struct session *session, struct proto_lease_name lease, uint64_t capacity_bytes);

#endif
