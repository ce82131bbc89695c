/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/data/client.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "daemon/core/kept.h"
#include "daemon/core/scope.h"
#include "daemon/data/clients.h"
#include "daemon/data/kept_data.h"
#include "daemon/data/serve.h"
#include "daemon/data/shared_memory.h"
#include "daemon/loop/descriptors.h"
#include "daemon/loop/desk.h"
#include "daemon/loop/listener.h"
#include "daemon/loop/log.h"
#include "daemon/loop/peer.h"
#include "daemon/loop/rights.h"
#include "daemon/supply/pools.h"

/* Broken packets that the log is told of between two rounds of housekeeping. */
#define COMPLAINTS_MAX 20u

static void client_note_gpu_work(struct client *client);

/* Whether the client has no session and its user has left too many replies unread: then it gets no answer. */
static bool is_crowded_out(const struct client *client) {
    return client->session == NULL &&
           lingering_is_crowded(client->clients->terms.lingering, peer_tenant(&client->peer));
}

int client_send_fds(struct client *client, const struct proto_message *message, const int *fds,
                    unsigned n_fds) {
    if (is_crowded_out(client))
        return -EDQUOT;
    int r = outbox_send(&client->connection.outbox, client->session, message, fds, n_fds);
    if (r == -EDQUOT)
        log_info("pid %d (%s): processes of %s do not read their replies, of which the quota keeps no "
                 "more; its "
                 "session ends",
                 (int)client->peer.pid, client->peer.command,
                 TENANT_TEXT(client->clients->terms.core, peer_tenant(&client->peer)));
    return r;
}

int client_send(struct client *client, const struct proto_message *message, int fd) {
    return client_send_fds(client, message, &fd, fd >= 0);
}

/* Tells the client why its session ends. Returns 0 or a negative errno. */
static int say_last(struct client *client, uint64_t request, enum proto_error error, const char *text) {
    struct proto_message message;

    if (is_crowded_out(client))
        return -EDQUOT;
    message.header = (struct proto_header){.operation = PROTO_ERROR, .request = request};
    proto_failure_set(&message.failure, error, "%s", text);
    return outbox_send_last(&client->connection.outbox, &message);
}

int client_reject(struct client *client, uint64_t request, enum proto_error error, const char *reason) {
    char text[PROTO_TEXT_MAX + 1];

    snprintf(text, sizeof text, "%s; the session ends", reason);
    int r = say_last(client, request, error, text);
    if (client->clients->n_complaints++ < COMPLAINTS_MAX) /* a flood of packets must not flood the log */
        log_info("pid %d (%s) sent a packet that does not check out: %s; its session ends%s",
                 (int)client->peer.pid, client->peer.command, reason,
                 r < 0 ? ", and it could not be told why" : "");
    return -EPROTO;
}

void client_dismiss(struct client *client) {
    (void)say_last(client, 0, PROTO_E_SHUTDOWN, "an operator has ended the session");
    client_end(client, "was ended by an operator");
}

void client_retry(struct client *client) {
    if (outbox_flush(&client->connection.outbox, client->session) < 0)
        client_end(client, "closed its socket");
    else
        connection_watch(&client->connection);
}

void client_changed(const struct client *client) {
    estate_change(client->clients->terms.desk->estate, client->record);
}

/* Stores a descriptor of a session that is kept. */
static void client_store(const struct client *client, enum store_kind kind, int fd,
                         char ret_name[STORE_NAME_SIZE]) {
    if (client->record != 0)
        store_put(client->clients->terms.store, kind, fd, ret_name);
    client_changed(client);
}

static void page_drop(struct page *page) {
    if (page->memory != NULL)
        munmap(page->memory, PROTO_PAGE_BYTES);
    close_fd(page->fd);
}

int client_make_page(struct client *client) {
    void *memory;
    int fd = shared_memory_make("gpupool-page", PROTO_PAGE_BYTES, &memory);

    if (fd < 0)
        return fd;
    client->page = (struct page){fd, memory};
    client_store(client, STORE_PAGE, fd, client->stored.page);
    core_session_set_page(client->session, memory);
    return 0;
}

/* From now on the process may have GPU work that writes to memory of the daemon. */
static void client_watch_living(struct client *client) {
    client_note_gpu_work(client);
    if (!client->watched.facts.no_gpu_work)
        watcher_watch_living(client->clients->terms.watcher, &client->watched);
    client_changed(client);
}

