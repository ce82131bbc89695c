/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_TYPES_H
#define DAEMON_CORE_TYPES_H
/*
 * The objects of the core, as data. Each has a header of its own, which says what it is, what states it has
 * and what can be done with it. The files of the core stand on floors, and a file includes nothing of a floor
 * above its own:
 *
 *   inherit                             a core that begins with what another one kept
 *   heir_segments, heir_sessions, heir_blocks, heir_leases, heir_requests, heir_names   its parts
 *   heir                                what they have in common
 *   inherit_shell                       the shell's part
 *   core, core_sessions, core_leases, core_names, core_channels, core_valid
 *                                       entry points; validators of all objects
 *   explain                             texts for people: they read all objects
 *   waiting, closing                    which request is served when; which segments processes close
 *   long_wait                           requests that have waited for long
 *   plan                                growth, retirement, and the questions to sessions
 *   idle_wait                           requests that wait for idle memory alone
 *   collect                             memory that comes back behind fences
 *   name_wait                           requests that wait for a name
 *   name                                names, what they stand for, and which sessions build it
 *   edition, channel                    sets of blocks that were published; rings that elements pass through
 *   lease, parcel, request              what a session has, what it sends, and what it asks for
 *   reach                               what a request could get of other processes
 *   fence, wait_queue, pool, undelivered
 *   tenant
 *   account
 *   scope
 *   session, question, policy, segment, death, use, row, recorder
 *   kept
 *   types
 *   quota, histogram, limits, tenant_id
 *
 * tests/gates/floors checks that. The core owns everything here: see core.h.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/list.h"
#include "base/tree.h"
#include "daemon/core/histogram.h"
#include "daemon/core/limits.h"
#include "daemon/core/quota.h"
#include "daemon/core/tenant_id.h"
#include "heap/heap.h"
#include "proto/board.h"
#include "proto/channel.h"
#include "proto/limits.h"
#include "proto/page.h"
#include "proto/proto.h"
#include "proto/records.h"

struct account;
struct channel;
struct core;
struct edition;
struct estate;
struct fence_queue;
struct lease;
struct name;
struct parcel;
struct policy;
struct pool;
struct request;
struct segment;
struct session;
struct shelf;
struct tenant;
struct tenant_heap;

enum session_state {
    SESSION_ACTIVE,
    SESSION_QUARANTINED,
};

/* The process that connected, as the kernel attests it. */
struct peer {
    pid_t pid;
    uid_t uid;
    uint32_t scope; /* that it came through */
    gid_t gid;
    char command[COMMAND_SIZE]; /* UTF-8; the process chooses it, and control characters may be in it */
    const gid_t *groups;        /* further ones; the shell's, which keeps them for the session's life */
    unsigned n_groups;
};

static inline struct tenant_id peer_tenant(const struct peer *peer) {
    return (struct tenant_id){.uid = peer->uid, .scope = peer->scope};
}

/* The part of a session in one pool, for refusals and reclaim: a client can cause a refusal with each packet,
 * so these must not walk all leases. A lease holds at least a granule: 0 bytes mean that there is none. */
struct session_pool {
    uint64_t leased_bytes, fenced_bytes; /* see session.leased_bytes and session.fenced_bytes */
    uint64_t shared_bytes;               /* the part of leased_bytes that is in shared blocks */
    uint64_t closing_bytes;              /* of segments that it was told to close, and has not */
    uint64_t n_mapped;                   /* segments that it has mapped */
    uint64_t n_untold;                   /* of these, CLOSING ones that it was not told to close yet */
    struct tree closable; /* segment.closable_node, by size: empty ones that it alone has mapped */
};

/* The questions to a session for idle memory of one pool, and its answers (question.h). Invariant: a session
 * that can be asked and has a question open (owes) is counted in pool->reclaim.n_open, see
 * question_is_open(). */
struct session_answers {
    uint64_t question; /* number of the newest question (session.n_questions); 0: none yet */
    uint64_t n_asked, n_answered;
    uint64_t asked_ns;          /* when the newest question was asked */
    uint64_t owed_ns;           /* since when questions are unanswered; meaningless unless owes */
    uint64_t came_bytes;        /* that the session gave back while the pool was short */
    uint64_t kept_bytes;        /* what its program keeps idle, by its last word */
    enum proto_reclaim outcome; /* of the last answer; 0: none yet */
    bool owes;                  /* the newest question is not answered, or its program's answer is due */
    bool is_due;                /* it owes an answer, and was to be asked again meanwhile */
};

/* A bit for each of 64 segment slots. */
struct segment_bits {
    uint64_t mapped; /* the session has the segment mapped */
    uint64_t told;   /* the session was told to close it */
    struct session *session;
    uint32_t word;   /* its place in session->segments */
    uint32_t record; /* kept.h */
};

