/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_SEGMENT_H
#define DAEMON_CORE_SEGMENT_H
/*
 * A segment: one allocation from the driver or the kernel, exported once. Its pool owns it.
 *
 *   UNASSIGNED --first lease--> ASSIGNED (to one tenant, for good)
 *   either, while idle --limit or trim--> RETIRING --the shell freed it--> gone
 *   ASSIGNED, nothing taken --its mappers are told to close it--> CLOSING --all have, or are gone--> RETIRING
 *   ASSIGNED, nothing taken --its one mapper offers to close it--> CLOSING --it has, or is gone--> ASSIGNED
 *
 * A segment never goes from one tenant to another: a client that once saw a handle can keep it. The memory
 * has to go back to the driver first, when no process has it mapped.
 */
#include <stdint.h>

#include "daemon/core/types.h"

/* The size of the smallest segment that has that many bytes. */
static inline uint64_t segment_bytes_for(uint64_t bytes) {
    return (bytes + SEGMENT_GRANULE - 1) / SEGMENT_GRANULE * SEGMENT_GRANULE;
}

#endif
