/* SPDX-License-Identifier: Apache-2.0 */
/* Synchronised arrays on several streams: who waits for whom, and who does not. */
#include "tests/integration/synced_fixture.h"

static void another_stream_waits_for_a_push_on_the_gpu(struct scene *scene) {
    set_on_host(scene->array, 3);
    gate_close(&scene->gate);
    MUST(gpupool_synced_push(scene->array, scene->gate.stream));
    expect(scene->array, GPUPOOL_SYNCED_IN_STEP, 1, 0);
    read_on_device(scene->client, scene->array, &scene->sink, scene->other);
    assert_false(gate_was_passed(&scene->gate)); /* the CPU did not wait for any of it */
    expect_behind_the_gate(scene, scene->other);
    assert_true(sink_has(&scene->sink, 3));
    expect(scene->array, GPUPOOL_SYNCED_IN_STEP, 1, 0);
}

static void another_stream_waits_for_the_copy_and_not_for_what_comes_after_it(struct scene *scene) {
    set_on_host(scene->array, 4);
    MUST(gpupool_synced_push(scene->array, scene->gate.stream));
    on_device(scene->array, GPUPOOL_READ,
              scene->gate.stream); /* what this one goes on to read is its own affair */
    gate_close(&scene->gate);
    read_on_device(scene->client, scene->array, &scene->sink, scene->other);
    WAIT_UNTIL(is_idle(scene, scene->other));
    assert_false(gate_was_passed(&scene->gate));
    assert_true(sink_has(&scene->sink, 4));
    gate_open(&scene->gate);
}

static void another_stream_waits_for_a_write_of_the_callers(struct scene *scene) {
    void *memory = on_device(scene->array, GPUPOOL_OVERWRITE, scene->gate.stream);
    gate_close(&scene->gate);
    MUST(gpupool_set(scene->client, 0, memory, 5, SIZE, scene->gate.stream));
    read_on_device(scene->client, scene->array, &scene->sink, scene->other);
    expect_behind_the_gate(scene, scene->other);
    assert_true(sink_has(&scene->sink, 5));
}

static void a_copy_to_the_host_waits_for_a_write_on_another_stream(struct scene *scene) {
    void *memory = on_device(scene->array, GPUPOOL_OVERWRITE, scene->gate.stream);
    gate_close(&scene->gate);
    MUST(gpupool_set(scene->client, 0, memory, 6, SIZE, scene->gate.stream));
    MUST(gpupool_synced_pull(scene->array, scene->other));
    expect(scene->array, GPUPOOL_SYNCED_IN_STEP, 0, 1);
    expect_behind_the_gate(scene, scene->other);
    assert_true(is_all(on_host(scene->array, GPUPOOL_READ, scene->third), 6, SIZE));
    expect(scene->array, GPUPOOL_SYNCED_IN_STEP, 0, 1);
}

static void a_host_read_waits_for_just_its_copy(struct scene *scene) {
    set_on_device(scene->client, scene->array, 7, scene->gate.stream);
    MUST(gpupool_synced_pull(scene->array, scene->gate.stream));
    gate_close(&scene->gate);
    assert_true(is_all(on_host(scene->array, GPUPOOL_READ, scene->gate.stream), 7, SIZE));
    assert_false(gate_was_passed(&scene->gate)); /* which holds up what was enqueued after it */
    gate_open(&scene->gate);
}

