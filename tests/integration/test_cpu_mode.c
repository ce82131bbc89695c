/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pairs and synchronised arrays where there is no GPU: a daemon that serves none, a client that is not to
 * touch CUDA, and a process in which the driver sees no device. They work on host memory alone; the device
 * side says NO_GPU. This process sees no device from its beginning; the daemons see those that there are.
 */
#include <gpupool/pair.h>
#include <gpupool/synced.h>

#include <stdio.h>

#include "tests/integration/cache_fixture.h"

#define SMALL_BYTES UINT64_C(100000)
#define LARGE_BYTES UINT64_C(3000001)

/* The streams that a program may name out of habit: none of them means anything here. */
static void *const streams[] = {NULL, GPUPOOL_PER_THREAD, GPUPOOL_NO_STREAM, GPUPOOL_PAIR_ALL_STREAMS};
#define STREAMS (sizeof streams / sizeof *streams)

static bool is_all(const unsigned char *memory, int byte, uint64_t size_bytes) {
    for (uint64_t i = 0; i < size_bytes; i++)
        if (memory[i] != byte)
            return false;
    return true;
}

/* --- the ways to have no GPU --- */

static char daemons_devices[256];
static const char *const daemons_environment[] = {daemons_devices, NULL};

struct world {
    const char *daemon_gpu; /* NULL: the test's */
    uint32_t open_flags;
};

static const struct world worlds[] = {
    {"none", 0},
    {NULL, GPUPOOL_OPEN_NO_CUDA},
    {NULL, 0}, /* no device is visible */
    {"none", GPUPOOL_OPEN_NO_CACHE},
    {NULL, GPUPOOL_OPEN_NO_CACHE},
};

static void in_each_world(void (*test)(struct gpupool_client *client)) {
    for (unsigned i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        daemon_start(&daemon_, &(struct daemon_options){.config = test_config(config, POOL_MIB, POOL_MIB),
                                                        .environment = daemons_environment,
                                                        .gpu = worlds[i].daemon_gpu});
        struct gpupool_client *client = open_client(&daemon_, worlds[i].open_flags, GPUPOOL_FOREVER);
        test(client);
        MUST(gpupool_trim(client, NULL));
        WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == 0);
        close_cached(client);
        daemon_stop(&daemon_);
    }
}

/* --- pairs --- */

static void use_pair(struct gpupool_client *client, int device, void *stream) {
    struct gpupool_pair pair;
    unsigned char own[64];
    void *memory = own;

    MUST(gpupool_pair_init(&pair, client, device, GPUPOOL_PAIR_ZERO));
    assert_int_equal(pair.device, device); /* as it was said: there is no current one */
    for (uint64_t size_bytes = SMALL_BYTES; size_bytes < LARGE_BYTES; size_bytes *= 5) {
        MUST(gpupool_pair_host(&pair, size_bytes, &memory, stream));
        assert_int_equal(pair.host.owner, GPUPOOL_OWNER_POOL);
        assert_true(is_all(memory, 0, pair.host.capacity_bytes));
        memset(memory, 7, pair.host.capacity_bytes);
        assert_ptr_equal(GPUPOOL_PAIR_HOST(&pair, char, size_bytes / 2, stream), memory);
    }
    struct gpupool_pair before = pair;
    MUST_BE(gpupool_pair_device(&pair, 1, &memory, stream), GPUPOOL_E_NO_GPU);
    assert_non_null(strstr(gpupool_error_text(), "the device side of a pair"));
    assert_null(GPUPOOL_PAIR_DEVICE(&pair, float, 10, stream));
    assert_int_equal(gpupool_error_number(), GPUPOOL_E_NO_GPU);
    assert_null(GPUPOOL_PAIR_DEVICE(&pair, float, 0, stream)); /* there is none */
    assert_int_equal(gpupool_error_number(), 0);
    MUST_BE(gpupool_pair_adopt_device(&pair, own, sizeof own, stream), GPUPOOL_E_NO_GPU);
    MUST_BE(gpupool_pair_copy_to_device(&pair, 16, stream), GPUPOOL_E_NO_GPU);
    MUST_BE(gpupool_pair_copy_to_host(&pair, 16, stream), GPUPOOL_E_NO_GPU);
    assert_memory_equal(&pair, &before, sizeof pair);
    MUST(gpupool_pair_clear_device(&pair, stream));
    MUST(gpupool_pair_adopt_host(&pair, own, sizeof own, stream));
    assert_ptr_equal(GPUPOOL_PAIR_HOST(&pair, unsigned char, sizeof own, stream), own);
    assert_non_null(GPUPOOL_PAIR_HOST(&pair, char, SMALL_BYTES, stream)); /* the pool's takes its place */
    MUST(gpupool_pair_clear_host(&pair, stream));
    assert_non_null(GPUPOOL_PAIR_HOST(&pair, char, SMALL_BYTES, stream));
    MUST(gpupool_pair_clear(&pair, stream));
    assert_null(pair.host.data);
}

static void pairs(struct gpupool_client *client) {
    struct gpupool_pair pair;

    for (unsigned i = 0; i < STREAMS; i++)
        for (int device = -1; device < 2; device++)
            use_pair(client, device, streams[i]);
    MUST_BE(gpupool_pair_init(&pair, client, -2, 0), GPUPOOL_E_INVALID);
}

static void a_pair_has_its_host_side(void **state) {
    (void)state;
    in_each_world(pairs);
}

