/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model of a channel: each element with its contents, and for each place the next sequence that it
 * receives and the elements that it holds. A call is known when it begins, and known to be over when it has
 * returned. After a death the model reads from the page how far the process came.
 */
#include "tests/channel/world.h"

static unsigned n_consumers(void) {
    return (unsigned)world.view.capacities.n_consumers;
}

static bool may_drop(void) {
    return world.view.capacities.policy == PROTO_CHANNEL_DROP_OLDEST;
}

void model_look_for_queue(unsigned number) {
    const struct proto_channel_queue *queue = &world.producer->queues[number - 1];
    struct place *place = &world.places[number];

    if (place->is_admitted || memory_value(&queue->number) != place->queue)
        return;
    place->is_admitted = true;
    place->begins = place->next = memory_value(&queue->begins);
    world.tally->admissions++;
    MUST(place->begins >= place->least, "a queue begins with what is sent after the place was taken");
    MUST(place->begins <= place->most, "a queue has all that is sent after the place was taken");
}

/* --- processes --- */

void model_joins(unsigned number) {
    struct place *place = &world.places[number];

    if (number == PROTO_CHANNEL_PRODUCER) {
        for (uint32_t slot = 0; slot < SIM_SLOTS; slot++)
            world.given_back[slot] = (struct channel_fence){0};
        return;
    }
    if (place->most > world.begun + 1)
        place->most = world.begun + 1;
    place->n_again = place->next_again = 0;
    place->is_inside = true; /* of its first call */
    if (world.has_liar)
        return;
    model_look_for_queue(number);
    for (uint64_t sequence = place->begins; place->is_admitted && sequence < place->next; sequence++)
        if (world.elements[sequence].need[number] == NEED_HELD) {
            MUST(place->n_again < world.view.capacities.n_slots,
                 "a place holds no more than there are slots");
            place->again[place->n_again++] = sequence;
        }
}

static void producer_died(void) {
    uint64_t head = memory_value(&world.producer->head);

    if (head == world.sent + 1 && head == world.begun)
        model_sent(world.elements[head].slot);
    else if (world.begun > world.sent) {
        /* Its work was behind the fences of the slot, and is over: they are not needed any more. */
        uint32_t slot = world.elements[world.begun].slot;
        if (memory_value(&channel_slot(&world.view, slot)->sequence) == world.begun)
            world.slot_sequence[slot] = 0;
        world.begun = world.sent;
        world.tally->unsent++;
    }
    MUST(head == world.sent, "nothing is sent before its call");
    for (uint32_t slot = 0; slot < SIM_SLOTS; slot++)
        world.is_loaned[slot] = false;
}

void model_died(unsigned number) {
    struct place *place = &world.places[number];

    place->is_inside = false;
    if (world.has_liar)
        return;
    if (number == PROTO_CHANNEL_PRODUCER) {
        producer_died();
        return;
    }
    model_look_for_queue(number);
    world.tally->deaths_before_admission += !place->is_admitted;
    if (!place->is_admitted)
        return;
    const struct proto_channel_consumer *page = world.consumers[number - 1];
    uint64_t received = memory_value(&page->received);
    if (received > place->next) { /* in its last call */
        MUST(may_drop() || received == place->next + 1, "an element is received after the one before it");
        world.elements[received - 1].need[number] = NEED_HELD;
        place->next = received;
    }
    for (uint64_t sequence = place->begins; sequence < place->next; sequence++) {
        struct element *element = &world.elements[sequence];
        if (element->need[number] == NEED_RELEASING)
            element->need[number] =
                memory_value(&page->marks[element->slot].released) == sequence ? NEED_RELEASED : NEED_HELD;
    }
}

/* --- elements --- */

void model_send_begins(uint32_t slot, const struct sender_element *element, uint64_t stamp) {
    if (world.has_liar)
        return;
    world.begun = world.sent + 1;
    world.elements[world.begun] = (struct element){.slot = slot,
                                                   .stamp = stamp,
                                                   .size_bytes = element->size_bytes,
                                                   .metadata_bytes = element->metadata_bytes,
                                                   .session = element->session,
                                                   .fence = element->fence};
}

void model_sent(uint32_t slot) {
    world.sent++;
    world.tally->sends++;
    world.is_loaned[slot] = false;
    world.slot_sequence[slot] = world.sent;
    world.given_back[slot] = (struct channel_fence){0};
}

