/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/array.h"

#include <string.h>

#include "client/python/src/arguments.h"
#include "client/python/src/dlpack.h"
#include "client/python/src/error.h"
#include "client/python/src/share.h"

/* --- shapes --- */

static int read_extent(PyObject *value, Py_ssize_t *ret_extent) {
    *ret_extent = PyNumber_AsSsize_t(value, PyExc_OverflowError);
    return *ret_extent == -1 && PyErr_Occurred() != NULL ? -1 : 0;
}

int array_read_shape(PyObject *value, Py_ssize_t shape[static DIMENSIONS_MAX]) {
    if (PyIndex_Check(value))
        return read_extent(value, &shape[0]) < 0 ? -1 : 1;
    PyObject *tuple = PySequence_Tuple(value);
    if (tuple == NULL)
        return -1;
    Py_ssize_t count = PyTuple_Size(tuple);
    if (count > DIMENSIONS_MAX) {
        PyErr_Format(PyExc_ValueError, "shape has %zd dimensions: at most %d are allowed", count,
                     DIMENSIONS_MAX);
        count = -1;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (read_extent(PyTuple_GetItem(tuple, i), &shape[i]) < 0)
            count = -1;
    Py_DECREF(tuple);
    return (int)count;
}

int array_complete_shape(Py_ssize_t *shape, int n_dimensions, Py_ssize_t item, Py_ssize_t room,
                         Py_ssize_t *ret_nbytes) {
    Py_ssize_t nbytes = item;
    int missing = -1;

    for (int i = 0; i < n_dimensions; i++) {
        if (shape[i] < -1 || (shape[i] == -1 && missing >= 0)) {
            PyErr_SetString(PyExc_ValueError, "shape: extents are 0 or more, and one of them may be -1");
            return -1;
        }
        if (shape[i] == -1)
            missing = i;
        else if (__builtin_mul_overflow(nbytes, shape[i], &nbytes))
            nbytes = PY_SSIZE_T_MAX; /* and stays it, or becomes 0 */
    }
    if (missing >= 0) {
        if (nbytes == 0 || room % nbytes != 0) {
            PyErr_Format(PyExc_ValueError, "%zd bytes are no whole number of items of %zd bytes", room,
                         nbytes);
            return -1;
        }
        shape[missing] = room / nbytes;
        nbytes = room;
    }
    if (nbytes > room) {
        PyErr_Format(PyExc_ValueError, "the view has %zd bytes, and the buffer %zd behind the offset", nbytes,
                     room);
        return -1;
    }
    *ret_nbytes = nbytes;
    return 0;
}

/* --- making one --- */

static PyObject *array_new(struct buffer_object *buffer, const struct element *element, uint64_t offset,
                           Py_ssize_t nbytes, const Py_ssize_t *shape, int n_dimensions) {
    struct array_object *self = PyObject_GC_New(struct array_object, buffer->pool->client->state->array_type);
    if (self == NULL)
        return NULL;
    self->buffer = (struct buffer_object *)Py_NewRef((PyObject *)buffer);
    self->element = element;
    self->offset = offset;
    self->nbytes = nbytes;
    self->n_dimensions = n_dimensions;
    self->shape = PyMem_Calloc(2 * (size_t)n_dimensions + 1, sizeof *self->shape);
    self->strides = self->shape == NULL ? NULL : self->shape + n_dimensions;
    if (self->shape == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    Py_ssize_t stride = element->bytes;
    for (int i = n_dimensions - 1; i >= 0; i--) {
        self->shape[i] = shape[i];
        self->strides[i] = stride;
        stride *= shape[i];
    }
    PyObject_GC_Track((PyObject *)self);
    return (PyObject *)self;
}

PyObject *array_view(PyObject *object, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    static const struct signature signature = {"view", 0, 3, {"shape", "dtype", "offset", NULL}};
    struct buffer_object *buffer = (struct buffer_object *)object;
    const struct element *element = &element_byte;
    Py_ssize_t shape[DIMENSIONS_MAX] = {-1}, nbytes;
    PyObject *values[ARGUMENTS_MAX];
    uint64_t offset = 0;
    int n_dimensions = 1;

    if (arguments_read(&signature, given, count, names, values) < 0)
        return NULL;
    if (values[1] != NULL && (element = element_read(values[1])) == NULL)
        return NULL;
    if (values[2] != NULL && arguments_read_bytes(values[2], "offset", &offset) < 0)
        return NULL;
    if (values[0] != NULL && values[0] != Py_None && (n_dimensions = array_read_shape(values[0], shape)) < 0)
        return NULL;
    if (!buffer_is_open(buffer))
        return NULL;
    if (offset > buffer->buffer.size_bytes || offset % element->bytes != 0) {
        PyErr_Format(PyExc_ValueError, "offset %llu: it must be a multiple of %d, and at most %llu",
                     (unsigned long long)offset, (int)element->bytes,
                     (unsigned long long)buffer->buffer.size_bytes);
        return NULL;
    }
    if (array_complete_shape(shape, n_dimensions, element->bytes,
                             (Py_ssize_t)(buffer->buffer.size_bytes - offset), &nbytes) < 0)
        return NULL;
    return array_new(buffer, element, offset, nbytes, shape, n_dimensions);
}

static void array_dealloc(PyObject *object) {
    struct array_object *self = (struct array_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Py_DECREF(self->buffer);
    PyMem_Free(self->shape);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static int array_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((struct array_object *)object)->buffer);
    return 0;
}

/* --- protocols --- */

struct part array_part(struct array_object *self) {
    return (struct part){
        .buffer = self->buffer,
        .element = self->element,
        .offset = self->offset,
        .n_dimensions = self->n_dimensions,
        .nbytes = self->nbytes,
        .shape = self->shape,
    };
}

/* Fills a view of a buffer in use. */
static int fill_view(struct array_object *self, Py_buffer *view, int flags) {
    struct buffer_object *buffer = self->buffer;

    if (!buffer_is_on_host(buffer)) {
        PyErr_SetString(PyExc_BufferError,
                        "the array is memory of a GPU: use DLPack or __cuda_array_interface__");
        return -1;
    }
    if (self->element->format == NULL) {
        PyErr_Format(PyExc_BufferError, "the buffer protocol has no %s: use DLPack, or view the bytes",
                     self->element->name);
        return -1;
    }
    if ((flags & PyBUF_WRITABLE) != 0 && buffer->is_read_only) {
        PyErr_SetString(PyExc_BufferError, "the buffer is read-only");
        return -1;
    }
    if (buffer_settle(buffer) < 0)
        return -1;
    *view = (Py_buffer){
        .buf = (char *)buffer->buffer.data + self->offset,
        .obj = Py_NewRef((PyObject *)self),
        .len = self->nbytes,
        .itemsize = self->element->bytes,
        .readonly = buffer->is_read_only,
        .ndim = self->n_dimensions,
        .format = (flags & PyBUF_FORMAT) != 0 ? (char *)self->element->format : NULL,
        .shape = (flags & PyBUF_ND) != 0 ? self->shape : NULL,
        .strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? self->strides : NULL,
    };
    buffer_export(buffer);
    return 0;
}

static int array_get(PyObject *object, Py_buffer *view, int flags) {
    struct array_object *self = (struct array_object *)object;

    view->obj = NULL;
    if (!buffer_use_contents(self->buffer))
        return -1;
    int r = fill_view(self, view, flags);
    buffer_unuse(self->buffer);
    return r;
}

static void array_release(PyObject *object, Py_buffer *view) {
    (void)view;
    buffer_end_export(((struct array_object *)object)->buffer);
}

static PyObject *make_shape(const Py_ssize_t *shape, int n_dimensions) {
    PyObject *tuple = PyTuple_New(n_dimensions);
    for (int i = 0; tuple != NULL && i < n_dimensions; i++) {
        PyObject *extent = PyLong_FromSsize_t(shape[i]);
        if (extent == NULL)
            Py_CLEAR(tuple);
        else
            PyTuple_SetItem(tuple, i, extent);
    }
    return tuple;
}

PyObject *array_cuda_interface(const struct part *part) {
    char typestr[8];
    if (!buffer_is_open(part->buffer) || !buffer_is_awake(part->buffer))
        return NULL;
    if (buffer_is_on_host(part->buffer) || part->element->typestr == NULL) {
        PyErr_SetString(PyExc_AttributeError, buffer_is_on_host(part->buffer)
                                                  ? "__cuda_array_interface__: the memory is not CUDA's"
                                                  : "__cuda_array_interface__ has no bfloat16: use DLPack");
        return NULL;
    }
    PyOS_snprintf(typestr, sizeof typestr, "%c%s", part->element->bytes == 1 ? '|' : '<',
                  part->element->typestr);
    PyObject *stream =
        part->buffer->stream == GPUPOOL_NO_STREAM ? Py_NewRef(Py_None) : stream_number(part->buffer->stream);
    return Py_BuildValue(
        "{s:N,s:s,s:(NO),s:i,s:O,s:N}", "shape", make_shape(part->shape, part->n_dimensions), "typestr",
        typestr, "data", PyLong_FromVoidPtr((char *)part->buffer->buffer.data + part->offset),
        part->buffer->is_read_only ? Py_True : Py_False, "version", 3, "strides", Py_None, "stream", stream);
}

static PyObject *array_get_cuda_interface(PyObject *object, void *closure) {
    struct part part = array_part((struct array_object *)object);
    (void)closure;
    return array_cuda_interface(&part);
}

PyObject *array_to_numpy(PyObject *object, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    static const struct signature signature = {"__array__", 0, 2, {"dtype", "copy", NULL}};
    PyObject *values[ARGUMENTS_MAX], *array = NULL;
    int copy = 0;

    if (arguments_read(&signature, given, count, names, values) < 0 ||
        (values[1] != NULL && (copy = PyObject_IsTrue(values[1])) < 0))
        return NULL;
    PyObject *memory = PyMemoryView_FromObject(object);
    PyObject *numpy = memory == NULL ? NULL : PyImport_ImportModule("numpy");
    if (numpy != NULL)
        array = PyObject_CallMethod(numpy, copy ? "array" : "asarray", "OO", memory,
                                    values[0] == NULL ? Py_None : values[0]);
    Py_XDECREF(numpy);
    Py_XDECREF(memory);
    return array;
}

static PyObject *array_dlpack(PyObject *object, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    struct part part = array_part((struct array_object *)object);
    return dlpack_make(&part, given, count, names);
}

static PyObject *array_dlpack_device(PyObject *self, PyObject *none) {
    (void)none;
    return dlpack_device(((struct array_object *)self)->buffer);
}

static PyObject *array_reduce(PyObject *object, PyObject *none) {
    struct array_object *self = (struct array_object *)object;
    (void)none;
    PyObject *view = share_function("view_of_other");
    PyObject *shape = make_shape(self->shape, self->n_dimensions);
    if (view == NULL || shape == NULL) {
        Py_XDECREF(view);
        Py_XDECREF(shape);
        return NULL;
    }
    return Py_BuildValue("N(ONsK)", view, self->buffer, shape, self->element->name,
                         (unsigned long long)self->offset);
}

/* --- attributes --- */

static PyObject *get_shape(PyObject *object, void *closure) {
    struct array_object *self = (struct array_object *)object;
    (void)closure;
    return make_shape(self->shape, self->n_dimensions);
}

static PyObject *get_dtype(PyObject *self, void *closure) {
    (void)closure;
    return PyUnicode_FromString(((struct array_object *)self)->element->name);
}

static PyObject *get_ndim(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromLong(((struct array_object *)self)->n_dimensions);
}

static PyObject *get_itemsize(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromLong(((struct array_object *)self)->element->bytes);
}

static PyObject *get_nbytes(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromSsize_t(((struct array_object *)self)->nbytes);
}

static PyObject *get_ptr(PyObject *object, void *closure) {
    struct array_object *self = (struct array_object *)object;
    (void)closure;
    return buffer_is_open(self->buffer) ? PyLong_FromVoidPtr((char *)self->buffer->buffer.data + self->offset)
                                        : NULL;
}

static PyObject *get_buffer(PyObject *self, void *closure) {
    (void)closure;
    return Py_NewRef((PyObject *)((struct array_object *)self)->buffer);
}

static PyObject *get_device(PyObject *self, void *closure) {
    (void)closure;
    return PyObject_GetAttrString((PyObject *)((struct array_object *)self)->buffer, "device");
}

static PyObject *array_repr(PyObject *object) {
    struct array_object *self = (struct array_object *)object;
    PyObject *shape = make_shape(self->shape, self->n_dimensions);
    if (shape == NULL)
        return NULL;
    PyObject *text = PyUnicode_FromFormat("<gpupool.Array of %s, shape %R, in %R>", self->element->name,
                                          shape, (PyObject *)self->buffer);
    Py_DECREF(shape);
    return text;
}

static PyObject *array_refuse_copy(PyObject *self, PyObject *memo) {
    (void)self;
    (void)memo;
    PyErr_SetString(PyExc_TypeError, "an Array is not copied: copy the contents of an array over it");
    return NULL;
}

static PyMethodDef methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))array_dlpack, METH_FASTCALL | METH_KEYWORDS,
     "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\nThe array as a "
     "DLPack "
     "capsule."},
    {"__array__", (PyCFunction)(void (*)(void))array_to_numpy, METH_FASTCALL | METH_KEYWORDS,
     "__array__($self, dtype=None, copy=None)\n--\n\nThe memory as an array of NumPy. Says why not, where "
     "NumPy cannot "
     "use it."},
    {"__dlpack_device__", array_dlpack_device, METH_NOARGS,
     "__dlpack_device__($self)\n--\n\nDLPack's (device type, device)."},
    {"__reduce__", array_reduce, METH_NOARGS,
     "__reduce__($self)\n--\n\nPickles a token of Buffer.send() and the view. It serves once."},
    {"__copy__", array_refuse_copy, METH_NOARGS, NULL},
    {"__deepcopy__", array_refuse_copy, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"shape", get_shape, NULL, "The extents, a tuple.", NULL},
    {"dtype", get_dtype, NULL, "The name of the elements' type, such as \"float32\".", NULL},
    {"ndim", get_ndim, NULL, "The number of dimensions.", NULL},
    {"itemsize", get_itemsize, NULL, "The bytes of an element.", NULL},
    {"nbytes", get_nbytes, NULL, "The bytes of all elements.", NULL},
    {"ptr", get_ptr, NULL, "The address of the first element.", NULL},
    {"buffer", get_buffer, NULL, "The Buffer.", NULL},
    {"device", get_device, NULL, "The device's ordinal. None: host memory.", NULL},
    {"__cuda_array_interface__", array_get_cuda_interface, NULL, "Version 3, for memory of CUDA alone.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static const char docstring[] =
    "Memory of a buffer with a type and a shape. Buffer.view() returns arrays.\n\n"
    "numpy.asarray(array), torch.from_dlpack(array) and cupy.asarray(array) use the memory without a copy.";

static PyType_Slot slots[] = {
    {Py_tp_dealloc, array_dealloc}, {Py_tp_traverse, array_traverse},     {Py_tp_repr, array_repr},
    {Py_bf_getbuffer, array_get},   {Py_bf_releasebuffer, array_release}, {Py_tp_methods, methods},
    {Py_tp_getset, properties},     {Py_tp_doc, (char *)docstring},       {0, NULL},
};

PyType_Spec array_spec = {"gpupool.Array", sizeof(struct array_object), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
                              Py_TPFLAGS_DISALLOW_INSTANTIATION,
                          slots};
