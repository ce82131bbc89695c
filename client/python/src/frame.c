/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/frame.h"

#include <stdlib.h>
#include <structmember.h>

#include "client/api/binding.h"
#include "client/include/gpupool/fence.h"
#include "client/python/src/arguments.h"
#include "client/python/src/array.h"
#include "client/python/src/error.h"
#include "client/python/src/numpy.h"

/* A frame that is sent. NULL in its place: the slot goes back. */
struct sending {
    uint64_t size_bytes;
    const void *metadata;
    uint64_t metadata_bytes;
};

static struct frame_object *frame_of(struct buffer_object *memory) {
    return (struct frame_object *)memory;
}

/* --- streams --- */

/* The device of a stream that uses the memory; -1: this process has no GPU. */
static int find_device(const struct frame_object *self, void *stream, int *ret_device) {
    *ret_device = self->memory.buffer.device;
    return self->memory.pool->pool.kind == GPUPOOL_POOL_DEVICE
               ? 0
               : gpupool_internal_stream_device(self->channel->client->handle, stream, ret_device);
}

/* Without the interpreter's lock. */
static int record(struct buffer_object *memory, void *stream) {
    struct frame_object *self = frame_of(memory);
    int device = -1;
    int r = stream == GPUPOOL_NO_STREAM ? 0 : find_device(self, stream, &device);

    if (r < 0 || device < 0)
        return r;
    for (uint32_t i = 0; i < self->n_further; i++)
        if (self->further[i].handle == stream && self->further[i].device == device)
            return 0;
    struct further_stream *longer = realloc(self->further, (self->n_further + 1) * sizeof *longer);
    if (longer == NULL)
        return GPUPOOL_E_NO_MEMORY;
    self->further = longer;
    self->further[self->n_further++] = (struct further_stream){stream, device};
    return 0;
}

/* Has a stream wait for another one. */
static int order(const struct frame_object *self, struct further_stream stream,
                 struct further_stream behind) {
    struct gpupool_client *client = self->channel->client->handle;
    struct gpupool_fence fence;
    int r = gpupool_fence_record(client, behind.device, &fence, behind.handle);

    return r < 0 ? r : gpupool_fence_wait(client, stream.device, &fence, stream.handle);
}

/* Has the stream that ends the frame come behind all further ones. *stream: where it is none, it becomes one of them.
 * The library finds the device of a stream of host memory by the thread's current one: a further stream that it would
 * mistake for another device's is waited for on the CPU. */
static int order_further(const struct frame_object *self, void **stream) {
    struct further_stream last = {*stream, -1};
    int r = last.handle == GPUPOOL_NO_STREAM ? 0 : find_device(self, last.handle, &last.device);

    for (uint32_t i = 0; r == 0 && i < self->n_further; i++) {
        struct further_stream further = self->further[i];
        int device;
        if (last.handle != GPUPOOL_NO_STREAM) {
            if (further.handle != last.handle || further.device != last.device)
                r = order(self, last, further);
            continue;
        }
        r = find_device(self, further.handle, &device);
        if (r == 0 && device == further.device)
            last = further;
        else if (r == 0)
            r = gpupool_stream_synchronize(self->channel->client->handle, further.device, further.handle);
    }
    *stream = last.handle;
    return r;
}

/* --- the end --- */

static int end_in_library(const struct frame_object *self, const struct sending *sending, void *stream) {
    struct gpupool_channel *channel = self->channel->handle;
    int r = self->n_further == 0 ? 0 : order_further(self, &stream);

    if (r < 0)
        return r;
    if (!self->channel->is_producer)
        return gpupool_channel_release(channel, &self->frame, stream);
    return sending == NULL ? gpupool_channel_return(channel, &self->frame, stream)
                           : gpupool_channel_send(channel, &self->frame, sending->size_bytes,
                                                  sending->metadata, sending->metadata_bytes, stream);
}

static void leave_list(struct frame_object *self) {
    if (self->previous != NULL)
        self->previous->next = self->next;
    else
        self->channel->frames = self->next;
    if (self->next != NULL)
        self->next->previous = self->previous;
    self->previous = self->next = NULL;
}

