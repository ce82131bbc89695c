/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/session.h"

#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/error.h"
#include "client/session/process_name.h"

void session_init(struct session *session, uint64_t answer_timeout_ns) {
    fork_guard_init(&session->guard);
    segments_init(&session->segments);
    rows_init(&session->rows);
    pthread_mutex_init(&session->devices.lock, NULL);
    pthread_mutex_init(&session->pools.lock, NULL);
    pthread_mutex_init(&session->page.lock, NULL);
    fences_init(&session->fences);
    pthread_mutex_init(&session->board.lock, NULL);
    fences_init(&session->board_fences);
    session->board_fences.is_on_board = true;
    pthread_mutex_init(&session->closing.lock, NULL);
    held_init(&session->held);
    connection_init(&session->connection, &session->segments, answer_timeout_ns);
}

void session_deinit(struct session *session) {
    connection_deinit(&session->connection);
    segments_deinit(&session->segments);
    rows_deinit(&session->rows);
    fences_close(&session->fences);
    fences_deinit(&session->fences);
    page_close(&session->page);
    fences_deinit(&session->board_fences);
    board_close(&session->board);
    board_deinit(&session->board);
    pthread_mutex_destroy(&session->devices.lock);
    pthread_mutex_destroy(&session->pools.lock);
    pthread_mutex_destroy(&session->closing.lock);
    held_deinit(&session->held);
    fork_guard_deinit(&session->guard);
}

void session_forget(struct session *session) {
    connection_forget(&session->connection);
    segments_forget(&session->segments);
    rows_forget(&session->rows);
    held_forget(&session->held);
    fences_forget(&session->fences);
    fences_forget(&session->board_fences);
    fork_guard_deinit(&session->guard);
}

static void note_daemon(struct session *session, const struct proto_hello_reply *reply) {
    static const uint8_t unknown[PROTO_IDENTITY_BYTES];

    session->devices.kind = (enum proto_gpu_kind)reply->gpu;
    session->id = reply->session;
    if (memcmp(reply->identity, unknown, sizeof unknown) != 0)
        hex_write(reply->identity, sizeof reply->identity, session->daemon_identity);
    memcpy(session->admin_path, reply->admin_path, sizeof session->admin_path);
}

/* name: as for process_name(). The name is of use to people alone: the session does without it. */
static void say_name(struct session *session, const char *name, uint64_t deadline_ns) {
    struct proto_message message = {.header.operation = PROTO_NAME};

    if (process_name(name, &message.name))
        (void)connection_tell(&session->connection, &message, deadline_ns);
}

/* Greets the daemon. *ret_has_ended: the connection ended before any answer. */
static int greet(struct session *session, uint64_t deadline_ns, bool wants_reclaim, int *ret_reclaim_fd,
                 bool *ret_has_ended) {
    _cleanup_(request_recyclep) struct request *request =
        connection_request(&session->connection, PROTO_HELLO);
    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    request->message.hello = (struct proto_hello){
        .magic = PROTO_MAGIC,
        .version_min = PROTO_VERSION_MIN,
        .version_max = PROTO_VERSION_MAX,
        .flags =
            (wants_reclaim ? PROTO_HELLO_RECLAIM : 0) | (session->devices.forbidden ? PROTO_HELLO_NO_GPU : 0),
    };
    int r = connection_exchange(&session->connection, &request, deadline_ns);
    *ret_has_ended = r == GPUPOOL_E_DISCONNECTED;
    if (r < 0)
        /* Nothing was connected yet that could be said to be gone. */
        return r == GPUPOOL_E_DISCONNECTED ? GPUPOOL_E_CONNECT : r;
    if (request->has_lost_fd)
        return error_lost_descriptor("the reply");
    note_daemon(session, &request->message.hello_reply);
    session->connection.is_greeted = true;
    session->connection.version = request->message.hello_reply.version;
    *ret_reclaim_fd = take_fd(&request->fd);
    return 0;
}

/* The pauses of a client whose connections end before the daemon greets it. A daemon that ended is followed by the
 * next one within some 100 ms; one that sends a client away without a word is not to be asked often. */
#define REOPEN_NS_MIN NS_PER_MS
#define REOPEN_NS_MAX (256 * NS_PER_MS)

/* Makes a pause, and doubles the next one. False: there is no time for it. */
static bool pause_before(uint64_t deadline_ns, uint64_t *pause_ns) {
    if (clock_left_ns(deadline_ns) <= *pause_ns)
        return false;
    nanosleep(&(struct timespec){.tv_nsec = (long)*pause_ns}, NULL);
    *pause_ns = *pause_ns * 2 < REOPEN_NS_MAX ? *pause_ns * 2 : REOPEN_NS_MAX;
    return true;
}

int session_open(struct session *session, const char *path, const char *name, uint64_t deadline_ns,
                 bool wants_reclaim, bool reopens, int *ret_reclaim_fd) {
    uint64_t pause_ns = REOPEN_NS_MIN;
    bool has_ended = false;
    int r;

    session->devices.socket_path = path;
    do {
        if (has_ended)
            connection_reset(&session->connection);
        r = connection_open(&session->connection, path, deadline_ns);
        if (r < 0)
            return r;
        r = greet(session, deadline_ns, wants_reclaim, ret_reclaim_fd, &has_ended);
    } while (reopens && has_ended && pause_before(deadline_ns, &pause_ns));
    if (r == 0)
        say_name(session, name, deadline_ns);
    if (r == 0 && session->connection.version >= PROTO_VERSION_RESTARTS)
        alive_begin(&session->connection);
    return r < 0 ? error_prefix(r, "greeting the daemon at %s", path) : 0;
}

static void say_farewell(struct session *session) {
    _cleanup_(request_recyclep) struct request *request = connection_request(&session->connection, PROTO_BYE);
    if (request != NULL)
        (void)connection_exchange(&session->connection, &request,
                                  connection_deadline_ns(&session->connection, 0));
}

void session_leave(struct session *session) {
    pthread_mutex_lock(&session->rows.making); /* for segments that another thread has closed */
    bool is_unmapped = segments_leave(&session->segments);
    pthread_mutex_unlock(&session->rows.making);
    if (!is_unmapped)
        return;
    say_farewell(session);
    (void)shutdown(session->connection.fd, SHUT_RDWR); /* at once, for all threads */
}

void session_close(struct session *session, bool is_idle) {
    if (is_idle)
        rows_close(session);
    bool is_unmapped = segments_close(&session->segments, is_idle);

    fences_close(&session->fences);
    board_close(&session->board);
    if (is_idle && is_unmapped)
        say_farewell(session);
}
