/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_LOOP_DESK_H
#define DAEMON_LOOP_DESK_H
/*
 * The desk: what the daemon has in hand, in memory that outlives it, beside its estate (daemon/estate/estate.h):
 * the packet that it is dealing with, and the message that it is sending. Records cannot say these, because
 * nothing is both in a socket and in memory at once.
 *
 *   desk_receive() ──▶ recv() ──▶ effects ──▶ desk_message() ──▶ desk_commit() ──▶ send() ──▶ desk_sent()
 *
 * A packet is received into the desk, under the number of the present step. Its effects and the answer end that
 * step together, and only then is the answer sent. So a successor that finds a packet of a step which did not
 * end deals with it as if it had just come. A message of the last step that ended, for which desk_sent() was not
 * called, may have been sent or not: it is *in doubt*. There is at most one. One that the socket did not take becomes a
 * record (data/outbox.h), whose step ends before the next desk_message().
 *
 * Invariants:
 *   - The packet is read.step's, and pending as long as that step has not ended (or PENDING, while a successor
 *     has not come to it).
 *   - The message is sent.step's, and counts as sent in every step behind the next.
 *
 * Without a store there is no desk: `memory` is NULL, and all calls do nothing. The loop's alone.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/estate/estate.h"
#include "proto/limits.h"

#define DESK_BYTES   ((size_t)65536) /* of its memory */
#define DESK_VERSION 1u              /* another one cannot be read */

/* A packet of a session; is_sent and n_deaths: see the functions. */
struct desk_packet {
    uint64_t step;    /* 0: none */
    uint64_t session; /* its id */
    uint32_t size_bytes;
    uint32_t is_sent;
    uint32_t n_deaths;
    uint32_t reserved;
    uint8_t bytes[PROTO_PACKET_MAX];
};

struct desk_memory {
    uint64_t magic;
    uint64_t alive_ns; /* by CLOCK_MONOTONIC, when a daemon was last seen to work */
    uint32_t n_starts; /* since a daemon was ready */
    uint32_t reserved;
    uint8_t identity[PROTO_IDENTITY_BYTES]; /* of the first daemon and of its successors */
    struct desk_packet read, sent;
};

struct desk {
    struct desk_memory *memory; /* borrowed; NULL: there is none */
    struct estate *estate;      /* borrowed; NULL likewise */
};

/* Begins with memory of zeros. */
void desk_make(struct desk *desk, void *memory, struct estate *estate, const uint8_t *identity);

/* Begins with a predecessor's. Counts the start. Returns 0, or -EBADMSG: it is no desk. */
int desk_open(struct desk *desk, void *memory, struct estate *estate);

/* The starts since a daemon was ready, this one among them; and that it is ready. */
unsigned desk_starts(const struct desk *desk);
void desk_note_ready(struct desk *desk);

/* Where the next packet of a session is to be received: PROTO_PACKET_MAX bytes. own: used where there is no desk,
 * and for a client without a session (0), which a successor does not find. */
uint8_t *desk_receive(struct desk *desk, uint64_t session, uint8_t *own);

/* Where the next message is to be encoded: PROTO_PACKET_MAX bytes; own: as above. */
uint8_t *desk_message(struct desk *desk, uint64_t session, uint8_t *own);

/* The message that desk_message() had the place for is whole: ends the step. To be followed by its send(), and where
 * that took it, by desk_sent(). */
void desk_commit(struct desk *desk, const uint8_t *message, size_t size_bytes);
void desk_sent(struct desk *desk, const uint8_t *message);

/* Ends the step, if there is something in it. */
void desk_end_step(struct desk *desk);

/* Notes that the daemon is alive: its successor's time without a daemon begins here. */
void desk_note_alive(struct desk *desk, uint64_t now_ns);

/* --- for a successor, between desk_open() and the first desk_receive() --- */

/* The packet that was received, and whose step did not end. Copies it. Returns its length; 0: there is none.
 * *ret_n_deaths: how many daemons have died with it in hand. */
size_t desk_find_packet(struct desk *desk, uint64_t *ret_session, unsigned *ret_n_deaths,
                        uint8_t packet[PROTO_PACKET_MAX]);

/* The successor deals with that packet in this step. */
void desk_take_packet(struct desk *desk);

/* The message in doubt. Returns its length; 0: there is none. *ret_message is in the desk. It is there again for
 * the next successor until another step has ended. */
size_t desk_find_message(const struct desk *desk, uint64_t *ret_session, const uint8_t **ret_message);

#endif
