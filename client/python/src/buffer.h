/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PYTHON_BUFFER_H
#define CLIENT_PYTHON_BUFFER_H
/*
 * A Buffer: memory of a pool on loan. Its deallocation gives the memory back, on its stream.
 *
 * It keeps its Pool, and so the Client, and the objects of all streams that it knows. It is open, or closed:
 * then the library's buffer is zero. exports counts what uses the memory beside it: memoryviews, NumPy
 * arrays, DLPack capsules. Each of them keeps the Buffer, and while there is one, close() is refused. uses
 * counts the calls that use it, which may be without the interpreter's lock; while there is one, close() is
 * refused too. The library allows one call at a time about its buffer: that call has the turn.
 *
 * is_asleep: the memory is not mapped (sleep.h). Then nothing that uses the contents is begun.
 *
 * The garbage collector tracks a Buffer once it has an object of a stream: before, nothing that it has can
 * lead back to it. There is no tp_clear: a stream must outlive the release.
 */
#include "client/python/src/pool.h"
#include "client/python/src/turn.h"

struct buffer_object;

/* How memory differs that Python shows in one way: a Buffer's own, and that of a Frame (frame.h). */
struct buffer_kind {
    const char *name;   /* in texts */
    const char *closed; /* the text of StaleError */
    /* Has the release come behind a further stream's work. The buffer has the turn; without the interpreter's
     * lock. Returns 0, or an error of the library. */
    int (*record)(struct buffer_object *self, void *stream);
    /* Notes that the last export has ended. NULL: nothing is to be done. */
    void (*note_unused)(struct buffer_object *self);
    bool is_always_tracked; /* by the garbage collector */
};

struct buffer_object {
    PyObject ob_base;
    const struct buffer_kind *kind;
    struct gpupool_buffer buffer;
    struct pool_object *pool;
    void *stream;            /* the memory is released on it */
    PyObject *stream_object; /* NULL: nothing has to live for it */
    PyObject *kept;          /* list of the objects of recorded streams; NULL: none */
    PyObject *weakrefs;
    struct turn turn; /* of the calls that pass buffer to the library */
    uint32_t exports, uses;
    bool is_closed, is_read_only, is_asleep;
};

extern PyType_Spec buffer_spec;
extern PyStructSequence_Desc buffer_info_desc;

/* A closed Buffer, whose library's buffer the caller fills. Takes stream.object, also on failure. */
struct buffer_object *buffer_new(struct pool_object *pool, struct stream stream);

/* Opens a buffer when its memory is there, and closes it. The client counts open buffers. */
void buffer_set_open(struct buffer_object *self, bool is_open);

/* Raises StaleError and returns false if the buffer, or its client, is closed; ForkedError if they are a
 * parent's, whose memory is not mapped in this process. */
bool buffer_is_open(const struct buffer_object *self);

/* Counts a use of an open buffer and its client, which cannot be closed until its end. False with StaleError.
 */
bool buffer_use(struct buffer_object *self);
void buffer_unuse(struct buffer_object *self);

/* As buffer_use(), for an export or a call that uses the contents. False with an exception, also if the buffer sleeps. */
bool buffer_use_contents(struct buffer_object *self);

/* Raises InvalidError and returns false if the buffer sleeps. */
bool buffer_is_awake(const struct buffer_object *self);

/* As buffer_use(), and waits for the turn to pass the buffer to the library. No code of the program runs
 * before buffer_end(). False with an exception. */
bool buffer_begin(struct buffer_object *self);
void buffer_end(struct buffer_object *self);

/* Whether the CPU may use the memory: host memory, and that of a simulated GPU. */
bool buffer_is_on_host(const struct buffer_object *self);

/* Counts something that uses the memory and keeps the Buffer; and that it ended. */
void buffer_export(struct buffer_object *self);
void buffer_end_export(struct buffer_object *self);

/* Before the CPU looks at memory of a simulated GPU: waits for the stream of a buffer in use. -1 with an
 * exception. */
int buffer_settle(struct buffer_object *self);

/* Notes a further stream that uses the memory, and keeps its object. -1 with an exception. */
int buffer_record(struct buffer_object *self, struct stream stream);

/* Takes the objects of the streams off a buffer that is released. */
void buffer_drop_streams(struct buffer_object *self);

/* Raises BufferError and returns true if the buffer has exports or calls under way. */
bool buffer_is_in_use(const struct buffer_object *self);

/* --- Python's protocols, methods and attributes of a Buffer, which a Frame has too --- */

int buffer_get_memory(PyObject *object, Py_buffer *view, int flags);
void buffer_release_memory(PyObject *object, Py_buffer *view);
int buffer_traverse(PyObject *object, visitproc visit, void *arg);
PyObject *buffer_record_stream(PyObject *object, PyObject *value);
PyObject *buffer_dlpack(PyObject *object, PyObject *const *given, Py_ssize_t count, PyObject *names);
PyObject *buffer_dlpack_device(PyObject *self, PyObject *none);
PyObject *buffer_refuse_copy(PyObject *self, PyObject *memo);
PyObject *buffer_get_cuda_interface(PyObject *object, void *closure);
PyObject *buffer_get_ptr(PyObject *object, void *closure);
PyObject *buffer_get_nbytes(PyObject *object, void *closure);
PyObject *buffer_get_capacity(PyObject *object, void *closure);
PyObject *buffer_get_of_pool(PyObject *object, void *name);
PyObject *buffer_get_pool(PyObject *self, void *closure);
PyObject *buffer_get_stream(PyObject *object, void *closure);
PyObject *buffer_get_closed(PyObject *object, void *closure);
PyObject *buffer_get_read_only(PyObject *self, void *closure);

#endif
