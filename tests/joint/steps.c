/* SPDX-License-Identifier: Apache-2.0 */
/* The next step of a thread of a program, mostly by lot. */
#include "tests/joint/program.h"

static bool is_thawed(void *argument) {
    (void)argument;
    return !world.is_frozen;
}

/* Whether another thread waits for room. */
static bool any_waits(void) {
    for (unsigned c = 0; c < world.n_clients; c++)
        for (unsigned t = 0; t < JOINT_THREADS; t++)
            if (world.clients[c].wanting[t].is_on && !world.clients[c].is_killed)
                return true;
    return false;
}

/* One thread asks for half of a pool. The others take and release, so much that it is never free by itself. */
static void step_crowd(struct program_thread *own) {
    struct joint_client *client = own->client;
    unsigned n_held = 0;

    for (unsigned b = 0; b < JOINT_BUFFERS; b++)
        n_held += client->buffers[b].is_used;
    if (own->number == 0 || n_held < JOINT_BUFFERS / 2)
        program_acquire(own, false);
    else
        program_release_any(own);
}

static void step_any(struct program_thread *own) {
    uint64_t choice = random_below(100);
    bool is_mild = !one_in(4) && any_waits();

    if (world.is_frozen) {
        program_end_captures(own->client);
        baton_wait(is_thawed, NULL, NS_FOREVER);
    }
    if (world.sizes == JOINT_SIZES_CROWD)
        step_crowd(own);
    else if (world.has_sharing && one_in(5))
        program_share_any(own);
    else if (is_mild && choice < 24)
        program_release_any(own); /* else all threads wait soon */
    else if (choice < 36)
        program_acquire(own, is_mild);
    else if (choice < 62)
        program_release_any(own);
    else if (choice < 86)
        program_work(own);
    else if (choice < 91)
        program_shrink(own);
    else if (choice < 94)
        program_trim(own);
    else if (choice < 97)
        program_capture(own);
    else if (own->number == 0)
        program_renew_stream(own);
    baton_may_pass();
}

void program_run_steps(struct program_thread *own) {
    for (unsigned i = 0; i < own->client->n_steps && !world.is_ending; i++)
        step_any(own);
    own->client->n_ended++;
}
