/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of the simulated processes. A store waits in its actor's buffer. The actor's own loads find it
 * there; to others it is visible once it has left the buffer:
 *
 *   a plain store may leave before earlier stores to other words
 *   an ordered or total store leaves after all earlier ones
 *   a total load waits until the last total store of its actor has left
 *
 * Each access is checked: an actor loads from the pages and the frames alone, and stores into its own page,
 * the producer also into frames.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/channel/world.h"

#define WAITING_MAX  24u
#define TOTAL_STALLS 8u /* times as often as at others */

struct waiting {
    _Atomic uint64_t *word;
    uint64_t value;
    enum word_order order;
};

static struct buffer {
    unsigned count;
    struct waiting stores[WAITING_MAX];
} buffers[SIM_ACTORS];

/* The pages, and the frames behind the last one. */
static struct {
    char *start;
    uint64_t size_bytes;
} ranges[SIM_ACTORS + 1];
#define RANGE_FRAMES SIM_ACTORS

static void *make_range(unsigned number, uint64_t size_bytes) {
    free(ranges[number].start);
    ranges[number].start = aligned_alloc(PROTO_CHANNEL_PAGE, size_bytes);
    ranges[number].size_bytes = size_bytes;
    if (ranges[number].start == NULL)
        abort();
    return memset(ranges[number].start, 0, size_bytes);
}

void memory_make(const struct proto_channel_capacities *capacities) {
    const struct proto_channel_consumer *consumers[PROTO_CHANNEL_CONSUMERS_MAX] = {0};

    memset(buffers, 0, sizeof buffers);
    world.roll = make_range(SIM_DAEMON, proto_channel_roll_bytes());
    world.roll->magic = PROTO_CHANNEL_MAGIC;
    world.roll->capacities = *capacities;
    world.producer = make_range(PROTO_CHANNEL_PRODUCER, proto_channel_producer_bytes(capacities));
    for (unsigned i = 0; i < capacities->n_consumers; i++) {
        world.consumers[i] = make_range(i + 1, proto_channel_consumer_bytes(capacities));
        consumers[i] = world.consumers[i];
    }
    world.frames = make_range(
        RANGE_FRAMES, proto_channel_round(capacities->n_slots * SIM_FRAME_WORDS * 8, PROTO_CHANNEL_PAGE));
    MUST(channel_view_init(&world.view, world.roll, world.producer, consumers, capacities),
         "the roll is valid");
}

static bool is_in(unsigned number, const _Atomic uint64_t *word) {
    const char *place = (const char *)word;
    return ranges[number].start != NULL && place >= ranges[number].start &&
           place + sizeof *word <= ranges[number].start + ranges[number].size_bytes &&
           (uintptr_t)place % 8 == 0;
}

static void check_load(const _Atomic uint64_t *word) {
    for (unsigned number = 0; number <= RANGE_FRAMES; number++)
        if (is_in(number, word))
            return;
    MUST(false, "an access lies in the pages");
}

static void check_store(unsigned actor, const _Atomic uint64_t *word) {
    MUST(is_in(actor, word) || (actor == PROTO_CHANNEL_PRODUCER && is_in(RANGE_FRAMES, word)),
         "a process writes into its own page");
}

/* Moves a waiting store into memory. */
static void flush(struct buffer *buffer, unsigned i) {
    atomic_store_explicit(buffer->stores[i].word, buffer->stores[i].value, memory_order_relaxed);
    buffer->count--;
    memmove(&buffer->stores[i], &buffer->stores[i + 1], (buffer->count - i) * sizeof buffer->stores[0]);
    world.tally->flushes++;
}

void memory_drain(unsigned number) {
    while (buffers[number].count > 0)
        flush(&buffers[number], 0);
}

static bool may_flush(const struct buffer *buffer, unsigned i) {
    if (buffer->stores[i].order != WORD_PLAIN)
        return i == 0;
    for (unsigned earlier = 0; earlier < i; earlier++)
        if (buffer->stores[earlier].word == buffer->stores[i].word)
            return false;
    return true;
}

void memory_flush_any(void) {
    unsigned number = draw(SIM_ACTORS);

    for (unsigned n = 0; n < SIM_ACTORS; n++, number = (number + 1) % SIM_ACTORS) {
        struct buffer *buffer = &buffers[number];
        if (buffer->count == 0)
            continue;
        unsigned i = draw(buffer->count);
        flush(buffer, may_flush(buffer, i) ? i : 0);
        return;
    }
}

/* The running actor may lose its turn. At total accesses, where processes meet, it often stalls. */
static void may_switch(enum word_order order) {
    actor_count_access();
    if (draw(4096) < world.stall_chance * (order == WORD_TOTAL ? TOTAL_STALLS : 1))
        actor_stall();
    else if (draw(256) < world.switch_chance)
        actor_yield();
}

uint64_t channel_hook_load(const _Atomic uint64_t *word, enum word_order order) {
    struct buffer *buffer = &buffers[actor_running()];

    check_load(word);
    may_switch(order);
    if (order == WORD_TOTAL)
        for (unsigned n = buffer->count; n > 0; n--)
            if (buffer->stores[n - 1].order == WORD_TOTAL) {
                for (; n > 0; n--)
                    flush(buffer, 0);
                break;
            }
    for (unsigned n = buffer->count; n > 0; n--)
        if (buffer->stores[n - 1].word == word)
            return buffer->stores[n - 1].value;
    return memory_value(word);
}

void channel_hook_store(_Atomic uint64_t *word, uint64_t value, enum word_order order) {
    unsigned actor = actor_running();
    struct buffer *buffer = &buffers[actor];

    check_store(actor, word);
    may_switch(order);
    if (buffer->count == WAITING_MAX)
        flush(buffer, 0);
    buffer->stores[buffer->count++] = (struct waiting){word, value, order};
}
