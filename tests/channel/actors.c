/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The actors: coroutines, each with a stack of its own. The scheduler runs on the stack of the history, and
 * hands the turn to one actor at a time. An actor is asleep, or it can run. One that loses its turn may stall
 * for many steps, as a process does that the kernel does not run: others go far between two of its accesses.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "tests/channel/world.h"

#define STALL_STEPS   400u         /* at most */
#define STACK_BYTES   (256u << 10) /* a sender has 60 KiB, and lies there */
#define ACCESSES_BASE 128u         /* of one call, besides those that depend on the capacities */

static struct actor {
    bool is_alive, is_asleep;
    ucontext_t context;
    char *stack;
    void (*program)(unsigned number);
    struct channel_sleep sleep;
    uint64_t n_accesses;    /* of the call */
    uint64_t stalled_until; /* a step: it does not run before, while others can */
} actors[SIM_ACTORS];

static ucontext_t scheduler;
static unsigned running = SIM_ACTORS;

unsigned actor_running(void) {
    return running;
}

bool actor_is_alive(unsigned number) {
    return actors[number].is_alive;
}

bool actor_is_asleep(unsigned number) {
    return actors[number].is_alive && actors[number].is_asleep;
}

static void begin(int number) {
    actors[number].program((unsigned)number);
    actor_end();
}

void actor_start(unsigned number, void (*program)(unsigned number)) {
    struct actor *actor = &actors[number];

    MUST(!actor->is_alive, "a place has one process");
    if (actor->stack == NULL) {
        actor->stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (actor->stack == MAP_FAILED)
            abort();
    }
    actor->is_alive = true;
    actor->is_asleep = false;
    actor->program = program;
    actor->n_accesses = 0;
    actor->stalled_until = 0;
    getcontext(&actor->context);
    actor->context.uc_stack.ss_sp = actor->stack;
    actor->context.uc_stack.ss_size = STACK_BYTES;
    actor->context.uc_link = NULL;
    makecontext(&actor->context, (void (*)(void))begin, 1, (int)number);
}

void actor_end(void) {
    struct actor *actor = &actors[running];

    memory_drain(running);
    actor->is_alive = false;
    running = SIM_ACTORS;
    setcontext(&scheduler);
    abort();
}

void actor_kill(unsigned number) {
    memory_drain(number);
    actors[number].is_alive = false;
}

void actor_yield(void) {
    struct actor *actor = &actors[running];

    world.tally->switches++;
    running = SIM_ACTORS;
    swapcontext(&actor->context, &scheduler);
}

void actor_stall(void) {
    actors[running].stalled_until = world.step + draw(STALL_STEPS);
    world.tally->stalls++;
    actor_yield();
}

void actor_call(void) {
    actors[running].n_accesses = 0;
}

void actor_count_access(void) {
    uint64_t n_slots = world.view.capacities.n_slots, n_consumers = world.view.capacities.n_consumers;

    world.tally->accesses++;
    MUST(actors[running].n_accesses++ < ACCESSES_BASE + 16 * n_slots * (n_consumers + 1), "a call ends");
}

void actor_sleep(const struct channel_sleep *sleep) {
    struct actor *actor = &actors[running];

    MUST(sleep->count >= 1 && sleep->count <= CHANNEL_SLEEP_WORDS, "there are words to sleep on");
    actor_yield();
    for (unsigned i = 0; i < sleep->count; i++)
        if ((uint32_t)memory_value(sleep->words[i].word) != sleep->words[i].expected) {
            world.tally->wakes_in_time++;
            return;
        }
    actor->sleep = *sleep;
    actor->is_asleep = true;
    actor_yield();
}

void actor_wake(const _Atomic uint64_t *word) {
    actor_yield();
    for (unsigned number = 0; number < SIM_ACTORS; number++)
        for (unsigned i = 0;
             actors[number].is_alive && actors[number].is_asleep && i < actors[number].sleep.count; i++)
            if (actors[number].sleep.words[i].word == word) {
                actors[number].is_asleep = false;
                world.tally->wakes++;
            }
}

bool actor_missed_wake(const _Atomic uint64_t *word) {
    for (unsigned number = 0; number < SIM_ACTORS; number++)
        for (unsigned i = 0; actor_is_asleep(number) && i < actors[number].sleep.count; i++)
            if (actors[number].sleep.words[i].word == word &&
                actors[number].sleep.words[i].expected != (uint32_t)memory_value(word))
                return true;
    return false;
}

bool actors_step(void) {
    unsigned able[SIM_ACTORS], n_able = 0;

    for (unsigned stalled = 0; n_able == 0 && stalled < 2; stalled++)
        for (unsigned number = 0; number < SIM_ACTORS; number++)
            if (actors[number].is_alive && !actors[number].is_asleep &&
                (stalled == 1 || actors[number].stalled_until <= world.step))
                able[n_able++] = number;
    if (n_able == 0)
        return false;
    world.step++;
    world.tally->steps++;
    if (draw(256) < world.flush_chance)
        memory_flush_any();
    running = able[draw(n_able)];
    swapcontext(&scheduler, &actors[running].context);
    running = SIM_ACTORS;
    return true;
}

void actors_reset(void) {
    for (unsigned number = 0; number < SIM_ACTORS; number++)
        actors[number].is_alive = false;
    running = SIM_ACTORS;
}
