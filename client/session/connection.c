/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/connection.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/thread.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/socket.h"

void connection_init(struct connection *connection, struct segments *segments, uint64_t answer_timeout_ns) {
    connection->fd = -1;
    connection->segments = segments;
    connection->answer_timeout_ns = answer_timeout_ns;
    pthread_mutex_init(&connection->lock, NULL);
    list_init(&connection->waiting);
    list_init(&connection->abandoned);
    list_init(&connection->spare);
    connection->broken = GPUPOOL_E_DISCONNECTED;
    snprintf(connection->broken_text, sizeof connection->broken_text, "not connected");
}

uint64_t connection_deadline_ns(const struct connection *connection, uint64_t timeout_ns) {
    return clock_deadline_ns(clock_deadline_ns(clock_now_ns(), timeout_ns), connection->answer_timeout_ns);
}

static void requests_free(struct list *requests, bool in_child) {
    list_for_each_entry_safe(struct request, request, requests, link) {
        list_remove(&request->link);
        if (!in_child)
            pthread_cond_destroy(&request->wake);
        free(request->spare);
        free(request);
    }
}

void connection_deinit(struct connection *connection) {
    requests_free(&connection->abandoned, false);
    requests_free(&connection->spare, false);
    connection->fd = close_fd(connection->fd);
    pthread_mutex_destroy(&connection->lock);
}

void connection_forget(struct connection *connection) {
    /* Those of the parent's threads that were waiting at the fork are copies, and no thread of this process
     * takes them. */
    requests_free(&connection->waiting, true);
    requests_free(&connection->abandoned, true);
    requests_free(&connection->spare, true);
}

int connection_open(struct connection *connection, const char *path, uint64_t deadline_ns) {
    int r = socket_connect(path, SOCK_SEQPACKET, deadline_ns, &connection->fd);
    if (r == -ETIMEDOUT)
        return error_set(GPUPOOL_E_TIMED_OUT, "connecting to %s: the daemon accepts no connection", path);
    if (r == -ENAMETOOLONG)
        return error_set(GPUPOOL_E_INVALID, "connecting to %s: longer than a Unix socket's path may be",
                         path);
    if (r < 0)
        return error_set(
            GPUPOOL_E_CONNECT, "connecting to %s: %s (%s)%s", path, strerrorname_np(-r), strerrordesc_np(-r),
            r == -ENOENT || r == -ECONNREFUSED
                ? "; start gpupoold, or set GPUPOOL_SOCKET to its socket or to \"private\""
            : r == -EPROTOTYPE ? "; that is a stream socket, such as gpupoold's admin socket: GPUPOOL_SOCKET "
                                 "has to name the data socket"
            : r == -EACCES     ? "; your user has to be in the group that the socket belongs to"
                               : "");
    connection->broken = 0;
    return 0;
}

/* The last reply may have come in the same moment as the end: wake everybody, each looks for itself. */
static void break_locked(struct connection *connection, int error, const char *text) {
    if (connection->broken != 0)
        return;
    connection->broken = error;
    snprintf(connection->broken_text, sizeof connection->broken_text, "%s", text);
    shutdown(connection->fd, SHUT_RDWR);
    list_for_each_entry(struct request, request, &connection->waiting, link) {
        pthread_cond_signal(&request->wake);
    }
}

__attribute__((format(printf, 3, 4))) static void connection_break(struct connection *connection, int error,
                                                                   const char *format, ...) {
    char text[ERROR_TEXT_SIZE];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&connection->lock);
    break_locked(connection, error, text);
    pthread_mutex_unlock(&connection->lock);
}

int connection_check(struct connection *connection) {
    pthread_mutex_lock(&connection->lock);
    int r = connection->broken;
    if (r != 0)
        error_set(r, "%s", connection->broken_text);
    pthread_mutex_unlock(&connection->lock);
    return r;
}

int connection_refuse(struct connection *connection, const char *reason) {
    connection_break(connection, GPUPOOL_E_PROTOCOL, "the daemon sent something that does not check out: %s",
                     reason);
    return connection_check(connection);
}

/* Spare requests are kept: as many as there ever were calls under way at one time. */
struct request *connection_request(struct connection *connection, enum proto_operation operation) {
    pthread_mutex_lock(&connection->lock);
    struct request *request = list_first(&connection->spare, struct request, link);
    if (request != NULL)
        list_remove(&request->link);
    pthread_mutex_unlock(&connection->lock);

