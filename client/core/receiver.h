/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CORE_RECEIVER_H
#define CLIENT_CORE_RECEIVER_H
/*
 * The receiver: the object in a consumer place of a channel. It receives each element of the place's queue in
 * order, and releases elements in any order. proto/channel.h has the protocol.
 *
 * A receiver waits for its admission first if the place was left before: until the producer has said where
 * the queue begins, the queue is empty. After a death it receives once more the elements that the process
 * before it had received and not released, and these are marked.
 *
 * Invariants: `received` is the page's, and no more than head + 1. An element is held from receiver_next() to
 * receiver_release(): its sequence stands in slots[].
 *
 * No function makes a system call, takes a lock or reads a clock. Each ends after a number of accesses that
 * the capacities bound, whatever the pages contain. One thread at a time may use a receiver: the caller sees
 * to it.
 */
#include <stdbool.h>
#include <stdint.h>

#include "client/core/channel.h"

enum receiver_result {
    RECEIVER_OK,
    RECEIVER_EMPTY,    /* nothing was sent that is not received */
    RECEIVER_ENDED,    /* likewise, and the producer left in order; another one may come */
    RECEIVER_OVERRUN,  /* the producer dropped each element before it could be claimed: ask again */
    RECEIVER_REFUSED,  /* the caller's mistake: nothing was done */
    RECEIVER_PROTOCOL, /* a page has contents that the protocol excludes: the channel is broken */
};

struct receiver_element {
    uint64_t sequence, size_bytes, metadata_bytes, session;
    uint64_t missed; /* elements before it that were dropped */
    uint32_t slot;
    bool is_again; /* a process before received it, and did not release it */
    /* In the producer's page: copied from there until the element is released. Another process writes there,
     * so two loads may differ if that process is broken. */
    const void *metadata;
    struct channel_fence fence; /* behind which the slot is written */
};

/* The memory that receiver_init() fills in. Callers read nothing of it. */
struct receiver {
    const struct channel_view *view;
    struct proto_channel_consumer *page;
    unsigned place;
    bool is_admitted;
    uint64_t queue, begins;
    uint64_t received, releases, sleeps;
    uint64_t head, floor; /* as seen last */
    uint32_t n_again, next_again;
    uint32_t again[PROTO_CHANNEL_SLOTS_MAX]; /* slots of elements to be received once more */
    uint64_t slots[PROTO_CHANNEL_SLOTS_MAX]; /* the sequence that is held; 0: none */
};

/* Begins, or goes on from the words of the process that was in the place before. That process has ended, and
 * its GPU work is over. The receiver borrows the view and the page, which is the view's page of the place (1
 * and up), mapped to be written. *ret_wakes: sleepers on `releases` of the page are to be woken. Returns
 * RECEIVER_OK, RECEIVER_REFUSED for a place that the channel has not, or RECEIVER_PROTOCOL. */
enum receiver_result receiver_init(struct receiver *receiver, const struct channel_view *view, unsigned place,
                                   struct proto_channel_consumer *page, bool *ret_wakes);

/* Receives the next element, and holds it. *ret_wakes as above: a claim may be given up. *ret_element is
 * untouched unless the result is RECEIVER_OK. */
enum receiver_result receiver_next(struct receiver *receiver, struct receiver_element *ret_element,
                                   bool *ret_wakes);

/* Releases the element in a slot behind a fence. *ret_wakes as above. Returns RECEIVER_OK, or
 * RECEIVER_REFUSED if no element is held there. A process that leaves the place in order releases all
 * elements before. */
enum receiver_result receiver_release(struct receiver *receiver, uint32_t slot, struct channel_fence fence,
                                      bool *ret_wakes);

/* Announces sleep, after RECEIVER_EMPTY. The caller then asks receiver_next() once more, and sleeps on the
 * words if the queue is still empty. In either case receiver_sleep_end() follows. */
void receiver_sleep_begin(struct receiver *receiver, struct channel_sleep *ret_sleep);
void receiver_sleep_end(struct receiver *receiver);

#endif