static const struct proto_board_slot *board_words(const struct client *client) {
    return &client->board->memory->slots[client->board_slot];
}

int client_join_board(struct client *client) {
    int r =
        board_join(&client->clients->boards, peer_tenant(&client->peer), &client->board, &client->board_slot);
    if (r < 0)
        return r;
    core_session_set_board(client->session, client->board_slot, board_words(client));
    if (client->session->n_segments == 0)
        client_watch_living(client);
    return 0;
}

static void end_on_board(struct client *client, bool well) {
    if (client->board != NULL)
        board_leave(&client->clients->boards, client->board, client->board_slot, well);
    client->board = NULL;
}

/* The session is gone: a successor is not to know of it. */
static void client_forget(struct client *client) {
    struct store *store = client->clients->terms.store;

    estate_remove(client->clients->terms.desk->estate, client->record);
    client->record = client->connection.outbox.record = 0;
    store_leave(store, client->stored.socket);
    store_leave(store, client->stored.process);
    store_leave(store, client->stored.page);
    store_leave(store, client->stored.reclaim);
}

void client_said_farewell(struct client *client) {
    end_on_board(client, true);
    client->session = NULL;
    client->state = CLIENT_CLOSING;
    client_forget(client);
    client->watched.has_session = false;
}

void client_lend_segment(struct client *client, bool needs_driver) {
    bool first = client->session->n_segments == 1, was_lent = client->driver_lent;

    client->driver_lent |= needs_driver;
    if (first || (needs_driver && !was_lent))
        client_watch_living(client);
}

void client_ask_reclaim(struct client *client) {
    static const struct itimerspec at_once = {.it_value = {.tv_nsec = 1}};
    if (client->reclaim_fd < 0) /* the daemon before could not store it */
        return;
    if (timerfd_settime(client->reclaim_fd, 0, &at_once, NULL) < 0)
        log_warning("pid %d (%s) cannot be asked for idle memory: %s", (int)client->peer.pid,
                    client->peer.command, strerror(errno));
}

static void client_on_process(uv_poll_t *poll, int status, int events) {
    struct client *client = poll->data;
    (void)status, (void)events;

    uv_poll_stop(poll);
    client->watched.facts.process_over = true;
    client_changed(client);
    turn_wait(&client->connection.turn);
}

/* --- ends --- */

/* Frees the client once libuv has closed its handles. */
static void free_if_closed(struct client *client) {
    if (client->handles > 0 || !client->freeing)
        return;
    lingering_leave(client->clients->terms.lingering, client->connection.fd, peer_tenant(&client->peer));
    close_fd(client->pidfd);
    peer_drop_groups(&client->peer);
    free(client);
}

static void client_on_closed(uv_handle_t *handle) {
    struct client *client = handle->data;
    client->handles--;
    free_if_closed(client);
}

static void client_close_handle(uv_handle_t *handle) {
    if (!uv_is_closing(handle))
        uv_close(handle, client_on_closed);
}

static void client_stop_greeting(struct client *client) {
    if (client->state != CLIENT_GREETING)
        return;
    client->clients->n_greeting--;
    if (--client->connection.turn.process->user->n_greeting == 0)
        client->clients->n_users_greeting--;
    list_remove(&client->greeting_link);
}

/* The client is over in every respect. libuv closes its handles first, then its memory is freed. */
static void client_free(struct client *client) {
    assert(client->session == NULL && !client->freeing);
    client_stop_greeting(client);
    watcher_remove(client->clients->terms.watcher, &client->watched);
    turn_leave(&client->connection.turn);
    outbox_drop(&client->connection.outbox, NULL);
    client_forget(client);
    client->reclaim_fd = close_fd(client->reclaim_fd);
    page_drop(&client->page);
    list_remove(&client->link);
    client->clients->n_clients--;
    client->freeing = true;
    if (client->connection.has_poll)
        client_close_handle((uv_handle_t *)&client->connection.poll);
    if (client->pidfd >= 0)
        client_close_handle((uv_handle_t *)&client->process_poll);
    free_if_closed(client);
}

