/* SPDX-License-Identifier: Apache-2.0 */
/* Device pools whose segments are descriptors (export = vmm), whatever the other tests run on. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>

#include "base/clock.h"
#include "gpu/sim/sim.h"
#include "tests/integration/puppet.h"
#include "tests/integration/wire_peer.h"
#include "tests/raw_client.h"

#define CONFIG "[device]\nexport = vmm\nlimit = 32MiB\nstep = 4MiB\n[host]\nlimit = 32MiB\nstep = 4MiB\n"

static void start(struct test_daemon *daemon, const char *fault) {
    static const char *environment[2];

    environment[0] = fault;
    daemon_start(daemon,
                 &(struct daemon_options){.config = CONFIG, .sim_gpus = 1, .environment = environment});
}

static void memory_is_shared_and_comes_back_from_the_dead(void **state) {
    struct test_daemon daemon;
    struct puppet holder, other;
    struct gpupool_token token;

    (void)state;
    if (!test_has_device())
        skip();
    start(&daemon, NULL);
    puppet_connect(&holder, &daemon);
    puppet_connect(&other, &daemon);
    PUPPET_MUST(&holder, puppet_acquire(&holder, 0, GPUPOOL_POOL_DEVICE, 6 * MIB, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(&holder, puppet_fill(&holder, 0, 1));
    PUPPET_MUST(&holder, puppet_share(&holder, 0, &token));
    PUPPET_MUST(&other, puppet_attach(&other, 0, &token));
    PUPPET_MUST(&other, puppet_check(&other, 0, 1));
    PUPPET_MUST(&other, puppet_fill(&other, 0, 2));
    PUPPET_MUST(&holder, puppet_check(&holder, 0, 2));
    puppet_kill(&holder);
    PUPPET_MUST(&other, puppet_check(&other, 0, 2));
    PUPPET_MUST(&other, puppet_release(&other, 0));
    WAIT_UNTIL(daemon_sum(&daemon, "quarantined_bytes") == 0);
    PUPPET_MUST(&other, puppet_acquire(&other, 1, GPUPOOL_POOL_DEVICE, 30 * MIB, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(&other, puppet_fill(&other, 1, 3));
    PUPPET_MUST(&other, puppet_check(&other, 1, 3));
    puppet_quit(&other);
    daemon_stop(&daemon);
}

#define SEGMENTS 4u

/* A client takes so many segments and ends, and the daemon gives them back to the driver. Returns how many
 * descriptors the daemon had with all of them. */
static unsigned take_and_trim(struct test_daemon *daemon, struct puppet *worker) {
    for (unsigned slot = 0; slot < SEGMENTS; slot++)
        PUPPET_MUST(worker, puppet_acquire(worker, slot, GPUPOOL_POOL_DEVICE, 4 * MIB, GPUPOOL_FOREVER, 0));
    unsigned held = daemon_descriptors(daemon);
    puppet_quit(worker);
    WAIT_UNTIL(daemon_sum(daemon, "leases") == 0);
    cJSON_Delete(daemon_ask(daemon, "{\"command\":\"trim\"}"));
    WAIT_UNTIL(daemon_pool(daemon, "device", 0, "reserved_bytes") == 0);
    puppet_connect(worker, daemon);
    return held;
}

/* The count begins after a first round: CUDA opens descriptors of its own in the daemon when it allocates for
 * the first time, and keeps them (seen on an H200, driver 580). */
static void segments_cost_a_descriptor_and_give_it_back(void **state) {
    struct test_daemon daemon;
    struct puppet worker;

    (void)state;
    if (!test_has_device())
        skip();
    start(&daemon, NULL);
    puppet_connect(&worker, &daemon);
    (void)take_and_trim(&daemon, &worker);
    unsigned before = daemon_descriptors_at_rest(&daemon);
    for (unsigned round = 0; round < 3; round++) {
        assert_true(take_and_trim(&daemon, &worker) >= before + SEGMENTS);
        WAIT_UNTIL(daemon_descriptors(&daemon) <= before);
    }
    puppet_quit(&worker);
    daemon_stop(&daemon);
}

