/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_TAKE_H
#define CLIENT_CACHE_TAKE_H
/*
 * Taking a piece of what the process has of a stream heap: from this thread's bins, from the depot, and from
 * the stream heap's heap. No message is sent, and no driver called.
 *
 * Functions take the locks of the thread's cache, and then those of the pool and the stream heap.
 */
#include <stdbool.h>
#include <stdint.h>

struct cache;
struct gpupool_buffer;
struct piece;
struct stream_heap;
struct thread_bins;
struct thread_cache;

/* From what this thread and the process have of a stream heap that this thread has used before: no driver is
 * asked, no message sent. False: not this way. */
bool cache_take(struct cache *cache, uint32_t pool, uint64_t size_bytes, const void *stream,
                struct gpupool_buffer *ret_buffer);

/* The size that a request takes from a stream heap: that of its class; from a tight pool no more than it
 * needs. */
uint64_t cache_needs(const struct stream_heap *stream_heap, uint64_t size_bytes);

/* Takes a piece for a size. has_asked: the daemon was asked on the way, so it counts as a miss. 0; -ENOSPC:
 * nothing is there; -ENOMEM. The piece's generation is even. */
int take_piece(struct thread_cache *thread, struct stream_heap *stream_heap, uint64_t size_bytes,
               bool has_asked, struct piece **ret_piece);

/* Counts a piece that came straight from the daemon, as a miss and as a pass of the requests that wait. thread:
 * NULL: no thread counts it. */
void take_count(struct thread_cache *thread, struct stream_heap *stream_heap, const struct piece *piece);

/* Whether other threads' caches are looked into before the stream heap grows. For small pieces not every
 * time: what lies there is on its way from one thread to another where one takes and another gives back, and
 * with a little more memory it is there when it is needed. */
bool take_may_collect(struct stream_heap *stream_heap, uint64_t size_bytes);

/* The thread's bins of a stream heap, made where there are none; the fast paths try these next. NULL without
 * memory. Inside the thread's cache. */
struct thread_bins *take_bins(struct thread_cache *thread, struct stream_heap *stream_heap);

#endif
