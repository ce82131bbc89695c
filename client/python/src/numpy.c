/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/numpy.h"

#include "client/python/src/array.h"
#include "client/python/src/buffer.h"

/* Places in NumPy's table of functions, which are the same in all versions since 1.7
 * (numpy/__multiarray_api.h). */
enum {
    PLACE_ARRAY_TYPE = 2,
    PLACE_FROM_TYPE = 45,
    PLACE_NEW = 94,
    PLACE_CONVERT = 174,
    PLACE_SET_BASE = 282
};

#define NUMPY_DOUBLE 12     /* NPY_DOUBLE */
#define NUMPY_UBYTE  2      /* NPY_UBYTE */
#define NUMPY_CARRAY 0x0501 /* C-contiguous, aligned, writable */
#define NUMPY_READ   0x0101 /* C-contiguous, aligned */

typedef PyObject *from_type_function(int type);
typedef PyObject *new_function(PyTypeObject *type, PyObject *descriptor, int n_dimensions,
                               const Py_ssize_t *shape, const Py_ssize_t *strides, void *data, int flags,
                               PyObject *object);
typedef int convert_function(PyObject *value, PyObject **ret_descriptor);
typedef int set_base_function(PyObject *array, PyObject *base);

/* NumPy's table. NumPy is loaded once in a process, for all interpreters. */
static void **table;

/* The type that was converted last, and what is asked of each type: most calls have the same. */
static PyObject *last_descriptor; /* owned */
static Py_ssize_t last_bytes;

static int find_table(void) {
    static const char *const modules[] = {"numpy._core._multiarray_umath", "numpy.core._multiarray_umath"};
    PyObject *module = NULL, *capsule;

    for (size_t i = 0; i < 2 && module == NULL; i++) {
        module = PyImport_ImportModule(modules[i]);
        if (module == NULL && i == 0 && PyErr_ExceptionMatches(PyExc_ImportError))
            PyErr_Clear(); /* NumPy 1 has the other name */
    }
    if (module == NULL)
        return -1;
    capsule = PyObject_GetAttrString(module, "_ARRAY_API");
    Py_DECREF(module);
    if (capsule == NULL)
        return -1;
    table = PyCapsule_GetPointer(capsule, NULL);
    Py_DECREF(capsule);
    return table == NULL ? -1 : 0;
}

/* Reads an attribute of a type that is a number. -1 with an exception. */
static Py_ssize_t read_attribute(PyObject *descriptor, const char *name) {
    PyObject *value = PyObject_GetAttrString(descriptor, name);
    if (value == NULL)
        return -1;
    Py_ssize_t number = PyNumber_AsSsize_t(value, PyExc_OverflowError);
    Py_DECREF(value);
    return number;
}

/* The type's size. -1 with an exception: also for types whose elements are Python's objects. */
static Py_ssize_t bytes_of(PyObject *descriptor) {
    if (descriptor == last_descriptor)
        return last_bytes;
    Py_ssize_t has_objects = read_attribute(descriptor, "hasobject");
    Py_ssize_t bytes = has_objects < 0 ? -1 : read_attribute(descriptor, "itemsize");
    if (bytes < 0)
        return -1;
    if (has_objects != 0 || bytes == 0) {
        PyErr_Format(PyExc_TypeError,
                     "dtype %R: memory of a pool holds elements of a fixed size, and no objects", descriptor);
        return -1;
    }
    PyObject *old = last_descriptor;
    last_descriptor = Py_NewRef(descriptor);
    last_bytes = bytes;
    Py_XDECREF(old);
    return bytes;
}

/* The memory of an array. It counts as exported until it dies: the program can reach it as the array's base.
 */
