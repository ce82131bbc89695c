/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The programs: each opens a client, has threads use it, gives everything back and closes it; and does so a
 * few times.
 */
#include <poll.h>
#include <stdint.h>

#include "tests/joint/program.h"
#include "tests/joint/wrapped.h"

#define TRIMS_MAX 20u
#define GPU_NS    (60 * NS_PER_S)

static struct program_thread program_threads[JOINT_CLIENTS][JOINT_THREADS + 1];

static void *thread_main(void *argument) {
    program_run_steps(argument);
    return NULL;
}

/* --- the loop of a client without the library's thread --- */

struct loop {
    struct joint_client *client;
    int fd;
    bool is_over;
};

static struct loop loops[JOINT_CLIENTS];

static bool has_to_dispatch(void *argument) {
    const struct loop *loop = argument;
    struct pollfd ready = {.fd = loop->fd, .events = POLLIN};
    return loop->is_over || __real_poll(&ready, 1, 0) == 1;
}

static void *loop_main(void *argument) {
    struct loop *loop = argument;

    for (;;) {
        baton_wait(has_to_dispatch, loop, NS_FOREVER);
        if (loop->is_over)
            return NULL;
        program_enter(loop->client);
        int r = gpupool_dispatch(loop->client->client);
        program_leave(loop->client);
        program_check_error(loop->client, r);
        world.tally->dispatches++;
        baton_may_pass();
    }
}

/* --- a client --- */

static void on_reclaim(void *argument) {
    struct joint_client *client = argument;

    world.tally->callbacks++;
    if (client->client == NULL) /* gpupool_open() has not returned */
        return;
    int r = gpupool_reclaimed(client->client, 0, one_in(2) ? GPUPOOL_RECLAIM_DONE : GPUPOOL_RECLAIM_NOTHING, 0);
    program_check_error(client, r);
}

/* A client without a cache has no thread, and no loop instead. */
static uint32_t draw_flags(void) {
    uint32_t flags = one_in(3) ? GPUPOOL_OPEN_NO_THREAD : 0;

    if (one_in(world.raw_clients))
        flags = GPUPOOL_OPEN_NO_CACHE | (one_in(4) ? flags : 0);
    return flags;
}

static void open_client(struct joint_client *client) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;

    client->is_broken = false;
    options.socket = "/joint/gpupool.sock";
    options.client_name = "joint";
    options.flags = client->flags = draw_flags();
    options.decay_ns = one_in(3)   ? GPUPOOL_FOREVER
                       : one_in(2) ? NS_PER_MS * (1 + random_below(50))
                                   : NS_PER_S;
    client->client = NULL;
    client->has_callback = one_in(4);
    if (client->has_callback) {
        options.reclaim = on_reclaim;
        options.reclaim_argument = client;
    }
    struct gpupool_client *opened;
    program_enter(client);
    int r = gpupool_open(&options, &opened);
    program_check_error(client, r);
    client->n_streams = 0;
    if (r == 0) {
        client->client = opened;
        client->is_open = true;
        world.tally->opens++;
        world.tally->raw_opens += (client->flags & GPUPOOL_OPEN_NO_CACHE) != 0;
        client->n_streams = JOINT_DEVICES + (unsigned)random_below(JOINT_STREAMS - JOINT_DEVICES + 1);
        for (unsigned s = 0; s < client->n_streams; s++)
            while (gpupool_stream_create(opened, s % JOINT_DEVICES, &client->streams[s]) < 0)
                must(world.memory_fails > 0, "a stream can be made");
    }
    program_leave(client);
}

static bool is_ended(void *argument) {
    const struct joint_client *client = argument;
    return client->n_ended == client->n_threads;
}

static bool has_idle_gpu(void *argument) {
    const struct joint_client *client = argument;
    return gpu_is_idle(client->number);
}

/* Without further work a stream runs to its end, however long the GPU sleeps. */
static void await_gpu(struct joint_client *client) {
    must(baton_wait(has_idle_gpu, client, world.now_ns + GPU_NS),
         "no stream waits for a word that will not be written");
}

