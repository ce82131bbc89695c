/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_CORE_H
#define DAEMON_CORE_CORE_H
/*
 * The core of the daemon: which session has which memory, as plain data structures. It makes no system call,
 * reads no clock and calls no driver. Events come in as calls, with the time. Decisions go out through
 * core_next_answer(), core_next_growth(), core_next_retirement() and core_next_reclaim(), which the shell
 * drains after every event. So tests can play any history through it at the speed of memory.
 *
 * Waiting requests are served in one place. Each event that may help them marks its pool as ready
 * (pool_mark_ready): memory is released, a segment is made or freed, a quota or a limit changes, an overdue
 * request leaves. Each entry point that takes the time serves the pools that are ready before it returns.
 *
 * The core owns everything in daemon/core/. Not thread-safe: the loop's thread alone uses it.
 *
 * Return values: 0; a positive PROTO_E_… for errors of the client; a negative errno for errors of the daemon
 * (-ENOMEM).
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/core/policy.h"
#include "daemon/core/types.h"
#include "daemon/core/undelivered.h"

/* An answer for the shell to send. */
struct answer {
    struct session *session;
    uint64_t request;
    struct lease *lease;          /* the first; NULL: refused, see failure */
    unsigned n_leases;            /* the others: core_answer_next() */
    bool is_of_segments;          /* the request was for whole segments */
    const struct lease *last;     /* of them */
    struct proto_failure failure; /* only when lease is NULL */
    struct pool *pool;            /* NULL: there is none of that id */
    uint64_t asked_ns;
    bool waited;
    bool probe; /* refused, and no failure: request_is_probe() */
};

/* A request that has waited for LONG_WAIT_NS, for the shell's log. */
struct long_wait {
    struct session *session;
    uint64_t waited_ns;
    char text[PROTO_TEXT_MAX + 1]; /* what it asks for, what it waits for, which sessions hold that */
};

/* Returns 0 or -ENOMEM. */
int core_new(struct core **ret_core);

/* Frees the core. All sessions and parcels must be gone, and nothing may be published. Segments that are left are dropped; their backing is
 * the shell's. Accepts NULL, returns NULL. */
struct core *core_free(struct core *core);

/* The configuration of a new pool. The strings are copied. Limit, step and reserve are rounded down to
 * SEGMENT_GRANULE; a step that is given is at least one granule. */
struct pool_config {
    enum proto_pool_kind kind;
    int device, numa_node;
    uint8_t uuid[PROTO_UUID_BYTES];
    const char *name;
    struct pool_sizes sizes;
    bool needs_vmm;         /* its segments are for sessions that know descriptors for the driver */
    bool takes_descriptors; /* each of its segments takes a descriptor of the daemon: core->segments_limit */
};

/* Adds a pool, STARTING, before the first session opens. Returns 0, -ENOMEM or -ENOSPC (PROTO_POOLS_MAX). */
int core_add_pool(struct core *core, const struct pool_config *config, struct pool **ret_pool);

/* The pool of an id, or NULL. */
struct pool *core_find_pool(const struct core *core, uint32_t id);

/* The pool's device can be used now: growth may begin. */
void core_pool_ready(struct pool *pool, uint64_t now_ns);

/* The pool's device will never be usable: waiting requests are refused with the error. */
void core_pool_failed(struct pool *pool, const char *error, uint64_t now_ns);

/* The pool's device stopped working for good: nothing is lent from now on, and waiting requests are refused
 * with the error. Leases stay. Does nothing if the pool is closed already. */
void core_pool_lost(struct pool *pool, const char *error, uint64_t now_ns);

/* An operator drains the pool, or ends that (pool.h). */
void core_pool_drain(struct pool *pool, bool is_draining, uint64_t now_ns);

/* Whether all pools drain: no session opens then. */
bool core_is_draining(const struct core *core);

/* The pool's worker has been in a call for so long that it may hang: refusals say so. call: a constant
 * string; NULL: it has come back. */
void core_pool_stalled(struct pool *pool, const char *call, uint64_t for_ns);

/* Changes the sizes of a pool while it is in use. Lowering a limit takes nothing away; it only stops growth.
 */
void core_pool_configure(struct pool *pool, const struct pool_sizes *sizes, uint64_t now_ns);

/* Replaces the policy, which the core owns from then on. NULL: none. No session loses
 * memory: a tenant that has more than allowed gets no more, and a session that may not use a pool any more
 * keeps its leases there. Its requests that wait there are refused. */
void core_set_policy(struct core *core, struct policy *policy, uint64_t now_ns);

