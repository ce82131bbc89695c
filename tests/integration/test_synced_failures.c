/* SPDX-License-Identifier: Apache-2.0 */
/* Synchronised arrays whose driver fails, or whose process forks. */
#include "tests/integration/synced_fixture.h"

/* A call that fails leaves what there was, and does what it should when it is tried again. Returns whether it
 * failed. */
#define ARMED(array, call)                                                                                   \
    do {                                                                                                     \
        struct gpupool_synced_info before_ = info_of(array), after_;                                         \
        if ((call) == 0)                                                                                     \
            break;                                                                                           \
        assert_string_not_equal(gpupool_error_text(), "");                                                   \
        after_ = info_of(array);                                                                             \
        assert_int_equal(after_.state, before_.state);                                                       \
        assert_int_equal(after_.copies_to_device, before_.copies_to_device);                                 \
        assert_int_equal(after_.copies_to_host, before_.copies_to_host);                                     \
        assert_int_equal(after_.copies_between_devices, before_.copies_between_devices);                     \
        assert_int_equal(after_.zeroed, before_.zeroed);                                                     \
        assert_int_equal(after_.device, before_.device);                                                     \
        MUST(call);                                                                                          \
    } while (0)

/* A life of an array in which every kind of step is taken; nothing of the test's own calls the driver. */
static void life(struct gpupool_client *client, void *const *streams, void *adopted) {
    struct gpupool_synced *array = create(client, SIZE);
    void *memory;

    ARMED(array, gpupool_synced_device(array, GPUPOOL_READ, &memory, streams[0])); /* zeroes */
    ARMED(array, gpupool_synced_host(array, GPUPOOL_READ, &memory, streams[1]));   /* another stream's copy */
    assert_true(is_all(memory, 0, SIZE));
    ARMED(array, gpupool_synced_host(array, GPUPOOL_OVERWRITE, &memory, streams[1]));
    memset(memory, 3, SIZE);
    ARMED(array, gpupool_synced_push(array, streams[1]));
    ARMED(array, gpupool_synced_device(array, GPUPOOL_READ, &memory, streams[0]));
    ARMED(array, gpupool_synced_device(array, GPUPOOL_READ, &memory, streams[2]));
    ARMED(array, gpupool_synced_device(array, GPUPOOL_WRITE, &memory, streams[1])); /* behind both */
    ARMED(array, gpupool_synced_pull(array, streams[0]));
    ARMED(array, gpupool_synced_host(array, GPUPOOL_WRITE, &memory, streams[2]));
    assert_true(is_all(memory, 3, SIZE));
    memset(memory, 4, SIZE);
    ARMED(array, gpupool_synced_push(array, streams[2]));
    ARMED(array, gpupool_synced_adopt_host(array, adopted, streams[0]));
    memset(adopted, 5, SIZE);
    ARMED(array, gpupool_synced_device(array, GPUPOOL_WRITE, &memory, streams[1]));
    memset(adopted, 6, SIZE);
    ARMED(array, gpupool_synced_host(array, GPUPOOL_READ, &memory, streams[1]));
    assert_true(is_all(memory, 5, SIZE));
    ARMED(array, gpupool_synced_resize(array, 2 * SIZE));
    ARMED(array, gpupool_synced_device(array, GPUPOOL_WRITE, &memory, streams[2])); /* other memory */
    ARMED(array, gpupool_synced_host(array, GPUPOOL_READ, &memory, streams[0]));
    assert_true(is_all(memory, 0, 2 * SIZE));
    ARMED(array, gpupool_synced_settle(array));
    struct gpupool_synced_info info = info_of(array);
    assert_int_equal(info.copies_to_device, 3);
    assert_int_equal(info.copies_to_host, 4);
    if (gpupool_synced_destroy(array, streams[1]) != 0)
        MUST(gpupool_synced_destroy(array, streams[1]));
}

static void whatever_the_driver_fails_can_be_tried_again(void **state) {
    struct gpupool_client *client;
    void *streams[3];
    unsigned rounds = 0;

    (void)state;
    if (!test_has_device() || !test_is_simulated())
        skip();
    for (unsigned flags = 0; flags <= GPUPOOL_OPEN_NO_CACHE; flags += GPUPOOL_OPEN_NO_CACHE) {
        client = open_client(&daemon_, flags, GPUPOOL_FOREVER);
        void *adopted = malloc(SIZE);
        for (unsigned i = 0; i < 3; i++)
            MUST(gpupool_stream_create(client, 0, &streams[i]));
        life(client, streams, adopted); /* words, segments */
        bool failed = true;
        for (unsigned n = 1; failed; n++) {
            assert_int_equal(gpu_sim_fail("any", n, GPU_ERROR_UNKNOWN), 0);
            life(client, streams, adopted);
            failed = gpu_sim_failed();
            rounds++;
            assert_true(client->cache.enabled == false || stream_heaps_are_valid(client));
        }
        assert_int_equal(gpu_sim_fail("any", 0, 0), 0);
        for (unsigned i = 0; i < 3; i++) {
            MUST(gpupool_stream_synchronize(client, 0, streams[i]));
            MUST(gpupool_stream_destroy(client, 0, streams[i]));
        }
        expect_nothing_leased(client);
        free(adopted);
        close_cached(client);
    }
    assert_true(rounds > 40);
}