static bool has_no_lease(void *argument) {
    const struct joint_client *client = argument;
    for (unsigned p = 0; p < world.n_pools; p++)
        if (model_leased(client->number, p) > 0)
            return false;
    return true;
}

/* Gives everything back. Then the daemon has to have all of it. */
static void empty_client(struct joint_client *client) {
    int r = 0;

    program_end_captures(client);
    for (unsigned round = 0; round < TRIMS_MAX; round++)
        for (unsigned b = 0; b < JOINT_BUFFERS; b++)
            if (client->buffers[b].is_used)
                program_release(client, &client->buffers[b]);
    await_gpu(client);
    for (unsigned round = 0; round < TRIMS_MAX; round++) {
        program_enter(client);
        r = gpupool_trim(client->client, NULL);
        program_leave(client);
        program_check_error(client, r);
        await_gpu(client);
        if (r == 0)
            break;
    }
    /* A client without a cache reads in its next call the leases that came too late. */
    bool is_deaf = world.daemon_sleeps && (client->flags & GPUPOOL_OPEN_NO_CACHE) != 0;
    if (client->is_broken || r < 0 || is_deaf)
        return;
    for (unsigned b = 0; b < JOINT_BUFFERS; b++)
        if (client->buffers[b].is_used)
            return;
    bool is_empty = baton_wait(has_no_lease, client, world.now_ns + NS_PER_S) || client->is_broken;
    if (!is_empty) { /* a lease came after its request had been given up: the next call reads it */
        size_t n_pools;
        program_enter(client);
        (void)gpupool_pools(client->client, NULL, 0, &n_pools);
        program_leave(client);
        is_empty = baton_wait(has_no_lease, client, world.now_ns + NS_PER_S) || client->is_broken;
    }
    for (unsigned p = 0; p < world.n_pools && !is_empty; p++) {
        model_tell(p);
        validate_tell(client->number, p);
    }
    must(is_empty, "a client that has given back everything holds nothing");
    world.tally->conserved++;
}

static void close_client(struct joint_client *client) {
    for (unsigned b = 0; b < JOINT_BUFFERS; b++)
        client->buffers[b].is_used = false;
    program_enter(client);
    client->is_closing = true;
    gpupool_close(client->client);
    client->is_closing = false;
    program_leave(client);
    client->client = NULL;
    client->is_open = false;
    world.tally->closes++;
}

static void run_client(struct joint_client *client) {
    struct program_thread *own = program_threads[client->number];
    struct loop *loop = &loops[client->number];
    pthread_t loop_thread;

    open_client(client);
    if (!client->is_open)
        return;
    *loop = (struct loop){.client = client, .fd = -1};
    if (client->flags == GPUPOOL_OPEN_NO_THREAD) {
        loop->fd = gpupool_fd(client->client);
        must(loop->fd >= 0 && baton_create(&loop_thread, loop_main, loop) == 0, "a loop can begin");
    }
    client->n_ended = 0;
    client->n_threads =
        world.sizes == JOINT_SIZES_CROWD ? JOINT_THREADS : 1 + (unsigned)random_below(JOINT_THREADS);
    for (unsigned t = 0; t < client->n_threads; t++) {
        own[t].client = client;
        own[t].number = t;
        must(t == 0 || baton_create(&own[t].thread, thread_main, &own[t]) == 0, "a thread can begin");
    }
    program_run_steps(&own[0]);
    baton_wait(is_ended, client, NS_FOREVER);
    for (unsigned t = 1; t < client->n_threads; t++)
        baton_join(own[t].thread);
    if (!one_in(4))
        empty_client(client);
    program_end_captures(client);
    if (loop->fd >= 0) {
        loop->is_over = true;
        baton_join(loop_thread);
    }
    close_client(client);
}

void *program_main(void *argument) {
    struct joint_client *client = argument;

    baton_set_client(client->number);
    for (client->n_opened = 0; client->n_opened < 3 && !world.is_ending; client->n_opened++) {
        run_client(client);
        if (one_in(2))
            break;
    }
    world.n_over++;
    return NULL;
}
