/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_GIVE_BACK_H
#define CLIENT_CACHE_GIVE_BACK_H
/*
 * How idle memory of a cache goes back to the daemon, in parts of extents. No thread waits for the GPU, unless
 * a stream has no word for a fence (client/session/fence.h): memory that a stream orders goes behind one fence
 * of that stream, deferred memory behind its own fence. The memory of a stream that is being captured stays in
 * its stream heap; so does that of a stream which the driver does not know any more. The order is the same each
 * time, and makes it safe: memory is taken out of the stream heap, then the fence is left, then it is released.
 * Where the fence cannot be left, the memory returns to its stream heap.
 *
 * Parts that stand behind fences, and that the daemon did not take, are pending, in the cache, for the next
 * time.
 *
 * cache_give_back() is the usual way in (cache.h).
 */
#include <stdbool.h>
#include <stdint.h>

#include "client/core/stream_heap.h"

struct cache;
struct stretch;

/* Gives the idle memory of a stream's stream heaps back, of all devices, because the stream ends. 0, and
 * *ret_stays: some of it may stay, because the daemon does not answer, or no fence can be left; the failure shows
 * when the memory is given back the next time. NO_MEMORY: some of it stays, and may go by the next call. */
int give_back_stream(struct cache *cache, const void *stream, bool *ret_stays);

/* Whether something lies idle in the stream heaps of a pool, where give_back_pool() looks. To ask costs less than to
 * give back nothing: that takes turns with other threads, which may be waiting for the daemon. */
bool give_back_has(struct cache *cache, uint32_t pool);

/* In a shortage: gives back all that lies idle in the stream heaps of a pool, in parts of any size. Waits for
 * no GPU work. Returns how many bytes. Memory that cannot go back stays. */
uint64_t give_back_pool(struct cache *cache, uint32_t pool);

/* For a request of a stream heap that is about to wait for room: gives back what lies idle in the other
 * stream heaps of the pool, and in each stretch of at least size_bytes. part_bytes: as for
 * give_back_stream_heap(). As give_back_pool() otherwise. */
uint64_t give_back_for_request(struct cache *cache, const struct stream_heap *stream_heap,
                               uint64_t size_bytes, uint64_t part_bytes);

/* For requests that wait: gives back what is free or deferred of a stretch, behind fences. Or: slots of the
 * stream heap's arena in which nothing is in use, and what is free in its targets. Memory that cannot go back
 * stays. */
void give_back_stretch(struct cache *cache, uint32_t pool, const struct stretch *stretch);
void give_back_slots(struct cache *cache, struct stream_heap *stream_heap);

/* Before a stream heap that lends grows: gives back what is idle in extents of which a part was split off.
 * The memory of such parts goes to the daemon, and what stayed here would lie between. */
void give_back_lent(struct cache *cache, struct stream_heap *stream_heap);

/* In a shortage: gives back a piece that has just been released (its generation is even), behind a fence of
 * its stream heap's stream. Memory that cannot go back stays in the stream heap. */
void give_back_piece(struct cache *cache, struct piece *piece);

/* Gives back what is idle in a stream heap, and returns how many bytes went. part_bytes: of extents that are in
 * use, parts of so many bytes at least; of slots of an arena that are in use, nothing unless part_bytes is
 * less than PROTO_SLOT_BYTES_MIN. A part of such a slot can serve its arena. In the daemon's hands it is no
 * segment, and the arena cannot have it back. */
uint64_t give_back_stream_heap(struct cache *cache, struct stream_heap *stream_heap, uint64_t part_bytes);

#endif
