/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pair's sides one by one, and blocks that go back while any stream of the device may use them
 * (GPUPOOL_PAIR_ALL_STREAMS, which C++ programs mean that leave the stream out).
 */
#include "tests/integration/pair_fixture.h" /* says how many GPUs there are, before */

#include "tests/integration/gate.h"

static int clear_side(struct gpupool_pair *pair, enum side side, void *stream) {
    return side == HOST ? gpupool_pair_clear_host(pair, stream) : gpupool_pair_clear_device(pair, stream);
}

static int adopt(struct gpupool_pair *pair, enum side side, void *memory, uint64_t size_bytes, void *stream) {
    return side == HOST ? gpupool_pair_adopt_host(pair, memory, size_bytes, stream)
                        : gpupool_pair_adopt_device(pair, memory, size_bytes, stream);
}

static void expect_side_empty(struct gpupool_pair *pair, enum side side) {
    const struct gpupool_pair_side none = {0};
    assert_memory_equal(side_of(pair, side), &none, sizeof none);
}

/* --- one side alone --- */

/* The ways to empty a side. */
enum emptying {
    CLEAR,
    ADOPT_NULL,
    ADOPT_NO_BYTES,
    EMPTYINGS
};

static void empty(struct gpupool_pair *pair, enum side side, enum emptying way, void *stream) {
    static char other[16];

    MUST(way == CLEAR        ? clear_side(pair, side, stream)
         : way == ADOPT_NULL ? adopt(pair, side, NULL, 16, stream)
                             : adopt(pair, side, other, 0, stream));
    expect_side_empty(pair, side);
}

static void one_side_is_emptied_and_the_other_stays(void **state) {
    (void)state;
    if (!test_has_device())
        skip();
    for (enum emptying way = CLEAR; way < EMPTYINGS; way++)
        for (unsigned i = 0; i < 2; i++) {
            /* Without a cache the daemon sees each block go back. */
            struct gpupool_client *client = open_client(&daemon_, GPUPOOL_OPEN_NO_CACHE, 0);
            struct gpupool_pair pair = make_pair(client, 0, 0);
            enum side side = sides[i], other = sides[1 - i];
            void *stream;

            MUST(gpupool_stream_create(client, 0, &stream));
            get(&pair, other, SMALL_BYTES, stream);
            fill(&pair, other, SMALL_BYTES, 31);
            uint64_t before_bytes = leased();
            struct gpupool_pair_side kept = *side_of(&pair, other);
            get(&pair, side, LARGE_BYTES, stream);
            assert_true(leased() > before_bytes);
            empty(&pair, side, way, stream);
            WAIT_UNTIL(leased() == before_bytes);
            empty(&pair, side, way, stream); /* which is nothing to do */
            assert_memory_equal(side_of(&pair, other), &kept, sizeof kept);
            assert_true(has(&pair, other, SMALL_BYTES, 31));
            get(&pair, side, SMALL_BYTES, stream); /* and it can be used again */
            clear(&pair, stream);
            MUST(gpupool_stream_destroy(client, 0, stream));
            close_cached(client);
        }
}

