/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/data/inheritance.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/units.h"
#include "daemon/core/segment.h"
#include "daemon/data/client.h"
#include "daemon/data/clients.h"
#include "daemon/data/kept_data.h"
#include "daemon/data/serve.h"
#include "daemon/loop/desk.h"
#include "daemon/loop/log.h"
#include "daemon/supply/backing.h"

/* A packet with which so many daemons have died is not tried again. */
#define DEATHS_MAX 3u

static struct estate *estate_of(const struct inheritance *inheritance) {
    return inheritance->clients->terms.desk->estate;
}

static int compare_sessions(const void *a, const void *b) {
    const struct inherited_client *left = a, *right = b;
    return (left->session > right->session) - (left->session < right->session);
}

static int find_clients(struct inheritance *inheritance) {
    struct estate *estate = estate_of(inheritance);
    struct estate_found found = {0};
    struct kept_client kept;
    size_t room = 0;

    while (estate_next(estate, KEPT_CLIENT, found.record, &found)) {
        if (found.is_damaged) /* its user is lost: core_inherit() */
            continue;
        estate_read(estate, &found, &kept);
        struct inherited_client *all =
            array_room(inheritance->all, inheritance->n_clients, &room, sizeof *all);
        if (all == NULL)
            return -ENOMEM;
        inheritance->all = all;
        all[inheritance->n_clients++] =
            (struct inherited_client){.session = kept.session, .record = found.record};
    }
    if (inheritance->n_clients > 0)
        qsort(inheritance->all, inheritance->n_clients, sizeof *inheritance->all, compare_sessions);
    return 0;
}

int inheritance_begin(struct inheritance *inheritance, struct clients *clients) {
    *inheritance = (struct inheritance){.clients = clients};
    return find_clients(inheritance);
}

void inheritance_free(struct inheritance *inheritance) {
    free(inheritance->all);
    *inheritance = (struct inheritance){0};
}

/* --- a session --- */

static struct inherited_client *find(const struct inheritance *inheritance, uint64_t session) {
    const struct inherited_client key = {.session = session};

    return inheritance->n_clients == 0 ? NULL
                                       : bsearch(&key, inheritance->all, inheritance->n_clients,
                                                 sizeof *inheritance->all, compare_sessions);
}

/* The record at its number. Returns false where there is none. */
static bool read_client(const struct inheritance *inheritance, uint32_t record, struct kept_client *ret) {
    struct estate_found found;

    if (!estate_next(estate_of(inheritance), KEPT_CLIENT, record - 1, &found) || found.record != record)
        return false;
    estate_read(estate_of(inheritance), &found, ret);
    return true;
}

/* A session without a record of a client gets one that has nothing, and is lost. */
int inheritance_session(void *argument, struct session *session, const struct kept_session *kept) {
    struct inheritance *inheritance = argument;
    struct inherited_client *found = find(inheritance, session->id);
    struct kept_client client = {.session = session->id, .scope = kept->scope};
    uint32_t record = 0;

    if (found != NULL && !found->is_taken && read_client(inheritance, found->record, &client)) {
        found->is_taken = true;
        record = found->record;
    }
    return client_inherit(inheritance->clients, session, kept, &client, record);
}

/* --- messages --- */

/* -1: it is not there. */
static int page_of_channel(const struct client *client, const struct proto_channel_page_reply *reply) {
    const struct channel_page *page = channels_page(&client->clients->channels, reply->channel, reply->page);
    return page == NULL ? -1 : reply->is_own ? page->fd : page->reading_fd;
}

/* Finds the descriptors that go along with a message. Returns how many, or -ENOENT: one is not there. */
static int find_descriptors(const struct client *client, const struct proto_message *message,
                            int fds[static PROTO_LEASES_PER_MESSAGE]) {
    unsigned n = proto_message_fds(message);

    for (unsigned i = 0; i < n; i++) {
        struct proto_segment description;
        uint64_t id = message->header.operation == PROTO_LEASES ? message->leases.leases[i].segment
                                                                : message->lease.segment;
        const struct segment *segment;
        switch (message->header.operation) {
        case PROTO_HELLO_REPLY:
            fds[i] = client->reclaim_fd;
            break;
        case PROTO_PAGE:
            fds[i] = client->page.fd;
            break;
        case PROTO_BOARD:
            fds[i] = client->board != NULL ? client->board->fd : -1;
            break;
        case PROTO_CHANNEL_MEMORY:
            fds[i] = page_of_channel(client, &message->channel_memory);
            break;
        case PROTO_ALIVE: /* of this daemon's pipe: that of the daemon before is gone */
            fds[i] = alive_need(&client->clients->alive);
            break;
        default:
            segment = segment_find(client->session->core, id);
            fds[i] = segment != NULL && segment->backing != NULL
                         ? backing_describe(segment->backing, &description)
                         : -1;
        }
        if (fds[i] < 0)
            return -ENOENT;
    }
    return (int)n;
}

