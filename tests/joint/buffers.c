/* SPDX-License-Identifier: Apache-2.0 */
/* The buffers of a program: work on them, their releases, and the streams and captures that use them. */
#include <stdint.h>

#include "tests/joint/program.h"

void program_enter(struct joint_client *client) {
    client->n_inside++;
    world.tally->calls++;
}

void program_leave(struct joint_client *client) {
    client->n_inside--;
}

void program_check_error(const struct joint_client *client, int r) {
    if (r == GPUPOOL_E_PROTOCOL)
        world_fail(gpupool_error_text(), "a connection does not break", __FILE__, __LINE__);
    if (r == GPUPOOL_E_DISCONNECTED && !client->is_broken)
        world_fail(gpupool_error_text(), "a connection does not end", __FILE__, __LINE__);
    if (r == GPUPOOL_E_LOST && !world.has_dropped)
        world_fail(gpupool_error_text(), "no work of a dead client is lost", __FILE__, __LINE__);
    if (r == GPUPOOL_E_STALE || r == GPUPOOL_E_INVALID)
        world_fail(gpupool_error_text(), "a call with valid arguments", __FILE__, __LINE__);
    if (r == GPUPOOL_E_NO_MEMORY && world.memory_fails == 0)
        world_fail(gpupool_error_text(), "allocations fail", __FILE__, __LINE__);
    /* While the daemon sleeps, memory may stay for a stream that ended: the driver does not know that. */
    if (r == GPUPOOL_E_DRIVER && world.gpu_fails == 0 && world.memory_fails == 0 && world.growth_fails == 0 &&
        !world.has_raced && !world.daemon_sleeps && !world.has_died) /* memory of legacy handles */
        world_fail(gpupool_error_text(), "the driver's calls fail", __FILE__, __LINE__);
}

/* --- buffers --- */

struct held *program_find_room(struct joint_client *client) {
    for (unsigned b = 0; b < JOINT_BUFFERS; b++)
        if (!client->buffers[b].is_used && !client->buffers[b].is_busy)
            return &client->buffers[b];
    return NULL;
}

struct held *program_pick(struct joint_client *client) {
    unsigned start = (unsigned)random_below(JOINT_BUFFERS);
    for (unsigned i = 0; i < JOINT_BUFFERS; i++) {
        struct held *held = &client->buffers[(start + i) % JOINT_BUFFERS];
        if (held->is_used && !held->is_busy)
            return held;
    }
    return NULL;
}

void *program_pick_stream(struct joint_client *client, uint32_t pool) {
    unsigned device = pool - 1 == JOINT_HOST ? (unsigned)random_below(JOINT_DEVICES) : pool - 1;
    unsigned n = (client->n_streams + JOINT_DEVICES - 1 - device) / JOINT_DEVICES;
    return client->streams[device + JOINT_DEVICES * random_below(n)];
}

void *program_stream_of(struct joint_client *client, struct held *held) {
    if (held->stream == GPUPOOL_NO_STREAM)
        held->stream = program_pick_stream(client, held->buffer.pool);
    return held->stream;
}

static void work_on(struct joint_client *client, struct held *held, void *stream) {
    gpu_enqueue(client->number, stream, held);
    if (gpu_is_captured(stream))
        held->is_of_capture = true;
}

void program_work(struct program_thread *own) {
    struct held *held = program_pick(own->client);

    for (unsigned i = 1 + (unsigned)random_below(3); held != NULL && i > 0; i--)
        work_on(own->client, held, program_stream_of(own->client, held));
}

/* The GPU is done with what this program did. */
static bool is_done_with(void *argument) {
    const struct held *held = argument;
    return gpu_is_past(held->loan, gpu_now());
}