static void a_device_that_is_broken_is_said_and_nobody_waits_for_ever(struct scene *scene) {
    void *memory;

    set_on_device(scene->client, scene->array, 1, scene->gate.stream);
    gate_close(&scene->gate); /* the copy will never come */
    MUST(gpupool_synced_pull(scene->array, scene->gate.stream));
    assert_int_equal(gpu_sim_fail("stream_query", 1, GPU_ERROR_UNKNOWN), 0);
    MUST_BE(gpupool_synced_host(scene->array, GPUPOOL_READ, &memory, scene->other), GPUPOOL_E_DRIVER);
    assert_true(gpu_sim_failed());
    assert_non_null(strstr(gpupool_error_text(), "waiting for a copy"));
    assert_int_equal(gpu_sim_fail("any", 0, 0), 0);
    gate_open(&scene->gate);
    assert_true(is_all(on_host(scene->array, GPUPOOL_READ, scene->other), 1, SIZE));
    expect(scene->array, GPUPOOL_SYNCED_IN_STEP, 0, 1);
}

/* A driver that tells that somebody asks how far the asking thread's own stream is. */
static atomic_uint asked;
static const struct gpu *driver;

static int query_own(unsigned device, void *stream) {
    int error = driver->stream_query(device, stream);
    if (stream == GPUPOOL_PER_THREAD)
        atomic_fetch_add(&asked, 1);
    return error;
}

static int is_capturing_own(unsigned device, void *stream, bool *ret_capturing) {
    int error = driver->stream_is_capturing(device, stream, ret_capturing);
    if (stream == GPUPOOL_PER_THREAD)
        atomic_fetch_add(&asked, 1);
    return error;
}

static void *gate_open_when_asked(void *argument) {
    WAIT_UNTIL(atomic_load(&asked) > 0);
    gate_open(argument);
    return NULL;
}

static void who_waits_long_for_a_copy_spoils_no_capture(struct scene *scene) {
    unsigned operations = 1;
    pthread_t thread;

    driver = scene->client->session.devices.gpu;
    struct gpu watched = *driver;
    watched.stream_query = query_own;
    watched.stream_is_capturing = is_capturing_own;
    set_on_device(scene->client, scene->array, 3, scene->gate.stream);
    gate_close(&scene->gate);
    MUST(gpupool_synced_pull(scene->array, scene->gate.stream));
    assert_int_equal(gpu_sim_capture_begin(0, GPUPOOL_PER_THREAD), 0);
    scene->client->session.devices.gpu = &watched;
    atomic_store(&asked, 0);
    assert_int_equal(pthread_create(&thread, NULL, gate_open_when_asked, &scene->gate), 0);
    const unsigned char *memory = on_host(scene->array, GPUPOOL_READ, scene->other);
    TEST_JOIN(thread, NULL);
    scene->client->session.devices.gpu = driver;
    assert_true(is_all(memory, 3, SIZE));
    assert_int_equal(gpu_sim_capture_end(0, GPUPOOL_PER_THREAD, &operations), 0);
    assert_int_equal(operations, 0);
}

static void *write_on_own_stream(void *argument) {
    struct scene *scene = argument;
    set_on_device(scene->client, scene->array, 6, GPUPOOL_PER_THREAD);
    MUST(gpupool_stream_synchronize(scene->client, 0, GPUPOOL_PER_THREAD));
    return NULL;
}

/* No call can wait for all of a device then. */
static void behind_another_threads_stream_a_capture_is_said(struct scene *scene) {
    unsigned operations;
    pthread_t thread;
    void *memory;

    assert_int_equal(pthread_create(&thread, NULL, write_on_own_stream, scene), 0);
    TEST_JOIN(thread, NULL);
    assert_int_equal(gpu_sim_capture_begin(0, scene->third), 0);
    MUST_BE(gpupool_synced_device(scene->array, GPUPOOL_READ, &memory, scene->other), GPUPOOL_E_CAPTURING);
    MUST_BE(gpupool_synced_host(scene->array, GPUPOOL_READ, &memory, scene->other), GPUPOOL_E_CAPTURING);
    expect(scene->array, GPUPOOL_SYNCED_DEVICE_NEWER, 0, 0);
    assert_int_not_equal(gpu_sim_capture_end(0, scene->third, &operations), 0);
    assert_true(is_all(on_host(scene->array, GPUPOOL_READ, scene->other), 6, SIZE));
}

