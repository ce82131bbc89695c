/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_GIVE_BACK_H
#define CLIENT_CACHE_GIVE_BACK_H
/*
 * How idle memory of a cache goes back to the daemon, in parts of extents. Nobody waits for the GPU: what a
 * stream orders goes behind one fence of that stream, what is deferred behind the fence that it stands behind
 * anyway. The memory of a stream that is being captured stays in its lane; so does that of a stream which the
 * driver does not know any more.
 *
 * Parts that were taken out of a lane and could not be released are pending, in the cache, for the next time.
 *
 * cache_give_back() is the usual way in (cache.h).
 */
#include <stdint.h>

#include "client/cache/lane.h"

struct gpupool_client;

/* Gives the idle memory of a stream's lanes back, because the stream ends. What fails says so when the memory
 * is to be given back the next time. */
void give_back_stream(struct gpupool_client *client, int device, const void *stream);

/* Gives so much of what lies idle back, of this lane first: it is not lost, and another extent will take its
 * place. Who gives back already, does it for this one too. Not worth a failure. */
void give_back_surplus(struct gpupool_client *client, struct lane *lane, uint64_t surplus_bytes);

#endif
