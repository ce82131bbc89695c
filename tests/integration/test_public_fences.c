/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public fences, <gpupool/fence.h>: streams and the CPU wait for a point in a stream's work. Streams
 * stand at gates that the test opens, so that a call that waits, or one that does not wait, is found by
 * contents.
 */
#include <gpupool/fence.h>

#include "gpu/sim/sim.h"
#include "tests/integration/cache_fixture.h"
#include "tests/integration/gate.h"

#define SIZE     UINT64_C(65536)
#define WORDLESS 801 /* cudaErrorNotSupported: a device that writes no words */

struct scene {
    struct gpupool_client *client;
    struct gate gate;
    void *other; /* a stream beside the gate's */
    struct gpupool_buffer device, host;
};

static void scene_init(struct scene *scene) {
    if (!test_has_device())
        skip();
    scene->client = open_cached_with_stream(&scene->other);
    gate_init(&scene->gate, scene->client);
    scene->device = acquire(scene->client, GPUPOOL_POOL_DEVICE, SIZE, GPUPOOL_NO_STREAM);
    scene->host = acquire(scene->client, GPUPOOL_POOL_HOST, SIZE, GPUPOOL_NO_STREAM);
    memset(scene->host.data, 0xee, SIZE);
    MUST(gpupool_set(scene->client, 0, scene->device.data, 1, SIZE, scene->other));
    MUST(gpupool_stream_synchronize(scene->client, 0, scene->other));
}

static void scene_deinit(struct scene *scene) {
    MUST(gpupool_stream_synchronize(scene->client, 0, scene->other));
    MUST(gpupool_stream_synchronize(scene->client, 0, scene->gate.stream));
    MUST(gpupool_release(scene->client, &scene->device, GPUPOOL_NO_STREAM));
    MUST(gpupool_release(scene->client, &scene->host, GPUPOOL_NO_STREAM));
    gate_deinit(&scene->gate);
    MUST(gpupool_stream_destroy(scene->client, 0, scene->other));
    close_cached(scene->client);
}

static bool host_is_all(const struct scene *scene, uint8_t byte) {
    const uint8_t *bytes = scene->host.data;
    for (uint64_t i = 0; i < SIZE; i++)
        if (__atomic_load_n(&bytes[i], __ATOMIC_RELAXED) != byte)
            return false;
    return true;
}

static bool is_ready(const struct scene *scene, const struct gpupool_fence *fence) {
    int ready = -1;
    MUST(gpupool_fence_query(scene->client, fence, &ready));
    assert_true(ready == 0 || ready == 1);
    return ready == 1;
}

static void a_stream_and_the_cpu_wait_for_a_fence_of_another_stream(void **state) {
    struct gpupool_fence fence = GPUPOOL_FENCE_INIT, behind;
    struct scene scene;

    (void)state;
    scene_init(&scene);
    gate_close(&scene.gate);
    MUST(gpupool_set(scene.client, 0, scene.device.data, 2, SIZE, scene.gate.stream));
    MUST(gpupool_fence_record(scene.client, 0, &fence, scene.gate.stream));
    MUST(gpupool_fence_wait(scene.client, 0, &fence, scene.other));
    MUST(gpupool_copy(scene.client, 0, scene.host.data, scene.device.data, SIZE, scene.other));
    MUST(gpupool_fence_record(scene.client, 0, &behind, scene.other));
    assert_false(gate_was_passed(&scene.gate)); /* no call has waited */
    assert_false(is_ready(&scene, &fence));
    MUST_BE(gpupool_fence_wait_host(scene.client, &fence, GPUPOOL_NOW), GPUPOOL_E_TIMED_OUT);
    MUST_BE(gpupool_fence_wait_host(scene.client, &behind, 20 * NS_PER_MS), GPUPOOL_E_TIMED_OUT);
    assert_true(host_is_all(&scene, 0xee)); /* the other stream stands as well */
    gate_open(&scene.gate);
    MUST(gpupool_fence_wait_host(scene.client, &behind, TEST_WAIT_NS));
    assert_true(host_is_all(&scene, 2));
    assert_true(is_ready(&scene, &fence));
    assert_true(is_ready(&scene, &behind));
    MUST(gpupool_fence_wait_host(scene.client, &fence, GPUPOOL_NOW));
    scene_deinit(&scene);
}

