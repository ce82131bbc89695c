/* SPDX-License-Identifier: Apache-2.0 */
/* Synchronised arrays on two devices: moved from one to the other, and used whatever the current device is.
 */
#include "tests/integration/synced_fixture.h"

static int start_two(void **state) {
    (void)state;
    daemon_start(&daemon_,
                 &(struct daemon_options){.config = test_config(config, POOL_MIB, POOL_MIB), .sim_gpus = 2});
    return 0;
}

static void expect_on(const struct gpupool_synced *array, int device, enum gpupool_synced_state state,
                      uint64_t between, uint64_t to_device, uint64_t to_host) {
    struct gpupool_synced_info info = info_of(array);
    assert_int_equal(info.device, device);
    assert_int_equal(info.state, state);
    assert_int_equal(info.copies_between_devices, between);
    assert_int_equal(info.copies_to_device, to_device);
    assert_int_equal(info.copies_to_host, to_host);
}

/* Where the memory is that a device has lent. */
static uint64_t leased_on(unsigned device) {
    return daemon_pool(&daemon_, "device", device, "leased_bytes");
}

static void set_current(unsigned device) {
    if (test_is_simulated())
        assert_int_equal(gpu_sim_set_device(device), 0);
}

static unsigned current(struct gpupool_client *client) {
    unsigned device = 77;
    assert_int_equal(client->session.devices.gpu->device_current(&device), 0);
    return device;
}

static void contents_go_along_and_only_what_is_newer_is_copied(void **state) {
    struct gpupool_client *client;
    struct gpupool_synced *array = NULL;
    void *streams[2];

    (void)state;
    if (!test_has_devices(2))
        skip();
    client = open_client(&daemon_, GPUPOOL_OPEN_NO_CACHE, 0);
    for (int i = 0; i < 2; i++)
        MUST(gpupool_stream_create(client, i, &streams[i]));
    MUST(gpupool_synced_create(client, 0, SIZE, &array));
    /* nothing there yet */
    MUST(gpupool_synced_move(array, 1, streams[1]));
    expect_on(array, 1, GPUPOOL_SYNCED_UNINITIALIZED, 0, 0, 0);
    set_on_device(client, array, 3, streams[1]);
    assert_true(leased_on(0) == 0 && leased_on(1) >= SIZE);
    /* only the device has it: from device to device */
    MUST(gpupool_synced_move(array, 0, streams[0]));
    expect_on(array, 0, GPUPOOL_SYNCED_DEVICE_NEWER, 1, 0, 0);
    WAIT_UNTIL(leased_on(1) == 0);
    assert_true(leased_on(0) >= SIZE);
    assert_true(is_all(on_host(array, GPUPOOL_READ, streams[0]), 3, SIZE));
    expect_on(array, 0, GPUPOOL_SYNCED_IN_STEP, 1, 0, 1);
    /* the host has it too: the next access copies from there */
    MUST(gpupool_synced_move(array, 1, streams[1]));
    expect_on(array, 1, GPUPOOL_SYNCED_HOST_NEWER, 1, 0, 1);
    WAIT_UNTIL(leased_on(0) == 0);
    on_device(array, GPUPOOL_WRITE, streams[1]);
    expect_on(array, 1, GPUPOOL_SYNCED_DEVICE_NEWER, 1, 1, 1);
    MUST(gpupool_synced_move(array, 1, streams[1])); /* it is there */
    expect_on(array, 1, GPUPOOL_SYNCED_DEVICE_NEWER, 1, 1, 1);
    memset(on_host(array, GPUPOOL_WRITE, streams[1]), 4, SIZE);
    expect_on(array, 1, GPUPOOL_SYNCED_HOST_NEWER, 1, 1, 2);
    MUST(gpupool_synced_move(array, 0, streams[0]));
    on_device(array, GPUPOOL_READ, streams[0]);
    expect_on(array, 0, GPUPOOL_SYNCED_IN_STEP, 1, 2, 2);
    on_device(array, GPUPOOL_WRITE, streams[0]);
    MUST(gpupool_synced_move(array, 1, streams[1]));
    assert_true(is_all(on_host(array, GPUPOOL_READ, streams[1]), 4, SIZE));
    expect_on(array, 1, GPUPOOL_SYNCED_IN_STEP, 2, 2, 3);
    MUST(gpupool_synced_destroy(array, streams[1]));
    for (int i = 0; i < 2; i++)
        MUST(gpupool_stream_destroy(client, i, streams[i]));
    WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == 0);
    close_cached(client);
}

