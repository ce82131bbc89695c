/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_POOL_H
#define DAEMON_CORE_POOL_H
/*
 * A pool: all memory of one kind in one place. It owns its segments, and knows the requests that wait for
 * room (wait_queue.h). How it grows and what it asks of sessions is in plan.h.
 *
 *   STARTING --the device's context exists--> READY;  STARTING --the driver refused--> FAILED
 *   READY --every call on the device fails--> LOST
 *
 * A FAILED pool never lent anything. A LOST pool lends nothing any more: waiting requests and attaching are
 * refused. Its leases stay until they are given back, but their contents may be gone. The memory is never
 * lent again. It is not freed either, for its driver does not answer, and the pool does not grow.
 *
 * An operator can drain a pool, in whatever state, and end that again. A pool that drains grants nothing: its
 * requests are refused with SHUTDOWN. It does not grow, it asks sessions for idle memory again and again, and
 * its idle segments are retired, those of its reserve too. Leases stay, and can be attached to.
 *
 * Memory that sessions released behind fences comes back without a message. The pool polls fences before it
 * has a request wait, grows or refuses, and every FENCE_INTERVAL_NS while requests wait.
 *
 * A request that its tenant's quota does not allow waits in a queue of its own: other tenants' requests do
 * not wait behind it, the pool does not grow for it, and only the tenant's own sessions are asked for idle
 * memory.
 *
 * Invariant (checked by core_is_valid): leased + fenced + quarantined + closing + retiring + free =
 * reserved, where free is what heaps and unassigned segments have; leased, fenced and quarantined bytes are
 * those of the blocks. Each peak is at least the present value. In a pool that drains no request waits, and no
 * growth is about to begin.
 */
#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/types.h"

/* To be called after leased, reserved or quarantined bytes grew. */
void pool_note_peaks(struct pool *pool);

uint64_t pool_free_bytes(const struct pool *pool);

/* The bytes that the pool may still grow by. */
uint64_t pool_room_bytes(const struct pool *pool);

/* The descriptors that the pool's segments take, with the one that is being made. */
unsigned pool_descriptors(const struct pool *pool);

/* As pool_descriptors(), of all pools. */
unsigned pools_descriptors(const struct core *core);

/* Whether another segment of the pool could have a descriptor. Of core->segments_limit one half is kept for
 * the pools in equal parts; the other is for all. So a pool of small segments leaves others theirs. */
bool pool_has_descriptor(const struct pool *pool);

/* A descriptor may have come free, or an idle segment may have one: marks the pools as ready in which
 * requests wait for one. */
void pool_mark_descriptors(struct core *core);

/* Requests of the tenant, or of others of its account, may wait for the segments that it gives up: marks
 * their pools as ready. */
void pool_mark_held(const struct tenant *tenant);

/* Whether the request asks for whole segments and could take this one: it is of their size, nothing of it is
 * taken, and it is the tenant's or no tenant's. request: NULL: false. */
bool pool_segment_suits(const struct segment *segment, const struct request *request);

/* How many segments suit a request for whole segments: its tenant's, and those without a tenant; of both, how
 * many are idle. */
struct pool_suiting {
    unsigned n_own, n_unassigned, n_idle;
};
struct pool_suiting pool_suiting(const struct request *request);

/* The bytes of new segments with which the waiting request could be served. Of a request for whole segments
 * those that suit it are subtracted. */
uint64_t pool_lacking_bytes(const struct request *request);

/* The bytes in idle segments. request: those that suit it are not counted; NULL: all are. */
uint64_t pool_idle_bytes(const struct pool *pool, const struct request *request);

/* The largest segment without a tenant; 0: there is none. */
uint64_t pool_largest_unassigned_bytes(const struct pool *pool);

/* The largest block that some tenant could take at once. Linear in the tenants. */
uint64_t pool_largest_free_bytes(const struct pool *pool);

/* The least that the pool grows by: as configured, or a small share of its reserved bytes. */
uint64_t pool_step_bytes(const struct pool *pool);

/* The largest segment that the pool may have, and so the largest block: for host memory HOST_SEGMENT_MAX. */
uint64_t pool_segment_max(const struct pool *pool);

/* Whether the pool lends nothing, and never will again. */
bool pool_is_closed(const struct pool *pool);

/* Something that requests wait for may have come back: memory, room to grow, quota, or their turn. The entry
 * point of the core that is under way serves the pool at its end; if it has no time, core_tick() does. */
void pool_mark_ready(struct pool *pool);

/* As pool_mark_ready(), where segment_settle() has noted what changed. */
void pool_wake(struct pool *pool);

bool pool_is_ready(const struct pool *pool);

/* Whether waiting requests may find room behind fences soon. */
bool pool_waits_for_fences(const struct pool *pool);

/* Takes a range for the tenant, from its own segments or from an unassigned one. Returns 0, -ENOSPC or
 * -ENOMEM. */
int pool_take(struct pool *pool, struct tenant *tenant, uint64_t size_bytes, struct heap_range **ret_range);

/* As pool_take(), from unassigned segments alone. */
int pool_take_unassigned(struct pool *pool, struct tenant *tenant, uint64_t size_bytes,
                         struct heap_range **ret_range);

/* Gives a range back that was taken so. */
void pool_give(struct heap_range *range);

/* Sends an unassigned segment that no session has mapped back to the driver. */
void pool_retire(struct segment *segment);

/* An idle segment that pool_retire_idle() would retire. NULL: there is none. Linear in the segments. */
struct segment *pool_find_idle(const struct pool *pool, uint64_t keep_bytes, const struct request *request);

/* Retires an idle segment, which may belong to a tenant. */
void pool_retire_one(struct segment *segment);

/* Retires one idle segment that belongs to the tenant, or another one of its account, and takes a descriptor,
 * in whatever pool. Linear in the
 * segments. Returns whether there was one. */
bool pool_retire_idle_of(struct tenant *tenant);

/* Takes all idle segments from the tenant, which has to stay meanwhile, and retires them. A closed pool keeps
 * them. */
void pool_retire_all_of(struct tenant *tenant);

/* Retires idle segments of at least that many bytes in all, or as many as there are; keep_bytes stay
 * reserved, and so do the segments that suit the request (NULL: none). Returns the bytes. */
uint64_t pool_retire_idle(struct pool *pool, uint64_t bytes, uint64_t keep_bytes,
                          const struct request *request);

#endif
