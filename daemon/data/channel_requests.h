/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DATA_CHANNEL_REQUESTS_H
#define DAEMON_DATA_CHANNEL_REQUESTS_H
/*
 * The client's messages about channels (daemon/core/channel.h): a function for each, for requests.c. Each
 * returns 0, or a negative errno that ends the connection.
 */
struct client;
struct proto_message;

int handle_make_channel(struct client *client, const struct proto_message *message);
int handle_join_channel(struct client *client, const struct proto_message *message);
int handle_leave_channel(struct client *client, const struct proto_message *message);
int handle_ask_channel_memory(struct client *client, const struct proto_message *message);

#endif
