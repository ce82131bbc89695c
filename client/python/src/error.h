/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PYTHON_ERROR_H
#define CLIENT_PYTHON_ERROR_H
/*
 * The exceptions: gpupool.Error, and a subclass for each GPUPOOL_E_… with the attributes number and name.
 * Where Python has an exception for the case, the subclass is one of that kind too.
 */
#include "client/python/src/module.h"

/* Makes the classes and adds them to the module. -1 with an exception. */
int errors_add(PyObject *module, struct module_state *state);

/* Raises the calling thread's last error of the library. Returns NULL. */
PyObject *error_raise(const struct module_state *state, int number);

/* As error_raise(), for a call that takes memory of a pool. Where there is none in a device pool, the
 * exception is a torch.OutOfMemoryError as well, if PyTorch is loaded. May run code of Python's modules. */
PyObject *error_raise_of_pool(const struct module_state *state, int number, const struct gpupool_pool *pool);

/* Raises an error of this module's own, of a number of the library. Returns NULL. */
PyObject *error_raise_text(const struct module_state *state, int number, const char *text);

#endif
