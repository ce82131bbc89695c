/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names that sleep and change when something fails: each call of the driver in turn, each allocation, each message, and
 * the processes. A name is awake with one generation or asleep, and a later call gets it to where the failed one led.
 */
#include <signal.h>
#include <sys/mman.h>

#include "tests/integration/failing_calls.h"
#include "tests/integration/faults_fixture.h"
#include "tests/integration/sleep_names_fixture.h"

static void check_error(enum failing failing, int r) {
    if (failing == FAILING_DRIVER)
        assert_int_equal(r, GPUPOOL_E_DRIVER);
    else /* the simulated driver allocates, too */
        assert_true(r == GPUPOOL_E_NO_MEMORY || r == GPUPOOL_E_DRIVER);
    assert_int_not_equal(gpupool_error_text()[0], '\0');
}

/* The calls of which one fails. */
enum step {
    STEP_OPEN,
    STEP_SLEEP,
    STEP_WAKE,
    STEP_CHANGE,
    STEPS
};

/* The leases of the reader: the publishers have none. */
static void expect_leases(struct test_daemon *daemon, unsigned count) {
    WAIT_UNTIL(daemon_sum(daemon, "leases") == count);
}

/* A call fails at the n-th call of the driver, or allocation. Then the name is as it was, and the call succeeds. */
static bool fail_a_call(struct test_daemon *daemon, struct gpupool_client *publisher,
                        struct gpupool_client *client, enum step step, enum failing failing, unsigned n) {
    /* The board of fences is asked for once: where that fails, all later calls fail. */
    MUST(board_need(&client->session));
    uint64_t generation = publish_seed(publisher, 1, 0), seed = 1;
    struct gpupool_name *name = step == STEP_OPEN ? NULL : open_set(client, 0);
    struct places places = {{NULL}};
    bool failed = false;

    if (name != NULL)
        places = places_of(name);
    if (step == STEP_WAKE)
        MUST(gpupool_sleep_name(client, name, NULL));
    if (step == STEP_CHANGE)
        generation = publish_seed(publisher, seed = 2, 0);
    for (unsigned round = 0; round < 2; round++) {
        int r = 0;
        if (round == 0)
            arm_call(failing, n);
        if (step == STEP_OPEN && name == NULL)
            r = gpupool_open_name(client, NAME, 0, GPUPOOL_NAME_CAN_SLEEP, NULL, GPUPOOL_NOW, &name);
        else if (step == STEP_SLEEP)
            r = gpupool_sleep_name(client, name, NULL);
        else if (step != STEP_OPEN)
            r = gpupool_wake_name(client, name, generation, NULL, GPUPOOL_NOW);
        if (round == 0)
            failed = disarm_call(failing);
        if (r != 0 && !(round == 0 && failed))
            fail_msg("step %u, %u failing, round %u: %s", step, n, round, gpupool_error_text());
        if (r == 0)
            continue;
        check_error(failing, r);
        if (step == STEP_OPEN)
            assert_null(name);
        else if (step == STEP_WAKE)
            expect_asleep(name, &places);
        else /* one failure of the driver does not keep it from mapping what it had mapped */
            expect_awake(client, name, &places, 1);
        expect_leases(daemon, step == STEP_OPEN || step == STEP_WAKE ? 0 : SET);
    }
    if (step == STEP_SLEEP) {
        expect_asleep(name, &places);
        expect_leases(daemon, 0);
        MUST(gpupool_wake_name(client, name, 0, NULL, GPUPOOL_NOW));
    }
    if (step == STEP_OPEN)
        places = places_of(name);
    expect_awake(client, name, &places, seed);
    expect_leases(daemon, SET);
    MUST(gpupool_close_name(client, name, NULL));
    MUST(gpupool_unpublish(publisher, NAME, 0));
    return failed;
}

