/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/data/reply.h"

#include <errno.h>

#include "daemon/core/explain.h"
#include "daemon/core/lease.h"
#include "daemon/core/tenant.h"
#include "daemon/data/client.h"

void reply_begin(struct proto_message *reply, enum proto_operation operation, uint64_t request) {
    reply->header = (struct proto_header){.operation = operation, .request = request};
}

int reply_error(struct client *client, uint64_t request, int error, const char *text) {
    struct proto_message message;
    reply_begin(&message, PROTO_ERROR, request);
    proto_failure_set(&message.failure, (enum proto_error)error, "%s", text);
    return client_send(client, &message, -1);
}

int reply_refuse(struct client *client, uint64_t request, int error) {
    const struct tenant *tenant = client->session->tenant;
    const char *reason = proto_error_text((unsigned)error);
    char text[PROTO_TEXT_MAX / 2];

    if (error < 0 && error != -ENOMEM)
        return error;
    if (error == -ENOMEM) {
        error = PROTO_E_NO_MEMORY;
        reason = "the daemon has no memory for its bookkeeping: try again later";
    } else if (error == PROTO_E_STALE) {
        reason = "this session has no such lease: it was released before, or belongs to another";
    } else if (error == PROTO_E_SHARED) {
        reason = "the block is shared: release it whole, or do not share what is to be divided";
    } else if (error == PROTO_E_DRIVER) {
        reason = "the pool's device is lost, and nothing of it is lent until the daemon restarts; or the "
                 "memory is of "
                 "a daemon before, which cannot be mapped anew (export = ipc)";
    } else if (error == PROTO_E_NO_TOKEN) {
        reason = "nothing is shared under this token with this user: the holder may have released it before "
                 "you attached, or what was sent was taken, was revoked, or its time was up";
    } else if (error == PROTO_E_LIMIT && quota_left(&tenant->quota, QUOTA_LEASES) == 0) {
        tenant_explain_quota(tenant, QUOTA_LEASES, text, sizeof text);
        reason = text;
    } else if (error == PROTO_E_LIMIT && quota_left(&tenant->quota, QUOTA_RANGES) < LEASE_PART_RANGES_MAX) {
        tenant_explain_quota(tenant, QUOTA_RANGES, text, sizeof text);
        reason = text;
    } else if (error == PROTO_E_LIMIT) {
        reason = "this session has as many leases as it may, or has divided one into as many parts: release "
                 "some, or raise session_leases_limit in the daemon's configuration";
    }
    return reply_error(client, request, error, reason);
}

int reply_conclude(struct client *client, const struct proto_message *message, int r,
                   struct proto_message *reply) {
    if (r != 0)
        return reply_refuse(client, message->header.request, r);
    reply_begin(reply, proto_reply_to(message->header.operation), message->header.request);
    return client_send(client, reply, -1);
}
