/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers: what the client's user holds. This version makes each buffer a lease of its own: every acquire and
 * release is a round trip, and a release waits for its stream. The caches of a thread and of the process will
 * stand between these functions and lease_take and lease_give_back below; fences will take the place of
 * wait_for_stream.
 */
#include <inttypes.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/units.h"
#include "client/client.h"
#include "client/error.h"

/* What blocks are multiples of on the wire. */
#define GRANULE UINT64_C(512)

/* Gives back a lease that could not be used. The error that led here is the one to report. */
static void lease_give_back(struct gpupool_client *client, const struct proto_lease *lease) {
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    _cleanup_(request_recyclep) struct request *request =
        connection_request(&client->connection, PROTO_RELEASE);
    if (request != NULL) {
        request->message.release =
            (struct proto_release){.lease = lease->lease, .generation = lease->generation};
        (void)connection_exchange(&client->connection, &request, client_deadline_ns(client, 0));
    }
    error_restore(text);
}

/* Waits for an ACQUIRE's or ATTACH's LEASE and opens its segment. The lease is copied out, because the
 * request goes back at once. */
static int lease_take(struct gpupool_client *client, struct request *request, uint64_t deadline_ns,
                      struct proto_lease *ret_lease, struct pool *ret_pool, struct segment **ret_segment) {
    _cleanup_(request_recyclep) struct request *reply = request;
    struct pool pool;

    int r = connection_exchange(&client->connection, &reply, deadline_ns);
    if (r < 0)
        return r;
    const struct proto_lease *lease = &reply->message.lease;
    struct segment *segment = reply->segment;
    r = pools_find(&client->pools, &client->connection, client_deadline_ns(client, 0), lease->pool, &pool);
    if (r == 0 && (segment->kind == PROTO_SEGMENT_MEMFD) != (pool.kind == PROTO_POOL_HOST))
        return connection_refuse(&client->connection, "a segment of another kind than its pool");
    if (r == 0)
        r = segments_open(&client->segments, segment, &client->devices, pool.uuid);
    if (r < 0) {
        lease_give_back(client, lease);
        return r;
    }
    *ret_lease = *lease;
    *ret_pool = pool;
    *ret_segment = segment;
    return 0;
}

