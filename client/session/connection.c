/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/connection.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/thread.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/call_time.h"
#include "client/session/reader.h"
#include "client/session/socket.h"
#include "client/session/submit.h"

void connection_init(struct connection *connection, struct segments *segments, uint64_t answer_timeout_ns) {
    connection->fd = -1;
    connection->segments = segments;
    connection->answer_timeout_ns = answer_timeout_ns;
    pthread_mutex_init(&connection->lock, NULL);
    outbox_init(&connection->outbox);
    alive_init(&connection->alive);
    list_init(&connection->waiting);
    list_init(&connection->abandoned);
    list_init(&connection->spare);
    list_init(&connection->kept);
    list_init(&connection->completed);
    connection->wake_fd = connection->questions.fd = -1;
    connection->submitted_deadline_ns = NS_FOREVER;
    connection->broken = GPUPOOL_E_DISCONNECTED;
    snprintf(connection->broken_text, sizeof connection->broken_text, "not connected");
}

uint64_t connection_deadline_ns(const struct connection *connection, uint64_t timeout_ns) {
    uint64_t call_end_ns = client_thread()->call_end_ns, now_ns = clock_now_ns();
    uint64_t deadline_ns =
        clock_deadline_ns(clock_deadline_ns(now_ns, timeout_ns), connection->answer_timeout_ns);

    if (call_end_ns == 0)
        return deadline_ns;
    /* The call itself may have taken its time: closing a mapping waits for the GPU. */
    if (call_end_ns < now_ns + CALL_GRACE_NS && !atomic_load(&connection->is_mute))
        call_end_ns = now_ns + CALL_GRACE_NS;
    return call_end_ns < deadline_ns ? call_end_ns : deadline_ns;
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
        if (!in_child)
            close_fd(request->fd);
        free(request);
    }
}

void connection_deinit(struct connection *connection) {
    requests_free(&connection->waiting, false); /* kept by callers */
    requests_free(&connection->kept, false);
    requests_free(&connection->abandoned, false);
    requests_free(&connection->spare, false);
    outbox_deinit(&connection->outbox);
    alive_deinit(&connection->alive);
    connection->fd = close_fd(connection->fd);
    pthread_mutex_destroy(&connection->lock);
}

void connection_reset(struct connection *connection) {
    struct segments *segments = connection->segments;
    uint64_t answer_timeout_ns = connection->answer_timeout_ns;

    connection_deinit(connection);
    connection_init(connection, segments, answer_timeout_ns);
}

void connection_forget(struct connection *connection) {
    /* Those of the parent's threads that were waiting at the fork are copies, and no thread of this process
     * takes them. */
    requests_free(&connection->waiting, true);
    requests_free(&connection->kept, true);
    requests_free(&connection->completed, true);
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
            r == -ECONNREFUSED && socket_is_other_file(path)
                ? "; that is not a socket: GPUPOOL_SOCKET has to name the daemon's socket"
            : r == -ENOENT || r == -ECONNREFUSED
                ? "; start gpupoold, or set GPUPOOL_SOCKET to its socket or to \"private\""
            : r == -EPROTOTYPE ? "; that is a stream socket, such as gpupoold's admin socket: GPUPOOL_SOCKET "
                                 "has to name the data socket"
            : r == -EACCES     ? "; your user has to be in the group that the socket belongs to"
                               : error_advice(-r));
    outbox_open(&connection->outbox, connection->fd);
    connection->broken = 0;
    return 0;
}

/* Tells the program the way on when its daemon has gone. */
#define GONE_ADVICE                                                                                          \
    "; buffers stay usable, and this client has no more memory than it keeps: copy away what is needed, "    \
    "close the client, and open another one"

/* The error that the connection broke with, its text set; 0: it lives. Locked. */
static int report_broken_locked(const struct connection *connection) {
    bool is_gone = connection->broken == GPUPOOL_E_DISCONNECTED || connection->broken == GPUPOOL_E_SHUTDOWN;

    return connection->broken == 0 ? 0
                                   : error_set(connection->broken, "%s%s", connection->broken_text,
                                               is_gone && connection->is_greeted ? GONE_ADVICE : "");
}