static void a_move_waits_for_the_writer_on_the_gpu(void **state) {
    struct gpupool_client *client;
    struct gpupool_synced *array = NULL;
    struct gate gate;
    void *stream;

    (void)state;
    if (!test_has_devices(2))
        skip();
    client = open_cached();
    gate_init(&gate, client);
    MUST(gpupool_stream_create(client, 1, &stream));
    warm_up(client, 1, stream, NULL);
    MUST(gpupool_synced_create(client, 0, SIZE, &array));
    void *memory = on_device(array, GPUPOOL_OVERWRITE, gate.stream);
    gate_close(&gate);
    MUST(gpupool_set(client, 0, memory, 5, SIZE, gate.stream));
    MUST(gpupool_synced_move(array, 1, stream));
    for (unsigned i = 0; i < 5; i++)
        test_pause();
    assert_false(gate_was_passed(&gate));
    assert_true(client->session.devices.gpu->stream_query(1, stream) != 0);
    gate_open(&gate);
    assert_true(is_all(on_host(array, GPUPOOL_READ, stream), 5, SIZE));
    expect_on(array, 1, GPUPOOL_SYNCED_IN_STEP, 1, 0, 1);
    MUST(gpupool_synced_destroy(array, stream));
    gate_deinit(&gate);
    MUST(gpupool_stream_destroy(client, 1, stream));
    close_cached(client);
}

static void every_access_is_on_the_arrays_device_and_leaves_the_current_one(void **state) {
    struct gpupool_client *client;
    struct gpupool_synced *array = NULL;
    void *streams[] = {NULL, GPUPOOL_PER_THREAD};
    int value = 0;

    (void)state;
    if (!test_has_devices(2))
        skip();
    client = open_cached();
    set_current(0);
    MUST(gpupool_synced_create(client, -1, SIZE, &array));
    assert_int_equal(info_of(array).device, current(client));
    for (unsigned now = 0; now < 2; now++)
        for (int device = 0; device < 2; device++)
            for (unsigned i = 0; i < 2; i++) {
                set_current(now);
                MUST(gpupool_synced_move(array, device, streams[i]));
                set_on_device(client, array, ++value, streams[i]);
                /* the same stream's name on the other device is another stream */
                MUST(gpupool_synced_move(array, !device, streams[!i]));
                MUST(gpupool_synced_pull(array, streams[i]));
                assert_true(is_all(on_host(array, GPUPOOL_READ, streams[!i]), value, SIZE));
                memset(on_host(array, GPUPOOL_OVERWRITE, streams[i]), ++value, SIZE);
                MUST(gpupool_synced_push(array, streams[!i]));
                MUST(gpupool_synced_move(array, device, streams[i]));
                on_device(array, GPUPOOL_WRITE, streams[!i]);
                assert_true(is_all(on_host(array, GPUPOOL_READ, streams[i]), value, SIZE));
                assert_int_equal(current(client), test_is_simulated() ? now : 0);
            }
    set_current(1);
    MUST(gpupool_synced_settle(array));
    MUST(gpupool_synced_destroy(array, NULL));
    set_current(0);
    MUST(gpupool_trim(client, NULL));
    WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == 0);
    close_cached(client);
}

static void users_own_memory_is_left_behind(void **state) {
    struct gpupool_client *client;
    struct gpupool_synced *array = NULL;
    struct gpupool_buffer_info known;
    uint32_t pool;

    (void)state;
    if (!test_has_devices(2))
        skip();
    client = open_cached();
    MUST(gpupool_device_pool(client, 0, &pool));
    struct gpupool_buffer buffer;
    MUST(gpupool_acquire(client, pool, SIZE, NULL, GPUPOOL_FOREVER, 0, &buffer));
    MUST(gpupool_set(client, 0, buffer.data, 6, SIZE, NULL));
    MUST(gpupool_synced_create(client, 0, SIZE, &array));
    MUST(gpupool_synced_adopt_device(array, buffer.data, NULL));
    MUST(gpupool_synced_move(array, 1, GPUPOOL_PER_THREAD));
    assert_ptr_not_equal(on_device(array, GPUPOOL_READ, GPUPOOL_PER_THREAD), buffer.data);
    assert_int_equal(info_of(array).device_owner, GPUPOOL_OWNER_POOL);
    assert_true(is_all(on_host(array, GPUPOOL_READ, NULL), 6, SIZE));
    MUST(gpupool_query(client, &buffer, &known));
    MUST(gpupool_release(client, &buffer, NULL));
    MUST(gpupool_synced_destroy(array, NULL));
    close_cached(client);
}