/* Ends a Frame without exports and calls, whose place is open. 0: it is closed, and has no streams any more, whose
 * objects the caller's own reference to the Frame outlives. */
static int end(struct frame_object *self, const struct sending *sending, void *stream) {
    struct channel_object *channel = self->channel;
    bool was_closed = self->memory.is_closed;
    int r;

    self->memory.is_closed = true; /* to other threads, from now on */
    channel->uses++;
    channel->client->uses++;
    if (stream == GPUPOOL_NO_STREAM && self->n_further == 0)
        r = end_in_library(self, sending, stream); /* which waits for nothing */
    else
        WITHOUT_LOCK(r = end_in_library(self, sending, stream));
    channel_unuse(channel);
    if (r < 0) {
        self->memory.is_closed = was_closed;
        return r;
    }
    self->is_closing = false;
    leave_list(self);
    buffer_drop_streams(&self->memory);
    return 0;
}

int frame_end(struct frame_object *self) {
    return end(self, NULL, self->memory.stream);
}

/* Ends a Frame that the program does not end itself. Failures are reported as destructors report them: the slot stays
 * with the place, until that is left. In a forked child it is the parent's. */
static void end_late(struct frame_object *self) {
    PyObject *type, *value, *traceback;

    if (self->channel->handle == NULL || self->channel->client->handle == NULL)
        return;
    PyErr_Fetch(&type, &value, &traceback);
    int r = frame_end(self);
    if (r < 0 && r != GPUPOOL_E_FORKED && r != GPUPOOL_E_DISCONNECTED) {
        error_raise(self->channel->client->state, r);
        PyErr_WriteUnraisable((PyObject *)Py_TYPE((PyObject *)self));
    }
    PyErr_Restore(type, value, traceback);
}

static void note_unused(struct buffer_object *memory) {
    if (frame_of(memory)->is_closing)
        end_late(frame_of(memory));
}

/* Whether the program has ended the Frame, or its place or client is closed. */
static bool is_closed(const struct frame_object *self) {
    return self->memory.is_closed || self->channel->client->handle == NULL;
}

/* --- making one --- */

static const struct buffer_kind loaned_kind = {.name = "frame",
                                               .closed = "the frame was sent or given back",
                                               .record = record,
                                               .note_unused = note_unused,
                                               .is_always_tracked = true};
static const struct buffer_kind received_kind = {.name = "frame",
                                                 .closed = "the frame was released",
                                                 .record = record,
                                                 .note_unused = note_unused,
                                                 .is_always_tracked = true};

struct frame_object *frame_new(struct channel_object *channel, struct stream stream) {
    struct module_state *state = channel->client->state;
    struct frame_object *self =
        state->frame_type == NULL ? NULL : PyObject_GC_New(struct frame_object, state->frame_type);

    if (self == NULL) {
        stream_drop(state, stream.object);
        if (PyErr_Occurred() == NULL)
            PyErr_SetString(PyExc_RuntimeError, "the module is being taken down");
        return NULL;
    }
    self->memory.kind = channel->is_producer ? &loaned_kind : &received_kind;
    self->memory.buffer = (struct gpupool_buffer){.device = channel->pool->pool.device,
                                                  .kind = channel->pool->pool.kind,
                                                  .pool = channel->pool->pool.id};
    self->memory.pool = (struct pool_object *)Py_NewRef((PyObject *)channel->pool);
    self->memory.stream = stream.handle;
    self->memory.stream_object = stream.object;
    self->memory.kept = self->memory.weakrefs = NULL;
    self->memory.turn = (struct turn){0};
    self->memory.exports = self->memory.uses = 0;
    self->memory.is_closed = true;
    self->memory.is_read_only = !channel->is_producer;
    self->memory.is_asleep = false;
    self->channel = (struct channel_object *)Py_NewRef((PyObject *)channel);
    self->previous = self->next = NULL;
    self->further = NULL;
    self->n_further = 0;
    self->is_closing = false;
    self->metadata = NULL;
    PyObject_GC_Track((PyObject *)self);
    return self;
}

