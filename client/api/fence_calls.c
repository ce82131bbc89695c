/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public fences (<gpupool/fence.h>): a client's own fences (client/session/fence.h), by value, under a
 * number that names the client. The number is random, so that a fence of another process is refused and not
 * looked up in this one's page.
 */
#include <gpupool/fence.h>

#include "base/clock.h"
#include "client/api/client.h"
#include "client/session/error.h"

/* Checks what every call with a stream begins with. */
static int enter_on(struct gpupool_client *client, int device, const void *stream, const char *call,
                    const struct gpu **ret_gpu) {
    int r = client_enter_device(client, device, ret_gpu);
    return r < 0 || stream != GPUPOOL_NO_STREAM
               ? r
               : error_set(GPUPOOL_E_INVALID, "%s: GPUPOOL_NO_STREAM is no stream", call);
}

/* Finds the fence that the caller's value stands for. */
static int find_fence(const struct gpupool_client *client, const struct gpupool_fence *fence,
                      const char *call, struct fence *ret_fence) {
    if (fence == NULL)
        return error_set(GPUPOOL_E_INVALID, "%s: fence is NULL", call);
    if (fence->client == 0 && fence->word == 0) {
        *ret_fence = FENCE_NONE;
        return 0;
    }
    if (fence->client != client->session.fences.name || fence->word > PROTO_PAGE_FENCES)
        return error_set(
            GPUPOOL_E_INVALID,
            "%s: the fence is another client's, another process's, or of a client that has closed", call);
    *ret_fence = (struct fence){.word = fence->word, .value = fence->value};
    return 0;
}

int gpupool_fence_record(struct gpupool_client *client, int device, struct gpupool_fence *ret_fence,
                         void *stream) {
    const struct gpu *gpu;
    struct fence fence;
    int r = enter_on(client, device, stream, "gpupool_fence_record", &gpu);
    if (r < 0)
        return r;
    if (ret_fence == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_fence_record: ret_fence is NULL");
    r = fences_enqueue(&client->session, (unsigned)device, stream, &fence);
    if (r < 0)
        return error_prefix(r, "gpupool_fence_record");
    *ret_fence = (struct gpupool_fence){
        .client = client->session.fences.name, .value = fence.value, .word = fence.word, .device = device};
    return error_end(0);
}

int gpupool_fence_wait(struct gpupool_client *client, int device, const struct gpupool_fence *fence,
                       void *stream) {
    const struct gpu *gpu = NULL;
    struct fence found;
    int r = enter_on(client, device, stream, "gpupool_fence_wait", &gpu);
    if (r == 0)
        r = find_fence(client, fence, "gpupool_fence_wait", &found);
    if (r < 0)
        return r;
    /* Also where the fence is ready: a captured stream is always refused, not only when the GPU is late. */
    r = devices_check_stream(gpu, (unsigned)device, stream);
    if (r == 0)
        r = fence_order(&client->session, found, (unsigned)device, stream);
    return error_end(r < 0 ? error_prefix(r, "gpupool_fence_wait") : 0);
}

int gpupool_fence_query(struct gpupool_client *client, const struct gpupool_fence *fence, int *ret_ready) {
    struct fence found;
    int r = client_enter(client);
    if (r == 0)
        r = find_fence(client, fence, "gpupool_fence_query", &found);
    if (r < 0)
        return r;
    if (ret_ready == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_fence_query: ret_ready is NULL");
    *ret_ready = fence_is_ready(&client->session, found);
    return error_end(0);
}

int gpupool_fence_wait_host(struct gpupool_client *client, const struct gpupool_fence *fence,
                            uint64_t timeout_ns) {
    struct fence found;
    int r = client_enter(client);
    if (r == 0)
        r = find_fence(client, fence, "gpupool_fence_wait_host", &found);
    if (r < 0)
        return r;
    r = fence_wait(&client->session, found, fence->device, clock_deadline_ns(clock_now_ns(), timeout_ns));
    return error_end(r < 0 ? error_prefix(r, "gpupool_fence_wait_host") : 0);
}