/* On failure the array is where it was, with what it had. */
static void a_move_that_fails_has_moved_nothing(void **state) {
    struct gpupool_client *client;
    void *streams[2], *memory;

    (void)state;
    if (!test_has_devices(2) || !test_is_simulated())
        skip();
    client = open_cached();
    for (int i = 0; i < 2; i++)
        MUST(gpupool_stream_create(client, i, &streams[i]));
    bool failed = true;
    unsigned rounds = 0, refused = 0;
    for (unsigned n = 0; failed; n++, rounds++) { /* n 0: what is only done once is done */
        struct gpupool_synced *array = NULL;
        MUST(gpupool_synced_create(client, 0, SIZE, &array));
        set_on_device(client, array, 7, streams[0]);
        assert_int_equal(gpu_sim_fail("any", n, GPU_ERROR_UNKNOWN), 0);
        if (gpupool_synced_move(array, 1, streams[1]) != 0) {
            refused++;
            expect_on(array, 0, GPUPOOL_SYNCED_DEVICE_NEWER, 0, 0, 0);
            MUST(gpupool_synced_device(array, GPUPOOL_READ, &memory, streams[0]));
            MUST(gpupool_synced_move(array, 1, streams[1]));
        }
        failed = n == 0 || gpu_sim_failed();
        assert_int_equal(gpu_sim_fail("any", 0, 0), 0);
        expect_on(array, 1, GPUPOOL_SYNCED_DEVICE_NEWER, 1, 0, 0);
        assert_true(is_all(on_host(array, GPUPOOL_READ, streams[1]), 7, SIZE));
        MUST(gpupool_synced_destroy(array, streams[1]));
    }
    assert_true(rounds > 5 && refused > 2);
    for (int i = 0; i < 2; i++) {
        MUST(gpupool_stream_synchronize(client, i, streams[i]));
        MUST(gpupool_stream_destroy(client, i, streams[i]));
    }
    MUST(gpupool_trim(client, NULL));
    WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == 0);
    close_cached(client);
}

static void a_device_without_a_pool_is_no_place_to_move_to(void **state) {
    struct gpupool_client *client;
    struct gpupool_synced *array = NULL;

    (void)state;
    if (!test_has_devices(2) || !test_is_simulated())
        skip();
    client = open_cached();
    MUST(gpupool_synced_create(client, 0, SIZE, &array));
    set_on_device(client, array, 4, NULL);
    MUST_BE(gpupool_synced_move(array, 2, NULL), GPUPOOL_E_NO_POOL);
    assert_true(is_all(on_host(array, GPUPOOL_READ, NULL), 4, SIZE));
    MUST_BE(gpupool_synced_move(array, 2, NULL), GPUPOOL_E_NO_POOL); /* although nothing had to be copied */
    expect_on(array, 0, GPUPOOL_SYNCED_IN_STEP, 0, 0, 1);
    MUST(gpupool_synced_destroy(array, NULL));
    close_cached(client);
}

static int write_no_word(unsigned device, void *stream, uint64_t *word, uint64_t value) {
    (void)device, (void)stream, (void)word, (void)value;
    return GPU_ERROR_UNKNOWN;
}

