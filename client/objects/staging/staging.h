/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_OBJECTS_STAGING_STAGING_H
#define CLIENT_OBJECTS_STAGING_STAGING_H
/*
 * Staging: copies between ordinary memory and devices through pinned blocks (<gpupool/staging.h>). A client
 * owns one: how its copies are cut up, and the crew that shares in them.
 *
 * A copy is a job (job.h), which lives as long as the call. It has a ring of blocks, pinned memory from the
 * host pool (block.h). Each thread of the crew (crew.h) fills or empties blocks; all that is said to the
 * driver is said by the calling thread, because a stream may be its own (cudaStreamPerThread).
 */
#include <stdint.h>

#include "base/units.h"
#include "client/objects/staging/crew.h"

/* A chunk goes through one block. Large, so that what the driver and the fences cost for each is little
 * beside the copying (some 3 us to 40 us at 55 GB/s); small, so that the ring stays within the processor's
 * cache. */
#define STAGING_CHUNK_DEFAULT_BYTES (2 * MIB)
#define STAGING_CHUNK_MIN_BYTES     (64 * KIB)
#define STAGING_CHUNK_MAX_BYTES     (64 * MIB)

/* Up to here the calling thread copies alone: it takes about as long as to wake another one up and to wait
 * for it. */
#define STAGING_ALONE_BYTES (1 * MIB)

/* Copying threads, the calling one included. More than some do not pay: they share the memory's bandwidth. */
#define STAGING_THREADS_DEFAULT_MAX 8u

struct staging {
    unsigned threads;     /* that share in a copy, the calling one included */
    uint64_t chunk_bytes; /* the largest */
    struct crew crew;
};

void staging_init(struct staging *staging);
/* Takes what the environment says. with_threads: others than the calling one may be started. 0, INVALID. */
int staging_configure(struct staging *staging, bool with_threads);
/* Ends the crew's threads. No call is under way. In a forked child, which has none, there is nothing to be
 * done. */
void staging_stop(struct staging *staging);
void staging_deinit(struct staging *staging);

#endif
