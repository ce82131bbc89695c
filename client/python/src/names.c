/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/names.h"

#include <gpupool/names.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/python/src/arguments.h"
#include "client/python/src/error.h"
#include "client/python/src/share.h"

/* Between two looks for signals while a name is waited for. A call that waits cannot be broken off. */
#define LOOK_NS (NS_PER_S / 4)

static int read_number(PyObject *value, uint64_t *ret_number) {
    *ret_number = value == NULL || value == Py_None ? 0 : PyLong_AsUnsignedLongLong(value);
    return PyErr_Occurred() != NULL ? -1 : 0;
}

static const char *read_name(PyObject *value) {
    return PyUnicode_AsUTF8AndSize(value, NULL);
}

/* --- publishing --- */

/* The buffers of a publication, in its order and by address, each with the turn for a call of the library. Threads
 * take the turns by address: two publications that have buffers in common do not wait for each other. */
struct set {
    struct buffer_object *objects[GPUPOOL_NAME_BUFFERS_MAX], *by_address[GPUPOOL_NAME_BUFFERS_MAX];
    struct gpupool_buffer buffers[GPUPOOL_NAME_BUFFERS_MAX];
    size_t count, n_begun;
};

static void end_set(struct set *set) {
    while (set->n_begun > 0)
        buffer_end(set->by_address[--set->n_begun]);
}

/* Enters a buffer. -1 with an exception. */
static int add_to_set(const struct module_state *state, PyObject *item, struct set *set) {
    struct buffer_object *buffer = (struct buffer_object *)item;
    size_t place = set->count;

    if (item == NULL || Py_TYPE(item) != state->buffer_type) {
        PyErr_SetString(PyExc_TypeError, "buffers must be a sequence of gpupool.Buffer");
        return -1;
    }
    if (set->count > 0 && buffer->pool->client != set->objects[0]->pool->client) {
        PyErr_SetString(PyExc_ValueError, "the buffers are of several clients");
        return -1;
    }
    for (; place > 0 && set->by_address[place - 1] >= buffer; place--) {
        if (set->by_address[place - 1] == buffer) {
            PyErr_SetString(PyExc_ValueError, "a buffer is named twice");
            return -1;
        }
        set->by_address[place] = set->by_address[place - 1];
    }
    set->by_address[place] = buffer;
    set->objects[set->count++] = buffer;
    return 0;
}

