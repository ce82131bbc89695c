/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers that sleep: their contents, their addresses, and the memory that others have meanwhile. */
#include <stdio.h>

#include "tests/integration/sleep_fixture.h"

/* --- one buffer --- */

/* A buffer sleeps three times. Checks how much of the device is leased meanwhile, and whether its contents come back. */
static void sleep_and_wake(struct test_daemon *daemon, struct gpupool_client *client, enum gpupool_keep keep,
                           void *stream) {
    struct gpupool_buffer buffer = acquire_sleeper(client, SLEEPER_BYTES);
    const struct gpupool_buffer before = buffer;
    uint64_t kept_bytes = keep == GPUPOOL_KEEP_ON_GPU ? SLEEPER_ROOM : 0;

    assert_int_equal(buffer.size_bytes, SLEEPER_BYTES);
    assert_int_equal(buffer.capacity_bytes, SLEEPER_ROOM);
    for (uint64_t seed = 1; seed < 4; seed++) {
        MUST(puppet_write_pattern(client, &buffer, seed, NULL));
        assert_int_equal(leased_on_device(daemon), SLEEPER_ROOM);
        MUST(gpupool_sleep(client, &buffer, keep, stream));
        assert_false(is_mapped(&buffer));
        WAIT_UNTIL(leased_on_device(daemon) == kept_bytes);
        uint64_t on_host = daemon_pool(daemon, "host", 0, "leased_bytes");
        assert_true(keep != GPUPOOL_KEEP_IN_HOST || on_host >= SLEEPER_ROOM);
        MUST(gpupool_wake(client, &buffer, stream, GPUPOOL_FOREVER, GPUPOOL_ZERO));
        assert_true(is_mapped(&buffer));
        assert_ptr_equal(buffer.data, before.data);
        assert_int_equal(buffer.capacity_bytes, before.capacity_bytes);
        assert_int_equal(leased_on_device(daemon), SLEEPER_ROOM);
        MUST(puppet_read_pattern(client, &buffer, keep == GPUPOOL_KEEP_NOTHING ? 0 : seed, NULL));
    }
    MUST(gpupool_release(client, &buffer, NULL));
    WAIT_UNTIL(leased_on_device(daemon) == 0);
    WAIT_UNTIL(gpupool_trim(client, NULL) == 0 && !is_readable(before.data));
}

static void contents_are_kept_as_asked(void **state) {
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    for (unsigned kind = 0; kind < CLIENT_KINDS; kind++)
        for (unsigned i = 0; i < KEEPS; i++) {
            struct gpupool_client *client = sleep_open(&daemon, client_kinds[kind]);
            sleep_and_wake(&daemon, client, keeps[i], NULL);
            sleep_and_wake(&daemon, client, keeps[i], GPUPOOL_NO_STREAM);
            gpupool_close(client);
        }
    sleep_stop(&daemon);
}

/* Work that was enqueued before is done, and the copies are behind it: none of it is waited for by the program. */
static void sleep_is_behind_the_work_of_the_stream(void **state) {
    struct test_daemon daemon;
    void *stream;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *client = sleep_open(&daemon, 0);
    struct gpupool_buffer buffer = acquire_sleeper(client, SLEEPER_BYTES),
                          other = acquire_sleeper(client, MIB);
    MUST(gpupool_stream_create(client, 0, &stream));
    for (int byte = 1; byte < 20; byte++) {
        enum gpupool_keep keep = byte % 2 == 0 ? GPUPOOL_KEEP_ON_GPU : GPUPOOL_KEEP_IN_HOST;
        MUST(gpupool_set(client, 0, buffer.data, byte, SLEEPER_ROOM, stream));
        MUST(gpupool_sleep(client, &buffer, keep, stream));
        MUST(gpupool_wake(client, &buffer, stream, GPUPOOL_FOREVER, 0));
        /* Behind the wake on its stream. */
        MUST(gpupool_copy(client, 0, other.data, (char *)buffer.data + SLEEPER_ROOM - MIB, MIB, stream));
        MUST(gpupool_stream_synchronize(client, 0, stream));
        for (unsigned i = 0; i < MIB; i += 4093)
            assert_int_equal(((const char *)other.data)[i], byte);
    }
    MUST(gpupool_release(client, &buffer, stream));
    MUST(gpupool_release(client, &other, stream));
    MUST(gpupool_stream_destroy(client, 0, stream));
    gpupool_close(client);
    sleep_stop(&daemon);
}

