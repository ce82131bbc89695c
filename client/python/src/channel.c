/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/channel.h"

#include <string.h>

#include "base/clock.h"
#include "client/api/binding.h"
#include "client/python/src/arguments.h"
#include "client/python/src/channel_wait.h"
#include "client/python/src/error.h"
#include "client/python/src/frame.h"

/* --- making a channel --- */

static int read_small(PyObject *value, const char *name, uint32_t *ret_number) {
    int number = 0;

    if (arguments_read_int(value, name, &number) < 0)
        return -1;
    if (number < 0) {
        PyErr_Format(PyExc_ValueError, "%s is %d: it must be 0 or more", name, number);
        return -1;
    }
    *ret_number = (uint32_t)number;
    return 0;
}

PyObject *channel_make(PyObject *module, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    static const struct signature signature = {
        "_make_channel",
        8,
        8,
        {"name", "pool", "slot_bytes", "slots", "consumers", "metadata_bytes", "policy", "keep", NULL}};
    struct module_state *state = PyModule_GetState(module);
    struct gpupool_channel_options options = GPUPOOL_CHANNEL_OPTIONS_INIT;
    PyObject *values[ARGUMENTS_MAX];
    int keep, r;

    if (arguments_read(&signature, given, count, names, values) < 0 ||
        arguments_read_bytes(values[2], "slot_bytes", &options.slot_bytes) < 0 ||
        read_small(values[3], "slots", &options.slots) < 0 ||
        read_small(values[4], "consumers", &options.consumers) < 0 ||
        read_small(values[5], "metadata_bytes", &options.metadata_bytes) < 0 ||
        read_small(values[6], "policy", &options.policy) < 0 || (keep = PyObject_IsTrue(values[7])) < 0)
        return NULL;
    if (Py_TYPE(values[1]) != state->pool_type)
        return PyErr_Format(PyExc_TypeError, "pool must be a gpupool.Pool, not %R",
                            (PyObject *)Py_TYPE(values[1]));
    const char *name = PyUnicode_AsUTF8AndSize(values[0], NULL);
    struct pool_object *pool = (struct pool_object *)values[1];
    if (name == NULL || !client_use(pool->client))
        return NULL;
    options.pool = pool->pool.id;
    options.flags = keep != 0 ? GPUPOOL_CHANNEL_KEEP : 0;
    UNTIL_SIGNAL(pool->client, r = gpupool_channel_make(pool->client->handle, name, &options));
    client_unuse(pool->client);
    return r < 0 ? error_raise_of_pool(state, r, &pool->pool) : Py_NewRef(Py_None);
}

/* --- use --- */

static bool is_open(const struct channel_object *self) {
    if (self->handle == NULL || self->is_leaving) {
        error_raise_text(self->client->state, GPUPOOL_E_STALE, "the place in the channel is closed");
        return false;
    }
    if (!client_is_open(self->client))
        return false;
    int r = gpupool_internal_check_process(self->client->handle);
    if (r < 0)
        error_raise(self->client->state, r);
    return r == 0;
}

bool channel_use(struct channel_object *self) {
    if (!is_open(self) || !client_use(self->client))
        return false;
    self->uses++;
    return true;
}

void channel_unuse(struct channel_object *self) {
    self->uses--;
    client_unuse(self->client);
}

/* --- joining --- */

/* The module's state by a type of this file, or one that inherits it. NULL with an exception. */
static struct module_state *state_of_type(PyTypeObject *type) {
    for (PyTypeObject *base = type; base != NULL; base = PyType_GetSlot(base, Py_tp_base)) {
        PyObject *module = PyType_GetModule(base);
        if (module != NULL)
            return PyModule_GetState(module);
        PyErr_Clear();
    }
    PyErr_SetString(PyExc_TypeError, "the type is none of gpupool.channels");
    return NULL;
}

