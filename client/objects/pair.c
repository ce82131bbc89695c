/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pairs: see <gpupool/pair.h>, where the accesses that find enough are. Here is what changes a side: growth,
 * adoption, clearing.
 *
 * A side has no memory, a loan, or memory of the user's. A change goes in three steps: first the new memory
 * is taken; then the old memory goes back behind the stream; only then the side is written, so that a failure
 * leaves it as it was.
 *
 * The stream of a call is named, or none, or all: then the loan goes back once the device has done all its
 * work.
 *
 * Where this process or the daemon has no GPU, a pair has a host side only, and streams mean nothing.
 */
#include <gpupool/fence.h>
#include <gpupool/pair.h>

#include <inttypes.h>
#include <string.h>

#include "base/units.h"
#include "client/api/buffer.h"
#include "client/api/client.h"
#include "client/session/error.h"

static const char *side_name(const struct gpupool_pair *pair, const struct gpupool_pair_side *side) {
    return side == &pair->host ? "host" : "device";
}

/* Whether a stream orders the side's memory: then what is enqueued there is behind what used it before. */
static bool is_named(const void *stream) {
    return stream != GPUPOOL_NO_STREAM && stream != GPUPOOL_PAIR_ALL_STREAMS;
}

/* Says which pair and side it was. */
static int fail(const struct gpupool_pair *pair, const struct gpupool_pair_side *side, int error,
                const char *doing) {
    if (pair->device < 0)
        return error_prefix(error, "%s the %s side of a pair without a device", doing, side_name(pair, side));
    return error_prefix(error, "%s the %s side of a pair on device %d", doing, side_name(pair, side),
                        pair->device);
}

/* Begins a call that changes a side: the pair is one, its client is not a parent's, its device is there, and
 * no graph captures the stream, for which the memory would have to stay. *ret_gpu is NULL where there is no
 * GPU. */
static int enter(const struct gpupool_pair *pair, void *stream, const struct gpu **ret_gpu) {
    const struct gpu *gpu = NULL;

    if (pair == NULL)
        return error_set(GPUPOOL_E_INVALID, "no pair");
    int r = client_enter(pair->client);
    if (r == 0)
        r = devices_gpu(&pair->client->session.devices, &gpu);
    if (r == 0 && gpu != NULL)
        r = devices_need_device(&pair->client->session.devices, pair->device, &gpu);
    if (r == 0 && gpu != NULL && is_named(stream))
        r = devices_check_stream(gpu, (unsigned)pair->device, stream);
    if (r == 0)
        *ret_gpu = gpu;
    return r;
}

/* Begins a call that makes no sense without a GPU. */
static int need_gpu(const struct gpupool_pair *pair) {
    const struct gpu *gpu;
    int r = client_enter(pair->client);

    return r < 0 ? r : devices_need_gpu(&pair->client->session.devices, &gpu);
}

/* Gives a side's block back, behind the stream. Without a GPU no work uses it. */
static int release(struct gpupool_pair *pair, struct gpupool_pair_side *side, const struct gpu *gpu,
                   void *stream) {
    if (gpu != NULL && is_named(stream))
        return buffer_release_on(pair->client, &side->buffer, (unsigned)pair->device, stream);
    if (gpu != NULL && stream == GPUPOOL_PAIR_ALL_STREAMS) {
        int r = devices_wait(gpu, (unsigned)pair->device);
        if (r < 0)
            return r;
    }
    return gpupool_release(pair->client, &side->buffer, GPUPOOL_NO_STREAM);
}

/* Gives a side's loan back. The side is empty on success, and as it was otherwise. */
static int side_empty(struct gpupool_pair *pair, struct gpupool_pair_side *side, const struct gpu *gpu,
                      void *stream) {
    int r = side->owner == GPUPOOL_OWNER_POOL ? release(pair, side, gpu, stream) : 0;

    if (r == 0)
        *side = (struct gpupool_pair_side){0};
    return r;
}

/* --- growth --- */