/* How many segments a buffer that can sleep lies in. */
static uint32_t count_segments(struct gpupool_client *client, const struct gpupool_buffer *buffer) {
    struct rows *rows = &client->session.rows;

    pthread_mutex_lock(&rows->lock);
    const struct row_use *use = rows_find_use_locked(rows, buffer->lease, buffer->generation);
    assert_non_null(use);
    uint32_t count = use->row->n_parts;
    pthread_mutex_unlock(&rows->lock);
    return count;
}

/* A pool that has large segments gives them to a buffer, and ever narrower ones for the rest. */
static void a_large_buffer_has_few_segments(void **state) {
    struct gpupool_buffer_info info;
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start_with(&daemon, &(struct daemon_options){.config = "[device]\nexport = vmm\nlimit = 4GiB\n"});
    struct gpupool_client *client = sleep_open(&daemon, 0);
    struct gpupool_buffer buffer = acquire_sleeper(client, 410 * MIB);
    assert_int_equal(buffer.capacity_bytes, 416 * MIB);
    assert_int_equal(daemon_pool(&daemon, "device", 0, "segments"), 3); /* 256, 128 and 32 MiB */
    assert_int_equal(daemon_sum(&daemon, "leases"), 1);
    MUST(gpupool_query(client, &buffer, &info));
    assert_int_equal(info.buffer.size_bytes, 410 * MIB);
    assert_ptr_equal(info.buffer.data, buffer.data);
    char *last = (char *)buffer.data + buffer.capacity_bytes - 1;
    *last = 3;
    MUST(gpupool_sleep(client, &buffer, GPUPOOL_KEEP_ON_GPU, NULL));
    MUST(gpupool_wake(client, &buffer, NULL, GPUPOOL_NOW, 0));
    assert_int_equal(*last, 3);
    MUST(gpupool_release(client, &buffer, NULL));
    for (unsigned mib = 16; mib <= 256; mib *= 2) { /* each in a segment of its own */
        buffer = acquire_sleeper(client, mib * MIB);
        assert_int_equal(buffer.capacity_bytes, mib * MIB);
        assert_int_equal(count_segments(client, &buffer), 1);
        MUST(gpupool_release(client, &buffer, NULL));
    }
    gpupool_close(client);
    sleep_stop(&daemon);
}

#define SMALL_BUFFERS 16u

/* The pool has room for small segments alone, which a client without a cache keeps mapped. Later it has a large one,
 * and the buffer wakes in that, at the same addresses. Then it has the small ones again. */
static void the_segments_may_be_of_other_sizes_after_a_sleep(void **state) {
    struct gpupool_buffer small[SMALL_BUFFERS], large;
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start_with(&daemon, &(struct daemon_options){.config = "[device]\nexport = vmm\nlimit = 4GiB\n"});
    struct gpupool_client *client = sleep_open(&daemon, 0);
    struct gpupool_client *other = sleep_open(&daemon, GPUPOOL_OPEN_NO_CACHE);
    for (unsigned i = 0; i < SMALL_BUFFERS; i++)
        small[i] = acquire_sleeper(other, 16 * MIB);
    large = acquire_sleeper(other, 15 * 256 * MIB);
    for (unsigned i = 0; i < SMALL_BUFFERS; i++)
        MUST(gpupool_release(other, &small[i], GPUPOOL_NO_STREAM));
    struct gpupool_buffer buffer = acquire_sleeper(client, 256 * MIB);
    const void *memory = buffer.data;
    for (unsigned round = 0; round < 2; round++) {
        assert_int_equal(count_segments(client, &buffer), SMALL_BUFFERS);
        MUST(gpupool_sleep(client, &buffer, GPUPOOL_KEEP_NOTHING, NULL));
        MUST(gpupool_release(other, &large, GPUPOOL_NO_STREAM));
        MUST(gpupool_wake(client, &buffer, NULL, GPUPOOL_FOREVER, 0));
        assert_int_equal(count_segments(client, &buffer), 1);
        assert_ptr_equal(buffer.data, memory);
        memset((char *)buffer.data + 256 * MIB - 4096, 5, 4096);
        MUST(gpupool_sleep(client, &buffer, GPUPOOL_KEEP_NOTHING, NULL));
        large = acquire_sleeper(other, 15 * 256 * MIB);
        MUST(gpupool_wake(client, &buffer, NULL, GPUPOOL_FOREVER, 0));
        assert_ptr_equal(buffer.data, memory);
        memset((char *)buffer.data + 256 * MIB - 4096, 5, 4096);
    }
    MUST(gpupool_release(client, &buffer, NULL));
    MUST(gpupool_release(other, &large, NULL));
    gpupool_close(other);
    gpupool_close(client);
    sleep_stop(&daemon);
}

