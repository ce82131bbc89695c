/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/hooks.h"

#include <math.h>

#include "client/api/binding.h"
#include "client/python/src/arguments.h"
#include "client/python/src/client.h"
#include "client/python/src/error.h"
#include "client/python/src/stream.h"

/* The first argument, a client. NULL with an exception. */
static struct client_object *read_client(PyObject *module, PyObject *const *given, Py_ssize_t count,
                                         Py_ssize_t expected) {
    const struct module_state *state = PyModule_GetState(module);

    if (count != expected || Py_TYPE(given[0]) != state->client_type) {
        PyErr_Format(PyExc_TypeError, "the function takes %zd arguments, the first one a gpupool.Client",
                     expected);
        return NULL;
    }
    return (struct client_object *)given[0];
}

PyObject *hooks_wait_for_device(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    struct client_object *client = read_client(module, given, count, 2);
    int device, r;

    if (client == NULL || arguments_read_int(given[1], "device", &device) < 0 || !client_use(client))
        return NULL;
    WITHOUT_LOCK(r = gpupool_device_synchronize(client->handle, device));
    client_unuse(client);
    return r < 0 ? error_raise(client->state, r) : Py_NewRef(Py_None);
}

PyObject *hooks_is_captured(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    struct client_object *client = read_client(module, given, count, 3);
    struct stream stream;
    int device, r, is_captured;

    if (client == NULL || arguments_read_int(given[1], "device", &device) < 0 ||
        stream_read(client->state, given[2], NULL, &stream) < 0)
        return NULL;
    if (!client_use(client)) {
        stream_drop(client->state, stream.object);
        return NULL;
    }
    WITHOUT_LOCK(r = gpupool_stream_is_captured(client->handle, device, stream.handle, &is_captured));
    client_unuse(client);
    if (r < 0)
        error_raise(client->state, r);
    stream_drop(client->state, stream.object);
    return r < 0 ? NULL : PyBool_FromLong(is_captured);
}

PyObject *hooks_alloc_timeout(PyObject *module, PyObject *value) {
    const struct client_object *client = read_client(module, &value, 1, 1);

    if (client == NULL || !client_is_open(client))
        return NULL;
    uint64_t timeout_ns = gpupool_internal_alloc_timeout_ns(client->handle);
    return PyFloat_FromDouble(timeout_ns == GPUPOOL_FOREVER ? INFINITY : (double)timeout_ns / 1e9);
}

PyObject *hooks_check_memory(PyObject *module, PyObject *address) {
    const void *memory = PyLong_AsVoidPtr(address);

    if (memory == NULL && PyErr_Occurred() != NULL)
        return NULL;
    int r = gpupool_internal_check_address(memory);
    return r < 0 ? error_raise(PyModule_GetState(module), r) : Py_NewRef(Py_None);
}
