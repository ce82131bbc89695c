/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/pool.h"

#include "client/api/binding.h"
#include "client/python/src/arguments.h"
#include "client/python/src/buffer.h"
#include "client/python/src/error.h"
#include "client/python/src/numpy.h"
#include "client/python/src/waiting.h"

PyObject *pool_new(struct client_object *client, uint32_t id) {
    struct gpupool_pool pool;
    if (client_find_pool(client, id, &pool) < 0)
        return NULL;
    struct pool_object *self = PyObject_New(struct pool_object, client->state->pool_type);
    if (self == NULL)
        return NULL;
    self->client = (struct client_object *)Py_NewRef((PyObject *)client);
    self->pool = pool;
    return (PyObject *)self;
}

static void pool_dealloc(PyObject *object) {
    struct pool_object *self = (struct pool_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_DECREF(self->client);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* --- acquire --- */

struct buffer_object *pool_take(struct pool_object *self, uint64_t size_bytes, struct stream stream,
                                uint64_t timeout_ns, uint32_t flags) {
    struct client_object *client = self->client;
    struct buffer_object *buffer = buffer_new(self, stream);

    if (buffer == NULL || !client_is_open(client)) {
        Py_XDECREF((PyObject *)buffer);
        return NULL;
    }
    if ((flags != 0 || !gpupool_internal_acquire_hit(client->handle, self->pool.id, size_bytes, stream.handle,
                                                     &buffer->buffer)) &&
        waiting_acquire(client, &self->pool, size_bytes, stream.handle, timeout_ns, flags, &buffer->buffer) <
            0) {
        Py_DECREF(buffer);
        return NULL;
    }
    buffer_set_open(buffer, true);
    return buffer;
}

/* How much memory is asked for. -1 with an exception. */
static int read_size(const struct pool_object *self, PyObject *value, uint64_t *ret_bytes) {
    if (arguments_read_bytes(value, "nbytes", ret_bytes) < 0)
        return -1;
    if (*ret_bytes == 0)
        error_raise_text(self->client->state, GPUPOOL_E_INVALID, "nbytes is 0: it must be 1 or more");
    return *ret_bytes == 0 ? -1 : 0;
}

static PyObject *pool_acquire(PyObject *object, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    static const struct signature signature = {
        "acquire", 1, 4, {"nbytes", "stream", "timeout", "zero", "can_sleep", NULL}};
    struct pool_object *self = (struct pool_object *)object;
    struct stream stream = {pool_default_stream(self), NULL};
    uint64_t timeout_ns = WAITING_AS_CLIENT, size_bytes;
    PyObject *values[ARGUMENTS_MAX];
    int zero = 0, can_sleep = 0;

    if (count == 1 && names == NULL) {
        if (read_size(self, given[0], &size_bytes) < 0)
            return NULL;
    } else {
        if (arguments_read(&signature, given, count, names, values) < 0 ||
            read_size(self, values[0], &size_bytes) < 0 ||
            arguments_read_seconds(values[2], "timeout", WAITING_AS_CLIENT, &timeout_ns) < 0 ||
            (values[3] != NULL && (zero = PyObject_IsTrue(values[3])) < 0) ||
            (values[4] != NULL && (can_sleep = PyObject_IsTrue(values[4])) < 0) ||
            stream_read(self->client->state, values[1], stream.handle, &stream) < 0)
            return NULL;
    }
    return (PyObject *)pool_take(self, size_bytes, stream, timeout_ns,
                                 (zero ? GPUPOOL_ZERO : 0) | (can_sleep ? GPUPOOL_CAN_SLEEP : 0));
}

static PyObject *pool_empty(PyObject *object, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    static const struct signature signature = {"empty", 1, 2, {"shape", "dtype", "timeout", NULL}};
    struct pool_object *self = (struct pool_object *)object;
    uint64_t timeout_ns = WAITING_AS_CLIENT;
    PyObject *values[ARGUMENTS_MAX];

    if (arguments_read(&signature, given, count, names, values) < 0 ||
        arguments_read_seconds(values[2], "timeout", WAITING_AS_CLIENT, &timeout_ns) < 0)
        return NULL;
    return numpy_empty(self, values[0], values[1], timeout_ns);
}

static PyObject *pool_prepare(PyObject *object, PyObject *value) {
    struct pool_object *self = (struct pool_object *)object;
    uint64_t bytes;
    int r;
    if (read_size(self, value, &bytes) < 0 || !client_use(self->client))
        return NULL;
    WITHOUT_LOCK(r = gpupool_prepare(self->client->handle, self->pool.id, bytes));
    client_unuse(self->client);
    return r < 0 ? error_raise_of_pool(self->client->state, r, &self->pool) : Py_NewRef(Py_None);
}

/* --- Pool.info() and the pool's attributes --- */

static PyObject *kind_of(const struct gpupool_pool *pool) {
    return PyUnicode_FromString(pool->kind == GPUPOOL_POOL_HOST ? "host" : "device");
}

/* -1 is None. */
static PyObject *place_of(int number) {
    return number < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(number);
}

static PyStructSequence_Field info_fields[] = {
    {"id", "the daemon's number of the pool"},
    {"kind", "\"device\" or \"host\""},
    {"device", "ordinal in this process; None: host pool, or not visible here"},
    {"numa_node", "None: unknown"},
    {"uuid", "of the GPU, as nvidia-smi shows it; empty for host pools"},
    {"name", "of the GPU or the node"},
    {"limit_bytes", "what the pool may grow to"},
    {"reserved_bytes", "what the pool has of the driver or the kernel"},
    {"leased_bytes", "what clients have, idle in their caches or in use"},
    {"free_bytes", "what is free in it"},
    {"quarantined_bytes", "what waits for the end of dead processes"},
    {"largest_free_bytes", "the largest free range"},
    {NULL, NULL},
};
PyStructSequence_Desc pool_info_desc = {"gpupool.PoolInfo", "A pool, as it was when asked.", info_fields, 12};

static PyObject *pool_info(PyObject *object, PyObject *none) {
    struct pool_object *self = (struct pool_object *)object;
    (void)none;
    struct gpupool_pool pool;
    if (client_fetch_pools(self->client) < 0 || client_find_pool(self->client, self->pool.id, &pool) < 0)
        return NULL;
    PyObject *info = PyStructSequence_New(self->client->state->pool_info_type);
    if (info == NULL)
        return NULL;
    PyObject *items[] = {
        PyLong_FromUnsignedLong(pool.id),
        kind_of(&pool),
        place_of(pool.device),
        place_of(pool.numa_node),
        PyUnicode_FromString(pool.uuid),
        PyUnicode_FromString(pool.name),
        PyLong_FromUnsignedLongLong(pool.limit_bytes),
        PyLong_FromUnsignedLongLong(pool.reserved_bytes),
        PyLong_FromUnsignedLongLong(pool.leased_bytes),
        PyLong_FromUnsignedLongLong(pool.free_bytes),
        PyLong_FromUnsignedLongLong(pool.quarantined_bytes),
        PyLong_FromUnsignedLongLong(pool.largest_free_bytes),
    };
    for (size_t i = 0; i < sizeof items / sizeof items[0]; i++)
        PyStructSequence_SetItem(info, (Py_ssize_t)i, items[i]);
    if (PyErr_Occurred() != NULL)
        Py_CLEAR(info);
    return info;
}

static const struct gpupool_pool *pool_of(PyObject *self) {
    return &((struct pool_object *)self)->pool;
}

static PyObject *get_id(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLong(pool_of(self)->id);
}

static PyObject *get_kind(PyObject *self, void *closure) {
    (void)closure;
    return kind_of(pool_of(self));
}

static PyObject *get_device(PyObject *self, void *closure) {
    (void)closure;
    return place_of(pool_of(self)->device);
}

static PyObject *get_numa_node(PyObject *self, void *closure) {
    (void)closure;
    return place_of(pool_of(self)->numa_node);
}

static PyObject *get_uuid(PyObject *self, void *closure) {
    (void)closure;
    return PyUnicode_FromString(pool_of(self)->uuid);
}

static PyObject *get_name(PyObject *self, void *closure) {
    (void)closure;
    return PyUnicode_FromString(pool_of(self)->name);
}

static PyObject *get_limit_bytes(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLongLong(pool_of(self)->limit_bytes);
}

static PyObject *get_client(PyObject *self, void *closure) {
    (void)closure;
    return Py_NewRef((PyObject *)((struct pool_object *)self)->client);
}

static PyObject *pool_repr(PyObject *self) {
    const struct gpupool_pool *pool = pool_of(self);
    if (pool->kind == GPUPOOL_POOL_DEVICE)
        return PyUnicode_FromFormat("<gpupool.Pool %u of device %d, %s>", (unsigned)pool->id,
                                    (int)pool->device, pool->name);
    return PyUnicode_FromFormat("<gpupool.Pool %u of host memory, node %d>", (unsigned)pool->id,
                                (int)pool->numa_node);
}

static PyObject *pool_compare(PyObject *left, PyObject *right, int operation) {
    if (Py_TYPE(left) != Py_TYPE(right) || (operation != Py_EQ && operation != Py_NE))
        Py_RETURN_NOTIMPLEMENTED;
    bool are_equal = ((struct pool_object *)left)->client == ((struct pool_object *)right)->client &&
                     pool_of(left)->id == pool_of(right)->id;
    return PyBool_FromLong(are_equal == (operation == Py_EQ));
}

static Py_hash_t pool_hash(PyObject *self) {
    uintptr_t mixed = (uintptr_t)((struct pool_object *)self)->client / 16 * 31 + pool_of(self)->id;
    return (Py_hash_t)(mixed == (uintptr_t)-1 ? 0 : mixed);
}

static PyMethodDef methods[] = {
    {"acquire", (PyCFunction)(void (*)(void))pool_acquire, METH_FASTCALL | METH_KEYWORDS,
     "acquire($self, nbytes, stream=None, timeout=None, zero=False, *, can_sleep=False)\n--\n\nReturns a "
     "Buffer of nbytes.\n\n"
     "stream: the stream that uses it first. None: for host memory no stream, for device memory the legacy "
     "default "
     "stream.\ntimeout: seconds to wait for room; None: the client's alloc_timeout "
     "(GPUPOOL_ALLOC_TIMEOUT, 10 s); math.inf: no limit. A pool that has to grow needs a moment, so 0 can "
     "fail where memory could be made.\nzero: the memory is zeroed, in stream order. Else its contents are "
     "undefined.\ncan_sleep: for Buffer.sleep(). The buffer has whole segments of a device pool with export "
     "= vmm. "
     "Handlers of signals run after the call.\n\nRaises ExhaustedError (a MemoryError) when there was no "
     "room until the timeout."},
    {"empty", (PyCFunction)(void (*)(void))pool_empty, METH_FASTCALL | METH_KEYWORDS,
     "empty($self, shape, dtype=float, *, timeout=None)\n--\n\nReturns a NumPy array in memory of the pool, "
     "with "
     "undefined contents, as numpy.empty() does.\n\nThe memory goes back when the array and all views of it "
     "are "
     "gone. For host pools, and for device pools of a simulated GPU."},
    {"prepare", pool_prepare, METH_O,
     "prepare($self, nbytes, /)\n--\n\nMaps so much memory of the pool ahead of need."},
    {"info", pool_info, METH_NOARGS,
     "info($self)\n--\n\nAsks the daemon, and returns a named tuple (PoolInfo) with the pool's present "
     "figures."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"id", get_id, NULL, "The daemon's number of the pool.", NULL},
    {"kind", get_kind, NULL, "\"device\" or \"host\".", NULL},
    {"device", get_device, NULL, "The device's ordinal in this process. None: a host pool, or not visible.",
     NULL},
    {"numa_node", get_numa_node, NULL, "The NUMA node. None: unknown.", NULL},
    {"uuid", get_uuid, NULL, "The GPU's UUID. Empty for host pools.", NULL},
    {"name", get_name, NULL, "The GPU's name, or the node's.", NULL},
    {"limit_bytes", get_limit_bytes, NULL, "What the pool may grow to.", NULL},
    {"client", get_client, NULL, "The Client.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static const char docstring[] =
    "All memory of one kind in one place: of a GPU, or of a NUMA node.\n\n"
    "gpupool.host_pool(), gpupool.device_pool() and gpupool.pools() return pools.";

static PyType_Slot slots[] = {
    {Py_tp_dealloc, pool_dealloc},     {Py_tp_repr, pool_repr},
    {Py_tp_richcompare, pool_compare}, {Py_tp_hash, pool_hash},
    {Py_tp_methods, methods},          {Py_tp_getset, properties},
    {Py_tp_doc, (char *)docstring},    {0, NULL},
};

PyType_Spec pool_spec = {"gpupool.Pool", sizeof(struct pool_object), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                         slots};