/* See session.h. */
struct session {
    struct core *core;
    struct tenant *tenant;
    uint64_t id;
    struct peer peer;
    enum session_state state;
    bool wants_reclaim;     /* fixed before its first lease */
    bool has_said_name;     /* and the recorder has it */
    uint64_t pools_allowed; /* bit id - 1: those that the policy lets it use */
    uint64_t connected_ns, lost_ns;
    const char *quarantine_reason; /* what the shell waits for, in the shell's memory; NULL while ACTIVE */
    struct list leases;            /* lease.session_link */
    struct list requests;          /* request.session_link: waiting, or answered and not yet sent */
    struct list held;              /* parcel.held_link: their time begins with the session's end */
    unsigned n_leases, n_requests;
    uint64_t n_ranges;     /* of the blocks of its leases */
    uint64_t leased_bytes; /* what its leases hold; a shared block counts for each holder */
    uint64_t fenced_bytes; /* what its fenced leases hold, which are not in leased_bytes */
    struct session_pool pools[PROTO_POOLS_MAX]; /* by id - 1 */
    uint64_t n_questions;                            /* that it was asked, in all pools */
    uint64_t answered;                          /* bit id - 1: it has answered the pool's last question */
    uint64_t gave_ns[PROTO_POOLS_MAX];          /* by id - 1: when it last gave back something; 0: never */
    uint64_t asked_ns;                          /* the first question since its last message; 0: none */
    uint64_t ask_recorded_ns;                   /* the last question that was recorded; 0: none */
    bool is_mute; /* a question came NO_ANSWER_NS after that one, and no message yet */
    struct segment_bits *segments;              /* by slot / 64 */
    size_t n_segment_words;
    unsigned n_segments;               /* that it has mapped */
    struct proto_page *page;           /* shared with its client; NULL: none yet */
    uint32_t board_slot;               /* plus 1, on its user's board; 0: none */
    const struct proto_board_slot *board_words; /* of that slot; NULL: none, or not known yet */
    struct list editions;                       /* edition.session_link: those that it has published */
    struct list builds;                         /* name.builder_link */
    struct list made;                           /* channel.maker_link */
    struct list places;     /* channel_place.session_link: of channels, that it has taken */
    struct list name_waits; /* name_wait.session_link: not answered, or their answer is not taken */
    unsigned n_name_waits;
    struct draft { /* the directory that it is writing: edition.h */
        uint8_t *bytes;
        uint32_t n_bytes;
        struct charge charge;
    } draft;
    struct fence_queue **fence_queues; /* by word, each the first of a chain */
    uint32_t n_fence_words;
    struct list fenced;       /* fence_queue.session_link: queues with leases, in turns */
    uint32_t record;          /* kept.h */
    struct charge charge;     /* one session, to the tenant */
    struct charge replies;    /* bytes of replies that the shell keeps for it */
    void *owner;              /* the shell's */
    struct list reclaim_link; /* in core->reclaiming while it is to be asked */
    struct list tenant_link;  /* in tenant->members */
    struct list link;         /* in core->sessions */
    struct session_answers answers[]; /* by id - 1, for each of the core's pools */
};

/* See account.h. */
struct account {
    struct core *core;
    struct tenant_id owner; /* of a scope's account: uid 0 */
    struct quota quota;
    unsigned members, n_undelivered;
    struct list link; /* in core->accounts */
};

/* The description of a scope. */
struct scope_terms {
    uint32_t id; /* its number, if no scope has it; 0: any */
    char name[SCOPE_NAME_SIZE];
    uint64_t limits[QUOTA_ITEMS]; /* of all of its users together; POLICY_UNSET: as for each user */
    uid_t uids[SCOPE_UIDS_MAX];   /* of those who may come in */
    unsigned n_uids;              /* 0: every user may */
    struct scope_label {
        char name[SCOPE_LABEL_SIZE], value[SCOPE_VALUE_SIZE];
    } labels[SCOPE_LABELS_MAX]; /* for people and their tools */
    unsigned n_labels;
};

/* See scope.h. */
struct scope {
    struct core *core;
    uint32_t id;
    struct scope_terms terms;
    bool is_dropped;
    unsigned n_tenants;
    uint64_t n_refusals; /* for a quota, of all users that there ever were */
    void *owner;      /* the shell's, until it is dropped */
    struct list link; /* in core->scopes */
};

/* See tenant.h. */
struct tenant {
    struct core *core;
    struct tenant_id id;
    struct scope *scope;     /* NULL: the ordinary one */
    struct account *account; /* NULL: none */
    unsigned sessions;
    struct list members; /* session.tenant_link */
    struct quota quota;
    struct list heaps;       /* struct tenant_heap.tenant_link */
    struct list undelivered; /* struct undelivered.link */
    unsigned n_undelivered;
    unsigned n_parcels;
    uint64_t n_channel_pages; /* of its channels */
    struct tree names, names_by_id; /* name.text_node, name.id_node */
    unsigned n_names;
    uint64_t sessions_bytes[PROTO_POOLS_MAX]; /* by id - 1: what its sessions hold and are told to close */
    struct list link; /* in core->tenants */
};

