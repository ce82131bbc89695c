/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CORE_POOL_H
#define CLIENT_CORE_POOL_H
/*
 * A pool as this process has it: its stream heaps, and the queue of the process's requests that wait for room
 * in it.
 *
 * While the queue is not empty, the gates of the stream heaps are closed. A thread that takes a piece from a
 * stream heap for a buffer, or gives one back there, and finds its gate closed locks the pool before the
 * stream heap (core_pool_lock_heap()). So a release and the look whether it serves a request are one step: no
 * other thread takes in between what the release has joined. Where pieces come into a stream heap otherwise,
 * such as from a thread's cache, the look follows (core_pool_serve_locked()). Where the gate is open, threads
 * of different streams share nothing.
 *
 * A range that has become long enough for a request goes to the daemon for it, which serves requests in their order
 * (core_pool_serve_locked()). A request for segments of an arena is different: the daemon cannot serve it with
 * parts of segments whose rest is in use here. So a range of its own stream heap serves it here.
 *
 * A request at the head of the queue may be passed: others take what fits. target.h bounds that.
 *
 * Locks, both the caller's, in this order: the pool's, a stream heap's. Functions named _locked want the
 * pool's held, and no stream heap's unless they say so; they take those of the stream heaps. Under the pool's
 * lock no thread's cache is visited, no message sent, and no driver called.
 *
 * Invariants, while no thread has the pool's lock: n_waiting is the length of the queue; a stream heap's gate
 * is closed exactly while that is not 0; an extent is closed exactly while it lies in a target of the queue.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "client/core/acquire.h"
#include "client/core/stream_heap.h"

struct core_pool {
    pthread_mutex_t lock;
    struct list stream_heaps; /* stream_heap.pool_link; they stay until the client closes */
    struct list waiting;      /* acquire.link, in order of arrival */
    atomic_uint n_waiting;    /* written under the lock */
};

void core_pool_init(struct core_pool *pool);

/* No request waits. The stream heaps are the caller's to free. */
void core_pool_deinit(struct core_pool *pool);

/* Adds a stream heap, whose pool it is from now on. */
void core_pool_add_locked(struct core_pool *pool, struct stream_heap *stream_heap);

/* A request begins to wait, at the end of the queue; it is borrowed until it leaves. stream_heap: that may
 * serve it here, if it is of segments; NULL: the daemon alone does. size_bytes: of the range, or of the segments, that it needs. When it leaves,
 * waiter->piece is the caller's. */
void core_pool_enter_locked(struct core_pool *pool, struct acquire *waiter, struct stream_heap *stream_heap,
                            uint64_t size_bytes, bool is_of_segments);
void core_pool_leave_locked(struct core_pool *pool, struct acquire *waiter);

/* Whether any request waits. Without a lock: one may have entered since. */
static inline bool core_pool_waits(struct core_pool *pool) {
    return atomic_load(&pool->n_waiting) > 0;
}

/* Whether a request waits, and is not served, that needs no more bytes; or one that waits for segments. */
bool core_pool_waits_for_locked(const struct core_pool *pool, uint64_t most_bytes);
bool core_pool_waits_for_segments_locked(const struct core_pool *pool);
/* As that. The caller holds no lock of the pool or a stream heap. */
bool core_pool_waits_for_segments(struct core_pool *pool);

/* A request that was served. */
struct core_serving {
    struct piece *piece;  /* for the daemon to have; NULL: the request has it */
    uint64_t question_id; /* that the daemon is to forget, because the request has its piece; 0: none */
};

/* Serves the first request for which a stream heap of the pool has a range. The stream heap is locked, too.
 * now_ns: a request that was offered a range before OFFER_NS is offered another one: the first has gone to
 * another process. False: there is none. */
bool core_pool_serve_locked(struct core_pool *pool, struct stream_heap *stream_heap, uint64_t now_ns,
                            struct core_serving *ret_serving);

/* Locks a stream heap for a thread that takes or gives; and its pool before, where the gate is closed.
 * Returns whether it is. The caller holds neither. */
bool core_pool_lock_heap(struct stream_heap *stream_heap);
void core_pool_unlock_heap(struct stream_heap *stream_heap, bool is_closed);

/* Walks the pool and its stream heaps. For tests. The caller holds no lock. */
bool core_pool_is_valid(struct core_pool *pool);

#endif
