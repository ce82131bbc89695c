/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PYTHON_NAMES_H
#define CLIENT_PYTHON_NAMES_H
/*
 * Names (<gpupool/names.h>), for gpupool/names.py. An opened name is a tuple of its generation, layout and flags,
 * of its directory (bytes) and of a list of Buffers, which are the program's: each gives its lease back by
 * itself.
 */
#include "client/python/src/buffer.h"

/* _publish(name, buffers, stream, directory, flags): the generation. buffers: of one client, 1 or more */
PyObject *names_publish(PyObject *module, PyObject *const *given, Py_ssize_t count, PyObject *names);

/* _open_name(name, generation, may_build, flags, stream, timeout, client): as above; None: this process is to
 * build */
PyObject *names_open(PyObject *module, PyObject *const *given, Py_ssize_t count, PyObject *names);

/* _watch_name(name, generation, timeout, client): the present generation; 0: there is none */
PyObject *names_watch(PyObject *module, PyObject *const *given, Py_ssize_t count, PyObject *names);

/* _end_name(name, generation, client), where generation None is to give up building */
PyObject *names_end(PyObject *module, PyObject *const *given, Py_ssize_t count, PyObject *names);

/* _list_names(client): a list of tuples: name, generation, bytes, layout, session, flags, buffers */
PyObject *names_list(PyObject *module, PyObject *const *given, Py_ssize_t count, PyObject *names);

#endif
