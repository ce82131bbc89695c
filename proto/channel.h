/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_CHANNEL_H
#define PROTO_CHANNEL_H
/*
 * The pages of a channel. A channel hands elements from one producer to 1 to 16 consumers. Each consumer gets
 * each element. The elements lie in *slots*, equal parts of a buffer. No message to the daemon is sent for an
 * element: the processes write words into pages that they share.
 *
 * A channel has one producer place and n consumer places. A process takes a place, and its *successor* takes
 * the place after it has died. Each page is a memfd that the daemon makes (zero, sealed against a change of
 * size):
 *
 *   page      writer                                    bytes
 *   the roll  the daemon                                proto_channel_roll_bytes()
 *   producer  the process in the producer place         proto_channel_producer_bytes()
 *   consumer  the process in the consumer place;        proto_channel_consumer_bytes()
 *             one page for each place
 *
 * All other processes map a page to read only. They check each word before they use it: the writer may be
 * broken. All words are 64 bits in little-endian order, and are read and written as one. A word on which
 * processes sleep is the lower half of such a word: a futex has 32 bits. No two writers share a cache line.
 *
 * The orders of accesses that are named below are those of C11. *Total* is memory_order_seq_cst, for loads
 * and for stores: the total accesses of all processes have one order. Other stores are releases where the
 * text names a store that follows others, and the loads of such words are acquires.
 *
 * SEQUENCES. Elements have the sequences 1, 2, 3, …: `head` of them are sent. To send element q = head + 1 in
 * slot s, the producer writes the entry of the slot, the entry q & (ring - 1) of the ring, and then head = q
 * (total). Before that store nothing of the element is visible: a producer that dies earlier has sent
 * nothing, and the slot is free. A successor clears the sequences of slots that are above head, and goes on.
 * It needs no fences of earlier elements there: the dead process was behind them when it wrote the frame, and
 * its GPU work is over.
 *
 * RECEIVING. `received` of a consumer is the next sequence that it receives. To receive element q, the
 * consumer finds the slot in the ring, writes mark.taken = q, and then received = q + 1. To release the
 * element it writes the mark's fence, then mark.released = q, then releases + 1 (total). A consumer may have
 * several elements, and release them in any order. It *holds* q while
 *   begins <= q < received, mark.taken == q, and mark.released != q.
 * A successor receives once more what the place holds, and then goes on at `received`. It clears `taken`
 * where taken >= received: that was claimed, and not received.
 *
 * REUSE. A consumer place *counts* unless its state is LEFT. It has let go of element q if it does not count,
 * or q < begins, or mark.released == q. The producer may write into the slot of q when all places have let go
 * of q, behind the fences of all marks with released == q. So a place without a process holds its queue back,
 * and a place that was left does not.
 *
 * DROPPING, with PROTO_CHANNEL_DROP_OLDEST alone. `floor` is the lowest sequence that can still be received.
 * When no slot is free the producer raises it to q + 1 (total), for the oldest q that no place claims. After
 * that store, a place has also let go of q if mark.taken != q (total load). The consumer's side:
 *
 *   1. q = the higher one of received and floor; the slot of q from the ring; all that it needs of the ring
 *   2. mark.taken = q (total)
 *   3. floor (total load): floor <= q: the element is claimed, and received = q + 1.
 *      Otherwise it is dropped: mark.taken = 0, releases + 1 (total), and again from 1.
 *
 * Why a claimed slot is not reused: the order of the total accesses has either the store 2 first or the raise
 * of floor. If the store 2 is first, then the producer's load of mark.taken, which follows the raise, sees q,
 * and the slot stays. If the raise is first, then the load 3 sees it, and the consumer does not use the slot.
 * If each side sees the other, neither uses the slot, and the producer takes the next one. The entry of the
 * ring that step 1 read is that of q if step 3 finds floor <= q: until then the elements from floor to head
 * are in as many slots, which are no more than the ring has entries.
 *
 * A PLACE THAT WAS LEFT, and is taken again, has a new queue. The daemon counts the queues of a place in its
 * state. The new queue begins at the producer's head. The producer says where: before it sends an element or
 * looks for a slot it looks at `changes` of the roll. If a place counts and has another queue than
 * queues[].number, the producer writes queues[].begins = head + 1, then queues[].number. Until the consumer
 * sees its number there, its queue is empty. Nothing has to be agreed beside the roll: an element is counted
 * for the queue from the admission on, and the producer alone decides on both. Sequences of an earlier queue
 * are below begins, so the words that an earlier process left in the page mean nothing any more. Queue 0
 * begins at 1, without admission.
 *
 * SLEEPING. `sleeps` is odd while a process sleeps, or is about to.
 *
 *   sleeper: sleeps + 1 (total); loads the words it will sleep on (total); looks once more for something to do;
 *            sleeps while they have these values; sleeps + 1.
 *   waker:   writes the word (total); loads sleeps (total); wakes the sleepers on the word if sleeps is odd and
 *            the place is TAKEN.
 *
 *   the producer sleeps on `releases` of all consumer places that count, and on `changes`
 *   a consumer sleeps on `head` and on `changes`
 *
 * Either the waker sees `sleeps`, or the sleeper sees the word's new value and with it all that was written
 * before. A process that dies before it has woken the sleepers leaves that to the daemon, which changes the
 * roll.
 *
 * DEATH. All words are written by one store each, and no two of them have to change together: a process may
 * die between any two stores. A dead place's words stay as they are, and its successor goes on from them.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/limits.h"

#define PROTO_CHANNEL_MAGIC    UINT64_C(0x316c656e6e616863) /* "channel1" */
#define PROTO_CHANNEL_LINE     64u                          /* bytes: a cache line of x86-64 and most arm64 */
#define PROTO_CHANNEL_PAGE     4096u                        /* bytes that pages are rounded up to */
#define PROTO_CHANNEL_PLACES   (PROTO_CHANNEL_CONSUMERS_MAX + 1)
#define PROTO_CHANNEL_PRODUCER 0u /* the number of its place; the consumers' are 1 and up */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the lower half of a word comes first");
_Static_assert(sizeof(_Atomic uint64_t) == 8, "a word");