/* There is no stream to wait for. */
static void grow_to_the_limit(struct gpupool_client *client) {
    struct gpupool_pair pair;

    MUST(gpupool_pair_init(&pair, client, -1, 0));
    assert_non_null(GPUPOOL_PAIR_HOST(&pair, char, 24 * MIB, NULL));
    pair.timeout_ns = GPUPOOL_NOW;
    void *memory = NULL;
    int r = gpupool_pair_host(&pair, 48 * MIB, &memory, NULL); /* more than fits beside the first */
    if (r == 0) {
        assert_ptr_equal(pair.host.data, memory);
        assert_int_equal(pair.host.size_bytes, 48 * MIB);
    } else { /* the pool's segments are each too small, and the daemon makes no larger one at once */
        assert_int_equal(r, GPUPOOL_E_EXHAUSTED);
        assert_non_null(strstr(gpupool_error_text(), "given back to make room"));
        assert_null(pair.host.data);
    }
    MUST(gpupool_pair_clear(&pair, NULL));
}

static void a_block_that_is_in_the_way_of_its_successor_goes_first(void **state) {
    (void)state;
    in_each_world(grow_to_the_limit);
}

/* --- arrays --- */

static void use_array(struct gpupool_client *client, int device, void *stream) {
    struct gpupool_synced_info info;
    struct gpupool_synced *array;
    unsigned char own[64];
    void *memory;

    MUST(gpupool_synced_create(client, device, SMALL_BYTES, &array));
    const unsigned char *contents = GPUPOOL_SYNCED_READ_HOST(array, unsigned char, stream);
    assert_non_null(contents);
    assert_true(is_all(contents, 0, SMALL_BYTES));
    for (unsigned round = 1; round < 4; round++) {
        unsigned char *numbers = GPUPOOL_SYNCED_WRITE_HOST(array, unsigned char, stream);
        assert_non_null(numbers);
        assert_true(is_all(numbers, (int)round - 1, SMALL_BYTES));
        memset(numbers, (int)round, SMALL_BYTES);
    }
    assert_null(GPUPOOL_SYNCED_READ_DEVICE(array, float, NULL));
    assert_int_equal(gpupool_error_number(), GPUPOOL_E_NO_GPU);
    assert_null(GPUPOOL_SYNCED_OVERWRITE_DEVICE(array, float, NULL));
    assert_int_equal(gpupool_error_number(), GPUPOOL_E_NO_GPU);
    MUST_BE(gpupool_synced_push(array, NULL), GPUPOOL_E_NO_GPU);
    MUST_BE(gpupool_synced_adopt_device(array, own, NULL), GPUPOOL_E_NO_GPU);
    MUST_BE(gpupool_synced_move(array, 0, NULL), GPUPOOL_E_NO_GPU);
    MUST_BE(gpupool_synced_move(array, -1, NULL), GPUPOOL_E_NO_GPU);
    MUST(gpupool_synced_pull(array, stream));
    MUST(gpupool_synced_settle(array));
    /* what failed has changed nothing */
    MUST(gpupool_synced_host(array, GPUPOOL_READ, &memory, stream));
    assert_true(is_all(memory, 3, SMALL_BYTES));
    MUST(gpupool_synced_query(array, &info));
    assert_int_equal(info.state, GPUPOOL_SYNCED_HOST_NEWER);
    assert_int_equal(info.device, -1);
    assert_int_equal(info.copies_to_device + info.copies_to_host, 0);
    MUST(gpupool_synced_resize(array, LARGE_BYTES));
    assert_non_null(GPUPOOL_SYNCED_OVERWRITE_HOST(array, float, stream));
    MUST(gpupool_synced_resize(array, sizeof own));
    MUST(gpupool_synced_adopt_host(array, own, stream));
    assert_ptr_equal(GPUPOOL_SYNCED_READ_HOST(array, unsigned char, stream), own);
    MUST(gpupool_synced_resize(array, SMALL_BYTES));
    assert_non_null(GPUPOOL_SYNCED_WRITE_HOST(array, float, stream));
    MUST(gpupool_synced_destroy(array, stream));
}

static void arrays(struct gpupool_client *client) {
    struct gpupool_synced *array = NULL;

    for (unsigned i = 0; i < STREAMS - 1; i++) /* the last is of pairs only */
        for (int device = GPUPOOL_DEVICE_OF_FIRST_ACCESS; device < 2; device++)
            use_array(client, device, streams[i]);
    MUST_BE(gpupool_synced_create(client, -3, SMALL_BYTES, &array), GPUPOOL_E_INVALID);
    assert_null(array);
}

static void an_array_has_its_host_copy(void **state) {
    (void)state;
    in_each_world(arrays);
}

/* That the worlds are what they are meant to be. */
static void there_is_no_gpu(struct gpupool_client *client) {
    void *stream;
    uint32_t pool;

    MUST_BE(gpupool_device_pool(client, 0, &pool), GPUPOOL_E_NO_GPU);
    MUST_BE(gpupool_stream_create(client, 0, &stream), GPUPOOL_E_NO_GPU);
}

static void no_world_has_a_gpu(void **state) {
    (void)state;
    in_each_world(there_is_no_gpu);
}

int main(int argc, char **argv) {
    test_needs_memfds();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_world_has_a_gpu),
        cmocka_unit_test(a_pair_has_its_host_side),
        cmocka_unit_test(a_block_that_is_in_the_way_of_its_successor_goes_first),
        cmocka_unit_test(an_array_has_its_host_copy),
    };
    int status = puppet_main(argc, argv, NULL);
    if (status >= 0)
        return status;
    setenv("GPUPOOL_SIM_LATENCY", "0", 1);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    snprintf(daemons_devices, sizeof daemons_devices, "CUDA_VISIBLE_DEVICES=%s",
             visible != NULL ? visible : "0");
    setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
    return test_finish(cmocka_run_group_tests(tests, NULL, NULL));
}
