/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/dlpack.h"

#include <stdlib.h>
#include <string.h>

#include "client/include/gpupool/fence.h"
#include "client/python/src/arguments.h"
#include "client/python/src/dlpack_abi.h"
#include "client/python/src/error.h"

/* A tensor that was handed out, with room for its shape and strides behind it. */
struct handed_out {
    union {
        struct dlpack_managed managed;
        struct dlpack_versioned versioned;
    };
    struct buffer_object *buffer; /* an export of it */
    PyObject *owner;              /* lives as long as the export; NULL: none */
    int64_t extents[];
};

/* The wishes of a consumer. */
struct wish {
    bool has_version;     /* 1.0 or newer */
    bool has_device;      /* if not, type and id are the buffer's */
    int type, id;         /* of the device */
    bool has_stream;      /* if not, stream is the legacy default one */
    struct stream stream; /* of the consumer, held */
    bool is_ambiguous;    /* the stream is 0 */
    bool must_copy, may_copy;
};

static void find_device(const struct buffer_object *buffer, int *ret_type, int *ret_id) {
    bool is_on_host = buffer_is_on_host(buffer);
    *ret_type = is_on_host ? DLPACK_CPU : DLPACK_CUDA;
    *ret_id = is_on_host ? 0 : buffer->buffer.device;
}

PyObject *dlpack_device(const struct buffer_object *buffer) {
    int type, id;
    if (!buffer_is_open(buffer))
        return NULL;
    find_device(buffer, &type, &id);
    return Py_BuildValue("(ii)", type, id);
}

/* --- the end --- */

/* Any thread of the consumer may call the deleters, with or without the interpreter's lock. When the
 * interpreter is gone, the memory goes back with the process. */
static void end_export(struct handed_out *tensor) {
    if (!Py_IsInitialized())
        return;
    PyGILState_STATE state = PyGILState_Ensure();
    Py_XDECREF(tensor->owner); /* may run code of the program, which finds the buffer open */
    buffer_end_export(tensor->buffer);
    Py_DECREF(tensor->buffer);
    PyGILState_Release(state);
    free(tensor);
}

static void delete_managed(struct dlpack_managed *managed) {
    if (managed != NULL)
        end_export(managed->context);
}

static void delete_versioned(struct dlpack_versioned *versioned) {
    if (versioned != NULL)
        end_export(versioned->context);
}

/* A consumer renames the capsule when it takes the tensor. One that was not taken ends with the capsule. */
static void destroy_capsule(PyObject *capsule) {
    if (PyCapsule_IsValid(capsule, "dltensor"))
        delete_managed(PyCapsule_GetPointer(capsule, "dltensor"));
    else if (PyCapsule_IsValid(capsule, "dltensor_versioned"))
        delete_versioned(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
}

/* The tensor of a capsule of this file that no consumer has taken; NULL: it is none. */
static struct handed_out *tensor_in(PyObject *capsule) {
    if (PyCapsule_IsValid(capsule, "dltensor")) {
        const struct dlpack_managed *managed = PyCapsule_GetPointer(capsule, "dltensor");
        return managed->deleter == delete_managed ? managed->context : NULL;
    }
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        const struct dlpack_versioned *versioned = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        return versioned->deleter == delete_versioned ? versioned->context : NULL;
    }
    return NULL;
}

PyObject *dlpack_set_owner(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    struct handed_out *tensor = count == 2 ? tensor_in(given[0]) : NULL;
    (void)module;
    if (tensor == NULL || tensor->owner != NULL)
        return PyErr_Format(PyExc_TypeError,
                            "_set_owner() takes a capsule of __dlpack__() and an object, once");
    tensor->owner = Py_NewRef(given[1]);
    return Py_NewRef(given[0]);
}

/* --- the beginning --- */

static void *data_of(const struct part *part) {
    return (char *)part->buffer->buffer.data + part->offset;
}

