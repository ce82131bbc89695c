/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_STAGING_FIXTURE_H
#define TESTS_INTEGRATION_STAGING_FIXTURE_H
/*
 * The fixture of the tests of staging: clients whose copies are cut into small chunks, patterns, device
 * memory that is looked at in another way than by staging, copies there and back, and that nothing stays
 * leased. To be included once, by a test program.
 */
#include <inttypes.h>

#include <gpupool/staging.h>

#include "base/cleanup.h"

#include "client/objects/staging/staging.h"
#include "gpu/sim/sim.h"
#include "tests/integration/gate.h"

#define CHUNK (64 * KIB)

/* A byte that no other place near has, nor the same place of another pattern. */
static inline uint8_t pattern(uint64_t seed, uint64_t at) {
    uint64_t mixed = (at + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ seed * UINT64_C(0xc2b2ae3d27d4eb4f);
    return (uint8_t)(mixed >> 29);
}

static inline void fill(void *memory, uint64_t size_bytes, uint64_t seed) {
    for (uint64_t i = 0; i < size_bytes; i++)
        ((uint8_t *)memory)[i] = pattern(seed, i);
}

static inline void expect(const void *memory, uint64_t size_bytes, uint64_t seed) {
    for (uint64_t i = 0; i < size_bytes; i++)
        if (((const uint8_t *)memory)[i] != pattern(seed, i))
            fail_msg("byte %" PRIu64 " of %" PRIu64 " is 0x%02x, not 0x%02x", i, size_bytes,
                     ((const uint8_t *)memory)[i], pattern(seed, i));
}

static inline void *need_memory(uint64_t size_bytes) {
    void *memory = malloc(size_bytes);
    assert_non_null(memory);
    return memory;
}

/* How many threads the client has started for copies. */
static inline unsigned copy_workers_started(struct gpupool_client *client) {
    struct staging *staging = staging_of(client);
    return staging == NULL ? 0 : staging->workers.started;
}

/* Device memory as the driver's own copies see it, behind what is on the stream. */
static inline void expect_on_device(struct gpupool_client *client, const void *memory, uint64_t size_bytes,
                                    uint64_t seed, void *stream) {
    _cleanup_(freep) void *seen = need_memory(size_bytes);
    MUST(gpupool_copy(client, 0, seen, memory, size_bytes, stream));
    MUST(gpupool_stream_synchronize(client, 0, stream));
    expect(seen, size_bytes, seed);
}

static inline void fill_on_device(struct gpupool_client *client, void *memory, uint64_t size_bytes,
                                  uint64_t seed, void *stream) {
    _cleanup_(freep) void *filled = need_memory(size_bytes);
    fill(filled, size_bytes, seed);
    MUST(gpupool_copy(client, 0, memory, filled, size_bytes, stream));
    MUST(gpupool_stream_synchronize(client, 0, stream));
}

static inline struct gpupool_client *open_staging(unsigned threads, uint32_t flags) {
    char text[16];
    snprintf(text, sizeof text, "%u", threads);
    setenv("GPUPOOL_STAGING_THREADS", text, 1);
    setenv("GPUPOOL_STAGING_CHUNK", "64KiB", 1);
    struct gpupool_client *client = open_client(&daemon_, flags, GPUPOOL_FOREVER);
    unsetenv("GPUPOOL_STAGING_THREADS");
    unsetenv("GPUPOOL_STAGING_CHUNK");
    return client;
}

/* The bytes that the client has of the host pool, without those that it keeps idle. */
static inline bool has_host_memory(struct gpupool_client *client, uint64_t wanted_bytes) {
    MUST(gpupool_trim(client, NULL));
    return host_pool("leased_bytes") == wanted_bytes;
}

/* Blocks that are behind fences come back when those are ready. */
static inline void expect_no_blocks(struct gpupool_client *client) {
    WAIT_UNTIL(has_host_memory(client, 0));
}

/* Up, and down again, between odd places. */
static inline void there_and_back(struct gpupool_client *client, void *stream, uint64_t size_bytes,
                                  unsigned odd) {
    struct gpupool_buffer device = acquire(client, GPUPOOL_POOL_DEVICE, size_bytes + 16, stream);
    _cleanup_(freep) char *from = need_memory(size_bytes + 16), *to = need_memory(size_bytes + 16);
    char *place = (char *)device.data + odd % 3;

    fill(from + odd, size_bytes, size_bytes + odd);
    memset(to, 0x5a, size_bytes + 16);
    MUST(gpupool_upload(client, 0, place, from + odd, size_bytes, stream));
    memset(from, 0, size_bytes + 16); /* it was read */
    expect_on_device(client, place, size_bytes, size_bytes + odd, stream);
    MUST(gpupool_download(client, 0, to + odd, place, size_bytes, stream));
    expect(to + odd, size_bytes, size_bytes + odd);
    for (unsigned i = 0; i < odd; i++)
        assert_int_equal(to[i], 0x5a);
    for (uint64_t i = odd + size_bytes; i < size_bytes + 16; i++)
        assert_int_equal(to[i], 0x5a);
    MUST(gpupool_release(client, &device, stream));
}

#define SKIP_WITHOUT_DEVICE()                                                                                \
    do {                                                                                                     \
        if (!test_has_device())                                                                              \
            skip();                                                                                          \
    } while (0)

#endif