void frame_open(struct frame_object *self, const struct gpupool_frame *frame) {
    self->frame = *frame;
    self->memory.buffer.data = frame->data;
    self->memory.buffer.size_bytes = frame->size_bytes;
    self->memory.buffer.capacity_bytes = self->channel->capacities.slot_bytes;
    self->next = self->channel->frames;
    if (self->next != NULL)
        self->next->previous = self;
    self->channel->frames = self;
    self->memory.is_closed = false;
}

static void frame_dealloc(PyObject *object) {
    struct frame_object *self = (struct frame_object *)object;
    PyTypeObject *type = Py_TYPE(object);

    PyObject_GC_UnTrack(object);
    if (self->memory.weakrefs != NULL)
        PyObject_ClearWeakRefs(object);
    if (!self->memory.is_closed)
        end_late(self);
    if (self->previous != NULL || self->next != NULL || self->channel->frames == self)
        leave_list(self);
    buffer_drop_streams(&self->memory);
    Py_XDECREF(self->metadata);
    free(self->further);
    Py_DECREF(self->memory.pool);
    Py_DECREF((PyObject *)self->channel);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static int frame_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(((struct frame_object *)object)->channel);
    return buffer_traverse(object, visit, arg);
}

/* --- methods --- */

/* Converts a stream, and looks whether the Frame can end then. The stream is held on success alone. -1 with an
 * exception. */
static int prepare_end(struct frame_object *self, PyObject *value, struct stream *ret_stream) {
    struct module_state *state = self->channel->client->state;

    if (stream_read(state, value, self->memory.stream, ret_stream) < 0)
        return -1;
    if (buffer_is_open(&self->memory) && !buffer_is_in_use(&self->memory))
        return 0;
    stream_drop(state, ret_stream->object);
    return -1;
}

static PyObject *frame_release(PyObject *object, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    static const struct signature signature = {"release", 0, 1, {"stream", NULL}};
    struct frame_object *self = (struct frame_object *)object;
    struct module_state *state = self->channel->client->state;
    PyObject *values[ARGUMENTS_MAX];
    struct stream stream;

    if (arguments_read(&signature, given, count, names, values) < 0)
        return NULL;
    if (is_closed(self))
        Py_RETURN_NONE;
    if (prepare_end(self, values[0], &stream) < 0)
        return NULL;
    int r = end(self, NULL, stream.handle);
    stream_drop(state, stream.object);
    return r < 0 ? error_raise(state, r) : Py_NewRef(Py_None);
}

static PyObject *send_with(struct frame_object *self, const struct sending *sending, PyObject *stream_value) {
    struct module_state *state = self->channel->client->state;
    struct stream stream;

    if (prepare_end(self, stream_value, &stream) < 0)
        return NULL;
    int r = end(self, sending, stream.handle);
    stream_drop(state, stream.object);
    return r < 0 ? error_raise(state, r) : Py_NewRef(Py_None);
}

static PyObject *frame_send(PyObject *object, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    static const struct signature signature = {"send", 0, 3, {"size", "metadata", "stream", NULL}};
    struct frame_object *self = (struct frame_object *)object;
    struct sending sending = {.size_bytes = self->memory.buffer.size_bytes};
    PyObject *values[ARGUMENTS_MAX], *done;
    Py_buffer view;

    if (arguments_read(&signature, given, count, names, values) < 0 ||
        (values[0] != NULL && values[0] != Py_None &&
         arguments_read_bytes(values[0], "size", &sending.size_bytes) < 0))
        return NULL;
    if (!self->channel->is_producer) {
        PyErr_SetString(PyExc_TypeError, "a frame that was received is not sent: loan one, and copy it");
        return NULL;
    }
    if (values[1] == NULL || values[1] == Py_None)
        return send_with(self, &sending, values[2]);
    if (PyObject_GetBuffer(values[1], &view, PyBUF_SIMPLE) < 0)
        return NULL;
    sending.metadata = view.buf;
    sending.metadata_bytes = (uint64_t)view.len;
    done = send_with(self, &sending, values[2]);
    PyBuffer_Release(&view);
    return done;
}

