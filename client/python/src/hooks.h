/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PYTHON_HOOKS_H
#define CLIENT_PYTHON_HOOKS_H
/* Functions of the module for the package's own allocator hooks (triton.py and its like). */
#include "client/python/src/module.h"

/* _wait_for_device(client, device): waits for all work of the process on a device. */
PyObject *hooks_wait_for_device(PyObject *module, PyObject *const *given, Py_ssize_t count);

/* _is_captured(client, device, stream): whether a stream is being captured into a graph. */
PyObject *hooks_is_captured(PyObject *module, PyObject *const *given, Py_ssize_t count);

/* _alloc_timeout(client): the seconds that the client's alloc_timeout says; math.inf: no limit. */
PyObject *hooks_alloc_timeout(PyObject *module, PyObject *client);

/* _check_memory(address): raises ForkedError if the address lies in memory of a pool that a parent of this
 * process has. An access would end the process. */
PyObject *hooks_check_memory(PyObject *module, PyObject *address);

#endif