/* Opens a session. Returns 0, PROTO_E_LIMIT (core_explain_sessions() says which limit), PROTO_E_SHUTDOWN (all
 * pools drain) or -ENOMEM. */
int core_session_open(struct core *core, const struct peer *peer, uint64_t now_ns,
                      struct session **ret_session);

/* Counts a session that the shell refuses by itself. */
void core_session_refused(struct core *core);

/* Writes why a further session of the peer's user is refused. */
void core_explain_sessions(struct core *core, const struct peer *peer, struct proto_failure *ret_failure);

/* Charges the session's tenant for bytes of a reply that the shell keeps for it. The charge ends with the
 * session at the latest. Returns 0 or PROTO_E_LIMIT. */
int core_session_keep_reply(struct session *session, uint64_t bytes);

/* Gives back a part of what core_session_keep_reply() charged. */
void core_session_drop_reply(struct session *session, uint64_t bytes);

/* The session's process says its name, which is shown as its command from now on. name: printable UTF-8,
 * of fewer than COMMAND_SIZE bytes. */
void core_session_name(struct session *session, const char *name, uint64_t now_ns);

/* The session wants to be asked for memory that it keeps idle. To be called before its first lease. */
void core_session_want_reclaim(struct session *session);

/* Gives the session its page, which is borrowed until the session is gone. From then on releases may name
 * fences in it, and the core marks in it which pools are short. */
void core_session_set_page(struct session *session, struct proto_page *page);

/* The session has a slot on its user's board: from then on releases may name fences there. words: the slot's,
 * borrowed until the session is gone. */
void core_session_set_board(struct session *session, uint32_t slot, const struct proto_board_slot *words);

/* The session sent a message: it does not leave questions unanswered because it is stopped. To be called for
 * each message. */
static inline void core_session_heard(struct session *session) {
    session->asked_ns = 0;
    session->core->n_mute -= session->is_mute;
    session->is_mute = false;
}

/* Farewell: the client's streams are idle and its mappings closed. Everything returns, and the session is
 * freed. */
void core_session_close(struct session *session, uint64_t now_ns);

/* The connection ended without a farewell: leases go into quarantine, nothing returns. reason: a text in the
 * shell's memory, borrowed until the session is gone; the shell may rewrite it. */
void core_session_lose(struct session *session, uint64_t now_ns, const char *reason);

/* The lost session's process and its GPU work are over: everything returns; the session is freed. */
void core_session_gone(struct session *session, uint64_t now_ns);

/* Asks for a block. Every answer comes from core_next_answer(). Returns 0 or -ENOMEM (no answer will come).
 */
int core_acquire(struct session *session, uint64_t request, const struct proto_acquire *acquire,
                 uint64_t now_ns);

/* Asks for several whole segments of one size, in a pool whose blocks may lie in several (pool_has_rows()):
 * all of them are granted at once. Otherwise as core_acquire(); the segments are answered together. */
int core_acquire_segments(struct session *session, uint64_t request,
                          const struct proto_acquire_segments *acquire, uint64_t now_ns);

/* Cancels a request of the session that waits, for memory or for a name: it leaves its wait queue and is refused
 * with PROTO_E_CANCELLED, and the requests behind it are served. Where the session has several requests with this
 * id, that is the oldest one that waits. Does nothing where none waits: its answer may be under way. Linear
 * in the session's requests (SESSION_WAITING_MAX). */
void core_cancel(struct session *session, uint64_t request, uint64_t now_ns);

/* Gives a lease back, whole or in part. Returns 0, PROTO_E_STALE, PROTO_E_INVALID, PROTO_E_SHARED,
 * PROTO_E_LIMIT (for a part: what is left would be in too many ranges, or a fence keeps it as a lease that
 * is one too many, for the session or its tenant's quota), -ENOMEM. A session without a page has no fences,
 * one without a slot on the board none there: PROTO_E_INVALID. core_ask_holders() tells of a fence on the
 * board.
 *  */
int core_release(struct session *session, const struct proto_release *release, uint64_t now_ns);

/* Whether a tenant has a session, in quarantine or not, or a parcel. */
bool core_has_tenant(struct core *core, struct tenant_id id);

/* Whether a peer may not come in through its scope: it is gone or dropped, or names other users. */
bool core_is_shut_out(const struct core *core, const struct peer *peer);

/* No session begins in the scope any more. When a user's last session is gone, the user's parcels are revoked
 * and the segments go back to the driver. With the last tenant the scope is freed, perhaps at once. */
void core_scope_drop(struct scope *scope, uint64_t now_ns);

