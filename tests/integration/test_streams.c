/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call that takes a stream takes each kind of stream: null, cudaStreamLegacy, the per-thread one, one
 * that was created. The work that it enqueues is done there, behind earlier work, and no call waits on the
 * CPU. The stream stands at a gate, so that work that is done too early has all the time to happen.
 *
 * A gate on the null stream holds the per-thread streams, too. So nothing waits for another stream
 * here while the gate is closed but for a created one, which is non-blocking; and each call that maps memory
 * or loads a kernel the first time is done before.
 */
#include <gpupool/pair.h>
#include <gpupool/staging.h>
#include <gpupool/synced.h>

#include "tests/integration/gate.h"

#define PART        UINT64_C(65536)
#define SMALL_BYTES UINT64_C(4096)
#define LARGE_BYTES (40 * MIB) /* no two of them fit */
#define LEGACY      ((void *)1)
#define MEET_COUNT  64u

/* A gate on each kind of stream in turn, and a created stream beside it. */
struct scene {
    struct gpupool_client *client;
    struct gate gate;
    void *stream; /* the gate's */
    void *other;
    struct gpupool_buffer host; /* 4 PARTs */
    pthread_t opener;
};

static void on_each_stream(void (*test)(struct scene *scene)) {
    if (!test_has_device())
        skip();
    for (unsigned kind = 0; kind < 4; kind++) {
        wait_until_shortages_are_over();
        struct scene scene = {.client = open_cached()};
        gate_init(&scene.gate, scene.client);
        MUST(gpupool_stream_create(scene.client, 0, &scene.other));
        scene.host = acquire(scene.client, GPUPOOL_POOL_HOST, 4 * PART, GPUPOOL_NO_STREAM);
        void *created = scene.gate.stream;
        scene.stream = kind == 0 ? NULL : kind == 1 ? LEGACY : kind == 2 ? GPUPOOL_PER_THREAD : created;
        scene.gate.stream = scene.stream;
        /* the first fence of a client registers memory */
        struct gpupool_buffer buffer = acquire(scene.client, GPUPOOL_POOL_DEVICE, SMALL_BYTES, scene.other);
        MUST(gpupool_release(scene.client, &buffer, scene.stream));
        MUST(gpupool_stream_synchronize(scene.client, 0, scene.stream));
        test(&scene);
        MUST(gpupool_stream_synchronize(scene.client, 0, scene.stream));
        assert_true(stream_heaps_are_valid(scene.client));
        MUST(gpupool_release(scene.client, &scene.host, GPUPOOL_NO_STREAM));
        scene.gate.stream = created;
        gate_deinit(&scene.gate);
        MUST(gpupool_stream_destroy(scene.client, 0, scene.other));
        close_cached(scene.client);
    }
}

static uint8_t *host_part(const struct scene *scene, unsigned number) {
    return (uint8_t *)scene->host.data + number * PART;
}

static bool is_all(const uint8_t *bytes, uint64_t size_bytes, uint8_t byte) {
    for (uint64_t i = 0; i < size_bytes; i++)
        if (__atomic_load_n(&bytes[i], __ATOMIC_RELAXED) != byte)
            return false;
    return true;
}

/* While the gate is closed: what is on device now, seen from another stream. */
static bool device_is_all(struct scene *scene, const void *device, uint8_t byte) {
    MUST(gpupool_copy(scene->client, 0, host_part(scene, 3), device, PART, scene->other));
    MUST(gpupool_stream_synchronize(scene->client, 0, scene->other));
    return is_all(host_part(scene, 3), PART, byte);
}

/* The call before did not wait for the stream. */
static void expect_closed(struct scene *scene) {
    assert_false(gate_was_passed(&scene->gate));
}

static void open_late(struct scene *scene) {
    assert_int_equal(pthread_create(&scene->opener, NULL, gate_open_late, &scene->gate), 0);
}

