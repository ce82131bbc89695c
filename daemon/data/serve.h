/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DATA_SERVE_H
#define DAEMON_DATA_SERVE_H
/*
 * Serving clients: reads their packets in their turns, and sends the core's answers.
 *
 * A turn serves up to PROTO_ONE_WAY_PER_TURN messages: it ends with the first that is answered. The packets
 * of a process that has ended are still read: its farewell may be among them.
 */
#include "daemon/core/core.h"

struct client;
struct name_answer;
struct turn;

/* Packets of a process that has ended which are still read. A child that has the socket may go on writing. */
#define SERVE_LAST_PACKETS_MAX 4352u

/* Deals with a packet of a session that the daemon before had read. */
void serve_again(struct client *client, const uint8_t *packet, size_t size);

/* Serves one turn of a client's connection. */
void serve_turn(struct turn *turn);

/* Sends the core's answer to an acquire. */
void serve_answer(struct client *client, const struct answer *answer);

/* Sends the core's answer to an OPEN_NAME. */
void serve_name_answer(struct client *client, const struct name_answer *answer);

#endif
