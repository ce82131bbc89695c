/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/connection.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "daemon/backing.h"
#include "daemon/daemon.h"
#include "daemon/log.h"
#include "daemon/peer.h"
#include "daemon/pool/tenant.h"

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* Linux 6.16: refuse descriptors at the door */
#endif

/* Broken packets that are told of between two rounds of housekeeping. */
#define COMPLAINTS_MAX 20u

/* A packet that could not be sent yet. */
struct reply {
    struct list link;
    int fd; /* to go along, -1: none. Borrowed from the backing, which lives as long as the lease, or
             * from the connection */
    uint64_t segment;       /* whose descriptor it is; 0: no segment's */
    uint64_t charged_bytes; /* to the session */
    size_t size;
    uint8_t packet[];
};

static void connection_on_ready(uv_poll_t *poll, int status, int events);
static void connection_note_gpu_work(struct connection *connection);
static void connection_end(struct connection *connection, const char *why);

static void connection_watch(struct connection *connection) {
    /* While replies are kept nothing more is read, or a client could make us keep ever more; except for the
     * OPENED that lets them go. */
    bool paused = connection->n_replies > 0 && connection->awaited_segment == 0;
    bool writable = connection->n_replies > 0 && connection->awaited_segment == 0 && !connection->stalled;
    int mask = (paused ? 0 : UV_READABLE) | (writable ? UV_WRITABLE : 0) | UV_DISCONNECT;

    if (mask != connection->watching) { /* uv_poll_start costs two epoll calls even when nothing changes */
        connection->watching = mask;
        uv_poll_start(&connection->poll, mask, connection_on_ready);
    }
}

