/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/adoption.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/list.h"
#include "base/packet.h"
#include "base/units.h"
#include "daemon/core/core.h"
#include "daemon/core/pool.h"
#include "daemon/daemon.h"
#include "daemon/data/board.h"
#include "daemon/data/client.h"
#include "daemon/keeper/inbox.h"
#include "daemon/loop/log.h"
#include "daemon/supply/backing.h"

/* Descriptors that are sent in a turn of the loop: some 0.3 ms. */
#define SENDS_PER_TURN 32u

/* --- all that is stored --- */

static void enter(struct adoption *adoption, const char *name, int fd) {
    size_t slot = store_slot(name);

    if (slot < STORE_SLOTS)
        adoption->fds[slot] = fd;
}

static void enter_listeners(struct adoption *adoption) {
    const struct daemon *daemon = adoption->daemon;

    enter(adoption, daemon->data_listener.stored, daemon->data_listener.fd);
    enter(adoption, daemon->admin_listener.stored, daemon->admin_listener.fd);
    list_for_each_entry(const struct scope_socket, scope, &daemon->scopes.all, link) {
        enter(adoption, scope->listener.stored, scope->listener.fd);
    }
}

static void enter_segments(struct adoption *adoption) {
    const struct core *core = adoption->daemon->core;

    for (unsigned i = 0; i < core->n_pools; i++) {
        list_for_each_entry(const struct segment, segment, &core->pools[i]->segments, link) {
            const struct backing *backing = segment->backing;
            if (backing != NULL)
                enter(adoption, segment->label.stored, backing->fd);
        }
    }
}

static void enter_clients(struct adoption *adoption) {
    const struct clients *clients = &adoption->daemon->clients;

    list_for_each_entry(const struct client, client, &clients->all, link) {
        enter(adoption, client->stored.socket, client->connection.fd);
        enter(adoption, client->stored.process, client->pidfd);
        enter(adoption, client->stored.page, client->page.fd);
        enter(adoption, client->stored.reclaim, client->reclaim_fd);
    }
    list_for_each_entry(const struct board, board, &clients->boards.all, link) {
        enter(adoption, board->stored, board->fd);
    }
    list_for_each_entry(const struct channel_pages, pages, &clients->channels.all, link) {
        for (unsigned i = 0; i < pages->n_pages; i++)
            enter(adoption, pages->pages[i].stored, pages->pages[i].fd);
    }
}

/* Looks which descriptor has which name now: descriptors come and go between two turns. */
static void enter_all(struct adoption *adoption) {
    for (size_t slot = 0; slot < STORE_SLOTS; slot++)
        adoption->fds[slot] = -1;
    enter_listeners(adoption);
    enter_segments(adoption);
    enter_clients(adoption);
}

/* --- moving --- */

static void free_poll(uv_handle_t *handle) {
    free(handle);
}

/* Accepts NULL. Returns NULL. */
static uv_poll_t *stop_poll(uv_poll_t *poll) {
    if (poll != NULL)
        uv_close((uv_handle_t *)poll, free_poll);
    return NULL;
}

/* Has the loop watch a descriptor, which stays the caller's. A handle that closes cannot be used again at once, so
 * each has memory of its own. */
static int start_poll(struct adoption *adoption, int fd, int events, uv_poll_cb callback,
                      uv_poll_t **ret_poll) {
    uv_poll_t *poll = calloc(1, sizeof *poll);
    int r = poll == NULL ? -ENOMEM : uv_poll_init(&adoption->daemon->loop, poll, fd);

    if (r < 0) {
        free(poll);
        return r;
    }
    poll->data = adoption;
    r = uv_poll_start(poll, events, callback);
    *ret_poll = r == 0 ? poll : stop_poll(poll);
    return r;
}

static void end_move(struct adoption *adoption) {
    adoption->on_writable = stop_poll(adoption->on_writable);
    adoption->on_barrier = stop_poll(adoption->on_barrier);
    adoption->socket = close_fd(adoption->socket);
    adoption->barrier = close_fd(adoption->barrier);
    free(adoption->fds);
    adoption->fds = NULL;
}

/* Of the inbox of a keeper that was killed. */
struct removal {
    struct worker_job job;
    char path[NOTIFIER_PATH_SIZE];
};

/* The socket lies in a directory of its own. */
static void removal_run(struct worker_job *job) {
    struct removal *removal = container_of(job, struct removal, job);

    unlink(removal->path);
    *strrchr(removal->path, '/') = '\0';
    rmdir(removal->path);
}

