/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PYTHON_DLPACK_H
#define CLIENT_PYTHON_DLPACK_H
/*
 * DLPack: a buffer, or an array over it, as a capsule that other packages make their arrays of.
 *
 * The capsule's tensor is an export of the buffer: it keeps the buffer until its consumer is done. The
 * producer is the buffer's stream. The consumer's stream waits for it on the GPU, and is recorded with the
 * buffer, so that the memory is not used again before the consumer's work is done.
 */
#include "client/python/src/array.h"

/* __dlpack__(*, stream, max_version, dl_device, copy). NULL with an exception. */
PyObject *dlpack_make(const struct part *part, PyObject *const *given, Py_ssize_t count, PyObject *names);

/* _set_owner(capsule, object): the object lives as long as the export. Returns the capsule; NULL with an
 * exception. */
PyObject *dlpack_set_owner(PyObject *module, PyObject *const *given, Py_ssize_t count);

/* _lend(array, stream): a capsule without a version, also of memory that is read-only: for consumers that know no such
 * memory. The stream is the consumer's; None: no order is needed. */
PyObject *dlpack_lend(PyObject *module, PyObject *const *given, Py_ssize_t count);

/* __dlpack_device__() */
PyObject *dlpack_device(const struct buffer_object *buffer);

#endif
