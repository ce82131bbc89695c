/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CORE_SENDER_H
#define CLIENT_CORE_SENDER_H
/*
 * The sender: the object in the producer place of a channel. It finds slots that nothing uses, and sends
 * elements. proto/channel.h has the protocol, and the reason why a slot that is used is not found.
 *
 * A slot is in one of two states: listed, or loaned to the caller. Listed slots are in a list by the
 * sequences of their last elements, lowest first. A loan takes a slot out of the list. Sending puts it at the
 * end, as the newest; giving it back unsent puts it at the front, as a slot that is free already.
 *
 * A search looks at the oldest slot first, and in most programs at no other. Where a consumer holds the
 * oldest slot, the search goes on as far as each place has received. So it passes over slots that are held,
 * and never over those that wait to be received.
 *
 * Invariants: a loan leaves no trace in the pages. `head` and `floor` are those of the page. Each slot whose
 * entry has a sequence from 1 to head is the only one with that sequence.
 *
 * No function makes a system call, takes a lock or reads a clock. Each ends after a number of accesses that
 * the capacities bound, whatever the pages contain. One thread at a time may use a sender: the caller sees to
 * it.
 */
#include <stdbool.h>
#include <stdint.h>

#include "client/core/channel.h"

enum sender_result {
    SENDER_OK,
    SENDER_FULL,     /* no slot is free: a place holds the oldest one */
    SENDER_REFUSED,  /* the caller's mistake: nothing was done */
    SENDER_PROTOCOL, /* a page has contents that the protocol excludes: the channel is broken */
};

/* A slot that the caller may write into, behind the fences. */
struct sender_loan {
    uint32_t slot;
    uint32_t n_fences;
    struct channel_fence fences[PROTO_CHANNEL_CONSUMERS_MAX + 1]; /* each may be there several times */
};

/* An element that is sent. */
struct sender_element {
    uint64_t size_bytes;
    const void *metadata; /* borrowed for the call */
    uint64_t metadata_bytes;
    struct channel_fence fence; /* behind which the slot is written */
    uint64_t session;           /* of the process that left it */
};

/* The memory that sender_init() fills in. Callers read `place` alone. */
struct sender {
    const struct channel_view *view;
    struct proto_channel_producer *page;
    unsigned
        place;   /* that held the oldest slot (SENDER_FULL), or has the broken page; 0: the producer's own */
    bool is_new; /* it has not looked at the roll yet */
    uint64_t head, floor, changes, sleeps;
    uint32_t oldest, newest; /* of the list; SENDER_NO_SLOT: it is empty */
    struct {
        bool counts;
        uint64_t begins, queue; /* of the queue that was admitted last */
    } places[PROTO_CHANNEL_CONSUMERS_MAX];
    struct {
        uint64_t sequence; /* sent there last; 0: none */
        uint32_t older, newer;
        bool is_loaned;
        struct channel_fence fence; /* left by sender_give_back() */
    } slots[PROTO_CHANNEL_SLOTS_MAX];
};
#define SENDER_NO_SLOT UINT32_MAX

/* Begins, or goes on from the words of the process that was in the place before. That process has ended, and
 * its GPU work is over. The sender borrows the view and the page, which is the view's producer page, mapped
 * to be written. Returns SENDER_OK or SENDER_PROTOCOL. */
enum sender_result sender_init(struct sender *sender, const struct channel_view *view,
                               struct proto_channel_producer *page);

/* Finds a slot that nothing uses any more, and loans it to the caller. A policy that drops raises the floor,
 * if that makes a slot free. Returns:
 *   SENDER_OK        *ret_loan is filled in
 *   SENDER_FULL      sender->place says which place holds the oldest slot; 0: the caller has all slots
 *   SENDER_PROTOCOL  sender->place says whose page is wrong */
enum sender_result sender_find_slot(struct sender *sender, struct sender_loan *ret_loan);

/* Sends the element in a loaned slot. *ret_wakes: sleepers on `head` of the page are to be woken. Returns
 * SENDER_OK, or SENDER_REFUSED if the slot is not loaned, or if the element is larger than the capacities. */
enum sender_result sender_send(struct sender *sender, uint32_t slot, const struct sender_element *element,
                               bool *ret_wakes);

/* Takes a loaned slot back that was not sent. The next loan of the slot is behind the fence, too. No fence
 * (word 0) means that the caller did not use the slot; other fences are behind those of the loan. */
void sender_give_back(struct sender *sender, uint32_t slot, struct channel_fence fence);

/* Announces sleep, after SENDER_FULL. The caller then asks sender_find_slot() once more, and sleeps on the
 * words if the answer is SENDER_FULL again. In either case sender_sleep_end() follows. */
void sender_sleep_begin(struct sender *sender, struct channel_sleep *ret_sleep);
void sender_sleep_end(struct sender *sender);

/* For tests: whether the invariants hold. */
bool sender_is_valid(const struct sender *sender);

#endif