/* The call before waited for the stream. */
static void expect_passed(struct scene *scene) {
    bool passed = gate_was_passed(&scene->gate);
    TEST_JOIN(scene->opener, NULL);
    assert_true(passed);
}

static void open_and_wait(struct scene *scene) {
    open_late(scene);
    MUST(gpupool_stream_synchronize(scene->client, 0, scene->stream));
    expect_passed(scene);
}

/* --- copies and sets --- */

static void copy_and_set(struct scene *scene) {
    struct gpupool_client *client = scene->client;
    struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_DEVICE, 2 * PART, GPUPOOL_NO_STREAM);
    uint8_t *device = buffer.data, *from = host_part(scene, 0), *to = host_part(scene, 1);

    for (unsigned round = 0; round < 2; round++) { /* the first without the gate */
        memset(from, (int)(1 + round), PART);
        memset(to, 0xee, 2 * PART);
        if (round == 1)
            gate_close(&scene->gate);
        MUST(gpupool_copy(client, 0, device, from, PART, scene->stream));
        MUST(gpupool_set(client, 0, device + PART, (int)(0x40 + round), PART, scene->stream));
        MUST(gpupool_copy(client, 0, to, device, 2 * PART, scene->stream));
        if (round == 0) {
            MUST(gpupool_stream_synchronize(client, 0, scene->stream));
            assert_true(device_is_all(scene, device, 1));
        } else {
            expect_closed(scene);
            assert_true(device_is_all(scene, device, 1)); /* nothing was done, and other streams go on */
            assert_true(device_is_all(scene, device + PART, 0x40));
            assert_true(is_all(to, 2 * PART, 0xee));
            open_and_wait(scene);
        }
        assert_true(is_all(to, PART, (uint8_t)(1 + round)));
        assert_true(is_all(to + PART, PART, (uint8_t)(0x40 + round)));
    }
    MUST(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
}

static void copies_and_sets_are_done_in_the_order_of_the_stream_that_is_named(void **state) {
    (void)state;
    on_each_stream(copy_and_set);
}

/* --- acquire, with zeros --- */

static void zero(struct scene *scene) {
    struct gpupool_client *client = scene->client;
    uint32_t pool = pool_of(client, GPUPOOL_POOL_DEVICE);
    struct gpupool_buffer buffer;
    const void *before = NULL;

    for (unsigned round = 0; round < 2; round++) {
        memset(host_part(scene, 0), 0xee, PART);
        if (round == 1)
            gate_close(&scene->gate);
        MUST(gpupool_acquire(client, pool, PART, scene->stream, GPUPOOL_FOREVER, GPUPOOL_ZERO, &buffer));
        MUST(gpupool_copy(client, 0, host_part(scene, 0), buffer.data, PART, scene->stream));
        if (round == 1) {
            expect_closed(scene);
            if (scene->stream != GPUPOOL_PER_THREAD) /* which orders nothing: the memory waits for a fence */
                assert_ptr_equal(buffer.data, before);
            if (buffer.data == before)
                assert_true(device_is_all(scene, buffer.data, 0xff));
            open_and_wait(scene);
        } else
            MUST(gpupool_stream_synchronize(client, 0, scene->stream));
        assert_true(is_all(host_part(scene, 0), PART, 0));
        MUST(gpupool_set(client, 0, buffer.data, 0xff, PART, scene->stream));
        MUST(gpupool_stream_synchronize(client, 0, scene->stream));
        assert_true(device_is_all(scene, buffer.data, 0xff));
        before = buffer.data;
        MUST(gpupool_release(client, &buffer, scene->stream));
    }
    MUST(gpupool_acquire(client, pool_of(client, GPUPOOL_POOL_HOST), PART, scene->stream, GPUPOOL_FOREVER,
                         GPUPOOL_ZERO, &buffer));
    MUST(gpupool_stream_synchronize(client, 0, scene->stream));
    assert_true(is_all(buffer.data, PART, 0));
    memset(buffer.data, 0xff, PART);
    MUST(gpupool_release(client, &buffer, scene->stream));
}

