/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PYTHON_UPLOAD_H
#define CLIENT_PYTHON_UPLOAD_H
/* Files that are read straight into buffers of device pools (staging.h). */
#include "client/python/src/buffer.h"

/* _upload_file(buffer, offset, fd, file_offset, nbytes): reads a part of a file into a buffer of a device
 * pool, from a byte of the buffer on, in the order of the buffer's stream. On return all of it was read.
 * Raises what gpupool_upload_file() says. */
PyObject *upload_file(PyObject *module, PyObject *const *given, Py_ssize_t count);

#endif