static void a_fence_stands_for_the_work_before_it_and_for_no_other(void **state) {
    struct gpupool_fence fence, none = GPUPOOL_FENCE_INIT;
    struct scene scene;

    (void)state;
    scene_init(&scene);
    MUST(gpupool_set(scene.client, 0, scene.device.data, 3, SIZE, scene.gate.stream));
    MUST(gpupool_fence_record(scene.client, 0, &fence, scene.gate.stream));
    gate_close(&scene.gate);
    MUST(gpupool_fence_wait_host(scene.client, &fence, TEST_WAIT_NS));
    /* it lets a stream pass that would not pass a later one, and so does a fence that was never recorded */
    MUST(gpupool_fence_wait(scene.client, 0, &fence, scene.other));
    MUST(gpupool_fence_wait(scene.client, 0, &none, scene.other));
    assert_true(is_ready(&scene, &none));
    MUST(gpupool_copy(scene.client, 0, scene.host.data, scene.device.data, SIZE, scene.other));
    MUST(gpupool_stream_synchronize(scene.client, 0, scene.other));
    assert_true(host_is_all(&scene, 3));
    assert_false(gate_was_passed(&scene.gate));
    gate_open(&scene.gate);
    scene_deinit(&scene);
}

/* --- threads --- */

struct recorder {
    struct scene *scene;
    struct gpupool_fence fence;
    sem_t recorded, over;
};

static void *record_on_own_stream(void *argument) {
    struct recorder *recorder = argument;
    struct scene *scene = recorder->scene;

    scene->gate.stream = GPUPOOL_PER_THREAD;
    gate_close(&scene->gate);
    MUST(gpupool_set(scene->client, 0, scene->device.data, 4, SIZE, GPUPOOL_PER_THREAD));
    MUST(gpupool_fence_record(scene->client, 0, &recorder->fence, GPUPOOL_PER_THREAD));
    sem_post(&recorder->recorded);
    (void)test_sem_wait(&recorder->over); /* its stream ends with it */
    return NULL;
}

static void a_fence_of_a_threads_own_stream_serves_other_threads(void **state) {
    struct recorder recorder;
    struct scene scene;
    pthread_t thread;

    (void)state;
    scene_init(&scene);
    void *created = scene.gate.stream;
    recorder.scene = &scene;
    sem_init(&recorder.recorded, 0, 0);
    sem_init(&recorder.over, 0, 0);
    assert_int_equal(pthread_create(&thread, NULL, record_on_own_stream, &recorder), 0);
    TEST_SEM_WAIT(&recorder.recorded);
    assert_false(is_ready(&scene, &recorder.fence));
    MUST(gpupool_fence_wait(scene.client, 0, &recorder.fence, scene.other));
    MUST(gpupool_copy(scene.client, 0, scene.host.data, scene.device.data, SIZE, scene.other));
    assert_true(host_is_all(&scene, 0xee));
    gate_open(&scene.gate);
    MUST(gpupool_stream_synchronize(scene.client, 0, scene.other));
    assert_true(host_is_all(&scene, 4));
    sem_post(&recorder.over);
    TEST_JOIN(thread, NULL);
    sem_destroy(&recorder.recorded);
    sem_destroy(&recorder.over);
    scene.gate.stream = created;
    scene_deinit(&scene);
}

/* --- how long a fence is good, and for which client --- */

static void a_fence_outlives_its_stream(void **state) {
    struct gpupool_fence fence, later;
    struct scene scene;
    void *stream;

    (void)state;
    scene_init(&scene);
    MUST(gpupool_stream_create(scene.client, 0, &stream));
    MUST(gpupool_fence_record(scene.client, 0, &fence, stream));
    MUST(gpupool_stream_destroy(scene.client, 0, stream));
    /* so many streams that words are used again: an old fence is not mistaken for one of theirs */
    gate_close(&scene.gate);
    for (unsigned i = 0; i < PROTO_PAGE_FENCES + 1; i++) {
        MUST(gpupool_stream_create(scene.client, 0, &stream));
        MUST(gpupool_fence_wait_host(scene.client, &fence, TEST_WAIT_NS));
        MUST(gpupool_fence_record(scene.client, 0, &later, stream));
        MUST(gpupool_fence_wait_host(scene.client, &later, TEST_WAIT_NS));
        MUST(gpupool_stream_destroy(scene.client, 0, stream));
    }
    assert_false(gate_was_passed(&scene.gate));
    gate_open(&scene.gate);
    scene_deinit(&scene);
}

static void expect_refused(struct gpupool_client *client, const struct gpupool_fence *fence, void *stream) {
    int ready = 77;

    MUST_BE(gpupool_fence_query(client, fence, &ready), GPUPOOL_E_INVALID);
    assert_int_equal(ready, 77);
    assert_non_null(strstr(gpupool_error_text(), "another process's"));
    MUST_BE(gpupool_fence_wait_host(client, fence, GPUPOOL_FOREVER), GPUPOOL_E_INVALID);
    if (stream != NULL)
        MUST_BE(gpupool_fence_wait(client, 0, fence, stream), GPUPOOL_E_INVALID);
}

