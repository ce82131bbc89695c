/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Successors that go on. The daemon dies before a store of a step, in the middle of one, or between two
 * steps. A core is made of the memory that it leaves, under the same numbers, and the world goes on with
 * that core. The model keeps what it knew: the owner of each grain, the requests that wait, the answers
 * that were given. It forgets only what a daemon learns anew: growths and retirements under way, questions,
 * replies that the shell kept. The successor may die in its first steps, and while it reads; it may get no
 * memory to read.
 */
#include "daemon/core/inherit.h"

#include <stdatomic.h>
#include <string.h>

#include "daemon/core/recorder.h"
#include "daemon/core/scope.h"
#include "tests/sim/world.h"

#define ATTEMPTS_MAX 8u /* that fail */

/* --- the shell of the successor --- */

static int take_segment(void *argument, struct segment *segment) {
    struct world *world = argument;

    for (unsigned g = 0; g < SIM_SEGMENTS; g++)
        if (world->segments[g].segment != NULL && world->segments[g].id == segment->id) {
            segment->backing = &world->segments[g];
            return 0;
        }
    must(false, "a segment is kept that is not there");
    return -ENOENT;
}

static unsigned find_session(const struct world *world, uint64_t id) {
    unsigned s = 0;

    while (s < SIM_SESSIONS && !(world->sessions[s].session != NULL && world->sessions[s].id == id))
        s++;
    must(s < SIM_SESSIONS, "a session is kept that is not there");
    return s;
}

static int take_session(void *argument, struct session *session, const struct kept_session *kept) {
    struct world *world = argument;
    unsigned s = find_session(world, kept->id);

    must(kept->n_groups == 0 || (kept->n_groups == 1 && kept->groups[0] == world->gids[s]),
         "a session is kept with other groups");
    session->peer.groups = &world->gids[s];
    session->peer.n_groups = kept->n_groups;
    session->page = world->sessions[s].page;
    session->board_words = names_slot(world, s);
    must((session->board_words != NULL) == (kept->board_slot != 0), "a session is kept with another slot");
    return 0;
}

/* --- what was known of the predecessor's core is known of the successor's --- */

static void bind_segments(struct world *world) {
    size_t n = 0, n_there = 0;

    for (unsigned g = 0; g < SIM_SEGMENTS; g++) {
        struct model_segment *where = &world->segments[g];
        if (where->segment == NULL)
            continue;
        where->segment = segment_find(world->core, where->id);
        must(where->segment != NULL && where->segment->backing == where, "a successor lacks a segment");
        must(where->segment->size_bytes == where->size && where->segment->pool->id == where->pool + 1,
             "a successor has a segment as another one");
        must((where->segment->state == SEGMENT_CLOSING) == where->closing &&
                 (where->segment->keeper != NULL) == where->kept,
             "a successor has another segment closed");
        must(!where->retiring || where->segment->state == SEGMENT_RETIRING,
             "a successor has a segment that is on its way back to the driver");
        where->retiring = false; /* the shell takes it once more */
        n++;
    }
    for (size_t slot = 0; slot < world->core->segment_slots; slot++)
        n_there += world->core->segments[slot] != NULL;
    must(n == n_there, "a successor has a segment that is not there");
}

static void bind_sessions(struct world *world) {
    size_t n = 0;

    for (unsigned s = 0; s < SIM_SESSIONS; s++)
        if (world->sessions[s].session != NULL) {
            world->sessions[s].session = NULL;
            world->sessions[s].is_unbound = true;
            n++;
        }
    list_for_each_entry(struct session, session, &world->core->sessions, link) {
        for (unsigned s = 0; s < SIM_SESSIONS; s++)
            if (world->sessions[s].is_unbound && world->sessions[s].id == session->id)
                world->sessions[s].session = session;
        n--;
    }
    must(n == 0, "a successor has other sessions");
    for (unsigned s = 0; s < SIM_SESSIONS; s++) {
        struct model_session *own = &world->sessions[s];
        if (!own->is_unbound)
            continue;
        own->is_unbound = false;
        must(own->session != NULL, "a successor lacks a session");
        must((own->session->state == SESSION_QUARANTINED) == own->lost,
             "a successor has another session lost");
        must(own->session->wants_reclaim == own->wants, "a successor asks another session");
        must(own->session->n_questions >= own->n_questions, "a successor counts a session's questions anew");
        own->replies = 0;
        memset(own->gave_ns, 0, sizeof own->gave_ns);
        memset(own->settled_ns, 0, sizeof own->settled_ns);
        if (heirs_draw(2) == 0) /* the shell finds out anew, by the stricter rule */
            own->facts = (struct death_facts){0};
    }
}

/* Whether the fence of a lease comes after that of another one of the same word. */
static bool is_behind(const struct model_lease *lease, const struct model_lease *other) {
    int64_t later = (int64_t)(lease->value - other->value);
    return later != 0 ? later > 0 : lease->generation > other->generation;
}

