/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpupool_record_stream(): a further stream writes to a buffer that was released. The memory waits for that
 * stream, the CPU and the other streams do not, and what the next owner wrote is what the next owner reads.
 */
#include <limits.h>

#include "client/core/deferred.h"
#include "gpu/sim/sim.h"
#include "tests/integration/cache_fixture.h"
#include "tests/integration/gate.h"

#define SIZE       UINT64_C(4096)
#define LARGE      (40 * MIB) /* no two of them fit */
#define MEET_COUNT 64u
#define LATE       0xaa /* what the further streams write */

/* Two streams that stand at gates, and one that does not. */
struct scene {
    struct gpupool_client *client;
    struct gate first, second;
    void *own;
    struct gpupool_buffer room; /* where contents are looked at */
};

static void scene_init(struct scene *scene) {
    if (!test_has_device())
        skip();
    scene->client = open_cached_with_stream(&scene->own);
    gate_init(&scene->first, scene->client);
    gate_init(&scene->second, scene->client);
    scene->room = acquire(scene->client, GPUPOOL_POOL_HOST, SIZE, GPUPOOL_NO_STREAM);
}

static void scene_deinit(struct scene *scene) {
    MUST(gpupool_stream_synchronize(scene->client, 0, scene->own));
    MUST(gpupool_release(scene->client, &scene->room, GPUPOOL_NO_STREAM));
    gate_deinit(&scene->first);
    gate_deinit(&scene->second);
    assert_true(stream_heaps_are_valid(scene->client));
    assert_int_equal(atomic_load(&scene->client->recorded.count), 0);
    MUST(gpupool_stream_destroy(scene->client, 0, scene->own));
    close_cached(scene->client);
}

/* Has a stream at its gate write to the buffer, later, and says so. */
static void write_late(struct scene *scene, struct gate *gate, const struct gpupool_buffer *buffer) {
    gate_close(gate);
    MUST(gpupool_set(scene->client, 0, buffer->data, LATE, SIZE, gate->stream));
    MUST(gpupool_record_stream(scene->client, buffer, gate->stream));
    MUST(gpupool_record_stream(scene->client, buffer, gate->stream)); /* once is enough */
}

/* So many buffers that they would meet any that is free, each with a pattern. */
struct owners {
    struct gpupool_buffer buffers[MEET_COUNT];
};

static bool owners_take(struct scene *scene, struct owners *owners, unsigned kind, const void *memory) {
    bool met = false;
    for (unsigned i = 0; i < MEET_COUNT; i++) {
        owners->buffers[i] = acquire(scene->client, kind, SIZE, scene->own);
        met = met || owners->buffers[i].data == memory;
        MUST(gpupool_set(scene->client, 0, owners->buffers[i].data, (int)i, SIZE, scene->own));
    }
    MUST(gpupool_stream_synchronize(scene->client, 0, scene->own)); /* no gate holds the own stream */
    return met;
}

/* The data that they wrote is there, and they go. */
static void owners_check(struct scene *scene, struct owners *owners) {
    for (unsigned i = 0; i < MEET_COUNT; i++) {
        const uint8_t *bytes = scene->room.data;
        MUST(gpupool_copy(scene->client, 0, scene->room.data, owners->buffers[i].data, SIZE, scene->own));
        MUST(gpupool_stream_synchronize(scene->client, 0, scene->own));
        for (uint64_t byte = 0; byte < SIZE; byte++)
            assert_int_equal(bytes[byte], i);
        MUST(gpupool_release(scene->client, &owners->buffers[i], scene->own));
    }
}

static void pass(struct scene *scene, struct gate *gate) {
    gate_open(gate);
    MUST(gpupool_stream_synchronize(scene->client, 0, gate->stream));
}

/* Does what a miss does: gives the stream heap what is ready. The fence of a join comes a little after its
 * streams'.
 */
static bool comes_back(struct stream_heap *stream_heap) {
    pthread_mutex_lock(&stream_heap->lock);
    (void)deferred_settle_locked(stream_heap, UINT_MAX);
    pthread_mutex_unlock(&stream_heap->lock);
    return deferred_in(stream_heap) == 0;
}

/* --- in its own process --- */

enum last {
    LAST_OWN,
    LAST_SECOND,
    LAST_NONE
};

