/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/submit.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/session/error.h"
#include "client/session/reader.h"

void submit_wake(const struct connection *connection) {
    uint64_t one = 1;

    /* EAGAIN: 2^64 - 2 wake-ups are in it. */
    while (connection->wake_fd >= 0 && write(connection->wake_fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

void submit_complete_locked(struct request *request, int error) {
    struct connection *connection = request->connection;

    request->error = error;
    connection->n_submitted -= !list_is_empty(&request->link); /* it was waiting */
    list_remove(&request->link);
    if (!request->is_sent)
        return; /* its sender completes it */
    list_append(&connection->completed, &request->link);
    submit_wake(connection);
}

void connection_watch(struct connection *connection, int wake_fd) {
    pthread_mutex_lock(&connection->lock);
    connection->wake_fd = wake_fd;
    pthread_mutex_unlock(&connection->lock);
}

static void note_deadline_locked(struct connection *connection, uint64_t deadline_ns) {
    if (deadline_ns < connection->submitted_deadline_ns)
        connection->submitted_deadline_ns = deadline_ns;
}

uint64_t connection_enlist(struct request *request, uint64_t deadline_ns, void *owner) {
    struct connection *connection = request->connection;

    pthread_mutex_lock(&connection->lock);
    request->is_submitted = true;
    request->deadline_ns = deadline_ns;
    request->owner = owner;
    connection_enlist_locked(request);
    connection->n_submitted++;
    note_deadline_locked(connection, deadline_ns);
    uint64_t id = request->id;
    pthread_mutex_unlock(&connection->lock);
    return id;
}

void submit_tell_cancel(struct connection *connection, uint64_t id) {
    const struct proto_message message = {.header.operation = PROTO_CANCEL, .cancel.request = id};
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    (void)connection_tell(connection, &message, connection_deadline_ns(connection, 0));
    error_restore(text);
}

void connection_submit(struct request *request) {
    struct connection *connection = request->connection;

    uint64_t deadline_ns = connection_deadline_ns(connection, 0);
    int r = connection_send(request, deadline_ns); /* 0 where the connection is broken */
    if (r == 0)
        r = outbox_await(&connection->outbox, request->place, deadline_ns);
    if (r == -EPIPE)
        r = 0; /* the reader finds the reason */

    pthread_mutex_lock(&connection->lock);
    uint64_t id = request->id;
    bool is_over = r < 0 || request->done || connection->broken != 0;
    bool is_cancelled = request->is_cancelled && !is_over;
    request->is_sent = true;
    if (is_over) {
        submit_complete_locked(request, r);
        request->is_sent = r == 0;
    } else {
        note_deadline_locked(connection, request->deadline_ns);
        submit_wake(connection); /* the runner reads from now on, until the request's deadline */
    }
    pthread_mutex_unlock(&connection->lock);
    if (is_cancelled)
        submit_tell_cancel(connection, id);
}

void connection_cancel(struct connection *connection, uint64_t id) {
    bool is_sent = false;

    pthread_mutex_lock(&connection->lock);
    list_for_each_entry(struct request, request, &connection->waiting, link) {
        if (request->id != id)
            continue;
        is_sent = request->is_sent;
        request->is_cancelled = true;
        break;
    }
    pthread_mutex_unlock(&connection->lock);
    if (is_sent)
        submit_tell_cancel(connection, id);
}

struct request *connection_next_completed(struct connection *connection) {
    pthread_mutex_lock(&connection->lock);
    struct request *request = list_first(&connection->completed, struct request, link);
    pthread_mutex_unlock(&connection->lock);
    return request;
}

int connection_collect(struct request **request) {
    pthread_mutex_lock(&(*request)->connection->lock);
    return connection_finish_locked(request, (*request)->error);
}

/* Completes the submitted requests whose deadline has passed. Locked. */
static void expire_locked(struct connection *connection, uint64_t now_ns) {
    if (connection->submitted_deadline_ns > now_ns)
        return;
    connection->submitted_deadline_ns = NS_FOREVER;
    list_for_each_entry_safe(struct request, request, &connection->waiting, link) {
        if (!request->is_submitted)
            continue;
        if (request->deadline_ns > now_ns)
            note_deadline_locked(connection, request->deadline_ns);
        else if (request->is_sent)
            submit_complete_locked(request, -ETIMEDOUT); /* else its sender notes the deadline */
    }
}

void connection_abandon_submitted(struct connection *connection) {
    pthread_mutex_lock(&connection->lock);
    list_for_each_entry_safe(struct request, request, &connection->waiting, link) {
        if (request->is_submitted)
            submit_complete_locked(request, -ETIMEDOUT);
    }
    pthread_mutex_unlock(&connection->lock);
}

/* Waits for the eventfd, if the caller is the reader for a packet, and if it watches for a question of the
 * daemon. Returns whether there is a packet; *ret_any: whether there is one of them. */
static bool wait_for_packet(const struct connection *connection, bool is_reader, bool watches,
                            uint64_t deadline_ns, bool *ret_any) {
    struct pollfd fds[] = {{.fd = connection->wake_fd, .events = POLLIN},
                           {.fd = is_reader ? connection->fd : -1, .events = POLLIN},
                           {.fd = watches ? connection->questions.fd : -1, .events = POLLIN}};
    uint64_t left_ns = clock_left_ns(deadline_ns), count;
    const struct timespec left = {(time_t)(left_ns / NS_PER_S), (long)(left_ns % NS_PER_S)};

    int n = ppoll(fds, sizeof fds / sizeof *fds, deadline_ns == NS_FOREVER ? NULL : &left, NULL);
    *ret_any = n > 0;
    if (n > 0 && fds[0].revents != 0)
        (void)!read(connection->wake_fd, &count, sizeof count);
    return n > 0 && fds[1].revents != 0;
}

bool connection_run(struct connection *connection, bool watches, uint64_t deadline_ns) {
    bool any, has_packet;

    pthread_mutex_lock(&connection->lock);
    bool is_reader = connection->n_submitted > 0 && !connection->reading && connection->broken == 0;
    if (is_reader)
        connection->reading = true;
    if (connection->n_submitted > 0 && connection->submitted_deadline_ns < deadline_ns)
        deadline_ns = connection->submitted_deadline_ns;
    if (!list_is_empty(&connection->completed))
        deadline_ns = 0;
    pthread_mutex_unlock(&connection->lock);

    uint64_t until_ns;
    do {
        until_ns = outbox_go_on(&connection->outbox, deadline_ns);
        has_packet = wait_for_packet(connection, is_reader, watches, until_ns, &any);
    } while (!any && until_ns < deadline_ns);
    if (has_packet)
        (void)reader_step(connection, 0);
    connection_send_rest(connection);

    pthread_mutex_lock(&connection->lock);
    if (is_reader) {
        connection->reading = false;
        (void)reader_wake_sleeper_locked(connection);
    }
    expire_locked(connection, clock_now_ns());
    any = any || !list_is_empty(&connection->completed);
    pthread_mutex_unlock(&connection->lock);
    return any;
}
