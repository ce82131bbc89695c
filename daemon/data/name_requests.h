/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DATA_NAME_REQUESTS_H
#define DAEMON_DATA_NAME_REQUESTS_H
/*
 * What a client asks of names (daemon/core/name.h) and channels (daemon/core/channel.h): a function for each of its messages, for requests.c. Each
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

int handle_make_channel(struct client *client, const struct proto_message *message);
int handle_join_channel(struct client *client, const struct proto_message *message);
int handle_leave_channel(struct client *client, const struct proto_message *message);
int handle_ask_channel_memory(struct client *client, const struct proto_message *message);

/* For channel_requests.c. Ends a session that sends what its version does not have. Returns 0: it has it. */
int name_request_check_version(struct client *client, const struct proto_message *message);

/* For channel_requests.c. As reply_refuse(), with texts of names and channels. */
int name_request_refuse(struct client *client, const struct proto_message *message, int error);

/* Sends the core's answer to an OPEN_NAME or a JOIN_CHANNEL. */
int name_request_send_answer(struct client *client, const struct name_answer *answer);

#endif
