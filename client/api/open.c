/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing clients, and the default client. */
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/api/client.h"
#include "client/api/farewell.h"
#include "client/api/options.h"
#include "client/api/private_daemon.h"
#include "client/session/call_time.h"
#include "client/session/error.h"

_Atomic(struct gpupool_client *) client_default;

const char *gpupool_version(void) {
    return GPUPOOL_VERSION;
}

static void client_free(struct gpupool_client *client) {
    pthread_mutex_destroy(&client->joins.lock);
    pthread_mutex_destroy(&client->publishing);
    recorded_deinit(&client->recorded);
    shared_deinit(&client->shared);
    sleepers_deinit(&client->sleepers);
    requests_deinit(&client->requests);
    cache_deinit(&client->cache);
    session_deinit(&client->session);
    free(client->socket_path);
    free(client);
}

static void client_freep(struct gpupool_client **client) {
    if (*client != NULL)
        client_free(*client);
}

struct client_attachment *client_attachment_of(const struct gpupool_client *client,
                                               void (*end)(struct client_attachment *attachment,
                                                           bool is_child)) {
    struct client_attachment *attachment = atomic_load(&client->attachments);

    while (attachment != NULL && attachment->end != end)
        attachment = attachment->next;
    return attachment;
}

struct client_attachment *client_attach(struct gpupool_client *client, struct client_attachment *attachment) {
    attachment->next = atomic_load(&client->attachments);
    do { /* a failed exchange leaves the newer first one in next */
        struct client_attachment *other = client_attachment_of(client, attachment->end);
        if (other != NULL)
            return other;
    } while (!atomic_compare_exchange_weak(&client->attachments, &attachment->next, attachment));
    return attachment;
}

/* Ends what objects of the library have attached. */
static void client_end_attachments(struct gpupool_client *client, bool is_child) {
    struct client_attachment *attachment = atomic_exchange(&client->attachments, NULL);

    while (attachment != NULL) {
        struct client_attachment *next = attachment->next;
        attachment->end(attachment, is_child);
        attachment = next;
    }
}

/* The cache counts in the page that is shared with the daemon. Without a page only the statistics are
 * incomplete, unless it was the connection that ended. */
static int client_count(struct gpupool_client *client, uint64_t deadline_ns) {
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    int r = page_need(&client->session.page, &client->session.connection, deadline_ns);
    if (r == GPUPOOL_E_DISCONNECTED || r == GPUPOOL_E_PROTOCOL || r == GPUPOOL_E_TIMED_OUT)
        return error_prefix(r, "greeting the daemon at %s", client->socket_path);
    error_restore(text);
    return 0;
}

/* Makes a client that is not connected. */
static int client_new(const struct gpupool_options *options, struct gpupool_client **ret_client) {
    _cleanup_(client_freep) struct gpupool_client *client = calloc(1, sizeof *client);
    if (client == NULL)
        return error_set(GPUPOOL_E_NO_MEMORY, "no memory for a client");
    session_init(&client->session, options->answer_timeout_ns);
    cache_init(&client->cache, &client->session);
    pthread_mutex_init(&client->joins.lock, NULL);
    pthread_mutex_init(&client->recorded.lock, NULL);
    pthread_mutex_init(&client->shared.lock, NULL);
    pthread_mutex_init(&client->publishing, NULL);
    requests_init(&client->requests);
    sleepers_init(&client->sleepers);
    client->has_no_thread = (options->flags & GPUPOOL_OPEN_NO_THREAD) != 0;
    client->session.devices.forbidden = (options->flags & GPUPOOL_OPEN_NO_CUDA) != 0;
    client->alloc_timeout_ns = options->alloc_timeout_ns;
    int r = options_read_copying((options->flags & GPUPOOL_OPEN_NO_THREAD) == 0, &client->copying);
    if (r == 0)
        r = options_read_arenas(&client->cache.has_arenas);
    if (r < 0)
        return r;
    *ret_client = take_ptr(&client);
    return 0;
}

/* The path of a socket, absolute where a socket can have it so: the program may change its directory, and it
 * may hand the path on. */
static char *absolute_path(const char *path) {
    char directory[sizeof(((struct sockaddr_un *)NULL)->sun_path)], *absolute;
    bool fits = path[0] != '/' && path[0] != '\0' && getcwd(directory, sizeof directory) != NULL &&
                strlen(directory) + 1 + strlen(path) < sizeof directory;

    if (!fits)
        return strdup(path);
    return asprintf(&absolute, "%s/%s", directory, path) < 0 ? NULL : absolute;
}

/* Whether the private daemon is that of the process and its children. One that the program asks for is the
 * client's own. */
