/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_REACH_H
#define DAEMON_CORE_REACH_H
/*
 * The reach of a waiting request: what it could get if all other processes gave back all that they have. A
 * request beyond its reach is *alone*: no release of another process can serve it. Either its own process
 * holds the rest of the pool, or the rest of its user's quota, or what is free lies between leases of its
 * process, or the driver refuses what is lacking, and no process holds that. Nor can a release free segments
 * of which nothing is taken, and which living sessions keep mapped that cannot be told to close them.
 *
 * A process is all sessions of one pid, those in quarantine included. Memory behind fences and in parcels
 * comes back without a release of the process, so that it counts as what others have.
 */
#include <stdbool.h>
#include <stdint.h>

#include "daemon/core/types.h"

/* The memory of a pool that does not come back by releases of processes other than the session's. */
struct reach {
    uint64_t pinned_bytes; /* of the segments in which it has leases: they stay */
    uint64_t gap_bytes;    /* the longest range between its leases in those */
    uint64_t held_bytes;   /* of its leases */
    uint64_t mapped_bytes; /* of free segments that living sessions keep mapped and cannot be told to close */
    uint64_t mapped_gap_bytes; /* the longest of those that are its tenant's */
    uint64_t n_steps;          /* ranges and leases that were looked at */
};

/* Whether two sessions are of one process. */
bool reach_is_own(const struct session *session, const struct session *other);

/* When the session's process last gave back something of the pool; 0: never. Linear in the sessions of
 * its user. */
uint64_t reach_gave_ns(const struct session *session, const struct pool *pool);

/* The least that the session's process holds of the pool, by the counts of its sessions: shared blocks are
 * left out. *ret_has_any: whether it has a lease there. Linear in the sessions of its user. */
uint64_t reach_least_held(const struct session *session, const struct pool *pool, bool *ret_has_any);

/* Walks the ranges of the tenant in the pool and, where sessions cannot be told to close segments, all
 * segments of it. Linear in these and in the leases on the ranges. */
void reach_find(const struct session *session, const struct pool *pool, struct reach *ret_reach);

/* Whether the request is alone, by what its session's process holds. */
bool reach_is_alone(const struct reach *reach, const struct request *request);

/* Whether the request is surely alone, by the counts of sessions. False where that takes a walk to know.
 * Linear in the sessions of its user. */
bool reach_is_surely_alone(const struct request *request);

#endif
