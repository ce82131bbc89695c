/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/stream.h"

#include <string.h>
#include <structmember.h>

#include "client/include/gpupool/fence.h"
#include "client/python/src/arguments.h"
#include "client/python/src/error.h"

/* The legacy default stream is NULL to the library. DLPack and CUDA's own headers (cudaStreamLegacy) say 1.
 */
#define LEGACY GPUPOOL_STREAM_NUMBER(1)

/* --- conversion --- */

static int read_number(PyObject *value, void **ret_handle) {
    long long number = PyLong_AsLongLong(value);
    if (number == -1 && PyErr_Occurred() != NULL)
        return -1;
    if (number < -1) {
        PyErr_Format(PyExc_ValueError, "stream is %R: a number below -1 names no stream", value);
        return -1;
    }
    *ret_handle = number == -1 ? GPUPOOL_NO_STREAM : GPUPOOL_STREAM_NUMBER(number);
    if (*ret_handle == LEGACY)
        *ret_handle = NULL;
    return 0;
}

/* The attribute of an object, or NULL without an exception: it has none. */
static PyObject *find_attribute(PyObject *object, const char *name) {
    PyObject *value = PyObject_GetAttrString(object, name);
    if (value == NULL && PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Clear();
    return value;
}

/* The protocol's pair: (version, handle). */
static int read_pair(PyObject *attribute, void **ret_handle) {
    PyObject *pair = PyCallable_Check(attribute) ? PyObject_CallNoArgs(attribute) : Py_NewRef(attribute);
    if (pair == NULL)
        return -1;
    int r = -1;
    PyObject *handle =
        PySequence_Check(pair) && PySequence_Size(pair) == 2 ? PySequence_GetItem(pair, 1) : NULL;
    if (handle != NULL && PyLong_Check(handle))
        r = read_number(handle, ret_handle);
    else if (PyErr_Occurred() == NULL)
        PyErr_SetString(PyExc_TypeError, "__cuda_stream__() must return (version, handle)");
    Py_XDECREF(handle);
    Py_DECREF(pair);
    return r;
}

static int read_foreign(PyObject *value, void **ret_handle) {
    static const char *const numbers[] = {"cuda_stream", "ptr"}; /* PyTorch's, CuPy's */
    PyObject *attribute = find_attribute(value, "__cuda_stream__");
    int r;

    if (attribute != NULL) {
        r = read_pair(attribute, ret_handle);
        Py_DECREF(attribute);
        return r;
    }
    for (size_t i = 0; i < 2 && PyErr_Occurred() == NULL; i++) {
        attribute = find_attribute(value, numbers[i]);
        if (attribute != NULL && PyLong_Check(attribute)) {
            r = read_number(attribute, ret_handle);
            Py_DECREF(attribute);
            return r;
        }
        Py_XDECREF(attribute);
    }
    if (PyErr_Occurred() == NULL)
        PyErr_Format(
            PyExc_TypeError,
            "stream must be None, a number, or an object with __cuda_stream__(), cuda_stream or ptr, not %R",
            (PyObject *)Py_TYPE(value));
    return -1;
}

int stream_read(struct module_state *state, PyObject *value, void *if_none, struct stream *ret_stream) {
    struct stream stream = {if_none, NULL};
    int r = 0;

    if (value == NULL || value == Py_None) {
        *ret_stream = stream;
        return 0;
    }
    if (PyLong_Check(value)) {
        r = read_number(value, &stream.handle);
    } else if (Py_TYPE(value) == state->stream_type) {
        const struct stream_object *own = (const struct stream_object *)value;
        if (own->is_closed || !client_is_open(own->client)) {
            if (PyErr_Occurred() == NULL)
                error_raise_text(state, GPUPOOL_E_STALE, "the stream is closed");
            return -1;
        }
        stream = (struct stream){own->handle, value};
    } else if (Py_TYPE(value) == state->buffer_type || Py_TYPE(value) == state->array_type ||
               Py_TYPE(value) == state->frame_type) {
        PyErr_Format(PyExc_TypeError, "stream must be a stream, not %R", (PyObject *)Py_TYPE(value));
        r = -1;
    } else {
        r = read_foreign(value, &stream.handle);
        stream.object = value;
    }
    if (r < 0)
        return -1;
    (void)stream_hold(state, stream.object);
    *ret_stream = stream;
    return 0;
}

PyObject *stream_hold(const struct module_state *state, PyObject *object) {
    if (object != NULL && Py_TYPE(object) == state->stream_type)
        ((struct stream_object *)object)->users++;
    return Py_XNewRef(object);
}

void stream_drop(const struct module_state *state, PyObject *object) {
    if (object != NULL && Py_TYPE(object) == state->stream_type)
        ((struct stream_object *)object)->users--;
    Py_XDECREF(object);
}

PyObject *stream_number(void *handle) {
    if (handle == GPUPOOL_NO_STREAM)
        return PyLong_FromLong(-1);
    return handle == NULL ? PyLong_FromLong(1) : PyLong_FromVoidPtr(handle);
}

/* --- gpupool.Stream --- */

static PyObject *stream_new(PyTypeObject *type, PyObject *positional, PyObject *named) {
    static char *names[] = {"device", "client", NULL};
    struct module_state *state = PyType_GetModuleState(type);
    PyObject *client_argument = NULL;
    int device = 0, r;

    if (!PyArg_ParseTupleAndKeywords(positional, named, "|i$O:Stream", names, &device, &client_argument))
        return NULL;
    struct client_object *client = client_read_argument(state, client_argument);
    if (client == NULL)
        return NULL;
    struct stream_object *self = PyObject_New(struct stream_object, type);
    if (self == NULL) {
        Py_DECREF(client);
        return NULL;
    }
    memset((char *)self + sizeof self->ob_base, 0, sizeof *self - sizeof self->ob_base);
    self->client = client;
    self->device = device;
    self->is_closed = true;
    if (!client_use(client)) {
        Py_DECREF(self);
        return NULL;
    }
    WITHOUT_LOCK(r = gpupool_stream_create(client->handle, device, &self->handle));
    client_unuse(client);
    if (r < 0) {
        error_raise(state, r);
        Py_DECREF(self);
        return NULL;
    }
    self->is_closed = false;
    return (PyObject *)self;
}

static bool is_open(const struct stream_object *self) {
    if (self->is_closed) {
        error_raise_text(self->client->state, GPUPOOL_E_STALE, "the stream is closed");
        return false;
    }
    return client_is_open(self->client);
}

/* Counts a call that uses an open stream, and its client. False with StaleError. */
static bool stream_use(struct stream_object *self) {
    if (!is_open(self) || !client_use(self->client))
        return false;
    self->users++;
    return true;
}

static void stream_unuse(struct stream_object *self) {
    self->users--;
    client_unuse(self->client);
}

/* Destroys the stream of an open client. Returns what the library says. */
static int destroy(struct stream_object *self) {
    int r;
    self->is_closed = true; /* to other threads, from now on */
    self->client->uses++;
    WITHOUT_LOCK(r = gpupool_stream_destroy(self->client->handle, self->device, self->handle));
    client_unuse(self->client);
    return r;
}

static PyObject *stream_close(PyObject *object, PyObject *none) {
    struct stream_object *self = (struct stream_object *)object;
    (void)none;
    if (self->is_closed || self->client->handle == NULL) {
        self->is_closed = true;
        Py_RETURN_NONE;
    }
    if (self->users > 0) {
        PyErr_Format(PyExc_BufferError, "%u buffers use the stream: close them first", self->users);
        return NULL;
    }
    int r = destroy(self);
    return r < 0 ? error_raise(self->client->state, r) : Py_NewRef(Py_None);
}

static void stream_dealloc(PyObject *object) {
    struct stream_object *self = (struct stream_object *)object;
    PyTypeObject *type = Py_TYPE(object);

    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs(object);
    if (!self->is_closed && self->client->handle != NULL)
        (void)destroy(self); /* in a forked child it is refused: the stream is the parent's */
    Py_DECREF(self->client);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *stream_synchronize(PyObject *object, PyObject *none) {
    struct stream_object *self = (struct stream_object *)object;
    int r;
    (void)none;
    if (!stream_use(self))
        return NULL;
    WITHOUT_LOCK(r = gpupool_stream_synchronize(self->client->handle, self->device, self->handle));
    stream_unuse(self);
    return r < 0 ? error_raise(self->client->state, r) : Py_NewRef(Py_None);
}

static PyObject *stream_wait(PyObject *object, PyObject *value) {
    struct stream_object *self = (struct stream_object *)object;
    struct gpupool_fence fence;
    struct stream other;
    int device = self->device, r = -1;

    if (stream_read(self->client->state, value, NULL, &other) < 0)
        return NULL;
    if (other.object != NULL && Py_TYPE(other.object) == Py_TYPE(object))
        device = ((struct stream_object *)other.object)->device;
    if (stream_use(self)) {
        WITHOUT_LOCK({
            r = gpupool_fence_record(self->client->handle, device, &fence, other.handle);
            if (r == 0)
                r = gpupool_fence_wait(self->client->handle, self->device, &fence, self->handle);
        });
        stream_unuse(self);
        if (r < 0)
            error_raise(self->client->state, r);
    }
    stream_drop(self->client->state, other.object);
    return r < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *stream_protocol(PyObject *object, PyObject *none) {
    struct stream_object *self = (struct stream_object *)object;
    (void)none;
    return is_open(self) ? Py_BuildValue("(iN)", 0, PyLong_FromVoidPtr(self->handle)) : NULL;
}

static PyObject *stream_enter(PyObject *self, PyObject *none) {
    (void)none;
    return is_open((struct stream_object *)self) ? Py_NewRef(self) : NULL;
}

static PyObject *stream_exit(PyObject *object, PyObject *exception) {
    (void)exception;
    PyObject *done = stream_synchronize(object, NULL);
    if (done == NULL)
        return NULL;
    Py_DECREF(done);
    return stream_close(object, NULL);
}

static PyObject *stream_get_handle(PyObject *object, void *closure) {
    struct stream_object *self = (struct stream_object *)object;
    (void)closure;
    return is_open(self) ? PyLong_FromVoidPtr(self->handle) : NULL;
}

static PyObject *stream_get_device(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromLong(((struct stream_object *)self)->device);
}

static PyObject *stream_get_closed(PyObject *self, void *closure) {
    (void)closure;
    return PyBool_FromLong(((struct stream_object *)self)->is_closed);
}

static PyMethodDef methods[] = {
    {"synchronize", stream_synchronize, METH_NOARGS,
     "synchronize($self)\n--\n\nWaits until all work of the stream is done."},
    {"wait", stream_wait, METH_O,
     "wait($self, stream, /)\n--\n\nMakes this stream wait, on the GPU, for what another stream of the "
     "device has to "
     "do so far."},
    {"close", stream_close, METH_NOARGS,
     "close($self)\n--\n\nDestroys the stream. Raises BufferError while buffers use it."},
    {"__cuda_stream__", stream_protocol, METH_NOARGS,
     "__cuda_stream__($self)\n--\n\nReturns (0, handle), for other packages."},
    {"__enter__", stream_enter, METH_NOARGS, NULL},
    {"__exit__", stream_exit, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"handle", stream_get_handle, NULL, "The stream's handle, a number.", NULL},
    {"device", stream_get_device, NULL, "The ordinal of the device.", NULL},
    {"closed", stream_get_closed, NULL, "Whether close() was called.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(struct stream_object, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static const char docstring[] =
    "Stream(device=0, *, client=None)\n--\n\n"
    "A stream of a device that gpupool made. It is for programs that use no other package for the GPU, and "
    "for "
    "simulated GPUs.\n\nAs a context manager it waits for its work at the end, and closes.";

static PyType_Slot slots[] = {
    {Py_tp_new, stream_new},
    {Py_tp_dealloc, stream_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {Py_tp_members, members},
    {Py_tp_doc, (char *)docstring},
    {0, NULL},
};

PyType_Spec stream_spec = {"gpupool.Stream", sizeof(struct stream_object), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots};