void model_received(unsigned number, const struct receiver_element *received) {
    struct place *place = &world.places[number];
    uint64_t sequence = received->sequence;

    model_look_for_queue(number);
    MUST(place->is_admitted, "a place receives after its admission");
    MUST(sequence >= 1 && sequence <= memory_value(&world.producer->head),
         "an element is sent before it is received");
    struct element *element = &world.elements[sequence];
    MUST(element->slot == received->slot && element->size_bytes == received->size_bytes &&
             element->metadata_bytes == received->metadata_bytes && element->session == received->session &&
             element->fence.word == received->fence.word && element->fence.value == received->fence.value,
         "an element has what it was sent with");
    if (received->is_again) {
        MUST(place->next_again < place->n_again && place->again[place->next_again] == sequence,
             "what a dead process held is received once more, in order");
        place->next_again++;
        world.tally->again++;
        return;
    }
    MUST(place->next_again == place->n_again, "what a dead process held is received once more");
    MUST(sequence == place->next + received->missed, "elements are received in order");
    MUST(received->missed == 0 || (may_drop() && sequence <= memory_value(&world.producer->floor)),
         "what is missed was dropped");
    MUST(element->need[number] == NEED_OWED, "an element is received once");
    element->need[number] = NEED_HELD;
    place->next = sequence + 1;
    world.tally->receives++;
    world.tally->missed += received->missed;
}

void model_check_frame(uint64_t sequence) {
    const struct element *element = &world.elements[sequence];

    actor_call();
    for (unsigned i = 0; i < SIM_FRAME_WORDS; i++)
        MUST(word_load(&world.frames[element->slot * SIM_FRAME_WORDS + i], WORD_PLAIN) == element->stamp,
             "a frame stays as it was sent while a place holds it");
}

void model_release_begins(unsigned number, uint64_t sequence, struct channel_fence fence) {
    struct element *element = &world.elements[sequence];

    MUST(element->need[number] == NEED_HELD, "what is released is held");
    element->need[number] = NEED_RELEASING;
    element->released[number] = fence;
}

void model_released(unsigned number, uint64_t sequence) {
    world.elements[sequence].need[number] = NEED_RELEASED;
    world.tally->releases++;
}

/* --- sleep --- */

void model_changes_begin(unsigned actor) {
    world.changing |= 1u << actor;
}

static void check_sleeper(unsigned number) {
    const struct place *place = &world.places[number];
    uint64_t head = memory_value(&world.producer->head);

    if (place->state == PROTO_CHANNEL_TAKEN && actor_is_asleep(number) && place->is_admitted)
        MUST(place->next == head + 1 || memory_value(&world.producer->floor) > head,
             "a consumer does not sleep beside an element");
}

void model_changes_end(unsigned actor) {
    const _Atomic uint64_t *word = actor == SIM_DAEMON               ? &world.roll->changes
                                   : actor == PROTO_CHANNEL_PRODUCER ? &world.producer->head
                                                                     : &world.consumers[actor - 1]->releases;

    world.changing &= ~(1u << actor);
    if (world.has_liar)
        return;
    MUST(!actor_missed_wake(word), "a change of a word wakes its sleepers");
    if (world.changing != 0)
        return;
    for (unsigned number = 1; number <= n_consumers(); number++)
        check_sleeper(number);
    if (!actor_is_asleep(PROTO_CHANNEL_PRODUCER) || world.producer_rests)
        return;
    for (uint32_t slot = 0; slot < world.view.capacities.n_slots; slot++)
        MUST(!slots_is_free(slot), "a producer does not sleep beside a free slot");
}

/* --- rest --- */

void model_check_rest(void) {
    uint64_t head = memory_value(&world.producer->head);

    if (world.places[PROTO_CHANNEL_PRODUCER].state == PROTO_CHANNEL_TAKEN)
        MUST(world.producer_rests, "a producer does not sleep beside a free slot");
    for (unsigned number = 1; number <= n_consumers(); number++) {
        struct place *place = &world.places[number];
        if (place->state == PROTO_CHANNEL_LEFT)
            continue;
        MUST(place->state == PROTO_CHANNEL_TAKEN && actor_is_alive(number), "each place has a process");
        model_look_for_queue(number);
        if (!place->is_admitted) {
            MUST(place->most == head + 1, "a queue is admitted before the next element is sent");
            continue;
        }
        MUST(place->next == head + 1 || memory_value(&world.producer->floor) > head,
             "a consumer does not sleep beside an element");
        MUST(place->next_again == place->n_again, "what a dead process held is received once more");
        for (uint64_t sequence = place->begins; sequence <= head; sequence++)
            MUST(world.elements[sequence].need[number] == NEED_RELEASED ||
                     (may_drop() && world.elements[sequence].need[number] == NEED_OWED),
                 "each element is received, or missed");
    }
    for (uint32_t slot = 0; slot < world.view.capacities.n_slots; slot++)
        MUST(may_drop() || slots_is_free(slot), "at rest each slot is free");
    world.tally->ends++;
}
