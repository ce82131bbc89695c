/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_GROW_H
#define CLIENT_CACHE_GROW_H
/*
 * How a stream heap gets more memory when it has none for a request, in four steps.
 *
 * - Look: at deferred pieces whose fences have become ready in the meantime.
 * - Ask: the daemon for an extent. Its pool grows for it, but no process is asked for memory.
 * - Collect, once, what this process has: in other threads' caches, and behind fences that the stream heap's
 * stream can wait for. The pool is tight from now on (shortage.h). Idle memory of other stream heaps goes to
 * the daemon.
 * - Ask again, for just what is needed, and wait until the deadline. Memory that other threads release in the
 * meantime goes to the daemon as soon as it is long enough.
 *
 * Of a pool that is short nothing is kept here, so the second step and most of the third are left out. No
 * mapping is closed on the way, unless the daemon finds that nothing else helps (lease_close_idle).
 */
#include <stdint.h>

#include "client/cache/stream_heap.h"

struct cache;
struct grant;

/* Gets memory for a request. 0: *ret_piece is what was leased for it, out of the stream heap already; NULL:
 * there is more in the stream heap's heap than before, which is to be asked again (other threads may be
 * quicker). EXHAUSTED and what lease_acquire says: *ret_piece is NULL. probe: as in buffer_acquire(). */
int stream_heap_grow(struct cache *cache, struct stream_heap *stream_heap, uint64_t size_bytes,
                     uint64_t deadline_ns, uint32_t probe, struct piece **ret_piece);

/* Adds a lease, whose segment is open, to a stream heap: to an extent that it continues, else as an extent of
 * its own. 0; NO_MEMORY: the lease was given back. */
int stream_heap_add_lease(struct cache *cache, struct stream_heap *stream_heap, const struct grant *grant);

#endif
