/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon of the simulation. It writes the roll, starts processes and ends them. */
#include "tests/channel/world.h"

static unsigned n_places(void) {
    return (unsigned)world.view.capacities.n_consumers + 1;
}

/* Writes a place's new state. When this returns, all can see it. */
static void set_state(unsigned place, enum proto_channel_state state) {
    const struct place *known = &world.places[place];

    model_changes_begin(SIM_DAEMON);
    actor_call();
    word_store(&world.roll->places[place].state,
               proto_channel_state_word(state, known->queue, known->processes), WORD_ORDERED);
    word_store(&world.roll->changes, memory_value(&world.roll->changes) + 1, WORD_TOTAL);
    memory_drain(SIM_DAEMON);
    world.places[place].state = state;
    actor_wake(&world.roll->changes);
    if (!actor_is_alive(place)) /* a process that died leaves the waking to the daemon */
        world.changing &= ~(1u << place);
    model_changes_end(SIM_DAEMON);
}

/* A process takes the place: the first one, a successor, or one that comes after another has left. */
static void join(unsigned place) {
    struct place *known = &world.places[place];

    world.what = "join";
    if (known->state == PROTO_CHANNEL_VACANT) {
        if (place == PROTO_CHANNEL_PRODUCER)
            world.tally->producer_successors++;
        else
            world.tally->consumer_successors++;
    }
    if (known->state == PROTO_CHANNEL_LEFT && place != PROTO_CHANNEL_PRODUCER) {
        known->queue++;
        known->is_admitted = false;
        known->least = memory_value(&world.producer->head) + 1;
        known->most = UINT64_MAX;
    }
    known->processes++;
    known->is_joining = true;
    known->has_left = false;
    world.tally->joins++;
    set_state(place, PROTO_CHANNEL_TAKEN);
    known->is_joining = false;
    model_joins(place);
    bool is_liar = world.has_liar && world.liar == place;
    actor_start(place, is_liar                           ? liar_program
                       : place == PROTO_CHANNEL_PRODUCER ? producer_program
                                                         : consumer_program);
}

static void kill_process(unsigned place) {
    world.what = "death";
    if (place == PROTO_CHANNEL_PRODUCER)
        world.tally->producer_deaths++;
    else
        world.tally->consumer_deaths++;
    actor_kill(place);
    model_died(place);
    set_state(place, PROTO_CHANNEL_DYING);
}

/* The process has left, or an operator gives its place up. */
static void leave(unsigned place) {
    world.what = "leave";
    world.places[place].has_left = true;
    set_state(place, PROTO_CHANNEL_LEFT);
}

/* Looks at one place. Returns whether something is to be done there before all can come to rest. */
static bool attend(unsigned place) {
    switch (world.places[place].state) {
    case PROTO_CHANNEL_EMPTY:
        if (world.is_ending || draw(4) == 0)
            join(place);
        return true;
    case PROTO_CHANNEL_TAKEN:
        if (!actor_is_alive(place)) {
            leave(place);
            return true;
        }
        if (!world.is_ending && draw(4096) < world.death_chance)
            kill_process(place);
        return false;
    case PROTO_CHANNEL_DYING:
        if (world.is_ending || draw(4) == 0)
            set_state(place, PROTO_CHANNEL_VACANT);
        return true;
    case PROTO_CHANNEL_VACANT:
        if (!world.is_ending && place != PROTO_CHANNEL_PRODUCER && draw(16) == 0) {
            world.tally->operator_leaves++;
            leave(place);
        } else if (world.is_ending || draw(4) == 0)
            join(place);
        return true;
    case PROTO_CHANNEL_LEFT:
        if (!world.is_ending && draw(8) == 0)
            join(place);
        return false;
    }
    return false;
}

void daemon_program(unsigned number) {
    (void)number;
    for (;;) {
        bool has_work = false;
        if (world.is_ending) {
            for (unsigned place = 0; place < n_places(); place++)
                has_work |= attend(place);
            if (!has_work)
                return;
        } else
            attend(draw(n_places()));
        actor_yield();
    }
}
