/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Synchronised arrays (<gpupool/synced.h>), through the real daemon. Streams stand at gates that the test
 * opens, so that whoever should wait for them has all the time not to, and whoever should not is through
 * before. Device memory is written and read by sets and copies, so that the tests run on a real GPU too.
 */
#include "client/include/gpupool/synced.h"
#include "gpu/sim.h"
#include "tests/integration/cache_fixture.h"
#include "tests/integration/gate.h"

#define SIZE   (64 * KIB)
#define HOST   GPUPOOL_POOL_HOST
#define DEVICE GPUPOOL_POOL_DEVICE

static struct gpupool_synced *create(struct gpupool_client *client, uint64_t size_bytes) {
    struct gpupool_synced *array = NULL;
    MUST(gpupool_synced_create(client, 0, size_bytes, &array));
    assert_non_null(array);
    return array;
}

static struct gpupool_synced_info info_of(const struct gpupool_synced *array) {
    struct gpupool_synced_info info;
    MUST(gpupool_synced_query(array, &info));
    return info;
}

static void expect(const struct gpupool_synced *array, enum gpupool_synced_state state, uint64_t to_device,
                   uint64_t to_host) {
    struct gpupool_synced_info info = info_of(array);
    assert_int_equal(info.state, state);
    assert_int_equal(info.copies_to_device, to_device);
    assert_int_equal(info.copies_to_host, to_host);
}

static unsigned char *on_host(struct gpupool_synced *array, enum gpupool_access access, void *stream) {
    void *memory = NULL;
    MUST(gpupool_synced_host(array, access, &memory, stream));
    assert_non_null(memory);
    return memory;
}

static void *on_device(struct gpupool_synced *array, enum gpupool_access access, void *stream) {
    void *memory = NULL;
    MUST(gpupool_synced_device(array, access, &memory, stream));
    assert_non_null(memory);
    return memory;
}

static bool is_all(const unsigned char *memory, int byte, uint64_t size_bytes) {
    for (uint64_t i = 0; i < size_bytes; i++)
        if (memory[i] != byte)
            return false;
    return true;
}

/* Writes all of it on the device, or on the host. */
static void set_on_device(struct gpupool_client *client, struct gpupool_synced *array, int byte,
                          void *stream) {
    struct gpupool_synced_info info = info_of(array);
    MUST(gpupool_set(client, info.device, on_device(array, GPUPOOL_OVERWRITE, stream), byte, info.size_bytes,
                     stream));
}

static void set_on_host(struct gpupool_synced *array, int byte) {
    memset(on_host(array, GPUPOOL_OVERWRITE, NULL), byte, info_of(array).size_bytes);
}

/* Memory that the GPU's work puts what it read into. */
static struct gpupool_buffer sink_new(struct gpupool_client *client) {
    struct gpupool_buffer sink = acquire(client, HOST, SIZE, GPUPOOL_NO_STREAM);
    memset(sink.data, 0xee, SIZE);
    return sink;
}

/* What a kernel would do that reads the array. */
static void read_on_device(struct gpupool_client *client, struct gpupool_synced *array,
                           struct gpupool_buffer *sink, void *stream) {
    struct gpupool_synced_info info = info_of(array);
    MUST(gpupool_copy(client, info.device, sink->data, on_device(array, GPUPOOL_READ, stream),
                      info.size_bytes, stream));
}

static bool sink_has(const struct gpupool_buffer *sink, int byte) {
    for (uint64_t i = 0; i < SIZE; i++)
        if (((volatile unsigned char *)sink->data)[i] != byte)
            return false;
    return true;
}

/* Destroys the array, after which the client has nothing on loan that it could not give back. */
static void end(struct gpupool_synced *array, void *stream) {
    MUST(gpupool_synced_destroy(array, stream));
}

static void expect_nothing_leased(struct gpupool_client *client) {
    MUST(gpupool_trim(client, NULL));
    WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == 0);
}

/* --- states --- */

static void memory_comes_with_the_first_access_and_is_zero(void **state) {
    struct gpupool_client *client;
    struct gpupool_buffer sink;

    (void)state;
    if (!test_has_device())
        skip();
    client = open_cached();
    sink = sink_new(client);
    uint64_t before = daemon_sum(&daemon_, "acquires");
    struct gpupool_synced *array = create(client, SIZE);
    assert_int_equal(daemon_sum(&daemon_, "acquires"), before);
    struct gpupool_synced_info info = info_of(array);
    assert_int_equal(info.size_bytes, SIZE);
    assert_int_equal(info.host_capacity_bytes + info.device_capacity_bytes, 0);
    assert_int_equal(info.host_owner, GPUPOOL_OWNER_NONE);
    assert_int_equal(info.device_owner, GPUPOOL_OWNER_NONE);
    MUST(gpupool_synced_push(array, NULL)); /* there is nothing to bring */
    MUST(gpupool_synced_pull(array, NULL));
    assert_int_equal(info_of(array).host_capacity_bytes + info_of(array).device_capacity_bytes, 0);
    assert_true(is_all(on_host(array, GPUPOOL_READ, NULL), 0, SIZE));
    expect(array, GPUPOOL_SYNCED_HOST_NEWER, 0, 0);
    info = info_of(array);
    assert_int_equal(info.zeroed, 1);
    assert_true(info.host_capacity_bytes >= SIZE);
    assert_int_equal(info.host_owner, GPUPOOL_OWNER_POOL);
    assert_int_equal(info.device_capacity_bytes, 0);
    end(array, NULL);

    array = create(client, SIZE);
    read_on_device(client, array, &sink, NULL);
    MUST(gpupool_stream_synchronize(client, 0, NULL));
    assert_true(sink_has(&sink, 0));
    expect(array, GPUPOOL_SYNCED_DEVICE_NEWER, 0, 0);
    info = info_of(array);
    assert_int_equal(info.zeroed, 1);
    assert_int_equal(info.host_capacity_bytes, 0);
    assert_int_equal(info.device_owner, GPUPOOL_OWNER_POOL);
    end(array, NULL);

    /* written in part: the rest is zero; as a whole: nothing is done before */
    array = create(client, SIZE);
    on_host(array, GPUPOOL_WRITE, NULL)[5] = 7;
    assert_true(is_all(on_host(array, GPUPOOL_READ, NULL) + 6, 0, SIZE - 6));
    assert_int_equal(info_of(array).zeroed, 1);
    end(array, NULL);
    array = create(client, SIZE);
    on_device(array, GPUPOOL_WRITE, NULL);
    assert_true(is_all(on_host(array, GPUPOOL_READ, NULL), 0, SIZE));
    end(array, NULL);
    array = create(client, SIZE);
    set_on_device(client, array, 9, NULL);
    assert_true(is_all(on_host(array, GPUPOOL_READ, NULL), 9, SIZE));
    set_on_host(array, 8);
    assert_int_equal(info_of(array).zeroed, 0);
    end(array, NULL);
    MUST(gpupool_release(client, &sink, GPUPOOL_NO_STREAM));
    expect_nothing_leased(client);
    close_cached(client);
}

