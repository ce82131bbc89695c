/* SPDX-License-Identifier: Apache-2.0 */
/* Several GPUs, none, and drivers that fail: in the daemon and in the client. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "tests/integration/must.h"
#include "tests/integration/puppet.h"

#define POOL_MIB 32u
/* Driver calls of a client that connects, takes and gives back a device and a host buffer: all of them fail
 * once. */
#define CLIENT_CALLS 60u

static char config[TEST_CONFIG_SIZE];

static int acquire_on(struct puppet *puppet, unsigned slot, int device) {
    return puppet_call(puppet, &(struct puppet_command){.verb = PUPPET_ACQUIRE,
                                                        .slot = slot,
                                                        .kind = GPUPOOL_POOL_DEVICE,
                                                        .device = device,
                                                        .size = MIB,
                                                        .timeout_ns = GPUPOOL_FOREVER});
}

static int acquire_from(struct puppet *puppet, unsigned slot, uint32_t pool) {
    return puppet_call(
        puppet,
        &(struct puppet_command){
            .verb = PUPPET_ACQUIRE, .slot = slot, .pool = pool, .size = MIB, .timeout_ns = GPUPOOL_FOREVER});
}

static void start_daemon(struct test_daemon *daemon, const char *fault, unsigned gpus) {
    static const char *environment[2];
    environment[0] = fault;
    test_config(config, POOL_MIB, POOL_MIB);
    strcat(config, test_zero_lines());
    daemon_start(daemon,
                 &(struct daemon_options){.config = config, .environment = environment, .sim_gpus = gpus});
}

/* --- several --- */

static void devices_are_matched_by_uuid_whatever_is_visible(void **state) {
    static const char *const reversed[] = {"CUDA_VISIBLE_DEVICES=2,0", NULL};
    struct gpupool_pool pools[3];
    struct puppet plain, masked;
    struct gpupool_token token;
    struct test_daemon daemon;

    (void)state;
    if (!test_has_devices(3))
        skip();
    start_daemon(&daemon, NULL, 3);
    puppet_connect(&plain, &daemon);
    puppet_connect_as(&masked, &daemon, reversed, 0);
    PUPPET_MUST(&plain, puppet_do(&plain, PUPPET_POOL_LIST, 0));
    assert_true(plain.answer.number >= 4);
    memcpy(pools, plain.answer.pools, sizeof pools);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pools[i].device, i);
    PUPPET_MUST(&masked, puppet_do(&masked, PUPPET_POOL_LIST, 0));
    const int expected[] = {1, -1, 0};
    for (int i = 0; i < 3; i++) {
        assert_string_equal(masked.answer.pools[i].uuid, pools[i].uuid);
        assert_int_equal(masked.answer.pools[i].device, expected[i]);
    }

    /* device 0 here is device 2 there, and the memory is one */
    PUPPET_MUST(&masked, acquire_on(&masked, 0, 0));
    assert_int_equal(masked.answer.buffer.pool, pools[2].id);
    PUPPET_MUST(&masked, puppet_fill(&masked, 0, 3));
    PUPPET_MUST(&masked, puppet_share(&masked, 0, &token));
    PUPPET_MUST(&plain, puppet_attach(&plain, 0, &token));
    assert_int_equal(plain.answer.buffer.device, 2);
    PUPPET_MUST(&plain, puppet_check(&plain, 0, 3));
    assert_int_equal(daemon_pool(&daemon, "device", 2, "leases"), 2);
    assert_int_equal(daemon_pool(&daemon, "device", 0, "leases"), 0);

    /* what is not visible is refused, and takes nothing */
    PUPPET_MUST_BE(&masked, acquire_from(&masked, 1, pools[1].id), GPUPOOL_E_NO_POOL);
    PUPPET_SAID(&masked, pools[1].uuid);
    PUPPET_MUST_BE(&masked, acquire_on(&masked, 1, 2), GPUPOOL_E_NO_POOL);
    PUPPET_MUST(&plain, acquire_on(&plain, 1, 1));
    PUPPET_MUST(&plain, puppet_share(&plain, 1, &token));
    PUPPET_MUST_BE(&masked, puppet_attach(&masked, 1, &token), GPUPOOL_E_NO_POOL);
    WAIT_UNTIL(daemon_pool(&daemon, "device", 1, "leases") == 1);
    puppet_quit(&plain);
    puppet_quit(&masked);
    daemon_stop(&daemon);
}