static struct buffer_object *take(struct pool_object *pool, uint64_t bytes, uint64_t timeout_ns) {
    struct stream none = {GPUPOOL_NO_STREAM, NULL};
    struct buffer_object *buffer = pool_take(pool, bytes > 0 ? bytes : 1, none, timeout_ns, 0);
    if (buffer == NULL)
        return NULL;
    if (!buffer_is_on_host(buffer)) {
        Py_DECREF(buffer);
        PyErr_SetString(PyExc_BufferError,
                        "NumPy has no arrays in memory of a GPU: acquire() and DLPack serve there");
        return NULL;
    }
    buffer_export(buffer);
    return buffer;
}

/* The type that a caller passed; NULL: if_none, by NumPy's number. NULL with an exception. */
static PyObject *read_type(PyObject *dtype, int if_none) {
    PyObject *descriptor = NULL;

    if (table == NULL && find_table() < 0)
        return NULL;
    if (dtype == NULL || dtype == Py_None)
        return ((from_type_function *)table[PLACE_FROM_TYPE])(if_none);
    return ((convert_function *)table[PLACE_CONVERT])(dtype, &descriptor) == 0 ? NULL : descriptor;
}

/* An array over memory, with a base. Takes the descriptor and the base, also on failure. */
static PyObject *wrap(PyObject *descriptor, int n_dimensions, const Py_ssize_t *extents, void *data,
                      int flags, PyObject *base) {
    PyObject *array = ((new_function *)table[PLACE_NEW])(table[PLACE_ARRAY_TYPE], descriptor, n_dimensions,
                                                         extents, NULL, data, flags, NULL);
    if (array == NULL) {
        Py_DECREF(base);
        return NULL;
    }
    if (((set_base_function *)table[PLACE_SET_BASE])(array, base) < 0) /* takes the base */
        Py_CLEAR(array);
    return array;
}

PyObject *numpy_empty(struct pool_object *pool, PyObject *shape, PyObject *dtype, uint64_t timeout_ns) {
    Py_ssize_t extents[DIMENSIONS_MAX], bytes;

    int n_dimensions = array_read_shape(shape, extents);
    PyObject *descriptor = n_dimensions < 0 ? NULL : read_type(dtype, NUMPY_DOUBLE);
    if (descriptor == NULL)
        return NULL;
    bytes = bytes_of(descriptor);
    for (int i = 0; i < n_dimensions && bytes >= 0; i++)
        if (extents[i] < 0 || __builtin_mul_overflow(bytes, extents[i], &bytes)) {
            PyErr_SetString(PyExc_ValueError, "shape: an extent is negative, or the array is too large");
            bytes = -1;
        }
    struct buffer_object *buffer = bytes < 0 ? NULL : take(pool, (uint64_t)bytes, timeout_ns);
    if (buffer == NULL) {
        Py_DECREF(descriptor);
        return NULL;
    }
    return wrap(descriptor, n_dimensions, extents, buffer->buffer.data, NUMPY_CARRAY, (PyObject *)buffer);
}

PyObject *numpy_over(struct buffer_object *buffer, PyObject *shape, PyObject *dtype) {
    Py_ssize_t extents[DIMENSIONS_MAX] = {-1}, bytes, nbytes;
    int n_dimensions = shape == NULL || shape == Py_None ? 1 : array_read_shape(shape, extents);
    PyObject *descriptor = n_dimensions < 0 ? NULL : read_type(dtype, NUMPY_UBYTE);

    if (descriptor == NULL)
        return NULL;
    bytes = bytes_of(descriptor);
    /* The view is the export, and looks whether the memory can be used. */
    PyObject *view = bytes < 0 ? NULL : PyMemoryView_FromObject((PyObject *)buffer);
    if (view == NULL || array_complete_shape(extents, n_dimensions, bytes,
                                             (Py_ssize_t)buffer->buffer.size_bytes, &nbytes) < 0) {
        Py_XDECREF(view);
        Py_DECREF(descriptor);
        return NULL;
    }
    return wrap(descriptor, n_dimensions, extents, buffer->buffer.data,
                buffer->is_read_only ? NUMPY_READ : NUMPY_CARRAY, view);
}
