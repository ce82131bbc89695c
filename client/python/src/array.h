/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PYTHON_ARRAY_H
#define CLIENT_PYTHON_ARRAY_H
/*
 * An Array: a buffer's memory with a type, a shape and an offset, C-contiguous. It is what other packages
 * make their arrays of, without a copy. It computes nothing.
 *
 * It keeps its Buffer, but does not count as an export: when the buffer is closed, it is stale. Its own
 * exports count as the buffer's.
 */
#include "client/python/src/buffer.h"
#include "client/python/src/element.h"

#define DIMENSIONS_MAX 64 /* of NumPy 2, which has the most */

/* Memory in a buffer, as the protocols describe it. Borrows everything. */
struct part {
    struct buffer_object *buffer;
    const struct element *element;
    uint64_t offset; /* in bytes */
    int n_dimensions;
    Py_ssize_t nbytes;
    const Py_ssize_t *shape;
};

struct array_object {
    PyObject ob_base;
    struct buffer_object *buffer;
    const struct element *element;
    uint64_t offset;
    Py_ssize_t nbytes;
    int n_dimensions;
    Py_ssize_t *shape, *strides; /* one allocation */
};

extern PyType_Spec array_spec;

/* The memory of an Array. */
struct part array_part(struct array_object *self);

/* Buffer.view() */
PyObject *array_view(PyObject *buffer, PyObject *const *given, Py_ssize_t count, PyObject *names);

/* __array__() of a Buffer or an Array. NumPy asks for it after the buffer protocol failed, and would make an
 * array of one object otherwise: the failure is raised again. */
PyObject *array_to_numpy(PyObject *object, PyObject *const *given, Py_ssize_t count, PyObject *names);

/* The dictionary of __cuda_array_interface__. NULL with an exception; AttributeError where the memory is not
 * CUDA's. */
PyObject *array_cuda_interface(const struct part *part);

/* Reads a shape: an integer, or a sequence of them. Returns the number of dimensions; -1 with an exception.
 */
int array_read_shape(PyObject *value, Py_ssize_t shape[static DIMENSIONS_MAX]);

/* Puts the extent that is missing, -1, where it is, and computes the size. item: bytes of an element; room: bytes that
 * there are. -1 with an exception. */
int array_complete_shape(Py_ssize_t *shape, int n_dimensions, Py_ssize_t item, Py_ssize_t room,
                         Py_ssize_t *ret_nbytes);

#endif
