/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pairs: host and device memory of one object, each of which only grows. On two devices, of which the calling
 * thread has another current than the pair is on, and on every kind of stream.
 */
#include "tests/integration/pair_fixture.h" /* says how many GPUs there are, before */

#include "tests/integration/gate.h"

/* A test of pairs on each device that there is, with each kind of stream: null, per-thread, created, none.
 * The current device is always the first, and stays so. */
static void on_each_stream(void (*test)(struct gpupool_client *client, int device, void *stream)) {
    if (!test_has_device())
        skip();
    for (int device = 0; device < (test_has_devices(2) ? 2 : 1); device++)
        for (unsigned kind = 0; kind < 4; kind++) {
            struct gpupool_client *client = open_cached();
            void *stream = kind == 0 ? NULL : kind == 1 ? GPUPOOL_PER_THREAD : GPUPOOL_NO_STREAM;
            unsigned current = 77;
            if (kind == 2)
                MUST(gpupool_stream_create(client, device, &stream));
            test(client, device, stream);
            assert_true(stream_heaps_are_valid(client));
            MUST(gpupool_trim(client, NULL));
            WAIT_UNTIL(leased() == 0);
            if (kind == 2)
                MUST(gpupool_stream_destroy(client, device, stream));
            MUST(devices_current(&client->session.devices, &current));
            assert_int_equal(current, 0);
            close_cached(client);
        }
}

/* --- growing only --- */

static void grow_and_keep(struct gpupool_client *client, int device, void *stream) {
    struct gpupool_pair pair = make_pair(client, device, 0);
    unsigned current = 0;

    expect_empty(&pair);
    assert_int_equal(leased(), 0);
    assert_int_equal(pair.device, device);
    for (unsigned i = 0; i < 2; i++) {
        enum side side = sides[i], other = sides[1 - i];
        const struct gpupool_pair_side *own = side_of(&pair, side), before = *side_of(&pair, other);

        void *memory = get(&pair, side, SMALL_BYTES, stream);
        assert_int_equal(own->owner, GPUPOOL_OWNER_POOL);
        assert_int_equal(own->buffer.kind, side == HOST ? GPUPOOL_POOL_HOST : GPUPOOL_POOL_DEVICE);
        assert_int_equal(own->buffer.device, side == HOST ? -1 : device);
        assert_int_equal((uintptr_t)memory % 512, 0);
        fill(&pair, side, SMALL_BYTES, 5);
        /* whatever is asked for up to the capacity is there already, with what was in it */
        for (uint64_t size_bytes = own->capacity_bytes; size_bytes > 0; size_bytes /= 2)
            assert_ptr_equal(get(&pair, side, size_bytes, stream), memory);
        MUST(side == HOST ? gpupool_pair_grow_host(&pair, 7, stream)
                          : gpupool_pair_grow_device(&pair, 7, stream));
        assert_ptr_equal(own->data, memory);
        assert_int_equal(own->size_bytes, 7);
        assert_true(has(&pair, side, SMALL_BYTES, 5));
        memory = NULL;
        MUST(ask(&pair, side, 0, &memory, stream));
        assert_ptr_equal(own->data, memory);
        MUST(side == HOST ? gpupool_pair_grow_host(&pair, 0, stream)
                          : gpupool_pair_grow_device(&pair, 0, stream));
        assert_int_equal(own->size_bytes, 7); /* what is there is asked for, and stays */
        /* beyond that it is larger */
        get(&pair, side, LARGE_BYTES, stream);
        assert_int_equal(own->owner, GPUPOOL_OWNER_POOL);
        fill(&pair, side, own->capacity_bytes, 6);
        assert_true(has(&pair, side, own->capacity_bytes, 6));
        assert_memory_equal(side_of(&pair, other), &before, sizeof before);
    }
    MUST(devices_current(&client->session.devices, &current));
    assert_int_equal(current, 0);
    clear(&pair, stream);
    clear(&pair, stream);
    get(&pair, HOST, 1, stream); /* and can be used again */
    clear(&pair, stream);
}

static void a_side_gets_larger_when_it_must_and_else_stays_as_it_is(void **state) {
    (void)state;
    on_each_stream(grow_and_keep);
}