/* Fences stand in the order in which they come. That is all that matters of one word; of different words any
 * order does. */
static void order_fences(struct world *world) {
    uint64_t last = world->next_order;

    for (unsigned l = 0; l < world->leases_end; l++) {
        struct model_lease *lease = &world->leases[l];
        if (!lease->used || !lease->fenced)
            continue;
        lease->order = last + 1;
        for (unsigned k = 0; k < world->leases_end; k++) {
            const struct model_lease *other = &world->leases[k];
            lease->order += other->used && other->fenced && other->session == lease->session &&
                            other->word == lease->word && is_behind(lease, other);
        }
        if (lease->order > world->next_order)
            world->next_order = lease->order;
    }
}

static void check_leases(const struct world *world) {
    const struct lease_table *table = &world->core->leases;
    unsigned n = 0;

    for (unsigned l = 0; l < world->leases_end; l++) {
        const struct model_lease *lease = &world->leases[l];
        if (!lease->used)
            continue;
        const struct lease *there = lease->id <= table->capacity ? table->slots[lease->id - 1] : NULL;
        must(there != NULL && there->generation == lease->generation, "a successor lacks a lease");
        must(there->session == world->sessions[lease->session].session,
             "a successor has a lease as another's");
        must((there->fence != NULL) == lease->fenced && there->unanswered == lease->unanswered,
             "a successor has a lease in another state");
        must(!lease->fenced || (there->fence->word == lease->word && there->fence_value == lease->value),
             "a successor has a lease behind another fence");
        n++;
    }
    must(table->used == n, "a successor has a lease that is not there");
}

static struct request *find_request(const struct world *world, const struct model_request *request) {
    const struct session *session = world->sessions[request->session].session;

    list_for_each_entry(struct request, there, &session->requests, session_link) {
        if (there->id == request->id)
            return there;
    }
    must(false, "a successor lacks a request");
    return NULL;
}

static void bind_requests(struct world *world) {
    size_t n = 0;

    for (unsigned r = 0; r < SIM_REQUESTS; r++) {
        struct model_request *request = &world->requests[r];
        if (!request->used)
            continue;
        const struct request *there = find_request(world, request);
        /* It may be refused under another configuration. */
        must(request->answered ? there->state != REQUEST_WAITING : there->state != REQUEST_GRANTED,
             "a successor has another answer to a request");
        must((there->state == REQUEST_GRANTED) == (request->lease != NULL),
             "a successor has another answer to a request");
        must(request->lease == NULL || there->lease->generation == request->generation,
             "a successor answers a request with another lease");
        must(there->passes == request->counted_passes, "a successor forgets how often a request was passed");
        request->lease = there->lease;
        request->alone_ns = NS_FOREVER;
        n++;
    }
    list_for_each_entry(const struct session, session, &world->core->sessions, link) {
        n -= session->n_requests;
    }
    must(n == 0, "a successor has a request that nobody made");
}

static void bind_pools(struct world *world) {
    for (unsigned p = 0; p < world->n_pools; p++) {
        struct model_pool *pool = &world->pools[p];
        pool->pool = world->core->pools[p];
        pool->decided = pool->asked_while_no_driver = pool->somebody_overdue = false;
        pool->was_late = pool->was_refused = false;
        pool->growing = 0;
        pool->inherited_leases = pool->pool->n_leases - pool->pool->stats.n_acquires;
    }
    for (unsigned tenant = 0; tenant < SIM_TENANTS; tenant++)
        if (world->scopes[tenant].scope != NULL)
            world->scopes[tenant].scope = scope_find(world->core, world->scopes[tenant].id);
}

static void bind(struct world *world) {
    bind_pools(world);
    bind_segments(world);
    bind_sessions(world);
    check_leases(world);
    order_fences(world);
    bind_requests(world);
    names_bind(world);
    channels_bind(world);
    world->list.asked = false; /* the shell asks anew */
    world->look.begun = false;
    world->is_restarting = true;
}

/* --- the restart --- */

/* The predecessor's core is no more. It does not touch the pages of sessions that live on. */
static void bury(struct world *world) {
    struct core *core = world->core;

    recorder_close(core);
    heirs_empty(core, world->now_ns);
    world->core = core_free(core);
    estate_deinit(&world->estate);
}

/* A core that has nothing but what is configured. */
static struct core *make_core(const struct world *world, const struct heir_limits *limits) {
    struct core *core = heirs_make_core(world, limits);

    core_set_policy(core, policy_make(world), world->now_ns);
    return core;
}

