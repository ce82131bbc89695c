/* SPDX-License-Identifier: Apache-2.0 */
/* The program in a consumer place. It holds a few elements, and releases them in any order. */
#include <string.h>

#include "tests/channel/world.h"

struct program {
    struct receiver receiver;
    unsigned number, n_held, most_held;
    struct receiver_element held[SIM_SLOTS];
};

static void give_up(void) {
    MUST(world.has_liar, "sound pages are not taken for broken ones");
    world.tally->lies_found++;
    actor_end();
}

static void wake_producer(const struct program *program) {
    actor_wake(&world.consumers[program->number - 1]->releases);
}

/* The sequence of an element of a liar is any number. */
static void check_element(const struct program *program, const struct receiver_element *element) {
    uint64_t stamp;

    MUST(element->slot < world.view.capacities.n_slots &&
             element->size_bytes <= world.view.capacities.slot_bytes &&
             element->metadata_bytes <= world.view.capacities.metadata_bytes,
         "an element is within the capacities");
    memcpy(&stamp, element->metadata,
           element->metadata_bytes < sizeof stamp ? element->metadata_bytes : sizeof stamp);
    if (world.has_liar)
        return;
    model_check_frame(element->sequence);
    MUST(element->metadata_bytes < sizeof stamp || stamp == world.elements[element->sequence].stamp,
         "metadata is as it was sent");
    (void)program;
}

static enum receiver_result receive(struct program *program) {
    struct receiver_element element;
    bool wakes;

    world.what = "receive";
    actor_call();
    model_changes_begin(program->number);
    world.places[program->number].is_inside = true;
    enum receiver_result result = receiver_next(&program->receiver, &element, &wakes);
    world.places[program->number].is_inside = false;
    if (result == RECEIVER_OK) {
        if (!world.has_liar)
            model_received(program->number, &element);
        MUST(program->n_held < world.view.capacities.n_slots,
             "a place holds no more elements than there are slots");
        program->held[program->n_held++] = element;
    }
    if (wakes) {
        world.tally->given_up++;
        wake_producer(program);
    }
    model_changes_end(program->number);
    if (result == RECEIVER_PROTOCOL)
        give_up();
    if (result == RECEIVER_OK)
        check_element(program, &element);
    world.tally->overruns += result == RECEIVER_OVERRUN;
    world.tally->ended += result == RECEIVER_ENDED;
    return result;
}

static void release(struct program *program) {
    unsigned i = draw(3) == 0 ? draw(program->n_held) : 0;
    struct receiver_element element = program->held[i];
    struct channel_fence fence = {0};
    bool wakes;

    world.what = "release";
    check_element(program, &element);
    world.tally->out_of_order += i > 0;
    program->n_held--;
    memmove(&program->held[i], &program->held[i + 1], (program->n_held - i) * sizeof program->held[0]);
    if (draw(3) != 0)
        fence = channel_fence_make(draw(PROTO_BOARD_SLOTS), draw(PROTO_BOARD_WORDS), ++world.last_stamp);
    if (!world.has_liar)
        model_release_begins(program->number, element.sequence, fence);
    actor_call();
    model_changes_begin(program->number);
    enum receiver_result result = receiver_release(&program->receiver, element.slot, fence, &wakes);
    MUST(result == RECEIVER_OK, "what is held can be released");
    if (!world.has_liar)
        model_released(program->number, element.sequence);
    if (wakes)
        wake_producer(program);
    model_changes_end(program->number);
}

/* Nothing is held. */
static void sleep_until_sent(struct program *program) {
    struct channel_sleep sleep;

    world.what = "sleep of a consumer";
    actor_call();
    receiver_sleep_begin(&program->receiver, &sleep);
    enum receiver_result result = receive(program);
    if (result == RECEIVER_EMPTY || result == RECEIVER_ENDED) {
        world.tally->consumer_sleeps++;
        actor_sleep(&sleep);
    }
    actor_call();
    receiver_sleep_end(&program->receiver);
}

void consumer_program(unsigned number) {
    static struct program programs[SIM_PLACES];
    struct program *program = &programs[number];
    bool wakes;

    actor_call();
    model_changes_begin(number);
    *program = (struct program){.number = number};
    program->most_held = 1 + draw((unsigned)world.view.capacities.n_slots);
    enum receiver_result result =
        receiver_init(&program->receiver, &world.view, number, world.consumers[number - 1], &wakes);
    world.places[number].is_inside = false;
    if (result != RECEIVER_OK)
        give_up();
    if (wakes)
        wake_producer(program);
    model_changes_end(number);
    while (world.is_ending || program->n_held > 0 || draw(96) != 0) {
        if (program->n_held >= program->most_held || (program->n_held > 0 && draw(2) == 0))
            release(program);
        else if (receive(program) != RECEIVER_OK) {
            if (program->n_held > 0)
                release(program);
            else
                sleep_until_sent(program);
        }
        actor_yield();
    }
    /* The elements that are still to be received once more hold the place's slots no longer. */
    world.what = "a consumer leaves";
    world.places[number].has_left = true;
    world.tally->leaves++;
}