static void an_acquire_zeroes_in_the_order_of_its_stream(void **state) {
    (void)state;
    on_each_stream(zero);
}

/* --- taking and giving back: on the same stream and on another, of which one stands at the gate --- */

struct way {
    void *(*take)(struct gpupool_client *client, unsigned kind, uint64_t size_bytes, void *stream,
                  struct gpupool_buffer *buffer);
    void (*give)(struct gpupool_client *client, struct gpupool_buffer *buffer, void *memory, void *stream);
};

static void *take_buffer(struct gpupool_client *client, unsigned kind, uint64_t size_bytes, void *stream,
                         struct gpupool_buffer *buffer) {
    *buffer = acquire(client, kind, size_bytes, stream);
    return buffer->data;
}

static void give_buffer(struct gpupool_client *client, struct gpupool_buffer *buffer, void *memory,
                        void *stream) {
    (void)memory;
    MUST(gpupool_release(client, buffer, stream));
}

static void *take_pointer(struct gpupool_client *client, unsigned kind, uint64_t size_bytes, void *stream,
                          struct gpupool_buffer *buffer) {
    void *memory = gpupool_alloc(client, pool_of(client, kind), size_bytes, stream);
    (void)buffer;
    assert_non_null(memory);
    return memory;
}

static void give_pointer(struct gpupool_client *client, struct gpupool_buffer *buffer, void *memory,
                         void *stream) {
    (void)client;
    (void)buffer;
    MUST(gpupool_free(memory, stream));
}

static const struct way by_buffer = {take_buffer, give_buffer}, by_pointer = {take_pointer, give_pointer};

/* Takes so many that they would meet any that is free, and gives them back. */
static bool meets(struct scene *scene, const struct way *way, unsigned kind, void *stream,
                  const void *memory) {
    struct gpupool_buffer buffers[MEET_COUNT];
    void *pointers[MEET_COUNT];
    bool met = false;

    for (unsigned i = 0; i < MEET_COUNT; i++) {
        pointers[i] = way->take(scene->client, kind, SMALL_BYTES, stream, &buffers[i]);
        met = met || pointers[i] == memory;
    }
    for (unsigned i = 0; i < MEET_COUNT; i++)
        way->give(scene->client, &buffers[i], pointers[i], GPUPOOL_NO_STREAM);
    return met;
}

/* The streams that memory is taken on: all kinds, the one at the gate among them. */
static unsigned takers(const struct scene *scene, void *streams[6]) {
    void *all[] = {NULL, LEGACY, GPUPOOL_PER_THREAD, scene->other, GPUPOOL_NO_STREAM, scene->stream};
    bool is_created = scene->stream != NULL && scene->stream != LEGACY && scene->stream != GPUPOOL_PER_THREAD;
    memcpy(streams, all, sizeof all);
    return is_created ? 6 : 5;
}

/* Device memory that is taken on a stream is ordered by that, except that 0x2 is many streams. */
static bool is_ordered(const struct scene *scene, unsigned kind, const void *taken_on) {
    return kind == GPUPOOL_POOL_DEVICE && taken_on == scene->stream && taken_on != GPUPOOL_PER_THREAD;
}

static void take_and_give(struct scene *scene, const struct way *way, unsigned kind) {
    void *streams[6];
    unsigned count = takers(scene, streams);

    for (unsigned i = 0; i < count; i++) {
        struct gpupool_buffer buffer;
        void *memory = way->take(scene->client, kind, SMALL_BYTES, streams[i], &buffer);
        meets(scene, way, kind, streams[i], NULL); /* maps what there is to map */
        gate_close(&scene->gate);
        way->give(scene->client, &buffer, memory, scene->stream);
        expect_closed(scene);
        assert_int_equal(meets(scene, way, kind, streams[i], memory), is_ordered(scene, kind, streams[i]));
        expect_closed(scene);
        open_and_wait(scene);
        /* and then it is used again */
        memory = way->take(scene->client, kind, MIB, streams[i], &buffer);
        way->give(scene->client, &buffer, memory, scene->stream);
        assert_true(stream_heaps_are_valid(scene->client));
    }
}

