/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_MISS_H
#define CLIENT_CACHE_MISS_H
/*
 * A miss: one acquire that goes through the states of client/core/acquire.h. Here is what the states do. The
 * actions for arenas are in miss_arena.h.
 *
 *     miss_begin() ──MISS_WAITS──▶ exchange of miss.question ──▶ miss_answer() ──▶ 0, an error
 *                                        ▲                          │
 *                                        └────────MISS_WAITS────────┘
 *
 * gpupool_acquire() makes the exchange and waits. A request (api/requests.h) submits the question, and its
 * thread leaves. Acquires that may not wait have a deadline that is over. Clients without a cache go the same
 * way, through three states.
 *
 * A miss is one thread's at a time. It stays where it is in memory, because the queue of its pool has it while
 * it waits. No mapping is closed on the way, unless the daemon finds that nothing else helps
 * (lease_close_idle()).
 */
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "client/core/acquire.h"
#include "client/core/arena_plan.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/question.h"

struct cache;
struct piece;
struct pool;
struct session;
struct stream_heap;

/* For a request that does not wait: the fences of idle streams are seen by a daemon that looks every
 * millisecond. */
#define MISS_GRACE_NS (3 * NS_PER_MS)
/* For a request that does not wait, and for which segments were closed: freeing these and making another. */
#define MISS_GROWTH_NS (20 * NS_PER_MS)

/* The value of a step that has a question for the daemon. */
#define MISS_WAITS 1

struct miss {
    struct acquire acquire; /* the core's part */
    struct session *session;
    struct cache *cache;             /* NULL: the client has none */
    struct stream_heap *stream_heap; /* in a client with a cache */
    uint32_t pool, probe;
    uint64_t size_bytes, deadline_ns; /* by clock_now_ns() */
    struct question question;
    bool is_queued;
    uint64_t collected_bytes; /* given back for it when it began to wait */
    const char *rest;         /* a place in the lease that was granted, beyond the piece; NULL: it has none */
    uint64_t wait_ns;         /* how long the daemon is to wait */
    uint64_t retry_ns;        /* after so long, or twice as long each time, its arena is tried again */
    uint64_t retry_at_ns;     /* by clock_now_ns() */
    /* in an arena */
    struct arena_plan plan;
    struct segment_grant *grants; /* what the daemon is asked for */
    uint64_t began_ns;            /* when the place was claimed; 0: behind a wait */
    /* the end: */
    struct piece *piece; /* of a client with a cache; the caller's. Else question.grant is the lease */
    int error;
};

/* Begins. cache: NULL: the client has none. timeout_ns: how long is waited for memory. probe:
 * PROTO_ACQUIRE_PROBE_…, as in buffer_acquire(). Returns 0, MISS_WAITS, or an error with its text set. */
int miss_begin(struct miss *miss, struct session *session, struct cache *cache, const struct pool *pool,
               uint64_t size_bytes, void *stream, uint64_t timeout_ns, uint32_t probe);

/* Makes the exchange, and waits for it, as question_exchange(). */
int miss_exchange(struct miss *miss);

/* For a caller that submits the question: its id, when it is enlisted (submit.h) and before it is sent. From now
 * on a release in the process that serves the miss cancels it. */
void miss_was_enlisted(struct miss *miss, uint64_t question_id);

/* Goes on when the exchange has ended. r: as for question_take(). Any thread may call it. Returns as
 * miss_begin(). */
int miss_answer(struct miss *miss, int r);

/* Frees the memory of a miss that waits, in a forked child. */
void miss_forget(struct miss *miss);

/* Whether memory that comes back may still serve. LIMIT: of leases, or of the user's quota. */
static inline bool miss_is_refused(int error) {
    return error == GPUPOOL_E_EXHAUSTED || error == GPUPOOL_E_LIMIT;
}

/* --- for its actions --- */

/* The error that ends the acquire. Returns the event. */
static inline enum acquire_event miss_fail(struct miss *miss, int error) {
    miss->error = error;
    return ACQUIRE_FAILS;
}

/* Asks for what miss.question lacks. HAS: it is there to be exchanged. */
enum acquire_event miss_ask(struct miss *miss);

#endif
