/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that a client's cache does not serve: how many messages they take, and how they are served in a
 * pool at its limit. */

#include "tests/integration/cache_fixture.h"

/* --- messages --- */

/* The messages that a miss costs: the first of each stream heap, in a pool with room, and one that makes it
 * grow. */
static void a_miss_is_one_exchange_where_the_pool_has_room(void **state) {
    static const uint64_t sizes[] = {512, 100 * KIB, 3 * MIB, 12 * MIB};
    struct test_daemon daemon = {0};
    unsigned kinds[2], count = puppet_kinds(kinds);

    (void)state;
    daemon_start(&daemon, &(struct daemon_options){.config = "[device]\nreserve = 64MiB\nlow_water = 0\n"
                                                             "[host]\nreserve = 64MiB\nlow_water = 0\n"});
    for (unsigned i = 0; i < count; i++) {
        const char *name = puppet_kind_name(kinds[i]);
        WAIT_UNTIL(daemon_pool(&daemon, name, 0, "reserved_bytes") == 64 * MIB);
        for (unsigned j = 0; j < sizeof sizes / sizeof *sizes; j++) {
            struct gpupool_client *client = open_client(&daemon, 0, GPUPOOL_FOREVER);
            uint32_t pool = pool_of(client, kinds[i]);
            struct gpupool_buffer buffer;
            uint64_t before = client->session.connection.last_id;

            MUST(gpupool_acquire(client, pool, sizes[j], NULL, GPUPOOL_FOREVER, 0, &buffer));
            assert_int_equal(client->session.connection.last_id - before, 1);
            gpupool_close(client);
        }
    }
    daemon_stop(&daemon);
}

/* Less than an extent should be is there: a part of that is lent, in the same exchange. */
static void a_miss_is_one_exchange_where_little_is_left(void **state) {
    struct test_daemon daemon = {0};
    struct gpupool_buffer most, buffer;

    (void)state;
    if (!test_has_devices(1))
        skip();
    daemon_start(&daemon, &(struct daemon_options){
                              .config = "[device]\nlimit = 64MiB\nreserve = 64MiB\nlow_water = 0\n"});
    WAIT_UNTIL(daemon_pool(&daemon, "device", 0, "reserved_bytes") == 64 * MIB);
    struct gpupool_client *holder = open_client(&daemon, GPUPOOL_OPEN_NO_CACHE, GPUPOOL_FOREVER);
    struct gpupool_client *client = open_client(&daemon, 0, GPUPOOL_FOREVER);
    uint32_t pool = pool_of(client, GPUPOOL_POOL_DEVICE);
    MUST(gpupool_acquire(holder, pool, 64 * MIB - 20 * KIB, NULL, GPUPOOL_FOREVER, 0, &most));
    uint64_t before = client->session.connection.last_id;
    MUST(gpupool_acquire(client, pool, 512, NULL, GPUPOOL_FOREVER, 0, &buffer));
    assert_int_equal(client->session.connection.last_id - before, 1);
    MUST(gpupool_release(holder, &most, NULL));
    gpupool_close(client);
    gpupool_close(holder);
    daemon_stop(&daemon);
}

/* --- the limit --- */

/* Each buffer is larger than the one before, so that none fits where that one was: while the pool has room
 * nothing is closed for it, and what it grew to serves all of it again. */
static void while_the_pool_can_grow_nothing_is_closed(void **state) {
    struct test_daemon daemon = {0};
    struct gpupool_client *client;
    struct gpupool_buffer buffer;
    uint64_t grows = 0;
    void *stream;

    (void)state;
    if (!test_has_device())
        skip();
    daemon_start(&daemon, &(struct daemon_options){.config = "[device]\nstep = 2MiB\nlow_water = 0\n"});
    client = open_client(&daemon, 0, GPUPOOL_FOREVER);
    MUST(gpupool_stream_create(client, 0, &stream));
    for (unsigned pass = 0; pass < 3; pass++) {
        for (uint64_t size = 8 * MIB; size <= 64 * MIB; size += 8 * MIB) {
            buffer = acquire(client, GPUPOOL_POOL_DEVICE, size, stream);
            MUST(puppet_write_pattern(client, &buffer, (unsigned)(size / MIB), stream));
            assert_int_equal(puppet_read_pattern(client, &buffer, (unsigned)(size / MIB), stream), 0);
            MUST(gpupool_release(client, &buffer, stream));
        }
        assert_int_equal(daemon_pool(&daemon, "device", 0, "closes"), 0);
        assert_int_equal(daemon_pool(&daemon, "device", 0, "retires"), 0);
        assert_true(pass == 0 || daemon_pool(&daemon, "device", 0, "grows") == grows);
        grows = daemon_pool(&daemon, "device", 0, "grows");
    }
    MUST(gpupool_trim(client, NULL)); /* as ranges, or as whole segments */
    assert_int_equal(daemon_sum(&daemon, "leased_bytes"), 0);
    if (!test_exports_vmm()) /* such segments are closed, and can go to the driver */
        assert_int_equal(daemon_pool(&daemon, "device", 0, "closes"), 0);
    MUST(gpupool_stream_destroy(client, 0, stream));
    gpupool_close(client);
    daemon_stop(&daemon);
}

