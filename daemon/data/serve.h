/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DATA_SERVE_H
#define DAEMON_DATA_SERVE_H
/*
 * Serving clients: accepts their sockets, reads their packets in their turns, and sends the core's answers.
 * The top of this folder: it calls requests.h, which calls client.h, which calls connection.h.
 *
 * A turn serves up to PROTO_ONE_WAY_PER_TURN messages: it ends with the first that is answered, or with the
 * one behind a SPLIT. The packets of a process that has ended are still read: its farewell may be among them.
 */
#include "daemon/core/core.h"

struct client;
struct daemon;

/* Packets of a process that has ended which are still read. A child that has the socket may go on writing. */
#define SERVE_LAST_PACKETS_MAX 4352u

/* Takes an accepted socket. Closes it when it cannot be served. */
void serve_accept(struct daemon *daemon, int fd);

/* Sends the core's answer to an acquire. */
void serve_answer(struct client *client, const struct answer *answer);

#endif