static void take_and_give_buffers(struct scene *scene) {
    take_and_give(scene, &by_buffer, GPUPOOL_POOL_DEVICE);
    take_and_give(scene, &by_buffer, GPUPOOL_POOL_HOST);
}

static void take_and_give_pointers(struct scene *scene) {
    take_and_give(scene, &by_pointer, GPUPOOL_POOL_DEVICE);
    take_and_give(scene, &by_pointer, GPUPOOL_POOL_HOST);
}

static void a_buffer_is_used_again_when_the_stream_of_its_release_allows_it(void **state) {
    (void)state;
    on_each_stream(take_and_give_buffers);
}

static void a_pointer_is_used_again_when_the_stream_of_its_free_allows_it(void **state) {
    (void)state;
    on_each_stream(take_and_give_pointers);
}

static void shrink_buffers(struct scene *scene, unsigned kind) {
    struct gpupool_client *client = scene->client;
    void *streams[6];
    unsigned count = takers(scene, streams);

    for (unsigned i = 0; i < count; i++) {
        struct gpupool_buffer buffer = acquire(client, kind, MIB, streams[i]);
        struct gpupool_buffer next = acquire(client, kind, MIB, streams[i]);
        const char *tail = (char *)buffer.data + SMALL_BYTES;
        MUST(gpupool_release(client, &next, GPUPOOL_NO_STREAM));
        gate_close(&scene->gate);
        MUST(gpupool_shrink(client, &buffer, SMALL_BYTES, scene->stream));
        expect_closed(scene);
        assert_int_equal(buffer.capacity_bytes, SMALL_BYTES);
        next = acquire(client, kind, MIB - SMALL_BYTES, streams[i]);
        if (!is_ordered(scene, kind, streams[i]))
            assert_true((char *)next.data + next.capacity_bytes <= tail ||
                        (char *)next.data >= tail + (MIB - SMALL_BYTES));
        expect_closed(scene);
        open_and_wait(scene);
        MUST(gpupool_release(client, &next, scene->stream));
        MUST(gpupool_release(client, &buffer, scene->stream));
        assert_true(stream_heaps_are_valid(client));
    }
}

static void shrink(struct scene *scene) {
    shrink_buffers(scene, GPUPOOL_POOL_DEVICE);
    shrink_buffers(scene, GPUPOOL_POOL_HOST);
}

static void the_tail_of_a_buffer_is_used_again_when_the_stream_of_the_shrink_allows_it(void **state) {
    (void)state;
    on_each_stream(shrink);
}

static void trim(struct scene *scene) {
    struct gpupool_buffer buffer;
    struct puppet puppet;
    uint64_t bytes;

    MUST(gpupool_trim(scene->client, NULL));
    puppet_connect(&puppet, &daemon_);
    buffer = acquire(scene->client, GPUPOOL_POOL_DEVICE, LARGE_BYTES, scene->stream);
    gate_close(&scene->gate);
    MUST(gpupool_release(scene->client, &buffer, scene->stream));
    MUST(gpupool_trim(scene->client, &bytes));
    /* Where segments are moved about, the scene before may still have left a shortage: it is back already. */
    assert_true(bytes >= LARGE_BYTES || test_exports_vmm());
    expect_closed(scene);
    gate_hands_over(&scene->gate, GPUPOOL_POOL_DEVICE, LARGE_BYTES, &puppet);
    puppet_quit(&puppet);
}

static void trimmed_memory_is_another_processs_when_its_stream_is_through(void **state) {
    (void)state;
    on_each_stream(trim);
}

/* --- the objects --- */