static struct gpupool_buffer buffer_make(const struct proto_lease *lease, const struct pool *pool,
                                         const struct segment *segment) {
    return (struct gpupool_buffer){
        .data = (char *)segment->memory + lease->offset_bytes,
        .size_bytes = lease->size_bytes,
        .capacity_bytes = lease->capacity_bytes,
        .pool = pool->id,
        .kind = pool->kind,
        .device = segment->device,
        .lease = lease->lease,
        .generation = lease->generation,
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

/* Where a stream is that goes with a buffer: of a device buffer, the buffer's device. Host memory belongs to
 * none. *ret_gpu is NULL when no GPU work can touch the buffer. Refuses a stream that is being captured. */
static int find_stream(struct gpupool_client *client, uint32_t kind, int ordinal, void *stream,
                       const struct gpu **ret_gpu, unsigned *ret_device) {
    const struct gpu *gpu;

    if (kind == GPUPOOL_POOL_DEVICE) {
        int r = devices_need_device(&client->devices, ordinal, &gpu);
        if (r < 0)
            return r;
        *ret_gpu = gpu;
        *ret_device = (unsigned)ordinal;
        return devices_check_stream(gpu, (unsigned)ordinal, stream);
    }
    int r = devices_gpu(&client->devices, &gpu);
    if (r < 0)
        return r;
    *ret_gpu = gpu;
    return gpu == NULL ? 0 : devices_find_stream(&client->devices, gpu, stream, ret_device);
}

/* For host memory and stream NULL this waits for the default stream of the thread's current device, and by
 * the default stream's nature for all streams of it that are not non-blocking. */
static int wait_for_stream(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream) {
    const struct gpu *gpu;
    unsigned device;

    int r = find_stream(client, buffer->kind, buffer->device, stream, &gpu, &device);
    if (r < 0 || gpu == NULL)
        return r;
    int error = gpu->stream_synchronize(device, stream);
    if (error == 0)
        return 0;
    devices_fail(gpu, error, "waiting for the stream");
    return error_prefix(GPUPOOL_E_DRIVER, "device %u", device);
}

static int buffer_zero(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream) {
    const struct gpu *gpu = NULL;
    unsigned device;

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
    if (error == 0)
        return 0;
    devices_fail(gpu, error, "zeroing it");
    return error_prefix(GPUPOOL_E_DRIVER, "device %u", device);
}

/* What can be said before the daemon is asked: the pool is one, its device is visible, the stream is no
 * graph's. */
static int check_pool(struct gpupool_client *client, uint32_t id, void *stream, uint32_t flags) {
    const struct gpu *gpu;
    struct pool pool;
    char text[GPU_UUID_TEXT_SIZE];

    int r = pools_find(&client->pools, &client->connection, client_deadline_ns(client, 0), id, &pool);
    if (r < 0)
        return r;
    if (pool.kind == PROTO_POOL_HOST) {
        unsigned device;
        return (flags & GPUPOOL_ZERO) == 0 || stream == NULL
                   ? 0
                   : find_stream(client, GPUPOOL_POOL_HOST, -1, stream, &gpu, &device);
    }
    r = devices_need_gpu(&client->devices, &gpu);
    if (r < 0)
        return r;
    int ordinal = devices_find(&client->devices, pool.uuid);
    if (ordinal < 0) {
        struct gpu_uuid uuid;
        memcpy(uuid.bytes, pool.uuid, sizeof uuid.bytes);
        gpu_uuid_format(&uuid, text);
        return error_set(GPUPOOL_E_NO_POOL,
                         "device %s is not visible in this process (CUDA_VISIBLE_DEVICES?)", text);
    }
    /* Opening a segment while a graph is captured would break the capture, and zeroing would become a part of
     * the graph instead of happening. */
    return devices_check_stream(gpu, (unsigned)ordinal, stream);
}

static int acquire(struct gpupool_client *client, uint32_t pool_id, uint64_t size_bytes, void *stream,
                   uint64_t timeout_ns, uint32_t flags, struct gpupool_buffer *ret_buffer) {
    struct proto_lease lease;
    struct pool pool;
    struct segment *segment;

    int r = check_pool(client, pool_id, stream, flags);
    if (r < 0)
        return r;
    struct request *request = connection_request(&client->connection, PROTO_ACQUIRE);
    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    request->message.acquire =
        (struct proto_acquire){.pool = pool_id, .size_bytes = size_bytes, .timeout_ns = timeout_ns};
    r = lease_take(client, request, client_deadline_ns(client, timeout_ns), &lease, &pool, &segment);
    if (r < 0)
        return r;
    if (lease.pool != pool_id || lease.size_bytes != size_bytes)
        return connection_refuse(&client->connection, "a lease of another pool or size than asked for");

    struct gpupool_buffer buffer = buffer_make(&lease, &pool, segment);
    if ((flags & GPUPOOL_ZERO) != 0) {
        r = buffer_zero(client, &buffer, stream);
        if (r < 0) {
            lease_give_back(client, &lease);
            return r;
        }
    }
    *ret_buffer = buffer;
    return 0;
}

int gpupool_acquire(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes, void *stream,
                    uint64_t timeout_ns, uint32_t flags, struct gpupool_buffer *ret_buffer) {
    int r = client_enter(client);
    if (r < 0)
        return r;
    if (ret_buffer == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_acquire: ret_buffer is NULL");
    if (size_bytes == 0)
        return error_set(GPUPOOL_E_INVALID, "gpupool_acquire: 0 bytes");
    if ((flags & ~GPUPOOL_ZERO) != 0)
        return error_set(GPUPOOL_E_INVALID, "gpupool_acquire: unknown flags 0x%x", flags);
    r = size_bytes > PROTO_SIZE_MAX
            ? error_set(GPUPOOL_E_TOO_LARGE, "larger than any pool may ever be")
            : acquire(client, pool, size_bytes, stream, timeout_ns, flags, ret_buffer);
    return r < 0 ? error_prefix(r, "acquiring %s from pool %u", BYTES_TEXT(size_bytes), pool) : 0;
}

/* A part of size 0 is the whole lease. */
static int release(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream,
                   uint64_t offset_bytes, uint64_t size_bytes) {
    int r = wait_for_stream(client, buffer, stream);
    if (r < 0)
        return r;
    _cleanup_(request_recyclep) struct request *request =
        connection_request(&client->connection, PROTO_RELEASE);
    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    request->message.release = (struct proto_release){
        .lease = buffer->lease,
        .generation = buffer->generation,
        .offset_bytes = offset_bytes,
        .size_bytes = size_bytes,
    };
    return connection_exchange(&client->connection, &request, client_deadline_ns(client, 0));
}

static int fail_buffer(int error, const char *doing, const struct gpupool_buffer *buffer) {
    return error_prefix(error, "%s a buffer of %s from pool %u (lease %" PRIu64 ")", doing,
                        BYTES_TEXT(buffer->size_bytes), buffer->pool, buffer->lease);
}

int gpupool_release(struct gpupool_client *client, struct gpupool_buffer *buffer, void *stream) {
    int r = client_enter(client);
    if (r < 0)
        return r;
    r = buffer_check(buffer);
    if (r < 0)
        return error_prefix(r, "gpupool_release");
    r = release(client, buffer, stream, 0, 0);
    if (r < 0)
        return fail_buffer(r, "releasing", buffer);
    *buffer = (struct gpupool_buffer){0};
    return 0;
}

int gpupool_shrink(struct gpupool_client *client, struct gpupool_buffer *buffer, uint64_t new_size_bytes,
                   void *stream) {
    int r = client_enter(client);
    if (r < 0)
        return r;
    r = buffer_check(buffer);
    if (r < 0)
        return error_prefix(r, "gpupool_shrink");
    if (buffer->capacity_bytes > PROTO_SIZE_MAX || buffer->capacity_bytes % GRANULE != 0)
        return error_set(GPUPOOL_E_INVALID, "gpupool_shrink: not a buffer: capacity %" PRIu64,
                         buffer->capacity_bytes);
    if (new_size_bytes == 0 || new_size_bytes > buffer->capacity_bytes)
        return error_set(GPUPOOL_E_INVALID,
                         "gpupool_shrink: to %" PRIu64 " bytes a buffer that may use %" PRIu64,
                         new_size_bytes, buffer->capacity_bytes);
    uint64_t kept_bytes = (new_size_bytes + GRANULE - 1) / GRANULE * GRANULE;
    if (kept_bytes < buffer->capacity_bytes) {
        r = release(client, buffer, stream, kept_bytes, buffer->capacity_bytes - kept_bytes);
        if (r < 0)
            return fail_buffer(r, "shrinking", buffer);
    }
    buffer->size_bytes = new_size_bytes;
    buffer->capacity_bytes = kept_bytes;
    return 0;
}

int gpupool_share(struct gpupool_client *client, const struct gpupool_buffer *buffer,
                  struct gpupool_token *ret_token) {
    int r = client_enter(client);
    if (r < 0)
        return r;
    r = buffer_check(buffer);
    if (r < 0)
        return error_prefix(r, "gpupool_share");
    if (ret_token == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_share: ret_token is NULL");
    _cleanup_(request_recyclep) struct request *request =
        connection_request(&client->connection, PROTO_SHARE);
    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    request->message.share =
        (struct proto_lease_name){.lease = buffer->lease, .generation = buffer->generation};
    r = connection_exchange(&client->connection, &request, client_deadline_ns(client, 0));
    if (r < 0)
        return fail_buffer(r, "sharing", buffer);
    _Static_assert(sizeof ret_token->bytes == sizeof request->message.token.bytes,
                   "one token on wire and in API");
    memcpy(ret_token->bytes, request->message.token.bytes, sizeof ret_token->bytes);
    return 0;
}

int gpupool_attach(struct gpupool_client *client, const struct gpupool_token *token,
                   struct gpupool_buffer *ret_buffer) {
    struct proto_lease lease;
    struct pool pool;
    struct segment *segment;

    int r = client_enter(client);
    if (r < 0)
        return r;
    if (token == NULL || ret_buffer == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_attach: no token, or ret_buffer is NULL");
    struct request *request = connection_request(&client->connection, PROTO_ATTACH);
    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    memcpy(request->message.attach.bytes, token->bytes, sizeof token->bytes);
    r = lease_take(client, request, client_deadline_ns(client, 0), &lease, &pool, &segment);
    if (r < 0)
        return error_prefix(r, "attaching a shared buffer"); /* the token is a secret: not into any log */
    *ret_buffer = buffer_make(&lease, &pool, segment);
    return 0;
}

int gpupool_query(struct gpupool_client *client, const struct gpupool_buffer *buffer,
                  struct gpupool_buffer_info *ret_info) {
    int r = client_enter(client);
    if (r < 0)
        return r;
    r = buffer_check(buffer);
    if (r < 0)
        return error_prefix(r, "gpupool_query");
    if (ret_info == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_query: ret_info is NULL");
    _cleanup_(request_recyclep) struct request *request =
        connection_request(&client->connection, PROTO_QUERY);
    if (request == NULL)
        return GPUPOOL_E_NO_MEMORY;
    request->message.query =
        (struct proto_lease_name){.lease = buffer->lease, .generation = buffer->generation};
    r = connection_exchange(&client->connection, &request, client_deadline_ns(client, 0));
    if (r < 0)
        return fail_buffer(r, "querying", buffer);

    const struct proto_info *info = &request->message.info;
    void *data = segments_locate(&client->segments, info->segment, info->pool, info->offset_bytes,
                                 info->capacity_bytes);
    if (data == NULL)
        return connection_refuse(&client->connection, "INFO of a block that this client has not mapped");
    struct gpupool_buffer known = *buffer;
    known.data = data;
    known.size_bytes = info->size_bytes;
    known.capacity_bytes = info->capacity_bytes;
    known.pool = info->pool;
    *ret_info = (struct gpupool_buffer_info){
        .buffer = known,
        .segment = info->segment,
        .offset_bytes = info->offset_bytes,
        .holders = info->holders,
        .shared = info->shared,
    };
    return 0;
}
