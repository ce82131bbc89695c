/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_CACHE_H
#define CLIENT_CACHE_CACHE_H
/*
 * The cache of a client: its stream heaps (the process's heap) and its threads' caches, and the purger, which
 * sees to it that idle memory goes back to the daemon.
 *
 *   thread cache ──miss──▶ depot ──miss──▶ stream heap
 *       ──miss──▶ the stream heap's pieces in this and then in other threads' caches
 *       ──miss──▶ an extent from the daemon (miss.h)
 *
 * Device memory comes back into the stream heap of its stream at once: the stream orders its next use. Memory
 * that is released on another stream, or on the per-thread default stream (which is another one in each
 * thread, under one name), and host memory, which the CPU may touch at once, stand behind a fence of that
 * stream first (deferred.h). Memory that goes to the daemon does so behind a fence of its stream heap's
 * stream. No thread waits for a stream.
 *
 * Locks, in this order:
 *   1. split_lock: pieces become leases of their own
 *   2. give_lock: one thread gives memory back
 *   3. stream_heaps_lock: the list of stream heaps
 *   4. the registry of thread caches (thread_cache.c)
 *   5. a thread cache
 *   6. a pool (client/core/pool.h)
 *   7. a stream heap
 *   8. a depot, the counters, or the debts for moves: leaves
 * 1 and 2 may be held over an exchange with the daemon, 1 to 3 over a call of the driver.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "client/cache/answering.h"
#include "client/cache/move_debts.h"
#include "client/cache/offers.h"
#include "client/cache/purger.h"
#include "client/cache/shortage.h"
#include "client/cache/thread_cache.h"
#include "client/core/pool.h"
#include "client/include/gpupool/gpupool.h"
#include "proto/limits.h"

struct pool;
struct session;

struct cache {
    struct session *session; /* borrowed */
    bool enabled;
    bool has_arenas; /* large pieces of movable segments are cut from arenas */
    /* Pools, by shortage_bit(), of which segments of one slot were prepared: requests do with these. */
    _Atomic uint64_t prepared_pools;
    pthread_mutex_t stream_heaps_lock;
    struct list stream_heaps;
    struct list threads;      /* thread_cache.link */
    struct counters counters; /* where the threads count */
    struct shortage shortage;
    struct core_pool pools[PROTO_POOLS_MAX]; /* by id - 1 */
    struct move_debts move_debts;
    pthread_mutex_t split_lock; /* one piece at a time is split off; guards splits */
    struct list splits;         /* pending ones (split_off.h) */
    pthread_mutex_t give_lock; /* one giver-back at a time; guards pending */
    struct stream_heap_part *pending; /* taken out of stream heaps and not released yet */
    size_t pending_count, pending_capacity;
    bool lacked_memory; /* for the list of these: some memory stayed that was to go */
    unsigned one_way; /* parts released since the daemon last had to answer one */
    bool is_at_limit; /* it said LIMIT: each is to be answered until one is accepted */
    bool unheard;     /* parts were released since it answered something that came after */
    struct request *unanswered; /* the RELEASE of a part, which the daemon took; NULL: none */
    struct stream_heap_part unanswered_part;
    struct offers offers;
    struct purger purger;
    struct answering answering;
};

/* Makes an empty cache that is turned off. The session is borrowed. */
void cache_init(struct cache *cache, struct session *session);
/* Frees bookkeeping, and the addresses of arenas. The purger has stopped, and no segment is mapped any more.
 */
void cache_deinit(struct cache *cache);

/* As cache_deinit in a forked child: takes no locks, which no thread here would open. */
void cache_forget(struct cache *cache);

/* Turns the cache on and starts the purger. reclaim_fd: readable when the daemon wants idle memory back;
 * taken; -1: it never asks. 0 or NO_MEMORY. */
int cache_start(struct cache *cache, uint64_t decay_ns, int reclaim_fd, bool with_thread);

/* Stops the purger and takes the caches from their threads. Cached memory goes back with the farewell. */
void cache_stop(struct cache *cache);

