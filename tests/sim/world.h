/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_WORLD_H
#define TESTS_SIM_WORLD_H
/*
 * The simulator: a small world around the daemon's core, in which everything is drawn from one seed.
 *
 *   client.c   requests of living clients: take, release, split, merge, share, attach, misuse
 *   parcels.c  buffers on their way between sessions: sent, taken, revoked, too late
 *   names.c    editions, the sessions that build names, and the requests that wait for names
 *   name_steps.c  the steps of sessions that are about names
 *   channels.c  channels, their places, and the sessions in them
 *   channel_steps.c  the steps of sessions that are about channels
 *   ends.c     how sessions begin and end: farewell, end of file, kill, with and without a forked child
 *   kernel.c   processes, pidfds, the driver's list of processes, GPU work that goes on after a death
 *   shell.c    the work of the daemon's shell: answers, growth, retirement, time
 *   reaper.c   how the shell finds out when the dead are safe, by the daemon's own rule
 *   policy.c   quotas and access, as an operator changes them
 *   model.c    the reference model: the owner of each grain, the waiting requests, the answers
 *   turns.c    the order in which the model serves requests
 *   records.c  what the flight recorder says of each session's memory
 *   heirs.c    the estate: its records agree with the core after each step
 *   picture.c  the world as it was before a step that has not happened
 *   successor.c  the daemon dies, and the world goes on with its successor
 *   alone.c    requests that no other process can serve
 *   check.c    the invariants that hold between steps
 *   history.c  one seed's world from its first step to its last
 *   main.c     many seeds, and how a failure is told
 *
 * The core under test is the daemon's own, unchanged. Allocations of it fail now and then (failing_memory.h).
 * The model knows nothing of heaps, lists or plans. It believes the kernel, not the core, about the end of
 * GPU work. So it notices memory that is lent while a dead process still writes to it, whichever part of the
 * core decided that the memory was safe.
 *
 * Memory is counted in grains, of a size that differs from world to world; all offsets and capacities are
 * multiples of it.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/channel.h"
#include "daemon/core/core.h"
#include "daemon/core/death.h"
#include "daemon/core/edition.h"
#include "daemon/core/kept.h"
#include "daemon/core/name.h"
#include "daemon/core/pool.h"
#include "daemon/core/segment.h"
#include "daemon/core/session.h"
#include "daemon/core/tenant.h"
#include "daemon/core/wait_queue.h"
#include "tests/failing_memory.h"
#include "tests/random.h"
#include "tests/sim/kernel.h"

#define SIM_POOLS     3u
#define SIM_TENANTS   4u
#define SIM_SESSIONS  12u
#define SIM_SEGMENTS  64u /* alive at a time; the pools' limits allow 3 * 16 */
#define SIM_PARTS     16u /* of a row: it has a pool's segments at most */
#define SIM_LEASES    512u
#define SIM_BLOCKS    512u
#define SIM_REQUESTS  64u
#define SIM_PASSES    16u /* few enough that it happens */
#define SIM_LONG_WAIT_NS NS_PER_S
#define SIM_TOKENS    32u
#define SIM_PARCELS   24u
#define SIM_OLD_NAMES 16u
#define SIM_GROUPS    3u
#define SIM_WORDS     4u /* of each page; the last is never written */
#define SIM_UID       1000u
#define SIM_NAMES        3u /* texts, for each tenant */
#define SIM_NAME_PARTS   3u
#define SIM_NAME_WAITS   32u
#define SIM_BOARD_WORDS  2u
#define SIM_CHANNELS     16u

/* The kinds of steps. Each world has its own weights, many of them 0. */
enum step {
    STEP_OPEN,
    STEP_ACQUIRE,
    STEP_ACQUIRE_SEGMENTS,
    STEP_RELEASE,
    STEP_RELEASE_PART,
    STEP_SPLIT,
    STEP_MERGE,
    STEP_SHARE,
    STEP_ATTACH,
    STEP_SEND,
    STEP_REVOKE,
    STEP_REVOKE_ALL,
    STEP_QUERY,
    STEP_MISUSE,
    STEP_IDLE,
    STEP_OFFER,
    STEP_ANSWER,
    STEP_CANCEL,
    STEP_CLOSED,
    STEP_BYE,
    STEP_BREAK, /* the connection ends, and its process lives on */
    STEP_FORK,
    STEP_KILL,
    STEP_LOOK,
    STEP_TRIM,
    STEP_CONFIGURE,
    STEP_POLICY,
    STEP_REPLY,
    STEP_LOSE_DEVICE,
    STEP_SHELL,
    STEP_REAPER,
    STEP_FORCE,
    STEP_STREAMS,
    STEP_TIME,
    STEPS,
};

