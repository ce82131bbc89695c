/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Large buffers on pools of descriptors lie in few segments, which serve other sizes when they are free, and
 * go back to the driver. The daemon's pool is large; the simulated GPU makes memory when it is touched.
 */
#include "gpu/sim/sim.h"
#include "tests/integration/cache_fixture.h"
#include "tests/integration/gate.h"

#define LIMIT  (16 * GIB)
#define STRIPE 4096u /* that is written in each place which is looked at */

static struct test_daemon large_daemon;

static int start_large(void **state) {
    static const char *const arguments[] = {"--sim-memory", "20GiB", NULL};

    (void)state;
    daemon_start(&large_daemon, &(struct daemon_options){.config = "[device]\nexport = vmm\nlimit = 16GiB\n",
                                                         .sim_gpus = 1,
                                                         .arguments = arguments});
    return 0;
}

static int stop_large(void **state) {
    (void)state;
    daemon_stop(&large_daemon);
    return 0;
}

static uint64_t number(const char *member) {
    return daemon_pool(&large_daemon, "device", 0, member);
}

static struct gpupool_client *open_with_stream(void **ret_stream) {
    struct gpupool_client *client = open_client(&large_daemon, 0, GPUPOOL_FOREVER);
    MUST(gpupool_stream_create(client, 0, ret_stream));
    return client;
}

static void release(struct gpupool_client *client, struct gpupool_buffer *buffer, void *stream) {
    MUST(gpupool_release(client, buffer, stream));
    assert_true(stream_heaps_are_valid(client));
}

static void end(struct gpupool_client *client, void *stream) {
    MUST(gpupool_stream_synchronize(client, 0, stream));
    MUST(gpupool_trim(client, NULL));
    assert_true(stream_heaps_are_valid(client));
    MUST(gpupool_stream_destroy(client, 0, stream));
    gpupool_close(client);
    cJSON_Delete(daemon_ask(&large_daemon, "{\"command\":\"trim\"}"));
    WAIT_UNTIL(number("reserved_bytes") == 0);
}

/* The beginning, the end and the borders of segments. */
static void write_marks(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream,
                        int byte) {
    for (uint64_t at = 0; at + STRIPE <= buffer->size_bytes; at += 128 * MIB)
        MUST(gpupool_set(client, 0, (char *)buffer->data + at, byte, STRIPE, stream));
    MUST(gpupool_set(client, 0, (char *)buffer->data + buffer->size_bytes - STRIPE, byte, STRIPE, stream));
}

static void expect_marks(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream,
                         int byte) {
    static uint8_t found[STRIPE];
    uint64_t at = 0;

    for (bool is_last = false; !is_last; at += 128 * MIB) {
        is_last = at + STRIPE > buffer->size_bytes - STRIPE;
        uint64_t from = is_last ? buffer->size_bytes - STRIPE : at;
        MUST(gpupool_copy(client, 0, found, (char *)buffer->data + from, STRIPE, stream));
        MUST(gpupool_stream_synchronize(client, 0, stream));
        for (unsigned i = 0; i < STRIPE; i++)
            assert_int_equal(found[i], byte);
    }
}

static void a_large_buffer_lies_in_few_segments_and_is_attached_by_them(void **state) {
    struct gpupool_buffer weights, attached;
    struct gpupool_token token;
    void *stream, *other_stream;

    (void)state;
    struct gpupool_client *client = open_with_stream(&stream), *other = open_with_stream(&other_stream);
    MUST(gpupool_acquire(client, pool_of(client, GPUPOOL_POOL_DEVICE), 8 * GIB, stream, GPUPOOL_FOREVER, 0,
                         &weights));
    assert_int_equal(number("segments"), 16);
    assert_int_equal(number("reserved_bytes"), 8 * GIB);
    write_marks(client, &weights, stream, 7);
    MUST(gpupool_share(client, &weights, stream, &token));
    MUST(gpupool_attach(other, &token, other_stream, 0, &attached));
    expect_marks(other, &attached, other_stream, 7);
    write_marks(other, &attached, other_stream, 9);
    MUST(gpupool_stream_synchronize(other, 0, other_stream));
    expect_marks(client, &weights, stream, 9);
    release(other, &attached, other_stream);
    release(client, &weights, stream);
    MUST(gpupool_stream_synchronize(client, 0, stream));
    MUST(gpupool_stream_synchronize(other, 0, other_stream));
    /* The next one is made of the same segments, though nothing of them stayed with the process. */
    MUST(gpupool_acquire(client, pool_of(client, GPUPOOL_POOL_DEVICE), 8 * GIB, stream, GPUPOOL_FOREVER, 0,
                         &weights));
    assert_int_equal(number("segments"), 16);
    expect_marks(client, &weights, stream, 9);
    release(client, &weights, stream);
    MUST(gpupool_stream_synchronize(other, 0, other_stream));
    MUST(gpupool_trim(other, NULL));
    MUST(gpupool_stream_destroy(other, 0, other_stream));
    gpupool_close(other);
    end(client, stream);
}

