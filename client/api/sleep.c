/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers that sleep: acquired at addresses of their own, let go, and had again at the same addresses. The own
 * row maps and unmaps memory there (client/session/own_row.h), and the table of sleepers knows which buffers sleep
 * (sleeper.h). Here is the order of the steps, and how a step that fails is undone.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "client/api/buffer.h"
#include "client/api/client.h"
#include "client/api/host_copy.h"
#include "client/api/sleeper.h"
#include "client/api/whole.h"
#include "client/session/call_time.h"
#include "client/session/error.h"
#include "client/session/lease.h"
#include "client/session/own_row.h"

int buffer_refuse_pool(const struct pool *pool) {
    return error_set(GPUPOOL_E_INVALID, "%s cannot sleep: %s",
                     pool->kind == PROTO_POOL_HOST ? "host memory" : "memory of a pool with legacy handles",
                     pool->kind == PROTO_POOL_HOST ? "sleep is for memory of a GPU"
                                                   : "have the pool configured with export = vmm");
}

/* INVALID, and what to do: the pool's memory, or a buffer that has no addresses of its own, cannot sleep. */
static int refuse_buffer(struct gpupool_client *client, const struct gpupool_buffer *buffer) {
    struct pool pool;
    int r = pools_find(&client->session, buffer->pool, &pool);

    if (r < 0)
        return r;
    return pool.is_movable
               ? error_set(GPUPOOL_E_INVALID, "the buffer has no addresses of its own, or was "
                                              "released: acquire or attach it with GPUPOOL_CAN_SLEEP")
               : buffer_refuse_pool(&pool);
}

static int refuse_of_name(void) {
    return error_set(GPUPOOL_E_INVALID, "the buffer is one of a name that sleeps: gpupool_wake_name()");
}

int buffer_check_awake(struct gpupool_client *client, const struct gpupool_buffer *buffer) {
    const struct sleeper *sleeper = sleepers_find(&client->sleepers, buffer);

    if (sleeper == NULL)
        return 0;
    return sleeper->is_of_name ? refuse_of_name()
                               : error_set(GPUPOOL_E_INVALID, "the buffer sleeps: gpupool_wake() it before");
}

/* --- buffers that can sleep --- */

static struct gpupool_buffer buffer_of_block(struct gpupool_client *client, const struct pool *pool,
                                             const struct own_block *block, uint64_t size_bytes,
                                             uint64_t capacity_bytes, char *memory) {
    const struct grant grant = {.lease = {.lease = block->lease.lease,
                                          .generation = block->lease.generation,
                                          .size_bytes = size_bytes,
                                          .capacity_bytes = capacity_bytes,
                                          .pool = pool->id},
                                .segment = block->segments[0].segment,
                                .memory = memory,
                                .pool_kind = pool->kind};
    return buffer_of_grant(client, &grant);
}

int buffer_acquire_own(struct gpupool_client *client, uint32_t pool_id, uint64_t size_bytes, void *stream,
                       uint64_t timeout_ns, uint32_t flags, struct gpupool_buffer *ret_buffer) {
    _cleanup_(call_time_end) struct call_time time = call_time_begin(timeout_ns);
    _cleanup_(bringing_endp) struct session *bringing = bringing_begin(&client->session);
    _cleanup_(whole_free) struct own_block block = {0};
    struct pool pool;
    char *memory;

    int r = buffer_find_pool(client, pool_id, stream, flags, &pool);
    if (r < 0)
        return r;
    if (!pool.is_movable)
        return buffer_refuse_pool(&pool);
    uint64_t bytes = size_bytes <= PROTO_SIZE_MAX ? whole_bytes(&pool, size_bytes) : 0;
    if (bytes == 0)
        return error_set(GPUPOOL_E_TOO_LARGE, "larger than %u segments of the pool", PROTO_ROW_PARTS_MAX);
    r = whole_acquire(client, &pool, bytes, timeout_ns, flags, &block);
    if (r < 0)
        return r;
    r = own_row_make(&client->session, &block, &memory);
    if (r < 0) {
        whole_give_back(client, &block);
        return r;
    }
    const struct gpupool_buffer buffer = buffer_of_block(client, &pool, &block, size_bytes, bytes, memory);
    r = buffer_finish(client, &buffer, stream, flags);
    if (r == 0)
        *ret_buffer = buffer;
    return r;
}

