/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_SEGMENT_H
#define DAEMON_CORE_SEGMENT_H
/*
 * A segment: one allocation from the driver or the kernel, exported once. Its pool owns it.
 *
 *   UNASSIGNED --first lease--> ASSIGNED (to one tenant, for good)
 *   either, while idle --limit or trim--> RETIRING --the shell freed it--> gone
 *   ASSIGNED, nothing taken --its mappers are told to close it--> CLOSING --all have, or are gone--> RETIRING
 *
 * It never goes from one tenant to another: a client that once saw a handle can keep it, so the memory has to
 * go back to the driver, and only when no process has it mapped. idle means: nothing of it is taken and
 * nobody maps it.
 */
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "daemon/core/limits.h"
#include "daemon/core/quota.h"
#include "heap/heap.h"

struct pool;
struct tenant_heap;

enum segment_state {
    SEGMENT_UNASSIGNED,
    SEGMENT_ASSIGNED,
    SEGMENT_CLOSING,
    SEGMENT_RETIRING,
};

struct segment {
    struct pool *pool;
    uint64_t id;   /* unique in the daemon's life */
    uint32_t slot; /* bit in the sessions' maps of what they have seen; reused after retirement */
    enum segment_state state;
    uint64_t size_bytes;
    struct tenant_heap *owner; /* NULL unless ASSIGNED */
    struct heap_span *span;    /* in the owner's heap; NULL unless ASSIGNED */
    unsigned mappers;          /* sessions that were given its handle and have not closed it */
    unsigned deaf_mappers;     /* those of them that cannot be told to close it */
    struct charge charge;      /* while CLOSING: its bytes, to the tenant of its mappers */
    void *backing;             /* the shell's: what it frees and exports. Borrowed */
    struct list link; /* in pool->segments; while RETIRING in core->retiring until the shell has taken it */
};

bool segment_is_idle(const struct segment *segment);

/* The least that a segment for so many bytes has. */
static inline uint64_t segment_bytes_for(uint64_t bytes) {
    return (bytes + SEGMENT_GRANULE - 1) / SEGMENT_GRANULE * SEGMENT_GRANULE;
}

#endif