/* See wait_queue.h. */
struct wait_queue {
    struct list requests; /* request.link, in order of arrival */
    uint64_t least_bytes; /* no request in it needs less in one piece; 0: not known */
    uint64_t served;      /* the round (pool->waiters.rounds) in which no more of it could be served */
    uint64_t tried;       /* pool->changes when none of its window could be served; 0: to be tried */
    uint64_t weighed;     /* pool->changes when lacking_bytes was found out; 0: to be found out */
    uint64_t lacking_bytes; /* no request of its window lacks fewer bytes of new segments */
};

enum wait_queue_kind {
    WAIT_QUEUE_NONE,
    WAIT_QUEUE_ROOM,  /* for memory of the pool */
    WAIT_QUEUE_QUOTA, /* for the tenant's quota */
};

/* A round of questions, to all sessions or to those of a tenant. */
struct round {
    uint32_t number;    /* counted up with each, modulo 2^32 */
    uint64_t n_came;    /* pool->reclaim.n_came when it was made */
    bool has_ended_one; /* a request has ended for which it brought nothing: idle_wait.h */
};

struct tenant_heap {
    struct tenant *tenant;
    struct pool *pool;
    unsigned segments;
    struct heap heap;
    struct tree shelves;       /* shelf.node */
    struct list shared, deaf;  /* segment.shared_link: empty ones that several sessions have mapped; `deaf`:
                                * one of them cannot be told to close it */
    uint64_t kept_bytes;       /* of CLOSING segments that the tenant has again afterwards */
    struct list fenced;        /* fence_queue.heap_link: queues with leases, in turns */
    struct wait_queue waiting; /* for room in the pool */
    struct wait_queue held;    /* for the tenant's quota */
    uint64_t reclaim_ns; /* the tenant's sessions are not asked because of its quota before */
    bool reclaim_owed;   /* they are to be asked then, for a request that did not wait */
    struct round round;  /* the last one of questions to them because of the quota */
    struct list tenant_link, pool_link;
    struct list waiting_link; /* in pool->waiters.queues while `waiting` is not empty */
    struct tree_node age_node; /* in pool->waiters.by_age likewise, by the number of its first request */
    struct list pressed_link; /* in pool->waiters.pressed while `held` is not empty, or reclaim_owed */
};

/* See fence.h. */
struct fence_queue {
    struct session *session;
    struct tenant_heap *heap;
    uint32_t word;
    uint32_t record;                     /* kept.h */
    struct list leases;                  /* lease.fence_link, in order of arrival */
    bool withholds;                      /* parts of leases that live wait for it, */
    uint64_t withheld_value;             /* and all of them have come when the word has this value */
    struct list session_link, heap_link; /* in session->fenced and heap->fenced while leases is not empty */
    struct fence_queue *next;            /* of the same word, in another pool */
};

/* How large a pool may be and how it grows; for users in gpupoold.conf(5). */
struct pool_sizes {
    uint64_t limit_bytes, reserve_bytes;
    uint64_t step_bytes;      /* POOL_STEP_BY_SIZE: see pool_step_bytes() */
    uint64_t low_water_bytes; /* growth ahead of demand keeps that much at hand; 0: nothing */
    /* The end of "the 8 GiB that …", to which a larger limit was cut; borrowed. NULL: the limit is as told.
     */
    const char *limit_of;
};
#define POOL_STEP_BY_SIZE UINT64_C(0)

enum pool_state {
    POOL_STARTING,
    POOL_READY,
    POOL_FAILED,
    POOL_LOST,
};

/* The requests that wait in a pool. */
struct pool_waiters {
    struct list queues;        /* tenant_heap.waiting_link: heaps with requests that wait for room */
    struct tree by_age;        /* tenant_heap.age_node: the same heaps */
    struct list pressed;       /* tenant_heap.pressed_link: heaps with requests that wait for quota */
    struct list overdue; /* request.overdue_link, in order of arrival: later ones leave them their target */
    struct request *keeping; /* the first overdue one that keeps room back, as of the last look; NULL: none */
    struct list for_growth;  /* request.special_link: requests that wait for growth only */
    struct list held_for_growth; /* likewise, those that wait for their tenant's quota */
    struct list idle_only;       /* request.special_link, in order of arrival: requests with IDLE_ONLY */
    uint64_t idle_look_ns;       /* when these are looked at again; NS_FOREVER: when something changes */
    struct tree deadlines;       /* request.deadline_node */
    uint64_t count;            /* requests in all wait queues */
    uint64_t rounds;           /* of serving through the queues, see waiting.c */
    uint64_t poll_fences_ns;   /* when fences are polled again, while requests wait */
    uint64_t next_look_ns;     /* no waiting request is to be looked at before: long_wait.h */
    uint64_t walk_ns;          /* no walk for the reach of a session before */
    bool is_shifted;           /* a plan gave requests up: the next tick serves those behind them */
};

