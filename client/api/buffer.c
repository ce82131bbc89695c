/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers: what the client's user holds. A buffer is a lease of its own, and then every acquire and release
 * is a round trip; or, in a client with a cache, a piece of an extent (client/cache/). Memory that leaves the
 * stream that used it does so behind a fence: nothing here waits for the GPU.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "client/api/buffer.h"
#include "client/api/client.h"
#include "client/api/host_copy.h"
#include "client/api/recorded.h"
#include "client/api/shared.h"
#include "client/cache/miss.h"
#include "client/cache/split_off.h"
#include "client/cache/take.h"
#include "client/session/call_time.h"
#include "client/session/error.h"
#include "client/session/lease.h"
#include "client/session/own_row.h"

struct gpupool_buffer buffer_of_grant(struct gpupool_client *client, const struct grant *grant) {
    held_add(&client->session.held, grant->lease.lease, grant->lease.generation, grant->segment->id);
    return (struct gpupool_buffer){
        .data = grant->memory,
        .size_bytes = grant->lease.size_bytes,
        .capacity_bytes = grant->lease.capacity_bytes,
        .pool = grant->lease.pool,
        .kind = grant->pool_kind,
        .device = grant->segment->device,
        .lease = grant->lease.lease,
        .generation = grant->lease.generation,
    };
}

/* Checks what a caller hands in as a buffer: a released one is zeroed, anything else may be garbage. */
static int buffer_check(const struct gpupool_buffer *buffer) {
    if (buffer == NULL)
        return error_set(GPUPOOL_E_INVALID, "no buffer");
    if (buffer->lease == 0 && buffer->data == NULL)
        return error_set(GPUPOOL_E_STALE, "the buffer was released before, or never acquired");
    if (buffer->kind != GPUPOOL_POOL_DEVICE && buffer->kind != GPUPOOL_POOL_HOST)
        return error_set(GPUPOOL_E_INVALID, "not a buffer: kind %u", buffer->kind);
    return 0;
}

#define OWN_STREAM_TEXT "GPUPOOL_OWN_STREAM is for giving memory back: name the stream"

int buffer_refuse_own_stream(const char *call) {
    return error_set(GPUPOOL_E_INVALID, "%s: " OWN_STREAM_TEXT, call);
}

int buffer_refuse_sleep(const char *call) {
    return error_set(GPUPOOL_E_INVALID, "%s: GPUPOOL_CAN_SLEEP is for gpupool_acquire() and gpupool_attach()",
                     call);
}

/* Where a stream is that goes with a buffer: of a device buffer, the buffer's device. Host memory belongs to
 * none: there ordinal is what the caller knows, or -1, and then it is found out. *ret_gpu is NULL when no GPU
 * work can touch the buffer. Refuses a stream that is being captured. */
static int find_stream(struct gpupool_client *client, uint32_t kind, int ordinal, void *stream,
                       const struct gpu **ret_gpu, unsigned *ret_device) {
    const struct gpu *gpu;

    *ret_gpu = NULL;
    if (stream == GPUPOOL_OWN_STREAM)
        return error_set(GPUPOOL_E_INVALID, OWN_STREAM_TEXT);
    if (kind == GPUPOOL_POOL_DEVICE || ordinal >= 0) {
        int r = devices_need_device(&client->session.devices, ordinal, &gpu);
        if (r < 0)
            return r;
        *ret_gpu = gpu;
        *ret_device = (unsigned)ordinal;
        return devices_check_stream(gpu, (unsigned)ordinal, stream);
    }
    int r = devices_gpu(&client->session.devices, &gpu);
    if (r < 0)
        return r;
    *ret_gpu = gpu;
    return gpu == NULL ? 0 : devices_find_stream(&client->session.devices, gpu, stream, ret_device);
}

/* Leaves a fence behind the work on a buffer. For host memory whose stream's device is not known (-1) and
 * stream NULL that is the default stream of the thread's current device, and by the default stream's nature
 * all streams of it that are not non-blocking. */
