/* SPDX-License-Identifier: Apache-2.0 */
/* A user's program, in what C and C++ have in common: takes a buffer from the host pool, one from a device
 * pool, uses both and gives them back; then the same by pointer. */
#include <gpupool/gpupool.h>

#include <stdio.h>
#include <string.h>

#define SIZE_BYTES 65536

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, gpupool_error_text());
    return 1;
}

int main(void) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client = NULL;
    struct gpupool_buffer host, device, back;
    uint32_t host_pool = 0, device_pool = 0;
    void *stream = NULL;

    if (gpupool_open(&options, &client) < 0)
        return fail("open");
    if (gpupool_host_pool(client, -1, &host_pool) < 0 || gpupool_device_pool(client, 0, &device_pool) < 0)
        return fail("pools");
    if (gpupool_stream_create(client, 0, &stream) < 0)
        return fail("stream");
    if (gpupool_acquire(client, host_pool, SIZE_BYTES, NULL, UINT64_C(10000000000), 0, &host) < 0 ||
        gpupool_acquire(client, host_pool, SIZE_BYTES, NULL, UINT64_C(10000000000), GPUPOOL_ZERO, &back) <
            0 ||
        gpupool_acquire(client, device_pool, SIZE_BYTES, stream, UINT64_C(10000000000), 0, &device) < 0)
        return fail("acquire");
    memset(host.data, 0x5a, SIZE_BYTES);
    if (gpupool_copy(client, 0, device.data, host.data, SIZE_BYTES, stream) < 0 ||
        gpupool_copy(client, 0, back.data, device.data, SIZE_BYTES, stream) < 0 ||
        gpupool_stream_synchronize(client, 0, stream) < 0)
        return fail("copy");
    if (memcmp(host.data, back.data, SIZE_BYTES) != 0) {
        fprintf(stderr, "what came back is not what went in\n");
        return 1;
    }
    if (gpupool_release(client, &device, stream) < 0 || gpupool_release(client, &host, NULL) < 0 ||
        gpupool_release(client, &back, NULL) < 0)
        return fail("release");
    void *memory = gpupool_alloc(client, host_pool, SIZE_BYTES, NULL);
    if (memory == NULL || gpupool_lookup(memory, NULL, &host) < 0 || host.data != memory)
        return fail("alloc");
    memset(memory, 0x5a, SIZE_BYTES);
    if (gpupool_free(memory, NULL) < 0)
        return fail("free");
    if (gpupool_stream_destroy(client, 0, stream) < 0)
        return fail("stream");
    gpupool_close(client);
    printf("gpupool %s: 65536 bytes there and back\n", gpupool_version());
    return 0;
}