/* The growth of a pool, see plan.h. */
struct pool_growth {
    uint64_t bytes;             /* of the growth that is decided or under way; 0: none */
    uint64_t replaced_bytes; /* of segments retired for others of another size, which are not made yet */
    bool is_decided;            /* and the shell has not yet taken it */
    bool is_ahead;              /* no request waits for it */
    bool is_trimmed;            /* is_ahead, and the pool was trimmed since */
    bool is_exact;              /* the last growth failed: the next is no larger than needed */
    uint64_t decided_ns;        /* when it was decided */
    uint64_t retry_ns;          /* no growth before, because the driver refused; 0: it did not */
    uint64_t ahead_retry_ns;    /* no growth ahead of demand before */
    struct tenant_heap *demand; /* of the last lease, for growth ahead; NULL: none since the last trim */
};

/* The questions of a pool to sessions, see plan.h. */
struct pool_reclaim {
    bool is_stuck;           /* as of the last plan: only memory that sessions hold can serve */
    bool is_owed;            /* sessions are still to be asked, for a request that did not wait */
    unsigned n_sessions;     /* ACTIVE sessions that want to be asked and have something of the pool */
    unsigned n_silent;       /* of these, those that have not answered the pool's last question */
    unsigned n_open;         /* likewise, those of which more may come: question_is_open() */
    unsigned n_asks;         /* rounds of questions since the pool became short */
    uint64_t asked_ns;       /* the last round; 0: none */
    uint64_t not_before_ns;  /* sessions are not asked before, because much is behind fences */
    struct round round;      /* the last one of questions to all sessions */
    uint64_t n_came, came_ns; /* how often sessions gave something back, and when the last time */
    uint64_t lost_ns;         /* when a session that had memory of the pool was lost last */
    uint64_t next_ns;        /* sessions are not asked before */
    uint64_t short_until_ns; /* sessions are told until then that the pool is short; 0: it is not */
    uint64_t refused_bytes;  /* that the last request needed which was refused because the pool was stuck; 0:
                              * none since a request was granted */
    uint64_t refused_segment_bytes; /* of each segment that it asked for; 0: it asked for one block */
    struct tenant_id refused_tenant; /* whose it was */
    struct session *spared; /* the session that was not asked, because all waiting requests are its own; NULL:
                             * none */
};

/* Counts of what happened in a pool since the daemon started. */
struct pool_stats {
    uint64_t n_acquires, n_releases, n_grows, n_retires;
    uint64_t n_failures;         /* requests that ended in an error for the caller */
    uint64_t n_timeouts;         /* failures of requests that waited until their deadline */
    uint64_t n_quota_refusals;   /* failures because of a quota */
    uint64_t n_probes;           /* refused requests that are no failures: request_is_probe() */
    uint64_t n_closes, close_ns; /* mappings that clients closed because they were told to, and their time */
    uint64_t leased_peak_bytes, reserved_peak_bytes, quarantined_peak_bytes;
    struct histogram serving; /* answers that were there at once: from the request to the answer's sending */
    struct histogram waiting; /* the other answers */
    struct histogram growing; /* segments: from the decision to grow until they could be lent */
};

/* See pool.h. */
struct pool {
    struct core *core;
    uint32_t id;
    enum proto_pool_kind kind;
    int device, numa_node; /* -1: none, unknown */
    uint8_t uuid[PROTO_UUID_BYTES];
    char name[POOL_NAME_SIZE];
    enum pool_state state;
    uint64_t limit_bytes, reserve_bytes; /* multiples of SEGMENT_GRANULE */
    const char *limit_of;                /* as in struct pool_sizes */
    uint64_t step_bytes;                 /* a multiple too, or POOL_STEP_BY_SIZE: pool_step_bytes() */
    uint64_t low_water_bytes;            /* 0: no growth ahead of demand */