static void copies_are_made_exactly_when_they_are_needed(void **state) {
    struct gpupool_client *client;
    struct gpupool_buffer sink;

    (void)state;
    if (!test_has_device())
        skip();
    client = open_cached();
    sink = sink_new(client);
    struct gpupool_synced *array = create(client, SIZE);
    set_on_host(array, 1);
    expect(array, GPUPOOL_SYNCED_HOST_NEWER, 0, 0);
    for (unsigned i = 0; i < 3; i++) {
        read_on_device(client, array, &sink, NULL);
        expect(array, GPUPOOL_SYNCED_IN_STEP, 1, 0);
        assert_true(is_all(on_host(array, GPUPOOL_READ, NULL), 1, SIZE));
        expect(array, GPUPOOL_SYNCED_IN_STEP, 1, 0);
    }
    MUST(gpupool_stream_synchronize(client, 0, NULL));
    assert_true(sink_has(&sink, 1));
    /* in part on the host */
    on_host(array, GPUPOOL_WRITE, NULL)[0] = 2;
    expect(array, GPUPOOL_SYNCED_HOST_NEWER, 1, 0);
    MUST(gpupool_set(client, 0, (char *)on_device(array, GPUPOOL_WRITE, NULL) + 1, 3, 1, NULL));
    expect(array, GPUPOOL_SYNCED_DEVICE_NEWER, 2, 0);
    MUST(gpupool_set(client, 0, (char *)on_device(array, GPUPOOL_WRITE, NULL) + 2, 4, 1, NULL));
    expect(array, GPUPOOL_SYNCED_DEVICE_NEWER, 2, 0);
    /* both parts are in what comes back */
    const unsigned char *memory = on_host(array, GPUPOOL_READ, NULL);
    expect(array, GPUPOOL_SYNCED_IN_STEP, 2, 1);
    assert_true(memory[0] == 2 && memory[1] == 3 && memory[2] == 4 && is_all(memory + 3, 1, SIZE - 3));
    on_device(array, GPUPOOL_WRITE, NULL);
    expect(array, GPUPOOL_SYNCED_DEVICE_NEWER, 2, 1);
    on_host(array, GPUPOOL_WRITE, NULL);
    expect(array, GPUPOOL_SYNCED_HOST_NEWER, 2, 2);
    /* what is written as a whole is not brought before */
    set_on_device(client, array, 5, NULL);
    expect(array, GPUPOOL_SYNCED_DEVICE_NEWER, 2, 2);
    set_on_host(array, 6);
    expect(array, GPUPOOL_SYNCED_HOST_NEWER, 2, 2);
    MUST(gpupool_synced_pull(array, NULL)); /* is good already */
    expect(array, GPUPOOL_SYNCED_HOST_NEWER, 2, 2);
    MUST(gpupool_synced_push(array, NULL));
    expect(array, GPUPOOL_SYNCED_IN_STEP, 3, 2);
    MUST(gpupool_synced_push(array, NULL));
    read_on_device(client, array, &sink, NULL);
    expect(array, GPUPOOL_SYNCED_IN_STEP, 3, 2);
    MUST(gpupool_stream_synchronize(client, 0, NULL));
    assert_true(sink_has(&sink, 6));
    set_on_device(client, array, 7, NULL);
    MUST(gpupool_synced_pull(array, NULL));
    expect(array, GPUPOOL_SYNCED_IN_STEP, 3, 3);
    assert_true(is_all(on_host(array, GPUPOOL_READ, NULL), 7, SIZE));
    expect(array, GPUPOOL_SYNCED_IN_STEP, 3, 3);
    assert_int_equal(info_of(array).copies_between_devices, 0);
    end(array, NULL);
    MUST(gpupool_release(client, &sink, GPUPOOL_NO_STREAM));
    expect_nothing_leased(client);
    close_cached(client);
}

/* --- stream order --- */

struct scene {
    struct gpupool_client *client;
    struct gate gate; /* of a stream that is held up */
    void *other, *third;
    struct gpupool_buffer sink;
    struct gpupool_synced *array;
};

static void scene_begin(struct scene *scene) {
    scene->client = open_cached();
    gate_init(&scene->gate, scene->client);
    MUST(gpupool_stream_create(scene->client, 0, &scene->other));
    MUST(gpupool_stream_create(scene->client, 0, &scene->third));
    scene->sink = sink_new(scene->client);
    scene->array = create(scene->client, SIZE);
}

static void scene_end(struct scene *scene) {
    MUST(gpupool_synced_destroy(scene->array, scene->other));
    MUST(gpupool_stream_synchronize(scene->client, 0, scene->gate.stream));
    MUST(gpupool_stream_synchronize(scene->client, 0, scene->other));
    MUST(gpupool_stream_synchronize(scene->client, 0, scene->third));
    MUST(gpupool_release(scene->client, &scene->sink, GPUPOOL_NO_STREAM));
    gate_deinit(&scene->gate);
    MUST(gpupool_stream_destroy(scene->client, 0, scene->other));
    MUST(gpupool_stream_destroy(scene->client, 0, scene->third));
    expect_nothing_leased(scene->client);
    close_cached(scene->client);
}

static bool is_idle(struct scene *scene, void *stream) {
    return scene->client->devices.gpu->stream_query(0, stream) == 0;
}