static void the_rest_of_a_large_buffer_is_less_than_a_small_segment(void **state) {
    static const struct {
        uint64_t size_mib, segments, reserved_mib;
    } buffers[] = {{255, 16, 256}, {256, 1, 256},    {300, 4, 304},
                   {512, 1, 512},  {1000, 17, 1008}, {8200, 17, 8208}};

    (void)state;
    for (unsigned i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        struct gpupool_buffer buffer;
        void *stream;
        struct gpupool_client *client = open_with_stream(&stream);
        MUST(gpupool_acquire(client, pool_of(client, GPUPOOL_POOL_DEVICE), buffers[i].size_mib * MIB, stream,
                             GPUPOOL_FOREVER, 0, &buffer));
        assert_int_equal(number("segments"), buffers[i].segments);
        assert_int_equal(number("reserved_bytes"), buffers[i].reserved_mib * MIB);
        write_marks(client, &buffer, stream, (int)i);
        expect_marks(client, &buffer, stream, (int)i);
        release(client, &buffer, stream);
        end(client, stream);
    }
}

/* Its memory serves smaller buffers, and moves into larger ones. Sizes that come and go add nothing. */
static void what_is_free_of_large_segments_serves_other_sizes(void **state) {
    static const uint64_t sizes_mib[] = {300, 280, 520, 400, 600, 610, 620, 264, 600};
    struct gpupool_buffer buffer, small[8];
    void *stream;

    (void)state;
    struct gpupool_client *client = open_with_stream(&stream);
    uint32_t pool = pool_of(client, GPUPOOL_POOL_DEVICE);
    MUST(gpupool_acquire(client, pool, 600 * MIB, stream, GPUPOOL_FOREVER, 0, &buffer));
    release(client, &buffer, stream);
    for (unsigned i = 0; i < 8; i++)
        MUST(gpupool_acquire(client, pool, 64 * MIB, stream, GPUPOOL_FOREVER, 0, &small[i]));
    assert_int_equal(number("reserved_bytes"), 608 * MIB);
    for (unsigned i = 0; i < 8; i++)
        release(client, &small[i], stream);
    for (unsigned i = 0; i < sizeof sizes_mib / sizeof *sizes_mib; i++) {
        MUST(gpupool_acquire(client, pool, sizes_mib[i] * MIB, stream, GPUPOOL_FOREVER, 0, &buffer));
        write_marks(client, &buffer, stream, (int)i);
        expect_marks(client, &buffer, stream, (int)i);
        release(client, &buffer, stream);
    }
    assert_int_equal(number("reserved_bytes"), 624 * MIB);
    end(client, stream);
}

/* A cache that grows by a copy: the old one is free when the new one is there. */
static void a_cache_that_grows_needs_no_more_than_both_copies(void **state) {
    struct gpupool_buffer old, new;
    void *stream;

    (void)state;
    struct gpupool_client *client = open_with_stream(&stream);
    uint32_t pool = pool_of(client, GPUPOOL_POOL_DEVICE);
    uint64_t size = 200 * MIB;
    MUST(gpupool_acquire(client, pool, size, stream, GPUPOOL_FOREVER, 0, &old));
    write_marks(client, &old, stream, 1);
    for (; size < 1400 * MIB; size += 37 * MIB) {
        MUST(gpupool_acquire(client, pool, size, stream, GPUPOOL_FOREVER, 0, &new));
        MUST(gpupool_copy(client, 0, new.data, old.data, STRIPE, stream));
        release(client, &old, stream);
        old = new;
        assert_true(number("reserved_bytes") <= 2 * size + 32 * MIB);
    }
    release(client, &old, stream);
    end(client, stream);
}

