/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sleep and wake when something fails: each call of the driver in turn, each allocation, each message, and the
 * daemon. A buffer is awake or it sleeps, with the contents that it keeps, and a later call gets it back.
 */
#include <signal.h>
#include <stdio.h>

#include "tests/integration/failing_calls.h"
#include "tests/integration/faults_fixture.h"
#include "tests/integration/sleep_fixture.h"

static void check_error(enum failing failing, int r) {
    if (failing == FAILING_DRIVER)
        assert_true(r == GPUPOOL_E_DRIVER || r == GPUPOOL_E_EXHAUSTED);
    else /* the simulated driver allocates, too */
        assert_true(r == GPUPOOL_E_NO_MEMORY || r == GPUPOOL_E_DRIVER);
    assert_int_not_equal(gpupool_error_text()[0], '\0');
}

/* The contents are there where the buffer says that it keeps them. */
static void check_contents(struct gpupool_client *client, const struct gpupool_buffer *buffer,
                           enum gpupool_keep keep, uint64_t seed) {
    assert_true(is_mapped(buffer));
    if (keep != GPUPOOL_KEEP_NOTHING)
        MUST(puppet_read_pattern(client, buffer, seed, NULL));
}

/* A sleep fails at the n-th call. The buffer is awake with its contents, or sleeps on the GPU. */
static bool fail_a_sleep(struct gpupool_client *client, struct gpupool_buffer *buffer, enum gpupool_keep keep,
                         enum failing failing, unsigned n) {
    MUST(puppet_write_pattern(client, buffer, n, NULL));
    const struct gpupool_buffer before = *buffer;
    arm_call(failing, n);
    int r = gpupool_sleep(client, buffer, keep, NULL);
    bool failed = disarm_call(failing);
    if (r != 0) {
        assert_true(failed);
        check_error(failing, r);
        assert_memory_equal(buffer, &before, sizeof before);
        bool sleeps = strstr(gpupool_error_text(), "gpupool_wake()") != NULL;
        assert_int_equal(is_readable(buffer->data), !sleeps);
        MUST(gpupool_wake(client, buffer, NULL, GPUPOOL_NOW, 0));
        check_contents(client, buffer, GPUPOOL_KEEP_ON_GPU, n); /* nothing was dropped */
        MUST(gpupool_sleep(client, buffer, keep, NULL));
    }
    assert_false(is_mapped(buffer));
    MUST(gpupool_wake(client, buffer, NULL, GPUPOOL_FOREVER, 0));
    check_contents(client, buffer, keep, n);
    return failed;
}

/* A wake fails at the n-th call. The buffer sleeps still, and a later wake has the contents. */
static bool fail_a_wake(struct test_daemon *daemon, struct gpupool_client *client,
                        struct gpupool_buffer *buffer, enum gpupool_keep keep, enum failing failing,
                        unsigned n) {
    MUST(puppet_write_pattern(client, buffer, n, NULL));
    MUST(gpupool_sleep(client, buffer, keep, NULL));
    arm_call(failing, n);
    int r = gpupool_wake(client, buffer, NULL, GPUPOOL_FOREVER, 0);
    bool failed = disarm_call(failing);
    if (r != 0) {
        struct gpupool_buffer_info info;
        assert_true(failed);
        check_error(failing, r);
        MUST_BE(gpupool_query(client, buffer, &info), GPUPOOL_E_INVALID); /* it sleeps */
        assert_true(daemon_pool(daemon, "device", 0, "leased_bytes") <= SLEEPER_ROOM);
        MUST(gpupool_wake(client, buffer, NULL, GPUPOOL_FOREVER, 0));
    }
    check_contents(client, buffer, keep, n);
    return failed;
}

