/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/outbox.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/uio.h>

#include "base/clock.h"
#include "base/lock.h"
#include "base/thread.h"
#include "client/session/socket.h"

/* A record of the queue: this head, the packet, and up to 7 bytes to the next multiple of 8. So a head lies in
 * one piece, and a packet in at most two. */
struct record {
    uint32_t size; /* of the packet */
    uint32_t is_withdrawn;
};
_Static_assert(sizeof(struct record) == 8 && OUTBOX_BYTES % 8 == 0, "heads lie in one piece");

void outbox_init(struct outbox *outbox) {
    lock_init_brief(&outbox->lock);
    thread_condition_init(&outbox->room);
    outbox->n_waiting = 0;
    outbox->fd = -1;
    outbox->is_sending = outbox->is_in_flight = false;
    atomic_init(&outbox->has_any, false);
    outbox->head = outbox->tail = 0;
}

void outbox_deinit(struct outbox *outbox) {
    pthread_cond_destroy(&outbox->room);
    pthread_mutex_destroy(&outbox->lock);
}

void outbox_open(struct outbox *outbox, int fd) {
    LOCKED(&outbox->lock);
    outbox->fd = fd;
}

/* --- the queue; locked --- */

static uint64_t record_bytes(size_t size) {
    return (sizeof(struct record) + size + 7) / 8 * 8;
}

static struct record *record_at(struct outbox *outbox, uint64_t place) {
    return (struct record *)(void *)&outbox->bytes[place % OUTBOX_BYTES];
}

/* The packet of a record, in at most two pieces. Returns how many. */
static size_t packet_pieces(struct outbox *outbox, uint64_t place, size_t size, struct iovec ret_pieces[2]) {
    size_t start = (place + sizeof(struct record)) % OUTBOX_BYTES;
    size_t first = size < OUTBOX_BYTES - start ? size : OUTBOX_BYTES - start;

    ret_pieces[0] = (struct iovec){.iov_base = &outbox->bytes[start], .iov_len = first};
    ret_pieces[1] = (struct iovec){.iov_base = outbox->bytes, .iov_len = size - first};
    return first < size ? 2 : 1;
}

static int append_locked(struct outbox *outbox, const void *packet, size_t size, bool is_reader) {
    struct iovec pieces[2];
    uint64_t limit = is_reader ? OUTBOX_BYTES : OUTBOX_BYTES - OUTBOX_READER_BYTES, place = outbox->tail;

    if (outbox->fd < 0)
        return -EPIPE;
    if (place - outbox->head + record_bytes(size) > limit)
        return -EAGAIN;
    *record_at(outbox, place) = (struct record){.size = (uint32_t)size};
    size_t count = packet_pieces(outbox, place, size, pieces);
    memcpy(pieces[0].iov_base, packet, pieces[0].iov_len);
    if (count > 1)
        memcpy(pieces[1].iov_base, (const uint8_t *)packet + pieces[0].iov_len, pieces[1].iov_len);
    outbox->tail += record_bytes(size);
    atomic_store_explicit(&outbox->has_any, true, memory_order_relaxed);
    return 0;
}

/* Moves the head. */
static void advance_locked(struct outbox *outbox, uint64_t head) {
    outbox->head = head;
    atomic_store_explicit(&outbox->has_any, head != outbox->tail, memory_order_relaxed);
    if (outbox->n_waiting > 0)
        pthread_cond_broadcast(&outbox->room);
}

void outbox_close(struct outbox *outbox) {
    LOCKED(&outbox->lock);
    outbox->fd = -1;
    advance_locked(outbox, outbox->tail);
}

int outbox_put(struct outbox *outbox, const void *packet, size_t size) {
    LOCKED(&outbox->lock);
    return append_locked(outbox, packet, size, false);
}

static bool withdraw_locked(struct outbox *outbox, uint64_t place) {
    if (place == OUTBOX_NOWHERE || place < outbox->head || place >= outbox->tail ||
        (place == outbox->head && outbox->is_in_flight))
        return false;
    record_at(outbox, place)->is_withdrawn = true;
    return true;
}

bool outbox_withdraw(struct outbox *outbox, uint64_t place) {
    LOCKED(&outbox->lock);
    return withdraw_locked(outbox, place);
}

/* --- the sender; locked --- */

/* Whether a packet may leave from its caller's buffer. */
static bool is_idle_locked(const struct outbox *outbox) {
#ifdef GPUPOOL_PLANT_OVERTAKING
    return outbox->fd >= 0; /* a fault on purpose, for the test that has to find it */
#else
    return outbox->fd >= 0 && !outbox->is_sending && outbox->head == outbox->tail;
#endif
}

static void end_sending_locked(struct outbox *outbox) {
    outbox->is_sending = false;
    if (outbox->n_waiting > 0)
        pthread_cond_broadcast(&outbox->room); /* one of them is the next sender */
}

/* Sends the first packet, if the socket takes it at once. Unlocks meanwhile. 0, -EAGAIN, -EPIPE, another
 * negative errno. */
static int send_first_locked(struct outbox *outbox) {
    const struct record *record = record_at(outbox, outbox->head);
    uint64_t next = outbox->head + record_bytes(record->size);
    struct iovec pieces[2];
    int fd = outbox->fd, r = 0;

    if (!record->is_withdrawn) {
        size_t count = packet_pieces(outbox, outbox->head, record->size, pieces);
        outbox->is_in_flight = true;
        pthread_mutex_unlock(&outbox->lock);
        r = socket_try_send(fd, pieces, count);
        pthread_mutex_lock(&outbox->lock);
        outbox->is_in_flight = false;
    }
    if (outbox->fd < 0)
        return -EPIPE;
    if (r == 0)
        advance_locked(outbox, next);
    return r;
}

