/* SPDX-License-Identifier: Apache-2.0 */
/* Readers of a name that sleep, and that change their generation, at the addresses where they have it. */
#include "tests/integration/sleep_names_fixture.h"

#define LARGE_BYTES (20 * MIB)

/* --- generations --- */

/* A reader without a sleep between two generations; others have the former one all the time. */
static void a_reader_has_the_next_generation_at_its_addresses(void **state) {
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *publisher = sleep_open(&daemon, 0);
    for (unsigned kind = 0; kind < CLIENT_KINDS; kind++) {
        struct gpupool_client *client = sleep_open(&daemon, client_kinds[kind]);
        uint64_t generation = publish_seed(publisher, 1, 0);
        struct gpupool_name *name = open_set(client, 0), *other = open_set(client, 0);
        const struct places places = places_of(name), others = places_of(other);
        assert_ptr_not_equal(places.data[0], others.data[0]); /* each has its own */
        for (uint64_t seed = 2; seed < 6; seed++) {
            MUST_BE(gpupool_wake_name(client, name, generation + 1, NULL, GPUPOOL_NOW), GPUPOOL_E_NO_NAME);
            MUST(gpupool_wake_name(client, name, generation, NULL, GPUPOOL_NOW));
            MUST(gpupool_wake_name(client, name, 0, NULL, GPUPOOL_NOW));
            expect_awake(client, name, &places, seed - 1);
            const struct gpupool_buffer before = gpupool_name_buffers(name, NULL)[0];
            generation = publish_seed(publisher, seed, GPUPOOL_NAME_SAME_LAYOUT);
            MUST(gpupool_wake_name(client, name, 0, NULL, GPUPOOL_NOW)); /* its generation is new enough */
            expect_awake(client, name, &places, seed - 1);
            MUST(gpupool_wake_name(client, name, generation, seed % 2 == 0 ? NULL : GPUPOOL_NO_STREAM,
                                   GPUPOOL_NOW));
            expect_awake(client, name, &places, seed);
            expect_awake(client, other, &others, 1);
            const struct gpupool_buffer *after = gpupool_name_buffers(name, NULL);
            assert_int_equal(gpupool_name_generation(name), generation);
            assert_int_equal(gpupool_name_flags(name), 0);
            assert_int_equal(after->size_bytes, before.size_bytes);
            assert_int_equal(after->capacity_bytes, before.capacity_bytes);
            assert_true(after->lease != before.lease || after->generation != before.generation);
            /* The present generation, and the one of the other reader. */
            WAIT_UNTIL(leased_on_device(&daemon) == 2 * SET_ROOM);
        }
        MUST(gpupool_close_name(client, name, NULL));
        MUST(gpupool_close_name(client, other, NULL));
        WAIT_UNTIL(gpupool_trim(client, NULL) == 0 && !is_readable(places.data[0]) &&
                   !is_readable(others.data[0]));
        gpupool_close(client);
        MUST(gpupool_unpublish(publisher, NAME, 0));
    }
    gpupool_close(publisher);
    sleep_stop(&daemon);
}

static void a_name_that_sleeps_has_no_memory(void **state) {
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *publisher = sleep_open(&daemon, 0);
    for (unsigned kind = 0; kind < CLIENT_KINDS; kind++) {
        struct gpupool_client *client = sleep_open(&daemon, client_kinds[kind]);
        uint64_t generation = publish_seed(publisher, 1, 0);
        struct gpupool_name *name = open_set(client, 0);
        const struct places places = places_of(name);
        for (unsigned round = 0; round < 3; round++) {
            WAIT_UNTIL(daemon_sum(&daemon, "leases") == SET); /* the publisher has released its own */
            MUST(gpupool_sleep_name(client, name, round == 1 ? GPUPOOL_NO_STREAM : NULL));
            expect_asleep(name, &places);
            assert_int_equal(daemon_sum(&daemon, "leases"), 0); /* the name's own are no session's */
            MUST(gpupool_sleep_name(client, name, NULL));
            MUST(gpupool_wake_name(client, name, round == 2 ? generation : 0, NULL, GPUPOOL_NOW));
            expect_awake(client, name, &places, 1);
            assert_int_equal(gpupool_name_generation(name), generation);
        }
        MUST(gpupool_sleep_name(client, name, NULL));
        MUST(gpupool_unpublish(publisher, NAME, 0));
        WAIT_UNTIL(leased_on_device(&daemon) == 0);
        MUST_BE(gpupool_wake_name(client, name, 0, NULL, GPUPOOL_NOW), GPUPOOL_E_NO_NAME);
        expect_asleep(name, &places);
        publish_seed(publisher, 2, 0);
        MUST(gpupool_wake_name(client, name, generation + 1, NULL, GPUPOOL_NOW));
        expect_awake(client, name, &places, 2);
        MUST(gpupool_close_name(client, name, NULL));
        gpupool_close(client);
        MUST(gpupool_unpublish(publisher, NAME, 0));
    }
    gpupool_close(publisher);
    sleep_stop(&daemon);
}