/* Neither what was to become the array's is kept, nor is what it has given up. */
static void a_move_that_fails_again_and_again_leaves_nothing_behind(void **state) {
    (void)state;
    if (!test_has_devices(2))
        skip();
    for (unsigned flags = 0; flags <= GPUPOOL_OPEN_NO_CACHE; flags += GPUPOOL_OPEN_NO_CACHE) {
        struct gpupool_client *client = open_client(&daemon_, flags, GPUPOOL_FOREVER);
        struct gpupool_synced *array = NULL;
        void *streams[2];
        for (int i = 0; i < 2; i++)
            MUST(gpupool_stream_create(client, i, &streams[i]));
        MUST(gpupool_synced_create(client, 0, SIZE, &array));
        set_on_device(client, array, 7, streams[0]);
        const struct gpu *driver = client->session.devices.gpu;
        struct gpu without_words = *driver;
        without_words.stream_write64 = write_no_word;
        client->session.devices.gpu = &without_words;
        MUST_BE(gpupool_synced_move(array, 1, streams[1]), GPUPOOL_E_DRIVER);
        client->session.devices.gpu = driver;
        expect_on(array, 0, GPUPOOL_SYNCED_DEVICE_NEWER, 0, 0, 0);
        MUST(gpupool_trim(client, NULL));
        WAIT_UNTIL(leased_on(1) == 0);
        assert_true(is_all(on_host(array, GPUPOOL_READ, streams[0]), 7, SIZE));
        MUST(gpupool_synced_destroy(array, streams[0]));
        for (int i = 0; i < 2; i++) {
            MUST(gpupool_stream_synchronize(client, i, streams[i]));
            MUST(gpupool_stream_destroy(client, i, streams[i]));
        }
        MUST(gpupool_trim(client, NULL));
        WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == 0);
        close_cached(client);
    }
}

/* --- the device of the first access --- */

static struct gpupool_synced *create_without_device(struct gpupool_client *client) {
    struct gpupool_synced *array = NULL;

    MUST(gpupool_synced_create(client, GPUPOOL_DEVICE_OF_FIRST_ACCESS, SIZE, &array));
    expect_on(array, -1, GPUPOOL_SYNCED_UNINITIALIZED, 0, 0, 0);
    return array;
}

/* The calls that need a device. */
enum first {
    FIRST_READS,
    FIRST_OVERWRITES,
    FIRST_PUSHES,
    FIRST_ADOPTS,
    FIRST_MOVES,
    FIRSTS
};

static void first_call(struct gpupool_synced *array, enum first first, int device, void *device_memory,
                       void *stream) {
    switch (first) {
    case FIRST_READS:
        on_device(array, GPUPOOL_READ, stream);
        expect_on(array, device, GPUPOOL_SYNCED_IN_STEP, 0, 1, 0);
        break;
    case FIRST_OVERWRITES:
        on_device(array, GPUPOOL_OVERWRITE, stream);
        expect_on(array, device, GPUPOOL_SYNCED_DEVICE_NEWER, 0, 0, 0);
        break;
    case FIRST_PUSHES:
        MUST(gpupool_synced_push(array, stream));
        expect_on(array, device, GPUPOOL_SYNCED_IN_STEP, 0, 1, 0);
        break;
    case FIRST_ADOPTS:
        MUST(gpupool_synced_adopt_device(array, device_memory, stream));
        expect_on(array, device, GPUPOOL_SYNCED_DEVICE_NEWER, 0, 0, 0);
        break;
    default:
        MUST(gpupool_synced_move(array, -1, stream));
        expect_on(array, device, GPUPOOL_SYNCED_HOST_NEWER, 0, 0, 0);
        break;
    }
}

