/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/share.h"

#include <string.h>

#include "client/api/binding.h"
#include "client/python/src/arguments.h"
#include "client/python/src/error.h"

/* A message can wait in a queue for this long. */
#define SENT_LIFETIME_NS (UINT64_C(600) * 1000000000)

static int make_token(struct buffer_object *self, void *stream, struct gpupool_token *ret_token) {
    const struct client_object *client = self->pool->client;
    int r;

    if (!buffer_begin(self))
        return -1;
    UNTIL_SIGNAL(client, r = gpupool_share(client->handle, &self->buffer, stream, ret_token));
    buffer_end(self);
    if (r < 0)
        error_raise(client->state, r);
    return r < 0 ? -1 : 0;
}

typedef int sender(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream,
                   uint32_t takers, uint64_t lifetime_ns, struct gpupool_token *ret_token);

/* A token that holds the buffer until it was taken. */
static int make_parcel(struct buffer_object *self, sender *send, void *stream, uint32_t takers,
                       uint64_t lifetime_ns, struct gpupool_token *ret_token) {
    const struct client_object *client = self->pool->client;
    int r;

    if (!buffer_begin(self))
        return -1;
    UNTIL_SIGNAL(client, r = send(client->handle, &self->buffer, stream, takers, lifetime_ns, ret_token));
    buffer_end(self);
    if (r < 0)
        error_raise(client->state, r);
    return r < 0 ? -1 : 0;
}

static PyObject *token_bytes(const struct gpupool_token *token) {
    return PyBytes_FromStringAndSize((const char *)token->bytes, sizeof token->bytes);
}

PyObject *share_buffer(PyObject *object, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    static const struct signature signature = {"share", 0, 1, {"stream", NULL}};
    struct buffer_object *self = (struct buffer_object *)object;
    PyObject *values[ARGUMENTS_MAX];
    struct gpupool_token token;
    struct stream stream;

    if (arguments_read(&signature, given, count, names, values) < 0 ||
        stream_read(self->pool->client->state, values[0], self->stream, &stream) < 0)
        return NULL;
    int r = make_token(self, stream.handle, &token);
    stream_drop(self->pool->client->state, stream.object);
    return r < 0 ? NULL : token_bytes(&token);
}

/* values: of stream, takers and lifetime. */
static PyObject *convert_and_send(struct buffer_object *self, sender *send,
                                  PyObject *const values[static 3]) {
    struct gpupool_token token;
    struct stream stream;
    uint64_t lifetime_ns;
    int takers = 1;

    if (arguments_read_int(values[1], "takers", &takers) < 0 ||
        arguments_read_seconds(values[2], "lifetime", SENT_LIFETIME_NS, &lifetime_ns) < 0)
        return NULL;
    if (takers < 1) {
        PyErr_SetString(PyExc_ValueError, "takers must be 1 or more");
        return NULL;
    }
    if (stream_read(self->pool->client->state, values[0], self->stream, &stream) < 0)
        return NULL;
    int r = make_parcel(self, send, stream.handle, (uint32_t)takers, lifetime_ns, &token);
    stream_drop(self->pool->client->state, stream.object);
    return r < 0 ? NULL : token_bytes(&token);
}

PyObject *share_send(PyObject *object, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    static const struct signature signature = {"send", 0, 1, {"stream", "takers", "lifetime", NULL}};
    PyObject *values[ARGUMENTS_MAX];

    return arguments_read(&signature, given, count, names, values) < 0
               ? NULL
               : convert_and_send((struct buffer_object *)object, gpupool_send, values);
}

PyObject *share_send_held(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    const struct module_state *state = PyModule_GetState(module);

    if (count != 3 || Py_TYPE(given[0]) != state->buffer_type)
        return PyErr_Format(PyExc_TypeError, "_send_held() takes a gpupool.Buffer, a stream and a lifetime");
    return convert_and_send((struct buffer_object *)given[0], gpupool_send_held,
                            (PyObject *[]){given[1], NULL, given[2]});
}

/* A Buffer of a name is read-only by promise, too, in pools whose memory is always mapped for writing. */
PyObject *share_is_mapped_read_only(PyObject *module, PyObject *object) {
    const struct module_state *state = PyModule_GetState(module);
    struct buffer_object *buffer = (struct buffer_object *)object;
    bool is_mapped;

    if (Py_TYPE(object) != state->buffer_type)
        return PyErr_Format(PyExc_TypeError, "_is_mapped_read_only() takes a gpupool.Buffer");
    if (!buffer_use(buffer))
        return NULL;
    WITHOUT_LOCK(is_mapped = buffer->is_read_only && gpupool_internal_can_map_read_only(
                                                         buffer->pool->client->handle, buffer->buffer.pool));
    buffer_unuse(buffer);
    return PyBool_FromLong(is_mapped);
}