static void readers_do_not_wait_for_each_other(struct scene *scene) {
    struct gpupool_buffer sink = sink_new(scene->client);
    set_on_device(scene->client, scene->array, 8, scene->third);
    void *memory = on_device(scene->array, GPUPOOL_READ, scene->gate.stream);
    gate_close(&scene->gate);
    MUST(gpupool_copy(scene->client, 0, sink.data, memory, SIZE, scene->gate.stream));
    read_on_device(scene->client, scene->array, &scene->sink, scene->other);
    WAIT_UNTIL(is_idle(scene, scene->other));
    assert_true(sink_has(&scene->sink, 8));
    assert_false(gate_was_passed(&scene->gate));
    assert_true(sink_has(&sink, 0xee));
    /* nor does a copy to the host, */
    assert_true(is_all(on_host(scene->array, GPUPOOL_READ, scene->third), 8, SIZE));
    assert_false(gate_was_passed(&scene->gate));
    /* but who writes waits for all of them */
    MUST(gpupool_set(scene->client, 0, on_device(scene->array, GPUPOOL_OVERWRITE, scene->other), 9, SIZE,
                     scene->other));
    expect_behind_the_gate(scene, scene->other);
    assert_true(sink_has(&sink, 8));
    assert_true(is_all(on_host(scene->array, GPUPOOL_READ, scene->third), 9, SIZE));
    MUST(gpupool_release(scene->client, &sink, GPUPOOL_NO_STREAM));
}

static void a_pointer_may_be_used_until_another_writes(struct scene *scene) {
    void *memory = on_device(scene->array, GPUPOOL_OVERWRITE, scene->gate.stream);
    MUST(gpupool_set(scene->client, 0, memory, 1, SIZE, scene->gate.stream));
    on_device(scene->array, GPUPOOL_READ, scene->other);
    MUST(gpupool_stream_synchronize(scene->client, 0, scene->other));
    /* who wrote goes on reading, without another call */
    gate_close(&scene->gate);
    MUST(gpupool_copy(scene->client, 0, scene->sink.data, memory, SIZE, scene->gate.stream));
    set_on_device(scene->client, scene->array, 2, scene->other);
    expect_behind_the_gate(scene, scene->other);
    MUST(gpupool_stream_synchronize(scene->client, 0, scene->gate.stream));
    assert_true(sink_has(&scene->sink, 1));
}

static void a_push_waits_for_readers_of_what_it_replaces(struct scene *scene) {
    set_on_host(scene->array, 1);
    void *memory = on_device(scene->array, GPUPOOL_READ, scene->gate.stream);
    gate_close(&scene->gate);
    MUST(gpupool_copy(scene->client, 0, scene->sink.data, memory, SIZE, scene->gate.stream));
    set_on_host(scene->array, 2); /* nothing reads the host's copy */
    assert_false(gate_was_passed(&scene->gate));
    MUST(gpupool_synced_push(scene->array, scene->other));
    expect_behind_the_gate(scene, scene->other);
    MUST(gpupool_stream_synchronize(scene->client, 0, scene->gate.stream));
    assert_true(sink_has(&scene->sink, 1));
    assert_int_equal(info_of(scene->array).copies_to_device, 2);
}

/* An access for the host that has to wait until the gate opens. */
static void host_waits(enum gpupool_access access, bool pushed) {
    struct scene scene;
    pthread_t thread;

    scene_begin(&scene);
    if (pushed)
        set_on_host(scene.array, 1);
    else
        set_on_device(scene.client, scene.array, 1, scene.gate.stream);
    gate_close(&scene.gate);
    if (pushed)
        MUST(gpupool_synced_push(scene.array, scene.gate.stream));
    else
        MUST(gpupool_synced_pull(scene.array, scene.gate.stream));
    if (pushed) { /* which only reads */
        assert_true(is_all(on_host(scene.array, GPUPOOL_READ, scene.other), 1, SIZE));
        assert_false(gate_was_passed(&scene.gate));
    }
    assert_int_equal(pthread_create(&thread, NULL, gate_open_late, &scene.gate), 0);
    unsigned char *memory = on_host(scene.array, access, scene.other);
    bool passed = gate_was_passed(&scene.gate);
    TEST_JOIN(thread, NULL);
    assert_true(passed);
    assert_true(is_all(memory, 1, SIZE));
    memset(memory, 2, SIZE);
    read_on_device(scene.client, scene.array, &scene.sink, scene.gate.stream);
    MUST(gpupool_stream_synchronize(scene.client, 0, scene.gate.stream));
    assert_true(sink_has(&scene.sink, access == GPUPOOL_READ ? 1 : 2));
    scene_end(&scene);
}

