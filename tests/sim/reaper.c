/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds out when the dead are safe: facts from what the simulated kernel lets it see, the verdict from the
 * daemon's own rule (daemon/core/death.h). Questions are answered late, from what was true at some time in
 * between; a fact counts only where the question began after what it is to prove something about.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/world.h"

static pid_t pid_of(const struct world *world, const struct model_session *session) {
    return world->kernel.processes[session->process].pid;
}

/* The session's memory comes back: the rule says so, or an operator. */
static void reap(struct world *world, unsigned s) {
    struct session *session = world->sessions[s].session;
    struct proto_page *page = world->sessions[s].page;

    names_settle(world, s, false);
    channels_vacate(world, s);
    model_remove_session(world, s);
    core_session_gone(session, world->now_ns);
    free(page);
    shell_drain(world);
}

/* Asks the rule, after each new fact. */
static void judge(struct world *world, unsigned s) {
    struct model_session *session = &world->sessions[s];
    const struct process *process = &world->kernel.processes[session->process];
    char text[DEATH_TEXT_SIZE];

    if (session->session == NULL || !session->lost)
        return;
    int length = death_explain(&session->facts, process->pid, "the list", text);
    must(length > 0 && (size_t)length < sizeof text, "nobody says what memory is held for");
    if (death_judge(&session->facts) != DEATH_SAFE)
        return;
    world->tally->reaped++;
    world->tally->behind_child += process->child;
    world->tally->by_holders += death_rule(&session->facts) == DEATH_BY_HOLDERS;
    reap(world, s);
}

/* --- the driver's list --- */

static void list_ask(struct world *world) {
    world->list = (struct list_question){.asked = true, .number = ++world->questions};
}

/* The driver makes its list, some time after it was asked. */
static void list_make(struct world *world) {
    struct list_question *list = &world->list;
    list->failed = world->kernel.list == KERNEL_LIST_FLAKY && one_in(world, 4);
    for (unsigned p = 0; p < SIM_PROCESSES; p++)
        if (kernel_lists(&world->kernel, p, world->now_ns)) {
            list->mps[list->n_pids] = world->kernel.processes[p].mps;
            list->pids[list->n_pids++] = world->kernel.processes[p].pid;
        }
    list->made = true;
}

/* The answer arrives, some time after the list was made. */
static void list_answer(struct world *world) {
    const struct list_question list = world->list;

    world->list.asked = false;
    if (list.failed)
        return;
    for (unsigned s = 0; s < SIM_SESSIONS; s++) {
        struct model_session *session = &world->sessions[s];
        struct death_facts *facts = &session->facts;
        bool listed = false, mps = false;
        if (session->session == NULL)
            continue;
        for (unsigned i = 0; i < list.n_pids; i++)
            if (list.pids[i] == pid_of(world, session)) {
                listed = true;
                mps = mps || list.mps[i];
            }
        if (!facts->process_over) {
            /* An entry from before it had a segment may be another process's of the same pid, and so may one
             * from after its end: the shell asks its pidfd when the answer comes. */
            bool is_alive = !kernel_process_is_over(&world->kernel, session->process, world->now_ns);
            if (listed && is_alive && session->segments > 0 && list.number > session->mapped_at) {
                facts->seen = true;
                facts->under_mps = facts->under_mps || mps;
            }
        } else if (list.number > session->over_at) {
            facts->listing = world->kernel.list == KERNEL_LIST_NONE ? LISTING_UNKNOWN
                             : listed                               ? LISTING_PRESENT
                                                                    : LISTING_ABSENT;
            judge(world, s);
        }
    }
}

/* --- the holders of the driver's descriptors --- */

static void look_begin(struct world *world) {
    world->look = (struct look){.begun = true, .number = ++world->questions};
}

static void look_make(struct world *world) {
    for (unsigned s = 0; s < SIM_SESSIONS; s++)
        if (world->sessions[s].session != NULL)
            world->look.holders[s] =
                world->kernel.proc == KERNEL_PROC_UNKNOWN ? HOLDERS_UNKNOWN
                : kernel_child_lives(&world->kernel, world->sessions[s].process, world->now_ns)
                    ? (world->kernel.proc == KERNEL_PROC_HIDDEN ? HOLDERS_HIDDEN : HOLDERS_SOME)
                    : HOLDERS_NONE;
    world->look.made = true;
}

static void look_end(struct world *world) {
    const struct look look = world->look;

    world->look.begun = false;
    for (unsigned s = 0; s < SIM_SESSIONS; s++) {
        struct model_session *session = &world->sessions[s];
        if (session->session == NULL || !session->facts.process_over || look.number <= session->over_at)
            continue;
        session->facts.holders = look.holders[s];
        session->facts.holder = 1;
        judge(world, s);
    }
}

/* --- what the shell does --- */

void reaper_mapped(struct world *world, unsigned s) {
    world->sessions[s].mapped_at = world->questions;
}

/* The shell looks at a session's descriptors. */
static void poll_session(struct world *world, unsigned s) {
    struct model_session *session = &world->sessions[s];
    if (session->session == NULL)
        return;
    if (!session->facts.process_over &&
        kernel_process_is_over(&world->kernel, session->process, world->now_ns)) {
        session->facts.process_over = true;
        session->over_at = world->questions;
        if (!session->lost)
            session_end(world, s);
    } else if (!session->facts.socket_over &&
               kernel_socket_is_over(&world->kernel, session->process, world->now_ns)) {
        session->facts.socket_over = true;
        if (!session->lost)
            session_end(world, s);
    }
    judge(world, s);
}

static void poll_list(struct world *world) {
    if (!world->list.asked)
        list_ask(world);
    else if (!world->list.made)
        list_make(world);
    else
        list_answer(world);
}

static void poll_holders(struct world *world) {
    if (!world->look.begun)
        look_begin(world);
    else if (!world->look.made)
        look_make(world);
    else
        look_end(world);
}

void step_reaper(struct world *world) {
    switch (random_below(world, 6)) {
    case 0:
    case 1:
        do
            poll_list(world);
        while (one_in(world, 2)); /* quick, now and then */
        break;
    case 2:
    case 3:
        do
            poll_holders(world);
        while (one_in(world, 2));
        break;
    default:
        poll_session(world, (unsigned)random_below(world, SIM_SESSIONS));
    }
}

/* An operator knows better, or takes the risk: GPU work that still writes there is not the daemon's fault. */
void step_force(struct world *world) {
    unsigned s = pick_session(world, true);
    if (s == SIM_SESSIONS)
        return;
    world->sessions[s].forced = true;
    reap(world, s);
    world->tally->forced++;
}

void reaper_round(struct world *world) {
    for (unsigned i = 0; i < 3; i++)
        poll_list(world);
    for (unsigned i = 0; i < 3; i++)
        poll_holders(world);
    for (unsigned s = 0; s < SIM_SESSIONS; s++) {
        struct model_session *session = &world->sessions[s];
        poll_session(world, s);
        shell_drain(world);
        /* only a death that the rule cannot judge takes an operator */
        if (session->session == NULL || !session->lost || death_judge(&session->facts) != DEATH_UNKNOWABLE)
            continue;
        must(world->kernel.proc == KERNEL_PROC_UNKNOWN, "a death is called unknowable that is not");
        session->forced = true;
        reap(world, s);
        world->tally->forced++;
    }
}