static PyObject *frame_array(PyObject *object, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    static const struct signature signature = {"array", 0, 2, {"shape", "dtype", NULL}};
    struct frame_object *self = (struct frame_object *)object;
    PyObject *values[ARGUMENTS_MAX];

    return arguments_read(&signature, given, count, names, values) < 0
               ? NULL
               : numpy_over(&self->memory, values[0], values[1]);
}

static PyObject *frame_enter(PyObject *self, PyObject *none) {
    (void)none;
    return buffer_is_open((struct buffer_object *)self) ? Py_NewRef(self) : NULL;
}

static PyObject *frame_exit(PyObject *object, PyObject *exception) {
    struct frame_object *self = (struct frame_object *)object;
    (void)exception;
    if (is_closed(self))
        Py_RETURN_NONE;
    if (self->memory.exports > 0) {
        self->memory.is_closed = self->is_closing = true;
        Py_RETURN_NONE;
    }
    return frame_release(object, NULL, 0, NULL);
}

static PyObject *frame_refuse_pickle(PyObject *self, PyObject *none) {
    (void)self;
    (void)none;
    PyErr_SetString(PyExc_TypeError, "a Frame is not pickled: other processes join the channel");
    return NULL;
}

/* --- attributes --- */

static PyObject *get_metadata(PyObject *object, void *closure) {
    struct frame_object *self = (struct frame_object *)object;
    (void)closure;
    if (self->metadata == NULL && (self->channel->is_producer || is_closed(self))) {
        error_raise_text(self->channel->client->state, GPUPOOL_E_STALE,
                         self->channel->is_producer ? "a frame has metadata when it is received"
                                                    : self->memory.kind->closed);
        return NULL;
    }
    if (self->metadata == NULL) {
        if (!buffer_is_open(&self->memory))
            return NULL;
        self->metadata =
            PyBytes_FromStringAndSize(self->frame.metadata, (Py_ssize_t)self->frame.metadata_bytes);
    }
    return Py_XNewRef(self->metadata);
}

static PyObject *get_sequence(PyObject *object, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLongLong(((struct frame_object *)object)->frame.sequence);
}

static PyObject *get_missed(PyObject *object, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLongLong(((struct frame_object *)object)->frame.missed);
}

static PyObject *get_again(PyObject *object, void *closure) {
    (void)closure;
    return PyBool_FromLong(((struct frame_object *)object)->frame.is_again != 0);
}

static PyObject *get_channel(PyObject *object, void *closure) {
    (void)closure;
    return Py_NewRef((PyObject *)((struct frame_object *)object)->channel);
}

static PyObject *frame_repr(PyObject *object) {
    struct frame_object *self = (struct frame_object *)object;
    const char *verb = self->channel->is_producer ? "loaned" : "received";

    if (is_closed(self))
        return PyUnicode_FromFormat("<gpupool.channels.Frame of %R, closed>", self->channel->name);
    return PyUnicode_FromFormat("<gpupool.channels.Frame of %R, %s, %llu bytes at %p>", self->channel->name,
                                verb, (unsigned long long)self->memory.buffer.size_bytes,
                                self->memory.buffer.data);
}

#define FAST(function) (PyCFunction)(void (*)(void))(function), METH_FASTCALL | METH_KEYWORDS