    struct list segments; /* all but RETIRING ones */
    struct list idle;     /* segment.idle_link: those that could go back to the driver now */
    struct list closing;  /* segment.shelf_link: CLOSING ones */
    struct tree shelves;  /* shelf.node: one for each size that a segment of the pool has */
    struct tree stocked;  /* shelf.stocked_node: of these, those with a segment without a tenant */
    struct list heaps;    /* tenant_heap.pool_link */
    unsigned n_segments;  /* in that list */
    unsigned n_retiring;  /* RETIRING ones */
    unsigned n_orphans;   /* of all */
    uint64_t orphan_bytes;  /* theirs */
    bool takes_descriptors; /* each segment takes a descriptor of the daemon */
    uint64_t n_leases, n_parcels;
    uint64_t n_named;      /* of the parcels, those that editions and channels hold */
    uint64_t parcel_bytes; /* the part of leased_bytes that no live session has, only parcels */
    uint64_t named_bytes;  /* the part of parcel_bytes that editions and channels have */
    uint64_t reserved_bytes, leased_bytes, fenced_bytes, quarantined_bytes, closing_bytes, retiring_bytes;
    uint64_t unassigned_bytes; /* of the segments without a tenant */
    uint64_t occupied_bytes;   /* of the segments of which something is taken */
    uint64_t idle_bytes;       /* of `idle` */
    uint64_t deaf_bytes;       /* of empty segments that a session has mapped which cannot be asked */
    uint64_t kept_bytes;       /* of CLOSING segments that their tenants have again afterwards */
    uint64_t sessions_bytes; /* what all sessions hold and are told to close; shared blocks for each holder */
    uint64_t changes;        /* of what requests of any tenant may get; starts at 1 */
    bool is_plan_due;        /* something has changed that a plan depends on */
    bool is_draining;        /* an operator takes it out of use: see pool.h */

    struct pool_waiters waiters;
    struct pool_growth growth;
    struct pool_reclaim reclaim;
    struct pool_stats stats;
    struct list ready_link; /* in core->ready: something that requests wait for may have come back */

    char last_error[POOL_ERROR_SIZE];
    const char *stalled_call; /* a constant string: its worker has been in it for long; NULL: none */
    uint64_t stalled_for_ns;  /* for how long, as of the shell's last look */
    void *owner;              /* the shell's: its supplier */
};

/* See segment.h. */
enum segment_state {
    SEGMENT_UNASSIGNED,
    SEGMENT_ASSIGNED,
    SEGMENT_CLOSING,
    SEGMENT_RETIRING,
};

/* See segment.h. */
struct shelf {
    struct tenant_heap *owner; /* NULL: the pool's, of segments without a tenant */
    uint64_t size_bytes;
    unsigned n_segments; /* of that size: the owner's; of the pool's shelf: all of the pool */
    unsigned n_empty, n_idle;
    struct list empty, used;             /* segment.shelf_link; idle ones come first */
    struct tree_node node, stocked_node; /* in owner->shelves or pool->shelves; in pool->stocked */
};

struct segment {
    struct pool *pool;
    uint64_t id;   /* unique in the daemon's life */
    uint32_t slot; /* its bit in session.segments; reused after retirement */
    enum segment_state state;
    uint64_t size_bytes;
    struct tenant_heap *owner; /* NULL unless ASSIGNED */
    struct heap_span *span;    /* in the owner's heap; NULL unless ASSIGNED */
    unsigned mappers;          /* sessions that have it mapped */
    unsigned deaf_mappers;     /* mappers that cannot be told to close it */
    unsigned lost_mappers;     /* those of them that are in quarantine: they end by themselves */
    uint32_t record;           /* kept.h */
    uintptr_t mappers_sum;     /* exclusive or of the mappers' addresses: of one mapper it is the address */
    struct shelf *size_shelf;  /* the pool's of its size */
    struct shelf *owner_shelf; /* the owner's of its size; NULL unless ASSIGNED */
    struct shelf *shelf; /* of these, the one that it is on; NULL: on none. It and what follows are as of
                          * the last segment_settle() */
    bool is_empty, is_idle, is_deaf;
    bool is_orphan;       /* of a daemon before, and not there for this one: see segment.h */
    struct session *sole; /* it is in that session's tree of closable segments */
    struct list *shared;  /* it is in that list of its owner */
    struct list shelf_link, idle_link, shared_link;
    struct tree_node closable_node, id_node;
    struct charge charge;      /* while CLOSING: its bytes, to the tenant of its mappers */
    struct charge own_charge; /* while ASSIGNED or CLOSING, if it takes a descriptor: itself, to the tenant */
    struct tenant *keeper; /* while CLOSING: the tenant that has it again afterwards; NULL: it is retired */
    void *backing;             /* the shell's: what it frees and exports. Borrowed */
    struct segment_label {
        char stored[8]; /* the name of its descriptor in the store; "": it has none there */
        uint32_t pages, reserved;
    } label;          /* the shell's, which the record keeps for a successor */
    struct list link; /* in pool->segments; while RETIRING in core->retiring until the shell has taken it */
};

