/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_PASSED_BUFFERS_H
#define TESTS_INTEGRATION_PASSED_BUFFERS_H
/* For tests of buffers that go from client to client: their contents, and the end of a client that has a stream. */
#include "tests/integration/cache_fixture.h"

#define SIZE (64 * KIB)

static const unsigned kinds[] = {GPUPOOL_POOL_DEVICE, GPUPOOL_POOL_HOST};

/* Copies the buffer to ordinary memory and looks at each byte. */
static inline void expect_bytes(struct gpupool_client *client, const struct gpupool_buffer *buffer, int byte,
                                void *stream) {
    struct gpupool_buffer seen = acquire(client, GPUPOOL_POOL_HOST, SIZE, GPUPOOL_NO_STREAM);
    const uint8_t *bytes = seen.data;

    MUST(gpupool_copy(client, 0, seen.data, buffer->data, SIZE, stream));
    MUST(gpupool_stream_synchronize(client, 0, stream));
    for (unsigned i = 0; i < SIZE; i++)
        if (bytes[i] != byte)
            fail_msg("byte %u is %d, not %d", i, bytes[i], byte);
    MUST(gpupool_release(client, &seen, GPUPOOL_NO_STREAM));
}

static inline void close_with_stream(struct gpupool_client *client, void *stream) {
    MUST(gpupool_trim(client, NULL));
    MUST(gpupool_stream_destroy(client, 0, stream));
    gpupool_close(client);
}

#endif