static void a_pair_that_has_seen_its_bound_asks_nobody_any_more(void **state) {
    uint64_t random = 7;

    (void)state;
    if (!test_has_device())
        skip();
    struct gpupool_client *client = open_cached();
    struct gpupool_pair pair = make_pair(client, 0, GPUPOOL_PAIR_ZERO);
    get(&pair, HOST, LARGE_BYTES, NULL);
    get(&pair, ON_DEVICE, LARGE_BYTES, NULL);
    uint64_t acquires = daemon_sum(&daemon_, "acquires");
    struct gpupool_buffer buffers[] = {pair.host.buffer, pair.on_device.buffer};
    if (test_is_simulated())
        assert_int_equal(gpu_sim_fail("any", 1, GPU_ERROR_UNKNOWN), 0);
    for (unsigned i = 0; i < 10000; i++)
        get(&pair, sides[i % 2], test_random(&random) % LARGE_BYTES + 1, NULL);
    if (test_is_simulated()) {
        assert_false(gpu_sim_failed());
        gpu_sim_fail("any", 0, 0);
    }
    assert_int_equal(daemon_sum(&daemon_, "acquires"), acquires);
    assert_memory_equal(&pair.host.buffer, &buffers[0], sizeof buffers[0]);
    assert_memory_equal(&pair.on_device.buffer, &buffers[1], sizeof buffers[1]);
    clear(&pair, NULL);
    close_cached(client);
}

static void copy_there_and_back(struct gpupool_client *client, int device, void *stream) {
    struct gpupool_pair pair = make_pair(client, device, 0);

    get(&pair, HOST, LARGE_BYTES, stream);
    get(&pair, ON_DEVICE, LARGE_BYTES, stream);
    fill(&pair, HOST, LARGE_BYTES, 11);
    MUST(gpupool_pair_copy_to_device(&pair, LARGE_BYTES, stream));
    if (stream != GPUPOOL_NO_STREAM) /* which is through on return */
        MUST(gpupool_stream_synchronize(client, device, stream));
    fill(&pair, HOST, LARGE_BYTES, 12);
    assert_true(has(&pair, ON_DEVICE, LARGE_BYTES, 11));
    /* as much as is said */
    MUST(gpupool_pair_copy_to_host(&pair, SMALL_BYTES, stream));
    if (stream != GPUPOOL_NO_STREAM)
        MUST(gpupool_stream_synchronize(client, device, stream));
    assert_true(has(&pair, HOST, SMALL_BYTES, 11));
    assert_false(has(&pair, HOST, SMALL_BYTES + 1, 11));
    /* and never more than there is: nothing grows by it */
    struct gpupool_pair before = pair;
    uint64_t too_much = pair.host.capacity_bytes + pair.on_device.capacity_bytes;
    MUST_BE(gpupool_pair_copy_to_device(&pair, too_much, stream), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_pair_copy_to_host(&pair, too_much, stream), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_pair_copy_to_device(&pair, 1, GPUPOOL_PAIR_ALL_STREAMS), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_pair_copy_to_host(&pair, 1, GPUPOOL_PAIR_ALL_STREAMS), GPUPOOL_E_INVALID);
    assert_memory_equal(&pair, &before, sizeof pair);
    MUST(gpupool_pair_copy_to_device(&pair, 0, stream));
    clear(&pair, stream);
    get(&pair, HOST, 1, stream);
    MUST_BE(gpupool_pair_copy_to_device(&pair, 1, stream), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_pair_copy_to_host(&pair, 1, stream), GPUPOOL_E_INVALID);
    clear(&pair, stream);
}

static void the_sides_are_copied_when_that_is_asked_for(void **state) {
    (void)state;
    on_each_stream(copy_there_and_back);
}

/* --- stream order --- */

/* Takes so many small buffers that they would meet any that is free, and gives them back. */
static bool meets(struct gpupool_client *client, uint32_t pool, void *stream, const void *data) {
    struct gpupool_buffer buffers[64];
    bool met = false;

    for (unsigned i = 0; i < 64; i++) {
        MUST(gpupool_acquire(client, pool, 4096, stream, GPUPOOL_FOREVER, 0, &buffers[i]));
        met = met || buffers[i].data == data;
    }
    for (unsigned i = 0; i < 64; i++)
        MUST(gpupool_release(client, &buffers[i], GPUPOOL_NO_STREAM));
    return met;
}