/* Has a message sent again. One that cannot be is left out: its request has no answer. */
static int keep_message(struct client *client, const uint8_t *bytes, size_t size, bool is_in_doubt) {
    struct outbox *outbox = &client->connection.outbox;
    int fds[PROTO_LEASES_PER_MESSAGE], n_fds;
    struct proto_message message;
    const char *reason;

    if (proto_decode(PROTO_FROM_DAEMON, bytes, size, &message, &reason) < 0) {
        log_warning("a message to pid %d (%s) is lost: %s", (int)client->peer.pid, client->peer.command,
                    reason);
        return 0;
    }
    n_fds = find_descriptors(client, &message, fds);
    if (n_fds < 0)
        return 0;
    if (is_in_doubt)
        message.header.flags |= PROTO_AGAIN;
    /* The client says OPENED once for both copies: for the one that it reads first. */
    if (is_in_doubt && n_fds > 0)
        outbox_opened(outbox);
    int r = outbox_inherit(outbox, client->session, &message, fds, (unsigned)n_fds, is_in_doubt);
    return r == -ENOMEM ? r : 0;
}

/* A client of another version would break the connection where it gets an answer twice: it may miss one. */
static bool takes_twice(const struct client *client) {
    return client->version >= PROTO_VERSION_RESTARTS;
}

static struct client *client_of(const struct inheritance *inheritance, uint64_t session) {
    list_for_each_entry(struct client, client, &inheritance->clients->all, link) {
        if (client->session != NULL && client->session->id == session)
            return client;
    }
    return NULL;
}

/* A part of a message that was kept. */
struct found_part {
    uint32_t record;
    struct kept_reply kept;
};

static int compare_parts(const void *a, const void *b) {
    const struct kept_reply *left = &((const struct found_part *)a)->kept,
                            *right = &((const struct found_part *)b)->kept;

    if (left->session != right->session)
        return left->session < right->session ? -1 : 1;
    if (left->number != right->number)
        return left->number < right->number ? -1 : 1;
    return (left->offset_bytes > right->offset_bytes) - (left->offset_bytes < right->offset_bytes);
}

static int find_parts(const struct inheritance *inheritance, struct found_part **ret_parts, size_t *ret_n) {
    struct estate *estate = estate_of(inheritance);
    struct estate_found found = {0};
    size_t room = 0;

    while (estate_next(estate, KEPT_REPLY, found.record, &found)) {
        struct found_part *parts = array_room(*ret_parts, *ret_n, &room, sizeof *parts);
        if (parts == NULL)
            return -ENOMEM;
        *ret_parts = parts;
        parts[*ret_n].record = found.record;
        estate_read(estate, &found, &parts[*ret_n].kept);
        (*ret_n)++;
    }
    if (*ret_n > 0)
        qsort(*ret_parts, *ret_n, sizeof **ret_parts, compare_parts);
    return 0;
}

/* Puts a message together from its parts. Returns how many parts those are; *ret_size 0: some are missing. */
static size_t join(const struct found_part *parts, size_t n, uint8_t bytes[PROTO_PACKET_MAX],
                   size_t *ret_size) {
    const struct kept_reply *first = &parts[0].kept;
    size_t size = 0, used = 0;

    for (; used < n && parts[used].kept.session == first->session && parts[used].kept.number == first->number;
         used++) {
        const struct kept_reply *part = &parts[used].kept;
        if (part->offset_bytes != size || part->size_bytes != first->size_bytes ||
            part->size_bytes > PROTO_PACKET_MAX || size >= part->size_bytes)
            continue;
        size_t n_bytes =
            part->size_bytes - size < KEPT_REPLY_BYTES ? part->size_bytes - size : KEPT_REPLY_BYTES;
        memcpy(bytes + size, part->bytes, n_bytes);
        size += n_bytes;
    }
    *ret_size = size == first->size_bytes ? size : 0;
    return used;
}