static void a_host_write_waits_for_the_copy_that_reads_the_host(void **state) {
    (void)state;
    if (!test_has_device())
        skip();
    host_waits(GPUPOOL_WRITE, true);
    host_waits(GPUPOOL_OVERWRITE, true);
}

static void every_host_access_waits_for_the_copy_that_writes_the_host(void **state) {
    (void)state;
    if (!test_has_device())
        skip();
    host_waits(GPUPOOL_READ, false);
    host_waits(GPUPOOL_WRITE, false);
    host_waits(GPUPOOL_OVERWRITE, false);
}

/* Uses an array in its own thread, whose per-thread default stream is another one. */
struct visit {
    struct scene *scene;
    void *stream;
    int found, left;
};

static void *visit(void *argument) {
    struct visit *visit = argument;
    struct scene *scene = visit->scene;

    read_on_device(scene->client, scene->array, &scene->sink, visit->stream);
    MUST(gpupool_stream_synchronize(scene->client, 0, visit->stream));
    visit->found = *(volatile unsigned char *)scene->sink.data;
    set_on_device(scene->client, scene->array, visit->left, visit->stream);
    return NULL;
}

static void null_per_thread_and_created_streams_are_ordered(struct scene *scene) {
    pthread_t thread;

    void *streams[] = {NULL, GPUPOOL_PER_THREAD, scene->other, scene->third, (void *)1};
    int value = 0;
    for (unsigned i = 0; i < 5; i++)
        for (unsigned j = 0; j < 5; j++) {
            set_on_device(scene->client, scene->array, ++value, streams[i]);
            read_on_device(scene->client, scene->array, &scene->sink, streams[j]);
            MUST(gpupool_stream_synchronize(scene->client, 0, streams[j]));
            assert_true(sink_has(&scene->sink, value));
            set_on_device(scene->client, scene->array, ++value, streams[j]);
            assert_true(is_all(on_host(scene->array, GPUPOOL_READ, streams[i]), value, SIZE));
            /* in another thread */
            struct visit there = {.scene = scene, .stream = streams[j], .left = ++value};
            assert_int_equal(pthread_create(&thread, NULL, visit, &there), 0);
            TEST_JOIN(thread, NULL);
            assert_int_equal(there.found, value - 1);
            read_on_device(scene->client, scene->array, &scene->sink, streams[i]);
            MUST(gpupool_stream_synchronize(scene->client, 0, streams[i]));
            assert_true(sink_has(&scene->sink, value));
        }
    MUST(gpupool_synced_settle(scene->array));
}

/* The other thread is still there, and so is its work. */
struct busy {
    struct scene *scene;
    sem_t enqueued, leave;
};

static void *be_busy(void *argument) {
    struct busy *busy = argument;
    struct scene *scene = busy->scene;

    void *memory = on_device(scene->array, GPUPOOL_OVERWRITE, GPUPOOL_PER_THREAD);
    gate_close(&scene->gate);
    MUST(gpupool_set(scene->client, 0, memory, 5, SIZE, GPUPOOL_PER_THREAD));
    sem_post(&busy->enqueued);
    (void)test_sem_wait(&busy->leave);
    return NULL;
}

static void another_threads_per_thread_stream_is_waited_for(struct scene *scene) {
    pthread_t thread, opener;

    void *created = scene->gate.stream;
    struct busy busy = {.scene = scene};
    sem_init(&busy.enqueued, 0, 0);
    sem_init(&busy.leave, 0, 0);
    scene->gate.stream = GPUPOOL_PER_THREAD; /* the other thread's */
    assert_int_equal(pthread_create(&thread, NULL, be_busy, &busy), 0);
    TEST_SEM_WAIT(&busy.enqueued);
    assert_int_equal(pthread_create(&opener, NULL, gate_open_late, &scene->gate), 0);
    read_on_device(scene->client, scene->array, &scene->sink, GPUPOOL_PER_THREAD); /* this one's */
    assert_true(gate_was_passed(&scene->gate));
    MUST(gpupool_stream_synchronize(scene->client, 0, GPUPOOL_PER_THREAD));
    assert_true(sink_has(&scene->sink, 5));
    sem_post(&busy.leave);
    TEST_JOIN(thread, NULL);
    TEST_JOIN(opener, NULL);
    set_on_device(scene->client, scene->array, 6, scene->other); /* behind a thread that is gone */
    assert_true(is_all(on_host(scene->array, GPUPOOL_READ, scene->other), 6, SIZE));
    scene->gate.stream = created;
    sem_destroy(&busy.enqueued);
    sem_destroy(&busy.leave);
}

