/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DATA_NAME_REQUESTS_H
#define DAEMON_DATA_NAME_REQUESTS_H
/*
 * The client's messages about names (daemon/core/name.h): a function for each, for requests.c. Each
 * returns 0, or a negative errno that ends the connection.
 */
struct client;
struct name_answer;
struct proto_message;

int handle_write_directory(struct client *client, const struct proto_message *message);
int handle_publish(struct client *client, const struct proto_message *message);
int handle_unpublish(struct client *client, const struct proto_message *message);
int handle_open_name(struct client *client, const struct proto_message *message);
int handle_read_directory(struct client *client, const struct proto_message *message);
int handle_list_names(struct client *client, const struct proto_message *message);

/* For channel_requests.c. As reply_refuse(), with texts of names and channels. */
int name_request_refuse(struct client *client, const struct proto_message *message, int error);

/* Sends the core's answer to an OPEN_NAME or a JOIN_CHANNEL. */
int name_request_send_answer(struct client *client, const struct name_answer *answer);

#endif
