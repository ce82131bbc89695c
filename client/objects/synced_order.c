/* SPDX-License-Identifier: Apache-2.0 */
#include "client/objects/synced_order.h"

#include "base/clock.h"
#include "client/api/client.h"
#include "client/session/error.h"

/* Whether there is no fence yet behind the use, or behind all that the stream did up to now. */
static bool lacks_fence(const struct synced_point *point, bool all) {
    return !point->has_fence || (all && point->is_open);
}

bool synced_must_order(struct gpupool_client *client, struct synced_usage *usage,
                       const struct synced_stream *by, bool writes) {
    unsigned position = 0;
    const struct synced_point *point;

    while ((point = usage_next(usage, by, writes, &position)) != NULL)
        if (lacks_fence(point, writes) || !fence_is_ready(&client->session, point->fence))
            return true;
    return false;
}

/* The fence of a use: behind what the writer wrote, or behind all that the stream did up to now. Where the
 * stream has no name here (it is another thread's) or cannot be asked for a fence (it is gone, say), the CPU
 * waits. */
static int need_fence(struct gpupool_client *client, struct synced_point *point, bool all,
                      struct fence *ret_fence) {
    const struct synced_stream *stream = &point->stream;
    int r = GPUPOOL_E_DRIVER;

    *ret_fence = point->fence;
    if (!lacks_fence(point, all))
        return 0;
    if (stream->thread == 0 || stream->thread == fence_thread_number())
        r = fences_enqueue(&client->session, stream->device, stream->handle, ret_fence);
    if (r == GPUPOOL_E_DRIVER) {
        r = devices_wait(client->session.devices.gpu, stream->device);
        *ret_fence = FENCE_NONE;
    }
    if (r < 0)
        return error_prefix(r, "a stream that used the array");
    if (!point->has_fence) {
        point->fence = *ret_fence;
        point->has_fence = true;
    }
    return 0;
}

int synced_order(struct gpupool_client *client, struct synced_usage *usage, const struct synced_stream *by,
                 bool writes) {
    unsigned position = 0;
    struct synced_point *point;
    struct fence fence;

    while ((point = usage_next(usage, by, writes, &position)) != NULL) {
        int r = need_fence(client, point, writes, &fence);
        if (r == 0)
            r = fence_order(&client->session, fence, by->device, by->handle);
        if (r < 0)
            return r;
    }
    return 0;
}

int synced_wait(struct gpupool_client *client, struct synced_usage *usage, bool writes) {
    unsigned position = 0;
    struct synced_point *point;
    struct fence fence;

    while ((point = usage_next(usage, NULL, writes, &position)) != NULL) {
        int r = need_fence(client, point, writes, &fence);
        if (r < 0)
            return r;
        r = fence_wait(&client->session, fence, (int)point->stream.device, NS_FOREVER);
        if (r < 0)
            return error_prefix(r, "waiting for a copy");
    }
    if (writes)
        usage_forget(usage);
    else
        usage_forget_writer(usage);
    return 0;
}

bool synced_leave_fence(struct gpupool_client *client, const struct synced_stream *by,
                        struct fence *ret_fence) {
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    int r = fences_enqueue(&client->session, by->device, by->handle, ret_fence);
    error_restore(text);
    return r == 0;
}