static void own_idle_memory_is_given_up_before_exhausted_is_said(void **state) {
    const uint64_t large = 40 * MIB, smaller = 30 * MIB; /* no two of them fit */
    struct gpupool_buffer buffer, held;
    struct gpupool_client *client;
    void *stream;

    (void)state;
    if (!test_has_device())
        skip();
    empty_the_pools();
    client = open_cached_with_stream(&stream);
    uint32_t pool = pool_of(client, GPUPOOL_POOL_DEVICE);
    buffer = acquire(client, GPUPOOL_POOL_DEVICE, large, stream);
    MUST(gpupool_release(client, &buffer, stream));
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), large);
    /* of another stream, in another size, and with no time given: as soon as the GPU is seen to be through
     * with it */
    WAIT_UNTIL(gpupool_acquire(client, pool, smaller, NULL, GPUPOOL_NOW, 0, &held) == 0);
    MUST(puppet_write_pattern(client, &held, 4, NULL));
    MUST_BE(gpupool_acquire(client, pool, large, stream, 20 * NS_PER_MS, 0, &buffer), GPUPOOL_E_EXHAUSTED);
    assert_non_null(strstr(gpupool_error_text(), "64 MiB")); /* the limit */
    WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == smaller);
    assert_int_equal(daemon_sum(&daemon_, "waiters"), 0);
    assert_int_equal(puppet_read_pattern(client, &held, 4, NULL), 0);
    MUST(gpupool_release(client, &held, NULL));
    MUST(gpupool_acquire(client, pool, large, stream, GPUPOOL_FOREVER, 0, &buffer));
    MUST(gpupool_release(client, &buffer, stream));
    MUST(gpupool_trim(client, NULL));
    MUST(gpupool_stream_destroy(client, 0, stream));
    close_cached(client);
}

/* Room beside a large buffer, too little to go back, serves small ones when there is no other. */
static void room_that_is_kept_for_other_sizes_is_used_before_exhausted_is_said(void **state) {
    struct gpupool_buffer large, small[4];
    struct gpupool_client *client;

    (void)state;
    empty_the_pools();
    client = open_cached();
    uint32_t pool = pool_of(client, GPUPOOL_POOL_HOST);
    large = acquire(client, GPUPOOL_POOL_HOST, POOL_MIB * MIB, NULL);
    MUST(gpupool_shrink(client, &large, (POOL_MIB - 1) * MIB, GPUPOOL_NO_STREAM));
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), POOL_MIB * MIB); /* all that there is */
    for (unsigned i = 0; i < 4; i++)
        MUST(gpupool_acquire(client, pool, 200 * KIB, NULL, i % 2 ? GPUPOOL_NOW : GPUPOOL_FOREVER, 0,
                             &small[i]));
    assert_true(stream_heaps_are_valid(client));
    for (unsigned i = 0; i < 4; i++)
        MUST(gpupool_release(client, &small[i], GPUPOOL_NO_STREAM));
    MUST(gpupool_release(client, &large, GPUPOOL_NO_STREAM));
    close_cached(client);
}

static void a_waiting_miss_gets_what_another_process_releases(void **state) {
    const uint64_t large = 40 * MIB;
    struct puppet_command smaller = {.verb = PUPPET_SHRINK, .size = MIB};
    struct gpupool_client *client;
    struct puppet puppet;

    (void)state;
    empty_the_pools();
    puppet_connect(&puppet, &daemon_);
    PUPPET_MUST(&puppet, puppet_acquire(&puppet, 0, GPUPOOL_POOL_HOST, large, GPUPOOL_FOREVER, 0));
    client = open_cached();
    struct gpupool_buffer buffer;
    uint32_t pool = pool_of(client, GPUPOOL_POOL_HOST);
    MUST_BE(gpupool_acquire(client, pool, large, NULL, GPUPOOL_NOW, 0, &buffer), GPUPOOL_E_EXHAUSTED);
    puppet_send(&puppet, &smaller);
    MUST(gpupool_acquire(client, pool, 30 * MIB, NULL, GPUPOOL_FOREVER, 0, &buffer));
    PUPPET_MUST(&puppet, puppet_receive(&puppet));
    MUST(gpupool_release(client, &buffer, NULL));
    puppet_quit(&puppet);
    close_cached(client);
}