/* A segment, and for each of its grains the number of its block plus one; 0: the grain is free. */
struct model_segment {
    struct segment *segment; /* NULL: unused */
    uint64_t id, size;
    unsigned pool;
    unsigned tenant; /* plus one; 0: none yet */
    uint64_t taken;  /* bytes */
    unsigned mappers;
    bool closing; /* its mappers are told to close it, at least one was */
    bool kept;    /* closing, because its one mapper offered that: it stays the tenant's */
    bool retiring;
    uint16_t *owners;
    uint8_t *hot; /* a process, plus one, that the core is done with and the GPU was not; 0: none */
};

/* A part of a row, in a segment of its own. */
struct model_part {
    unsigned segment;
    uint64_t offset, size;
};

struct model_block {
    unsigned segment; /* and offset: of a row, those of its first part */
    uint64_t offset, size, capacity, held;
    struct model_part parts[SIM_PARTS];
    unsigned n_parts;            /* 0: it is no row */
    unsigned live, fenced, lost; /* leases; all 0, and no parcels: unused */
    unsigned parcels;            /* that hold it, too */
    bool shared;
    uint64_t token; /* its number */
};

struct model_parcel {
    uint64_t token; /* its number */
    unsigned block, tenant;
    uint64_t sender; /* a session's id */
    uint32_t takers; /* that are left; 0: unused */
    uint64_t lifetime_ns;
    uint64_t deadline_ns; /* NS_FOREVER: held, until the sender's session ends */
};

/* The last value of each word that something waits for. */
struct model_fences {
    bool any[SIM_WORDS];
    uint64_t values[SIM_WORDS];
};

struct model_lease {
    uint64_t id, generation;
    unsigned session, block;
    uint64_t withheld;          /* bytes of parts that were given back and stay with it, */
    bool by_fences;             /* some of them behind fences: */
    struct model_fences fences; /* these */
    bool used, fenced;
    bool unanswered; /* granted, and the answer is still in the core */
    uint32_t word;   /* fenced: what it waits for, */
    uint64_t value;
    uint64_t order; /* and since when */
};

struct model_session {
    struct session *session; /* NULL: unused */
    uint64_t id;
    uint64_t n_questions; /* as of the last picture_note() */
    bool is_unbound;      /* while a successor's are looked for */
    unsigned tenant, group, process;
    uint64_t replies; /* bytes that it has not read */
    bool lost, wants;
    bool seen[SIM_SEGMENTS];
    bool told[SIM_SEGMENTS];     /* to close it */
    unsigned segments;           /* that it has seen */
    unsigned leases, fenced;     /* the latter among the former */
    struct proto_page *page;     /* NULL: none */
    uint64_t written[SIM_WORDS]; /* the highest value that its streams are to write */
    struct model_fences withheld[SIM_POOLS]; /* what the withheld parts of its leases wait for */
    struct death_facts facts;
    uint64_t mapped_at, over_at; /* the questions asked by then, of the list and of holders */
    bool forced;                 /* an operator released it */
    uint64_t gave_ns[SIM_POOLS]; /* when it last released something of a pool */
    uint64_t settled_ns[SIM_POOLS]; /* when it was asked for what its last answer, which leaves nothing, was
                                       to; plus 1 */
};

struct model_request {
    uint64_t id;
    unsigned session, pool;
    uint64_t size, least, asked_ns, deadline_ns; /* least: that serves, too */
    unsigned n_segments;                         /* that it asks for, whole and all at once; 0: one block */
    uint64_t segment_size;                       /* of each */
    bool no_reclaim;                             /* waits for growth only */
    bool gave_back;                              /* its session need not be asked */
    bool idle_only;                              /* waits for what is idle, or on its way */
    bool cancelled;                              /* its session has cancelled it */
    bool used, answered;                         /* the latter: decided, and still in the core */
    bool was_held;   /* at the end of the last step it was its tenant's first that waits for the quota */
    unsigned passes; /* later requests that got what it could have used, while it was its tenant's oldest */
    struct lease *lease; /* granted */
    uint64_t generation; /* its, as of the last picture_note() */
    unsigned counted_passes; /* by the core, likewise */
    uint64_t alone_ns;   /* since when no other process can serve it; NS_FOREVER: one can */
};

struct model_pool {
    struct pool *pool;
    bool decided;               /* to grow; the shell has not taken it yet */
    uint64_t growing;           /* taken by the shell and not made yet */
    bool takes_descriptors;
    bool asked_while_no_driver; /* a growth has failed at some time */
    bool somebody_overdue;      /* at the end of the last step */
    bool was_late;              /* likewise: its sessions had been asked often, */
    bool was_refused;           /* and the driver had refused it memory */
    struct pool_sizes sizes;    /* as of the last picture_note(), */
    enum pool_state state;      /* and its last state but STARTING */
    uint64_t inherited_leases;  /* that a predecessor's core has counted */
};

