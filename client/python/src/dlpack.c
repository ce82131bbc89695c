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
    int64_t extents[];
};

/* The wishes of a consumer. */
struct wish {
    bool has_version; /* 1.0 or newer */
    int type, id;     /* of the device */
    bool must_copy, may_copy;
    void *stream; /* of the consumer; meant if is_ordered */
    bool is_ordered;
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

/* --- the beginning --- */

static void fill_tensor(struct dlpack_tensor *tensor, int64_t *extents, const struct part *part) {
    int64_t stride = 1;

    find_device(part->buffer, &tensor->device_type, &tensor->device_id);
    tensor->data = part->data;
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

/* The capsule over a part, with the flags of DLPack. */
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

/* Has the consumer's stream wait for the buffer's, and the buffer's release for the consumer's. */
static int order_consumer(struct buffer_object *buffer, void *stream) {
    struct client_object *client = buffer->pool->client;
    struct gpupool_fence fence;
    int r = 0;

    if (stream == buffer->stream)
        return 0;
    if (buffer->stream != GPUPOOL_NO_STREAM) {
        buffer->calls++;
        WITHOUT_LOCK(client->calls, {
            r = gpupool_fence_record(client->handle, buffer->buffer.device, &fence, buffer->stream);
            if (r == 0)
                r = gpupool_fence_wait(client->handle, buffer->buffer.device, &fence, stream);
        });
        buffer->calls--;
    }
    if (r < 0) {
        error_raise(client->state, r);
        return -1;
    }
    return buffer_record(buffer, (struct stream){stream, NULL});
}

/* Copies the part into a new buffer: of its own pool, or of a host pool. NULL with an exception. */
static struct buffer_object *copy_part(const struct part *part, bool to_host) {
    struct buffer_object *from = part->buffer, *to;
    struct client_object *client = from->pool->client;
    bool is_device = from->pool->pool.kind == GPUPOOL_POOL_DEVICE;
    void *stream = from->stream == GPUPOOL_NO_STREAM ? NULL : from->stream;
    uint64_t bytes = part->nbytes > 0 ? (uint64_t)part->nbytes : 1;
    int r = 0;

    if (to_host && is_device) {
        uint32_t id;
        WITHOUT_LOCK(client->calls, r = gpupool_host_pool(client->handle, -1, &id));
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
    if (to == NULL || part->nbytes == 0)
        return to;
    from->calls++;
    if (is_device)
        WITHOUT_LOCK(client->calls, {
            r = gpupool_copy(client->handle, from->buffer.device, to->buffer.data, part->data, bytes, stream);
            if (r == 0 && buffer_is_on_host(to))
                r = gpupool_stream_synchronize(client->handle, from->buffer.device, stream);
        });
    else
        WITHOUT_LOCK(client->calls, memcpy(to->buffer.data, part->data, bytes));
    from->calls--;
    if (r < 0) {
        error_raise(client->state, r);
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

static int read_device(PyObject *value, const struct buffer_object *buffer, struct wish *wish) {
    int own_type, own_id;

    find_device(buffer, &own_type, &own_id);
    wish->type = own_type;
    wish->id = own_id;
    if (value == NULL || value == Py_None)
        return 0;
    /* Device types of other packages are enumerations. */
    PyObject *pair = PySequence_Tuple(value);
    int r = pair != NULL && PyArg_ParseTuple(pair, "ii;dl_device must be a tuple (type, device)", &wish->type,
                                             &wish->id)
                ? 0
                : -1;
    Py_XDECREF(pair);
    if (r < 0)
        return -1;
    if ((wish->type == own_type && wish->id == own_id) || (wish->type == DLPACK_CPU && wish->id == 0))
        return 0;
    PyErr_Format(PyExc_BufferError, "the buffer is on device (%d, %d) and cannot be exported to (%d, %d)",
                 own_type, own_id, wish->type, wish->id);
    return -1;
}

/* The array API standard: None is the legacy default stream, 0 is ambiguous, -1 asks for no order. */
static int read_stream(PyObject *value, const struct buffer_object *buffer, struct wish *wish) {
    struct stream stream;

    wish->is_ordered = wish->type == DLPACK_CUDA;
    wish->stream = NULL;
    if (value == NULL || value == Py_None)
        return 0;
    if (wish->type == DLPACK_CPU && !buffer_is_on_host(buffer))
        return 0; /* a copy to the host, which is done on return */
    if (stream_read(buffer->pool->client->state, value, NULL, &stream) < 0)
        return -1;
    stream_drop(buffer->pool->client->state,
                stream.object); /* by the standard the consumer keeps its stream */
    if (wish->type == DLPACK_CPU && stream.handle != GPUPOOL_NO_STREAM) {
        PyErr_SetString(PyExc_ValueError, "stream must be None for memory of the host");
        return -1;
    }
    if (PyLong_Check(value) && stream.handle == NULL && PyObject_IsTrue(value) == 0) {
        PyErr_SetString(PyExc_ValueError,
                        "stream 0 is ambiguous: 1 is the legacy default stream, 2 the per-thread one");
        return -1;
    }
    wish->is_ordered &= stream.handle != GPUPOOL_NO_STREAM;
    wish->stream = stream.handle;
    return 0;
}

static int read_wish(const struct part *part, PyObject *const *given, Py_ssize_t count, PyObject *names,
                     struct wish *wish) {
    static const struct signature signature = {
        "__dlpack__", 0, 0, {"stream", "max_version", "dl_device", "copy", NULL}};
    PyObject *values[ARGUMENTS_MAX];
    int copy;

    if (arguments_read(&signature, given, count, names, values) < 0 || !buffer_is_open(part->buffer) ||
        read_version(values[1], &wish->has_version) < 0 || read_device(values[2], part->buffer, wish) < 0 ||
        read_stream(values[0], part->buffer, wish) < 0)
        return -1;
    wish->must_copy = false;
    wish->may_copy = true;
    if (values[3] != NULL && values[3] != Py_None) {
        copy = PyObject_IsTrue(values[3]);
        if (copy < 0)
            return -1;
        wish->must_copy = wish->may_copy = copy != 0;
    }
    if (wish->type == DLPACK_CPU && !buffer_is_on_host(part->buffer)) {
        if (!wish->may_copy) {
            PyErr_SetString(PyExc_BufferError,
                            "the memory is a GPU's: the host gets a copy, which copy=False forbids");
            return -1;
        }
        wish->must_copy = true;
    }
    return 0;
}

PyObject *dlpack_make(const struct part *part, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    struct part exported = *part;
    struct wish wish;
    PyObject *capsule = NULL;

    if (read_wish(part, given, count, names, &wish) < 0)
        return NULL;
    if (wish.must_copy) {
        exported.buffer = copy_part(part, wish.type == DLPACK_CPU);
        if (exported.buffer == NULL)
            return NULL;
        exported.data = exported.buffer->buffer.data;
    } else {
        Py_INCREF((PyObject *)exported.buffer);
    }
    if (exported.buffer->is_read_only && !wish.has_version)
        PyErr_SetString(PyExc_BufferError,
                        "the buffer is read-only, which a consumer of DLPack before 1.0 cannot know");
    else if (wish.is_ordered ? order_consumer(exported.buffer, wish.stream) == 0
                             : !buffer_is_on_host(exported.buffer) || buffer_settle(exported.buffer) == 0)
        capsule = make_capsule(&exported, wish.has_version,
                               (exported.buffer->is_read_only ? DLPACK_FLAG_READ_ONLY : 0) |
                                   (wish.must_copy ? DLPACK_FLAG_IS_COPIED : 0));
    Py_DECREF(exported.buffer);
    return capsule;
}