/* list: a tuple, which keeps the buffers. -1 with an exception. */
static int begin_set(const struct module_state *state, PyObject *list, struct set *set) {
    Py_ssize_t count = PyTuple_Size(list);

    if (count < 1 || count > (Py_ssize_t)GPUPOOL_NAME_BUFFERS_MAX) {
        PyErr_Format(PyExc_ValueError, "a name has 1 to %u buffers, not %zd", GPUPOOL_NAME_BUFFERS_MAX, count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (add_to_set(state, PyTuple_GetItem(list, i), set) < 0)
            return -1;
    for (; set->n_begun < set->count; set->n_begun++)
        if (!buffer_begin(set->by_address[set->n_begun])) {
            end_set(set);
            return -1;
        }
    for (size_t i = 0; i < set->count; i++)
        set->buffers[i] = set->objects[i]->buffer;
    return 0;
}

/* Publishes the buffers of a tuple. */
static PyObject *publish(struct module_state *state, const char *name, PyObject *list, void *stream,
                         const struct gpupool_publication *publication) {
    struct set set = {.count = 0};
    uint64_t generation = 0;
    int r;

    if (begin_set(state, list, &set) < 0)
        return NULL;
    const struct client_object *client = set.objects[0]->pool->client;
    UNTIL_SIGNAL(client, r = gpupool_publish(client->handle, name, set.buffers, set.count, stream, publication,
                                             &generation));
    end_set(&set);
    return r < 0 ? error_raise(state, r) : PyLong_FromUnsignedLongLong(generation);
}

PyObject *names_publish(PyObject *module, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    static const struct signature signature = {
        "_publish", 5, 5, {"name", "buffers", "stream", "directory", "flags", NULL}};
    struct module_state *state = PyModule_GetState(module);
    struct gpupool_publication publication = GPUPOOL_PUBLICATION_INIT;
    PyObject *values[ARGUMENTS_MAX], *done = NULL;
    struct stream stream;
    uint64_t flags;
    Py_buffer view;

    if (arguments_read(&signature, given, count, names, values) < 0 || read_number(values[4], &flags) < 0)
        return NULL;
    const char *name = read_name(values[0]);
    PyObject *list = name == NULL ? NULL : PySequence_Tuple(values[1]);
    if (list == NULL)
        return NULL;
    if (PyObject_GetBuffer(values[3], &view, PyBUF_SIMPLE) < 0) {
        Py_DECREF(list);
        return NULL;
    }
    publication.flags = (uint32_t)flags;
    publication.directory = view.buf;
    publication.directory_bytes = (size_t)view.len;
    if (stream_read(state, values[2], GPUPOOL_NO_STREAM, &stream) == 0) {
        done = publish(state, name, list, stream.handle, &publication);
        stream_drop(state, stream.object);
    }
    PyBuffer_Release(&view);
    Py_DECREF(list);
    return done;
}

/* --- opening --- */

struct opening {
    const char *name;
    uint64_t generation, deadline_ns;
    uint32_t flags;
    bool may_build;
    struct stream stream;
    bool has_stream;
};

/* The time of the next call: signals are looked for behind it, in the thread that has handlers. */
static uint64_t next_wait_ns(uint64_t deadline_ns) {
    uint64_t left_ns = clock_left_ns(deadline_ns);
    return getpid() == gettid() && left_ns > LOOK_NS ? LOOK_NS : left_ns;
}

/* Whether a call that was not served in its time is made again. */
static bool goes_on(int r, uint64_t deadline_ns) {
    return r == GPUPOOL_E_NO_NAME && clock_left_ns(deadline_ns) > 0 && PyErr_CheckSignals() == 0;
}

/* *ret_name: NULL: this process is to build. 0, or the library's error; an exception of a signal's handler may be
 * set. */
static int open_waiting(const struct client_object *client, const struct opening *opening,
                        struct gpupool_name **ret_name) {
    int r, builds;

    do {
        uint64_t wait_ns = next_wait_ns(opening->deadline_ns);
        *ret_name = NULL;
        WITHOUT_LOCK(r = opening->may_build
                             ? gpupool_open_or_build(client->handle, opening->name, opening->flags,
                                                     opening->stream.handle, wait_ns, ret_name, &builds)
                             : gpupool_open_name(client->handle, opening->name, opening->generation,
                                                 opening->flags, opening->stream.handle, wait_ns, ret_name));
    } while (goes_on(r, opening->deadline_ns));
    return r;
}

/* The Buffers of an opened name, of which it has none afterwards. NULL with an exception, and all of them went
 * back. */
static PyObject *wrap_all(struct client_object *client, const struct opening *opening,
                          const struct gpupool_name *name) {
    size_t count;
    const struct gpupool_buffer *buffers = gpupool_name_buffers(name, &count);
    bool is_read_only = (gpupool_name_flags(name) & GPUPOOL_NAME_LIVE) == 0 ||
                        (opening->flags & GPUPOOL_NAME_WRITE) == 0;
    PyObject *list = PyList_New(0);

    for (size_t i = 0; i < count; i++) {
        struct gpupool_buffer buffer = buffers[i];
        struct stream stream = opening->stream;
        stream.object = stream_hold(client->state, stream.object);
        PyObject *wrapped =
            list == NULL ? NULL : share_wrap(client, &buffer, stream, opening->has_stream, is_read_only);
        if (list == NULL) {
            stream_drop(client->state, stream.object);
            WITHOUT_LOCK(gpupool_release(client->handle, &buffer, GPUPOOL_NO_STREAM));
        }
        if (wrapped == NULL || PyList_Append(list, wrapped) < 0)
            Py_CLEAR(list);
        Py_XDECREF(wrapped);
    }
    return list;
}

static PyObject *describe(struct client_object *client, const struct opening *opening,
                          struct gpupool_name *name) {
    size_t bytes;
    const char *directory = gpupool_name_directory(name, &bytes);
    PyObject *buffers = wrap_all(client, opening, name), *opened = NULL;

    if (buffers != NULL)
        opened = Py_BuildValue("(KKIy#N)", (unsigned long long)gpupool_name_generation(name),
                               (unsigned long long)gpupool_name_layout(name),
                               (unsigned)gpupool_name_flags(name), directory == NULL ? "" : directory,
                               (Py_ssize_t)bytes, buffers);
    (void)gpupool_close_name(NULL, name, GPUPOOL_NO_STREAM); /* its buffers are Python's */
    return opened;
}

PyObject *names_open(PyObject *module, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    static const struct signature signature = {
        "_open_name", 7, 7, {"name", "generation", "may_build", "flags", "stream", "timeout", "client", NULL}};
    struct module_state *state = PyModule_GetState(module);
    PyObject *values[ARGUMENTS_MAX], *opened = NULL;
    struct gpupool_name *name = NULL;
    struct opening opening;
    uint64_t flags, timeout_ns;
    int may_build;

    if (arguments_read(&signature, given, count, names, values) < 0 ||
        (opening.name = read_name(values[0])) == NULL || read_number(values[1], &opening.generation) < 0 ||
        (may_build = PyObject_IsTrue(values[2])) < 0 || read_number(values[3], &flags) < 0 ||
        arguments_read_seconds(values[5], "timeout", GPUPOOL_FOREVER, &timeout_ns) < 0)
        return NULL;
    opening.flags = (uint32_t)flags;
    opening.may_build = may_build != 0;
    opening.has_stream = values[4] != Py_None;
    opening.deadline_ns = clock_deadline_ns(clock_now_ns(), timeout_ns);
    if (stream_read(state, values[4], GPUPOOL_NO_STREAM, &opening.stream) < 0)
        return NULL;
    struct client_object *client = client_read_argument(state, values[6]);
    if (client != NULL && client_use(client)) {
        int r = open_waiting(client, &opening, &name);
        if (r == 0)
            opened = name == NULL ? Py_NewRef(Py_None) : describe(client, &opening, name);
        else if (PyErr_Occurred() == NULL)
            error_raise(state, r);
        client_unuse(client);
    }
    stream_drop(state, opening.stream.object);
    Py_XDECREF((PyObject *)client);
    return opened;
}

/* --- the rest --- */

PyObject *names_watch(PyObject *module, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    static const struct signature signature = {
        "_watch_name", 4, 4, {"name", "generation", "timeout", "client", NULL}};
    struct module_state *state = PyModule_GetState(module);
    uint64_t generation, timeout_ns, present = 0;
    PyObject *values[ARGUMENTS_MAX];
    const char *name;
    int r = -1;

    if (arguments_read(&signature, given, count, names, values) < 0 ||
        (name = read_name(values[0])) == NULL || read_number(values[1], &generation) < 0 ||
        arguments_read_seconds(values[2], "timeout", GPUPOOL_FOREVER, &timeout_ns) < 0)
        return NULL;
    uint64_t deadline_ns = clock_deadline_ns(clock_now_ns(), timeout_ns);
    struct client_object *client = client_read_argument(state, values[3]);
    if (client != NULL && client_use(client)) {
        do {
            uint64_t wait_ns = next_wait_ns(deadline_ns);
            WITHOUT_LOCK(r = gpupool_watch_name(client->handle, name, generation, wait_ns, &present));
        } while (goes_on(r, deadline_ns));
        if (r < 0 && PyErr_Occurred() == NULL)
            error_raise(state, r);
        client_unuse(client);
    }
    Py_XDECREF((PyObject *)client);
    return r < 0 ? NULL : PyLong_FromUnsignedLongLong(present);
}

PyObject *names_end(PyObject *module, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    static const struct signature signature = {"_end_name", 3, 3, {"name", "generation", "client", NULL}};
    struct module_state *state = PyModule_GetState(module);
    PyObject *values[ARGUMENTS_MAX];
    uint64_t generation;
    const char *name;
    int r = -1;

    if (arguments_read(&signature, given, count, names, values) < 0 ||
        (name = read_name(values[0])) == NULL || read_number(values[1], &generation) < 0)
        return NULL;
    struct client_object *client = client_read_argument(state, values[2]);
    if (client != NULL && client_use(client)) {
        bool is_build = values[1] == Py_None;
        UNTIL_SIGNAL(client, r = is_build ? gpupool_abandon_name(client->handle, name)
                                          : gpupool_unpublish(client->handle, name, generation));
        if (r < 0)
            error_raise(state, r);
        client_unuse(client);
    }
    Py_XDECREF((PyObject *)client);
    return r < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *tuples_of(const struct gpupool_name_info *infos, size_t count) {
    PyObject *list = PyList_New(0);

    for (size_t i = 0; list != NULL && i < count; i++) {
        const struct gpupool_name_info *info = &infos[i];
        PyObject *tuple =
            Py_BuildValue("(sKKKKII)", info->name, (unsigned long long)info->generation,
                          (unsigned long long)info->bytes, (unsigned long long)info->layout,
                          (unsigned long long)info->session, (unsigned)info->flags, (unsigned)info->buffers);
        if (tuple == NULL || PyList_Append(list, tuple) < 0)
            Py_CLEAR(list);
        Py_XDECREF(tuple);
    }
    return list;
}

PyObject *names_list(PyObject *module, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    static const struct signature signature = {"_list_names", 1, 1, {"client", NULL}};
    struct module_state *state = PyModule_GetState(module);
    PyObject *values[ARGUMENTS_MAX], *list = NULL;
    struct gpupool_name_info *infos = NULL;
    size_t n_names = 64, capacity;
    int r;

    if (arguments_read(&signature, given, count, names, values) < 0)
        return NULL;
    struct client_object *client = client_read_argument(state, values[0]);
    if (client == NULL || !client_use(client)) {
        Py_XDECREF((PyObject *)client);
        return NULL;
    }
    do {
        capacity = n_names;
        PyMem_Free(infos);
        infos = PyMem_Calloc(capacity, sizeof *infos);
        r = infos == NULL ? GPUPOOL_E_NO_MEMORY : 0;
        if (r == 0)
            UNTIL_SIGNAL(client, r = gpupool_names(client->handle, infos, capacity, &n_names));
    } while (r == 0 && n_names > capacity);
    client_unuse(client);
    if (infos == NULL)
        PyErr_NoMemory();
    else
        list = r < 0 ? error_raise(state, r) : tuples_of(infos, n_names);
    PyMem_Free(infos);
    Py_DECREF((PyObject *)client);
    return list;
}