static bool joins_private(const struct gpupool_options *given, const struct gpupool_options *options) {
    return strcmp(options->socket, "private") == 0 && (given == NULL || given->socket == NULL) &&
           options->daemon_path == NULL && options->daemon_arguments == NULL;
}

/* Finds the path of the daemon's socket, and starts a private daemon where the options ask for one. */
static int client_find_daemon(struct gpupool_client *client, const struct gpupool_options *options,
                              bool joins, uint64_t deadline_ns) {
    if (joins)
        return private_daemon_join(deadline_ns, &client->socket_path);
    if (strcmp(options->socket, "private") == 0)
        return private_daemon_start(options->daemon_path, options->daemon_arguments, deadline_ns,
                                    &client->socket_path);
    client->socket_path = absolute_path(options->socket);
    return client->socket_path != NULL ? 0
                                       : error_set(GPUPOOL_E_NO_MEMORY, "no memory for the socket's path");
}

/* Makes a client, and connects it. A private daemon may end between the two steps of joining it, as its last
 * client does. Then it is looked for anew: each time other clients have come and gone. */
static int client_connect(const struct gpupool_options *options, bool joins, uint64_t deadline_ns,
                          struct gpupool_client **ret_client, int *ret_reclaim_fd) {
    bool has_cache = (options->flags & GPUPOOL_OPEN_NO_CACHE) == 0, has_ended;
    int r;

    do {
        _cleanup_(client_freep) struct gpupool_client *client = NULL;
        r = client_new(options, &client);
        if (r == 0)
            r = client_find_daemon(client, options, joins, deadline_ns);
        if (r < 0)
            return r;
        /* One that has ended is not connected to again by its path, but joined anew: its founder counts clients. */
        r = session_open(&client->session, client->socket_path, options->client_name, deadline_ns, has_cache,
                         !joins, ret_reclaim_fd);
        if (r == 0)
            *ret_client = take_ptr(&client);
        has_ended = r == GPUPOOL_E_CONNECT || r == GPUPOOL_E_SHUTDOWN;
    } while (joins && has_ended && clock_now_ns() < deadline_ns);
    return r;
}

static int client_start_cache(struct gpupool_client *client, const struct gpupool_options *options,
                              uint64_t deadline_ns, int reclaim_fd) {
    _cleanup_(close_fdp) int owned_fd = reclaim_fd;
    _cleanup_(call_time_end) struct call_time time = call_time_begin_until(deadline_ns);

    client->cache.purger.reclaim = options->reclaim;
    client->cache.purger.reclaim_argument = options->reclaim_argument;
    client->cache.purger.connection_changed = options->connection_changed;
    client->cache.purger.connection_argument = options->connection_changed_argument;
    int r = client_count(client, deadline_ns);
    if (r < 0)
        return r;
    return cache_start(&client->cache, options->decay_ns, take_fd(&owned_fd),
                       (options->flags & GPUPOOL_OPEN_NO_THREAD) == 0);
}

