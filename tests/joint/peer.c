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
#include "daemon/data/session_log.h"
#include "daemon/data/shared_memory.h"
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

int client_make_page(struct client *client) {
    void *memory;
    int fd = shared_memory_make("gpupool-page", PROTO_PAGE_BYTES, &memory);

    must(fd >= 0, "a page can be made");
    client->page = (struct page){fd, memory};
    core_session_set_page(client->session, memory);
    return 0;
}

int client_join_board(struct client *client) {
    int r = board_join(&client->clients->boards, peer_tenant(&client->peer), &client->board,
                       &client->board_slot);
    if (r == 0)
        core_session_set_board(client->session, client->board_slot);
    return r;
}

void client_said_farewell(struct client *client) {
    if (client->board != NULL)
        board_leave(&client->clients->boards, client->board, client->board_slot, true);
    client->board = NULL;
    client->session = NULL;
    client->state = CLIENT_CLOSING;
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
    return 0;
}

void store_put(struct store *store, enum store_kind kind, int fd, char ret_name[STORE_NAME_SIZE]) {
    (void)store, (void)kind, (void)fd;
    ret_name[0] = '\0';
}

void store_leave(struct store *store, char *name) {
    (void)store;
    name[0] = '\0';
}

int store_take(struct store *store, const char *name) {
    (void)store, (void)name;
    return -1;
}

bool backing_needs_driver(const struct backing *backing) {
    return backing->kind != PROTO_SEGMENT_MEMFD;
}

int backing_describe(const struct backing *backing, struct proto_segment *description) {
    description->kind = backing->kind;
    if (backing->kind == PROTO_SEGMENT_LEGACY_IPC)
        memcpy(description->handle, backing->handle.bytes, sizeof description->handle);
    return backing->fd;
}

/* A one-way release tells the client nothing: so it is looked at here. */
int __real_core_release_one_way(struct session *session, const struct proto_release *release, uint64_t now_ns);
int __wrap_core_release_one_way(struct session *session, const struct proto_release *release, uint64_t now_ns);
int __wrap_core_release_one_way(struct session *session, const struct proto_release *release,
                                uint64_t now_ns) {
    int r = __real_core_release_one_way(session, release, now_ns);
    if (r > 0)
        daemon_count_error(joint_peer_of(session->owner)->client, (unsigned)r, "a one-way RELEASE");
    return r;
}

/* --- nothing of these is simulated --- */

void log_message(enum log_level level, const char *format, ...) {
    (void)level, (void)format;
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