static void play(enum failing failing) {
    struct test_daemon daemon;
    unsigned failures = 0;

    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *publisher = sleep_open(&daemon, 0);
    for (unsigned kind = 0; kind < CLIENT_KINDS; kind++)
        for (unsigned step = 0; step < STEPS; step++) {
            bool failed = true;
            for (unsigned n = 1; failed; n++, failures += failed) {
                struct gpupool_client *client = sleep_open(&daemon, client_kinds[kind]);
                failed = fail_a_call(&daemon, publisher, client, (enum step)step, failing, n);
                gpupool_close(client);
                WAIT_UNTIL(leased_on_device(&daemon) == 0);
            }
        }
    print_message("%u calls failed\n", failures);
    assert_true(failures > 40);
    gpupool_close(publisher);
    sleep_stop(&daemon);
}

static void each_call_of_the_driver_may_fail(void **state) {
    (void)state;
    play(FAILING_DRIVER);
}

static void each_allocation_may_fail(void **state) {
    (void)state;
    play(FAILING_MEMORY);
}

/* --- a driver that maps neither generation --- */

/* Calls of the driver that fail when a name changes its generation, or falls asleep: opening maps segments 1 to 5, of
 * which buffer 0 has four. */
static const struct {
    enum order order;
    const char *failures;
} torn[] = {
    /* The second buffer's new segment cannot be mapped, nor its old one. */
    {ORDER_WAKE, "GPUPOOL_SIM_FAIL=vmm_map:10:2,vmm_map:11:2"},
    /* Nor the old segments of the first buffer, whose new ones are mapped again, or not. */
    {ORDER_WAKE, "GPUPOOL_SIM_FAIL=vmm_map:10:2,vmm_map:12:2"},
    {ORDER_WAKE, "GPUPOOL_SIM_FAIL=vmm_map:10:2,vmm_map:12:2,vmm_map:13:2"},
    {ORDER_WAKE, "GPUPOOL_SIM_FAIL=vmm_map:10:2,vmm_unmap:6:2"},
    /* The second buffer's segment is not unmapped, and the first buffer's are not mapped again. */
    {ORDER_SLEEP, "GPUPOOL_SIM_FAIL=vmm_unmap:5:2,vmm_map:6:2"},
};

static void a_driver_that_maps_neither_generation_leaves_the_name_asleep(void **state) {
    struct test_daemon daemon;
    struct puppet reader;
    unsigned torn_asleep = 0;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *publisher = sleep_open(&daemon, 0);
    for (unsigned i = 0; i < sizeof torn / sizeof *torn; i++)
        for (unsigned sleeps = 0; sleeps < 3; sleeps++) {
            uint64_t generation = publish_seed(publisher, 1, 0);
            puppet_start_role_as(&reader, &daemon, (const char *const[]){torn[i].failures, NULL}, "reader",
                                 "0");
            ORDER_MUST(&reader, ORDER_OPEN, 0);
            generation = publish_seed(publisher, 2, 0);
            struct order_answer answer = order(&reader, torn[i].order, generation);
            assert_int_equal(answer.result, GPUPOOL_E_DRIVER);
            assert_non_null(strstr(answer.text, "the name sleeps"));
            torn_asleep++;
            if (sleeps == 1) { /* all leases go back */
                ORDER_MUST(&reader, ORDER_SLEEP, 0);
                WAIT_UNTIL(daemon_sum(&daemon, "leases") == 0);
            }
            if (sleeps < 2) {
                ORDER_MUST(&reader, ORDER_WAKE, 0);
                ORDER_MUST(&reader, ORDER_READ, 2);
                WAIT_UNTIL(daemon_sum(&daemon, "leases") == SET);
                ORDER_MUST(&reader, ORDER_SLEEP, 0);
                ORDER_MUST(&reader, ORDER_WAKE, generation);
                ORDER_MUST(&reader, ORDER_READ, 2);
            }
            ORDER_MUST(&reader, ORDER_CLOSE, 0);
            puppet_quit(&reader);
            MUST(gpupool_unpublish(publisher, NAME, 0));
            WAIT_UNTIL(daemon_sum(&daemon, "leased_bytes") == 0);
        }
    assert_int_equal(torn_asleep, 3 * (sizeof torn / sizeof *torn));
    gpupool_close(publisher);
    sleep_stop(&daemon);
}

