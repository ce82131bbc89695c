/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/reader.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/outbox.h"
#include "client/session/socket.h"
#include "client/session/submit.h"

static bool reply_fits(enum proto_operation request, unsigned reply) {
    return reply == PROTO_ERROR || reply == proto_reply_to(request);
}

/* Copies a message as far as its operation goes: some are long, and are rare. LEASES has been entered by then.
 */
static void message_copy(struct proto_message *to, const struct proto_message *from) {
    union rest { /* the largest of the other replies */
        struct proto_failure failure;
        struct proto_holders holders;
        struct proto_segments segments;
        struct proto_lease lease;
    };
    size_t bytes = offsetof(struct proto_message, failure) + sizeof(union rest);

    switch (from->header.operation) {
    case PROTO_POOLS:
    case PROTO_PARTS:
    case PROTO_NAMED:
    case PROTO_DIRECTORY:
    case PROTO_NAMES:
        bytes = sizeof *to;
        break;
    default:
        break;
    }
    memcpy(to, from, bytes);
}

static struct request *find(struct list *requests, uint64_t id) {
    list_for_each_entry(struct request, request, requests, link) {
        if (request->id == id)
            return request;
    }
    return NULL;
}

/* A submitted request whose deadline has passed, before the runner has collected it: the reply is in time for
 * it still. */
static struct request *find_expired(struct connection *connection, uint64_t id) {
    struct request *request = find(&connection->completed, id);

    return request == NULL || request->done ? NULL : request;
}

/* Sends what the reader has to say on its own account, or leaves it to the thread that sends. A daemon that
 * takes nothing for as long as an answer may take is as good as gone, and would wait for this message for
 * ever. */
static void reader_send(struct connection *connection, const struct proto_message *message, void *packet) {
    size_t size = proto_encode(message, packet);
    uint64_t deadline_ns = clock_deadline_ns(clock_now_ns(), connection->answer_timeout_ns);
    int r;

    do
        r = outbox_send_now(&connection->outbox, packet, size, true, deadline_ns);
    while (r == -ETIMEDOUT && (deadline_ns = alive_later_ns(connection, false)) != 0);
    if (r < 0 &&
        r != -EPIPE) /* EPIPE: reading will come to the end of file, and to what was sent before it */
        connection_break(connection, GPUPOOL_E_DISCONNECTED, "the daemon takes no messages: %s (%s)",
                         strerrorname_np(-r), strerrordesc_np(-r));
}

void reader_make_release(struct proto_message *message, uint64_t lease, uint64_t generation,
                         uint64_t request_id) {
    message->header = (struct proto_header){.operation = PROTO_RELEASE, .request = request_id};
    message->release = (struct proto_release){.lease = lease, .generation = generation};
}

/* The treatment of a reply to an abandoned request, if it is no ERROR. */
enum late {
    LATE_DROP,   /* nothing: it changed nothing, or nothing that the caller does not know */
    LATE_UNDO,   /* what it brings is given back, by the operation beside it */
    LATE_ALIVE,  /* no caller ever waits for it: it is the connection's (alive.h) */
    LATE_CLOSE,  /* the segments that it names are to be closed */
    LATE_NOBODY, /* its caller keeps the request: it is not abandoned while the connection lives */
};

/* Replies to the others are dropped. HELLO: the connection ends. RELEASE, MERGE: see lease_release() and
 * lease_append(). SHARE: sharing it again gives the same token. DESCRIBE: what it describes is entered. SHARE
 * and SEND of a part: as SPLIT. */
static const struct {
    enum late what;
    enum proto_operation undoing;
} late_replies[PROTO_HELLO_REPLY] = {
    [PROTO_ACQUIRE] = {LATE_UNDO, PROTO_RELEASE},
    [PROTO_ACQUIRE_SEGMENTS] = {LATE_UNDO, 0}, /* leases are released one by one, as they come */
    [PROTO_ATTACH] = {LATE_UNDO, PROTO_RELEASE},
    [PROTO_SEND] = {LATE_UNDO, PROTO_REVOKE},
    [PROTO_OPEN_NAME] = {LATE_UNDO, PROTO_UNPUBLISH}, /* where the session is to build */
    [PROTO_JOIN_CHANNEL] = {LATE_UNDO, PROTO_LEAVE_CHANNEL},
    [PROTO_IDLE] = {LATE_CLOSE, 0},
    [PROTO_OFFER] = {LATE_CLOSE, 0},
    [PROTO_SPLIT] = {LATE_NOBODY, 0},
    [PROTO_ASK_PAGE] = {LATE_NOBODY, 0},
    [PROTO_ASK_BOARD] = {LATE_NOBODY, 0},
    [PROTO_ASK_ALIVE] = {LATE_ALIVE, 0},
};

