/* SPDX-License-Identifier: Apache-2.0 */
/* The program in the producer place. It loans a few slots, fills them, and sends them in any order. */
#include <string.h>

#include "tests/channel/world.h"

#define LOANS_MAX  3u
#define LAST_SENDS 12u /* of a history that ends */

struct loan {
    uint32_t slot;
    uint64_t stamp;
};

struct program {
    struct sender sender;
    struct loan loans[LOANS_MAX];
    unsigned n_loans, n_last;
};

static struct channel_fence draw_fence(void) {
    if (draw(3) == 0)
        return (struct channel_fence){0};
    return channel_fence_make(draw(PROTO_BOARD_SLOTS), draw(PROTO_BOARD_WORDS), ++world.last_stamp);
}

/* The channel is broken: the program gives up. */
static void give_up(void) {
    MUST(world.has_liar, "sound pages are not taken for broken ones");
    world.tally->lies_found++;
    actor_end();
}

static void fill(struct loan *loan) {
    actor_call();
    loan->stamp = ++world.last_stamp;
    for (unsigned i = 0; i < SIM_FRAME_WORDS; i++)
        word_store(&world.frames[loan->slot * SIM_FRAME_WORDS + i], loan->stamp, WORD_PLAIN);
}

static void drop_loan(struct program *program, unsigned i) {
    program->loans[i] = program->loans[--program->n_loans];
}

static void send(struct program *program) {
    unsigned i = draw(program->n_loans);
    struct loan loan = program->loans[i];
    char metadata[SIM_METADATA_MAX] = {0};
    struct sender_element element = {
        .size_bytes = draw((unsigned)world.view.capacities.slot_bytes + 1),
        .metadata = metadata,
        .metadata_bytes = draw((unsigned)world.view.capacities.metadata_bytes + 1),
        .fence = draw_fence(),
        .session = world.places[PROTO_CHANNEL_PRODUCER].processes,
    };
    bool wakes;

    memcpy(metadata, &loan.stamp, sizeof loan.stamp);
    drop_loan(program, i);
    world.what = "send";
    model_changes_begin(PROTO_CHANNEL_PRODUCER);
    model_send_begins(loan.slot, &element, loan.stamp);
    actor_call();
    MUST(sender_send(&program->sender, loan.slot, &element, &wakes) == SENDER_OK,
         "a loaned slot can be sent");
    model_sent(loan.slot);
    program->n_last++;
    if (wakes)
        actor_wake(&world.producer->head);
    model_changes_end(PROTO_CHANNEL_PRODUCER);
}

static void give_back(struct program *program) {
    unsigned i = draw(program->n_loans);
    struct loan loan = program->loans[i];
    struct channel_fence fence = draw_fence();

    world.what = "give back";
    drop_loan(program, i);
    world.is_loaned[loan.slot] = false;
    if (fence.word != 0)
        world.given_back[loan.slot] = fence;
    sender_give_back(&program->sender, loan.slot, fence);
    world.tally->given_back++;
}

static enum sender_result find(struct program *program) {
    struct sender_loan loan;

    world.what = "find a slot";
    slots_search_begins(program->sender.floor);
    actor_call();
    enum sender_result result = sender_find_slot(&program->sender, &loan);
    MUST(sender_is_valid(&program->sender), "the sender is valid");
    if (result == SENDER_PROTOCOL)
        give_up();
    if (result == SENDER_FULL) {
        slots_none_found();
        return result;
    }
    slots_loaned(&loan, program->sender.floor);
    program->loans[program->n_loans] = (struct loan){.slot = loan.slot};
    fill(&program->loans[program->n_loans++]);
    return result;
}

static void sleep_until_free(struct program *program) {
    struct channel_sleep sleep;

    world.what = "sleep of the producer";
    actor_call();
    sender_sleep_begin(&program->sender, &sleep);
    if (find(program) == SENDER_FULL) {
        world.tally->producer_sleeps++;
        actor_sleep(&sleep);
    }
    actor_call();
    sender_sleep_end(&program->sender);
}

static void loan(struct program *program) {
    if (find(program) != SENDER_FULL)
        return;
    world.tally->full++;
    if (world.view.capacities.policy == PROTO_CHANNEL_FAIL && !world.is_ending) {
        world.tally->failed++;
        actor_yield();
    } else if (program->n_loans == 0)
        sleep_until_free(program);
    else
        send(program);
}

static void rest(struct program *program) {
    struct channel_sleep sleep = {0};

    while (program->n_loans > 0)
        give_back(program);
    actor_call();
    channel_sleep_add(&sleep, &world.roll->changes);
    world.producer_rests = true;
    actor_sleep(&sleep);
    world.producer_rests = false;
}

void producer_program(unsigned number) {
    static struct program program;

    (void)number;
    actor_call();
    memset(&program, 0, sizeof program);
    if (sender_init(&program.sender, &world.view, world.producer) != SENDER_OK)
        give_up();
    MUST(sender_is_valid(&program.sender), "the sender is valid");
    for (unsigned n_ending = 0;;) {
        if (world.is_ending && n_ending++ == 0)
            program.n_last = 0;
        if (world.sent >= SIM_ELEMENTS || (world.is_ending && program.n_last >= LAST_SENDS))
            rest(&program);
        else if (program.n_loans < LOANS_MAX && draw(3) != 0)
            loan(&program);
        else if (program.n_loans > 0 && draw(8) != 0)
            send(&program);
        else if (program.n_loans > 0)
            give_back(&program);
        else if (!world.is_ending && draw(64) == 0)
            break;
        actor_yield();
    }
    world.what = "the producer leaves";
    world.tally->leaves++;
}
