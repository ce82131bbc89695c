/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/data/outbox.h"

#include <errno.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/packet.h"
#include "daemon/core/core.h"

/* A packet that could not be sent yet. */
struct reply {
    struct list link;
    uint64_t charged_bytes; /* to the session */
    size_t size;
    const uint8_t *packet; /* behind the descriptors */
    unsigned n_fds;
    int *fds; /* to go along. Borrowed from the connection, or from backings: a session that was told of a
                 segment has it until CLOSED, which is refused as long as the descriptor is here */
    uint64_t segments[]; /* of the descriptors; 0: no segment's */
};

void outbox_init(struct outbox *outbox, int fd) {
    *outbox = (struct outbox){.fd = fd};
    list_init(&outbox->replies);
}

uint64_t outbox_unread_bytes(int fd) {
    int bytes = 0;
    return ioctl(fd, SIOCOUTQ, &bytes) == 0 && bytes > 0 ? (uint64_t)bytes : 0;
}

bool outbox_is_read(const struct outbox *outbox) {
    return outbox->n_replies == 0 && outbox_unread_bytes(outbox->fd) == 0;
}

/* Returns 0, -EAGAIN when the socket is full, or a negative errno that ends the connection. */
static int outbox_write(struct outbox *outbox, const void *packet, size_t size, const int *fds,
                        unsigned n_fds) {
    ssize_t n = send_with_fds(outbox->fd, packet, size, fds, n_fds, MSG_DONTWAIT | MSG_NOSIGNAL);
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

/* The segment whose descriptor is the message's i-th; 0: it is no segment's. */
static uint64_t segment_of_fd(const struct proto_message *message, unsigned i) {
    return message->header.operation == PROTO_LEASE    ? message->lease.segment
           : message->header.operation == PROTO_LEASES ? message->leases.leases[i].segment
                                                       : 0;
}

/* How many bytes a reply takes that is kept. */
static size_t reply_bytes(size_t size, unsigned n_fds) {
    return sizeof(struct reply) + n_fds * (sizeof(uint64_t) + sizeof(int)) + size;
}

/* A reply that is kept. NULL: no memory. */
static struct reply *reply_new(const struct proto_message *message, const void *packet, size_t size,
                               const int *fds, unsigned n_fds) {
    struct reply *reply = malloc(reply_bytes(size, n_fds));
    if (reply == NULL)
        return NULL;
    reply->fds = (int *)(reply->segments + n_fds);
    uint8_t *copy = (uint8_t *)(reply->fds + n_fds);
    memcpy(copy, packet, size);
    for (unsigned i = 0; i < n_fds; i++) {
        reply->segments[i] = segment_of_fd(message, i);
        reply->fds[i] = fds[i];
    }
    reply->packet = copy;
    reply->size = size;
    reply->n_fds = n_fds;
    return reply;
}

int outbox_send(struct outbox *outbox, struct session *payer, const struct proto_message *message,
                const int *fds, unsigned n_fds) {
    uint8_t packet[PROTO_PACKET_MAX];
    size_t size = proto_encode(message, packet);

    if (outbox->n_replies == 0 && outbox->awaited_segment == 0) {
        int r = outbox_write(outbox, packet, size, fds, n_fds);
        if (r == 0)
            outbox->awaited_segment = n_fds > 0 ? segment_of_fd(message, 0) : 0;
        if (r != -EAGAIN)
            return r;
    }
    if (outbox->n_replies >= OUTBOX_MAX)
        return -ENOBUFS;
    uint64_t charged_bytes = payer != NULL ? reply_bytes(size, n_fds) : 0;
    if (charged_bytes > 0 && core_session_keep_reply(payer, charged_bytes) != 0)
        return -EDQUOT;
    struct reply *reply = reply_new(message, packet, size, fds, n_fds);
    if (reply == NULL) {
        if (charged_bytes > 0)
            core_session_drop_reply(payer, charged_bytes);
        return -ENOMEM;
    }
    reply->charged_bytes = charged_bytes;
    list_append(&outbox->replies, &reply->link);
    outbox->n_replies++;
    return 0;
}

int outbox_send_last(struct outbox *outbox, const struct proto_message *message) {
    uint8_t packet[PROTO_PACKET_MAX];
    return outbox_write(outbox, packet, proto_encode(message, packet), NULL, 0);
}

int outbox_flush(struct outbox *outbox, struct session *payer) {
    outbox->full = false;
    for (unsigned n = 0; n < OUTBOX_WRITES_PER_TURN && outbox->n_replies > 0 && outbox->awaited_segment == 0;
         n++) {
        struct reply *reply = list_first(&outbox->replies, struct reply, link);
        int r = outbox_write(outbox, reply->packet, reply->size, reply->fds, reply->n_fds);
        if (r < 0)
            return r == -EAGAIN ? 0 : r;
        outbox->awaited_segment = reply->n_fds > 0 ? reply->segments[0] : 0;
        outbox_drop_reply(outbox, payer, reply);
    }
    return 0;
}

bool outbox_is_stuck(const struct outbox *outbox) {
    return outbox->n_replies > 0 && outbox->awaited_segment == 0;
}

bool outbox_keeps_segment(const struct outbox *outbox, uint64_t segment) {
    list_for_each_entry(const struct reply, reply, &outbox->replies, link) {
        for (unsigned i = 0; i < reply->n_fds; i++)
            if (reply->segments[i] == segment)
                return true;
    }
    return false;
}
