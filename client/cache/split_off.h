/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_SPLIT_OFF_H
#define CLIENT_CACHE_SPLIT_OFF_H
/*
 * How a piece becomes a lease of its own, which other processes can be given a share of. A piece of an extent
 * is split off from the extent's lease by the SHARE or SEND that names it. A piece of an arena may lie in
 * several segments: its parts become leases, by a SPLIT each, and these one lease, a row.
 *
 * Such a request that the daemon has taken and not answered is *pending*: its answer decides which lease the
 * piece's memory is of. Until it comes the piece stays out of the stream heap, also when its buffer is
 * released. Each call on the buffer, and each time that the cache gives memory back, looks whether the answer
 * has come. Then the piece is split off, or as before. A row is not begun again, so its part goes back to the
 * lease that it was split from. No caller has the token of such a SEND, so its parcel is revoked.
 */
#include <stdbool.h>

#include "client/session/fence.h"

struct cache;
struct piece;
struct request;

/* Makes a lease of its own of a piece that a buffer is, unless it has one. Thread-safe, also for threads that
 * share one buffer. request: a SHARE or SEND without a lease. *ret_is_named: the request made the lease, and
 * has its answer; otherwise it is still to be exchanged. Returns:
 *   0          the piece has its own lease
 *   TIMED_OUT  the request is pending, and taken; the next call goes on with it
 *   LIMIT      the piece is in too many segments
 *   another    what the daemon says; the piece is as before */
int cache_split_off(struct cache *cache, struct piece *piece, struct request **request, bool *ret_is_named);

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
