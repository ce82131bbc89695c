/* SPDX-License-Identifier: Apache-2.0 */
/* Farewells of clients whose streams still work: no other client gets their memory before the work is done.
 * The work stands at a gate that the test opens, so that an early grant has all the time to happen. */
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

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_farewell_waits_for_the_work_on_what_is_held),
        cmocka_unit_test(a_farewell_waits_for_the_work_on_what_was_released),
        cmocka_unit_test(a_farewell_waits_for_the_work_on_what_is_kept),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