/* --- messages --- */

/* Calls of the process that carry messages. */
static const struct {
    enum call_kind kind;
    int error;
} message_faults[] = {
    {CALL_SEND, ENOBUFS}, {CALL_SEND, EPIPE}, {CALL_RECVMSG, ENOMEM}, {CALL_RECVMSG, EMFILE}};

/* A sleep, a wake and a change of which the n-th message fails. The connection may break by that; then the name has what
 * it had, or sleeps for want of a daemon. Returns whether a call failed. */
static bool lose_a_message(struct test_daemon *daemon, struct gpupool_client *publisher, unsigned fault,
                           unsigned n) {
    uint64_t generation = publish_seed(publisher, 1, 0);
    struct puppet reader;

    puppet_start_role_as(&reader, daemon, environment(), "reader", "2" /* GPUPOOL_OPEN_NO_CACHE */);
    ORDER_MUST(&reader, ORDER_OPEN, 0);
    arm(message_faults[fault].kind, message_faults[fault].error, n, 0);
    int slept = order(&reader, ORDER_SLEEP, 0).result;
    int woke = order(&reader, ORDER_WAKE, 0).result;
    generation = publish_seed(publisher, 2, 0);
    int changed = order(&reader, ORDER_WAKE, generation).result;
    bool hit = disarm() > 0;
    assert_true(hit || (slept == 0 && woke == 0 && changed == 0));
    if (changed != 0)
        changed = order(&reader, ORDER_WAKE, generation).result;
    if (changed == 0)
        ORDER_MUST(&reader, ORDER_READ, 2);
    else
        assert_int_equal(changed, GPUPOOL_E_DISCONNECTED);
    ORDER_MUST(&reader, ORDER_CLOSE, 0);
    puppet_quit(&reader);
    MUST(gpupool_unpublish(publisher, NAME, 0));
    WAIT_UNTIL(daemon_sum(daemon, "leased_bytes") == 0 && daemon_sum(daemon, "quarantined_bytes") == 0);
    return hit;
}

static void each_message_may_fail(void **state) {
    struct test_daemon daemon;
    unsigned hits = 0;

    (void)state;
    if (!test_is_simulated() || !has_call_faults())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *publisher = sleep_open(&daemon, 0);
    for (unsigned fault = 0; fault < sizeof message_faults / sizeof *message_faults; fault++)
        for (unsigned n = 1; lose_a_message(&daemon, publisher, fault, n); n++)
            hits++;
    print_message("%u messages failed\n", hits);
    assert_true(hits > 20);
    gpupool_close(publisher);
    sleep_stop(&daemon);
}

/* --- processes --- */

/* A reader that is killed asleep, while it waits for the next generation, and after it woke, leaves nothing. */
static void a_reader_may_be_killed_at_any_time(void **state) {
    struct test_daemon daemon;
    struct puppet readers[3];

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *publisher = sleep_open(&daemon, 0);
    uint64_t generation = publish_seed(publisher, 1, 0);
    for (unsigned i = 0; i < 3; i++) {
        puppet_start_role(&readers[i], &daemon, "reader", "0");
        ORDER_MUST(&readers[i], ORDER_OPEN, 0);
        ORDER_MUST(&readers[i], ORDER_SLEEP, 0);
        if (i > 0)
            give_order(&readers[i], ORDER_WAKE, generation + 1);
    }
    puppet_kill(&readers[0]);
    puppet_kill(&readers[1]);
    generation = publish_seed(publisher, 2, GPUPOOL_NAME_SAME_LAYOUT);
    assert_int_equal(take_answer(&readers[2]).result, 0);
    ORDER_MUST(&readers[2], ORDER_READ, 2);
    puppet_kill(&readers[2]);
    WAIT_UNTIL(daemon_sum(&daemon, "leases") == 0);
    struct gpupool_name *name = open_set(publisher, 0);
    MUST(read_seed(publisher, name, 2)); /* the name is not touched by that */
    MUST(gpupool_close_name(publisher, name, NULL));
    gpupool_close(publisher);
    sleep_stop(&daemon);
}