/* Waits until the place is taken. -1 with an exception. */
static int join(struct channel_object *self, const char *name, uint32_t place, uint64_t timeout_ns) {
    uint64_t deadline_ns = clock_deadline_ns(clock_now_ns(), timeout_ns);
    struct gpupool_channel *handle = NULL;
    struct gpupool_channel_info info;
    int r;

    do {
        uint64_t wait_ns = channel_slice_ns(deadline_ns);
        WITHOUT_LOCK(r = gpupool_channel_join(self->client->handle, name, place, wait_ns, &handle));
    } while (r == GPUPOOL_E_NO_NAME && channel_goes_on(deadline_ns));
    if (r < 0 && PyErr_Occurred() == NULL)
        error_raise(self->client->state, r);
    if (r < 0)
        return -1;
    self->handle = handle;
    r = gpupool_channel_look(handle, &info);
    if (r < 0) {
        error_raise(self->client->state, r);
        return -1;
    }
    self->capacities = info.options;
    self->place = info.place;
    self->pool = (struct pool_object *)pool_new(self->client, info.options.pool);
    return self->pool == NULL ? -1 : 0;
}

/* A new object of a type, which is joined. NULL with an exception. */
static PyObject *join_new(PyTypeObject *type, PyObject *name, uint32_t place, uint64_t timeout_ns,
                          PyObject *client_argument) {
    struct module_state *state = state_of_type(type);
    const char *text = state == NULL ? NULL : PyUnicode_AsUTF8AndSize(name, NULL);
    struct client_object *client = text == NULL ? NULL : client_read_argument(state, client_argument);

    if (client == NULL)
        return NULL;
    struct channel_object *self =
        (struct channel_object *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL) {
        Py_DECREF((PyObject *)client);
        return NULL;
    }
    memset((char *)self + sizeof self->ob_base, 0, sizeof *self - sizeof self->ob_base);
    self->client = client;
    self->name = Py_NewRef(name);
    self->is_producer = place == GPUPOOL_CHANNEL_PRODUCER;
    if (client_use(client)) {
        int r = join(self, text, place, timeout_ns);
        client_unuse(client);
        if (r == 0)
            return (PyObject *)self;
    }
    Py_DECREF((PyObject *)self);
    return NULL;
}

static PyObject *producer_new(PyTypeObject *type, PyObject *positional, PyObject *named) {
    static char *names[] = {"name", "timeout", "client", NULL};
    PyObject *name, *timeout = NULL, *client = NULL;
    uint64_t timeout_ns;

    return !PyArg_ParseTupleAndKeywords(positional, named, "U|$OO:Producer", names, &name, &timeout,
                                        &client) ||
                   arguments_read_seconds(timeout, "timeout", GPUPOOL_FOREVER, &timeout_ns) < 0
               ? NULL
               : join_new(type, name, GPUPOOL_CHANNEL_PRODUCER, timeout_ns, client);
}

/* A consumer's number, from 1 on; None: any. -1 with an exception. */
static int read_place(PyObject *value, uint32_t *ret_place) {
    int place = 0;

    *ret_place = GPUPOOL_CHANNEL_ANY_CONSUMER;
    if (value == NULL || value == Py_None)
        return 0;
    if (arguments_read_int(value, "place", &place) < 0)
        return -1;
    if (place < 1) {
        PyErr_Format(PyExc_ValueError, "place is %d: those of consumers are 1 and up", place);
        return -1;
    }
    *ret_place = (uint32_t)place;
    return 0;
}

static PyObject *consumer_new(PyTypeObject *type, PyObject *positional, PyObject *named) {
    static char *names[] = {"name", "place", "timeout", "wait_for_producer", "client", NULL};
    PyObject *name, *place_value = NULL, *timeout = NULL, *client = NULL;
    uint64_t timeout_ns;
    uint32_t place;
    int waits = 0;

    if (!PyArg_ParseTupleAndKeywords(positional, named, "U|O$OpO:Consumer", names, &name, &place_value,
                                     &timeout, &waits, &client) ||
        read_place(place_value, &place) < 0 ||
        arguments_read_seconds(timeout, "timeout", GPUPOOL_FOREVER, &timeout_ns) < 0)
        return NULL;
    PyObject *self = join_new(type, name, place, timeout_ns, client);
    if (self != NULL)
        ((struct channel_object *)self)->waits_for_producer = waits != 0;
    return self;
}

