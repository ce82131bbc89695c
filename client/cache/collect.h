/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_COLLECT_H
#define CLIENT_CACHE_COLLECT_H
/*
 * Collecting: what threads have at hand goes into the stream heaps' heaps, where any thread may take it.
 */
#include <stdbool.h>

struct cache;
struct stream_heap;
struct thread_cache;

/* Empties the threads' caches of a stream heap (or of all: NULL) into it, but for one's. */
void cache_collect(struct cache *cache, const struct thread_cache *except,
                   const struct stream_heap *stream_heap, bool idle_only);

#endif
