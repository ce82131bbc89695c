/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_USE_H
#define DAEMON_CORE_USE_H
/*
 * Use: what sessions do with the memory that they hold. The daemon knows what is leased; how much of that
 * lies in a client's cache, and how often the cache could serve, is the client's to say, in the counters of
 * its page (proto/page.h). It is shown and decides nothing: what a client says of itself cannot be checked,
 * and is at most made plausible. All of a session that does not count is in use, and so is what is shared,
 * which the daemon knows better.
 */
#include <stdint.h>

struct core;
struct pool;
struct session;

struct use {
    uint64_t in_use_bytes, cached_bytes; /* together what is leased */
    uint64_t hits, misses;               /* buffers taken without a message to the daemon, and with one */
    uint64_t moves;                      /* segments that clients moved within their arenas */
};

/* By pool, for a session: ret_uses[id - 1] for each pool of the core; the rest is untouched. The page is
 * memory that its client writes meanwhile: each value is read once. Linear in the counters in use: some 20 us
 * for a client that uses all of them, less than one for a client with 16 threads. */
void use_of_session(const struct session *session, struct use *ret_uses);

/* As use_of_session(), for the pools, over all sessions. cached_bytes are those of ACTIVE sessions, and so is
 * in_use_bytes what is leased without what is in quarantine; a block that several share is in it once. Hits,
 * misses and moves are those of the sessions that are there now. */
void use_of_pools(const struct core *core, struct use *ret_uses);

/* Adds up; hits, misses and moves stay at the largest number where a client claims more than there can be. */
void use_add(struct use *sum, const struct use *use);

#endif