/* A publisher: publishes a generation and waits to be killed. argument: the seed; "stuck" publishes behind work that never
 * ends. */
static int publish_and_wait(int fd, const char *argument) {
    struct set set = SET_OF_TWO;
    struct gpupool_client *client = NULL;
    char byte;

    MUST(gpupool_open(NULL, &client));
    if (strcmp(argument, "stuck") == 0) {
        const struct gpu *gpu;
        uint64_t *word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_int_equal(gpu_sim(NULL, &gpu), 0);
        assert_int_equal(gpu->host_register(word, 4096), 0);
        set_acquire(client, &set);
        assert_int_equal(gpu->stream_wait64(0, NULL, word, 1), 0);
        set_publish(client, &set, GPUPOOL_NAME_KEEP);
    } else {
        publish_seed(client, strtoul(argument, NULL, 10), 0);
    }
    if (send(fd, "", 1, 0) != 1)
        return 1;
    return recv(fd, &byte, 1, 0) == 1 ? 0 : 1;
}

static void start_publisher(struct puppet *publisher, const struct test_daemon *daemon,
                            const char *argument) {
    char byte;

    puppet_start_role(publisher, daemon, "publisher", argument);
    assert_int_equal(recv(publisher->fd, &byte, 1, 0), 1);
}

/* The name goes with its publisher. A reader that sleeps waits for the next one; one that is awake keeps its memory. */
static void a_publisher_may_be_killed_while_readers_sleep(void **state) {
    struct puppet publisher, sleeper;
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *client = sleep_open(&daemon, 0);
    start_publisher(&publisher, &daemon, "1");
    struct gpupool_name *name = open_set(client, 0);
    const struct places places = places_of(name);
    puppet_start_role(&sleeper, &daemon, "reader", "0");
    ORDER_MUST(&sleeper, ORDER_OPEN, 0);
    ORDER_MUST(&sleeper, ORDER_SLEEP, 0);
    puppet_kill(&publisher);
    WAIT_UNTIL(gpupool_wake_name(client, name, gpupool_name_generation(name) + 1, NULL, GPUPOOL_NOW) ==
                   GPUPOOL_E_NO_NAME &&
               daemon_number(&daemon, "sessions") == 2);
    expect_awake(client, name, &places, 1);
    give_order(&sleeper, ORDER_WAKE, 0);
    start_publisher(&publisher, &daemon, "2");
    assert_int_equal(take_answer(&sleeper).result, 0);
    ORDER_MUST(&sleeper, ORDER_READ, 2);
    MUST(gpupool_sleep_name(client, name, NULL));
    MUST(gpupool_wake_name(client, name, 0, NULL, TEST_WAIT_NS));
    expect_awake(client, name, &places, 2);
    puppet_kill(&publisher);
    expect_awake(client, name, &places, 2);
    puppet_quit(&sleeper);
    MUST(gpupool_close_name(client, name, NULL));
    gpupool_close(client);
    sleep_stop(&daemon);
}

/* The reader has woken, and its stream waits for work that its publisher does not live to see. The program hears of it,
 * and wakes with the next generation. */
static void a_publisher_killed_before_its_work_is_done_is_told(void **state) {
    struct test_daemon daemon;
    struct puppet publisher;
    int r = 0;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *other = sleep_open(&daemon, 0), *client = sleep_open(&daemon, 0);
    publish_seed(other, 1, 0);
    struct gpupool_name *name = open_set(client, 0);
    const struct places places = places_of(name);
    MUST(gpupool_sleep_name(client, name, NULL));
    start_publisher(&publisher, &daemon, "stuck");
    MUST(gpupool_wake_name(client, name, gpupool_name_generation(name) + 1, NULL, TEST_WAIT_NS));
    puppet_kill(&publisher);
    uint64_t generation = publish_seed(other, 3, 0);
    assert_true(gpupool_name_generation(name) < generation);
    WAIT_UNTIL((r = gpupool_stream_synchronize(client, 0, NULL)) == GPUPOOL_E_LOST || r == 0);
    if (r == 0) /* told by the next call that looks */
        WAIT_UNTIL(gpupool_wake_name(client, name, generation, NULL, GPUPOOL_NOW) == GPUPOOL_E_LOST);
    MUST(gpupool_wake_name(client, name, generation, NULL, TEST_WAIT_NS));
    expect_awake(client, name, &places, 3);
    MUST(gpupool_close_name(client, name, NULL));
    gpupool_close(client);
    gpupool_close(other);
    sleep_stop(&daemon);
}