/* A block that a side leaves by growth, adoption or clearing is not lent again while the stream writes it. */
static void leave_side(struct gpupool_client *client, int device, void *stream, enum side side,
                       unsigned way) {
    struct gpupool_pair pair = make_pair(client, device, 0);
    static char own_memory[4096];
    struct gate gate;
    void *other;

    gate_init_on(&gate, client, device);
    void *created = gate.stream;
    MUST(gpupool_stream_create(client, device, &other));
    /* The memory that will be needed is mapped before: the driver may wait for a stream when it maps. */
    get(&pair, side, LARGE_BYTES, stream);
    clear(&pair, GPUPOOL_NO_STREAM);
    void *old = get(&pair, side, 4096, stream);
    uint32_t pool = side_of(&pair, side)->buffer.pool;
    meets(client, pool, other, NULL);
    meets(client, pool, GPUPOOL_NO_STREAM, NULL);
    meets(client, pool, GPUPOOL_PER_THREAD, NULL);
    gate.stream = stream;
    gate_close(&gate);
    MUST(gpupool_set(client, device, old, 0x77, 4096, stream));
    if (way == 0)
        get(&pair, side, LARGE_BYTES, stream);
    else if (way == 1)
        MUST(side == HOST ? gpupool_pair_adopt_host(&pair, own_memory, sizeof own_memory, stream)
                          : gpupool_pair_adopt_device(&pair, own_memory, sizeof own_memory, stream));
    else
        clear(&pair, stream);
    assert_ptr_not_equal(side_of(&pair, side)->data, old);
    bool met = meets(client, pool, other, old) || meets(client, pool, GPUPOOL_NO_STREAM, old) ||
               meets(client, pool, GPUPOOL_PER_THREAD, old);
    bool passed = gate_was_passed(&gate);
    gate_open(&gate);
    assert_false(met);
    assert_false(passed); /* no call waited for the stream */
    MUST(gpupool_stream_synchronize(client, device, stream));
    clear(&pair, stream);
    gate.stream = created;
    gate_deinit(&gate);
    MUST(gpupool_stream_destroy(client, device, other));
}

static void leave(struct gpupool_client *client, int device, void *stream) {
    if (stream == GPUPOOL_NO_STREAM) /* then nothing writes it */
        return;
    for (unsigned way = 0; way < 3; way++)
        for (unsigned i = 0; i < 2; i++)
            leave_side(client, device, stream, sides[i], way);
}

static void what_a_side_leaves_is_lent_again_when_the_stream_is_through(void **state) {
    (void)state;
    on_each_stream(leave);
}

/* Writes on the stream to a side that grew come after the stream's earlier work on that memory. */
static void a_side_that_grew_can_be_written_on_the_stream_at_once(void **state) {
    struct gate gate;

    (void)state;
    if (!test_has_device())
        skip();
    struct gpupool_client *client = open_cached();
    struct gpupool_pair pair = make_pair(client, 0, GPUPOOL_PAIR_ZERO),
                        next = make_pair(client, 0, GPUPOOL_PAIR_ZERO);
    gate_init(&gate, client);
    void *old = get(&pair, ON_DEVICE, LARGE_BYTES, gate.stream);
    get(&next, HOST, LARGE_BYTES, gate.stream);
    gate_close(&gate);
    MUST(gpupool_set(client, 0, old, 0x77, LARGE_BYTES, gate.stream));
    clear(&pair, gate.stream);
    /* the same memory, and the zeros are behind the sevens */
    assert_ptr_equal(get(&next, ON_DEVICE, LARGE_BYTES, gate.stream), old);
    assert_false(gate_was_passed(&gate));
    memset(next.host.data, 1, LARGE_BYTES);
    MUST(gpupool_pair_copy_to_host(&next, LARGE_BYTES, gate.stream));
    gate_open(&gate);
    MUST(gpupool_stream_synchronize(client, 0, gate.stream));
    assert_true(has(&next, HOST, LARGE_BYTES, 0));
    clear(&next, gate.stream);
    gate_deinit(&gate);
    close_cached(client);
}

/* --- zeroing --- */