static int fence_buffer(struct gpupool_client *client, uint32_t kind, int ordinal, void *stream,
                        struct fence *ret_fence) {
    const struct gpu *gpu;
    unsigned device;

    *ret_fence = FENCE_NONE;
    if (stream == GPUPOOL_NO_STREAM)
        return 0;
    int r = find_stream(client, kind, ordinal, stream, &gpu, &device);
    return r < 0 || gpu == NULL ? r : fences_enqueue(&client->session, device, stream, ret_fence);
}

int buffer_zero(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream) {
    bool at_once = stream == GPUPOOL_NO_STREAM; /* nothing orders what follows: it is zero on return */
    const struct gpu *gpu = NULL;
    unsigned device;

    if (at_once)
        stream = NULL;
    if (buffer->kind == GPUPOOL_POOL_DEVICE || stream != NULL) {
        int r = find_stream(client, buffer->kind, buffer->device, stream, &gpu, &device);
        if (r < 0)
            return r;
    }
    if (gpu == NULL) {
        memset(buffer->data, 0, buffer->size_bytes);
        return 0;
    }
    int error = gpu->memory_set(device, buffer->data, 0, buffer->size_bytes, stream);
    if (error == 0 && at_once)
        error = gpu->stream_synchronize(device, stream);
    return error == 0 ? 0 : devices_fail_on(gpu, device, error, "zeroing it");
}

/* Checks what a request needs of a pool, besides memory. */
static int check_pool(struct gpupool_client *client, const struct pool *pool, void *stream, uint32_t flags) {
    const struct gpu *gpu;
    char text[GPU_UUID_TEXT_SIZE];

    if (pool->kind == PROTO_POOL_HOST) {
        unsigned device;
        return (flags & GPUPOOL_ZERO) == 0 || stream == NULL || stream == GPUPOOL_NO_STREAM
                   ? 0
                   : find_stream(client, GPUPOOL_POOL_HOST, -1, stream, &gpu, &device);
    }
    int r = devices_need_gpu(&client->session.devices, &gpu);
    if (r < 0)
        return r;
    int ordinal = devices_find(&client->session.devices, pool->uuid);
    if (ordinal < 0) {
        struct gpu_uuid uuid;
        memcpy(uuid.bytes, pool->uuid, sizeof uuid.bytes);
        gpu_uuid_format(&uuid, text);
        return error_set(GPUPOOL_E_NO_POOL,
                         "device %s is not visible in this process (CUDA_VISIBLE_DEVICES?)", text);
    }
    /* Zeroing would become a part of the graph instead of happening. */
    return (flags & GPUPOOL_ZERO) == 0 || stream == GPUPOOL_NO_STREAM
               ? 0
               : devices_check_stream(gpu, (unsigned)ordinal, stream);
}

int buffer_find_pool(struct gpupool_client *client, uint32_t id, void *stream, uint32_t flags,
                     struct pool *ret_pool) {
    struct pool pool;

    int r = pools_find(&client->session, id, &pool);
    if (r == 0)
        r = check_pool(client, &pool, stream, flags);
    if (r == 0)
        *ret_pool = pool;
    return r;
}

void buffer_give_back(struct gpupool_client *client, const struct gpupool_buffer *buffer) {
    if (cache_piece(buffer) != NULL)
        cache_put(&client->cache, cache_piece(buffer));
    else
        buffer_end_lease(client, buffer);
}

int buffer_begin_acquire(struct gpupool_client *client, uint32_t pool_id, uint64_t size_bytes, void *stream,
                         uint64_t timeout_ns, uint32_t flags, uint32_t probe, struct miss *miss) {
    struct pool pool;

    if ((flags & GPUPOOL_IDLE_ONLY) != 0)
        probe |= PROTO_ACQUIRE_IDLE_ONLY;
    if (size_bytes > PROTO_SIZE_MAX)
        return error_set(GPUPOOL_E_TOO_LARGE, "larger than any pool may ever be");
    int r = buffer_find_pool(client, pool_id, stream, flags, &pool);
    return r < 0 ? r
                 : miss_begin(miss, &client->session, client->cache.enabled ? &client->cache : NULL, &pool,
                              size_bytes, stream, timeout_ns, probe);
}

struct gpupool_buffer buffer_of_miss(struct gpupool_client *client, const struct miss *miss) {
    struct gpupool_buffer buffer;

    if (miss->piece == NULL)
        return buffer_of_grant(client, &miss->question.grant);
    cache_fill(&buffer, miss->piece, miss->size_bytes);
    return buffer;
}