static void an_array_gets_the_device_that_is_current_at_its_first_use(void **state) {
    (void)state;
    if (!test_has_devices(2) || !test_is_simulated())
        skip();
    for (enum first first = FIRST_READS; first < FIRSTS; first++)
        for (int device = 0; device < 2; device++) {
            struct gpupool_client *client = open_client(&daemon_, GPUPOOL_OPEN_NO_CACHE, 0);
            struct gpupool_buffer adopted;
            uint32_t pool;
            void *stream, *memory;

            MUST(gpupool_device_pool(client, device, &pool));
            MUST(gpupool_acquire(client, pool, SIZE, NULL, GPUPOOL_FOREVER, 0, &adopted));
            MUST(gpupool_stream_create(client, device, &stream));
            set_current(1 - (unsigned)device); /* of now, which does not count */
            struct gpupool_synced *array = create_without_device(client);
            /* A call that needs no device decides nothing: any stream will do, and none. */
            MUST(gpupool_synced_push(array, stream));
            MUST(gpupool_synced_pull(array, NULL));
            MUST(gpupool_synced_settle(array));
            assert_true(is_all(on_host(array, GPUPOOL_READ, GPUPOOL_NO_STREAM), 0, SIZE));
            memset(on_host(array, GPUPOOL_WRITE, NULL), 9, SIZE);
            MUST(gpupool_synced_resize(array, SIZE / 2));
            /* nor does a call that is refused */
            MUST_BE(gpupool_synced_device(array, GPUPOOL_READ, &memory, GPUPOOL_NO_STREAM),
                    GPUPOOL_E_INVALID);
            MUST_BE(gpupool_synced_device(array, GPUPOOL_READ, NULL, stream), GPUPOOL_E_INVALID);
            MUST_BE(gpupool_synced_push(array, GPUPOOL_NO_STREAM), GPUPOOL_E_INVALID);
            MUST_BE(gpupool_synced_move(array, 77, stream), GPUPOOL_E_INVALID);
            expect_on(array, -1, GPUPOOL_SYNCED_HOST_NEWER, 0, 0, 0);
            set_current((unsigned)device);
            first_call(array, first, device, adopted.data, stream);
            /* from then on it is on that device */
            set_current(1 - (unsigned)device);
            on_device(array, GPUPOOL_READ, stream);
            assert_int_equal(info_of(array).device, device);
            MUST_BE(gpupool_synced_host(array, GPUPOOL_READ, &memory, GPUPOOL_NO_STREAM), GPUPOOL_E_INVALID);
            if (first != FIRST_ADOPTS && first != FIRST_OVERWRITES)
                assert_true(is_all(on_host(array, GPUPOOL_READ, stream), 9, SIZE / 2));
            MUST(gpupool_synced_destroy(array, stream));
            MUST(gpupool_stream_synchronize(client, device, stream));
            MUST(gpupool_release(client, &adopted, GPUPOOL_NO_STREAM));
            MUST(gpupool_stream_destroy(client, device, stream));
            set_current(0);
            close_cached(client);
        }
}

/* An array that never had a device takes memory and gives it back, and so does one whose host memory is the
 * caller's. */
static void an_array_without_a_device_works_on_the_host(void **state) {
    char own[SIZE];

    (void)state;
    struct gpupool_client *client = open_cached();
    struct gpupool_synced *array = create_without_device(client);
    set_on_host(array, 3);
    assert_true(is_all(on_host(array, GPUPOOL_READ, GPUPOOL_NO_STREAM), 3, SIZE));
    MUST(gpupool_synced_resize(array, 2 * SIZE));
    assert_true(is_all(on_host(array, GPUPOOL_WRITE, NULL), 0, 2 * SIZE));
    MUST(gpupool_synced_resize(array, SIZE));
    memset(own, 4, sizeof own);
    MUST(gpupool_synced_adopt_host(array, own, GPUPOOL_NO_STREAM));
    assert_ptr_equal(on_host(array, GPUPOOL_READ, GPUPOOL_NO_STREAM), own);
    MUST(gpupool_synced_destroy(array, NULL));
    MUST(gpupool_synced_destroy(create_without_device(client), GPUPOOL_NO_STREAM));
    expect_nothing_leased(client);
    close_cached(client);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contents_go_along_and_only_what_is_newer_is_copied),
        cmocka_unit_test(a_move_waits_for_the_writer_on_the_gpu),
        cmocka_unit_test(every_access_is_on_the_arrays_device_and_leaves_the_current_one),
        cmocka_unit_test(users_own_memory_is_left_behind),
        cmocka_unit_test(a_move_that_fails_has_moved_nothing),
        cmocka_unit_test(a_device_without_a_pool_is_no_place_to_move_to),
        cmocka_unit_test(a_move_that_fails_again_and_again_leaves_nothing_behind),
        cmocka_unit_test(an_array_gets_the_device_that_is_current_at_its_first_use),
        cmocka_unit_test(an_array_without_a_device_works_on_the_host),
    };
    int status = puppet_main(argc, argv, NULL);
    if (status >= 0)
        return status;
    setenv("GPUPOOL_SIM_LATENCY", "0", 1);
    return test_finish(cmocka_run_group_tests(tests, start_two, stop_daemon));
}