static void a_daemon_with_a_mask_serves_what_it_sees(void **state) {
    struct test_daemon daemon;
    struct puppet worker;

    (void)state;
    if (!test_has_devices(3))
        skip();
    start_daemon(&daemon, "CUDA_VISIBLE_DEVICES=2,1", 3);
    puppet_connect(&worker, &daemon);
    PUPPET_MUST(&worker, puppet_do(&worker, PUPPET_POOL_LIST, 0));
    assert_int_equal(worker.answer.pools[0].device, 2);
    assert_int_equal(worker.answer.pools[1].device, 1);
    PUPPET_MUST(&worker, acquire_on(&worker, 0, 2));
    PUPPET_MUST(&worker, puppet_fill(&worker, 0, 4));
    PUPPET_MUST(&worker, puppet_check(&worker, 0, 4));
    assert_int_equal(daemon_pool(&daemon, "device", 0, "leases"), 1);
    PUPPET_MUST_BE(&worker, acquire_on(&worker, 1, 0), GPUPOOL_E_NO_POOL);
    puppet_quit(&worker);
    daemon_stop(&daemon);
}

/* --- none --- */

static void without_a_gpu_host_memory_is_served(void **state) {
    static const char *const blind[] = {"CUDA_VISIBLE_DEVICES=-1", NULL};
    struct gpupool_token token;
    struct puppet writer, reader;
    struct test_daemon daemon;

    (void)state;
    daemon_start(&daemon,
                 &(struct daemon_options){.config = test_config(config, POOL_MIB, POOL_MIB), .gpu = "none"});
    puppet_connect_as(&writer, &daemon, blind, 0);
    puppet_connect_as(&reader, &daemon, blind, 0);
    PUPPET_MUST(&writer, puppet_do(&writer, PUPPET_GPU_KIND, 0));
    assert_int_equal(writer.answer.number, GPUPOOL_GPU_NONE);
    PUPPET_MUST(&writer, puppet_acquire(&writer, 0, GPUPOOL_POOL_HOST, MIB, GPUPOOL_FOREVER, GPUPOOL_ZERO));
    PUPPET_MUST(&writer, puppet_check(&writer, 0, 0));
    PUPPET_MUST(&writer, puppet_fill(&writer, 0, 2));
    PUPPET_MUST(&writer, puppet_share(&writer, 0, &token));
    PUPPET_MUST(&reader, puppet_attach(&reader, 0, &token));
    PUPPET_MUST(&reader, puppet_check(&reader, 0, 2));
    PUPPET_MUST_BE(&writer, acquire_on(&writer, 1, 0), GPUPOOL_E_NO_GPU);
    PUPPET_MUST(&reader, puppet_release(&reader, 0));
    puppet_kill(&writer);
    WAIT_UNTIL(daemon_sum(&daemon, "leases") == 0 && daemon_sum(&daemon, "quarantined_bytes") == 0);
    puppet_quit(&reader);
    daemon_stop(&daemon);
}