/* The stream does not get on, given time, until the gate opens; and then it does. */
static void expect_behind_the_gate(struct scene *scene, void *stream) {
    for (unsigned i = 0; i < 5; i++)
        test_pause();
    assert_false(is_idle(scene, stream));
    assert_false(gate_was_passed(&scene->gate));
    gate_open(&scene->gate);
    MUST(gpupool_stream_synchronize(scene->client, 0, stream));
    assert_true(gate_was_passed(&scene->gate));
}

static void another_stream_waits_for_a_push_on_the_gpu(void **state) {
    struct scene scene;

    (void)state;
    if (!test_has_device())
        skip();
    scene_begin(&scene);
    set_on_host(scene.array, 3);
    gate_close(&scene.gate);
    MUST(gpupool_synced_push(scene.array, scene.gate.stream));
    expect(scene.array, GPUPOOL_SYNCED_IN_STEP, 1, 0);
    read_on_device(scene.client, scene.array, &scene.sink, scene.other);
    assert_false(gate_was_passed(&scene.gate)); /* the CPU did not wait for any of it */
    expect_behind_the_gate(&scene, scene.other);
    assert_true(sink_has(&scene.sink, 3));
    expect(scene.array, GPUPOOL_SYNCED_IN_STEP, 1, 0);
    scene_end(&scene);
}

static void another_stream_waits_for_the_copy_and_not_for_what_comes_after_it(void **state) {
    struct scene scene;

    (void)state;
    if (!test_has_device())
        skip();
    scene_begin(&scene);
    set_on_host(scene.array, 4);
    MUST(gpupool_synced_push(scene.array, scene.gate.stream));
    gate_close(&scene.gate);
    read_on_device(scene.client, scene.array, &scene.sink, scene.other);
    MUST(gpupool_stream_synchronize(scene.client, 0, scene.other));
    assert_false(gate_was_passed(&scene.gate));
    assert_true(sink_has(&scene.sink, 4));
    gate_open(&scene.gate);
    scene_end(&scene);
}

static void another_stream_waits_for_a_write_of_the_callers(void **state) {
    struct scene scene;

    (void)state;
    if (!test_has_device())
        skip();
    scene_begin(&scene);
    void *memory = on_device(scene.array, GPUPOOL_OVERWRITE, scene.gate.stream);
    gate_close(&scene.gate);
    MUST(gpupool_set(scene.client, 0, memory, 5, SIZE, scene.gate.stream));
    read_on_device(scene.client, scene.array, &scene.sink, scene.other);
    expect_behind_the_gate(&scene, scene.other);
    assert_true(sink_has(&scene.sink, 5));
    scene_end(&scene);
}

static void a_copy_to_the_host_waits_for_a_write_on_another_stream(void **state) {
    struct scene scene;

    (void)state;
    if (!test_has_device())
        skip();
    scene_begin(&scene);
    void *memory = on_device(scene.array, GPUPOOL_OVERWRITE, scene.gate.stream);
    gate_close(&scene.gate);
    MUST(gpupool_set(scene.client, 0, memory, 6, SIZE, scene.gate.stream));
    MUST(gpupool_synced_pull(scene.array, scene.other));
    expect(scene.array, GPUPOOL_SYNCED_IN_STEP, 0, 1);
    expect_behind_the_gate(&scene, scene.other);
    assert_true(is_all(on_host(scene.array, GPUPOOL_READ, scene.third), 6, SIZE));
    expect(scene.array, GPUPOOL_SYNCED_IN_STEP, 0, 1);
    scene_end(&scene);
}

static void a_host_read_waits_for_just_its_copy(void **state) {
    struct scene scene;

    (void)state;
    if (!test_has_device())
        skip();
    scene_begin(&scene);
    set_on_device(scene.client, scene.array, 7, scene.gate.stream);
    MUST(gpupool_synced_pull(scene.array, scene.gate.stream));
    gate_close(&scene.gate);
    assert_true(is_all(on_host(scene.array, GPUPOOL_READ, scene.gate.stream), 7, SIZE));
    assert_false(gate_was_passed(&scene.gate)); /* which holds up what was enqueued after it */
    gate_open(&scene.gate);
    scene_end(&scene);
}

static void readers_do_not_wait_for_each_other(void **state) {
    struct scene scene;

    (void)state;
    if (!test_has_device())
        skip();
    scene_begin(&scene);
    struct gpupool_buffer sink = sink_new(scene.client);
    set_on_device(scene.client, scene.array, 8, scene.third);
    void *memory = on_device(scene.array, GPUPOOL_READ, scene.gate.stream);
    gate_close(&scene.gate);
    MUST(gpupool_copy(scene.client, 0, sink.data, memory, SIZE, scene.gate.stream));
    read_on_device(scene.client, scene.array, &scene.sink, scene.other);
    MUST(gpupool_stream_synchronize(scene.client, 0, scene.other));
    assert_true(sink_has(&scene.sink, 8));
    assert_false(gate_was_passed(&scene.gate));
    assert_true(sink_has(&sink, 0xee));
    /* nor does a copy to the host, */
    assert_true(is_all(on_host(scene.array, GPUPOOL_READ, scene.third), 8, SIZE));
    assert_false(gate_was_passed(&scene.gate));
    /* but who writes waits for all of them */
    MUST(gpupool_set(scene.client, 0, on_device(scene.array, GPUPOOL_OVERWRITE, scene.other), 9, SIZE,
                     scene.other));
    expect_behind_the_gate(&scene, scene.other);
    assert_true(sink_has(&sink, 8));
    assert_true(is_all(on_host(scene.array, GPUPOOL_READ, scene.third), 9, SIZE));
    MUST(gpupool_release(scene.client, &sink, GPUPOOL_NO_STREAM));
    scene_end(&scene);
}

static void a_pointer_may_be_used_until_another_writes(void **state) {
    struct scene scene;

    (void)state;
    if (!test_has_device())
        skip();
    scene_begin(&scene);
    void *memory = on_device(scene.array, GPUPOOL_OVERWRITE, scene.gate.stream);
    MUST(gpupool_set(scene.client, 0, memory, 1, SIZE, scene.gate.stream));
    on_device(scene.array, GPUPOOL_READ, scene.other);
    MUST(gpupool_stream_synchronize(scene.client, 0, scene.other));
    /* who wrote goes on reading, without another call */
    gate_close(&scene.gate);
    MUST(gpupool_copy(scene.client, 0, scene.sink.data, memory, SIZE, scene.gate.stream));
    set_on_device(scene.client, scene.array, 2, scene.other);
    expect_behind_the_gate(&scene, scene.other);
    MUST(gpupool_stream_synchronize(scene.client, 0, scene.gate.stream));
    assert_true(sink_has(&scene.sink, 1));
    scene_end(&scene);
}

