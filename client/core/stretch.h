/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CORE_STRETCH_H
#define CLIENT_CORE_STRETCH_H
/*
 * A stretch: the memory around a place of a segment that this process does not use. Some of it is free or
 * deferred in the stream heaps of the pool, in several extents perhaps. The rest of it is absent: the daemon
 * has it, or lends it to another process. A stretch ends where a piece is in use or cached, and at the ends
 * of the segment.
 *
 * A stretch may be long enough for a request that waits, although no stream heap has so long a range. Its
 * parts join only in the daemon's hands, so all of them go there together (give_back_stretch()).
 *
 * Arenas have no stretches: their segments are moved, or go back whole.
 *
 * A stretch is as of one moment. The stream heaps are locked one after the other, so it may have changed when
 * it is returned: then less of it is found free afterwards.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct core_pool;
struct stream_heap;

struct stretch {
    const char *start, *end;
    uint64_t segment_bytes; /* of its segment */
};

static inline uint64_t stretch_bytes(const struct stretch *stretch) {
    return (uint64_t)(stretch->end - stretch->start);
}

/* Whether the process uses nothing of the segment. */
static inline bool stretch_is_segment(const struct stretch *stretch) {
    return stretch_bytes(stretch) == stretch->segment_bytes;
}

/* The stretch around a place in memory of a pool. False: the place is in use, or this process has nothing
 * around it. The caller holds the pool's lock, and no stream heap's. */
bool stretch_at_locked(struct core_pool *pool, const char *place, struct stretch *ret_stretch);

/* Places of a stream heap that stretches of at least size_bytes may be around, at least one for each stretch
 * with free or deferred memory of the stream heap: *ret_places, which is the caller's to free. Without memory
 * some are left out. Returns how many. The caller holds no lock of a stream heap. */
size_t stretch_places(struct stream_heap *stream_heap, uint64_t size_bytes, const char ***ret_places);

#endif
