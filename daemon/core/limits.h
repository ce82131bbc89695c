/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_LIMITS_H
#define DAEMON_CORE_LIMITS_H
/* The limits of the core that are not on the wire. Each line says where its value comes from. */
#include "base/clock.h"
#include "base/units.h"

/* Segments are multiples of this: cudaMalloc packs smaller allocations next to each other, and a legacy IPC
 * handle opens the whole of what they lie in (measured on H200). It is also the size of a huge page. */
#define SEGMENT_GRANULE (2 * MIB)

#define HOST_SEGMENT_MAX                                                                                     \
    (64 * GIB) /* each client registers a segment by one cudaHostRegister(): one copy across two             \
                * registrations fails (cudaErrorInvalidValue, H200), and one of 512 GiB or more does,        \
                * as others report */

#define POOL_STEP_SHARE                                                                                      \
    4096u /* of a pool's reserved bytes, by which it grows at least. Clients say how much they want          \
           * (client/cache/lane.h); what is left of the last step is little of the pool. With 1/512 a        \
           * preloaded PyTorch program of 5.2 GiB reserved 8 MiB more than with its own allocator */
#define POOL_STEP_MIN (2 * MIB) /* one granule: a program of small tensors takes no more */
#define POOL_STEP_MAX                                                                                        \
    (512 * MIB) /* for a pool of 64 GiB and more: larger ones are no quicker to make, per byte */

#define GROW_ROOM_SHARE                                                                                      \
    4u /* of what a pool has room for: it grows by what a request wants up to that, else by what it needs,   \
        * so that requests of one size can use all of a pool */

#define SESSION_WAITING_MAX                                                                                  \
    4096u /* requests of a session that wait in line: more threads than a process has */
#define SESSIONS_MAX_DEFAULT                                                                                 \
    1024u                             /* with four descriptors each: well below the unit's LimitNOFILE=65536 \
                                       */
#define SESSION_LEASES_DEFAULT 65536u /* with their ranges about 40 MiB of bookkeeping for a session */
#define BLOCK_RANGES_MAX                                                                                     \
    8192u /* ranges that a block is in after parts came back: some 40 us to find a part among them, in which \
           * others wait for the loop */
#define SESSION_RANGES_PER_LEASE                                                                             \
    4u /* ranges that a session may have, by leases that it may have (and BLOCK_RANGES_MAX): who splits all  \
        * that it has makes two a lease */
#define UNDELIVERED_MAX                                                                                      \
    1024u /* sockets of a user with replies of ended sessions that were not read: as many workers as may end \
           * at once and be slow. The shell allows fewer where it may have few descriptors */
#define COMMAND_SIZE    64u  /* a session's command for people, NUL included */
#define POOL_NAME_SIZE  64u  /* as on the wire */
#define POOL_ERROR_SIZE 256u /* a driver's message with its numbers */
#define GROW_RETRY_NS                                                                                        \
    (1 * NS_PER_S) /* after the driver refused: soon enough for people, rare enough for it */
#define AHEAD_RETRY_NS (10 * NS_PER_S) /* for growth that nobody waits for: others may need what is left */
#define RECLAIM_INTERVAL_NS                                                                                  \
    (100 *                                                                                                   \
     NS_PER_MS) /* between two requests of a pool for idle memory: time for clients to look through their    \
                 * caches, and a rate at which they do little else even if somebody waits for ever */
#define FENCE_INTERVAL_NS                                                                                    \
    (1 * NS_PER_MS) /* between two looks at fences while somebody waits: the loop's timers know nothing      \
                     * shorter, and a look at a few words costs next to nothing */
#define FENCE_PATIENCE_NS                                                                                    \
    (10 * NS_PER_MS) /* before sessions are asked for idle memory although enough is behind fences: most     \
                      * work on a GPU is over by then, and nobody waits long behind a word that hangs */
#define FENCES_LOOKED_AT_MAX                                                                                 \
    256u /* queues that one search for memory looks at: some 10 us, and more streams than a machine keeps    \
          * busy; the next search goes on behind them */
#define FENCES_COLLECTED_MAX                                                                                 \
    4096u /* leases that one search closes: below a millisecond, in which others wait for the loop */
#define FENCES_PER_RELEASE                                                                                   \
    2u /* leases that a release behind the same word closes: more than it adds, so that a queue gets no      \
        * longer than what its stream has not reached */
#define WAIT_QUEUE_WINDOW                                                                                    \
    16u /* requests of each wait queue that are looked at when room appears: enough that small ones find     \
         * what is left beside a large one, and so few that nobody pays for the length of another's queue */
#define PASSES_MAX                                                                                           \
    256u /* later requests that may be given what a waiting request could use: as many as clients make while \
          * a busy pool goes once around, and nothing against the time for which large memory is had */
#define GRANT_SHARE                                                                                          \
    8u /* of what is available in a pool: no request is granted more than that beyond its need, because the  \
        * longest free ranges are what a nearly full pool has least of */
#define LESS_STEP_DOWN                                                                                       \
    4u /* by which a request that a smaller size serves is granted less, until it fits: a few tries, and no  \
        * less than a quarter of what there was */
#define SHORTAGE_NS                                                                                          \
    (100 * NS_PER_MS) /* after the last question to the sessions, and again while the pool is stuck: so long \
                       * clients keep nothing, so that a pool at its limit does not change its mind all the  \
                       * time */
#define CLOSE_NS_MAX  (60 * NS_PER_S) /* that one closing counts at most, whatever its client says */
#define HOLDERS_NAMED 3u              /* holders that a refusal names: what fits a line */

#endif