/* Waits for the socket. Unlocks meanwhile. */
static int wait_locked(struct outbox *outbox, uint64_t deadline_ns) {
    int fd = outbox->fd;

    pthread_mutex_unlock(&outbox->lock);
    int r = socket_wait(fd, POLLOUT, deadline_ns);
    pthread_mutex_lock(&outbox->lock);
    return outbox->fd < 0 ? -EPIPE : r;
}

/* Sends from the queue's head on. The thread is the sender. It waits for the socket to take packets that lie
 * before the place `until`, and later ones too if it waits for all. */
static int drain_locked(struct outbox *outbox, uint64_t until, bool waits_for_all, uint64_t deadline_ns) {
    unsigned n_others = 0;

    while (outbox->head != outbox->tail) {
        bool is_other = outbox->head >= until;
        if (is_other && n_others++ == OUTBOX_TURN)
            return 0;
        int r = send_first_locked(outbox);
        if (r == -EAGAIN && (!is_other || waits_for_all))
            r = wait_locked(outbox, deadline_ns);
        else if (r == -EAGAIN)
            return 0;
        if (r < 0)
            return r;
    }
    return 0;
}

/* Waits until the packets before a place have left, as the sender if there is none. */
static int await_locked(struct outbox *outbox, uint64_t until, uint64_t deadline_ns) {
    int r = 0;

    while (r == 0 && outbox->fd >= 0 && outbox->head < until) {
        if (outbox->is_sending) {
            outbox->n_waiting++;
            r = -thread_condition_wait(&outbox->room, &outbox->lock, deadline_ns);
            outbox->n_waiting--;
        } else {
            outbox->is_sending = true;
            r = drain_locked(outbox, until, false, deadline_ns);
            end_sending_locked(outbox);
        }
    }
    return outbox->fd < 0 ? -EPIPE : r;
}

/* Queues a packet. Where there is no room, waits for it, as the sender if there is none. */
static int append_waiting_locked(struct outbox *outbox, const void *packet, size_t size, bool is_reader,
                                 uint64_t deadline_ns) {
    int r;

    while ((r = append_locked(outbox, packet, size, is_reader)) == -EAGAIN) {
        r = await_locked(outbox, outbox->head + 1, deadline_ns);
        if (r < 0)
            break;
    }
    return r;
}

int outbox_send(struct outbox *outbox, const void *packet, size_t size, bool is_reader, uint64_t deadline_ns,
                uint64_t *ret_place) {
    int r;

    *ret_place = OUTBOX_NOWHERE;
    pthread_mutex_lock(&outbox->lock);
    if (!is_idle_locked(outbox)) {
        r = append_waiting_locked(outbox, packet, size, is_reader, deadline_ns);
        if (r == 0)
            *ret_place = outbox->tail - record_bytes(size);
    } else {
        int fd = outbox->fd;
        outbox->is_sending = true;
        pthread_mutex_unlock(&outbox->lock);
        r = socket_send(fd, packet, size, deadline_ns);
        pthread_mutex_lock(&outbox->lock);
        if (outbox->head != outbox->tail)
            (void)drain_locked(outbox, 0, false, 0); /* what others have put meanwhile */
        end_sending_locked(outbox);
    }
    pthread_mutex_unlock(&outbox->lock);
    return r;
}

int outbox_await(struct outbox *outbox, uint64_t place, uint64_t deadline_ns) {
    if (place == OUTBOX_NOWHERE)
        return 0;
    LOCKED(&outbox->lock);
    int r = await_locked(outbox, place + 1, deadline_ns);
    /* Where it cannot be taken back, it has left, or the sender is just sending it. */
    return r < 0 && r != -EPIPE && !withdraw_locked(outbox, place) ? 0 : r;
}

int outbox_send_now(struct outbox *outbox, const void *packet, size_t size, bool is_reader,
                    uint64_t deadline_ns) {
    uint64_t place;
    int r = outbox_send(outbox, packet, size, is_reader, deadline_ns, &place);

    return r < 0 ? r : outbox_await(outbox, place, deadline_ns);
}

int outbox_flush(struct outbox *outbox, uint64_t deadline_ns) {
    int r = 0;

    pthread_mutex_lock(&outbox->lock);
    if (!outbox->is_sending && outbox->head != outbox->tail) {
        outbox->is_sending = true;
        r = drain_locked(outbox, outbox->tail, true, deadline_ns);
        end_sending_locked(outbox);
    }
    pthread_mutex_unlock(&outbox->lock);
    return r;
}

uint64_t outbox_go_on(struct outbox *outbox, uint64_t deadline_ns) {
    if (!outbox_has_any(outbox))
        return deadline_ns;
    (void)outbox_flush(outbox, 0);
    if (!outbox_has_any(outbox))
        return deadline_ns;
    uint64_t look_ns = clock_now_ns() + OUTBOX_LOOK_NS;
    return look_ns < deadline_ns ? look_ns : deadline_ns;
}

bool outbox_is_valid(struct outbox *outbox) {
    LOCKED(&outbox->lock);
    uint64_t place = outbox->head;

    if (outbox->tail < outbox->head || outbox->tail - outbox->head > OUTBOX_BYTES)
        return false;
    while (place < outbox->tail && record_at(outbox, place)->size > 0)
        place += record_bytes(record_at(outbox, place)->size);
    return place == outbox->tail && outbox->has_any == (outbox->head != outbox->tail) &&
           (!outbox->is_in_flight ||
            (outbox->is_sending && (outbox->fd < 0 || outbox->head != outbox->tail))) &&
           (outbox->fd >= 0 || outbox->head == outbox->tail);
}
