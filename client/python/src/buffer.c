/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/buffer.h"

#include <structmember.h>

#include "client/api/binding.h"
#include "client/python/src/arguments.h"
#include "client/python/src/array.h"
#include "client/python/src/dlpack.h"
#include "client/python/src/error.h"
#include "client/python/src/share.h"
#include "client/python/src/sleep.h"

static int record_own(struct buffer_object *self, void *stream) {
    return gpupool_record_stream(self->pool->client->handle, &self->buffer, stream);
}

static const struct buffer_kind own_kind = {
    .name = "buffer", .closed = "the buffer is closed", .record = record_own};

struct buffer_object *buffer_new(struct pool_object *pool, struct stream stream) {
    struct module_state *state = pool->client->state;
    struct buffer_object *self =
        state->buffer_type == NULL ? NULL : PyObject_GC_New(struct buffer_object, state->buffer_type);
    if (self == NULL) {
        stream_drop(state, stream.object);
        if (PyErr_Occurred() == NULL)
            PyErr_SetString(PyExc_RuntimeError, "the module is being taken down");
        return NULL;
    }
    self->kind = &own_kind;
    self->pool = (struct pool_object *)Py_NewRef((PyObject *)pool);
    self->stream = stream.handle;
    self->stream_object = stream.object;
    self->kept = self->weakrefs = NULL;
    self->turn = (struct turn){0};
    self->exports = self->uses = 0;
    self->is_closed = true;
    self->is_read_only = self->is_asleep = false;
    if (stream.object != NULL) {
        PyObject_GC_Track((PyObject *)self);
    }
    return self;
}

void buffer_set_open(struct buffer_object *self, bool is_open) {
    self->is_closed = !is_open;
}

bool buffer_is_open(const struct buffer_object *self) {
    struct client_object *client = self->pool->client;
    int r;

    if (self->is_closed) {
        error_raise_text(client->state, GPUPOOL_E_STALE, self->kind->closed);
        return false;
    }
    if (!client_is_open(client))
        return false;
    r = gpupool_internal_check_process(client->handle);
    if (r < 0)
        error_raise(client->state, r);
    return r == 0;
}

bool buffer_use(struct buffer_object *self) {
    if (!buffer_is_open(self))
        return false;
    self->uses++;
    self->pool->client->uses++;
    return true;
}

bool buffer_is_awake(const struct buffer_object *self) {
    if (self->is_asleep)
        error_raise_text(self->pool->client->state, GPUPOOL_E_INVALID, "the buffer sleeps: wake() it before");
    return !self->is_asleep;
}

bool buffer_use_contents(struct buffer_object *self) {
    if (!buffer_use(self))
        return false;
    if (buffer_is_awake(self))
        return true;
    buffer_unuse(self);
    return false;
}

void buffer_unuse(struct buffer_object *self) {
    self->uses--;
    client_unuse(self->pool->client);
}

bool buffer_begin(struct buffer_object *self) {
    if (!buffer_use(self))
        return false;
    if (turn_take(&self->turn) == 0)
        return true;
    buffer_unuse(self);
    return false;
}

void buffer_end(struct buffer_object *self) {
    turn_pass(&self->turn);
    buffer_unuse(self);
}

bool buffer_is_on_host(const struct buffer_object *self) {
    return self->pool->pool.kind == GPUPOOL_POOL_HOST ||
           gpupool_gpu_kind(self->pool->client->handle) == GPUPOOL_GPU_SIM;
}

void buffer_export(struct buffer_object *self) {
    self->exports++;
    self->pool->client->exports++;
}

void buffer_end_export(struct buffer_object *self) {
    self->exports--;
    self->pool->client->exports--;
    if (self->exports == 0 && self->kind->note_unused != NULL)
        self->kind->note_unused(self);
}

int buffer_settle(struct buffer_object *self) {
    struct client_object *client = self->pool->client;
    int r;

    if (self->pool->pool.kind == GPUPOOL_POOL_HOST || self->stream == GPUPOOL_NO_STREAM)
        return 0;
    WITHOUT_LOCK(r = gpupool_stream_synchronize(client->handle, self->buffer.device, self->stream));
    if (r < 0)
        error_raise(client->state, r);
    return r < 0 ? -1 : 0;
}

