/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_MOVE_DEBTS_H
#define CLIENT_CACHE_MOVE_DEBTS_H
/*
 * The debts of a client for segments that its arenas moved, one for each pool. A debt decides how a miss gets
 * the segments that its place in an arena lacks: idle ones of the arena move there, or all of them come from
 * the daemon.
 *
 * A move saves memory, and takes 27 us of the driver, or twice that where another mapping has to go first.
 * Most programs move a few segments when their work begins anew. A program whose buffers overlap at random
 * would move for ever: what is idle is never where the next buffer fits, and each move leaves a gap for which
 * a later miss moves again. A little more memory ends that. So moves are debts, which buffers that the
 * process takes from the pool pay off, and time. A miss moves while the debt stays within a credit, or where
 * there is none: one large buffer may take all that is idle. Else the arena grows (arena_claim_locked() says
 * how far).
 *
 * Thread-safe, by a lock that is a leaf.
 */
#include <pthread.h>
#include <stdint.h>

#include "proto/limits.h"

/* The constants were chosen on traces that are hard to pack, and on the recorded programs
 * (docs/architecture.md, "Moves on credit", has the figures).
 *
 * So many buffers pay for a segment. At this rate moves add at most 0.4 us to a buffer. The recorded programs
 * move at most one segment for 200 buffers. */
#define MOVE_DEBT_TAKES UINT64_C(64)
/* So much time pays for a segment: a program that works longer with its buffers than a replay does may spend
 * up to a twentieth of its time on moves. The time of the misses themselves pays nothing. Otherwise slow ones
 * would pay for more of their kind. */
#define MOVE_DEBT_NS (1000 * UINT64_C(1000))
/* A miss that moves any segments costs so many more: it leaves a fence, and some time of the driver's calls
 * does not depend on the number of segments. */
#define MOVE_DEBT_MISS UINT64_C(4)
/* The credit. Of the recorded programs transformer_train moves up to 360 segments in a pass, most of them in
 * a row. A larger credit puts growth off: programs that are hard to pack still grow, but later, and move more
 * when they are warm. */
#define MOVE_DEBT_CREDIT UINT64_C(512)

struct move_debt {
    uint64_t segments;
    uint64_t paid_takes, paid_ns; /* the buffers, and the time, that have paid already */
};

struct move_debts {
    pthread_mutex_t lock;
    struct move_debt pools[PROTO_POOLS_MAX]; /* by the pool's id - 1 */
};

void move_debts_init(struct move_debts *debts);
void move_debts_deinit(struct move_debts *debts);

/* How many segments a miss may move. takes: how many buffers the process had taken from the pool. now_ns: by
 * clock_now_ns(). Another thread's later figures may have come first. */
uint64_t move_debts_allowance(struct move_debts *debts, uint32_t pool, uint64_t takes, uint64_t now_ns);

/* A miss has moved so many segments. */
void move_debts_add(struct move_debts *debts, uint32_t pool, uint64_t n_moved);

/* A miss took so much time, which pays nothing. */
void move_debts_except(struct move_debts *debts, uint32_t pool, uint64_t miss_ns);

/* The pool had no new segments. Its debt is 0, so that the daemon of a full pool is asked in vain once in a
 * whole credit of moves, and not at each miss. */
void move_debts_forgive(struct move_debts *debts, uint32_t pool);

#endif