static void a_daemon_that_is_gone_costs_no_array_its_contents(void **state) {
    struct test_daemon daemon;
    char text[TEST_CONFIG_SIZE];
    void *stream, *memory;

    (void)state;
    if (!test_has_device() || !test_is_simulated())
        skip();
    for (unsigned flags = 0; flags <= GPUPOOL_OPEN_NO_CACHE; flags += GPUPOOL_OPEN_NO_CACHE) {
        daemon_start(&daemon, &(struct daemon_options){.config = test_config(text, POOL_MIB, POOL_MIB)});
        struct gpupool_client *client = open_client(&daemon, flags, GPUPOOL_FOREVER);
        MUST(gpupool_stream_create(client, 0, &stream));
        struct gpupool_synced *array = create(client, SIZE), *late = create(client, 50 * MIB);
        set_on_device(client, array, 3, stream);
        set_on_host(array, 2);
        set_on_device(client, array, 4, stream);
        daemon_crash(&daemon);
        /* what there is goes on being used and copied, in order, */
        assert_true(is_all(on_host(array, GPUPOOL_READ, NULL), 4, SIZE));
        memset(on_host(array, GPUPOOL_WRITE, NULL), 5, SIZE);
        MUST(gpupool_synced_push(array, stream));
        on_device(array, GPUPOOL_WRITE, GPUPOOL_PER_THREAD);
        assert_true(is_all(on_host(array, GPUPOOL_READ, stream), 5, SIZE));
        expect(array, GPUPOOL_SYNCED_IN_STEP, 1, 2);
        /* more is not to be had, */
        MUST_BE(gpupool_synced_device(late, GPUPOOL_READ, &memory, stream), GPUPOOL_E_DISCONNECTED);
        MUST(gpupool_synced_resize(array, 50 * MIB));
        MUST_BE(gpupool_synced_host(array, GPUPOOL_OVERWRITE, &memory, stream), GPUPOOL_E_DISCONNECTED);
        expect(array, GPUPOOL_SYNCED_UNINITIALIZED, 1, 2);
        /* and all of it can be ended */
        end(late, stream);
        end(array, flags == 0 ? stream : GPUPOOL_NO_STREAM);
        MUST(gpupool_stream_destroy(client, 0, stream));
        gpupool_close(client);
        daemon_remove(&daemon);
    }
}

/* Which was forgotten: gpupool_synced_settle() should have been called before. CUDA does not promise to
 * notice. */
static void a_stream_that_is_gone_is_in_nobodys_way(struct scene *scene) {
    void *stream;

    MUST(gpupool_stream_create(scene->client, 0, &stream));
    set_on_device(scene->client, scene->array, 4, stream);
    MUST(gpupool_stream_destroy(scene->client, 0, stream));
    read_on_device(scene->client, scene->array, &scene->sink, scene->other);
    assert_true(is_all(on_host(scene->array, GPUPOOL_READ, scene->third), 4, SIZE));
    set_on_device(scene->client, scene->array, 5, scene->third);
    assert_true(sink_has(&scene->sink, 4));
    assert_true(is_all(on_host(scene->array, GPUPOOL_READ, scene->third), 5, SIZE));
}

static void a_forked_child_is_refused(void **state) {
    struct gpupool_client *client;
    void *memory;

    (void)state;
    if (!test_has_device() || !test_is_simulated() || TEST_IS_THREAD_SANITIZED)
        skip();
    client = open_cached();
    struct gpupool_synced *array = create(client, SIZE);
    set_on_host(array, 1);
    set_on_device(client, array, 1, NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        bool refused = gpupool_synced_device(array, GPUPOOL_READ, &memory, NULL) == GPUPOOL_E_FORKED &&
                       gpupool_synced_host(array, GPUPOOL_OVERWRITE, &memory, NULL) == GPUPOOL_E_FORKED &&
                       gpupool_synced_push(array, NULL) == GPUPOOL_E_FORKED &&
                       gpupool_synced_settle(array) == GPUPOOL_E_FORKED &&
                       gpupool_synced_destroy(array, NULL) == 0;
        _exit(refused ? 0 : 1);
    }
    assert_int_equal(test_wait(child), 0);
    assert_true(is_all(on_host(array, GPUPOOL_READ, NULL), 1, SIZE));
    end(array, NULL);
    expect_nothing_leased(client);
    close_cached(client);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_the_driver_fails_can_be_tried_again),
        IN_SIMULATED_SCENE(a_device_that_is_broken_is_said_and_nobody_waits_for_ever),
        IN_SIMULATED_SCENE(who_waits_long_for_a_copy_spoils_no_capture),
        IN_SIMULATED_SCENE(behind_another_threads_stream_a_capture_is_said),
        cmocka_unit_test(a_daemon_that_is_gone_costs_no_array_its_contents),
        IN_SIMULATED_SCENE(a_stream_that_is_gone_is_in_nobodys_way),
        cmocka_unit_test(a_forked_child_is_refused),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