/* Where the pool has no room for large segments, small ones serve. */
static void a_pool_that_is_nearly_full_serves_large_buffers_by_small_segments(void **state) {
    struct gpupool_buffer most, buffer;
    void *stream;

    (void)state;
    struct gpupool_client *client = open_with_stream(&stream);
    uint32_t pool = pool_of(client, GPUPOOL_POOL_DEVICE);
    MUST(gpupool_acquire(client, pool, LIMIT - 600 * MIB, stream, GPUPOOL_FOREVER, 0, &most));
    MUST(gpupool_acquire(client, pool, 590 * MIB, stream, GPUPOOL_NOW + NS_PER_S, 0, &buffer));
    write_marks(client, &buffer, stream, 3);
    expect_marks(client, &buffer, stream, 3);
    assert_true(number("reserved_bytes") <= LIMIT);
    release(client, &buffer, stream);
    release(client, &most, stream);
    end(client, stream);
}

/* Idle large segments of a process that ended make room for small ones, and the other way round. */
static void idle_segments_give_way_to_those_of_another_size(void **state) {
    struct gpupool_buffer buffer, small[16];
    void *stream;

    (void)state;
    for (unsigned round = 0; round < 2; round++) {
        struct gpupool_client *client = open_with_stream(&stream);
        MUST(gpupool_acquire(client, pool_of(client, GPUPOOL_POOL_DEVICE), 2 * GIB, stream, GPUPOOL_FOREVER,
                             0, &buffer));
        gpupool_close(client);
        WAIT_UNTIL(daemon_sum(&large_daemon, "leases") == 0);
        assert_int_equal(number("segments"), 4);
        client = open_with_stream(&stream);
        for (unsigned i = 0; i < 16; i++)
            MUST(gpupool_acquire(client, pool_of(client, GPUPOOL_POOL_DEVICE), 128 * MIB, stream,
                                 GPUPOOL_FOREVER, 0, &small[i]));
        assert_int_equal(number("reserved_bytes"), 2 * GIB);
        gpupool_close(client);
        WAIT_UNTIL(daemon_sum(&large_daemon, "leases") == 0);
    }
    cJSON_Delete(daemon_ask(&large_daemon, "{\"command\":\"trim\"}"));
    WAIT_UNTIL(number("reserved_bytes") == 0);
}

/* Large segments that a process keeps idle are closed and go to the driver for a request of another one. */
static void idle_large_segments_of_another_process_make_room(void **state) {
    struct gpupool_buffer large, buffers[12];
    void *stream, *other_stream;

    (void)state;
    struct gpupool_client *client = open_with_stream(&stream), *other = open_with_stream(&other_stream);
    MUST(gpupool_acquire(client, pool_of(client, GPUPOOL_POOL_DEVICE), 12 * GIB, stream, GPUPOOL_FOREVER, 0,
                         &large));
    release(client, &large, stream);
    for (unsigned i = 0; i < 12; i++)
        MUST(gpupool_acquire(other, pool_of(other, GPUPOOL_POOL_DEVICE), GIB, other_stream, GPUPOOL_FOREVER,
                             0, &buffers[i]));
    assert_true(number("reserved_bytes") <= LIMIT);
    assert_true(number("closes") > 0);
    for (unsigned i = 0; i < 12; i++)
        release(other, &buffers[i], other_stream);
    MUST(gpupool_stream_synchronize(other, 0, other_stream));
    MUST(gpupool_trim(other, NULL));
    MUST(gpupool_stream_destroy(other, 0, other_stream));
    gpupool_close(other);
    end(client, stream);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_large_buffer_lies_in_few_segments_and_is_attached_by_them),
        cmocka_unit_test(the_rest_of_a_large_buffer_is_less_than_a_small_segment),
        cmocka_unit_test(what_is_free_of_large_segments_serves_other_sizes),
        cmocka_unit_test(a_cache_that_grows_needs_no_more_than_both_copies),
        cmocka_unit_test(a_pool_that_is_nearly_full_serves_large_buffers_by_small_segments),
        cmocka_unit_test(idle_segments_give_way_to_those_of_another_size),
        cmocka_unit_test(idle_large_segments_of_another_process_make_room),
    };

    (void)argc;
    (void)argv;
    setenv("GPUPOOL_SIM_LATENCY", "0", 1);
    return test_finish(cmocka_run_group_tests_name("large buffers", tests, start_large, stop_large));
}
