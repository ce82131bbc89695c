/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The programs: what the threads of the clients do. They keep to the contract of gpupool.h: work on a buffer
 * is enqueued on the stream that it was acquired on, or behind that; a release names the stream of the last
 * work; streams that are captured keep the buffers that their work uses.
 */
#include <poll.h>
#include <stdint.h>
#include <string.h>

#include "client/core/target.h"
#include "tests/joint/world.h"
#include "tests/joint/wrapped.h"

#define PASSES_BOUND (4 * TARGET_PASSES)
#define TRIMS_MAX    20u
#define GPU_NS       (60 * NS_PER_S)

struct program_thread {
    struct joint_client *client;
    unsigned number;
    pthread_t thread;
};

static struct program_thread program_threads[JOINT_CLIENTS][JOINT_THREADS + 1];

/* Of each call of the library: the validators run when no thread is inside. */
static void enter(struct joint_client *client) {
    client->n_inside++;
    world.tally->calls++;
}

static void leave(struct joint_client *client) {
    client->n_inside--;
}

static void check_error(const struct joint_client *client, int r) {
    if (r == GPUPOOL_E_PROTOCOL)
        world_fail(gpupool_error_text(), "a connection does not break", __FILE__, __LINE__);
    if (r == GPUPOOL_E_DISCONNECTED && !client->is_broken)
        world_fail(gpupool_error_text(), "a connection does not end", __FILE__, __LINE__);
    if (r == GPUPOOL_E_STALE || r == GPUPOOL_E_INVALID)
        world_fail(gpupool_error_text(), "a call with valid arguments", __FILE__, __LINE__);
    /* While the daemon sleeps, memory may stay for a stream that ended: the driver does not know that. */
    if (r == GPUPOOL_E_DRIVER && world.gpu_fails == 0 && world.growth_fails == 0 && !world.has_raced &&
        !world.daemon_sleeps)
        world_fail(gpupool_error_text(), "the driver's calls fail", __FILE__, __LINE__);
}

/* --- buffers --- */

static struct held *find_room(struct joint_client *client) {
    for (unsigned b = 0; b < JOINT_BUFFERS; b++)
        if (!client->buffers[b].is_used && !client->buffers[b].is_busy)
            return &client->buffers[b];
    return NULL;
}

static struct held *pick(struct joint_client *client) {
    unsigned start = (unsigned)random_below(JOINT_BUFFERS);
    for (unsigned i = 0; i < JOINT_BUFFERS; i++) {
        struct held *held = &client->buffers[(start + i) % JOINT_BUFFERS];
        if (held->is_used && !held->is_busy)
            return held;
    }
    return NULL;
}

/* A stream of the pool's device. */
static void *pick_stream(struct joint_client *client, uint32_t pool) {
    unsigned device = pool - 1 == JOINT_HOST ? (unsigned)random_below(JOINT_DEVICES) : pool - 1;
    unsigned n = (client->n_streams + JOINT_DEVICES - 1 - device) / JOINT_DEVICES;
    return client->streams[device + JOINT_DEVICES * random_below(n)];
}

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
        check_error(client, r);
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

static void step_acquire(struct program_thread *own, bool is_mild) {
    struct joint_client *client = own->client;
    struct held *held = find_room(client);
    struct gpupool_buffer buffer;

    if (held == NULL)
        return;
    uint32_t pool = 1 + (world.main_pool < JOINT_POOLS && !one_in(8) ? world.main_pool
                                                                     : (uint32_t)random_below(world.n_pools));
    struct wanting *wanting = &client->wanting[own->number];
    void *stream = pick_stream(client, pool);
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
    enter(client);
    int r = acquire(client, wanting, &buffer);
    leave(client);
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
    check_error(client, r);
    wanting->is_on = false;
    held->is_busy = false;
}

/* A stream that work on the buffer may be enqueued on without more. */
static void *stream_of(struct joint_client *client, struct held *held) {
    if (held->stream == GPUPOOL_NO_STREAM)
        held->stream = pick_stream(client, held->buffer.pool);
    return held->stream;
}