/* --- sleep --- */

/* One call of gpupool_sleep(). */
struct falling_asleep {
    struct gpupool_client *client;
    const struct gpupool_buffer *buffer;
    void *stream; /* of the work on the buffer, the copy included */
    uint64_t deadline_ns;
    struct sleeper *sleeper; /* not in the table yet */
};

/* The buffer stays awake, and its stream may copy from it still: a release on another stream, or on none, is to be
 * behind that. */
static void keep_behind_copy(struct falling_asleep *falling) {
    struct gpupool_client *client = falling->client;
    const struct gpupool_buffer *buffer = falling->buffer;
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    if (recorded_add(&client->recorded, recorded_key_of(buffer, NULL), (unsigned)buffer->device,
                     falling->stream) < 0)
        (void)client->session.devices.gpu->stream_synchronize((unsigned)buffer->device, falling->stream);
    error_restore(text);
}

/* Copies the contents out, if they are kept in host memory, and waits for all work on the buffer. Where that fails,
 * the copy goes back. */
static int settle_contents(struct falling_asleep *falling) {
    struct gpupool_client *client = falling->client;
    const struct gpupool_buffer *buffer = falling->buffer;
    struct sleeper *sleeper = falling->sleeper;
    int r = 0;

    if (sleeper->keep == GPUPOOL_KEEP_IN_HOST) {
        r = host_copy_new(client, (unsigned)buffer->device, buffer->capacity_bytes, falling->deadline_ns,
                          &sleeper->copy);
        if (r == 0)
            r = host_copy_out(client, sleeper->copy, buffer->data, falling->stream);
    }
    if (r == 0)
        r = buffer_wait(client, buffer, falling->stream, falling->deadline_ns);
    if (r < 0 && sleeper->copy != NULL) {
        keep_behind_copy(falling);
        host_copy_release(client, take_ptr(&sleeper->copy), falling->stream);
    }
    return r;
}

/* Gives the lease back, and offers the segments, so that the daemon can do with the memory what it likes. Memory that
 * stays imported here because an offer fails serves processes of the same user all the same. */
static int give_block_back(struct falling_asleep *falling) {
    struct session *session = &falling->client->session;
    const struct proto_lease_name lease = falling->sleeper->lease;
    char text[ERROR_TEXT_SIZE];
    uint32_t count;

    int r = connection_check(&session->connection);
    if (r == 0)
        r = lease_release(session, lease.lease, lease.generation, 0, 0, FENCE_NONE);
    if (r < 0)
        return r;
    held_end(&session->held, lease.lease, lease.generation);
    falling->sleeper->has_block = false;
    _cleanup_(freep) uint64_t *segments = own_row_empty(session, lease, &count);
    error_save(text);
    (void)lease_close_offered(session, falling->buffer->pool, segments, count);
    error_restore(text);
    return 0;
}

/* A step failed when the memory was unmapped, and it cannot be mapped: the buffer sleeps, and keeps its contents. */
static void sleep_on_gpu(struct falling_asleep *falling) {
    struct sleeper *sleeper = falling->sleeper;

    sleeper->keep = GPUPOOL_KEEP_ON_GPU;
    host_copy_release(falling->client, take_ptr(&sleeper->copy), GPUPOOL_NO_STREAM);
    sleepers_add(&falling->client->sleepers, take_ptr(&falling->sleeper));
}

static int fall_asleep(struct falling_asleep *falling) {
    struct session *session = &falling->client->session;
    struct sleeper *sleeper = falling->sleeper;
    bool is_unmapped = false;
    char text[ERROR_TEXT_SIZE];

    int r = settle_contents(falling);
    if (r < 0)
        return r;
    r = own_row_unmap(session, sleeper->lease, &is_unmapped);
    if (r == 0 && sleeper->keep != GPUPOOL_KEEP_ON_GPU) {
        r = give_block_back(falling);
        if (r < 0) {
            error_save(text);
            is_unmapped = own_row_map(session, sleeper->lease) < 0;
            error_restore(text);
        }
    }
    if (r == 0) {
        sleepers_add(&falling->client->sleepers, take_ptr(&falling->sleeper));
        return 0;
    }
    if (is_unmapped) {
        sleep_on_gpu(falling);
        return error_prefix(r, "the buffer sleeps, with its contents on the GPU: gpupool_wake() it");
    }
    host_copy_release(falling->client, take_ptr(&sleeper->copy), GPUPOOL_NO_STREAM);
    return r;
}