/* The terms of the scope were changed: its users' limits are those from now on. */
void core_scope_changed(struct scope *scope, uint64_t now_ns);

/* The use of all users of a scope together. */
struct scope_use {
    struct quota quota;      /* a copy; with the refusals since the scope was made */
    uint64_t reserved_bytes; /* of their segments */
};
void core_scope_report(const struct scope *scope, struct scope_use *ret_use);

/* Finds the other leases on a lease's block: how many hold it, and only if none does, the fences of those
 * that released it, as far as they are not ready. Looks at a bounded number of leases, and counts the others.
 * Returns 0 or PROTO_E_STALE. */
int core_ask_holders(struct session *session, const struct proto_lease_name *name,
                     struct proto_holders *ret_holders);

/* As core_release(), for a message without a reply: its client would not learn of a refusal, so a part that
 * is beyond the limits stays with its lease, and comes back with the rest (lease_withhold()). PROTO_E_INVALID
 * also where more comes back of a lease than it has. */
int core_release_one_way(struct session *session, const struct proto_release *release, uint64_t now_ns);

/* Makes a part of a lease a lease of its own; nothing returns to the pool in between. Returns 0,
 * PROTO_E_STALE, PROTO_E_INVALID, PROTO_E_SHARED, PROTO_E_LIMIT, -ENOMEM. */
int core_split(struct session *session, const struct proto_release *split, struct lease **ret_lease);

/* Merges two leases of the session that lie in one segment into the lower one, or makes a row (row.h) of two
 * of which the other one can continue the first. Returns 0, PROTO_E_STALE, PROTO_E_INVALID, PROTO_E_SHARED,
 * PROTO_E_LIMIT. */
int core_merge(struct session *session, const struct proto_merge *merge);

/* As core_merge(), for a message without a reply: it may go beyond the limit of ranges by PROTO_ONE_WAY_MAX.
 */
int core_merge_one_way(struct session *session, const struct proto_merge *merge);

/* Gives the lease's block a token, or returns the one that it has. Where the request names a part, that
 * becomes a lease first, as by core_split(). *ret_lease: the lease that is shared. fresh: random bytes for a
 * new token. Returns 0, PROTO_E_STALE, PROTO_E_INVALID (a size above the part or the block; or of the block a
 * part has come back), the errors of core_split() for a part, -ENOMEM. After an error nothing was split. */
int core_share(struct session *session, const struct proto_share *wanted, const struct proto_token *fresh,
               uint64_t now_ns, struct lease **ret_lease, struct proto_token *ret_token);

/* As core_share(), and makes a parcel (parcel.h) of the block, of which it returns the token. fresh: random
 * bytes for two new tokens. Returns also PROTO_E_LIMIT: the tenant has as many parcels or leases as it may.
 */
int core_send(struct session *session, const struct proto_send *send,
              const struct proto_token fresh[static 2], uint64_t now_ns, struct lease **ret_lease,
              struct proto_token *ret_token);

/* Ends a parcel. Any session of its tenant may. Returns 0 or PROTO_E_NO_TOKEN. */
int core_revoke(struct session *session, const struct proto_token *token, uint64_t now_ns);

/* Ends the parcels that a session sent; sender 0: all there are. Returns how many, and the bytes that no
 * process had.
 */
unsigned core_revoke_all(struct core *core, uint64_t sender, uint64_t now_ns, uint64_t *ret_bytes);

/* Takes a further lease on a shared block, or on that of a parcel. Returns 0, PROTO_E_NO_TOKEN (unknown,
 * gone, another tenant's), PROTO_E_DRIVER (the pool is lost, or the block lies in an orphan), PROTO_E_LIMIT, -ENOMEM. */
int core_attach(struct session *session, const struct proto_token *token, struct lease **ret_lease);

/* Adds a part to the directory that the session's next publication has. Returns 0, PROTO_E_INVALID (it does not
 * follow the part before), PROTO_E_LIMIT (bytes that the daemon keeps for the user) or -ENOMEM. */
int core_write_directory(struct session *session, const struct proto_directory_part *part);

/* Publishes blocks of the session under a name, in the place of what was published there. tokens: random, fresh,
 * two for each buffer. Returns:
 * - 0, and the generation
 * - PROTO_E_STALE: a lease is not the session's; or the directory is not the one that was written
 * - PROTO_E_INVALID: a size above the block's; a block of which a part has come back; a fence of another slot on
 *   the board; or SAME_LAYOUT, and something with another layout is published, or nothing
 * - PROTO_E_LIMIT: names, parcels, leases, or kept bytes of the tenant. The edition that is replaced does not count
 * - -ENOMEM */
