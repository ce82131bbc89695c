/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PYTHON_SHARE_H
#define CLIENT_PYTHON_SHARE_H
/* Buffers of several processes: tokens, attaching, and pickling, which sends a token. */
#include "client/python/src/buffer.h"

/* Buffer.share() */
PyObject *share_buffer(PyObject *buffer, PyObject *const *given, Py_ssize_t count, PyObject *names);

/* Buffer.send() */
PyObject *share_send(PyObject *buffer, PyObject *const *given, Py_ssize_t count, PyObject *names);

/* gpupool._gpupool._send_held() */
PyObject *share_send_held(PyObject *module, PyObject *const *given, Py_ssize_t count);

/* gpupool._gpupool._is_mapped_read_only() */
PyObject *share_is_mapped_read_only(PyObject *module, PyObject *object);

/* Buffer.__reduce__() */
PyObject *share_reduce(PyObject *buffer, PyObject *none);

/* gpupool.attach() */
PyObject *share_attach(PyObject *module, PyObject *const *given, Py_ssize_t count, PyObject *names);

/* gpupool.revoke() */
PyObject *share_revoke(PyObject *module, PyObject *const *given, Py_ssize_t count, PyObject *names);

/* The Buffer of what was attached by a client in use. Takes stream.object, also on failure: then the memory
 * goes back. has_stream: false: it is released on its pool's own stream. */
PyObject *share_wrap(struct client_object *client, struct gpupool_buffer *attached, struct stream stream,
                     bool has_stream, bool is_read_only);

/* A function of gpupool._transfer, which unpickles. Returns a new reference; NULL with an exception. */
PyObject *share_function(const char *name);

#endif
