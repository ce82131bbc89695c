/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One seed's world, from its first step to its last: how large it is, what happens in it how often, and what
 * has to be left when everybody has gone.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/world.h"

#define END_ROUNDS_MAX                                                                                       \
    10000u /* of the kernel's events and the shell's, until everybody is gone: some hundred do */

#define HEIR_STEPS 64u /* of each so many steps, a successor inherits after one */

static const struct {
    const char *name;
    void (*run)(struct world *world);
    unsigned weight;
} steps[STEPS] = {
    [STEP_OPEN] = {"open", step_open, 6},
    [STEP_ACQUIRE] = {"acquire", step_acquire, 24},
    [STEP_ACQUIRE_SEGMENTS] = {"acquire segments", step_acquire_segments, 10},
    [STEP_RELEASE] = {"release", step_release, 14},
    [STEP_RELEASE_PART] = {"release a part", step_release_part, 6},
    [STEP_SPLIT] = {"split", step_split, 5},
    [STEP_MERGE] = {"merge", step_merge, 4},
    [STEP_SHARE] = {"share", step_share, 3},
    [STEP_ATTACH] = {"attach", step_attach, 5},
    [STEP_SEND] = {"send", step_send, 4},
    [STEP_REVOKE] = {"revoke", step_revoke, 1},
    [STEP_REVOKE_ALL] = {"revoke all", step_revoke_all, 0},
    [STEP_QUERY] = {"query", step_query, 1},
    [STEP_MISUSE] = {"misuse", step_misuse, 2},
    [STEP_IDLE] = {"idle", step_idle, 10},
    [STEP_OFFER] = {"offer", step_offer, 6},
    [STEP_ANSWER] = {"answer", step_answer, 12},
    [STEP_CANCEL] = {"cancel", step_cancel, 2},
    [STEP_CLOSED] = {"closed", step_closed, 4},
    [STEP_BYE] = {"bye", step_bye, 2},
    [STEP_BREAK] = {"break", step_break, 1},
    [STEP_FORK] = {"fork", step_fork, 2},
    [STEP_KILL] = {"kill", step_kill, 3},
    [STEP_LOOK] = {"look", step_look, 1},
    [STEP_TRIM] = {"trim", step_trim, 1},
    [STEP_CONFIGURE] = {"configure", step_configure, 1},
    [STEP_POLICY] = {"policy", step_policy, 0},
    [STEP_REPLY] = {"reply", step_reply, 1},
    [STEP_LOSE_DEVICE] = {"lose device", step_lose_device, 0},
    [STEP_SHELL] = {"shell", step_shell, 16},
    [STEP_REAPER] = {"reaper", step_reaper, 14},
    [STEP_FORCE] = {"force", step_force, 0},
    [STEP_STREAMS] = {"streams", step_streams, 5},
    [STEP_TIME] = {"time", step_time, 10},
};

/* Without these nothing would go on. */
static bool is_needed(unsigned step) {
    return step == STEP_OPEN || step == STEP_ACQUIRE || step == STEP_SHELL || step == STEP_REAPER ||
           step == STEP_TIME;
}

/* Which steps there are, and how often: what hardly ever meets in the average of all worlds does in some of
 * them. */
static void draw_weights(struct world *world) {
    for (unsigned i = 0; i < STEPS; i++) {
        world->weights[i] = steps[i].weight;
        switch (random_below(world, 6)) {
        case 0:
            world->weights[i] *= is_needed(i) ? 1 : 0;
            break;
        case 1:
            world->weights[i] *= 4;
            break;
        default:
            break;
        }
        if (i == STEP_FORCE || i == STEP_LOSE_DEVICE || i == STEP_REVOKE_ALL)
            world->weights[i] = one_in(world, 8) ? 1 : 0;
        if (i == STEP_CONFIGURE && world_drains(world))
            world->weights[i] = 4;
        if (i == STEP_POLICY)
            world->weights[i] = one_in(world, 2) ? 1 : 0;
        world->weight_sum += world->weights[i];
    }
}

