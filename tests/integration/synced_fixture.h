/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_SYNCED_FIXTURE_H
#define TESTS_INTEGRATION_SYNCED_FIXTURE_H
/*
 * The fixture of the tests of synchronised arrays. Device memory is written and read by sets and copies, so
 * that the tests run on a real GPU too. Streams stand at gates that the test opens: a call that should wait
 * for them has all the time to return too early, and a call that should not wait returns before. To be
 * included once, by a test program.
 */
#include "client/include/gpupool/synced.h"
#include "gpu/sim/sim.h"
#include "tests/integration/cache_fixture.h"
#include "tests/integration/gate.h"

#define SIZE   (64 * KIB)
#define HOST   GPUPOOL_POOL_HOST
#define DEVICE GPUPOOL_POOL_DEVICE

static inline struct gpupool_synced *create(struct gpupool_client *client, uint64_t size_bytes) {
    struct gpupool_synced *array = NULL;
    MUST(gpupool_synced_create(client, 0, size_bytes, &array));
    assert_non_null(array);
    return array;
}

static inline struct gpupool_synced_info info_of(const struct gpupool_synced *array) {
    struct gpupool_synced_info info;
    MUST(gpupool_synced_query(array, &info));
    return info;
}

static inline void expect(const struct gpupool_synced *array, enum gpupool_synced_state state,
                          uint64_t to_device, uint64_t to_host) {
    struct gpupool_synced_info info = info_of(array);
    assert_int_equal(info.state, state);
    assert_int_equal(info.copies_to_device, to_device);
    assert_int_equal(info.copies_to_host, to_host);
}

static inline unsigned char *on_host(struct gpupool_synced *array, enum gpupool_access access, void *stream) {
    void *memory = NULL;
    MUST(gpupool_synced_host(array, access, &memory, stream));
    assert_non_null(memory);
    return memory;
}

static inline void *on_device(struct gpupool_synced *array, enum gpupool_access access, void *stream) {
    void *memory = NULL;
    MUST(gpupool_synced_device(array, access, &memory, stream));
    assert_non_null(memory);
    return memory;
}

static inline bool is_all(const unsigned char *memory, int byte, uint64_t size_bytes) {
    for (uint64_t i = 0; i < size_bytes; i++)
        if (memory[i] != byte)
            return false;
    return true;
}

/* Writes all of it on the device, or on the host. */
static inline void set_on_device(struct gpupool_client *client, struct gpupool_synced *array, int byte,
                                 void *stream) {
    struct gpupool_synced_info info = info_of(array);
    MUST(gpupool_set(client, info.device, on_device(array, GPUPOOL_OVERWRITE, stream), byte, info.size_bytes,
                     stream));
}

static inline void set_on_host(struct gpupool_synced *array, int byte) {
    memset(on_host(array, GPUPOOL_OVERWRITE, NULL), byte, info_of(array).size_bytes);
}

/* Memory that the GPU's work puts what it read into. */
static inline struct gpupool_buffer sink_new(struct gpupool_client *client) {
    struct gpupool_buffer sink = acquire(client, HOST, SIZE, GPUPOOL_NO_STREAM);
    memset(sink.data, 0xee, SIZE);
    return sink;
}

/* Stands for a kernel that reads the array. */
static inline void read_on_device(struct gpupool_client *client, struct gpupool_synced *array,
                                  struct gpupool_buffer *sink, void *stream) {
    struct gpupool_synced_info info = info_of(array);
    MUST(gpupool_copy(client, info.device, sink->data, on_device(array, GPUPOOL_READ, stream),
                      info.size_bytes, stream));
}

static inline bool sink_has(const struct gpupool_buffer *sink, int byte) {
    for (uint64_t i = 0; i < SIZE; i++)
        if (((volatile unsigned char *)sink->data)[i] != byte)
            return false;
    return true;
}

/* Destroys the array, after which the client has nothing on loan that it could not give back. */
static inline void end(struct gpupool_synced *array, void *stream) {
    MUST(gpupool_synced_destroy(array, stream));
}

static inline void expect_nothing_leased(struct gpupool_client *client) {
    MUST(gpupool_trim(client, NULL));
    WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == 0);
}

/* A test that is given a client, which has nothing on loan afterwards. */
struct client_test {
    void (*test)(struct gpupool_client *client);
};

static inline void run_with_client(void **state) {
    const struct client_test *test = *state;

    if (!test_has_device())
        skip();
    struct gpupool_client *client = open_cached();
    test->test(client);
    expect_nothing_leased(client);
    close_cached(client);
}

#define WITH_CLIENT(name)                                                                                    \
    {                                                                                                        \
#name, run_with_client, NULL, NULL, &(struct client_test) {                                          \
            name                                                                                             \
        }                                                                                                    \
    }

/* --- streams --- */

/* Maps the memory and the words of fences that are needed at a closed gate: the driver may wait for a stream
 * when it maps. The client keeps them. */
static inline void warm_up(struct gpupool_client *client, int device, void *stream, void *other) {
    struct gpupool_synced *array = NULL;

    MUST(gpupool_synced_create(client, device, SIZE, &array));
    set_on_host(array, 1);
    on_device(array, GPUPOOL_WRITE, stream);
    on_device(array, GPUPOOL_READ, other);
    on_host(array, GPUPOOL_READ, other);
    MUST(gpupool_synced_destroy(array, GPUPOOL_NO_STREAM));
}

struct scene {
    struct gpupool_client *client;
    struct gate gate; /* of a stream that is held up */
    void *other, *third;
    struct gpupool_buffer sink;
    struct gpupool_synced *array;
};

static inline void scene_begin(struct scene *scene) {
    scene->client = open_cached();
    gate_init(&scene->gate, scene->client);
    MUST(gpupool_stream_create(scene->client, 0, &scene->other));
    MUST(gpupool_stream_create(scene->client, 0, &scene->third));
    scene->sink = sink_new(scene->client);
    scene->array = create(scene->client, SIZE);
    warm_up(scene->client, 0, scene->other, scene->third);
}

static inline void scene_end(struct scene *scene) {
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

/* A test that is given a scene. */
struct scene_test {
    void (*test)(struct scene *scene);
    bool needs_simulation;
};

static inline void run_in_scene(void **state) {
    const struct scene_test *test = *state;
    struct scene scene;

    if (!test_has_device() || (test->needs_simulation && !test_is_simulated()))
        skip();
    scene_begin(&scene);
    test->test(&scene);
    scene_end(&scene);
}

#define IN_SCENE(name)                                                                                       \
    {                                                                                                        \
#name, run_in_scene, NULL, NULL, &(struct scene_test) {                                              \
            name, false                                                                                      \
        }                                                                                                    \
    }
#define IN_SIMULATED_SCENE(name)                                                                             \
    {                                                                                                        \
#name, run_in_scene, NULL, NULL, &(struct scene_test) {                                              \
            name, true                                                                                       \
        }                                                                                                    \
    }

static inline bool is_idle(struct scene *scene, void *stream) {
    return scene->client->session.devices.gpu->stream_query(0, stream) == 0;
}

/* The stream does not get on, given time, until the gate opens; and then it does. */
static inline void expect_behind_the_gate(struct scene *scene, void *stream) {
    for (unsigned i = 0; i < 5; i++)
        test_pause();
    assert_false(is_idle(scene, stream));
    assert_false(gate_was_passed(&scene->gate));
    gate_open(&scene->gate);
    MUST(gpupool_stream_synchronize(scene->client, 0, stream));
    assert_true(gate_was_passed(&scene->gate));
}

#endif
