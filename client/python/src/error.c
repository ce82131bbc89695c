/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/error.h"

#include <string.h>

/* The library's text says that the client is the parent's; this is what a program in Python does about it. */
#define FORKED_ADVICE                                                                                        \
    ". In Python: start processes by multiprocessing.get_context(\"spawn\") or (\"forkserver\"), or ask "    \
    "for "                                                                                                   \
    "pools in the child: gpupool.host_pool() and gpupool.device_pool() open a client of its own there"

struct error_kind {
    int number;
    const char *name;  /* of the class */
    PyObject **python; /* Python's own exception for the case; NULL: none */
    const char *docstring;
};

static const struct error_kind kinds[ERROR_KINDS] = {
    {GPUPOOL_E_INVALID, "InvalidError", &PyExc_ValueError, "An argument is out of its range."},
    {GPUPOOL_E_VERSION, "VersionError", &PyExc_RuntimeError,
     "Library and daemon have no protocol version in common."},
    {GPUPOOL_E_NO_POOL, "NoPoolError", &PyExc_LookupError,
     "There is no such pool, or its device is not visible in this process."},
    {GPUPOOL_E_TOO_LARGE, "TooLargeError", &PyExc_MemoryError,
     "The request is larger than the pool may ever be."},
    {GPUPOOL_E_EXHAUSTED, "ExhaustedError", &PyExc_MemoryError,
     "The pool had no room until the timeout. The text lists the holders."},
    {GPUPOOL_E_STALE, "StaleError", &PyExc_ValueError, "The buffer is closed, or its client is."},
    {GPUPOOL_E_NO_TOKEN, "NoTokenError", &PyExc_LookupError,
     "Nothing is shared under this token, or not with this user."},
    {GPUPOOL_E_SHARED, "SharedError", &PyExc_BufferError, "Other processes hold the buffer too."},
    {GPUPOOL_E_LIMIT, "LimitError", &PyExc_MemoryError, "The user has as much as it may have."},
    {GPUPOOL_E_DRIVER, "DriverError", &PyExc_RuntimeError,
     "CUDA or the kernel refused. The text has the name of its error."},
    {GPUPOOL_E_SHUTDOWN, "ShutdownError", &PyExc_ConnectionError, "The daemon is stopping."},
    {GPUPOOL_E_NO_MEMORY, "NoMemoryError", &PyExc_MemoryError, "There is no memory for bookkeeping."},
    {GPUPOOL_E_CONNECT, "ConnectError", &PyExc_ConnectionError, "No daemon answers at the socket."},
    {GPUPOOL_E_DISCONNECTED, "DisconnectedError", &PyExc_ConnectionError,
     "The daemon is gone. Buffers stay usable. Ask for the pool again: gpupool.host_pool(), "
     "gpupool.device_pool()."},
    {GPUPOOL_E_TIMED_OUT, "TimedOutError", &PyExc_TimeoutError, "The daemon did not answer in time."},
    {GPUPOOL_E_PROTOCOL, "ProtocolError", &PyExc_RuntimeError,
     "The daemon sent something that does not check out."},
    {GPUPOOL_E_FORKED, "ForkedError", &PyExc_RuntimeError,
     "The client belongs to the parent of this process."},
    {GPUPOOL_E_CAPTURING, "CapturingError", &PyExc_RuntimeError,
     "The stream is being captured into a graph."},
    {GPUPOOL_E_NO_GPU, "NoGpuError", &PyExc_RuntimeError,
     "The call needs a GPU, and this process or the daemon has none."},
    {GPUPOOL_E_LOST, "LostError", &PyExc_RuntimeError,
     "A process that shared a buffer ended before its GPU work on it was done."},
    {GPUPOOL_E_CANCELLED, "CancelledError", NULL, "The request was cancelled."},
    {GPUPOOL_E_NO_NAME, "NoNameError", &PyExc_LookupError,
     "Nothing is published under this name, or not in the time."},
    {GPUPOOL_E_ENDED, "EndedError", &PyExc_EOFError,
     "The producer of a channel has left it, and all that it sent was received."},
    {GPUPOOL_E_VACANT, "VacantError", &PyExc_RuntimeError,
     "The producer of a channel died, and all that it sent was received. Another one may come."},
};