int gpupool_open(const struct gpupool_options *options, struct gpupool_client **ret_client) {
    _cleanup_(client_freep) struct gpupool_client *client = NULL;
    _cleanup_(close_fdp) int reclaim_fd = -1;
    struct gpupool_options own = GPUPOOL_OPTIONS_INIT;

    if (ret_client == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_open: ret_client is NULL");
    int r = options_read(options, &own);
    if (r < 0)
        return r;
    uint64_t deadline_ns = clock_deadline_ns(clock_now_ns(), own.connect_timeout_ns);
    bool has_cache = (own.flags & GPUPOOL_OPEN_NO_CACHE) == 0;

    r = client_connect(&own, joins_private(options, &own), deadline_ns, &client, &reclaim_fd);
    assert(r < 0 || client != NULL);
    if (r == 0 && has_cache)
        r = client_start_cache(client, &own, deadline_ns, take_fd(&reclaim_fd));
    if (r < 0)
        return r;
    farewell_enter(client);
    if (own.prepare_host_bytes > 0) {
        _cleanup_(call_time_end) struct call_time time = call_time_begin(own.alloc_timeout_ns);
        r = client_prepare_host(client, own.prepare_host_bytes);
        if (r < 0) {
            gpupool_close(take_ptr(&client)); /* it has leases, mappings and a thread by now */
            return r;
        }
    }
    *ret_client = take_ptr(&client);
    return error_end(0);
}

/* Host mappings are not in a forked child (DONTFORK); driver, socket and locks are the parent's. */
static void client_forget(struct gpupool_client *client) {
    client_end_attachments(client, true);
    requests_forget(&client->requests);
    cache_forget(&client->cache);
    recorded_forget(&client->recorded);
    shared_forget(&client->shared);
    sleepers_forget(&client->sleepers);
    session_forget(&client->session);
    free(client->socket_path);
    free(client);
}

void gpupool_close(struct gpupool_client *client) {
    struct gpupool_client *expected = client;
    char text[ERROR_TEXT_SIZE];

    if (client == NULL)
        return;
    farewell_remove(client);
    /* One time for all exchanges: a daemon that does not answer makes this call wait once. */
    _cleanup_(call_time_end) struct call_time time =
        call_time_begin_until(connection_deadline_ns(&client->session.connection, 0));
    atomic_compare_exchange_strong(&client_default, &expected, NULL);
    if (fork_guard_is_child(&client->session.guard)) {
        client_forget(client);
        return;
    }
    error_save(text); /* closing cannot fail, so it leaves the thread's last error as it is */
    int error = client_thread()->error;
    client_end_attachments(client, false);
    requests_close(client);
    cache_stop(&client->cache);
    bool is_idle = devices_synchronize(&client->session.devices) == 0;
    joins_close(&client->joins, client->session.devices.gpu);
    session_close(&client->session, is_idle);
    client_free(client);
    error_restore(text);
    error_end(error);
}

const char *gpupool_socket_path(const struct gpupool_client *client) {
    return client != NULL ? client->socket_path : "";
}

int gpupool_is_connected(struct gpupool_client *client) {
    if (client_enter(client) < 0)
        return 0;
    struct connection *connection = &client->session.connection;
    if (connection_check(connection) < 0) /* a call has met the end before: no system call */
        return 0;
    if (connection_is_up(connection)) {
        error_end(0);
        return 1;
    }
    if (connection_hear_end(connection) == 0) /* another thread is reading, and will come to the end */
        connection_report_end();
    return 0;
}

int gpupool_connection_state(struct gpupool_client *client, enum gpupool_connection_state *ret_state) {
    _Static_assert((int)GPUPOOL_CONNECTION_THERE == CONNECTION_THERE &&
                       (int)GPUPOOL_CONNECTION_AWAY == CONNECTION_AWAY &&
                       (int)GPUPOOL_CONNECTION_LOST == CONNECTION_LOST,
                   "one numbering");
    int r = client_enter(client);
    if (r == 0 && ret_state == NULL)
        r = error_set(GPUPOOL_E_INVALID, "ret_state is NULL");
    if (r < 0)
        return error_end(error_prefix(r, "gpupool_connection_state"));
    *ret_state = (enum gpupool_connection_state)connection_state(&client->session.connection);
    return error_end(0);
}

const char *gpupool_daemon_identity(const struct gpupool_client *client) {
    return client != NULL ? client->session.daemon_identity : "";
}

const char *gpupool_admin_path(const struct gpupool_client *client) {
    return client != NULL ? client->session.admin_path : "";
}

enum gpupool_gpu gpupool_gpu_kind(const struct gpupool_client *client) {
    _Static_assert((int)GPUPOOL_GPU_NONE == PROTO_GPU_NONE && (int)GPUPOOL_GPU_CUDA == PROTO_GPU_CUDA &&
                       (int)GPUPOOL_GPU_SIM == PROTO_GPU_SIM,
                   "one numbering");
    return client != NULL ? (enum gpupool_gpu)client->session.devices.kind : GPUPOOL_GPU_NONE;
}

/* --- the default client --- */

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t prepared = PTHREAD_ONCE_INIT;

/* The parent's client is of no use here, and another thread of it may have been opening one at that moment.
 */
static void after_fork_in_child(void) {
    pthread_mutex_init(&opening, NULL);
    atomic_store_explicit(&client_default, NULL, memory_order_relaxed);
}

static void prepare(void) {
    pthread_atfork(NULL, NULL, after_fork_in_child);
}

int gpupool_default(struct gpupool_client **ret_client) {
    if (ret_client == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_default: ret_client is NULL");
    struct gpupool_client *client = atomic_load_explicit(&client_default, memory_order_acquire);
    if (client == NULL) {
        int r = 0;

        pthread_once(&prepared, prepare);
        pthread_mutex_lock(&opening);
        client = atomic_load_explicit(&client_default, memory_order_acquire);
        if (client == NULL) {
            r = gpupool_open(NULL, &client);
            if (r == 0)
                atomic_store_explicit(&client_default, client, memory_order_release);
        }
        pthread_mutex_unlock(&opening);
        if (r < 0)
            return error_prefix(r, "opening the process's default client");
    }
    *ret_client = client;
    return error_end(0);
}
