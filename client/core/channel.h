/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CORE_CHANNEL_H
#define CLIENT_CORE_CHANNEL_H
/*
 * A channel as one of its processes sees it: the pages, where they are mapped, and the capacities. The object
 * in the place, a sender (sender.h) or a receiver (receiver.h), borrows it.
 *
 * Invariants: the capacities are within the limits, and do not change after channel_view_init(), whatever is
 * written into the roll. Each page has as many bytes as proto/channel.h says for them.
 *
 * These functions make no system call and take no lock. A view is read only, so threads may share it.
 */
#include <stdbool.h>
#include <stdint.h>

#include "client/core/channel_words.h"
#include "proto/channel.h"

struct channel_view {
    struct proto_channel_capacities capacities;
    uint64_t ring_mask, slots_offset, slot_stride; /* derived from them */
    const struct proto_channel_roll *roll;
    const struct proto_channel_producer *producer;
    const struct proto_channel_consumer *consumers[PROTO_CHANNEL_CONSUMERS_MAX]; /* place 1 first */
};

/* A fence in a process's own memory. word as in struct proto_channel_fence; 0: none. */
struct channel_fence {
    uint64_t word, value;
};

/* The words to sleep on. The process sleeps while each word's lower half has its expected value. The first
 * word is the one that will change first, most likely. */
#define CHANNEL_SLEEP_WORDS (PROTO_CHANNEL_CONSUMERS_MAX + 2) /* one is for the caller to add */
struct channel_sleep {
    unsigned count;
    struct {
        const _Atomic uint64_t *word;
        uint32_t expected;
    } words[CHANNEL_SLEEP_WORDS];
};

/* Takes the capacities from the roll. consumers has a page for each consumer place; the caller knows their
 * number and the pages' sizes from the daemon. *view borrows the pages. Returns whether the roll is that of a
 * channel with these capacities. Otherwise *view is untouched. */
bool channel_view_init(struct channel_view *view, const struct proto_channel_roll *roll,
                       const struct proto_channel_producer *producer,
                       const struct proto_channel_consumer *const *consumers,
                       const struct proto_channel_capacities *expected);

/* A place's word `state` in the roll. place: 0 is the producer's. */
static inline uint64_t channel_state_word(const struct channel_view *view, unsigned place) {
    return word_load(&view->roll->places[place].state, WORD_ORDERED);
}

/* Whether a process sleeps, or is about to. The caller has written the word that the process sleeps on, as
 * total. A dead process may have left the word odd: then its place is not TAKEN, or a successor will make it
 * even before the successor sleeps. */
static inline bool channel_sleeps(const struct channel_view *view, unsigned place,
                                  const _Atomic uint64_t *sleeps) {
    return (word_load(sleeps, WORD_TOTAL) & 1) != 0 &&
           proto_channel_state_of(channel_state_word(view, place)) == PROTO_CHANNEL_TAKEN;
}

/* Reads a fence. Returns whether it names a word of the board, or none. */
bool channel_fence_read(const struct proto_channel_fence *fence, struct channel_fence *ret_fence);

static inline void channel_fence_write(struct proto_channel_fence *page, struct channel_fence fence) {
    word_store(&page->word, fence.word, WORD_PLAIN);
    word_store(&page->value, fence.value, WORD_PLAIN);
}

/* The fence that a word of the board and a value make. */
static inline struct channel_fence channel_fence_make(uint32_t board_slot, uint32_t word, uint64_t value) {
    return (struct channel_fence){(uint64_t)board_slot << 32 | (word + 1), value};
}

/* The entry of a slot, in the producer's page. Metadata lies behind it. */
static inline const struct proto_channel_entry *channel_slot(const struct channel_view *view, uint64_t slot) {
    return (const struct proto_channel_entry *)(const void *)((const char *)view->producer +
                                                              view->slots_offset + slot * view->slot_stride);
}

/* Adds a word to sleep on, with the value that it has now (total). Returns the whole value. */
uint64_t channel_sleep_add(struct channel_sleep *sleep, const _Atomic uint64_t *word);

#endif
