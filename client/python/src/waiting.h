/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PYTHON_WAITING_H
#define CLIENT_PYTHON_WAITING_H
/*
 * An acquire that may wait for room. gpupool_acquire() cannot be broken off, and Python's signal handlers run
 * on the main thread between its calls. So a wait of the main thread that lasts is handed to a thread of its
 * own, and the main thread looks for signals meanwhile. An exception of a handler, such as KeyboardInterrupt,
 * abandons the wait, which keeps its place in the queue: what it gets then goes back at once.
 *
 * A request of the library (gpupool_acquire_begin()) can be cancelled and would need no such thread. This
 * file is older than those.
 */
#include "client/python/src/client.h"

/* As gpupool_acquire(). -1 with an exception. */
int waiting_acquire(struct client_object *client, uint32_t pool, uint64_t size_bytes, void *stream,
                    uint64_t timeout_ns, uint32_t flags, struct gpupool_buffer *ret_buffer);

#endif
