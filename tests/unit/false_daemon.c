/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/false_daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/packet.h"
#include "base/thread.h"
#include "tests/bounded.h"
#include "tests/entries.h"

/* For what a test cannot go on without, also on the daemon's thread, where cmocka's assertions may not be
 * used. */
#define must(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s: errno %d\n", __FILE__, __LINE__, #condition, errno);                 \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

int open_fds(void) {
    return (int)count_entries("/proc/self/fd");
}

int make_memfd(uint64_t size, bool sealed) {
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    must(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
    if (sealed)
        must(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
    return fd;
}

/* --- the exporter --- */

struct exported {
    struct gpu_uuid uuid;
    struct gpu_ipc_handle handle;
};

static void exporter_run(int report, int hold) __attribute__((noreturn));

static void exporter_run(int report, int hold) {
    const struct gpu *gpu;
    struct gpu_device device;
    struct exported exported;
    void *memory;
    char byte;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    must(gpu_sim(&(struct gpu_sim_options){0}, &gpu) == 0);
    must(gpu->device_describe(0, &device) == 0);
    must(gpu->memory_allocate(0, FALSE_SEGMENT_SIZE, &memory) == 0);
    exported.uuid = device.uuid;
    must(gpu->ipc_export(0, memory, &exported.handle) == 0);
    must(write(report, &exported, sizeof exported) == (ssize_t)sizeof exported);
    while (read(hold, &byte, 1) < 0 && errno == EINTR)
        ;
    _exit(0);
}

void exporter_start(struct exporter *exporter) {
    int report[2], hold[2];
    struct exported exported;

    must(pipe2(report, O_CLOEXEC) == 0 && pipe2(hold, O_CLOEXEC) == 0);
    exporter->pid = fork();
    must(exporter->pid >= 0);
    if (exporter->pid == 0) {
        close(report[0]);
        close(hold[1]);
        exporter_run(report[1], hold[0]);
    }
    close(report[1]);
    close(hold[0]);
    struct pollfd started = {.fd = report[0], .events = POLLIN};
    must(poll(&started, 1, (int)(TEST_WAIT_NS / NS_PER_MS)) == 1);
    must(read(report[0], &exported, sizeof exported) == (ssize_t)sizeof exported);
    close(report[0]);
    exporter->hold = hold[1];
    exporter->uuid = exported.uuid;
    exporter->handle = exported.handle;
}

void exporter_stop(struct exporter *exporter) {
    exporter->hold = close_fd(exporter->hold);
    must(test_reap(exporter->pid, NULL) == 0);
}

/* --- what it says --- */

void (*_Atomic false_alter)(const struct proto_message *message, struct false_packet *packet);
unsigned false_copies;

void false_send_bytes(struct false_session *session, const void *bytes, size_t size, const int *fds,
                      unsigned count) {
    must(count <= PACKET_FDS_MAX);
    ssize_t n = send_with_fds(session->fd, bytes, size, fds, count, MSG_NOSIGNAL);
    must(n == (ssize_t)size || errno == EPIPE || errno == ECONNRESET); /* a client may have had enough */
}

void false_send(struct false_session *session, const struct proto_message *message, const int *fds,
                unsigned count) {
    struct false_packet packet = {.n_fds = count};

    must(count <= FALSE_FDS_MAX);
    packet.size = proto_encode(message, packet.bytes);
    if (count > 0)
        memcpy(packet.fds, fds, count * sizeof *fds);
    void (*alter)(const struct proto_message *, struct false_packet *) = false_alter;
    if (alter != NULL)
        alter(message, &packet);
    false_send_bytes(session, packet.bytes, packet.size, packet.fds, packet.n_fds);
    packet.bytes[offsetof(struct proto_header, flags)] |= PROTO_AGAIN;
    for (unsigned n = 0; n < false_copies && message->header.request != 0; n++)
        false_send_bytes(session, packet.bytes, packet.size, packet.fds, packet.n_fds);
}

void false_send_ok(struct false_session *session, uint64_t request) {
    struct proto_message message = {.header = {.operation = PROTO_OK, .request = request}};
    false_send(session, &message, NULL, 0);
}

void false_send_error(struct false_session *session, uint64_t request, enum proto_error error,
                      const char *text) {
    struct proto_message message = {.header = {.operation = PROTO_ERROR, .request = request}};
    proto_failure_set(&message.failure, error, "%s", text);
    false_send(session, &message, NULL, 0);
}

struct proto_message false_lease_message(struct false_daemon *daemon, uint64_t request, uint32_t pool,
                                         uint64_t size, bool described) {
    uint64_t lease = ++daemon->last_lease;
    uint64_t capacity = (size + 511) / 512 * 512;
    struct proto_message message = {
        .header = {.operation = PROTO_LEASE, .request = request},
        .lease =
            {
                .lease = lease,
                .generation = lease * 3,
                .segment = pool,
                .offset_bytes = lease * 512 % 8192,
                .size_bytes = size,
                .capacity_bytes = capacity,
                .pool = pool,
            },
    };
    if (described) {
        message.lease.description = (struct proto_segment){
            .id = pool,
            .size_bytes = FALSE_SEGMENT_SIZE,
            .pool = pool,
            .kind = pool == FALSE_POOL_DEVICE ? PROTO_SEGMENT_LEGACY_IPC : PROTO_SEGMENT_MEMFD,
        };
        if (pool == FALSE_POOL_DEVICE)
            memcpy(message.lease.description.handle, daemon->exporter->handle.bytes, PROTO_HANDLE_BYTES);
    }
    return message;
}

static void change(struct false_daemon *daemon, _Atomic unsigned *counter, int by) {
    pthread_mutex_lock(&daemon->lock);
    *counter += (unsigned)by;
    pthread_cond_broadcast(&daemon->changed);
    pthread_mutex_unlock(&daemon->lock);
}

static void note_lease(struct false_daemon *daemon, struct false_session *session,
                       const struct proto_lease *lease) {
    for (unsigned i = 0; i < FALSE_LEASES_MAX; i++)
        if (session->leases[i].id == 0) {
            session->leases[i] =
                (struct false_lease){lease->lease, lease->pool, lease->offset_bytes, lease->size_bytes};
            break;
        }
    change(daemon, &daemon->leases, 1);
}

static void send_lease(struct false_daemon *daemon, struct false_session *session,
                       struct proto_message *message) {
    uint32_t pool = message->lease.pool;
    bool has_fd = proto_message_fds(message) > 0;

    note_lease(daemon, session, &message->lease);
    if (message->lease.description.kind != 0)
        session->described[pool] = true;
    if (has_fd)
        session->unconfirmed = pool;
    false_send(session, message, &daemon->host_segments[pool], has_fd);
}

static struct false_lease *find_lease(struct false_session *session, uint64_t id, uint64_t generation) {
    for (unsigned i = 0; i < FALSE_LEASES_MAX; i++)
        if (id != 0 && session->leases[i].id == id && generation == id * 3)
            return &session->leases[i];
    return NULL;
}

static void send_pools(struct false_daemon *daemon, struct false_session *session, uint64_t request) {
    struct proto_message message = {.header = {.operation = PROTO_POOLS, .request = request}};
    struct proto_pool host = {
        .id = FALSE_POOL_HOST,
        .kind = PROTO_POOL_HOST,
        .device = -1,
        .numa_node = 0,
        .limit_bytes = GIB,
        .reserved_bytes = FALSE_SEGMENT_SIZE,
        .free_bytes = FALSE_SEGMENT_SIZE,
        .largest_free_bytes = FALSE_SEGMENT_SIZE,
        .name = "host memory, node 0",
    };
    message.pools.count = daemon->gpu == PROTO_GPU_NONE ? 2 : 3;
    message.pools.pools[0] = host;
    message.pools.pools[1] = host;
    message.pools.pools[1].id = FALSE_POOL_HOST_B;
    message.pools.pools[1].numa_node = FALSE_NODE_B;
    message.pools.pools[2] = host;
    message.pools.pools[2].id = FALSE_POOL_DEVICE;
    message.pools.pools[2].kind = PROTO_POOL_DEVICE;
    message.pools.pools[2].device = 5; /* the daemon's own ordinal: a client must not use it */
    if (daemon->exporter != NULL)
        memcpy(message.pools.pools[2].uuid, daemon->exporter->uuid.bytes, PROTO_UUID_BYTES);
    false_send(session, &message, NULL, 0);
}

void false_send_page(struct false_session *session, uint64_t request, uint64_t size, bool sealed) {
    struct proto_message reply = {.header = {.operation = PROTO_PAGE, .request = request}};
    int fd = make_memfd(size, sealed);

    reply.page.size_bytes = PROTO_PAGE_BYTES;
    false_send(session, &reply, &fd, 1);
    close(fd);
}

static pthread_mutex_t alive_lock = PTHREAD_MUTEX_INITIALIZER;

void false_send_alive(struct false_session *session, uint64_t request) {
    struct proto_message reply = {.header = {.operation = PROTO_ALIVE, .request = request}};
    int fds[2];

    must(pipe2(fds, O_CLOEXEC) == 0);
    false_end_alive(session);
    pthread_mutex_lock(&alive_lock);
    session->alive_fd = fds[1];
    pthread_mutex_unlock(&alive_lock);
    false_send(session, &reply, fds, 1);
    close(fds[0]);
}

void false_end_alive(struct false_session *session) {
    pthread_mutex_lock(&alive_lock);
    if (session->alive_fd > 0)
        close(session->alive_fd);
    session->alive_fd = 0;
    pthread_mutex_unlock(&alive_lock);
}

/* A board of zeros: nothing is ready above 0, and the first slot is the client's. */
static void send_board(struct false_session *session, uint64_t request) {
    struct proto_message reply = {.header = {.operation = PROTO_BOARD, .request = request}};
    int fd = make_memfd(PROTO_BOARD_BYTES, true);

    reply.board.size_bytes = PROTO_BOARD_BYTES;
    false_send(session, &reply, &fd, 1);
    close(fd);
}

void false_daemon_serve(struct false_daemon *daemon, struct false_session *session,
                        const struct proto_message *request) {
    uint64_t id = request->header.request, size;
    struct proto_message reply = {.header = {.request = id}};
    struct false_lease *lease;

    switch (request->header.operation) {
    case PROTO_HELLO:
        reply.header.operation = PROTO_HELLO_REPLY;
        reply.hello_reply = (struct proto_hello_reply){
            .magic = PROTO_MAGIC, .version = daemon->version, .gpu = (uint16_t)daemon->gpu, .session = 1};
        false_send(session, &reply, NULL, 0);
        return;
    case PROTO_LIST_POOLS:
        send_pools(daemon, session, id);
        return;
    case PROTO_ACQUIRE:
        change(daemon, &daemon->acquires, 1);
        if (request->acquire.pool > 3 || request->acquire.pool == 0) {
            false_send_error(session, id, PROTO_E_NO_POOL, "no such pool");
            return;
        }
        size = request->acquire.size_bytes;
        if (request->acquire.least_bytes != 0 && size > MIB)
            size = request->acquire.least_bytes;
        if (size < daemon->large_bytes)
            size = daemon->large_bytes;
        if (size > MIB) {
            false_send_error(session, id, PROTO_E_EXHAUSTED, "the pool holds 4 MiB, pid 4711 has them all");
            return;
        }
        reply = false_lease_message(daemon, id, request->acquire.pool, size,
                                    !session->described[request->acquire.pool]);
        send_lease(daemon, session, &reply);
        return;
    case PROTO_RELEASE:
        must(request->release.board_word == 0 || session->has_board);
        lease = find_lease(session, request->release.lease, request->release.generation);
        if (lease == NULL) {
            false_send_error(session, id, PROTO_E_STALE, "no such lease in this session");
            return;
        }
        if (request->release.size_bytes == 0) {
            lease->id = 0;
            change(daemon, &daemon->leases, -1);
        } else
            lease->size = request->release.offset_bytes;
        change(daemon, &daemon->releases, 1);
        if (id != 0) /* else it is one-way */
            false_send_ok(session, id);
        return;
    case PROTO_SPLIT: /* where the part lies does not matter: clients know */
        lease = find_lease(session, request->split.lease, request->split.generation);
        if (lease == NULL) {
            false_send_error(session, id, PROTO_E_STALE, "no such lease in this session");
            return;
        }
        reply = false_lease_message(daemon, id, lease->pool, request->split.size_bytes, false);
        send_lease(daemon, session, &reply);
        return;
    case PROTO_SHARE:
    case PROTO_SEND: /* begins with it */
        lease = find_lease(session, request->share.lease, request->share.generation);
        if (lease == NULL) {
            false_send_error(session, id, PROTO_E_STALE, "no such lease in this session");
            return;
        }
        daemon->has_token = true;
        daemon->shared = (struct proto_lease){.segment = lease->pool,
                                              .pool = lease->pool,
                                              .offset_bytes = lease->offset,
                                              .size_bytes = lease->size};
        reply.token = (struct proto_token_reply){.lease = request->share.lease,
                                                 .generation = request->share.generation};
        if (request->share.part_bytes > 0) {
            const struct proto_message own =
                false_lease_message(daemon, id, lease->pool, request->share.part_bytes, false);
            note_lease(daemon, session, &own.lease);
            reply.token.lease = own.lease.lease;
            reply.token.generation = own.lease.generation;
        }
        reply.header.operation = PROTO_TOKEN;
        memset(reply.token.token.bytes, 0xa5, sizeof reply.token.token.bytes);
        false_send(session, &reply, NULL, 0);
        return;
    case PROTO_ATTACH:
        if (!daemon->has_token || request->attach.bytes[0] != 0xa5) {
            false_send_error(session, id, PROTO_E_NO_TOKEN, "nothing is shared under this token");
            return;
        }
        reply = false_lease_message(daemon, id, daemon->shared.pool, daemon->shared.size_bytes,
                                    !session->described[daemon->shared.pool]);
        reply.lease.offset_bytes = daemon->shared.offset_bytes;
        send_lease(daemon, session, &reply);
        return;
    case PROTO_QUERY:
        lease = find_lease(session, request->query.lease, request->query.generation);
        if (lease == NULL) {
            false_send_error(session, id, PROTO_E_STALE, "no such lease in this session");
            return;
        }
        reply.header.operation = PROTO_INFO;
        reply.info = (struct proto_info){
            .segment = lease->pool,
            .offset_bytes = lease->offset,
            .size_bytes = lease->size,
            .capacity_bytes = (lease->size + 511) / 512 * 512,
            .pool = lease->pool,
            .holders = 1,
            .shared = daemon->has_token,
        };
        false_send(session, &reply, NULL, 0);
        return;
    case PROTO_ASK_PAGE:
        session->has_page = true;
        change(daemon, &daemon->pages, 1);
        false_send_page(session, id, PROTO_PAGE_BYTES, true);
        return;
    case PROTO_ASK_BOARD:
        session->has_board = true;
        send_board(session, id);
        return;
    case PROTO_REVOKE:
        false_send_ok(session, id);
        return;
    case PROTO_ASK_ALIVE:
        false_send_alive(session, id);
        return;
    case PROTO_ASK_HOLDERS:
        reply.header = (struct proto_header){.operation = PROTO_HOLDERS, .request = id};
        memset(&reply.holders, 0, sizeof reply.holders);
        false_send(session, &reply, NULL, 0);
        return;
    case PROTO_IDLE: /* none */
        reply.header = (struct proto_header){.operation = PROTO_SEGMENTS, .request = id};
        memset(&reply.segments, 0, sizeof reply.segments);
        false_send(session, &reply, NULL, 0);
        return;
    case PROTO_RECLAIMED:
        daemon->reclaimed = daemon->decoded.reclaimed;
        change(daemon, &daemon->n_reclaimed, 1);
        return;
    case PROTO_BYE:
        change(daemon, &daemon->byes, 1);
        false_send_ok(session, id);
        return;
    default:
        must(false);
    }
}

/* --- the loop --- */

static void dispatch(struct false_daemon *daemon, struct false_session *session,
                     const struct proto_message *request) {
    if (request->header.operation ==
        PROTO_NAME) /* without an answer, so a count would have it sooner or later */
        return;
    if (request->header.operation == PROTO_ASK_ALIVE && !daemon->shows_alive) {
        false_send_alive(session, request->header.request);
        return;
    }
    change(daemon, &daemon->messages, 1);
    if (daemon->handle == NULL || !daemon->handle(daemon, session, request))
        false_daemon_serve(daemon, session, request);
}

static void session_end(struct false_daemon *daemon, struct false_session *session) {
    session->fd = close_fd(session->fd);
    false_end_alive(session);
    free(session->backlog);
    session->backlog = NULL;
    for (unsigned i = 0; i < FALSE_LEASES_MAX; i++)
        if (session->leases[i].id != 0)
            change(daemon, &daemon->leases, -1);
    memset(session, 0, sizeof *session);
    session->fd = -1;
    change(daemon, &daemon->session_count, -1);
    change(daemon, &daemon->ended, 1);
}

static void session_read(struct false_daemon *daemon, struct false_session *session) {
    uint8_t packet[PROTO_PACKET_MAX];
    const char *reason = "";

    ssize_t n = recv(session->fd, packet, sizeof packet, 0);
    if (n <= 0) {
        session_end(daemon, session);
        return;
    }
    if (proto_decode(PROTO_FROM_CLIENT, packet, (size_t)n, &daemon->decoded, &reason) != 0) {
        fprintf(stderr, "the client sent a bad message: %s\n", reason);
        abort();
    }
    if (daemon->decoded.header.operation == PROTO_OPENED) {
        must(session->unconfirmed == daemon->decoded.opened.segment);
        session->unconfirmed = 0;
        change(daemon, &daemon->opened, 1);
        unsigned done = 0;
        while (done < session->backlog_count && session->unconfirmed == 0) {
            struct proto_message request = session->backlog[done++];
            dispatch(daemon, session, &request);
        }
        if (done > 0) {
            session->backlog_count -= done;
            memmove(session->backlog, session->backlog + done,
                    session->backlog_count * sizeof *session->backlog);
        }
        return;
    }
    if (session->unconfirmed != 0) {
        must(session->backlog_count < FALSE_BACKLOG_MAX);
        session->backlog[session->backlog_count++] = daemon->decoded;
        return;
    }
    struct proto_message request = daemon->decoded;
    dispatch(daemon, session, &request);
}

static void session_start(struct false_daemon *daemon) {
    int fd = accept4(daemon->listener, NULL, NULL, SOCK_CLOEXEC);
    must(fd >= 0);
    for (unsigned i = 0; i < FALSE_SESSIONS_MAX; i++)
        if (daemon->sessions[i].fd < 0) {
            daemon->sessions[i].fd = fd;
            daemon->sessions[i].backlog = calloc(FALSE_BACKLOG_MAX, sizeof *daemon->sessions[i].backlog);
            must(daemon->sessions[i].backlog != NULL);
            change(daemon, &daemon->session_count, 1);
            return;
        }
    must(false);
}

static void *run(void *argument) {
    struct false_daemon *daemon = argument;

    for (;;) {
        struct pollfd fds[2 + FALSE_SESSIONS_MAX] = {{.fd = daemon->stop_fd, .events = POLLIN},
                                                     {.fd = daemon->listener, .events = POLLIN}};
        for (unsigned i = 0; i < FALSE_SESSIONS_MAX; i++)
            fds[2 + i] = (struct pollfd){.fd = daemon->sessions[i].fd, .events = POLLIN};
        if (poll(fds, 2 + FALSE_SESSIONS_MAX, -1) < 0) {
            must(errno == EINTR);
            continue;
        }
        pthread_mutex_lock(&daemon->lock); /* the test's thread may have sent something */
        bool is_stopped = daemon->is_stopped;
        pthread_mutex_unlock(&daemon->lock);
        if (is_stopped)
            break;
        for (unsigned i = 0; i < FALSE_SESSIONS_MAX; i++)
            if (fds[2 + i].revents != 0)
                session_read(daemon, &daemon->sessions[i]);
        if (fds[1].revents != 0)
            session_start(daemon);
    }
    for (unsigned i = 0; i < FALSE_SESSIONS_MAX; i++)
        if (daemon->sessions[i].fd >= 0)
            session_end(daemon, &daemon->sessions[i]);
    return NULL;
}

void false_daemon_init(struct false_daemon *daemon, const struct exporter *exporter) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    const char *copies = getenv("GPUPOOL_TEST_COPIES");

    memset(daemon, 0, sizeof *daemon);
    false_copies = copies != NULL ? (unsigned)atoi(copies) : 0;
    snprintf(daemon->directory, sizeof daemon->directory, "/tmp/gpupool-test-XXXXXX");
    must(mkdtemp(daemon->directory) != NULL);
    snprintf(daemon->path, sizeof daemon->path, "%s/gpupool.sock", daemon->directory);
    memcpy(address.sun_path, daemon->path, strlen(daemon->path));
    daemon->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    daemon->stop_fd = eventfd(0, EFD_CLOEXEC);
    must(daemon->listener >= 0 && daemon->stop_fd >= 0);
    must(bind(daemon->listener, (struct sockaddr *)&address, sizeof address) == 0 &&
         listen(daemon->listener, 16) == 0);
    daemon->exporter = exporter;
    daemon->version = PROTO_VERSION_MAX;
    daemon->gpu = exporter != NULL ? PROTO_GPU_SIM : PROTO_GPU_NONE;
    daemon->host_segments[FALSE_POOL_HOST] = make_memfd(FALSE_SEGMENT_SIZE, true);
    daemon->host_segments[FALSE_POOL_HOST_B] = make_memfd(FALSE_SEGMENT_SIZE, true);
    daemon->host_segments[0] = daemon->host_segments[FALSE_POOL_DEVICE] = -1;
    for (unsigned i = 0; i < FALSE_SESSIONS_MAX; i++)
        daemon->sessions[i].fd = -1;
    pthread_mutex_init(&daemon->lock, NULL);
    thread_condition_init(&daemon->changed);
}

void false_daemon_run(struct false_daemon *daemon) {
    must(!daemon->running); /* two threads would answer the same sessions */
    must(pthread_create(&daemon->thread, NULL, run, daemon) == 0);
    daemon->running = true;
}

void false_daemon_stop(struct false_daemon *daemon) {
    if (daemon->listener < 0)
        return;
    if (daemon->running) {
        pthread_mutex_lock(&daemon->lock);
        daemon->is_stopped = true;
        pthread_mutex_unlock(&daemon->lock);
        must(eventfd_write(daemon->stop_fd, 1) == 0);
        must(test_join(daemon->thread, NULL) == 0);
    }
    daemon->running = daemon->is_stopped = false;
    daemon->listener = close_fd(daemon->listener);
    daemon->stop_fd = close_fd(daemon->stop_fd);
}

void false_daemon_deinit(struct false_daemon *daemon) {
    false_daemon_stop(daemon);
    for (unsigned i = 0; i < 4; i++)
        daemon->host_segments[i] = close_fd(daemon->host_segments[i]);
    unlink(daemon->path);
    must(rmdir(daemon->directory) == 0);
    pthread_cond_destroy(&daemon->changed);
    pthread_mutex_destroy(&daemon->lock);
}

void false_daemon_await(struct false_daemon *daemon, const _Atomic unsigned *counter, unsigned value) {
    uint64_t deadline_ns = clock_now_ns() + TEST_WAIT_NS;

    pthread_mutex_lock(&daemon->lock);
    while (*counter != value)
        if (thread_condition_wait(&daemon->changed, &daemon->lock, deadline_ns) == ETIMEDOUT) {
            fprintf(stderr, "the false daemon counts %u, not %u\n", (unsigned)*counter, value);
            abort();
        }
    pthread_mutex_unlock(&daemon->lock);
}