/* A loan without a free slot. */
enum proto_channel_policy {
    PROTO_CHANNEL_WAIT = 1,    /* waits for the oldest slot that all places have let go of */
    PROTO_CHANNEL_DROP_OLDEST, /* drops the oldest element that no place claims */
    PROTO_CHANNEL_FAIL,        /* fails at once */
};

enum proto_channel_state {
    PROTO_CHANNEL_EMPTY,  /* never taken */
    PROTO_CHANNEL_TAKEN,  /* by a process */
    PROTO_CHANNEL_DYING,  /* its process died; the process's GPU work may go on */
    PROTO_CHANNEL_VACANT, /* its process died, and the GPU work is over: for a successor */
    PROTO_CHANNEL_LEFT,   /* its process left in order */
};

/* --- capacities, fixed when the channel is made --- */

struct proto_channel_capacities {
    uint64_t slot_bytes;
    uint64_t n_slots;
    uint64_t metadata_bytes; /* of an element, at most */
    uint64_t n_consumers;    /* consumer places */
    uint64_t policy;
};

/* Whether the numbers are within the limits. */
static inline bool proto_channel_are_valid(const struct proto_channel_capacities *capacities) {
    return capacities->slot_bytes >= 1 && capacities->slot_bytes <= PROTO_SIZE_MAX &&
           capacities->n_slots >= PROTO_CHANNEL_SLOTS_MIN && capacities->n_slots <= PROTO_CHANNEL_SLOTS_MAX &&
           capacities->metadata_bytes <= PROTO_CHANNEL_METADATA_MAX && capacities->n_consumers >= 1 &&
           capacities->n_consumers <= PROTO_CHANNEL_CONSUMERS_MAX &&
           capacities->policy >= PROTO_CHANNEL_WAIT && capacities->policy <= PROTO_CHANNEL_FAIL;
}