static int side_pool(const struct gpupool_pair *pair, const struct gpupool_pair_side *side,
                     uint32_t *ret_pool) {
    return side == &pair->host ? client_host_pool_near(pair->client, (unsigned)pair->device, ret_pool)
                               : gpupool_device_pool(pair->client, pair->device, ret_pool);
}

/* The host is told by the CPU, for which the memory is free on return; the device by its stream. */
static int zero(const struct gpupool_pair *pair, const struct gpupool_buffer *buffer, void *stream) {
    bool at_once = stream == GPUPOOL_NO_STREAM; /* nothing orders what follows: it is zero on return */

    if (buffer->kind == GPUPOOL_POOL_HOST) {
        memset(buffer->data, 0, buffer->capacity_bytes);
        return 0;
    }
    if (at_once)
        stream = NULL;
    int r = gpupool_set(pair->client, pair->device, buffer->data, 0, buffer->capacity_bytes, stream);
    if (r == 0 && at_once)
        r = client_synchronize(pair->client, pair->device, stream);
    return r < 0 ? error_prefix(r, "zeroing it") : 0;
}

/* Gives back a block that does not become the side's. The work that zeroes it is over then: not every
 * stream orders that before the block's next use. */
static void discard(const struct gpupool_pair *pair, const struct gpupool_buffer *buffer, void *stream) {
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    if ((pair->flags & GPUPOOL_PAIR_ZERO) != 0 && buffer->kind == GPUPOOL_POOL_DEVICE)
        /* A device that cannot be waited for does no work any more. */
        (void)client_synchronize(pair->client, pair->device, is_named(stream) ? stream : NULL);
    buffer_give_back(pair->client, buffer);
    error_restore(text);
}

/* Takes a block that work on the stream may use at once; without a named stream, work on any. */
static int take(const struct gpupool_pair *pair, const struct gpupool_pair_side *side, uint32_t pool,
                uint64_t size_bytes, void *stream, uint32_t probe, struct gpupool_buffer *ret_buffer) {
    struct gpupool_buffer buffer;

    if (!is_named(stream))
        stream = GPUPOOL_NO_STREAM;
    /* Host memory has no stream to come from, and the device's is zeroed here: all that may be used, not just
     * what is asked for now. */
    int r = buffer_acquire(pair->client, pool, size_bytes, side == &pair->host ? GPUPOOL_NO_STREAM : stream,
                           pair->timeout_ns, probe, &buffer);
    if (r < 0)
        return r;
    if ((pair->flags & GPUPOOL_PAIR_ZERO) != 0) {
        r = zero(pair, &buffer, stream);
        if (r < 0) {
            discard(pair, &buffer, stream);
            return r;
        }
    }
    *ret_buffer = buffer;
    return 0;
}

/* Whether the pool may never have room for what the side holds and what it is to hold, both at once: as far
 * as the client remembers its limit. Where that is too high now, growth waits in vain first. */
static int remember_both(const struct gpupool_pair *pair, const struct gpupool_pair_side *side,
                         uint32_t pool_id, uint64_t size_bytes, bool *ret_cannot) {
    struct pool pool;

    int r = pools_find(&pair->client->session, pool_id, &pool);
    if (r == 0)
        *ret_cannot = size_bytes <= pool.limit_bytes && side->capacity_bytes > pool.limit_bytes - size_bytes;
    return r;
}

/* Asks the daemon for the limit, before the loan is given up: the daemon may have raised the limit, or be
 * gone, and then the side would get nothing for its loan. */
static int cannot_hold_both(const struct gpupool_pair *pair, const struct gpupool_pair_side *side,
                            uint32_t pool_id, uint64_t size_bytes, bool *ret_cannot) {
    size_t count;

    int r = remember_both(pair, side, pool_id, size_bytes, ret_cannot);
    if (r < 0 || !*ret_cannot)
        return r;
    r = gpupool_pools(pair->client, NULL, 0, &count);
    if (r < 0)
        return error_prefix(r, "asking for the pool's limit");
    return remember_both(pair, side, pool_id, size_bytes, ret_cannot);
}