/* The quotas and the pool access of each tenant (a user) and group. QUOTA_… as in the core. */
struct model_policy {
    bool set;
    uint64_t everybody[QUOTA_ITEMS], users[SIM_TENANTS][QUOTA_ITEMS], groups[SIM_GROUPS][QUOTA_ITEMS];
    bool restricted[SIM_POOLS], user_allowed[SIM_POOLS][SIM_TENANTS], group_allowed[SIM_POOLS][SIM_GROUPS];
};

/* The scope of a tenant. A world has no scopes, or one for each tenant but the first; then all tenants are of
 * one uid. */
struct model_scope {
    bool is_scoped;
    struct scope *scope; /* NULL: the ordinary one, or it is dropped */
    uint32_t id;
    uint64_t limits[QUOTA_ITEMS];
};

/* The use of each tenant, by item. */
struct model_use {
    uint64_t used[SIM_TENANTS][QUOTA_POOLS + SIM_POOLS];
};

/* The question to the driver that is under way: begun, made from what is true then, answered. */
struct list_question {
    bool asked, made, failed;
    uint64_t number;
    pid_t pids[SIM_PROCESSES];
    bool mps[SIM_PROCESSES];
    unsigned n_pids;
};

/* The look for holders of the driver's descriptors, in the same way; by session. */
struct look {
    bool begun, made;
    uint64_t number;
    enum death_holders holders[SIM_SESSIONS];
};

/* A buffer that is published. */
struct model_named_part {
    unsigned block;
    uint64_t token; /* its number */
    bool has_fence;
    uint32_t word;
    uint64_t value;
};

struct model_edition {
    uint64_t generation; /* 0: nothing is published */
    uint32_t flags;
    uint64_t layout, session; /* the publisher's id, also when it is gone */
    unsigned publisher;       /* the session, plus one, until its GPU work is over; 0: it is */
    unsigned n_parts;
    struct model_named_part parts[SIM_NAME_PARTS];
    uint32_t directory_bytes;
    uint64_t content; /* of its directory */
};

struct model_name {
    struct model_edition edition;
    unsigned builder; /* a session, plus one; 0: none */
};

struct model_name_wait {
    bool used;
    unsigned session, text;
    uint64_t id, number; /* the latter in order of arrival */
    uint64_t generation, deadline_ns;
    uint32_t flags;
    uint32_t place, got; /* of a channel: that is wished, and that the session has */
    uint64_t channel;    /* the id of the channel of the latter */
    enum name_wait_state state;
    enum proto_error error;
    uint64_t order; /* in which they were answered */
};

struct model_place {
    enum proto_channel_state state;
    unsigned session; /* plus one; 0: none */
    uint32_t queue, processes;
    uint64_t last_session; /* an id */
    uint64_t order;        /* in which sessions took their places */
};

/* A channel. It has a number here, and a link that stands for the shell's object. */
struct model_channel {
    bool used;
    bool is_linked;  /* the core has the link, and will return it */
    bool is_changed; /* the shell is to be told of its places */
    unsigned tenant;
    unsigned text; /* of its name, plus one; 0: it has ended */
    uint64_t id;
    uint32_t flags;
    struct proto_channel_capacities capacities;
    unsigned block;
    uint64_t token;   /* its number */
    unsigned session; /* the maker, plus one; 0: it is gone */
    uint64_t maker;   /* its id */
    struct model_place places[PROTO_CHANNEL_PLACES];
};

struct model_channels {
    bool are_there;
    struct model_channel all[SIM_CHANNELS];
    uint64_t next_order;
};

/* A session's slot on the board. */
struct model_board {
    bool is_there;
    uint64_t words[SIM_BOARD_WORDS], last[SIM_BOARD_WORDS]; /* the latter: what its streams are to write */
};

/* The directory that a session writes. */
struct model_draft {
    uint32_t n_bytes;
    uint64_t content;
};

struct model_names {
    bool are_there;
    uint64_t random_state; /* of names alone */
    struct model_name names[SIM_TENANTS][SIM_NAMES];
    struct model_name_wait waits[SIM_NAME_WAITS];
    struct model_board boards[SIM_SESSIONS];
    struct model_draft drafts[SIM_SESSIONS];
    uint64_t tokens[SIM_TOKENS]; /* of what is published, or was */
    uint64_t next_number, next_order, n_epochs;
};

/* How often things happened, over all histories: what a summary shows and what proves that it was no idle
 * talk. */