static void removal_done(struct worker_job *job) {
    free(container_of(job, struct removal, job));
}

/* On the notifier's thread: a file system on a disk can make the loop wait. Without memory for that, it stays. */
static void remove_inbox(struct adoption *adoption) {
    struct removal *removal =
        strstr(adoption->path, "/" INBOX_DIRECTORY) != NULL ? calloc(1, sizeof *removal) : NULL;

    if (removal == NULL)
        return;
    removal->job = (struct worker_job){.run = removal_run, .done = removal_done};
    memcpy(removal->path, adoption->path, sizeof removal->path);
    worker_submit(&adoption->daemon->notifier.worker, &removal->job);
}

static void lose_keeper(struct adoption *adoption) {
    struct store *store = &adoption->daemon->store;

    end_move(adoption);
    adoption->on_keeper_end = stop_poll(adoption->on_keeper_end);
    adoption->keeper_pidfd = close_fd(adoption->keeper_pidfd);
    store_lose_manager(store);
    log_warning("the keeper (process %d) has ended: sessions and memory end with this daemon now; start a "
                "keeper with the same options, and it takes the daemon on",
                adoption->keeper_pid);
}

/* Whether the keeper has ended, also where the loop has not noticed it yet. */
static bool keeper_is_over(struct adoption *adoption) {
    if (adoption->keeper_pidfd >= 0 &&
        poll(&(struct pollfd){.fd = adoption->keeper_pidfd, .events = POLLIN}, 1, 0) > 0)
        lose_keeper(adoption);
    return adoption->daemon->store.manager == STORE_ADRIFT;
}

static void on_keeper_end(uv_poll_t *poll, int status, int events) {
    (void)status, (void)events;
    lose_keeper(poll->data);
}

/* The keeper has read all that was sent, or it has ended: that closes the barrier, too. */
static void on_barrier(uv_poll_t *poll, int status, int events) {
    struct adoption *adoption = poll->data;
    struct daemon *daemon = adoption->daemon;
    (void)status, (void)events;

    if (keeper_is_over(adoption))
        return;
    end_move(adoption);
    store_note_held(&daemon->store);
    log_info("another keeper (process %d) holds the daemon's %s", adoption->keeper_pid,
             COUNT_TEXT(adoption->n_sent, "descriptor"));
    if (daemon->ready_announced)
        (void)notifier_pass(&daemon->notifier, "READY=1", -1);
}

static int begin_barrier(struct adoption *adoption) {
    int ends[2];

    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
        return -errno;
    adoption->barrier = ends[0];
    _cleanup_(close_fdp) int other = ends[1];
    int r = start_poll(adoption, adoption->barrier, UV_READABLE | UV_DISCONNECT, on_barrier,
                       &adoption->on_barrier);
    return r < 0 ? r : notifier_pass(&adoption->daemon->notifier, "BARRIER=1", other);
}

