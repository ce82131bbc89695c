/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A broken program in a place. It writes anything into its page: values that come near to right ones, and in
 * the producer place elements of which most numbers are right. How wild it is, is drawn anew for each
 * process.
 */
#include "tests/channel/world.h"

static uint64_t draw_value(void) {
    uint64_t head = memory_value(&world.producer->head);

    switch (draw(7)) {
    case 0:
        return random_next(&world.random_state);
    case 1:
        return UINT64_MAX - draw(3);
    case 2:
        return head + draw(40);
    case 3:
        return (uint64_t)draw(PROTO_BOARD_SLOTS + 10) << 32 | draw(PROTO_BOARD_WORDS + 10);
    case 4:
        return draw((unsigned)world.view.capacities.n_slots + 2);
    default:
        return head > 4 ? head - draw(4) : draw(4);
    }
}

/* A number that is right most of the time. */
static uint64_t draw_near(uint64_t right) {
    return draw(16) == 0 ? draw_value() : right;
}

static void write_lie(struct proto_channel_entry *entry, uint64_t sequence, uint64_t slot) {
    word_store(&entry->sequence, draw_near(sequence), WORD_PLAIN);
    word_store(&entry->slot, draw_near(slot), WORD_PLAIN);
    word_store(&entry->size_bytes, draw_near(0), WORD_PLAIN);
    word_store(&entry->metadata_bytes, draw_near(0), WORD_PLAIN);
    word_store(&entry->fence.word, draw_near(0), WORD_PLAIN);
}

/* Admits all queues, and sends an element. */
static void send_lie(uint64_t *sequence) {
    uint64_t slot = draw((unsigned)world.view.capacities.n_slots);
    struct proto_channel_producer *page = world.producer;

    for (unsigned i = 0; i < world.view.capacities.n_consumers; i++) {
        uint64_t queue = proto_channel_queue_of(memory_value(&world.roll->places[i + 1].state));
        if (memory_value(&page->queues[i].number) == queue)
            continue;
        word_store(&page->queues[i].begins, draw_near(*sequence + 1), WORD_PLAIN);
        word_store(&page->queues[i].number, queue, WORD_ORDERED);
    }
    ++*sequence;
    write_lie(&page->ring[*sequence & world.view.ring_mask], *sequence, slot);
    write_lie((struct proto_channel_entry *)(void *)((char *)page + world.view.slots_offset +
                                                     slot * world.view.slot_stride),
              *sequence, slot);
    if (world.view.capacities.policy == PROTO_CHANNEL_DROP_OLDEST && draw(3) == 0)
        word_store(&page->floor, draw_near(*sequence), WORD_TOTAL);
    word_store(&page->head, draw_near(*sequence), WORD_TOTAL);
}

/* Marks of a consumer that are nearly right. */
static void release_lie(unsigned number) {
    struct proto_channel_consumer *page = world.consumers[number - 1];
    unsigned slot = draw((unsigned)world.view.capacities.n_slots);
    uint64_t sequence = world.slot_sequence[slot] > 0 ? world.slot_sequence[slot] : 1;

    word_store(&page->marks[slot].taken, draw_near(sequence), WORD_TOTAL);
    word_store(&page->received, draw_near(sequence + 1), WORD_ORDERED);
    word_store(&page->marks[slot].fence.word, draw_near(0), WORD_PLAIN);
    word_store(&page->marks[slot].released, draw_near(sequence), WORD_ORDERED);
}

/* Any word of the page; most often of its used part, or of the part that all else depends on. */
static void write_anything(_Atomic uint64_t *page, unsigned n_words, unsigned n_used) {
    unsigned word = draw(3) == 0 ? draw(2) * 8 : draw(draw(8) == 0 ? n_words : n_used);

    word_store(&page[word], draw_value(), draw(2) == 0 ? WORD_PLAIN : WORD_TOTAL);
}

void liar_program(unsigned number) {
    static const unsigned wildnesses[] = {1, 8, 64, 1024};
    const struct proto_channel_capacities *capacities = &world.view.capacities;
    unsigned wildness = wildnesses[draw(4)];
    uint64_t sequence = memory_value(&world.producer->head);

    world.tally->liars++;
    while (!world.is_ending) {
        actor_call();
        if (number == PROTO_CHANNEL_PRODUCER) {
            if (draw(wildness) == 0)
                write_anything(&world.producer->head,
                               (unsigned)(proto_channel_producer_bytes(capacities) / 8),
                               (unsigned)((proto_channel_slots_offset(capacities) +
                                           capacities->n_slots * proto_channel_slot_stride(capacities)) /
                                          8));
            send_lie(&sequence);
            actor_wake(&world.producer->head);
        } else {
            struct proto_channel_consumer *page = world.consumers[number - 1];
            if (draw(wildness) == 0)
                write_anything(&page->received, (unsigned)(proto_channel_consumer_bytes(capacities) / 8),
                               (unsigned)((sizeof *page + capacities->n_slots * sizeof page->marks[0]) / 8));
            release_lie(number);
            actor_wake(&page->releases);
        }
        for (unsigned n = draw(24); n > 0; n--) /* the others need some turns to fall for it */
            actor_yield();
        if (draw(8) == 0)
            sequence = memory_value(&world.producer->head);
    }
}
