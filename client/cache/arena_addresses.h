/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_ARENA_ADDRESSES_H
#define CLIENT_CACHE_ARENA_ADDRESSES_H
/*
 * The addresses of arenas (client/core/arena.h): reserved with the first large request of a stream heap, and
 * given back to the driver when the client closes.
 */
#include <stdbool.h>
#include <stdint.h>

struct cache;
struct segment;
struct stream_heap;

/* Whether large requests of a stream heap are served from an arena: where the pool's segments can be mapped
 * side by side. It is made when this is asked first. */
bool arena_serves(struct cache *cache, struct stream_heap *stream_heap, uint64_t size_bytes);

/* Gives the addresses of a stream heap's arena back to the driver, when nothing is mapped there. Or only
 * frees the bookkeeping, in a forked child. The arena is freed next. */
void arena_leave_addresses(struct stream_heap *stream_heap);
void arena_forget_addresses(struct stream_heap *stream_heap);

/* A segment was closed, and with it all its mappings (struct segments_listener). owner: the cache. */
void arena_segment_closed(void *owner, const struct segment *segment);

#endif