static void one_further_stream(unsigned kind, enum last last) {
    struct owners owners;
    struct scene scene;

    scene_init(&scene);
    struct gpupool_buffer buffer = acquire(scene.client, kind, SIZE, scene.own);
    struct stream_heap *stream_heap = stream_heap_of(&buffer);
    const void *memory = buffer.data;
    write_late(&scene, &scene.first, &buffer);
    MUST(gpupool_release(scene.client, &buffer,
                         last == LAST_OWN      ? scene.own
                         : last == LAST_SECOND ? scene.second.stream
                                               : GPUPOOL_NO_STREAM));
    assert_null(buffer.data);
    assert_false(gate_was_passed(&scene.first)); /* the release did not wait, */
    bool met = owners_take(&scene, &owners, kind, memory);
    assert_false(gate_was_passed(&scene.first)); /* and nor did what followed */
    pass(&scene, &scene.first);
    owners_check(&scene, &owners);
    assert_false(met);
    WAIT_UNTIL(comes_back(stream_heap));
    scene_deinit(&scene);
}

static void memory_waits_for_a_further_stream_whichever_it_is_released_on(void **state) {
    (void)state;
    one_further_stream(GPUPOOL_POOL_DEVICE, LAST_OWN);
    one_further_stream(GPUPOOL_POOL_DEVICE, LAST_SECOND);
    one_further_stream(GPUPOOL_POOL_DEVICE, LAST_NONE);
    one_further_stream(GPUPOOL_POOL_HOST, LAST_OWN);
    one_further_stream(GPUPOOL_POOL_HOST, LAST_NONE);
}

/* Two streams at gates, one of which may be that of the release. The gates open in either order. */
static void two_streams(bool is_released_on_second, bool is_second_first) {
    struct owners owners;
    struct scene scene;

    scene_init(&scene);
    struct gpupool_buffer buffer = acquire(scene.client, GPUPOOL_POOL_DEVICE, SIZE, scene.own);
    struct stream_heap *stream_heap = stream_heap_of(&buffer);
    const void *memory = buffer.data;
    struct gate *early = is_second_first ? &scene.second : &scene.first;
    struct gate *late = is_second_first ? &scene.first : &scene.second;
    write_late(&scene, &scene.first, &buffer);
    if (is_released_on_second) {
        gate_close(&scene.second);
        MUST(gpupool_set(scene.client, 0, buffer.data, LATE, SIZE, scene.second.stream));
        MUST(gpupool_release(scene.client, &buffer, scene.second.stream));
    } else {
        write_late(&scene, &scene.second, &buffer);
        MUST(gpupool_release(scene.client, &buffer, scene.own));
    }
    assert_false(gate_was_passed(&scene.first));
    assert_false(gate_was_passed(&scene.second));
    pass(&scene, early); /* it is not made to wait for the other, */
    for (unsigned i = 0; i < 5; i++)
        test_pause();
    bool met = owners_take(&scene, &owners, GPUPOOL_POOL_DEVICE, memory);
    assert_false(gate_was_passed(late)); /* which the memory does */
    pass(&scene, late);
    owners_check(&scene, &owners);
    assert_false(met);
    WAIT_UNTIL(comes_back(stream_heap));
    scene_deinit(&scene);
}

static void memory_waits_for_several_streams_that_do_not_wait_for_each_other(void **state) {
    (void)state;
    for (unsigned i = 0; i < 4; i++)
        two_streams(i % 2 == 0, i / 2 == 0);
}

/* More buffers than the library has streams for joins. */
static void more_joins_than_streams_are_done(void **state) {
    struct gpupool_buffer buffers[3 * JOIN_STREAMS];
    struct scene scene;

    (void)state;
    scene_init(&scene);
    for (unsigned i = 0; i < 3 * JOIN_STREAMS; i++)
        buffers[i] = acquire(scene.client, GPUPOOL_POOL_DEVICE, SIZE, scene.own);
    struct stream_heap *stream_heap = stream_heap_of(&buffers[0]);
    gate_close(&scene.first);
    gate_close(&scene.second);
    for (unsigned i = 0; i < 3 * JOIN_STREAMS; i++) {
        MUST(gpupool_record_stream(scene.client, &buffers[i], scene.first.stream));
        MUST(gpupool_release(scene.client, &buffers[i], scene.second.stream));
    }
    assert_int_equal(deferred_in(stream_heap), 3 * JOIN_STREAMS * SIZE);
    pass(&scene, &scene.first);
    for (unsigned i = 0; i < 5; i++)
        test_pause();
    assert_false(comes_back(stream_heap));
    pass(&scene, &scene.second);
    WAIT_UNTIL(comes_back(stream_heap));
    scene_deinit(&scene);
}