/* --- ends --- */

static void names_that_sleep_end_with_their_client(void **state) {
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    for (unsigned kind = 0; kind < CLIENT_KINDS; kind++) {
        struct gpupool_client *client = sleep_open(&daemon, client_kinds[kind]);
        publish_seed(client, 1, 0);
        struct gpupool_name *closed = open_set(client, 0), *left = open_set(client, 0);
        const struct places places = places_of(left);
        MUST(gpupool_sleep_name(client, closed, NULL));
        MUST(gpupool_sleep_name(client, left, NULL));
        MUST(gpupool_close_name(client, closed, NULL));
        gpupool_close(client);
        assert_false(is_readable(places.data[0]));
        MUST(gpupool_close_name(NULL, left, GPUPOOL_NO_STREAM));
        WAIT_UNTIL(daemon_sum(&daemon, "leased_bytes") == 0);
    }
    sleep_stop(&daemon);
}

/* A name that is awake keeps its memory, and one that sleeps stays asleep. Both can be closed. */
static void names_outlive_the_daemon(void **state) {
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    for (unsigned kind = 0; kind < CLIENT_KINDS; kind++) {
        sleep_start(&daemon);
        struct gpupool_client *client = sleep_open(&daemon, client_kinds[kind]);
        uint64_t generation = publish_seed(client, 1, 0);
        struct gpupool_name *awake = open_set(client, 0), *asleep = open_set(client, 0);
        const struct places places = places_of(awake), others = places_of(asleep);
        MUST(gpupool_sleep_name(client, asleep, NULL));
        daemon_crash(&daemon);
        WAIT_UNTIL(!gpupool_is_connected(client));
        MUST_BE(gpupool_sleep_name(client, awake, NULL), GPUPOOL_E_DISCONNECTED);
        MUST_BE(gpupool_wake_name(client, awake, generation + 1, NULL, GPUPOOL_NOW), GPUPOOL_E_DISCONNECTED);
        MUST_BE(gpupool_wake_name(client, asleep, 0, NULL, GPUPOOL_NOW), GPUPOOL_E_DISCONNECTED);
        (void)gpupool_trim(client, NULL); /* closes what is not used: not this */
        expect_awake(client, awake, &places, 1);
        expect_asleep(asleep, &others);
        MUST(gpupool_close_name(client, asleep, NULL));
        MUST(gpupool_close_name(client, awake, NULL));
        gpupool_close(client);
        assert_false(is_readable(places.data[0]));
        daemon_remove(&daemon);
    }
}

int main(int argc, char **argv) {
    static const struct puppet_role roles[] = {READER_ROLE, {"publisher", publish_and_wait}, {NULL, NULL}};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_call_of_the_driver_may_fail),
        cmocka_unit_test(each_allocation_may_fail),
        cmocka_unit_test(a_driver_that_maps_neither_generation_leaves_the_name_asleep),
        cmocka_unit_test(each_message_may_fail),
        cmocka_unit_test(a_reader_may_be_killed_at_any_time),
        cmocka_unit_test(a_publisher_may_be_killed_while_readers_sleep),
        cmocka_unit_test(a_publisher_killed_before_its_work_is_done_is_told),
        cmocka_unit_test(names_that_sleep_end_with_their_client),
        cmocka_unit_test(names_outlive_the_daemon),
    };

    int status = puppet_main(argc, argv, roles);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, make_faults, drop_faults));
}