int connection_report_end(void) {
    return error_set(GPUPOOL_E_DISCONNECTED, "the daemon has closed the connection" GONE_ADVICE);
}

/* The last reply may have come in the same moment as the end: wake everybody, each looks for itself. */
static void break_locked(struct connection *connection, int error, const char *text) {
    if (connection->broken != 0)
        return;
    connection->broken = error;
    snprintf(connection->broken_text, sizeof connection->broken_text, "%s", text);
    outbox_close(&connection->outbox);
    shutdown(connection->fd, SHUT_RDWR); /* a sender that waits for the socket returns */
    list_for_each_entry_safe(struct request, request, &connection->waiting, link) {
        if (request->is_submitted)
            submit_complete_locked(request, 0);
        else
            pthread_cond_signal(&request->wake);
    }
}

void connection_break(struct connection *connection, int error, const char *format, ...) {
    char text[ERROR_TEXT_SIZE];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&connection->lock);
    break_locked(connection, error, text);
    pthread_mutex_unlock(&connection->lock);
}

bool connection_is_up(const struct connection *connection) {
    struct pollfd end = {.fd = connection->fd};
    int n;

    if (connection->fd < 0)
        return false;
    do
        n = poll(&end, 1, 0); /* POLLHUP: also after the shutdown of a connection that broke */
    while (n < 0 && errno == EINTR);
    return n == 0;
}

enum connection_state connection_state(struct connection *connection) {
    char text[ERROR_TEXT_SIZE];
    bool is_away = connection_is_up(connection) && alive_look(connection);

    if (alive_is_asked(connection)) {
        error_save(text);
        connection_hear_late(connection);
        error_restore(text);
        is_away = alive_look(connection);
    }
    if (!connection_is_up(connection)) { /* also after a shutdown: it broke */
        alive_end(connection);
        return CONNECTION_LOST;
    }
    return is_away ? CONNECTION_AWAY : CONNECTION_THERE;
}