static void a_push_waits_for_readers_of_what_it_replaces(void **state) {
    struct scene scene;

    (void)state;
    if (!test_has_device())
        skip();
    scene_begin(&scene);
    set_on_host(scene.array, 1);
    void *memory = on_device(scene.array, GPUPOOL_READ, scene.gate.stream);
    gate_close(&scene.gate);
    MUST(gpupool_copy(scene.client, 0, scene.sink.data, memory, SIZE, scene.gate.stream));
    set_on_host(scene.array, 2); /* the host's copy is read by nobody */
    assert_false(gate_was_passed(&scene.gate));
    MUST(gpupool_synced_push(scene.array, scene.other));
    expect_behind_the_gate(&scene, scene.other);
    MUST(gpupool_stream_synchronize(scene.client, 0, scene.gate.stream));
    assert_true(sink_has(&scene.sink, 1));
    assert_int_equal(info_of(scene.array).copies_to_device, 2);
    scene_end(&scene);
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
    pthread_join(thread, NULL);
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

static void null_per_thread_and_created_streams_are_ordered(void **state) {
    struct scene scene;
    pthread_t thread;

    (void)state;
    if (!test_has_device())
        skip();
    scene_begin(&scene);
    void *streams[] = {NULL, GPUPOOL_PER_THREAD, scene.other, scene.third, (void *)1};
    int value = 0;
    for (unsigned i = 0; i < 5; i++)
        for (unsigned j = 0; j < 5; j++) {
            set_on_device(scene.client, scene.array, ++value, streams[i]);
            read_on_device(scene.client, scene.array, &scene.sink, streams[j]);
            MUST(gpupool_stream_synchronize(scene.client, 0, streams[j]));
            assert_true(sink_has(&scene.sink, value));
            set_on_device(scene.client, scene.array, ++value, streams[j]);
            assert_true(is_all(on_host(scene.array, GPUPOOL_READ, streams[i]), value, SIZE));
            /* in another thread */
            struct visit there = {.scene = &scene, .stream = streams[j], .left = ++value};
            assert_int_equal(pthread_create(&thread, NULL, visit, &there), 0);
            pthread_join(thread, NULL);
            assert_int_equal(there.found, value - 1);
            read_on_device(scene.client, scene.array, &scene.sink, streams[i]);
            MUST(gpupool_stream_synchronize(scene.client, 0, streams[i]));
            assert_true(sink_has(&scene.sink, value));
        }
    MUST(gpupool_synced_settle(scene.array));
    scene_end(&scene);
}

/* The other thread is still there, and so is its work. */
struct busy {
    struct scene *scene;
    pthread_barrier_t enqueued, leave;
};

static void *be_busy(void *argument) {
    struct busy *busy = argument;
    struct scene *scene = busy->scene;

    void *memory = on_device(scene->array, GPUPOOL_OVERWRITE, GPUPOOL_PER_THREAD);
    gate_close(&scene->gate);
    MUST(gpupool_set(scene->client, 0, memory, 5, SIZE, GPUPOOL_PER_THREAD));
    pthread_barrier_wait(&busy->enqueued);
    pthread_barrier_wait(&busy->leave);
    return NULL;
}

static void another_threads_per_thread_stream_is_waited_for(void **state) {
    struct scene scene;
    pthread_t thread, opener;

    (void)state;
    if (!test_has_device())
        skip();
    scene_begin(&scene);
    void *created = scene.gate.stream;
    struct busy busy = {.scene = &scene};
    pthread_barrier_init(&busy.enqueued, NULL, 2);
    pthread_barrier_init(&busy.leave, NULL, 2);
    scene.gate.stream = GPUPOOL_PER_THREAD; /* the other thread's */
    assert_int_equal(pthread_create(&thread, NULL, be_busy, &busy), 0);
    pthread_barrier_wait(&busy.enqueued);
    assert_int_equal(pthread_create(&opener, NULL, gate_open_late, &scene.gate), 0);
    read_on_device(scene.client, scene.array, &scene.sink, GPUPOOL_PER_THREAD); /* this one's */
    assert_true(gate_was_passed(&scene.gate));
    MUST(gpupool_stream_synchronize(scene.client, 0, GPUPOOL_PER_THREAD));
    assert_true(sink_has(&scene.sink, 5));
    pthread_barrier_wait(&busy.leave);
    pthread_join(thread, NULL);
    pthread_join(opener, NULL);
    set_on_device(scene.client, scene.array, 6, scene.other); /* behind a thread that is gone */
    assert_true(is_all(on_host(scene.array, GPUPOOL_READ, scene.other), 6, SIZE));
    scene.gate.stream = created;
    pthread_barrier_destroy(&busy.enqueued);
    pthread_barrier_destroy(&busy.leave);
    scene_end(&scene);
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

static void memory_goes_back_behind_all_who_use_it(void **state) {
    struct scene scene;

    (void)state;
    if (!test_has_device())
        skip();
    scene_begin(&scene);
    struct gpupool_synced *array = create(scene.client, SIZE);
    set_on_device(scene.client, array, 4, scene.other);
    void *memory = on_device(array, GPUPOOL_READ, scene.gate.stream);
    gate_close(&scene.gate);
    MUST(gpupool_copy(scene.client, 0, scene.sink.data, memory, SIZE, scene.gate.stream));
    MUST(gpupool_synced_destroy(array, scene.other));
    assert_false(gate_was_passed(&scene.gate));
    assert_false(meets(scene.client, memory, 64));
    gate_open(&scene.gate);
    MUST(gpupool_stream_synchronize(scene.client, 0, scene.other));
    assert_true(gate_was_passed(&scene.gate));
    assert_true(meets(scene.client, memory, 512));
    MUST(gpupool_stream_synchronize(scene.client, 0, scene.gate.stream));
    assert_true(sink_has(&scene.sink, 4));
    scene_end(&scene);
}

static void a_stream_may_end_once_the_array_is_settled(void **state) {
    struct scene scene;
    void *stream;

    (void)state;
    if (!test_has_device())
        skip();
    scene_begin(&scene);
    MUST(gpupool_stream_create(scene.client, 0, &stream));
    set_on_device(scene.client, scene.array, 6, stream);
    read_on_device(scene.client, scene.array, &scene.sink, stream);
    MUST(gpupool_synced_settle(scene.array));
    assert_true(is_idle(&scene, stream));
    assert_true(sink_has(&scene.sink, 6));
    expect(scene.array, GPUPOOL_SYNCED_DEVICE_NEWER, 0, 0);
    MUST(gpupool_stream_destroy(scene.client, 0, stream));
    assert_true(is_all(on_host(scene.array, GPUPOOL_READ, scene.other), 6, SIZE));
    set_on_device(scene.client, scene.array, 7, scene.other);
    scene_end(&scene);
}

/* --- captures --- */

static void nothing_of_an_array_lands_in_a_graph(void **state) {
    struct scene scene;
    unsigned operations = 1;
    void *memory = NULL, *captured;

    (void)state;
    if (!test_has_device() || !test_is_simulated())
        skip();
    scene_begin(&scene);
    MUST(gpupool_stream_create(scene.client, 0, &captured));
    set_on_host(scene.array, 1);
    struct gpupool_synced *ready = create(scene.client, SIZE), *empty = create(scene.client, SIZE),
                          *written = create(scene.client, SIZE), *grown = create(scene.client, SIZE);
    set_on_device(scene.client, ready, 2, captured);
    set_on_device(scene.client, written, 3, scene.other);
    set_on_device(scene.client, grown, 3, captured);
    MUST(gpupool_synced_resize(grown, 2 * MIB));
    struct gpupool_synced_info before = info_of(scene.array);
    assert_int_equal(gpu_sim_capture_begin(0, captured), 0);
    /* a copy, zeroes, another stream to wait for, memory that is to be given back */
    MUST_BE(gpupool_synced_device(scene.array, GPUPOOL_READ, &memory, captured), GPUPOOL_E_CAPTURING);
    MUST_BE(gpupool_synced_push(scene.array, captured), GPUPOOL_E_CAPTURING);
    MUST_BE(gpupool_synced_device(empty, GPUPOOL_READ, &memory, captured), GPUPOOL_E_CAPTURING);
    MUST_BE(gpupool_synced_device(written, GPUPOOL_READ, &memory, captured), GPUPOOL_E_CAPTURING);
    MUST_BE(gpupool_synced_host(written, GPUPOOL_READ, &memory, captured), GPUPOOL_E_CAPTURING);
    MUST_BE(gpupool_synced_device(grown, GPUPOOL_OVERWRITE, &memory, captured), GPUPOOL_E_CAPTURING);
    MUST_BE(gpupool_synced_destroy(ready, captured), GPUPOOL_E_CAPTURING);
    assert_null(memory);
    struct gpupool_synced_info after = info_of(scene.array);
    assert_memory_equal(&before, &after, sizeof before);
    /* nobody can be made to wait for a stream that is captured */
    MUST_BE(gpupool_synced_device(ready, GPUPOOL_READ, &memory, scene.other), GPUPOOL_E_CAPTURING);
    /* what is ready is had */
    on_device(ready, GPUPOOL_READ, captured);
    on_device(ready, GPUPOOL_WRITE, captured);
    on_device(empty, GPUPOOL_OVERWRITE, captured);
    assert_int_equal(gpu_sim_capture_end(0, captured, &operations), 0);
    assert_int_equal(operations, 0);
    on_device(scene.array, GPUPOOL_READ, captured);
    on_device(written, GPUPOOL_READ, captured);
    on_device(grown, GPUPOOL_OVERWRITE, captured);
    assert_true(is_all(on_host(written, GPUPOOL_READ, captured), 3, SIZE));
    assert_true(is_all(on_host(ready, GPUPOOL_READ, captured), 2, SIZE));
    MUST(gpupool_synced_settle(scene.array));
    end(ready, captured);
    end(empty, captured);
    end(written, captured);
    end(grown, captured);
    MUST(gpupool_stream_synchronize(scene.client, 0, captured));
    MUST(gpupool_stream_destroy(scene.client, 0, captured));
    scene_end(&scene);
}

/* --- size --- */

static void to_less_the_first_bytes_stay_and_to_more_all_is_gone(void **state) {
    struct gpupool_client *client;

    (void)state;
    if (!test_has_device())
        skip();
    client = open_cached();
    struct gpupool_synced *array = create(client, SIZE);
    set_on_device(client, array, 5, NULL);
    const unsigned char *memory = on_host(array, GPUPOOL_READ, NULL);
    MUST(gpupool_synced_resize(array, 100));
    expect(array, GPUPOOL_SYNCED_IN_STEP, 0, 1);
    assert_int_equal(info_of(array).size_bytes, 100);
    assert_ptr_equal(on_host(array, GPUPOOL_READ, NULL), memory);
    memset(on_host(array, GPUPOOL_WRITE, NULL), 6, 100);
    on_device(array, GPUPOOL_WRITE, NULL); /* 100 bytes are copied */
    MUST(gpupool_synced_resize(array, 100));
    expect(array, GPUPOOL_SYNCED_DEVICE_NEWER, 1, 1);
    assert_true(is_all(on_host(array, GPUPOOL_READ, NULL), 6, 100));
    assert_true(memory[100] == 5);
    MUST(gpupool_synced_resize(array, 200));
    expect(array, GPUPOOL_SYNCED_UNINITIALIZED, 1, 2);
    assert_ptr_equal(on_host(array, GPUPOOL_READ, NULL), memory);
    assert_true(is_all(memory, 0, 200));
    assert_true(memory[200] == 5);
    struct gpupool_synced_info info = info_of(array);
    assert_true(info.host_capacity_bytes >= SIZE && info.device_capacity_bytes >= SIZE);
    /* beyond what there is, a larger block is taken when it is needed */
    MUST(gpupool_synced_resize(array, MIB));
    assert_int_equal(info_of(array).host_capacity_bytes, info.host_capacity_bytes);
    set_on_device(client, array, 7, NULL);
    assert_true(info_of(array).device_capacity_bytes >= MIB);
    assert_int_equal(info_of(array).host_capacity_bytes, info.host_capacity_bytes);
    assert_true(is_all(on_host(array, GPUPOOL_READ, NULL), 7, MIB));
    assert_true(info_of(array).host_capacity_bytes >= MIB);
    end(array, NULL);
    expect_nothing_leased(client);
    close_cached(client);
}

static void varying_sizes_within_the_capacity_take_no_memory(void **state) {
    struct gpupool_client *client;

    (void)state;
    if (!test_has_device())
        skip();
    client = open_cached();
    struct gpupool_synced *array = create(client, MIB);
    const void *on_gpu = on_device(array, GPUPOOL_OVERWRITE, NULL),
               *memory = on_host(array, GPUPOOL_OVERWRITE, NULL);
    uint64_t acquires = daemon_sum(&daemon_, "acquires"), releases = daemon_sum(&daemon_, "releases");
    unsigned random = 1;
    for (unsigned i = 0; i < 1000; i++) {
        random = random * 1103515245 + 12345;
        MUST(gpupool_synced_resize(array, 1 + random % MIB));
        assert_ptr_equal(on_device(array, GPUPOOL_OVERWRITE, NULL), on_gpu);
        assert_ptr_equal(on_host(array, GPUPOOL_OVERWRITE, NULL), memory);
    }
    assert_int_equal(daemon_sum(&daemon_, "acquires"), acquires);
    assert_int_equal(daemon_sum(&daemon_, "releases"), releases);
    expect(array, GPUPOOL_SYNCED_HOST_NEWER, 0, 0);
    end(array, NULL);
    close_cached(client);
}

/* --- memory of the user's --- */

static void adopted_memory_counts_and_is_never_freed(void **state) {
    struct gpupool_client *client;
    struct gpupool_buffer host, device, sink;
    struct gpupool_buffer_info known;
    void *stream;

    (void)state;
    if (!test_has_device())
        skip();
    client = open_cached();
    MUST(gpupool_stream_create(client, 0, &stream));
    sink = sink_new(client);
    host = acquire(client, HOST, SIZE, GPUPOOL_NO_STREAM);
    device = acquire(client, DEVICE, SIZE, stream);
    struct gpupool_synced *array = create(client, SIZE);
    set_on_device(client, array, 1, stream);
    set_on_host(array, 2);
    memset(host.data, 3, SIZE);
    MUST(gpupool_synced_adopt_host(array, host.data, stream));
    expect(array, GPUPOOL_SYNCED_HOST_NEWER, 0, 0);
    assert_int_equal(info_of(array).host_owner, GPUPOOL_OWNER_USER);
    assert_int_equal(info_of(array).host_capacity_bytes, SIZE);
    assert_ptr_equal(on_host(array, GPUPOOL_READ, stream), host.data);
    read_on_device(client, array, &sink, stream);
    MUST(gpupool_stream_synchronize(client, 0, stream));
    assert_true(sink_has(&sink, 3));
    expect(array, GPUPOOL_SYNCED_IN_STEP, 1, 0);
    MUST(gpupool_set(client, 0, device.data, 4, SIZE, stream));
    MUST(gpupool_synced_adopt_device(array, device.data, stream));
    expect(array, GPUPOOL_SYNCED_DEVICE_NEWER, 1, 0);
    assert_int_equal(info_of(array).device_owner, GPUPOOL_OWNER_USER);
    assert_ptr_equal(on_device(array, GPUPOOL_READ, NULL), device.data);
    assert_true(is_all(on_host(array, GPUPOOL_READ, NULL), 4, SIZE));
    assert_true(is_all(host.data, 4, SIZE)); /* it came to the user's */
    /* the same again: its contents count anew */
    memset(host.data, 5, SIZE);
    MUST(gpupool_synced_adopt_host(array, host.data, stream));
    expect(array, GPUPOOL_SYNCED_HOST_NEWER, 1, 1);
    read_on_device(client, array, &sink, NULL);
    MUST(gpupool_synced_settle(array));
    assert_true(sink_has(&sink, 5));
    /* a smaller size is within it, a larger one is the pool's again */
    MUST(gpupool_synced_resize(array, SIZE / 2));
    assert_ptr_equal(on_host(array, GPUPOOL_READ, NULL), host.data);
    MUST(gpupool_synced_resize(array, SIZE + 1));
    assert_ptr_not_equal(on_host(array, GPUPOOL_OVERWRITE, NULL), host.data);
    assert_ptr_not_equal(on_device(array, GPUPOOL_READ, stream), device.data);
    assert_int_equal(info_of(array).host_owner, GPUPOOL_OWNER_POOL);
    assert_int_equal(info_of(array).device_owner, GPUPOOL_OWNER_POOL);
    void *own = on_host(array, GPUPOOL_READ, NULL);
    MUST_BE(gpupool_synced_adopt_host(array, own, stream), GPUPOOL_E_INVALID); /* it would be lent again */
    /* and the user's is the user's */
    MUST(gpupool_query(client, &host, &known));
    MUST(gpupool_query(client, &device, &known));
    MUST(gpupool_synced_resize(array, SIZE));
    MUST(gpupool_synced_adopt_host(array, host.data, stream));
    MUST(gpupool_synced_adopt_device(array, device.data, stream));
    end(array, stream);
    MUST(gpupool_release(client, &host, stream));
    MUST(gpupool_release(client, &device, stream));
    MUST(gpupool_release(client, &sink, GPUPOOL_NO_STREAM));
    MUST(gpupool_stream_destroy(client, 0, stream));
    expect_nothing_leased(client);
    close_cached(client);
}

static void pageable_memory_can_be_adopted(void **state) {
    struct gpupool_client *client;

    (void)state;
    if (!test_has_device())
        skip();
    client = open_cached();
    unsigned char *memory = malloc(SIZE);
    struct gpupool_buffer sink = sink_new(client);
    struct gpupool_synced *array = create(client, SIZE);
    memset(memory, 3, SIZE);
    MUST(gpupool_synced_adopt_host(array, memory, NULL));
    MUST(gpupool_synced_push(array, NULL));
    memset(on_host(array, GPUPOOL_WRITE, NULL), 4, SIZE); /* waits until it was read */
    read_on_device(client, array, &sink, GPUPOOL_PER_THREAD);
    MUST(gpupool_synced_settle(array));
    assert_true(sink_has(&sink, 4));
    set_on_device(client, array, 5, GPUPOOL_PER_THREAD);
    assert_true(is_all(on_host(array, GPUPOOL_READ, NULL), 5, SIZE));
    assert_true(is_all(memory, 5, SIZE));
    end(array, GPUPOOL_NO_STREAM);
    memset(memory, 6, SIZE);
    free(memory);
    MUST(gpupool_release(client, &sink, GPUPOOL_NO_STREAM));
    expect_nothing_leased(client);
    close_cached(client);
}

static void adopted_memory_is_the_callers_when_its_users_are_through(void **state) {
    struct scene scene;
    pthread_t thread;

    (void)state;
    if (!test_has_device())
        skip();
    scene_begin(&scene);
    struct gpupool_buffer device = acquire(scene.client, DEVICE, SIZE, scene.third);
    MUST(gpupool_set(scene.client, 0, device.data, 1, SIZE, scene.third));
    MUST(gpupool_synced_adopt_device(scene.array, device.data, scene.third));
    void *memory = on_device(scene.array, GPUPOOL_READ, scene.gate.stream);
    gate_close(&scene.gate);
    MUST(gpupool_copy(scene.client, 0, scene.sink.data, memory, SIZE, scene.gate.stream));
    /* it is let go of on a stream, which comes behind */
    MUST(gpupool_synced_destroy(scene.array, scene.other));
    MUST(gpupool_set(scene.client, 0, device.data, 2, SIZE, scene.other));
    expect_behind_the_gate(&scene, scene.other);
    MUST(gpupool_stream_synchronize(scene.client, 0, scene.gate.stream));
    assert_true(sink_has(&scene.sink, 1));
    /* or by the CPU, which waits */
    scene.array = create(scene.client, SIZE);
    MUST(gpupool_synced_adopt_device(scene.array, device.data, scene.other));
    memory = on_device(scene.array, GPUPOOL_READ, scene.gate.stream);
    gate_close(&scene.gate);
    assert_int_equal(pthread_create(&thread, NULL, gate_open_late, &scene.gate), 0);
    MUST(gpupool_synced_destroy(scene.array, GPUPOOL_NO_STREAM));
    bool passed = gate_was_passed(&scene.gate);
    pthread_join(thread, NULL);
    assert_true(passed);
    MUST(gpupool_release(scene.client, &device, GPUPOOL_NO_STREAM));
    scene.array = NULL; /* nothing is ended by ending nothing */
    scene_end(&scene);
}

/* --- errors --- */

static void what_cannot_be_is_refused(void **state) {
    struct gpupool_client *client;
    struct gpupool_synced *array = NULL;
    struct gpupool_synced_info info;
    void *memory = NULL;

    (void)state;
    client = open_cached();
    if (!test_has_device()) {
        MUST_BE(gpupool_synced_create(client, -1, SIZE, &array), GPUPOOL_E_NO_GPU);
        assert_null(array);
        close_cached(client);
        return;
    }
    MUST_BE(gpupool_synced_create(NULL, 0, SIZE, &array), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_create(client, 0, 0, &array), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_create(client, 0, SIZE, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_create(client, 77, SIZE, &array), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_create(client, -2, SIZE, &array), GPUPOOL_E_INVALID);
    assert_null(array);
    array = create(client, UINT64_MAX);
    MUST_BE(gpupool_synced_host(array, GPUPOOL_OVERWRITE, &memory, NULL), GPUPOOL_E_TOO_LARGE);
    MUST_BE(gpupool_synced_device(array, GPUPOOL_READ, &memory, NULL), GPUPOOL_E_TOO_LARGE);
    expect(array, GPUPOOL_SYNCED_UNINITIALIZED, 0, 0);
    MUST(gpupool_synced_resize(array, SIZE));
    MUST_BE(gpupool_synced_resize(array, 0), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_resize(NULL, 1), GPUPOOL_E_INVALID);
    for (unsigned i = 0; i < 2; i++) { /* without memory, and where it would be had at once */
        MUST_BE(gpupool_synced_host(array, (enum gpupool_access)0, &memory, NULL), GPUPOOL_E_INVALID);
        MUST_BE(gpupool_synced_host(array, (enum gpupool_access)4, &memory, NULL), GPUPOOL_E_INVALID);
        MUST_BE(gpupool_synced_host(array, GPUPOOL_READ, NULL, NULL), GPUPOOL_E_INVALID);
        MUST_BE(gpupool_synced_host(array, GPUPOOL_READ, &memory, GPUPOOL_NO_STREAM), GPUPOOL_E_INVALID);
        MUST_BE(gpupool_synced_device(array, (enum gpupool_access)0, &memory, NULL), GPUPOOL_E_INVALID);
        MUST_BE(gpupool_synced_device(array, (enum gpupool_access)4, &memory, NULL), GPUPOOL_E_INVALID);
        MUST_BE(gpupool_synced_device(array, GPUPOOL_READ, NULL, NULL), GPUPOOL_E_INVALID);
        MUST_BE(gpupool_synced_device(array, GPUPOOL_READ, &memory, GPUPOOL_NO_STREAM), GPUPOOL_E_INVALID);
        assert_null(memory);
        set_on_host(array, 1);
        set_on_device(client, array, 1, NULL);
    }
    MUST_BE(gpupool_synced_host(NULL, GPUPOOL_READ, &memory, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_device(NULL, GPUPOOL_READ, &memory, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_push(NULL, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_pull(array, GPUPOOL_NO_STREAM), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_adopt_host(array, NULL, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_adopt_device(array, NULL, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_adopt_host(array, &info, GPUPOOL_NO_STREAM), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_move(array, 77, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_settle(NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_query(array, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_query(NULL, &info), GPUPOOL_E_INVALID);
    MUST(gpupool_synced_destroy(NULL, NULL));
    expect(array, GPUPOOL_SYNCED_DEVICE_NEWER, 0, 0);
    end(array, NULL);
    expect_nothing_leased(client);
    close_cached(client);
}

static void without_room_nothing_changes_and_later_it_is_had(void **state) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client = NULL;
    struct gpupool_synced *array = NULL;
    void *memory = NULL;

    (void)state;
    if (!test_has_device())
        skip();
    empty_the_pools();
    options.socket = daemon_.socket;
    options.alloc_timeout_ns = NS_PER_MS;
    MUST(gpupool_open(&options, &client));
    MUST(gpupool_synced_create(client, 0, 40 * MIB, &array));
    struct gpupool_buffer device = acquire(client, DEVICE, 40 * MIB, NULL),
                          host = acquire(client, HOST, 40 * MIB, GPUPOOL_NO_STREAM);
    MUST_BE(gpupool_synced_device(array, GPUPOOL_READ, &memory, NULL), GPUPOOL_E_EXHAUSTED);
    MUST_BE(gpupool_synced_host(array, GPUPOOL_WRITE, &memory, NULL), GPUPOOL_E_EXHAUSTED);
    expect(array, GPUPOOL_SYNCED_UNINITIALIZED, 0, 0);
    MUST(gpupool_release(client, &host, GPUPOOL_NO_STREAM));
    memset(on_host(array, GPUPOOL_OVERWRITE, NULL), 1, 40 * MIB);
    MUST_BE(gpupool_synced_push(array, NULL), GPUPOOL_E_EXHAUSTED);
    MUST_BE(gpupool_synced_device(array, GPUPOOL_WRITE, &memory, NULL), GPUPOOL_E_EXHAUSTED);
    expect(array, GPUPOOL_SYNCED_HOST_NEWER, 0, 0);
    assert_null(memory);
    MUST(gpupool_release(client, &device, NULL));
    MUST(gpupool_synced_push(array, NULL));
    expect(array, GPUPOOL_SYNCED_IN_STEP, 1, 0);
    end(array, NULL);
    expect_nothing_leased(client);
    close_cached(client);
}

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
            assert_true(client->cache.enabled == false || lanes_are_valid(client));
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

static void a_device_that_is_broken_is_said_and_nobody_waits_for_ever(void **state) {
    struct scene scene;
    void *memory;

    (void)state;
    if (!test_has_device() || !test_is_simulated())
        skip();
    scene_begin(&scene);
    set_on_device(scene.client, scene.array, 1, scene.gate.stream);
    gate_close(&scene.gate); /* the copy will never come */
    MUST(gpupool_synced_pull(scene.array, scene.gate.stream));
    assert_int_equal(gpu_sim_fail("stream_query", 1, GPU_ERROR_UNKNOWN), 0);
    MUST_BE(gpupool_synced_host(scene.array, GPUPOOL_READ, &memory, scene.other), GPUPOOL_E_DRIVER);
    assert_true(gpu_sim_failed());
    assert_non_null(strstr(gpupool_error_text(), "waiting for a copy"));
    assert_int_equal(gpu_sim_fail("any", 0, 0), 0);
    gate_open(&scene.gate);
    assert_true(is_all(on_host(scene.array, GPUPOOL_READ, scene.other), 1, SIZE));
    expect(scene.array, GPUPOOL_SYNCED_IN_STEP, 0, 1);
    scene_end(&scene);
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

static void without_a_cache_it_is_the_same(void **state) {
    struct gpupool_client *client;

    (void)state;
    if (!test_has_device())
        skip();
    client = open_client(&daemon_, GPUPOOL_OPEN_NO_CACHE, 0);
    struct gpupool_synced *array = create(client, SIZE);
    set_on_device(client, array, 5, GPUPOOL_PER_THREAD);
    assert_true(is_all(on_host(array, GPUPOOL_READ, NULL), 5, SIZE));
    assert_int_equal(daemon_sum(&daemon_, "leases"), 2);
    end(array, GPUPOOL_PER_THREAD);
    WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == 0);
    close_cached(client);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_comes_with_the_first_access_and_is_zero),
        cmocka_unit_test(copies_are_made_exactly_when_they_are_needed),
        cmocka_unit_test(another_stream_waits_for_a_push_on_the_gpu),
        cmocka_unit_test(another_stream_waits_for_the_copy_and_not_for_what_comes_after_it),
        cmocka_unit_test(another_stream_waits_for_a_write_of_the_callers),
        cmocka_unit_test(a_copy_to_the_host_waits_for_a_write_on_another_stream),
        cmocka_unit_test(a_host_read_waits_for_just_its_copy),
        cmocka_unit_test(readers_do_not_wait_for_each_other),
        cmocka_unit_test(a_pointer_may_be_used_until_another_writes),
        cmocka_unit_test(a_push_waits_for_readers_of_what_it_replaces),
        cmocka_unit_test(a_host_write_waits_for_the_copy_that_reads_the_host),
        cmocka_unit_test(every_host_access_waits_for_the_copy_that_writes_the_host),
        cmocka_unit_test(null_per_thread_and_created_streams_are_ordered),
        cmocka_unit_test(another_threads_per_thread_stream_is_waited_for),
        cmocka_unit_test(memory_goes_back_behind_all_who_use_it),
        cmocka_unit_test(a_stream_may_end_once_the_array_is_settled),
        cmocka_unit_test(nothing_of_an_array_lands_in_a_graph),
        cmocka_unit_test(to_less_the_first_bytes_stay_and_to_more_all_is_gone),
        cmocka_unit_test(varying_sizes_within_the_capacity_take_no_memory),
        cmocka_unit_test(adopted_memory_counts_and_is_never_freed),
        cmocka_unit_test(pageable_memory_can_be_adopted),
        cmocka_unit_test(adopted_memory_is_the_callers_when_its_users_are_through),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(without_room_nothing_changes_and_later_it_is_had),
        cmocka_unit_test(whatever_the_driver_fails_can_be_tried_again),
        cmocka_unit_test(a_device_that_is_broken_is_said_and_nobody_waits_for_ever),
        cmocka_unit_test(a_forked_child_is_refused),
        cmocka_unit_test(without_a_cache_it_is_the_same),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