static void a_driver_that_cannot_do_it_closes_the_pool_alone(void **state) {
    struct test_daemon daemon;
    struct puppet worker;

    (void)state;
    if (!test_is_simulated())
        skip();
    start(&daemon, "GPUPOOL_SIM_FAIL=vmm_granule:1:801");
    WAIT_UNTIL(daemon_logged(&daemon, "use export = ipc"));
    puppet_connect(&worker, &daemon);
    PUPPET_MUST_BE(&worker, puppet_acquire(&worker, 0, GPUPOOL_POOL_DEVICE, MIB, GPUPOOL_FOREVER, 0),
                   GPUPOOL_E_DRIVER);
    PUPPET_SAID(&worker, "export = vmm");
    PUPPET_MUST(&worker, puppet_acquire(&worker, 0, GPUPOOL_POOL_HOST, MIB, GPUPOOL_FOREVER, 0));
    puppet_quit(&worker);
    daemon_stop(&daemon);
}

/* Each call that a client opens a segment with fails once; the next request is served. */
static void a_segment_that_cannot_be_opened_is_tried_again(void **state) {
    static const char *const calls[] = {"vmm_import", "address_reserve", "vmm_map", "vmm_set_access"};

    (void)state;
    if (!test_is_simulated())
        skip();
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
        struct test_daemon daemon;
        struct puppet worker;
        char fault[64];
        snprintf(fault, sizeof fault, "GPUPOOL_SIM_FAIL=%s:1:999", calls[i]);
        start(&daemon, NULL);
        puppet_connect_as(&worker, &daemon, (const char *const[]){fault, NULL}, 0);
        PUPPET_MUST_BE(&worker, puppet_acquire(&worker, 0, GPUPOOL_POOL_DEVICE, MIB, GPUPOOL_FOREVER, 0),
                       GPUPOOL_E_DRIVER);
        PUPPET_SAID(&worker, "cudaErrorUnknown");
        PUPPET_MUST(&worker, puppet_acquire(&worker, 0, GPUPOOL_POOL_DEVICE, MIB, GPUPOOL_FOREVER, 0));
        PUPPET_MUST(&worker, puppet_fill(&worker, 0, 1));
        PUPPET_MUST(&worker, puppet_check(&worker, 0, 1));
        puppet_quit(&worker);
        WAIT_UNTIL(daemon_sum(&daemon, "leases") == 0);
        daemon_stop(&daemon);
    }
}