int core_publish(struct session *session, const struct proto_publish *publish,
                 const struct proto_token *tokens, uint64_t now_ns, uint64_t *ret_generation);

/* The name stands for nothing any more, or the session does not build it. Returns 0 or PROTO_E_NO_NAME: nothing
 * is published, or another generation; or the session does not build it. */
int core_unpublish(struct session *session, const struct proto_unpublish *unpublish, uint64_t now_ns);

/* As core_unpublish(), for an operator. */
int core_unpublish_of(struct core *core, struct tenant_id owner, const char *text, uint64_t now_ns);

/* Withdraws all that is published, of all tenants. No session is left, or all are to end. */
void core_unpublish_all(struct core *core, uint64_t now_ns);

/* Asks for a name. Every answer comes from core_next_name_answer(). Returns 0 or -ENOMEM (no answer will come),
 * or PROTO_E_LIMIT: names, or waiting requests. */
int core_open_name(struct session *session, uint64_t request, const struct proto_open_name *open,
                   uint64_t now_ns);

/* Reads a part of a directory. Returns 0, PROTO_E_NO_NAME, PROTO_E_STALE (this generation is not published any
 * more) or PROTO_E_INVALID (the directory ends before). */
int core_read_directory(struct session *session, const struct proto_read_directory *read,
                        struct proto_directory_part *ret_part);

/* Lists names of the session's tenant. */
void core_list_names(const struct session *session, uint64_t after, struct proto_names *ret_names);

/* An answer to core_open_name(). */
struct name_answer {
    struct session *session;
    uint64_t request;
    enum proto_error error; /* 0: named says it, or channel */
    bool is_of_channel;     /* it is to core_join_channel() */
    struct proto_named named;
    struct proto_channel_reply channel;
    struct proto_failure failure;
};

/* The next answer for the shell to send. Returns false when there is none. */
bool core_next_name_answer(struct core *core, struct name_answer *ret_answer);

/* Makes a channel, of the memory of a lease of the session. tokens: random, fresh. The shell then makes its pages,
 * and says core_channel_made() or core_unmake_channel(). Returns 0; PROTO_E_STALE; PROTO_E_INVALID: the block is too
 * small, or a part of it has come back, or the name stands for something; PROTO_E_LIMIT; -ENOMEM. */
int core_make_channel(struct session *session, const struct proto_make_channel *make,
                      const struct proto_token tokens[static 2], uint64_t now_ns,
                      struct channel **ret_channel);

/* The channel's pages are there: sessions may join. shell_link: a link of the shell's object with them, borrowed
 * until core_next_channel_gone() returns it. */
void core_channel_made(struct channel *channel, struct list *shell_link);

/* The channel ends, as by core_unpublish(): it may be gone. */
void core_unmake_channel(struct channel *channel, uint64_t now_ns);

/* The channel's pages are lost: it ends, with all of its places. */
void core_lose_channel(struct channel *channel, uint64_t now_ns);

/* Asks for a place of a channel. As core_open_name(). */
int core_join_channel(struct session *session, uint64_t request, const struct proto_join_channel *join,
                      uint64_t now_ns);

/* The session leaves a place. Returns 0, or PROTO_E_STALE: it is not in it. */
int core_leave_channel(struct session *session, const struct proto_channel_page_name *left, uint64_t now_ns);

/* Finds the channel of which the session asks for a page. *ret_is_own: the session may write the page. Returns 0,
 * PROTO_E_STALE (the session has no place there) or PROTO_E_INVALID (the channel has no such page). */
int core_find_channel_page(const struct session *session, const struct proto_channel_page_name *wanted,
                           struct channel **ret_channel, bool *ret_is_own);

/* The next channel of which places have changed since it was returned last: the shell writes its roll, once the
 * step has ended. Returns false when there is none. */
bool core_next_channel(struct core *core, struct channel **ret_channel);

/* The link of a channel that is gone: the shell frees its object. NULL: there is none. */
struct list *core_next_channel_gone(struct core *core);

/* Describes a lease. Returns 0 or PROTO_E_STALE. */
int core_query(struct session *session, const struct proto_lease_name *name, struct proto_info *ret_info);

/* Names parts of a row, from one on. Returns 0, PROTO_E_STALE or PROTO_E_INVALID (the lease is no row, or has
 * no such part). */
int core_ask_parts(struct session *session, const struct proto_part_name *name,
                   struct proto_parts *ret_parts);

