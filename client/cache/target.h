/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_TARGET_H
#define CLIENT_CACHE_TARGET_H
/*
 * The target of a request that waits: memory that is kept for it. Each buffer that other requests of the
 * process get of the pool meanwhile is a pass. After TARGET_PASSES of them the request that has waited
 * longest in the pool gets a target, the one in which least is in use:
 *
 * - For a range: a segment that is long enough, and that the process has all of. Its extents are closed
 *   (heap_close_span()), so that nothing more is taken there. The stretch that the request needs comes
 *   together with the releases, and goes to the daemon. That ends the target.
 * - For segments of arenas: as many slots. Memory that becomes free in them goes to the daemon in parts,
 * which are no segment for another request before all of it is there.
 *
 * A target is never all that the process has of the pool. A thread that holds a buffer and needs another one
 * finds memory in the rest. Where it does not, the daemon asks for idle memory 100 ms later, and what is free
 * in the target goes to the daemon with the rest.
 *
 * A target is its request's, under the lock of the shortage. It is set and taken away while
 * cache->stream_heaps_lock is held, so that an extent is closed exactly while it lies in a target.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cache;
struct shortage;
struct waiting_request;

/* As the daemon's rule for overtaken requests (PASSES_MAX). After 32 passes already, a target cost more than
 * it brought where requests of up to half of the pool wait for each other: 26 to 43 acquires of 6,000 took
 * over 50 ms instead of 7 to 16 (simulated GPU, 2 busy cores). */
#define TARGET_PASSES 256u

struct target {
    const char *start, *end; /* of a segment; NULL: none */
    uint32_t n_slots;        /* of arenas; 0: none */
};

static inline bool target_exists(const struct target *target) {
    return target->start != NULL || target->n_slots > 0;
}

static inline bool target_has(const struct target *target, const char *place) {
    return place >= target->start && place < target->end;
}

/* Counts a buffer of the pool that another request has got. */
void target_note_pass(struct shortage *shortage, uint32_t pool);

/* Gives the oldest request of the pool a target, if it was passed often enough and has none. The caller holds
 * no lock. */
void target_choose(struct cache *cache, uint32_t pool);

/* The memory of a target has gone to the daemon: its request has none any more, and is passed anew. The
 * caller holds no lock. */
void target_end(struct cache *cache, uint32_t pool, const char *place);

/* Opens what was a target, and is no request's any more. The caller holds no lock. */
void target_open(struct cache *cache, uint32_t pool, const struct target *target);

/* Whether a place lies in a segment that is a target of the pool; *ret_bytes: what the target's request
 * needs. */
bool target_find(struct shortage *shortage, uint32_t pool, const char *place, uint64_t *ret_bytes);

#endif
