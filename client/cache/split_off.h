/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_SPLIT_OFF_H
#define CLIENT_CACHE_SPLIT_OFF_H
/*
 * How a piece becomes a lease of its own, which other processes can be given a share of. A piece of an extent
 * is split off from the extent's lease. A piece of an arena may lie in several segments: its parts become
 * leases, and these one lease, a row.
 */

struct cache;
struct follower;
struct piece;

/* Makes a lease of its own of a piece that a buffer is, unless it has one. Thread-safe, also for threads that
 * share one buffer. 0, or what the daemon says; the piece is as before then. LIMIT: it is in too many
 * segments. follower (lease.h) is exchanged where one SPLIT makes the lease. */
int cache_split_off(struct cache *cache, struct piece *piece, struct follower *follower);

#endif