/* Leaves memory of that size behind that is not zero. */
static void dirty(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes, void *stream) {
    struct gpupool_buffer buffer;
    MUST(gpupool_acquire(client, pool, size_bytes, stream, GPUPOOL_FOREVER, 0, &buffer));
    buffer.size_bytes = buffer.capacity_bytes;
    MUST(puppet_write_pattern(client, &buffer, 99, NULL));
    MUST(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
}

static void zero(struct gpupool_client *client, int device, void *stream) {
    struct gpupool_pair plain = make_pair(client, device, 0),
                        pair = make_pair(client, device, GPUPOOL_PAIR_ZERO);
    bool was_dirty[2] = {false};

    for (unsigned i = 0; i < 2; i++) {
        enum side side = sides[i];
        get(&plain, side, SMALL_BYTES, stream);
        uint32_t pool = side_of(&plain, side)->buffer.pool;
        clear(&plain, stream);
        for (uint64_t size_bytes = SMALL_BYTES; size_bytes <= LARGE_BYTES; size_bytes *= 5) {
            dirty(client, pool, size_bytes, stream);
            get(&plain, side, size_bytes, stream);
            if (stream != GPUPOOL_NO_STREAM)
                MUST(gpupool_stream_synchronize(client, device, stream));
            was_dirty[i] = was_dirty[i] || !has(&plain, side, size_bytes, 0);
            clear(&plain, stream);
            get(&pair, side, size_bytes, stream);
            uint64_t capacity_bytes = side_of(&pair, side)->capacity_bytes;
            if (side == ON_DEVICE && stream != GPUPOOL_NO_STREAM)
                MUST(gpupool_stream_synchronize(client, device, stream));
            assert_true(has(&pair, side, capacity_bytes, 0));
            /* and only then: what is there stays */
            fill(&pair, side, capacity_bytes, 3);
            get(&pair, side, capacity_bytes, stream);
            assert_true(has(&pair, side, capacity_bytes, 3));
        }
    }
    assert_true(was_dirty[0] && was_dirty[1]); /* else this shows nothing */
    clear(&pair, stream);
}

static void a_side_that_grew_is_zero_where_that_was_asked_for(void **state) {
    (void)state;
    on_each_stream(zero);
}

/* --- adoption --- */

static void adopt(struct gpupool_client *client, int device, void *stream) {
    struct gpupool_pair pair = make_pair(client, device, GPUPOOL_PAIR_ZERO);
    struct gpupool_buffer on_device;
    uint32_t pool;

    MUST(gpupool_device_pool(client, device, &pool));
    MUST(gpupool_acquire(client, pool, SMALL_BYTES, stream, GPUPOOL_FOREVER, 0, &on_device));
    char *host = malloc(SMALL_BYTES); /* neither pinned nor a pool's */
    assert_non_null(host);
    void *const own[] = {host, on_device.data};
    for (unsigned i = 0; i < 2; i++) {
        enum side side = sides[i];
        for (unsigned had = 0; had < 3; had++) { /* nothing, a loan, memory adopted before */
            if (had == 1)
                get(&pair, side, LARGE_BYTES, stream);
            MUST(side == HOST ? gpupool_pair_adopt_host(&pair, own[i], SMALL_BYTES, stream)
                              : gpupool_pair_adopt_device(&pair, own[i], SMALL_BYTES, stream));
            const struct gpupool_pair_side *now = side_of(&pair, side);
            assert_int_equal(now->owner, GPUPOOL_OWNER_USER);
            assert_int_equal(now->capacity_bytes, SMALL_BYTES);
            assert_int_equal(now->size_bytes, SMALL_BYTES);
            assert_null(now->buffer.data);
            assert_ptr_equal(get(&pair, side, SMALL_BYTES, stream), own[i]);
            assert_ptr_equal(get(&pair, side, 1, stream), own[i]);
        }
        fill(&pair, side, SMALL_BYTES, 21 + i);
    }
    MUST(gpupool_trim(client, NULL));
    if (stream != GPUPOOL_NO_STREAM)
        MUST(gpupool_stream_synchronize(client, device, stream));
    /* both are used as any other memory is */
    MUST(gpupool_pair_copy_to_host(&pair, SMALL_BYTES, stream));
    if (stream != GPUPOOL_NO_STREAM)
        MUST(gpupool_stream_synchronize(client, device, stream));
    assert_true(has(&pair, HOST, SMALL_BYTES, 22));
    /* more than it holds: the pool's comes in its place, and it is the caller's again, as it was */
    for (unsigned i = 0; i < 2; i++) {
        get(&pair, sides[i], LARGE_BYTES, stream);
        assert_int_equal(side_of(&pair, sides[i])->owner, GPUPOOL_OWNER_POOL);
        assert_ptr_not_equal(side_of(&pair, sides[i])->data, own[i]);
        if (stream != GPUPOOL_NO_STREAM) /* the zeros come first */
            MUST(gpupool_stream_synchronize(client, device, stream));
        fill(&pair, sides[i], LARGE_BYTES, 7);
    }
    /* and no adoption is let go of by clearing but to the caller */
    struct gpupool_pair other = make_pair(client, device, 0);
    MUST(gpupool_pair_adopt_host(&other, host, SMALL_BYTES, stream));
    MUST(gpupool_pair_adopt_device(&other, on_device.data, SMALL_BYTES, stream));
    assert_true(has(&other, HOST, SMALL_BYTES, 22) && has(&other, ON_DEVICE, SMALL_BYTES, 22));
    clear(&other, stream);
    clear(&pair, stream);
    host[SMALL_BYTES - 1] = 1;
    free(host);
    MUST(gpupool_release(client, &on_device, stream));
}

static void what_is_adopted_is_used_and_never_freed(void **state) {
    (void)state;
    on_each_stream(adopt);
}

static void memory_that_cannot_be_and_a_pairs_own_are_not_adopted(void **state) {
    char memory[16];

    (void)state;
    if (!test_has_device())
        skip();
    struct gpupool_client *client = open_cached();
    struct gpupool_pair pair = make_pair(client, 0, 0);
    char *host = get(&pair, HOST, SMALL_BYTES, NULL);
    char *on_device = get(&pair, ON_DEVICE, SMALL_BYTES, NULL);
    struct gpupool_pair before = pair;
    MUST_BE(gpupool_pair_adopt_host(&pair, memory, UINT64_MAX, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_pair_adopt_host(&pair, host, 16, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_pair_adopt_host(&pair, host - 8, 16, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_pair_adopt_device(&pair, on_device + SMALL_BYTES - 1, 16, NULL), GPUPOOL_E_INVALID);
    /* nor for the other side, from under which it would be lent again when this one grows */
    MUST_BE(gpupool_pair_adopt_device(&pair, host, SMALL_BYTES, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_pair_adopt_host(&pair, on_device + 512, 16, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_pair_adopt_host(NULL, memory, 16, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_pair_adopt_device(NULL, memory, 16, NULL), GPUPOOL_E_INVALID);
    assert_memory_equal(&pair, &before, sizeof pair);
    clear(&pair, NULL);
    close_cached(client);
}

/* --- by elements --- */

struct odd {
    char bytes[24];
};

static void elements_are_counted_and_never_too_few(void **state) {
    static const uint64_t too_many[] = {UINT64_MAX, UINT64_MAX / sizeof(struct odd) + 1, (UINT64_MAX / 8) + 2,
                                        UINT64_C(1) << 63, (UINT64_C(1) << 61) * 3};

    (void)state;
    if (!test_has_device())
        skip();
    struct gpupool_client *client = open_cached();
    struct gpupool_pair pair = make_pair(client, 0, 0);
    struct odd *host = GPUPOOL_PAIR_HOST(&pair, struct odd, 1000, NULL);
    assert_ptr_equal(host, pair.host.data);
    assert_non_null(host);
    assert_int_equal(pair.host.size_bytes, 24000);
    const float *on_device = GPUPOOL_PAIR_DEVICE(&pair, float, 1 << 20, NULL);
    assert_ptr_equal(on_device, pair.on_device.data);
    assert_int_equal(pair.on_device.size_bytes, 4 * MIB);
    struct gpupool_pair before = pair;
    for (unsigned i = 0; i < sizeof too_many / sizeof *too_many; i++) {
        assert_null(GPUPOOL_PAIR_HOST(&pair, struct odd, too_many[i], NULL));
        assert_non_null(strstr(gpupool_error_text(), "elements of 24 bytes"));
        assert_null(GPUPOOL_PAIR_DEVICE(&pair, struct odd, too_many[i], NULL));
        assert_non_null(strstr(gpupool_error_text(), "elements of 24 bytes"));
    }
    /* what can be counted and is in no pool */
    assert_null(GPUPOOL_PAIR_HOST(&pair, struct odd, UINT64_MAX / sizeof(struct odd), NULL));
    assert_null(GPUPOOL_PAIR_DEVICE(&pair, char, UINT64_MAX, NULL));
    assert_non_null(strstr(gpupool_error_text(), "the device side of a pair on device 0"));
    assert_memory_equal(&pair, &before, sizeof pair);
    clear(&pair, NULL);
    assert_null(GPUPOOL_PAIR_HOST(&pair, float, 0, NULL)); /* there is nothing */
    expect_empty(&pair);
    close_cached(client);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_side_gets_larger_when_it_must_and_else_stays_as_it_is),
        cmocka_unit_test(a_pair_that_has_seen_its_bound_asks_nobody_any_more),
        cmocka_unit_test(the_sides_are_copied_when_that_is_asked_for),
        cmocka_unit_test(what_a_side_leaves_is_lent_again_when_the_stream_is_through),
        cmocka_unit_test(a_side_that_grew_can_be_written_on_the_stream_at_once),
        cmocka_unit_test(a_side_that_grew_is_zero_where_that_was_asked_for),
        cmocka_unit_test(what_is_adopted_is_used_and_never_freed),
        cmocka_unit_test(memory_that_cannot_be_and_a_pairs_own_are_not_adopted),
        cmocka_unit_test(elements_are_counted_and_never_too_few),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