    if (request == NULL) {
        request = calloc(1, sizeof *request);
        if (request == NULL)
            goto no_memory;
        thread_condition_init(&request->wake);
        list_init(&request->link);
        request->connection = connection;
        request->fd = -1;
    }
    if (request->spare == NULL && (operation == PROTO_ACQUIRE || operation == PROTO_ATTACH ||
                                   operation == PROTO_SPLIT || operation == PROTO_DESCRIBE)) {
        request->spare = calloc(1, sizeof *request->spare);
        if (request->spare == NULL) {
            request_recycle(request);
            goto no_memory;
        }
    }
    request->operation = operation;
    request->done = false;
    request->asleep = false;
    request->segment = NULL;
    request->message.header = (struct proto_header){.operation = (uint16_t)operation};
    return request;

no_memory:
    error_set(GPUPOOL_E_NO_MEMORY, "no memory for a request");
    return NULL;
}

void request_recycle(struct request *request) {
    if (request == NULL)
        return;
    struct connection *connection = request->connection;
    request->fd = close_fd(request->fd);
    pthread_mutex_lock(&connection->lock);
    list_remove(&request->link);
    list_prepend(&connection->spare, &request->link);
    pthread_mutex_unlock(&connection->lock);
}

static bool reply_fits(enum proto_operation request, unsigned reply) {
    static const enum proto_operation replies[] = {
        [PROTO_HELLO] = PROTO_HELLO_REPLY, [PROTO_LIST_POOLS] = PROTO_POOLS, [PROTO_ACQUIRE] = PROTO_LEASE,
        [PROTO_RELEASE] = PROTO_OK,        [PROTO_SHARE] = PROTO_TOKEN,      [PROTO_ATTACH] = PROTO_LEASE,
        [PROTO_QUERY] = PROTO_INFO,        [PROTO_BYE] = PROTO_OK,           [PROTO_SPLIT] = PROTO_LEASE,
        [PROTO_ASK_PAGE] = PROTO_PAGE,     [PROTO_MERGE] = PROTO_OK,         [PROTO_IDLE] = PROTO_SEGMENTS,
        [PROTO_CLOSED] = PROTO_OK,         [PROTO_ASK_PARTS] = PROTO_PARTS,  [PROTO_DESCRIBE] = PROTO_LEASE,
    };
    return reply == PROTO_ERROR || reply == replies[request];
}

/* Copies a message as far as its operation goes: POOLS and PARTS are long, and are rare. */
static void message_copy(struct proto_message *to, const struct proto_message *from) {
    size_t bytes = from->header.operation == PROTO_POOLS || from->header.operation == PROTO_PARTS
                       ? sizeof *to
                       : offsetof(struct proto_message, failure) + sizeof(struct proto_failure);
    memcpy(to, from, bytes);
}

static struct request *find(struct list *requests, uint64_t id) {
    list_for_each_entry(struct request, request, requests, link) {
        if (request->id == id)
            return request;
    }
    return NULL;
}

/* Sends what the reader has to say on its own account. A daemon that takes nothing for as long as an answer
 * may take is as good as gone, and would wait for this message for ever. */
static void reader_send(struct connection *connection, const struct proto_message *message, void *packet) {
    size_t size = proto_encode(message, packet);
    uint64_t deadline_ns = clock_deadline_ns(clock_now_ns(), connection->answer_timeout_ns);
    int r = socket_send(connection->fd, packet, size, deadline_ns);
    if (r < 0 &&
        r != -EPIPE) /* EPIPE: reading will come to the end of file, and to what was sent before it */
        connection_break(connection, GPUPOOL_E_DISCONNECTED, "the daemon takes no messages: %s (%s)",
                         strerrorname_np(-r), strerrordesc_np(-r));
}

/* Turns an abandoned request, whose lease has come after all, into the RELEASE of that lease. */
static void request_give_back(struct request *request) {
    struct connection *connection = request->connection;
    request->message.header = (struct proto_header){.operation = PROTO_RELEASE, .request = request->id};
    request->message.release = (struct proto_release){
        .lease = connection->message.lease.lease,
        .generation = connection->message.lease.generation,
    };
    reader_send(connection, &request->message, request->packet);
}

/* Hands the message that the reader holds to its request. *fd is the message's descriptor or -1, taken when
 * it is used. Returns NULL or what is wrong with the message. */
