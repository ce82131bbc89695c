/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_SESSION_H
#define DAEMON_CORE_SESSION_H
/*
 * A session: one connected process. It owns its leases and its requests that wait.
 *
 *   ACTIVE --farewell (streams idle, mappings closed)--> gone, leases returned
 *   ACTIVE --anything else--> QUARANTINED --its process and its GPU work are over--> gone, leases returned
 *
 * In quarantine nothing of it is reused: a killed process's GPU work goes on after its socket closed
 * (measured on H200: writes 9 ms after end-of-file; 3.5 s where a forked child kept the driver's
 * descriptors).
 *
 * What it gives back behind a fence is not its own any more, but stays counted as its leases (and in
 * fenced_bytes) until the fence is ready: see fence.h.
 *
 * A session may want to be asked for what it keeps idle. It is asked through core_next_reclaim() while it is
 * ACTIVE and holds a lease in the pool that needs it, or has a segment of it mapped.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/list.h"
#include "daemon/core/limits.h"
#include "daemon/core/quota.h"
#include "proto/limits.h"
#include "proto/page.h"

struct core;
struct fence_queue;
struct pool;
struct segment;
struct tenant;

enum session_state {
    SESSION_ACTIVE,
    SESSION_QUARANTINED,
};

/* Who connected, as the kernel attests it. */
struct peer {
    pid_t pid;
    uid_t uid;
    gid_t gid;
    char command[COMMAND_SIZE]; /* printable UTF-8 */
    const gid_t *groups;        /* further ones; the shell's, which keeps them for the session's life */
    unsigned n_groups;
};

struct session {
    struct core *core;
    struct tenant *tenant;
    uint64_t id;
    struct peer peer;
    enum session_state state;
    bool wants_reclaim;     /* fixed before its first lease */
    uint64_t pools_allowed; /* bit id - 1: those that the policy lets it use */
    uint64_t connected_ns, lost_ns;
    const char *quarantine_reason; /* what the shell waits for, in the shell's memory; NULL while ACTIVE */
    struct list leases;            /* lease.session_link */
    struct list requests;          /* request.session_link: waiting, or answered and not yet sent */
    unsigned n_leases, n_requests;
    uint64_t n_ranges;     /* of the blocks of its leases */
    uint64_t leased_bytes; /* what its leases hold; a shared block counts for each holder */
    uint64_t fenced_bytes; /* the same of its fenced leases, which are not in leased_bytes */
    /* The same by pool (id - 1), for refusals and reclaim, which ask who holds something: a client can have a
     * refusal with each packet, so they must not walk all leases. A lease holds at least a granule: 0 means
     * that there is none. */
    uint64_t pool_bytes[PROTO_POOLS_MAX];
    uint64_t pool_fenced_bytes[PROTO_POOLS_MAX]; /* fenced_bytes, by pool */
    uint64_t shared_bytes[PROTO_POOLS_MAX]; /* those of them that are in shared blocks */
    uint32_t mapped[PROTO_POOLS_MAX]; /* segments that it was given the handles of, and has not closed */
    uint64_t closing_bytes[PROTO_POOLS_MAX]; /* of segments that it was told to close, and has not */
    uint64_t answered;                       /* bit id - 1: it has answered the pool's last question */
    uint64_t *seen; /* a bit for each segment slot whose handle this session was given, and has not closed */
    uint64_t *told; /* …that it was told to close */
    size_t seen_words;
    unsigned n_segments;               /* bits that are set */
    struct proto_page *page;           /* what it shares with the daemon; NULL: nothing yet */
    struct fence_queue **fence_queues; /* by word, each the first of a chain */
    uint32_t n_fence_words;
    struct list fenced;       /* fence_queue.session_link: those that have something in them, in turns */
    struct charge charge;     /* one session, to the tenant */
    struct charge replies;    /* the bytes of those that the shell keeps for it */
    void *owner;              /* the shell's */
    struct list reclaim_link; /* in core->reclaiming while it is to be asked */
    struct list link;         /* in core->sessions */
};

/* Makes room to remember the segment. Returns 0 or -ENOMEM. */
int session_reserve_segment(struct session *session, const struct segment *segment);

/* Notes that the session is given the segment's handle now. True the first time: the handle has to be sent.
 */
bool session_see_segment(struct session *session, struct segment *segment);

/* Whether the policy lets it use the pool. Leases that it has there it keeps, whatever the policy becomes. */
bool session_may_use(const struct session *session, const struct pool *pool);

/* Whether it was given the segment's handle, and has not closed it since. */
bool session_has_seen(const struct session *session, const struct segment *segment);

/* Whether it was told to close a segment that it has mapped. / It is told now. */
bool session_was_told(const struct session *session, const struct segment *segment);
void session_note_told(struct session *session, struct segment *segment);

/* Has the session asked for what it keeps idle of the pool, and marks the pool as short in its page. / It has
 * answered (IDLE for others). / The pool is short no more. */
void session_ask(struct session *session, struct pool *pool);
bool session_has_answered(const struct session *session, const struct pool *pool);
void session_note_answer(struct session *session, const struct pool *pool);
void session_end_shortage(struct session *session, const struct pool *pool);

/* Those that have the session's mappings cannot be asked any more, because it is lost. */
void session_fall_silent(struct session *session);

/* The session does not map the segment any more. */
void session_forget_segment(struct session *session, struct segment *segment);

/* Whether it can be asked for what it keeps idle of the pool: leases, or segments that it has mapped. / To be
 * called when that may have changed, with what it was before: the pool counts those that can. */
bool session_can_be_asked(const struct session *session, const struct pool *pool);
void session_count_askable(struct session *session, struct pool *pool, bool was_askable);

/* Whether it may have one more lease, if need be after a look at what it and its tenant have behind fences.
 * beyond: so many more than its limit; then its tenant's quota is not asked (nobody hears of a refusal). */
bool session_may_lease(struct session *session, unsigned beyond);

/* Whether what it has may be divided into so many ranges more; beyond as above. */
bool session_may_divide(const struct session *session, unsigned ranges, unsigned beyond);

/* Drops what waits, gives all leases back and forgets the segments. The session is then empty, and its pools
 * have not been asked yet whom that can serve. */
void session_clear(struct session *session);

#endif
