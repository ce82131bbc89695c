/* SPDX-License-Identifier: Apache-2.0 */
/* Fences as a C++ program uses them, on the per-thread default stream, which need not be said, and on another. */
#include <gpupool/fence.h>

#include "cplusplus.h"

static void try_it(gpupool_client *client) {
    gpupool_fence first = GPUPOOL_FENCE_INIT, second = first;
    gpupool_buffer host;
    uint32_t pool = 0;
    void *stream = nullptr;
    int ready = 0;

    check(gpupool_stream_create(client, 0, &stream) == 0, "stream");
    check(gpupool_host_pool(client, -1, &pool) == 0, "pool");
    check(gpupool_acquire(client, pool, 4096, nullptr, GPUPOOL_FOREVER, GPUPOOL_ZERO, &host) == 0, "acquire");
    check(gpupool_set(client, 0, host.data, 1, 4096) == 0, "set");
    check(gpupool_fence_record(client, 0, &first) == 0, "record");
    check(gpupool_fence_wait(client, 0, &first, stream) == 0, "wait");
    check(gpupool_set(client, 0, host.data, 2, 2048, stream) == 0, "set behind it");
    check(gpupool_fence_record(client, 0, &second, stream) == 0, "record behind it");
    check(gpupool_fence_wait(client, 0, &second) == 0, "wait on the thread's own stream");
    check(gpupool_fence_wait_host(client, &second, GPUPOOL_FOREVER) == 0, "wait on the CPU");
    check(gpupool_fence_query(client, &first, &ready) == 0 && ready == 1, "ready");
    const char *bytes = static_cast<const char *>(host.data);
    check(bytes[0] == 2 && bytes[2047] == 2 && bytes[2048] == 1 && bytes[4095] == 1, "contents");
    check(gpupool_release(client, &host, stream) == 0, "release");
    check(gpupool_stream_destroy(client, 0, stream) == 0, "the stream's end");
}

int main() {
    return run("fences", try_it);
}
