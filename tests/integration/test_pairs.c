/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pairs: host and device memory of one object, each of which only grows. Two devices, of which the calling
 * thread has another current than the pair is on; on every kind of stream; and whatever fails in the middle
 * of it.
 */
#include <gpupool/pair.h>

#include <sys/wait.h>

#define TEST_SIM_GPUS 2
#include "gpu/sim.h"
#include "tests/integration/cache_fixture.h"
#include "tests/integration/gate.h"

#define SMALL_BYTES UINT64_C(100000)
#define LARGE_BYTES UINT64_C(3000001)
#define BEYOND      (UINT64_C(100) << 50)

enum side {
    HOST,
    ON_DEVICE
};
static const enum side sides[] = {HOST, ON_DEVICE};

static struct gpupool_pair_side *side_of(struct gpupool_pair *pair, enum side side) {
    return side == HOST ? &pair->host : &pair->on_device;
}

/* Asks for memory as a program does. */
static int ask(struct gpupool_pair *pair, enum side side, uint64_t size_bytes, void **ret_memory,
               void *stream) {
    return side == HOST ? gpupool_pair_host(pair, size_bytes, ret_memory, stream)
                        : gpupool_pair_device(pair, size_bytes, ret_memory, stream);
}

static void *get(struct gpupool_pair *pair, enum side side, uint64_t size_bytes, void *stream) {
    void *memory = NULL;
    MUST(ask(pair, side, size_bytes, &memory, stream));
    assert_non_null(memory);
    assert_ptr_equal(side_of(pair, side)->data, memory);
    assert_int_equal(side_of(pair, side)->size_bytes, size_bytes);
    assert_true(side_of(pair, side)->capacity_bytes >= size_bytes);
    return memory;
}

static struct gpupool_pair make_pair(struct gpupool_client *client, int device, uint32_t flags) {
    struct gpupool_pair pair;
    MUST(gpupool_pair_init(&pair, client, device, flags));
    return pair;
}

/* Empty, and for that no reason to be leased is left. */
static void expect_empty(const struct gpupool_pair *pair) {
    const struct gpupool_pair_side none = {0};
    assert_memory_equal(&pair->host, &none, sizeof none);
    assert_memory_equal(&pair->on_device, &none, sizeof none);
}

static void clear(struct gpupool_pair *pair, void *stream) {
    MUST(gpupool_pair_clear(pair, stream));
    expect_empty(pair);
}

/* Memory of a side, for the functions that write and read patterns. */
static struct gpupool_buffer as_buffer(const struct gpupool_pair *pair, enum side side, uint64_t size_bytes) {
    const struct gpupool_pair_side *own = side == HOST ? &pair->host : &pair->on_device;
    return (struct gpupool_buffer){.data = own->data,
                                   .size_bytes = size_bytes,
                                   .kind = side == HOST ? GPUPOOL_POOL_HOST : GPUPOOL_POOL_DEVICE,
                                   .device = side == HOST ? -1 : pair->device};
}

static void fill(const struct gpupool_pair *pair, enum side side, uint64_t size_bytes, uint64_t seed) {
    struct gpupool_buffer buffer = as_buffer(pair, side, size_bytes);
    MUST(puppet_write_pattern(pair->client, &buffer, seed, NULL));
}

static bool has(const struct gpupool_pair *pair, enum side side, uint64_t size_bytes, uint64_t seed) {
    struct gpupool_buffer buffer = as_buffer(pair, side, size_bytes);
    int r = puppet_read_pattern(pair->client, &buffer, seed, NULL);
    assert_true(r == 0 || r == 1);
    return r == 0;
}

static uint64_t leased(void) {
    return daemon_sum(&daemon_, "leased_bytes");
}

/* A test of pairs on each device that there is, with each kind of stream: null, per-thread, created, none.
 * The current device is always the first, and stays so. */
static void on_each_stream(void (*test)(struct gpupool_client *client, int device, void *stream)) {
    if (!test_has_device())
        skip();
    for (int device = 0; device < (test_has_devices(2) ? 2 : 1); device++)
        for (unsigned kind = 0; kind < 4; kind++) {
            struct gpupool_client *client = open_cached();
            void *stream = kind == 0 ? NULL : kind == 1 ? GPUPOOL_PER_THREAD : GPUPOOL_NO_STREAM;
            unsigned current = 77;
            if (kind == 2)
                MUST(gpupool_stream_create(client, device, &stream));
            test(client, device, stream);
            assert_true(lanes_are_valid(client));
            MUST(gpupool_trim(client, NULL));
            WAIT_UNTIL(leased() == 0);
            if (kind == 2)
                MUST(gpupool_stream_destroy(client, device, stream));
            assert_int_equal(client->devices.gpu->device_current(&current), 0);
            assert_int_equal(current, 0);
            close_cached(client);
        }
}

/* --- growing only --- */

