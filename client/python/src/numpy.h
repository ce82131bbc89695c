/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PYTHON_NUMPY_H
#define CLIENT_PYTHON_NUMPY_H
/*
 * NumPy arrays over memory of a pool, made by NumPy's own C interface, which is found when the first one is
 * asked for. The base of an array keeps the Buffer, so it goes back with the last array over it.
 */
#include "client/python/src/buffer.h"

/* An array of NumPy with undefined contents. dtype: NULL is float64. NULL with an exception. */
PyObject *numpy_empty(struct pool_object *pool, PyObject *shape, PyObject *dtype, uint64_t timeout_ns);

/* An array over a buffer's memory, an export of it. shape: None: one dimension; one of its numbers may be -1.
 * dtype: NULL: bytes. NULL with an exception. */
PyObject *numpy_over(struct buffer_object *buffer, PyObject *shape, PyObject *dtype);

#endif
