/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_SPLIT_OFF_H
#define CLIENT_CACHE_SPLIT_OFF_H
/*
 * How a piece becomes a lease of its own, which other processes can be given a share of. A piece of an extent
 * is split off from the extent's lease. A piece of an arena may lie in several segments: its parts become
 * leases, and these one lease, a row.
 *
 * A SPLIT that the daemon has taken and not answered is *pending*: its answer decides which lease the piece's
 * memory is of. Until it comes the piece stays out of the stream heap, also when its buffer is released. Each
 * call on the buffer, and each time that the cache gives memory back, looks whether the answer has come. Then
 * the piece is split off, or as before; a row is not begun again, so its part goes back to the lease that it
 * was split from.
 */
#include <stdbool.h>

#include "client/session/fence.h"

struct cache;
struct follower;
struct piece;

/* Makes a lease of its own of a piece that a buffer is, unless it has one. Thread-safe, also for threads that
 * share one buffer. 0, or what the daemon says; the piece is as before then. TIMED_OUT: the SPLIT is pending,
 * and the next call goes on with it. LIMIT: it is in too many segments. follower (lease.h) is exchanged where
 * one SPLIT makes the lease. */
int cache_split_off(struct cache *cache, struct piece *piece, struct follower *follower);

/* Looks whether the answer to a piece's pending SPLIT has come; waits: until it has come, as long as an
 * answer may take. 0: it has come. TIMED_OUT: not yet. STALE: the piece's buffer was released. */
int cache_end_split(struct cache *cache, struct piece *piece, bool waits);

/* Gives back the buffer of a piece whose SPLIT is pending: behind the fence, when the answer has come. 0:
 * that is done. TIMED_OUT: not so, because the answer has come in the meantime; the piece is released as
 * others are. STALE: it was released before. */
int cache_give_splitting(struct cache *cache, struct piece *piece, struct fence fence);

/* Ends the pending SPLITs whose answers have come. */
void cache_end_splits(struct cache *cache);

/* Frees the bookkeeping. */
void cache_forget_splits(struct cache *cache);

#endif
