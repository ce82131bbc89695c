/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PYTHON_CLIENT_H
#define CLIENT_PYTHON_CLIENT_H
/*
 * A Client: the library's client, opened by gpupool.Client() or the process's default one.
 *
 * Pools, buffers and streams keep their Client alive. handle is NULL once it is closed: what belongs to it is
 * stale then. uses counts the calls that use it, exports the exports of buffers: while there are any, close()
 * is refused.
 *
 * The default client is not closed by close(). When its daemon is gone, and in a forked child, another one
 * takes its place as soon as it is asked for. The one before lives as long as objects of it do: then it is
 * closed. A process that ends says farewell for all clients (gpupool_internal_say_farewell()).
 */
#include "client/python/src/turn.h"

struct client_object {
    PyObject ob_base;
    struct gpupool_client *handle;
    struct module_state *state;
    PyObject *weakrefs;
    struct gpupool_pool *pools; /* as they were when the daemon was asked last */
    size_t n_pools;
    uint32_t uses, exports;
    struct turn closing; /* of the thread that closes the handle, and of those that leave a place afterwards */
    struct default_client *as_default; /* NULL: opened by gpupool.Client() */
    bool has_no_cuda;                  /* opened with cuda=False */
    struct client_object *next;        /* in the module's state */
};

extern PyType_Spec client_spec;

/* The default client, opened if need be. It was connected a moment ago. Returns a new reference; NULL with an
 * exception. */
PyObject *client_default_object(struct module_state *state);

/* An open Client of the daemon with this identity that serves all its pools, the default one if it is one;
 * NULL: the default one, if it is open. Returns a new reference, to None if there is none. */
PyObject *client_find(struct module_state *state, const char *identity);

/* From now on the allocators of gpupool.torch use the library's default client. */
void client_keep_for_allocators(void);

/* From now on clients stay open whose objects die: the process ends, and says farewell for them. is_ending:
 * false where it goes on, and starts another interpreter. */
void client_set_ending(bool is_ending);

/* A Client that was passed as an argument; NULL or None: the default one. Returns a new reference. */
struct client_object *client_read_argument(struct module_state *state, PyObject *value);

/* Raises StaleError and returns false if the client is closed. */
bool client_is_open(const struct client_object *client);

/* Counts a use of an open client, which cannot be closed until its end. False with StaleError. */
bool client_use(struct client_object *client);
void client_unuse(struct client_object *client);

/* Has the daemon list its pools anew. -1 with an exception. */
int client_fetch_pools(struct client_object *client);

/* A pool of the list. -1 with an exception. */
int client_find_pool(struct client_object *client, uint32_t id, struct gpupool_pool *ret_pool);

#endif
