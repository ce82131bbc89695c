/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's record for the daemon's request handlers (daemon/data/requests.c): it takes the place of
 * daemon/data/client.c, without libuv, processes and their ends. Errors that the daemon answers are counted.
 */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/core/core.h"
#include "daemon/core/session.h"
#include "daemon/core/types.h"
#include "daemon/data/client.h"
#include "daemon/data/clients.h"
#include "daemon/data/kept_data.h"
#include "daemon/data/session_log.h"
#include "daemon/data/shared_memory.h"
#include "daemon/loop/desk.h"
#include "daemon/loop/log.h"
#include "daemon/loop/store.h"
#include "daemon/supply/backing.h"
#include "tests/joint/peer.h"
#include "tests/joint/wrapped.h"

int client_send_fds(struct client *client, const struct proto_message *message, const int *fds,
                    unsigned n_fds) {
    if (message->header.operation == PROTO_ERROR)
        daemon_count_error(joint_peer_of(client)->client, message->failure.error, message->failure.text);
    return outbox_send(&client->connection.outbox, client->session, message, fds, n_fds);
}

int client_send(struct client *client, const struct proto_message *message, int fd) {
    return client_send_fds(client, message, &fd, fd >= 0);
}

int client_reject(struct client *client, uint64_t request, enum proto_error error, const char *reason) {
    (void)client, (void)request, (void)error;
    world_fail(reason, "the daemon ends a session because of a packet", __FILE__, __LINE__);
}

/* --- what a successor finds --- */

static void put(const struct client *client, enum store_kind kind, int fd, char ret_name[STORE_NAME_SIZE]) {
    store_put(client->clients->terms.store, kind, fd, ret_name);
    estate_change(client->clients->terms.desk->estate, client->record);
}

void joint_peer_leave_estate(struct joint_peer *peer) {
    struct client *client = &peer->record;
    struct store *store = client->clients->terms.store;

    estate_remove(client->clients->terms.desk->estate, client->record);
    client->record = client->connection.outbox.record = 0;
    store_leave(store, client->stored.socket);
    store_leave(store, client->stored.page);
    store_leave(store, client->stored.reclaim);
}

void joint_peer_leave_socket(struct joint_peer *peer) {
    struct client *client = &peer->record;
    struct store *store = client->clients->terms.store;

    store_leave(store, client->stored.socket);
    store_leave(store, client->stored.reclaim);
    estate_change(client->clients->terms.desk->estate, client->record);
}

static int take_stored(const struct client *client, const struct kept_stored *name,
                       char ret_name[STORE_NAME_SIZE]) {
    int fd = name->text[0] != '\0' ? store_take(client->clients->terms.store, name->text) : -1;

    if (fd >= 0)
        memcpy(ret_name, name->text, STORE_NAME_SIZE);
    return fd;
}

static void take_page(struct client *client, const struct kept_client *kept) {
    void *memory;

    if (!kept->dead.has_page)
        return;
    int fd = take_stored(client, &kept->page, client->stored.page);
    must(fd >= 0 && shared_memory_take(fd, PROTO_PAGE_BYTES, &memory) == 0, "a page is stored");
    client->page = (struct page){fd, memory};
    client->session->page = memory;
}

int client_inherit(struct clients *clients, struct session *session, const struct kept_session *kept_session,
                   const struct kept_client *kept, uint32_t record) {
    struct client *client = &joint_peer_new((unsigned)(session->peer.pid - JOINT_FIRST_PID))->record;

    (void)kept_session;
    must(record != 0, "a session has the record of its client");
    client->session = session;
    client->peer = session->peer;
    client->version = (uint16_t)kept->version;
    client->record = record;
    client->state = CLIENT_OPEN;
    client->connection.fd = take_stored(client, &kept->socket, client->stored.socket);
    client->reclaim_fd = take_stored(client, &kept->reclaim, client->stored.reclaim);
    take_page(client, kept);
    outbox_init(&client->connection.outbox, client->connection.fd, clients->terms.desk);
    outbox_begin_session(&client->connection.outbox, session->id, record);
    client->connection.outbox.awaited_segment = kept->awaited_segment;
    session->owner = client;
    estate_bind(clients->terms.desk->estate, record, client);
    return 0;
}