/* Draws a stream to release on, and orders the buffer's work before it. */
static void *prepare_release(struct joint_client *client, struct held *held) {
    void *stream = program_stream_of(client, held), *other = program_pick_stream(client, held->buffer.pool);

    if (one_in(4) && other != stream && !gpu_is_captured(stream) && !gpu_is_captured(other)) {
        gpu_order(client->number, stream, other);
        work_on(client, held, other);
        if (one_in(2)) {
            world.tally->released_elsewhere++;
            held->stream = other;
            return other;
        }
        held->was_elsewhere = true;
        program_enter(client);
        int r = gpupool_record_stream(client->client, &held->buffer, other);
        program_leave(client);
        program_check_error(client, r);
        if (r == 0)
            world.tally->recorded++;
        else
            baton_wait(is_done_with, held, NS_FOREVER);
        return stream;
    }
    if (one_in(6)) {
        baton_wait(is_done_with, held, NS_FOREVER);
        return GPUPOOL_NO_STREAM;
    }
    return stream;
}

void program_release(struct joint_client *client, struct held *held) {
    if (held->is_of_capture)
        return;
    held->is_busy = true;
    void *stream = prepare_release(client, held);
    if (!held->is_of_capture) { /* another thread may have begun a capture */
        held->is_used = false;
        program_enter(client);
        int r = gpupool_release(client->client, &held->buffer, stream);
        program_leave(client);
        program_check_error(client, r);
        if (r < 0) {
            held->is_used = true;
            model_resize(client, held);
        }
    }
    held->is_busy = false;
}

void program_release_any(struct program_thread *own) {
    struct held *held = program_pick(own->client);
    if (held != NULL)
        program_release(own->client, held);
}

void program_shrink(struct program_thread *own) {
    struct joint_client *client = own->client;
    struct held *held = program_pick(client);

    if (held == NULL || held->buffer.size_bytes < 2 || held->is_of_capture || held->is_shared)
        return;
    held->is_busy = true;
    void *stream = program_stream_of(client, held);
    uint64_t wanted = 1 + random_below(held->buffer.size_bytes - 1), before = held->buffer.capacity_bytes;
    struct gpupool_buffer buffer = held->buffer;
    /* The tail may be another's before the call returns. */
    uint64_t kept = (wanted + 511) / 512 * 512;
    if (kept < before) {
        held->buffer.capacity_bytes = kept;
        model_resize(client, held);
    }
    program_enter(client);
    int r = gpupool_shrink(client->client, &buffer, wanted, stream);
    program_leave(client);
    program_check_error(client, r);
    held->buffer = buffer;
    model_resize(client, held);
    world.tally->shrinks += r == 0;
    held->is_busy = false;
}

void program_trim(struct program_thread *own) {
    program_enter(own->client);
    int r = gpupool_trim(own->client->client, NULL);
    program_leave(own->client);
    program_check_error(own->client, r);
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

void program_capture(struct program_thread *own) {
    struct joint_client *client = own->client;
    unsigned s = (unsigned)random_below(client->n_streams);

    program_end_captures(client);
    if (!world.has_captures || one_in(2))
        return;
    client->is_capturing[s] = true;
    gpu_begin_capture(client->streams[s]);
    world.tally->captures++;
}

/* A buffer whose release has failed keeps the streams that were recorded for it. */
static bool stream_is_used(const struct joint_client *client, const void *stream) {
    for (unsigned b = 0; b < JOINT_BUFFERS; b++) {
        const struct held *held = &client->buffers[b];
        if (held->is_busy ||
            (held->is_used && (held->stream == stream || held->origin == stream || held->was_elsewhere)))
            return true;
    }
    return false;
}

void program_renew_stream(struct program_thread *own) {
    struct joint_client *client = own->client;
    unsigned s = client->n_streams - 1;
    void *stream = client->streams[s];

    if (s < JOINT_DEVICES || client->is_capturing[s] || stream_is_used(client, stream))
        return;
    client->n_streams--;
    program_enter(client);
    int r = gpupool_stream_destroy(client->client, s % JOINT_DEVICES, stream);
    if (r == 0)
        world.tally->streams_destroyed++;
    program_check_error(client, r);
    while (r == 0 && gpupool_stream_create(client->client, s % JOINT_DEVICES, &stream) < 0)
        must(world.memory_fails > 0, "a stream can be made");
    program_leave(client);
    client->streams[client->n_streams++] = stream;
}