static PyMethodDef methods[] = {
    {"send", FAST(frame_send),
     "send($self, size=None, metadata=b\"\", stream=None)\n--\n\nSends a frame that was loaned: its first "
     "size "
     "bytes; None: the whole slot.\n\nstream: behind whose work it is complete; None: the one that it was "
     "loaned "
     "for. Raises BufferError while an array or a memoryview uses the memory."},
    {"release", FAST(frame_release),
     "release($self, stream=None)\n--\n\nGives the slot back behind the work of a stream; None: the one that "
     "it "
     "was received or loaned for. A loaned frame is not sent then. A frame that is closed stays "
     "so.\n\nRaises "
     "BufferError while an array or a memoryview uses the memory."},
    {"array", FAST(frame_array),
     "array($self, shape=None, dtype=\"uint8\")\n--\n\nReturns an array of NumPy over the memory, which "
     "keeps the "
     "frame.\n\nshape: an integer or a tuple; one of its numbers may be -1. None: all elements that there "
     "are."},
    {"view", FAST(array_view),
     "view($self, shape=None, dtype=\"uint8\", offset=0)\n--\n\nReturns an Array over the memory, from an "
     "offset "
     "in bytes on."},
    {"record_stream", buffer_record_stream, METH_O,
     "record_stream($self, stream, /)\n--\n\nSays that a further stream uses the memory: the frame ends "
     "behind "
     "its work, too."},
    {"__dlpack__", FAST(buffer_dlpack),
     "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\nThe memory as a "
     "DLPack capsule of bytes."},
    {"__array__", FAST(array_to_numpy),
     "__array__($self, dtype=None, copy=None)\n--\n\nThe memory as an array of NumPy."},
    {"__dlpack_device__", buffer_dlpack_device, METH_NOARGS,
     "__dlpack_device__($self)\n--\n\nDLPack's (device type, device)."},
    {"__reduce__", frame_refuse_pickle, METH_NOARGS, NULL},
    {"__copy__", buffer_refuse_copy, METH_NOARGS, NULL},
    {"__deepcopy__", buffer_refuse_copy, METH_O, NULL},
    {"__enter__", frame_enter, METH_NOARGS, NULL},
    {"__exit__", frame_exit, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"ptr", buffer_get_ptr, NULL, "The address, of the device or the host.", NULL},
    {"nbytes", buffer_get_nbytes, NULL, "The size of the frame; of a loaned one: of the slot.", NULL},
    {"capacity", buffer_get_capacity, NULL, "The size of the slot.", NULL},
    {"device", buffer_get_of_pool, NULL, "The device's ordinal. None: host memory.", "device"},
    {"kind", buffer_get_of_pool, NULL, "\"device\" or \"host\".", "kind"},
    {"pool", buffer_get_pool, NULL, "The Pool.", NULL},
    {"stream", buffer_get_stream, NULL, "The stream that it was loaned or received for.", NULL},
    {"closed", buffer_get_closed, NULL, "Whether it was sent, released or given back.", NULL},
    {"read_only", buffer_get_read_only, NULL, "Whether it was received.", NULL},
    {"metadata", get_metadata, NULL, "Bytes that came with a frame that was received.", NULL},
    {"sequence", get_sequence, NULL, "The number of a frame that was received: 1, 2, …", NULL},
    {"missed", get_missed, NULL, "How many frames before it were dropped, since the one received before.",
     NULL},
    {"again", get_again, NULL, "Whether a process before received it, and died before it released it.", NULL},
    {"channel", get_channel, NULL, "The Producer or the Consumer.", NULL},
    {"__cuda_array_interface__", buffer_get_cuda_interface, NULL, "Version 3, for memory of CUDA alone.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(struct frame_object, memory.weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static const char docstring[] =
    "A slot of a channel: loaned, to be written and sent, or received, to be read and released.\n\n"
    "It goes back by release(), at the end of a with statement, or when the object dies. Arrays over it keep "
    "it. "
    "Host memory has the buffer protocol; device memory has DLPack and __cuda_array_interface__.";

static PyType_Slot slots[] = {
    {Py_tp_dealloc, frame_dealloc},
    {Py_tp_traverse, frame_traverse},
    {Py_tp_repr, frame_repr},
    {Py_bf_getbuffer, buffer_get_memory},
    {Py_bf_releasebuffer, buffer_release_memory},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {Py_tp_members, members},
    {Py_tp_doc, (char *)docstring},
    {0, NULL},
};

PyType_Spec frame_spec = {"gpupool.channels.Frame", sizeof(struct frame_object), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
                              Py_TPFLAGS_DISALLOW_INSTANTIATION,
                          slots};
