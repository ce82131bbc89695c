/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_PAIR_FIXTURE_H
#define TESTS_INTEGRATION_PAIR_FIXTURE_H
/* The fixture of the tests of pairs: two devices, and either side by one name. To be included once, by a test
 * program. */
#include <gpupool/pair.h>

#define TEST_SIM_GPUS 2
#include "gpu/sim/sim.h"
#include "tests/integration/cache_fixture.h"

#define SMALL_BYTES UINT64_C(100000)
#define LARGE_BYTES UINT64_C(3000001)

enum side {
    HOST,
    ON_DEVICE
};
static const enum side sides[] = {HOST, ON_DEVICE};

static inline struct gpupool_pair_side *side_of(struct gpupool_pair *pair, enum side side) {
    return side == HOST ? &pair->host : &pair->on_device;
}

/* Asks for memory as a program does. */
static inline int ask(struct gpupool_pair *pair, enum side side, uint64_t size_bytes, void **ret_memory,
                      void *stream) {
    return side == HOST ? gpupool_pair_host(pair, size_bytes, ret_memory, stream)
                        : gpupool_pair_device(pair, size_bytes, ret_memory, stream);
}

static inline void *get(struct gpupool_pair *pair, enum side side, uint64_t size_bytes, void *stream) {
    void *memory = NULL;
    MUST(ask(pair, side, size_bytes, &memory, stream));
    assert_non_null(memory);
    assert_ptr_equal(side_of(pair, side)->data, memory);
    assert_int_equal(side_of(pair, side)->size_bytes, size_bytes);
    assert_true(side_of(pair, side)->capacity_bytes >= size_bytes);
    return memory;
}

static inline struct gpupool_pair make_pair(struct gpupool_client *client, int device, uint32_t flags) {
    struct gpupool_pair pair;
    MUST(gpupool_pair_init(&pair, client, device, flags));
    return pair;
}

/* Empty, and for that no reason to be leased is left. */
static inline void expect_empty(const struct gpupool_pair *pair) {
    const struct gpupool_pair_side none = {0};
    assert_memory_equal(&pair->host, &none, sizeof none);
    assert_memory_equal(&pair->on_device, &none, sizeof none);
}

static inline void clear(struct gpupool_pair *pair, void *stream) {
    MUST(gpupool_pair_clear(pair, stream));
    expect_empty(pair);
}

/* Memory of a side, for the functions that write and read patterns. */
static inline struct gpupool_buffer as_buffer(const struct gpupool_pair *pair, enum side side,
                                              uint64_t size_bytes) {
    const struct gpupool_pair_side *own = side == HOST ? &pair->host : &pair->on_device;
    return (struct gpupool_buffer){.data = own->data,
                                   .size_bytes = size_bytes,
                                   .kind = side == HOST ? GPUPOOL_POOL_HOST : GPUPOOL_POOL_DEVICE,
                                   .device = side == HOST ? -1 : pair->device};
}

static inline void fill(const struct gpupool_pair *pair, enum side side, uint64_t size_bytes, uint64_t seed) {
    struct gpupool_buffer buffer = as_buffer(pair, side, size_bytes);
    MUST(puppet_write_pattern(pair->client, &buffer, seed, NULL));
}

static inline bool has(const struct gpupool_pair *pair, enum side side, uint64_t size_bytes, uint64_t seed) {
    struct gpupool_buffer buffer = as_buffer(pair, side, size_bytes);
    int r = puppet_read_pattern(pair->client, &buffer, seed, NULL);
    assert_true(r == 0 || r == 1);
    return r == 0;
}

static inline uint64_t leased(void) {
    return daemon_sum(&daemon_, "leased_bytes");
}

#endif
