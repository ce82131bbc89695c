/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_LIMITS_H
#define DAEMON_CORE_LIMITS_H
/* The limits of the core that are not on the wire. Each line says where its value comes from. */
#include "base/clock.h"
#include "base/units.h"

/* Segments are multiples of this: cudaMalloc packs smaller allocations next to each other, and a legacy IPC
 * handle opens the whole of what they lie in (measured on H200). It is also the size of a huge page. */
#define SEGMENT_GRANULE (2 * MIB)

/* Each client registers a segment by one cudaHostRegister(): one copy across two registrations fails
 * (cudaErrorInvalidValue, H200), and a registration of 512 GiB or more does, as others report. */
#define HOST_SEGMENT_MAX (64 * GIB)

/* The share of a pool's reserved bytes by which it grows at least. Clients say how much they want
 * (client/core/stream_heap.h); the rest of the last step is little of the pool. With 1/512 a preloaded
 * PyTorch program of 5.2 GiB reserved 8 MiB more than with its own allocator. */
#define POOL_STEP_SHARE 4096u
/* One granule: a program of small tensors takes no more. */
#define POOL_STEP_MIN (2 * MIB)
/* For a pool of 64 GiB and more: larger segments are no quicker to make, per byte. */
#define POOL_STEP_MAX (512 * MIB)

/* A pool grows by what a request wants up to this share of its room, else by what the request needs, so that
 * requests of one size can use all of a pool. */
#define GROW_ROOM_SHARE 4u

/* Where the store has room for few further segments, a step is doubled up to so many times: the last eighth of a
 * store for 20,000 segments of 16 MiB holds 300 GiB then. */
#define GROW_DOUBLINGS_MAX 3u

/* Waiting requests of a session: more threads than a process has. */
#define SESSION_WAITING_MAX 4096u
/* With four descriptors each: well below the unit's LimitNOFILE=65536. The shell allows fewer where it may
 * have few descriptors. */
#define SESSIONS_MAX_DEFAULT 1024u
/* Buffers of a user that are under way in tokens, with 200 bytes of bookkeeping each. */
#define PARCELS_MAX 65536u
/* That one tick closes, because their time is up: below a millisecond of the loop. */
#define PARCELS_CLOSED_MAX 1024u
/* With their ranges about 40 MiB of bookkeeping for a session. */
#define SESSION_LEASES_DEFAULT 65536u
/* Names of a user: models and datasets of a machine by the thousand, with 1 KiB of bookkeeping each beside parcels
 * and directories. */
#define NAMES_MAX 4096u
/* Ranges of a block after parts came back: finding a part among them takes some 40 us, in which other clients
 * wait for the loop. */
#define BLOCK_RANGES_MAX 8192u
/* Ranges of a session, by leases that it may have (and BLOCK_RANGES_MAX). Splitting every lease makes two
 * ranges a lease. The tenant's quota of ranges counts besides. */
#define SESSION_RANGES_PER_LEASE 4u
/* Sockets of a user with replies of ended sessions that were not read: as many workers as may end at once and
 * be slow. The shell allows fewer where it may have few descriptors. */
#define UNDELIVERED_MAX 1024u

/* Scopes at once: each has a socket and its lock, and a pod takes seconds to come and go. */
#define SCOPES_MAX 1024u
/* Numbers of scopes: records keep 16 bits. */
#define SCOPE_ID_MAX 65535u
/* Of a scope: more users and labels than a pod has. */
#define SCOPE_UIDS_MAX   16u
#define SCOPE_LABELS_MAX 8u
#define SCOPE_LABEL_SIZE 32u  /* of a label's name, NUL included */
#define SCOPE_VALUE_SIZE 128u /* of its value */

#define COMMAND_SIZE    64u  /* a session's command for people, NUL included */
#define SCOPE_NAME_SIZE 64u  /* NUL included; a DNS label, as a pod's name often is, has 63 bytes */
#define POOL_NAME_SIZE  64u  /* as on the wire */
#define POOL_ERROR_SIZE 256u /* a driver's message with its numbers */

/* After the driver refused: soon enough for people, rare enough for the driver. */
#define GROW_RETRY_NS (1 * NS_PER_S)
/* After the driver refused growth ahead of demand: other programs may need what is left. */
#define AHEAD_RETRY_NS (10 * NS_PER_S)

/* Between two records that a session was asked for idle memory: with one for each question, a request that
 * waits for an hour would push everything else out of the ring. */
#define ASK_RECORD_NS (10 * NS_PER_S)

/* Between two questions of a pool for idle memory: time for clients to look through their caches, and a rate
 * at which they do little else even if a request waits for ever. */
