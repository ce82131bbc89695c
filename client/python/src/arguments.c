/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/arguments.h"

#include <limits.h>
#include <math.h>

static Py_ssize_t find_name(const struct signature *signature, PyObject *name) {
    for (Py_ssize_t i = 0; signature->names[i] != NULL; i++)
        if (PyUnicode_CompareWithASCIIString(name, signature->names[i]) == 0)
            return i;
    return -1;
}

int arguments_read(const struct signature *signature, PyObject *const *given, Py_ssize_t count,
                   PyObject *names, PyObject **values) {
    Py_ssize_t named = names == NULL ? 0 : PyTuple_Size(names);

    for (Py_ssize_t i = 0; signature->names[i] != NULL; i++)
        values[i] = NULL;
    if (count > signature->positional) {
        PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments by position, and got %zd",
                     signature->function, signature->positional, count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        values[i] = given[i];
    for (Py_ssize_t i = 0; i < named; i++) {
        PyObject *name = PyTuple_GetItem(names, i);
        Py_ssize_t place = find_name(signature, name);
        if (place < 0 || values[place] != NULL) {
            PyErr_Format(PyExc_TypeError, "%s() got %s argument %R", signature->function,
                         place < 0 ? "an unknown" : "twice the", name);
            return -1;
        }
        values[place] = given[count + i];
    }
    for (Py_ssize_t i = 0; i < signature->required; i++)
        if (values[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "%s() needs the argument '%s'", signature->function,
                         signature->names[i]);
            return -1;
        }
    return 0;
}

int arguments_read_bytes(PyObject *value, const char *name, uint64_t *ret_bytes) {
    PyObject *number = PyNumber_Index(value);
    if (number == NULL)
        return -1;
    unsigned long long bytes = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    if (bytes == (unsigned long long)-1 && PyErr_Occurred() != NULL) {
        if (PyErr_ExceptionMatches(PyExc_OverflowError))
            PyErr_Format(PyExc_ValueError, "%s is %R: it must be a number of bytes below 2 ** 64", name,
                         value);
        return -1;
    }
    *ret_bytes = bytes;
    return 0;
}

int arguments_read_seconds(PyObject *value, const char *name, uint64_t if_none_ns, uint64_t *ret_ns) {
    if (value == NULL || value == Py_None) {
        *ret_ns = if_none_ns;
        return 0;
    }
    double seconds = PyFloat_AsDouble(value);
    if (seconds == -1 && PyErr_Occurred() != NULL)
        return -1;
    if (isnan(seconds) || seconds < 0) {
        PyErr_Format(PyExc_ValueError, "%s is %R: it must be 0 or more seconds, or None", name, value);
        return -1;
    }
    *ret_ns = seconds < 1e10 ? (uint64_t)(seconds * 1e9) : GPUPOOL_FOREVER; /* 300 years are for ever */
    return 0;
}

int arguments_read_int(PyObject *value, const char *name, int *ret_number) {
    if (value == NULL)
        return 0;
    PyObject *number = PyNumber_Index(value);
    if (number == NULL)
        return -1;
    long wide = PyLong_AsLong(number);
    Py_DECREF(number);
    if (wide == -1 && PyErr_Occurred() != NULL && !PyErr_ExceptionMatches(PyExc_OverflowError))
        return -1;
    if (PyErr_Occurred() != NULL || wide < INT_MIN || wide > INT_MAX) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "%s is %R: it is out of range", name, value);
        return -1;
    }
    *ret_number = (int)wide;
    return 0;
}
