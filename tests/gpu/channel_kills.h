/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GPU_CHANNEL_KILLS_H
#define TESTS_GPU_CHANNEL_KILLS_H
/* The notes that the parts of channel_kills share, and the parts. See channel_kills.c. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <gpupool/channel.h>

#define CHANNEL_KILLS_CONSUMERS 3u
#define CHANNEL_KILLS_SLOTS     8u
#define CHANNEL_KILLS_FAILED    1 /* exit statuses of parts: the text is on stderr */
#define CHANNEL_KILLS_WRONG     3

/* The state of an element in one consumer's place, as its processes have noted it. */
enum element_note {
    NOTE_NONE,
    NOTE_RECEIVED,
    NOTE_RELEASING, /* the call may have come to its end, or not */
    NOTE_RELEASED,
    NOTE_LOST, /* the producer died before its GPU work on it was done: LOST */
};

/* In memory that outlives all parts. A part writes its own words alone. */
struct channel_notes {
    _Atomic uint64_t sent; /* elements, by all producers */
    struct consumer_notes {
        _Atomic uint64_t received, again, checked;
    } consumers[CHANNEL_KILLS_CONSUMERS];
    /* [consumer * (elements + 1) + sequence]: enum element_note */
    _Atomic uint8_t elements[];
};

struct channel_part {
    const char *socket, *name;
    bool is_of_device;
    uint64_t elements;
    struct channel_notes *notes;
};

/* The word of an element's frame. */
static inline uint64_t channel_kills_word(uint64_t sequence, uint64_t i) {
    return (sequence << 16 | i) * UINT64_C(0x9e3779b97f4a7c15);
}

/* Each plays a place until the last element, and returns an exit status. */
int channel_kills_produce(const struct channel_part *part);
int channel_kills_consume(const struct channel_part *part, unsigned place);

#endif