/* Whether a sleeping buffer is as it is asked to be. */
static int check_asleep(const struct sleeper *sleeper, enum gpupool_keep keep) {
    if (sleeper->is_of_name)
        return refuse_of_name();
    if (sleeper->is_mapped)
        return error_set(GPUPOOL_E_INVALID,
                         "a gpupool_wake() of the buffer has failed: call that again before");
    return sleeper->keep == keep
               ? 0
               : error_set(
                     GPUPOOL_E_INVALID,
                     "the buffer sleeps already, and keeps its contents otherwise: gpupool_wake() it before");
}

static int check_sleep(struct gpupool_client *client, const struct gpupool_buffer *buffer,
                       enum gpupool_keep keep) {
    if (!own_row_is(&client->session, buffer_lease(buffer, NULL)))
        return refuse_buffer(client, buffer);
    if (keep != GPUPOOL_KEEP_ON_GPU && shared_is_noted(&client->shared, buffer->lease, buffer->generation))
        return error_set(GPUPOOL_E_SHARED,
                         "the buffer is shared, and others may have its memory: it sleeps with "
                         "GPUPOOL_KEEP_ON_GPU alone");
    return 0;
}

static int sleep_now(struct gpupool_client *client, const struct gpupool_buffer *buffer,
                     enum gpupool_keep keep, void *stream) {
    _cleanup_(call_time_end) struct call_time time = call_time_begin(client->alloc_timeout_ns);
    _cleanup_(bringing_endp) struct session *bringing = bringing_begin(&client->session);
    bool needs_stream = keep == GPUPOOL_KEEP_IN_HOST && stream == GPUPOOL_NO_STREAM;
    struct falling_asleep falling = {.client = client,
                                     .buffer = buffer,
                                     .stream = needs_stream ? NULL : stream,
                                     .deadline_ns =
                                         clock_deadline_ns(clock_now_ns(), client->alloc_timeout_ns)};
    const struct gpu *gpu;
    unsigned device;

    int r = falling.stream == GPUPOOL_NO_STREAM
                ? 0
                : buffer_find_stream(client, buffer, falling.stream, &gpu, &device);
    if (r < 0)
        return r;
    falling.sleeper = calloc(1, sizeof *falling.sleeper);
    if (falling.sleeper == NULL)
        return error_no_memory();
    *falling.sleeper = (struct sleeper){.lease = buffer_lease(buffer, NULL), .keep = keep, .has_block = true};
    list_init(&falling.sleeper->link);
    r = fall_asleep(&falling);
    free(falling.sleeper);
    return r;
}

int gpupool_sleep(struct gpupool_client *client, const struct gpupool_buffer *buffer, enum gpupool_keep keep,
                  void *stream) {
    struct piece *piece = NULL;
    int r = buffer_enter(client, buffer, "gpupool_sleep", &piece);

    if (r < 0)
        return r;
    if (stream == GPUPOOL_OWN_STREAM)
        return buffer_refuse_own_stream("gpupool_sleep");
    if ((unsigned)keep > GPUPOOL_KEEP_IN_HOST)
        return error_set(GPUPOOL_E_INVALID, "gpupool_sleep: %u is no GPUPOOL_KEEP_…", (unsigned)keep);
    const struct sleeper *sleeper = sleepers_find(&client->sleepers, buffer);
    if (sleeper != NULL) {
        r = check_asleep(sleeper, keep);
    } else {
        r = piece != NULL ? refuse_buffer(client, buffer) : check_sleep(client, buffer, keep);
        if (r == 0)
            r = sleep_now(client, buffer, keep, stream);
    }
    return error_end(r < 0 ? buffer_fail(r, "putting to sleep", buffer) : 0);
}

/* --- wake --- */

