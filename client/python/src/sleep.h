/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PYTHON_SLEEP_H
#define CLIENT_PYTHON_SLEEP_H
/*
 * Buffers that sleep: Buffer.sleep() and Buffer.wake(). A sleeping buffer has addresses and no memory.
 *
 * A Buffer with exports may sleep: their pointers are good again when it wakes. While it sleeps, no export can
 * be made, and no call that uses the contents begins. An access through an earlier export is the program's
 * mistake: it ends the CUDA context; of a simulated GPU, the process.
 */
#include "client/python/src/buffer.h"

/* Buffer.sleep() */
PyObject *sleep_buffer(PyObject *buffer, PyObject *const *given, Py_ssize_t count, PyObject *names);

/* Buffer.wake() */
PyObject *sleep_wake(PyObject *buffer, PyObject *const *given, Py_ssize_t count, PyObject *names);

/* Buffer.asleep */
PyObject *sleep_get_asleep(PyObject *buffer, void *closure);

#endif