#define RECLAIM_INTERVAL_NS (100 * NS_PER_MS)
/* Between two questions of a pool that drains: no request waits, so clients lose little time with them. */
#define DRAIN_INTERVAL_NS NS_PER_S
/* Before the next question for requests that end when all sessions have answered (IDLE_ONLY), if all have: a
 * question costs an asked program its caches, and PyTorch some milliseconds. */
#define RECLAIM_SOON_NS (10 * NS_PER_MS)
/* A session that was lost so recently may be over soon. The GPU work of a killed process goes on for some
 * milliseconds, and its teardown took up to 3.5 s where a forked child kept the driver's descriptors (H200).
 */
#define QUARANTINE_NEAR_NS (5 * NS_PER_S)
/* Between two polls of fences while requests wait: the loop's timers know nothing shorter, and polling a few
 * words costs next to nothing. */
#define FENCE_INTERVAL_NS (1 * NS_PER_MS)
/* Before sessions are asked for idle memory although enough is behind fences: most work on a GPU is over by
 * then, and a request does not wait long behind a word that hangs. */
#define FENCE_GRACE_NS (10 * NS_PER_MS)
/* Queues that one collection polls: some 10 us, and more streams than a machine keeps busy. The next
 * collection goes on behind them. */
#define FENCES_POLLED_MAX 256u
/* Leases that one collection closes: below a millisecond, in which other clients wait for the loop. */
#define FENCES_COLLECTED_MAX 4096u
/* Leases that a release behind the same word closes: more than it adds, so that a queue gets no longer than
 * what its stream has not reached. */
#define FENCES_PER_RELEASE 2u

/* Requests of each wait queue that are tried when room appears: enough that small ones find what is left
 * beside a large one, and so few that no client pays for the length of another's queue. */
#define WAIT_QUEUE_WINDOW 16u
/* Later requests that may be given memory that a waiting request could use: as many as clients make while a
 * busy pool goes once around, and little against the time for which large memory is held. */
#define PASSES_MAX 256u
/* Segments among which an overdue request has its target: those of the best sizes, and a few microseconds. */
#define TARGETS_LOOKED_AT_MAX 256u
/* Rounds of questions (RECLAIM_INTERVAL_NS) in which an overdue request counts on segments that sessions have
 * mapped and do not use: clients that live answer within a round, and close what they are told to within a
 * few, also beside long kernels. */
#define ASKS_TRUSTED_MAX 32u
/* Ranges that a request takes in vain, because they are kept for an overdue one, until it gives up. */
#define KEPT_RANGES_MAX 16u
/* Empty segments of its tenant among which a request for whole ones prefers those that its session has
 * mapped: some microseconds. */
#define WHOLE_LOOKED_AT_MAX 256u
/* Segments with several mappers that one search for one to be closed looks at. The next search goes on behind
 * them. */
#define SHARED_LOOKED_AT_MAX 256u

/* The share of a pool's available bytes that a request is granted at most beyond its need: the longest free
 * ranges are what a nearly full pool has least of. */
#define GRANT_SHARE 8u
/* The step by which a request that a smaller size serves is tried with less, until it fits: a few tries, and
 * no less than a quarter of what there was. */
#define LESS_STEP_DOWN 4u

/* After the last question to the sessions, and again while the pool is stuck: for this time clients keep
 * nothing idle, so that a pool at its limit does not change its mind all the time. */
#define SHORTAGE_NS (100 * NS_PER_MS)
/* A wait of that length is told of in the log. A request that would wait without end for what its own process
 * alone can give is refused after it: people look for a reason by then, and gpupool_alloc() waits as long. */
#define LONG_WAIT_NS (10 * NS_PER_S)
/* Between two looks at the long waits of a pool, each of which goes through all requests: a millisecond for
 * the 65,536 of 16 sessions. */
#define LONG_WAIT_LOOK_NS (1 * NS_PER_S)
/* For each range and lease that a walk for the reach of a request goes through: no further walk for so long.
 * A step takes some 30 ns, so that walks take less than a percent of the loop's time. */
#define REACH_PAUSE_NS (10 * NS_PER_US)
/* That walks of one moment go through before the next one is left for later: some 100 us. */
#define REACH_STEPS_MAX 4096u
/* A session that was asked for idle memory, and from which no message came since then, does not answer: it is
 * stopped, or its program does not dispatch. Its thread answers in a millisecond; on a busy machine it waits
 * some 100 ms for a processor. */
#define NO_ANSWER_NS (2 * NS_PER_S)

/* That one closing of a mapping counts at most, whatever its client says. */
#define CLOSE_NS_MAX (60 * NS_PER_S)
/* Holders that a refusal names: what fits one line of text. */
#define HOLDERS_NAMED 3u

/* Leases on a block that one ASK_HOLDERS looks at: a few microseconds of the loop. */
#define HOLDERS_WALK_MAX 256u

#endif
