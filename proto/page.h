/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_PAGE_H
#define PROTO_PAGE_H
/*
 * The page: memory that a session shares with the daemon. The daemon makes it (a memfd, zero, sealed against
 * a change of size), both map it; the client writes, the daemon reads, but for the last line. The daemon
 * takes its contents for the client's word and no more: they decide when the client's own memory comes back,
 * and they are shown in the stats of this session.
 *
 * Fences: 64-bit words that the client's streams write, each by one stream, in ascending order. A fence is
 * ready when the word has reached its value: proto_fence_is_ready().
 *
 * Counters: one line for each thread and pool (a process's heap for it), written by the thread alone with
 * plain stores. Sums over the lines of a pool are what the session did, modulo 2^64: what one thread takes
 * another may give back. A line is in use when its pool is not 0; the sums of a thread that ended stay in its
 * line, which another may go on with, for the same pool. Lines are taken into use from the lowest up and stay
 * in use: the daemon looks no further than the first whose pool is 0.
 *
 * The counters count memory of leases that only this session holds, from which its buffers are cut (extents).
 * Buffers that are shared blocks, here or attached, are not counted: the daemon knows their holders, and
 * counts them as in use. So the client counts a buffer as given when it splits it off to share it, and does
 * not count its release.
 *
 * Short pools: the daemon's line. It marks the pools in which requests wait for memory that sessions hold,
 * and counts the questions for idle memory. A client reads the count before it looks for idle memory, and
 * names it in RECLAIMED: the daemon can tell an answer to an earlier question. The daemon never reads the
 * line; a client that writes there deceives itself.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/limits.h"

struct proto_counters {
    _Atomic uint32_t pool; /* id; 0: the line is not in use */
    uint32_t reserved;
    _Atomic uint64_t hits;        /* buffers that were taken without a message to the daemon */
    _Atomic uint64_t misses;      /* and with one */
    _Atomic uint64_t taken_bytes; /* capacity of the buffers that were taken, */
    _Atomic uint64_t given_bytes; /* and given back: the difference is in use */
    _Atomic uint64_t moves;       /* segments that were moved within an arena */
    uint64_t reserved2[2];
};
_Static_assert(sizeof(struct proto_counters) == 64, "a cache line, so that threads do not share one");

struct proto_shortage {
    _Atomic uint64_t pools; /* bit id - 1 */
    _Atomic uint64_t
        asked; /* how often the session was asked for idle memory: the newest question's number */
    uint64_t reserved[6];
};
_Static_assert(sizeof(struct proto_shortage) == 64, "a cache line");
_Static_assert(PROTO_POOLS_MAX <= 64, "a bit for each pool");

#define PROTO_PAGE_COUNTERS ((PROTO_PAGE_BYTES - PROTO_PAGE_FENCES * 8u) / 64u - 1)

struct proto_page {
    _Atomic uint64_t fences[PROTO_PAGE_FENCES];
    struct proto_counters counters[PROTO_PAGE_COUNTERS];
    struct proto_shortage shortage;
};
_Static_assert(sizeof(struct proto_page) == PROTO_PAGE_BYTES, "the page is what its memfd is");

/* Whether a word has reached a value, in cyclic order (as cuStreamWaitValue64's GEQ has it). */
static inline bool proto_fence_is_ready(uint64_t word, uint64_t value) {
    return (int64_t)(word - value) >= 0;
}

#endif
