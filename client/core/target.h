/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CORE_TARGET_H
#define CLIENT_CORE_TARGET_H
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
 * A target is its request's, under the lock of the pool (pool.h). Functions named _locked want that held, and
 * no stream heap's unless they say so.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct core_pool;

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

/* Counts a buffer of the pool that another request has got. Any locks may be held. */
void target_note_pass_locked(struct core_pool *pool);

/* Gives the oldest request of the pool a target, if it was passed often enough and has none. */
void target_choose_locked(struct core_pool *pool);

/* The memory of a target has gone to the daemon: its request has none any more, and is passed anew. */
void target_end_locked(struct core_pool *pool, const char *place);

/* Opens what was a target, and is no request's any more. */
void target_open_locked(struct core_pool *pool, const struct target *target);

/* Whether a place lies in a segment that is a target of the pool; *ret_bytes: what the target's request
 * needs. A stream heap may be locked. */
bool target_find_locked(const struct core_pool *pool, const char *place, uint64_t *ret_bytes);

#endif