static void client_on_socket_closed(uv_handle_t *handle) {
    struct client *client = handle->data;
    lingering_leave(client->clients->terms.lingering, take_fd(&client->connection.fd),
                    peer_tenant(&client->peer));
    client_on_closed(handle);
}

/* The lost session's memory is safe. */
static void client_give_back(struct client *client) {
    struct session *session = client->session;

    client->session = NULL;
    core_session_gone(session, clock_now_ns());
    end_on_board(client, false);
    client_free(client);
}

static void client_note_gpu_work(struct client *client) {
    client->watched.facts.no_gpu_work = client->clients->terms.watcher->no_driver ||
                                        client->watched.too_late || (client->no_gpu && !client->driver_lent);
}

bool client_process_is_over(const struct client *client) {
    return client->watched.facts.process_over;
}

/* Judges a lost session by the facts that are known now. May free the client. */
static void client_judge(struct client *client) {
    if (death_judge(&client->watched.facts) == DEATH_SAFE)
        client_give_back(client);
    else
        death_explain(&client->watched.facts, client->peer.pid, client->clients->terms.watcher->list_name,
                      client->reason);
}

static void client_on_facts(struct watched *watched) {
    struct client *client = container_of(watched, struct client, watched);
    client_changed(client);
    if (client->state == CLIENT_LOST)
        client_judge(client);
}

void client_process_ended(struct client *client) {
    if (death_judge(&client->watched.facts) != DEATH_SAFE)
        watcher_watch_ended(client->clients->terms.watcher, &client->watched);
    client_judge(client);
}

void client_force(struct client *client) {
    assert(client->state == CLIENT_LOST);
    client_give_back(client);
}

/* Closes the socket, unless a child of the ended process still has the other end. The daemon then keeps its
 * own end to see that child's end: the child that has the socket longest is often the last that has inherited
 * anything. */
static void client_leave_socket(struct client *client) {
    bool keep = client_process_is_over(client) && !watcher_socket_is_over(client->connection.fd);

    client->watched.facts.socket_over = !keep;
    if (!keep)
        client->watched.socket = -1;
    if (!keep && !client_process_is_over(client) && client->stored.process[0] == '\0')
        client_store(client, STORE_PROCESS, client->pidfd, client->stored.process);
    if (!keep) /* the process can be watched without it */
        store_leave(client->clients->terms.store, client->stored.socket);
    client_changed(client);
    if (client->connection.has_poll && !uv_is_closing((uv_handle_t *)&client->connection.poll))
        uv_close((uv_handle_t *)&client->connection.poll, keep ? client_on_closed : client_on_socket_closed);
}

void client_end(struct client *client, const char *why) {
    if (client->session == NULL) {
        client_free(client);
        return;
    }
    assert(client->state == CLIENT_OPEN);
    session_log_session_is_lost(&client->clients->log, client->session, why);
    if (client->session->n_segments == 0 && client->board == NULL) {
        /* The process has no segment and no board: there is nothing that it could still touch. */
        core_session_close(client->session, clock_now_ns());
        client->session = NULL;
        client_free(client);
        return;
    }
    client->state = CLIENT_LOST;
    client->watched.has_session = false;
    outbox_drop(&client->connection.outbox, client->session);
    client->reclaim_fd = close_fd(client->reclaim_fd);
    store_leave(client->clients->terms.store, client->stored.reclaim);
    core_session_lose(client->session, clock_now_ns(), client->reason);
    client_leave_socket(client);
    if (client_process_is_over(client)) {
        client_process_ended(client);
        return;
    }
    /* The process is ending, most likely: the last chance to see it in the driver's list. */
    client_watch_living(client);
    client_judge(client);
}

void client_drop_unready(struct client *client) {
    assert(client->state == CLIENT_GREETING);
    client_free(client);
}

void client_discard(struct client *client) {
    struct session *session = client->session;
    if (session != NULL) {
        if (session->state == SESSION_ACTIVE)
            core_session_lose(session, clock_now_ns(), client->reason);
        core_session_gone(session, clock_now_ns());
        client->session = NULL;
    }
    client_free(client);
}

/* --- beginning --- */

/* Takes a pidfd and has the loop watch it. Returns -ESRCH when the process has ended: another process has the
 * socket now, and its end would not be seen. */
