/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_IDLE_WAIT_H
#define DAEMON_CORE_IDLE_WAIT_H
/*
 * Waits for idle memory: requests with IDLE_ONLY. Such a request ends before its deadline when a whole round
 * of questions to the sessions has brought nothing: all sessions that have memory of the pool were asked
 * since the request began to wait, and are not open any more (question.h); no session has given back anything
 * of the pool since then; and nothing is on its way: by growth or retirement, from segments that are being
 * closed, behind fences, or from a session that was lost a moment ago (QUARANTINE_NEAR_NS). Sessions that
 * stay open are waited for until NO_ANSWER_NS have passed since the request came, and since memory of the
 * pool last came back.
 *
 * One request ends with each round, the oldest first: an allocator that empties its cache then may serve the
 * others. Those are asked for again after RECLAIM_SOON_NS.
 *
 * Requests that wait for memory in use, too, are long_wait.h's: without a deadline they end when no release
 * of another process can serve them.
 */
#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/types.h"

/* Refuses a request of the pool that has nothing more to wait for. Returns whether there was one. To be
 * called when the pool was served and planned for. */
bool idle_wait_end_one(struct pool *pool, uint64_t now_ns);

/* Whether a request waits that no round of questions was made for since it came, or since another one ended.
 */
bool idle_wait_needs_round(const struct pool *pool);

#endif
