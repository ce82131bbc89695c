/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_BOARD_H
#define PROTO_BOARD_H
/*
 * The board: memory that all sessions of a user share with the daemon, for fences that one process leaves and
 * streams of another wait for. The daemon makes it (a memfd, sealed against a change of size) and gives each
 * session that asks a slot of it. A slot's words are written by the streams of its session, in ascending
 * order, and read by everybody.
 *
 * The board orders the work on memory that processes of one user share, and decides nothing else: fences
 * behind which memory comes back lie in a session's own page (proto/page.h), which no other process has.
 *
 * Epochs: the upper bits of a word are the number of the session in its slot. While a slot has a session, its
 * words have its epoch; from its end on, they have a later one, so that every fence that was left there is
 * ready, and no stream waits for a process that is gone. `ended` then says of each word how far it came, in
 * the epoch that ended. After a farewell that is the end of the epoch, for all work was done. A slot that is
 * free goes to the next session after all that have been free for longer.
 */
#include <stdatomic.h>
#include <stdint.h>

#include "proto/limits.h"

#define PROTO_BOARD_EPOCH_BITS 48u /* of a value that are not its epoch's number */

struct proto_board_slot {
    _Atomic uint64_t words[PROTO_BOARD_WORDS];
    _Atomic uint64_t ended[PROTO_BOARD_WORDS];
};

struct proto_board {
    struct proto_board_slot slots[PROTO_BOARD_SLOTS];
};

_Static_assert(sizeof(struct proto_board) == PROTO_BOARD_BYTES, "the board is what its memfd is");

/* The first value of an epoch's words, and the last one. */
static inline uint64_t proto_board_first(uint64_t epoch) {
    return epoch << PROTO_BOARD_EPOCH_BITS;
}

static inline uint64_t proto_board_last(uint64_t epoch) {
    return proto_board_first(epoch + 1) - 1;
}

enum proto_board_state {
    PROTO_BOARD_PENDING,
    PROTO_BOARD_READY,
    PROTO_BOARD_LOST, /* its process died before, and the daemon knows that its GPU work is over */
};

/* Whether a fence is ready: the slot's word has reached the value. */
static inline enum proto_board_state proto_board_state(const struct proto_board_slot *slot, uint32_t word,
                                                       uint64_t value) {
    uint64_t now = atomic_load_explicit(&slot->words[word], memory_order_acquire);

    if ((int64_t)(now - value) < 0)
        return PROTO_BOARD_PENDING;
    if (now >> PROTO_BOARD_EPOCH_BITS == value >> PROTO_BOARD_EPOCH_BITS)
        return PROTO_BOARD_READY;
    uint64_t ended = atomic_load_explicit(&slot->ended[word], memory_order_acquire);
    return ended >> PROTO_BOARD_EPOCH_BITS == value >> PROTO_BOARD_EPOCH_BITS && ended < value
               ? PROTO_BOARD_LOST
               : PROTO_BOARD_READY;
}

#endif