static void a_cut_tail_waits_and_so_does_the_rest(void **state) {
    struct owners owners;
    struct scene scene;

    (void)state;
    scene_init(&scene);
    struct gpupool_buffer buffer = acquire(scene.client, GPUPOOL_POOL_DEVICE, 2 * SIZE, scene.own);
    struct stream_heap *stream_heap = stream_heap_of(&buffer);
    const char *memory = buffer.data;
    write_late(&scene, &scene.first, &buffer);
    MUST(gpupool_set(scene.client, 0, (char *)buffer.data + SIZE, LATE, SIZE, scene.first.stream));
    MUST(gpupool_shrink(scene.client, &buffer, SIZE, scene.own));
    assert_int_equal(deferred_in(stream_heap), SIZE);
    MUST(gpupool_release(scene.client, &buffer, scene.own));
    assert_int_equal(deferred_in(stream_heap), 2 * SIZE);
    assert_false(gate_was_passed(&scene.first));
    bool met = owners_take(&scene, &owners, GPUPOOL_POOL_DEVICE, memory);
    for (unsigned i = 0; i < MEET_COUNT; i++)
        met = met || owners.buffers[i].data == memory + SIZE;
    pass(&scene, &scene.first);
    owners_check(&scene, &owners);
    assert_false(met);
    WAIT_UNTIL(comes_back(stream_heap));
    scene_deinit(&scene);
}

static void the_note_ends_with_the_release(void **state) {
    struct gpupool_buffer buffer, copy;
    struct scene scene;

    (void)state;
    scene_init(&scene);
    buffer = acquire(scene.client, GPUPOOL_POOL_DEVICE, SIZE, scene.own);
    MUST(gpupool_record_stream(scene.client, &buffer, scene.first.stream)); /* which is idle */
    copy = buffer;
    MUST(gpupool_release(scene.client, &buffer, scene.own));
    MUST_BE(gpupool_record_stream(scene.client, &copy, scene.first.stream), GPUPOOL_E_STALE);
    MUST_BE(gpupool_record_stream(scene.client, &buffer, scene.first.stream), GPUPOOL_E_STALE);
    gate_close(&scene.first);
    /* whatever is taken now is not held up by the gate */
    for (unsigned i = 0; i < MEET_COUNT; i++) {
        buffer = acquire(scene.client, GPUPOOL_POOL_DEVICE, SIZE, scene.own);
        struct stream_heap *stream_heap = stream_heap_of(&buffer);
        uint64_t deferred = deferred_in(stream_heap);
        MUST(gpupool_release(scene.client, &buffer, scene.own));
        assert_int_equal(deferred_in(stream_heap), deferred);
    }
    gate_open(&scene.first);
    scene_deinit(&scene);
}

/* --- threads, pointers --- */

static void *record_own_stream(void *argument) {
    struct scene *scene = argument;

    scene->second.stream = GPUPOOL_PER_THREAD;
    gate_close(&scene->second);
    MUST(gpupool_record_stream(scene->client, &scene->room, GPUPOOL_PER_THREAD));
    gate_open(&scene->second);
    MUST(gpupool_stream_synchronize(scene->client, 0, GPUPOOL_PER_THREAD));
    return NULL;
}

static void a_threads_own_stream_is_waited_for_by_the_release_of_another_thread(void **state) {
    struct scene scene;
    pthread_t thread;

    (void)state;
    scene_init(&scene);
    void *created = scene.second.stream;
    assert_int_equal(pthread_create(&thread, NULL, record_own_stream, &scene), 0);
    TEST_JOIN(thread, NULL); /* it has ended: its stream has no name any more */
    scene.second.stream = created;
    gate_close(&scene.first);
    assert_int_equal(pthread_create(&thread, NULL, gate_open_late, &scene.first), 0);
    int r = gpupool_release(scene.client, &scene.room, GPUPOOL_NO_STREAM);
    bool passed = gate_was_passed(&scene.first);
    TEST_JOIN(thread, NULL);
    MUST(r);
    assert_true(passed); /* the whole device was waited for */
    scene.room = acquire(scene.client, GPUPOOL_POOL_HOST, SIZE, GPUPOOL_NO_STREAM);
    scene_deinit(&scene);
}

