/* SPDX-License-Identifier: Apache-2.0 */
/* The acquires of a program: of which size they are, how long they wait, and how often others pass them. */
#include "client/core/target.h"
#include "tests/joint/program.h"

#define PASSES_BOUND (2 * TARGET_PASSES)

static uint64_t draw_size(uint32_t pool) {
    uint64_t limit = world.limits[pool - 1];
    if (world.sizes == JOINT_SIZES_SHARES && !one_in(6))
        return limit / 10 + random_below(limit / 3);
    if (world.sizes == JOINT_SIZES_SMALL)
        return one_in(12) ? limit / 4 + random_below(limit / 2) : 1 + random_below(256 * KIB);
    switch (random_below(8)) {
    case 0:
        return 1 + random_below(4 * KIB);
    case 1:
        return 1 + random_below(64 * KIB);
    case 2:
        return 1 + random_below(MIB);
    case 3:
    case 4:
        return 1 + random_below(2 * JOINT_SLOT);
    case 5:
        return 1 + random_below(limit / 4);
    case 6:
        return 1 + random_below(limit / 2);
    default:
        return one_in(4) ? 1 + random_below(limit) : JOINT_SLOT * (1 + random_below(limit / JOINT_SLOT / 2));
    }
}

static uint64_t draw_timeout(void) {
    switch (random_below(4)) {
    case 0:
        return 0;
    case 1:
        return NS_PER_US * (1 + random_below(5000));
    default:
        return NS_PER_S * (1 + random_below(4));
    }
}

static void note_passes(struct joint_client *client, unsigned own) {
    for (unsigned t = 0; t < JOINT_THREADS; t++) {
        struct wanting *other = &client->wanting[t];
        if (t == own || !other->is_on || other->pool != client->wanting[own].pool ||
            other->order > client->wanting[own].order)
            continue;
        other->passes++;
        /* The library keeps a segment for it alone, of those that the process has whole. */
        if (!model_has_segment(client, other))
            other->passes = 0;
        must(other->passes <= PASSES_BOUND, "a request that waits is passed so often and no more");
        if (other->passes > world.tally->largest_passes)
            world.tally->largest_passes = other->passes;
    }
}

static int acquire(struct joint_client *client, const struct wanting *wanting,
                   struct gpupool_buffer *ret_buffer) {
    uint64_t request;

    if (!one_in(4) || client->flags == (GPUPOOL_OPEN_NO_CACHE | GPUPOOL_OPEN_NO_THREAD))
        return gpupool_acquire(client->client, wanting->pool, wanting->size_bytes, wanting->stream,
                               wanting->timeout_ns, 0, ret_buffer);
    int r = gpupool_acquire_begin(client->client, wanting->pool, wanting->size_bytes, wanting->stream,
                                  wanting->timeout_ns, 0, &request);
    if (r < 0)
        return r;
    world.tally->begun++;
    for (unsigned i = (unsigned)random_below(6); i > 0; i--)
        baton_pass();
    if (one_in(3)) {
        r = gpupool_request_cancel(client->client, request);
        program_check_error(client, r);
        for (unsigned i = (unsigned)random_below(6); i > 0; i--)
            baton_pass();
    }
    return gpupool_acquire_end(client->client, request, ret_buffer);
}

static void draw_crowd(const struct program_thread *own, struct wanting *wanting) {
    uint64_t limit = world.limits[wanting->pool - 1];
    bool is_large = own->number == 0;

    wanting->size_bytes = is_large ? limit / 3 : 1 + random_below(limit / (JOINT_BUFFERS / 2));
    wanting->timeout_ns = is_large ? 60 * NS_PER_S : NS_PER_MS;
}

void program_acquire(struct program_thread *own, bool is_mild) {
    struct joint_client *client = own->client;
    struct held *held = program_find_room(client);
    struct gpupool_buffer buffer;

    if (held == NULL)
        return;
    uint32_t pool = 1 + (world.main_pool < JOINT_POOLS && !one_in(8) ? world.main_pool
                                                                     : (uint32_t)random_below(world.n_pools));
    struct wanting *wanting = &client->wanting[own->number];
    void *stream = program_pick_stream(client, pool);
    if (one_in(16)) {
        stream = GPUPOOL_NO_STREAM;
        world.tally->no_stream++;
    }
    *wanting = (struct wanting){.is_on = true,
                                .pool = pool,
                                .size_bytes = is_mild ? 1 + random_below(draw_size(pool)) : draw_size(pool),
                                .timeout_ns = is_mild ? NS_PER_US * random_below(200) : draw_timeout(),
                                .order = ++world.next_order,
                                .stream = stream};
    if (world.sizes == JOINT_SIZES_CROWD)
        draw_crowd(own, wanting);
    uint64_t began_ns = world.now_ns;
    held->is_busy = true;
    program_enter(client);
    int r = acquire(client, wanting, &buffer);
    program_leave(client);
    world.tally->acquires++;
    world.tally->zero_timeouts += wanting->timeout_ns == 0;
    world.tally->waited += world.now_ns - began_ns > NS_PER_MS;
    if (r == 0) {
        note_passes(client, own->number);
        model_hand_out(client, held, &buffer, stream);
    }
    world.tally->refused += r == GPUPOOL_E_EXHAUSTED || r == GPUPOOL_E_LIMIT;
    world.tally->timed_out += r == GPUPOOL_E_EXHAUSTED && wanting->timeout_ns > 0;
    world.tally->cancelled += r == GPUPOOL_E_CANCELLED;
    program_check_error(client, r);
    wanting->is_on = false;
    held->is_busy = false;
}
