/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_OBJECTS_STAGING_STAGING_H
#define CLIENT_OBJECTS_STAGING_STAGING_H
/*
 * Staging: copies between ordinary memory and devices through pinned blocks (<gpupool/staging.h>). A client
 * owns one: the copy workers that share in its copies. Its first copy makes it.
 *
 * A copy is a job (job.h), which lives as long as the call. It has a ring of blocks, pinned memory from the
 * host pool (block.h). Each copy worker (copy_workers.h) fills or empties blocks; all that is said to the
 * driver is said by the calling thread, because a stream may be its own (cudaStreamPerThread).
 */
#include <stdint.h>

#include "base/units.h"
#include "client/api/client.h"
#include "client/objects/staging/copy_workers.h"

/* Up to here the calling thread copies alone: it takes about as long as to wake another one up and to wait
 * for it. */
#define STAGING_ALONE_BYTES (1 * MIB)

struct staging {
    struct client_attachment attachment;
    struct copy_workers workers;
};

/* The staging of a client. NULL: nothing was copied yet. */
struct staging *staging_of(struct gpupool_client *client);

#endif