static int keep_parts(struct inheritance *inheritance, const struct found_part *parts, size_t n) {
    uint8_t bytes[PROTO_PACKET_MAX];
    size_t used, size;
    int r = 0;

    for (size_t i = 0; r == 0 && i < n; i += used) {
        struct client *client = client_of(inheritance, parts[i].kept.session);
        used = join(&parts[i], n - i, bytes, &size);
        if (client != NULL && size > 0 && (!parts[i].kept.is_in_doubt || takes_twice(client)))
            r = keep_message(client, bytes, size, parts[i].kept.is_in_doubt);
        for (size_t k = 0; k < used; k++)
            estate_remove(estate_of(inheritance), parts[i + k].record);
    }
    return r;
}

/* The message in doubt was sent before those that are kept. */
static int keep_messages(struct inheritance *inheritance) {
    _cleanup_(freep) struct found_part *parts = NULL;
    const uint8_t *bytes;
    uint64_t session;
    size_t n_parts = 0;

    int r = find_parts(inheritance, &parts, &n_parts);
    size_t size = desk_find_message(inheritance->clients->terms.desk, &session, &bytes);
    struct client *client = size > 0 ? client_of(inheritance, session) : NULL;
    if (r == 0 && client != NULL && takes_twice(client))
        r = keep_message(client, bytes, size, true);
    return r == 0 ? keep_parts(inheritance, parts, n_parts) : r;
}

/* --- behind the sessions --- */

static int take_boards(struct inheritance *inheritance) {
    struct boards *boards = &inheritance->clients->boards;
    struct estate *estate = estate_of(inheritance);
    struct estate_found found = {0};
    struct kept_board board;
    struct kept_board_slot slot;

    while (estate_next(estate, KEPT_BOARD, found.record, &found)) {
        estate_read(estate, &found, &board);
        int r = board_inherit(boards, (struct tenant_id){board.uid, board.scope}, board.stored.text,
                              found.record);
        if (r == -ENOENT) /* its sessions end, and those of others do not wait for them */
            estate_remove(estate, found.record);
        else if (r < 0)
            return r;
    }
    found = (struct estate_found){0};
    while (estate_next(estate, KEPT_BOARD_SLOT, found.record, &found)) {
        estate_read(estate, &found, &slot);
        if (board_inherit_slot(boards, slot.board, found.record, slot.slot, slot.state, slot.epoch) < 0)
            estate_remove(estate, found.record);
    }
    boards_inherited(boards);
    return 0;
}

int inheritance_end(struct inheritance *inheritance) {
    const struct clients *clients = inheritance->clients;
    struct kept_client kept;

    int r = take_boards(inheritance);
    if (r == 0)
        r = channels_inherit(&inheritance->clients->channels);
    if (r < 0)
        return r;
    list_for_each_entry(struct client, client, &inheritance->clients->all, link) {
        client_inherit_board(client);
    }
    for (size_t i = 0; i < inheritance->n_clients; i++) {
        const struct inherited_client *found = &inheritance->all[i];
        if (found->is_taken || !read_client(inheritance, found->record, &kept))
            continue;
        store_leave(clients->terms.store, kept.socket.text);
        store_leave(clients->terms.store, kept.process.text);
        store_leave(clients->terms.store, kept.page.text);
        store_leave(clients->terms.store, kept.reclaim.text);
        estate_remove(estate_of(inheritance), found->record);
    }
    r = keep_messages(inheritance);
    if (r == 0)
        desk_end_step(clients->terms.desk);
    return r;
}

void inheritance_resume(struct inheritance *inheritance) {
    struct clients *clients = inheritance->clients;
    struct desk *desk = clients->terms.desk;
    uint8_t packet[PROTO_PACKET_MAX];
    uint64_t session = 0;
    unsigned n_deaths = 0;

    size_t size = desk_find_packet(desk, &session, &n_deaths, packet);
    list_for_each_entry_safe(struct client, client, &clients->all, link) {
        client_resume(client);
    }
    desk_take_packet(desk);
    struct client *client = size > 0 ? client_of(inheritance, session) : NULL;
    if (client != NULL && client->state == CLIENT_OPEN && n_deaths >= DEATHS_MAX) {
        log_error(
            "pid %d (%s): %u daemons in a row ended with the same message of it in hand; its session ends",
            (int)client->peer.pid, client->peer.command, n_deaths);
        client_end(client, "sent a message with which daemons ended");
    } else if (client != NULL && client->state == CLIENT_OPEN) {
        serve_again(client, packet, size);
    }
    desk_end_step(desk);
    if (clients->n_clients > 0)
        log_info("%s of the daemon before: served from now on", COUNT_TEXT(clients->n_clients, "client"));
}
