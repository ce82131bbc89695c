/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DATA_REQUESTS_H
#define DAEMON_DATA_REQUESTS_H
/*
 * The requests of a client: turns each valid message into a call of the core, and the core's answer into a
 * message. Failures that are the client's fault are answered. The daemon's own, and broken packets, end the
 * connection.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/proto.h"

struct answer;
struct client;

/* Deals with a message. Returns 0, or a negative errno that ends the connection. */
int request_handle(struct client *client, const struct proto_message *message);

/* Sends the core's answer to an acquire. Returns as client_send(). */
int request_send_answer(struct client *client, const struct answer *answer);

#endif