/* Acquires another block for a sleeper, and maps it. The buffer is renamed. */
static int have_block(struct gpupool_client *client, struct sleeper *sleeper, struct gpupool_buffer *buffer,
                      uint64_t timeout_ns) {
    struct session *session = &client->session;
    _cleanup_(whole_free) struct own_block block = {0};
    struct pool pool;

    int r = pools_find(session, buffer->pool, &pool);
    if (r == 0)
        r = whole_acquire(client, &pool, own_row_bytes(session, sleeper->lease), timeout_ns, 0, &block);
    if (r < 0)
        return r;
    r = own_row_fill(session, sleeper->lease, &block);
    if (r < 0) {
        whole_give_back(client, &block);
        return r;
    }
    held_add(&session->held, block.lease.lease, block.lease.generation, block.segments[0].segment->id);
    sleepers_rename(&client->sleepers, sleeper, block.lease);
    sleeper->has_block = sleeper->is_mapped = true;
    buffer->lease = block.lease.lease;
    buffer->generation = block.lease.generation;
    return 0;
}

/* Brings the contents, in stream order. With GPUPOOL_NO_STREAM they are there on return. */
static int bring_contents(struct gpupool_client *client, struct sleeper *sleeper,
                          const struct gpupool_buffer *buffer, void *stream, uint32_t flags) {
    const struct gpu *gpu = client->session.devices.gpu;
    bool at_once = stream == GPUPOOL_NO_STREAM;
    unsigned device = (unsigned)buffer->device;

    if (sleeper->keep == GPUPOOL_KEEP_NOTHING)
        return (flags & GPUPOOL_ZERO) != 0 ? buffer_zero(client, buffer, stream) : 0;
    if (sleeper->copy == NULL)
        return 0;
    int r = host_copy_in(client, sleeper->copy, buffer->data, at_once ? NULL : stream);
    /* A part may be under way: a later wake on another stream, or a release, is behind it. */
    int error = r < 0 || at_once ? gpu->stream_synchronize(device, at_once ? NULL : stream) : 0;
    if (r == 0 && error != 0)
        r = devices_fail_on(gpu, device, error, "copying its contents from the host");
    if (r == 0)
        host_copy_release(client, take_ptr(&sleeper->copy), stream);
    return r;
}

static int wake_now(struct gpupool_client *client, struct sleeper *sleeper, struct gpupool_buffer *buffer,
                    void *stream, uint64_t timeout_ns, uint32_t flags) {
    _cleanup_(call_time_end) struct call_time time = call_time_begin(timeout_ns);
    _cleanup_(bringing_endp) struct session *bringing = bringing_begin(&client->session);
    void *used = stream == GPUPOOL_NO_STREAM ? NULL : stream;
    const struct gpu *gpu;
    unsigned device;

    int r =
        sleeper->keep == GPUPOOL_KEEP_ON_GPU ? 0 : buffer_find_stream(client, buffer, used, &gpu, &device);
    if (r == 0 && !sleeper->has_block)
        r = have_block(client, sleeper, buffer, timeout_ns);
    if (r == 0 && !sleeper->is_mapped) {
        r = own_row_map(&client->session, sleeper->lease);
        sleeper->is_mapped = r == 0;
    }
    if (r == 0)
        r = bring_contents(client, sleeper, buffer, stream, flags);
    if (r < 0)
        return r;
    sleepers_remove(&client->sleepers, sleeper);
    free(sleeper);
    return 0;
}

int gpupool_wake(struct gpupool_client *client, struct gpupool_buffer *buffer, void *stream,
                 uint64_t timeout_ns, uint32_t flags) {
    struct piece *piece = NULL;
    int r = buffer_enter(client, buffer, "gpupool_wake", &piece);

    if (r < 0)
        return r;
    if (stream == GPUPOOL_OWN_STREAM)
        return buffer_refuse_own_stream("gpupool_wake");
    if ((flags & ~GPUPOOL_ZERO) != 0)
        return error_set(GPUPOOL_E_INVALID, "gpupool_wake: unknown flags 0x%" PRIx32, flags);
    struct sleeper *sleeper = sleepers_find(&client->sleepers, buffer);
    if (sleeper != NULL && sleeper->is_of_name)
        r = refuse_of_name();
    else if (sleeper != NULL)
        r = wake_now(client, sleeper, buffer, stream, timeout_ns, flags);
    else if (piece != NULL || !own_row_is(&client->session, buffer_lease(buffer, NULL)))
        r = refuse_buffer(client, buffer);
    return error_end(r < 0 ? buffer_fail(r, "waking", buffer) : 0);
}
