/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CORE_ACQUIRE_H
#define CLIENT_CORE_ACQUIRE_H
/*
 * An acquire for which nothing lies in the thread's cache: a machine. Each state has one action, which the
 * shell carries out (client/cache/miss.h). Its outcome is the event, and the table in acquire.c has the next
 * state. An acquire that waits for the daemon has a *question* there; no thread need wait for the answer.
 *
 * A client with a cache goes this way:
 *
 *   - TAKE, FLUSH, LOOK, RETAKE: what the process has, in this thread's cache, in others, behind fences.
 *   - ASK: an extent of the daemon's, for which its pool may grow. No process is asked for memory.
 *   - PLACE or MOVE, LACK, ASK_SEGMENTS, NARROW, UNPLACE, MAP: large memory comes from an arena (arena_plan.h).
 *     Where the pool has no segments for it, ASK_RANGE.
 *   - COLLECT, CLOSE, WAIT: the request enters the pool's queue (pool.h), and the process gives the daemon what
 *     may serve it there. It asks for just what is needed, and waits until the deadline. For an arena the same
 *     is COLLECT_SEGMENTS, CLOSE_SEGMENTS, WAIT_SEGMENTS, SETTLE; it claims no place before all segments have
 *     come.
 *
 * A request for segments may have a place also beside buffers in use, with fewer segments than the daemon is
 * asked for. Where a release makes one, its turn has come, and its question is cancelled. A place that takes
 * moves is found when it tries the arena again, after a time (RETRY).
 *
 * A client without a cache has the rows ASK_LEASE, CLOSE_LEASE and WAIT_LEASE: each buffer is a lease.
 */
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "client/core/target.h"

struct piece;
struct stream_heap;

/* The states, with what the action of each does. X(NAME) for each. */
#define ACQUIRE_STATE_LIST(X)                                                                                \
    /* what the process has */                                                                               \
    X(TAKE)   /* takes from this thread's cache and the stream heap */                                       \
    X(FLUSH)  /* empties the other threads' caches into the stream heap, and takes again */                  \
    X(LOOK)   /* looks for a moment whether deferred memory becomes ready */                                 \
    X(RETAKE) /* takes again */                                                                              \
    /* what the daemon has */                                                                                \
    X(CHOOSE)   /* chooses the way: a range or an arena */                                                   \
    X(ASK)      /* question: for an extent */                                                                \
    X(RECHOOSE) /* the pool has no room for one: chooses again */                                            \
    X(ADD)      /* adds what was granted to the stream heap */                                               \
    X(COUNT)    /* counts a piece that came straight from the daemon */                                      \
    /* an arena */                                                                                           \
    X(PLACE)        /* claims a place, for which the arena may grow; idle segments move there */             \
    X(MOVE)         /* claims a place, to which all idle segments move that are needed */                    \
    X(LACK)         /* lists the segments that the place lacks */                                            \
    X(ASK_SEGMENTS) /* question: for these */                                                                \
    X(NARROW)       /* the pool has none of this width: does with narrower ones */                           \
    X(UNPLACE)      /* gives the place up */                                                                 \
    X(MAP)          /* maps all segments of the place */                                                     \
    X(ASK_RANGE)    /* question: for a range that is free now */                                             \
    /* waiting */                                                                                            \
    X(COLLECT) /* enters the queue, and gives back what may serve it */                                      \
    X(CLOSE)   /* closes idle segments, where no other thread answers the daemon */                          \
    X(WAIT)    /* question: for what is needed */                                                            \
    X(COLLECT_SEGMENTS)                                                                                      \
    X(CLOSE_SEGMENTS)                                                                                        \
    X(WAIT_SEGMENTS)                                                                                         \
    X(SETTLE) /* claims a vacant place for the segments that have come */                                    \
    X(RETRY)  /* looks whether there is time to try the arena again */                                       \
    /* without a cache */                                                                                    \
    X(ASK_LEASE)   /* question: for a lease of the size */                                                   \
    X(CLOSE_LEASE) /* closes idle segments */                                                                \
    X(WAIT_LEASE)  /* question: the same, and waits */                                                       \
    /* ends */                                                                                               \
    X(DONE)                                                                                                  \
    X(FAILED)

/* The events, likewise. */
#define ACQUIRE_EVENT_LIST(X)                                                                                \
    /* of an action */                                                                                       \
    X(HAS)    /* the action found memory, or was done */                                                     \
    X(LACKS)  /* it found none */                                                                            \
    X(SPREAD) /* it found none, and other threads' caches may have some */                                   \
    X(FAILS)  /* an error ends the acquire */                                                                \
    /* of a choice */                                                                                        \
    X(IS_RANGE)        /* a range, and the pool may have room */                                             \
    X(IS_SHORT)        /* a range; the pool has no room */                                                   \
    X(IS_PLACED)       /* an arena, which may grow */                                                        \
    X(IS_TIGHT_PLACED) /* an arena; the pool has no room */                                                  \
    X(IS_SHORT_PLACED) /* an arena; other processes wait */                                                  \
    /* of a question */                                                                                      \
    X(GRANTED)                                                                                               \
    X(IS_PART)   /* granted, and more segments are to be asked for */                                        \
    X(EXHAUSTED) /* refused: the pool has no room */                                                         \
    X(LIMITED)   /* refused: the process, or its user, has as much as it may */                              \
    X(REFUSED)   /* refused for good, or the daemon is gone, or its answer is late */                        \
    X(TURN)      /* a release in the process has served it: acquire.piece */                                 \
    X(CANCELLED) /* by the program */

#define ACQUIRE_MEMBER(name) ACQUIRE_##name,
enum acquire_state {
    ACQUIRE_STATE_LIST(ACQUIRE_MEMBER) ACQUIRE_STATES
};
enum acquire_event {
    ACQUIRE_EVENT_LIST(ACQUIRE_MEMBER) ACQUIRE_EVENTS
};
#undef ACQUIRE_MEMBER

/* One acquire as the core has it: its state, and its place in the queue of its pool. */
struct acquire {
    enum acquire_state state;
    /* while it is in the queue (pool.h) */
    struct list link;
    uint64_t size_bytes;
    bool is_of_segments; /* it waits for whole segments of an arena */
    unsigned passes;     /* since it waits, or since no target was found */
    struct target target;
    uint64_t offered_ns; /* when a range for it went to the daemon; 0: none did */
    struct stream_heap *stream_heap;
    struct piece *piece;  /* a release has served it with this; NULL: not yet */
    uint64_t question_id; /* of the question that the daemon has; 0: it has none yet */
};

/* The state after an event, which the state's row has. */
enum acquire_state acquire_next(enum acquire_state state, enum acquire_event event);

/* Whether the state's row has the event. */
bool acquire_may(enum acquire_state state, enum acquire_event event);

/* Whether the action of a state is a question for the daemon. */
bool acquire_asks(enum acquire_state state);

/* Whether an acquire in the queue leaves it when it comes to a state. */
bool acquire_leaves_queue(enum acquire_state state);

#endif