/* Returns 0, -EAGAIN when the socket is full, or a negative errno that ends the connection. */
static int connection_write(struct connection *connection, const void *packet, size_t size, int fd) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec vector = {(void *)packet, size};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    ssize_t n;

    if (fd >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    do
        n = sendmsg(connection->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    /* Too many descriptors of ours are unread, or the kernel has no memory: the socket stays writable and
     * would tell us nothing else. connection_retry() tries again. */
    connection->stalled = n < 0 && (errno == ETOOMANYREFS || errno == ENOBUFS);
    if (n < 0)
        return errno == EWOULDBLOCK || connection->stalled ? -EAGAIN : -errno;
    return 0;
}

/* Takes a reply out of those that are kept. What a session that is over was charged went with it. */
static void connection_drop_reply(struct connection *connection, struct reply *reply) {
    if (connection->session != NULL && reply->charged_bytes > 0)
        core_session_drop_reply(connection->session, reply->charged_bytes);
    list_remove(&reply->link);
    free(reply);
}

static void connection_drop_replies(struct connection *connection) {
    list_for_each_safe(position, &connection->replies)
        connection_drop_reply(connection, container_of(position, struct reply, link));
    connection->n_replies = 0;
    connection->stalled = false;
}

/* Sends a message, or keeps it. Returns 0, or a negative errno that ends the connection. */
static int connection_send(struct connection *connection, const struct proto_message *message, int fd) {
    uint8_t packet[PROTO_PACKET_MAX];
    uint64_t segment = fd >= 0 && message->header.operation == PROTO_LEASE ? message->lease.segment : 0;
    size_t size = proto_encode(message, packet);

    if (connection->n_replies == 0 && connection->awaited_segment == 0) {
        int r = connection_write(connection, packet, size, fd);
        if (r == 0)
            connection->awaited_segment = segment;
        if (r != -EAGAIN)
            return r;
    }
    if (connection->n_replies >= CONNECTION_QUEUE_MAX)
        return -ENOBUFS;
    uint64_t charged_bytes = connection->session != NULL ? sizeof(struct reply) + size : 0;
    if (charged_bytes > 0 && core_session_keep_reply(connection->session, charged_bytes) != 0) {
        log_info("pid %d (%s): processes of user %u do not read their replies, of which the quota keeps no "
                 "more; its "
                 "session ends",
                 (int)connection->peer.pid, connection->peer.command, (unsigned)connection->peer.uid);
        return -ENOBUFS;
    }
    struct reply *reply = malloc(sizeof *reply + size);
    if (reply == NULL) {
        if (charged_bytes > 0)
            core_session_drop_reply(connection->session, charged_bytes);
        return -ENOMEM;
    }
    reply->charged_bytes = charged_bytes;
    reply->fd = fd;
    reply->segment = segment;
    reply->size = size;
    memcpy(reply->packet, packet, size);
    list_append(&connection->replies, &reply->link);
    connection->n_replies++;
    return 0;
}

static int connection_flush(struct connection *connection) {
    while (connection->n_replies > 0 && connection->awaited_segment == 0) {
        struct reply *reply = list_first(&connection->replies, struct reply, link);
        int r = connection_write(connection, reply->packet, reply->size, reply->fd);
        if (r < 0)
            return r == -EAGAIN ? 0 : r;
        connection->awaited_segment = reply->segment;
        connection->n_replies--;
        connection_drop_reply(connection, reply);
    }
    return 0;
}

void connection_retry(struct connection *connection) {
    if (connection_flush(connection) < 0)
        connection_end(connection, "closed its socket");
    else
        connection_watch(connection);
}

/* Begins a reply. Its body is for the caller to fill in whole: zeroing all of the union would cost more than
 * the rest. */
static void reply_begin(struct proto_message *reply, enum proto_operation operation, uint64_t request) {
    reply->header = (struct proto_header){.operation = operation, .request = request};
}

static int connection_send_error(struct connection *connection, uint64_t request, int error,
                                 const char *text) {
    struct proto_message message;
    reply_begin(&message, PROTO_ERROR, request);
    proto_failure_set(&message.failure, (enum proto_error)error, "%s", text);
    return connection_send(connection, &message, -1);
}

/* What is told of the process's end is worth something only from when it was given memory on. */
static void connection_lend_segment(struct connection *connection, bool is_device) {
    bool first = connection->session->n_segments == 1, was_lent = connection->device_lent;

    connection->device_lent |= is_device;
    connection_note_gpu_work(connection);
    if ((first || (is_device && !was_lent)) && !connection->reaping.facts.no_gpu_work)
        reaper_watch(&connection->daemon->reaper, &connection->reaping);
}

/* Sends a lease, with its segment's description and descriptor the first time. */
static int connection_send_lease(struct connection *connection, uint64_t request, struct lease *lease) {
    struct proto_message message;
    const struct backing *backing = lease->block->segment->backing;
    bool describe;
    int fd = -1;

    reply_begin(&message, PROTO_LEASE, request);
    core_describe_lease(lease, &message.lease, &describe);
    if (describe) {
        connection_lend_segment(connection, backing->kind != PROTO_SEGMENT_MEMFD);
        message.lease.description.kind = backing->kind;
        if (backing->kind == PROTO_SEGMENT_MEMFD)
            fd = backing->fd;
        else
            memcpy(message.lease.description.handle, backing->handle.bytes, sizeof backing->handle.bytes);
    }
    return connection_send(connection, &message, fd);
}

/* What a failed call of the core means: ours end the connection, the client's are answered. */
static int connection_refuse(struct connection *connection, uint64_t request, int error) {
    if (error == -ENOMEM)
        return connection_send_error(connection, request, PROTO_E_NO_MEMORY,
                                     "the daemon has no memory for its bookkeeping: try again later");
    if (error < 0)
        return error;
    switch (error) {
    case PROTO_E_STALE:
        return connection_send_error(
            connection, request, error,
            "this session has no such lease: it was released before, or belongs to another");
    case PROTO_E_SHARED:
        return connection_send_error(
            connection, request, error,
            "the block is shared: release it whole, or do not share what is to be divided");
    case PROTO_E_DRIVER:
        return connection_send_error(
            connection, request, error,
            "the pool's device is lost: nothing of it is lent until the daemon restarts");
    case PROTO_E_NO_TOKEN:
        return connection_send_error(
            connection, request, error,
            "nothing is shared under this token with this user: the holder may have released it "
            "before you attached");
    case PROTO_E_LIMIT:
        if (quota_left(&connection->session->tenant->quota, QUOTA_LEASES) == 0) {
            char text[PROTO_TEXT_MAX / 2];
            tenant_explain_quota(connection->session->tenant, QUOTA_LEASES, text, sizeof text);
            return connection_send_error(connection, request, error, text);
        }
        return connection_send_error(
            connection, request, error,
            "this session has as many leases as it may, or has divided one into as many "
            "parts: release some, or raise session_leases_limit in the daemon's "
            "configuration");
    default:
        return connection_send_error(connection, request, error, proto_error_text((unsigned)error));
    }
}

static int connection_send_ok(struct connection *connection, uint64_t request) {
    struct proto_message message;
    reply_begin(&message, PROTO_OK, request);
    return connection_send(connection, &message, -1);
}

/* Takes the client's wish to be asked for idle memory. Without a descriptor it is not asked, and that is all.
 */
static void connection_want_reclaim(struct connection *connection) {
    connection->reclaim_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (connection->reclaim_fd < 0) {
        log_warning(
            "pid %d (%s) cannot be asked for idle memory: %s; raise LimitNOFILE or lower sessions_limit",
            (int)connection->peer.pid, connection->peer.command, strerror(errno));
        return;
    }
    core_session_want_reclaim(connection->session);
}

void connection_ask_reclaim(struct connection *connection) {
    static const struct itimerspec at_once = {.it_value = {.tv_nsec = 1}};
    if (timerfd_settime(connection->reclaim_fd, 0, &at_once, NULL) < 0)
        log_warning("pid %d (%s) cannot be asked for idle memory: %s", (int)connection->peer.pid,
                    connection->peer.command, strerror(errno));
}

static int handle_hello(struct connection *connection, const struct proto_message *message) {
    struct daemon *daemon = connection->daemon;
    struct proto_message reply;

    reply_begin(&reply, PROTO_HELLO_REPLY, message->header.request);
    if (message->hello.version_min > PROTO_VERSION_MAX || message->hello.version_max < PROTO_VERSION_MIN) {
        connection_send_error(connection, message->header.request, PROTO_E_VERSION,
                              message->hello.version_min > PROTO_VERSION_MAX
                                  ? "the client library is newer than the daemon: update gpupoold"
                                  : "the client library is older than the daemon: update libgpupool-client");
        return -EPROTO;
    }
    if (daemon->stopping) {
        connection_send_error(connection, message->header.request, PROTO_E_SHUTDOWN,
                              "the daemon is stopping");
        return -ESHUTDOWN;
    }
    int r = core_session_open(daemon->core, &connection->peer, clock_now_ns(), &connection->session);
    if (r != 0) {
        struct proto_failure failure;
        if (r > 0)
            core_explain_sessions(daemon->core, &connection->peer, &failure);
        connection_send_error(connection, message->header.request, r > 0 ? r : PROTO_E_NO_MEMORY,
                              r > 0 ? failure.text : "the daemon has no memory for its bookkeeping");
        return r > 0 ? -EUSERS : r;
    }
    connection->session->owner = connection;
    if (message->hello.flags & PROTO_HELLO_RECLAIM)
        connection_want_reclaim(connection);
    connection->no_gpu = (message->hello.flags & PROTO_HELLO_NO_GPU) != 0;
    connection_note_gpu_work(connection);
    connection->state = CONNECTION_OPEN;
    daemon->n_handshakes--;
    daemon->served = true;
    reply.hello_reply = (struct proto_hello_reply){
        .magic = PROTO_MAGIC,
        .version =
            message->hello.version_max < PROTO_VERSION_MAX ? message->hello.version_max : PROTO_VERSION_MAX,
        .gpu = (uint16_t)daemon->gpu_kind,
        .session = connection->session->id,
        .daemon_pid = (uint32_t)getpid(),
        .flags = connection->reclaim_fd >= 0 ? PROTO_HELLO_REPLY_EVENTFD : 0,
    };
    return connection_send(connection, &reply, connection->reclaim_fd);
}

static int handle_list_pools(struct connection *connection, const struct proto_message *message) {
    struct core *core = connection->daemon->core;
    struct proto_message reply;

    core_look(core);
    reply_begin(&reply, PROTO_POOLS, message->header.request);
    reply.pools.count = 0;
    reply.pools.reserved = 0;
    for (unsigned i = 0; i < core->n_pools; i++) {
        const struct pool *pool = core->pools[i];
        if (!session_may_use(connection->session, pool))
            continue;
        struct proto_pool *wire = &reply.pools.pools[reply.pools.count++];
        *wire = (struct proto_pool){
            .id = pool->id,
            .kind = pool->kind,
            .device = pool->device,
            .numa_node = pool->numa_node,
            .limit_bytes = pool->limit_bytes,
            .reserved_bytes = pool->reserved_bytes,
            .leased_bytes = pool->leased_bytes,
            .free_bytes = pool_free_bytes(pool),
            .quarantined_bytes = pool->quarantined_bytes,
            .largest_free_bytes = pool_largest_free_bytes(pool),
        };
        memcpy(wire->uuid, pool->uuid, sizeof wire->uuid);
        memcpy(wire->name, pool->name, sizeof wire->name);
    }
    return connection_send(connection, &reply, -1);
}

static int handle_share(struct connection *connection, const struct proto_message *message) {
    struct proto_message reply;
    struct proto_token fresh;

    reply_begin(&reply, PROTO_TOKEN, message->header.request);
    if (getrandom(fresh.bytes, sizeof fresh.bytes, 0) != (ssize_t)sizeof fresh.bytes)
        return connection_send_error(connection, message->header.request, PROTO_E_DRIVER,
                                     "the kernel gave no random bytes");
    const struct proto_lease_name name = {message->share.lease, message->share.generation};
    int r = core_share(connection->session, &name, message->share.size_bytes, &fresh, &reply.token);
    if (r != 0)
        return connection_refuse(connection, message->header.request, r);
    return connection_send(connection, &reply, -1);
}

static int handle_attach(struct connection *connection, const struct proto_message *message) {
    struct lease *lease;
    int r = core_attach(connection->session, &message->attach, &lease);
    if (r != 0)
        return connection_refuse(connection, message->header.request, r);
    return connection_send_lease(connection, message->header.request, lease);
}

static int handle_release(struct connection *connection, const struct proto_message *message,
                          uint64_t now_ns) {
    int r;

    if (message->header.request == 0) { /* one-way */
        r = core_release_one_way(connection->session, &message->release, now_ns);
        if (r != 0)
            log_debug("pid %d (%s) released what it may not, or what could not be divided: %s",
                      (int)connection->peer.pid, connection->peer.command,
                      r > 0 ? proto_error_text((unsigned)r) : strerror(-r));
        return 0;
    }
    r = core_release(connection->session, &message->release, now_ns);
    if (r != 0)
        return connection_refuse(connection, message->header.request, r);
    return connection_send_ok(connection, message->header.request);
}

static int handle_split(struct connection *connection, const struct proto_message *message) {
    struct lease *lease;
    int r = core_split(connection->session, &message->split, &lease);
    if (r != 0)
        return connection_refuse(connection, message->header.request, r);
    return connection_send_lease(connection, message->header.request, lease);
}

static int handle_merge(struct connection *connection, const struct proto_message *message) {
    if (message->header.request ==
        0) /* one-way: what the client goes by is not so any more if it is refused */
        return core_merge_one_way(connection->session, &message->merge) == 0 ? 0 : -EPROTO;
    int r = core_merge(connection->session, &message->merge);
    if (r != 0)
        return connection_refuse(connection, message->header.request, r);
    return connection_send_ok(connection, message->header.request);
}

static int handle_query(struct connection *connection, const struct proto_message *message) {
    struct proto_message reply;
    reply_begin(&reply, PROTO_INFO, message->header.request);
    int r = core_query(connection->session, &message->query, &reply.info);
    if (r != 0)
        return connection_refuse(connection, message->header.request, r);
    return connection_send(connection, &reply, -1);
}

static int handle_idle(struct connection *connection, const struct proto_message *message) {
    struct proto_message reply;
    reply_begin(&reply, PROTO_SEGMENTS, message->header.request);
    int r = core_idle(connection->session, &message->idle, &reply.segments);
    if (r != 0)
        return connection_refuse(connection, message->header.request, r);
    return connection_send(connection, &reply, -1);
}

static int handle_closed(struct connection *connection, const struct proto_message *message,
                         uint64_t now_ns) {
    int r = core_closed(connection->session, &message->closed, now_ns);
    if (r != 0)
        return connection_refuse(connection, message->header.request, r);
    return connection_send_ok(connection, message->header.request);
}

static int handle_ask_page(struct connection *connection, const struct proto_message *message) {
    struct proto_message reply;

    if (connection->page.memory != NULL)
        return connection_send_error(connection, message->header.request, PROTO_E_INVALID,
                                     "this session has its page already");
    int r = page_make(&connection->page);
    if (r < 0)
        return connection_send_error(connection, message->header.request, PROTO_E_DRIVER,
                                     "the kernel gave the daemon no memory for the session's page");
    core_session_set_page(connection->session, connection->page.memory);
    reply_begin(&reply, PROTO_PAGE, message->header.request);
    reply.page = (struct proto_page_reply){.size_bytes = PROTO_PAGE_BYTES};
    return connection_send(connection, &reply, connection->page.fd);
}

static int handle_bye(struct connection *connection, const struct proto_message *message) {
    core_session_close(connection->session, clock_now_ns());
    connection->session = NULL;
    connection->state = CONNECTION_CLOSING;
    connection_send_ok(connection, message->header.request);
    return -ESHUTDOWN; /* a socket that is closed still delivers what was sent */
}

/* Returns 0, or a negative errno that ends the connection. */
static int connection_handle(struct connection *connection, const struct proto_message *message) {
    uint64_t now_ns = clock_now_ns();
    int r;

    if (connection->state == CONNECTION_GREETING)
        return message->header.operation == PROTO_HELLO ? handle_hello(connection, message) : -EPROTO;
    switch (message->header.operation) {
    case PROTO_LIST_POOLS:
        return handle_list_pools(connection, message);
    case PROTO_ACQUIRE:
        r = core_acquire(connection->session, message->header.request, &message->acquire, now_ns);
        return r == 0 ? 0 : connection_refuse(connection, message->header.request, r);
    case PROTO_RELEASE:
        return handle_release(connection, message, now_ns);
    case PROTO_SPLIT:
        return handle_split(connection, message);
    case PROTO_MERGE:
        return handle_merge(connection, message);
    case PROTO_SHARE:
        return handle_share(connection, message);
    case PROTO_ATTACH:
        return handle_attach(connection, message);
    case PROTO_QUERY:
        return handle_query(connection, message);
    case PROTO_ASK_PAGE:
        return handle_ask_page(connection, message);
    case PROTO_IDLE:
        return handle_idle(connection, message);
    case PROTO_CLOSED:
        return handle_closed(connection, message, now_ns);
    case PROTO_OPENED:
        if (connection->awaited_segment == 0 || message->opened.segment != connection->awaited_segment)
            return -EPROTO;
        connection->awaited_segment = 0;
        return connection_flush(connection);
    case PROTO_BYE:
        return handle_bye(connection, message);
    default: /* a second HELLO */
        return -EPROTO;
    }
}

/* Reads one packet. Returns 0, -EAGAIN, or a negative errno that ends the connection. */
static int connection_read(struct connection *connection) {
    uint8_t packet[PROTO_PACKET_MAX];
    struct proto_message message;
    const char *reason;

    /* No control buffer: descriptors that a client attaches are dropped by the kernel. MSG_TRUNC: the true
     * length. */
    ssize_t n = recv(connection->fd, packet, sizeof packet, MSG_DONTWAIT | MSG_TRUNC);
    if (n < 0)
        return errno == EINTR || errno == EAGAIN ? -EAGAIN : -errno;
    if (n == 0)
        return -ECONNRESET;
    int r = (size_t)n > sizeof packet ? -EMSGSIZE
                                      : proto_decode(PROTO_FROM_CLIENT, packet, (size_t)n, &message, &reason);
    if (r < 0) {
        /* whoever floods us is not to flood the log too */
        if (connection->daemon->n_complaints++ < COMPLAINTS_MAX)
            log_info("pid %d (%s) sent a packet that does not check out: %s; its session ends",
                     (int)connection->peer.pid, connection->peer.command,
                     (size_t)n > sizeof packet ? "too long" : reason);
        return -EPROTO;
    }
    return connection_handle(connection, &message);
}

/* Packets that a connection may have dealt with in this turn: as many as it has shown to send at once, but
 * together with the others that are ready no more than one alone may have, so that many who flood us hold
 * nobody up for longer than one does. */
static unsigned connection_share(const struct connection *connection) {
    const struct daemon *daemon = connection->daemon;
    unsigned ready = daemon->ready_before > daemon->ready_now ? daemon->ready_before : daemon->ready_now;
    unsigned share = ready > 1 ? CONNECTION_PACKETS_PER_TURN / ready : CONNECTION_PACKETS_PER_TURN;
    if (share == 0)
        share = 1;
    return share < connection->packets_a_turn ? share : connection->packets_a_turn;
}

static void connection_on_ready(uv_poll_t *poll, int status, int events) {
    struct connection *connection = poll->data;
    struct daemon *daemon = connection->daemon;
    int r = status < 0 ? -ECONNRESET : 0; /* libuv has stopped polling */

    if (r == 0 && (events & UV_WRITABLE))
        r = connection_flush(connection);
    unsigned n_read = 0;
    daemon->ready_now++;
    unsigned share = connection_share(connection);
    while (r == 0 && (events & UV_READABLE) && n_read < share) {
        r = connection_read(connection);
        n_read++;
        if (connection->n_replies > 0 && connection->awaited_segment == 0)
            break; /* no room for its answers: it is to read first */
    }
    if (r == -EAGAIN) {
        r = 0;
        connection->packets_a_turn = 1;
        connection->single_turns = CONNECTION_SINGLE_TURNS;
    } else if (connection->single_turns > 0) {
        connection->single_turns--;
    } else if (n_read == connection->packets_a_turn && n_read < CONNECTION_PACKETS_PER_TURN) {
        connection->packets_a_turn *= 2;
    }
    if (r == 0 && (events & UV_DISCONNECT) && !(events & UV_READABLE))
        r = -ECONNRESET; /* a hang-up is level triggered: a paused connection would spin */
    if (r < 0)
        connection_end(connection, r == -EPROTO ? "broke the protocol" : "closed its socket");
    else
        connection_watch(connection);
    daemon_drain(daemon);
}

/* --- ends --- */

static void connection_on_closed(uv_handle_t *handle) {
    struct connection *connection = handle->data;
    if (--connection->handles > 0 || !connection->freeing)
        return;
    close_fd(connection->fd);
    close_fd(connection->pidfd);
    peer_drop_groups(&connection->peer);
    free(connection);
}

static void connection_close_handle(struct connection *connection, uv_handle_t *handle) {
    (void)connection;
    if (!uv_is_closing(handle))
        uv_close(handle, connection_on_closed);
}

/* The connection is over in every respect; its memory goes when libuv has let go of it. */
static void connection_free(struct connection *connection) {
    struct daemon *daemon = connection->daemon;

    assert(connection->session == NULL && !connection->freeing);
    if (connection->state == CONNECTION_GREETING)
        daemon->n_handshakes--;
    reaper_forget(&connection->reaping);
    connection_drop_replies(connection);
    connection->reclaim_fd = close_fd(connection->reclaim_fd);
    page_drop(&connection->page);
    list_remove(&connection->link);
    daemon->n_connections--;
    connection->freeing = true;
    connection_close_handle(connection, (uv_handle_t *)&connection->poll);
    connection_close_handle(connection, (uv_handle_t *)&connection->process_poll);
    daemon_session_left(daemon);
}

static void connection_on_socket_closed(uv_handle_t *handle) {
    struct connection *connection = handle->data;
    connection->fd = close_fd(connection->fd);
    connection_on_closed(handle);
}

/* The lost session's memory is safe. */
static void connection_reap(struct connection *connection) {
    struct daemon *daemon = connection->daemon;
    struct session *session = connection->session;

    connection->session = NULL;
    core_session_gone(session, clock_now_ns());
    connection_free(connection);
    daemon_drain(daemon);
}

static void connection_note_gpu_work(struct connection *connection) {
    connection->reaping.facts.no_gpu_work = connection->daemon->reaper.no_driver ||
                                            connection->reaping.too_late ||
                                            (connection->no_gpu && !connection->device_lent);
}

enum death_rule connection_death_rule(const struct connection *connection) {
    return death_rule(&connection->reaping.facts);
}

bool connection_under_mps(const struct connection *connection) {
    return connection->reaping.facts.under_mps;
}

/* Judges a lost session by what is known of it by now. May end the connection. */
static void connection_judge(struct connection *connection) {
    if (death_judge(&connection->reaping.facts) == DEATH_SAFE)
        connection_reap(connection);
    else
        death_explain(&connection->reaping.facts, connection->peer.pid, connection->daemon->reaper.list_name,
                      connection->reason);
}

static void connection_on_facts(struct reaping *reaping) {
    struct connection *connection = container_of(reaping, struct connection, reaping);
    if (connection->state == CONNECTION_LOST)
        connection_judge(connection);
}

/* A lost session's process has ended. May end the connection. */
static void connection_on_process_over(struct connection *connection) {
    connection->reaping.facts.process_over = true;
    if (death_judge(&connection->reaping.facts) != DEATH_SAFE)
        reaper_wait(&connection->daemon->reaper, &connection->reaping);
    connection_judge(connection);
}

void connection_force(struct connection *connection) {
    assert(connection->state == CONNECTION_LOST);
    connection_reap(connection);
}

/* Closes the socket. One that a child of the ended process still has is kept, to see that child's end: the
 * last of those who can have inherited anything is often the last who has the socket. */
static void connection_leave_socket(struct connection *connection) {
    bool keep = connection->process_over && !reaper_socket_is_over(connection->fd);

    connection->reaping.facts.socket_over = !keep;
    if (!keep)
        connection->reaping.socket = -1;
    if (!uv_is_closing((uv_handle_t *)&connection->poll))
        uv_close((uv_handle_t *)&connection->poll, keep ? connection_on_closed : connection_on_socket_closed);
}

/* The socket is of no more use. What the process holds stays until it is safe. */
static void connection_end(struct connection *connection, const char *why) {
    if (connection->session == NULL) {
        connection_free(connection);
        return;
    }
    assert(connection->state == CONNECTION_OPEN);
    log_debug("pid %d (%s) %s without a farewell", (int)connection->peer.pid, connection->peer.command, why);
    if (connection->session->n_segments == 0) {
        /* It was never given a segment: there is nothing that it could still touch, however long its process
         * lives. */
        core_session_close(connection->session, clock_now_ns());
        connection->session = NULL;
        connection_free(connection);
        return;
    }
    connection->state = CONNECTION_LOST;
    connection_drop_replies(connection);
    connection->reclaim_fd = close_fd(connection->reclaim_fd);
    core_session_lose(connection->session, clock_now_ns(), connection->reason);
    connection_leave_socket(connection);
    daemon_session_left(connection->daemon);
    if (connection->process_over) {
        connection_on_process_over(connection);
        return;
    }
    /* Its process is ending, most likely: the last chance to see it in the driver's list. */
    if (!connection->reaping.facts.no_gpu_work)
        reaper_watch(&connection->daemon->reaper, &connection->reaping);
    connection_judge(connection);
}

static void connection_on_process(uv_poll_t *poll, int status, int events) {
    struct connection *connection = poll->data;
    struct daemon *daemon = connection->daemon;
    (void)status, (void)events;

    uv_poll_stop(poll);
    connection->process_over = true;
    if (connection->state == CONNECTION_LOST) {
        connection_on_process_over(connection);
    } else {
        /* Its farewell may still lie in the socket, which a forked child may keep open, and go on writing to.
         */
        for (unsigned n = 0; n < CONNECTION_QUEUE_MAX && connection_read(connection) == 0; n++) {
        }
        connection_end(connection, "ended");
    }
    daemon_drain(daemon);
}

void connection_drop_unready(struct connection *connection) {
    assert(connection->state == CONNECTION_GREETING);
    connection_free(connection);
}

void connection_discard(struct connection *connection) {
    struct session *session = connection->session;
    if (session != NULL) {
        if (session->state == SESSION_ACTIVE)
            core_session_lose(session, clock_now_ns(), connection->reason);
        core_session_gone(session, clock_now_ns());
        connection->session = NULL;
    }
    connection_free(connection);
}

/* --- beginning --- */

void connection_accept(struct daemon *daemon, int socket_fd) {
    _cleanup_(close_fdp) int fd = socket_fd;
    _cleanup_(close_fdp) int pidfd = -1;
    int off = 0;

    struct connection *connection = calloc(1, sizeof *connection);
    if (connection == NULL)
        return;
    int r = peer_identify(fd, &connection->peer);
    if (r == 0)
        r = peer_read_groups(fd, &connection->peer);
    if (r == 0)
        r = peer_open_pidfd(fd, connection->peer.pid, &pidfd);
    if (r < 0) {
        if (r == -EMFILE || r == -ENFILE)
            listener_complain(&daemon->data_listener);
        else if (r != -ESRCH)
            log_warning("a client (pid %d) was sent away: %s; its end could not be observed, so its memory "
                        "could never be "
                        "reclaimed safely",
                        (int)connection->peer.pid, strerror(-r));
        peer_drop_groups(&connection->peer);
        free(connection);
        return;
    }
    setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof off); /* older kernels drop them at recv */
    connection->daemon = daemon;
    connection->accepted_ns = clock_now_ns();
    connection->state = CONNECTION_GREETING;
    connection->packets_a_turn = 1;
    connection->reclaim_fd = -1;
    connection->page = PAGE_NONE;
    list_init(&connection->replies);
    reaping_init(&connection->reaping, connection->peer.pid, connection->peer.uid, pidfd, fd);
    connection->reaping.on_facts = connection_on_facts;
    if (uv_poll_init(&daemon->loop, &connection->poll, fd) < 0) {
        peer_drop_groups(&connection->peer);
        free(connection);
        return;
    }
    connection->poll.data = connection;
    connection->fd = take_fd(&fd);
    connection->handles = 1;
    connection->pidfd = -1;
    list_append(&daemon->connections, &connection->link);
    daemon->n_connections++;
    daemon->n_handshakes++;
    if (uv_poll_init(&daemon->loop, &connection->process_poll, pidfd) == 0) {
        connection->process_poll.data = connection;
        connection->pidfd = take_fd(&pidfd);
        connection->handles++;
        r = uv_poll_start(&connection->process_poll, UV_READABLE, connection_on_process);
    } else {
        /* half built: the one handle there is frees it */
        list_remove(&connection->link);
        daemon->n_connections--;
        daemon->n_handshakes--;
        connection->freeing = true;
        uv_close((uv_handle_t *)&connection->poll, connection_on_closed);
        return;
    }
    connection_watch(connection);
    if (r < 0)
        connection_free(connection);
}

void connection_send_answer(struct connection *connection, const struct answer *answer) {
    int r;
    if (connection->state != CONNECTION_OPEN)
        return;
    if (answer->lease != NULL) {
        r = connection_send_lease(connection, answer->request, answer->lease);
    } else {
        struct proto_message message;
        reply_begin(&message, PROTO_ERROR, answer->request);
        message.failure = answer->failure;
        r = connection_send(connection, &message, -1);
    }
    if (r < 0)
        connection_end(connection, "did not read its replies");
    else
        connection_watch(connection);
}