/* Whether who takes so many buffers meets the memory. */
static bool meets(struct gpupool_client *client, const void *memory, unsigned count) {
    static struct gpupool_buffer buffers[512];
    bool met = false;

    for (unsigned i = 0; i < count; i++) {
        buffers[i] = acquire(client, DEVICE, SIZE, GPUPOOL_NO_STREAM);
        met = met || buffers[i].data == memory;
    }
    for (unsigned i = 0; i < count; i++)
        MUST(gpupool_release(client, &buffers[i], GPUPOOL_NO_STREAM));
    return met;
}

static void memory_goes_back_behind_all_who_use_it(struct scene *scene) {
    meets(scene->client, NULL, 64); /* maps what is looked through at the closed gate */
    struct gpupool_synced *array = create(scene->client, SIZE);
    set_on_device(scene->client, array, 4, scene->other);
    void *memory = on_device(array, GPUPOOL_READ, scene->gate.stream);
    gate_close(&scene->gate);
    MUST(gpupool_copy(scene->client, 0, scene->sink.data, memory, SIZE, scene->gate.stream));
    MUST(gpupool_synced_destroy(array, scene->other));
    assert_false(gate_was_passed(&scene->gate));
    assert_false(meets(scene->client, memory, 64));
    gate_open(&scene->gate);
    MUST(gpupool_stream_synchronize(scene->client, 0, scene->other));
    assert_true(gate_was_passed(&scene->gate));
    assert_true(meets(scene->client, memory, 512));
    MUST(gpupool_stream_synchronize(scene->client, 0, scene->gate.stream));
    assert_true(sink_has(&scene->sink, 4));
}

static void a_stream_may_end_once_the_array_is_settled(struct scene *scene) {
    void *stream;

    MUST(gpupool_stream_create(scene->client, 0, &stream));
    set_on_device(scene->client, scene->array, 6, stream);
    read_on_device(scene->client, scene->array, &scene->sink, stream);
    MUST(gpupool_synced_settle(scene->array));
    assert_true(is_idle(scene, stream));
    assert_true(sink_has(&scene->sink, 6));
    expect(scene->array, GPUPOOL_SYNCED_DEVICE_NEWER, 0, 0);
    MUST(gpupool_stream_destroy(scene->client, 0, stream));
    assert_true(is_all(on_host(scene->array, GPUPOOL_READ, scene->other), 6, SIZE));
    set_on_device(scene->client, scene->array, 7, scene->other);
}

/* --- memory of the user's --- */

static void adopted_contents_count_behind_what_is_on_the_stream(struct scene *scene) {
    struct gpupool_buffer device = acquire(scene->client, DEVICE, SIZE, scene->third);
    gate_close(&scene->gate);
    MUST(gpupool_set(scene->client, 0, device.data, 3, SIZE, scene->gate.stream));
    MUST(gpupool_synced_adopt_device(scene->array, device.data, scene->gate.stream));
    read_on_device(scene->client, scene->array, &scene->sink, scene->other);
    expect_behind_the_gate(scene, scene->other);
    assert_true(sink_has(&scene->sink, 3));
    MUST(gpupool_synced_destroy(scene->array, GPUPOOL_NO_STREAM));
    scene->array = NULL;
    MUST(gpupool_release(scene->client, &device, GPUPOOL_NO_STREAM));
}

