/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/data/serve.h"

#include <errno.h>

#include "daemon/data/client.h"
#include "daemon/data/requests.h"

/* Reads one packet and deals with it. Returns 0, -EAGAIN when there is none, or a negative errno that ends
 * the connection. */
static int serve_packet(struct client *client, bool *ret_answered) {
    uint8_t packet[PROTO_PACKET_MAX];
    struct proto_message message;
    const char *reason;

    ssize_t n = connection_receive(&client->connection, packet);
    if (n == -EPERM)
        return client_reject(client, 0, PROTO_E_INVALID,
                             "packet: with a descriptor, which clients may not send");
    if (n < 0)
        return (int)n;
    if (proto_decode(PROTO_FROM_CLIENT, packet, (size_t)n, &message, &reason) < 0)
        return client_reject(client, proto_packet_request(packet, (size_t)n), PROTO_E_INVALID, reason);
    *ret_answered = proto_is_answered(&message.header);
    int r = request_handle(client, &message);
    return r == -EAGAIN ? -EIO : r;
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
        client_end(client, r == -EPROTO                     ? "broke the protocol"
                           : client_process_is_over(client) ? "ended"
                                                            : "closed its socket");
    else if (client_process_is_over(client) || (r == 0 && connection->parked))
        turn_wait(turn);
    else
        connection_unpark(connection);
}

void serve_answer(struct client *client, const struct answer *answer) {
    if (client->state != CLIENT_OPEN)
        return;
    if (request_send_answer(client, answer) < 0)
        client_end(client, "did not read its replies");
    else
        connection_watch(&client->connection);
}