static void *let_go(void *word) {
    nanosleep(&(struct timespec){.tv_nsec = 100 * (long)NS_PER_MS}, NULL);
    __atomic_store_n((uint64_t *)word, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* The client cannot find out whether the GPU is done with its memory: then it takes no mapping away. */
static void a_close_that_cannot_wait_leaves_the_memory_mapped(void **state) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;
    struct gpupool_buffer buffer;
    struct test_daemon daemon;
    const struct gpu *gpu;
    uint32_t pool;
    pthread_t thread;
    void *stream;

    (void)state;
    if (!test_is_simulated())
        skip();
    start(&daemon, NULL);
    options.socket = daemon.socket;
    assert_int_equal(gpupool_open(&options, &client), 0);
    assert_int_equal(gpupool_device_pool(client, 0, &pool), 0);
    assert_int_equal(gpupool_acquire(client, pool, MIB, GPUPOOL_NO_STREAM, GPUPOOL_FOREVER, 0, &buffer), 0);
    assert_int_equal(gpu_sim(NULL, &gpu), 0);
    uint64_t *word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(word != MAP_FAILED);
    assert_int_equal(gpu->host_register(word, 4096), 0);
    assert_int_equal(gpu->stream_create(0, &stream), 0);
    assert_int_equal(gpu->stream_wait64(0, stream, word, 1), 0);
    assert_int_equal(gpu->memory_set(0, buffer.data, 1, MIB, stream), 0);
    assert_int_equal(gpu_sim_fail("device_synchronize", 1, GPU_ERROR_UNKNOWN), 0);
    assert_int_equal(pthread_create(&thread, NULL, let_go, word), 0);
    gpupool_close(client);
    assert_true(gpu_sim_failed());
    TEST_JOIN(thread, NULL);
    /* An address that maps nothing would have ended the device. */
    assert_int_equal(gpu->stream_synchronize(0, stream), 0);
    assert_int_equal(gpu->stream_destroy(0, stream), 0);
    assert_int_equal(gpu->host_unregister(word), 0);
    munmap(word, 4096);
    WAIT_UNTIL(daemon_number(&daemon, "sessions") > 0); /* until this process ends */
    daemon_crash(&daemon);
    daemon_remove(&daemon);
}

/* A trim unmaps the segments that it gives back, so the driver can have them. Segments that a fence still
 * kept then are offered again when memory decays. */
static void what_a_trim_gives_back_can_go_to_the_driver(void **state) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;
    struct gpupool_buffer buffer, small;
    struct test_daemon daemon;
    uint64_t bytes = 0;
    uint32_t pool;
    void *stream;

    (void)state;
    if (!test_has_device())
        skip();
    start(&daemon, NULL);
    options.socket = daemon.socket;
    for (unsigned behind_fence = 0; behind_fence < 2; behind_fence++) {
        options.decay_ns = behind_fence ? 10 * NS_PER_MS : GPUPOOL_FOREVER;
        assert_int_equal(gpupool_open(&options, &client), 0);
        assert_int_equal(gpupool_device_pool(client, 0, &pool), 0);
        assert_int_equal(gpupool_stream_create(client, 0, &stream), 0);
        void *used_on = behind_fence ? stream : GPUPOOL_NO_STREAM;
        assert_int_equal(gpupool_acquire(client, pool, 10 * MIB, used_on, GPUPOOL_FOREVER, 0, &buffer), 0);
        assert_int_equal(gpupool_acquire(client, pool, 4096, used_on, GPUPOOL_FOREVER, 0, &small), 0);
        assert_int_equal(gpupool_set(client, 0, buffer.data, 1, 10 * MIB, stream), 0);
        assert_int_equal(gpupool_stream_synchronize(client, 0, stream), 0);
        assert_int_equal(gpupool_release(client, &buffer, used_on), 0);
        assert_int_equal(gpupool_release(client, &small, used_on), 0);
        assert_int_equal(gpupool_trim(client, &bytes), 0);
        if (!behind_fence) {
            cJSON_Delete(daemon_ask(&daemon, "{\"command\":\"trim\"}"));
            assert_int_equal(daemon_pool(&daemon, "device", 0, "segments"), 0);
        }
        WAIT_UNTIL((cJSON_Delete(daemon_ask(&daemon, "{\"command\":\"trim\"}")),
                    daemon_pool(&daemon, "device", 0, "reserved_bytes") == 0));
        assert_int_equal(gpupool_stream_destroy(client, 0, stream), 0);
        gpupool_close(client);
    }
    daemon_stop(&daemon);
}