/* --- the memory of sleepers --- */

/* The daemon can free it: no process maps it any more. */
static void memory_that_went_back_is_the_daemons(void **state) {
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *client = sleep_open(&daemon, 0);
    struct gpupool_buffer buffer = acquire_sleeper(client, SLEEPER_BYTES);
    MUST(puppet_write_pattern(client, &buffer, 1, NULL));
    MUST(gpupool_sleep(client, &buffer, GPUPOOL_KEEP_IN_HOST, NULL));
    cJSON_Delete(daemon_ask(&daemon, "{\"command\":\"trim\"}"));
    WAIT_UNTIL(daemon_pool(&daemon, "device", 0, "reserved_bytes") == 0);
    MUST(gpupool_wake(client, &buffer, NULL, GPUPOOL_FOREVER, 0));
    MUST(puppet_read_pattern(client, &buffer, 1, NULL));
    MUST(gpupool_release(client, &buffer, NULL));
    gpupool_close(client);
    sleep_stop(&daemon);
}

/* Two processes have all of the pool in turns. */
static void two_processes_take_turns_with_one_pool(void **state) {
    struct puppet puppets[2];
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start_with(&daemon,
                     &(struct daemon_options){.config = "[device]\nexport = vmm\nlimit = 64MiB\n[host]\n"
                                                        "limit = 256MiB\nstep = 4MiB\n"});
    for (unsigned i = 0; i < 2; i++) {
        puppet_connect(&puppets[i], &daemon);
        PUPPET_MUST(&puppets[i], puppet_acquire(&puppets[i], 0, GPUPOOL_POOL_DEVICE, POOL_BYTES,
                                                GPUPOOL_FOREVER, GPUPOOL_CAN_SLEEP));
        PUPPET_MUST(&puppets[i], puppet_fill(&puppets[i], 0, 1 + i));
        PUPPET_MUST(&puppets[i], puppet_sleep(&puppets[i], 0, GPUPOOL_KEEP_IN_HOST));
    }
    for (unsigned round = 0; round < 6; round++) {
        struct puppet *puppet = &puppets[round % 2], *other = &puppets[1 - round % 2];
        PUPPET_MUST(puppet, puppet_wake(puppet, 0, GPUPOOL_FOREVER));
        PUPPET_MUST_BE(other, puppet_wake(other, 0, GPUPOOL_NOW), GPUPOOL_E_EXHAUSTED);
        PUPPET_MUST(puppet, puppet_check(puppet, 0, 1 + round % 2));
        PUPPET_MUST(puppet, puppet_sleep(puppet, 0, GPUPOOL_KEEP_IN_HOST));
    }
    puppet_quit(&puppets[0]);
    puppet_quit(&puppets[1]);
    sleep_stop(&daemon);
}

