/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_LEASE_H
#define CLIENT_SESSION_LEASE_H
/*
 * Leases: what the daemon lends to this client; question.h acquires them. Each function here is one exchange
 * with it, or one message that is not answered. Callers decide whether a lease is a buffer of its own or an
 * extent that buffers are cut from.
 *
 * Thread-safe. Errors are GPUPOOL_E_…, with the error text set.
 */
#include <stdbool.h>
#include <stdint.h>

#include "client/session/connection.h"
#include "client/session/fence.h"
#include "client/session/pool.h"
#include "client/session/segment.h"
#include "proto/proto.h"

struct session;

/* How the memory of a lease is mapped. */
struct lease_access {
    enum gpu_access access;
    bool is_own; /* at addresses of its own, which no other lease uses (own_row.h) */
};
#define LEASE_READ_WRITE ((struct lease_access){.access = GPU_ACCESS_READ_WRITE})

/* A lease that the daemon granted, its segment (a row's first one), and the kind of its pool. */
struct grant {
    struct proto_lease lease;
    struct segment *segment; /* the session's */
    char *memory;            /* its first byte */
    uint32_t pool_kind;
};

/* Asks the daemon which idle segments of a pool this process has to close, and closes them. That stops the
 * work of the process on the device, and launches of its other threads wait, so the daemon names some only
 * where nothing else helps: a request of size_bytes of this process's that was refused (0: requests that
 * wait). is_busy: this process has work on the GPU. 0 also when there are none; *ret_any: whether any were
 * closed. */
int lease_close_idle(struct session *session, uint32_t pool_id, uint64_t size_bytes, bool is_busy,
                     bool *ret_any);

/* Sends an ACQUIRE or ATTACH (it is taken), and makes the memory of the lease accessible: opens its segment,
 * or maps the segments of a row side by side (row.h). */
int lease_take(struct session *session, struct request *request, uint64_t deadline_ns,
               struct lease_access access, struct grant *ret_grant);

/* A lease's part of a segment: for DESCRIBE. */
struct lease_part {
    uint64_t lease, generation;
    uint32_t part;
};

/* Opens a segment, or imports it, for a lease that lies in it: as segments_open() and segments_import().
 * Where its descriptor did not arrive, has the daemon describe it again. DRIVER: it did not arrive again. */
int lease_bring(struct session *session, const struct lease_part *part, struct segment *segment,
                const uint8_t uuid[PROTO_UUID_BYTES], bool imports);

/* Closes what the daemon had named and is still open: another thread's answer came late, or a CLOSED was not
 * taken. 0, or what the connection says. */
int lease_close_named(struct session *session);

/* Makes the memory of a lease that has come accessible, as lease_take() does. Where it fails, the lease went
 * back. */
int lease_accept(struct session *session, const struct request *reply, struct lease_access access,
                 struct grant *ret_grant);

/* Offers the daemon to close segments of a pool that are movable and that this process has given back, and
 * closes those that the daemon names: nothing in them is leased, and no other process has them mapped. Their
 * ids become 0. Waits for no kernel. */
int lease_close_offered(struct session *session, uint32_t pool_id, uint64_t *ids, size_t count);

/* Gives a part of a lease back; size 0: all of it. No session gets the memory before the fence is ready.
 * LIMIT: the daemon keeps no more for this session that is not ready; nothing was released. TIMED_OUT: the
 * daemon took no message. Where it took the message and does not answer, this returns 0: it reads its
 * messages in order, and refuses no whole lease that is the session's. So one without a fence needs no memory
 * to wait for the answer: it never returns NO_MEMORY. */
int lease_release(struct session *session, uint64_t lease, uint64_t generation, uint64_t offset_bytes,
                  uint64_t size_bytes, struct fence fence);

/* As lease_release(), and *ret_kept is the request that the daemon took and did not answer yet (TIMED_OUT),
 * for connection_go_on(). NULL: none. */
int lease_release_kept(struct session *session, uint64_t lease, uint64_t generation, uint64_t offset_bytes,
                       uint64_t size_bytes, struct fence fence, struct request **ret_kept);

/* Releases a whole lease, which others of its block see by a fence on the board. It is answered only where
 * the daemon may not have read PROTO_UNHEARD_MAX one-way messages, which threads that release at the same
 * time can each pass by one. The daemon refuses no release of a lease that is this session's, but where it
 * has no memory the session keeps the lease to its end. */
int lease_release_shared(struct session *session, uint64_t lease, uint64_t generation, struct fence fence,
                         const struct proto_board_fence *board_fence);

/* As lease_release for a part, without an answer: 0 does not mean that it was released. Of the parts that go
 * so, one lease's and one client's, at least every LEASE_ONE_WAY_MAX-th (client/core/stream_heap.h) is to be
 * released with an answer, and after a LIMIT all until one was. */
int lease_release_one_way(struct session *session, uint64_t lease, uint64_t generation, uint64_t offset_bytes,
                          uint64_t size_bytes, struct fence fence);

/* As lease_release, and at the daemon's limit waits on the CPU for the fence. TIMED_OUT: it is not ready in
 * the time that an answer may take; nothing was released. */
int lease_release_patiently(struct session *session, uint64_t lease, uint64_t generation,
                            uint64_t offset_bytes, uint64_t size_bytes, struct fence fence);

/* Makes a part of a lease one of its own. *ret_kept: the request that the daemon took and did not answer yet
 * (TIMED_OUT), for lease_split_go_on(); NULL: none. */
int lease_split(struct session *session, uint64_t lease, uint64_t generation, uint64_t offset_bytes,
                uint64_t size_bytes, struct proto_lease *ret_lease, struct request **ret_kept);

/* Goes on with a SPLIT of so many bytes that was not answered: as lease_split(). *kept is NULL when it is
 * over. */
int lease_split_go_on(struct session *session, struct request **kept, uint64_t size_bytes,
                      uint64_t deadline_ns, struct proto_lease *ret_lease);

/* Has a lease take over what another one holds, which lies above its start in the same segment; the other one
 * ends. Without an answer: for leases of which it is known that they can be merged, else the daemon ends the
 * session. Counts as a part released one-way. On failure they are not merged. */
int lease_merge_one_way(struct session *session, uint64_t lease, uint64_t generation,
                        const struct proto_lease *other);

/* As lease_merge_one_way(), for a caller that holds a lock: the message leaves in the order in which it was
 * put, when the caller, or another thread, sends (connection_send_rest()). False: they are not merged. */
bool lease_merge_put(struct session *session, uint64_t lease, uint64_t generation,
                     const struct proto_lease *other);

/* Makes a row of a lease: the memory of another one, in another segment, continues it, and that lease ends.
 * The lease reaches the end of its last segment, the other one is the start of its own, or all of it, and
 * both segments are movable. Without an answer, unless one is wanted: as lease_merge_one_way(). */
int lease_append(struct session *session, const struct proto_lease *lease, const struct proto_lease *other,
                 bool is_answered);

/* Gives back a lease that could not be used, or leases on segments. The error that led here is the one to
 * report. */
void lease_give_back(struct session *session, const struct proto_lease *lease);
void lease_give_back_segments(struct session *session, const struct segment_grant *grants, uint32_t count);

#endif