/* In the process that has it, too: test_rows.c has other processes attach. */
static void a_buffer_in_several_segments_is_shared(void **state) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_buffer first, large, again;
    struct gpupool_buffer_info info;
    struct gpupool_client *client;
    struct gpupool_token token;
    struct test_daemon daemon;
    uint32_t pool;

    (void)state;
    if (!test_has_device())
        skip();
    daemon_start(&daemon, &(struct daemon_options){.config = "[device]\nexport = vmm\nlimit = 64MiB\n",
                                                   .sim_gpus = 1});
    options.socket = daemon.socket;
    assert_int_equal(setenv("GPUPOOL_ARENAS", "2", 1), 0);
    assert_int_equal(gpupool_open(&options, &client), GPUPOOL_E_INVALID);
    assert_non_null(strstr(gpupool_error_text(), "GPUPOOL_ARENAS is '2'"));
    assert_int_equal(setenv("GPUPOOL_ARENAS", "1", 1), 0);
    assert_int_equal(gpupool_open(&options, &client), 0);
    assert_int_equal(unsetenv("GPUPOOL_ARENAS"), 0);
    assert_int_equal(gpupool_device_pool(client, 0, &pool), 0);
    assert_int_equal(gpupool_acquire(client, pool, MIB, NULL, GPUPOOL_FOREVER, 0, &first), 0);
    assert_int_equal(gpupool_acquire(client, pool, 24 * MIB, NULL, GPUPOOL_FOREVER, GPUPOOL_ZERO, &large), 0);
    assert_int_equal(gpupool_share(client, &large, GPUPOOL_NO_STREAM, &token), 0);
    assert_int_equal(gpupool_attach(client, &token, GPUPOOL_NO_STREAM, 0, &again), 0);
    assert_int_equal(again.size_bytes, 24 * MIB);
    assert_ptr_not_equal(again.data, large.data);
    assert_int_equal(gpupool_query(client, &large, &info), 0);
    assert_ptr_equal(info.buffer.data, large.data);
    assert_int_equal(info.holders, 2);
    assert_int_equal(gpupool_query(client, &again, &info), 0);
    assert_ptr_equal(info.buffer.data, again.data);
    assert_int_equal(info.buffer.size_bytes, 24 * MIB);
    assert_int_equal(gpupool_release(client, &again, NULL), 0);
    assert_int_equal(gpupool_share(client, &first, GPUPOOL_NO_STREAM, &token), 0);
    assert_int_equal(gpupool_release(client, &large, NULL), 0);
    assert_int_equal(gpupool_release(client, &first, NULL), 0);
    assert_int_equal(gpupool_trim(client, NULL), 0);
    WAIT_UNTIL(daemon_sum(&daemon, "leased_bytes") == 0);
    gpupool_close(client);
    daemon_stop(&daemon);
}

static void read_and_do_not_write(struct gpupool_client *owner, struct gpupool_client *reader,
                                  uint64_t size) {
    struct gpupool_buffer buffer, view, second, writable;
    struct gpupool_buffer_info info;
    struct gpupool_token token;
    uint32_t pool;

    assert_int_equal(gpupool_device_pool(owner, 0, &pool), 0);
    assert_int_equal(gpupool_acquire(owner, pool, size, NULL, GPUPOOL_FOREVER, 0, &buffer), 0);
    assert_int_equal(puppet_write_pattern(owner, &buffer, 1, NULL), 0);
    assert_int_equal(gpupool_share(owner, &buffer, GPUPOOL_NO_STREAM, &token), 0);
    assert_int_equal(gpupool_attach(reader, &token, GPUPOOL_NO_STREAM, GPUPOOL_READ_ONLY, &view), 0);
    assert_int_equal(puppet_read_pattern(reader, &view, 1, NULL), 0);
    assert_int_equal(puppet_write_pattern(reader, &view, 9, NULL), GPUPOOL_E_DRIVER);
    assert_int_equal(puppet_read_pattern(owner, &buffer, 1, NULL), 0);
    assert_int_equal(gpupool_query(reader, &view, &info), 0);
    assert_ptr_equal(info.buffer.data, view.data);
    assert_int_equal(gpupool_attach(reader, &token, GPUPOOL_NO_STREAM, GPUPOOL_READ_ONLY, &second), 0);
    assert_ptr_equal(second.data, view.data); /* one mapping */
    assert_int_equal(gpupool_attach(reader, &token, GPUPOOL_NO_STREAM, 0, &writable), 0);
    assert_ptr_not_equal(writable.data, view.data);
    assert_int_equal(gpupool_query(reader, &writable, &info), 0);
    assert_ptr_equal(info.buffer.data, writable.data);
    assert_int_equal(puppet_write_pattern(reader, &writable, 2, NULL), 0);
    assert_int_equal(puppet_read_pattern(reader, &view, 2, NULL), 0);
    assert_int_equal(gpupool_release(reader, &writable, NULL), 0);
    assert_int_equal(gpupool_release(reader, &second, NULL), 0);
    assert_int_equal(gpupool_release(owner, &buffer, NULL), 0);
    assert_int_equal(puppet_read_pattern(reader, &view, 2, NULL), 0); /* whose it is alone now */
    assert_int_equal(gpupool_release(reader, &view, NULL), 0);
}

