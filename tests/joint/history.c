/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One seed's world: how large it is, what happens in it how often, and what is left when all have gone. The
 * main thread lets clients be killed and connections break, and looks whether all is well.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "client/cache/thread_cache.h"
#include "tests/joint/world.h"

struct world world;

static pthread_t program[JOINT_CLIENTS];

/* Whether worlds have what finds a fault that is not mended yet: the environment names it. */
static bool is_unmended(const char *name) {
    const char *named = getenv("JOINT_UNMENDED");
    return named != NULL && strcmp(named, name) == 0;
}

static unsigned draw_rate(unsigned most) {
    return one_in(3) ? 0 : 2 + (unsigned)random_below(most);
}

/* By draws of their own: a world in which no daemon dies is as it would be without this. The number is such that the
 * worlds in which planted faults are found that have nothing to do with deaths have none. */
static unsigned draw_deaths(void) {
    uint64_t draws = random_seed(world.seed ^ UINT64_C(1116953) << 32), draw = random_next(&draws) >> 8;

    return draw % 2 == 0 ? 0 : 20u << draw / 2 % 8;
}

static void draw_world(void) {
    world.n_clients = one_in(3) ? 1 : 1 + (unsigned)random_below(JOINT_CLIENTS);
    world.main_pool = (unsigned)random_below(JOINT_POOLS + 1);
    world.sizes = one_in(30) ? JOINT_SIZES_CROWD : (enum joint_sizes)random_below(JOINT_SIZES_CROWD);
    world.has_captures = one_in(3);
    world.has_sharing = one_in(2);
    if (world.sizes == JOINT_SIZES_CROWD) {
        world.n_clients = 1;
        world.main_pool = (unsigned)random_below(JOINT_POOLS);
        world.has_captures = false;
    }
    world.raw_clients = one_in(2) ? 8 : (unsigned)random_below(4);
    world.joins_by_clock = world.has_sharing && !is_unmended("shared_stretch");
    world.rests = 1 + (unsigned)random_below(8);
    world.n_pools = JOINT_POOLS;
    world.n_uids = one_in(4) ? 2 : 1;
    for (unsigned p = 0; p < JOINT_POOLS; p++)
        world.limits[p] = JOINT_SLOT * (2 + random_below(15));
    world.leases_limit = one_in(4) ? 8 + (uint32_t)random_below(40) : 4096;
    world.yields = 1u << random_below(6);
    world.stalls = one_in(2) ? 0 : 20 + (unsigned)random_below(200);
    world.acts = 1 + (unsigned)random_below(6);
    world.full_sockets = draw_rate(40);
    world.late_sockets = draw_rate(20);
    world.gpu_sleeps = one_in(2) ? 0 : 2u << random_below(9);
    world.daemon_sleeps = one_in(8);
    world.daemon_dies = draw_deaths();
    world.growth_waits = draw_rate(8);
    world.growth_fails = one_in(2) ? 0 : 4 + (unsigned)random_below(8);
    world.memory_fails = one_in(4) ? 3 + (unsigned)random_below(60) : 0;
    world.gpu_fails = one_in(4) ? 20 + (unsigned)random_below(200) : 0;
}

/* --- what the main thread does --- */

static bool step_is_reached(void *argument) {
    const uint64_t *step = argument;
    return world.step >= *step || world.n_over == world.n_clients;
}

/* Mostly one whose work is not done, which others may wait for. */
static struct joint_client *pick_victim(void) {
    struct joint_client *client = NULL;

    for (unsigned i = 0; i < JOINT_CLIENTS; i++) {
        client = &world.clients[random_below(world.n_clients)];
        if (world.has_sharing && !gpu_is_idle(client->number))
            break;
    }
    return client;
}