/* See lease.h. */
struct block {
    struct segment *segment;            /* of a row: the first part's */
    uint64_t offset_bytes;              /* of its start in the segment */
    uint64_t size_bytes;                /* as asked */
    uint64_t capacity_bytes;            /* up to the end of the last range that is held */
    uint64_t held_bytes;                /* capacity less the parts that came back */
    struct list ranges;                 /* heap_range.user_link, by offset; of a row: its parts, in order */
    unsigned n_ranges;                  /* at most BLOCK_RANGES_MAX */
    struct list leases;                 /* lease.block_link */
    unsigned n_parcels;                 /* that hold it */
    unsigned n_named;                   /* of these, those that editions and channels hold */
    struct list named;                  /* parcel.named_link: these */
    unsigned live, fenced, quarantined; /* leases by state */
    struct charge charge;               /* held_bytes, to the tenant */
    struct charge ranges_charge;        /* n_ranges, likewise */
    bool is_row;                        /* its ranges lie in several segments: row.h */
    bool shared;
    uint32_t record; /* kept.h */
    struct proto_token token;
};

struct lease {
    struct block *block;
    struct session *session;
    uint64_t id, generation;
    uint64_t taken_ns;         /* the time of its grant, its attaching or its split */
    bool unanswered;           /* it was granted to a request whose answer is still to be taken */
    uint32_t record;           /* kept.h */
    struct fence_queue *fence; /* fenced: the queue that it is in; else NULL */
    uint64_t fence_value;      /* fenced: the value that the word has to reach */
    struct proto_board_fence board_fence; /* fenced: as others of the block see it */
    bool is_on_board;                     /* it has such a fence */
    uint64_t withheld_bytes;              /* of parts that came back, and stay with it: lease_withhold() */
    bool is_withheld_by_fences;           /* some of these behind fences */
    struct charge charge; /* one lease, to the tenant */
    struct list session_link, block_link, fence_link;
};

/* The leases by id. An id is a slot's number plus one; generations are never reused. */
struct lease_table {
    struct lease **slots;
    uint32_t capacity, used;
    uint32_t *free_slots; /* a stack of capacity - used */
    uint64_t next_generation;
};

/* See parcel.h. */
struct parcel {
    struct block *block;
    struct proto_token token;
    uint32_t takers; /* sessions that may still take it, 1 or more */
    uint64_t sent_ns, lifetime_ns;
    uint64_t deadline_ns; /* NS_FOREVER while it is held */
    uint64_t sender;      /* the session's id; it may be gone */
    pid_t pid;            /* the sender's */
    uint32_t record;      /* kept.h */
    size_t place;         /* in core->parcels.entries */
    struct edition *edition;        /* that it is a part of, by which it lives; NULL: none */
    struct channel *channel;        /* likewise, whose slots it holds */
    struct proto_board_fence fence; /* of such a one: behind it the contents are there */
    bool has_fence;
    struct list held_link; /* in session->held of the sender */
    struct list named_link; /* in block->named, where an edition or a channel holds it */
    struct charge charge; /* one lease, to the tenant */
};

/* Whether another object holds the parcel: an edition or a channel. */
static inline bool parcel_is_held(const struct parcel *parcel) {
    return parcel->edition != NULL || parcel->channel != NULL;
}

/* All parcels: a heap, the one that is due first at entries[0]. */
struct parcel_table {
    struct parcel **entries;
    size_t count, room;
    size_t n_named; /* of these, those that editions and channels hold */
    void *by_token; /* tsearch tree */
};

/* See edition.h. */
struct directory_part {
    const struct edition *edition;
    uint32_t offset_bytes;
    uint32_t record; /* kept.h */
};

struct edition {
    struct core *core;
    struct name *name;
    uint64_t generation; /* unique in the daemon's life */
    uint32_t flags;      /* of PROTO_NAMED_FLAGS */
    uint64_t layout;
    uint64_t publisher; /* the session's id; it may be gone */
    pid_t pid;          /* the publisher's */
    uint64_t published_ns;
    uint64_t bytes;          /* of its blocks */
    struct session *session; /* the publisher while it is there: its GPU work may not be over. NULL: it is */
    struct list session_link;
    unsigned n_parcels;
    struct parcel *parcels[PROTO_NAME_BUFFERS_MAX];
    uint8_t *directory; /* NULL: it has none */
    uint32_t directory_bytes;
    struct directory_part *parts; /* of the directory, a record each */
    unsigned n_parts;
    struct charge kept;             /* bytes, to the tenant, if it is KEEP */
    struct charge directory_charge; /* directory_bytes, to the tenant */
    uint64_t n_opens;               /* since the daemon started */
    uint32_t record;                /* kept.h */
};

/* See channel.h. */
struct channel_place {
    struct channel *channel;
    struct session *session; /* TAKEN and DYING: that is in it */
    enum proto_channel_state state;
    uint32_t queue, processes; /* as the roll has them */
    uint64_t last_session;     /* the id of the session that is in it, or was last */
    struct list session_link;
};

