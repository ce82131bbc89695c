/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/data/outbox.h"

#include <errno.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/packet.h"
#include "daemon/core/core.h"
#include "daemon/data/kept_data.h"
#include "daemon/loop/desk.h"
#include "daemon/loop/die_here.h"

void outbox_init(struct outbox *outbox, int fd, struct desk *desk) {
    *outbox = (struct outbox){.fd = fd, .desk = desk};
    list_init(&outbox->replies);
}

void outbox_begin_session(struct outbox *outbox, uint64_t session, uint32_t record) {
    outbox->session = session;
    outbox->record = record;
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
    die_here();
    ssize_t n = send_with_fds(outbox->fd, packet, size, fds, n_fds, MSG_DONTWAIT | MSG_NOSIGNAL);
    die_here();
    /* Too many descriptors of ours are unread, or the kernel has no memory: the socket stays writable and
     * would tell us nothing else. The connection tries again from time to time. */
    outbox->stalled = n < 0 && (errno == ETOOMANYREFS || errno == ENOBUFS);
    outbox->full = n < 0 && (errno == EWOULDBLOCK || outbox->stalled);
    return n >= 0 ? 0 : outbox->full ? -EAGAIN : -errno;
}

static void await(struct outbox *outbox, uint64_t segment) {
    if (outbox->awaited_segment == segment)
        return;
    outbox->awaited_segment = segment;
    estate_change(outbox->desk->estate, outbox->record);
}

/* Writes a message that is whole, as the desk wants it. */
static int write_from_desk(struct outbox *outbox, const uint8_t *packet, size_t size, const int *fds,
                           unsigned n_fds, uint64_t segment) {
    if (n_fds > 0)
        await(outbox, segment);
    desk_commit(outbox->desk, packet, size);
    int r = outbox_write(outbox, packet, size, fds, n_fds);
    if (r == 0)
        desk_sent(outbox->desk, packet);
    else
        await(outbox, 0);
    return r;
}

/* Without memory for it, a successor will not send the reply. */
static void reply_record(const struct outbox *outbox, struct outbox_reply *reply) {
    for (unsigned i = 0; i < reply->n_parts; i++)
        (void)estate_add(outbox->desk->estate, KEPT_REPLY, &reply->parts[i], &reply->parts[i].record);
}

static void reply_erase(const struct outbox *outbox, struct outbox_reply *reply) {
    for (unsigned i = 0; i < reply->n_parts; i++) {
        estate_remove(outbox->desk->estate, reply->parts[i].record);
        reply->parts[i].record = 0;
    }
}

/* Takes a reply out of those that are kept. The charge of a session that is over went with the session. */
static void outbox_drop_reply(struct outbox *outbox, struct session *payer, struct outbox_reply *reply) {
    if (payer != NULL && reply->charged_bytes > 0)
        core_session_drop_reply(payer, reply->charged_bytes);
    reply_erase(outbox, reply);
    list_remove(&reply->link);
    outbox->n_replies--;
    free(reply->parts);
    free(reply);
}