static void make_revoke(struct proto_message *message, const struct proto_token *token, uint64_t request_id) {
    message->header = (struct proto_header){.operation = PROTO_REVOKE, .request = request_id};
    message->revoke = *token;
}

/* The session does not build a name that it has asked for by this message. */
static void make_abandon(struct proto_message *message, uint64_t request_id) {
    struct proto_unpublish abandon = {.flags = PROTO_UNPUBLISH_BUILD};

    memcpy(abandon.name, message->open_name.name, sizeof abandon.name);
    message->header = (struct proto_header){.operation = PROTO_UNPUBLISH, .request = request_id};
    message->unpublish = abandon;
}

/* Whether a late reply is undone. */
static bool is_to_be_undone(const struct request *request, const struct proto_message *reply) {
    return reply->header.operation != PROTO_ERROR && late_replies[request->operation].undoing != 0 &&
           (reply->header.operation != PROTO_NAMED || reply->named.state == PROTO_NAME_BUILD);
}

/* Sends the message that undoes what an abandoned request did, into which it was turned when its reply came. */
static void request_give_back(struct request *request) {
    struct connection *connection = request->connection;
    const struct proto_lease *lease = &connection->message.lease;
    struct proto_message *message = &request->message;

    if (request->operation == PROTO_RELEASE) {
        reader_make_release(message, lease->lease, lease->generation, request->id);
    } else if (request->operation == PROTO_UNPUBLISH) {
        make_abandon(message, request->id);
    } else if (request->operation == PROTO_LEAVE_CHANNEL) {
        message->header = (struct proto_header){.operation = PROTO_LEAVE_CHANNEL, .request = request->id};
        message->leave_channel = (struct proto_channel_page_name){.channel = connection->message.channel.channel,
                                                                  .page = connection->message.channel.place};
    } else {
        make_revoke(message, &connection->message.token.token, request->id);
    }
    reader_send(connection, message, request->packet);
}

void reader_revoke(struct request *request) {
    struct connection *connection = request->connection;
    uint8_t packet[PROTO_PACKET_MAX]; /* the request is the reader's once it is in the list */
    struct proto_message message;

    request->operation = PROTO_REVOKE;
    request->done = false;
    pthread_mutex_lock(&connection->lock);
    request->id = ++connection->last_id;
    make_revoke(&message, &request->message.token.token, request->id);
    list_append(&connection->abandoned, &request->link);
    pthread_mutex_unlock(&connection->lock);
    reader_send(connection, &message, packet);
}