static void a_pointer_is_recorded_by_what_it_stands_for(void **state) {
    struct gpupool_client *client;
    struct gpupool_buffer buffer;
    struct owners owners;
    struct scene scene;

    (void)state;
    scene_init(&scene);
    void *memory = gpupool_alloc(scene.client, pool_of(scene.client, GPUPOOL_POOL_DEVICE), SIZE, scene.own);
    assert_non_null(memory);
    MUST(gpupool_lookup(memory, &client, &buffer));
    struct stream_heap *stream_heap = stream_heap_of(&buffer);
    write_late(&scene, &scene.first, &buffer);
    MUST(gpupool_free(memory, scene.own));
    assert_false(gate_was_passed(&scene.first));
    bool met = owners_take(&scene, &owners, GPUPOOL_POOL_DEVICE, memory);
    pass(&scene, &scene.first);
    owners_check(&scene, &owners);
    assert_false(met);
    WAIT_UNTIL(comes_back(stream_heap));
    scene_deinit(&scene);
}

/* --- to other processes --- */

static void hand_over(bool is_cached, bool is_shared, bool second_is_busy) {
    struct gpupool_client *user;
    struct gpupool_buffer buffer;
    struct gpupool_token token;
    struct puppet puppet;
    struct scene scene;

    empty_the_pools();
    scene_init(&scene);
    user = is_cached ? scene.client : open_client(&daemon_, GPUPOOL_OPEN_NO_CACHE, 0);
    puppet_connect(&puppet, &daemon_);
    buffer = acquire(user, GPUPOOL_POOL_DEVICE, LARGE, scene.own);
    if (is_shared)
        MUST(gpupool_share(user, &buffer, GPUPOOL_NO_STREAM, &token));
    gate_close(&scene.first);
    MUST(gpupool_record_stream(user, &buffer, scene.first.stream));
    if (second_is_busy)
        gate_close(&scene.second);
    MUST(gpupool_release(user, &buffer, scene.second.stream));
    assert_false(gate_was_passed(&scene.first));
    if (second_is_busy) {
        assert_false(gate_was_passed(&scene.second));
        pass(&scene, &scene.second);
    }
    gate_hands_over(&scene.first, GPUPOOL_POOL_DEVICE, LARGE, &puppet);
    puppet_quit(&puppet);
    if (user != scene.client)
        gpupool_close(user);
    scene_deinit(&scene);
}

static void another_process_gets_the_memory_when_all_streams_are_through(void **state) {
    (void)state;
    if (!test_has_device())
        skip();
    for (unsigned i = 0; i < 2; i++) {
        hand_over(false, false, i == 0);
        hand_over(false, true, i == 0);
        hand_over(true, false, i == 0);
        hand_over(true, true, i == 0);
    }
}

/* --- what is refused, and what fails --- */

static void what_is_no_stream_or_no_buffer_is_refused(void **state) {
    struct gpupool_buffer nothing = {0};
    struct gpupool_client *second;
    struct scene scene;

    (void)state;
    scene_init(&scene);
    MUST_BE(gpupool_record_stream(NULL, &scene.room, scene.own), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_record_stream(scene.client, NULL, scene.own), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_record_stream(scene.client, &nothing, scene.own), GPUPOOL_E_STALE);
    MUST_BE(gpupool_record_stream(scene.client, &scene.room, GPUPOOL_NO_STREAM), GPUPOOL_E_INVALID);
    if (test_is_simulated()) /* CUDA crashes on a handle that is none */
        MUST_BE(gpupool_record_stream(scene.client, &scene.room, &nothing), GPUPOOL_E_DRIVER);
    second = open_cached();
    MUST_BE(gpupool_record_stream(second, &scene.room, scene.own), GPUPOOL_E_INVALID);
    gpupool_close(second);
    assert_int_equal(atomic_load(&scene.client->recorded.count), 0);
    scene_deinit(&scene);
}

