/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PYTHON_WAITING_H
#define CLIENT_PYTHON_WAITING_H
/*
 * An acquire that may wait for room. gpupool_acquire() cannot be broken off, and Python's signal handlers run
 * on the main thread between its calls. So the main thread begins a request of the library, watches its
 * descriptor, and lets handlers run meanwhile. An exception of a handler, such as KeyboardInterrupt, cancels
 * the request. Other threads run no handlers, and wait in gpupool_acquire(). So does the main thread for a
 * buffer that can sleep, which no request makes: handlers run after the call.
 */
#include "client/python/src/client.h"

/* A timeout: as long as the client's alloc_timeout says. */
#define WAITING_AS_CLIENT (GPUPOOL_FOREVER - 1)

/* As gpupool_acquire(), and timeout_ns may be WAITING_AS_CLIENT. -1 with an exception. */
int waiting_acquire(struct client_object *client, const struct gpupool_pool *pool, uint64_t size_bytes,
                    void *stream, uint64_t timeout_ns, uint32_t flags, struct gpupool_buffer *ret_buffer);

#endif