PyObject *share_function(const char *name) {
    PyObject *module = PyImport_ImportModule("gpupool._transfer");
    PyObject *function = module == NULL ? NULL : PyObject_GetAttrString(module, name);
    Py_XDECREF(module);
    return function;
}

PyObject *share_reduce(PyObject *object, PyObject *none) {
    PyObject *reduce = share_function("reduce_buffer");
    (void)none;
    PyObject *reduced = reduce == NULL ? NULL : PyObject_CallFunctionObjArgs(reduce, object, NULL);
    Py_XDECREF(reduce);
    return reduced;
}

static int read_token(PyObject *value, struct gpupool_token *ret_token) {
    Py_buffer view;
    if (PyObject_GetBuffer(value, &view, PyBUF_SIMPLE) < 0)
        return -1;
    int r = view.len == (Py_ssize_t)sizeof ret_token->bytes ? 0 : -1;
    if (r == 0)
        memcpy(ret_token->bytes, view.buf, sizeof ret_token->bytes);
    else
        PyErr_Format(PyExc_ValueError, "a token has %zu bytes, and this has %zd", sizeof ret_token->bytes,
                     view.len);
    PyBuffer_Release(&view);
    return r;
}

PyObject *share_wrap(struct client_object *client, struct gpupool_buffer *attached, struct stream stream,
                     bool has_stream, bool is_read_only) {
    PyObject *pool = pool_new(client, attached->pool);
    struct buffer_object *self = NULL;

    if (pool != NULL) {
        if (!has_stream)
            stream.handle = pool_default_stream((struct pool_object *)pool);
        self = buffer_new((struct pool_object *)pool, stream);
        Py_DECREF(pool);
    } else {
        stream_drop(client->state, stream.object);
    }
    if (self == NULL) {
        WITHOUT_LOCK(gpupool_release(client->handle, attached, GPUPOOL_NO_STREAM));
        return NULL;
    }
    self->buffer = *attached;
    buffer_set_open(self, true);
    self->is_read_only = is_read_only;
    return (PyObject *)self;
}

PyObject *share_attach(PyObject *module, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    static const struct signature signature = {
        "attach", 1, 2, {"token", "stream", "read_only", "client", "can_sleep", NULL}};
    struct module_state *state = PyModule_GetState(module);
    PyObject *values[ARGUMENTS_MAX];
    struct gpupool_buffer attached;
    struct gpupool_token token;
    struct stream stream;
    int read_only = 0, can_sleep = 0, r;

    if (arguments_read(&signature, given, count, names, values) < 0 || read_token(values[0], &token) < 0 ||
        (values[2] != NULL && (read_only = PyObject_IsTrue(values[2])) < 0) ||
        (values[4] != NULL && (can_sleep = PyObject_IsTrue(values[4])) < 0))
        return NULL;
    bool has_stream = values[1] != NULL && values[1] != Py_None;
    if (stream_read(state, values[1], GPUPOOL_NO_STREAM, &stream) < 0)
        return NULL;
    struct client_object *client = client_read_argument(state, values[3]);
    if (client == NULL || !client_use(client)) {
        stream_drop(state, stream.object);
        Py_XDECREF((PyObject *)client);
        return NULL;
    }
    WITHOUT_LOCK(r = gpupool_attach(client->handle, &token, stream.handle,
                                    (read_only ? GPUPOOL_READ_ONLY : 0) | (can_sleep ? GPUPOOL_CAN_SLEEP : 0),
                                    &attached));
    PyObject *self = r < 0 ? NULL : share_wrap(client, &attached, stream, has_stream, read_only != 0);
    client_unuse(client);
    if (r < 0) {
        error_raise(state, r);
        stream_drop(state, stream.object);
    }
    Py_DECREF(client);
    return self;
}

PyObject *share_revoke(PyObject *module, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    static const struct signature signature = {"revoke", 1, 1, {"token", "client", NULL}};
    struct module_state *state = PyModule_GetState(module);
    PyObject *values[ARGUMENTS_MAX];
    struct gpupool_token token;
    int r;

    if (arguments_read(&signature, given, count, names, values) < 0 || read_token(values[0], &token) < 0)
        return NULL;
    struct client_object *client = client_read_argument(state, values[1]);
    if (client == NULL || !client_use(client)) {
        Py_XDECREF((PyObject *)client);
        return NULL;
    }
    UNTIL_SIGNAL(client, r = gpupool_revoke(client->handle, &token));
    client_unuse(client);
    if (r < 0)
        error_raise(state, r);
    Py_DECREF((PyObject *)client);
    return r < 0 ? NULL : Py_NewRef(Py_None);
}
