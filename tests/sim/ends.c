/* SPDX-License-Identifier: Apache-2.0 */
/* How sessions begin, and how they end. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/world.h"

static unsigned pick_process(struct world *world, bool alive) {
    unsigned start = (unsigned)random_below(world, SIM_PROCESSES);
    for (unsigned i = 0; i < SIM_PROCESSES; i++) {
        unsigned p = (start + i) % SIM_PROCESSES;
        if (world->kernel.processes[p].used && world->kernel.processes[p].alive == alive)
            return p;
    }
    return SIM_PROCESSES;
}

static void give_page(struct world *world, struct model_session *session) {
    session->page = memory_make(1, sizeof *session->page);
    for (unsigned word = 0; word < SIM_WORDS; word++) { /* words go round */
        session->written[word] = one_in(world, 2) ? 0 : UINT64_MAX - random_below(world, 4);
        atomic_store_explicit(&session->page->fences[word], session->written[word], memory_order_relaxed);
    }
    core_session_set_page(session->session, session->page);
}

/* Those that have no connection any more end. */
static void end_idle_processes(struct world *world) {
    for (unsigned p = 0; p < SIM_PROCESSES; p++)
        if (world->kernel.processes[p].alive && world->kernel.processes[p].sessions == 0)
            kernel_kill(&world->kernel, p, world->now_ns, &world->random_state);
    kernel_clean(&world->kernel, world->now_ns);
}

void step_open(struct world *world) {
    struct session *opened = NULL;
    unsigned s = 0, there = 0;

    for (unsigned i = 0; i < SIM_SESSIONS; i++)
        there += world->sessions[i].session != NULL;
    while (s < world->n_sessions && world->sessions[s].session != NULL)
        s++;
    if (s == world->n_sessions)
        return;
    /* now and then a further connection of a process that has one */
    unsigned p = one_in(world, 4) ? pick_process(world, true) : SIM_PROCESSES;
    if (p == SIM_PROCESSES)
        p = kernel_spawn(&world->kernel, (unsigned)random_below(world, world->n_tenants), world->now_ns,
                         random64(world));
    if (p == SIM_PROCESSES) {
        end_idle_processes(world);
        return;
    }
    struct process *process = &world->kernel.processes[p];
    unsigned group = (unsigned)random_below(world, SIM_GROUPS);
    bool further = one_in(world, 2); /* the group is not its first */
    world->gids[s] = policy_gid(group);
    const struct tenant_id id = model_tenant_id(world, process->tenant);
    struct peer peer = {.pid = process->pid,
                        .uid = id.uid,
                        .scope = id.scope,
                        .gid = further ? 1 : world->gids[s],
                        .groups = &world->gids[s],
                        .n_groups = further ? 1 : 0};
    unsigned of_tenant = 0;
    for (unsigned i = 0; i < SIM_SESSIONS; i++)
        of_tenant += world->sessions[i].session != NULL && world->sessions[i].tenant == process->tenant;
    snprintf(peer.command, sizeof peer.command, "worker-%d", (int)process->pid);
    int r = core_session_open(world->core, &peer, world->now_ns, &opened);
    bool fits = there < world->core->sessions_limit && !model_is_shut(world, process->tenant) &&
                of_tenant < model_limit(world, process->tenant, QUOTA_SESSIONS, group);
    if (out_of_memory(r))
        return;
    bool is_draining = there < world->core->sessions_limit && !model_is_shut(world, process->tenant) &&
                       core_is_draining(world->core);
    must(r == (is_draining ? PROTO_E_SHUTDOWN : fits ? 0 : PROTO_E_LIMIT), "sessions are counted otherwise");
    if (r != 0) {
        struct proto_failure failure = {0};
        core_explain_sessions(world->core, &peer, &failure);
        must((int)failure.error == r && failure.text_length > 0, "a refusal says nothing");
        return;
    }
    process->sessions++;
    struct model_session *session = &world->sessions[s];
    must(opened->id > world->last_session, "a session's number is given again");
    world->last_session = opened->id;
    *session = (struct model_session){.session = opened,
                                      .id = opened->id,
                                      .tenant = process->tenant,
                                      .group = group,
                                      .process = p,
                                      .wants = one_in(world, 2)};
    if (session->wants)
        core_session_want_reclaim(opened);
    if (!one_in(world, 4))
        give_page(world, session);
    world->tally->sessions++;
}

/* The client promises that its streams are idle and its mappings closed. */
void step_bye(struct world *world) {
    unsigned s = pick_session(world, false);
    if (s == SIM_SESSIONS)
        return;
    struct session *session = world->sessions[s].session;
    struct proto_page *page = world->sessions[s].page;
    names_leave(world, s);
    names_settle(world, s, true);
    channels_leave(world, s);
    model_remove_session(world, s);
    parcels_begin(world, session);
    core_session_close(session, world->now_ns);
    free(page);
    world->tally->byes++;
}

void session_end(struct world *world, unsigned s) {
    struct model_session *session = &world->sessions[s];

    if (session->segments ==
        0) { /* it was never told of any memory: there is nothing that it could still touch */
        struct session *closed = session->session;
        struct proto_page *page = session->page;
        names_leave(world, s);
        names_settle(world, s, true);
        channels_leave(world, s);
        model_remove_session(world, s);
        parcels_begin(world, closed);
        core_session_close(closed, world->now_ns);
        free(page);
        return;
    }
    names_leave(world, s);
    channels_lose(world, s);
    model_lose_session(world, s);
    parcels_begin(world, session->session);
    core_session_lose(session->session, world->now_ns, "waiting for its process to end");
    model_see(world); /* before its memory may come back */
}

void step_break(struct world *world) {
    unsigned s = pick_session(world, false);
    if (s == SIM_SESSIONS)
        return;
    /* its own doing, unless a child has the socket too, or the daemon's: a protocol error */
    if (!world->kernel.processes[world->sessions[s].process].child_has_socket && one_in(world, 2))
        world->sessions[s].facts.socket_over = true;
    session_end(world, s);
    world->tally->breaks++;
}

void step_fork(struct world *world) {
    unsigned p = pick_process(world, true);
    if (p == SIM_PROCESSES ||
        !world->kernel.processes[p].mapped) /* before that it has nothing to hand down */
        return;
    world->kernel.processes[p].child = true;
    world->kernel.processes[p].child_has_socket = one_in(world, 3);
    world->tally->forks++;
}

void step_kill(struct world *world) {
    unsigned p = pick_process(world, true);
    if (p == SIM_PROCESSES)
        return;
    kernel_kill(&world->kernel, p, world->now_ns, &world->random_state);
    world->tally->kills++;
}