static void a_client_that_sees_no_gpu_has_host_memory(void **state) {
    static const char *const blind[] = {"CUDA_VISIBLE_DEVICES=-1", NULL};
    struct test_daemon daemon;
    struct puppet worker;

    (void)state;
    if (!test_has_device())
        skip();
    start_daemon(&daemon, NULL, 0);
    puppet_connect_as(&worker, &daemon, blind, 0);
    PUPPET_MUST(&worker, puppet_acquire(&worker, 0, GPUPOOL_POOL_HOST, MIB, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(&worker, puppet_fill(&worker, 0, 2));
    PUPPET_MUST(&worker, puppet_check(&worker, 0, 2));
    PUPPET_MUST_BE(&worker, acquire_on(&worker, 1, 0), GPUPOOL_E_NO_GPU);
    PUPPET_MUST(&worker, puppet_release(&worker, 0));
    puppet_quit(&worker);
    assert_int_equal(daemon_sum(&daemon, "leases"), 0);
    daemon_stop(&daemon);
}

/* --- failing --- */

static void growth_fails(const char *call, const char *error, const char *name) {
    char fault[64];
    struct test_daemon daemon;
    struct puppet worker;

    snprintf(fault, sizeof fault, "GPUPOOL_SIM_FAIL=%s:1:%s", call, error);
    start_daemon(&daemon, fault, 1);
    puppet_connect(&worker, &daemon);
    PUPPET_MUST(&worker, puppet_acquire(&worker, 1, GPUPOOL_POOL_HOST, 4096, GPUPOOL_FOREVER, 0));
    unsigned descriptors = daemon_descriptors_at_rest(&daemon);
    /* as large as the step: there is no smaller growth to be tried instead */
    PUPPET_MUST_BE(&worker, puppet_acquire(&worker, 0, GPUPOOL_POOL_DEVICE, 4 * MIB, GPUPOOL_FOREVER, 0),
                   GPUPOOL_E_DRIVER);
    PUPPET_SAID(&worker, name);
    PUPPET_SAID(&worker, "4 MiB");
    assert_int_equal(daemon_pool(&daemon, "device", 0, "reserved_bytes"), 0);
    assert_int_equal(daemon_pool(&daemon, "device", 0, "segments"), 0);
    /* the simulation's memory is a descriptor; its server's sockets come with the first export, not before */
    WAIT_UNTIL(daemon_descriptors(&daemon) <= descriptors); /* more for a moment: who looks into /proc */
    PUPPET_MUST(&worker, puppet_acquire(&worker, 0, GPUPOOL_POOL_DEVICE, 4 * MIB, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(&worker, puppet_fill(&worker, 0, 1));
    PUPPET_MUST(&worker, puppet_check(&worker, 0, 1));
    puppet_quit(&worker);
    daemon_stop(&daemon);
}

static void a_driver_that_fails_the_daemon_is_named_and_tried_again(void **state) {
    (void)state;
    if (!test_is_simulated())
        skip();
    growth_fails("memory_allocate", "2", "cudaErrorMemoryAllocation");
    growth_fails("memory_set", "1", "cudaErrorInvalidValue");
    growth_fails("stream_synchronize", "719", "cudaErrorLaunchFailure");
    growth_fails("ipc_export", "999", "cudaErrorUnknown");
}

static void a_step_that_is_too_much_is_followed_by_what_is_needed(void **state) {
    struct test_daemon daemon;
    struct puppet worker;

    (void)state;
    if (!test_is_simulated() || test_exports_vmm()) /* whose steps are what is needed */
        skip();
    start_daemon(&daemon, "GPUPOOL_SIM_FAIL=memory_allocate:1:2", 1);
    puppet_connect(&worker, &daemon);
    PUPPET_MUST(&worker, puppet_acquire(&worker, 0, GPUPOOL_POOL_DEVICE, 4096, GPUPOOL_FOREVER, 0));
    /* and perhaps another step, ahead of demand, meanwhile */
    assert_int_equal(daemon_pool(&daemon, "device", 0, "reserved_bytes") % (4 * MIB), 2 * MIB);
    puppet_quit(&worker);
    daemon_stop(&daemon);
}

static void a_device_that_cannot_be_used_closes_its_pool_alone(void **state) {
    struct test_daemon daemon;
    struct puppet worker;

    (void)state;
    if (!test_is_simulated())
        skip();
    start_daemon(
        &daemon,
        test_exports_vmm() ? "GPUPOOL_SIM_FAIL=vmm_granule:1:46" : "GPUPOOL_SIM_FAIL=device_check:1:46", 2);
    WAIT_UNTIL(daemon_logged(&daemon, "cudaErrorDevicesUnavailable"));
    puppet_connect(&worker, &daemon);
    /* which of the two made the first call is open: the one that failed says so, the other serves */
    int results[2];
    for (int device = 0; device < 2; device++) {
        results[device] = acquire_on(&worker, (unsigned)device, device);
        if (results[device] != 0)
            PUPPET_SAID(&worker, "cudaErrorDevicesUnavailable");
    }
    assert_true((results[0] == 0) != (results[1] == 0));
    assert_int_equal(results[0] + results[1], GPUPOOL_E_DRIVER);
    PUPPET_MUST(&worker, puppet_acquire(&worker, 2, GPUPOOL_POOL_HOST, MIB, GPUPOOL_FOREVER, 0));
    puppet_quit(&worker);
    daemon_stop(&daemon);
}

static void opening_fails(struct test_daemon *daemon, const char *fault, unsigned kind, const char *name) {
    const char *environment[] = {fault, NULL};
    struct puppet worker;

    puppet_connect_as(&worker, daemon, environment, 0);
    PUPPET_MUST_BE(&worker, puppet_acquire(&worker, 0, kind, MIB, GPUPOOL_FOREVER, 0), GPUPOOL_E_DRIVER);
    PUPPET_SAID(&worker, name);
    assert_int_equal(daemon_sum(daemon, "leases"), 0); /* it was given back */
    PUPPET_MUST(&worker, puppet_acquire(&worker, 0, kind, MIB, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(&worker, puppet_fill(&worker, 0, 1));
    PUPPET_MUST(&worker, puppet_check(&worker, 0, 1));
    puppet_quit(&worker);
    assert_int_equal(daemon_sum(daemon, "leases"), 0);
}

static void a_driver_that_fails_the_client_is_named_and_leaves_no_lease(void **state) {
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    start_daemon(&daemon, NULL, 1);
    opening_fails(&daemon, "GPUPOOL_SIM_FAIL=ipc_open:1:205", GPUPOOL_POOL_DEVICE,
                  "cudaErrorMapBufferObjectFailed");
    opening_fails(&daemon, "GPUPOOL_SIM_FAIL=host_register:1:2", GPUPOOL_POOL_HOST,
                  "cudaErrorMemoryAllocation");
    daemon_stop(&daemon);
}

/* Whatever call of the client's driver fails: the library says so or copes, and nothing stays behind. */
static void any_failing_call_of_a_client_leaves_nothing_behind(void **state) {
    struct test_daemon daemon;
    unsigned failures = 0;

    (void)state;
    if (!test_is_simulated())
        skip();
    start_daemon(&daemon, NULL, 1);
    for (unsigned n = 1; n <= CLIENT_CALLS; n++) {
        char fault[64];
        const char *environment[] = {fault, NULL};
        const unsigned kinds[] = {GPUPOOL_POOL_HOST, GPUPOOL_POOL_DEVICE};
        struct puppet worker;
        snprintf(fault, sizeof fault, "GPUPOOL_SIM_FAIL=any:%u:999", n);
        puppet_connect_as(&worker, &daemon, environment, 0);
        for (unsigned i = 0; i < 2; i++) {
            int r = puppet_acquire(&worker, i, kinds[i], MIB, GPUPOOL_FOREVER, 0);
            if (r != 0) {
                PUPPET_MUST_BE(&worker, r, GPUPOOL_E_DRIVER);
                PUPPET_SAID(&worker, "cudaErrorUnknown");
                failures++;
                continue;
            }
            r = puppet_fill(&worker, i, n);
            if (r == 0)
                r = puppet_check(&worker, i, n);
            failures += r != 0;
            r = puppet_release(&worker, i);
            failures += r != 0;
            if (r != 0) /* it failed once and works now: the buffer is still the caller's */
                PUPPET_MUST(&worker, puppet_release(&worker, i));
        }
        assert_int_equal(daemon_sum(&daemon, "leases"), 0);
        puppet_quit(&worker);
        WAIT_UNTIL(daemon_number(&daemon, "sessions") == 0);
        assert_int_equal(daemon_sum(&daemon, "quarantined_bytes"), 0);
    }
    assert_true(failures > 5);            /* the faults were met … */
    assert_true(failures < CLIENT_CALLS); /* there are more numbers than calls, too */
    daemon_stop(&daemon);
}

static void a_device_that_is_not_there_has_no_streams(void **state) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_pool pools[64];
    struct gpupool_client *client;
    struct test_daemon daemon;
    void *stream = NULL;
    size_t count;
    int devices = 0;

    (void)state;
    if (!test_has_devices(1))
        skip();
    start_daemon(&daemon, NULL, 2);
    options.socket = daemon.socket;
    MUST(gpupool_open(&options, &client));
    MUST(gpupool_pools(client, pools, 64, &count));
    for (size_t i = 0; i < count; i++)
        devices += pools[i].kind == GPUPOOL_POOL_DEVICE;
    assert_true(devices > 0);
    for (int device = 0; device < devices; device++) {
        MUST(gpupool_stream_create(client, device, &stream));
        MUST(gpupool_stream_destroy(client, device, stream));
    }
    MUST_BE(gpupool_stream_create(client, devices, &stream), GPUPOOL_E_INVALID);
    assert_non_null(strstr(gpupool_error_text(), "device"));
    gpupool_close(client);
    daemon_stop(&daemon);
}

static void the_admin_socket_is_told_from_the_data_socket(void **state) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;
    struct test_daemon daemon;

    (void)state;
    start_daemon(&daemon, NULL, 1);
    options.socket = daemon.admin_socket;
    MUST_BE(gpupool_open(&options, &client), GPUPOOL_E_CONNECT);
    assert_non_null(strstr(gpupool_error_text(), "admin socket"));
    daemon_stop(&daemon);
}

int main(int argc, char **argv) {
    test_needs_memfds();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_that_is_not_there_has_no_streams),
        cmocka_unit_test(the_admin_socket_is_told_from_the_data_socket),
        cmocka_unit_test(devices_are_matched_by_uuid_whatever_is_visible),
        cmocka_unit_test(a_daemon_with_a_mask_serves_what_it_sees),
        cmocka_unit_test(without_a_gpu_host_memory_is_served),
        cmocka_unit_test(a_client_that_sees_no_gpu_has_host_memory),
        cmocka_unit_test(a_driver_that_fails_the_daemon_is_named_and_tried_again),
        cmocka_unit_test(a_step_that_is_too_much_is_followed_by_what_is_needed),
        cmocka_unit_test(a_device_that_cannot_be_used_closes_its_pool_alone),
        cmocka_unit_test(a_driver_that_fails_the_client_is_named_and_leaves_no_lease),
        cmocka_unit_test(any_failing_call_of_a_client_leaves_nothing_behind),
    };
    int status = puppet_main(argc, argv, NULL);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, NULL, NULL));
}
