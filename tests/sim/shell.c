/* SPDX-License-Identifier: Apache-2.0 */
/* The shell of the simulated daemon: it carries out what the core decides, at once, late, or growths not at
 * all. */
#include <stdlib.h>
#include <string.h>

#include "daemon/core/tenant.h"
#include "daemon/core/use.h"
#include "tests/sim/world.h"

/* --- decisions --- */

static void drain_answers(struct world *world) {
    struct answer answer;

    while (core_next_answer(world->core, &answer)) {
        unsigned r = 0;
        while (r < SIM_REQUESTS && !(world->requests[r].used && world->requests[r].id == answer.request))
            r++;
        must(r < SIM_REQUESTS && world->requests[r].answered, "an answer comes out that was not decided");
        struct model_request *request = &world->requests[r];
        must(world->sessions[request->session].session == answer.session, "another session gets the answer");
        must(answer.lease == request->lease, "another answer comes out than was decided");
        must(answer.asked_ns == request->asked_ns, "an answer is of another time");
        request->used = false;
        world->tally->waited += answer.waited;
        core_answer_sent(&answer, world->now_ns);
        if (answer.lease == NULL) {
            must(answer.failure.text_length > 0, "a refusal says nothing");
            continue;
        }
        unsigned n = 0;
        for (struct lease *lease = answer.lease; lease != NULL; lease = core_answer_next(&answer, lease)) {
            for (unsigned l = 0; l < world->leases_end; l++)
                if (world->leases[l].used && world->leases[l].id == lease->id)
                    world->leases[l].unanswered = false;
            model_describe(world, request->session, lease);
            n++;
        }
        must(n == answer.n_leases && n == (request->n_segments > 0 ? request->n_segments : 1),
             "an answer has another number of leases than was asked");
    }
}

static void drain_retirements(struct world *world) {
    struct segment *segment;

    while (core_next_retirement(world->core, &segment)) {
        struct model_segment *where = &world->segments[find_segment(world, segment->id)];
        must(where->segment == segment && !where->retiring, "a segment is retired twice");
        must(where->taken == 0, "a segment is retired of which something is in use");
        must(where->mappers == 0, "a segment is retired that a process may have mapped");
        for (uint64_t g = 0; g < where->size / world->grain; g++)
            must(where->hot[g] == 0 || kernel_work_is_over(&world->kernel, where->hot[g] - 1u, world->now_ns),
                 "a segment is retired while the GPU work of its last owner's process goes on");
        where->retiring = true;
        world->tally->retirements++;
    }
}

/* Whether the session holds something of the pool. */
bool model_holds(const struct world *world, unsigned s, unsigned p) {
    for (unsigned l = 0; l < world->leases_end; l++)
        if (world->leases[l].used && !world->leases[l].fenced && world->leases[l].session == s &&
            world->segments[world->blocks[world->leases[l].block].segment].pool == p)
            return true;
    return false;
}

/* The session is asked for what it keeps idle. That its pool is short may be over by now. */
static void drain_reclaims(struct world *world) {
    struct session *session;

    while (core_next_reclaim(world->core, &session)) {
        unsigned s = 0;
        while (s < SIM_SESSIONS && world->sessions[s].session != session)
            s++;
        must(s < SIM_SESSIONS && world->sessions[s].wants && !world->sessions[s].lost,
             "a session is asked for idle memory that did not want to be");
        unsigned pools = 0;
        for (unsigned p = 0; p < world->n_pools; p++)
            pools += model_holds(world, s, p) || model_has_mapped(world, s, p);
        must(pools > 0, "a session is asked for idle memory that it does not have");
        world->tally->reclaims++;
    }
}

/* The shell writes a line of each request that waits for long. */
static void drain_long_waits(struct world *world) {
    struct long_wait wait;

    while (core_next_long_wait(world->core, world->now_ns, &wait)) {
        must(wait.waited_ns >= SIM_LONG_WAIT_NS && wait.text[0] != '\0',
             "a request is told of that does not wait for long");
        world->tally->long_waits++;
    }
}

