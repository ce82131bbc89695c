/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_CORE_H
#define DAEMON_CORE_CORE_H
/*
 * The core of the daemon: who has which memory, as plain data structures. It makes no system call, reads no
 * clock and calls no driver: what happens comes in as calls (with the time), and what has to be done about it
 * goes out through core_next_answer(), core_next_growth(), core_next_retirement() and core_next_reclaim(),
 * which the shell drains after every event. So any history can be played through it at the speed of memory.
 *
 * It owns everything in daemon/core/. Not thread-safe: the loop's thread alone uses it.
 *
 * Return values: 0; a positive PROTO_E_… for what is the client's doing; a negative errno for what is ours
 * (-ENOMEM).
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/core/types.h"
#include "daemon/core/policy.h"
#include "daemon/core/undelivered.h"

/* An answer for the shell to send. */
struct answer {
    struct session *session;
    uint64_t request;
    struct lease *lease;          /* NULL: refused, see failure */
    struct proto_failure failure; /* only when lease is NULL */
    struct pool *pool;            /* NULL: there is none of that id */
    uint64_t asked_ns;
    bool waited;
    bool probe; /* refused, and no failure: request_is_probe() */
};

/* Returns 0 or -ENOMEM. */
int core_new(struct core **ret_core);

/* Frees the core. All sessions must be gone and all segments retired or forgotten by the shell: segments that
 * are left are dropped without further ado (their backing is the shell's). Accepts NULL, returns NULL. */
struct core *core_free(struct core *core);

/* What a pool is made with; the strings are copied. Limit, step and reserve are rounded down to
 * SEGMENT_GRANULE, a step that is given at least one. */
struct pool_config {
    enum proto_pool_kind kind;
    int device, numa_node;
    uint8_t uuid[PROTO_UUID_BYTES];
    const char *name;
    struct pool_sizes sizes;
};

/* Adds a pool, STARTING. Returns 0, -ENOMEM or -ENOSPC (PROTO_POOLS_MAX). */
int core_add_pool(struct core *core, const struct pool_config *config, struct pool **ret_pool);

/* NULL when there is none. */
struct pool *core_find_pool(const struct core *core, uint32_t id);

/* The pool's device can be used now: growth may begin. / It never will: those who wait are refused. */
void core_pool_ready(struct pool *pool, uint64_t now_ns);
void core_pool_failed(struct pool *pool, const char *error, uint64_t now_ns);

/* Its device does not work any more, and never will: nothing is lent from now on, those who wait are refused
 * with the error. Leases stay. Only the first error counts; harmless when the pool is closed already. */
void core_pool_lost(struct pool *pool, const char *error, uint64_t now_ns);
/* The pool's worker has been in a call for so long that it may hang: refusals say so. call: a constant
 * string; NULL: it has come back. */
void core_pool_stalled(struct pool *pool, const char *call, uint64_t for_ns);

/* Changes what may change while running. Lowering a limit takes nothing away; it only stops growth. */
void core_pool_configure(struct pool *pool, const struct pool_sizes *sizes, uint64_t now_ns);

/* Replaces the policy, which the core owns from then on. NULL: none. Nothing is taken away from anybody: who
 * has more than allowed gets no more, who may not use a pool any more keeps what it has there; requests that
 * wait there are refused. */
void core_set_policy(struct core *core, struct policy *policy, uint64_t now_ns);

/* Sessions. open: 0, PROTO_E_LIMIT (core_explain_sessions says which) or -ENOMEM. */
int core_session_open(struct core *core, const struct peer *peer, uint64_t now_ns,
                      struct session **ret_session);
/* Why a further session of the peer's user is refused. */
void core_explain_sessions(struct core *core, const struct peer *peer, struct proto_failure *ret_failure);
/* Charges the session's tenant for bytes of a reply that the shell keeps for it. 0 or PROTO_E_LIMIT. / Gives
 * them back. What is left of them is given back with the session. */
int core_session_keep_reply(struct session *session, uint64_t bytes);
void core_session_drop_reply(struct session *session, uint64_t bytes);
/* The session wants to be asked for what it keeps idle. Before its first lease. */
void core_session_want_reclaim(struct session *session);
/* The session's page, once it has one; borrowed until the session is gone. Releases may name fences in it
 * then, and the core marks in it which pools are short. */
void core_session_set_page(struct session *session, struct proto_page *page);
/* Farewell: the client's streams are idle and its mappings closed. Everything returns; the session is freed.
 */
void core_session_close(struct session *session, uint64_t now_ns);
/* The connection ended in any other way: leases go into quarantine, nothing returns. reason is a constant
 * string. */
void core_session_lose(struct session *session, uint64_t now_ns, const char *reason);
/* The lost session's process and its GPU work are over: everything returns; the session is freed. */
void core_session_gone(struct session *session, uint64_t now_ns);

/* Asks for a block. The answer, whichever, comes from core_next_answer. Returns 0 or -ENOMEM (no answer will
 * come). */