static void adopted_memory_is_the_callers_when_its_users_are_through(struct scene *scene) {
    pthread_t thread;

    struct gpupool_buffer device = acquire(scene->client, DEVICE, SIZE, scene->third);
    MUST(gpupool_set(scene->client, 0, device.data, 1, SIZE, scene->third));
    MUST(gpupool_synced_adopt_device(scene->array, device.data, scene->third));
    void *memory = on_device(scene->array, GPUPOOL_READ, scene->gate.stream);
    gate_close(&scene->gate);
    MUST(gpupool_copy(scene->client, 0, scene->sink.data, memory, SIZE, scene->gate.stream));
    /* it is let go of on a stream, which comes behind */
    MUST(gpupool_synced_destroy(scene->array, scene->other));
    MUST(gpupool_set(scene->client, 0, device.data, 2, SIZE, scene->other));
    expect_behind_the_gate(scene, scene->other);
    MUST(gpupool_stream_synchronize(scene->client, 0, scene->gate.stream));
    assert_true(sink_has(&scene->sink, 1));
    /* or by the CPU, which waits */
    scene->array = create(scene->client, SIZE);
    MUST(gpupool_synced_adopt_device(scene->array, device.data, scene->other));
    memory = on_device(scene->array, GPUPOOL_READ, scene->gate.stream);
    gate_close(&scene->gate);
    assert_int_equal(pthread_create(&thread, NULL, gate_open_late, &scene->gate), 0);
    MUST(gpupool_synced_destroy(scene->array, GPUPOOL_NO_STREAM));
    bool passed = gate_was_passed(&scene->gate);
    TEST_JOIN(thread, NULL);
    assert_true(passed);
    MUST(gpupool_release(scene->client, &device, GPUPOOL_NO_STREAM));
    scene->array = NULL; /* nothing is ended by ending nothing */
}

static void memory_that_nobody_uses_is_adopted_again_without_waiting(struct scene *scene) {
    pthread_t thread;

    struct gpupool_buffer host = acquire(scene->client, HOST, SIZE, GPUPOOL_NO_STREAM);
    memset(host.data, 1, SIZE);
    MUST(gpupool_synced_adopt_host(scene->array, host.data, scene->other));
    MUST(gpupool_synced_push(scene->array, scene->other));
    MUST(gpupool_stream_synchronize(scene->client, 0, scene->other)); /* which read it */
    gate_close(&scene->gate);
    memset(host.data, 2, SIZE);
    MUST(gpupool_synced_adopt_host(scene->array, host.data, scene->gate.stream));
    assert_int_equal(pthread_create(&thread, NULL, gate_open_afterwards, &scene->gate), 0);
    unsigned char *memory = on_host(scene->array, GPUPOOL_WRITE, scene->other);
    read_on_device(scene->client, scene->array, &scene->sink, scene->other);
    MUST(gpupool_stream_synchronize(scene->client, 0, scene->other));
    bool passed = gate_was_passed(&scene->gate);
    atomic_store(&scene->gate.is_by, true);
    TEST_JOIN(thread, NULL);
    assert_false(passed);
    assert_ptr_equal(memory, host.data);
    assert_true(sink_has(&scene->sink, 2));
    MUST(gpupool_synced_destroy(scene->array, GPUPOOL_NO_STREAM));
    scene->array = NULL;
    MUST(gpupool_release(scene->client, &host, GPUPOOL_NO_STREAM));
}

/* --- captures --- */

