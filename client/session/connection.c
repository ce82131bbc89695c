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

static void free_spares(struct request *request) {
    list_for_each_entry_safe(struct segment, segment, &request->spares, link) {
        list_remove(&segment->link);
        free(segment);
    }
}

static void requests_free(struct list *requests, bool in_child) {
    list_for_each_entry_safe(struct request, request, requests, link) {
        list_remove(&request->link);
        if (!in_child)
            pthread_cond_destroy(&request->wake);
        free_spares(request);
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

/* Sees to it that a request has memory for so many segments. False: there is none. */
static bool reserve_spares(struct request *request, unsigned count) {
    list_for_each_entry(const struct segment, segment, &request->spares, link) {
        if (count-- == 0)
            return true;
    }
    while (count-- > 0) {
        struct segment *segment = calloc(1, sizeof *segment);
        if (segment == NULL)
            return false;
        list_append(&request->spares, &segment->link);
    }
    return true;
}

/* n_segments: that the reply may describe. Spare requests are kept: as many as there ever were calls under
 * way at one time. */
static struct request *make_request(struct connection *connection, enum proto_operation operation,
                                    unsigned n_segments) {
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
        list_init(&request->spares);
        request->connection = connection;
        request->fd = -1;
    }
    if (!reserve_spares(request, n_segments)) {
        free_spares(request);
        request_recycle(request);
        goto no_memory;
    }
    request->operation = operation;
    request->done = false;
    request->asleep = false;
    request->segment = NULL;
    request->grants = NULL;
    request->n_grants = request->n_wanted = 0;
    request->message.header = (struct proto_header){.operation = (uint16_t)operation};
    return request;

no_memory:
    error_set(GPUPOOL_E_NO_MEMORY, "no memory for a request");
    return NULL;
}

struct request *connection_request(struct connection *connection, enum proto_operation operation) {
    bool may_describe = operation == PROTO_ACQUIRE || operation == PROTO_ATTACH || operation == PROTO_SPLIT ||
                        operation == PROTO_DESCRIBE;
    return make_request(connection, operation, may_describe);
}

struct request *connection_request_segments(struct connection *connection, struct segment_grant *grants,
                                            unsigned count) {
    struct request *request = make_request(connection, PROTO_ACQUIRE_SEGMENTS, count);
    if (request != NULL) {
        request->grants = grants;
        request->n_wanted = count;
    }
    return request;
}

/* The connection is locked. */
static void recycle_locked(struct request *request) {
    if (request->n_wanted > 1)
        free_spares(request); /* more than other requests need */
    list_remove(&request->link);
    list_prepend(&request->connection->spare, &request->link);
}

void request_recycle(struct request *request) {
    if (request == NULL)
        return;
    struct connection *connection = request->connection;
    request->fd = close_fd(request->fd);
    pthread_mutex_lock(&connection->lock);
    recycle_locked(request);
    pthread_mutex_unlock(&connection->lock);
}

static bool reply_fits(enum proto_operation request, unsigned reply) {
    static const enum proto_operation replies[] = {
        [PROTO_HELLO] = PROTO_HELLO_REPLY, [PROTO_LIST_POOLS] = PROTO_POOLS,
        [PROTO_ACQUIRE] = PROTO_LEASE,     [PROTO_RELEASE] = PROTO_OK,
        [PROTO_SHARE] = PROTO_TOKEN,       [PROTO_ATTACH] = PROTO_LEASE,
        [PROTO_QUERY] = PROTO_INFO,        [PROTO_BYE] = PROTO_OK,
        [PROTO_SPLIT] = PROTO_LEASE,       [PROTO_ASK_PAGE] = PROTO_PAGE,
        [PROTO_MERGE] = PROTO_OK,          [PROTO_IDLE] = PROTO_SEGMENTS,
        [PROTO_CLOSED] = PROTO_OK,         [PROTO_ASK_PARTS] = PROTO_PARTS,
        [PROTO_DESCRIBE] = PROTO_LEASE,    [PROTO_ACQUIRE_SEGMENTS] = PROTO_LEASES,
        [PROTO_OFFER] = PROTO_SEGMENTS,    [PROTO_ASK_BOARD] = PROTO_BOARD,
        [PROTO_RELEASE_SHARED] = PROTO_OK, [PROTO_ASK_HOLDERS] = PROTO_HOLDERS,
        [PROTO_SEND] = PROTO_TOKEN,        [PROTO_REVOKE] = PROTO_OK,
    };
    return reply == PROTO_ERROR || reply == replies[request];
}

/* Copies a message as far as its operation goes: POOLS and PARTS are long, and are rare. LEASES has been
 * entered by then. */
static void message_copy(struct proto_message *to, const struct proto_message *from) {
    union rest { /* the largest of the other replies */
        struct proto_failure failure;
        struct proto_holders holders;
        struct proto_segments segments;
        struct proto_lease lease;
    };
    size_t bytes = from->header.operation == PROTO_POOLS || from->header.operation == PROTO_PARTS
                       ? sizeof *to
                       : offsetof(struct proto_message, failure) + sizeof(union rest);
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

/* Makes the RELEASE of a whole lease that nothing uses. request_id: 0: one-way. */
static void make_release(struct proto_message *message, uint64_t lease, uint64_t generation,
                         uint64_t request_id) {
    message->header = (struct proto_header){.operation = PROTO_RELEASE, .request = request_id};
    message->release = (struct proto_release){.lease = lease, .generation = generation};
}

/* Turns an abandoned request, whose lease has come after all, into the RELEASE of that lease. */
static void request_give_back(struct request *request) {
    struct connection *connection = request->connection;
    const struct proto_lease *lease = &connection->message.lease;

    make_release(&request->message, lease->lease, lease->generation, request->id);
    reader_send(connection, &request->message, request->packet);
}

/* Releases leases one-way: nothing uses them, so the daemon refuses none. */
static void give_back_segments(struct connection *connection, const struct proto_segment_lease *leases,
                               unsigned count, struct proto_message *message, void *packet) {
    for (unsigned i = 0; i < count; i++) {
        make_release(message, leases[i].lease, leases[i].generation, 0);
        reader_send(connection, message, packet);
    }
}

/* Enters one lease of LEASES. */
static const char *enter_segment(struct connection *connection, struct request *request, unsigned i,
                                 int *fd) {
    const struct proto_leases *leases = &connection->message.leases;
    const struct proto_segment_lease *entry = &leases->leases[i];
    struct segment_grant grant = {entry->lease, entry->generation, NULL};
    struct proto_lease lease = {.lease = entry->lease,
                                .generation = entry->generation,
                                .segment = entry->segment,
                                .size_bytes = leases->segment_bytes,
                                .capacity_bytes = leases->segment_bytes,
                                .pool = leases->pool};

    if (i < leases->n_described)
        lease.description = (struct proto_segment){.id = entry->segment,
                                                   .size_bytes = leases->segment_bytes,
                                                   .pool = leases->pool,
                                                   .kind = PROTO_SEGMENT_VMM_FD};
    const char *flaw = segments_enter(connection->segments, &lease, fd, &request->spares, &grant.segment);
    if (flaw != NULL)
        return flaw;
    if (grant.segment->size_bytes != leases->segment_bytes || !segment_is_movable(grant.segment))
        return "a lease on a part of a segment, or on one of another kind";
    if (request->grants != NULL)
        request->grants[request->n_grants] = grant;
    request->n_grants++;
    return NULL;
}

/* Enters LEASES. fds: its descriptors, which are taken as they are used. Returns NULL or what is wrong. */
static const char *enter_leases(struct connection *connection, struct request *request, int *fds) {
    const struct proto_leases *leases = &connection->message.leases;
    const struct proto_acquire_segments *acquire = &request->message.acquire_segments;
    const char *flaw = NULL;
    int none = -1;

    if (request->n_grants + leases->count + leases->n_left != request->n_wanted)
        return "leases on another number of segments than was asked for";
    if (leases->pool != acquire->pool || leases->segment_bytes != acquire->segment_bytes)
        return "leases of another pool or size than asked for";
    for (unsigned i = 0; flaw == NULL && i < leases->count; i++)
        flaw = enter_segment(connection, request, i, i < leases->n_described ? &fds[i] : &none);
    return flaw;
}

/* Hands the message that the reader holds to its request. fds are the message's descriptors, -1 where it has
 * none, taken when they are used. Returns NULL or what is wrong with the message. */
static const char *reader_deliver(struct connection *connection, int *fds) {
    const struct proto_message *message = &connection->message;
    uint64_t opened = 0;
    struct request *late = NULL;
    const char *flaw = NULL;
    bool has_more = false, late_segments = false;

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
    else if (!reply_fits(request->operation, message->header.operation) ||
             (request->n_grants > 0 && message->header.operation != PROTO_LEASES))
        flaw = "a reply of the wrong kind";
    else if (message->header.operation == PROTO_LEASE) {
        flaw =
            segments_enter(connection->segments, &message->lease, fds, &request->spares, &request->segment);
        if (flaw == NULL && proto_message_fds(message) > 0)
            opened = message->lease.description.id;
    } else if (message->header.operation == PROTO_LEASES) {
        flaw = enter_leases(connection, request, fds);
        if (flaw == NULL && message->leases.n_described > 0)
            opened = message->leases.leases[0].segment;
        late_segments = abandoned && flaw == NULL;
        has_more = message->leases.n_left > 0;
    }
    if (flaw == NULL && !abandoned && !has_more) {
        if (message->header.operation == PROTO_HELLO_REPLY || message->header.operation == PROTO_PAGE ||
            message->header.operation == PROTO_BOARD)
            request->fd = take_fd(fds);
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
    } else if (flaw == NULL && abandoned && !has_more) {
        recycle_locked(request);
    }
    pthread_mutex_unlock(&connection->lock);

    if (opened != 0) {
        connection->notice.header = (struct proto_header){.operation = PROTO_OPENED};
        connection->notice.opened.segment = opened;
        reader_send(connection, &connection->notice, connection->packet);
    }
    if (late != NULL)
        request_give_back(late);
    if (late_segments)
        give_back_segments(connection, message->leases.leases, message->leases.count, &connection->notice,
                           connection->packet);
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
        if (count == 0)
            fds[0] = -1;
        flaw = reader_deliver(connection, fds);
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

/* Releases what came of an answer for which its caller did not wait until its end. */
static void give_back_grants(struct connection *connection, const struct segment_grant *grants,
                             unsigned count, uint64_t deadline_ns) {
    char text[ERROR_TEXT_SIZE];
    struct proto_message message;

    error_save(text);
    for (unsigned i = 0; i < count; i++) {
        make_release(&message, grants[i].lease, grants[i].generation, 0);
        (void)connection_tell(connection, &message, deadline_ns);
    }
    error_restore(text);
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
    const struct segment_grant *grants =
        take_ptr(&request->grants); /* the caller's, and this thread's again */
    unsigned n_grants = request->n_grants;
    if (sent && connection->broken == 0)
        list_append(&connection->abandoned, &request->link);
    else
        recycle_locked(request);
    pthread_mutex_unlock(&connection->lock);
    if (n_grants > 0)
        give_back_grants(connection, grants, n_grants, connection_deadline_ns(connection, 0));
    return r;
}
