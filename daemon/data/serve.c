/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/data/serve.h"

#include <errno.h>

#include "daemon/data/client.h"
#include "daemon/data/clients.h"
#include "daemon/data/name_requests.h"
#include "daemon/data/requests.h"
#include "daemon/loop/desk.h"

/* Deals with a packet. Returns 0, or a negative errno that ends the connection. */
static int deal_with(struct client *client, const uint8_t *packet, size_t n, bool *ret_answered) {
    struct proto_message message;
    const char *reason;

    if (proto_decode(PROTO_FROM_CLIENT, packet, n, &message, &reason) < 0)
        return client_reject(client, proto_packet_request(packet, n), PROTO_E_INVALID, reason);
    *ret_answered = proto_is_answered(&message.header);
    int r = request_handle(client, &message);
    return r == -EAGAIN ? -EIO : r;
}

/* Reads one packet and deals with it. Returns 0, -EAGAIN when there is none, or a negative errno that ends
 * the connection. */
static int serve_packet(struct client *client, bool *ret_answered) {
    const uint8_t *packet;
    uint8_t own[PROTO_PACKET_MAX];

    ssize_t n = connection_receive(&client->connection, own, &packet);
    if (n == -EPERM)
        return client_reject(client, 0, PROTO_E_INVALID,
                             "packet: with a descriptor, which clients may not send");
    if (n < 0)
        return (int)n;
    int r = deal_with(client, packet, (size_t)n, ret_answered);
    if (r == 0 && !*ret_answered) /* else the answer ends it, now or before the loop sleeps */
        desk_end_step(client->clients->terms.desk);
    return r;
}

/* Serves one turn. Returns 0 when there may be more, -EAGAIN when the socket is empty or is not to be read
 * for now, or a negative errno that ends the connection. */
static int serve_some(struct client *client) {
    struct outbox *outbox = &client->connection.outbox;
    bool answered = false;
    int r = 0;

    if (outbox_is_stuck(outbox)) {
        r = outbox_flush(outbox, client->session);
        if (r < 0 || !client_process_is_over(client))
            return r == 0 && outbox->full ? -EAGAIN : r;
    }
    for (unsigned n = 0; r == 0 && !answered && n < PROTO_ONE_WAY_PER_TURN; n++) {
        r = serve_packet(client, &answered);
        if (r == 0 && client_process_is_over(client) && ++client->n_last >= SERVE_LAST_PACKETS_MAX)
            return -ECONNRESET;
    }
    return r;
}

/* Ends a client whose connection ended with an error. */
static void end(struct client *client, int error) {
    client_end(client, error == -EPROTO                 ? "broke the protocol"
                       : client_process_is_over(client) ? "ended"
                                                        : "closed its socket");
}

void serve_again(struct client *client, const uint8_t *packet, size_t size) {
    bool answered;
    int r = deal_with(client, packet, size, &answered);

    if (r < 0)
        end(client, r);
    else
        connection_watch(&client->connection);
}

void serve_turn(struct turn *turn) {
    struct client *client = container_of(turn, struct client, connection.turn);
    struct connection *connection = &client->connection;

    connection->n_reports = 0;
    if (client->state == CLIENT_LOST) {
        if (client_process_is_over(client))
            client_process_ended(client);
        return;
    }
    int r = connection->hung_up ? -ECONNRESET : serve_some(client);
    if (r == -EAGAIN && client_process_is_over(client))
        r = -ECONNRESET;
    if (r < 0 && r != -EAGAIN)
        end(client, r);
    else if (client_process_is_over(client) || (r == 0 && connection->parked))
        turn_wait(turn);
    else
        connection_unpark(connection);
}

/* An answer was sent. r: 0, or a negative errno. */
static void answered(struct client *client, int r) {
    if (r < 0)
        client_end(client, "did not read its replies");
    else
        connection_watch(&client->connection);
}

void serve_answer(struct client *client, const struct answer *answer) {
    if (client->state == CLIENT_OPEN)
        answered(client, request_send_answer(client, answer));
}

void serve_name_answer(struct client *client, const struct name_answer *answer) {
    if (client->state == CLIENT_OPEN)
        answered(client, name_request_send_answer(client, answer));
}