/* Releases leases one-way: nothing uses them, so the daemon refuses none. */
static void give_back_segments(struct connection *connection, const struct proto_segment_lease *leases,
                               unsigned count, struct proto_message *message, void *packet) {
    for (unsigned i = 0; i < count; i++) {
        reader_make_release(message, leases[i].lease, leases[i].generation, 0);
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
                                                   .kind = PROTO_LEASES_KIND};
    const char *flaw =
        segments_enter(connection->segments, &lease, fd, false, &request->spares, &grant.segment);
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

/* Whether a message has come before: the daemon ended while it sent it, and the next one sends it again. Then its
 * request is over, or has this part of its answer. The reader has said OPENED for it, or given it back, before it
 * took the next message. request: NULL: none is known. */
static bool has_come_before(const struct proto_message *message, const struct request *request) {
    if ((message->header.flags & PROTO_AGAIN) == 0)
        return false;
    return request == NULL ||
           (message->header.operation == PROTO_LEASES && request->operation == PROTO_ACQUIRE_SEGMENTS &&
            request->n_wanted - request->n_grants < message->leases.count + message->leases.n_left);
}

/* Hands the message that the reader holds to its request. fds are the message's descriptors, -1 where it has
 * none, taken when they are used; FD_LOST where one did not arrive (has_lost). Returns NULL or what is wrong
 * with the message. */
static const char *reader_deliver(struct connection *connection, int *fds, bool has_lost) {
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
    bool is_expired =
        request == NULL && (request = find_expired(connection, message->header.request)) != NULL;
    bool abandoned = request == NULL;
    if (abandoned)
        request = find(&connection->abandoned, message->header.request);
    if (has_come_before(message, request)) {
        pthread_mutex_unlock(&connection->lock);
        return NULL;
    }
    if (request != NULL)
        request->has_lost_fd = has_lost;
    if (request == NULL)
        flaw = "a reply to no request";
    else if (!reply_fits(request->operation, message->header.operation) ||
             (request->n_grants > 0 && message->header.operation != PROTO_LEASES))
        flaw = "a reply of the wrong kind";
    else if (message->header.operation == PROTO_LEASE) {
        flaw = segments_enter(connection->segments, &message->lease, fds,
                              request->operation == PROTO_DESCRIBE, &request->spares, &request->segment);
        if (flaw == NULL && proto_message_fds(message) > 0)
            opened = message->lease.description.id;
    } else if (message->header.operation == PROTO_LEASES) {
        flaw = enter_leases(connection, request, fds);
        if (flaw == NULL && message->leases.n_described > 0)
            opened = message->leases.leases[0].segment;
        late_segments = abandoned && flaw == NULL;
        has_more = message->leases.n_left > 0;
    }
    if (flaw == NULL && abandoned && late_replies[request->operation].what == LATE_ALIVE)
        flaw = alive_answered_locked(connection, fds,
                                     message->header.operation == PROTO_ERROR ? message->failure.error : 0);
    if (flaw == NULL && abandoned && message->header.operation == PROTO_SEGMENTS &&
        late_replies[request->operation].what == LATE_CLOSE)
        for (uint32_t i = 0; i < message->segments.count; i++)
            (void)segments_name(connection->segments, message->segments.ids[i]);
    if (flaw == NULL && !abandoned && !has_more) {
        if (message->header.operation == PROTO_HELLO_REPLY || message->header.operation == PROTO_PAGE ||
            message->header.operation == PROTO_BOARD || message->header.operation == PROTO_CHANNEL_MEMORY)
            request->fd = take_fd(fds);
        message_copy(&request->message, message);
        request->done = true;
        if (request->is_submitted && !is_expired) {
            submit_complete_locked(request, 0);
        } else if (!is_expired) {
            list_remove(&request->link);
            if (request->is_kept)
                list_append(&connection->kept, &request->link);
            if (request->asleep)
                pthread_cond_signal(&request->wake);
        }
    } else if (flaw == NULL && is_to_be_undone(request, message)) {
        /* Stays abandoned, until the answer to what undoes it comes. */
        late = request;
        late->operation = late_replies[request->operation].undoing;
        late->id = ++connection->last_id;
    } else if (flaw == NULL && abandoned && !has_more) {
        request_recycle_locked(request);
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

int reader_step(struct connection *connection, uint64_t deadline_ns) {
    int fds[SOCKET_FDS_MAX];
    unsigned count = 0, expected = 0;
    bool has_lost = false;
    size_t size = 0;
    const char *flaw = NULL;

    int r = socket_receive(connection->fd, connection->packet, sizeof connection->packet, deadline_ns, &size,
                           fds, &count, &has_lost, client_thread()->until_signal);
    if (r == -ETIMEDOUT || r == -EINTR)
        return r;
    if (r == -EMSGSIZE) {
        connection_refuse(connection, "a message larger than any, or with more descriptors than any");
        return 0;
    }
    if (r < 0) {
        connection_break(connection, GPUPOOL_E_DISCONNECTED, "the connection to the daemon failed: %s (%s)",
                         strerrorname_np(-r), strerrordesc_np(-r));
        return 0;
    }
    if (atomic_load(&connection->is_mute))
        atomic_store(&connection->is_mute, false);
    if (size == 0 && count == 0) {
        connection_break(connection, GPUPOOL_E_DISCONNECTED, "the daemon has closed the connection");
        return 0;
    }

    if (proto_decode(PROTO_FROM_DAEMON, connection->packet, size, &connection->message, &flaw) == 0) {
        expected = proto_message_fds(&connection->message);
        has_lost = has_lost && count < expected;
        if (count != expected && !has_lost)
            flaw = "another number of descriptors than the message goes with";
    }
    if (flaw == NULL) {
        if (expected == 0)
            fds[0] = -1;
        while (count < expected)
            fds[count++] = FD_LOST;
        flaw = reader_deliver(connection, fds, has_lost);
    }
    for (unsigned i = 0; i < count; i++)
        close_fd(fds[i]);
    if (flaw != NULL)
        connection_refuse(connection, flaw);
    return 0;
}

bool reader_wake_sleeper_locked(struct connection *connection) {
    if (connection->reading)
        return false;
    list_for_each_entry(struct request, request, &connection->waiting, link) {
        if (request->asleep) {
            pthread_cond_signal(&request->wake);
            return false;
        }
    }
    return true;
}

void reader_pass_on_locked(struct connection *connection) {
    if (reader_wake_sleeper_locked(connection) && connection->n_submitted > 0)
        submit_wake(connection);
}