void shell_drain(struct world *world) {
    struct pool *pool;
    uint64_t size;

    model_see(world);
    drain_answers(world);
    names_drain(world);
    channels_drain(world);
    while (core_next_growth(world->core, &pool, &size)) {
        unsigned p = pool->id - 1;
        must(world->pools[p].growing == 0 && pool->state == POOL_READY,
             "a pool grows twice at a time, or too early");
        must(world->pools[p].decided && pool->growth.bytes == size,
             "a growth comes out that was not decided");
        world->pools[p].decided = false;
        world->pools[p].growing = size;
        world->tally->aheads += pool->growth.is_ahead;
    }
    drain_retirements(world);
    drain_reclaims(world);
    drain_long_waits(world);
}

static void finish_growth(struct world *world, unsigned p) {
    uint64_t size = world->pools[p].growing;
    unsigned g = 0;

    world->pools[p].growing = 0;
    if (one_in(world, 6)) {
        world->pools[p].asked_while_no_driver = true;
        world->tally->failures++;
        core_growth_failed(world->pools[p].pool, "cudaErrorMemoryAllocation", world->now_ns);
        return;
    }
    while (g < SIM_SEGMENTS && world->segments[g].segment != NULL)
        g++;
    must(g < SIM_SEGMENTS, "the model has no room for a segment");
    struct model_segment *where = &world->segments[g];
    uint64_t grains = size / world->grain;
    *where = (struct model_segment){.size = size,
                                    .pool = p,
                                    .owners = memory_make(grains, sizeof *where->owners),
                                    .hot = memory_make(grains, 1)};
    uint64_t before = world->core->next_segment_id;
    /* The core may lend of the segment before this returns: but the model looks later. */
    int r = core_segment_made(world->pools[p].pool, size, where, world->now_ns);
    if (out_of_memory(r)) {
        free(where->owners);
        free(where->hot);
        *where = (struct model_segment){0};
        world->pools[p].asked_while_no_driver = true;
        return;
    }
    must(r == 0, "a segment was made and the core refuses it");
    for (size_t slot = 0; slot < world->core->segment_slots; slot++)
        if (world->core->segments[slot] != NULL && world->core->segments[slot]->id == before + 1)
            where->segment = world->core->segments[slot];
    must(where->segment != NULL && where->segment->size_bytes == size, "a segment was made and is not there");
    where->id = where->segment->id;
    must(where->id > world->last_segment, "a segment's number is given again");
    world->last_segment = where->id;
    world->tally->growths++;
}

void finish_retirement(struct world *world, unsigned g) {
    struct segment *segment = world->segments[g].segment;
    free(world->segments[g].owners);
    free(world->segments[g].hot);
    memset(&world->segments[g], 0, sizeof world->segments[g]);
    core_segment_retired(segment, world->now_ns);
}

void step_shell(struct world *world) {
    unsigned p = (unsigned)random_below(world, world->n_pools),
             start = (unsigned)random_below(world, SIM_SEGMENTS);
    struct pool *pool = world->pools[p].pool;

    if (pool->state == POOL_STARTING && one_in(world, 3)) {
        if (one_in(world, 24))
            core_pool_failed(pool, "cudaErrorNoDevice", world->now_ns);
        else
            core_pool_ready(pool, world->now_ns);
    } else if (world->pools[p].growing > 0) {
        finish_growth(world, p);
    }
    for (unsigned i = 0; i < SIM_SEGMENTS; i++) {
        unsigned g = (start + i) % SIM_SEGMENTS;
        if (world->segments[g].retiring) {
            model_see(world);
            finish_retirement(world, g);
            return;
        }
    }
}

/* A client counts in its page what it likes. */
static void count_something(struct world *world) {
    unsigned s = pick_session(world, false);
    if (s == SIM_SESSIONS || world->sessions[s].page == NULL)
        return;
    struct proto_counters *line = &world->sessions[s].page->counters[random_below(world, 2)];
    line->pool = (uint32_t)random_below(world, SIM_POOLS + 2);
    line->taken_bytes = one_in(world, 4) ? random64(world) : random_below(world, 8 * MIB);
    line->given_bytes = one_in(world, 4) ? random64(world) : random_below(world, 8 * MIB);
    line->hits = random64(world);
}