static int client_watch_process(struct client *client) {
    _cleanup_(close_fdp) int pidfd = -1;

    int r = peer_open_pidfd(client->connection.fd, client->peer.pid, &pidfd);
    if (r == 0 && descriptors_are_short(pidfd))
        r = -EMFILE;
    if (r == 0 && poll(&(struct pollfd){.fd = pidfd, .events = POLLIN}, 1, 0) > 0)
        r = -ESRCH;
    if (r == 0)
        r = uv_poll_init(client->clients->terms.loop, &client->process_poll, pidfd);
    if (r < 0)
        return r;
    client->process_poll.data = client;
    client->watched.pidfd = client->pidfd = take_fd(&pidfd);
    client->handles++;
    return uv_poll_start(&client->process_poll, UV_READABLE, client_on_process);
}

int client_identify(struct client *client) {
    struct peer *peer = &client->peer;

    peer_read_command(peer);
    int r = peer_read_groups(client->connection.fd, peer);
    if (r == 0 && client->pidfd < 0)
        r = client_watch_process(client);
    if (r == -EMFILE || r == -ENFILE)
        listener_complain(client->clients->terms.listener);
    else if (r < 0 && r != -ESRCH)
        log_warning("a client (pid %d) was sent away: %s; its end could not be observed, so its memory "
                    "could never be "
                    "reclaimed safely",
                    (int)peer->pid, strerror(-r));
    return r;
}

int client_greeted(struct client *client) {
    const struct clients_terms *terms = &client->clients->terms;

    client_stop_greeting(client);
    client->state = CLIENT_OPEN;
    client->watched.has_session = true;
    client_note_gpu_work(client);
    int r = estate_add(terms->desk->estate, KEPT_CLIENT, client, &client->record);
    if (r < 0 || client->record == 0)
        return r;
    outbox_begin_session(&client->connection.outbox, client->session->id, client->record);
    client_store(client, STORE_SOCKET, client->connection.fd, client->stored.socket);
    if (client->reclaim_fd >= 0)
        client_store(client, STORE_RECLAIM, client->reclaim_fd, client->stored.reclaim);
    if (!peer_is_remembered(client->connection.fd))
        client_store(client, STORE_PROCESS, client->pidfd, client->stored.process);
    return 0;
}

/* The client is one of all now, and its process is known to the watcher. socket: -1: it has none any more. */
static void client_join(struct client *client, int socket) {
    struct clients *clients = client->clients;

    client->watched = (struct watched){.pid = client->peer.pid,
                                       .uid = client->peer.uid,
                                       .pidfd = -1,
                                       .socket = socket,
                                       .own_bytes = GPU_USED_UNKNOWN,
                                       .on_facts = client_on_facts};
    watcher_add(clients->terms.watcher, &client->watched);
    list_append(&clients->all, &client->link);
    clients->n_clients++;
}

bool client_begin(struct clients *clients, int fd, uint32_t scope, void (*serve)(struct turn *turn)) {
    const struct clients_terms *terms = &clients->terms;

    if (descriptors_are_short(fd)) {
        listener_complain(terms->listener);
        return false;
    }
    struct client *client = calloc(1, sizeof *client);
    if (client == NULL)
        return false;
    if (peer_identify(fd, &client->peer) < 0) {
        free(client);
        return false;
    }
    client->scope = client->peer.scope = scope;
    client->is_shut_out = core_is_shut_out(terms->core, &client->peer);
    if (client->is_shut_out)
        client->peer.scope = SCOPE_ORDINARY;
    const struct connection_terms connection = {terms->loop, terms->scheduler, terms->desk, serve, client};
    if (lingering_is_crowded(terms->lingering, peer_tenant(&client->peer)) ||
        connection_open(&client->connection, &connection, fd, peer_turn_user(&client->peer),
                        client->peer.pid) < 0) {
        free(client);
        return false;
    }
    client->clients = clients;
    client->handles = 1;
    client->pidfd = client->reclaim_fd = -1;
    client->page.fd = -1;
    client->accepted_ns = clock_now_ns();
    client_join(client, fd);
    client->state = CLIENT_GREETING;
    list_append(&clients->greeting, &client->greeting_link);
    clients->n_greeting++;
    if (client->connection.turn.process->user->n_greeting++ == 0)
        clients->n_users_greeting++;
    if (!peer_is_remembered(fd) && client_watch_process(client) < 0)
        client_free(client);
    else
        connection_watch(&client->connection);
    return true;
}