static void a_captured_stream_is_refused_and_the_buffer_stays_with_its_notes(void **state) {
    struct owners owners;
    struct scene scene;
    unsigned operations = 1;

    (void)state;
    if (!test_is_simulated())
        skip();
    scene_init(&scene);
    struct gpupool_buffer buffer = acquire(scene.client, GPUPOOL_POOL_DEVICE, SIZE, scene.own);
    const void *memory = buffer.data;
    struct stream_heap *stream_heap = stream_heap_of(&buffer);
    write_late(&scene, &scene.first, &buffer);
    MUST(gpupool_record_stream(scene.client, &buffer, scene.second.stream));
    assert_int_equal(gpu_sim_capture_begin(0, scene.second.stream), 0);
    MUST_BE(gpupool_record_stream(scene.client, &buffer, scene.second.stream), GPUPOOL_E_CAPTURING);
    MUST_BE(gpupool_release(scene.client, &buffer, scene.own), GPUPOOL_E_CAPTURING);
    MUST_BE(gpupool_shrink(scene.client, &buffer, 512, scene.own), GPUPOOL_E_CAPTURING);
    assert_ptr_equal(buffer.data, memory);
    assert_int_equal(atomic_load(&scene.client->recorded.count), 2);
    assert_int_equal(gpu_sim_capture_end(0, scene.second.stream, &operations), 0);
    assert_int_equal(operations, 0);
    MUST(gpupool_release(scene.client, &buffer, scene.own));
    bool met = owners_take(&scene, &owners, GPUPOOL_POOL_DEVICE, memory);
    assert_false(gate_was_passed(&scene.first));
    pass(&scene, &scene.first);
    owners_check(&scene, &owners);
    assert_false(met);
    WAIT_UNTIL(comes_back(stream_heap));
    scene_deinit(&scene);
}

/* One call of the driver fails in a release, each in turn. The buffer is still the caller's, or its memory
 * waits. A device that gives no stream for the join, or whose stream cannot wait, has the CPU wait: then the
 * gates open late. */
static bool fail_nth(unsigned nth) {
    struct owners owners;
    struct scene scene;
    pthread_t openers[2];

    scene_init(&scene);
    struct gpupool_buffer buffer = acquire(scene.client, GPUPOOL_POOL_DEVICE, SIZE, scene.own);
    const void *memory = buffer.data;
    write_late(&scene, &scene.first, &buffer);
    gate_close(&scene.second);
    MUST(gpupool_record_stream(scene.client, &buffer, scene.second.stream));
    assert_int_equal(gpu_sim_fail("any", nth, GPU_ERROR_UNKNOWN), 0);
    assert_int_equal(pthread_create(&openers[0], NULL, gate_open_afterwards, &scene.first), 0);
    assert_int_equal(pthread_create(&openers[1], NULL, gate_open_late, &scene.second), 0);
    atomic_store(&scene.first.is_by, true);
    int r = gpupool_release(scene.client, &buffer, scene.own);
    bool failed = gpu_sim_failed();
    gpu_sim_fail("any", 0, 0);
    assert_true(r == 0 || (failed && r == GPUPOOL_E_DRIVER && buffer.data == memory));
    if (r < 0) {
        assert_int_equal(atomic_load(&scene.client->recorded.count), 2);
        MUST(gpupool_release(scene.client, &buffer, scene.own));
    }
    (void)owners_take(&scene, &owners, GPUPOOL_POOL_DEVICE, memory);
    TEST_JOIN(openers[0], NULL);
    TEST_JOIN(openers[1], NULL);
    pass(&scene, &scene.first);
    pass(&scene, &scene.second);
    owners_check(&scene, &owners);
    scene_deinit(&scene);
    return failed;
}

static void a_failing_driver_loses_neither_the_buffer_nor_the_wait(void **state) {
    (void)state;
    if (!test_is_simulated())
        skip();
    unsigned nth = 1;
    while (fail_nth(nth))
        nth++;
    assert_true(nth > 8); /* three fences, a stream, and its waits */
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_waits_for_a_further_stream_whichever_it_is_released_on),
        cmocka_unit_test(memory_waits_for_several_streams_that_do_not_wait_for_each_other),
        cmocka_unit_test(more_joins_than_streams_are_done),
        cmocka_unit_test(a_cut_tail_waits_and_so_does_the_rest),
        cmocka_unit_test(the_note_ends_with_the_release),
        cmocka_unit_test(a_threads_own_stream_is_waited_for_by_the_release_of_another_thread),
        cmocka_unit_test(a_pointer_is_recorded_by_what_it_stands_for),
        cmocka_unit_test(another_process_gets_the_memory_when_all_streams_are_through),
        cmocka_unit_test(what_is_no_stream_or_no_buffer_is_refused),
        cmocka_unit_test(a_captured_stream_is_refused_and_the_buffer_stays_with_its_notes),
        cmocka_unit_test(a_failing_driver_loses_neither_the_buffer_nor_the_wait),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