void outbox_drop(struct outbox *outbox, struct session *payer) {
    list_for_each_entry_safe(struct outbox_reply, reply, &outbox->replies, link) {
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
    return sizeof(struct outbox_reply) + n_fds * (sizeof(uint64_t) + sizeof(int)) + size;
}

/* A reply that is kept. NULL: no memory. */
static struct outbox_reply *reply_new(const struct proto_message *message, const void *packet, size_t size,
                                      const int *fds, unsigned n_fds) {
    struct outbox_reply *reply = malloc(reply_bytes(size, n_fds));
    if (reply == NULL)
        return NULL;
    *reply = (struct outbox_reply){0};
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

/* Makes the records of a reply, where the daemon has an estate. Returns 0 or -ENOMEM. */
static int reply_make_parts(const struct outbox *outbox, struct outbox_reply *reply) {
    unsigned n = (unsigned)((reply->size + KEPT_REPLY_BYTES - 1) / KEPT_REPLY_BYTES);

    if (outbox->desk->estate == NULL || outbox->record == 0)
        return 0;
    reply->parts = calloc(n, sizeof *reply->parts);
    if (reply->parts == NULL)
        return -ENOMEM;
    reply->n_parts = n;
    for (unsigned i = 0; i < n; i++)
        reply->parts[i] = (struct outbox_part){.reply = reply, .offset_bytes = i * KEPT_REPLY_BYTES};
    reply_record(outbox, reply);
    return 0;
}

static int keep(struct outbox *outbox, struct session *payer, const struct proto_message *message,
                const uint8_t *packet, size_t size, const int *fds, unsigned n_fds, bool is_in_doubt) {
    if (outbox->n_replies >= OUTBOX_MAX)
        return -ENOBUFS;
    uint64_t charged_bytes = payer != NULL ? reply_bytes(size, n_fds) : 0;
    if (charged_bytes > 0 && core_session_keep_reply(payer, charged_bytes) != 0)
        return -EDQUOT;
    struct outbox_reply *reply = reply_new(message, packet, size, fds, n_fds);
    if (reply != NULL) {
        reply->session = outbox->session;
        reply->number = outbox->next_number++;
        reply->is_in_doubt = is_in_doubt;
    }
    if (reply == NULL || reply_make_parts(outbox, reply) < 0) {
        free(reply);
        if (charged_bytes > 0)
            core_session_drop_reply(payer, charged_bytes);
        return -ENOMEM;
    }
    reply->charged_bytes = charged_bytes;
    list_append(&outbox->replies, &reply->link);
    outbox->n_replies++;
    return 0;
}

int outbox_send(struct outbox *outbox, struct session *payer, const struct proto_message *message,
                const int *fds, unsigned n_fds) {
    bool at_once = outbox->n_replies == 0 && outbox->awaited_segment == 0 && !outbox->is_held;
    uint8_t own[PROTO_PACKET_MAX];
    uint8_t *packet = at_once ? desk_message(outbox->desk, outbox->session, own) : own;
    size_t size = proto_encode(message, packet);

    if (at_once) {
        int r = write_from_desk(outbox, packet, size, fds, n_fds, n_fds > 0 ? segment_of_fd(message, 0) : 0);
        if (r != -EAGAIN)
            return r;
    }
    int r = keep(outbox, payer, message, packet, size, fds, n_fds, false);
    if (at_once)
        desk_end_step(outbox->desk); /* the record is there before another message takes the place on the desk */
    return r;
}

int outbox_inherit(struct outbox *outbox, struct session *payer, const struct proto_message *message,
                   const int *fds, unsigned n_fds, bool is_in_doubt) {
    uint8_t packet[PROTO_PACKET_MAX];
    return keep(outbox, payer, message, packet, proto_encode(message, packet), fds, n_fds, is_in_doubt);
}

void outbox_hold(struct outbox *outbox) {
    outbox->is_held = true;
}

void outbox_opened(struct outbox *outbox) {
    await(outbox, 0);
}

int outbox_send_last(struct outbox *outbox, const struct proto_message *message) {
    uint8_t packet[PROTO_PACKET_MAX];
    return outbox_write(outbox, packet, proto_encode(message, packet), NULL, 0);
}

/* A reply leaves its records for the desk with the step in which it is sent. */
static int write_reply(struct outbox *outbox, struct outbox_reply *reply) {
    uint8_t own[PROTO_PACKET_MAX];
    uint8_t *packet = desk_message(outbox->desk, outbox->session, own);

    memcpy(packet, reply->packet, reply->size);
    reply_erase(outbox, reply);
    int r = write_from_desk(outbox, packet, reply->size, reply->fds, reply->n_fds,
                            reply->n_fds > 0 ? reply->segments[0] : 0);
    if (r == -EAGAIN) {
        reply_record(outbox, reply);
        desk_end_step(outbox->desk);
    }
    return r;
}

int outbox_flush(struct outbox *outbox, struct session *payer) {
    outbox->full = outbox->is_held = false;
    for (unsigned n = 0; n < OUTBOX_WRITES_PER_TURN && outbox->n_replies > 0 && outbox->awaited_segment == 0;
         n++) {
        struct outbox_reply *reply = list_first(&outbox->replies, struct outbox_reply, link);
        int r = write_reply(outbox, reply);
        if (r < 0)
            return r == -EAGAIN ? 0 : r;
        outbox_drop_reply(outbox, payer, reply);
    }
    return 0;
}

bool outbox_is_stuck(const struct outbox *outbox) {
    return outbox->n_replies > 0 && outbox->awaited_segment == 0;
}

bool outbox_keeps_segment(const struct outbox *outbox, uint64_t segment) {
    list_for_each_entry(const struct outbox_reply, reply, &outbox->replies, link) {
        for (unsigned i = 0; i < reply->n_fds; i++)
            if (reply->segments[i] == segment)
                return true;
    }
    return false;
}