static void pair(struct scene *scene) {
    struct gpupool_client *client = scene->client;
    struct gpupool_pair pair;
    void *small = NULL, *large = NULL, *host = NULL;

    struct gpupool_buffer warm = acquire(client, GPUPOOL_POOL_DEVICE, 4 * PART, scene->stream);
    MUST(gpupool_release(client, &warm, scene->stream));
    MUST(gpupool_pair_init(&pair, client, 0, GPUPOOL_PAIR_ZERO));
    MUST(gpupool_pair_host(&pair, 2 * PART, &host, scene->stream));
    MUST(gpupool_pair_device(&pair, SMALL_BYTES, &small, scene->stream));
    MUST(gpupool_pair_copy_to_device(&pair, SMALL_BYTES, scene->stream));
    meets(scene, &by_buffer, GPUPOOL_POOL_DEVICE, scene->other, NULL);
    MUST(gpupool_stream_synchronize(client, 0, scene->stream));
    memset(host, 0xee, 2 * PART);
    gate_close(&scene->gate);
    /* what it had goes back, and the zeros come, in the stream's order */
    MUST(gpupool_pair_device(&pair, 2 * PART, &large, scene->stream));
    MUST(gpupool_pair_copy_to_host(&pair, 2 * PART, scene->stream));
    expect_closed(scene);
    assert_non_null(large);
    assert_ptr_not_equal(small, large);
    assert_false(meets(scene, &by_buffer, GPUPOOL_POOL_DEVICE, scene->other, small));
    assert_true(is_all(host, 2 * PART, 0xee));
    expect_closed(scene);
    open_and_wait(scene);
    assert_true(is_all(host, 2 * PART, 0));
    memset(host, 0x21, 2 * PART);
    gate_close(&scene->gate);
    MUST(gpupool_pair_copy_to_device(&pair, PART, scene->stream));
    expect_closed(scene);
    assert_true(device_is_all(scene, large, 0));
    MUST(gpupool_pair_clear(&pair, scene->stream));
    expect_closed(scene);
    open_and_wait(scene);
    assert_true(device_is_all(scene, large, 0x21)); /* no other owner has taken it yet */
}

static void a_pair_grows_and_copies_in_the_order_of_the_stream(void **state) {
    (void)state;
    on_each_stream(pair);
}

/* Reads on the array's stream and on another one, in that order, into two parts of the host memory. */
static void read_on_both(struct scene *scene, struct gpupool_synced *array) {
    void *streams[] = {scene->stream, scene->other}, *memory = NULL;

    memset(host_part(scene, 0), 0xee, 2 * PART);
    for (unsigned i = 0; i < 2; i++) {
        MUST(gpupool_synced_device(array, GPUPOOL_READ, &memory, streams[i]));
        MUST(gpupool_copy(scene->client, 0, host_part(scene, i), memory, PART, streams[i]));
    }
}

static void expect_read(struct scene *scene, uint8_t byte) {
    MUST(gpupool_stream_synchronize(scene->client, 0, scene->stream));
    MUST(gpupool_stream_synchronize(scene->client, 0, scene->other));
    assert_true(is_all(host_part(scene, 0), 2 * PART, byte));
}

