/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PYTHON_STREAM_H
#define CLIENT_PYTHON_STREAM_H
/*
 * Streams: one function makes the library's stream of whatever a program passes, and the type gpupool.Stream
 * is a stream that the library made.
 *
 * A Stream keeps its Client. users counts the calls that use it, and the buffers that will be released on it,
 * or recorded it: they keep the Stream, and close() is refused until they end.
 */
#include "client/python/src/client.h"

struct stream_object {
    PyObject ob_base;
    struct client_object *client;
    void *handle;
    PyObject *weakrefs;
    int device;
    uint32_t users;
    bool is_closed;
};

extern PyType_Spec stream_spec;

/* A stream that a caller passed. */
struct stream {
    void *handle;
    PyObject *object; /* has to live as long as the handle is used: held; NULL: nothing has to */
};

/* Converts a stream, and holds its object: None or NULL (if_none); an integer, as DLPack names streams or a
 * handle; a gpupool.Stream; an object with __cuda_stream__(), of PyTorch (cuda_stream) or of CuPy (ptr). -1
 * with an exception. */
int stream_read(struct module_state *state, PyObject *value, void *if_none, struct stream *ret_stream);

/* Holds the object of a stream: keeps it, and counts a user. Returns it. Accepts NULL. */
PyObject *stream_hold(const struct module_state *state, PyObject *object);

/* Ends what stream_hold() began. Accepts NULL. */
void stream_drop(const struct module_state *state, PyObject *object);

/* The number that names a stream in Python: 1 for the legacy default stream, 2 for the per-thread one, -1 for
 * none, else the handle. */
PyObject *stream_number(void *handle);

#endif