static void fill_tensor(struct dlpack_tensor *tensor, int64_t *extents, const struct part *part) {
    int64_t stride = 1;

    find_device(part->buffer, &tensor->device_type, &tensor->device_id);
    tensor->data = data_of(part);
    tensor->ndim = part->n_dimensions;
    tensor->code = part->element->code;
    tensor->bits = (uint8_t)(8 * part->element->bytes);
    tensor->lanes = 1;
    tensor->byte_offset = 0;
    tensor->shape = extents;
    tensor->strides = extents + part->n_dimensions;
    for (int i = part->n_dimensions - 1; i >= 0; i--) {
        tensor->shape[i] = part->shape[i];
        tensor->strides[i] = stride;
        stride *= part->shape[i];
    }
}

/* The capsule over a part of a buffer in use, with the flags of DLPack. */
static PyObject *make_capsule(const struct part *part, bool is_versioned, uint64_t flags) {
    struct handed_out *tensor = calloc(1, sizeof *tensor + 2 * (size_t)part->n_dimensions * sizeof(int64_t));
    if (tensor == NULL)
        return PyErr_NoMemory();
    if (is_versioned) {
        tensor->versioned.major = DLPACK_MAJOR;
        tensor->versioned.minor = DLPACK_MINOR;
        tensor->versioned.context = tensor;
        tensor->versioned.deleter = delete_versioned;
        tensor->versioned.flags = flags;
        fill_tensor(&tensor->versioned.tensor, tensor->extents, part);
    } else {
        tensor->managed.context = tensor;
        tensor->managed.deleter = delete_managed;
        fill_tensor(&tensor->managed.tensor, tensor->extents, part);
    }
    PyObject *capsule =
        PyCapsule_New(tensor, is_versioned ? "dltensor_versioned" : "dltensor", destroy_capsule);
    if (capsule == NULL) {
        free(tensor);
        return NULL;
    }
    tensor->buffer = (struct buffer_object *)Py_NewRef((PyObject *)part->buffer);
    buffer_export(part->buffer);
    return capsule;
}

/* Has the consumer's stream wait for that of a buffer in use, and the buffer's release for the consumer's. */
static int order_consumer(struct buffer_object *buffer, struct stream stream) {
    const struct client_object *client = buffer->pool->client;
    struct gpupool_fence fence;
    int r = 0;

    if (stream.handle == buffer->stream)
        return 0;
    if (buffer->stream != GPUPOOL_NO_STREAM)
        WITHOUT_LOCK({
            r = gpupool_fence_record(client->handle, buffer->buffer.device, &fence, buffer->stream);
            if (r == 0)
                r = gpupool_fence_wait(client->handle, buffer->buffer.device, &fence, stream.handle);
        });
    if (r < 0) {
        error_raise(client->state, r);
        return -1;
    }
    return buffer_record(buffer, stream);
}

/* Copies a part of a buffer in use into a new buffer: of its own pool, or of a host pool. Returns it in use;
 * NULL with an exception. */
static struct buffer_object *copy_part(const struct part *part, bool to_host) {
    struct buffer_object *from = part->buffer, *to;
    struct client_object *client = from->pool->client;
    bool is_device = from->pool->pool.kind == GPUPOOL_POOL_DEVICE;
    void *stream = from->stream == GPUPOOL_NO_STREAM ? NULL : from->stream;
    uint64_t bytes = part->nbytes > 0 ? (uint64_t)part->nbytes : 1;
    int r = 0;

