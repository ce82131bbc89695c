/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/alive.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/session/connection.h"
#include "client/session/error.h"
#include "client/session/socket.h"
#include "client/session/thread.h"

void alive_init(struct alive *alive) {
    *alive = (struct alive){.fd = -1, .epoll_fd = -1, .wake_fd = -1};
}

void alive_deinit(struct alive *alive) {
    alive->fd = close_fd(alive->fd);
}

static bool has_hung_up(int fd) {
    struct pollfd end = {.fd = fd};

    return poll(&end, 1, 0) > 0;
}

static void wake(const struct alive *alive) {
    uint64_t one = 1;

    while (alive->wake_fd >= 0 && write(alive->wake_fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

/* Where it cannot be watched, changes are found when a thread looks. */
static void watch_fd(const struct alive *alive) {
    if (alive->epoll_fd >= 0 && alive->fd >= 0)
        (void)epoll_ctl(alive->epoll_fd, EPOLL_CTL_ADD, alive->fd, &(struct epoll_event){0});
}

static void drop_fd(struct alive *alive) {
    if (alive->epoll_fd >= 0 && alive->fd >= 0)
        (void)epoll_ctl(alive->epoll_fd, EPOLL_CTL_DEL, alive->fd, &(struct epoll_event){0});
    alive->fd = close_fd(alive->fd);
}

/* Enters a request that no thread waits for. NULL: there is no memory. */
static struct request *enlist(struct connection *connection) {
    struct request *request = connection_request(connection, PROTO_ASK_ALIVE);

    if (request == NULL)
        return NULL;
    pthread_mutex_lock(&connection->lock);
    request->id = request->message.header.request = ++connection->last_id;
    request->is_sent = true;
    list_append(&connection->abandoned, &request->link);
    pthread_mutex_unlock(&connection->lock);
    return request;
}

/* alive.is_asked is set. Where the outbox has no room, the next look asks again. */
static void ask(struct connection *connection) {
    char text[ERROR_TEXT_SIZE];
    uint8_t packet[PROTO_PACKET_MAX];

    error_save(text);
    struct request *request = enlist(connection);
    error_restore(text);
    if (request != NULL &&
        outbox_put(&connection->outbox, packet, proto_encode(&request->message, packet)) == 0) {
        connection_send_rest(connection);
        return;
    }
    pthread_mutex_lock(&connection->lock);
    connection->alive.is_asked = false;
    if (request != NULL)
        request_recycle_locked(request);
    pthread_mutex_unlock(&connection->lock);
}

void alive_begin(struct connection *connection) {
    pthread_mutex_lock(&connection->lock);
    connection->alive.is_used = true;
    pthread_mutex_unlock(&connection->lock);
    (void)alive_look(connection);
}

void alive_end(struct connection *connection) {
    pthread_mutex_lock(&connection->lock);
    connection->alive.is_used = false;
    drop_fd(&connection->alive);
    pthread_mutex_unlock(&connection->lock);
}

bool alive_look(struct connection *connection) {
    struct alive *alive = &connection->alive;

    pthread_mutex_lock(&connection->lock);
    if (alive->fd >= 0 && has_hung_up(alive->fd)) {
        drop_fd(alive);
        alive->is_away = true;
        alive->n_pauses++;
        wake(alive);
    }
    bool asks = alive->is_used && alive->fd < 0 && !alive->is_asked && connection->broken == 0;
    alive->is_asked |= asks;
    bool is_away = alive->is_away;
    pthread_mutex_unlock(&connection->lock);
    if (asks)
        ask(connection);
    return is_away;
}

void alive_watch(struct connection *connection, int epoll_fd, int wake_fd) {
    struct alive *alive = &connection->alive;

    pthread_mutex_lock(&connection->lock);
    alive->epoll_fd = epoll_fd;
    alive->wake_fd = wake_fd;
    watch_fd(alive);
    pthread_mutex_unlock(&connection->lock);
}

static bool is_pipe(int fd) {
    struct stat status;

    return fstat(fd, &status) == 0 && S_ISFIFO(status.st_mode);
}

const char *alive_answered_locked(struct connection *connection, int *fd, unsigned error) {
    struct alive *alive = &connection->alive;
    bool is_back = alive->is_away;

    if (*fd >= 0 && !is_pipe(*fd))
        return "a pipe that is none";
    alive->is_asked = false;
    /* The daemon has no descriptor for it; EXHAUSTED: it has sent it before. */
    if (*fd == -1 && error != PROTO_E_EXHAUSTED)
        alive->is_used = false;
    if (*fd >= 0 && alive->is_used) {
        drop_fd(alive);
        alive->fd = take_fd(fd);
        watch_fd(alive);
    }
    if (!is_back)
        return NULL;
    alive->is_away = false;
    alive->back_ns = clock_now_ns();
    wake(alive);
    return NULL;
}

bool alive_is_asked(struct connection *connection) {
    pthread_mutex_lock(&connection->lock);
    bool is_asked = connection->alive.is_asked && connection->broken == 0;
    pthread_mutex_unlock(&connection->lock);
    return is_asked;
}

unsigned alive_pauses(struct connection *connection, bool *ret_is_away) {
    pthread_mutex_lock(&connection->lock);
    unsigned n_pauses = connection->alive.n_pauses;
    *ret_is_away = connection->alive.is_away;
    pthread_mutex_unlock(&connection->lock);
    return n_pauses;
}

uint64_t alive_later_ns(struct connection *connection, bool ends) {
    uint64_t end_ns = ends ? client_thread()->call_end_ns : 0, now_ns = clock_now_ns(), later_ns = 0;
    bool is_away = alive_look(connection);

    if (ends && client_thread()->until_away)
        return 0;
    pthread_mutex_lock(&connection->lock);
    if (connection->broken != 0)
        later_ns = 0;
    else if (is_away)
        later_ns = now_ns + ALIVE_LOOK_NS;
    else if (connection->alive.back_ns != 0)
        later_ns = clock_deadline_ns(connection->alive.back_ns, connection->answer_timeout_ns);
    pthread_mutex_unlock(&connection->lock);
    if (end_ns != 0 && end_ns < later_ns)
        later_ns = end_ns;
    return later_ns > now_ns ? later_ns : 0;
}