static void synced(struct scene *scene) {
    struct gpupool_client *client = scene->client;
    struct gpupool_synced *array;
    void *memory = NULL;

    MUST(gpupool_synced_create(client, 0, PART, &array));
    for (unsigned round = 0; round < 2; round++) { /* the first without the gate */
        uint8_t byte = (uint8_t)(0x51 + 2 * round);
        MUST(gpupool_synced_host(array, GPUPOOL_OVERWRITE, &memory, scene->stream));
        memset(memory, byte, PART);
        if (round == 1)
            gate_close(&scene->gate);
        MUST(gpupool_synced_push(array, scene->stream));
        read_on_both(scene, array);
        if (round == 1) {
            expect_closed(scene);
            assert_true(
                is_all(host_part(scene, 0), 2 * PART, 0xee)); /* the other stream waits for the copy */
            open_late(scene);
        }
        expect_read(scene, byte);
        if (round == 1)
            expect_passed(scene);

        if (round == 1)
            gate_close(&scene->gate);
        MUST(gpupool_synced_device(array, GPUPOOL_OVERWRITE, &memory, scene->stream));
        MUST(gpupool_set(client, 0, memory, byte + 1, PART, scene->stream));
        MUST(gpupool_synced_pull(array, scene->stream));
        if (round == 1) {
            expect_closed(scene);
            open_late(scene);
        }
        MUST(gpupool_synced_host(array, GPUPOOL_READ, &memory, scene->stream));
        if (round == 1)
            expect_passed(scene);
        assert_true(is_all(memory, PART, byte + 1));
    }
    MUST(gpupool_synced_settle(array));
    MUST(gpupool_synced_destroy(array, scene->stream));
}

static void a_synchronised_array_is_copied_and_used_in_the_order_of_the_streams(void **state) {
    (void)state;
    on_each_stream(synced);
}

static void stage(struct scene *scene) {
    struct gpupool_client *client = scene->client;
    const uint64_t sizes[] = {PART, 3 * MIB + 1}; /* one chunk, and many */

    for (unsigned i = 0; i < 2; i++) {
        uint64_t size_bytes = sizes[i];
        uint8_t *ordinary = malloc(size_bytes);
        assert_non_null(ordinary);
        struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_DEVICE, size_bytes, scene->stream);
        memset(ordinary, 0x31, size_bytes);
        MUST(gpupool_upload(client, 0, buffer.data, ordinary, size_bytes, scene->stream));
        memset(ordinary, 0, size_bytes); /* it was read */
        MUST(gpupool_download(client, 0, ordinary, buffer.data, size_bytes, scene->stream));
        assert_true(is_all(ordinary, size_bytes, 0x31));

        gate_close(&scene->gate);
        MUST(gpupool_set(client, 0, buffer.data, 0x32, size_bytes, scene->stream));
        open_late(scene);
        MUST(gpupool_download(client, 0, ordinary, buffer.data, size_bytes, scene->stream));
        expect_passed(scene); /* it waited for what was before it */
        assert_true(is_all(ordinary, size_bytes, 0x32));

        memset(ordinary, 0x33, size_bytes);
        gate_close(&scene->gate);
        MUST(gpupool_set(client, 0, buffer.data, 0x34, size_bytes, scene->stream));
        open_late(scene);
        MUST(gpupool_upload(client, 0, buffer.data, ordinary, size_bytes, scene->stream));
        MUST(gpupool_download(client, 0, ordinary, buffer.data, size_bytes, scene->stream));
        expect_passed(scene);
        assert_true(is_all(ordinary, size_bytes, 0x33)); /* the set was before it */
        MUST(gpupool_release(client, &buffer, scene->stream));
        free(ordinary);
    }
}

static void ordinary_memory_is_copied_in_the_order_of_the_stream(void **state) {
    (void)state;
    on_each_stream(stage);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_and_sets_are_done_in_the_order_of_the_stream_that_is_named),
        cmocka_unit_test(an_acquire_zeroes_in_the_order_of_its_stream),
        cmocka_unit_test(a_buffer_is_used_again_when_the_stream_of_its_release_allows_it),
        cmocka_unit_test(a_pointer_is_used_again_when_the_stream_of_its_free_allows_it),
        cmocka_unit_test(the_tail_of_a_buffer_is_used_again_when_the_stream_of_the_shrink_allows_it),
        cmocka_unit_test(trimmed_memory_is_another_processs_when_its_stream_is_through),
        cmocka_unit_test(a_pair_grows_and_copies_in_the_order_of_the_stream),
        cmocka_unit_test(a_synchronised_array_is_copied_and_used_in_the_order_of_the_streams),
        cmocka_unit_test(ordinary_memory_is_copied_in_the_order_of_the_stream),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
