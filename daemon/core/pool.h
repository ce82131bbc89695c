/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_POOL_H
#define DAEMON_CORE_POOL_H
/*
 * A pool: all memory of one kind in one place. It owns its segments, knows those that wait for room
 * (wait_queue.h), and decides when to grow: when a request fits nowhere and the limit allows it, to reach the
 * configured reserve, or ahead of demand. One growth is under way at a time; the shell makes it on the pool's
 * worker and reports back.
 *
 * Ahead of demand: after a lease, when what its tenant could still get without growth (segments without a
 * tenant, and what its own heap has free) is below the low-water mark. Only while something is leased, so
 * that a pool which nobody uses stays as it is; only into room that the limit leaves, never at the cost of
 * others' segments; and not for AHEAD_RETRY_NS after the driver refused, which is no reason to refuse
 * anybody.
 *
 * When neither growth nor the retirement of idle segments can serve who has waited longest, the pool is
 * stuck: only what sessions hold can. Then it is short: it asks those that want to be asked for what they
 * keep idle, marks itself in their pages, so that they keep nothing until the shortage is over, and asks
 * again after RECLAIM_INTERVAL_NS for as long as it is stuck and somebody waits. Memory that comes back as
 * ranges serves every session of its tenant as it is; segments are closed only where that is not enough
 * (closing.h).
 *
 *   STARTING --the device's context exists--> READY;  STARTING --the driver refused--> FAILED
 *   READY --every call on the device fails--> LOST
 *
 * A FAILED pool never lent anything. A LOST one lends nothing any more, and never will: who waits is refused,
 * and so is who attaches. What is leased stays leased until it is given back, but its contents may be gone,
 * and the memory is never lent again: neither is it freed, for its driver does not answer, nor does it grow.
 *
 * What sessions gave back behind fences comes back by itself, but nobody says when: the pool looks before it
 * lets a request wait, grows or refuses, and while somebody waits every FENCE_INTERVAL_NS.
 *
 * What a tenant's quota does not leave waits apart, in a queue of the tenant's: nobody else waits behind it,
 * no growth is made for it, and only the tenant's own sessions are asked for what they keep idle.
 *
 * Invariant (pool_is_valid): leased + fenced + quarantined + closing + retiring + free = reserved, where free
 * is what heaps and unassigned segments have; leased, fenced and quarantined bytes are those of the blocks.
 * Each peak is at least the present value.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "daemon/core/histogram.h"
#include "daemon/core/limits.h"
#include "proto/proto.h"

struct core;
struct heap_range;
struct request;
struct segment;
struct tenant;
struct tenant_heap;

/* How large a pool may be and how it grows; for users in gpupoold.conf(5). */
struct pool_sizes {
    uint64_t limit_bytes, reserve_bytes;
    uint64_t step_bytes;      /* POOL_STEP_BY_SIZE: see pool_step_bytes() */
    uint64_t low_water_bytes; /* what is to be at hand; 0: nothing */
};
#define POOL_STEP_BY_SIZE UINT64_C(0)

enum pool_state {
    POOL_STARTING,
    POOL_READY,
    POOL_FAILED,
    POOL_LOST,
};

struct pool {
    struct core *core;
    uint32_t id;
    enum proto_pool_kind kind;
    int device, numa_node; /* -1: none, unknown */
    uint8_t uuid[PROTO_UUID_BYTES];
    char name[POOL_NAME_SIZE];
    enum pool_state state;
    uint64_t limit_bytes, reserve_bytes; /* multiples of SEGMENT_GRANULE */
    uint64_t step_bytes;                 /* the same, or POOL_STEP_BY_SIZE: pool_step_bytes() */
    uint64_t low_water_bytes;            /* 0: no growth ahead of demand */