/* Somebody asks for the stats. */
void step_look(struct world *world) {
    struct pool *stalled = world->pools[random_below(world, world->n_pools)].pool;
    struct use uses[SIM_POOLS];

    core_poll_fences(world->core);
    core_pool_stalled(stalled, one_in(world, 2) ? "cudaMalloc" : NULL, world->now_ns);
    count_something(world);
    use_of_pools(world->core, uses);
    for (unsigned p = 0; p < world->n_pools; p++)
        must(uses[p].in_use_bytes + uses[p].cached_bytes == world->pools[p].pool->leased_bytes &&
                 uses[p].cached_bytes <= world->pools[p].pool->leased_bytes,
             "what is in use and what is cached are not what is leased");
}

void step_lose_device(struct world *world) {
    struct model_pool *lost = &world->pools[random_below(world, world->n_pools)];
    if (lost->pool->state == POOL_STARTING)
        return;
    core_pool_lost(lost->pool, "cudaErrorECCUncorrectable", world->now_ns);
    lost->decided = lost->decided && lost->pool->growth.is_decided;
    world->tally->devices_lost++;
}

void step_trim(struct world *world) {
    struct pool *pool = world->pools[random_below(world, world->n_pools)].pool;
    uint64_t before = pool->retiring_bytes, bytes = core_trim(pool);
    must(pool->retiring_bytes == before + bytes, "a trim says another number than it retired");
    must(bytes == 0 || pool->reserved_bytes - pool->retiring_bytes >= pool->reserve_bytes,
         "a trim takes from the reserve");
}

struct pool_sizes draw_sizes(struct world *world) {
    return (struct pool_sizes){
        .limit_bytes = random_below(world, world->limit_max + 1),
        .step_bytes = one_in(world, 3) ? POOL_STEP_BY_SIZE : random_below(world, 6 * MIB),
        .reserve_bytes = one_in(world, 2) ? 0 : random_below(world, 10 * MIB),
        .low_water_bytes = one_in(world, 2) ? 0 : random_below(world, 10 * MIB),
    };
}

/* An operator has a pool drain, or ends that. */
static void step_drain(struct world *world) {
    struct model_pool *drained = &world->pools[random_below(world, world->n_pools)];
    bool is_draining = !drained->pool->is_draining && one_in(world, 2);

    core_pool_drain(drained->pool, is_draining, world->now_ns);
    drained->decided = drained->decided && drained->pool->growth.is_decided;
    world->tally->drains += is_draining;
}

void step_configure(struct world *world) {
    if (world_drains(world) && one_in(world, 2)) {
        step_drain(world);
        return;
    }
    const struct pool_sizes sizes = draw_sizes(world);

    shell_drain(world); /* as after each event: what was decided under the old limits has begun */
    core_pool_configure(world->pools[random_below(world, world->n_pools)].pool, &sizes, world->now_ns);
}

void step_time(struct world *world) {
    uint64_t tick_ns = core_next_tick_ns(world->core),
             kernel_ns = kernel_next_ns(&world->kernel, world->now_ns);

    /* to the next appointment, as the shell's timer does; to the next thing that the kernel has; or somewhere
     */
    if (one_in(world, 2) && tick_ns != NS_FOREVER && tick_ns > world->now_ns)
        world->now_ns = tick_ns;
    else if (one_in(world, 2) && kernel_ns != NS_FOREVER)
        world->now_ns = kernel_ns;
    else
        world->now_ns += random_below(world, one_in(world, 8) ? 2 * NS_PER_S : 200 * NS_PER_MS);
    /* A plan that moves or refuses a request leaves what follows from that to a tick that comes at once. */
    for (unsigned ticks = 0; ticks == 0 || core_next_tick_ns(world->core) <= world->now_ns; ticks++) {
        must(ticks <= SIM_REQUESTS, "the ticks of one moment have an end");
        parcels_pass(world); /* the core lends what comes back at once */
        names_pass(world);
        core_tick(world->core, world->now_ns);
        model_see(world);
        for (unsigned r = 0; r < SIM_REQUESTS; r++)
            must(!world->requests[r].used || world->requests[r].answered ||
                     world->requests[r].deadline_ns > world->now_ns,
                 "a request waits beyond its deadline");
    }
    model_see_alone(world);
    model_check_alone(world);
    kernel_clean(&world->kernel, world->now_ns);
}