static void add_pool(struct world *world, unsigned p) {
    world->is_vmm[p] = one_in(world, 2);
    world->has_rows[p] = world->is_vmm[p] && p != 2;
    world->pools[p].takes_descriptors = world->is_vmm[p] || p == 2;
    const struct pool_config config = {
        .kind = p == 2 ? PROTO_POOL_HOST : PROTO_POOL_DEVICE,
        .device = (int)p,
        .numa_node = -1,
        .name = "pool",
        .sizes =
            {
                .limit_bytes =
                    SEGMENT_GRANULE * (1 + random_below(world, world->limit_max / SEGMENT_GRANULE)),
                .step_bytes =
                    one_in(world, 3) ? POOL_STEP_BY_SIZE : SEGMENT_GRANULE * (1 + random_below(world, 4)),
                .reserve_bytes = one_in(world, 3) ? SEGMENT_GRANULE * random_below(world, 4) : 0,
                .low_water_bytes = one_in(world, 3) ? random_below(world, 6 * MIB) : 0,
            },
        .needs_vmm = world->is_vmm[p],
        .takes_descriptors = world->pools[p].takes_descriptors,
    };
    int r = core_add_pool(world->core, &config, &world->pools[p].pool);
    must(r == 0, "a pool cannot be made");
    if (!one_in(world, 4))
        core_pool_ready(world->pools[p].pool, 0);
}

static void world_make(struct world *world) {
    static const uint64_t grains[] = {64 * KIB, 64 * KIB, 64 * KIB, 256 * KIB, 256 * KIB, 16 * KIB};

    int r = core_new(&world->core);
    must(r == 0, "a core cannot be made");
    world->now_ns = 1;
    world->grain =
        one_in(world, 64) ? HEAP_GRANULE : grains[random_below(world, sizeof grains / sizeof *grains)];
    world->limit_max = SEGMENT_GRANULE * (2 + random_below(world, 15));
    world->n_pools = 1 + (unsigned)random_below(world, SIM_POOLS);
    world->n_tenants = 1 + (unsigned)random_below(world, SIM_TENANTS);
    world->n_sessions = 2 + (unsigned)random_below(world, SIM_SESSIONS - 1);
    world->drain_late = one_in(world, 4) ? 2 + (unsigned)random_below(world, 8) : 0;
    world->core->sessions_limit =
        one_in(world, 4) ? 1 + (uint32_t)random_below(world, SIM_SESSIONS) : SIM_SESSIONS;
    world->core->passes_limit = world->seed % 3 == 0 ? 1 : SIM_PASSES;
    world->core->segments_limit = one_in(world, 2) ? 2 + (uint32_t)random_below(world, 14) : UINT32_MAX;
    world->core->long_wait_ns = SIM_LONG_WAIT_NS;
    world->core->session_leases_limit = 4 + (uint32_t)random_below(world, 29);
    world->kernel.list = (enum kernel_list)random_below(world, 3);
    world->kernel.proc = (enum kernel_proc)random_below(world, 3);
    world->kernel.foreign_one_in = one_in(world, 4) ? 2 : 0;
    world->memory_fails = one_in(world, 8) ? 1 + (unsigned)random_below(world, 20) : 0;
    draw_weights(world);
    for (unsigned p = 0; p < world->n_pools; p++)
        add_pool(world, p);
    scopes_begin(world);
    names_begin(world);
    channels_begin(world);
    records_begin(world);
    heirs_begin(world);
}

static void step_any(struct world *world) {
    uint64_t choice = random_below(world, world->weight_sum);
    unsigned i = 0;
    while (choice >= world->weights[i])
        choice -= world->weights[i++];
    world->step_name = steps[i].name;
    memory_fail_nth(world->memory_fails > 0 && one_in(world, world->memory_fails)
                        ? 1 + (unsigned)random_below(world, 4)
                        : 0);
    if (world->is_restarting) {
        world->step_name = "restart";
        step_restart(world);
        return;
    }
    steps[i].run(world);
}

static bool is_empty(const struct world *world) {
    for (unsigned s = 0; s < SIM_SESSIONS; s++)
        if (world->sessions[s].session != NULL)
            return false;
    return true;
}

