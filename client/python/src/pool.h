/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PYTHON_POOL_H
#define CLIENT_PYTHON_POOL_H
/*
 * A Pool: one of the daemon's pools, as a client sees it. It keeps the Client. Its attributes are as the
 * daemon gave them when the client asked; info() asks again. Two Pool objects of one client and one pool are
 * equal.
 */
#include "client/python/src/client.h"
#include "client/python/src/stream.h"

struct buffer_object;

struct pool_object {
    PyObject ob_base;
    struct client_object *client;
    struct gpupool_pool pool;
};

extern PyType_Spec pool_spec;
extern PyStructSequence_Desc pool_info_desc;

/* The pool with an id. NULL with an exception. */
PyObject *pool_new(struct client_object *client, uint32_t id);

/* A buffer of the pool. stream: its object becomes the buffer's, also on failure. NULL with an exception. */
struct buffer_object *pool_take(struct pool_object *self, uint64_t size_bytes, struct stream stream,
                                uint64_t timeout_ns, uint32_t flags);

/* The stream that None means for memory of the pool: none for host memory, else the legacy default stream. */
static inline void *pool_default_stream(const struct pool_object *self) {
    return self->pool.kind == GPUPOOL_POOL_HOST ? GPUPOOL_NO_STREAM : NULL;
}

#endif
