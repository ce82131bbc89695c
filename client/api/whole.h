/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_API_WHOLE_H
#define CLIENT_API_WHOLE_H
/*
 * Blocks of whole segments: the memory of buffers that may sleep. A block is asked for segment by segment, by
 * ACQUIRE_SEGMENTS, and becomes one lease, a row if it has several segments. Nothing else is leased in its segments,
 * so all of them can go back to the pool when the buffer sleeps.
 *
 * The first request is for the widest segments of the pool, which are mapped by the fewest calls. Where the pool has
 * no room for them, or the request has to wait, it is for segments of one width, all in one message: no two requests
 * that wait hold segments and wait for each other.
 */
#include <stdint.h>

#include "client/session/own_row.h"

struct gpupool_client;
struct pool;

/* How many bytes the segments of a block have: 0 where a pool's segments are not enough for one lease. */
uint64_t whole_bytes(const struct pool *pool, uint64_t size_bytes);

/* Acquires a block, and imports its segments. bytes: of whole_bytes(). timeout_ns: how long is waited for room.
 * flags: GPUPOOL_IDLE_ONLY counts. *ret_block: its segments are to be freed by whole_free(), and its lease is the
 * caller's to release. Errors as gpupool_acquire()'s. */
int whole_acquire(struct gpupool_client *client, const struct pool *pool, uint64_t bytes, uint64_t timeout_ns,
                  uint32_t flags, struct own_block *ret_block);

/* Gives the lease of a block back that was not used, and frees its list. The error that led here is the one to
 * report. */
void whole_give_back(struct gpupool_client *client, struct own_block *block);

/* Frees the list of a block's segments. */
void whole_free(struct own_block *block);

#endif