/* Keeps the object of a stream until the release. list: becomes the buffer's where it has none. */
static int keep_stream(struct buffer_object *self, PyObject *object, PyObject **list) {
    if (self->kept == NULL) {
        if (self->stream_object == NULL && !self->kind->is_always_tracked)
            PyObject_GC_Track((PyObject *)self);
        self->kept = *list;
        *list = NULL;
    }
    if (PyList_Append(self->kept, object) < 0)
        return -1;
    Py_XDECREF(stream_hold(self->pool->client->state, object)); /* the list keeps it */
    return 0;
}

int buffer_record(struct buffer_object *self, struct stream stream) {
    const struct client_object *client = self->pool->client;
    PyObject *list = stream.object == NULL ? NULL : PyList_New(0); /* may run code of the program */
    int r = 0;

    if ((stream.object != NULL && list == NULL) || !buffer_begin(self)) {
        Py_XDECREF(list);
        return -1;
    }
    bool is_kept = stream.object == NULL || keep_stream(self, stream.object, &list) == 0;
    if (is_kept)
        WITHOUT_LOCK(r = self->kind->record(self, stream.handle));
    buffer_end(self);
    Py_XDECREF(list);
    if (r < 0)
        error_raise(client->state, r);
    return r < 0 || !is_kept ? -1 : 0;
}

/* --- release --- */

void buffer_drop_streams(struct buffer_object *self) {
    const struct module_state *state = self->pool->client->state;
    PyObject *stream = self->stream_object, *kept = self->kept;

    self->stream_object = self->kept = NULL;
    if ((stream != NULL || kept != NULL) && !self->kind->is_always_tracked)
        PyObject_GC_UnTrack((PyObject *)self);
    stream_drop(state, stream);
    if (kept == NULL)
        return;
    for (Py_ssize_t i = 0; i < PyList_Size(kept); i++)
        stream_drop(state, Py_NewRef(PyList_GetItem(kept, i)));
    Py_DECREF(kept);
}

/* Releases an open buffer. 0, or what the library says: then it stays open. */
static int release(struct buffer_object *self, void *stream) {
    struct client_object *client = self->pool->client;
    int r = 0;

    buffer_set_open(self, false); /* to other threads, from now on */
    if (gpupool_internal_release_hit(client->handle, &self->buffer, stream))
        return 0;
    client->uses++;
    WITHOUT_LOCK(r = gpupool_release(client->handle, &self->buffer, stream));
    client_unuse(client);
    if (r < 0)
        buffer_set_open(self, true);
    return r;
}

static bool is_closed(const struct buffer_object *self) {
    return self->is_closed || self->pool->client->handle == NULL;
}

bool buffer_is_in_use(const struct buffer_object *self) {
    if (self->exports > 0)
        PyErr_Format(PyExc_BufferError, "the %s has %u %s, such as arrays and memoryviews", self->kind->name,
                     self->exports, self->exports == 1 ? "export" : "exports");
    else if (self->uses > 0)
        PyErr_Format(PyExc_BufferError, "another thread has a call about the %s under way", self->kind->name);
    return self->exports > 0 || self->uses > 0;
}

static PyObject *buffer_close(PyObject *object, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    static const struct signature signature = {"close", 0, 1, {"stream", NULL}};
    struct buffer_object *self = (struct buffer_object *)object;
    struct module_state *state = self->pool->client->state;
    PyObject *values[ARGUMENTS_MAX];
    struct stream stream;
    int r = 0;

    if (arguments_read(&signature, given, count, names, values) < 0)
        return NULL;
    if (is_closed(self))
        Py_RETURN_NONE;
    if (stream_read(state, values[0], self->stream, &stream) < 0)
        return NULL;
    if (is_closed(self)) /* by the stream's code, or by another thread meanwhile */
        ;
    else if (buffer_is_in_use(self))
        r = -1;
    else if ((r = release(self, stream.handle)) < 0)
        error_raise(state, r);
    else
        buffer_drop_streams(self);
    stream_drop(state, stream.object);
    return r < 0 ? NULL : Py_NewRef(Py_None);
}

