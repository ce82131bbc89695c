/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/data/connection.h"

#include <errno.h>
#include <sys/socket.h>

#include "daemon/loop/desk.h"
#include "daemon/loop/die_here.h"
#include "daemon/loop/rights.h"

/* The loop polls the socket no more. The connection keeps its place in the scheduler until a turn finds the
 * socket empty. */
static void connection_park(struct connection *connection) {
    uv_poll_stop(&connection->poll);
    connection->watching = 0;
    connection->parked = true;
}

static void connection_on_ready(uv_poll_t *poll, int status, int events) {
    struct connection *connection = container_of(poll, struct connection, poll);

    if (status < 0) { /* libuv has stopped polling */
        connection->watching = 0;
        connection->hung_up = true;
    }
    if ((events & UV_DISCONNECT) && !(events & UV_READABLE)) { /* level triggered: reported for ever */
        connection_park(connection);
        connection->hung_up = true;
    }
    turn_wait(&connection->turn);
    connection->n_reports++;
    bool enough = connection->n_reports >= CONNECTION_REPORTS_MAX ||
                  connection->turn.scheduler->n_waiting > CONNECTION_CROWD;
    if (enough && !connection->hung_up)
        connection_park(connection);
}

int connection_open(struct connection *connection, const struct connection_terms *terms, int fd,
                    uint64_t user, pid_t pid) {
    int r = turn_join(&connection->turn, terms->scheduler, user, pid, terms->serve);
    if (r < 0)
        return r;
    r = fd >= 0 ? uv_poll_init(terms->loop, &connection->poll, fd) : 0;
    if (r < 0) {
        turn_leave(&connection->turn);
        return r;
    }
    connection->has_poll = fd >= 0;
    connection->poll.data = terms->data;
    connection->fd = fd;
    outbox_init(&connection->outbox, fd, terms->desk);
    return 0;
}

void connection_watch(struct connection *connection) {
    /* While replies are kept nothing more is read, or a client could make the daemon keep ever more; except
     * for the OPENED that lets them go. */
    bool stuck = outbox_is_stuck(&connection->outbox);
    bool writable = stuck && !connection->outbox.stalled;
    int mask = (stuck ? 0 : UV_READABLE) | (writable ? UV_WRITABLE : 0) | UV_DISCONNECT;

    if (connection->parked || connection->hung_up)
        return;
    if (mask != connection->watching) { /* uv_poll_start costs two epoll calls even when nothing changes */
        connection->watching = mask;
        uv_poll_start(&connection->poll, mask, connection_on_ready);
    }
}

void connection_unpark(struct connection *connection) {
    connection->parked = false;
    connection_watch(connection);
}

ssize_t connection_receive(struct connection *connection, uint8_t own[PROTO_PACKET_MAX],
                           const uint8_t **ret_packet) {
    const struct outbox *outbox = &connection->outbox;
    ssize_t n = rights_look(connection->fd, PROTO_PACKET_MAX);
    if (n <= 0)
        return n == 0 ? -ECONNRESET : n;
    uint8_t *packet = desk_receive(outbox->desk, outbox->session, own);
    n = recv(connection->fd, packet, PROTO_PACKET_MAX, MSG_DONTWAIT | MSG_TRUNC);
    die_here();
    if (n < 0)
        return errno == EINTR || errno == EAGAIN ? -EAGAIN : -errno;
    *ret_packet = packet;
    return n == 0 ? -ECONNRESET : n;
}
