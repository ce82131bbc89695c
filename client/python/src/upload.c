/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/upload.h"

#include <inttypes.h>
#include <stdio.h>

#include "client/include/gpupool/staging.h"
#include "client/python/src/arguments.h"
#include "client/python/src/error.h"

struct upload {
    uint64_t offset_bytes, file_offset_bytes, size_bytes;
    int fd;
};

static int read_upload(PyObject *const *given, struct upload *ret_upload) {
    return arguments_read_bytes(given[1], "offset", &ret_upload->offset_bytes) < 0 ||
                   arguments_read_int(given[2], "fd", &ret_upload->fd) < 0 ||
                   arguments_read_bytes(given[3], "file_offset", &ret_upload->file_offset_bytes) < 0 ||
                   arguments_read_bytes(given[4], "nbytes", &ret_upload->size_bytes) < 0
               ? -1
               : 0;
}

/* Whether a buffer in use can take the part. False with InvalidError. */
static bool can_take(const struct buffer_object *self, const struct upload *upload) {
    const struct module_state *state = self->pool->client->state;
    uint64_t has_bytes = self->buffer.size_bytes;
    char text[160];

    if (self->pool->pool.kind != GPUPOOL_POOL_DEVICE || self->pool->pool.device < 0) {
        error_raise_text(state, GPUPOOL_E_INVALID, "the buffer is not of a device pool of this process");
        return false;
    }
    if (self->is_read_only) {
        error_raise_text(state, GPUPOOL_E_INVALID, "the buffer is read-only");
        return false;
    }
    if (upload->offset_bytes > has_bytes || upload->size_bytes > has_bytes - upload->offset_bytes) {
        snprintf(text, sizeof text,
                 "the buffer has %" PRIu64 " bytes, and not %" PRIu64 " from byte %" PRIu64 " on", has_bytes,
                 upload->size_bytes, upload->offset_bytes);
        error_raise_text(state, GPUPOOL_E_INVALID, text);
        return false;
    }
    return true;
}

PyObject *upload_file(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    struct module_state *state = PyModule_GetState(module);
    struct upload upload;
    int r = -1;

    if (count != 5 || Py_TYPE(given[0]) != state->buffer_type)
        return PyErr_Format(PyExc_TypeError,
                            "_upload_file() takes a gpupool.Buffer of a device pool, an offset in it, a "
                            "descriptor, an offset in the file and a number of bytes");
    struct buffer_object *self = (struct buffer_object *)given[0];
    const struct client_object *client = self->pool->client;
    if (read_upload(given, &upload) < 0 || !buffer_use_contents(self))
        return NULL;
    if (can_take(self, &upload)) {
        WITHOUT_LOCK(r = gpupool_upload_file(client->handle, self->pool->pool.device,
                                             (char *)self->buffer.data + upload.offset_bytes, upload.fd,
                                             upload.file_offset_bytes, upload.size_bytes, self->stream));
        if (r < 0)
            error_raise(state, r);
    }
    buffer_unuse(self);
    return r < 0 ? NULL : Py_NewRef(Py_None);
}