/* Memory that no process has any more is the pool's: no reader that sleeps keeps it from another shape. */
static void memory_of_a_name_that_sleeps_is_the_daemons(void **state) {
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *publisher = sleep_open(&daemon, GPUPOOL_OPEN_NO_CACHE),
                          *client = sleep_open(&daemon, 0);
    publish_seed(publisher, 1, GPUPOOL_NAME_KEEP);
    struct gpupool_name *name = open_set(client, 0);
    gpupool_close(publisher);
    MUST(gpupool_unpublish(client, NAME, 0));
    MUST(gpupool_sleep_name(client, name, NULL));
    cJSON_Delete(daemon_ask(&daemon, "{\"command\":\"trim\"}"));
    WAIT_UNTIL(daemon_pool(&daemon, "device", 0, "reserved_bytes") == 0);
    MUST(gpupool_close_name(client, name, NULL));
    gpupool_close(client);
    sleep_stop(&daemon);
}

/* --- a pool with room for one and a half generations --- */

struct tight {
    struct test_daemon daemon;
    struct gpupool_client *publisher;
    struct puppet readers[2];
    struct set set;
};

static void tight_begin(struct tight *tight) {
    tight->set = (struct set){.sizes = {LARGE_BYTES, LARGE_BYTES}};
    sleep_start_with(&tight->daemon,
                     &(struct daemon_options){.config = "[device]\nexport = vmm\nlimit = 60MiB\n"
                                                        "[host]\nlimit = 32MiB\nstep = 4MiB\n",
                                              .sim_gpus = 1});
    tight->publisher = sleep_open_for(&tight->daemon, 0, UINT64_C(50000000));
    set_acquire(tight->publisher, &tight->set);
    set_write(tight->publisher, &tight->set, 1);
    set_publish(tight->publisher, &tight->set, 0);
    for (unsigned i = 0; i < 2; i++) {
        puppet_start_role(&tight->readers[i], &tight->daemon, "reader",
                          i == 0 ? "0" : "2" /* GPUPOOL_OPEN_NO_CACHE */);
        ORDER_MUST(&tight->readers[i], ORDER_OPEN, 0);
        ORDER_MUST(&tight->readers[i], ORDER_READ, 1);
    }
}

static void tight_end(struct tight *tight) {
    for (unsigned i = 0; i < 2; i++) {
        ORDER_MUST(&tight->readers[i], ORDER_CLOSE, 0);
        puppet_quit(&tight->readers[i]);
    }
    set_release(tight->publisher, &tight->set);
    gpupool_close(tight->publisher);
    sleep_stop(&tight->daemon);
}

/* The readers let it go, and wait for the next generation at once. */
static void readers_sleep_and_wait(struct tight *tight) {
    for (unsigned i = 0; i < 2; i++) {
        ORDER_MUST(&tight->readers[i], ORDER_SLEEP, 0);
        give_order(&tight->readers[i], ORDER_WAKE, tight->set.generation + 1);
    }
}

static void readers_have(struct tight *tight, uint64_t seed) {
    for (unsigned i = 0; i < 2; i++) {
        const struct order_answer answer = take_answer(&tight->readers[i]);
        if (answer.result != 0)
            fail_msg("a reader did not wake: %s", answer.text);
        assert_int_equal(answer.generation, tight->set.generation);
        ORDER_MUST(&tight->readers[i], ORDER_READ, seed);
    }
}

/* Its buffers are unread once the readers sleep and the name stands for nothing. */
static void the_publisher_writes_in_place_while_readers_sleep(void **state) {
    struct tight tight;

    (void)state;
    if (!test_is_simulated())
        skip();
    tight_begin(&tight);
    for (uint64_t seed = 2; seed < 5; seed++) {
        MUST_BE(gpupool_reuse(tight.publisher, &tight.set.buffers[0], NULL), GPUPOOL_E_SHARED);
        readers_sleep_and_wait(&tight);
        MUST_BE(gpupool_reuse(tight.publisher, &tight.set.buffers[0], NULL),
                GPUPOOL_E_SHARED); /* the name has it */
        MUST(gpupool_unpublish(tight.publisher, NAME, tight.set.generation));
        for (unsigned i = 0; i < SET; i++)
            MUST(gpupool_reuse(tight.publisher, &tight.set.buffers[i], NULL));
        set_write(tight.publisher, &tight.set, seed);
        set_publish(tight.publisher, &tight.set, 0);
        readers_have(&tight, seed);
        assert_int_equal(leased_on_device(&tight.daemon), SET * LARGE_BYTES);
    }
    tight_end(&tight);
}