static void kill_any(void) {
    struct joint_client *client = pick_victim();

    if (!client->is_open || client->is_killed || !baton_abandon(client->number))
        return;
    client->is_killed = true;
    world.n_over++;
    for (unsigned s = 0; s < client->n_streams; s++)
        if (client->is_capturing[s]) {
            client->is_capturing[s] = false;
            gpu_end_capture(client->streams[s]);
        }
    wires_kill(client->number);
    if (world.has_sharing && !one_in(3)) { /* else it is done, after a while */
        gpu_drop(client->number);
        world.has_dropped = true;
    }
    world.tally->kills++;
}

static void break_all(void) {
    bool had[JOINT_CLIENTS] = {false};

    for (unsigned c = 0; c < world.n_clients; c++)
        had[c] = daemon_has(c);
    baton_enter_world();
    bool is_broken = daemon_break();
    baton_leave_world();
    for (unsigned c = 0; c < world.n_clients && is_broken; c++)
        world.clients[c].is_broken = world.clients[c].is_broken || had[c];
    world.tally->breaks += is_broken;
}

static bool all_are_gone(void) {
    for (unsigned c = 0; c < world.n_clients; c++)
        if (world.clients[c].is_open && !world.clients[c].is_killed)
            return false;
    return true;
}

static void direct(unsigned kills, unsigned breaks) {
    while (world.step < world.n_steps && world.n_over < world.n_clients) {
        uint64_t next = world.step + 20 + random_below(400);
        baton_wait(step_is_reached, &next, NS_FOREVER);
        world.what = "the main thread looks";
        validate_all();
        if (one_in(kills))
            kill_any();
        if (one_in(breaks))
            break_all();
        if (one_in(world.rests))
            liveness_check();
        if (world.daemon_sleeps && one_in(12)) {
            world.daemon_wakes_ns = world.now_ns + random_below(4 * NS_PER_S);
            world.tally->sleeps++;
        }
        if (one_in(64)) {
            baton_enter_world();
            daemon_trim((unsigned)random_below(world.n_pools));
            baton_leave_world();
        }
    }
    world.is_ending = true;
}

/* A buffer that was sent and not taken comes back with the clock. */
static bool no_token_holds_memory(void *argument) {
    (void)argument;
    return !daemon_has_parcels();
}

/* All end, and nothing is left. */
static void end_world(void) {
    world.what = "the end";
    world.is_calm = true;
    for (unsigned c = 0; c < world.n_clients; c++)
        if (!world.clients[c].is_killed)
            baton_join(program[c]);
    baton_rest_until(world.now_ns + 10 * NS_PER_S, 10000, no_token_holds_memory, NULL);
    must(all_are_gone() && gpu_is_empty(), "all clients are gone, and no work is left");
    for (unsigned c = 0; c < world.n_clients; c++)
        must(!daemon_has(c), "all clients are gone, and a session is left");
    for (unsigned c = 0; c < world.n_clients; c++)
        must(world.clients[c].is_killed || memory_left(c) == 0,
             "a client that has closed has freed its memory");
    daemon_check_end();
}

void history(uint64_t seed, uint64_t n_steps, struct tally *tally, uint64_t *progress_step) {
    world = (struct world){.seed = seed,
                           .random_state = random_seed(seed),
                           .now_ns = NS_PER_S,
                           .what = "the beginning",
                           .tally = tally,
                           .progress_step = progress_step};
    draw_world();
    uint64_t drawn = UINT64_C(1000) << random_below(5);
    world.n_steps = n_steps > 0 ? n_steps : world.sizes == JOINT_SIZES_CROWD ? 30000 : drawn;
    thread_cache_prepare();
    thread_cache_locks = one_in(3);
    daemon_begin();
    baton_begin();
    for (unsigned c = 0; c < world.n_clients; c++) {
        world.clients[c].number = c;
        world.clients[c].n_steps = world.sizes == JOINT_SIZES_CROWD ? 3000 : 20 + (unsigned)random_below(400);
        must(baton_create(&program[c], program_main, &world.clients[c]) == 0, "a program can begin");
    }
    direct(one_in(world.has_sharing ? 2 : 4) ? 10 : 0, one_in(6) ? 12 : 0);
    end_world();
}