/* Returns 0, -EAGAIN, or another negative errno. */
static int send_one(struct adoption *adoption, const char *name, int fd) {
    char text[STORE_MESSAGE_SIZE];

    store_write_message(name, text);
    if (send_with_fd(adoption->socket, text, strlen(text), fd, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        return -errno;
    adoption->n_sent++;
    return 0;
}

/* Sends the next ones. Returns 1 when all are sent, or as send_one(). */
static int send_some(struct adoption *adoption) {
    const struct store *store = &adoption->daemon->store;
    const struct estate_file *file = &adoption->daemon->succession.file;
    char name[STORE_NAME_SIZE];
    int r = 0;

    enter_all(adoption);
    for (unsigned n = 0; r == 0 && n < SENDS_PER_TURN && adoption->next < STORE_SLOTS;
         adoption->next += r == 0) {
        if (adoption->fds[adoption->next] < 0 || !store_name(store, adoption->next, name))
            continue;
        r = send_one(adoption, name, adoption->fds[adoption->next]);
        n++;
    }
    if (r < 0 || adoption->next < STORE_SLOTS)
        return r;
    r = send_one(adoption, file->stored, file->fd);
    return r < 0 ? r : 1;
}

/* The queue is full, the kernel has no memory, or too many descriptors are under way: the keeper reads meanwhile. */
static bool is_transient(int r) {
    return r == -EAGAIN || r == -EINTR || r == -ENOBUFS || r == -ENOMEM || r == -ETOOMANYREFS;
}

static void on_writable(uv_poll_t *poll, int status, int events) {
    struct adoption *adoption = poll->data;
    (void)events;

    int r = status < 0 ? status : send_some(adoption);
    if (r == 0 || is_transient(r))
        return;
    if (r == 1) {
        adoption->on_writable = stop_poll(adoption->on_writable);
        adoption->socket = close_fd(adoption->socket);
        r = begin_barrier(adoption);
    }
    if (r == 0)
        return;
    log_error("the keeper (process %d) does not get the daemon's descriptors: %s", adoption->keeper_pid,
              strerror(-r));
    lose_keeper(adoption);
}

/* --- the beginning --- */

/* Returns the error that is passed. */
__attribute__((format(printf, 3, 4))) static int refuse(int r, char why[ADMIN_WHY_SIZE], const char *format,
                                                        ...) {
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(why, ADMIN_WHY_SIZE, format, arguments);
    va_end(arguments);
    return r;
}

static int watch_keeper(struct adoption *adoption, int pid) {
    _cleanup_(close_fdp) int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);

    if (pidfd < 0)
        return -errno;
    int r = start_poll(adoption, pidfd, UV_READABLE, on_keeper_end, &adoption->on_keeper_end);
    if (r < 0)
        return r;
    adoption->keeper_pidfd = take_fd(&pidfd);
    adoption->keeper_pid = pid;
    return 0;
}

/* Connects to the keeper, and prepares to send. */
static int begin_move(struct adoption *adoption, const char *notify) {
    adoption->next = adoption->n_sent = 0;
    adoption->socket = notifier_connect(notify);
    if (adoption->socket < 0)
        return adoption->socket;
    adoption->fds = malloc(STORE_SLOTS * sizeof *adoption->fds);
    if (adoption->fds == NULL)
        return -ENOMEM;
    return start_poll(adoption, adoption->socket, UV_WRITABLE, on_writable, &adoption->on_writable);
}

int adoption_begin(struct adoption *adoption, const char *notify, uint64_t pid, uint64_t limit,
                   char why[ADMIN_WHY_SIZE]) {
    struct daemon *daemon = adoption->daemon;
    struct store *store = &daemon->store;

    if (daemon->succession.desk.estate == NULL)
        return refuse(-ENODATA, why,
                      "this daemon has no estate: it cannot be held, and ends all sessions with itself");
    if (!keeper_is_over(adoption))
        return refuse(-EALREADY, why, "the daemon has a keeper or a service manager");
    if (strlen(notify) >= sizeof adoption->path)
        return refuse(-ENAMETOOLONG, why, "the path of the keeper's socket is too long");
    if (limit < store->count)
        return refuse(-ENOSPC, why,
                      "the keeper can hold %" PRIu64
                      " descriptors, and the daemon has %zu: raise the keeper's hard "
                      "limit of descriptors (ulimit -Hn)",
                      limit, store->count);
    int r = pid <= INT32_MAX ? watch_keeper(adoption, (int)pid) : -ESRCH;
    if (r == 0)
        r = begin_move(adoption, notify);
    if (r < 0) {
        adoption_stop(adoption);
        return refuse(r, why, "process %" PRIu64 ", the keeper, cannot be reached at %s: %s", pid, notify,
                      strerror(-r));
    }
    remove_inbox(adoption);
    snprintf(adoption->path, sizeof adoption->path, "%s", notify);
    notifier_move(&daemon->notifier, notify);
    store_begin_move(store, limit);
    return 0;
}

void adoption_init(struct adoption *adoption, struct daemon *daemon) {
    *adoption = (struct adoption){.daemon = daemon, .keeper_pidfd = -1, .socket = -1, .barrier = -1};
}

void adoption_start(struct adoption *adoption) {
    const char *path = getenv("NOTIFY_SOCKET");
    int pid = getppid();

    if (path == NULL || strlen(path) >= sizeof adoption->path || !store_is_there(&adoption->daemon->store))
        return;
    snprintf(adoption->path, sizeof adoption->path, "%s", path);
    int r = watch_keeper(adoption, pid);
    if (r < 0) {
        log_warning("the keeper (process %d) cannot be watched: %s", pid, strerror(-r));
        return;
    }
    /* A keeper that ended before has another process in its place, and no socket. */
    _cleanup_(close_fdp) int fd = notifier_connect(path);
    if (fd < 0)
        lose_keeper(adoption);
}

void adoption_stop(struct adoption *adoption) {
    end_move(adoption);
    adoption->on_keeper_end = stop_poll(adoption->on_keeper_end);
    adoption->keeper_pidfd = close_fd(adoption->keeper_pidfd);
}