    if (to_host && is_device) {
        uint32_t id;
        WITHOUT_LOCK(r = gpupool_host_pool(client->handle, -1, &id));
        PyObject *pool = r < 0 ? error_raise(client->state, r) : pool_new(client, id);
        if (pool == NULL)
            return NULL;
        to = pool_take((struct pool_object *)pool, bytes, (struct stream){GPUPOOL_NO_STREAM, NULL},
                       GPUPOOL_FOREVER, 0);
        Py_DECREF(pool);
    } else {
        struct stream own = {is_device ? stream : GPUPOOL_NO_STREAM, NULL};
        if (is_device)
            own.object = stream_hold(client->state, from->stream_object);
        to = pool_take(from->pool, bytes, own, GPUPOOL_FOREVER, 0);
    }
    if (to == NULL || !buffer_use(to)) {
        Py_XDECREF((PyObject *)to);
        return NULL;
    }
    if (part->nbytes == 0)
        return to;
    if (is_device)
        WITHOUT_LOCK({
            r = gpupool_copy(client->handle, from->buffer.device, to->buffer.data, data_of(part), bytes,
                             stream);
            if (r == 0 && buffer_is_on_host(to))
                r = gpupool_stream_synchronize(client->handle, from->buffer.device, stream);
        });
    else
        WITHOUT_LOCK(memcpy(to->buffer.data, data_of(part), bytes));
    if (r < 0) {
        error_raise(client->state, r);
        buffer_unuse(to);
        Py_CLEAR(to);
    }
    return to;
}

/* --- what the consumer asks --- */

static int read_version(PyObject *value, bool *ret_has_version) {
    int major = 0, minor = 0;
    *ret_has_version = false;
    if (value == NULL || value == Py_None)
        return 0;
    if (!PyTuple_Check(value) ||
        !PyArg_ParseTuple(value, "ii;max_version must be a tuple (major, minor)", &major, &minor)) {
        if (PyErr_Occurred() == NULL)
            PyErr_SetString(PyExc_TypeError, "max_version must be a tuple (major, minor) or None");
        return -1;
    }
    *ret_has_version = major >= DLPACK_MAJOR;
    return 0;
}

static int read_device(PyObject *value, struct wish *wish) {
    wish->has_device = value != NULL && value != Py_None;
    if (!wish->has_device)
        return 0;
    /* Device types of other packages are enumerations. */
    PyObject *pair = PySequence_Tuple(value);
    int r = pair != NULL && PyArg_ParseTuple(pair, "ii;dl_device must be a tuple (type, device)", &wish->type,
                                             &wish->id)
                ? 0
                : -1;
    Py_XDECREF(pair);
    return r;
}

static int read_copy(PyObject *value, struct wish *wish) {
    wish->must_copy = false;
    wish->may_copy = true;
    if (value == NULL || value == Py_None)
        return 0;
    int copy = PyObject_IsTrue(value);
    wish->must_copy = wish->may_copy = copy > 0;
    return copy < 0 ? -1 : 0;
}

/* The array API standard: None is the legacy default stream, 0 is ambiguous, -1 asks for no order. */
static int read_stream(struct module_state *state, PyObject *value, struct wish *wish) {
    wish->has_stream = value != NULL && value != Py_None;
    wish->is_ambiguous = wish->has_stream && PyLong_Check(value) && PyLong_AsLongLong(value) == 0;
    if (PyErr_Occurred() != NULL)
        return -1;
    return stream_read(state, value, NULL, &wish->stream);
}

/* Converts the arguments, which may run code of the program. The stream is held on success alone. */
static int read_wish(struct module_state *state, PyObject *const *given, Py_ssize_t count, PyObject *names,
                     struct wish *wish) {
    static const struct signature signature = {
        "__dlpack__", 0, 0, {"stream", "max_version", "dl_device", "copy", NULL}};
    PyObject *values[ARGUMENTS_MAX];

    return arguments_read(&signature, given, count, names, values) < 0 ||
                   read_version(values[1], &wish->has_version) < 0 || read_device(values[2], wish) < 0 ||
                   read_copy(values[3], wish) < 0 || read_stream(state, values[0], wish) < 0
               ? -1
               : 0;
}