struct tally {
    uint64_t steps, sessions, grants, waited, refusals, deadlines, parts, splits, merges, shares, attaches,
        sends, taken, revoked, too_late, fences, joined, withheld, rows, described, arrivals, aheads, growths,
        failures, retirements, reclaims, byes, breaks, kills, forks, reaped, behind_child, by_holders, forced,
        policies, quota_refusals, held, devices_lost, drains, out_of_memory, segments, closings, offered,
        answered_early, closed, passes, overdue, turns, cancels, alone, long_waits, scopes, heirs, successors,
        steps_lost, reads_died, reads_failed, makers_died, growths_died, names_published, names_replaced,
        names_withdrawn, names_opened, names_built, names_given_up, names_gone, names_late, names_again,
        names_read, names_attached, names_outlived, names_spoiled, channels_made, channels_joined,
        channels_left, channels_lost, channels_vacated, channels_ended, channels_without_pages, channels_gone,
        channels_told;
};

/* The last lease of which a part was released behind a fence, and that fence (0: none was). */
struct model_followed {
    unsigned lease;
    uint64_t generation;
    uint32_t fence;
    uint64_t fence_value;
};

struct world {
    struct estate estate;
    uint64_t seed, random_state;
    uint64_t step;
    const char *step_name;
    struct core *core;
    struct kernel kernel;
    uint64_t now_ns;
    uint64_t grain, limit_max;
    struct model_scope scopes[SIM_TENANTS];
    bool is_vmm[SIM_POOLS];   /* its segments are handed over as descriptors for the driver */
    bool has_rows[SIM_POOLS]; /* they are of device memory */
    unsigned n_pools, n_tenants, n_sessions, weights[STEPS], weight_sum;
    unsigned memory_fails;               /* one in so many steps; 0: never */
    unsigned validate_every, drain_late; /* one in so many steps; 0: never */

    struct model_followed followed;
    bool is_restarting; /* the core is a successor's: its pools are to start */
    bool arrivals; /* what the core looked at last had memory come back from behind fences */
    uint64_t next_request, next_token, last_generation, last_session, last_segment, next_order;
    struct model_segment segments[SIM_SEGMENTS];
    struct model_block blocks[SIM_BLOCKS];
    struct model_lease leases[SIM_LEASES];
    struct model_parcel parcels[SIM_PARCELS];
    unsigned leases_end, blocks_end; /* none is used from here on */
    struct model_session sessions[SIM_SESSIONS];
    struct model_request requests[SIM_REQUESTS];
    struct model_pool pools[SIM_POOLS];
    struct model_policy policy;
    gid_t gids[SIM_SESSIONS];    /* a group of each session's process; the core borrows it */
    uint64_t tokens[SIM_TOKENS]; /* of blocks alive or gone */
    struct proto_lease_name old_names[SIM_OLD_NAMES];
    struct model_names names;
    struct model_channels channels;
    uint64_t questions; /* so far */
    struct list_question list;
    struct look look;
    struct recordings *recordings;
    struct tally *tally;
};

/* Tells of a failure, with seed and step, and does not return. */
_Noreturn void world_fail(const struct world *world, const char *what, const char *condition,
                          const char *file, int line);

/* Ends the world with a failure unless the condition holds. what: the failure in words. */
#define must(condition, what)                                                                                \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            world_fail(world, (what), #condition, __FILE__, __LINE__);                                       \
    } while (0)

/* A call may fail because an allocation of the core failed, and then nothing has changed. */
static inline bool out_of_memory(int r) {
    return r == -ENOMEM && memory_failed();
}

static inline uint64_t random64(struct world *world) {
    return random_next(&world->random_state);
}

static inline uint64_t random_below(struct world *world, uint64_t bound) {
    return random_next(&world->random_state) % bound;
}

static inline bool one_in(struct world *world, unsigned n) {
    return random_below(world, n) == 0;
}

static inline uint64_t round_up(uint64_t bytes, uint64_t granule) {
    return (bytes + granule - 1) / granule * granule;
}

/* --- model.c */

/* Returns a random session that is alive, or lost; SIM_SESSIONS when there is none. */
unsigned pick_session(struct world *world, bool lost);
/* Returns a random lease that can be named; SIM_LEASES when there is none. */
unsigned pick_lease(struct world *world);
unsigned find_segment(struct world *world, uint64_t id);
struct proto_token token_make(uint64_t number);

/* Moves the grains from one block to another (a block's number plus one; 0: free). They must be the first
 * one's. */
void model_set_owner(struct world *world, unsigned segment, uint64_t offset, uint64_t size, unsigned from,
                     unsigned to);