/* Reads what is in the memory, unless an attempt before has. Returns 0, or -ENOMEM for want of memory. */
static int read_estate(struct world *world, struct core *core) {
    const struct inherit_shell shell = {
        .take_segment = take_segment, .take_session = take_session, .argument = world};
    const char *reason = "";

    int r = world->estate.memory != NULL ? 0 : heirs_open(world, &reason);
    if (r == 0)
        r = core_inherit(core, &world->estate, &shell, &reason);
    if (r == 0)
        estate_end_step(&world->estate);
    must(r == 0 || (r == -ENOMEM && memory_failed()), reason != NULL ? reason : "a successor cannot begin");
    return r;
}

/* One successor after the other reads, and dies, or gets no memory. The last one lives. */
static void succeed(struct world *world, const struct heir_limits *limits) {
    for (unsigned attempt = 0;; attempt++) {
        bool fails = attempt < ATTEMPTS_MAX && heirs_draw(4) == 0;
        bool dies = attempt < ATTEMPTS_MAX && heirs_draw(4) == 0;
        struct core *core = make_core(world, limits);
        if (dies)
            heirs_die_at(1 + heirs_draw(12));
        memory_fail_nth(fails ? 1 + heirs_draw(heirs_draw(2) == 0 ? 40 : 400) : 0);
        int r = read_estate(world, core);
        memory_fail_nth(0);
        bool has_died = heirs_has_died();
        world->tally->reads_died += has_died;
        world->tally->reads_failed += r < 0;
        if (r == 0 && !has_died) {
            world->core = core;
            return;
        }
        if (r == 0)
            heirs_empty(core, world->now_ns);
        core_free(core);
        if (has_died || heirs_draw(2) == 0) /* otherwise it tries again */
            estate_deinit(&world->estate);
        if (has_died)
            heirs_leave_memory();
    }
}

/* The successor reads another configuration. */
static void reconfigure(struct world *world, struct heir_limits *limits) {
    for (unsigned p = 0; p < world->n_pools; p++)
        if (one_in(world, 2))
            world->pools[p].sizes = draw_sizes(world);
    if (world->weights[STEP_POLICY] > 0 && one_in(world, 2))
        policy_draw(world);
    if (one_in(world, 4))
        limits->session_leases = 4 + (uint32_t)random_below(world, 29);
    if (one_in(world, 4))
        limits->sessions = 1 + (uint32_t)random_below(world, SIM_SESSIONS);
    if (limits->segments != UINT32_MAX && one_in(world, 4))
        limits->segments = 2 + (uint32_t)random_below(world, 14);
}

void successor_goes_on(struct world *world) {
    struct heir_limits limits = heirs_limits_of(world->core);
    bool is_step_lost = heirs_has_died();
    uint64_t random_state = world->random_state;
    unsigned kind;

    memory_fail_nth(0);
    if (!is_step_lost)
        picture_note(world);
    bury(world);
    if (is_step_lost) {
        picture_restore(world);
        world->estate = (struct estate){0};
        heirs_leave_memory();
        if (heirs_draw(2) == 0) /* otherwise the packet that was not answered is read again */
            world->random_state = random_state;
        world->tally->steps_lost++;
    }
    picture_drop();
    if (heirs_draw(4) == 0)
        reconfigure(world, &limits);
    succeed(world, &limits);
    must(estate_is_valid(&world->estate, &kind), "a successor's records do not agree with its core");
    must(core_is_valid(world->core), "a successor's core is not valid");
    bind(world);
    records_go_on(world);
    model_see(world); /* requests that another configuration does not allow */
    world->tally->successors++;
}

/* The successor's devices can be used, or are as lost as before. Some take longer than others. */
static void start_pools(struct world *world) {
    for (unsigned p = 0; p < world->n_pools; p++) {
        struct model_pool *pool = &world->pools[p];
        if (pool->state == POOL_READY && !one_in(world, 4))
            core_pool_ready(pool->pool, world->now_ns);
        else if (pool->state == POOL_LOST)
            core_pool_lost(pool->pool, "cudaErrorECCUncorrectable", world->now_ns);
        else if (pool->state == POOL_FAILED)
            core_pool_failed(pool->pool, "cudaErrorNoDevice", world->now_ns);
        model_see(world);
    }
}

/* Scopes that were dropped while they had users are there no longer than these. */
static void drop_scopes(struct world *world) {
    for (unsigned tenant = 0; tenant < SIM_TENANTS; tenant++) {
        const struct model_scope *own = &world->scopes[tenant];
        struct scope *scope = own->is_scoped && own->scope == NULL ? scope_find(world->core, own->id) : NULL;
        if (scope == NULL || scope->is_dropped)
            continue;
        core_scope_drop(scope, world->now_ns);
        model_see(world);
    }
}

void step_restart(struct world *world) {
    world->is_restarting = false;
    if (one_in(world, 2))
        world->now_ns += random_below(world, 2 * NS_PER_S);
    channels_restart(world);
    start_pools(world);
    drop_scopes(world);
}
