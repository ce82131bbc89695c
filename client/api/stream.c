/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams and copies over the driver table: for programs that also run on a simulated GPU, or that do not
 * link CUDA themselves. The daemon is asked whether it serves the device, once; a client whose daemon is gone
 * can still copy its buffers away.
 */
#include "client/api/client.h"
#include "client/cache/give_back.h"
#include "client/session/error.h"

static int end(const struct gpu *gpu, int device, int error, const char *what) {
    return error_end(error == 0 ? 0 : devices_fail_on(gpu, (unsigned)device, error, what));
}

int gpupool_stream_create(struct gpupool_client *client, int device, void **ret_stream) {
    const struct gpu *gpu;
    int r = client_enter_served(client, device, &gpu);
    if (r < 0)
        return r;
    if (ret_stream == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_stream_create: ret_stream is NULL");
    return end(gpu, device, gpu->stream_create((unsigned)device, ret_stream), "creating a stream");
}

int gpupool_stream_destroy(struct gpupool_client *client, int device, void *stream) {
    const struct gpu *gpu;
    bool stays = false;
    int r = client_enter_device(client, device, &gpu);
    if (r < 0)
        return r;
    /* Memory of any device may lie here for this stream. The driver may give the handle to another stream,
     * which would not order it. A failure of the driver or the daemon shows when the memory is given back the
     * next time. Memory that stays is used by no work of this stream any more. */
    if (client->cache.enabled)
        r = give_back_stream(&client->cache, stream, &stays);
    if (r < 0)
        return error_end(error_prefix(r, "destroying a stream, which was not destroyed"));
    if (stays)
        (void)gpu->stream_synchronize((unsigned)device, stream);
    fences_leave_stream(&client->session.fences, stream);
    fences_leave_stream(&client->session.board_fences, stream);
    return end(gpu, device, gpu->stream_destroy((unsigned)device, stream), "destroying a stream");
}

int client_synchronize(struct gpupool_client *client, int device, void *stream) {
    const struct gpu *gpu;
    int r = client_enter_device(client, device, &gpu);
    if (r < 0)
        return r;
    return end(gpu, device, gpu->stream_synchronize((unsigned)device, stream), "waiting for a stream");
}

int gpupool_stream_synchronize(struct gpupool_client *client, int device, void *stream) {
    int r = client_synchronize(client, device, stream);
    return r < 0 ? r : shared_check(client);
}

int gpupool_device_synchronize(struct gpupool_client *client, int device) {
    const struct gpu *gpu;
    int r = client_enter_device(client, device, &gpu);
    if (r == 0)
        r = devices_wait(gpu, (unsigned)device);
    return r < 0 ? r : error_end(0);
}

int gpupool_stream_is_captured(struct gpupool_client *client, int device, void *stream,
                               int *ret_is_captured) {
    const struct gpu *gpu;
    int r = client_enter_device(client, device, &gpu);
    if (r == 0 && ret_is_captured == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_stream_is_captured: ret_is_captured is NULL");
    if (r == 0)
        r = devices_check_stream(gpu, (unsigned)device, stream);
    if (r < 0 && r != GPUPOOL_E_CAPTURING)
        return r;
    *ret_is_captured = r != 0;
    return error_end(0);
}

int gpupool_copy(struct gpupool_client *client, int device, void *to, const void *from, uint64_t size_bytes,
                 void *stream) {
    const struct gpu *gpu;
    int r = client_enter_served(client, device, &gpu);
    if (r < 0)
        return r;
    if (size_bytes == 0)
        return error_end(0);
    if (to == NULL || from == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_copy: from or to NULL");
    return end(gpu, device, gpu->memory_copy((unsigned)device, to, from, size_bytes, stream), "copying");
}

int gpupool_set(struct gpupool_client *client, int device, void *memory, int byte, uint64_t size_bytes,
                void *stream) {
    const struct gpu *gpu;
    int r = client_enter_served(client, device, &gpu);
    if (r < 0)
        return r;
    if (size_bytes == 0)
        return error_end(0);
    if (memory == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_set: memory is NULL");
    return end(gpu, device, gpu->memory_set((unsigned)device, memory, (uint8_t)byte, size_bytes, stream),
               "setting memory");
}
