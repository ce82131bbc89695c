/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_ADD_LEASE_H
#define CLIENT_CACHE_ADD_LEASE_H
/*
 * Adding what the daemon has leased to a stream heap.
 */
#include <stdint.h>

struct cache;
struct grant;
struct piece;
struct stream_heap;

/* Adds a lease, whose segment is open, to a stream heap: to an extent that it continues, which is told to the
 * daemon, else as an extent of its own. needed: what a request needs of it. *ret_piece gets that before
 * another thread does; NULL: nothing. ret_piece may be NULL. 0; NO_MEMORY: the lease was given back. */
int stream_heap_add_lease(struct cache *cache, struct stream_heap *stream_heap, const struct grant *grant,
                          uint64_t needed, struct piece **ret_piece);

#endif