/* The parts of a block, of which one that is no row has one. Returns how many. */
unsigned model_parts(const struct model_block *block, struct model_part ret_parts[SIM_PARTS]);
/* Notes a block in a place of its own, which is returned; grains and leases are the caller's to note. */
unsigned model_new_block(struct world *world, const struct model_block *block);
/* Whether it has leases or parcels. */
bool model_is_used(const struct model_block *block);
/* Frees the block's grains if it is not used any more. */
void model_end_block(struct world *world, unsigned b);
unsigned model_add_lease(struct world *world, unsigned session, unsigned block, const struct lease *lease);
void model_remove_lease(struct world *world, unsigned l);
/* The session is told of a lease: its segment is described exactly the first time, and is its tenant's. */
struct proto_lease model_describe(struct world *world, unsigned session, struct lease *lease);
/* As model_describe(), of one part of a row, if the session is told of its segment. */
void model_describe_part(struct world *world, unsigned session, unsigned l, unsigned part);
/* The session does not have the segment mapped any more. The last one that was to close it has. */
void model_unmap(struct world *world, unsigned s, unsigned g);
/* The connection is lost: the session's memory is in quarantine. */
void model_lose_session(struct world *world, unsigned s);
/* The session is gone, and its memory is free. */
void model_remove_session(struct world *world, unsigned s);

bool model_is_ready(const struct world *world, unsigned s, uint32_t word, uint64_t value);
void model_fence_lease(struct world *world, unsigned l, uint32_t word, uint64_t value);

/* Whether the core lets go of the lease when it looks. */
bool model_has_arrived(const struct world *world, unsigned l);

/* The session gave the lease up, behind a fence or at once. It ends, or waits for this fence and those of its
 * withheld parts. */
void model_give_up(struct world *world, unsigned l, bool fenced, uint32_t word, uint64_t value);

/* Ends a lease of which only withheld parts are left. */
void model_give_up_if_withheld(struct world *world, unsigned l);

/* The fenced lease that a part behind a fence becomes a part of; SIM_LEASES: there is none. */
unsigned model_find_joined(const struct world *world, unsigned l, const struct proto_release *part);

/* A part has become one of a fenced lease. */
void model_join(struct world *world, unsigned joined, uint64_t offset, const struct proto_release *part);

/* A part that was given back stays with its lease. */
void model_withhold(struct world *world, unsigned l, const struct proto_release *part, bool fenced);

/* The withheld parts of one lease stay with another one. */
void model_merge_withheld(struct world *world, unsigned l, unsigned other);

/* The core has let go of the lease: all fences of its withheld parts have to be ready. */
void model_check_withheld(const struct world *world, unsigned l);

/* Whether a lease whose fence is ready waits for another one. */
bool model_waits_on(const struct world *world, unsigned l);

/* Takes notice of the leases that the core has wait for their next fence. */
void model_see_moves(struct world *world);

/* Whether a further segment of the pool could have a descriptor. */
bool model_has_descriptor(const struct world *world, unsigned p);

/* Whether an idle segment could leave its descriptor to the request, or one is on its way back. */
bool model_descriptor_comes(const struct world *world, unsigned p, const struct model_request *request);

/* The segments with descriptors that belong to the tenant. */
uint64_t model_segments(const struct world *world, unsigned tenant);

/* The ranges that the tenant's blocks are in. */
uint64_t model_ranges(const struct world *world, unsigned tenant);

/* Whether the tenant may not have so many ranges more, when the core has looked at what lies behind fences.
 */
bool tenant_lacks_ranges(const struct world *world, unsigned tenant, uint64_t ranges);

/* The ranges that have to be divided for a part to leave its lease. */
unsigned model_borders(const struct world *world, unsigned l, const struct proto_release *part);
/* Returns the number of a session's leases whose fences are ready: the core releases them when it polls. */
unsigned model_arrived(const struct world *world, unsigned s);
/* Whether any of these is memory that the session's tenant could have in the pool. */
bool model_overlooked(const struct world *world, unsigned s, unsigned p);
/* Takes notice of what the core did by itself: leases whose fences were ready; these and requests that it
 * answered. */
void model_see_arrivals(struct world *world);
void model_see(struct world *world);

/* --- turns.c: whose turn it is */
/* Whether the request waits for memory of its own tenant, of which it has as much as it may. */
bool model_is_over_quota(const struct world *world, const struct model_use *use,
                         const struct model_request *request);
/* Returns the number of older requests of its tenant that wait in its pool. */
unsigned model_rank(const struct world *world, const struct model_request *request);
/* Whether an older request waits in its pool that is overdue: of any tenant, or of its own for their quota.
 */
