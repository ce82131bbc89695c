/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A picture of the world before a step. A step whose daemon dies before the step's end has not happened:
 * the world goes on as it was in the picture. The clients' packets of that step are still to be read.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/world.h"

struct picture {
    struct world world; /* with pointers of then: of these, only the following are followed */
    uint16_t *owners[SIM_SEGMENTS];
    uint8_t *hot[SIM_SEGMENTS];
    uint64_t words[SIM_SESSIONS][SIM_WORDS]; /* of the pages */
    bool is_taken;
};

static struct picture picture;

static void *copy_of(const void *bytes, uint64_t count, size_t size) {
    void *copy = memory_make(count, size);
    memcpy(copy, bytes, count * size);
    return copy;
}

static void note_requests(struct world *world, const struct session *session) {
    list_for_each_entry(const struct request, request, &session->requests, session_link) {
        for (unsigned r = 0; r < SIM_REQUESTS; r++)
            if (world->requests[r].used && world->requests[r].id == request->id)
                world->requests[r].counted_passes = request->passes;
    }
}

void picture_note(struct world *world) {
    for (unsigned p = 0; p < world->n_pools; p++) {
        struct model_pool *pool = &world->pools[p];
        pool->sizes = (struct pool_sizes){.limit_bytes = pool->pool->limit_bytes,
                                          .reserve_bytes = pool->pool->reserve_bytes,
                                          .step_bytes = pool->pool->step_bytes,
                                          .low_water_bytes = pool->pool->low_water_bytes};
        if (pool->pool->state != POOL_STARTING)
            pool->state = pool->pool->state;
    }
    for (unsigned s = 0; s < SIM_SESSIONS; s++)
        if (world->sessions[s].session != NULL) {
            world->sessions[s].n_questions = world->sessions[s].session->n_questions;
            note_requests(world, world->sessions[s].session);
        }
    for (unsigned r = 0; r < SIM_REQUESTS; r++)
        if (world->requests[r].used && world->requests[r].answered && world->requests[r].lease != NULL)
            world->requests[r].generation = world->requests[r].lease->generation;
}

void picture_take(struct world *world) {
    picture_note(world);
    picture.world = *world;
    picture.is_taken = true;
    for (unsigned g = 0; g < SIM_SEGMENTS; g++) {
        const struct model_segment *where = &world->segments[g];
        if (where->segment == NULL)
            continue;
        picture.owners[g] = copy_of(where->owners, where->size / world->grain, sizeof *where->owners);
        picture.hot[g] = copy_of(where->hot, where->size / world->grain, sizeof *where->hot);
    }
    for (unsigned s = 0; s < SIM_SESSIONS; s++)
        for (unsigned word = 0; word < SIM_WORDS && world->sessions[s].page != NULL; word++)
            picture.words[s][word] = world->sessions[s].page->fences[word];
    records_remember(world);
}

void picture_drop(void) {
    for (unsigned g = 0; g < SIM_SEGMENTS && picture.is_taken; g++) {
        free(picture.owners[g]);
        free(picture.hot[g]);
    }
    memset(&picture, 0, sizeof picture);
}

void picture_restore(struct world *world) {
    for (unsigned g = 0; g < SIM_SEGMENTS; g++) {
        free(world->segments[g].owners);
        free(world->segments[g].hot);
    }
    for (unsigned s = 0; s < SIM_SESSIONS; s++)
        free(world->sessions[s].page);
    *world = picture.world;
    for (unsigned g = 0; g < SIM_SEGMENTS; g++) {
        world->segments[g].owners = picture.owners[g];
        world->segments[g].hot = picture.hot[g];
        picture.owners[g] = NULL;
        picture.hot[g] = NULL;
    }
    for (unsigned s = 0; s < SIM_SESSIONS; s++) {
        struct model_session *session = &world->sessions[s];
        if (session->page == NULL)
            continue;
        session->page = memory_make(1, sizeof *session->page);
        for (unsigned word = 0; word < SIM_WORDS; word++)
            session->page->fences[word] = picture.words[s][word];
    }
    names_restored(world);
    records_go_back(world);
}