int buffer_finish(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream,
                  uint32_t flags) {
    int r = (flags & GPUPOOL_ZERO) != 0 ? buffer_zero(client, buffer, stream) : 0;
    if (r < 0)
        buffer_give_back(client, buffer);
    return r;
}

static int acquire(struct gpupool_client *client, uint32_t pool_id, uint64_t size_bytes, void *stream,
                   uint64_t timeout_ns, uint32_t flags, uint32_t probe, struct gpupool_buffer *ret_buffer) {
    _cleanup_(call_time_end) struct call_time time = call_time_begin(timeout_ns);
    _cleanup_(bringing_endp) struct session *bringing = bringing_begin(&client->session);
    struct miss miss;

    int r = buffer_begin_acquire(client, pool_id, size_bytes, stream, timeout_ns, flags, probe, &miss);
    while (r == MISS_WAITS)
        r = miss_answer(&miss, miss_exchange(&miss));
    if (r < 0)
        return r;
    const struct gpupool_buffer buffer = buffer_of_miss(client, &miss);
    r = buffer_finish(client, &buffer, stream, flags);
    if (r == 0)
        *ret_buffer = buffer;
    return r;
}

int buffer_check_acquire(const char *call, uint64_t size_bytes, const void *stream, uint32_t flags) {
    if (size_bytes == 0)
        return error_set(GPUPOOL_E_INVALID, "%s: 0 bytes: a buffer has 1 byte or more", call);
    if (stream == GPUPOOL_OWN_STREAM)
        return buffer_refuse_own_stream(call);
    if ((flags & GPUPOOL_CAN_SLEEP) != 0)
        return buffer_refuse_sleep(call);
    if ((flags & ~(GPUPOOL_ZERO | GPUPOOL_IDLE_ONLY)) != 0)
        return error_set(GPUPOOL_E_INVALID, "%s: unknown flags 0x%x", call, flags);
    return 0;
}

int buffer_fail_acquire(int error, uint64_t size_bytes, uint32_t pool) {
    return error_prefix(error, "acquiring %s from pool %u", BYTES_TEXT(size_bytes), pool);
}