/* The stream heap of a pool and a stream, made when it is first asked for. Host memory has one stream heap,
 * whatever the stream. 0 or NO_MEMORY. */
int cache_stream_heap(struct cache *cache, const struct pool *pool, void *stream,
                      struct stream_heap **ret_stream_heap);

/* The core's part of a pool. id: that of a pool of the daemon's. */
static inline struct core_pool *cache_pool(struct cache *cache, uint32_t id) {
    return &cache->pools[id - 1];
}

/* Puts a buffer's piece, whose GPU work is done or ordered, into this thread's cache. */
void cache_put(struct cache *cache, struct piece *piece);

/* Counts what leaves a buffer in another way than by cache_put: cut off, split off, or given back elsewhere.
 */
void cache_count_given(struct cache *cache, struct stream_heap *stream_heap, uint64_t size_bytes);

/* Counts segments that were moved within an arena. */
void cache_count_moved(struct cache *cache, struct stream_heap *stream_heap, uint64_t moves);

/* Puts a buffer's piece, whose GPU work a fence tells the end of, where it is not used before that. 0 or
 * NO_MEMORY: nothing was done. */
int cache_put_behind(struct cache *cache, struct piece *piece, struct fence fence);

/* As cache_put_behind(), for the part of a piece from kept_bytes on. */
int cache_shrink_behind(struct cache *cache, struct piece *piece, uint64_t kept_bytes, struct fence fence);

/* Gives idle memory back to the daemon: all, or that of stream heaps that were not used since the last call
 * with idle_only. Waits for no GPU work: the memory goes behind fences. *ret_bytes gets how much. 0, or what
 * the driver or the daemon said of some of it, which stays for the next time; CAPTURING: that of a stream
 * which is being captured. */
int cache_give_back(struct cache *cache, bool idle_only, uint64_t *ret_bytes);

/* When the connection has broken: gives up idle memory, and closes the segments that nothing lies in any
 * more. Memory that the GPU still uses, or that another thread is about to use, is left for the next call. */
void cache_let_go(struct cache *cache);

/* Whether the GPU has work of this process on a stream that the cache has memory for. Work on other streams
 * is not seen. */
bool cache_is_busy(struct cache *cache);

/* The piece of a buffer; NULL when the buffer is a lease of its own. */
static inline struct piece *cache_piece(const struct gpupool_buffer *buffer) {
    return (struct piece *)(uintptr_t)buffer->reserved[0];
}

/* Whether work that is enqueued on the stream orders the piece's next use by itself. */
static inline bool cache_orders(const struct stream_heap *stream_heap, const void *stream) {
    return stream_heap->stream == stream &&
           stream != GPUPOOL_PER_THREAD; /* it is another one in each thread */
}

/* Whether there is a stream that orders the stream heap's memory at all. Else what is free in it is not in
 * use by the GPU. */
static inline bool cache_has_order(const struct stream_heap *stream_heap) {
    return stream_heap->kind == GPUPOOL_POOL_DEVICE && stream_heap->stream != GPUPOOL_NO_STREAM &&
           cache_orders(stream_heap, stream_heap->stream);
}

/* Leaves a fence behind all work on memory that is free in a stream heap; FENCE_NONE where nothing orders
 * it. 0, or what fences_enqueue() says. */
int cache_leave_fence(struct cache *cache, const struct stream_heap *stream_heap, struct fence *ret_fence);

/* Host memory has one stream heap, whatever the stream. */
static inline bool cache_is_stream_heap(const struct stream_heap *stream_heap, uint32_t pool,
                                        const void *stream) {
    return stream_heap->pool == pool &&
           (stream_heap->stream == stream || stream_heap->kind == GPUPOOL_POOL_HOST);
}