static inline uint64_t proto_channel_round(uint64_t bytes, uint64_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

/* Entries of the ring: the power of two that is no less than the slots. */
static inline uint64_t proto_channel_ring_entries(const struct proto_channel_capacities *capacities) {
    uint64_t entries = PROTO_CHANNEL_SLOTS_MIN;

    while (entries < capacities->n_slots)
        entries *= 2;
    return entries;
}

/* --- the roll --- */

/* A place. The daemon writes `session`, then `state`, then `changes` of the roll, and wakes the sleepers
 * there. */
struct proto_channel_place {
    /* bits 0-7: enum proto_channel_state; 8-35: the number of the queue, from 0; 36-63: processes that took
     * the place so far */
    _Atomic uint64_t state;
    _Atomic uint64_t session; /* of the process that is in the place, or was in it last */
    uint64_t reserved[6];
};
_Static_assert(sizeof(struct proto_channel_place) == PROTO_CHANNEL_LINE, "a line");

#define PROTO_CHANNEL_COUNT_BITS 28u /* of the queue's number and of the processes: they return to 0 */

static inline uint64_t proto_channel_state_word(enum proto_channel_state state, uint64_t queue,
                                                uint64_t processes) {
    const uint64_t mask = (UINT64_C(1) << PROTO_CHANNEL_COUNT_BITS) - 1;
    return (uint64_t)state | (queue & mask) << 8 | (processes & mask) << (8 + PROTO_CHANNEL_COUNT_BITS);
}

static inline enum proto_channel_state proto_channel_state_of(uint64_t word) {
    return (enum proto_channel_state)(word & 0xff);
}

static inline uint64_t proto_channel_queue_of(uint64_t word) {
    return word >> 8 & ((UINT64_C(1) << PROTO_CHANNEL_COUNT_BITS) - 1);
}

static inline uint64_t proto_channel_processes_of(uint64_t word) {
    return word >> (8 + PROTO_CHANNEL_COUNT_BITS);
}

struct proto_channel_roll {
    uint64_t magic;
    struct proto_channel_capacities capacities;
    uint64_t reserved[2];
    _Atomic uint64_t changes; /* of places so far */
    uint64_t reserved2[7];
    struct proto_channel_place places[PROTO_CHANNEL_PLACES];
};
_Static_assert(sizeof(struct proto_channel_roll) == (2 + PROTO_CHANNEL_PLACES) * PROTO_CHANNEL_LINE, "lines");

static inline uint64_t proto_channel_roll_bytes(void) {
    return proto_channel_round(sizeof(struct proto_channel_roll), PROTO_CHANNEL_PAGE);
}

/* --- the producer's page --- */

/* A fence on the board (proto/board.h). 0: there is none. */
struct proto_channel_fence {
    _Atomic uint64_t word; /* bits 32-63: the slot of the board; 0-31: the word in it, plus 1 */
    _Atomic uint64_t value;
};

/* An element. The ring and the slots have an entry each for it. Where an element is read from:
 *   the ring       when it is received: the sequence is known, and not the slot
 *   its slot       when it is received once more: the ring may have another element there by now */
struct proto_channel_entry {
    _Atomic uint64_t sequence; /* 0: nothing was sent in the slot */
    _Atomic uint64_t slot;
    _Atomic uint64_t size_bytes;      /* of the frame: no more than slot_bytes */
    _Atomic uint64_t metadata_bytes;  /* no more than those of the capacities */
    struct proto_channel_fence fence; /* behind which the frame is written */
    _Atomic uint64_t session;         /* of the process that left the fence */
    uint64_t reserved;
};
_Static_assert(sizeof(struct proto_channel_entry) == PROTO_CHANNEL_LINE, "a line");

/* Where the queue of a consumer place begins. */
struct proto_channel_queue {
    _Atomic uint64_t begins; /* the first sequence of the queue; 0 is 1 */
    _Atomic uint64_t number; /* of the queue that was admitted last */
};

struct proto_channel_producer {
    _Atomic uint64_t head; /* elements sent */
    uint64_t reserved[7];
    _Atomic uint64_t floor; /* lowest sequence that can be received; 0 is 1 */
    uint64_t reserved2[7];
    _Atomic uint64_t sleeps;
    uint64_t reserved3[7];
    struct proto_channel_queue queues[PROTO_CHANNEL_CONSUMERS_MAX];
    /* Then the ring, and the slots: an entry with its metadata behind it, for each slot. */
    struct proto_channel_entry ring[];
};
_Static_assert(sizeof(struct proto_channel_producer) % PROTO_CHANNEL_LINE == 0, "lines");

/* The distance of two slots' entries. */
static inline uint64_t proto_channel_slot_stride(const struct proto_channel_capacities *capacities) {
    return sizeof(struct proto_channel_entry) +
           proto_channel_round(capacities->metadata_bytes, PROTO_CHANNEL_LINE);
}

/* Where the first slot's entry lies in the page. */
static inline uint64_t proto_channel_slots_offset(const struct proto_channel_capacities *capacities) {
    return sizeof(struct proto_channel_producer) +
           proto_channel_ring_entries(capacities) * sizeof(struct proto_channel_entry);
}

static inline uint64_t proto_channel_producer_bytes(const struct proto_channel_capacities *capacities) {
    return proto_channel_round(proto_channel_slots_offset(capacities) +
                                   capacities->n_slots * proto_channel_slot_stride(capacities),
                               PROTO_CHANNEL_PAGE);
}

/* --- a consumer's page --- */

/* The last acts of the place on a slot. */
struct proto_channel_mark {
    _Atomic uint64_t taken;           /* the sequence that it claimed; 0: none */
    _Atomic uint64_t released;        /* the sequence that it released */
    struct proto_channel_fence fence; /* behind which the process's GPU work on `released` is over */
    uint64_t reserved[4];
};
_Static_assert(sizeof(struct proto_channel_mark) == PROTO_CHANNEL_LINE, "a line");

struct proto_channel_consumer {
    _Atomic uint64_t received; /* the next sequence to receive; 0 is 1 */
    _Atomic uint64_t releases; /* how often something was released, or a claim was given up */
    uint64_t reserved[6];
    _Atomic uint64_t sleeps;
    uint64_t reserved2[7];
    struct proto_channel_mark marks[]; /* by slot */
};
_Static_assert(sizeof(struct proto_channel_consumer) == 2 * PROTO_CHANNEL_LINE, "lines");

static inline uint64_t proto_channel_consumer_bytes(const struct proto_channel_capacities *capacities) {
    return proto_channel_round(sizeof(struct proto_channel_consumer) +
                                   capacities->n_slots * sizeof(struct proto_channel_mark),
                               PROTO_CHANNEL_PAGE);
}

/* --- all pages --- */

/* The bytes of a page by its number in ASK_CHANNEL_MEMORY: 0 is the roll, others are 1 and the place's number. */
static inline uint64_t proto_channel_page_bytes(const struct proto_channel_capacities *capacities,
                                                unsigned page) {
    return page == 0                            ? proto_channel_roll_bytes()
           : page - 1 == PROTO_CHANNEL_PRODUCER ? proto_channel_producer_bytes(capacities)
                                                : proto_channel_consumer_bytes(capacities);
}

#endif
