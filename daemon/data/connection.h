/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DATA_CONNECTION_H
#define DAEMON_DATA_CONNECTION_H
/*
 * A connection: a client's data socket, its place in the scheduler and its outbox. Embedded in a client
 * (client.h), which ends it and outlives it.
 *
 * The loop reports that the socket is readable. The connection then waits for its turn (loop/scheduler.h). A
 * connection that was reported several times before its turn is parked: the loop does not poll its socket any
 * more until a turn finds it empty. While the outbox keeps replies for want of room in the socket, nothing
 * more is read.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "daemon/data/outbox.h"
#include "daemon/loop/scheduler.h"
#include "proto/proto.h"

/* Reports of the loop after which a connection that waits for its turn is parked. Each report costs; parking
 * costs once. While more than CONNECTION_CROWD connections wait, the first report parks: each turn would
 * report all of them. */
#define CONNECTION_REPORTS_MAX 4u
#define CONNECTION_CROWD       8u

struct connection {
    int fd;
    uv_poll_t poll;
    bool has_poll;      /* it was made; the client closes it */
    int watching;       /* the poll's mask */
    bool parked;        /* the loop does not poll the socket until a turn has found it empty */
    bool hung_up;       /* the other end is closed */
    unsigned n_reports; /* of the socket, since it began to wait for its turn */
    struct turn turn;
    struct outbox outbox;
};

/* All borrowed. */
struct connection_terms {
    uv_loop_t *loop;
    struct scheduler *scheduler;
    struct desk *desk;
    void (*serve)(struct turn *turn); /* called for each turn */
    void *data;                       /* the poll handle's */
};

/* Takes the socket and joins the scheduler as a turn of this user and process. fd -1: of a client whose socket is
 * over. Returns 0, or a negative errno: then fd is still the caller's. */
int connection_open(struct connection *connection, const struct connection_terms *terms, int fd,
                    uint64_t user, pid_t pid);

/* Polls for what the connection waits for now: requests, or room for the replies that it keeps. */
void connection_watch(struct connection *connection);

/* Ends parking. */
void connection_unpark(struct connection *connection);

/* Reads one packet: *ret_packet is at the desk, or in own. Returns its true length, -EAGAIN where there is none,
 * -EPERM where a descriptor comes along, or another negative errno that ends the connection. */
ssize_t connection_receive(struct connection *connection, uint8_t own[PROTO_PACKET_MAX],
                           const uint8_t **ret_packet);

#endif
