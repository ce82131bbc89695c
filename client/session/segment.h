/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_SEGMENT_H
#define CLIENT_SESSION_SEGMENT_H
/*
 * The segments that this client has been told of. A client owns one table; a segment stays in it, at the same
 * place, until the client closes, or until the daemon has it closed because no session has a lease in it.
 *
 * The daemon describes a segment once in a session, with the first lease in it. The thread that reads that
 * lease from the socket enters the description (segments_enter), in order of arrival, so that a later lease
 * without a description finds it. Opening is left to the thread that got the lease, because it may take long:
 * a memfd is mapped and registered with the driver, a handle is opened, a descriptor for the driver imported
 * and mapped.
 *
 *     DESCRIBED ──segments_open──▶ OPENING ──▶ OPEN
 *         ▲                           │
 *         └────────── failed ─────────┘   the description is kept: the daemon will not repeat it
 *
 * A segment of device memory by descriptor can be mapped at further places (segments_map), whether it is OPEN
 * or not: what it needs for that is its handle (segments_import), which stays until the segment is closed.
 *
 * A descriptor that does not arrive, because the process has none free, leaves the segment in the table,
 * lost. Each later lease in it finds it there, and has the daemon describe it again (lease_bring()).
 *
 * Invariants: fd ≥ 0 only for a segment that came with a descriptor, is not OPEN and has no handle;
 * memory != NULL exactly when OPEN.
 *
 * Lock order: the connection's lock may be held when the table's is taken, never the other way round. The
 * lock of the mappings is held over calls of the driver; the table's may be taken under it.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/own_mapping.h"
#include "client/core/stream_heap.h"
#include "client/session/device.h"
#include "proto/proto.h"

/* Host memory is mapped at multiples of a huge page, whatever its pages are. The driver pins what it
 * registers page by page: 4 GiB took 60 ms in huge pages and 244 ms in small ones (H200, driver 580). */
#define SEGMENT_MAP_ALIGN_BYTES (UINT64_C(2) << 20)

/* A client deals with tens of segments, rarely with thousands: a bucket holds a few even then. */
#define SEGMENT_BUCKETS 256u

enum segment_state {
    SEGMENT_DESCRIBED,
    SEGMENT_OPENING,
    SEGMENT_OPEN,
};

struct segment {
    struct list link; /* in its bucket */
    uint64_t id;
    uint64_t size_bytes;
    uint32_t pool;
    enum proto_segment_kind kind;
    enum segment_state state;
    bool is_lost;   /* its descriptor did not arrive: it is to be described again */
    bool is_named;  /* the daemon has it closed, and no thread has begun with that */
    bool is_marked; /* something lies in it (held.h) */
    bool is_left;   /* segments_leave() has ended it, and it stays OPENING */
    int fd;
    struct gpu_ipc_handle handle;
    void *memory;
    struct own_mapping *mapping; /* of host memory */
    int device;            /* ordinal in this process; -1 for host memory */
    unsigned context;      /* the device in whose context the driver mapped it */
    const struct gpu *gpu; /* the table it was opened or registered with; NULL: plain host memory */
    bool is_registered;
    bool has_vmm_handle; /* it was imported */
    uint64_t vmm_handle;
    struct list mappings; /* struct segment_mapping.link, under the lock of the mappings */
};

/* A further mapping of a segment, whole, in a mapped range (mapped_range.h). */
struct segment_mapping {
    struct list link;
    struct segment *segment; /* NULL: nothing is mapped there, or no more: the segment was closed */
    char *memory;
};

/* A segment that is to be mapped, and the number of its mapping. */
struct mapped_part {
    struct segment *segment;
    uint32_t number;
};

/* Told when a segment is closed that may have mappings, once these are gone, and before the segment's object
 * is; but not when the client closes. The thread holds the lock of the rows (row.h), and none of the connection
 * or the segments. */
struct segments_listener {
    void (*closed)(void *owner, const struct segment *segment); /* NULL: no object is told */
    void *owner;
};

struct segments {
    pthread_mutex_t lock;
    pthread_cond_t opened; /* a segment has left OPENING */
    struct list buckets[SEGMENT_BUCKETS];
    unsigned n_named; /* segments that are named */
    bool unclean; /* the driver would not close one that was removed */
    pthread_mutex_t mappings_lock;
    bool is_left; /* segments_leave() has begun; changes with both locks held */
    struct segments_listener listener; /* set before the second thread comes */
};

void segments_init(struct segments *segments);

