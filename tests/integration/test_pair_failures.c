/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs that do not get the memory that they ask for: impossible sizes, pools without room, drivers and
 * daemons that fail. Their old memory stays, and nothing is left on loan. */
#include <sys/wait.h>

#include "tests/integration/pair_fixture.h" /* says how many GPUs there are, before */

#include "tests/integration/gate.h"

#define BEYOND (UINT64_C(100) << 50)

/* --- refusals --- */

static void what_cannot_be_is_refused_and_changes_nothing(void **state) {
    struct gpupool_pair pair;
    unsigned char untouched[sizeof pair];

    (void)state;
    if (!test_has_device())
        skip();
    struct gpupool_client *client = open_cached();
    memset(&pair, 0x5a, sizeof pair);
    memset(untouched, 0x5a, sizeof untouched);
    MUST_BE(gpupool_pair_init(&pair, NULL, 0, 0), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_pair_init(NULL, client, 0, 0), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_pair_init(&pair, client, 0, 2), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_pair_init(&pair, client, -2, 0), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_pair_init(&pair, client, 60, 0), GPUPOOL_E_NO_POOL);
    if (test_is_simulated()) /* one that this process sees and the daemon does not serve */
        MUST_BE(gpupool_pair_init(&pair, client, TEST_SIM_GPUS, 0), GPUPOOL_E_NO_POOL);
    assert_memory_equal(&pair, untouched, sizeof untouched);

    MUST_BE(gpupool_pair_grow_host(NULL, 1, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_pair_grow_device(NULL, 1, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_pair_copy_to_host(NULL, 1, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_pair_copy_to_device(NULL, 1, NULL), GPUPOOL_E_INVALID);
    MUST(gpupool_pair_clear(NULL, NULL));
    memset(&pair, 0, sizeof pair);
    MUST(gpupool_pair_clear(&pair, NULL));

    pair = make_pair(client, 0, 0);
    for (unsigned i = 0; i < 2; i++) {
        void *memory = get(&pair, sides[i], SMALL_BYTES, NULL);
        fill(&pair, sides[i], SMALL_BYTES, 8);
        MUST_BE(ask(&pair, sides[i], BEYOND, &memory, NULL), GPUPOOL_E_TOO_LARGE);
        MUST_BE(ask(&pair, sides[i], POOL_MIB * MIB + 1, &memory, NULL), GPUPOOL_E_TOO_LARGE);
        assert_ptr_equal(memory, side_of(&pair, sides[i])->data);
        assert_true(has(&pair, sides[i], SMALL_BYTES, 8));
    }
    clear(&pair, NULL);
    close_cached(client);
}

static void minus_one_is_the_current_device_of_that_moment(void **state) {
    (void)state;
    if (!test_has_device())
        skip();
    struct gpupool_client *client = open_cached();
    assert_int_equal(make_pair(client, -1, 0).device, 0);
    if (test_is_simulated()) {
        unsigned current = 0;
        assert_int_equal(gpu_sim_set_device(1), 0);
        struct gpupool_pair pair = make_pair(client, -1, 0);
        struct gpupool_pair first = make_pair(client, 0, 0);
        get(&first, HOST, SMALL_BYTES, NULL);
        get(&first, ON_DEVICE, SMALL_BYTES, NULL);
        assert_int_equal(gpu_sim_set_device(0), 0);
        assert_int_equal(pair.device, 1);
        get(&pair, ON_DEVICE, SMALL_BYTES, NULL);
        assert_int_equal(pair.on_device.buffer.device, 1);
        assert_int_equal(first.on_device.buffer.device, 0);
        assert_int_equal(gpu_sim_set_device(1), 0);
        clear(&pair, NULL);
        clear(&first, NULL);
        MUST(devices_current(&client->session.devices, &current));
        assert_int_equal(current, 1);
        assert_int_equal(gpu_sim_set_device(0), 0);
    }
    close_cached(client);
}

static void nothing_of_a_pair_lands_in_a_graph(void **state) {
    unsigned operations = 1;
    char memory[16];
    void *captured, *found;

    (void)state;
    if (!test_has_device() || !test_is_simulated())
        skip();
    struct gpupool_client *client = open_cached();
    struct gpupool_pair pair = make_pair(client, 0, GPUPOOL_PAIR_ZERO);
    MUST(gpupool_stream_create(client, 0, &captured));
    get(&pair, HOST, SMALL_BYTES, captured);
    get(&pair, ON_DEVICE, SMALL_BYTES, captured);
    MUST(gpupool_stream_synchronize(client, 0, captured));
    struct gpupool_pair before = pair;
    assert_int_equal(gpu_sim_capture_begin(0, captured), 0);
    for (unsigned i = 0; i < 2; i++) {
        get(&pair, sides[i], SMALL_BYTES, captured); /* what is there can be used in it */
        MUST_BE(ask(&pair, sides[i], LARGE_BYTES, &found, captured), GPUPOOL_E_CAPTURING);
    }
    MUST_BE(gpupool_pair_adopt_host(&pair, memory, sizeof memory, captured), GPUPOOL_E_CAPTURING);
    MUST_BE(gpupool_pair_clear(&pair, captured), GPUPOOL_E_CAPTURING);
    assert_int_equal(gpu_sim_capture_end(0, captured, &operations), 0);
    assert_int_equal(operations, 0);
    assert_memory_equal(&pair, &before, sizeof pair);
    /* but a copy that is asked for does */
    assert_int_equal(gpu_sim_capture_begin(0, captured), 0);
    MUST(gpupool_pair_copy_to_device(&pair, SMALL_BYTES, captured));
    assert_int_equal(gpu_sim_capture_end(0, captured, &operations), 0);
    assert_int_equal(operations, 1);
    clear(&pair, captured);
    MUST(gpupool_stream_destroy(client, 0, captured));
    close_cached(client);
}

/* Work that has to be done on return is done on the default stream, which a capture may forbid. */
static void what_has_no_stream_spoils_no_capture(void **state) {
    unsigned operations = 1;
    void *found;

    (void)state;
    if (!test_has_device() || !test_is_simulated())
        skip();
    struct gpupool_client *client = open_cached();
    struct gpupool_pair pair = make_pair(client, 0, GPUPOOL_PAIR_ZERO);
    get(&pair, HOST, SMALL_BYTES, NULL);
    get(&pair, ON_DEVICE, SMALL_BYTES, NULL);
    struct gpupool_pair before = pair;
    assert_int_equal(gpu_sim_capture_begin(0, NULL), 0);
    MUST_BE(ask(&pair, ON_DEVICE, LARGE_BYTES, &found, GPUPOOL_NO_STREAM), GPUPOOL_E_CAPTURING);
    MUST_BE(gpupool_pair_copy_to_host(&pair, SMALL_BYTES, GPUPOOL_NO_STREAM), GPUPOOL_E_CAPTURING);
    MUST_BE(gpupool_pair_copy_to_device(&pair, SMALL_BYTES, GPUPOOL_NO_STREAM), GPUPOOL_E_CAPTURING);
    MUST(gpupool_pair_copy_to_device(&pair, 0, GPUPOOL_NO_STREAM));
    assert_memory_equal(&pair, &before, sizeof pair);
    assert_int_equal(gpu_sim_capture_end(0, NULL, &operations), 0);
    assert_int_equal(operations, 0);
    get(&pair, ON_DEVICE, LARGE_BYTES, GPUPOOL_NO_STREAM);
    assert_true(has(&pair, ON_DEVICE, LARGE_BYTES, 0));
    clear(&pair, GPUPOOL_NO_STREAM);
    close_cached(client);
}

static void a_forked_child_is_refused_what_a_pair_would_have_to_do(void **state) {
    (void)state;
    if (!test_has_device() || TEST_IS_THREAD_SANITIZED)
        skip();
    struct gpupool_client *client = open_cached();
    struct gpupool_pair pair = make_pair(client, 0, 0), copy;
    get(&pair, HOST, SMALL_BYTES, NULL);
    pid_t pid = fork();
    if (pid == 0)
        _exit((gpupool_pair_grow_host(&pair, LARGE_BYTES, NULL) != GPUPOOL_E_FORKED) |
              (gpupool_pair_grow_device(&pair, LARGE_BYTES, NULL) != GPUPOOL_E_FORKED) << 1 |
              (gpupool_pair_clear(&pair, NULL) != GPUPOOL_E_FORKED) << 2 |
              (gpupool_pair_init(&copy, client, 0, 0) != GPUPOOL_E_FORKED) << 3);
    assert_int_equal(test_wait(pid), 0);
    clear(&pair, NULL);
    close_cached(client);
}

/* --- without room --- */

/* The pool's limit is below the old block and the new one together. */
static void room_for_one(enum side side, uint32_t open_flags) {
    empty_the_pools();
    struct gpupool_client *client = open_client(&daemon_, open_flags, GPUPOOL_FOREVER);
    struct gpupool_pair pair = make_pair(client, 0, 0);

    pair.timeout_ns = GPUPOOL_FOREVER; /* but there is nothing to wait for */
    if (side == HOST) {                /* whose segments are not made anew while they are mapped */
        struct gpupool_buffer all = acquire(client, GPUPOOL_POOL_HOST, 60 * MIB, NULL);
        MUST(gpupool_release(client, &all, GPUPOOL_NO_STREAM));
    }
    get(&pair, side, 30 * MIB, NULL);
    get(&pair, side, 40 * MIB, NULL);
    fill(&pair, side, 40 * MIB, 31);
    get(&pair, side, 48 * MIB, NULL);
    fill(&pair, side, 48 * MIB, 32);
    assert_true(has(&pair, side, 48 * MIB, 32));
    clear(&pair, NULL);
    close_cached(client);
}

static void a_pool_with_room_for_one_block_is_enough(void **state) {
    (void)state;
    if (!test_has_device())
        skip();
    for (unsigned i = 0; i < 2; i++) {
        room_for_one(sides[i], 0);
        room_for_one(sides[i], GPUPOOL_OPEN_NO_CACHE);
    }
}

/* Another process has what a second block would need. */
static void crowded(enum side side) {
    const unsigned kind = side == HOST ? GPUPOOL_POOL_HOST : GPUPOOL_POOL_DEVICE;
    struct puppet puppet;
    void *memory;

    empty_the_pools();
    struct gpupool_client *client = open_client(&daemon_, GPUPOOL_OPEN_NO_CACHE, 0);
    struct gpupool_pair pair = make_pair(client, 0, 0);
    puppet_start(&puppet, &daemon_);
    PUPPET_MUST(&puppet, puppet_call(&puppet, &(struct puppet_command){.verb = PUPPET_OPEN,
                                                                       .flags = GPUPOOL_OPEN_NO_CACHE}));
    /* all in one segment, so that nothing has to be made */
    PUPPET_MUST(&puppet, puppet_acquire(&puppet, 0, kind, 60 * MIB, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(&puppet, puppet_release(&puppet, 0));
    PUPPET_MUST(&puppet, puppet_acquire(&puppet, 0, kind, 40 * MIB, GPUPOOL_FOREVER, 0));
    get(&pair, side, 12 * MIB, NULL);
    fill(&pair, side, 12 * MIB, 41);
    struct gpupool_pair before = pair;
    /* who does not wait keeps what there is, */
    pair.timeout_ns = before.timeout_ns = GPUPOOL_NOW;
    MUST_BE(ask(&pair, side, 16 * MIB, &memory, NULL), GPUPOOL_E_EXHAUSTED);
    assert_memory_equal(&pair, &before, sizeof pair);
    assert_true(has(&pair, side, 12 * MIB, 41));
    /* who waits gives it for what is more; */
    pair.timeout_ns = 20 * NS_PER_MS;
    get(&pair, side, 16 * MIB, NULL);
    fill(&pair, side, 16 * MIB, 42);
    /* and where that is not enough, there is nothing, which is said */
    MUST_BE(ask(&pair, side, 40 * MIB, &memory, NULL), GPUPOOL_E_EXHAUSTED);
    assert_non_null(strstr(gpupool_error_text(), "given back to make room"));
    expect_empty(&pair);
    get(&pair, side, 12 * MIB, NULL);
    /* memory of the caller's own is not let go of */
    char *own = malloc(4096);
    assert_non_null(own);
    MUST(side == HOST ? gpupool_pair_adopt_host(&pair, own, 4096, NULL)
                      : gpupool_pair_adopt_device(&pair, own, 4096, NULL));
    before = pair;
    MUST_BE(ask(&pair, side, 40 * MIB, &memory, NULL), GPUPOOL_E_EXHAUSTED);
    assert_memory_equal(&pair, &before, sizeof pair);
    clear(&pair, NULL);
    free(own);
    puppet_quit(&puppet);
    close_cached(client);
}

static void without_room_the_old_block_goes_first_for_who_waits(void **state) {
    (void)state;
    if (!test_has_device())
        skip();
    crowded(HOST);
    crowded(ON_DEVICE);
}

/* A kernel that failed takes its stream with it: what was enqueued behind it never comes. */
static void who_waits_for_ever_does_not_wait_for_a_device_that_failed(void **state) {
    struct gate gate;
    void *memory;

    (void)state;
    if (!test_has_device() || !test_is_simulated())
        skip();
    empty_the_pools();
    struct gpupool_client *client = open_cached();
    struct gpupool_pair pair = make_pair(client, 0, 0);
    gate_init(&gate, client);
    pair.timeout_ns = GPUPOOL_FOREVER;
    get(&pair, ON_DEVICE, 40 * MIB, gate.stream);
    gate_close(&gate);
    MUST(gpupool_set(client, 0, pair.on_device.data, 1, MIB, gate.stream));
    assert_int_equal(gpu_sim_fail("stream_query", 1, GPU_ERROR_UNKNOWN), 0);
    MUST_BE(ask(&pair, ON_DEVICE, 48 * MIB, &memory, gate.stream), GPUPOOL_E_DRIVER);
    assert_true(gpu_sim_failed());
    assert_int_equal(gpu_sim_fail("any", 0, 0), 0);
    assert_non_null(strstr(gpupool_error_text(), "waiting for the stream"));
    expect_empty(&pair);
    gate_open(&gate);
    get(&pair, ON_DEVICE, 48 * MIB, gate.stream);
    clear(&pair, gate.stream);
    gate_deinit(&gate);
    close_cached(client);
}

/* --- failures --- */

/* Grows with the nth call of the driver failing. Returns whether one did. */
static bool grow_with_fault(unsigned nth, enum side side, uint32_t open_flags, uint32_t flags, void *stream) {
    struct gpupool_client *client = open_client(&daemon_, open_flags, GPUPOOL_FOREVER);
    struct gpupool_pair pair = make_pair(client, 1, flags);
    bool creates = stream == (void *)1;
    void *memory;

    if (creates)
        MUST(gpupool_stream_create(client, 1, &stream));
    get(&pair, side, SMALL_BYTES, stream);
    MUST(client->session.devices.gpu->device_synchronize(1));
    fill(&pair, side, SMALL_BYTES, 51);
    struct gpupool_pair before = pair;
    assert_int_equal(gpu_sim_fail("any", nth, GPU_ERROR_UNKNOWN), 0);
    int r = ask(&pair, side, 20 * MIB, &memory, stream); /* more than is mapped */
    bool failed = gpu_sim_failed();
    gpu_sim_fail("any", 0, 0);
    if (r == 0) {
        MUST(client->session.devices.gpu->device_synchronize(1));
        assert_true((flags & GPUPOOL_PAIR_ZERO) == 0 || has(&pair, side, 20 * MIB, 0));
    } else {
        assert_true(failed);
        assert_int_equal(r, GPUPOOL_E_DRIVER);
        assert_non_null(strstr(gpupool_error_text(), "side of a pair on device 1"));
        assert_memory_equal(&pair, &before, sizeof pair);
        assert_true(has(&pair, side, SMALL_BYTES, 51));
    }
    /* clearing too: what does not go back stays the pair's */
    before = pair;
    assert_int_equal(gpu_sim_fail("any", nth, GPU_ERROR_UNKNOWN), 0);
    r = gpupool_pair_clear(&pair, stream);
    gpu_sim_fail("any", 0, 0);
    if (r < 0)
        assert_memory_equal(&pair, &before, sizeof pair);
    else
        expect_empty(&pair);
    clear(&pair, stream);
    assert_true(stream_heaps_are_valid(client));
    MUST(gpupool_trim(client, NULL));
    WAIT_UNTIL(leased() == 0);
    if (creates)
        MUST(gpupool_stream_destroy(client, 1, stream));
    close_cached(client);
    return failed;
}

static void any_failing_call_of_the_driver_leaves_the_pair_as_it_was(void **state) {
    void *const streams[] = {NULL, GPUPOOL_PER_THREAD, (void *)1, GPUPOOL_NO_STREAM,
                             GPUPOOL_PAIR_ALL_STREAMS};
    unsigned rounds = 0;

    (void)state;
    if (!test_is_simulated())
        skip();
    for (unsigned way = 0; way < 40; way++) {
        unsigned nth = 1;
        while (grow_with_fault(nth, sides[way & 1], (way & 2) != 0 ? GPUPOOL_OPEN_NO_CACHE : 0,
                               (way & 4) != 0 ? GPUPOOL_PAIR_ZERO : 0, streams[way >> 3]))
            nth++;
        assert_true(nth > 1);
        rounds += nth;
    }
    print_message("%u rounds\n", rounds);
}

static void a_daemon_that_is_gone_costs_no_pair_its_memory(void **state) {
    struct test_daemon daemon;
    char text[TEST_CONFIG_SIZE];
    void *memory;

    (void)state;
    if (!test_is_simulated())
        skip();
    daemon_start(&daemon, &(struct daemon_options){.config = test_config(text, POOL_MIB, POOL_MIB)});
    struct gpupool_client *client = open_client(&daemon, 0, GPUPOOL_FOREVER);
    struct gpupool_pair pair = make_pair(client, 0, 0);
    for (unsigned i = 0; i < 2; i++) {
        get(&pair, sides[i], SMALL_BYTES, NULL);
        fill(&pair, sides[i], SMALL_BYTES, 61);
    }
    daemon_crash(&daemon);
    struct gpupool_pair before = pair;
    for (unsigned i = 0; i < 2; i++) {
        MUST_BE(ask(&pair, sides[i], 50 * MIB, &memory, NULL), GPUPOOL_E_DISCONNECTED);
        assert_true(has(&pair, sides[i], SMALL_BYTES, 61));
    }
    assert_memory_equal(&pair, &before, sizeof pair);
    clear(&pair, NULL); /* into what the client keeps */
    gpupool_close(client);
    daemon_remove(&daemon);
}

/* A limit that the client remembers is no reason to give a block up. */
static void where_the_limit_was_raised_nothing_is_given_up(void **state) {
    struct test_daemon daemon;
    char text[TEST_CONFIG_SIZE];
    void *memory;

    (void)state;
    if (!test_is_simulated())
        skip();
    daemon_start(&daemon, &(struct daemon_options){.config = test_config(text, POOL_MIB, POOL_MIB)});
    struct gpupool_client *client = open_client(&daemon, 0, GPUPOOL_FOREVER);
    struct gpupool_pair pair = make_pair(client, 0, 0);
    get(&pair, ON_DEVICE, 40 * MIB, NULL);
    fill(&pair, ON_DEVICE, 40 * MIB, 63);
    daemon_write_config(&daemon, test_config(text, 4 * POOL_MIB, POOL_MIB));
    daemon_signal(&daemon, SIGHUP);
    WAIT_UNTIL(daemon_pool(&daemon, "device", 0, "limit_bytes") == 4 * POOL_MIB * MIB);
    struct gpupool_pair before = pair;
    assert_int_equal(gpu_sim_fail(test_device_call("ipc_open"), 1, GPU_ERROR_UNKNOWN),
                     0); /* there would be room, but */
    MUST_BE(ask(&pair, ON_DEVICE, 48 * MIB, &memory, NULL), GPUPOOL_E_DRIVER);
    assert_true(gpu_sim_failed());
    assert_int_equal(gpu_sim_fail("any", 0, 0), 0);
    assert_memory_equal(&pair, &before, sizeof pair);
    assert_true(has(&pair, ON_DEVICE, 40 * MIB, 63));
    get(&pair, ON_DEVICE, 48 * MIB, NULL);
    clear(&pair, NULL);
    gpupool_close(client);
    daemon_stop(&daemon);
}

/* There is no room for both blocks, but nothing would come for the one that is given up. */
static void for_a_daemon_that_is_gone_nothing_is_given_up(void **state) {
    struct test_daemon daemon;
    char text[TEST_CONFIG_SIZE];
    void *memory;

    (void)state;
    if (!test_is_simulated())
        skip();
    for (unsigned i = 0; i < 2; i++) {
        daemon_start(&daemon, &(struct daemon_options){.config = test_config(text, POOL_MIB, POOL_MIB)});
        struct gpupool_client *client = open_client(&daemon, 0, GPUPOOL_FOREVER);
        struct gpupool_pair pair = make_pair(client, 0, 0);
        get(&pair, sides[i], 40 * MIB, NULL);
        fill(&pair, sides[i], 40 * MIB, 62);
        daemon_crash(&daemon);
        struct gpupool_pair before = pair;
        MUST_BE(ask(&pair, sides[i], 48 * MIB, &memory, NULL), GPUPOOL_E_DISCONNECTED);
        assert_memory_equal(&pair, &before, sizeof pair);
        assert_true(has(&pair, sides[i], 40 * MIB, 62));
        clear(&pair, NULL);
        gpupool_close(client);
        daemon_remove(&daemon);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_is_refused_and_changes_nothing),
        cmocka_unit_test(minus_one_is_the_current_device_of_that_moment),
        cmocka_unit_test(nothing_of_a_pair_lands_in_a_graph),
        cmocka_unit_test(what_has_no_stream_spoils_no_capture),
        cmocka_unit_test(a_forked_child_is_refused_what_a_pair_would_have_to_do),
        cmocka_unit_test(a_pool_with_room_for_one_block_is_enough),
        cmocka_unit_test(without_room_the_old_block_goes_first_for_who_waits),
        cmocka_unit_test(who_waits_for_ever_does_not_wait_for_a_device_that_failed),
        cmocka_unit_test(any_failing_call_of_the_driver_leaves_the_pair_as_it_was),
        cmocka_unit_test(a_daemon_that_is_gone_costs_no_pair_its_memory),
        cmocka_unit_test(for_a_daemon_that_is_gone_nothing_is_given_up),
        cmocka_unit_test(where_the_limit_was_raised_nothing_is_given_up),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
