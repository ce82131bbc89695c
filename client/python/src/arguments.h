/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PYTHON_ARGUMENTS_H
#define CLIENT_PYTHON_ARGUMENTS_H
/* The arguments of the methods: by position or by name, without a tuple or a dictionary being made. */
#include "client/python/src/module.h"

#define ARGUMENTS_MAX 8

struct signature {
    const char *function;
    Py_ssize_t required;                  /* so many arguments have no default */
    Py_ssize_t positional;                /* so many may be given by position */
    const char *names[ARGUMENTS_MAX + 1]; /* NULL ends them */
};

/* Sorts the arguments of a call by the signature. values: one place for each name, borrowed; NULL where the
 * argument is not given. -1 with an exception. */
int arguments_read(const struct signature *signature, PyObject *const *given, Py_ssize_t count,
                   PyObject *names, PyObject **values);

/* A number of bytes. The library judges whether it is too small or too large. -1 with an exception. */
int arguments_read_bytes(PyObject *value, const char *name, uint64_t *ret_bytes);

/* Seconds, as a number; None or NULL: if_none_ns; infinity: GPUPOOL_FOREVER. -1 with an exception. */
int arguments_read_seconds(PyObject *value, const char *name, uint64_t if_none_ns, uint64_t *ret_ns);

/* An int of C. -1 with an exception. NULL: *ret_number is untouched. */
int arguments_read_int(PyObject *value, const char *name, int *ret_number);

#endif