/* The side's block was given back to make room. Its memory becomes part of a larger block when the stream is
 * through with it, which is waited for, and when the daemon has it. Not worth a failure: without it growth
 * waits, and says why it got nothing. But on a device that failed it would wait in vain: DRIVER. */
static int make_room(const struct gpupool_pair *pair, void *stream) {
    struct gpupool_fence fence;
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    (void)gpupool_trim(pair->client, NULL);
    /* As long as growth may take, which can be for ever. */
    if (is_named(stream) && gpupool_fence_record(pair->client, pair->device, &fence, stream) == 0 &&
        gpupool_fence_wait_host(pair->client, &fence, pair->timeout_ns) == GPUPOOL_E_DRIVER)
        return error_prefix(GPUPOOL_E_DRIVER, "waiting for the stream");
    error_restore(text);
    return 0;
}

/* The loan is in the way of its successor: it goes first. */
static int grow_after_giving_back(struct gpupool_pair *pair, struct gpupool_pair_side *side,
                                  const struct gpu *gpu, uint32_t pool, uint64_t size_bytes, void *stream,
                                  struct gpupool_buffer *ret_buffer) {
    int r = side_empty(pair, side, gpu, stream);
    if (r < 0)
        return r;
    r = make_room(pair, stream);
    if (r == 0)
        r = take(pair, side, pool, size_bytes, stream, 0, ret_buffer);
    return r < 0 ? error_prefix(r, "after what it had was given back to make room") : 0;
}

static int grow(struct gpupool_pair *pair, struct gpupool_pair_side *side, uint64_t size_bytes,
                void *stream) {
    struct gpupool_buffer buffer = {0};
    const struct gpu *gpu = NULL;
    uint32_t pool;

    bool zeroes_at_once =
        !is_named(stream) && side == &pair->on_device && (pair->flags & GPUPOOL_PAIR_ZERO) != 0;
    int r = enter(pair, zeroes_at_once ? NULL : stream, &gpu);
    if (r == 0)
        r = side_pool(pair, side, &pool);
    bool has_loan = side->owner == GPUPOOL_OWNER_POOL, cannot = false;
    if (r == 0 && has_loan)
        r = cannot_hold_both(pair, side, pool, size_bytes, &cannot);
    if (r < 0)
        return r;
    if (gpu == NULL)
        stream = GPUPOOL_NO_STREAM;
    if (cannot) {
        r = grow_after_giving_back(pair, side, gpu, pool, size_bytes, stream, &buffer);
    } else {
        /* A pair that does not wait keeps its loan: room may come without that. */
        bool may_give_back = has_loan && pair->timeout_ns > 0;
        r = take(pair, side, pool, size_bytes, stream, may_give_back ? PROTO_ACQUIRE_PROBE_ROOM : 0, &buffer);
        if (r == GPUPOOL_E_EXHAUSTED && may_give_back)
            r = grow_after_giving_back(pair, side, gpu, pool, size_bytes, stream, &buffer);
    }
    if (r < 0)
        return r;
    r = side_empty(pair, side, gpu, stream);
    if (r < 0) {
        discard(pair, &buffer, stream);
        return r;
    }
    *side = (struct gpupool_pair_side){
        .data = buffer.data,
        .size_bytes = size_bytes,
        .capacity_bytes = buffer.capacity_bytes,
        .owner = GPUPOOL_OWNER_POOL,
        .buffer = buffer,
    };
    return 0;
}

static int side_grow(struct gpupool_pair *pair, struct gpupool_pair_side *side, uint64_t size_bytes,
                     void *stream) {
    if (size_bytes <= side->capacity_bytes) {
        if (size_bytes > 0)
            side->size_bytes = size_bytes;
        return 0;
    }
    int r = grow(pair, side, size_bytes, stream);
    return r < 0 ? fail(pair, side, r, "growing") : 0;
}

