/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/sleep.h"

#include <string.h>

#include "client/api/binding.h"
#include "client/python/src/arguments.h"
#include "client/python/src/error.h"
#include "client/python/src/waiting.h"

/* -1 with an exception. */
static int read_keep(PyObject *value, enum gpupool_keep *ret_keep) {
    static const char *const words[] = {
        [GPUPOOL_KEEP_NOTHING] = "nothing", [GPUPOOL_KEEP_ON_GPU] = "gpu", [GPUPOOL_KEEP_IN_HOST] = "host"};

    if (value == NULL) {
        *ret_keep = GPUPOOL_KEEP_ON_GPU;
        return 0;
    }
    const char *word = PyUnicode_Check(value) ? PyUnicode_AsUTF8AndSize(value, NULL) : NULL;
    for (size_t i = 0; word != NULL && i < sizeof words / sizeof words[0]; i++)
        if (strcmp(word, words[i]) == 0) {
            *ret_keep = (enum gpupool_keep)i;
            return 0;
        }
    if (PyErr_Occurred() == NULL)
        PyErr_Format(PyExc_ValueError, "keep must be \"gpu\", \"host\" or \"nothing\", and is %R", value);
    return -1;
}

/* is_asleep is set before the lock goes: calls of other threads find it from then on. An error can leave the
 * buffer asleep (gpupool.h), which the library knows: a wake of a buffer that is awake changes nothing. So
 * after DRIVER and DISCONNECTED a buffer counts as asleep. Returns 0, or an error of the library. */
static int fall_asleep(struct buffer_object *self, enum gpupool_keep keep, void *stream) {
    bool was_asleep = self->is_asleep;
    int r;

    self->is_asleep = true;
    WITHOUT_LOCK(r = gpupool_sleep(self->pool->client->handle, &self->buffer, keep, stream));
    if (r < 0 && r != GPUPOOL_E_DRIVER && r != GPUPOOL_E_DISCONNECTED)
        self->is_asleep = was_asleep;
    return r;
}

/* Whether no call of another thread uses the contents. False with BufferError. */
static bool has_no_calls(const struct buffer_object *self) {
    if (self->uses > 0)
        PyErr_Format(PyExc_BufferError, "another thread has a call about the %s under way", self->kind->name);
    return self->uses == 0;
}

PyObject *sleep_buffer(PyObject *object, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    static const struct signature signature = {"sleep", 0, 2, {"keep", "stream", NULL}};
    struct buffer_object *self = (struct buffer_object *)object;
    struct client_object *client = self->pool->client;
    PyObject *values[ARGUMENTS_MAX];
    enum gpupool_keep keep;
    struct stream stream;
    int r = -1;

    if (arguments_read(&signature, given, count, names, values) < 0 || read_keep(values[0], &keep) < 0 ||
        stream_read(client->state, values[1], self->stream, &stream) < 0)
        return NULL;
    if (has_no_calls(self) && buffer_begin(self)) {
        r = fall_asleep(self, keep, stream.handle);
        buffer_end(self);
        if (r < 0)
            error_raise(client->state, r);
    }
    stream_drop(client->state, stream.object);
    return r < 0 ? NULL : Py_NewRef(Py_None);
}

/* -1 with an exception. */
static int wake(struct buffer_object *self, void *stream, uint64_t timeout_ns, uint32_t flags) {
    struct client_object *client = self->pool->client;
    int r;

    if (!buffer_begin(self))
        return -1;
    if (timeout_ns == WAITING_AS_CLIENT)
        timeout_ns = gpupool_internal_alloc_timeout_ns(client->handle);
    WITHOUT_LOCK(r = gpupool_wake(client->handle, &self->buffer, stream, timeout_ns, flags));
    if (r == 0)
        self->is_asleep = false;
    buffer_end(self);
    if (r < 0)
        error_raise_of_pool(client->state, r, &self->pool->pool);
    return r < 0 ? -1 : 0;
}

/* The contents come on the stream of the call, so the memory goes back behind that stream too. */
PyObject *sleep_wake(PyObject *object, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    static const struct signature signature = {"wake", 0, 2, {"stream", "timeout", "zero", NULL}};
    struct buffer_object *self = (struct buffer_object *)object;
    struct module_state *state = self->pool->client->state;
    uint64_t timeout_ns = WAITING_AS_CLIENT;
    PyObject *values[ARGUMENTS_MAX];
    struct stream stream;
    int zero = 0;

    if (arguments_read(&signature, given, count, names, values) < 0 ||
        arguments_read_seconds(values[1], "timeout", WAITING_AS_CLIENT, &timeout_ns) < 0 ||
        (values[2] != NULL && (zero = PyObject_IsTrue(values[2])) < 0) ||
        stream_read(state, values[0], self->stream, &stream) < 0)
        return NULL;
    int r = wake(self, stream.handle, timeout_ns, zero ? GPUPOOL_ZERO : 0);
    if (r == 0 && stream.handle != self->stream && stream.handle != GPUPOOL_NO_STREAM)
        r = buffer_record(self, stream);
    stream_drop(state, stream.object);
    return r < 0 ? NULL : Py_NewRef(Py_None);
}

PyObject *sleep_get_asleep(PyObject *object, void *closure) {
    (void)closure;
    return PyBool_FromLong(((struct buffer_object *)object)->is_asleep);
}