static void work_on(struct joint_client *client, struct held *held, void *stream) {
    gpu_enqueue(client->number, stream, held);
    if (gpu_is_captured(stream))
        held->is_of_capture = true;
}

static void step_work(struct program_thread *own) {
    struct held *held = pick(own->client);

    for (unsigned i = 1 + (unsigned)random_below(3); held != NULL && i > 0; i--)
        work_on(own->client, held, stream_of(own->client, held));
}

static bool is_done_with(void *argument) {
    return gpu_is_done_with(argument);
}

/* Draws a stream to release on, and orders the buffer's work before it. */
static void *prepare_release(struct joint_client *client, struct held *held) {
    void *stream = stream_of(client, held), *other = pick_stream(client, held->buffer.pool);

    if (one_in(4) && other != stream && !gpu_is_captured(stream) && !gpu_is_captured(other)) {
        gpu_order(client->number, stream, other);
        work_on(client, held, other);
        if (one_in(2)) {
            world.tally->released_elsewhere++;
            held->stream = other;
            return other;
        }
        enter(client);
        int r = gpupool_record_stream(client->client, &held->buffer, other);
        leave(client);
        check_error(client, r);
        if (r == 0)
            world.tally->recorded++;
        else
            baton_wait(is_done_with, &held->parts, NS_FOREVER);
        return stream;
    }
    if (one_in(6)) {
        baton_wait(is_done_with, &held->parts, NS_FOREVER);
        return GPUPOOL_NO_STREAM;
    }
    return stream;
}

static void release(struct joint_client *client, struct held *held) {
    if (held->is_of_capture)
        return;
    held->is_busy = true;
    void *stream = prepare_release(client, held);
    if (!held->is_of_capture) { /* another thread may have begun a capture */
        held->is_used = false;
        enter(client);
        int r = gpupool_release(client->client, &held->buffer, stream);
        leave(client);
        check_error(client, r);
        if (r < 0) {
            held->is_used = true;
            model_resize(client, held);
        }
    }
    held->is_busy = false;
}

static void step_release(struct program_thread *own) {
    struct held *held = pick(own->client);
    if (held != NULL)
        release(own->client, held);
}

static void step_shrink(struct program_thread *own) {
    struct joint_client *client = own->client;
    struct held *held = pick(client);

    if (held == NULL || held->buffer.size_bytes < 2 || held->is_of_capture)
        return;
    held->is_busy = true;
    void *stream = stream_of(client, held);
    uint64_t wanted = 1 + random_below(held->buffer.size_bytes - 1), before = held->buffer.capacity_bytes;
    struct gpupool_buffer buffer = held->buffer;
    /* The tail may be another's before the call returns. */
    uint64_t kept = (wanted + 511) / 512 * 512;
    if (kept < before) {
        held->buffer.capacity_bytes = kept;
        model_resize(client, held);
    }
    enter(client);
    int r = gpupool_shrink(client->client, &buffer, wanted, stream);
    leave(client);
    check_error(client, r);
    held->buffer = buffer;
    model_resize(client, held);
    world.tally->shrinks += r == 0;
    held->is_busy = false;
}

static void step_trim(struct program_thread *own) {
    enter(own->client);
    int r = gpupool_trim(own->client->client, NULL);
    leave(own->client);
    check_error(own->client, r);
    world.tally->trims++;
}

/* --- captures --- */

static void end_capture(struct joint_client *client, unsigned s) {
    client->is_capturing[s] = false;
    client->captured = ++world.next_order;
    gpu_end_capture(client->streams[s]);
    for (unsigned b = 0; b < JOINT_BUFFERS; b++)
        if (client->buffers[b].stream == client->streams[s])
            client->buffers[b].is_of_capture = false;
}

void program_end_captures(struct joint_client *client) {
    for (unsigned s = 0; s < client->n_streams; s++)
        if (client->is_capturing[s])
            end_capture(client, s);
}