/* A wake waits for memory as an acquire does. */
static void a_wake_waits_for_room(void **state) {
    struct puppet sleeper, other;
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    for (unsigned kind = 0; kind < CLIENT_KINDS; kind++) {
        sleep_start(&daemon);
        puppet_start(&sleeper, &daemon);
        PUPPET_MUST(&sleeper, puppet_call(&sleeper, &(struct puppet_command){.verb = PUPPET_OPEN,
                                                                             .flags = client_kinds[kind]}));
        puppet_start(&other, &daemon);
        PUPPET_MUST(&other, puppet_call(&other, &(struct puppet_command){.verb = PUPPET_OPEN}));
        PUPPET_MUST(&sleeper, puppet_acquire(&sleeper, 0, GPUPOOL_POOL_DEVICE, SLEEPER_BYTES, GPUPOOL_FOREVER,
                                             GPUPOOL_CAN_SLEEP));
        PUPPET_MUST(&sleeper, puppet_fill(&sleeper, 0, 9));
        PUPPET_MUST(&sleeper, puppet_sleep(&sleeper, 0, GPUPOOL_KEEP_IN_HOST));
        PUPPET_MUST(&other, puppet_acquire(&other, 0, GPUPOOL_POOL_DEVICE, POOL_BYTES, GPUPOOL_FOREVER, 0));
        PUPPET_MUST_BE(&sleeper, puppet_wake(&sleeper, 0, GPUPOOL_NOW), GPUPOOL_E_EXHAUSTED);
        PUPPET_MUST_BE(&sleeper, puppet_query(&sleeper, 0), GPUPOOL_E_INVALID); /* it sleeps still */
        puppet_send(&sleeper, &(struct puppet_command){.verb = PUPPET_WAKE, .timeout_ns = GPUPOOL_FOREVER});
        WAIT_UNTIL(daemon_sum(&daemon, "waiters") == 1);
        assert_false(puppet_has_answered(&sleeper));
        PUPPET_MUST(&other, puppet_release(&other, 0));
        PUPPET_MUST(&sleeper, puppet_receive(&sleeper));
        PUPPET_MUST(&sleeper, puppet_check(&sleeper, 0, 9));
        PUPPET_MUST(&sleeper, puppet_release(&sleeper, 0));
        puppet_quit(&other);
        puppet_quit(&sleeper);
        sleep_stop(&daemon);
    }
}

/* Idle memory of the process itself makes room for a wake that does not wait. */
static void idle_memory_of_the_process_makes_room(void **state) {
    struct gpupool_buffer large;
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *client = sleep_open(&daemon, 0);
    struct gpupool_buffer buffer = acquire_sleeper(client, SLEEPER_BYTES);
    MUST(gpupool_sleep(client, &buffer, GPUPOOL_KEEP_NOTHING, NULL));
    MUST(gpupool_acquire(client, device_pool(client), POOL_BYTES, NULL, GPUPOOL_FOREVER, 0, &large));
    MUST(gpupool_release(client, &large, GPUPOOL_NO_STREAM));
    assert_int_equal(leased_on_device(&daemon), POOL_BYTES); /* in the cache */
    MUST(gpupool_wake(client, &buffer, NULL, GPUPOOL_NOW, 0));
    MUST(gpupool_release(client, &buffer, NULL));
    gpupool_close(client);
    sleep_stop(&daemon);
}

/* --- ends --- */

static void a_sleeping_buffer_is_released(void **state) {
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    for (unsigned kind = 0; kind < CLIENT_KINDS; kind++) {
        struct gpupool_client *client = sleep_open(&daemon, client_kinds[kind]);
        for (unsigned i = 0; i < KEEPS; i++) {
            struct gpupool_buffer buffer = acquire_sleeper(client, SLEEPER_BYTES), copy;
            MUST(gpupool_sleep(client, &buffer, keeps[i], NULL));
            copy = buffer;
            MUST(gpupool_release(client, &buffer, NULL));
            assert_null(buffer.data);
            MUST(gpupool_trim(client, NULL));
            WAIT_UNTIL(daemon_sum(&daemon, "leased_bytes") == 0);
            MUST_BE(gpupool_release(client, &copy, NULL), GPUPOOL_E_STALE);
            MUST_BE(gpupool_wake(client, &copy, NULL, GPUPOOL_NOW, 0), GPUPOOL_E_INVALID);
        }
        gpupool_close(client);
    }
    sleep_stop(&daemon);
}

