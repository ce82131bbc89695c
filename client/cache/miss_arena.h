/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_MISS_ARENA_H
#define CLIENT_CACHE_MISS_ARENA_H
/*
 * The actions of a miss (miss.h) in an arena. client/core/arena_plan.h decides which segments fill its place:
 * idle ones of the arena, and then new ones. The actions leave the fence, prepare the questions and call the
 * driver. The daemon is asked once for each width of segments.
 *
 * Nothing here waits for the GPU. Memory is mapped beside running kernels, and where it was before it stays
 * mapped until a fence is ready (client/core/arena.h).
 */
#include <stdbool.h>

#include "client/core/acquire.h"

struct miss;

/* PLACE, MOVE: LACKS: no addresses are left. */
enum acquire_event miss_place(struct miss *miss);
enum acquire_event miss_move(struct miss *miss);

/* LACK, NARROW, UNPLACE, MAP. */
enum acquire_event miss_lack(struct miss *miss);
enum acquire_event miss_narrow(struct miss *miss);
enum acquire_event miss_unplace(struct miss *miss);
enum acquire_event miss_map(struct miss *miss);

/* A part of CLOSE_SEGMENTS: plans a request that waits, whose segments all come from the daemon, and prepares
 * its question. flags: PROTO_ACQUIRE_…, of the question. */
enum acquire_event miss_plan_wait(struct miss *miss, uint32_t flags);

/* SETTLE. */
enum acquire_event miss_settle(struct miss *miss);

/* All segments of the question have come. */
void miss_add_segments(struct miss *miss);

#endif