void client_inherit_board(struct client *client) {
    const struct session *session = client->session;

    if (session == NULL) /* it has connected since */
        return;
    if (session->state == SESSION_QUARANTINED) {
        client->state = CLIENT_LOST;
        joint_peer_of(client)->is_lost = true;
    }
    if (session->board_slot == 0)
        return;
    client->board_slot = session->board_slot - 1;
    client->board = board_of(&client->clients->boards, peer_tenant(&client->peer), client->board_slot);
    must(client->board != NULL, "a board is stored");
}

void client_resume(struct client *client) {
    if (client->session == NULL || client->state == CLIENT_LOST)
        return;
    must(client->connection.fd >= 0, "a socket is stored");
    if (outbox_flush(&client->connection.outbox, client->session) < 0)
        client_end(client, "");
}

/* --- what the request handlers call --- */

int client_make_page(struct client *client) {
    void *memory;
    int fd = shared_memory_make("gpupool-page", PROTO_PAGE_BYTES, &memory);

    must(fd >= 0, "a page can be made");
    client->page = (struct page){fd, memory};
    put(client, STORE_PAGE, fd, client->stored.page);
    core_session_set_page(client->session, memory);
    return 0;
}

int client_join_board(struct client *client) {
    int r =
        board_join(&client->clients->boards, peer_tenant(&client->peer), &client->board, &client->board_slot);
    if (r == 0)
        core_session_set_board(client->session, client->board_slot,
                               &client->board->memory->slots[client->board_slot]);
    return r;
}

void client_said_farewell(struct client *client) {
    if (client->board != NULL)
        board_leave(&client->clients->boards, client->board, client->board_slot, true);
    client->board = NULL;
    client->session = NULL;
    client->state = CLIENT_CLOSING;
    joint_peer_leave_estate(joint_peer_of(client));
}

void client_lend_segment(struct client *client, bool needs_driver) {
    (void)client, (void)needs_driver;
}

int client_identify(struct client *client) {
    (void)client;
    return 0;
}

int client_greeted(struct client *client) {
    client->state = CLIENT_OPEN;
    must(estate_add(client->clients->terms.desk->estate, KEPT_CLIENT, client, &client->record) == 0,
         "a client is kept");
    outbox_begin_session(&client->connection.outbox, client->session->id, client->record);
    put(client, STORE_SOCKET, client->connection.fd, client->stored.socket);
    if (client->reclaim_fd >= 0)
        put(client, STORE_RECLAIM, client->reclaim_fd, client->stored.reclaim);
    return 0;
}

bool backing_needs_driver(const struct backing *backing) {
    must(backing != NULL, "the daemon describes memory that it has");
    return backing->kind != PROTO_SEGMENT_MEMFD;
}

int backing_describe(const struct backing *backing, struct proto_segment *description) {
    description->kind = backing->kind;
    if (backing->kind == PROTO_SEGMENT_LEGACY_IPC)
        memcpy(description->handle, backing->handle.bytes, sizeof description->handle);
    return backing->fd;
}

/* A one-way release tells the client nothing: so it is looked at here. */
int __real_core_release_one_way(struct session *session, const struct proto_release *release,
                                uint64_t now_ns);
int __wrap_core_release_one_way(struct session *session, const struct proto_release *release,
                                uint64_t now_ns);
int __wrap_core_release_one_way(struct session *session, const struct proto_release *release,
                                uint64_t now_ns) {
    int r = __real_core_release_one_way(session, release, now_ns);
    if (r > 0)
        daemon_count_error(joint_peer_of(session->owner)->client, (unsigned)r, "a one-way RELEASE");
    return r;
}

/* --- nothing of these is simulated --- */

void log_message(enum log_level level, const char *format, ...) {
    must(level > LOG_LEVEL_WARNING, format);
}

void session_log_session_begins(struct session_log *log, const struct session *session) {
    (void)log, (void)session;
}

void session_log_session_leaves(struct session_log *log, const struct session *session) {
    (void)log, (void)session;
}

void session_log_session_refused(struct session_log *log, const struct core *core, const struct peer *peer,
                                 const char *text) {
    (void)log, (void)core, (void)peer, (void)text;
}

unsigned lingering_look(struct lingering *lingering, struct tenant_id id) {
    (void)lingering, (void)id;
    return 0;
}

bool lingering_has_room(struct lingering *lingering, struct tenant_id id) {
    (void)lingering, (void)id;
    return true;
}