struct channel {
    struct core *core;
    struct tenant *tenant;
    struct name *name; /* NULL: it has ended, and goes with the last place that is taken */
    uint64_t id;       /* unique in the daemon's life */
    struct proto_channel_capacities capacities;
    struct parcel *parcel; /* of the memory of its slots */
    uint32_t flags;        /* PROTO_MAKE_CHANNEL_… */
    struct charge kept;    /* bytes, to the tenant, if it is KEEP and has its name */
    uint64_t maker;        /* the id of the session that made it */
    struct session *session; /* the maker while it is there; NULL: it is gone */
    struct list maker_link;  /* in session->made */
    struct channel_place places[PROTO_CHANNEL_PLACES];
    /* Of the shell's object, borrowed: it is put into core->channels_gone when the channel is gone. NULL: none yet */
    struct list *shell_link;
    struct list change_link; /* in core->channels_changed */
    struct list link;        /* in core->channels */
    uint32_t record;         /* kept.h */
};

/* See name.h. */
struct name {
    struct tenant *tenant;
    uint64_t id; /* unique in the daemon's life: names are listed in its order */
    char text[PROTO_NAME_TEXT_SIZE];
    struct edition *edition;             /* NULL: nothing is published */
    struct channel *channel;             /* in its place; NULL: none */
    struct session *builder;             /* the session that is to publish; NULL: none */
    struct list waits;                   /* name_wait.link, in order of arrival */
    unsigned n_waits;                    /* these, and those whose answers are not taken */
    struct tree_node text_node, id_node; /* in tenant->names, by a hash; in tenant->names_by_id */
    struct list builder_link;            /* in builder->builds */
    uint32_t record;                     /* kept.h */
};

/* See name_wait.h. */
enum name_wait_state {
    NAME_WAIT_WAITING,
    NAME_WAIT_THERE,
    NAME_WAIT_BUILDS,
    NAME_WAIT_GONE,
    NAME_WAIT_REFUSED,
    NAME_WAIT_JOINED,
};

/* The request is for a place of a channel. */
#define NAME_WAIT_JOIN UINT32_C(0x80000000)

struct name_wait {
    struct session *session;
    struct name *name;
    uint64_t id;
    uint64_t number; /* in order of arrival, over all requests since the start */
    uint64_t deadline_ns;
    uint64_t generation; /* of JOINED: the id of the channel */
    uint32_t flags; /* PROTO_OPEN_NAME_…, or NAME_WAIT_JOIN */
    uint32_t place; /* of JOIN: that is wanted */
    uint32_t got;   /* of JOINED: that it got */
    enum name_wait_state state;
    enum proto_error error;         /* REFUSED */
    struct charge charge;           /* one waiting request, to the tenant, while it waits */
    struct tree_node deadline_node; /* in core->name_deadlines while it waits */
    struct list link;               /* in name->waits while it waits, then in core->names_answered */
    struct list session_link;
    uint32_t record; /* kept.h */
};

/* See request.h. */
enum request_state {
    REQUEST_WAITING,
    REQUEST_GRANTED,
    REQUEST_REFUSED,
};

struct request {
    struct session *session;
    struct pool *pool; /* NULL: the client named none that exists */
    uint64_t id;
    uint64_t number;      /* in order of arrival, over all requests since the start */
    uint64_t size_bytes;  /* wanted; the pool grows by that much for it, where it has the room */
    uint64_t least_bytes; /* that would serve, at most size_bytes. It waits for that much */
    uint32_t n_segments;  /* that it asks for, whole, at once; 0: it asks for one block */
    int quota_item;       /* REFUSED because of a quota: its item; else -1 */
    uint64_t segment_bytes; /* of each of these. Together they are size_bytes and least_bytes */
    uint64_t asked_ns, deadline_ns;
    enum request_state state;
    bool no_reclaim; /* it waits for growth only: refused when sessions would have to be asked */
    uint32_t probes; /* PROTO_ACQUIRE_PROBES: the refusals that its client's user does not learn of */
    uint32_t round;  /* WAITING: the number of the last round of questions when it began */
    bool idle_only;  /* it waits for what is idle or on its way: idle_wait.h */
    bool is_answered; /* REFUSED, because all sessions had answered that there is no more */
    bool gave_back;  /* its session has given back what it keeps idle, and need not be asked for that */
    bool waited;                /* it could not be answered at once */
    bool is_alone;              /* no other process can serve it, as of the last look: reach.h */
    bool is_told;               /* the shell was told that it waits for long */
    uint64_t look_ns;           /* WAITING: when it is looked at: long_wait.h */
    struct lease *lease;        /* GRANTED: the first; the others follow it in session->leases */
    enum proto_error error;     /* REFUSED */
    enum wait_queue_kind queue; /* WAITING: the queue that it is in */
    struct charge charge;       /* one waiting request, to the tenant; until it is answered */
    struct tenant_heap *heap;   /* WAITING: the heap that has the queue */
    unsigned passes; /* later requests that were given memory that it could have used: wait_queue.h */
    uint32_t record; /* kept.h */
    struct segment *target; /* overdue: what later requests leave to it, if it keeps no room; NULL: nothing */
    struct list overdue_link;   /* in pool->waiters.overdue when those are too many */
    struct list special_link;   /* while it waits, if no_reclaim: in pool->waiters.for_growth or
                                 * held_for_growth;   if idle_only: in idle_only */
    struct tree_node deadline_node; /* in pool->waiters.deadlines while it waits */
    struct list link;           /* in its queue, then in core->answered */
    struct list long_link;      /* in core->long_waits until the shell has taken it */
    struct list session_link;
};