/* --- of the daemon before --- */

static int take_stored(const struct client *client, const struct kept_stored *name,
                       char ret_name[STORE_NAME_SIZE]) {
    int fd = name->text[0] != '\0' ? store_take(client->clients->terms.store, name->text) : -1;

    if (fd >= 0) {
        memcpy(ret_name, name->text, STORE_NAME_SIZE);
        ret_name[STORE_NAME_SIZE - 1] = '\0';
    }
    return fd;
}

static int copy_groups(struct peer *peer, const struct kept_session *kept) {
    gid_t *groups = kept->n_groups > 0 ? calloc(kept->n_groups, sizeof *groups) : NULL;

    if (kept->n_groups > 0 && groups == NULL)
        return -ENOMEM;
    for (unsigned i = 0; i < kept->n_groups; i++)
        groups[i] = kept->groups[i];
    peer->groups = groups;
    peer->n_groups = kept->n_groups;
    return 0;
}

/* A page that was not stored is lost, and with it how far the fences in it are. Another one takes its place, in
 * which no fence is ever ready, and the session ends: its memory waits for the process's end. */
static int take_page(struct client *client, const struct kept_client *kept) {
    int fd = take_stored(client, &kept->page, client->stored.page);
    void *memory = NULL;

    if (!kept->dead.has_page) {
        close_fd(fd);
        return 0;
    }
    if (fd < 0 || shared_memory_take(fd, PROTO_PAGE_BYTES, &memory) < 0) {
        close_fd(fd);
        fd = shared_memory_make("gpupool-page", PROTO_PAGE_BYTES, &memory);
        client->has_lost_memory = true;
    }
    if (fd < 0)
        return -ENOMEM;
    client->page = (struct page){fd, memory};
    client->session->page = memory;
    return 0;
}

static void take_facts(struct client *client, const struct kept_process *kept) {
    struct watched *watched = &client->watched;
    struct process_origin *origin = &watched->origin;

    client->no_gpu = kept->no_gpu;
    client->driver_lent = kept->driver_lent;
    /* The list of a simulated driver ends with the daemon, which is the driver: from now on its silence says nothing
     * about the process, as if another one did its work. */
    bool is_simulated = client->clients->terms.machine->gpu_kind == PROTO_GPU_SIM;
    watched->facts.seen = kept->seen && !is_simulated;
    watched->facts.under_mps = kept->under_mps || is_simulated;
    watched->facts.process_over = kept->process_over;
    watched->facts.socket_over = kept->socket_over || watched->socket < 0;
    watched->has_origin = kept->has_origin;
    watched->too_late = kept->too_late;
    origin->start_ticks = kept->start_ticks;
    origin->is_complete = kept->is_complete;
    origin->n_ancestors = kept->n_ancestors < PROCESSES_ANCESTORS_MAX ? kept->n_ancestors : 0;
    for (unsigned i = 0; i < origin->n_ancestors; i++) {
        origin->ancestors[i].pid = (pid_t)kept->ancestors[i].pid;
        origin->ancestors[i].start_ticks = kept->ancestors[i].start_ticks;
    }
}

/* Finds the process again by its pid, where neither socket nor pidfd is there. Another one may have the pid by
 * now: its start tells. Returns 0, -ESRCH: it has ended; or another negative errno: that cannot be known. */
static int find_process(const struct client *client, int *ret_pidfd) {
    const struct process_origin *known = &client->watched.origin;
    struct process_origin found = {0};

    if (client->peer.pid <= 0 || known->start_ticks == 0)
        return -ENOENT;
    _cleanup_(close_fdp) int pidfd = (int)syscall(SYS_pidfd_open, client->peer.pid, 0);
    if (pidfd < 0)
        return -errno;
    process_origin_read(&found, NULL, "/proc", client->peer.pid);
    if (found.start_ticks == 0)
        return -ENOENT;
    if (found.start_ticks != known->start_ticks)
        return -ESRCH;
    *ret_pidfd = take_fd(&pidfd);
    return 0;
}

