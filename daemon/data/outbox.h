/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DATA_OUTBOX_H
#define DAEMON_DATA_OUTBOX_H
/*
 * The messages to a client. Each is written at once where the socket takes it. Messages that the client does
 * not read are kept, in order, up to OUTBOX_MAX and what its user's quota of replies allows. After a message
 * with descriptors of segments nothing follows until the client says OPENED, so that at most one such
 * message is under way to it. The message that ends the session is the exception: it has no descriptor,
 * and goes before what is kept. Embedded in a connection, which owns the socket.
 *
 * Where the daemon has an estate, each message of a session lies on the desk (loop/desk.h) while it is written,
 * and those that are kept are records: a successor sends them.
 */
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "proto/proto.h"

struct desk;
struct session;

/* Kept replies: what all threads of a large process may be waiting for at once. */
#define OUTBOX_MAX 4352u
/* Of these, how many are written in one go: a client that begins to read has room for hundreds. */
#define OUTBOX_WRITES_PER_TURN 4u

/* Descriptors of one message. The kernel counts those that were sent and not read as the daemon's, and every
 * session and every socket that lingers may hold a message of them. */
#define OUTBOX_FDS_MAX 8u

struct outbox {
    int fd;              /* borrowed */
    struct list replies; /* struct outbox_reply.link, kept for a client that does not read */
    unsigned n_replies;
    uint64_t awaited_segment; /* its descriptor was sent first, OPENED has not come; 0: none */
    bool full;                /* the socket took no more the last time */
    bool stalled; /* the kernel takes no reply for now, for a reason that the socket does not tell of */
    bool is_held; /* outbox_hold() */
    struct desk *desk;    /* borrowed */
    uint64_t session;     /* the id of the one that the messages are of; 0: a successor does not find it */
    uint32_t record;      /* of its client (kept_data.h) */
    uint64_t next_number; /* of the next reply that is kept */
};

struct outbox_reply;

/* A part of a reply that is a record. */
struct outbox_part {
    const struct outbox_reply *reply;
    uint32_t offset_bytes, record;
};

/* A packet that could not be sent yet. */
struct outbox_reply {
    struct list link;
    uint64_t charged_bytes;   /* to the session */
    uint64_t session, number; /* kept_data.h */
    bool is_in_doubt;         /* a daemon before may have sent it */
    size_t size;
    const uint8_t *packet; /* behind the descriptors */
    struct outbox_part *parts;
    unsigned n_parts, n_fds;
    int *fds; /* to go along. Borrowed from the connection, or from backings: a session that was told of a
                 segment has it until CLOSED, which is refused as long as the descriptor is here */
    uint64_t segments[]; /* of the descriptors; 0: no segment's */
};

/* desk: borrowed. */
void outbox_init(struct outbox *outbox, int fd, struct desk *desk);

/* The messages are those of a session from now on. record: of its client. */
void outbox_begin_session(struct outbox *outbox, uint64_t session, uint32_t record);

/* The bytes in the kernel that the other end of a socket has not read. 0: also where it cannot be asked. */
uint64_t outbox_unread_bytes(int fd);

/* Whether the client has read all that was sent. */
bool outbox_is_read(const struct outbox *outbox);

/* Sends a message, or keeps it: then a session is charged (NULL: none is). n_fds descriptors go along, which
 * are borrowed until the message has gone. Returns 0, or a negative errno that ends the connection: -EDQUOT
 * when the user's quota of replies is used up. */
int outbox_send(struct outbox *outbox, struct session *payer, const struct proto_message *message,
                const int *fds, unsigned n_fds);

/* Writes the message that ends the session, at once and before the replies that are kept; these are lost with
 * the session. The message has no descriptor. Returns 0, -EAGAIN when the socket takes nothing, or a negative
 * errno. */
int outbox_send_last(struct outbox *outbox, const struct proto_message *message);

/* Until outbox_flush() all messages are kept, so that several that belong together are in one step. */
void outbox_hold(struct outbox *outbox);

/* The client has opened the segment that it is waited for. */
void outbox_opened(struct outbox *outbox);

/* Keeps a message that a daemon before kept, or was sending: then is_in_doubt. As outbox_send(); nothing is written
 * before outbox_flush(). */
int outbox_inherit(struct outbox *outbox, struct session *payer, const struct proto_message *message,
                   const int *fds, unsigned n_fds, bool is_in_doubt);

/* Writes what is kept, a few at most. Returns 0, or a negative errno that ends the connection. */
int outbox_flush(struct outbox *outbox, struct session *payer);

/* Whether replies are kept for want of room in the socket. Replies that wait for OPENED do not count: the
 * client has to send that. */
bool outbox_is_stuck(const struct outbox *outbox);

/* Whether the descriptor of a segment is kept. It is the backing's, so the segment may not be freed. */
bool outbox_keeps_segment(const struct outbox *outbox, uint64_t segment);

/* Forgets what is kept. payer: NULL when the session is over, which took its charges with it. */
void outbox_drop(struct outbox *outbox, struct session *payer);

#endif