/* The buffer that a piece is, under its present generation. */
static inline void cache_describe(struct piece *piece, uint64_t size_bytes, struct gpupool_buffer *buffer) {
    const struct stream_heap *stream_heap = piece->stream_heap;
    buffer->data = piece->memory;
    buffer->size_bytes = size_bytes;
    buffer->capacity_bytes = piece->capacity_bytes;
    buffer->pool = stream_heap->pool;
    buffer->kind = stream_heap->kind;
    buffer->device = stream_heap->device;
    buffer->reserved0 = 0;
    buffer->lease = piece->lease;
    buffer->generation = piece->generation;
    buffer->reserved[0] = (uintptr_t)piece;
    buffer->reserved[1] = 0;
}

static inline void cache_fill(struct gpupool_buffer *buffer, struct piece *piece, uint64_t size_bytes) {
    piece->generation++;
    cache_describe(piece, size_bytes, buffer);
}

/* A hit: from this thread's cache, if it is the stream heap used last and has a piece of the class. The piece
 * is the caller's, under a new generation. NULL: not this way. */
static inline struct piece *cache_hit(const struct cache *cache, uint32_t pool, uint64_t size_bytes,
                                      const void *stream) {
    struct thread_cache *thread = client_thread()->caches;
    struct piece *piece = NULL;

    if (thread == NULL || atomic_load_explicit(&thread->owner, memory_order_relaxed) != cache ||
        size_bytes - 1 >= PROTO_SIZE_MAX || !thread_cache_try_enter(thread))
        return NULL;
    struct thread_bins *stream_heap = thread->last;
    if (stream_heap != NULL && cache_is_stream_heap(stream_heap->stream_heap, pool, stream)) {
        piece = bin_pop(&stream_heap->bins[size_class_of(size_bytes)], size_bytes);
        if (piece != NULL) {
            struct proto_counters *counters = stream_heap->counters;
            stream_heap->touched = true;
            count_up(&counters->hits, 1);
            count_up(&counters->taken_bytes, piece->capacity_bytes);
            piece->generation++;
        }
    }
    thread_cache_quit(thread);
    return piece;
}

/* As cache_hit(), into a buffer. */
static inline bool cache_take_fast(const struct cache *cache, uint32_t pool, uint64_t size_bytes,
                                   const void *stream, struct gpupool_buffer *ret_buffer) {
    struct piece *piece = cache_hit(cache, pool, size_bytes, stream);
    if (piece != NULL)
        cache_describe(piece, size_bytes, ret_buffer);
    return piece != NULL;
}

/* The counterpart: into this thread's cache, if it is the stream heap used last and the bin is not full. */
static inline bool cache_put_fast(const struct cache *cache, struct piece *piece) {
    struct thread_cache *thread = client_thread()->caches;
    bool hit = false;

    if (thread == NULL || atomic_load_explicit(&thread->owner, memory_order_relaxed) != cache ||
        !thread_cache_try_enter(thread))
        return false;
    struct thread_bins *stream_heap = thread->last;
    if (stream_heap != NULL && stream_heap->stream_heap == piece->stream_heap &&
        (piece->size_class < SIZE_CLASS_SINGLE || piece->size_class == stream_heap->single_class) &&
        bin_push(&stream_heap->bins[piece->size_class], piece)) {
        piece->generation++;
        count_up(&stream_heap->counters->given_bytes, piece->capacity_bytes);
        stream_heap->touched = true;
        hit = true;
    }
    thread_cache_quit(thread);
    return hit;
}

/* Whether a piece that was handed out under a generation may go back by cache_put_fast: it is out, and
 * nothing but its stream heap's stream has to order what comes after the work that the caller says is on a
 * stream, which is the only one that uses it. */
static inline bool cache_may_put(const struct piece *piece, uint64_t generation, const void *stream) {
    return piece->generation == generation && generation % 2 == 1 && piece->marks == 0 &&
           cache_orders(piece->stream_heap, stream);
}

/* Releases a buffer into this thread's cache when nothing else is to be done. */
static inline bool cache_release_fast(const struct cache *cache, const struct gpupool_buffer *buffer,
                                      const void *stream) {
    struct piece *piece = cache_piece(buffer);
    return piece != NULL && cache_may_put(piece, buffer->generation, stream) && cache_put_fast(cache, piece);
}

#endif