/* Closes what is open, with all mappings: unregisters and unmaps, closes handles. No thread uses the memory
 * any more. is_idle: nor does a GPU; otherwise memory whose mapping would go away under it stays. Returns
 * true when all is closed, so that the daemon may be told that this process maps nothing. */
bool segments_close(struct segments *segments, bool is_idle);

/* Closes one segment, with all its mappings, and forgets it: the daemon said that nothing in it is leased. 0;
 * -EBADMSG: there is no such segment of the pool, or it is being opened; -EIO: the driver would not close it.
 */
int segments_remove(struct segments *segments, uint64_t id, uint32_t pool);

/* Takes the marks from all segments; marks one; finds one without a mark, and marks it. is_any: also one
 * whose closing waits for the work of the process on a device. is_done: also one whose closing does not wait
 * for work on its memory. False: there is none. */
void segments_unmark(struct segments *segments);
void segments_mark(struct segments *segments, uint64_t id);
bool segments_find_unmarked(struct segments *segments, bool is_any, bool is_done, uint64_t *ret_id,
                            uint32_t *ret_pool);

/* Which pools there are segments of: bit id - 1. */
uint64_t segments_pools(struct segments *segments);

/* Ends the mappings of a process that ends, while its other threads may still use the memory, and call the
 * library: the bookkeeping stays, and the addresses of host memory stay mapped, to memory of this process
 * alone. Opening and mapping fail with DISCONNECTED from then on. Nothing of the process's is at work on a
 * device, and no thread removes a segment (row.h). Returns true when the process maps nothing any more: not
 * so while a thread opens a segment. */
bool segments_leave(struct segments *segments);

/* Closes what is still open and frees the bookkeeping. */
void segments_deinit(struct segments *segments);

/* Only frees the bookkeeping: in a forked child the mappings are not there. */
void segments_forget(struct segments *segments);

/* Checks a lease against the table and enters the description that it brings, if it brings one. *fd is the
 * message's descriptor, -1 or FD_LOST (socket.h), and is taken when the description is entered; so is the
 * first of spares (segment.link), the memory for the new segment. is_again: the segment may have been
 * described before. Returns NULL and the lease's segment, or what is wrong with the lease. */
const char *segments_enter(struct segments *segments, const struct proto_lease *lease, int *fd, bool is_again,
                           struct list *spares, struct segment **ret_segment);

/* Notes that the daemon has a segment closed. False: there is no such segment. */
bool segments_name(struct segments *segments, uint64_t id);

/* Takes one of the segments that were noted, for the caller to close. False: there is none. */
bool segments_take_named(struct segments *segments, uint64_t *ret_id, uint32_t *ret_pool);

/* Where a block lies in this process; NULL when there is no such block of this pool, or its segment is not
 * open. */
void *segments_locate(struct segments *segments, uint64_t id, uint32_t pool, uint64_t offset_bytes,
                      uint64_t capacity_bytes);

/* The segment of an id, or NULL. It stays as long as something of it is leased. */
struct segment *segments_find(struct segments *segments, uint64_t id);

/* Returned by segments_open() and segments_import() where the segment's descriptor did not arrive. */
#define SEGMENT_IS_LOST 1

/* Opens a segment, unless it is open: afterwards its memory can be used. uuid names the device of a device
 * pool. Returns 0, SEGMENT_IS_LOST, DRIVER, NO_POOL (device not visible in this process), NO_GPU,
 * DISCONNECTED. */
int segments_open(struct segments *segments, struct segment *segment, struct devices *devices,
                  const uint8_t uuid[PROTO_UUID_BYTES]);

/* Whether segments of a kind can be mapped at further places. */
bool segment_is_movable(const struct segment *segment);

/* Imports a segment that is movable, unless it is imported: afterwards it can be mapped. Returns 0, or as
 * segments_open(). */
int segments_import(struct segments *segments, struct segment *segment, struct devices *devices,
                    const uint8_t uuid[PROTO_UUID_BYTES]);

/* How the core sees an open segment. */
static inline struct segment_view segment_view_of(const struct segment *segment) {
    return (struct segment_view){
        .segment = segment, .memory = segment->memory, .size_bytes = segment->size_bytes};
}

/* For mapped_range.h: maps segments at addresses, of the mappings that the parts have the numbers of; takes a
 * mapping away. */
int segments_map(struct segments *segments, const struct mapped_part *parts, unsigned count,
                 struct segment_mapping *mappings, char *memory, enum gpu_access access);
int segments_unmap(struct segments *segments, struct segment_mapping *mapping, uint64_t id);

#endif
