/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PYTHON_MODULE_H
#define CLIENT_PYTHON_MODULE_H
/*
 * The extension module gpupool._gpupool: its types and exceptions, and the process's default client.
 *
 * One state for each interpreter that imports the module. The types keep the module alive, and each object
 * keeps its type alive, so the state outlives all objects. Every function runs under the interpreter's lock
 * unless its comment says otherwise.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/api/binding.h"
#include "client/include/gpupool/gpupool.h"

#define ERROR_KINDS 24

struct client_object;

struct module_state {
    PyTypeObject *client_type, *pool_type, *buffer_type, *array_type, *stream_type;
    PyTypeObject *producer_type, *consumer_type, *frame_type;
    PyTypeObject *pool_info_type, *buffer_info_type; /* named tuples */
    PyObject *error;                                 /* gpupool.Error */
    PyObject *errors[ERROR_KINDS];        /* its subclasses, in the order of the table in error.c */
    struct client_object *default_client; /* NULL: not asked for yet; perhaps to be renewed (client.h) */
    struct client_object *clients;        /* all, by their next; borrowed */
};

/* The state by any object of the module's types. */
static inline struct module_state *state_of(PyObject *object) {
    return PyType_GetModuleState(Py_TYPE(object));
}

/* Gives up the interpreter's lock for a call of the library. The call counts its objects before, by
 * client_use(), buffer_use(), buffer_begin() or stream_use():
 *
 *   1. The arguments are converted. Code of the program may run there, and close anything.
 *   2. The use is counted. This looks whether the object is open.
 *   3. The call runs without the lock. No other thread can close what is counted.
 *   4. The use ends.
 *   5. Exceptions are raised, and the objects of the arguments are dropped.
 */
#define WITHOUT_LOCK(statement)                                                                              \
    do {                                                                                                     \
        Py_BEGIN_ALLOW_THREADS;                                                                              \
        statement;                                                                                           \
        Py_END_ALLOW_THREADS;                                                                                \
    } while (0)

/* As WITHOUT_LOCK(), for a call of the library that sets r, and that is made again after signals whose
 * handlers raise nothing: so Ctrl-C works while a daemon does not answer. client: a struct client_object.
 * Where a handler raises, r is CANCELLED, and error_raise() leaves its exception. */
#define UNTIL_SIGNAL(client, statement)                                                                      \
    do {                                                                                                     \
        uint64_t end_ns_ = gpupool_internal_answer_end_ns((client)->handle);                                 \
        do                                                                                                   \
            WITHOUT_LOCK({                                                                                   \
                gpupool_internal_until_signal(end_ns_);                                                      \
                statement;                                                                                   \
                gpupool_internal_until_signal(0);                                                            \
            });                                                                                              \
        while (r == GPUPOOL_E_CANCELLED && PyErr_CheckSignals() == 0);                                       \
    } while (0)

#endif