static struct gpupool_client *open_at(const struct test_daemon *daemon) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;

    options.socket = daemon->socket;
    assert_int_equal(gpupool_open(&options, &client), 0);
    return client;
}

static void a_buffer_is_attached_for_reading(void **state) {
    struct test_daemon daemon;

    (void)state;
    if (!test_has_device())
        skip();
    daemon_start(&daemon, &(struct daemon_options){.config = "[device]\nexport = vmm\nlimit = 128MiB\n",
                                                   .sim_gpus = 1});
    struct gpupool_client *owner = open_at(&daemon), *reader = open_at(&daemon);
    read_and_do_not_write(owner, reader, MIB);
    read_and_do_not_write(owner, reader, 24 * MIB); /* in several segments */
    read_and_do_not_write(owner, reader, MIB);
    gpupool_close(reader);
    gpupool_close(owner);
    WAIT_UNTIL(daemon_sum(&daemon, "leased_bytes") == 0);
    daemon_stop(&daemon);
}

static void attach_in_vain(struct gpupool_client *client, uint32_t pool, const char *text) {
    struct gpupool_buffer buffer, view;
    struct gpupool_token token;

    assert_int_equal(gpupool_acquire(client, pool, MIB, GPUPOOL_NO_STREAM, GPUPOOL_FOREVER, 0, &buffer), 0);
    assert_int_equal(gpupool_share(client, &buffer, GPUPOOL_NO_STREAM, &token), 0);
    assert_int_equal(gpupool_attach(client, &token, GPUPOOL_NO_STREAM, GPUPOOL_READ_ONLY, &view),
                     GPUPOOL_E_INVALID);
    assert_non_null(strstr(gpupool_error_text(), text));
    assert_int_equal(gpupool_attach(client, &token, GPUPOOL_NO_STREAM, 2, &view), GPUPOOL_E_INVALID);
    assert_non_null(strstr(gpupool_error_text(), "unknown flags: 0x2"));
    assert_int_equal(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM), 0);
}

static void other_memory_is_not_mapped_for_reading_alone(void **state) {
    struct test_daemon daemon;
    uint32_t pool;

    (void)state;
    daemon_start(&daemon, &(struct daemon_options){.config = "[device]\nexport = ipc\n", .sim_gpus = 1});
    struct gpupool_client *client = open_at(&daemon);
    assert_int_equal(gpupool_host_pool(client, -1, &pool), 0);
    attach_in_vain(client, pool, "host memory cannot be mapped for reading alone");
    if (test_has_device()) {
        assert_int_equal(gpupool_device_pool(client, 0, &pool), 0);
        attach_in_vain(client, pool, "have the pool configured with export = vmm");
    }
    gpupool_close(client);
    WAIT_UNTIL(daemon_sum(&daemon, "leased_bytes") == 0);
    daemon_stop(&daemon);
}

static void another_export_needs_a_restart(void **state) {
    struct test_daemon daemon;

    (void)state;
    if (!test_has_device() || test_exports_vmm())
        skip();
    start(&daemon, NULL);
    daemon_write_config(&daemon, "[device]\nexport = ipc\n");
    assert_int_equal(kill(daemon.pid, SIGHUP), 0);
    WAIT_UNTIL(daemon_logged(&daemon, "[device] export: vmm -> ipc"));
    daemon_stop(&daemon);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_shared_and_comes_back_from_the_dead),
        cmocka_unit_test(segments_cost_a_descriptor_and_give_it_back),
        cmocka_unit_test(a_driver_that_cannot_do_it_closes_the_pool_alone),
        cmocka_unit_test(a_segment_that_cannot_be_opened_is_tried_again),
        cmocka_unit_test(a_close_that_cannot_wait_leaves_the_memory_mapped),
        cmocka_unit_test(a_buffer_in_several_segments_is_shared),
        cmocka_unit_test(a_buffer_is_attached_for_reading),
        cmocka_unit_test(other_memory_is_not_mapped_for_reading_alone),
        cmocka_unit_test(what_a_trim_gives_back_can_go_to_the_driver),
        cmocka_unit_test(another_export_needs_a_restart),
    };

    int status = puppet_main(argc, argv, NULL);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, NULL, NULL));
}
