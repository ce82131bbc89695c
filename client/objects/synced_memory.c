/* SPDX-License-Identifier: Apache-2.0 */
#include "client/objects/synced_memory.h"

#include "client/api/buffer.h"
#include "client/api/client.h"
#include "client/objects/synced_order.h"
#include "client/session/error.h"

static int release_on(struct gpupool_client *client, struct gpupool_buffer *buffer,
                      const struct synced_stream *by) {
    struct fence fence;

    if (buffer->kind == GPUPOOL_POOL_HOST || buffer->device == (int)by->device)
        return buffer_release_on(client, buffer, by->device, by->handle);
    int r = fences_enqueue(&client->session, by->device, by->handle, &fence);
    return r < 0 ? r : buffer_release_behind(client, buffer, fence);
}

/* Nothing of it lands in a graph: a stream that is captured is refused. */
static int release(struct gpupool_client *client, struct gpupool_buffer *buffer,
                   const struct synced_stream *by) {
    if (by == NULL)
        return gpupool_release(client, buffer, GPUPOOL_NO_STREAM);
    int r = devices_check_stream(client->session.devices.gpu, by->device, by->handle);
    return r < 0 ? r : release_on(client, buffer, by);
}

int memory_drop(struct gpupool_client *client, struct synced_memory *memory, const struct synced_stream *by) {
    bool is_idle = by == NULL || !synced_must_order(client, &memory->usage, NULL, true);

    if (!is_idle) {
        int r = synced_order(client, &memory->usage, by, true);
        if (r < 0)
            return r;
    }
    if (memory->owner == GPUPOOL_OWNER_POOL) {
        int r = release(client, &memory->buffer, is_idle ? NULL : by);
        /* Where the session is over, so is the loan: the daemon takes it back when this process ended. */
        if (r < 0 && connection_check(&client->session.connection) == 0)
            return error_prefix(r, "giving its memory back");
    }
    memory->data = NULL;
    memory->capacity_bytes = 0;
    memory->owner = GPUPOOL_OWNER_NONE;
    usage_forget(&memory->usage);
    return 0;
}

static int find_pool(struct gpupool_client *client, enum synced_side side, unsigned device,
                     uint32_t *ret_pool) {
    return side == SYNCED_DEVICE ? gpupool_device_pool(client, (int)device, ret_pool)
                                 : client_host_pool_near(client, device, ret_pool);
}

int memory_need(struct gpupool_client *client, struct synced_memory *memory, enum synced_side side,
                uint64_t size_bytes, const struct synced_stream *by) {
    uint32_t pool;

    if (memory->data != NULL && size_bytes <= memory->capacity_bytes)
        return 0;
    int r = find_pool(client, side, by->device, &pool);
    /* Memory that is too small has no contents that count: its room may be just what is missing. */
    if (r == 0)
        r = memory_drop(client, memory, by);
    /* Not the stream's, which may end before the array: unused memory can serve any stream. */
    if (r == 0)
        r = gpupool_acquire(client, pool, size_bytes, GPUPOOL_NO_STREAM, client->alloc_timeout_ns, 0,
                            &memory->buffer);
    if (r < 0)
        return r;
    memory->data = memory->buffer.data;
    memory->capacity_bytes = memory->buffer.capacity_bytes;
    memory->owner = GPUPOOL_OWNER_POOL;
    return 0;
}

bool memory_overlaps(const struct synced_memory *memory, const void *data, uint64_t size_bytes) {
    uintptr_t own = (uintptr_t)memory->data, other = (uintptr_t)data;
    return memory->owner == GPUPOOL_OWNER_POOL && own < other + size_bytes &&
           other < own + memory->capacity_bytes;
}

int memory_adopt(struct gpupool_client *client, struct synced_memory *memory, void *data, uint64_t size_bytes,
                 const struct synced_stream *by) {
    int r = memory_drop(client, memory, by);
    if (r < 0)
        return r;
    memory->data = data;
    memory->capacity_bytes = size_bytes;
    memory->owner = GPUPOOL_OWNER_USER;
    return 0;
}

void memory_deinit(struct synced_memory *memory) {
    usage_deinit(&memory->usage);
}
