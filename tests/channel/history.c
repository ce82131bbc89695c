/* SPDX-License-Identifier: Apache-2.0 */
/* One seed's history: a channel, its processes for a number of steps, and then until all come to rest. */
#include <string.h>

#include "tests/channel/world.h"

#define STEPS_LEAST 300u
#define STEPS_MORE  6000u
#define REST_STEPS                                                                                           \
    UINT64_C(3000000) /* a history of the largest channel came to rest within a tenth of that */
#define LIARS 6u      /* one history in so many has a broken process */

struct world world;

static struct proto_channel_capacities draw_capacities(void) {
    static const enum proto_channel_policy policies[] = {PROTO_CHANNEL_WAIT, PROTO_CHANNEL_DROP_OLDEST,
                                                         PROTO_CHANNEL_DROP_OLDEST, PROTO_CHANNEL_FAIL};

    return (struct proto_channel_capacities){
        .slot_bytes = 1 + draw(1000),
        .n_slots = PROTO_CHANNEL_SLOTS_MIN + draw(draw(8) == 0 ? SIM_SLOTS - 1 : 4),
        .metadata_bytes = draw(2) == 0 ? 0 : draw(SIM_METADATA_MAX + 1),
        .n_consumers = 1 + draw(draw(16) == 0 ? PROTO_CHANNEL_CONSUMERS_MAX : 3),
        .policy = policies[draw(4)],
    };
}

static void set_up(uint64_t seed, uint64_t steps, struct tally *tally) {
    static const unsigned chances[] = {8, 48, 128, 256};

    memset(&world, 0, sizeof world);
    world.random_state = random_seed(seed);
    world.tally = tally;
    world.limit = steps > 0 ? steps : STEPS_LEAST + draw(STEPS_MORE);
    world.switch_chance = chances[draw(4)];
    world.flush_chance = chances[draw(4)];
    world.death_chance = draw(4) == 0 ? 0 : 8u << draw(5);
    world.stall_chance = draw(3) == 0 ? 0 : 2u << draw(7);
    struct proto_channel_capacities capacities = draw_capacities();
    memory_make(&capacities);
    if (draw(LIARS) == 0) {
        world.has_liar = true;
        world.liar = draw((unsigned)capacities.n_consumers + 1);
    }
    for (unsigned number = 1; number < SIM_PLACES; number++) {
        world.places[number].is_admitted = true;
        world.places[number].begins = world.places[number].next = 1;
        world.places[number].most = UINT64_MAX;
    }
}

void history(uint64_t seed, uint64_t steps, struct tally *tally, uint64_t *ret_step) {
    set_up(seed, steps, tally);
    actor_start(SIM_DAEMON, daemon_program);
    while (world.step < world.limit && actors_step())
        *ret_step = world.step;
    if (!world.has_liar) {
        world.is_ending = true;
        while (actors_step()) {
            *ret_step = world.step;
            MUST(world.step < world.limit + REST_STEPS, "all come to rest");
        }
        model_check_rest();
    }
    actors_reset();
}