static int set_attributes(PyObject *class, int number, const char *name) {
    PyObject *value = PyLong_FromLong(number);
    int r = value == NULL ? -1 : PyObject_SetAttrString(class, "number", value);
    Py_XDECREF(value);
    value = r < 0 ? NULL : PyUnicode_FromString(name);
    r = value == NULL ? -1 : PyObject_SetAttrString(class, "name", value);
    Py_XDECREF(value);
    return r;
}

static PyObject *make_class(const struct error_kind *kind, PyObject *base) {
    char name[64];
    PyOS_snprintf(name, sizeof name, "gpupool.%s", kind->name);
    PyObject *bases = kind->python == NULL ? PyTuple_Pack(1, base) : PyTuple_Pack(2, base, *kind->python);
    if (bases == NULL)
        return NULL;
    PyObject *class = PyErr_NewExceptionWithDoc(name, kind->docstring, bases, NULL);
    Py_DECREF(bases);
    if (class != NULL && set_attributes(class, kind->number, gpupool_error_name(kind->number)) < 0)
        Py_CLEAR(class);
    return class;
}

int errors_add(PyObject *module, struct module_state *state) {
    state->error = PyErr_NewExceptionWithDoc(
        "gpupool.Error",
        "An error of the library. number is its GPUPOOL_E_… as an integer, name that constant's name.", NULL,
        NULL);
    if (state->error == NULL || set_attributes(state->error, 0, "GPUPOOL_OK") < 0 ||
        PyModule_AddObjectRef(module, "Error", state->error) < 0)
        return -1;
    for (size_t i = 0; i < ERROR_KINDS; i++) {
        state->errors[i] = make_class(&kinds[i], state->error);
        if (state->errors[i] == NULL || PyModule_AddObjectRef(module, kinds[i].name, state->errors[i]) < 0)
            return -1;
    }
    return 0;
}

PyObject *error_raise_text(const struct module_state *state, int number, const char *text) {
    PyObject *class = state->error;
    for (size_t i = 0; i < ERROR_KINDS; i++)
        if (kinds[i].number == number)
            class = state->errors[i];
    if (class == NULL) /* the module is being taken down */
        class = PyExc_RuntimeError;
    PyObject *message = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    if (message != NULL && number == GPUPOOL_E_FORKED) {
        PyObject *longer = PyUnicode_FromFormat("%U" FORKED_ADVICE, message);
        Py_DECREF(message);
        message = longer;
    }
    if (message != NULL)
        PyErr_SetObject(class, message);
    Py_XDECREF(message);
    return NULL;
}

PyObject *error_raise(const struct module_state *state, int number) {
    if (number == GPUPOOL_E_CANCELLED && PyErr_Occurred() != NULL)
        return NULL; /* a signal's handler has raised it */
    return error_raise_text(state, number, gpupool_error_text());
}

/* Makes the exception that is set one of PyTorch's, too. Where that fails, it stays as it is. */
static void let_torch_catch(void) {
    PyObject *class, *value, *traceback;

    PyErr_Fetch(&class, &value, &traceback);
    PyObject *module = PyImport_ImportModule("gpupool._errors");
    PyObject *error =
        module == NULL ? NULL : PyObject_CallMethod(module, "no_device_memory", "OO", class, value);
    Py_XDECREF(module);
    if (error == NULL) {
        PyErr_Restore(class, value, traceback); /* the interpreter ends, and imports nothing any more */
        return;
    }
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_DECREF(error);
    Py_DECREF(class);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
}

PyObject *error_raise_of_pool(const struct module_state *state, int number, const struct gpupool_pool *pool) {
    bool is_no_memory =
        number == GPUPOOL_E_TOO_LARGE || number == GPUPOOL_E_EXHAUSTED || number == GPUPOOL_E_LIMIT;

    error_raise(state, number);
    if (is_no_memory && pool->kind == GPUPOOL_POOL_DEVICE)
        let_torch_catch();
    return NULL;
}