bool model_is_behind(const struct world *world, const struct model_request *request);
/* Whether the request is its tenant's first that waits for the quota. */
bool model_is_held(const struct world *world, const struct model_request *request);
/* Whether an older request keeps back all room of its pool, or of its own tenant the quota. */
bool model_room_is_kept(const struct world *world, const struct model_request *request);
/* The request is about to get memory of these segments: it is its turn, and whom it passes can bear that. */
void model_take_turn(struct world *world, const struct model_request *request, const struct request *answered,
                     const unsigned *segments, unsigned n_segments);
/* Whether the request asks for whole segments and could take this one: it has their size, nothing of it is in
 * use, and it is the tenant's or no tenant's. */
bool model_suits(const struct world *world, const struct model_segment *where,
                 const struct model_request *request);
/* Returns how many segments suit the request. */
unsigned model_suiting(const struct world *world, const struct model_request *request);

/* Whether the session has been given a segment of the pool, and has it mapped. */
bool model_has_mapped(const struct world *world, unsigned s, unsigned p);
/* Whether the session holds a lease in the pool. */
bool model_holds(const struct world *world, unsigned s, unsigned p);

/* --- alone.c: requests that no other process can serve */
/* Whether the core is right to give up a request that has no deadline, now. */
bool model_may_be_given_up(const struct world *world, const struct model_request *request);
/* Takes notice of which requests are alone. */
void model_see_alone(struct world *world);
/* None of them waits for long. To be called after the ticks of a moment. */
void model_check_alone(struct world *world);

/* --- scopes.c: tenants of one uid that come through sockets of their own. */
void scopes_begin(struct world *world);
/* A scope is dropped, or made anew where it is gone. In a world with scopes. */
void step_scope(struct world *world);
struct tenant_id model_tenant_id(const struct world *world, unsigned tenant);
unsigned model_tenant_of(const struct world *world, struct tenant_id id);
/* Whether no session may begin in the tenant's scope. */
bool model_is_shut(const struct world *world, unsigned tenant);
/* A session of the tenant is gone: with the last one of a dropped scope its parcels end. */
void model_leave_scope(struct world *world, unsigned tenant);
/* The limit of all users of the tenant's scope together. */
uint64_t model_scope_limit(const struct world *world, unsigned tenant, unsigned item);

/* --- policy.c */
gid_t policy_gid(unsigned group);
/* Returns a tenant's limit of an item, when a process of the group is about to join (SIM_GROUPS: no process).
 */
uint64_t model_limit(const struct world *world, unsigned tenant, unsigned item, unsigned joining_group);
void model_add_up(const struct world *world, struct model_use *ret_use);
bool model_may_use(const struct world *world, unsigned s, unsigned p);
/* Another policy, or none, of which the core is not told yet. */
void policy_draw(struct world *world);
/* The policy as the core is to have it. NULL: none. */
struct policy *policy_make(const struct world *world);
/* Each tenant is charged with what it has, and may have what the policy says. */
void check_quotas(struct world *world, const struct model_use *use);
void step_policy(struct world *world);
void step_reply(struct world *world);

/* --- check.c: the core and the model agree, and no request waits that could be served now. */
void check_all(struct world *world);

/* --- heirs.c */
/* The core keeps its records from now on. */
void heirs_begin(struct world *world);
void heirs_end(struct world *world);
/* The step ends. check: the records are compared with the core. */
void heirs_end_step(struct world *world, bool checks);
/* Between steps: a successor inherits everything. */
void heirs_check(struct world *world);
/* A step begins, in which the daemon may die. */
void heirs_begin_step(struct world *world);
/* Between steps: whether the daemon is dead. */
bool heirs_is_over(void);

/* The limits of a core that are no pool's and no user's. */
struct heir_limits {
    uint32_t sessions, session_leases, passes, segments, channel_pages;
    uint64_t long_wait_ns;
};
struct heir_limits heirs_limits_of(const struct core *core);
/* A core with these limits, and with the world's pools and scopes. */
struct core *heirs_make_core(const struct world *world, const struct heir_limits *limits);
/* All that a core has is given back. It keeps no records any more, and touches no page. */
void heirs_empty(struct core *core, uint64_t now_ns);
/* Returns a number below the bound, which the world's own numbers do not depend on. */
unsigned heirs_draw(unsigned bound);
/* The daemon dies before so many stores from now on. 0: it does not. */
void heirs_die_at(unsigned store);
/* Whether it has died before a store. From now on it does not. */
bool heirs_has_died(void);
/* The memory is what the dead daemon left. */
void heirs_leave_memory(void);
/* Reads it. Returns 0, or what estate_open() does. */
int heirs_open(struct world *world, const char **ret_reason);