/* Judges a wish by the buffer, which is in use. -1 with an exception. */
static int check_wish(const struct buffer_object *buffer, struct wish *wish) {
    bool is_on_host = buffer_is_on_host(buffer);
    int own_type, own_id;

    find_device(buffer, &own_type, &own_id);
    if (!wish->has_device) {
        wish->type = own_type;
        wish->id = own_id;
    }
    bool is_own = wish->type == own_type && wish->id == own_id;
    if (!is_own && (wish->type != DLPACK_CPU || wish->id != 0)) {
        PyErr_Format(PyExc_BufferError, "the buffer is on device (%d, %d) and cannot be exported to (%d, %d)",
                     own_type, own_id, wish->type, wish->id);
        return -1;
    }
    if (is_own && wish->has_stream) {
        if (is_on_host && wish->stream.handle != GPUPOOL_NO_STREAM) {
            PyErr_SetString(PyExc_ValueError, "stream must be None for memory of the host");
            return -1;
        }
        if (wish->is_ambiguous) {
            PyErr_SetString(PyExc_ValueError,
                            "stream 0 is ambiguous: 1 is the legacy default stream, 2 the per-thread one");
            return -1;
        }
    }
    if (!is_own) { /* a copy to the host, which is done on return */
        if (!wish->may_copy) {
            PyErr_SetString(PyExc_BufferError,
                            "the memory is a GPU's: the host gets a copy, which copy=False forbids");
            return -1;
        }
        wish->must_copy = true;
    }
    return 0;
}

/* The capsule of a buffer in use: the part's own, or a copy. */
static PyObject *export_part(const struct part *part, const struct wish *wish) {
    struct buffer_object *buffer = part->buffer;
    bool is_ordered = wish->type == DLPACK_CUDA && wish->stream.handle != GPUPOOL_NO_STREAM;

    if (buffer->is_read_only && !wish->has_version) {
        PyErr_SetString(PyExc_BufferError,
                        "the buffer is read-only, which a consumer of DLPack before 1.0 cannot know");
        return NULL;
    }
    if (is_ordered ? order_consumer(buffer, wish->stream) < 0
                   : buffer_is_on_host(buffer) && buffer_settle(buffer) < 0)
        return NULL;
    return make_capsule(part, wish->has_version,
                        (buffer->is_read_only ? DLPACK_FLAG_READ_ONLY : 0) |
                            (wish->must_copy ? DLPACK_FLAG_IS_COPIED : 0));
}

static PyObject *copy_and_export(const struct part *part, const struct wish *wish) {
    struct part copy = *part;

    copy.buffer = copy_part(part, wish->type == DLPACK_CPU);
    copy.offset = 0;
    if (copy.buffer == NULL)
        return NULL;
    PyObject *capsule = export_part(&copy, wish);
    buffer_unuse(copy.buffer);
    Py_DECREF((PyObject *)copy.buffer);
    return capsule;
}

PyObject *dlpack_make(const struct part *part, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    struct module_state *state = part->buffer->pool->client->state;
    PyObject *capsule = NULL;
    struct wish wish;

    if (read_wish(state, given, count, names, &wish) < 0)
        return NULL;
    if (buffer_use_contents(part->buffer)) {
        if (check_wish(part->buffer, &wish) == 0)
            capsule = wish.must_copy ? copy_and_export(part, &wish) : export_part(part, &wish);
        buffer_unuse(part->buffer);
    }
    stream_drop(state, wish.stream.object);
    return capsule;
}

/* The capsule of a part in use that _lend() makes. */
static PyObject *lend(const struct part *part, struct stream stream, bool has_stream) {
    struct buffer_object *buffer = part->buffer;

    if (buffer_is_on_host(buffer) ? buffer_settle(buffer) < 0
                                  : has_stream && order_consumer(buffer, stream) < 0)
        return NULL;
    return make_capsule(part, false, 0);
}

PyObject *dlpack_lend(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    struct module_state *state = PyModule_GetState(module);
    PyObject *capsule = NULL;
    struct stream stream;

    if (count != 2 || Py_TYPE(given[0]) != state->array_type)
        return PyErr_Format(PyExc_TypeError, "_lend() takes a gpupool.Array and a stream");
    struct part part = array_part((struct array_object *)given[0]);
    if (stream_read(state, given[1], NULL, &stream) < 0)
        return NULL;
    if (buffer_use_contents(part.buffer)) {
        capsule = lend(&part, stream, given[1] != Py_None);
        buffer_unuse(part.buffer);
    }
    stream_drop(state, stream.object);
    return capsule;
}
