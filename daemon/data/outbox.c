/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/data/outbox.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/packet.h"
#include "daemon/core/core.h"

/* A packet that could not be sent yet. */
struct reply {
    struct list link;
    int fd; /* to go along, -1: none. Borrowed from the backing, which lives as long as the lease, or
             * from the connection */
    uint64_t segment;       /* whose descriptor it is; 0: no segment's */
    uint64_t charged_bytes; /* to the session */
    size_t size;
    uint8_t packet[];
};

void outbox_init(struct outbox *outbox, int fd) {
    *outbox = (struct outbox){.fd = fd};
    list_init(&outbox->replies);
}

/* Returns 0, -EAGAIN when the socket is full, or a negative errno that ends the connection. */
static int outbox_write(struct outbox *outbox, const void *packet, size_t size, int fd) {
    ssize_t n = send_with_fd(outbox->fd, packet, size, fd, MSG_DONTWAIT | MSG_NOSIGNAL);
    /* Too many descriptors of ours are unread, or the kernel has no memory: the socket stays writable and
     * would tell us nothing else. The connection tries again from time to time. */
    outbox->stalled = n < 0 && (errno == ETOOMANYREFS || errno == ENOBUFS);
    outbox->full = n < 0 && (errno == EWOULDBLOCK || outbox->stalled);
    return n >= 0 ? 0 : outbox->full ? -EAGAIN : -errno;
}

/* Takes a reply out of those that are kept. The charge of a session that is over went with the session. */
static void outbox_drop_reply(struct outbox *outbox, struct session *payer, struct reply *reply) {
    if (payer != NULL && reply->charged_bytes > 0)
        core_session_drop_reply(payer, reply->charged_bytes);
    list_remove(&reply->link);
    outbox->n_replies--;
    free(reply);
}

void outbox_drop(struct outbox *outbox, struct session *payer) {
    list_for_each_entry_safe(struct reply, reply, &outbox->replies, link) {
        outbox_drop_reply(outbox, payer, reply);
    }
    outbox->stalled = outbox->full = false;
}

int outbox_send(struct outbox *outbox, struct session *payer, const struct proto_message *message, int fd) {
    uint8_t packet[PROTO_PACKET_MAX];
    uint64_t segment = fd >= 0 && message->header.operation == PROTO_LEASE ? message->lease.segment : 0;
    size_t size = proto_encode(message, packet);

    if (outbox->n_replies == 0 && outbox->awaited_segment == 0) {
        int r = outbox_write(outbox, packet, size, fd);
        if (r == 0)
            outbox->awaited_segment = segment;
        if (r != -EAGAIN)
            return r;
    }
    if (outbox->n_replies >= OUTBOX_MAX)
        return -ENOBUFS;
    uint64_t charged_bytes = payer != NULL ? sizeof(struct reply) + size : 0;
    if (charged_bytes > 0 && core_session_keep_reply(payer, charged_bytes) != 0)
        return -EDQUOT;
    struct reply *reply = malloc(sizeof *reply + size);
    if (reply == NULL) {
        if (charged_bytes > 0)
            core_session_drop_reply(payer, charged_bytes);
        return -ENOMEM;
    }
    reply->charged_bytes = charged_bytes;
    reply->fd = fd;
    reply->segment = segment;
    reply->size = size;
    memcpy(reply->packet, packet, size);
    list_append(&outbox->replies, &reply->link);
    outbox->n_replies++;
    return 0;
}

int outbox_send_last(struct outbox *outbox, const struct proto_message *message) {
    uint8_t packet[PROTO_PACKET_MAX];
    return outbox_write(outbox, packet, proto_encode(message, packet), -1);
}

int outbox_flush(struct outbox *outbox, struct session *payer) {
    outbox->full = false;
    for (unsigned n = 0; n < OUTBOX_WRITES_PER_TURN && outbox->n_replies > 0 && outbox->awaited_segment == 0;
         n++) {
        struct reply *reply = list_first(&outbox->replies, struct reply, link);
        int r = outbox_write(outbox, reply->packet, reply->size, reply->fd);
        if (r < 0)
            return r == -EAGAIN ? 0 : r;
        outbox->awaited_segment = reply->segment;
        outbox_drop_reply(outbox, payer, reply);
    }
    return 0;
}

bool outbox_is_stuck(const struct outbox *outbox) {
    return outbox->n_replies > 0 && outbox->awaited_segment == 0;
}