/* --- picture.c */
/* Takes notice of what a successor is told, and of what only the core knows. */
void picture_note(struct world *world);
/* The world as it is now can be restored. One at a time. */
void picture_take(struct world *world);
void picture_drop(void);
/* The world is as it was. The pointers into the core are those of then. */
void picture_restore(struct world *world);

/* --- successor.c */
/* The daemon is dead, and a successor takes its place. */
void successor_goes_on(struct world *world);
/* The successor's first step. */
void step_restart(struct world *world);

/* --- records.c */
/* The core records from now on; nothing is left of that at the end. */
void records_begin(struct world *world);
void records_end(struct world *world);
/* A successor's core records in the same file. */
void records_go_on(struct world *world);
/* Remembers what is recorded, so that later records can be taken back. */
void records_remember(const struct world *world);
void records_go_back(const struct world *world);

/* Reads what was recorded since, and compares. To be called after each step. */
void records_check(struct world *world);

/* --- client.c */
void step_acquire(struct world *world);
void step_acquire_segments(struct world *world);
void step_release(struct world *world);
void step_release_part(struct world *world);
void step_split(struct world *world);
void step_merge(struct world *world);
void step_share(struct world *world);

/* Draws a SHARE of a lease, or of a part of it. Returns what the core should answer. */
int draw_share(struct world *world, unsigned l, struct proto_share *ret_share);

/* The core has shared a lease, or a part of it as this lease. Returns the lease that is shared. */
unsigned model_share(struct world *world, unsigned l, const struct proto_share *share,
                     const struct lease *lease);

void step_attach(struct world *world);
/* The session attaches by the token of this number. */
void attach_by(struct world *world, unsigned s, uint64_t number);
void step_query(struct world *world);
void step_misuse(struct world *world);
void step_streams(struct world *world);
/* A lease that can be named, a row's where there is one. SIM_LEASES: there is none. */
unsigned pick_row_or_lease(struct world *world);
/* Whether the tenant has as many leases and parcels as it may, when the core has looked at what lies behind
 * fences. */
bool tenant_lacks_leases(const struct world *world, unsigned tenant, uint64_t count);
bool tenant_is_full(const struct world *world, unsigned tenant);
void step_idle(struct world *world);
void step_offer(struct world *world);
void step_answer(struct world *world);

/* Whether every session with memory of the pool was asked for what it keeps idle since the request came, and
 * has answered that there is no more; or the time for that is over. */
bool model_was_answered(const struct world *world, const struct model_request *request);
void step_cancel(struct world *world);
void step_closed(struct world *world);

/* --- parcels.c */
void step_send(struct world *world);
void step_revoke(struct world *world);
/* An operator does. */
void step_revoke_all(struct world *world);
/* The parcel of a token; SIM_PARCELS: there is none. */
unsigned parcel_of_token(const struct world *world, uint64_t token);
unsigned parcels_of_tenant(const struct world *world, unsigned tenant);
/* A session has attached by its token. */
/* A parcel is no more. */
void parcel_end(struct world *world, unsigned p);
void parcel_was_taken(struct world *world, unsigned p);
/* The token of a parcel, or of something else where there is none. */
uint64_t pick_parcel(struct world *world);
/* The sender's session ends, or is lost: the time of those that it holds begins. */
void parcels_begin(struct world *world, const struct session *sender);
/* Ends those whose time is up. */
void parcels_pass(struct world *world);

/* --- names.c */
void names_begin(struct world *world);
/* A number below the bound, which the world's own numbers do not depend on. */
uint64_t names_draw(struct world *world, uint64_t bound);
const char *names_text(unsigned text);
/* The session has a slot on the board from now on. */
void names_give_board(struct world *world, unsigned s);
/* Streams get on with the words of the board, or not. */
void names_move_streams(struct world *world);
/* The bytes of an edition's blocks. Of the tenant's editions: the bytes that are kept, those of the directories, and the
 * number of parts. */
uint64_t names_bytes(const struct world *world, const struct model_edition *edition);
uint64_t names_kept(const struct world *world, unsigned tenant);
uint64_t names_directory_bytes(const struct world *world, unsigned tenant);
unsigned names_parts(const struct world *world, unsigned tenant);
/* The block that is published under the token; SIM_BLOCKS: none is. */
unsigned names_block_of(const struct world *world, uint64_t token);
/* The edition takes the place of what was published. */
void names_publish(struct world *world, unsigned tenant, unsigned text, const struct model_edition *edition);
void names_withdraw(struct world *world, unsigned tenant, unsigned text);
void names_end_all(struct world *world, unsigned tenant);
/* No session builds the name any more. */
void names_give_up(struct world *world, unsigned tenant, unsigned text);
/* The name has changed: requests are answered. */
void names_serve(struct world *world, unsigned tenant, unsigned text);
/* The requests of the tenant that wait. */
unsigned names_waiting(const struct world *world, unsigned tenant);
/* Those whose time is up are answered. */
void names_pass(struct world *world);
void names_cancel(struct world *world, uint64_t id);
/* The session ends, or is lost. */
void names_leave(struct world *world, unsigned s);
/* The session is gone, and its GPU work is over. is_done: all of it was done. */
void names_settle(struct world *world, unsigned s, bool is_done);
/* The shell takes the answers. */
void names_drain(struct world *world);
void names_check(const struct world *world);
/* The world is as it was in a picture. */
void names_restored(struct world *world);
/* The session's slot on the board; NULL: it has none. */
const struct proto_board_slot *names_slot(const struct world *world, unsigned s);
/* A successor's core takes the place of its predecessor's. */
void names_bind(struct world *world);