int connection_check(struct connection *connection) {
    pthread_mutex_lock(&connection->lock);
    int r = report_broken_locked(connection);
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
    request->place = OUTBOX_NOWHERE;
    request->is_sent = request->is_kept = request->is_submitted = request->is_cancelled = false;
    request->error = 0;
    request->has_lost_fd = false;
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

void request_recycle_locked(struct request *request) {
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
    request_recycle_locked(request);
    pthread_mutex_unlock(&connection->lock);
}

/* No signal ends the sleep on a condition. A thread whose exchanges end with a signal sleeps so long on it,
 * longer than a daemon that works takes, and from then on looks for the reply so often. */
#define SIGNAL_LOOK_NS (20 * NS_PER_MS)

/* Sleeps until a signal comes, or for a while. Locked; unlocks meanwhile. */
static int sleep_until_signal(struct connection *connection, uint64_t deadline_ns) {
    if (clock_now_ns() >= deadline_ns)
        return -ETIMEDOUT;
    pthread_mutex_unlock(&connection->lock);
    int r = nanosleep(&(struct timespec){.tv_nsec = (long)SIGNAL_LOOK_NS}, NULL) < 0 ? -errno : 0;
    pthread_mutex_lock(&connection->lock);
    return r;
}

/* Sleeps until the request's reply is there, or the connection broke, or the reader's role is free. begin_ns:
 * of the wait, for a thread whose exchanges end with a signal; 0: for others. Locked. */
static int request_sleep(struct request *request, uint64_t begin_ns, uint64_t deadline_ns) {
    uint64_t look_ns = begin_ns + SIGNAL_LOOK_NS;
    bool looks = begin_ns != 0 && look_ns < deadline_ns;

    if (looks && clock_now_ns() >= look_ns)
        return sleep_until_signal(request->connection, deadline_ns);
    request->asleep = true;
    int error =
        thread_condition_wait(&request->wake, &request->connection->lock, looks ? look_ns : deadline_ns);
    request->asleep = false;
    return error == ETIMEDOUT && !looks ? -ETIMEDOUT : 0;
}

/* Waits for a packet or, with questions, for one of these. Returns whether it is a question. *ret_error: 0,
 * -ETIMEDOUT or -EINTR (a signal ends the thread's exchanges). */
static bool wait_for_question(const struct connection *connection, uint64_t deadline_ns, int *ret_error) {
    struct pollfd fds[] = {{.fd = connection->fd, .events = POLLIN},
                           {.fd = connection->questions.fd, .events = POLLIN}};

    for (;;) {
        uint64_t left_ns = clock_left_ns(deadline_ns);
        const struct timespec left = {(time_t)(left_ns / NS_PER_S), (long)(left_ns % NS_PER_S)};
        int n = ppoll(fds, 2, deadline_ns == NS_FOREVER ? NULL : &left, NULL);
        bool is_signal = n < 0 && errno == EINTR;
        *ret_error = n == 0 ? -ETIMEDOUT : is_signal && client_thread()->until_signal ? -EINTR : 0;
        if (!is_signal || *ret_error < 0)
            return n > 0 && fds[0].revents == 0;
    }
}

/* Sends what is left in the outbox, as outbox_go_on(). Returns until when the caller may wait. Locked; unlocks
 * meanwhile. */
static uint64_t send_rest_locked(struct connection *connection, uint64_t deadline_ns) {
    if (!outbox_has_any(&connection->outbox))
        return deadline_ns;
    pthread_mutex_unlock(&connection->lock);
    uint64_t until_ns = outbox_go_on(&connection->outbox, deadline_ns);
    pthread_mutex_lock(&connection->lock);
    return until_ns;
}

/* One wait for the reply: as the reader if no other thread reads, else until that thread has it. Returns 0 or
 * as request_sleep(); *watches becomes false when the thread has no more questions to answer. Locked; unlocks
 * meanwhile. */
static int request_wait_once(struct request *request, uint64_t begin_ns, uint64_t deadline_ns,
                             bool *watches) {
    struct connection *connection = request->connection;
    int r = 0;

    if (connection->reading)
        return request_sleep(request, begin_ns, deadline_ns);
    connection->reading = true;
    pthread_mutex_unlock(&connection->lock);
    bool is_asked =
        *watches && clock_left_ns(deadline_ns) > 0 && wait_for_question(connection, deadline_ns, &r);
    if (!is_asked && r == 0)
        r = reader_step(connection, deadline_ns);
    pthread_mutex_lock(&connection->lock);
    connection->reading = false;
    if (!is_asked)
        return r;
    reader_pass_on_locked(connection);
    pthread_mutex_unlock(&connection->lock);
    *watches = connection->questions.answer(connection->questions.owner);
    pthread_mutex_lock(&connection->lock);
    return r;
}

/* As alive_later_ns(). deadline_ns: 0: of a caller that only looks what has come. Locked; unlocks meanwhile. */
static uint64_t later_locked(struct connection *connection, uint64_t deadline_ns) {
    if (deadline_ns == 0 || !connection->alive.is_used)
        return 0;
    pthread_mutex_unlock(&connection->lock);
    uint64_t later_ns = alive_later_ns(connection, true);
    pthread_mutex_lock(&connection->lock);
    return later_ns;
}

/* A thread whose exchanges end when the daemon has ended looks so often. */
#define AWAY_LOOK_NS (50 * NS_PER_MS)

static uint64_t next_look_ns(uint64_t deadline_ns) {
    uint64_t look_ns = clock_now_ns() + AWAY_LOOK_NS;
    return look_ns < deadline_ns ? look_ns : deadline_ns;
}

/* Locked; unlocks meanwhile. */
static bool is_away_locked(struct connection *connection) {
    pthread_mutex_unlock(&connection->lock);
    bool is_away = alive_look(connection);
    pthread_mutex_lock(&connection->lock);
    return is_away;
}

/* Waits for the reply, reading for all while no other thread reads, and sending what is left in the outbox,
 * the request itself perhaps. watches: the thread answers questions, too. Locked; unlocks while it waits. */
static int request_wait(struct request *request, uint64_t deadline_ns, bool watches) {
    struct connection *connection = request->connection;
    uint64_t begin_ns = client_thread()->until_signal ? clock_now_ns() : 0;
    bool looks_at_daemon = client_thread()->until_away;
    int r = 0;

    watches = watches && connection->questions.fd >= 0;
    for (;;) {
        uint64_t until_ns = send_rest_locked(connection, deadline_ns);
        if (looks_at_daemon)
            until_ns = next_look_ns(until_ns);
        if (request->done || connection->broken != 0 || r != 0)
            return request->done ? 0 : r;
        r = request_wait_once(request, begin_ns, until_ns, &watches);
        if (r != -ETIMEDOUT || request->done)
            continue;
        if (looks_at_daemon && is_away_locked(connection))
            return r;
        uint64_t later_ns = until_ns < deadline_ns ? deadline_ns : later_locked(connection, deadline_ns);
        if (later_ns != 0) {
            deadline_ns = later_ns;
            r = 0;
        }
    }
}

int connection_hear_end(struct connection *connection) {
    uint64_t deadline_ns = connection_deadline_ns(connection, 0);
    int r = 0;

    pthread_mutex_lock(&connection->lock);
    while (connection->broken == 0 && !connection->reading && r == 0) {
        connection->reading = true;
        pthread_mutex_unlock(&connection->lock);
        r = reader_step(connection, deadline_ns);
        pthread_mutex_lock(&connection->lock);
        connection->reading = false;
    }
    reader_pass_on_locked(connection);
    r = report_broken_locked(connection);
    pthread_mutex_unlock(&connection->lock);
    return r;
}

int connection_tell(struct connection *connection, const struct proto_message *message,
                    uint64_t deadline_ns) {
    uint8_t packet[PROTO_PACKET_MAX];

    int r = connection_check(connection);
    if (r < 0)
        return r;
    size_t size = proto_encode(message, packet);
    do /* what was not sent in time is not in the outbox */
        r = outbox_send_now(&connection->outbox, packet, size, false, deadline_ns);
    while (r == -ETIMEDOUT && (deadline_ns = alive_later_ns(connection, true)) != 0);
    if (r == 0) {
        atomic_fetch_add(&connection->told, 1);
        return 0;
    }
    int heard = r == -EPIPE ? connection_hear_end(connection) : 0;
    if (heard != 0)
        return heard;
    return error_set(r == -ETIMEDOUT                 ? GPUPOOL_E_TIMED_OUT
                     : r == -ENOMEM || r == -ENOBUFS ? GPUPOOL_E_NO_MEMORY
                                                     : GPUPOOL_E_DISCONNECTED,
                     "sending to the daemon: %s (%s)", strerrorname_np(-r), strerrordesc_np(-r));
}

bool connection_put(struct connection *connection, const struct proto_message *message) {
    uint8_t packet[PROTO_PACKET_MAX];

    if (outbox_put(&connection->outbox, packet, proto_encode(message, packet)) < 0)
        return false;
    atomic_fetch_add(&connection->told, 1);
    return true;
}

void connection_send_rest(struct connection *connection) {
    if (outbox_has_any(&connection->outbox))
        (void)outbox_flush(&connection->outbox, 0); /* a reader finds the end of the connection */
}

/* Releases what came of an answer for which its caller did not wait until its end. */
static void give_back_grants(struct connection *connection, const struct segment_grant *grants,
                             unsigned count, uint64_t deadline_ns) {
    char text[ERROR_TEXT_SIZE];
    struct proto_message message;

    error_save(text);
    for (unsigned i = 0; i < count; i++) {
        reader_make_release(&message, grants[i].lease, grants[i].generation, 0);
        (void)connection_tell(connection, &message, deadline_ns);
    }
    error_restore(text);
}

int connection_finish_locked(struct request **request_pointer, int r) {
    struct request *request = take_ptr(request_pointer);
    struct connection *connection = request->connection;

    if (request->done) {
        list_remove(&request->link);
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

    bool is_late = r == -ETIMEDOUT || r == -EINTR;
    if (is_late && request->is_sent && outbox_withdraw(&connection->outbox, request->place))
        request->is_sent = false;
    bool is_kept = request->is_kept && connection->broken == 0 && is_late;
    if (!is_kept || !request->is_sent)
        list_remove(&request->link);
    if (connection->broken != 0)
        r = report_broken_locked(connection);
    else if (r == -EINTR)
        r = error_set(GPUPOOL_E_CANCELLED, "a signal came before the daemon's answer");
    else if (r == -ETIMEDOUT && connection->alive.is_away) {
        r = error_set(GPUPOOL_E_TIMED_OUT, "the daemon has ended, and no other one has gone on in time");
    } else if (r == -ETIMEDOUT) {
        atomic_store(&connection->is_mute, true);
        r = error_set(GPUPOOL_E_TIMED_OUT,
                      request->is_sent
                          ? "the daemon did not answer in time: is it stopped, or the machine overloaded?"
                          : "the daemon took no message in time");
    } else
        r = error_set(r == -ENOMEM || r == -ENOBUFS ? GPUPOOL_E_NO_MEMORY : GPUPOOL_E_DISCONNECTED,
                      "sending to the daemon: %s (%s)", strerrorname_np(-r), strerrordesc_np(-r));
    if (is_kept) {
        if (!request->is_sent) /* else it waits on */
            list_append(&connection->kept, &request->link);
        pthread_mutex_unlock(&connection->lock);
        *request_pointer = request;
        return r;
    }
    const struct segment_grant *grants =
        take_ptr(&request->grants); /* the caller's, and this thread's again */
    unsigned n_grants = request->n_grants;
    request->is_submitted = false; /* the reader gives back what comes for it */
    if (request->is_sent && connection->broken == 0)
        list_append(&connection->abandoned, &request->link);
    else
        request_recycle_locked(request);
    pthread_mutex_unlock(&connection->lock);
    if (n_grants > 0)
        give_back_grants(connection, grants, n_grants, connection_deadline_ns(connection, 0));
    return r;
}

void connection_enlist_locked(struct request *request) {
    struct connection *connection = request->connection;

    /* Known before it is sent: another thread may read the reply first. */
    request->id = request->message.header.request = ++connection->last_id;
    list_append(&connection->waiting, &request->link);
}

uint64_t connection_announce(struct request *request) {
    struct connection *connection = request->connection;

    pthread_mutex_lock(&connection->lock);
    connection_enlist_locked(request);
    uint64_t id = request->id;
    pthread_mutex_unlock(&connection->lock);
    return id;
}

int connection_send(struct request *request, uint64_t deadline_ns) {
    size_t size = proto_encode(&request->message, request->packet);
    struct connection *connection = request->connection;
    int r;

    do /* what was not sent in time is not in the outbox */
        r = outbox_send(&connection->outbox, request->packet, size, false, deadline_ns, &request->place);
    while (r == -ETIMEDOUT && deadline_ns != 0 && (deadline_ns = alive_later_ns(connection, true)) != 0);
    return r == -EPIPE ? 0 : r; /* the daemon may have said why before it went: read on */
}

/* The daemon reads in order: with an answer to what was sent after so many one-way messages, it has read
 * them. */
static void note_heard(struct connection *connection, uint64_t told) {
    uint64_t heard = atomic_load(&connection->heard);

    while (heard < told && !atomic_compare_exchange_weak(&connection->heard, &heard, told))
        ;
}

uint64_t connection_unheard(struct connection *connection) {
    uint64_t heard = atomic_load(&connection->heard); /* first: it is never more than was told */
    return atomic_load(&connection->told) - heard;
}

/* Sends a request, and waits for its reply. watches: as in request_wait(). Locked; unlocks meanwhile. Returns
 * as connection_finish_locked() takes it. */
static int exchange_locked(struct connection *connection, struct request *request, uint64_t deadline_ns,
                           bool watches) {
    uint64_t told = atomic_load(&connection->told);
    int r = 0;

    if (connection->broken == 0) {
        if (list_is_empty(&request->link))
            connection_enlist_locked(request);
        pthread_mutex_unlock(&connection->lock);
        r = connection_send(request, deadline_ns);
        pthread_mutex_lock(&connection->lock);
        request->is_sent = r == 0;
    }
    if (request->is_sent && request->is_cancelled && !request->done) {
        pthread_mutex_unlock(&connection->lock);
        submit_tell_cancel(connection, request->id);
        pthread_mutex_lock(&connection->lock);
    }
    if (request->is_sent) {
        r = request_wait(request, deadline_ns, watches);
        if (r == 0)
            note_heard(connection, told);
    }
    reader_pass_on_locked(connection);
    return r;
}

static int exchange(struct connection *connection, struct request **request, uint64_t deadline_ns,
                    bool watches) {
    pthread_mutex_lock(&connection->lock);
    int r = exchange_locked(connection, *request, deadline_ns, watches);
    return connection_finish_locked(request, r);
}

int connection_exchange(struct connection *connection, struct request **request, uint64_t deadline_ns) {
    return exchange(connection, request, deadline_ns, false);
}

int connection_exchange_watching(struct connection *connection, struct request **request,
                                 uint64_t deadline_ns) {
    return exchange(connection, request, deadline_ns, true);
}

int connection_exchange_kept(struct connection *connection, struct request **request, uint64_t deadline_ns) {
    (*request)->is_kept = true;
    return connection_exchange(connection, request, deadline_ns);
}

int connection_go_on(struct connection *connection, struct request **request, uint64_t deadline_ns) {
    int r = 0;

    pthread_mutex_lock(&connection->lock);
    if ((*request)->is_sent) {
        r = request_wait(*request, deadline_ns, false);
        reader_pass_on_locked(connection);
    } else {
        list_remove(&(*request)->link);
        r = exchange_locked(connection, *request, deadline_ns, false);
    }
    return connection_finish_locked(request, r);
}

void connection_hear_late(struct connection *connection) {
    int r = 0;

    connection_send_rest(connection);
    pthread_mutex_lock(&connection->lock);
    while (r == 0 && connection->broken == 0 && !connection->reading &&
           !list_is_empty(&connection->abandoned)) {
        connection->reading = true;
        pthread_mutex_unlock(&connection->lock);
        r = reader_step(connection, 0);
        pthread_mutex_lock(&connection->lock);
        connection->reading = false;
    }
    reader_pass_on_locked(connection);
    pthread_mutex_unlock(&connection->lock);
}

void connection_let_go(struct request **request_pointer) {
    struct request *request = take_ptr(request_pointer);

    if (request == NULL)
        return;
    struct connection *connection = request->connection;
    pthread_mutex_lock(&connection->lock);
    bool is_over = request->done || connection->broken != 0 || !request->is_sent;
    if (!is_over) {
        list_remove(&request->link);
        list_append(&connection->abandoned, &request->link);
    }
    pthread_mutex_unlock(&connection->lock);
    if (is_over)
        request_recycle(request);
}

int connection_ask_descriptor(struct connection *connection, enum proto_operation operation,
                              struct request **kept, const char *what, uint64_t deadline_ns,
                              struct request **ret_reply, bool *ret_may_retry) {
    bool is_new = *kept == NULL;
    int r;

    *ret_may_retry = false;
    if (is_new)
        *kept = connection_request(connection, operation);
    if (*kept == NULL)
        return GPUPOOL_E_NO_MEMORY;
    r = is_new ? connection_exchange_kept(connection, kept, deadline_ns)
               : connection_go_on(connection, kept, deadline_ns);
    if (r < 0) {
        *ret_may_retry = *kept != NULL || r == GPUPOOL_E_EXHAUSTED;
        return error_prefix(r, "asking for %s", what);
    }
    if ((*kept)->has_lost_fd) {
        request_recycle(take_ptr(kept));
        *ret_may_retry = true;
        return error_lost_descriptor(what);
    }
    *ret_reply = take_ptr(kept);
    return 0;
}