static void an_adopted_side_is_emptied_and_its_memory_stays_the_callers(void **state) {
    (void)state;
    if (!test_has_device())
        skip();
    struct gpupool_client *client = open_cached();
    struct gpupool_pair pair = make_pair(client, 0, 0);
    struct gpupool_buffer on_device = acquire(client, GPUPOOL_POOL_DEVICE, SMALL_BYTES, NULL);
    char *host = malloc(SMALL_BYTES);

    assert_non_null(host);
    for (enum emptying way = CLEAR; way < EMPTYINGS; way++) {
        MUST(adopt(&pair, HOST, host, SMALL_BYTES, NULL));
        MUST(adopt(&pair, ON_DEVICE, on_device.data, SMALL_BYTES, NULL));
        fill(&pair, HOST, SMALL_BYTES, 41);
        fill(&pair, ON_DEVICE, SMALL_BYTES, 42);
        for (unsigned i = 0; i < 2; i++)
            empty(&pair, sides[i], way, NULL);
        MUST(adopt(&pair, HOST, host, SMALL_BYTES, NULL));
        MUST(adopt(&pair, ON_DEVICE, on_device.data, SMALL_BYTES, NULL));
        assert_true(has(&pair, HOST, SMALL_BYTES, 41) && has(&pair, ON_DEVICE, SMALL_BYTES, 42));
        clear(&pair, NULL);
    }
    free(host);
    MUST(gpupool_release(client, &on_device, NULL));
    MUST_BE(gpupool_pair_clear_host(NULL, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_pair_clear_device(NULL, NULL), GPUPOOL_E_INVALID);
    close_cached(client);
}

/* --- all streams --- */

/* The ways in which a side's block goes back. */
enum leaving {
    BY_GROWTH,
    BY_ADOPTION,
    BY_CLEARING_THE_SIDE,
    BY_CLEARING,
    BY_ADOPTING_NULL,
    LEAVINGS
};

static void leave(struct gpupool_pair *pair, enum side side, enum leaving way, void *stream) {
    static char own_memory[4096];
    void *memory;

    switch (way) {
    case BY_GROWTH:
        MUST(ask(pair, side, LARGE_BYTES, &memory, stream));
        break;
    case BY_ADOPTION:
        MUST(adopt(pair, side, own_memory, sizeof own_memory, stream));
        break;
    case BY_CLEARING_THE_SIDE:
        MUST(clear_side(pair, side, stream));
        break;
    case BY_CLEARING:
        MUST(gpupool_pair_clear(pair, stream));
        break;
    default:
        MUST(adopt(pair, side, NULL, 0, stream));
        break;
    }
}

#define OWNERS 64u

/* Those who get memory of the old block's size next. They write it. Returns whether one has the old block. */
static bool owners_begin(struct gpupool_client *client, uint32_t pool, const void *old, void *stream,
                         struct gpupool_buffer owners[static OWNERS]) {
    bool met = false;

    for (unsigned i = 0; i < OWNERS; i++) {
        MUST(gpupool_acquire(client, pool, 4096, GPUPOOL_NO_STREAM, GPUPOOL_FOREVER, 0, &owners[i]));
        MUST(puppet_write_pattern(client, &owners[i], i, stream));
        met = met || owners[i].data == old;
    }
    return met;
}

/* Whether each finds what it wrote. */
static bool owners_end(struct gpupool_client *client, struct gpupool_buffer owners[static OWNERS],
                       void *stream) {
    bool intact = true;

    for (unsigned i = 0; i < OWNERS; i++) {
        intact = puppet_read_pattern(client, &owners[i], i, stream) == 0 && intact;
        MUST(gpupool_release(client, &owners[i], GPUPOOL_NO_STREAM));
    }
    return intact;
}

/* A created stream still writes the block that a side leaves, and the call that makes it leave names no
 * stream. */
static void leave_under_a_writer(struct gpupool_client *client, enum side side, enum leaving way) {
    struct gpupool_pair pair = make_pair(client, 0, 0);
    struct gpupool_buffer owners[OWNERS];
    struct gate gate;
    pthread_t opener;
    void *other;

    gate_init(&gate, client);
    MUST(gpupool_stream_create(client, 0, &other));
    /* The memory that will be needed is mapped before: the driver may wait for a stream when it maps. */
    get(&pair, side, LARGE_BYTES, GPUPOOL_PAIR_ALL_STREAMS);
    clear(&pair, GPUPOOL_PAIR_ALL_STREAMS);
    void *old = get(&pair, side, 4096, GPUPOOL_PAIR_ALL_STREAMS);
    uint32_t pool = side_of(&pair, side)->buffer.pool;
    owners_begin(client, pool, NULL, other, owners);
    assert_true(owners_end(client, owners, other));

    gate_close(&gate);
    MUST(gpupool_set(client, 0, old, 0x77, 4096, gate.stream));
    /* An access that gives nothing back does not wait: the gate is closed. */
    assert_ptr_equal(get(&pair, side, 4096, GPUPOOL_PAIR_ALL_STREAMS), old);
    get(&pair, side == HOST ? ON_DEVICE : HOST, 4096, GPUPOOL_PAIR_ALL_STREAMS);
    assert_false(gate_was_passed(&gate));
    assert_int_equal(pthread_create(&opener, NULL, gate_open_late, &gate), 0);
    leave(&pair, side, way, GPUPOOL_PAIR_ALL_STREAMS);
    bool waited = gate_was_passed(&gate);
    bool met = owners_begin(client, pool, old, other, owners);
    TEST_JOIN(opener, NULL);
    MUST(gpupool_stream_synchronize(client, 0, gate.stream));
    assert_true(owners_end(client, owners, other));
    assert_true(met); /* or it would have shown nothing */
    assert_true(waited);
    clear(&pair, GPUPOOL_PAIR_ALL_STREAMS);
    MUST(gpupool_trim(client, NULL));
    MUST(gpupool_stream_destroy(client, 0, other));
    gate_deinit(&gate);
}

static void without_a_stream_the_next_owner_finds_what_it_wrote(void **state) {
    (void)state;
    if (!test_has_device())
        skip();
    for (enum leaving way = BY_GROWTH; way < LEAVINGS; way++)
        for (unsigned i = 0; i < 2; i++) {
            struct gpupool_client *client = open_cached();
            leave_under_a_writer(client, sides[i], way);
            close_cached(client);
        }
}

/* There is no stream on which the zeros would come before the next use. */
static void without_a_stream_a_side_that_grew_is_zero_on_return(void **state) {
    struct gate gate;

    (void)state;
    if (!test_has_device())
        skip();
    struct gpupool_client *client = open_cached();
    gate_init(&gate, client);
    struct gpupool_pair pair = make_pair(client, 0, GPUPOOL_PAIR_ZERO);
    for (unsigned round = 0; round < 3; round++)
        for (unsigned i = 0; i < 2; i++) {
            const struct gpupool_pair_side *own = side_of(&pair, sides[i]);
            get(&pair, sides[i], (round + 1) * SMALL_BYTES, GPUPOOL_PAIR_ALL_STREAMS);
            struct gpupool_buffer buffer = as_buffer(&pair, sides[i], own->capacity_bytes);
            assert_int_equal(puppet_read_pattern(client, &buffer, 0, gate.stream), 0);
            fill(&pair, sides[i], own->capacity_bytes, 55);
        }
    clear(&pair, GPUPOOL_PAIR_ALL_STREAMS);
    gate_deinit(&gate);
    close_cached(client);
}

/* To wait for a device is forbidden while a stream there is captured. */
static void without_a_stream_nothing_goes_back_during_a_capture(void **state) {
    unsigned operations;
    char memory[16];
    void *captured, *found;

    (void)state;
    if (!test_has_device() || !test_is_simulated())
        skip();
    struct gpupool_client *client = open_cached();
    struct gpupool_pair pair = make_pair(client, 0, 0);
    MUST(gpupool_stream_create(client, 0, &captured));
    for (unsigned i = 0; i < 2; i++)
        get(&pair, sides[i], SMALL_BYTES, captured);
    struct gpupool_pair before = pair;
    for (unsigned i = 0; i < 2; i++)
        for (unsigned what = 0; what < 4; what++) {
            assert_int_equal(gpu_sim_capture_begin(0, captured), 0);
            get(&pair, sides[i], SMALL_BYTES, GPUPOOL_PAIR_ALL_STREAMS); /* what is there can be used */
            MUST_BE(what == 0   ? ask(&pair, sides[i], LARGE_BYTES, &found, GPUPOOL_PAIR_ALL_STREAMS)
                    : what == 1 ? adopt(&pair, sides[i], memory, sizeof memory, GPUPOOL_PAIR_ALL_STREAMS)
                    : what == 2 ? clear_side(&pair, sides[i], GPUPOOL_PAIR_ALL_STREAMS)
                                : gpupool_pair_clear(&pair, GPUPOOL_PAIR_ALL_STREAMS),
                    GPUPOOL_E_CAPTURING);
            assert_memory_equal(&pair, &before, sizeof pair);
            gpu_sim_capture_end(0, captured, &operations); /* the capture is spoilt */
        }
    clear(&pair, GPUPOOL_PAIR_ALL_STREAMS);
    MUST(gpupool_stream_destroy(client, 0, captured));
    close_cached(client);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_side_is_emptied_and_the_other_stays),
        cmocka_unit_test(an_adopted_side_is_emptied_and_its_memory_stays_the_callers),
        cmocka_unit_test(without_a_stream_the_next_owner_finds_what_it_wrote),
        cmocka_unit_test(without_a_stream_a_side_that_grew_is_zero_on_return),
        cmocka_unit_test(without_a_stream_nothing_goes_back_during_a_capture),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