/* A process that cannot be found is watched no more: its session stays until an operator releases it. */
static int watch_again(struct client *client, const struct kept_client *kept) {
    int pidfd = take_stored(client, &kept->process, client->stored.process), r = pidfd < 0 ? -ENOENT : 0;

    if (client->watched.facts.process_over) {
        close_fd(pidfd);
        return 0;
    }
    if (r < 0 && client->connection.fd >= 0)
        r = peer_open_pidfd(client->connection.fd, client->peer.pid, &pidfd);
    else if (r < 0)
        r = find_process(client, &pidfd);
    if (r == -ESRCH) {
        client->watched.facts.process_over = true;
        return 0;
    }
    if (r < 0) {
        log_warning(
            "pid %d (%s) cannot be watched any more (%s): its leases stay until it closes its session, or an "
            "operator releases them (gpupoolctl quarantine)",
            (int)client->peer.pid, client->peer.command, strerror(-r));
        return 0;
    }
    r = uv_poll_init(client->clients->terms.loop, &client->process_poll, pidfd);
    if (r < 0) {
        close_fd(pidfd);
        return r;
    }
    client->process_poll.data = client;
    client->watched.pidfd = client->pidfd = pidfd;
    client->handles++;
    return 0;
}

int client_inherit(struct clients *clients, struct session *session, const struct kept_session *kept_session,
                   const struct kept_client *kept, uint32_t record) {
    const struct clients_terms *terms = &clients->terms;
    struct client *client = calloc(1, sizeof *client);

    if (client == NULL)
        return -ENOMEM;
    *client = (struct client){.clients = clients,
                              .session = session,
                              .peer = session->peer,
                              .scope = session->peer.scope,
                              .version = (uint16_t)kept->version,
                              .record = record,
                              .pidfd = -1,
                              .page = {.fd = -1},
                              .state = CLIENT_OPEN,
                              .accepted_ns = clock_now_ns()};
    if (copy_groups(&client->peer, kept_session) < 0) {
        free(client);
        return -ENOMEM;
    }
    int fd = take_stored(client, &kept->socket, client->stored.socket);
    client->reclaim_fd = take_stored(client, &kept->reclaim, client->stored.reclaim);
    const struct connection_terms connection = {terms->loop, terms->scheduler, terms->desk, serve_turn,
                                                client};
    int r = take_page(client, kept);
    if (r == 0)
        r = connection_open(&client->connection, &connection, fd, peer_turn_user(&client->peer),
                            client->peer.pid);
    if (r < 0) {
        close_fd(fd);
        close_fd(client->reclaim_fd);
        page_drop(&client->page);
        peer_drop_groups(&client->peer);
        free(client);
        return r;
    }
    client->handles = client->connection.has_poll;
    outbox_begin_session(&client->connection.outbox, session->id, record);
    client->connection.outbox.awaited_segment = kept->awaited_segment;
    session->peer = client->peer;
    session->owner = client;
    client_join(client, fd);
    take_facts(client, &kept->dead);
    clients->served = true;
    if (record != 0)
        estate_bind(terms->desk->estate, record, client);
    return watch_again(client, kept);
}

void client_inherit_board(struct client *client) {
    const struct session *session = client->session;

    if (session->board_slot == 0)
        return;
    client->board_slot = session->board_slot - 1;
    client->board = board_of(&client->clients->boards, peer_tenant(&client->peer), client->board_slot);
    client->has_lost_memory |= client->board == NULL;
    if (client->board != NULL)
        client->session->board_words = board_words(client);
}

void client_resume(struct client *client) {
    struct session *session = client->session;

    if (client->pidfd >= 0)
        uv_poll_start(&client->process_poll, UV_READABLE, client_on_process);
    if (session->state == SESSION_QUARANTINED) {
        client->state = CLIENT_LOST;
        session->quarantine_reason = client->reason;
        if (client_process_is_over(client)) {
            client_process_ended(client);
        } else {
            client_watch_living(client);
            client_judge(client);
        }
        return;
    }
    client->watched.has_session = true;
    client_note_gpu_work(client);
    if (client->connection.fd < 0 || client->has_lost_memory) {
        client_end(client, "lost its socket, page or board with the daemon before");
        return;
    }
    if (session->n_segments > 0 || client->board != NULL)
        client_watch_living(client);
    if (outbox_flush(&client->connection.outbox, session) < 0) {
        client_end(client, "closed its socket");
        return;
    }
    connection_watch(&client->connection);
    if (client_process_is_over(client))
        turn_wait(&client->connection.turn);
}
