/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/data/channel_requests.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "daemon/core/core.h"
#include "daemon/data/client.h"
#include "daemon/data/clients.h"
#include "daemon/data/name_requests.h"
#include "daemon/data/reply.h"

/* Makes the pages. Answers where that fails. */
static int make_pages(struct client *client, const struct proto_message *message, struct channel *channel) {
    struct proto_message reply;
    char text[PROTO_TEXT_MAX / 2];

    int r = channels_make(&client->clients->channels, channel);
    if (r == 0)
        return reply_conclude(client, message, 0, &reply);
    core_unmake_channel(channel, clock_now_ns());
    snprintf(text, sizeof text, "the daemon cannot make the channel's pages: %s (%s)%s", strerrorname_np(-r),
             strerrordesc_np(-r),
             r == -EMFILE ? ": its descriptors are in use; raise LimitNOFILE or lower sessions_limit"
             : r == -ENOBUFS
                 ? ": the service manager stores no more descriptors; raise FileDescriptorStoreMax"
                 : "");
    return reply_error(client, message->header.request, PROTO_E_DRIVER, text);
}

int handle_make_channel(struct client *client, const struct proto_message *message) {
    struct proto_token tokens[2];
    struct channel *channel;

    if (getrandom(tokens, sizeof tokens, 0) != (ssize_t)sizeof tokens)
        return reply_error(client, message->header.request, PROTO_E_DRIVER,
                           "the kernel gave no random bytes");
    int r = core_make_channel(client->session, &message->make_channel, tokens, clock_now_ns(), &channel);
    return r == 0 ? make_pages(client, message, channel) : name_request_refuse(client, message, r);
}

int handle_join_channel(struct client *client, const struct proto_message *message) {
    int r =
        core_join_channel(client->session, message->header.request, &message->join_channel, clock_now_ns());
    return r == 0 ? 0 : name_request_refuse(client, message, r);
}

int handle_leave_channel(struct client *client, const struct proto_message *message) {
    struct proto_message reply;
    int r = core_leave_channel(client->session, &message->leave_channel, clock_now_ns());
    return r == 0 ? reply_conclude(client, message, 0, &reply) : name_request_refuse(client, message, r);
}

int handle_ask_channel_memory(struct client *client, const struct proto_message *message) {
    const struct proto_channel_page_name *wanted = &message->ask_channel_memory;
    struct channel *channel;
    struct proto_message reply;
    bool is_own;

    int r = core_find_channel_page(client->session, wanted, &channel, &is_own);
    if (r != 0)
        return name_request_refuse(client, message, r);
    if (!outbox_is_read(&client->connection.outbox)) /* descriptors that are not read count as the daemon's */
        return reply_error(client, message->header.request, PROTO_E_EXHAUSTED,
                           "replies are unread: read them, and ask again");
    const struct channel_page *page =
        channels_page(&client->clients->channels, wanted->channel, wanted->page);
    if (page == NULL)
        return name_request_refuse(client, message, PROTO_E_INVALID);
    reply_begin(&reply, PROTO_CHANNEL_MEMORY, message->header.request);
    reply.channel_memory = (struct proto_channel_page_reply){
        .channel = wanted->channel, .size_bytes = page->size_bytes, .page = wanted->page, .is_own = is_own};
    return client_send(client, &reply, is_own ? page->fd : page->reading_fd);
}
