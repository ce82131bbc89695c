/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_ARENA_GROW_H
#define CLIENT_CACHE_ARENA_GROW_H
/*
 * How a stream heap with an arena gets memory for a large request: a place, whose missing segments are taken
 * from where they are idle in the arena, and then from the daemon.
 *
 * Nothing here waits for the GPU: memory is mapped beside running kernels, and where it was before it stays
 * mapped until a fence is ready (arena.h).
 */
#include <stdint.h>

#include "client/cache/stream_heap.h"

struct cache;
struct proto_acquire_segments;

/* Whether large requests of a stream heap are served from an arena: where the pool's segments can be mapped
 * side by side. It is made when this is asked first. */
bool arena_serves(struct cache *cache, struct stream_heap *stream_heap, uint64_t size_bytes);

/* Serves a request (a multiple of HEAP_GRANULE). acquire: how the daemon is asked for the segments that are
 * missing: pool, flags and timeout are the caller's. 0: *ret_piece is the memory. EXHAUSTED and what the
 * daemon or the driver says otherwise: what was taken elsewhere in the arena is free in the stream heap. */
int arena_grow(struct cache *cache, struct stream_heap *stream_heap, uint64_t size_bytes,
               const struct proto_acquire_segments *acquire, struct piece **ret_piece);

/* As arena_grow(), for a request that may wait long: all of its segments come from the daemon. While it waits
 * it holds nothing of the arena, so that no two requests wait for each other. */
int arena_wait_and_grow(struct cache *cache, struct stream_heap *stream_heap, uint64_t size_bytes,
                        const struct proto_acquire_segments *acquire, struct piece **ret_piece);

/* Gives the addresses of a stream heap's arena back to the driver, when nothing is mapped there. */
void arena_leave_addresses(struct cache *cache, struct stream_heap *stream_heap);

#endif