/* --- leaving --- */

/* Whether nothing but this call uses the place. False with BufferError. */
static bool may_close(const struct channel_object *self) {
    uint32_t exports = 0;
    bool is_used = self->uses > 0;

    for (const struct frame_object *frame = self->frames; frame != NULL; frame = frame->next) {
        exports += frame->memory.exports;
        is_used = is_used || frame->memory.uses > 0;
    }
    if (exports > 0)
        PyErr_Format(PyExc_BufferError, "the frames have %u %s, such as arrays and memoryviews", exports,
                     exports == 1 ? "export" : "exports");
    else if (is_used)
        PyErr_SetString(PyExc_BufferError,
                        "another thread has a call about the place or its frames under way");
    return exports == 0 && !is_used;
}

/* Leaves a place in the library. Its client may be closing, which takes the places along: the memory is freed
 * afterwards. 0, or an error of the library. */
static int leave_in_library(struct channel_object *self, struct gpupool_channel *handle) {
    bool is_closed = self->client->handle == NULL;
    int r;

    if (is_closed && turn_take(&self->client->closing) < 0) { /* the process ends */
        PyErr_Clear();
        return 0;
    }
    self->client->uses++;
    WITHOUT_LOCK(r = gpupool_channel_leave(handle));
    client_unuse(self->client);
    if (is_closed)
        turn_pass(&self->client->closing);
    return r;
}

/* Leaves a place that is not in use. 0, or an error of the library: it stays open, with the frames that are left. */
static int leave(struct channel_object *self) {
    struct gpupool_channel *handle = self->handle;
    int r = 0;

    self->is_leaving = true;
    while (r == 0 && self->frames != NULL && self->client->handle != NULL) {
        struct frame_object *frame = (struct frame_object *)Py_NewRef((PyObject *)self->frames);
        r = frame_end(frame);
        Py_DECREF((PyObject *)frame);
    }
    if (r == 0) {
        self->handle = NULL;
        r = leave_in_library(self, handle);
    }
    if (r < 0)
        self->handle = handle;
    self->is_leaving = false;
    return r;
}

static PyObject *channel_close(PyObject *object, PyObject *none) {
    struct channel_object *self = (struct channel_object *)object;
    (void)none;
    if (self->handle == NULL || self->is_leaving)
        Py_RETURN_NONE;
    if (!may_close(self))
        return NULL;
    int r = leave(self);
    return r < 0 ? error_raise(self->client->state, r) : Py_NewRef(Py_None);
}

/* Leaves the place of an object that dies. Its frames have died before. */
static void leave_dying(struct channel_object *self) {
    PyObject *type, *value, *traceback;

    PyErr_Fetch(&type, &value, &traceback);
    int r = leave(self);
    if (r < 0 && r != GPUPOOL_E_FORKED) {
        error_raise(self->client->state, r);
        PyErr_WriteUnraisable((PyObject *)Py_TYPE((PyObject *)self));
    }
    PyErr_Restore(type, value, traceback);
}