/* Releases a buffer that dies. The memory of a forked child's parent is not the child's to release, and a
 * daemon that is gone has nothing to be told. Other failures are reported as destructors report them. */
static void release_dying(struct buffer_object *self) {
    PyObject *type, *value, *traceback;
    int r = release(self, self->stream);

    if (r == 0 || r == GPUPOOL_E_FORKED || r == GPUPOOL_E_DISCONNECTED)
        return;
    PyErr_Fetch(&type, &value, &traceback);
    error_raise(self->pool->client->state, r);
    PyErr_WriteUnraisable((PyObject *)Py_TYPE((PyObject *)self));
    PyErr_Restore(type, value, traceback);
}

static void buffer_dealloc(PyObject *object) {
    struct buffer_object *self = (struct buffer_object *)object;
    PyTypeObject *type = Py_TYPE(object);

    PyObject_GC_UnTrack(object);
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs(object);
    self->pool->client->exports -= self->exports; /* of an array that has no other way to say that it ended */
    if (!self->is_closed && self->pool->client->handle != NULL)
        release_dying(self);
    buffer_set_open(self, false);
    buffer_drop_streams(self);
    Py_DECREF(self->pool);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

int buffer_traverse(PyObject *object, visitproc visit, void *arg) {
    struct buffer_object *self = (struct buffer_object *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->stream_object);
    Py_VISIT(self->kept);
    return 0;
}

/* --- streams, other processes --- */

PyObject *buffer_record_stream(PyObject *object, PyObject *value) {
    struct buffer_object *self = (struct buffer_object *)object;
    struct stream stream;

    if (stream_read(self->pool->client->state, value, pool_default_stream(self->pool), &stream) < 0)
        return NULL;
    int r = buffer_record(self, stream);
    stream_drop(self->pool->client->state, stream.object);
    return r < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *buffer_reuse(PyObject *object, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    static const struct signature signature = {"reuse", 0, 1, {"stream", NULL}};
    struct buffer_object *self = (struct buffer_object *)object;
    struct client_object *client = self->pool->client;
    PyObject *values[ARGUMENTS_MAX];
    struct stream stream;
    int r = -1;

    if (arguments_read(&signature, given, count, names, values) < 0 ||
        stream_read(client->state, values[0], self->stream, &stream) < 0)
        return NULL;
    if (buffer_begin(self)) {
        WITHOUT_LOCK(r = gpupool_reuse(client->handle, &self->buffer, stream.handle));
        buffer_end(self);
        if (r < 0)
            error_raise(client->state, r);
    }
    stream_drop(client->state, stream.object);
    return r < 0 ? NULL : Py_NewRef(Py_None);
}

static PyStructSequence_Field info_fields[] = {
    {"segment", "the driver's allocation that the buffer lies in, the first one of several"},
    {"offset_bytes", "where it lies in there"},
    {"holders", "leases on the memory, this one included"},
    {"shared", "whether a token was made for it"},
    {NULL, NULL},
};
PyStructSequence_Desc buffer_info_desc = {"gpupool.BufferInfo", "What the daemon says of a buffer.",
                                          info_fields, 4};

static PyObject *buffer_query(PyObject *object, PyObject *none) {
    struct buffer_object *self = (struct buffer_object *)object;
    struct client_object *client = self->pool->client;
    struct gpupool_buffer_info known;
    int r;

    (void)none;
    if (!buffer_begin(self))
        return NULL;
    UNTIL_SIGNAL(client, r = gpupool_query(client->handle, &self->buffer, &known));
    buffer_end(self);
    if (r < 0)
        return error_raise(client->state, r);
    PyObject *info = PyStructSequence_New(client->state->buffer_info_type);
    if (info == NULL)
        return NULL;
    PyStructSequence_SetItem(info, 0, PyLong_FromUnsignedLongLong(known.segment));
    PyStructSequence_SetItem(info, 1, PyLong_FromUnsignedLongLong(known.offset_bytes));
    PyStructSequence_SetItem(info, 2, PyLong_FromUnsignedLong(known.holders));
    PyStructSequence_SetItem(info, 3, PyBool_FromLong(known.shared != 0));
    if (PyErr_Occurred() != NULL)
        Py_CLEAR(info);
    return info;
}

/* --- Python's protocols --- */

int buffer_get_memory(PyObject *object, Py_buffer *view, int flags) {
    struct buffer_object *self = (struct buffer_object *)object;

    view->obj = NULL;
    if (!buffer_use_contents(self))
        return -1;
    int r = -1;
    if (!buffer_is_on_host(self))
        PyErr_Format(PyExc_BufferError, "the %s is memory of a GPU: use DLPack or __cuda_array_interface__",
                     self->kind->name);
    else if (buffer_settle(self) == 0)
        r = PyBuffer_FillInfo(view, object, self->buffer.data, (Py_ssize_t)self->buffer.size_bytes,
                              self->is_read_only, flags);
    if (r == 0)
        buffer_export(self);
    buffer_unuse(self);
    return r;
}

void buffer_release_memory(PyObject *object, Py_buffer *view) {
    (void)view;
    buffer_end_export((struct buffer_object *)object);
}

PyObject *buffer_dlpack(PyObject *object, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    struct buffer_object *self = (struct buffer_object *)object;
    Py_ssize_t extent = (Py_ssize_t)self->buffer.size_bytes;
    return dlpack_make(&(struct part){self, &element_byte, 0, 1, extent, &extent}, given, count, names);
}

PyObject *buffer_dlpack_device(PyObject *self, PyObject *none) {
    (void)none;
    return dlpack_device((struct buffer_object *)self);
}

PyObject *buffer_get_cuda_interface(PyObject *object, void *closure) {
    struct buffer_object *self = (struct buffer_object *)object;
    Py_ssize_t extent = (Py_ssize_t)self->buffer.size_bytes;
    (void)closure;
    return array_cuda_interface(&(struct part){self, &element_byte, 0, 1, extent, &extent});
}

static PyObject *buffer_enter(PyObject *self, PyObject *none) {
    (void)none;
    return buffer_is_open((struct buffer_object *)self) ? Py_NewRef(self) : NULL;
}

static PyObject *buffer_exit(PyObject *self, PyObject *exception) {
    (void)exception;
    return buffer_close(self, NULL, 0, NULL);
}

PyObject *buffer_refuse_copy(PyObject *self, PyObject *memo) {
    (void)memo;
    PyErr_Format(PyExc_TypeError, "a %s is not copied: copy the contents of an array over it",
                 ((struct buffer_object *)self)->kind->name);
    return NULL;
}

/* --- attributes --- */

PyObject *buffer_get_ptr(PyObject *object, void *closure) {
    struct buffer_object *self = (struct buffer_object *)object;
    (void)closure;
    return buffer_is_open(self) ? PyLong_FromVoidPtr(self->buffer.data) : NULL;
}

PyObject *buffer_get_nbytes(PyObject *object, void *closure) {
    struct buffer_object *self = (struct buffer_object *)object;
    (void)closure;
    return buffer_is_open(self) ? PyLong_FromUnsignedLongLong(self->buffer.size_bytes) : NULL;
}

PyObject *buffer_get_capacity(PyObject *object, void *closure) {
    struct buffer_object *self = (struct buffer_object *)object;
    (void)closure;
    return buffer_is_open(self) ? PyLong_FromUnsignedLongLong(self->buffer.capacity_bytes) : NULL;
}

PyObject *buffer_get_of_pool(PyObject *object, void *name) {
    return PyObject_GetAttrString((PyObject *)((struct buffer_object *)object)->pool, name);
}

PyObject *buffer_get_pool(PyObject *self, void *closure) {
    (void)closure;
    return Py_NewRef((PyObject *)((struct buffer_object *)self)->pool);
}

PyObject *buffer_get_stream(PyObject *object, void *closure) {
    struct buffer_object *self = (struct buffer_object *)object;
    (void)closure;
    return self->stream_object != NULL ? Py_NewRef(self->stream_object) : stream_number(self->stream);
}

PyObject *buffer_get_closed(PyObject *object, void *closure) {
    struct buffer_object *self = (struct buffer_object *)object;
    (void)closure;
    return PyBool_FromLong(is_closed(self));
}

PyObject *buffer_get_read_only(PyObject *self, void *closure) {
    (void)closure;
    return PyBool_FromLong(((struct buffer_object *)self)->is_read_only);
}

static PyObject *buffer_repr(PyObject *object) {
    struct buffer_object *self = (struct buffer_object *)object;
    const char *kind = self->pool->pool.kind == GPUPOOL_POOL_HOST ? "host" : "device";
    if (is_closed(self))
        return PyUnicode_FromFormat("<gpupool.Buffer of %s memory, closed>", kind);
    return PyUnicode_FromFormat("<gpupool.Buffer of %llu bytes of %s memory at %p>",
                                (unsigned long long)self->buffer.size_bytes, kind, self->buffer.data);
}

#define FAST(function) (PyCFunction)(void (*)(void))(function), METH_FASTCALL | METH_KEYWORDS

static PyMethodDef methods[] = {
    {"close", FAST(buffer_close),
     "close($self, stream=None)\n--\n\nGives the memory back, behind the work of a stream; None: of the "
     "buffer's own. A "
     "closed buffer stays closed.\n\nRaises BufferError while a memoryview, an array or a DLPack capsule "
     "uses the "
     "memory."},
    {"view", FAST(array_view),
     "view($self, shape=None, dtype=\"uint8\", offset=0)\n--\n\nReturns an Array over the memory, from an "
     "offset in "
     "bytes on.\n\nshape: an integer or a tuple; one of its numbers may be -1. None: all elements that there "
     "are."},
    {"share", FAST(share_buffer),
     "share($self, stream=None)\n--\n\nReturns a token, by which other processes of the user attach to the "
     "buffer.\n\n"
     "stream: the one that writes the contents; processes that attach wait for it, on the GPU. None: the "
     "buffer's own.\n"
     "The token is good while any process holds the buffer. It is a secret: each process of the user that "
     "has it can "
     "attach."},
    {"send", FAST(share_send),
     "send($self, stream=None, *, takers=1, lifetime=600)\n--\n\nReturns a token that holds the memory until "
     "takers calls of "
     "attach() have it, or lifetime seconds have passed.\n\nThe buffer can be closed at once, as if it had "
     "been given away. "
     "stream: as for share()."},
    {"reuse", FAST(buffer_reuse),
     "reuse($self, stream=None)\n--\n\nHas a stream, the one that writes next, wait for the processes that "
     "attached "
     "and have released the buffer. None: the buffer's own; without a stream the call waits.\n\nRaises "
     "SharedError "
     "while others still have it."},
    {"record_stream", buffer_record_stream, METH_O,
     "record_stream($self, stream, /)\n--\n\nSays that a further stream uses the buffer. The memory is used "
     "again when "
     "the work of all its streams is done."},
    {"sleep", FAST(sleep_buffer),
     "sleep($self, keep=\"gpu\", stream=None)\n--\n\nUnmaps the memory of a buffer that was acquired or "
     "attached with "
     "can_sleep. The addresses stay its own.\n\nkeep: \"gpu\": the contents stay on the GPU; \"host\": they "
     "are copied to "
     "pinned host memory, and the GPU's memory goes back to the pool; \"nothing\": they are "
     "dropped.\nstream: the one with "
     "the last work on the buffer, which the call waits for. None: the buffer's own.\n\nArrays and tensors "
     "over the buffer "
     "stay valid, but nothing may use them until wake(): such an access ends the CUDA context. Raises "
     "SharedError for another "
     "keep than \"gpu\" if the buffer was shared or attached."},
    {"wake", FAST(sleep_wake),
     "wake($self, stream=None, timeout=None, *, zero=False)\n--\n\nMaps memory at the buffer's addresses "
     "again, and brings "
     "the contents in the order of the stream; None: of the buffer's own.\n\ntimeout: seconds to wait for "
     "room; None: the "
     "client's alloc_timeout; math.inf: no limit. Handlers of signals run after the call.\nzero: a buffer "
     "whose contents were "
     "dropped is zeroed.\n\nRaises ExhaustedError when there was no room until the timeout: the buffer "
     "sleeps still, with what "
     "it kept."},
    {"query", buffer_query, METH_NOARGS,
     "query($self)\n--\n\nAsks the daemon about the buffer, and returns a named tuple (BufferInfo)."},
    {"__dlpack__", FAST(buffer_dlpack),
     "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\nThe memory as a "
     "DLPack "
     "capsule of bytes."},
    {"__array__", FAST(array_to_numpy),
     "__array__($self, dtype=None, copy=None)\n--\n\nThe memory as an array of NumPy. Says why not, where "
     "NumPy cannot "
     "use it."},
    {"__dlpack_device__", buffer_dlpack_device, METH_NOARGS,
     "__dlpack_device__($self)\n--\n\nDLPack's (device type, device)."},
    {"__reduce__", share_reduce, METH_NOARGS,
     "__reduce__($self)\n--\n\nPickles a token of send(): the process that unpickles it attaches. It serves "
     "once."},
    {"__copy__", buffer_refuse_copy, METH_NOARGS, NULL},
    {"__deepcopy__", buffer_refuse_copy, METH_O, NULL},
    {"__enter__", buffer_enter, METH_NOARGS, NULL},
    {"__exit__", buffer_exit, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"ptr", buffer_get_ptr, NULL, "The address, of the device or the host.", NULL},
    {"nbytes", buffer_get_nbytes, NULL, "The size, as asked for.", NULL},
    {"capacity", buffer_get_capacity, NULL, "How many bytes there are in fact.", NULL},
    {"device", buffer_get_of_pool, NULL, "The device's ordinal. None: host memory.", "device"},
    {"kind", buffer_get_of_pool, NULL, "\"device\" or \"host\".", "kind"},
    {"pool", buffer_get_pool, NULL, "The Pool.", NULL},
    {"stream", buffer_get_stream, NULL,
     "The stream on which the memory goes back: the object that was passed, or a number (1: the legacy "
     "default stream, "
     "2: the per-thread one, -1: none).",
     NULL},
    {"closed", buffer_get_closed, NULL, "Whether the memory was given back.", NULL},
    {"asleep", sleep_get_asleep, NULL, "Whether sleep() was called, and wake() was not.", NULL},
    {"read_only", buffer_get_read_only, NULL, "Whether it was attached for reading alone.", NULL},
    {"__cuda_array_interface__", buffer_get_cuda_interface, NULL, "Version 3, for memory of CUDA alone.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(struct buffer_object, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static const char docstring[] =
    "Memory of a pool on loan. Pool.acquire() and attach() return buffers.\n\n"
    "It goes back by close(), at the end of a with statement, or when the object dies. Host memory has the "
    "buffer "
    "protocol, so memoryview(buffer) and numpy.frombuffer(buffer, dtype) work; device memory has DLPack and "
    "__cuda_array_interface__.";

static PyType_Slot slots[] = {
    {Py_tp_dealloc, buffer_dealloc},
    {Py_tp_traverse, buffer_traverse},
    {Py_tp_repr, buffer_repr},
    {Py_bf_getbuffer, buffer_get_memory},
    {Py_bf_releasebuffer, buffer_release_memory},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {Py_tp_members, members},
    {Py_tp_doc, (char *)docstring},
    {0, NULL},
};

PyType_Spec buffer_spec = {"gpupool.Buffer", sizeof(struct buffer_object), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
                               Py_TPFLAGS_DISALLOW_INSTANTIATION,
                           slots};
