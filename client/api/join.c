/* SPDX-License-Identifier: Apache-2.0 */
#include "client/api/join.h"

#include "client/api/client.h"

void joins_close(struct joins *joins, const struct gpu *gpu) {
    for (unsigned device = 0; device < DEVICES_MAX; device++)
        for (unsigned i = 0; i < JOIN_STREAMS; i++) {
            struct join_stream *stream = &joins->streams[device][i];
            if (stream->handle != NULL)
                (void)gpu->stream_destroy(device, stream->handle);
            *stream = (struct join_stream){0};
        }
}

/* A stream that is idle, a new one, or the one whose turn it is. NULL: the driver makes none. */
static struct join_stream *choose_locked(struct gpupool_client *client, unsigned device) {
    struct joins *joins = &client->joins;
    struct join_stream *streams = joins->streams[device];

    for (unsigned i = 0; i < JOIN_STREAMS; i++) {
        if (streams[i].handle != NULL && fence_is_ready(&client->session, streams[i].last))
            return &streams[i];
        if (streams[i].handle == NULL)
            return client->session.devices.gpu->stream_create(device, &streams[i].handle) == 0 ? &streams[i]
                                                                                               : NULL;
    }
    return &streams[joins->next[device]++ % JOIN_STREAMS];
}

/* Has a stream of the library's wait. On failure it may wait for some of the fences, which does no harm. */
static int join_on_device(struct gpupool_client *client, unsigned device, const struct fence *fences,
                          unsigned count, struct fence *ret_fence) {
    struct joins *joins = &client->joins;
    int r = GPUPOOL_E_DRIVER;

    pthread_mutex_lock(&joins->lock);
    struct join_stream *stream = choose_locked(client, device);
    if (stream != NULL) {
        r = 0;
        for (unsigned i = 0; r == 0 && i < count; i++)
            r = fence_order(&client->session, fences[i], device, stream->handle);
        if (r == 0)
            r = fences_enqueue(&client->session, device, stream->handle, &stream->last);
        if (r == 0)
            *ret_fence = stream->last;
    }
    pthread_mutex_unlock(&joins->lock);
    return r;
}

static int join_on_cpu(struct gpupool_client *client, const struct fence *fences, unsigned count) {
    uint64_t deadline_ns = connection_deadline_ns(&client->session.connection, 0);
    int r = 0;

    for (unsigned i = 0; r == 0 && i < count; i++)
        r = fence_wait(&client->session, fences[i], -1, deadline_ns);
    return r;
}

/* Adds a fence to those that are waited for: *last is the one added last. A word's later fence stands for its
 * earlier ones. */
static bool adds_word(struct fence *last, struct fence fence) {
    if (last->word != fence.word) {
        *last = fence;
        return true;
    }
    if (proto_fence_is_ready(fence.value, last->value))
        *last = fence;
    return false;
}

int fences_join(struct gpupool_client *client, unsigned device, const struct fence *fences, unsigned count,
                struct fence *ret_fence) {
    struct fence joined = FENCE_NONE;
    unsigned waiting = 0;
    int r = 0;

    for (unsigned i = 0; i < count; i++)
        if (!fence_is_ready(&client->session, fences[i]) && adds_word(&joined, fences[i]))
            waiting++;
    if (waiting > 1) {
        r = join_on_device(client, device, fences, count, &joined);
        if (r < 0) {
            joined = FENCE_NONE;
            r = join_on_cpu(client, fences, count);
        }
    }
    if (r == 0)
        *ret_fence = joined;
    return r;
}
