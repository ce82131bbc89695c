/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_API_ACQUIRING_H
#define CLIENT_API_ACQUIRING_H
/*
 * The acquire of one buffer, in steps: from the cache, or as a lease of its own in a client without a cache.
 * gpupool_acquire() waits between the steps; a request (requests.h) does not. Both go the same way.
 *
 * The steps are those of an asking (session/asking.h): each but the last one has a request for the daemon.
 */
#include <stdbool.h>
#include <stdint.h>

#include "client/cache/cache.h"
#include "client/session/asking.h"

struct gpupool_buffer;
struct gpupool_client;

struct acquiring {
    struct gpupool_client *client;
    struct cache_taking taking; /* in a client with a cache */
    /* in a client without one */
    struct asking asking;
    uint64_t end_ns;
    uint32_t probe;
    bool is_last; /* the daemon is asked for the second and last time */
};

/* Begins. stream: not GPUPOOL_OWN_STREAM; flags: 0 or GPUPOOL_ZERO, which is not done here. The pool and the
 * stream are checked (buffer_find_pool()). probe: as in buffer_acquire(). 0: *ret_buffer; ASKING_WAITS: what
 * acquiring_asking() returns has a request for the daemon; or an error. */
int acquiring_begin(struct acquiring *acquiring, struct gpupool_client *client, uint32_t pool,
                    uint64_t size_bytes, void *stream, uint64_t timeout_ns, uint32_t flags, uint32_t probe,
                    struct gpupool_buffer *ret_buffer);

/* The asking that waits. */
struct asking *acquiring_asking(struct acquiring *acquiring);

/* Goes on. r: as for asking_answer(). Returns as acquiring_begin(). Any thread may call it. */
int acquiring_answer(struct acquiring *acquiring, int r, struct gpupool_buffer *ret_buffer);

/* Frees the memory of an acquire that waits, in a forked child. */
void acquiring_forget(struct acquiring *acquiring);

#endif