/* Without the sleep of both readers there is no room for the next generation. */
static void the_publisher_acquires_anew_while_readers_sleep(void **state) {
    struct gpupool_buffer none;
    struct tight tight;

    (void)state;
    if (!test_is_simulated())
        skip();
    tight_begin(&tight);
    for (uint64_t seed = 2; seed < 5; seed++) {
        uint32_t pool = device_pool(tight.publisher);
        MUST_BE(gpupool_acquire(tight.publisher, pool, LARGE_BYTES + SEGMENT_BYTES, NULL, UINT64_C(50000000),
                                GPUPOOL_CAN_SLEEP, &none),
                GPUPOOL_E_EXHAUSTED);
        readers_sleep_and_wait(&tight);
        MUST(gpupool_unpublish(tight.publisher, NAME, tight.set.generation));
        set_release(tight.publisher, &tight.set);
        set_acquire(tight.publisher, &tight.set);
        set_write(tight.publisher, &tight.set, seed);
        set_publish(tight.publisher, &tight.set, 0);
        readers_have(&tight, seed);
    }
    tight_end(&tight);
}

/* A reader that does not sleep keeps its generation, and the other one wakes with the next. */
static void one_reader_may_stay_behind(void **state) {
    struct test_daemon daemon;
    struct puppet sleeper;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *publisher = sleep_open(&daemon, 0), *client = sleep_open(&daemon, 0);
    publish_seed(publisher, 1, 0);
    puppet_start_role(&sleeper, &daemon, "reader", "0");
    ORDER_MUST(&sleeper, ORDER_OPEN, 0);
    struct gpupool_name *name = open_set(client, 0);
    const struct places places = places_of(name);
    ORDER_MUST(&sleeper, ORDER_SLEEP, 0);
    uint64_t generation = publish_seed(publisher, 2, GPUPOOL_NAME_SAME_LAYOUT);
    ORDER_MUST(&sleeper, ORDER_WAKE, generation);
    ORDER_MUST(&sleeper, ORDER_READ, 2);
    expect_awake(client, name, &places, 1);
    MUST(gpupool_close_name(client, name, NULL));
    puppet_quit(&sleeper);
    gpupool_close(client);
    gpupool_close(publisher);
    sleep_stop(&daemon);
}

/* --- writers --- */

/* Live contents that a reader writes: it has the next generation for writing, too. */
static void a_reader_that_writes_wakes_for_writing(void **state) {
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *publisher = sleep_open(&daemon, 0), *client = sleep_open(&daemon, 0);
    publish_seed(publisher, 1, GPUPOOL_NAME_LIVE);
    struct gpupool_name *name = open_set(client, GPUPOOL_NAME_WRITE), *reader = open_set(publisher, 0);
    const struct places places = places_of(name), readers = places_of(reader);
    for (unsigned i = 0; i < 2; i++) {
        const struct gpupool_buffer *buffers = gpupool_name_buffers(name, NULL);
        for (unsigned j = 0; j < SET; j++) {
            MUST(puppet_write_pattern(client, &buffers[j], SET * 7 + j, NULL));
            MUST_BE(gpupool_set(publisher, 0, gpupool_name_buffers(reader, NULL)[j].data, 1, 64, NULL),
                    GPUPOOL_E_DRIVER);
        }
        expect_awake(publisher, reader, &readers, 7);
        uint64_t generation = publish_seed(publisher, 2, GPUPOOL_NAME_LIVE);
        if (i == 0)
            MUST(gpupool_sleep_name(client, name, NULL));
        MUST(gpupool_wake_name(client, name, generation, NULL, GPUPOOL_NOW));
        MUST(gpupool_wake_name(publisher, reader, generation, NULL, GPUPOOL_NOW));
        expect_awake(client, name, &places, 2);
        assert_int_equal(gpupool_name_flags(name), GPUPOOL_NAME_LIVE);
    }
    /* One whose contents are fixed is not for it. */
    uint64_t generation = publish_seed(publisher, 3, 0);
    MUST_BE(gpupool_wake_name(client, name, generation, NULL, GPUPOOL_NOW), GPUPOOL_E_INVALID);
    SAYS("its contents are fixed");
    expect_awake(client, name, &places, 2);
    MUST(gpupool_close_name(publisher, reader, NULL));
    MUST(gpupool_close_name(client, name, NULL));
    gpupool_close(client);
    gpupool_close(publisher);
    sleep_stop(&daemon);
}

int main(int argc, char **argv) {
    static const struct puppet_role roles[] = {READER_ROLE, {NULL, NULL}};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reader_has_the_next_generation_at_its_addresses),
        cmocka_unit_test(a_name_that_sleeps_has_no_memory),
        cmocka_unit_test(memory_of_a_name_that_sleeps_is_the_daemons),
        cmocka_unit_test(the_publisher_writes_in_place_while_readers_sleep),
        cmocka_unit_test(the_publisher_acquires_anew_while_readers_sleep),
        cmocka_unit_test(one_reader_may_stay_behind),
        cmocka_unit_test(a_reader_that_writes_wakes_for_writing),
    };

    int status = puppet_main(argc, argv, roles);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, NULL, NULL));
}