/* In a child of the client's process, with a client of its own. */
static int refuse_in_child(struct gpupool_client *parents, const struct gpupool_fence *fence) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;
    int ready;

    options.socket = daemon_.socket;
    if (gpupool_fence_query(parents, fence, &ready) != GPUPOOL_E_FORKED ||
        gpupool_fence_wait_host(parents, fence, GPUPOOL_NOW) != GPUPOOL_E_FORKED)
        return 1;
    if (gpupool_open(&options, &client) < 0)
        return 2;
    int r = gpupool_fence_query(client, fence, &ready);
    gpupool_close(client);
    return r == GPUPOOL_E_INVALID ? 0 : 3;
}

static void a_fence_is_for_its_client_alone(void **state) {
    struct gpupool_fence fence, foreign;
    struct gpupool_client *second;
    struct scene scene;
    int status = 0;

    (void)state;
    scene_init(&scene);
    second = open_cached();
    MUST(gpupool_fence_record(scene.client, 0, &fence, scene.gate.stream));
    expect_refused(second, &fence, scene.other);
    MUST(gpupool_fence_record(second, 0, &foreign, scene.other));
    gpupool_close(second); /* which waits for the device: the gate is open */
    gate_close(&scene.gate);
    MUST(gpupool_fence_record(scene.client, 0, &fence, scene.gate.stream));
    expect_refused(scene.client, &foreign, scene.other);
    foreign = fence;
    foreign.word = 100000;
    expect_refused(scene.client, &foreign, scene.other);
    if (!TEST_IS_THREAD_SANITIZED) {
        pid_t child = fork();
        if (child == 0)
            _exit(refuse_in_child(scene.client, &fence));
        status = test_wait(child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    gate_open(&scene.gate);
    MUST(gpupool_fence_wait_host(scene.client, &fence, TEST_WAIT_NS));
    scene_deinit(&scene);
}

static void what_is_no_stream_device_or_fence_is_refused(void **state) {
    struct gpupool_fence fence = GPUPOOL_FENCE_INIT, untouched = {1, 2, 3, 4};
    struct scene scene;

    (void)state;
    scene_init(&scene);
    MUST_BE(gpupool_fence_record(NULL, 0, &untouched, scene.other), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_fence_record(scene.client, 0, &untouched, GPUPOOL_NO_STREAM), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_fence_record(scene.client, -1, &untouched, scene.other), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_fence_record(scene.client, 1000, &untouched, scene.other), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_fence_record(scene.client, 0, NULL, scene.other), GPUPOOL_E_INVALID);
    assert_true(untouched.client == 1 && untouched.value == 2 && untouched.word == 3 &&
                untouched.device == 4);
    MUST_BE(gpupool_fence_wait(scene.client, 0, &fence, GPUPOOL_NO_STREAM), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_fence_wait(scene.client, 1000, &fence, scene.other), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_fence_wait(scene.client, 0, NULL, scene.other), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_fence_query(scene.client, &fence, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_fence_query(scene.client, NULL, &(int){0}), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_fence_wait_host(scene.client, NULL, GPUPOOL_NOW), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_fence_wait_host(NULL, &fence, GPUPOOL_NOW), GPUPOOL_E_INVALID);
    scene_deinit(&scene);

    struct gpupool_client *client = open_client(&daemon_, GPUPOOL_OPEN_NO_CUDA, 0);
    MUST_BE(gpupool_fence_record(client, 0, &untouched, NULL), GPUPOOL_E_NO_GPU);
    MUST_BE(gpupool_fence_wait(client, 0, &fence, NULL), GPUPOOL_E_NO_GPU);
    gpupool_close(client);
}

/* GPUPOOL_NO_CUDA is as the flag, for all clients of the process. */
static void a_process_can_be_kept_from_cuda(void **state) {
    struct gpupool_fence fence;
    struct gpupool_client *client;

    (void)state;
    setenv("GPUPOOL_NO_CUDA", "1", 1);
    client = open_client(&daemon_, 0, 0);
    MUST_BE(gpupool_fence_record(client, 0, &fence, NULL), GPUPOOL_E_NO_GPU);
    assert_non_null(strstr(gpupool_error_text(), "GPUPOOL_NO_CUDA=1"));
    if (!test_host_exports_vmm()) { /* such memory is CUDA's */
        struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_HOST, 4096, GPUPOOL_NO_STREAM);
        memset(buffer.data, 1, 4096);
        MUST(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
        MUST(gpupool_trim(client, NULL));
    }
    gpupool_close(client);
    setenv("GPUPOOL_NO_CUDA", "yes", 1);
    MUST_BE(gpupool_open(&(struct gpupool_options){.struct_size = sizeof(struct gpupool_options),
                                                   .socket = daemon_.socket},
                         &client),
            GPUPOOL_E_INVALID);
    assert_non_null(strstr(gpupool_error_text(), "'yes'"));
    setenv("GPUPOOL_NO_CUDA", "0", 1);
    if (test_has_device()) {
        client = open_client(&daemon_, 0, 0);
        MUST(gpupool_fence_record(client, 0, &fence, NULL));
        MUST(gpupool_fence_wait_host(client, &fence, TEST_WAIT_NS));
        gpupool_close(client);
    }
    unsetenv("GPUPOOL_NO_CUDA");
}

/* --- graphs, and devices without words --- */

static void a_captured_stream_is_refused_and_its_graph_gets_nothing(void **state) {
    struct gpupool_fence fence, ready;
    struct scene scene;
    unsigned operations = 1;

    (void)state;
    if (!test_is_simulated())
        skip();
    scene_init(&scene);
    MUST(gpupool_fence_record(scene.client, 0, &ready, scene.gate.stream));
    MUST(gpupool_fence_wait_host(scene.client, &ready, TEST_WAIT_NS));
    gate_close(&scene.gate);
    MUST(gpupool_fence_record(scene.client, 0, &fence, scene.gate.stream));
    assert_int_equal(gpu_sim_capture_begin(0, scene.other), 0);
    MUST_BE(gpupool_fence_record(scene.client, 0, &(struct gpupool_fence){0}, scene.other),
            GPUPOOL_E_CAPTURING);
    MUST_BE(gpupool_fence_wait(scene.client, 0, &fence, scene.other), GPUPOOL_E_CAPTURING);
    MUST_BE(gpupool_fence_wait(scene.client, 0, &ready, scene.other), GPUPOOL_E_CAPTURING);
    assert_false(is_ready(&scene, &fence));
    gate_open(&scene.gate);
    MUST(gpupool_fence_wait_host(scene.client, &fence, TEST_WAIT_NS)); /* other streams are not disturbed */
    assert_int_equal(gpu_sim_capture_end(0, scene.other, &operations), 0);
    assert_int_equal(operations, 0);
    MUST(gpupool_fence_wait(scene.client, 0, &ready, scene.other));
    scene_deinit(&scene);
}

static void without_words_the_record_waits_for_its_stream(void **state) {
    struct gpupool_fence fence;
    struct scene scene;
    pthread_t thread;

    (void)state;
    if (!test_is_simulated())
        skip();
    scene_init(&scene);
    gate_close(&scene.gate);
    assert_int_equal(gpu_sim_fail("stream_write64", 1, WORDLESS), 0);
    assert_int_equal(pthread_create(&thread, NULL, gate_open_late, &scene.gate), 0);
    int r = gpupool_fence_record(scene.client, 0, &fence, scene.gate.stream);
    bool passed = gate_was_passed(&scene.gate);
    TEST_JOIN(thread, NULL);
    MUST(r);
    assert_true(passed);
    assert_true(is_ready(&scene, &fence));
    MUST(gpupool_fence_wait(scene.client, 0, &fence, scene.other));
    assert_int_equal(gpu_sim_fail("any", 0, 0), 0);
    scene_deinit(&scene);
}

static void a_wait_for_a_device_that_failed_ends(void **state) {
    struct gpupool_fence fence;
    struct scene scene;

    (void)state;
    if (!test_is_simulated())
        skip();
    scene_init(&scene);
    gate_close(&scene.gate);
    MUST(gpupool_fence_record(scene.client, 0, &fence, scene.gate.stream));
    assert_int_equal(gpu_sim_fail("stream_query", 1, GPU_ERROR_UNKNOWN), 0);
    MUST_BE(gpupool_fence_wait_host(scene.client, &fence, GPUPOOL_FOREVER), GPUPOOL_E_DRIVER);
    assert_true(gpu_sim_failed());
    assert_non_null(strstr(gpupool_error_text(), "device 0"));
    assert_int_equal(gpu_sim_fail("any", 0, 0), 0);
    gate_open(&scene.gate);
    scene_deinit(&scene);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_and_the_cpu_wait_for_a_fence_of_another_stream),
        cmocka_unit_test(a_fence_stands_for_the_work_before_it_and_for_no_other),
        cmocka_unit_test(a_fence_of_a_threads_own_stream_serves_other_threads),
        cmocka_unit_test(a_fence_outlives_its_stream),
        cmocka_unit_test(a_fence_is_for_its_client_alone),
        cmocka_unit_test(what_is_no_stream_device_or_fence_is_refused),
        cmocka_unit_test(a_process_can_be_kept_from_cuda),
        cmocka_unit_test(a_captured_stream_is_refused_and_its_graph_gets_nothing),
        cmocka_unit_test(without_words_the_record_waits_for_its_stream),
        cmocka_unit_test(a_wait_for_a_device_that_failed_ends),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