/* --- name_steps.c */
/* Now and then, in a world with names. */
void step_names(struct world *world);
/* The session asks for what stands under a name, or for a place of a channel (NAME_WAIT_JOIN). */
void ask_for_name(struct world *world, unsigned s, unsigned text, struct model_name_wait wait);

/* --- channels.c */
void channels_begin(struct world *world);
/* The channel under a name; SIM_CHANNELS: there is none. */
unsigned channels_find(const struct world *world, unsigned tenant, unsigned text);
/* Of a tenant: its channels, and the bytes that they keep. */
unsigned channels_of_tenant(const struct world *world, unsigned tenant);
uint64_t channels_kept(const struct world *world, unsigned tenant);
/* Whether there are pages for a further channel with so many consumer places. */
bool channels_have_pages(const struct world *world, unsigned tenant, uint64_t n_consumers);
/* The block of the channel that has the token; SIM_BLOCKS: none has. */
unsigned channels_block_of(const struct world *world, uint64_t token);
/* The place that a session gets which wishes `place`; -1: none is free. */
int channels_free_place(const struct world *world, unsigned c, uint32_t place);
void channels_take(struct world *world, unsigned c, unsigned place, unsigned s);
/* Whether the session has the place that its request got. */
bool channels_has_joined(const struct world *world, const struct model_name_wait *wait);
/* The session leaves the place. */
void channels_leave_place(struct world *world, unsigned c, unsigned place);
/* The name does not stand for a channel any more. */
void channels_end(struct world *world, unsigned tenant, unsigned text);
/* The channel's pages are lost. */
void channels_lose_pages(struct world *world, unsigned c);
/* The session ends in order, is lost, or is gone. */
void channels_leave(struct world *world, unsigned s);
void channels_lose(struct world *world, unsigned s);
void channels_vacate(struct world *world, unsigned s);
/* The answer describes the place that the request got. */
void channels_check_answer(const struct world *world, const struct model_name_wait *wait,
                           const struct name_answer *answer);
/* The shell writes rolls, and frees the pages of channels that are gone. */
void channels_drain(struct world *world);
void channels_check(const struct world *world);
/* The shell has the pages of the channel. */
struct list *channels_link(struct world *world, unsigned c);
/* A successor's core takes the place of its predecessor's. Then its shell finds the pages, or not. */
void channels_bind(struct world *world);
void channels_restart(struct world *world);

/* --- channel_steps.c */
/* In a world with channels. */
void step_channels(struct world *world);

/* --- ends.c */
void step_open(struct world *world);
void step_bye(struct world *world);
void step_break(struct world *world);
void step_fork(struct world *world);
void step_kill(struct world *world);
/* The shell finds the connection at its end. */
void session_end(struct world *world, unsigned s);

/* --- reaper.c */
void step_reaper(struct world *world);
void step_force(struct world *world);
/* The session is told of its first segment. */
void reaper_mapped(struct world *world, unsigned s);
/* A round of everything that the shell does for the dead, and what only an operator can. */
void reaper_round(struct world *world);

/* --- shell.c */
/* Fetches answers and decisions, as the shell does after each event. */
void shell_drain(struct world *world);
void step_shell(struct world *world);
void step_time(struct world *world);
void step_look(struct world *world);
void step_lose_device(struct world *world);
void step_trim(struct world *world);
void step_configure(struct world *world);

/* Whether pools drain in this world now and then: a step of the configuration's. */
static inline bool world_drains(const struct world *world) {
    return world->seed % 8 == 5;
}
struct pool_sizes draw_sizes(struct world *world);
void finish_retirement(struct world *world, unsigned g);

/* --- history.c */
/* Plays the seed's world. Returns if nothing was wrong. steps: 0 leaves their number to the seed. */
void history(uint64_t seed, uint64_t steps, unsigned validate_every, struct tally *tally, uint64_t *step);

#endif