static void nothing_of_an_array_lands_in_a_graph(struct scene *scene) {
    unsigned operations = 1;
    void *memory = NULL, *captured;

    MUST(gpupool_stream_create(scene->client, 0, &captured));
    set_on_host(scene->array, 1);
    struct gpupool_synced *ready = create(scene->client, SIZE), *empty = create(scene->client, SIZE),
                          *written = create(scene->client, SIZE), *grown = create(scene->client, SIZE);
    set_on_device(scene->client, ready, 2, captured);
    set_on_device(scene->client, written, 3, scene->other);
    set_on_device(scene->client, grown, 3, captured);
    MUST(gpupool_synced_resize(grown, 2 * MIB));
    struct gpupool_synced_info before = info_of(scene->array);
    assert_int_equal(gpu_sim_capture_begin(0, captured), 0);
    /* a copy, zeroes, another stream to wait for, memory that is to be given back */
    MUST_BE(gpupool_synced_device(scene->array, GPUPOOL_READ, &memory, captured), GPUPOOL_E_CAPTURING);
    MUST_BE(gpupool_synced_push(scene->array, captured), GPUPOOL_E_CAPTURING);
    MUST_BE(gpupool_synced_device(empty, GPUPOOL_READ, &memory, captured), GPUPOOL_E_CAPTURING);
    MUST_BE(gpupool_synced_device(written, GPUPOOL_READ, &memory, captured), GPUPOOL_E_CAPTURING);
    MUST_BE(gpupool_synced_host(written, GPUPOOL_READ, &memory, captured), GPUPOOL_E_CAPTURING);
    MUST_BE(gpupool_synced_device(grown, GPUPOOL_OVERWRITE, &memory, captured), GPUPOOL_E_CAPTURING);
    MUST_BE(gpupool_synced_destroy(ready, captured), GPUPOOL_E_CAPTURING);
    assert_null(memory);
    struct gpupool_synced_info after = info_of(scene->array);
    assert_memory_equal(&before, &after, sizeof before);
    /* no stream can be made to wait for a stream that is captured */
    MUST_BE(gpupool_synced_device(ready, GPUPOOL_READ, &memory, scene->other), GPUPOOL_E_CAPTURING);
    /* what is ready is had */
    on_device(ready, GPUPOOL_READ, captured);
    on_device(ready, GPUPOOL_WRITE, captured);
    on_device(empty, GPUPOOL_OVERWRITE, captured);
    assert_int_equal(gpu_sim_capture_end(0, captured, &operations), 0);
    assert_int_equal(operations, 0);
    on_device(scene->array, GPUPOOL_READ, captured);
    on_device(written, GPUPOOL_READ, captured);
    on_device(grown, GPUPOOL_OVERWRITE, captured);
    assert_true(is_all(on_host(written, GPUPOOL_READ, captured), 3, SIZE));
    assert_true(is_all(on_host(ready, GPUPOOL_READ, captured), 2, SIZE));
    MUST(gpupool_synced_settle(scene->array));
    end(ready, captured);
    end(empty, captured);
    end(written, captured);
    end(grown, captured);
    MUST(gpupool_stream_synchronize(scene->client, 0, captured));
    MUST(gpupool_stream_destroy(scene->client, 0, captured));
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        IN_SCENE(another_stream_waits_for_a_push_on_the_gpu),
        IN_SCENE(another_stream_waits_for_the_copy_and_not_for_what_comes_after_it),
        IN_SCENE(another_stream_waits_for_a_write_of_the_callers),
        IN_SCENE(a_copy_to_the_host_waits_for_a_write_on_another_stream),
        IN_SCENE(a_host_read_waits_for_just_its_copy),
        IN_SCENE(readers_do_not_wait_for_each_other),
        IN_SCENE(a_pointer_may_be_used_until_another_writes),
        IN_SCENE(a_push_waits_for_readers_of_what_it_replaces),
        cmocka_unit_test(a_host_write_waits_for_the_copy_that_reads_the_host),
        cmocka_unit_test(every_host_access_waits_for_the_copy_that_writes_the_host),
        IN_SCENE(null_per_thread_and_created_streams_are_ordered),
        IN_SCENE(another_threads_per_thread_stream_is_waited_for),
        IN_SCENE(memory_goes_back_behind_all_who_use_it),
        IN_SCENE(a_stream_may_end_once_the_array_is_settled),
        IN_SCENE(adopted_contents_count_behind_what_is_on_the_stream),
        IN_SCENE(adopted_memory_is_the_callers_when_its_users_are_through),
        IN_SCENE(memory_that_nobody_uses_is_adopted_again_without_waiting),
        IN_SIMULATED_SCENE(nothing_of_an_array_lands_in_a_graph),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