static void play(enum failing failing) {
    struct test_daemon daemon;
    unsigned failures = 0;

    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    for (unsigned kind = 0; kind < CLIENT_KINDS; kind++)
        for (unsigned i = 0; i < 2 * KEEPS; i++) {
            enum gpupool_keep keep = keeps[i / 2];
            bool failed = true;
            for (unsigned n = 1; failed; n++, failures += failed) {
                struct gpupool_client *client = sleep_open(&daemon, client_kinds[kind]);
                struct gpupool_buffer buffer = acquire_sleeper(client, SLEEPER_BYTES);
                failed = i % 2 == 0 ? fail_a_sleep(client, &buffer, keep, failing, n)
                                    : fail_a_wake(&daemon, client, &buffer, keep, failing, n);
                MUST(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
                gpupool_close(client);
                assert_int_equal(leased_on_device(&daemon), 0);
            }
        }
    print_message("%u calls failed\n", failures);
    assert_true(failures > 40);
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

/* The driver unmaps the first segments, then no more, and maps none, either. A later wake finds the segments that are mapped still. */
static void a_driver_that_fails_for_good_leaves_the_buffer_asleep(void **state) {
    struct test_daemon daemon;
    struct puppet puppet;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    for (unsigned i = 0; i < KEEPS; i++) {
        puppet_connect_as(&puppet, &daemon,
                          (const char *const[]){"GPUPOOL_SIM_FAIL=vmm_unmap:3:2,vmm_map:5:2", NULL}, 0);
        PUPPET_MUST(&puppet, puppet_acquire(&puppet, 0, GPUPOOL_POOL_DEVICE, SLEEPER_BYTES, GPUPOOL_FOREVER,
                                            GPUPOOL_CAN_SLEEP)); /* maps four */
        PUPPET_MUST(&puppet, puppet_fill(&puppet, 0, 5));
        PUPPET_MUST_BE(&puppet, puppet_sleep(&puppet, 0, keeps[i]), GPUPOOL_E_DRIVER);
        PUPPET_SAID(&puppet, "sleeps, with its contents on the GPU");
        PUPPET_MUST_BE(&puppet, puppet_query(&puppet, 0), GPUPOOL_E_INVALID);
        WAIT_UNTIL(daemon_pool(&daemon, "host", 0, "leased_bytes") == 0);
        PUPPET_MUST(&puppet, puppet_wake(&puppet, 0, GPUPOOL_NOW));
        PUPPET_MUST(&puppet, puppet_check(&puppet, 0, 5));
        PUPPET_MUST(&puppet, puppet_sleep(&puppet, 0, keeps[i]));
        PUPPET_MUST(&puppet, puppet_wake(&puppet, 0, GPUPOOL_FOREVER));
        PUPPET_MUST(&puppet, puppet_release(&puppet, 0));
        puppet_quit(&puppet);
    }
    sleep_stop(&daemon);
}

/* An acquire of a buffer that can sleep, likewise: nothing is left of it. */
static void an_acquire_that_fails_leaves_nothing(void **state) {
    struct test_daemon daemon;
    unsigned failures = 0;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    for (unsigned failing = 0; failing < 2; failing++) {
        bool failed = true;
        for (unsigned n = 1; failed; n++) {
            struct gpupool_client *client = sleep_open(&daemon, 0);
            struct gpupool_buffer buffer = {0};
            uint32_t pool = device_pool(client);
            arm_call((enum failing)failing, n);
            int r = gpupool_acquire(client, pool, SLEEPER_BYTES, NULL, GPUPOOL_FOREVER,
                                    GPUPOOL_CAN_SLEEP | GPUPOOL_ZERO, &buffer);
            failed = disarm_call((enum failing)failing);
            if (r != 0) {
                assert_true(failed);
                check_error((enum failing)failing, r);
                assert_null(buffer.data);
                WAIT_UNTIL(leased_on_device(&daemon) == 0);
                failures++;
                buffer = acquire_sleeper(client, SLEEPER_BYTES);
            }
            MUST(gpupool_release(client, &buffer, NULL));
            gpupool_close(client);
        }
    }
    assert_true(failures > 10);
    sleep_stop(&daemon);
}

/* --- host memory --- */

/* The contents find no room in the host pool: the buffer stays awake. */
static void contents_without_room_in_the_host_pool_stay(void **state) {
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *client = sleep_open_for(&daemon, 0, UINT64_C(50000000));
    struct gpupool_buffer buffer = acquire_sleeper(client, 48 * MIB);
    MUST(puppet_write_pattern(client, &buffer, 6, NULL));
    int r = gpupool_sleep(client, &buffer, GPUPOOL_KEEP_IN_HOST, NULL);
    assert_true(r == GPUPOOL_E_EXHAUSTED || r == GPUPOOL_E_TOO_LARGE);
    MUST(puppet_read_pattern(client, &buffer, 6, NULL));
    MUST(gpupool_sleep(client, &buffer, GPUPOOL_KEEP_ON_GPU, NULL));
    MUST(gpupool_wake(client, &buffer, NULL, GPUPOOL_NOW, 0));
    MUST(gpupool_release(client, &buffer, NULL));
    gpupool_close(client);
    sleep_stop(&daemon);
}

/* --- messages --- */

/* Calls of the process that carry messages. */
static const struct {
    enum call_kind kind;
    int error;
} message_faults[] = {
    {CALL_SEND, ENOBUFS}, {CALL_SEND, EPIPE}, {CALL_RECVMSG, ENOMEM}, {CALL_RECVMSG, EMFILE}};

/* A sleep and a wake of which the n-th message fails. The connection may break by that; then the buffer is awake or
 * has its contents on the GPU, or it sleeps for want of a daemon. Returns whether a call failed. */
static bool lose_a_message(struct test_daemon *daemon, unsigned fault, enum gpupool_keep keep, unsigned n) {
    struct puppet puppet;

    puppet_start_as(&puppet, daemon, environment(), 0);
    PUPPET_MUST(&puppet, puppet_call(&puppet, &(struct puppet_command){.verb = PUPPET_OPEN,
                                                                       .flags = GPUPOOL_OPEN_NO_CACHE}));
    PUPPET_MUST(&puppet, puppet_acquire(&puppet, 0, GPUPOOL_POOL_DEVICE, SLEEPER_BYTES, GPUPOOL_FOREVER,
                                        GPUPOOL_CAN_SLEEP));
    PUPPET_MUST(&puppet, puppet_fill(&puppet, 0, n));
    arm(message_faults[fault].kind, message_faults[fault].error, n, 0);
    int slept = puppet_sleep(&puppet, 0, keep);
    int woke = puppet_wake(&puppet, 0, GPUPOOL_FOREVER);
    bool hit = disarm() > 0;
    assert_true(hit || (slept == 0 && woke == 0));
    if (woke != 0)
        woke = puppet_wake(&puppet, 0, GPUPOOL_FOREVER);
    if (woke == 0 && (slept != 0 || keep != GPUPOOL_KEEP_NOTHING))
        PUPPET_MUST(&puppet, puppet_check(&puppet, 0, n));
    else if (woke != 0)
        assert_int_equal(woke, GPUPOOL_E_DISCONNECTED);
    PUPPET_MUST(&puppet, puppet_release(&puppet, 0));
    puppet_quit(&puppet);
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
    for (unsigned fault = 0; fault < sizeof message_faults / sizeof *message_faults; fault++)
        for (unsigned i = 0; i < KEEPS; i++)
            for (unsigned n = 1; lose_a_message(&daemon, fault, keeps[i], n); n++)
                hits++;
    print_message("%u messages failed\n", hits);
    assert_true(hits > 20);
    sleep_stop(&daemon);
}

/* --- the daemon --- */

static void wait_until_lost(struct gpupool_client *client) {
    WAIT_UNTIL(!gpupool_is_connected(client));
}

/* The daemon is gone. A buffer that sleeps on the GPU wakes, and one that gave its memory back does not; all can be released. */
static void sleepers_outlive_the_daemon(void **state) {
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    for (unsigned kind = 0; kind < CLIENT_KINDS; kind++) {
        struct gpupool_buffer buffers[KEEPS], awake;
        sleep_start(&daemon);
        struct gpupool_client *client = sleep_open(&daemon, client_kinds[kind]);
        awake = acquire_sleeper(client, SLEEPER_BYTES);
        MUST(puppet_write_pattern(client, &awake, 9, NULL));
        for (unsigned i = 0; i < KEEPS; i++) {
            buffers[i] = acquire_sleeper(client, SLEEPER_BYTES);
            MUST(puppet_write_pattern(client, &buffers[i], 1 + i, NULL));
            MUST(gpupool_sleep(client, &buffers[i], keeps[i], NULL));
        }
        daemon_crash(&daemon);
        wait_until_lost(client);
        for (unsigned i = 0; i < KEEPS; i++) {
            bool is_on_gpu = keeps[i] == GPUPOOL_KEEP_ON_GPU;
            MUST_BE(gpupool_wake(client, &buffers[i], NULL, GPUPOOL_FOREVER, 0),
                    is_on_gpu ? 0 : GPUPOOL_E_DISCONNECTED);
            if (is_on_gpu)
                MUST(puppet_read_pattern(client, &buffers[i], 1 + i, NULL));
            else
                MUST_BE(gpupool_sleep(client, &awake, keeps[i], NULL), GPUPOOL_E_DISCONNECTED);
            MUST(puppet_read_pattern(client, &awake, 9, NULL));
        }
        MUST(gpupool_sleep(client, &awake, GPUPOOL_KEEP_ON_GPU, NULL));
        (void)gpupool_trim(client, NULL); /* closes what is not used: not this */
        MUST(gpupool_wake(client, &awake, NULL, GPUPOOL_NOW, 0));
        MUST(puppet_read_pattern(client, &awake, 9, NULL));
        for (unsigned i = 0; i < KEEPS; i++)
            MUST(gpupool_release(client, &buffers[i], NULL));
        MUST(gpupool_release(client, &awake, NULL));
        gpupool_close(client);
        assert_false(is_readable(awake.data));
        daemon_remove(&daemon);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_call_of_the_driver_may_fail),
        cmocka_unit_test(each_allocation_may_fail),
        cmocka_unit_test(a_driver_that_fails_for_good_leaves_the_buffer_asleep),
        cmocka_unit_test(an_acquire_that_fails_leaves_nothing),
        cmocka_unit_test(contents_without_room_in_the_host_pool_stay),
        cmocka_unit_test(each_message_may_fail),
        cmocka_unit_test(sleepers_outlive_the_daemon),
    };

    int status = puppet_main(argc, argv, NULL);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, make_faults, drop_faults));
}
