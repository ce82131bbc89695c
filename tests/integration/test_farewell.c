/* SPDX-License-Identifier: Apache-2.0 */
/* Farewells of clients whose streams still work: no other client gets their memory before the work is done.
 * The work stands at a gate that the test opens, so that an early grant has all the time to happen. */
#include "client/api/binding.h"
#include "tests/integration/cache_fixture.h"
#include "tests/integration/gate.h"

#define LARGE (40 * MIB) /* no two of them fit */

/* When the memory is given up. */
enum how {
    HOW_HELD,     /* by the farewell itself */
    HOW_RELEASED, /* before, behind a fence */
    HOW_CACHED,   /* before, into the client's cache */
};

static void *close_client(void *client) {
    gpupool_close(client);
    return NULL;
}

static void leave(enum how how, unsigned kind) {
    struct gpupool_client *client, *leaver;
    struct gpupool_buffer buffer;
    struct puppet puppet;
    struct gate gate;
    pthread_t thread;

    empty_the_pools();
    client = open_cached(); /* whose the gate is */
    leaver = open_client(&daemon_, how == HOW_CACHED ? 0 : GPUPOOL_OPEN_NO_CACHE, GPUPOOL_FOREVER);
    gate_init(&gate, client);
    puppet_connect(&puppet, &daemon_);
    buffer = acquire(leaver, kind, LARGE, gate.stream);
    gate_close(&gate);
    if (how != HOW_HELD)
        MUST(gpupool_release(leaver, &buffer, gate.stream));
    assert_int_equal(pthread_create(&thread, NULL, close_client, leaver), 0);
    gate_hands_over(&gate, kind, LARGE, &puppet);
    TEST_JOIN(thread, NULL);
    puppet_quit(&puppet);
    gate_deinit(&gate);
    close_cached(client);
}

static void leave_in_both_kinds(enum how how) {
    if (!test_has_device())
        skip();
    leave(how, GPUPOOL_POOL_DEVICE);
    leave(how, GPUPOOL_POOL_HOST);
}

static void a_farewell_waits_for_the_work_on_what_is_held(void **state) {
    (void)state;
    leave_in_both_kinds(HOW_HELD);
}

static void a_farewell_waits_for_the_work_on_what_was_released(void **state) {
    (void)state;
    leave_in_both_kinds(HOW_RELEASED);
}

static void a_farewell_waits_for_the_work_on_what_is_kept(void **state) {
    (void)state;
    leave_in_both_kinds(HOW_CACHED);
}

/* --- at the end of a process, beside threads --- */

struct writer {
    char *memory;
    atomic_uint rounds;
    atomic_bool ends;
};

static void *keep_writing(void *argument) {
    struct writer *writer = argument;

    while (!atomic_load(&writer->ends)) {
        memset(writer->memory, 0x55, LARGE);
        atomic_fetch_add(&writer->rounds, 1);
    }
    return NULL;
}

static bool is_all(const char *memory, char byte) {
    for (uint64_t i = 0; i < LARGE; i++)
        if (memory[i] != byte)
            return false;
    return true;
}

static void a_thread_that_writes_on_after_the_farewell_writes_to_no_pool(void **state) {
    struct gpupool_client *leaver, *next;
    struct gpupool_buffer held[2] = {0}, own;
    struct writer writer = {0};
    pthread_t thread;

    (void)state;
    empty_the_pools();
    leaver = open_client(&daemon_, 0, GPUPOOL_FOREVER);
    held[0] = acquire(leaver, GPUPOOL_POOL_HOST, LARGE, GPUPOOL_NO_STREAM);
    if (test_has_device())
        held[1] = acquire(leaver, GPUPOOL_POOL_DEVICE, LARGE, NULL);
    writer.memory = held[0].data;
    assert_int_equal(pthread_create(&thread, NULL, keep_writing, &writer), 0);
    WAIT_UNTIL(atomic_load(&writer.rounds) > 0);

    gpupool_internal_say_farewell();
    assert_false(gpupool_internal_is_connected(leaver));
    assert_int_equal(daemon_sum(&daemon_, "quarantined_bytes"), 0);
    next = open_client(&daemon_, 0, GPUPOOL_FOREVER);
    own = acquire(next, GPUPOOL_POOL_HOST, LARGE, GPUPOOL_NO_STREAM); /* no two of them fit */
    memset(own.data, 7, LARGE);
    unsigned before = atomic_load(&writer.rounds);
    WAIT_UNTIL(atomic_load(&writer.rounds) > before + 1);
    assert_true(is_all(own.data, 7));
    atomic_store(&writer.ends, true);
    TEST_JOIN(thread, NULL);
    assert_true(is_all(writer.memory, 0x55));
    gpupool_close(leaver);
    gpupool_close(next);
}

static struct gpupool_client *open_impatient(void) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client = NULL;

    options.socket = daemon_.socket;
    options.answer_timeout_ns = NS_PER_S / 10;
    MUST(gpupool_open(&options, &client));
    return client;
}

static void a_process_whose_gpu_never_ends_says_no_farewell(void **state) {
    struct gpupool_client *client;
    struct gpupool_buffer held;
    struct gate gate;

    (void)state;
    if (!test_has_device())
        skip();
    empty_the_pools();
    client = open_impatient();
    gate_init(&gate, client);
    held = acquire(client, GPUPOOL_POOL_DEVICE, LARGE, gate.stream);
    gate_close(&gate);
    gpupool_internal_say_farewell(); /* returns */
    assert_false(gate_was_passed(&gate));
    assert_true(gpupool_internal_is_connected(client));
    gate_open(&gate);
    MUST(gpupool_release(client, &held, gate.stream));
    gate_deinit(&gate);
    gpupool_close(client);
}

static void a_forked_child_says_no_farewell_for_its_parent(void **state) {
    struct gpupool_client *client;
    struct gpupool_buffer held;
    int status;

    (void)state;
    empty_the_pools();
    client = open_cached();
    held = acquire(client, GPUPOOL_POOL_HOST, LARGE, GPUPOOL_NO_STREAM);
    memset(held.data, 7, LARGE);
    pid_t pid = fork();
    if (pid == 0) {
        gpupool_internal_say_farewell();
        _exit(0);
    }
    assert_true(pid > 0);
    assert_int_equal(test_reap(pid, &status), 0);
    assert_int_equal(status, 0);
    assert_true(gpupool_internal_is_connected(client));
    assert_true(is_all(held.data, 7));
    MUST(gpupool_release(client, &held, GPUPOOL_NO_STREAM));
    gpupool_close(client);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_farewell_waits_for_the_work_on_what_is_held),
        cmocka_unit_test(a_farewell_waits_for_the_work_on_what_was_released),
        cmocka_unit_test(a_farewell_waits_for_the_work_on_what_is_kept),
        cmocka_unit_test(a_thread_that_writes_on_after_the_farewell_writes_to_no_pool),
        cmocka_unit_test(a_process_whose_gpu_never_ends_says_no_farewell),
        cmocka_unit_test(a_forked_child_says_no_farewell_for_its_parent),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