static void channel_dealloc(PyObject *object) {
    struct channel_object *self = (struct channel_object *)object;
    PyTypeObject *type = Py_TYPE(object);

    if (self->handle != NULL)
        leave_dying(self);
    Py_XDECREF(self->name);
    Py_XDECREF((PyObject *)self->pool);
    Py_XDECREF((PyObject *)self->client);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyObject *channel_enter(PyObject *self, PyObject *none) {
    (void)none;
    return is_open((struct channel_object *)self) ? Py_NewRef(self) : NULL;
}

/* Behind an exception, whose traceback may keep arrays, the place is left when the object dies. */
static PyObject *channel_exit(PyObject *self, PyObject *exception) {
    PyObject *error = PyTuple_GetItem(exception, 0);
    PyObject *done = error == NULL ? NULL : channel_close(self, NULL);

    if (done != NULL || error == NULL || error == Py_None || !PyErr_ExceptionMatches(PyExc_BufferError))
        return done;
    PyErr_Clear();
    Py_RETURN_NONE;
}

/* --- looking, attributes --- */

/* (sent, ((state, session, received), …), lost, lost_first, lost_last), the producer's place first. */
static PyObject *channel_describe(PyObject *object, PyObject *none) {
    struct channel_object *self = (struct channel_object *)object;
    struct gpupool_channel_info info;

    (void)none;
    if (!channel_use(self))
        return NULL;
    int r = gpupool_channel_look(self->handle, &info);
    channel_unuse(self);
    if (r < 0)
        return error_raise(self->client->state, r);
    PyObject *places = PyTuple_New((Py_ssize_t)info.options.consumers + 1);
    for (uint32_t i = 0; places != NULL && i <= info.options.consumers; i++) {
        PyObject *place =
            Py_BuildValue("(IKK)", (unsigned)info.places[i].state, (unsigned long long)info.places[i].session,
                          (unsigned long long)info.places[i].received);
        if (place == NULL)
            Py_CLEAR(places);
        else
            PyTuple_SetItem(places, (Py_ssize_t)i, place);
    }
    return places == NULL ? NULL : Py_BuildValue("(KNKKK)", (unsigned long long)info.sent, places,
                                            (unsigned long long)info.lost, (unsigned long long)info.lost_first,
                                            (unsigned long long)info.lost_last);
}

static PyObject *get_name(PyObject *object, void *closure) {
    (void)closure;
    return Py_NewRef(((struct channel_object *)object)->name);
}

static PyObject *get_place(PyObject *object, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLong(((struct channel_object *)object)->place);
}

static PyObject *get_pool(PyObject *object, void *closure) {
    (void)closure;
    return Py_NewRef((PyObject *)((struct channel_object *)object)->pool);
}

static PyObject *get_closed(PyObject *object, void *closure) {
    const struct channel_object *self = (struct channel_object *)object;
    (void)closure;
    return PyBool_FromLong(self->handle == NULL || self->client->handle == NULL);
}

static PyObject *get_slot_bytes(PyObject *object, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLongLong(((struct channel_object *)object)->capacities.slot_bytes);
}

static PyObject *get_slots(PyObject *object, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLong(((struct channel_object *)object)->capacities.slots);
}

static PyObject *get_consumers(PyObject *object, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLong(((struct channel_object *)object)->capacities.consumers);
}

static PyObject *get_metadata_bytes(PyObject *object, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLong(((struct channel_object *)object)->capacities.metadata_bytes);
}

static PyObject *get_policy(PyObject *object, void *closure) {
    static const char *const policies[] = {"", "wait", "drop_oldest", "fail"};
    uint32_t policy = ((struct channel_object *)object)->capacities.policy;
    (void)closure;
    return PyUnicode_FromString(policies[policy <= GPUPOOL_CHANNEL_FAIL ? policy : 0]);
}

static PyObject *channel_repr(PyObject *object) {
    const struct channel_object *self = (struct channel_object *)object;
    return PyUnicode_FromFormat("<%s of channel %R%s>",
                                self->is_producer ? "gpupool.channels.Producer" : "gpupool.channels.Consumer",
                                self->name, self->handle == NULL ? ", closed" : "");
}

#define FAST(function) (PyCFunction)(void (*)(void))(function), METH_FASTCALL | METH_KEYWORDS

#define METHODS_OF_BOTH                                                                                      \
    {"close", channel_close, METH_NOARGS,                                                                    \
     "close($self)\n--\n\nLeaves the place. Frames that are open go back, behind their streams; the call "   \
     "waits for "                                                                                            \
     "that work. Raises BufferError while an array uses a frame."},                                          \
        {"fileno", channel_fileno, METH_NOARGS,                                                              \
         "fileno($self)\n--\n\nReturns a descriptor to watch for reading. It becomes readable when a call "  \
         "that had "                                                                                         \
         "nothing may have something: make that call again, with timeout=0, until it has nothing."},         \
        {"_look", (PyCFunction)(void (*)(void))channel_poll, METH_FASTCALL,                                  \
         "_look(stream)\n--\n\nAs loan() or receive() with timeout=0. None: nothing is there, and "          \
         "something may come."},                                                                             \
        {"_describe", channel_describe, METH_NOARGS, "_describe()\n--\n\nFor gpupool.channels."},            \
        {"__enter__", channel_enter, METH_NOARGS, NULL}, {"__exit__", channel_exit, METH_VARARGS, NULL}, {   \
        NULL, NULL, 0, NULL                                                                                  \
    }

static PyMethodDef producer_methods[] = {
    {"loan", FAST(channel_loan),
     "loan($self, stream=None, timeout=None)\n--\n\nLoans a free slot, and returns a Frame to write and "
     "send.\n\n"
     "stream: the one that writes it, which waits, on the GPU, for the consumers' work on the slot; None: "
     "the "
     "legacy default stream, or none for host memory.\ntimeout: seconds to wait for a slot, with the policy "
     "\"wait\"; None: for ever. Raises ExhaustedError."},
    METHODS_OF_BOTH,
};

static PyMethodDef consumer_methods[] = {
    {"receive", FAST(channel_receive),
     "receive($self, stream=None, timeout=None)\n--\n\nReceives the next Frame.\n\nstream: the one that "
     "reads it, "
     "which waits, on the GPU, until it is written; None: the legacy default stream, or none for host "
     "memory.\n"
     "timeout: seconds; None: for ever. Raises TimedOutError; EndedError: none is left, and the producer has "
     "left; "
     "VacantError: none is left, and the producer died; LostError: the producer died before its GPU work on "
     "frames was done: look() tells their sequences. Those that a stream had received before have other contents than "
     "was meant; others are passed over. TimedOutError also says that a frame's GPU work was not over "
     "within the "
     "client's alloc_timeout: the next call receives that frame."},
    METHODS_OF_BOTH,
};

static PyGetSetDef properties[] = {
    {"name", get_name, NULL, "The channel's name.", NULL},
    {"place", get_place, NULL, "The number of the place: 0 of the producer, 1 and up of consumers.", NULL},
    {"pool", get_pool, NULL, "The Pool that the slots are memory of.", NULL},
    {"closed", get_closed, NULL, "Whether the place was left.", NULL},
    {"slot_bytes", get_slot_bytes, NULL, "The size of a slot: a multiple of 512.", NULL},
    {"slots", get_slots, NULL, "The number of slots.", NULL},
    {"consumers", get_consumers, NULL, "The number of places of consumers.", NULL},
    {"metadata_bytes", get_metadata_bytes, NULL, "The most metadata of a frame.", NULL},
    {"policy", get_policy, NULL, "\"wait\", \"drop_oldest\" or \"fail\".", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static const char producer_docstring[] =
    "_Producer(name, *, timeout=None, client=None)\n--\n\nThe base of gpupool.channels.Producer.";
static const char consumer_docstring[] =
    "_Consumer(name, place=None, *, timeout=None, wait_for_producer=False, client=None)\n--\n\n"
    "The base of gpupool.channels.Consumer.";

static PyType_Slot producer_slots[] = {
    {Py_tp_new, producer_new},
    {Py_tp_dealloc, channel_dealloc},
    {Py_tp_repr, channel_repr},
    {Py_tp_methods, producer_methods},
    {Py_tp_getset, properties},
    {Py_tp_doc, (char *)producer_docstring},
    {0, NULL},
};

static PyType_Slot consumer_slots[] = {
    {Py_tp_new, consumer_new},
    {Py_tp_dealloc, channel_dealloc},
    {Py_tp_repr, channel_repr},
    {Py_tp_methods, consumer_methods},
    {Py_tp_getset, properties},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, channel_next},
    {Py_tp_doc, (char *)consumer_docstring},
    {0, NULL},
};

PyType_Spec producer_spec = {"gpupool._gpupool._Producer", sizeof(struct channel_object), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
                             producer_slots};
PyType_Spec consumer_spec = {"gpupool._gpupool._Consumer", sizeof(struct channel_object), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
                             consumer_slots};
