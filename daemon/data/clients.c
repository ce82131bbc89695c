/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/data/clients.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/units.h"
#include "daemon/core/core.h"
#include "daemon/data/client.h"
#include "daemon/data/serve.h"
#include "daemon/loop/log.h"
#include "daemon/loop/rights.h"

/* How long a connection may take to say HELLO. */
#define HANDSHAKE_NS (10 * NS_PER_S)

void clients_init(struct clients *clients, const struct clients_terms *terms) {
    *clients = (struct clients){.terms = *terms, .log.is_silent = terms->private};
    list_init(&clients->all);
    list_init(&clients->greeting);
    boards_init(&clients->boards, terms->desk, terms->store);
    channels_init(&clients->channels, terms->core, terms->desk, terms->store);
    alive_init(&clients->alive);
    (void)alive_need(&clients->alive); /* else with the first session that asks */
}

/* Ends the boards of users who have neither a session nor a parcel. A user who comes back before gets the
 * same board again. */
static void end_boards(struct clients *clients) {
    list_for_each_entry_safe(const struct board, board, &clients->boards.all, link) {
        if (!core_has_tenant(clients->terms.core, board->tenant))
            board_end(&clients->boards, board->tenant);
    }
}

void clients_leave(struct clients *clients) {
    list_for_each_entry(const struct client, client, &clients->all, link) {
        if (client->page.memory != NULL && mmap(client->page.memory, PROTO_PAGE_BYTES, PROT_READ | PROT_WRITE,
                                                MAP_PRIVATE | MAP_FIXED, client->page.fd, 0) == MAP_FAILED)
            log_warning("a page is not left alone: %s", strerror(errno));
    }
    channels_leave(&clients->channels);
}

void clients_discard(struct clients *clients) {
    uint64_t sent_bytes;

    clients->stopping = true;
    while (!list_is_empty(&clients->all))
        client_discard(list_first(&clients->all, struct client, link));
    core_revoke_all(clients->terms.core, 0, clock_now_ns(), &sent_bytes);
    core_unpublish_all(clients->terms.core, clock_now_ns());
    channels_settle(&clients->channels);
    end_boards(clients);
    alive_deinit(&clients->alive);
}

void clients_accept(struct clients *clients, int fd, uint32_t scope) {
    if (!client_begin(clients, fd, scope, serve_turn))
        rights_close(clients->terms.closer, fd);
}

/* The client that has been silent for longest makes room, among those of users that have at least an equal
 * share of such clients; there is always one. So a user that only connects shuts out only itself. */
bool clients_make_room(struct clients *clients) {
    if (clients->n_greeting < CLIENT_GREETING_MAX)
        return false;
    unsigned share = clients->n_greeting / clients->n_users_greeting;

    list_for_each_entry(struct client, client, &clients->greeting, greeting_link) {
        if (client->connection.turn.process->user->n_greeting >= share) {
            client_drop_unready(client);
            return true;
        }
    }
    return false;
}

static void drop_silent(struct clients *clients) {
    uint64_t now_ns = clock_now_ns();

    while (!list_is_empty(&clients->greeting)) {
        struct client *oldest = list_first(&clients->greeting, struct client, greeting_link);
        if (now_ns - oldest->accepted_ns <= HANDSHAKE_NS)
            return;
        client_drop_unready(oldest);
    }
}

static void retry_stalled(struct clients *clients) {
    unsigned n_stalled = 0;

    list_for_each_entry_safe(struct client, client, &clients->all, link) {
        if (client->connection.outbox.stalled) {
            n_stalled++;
            client_retry(client);
        }
    }
    if (n_stalled > 0 && !clients->stall_reported)
        log_warning(
            "replies to %s wait, because the kernel does not take them: too many of the descriptors sent "
            "to clients are unread; raise LimitNOFILE, or end processes that keep sockets of clients "
            "that ended",
            COUNT_TEXT(n_stalled, "client"));
    clients->stall_reported = n_stalled > 0;
}

void clients_housekeep(struct clients *clients) {
    drop_silent(clients);
    retry_stalled(clients);
    clients->n_complaints = 0;
    end_boards(clients);
    session_log_turn(&clients->log);
}

bool clients_are_there(const struct clients *clients) {
    list_for_each_entry(const struct client, client, &clients->all, link) {
        if (client->state == CLIENT_OPEN || client->state == CLIENT_GREETING)
            return true;
    }
    return false;
}