/* The leases that it gets. */
static inline uint32_t request_n_leases(const struct request *request) {
    return request->n_segments > 0 ? request->n_segments : 1;
}

/* The least that has to lie in one piece to be of use for it. */
static inline uint64_t request_piece_bytes(const struct request *request) {
    return request->n_segments > 0 ? request->segment_bytes : request->least_bytes;
}

/* See recorder.h. */
struct recorder {
    struct proto_records *file;           /* borrowed; NULL: nothing is recorded */
    uint64_t next;                        /* number of the next record */
    uint64_t now_ns;                      /* of the event that is being recorded, on CLOCK_MONOTONIC */
    uint64_t ahead_ns;                    /* CLOCK_REALTIME less CLOCK_MONOTONIC, modulo 2^64 */
    uint64_t hour, hour_end_ns;           /* the current one, since 1970; its end on CLOCK_MONOTONIC */
    uint64_t held_bytes[PROTO_POOLS_MAX]; /* by id - 1: the hour's peak when its holders were looked for */
};

/* See core.h. */
struct core {
    struct pool *pools[PROTO_POOLS_MAX]; /* pools[i]->id == i + 1; pools never go away */
    unsigned n_pools;
    uint64_t pools_of_vmm; /* bit id - 1: their segments are descriptors of device memory */
    struct list tenants, accounts, scopes, sessions;
    unsigned n_scopes;
    uint32_t last_scope;         /* the last number that a scope was given */
    unsigned n_sessions, n_mute; /* the latter among them: session.is_mute */
    uint64_t n_sessions_refused; /* since the start */
    struct lease_table leases;
    void *tokens;              /* tsearch tree of shared blocks by token */
    struct parcel_table parcels;
    struct segment **segments; /* by slot; NULL: unused */
    uint32_t *free_slots;      /* a stack, of which n_free_slots are used */
    size_t segment_slots, n_free_slots;
    struct tree segments_by_id; /* segment.id_node */
    struct list ready;      /* pool.ready_link: for core_serve() */
    struct list answered;   /* request.link: for core_next_answer */
    struct list retiring;   /* segment.link: for core_next_retirement */
    struct list channels;         /* channel.link */
    struct list channels_gone;    /* channel.shell_link: for core_next_channel_gone */
    struct list channels_changed; /* channel.change_link: for core_next_channel */
    struct list names_answered; /* name_wait.link: for core_next_name_answer */
    struct tree name_deadlines; /* name_wait.deadline_node */
    struct list reclaiming; /* session.reclaim_link: for core_next_reclaim */
    struct list long_waits; /* request.long_link: for core_next_long_wait */
    uint64_t next_session_id, next_segment_id, next_request_number;
    uint32_t sessions_limit, session_leases_limit;
    uint32_t undelivered_limit; /* of a tenant's sockets with undelivered replies */
    uint32_t segments_limit;    /* of segments that take descriptors, in all pools */
    uint32_t channel_pages_limit; /* of pages of channels, of all users; a user has half of them at most */
    uint64_t n_channel_pages;     /* of all channels */
    uint32_t stored_segments_limit; /* of these, so many outlive the daemon; 0: it has no store, or no room */
    uint32_t passes_limit;      /* PASSES_MAX; smaller in simulations */
    uint64_t long_wait_ns;      /* LONG_WAIT_NS; smaller in simulations */
    struct policy *policy;      /* NULL: nothing is limited or forbidden */
    struct estate *estate;      /* borrowed; NULL: nothing is kept for a successor */
    uint32_t record;            /* kept.h: of its numbers */
    struct recorder recorder;
};

/* Whether its segments are handed over as descriptors for the driver. */
static inline bool pool_is_of_vmm(const struct pool *pool) {
    return (pool->core->pools_of_vmm >> (pool->id - 1) & 1) != 0;
}

/* Whether a block of it may lie in several segments (row.h). Host memory is mapped once, where the driver
 * places it. */
static inline bool pool_has_rows(const struct pool *pool) {
    return pool->kind == PROTO_POOL_DEVICE && pool_is_of_vmm(pool);
}

#endif