static void reclaim(unsigned kind) {
    const uint64_t large = 40 * MIB; /* no two of them fit */
    struct gpupool_client *client;
    struct gpupool_buffer buffer, held;
    struct puppet puppet;

    empty_the_pools();
    puppet_start(&puppet, &daemon_);
    PUPPET_MUST(&puppet, puppet_call(&puppet, &(struct puppet_command){.verb = PUPPET_OPEN, .flags = 0}));
    client = open_cached();
    buffer = acquire(client, kind, large, NULL);
    held = acquire(client, kind, 4 * MIB, NULL);
    MUST(puppet_write_pattern(client, &held, 61, NULL));
    MUST(gpupool_release(client, &buffer, stream_of(kind)));
    /* Each keeps what it released, until the other waits for it. A purger that was asked may get to it late,
     * and give back what was released since then: from then on there may be less. */
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), large + 4 * MIB);
    for (unsigned round = 0; round < 3; round++) {
        PUPPET_MUST(&puppet, puppet_acquire(&puppet, 0, kind, large, GPUPOOL_FOREVER, 0));
        PUPPET_MUST(&puppet, puppet_fill(&puppet, 0, round + 1));
        assert_int_equal(puppet_read_pattern(client, &held, 61, NULL),
                         0); /* memory in use is not given to others */
        PUPPET_MUST(&puppet, puppet_check(&puppet, 0, round + 1));
        PUPPET_MUST(&puppet, puppet_release(&puppet, 0));
        assert_true(daemon_sum(&daemon_, "leased_bytes") <= large + 4 * MIB);
        buffer = acquire(client, kind, large, NULL);
        MUST(gpupool_release(client, &buffer, stream_of(kind)));
    }
    MUST(gpupool_release(client, &held, stream_of(kind)));
    puppet_quit(&puppet);
    close_cached(client);
}

static void idle_memory_of_one_is_had_by_another_that_waits(void **state) {
    (void)state;
    for_each_kind(reclaim);
}

/* A client beside the one that waits. In a pool whose large buffers are made of whole segments that
 * one with a cache waits for no memory in segments of another size (docs/limits.md), so all have one there. */
static void start_other(struct puppet *puppet) {
    if (!test_exports_vmm()) {
        puppet_connect(puppet, &daemon_);
        return;
    }
    puppet_start(puppet, &daemon_);
    PUPPET_MUST(puppet, puppet_call(puppet, &(struct puppet_command){.verb = PUPPET_OPEN, .flags = 0}));
}

/* However long it waits, and whatever goes back meanwhile: it asks once. */
static void keep_place(unsigned kind, unsigned flags) {
    const uint64_t large = 40 * MIB; /* no two of them fit */
    struct puppet holder, first, second, clock;

    empty_the_pools();
    start_other(&holder);
    start_other(&second);
    start_other(&clock);
    puppet_start(&first, &daemon_);
    PUPPET_MUST(&first, puppet_call(&first, &(struct puppet_command){.verb = PUPPET_OPEN, .flags = flags}));
    PUPPET_MUST(&holder, puppet_acquire(&holder, 0, kind, large, GPUPOOL_FOREVER, 0));
    /* While a segment is made ahead of demand, or goes back to the driver, a request waits for that first.
     * Then it asks once more, and its place is the one of that time. */
    WAIT_UNTIL(daemon_sum(&daemon_, "growing_bytes") == 0 &&
               daemon_sum(&daemon_, "reserved_bytes") ==
                   daemon_sum(&daemon_, "leased_bytes") + daemon_sum(&daemon_, "free_bytes"));
    puppet_send_acquire(&first, 0, kind, large, GPUPOOL_FOREVER);
    WAIT_UNTIL(daemon_sum(&daemon_, "waiters") == 1);
    puppet_send_acquire(&second, 0, kind, large, GPUPOOL_FOREVER);
    WAIT_UNTIL(daemon_sum(&daemon_, "waiters") == 2);
    PUPPET_MUST_BE(&clock, puppet_acquire(&clock, 0, kind, large, 150 * NS_PER_MS, 0), GPUPOOL_E_EXHAUSTED);
    PUPPET_MUST(&holder, puppet_release(&holder, 0));
    PUPPET_MUST(&first, puppet_receive(&first));
    assert_false(puppet_has_answered(&second));
    puppet_quit(&first);
    PUPPET_MUST(&second, puppet_receive(&second));
    puppet_quit(&second);
    puppet_quit(&clock);
    puppet_quit(&holder);
}

