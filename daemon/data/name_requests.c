/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/data/name_requests.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "daemon/core/channel.h"
#include "daemon/core/core.h"
#include "daemon/core/explain.h"
#include "daemon/data/client.h"
#include "daemon/data/reply.h"

/* The text of an error that the core had; NULL: it has no text of names. */
static const char *reason_of(const struct client *client, const struct proto_message *message, int error,
                             char *text, size_t size) {
    const struct tenant *tenant = client->session->tenant;

    if (error == PROTO_E_NO_NAME)
        return "nothing is published under this name with this user, or another generation; or this session "
               "does not build it: see 'gpupoolctl names'";
    if (error == PROTO_E_LIMIT && tenant->n_names >= NAMES_MAX)
        return "this user has 4,096 names, which is as many as may be: unpublish some (gpupoolctl names)";
    switch (message->header.operation) {
    case PROTO_WRITE_DIRECTORY:
        if (error == PROTO_E_INVALID)
            return "this part of the directory does not follow the one before: begin anew at 0";
        if (error == PROTO_E_LIMIT)
            return "the daemon keeps as many bytes for this user as it may, of directories and of unread "
                   "replies: unpublish "
                   "names, or have the administrator raise 'replies' of [quota] in the daemon's "
                   "configuration";
        break;
    case PROTO_READ_DIRECTORY:
        if (error == PROTO_E_STALE)
            return "another generation was published meanwhile: open the name again";
        if (error == PROTO_E_INVALID)
            return "the directory ends before";
        break;
    case PROTO_OPEN_NAME:
    case PROTO_JOIN_CHANNEL:
        if (error == PROTO_E_LIMIT)
            return "as many requests wait as may: see 'waiting' of [quota] in the daemon's configuration";
        break;
    case PROTO_PUBLISH:
        if (error == PROTO_E_STALE)
            return "a lease is not this session's, or the directory is not the one that was written: write "
                   "it again";
        if (error == PROTO_E_INVALID)
            return "a buffer is smaller than its size, or a part of it was given back, or its fence is "
                   "another session's; or what is published there has another layout; or the name is a "
                   "channel's";
        if (error == PROTO_E_LIMIT && tenant->n_parcels + message->publish.count > PARCELS_MAX)
            return "65,536 buffers of this user are published or were sent and not taken, which is as many "
                   "as may be";
        if (error == PROTO_E_LIMIT && quota_left(&tenant->quota, QUOTA_LEASES) >= message->publish.count) {
            tenant_explain_quota(tenant, QUOTA_KEPT, text, size);
            return text;
        }
        break;
    case PROTO_MAKE_CHANNEL:
        if (error == PROTO_E_INVALID)
            return "the buffer is smaller than all slots, or a part of it was given back; or the name stands "
                   "for something: choose another one, or unpublish it";
        if (error == PROTO_E_LIMIT && !channel_pages_are_left(tenant, message->make_channel.n_consumers))
            return "the pages of channels, of this user or of all, are as many as the daemon has descriptors "
                   "for: end channels (gpupoolctl names), or have the administrator raise LimitNOFILE or "
                   "FileDescriptorStoreMax";
        if (error == PROTO_E_LIMIT && quota_left(&tenant->quota, QUOTA_LEASES) > 0 &&
            tenant->n_parcels < PARCELS_MAX) {
            tenant_explain_quota(tenant, QUOTA_KEPT, text, size);
            return text;
        }
        break;
    case PROTO_LEAVE_CHANNEL:
    case PROTO_ASK_CHANNEL_MEMORY:
        if (error == PROTO_E_STALE)
            return "this session has no such place in the channel";
        if (error == PROTO_E_INVALID)
            return "the channel has no such page";
        break;
    default:
        break;
    }
    return NULL;
}
_Static_assert(NAMES_MAX == 4096 && PARCELS_MAX == 65536, "the texts above name them");

int name_request_refuse(struct client *client, const struct proto_message *message, int error) {
    char text[PROTO_TEXT_MAX / 2];
    const char *reason = reason_of(client, message, error, text, sizeof text);

    return reason != NULL ? reply_error(client, message->header.request, error, reason)
                          : reply_refuse(client, message->header.request, error);
}

static int conclude(struct client *client, const struct proto_message *message, int r,
                    struct proto_message *reply) {
    return r != 0 ? name_request_refuse(client, message, r) : reply_conclude(client, message, 0, reply);
}

int handle_write_directory(struct client *client, const struct proto_message *message) {
    struct proto_message reply;
    int r = core_write_directory(client->session, &message->write_directory);
    return conclude(client, message, r, &reply);
}

int handle_publish(struct client *client, const struct proto_message *message) {
    struct proto_token tokens[2 * PROTO_NAME_BUFFERS_MAX];
    size_t size = 2 * message->publish.count * sizeof *tokens;
    struct proto_message reply;

    for (size_t done = 0; done < size;) { /* the kernel gives 256 bytes at once, and may give fewer of more */
        ssize_t n = getrandom((char *)tokens + done, size - done, 0);
        if (n < 0 && errno != EINTR)
            return reply_error(client, message->header.request, PROTO_E_DRIVER,
                               "the kernel gave no random bytes");
        done += n > 0 ? (size_t)n : 0;
    }
    int r =
        core_publish(client->session, &message->publish, tokens, clock_now_ns(), &reply.published.generation);
    return conclude(client, message, r, &reply);
}

int handle_unpublish(struct client *client, const struct proto_message *message) {
    struct proto_message reply;
    int r = core_unpublish(client->session, &message->unpublish, clock_now_ns());
    return conclude(client, message, r, &reply);
}

int handle_open_name(struct client *client, const struct proto_message *message) {
    int r = core_open_name(client->session, message->header.request, &message->open_name, clock_now_ns());
    return r == 0 ? 0 : name_request_refuse(client, message, r);
}

int name_request_send_answer(struct client *client, const struct name_answer *answer) {
    struct proto_message message;

    reply_begin(&message,
                answer->error != 0      ? PROTO_ERROR
                : answer->is_of_channel ? PROTO_CHANNEL
                                        : PROTO_NAMED,
                answer->request);
    if (answer->error != 0)
        message.failure = answer->failure;
    else if (answer->is_of_channel)
        message.channel = answer->channel;
    else
        message.named = answer->named;
    return client_send(client, &message, -1);
}

int handle_read_directory(struct client *client, const struct proto_message *message) {
    struct proto_message reply;
    int r = core_read_directory(client->session, &message->read_directory, &reply.directory);
    return conclude(client, message, r, &reply);
}

int handle_list_names(struct client *client, const struct proto_message *message) {
    struct proto_message reply;
    core_list_names(client->session, message->list_names.after, &reply.names);
    return conclude(client, message, 0, &reply);
}
