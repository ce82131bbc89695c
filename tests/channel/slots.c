/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model's judgement of slots. A slot that is loaned is needed by no place. A slot that all places had let
 * go of before a search began is found, and no element is dropped beside it. A loan names the fences of all
 * releases that came before the search.
 */
#include "tests/channel/world.h"

static struct {
    bool is_free[SIM_SLOTS];
    uint32_t released[SIM_SLOTS]; /* a bit for each place that had released the slot's element */
    uint64_t floor;
} before;

static unsigned n_consumers(void) {
    return (unsigned)world.view.capacities.n_consumers;
}

static bool may_drop(void) {
    return world.view.capacities.policy == PROTO_CHANNEL_DROP_OLDEST;
}

/* Whether a place has let go of an element, and the producer can see it. */
static bool has_let_go(unsigned number, uint64_t sequence) {
    const struct place *place = &world.places[number];
    const struct element *element = &world.elements[sequence];
    const struct proto_channel_mark *mark = &world.consumers[number - 1]->marks[element->slot];

    if (place->state == PROTO_CHANNEL_LEFT && !place->is_joining)
        return true;
    model_look_for_queue(number);
    if (!place->is_admitted || sequence < place->begins || element->need[number] == NEED_RELEASED)
        return true;
    if (!may_drop() || sequence >= memory_value(&world.producer->floor) || element->need[number] != NEED_OWED)
        return false;
    /* A process inside of a call may have read an earlier floor, and claim the element for a moment. A dead
     * one may have left a claim. */
    return !place->is_inside && (actor_is_alive(number) || memory_value(&mark->taken) != sequence);
}

bool slots_is_free(uint32_t slot) {
    uint64_t sequence = world.slot_sequence[slot];

    if (world.is_loaned[slot])
        return false;
    for (unsigned number = 1; sequence != 0 && number <= n_consumers(); number++)
        if (!has_let_go(number, sequence))
            return false;
    return true;
}

void slots_search_begins(uint64_t floor) {
    before.floor = floor;
    for (uint32_t slot = 0; !world.has_liar && slot < world.view.capacities.n_slots; slot++) {
        const struct element *element = &world.elements[world.slot_sequence[slot]];
        before.is_free[slot] = slots_is_free(slot);
        before.released[slot] = 0;
        for (unsigned number = 1; number <= n_consumers(); number++)
            if (world.slot_sequence[slot] != 0 && element->need[number] == NEED_RELEASED)
                before.released[slot] |= 1u << number;
    }
}

static bool has_fence(const struct sender_loan *loan, struct channel_fence fence) {
    for (uint32_t i = 0; i < loan->n_fences; i++)
        if (loan->fences[i].word == fence.word && loan->fences[i].value == fence.value)
            return true;
    return fence.word == 0;
}

/* The place does not read the slot any more. */
static void check_unused(unsigned number, uint64_t sequence) {
    struct place *place = &world.places[number];
    const struct element *element = &world.elements[sequence];
    const struct proto_channel_consumer *page = world.consumers[number - 1];
    const struct proto_channel_mark *mark = &page->marks[element->slot];

    if (place->state == PROTO_CHANNEL_LEFT || place->has_left)
        return;
    model_look_for_queue(number);
    if (!place->is_admitted || sequence < place->begins)
        return;
    MUST(element->need[number] != NEED_HELD, "a slot is not reused while a place holds it");
    MUST(element->need[number] != NEED_OWED ||
             (may_drop() && sequence < memory_value(&world.producer->floor)),
         "a slot is not reused while a place is to receive it");
    MUST(memory_value(&page->received) <= sequence || memory_value(&mark->taken) != sequence ||
             memory_value(&mark->released) == sequence || element->need[number] == NEED_RELEASING,
         "a slot is not reused while a place holds it");
}

static void check_fences(const struct sender_loan *loan, uint64_t sequence) {
    const struct element *element = &world.elements[sequence];
    unsigned n_known = 0;

    MUST(has_fence(loan, world.given_back[loan->slot]),
         "a loan is behind the fence of one that was given back");
    for (unsigned number = 1; sequence != 0 && number <= n_consumers(); number++)
        if ((before.released[loan->slot] & 1u << number) != 0)
            MUST(has_fence(loan, element->released[number]), "a loan is behind the fences of all releases");
    for (uint32_t i = 0; i < loan->n_fences; i++) {
        bool is_known = loan->fences[i].value == world.given_back[loan->slot].value;
        for (unsigned number = 1; sequence != 0 && number <= n_consumers(); number++)
            is_known |= element->need[number] >= NEED_RELEASING &&
                        element->released[number].value == loan->fences[i].value;
        n_known += is_known;
    }
    MUST(n_known == loan->n_fences, "a loan is behind fences that were left");
}

static bool any_was_free(void) {
    for (uint32_t slot = 0; slot < world.view.capacities.n_slots; slot++)
        if (before.is_free[slot])
            return true;
    return false;
}

void slots_loaned(const struct sender_loan *loan, uint64_t floor) {
    world.tally->loans++;
    MUST(loan->slot < world.view.capacities.n_slots && loan->n_fences <= n_consumers() + 1,
         "a loan is a slot");
    if (world.has_liar)
        return;
    uint64_t sequence = world.slot_sequence[loan->slot];
    MUST(!world.is_loaned[loan->slot], "a slot is loaned once");
    for (unsigned number = 1; sequence != 0 && number <= n_consumers(); number++)
        check_unused(number, sequence);
    check_fences(loan, sequence);
    if (floor > before.floor) {
        world.tally->drops++;
        MUST(!any_was_free(), "no element is dropped beside a free slot");
    }
    world.is_loaned[loan->slot] = true;
}

void slots_none_found(void) {
    MUST(world.has_liar || !any_was_free(), "a free slot is found");
}