static const char *reader_deliver(struct connection *connection, int *fd) {
    const struct proto_message *message = &connection->message;
    uint64_t opened = 0;
    struct request *late = NULL;
    const char *flaw = NULL;

    if (message->header.operation == PROTO_ERROR && message->header.request == 0) {
        connection_break(connection, -(int)message->failure.error, "the daemon ended the session: %s",
                         message->failure.text_length > 0 ? message->failure.text
                                                          : proto_error_text(message->failure.error));
        return NULL;
    }

    pthread_mutex_lock(&connection->lock);
    struct request *request = find(&connection->waiting, message->header.request);
    bool abandoned = request == NULL;
    if (abandoned)
        request = find(&connection->abandoned, message->header.request);
    if (request == NULL)
        flaw = "a reply to no request";
    else if (!reply_fits(request->operation, message->header.operation))
        flaw = "a reply of the wrong kind";
    else if (message->header.operation == PROTO_LEASE) {
        flaw = segments_enter(connection->segments, &message->lease, fd, &request->spare, &request->segment);
        if (flaw == NULL && proto_message_fds(message) > 0)
            opened = message->lease.description.id;
    }
    if (flaw == NULL && !abandoned) {
        if (message->header.operation == PROTO_HELLO_REPLY || message->header.operation == PROTO_PAGE)
            request->fd = take_fd(fd);
        message_copy(&request->message, message);
        request->done = true;
        list_remove(&request->link);
        if (request->asleep)
            pthread_cond_signal(&request->wake);
    } else if (flaw == NULL && message->header.operation == PROTO_LEASE &&
               (request->operation == PROTO_ACQUIRE || request->operation == PROTO_ATTACH)) {
        /* Stays abandoned, until the answer to its RELEASE comes. The part that was split off, though, is in
         * use: it is the session's until its end. A DESCRIBE is answered by a lease that its caller has. */
        late = request;
        late->operation = PROTO_RELEASE;
        late->id = ++connection->last_id;
    } else if (flaw == NULL) {
        list_remove(&request->link);
        list_prepend(&connection->spare, &request->link);
    }
    pthread_mutex_unlock(&connection->lock);

    if (opened != 0) {
        connection->notice.header = (struct proto_header){.operation = PROTO_OPENED};
        connection->notice.opened.segment = opened;
        reader_send(connection, &connection->notice, connection->packet);
    }
    if (late != NULL)
        request_give_back(late);
    return flaw;
}

/* Takes one packet from the socket and deals with it. Returns 0 (which may mean that the connection has
 * broken) or -ETIMEDOUT. Called by the reader, without the lock. */
static int reader_step(struct connection *connection, uint64_t deadline_ns) {
    int fds[SOCKET_FDS_MAX];
    unsigned count = 0;
    size_t size = 0;
    const char *flaw = NULL;

    int r = socket_receive(connection->fd, connection->packet, sizeof connection->packet, deadline_ns, &size,
                           fds, &count);
    if (r == -ETIMEDOUT)
        return r;
    if (r == -EMSGSIZE) {
        connection_refuse(connection,
                          "a message larger than any, or more descriptors than this process may open");
        return 0;
    }
    if (r < 0) {
        connection_break(connection, GPUPOOL_E_DISCONNECTED, "the connection to the daemon failed: %s (%s)",
                         strerrorname_np(-r), strerrordesc_np(-r));
        return 0;
    }
    if (size == 0 && count == 0) {
        connection_break(connection, GPUPOOL_E_DISCONNECTED, "the daemon has closed the connection");
        return 0;
    }

    if (proto_decode(PROTO_FROM_DAEMON, connection->packet, size, &connection->message, &flaw) == 0 &&
        count != proto_message_fds(&connection->message))
        flaw = "another number of descriptors than the message goes with";
    if (flaw == NULL) {
        int fd = count > 0 ? fds[0] : -1;
        flaw = reader_deliver(connection, &fd);
        if (count > 0)
            fds[0] = fd;
    }
    for (unsigned i = 0; i < count; i++)
        close_fd(fds[i]);
    if (flaw != NULL)
        connection_refuse(connection, flaw);
    return 0;
}

/* Sleeps until the request's reply is there, or the connection broke, or the reader's role is free. Locked.
 */
static int request_sleep(struct request *request, uint64_t deadline_ns) {
    request->asleep = true;
    int error = thread_condition_wait(&request->wake, &request->connection->lock, deadline_ns);
    request->asleep = false;
    return error == ETIMEDOUT ? -ETIMEDOUT : 0;
}