int gpupool_pair_grow_host(struct gpupool_pair *pair, uint64_t size_bytes, void *stream) {
    if (pair == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_pair_grow_host: no pair");
    return error_end(side_grow(pair, &pair->host, size_bytes, stream));
}

int gpupool_pair_grow_device(struct gpupool_pair *pair, uint64_t size_bytes, void *stream) {
    if (pair == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_pair_grow_device: no pair");
    return error_end(side_grow(pair, &pair->on_device, size_bytes, stream));
}

void *gpupool_pair_overflow(uint64_t element_bytes, uint64_t count) {
    error_set(GPUPOOL_E_INVALID, "%" PRIu64 " elements of %" PRIu64 " bytes: more than can be counted", count,
              element_bytes);
    return NULL;
}

/* --- from init to clear --- */

/* Finds the device of a pair, where there is a GPU: -1 is the current one. */
static int find_device(struct gpupool_client *client, int *device) {
    const struct gpu *gpu;
    uint32_t pool;

    int r = devices_gpu(&client->session.devices, &gpu);
    if (r < 0)
        return r;
    if (gpu == NULL)
        return *device >= -1 ? gpupool_host_pool(client, -1, &pool)
                             : error_set(GPUPOOL_E_INVALID, "device %d", *device);
    r = devices_resolve(&client->session.devices, device);
    if (r == 0)
        r = gpupool_device_pool(client, *device, &pool); /* there is memory to be had */
    return r < 0 ? r : devices_need_device(&client->session.devices, *device, &gpu);
}

int gpupool_pair_init(struct gpupool_pair *pair, struct gpupool_client *client, int device, uint32_t flags) {
    int r = client_enter(client);
    if (r < 0)
        return r;
    if (pair == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_pair_init: no pair");
    if ((flags & ~GPUPOOL_PAIR_ZERO) != 0)
        return error_set(GPUPOOL_E_INVALID, "gpupool_pair_init: unknown flags 0x%x", flags);
    r = find_device(client, &device);
    if (r < 0)
        return error_prefix(r, "gpupool_pair_init");
    *pair = (struct gpupool_pair){
        .client = client, .device = device, .flags = flags, .timeout_ns = client->alloc_timeout_ns};
    return error_end(0);
}

/* Gives back what a side has. An adopted side needs neither device nor stream for that. */
static int side_clear(struct gpupool_pair *pair, struct gpupool_pair_side *side, void *stream) {
    const struct gpu *gpu = NULL;
    int r = side->owner == GPUPOOL_OWNER_POOL ? enter(pair, stream, &gpu) : 0;

    if (r == 0)
        r = side_empty(pair, side, gpu, stream);
    return r < 0 ? fail(pair, side, r, "clearing") : 0;
}

int gpupool_pair_clear(struct gpupool_pair *pair, void *stream) {
    if (pair == NULL)
        return error_end(0);
    int r_host = side_clear(pair, &pair->host, stream);
    int r = side_clear(pair, &pair->on_device, stream);
    return error_end(r < 0 ? r : r_host);
}

int gpupool_pair_clear_host(struct gpupool_pair *pair, void *stream) {
    if (pair == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_pair_clear_host: no pair");
    return error_end(side_clear(pair, &pair->host, stream));
}

int gpupool_pair_clear_device(struct gpupool_pair *pair, void *stream) {
    if (pair == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_pair_clear_device: no pair");
    return error_end(side_clear(pair, &pair->on_device, stream));
}

/* --- adoption --- */

/* Whether some of it is a side's loan, which would be lent to others while the pair has it. */
static bool overlaps(const struct gpupool_pair_side *side, const void *memory, uint64_t size_bytes) {
    uintptr_t own = (uintptr_t)side->data, other = (uintptr_t)memory;
    return side->owner == GPUPOOL_OWNER_POOL && own < other + size_bytes &&
           other < own + side->capacity_bytes;
}

static int adopt(struct gpupool_pair *pair, struct gpupool_pair_side *side, void *memory, uint64_t size_bytes,
                 void *stream) {
    const struct gpu *gpu = NULL;
    int r = side == &pair->on_device ? need_gpu(pair) : 0;

    if (r < 0)
        return r;
    if ((uintptr_t)memory + size_bytes < (uintptr_t)memory)
        return error_set(GPUPOOL_E_INVALID, "%" PRIu64 " bytes at %p are no memory", size_bytes, memory);
    if (overlaps(&pair->host, memory, size_bytes) || overlaps(&pair->on_device, memory, size_bytes))
        return error_set(GPUPOOL_E_INVALID, "the memory at %p is the pair's own already", memory);
    if (side->owner == GPUPOOL_OWNER_POOL)
        r = enter(pair, stream, &gpu);
    if (r == 0)
        r = side_empty(pair, side, gpu, stream);
    if (r < 0)
        return r;
    *side = (struct gpupool_pair_side){
        .data = memory, .size_bytes = size_bytes, .capacity_bytes = size_bytes, .owner = GPUPOOL_OWNER_USER};
    return 0;
}

static int side_adopt(struct gpupool_pair *pair, struct gpupool_pair_side *side, void *memory,
                      uint64_t size_bytes, void *stream) {
    if (memory == NULL || size_bytes == 0)
        return side_clear(pair, side, stream);
    int r = adopt(pair, side, memory, size_bytes, stream);
    return r < 0 ? fail(pair, side, r, "adopting memory for") : 0;
}

int gpupool_pair_adopt_host(struct gpupool_pair *pair, void *memory, uint64_t size_bytes, void *stream) {
    if (pair == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_pair_adopt_host: no pair");
    return error_end(side_adopt(pair, &pair->host, memory, size_bytes, stream));
}

int gpupool_pair_adopt_device(struct gpupool_pair *pair, void *memory, uint64_t size_bytes, void *stream) {
    if (pair == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_pair_adopt_device: no pair");
    return error_end(side_adopt(pair, &pair->on_device, memory, size_bytes, stream));
}

/* --- copies --- */

static int copy(const struct gpupool_pair *pair, const struct gpupool_pair_side *to,
                const struct gpupool_pair_side *from, uint64_t size_bytes, void *stream) {
    bool at_once = stream == GPUPOOL_NO_STREAM;
    const struct gpu *gpu;
    int r = need_gpu(pair);

    if (r < 0)
        return fail(pair, to, r, "copying to");
    if (stream == GPUPOOL_PAIR_ALL_STREAMS)
        return error_set(GPUPOOL_E_INVALID, "a copy is made on one stream, and not on all");
    if (at_once)
        stream = NULL;
    if (size_bytes > to->capacity_bytes || size_bytes > from->capacity_bytes)
        return error_set(GPUPOOL_E_INVALID,
                         "copying %s within a pair whose host side has %s and whose device side %s",
                         BYTES_TEXT(size_bytes), BYTES_TEXT(pair->host.capacity_bytes),
                         BYTES_TEXT(pair->on_device.capacity_bytes));
    if (at_once && size_bytes > 0) /* in a graph it would not be done on return */
        r = enter(pair, stream, &gpu);
    if (r == 0)
        r = gpupool_copy(pair->client, pair->device, to->data, from->data, size_bytes, stream);
    if (r == 0 && at_once && size_bytes > 0)
        r = client_synchronize(pair->client, pair->device, stream);
    return r < 0 ? fail(pair, to, r, "copying to") : 0;
}

int gpupool_pair_copy_to_device(struct gpupool_pair *pair, uint64_t size_bytes, void *stream) {
    if (pair == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_pair_copy_to_device: no pair");
    return error_end(copy(pair, &pair->on_device, &pair->host, size_bytes, stream));
}

int gpupool_pair_copy_to_host(struct gpupool_pair *pair, uint64_t size_bytes, void *stream) {
    if (pair == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_pair_copy_to_host: no pair");
    return error_end(copy(pair, &pair->host, &pair->on_device, size_bytes, stream));
}