static void a_client_closes_with_sleeping_buffers(void **state) {
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    for (unsigned kind = 0; kind < CLIENT_KINDS; kind++) {
        struct gpupool_client *client = sleep_open(&daemon, client_kinds[kind]);
        struct gpupool_buffer buffers[KEEPS];
        for (unsigned i = 0; i < KEEPS; i++) {
            buffers[i] = acquire_sleeper(client, SLEEPER_BYTES);
            MUST(gpupool_sleep(client, &buffers[i], keeps[i], NULL));
        }
        gpupool_close(client);
        WAIT_UNTIL(daemon_sum(&daemon, "leased_bytes") == 0);
        for (unsigned i = 0; i < KEEPS; i++)
            assert_false(is_readable(buffers[i].data));
    }
    sleep_stop(&daemon);
}

static void a_process_that_dies_asleep_gives_all_back(void **state) {
    struct test_daemon daemon;
    struct puppet puppet;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    for (unsigned kind = 0; kind < CLIENT_KINDS; kind++) {
        puppet_start(&puppet, &daemon);
        PUPPET_MUST(&puppet, puppet_call(&puppet, &(struct puppet_command){.verb = PUPPET_OPEN,
                                                                           .flags = client_kinds[kind]}));
        for (unsigned i = 0; i < KEEPS; i++) {
            PUPPET_MUST(&puppet, puppet_acquire(&puppet, i, GPUPOOL_POOL_DEVICE, SLEEPER_BYTES,
                                                GPUPOOL_FOREVER, GPUPOOL_CAN_SLEEP));
            PUPPET_MUST(&puppet, puppet_sleep(&puppet, i, keeps[i]));
        }
        assert_true(daemon_sum(&daemon, "leased_bytes") >= 2 * SLEEPER_ROOM);
        puppet_kill(&puppet);
        WAIT_UNTIL(daemon_sum(&daemon, "leased_bytes") == 0 && daemon_sum(&daemon, "quarantined_bytes") == 0);
    }
    sleep_stop(&daemon);
}

static void a_forked_child_is_refused(void **state) {
    struct test_daemon daemon;
    struct puppet puppet;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    puppet_connect(&puppet, &daemon);
    for (unsigned i = 0; i < KEEPS; i++) {
        PUPPET_MUST(&puppet, puppet_acquire(&puppet, 0, GPUPOOL_POOL_DEVICE, SLEEPER_BYTES, GPUPOOL_FOREVER,
                                            GPUPOOL_CAN_SLEEP));
        PUPPET_MUST(&puppet, puppet_fill(&puppet, 0, 1));
        PUPPET_MUST(&puppet, puppet_sleep(&puppet, 0, keeps[i]));
        PUPPET_MUST(&puppet, puppet_do(&puppet, PUPPET_FORK_TRY, 0));
        assert_int_equal(puppet.answer.number, 0);
        PUPPET_MUST(&puppet, puppet_wake(&puppet, 0, GPUPOOL_FOREVER));
        if (keeps[i] != GPUPOOL_KEEP_NOTHING)
            PUPPET_MUST(&puppet, puppet_check(&puppet, 0, 1));
        PUPPET_MUST(&puppet, puppet_release(&puppet, 0));
    }
    puppet_quit(&puppet);
    sleep_stop(&daemon);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contents_are_kept_as_asked),
        cmocka_unit_test(sleep_is_behind_the_work_of_the_stream),
        cmocka_unit_test(a_large_buffer_has_few_segments),
        cmocka_unit_test(the_segments_may_be_of_other_sizes_after_a_sleep),
        cmocka_unit_test(memory_that_went_back_is_the_daemons),
        cmocka_unit_test(two_processes_take_turns_with_one_pool),
        cmocka_unit_test(a_wake_waits_for_room),
        cmocka_unit_test(idle_memory_of_the_process_makes_room),
        cmocka_unit_test(a_sleeping_buffer_is_released),
        cmocka_unit_test(a_client_closes_with_sleeping_buffers),
        cmocka_unit_test(a_process_that_dies_asleep_gives_all_back),
        cmocka_unit_test(a_forked_child_is_refused),
    };

    int status = puppet_main(argc, argv, NULL);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, NULL, NULL));
}
