/* SPDX-License-Identifier: Apache-2.0 */
/* How the simulated GPU orders the legacy default stream, blocking streams and others, as CUDA does. */
#include <pthread.h>
#include <unistd.h>

#include "gpu_sim_fixture.h"

#define LEGACY     ((void *)1)
#define PER_THREAD ((void *)2)
#define PAUSES     20u /* so many milliseconds a stream has to go wrong in */

/* Words of `shared`: the gate's, and one that each stream writes. */
enum {
    GATE,
    FIRST,
    SECOND,
    OTHER,
    WORDS
};

struct scene {
    void *blocking, *second, *other; /* the last one is non-blocking */
};

static void scene_init(struct scene *scene) {
    memset(shared, 0, WORDS * sizeof *shared);
    assert_int_equal(gpu_sim_stream_create_blocking(0, &scene->blocking), 0);
    assert_int_equal(gpu_sim_stream_create_blocking(0, &scene->second), 0);
    assert_int_equal(gpu->stream_create(0, &scene->other), 0);
}

static void scene_deinit(struct scene *scene) {
    assert_int_equal(gpu->device_synchronize(0), 0);
    assert_int_equal(gpu->stream_destroy(0, scene->blocking), 0);
    assert_int_equal(gpu->stream_destroy(0, scene->second), 0);
    assert_int_equal(gpu->stream_destroy(0, scene->other), 0);
}

static uint64_t word(unsigned number) {
    return __atomic_load_n(&shared[number], __ATOMIC_ACQUIRE);
}

static void write_on(void *stream, unsigned number) {
    assert_int_equal(gpu->stream_write64(0, stream, &shared[number], 1), 0);
}

static void close_gate(void *stream) {
    assert_int_equal(gpu->stream_wait64(0, stream, &shared[GATE], 1), 0);
}

static void open_gate(void) {
    __atomic_store_n(&shared[GATE], 1, __ATOMIC_RELEASE);
}

static void give_time(void) {
    for (unsigned i = 0; i < PAUSES; i++)
        nanosleep(&(struct timespec){.tv_nsec = (long)NS_PER_MS}, NULL);
}

static void legacy_behind(void *gated, void *legacy) {
    struct scene scene;

    scene_init(&scene);
    void *stream = gated != NULL ? gated : scene.blocking;
    close_gate(stream);
    write_on(legacy, FIRST);
    write_on(scene.second, SECOND); /* behind the legacy stream */
    write_on(scene.other, OTHER);
    assert_int_equal(gpu->stream_write64(1, NULL, &shared[WORDS], 1), 0); /* another device's */
    assert_int_equal(gpu->stream_synchronize(0, scene.other), 0);
    assert_int_equal(gpu->stream_synchronize(1, NULL), 0);
    give_time();
    assert_int_equal(word(OTHER), 1);
    assert_int_equal(word(FIRST), 0);
    assert_int_equal(word(SECOND), 0);
    assert_int_equal(gpu->stream_query(0, NULL), GPU_ERROR_NOT_READY);
    open_gate();
    assert_int_equal(gpu->stream_synchronize(0, scene.second), 0);
    assert_int_equal(word(FIRST), 1);
    assert_int_equal(word(SECOND), 1);
    assert_int_equal(gpu->stream_query(0, NULL), 0);
    scene_deinit(&scene);
}

static void the_legacy_stream_comes_behind_blocking_streams_and_they_behind_it(void **state) {
    (void)state;
    legacy_behind(NULL, NULL);
    legacy_behind(NULL, LEGACY);
    legacy_behind(PER_THREAD, NULL);
    legacy_behind(PER_THREAD, LEGACY);
}

static void *write_on_own(void *unused) {
    (void)unused;
    write_on(PER_THREAD, SECOND);
    assert_int_equal(gpu->stream_synchronize(0, PER_THREAD), 0);
    return NULL;
}

static void blocking_streams_wait_for_the_legacy_one_and_not_for_each_other(void **state) {
    struct scene scene;
    pthread_t thread;

    (void)state;
    scene_init(&scene);
    close_gate(scene.blocking);
    write_on(scene.second, FIRST);
    assert_int_equal(gpu->stream_synchronize(0, scene.second), 0); /* nothing is between the two */
    assert_int_equal(word(FIRST), 1);
    open_gate();
    assert_int_equal(gpu->device_synchronize(0), 0);

    memset(shared, 0, WORDS * sizeof *shared);
    close_gate(NULL);
    write_on(scene.blocking, FIRST);
    assert_int_equal(pthread_create(&thread, NULL, write_on_own, NULL), 0);
    write_on(scene.other, OTHER);
    assert_int_equal(gpu->stream_synchronize(0, scene.other), 0);
    give_time();
    assert_int_equal(word(OTHER), 1);
    assert_int_equal(word(FIRST), 0);
    assert_int_equal(word(SECOND), 0); /* of another thread's default stream */
    assert_int_equal(gpu->stream_query(0, scene.blocking), GPU_ERROR_NOT_READY);
    open_gate();
    TEST_JOIN(thread, NULL);
    assert_int_equal(word(SECOND), 1);
    assert_int_equal(gpu->stream_synchronize(0, scene.blocking), 0);
    assert_int_equal(word(FIRST), 1);
    scene_deinit(&scene);
}