/* Waits for the reply, reading for all while no other thread reads. Locked; unlocks while it waits. */
static int request_wait(struct request *request, uint64_t deadline_ns) {
    struct connection *connection = request->connection;
    int r = 0;

    while (!request->done && connection->broken == 0 && r == 0) {
        if (connection->reading) {
            r = request_sleep(request, deadline_ns);
            continue;
        }
        connection->reading = true;
        pthread_mutex_unlock(&connection->lock);
        r = reader_step(connection, deadline_ns);
        pthread_mutex_lock(&connection->lock);
        connection->reading = false;
    }
    return request->done ? 0 : r;
}

/* Wakes one sleeper to take the reader's role. A request that is still being sent finds the role free by
 * itself. */
static void reader_pass_on(struct connection *connection) {
    if (connection->reading)
        return;
    list_for_each_entry(struct request, request, &connection->waiting, link) {
        if (request->asleep) {
            pthread_cond_signal(&request->wake);
            return;
        }
    }
}

/* The daemon has closed its end: reads what it said before, so that the connection breaks with the reason
 * that it gave. Returns the error that the connection broke with, its text set; 0: another thread is reading.
 */
static int connection_hear_end(struct connection *connection, uint64_t deadline_ns) {
    int r = 0;

    pthread_mutex_lock(&connection->lock);
    while (connection->broken == 0 && !connection->reading && r == 0) {
        connection->reading = true;
        pthread_mutex_unlock(&connection->lock);
        r = reader_step(connection, deadline_ns);
        pthread_mutex_lock(&connection->lock);
        connection->reading = false;
    }
    reader_pass_on(connection);
    if (connection->broken != 0)
        error_set(connection->broken, "%s", connection->broken_text);
    r = connection->broken;
    pthread_mutex_unlock(&connection->lock);
    return r;
}

int connection_tell(struct connection *connection, const struct proto_message *message,
                    uint64_t deadline_ns) {
    uint8_t packet[PROTO_PACKET_MAX];

    int r = connection_check(connection);
    if (r < 0)
        return r;
    r = socket_send(connection->fd, packet, proto_encode(message, packet), deadline_ns);
    if (r == 0)
        return 0;
    int heard = r == -EPIPE ? connection_hear_end(connection, deadline_ns) : 0;
    if (heard != 0)
        return heard;
    return error_set(r == -ETIMEDOUT                 ? GPUPOOL_E_TIMED_OUT
                     : r == -ENOMEM || r == -ENOBUFS ? GPUPOOL_E_NO_MEMORY
                                                     : GPUPOOL_E_DISCONNECTED,
                     "sending to the daemon: %s (%s)", strerrorname_np(-r), strerrordesc_np(-r));
}

int connection_exchange(struct connection *connection, struct request **request_pointer,
                        uint64_t deadline_ns) {
    struct request *request = take_ptr(request_pointer);
    bool sent = false;
    int r;

    pthread_mutex_lock(&connection->lock);
    if (connection->broken == 0) {
        /* Known before it is sent: another thread may read the reply first. */
        request->id = request->message.header.request = ++connection->last_id;
        list_append(&connection->waiting, &request->link);
        pthread_mutex_unlock(&connection->lock);

        size_t size = proto_encode(&request->message, request->packet);
        r = socket_send(connection->fd, request->packet, size, deadline_ns);
        if (r == -EPIPE)
            r = 0; /* the daemon may have said why before it went: read on */
        sent = r == 0;

        pthread_mutex_lock(&connection->lock);
        if (sent)
            r = request_wait(request, deadline_ns);
        reader_pass_on(connection);
    } else
        r = 0;

    if (request->done) {
        pthread_mutex_unlock(&connection->lock);
        if (request->message.header.operation != PROTO_ERROR) {
            *request_pointer = request;
            return 0;
        }
        const struct proto_failure *failure = &request->message.failure;
        r = error_set(-(int)failure->error, "%s",
                      failure->text_length > 0 ? failure->text : proto_error_text(failure->error));
        request_recycle(request);
        return r;
    }

    list_remove(&request->link);
    if (connection->broken != 0)
        r = error_set(connection->broken, "%s", connection->broken_text);
    else if (r == -ETIMEDOUT)
        r = error_set(GPUPOOL_E_TIMED_OUT,
                      sent ? "the daemon did not answer in time" : "the daemon took no message in time");
    else
        r = error_set(r == -ENOMEM || r == -ENOBUFS ? GPUPOOL_E_NO_MEMORY : GPUPOOL_E_DISCONNECTED,
                      "sending to the daemon: %s (%s)", strerrorname_np(-r), strerrordesc_np(-r));
    list_append(sent && connection->broken == 0 ? &connection->abandoned : &connection->spare,
                &request->link);
    pthread_mutex_unlock(&connection->lock);
    return r;
}