    struct list segments;   /* all but RETIRING ones */
    struct list heaps;      /* tenant_heap.pool_link */
    struct list wait_queues; /* tenant_heap.waiting_link: whose requests wait for room */
    struct list overdue;    /* request.overdue_link: whom no later request may pass, in order of arrival */
    struct list pressed;    /* tenant_heap.pressed_link: whose requests wait for their tenant's quota */
    struct list for_growth; /* request.growth_link: that wait for growth only */
    uint64_t rounds;        /* through the queues, see waiting.c */
    uint64_t reserved_bytes, leased_bytes, fenced_bytes, quarantined_bytes, closing_bytes, retiring_bytes;
    uint64_t unassigned_bytes; /* of the segments without a tenant */
    uint64_t growing_bytes;    /* of the growth that is decided or under way; 0: none */
    bool grow_decided;         /* …and not yet taken by the shell */
    bool grow_exact;           /* the last growth failed: ask for no more than needed */
    bool grow_ahead;           /* it is for nobody who waits, but for the low-water mark */
    uint64_t grow_decided_ns;  /* when it was decided */
    uint64_t grow_retry_ns;    /* no growth before */
    uint64_t ahead_retry_ns;   /* no growth ahead of demand before */
    /* Who leased last, and may find too little the next time. NULL: nobody, or not since the last trim. */
    struct tenant_heap *demand;
    uint64_t next_deadline_ns; /* no waiter's deadline is before */
    bool stuck;                /* as of the last plan */
    uint64_t reclaim_ns;       /* sessions are not asked before */
    struct session *spared;    /* was not asked, because nobody else waits; NULL: no session */
    bool reclaim_owed;         /* …but then, for one who did not wait */
    uint64_t short_until_ns;   /* sessions are told until then that the pool is short; 0: it is not */
    unsigned n_asks;           /* rounds of questions to the sessions since it became short */
    uint64_t fence_ns;         /* fences are looked at again, while somebody waits */
    bool returned;             /* fenced memory came back, and those in the queue have not been asked yet */
    uint64_t refused_bytes;    /* …nor what it asked for; 0 when somebody has found room since */
    unsigned n_reclaimers;     /* ACTIVE sessions that want to be asked and have something of it */
    unsigned n_segments;
    uint64_t n_leases, n_waiters;                                    /* the latter with those that are held */
    uint64_t n_acquires, n_releases, n_grows, n_retires;             /* since the start, as all below */
    uint64_t n_failures;       /* requests that ended in an error for the caller */
    uint64_t n_timeouts;       /* those of them that waited until their deadline */
    uint64_t n_quota_refusals; /* those of them that a quota refused */
    uint64_t n_probes;         /* further requests that were refused: request_is_probe() */
    uint64_t leased_peak_bytes, reserved_peak_bytes, quarantined_peak_bytes;
    uint64_t n_closes, close_ns; /* mappings that clients closed because they were told to, and their time */
    struct histogram serving; /* answers that were there at once: from the request to the answer's sending */
    struct histogram waiting; /* the others */
    struct histogram growing; /* segments: from the decision to grow until they could be lent */
    char last_error[POOL_ERROR_SIZE];
    const char *stalled_call; /* what its worker has been in for long, a constant string; NULL: nothing */
    uint64_t stalled_for_ns;  /* …how long, as of the shell's last look */
    void *owner;              /* the shell's */
};

/* To be called after leased, reserved or quarantined bytes became more. */
void pool_note_peaks(struct pool *pool);

uint64_t pool_free_bytes(const struct pool *pool);

/* What is free, and what the pool may still grow by. */
uint64_t pool_available_bytes(const struct pool *pool);

/* The largest block that could be taken at once by somebody: linear in the segments, for the stats. */
uint64_t pool_largest_free_bytes(const struct pool *pool);

/* The least that the pool grows by: as told, or a small share of what it has. */
uint64_t pool_step_bytes(const struct pool *pool);

/* The largest segment that the pool may have, and so the largest block: for host memory HOST_SEGMENT_MAX. */
uint64_t pool_segment_max(const struct pool *pool);

/* Whether the pool may lend, now or ever. */
bool pool_is_closed(const struct pool *pool);

/* Takes a range for the tenant, from its own segments or from one that has no tenant yet. Returns 0, -ENOSPC
 * or -ENOMEM. / The same from its own alone. */
int pool_take(struct pool *pool, struct tenant *tenant, uint64_t size_bytes, struct heap_range **ret_range);
int pool_take_own(struct pool *pool, struct tenant *tenant, uint64_t size_bytes,
                  struct heap_range **ret_range);

/* What has to be done for those who wait, as far as it can be done at all: growth, retirement, asking. */
void pool_plan(struct pool *pool, uint64_t now_ns);
/* Grows ahead of demand, see above. Nobody waits. */
void pool_plan_ahead(struct pool *pool, uint64_t now_ns);
/* What clients have to close, beside what is idle or on its way back to the driver, so that the pool can grow
 * for a request of so many bytes. / The same for the first request that waits for room, or for the last one
 * that did not wait and found the pool stuck. */
uint64_t pool_missing_for(const struct pool *pool, uint64_t size_bytes);
uint64_t pool_missing_bytes(const struct pool *pool);
/* Asks every session that wants to be asked, of one tenant or of all (NULL), and tells it that the pool is
 * short. */
void pool_ask_sessions(struct pool *pool, const struct tenant *tenant, uint64_t now_ns);
/* The pool is short from now on: the sessions that are asked are told. / It is short no more, if nothing
 * waits for memory of sessions: tells them. */
void pool_begin_shortage(struct pool *pool, uint64_t now_ns);
void pool_end_shortage(struct pool *pool, uint64_t now_ns);
/* When pool_plan has sessions to ask again; NS_FOREVER: never. */
uint64_t pool_next_reclaim_ns(const struct pool *pool);

/* Whether those who wait may find room behind fences soon. / Looks there for them; what comes back is marked
 * in pool->returned. */
bool pool_waits_for_fences(const struct pool *pool);
void pool_collect(struct pool *pool, uint64_t now_ns);

/* Whether nothing is being made or freed for those who wait, and nothing is about to be. */
bool pool_is_settled(const struct pool *pool);

/* Whether waiting has no end: the driver gives nothing, and nobody has anything that could come back. */
bool pool_is_hopeless(const struct pool *pool, uint64_t now_ns);

/* Retires idle segments of at least so many bytes in all (or as many as there are), but never below what must
 * be kept. Returns the bytes. */
uint64_t pool_retire_idle(struct pool *pool, uint64_t bytes, uint64_t keep_bytes);

/* One of those that can be asked for the pool's memory cannot any more. After the last, nobody is owed what
 * those who come later keep. */
void pool_lose_reclaimer(struct pool *pool);

/* Sends a segment that is unassigned, and nobody's, back to the driver. */
void pool_retire(struct segment *segment);

/* Walks segments, heaps and blocks. */
bool pool_is_valid(const struct pool *pool);

#endif
