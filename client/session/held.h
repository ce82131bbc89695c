/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_HELD_H
#define CLIENT_SESSION_HELD_H
/*
 * The memory that a session still maps when its daemon is gone.
 *
 * The leases that buffers are (and not pieces of the cache) are listed here, with the segments that they lie
 * in. While the daemon lives, it knows them, too, and nothing here is asked. When the connection has broken,
 * session_let_go() closes each segment that nothing lies in any more. Segments in use are marked before: by
 * this list, by the rows, and by the owner of the session for its cache.
 *
 * A thread that may bring a segment into the process, or move one, holds `bringing` for reading meanwhile,
 * and session_let_go() for writing.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/session/fence.h"

#define HELD_BUCKETS 64u

struct session;

struct held_lease {
    struct held_lease *next; /* in its bucket */
    uint64_t lease, generation, segment;
    bool is_released; /* behind the fence, after the connection broke */
    struct fence fence;
};

struct holdings {
    pthread_mutex_t lock; /* a leaf */
    struct held_lease *buckets[HELD_BUCKETS];
    bool is_incomplete; /* there was no memory for an entry: no segment is let go */
    pthread_rwlock_t bringing;
};

void held_init(struct holdings *held);
void held_deinit(struct holdings *held);

/* As held_deinit() in a forked child: takes no lock. */
void held_forget(struct holdings *held);

/* Lists a lease with one of its segments. */
void held_add(struct holdings *held, uint64_t lease, uint64_t generation, uint64_t segment);

/* Takes a lease from the list, with all its segments: it was released, or it ended. */
void held_end(struct holdings *held, uint64_t lease, uint64_t generation);

/* Releases a lease, behind a fence, whose daemon is gone. 0, or STALE: it is not in the list. */
int held_release(struct holdings *held, uint64_t lease, uint64_t generation, struct fence fence);

/* Closes the segments that nothing lies in, if the connection has broken. mark: calls segments_mark() for
 * what else lies in segments, and returns whether the GPU has work of this process: then what would wait for
 * that is not closed now. NULL: nothing else does. Where another thread is about to bring a segment, or where
 * the GPU is not through with one, it is left for the next call. */
void session_let_go(struct session *session, bool (*mark)(void *owner), void *owner);

/* Whether the connection has broken. Notices it where the daemon ended while no thread talked to it. */
bool session_is_over(struct session *session);

/* While a thread may bring a segment: _cleanup_(bringing_endp) struct session *bringing = bringing_begin(…).
 */
struct session *bringing_begin(struct session *session);
void bringing_endp(struct session **session);

#endif