static void grow_and_keep(struct gpupool_client *client, int device, void *stream) {
    struct gpupool_pair pair = make_pair(client, device, 0);
    unsigned current = 0;

    expect_empty(&pair);
    assert_int_equal(leased(), 0);
    assert_int_equal(pair.device, device);
    for (unsigned i = 0; i < 2; i++) {
        enum side side = sides[i], other = sides[1 - i];
        const struct gpupool_pair_side *own = side_of(&pair, side), before = *side_of(&pair, other);

        void *memory = get(&pair, side, SMALL_BYTES, stream);
        assert_int_equal(own->owner, GPUPOOL_OWNER_POOL);
        assert_int_equal(own->buffer.kind, side == HOST ? GPUPOOL_POOL_HOST : GPUPOOL_POOL_DEVICE);
        assert_int_equal(own->buffer.device, side == HOST ? -1 : device);
        assert_int_equal((uintptr_t)memory % 512, 0);
        fill(&pair, side, SMALL_BYTES, 5);
        /* whatever is asked for up to the capacity is there already, with what was in it */
        for (uint64_t size_bytes = own->capacity_bytes; size_bytes > 0; size_bytes /= 2)
            assert_ptr_equal(get(&pair, side, size_bytes, stream), memory);
        MUST(side == HOST ? gpupool_pair_grow_host(&pair, 7, stream)
                          : gpupool_pair_grow_device(&pair, 7, stream));
        assert_ptr_equal(own->data, memory);
        assert_int_equal(own->size_bytes, 7);
        assert_true(has(&pair, side, SMALL_BYTES, 5));
        MUST(ask(&pair, side, 0, &memory, stream));
        assert_ptr_equal(own->data, memory);
        /* beyond that it is larger */
        get(&pair, side, LARGE_BYTES, stream);
        assert_int_equal(own->owner, GPUPOOL_OWNER_POOL);
        fill(&pair, side, own->capacity_bytes, 6);
        assert_true(has(&pair, side, own->capacity_bytes, 6));
        assert_memory_equal(side_of(&pair, other), &before, sizeof before);
    }
    assert_int_equal(client->devices.gpu->device_current(&current), 0);
    assert_int_equal(current, 0);
    clear(&pair, stream);
    clear(&pair, stream);
    get(&pair, HOST, 1, stream); /* and can be used again */
    clear(&pair, stream);
}

static void a_side_gets_larger_when_it_must_and_else_stays_as_it_is(void **state) {
    (void)state;
    on_each_stream(grow_and_keep);
}

static void a_pair_that_has_seen_its_bound_asks_nobody_any_more(void **state) {
    uint64_t random = 7;

    (void)state;
    if (!test_has_device())
        skip();
    struct gpupool_client *client = open_cached();
    struct gpupool_pair pair = make_pair(client, 0, GPUPOOL_PAIR_ZERO);
    get(&pair, HOST, LARGE_BYTES, NULL);
    get(&pair, ON_DEVICE, LARGE_BYTES, NULL);
    uint64_t acquires = daemon_sum(&daemon_, "acquires");
    struct gpupool_buffer buffers[] = {pair.host.buffer, pair.on_device.buffer};
    if (test_is_simulated())
        assert_int_equal(gpu_sim_fail("any", 1, GPU_ERROR_UNKNOWN), 0);
    for (unsigned i = 0; i < 10000; i++)
        get(&pair, sides[i % 2], test_random(&random) % LARGE_BYTES + 1, NULL);
    if (test_is_simulated()) {
        assert_false(gpu_sim_failed());
        gpu_sim_fail("any", 0, 0);
    }
    assert_int_equal(daemon_sum(&daemon_, "acquires"), acquires);
    assert_memory_equal(&pair.host.buffer, &buffers[0], sizeof buffers[0]);
    assert_memory_equal(&pair.on_device.buffer, &buffers[1], sizeof buffers[1]);
    clear(&pair, NULL);
    close_cached(client);
}

static void copy_there_and_back(struct gpupool_client *client, int device, void *stream) {
    struct gpupool_pair pair = make_pair(client, device, 0);

    get(&pair, HOST, LARGE_BYTES, stream);
    get(&pair, ON_DEVICE, LARGE_BYTES, stream);
    fill(&pair, HOST, LARGE_BYTES, 11);
    MUST(gpupool_pair_copy_to_device(&pair, LARGE_BYTES, stream));
    if (stream != GPUPOOL_NO_STREAM) /* which is through on return */
        MUST(gpupool_stream_synchronize(client, device, stream));
    fill(&pair, HOST, LARGE_BYTES, 12);
    assert_true(has(&pair, ON_DEVICE, LARGE_BYTES, 11));
    /* as much as is said */
    MUST(gpupool_pair_copy_to_host(&pair, SMALL_BYTES, stream));
    if (stream != GPUPOOL_NO_STREAM)
        MUST(gpupool_stream_synchronize(client, device, stream));
    assert_true(has(&pair, HOST, SMALL_BYTES, 11));
    assert_false(has(&pair, HOST, SMALL_BYTES + 1, 11));
    /* and never more than there is: nothing grows by it */
    struct gpupool_pair before = pair;
    uint64_t too_much = pair.host.capacity_bytes + pair.on_device.capacity_bytes;
    MUST_BE(gpupool_pair_copy_to_device(&pair, too_much, stream), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_pair_copy_to_host(&pair, too_much, stream), GPUPOOL_E_INVALID);
    assert_memory_equal(&pair, &before, sizeof pair);
    MUST(gpupool_pair_copy_to_device(&pair, 0, stream));
    clear(&pair, stream);
    get(&pair, HOST, 1, stream);
    MUST_BE(gpupool_pair_copy_to_device(&pair, 1, stream), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_pair_copy_to_host(&pair, 1, stream), GPUPOOL_E_INVALID);
    clear(&pair, stream);
}

static void the_sides_are_copied_when_that_is_asked_for(void **state) {
    (void)state;
    on_each_stream(copy_there_and_back);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_side_gets_larger_when_it_must_and_else_stays_as_it_is),
        cmocka_unit_test(a_pair_that_has_seen_its_bound_asks_nobody_any_more),
        cmocka_unit_test(the_sides_are_copied_when_that_is_asked_for),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