static void *open_late(void *unused) {
    (void)unused;
    give_time();
    open_gate();
    return NULL;
}

static void to_wait_for_the_legacy_stream_is_to_wait_for_the_blocking_ones(void **state) {
    struct scene scene;
    pthread_t thread;

    (void)state;
    scene_init(&scene);
    close_gate(scene.blocking);
    write_on(scene.blocking, FIRST);
    assert_int_equal(gpu->stream_query(0, LEGACY), GPU_ERROR_NOT_READY);
    assert_int_equal(pthread_create(&thread, NULL, open_late, NULL), 0);
    assert_int_equal(gpu->stream_synchronize(0, NULL), 0);
    assert_int_equal(word(FIRST), 1);
    TEST_JOIN(thread, NULL);
    scene_deinit(&scene);
}

static void while_a_blocking_stream_is_captured_the_legacy_one_is_not_to_be_used(void **state) {
    struct scene scene;
    unsigned operations = 0;
    bool capturing = false;

    (void)state;
    scene_init(&scene);
    assert_int_equal(gpu_sim_capture_begin(0, scene.blocking), 0);
    assert_int_equal(gpu->stream_is_capturing(0, NULL, &capturing), 906); /* which disturbs nothing */
    assert_int_equal(gpu->stream_write64(0, scene.blocking, &shared[FIRST], 1), 0);
    write_on(scene.second, SECOND); /* another blocking stream may be used */
    assert_int_equal(gpu->stream_synchronize(0, scene.second), 0);
    assert_int_equal(gpu_sim_capture_end(0, scene.blocking, &operations), 0);
    assert_int_equal(operations, 1);
    for (unsigned way = 0; way < 3; way++) {
        assert_int_equal(gpu_sim_capture_begin(0, PER_THREAD), 0);
        assert_int_equal(way == 0   ? gpu->stream_write64(0, LEGACY, &shared[FIRST], 1)
                         : way == 1 ? gpu->stream_query(0, NULL)
                                    : gpu->stream_synchronize(0, NULL),
                         906);
        assert_int_equal(gpu_sim_capture_end(0, PER_THREAD, &operations), 901);
    }
    assert_int_equal(word(FIRST), 0);
    assert_int_equal(gpu_sim_capture_begin(0, scene.other), 0);
    write_on(NULL, FIRST); /* a non-blocking one is nothing to it */
    assert_int_equal(gpu->stream_synchronize(0, NULL), 0);
    assert_int_equal(word(FIRST), 1);
    assert_int_equal(gpu_sim_capture_end(0, scene.other, &operations), 0);
    assert_int_equal(operations, 0);
    scene_deinit(&scene);
}

/* Threads that use the legacy stream, blocking ones and their own, all at once: nothing waits in a circle. */
#define THREADS 4u
#define ROUNDS  200u

static void *play(void *argument) {
    void *blocking = argument, *streams[] = {NULL, blocking, PER_THREAD, LEGACY};
    for (unsigned round = 0; round < ROUNDS; round++) {
        void *stream = streams[round % 4];
        assert_int_equal(gpu->stream_write64(0, stream, &shared[FIRST], round), 0);
        if (round % 16 == 0)
            assert_int_equal(gpu->stream_synchronize(0, stream), 0);
    }
    return NULL; /* its own stream ends with work behind the legacy one */
}

static void streams_of_many_threads_never_wait_in_a_circle(void **state) {
    struct scene scene;
    pthread_t threads[THREADS];

    (void)state;
    scene_init(&scene);
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, play, i % 2 == 0 ? scene.blocking : scene.second),
                         0);
    for (unsigned i = 0; i < THREADS; i++)
        TEST_JOIN(threads[i], NULL);
    assert_int_equal(gpu->device_synchronize(0), 0);
    scene_deinit(&scene);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_legacy_stream_comes_behind_blocking_streams_and_they_behind_it),
        cmocka_unit_test(blocking_streams_wait_for_the_legacy_one_and_not_for_each_other),
        cmocka_unit_test(to_wait_for_the_legacy_stream_is_to_wait_for_the_blocking_ones),
        cmocka_unit_test(while_a_blocking_stream_is_captured_the_legacy_one_is_not_to_be_used),
        cmocka_unit_test(streams_of_many_threads_never_wait_in_a_circle),
    };
    return cmocka_run_group_tests(tests, sim_setup, sim_teardown);
}
