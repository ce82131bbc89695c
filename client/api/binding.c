/* SPDX-License-Identifier: Apache-2.0 */
#include "client/api/binding.h"

#include <unistd.h>

#include "base/clock.h"
#include "base/own_mapping.h"
#include "client/api/client.h"
#include "client/api/private_daemon.h"
#include "client/session/error.h"

bool gpupool_internal_acquire_hit(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes,
                                  void *stream, struct gpupool_buffer *ret_buffer) {
    return client_may_hit(client) && cache_take_fast(&client->cache, pool, size_bytes, stream, ret_buffer);
}

bool gpupool_internal_release_hit(struct gpupool_client *client, struct gpupool_buffer *buffer,
                                  const void *stream) {
    if (!client_may_hit(client) || !cache_release_fast(&client->cache, buffer, stream))
        return false;
    *buffer = (struct gpupool_buffer){0};
    return true;
}

bool gpupool_internal_request_is_complete(struct gpupool_client *client, uint64_t request) {
    return requests_is_complete(client, request);
}

bool gpupool_internal_is_connected(const struct gpupool_client *client) {
    return !fork_guard_is_child(&client->session.guard) && connection_is_up(&client->session.connection);
}

int gpupool_internal_check_process(const struct gpupool_client *client) {
    return fork_guard_check(&client->session.guard);
}

int gpupool_internal_check_address(const void *address) {
    return own_mapping_is_parents(address)
               ? error_set(GPUPOOL_E_FORKED, "memory of a pool that the parent of this process has is not "
                                             "mapped in a forked child")
               : 0;
}

const char *gpupool_internal_private_path(void) {
    return private_daemon_path();
}

int gpupool_internal_stream_device(struct gpupool_client *client, void *stream, int *ret_device) {
    const struct gpu *gpu;
    unsigned device;
    int r = devices_gpu(&client->session.devices, &gpu);

    if (r == 0 && gpu != NULL)
        r = devices_find_stream(&client->session.devices, gpu, stream, &device);
    if (r == 0)
        *ret_device = gpu == NULL ? -1 : (int)device;
    return r;
}

bool gpupool_internal_can_map_read_only(struct gpupool_client *client, uint32_t pool) {
    struct pool found;
    return pools_find(&client->session, pool, &found) == 0 && found.is_movable;
}

uint64_t gpupool_internal_alloc_timeout_ns(const struct gpupool_client *client) {
    return client->alloc_timeout_ns;
}

uint64_t gpupool_internal_answer_end_ns(const struct gpupool_client *client) {
    return client == NULL ? clock_now_ns() : connection_deadline_ns(&client->session.connection, 0);
}

void gpupool_internal_until_signal(uint64_t end_ns) {
    struct client_thread *thread = client_thread();

    if (getpid() != gettid())
        return;
    thread->until_signal = end_ns != 0;
    thread->call_end_ns = end_ns;
}
