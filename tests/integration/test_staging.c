/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ordinary memory to a device and back, through pinned blocks. The data that arrives is the data at the time
 * of the call, in the stream's order, with each copier; no block is left behind after any failure.
 */
#include "tests/integration/staging_fixture.h"

/* --- contents --- */

static void whatever_the_size_and_place_all_bytes_arrive(void **state) {
    const uint64_t sizes[] = {
        1, 2, 511, 4096, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 7 * CHUNK + 13, MIB, 5 * MIB + 3};
    const struct {
        unsigned threads;
        uint32_t flags;
    } clients[] = {{1, 0}, {4, 0}, {3, GPUPOOL_OPEN_NO_CACHE}, {8, GPUPOOL_OPEN_NO_THREAD}};

    (void)state;
    SKIP_WITHOUT_DEVICE();
    for (unsigned i = 0; i < sizeof clients / sizeof *clients; i++) {
        struct gpupool_client *client = open_staging(clients[i].threads, clients[i].flags);
        void *created;
        MUST(gpupool_stream_create(client, 0, &created));
        void *streams[] = {NULL, GPUPOOL_PER_THREAD, created};
        for (unsigned j = 0; j < sizeof sizes / sizeof *sizes; j++)
            there_and_back(client, streams[j % 3], sizes[j], j % 8);
        for (unsigned j = 0; j < 3; j++)
            there_and_back(client, streams[j], 9 * CHUNK + 1, 3 + j);
        expect_no_blocks(client);
        MUST(gpupool_stream_destroy(client, 0, created));
        close_cached(client);
    }
}

static void nothing_is_copied_for_no_bytes(void **state) {
    struct gpupool_client *client;

    (void)state;
    SKIP_WITHOUT_DEVICE();
    client = open_staging(2, 0);
    MUST(gpupool_upload(client, 0, NULL, NULL, 0, NULL));
    MUST(gpupool_download(client, 0, NULL, NULL, 0, NULL));
    MUST(gpupool_upload_file(client, 0, NULL, -1, 0, 0, NULL));
    assert_int_equal(host_pool("leased_bytes"), 0);
    close_cached(client);
}

