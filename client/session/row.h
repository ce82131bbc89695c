/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_ROW_H
#define CLIENT_SESSION_ROW_H
/*
 * The rows that this process has attached: blocks in several segments, which are mapped side by side at
 * addresses of their own. A session owns one table of them.
 *
 * A block that is attached for reading is mapped like a row, also if it lies in one segment: the segment's
 * other mapping, if there is one, is for writing.
 *
 * A row is found by the list of its segments, and what it may be used for. Each lease on it is a *use*:
 * several leases, of one block or of blocks that lie in the same segments one after another, use one mapping.
 * A row that no lease uses stays mapped, as a segment does, and serves the next lease without a call of the
 * driver.
 *
 *     rows_open ──▶ USED ──the last lease is released──▶ IDLE ──rows_open──▶ USED
 *                                                          │
 *        above ROWS_IDLE_MAX and behind its fences, or ────┴──▶ unmapped, its addresses freed
 *        the daemon has a segment of it closed
 *
 * An *own* row is one lease's, and no other lease uses its mapping (own_row.h). Its lease can unmap it and map it
 * again, or other segments in their place, at the same addresses. Nothing finds it again when its lease was
 * released: it ends as soon as a call of rows_end_own() finds its fences ready.
 *
 * Invariants: n_leases counts the uses that are not released; a row is in the list of idle rows exactly when
 * it is 0. A use that was released stays until its fence is ready.
 *
 * Locks: `making` is held over the driver's calls that make or end a row, and while a segment is removed: so
 * the segments that a thread looks up under it stay. `lock` is held briefly, for the table. Order: making,
 * lock; both before the connection's and the segments'. No exchange with the daemon is made under them.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "client/session/fence.h"
#include "client/session/lease.h"
#include "client/session/mapped_range.h"
#include "proto/proto.h"

struct session;

/* A client attaches few buffers at a time, most of them in segments of an earlier one. An idle row costs
 * addresses, and the page tables of its mappings. */
#define ROWS_IDLE_MAX 64u
#define ROW_BUCKETS   64u

struct mapped_row {
    struct list link;      /* in its bucket, or among those that could not be unmapped */
    struct list idle_link; /* in rows.idle, the one that was used last at the end */
    enum gpu_access access;
    struct list uses;      /* struct row_use.link */
    struct list waiting;   /* likewise, those that were released */
    unsigned n_leases;
    bool is_own;
    bool is_unmapped;           /* of an own row: its addresses map nothing */
    uint64_t offset_bytes;      /* of an own row: where the block begins */
    struct mapped_range *range; /* it begins with the first segment, not with the block; owned */
    uint32_t n_parts;           /* 0: an own row, unmapped, whose segments went back */
    uint64_t *segments;         /* of the parts: their ids; owned. The mapping of a part has its number */
};

struct row_use {
    struct list link;       /* in row->uses, or row->waiting */
    struct list lease_link; /* in its bucket of rows.leases; in none once it was released */
    struct mapped_row *row;
    uint64_t lease, generation;
    struct fence fence; /* behind which it was released */
};

struct rows {
    pthread_mutex_t making, lock;
    struct list rows[ROW_BUCKETS];   /* by their segments */
    struct list leases[ROW_BUCKETS]; /* uses, by their leases */
    struct list idle, stuck;         /* stuck: the driver would not unmap them */
    unsigned n_idle;
    atomic_uint n_own; /* own rows in the table; changes under the lock */
};

void rows_init(struct rows *rows);

/* Unmaps all rows and frees their addresses. No thread and no GPU uses them any more. Those that the driver
 * would not unmap stay until rows_deinit(): segments_close() tries again, and tells. */
void rows_close(struct session *session);

/* Frees the bookkeeping. The segments were closed before, and with them what was still mapped. Also for a
 * forked child, where the locks and the mappings are the parent's: rows_forget(). */
void rows_deinit(struct rows *rows);
void rows_forget(struct rows *rows);

/* Makes the memory of a lease accessible, apart from other mappings of its segments: of a lease with parts,
 * or of one in a segment that is movable (which is given): asks the daemon for the parts, has it describe the
 * segments that this session has not seen, imports all, and maps them side by side, unless they are so
 * mapped already. access.is_own: the row is the lease's own. uuid names the pool's device. *ret_memory: the first byte of the block, the session's until
 * rows_release(). On failure nothing is mapped, and the lease is still the caller's to give back.
 * Thread-safe.
 *
 * Returns 0; as segments_import(); DRIVER; NO_MEMORY; PROTOCOL (what the daemon said does not check out, and
 * the connection is broken); or what the daemon and the connection say. */
int rows_open(struct session *session, const struct proto_lease *lease, const struct segment *segment,
              const uint8_t uuid[PROTO_UUID_BYTES], struct lease_access access, char **ret_memory);

/* A lease was released behind a fence. Does nothing for a lease that is not of a row. Thread-safe. */
void rows_release(struct session *session, uint64_t lease, uint64_t generation, struct fence fence);

/* Marks the segments of rows that leases lie in (held.h). */
void rows_mark(struct session *session);

/* Where the block of a lease lies in this process; NULL: the lease is of no row, or of another one than the
 * daemon tells. Thread-safe. */
void *rows_locate(struct rows *rows, uint64_t lease, uint64_t generation, const struct proto_info *info);

/* As segments_remove(), with the rows that the segment is a part of: they are ended before. The daemon said
 * that nothing is leased in it, behind no fence either, so nothing uses these rows. */
int rows_remove_segment(struct session *session, uint64_t id, uint32_t pool);

/* Ends the own rows whose lease was released and whose fences are ready. Takes no lock where the session has no own row.
 */
void rows_end_own(struct session *session);

/* --- for own_row.h --- */

/* Reserves addresses, and maps imported segments of one device there side by side. The row is in no table. 0,
 * DRIVER, NO_MEMORY, DISCONNECTED. */
int row_make(struct session *session, const struct mapped_part *parts, uint32_t count, enum gpu_access access,
             struct mapped_row **ret_row);

/* Enters a row, with a use of a lease. Both are taken. */
void rows_add(struct rows *rows, struct mapped_row *row, uint64_t lease, uint64_t generation,
              struct row_use *use);

/* The ids of segments, for a row; the caller's. NULL: no memory. */
uint64_t *row_list_segments(const struct mapped_part *parts, uint32_t count);

/* The use of a lease that is not released, or NULL; has a use go under the name of another lease. rows->lock is
 * held. */
struct row_use *rows_find_use_locked(struct rows *rows, uint64_t lease, uint64_t generation);
void row_name_use_locked(struct rows *rows, struct row_use *use, uint64_t lease, uint64_t generation);

#endif
