/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/client.h"

#include <string.h>
#include <structmember.h>

#include "client/api/binding.h"
#include "client/python/src/arguments.h"
#include "client/python/src/error.h"
#include "client/python/src/pool.h"

#define DAEMON_ARGUMENTS_MAX 64

/* A default client of this process, and how many objects stand for it: one for each time that the module was
 * imported. The last one closes it. All of this is under the main interpreter's lock, which all interpreters
 * have. */
struct default_client {
    struct gpupool_client *handle;
    unsigned n_objects;
    bool is_librarys; /* gpupool_default() returned it */
};

static struct default_client *current; /* NULL: none was opened, or it was closed */
static bool had_librarys; /* the library's was asked for. It is the first one, or was the allocators' alone */

/* The allocators of gpupool.torch have memory of the library's default client, by pointers. */
static bool has_allocators;

bool client_is_open(const struct client_object *client) {
    if (client->handle != NULL)
        return true;
    error_raise_text(client->state, GPUPOOL_E_STALE, "the client is closed");
    return false;
}

bool client_use(struct client_object *self) {
    if (!client_is_open(self))
        return false;
    self->uses++;
    return true;
}

void client_unuse(struct client_object *self) {
    self->uses--;
}

static struct client_object *client_new(struct module_state *state, struct gpupool_client *handle) {
    struct client_object *self = PyObject_New(struct client_object, state->client_type);
    if (self == NULL)
        return NULL;
    memset((char *)self + sizeof self->ob_base, 0, sizeof *self - sizeof self->ob_base);
    self->handle = handle;
    self->state = state;
    self->next = state->clients;
    state->clients = self;
    return self;
}

static void client_leave_list(struct client_object *self) {
    struct client_object **link = &self->state->clients;
    while (*link != self)
        link = &(*link)->next;
    *link = self->next;
}

/* --- the default client --- */

/* Closing waits for the GPU without a bound, and a farewell does not. */
static bool is_ending_process;

void client_set_ending(bool is_ending) {
    is_ending_process = is_ending;
}

void client_keep_for_allocators(void) {
    has_allocators = true;
}

static void close_without_lock(struct gpupool_client *handle) {
    Py_BEGIN_ALLOW_THREADS;
    gpupool_close(handle);
    Py_END_ALLOW_THREADS;
}

static bool is_usable(const struct default_client *found) {
    return found != NULL && gpupool_internal_is_connected(found->handle);
}

/* Ends an object for a default client. The last one closes the client, but for one that was replaced and may
 * have memory of the allocators. */
static void default_leave(struct default_client *left) {
    struct gpupool_client *handle = left->handle;
    bool is_kept = left->is_librarys && has_allocators && left != current;

    if (--left->n_objects > 0)
        return;
    if (current == left)
        current = NULL;
    PyMem_Free(left);
    if (!is_kept)
        close_without_lock(handle);
}

/* Makes a client, which was opened without the lock, the present default one. False: another thread was
 * faster, or the allocators opened the library's before, and its daemon is gone. */
static bool default_enter(struct default_client *opened) {
    bool is_late = opened->is_librarys ? had_librarys || !is_usable(opened) : is_usable(current);

    had_librarys = true;
    if (!is_late)
        current = opened;
    return !is_late;
}

/* Tells the processes that this one starts which private daemon is theirs. It is for them alone, so nothing
 * that goes wrong matters here. */
static void hand_on(void) {
    PyObject *module = PyImport_ImportModule("gpupool._private");
    PyObject *done = module == NULL ? NULL : PyObject_CallMethod(module, "hand_on", NULL);

    if (done == NULL)
        PyErr_Clear();
    Py_XDECREF(done);
    Py_XDECREF(module);
}

/* Opens a default client, or takes that of a thread that is faster. Counts an object in it. NULL with an
 * exception. */
static struct default_client *default_open(struct module_state *state) {
    struct default_client *opened = PyMem_Calloc(1, sizeof *opened);
    int r;

