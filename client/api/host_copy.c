/* SPDX-License-Identifier: Apache-2.0 */
#include "client/api/host_copy.h"

#include <stdlib.h>

#include "base/clock.h"
#include "client/api/buffer.h"
#include "client/api/client.h"

static int acquire_chunks(struct gpupool_client *client, uint32_t pool, uint64_t bytes, uint64_t deadline_ns,
                          struct host_copy *copy) {
    int r = 0;

    for (uint64_t left = bytes; left > 0 && r == 0;) {
        uint64_t size_bytes = left < HOST_COPY_CHUNK_BYTES ? left : HOST_COPY_CHUNK_BYTES;
        r = buffer_acquire(client, pool, size_bytes, GPUPOOL_NO_STREAM, clock_left_ns(deadline_ns), 0,
                           &copy->chunks[copy->count]);
        copy->count += r == 0;
        left -= size_bytes;
    }
    return r;
}

int host_copy_new(struct gpupool_client *client, unsigned device, uint64_t bytes, uint64_t deadline_ns,
                  struct host_copy **ret_copy) {
    uint64_t most = (bytes + HOST_COPY_CHUNK_BYTES - 1) / HOST_COPY_CHUNK_BYTES;
    uint32_t pool = 0;

    int r = client_host_pool_near(client, device, &pool);
    if (r < 0)
        return r;
    struct host_copy *copy = calloc(1, sizeof *copy + most * sizeof *copy->chunks);
    if (copy == NULL)
        return error_no_memory();
    copy->device = device;
    r = acquire_chunks(client, pool, bytes, deadline_ns, copy);
    if (r < 0)
        host_copy_release(client, copy, GPUPOOL_NO_STREAM);
    else
        *ret_copy = copy;
    return r;
}

void host_copy_release(struct gpupool_client *client, struct host_copy *copy, void *stream) {
    char text[ERROR_TEXT_SIZE];

    if (copy == NULL)
        return;
    error_save(text);
    for (uint32_t i = 0; i < copy->count; i++)
        (void)buffer_release_on(client, &copy->chunks[i], copy->device, stream);
    error_restore(text);
    free(copy);
}

int host_copy_out(struct gpupool_client *client, const struct host_copy *copy, const char *memory,
                  void *stream) {
    const struct gpu *gpu = client->session.devices.gpu;
    int error = 0;

    for (uint32_t i = 0; i < copy->count && error == 0; i++) {
        error =
            gpu->memory_copy(copy->device, copy->chunks[i].data, memory, copy->chunks[i].size_bytes, stream);
        memory += copy->chunks[i].size_bytes;
    }
    return error == 0 ? 0 : devices_fail_on(gpu, copy->device, error, "copying its contents to the host");
}

int host_copy_in(struct gpupool_client *client, const struct host_copy *copy, char *memory, void *stream) {
    const struct gpu *gpu = client->session.devices.gpu;
    int error = 0;

    for (uint32_t i = 0; i < copy->count && error == 0; i++) {
        error =
            gpu->memory_copy(copy->device, memory, copy->chunks[i].data, copy->chunks[i].size_bytes, stream);
        memory += copy->chunks[i].size_bytes;
    }
    return error == 0 ? 0 : devices_fail_on(gpu, copy->device, error, "copying its contents from the host");
}