/* Acquires where there is no hit. */
static __attribute__((noinline)) int acquire_slowly(struct gpupool_client *client, uint32_t pool,
                                                    uint64_t size_bytes, void *stream, uint64_t timeout_ns,
                                                    uint32_t flags, uint32_t probe,
                                                    struct gpupool_buffer *ret_buffer) {
    int r = client_enter(client);
    if (r < 0)
        return r;
    if (ret_buffer == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_acquire: ret_buffer is NULL");
    r = buffer_check_acquire("gpupool_acquire", size_bytes, stream, flags & ~GPUPOOL_CAN_SLEEP);
    if (r < 0)
        return r;
    if ((flags & GPUPOOL_CAN_SLEEP) != 0) {
        r = buffer_acquire_own(client, pool, size_bytes, stream, timeout_ns, flags, ret_buffer);
        return error_end(r < 0 ? buffer_fail_acquire(r, size_bytes, pool) : 0);
    }
    if (client->cache.enabled && (flags & GPUPOOL_ZERO) == 0 && size_bytes <= PROTO_SIZE_MAX &&
        cache_take(&client->cache, pool, size_bytes, stream, ret_buffer))
        return error_end(0);
    r = acquire(client, pool, size_bytes, stream, timeout_ns, flags, probe, ret_buffer);
    return error_end(r < 0 ? buffer_fail_acquire(r, size_bytes, pool) : 0);
}

/* After a miss. All arguments are in registers: a hit has none to keep on the stack for this call. */
static __attribute__((noinline)) int acquire_missed(struct gpupool_client *client, uint32_t pool,
                                                    uint64_t size_bytes, void *stream, uint64_t timeout_ns,
                                                    struct gpupool_buffer *ret_buffer) {
    return acquire_slowly(client, pool, size_bytes, stream, timeout_ns, 0, 0, ret_buffer);
}

int buffer_acquire(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes, void *stream,
                   uint64_t timeout_ns, uint32_t probe, struct gpupool_buffer *ret_buffer) {
    if (client_may_hit(client) && cache_take_fast(&client->cache, pool, size_bytes, stream, ret_buffer))
        return 0;
    return acquire_slowly(client, pool, size_bytes, stream, timeout_ns, 0, probe, ret_buffer);
}

int gpupool_acquire(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes, void *stream,
                    uint64_t timeout_ns, uint32_t flags, struct gpupool_buffer *ret_buffer) {
    /* Most calls of a client with a cache are such a hit. */
    if (!client_may_hit(client) || flags != 0 || ret_buffer == NULL)
        return acquire_slowly(client, pool, size_bytes, stream, timeout_ns, flags, 0, ret_buffer);
    if (cache_take_fast(&client->cache, pool, size_bytes, stream, ret_buffer))
        return 0;
    return acquire_missed(client, pool, size_bytes, stream, timeout_ns, ret_buffer);
}

/* The buffer's piece, if it has one: of this client, and in use under the buffer's generation. */
static int find_piece(const struct gpupool_client *client, const struct gpupool_buffer *buffer,
                      struct piece **ret_piece) {
    struct piece *piece = cache_piece(buffer);

    *ret_piece = piece;
    if (piece == NULL)
        return 0;
    /* First this: a piece that is not the buffer's any more may be of a stream heap that is gone. */
    if (piece->generation != buffer->generation || piece->generation % 2 == 0)
        return error_set(GPUPOOL_E_STALE, "the buffer was released before, or its client has closed");
    if (client_of(piece->stream_heap) != client)
        return error_set(GPUPOOL_E_INVALID, "the buffer is another client's");
    return 0;
}

/* The daemon may have answered since a share() that it did not answer in time. */
static int look_at_split(struct gpupool_client *client, struct piece *piece) {
    int r = cache_end_split(&client->cache, piece, false);
    return r == GPUPOOL_E_STALE ? r : 0;
}

int buffer_enter(struct gpupool_client *client, const struct gpupool_buffer *buffer, const char *call,
                 struct piece **ret_piece) {
    int r = client_enter(client);
    if (r == 0)
        r = buffer_check(buffer);
    if (r == 0 && ret_piece != NULL)
        r = find_piece(client, buffer, ret_piece);
    if (r == 0 && ret_piece != NULL && *ret_piece != NULL && (*ret_piece)->splitting)
        r = look_at_split(client, *ret_piece);
    return r < 0 ? error_prefix(r, "%s", call) : 0;
}

struct proto_lease_name buffer_lease(const struct gpupool_buffer *buffer, const struct piece *piece) {
    return piece == NULL
               ? (struct proto_lease_name){.lease = buffer->lease, .generation = buffer->generation}
               : (struct proto_lease_name){.lease = piece->lease, .generation = piece->lease_generation};
}

/* A client without a cache has no thread that lets memory go when the daemon is gone. */
static void let_go(struct gpupool_client *client) {
    if (!client->cache.enabled)
        session_let_go(&client->session, NULL, NULL);
}

/* Gives a buffer back: its piece into the cache, or to the daemon what is a lease of its own, as it is
 * without a cache or once it was shared. */
static int release_behind(struct gpupool_client *client, const struct gpupool_buffer *buffer,
                          struct piece *piece, struct fence fence,
                          const struct proto_board_fence *board_fence) {
    if (piece != NULL && piece->splitting) {
        int given = cache_give_splitting(&client->cache, piece, fence);
        if (given != GPUPOOL_E_TIMED_OUT)
            return given;
    }
    if (piece != NULL && !piece->split_off)
        return cache_put_behind(&client->cache, piece, fence);
    struct proto_lease_name lease = buffer_lease(buffer, piece);
    int r = board_fence != NULL
                ? lease_release_shared(&client->session, lease.lease, lease.generation, fence, board_fence)
                : lease_release_patiently(&client->session, lease.lease, lease.generation, 0, 0, fence);
    if (r < 0 && connection_check(&client->session.connection) < 0) /* the daemon is gone: it is all ours */
        r = held_release(&client->session.held, lease.lease, lease.generation, fence);
    else if (r == 0)
        held_end(&client->session.held, lease.lease, lease.generation);
    if (r < 0)
        return r;
    shared_end(&client->shared, lease.lease, lease.generation);
    if (piece == NULL) {
        rows_release(&client->session, lease.lease, lease.generation, fence);
        let_go(client);
        return 0;
    }
    pthread_mutex_lock(&piece->stream_heap->lock);
    piece->generation++;
    stream_heap_forget_piece_locked(piece->stream_heap, piece, fence);
    pthread_mutex_unlock(&piece->stream_heap->lock);
    return 0;
}

/* The device of a stream that goes with a buffer, where the caller knows named of it; -1: to be found out. */
static int device_of(const struct gpupool_buffer *buffer, int named) {
    return buffer->kind == GPUPOOL_POOL_DEVICE ? buffer->device : named;
}

/* The stream that a buffer goes back behind. A piece stays in the order of its stream heap's stream, where work
 * of the memory's earlier user may be pending. A shared one leaves it, so that a program without work of its
 * own on the buffer, which names no stream, still has others wait for that work. */
static void *stream_behind(const struct piece *piece, void *stream) {
    bool leaves = piece != NULL && (piece->split_off || piece->splitting);

    return leaves && stream == GPUPOOL_NO_STREAM && cache_has_order(piece->stream_heap)
               ? piece->stream_heap->stream
               : stream;
}

/* Finds the buffer's piece, and leaves a fence where nothing else orders what comes after the work on it.
 * named: as for device_of(). *ret_others: the streams recorded for it, which the caller puts back or frees.
 */
static int settle(struct gpupool_client *client, const struct gpupool_buffer *buffer, int named, void *stream,
                  struct piece **ret_piece, struct fence *ret_fence, struct recorded_stream **ret_others) {
    int r = find_piece(client, buffer, ret_piece);
    if (r < 0)
        return r;
    struct piece *piece = *ret_piece;
    struct recorded_stream *others = recorded_take(&client->recorded, recorded_key_of(buffer, piece));
    *ret_fence = FENCE_NONE;
    *ret_others = others;
    if (others == NULL && piece != NULL && !piece->split_off && !piece->splitting &&
        cache_orders(piece->stream_heap, stream))
        return 0;
    r = fence_buffer(client, buffer->kind, device_of(buffer, named), stream_behind(piece, stream), ret_fence);
    if (r == 0 && others != NULL)
        r = recorded_fence(client, others, ret_fence);
    if (r < 0)
        recorded_put_back(&client->recorded, others);
    return r;
}

/* The memory is given back, or the buffer stays the caller's, with what is recorded for it. */
static int end_release(struct gpupool_client *client, int result, struct recorded_stream *others) {
    if (result < 0)
        recorded_put_back(&client->recorded, others);
    else
        recorded_free(others);
    return result;
}

/* Where other processes may have a buffer too, leaves a fence on the stream that they can see. *ret_is_left:
 * whether there is one. */
static int leave_for_others(struct gpupool_client *client, const struct gpupool_buffer *buffer, int named,
                            void *stream, const struct piece *piece, struct proto_board_fence *ret_fence,
                            bool *ret_is_left) {
    struct proto_lease_name lease = buffer_lease(buffer, piece);
    const struct gpu *gpu;
    unsigned device;

    *ret_is_left = false;
    if ((piece != NULL && !piece->split_off) ||
        !shared_is_noted(&client->shared, lease.lease, lease.generation))
        return 0;
    int r = find_stream(client, buffer->kind, device_of(buffer, named), stream, &gpu, &device);
    return r < 0 || gpu == NULL
               ? r
               : fences_enqueue_on_board(&client->session, device, stream, ret_fence, ret_is_left);
}

int buffer_wait(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream,
                uint64_t deadline_ns) {
    struct recorded_stream *others;
    struct piece *piece;
    struct fence fence;
    int r = settle(client, buffer, -1, stream, &piece, &fence, &others);

    return r < 0 ? r
                 : end_release(client, fence_wait(&client->session, fence, buffer->device, deadline_ns),
                               others);
}

/* Ends the sleep of a buffer that is released: its addresses go, and what was kept of its contents. */
static void end_sleep(struct gpupool_client *client, struct sleeper *sleeper, void *stream) {
    sleepers_remove(&client->sleepers, sleeper);
    host_copy_release(client, sleeper->copy, stream);
    free(sleeper);
}

/* Releases a buffer whose lease went back when it was put to sleep. */
static int release_sleeping(struct gpupool_client *client, struct sleeper *sleeper) {
    rows_release(&client->session, sleeper->lease.lease, sleeper->lease.generation, FENCE_NONE);
    end_sleep(client, sleeper, GPUPOOL_NO_STREAM);
    let_go(client);
    return 0;
}

static int release_awake(struct gpupool_client *client, const struct gpupool_buffer *buffer, int named,
                         void *stream) {
    struct proto_board_fence board_fence;
    struct recorded_stream *others;
    struct piece *piece = NULL;
    struct fence fence;
    bool is_left = false;
    int r = settle(client, buffer, named, stream, &piece, &fence, &others);

    if (r < 0)
        return r;
    /* Behind the fence in the page. Of several streams, that one alone tells: others wait for the daemon to
     * see it. */
    if (fence.word != 0 && others == NULL && stream != GPUPOOL_NO_STREAM)
        r = leave_for_others(client, buffer, named, stream, piece, &board_fence, &is_left);
    if (r == 0)
        r = release_behind(client, buffer, piece, fence, is_left ? &board_fence : NULL);
    return end_release(client, r, others);
}

static int release(struct gpupool_client *client, const struct gpupool_buffer *buffer, int named,
                   void *stream) {
    struct sleeper *sleeper = sleepers_find(&client->sleepers, buffer);

    if (sleeper != NULL && !sleeper->has_block)
        return release_sleeping(client, sleeper);
    int r = release_awake(client, buffer, named, stream);
    if (r == 0 && sleeper != NULL)
        end_sleep(client, sleeper, stream);
    return r;
}

void buffer_end_lease(struct gpupool_client *client, const struct gpupool_buffer *buffer) {
    (void)release_behind(client, buffer, NULL, FENCE_NONE, NULL);
}

int buffer_find_stream(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream,
                       const struct gpu **ret_gpu, unsigned *ret_device) {
    return find_stream(client, buffer->kind, device_of(buffer, -1), stream, ret_gpu, ret_device);
}

/* Gives the part of a buffer from kept_bytes on back. */
static int release_tail(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream,
                        uint64_t kept_bytes) {
    struct recorded_stream *others;
    struct piece *piece = NULL;
    struct fence fence;
    int r = settle(client, buffer, -1, stream, &piece, &fence, &others);

    if (r < 0)
        return r;
    recorded_put_back(&client->recorded, others); /* they use what is left, too */
    if (piece != NULL && piece->splitting) {
        r = cache_end_split(&client->cache, piece, true);
        if (r < 0)
            return r;
    }
    if (piece == NULL || piece->split_off) {
        struct proto_lease_name lease = buffer_lease(buffer, piece);
        r = lease_release_patiently(&client->session, lease.lease, lease.generation, kept_bytes,
                                    buffer->capacity_bytes - kept_bytes, fence);
        return r != GPUPOOL_E_INVALID || piece == NULL
                   ? r
                   : error_prefix(r, "a buffer that was about to be shared is given back whole if it lies in "
                                     "several segments");
    }
    if (kept_bytes >= piece->capacity_bytes)
        return error_set(GPUPOOL_E_INVALID, "a copy of the buffer was shrunk before");
    return cache_shrink_behind(&client->cache, piece, kept_bytes, fence);
}

int buffer_fail(int error, const char *doing, const struct gpupool_buffer *buffer) {
    return error_prefix(error, "%s a buffer of %s from pool %u (lease %" PRIu64 ")", doing,
                        BYTES_TEXT(buffer->size_bytes), buffer->pool, buffer->lease);
}

/* Releases where cache_release_fast() does not. named: as for device_of(). */
static __attribute__((noinline)) int release_slowly(struct gpupool_client *client,
                                                    struct gpupool_buffer *buffer, int named, void *stream) {
    int r = buffer_enter(client, buffer, "gpupool_release", NULL);
    if (r < 0)
        return r;
    r = release(client, buffer, named, stream);
    if (r < 0)
        return buffer_fail(r, "releasing", buffer);
    *buffer = (struct gpupool_buffer){0};
    return error_end(0);
}

/* The stream that a caller means by GPUPOOL_OWN_STREAM; other streams are what they are. */
static int name_stream(const struct gpupool_client *client, const struct gpupool_buffer *buffer,
                       void **stream) {
    struct piece *piece;

    if (*stream != GPUPOOL_OWN_STREAM)
        return 0;
    int r = find_piece(client, buffer, &piece);
    if (r < 0)
        return r;
    if (piece == NULL)
        return error_set(GPUPOOL_E_INVALID,
                         "GPUPOOL_OWN_STREAM: the client keeps no note of the stream of a buffer "
                         "that was attached, or of any without a cache: name the stream");
    *stream = piece->stream_heap->stream;
    return 0;
}

/* Releases on the stream that the buffer was acquired on. */
static __attribute__((noinline)) int release_own(struct gpupool_client *client,
                                                 struct gpupool_buffer *buffer) {
    void *stream = GPUPOOL_OWN_STREAM;
    int r = buffer_enter(client, buffer, "gpupool_release", NULL);
    if (r == 0)
        r = name_stream(client, buffer, &stream);
    return r < 0 ? r : gpupool_release(client, buffer, stream);
}

int gpupool_release(struct gpupool_client *client, struct gpupool_buffer *buffer, void *stream) {
    if (__builtin_expect(stream == GPUPOOL_OWN_STREAM, 0))
        return release_own(client, buffer);
    if (client_may_hit(client) && buffer != NULL && cache_release_fast(&client->cache, buffer, stream)) {
        *buffer = (struct gpupool_buffer){0};
        return 0;
    }
    return release_slowly(client, buffer, -1, stream);
}

int buffer_release_on(struct gpupool_client *client, struct gpupool_buffer *buffer, unsigned device,
                      void *stream) {
    return release_slowly(client, buffer, (int)device, stream);
}

int buffer_release_behind(struct gpupool_client *client, struct gpupool_buffer *buffer, struct fence fence) {
    struct piece *piece = NULL;
    int r = buffer_enter(client, buffer, "gpupool_release", &piece);
    if (r < 0)
        return r;
    struct recorded_stream *others = recorded_take(&client->recorded, recorded_key_of(buffer, piece));
    r = recorded_fence(client, others, &fence);
    r = end_release(client, r < 0 ? r : release_behind(client, buffer, piece, fence, NULL), others);
    if (r < 0)
        return error_prefix(r, "gpupool_release");
    *buffer = (struct gpupool_buffer){0};
    return 0;
}

/* A stream of a device buffer is first looked for on the buffer's device, then on others: a peer may use the
 * memory. */
static int find_further_stream(struct gpupool_client *client, const struct gpupool_buffer *buffer,
                               void *stream, const struct gpu **ret_gpu, unsigned *ret_device) {
    int r = find_stream(client, buffer->kind, device_of(buffer, -1), stream, ret_gpu, ret_device);
    bool is_default = (uintptr_t)stream <= (uintptr_t)GPUPOOL_PER_THREAD;
    return r == GPUPOOL_E_DRIVER && buffer->kind == GPUPOOL_POOL_DEVICE && !is_default
               ? find_stream(client, GPUPOOL_POOL_HOST, -1, stream, ret_gpu, ret_device)
               : r;
}

int gpupool_record_stream(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream) {
    const struct gpu *gpu;
    struct piece *piece = NULL;
    unsigned device;
    int r = buffer_enter(client, buffer, "gpupool_record_stream", &piece);
    if (r < 0)
        return r;
    if (stream == GPUPOOL_NO_STREAM)
        return error_set(GPUPOOL_E_INVALID, "gpupool_record_stream: GPUPOOL_NO_STREAM is no stream");
    r = buffer_check_awake(client, buffer);
    if (r < 0)
        return buffer_fail(r, "recording a stream of", buffer);
    r = find_further_stream(client, buffer, stream, &gpu, &device);
    if (r == 0 && gpu != NULL)
        r = recorded_add(&client->recorded, recorded_key_of(buffer, piece), device, stream);
    return error_end(r < 0 ? buffer_fail(r, "recording a stream of", buffer) : 0);
}

int gpupool_shrink(struct gpupool_client *client, struct gpupool_buffer *buffer, uint64_t new_size_bytes,
                   void *stream) {
    int r = buffer_enter(client, buffer, "gpupool_shrink", NULL);
    if (r == 0)
        r = name_stream(client, buffer, &stream);
    if (r < 0)
        return r;
    if (buffer->capacity_bytes > PROTO_SIZE_MAX || buffer->capacity_bytes % HEAP_GRANULE != 0)
        return error_set(GPUPOOL_E_INVALID, "gpupool_shrink: not a buffer: capacity %" PRIu64,
                         buffer->capacity_bytes);
    if (new_size_bytes == 0 || new_size_bytes > buffer->capacity_bytes)
        return error_set(GPUPOOL_E_INVALID,
                         "gpupool_shrink: to %" PRIu64 " bytes a buffer that may use %" PRIu64,
                         new_size_bytes, buffer->capacity_bytes);
    uint64_t kept_bytes = heap_round_up(new_size_bytes);
    if (cache_piece(buffer) == NULL && own_row_is(&client->session, buffer_lease(buffer, NULL)))
        return error_set(GPUPOOL_E_INVALID,
                         "gpupool_shrink: a buffer with GPUPOOL_CAN_SLEEP is given back whole");
    if (kept_bytes < buffer->capacity_bytes) {
        r = release_tail(client, buffer, stream, kept_bytes);
        if (r < 0)
            return buffer_fail(r, "shrinking", buffer);
    }
    buffer->size_bytes = new_size_bytes;
    buffer->capacity_bytes = kept_bytes;
    return error_end(0);
}

int gpupool_query(struct gpupool_client *client, const struct gpupool_buffer *buffer,
                  struct gpupool_buffer_info *ret_info) {
    struct piece *piece = NULL;
    int r = buffer_enter(client, buffer, "gpupool_query", &piece);
    if (r == 0)
        r = shared_check(client);
    if (r < 0)
        return r;
    r = buffer_check_awake(client, buffer);
    if (r < 0)
        return buffer_fail(r, "querying", buffer);
    if (ret_info == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_query: ret_info is NULL");
    _cleanup_(request_recyclep) struct request *request =
        connection_request(&client->session.connection, PROTO_QUERY);
    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    request->message.query = buffer_lease(buffer, piece);
    r = connection_exchange(&client->session.connection, &request,
                            connection_deadline_ns(&client->session.connection, 0));
    if (r < 0)
        return buffer_fail(r, "querying", buffer);

    const struct proto_info *info = &request->message.info;
    struct gpupool_buffer known = *buffer;
    uint64_t offset_bytes = info->offset_bytes;
    known.pool = info->pool;
    if (piece != NULL) {
        if (!piece->split_off) /* the lease is the extent's: the buffer is where it is in that */
            offset_bytes += stream_heap_offset_in_lease(piece);
    } else {
        known.data = rows_locate(&client->session.rows, buffer->lease, buffer->generation, info);
        if (known.data == NULL && info->parts == 0)
            known.data = segments_locate(&client->session.segments, info->segment, info->pool,
                                         info->offset_bytes, info->capacity_bytes);
        if (known.data == NULL)
            return connection_refuse(&client->session.connection,
                                     "INFO of a block that this client has not mapped");
        if (!own_row_is(&client->session, buffer_lease(buffer, NULL))) /* its lease is on whole segments */
            known.size_bytes = info->size_bytes;
        known.capacity_bytes = info->capacity_bytes;
    }
    *ret_info = (struct gpupool_buffer_info){
        .buffer = known,
        .segment = info->segment,
        .offset_bytes = offset_bytes,
        .holders = info->holders,
        .shared = info->shared,
    };
    return error_end(0);
}

int gpupool_trim(struct gpupool_client *client, uint64_t *ret_bytes) {
    uint64_t bytes = 0;
    int r = client_enter(client);
    if (r < 0)
        return r;
    if (client->cache.enabled)
        r = cache_give_back(&client->cache, false, &bytes);
    else
        rows_end_own(&client->session);
    if (!client->cache.enabled && session_is_over(&client->session))
        let_go(client);
    if (ret_bytes != NULL)
        *ret_bytes = bytes;
    return error_end(r < 0 ? error_prefix(r, "gpupool_trim") : 0);
}