int core_acquire(struct session *session, uint64_t request, const struct proto_acquire *acquire,
                 uint64_t now_ns);

/* Gives a lease back, whole or in part. 0, PROTO_E_STALE, PROTO_E_INVALID, PROTO_E_SHARED, PROTO_E_LIMIT (for
 * a part: what is left would be in too many ranges, or a fence keeps it as a lease that is one too many),
 * -ENOMEM. A session without a page has no fences: PROTO_E_INVALID. */
int core_release(struct session *session, const struct proto_release *release, uint64_t now_ns);
/* The same where nobody hears of a refusal: a part may go beyond the limits by PROTO_ONE_WAY_MAX (proto.h).
 */
int core_release_one_way(struct session *session, const struct proto_release *release, uint64_t now_ns);

/* Makes a part of a lease a lease of its own; nothing returns to the pool in between. 0, PROTO_E_STALE,
 * PROTO_E_INVALID, PROTO_E_SHARED, PROTO_E_LIMIT, -ENOMEM. */
int core_split(struct session *session, const struct proto_release *split, struct lease **ret_lease);

/* Merges two leases of the session that lie in one segment into the lower one. 0, PROTO_E_STALE,
 * PROTO_E_INVALID, PROTO_E_SHARED, PROTO_E_LIMIT. */
int core_merge(struct session *session, const struct proto_merge *merge);
/* The same where nobody hears of a refusal: it may go beyond the limit by PROTO_ONE_WAY_MAX. */
int core_merge_one_way(struct session *session, const struct proto_merge *merge);

/* Names the lease's block; fresh are random bytes for the case that it has no token yet. size_bytes:
 * what those who attach are told; 0: as before. 0, PROTO_E_STALE, PROTO_E_INVALID (more than the block, or a
 * part of the block has come back), -ENOMEM. */
int core_share(struct session *session, const struct proto_lease_name *name, uint64_t size_bytes,
               const struct proto_token *fresh, struct proto_token *ret_token);

/* Takes a further lease on a shared block. 0, PROTO_E_NO_TOKEN (unknown, gone, another tenant's),
 * PROTO_E_DRIVER (the pool is lost), PROTO_E_LIMIT, -ENOMEM. */
int core_attach(struct session *session, const struct proto_token *token, struct lease **ret_lease);

/* Describes a lease. 0 or PROTO_E_STALE. */
int core_query(struct session *session, const struct proto_lease_name *name, struct proto_info *ret_info);

/* The session's request was refused for want of room, or it was asked for what it keeps idle: which of its
 * idle segments it has to close for that. Nothing is lent in those any more. 0 or PROTO_E_NO_POOL. / It has
 * closed one of them. 0 or PROTO_E_INVALID (it was not told to). See closing.h. */
int core_idle(struct session *session, const struct proto_idle *idle, uint64_t now_ns,
              struct proto_segments *ret_segments);
int core_closed(struct session *session, const struct proto_closed *closed, uint64_t now_ns);

/* The shell made the growth that core_next_growth gave it. size_bytes: as decided. Takes backing along.
 * Returns 0, or -ENOMEM: the core knows nothing of the segment, and the shell frees it. */
int core_segment_made(struct pool *pool, uint64_t size_bytes, void *backing, uint64_t now_ns);
/* It could not. error is text for people with the driver's error in it. */
void core_growth_failed(struct pool *pool, const char *error, uint64_t now_ns);
/* The shell has freed a segment that core_next_retirement gave it; the segment is gone afterwards. */
void core_segment_retired(struct segment *segment, uint64_t now_ns);

/* Looks at fences although nobody needs memory, so that what is told of the pools is true. Bounded. */
void core_look(struct core *core);

/* Retires the pool's idle segments (those that nobody has mapped), down to its reserve. Returns the bytes.
 * It does not grow ahead of demand again before the next lease: what was trimmed would be back at once. */
uint64_t core_trim(struct pool *pool);

/* Time has passed. / When that matters next; NS_FOREVER: never. */
void core_tick(struct core *core, uint64_t now_ns);
uint64_t core_next_tick_ns(const struct core *core);

/* Decisions, one a call; false when there are no more. */
bool core_next_answer(struct core *core, struct answer *ret_answer);
/* The shell has sent an answer: its time goes into the pool's histograms. */
void core_answer_sent(const struct answer *answer, uint64_t now_ns);
bool core_next_growth(struct core *core, struct pool **ret_pool, uint64_t *ret_size_bytes);
bool core_next_retirement(struct core *core, struct segment **ret_segment);
/* The session is to be asked for what it keeps idle: it is ACTIVE, wanted that, and others need it. */
bool core_next_reclaim(struct core *core, struct session **ret_session);

/* Fills in what a client is told of its lease, except the handle: that is the shell's. *ret_describe: the
 * session sees the segment for the first time, and the description has to go along. */
void core_describe_lease(struct lease *lease, struct proto_lease *ret_lease, bool *ret_describe);

/* Checks every invariant of every object. For tests and on demand: linear in everything. */
bool core_is_valid(const struct core *core);

#endif