static void what_cannot_be_copied_is_refused(void **state) {
    struct gpupool_client *client;
    char memory[16];

    (void)state;
    SKIP_WITHOUT_DEVICE();
    client = open_staging(2, 0);
    struct gpupool_buffer device = acquire(client, GPUPOOL_POOL_DEVICE, 16, NULL);
    MUST_BE(gpupool_upload(NULL, 0, device.data, memory, 16, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_upload(client, 0, NULL, memory, 16, NULL), GPUPOOL_E_INVALID);
    assert_non_null(strstr(gpupool_error_text(), "the device memory is NULL"));
    MUST_BE(gpupool_upload(client, 0, device.data, NULL, 16, NULL), GPUPOOL_E_INVALID);
    assert_non_null(strstr(gpupool_error_text(), "the ordinary memory is NULL"));
    MUST_BE(gpupool_download(client, 0, NULL, device.data, 16, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_download(client, 0, memory, NULL, 16, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_upload(client, 0, device.data, memory, UINT64_MAX, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_upload(client, -1, device.data, memory, 16, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_upload(client, 64, device.data, memory, 16, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_upload(client, 0, device.data, memory, 16, GPUPOOL_NO_STREAM), GPUPOOL_E_INVALID);
    assert_non_null(strstr(gpupool_error_text(), "uploading 16 B, device 0"));
    MUST(gpupool_release(client, &device, NULL));
    expect_no_blocks(client);
    close_cached(client);
}

static void without_a_gpu_there_is_nothing_to_copy_to(void **state) {
    struct gpupool_client *client;
    char memory[16] = {0};

    (void)state;
    client = open_staging(2, GPUPOOL_OPEN_NO_CUDA);
    MUST_BE(gpupool_upload(client, 0, memory, memory, 16, NULL), GPUPOOL_E_NO_GPU);
    MUST_BE(gpupool_download(client, 0, memory, memory, 16, NULL), GPUPOOL_E_NO_GPU);
    MUST_BE(gpupool_upload_file(client, 0, memory, 0, 0, 16, NULL), GPUPOOL_E_NO_GPU);
    assert_non_null(strstr(gpupool_error_text(), "uploading a file: 16 B, device 0: "));
    close_cached(client);
}

static void settings_that_make_no_sense_are_refused(void **state) {
    const char *threads[] = {"0", "33", "many", "4x", "-1", "+4", " 4"},
               *chunks[] = {"1KiB", "1GiB", "large"};
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client = NULL;

    (void)state;
    options.socket = daemon_.socket;
    for (unsigned i = 0; i < sizeof threads / sizeof *threads; i++) {
        setenv("GPUPOOL_STAGING_THREADS", threads[i], 1);
        MUST_BE(gpupool_open(&options, &client), GPUPOOL_E_INVALID);
        assert_non_null(strstr(gpupool_error_text(), threads[i]));
    }
    unsetenv("GPUPOOL_STAGING_THREADS");
    for (unsigned i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        setenv("GPUPOOL_STAGING_CHUNK", chunks[i], 1);
        MUST_BE(gpupool_open(&options, &client), GPUPOOL_E_INVALID);
        assert_non_null(strstr(gpupool_error_text(), chunks[i]));
    }
    unsetenv("GPUPOOL_STAGING_CHUNK");
}

/* --- stream order --- */

static void have_blocks(struct gpupool_client *client, unsigned count) {
    struct gpupool_buffer blocks[32];
    for (unsigned i = 0; i < count; i++)
        blocks[i] = acquire(client, GPUPOOL_POOL_HOST, CHUNK, GPUPOOL_NO_STREAM);
    for (unsigned i = 0; i < count; i++)
        MUST(gpupool_release(client, &blocks[i], GPUPOOL_NO_STREAM));
}

static void an_upload_that_fits_its_blocks_does_not_wait_for_the_stream(void **state) {
    const uint64_t size = 3 * CHUNK;
    struct gpupool_client *client;
    struct gate gate;

    (void)state;
    SKIP_WITHOUT_DEVICE();
    client = open_staging(2, 0);
    gate_init(&gate, client);
    struct gpupool_buffer device = acquire(client, GPUPOOL_POOL_DEVICE, 4 * size, gate.stream);
    _cleanup_(freep) char *from = need_memory(size);
    fill_on_device(client, device.data, size, 9, gate.stream);
    have_blocks(client, 24); /* to map more memory may take a driver that is idle */
    gate_close(&gate);
    for (unsigned i = 0; i < 4; i++) { /* none of them uses a block that another still needs */
        fill(from, size, i);
        MUST(gpupool_upload(client, 0, (char *)device.data + i * size, from, size, gate.stream));
        memset(from, 0xee, size);
    }
    assert_false(gate_was_passed(&gate));
    if (test_is_simulated())
        expect(device.data, size, 9); /* not before its turn */
    gate_open(&gate);
    for (unsigned i = 0; i < 4; i++)
        expect_on_device(client, (char *)device.data + i * size, size, i, gate.stream);
    MUST(gpupool_release(client, &device, gate.stream));
    gate_deinit(&gate);
    expect_no_blocks(client);
    close_cached(client);
}

/* A copy that is far larger than all its blocks, on a stream that stands for a while. */
static void copies_on_a_stream_that_stands(bool is_upload) {
    const uint64_t size = 40 * CHUNK + 5;
    struct gpupool_client *client = open_staging(3, 0);
    struct gate gate;
    pthread_t opener;

    gate_init(&gate, client);
    struct gpupool_buffer device = acquire(client, GPUPOOL_POOL_DEVICE, size, gate.stream);
    _cleanup_(freep) char *memory = need_memory(size);
    fill(memory, size, 3);
    fill_on_device(client, device.data, size, 4, gate.stream);
    gate_close(&gate);
    assert_int_equal(pthread_create(&opener, NULL, gate_open_late, &gate), 0);
    if (is_upload) {
        MUST(gpupool_upload(client, 0, device.data, memory, size, gate.stream));
        expect_on_device(client, device.data, size, 3, gate.stream);
    } else {
        MUST(gpupool_set(client, 0, device.data, 0x77, CHUNK, gate.stream)); /* it is behind that */
        MUST(gpupool_download(client, 0, memory, device.data, size, gate.stream));
        assert_true(gate_was_passed(&gate));
        for (unsigned i = 0; i < CHUNK; i++)
            assert_int_equal(memory[i], 0x77);
        assert_int_equal((uint8_t)memory[size - 1], pattern(4, size - 1));
    }
    TEST_JOIN(opener, NULL);
    MUST(gpupool_release(client, &device, gate.stream));
    gate_deinit(&gate);
    expect_no_blocks(client);
    close_cached(client);
}

static void a_copy_larger_than_its_blocks_goes_on_when_the_stream_does(void **state) {
    (void)state;
    SKIP_WITHOUT_DEVICE();
    copies_on_a_stream_that_stands(true);
    copies_on_a_stream_that_stands(false);
}

static void a_stream_that_is_captured_is_refused(void **state) {
    struct gpupool_client *client;
    unsigned operations = 1;
    char memory[512];
    void *stream;

    (void)state;
    SKIP_WITHOUT_DEVICE();
    if (!test_is_simulated())
        skip();
    client = open_staging(2, 0);
    MUST(gpupool_stream_create(client, 0, &stream));
    struct gpupool_buffer device = acquire(client, GPUPOOL_POOL_DEVICE, 512, stream);
    assert_int_equal(gpu_sim_capture_begin(0, stream), 0);
    MUST_BE(gpupool_upload(client, 0, device.data, memory, 512, stream), GPUPOOL_E_CAPTURING);
    MUST_BE(gpupool_download(client, 0, memory, device.data, 512, stream), GPUPOOL_E_CAPTURING);
    MUST_BE(gpupool_upload_file(client, 0, device.data, 0, 0, 512, stream), GPUPOOL_E_CAPTURING);
    assert_int_equal(gpu_sim_capture_end(0, stream, &operations), 0);
    assert_int_equal(operations, 0);
    MUST(gpupool_release(client, &device, stream));
    expect_no_blocks(client);
    MUST(gpupool_stream_destroy(client, 0, stream));
    close_cached(client);
}

static void another_device_need_not_be_current(void **state) {
    struct gpupool_client *client;

    (void)state;
    SKIP_WITHOUT_DEVICE();
    if (!test_is_simulated())
        skip();
    client = open_staging(2, 0);
    assert_int_equal(gpu_sim_set_device(1), 0);
    there_and_back(client, NULL, 5 * CHUNK, 1);
    unsigned current = 0;
    assert_int_equal(client->session.devices.gpu->device_current(&current), 0);
    assert_int_equal(current, 1);
    assert_int_equal(gpu_sim_set_device(0), 0);
    close_cached(client);
}

/* --- too little of everything --- */

static void where_the_pool_is_short_smaller_blocks_do(void **state) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;
    struct puppet puppet;

    (void)state;
    SKIP_WITHOUT_DEVICE();
    options.socket = daemon_.socket;
    options.decay_ns = GPUPOOL_FOREVER;
    options.alloc_timeout_ns = 20 * NS_PER_MS;
    for (unsigned is_full = 0; is_full < 2; is_full++) {
        empty_the_pools();
        puppet_connect(&puppet, &daemon_);
        uint64_t taken = is_full ? POOL_MIB * MIB : POOL_MIB * MIB - 128 * KIB;
        PUPPET_MUST(&puppet, puppet_acquire(&puppet, 0, GPUPOOL_POOL_HOST, taken, GPUPOOL_FOREVER, 0));
        MUST(gpupool_open(&options, &client));
        struct gpupool_buffer device = acquire(client, GPUPOOL_POOL_DEVICE, 2 * MIB, NULL);
        _cleanup_(freep) char *memory = need_memory(2 * MIB);
        fill(memory, 2 * MIB, 8);
        if (is_full) {
            MUST_BE(gpupool_upload(client, 0, device.data, memory, 2 * MIB, NULL), GPUPOOL_E_EXHAUSTED);
            MUST_BE(gpupool_download(client, 0, memory, device.data, 2 * MIB, NULL), GPUPOOL_E_EXHAUSTED);
            assert_non_null(strstr(gpupool_error_text(), "downloading 2 MiB"));
        } else {
            MUST(gpupool_upload(client, 0, device.data, memory, 2 * MIB, NULL));
            expect_on_device(client, device.data, 2 * MIB, 8, NULL);
        }
        MUST(gpupool_release(client, &device, NULL));
        WAIT_UNTIL(has_host_memory(client, taken));
        puppet_quit(&puppet);
        close_cached(client);
    }
}

struct holder {
    struct puppet puppet; /* has all of the pool, in slot 0 */
    uint64_t probes;      /* of the pool, before */
};

/* Gives the pool back when the upload has found room neither for a whole block nor for a smaller one. */
static void *give_back_late(void *argument) {
    struct holder *holder = argument;

    WAIT_UNTIL(host_pool("probes") >= holder->probes + 2 && host_pool("waiters") == 1);
    PUPPET_MUST(&holder->puppet, puppet_release(&holder->puppet, 0));
    return NULL;
}

static void where_the_pool_is_full_a_copy_waits_for_room(void **state) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;
    struct holder holder;
    pthread_t giver;

    (void)state;
    SKIP_WITHOUT_DEVICE();
    empty_the_pools();
    puppet_connect(&holder.puppet, &daemon_);
    PUPPET_MUST(&holder.puppet,
                puppet_acquire(&holder.puppet, 0, GPUPOOL_POOL_HOST, POOL_MIB * MIB, GPUPOOL_FOREVER, 0));
    options.socket = daemon_.socket;
    options.decay_ns = GPUPOOL_FOREVER;
    options.alloc_timeout_ns = GPUPOOL_FOREVER;
    MUST(gpupool_open(&options, &client));
    struct gpupool_buffer device = acquire(client, GPUPOOL_POOL_DEVICE, 2 * MIB, NULL);
    _cleanup_(freep) char *memory = need_memory(2 * MIB);
    fill(memory, 2 * MIB, 8);
    holder.probes = host_pool("probes");
    uint64_t failures = host_pool("failures");
    assert_int_equal(pthread_create(&giver, NULL, give_back_late, &holder), 0);
    MUST(gpupool_upload(client, 0, device.data, memory, 2 * MIB, NULL));
    TEST_JOIN(giver, NULL);
    expect_on_device(client, device.data, 2 * MIB, 8, NULL);
    assert_int_equal(host_pool("failures"), failures); /* no caller heard of an error */
    MUST(gpupool_release(client, &device, NULL));
    puppet_quit(&holder.puppet);
    expect_no_blocks(client);
    close_cached(client);
}

/* Every call of the driver fails once, in its turn. */
static void each_call_fails_once(uint32_t flags, bool is_upload) {
    struct gpupool_client *client = open_staging(3, flags);
    unsigned rounds = 0, failures = 0;
    const uint64_t size = 12 * CHUNK + 9;
    void *stream;

    MUST(gpupool_stream_create(client, 0, &stream));
    struct gpupool_buffer device = acquire(client, GPUPOOL_POOL_DEVICE, size, stream);
    _cleanup_(freep) char *memory = need_memory(size);
    fill_on_device(client, device.data, size, 1, stream);
    for (bool failed = true; failed; rounds++) {
        memset(memory, 0, size);
        if (is_upload)
            fill(memory, size, rounds);
        assert_int_equal(gpu_sim_fail("any", rounds + 1, 999), 0);
        int r = is_upload ? gpupool_upload(client, 0, device.data, memory, size, stream)
                          : gpupool_download(client, 0, memory, device.data, size, stream);
        failed = gpu_sim_failed();
        assert_int_equal(gpu_sim_fail("any", 0, 0), 0);
        if (r < 0) {
            assert_true(failed);
            assert_int_equal(r, GPUPOOL_E_DRIVER);
            assert_non_null(strstr(gpupool_error_text(), "loading 768 KiB"));
            assert_non_null(strstr(gpupool_error_text(), "cudaErrorUnknown"));
            failures++;
        } else if (is_upload) {
            expect_on_device(client, device.data, size, rounds, stream);
        } else {
            expect(memory, size, 1);
        }
        expect_no_blocks(client);
        if ((flags & GPUPOOL_OPEN_NO_CACHE) == 0)
            assert_true(stream_heaps_are_valid(client));
    }
    print_message("%u rounds, %u failures\n", rounds, failures);
    assert_true(failures > 5);
    MUST(gpupool_release(client, &device, stream));
    MUST(gpupool_trim(client, NULL));
    MUST(gpupool_stream_destroy(client, 0, stream));
    close_cached(client);
}

static void any_failing_call_of_the_driver_is_said_and_leaves_no_block_leased(void **state) {
    (void)state;
    SKIP_WITHOUT_DEVICE();
    if (!test_is_simulated())
        skip();
    for (unsigned i = 0; i < 4; i++)
        each_call_fails_once(i % 2 == 0 ? 0 : GPUPOOL_OPEN_NO_CACHE, i / 2 == 0);
}

/* The driver takes the copy and then refuses the call that would tell its end: the block is not lent again
 * before that. */
static void a_copy_that_no_fence_can_follow_is_waited_for(void **state) {
    const uint64_t size = 3 * CHUNK;
    struct gpupool_client *client;
    struct gate gate;
    pthread_t opener;

    (void)state;
    SKIP_WITHOUT_DEVICE();
    if (!test_is_simulated())
        skip();
    client = open_staging(2, 0);
    gate_init(&gate, client);
    struct gpupool_buffer device = acquire(client, GPUPOOL_POOL_DEVICE, size, gate.stream);
    _cleanup_(freep) char *memory = calloc(1, size);
    assert_non_null(memory);
    have_blocks(client, 24); /* to map more memory may take a driver that is idle */
    for (unsigned is_upload = 0; is_upload < 2; is_upload++) {
        gate_close(&gate);
        assert_int_equal(gpu_sim_fail("stream_write64", 1, 999), 0);
        assert_int_equal(pthread_create(&opener, NULL, gate_open_late, &gate), 0);
        MUST_BE(is_upload ? gpupool_upload(client, 0, device.data, memory, size, gate.stream)
                          : gpupool_download(client, 0, memory, device.data, size, gate.stream),
                GPUPOOL_E_DRIVER);
        assert_true(gate_was_passed(&gate));
        assert_true(gpu_sim_failed());
        assert_int_equal(gpu_sim_fail("any", 0, 0), 0);
        TEST_JOIN(opener, NULL);
    }
    MUST(gpupool_release(client, &device, gate.stream));
    gate_deinit(&gate);
    expect_no_blocks(client);
    close_cached(client);
}

/* The work before the copy never ends, and the driver says that the device is gone. */
static void a_device_that_is_lost_ends_the_waiting(void **state) {
    const uint64_t size = 40 * CHUNK;
    struct gpupool_client *client;
    struct gate gate;

    (void)state;
    SKIP_WITHOUT_DEVICE();
    if (!test_is_simulated())
        skip();
    client = open_staging(3, GPUPOOL_OPEN_NO_CACHE); /* so that the daemon knows of each block */
    gate_init(&gate, client);
    struct gpupool_buffer device = acquire(client, GPUPOOL_POOL_DEVICE, size, gate.stream);
    _cleanup_(freep) char *memory = calloc(1, size);
    assert_non_null(memory);
    const uint64_t before = host_pool("leased_bytes"); /* the gate's */
    for (unsigned is_upload = 0; is_upload < 2; is_upload++) {
        gate_close(&gate);
        assert_int_equal(gpu_sim_fail("stream_query", 1, 999), 0);
        MUST_BE(is_upload ? gpupool_upload(client, 0, device.data, memory, size, gate.stream)
                          : gpupool_download(client, 0, memory, device.data, size, gate.stream),
                GPUPOOL_E_DRIVER);
        assert_false(gate_was_passed(&gate));
        /* memory that the copy engine may still write to is not lent before it has */
        assert_int_equal(host_pool("leased_bytes"), before);
        assert_true(host_pool("fenced_bytes") > 0);
        gate_open(&gate);
        MUST(gpupool_stream_synchronize(client, 0, gate.stream));
        WAIT_UNTIL(host_pool("fenced_bytes") == 0);
    }
    assert_int_equal(gpu_sim_fail("any", 0, 0), 0);
    MUST(gpupool_release(client, &device, gate.stream));
    gate_deinit(&gate);
    expect_no_blocks(client);
    close_cached(client);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_the_size_and_place_all_bytes_arrive),
        cmocka_unit_test(nothing_is_copied_for_no_bytes),
        cmocka_unit_test(what_cannot_be_copied_is_refused),
        cmocka_unit_test(without_a_gpu_there_is_nothing_to_copy_to),
        cmocka_unit_test(settings_that_make_no_sense_are_refused),
        cmocka_unit_test(an_upload_that_fits_its_blocks_does_not_wait_for_the_stream),
        cmocka_unit_test(a_copy_larger_than_its_blocks_goes_on_when_the_stream_does),
        cmocka_unit_test(a_stream_that_is_captured_is_refused),
        cmocka_unit_test(another_device_need_not_be_current),
        cmocka_unit_test(where_the_pool_is_short_smaller_blocks_do),
        cmocka_unit_test(where_the_pool_is_full_a_copy_waits_for_room),
        cmocka_unit_test(any_failing_call_of_the_driver_is_said_and_leaves_no_block_leased),
        cmocka_unit_test(a_copy_that_no_fence_can_follow_is_waited_for),
        cmocka_unit_test(a_device_that_is_lost_ends_the_waiting),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