static void step_capture(struct program_thread *own) {
    struct joint_client *client = own->client;
    unsigned s = (unsigned)random_below(client->n_streams);

    program_end_captures(client);
    if (!world.has_captures || one_in(2))
        return;
    client->is_capturing[s] = true;
    gpu_begin_capture(client->streams[s]);
    world.tally->captures++;
}

static bool stream_is_used(const struct joint_client *client, const void *stream) {
    for (unsigned b = 0; b < JOINT_BUFFERS; b++)
        if (client->buffers[b].is_busy || (client->buffers[b].is_used && (client->buffers[b].stream == stream ||
                                                                  client->buffers[b].origin == stream)))
            return true;
    return false;
}

/* A stream ends as gpupool_trim() says, and another one takes its place. */
static void step_renew(struct program_thread *own) {
    struct joint_client *client = own->client;
    unsigned s = client->n_streams - 1;
    void *stream = client->streams[s];

    if (s < JOINT_DEVICES || client->is_capturing[s] || stream_is_used(client, stream))
        return;
    client->n_streams--;
    enter(client);
    int r = gpupool_stream_destroy(client->client, s % JOINT_DEVICES, stream);
    if (r == 0)
        world.tally->streams_destroyed++;
    check_error(client, r);
    if (r == 0 && gpupool_stream_create(client->client, s % JOINT_DEVICES, &stream) < 0)
        world_fail("a stream can be made", "", __FILE__, __LINE__);
    leave(client);
    client->streams[client->n_streams++] = stream;
}

/* --- a thread --- */

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
        step_acquire(own, false);
    else
        step_release(own);
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
    else if (is_mild && choice < 24)
        step_release(own); /* else all threads wait soon */
    else if (choice < 36)
        step_acquire(own, is_mild);
    else if (choice < 62)
        step_release(own);
    else if (choice < 86)
        step_work(own);
    else if (choice < 91)
        step_shrink(own);
    else if (choice < 94)
        step_trim(own);
    else if (choice < 97)
        step_capture(own);
    else if (own->number == 0)
        step_renew(own);
    baton_may_pass();
}

static void run_steps(struct program_thread *own) {
    for (unsigned i = 0; i < own->client->n_steps && !world.is_ending; i++)
        step_any(own);
    own->client->n_ended++;
}

static void *thread_main(void *argument) {
    run_steps(argument);
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
        enter(loop->client);
        int r = gpupool_dispatch(loop->client->client);
        leave(loop->client);
        check_error(loop->client, r);
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
    check_error(client, r);
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
    enter(client);
    int r = gpupool_open(&options, &opened);
    check_error(client, r);
    client->n_streams = 0;
    if (r == 0) {
        client->client = opened;
        client->is_open = true;
        world.tally->opens++;
        world.tally->raw_opens += (client->flags & GPUPOOL_OPEN_NO_CACHE) != 0;
        client->n_streams = JOINT_DEVICES + (unsigned)random_below(JOINT_STREAMS - JOINT_DEVICES + 1);
        for (unsigned s = 0; s < client->n_streams; s++)
            if (gpupool_stream_create(opened, s % JOINT_DEVICES, &client->streams[s]) < 0)
                client->n_streams = s;
    }
    leave(client);
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
                release(client, &client->buffers[b]);
    await_gpu(client);
    for (unsigned round = 0; round < TRIMS_MAX; round++) {
        enter(client);
        r = gpupool_trim(client->client, NULL);
        leave(client);
        check_error(client, r);
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
        enter(client);
        (void)gpupool_trim(client->client, NULL);
        leave(client);
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
    enter(client);
    client->is_closing = true;
    gpupool_close(client->client);
    client->is_closing = false;
    leave(client);
    client->client = NULL;
    client->is_open = false;
    world.tally->closes++;
}

static void run_client(struct joint_client *client) {
    struct program_thread *own = program_threads[client->number];
    struct loop *loop = &loops[client->number];
    pthread_t loop_thread;

    open_client(client);
    if (!client->is_open || client->n_streams < JOINT_DEVICES)
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
    run_steps(&own[0]);
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