/* Everybody ends, the shell does what it has at hand, and time goes on until nothing is left to come. */
static void world_end(struct world *world) {
    world->step_name = "the end";
    memory_fail_nth(0);
    if (world->is_restarting)
        step_restart(world);
    for (unsigned p = 0; p < SIM_PROCESSES; p++)
        if (world->kernel.processes[p].alive)
            kernel_kill(&world->kernel, p, world->now_ns, &world->random_state);
    for (unsigned round = 0; !is_empty(world); round++) {
        must(round < END_ROUNDS_MAX, "a process is over in every respect, and its memory never comes back");
        uint64_t next_ns = kernel_next_ns(&world->kernel, world->now_ns);
        if (next_ns != NS_FOREVER)
            world->now_ns = next_ns;
        parcels_pass(world);
        names_pass(world);
        core_tick(world->core, world->now_ns);
        shell_drain(world);
        reaper_round(world);
        step_shell(world);
        shell_drain(world);
        check_all(world);
        records_check(world);
    }
    for (unsigned tenant = 0; tenant < SIM_TENANTS; tenant++)
        names_end_all(world, tenant);
    core_unpublish_all(world->core, world->now_ns);
    world->now_ns += 100 * NS_PER_S; /* no parcel has more */
    parcels_pass(world);
    core_tick(world->core, world->now_ns);
    shell_drain(world);
    for (unsigned r = 0; r < SIM_REQUESTS; r++)
        must(!world->requests[r].used, "a request was never answered");
    shell_drain(world);
    for (unsigned g = 0; g < SIM_SEGMENTS; g++) {
        struct model_segment *segment = &world->segments[g];
        if (segment->segment == NULL)
            continue;
        must(segment->taken == 0 && segment->mappers == 0, "everybody is gone, and something is still taken");
        if (segment->retiring)
            finish_retirement(world, g);
        shell_drain(world);
    }
    must(world->core->leases.used == 0 && world->core->tokens == NULL && world->core->parcels.count == 0,
         "everybody is gone, and leases are left");
    for (unsigned p = 0; p < world->n_pools; p++) {
        const struct pool *pool = world->pools[p].pool;
        must(pool->leased_bytes + pool->fenced_bytes + pool->quarantined_bytes == 0 &&
                 pool->waiters.count == 0 && pool->n_leases == 0 && pool->n_parcels == 0 &&
                 pool->parcel_bytes == 0 &&
                 pool->stats.n_acquires + world->pools[p].inherited_leases == pool->stats.n_releases,
             "everybody is gone, and a pool counts otherwise");
    }
    must(core_is_valid(world->core), "the core is not valid at the end");
    for (unsigned g = 0; g < SIM_SEGMENTS; g++) {
        free(world->segments[g].owners);
        free(world->segments[g].hot);
    }
    heirs_end_step(world, true);
    core_free(world->core);
    heirs_end(world);
    records_end(world);
}

void history(uint64_t seed, uint64_t n_steps, unsigned validate_every, struct tally *tally, uint64_t *step) {
    struct world *world = memory_make(1, sizeof *world);
    world->seed = seed;
    world->random_state = random_seed(seed);
    world->tally = tally;
    world->step_name = "the beginning";
    world_make(world);
    uint64_t drawn = UINT64_C(200) << random_below(world, 7);
    if (n_steps == 0)
        n_steps = drawn;
    for (; world->step < n_steps; world->step++) {
        *step = world->step;
        heirs_begin_step(world);
        step_any(world);
        step_names(world);
        model_see(world);
        if (world->drain_late == 0 || !one_in(world, world->drain_late))
            shell_drain(world);
        check_all(world);
        records_check(world);
        heirs_end_step(world, world->step % validate_every == 0);
        tally->out_of_memory += memory_failed();
        if (heirs_is_over())
            successor_goes_on(world);
        if (world->step % HEIR_STEPS == world->seed % HEIR_STEPS)
            heirs_check(world);
        if (world->step % validate_every == 0)
            must(core_is_valid(world->core), "the core is not valid");
        tally->steps++;
    }
    world_end(world);
    free(world);
}
