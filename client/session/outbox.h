/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_OUTBOX_H
#define CLIENT_SESSION_OUTBOX_H
/*
 * The outbox of a connection: the packets that are to leave, in the order in which they leave. The connection
 * owns it, and the outbox borrows the connection's socket.
 *
 *     packet:  fresh ──outbox_put──▶ queued ──its turn──▶ sent
 *                │                     ├──outbox_withdraw──▶ withdrawn
 *                │                     └──outbox_close─────▶ dropped
 *                └──outbox_send: the queue is empty, no thread sends──▶ sent, from the caller's buffer
 *
 * One thread at a time is the sender. It takes the role under the lock, and makes its system calls without
 * the lock. While the socket is full the sender waits for it until its own deadline. Other threads append
 * packets meanwhile. A thread that finds another one sending does not wait. The sender ends when the queue is
 * empty, or it gives the role up: at its deadline, when a system call fails, or after OUTBOX_TURN packets.
 * Then the packets stay queued, and the next outbox_flush() of any thread goes on with them.
 *
 * Invariants (outbox_is_valid()):
 * - Packets leave in the order of outbox_put() and outbox_send(), whatever threads call these.
 * - The queue lies between head and tail, as whole records.
 * - A packet is in flight only while there is a sender, and it is the first one of the queue.
 * - A closed outbox has no packets and takes none.
 *
 * The lock is a leaf: a thread that holds it takes no other lock, and neither sends nor waits for the socket.
 * So outbox_put() may be called under any lock. The outbox allocates nothing. A forked child leaves it alone: it
 * has no memory of its own.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of packets that wait, each with a head of 8. It has room for two of the largest packets and for some
 * 400 one-way messages, as many as a socket holds. A client with more to say waits for the daemon. */
#define OUTBOX_BYTES (32u << 10)
/* The part of it that the reader's own messages alone may use: they confirm what came and give back what came
 * late, and the daemon waits for the first kind. Room for the releases of one LEASES, 88 bytes each. */
#define OUTBOX_READER_BYTES (8u << 10)
/* Packets of other threads that a sender sends before it gives the role up. A sender whose own packet has left
 * would else serve other threads for as long as they append. A call takes some 2 us. */
#define OUTBOX_TURN 256u
/* A thread that waits for a reply looks so often whether it can send what another thread left. */
#define OUTBOX_LOOK_NS UINT64_C(10000000)

/* The place of a packet that is not in the queue. */
#define OUTBOX_NOWHERE UINT64_MAX

struct outbox {
    pthread_mutex_t lock;
    pthread_cond_t room;  /* the queue became shorter, or the sender's role free */
    unsigned n_waiting;   /* threads that wait for it */
    int fd;               /* borrowed; -1: closed */
    bool is_sending;      /* a thread is the sender */
    bool is_in_flight;    /* the sender makes the system call for the first packet of the queue */
    _Atomic bool has_any; /* the queue is not empty; changed under the lock */
    uint64_t head, tail;  /* positions in the stream of all records that there ever were */
    _Alignas(8) uint8_t bytes[OUTBOX_BYTES];
};

/* Makes a closed outbox. */
void outbox_init(struct outbox *outbox);
void outbox_deinit(struct outbox *outbox);

/* Opens the outbox over a connected socket. */
void outbox_open(struct outbox *outbox, int fd);

/* Drops what is queued: the connection is broken. Threads that wait in the outbox return -EPIPE. Thread-safe,
 * as all below. */
void outbox_close(struct outbox *outbox);

/* Queues a packet. Sends nothing and waits for nothing. Returns 0, -EAGAIN (no room), -EPIPE (closed). */
int outbox_put(struct outbox *outbox, const void *packet, size_t size);

/* Sends a packet, or queues it behind others. If the queue is empty and no thread sends, the caller is the
 * sender, and sends it from its own buffer. If the queue has no room, the caller waits for some. is_reader:
 * OUTBOX_READER_BYTES are for it, too.
 * Returns:
 * - 0: sent, or queued at *ret_place. *ret_place is OUTBOX_NOWHERE where it was sent.
 * - -ETIMEDOUT: the deadline has passed. -EPIPE: the other end is gone, or the outbox closed. Another negative
 *   errno. The packet is not queued. */
int outbox_send(struct outbox *outbox, const void *packet, size_t size, bool is_reader, uint64_t deadline_ns,
                uint64_t *ret_place);

/* Waits until a packet at a place has left, as the sender if no other thread is. OUTBOX_NOWHERE: returns at
 * once. Returns 0 (it has left, or is just being sent), -EPIPE (closed); -ETIMEDOUT and other negative errnos:
 * the packet was taken back. */
int outbox_await(struct outbox *outbox, uint64_t place, uint64_t deadline_ns);

/* Sends a packet, and waits until it has left: outbox_send() and outbox_await(). Returns as these. Where it
 * fails, the packet does not leave. */
int outbox_send_now(struct outbox *outbox, const void *packet, size_t size, bool is_reader,
                    uint64_t deadline_ns);

/* Sends what is queued, in order, and waits until the deadline for the socket to take it. Returns 0 at once if
 * another thread sends. Else 0 (all that was queued when it began has left), -ETIMEDOUT, -EPIPE or another
 * negative errno: the rest stays queued. */
int outbox_flush(struct outbox *outbox, uint64_t deadline_ns);

/* Takes a packet back. False: it was sent, or the sender is about to send it. */
bool outbox_withdraw(struct outbox *outbox, uint64_t place);

/* Whether packets are queued. Takes no lock. */
static inline bool outbox_has_any(const struct outbox *outbox) {
    return atomic_load_explicit(&outbox->has_any, memory_order_relaxed);
}

/* Sends what the socket takes at once. Returns until when a thread that waits for something else may wait
 * before it calls this again: the deadline, or OUTBOX_LOOK_NS from now if packets are left. */
uint64_t outbox_go_on(struct outbox *outbox, uint64_t deadline_ns);

/* Whether the invariants hold. For tests. */
bool outbox_is_valid(struct outbox *outbox);

#endif