static void who_waits_keeps_its_place_in_line(void **state) {
    unsigned kinds[2], count = puppet_kinds(kinds);

    (void)state;
    for (unsigned i = 0; i < 2 * count; i++) /* the purger gives way, or who waits does */
        keep_place(kinds[i / 2], i % 2 == 0 ? 0 : GPUPOOL_OPEN_NO_THREAD);
}

/* In segments each of which is too small: unused memory goes back to where it came from. */
static void idle_segments(unsigned kind) {
    enum {
        COUNT = POOL_MIB / 8
    };
    struct gpupool_buffer buffers[COUNT];
    struct gpupool_client *client;
    struct puppet puppet;

    empty_the_pools();
    puppet_start(&puppet, &daemon_);
    PUPPET_MUST(&puppet, puppet_call(&puppet, &(struct puppet_command){.verb = PUPPET_OPEN, .flags = 0}));
    client = open_cached();
    for (unsigned round = 0; round < 2; round++) {
        for (unsigned i = 0; i < COUNT; i++)
            buffers[i] = acquire(client, kind, 8 * MIB, NULL);
        for (unsigned i = 0; i < COUNT; i++)
            MUST(gpupool_release(client, &buffers[i], stream_of(kind)));
        PUPPET_MUST(&puppet, puppet_acquire(&puppet, 0, kind, (POOL_MIB - 8) * MIB, TEST_WAIT_NS / 4, 0));
        PUPPET_MUST(&puppet, puppet_fill(&puppet, 0, round + 1));
        PUPPET_MUST(&puppet, puppet_check(&puppet, 0, round + 1));
        PUPPET_MUST(&puppet, puppet_release(&puppet, 0));
    }
    puppet_quit(&puppet);
    close_cached(client);
}

static void idle_segments_of_one_make_room_for_another_that_waits(void **state) {
    (void)state;
    for_each_kind(idle_segments);
}

/* More than one message names. */
static void any_number_of_idle_segments_is_closed(void **state) {
    enum {
        COUNT = 150,
        SIZE_MIB = 10 /* of which each has a segment to itself */
    };
    static const char *const arguments[] = {"--sim-memory", "3GiB", NULL};
    struct gpupool_buffer buffers[COUNT], large;
    struct test_daemon daemon = {0};
    struct gpupool_client *client;
    void *stream;

    (void)state;
    if (!test_has_device())
        skip();
    daemon_start(&daemon, &(struct daemon_options){.config = "[device]\nlimit = 2GiB\nlow_water = 0\n",
                                                   .arguments = test_is_simulated() ? arguments : NULL});
    client = open_client(&daemon, 0, GPUPOOL_FOREVER);
    MUST(gpupool_stream_create(client, 0, &stream));
    for (unsigned i = 0; i < COUNT; i++)
        buffers[i] = acquire(client, GPUPOOL_POOL_DEVICE, SIZE_MIB * MIB, stream);
    /* Segments of descriptors hold more than one, and none is closed. */
    assert_true(test_exports_vmm() || daemon_pool(&daemon, "device", 0, "segments") > 2 * PROTO_CLOSE_MAX);
    for (unsigned i = 0; i < COUNT; i++)
        MUST(gpupool_release(client, &buffers[i], stream));
    MUST(gpupool_acquire(client, pool_of(client, GPUPOOL_POOL_DEVICE), 2040 * MIB, stream, TEST_WAIT_NS / 4,
                         0, &large));
    MUST(gpupool_release(client, &large, stream));
    MUST(gpupool_trim(client, NULL));
    MUST(gpupool_stream_destroy(client, 0, stream));
    gpupool_close(client);
    daemon_stop(&daemon);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_miss_is_one_exchange_where_the_pool_has_room),
        cmocka_unit_test(a_miss_is_one_exchange_where_little_is_left),
        cmocka_unit_test(while_the_pool_can_grow_nothing_is_closed),
        cmocka_unit_test(own_idle_memory_is_given_up_before_exhausted_is_said),
        cmocka_unit_test(room_that_is_kept_for_other_sizes_is_used_before_exhausted_is_said),
        cmocka_unit_test(a_waiting_miss_gets_what_another_process_releases),
        cmocka_unit_test(idle_memory_of_one_is_had_by_another_that_waits),
        cmocka_unit_test(who_waits_keeps_its_place_in_line),
        cmocka_unit_test(idle_segments_of_one_make_room_for_another_that_waits),
        cmocka_unit_test(any_number_of_idle_segments_is_closed),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
