/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DATA_REPLY_H
#define DAEMON_DATA_REPLY_H
/*
 * Replies to a client's requests. All calls that send return 0, or a negative errno that ends the connection.
 */
#include <stdint.h>

#include "proto/proto.h"

struct client;

/* Begins a reply. Its body is for the caller to fill in whole: zeroing all of the union would cost more than
 * the rest. */
void reply_begin(struct proto_message *reply, enum proto_operation operation, uint64_t request);

/* Sends an ERROR. error: enum proto_error. */
int reply_error(struct client *client, uint64_t request, int error, const char *text);

/* Answers a failed call of the core that is the client's fault. Returns the daemon's own errors, which end
 * the connection. */
int reply_refuse(struct client *client, uint64_t request, int error);

/* Ends a request. r: what its call of the core returned; 0: reply, whose body is filled in, is the answer. */
int reply_conclude(struct client *client, const struct proto_message *message, int r,
                   struct proto_message *reply);

#endif