/* Answers an IDLE. The session's request was refused for want of room, or the session was asked for memory
 * that it keeps idle: names the idle segments that it has to close for that (closing.h). Nothing is lent in
 * those any more. Returns 0 or PROTO_E_NO_POOL. */
int core_idle(struct session *session, const struct proto_idle *idle, uint64_t now_ns,
              struct proto_segments *ret_segments);

/* Answers an OFFER: names the segments that the session may close (closing.h). Returns 0 or PROTO_E_NO_POOL.
 */
int core_offer(struct session *session, const struct proto_offer *offer, uint64_t now_ns,
               struct proto_segments *ret_segments);

/* The session has answered a question for idle memory of a pool. Returns 0, PROTO_E_NO_POOL or
 * PROTO_E_INVALID (it was not asked so often). */
int core_reclaimed(struct session *session, const struct proto_reclaimed *reclaimed, uint64_t now_ns);

/* The session has closed a segment that core_idle() or core_offer() named. Returns 0 or PROTO_E_INVALID (it
 * was not told to).
 */
int core_closed(struct session *session, const struct proto_closed *closed, uint64_t now_ns);

/* The shell made the growth that core_next_growth gave it. size_bytes: as decided. Takes backing.
 * Returns 0, or -ENOMEM: the core has no such segment, and the shell frees it. */
int core_segment_made(struct pool *pool, uint64_t size_bytes, void *backing, uint64_t now_ns);

/* Gives a segment of this backing its label. */
void core_label_segment(struct pool *pool, const void *backing, const struct segment_label *label);

/* The shell could not make the growth. error: a text for people, with the driver's error in it. */
void core_growth_failed(struct pool *pool, const char *error, uint64_t now_ns);

/* The shell has freed a segment that core_next_retirement gave it; the segment is gone afterwards. */
void core_segment_retired(struct segment *segment, uint64_t now_ns);

/* Polls fences although no request needs memory, so that the pools' numbers are true. Bounded. */
void core_poll_fences(struct core *core);

/* Retires the pool's idle segments (not mapped by any session), down to its reserve. Returns the bytes. The
 * pool does not grow ahead of demand before the next lease: the trimmed memory would be back at once. A
 * growth of that kind that is under way is retired when it is there, unless it is wanted by then. */
uint64_t core_trim(struct pool *pool);

/* Does all that is due because time has passed. */
void core_tick(struct core *core, uint64_t now_ns);

/* When core_tick() is to be called next; NS_FOREVER: never. */
uint64_t core_next_tick_ns(const struct core *core);

/* Takes the next answer for the shell to send. Returns false when there is none. */
bool core_next_answer(struct core *core, struct answer *ret_answer);

/* The next lease of an answer that has several, in order. Returns NULL after the last one. To be called
 * before any other call of the core than core_describe_lease(). */
struct lease *core_answer_next(const struct answer *answer, const struct lease *lease);

/* The shell has sent an answer: its time goes into the pool's histograms. */
void core_answer_sent(const struct answer *answer, uint64_t now_ns);

/* Takes the next growth for the shell to make. Returns false when there is none. */
bool core_next_growth(struct core *core, struct pool **ret_pool, uint64_t *ret_size_bytes);

/* Takes the next segment for the shell to free. Returns false when there is none. */
bool core_next_retirement(struct core *core, struct segment **ret_segment);

/* Takes the next session for the shell to ask for memory that it keeps idle: it is ACTIVE, wants to be asked,
 * and has memory of a pool. Returns false when there is none. */
bool core_next_reclaim(struct core *core, struct session **ret_session);

/* Takes the next request that has waited for long, each once. Returns false when there is none. */
bool core_next_long_wait(struct core *core, uint64_t now_ns, struct long_wait *ret_wait);

/* Describes a lease for its client, except for the handle, which is the shell's. *ret_describe: the session
 * did not have the segment mapped before, and its description has to be sent. */
void core_describe_lease(struct lease *lease, struct proto_lease *ret_lease, bool *ret_describe);

/* As core_describe_lease(), of one part of a row alone: ret_lease has its segment, offset and
 * size. With PROTO_DESCRIBE_AGAIN ret_lease has the description in any case, and a lease that is no row is
 * its own part 0. Returns 0 and the segment, PROTO_E_STALE, PROTO_E_DRIVER (an orphan) or PROTO_E_INVALID (no row,
 * or no such part). */
int core_describe_part(struct session *session, const struct proto_part_name *name,
                       struct proto_lease *ret_lease, struct segment **ret_segment, bool *ret_describe);

/* Checks every invariant of every object. For tests and on demand: linear in everything. */
bool core_is_valid(const struct core *core);

#endif