    if (opened == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    opened->n_objects = 1;
    do {
        opened->is_librarys = !had_librarys;
        Py_BEGIN_ALLOW_THREADS;
        r = opened->is_librarys ? gpupool_default(&opened->handle) : gpupool_open(NULL, &opened->handle);
        Py_END_ALLOW_THREADS;
        if (r == 0 && default_enter(opened)) {
            hand_on();
            return opened;
        }
        if (r == 0 && !opened->is_librarys)
            close_without_lock(opened->handle);
    } while (r == 0 && !is_usable(current));
    PyMem_Free(opened);
    if (r < 0) {
        error_raise(state, r);
        return NULL;
    }
    current->n_objects++;
    return current;
}

/* Gives the module an object for the present default client. Returns a new reference to it; NULL with an
 * exception. */
static PyObject *default_renew(struct module_state *state) {
    struct default_client *found = current;

    if (is_usable(found))
        found->n_objects++;
    else
        found = default_open(state);
    if (found == NULL)
        return NULL;
    struct client_object *old = state->default_client;
    bool is_there = old != NULL && old->as_default == found; /* another thread made it meanwhile */
    struct client_object *client = is_there ? NULL : client_new(state, found->handle);
    if (client == NULL) {
        default_leave(found);
        return is_there ? Py_NewRef((PyObject *)old) : NULL;
    }
    client->as_default = found;
    state->default_client = client;
    PyObject *renewed = Py_NewRef((PyObject *)client); /* before other threads run */
    Py_XDECREF((PyObject *)old);
    return renewed;
}

PyObject *client_default_object(struct module_state *state) {
    struct client_object *client = state->default_client;
    bool is_present = client != NULL && is_usable(client->as_default);

    return is_present ? Py_NewRef((PyObject *)client) : default_renew(state);
}

PyObject *client_find(struct module_state *state, const char *identity) {
    struct client_object *found = NULL;

    for (struct client_object *client = state->clients; client != NULL; client = client->next) {
        bool is_default = current != NULL && client->as_default == current;
        bool is_of_daemon =
            client->handle != NULL && gpupool_internal_is_connected(client->handle) &&
            (identity == NULL ? is_default : strcmp(gpupool_daemon_identity(client->handle), identity) == 0);
        if (is_of_daemon && !client->has_no_cuda && (found == NULL || is_default))
            found = client;
    }
    return Py_NewRef(found != NULL ? (PyObject *)found : Py_None);
}

struct client_object *client_read_argument(struct module_state *state, PyObject *value) {
    if (value == NULL || value == Py_None)
        return (struct client_object *)client_default_object(state);
    if (Py_TYPE(value) != state->client_type) {
        PyErr_Format(PyExc_TypeError, "client must be a gpupool.Client or None, not %R",
                     (PyObject *)Py_TYPE(value));
        return NULL;
    }
    struct client_object *client = (struct client_object *)value;
    return client_is_open(client) ? (struct client_object *)Py_NewRef(value) : NULL;
}

/* --- opening --- */

/* The strings of a tuple, borrowed from it, with NULL at the end. -1 with an exception. */
static int read_strings(PyObject *tuple, const char *ret_strings[static DAEMON_ARGUMENTS_MAX + 1]) {
    Py_ssize_t count = PyTuple_Size(tuple);
    if (count < 0)
        return -1;
    if (count > DAEMON_ARGUMENTS_MAX) {
        PyErr_Format(PyExc_ValueError, "daemon_arguments has more than %d strings", DAEMON_ARGUMENTS_MAX);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyTuple_GetItem(tuple, i);
        ret_strings[i] = item == NULL ? NULL : PyUnicode_AsUTF8AndSize(item, NULL);
        if (ret_strings[i] == NULL)
            return -1;
    }
    ret_strings[count] = NULL;
    return 0;
}

/* 0 means "the default" to the library, so 0 seconds become a nanosecond. */
static int read_option_seconds(PyObject *value, const char *name, uint64_t *ret_ns) {
    if (arguments_read_seconds(value, name, 0, ret_ns) < 0)
        return -1;
    if (value != NULL && value != Py_None && *ret_ns == 0)
        *ret_ns = 1;
    return 0;
}

/* The arguments of gpupool.Client(). Paths and strings are kept by the objects here. */
struct client_arguments {
    struct gpupool_options options;
    PyObject *socket, *daemon_path, *daemon_arguments; /* owned: bytes, bytes, a tuple */
    const char *daemon_strings[DAEMON_ARGUMENTS_MAX + 1];
};

static int read_path(PyObject *value, PyObject **ret_bytes, const char **ret_path) {
    if (value == NULL || value == Py_None)
        return 0;
    if (PyUnicode_FSConverter(value, ret_bytes) == 0)
        return -1;
    *ret_path = PyBytes_AsString(*ret_bytes);
    return *ret_path == NULL ? -1 : 0;
}

static int read_client_arguments(PyObject *positional, PyObject *named, struct client_arguments *into) {
    static char *names[] = {"socket",
                            "daemon_path",
                            "daemon_arguments",
                            "connect_timeout",
                            "answer_timeout",
                            "alloc_timeout",
                            "decay",
                            "cuda",
                            "cache",
                            "prepare_host_bytes",
                            "client_name",
                            NULL};
    PyObject *socket = NULL, *path = NULL, *arguments = NULL, *connect = NULL, *answer = NULL, *alloc = NULL;
    PyObject *decay = NULL, *prepare = NULL;
    const char *name = NULL; /* of a string that the arguments keep */
    int cuda = 1, cache = 1;

    if (!PyArg_ParseTupleAndKeywords(positional, named, "|O$OOOOOOppOz:Client", names, &socket, &path,
                                     &arguments, &connect, &answer, &alloc, &decay, &cuda, &cache, &prepare,
                                     &name))
        return -1;
    if (read_path(socket, &into->socket, &into->options.socket) < 0 ||
        read_path(path, &into->daemon_path, &into->options.daemon_path) < 0 ||
        read_option_seconds(connect, "connect_timeout", &into->options.connect_timeout_ns) < 0 ||
        read_option_seconds(answer, "answer_timeout", &into->options.answer_timeout_ns) < 0 ||
        read_option_seconds(alloc, "alloc_timeout", &into->options.alloc_timeout_ns) < 0 ||
        read_option_seconds(decay, "decay", &into->options.decay_ns) < 0 ||
        (prepare != NULL &&
         arguments_read_bytes(prepare, "prepare_host_bytes", &into->options.prepare_host_bytes) < 0))
        return -1;
    into->options.client_name = name;
    into->options.flags = (cuda ? 0 : GPUPOOL_OPEN_NO_CUDA) | (cache ? 0 : GPUPOOL_OPEN_NO_CACHE);
    if (arguments == NULL || arguments == Py_None)
        return 0;
    if (PyUnicode_Check(arguments)) {
        PyErr_SetString(PyExc_TypeError, "daemon_arguments must be a sequence of strings, not one string");
        return -1;
    }
    into->daemon_arguments = PySequence_Tuple(arguments);
    into->options.daemon_arguments = into->daemon_strings;
    return into->daemon_arguments == NULL ? -1 : read_strings(into->daemon_arguments, into->daemon_strings);
}

static PyObject *client_open(PyTypeObject *type, PyObject *positional, PyObject *named) {
    struct module_state *state = PyType_GetModuleState(type);
    struct client_arguments arguments = {.options = GPUPOOL_OPTIONS_INIT};
    struct gpupool_client *handle = NULL;
    PyObject *self = NULL;

    if (read_client_arguments(positional, named, &arguments) == 0) {
        int r;
        Py_BEGIN_ALLOW_THREADS;
        r = gpupool_open(&arguments.options, &handle);
        Py_END_ALLOW_THREADS;
        self = r < 0 ? error_raise(state, r) : (PyObject *)client_new(state, handle);
        if (self == NULL)
            gpupool_close(handle);
        else if (r == 0)
            ((struct client_object *)self)->has_no_cuda =
                (arguments.options.flags & GPUPOOL_OPEN_NO_CUDA) != 0;
    }
    Py_XDECREF(arguments.socket);
    Py_XDECREF(arguments.daemon_path);
    Py_XDECREF(arguments.daemon_arguments);
    return self;
}

/* --- closing --- */

/* No buffer has exports, and no call is under way. In a forked child this only frees memory. */
static void close_handle(struct client_object *self) {
    struct gpupool_client *handle = self->handle;

    struct default_client *left = self->as_default;

    self->handle = NULL;
    self->as_default = NULL;
    (void)turn_take(&self->closing); /* which no thread has, or waits for, while the handle is there */
    if (left != NULL)
        default_leave(left);
    else
        close_without_lock(handle);
    turn_pass(&self->closing);
}

static PyObject *client_close(PyObject *object, PyObject *none) {
    struct client_object *self = (struct client_object *)object;
    (void)none;
    if (self->handle == NULL)
        Py_RETURN_NONE;
    if (self->as_default != NULL) {
        PyErr_SetString(PyExc_ValueError,
                        "the default client stays open until the process ends; trim() gives "
                        "idle memory back");
        return NULL;
    }
    if (self->exports > 0) {
        PyErr_Format(PyExc_BufferError, "the client's buffers have %u %s, such as arrays and memoryviews",
                     self->exports, self->exports == 1 ? "export" : "exports");
        return NULL;
    }
    if (self->uses > 0) {
        PyErr_Format(PyExc_RuntimeError, "other threads have %u calls of the client under way", self->uses);
        return NULL;
    }
    close_handle(self);
    Py_RETURN_NONE;
}

static void client_dealloc(PyObject *object) {
    struct client_object *self = (struct client_object *)object;
    PyTypeObject *type = Py_TYPE(object);

    client_leave_list(self); /* before code of the program runs, which could find it */
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs(object);
    if (self->handle != NULL && !is_ending_process)
        close_handle(self);
    PyMem_Free(self->pools);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* --- pools --- */

int client_fetch_pools(struct client_object *self) {
    size_t count = self->n_pools > 8 ? self->n_pools : 8, capacity;
    struct gpupool_pool *pools = NULL;
    int r;

    if (!client_use(self))
        return -1;
    do {
        capacity = count;
        PyMem_Free(pools);
        pools = PyMem_Calloc(capacity, sizeof *pools);
        r = pools == NULL ? GPUPOOL_E_NO_MEMORY : 0;
        if (r == 0)
            UNTIL_SIGNAL(self, r = gpupool_pools(self->handle, pools, capacity, &count));
    } while (r == 0 && count > capacity);
    client_unuse(self);
    if (r < 0) {
        if (pools == NULL)
            PyErr_NoMemory();
        else
            error_raise(self->state, r);
        PyMem_Free(pools);
        return -1;
    }
    PyMem_Free(self->pools);
    self->pools = pools;
    self->n_pools = count;
    return 0;
}

static const struct gpupool_pool *look_up(const struct client_object *self, uint32_t id) {
    for (size_t i = 0; i < self->n_pools; i++)
        if (self->pools[i].id == id)
            return &self->pools[i];
    return NULL;
}

int client_find_pool(struct client_object *self, uint32_t id, struct gpupool_pool *ret_pool) {
    const struct gpupool_pool *pool = look_up(self, id);
    if (pool == NULL) {
        if (client_fetch_pools(self) < 0)
            return -1;
        pool = look_up(self, id);
    }
    if (pool == NULL) {
        PyErr_Format(self->state->error, "the daemon lists no pool %u", (unsigned)id);
        return -1;
    }
    *ret_pool = *pool; /* another thread may fetch the list anew */
    return 0;
}

static PyObject *client_pools(PyObject *object, PyObject *none) {
    struct client_object *self = (struct client_object *)object;
    (void)none;
    if (client_fetch_pools(self) < 0)
        return NULL;
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < self->n_pools; i++) {
        PyObject *pool = pool_new(self, self->pools[i].id);
        if (pool == NULL || PyList_Append(list, pool) < 0)
            Py_CLEAR(list);
        Py_XDECREF(pool);
    }
    return list;
}

typedef int pool_finder(struct gpupool_client *client, int where, uint32_t *ret_pool);

static PyObject *find_pool(PyObject *object, const struct signature *signature, pool_finder *find,
                           PyObject *const *given, Py_ssize_t count, PyObject *names) {
    struct client_object *self = (struct client_object *)object;
    PyObject *values[ARGUMENTS_MAX];
    uint32_t id = 0;
    int where = -1, r;

    if (arguments_read(signature, given, count, names, values) < 0 ||
        arguments_read_int(values[0], signature->names[0], &where) < 0 || !client_use(self))
        return NULL;
    UNTIL_SIGNAL(self, r = find(self->handle, where, &id));
    client_unuse(self);
    return r < 0 ? error_raise(self->state, r) : pool_new(self, id);
}

static PyObject *client_device_pool(PyObject *self, PyObject *const *given, Py_ssize_t count,
                                    PyObject *names) {
    static const struct signature signature = {"device_pool", 0, 1, {"device", NULL}};
    return find_pool(self, &signature, gpupool_device_pool, given, count, names);
}

static PyObject *client_host_pool(PyObject *self, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    static const struct signature signature = {"host_pool", 0, 1, {"numa_node", NULL}};
    return find_pool(self, &signature, gpupool_host_pool, given, count, names);
}

/* --- the rest --- */

static PyObject *client_trim(PyObject *object, PyObject *none) {
    struct client_object *self = (struct client_object *)object;
    uint64_t bytes = 0;
    int r;
    (void)none;
    if (!client_use(self))
        return NULL;
    UNTIL_SIGNAL(self, r = gpupool_trim(self->handle, &bytes));
    client_unuse(self);
    return r < 0 ? error_raise(self->state, r) : PyLong_FromUnsignedLongLong(bytes);
}

static PyObject *client_enter(PyObject *self, PyObject *none) {
    (void)none;
    return client_is_open((struct client_object *)self) ? Py_NewRef(self) : NULL;
}

static PyObject *client_exit(PyObject *self, PyObject *exception) {
    (void)exception;
    return client_close(self, NULL);
}

static PyObject *client_get_closed(PyObject *self, void *closure) {
    (void)closure;
    return PyBool_FromLong(((struct client_object *)self)->handle == NULL);
}

static PyObject *client_get_connected(PyObject *object, void *closure) {
    const struct client_object *self = (struct client_object *)object;
    (void)closure;
    return PyBool_FromLong(self->handle != NULL && gpupool_internal_is_connected(self->handle));
}

static PyObject *client_get_connection_state(PyObject *object, void *closure) {
    const struct client_object *self = (struct client_object *)object;
    enum gpupool_connection_state state = GPUPOOL_CONNECTION_LOST;

    (void)closure;
    if (self->handle != NULL)
        (void)gpupool_connection_state(self->handle, &state);
    return PyUnicode_FromString(state == GPUPOOL_CONNECTION_THERE  ? "there"
                                : state == GPUPOOL_CONNECTION_AWAY ? "away"
                                                                   : "lost");
}

static PyObject *client_get_socket_path(PyObject *object, void *closure) {
    struct client_object *self = (struct client_object *)object;
    (void)closure;
    return client_is_open(self) ? PyUnicode_DecodeFSDefault(gpupool_socket_path(self->handle)) : NULL;
}

static PyObject *client_get_identity(PyObject *object, void *closure) {
    struct client_object *self = (struct client_object *)object;
    (void)closure;
    return client_is_open(self) ? PyUnicode_FromString(gpupool_daemon_identity(self->handle)) : NULL;
}

static PyObject *client_get_admin_path(PyObject *object, void *closure) {
    struct client_object *self = (struct client_object *)object;
    (void)closure;
    return client_is_open(self) ? PyUnicode_DecodeFSDefault(gpupool_admin_path(self->handle)) : NULL;
}

static PyObject *client_get_gpu_kind(PyObject *object, void *closure) {
    struct client_object *self = (struct client_object *)object;
    (void)closure;
    if (!client_is_open(self))
        return NULL;
    switch (gpupool_gpu_kind(self->handle)) {
    case GPUPOOL_GPU_CUDA:
        return PyUnicode_FromString("cuda");
    case GPUPOOL_GPU_SIM:
        return PyUnicode_FromString("sim");
    default:
        return PyUnicode_FromString("none");
    }
}

static PyObject *client_repr(PyObject *object) {
    struct client_object *self = (struct client_object *)object;
    if (self->handle == NULL)
        return PyUnicode_FromString("<gpupool.Client, closed>");
    return PyUnicode_FromFormat("<gpupool.Client of the daemon at %s>", gpupool_socket_path(self->handle));
}

static PyMethodDef methods[] = {
    {"device_pool", (PyCFunction)(void (*)(void))client_device_pool, METH_FASTCALL | METH_KEYWORDS,
     "device_pool($self, device=-1)\n--\n\nReturns the Pool of a device, by its ordinal in this process.\n\n"
     "-1: the calling thread's current device."},
    {"host_pool", (PyCFunction)(void (*)(void))client_host_pool, METH_FASTCALL | METH_KEYWORDS,
     "host_pool($self, numa_node=-1)\n--\n\nReturns the Pool of pinned host memory of a NUMA node.\n\n"
     "-1: the node where the calling thread runs, else the first."},
    {"pools", client_pools, METH_NOARGS, "pools($self)\n--\n\nReturns a list of all pools of the daemon."},
    {"trim", client_trim, METH_NOARGS,
     "trim($self)\n--\n\nGives memory that the client keeps idle back to the daemon. Returns the number of "
     "bytes."},
    {"close", client_close, METH_NOARGS,
     "close($self)\n--\n\nGives all memory back and ends the connection. Buffers of the client are stale "
     "afterwards.\n\nRaises BufferError while an array, a memoryview or a DLPack capsule uses one of its "
     "buffers. "
     "The default client cannot be closed."},
    {"__enter__", client_enter, METH_NOARGS, NULL},
    {"__exit__", client_exit, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"closed", client_get_closed, NULL, "Whether close() was called.", NULL},
    {"connected", client_get_connected, NULL,
     "Whether the daemon has the client's session. Once it is False it stays so, and another Client is to be "
     "opened.",
     NULL},
    {"connection_state", client_get_connection_state, NULL,
     "Whether a daemon serves the client at this moment: 'there'; 'away' between a daemon that has ended and "
     "the "
     "next one, which goes on with the client; or 'lost' for ever.",
     NULL},
    {"socket_path", client_get_socket_path, NULL,
     "The path of the daemon's socket. Other processes set GPUPOOL_SOCKET to it to join a private daemon.",
     NULL},
    {"identity", client_get_identity, NULL,
     "32 hexadecimal digits that the daemon made when it started: no other daemon, and no later one, has "
     "them. "
     "Empty: the "
     "daemon does not tell.",
     NULL},
    {"admin_path", client_get_admin_path, NULL,
     "The path of the daemon's admin socket, as the daemon sees it. Empty: the daemon does not tell.", NULL},
    {"gpu_kind", client_get_gpu_kind, NULL,
     "The kind of GPU that the daemon serves: \"cuda\", \"sim\" (simulated) or \"none\".", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(struct client_object, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static const char docstring[] =
    "Client(socket=None, *, daemon_path=None, daemon_arguments=None, connect_timeout=None, "
    "answer_timeout=None, "
    "alloc_timeout=None, decay=None, cuda=True, cache=True, prepare_host_bytes=0, client_name=None)\n--\n\n"
    "A connection to the daemon, with a cache of released memory.\n\n"
    "Most programs use the process's default client, by gpupool.host_pool() and gpupool.device_pool().\n\n"
    "socket: the path of the daemon's socket. None: $GPUPOOL_SOCKET, else /run/gpupool/gpupool.sock. "
    "\"private\": a "
    "daemon is started for this client, and ends with its last client; in $GPUPOOL_SOCKET: one daemon for "
    "this process "
    "and those that it starts.\n"
    "daemon_path, daemon_arguments: for a private daemon, its program and further arguments, such as "
    "[\"--gpu\", \"sim\"].\n"
    "connect_timeout, answer_timeout: seconds to be connected, for an answer. None: 10, 30.\n"
    "alloc_timeout: seconds for acquire() and empty() to wait for room, for attach() and reuse() to wait for "
    "other processes. None: $GPUPOOL_ALLOC_TIMEOUT, else 10; float(\"inf\"): no limit.\n"
    "decay: after so many seconds without use, idle memory goes back to the daemon. None: 10; "
    "float(\"inf\"): never.\n"
    "cuda: False: CUDA is not used in this process; there are host pools only.\n"
    "cache: False: each buffer is taken and given back by a message.\n"
    "prepare_host_bytes: so much host memory is mapped ahead of need.\n"
    "client_name: the name of the process in the daemon's tables. None: $GPUPOOL_CLIENT_NAME, else the "
    "script's.";

static PyType_Slot slots[] = {
    {Py_tp_new, client_open},       {Py_tp_dealloc, client_dealloc},
    {Py_tp_repr, client_repr},      {Py_tp_methods, methods},
    {Py_tp_getset, properties},     {Py_tp_members, members},
    {Py_tp_doc, (char *)docstring}, {0, NULL},
};

PyType_Spec client_spec = {"gpupool.Client", sizeof(struct client_object), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots};
